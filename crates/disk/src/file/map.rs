use std::fs::File;
use std::io;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use drover_types::{ByteSpan, Extent};

/// Extents per call: a file of 4 KiB crumbs must not make one answer of millions.
const EXTENTS_MAX: usize = 1024;

/// Whether the file system tells holes from data at all.
pub fn works(file: &File, size: u64) -> bool {
    size == 0 || matches!(seek(file, SeekFrom::Data(0)), Ok(_) | Err(Errno::NXIO))
}

/// Holes and data from `span.offset` on. A hole reads as zeros by POSIX; what looks like data may.
///
/// # Errors
/// When the file shrank below `size`: past its new end there are neither zeros nor data.
pub fn extents(file: &File, span: ByteSpan, size: u64) -> io::Result<Vec<Extent>> {
    let mut extents = Vec::new();
    let mut at = span.offset;
    while at < span.end() && extents.len() < EXTENTS_MAX {
        let data = next_data(file, at, size)?.min(span.end());
        if data > at {
            extents.push(Extent::zero(ByteSpan::from_bounds(at, data)));
        }
        if data == span.end() {
            break;
        }
        let hole = next_hole(file, data, size)?.min(span.end());
        extents.push(Extent::allocated(ByteSpan::from_bounds(data, hole)));
        at = hole;
    }
    Ok(extents)
}

/// The first byte at or after `at` that may be data; `size` if there is none.
fn next_data(file: &File, at: u64, size: u64) -> io::Result<u64> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(data.max(at)),
        // "No data from here to the end" is also what a file says that became shorter.
        Err(Errno::NXIO) => check_length(file, size).map(|()| size),
        Err(errno) => Err(errno.into()),
    }
}

/// The first byte after the data at `data` that is a hole; `size` if there is none.
fn next_hole(file: &File, data: u64, size: u64) -> io::Result<u64> {
    match seek(file, SeekFrom::Hole(data)) {
        // The end of the file counts as a hole. One that starts where data just was means that
        // someone punched it in between: take the rest as data, it will be read.
        Ok(hole) if hole > data => Ok(hole),
        Ok(_) | Err(Errno::NXIO) => check_length(file, size).map(|()| size),
        Err(errno) => Err(errno.into()),
    }
}

fn check_length(file: &File, size: u64) -> io::Result<()> {
    let length = file.metadata()?.len();
    if length >= size {
        return Ok(());
    }
    let text = format!("the file is {length} bytes long now, it was {size} when opened");
    Err(io::Error::new(io::ErrorKind::InvalidData, text))
}
