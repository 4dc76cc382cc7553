//! Small text files that a user names.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

use drover_types::Bytes;

/// The text of a file, or of a pipe, that is not larger than this. The size is not asked for: devices and pipes say
/// 0 and may never end.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it is larger than {}", Bytes(bytes_max))));
    }
    String::from_utf8(bytes)
        .map_err(|_| Error::new(ErrorKind::InvalidData, "it holds something else than UTF-8 text"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_end_is_refused_and_one_of_the_full_size_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text");
        std::fs::write(&path, "12345").unwrap();
        assert_eq!(read_text(&path, 5).unwrap(), "12345");
        assert_eq!(read_text(&path, 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert!(
            read_text(Path::new("/dev/zero"), 1 << 20).unwrap_err().to_string().contains("larger than 1 MiB")
        );
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert_eq!(read_text(&path, 5).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
