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
//! stream, tls bytes to and from a client
//! wire        pure: the server's half of the bytes on the wire
//! ```
//!
//! Source: NBD `doc/proto.md`. The fence (`drover_disk::fence`) is drover's own: a client that carries the epoch N asks for
//! the meta context `drover:fence=N`, and a server that keeps epochs grants it.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod connection;
mod export;
#[doc(hidden)]
pub mod fuzzing;
mod holes;
mod negotiate;
mod queue;
mod serve;
mod server;
mod stream;
mod tls;
mod wire;

pub use drover_disk::fence::{FenceFileError, fence_path};
pub use export::{Export, Status};
pub use server::{CONNECTIONS_MAX, Listen, Server, ServerOptions};
pub use tls::server_config;
pub use wire::Run;
