//! NBD server: hands any [`drover_disk::Disk`] to other programs, over TCP or a Unix socket, with
//! structured replies, extended headers, TLS and a fence between writers.
//!
//! ```text
//! server      listens; one thread and some workers for each client
//! connection  one client: handshake, then requests to the queue
//! negotiate   pure: options of the handshake and their answers
//! queue       what a client has in flight, and its memory
//! serve       from a request to its reply
//! holes       which parts of a read need not be sent
//! lanes       the disk's lanes, lent for one request at a time
//! fence       pure: which run may write; gate and fence_file put it between threads and on disk
//! stream, tls bytes to and from a client
//! wire        pure: the server's half of the bytes on the wire
//! ```
//!
//! Source: NBD `doc/proto.md`. The fence is drover's own: a client that carries the epoch N asks for
//! the meta context `drover:fence=N`, and a server that keeps epochs grants it.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod connection;
mod export;
pub mod fence;
mod fence_file;
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod holes;
mod lanes;
mod negotiate;
mod queue;
mod serve;
mod server;
mod stream;
mod tls;
mod wire;

pub use export::{Export, Status};
pub use fence_file::{FenceFileError, fence_path};
pub use server::{CONNECTIONS_MAX, Listen, Server, ServerOptions};
pub use tls::{CertificateError, server_config};
pub use wire::Run;
