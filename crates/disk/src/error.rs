use std::fmt;
use std::io;

use rustix::io::Errno;

use drover_types::ByteSpan;

/// A failed operation on a disk: `write of 0x40000+0x10000 on web01/disk0`, and why.
/// What has no span (opening, flushing) reads `flush of web01/disk0`.
#[derive(Debug, thiserror::Error)]
#[error("{op} of {}{disk}", SpanOn(*span))]
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

/// Prints `0x40000+0x10000 on `, or nothing for an empty span.
struct SpanOn(ByteSpan);

impl fmt::Display for SpanOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, "{} on ", self.0) }
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
    /// A request the backend should never have been given: an internal error.
    Misuse,
    /// An I/O error that will not pass by itself.
    Failed,
}

impl DiskErrorKind {
    /// The kind that an error of the operating system suggests.
    pub fn of(error: &io::Error) -> Self {
        use io::ErrorKind as E;
        // A device pulled out, an NFS handle gone stale: the standard library has no kind for them.
        if let Some(Errno::NXIO | Errno::NODEV | Errno::STALE) = Errno::from_io_error(error) {
            return DiskErrorKind::Gone;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn error(span: ByteSpan) -> DiskError {
        DiskError::new(DiskOp::Write, span, "web01/disk0", io::ErrorKind::StorageFull.into())
    }

    #[test]
    fn an_error_names_the_span_only_where_there_is_one() {
        assert_eq!(error(ByteSpan::new(0x1000, 0x200)).to_string(), "write of 0x1000+0x200 on web01/disk0");
        assert_eq!(error(ByteSpan::new(0, 0)).to_string(), "write of web01/disk0");
    }

    #[test]
    fn kinds_follow_the_cause() {
        let kind = |errno: Errno| DiskErrorKind::of(&errno.into());
        assert_eq!(kind(Errno::NOSPC), DiskErrorKind::OutOfSpace);
        assert_eq!(kind(Errno::NODEV), DiskErrorKind::Gone);
        assert_eq!(kind(Errno::CONNRESET), DiskErrorKind::Transient);
        assert_eq!(kind(Errno::IO), DiskErrorKind::Failed);
    }
}
