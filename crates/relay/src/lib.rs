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
//! uplink, ports   the two ends of a link: its session and what is asked for; ports behind the agent
//! turns           pure: which of those who wait for the link is next
//! doors, doorway, sockets   unix sockets at the near end, how they come to their place, and at the far end
//! linked, answer  a connection of which one side is a channel of a link, and how that begins
//! packing         what goes into a channel in pieces, packed where that pays
//! book            what no worker knows: refusals
//! stats, teller   what a relay, or the far end of a pair, tells of itself; metrics and control: to whom
//! transparent     rules of the packet filter that catch what only passes through
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod address;
mod answer;
mod book;
mod bucket;
mod circle;
mod connecting;
mod connection;
pub mod control;
mod direction;
mod doors;
mod doorway;
mod entrance;
pub mod flow;
mod gate;
mod hop;
mod linked;
pub mod metrics;
mod options;
mod packing;
mod pipes;
mod ports;
mod relay;
pub mod rule;
mod slab;
mod sockets;
mod stats;
mod teller;
mod timers;
pub mod transparent;
mod turns;
mod uplink;
mod worker;

pub use answer::announcement;
pub use book::Refused;
pub use doors::{Door, DoorError, Doors, Probed, Reach, probe};
pub use linked::Form;
pub use options::{
    ADDRESSES_MAX, CONNECTIONS_MAX, Congestion, Destination, Dial, DialError, Line, RelayOptions, Via,
    any_address, has_ipv6,
};
pub use pipes::{PIPE_BYTES, PIPES_BYTES_MAX};
pub use ports::{Allowed, ConnectError, FAR_CONNECTIONS_MAX, Ports};
pub use relay::{Relay, StartError, raise_files};
pub use stats::{
    ConnectionStats, LinkStats, Refusal, Snapshot, SocketStats, Stage, Totals, Waiting, Waits, WayStats,
};
pub use teller::Teller;
