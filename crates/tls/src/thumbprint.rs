use std::fmt;
use std::str::FromStr;

use aws_lc_rs::digest;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::server::ParsedCertificate;

/// SHA-1 or SHA-256 of a certificate. SHA-1 is what vSphere shows; SHA-256 is the better pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Thumbprint {
    /// 20 bytes.
    Sha1([u8; 20]),
    /// 32 bytes.
    Sha256([u8; 32]),
}

/// A text that is no thumbprint.
#[derive(Debug, thiserror::Error)]
#[error(
    "'{0}' is not a thumbprint; write 40 (SHA-1) or 64 (SHA-256) hexadecimal digits, with or without colons"
)]
pub struct ThumbprintError(String);

/// The thumbprints of the certificate a server showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presented {
    /// SHA-1.
    pub sha1: [u8; 20],
    /// SHA-256.
    pub sha256: [u8; 32],
}

impl Presented {
    /// Of a certificate in DER.
    pub fn of(certificate: &[u8]) -> Self {
        Presented {
            sha1: digest_of(&digest::SHA1_FOR_LEGACY_USE_ONLY, certificate),
            sha256: digest_of(&digest::SHA256, certificate),
        }
    }

    pub(crate) fn is(&self, wanted: &Thumbprint) -> bool {
        match wanted {
            Thumbprint::Sha1(bytes) => *bytes == self.sha1,
            Thumbprint::Sha256(bytes) => *bytes == self.sha256,
        }
    }
}

/// SHA-256 of a certificate's public key (its SubjectPublicKeyInfo): what stays when a certificate is made anew.
///
/// # Errors
/// If it is no certificate.
pub fn key_digest(certificate: &CertificateDer<'_>) -> Result<[u8; 32], rustls::Error> {
    let parsed = ParsedCertificate::try_from(certificate)?;
    Ok(digest_of(&digest::SHA256, parsed.subject_public_key_info().as_ref()))
}

fn digest_of<const N: usize>(algorithm: &'static digest::Algorithm, bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(digest::digest(algorithm, bytes).as_ref());
    out
}

impl fmt::Display for Presented {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SHA-1 {}, SHA-256 {}", Thumbprint::Sha1(self.sha1), Thumbprint::Sha256(self.sha256))
    }
}

impl fmt::Display for Thumbprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: &[u8] = match self {
            Thumbprint::Sha1(bytes) => bytes,
            Thumbprint::Sha256(bytes) => bytes,
        };
        let pairs: Vec<String> = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
        f.write_str(&pairs.join(":"))
    }
}

impl Thumbprint {
    /// That of the first certificate in a PEM text: by it the certificate itself is pinned.
    pub fn of_pem(text: &str) -> Option<Thumbprint> {
        let certificate = CertificateDer::from_pem_slice(text.as_bytes()).ok()?;
        Some(Thumbprint::Sha256(Presented::of(&certificate).sha256))
    }
}

impl FromStr for Thumbprint {
    type Err = ThumbprintError;

    fn from_str(text: &str) -> Result<Self, ThumbprintError> {
        let wrong = || ThumbprintError(text.to_string());
        let digits: Vec<u8> = text.trim().bytes().filter(|byte| *byte != b':').collect();
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(hex_byte).collect();
        let bytes = bytes.ok_or_else(wrong)?;
        match bytes.len() {
            20 => Ok(Thumbprint::Sha1(bytes.try_into().map_err(|_| wrong())?)),
            32 => Ok(Thumbprint::Sha256(bytes.try_into().map_err(|_| wrong())?)),
            _ => Err(wrong()),
        }
    }
}

fn hex_byte(pair: &[u8]) -> Option<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16);
    match pair {
        [high, low] => Some((digit(*high)? * 16 + digit(*low)?) as u8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thumbprints_are_read_with_and_without_colons() {
        let text = "52:6C:4E:88:1D:78:AE:12:1C:F3:BB:6C:5B:F4:E2:82:86:A7:08:AF";
        let thumbprint: Thumbprint = text.parse().unwrap();
        assert_eq!(thumbprint.to_string(), text);
        assert_eq!(text.replace(':', "").to_lowercase().parse::<Thumbprint>().unwrap(), thumbprint);
        assert!(matches!("ab".repeat(32).parse(), Ok(Thumbprint::Sha256(_))));
    }

    #[test]
    fn refuses_thumbprints_of_wrong_length_or_digits() {
        for text in ["", "52:6C", &"a".repeat(41), &"+1".repeat(20), &"é".repeat(20)] {
            assert!(text.parse::<Thumbprint>().is_err(), "{text}");
        }
    }
}
