//! Connections over RDMA, as sockets: rsockets of `librdmacm.so.1`, which is looked for when the program runs.
//!
//! ```text
//! library   the library and its functions; whether there is a device
//! address   socket addresses as C has them
//! stream    a connection; listener: what waits for connections
//! ```
//!
//! It is the wall around these calls: nothing unsafe is to be seen outside. Nothing is linked, so a host without the library runs
//! the same program; [`check`] says what a host lacks.
//!
//! An rsocket writes by RDMA into a buffer of the peer's that the library registered. Both sides tell each other where that lies and how
//! large it is when they connect, so no size has to be set alike.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod address;
mod library;
mod listener;
mod stream;

pub use library::{LIBRARY, Unavailable, check};
pub use listener::Listener;
pub use stream::{BUFFER_BYTES, Stream};
