use std::fmt;
use std::io;

use drover_types::ByteSpan;

/// A failed operation on a disk: `write of 0x40000+0x10000 on web01/disk0`, and why.
#[derive(Debug, thiserror::Error)]
#[error("{op} of {span} on {disk}")]
pub struct DiskError {
    /// What may be done about it.
    pub kind: DiskErrorKind,
    /// What was being done.
    pub op: DiskOp,
    /// To which bytes.
    pub span: ByteSpan,
    /// On which disk.
    pub disk: String,
    /// Why it failed.
    #[source]
    pub source: io::Error,
}

impl DiskError {
    /// An error with the kind that its cause suggests.
    pub fn new(op: DiskOp, span: ByteSpan, disk: &str, source: io::Error) -> Self {
        let kind = DiskErrorKind::of(&source);
        DiskError { kind, op, span, disk: disk.to_string(), source }
    }

    /// An error with a kind that the backend knows better than its cause tells.
    pub fn with_kind(kind: DiskErrorKind, op: DiskOp, span: ByteSpan, disk: &str, source: io::Error) -> Self {
        DiskError { kind, op, span, disk: disk.to_string(), source }
    }
}

/// What may be done about a failure. The backend decides which it is, the core what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskErrorKind {
    /// May pass: try again, on a new lane if the lane is broken.
    Transient,
    /// The target is full: stop, keep what there is, go on when there is room.
    OutOfSpace,
    /// The answer cannot be right: wrong length, bad framing, bytes that fail their check.
    Corrupt,
    /// The disk is not there any more.
    Gone,
    /// Not allowed: credentials, permissions, a lock held by someone else.
    Denied,
    /// The backend cannot do this.
    Unsupported,
    /// A request the backend should never have been given: a defect of drover.
    Misuse,
    /// An I/O error that will not pass by itself.
    Failed,
}

impl DiskErrorKind {
    /// The kind that an error of the operating system suggests.
    pub fn of(error: &io::Error) -> Self {
        use io::ErrorKind as E;
        match error.kind() {
            E::StorageFull | E::QuotaExceeded | E::FileTooLarge => DiskErrorKind::OutOfSpace,
            E::NotFound => DiskErrorKind::Gone,
            E::PermissionDenied | E::ReadOnlyFilesystem | E::ResourceBusy => DiskErrorKind::Denied,
            E::Unsupported => DiskErrorKind::Unsupported,
            E::InvalidData => DiskErrorKind::Corrupt,
            E::InvalidInput => DiskErrorKind::Misuse,
            E::ConnectionReset
            | E::ConnectionAborted
            | E::ConnectionRefused
            | E::NotConnected
            | E::BrokenPipe
            | E::TimedOut
            | E::WouldBlock
            | E::Interrupted
            | E::UnexpectedEof
            | E::HostUnreachable
            | E::NetworkUnreachable
            | E::NetworkDown => DiskErrorKind::Transient,
            _ => DiskErrorKind::Failed,
        }
    }
}

/// An operation on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiskOp {
    /// Opening the disk or a lane.
    Open,
    /// Asking what is allocated.
    Extents,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Writing zeros, punching a hole.
    Zero,
    /// Making writes durable.
    Flush,
}

impl fmt::Display for DiskOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DiskOp::Open => "open",
            DiskOp::Extents => "block status",
            DiskOp::Read => "read",
            DiskOp::Write => "write",
            DiskOp::Zero => "zeroing",
            DiskOp::Flush => "flush",
        })
    }
}
