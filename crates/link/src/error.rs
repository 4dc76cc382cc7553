//! Why a call on a link failed.

use std::fmt;

/// What went wrong, to decide on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkErrorKind {
    /// No connection could be made, or none within the time.
    Unreachable,
    /// TLS or the peer's identity: a certificate or key that is not trusted, or the peer does not let us in.
    Refused,
    /// There is no version that both sides speak.
    Version,
    /// This host lacks what was required, such as a device for RDMA.
    Unsupported,
    /// The session was closed, by this side or the peer.
    Closed,
    /// The peer gave the channel up, or this side did.
    Reset,
    /// The session is gone for good: no connection for too long, or the peer's process is a new one.
    Lost,
    /// The call breaks a rule of this library, such as a head that is too long.
    Misuse,
    /// The peer broke the rules of the protocol.
    Protocol,
}

/// A call on a link that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkError {
    /// What to decide on.
    pub kind: LinkErrorKind,
    /// What happened, for a person.
    pub text: String,
}

impl LinkError {
    /// An error of that kind. Control characters in the text become `?`: some of it comes from peers, and
    /// it is printed to terminals and logs.
    pub fn new(kind: LinkErrorKind, text: impl Into<String>) -> LinkError {
        let mut text = text.into();
        if text.contains(char::is_control) {
            text = text.replace(char::is_control, "?");
        }
        LinkError { kind, text }
    }
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for LinkError {}
