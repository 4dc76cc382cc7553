//! An open connection: two sockets, two directions, and how it ends.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use drover_tcp as tcp;
use rustix::event::epoll::EventFlags;
use rustix::net::sockopt::socket_error;

use crate::direction::{Direction, Tools};
use crate::flow::{Broken, End, Pause};
use crate::stats::{ConnectionStats, SocketStats, Stage, Totals};

/// After one side was reset, what it had sent before may go on to the other for so long.
const ENDING_MAX: Duration = Duration::from_secs(1);
/// How often to look whether it has arrived.
const ENDING_LOOK: Duration = Duration::from_millis(5);

/// One of the two sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Target,
}

impl Side {
    /// As the bit of a token.
    pub(crate) fn bit(self) -> bool {
        self == Side::Target
    }

    pub(crate) fn of(bit: bool) -> Side {
        if bit { Side::Target } else { Side::Client }
    }
}

/// Who and since when.
#[derive(Clone, Debug)]
pub(crate) struct Meta {
    pub(crate) id: u64,
    pub(crate) client: SocketAddr,
    pub(crate) target: String,
    pub(crate) rule: Option<usize>,
    pub(crate) accepted_at: Instant,
}

/// How a connection stands after it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It goes on, and wants this.
    Lives(Wants),
    /// Both sides have said their last byte.
    Closed,
    /// To be reset on both sides.
    Reset,
}

/// What a connection wants from its worker besides events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wants {
    /// To be served again without an event.
    pub(crate) turn: bool,
    /// To be served at this time.
    pub(crate) at: Option<Instant>,
    /// To be served at every tick.
    pub(crate) ticks: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ending {
    dead: Side,
    until: Instant,
}

#[derive(Debug)]
pub(crate) struct Connection {
    meta: Meta,
    client: OwnedFd,
    target: OwnedFd,
    up: Direction,
    down: Direction,
    ending: Option<Ending>,
    /// Whether the worker has it among those to be served again.
    pub(crate) is_queued: bool,
    /// Whether the worker has it among those that get ticks.
    pub(crate) has_ticks: bool,
}

impl Connection {
    pub(crate) fn new(meta: Meta, client: OwnedFd, target: OwnedFd, up: Direction, down: Direction) -> Self {
        Connection { meta, client, target, up, down, ending: None, is_queued: false, has_ticks: false }
    }

    /// Takes in what the kernel says of one socket.
    pub(crate) fn ready(&mut self, side: Side, flags: EventFlags) {
        let (reads, writes) = match side {
            Side::Client => (&mut self.up, &mut self.down),
            Side::Target => (&mut self.down, &mut self.up),
        };
        let is_over = flags.intersects(EventFlags::ERR | EventFlags::HUP);
        if is_over || flags.intersects(EventFlags::IN | EventFlags::RDHUP) {
            reads.flow.source_is_ready();
        }
        if flags.contains(EventFlags::PRI) {
            reads.copy_from_now_on();
            reads.flow.source_is_ready();
        }
        if is_over || flags.contains(EventFlags::OUT) {
            writes.flow.target_is_ready();
        }
    }

    /// Moves what can be moved. `failed` is a socket of which the kernel has told an error.
    pub(crate) fn serve(&mut self, failed: Option<Side>, tools: &mut Tools, now: Instant) -> Outcome {
        if self.ending.is_some() {
            return self.end(tools, now);
        }
        let mut wants = Wants::default();
        for is_up in [true, false, true] {
            if let Err(dead) = self.pump(is_up, tools, now, &mut wants) {
                return self.break_up(dead, tools, now);
            }
        }
        if let Some(side) = failed.filter(|side| self.has_failed(*side)) {
            return self.break_up(side, tools, now);
        }
        if self.up.flow.is_finished() && self.down.flow.is_finished() {
            return Outcome::Closed;
        }
        self.find_streams(now);
        wants.ticks = self.up.is_stream() || self.down.is_stream();
        Outcome::Lives(wants)
    }

    /// Pumps one direction if there is anything to try. What goes one way ends a stream the other way:
    /// an answer may follow, and must not lie below the mark.
    fn pump(&mut self, is_up: bool, tools: &mut Tools, now: Instant, wants: &mut Wants) -> Result<(), Side> {
        let (direction, other, from, to) = match is_up {
            true => (&mut self.up, &mut self.down, &self.client, &self.target),
            false => (&mut self.down, &mut self.up, &self.target, &self.client),
        };
        if !direction.flow.can_go() {
            return Ok(());
        }
        let before = direction.flow.given();
        let pause = direction.pump((from, to), tools, now).map_err(|broken| dead(is_up, &broken))?;
        if direction.flow.given() > before && other.is_stream() {
            other.end_stream(to);
        }
        match pause {
            Pause::Turn => wants.turn = true,
            Pause::Rate(time) => {
                let at = direction.limit().map(|limit| limit.instant(time));
                wants.at = [wants.at, at].into_iter().flatten().min();
            }
            Pause::Source | Pause::Target | Pause::Finished => {}
        }
        Ok(())
    }

    fn find_streams(&mut self, now: Instant) {
        if self.up.may_be_stream() && self.down.is_silent(now) {
            self.up.begin_stream(&self.client);
        }
        if self.down.may_be_stream() && self.up.is_silent(now) {
            self.down.begin_stream(&self.target);
        }
    }

    /// A tick of the worker's clock, for streams.
    pub(crate) fn tick(&mut self, now: Instant) {
        let (up_is_silent, down_is_silent) = (self.up.is_silent(now), self.down.is_silent(now));
        self.up.tick(&self.client, down_is_silent);
        self.down.tick(&self.target, up_is_silent);
    }

    fn has_failed(&self, side: Side) -> bool {
        let socket = self.socket(side);
        // An error that cannot be asked for is one.
        !matches!(socket_error(socket), Ok(Ok(())))
    }

    fn socket(&self, side: Side) -> &OwnedFd {
        match side {
            Side::Client => &self.client,
            Side::Target => &self.target,
        }
    }

    /// One side was reset, or is gone. The other gets what had come before, then a reset, too.
    fn break_up(&mut self, dead: Side, tools: &mut Tools, now: Instant) -> Outcome {
        self.ending = Some(Ending { dead, until: now + ENDING_MAX });
        self.end(tools, now)
    }

    /// Goes on with the end, until what the dead side sent has arrived at the other or time is up.
    fn end(&mut self, tools: &mut Tools, now: Instant) -> Outcome {
        let Some(ending) = self.ending else { return Outcome::Reset };
        let (direction, from, to) = match ending.dead {
            Side::Client => (&mut self.up, &self.client, &self.target),
            Side::Target => (&mut self.down, &self.target, &self.client),
        };
        direction.flow.target_is_ready();
        // Linux gives out what had come before a reset. What it tells after it, an end, is none.
        let gave_all = direction.empty((from, to), tools).is_ok() && direction.flow.held() == 0;
        let arrived = gave_all && tcp::unacknowledged(to).unwrap_or(0) == 0;
        if arrived || now >= ending.until {
            return Outcome::Reset;
        }
        Outcome::Lives(Wants { at: Some(now + ENDING_LOOK), ..Wants::default() })
    }

    /// Closes both sockets after both ends are through. Dropped without this, both peers get a reset.
    pub(crate) fn close(self) {
        for socket in [&self.client, &self.target] {
            // On a socket that broke in this moment; then its peer knows.
            let _ = tcp::end_on_close(socket);
        }
    }

    /// A second has passed.
    pub(crate) fn sweep(&mut self) {
        self.up.sweep();
        self.down.sweep();
    }

    /// Adds what it has done to sums.
    pub(crate) fn add_to(&mut self, totals: &mut Totals, now: Instant) {
        let (up, down) = (self.up.stats(now), self.down.stats(now));
        totals.up_bytes += up.bytes;
        totals.down_bytes += down.bytes;
        totals.up_waits.sum(&up.waits);
        totals.down_waits.sum(&down.waits);
        let again = |socket: &OwnedFd| tcp::info(socket).map_or(0, |info| info.segments_again.into());
        totals.segments_again += again(&self.client) + again(&self.target);
    }

    /// Bytes in the last second, both ways.
    pub(crate) fn rate(&mut self, now: Instant) -> u64 {
        self.up.stats(now).bytes_per_second + self.down.stats(now).bytes_per_second
    }

    pub(crate) fn stats(&mut self, now: Instant) -> ConnectionStats {
        let stage = if self.ending.is_some() { Stage::Ending } else { Stage::Open };
        ConnectionStats {
            id: self.meta.id,
            client: self.meta.client,
            peer: None,
            target: self.meta.target.clone(),
            is_linked: false,
            stage,
            age_us: age_us(&self.meta, now),
            rule: self.meta.rule,
            up: self.up.stats(now),
            down: self.down.stats(now),
            client_socket: socket_stats(&self.client),
            target_socket: socket_stats(&self.target),
        }
    }
}

/// Whose socket broke.
fn dead(is_up: bool, broken: &Broken) -> Side {
    match (is_up, broken.end) {
        (true, End::Source) | (false, End::Target) => Side::Client,
        (true, End::Target) | (false, End::Source) => Side::Target,
    }
}

pub(crate) fn age_us(meta: &Meta, now: Instant) -> u64 {
    u64::try_from(now.saturating_duration_since(meta.accepted_at).as_micros()).unwrap_or(u64::MAX)
}

fn socket_stats(socket: &OwnedFd) -> Option<SocketStats> {
    let info = tcp::info(socket).ok()?;
    Some(SocketStats::new(tcp::congestion(socket).ok()?, &info))
}
