//! Who is on the other side.

use std::fmt::Write as _;

/// The other side of a session, as it said and proved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name: what the local side knows it as, or else what it says.
    pub name: String,
    /// SHA-256 of its public key (SubjectPublicKeyInfo), proven by TLS. Zeros if there is no TLS.
    pub fingerprint: [u8; 32],
    /// Version of the protocol.
    pub version: u16,
    /// What it announced, as it likes.
    pub announced: Vec<u8>,
}

impl Peer {
    /// The fingerprint in hexadecimal.
    pub fn fingerprint_hex(&self) -> String {
        fingerprint_hex(&self.fingerprint)
    }
}

/// A fingerprint in hexadecimal, as [`Peer::fingerprint_hex`].
pub fn fingerprint_hex(fingerprint: &[u8; 32]) -> String {
    fingerprint.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
