//! What a session tells of itself.

use std::net::SocketAddr;
use std::time::Duration;

use crate::core::Counters;
use crate::error::LinkError;
use crate::rdma::RdmaState;

/// Where a session is in its life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionState {
    /// It has a connection.
    Up,
    /// It has none, for so long, and looks for one.
    Reconnecting(Duration),
    /// It is over.
    Ended(LinkError),
}

/// A connection of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct StripeStats {
    /// The address here, if there is one.
    pub local: Option<SocketAddr>,
    /// The address there, if there is one.
    pub remote: Option<SocketAddr>,
    /// The congestion control that sends on it, as the kernel says; `rdma` if that carries it; empty in tests.
    pub congestion: String,
    /// Round-trip time as the kernel smooths it, else as pings tell it.
    pub rtt: Option<Duration>,
    /// Shortest round-trip time that the kernel saw lately.
    pub rtt_min: Option<Duration>,
    /// Bytes sent on the line, with those sent again by the kernel.
    pub line_bytes_sent: u64,
    /// Of these, sent again.
    pub line_bytes_again: u64,
    /// Time in which the socket had something to send; in which the peer's window was full; in which this
    /// side's send buffer was.
    pub busy: [Duration; 3],
    /// Bytes of frames sent.
    pub sent_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Nothing was heard on it for some time.
    pub is_suspect: bool,
}

/// What a session tells of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionStats {
    /// Where it is in its life.
    pub state: SessionState,
    /// How long it has lived.
    pub age: Duration,
    /// Its connections.
    pub stripes: Vec<StripeStats>,
    /// Whether RDMA carries it.
    pub rdma: RdmaState,
    /// How many connections it should have, as found by measuring.
    pub stripes_wanted: usize,
    /// Bytes of openings, messages and streams that the peer acknowledged.
    pub acknowledged_bytes: u64,
    /// The same that arrived from the peer.
    pub arrived_bytes: u64,
    /// Both together in bytes a second, over the last second or two.
    pub goodput: u64,
    /// Frames that were sent once more: their connection ended or fell silent, or they were overdue.
    pub repeated_frames: u64,
    /// Of these, the ones that only took longer than usual while another connection had nothing to do.
    pub overdue_frames: u64,
    /// Frames that arrived once more and were dropped.
    pub double_frames: u64,
    /// Channels that are open.
    pub channels: usize,
    /// Taken from programs here and not acknowledged, in bytes; bounded by [`crate::HELD_BYTES_MAX`].
    pub held_bytes: u64,
    /// Arrived and not read by programs here, in bytes; bounded by [`crate::SESSION_CREDIT`].
    pub unread_bytes: u64,
    /// What happened to connections, and what the host lacks: the latest.
    pub notes: Vec<String>,
}

impl SessionStats {
    pub(crate) fn count(&mut self, counters: Counters) {
        self.acknowledged_bytes = counters.acknowledged_bytes;
        self.arrived_bytes = counters.arrived_bytes;
        self.repeated_frames = counters.repeated_frames;
        self.overdue_frames = counters.overdue_frames;
        self.double_frames = counters.double_frames;
    }
}
