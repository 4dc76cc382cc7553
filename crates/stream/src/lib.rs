//! A client's stream to a server, in the clear or through TLS: connecting within a time, receiving straight into the
//! caller's buffers, sending without waiting. For protocols with many requests in flight (NBD, NFC).
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod dial;
mod either;
mod socket;
mod stage;
mod text;
mod tls_stream;

pub use either::Stream;
pub use socket::{Address, Socket, timed_out};
pub use stage::Stage;
pub use text::printable;

use std::sync::Arc;

/// What a connection needs to go on in TLS. Made once for a server, so that sessions are resumed.
#[derive(Clone)]
pub struct Tls {
    /// Whom to believe, and how to prove who we are.
    pub config: Arc<rustls::ClientConfig>,
    /// The name that the server's certificate must be for.
    pub name: rustls::pki_types::ServerName<'static>,
}
