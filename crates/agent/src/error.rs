use std::io;

use drover_disk::{DiskError, DiskErrorKind, DiskOp};
use drover_link::{LinkError, LinkErrorKind};
pub(crate) use drover_types::chain;
use drover_types::{ByteSpan, drives_terminal};

use crate::message::{WORDS_BYTES_MAX, kind_of, status_of};
use crate::opening::Refused;

/// Something that was refused or failed, on whichever side, in words that cross a link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refusal {
    /// What may be done about it.
    pub kind: DiskErrorKind,
    /// Why.
    pub why: String,
}

impl Refusal {
    /// A refusal. Much of what is said here comes from the other side and is shown to people: no character in it
    /// drives a terminal, and it is no longer than [`WORDS_BYTES_MAX`].
    pub fn new(kind: DiskErrorKind, why: impl Into<String>) -> Refusal {
        Refusal { kind, why: printable(why.into()) }
    }

    /// As the error of an operation on a disk.
    pub fn on(self, op: DiskOp, span: ByteSpan, disk: &str) -> DiskError {
        let Refusal { kind, why } = self;
        DiskError::with_kind(kind, op, span, disk, io::Error::other(why))
    }
}

impl From<DiskError> for Refusal {
    fn from(error: DiskError) -> Refusal {
        Refusal::new(error.kind, format!("{error}: {}", error.source))
    }
}

impl From<&Refusal> for Refused {
    fn from(refusal: &Refusal) -> Refused {
        Refused { status: status_of(refusal.kind), why: refusal.why.clone() }
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Refusal {
        let kind = kind_of(refused.status).ok().flatten().unwrap_or(DiskErrorKind::Failed);
        Refusal::new(kind, refused.why)
    }
}

impl From<LinkError> for Refusal {
    fn from(error: LinkError) -> Refusal {
        let kind = match error.kind {
            LinkErrorKind::Unreachable
            | LinkErrorKind::Closed
            | LinkErrorKind::Reset
            | LinkErrorKind::Lost => DiskErrorKind::Transient,
            LinkErrorKind::Refused => DiskErrorKind::Denied,
            LinkErrorKind::Version | LinkErrorKind::Unsupported => DiskErrorKind::Unsupported,
            LinkErrorKind::Misuse => DiskErrorKind::Misuse,
            LinkErrorKind::Protocol => DiskErrorKind::Corrupt,
        };
        Refusal::new(kind, chain(&error))
    }
}

/// A text of a peer as it may be shown: `?` for characters that drive a terminal or turn the direction of writing, and
/// cut to [`WORDS_BYTES_MAX`].
pub(crate) fn printable(mut text: String) -> String {
    if text.contains(drives_terminal) {
        text = text.replace(drives_terminal, "?");
    }
    let mut end = text.len().min(WORDS_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_peer_says_drives_no_terminal_and_fills_no_screen() {
        let said = "no\u{1b}[2J\r\n\u{9b}31m room\u{202e}dewolla";
        let refusal = Refusal::from(Refused { status: 2, why: said.to_string() });
        assert_eq!(
            (refusal.kind, &refusal.why[..]),
            (DiskErrorKind::OutOfSpace, "no?[2J???31m room?dewolla")
        );
        let long = Refusal::new(DiskErrorKind::Failed, "ä".repeat(1 << 20));
        assert_eq!(long.why, "ä".repeat(WORDS_BYTES_MAX / 2));
    }
}
