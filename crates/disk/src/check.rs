use std::io;

use drover_types::ByteSpan;

use crate::{Disk, DiskError, DiskErrorKind, DiskOp, Work};

/// Refuses a span that does not lie in `disk` or is empty. For backends, before they act.
///
/// # Errors
/// [`DiskErrorKind::Misuse`].
pub fn check_span(op: DiskOp, span: ByteSpan, disk: &dyn Disk) -> Result<(), DiskError> {
    inside(span, disk.size()).map_err(|text| misuse(op, span, disk.name(), text))
}

/// Refuses a request that no backend could do: outside the disk, empty, a buffer of another length,
/// a write to a disk that takes none. For lanes, before they act.
///
/// # Errors
/// [`DiskErrorKind::Misuse`].
pub fn check_request(
    span: ByteSpan,
    work: &Work,
    size: u64,
    writable: bool,
    disk: &str,
) -> Result<(), DiskError> {
    inside(span, size)
        .and_then(|()| length_fits(span, work))
        .and_then(|()| allowed(work, writable))
        .map_err(|text| misuse(work.op(), span, disk, text))
}

impl Work {
    /// The operation, for errors.
    pub fn op(&self) -> DiskOp {
        match self {
            Work::Read(_) => DiskOp::Read,
            Work::Write(_) => DiskOp::Write,
            Work::Zero => DiskOp::Zero,
        }
    }
}

fn inside(span: ByteSpan, size: u64) -> Result<(), String> {
    match span.offset.checked_add(span.length) {
        _ if span.is_empty() => Err("the request is empty".to_string()),
        Some(end) if end <= size => Ok(()),
        _ => Err(format!("the disk ends at {size:#x}")),
    }
}

fn length_fits(span: ByteSpan, work: &Work) -> Result<(), String> {
    let length = match work {
        Work::Read(buffer) => buffer.len(),
        Work::Write(slice) => slice.len(),
        Work::Zero => return Ok(()),
    };
    if length as u64 == span.length { Ok(()) } else { Err(format!("the buffer holds {length} bytes")) }
}

fn allowed(work: &Work, writable: bool) -> Result<(), String> {
    match work {
        Work::Write(_) | Work::Zero if !writable => Err("the disk was opened to be read".to_string()),
        _ => Ok(()),
    }
}

fn misuse(op: DiskOp, span: ByteSpan, disk: &str, text: String) -> DiskError {
    let source = io::Error::new(io::ErrorKind::InvalidInput, text);
    DiskError::with_kind(DiskErrorKind::Misuse, op, span, disk, source)
}
