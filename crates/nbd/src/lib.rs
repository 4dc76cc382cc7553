//! NBD client: a disk behind an NBD server (nbdkit, qemu-nbd, nbd-server), over TCP or a Unix
//! socket, in the clear or through TLS, with many requests in flight on several connections.
//!
//! ```text
//! uri         nbd://host/export, nbds+unix:///export?socket=/path&tls-certificates=/folder
//! route       all it takes to make one more connection; pauses between tries
//! dial        TCP and Unix sockets, with a limit on time
//! tls, psk    whom to believe; a child for pre-shared keys
//! socket      a plain stream; tls_stream: one through TLS; stream: either
//! talk        options and their answers, one after the other
//! handshake   from connect to transmission: TLS, style, contexts, export, block sizes
//! list        what a server exports
//! wire        pure: bytes of requests, replies, options
//! reply       pure: what a request still waits for, and checks that its answer makes sense
//! connection  one stream: sends requests, receives replies into their buffers
//! disk, lane  NbdDisk and its lanes: which connection does what, reconnects, flush
//! pieces      a lane to a server that takes less than a block at a time
//! ```
//!
//! Sources: NBD `doc/proto.md` (with the extension for extended headers), `doc/uri.md`.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod connection;
mod disk;
#[doc(hidden)]
pub mod fuzzing;
mod handshake;
mod lane;
mod list;
mod pieces;
mod psk;
mod reply;
mod route;
mod talk;
mod tls;
mod uri;
pub mod wire;

pub use disk::{NbdDisk, NbdOptions};
pub use drover_stream::printable;
pub use handshake::BlockSizes;
pub use list::{ExportInfo, ExportList, list};
pub use reply::{DirtyExtent, ServerError};
pub use talk::HandshakeError;
pub use tls::TlsFiles;
pub use uri::{Address, NbdUri, UriError, UriTls};
