//! A session without its sockets, threads and clocks: bytes of programs in, frames out, and back.
//!
//! ```text
//!            program                                                              program
//!  reserve, push  │ per channel: queue          per channel: messages, reordered ▲ message, piece
//!                 ▼                             stream, window                   │
//!  pull(stripe) ──┬─ own frames, acknowledgements, repeats, control, channels    │
//!                 │  in turn; numbered as they go                                │
//!                 ▼                                                              │
//!              flying: kept until acknowledged ─── stripe ───> arrive: a double is dropped
//!                 ▲ sent again when its stripe ends or falls silent, or when it is overdue and another is idle
//! ```
//!
//! Any connection ("stripe") takes the next frame when it has room for it, so fast ones carry more and a
//! stalled one holds up only what it already has. What is sent and not acknowledged, what waits to be
//! sent and what waits to be read are bounded, see [`Limits`].
//!
//! Time is what has passed since the session began; it is an argument.

mod arrived;
mod controller;
mod incoming;
mod life;
mod outgoing;
mod overdue;
mod pacer;
mod program;
mod ranges;
mod receiving;
mod sending;
mod stripes;
mod watch;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use drover_wire::{Credits, Header};

pub use controller::{Controller, STRIPES_MAX, STRIPES_START, Step, StripeBounds};
pub use outgoing::{Outgoing, Pull};
pub use pacer::{PACE_EVERY, Pacer, Seen};
pub use program::{GATHER_WRITE_BYTES_MAX, check_message};
pub use receiving::Taken;
pub use stripes::{DEAD_AFTER, StripeId};

use arrived::Arrived;
use overdue::Usual;
use ranges::RangeSet;
use receiving::{Receiving, Violation};
use sending::Sending;
use stripes::Stripes;
use watch::Watch;

use crate::error::{LinkError, LinkErrorKind};
use crate::payload::Payload;

/// Time since the session began.
pub type Moment = Duration;

/// Names a channel within its session; see [`drover_wire::Header`].
pub type ChannelId = u32;

/// How what is sent on a channel arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Bytes, in order.
    Stream,
    /// Messages, each whole and once, in any order.
    Messages,
}

/// A message that arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// What the sender gave as its head.
    pub head: Vec<u8>,
    /// What the sender gave as its body.
    pub body: Vec<u8>,
}

/// Which side of a session this is: only the one that dialled makes new connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The side that dialled.
    Dialler,
    /// The side that listens.
    Listener,
}

/// Credit of a channel once it is read as fast as it comes, at most.
pub const CHANNEL_CREDIT_MAX: u64 = 64 << 20;

/// Credit of a stream when it is opened.
pub const STREAM_CREDIT_FIRST: u64 = 256 << 10;

/// Credit of a channel of messages when it is opened. Twice the largest message fits in half of it, or the
/// peer could wait for credit that this side has no reason to give.
pub const MESSAGES_CREDIT_FIRST: u64 = 8 << 20;

/// What waits to be read on all channels of a session, at most.
pub const SESSION_CREDIT: u64 = 256 << 20;

/// What a session has taken from its program and the peer has not acknowledged, at most. Twice what
/// 10 Gbit/s carries in 55 ms.
pub const HELD_BYTES_MAX: u64 = 128 << 20;

/// Channels that each side may have open at a time.
pub const CHANNELS_MAX: usize = 16 << 10;

/// Bounds of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Credit given to the peer at first.
    pub credits: Credits,
    /// See [`CHANNEL_CREDIT_MAX`].
    pub channel_credit_max: u64,
    /// See [`HELD_BYTES_MAX`].
    pub held_bytes_max: u64,
    /// See [`CHANNELS_MAX`].
    pub channels_max: usize,
    /// A session without a connection is given up after so long.
    pub give_up_after: Duration,
}

impl Limits {
    /// Bytes of buffers that are kept for reuse, at most.
    pub fn pool_bytes_max(&self) -> u64 {
        self.held_bytes_max / 4
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            credits: Credits {
                stream: STREAM_CREDIT_FIRST,
                messages: MESSAGES_CREDIT_FIRST,
                session: SESSION_CREDIT,
            },
            channel_credit_max: CHANNEL_CREDIT_MAX,
            held_bytes_max: HELD_BYTES_MAX,
            channels_max: CHANNELS_MAX,
            give_up_after: GIVE_UP_AFTER,
        }
    }
}

/// How long a session looks for a new connection, if nothing else is said.
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(15 * 60);

/// Frames about channels that wait to be sent, at most; a peer that makes us owe more is not honest.
const CONTROL_MAX: usize = 4 * CHANNELS_MAX;

/// Whom the driver should wake after a call.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Wakes {
    /// Channels with room for senders.
    pub senders: Vec<ChannelId>,
    /// Room for senders of any channel.
    pub all_senders: bool,
    /// Channels with something to read.
    pub receivers: Vec<ChannelId>,
    /// A channel that the peer opened.
    pub accept: bool,
    /// Everybody: the session is over.
    pub everyone: bool,
}

/// Counters of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes of payload that the peer acknowledged.
    pub acknowledged_bytes: u64,
    /// Bytes of payload that arrived, without doubles.
    pub arrived_bytes: u64,
    /// Frames that were sent once more, and of them those that only took longer than usual.
    pub repeated_frames: u64,
    /// See `repeated_frames`.
    pub overdue_frames: u64,
    /// Frames that arrived once more.
    pub double_frames: u64,
}

/// One side of a session.
#[derive(Debug)]
pub struct Core {
    side: Side,
    limits: Limits,
    /// Credit that the peer gives to channels at first.
    first: Credits,
    state: State,
    channels: HashMap<ChannelId, Channel>,
    opened: u32,
    opened_now: usize,
    /// Channels of the peer that were there at some time, by their count.
    seen: RangeSet,
    incoming: VecDeque<(ChannelId, Vec<u8>)>,
    /// Channels with frames to send; each is in it once.
    ready: VecDeque<ChannelId>,
    /// Bytes that the first of them has sent in this turn.
    turn_bytes: usize,
    control: VecDeque<Control>,
    flying: BTreeMap<u64, Flying>,
    repeats: BTreeSet<u64>,
    usual: Usual,
    /// When a frame was sent that had not been before, and is not small.
    sent_new: Moment,
    /// Those who wait for the last byte of all that is under way.
    hurries: usize,
    /// A program found that the peer's credit was used up, and no more has come since.
    lacks_credit: bool,
    next_sequence: u64,
    /// Cost that was taken from programs and is not acknowledged.
    held: u64,
    /// Cost that may be sent in all, and that was taken of it.
    limit: u64,
    used: u64,
    arrived: Arrived,
    budget: Budget,
    stripes: Stripes,
    watch: Watch,
    is_peer_backlogged: bool,
    wakes: Wakes,
    counters: Counters,
}

#[derive(Debug)]
struct Channel {
    order: Order,
    sending: Sending,
    receiving: Receiving,
    /// Opened here.
    is_ours: bool,
    /// The program can have it: it was opened here, or its opening has arrived.
    is_open: bool,
    /// The program still holds the receiver.
    is_read: bool,
    is_in_ready: bool,
    /// A frame with new credit for the peer waits to be sent.
    is_credit_queued: bool,
}

/// A frame about a channel that is to be sent before all data.
#[derive(Debug)]
enum Control {
    Open(ChannelId, Payload),
    Finish(ChannelId, u64),
    Reset(ChannelId, u64),
    Stop(ChannelId),
    /// The limit is looked up when it is sent.
    Credit(ChannelId),
}

/// A frame that was sent and is not acknowledged.
#[derive(Debug)]
struct Flying {
    header: Header,
    payload: Payload,
    stripe: StripeId,
    /// When that connection took it, and whether another one had before.
    sent: Moment,
    is_again: bool,
}

/// What the peer may send on all channels together, and what became of it.
#[derive(Debug)]
struct Budget {
    window: u64,
    promised: u64,
    arrived: u64,
    consumed: u64,
    /// A frame that says what is promised waits to be sent.
    is_to_be_told: bool,
}

#[derive(Debug)]
enum State {
    Open,
    /// Closed here; what was sent before is still to arrive.
    Closing,
    Ended {
        why: LinkError,
        /// What the peer is told, if it does not know.
        bye: Option<String>,
    },
}

impl Budget {
    fn new(window: u64) -> Budget {
        Budget { window, promised: window, arrived: 0, consumed: 0, is_to_be_told: false }
    }

    fn arrive(&mut self, cost: u64) -> Result<(), Violation> {
        self.arrived += cost;
        match self.arrived <= self.promised {
            true => Ok(()),
            false => Err(Violation("more was sent than the session has credit for")),
        }
    }

    /// Notes what was read; true if the peer should be told a new limit.
    fn consume(&mut self, cost: u64) -> bool {
        self.consumed += cost;
        let is_due = self.consumed + self.window - self.promised >= self.window / 8;
        if is_due {
            self.promised = self.consumed + self.window;
        }
        is_due && !std::mem::replace(&mut self.is_to_be_told, true)
    }
}

impl Core {
    /// A session without connections. `first` is the credit that the peer gave in its greeting.
    pub fn new(side: Side, limits: Limits, first: Credits) -> Core {
        Core {
            side,
            limits,
            first,
            state: State::Open,
            channels: HashMap::new(),
            opened: 0,
            opened_now: 0,
            seen: RangeSet::default(),
            incoming: VecDeque::new(),
            ready: VecDeque::new(),
            turn_bytes: 0,
            control: VecDeque::new(),
            flying: BTreeMap::new(),
            repeats: BTreeSet::new(),
            usual: Usual::default(),
            sent_new: Moment::ZERO,
            hurries: 0,
            lacks_credit: false,
            next_sequence: 1,
            held: 0,
            limit: first.session,
            used: 0,
            arrived: Arrived::default(),
            budget: Budget::new(limits.credits.session),
            stripes: Stripes { none_since: Some(Moment::ZERO), ..Stripes::default() },
            watch: Watch::default(),
            is_peer_backlogged: false,
            wakes: Wakes::default(),
            counters: Counters::default(),
        }
    }

    /// Whom to wake; asked after every call that changes something.
    pub fn take_wakes(&mut self) -> Wakes {
        std::mem::take(&mut self.wakes)
    }

    /// Counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes taken from programs that the peer has not acknowledged, and of the peer that wait to be read;
    /// both with what is counted for each frame.
    pub fn memory(&self) -> (u64, u64) {
        (self.held, self.budget.arrived - self.budget.consumed)
    }

    /// See [`Limits::pool_bytes_max`].
    pub fn pool_bytes_max(&self) -> u64 {
        self.limits.pool_bytes_max()
    }

    /// Channels that are open.
    pub fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Why the session is over, if it is.
    pub fn ended(&self) -> Option<&LinkError> {
        match &self.state {
            State::Ended { why, .. } => Some(why),
            State::Open | State::Closing => None,
        }
    }

    fn closed_error(&self) -> Option<LinkError> {
        match &self.state {
            State::Open => None,
            State::Closing => Some(LinkError::new(LinkErrorKind::Closed, "the session was closed")),
            State::Ended { why, .. } => Some(why.clone()),
        }
    }

    fn side_bit(&self) -> u32 {
        match self.side {
            Side::Dialler => SIDE_BIT,
            Side::Listener => 0,
        }
    }

    fn consume(&mut self, cost: u64) {
        if cost > 0 && self.budget.consume(cost) {
            self.control.push_back(Control::Credit(0));
        }
    }

    fn make_ready(&mut self, id: ChannelId) {
        if let Some(channel) = self.channels.get_mut(&id)
            && channel.sending.has_frames()
            && !std::mem::replace(&mut channel.is_in_ready, true)
        {
            self.ready.push_back(id);
        }
    }

    /// Forgets a channel that nobody holds and that has nothing more to send.
    fn remove_if_over(&mut self, id: ChannelId) {
        let is_over = |it: &Channel| !it.is_read && it.sending.is_done();
        if self.channels.get(&id).is_some_and(is_over)
            && let Some(channel) = self.channels.remove(&id)
        {
            self.opened_now -= usize::from(channel.is_ours);
        }
    }
}

const SIDE_BIT: u32 = 1;
const MESSAGES_BIT: u32 = 2;
const COUNT_SHIFT: u32 = 2;

/// How a channel carries what is sent on it; its number says it, for frames may arrive before the one
/// that opens it.
fn order_of(id: ChannelId) -> Order {
    if id & MESSAGES_BIT != 0 { Order::Messages } else { Order::Stream }
}
