//! Whom to believe and how to prove who we are: TLS settings from files.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drover_stream::{Tls, printable};
use drover_tls::{KeyPair, TlsError, Trust, Why, client_config_with, refusal_of};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::uri::{Address, UriTls};

/// The files of a `tls-certificates` folder; the names are what QEMU, libnbd and nbdkit use.
const CA_FILE: &str = "ca-cert.pem";
const CRL_FILE: &str = "ca-crl.pem";
const CERTIFICATE_FILE: &str = "client-cert.pem";
const KEY_FILE: &str = "client-key.pem";

/// Files for TLS, where a URI is not the place to name them. What is set here comes before the URI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities to believe, in PEM. Without it, and without a folder in the URI, those that
    /// this system trusts.
    pub ca: Option<PathBuf>,
    /// Our certificate (with those between it and its authority) and its key, in PEM.
    pub client: Option<(PathBuf, PathBuf)>,
}

/// Why the files make no settings, in words.
pub type TlsWords = String;

/// What a connection needs to go on in TLS.
pub fn settings(uri: &UriTls, files: &TlsFiles, address: &Address) -> Result<Tls, TlsWords> {
    Ok(Tls { config: config(uri, files)?, name: server_name(uri, address)? })
}

/// The name that the server's certificate must be for.
fn server_name(uri: &UriTls, address: &Address) -> Result<ServerName<'static>, TlsWords> {
    let name = match (&uri.hostname, address) {
        (Some(name), _) => name.as_str(),
        // An IPv6 address with a zone: the zone is our own name for a network, not the server's.
        (None, Address::Tcp(host, _)) => host.split_once('%').map_or(host.as_str(), |(host, _)| host),
        (None, Address::Unix(_)) => "localhost",
    };
    ServerName::try_from(name.to_string()).map_err(|_| {
        format!("'{name}' cannot be in a certificate; give the server's name with ?tls-hostname=")
    })
}

fn config(uri: &UriTls, files: &TlsFiles) -> Result<Arc<ClientConfig>, TlsWords> {
    let folder = uri.certificates.as_deref();
    let in_folder = |name: &str| folder.map(|folder| folder.join(name));
    let trust = files.ca.clone().or_else(|| in_folder(CA_FILE)).map_or(Trust::System, Trust::CaFile);
    // As the other users of such a folder do.
    let revoked = in_folder(CRL_FILE).filter(|path| path.exists());
    let client = match &files.client {
        Some((certificate, key)) => Some(KeyPair { certificate: certificate.clone(), key: key.clone() }),
        None => folder.map(client_files).transpose()?.flatten(),
    };
    client_config_with(&trust, revoked.as_deref(), client.as_ref()).map_err(|error| match error {
        TlsError::NoAuthorities => format!("{error}; give one with ?tls-certificates=DIR"),
        error => error.to_string(),
    })
}

/// Certificate and key of a folder: both or none.
fn client_files(folder: &Path) -> Result<Option<KeyPair>, TlsWords> {
    let (certificate, key) = (folder.join(CERTIFICATE_FILE), folder.join(KEY_FILE));
    match (certificate.exists(), key.exists()) {
        (true, true) => Ok(Some(KeyPair { certificate, key })),
        (false, false) => Ok(None),
        (true, false) => Err(in_file(&key, &"is missing beside the certificate")),
        (false, true) => Err(in_file(&certificate, &"is missing beside the key")),
    }
}

fn in_file(path: &Path, why: &dyn fmt::Display) -> TlsWords {
    format!("{}: {why}", path.display())
}

/// What an error of TLS means for the one who set it up.
pub fn words(error: &rustls::Error) -> TlsWords {
    let Some(refusal) = refusal_of(error) else {
        return match error {
            rustls::Error::AlertReceived(alert) => {
                format!("the server refuses us in TLS ({alert:?}); does it want a client certificate?")
            }
            other => format!("TLS failed: {other}"),
        };
    };
    let what = match refusal.why {
        Why::Untrusted => "comes from no authority that is trusted; give its own with ?tls-certificates=DIR",
        Why::WrongName => {
            "is for another name (what counts is its subjectAltName); give that with ?tls-hostname=NAME"
        }
        Why::Expired => "has expired",
        Why::NotYetValid => "is not valid yet; is the clock right?",
        Why::Revoked => "was revoked by its authority",
        Why::OtherThumbprint | Why::Unusable => "cannot be used",
    };
    // The names in a certificate are the other side's words.
    format!("the server's certificate {what} ({})", printable(&refusal.detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(folder: &Path) -> UriTls {
        UriTls { certificates: Some(folder.to_path_buf()), ..UriTls::default() }
    }

    #[test]
    fn a_folder_without_its_authority_does_not_fall_back_on_the_system() {
        let folder = tempfile::tempdir().unwrap();
        let error = config(&uri(folder.path()), &TlsFiles::default()).unwrap_err();
        assert!(error.contains("ca-cert.pem"), "{error}");
        std::fs::write(folder.path().join(CA_FILE), "no certificate").unwrap();
        let error = config(&uri(folder.path()), &TlsFiles::default()).unwrap_err();
        assert!(error.contains("ca-cert.pem: holds no certificate"), "{error}");
    }

    #[test]
    fn half_a_client_certificate_is_named() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(CERTIFICATE_FILE), "").unwrap();
        assert!(client_files(folder.path()).unwrap_err().contains("client-key.pem: is missing"));
        std::fs::rename(folder.path().join(CERTIFICATE_FILE), folder.path().join(KEY_FILE)).unwrap();
        assert!(client_files(folder.path()).unwrap_err().contains("client-cert.pem: is missing"));
    }

    #[test]
    fn the_name_in_the_certificate_is_the_hosts_if_none_is_given() {
        let named = UriTls { hostname: Some("web".into()), ..UriTls::default() };
        let tcp = |host: &str| Address::Tcp(host.into(), 1);
        for (uri, address, expected) in [
            (UriTls::default(), tcp("db.example"), "db.example"),
            (UriTls::default(), tcp("fe80::1%eth0"), "fe80::1"),
            (UriTls::default(), Address::Unix("/s".into()), "localhost"),
            (named, tcp("10.0.0.1"), "web"),
        ] {
            assert_eq!(server_name(&uri, &address).unwrap().to_str(), expected);
        }
        assert!(server_name(&UriTls::default(), &tcp("a b")).is_err());
    }
}
