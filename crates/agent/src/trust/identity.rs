use std::fmt;
use std::str::FromStr;

use drover_tls::{Own, key_digest};
use rcgen::{CertificateParams, DnType, KeyPair, PKCS_ED25519};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use serde::{Deserialize, Serialize};

use super::folder::{Folder, FolderError};

pub(super) const KEY_FILE: &str = "key.pem";

/// The name in every certificate. Nobody looks at it: keys are what counts.
const COMMON_NAME: &str = "drover";

/// SHA-256 of a public key (its SubjectPublicKeyInfo): what tells a host from all others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Fingerprint(pub [u8; 32]);

/// A text that is no fingerprint.
#[derive(Debug, thiserror::Error)]
#[error("'{0}' is not a fingerprint of 64 hexadecimal digits")]
pub struct FingerprintError(String);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::random::to_hex(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({})", &self.to_string()[..12])
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let digest: drover_types::Digest = text.parse().map_err(|_| FingerprintError(text.to_string()))?;
        Ok(Fingerprint(digest.0))
    }
}

impl TryFrom<String> for Fingerprint {
    type Error = FingerprintError;

    fn try_from(text: String) -> Result<Self, FingerprintError> {
        text.parse()
    }
}

impl From<[u8; 32]> for Fingerprint {
    fn from(bytes: [u8; 32]) -> Fingerprint {
        Fingerprint(bytes)
    }
}

impl From<Fingerprint> for String {
    fn from(fingerprint: Fingerprint) -> String {
        fingerprint.to_string()
    }
}

/// The fingerprint of the key in a certificate; `None` if it is no certificate.
pub fn fingerprint_of(certificate: &CertificateDer<'_>) -> Option<Fingerprint> {
    key_digest(certificate).ok().map(Fingerprint)
}

/// The key of this host and a certificate for it.
pub struct Identity {
    key: Vec<u8>,
    certificate: CertificateDer<'static>,
    fingerprint: Fingerprint,
}

/// A key that is of no use.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The state folder.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// The key in it.
    #[error("the key in the state folder cannot be used")]
    Key(#[from] rcgen::Error),
    /// The key file holds something else.
    #[error("the key file in the state folder holds no key")]
    NoKey,
}

impl Identity {
    /// The identity of this host, made if there is none. The certificate is made anew each time: only its key counts.
    ///
    /// # Errors
    /// When the key cannot be read, made or kept.
    pub fn open(folder: &Folder) -> Result<Identity, IdentityError> {
        let _lock = folder.lock(KEY_FILE)?;
        let pair = match folder.read(KEY_FILE)? {
            Some(bytes) => {
                let text = String::from_utf8(bytes).map_err(|_| IdentityError::NoKey)?;
                KeyPair::from_pem(&text)?
            }
            None => {
                let pair = KeyPair::generate_for(&PKCS_ED25519)?;
                folder.write(KEY_FILE, pair.serialize_pem().as_bytes())?;
                pair
            }
        };
        Ok(Identity::of(&pair)?)
    }

    /// An identity that nobody keeps, for tests.
    ///
    /// # Errors
    /// When no key can be made.
    pub fn fleeting() -> Result<Identity, IdentityError> {
        Ok(Identity::of(&KeyPair::generate_for(&PKCS_ED25519)?)?)
    }

    pub(super) fn of(pair: &KeyPair) -> Result<Identity, rcgen::Error> {
        let mut params = CertificateParams::new(vec![COMMON_NAME.to_string()])?;
        params.distinguished_name.push(DnType::CommonName, COMMON_NAME);
        Identity::with(pair, params)
    }

    pub(super) fn with(pair: &KeyPair, params: CertificateParams) -> Result<Identity, rcgen::Error> {
        let certificate = params.self_signed(pair)?.der().clone();
        let fingerprint = fingerprint_of(&certificate).ok_or(rcgen::Error::CouldNotParseCertificate)?;
        Ok(Identity { key: pair.serialize_der(), certificate, fingerprint })
    }

    /// What others know this host by.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub(super) fn own(&self) -> Own {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.clone()));
        Own { certificate: self.certificate.clone(), key }
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.fingerprint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_host_keeps_its_key_and_nobody_else_can_read_it() {
        let state = tempfile::tempdir().unwrap();
        let folder = Folder::open(state.path()).unwrap();
        let first = Identity::open(&folder).unwrap();
        assert_eq!(Identity::open(&folder).unwrap().fingerprint(), first.fingerprint());
        assert_ne!(Identity::fleeting().unwrap().fingerprint(), first.fingerprint());
        let mode =
            |name: &str| std::fs::metadata(state.path().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("link"), mode("link/key.pem")), (0o700, 0o600));
        assert!(!format!("{first:?}").contains("PRIVATE"));
    }

    #[test]
    fn a_folder_that_others_can_read_is_refused() {
        let state = tempfile::tempdir().unwrap();
        Folder::open(state.path()).unwrap();
        let mode = std::fs::Permissions::from_mode(0o750);
        std::fs::set_permissions(state.path().join("link"), mode).unwrap();
        assert!(Folder::open(state.path()).is_err());
    }

    #[test]
    fn a_key_file_of_something_else_is_refused_and_kept() {
        let state = tempfile::tempdir().unwrap();
        let folder = Folder::open(state.path()).unwrap();
        folder.write(KEY_FILE, b"hello").unwrap();
        assert!(Identity::open(&folder).is_err());
        assert_eq!(folder.read(KEY_FILE).unwrap().unwrap(), b"hello");
    }

    #[test]
    fn fingerprints_go_there_and_back() {
        let fingerprint = Identity::fleeting().unwrap().fingerprint();
        assert_eq!(fingerprint.to_string().parse::<Fingerprint>().unwrap(), fingerprint);
        assert!("12".parse::<Fingerprint>().is_err());
    }
}
