//! Errors in words, and numbers out of untrusted bytes.
//!
//! Inside the crate errors are `io::Error`s whose kind tells what may be done: `InvalidData` for
//! damage, `Unsupported` for what is not read, `PermissionDenied` for what a rule forbids. The
//! edges turn them into a `DiskError` with the image's name.

use std::io;

use drover_disk::{DiskError, DiskErrorKind, DiskOp};
use drover_types::ByteSpan;

/// The image breaks its format.
pub(crate) fn damaged(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// The image is right, but not read.
pub(crate) fn unsupported(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text.into())
}

/// A rule of ours forbids it.
pub(crate) fn refused(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text.into())
}

/// The same error, with what it is about in front.
pub(crate) fn about(what: impl std::fmt::Display, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// A failed opening. What is wrong with a path is the user's to fix: `Misuse` would blame drover.
pub(crate) fn open_error(name: &str, source: io::Error) -> DiskError {
    let kind = match DiskErrorKind::of(&source) {
        DiskErrorKind::Misuse => DiskErrorKind::Unsupported,
        kind => kind,
    };
    DiskError::with_kind(kind, DiskOp::Open, ByteSpan::new(0, 0), name, source)
}

/// Numbers out of bytes that may be too short; the byte order is in the name.
pub(crate) trait Numbers {
    fn take<const N: usize>(&self, at: usize) -> io::Result<[u8; N]>;

    fn be32(&self, at: usize) -> io::Result<u32> {
        self.take(at).map(u32::from_be_bytes)
    }
    fn be64(&self, at: usize) -> io::Result<u64> {
        self.take(at).map(u64::from_be_bytes)
    }
    fn le16(&self, at: usize) -> io::Result<u16> {
        self.take(at).map(u16::from_le_bytes)
    }
    fn le32(&self, at: usize) -> io::Result<u32> {
        self.take(at).map(u32::from_le_bytes)
    }
    fn le64(&self, at: usize) -> io::Result<u64> {
        self.take(at).map(u64::from_le_bytes)
    }
}

impl Numbers for [u8] {
    fn take<const N: usize>(&self, at: usize) -> io::Result<[u8; N]> {
        let bytes = at.checked_add(N).and_then(|end| self.get(at..end));
        bytes
            .and_then(|bytes| bytes.try_into().ok())
            .ok_or_else(|| damaged(format!("a table or header of {} bytes has nothing at {at}", self.len())))
    }
}
