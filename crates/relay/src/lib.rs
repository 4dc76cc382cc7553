//! A relay ends TCP next to a peer that cannot be changed, and goes on to the target over a connection of
//! its own, with its own congestion control. Bytes go by splice: the process never sees them.
//!
//! ```text
//! address, rule   pure: what people write: addresses, ports, policies
//! flow            pure: one direction: what to move when, and what it waits for
//! bucket, timers, slab   pure: rates, times, places
//! options, relay  what to do; the threads that do it
//! entrance, gate  accept clients; decide who may pass, where to and how
//! worker          one thread, one epoll, its connections
//! connecting, connection, direction   a connection before and after its target has answered
//! hop, pipes      bytes from socket to socket
//! carry, paired, ports   over a link to an agent: both ways, the near end, the far end
//! stats           what a relay tells of itself; metrics and control: to whom
//! transparent     rules of the packet filter that catch what only passes through
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod address;
mod bucket;
mod carry;
mod connecting;
mod connection;
pub mod control;
mod direction;
mod entrance;
pub mod flow;
mod gate;
mod hop;
pub mod metrics;
mod options;
mod paired;
mod pipes;
mod ports;
mod relay;
pub mod rule;
mod slab;
mod stats;
mod timers;
pub mod transparent;
mod worker;

pub use options::{
    ADDRESSES_MAX, CONNECTIONS_MAX, Congestion, Destination, Line, RelayOptions, any_address, has_ipv6,
};
pub use paired::{Dial, DialError, PAIRED_MAX, PairedLine, PairedRelay, opening};
pub use pipes::{PIPE_BYTES, PIPES_BYTES_MAX};
pub use ports::{Allowed, ConnectError, Ports};
pub use relay::{Relay, StartError, Teller};
pub use stats::{ConnectionStats, Refusal, Snapshot, SocketStats, Stage, Totals, Waiting, Waits, WayStats};
