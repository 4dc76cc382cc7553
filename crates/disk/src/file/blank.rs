use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// So many bytes are read to see that a file without blocks holds none but zeros; more count as content.
const READ_BYTES_MAX: u64 = 64 << 20;

/// Bytes read at a time.
const STEP_BYTES: u64 = 1 << 20;

/// Whether a file has no byte but zeros, and no room taken for any: an earlier try made it and ended before its journal.
///
/// That no blocks are taken proves nothing by itself: some file systems keep tiny files without one, and some, as of FUSE,
/// do not tell. What is not a hole is read.
///
/// # Errors
/// When it cannot be read.
pub fn holds_nothing(file: &File) -> io::Result<bool> {
    let meta = file.metadata()?;
    if !meta.is_file() || meta.blocks() > 0 {
        return Ok(false);
    }
    is_zero(file, meta.len(), |at| seek(file, SeekFrom::Data(at)), |at| seek(file, SeekFrom::Hole(at)))
}

fn is_zero(
    file: &File,
    length: u64,
    next_data: impl Fn(u64) -> rustix::io::Result<u64>,
    next_hole: impl Fn(u64) -> rustix::io::Result<u64>,
) -> io::Result<bool> {
    let (mut at, mut left) = (0, READ_BYTES_MAX);
    while at < length {
        let data = match next_data(at) {
            Ok(data) => data.max(at),
            Err(Errno::NXIO) => return Ok(true),
            // Nothing is told of holes.
            Err(_) => at,
        };
        let hole = next_hole(data).ok().filter(|hole| *hole > data).unwrap_or(length).min(length);
        if hole.saturating_sub(data) > left {
            return Ok(false);
        }
        left -= hole.saturating_sub(data);
        at = data;
        while at < hole {
            let mut bytes = vec![0; STEP_BYTES.min(hole - at) as usize];
            file.read_exact_at(&mut bytes, at)?;
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += bytes.len() as u64;
        }
        at = at.max(hole);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_blocks_is_read_where_holes_are_not_told() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(3 << 20).unwrap();
        assert!(holds_nothing(&file).unwrap());
        // As a file system that tells neither blocks nor holes.
        let silent = |_| Err(Errno::INVAL);
        let all_data = |at| Ok(at);
        let end = |_| Ok(3 << 20);
        let is_blank = || {
            let untold = is_zero(&file, 3 << 20, silent, silent).unwrap();
            assert_eq!(untold, is_zero(&file, 3 << 20, all_data, end).unwrap());
            untold
        };
        assert!(is_blank());
        file.write_all_at(b"x", (3 << 20) - 1).unwrap();
        assert!(!is_blank() && !holds_nothing(&file).unwrap());
        let huge = READ_BYTES_MAX + 1;
        assert!(!is_zero(&file, huge, silent, silent).unwrap(), "more than is read counts as content");
    }
}
