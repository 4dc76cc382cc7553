//! Small texts that a user names.

use std::io::{Error, ErrorKind, Read, Result};

use crate::Bytes;

/// The text of a file, a pipe or a device that is not larger than this. The size is not asked for: devices and pipes say 0 and may
/// never end.
///
/// # Errors
/// If it cannot be read, is larger, or holds something else than UTF-8.
pub fn read_text(from: impl Read, bytes_max: u64) -> Result<String> {
    let mut bytes = Vec::new();
    from.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Error::new(ErrorKind::FileTooLarge, format!("it is larger than {}", Bytes(bytes_max))));
    }
    String::from_utf8(bytes)
        .map_err(|_| Error::new(ErrorKind::InvalidData, "it holds something else than UTF-8 text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_end_is_refused_and_one_of_the_full_size_is_not() {
        assert_eq!(read_text(&b"12345"[..], 5).unwrap(), "12345");
        assert_eq!(read_text(&b"12345"[..], 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
        let endless = read_text(std::io::repeat(0), 1 << 20).unwrap_err();
        assert!(endless.to_string().contains("larger than 1 MiB"), "{endless}");
        assert_eq!(read_text(&[0xff, 0xfe][..], 5).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
