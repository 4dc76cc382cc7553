//! NBD client: a disk behind an NBD server (nbdkit, qemu-nbd, nbd-server), newstyle, over TCP or a
//! Unix socket, with structured replies and many requests in flight.
//!
//! ```text
//! uri         nbd://host/export, nbd+unix:///export?socket=/path
//! handshake   from connect to transmission: features, export, block sizes
//! wire        pure: bytes of requests, replies, options
//! reply       pure: what a request still waits for, and checks that its answer makes sense
//! connection  one socket: sends requests, receives replies into their buffers
//! disk        NbdDisk and its lanes: which connection does what, reconnects, flush
//! ```
//!
//! Source: NBD `doc/proto.md`.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod connection;
mod disk;
mod handshake;
mod reply;
mod socket;
mod uri;
pub mod wire;

pub use disk::{NbdDisk, NbdOptions};
pub use handshake::HandshakeError;
pub use uri::{NbdUri, UriError};
