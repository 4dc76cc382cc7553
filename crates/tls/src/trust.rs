use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, OtherError, RootCertStore, SignatureScheme,
};

use crate::files::{KeyPair, TlsError, authorities, certificates, revocation_lists, system_authorities};
use crate::thumbprint::{Presented, Thumbprint};

/// Whose certificates to believe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// The authorities this system trusts.
    #[default]
    System,
    /// The authorities in a PEM file, and its certificates themselves.
    CaFile(PathBuf),
    /// The one certificate with this thumbprint, whatever its name, dates and authority.
    Thumbprint(Thumbprint),
    /// Anybody. Whoever sits between can read and change everything.
    Insecure,
}

/// Why a server's certificate is not believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason.
    pub why: Why,
    /// The certificate.
    pub presented: Box<Presented>,
    /// The reason in the TLS library's words; names in it are the server's.
    pub detail: String,
}

/// The reason why a certificate is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It comes from no authority that is trusted.
    Untrusted,
    /// Its thumbprint is not the given one.
    OtherThumbprint,
    /// Its time is over.
    Expired,
    /// Its time has not begun.
    NotYetValid,
    /// It is for another name.
    WrongName,
    /// Its authority revoked it.
    Revoked,
    /// It breaks a rule for certificates.
    Unusable,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.why {
            Why::Untrusted => f.write_str("certificate is not trusted"),
            Why::OtherThumbprint => {
                f.write_str("certificate has changed: its thumbprint is not the given one")
            }
            Why::Expired => f.write_str("certificate has expired"),
            Why::NotYetValid => f.write_str("certificate is not valid yet (is the clock right?)"),
            Why::WrongName => f.write_str("certificate is for another name"),
            Why::Revoked => f.write_str("certificate was revoked by its authority"),
            Why::Unusable => f.write_str("certificate cannot be used"),
        }?;
        write!(f, " (server presents {})", self.presented)
    }
}

impl std::error::Error for Refusal {}

/// The settings of a client without a certificate of its own. Made once per server, so that sessions are resumed.
///
/// # Errors
/// If there are no authorities, or their file cannot be used.
pub fn client_config(trust: &Trust) -> Result<Arc<ClientConfig>, TlsError> {
    client_config_with(trust, None, None)
}

/// The same with a file of revocation lists, and a certificate of the client's. What the lists name is refused, what
/// they are silent about is not.
///
/// # Errors
/// If a file cannot be used, or there are no authorities.
pub fn client_config_with(
    trust: &Trust,
    revoked: Option<&Path>,
    own: Option<&KeyPair>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let crypto = Arc::new(provider::default_provider());
    let rule = match trust {
        Trust::System => Rule::Chain(chain(system_authorities()?, revoked, &crypto)?, Vec::new()),
        Trust::CaFile(path) => {
            let given = certificates(path)?;
            let chain = chain(authorities(path, &given)?, revoked, &crypto)?;
            // A revocation list could name one of them, and is looked at in chains only.
            Rule::Chain(chain, if revoked.is_some() { Vec::new() } else { given })
        }
        Trust::Thumbprint(wanted) => Rule::Pinned(*wanted),
        Trust::Insecure => Rule::Anybody,
    };
    let verifier = Verifier { rule, crypto: crypto.clone() };
    let config = ClientConfig::builder_with_provider(crypto)
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::settings(&error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    Ok(Arc::new(match own {
        None => config.with_no_client_auth(),
        Some(own) => {
            let (certificates, key) = own.read()?;
            config
                .with_client_auth_cert(certificates, key)
                .map_err(|error| TlsError::file(&own.key, &error))?
        }
    }))
}

fn chain(
    roots: RootCertStore,
    revoked: Option<&Path>,
    crypto: &Arc<CryptoProvider>,
) -> Result<Arc<WebPkiServerVerifier>, TlsError> {
    let mut verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), crypto.clone());
    if let Some(path) = revoked {
        verifier = verifier
            .with_crls(revocation_lists(path)?)
            .only_check_end_entity_revocation()
            .allow_unknown_revocation_status();
    }
    verifier.build().map_err(|error| TlsError::settings(&error))
}

/// Why a handshake failed, if it did for the server's certificate.
pub fn refusal_of(error: &rustls::Error) -> Option<&Refusal> {
    match error {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => inner.downcast_ref(),
        _ => None,
    }
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

/// Carries our own reason through rustls to [`refusal_of`].
fn refused(refusal: Refusal) -> rustls::Error {
    rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal))))
}

fn why(error: &rustls::Error) -> Why {
    use CertificateError as C;
    let rustls::Error::InvalidCertificate(reason) = error else { return Why::Unusable };
    match reason {
        // An authority of the same name signed it, or it calls itself one and may not end a chain: that has no name of its own.
        C::UnknownIssuer | C::BadSignature | C::Other(_) => Why::Untrusted,
        C::Expired | C::ExpiredContext { .. } => Why::Expired,
        C::NotValidYet | C::NotValidYetContext { .. } => Why::NotYetValid,
        C::NotValidForName | C::NotValidForNameContext { .. } => Why::WrongName,
        C::Revoked => Why::Revoked,
        _ => Why::Unusable,
    }
}

fn refusal(error: &rustls::Error, presented: Presented) -> Refusal {
    let detail = match error {
        rustls::Error::InvalidCertificate(reason) => reason.to_string(),
        other => other.to_string(),
    };
    Refusal { why: why(error), presented: presented.into(), detail }
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
            Rule::Pinned(_) => {
                let detail = "its thumbprint is not the given one".to_string();
                Err(refused(Refusal { why: Why::OtherThumbprint, presented: presented.into(), detail }))
            }
            Rule::Chain(chain, given) => {
                let verified =
                    chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
                verified.or_else(|error| match refusal(&error, presented) {
                    // Dates are checked before anything that ends here.
                    Refusal { why: Why::Untrusted, .. } if given.contains(end_entity) => {
                        is_for(end_entity, server_name).map_err(|error| refused(refusal(&error, presented)))
                    }
                    refusal => Err(refused(refusal)),
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
    fn a_missing_or_empty_ca_file_is_named() {
        let error = client_config(&Trust::CaFile("/does/not/exist.pem".into())).unwrap_err();
        assert!(error.to_string().contains("/does/not/exist.pem"), "{error}");
        let empty = tempfile::NamedTempFile::new().unwrap();
        let error = client_config(&Trust::CaFile(empty.path().into())).unwrap_err();
        assert!(error.to_string().ends_with("holds no certificate"), "{error}");
    }
}
