//! What a relay, or the far end of a pair, tells of itself: whole numbers, in bytes and microseconds.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use drover_link::{SessionState, SessionStats};
use drover_tcp::Info;
use serde::{Deserialize, Serialize};

use crate::flow::Pause;

/// What a flow does with its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Waiting {
    /// It moves bytes.
    Moving,
    /// For bytes from the source.
    Source,
    /// For the target to take bytes.
    Target,
    /// For the connections of a link to take bytes.
    Line,
    /// For a rate limit.
    Rate,
    /// For nothing: all is through.
    Done,
}

impl Waiting {
    pub(crate) fn of(pause: Pause) -> Waiting {
        match pause {
            Pause::Turn => Waiting::Moving,
            Pause::Source => Waiting::Source,
            Pause::Target => Waiting::Target,
            Pause::Rate(_) => Waiting::Rate,
            Pause::Finished => Waiting::Done,
        }
    }
}

/// Where the time of one direction went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// Moving bytes.
    pub moving_us: u64,
    /// Waiting for bytes from the source.
    pub source_us: u64,
    /// Waiting for the target to take bytes.
    pub target_us: u64,
    /// Waiting for the connections of a link to take bytes.
    #[serde(default)]
    pub line_us: u64,
    /// Waiting for a rate limit.
    pub rate_us: u64,
}

impl Waits {
    fn add(&mut self, waiting: Waiting, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        match waiting {
            Waiting::Moving => self.moving_us += us,
            Waiting::Source => self.source_us += us,
            Waiting::Target => self.target_us += us,
            Waiting::Line => self.line_us += us,
            Waiting::Rate => self.rate_us += us,
            Waiting::Done => {}
        }
    }

    pub(crate) fn sum(&mut self, other: &Waits) {
        self.moving_us += other.moving_us;
        self.source_us += other.source_us;
        self.target_us += other.target_us;
        self.line_us += other.line_us;
        self.rate_us += other.rate_us;
    }
}

/// A watch that counts the time of one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    waits: Waits,
    waiting: Waiting,
    since: Instant,
}

impl Watch {
    pub(crate) fn new(now: Instant) -> Watch {
        Watch { waits: Waits::default(), waiting: Waiting::Source, since: now }
    }

    /// From now on the time goes there.
    pub(crate) fn turn(&mut self, waiting: Waiting, now: Instant) {
        self.waits.add(self.waiting, now.saturating_duration_since(self.since));
        (self.waiting, self.since) = (waiting, now);
    }

    /// The sums until now.
    pub(crate) fn read(&mut self, now: Instant) -> (Waits, Waiting) {
        self.turn(self.waiting, now);
        (self.waits, self.waiting)
    }
}

/// What the kernel knows of one socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SocketStats {
    /// Congestion control, read back from the socket.
    pub congestion: String,
    /// Smoothed round trip.
    pub rtt_us: u64,
    /// Smallest round trip lately.
    pub rtt_min_us: u64,
    /// Segments sent again since the beginning.
    pub segments_again: u32,
    /// Bytes sent again since the beginning.
    pub bytes_again: u64,
    /// Bytes sent and not acknowledged, about.
    pub in_flight_bytes: u64,
    /// Latest measured rate of delivery.
    pub delivery_bytes_per_second: u64,
}

impl SocketStats {
    pub(crate) fn new(congestion: String, info: &Info) -> SocketStats {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        SocketStats {
            congestion,
            rtt_us: us(info.rtt),
            rtt_min_us: us(info.rtt_min),
            segments_again: info.segments_again,
            bytes_again: info.bytes_again,
            in_flight_bytes: u64::from(info.segments_in_flight) * u64::from(info.segment_bytes),
            delivery_bytes_per_second: info.delivery_rate,
        }
    }
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayStats {
    /// Bytes that went through.
    pub bytes: u64,
    /// In the last second.
    pub bytes_per_second: u64,
    /// Bytes in the relay's pipe now.
    pub held_bytes: u64,
    /// What it waits for now.
    pub waiting: Waiting,
    /// Where its time went.
    pub waits: Waits,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The target has not answered yet.
    Connecting,
    /// Both sides are there.
    Open,
    /// One side was reset; what it had sent goes to the other still.
    Ending,
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStats {
    /// Number in the order of acceptance, from 1.
    pub id: u64,
    /// Who connected; of no address at the far end of a link.
    pub client: SocketAddr,
    /// The peer whose relay it belongs to; only at the far end of a link.
    #[serde(default)]
    pub peer: Option<String>,
    /// Where it goes.
    pub target: String,
    /// Whether it goes over the link.
    #[serde(default)]
    pub is_linked: bool,
    /// Where it is in its life.
    pub stage: Stage,
    /// Since it was accepted.
    pub age_us: u64,
    /// Number of the rule that let it pass, from 0.
    pub rule: Option<usize>,
    /// From the client to the target.
    pub up: WayStats,
    /// From the target to the client.
    pub down: WayStats,
    /// The socket towards the client; absent where it was not asked for.
    pub client_socket: Option<SocketStats>,
    /// The socket towards the target; absent where it is at the other end of a link.
    pub target_socket: Option<SocketStats>,
}

impl ConnectionStats {
    /// Bytes a second, both ways together.
    pub fn bytes_per_second(&self) -> u64 {
        self.up.bytes_per_second.saturating_add(self.down.bytes_per_second)
    }
}

/// Why a connection came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The policy denies it.
    Policy,
    /// There are as many as there may be.
    Limit,
    /// It was meant for the relay itself, which would have called itself.
    Loop,
    /// The process has no more files.
    Files,
    /// The target refused.
    TargetRefused,
    /// The target did not answer in time.
    TargetSilent,
    /// The target could not be reached for another reason.
    TargetUnreachable,
    /// What was asked for over a link is no host and port, and no path of a socket.
    Unreadable,
    /// The agent at the other end of the link does not allow it.
    SitePolicy,
    /// There is no link, or it ended before the agent had answered.
    Link,
}

impl Refusal {
    /// In one word, as JSON has it, too.
    pub fn word(self) -> &'static str {
        match self {
            Refusal::Policy => "policy",
            Refusal::Limit => "limit",
            Refusal::Loop => "loop",
            Refusal::Files => "files",
            Refusal::TargetRefused => "target_refused",
            Refusal::TargetSilent => "target_silent",
            Refusal::TargetUnreachable => "target_unreachable",
            Refusal::Unreadable => "unreadable",
            Refusal::SitePolicy => "site_policy",
            Refusal::Link => "link",
        }
    }
}

/// Sums since the beginning; those of live connections included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Connections accepted from clients.
    pub accepted: u64,
    /// Of these, connected to their target.
    pub connected: u64,
    /// Connections that came to nothing, by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// Connections in which both sides said their last byte.
    pub closed: u64,
    /// Connections that were reset by one side, and so carried over.
    pub reset: u64,
    /// Bytes from clients to targets.
    pub up_bytes: u64,
    /// Bytes from targets to clients.
    pub down_bytes: u64,
    /// Time of the flows from clients to targets.
    pub up_waits: Waits,
    /// Time of the flows from targets to clients.
    pub down_waits: Waits,
    /// Segments that the relay's sockets sent again.
    pub segments_again: u64,
    /// Bytes that did not have to go over a link because they were packed, both ways.
    #[serde(default)]
    pub saved_bytes: u64,
}

impl Totals {
    pub(crate) fn refuse(&mut self, reason: Refusal) {
        *self.refused.entry(reason).or_default() += 1;
    }

    pub(crate) fn sum(&mut self, other: &Totals) {
        self.accepted += other.accepted;
        self.connected += other.connected;
        for (reason, count) in &other.refused {
            *self.refused.entry(*reason).or_default() += count;
        }
        self.closed += other.closed;
        self.reset += other.reset;
        self.up_bytes += other.up_bytes;
        self.down_bytes += other.down_bytes;
        self.up_waits.sum(&other.up_waits);
        self.down_waits.sum(&other.down_waits);
        self.segments_again += other.segments_again;
        self.saved_bytes += other.saved_bytes;
    }
}

/// The link that a relay goes over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkStats {
    /// What the other site is called here.
    pub site: String,
    /// `none` (nobody needed it yet, or it was lost), `dialling`, `up`, `reconnecting`, `ended` or `down`.
    pub state: String,
    /// Why it is not up, if that is known.
    pub why: String,
    /// Its TCP connections now.
    pub connections: u64,
    /// How many there should be, as found by measuring.
    pub connections_wanted: u64,
    /// Congestion control of this side, read back from the sockets; several with commas.
    pub congestion: String,
    /// Smoothed round trip of the connection that has the shortest.
    pub rtt_us: u64,
    /// Shortest round trip lately.
    pub rtt_min_us: u64,
    /// Bytes of all uses that the agent has acknowledged since the session began.
    pub up_bytes: u64,
    /// Bytes that came.
    pub down_bytes: u64,
    /// Both together in the last second or two.
    pub bytes_per_second: u64,
    /// Bytes that the kernel sent again, of the connections there are now.
    pub bytes_again: u64,
    /// Bytes taken from clients that the agent has not acknowledged.
    pub held_bytes: u64,
    /// Bytes that came and that clients have not taken.
    pub unread_bytes: u64,
    /// Connections that the agent has not answered yet.
    pub asking: u64,
    /// Clients that wait for their turn to be asked for.
    pub waiting: u64,
}

impl LinkStats {
    pub(crate) fn fill(&mut self, session: &SessionStats) {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let stripes = &session.stripes;
        (self.state, self.why) = match &session.state {
            SessionState::Up => ("up".to_string(), String::new()),
            SessionState::Reconnecting(since) => {
                ("reconnecting".to_string(), format!("no connection for {} s", since.as_secs()))
            }
            SessionState::Ended(why) => ("ended".to_string(), why.to_string()),
        };
        self.connections = stripes.len() as u64;
        self.connections_wanted = session.stripes_wanted as u64;
        let mut names: Vec<&str> = stripes.iter().map(|it| it.congestion.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        self.congestion = names.join(",");
        self.rtt_us = stripes.iter().filter_map(|it| it.rtt).min().map_or(0, us);
        self.rtt_min_us = stripes.iter().filter_map(|it| it.rtt_min).min().map_or(0, us);
        self.up_bytes = session.acknowledged_bytes;
        self.down_bytes = session.arrived_bytes;
        self.bytes_per_second = session.goodput;
        self.bytes_again = stripes.iter().map(|it| it.line_bytes_again).sum();
        self.held_bytes = session.held_bytes;
        self.unread_bytes = session.unread_bytes;
    }
}

/// A relay, or the far end of a pair, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Since the relay started.
    pub age_us: u64,
    /// Connections now.
    pub live: u64,
    /// Pipes now.
    pub pipes: u64,
    /// What they can hold; never more than the budget.
    pub pipe_bytes: u64,
    /// Sums.
    pub totals: Totals,
    /// The link, if there is to be one.
    #[serde(default)]
    pub link: Option<LinkStats>,
    /// Connections of each peer that has some; only at the far end of a link.
    #[serde(default)]
    pub peers: BTreeMap<String, u64>,
    /// The fastest connections, as many as were asked for, the fastest first.
    pub connections: Vec<ConnectionStats>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_gives_every_moment_to_one_cause() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut watch = Watch::new(start);
        watch.turn(Waiting::Moving, at(3));
        watch.turn(Waiting::Target, at(4));
        watch.turn(Waiting::Rate, at(9));
        let (waits, waiting) = watch.read(at(11));
        let expected = Waits { source_us: 3000, moving_us: 1000, target_us: 5000, rate_us: 2000, line_us: 0 };
        assert_eq!((waits, waiting), (expected, Waiting::Rate));
        watch.turn(Waiting::Done, at(11));
        assert_eq!(watch.read(at(99)).0, expected);
    }

    #[test]
    fn sums_add_up_reason_by_reason() {
        let mut a = Totals { accepted: 2, up_bytes: 5, ..Totals::default() };
        a.refuse(Refusal::Policy);
        let mut b = Totals { accepted: 1, down_bytes: 7, reset: 1, ..Totals::default() };
        b.refuse(Refusal::Policy);
        b.refuse(Refusal::Limit);
        a.sum(&b);
        assert_eq!((a.accepted, a.up_bytes, a.down_bytes, a.reset), (3, 5, 7, 1));
        assert_eq!(a.refused, BTreeMap::from([(Refusal::Policy, 2), (Refusal::Limit, 1)]));
    }
}
