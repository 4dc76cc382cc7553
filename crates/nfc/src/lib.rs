//! VMware's NFC disk protocol (network file copy, TCP 902): the disks of a vCenter or ESXi host without VMware's library.
//!
//! **Provenance.** Written from the project's own protocol note (facts on the wire, with their witnesses) and VMware's
//! public documents alone. The source of other NFC clients was not opened, and must not be by who works on this crate.
//! No real host has confirmed it yet: `docs/how-to/nfc.md` lists the open points.
//!
//! ```text
//! Tickets (SOAP, by the caller) ── one ticket, one TCP connection, one open disk
//! connect: authd lines ── TLS ── take-over ── classic messages ── AIO session ── open file
//! NfcDisk ── lanes share the connection ── many reads in flight, fragments in any order, into the engine's buffers
//! Ledger ── what all programs of this machine have of a host's NFC memory
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod authd;
mod budget;
mod choice;
mod classic;
mod codec;
mod connect;
mod connection;
mod disk;
mod error;
mod fastlz;
mod frame;
#[doc(hidden)]
pub mod fuzzing;
mod lane;
mod pending;
mod receive;
mod slot;
mod tls;
mod trace;

pub use budget::{BUDGET_BYTES, Buffers, DISKS_MAX, Grant, Ledger, each_of};
pub use choice::CodecWish;
pub use codec::Codec;
pub use connect::{Ticket, Tickets, greet};
pub use disk::{NfcDisk, NfcOptions, NfcState};
pub use error::{NfcError, NfcErrorKind};
pub use tls::{Rustls, TlsMaker};
pub use trace::Trace;
