//! Whose certificates drover believes, and which it shows: TLS settings from files, thumbprints and keys. Handshakes and
//! streams belong to the crates that speak.
//!
//! ```text
//! files       certificates, keys and revocation lists in PEM
//! thumbprint  of a certificate, and the digest of a key
//! trust       a client's settings: authorities, one pinned certificate, or anybody
//! server      a server's settings, with or without certificates of its clients
//! peer        settings of two sides that know each other by their keys
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod files;
mod peer;
mod server;
mod thumbprint;
mod trust;

pub use files::{KeyPair, TlsError};
pub use peer::{Own, peer_client, peer_server};
pub use server::server_config;
pub use thumbprint::{Presented, Thumbprint, ThumbprintError, key_digest};
pub use trust::{Refusal, Trust, Why, client_config, client_config_with, refusal_of};
