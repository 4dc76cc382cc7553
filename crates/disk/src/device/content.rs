//! What a device holds, by its bytes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use drover_types::BLOCK_BYTES;
use rustix::fs::{SeekFrom, seek};

use super::signature::{HEAD_BYTES, Signature, TAIL_BYTES, signatures};

/// Samples between the head and the tail of a device that are looked at for content: 4 MiB, spread over it.
const SAMPLES: u64 = 64;

/// What a device holds, by the marks in its first and last bytes.
///
/// # Errors
/// When it cannot be read.
pub fn signatures_on(path: &Path) -> io::Result<Vec<Signature>> {
    let file = File::open(path)?;
    let size = seek(&file, SeekFrom::End(0))?;
    let read = |offset: u64, bytes: u64| {
        let mut buffer = vec![0; bytes as usize];
        file.read_exact_at(&mut buffer, offset).map(|()| buffer)
    };
    let (head, tail) = (size.min(HEAD_BYTES), size.min(TAIL_BYTES));
    Ok(signatures(&read(0, head)?, &read(size - tail, tail)?, size))
}

/// The first byte found on a device that is not zero, in its head, its tail and samples between them.
///
/// # Errors
/// When it cannot be read.
pub fn content_on(path: &Path) -> io::Result<Option<u64>> {
    let file = File::open(path)?;
    let size = seek(&file, SeekFrom::End(0))?;
    let spread = (0..SAMPLES).map(|number| number * (size / SAMPLES) / BLOCK_BYTES * BLOCK_BYTES);
    let samples = spread.map(|offset| (offset, BLOCK_BYTES.min(size - offset)));
    let ends = [(0, size.min(HEAD_BYTES)), (size - size.min(TAIL_BYTES), size.min(TAIL_BYTES))];
    let mut first = None;
    for (offset, length) in ends.into_iter().chain(samples) {
        let mut bytes = vec![0; length as usize];
        file.read_exact_at(&mut bytes, offset)?;
        let found = bytes.iter().position(|byte| *byte != 0).map(|at| offset + at as u64);
        first = first.into_iter().chain(found).min();
    }
    Ok(first)
}
