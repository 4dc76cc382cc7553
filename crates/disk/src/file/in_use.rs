//! Whether another program has a file open for writing.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::patience::patiently;

/// The byte that QEMU locks, shared, in files that it may write. Source: QEMU `block/file-posix.c`
/// (`RAW_LOCK_PERM_BASE` + the number of the write permission).
const WRITE_LOCK_BYTE: u64 = 101;

/// File systems of this host, on which the kernel knows every writer: ext2 to ext4, XFS, btrfs, tmpfs, overlayfs, F2FS,
/// ZFS, bcachefs. A client of a file server knows its own at best, and refuses leases for reasons of its own.
const KNOWING: [u32; 8] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0x0102_1994, 0x794c_7630, 0xf2f5_2010, 0x2fc1_2fc1, 0xca45_1a4e];

/// Refuses a file that a program of this host may be writing: what is read would be of no one moment. What other hosts do
/// on a network file system does not show, nor what is another user's.
///
/// # Errors
/// `ResourceBusy` if there is one, or the file cannot be looked at.
pub fn check_no_writer(file: &File) -> io::Result<()> {
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Ok(());
    }
    let busy = |text| Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
    let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
    if locks.lines().any(|line| is_write_lock(line, (metadata.dev(), metadata.ino()))) {
        return busy(
            "a running QEMU has it open for writing; stop its guest, or read the disk through that QEMU (NBD)",
        );
    }
    let is_known = rustix::fs::fstatfs(file).is_ok_and(|it| KNOWING.contains(&(it.f_type as u32)));
    let look = || match drover_tcp::is_open_for_writing(file) {
        Ok(true) => Err(()),
        // Not ours to ask about.
        Ok(false) | Err(_) => Ok(()),
    };
    match is_known.then(|| patiently(look, |()| true)) {
        Some(Err(())) => busy(
            "another program has it open for writing (`fuser -v` and `losetup -j` name it); stop that, or read a snapshot",
        ),
        _ => Ok(()),
    }
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
