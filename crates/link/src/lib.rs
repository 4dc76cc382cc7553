//! Links: bytes between two agents, over many connections at once, that survive their connections.
//!
//! ```text
//! Session ─ Channel ─ Sender, Receiver      what programs use
//! core       pure: what to send on which connection, acknowledgements, credit, repeats, how many connections
//! stripe     two threads for each connection
//! keeper     one thread for each session: time, new connections
//! connect, listen, socket, tls              connections over TCP or RDMA, and TLS 1.3
//! rdma       pure: which of them are made over RDMA
//! ```
//!
//! A session carries channels over one set of connections ("stripes"). Nothing that was sent is lost or
//! doubled when connections end, as long as the session itself lives; what it holds in memory is bounded.
//! The format on the line is `drover_wire`'s; `docs/dev/link.md` says how it is used.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod channel;
mod connect;
mod core;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod greet;
mod greeters;
pub mod host;
mod identity;
mod keeper;
mod listen;
pub mod nic;
mod pair;
mod payload;
mod peer;
mod plain;
pub mod probe;
mod rate;
mod rdma;
mod session;
mod shared;
mod shares;
mod socket;
mod stats;
mod stripe;
mod table;
mod tls;

pub use channel::{Channel, Receiver, Sender, WeakSender};
pub use connect::{ConnectOptions, connect};
pub use core::{
    CHANNEL_CREDIT_MAX, CHANNELS_MAX, GIVE_UP_AFTER, HELD_BYTES_MAX, Limits, MESSAGES_CREDIT_FIRST, Message,
    Order, SESSION_CREDIT, STREAM_CREDIT_FIRST, STRIPES_MAX, STRIPES_START, StripeBounds,
};
pub use drover_wire::{
    BODY_BYTES_MAX, DATA_BYTES_MAX, HEAD_BYTES_MAX, OPENING_BYTES_MAX, VERSIONS, VersionRange,
};
pub use error::{LinkError, LinkErrorKind};
pub use identity::{ALPN, fingerprint};
pub use listen::{Admit, Applicant, ListenOptions, Listener, RateLimitOf};
pub use peer::{Peer, fingerprint_hex};
pub use rate::{RateLimit, Used};
pub use rdma::{RdmaMode, RdmaState};
pub use session::{Hurry, Incoming, Session, WeakSession};
pub use socket::{RDMA, SocketOptions};
pub use stats::{SessionState, SessionStats, StripeStats};
