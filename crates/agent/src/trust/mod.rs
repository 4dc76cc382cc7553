//! Who is who: this side's own key, the peers it trusts, and how they become peers.
//!
//! ```text
//! identity  the key of this host and its certificate, made at first use
//! peers     keys that are trusted, under names; also the sites this host can dial
//! tls       rustls settings: both sides show a key, and each checks that of the other
//! token     one-time tokens, kept hashed
//! pairing   how a token makes two hosts peers of each other
//! seed      what an agent starts with that is made for one peer
//! folder    files of the state folder: private, changed as a whole, one process at a time
//! ```

mod folder;
mod identity;
mod pairing;
mod peers;
mod seed;
mod tls;
mod token;

pub use drover_types::{DayLimit, limit_at};
pub use folder::{Folder, FolderError};
pub use identity::{Fingerprint, FingerprintError, Identity, IdentityError, fingerprint_of};
pub use pairing::{PairError, Paired, pair_as_agent, pair_with};
pub use peers::{NameError, Peer, Peers, check_name};
pub use seed::Seed;
pub use tls::{client_config, server_config};
pub use token::{Issued, TRIES_MAX, Token, TokenError, Tokens, Verdict};
