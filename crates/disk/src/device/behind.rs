use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::FileExt;

/// Bytes that are written at once.
const ZEROS_BYTES: u64 = 64 << 10;

/// Overwrites what an open device has behind a disk of `size` bytes: logical volumes are whole extents.
///
/// # Errors
/// When it cannot be written.
pub fn zero_behind(mut device: &File, size: u64) -> io::Result<()> {
    let (mut at, end) = (size, device.seek(SeekFrom::End(0))?);
    let zeros = vec![0; ZEROS_BYTES as usize];
    while at < end {
        let bytes = (end - at).min(ZEROS_BYTES);
        device.write_all_at(&zeros[..bytes as usize], at)?;
        at += bytes;
    }
    device.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_behind_a_disk_is_zeroed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("volume");
        std::fs::write(&file, vec![7; 200_000]).unwrap();
        zero_behind(&File::options().read(true).write(true).open(&file).unwrap(), 512).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        assert!(bytes[..512].iter().all(|byte| *byte == 7) && bytes[512..].iter().all(|byte| *byte == 0));
        assert_eq!(bytes.len(), 200_000);
    }
}
