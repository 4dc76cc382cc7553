use std::fmt;
use std::path::{Path, PathBuf};

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// Why there are no settings for TLS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or holds something else.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// No CA file was given, and the system has none.
    #[error("this system has no CA certificates")]
    NoAuthorities,
    /// The TLS library refuses the settings.
    #[error("{0}")]
    Settings(String),
}

impl TlsError {
    pub(crate) fn file(path: &Path, why: &dyn fmt::Display) -> TlsError {
        TlsError::File { path: path.to_path_buf(), why: why.to_string() }
    }

    pub(crate) fn settings(why: &dyn fmt::Display) -> TlsError {
        TlsError::Settings(why.to_string())
    }
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPair {
    /// PEM file with the certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// PEM file with its private key.
    pub key: PathBuf,
}

impl KeyPair {
    pub(crate) fn read(&self) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
        let chain = certificates(&self.certificate)?;
        let key = PrivateKeyDer::from_pem_file(&self.key);
        Ok((chain, key.map_err(|error| TlsError::file(&self.key, &error))?))
    }
}

/// The certificates of a PEM file, at least one.
pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    all_of(path, "holds no certificate")
}

/// The revocation lists of a PEM file, at least one.
pub(crate) fn revocation_lists(path: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
    all_of(path, "holds no revocation list")
}

fn all_of<T: PemObject>(path: &Path, none: &str) -> Result<Vec<T>, TlsError> {
    let found = T::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<T>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(TlsError::file(path, &none)),
        found => found.map_err(|error| TlsError::file(path, &error)),
    }
}

/// Certificates of a file as authorities.
pub(crate) fn authorities(
    path: &Path,
    certificates: &[CertificateDer<'static>],
) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.clone()).map_err(|error| TlsError::file(path, &error))?;
    }
    Ok(roots)
}

pub(crate) fn system_authorities() -> Result<RootCertStore, TlsError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    match roots.add_parsable_certificates(found.certs) {
        (0, _) => Err(TlsError::NoAuthorities),
        _ => Ok(roots),
    }
}
