use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::digest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme,
};

use crate::error::HttpErrorKind;

/// Whose certificates to believe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The authorities this system trusts.
    #[default]
    System,
    /// The authorities in a PEM file.
    CaFile(PathBuf),
    /// The one certificate with this thumbprint, whatever its name, dates and authority.
    Thumbprint(Thumbprint),
    /// Anybody. Whoever sits between can read and change everything.
    Insecure,
}

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

    fn is(&self, wanted: &Thumbprint) -> bool {
        match wanted {
            Thumbprint::Sha1(bytes) => *bytes == self.sha1,
            Thumbprint::Sha256(bytes) => *bytes == self.sha256,
        }
    }
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

/// The TLS settings for `trust`. Made once per endpoint, so that sessions are resumed.
///
/// # Errors
/// [`HttpErrorKind::BadTrust`].
pub fn client_config(trust: &Trust) -> Result<Arc<ClientConfig>, HttpErrorKind> {
    let wrong = |what: &dyn fmt::Display| HttpErrorKind::BadTrust(what.to_string());
    let crypto = Arc::new(provider::default_provider());
    let rule = match trust {
        Trust::System => Rule::Chain(chain_verifier(system_roots()?, &crypto)?, Vec::new()),
        Trust::CaFile(path) => {
            let given = certificates_of(path)?;
            Rule::Chain(chain_verifier(roots_of(path, &given)?, &crypto)?, given)
        }
        Trust::Thumbprint(wanted) => Rule::Pinned(*wanted),
        Trust::Insecure => Rule::Anybody,
    };
    let verifier = Verifier { rule, crypto: crypto.clone() };
    let config = ClientConfig::builder_with_provider(crypto)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn system_roots() -> Result<RootCertStore, HttpErrorKind> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(found.certs);
    match added {
        0 => Err(HttpErrorKind::BadTrust(
            "this system has no CA certificates; give a CA file or a thumbprint".into(),
        )),
        _ => Ok(roots),
    }
}

fn in_ca_file(path: &std::path::Path, why: &dyn fmt::Display) -> HttpErrorKind {
    HttpErrorKind::BadTrust(format!("CA file {}: {why}", path.display()))
}

/// The certificates of a PEM file, at least one.
fn certificates_of(path: &std::path::Path) -> Result<Vec<CertificateDer<'static>>, HttpErrorKind> {
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| in_ca_file(path, &error))?;
    if found.is_empty() {
        return Err(in_ca_file(path, &"holds no certificate"));
    }
    Ok(found)
}

fn roots_of(
    path: &std::path::Path,
    certificates: &[CertificateDer<'static>],
) -> Result<RootCertStore, HttpErrorKind> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate.clone()).map_err(|error| in_ca_file(path, &error))?;
    }
    Ok(roots)
}

fn chain_verifier(
    roots: RootCertStore,
    crypto: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, HttpErrorKind> {
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), crypto.clone())
        .build()
        .map_err(|error| HttpErrorKind::BadTrust(error.to_string()))
}

#[derive(Debug)]
enum Rule {
    /// By its authority, or as one of these certificates itself: many hosts show one that they signed themselves and
    /// that calls itself an authority, which a chain may not end in.
    Chain(Arc<WebPkiServerVerifier>, Vec<CertificateDer<'static>>),
    Pinned(Thumbprint),
    Anybody,
}

/// Decides on the certificate by its rule. The handshake signature is checked under every rule:
/// a thumbprint alone proves nothing, since certificates are public.
#[derive(Debug)]
struct Verifier {
    rule: Rule,
    crypto: Arc<CryptoProvider>,
}

/// Carries our own reason through rustls to [`failure_kind`].
#[derive(Debug)]
struct Refusal(HttpErrorKind);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Refusal {}

fn refusal(kind: HttpErrorKind) -> rustls::Error {
    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(Refusal(kind)))))
}

/// What an error of the handshake means.
pub fn failure_kind(error: &rustls::Error) -> HttpErrorKind {
    if let rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) = error
        && let Some(Refusal(kind)) = inner.downcast_ref::<Refusal>()
    {
        return kind.clone();
    }
    HttpErrorKind::Tls
}

fn chain_failure(error: &rustls::Error, presented: Presented) -> HttpErrorKind {
    use CertificateError as C;
    match error {
        rustls::Error::InvalidCertificate(reason) => match reason {
            C::Expired | C::ExpiredContext { .. } | C::NotValidYet | C::NotValidYetContext { .. } => {
                HttpErrorKind::Expired(presented)
            }
            C::NotValidForName | C::NotValidForNameContext { .. } => HttpErrorKind::WrongName(presented),
            _ => HttpErrorKind::Untrusted(presented),
        },
        _ => HttpErrorKind::Untrusted(presented),
    }
}

fn is_for(
    certificate: &CertificateDer<'_>,
    name: &ServerName<'_>,
) -> Result<ServerCertVerified, rustls::Error> {
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
    Ok(ServerCertVerified::assertion())
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let presented = Presented::of(end_entity);
        match &self.rule {
            Rule::Anybody => Ok(ServerCertVerified::assertion()),
            Rule::Pinned(wanted) if presented.is(wanted) => Ok(ServerCertVerified::assertion()),
            Rule::Pinned(_) => Err(refusal(HttpErrorKind::ThumbprintMismatch(presented))),
            Rule::Chain(chain, given) => {
                let verified =
                    chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
                verified.or_else(|error| match chain_failure(&error, presented) {
                    // Dates are checked before anything that ends here.
                    HttpErrorKind::Untrusted(_) if given.contains(end_entity) => {
                        is_for(end_entity, server_name)
                            .map_err(|error| refusal(chain_failure(&error, presented)))
                    }
                    kind => Err(refusal(kind)),
                })
            }
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.crypto.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.crypto.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.crypto.signature_verification_algorithms.supported_schemes()
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

    #[test]
    fn a_missing_or_empty_ca_file_is_named() {
        let error = client_config(&Trust::CaFile("/does/not/exist.pem".into())).unwrap_err();
        assert!(error.to_string().contains("/does/not/exist.pem"), "{error}");
    }
}
