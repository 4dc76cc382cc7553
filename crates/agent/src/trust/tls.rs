//! TLS 1.3 between peers. There is no authority: each side shows a certificate that it made itself, and the other side
//! looks its key up. The handshake's signature is checked, or a certificate (which is public) would prove nothing.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError, PeerMisbehaved,
    ServerConfig, SignatureScheme,
};

use super::identity::{Fingerprint, Identity, fingerprint_of};

/// Whether a key is trusted; why not, if it is not.
pub type Judge = dyn Fn(Fingerprint) -> Result<(), String> + Send + Sync;

/// Settings of the side that dials: only an agent with a key that `judge` trusts.
///
/// # Errors
/// When this host's own key cannot be used.
pub fn client_config(
    identity: &Identity,
    judge: impl Fn(Fingerprint) -> Result<(), String> + Send + Sync + 'static,
) -> Result<Arc<ClientConfig>, rustls::Error> {
    let verifier = Arc::new(Verifier::new(Box::new(judge)));
    let mut config = ClientConfig::builder_with_provider(verifier.crypto.clone())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(identity.certificate(), identity.key())?;
    config.alpn_protocols = vec![drover_link::ALPN.to_vec()];
    Ok(Arc::new(config))
}

/// Settings of the side that listens: every client must show a key, and only those that `judge` trusts come in.
///
/// # Errors
/// When this host's own key cannot be used.
pub fn server_config(
    identity: &Identity,
    judge: impl Fn(Fingerprint) -> Result<(), String> + Send + Sync + 'static,
) -> Result<Arc<ServerConfig>, rustls::Error> {
    let verifier = Arc::new(Verifier::new(Box::new(judge)));
    let mut config = ServerConfig::builder_with_provider(verifier.crypto.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.certificate(), identity.key())?;
    config.alpn_protocols = vec![drover_link::ALPN.to_vec()];
    // A ticket would let a peer in again whose key was revoked meanwhile.
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

struct Verifier {
    judge: Box<Judge>,
    crypto: Arc<CryptoProvider>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifier")
    }
}

/// Carries our own reason through rustls.
#[derive(Debug)]
struct Refused(String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refused {}

impl Verifier {
    fn new(judge: Box<Judge>) -> Verifier {
        Verifier { judge, crypto: Arc::new(provider::default_provider()) }
    }

    fn verify(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let key = fingerprint_of(certificate)
            .ok_or(rustls::Error::InvalidCertificate(CertificateError::BadEncoding))?;
        (self.judge)(key).map_err(|why| {
            let refused = OtherError(Arc::new(Refused(why)));
            rustls::Error::InvalidCertificate(CertificateError::Other(refused))
        })
    }

    fn signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.crypto.signature_verification_algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.crypto.signature_verification_algorithms.supported_schemes()
    }
}

/// No side offers TLS 1.2.
fn too_old() -> rustls::Error {
    rustls::Error::PeerMisbehaved(PeerMisbehaved::SelectedTls12UsingTls13VersionExtension)
}

/// What both sides check of a handshake besides the key, alike: its signature.
macro_rules! signatures {
    () => {
        fn verify_tls12_signature(
            &self,
            _message: &[u8],
            _certificate: &CertificateDer<'_>,
            _signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            Err(too_old())
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signed: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, rustls::Error> {
            self.signature(message, certificate, signed)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.schemes()
        }
    };
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verify(end_entity).map(|()| ServerCertVerified::assertion())
    }

    signatures!();
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.verify(end_entity).map(|()| ClientCertVerified::assertion())
    }

    signatures!();
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
