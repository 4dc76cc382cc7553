use std::io;

use drover_disk::{DiskError, DiskErrorKind, DiskOp};
use drover_link::{LinkError, LinkErrorKind};
use drover_types::ByteSpan;

use crate::message::{kind_of, status_of};
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
    /// A refusal.
    pub fn new(kind: DiskErrorKind, why: impl Into<String>) -> Refusal {
        Refusal { kind, why: why.into() }
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
            LinkErrorKind::Version => DiskErrorKind::Unsupported,
            LinkErrorKind::Misuse => DiskErrorKind::Misuse,
            LinkErrorKind::Protocol => DiskErrorKind::Corrupt,
        };
        Refusal::new(kind, chain(&error))
    }
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
