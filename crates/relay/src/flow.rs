//! One direction of a connection: from a socket, through a store, to the other socket. Pure.
//!
//! Readiness comes as edges: the kernel says once that a socket has become readable or writable, and not
//! again until a try has found it blocked. So a flow goes on until it is blocked, or has used up its turn
//! and must be called again without an edge. [`Flow::pump`] says which.

use std::io;
use std::time::Duration;

/// What came of a try to move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// So many went, at least one.
    Bytes(usize),
    /// None could go. When filling: nothing has come, or the store is full.
    Blocked,
    /// None may go before this time.
    Later(Duration),
    /// The source has said its last byte.
    End,
}

/// The sockets and the store between them.
pub trait Way {
    /// Takes up to so many bytes from the source into the store. With an empty store,
    /// [`Moved::Blocked`] means that the source has nothing.
    fn fill(&mut self, bytes_max: usize) -> io::Result<Moved>;
    /// Gives up to so many bytes, all that the store holds, to the target.
    fn drain(&mut self, bytes: usize) -> io::Result<Moved>;
    /// Tells the target that the last byte is through.
    fn finish(&mut self) -> io::Result<()>;
}

/// Which end of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where bytes come from.
    Source,
    /// Where they go.
    Target,
}

/// A flow that cannot go on, because of one of its sockets.
#[derive(Debug)]
pub struct Broken {
    /// Whose socket.
    pub end: End,
    /// What the kernel said.
    pub error: io::Error,
}

/// Why a flow has stopped for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// Its turn is over: call again soon, no edge will come.
    Turn,
    /// Until the source is readable.
    Source,
    /// Until the target is writable.
    Target,
    /// Until this time: a rate limit.
    Rate(Duration),
    /// For good: all bytes and the end are through.
    Finished,
}

/// State of one direction.
#[derive(Clone, Debug)]
pub struct Flow {
    readable: bool,
    writable: bool,
    held: usize,
    given: u64,
    is_ended: bool,
    is_finished: bool,
}

/// What a store holds at most. A pipe would take several times as much, because its slots hold runs of
/// pages and not pages.
const STORE_BYTES_MAX: usize = 1 << 20;

impl Default for Flow {
    fn default() -> Self {
        Flow::new()
    }
}

impl Flow {
    /// A flow whose sockets have not been tried yet.
    pub fn new() -> Flow {
        Flow { readable: true, writable: true, held: 0, given: 0, is_ended: false, is_finished: false }
    }

    /// The kernel says that the source has something, or its end.
    pub fn source_is_ready(&mut self) {
        self.readable = true;
    }

    /// The kernel says that the target takes bytes.
    pub fn target_is_ready(&mut self) {
        self.writable = true;
    }

    /// Bytes given to the target since the beginning.
    pub fn given(&self) -> u64 {
        self.given
    }

    /// Bytes in the store.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether the end is through.
    pub fn is_finished(&self) -> bool {
        self.is_finished
    }

    /// Whether the source has said its last byte.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }

    /// Whether there is anything to try. If not, pumping would find what it found before.
    pub fn can_go(&self) -> bool {
        let can_fill = self.readable && !self.is_ended && self.held < STORE_BYTES_MAX;
        let can_drain = self.writable && self.held > 0;
        !self.is_finished && (can_fill || can_drain || (self.is_ended && self.held == 0))
    }

    /// Moves bytes until both sockets are blocked, the end is through, or `turn_bytes` have gone.
    ///
    /// # Errors
    /// [`Broken`] if a socket failed. Bytes may still be held, and may go on to a target that is well.
    pub fn pump(&mut self, way: &mut impl Way, turn_bytes: u64) -> Result<Pause, Broken> {
        let turn_ends = self.given.saturating_add(turn_bytes);
        loop {
            let mut later = None;
            let filled = self.fill(way, &mut later)?;
            let drained = self.drain(way, &mut later)?;
            if self.is_ended && self.held == 0 {
                self.finish(way)?;
                return Ok(Pause::Finished);
            }
            if !filled && !drained {
                return Ok(self.pause(later));
            }
            if self.given >= turn_ends {
                return Ok(Pause::Turn);
            }
        }
    }

    /// Gives on what is held and what the source still has, without an end: the source is gone.
    ///
    /// # Errors
    /// [`Broken`] if the target failed.
    pub fn empty(&mut self, way: &mut impl Way) -> Result<(), Broken> {
        loop {
            let filled = self.fill_last(way);
            if !self.drain(way, &mut None)? && !filled {
                return Ok(());
            }
        }
    }

    /// Of a source that is gone everything but bytes is known already.
    fn fill_last(&mut self, way: &mut impl Way) -> bool {
        match if self.held < STORE_BYTES_MAX {
            way.fill(STORE_BYTES_MAX - self.held)
        } else {
            Ok(Moved::Blocked)
        } {
            Ok(Moved::Bytes(bytes)) => {
                self.held += bytes;
                true
            }
            Ok(Moved::Blocked | Moved::Later(_) | Moved::End) | Err(_) => false,
        }
    }

    fn fill(&mut self, way: &mut impl Way, later: &mut Option<Duration>) -> Result<bool, Broken> {
        if self.is_ended || !self.readable || self.held >= STORE_BYTES_MAX {
            return Ok(false);
        }
        match way.fill(STORE_BYTES_MAX - self.held).map_err(|error| Broken { end: End::Source, error })? {
            Moved::Bytes(bytes) => {
                self.held += bytes;
                return Ok(true);
            }
            // With bytes in the store it may be the store that is full; then the source counts as
            // readable, and is tried again once the store is empty.
            Moved::Blocked => self.readable = self.held > 0,
            Moved::Later(time) => *later = Some(time),
            Moved::End => self.is_ended = true,
        }
        Ok(false)
    }

    fn drain(&mut self, way: &mut impl Way, later: &mut Option<Duration>) -> Result<bool, Broken> {
        if self.held == 0 || !self.writable {
            return Ok(false);
        }
        match way.drain(self.held).map_err(|error| Broken { end: End::Target, error })? {
            Moved::Bytes(bytes) => {
                assert!(bytes <= self.held, "more given than held");
                self.held -= bytes;
                self.given += bytes as u64;
                return Ok(true);
            }
            Moved::Blocked => self.writable = false,
            Moved::Later(time) => *later = Some(time),
            Moved::End => unreachable!("a target has no end"),
        }
        Ok(false)
    }

    fn finish(&mut self, way: &mut impl Way) -> Result<(), Broken> {
        if !self.is_finished {
            way.finish().map_err(|error| Broken { end: End::Target, error })?;
            self.is_finished = true;
        }
        Ok(())
    }

    fn pause(&self, later: Option<Duration>) -> Pause {
        match later {
            // What is held does not wait for a rate, only for the target.
            _ if self.held > 0 && !self.writable => Pause::Target,
            Some(time) => Pause::Rate(time),
            None => Pause::Source,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    /// Sockets and a pipe of a machine that tells edges as Linux does.
    #[derive(Debug, Default)]
    struct Machine {
        /// Arrived and not taken, in pieces: a piece takes one slot of the pipe, or a part of it.
        arrived: VecDeque<usize>,
        has_ended: bool,
        slots: VecDeque<usize>,
        slots_max: usize,
        window: usize,
        /// A try to give found the window closed: the next opening is an edge.
        wants_window: bool,
        received: usize,
        finished_at: Option<usize>,
    }

    impl Way for Machine {
        fn fill(&mut self, bytes_max: usize) -> io::Result<Moved> {
            let mut bytes = 0;
            while bytes < bytes_max && self.slots.len() < self.slots_max {
                let Some(piece) = self.arrived.pop_front() else { break };
                let part = piece.min(bytes_max - bytes);
                if part < piece {
                    self.arrived.push_front(piece - part);
                }
                self.slots.push_back(part);
                bytes += part;
            }
            Ok(match bytes {
                0 if self.arrived.is_empty() && self.has_ended => Moved::End,
                0 => Moved::Blocked,
                bytes => Moved::Bytes(bytes),
            })
        }

        fn drain(&mut self, bytes_max: usize) -> io::Result<Moved> {
            let mut bytes = 0;
            while bytes < bytes_max && self.window > 0 {
                let Some(piece) = self.slots.pop_front() else { break };
                let part = piece.min(bytes_max - bytes).min(self.window);
                if part < piece {
                    self.slots.push_front(piece - part);
                }
                self.window -= part;
                bytes += part;
            }
            self.received += bytes;
            self.wants_window |= self.window == 0;
            assert!(self.finished_at.is_none(), "bytes after the end");
            Ok(if bytes == 0 { Moved::Blocked } else { Moved::Bytes(bytes) })
        }

        fn finish(&mut self) -> io::Result<()> {
            assert!(self.finished_at.replace(self.received).is_none(), "two ends");
            Ok(())
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Arrive(Vec<usize>),
        Open(usize),
        Turn,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            prop::collection::vec(1_usize..5000, 1..20).prop_map(Step::Arrive),
            (1_usize..60_000).prop_map(Step::Open),
            Just(Step::Turn),
        ]
    }

    /// Pumps as the driver does: on edges, and again after a turn.
    fn pump(flow: &mut Flow, machine: &mut Machine, turn: u64) {
        while flow.pump(machine, turn).unwrap() == Pause::Turn {}
        let held: usize = machine.slots.iter().sum();
        assert_eq!(flow.held(), held);
        assert_eq!(flow.given() as usize, machine.received);
        // Nothing that could go on stands still without an edge to come.
        let can_fill = machine.slots.len() < machine.slots_max && !machine.arrived.is_empty();
        let can_drain = machine.window > 0 && !machine.slots.is_empty();
        assert!(!can_fill || !machine.slots.is_empty(), "the source waits for nothing: {flow:?} {machine:?}");
        assert!(!can_drain, "the target waits for nothing: {flow:?} {machine:?}");
    }

    proptest! {
        #[test]
        fn every_byte_goes_and_then_the_end_whatever_comes_when(
            steps in prop::collection::vec(any_step(), 1..60),
            slots_max in 1_usize..8,
            turn in 1_u64..20_000,
        ) {
            let mut machine = Machine { slots_max, ..Machine::default() };
            let mut flow = Flow::new();
            let mut sent = 0;
            for step in steps {
                match step {
                    Step::Arrive(pieces) => {
                        sent += pieces.iter().sum::<usize>();
                        machine.arrived.extend(pieces);
                        flow.source_is_ready();
                    }
                    Step::Open(bytes) => {
                        machine.window += bytes;
                        if std::mem::take(&mut machine.wants_window) {
                            flow.target_is_ready();
                        }
                    }
                    Step::Turn => {}
                }
                pump(&mut flow, &mut machine, turn);
            }
            machine.has_ended = true;
            flow.source_is_ready();
            machine.window += sent;
            flow.target_is_ready();
            pump(&mut flow, &mut machine, turn);
            prop_assert!(flow.is_finished());
            prop_assert_eq!(machine.finished_at, Some(sent));
        }
    }

    /// A way that answers from lists, and tells what it was asked for.
    #[derive(Default)]
    struct Script {
        fills: VecDeque<io::Result<Moved>>,
        drains: VecDeque<io::Result<Moved>>,
    }

    impl Way for Script {
        fn fill(&mut self, _: usize) -> io::Result<Moved> {
            self.fills.pop_front().unwrap_or(Ok(Moved::Blocked))
        }

        fn drain(&mut self, _: usize) -> io::Result<Moved> {
            self.drains.pop_front().unwrap_or(Ok(Moved::Blocked))
        }

        fn finish(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_held_waits_for_the_target_also_under_a_rate() {
        let time = Duration::from_millis(5);
        let mut way = Script {
            fills: [Ok(Moved::Bytes(9)), Ok(Moved::Later(time)), Ok(Moved::Later(time))].into(),
            drains: [Ok(Moved::Blocked), Ok(Moved::Bytes(9))].into(),
        };
        let mut flow = Flow::new();
        assert_eq!(flow.pump(&mut way, 100).unwrap(), Pause::Target);
        flow.target_is_ready();
        way.fills.push_back(Ok(Moved::Later(time)));
        assert_eq!(flow.pump(&mut way, 100).unwrap(), Pause::Rate(time));
    }

    #[test]
    fn what_broke_is_told_with_its_end_and_what_is_held_can_still_go() {
        let reset = || Err(io::ErrorKind::ConnectionReset.into());
        let mut way = Script { fills: [Ok(Moved::Bytes(9)), reset()].into(), ..Script::default() };
        let mut flow = Flow::new();
        assert_eq!(flow.pump(&mut way, 100).unwrap_err().end, End::Source);
        assert_eq!(flow.held(), 9);
        flow.target_is_ready();
        way.fills.extend([Ok(Moved::Bytes(2)), Ok(Moved::End)]);
        way.drains.extend([Ok(Moved::Bytes(9)), Ok(Moved::Bytes(2))]);
        flow.empty(&mut way).unwrap();
        assert_eq!((flow.held(), flow.given(), flow.is_finished()), (0, 11, false));
        let mut way = Script { fills: [Ok(Moved::Bytes(9))].into(), drains: [reset()].into() };
        assert_eq!(Flow::new().pump(&mut way, 100).unwrap_err().end, End::Target);
    }

    #[test]
    fn an_end_is_through_only_when_nothing_is_held() {
        let mut way = Script {
            fills: [Ok(Moved::Bytes(9)), Ok(Moved::End)].into(),
            drains: [Ok(Moved::Bytes(4)), Ok(Moved::Blocked)].into(),
        };
        let mut flow = Flow::new();
        assert_eq!(flow.pump(&mut way, 100).unwrap(), Pause::Target);
        assert!(flow.is_ended() && !flow.is_finished());
        way.drains.push_back(Ok(Moved::Bytes(5)));
        flow.target_is_ready();
        assert_eq!(flow.pump(&mut way, 100).unwrap(), Pause::Finished);
    }
}
