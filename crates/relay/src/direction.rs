//! One direction of an open connection: its flow, its store, its watch, and how it is woken up.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_tcp as tcp;

use crate::flow::{Broken, Flow, Pause};
use crate::hop::{Hop, Limit, SCRATCH_BYTES, Store};
use crate::packing::Press;
use crate::pipes::Pipes;
use crate::stats::{Waiting, Watch, WayStats};

/// What a flow may move before others have their turn.
const TURN_BYTES: u64 = 8 << 20;

/// A stream wakes its worker only when so many bytes have come, or after a tick. A quarter of a pipe: the
/// sender goes on meanwhile. See [`Stream`].
const LOW_WATER_BYTES: u32 = 256 << 10;
/// A flow that moves so much at each of so many wake-ups may be a stream.
const STREAM_BYTES: u64 = 64 << 10;
const STREAM_WAKES: u32 = 8;
/// And if nothing went the other way for so long: else somebody waits for answers.
const STREAM_SILENCE: Duration = Duration::from_millis(5);
/// A stream that moved less than this between two ticks is none any more.
const STREAM_TICK_BYTES: u64 = 64 << 10;

/// What a worker lends to each flow in turn.
pub(crate) struct Tools {
    pub(crate) pipes: Pipes,
    pub(crate) scratch: Box<[u8]>,
    pub(crate) press: Press,
}

impl Tools {
    pub(crate) fn new(pipes: Pipes) -> Tools {
        Tools { pipes, scratch: vec![0; SCRATCH_BYTES].into_boxed_slice(), press: Press::default() }
    }
}

/// Whether a flow is a stream: many bytes one way, silence the other. Its socket is then given a
/// low-water mark, so that a wake-up is for many segments and not for each. What comes below the mark
/// wakes nobody, so the worker looks by itself every tick; a stream that has become slow loses the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stream {
    /// No; so many large wake-ups in a row.
    No(u32),
    /// Yes; so much was given at the last tick.
    Yes { given: u64 },
}

#[derive(Debug)]
pub(crate) struct Direction {
    pub(crate) flow: Flow,
    store: Store,
    limit: Option<Arc<Limit>>,
    watch: Watch,
    stream: Stream,
    moved_at: Option<Instant>,
    swept: u64,
    rate: u64,
    /// Urgent bytes have come, which splice does not get past.
    must_copy: bool,
}

impl Direction {
    pub(crate) fn new(limit: Option<Arc<Limit>>, now: Instant) -> Direction {
        Direction {
            flow: Flow::new(),
            store: Store::Empty,
            limit,
            watch: Watch::new(now),
            stream: Stream::No(0),
            moved_at: None,
            swept: 0,
            rate: 0,
            must_copy: false,
        }
    }

    /// Moves what can be moved.
    pub(crate) fn pump(
        &mut self,
        (from, to): (&OwnedFd, &OwnedFd),
        tools: &mut Tools,
        now: Instant,
    ) -> Result<Pause, Broken> {
        self.watch.turn(Waiting::Moving, now);
        let before = self.flow.given();
        let was_copying = matches!(self.store, Store::Copy);
        let mut result = self.with_hop((from, to), tools, |flow, hop| flow.pump(hop, TURN_BYTES));
        // No event tells of what lies behind urgent bytes, so it is taken as soon as the pipe is empty.
        if self.must_copy && !was_copying && self.flow.held() == 0 && result.is_ok() {
            self.flow.source_is_ready();
            result = self.with_hop((from, to), tools, |flow, hop| flow.pump(hop, TURN_BYTES));
        }
        let after = Instant::now();
        let waiting = result.as_ref().map_or(Waiting::Done, |pause| Waiting::of(*pause));
        self.watch.turn(waiting, after);
        self.count(self.flow.given() - before, after);
        result
    }

    /// Gives on what is held, and takes nothing more.
    pub(crate) fn empty(
        &mut self,
        (from, to): (&OwnedFd, &OwnedFd),
        tools: &mut Tools,
    ) -> Result<(), Broken> {
        self.with_hop((from, to), tools, |flow, hop| flow.empty(hop))
    }

    fn with_hop<T>(
        &mut self,
        (from, to): (&OwnedFd, &OwnedFd),
        tools: &mut Tools,
        act: impl FnOnce(&mut Flow, &mut Hop<'_>) -> T,
    ) -> T {
        if matches!(self.store, Store::Empty) {
            let pipe = if self.must_copy { None } else { tools.pipes.take() };
            self.store = pipe.map_or(Store::Copy, Store::Pipe);
        }
        let unsent = self.flow.held();
        let limit = self.limit.as_deref();
        let scratch = &mut tools.scratch;
        let mut hop =
            Hop { from, to, store: &self.store, limit, scratch, seen: 0, unsent, must_copy: self.must_copy };
        let result = act(&mut self.flow, &mut hop);
        self.must_copy = hop.must_copy;
        if self.flow.held() == 0
            && let Store::Pipe(pipe) = std::mem::replace(&mut self.store, Store::Empty)
        {
            tools.pipes.put(pipe);
        }
        if self.must_copy && self.flow.held() == 0 {
            self.flow.source_is_ready();
        }
        result
    }

    fn count(&mut self, moved: u64, now: Instant) {
        if moved > 0 {
            self.moved_at = Some(now);
        }
        if let Stream::No(wakes) = &mut self.stream {
            *wakes = if moved >= STREAM_BYTES { wakes.saturating_add(1) } else { 0 };
        }
    }

    /// Whether it has become a stream, as far as this direction alone can tell.
    pub(crate) fn may_be_stream(&self) -> bool {
        matches!(self.stream, Stream::No(wakes) if wakes >= STREAM_WAKES)
    }

    /// Whether nothing went this way lately.
    pub(crate) fn is_silent(&self, now: Instant) -> bool {
        self.moved_at.is_none_or(|at| now.saturating_duration_since(at) >= STREAM_SILENCE)
    }

    /// From now on its worker wakes it every tick, too.
    pub(crate) fn begin_stream(&mut self, from: &OwnedFd) {
        // Without the mark it is a flow like any other, only with more wake-ups.
        if tcp::set_receive_low_water(from, LOW_WATER_BYTES).is_ok() {
            self.stream = Stream::Yes { given: self.flow.given() };
        } else {
            self.stream = Stream::No(0);
        }
    }

    pub(crate) fn is_stream(&self) -> bool {
        matches!(self.stream, Stream::Yes { .. })
    }

    /// A tick: whether it goes on as a stream. Either way it is to be pumped now, because what lies
    /// below the mark told nobody.
    pub(crate) fn tick(&mut self, from: &OwnedFd, other_is_silent: bool) -> bool {
        let Stream::Yes { given } = &mut self.stream else { return false };
        let moved = self.flow.given() - *given;
        *given = self.flow.given();
        self.flow.source_is_ready();
        // A target that takes something is waited for as a stream's; one that takes nothing wakes the worker.
        let waits_for_target = self.flow.held() > 0 && moved > 0;
        if other_is_silent && (moved >= STREAM_TICK_BYTES || waits_for_target) {
            return true;
        }
        self.end_stream(from);
        false
    }

    /// The mark goes.
    pub(crate) fn end_stream(&mut self, from: &OwnedFd) {
        self.stream = Stream::No(0);
        // On a socket that is broken; then nobody waits for its bytes.
        let _ = tcp::set_receive_low_water(from, 1);
        self.flow.source_is_ready();
    }

    /// A second has passed: what went through in it.
    pub(crate) fn sweep(&mut self) {
        self.rate = self.flow.given() - self.swept;
        self.swept = self.flow.given();
    }

    /// Urgent bytes have come.
    pub(crate) fn copy_from_now_on(&mut self) {
        self.must_copy = true;
    }

    pub(crate) fn limit(&self) -> Option<&Limit> {
        self.limit.as_deref()
    }

    pub(crate) fn stats(&mut self, now: Instant) -> WayStats {
        let (waits, waiting) = self.watch.read(now);
        WayStats {
            bytes: self.flow.given(),
            bytes_per_second: self.rate,
            held_bytes: self.flow.held() as u64,
            waiting,
            waits,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::pipes::Budget;

    fn pair() -> (TcpStream, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let near = listener.accept().unwrap().0;
        near.set_nonblocking(true).unwrap();
        (far, near.into())
    }

    #[test]
    fn a_stream_that_stalls_is_none_any_more() {
        let ((mut source, from), (mut target, to)) = (pair(), pair());
        let now = Instant::now();
        let mut tools = Tools::new(Pipes::new(Budget::new(usize::MAX)));
        let mut direction = Direction::new(None, now);
        source.set_nonblocking(true).unwrap();
        direction.begin_stream(&from);
        // Until nothing goes anywhere any more.
        let mut is_full = false;
        while !is_full || direction.flow.held() == 0 {
            is_full = source.write(&[7; 64 << 10]).is_err();
            direction.flow.source_is_ready();
            direction.flow.target_is_ready();
            direction.pump((&from, &to), &mut tools, now).unwrap();
        }
        assert!(direction.tick(&from, true), "it moved since the last tick");
        assert!(!direction.tick(&from, true) && !direction.is_stream());
        target.read_exact(&mut [0; 1 << 10]).unwrap();
        direction.begin_stream(&from);
        assert!(!direction.tick(&from, false), "somebody waits for answers");
    }
}
