use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A BLAKE3 digest of 32 bytes, printed as 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest as 64 hexadecimal digits.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The first 12 digits, enough to tell digests apart in a table.
    pub fn short(&self) -> String {
        self.to_hex()[..12].to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({})", self.short())
    }
}

/// A text that is not 64 hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is not a digest of 64 hexadecimal digits")]
pub struct DigestError(String);

impl FromStr for Digest {
    type Err = DigestError;

    fn from_str(text: &str) -> Result<Self, DigestError> {
        let wrong = || DigestError(text.to_string());
        // A sign would pass for a digit below.
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| wrong())?;
        }
        Ok(Digest(bytes))
    }
}

impl TryFrom<String> for Digest {
    type Error = DigestError;

    fn try_from(text: String) -> Result<Self, DigestError> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_hex()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_form_goes_there_and_back() {
        let digest = Digest(std::array::from_fn(|i| i as u8 * 7));
        assert_eq!(digest.to_hex().parse::<Digest>().unwrap(), digest);
        assert_eq!(String::from(digest).parse::<Digest>().unwrap(), digest);
        assert_eq!((digest.to_string(), digest.short().len()), (digest.to_hex(), 12));
        assert_eq!(format!("{digest:?}"), "Digest(00070e151c23)");
    }

    #[test]
    fn refuses_what_is_not_64_digits() {
        for text in ["", "abcd", &"g".repeat(64), &"é".repeat(32), &"+7".repeat(32)] {
            assert!(text.parse::<Digest>().is_err(), "{text}");
        }
    }
}
