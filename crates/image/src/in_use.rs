//! Whether a QEMU has a file open for writing.

use std::io;

use crate::source::FileSource;

/// The byte that QEMU locks, shared, in files that it may write. Source: QEMU `block/file-posix.c`
/// (`RAW_LOCK_PERM_BASE` + the number of the write permission).
const WRITE_LOCK_BYTE: u64 = 101;

/// Refuses a file that a QEMU of this host may be writing. As good as `/proc/locks`: other hosts
/// on a network file system, and QEMUs told not to lock, do not show there.
pub(crate) fn check(file: &FileSource) -> io::Result<()> {
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    if !locks.lines().any(|line| is_write_lock(line, file.id())) {
        return Ok(());
    }
    let text =
        "a running QEMU has it open for writing; stop its guest, or read the disk through that QEMU (NBD)";
    Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
}

/// Reads a line such as `3: OFDLCK ADVISORY  READ -1 fd:02:131 100 101`.
fn is_write_lock(line: &str, (device, inode): (u64, u64)) -> bool {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, kind, _, _, _, place, first, last] = words[..] else { return false };
    let mut place = place.split(':');
    let mut hex = || u32::from_str_radix(place.next()?, 16).ok();
    let (Some(major), Some(minor)) = (hex(), hex()) else { return false };
    let same = rustix::fs::makedev(major, minor) == device && place.next() == Some(&inode.to_string());
    let from = first.parse().unwrap_or(u64::MAX);
    let to = last.parse().unwrap_or(u64::MAX);
    matches!(kind, "OFDLCK" | "POSIX") && same && (from..=to).contains(&WRITE_LOCK_BYTE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lock_on_that_byte_of_that_file_counts() {
        let id = (rustix::fs::makedev(0xfd, 2), 131);
        for (line, expected) in [
            ("3: OFDLCK ADVISORY  READ -1 fd:02:131 100 101", true),
            ("3: OFDLCK ADVISORY  READ -1 fd:02:131 101 101", true),
            ("3: POSIX  ADVISORY  WRITE 77 fd:02:131 0 EOF", true),
            ("3: OFDLCK ADVISORY  READ -1 fd:02:131 100 100", false),
            ("3: OFDLCK ADVISORY  READ -1 fd:02:131 201 201", false),
            ("3: OFDLCK ADVISORY  READ -1 fd:02:132 100 101", false),
            ("3: OFDLCK ADVISORY  READ -1 fe:02:131 100 101", false),
            ("3: FLOCK  ADVISORY  WRITE 77 fd:02:131 0 EOF", false),
            ("3: -> OFDLCK ADVISORY  READ -1 fd:02:131 100 101", false),
            ("", false),
        ] {
            assert_eq!(is_write_lock(line, id), expected, "{line}");
        }
    }
}
