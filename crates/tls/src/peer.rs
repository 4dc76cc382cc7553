//! TLS 1.3 between peers. There is no authority: each side shows a certificate that it made itself, and the other side
//! looks its key up. The handshake's signature is checked, or a certificate (which is public) would prove nothing.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs as provider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, OtherError, PeerMisbehaved,
    ServerConfig, SignatureScheme,
};

use crate::thumbprint::key_digest;

/// What this side shows: its certificate, and the key of it.
pub struct Own {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// Its key.
    pub key: PrivateKeyDer<'static>,
}

/// Whether a key is trusted, by its [`key_digest`]; why not, if it is not.
type Judge = dyn Fn([u8; 32]) -> Result<(), String> + Send + Sync;

/// Settings of the side that dials: only a peer with a key that `judge` trusts.
///
/// # Errors
/// When this side's own key cannot be used.
pub fn peer_client(
    own: Own,
    judge: impl Fn([u8; 32]) -> Result<(), String> + Send + Sync + 'static,
) -> Result<ClientConfig, rustls::Error> {
    let verifier = Arc::new(Verifier::new(Box::new(judge)));
    ClientConfig::builder_with_provider(verifier.crypto.clone())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(vec![own.certificate], own.key)
}

/// Settings of the side that listens: every client must show a key, and only those that `judge` trusts come in.
///
/// # Errors
/// When this side's own key cannot be used.
pub fn peer_server(
    own: Own,
    judge: impl Fn([u8; 32]) -> Result<(), String> + Send + Sync + 'static,
) -> Result<ServerConfig, rustls::Error> {
    let verifier = Arc::new(Verifier::new(Box::new(judge)));
    let mut config = ServerConfig::builder_with_provider(verifier.crypto.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![own.certificate], own.key)?;
    // A ticket would let a peer in again whose key was revoked meanwhile.
    config.send_tls13_tickets = 0;
    Ok(config)
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
        let key = key_digest(certificate)?;
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
