//! Who a connection is with, and that it is a link at all.

use std::sync::Arc;

use drover_tls::key_digest;
use drover_wire::TEXT_BYTES_MAX;
use rustls::client::Resumption;
use rustls::pki_types::CertificateDer;
use rustls::server::{NoServerSessionStorage, ProducesTickets};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, CommonState, Error, ProtocolVersion, ServerConfig,
};

use crate::error::{LinkError, LinkErrorKind};

/// The name of the protocol within TLS.
pub const ALPN: &[u8] = b"drover-link/1";

/// SHA-256 of a certificate's public key (SubjectPublicKeyInfo).
///
/// # Errors
/// `Refused` if it is no certificate.
pub fn fingerprint(certificate: &CertificateDer<'_>) -> Result<[u8; 32], LinkError> {
    key_digest(certificate).map_err(|error| {
        LinkError::new(LinkErrorKind::Refused, format!("the peer's certificate cannot be read: {error}"))
    })
}

/// Of the peer of a connection whose handshake is done. Nothing but TLS 1.3 with a certificate will do.
pub fn proven(common: &CommonState) -> Result<[u8; 32], LinkError> {
    let refused = |text: &str| Err(LinkError::new(LinkErrorKind::Refused, text));
    if common.protocol_version() != Some(ProtocolVersion::TLSv1_3) {
        return refused("the peer does not speak TLS 1.3");
    }
    if common.alpn_protocol() != Some(ALPN) {
        return refused("the peer speaks TLS, but not the protocol of links");
    }
    match common.peer_certificates().and_then(|all| all.first()) {
        Some(certificate) => fingerprint(certificate),
        None => refused("the peer showed no certificate"),
    }
}

/// Each connection proves who it is with: no tickets of earlier ones, which outlive a revoked key.
pub fn client(config: &ClientConfig) -> Arc<ClientConfig> {
    let mut config = config.clone();
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    // For our own records.
    config.enable_secret_extraction = true;
    Arc::new(config)
}

/// The same for the side that listens.
pub fn server(config: &ServerConfig) -> Arc<ServerConfig> {
    let mut config = config.clone();
    config.alpn_protocols = vec![ALPN.to_vec()];
    // Neither given out nor taken: whatever the caller's configuration has of earlier sessions is of no use here.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = Arc::new(NoTickets);
    config.max_early_data_size = 0;
    // For our own records.
    config.enable_secret_extraction = true;
    Arc::new(config)
}

/// Makes no tickets and takes none.
#[derive(Debug)]
struct NoTickets;

impl ProducesTickets for NoTickets {
    fn enabled(&self) -> bool {
        false
    }

    fn lifetime(&self) -> u32 {
        0
    }

    fn encrypt(&self, _plain: &[u8]) -> Option<Vec<u8>> {
        None
    }

    fn decrypt(&self, _cipher: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// Whether a failed handshake was about who the peer is, or who we are to it; and then why.
pub fn refusal(error: &std::io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    let text = match error {
        Error::InvalidCertificate(CertificateError::Revoked) => "the peer's key was revoked".into(),
        // What a verifier of ours says rustls shows as a programmer would see it.
        Error::InvalidCertificate(CertificateError::Other(why)) => {
            format!("the peer is not the one that was expected: {}", why.0)
        }
        Error::InvalidCertificate(why) => format!("the peer is not the one that was expected: {why}"),
        Error::NoCertificatesPresented => "the peer showed no certificate".into(),
        Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRevoked => "the peer refused us: our key was revoked there".into(),
            AlertDescription::AccessDenied
            | AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRequired
            | AlertDescription::DecryptError => "the peer refused us: our key is not known there".into(),
            AlertDescription::NoApplicationProtocol => "the peer does not speak the protocol of links".into(),
            _ => return None,
        },
        Error::NoApplicationProtocol => "the peer does not speak the protocol of links".into(),
        _ => return None,
    };
    Some(shortened(text))
}

/// A text that fits where texts go on the line.
pub fn shortened(mut text: String) -> String {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

#[cfg(test)]
mod tests {
    use rustls::server::{ResolvesServerCertUsingSni, ServerSessionMemoryCache};

    use super::*;

    /// What a careless caller could hand over: everything that lets a client in without showing its certificate.
    #[derive(Debug)]
    struct AllTickets;

    impl ProducesTickets for AllTickets {
        fn enabled(&self) -> bool {
            true
        }

        fn lifetime(&self) -> u32 {
            3600
        }

        fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
            Some(plain.to_vec())
        }

        fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
            Some(cipher.to_vec())
        }
    }

    #[test]
    fn a_refusal_is_told_in_words_and_not_as_a_program_sees_it() {
        let why = rustls::OtherError(Arc::new(std::io::Error::other("its key is abc")));
        let refused = Error::InvalidCertificate(CertificateError::Other(why));
        let text = refusal(&std::io::Error::other(refused)).unwrap();
        assert_eq!(text, "the peer is not the one that was expected: its key is abc");
        let alert = std::io::Error::other(Error::AlertReceived(AlertDescription::AccessDenied));
        assert!(!refusal(&alert).unwrap().contains("AccessDenied"));
    }

    #[test]
    fn no_session_of_tls_is_ever_resumed_whatever_the_caller_set() {
        let builder = ServerConfig::builder().with_no_client_auth();
        let mut careless = builder.with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new()));
        careless.session_storage = ServerSessionMemoryCache::new(100);
        careless.ticketer = Arc::new(AllTickets);
        careless.send_tls13_tickets = 4;
        careless.max_early_data_size = 1000;
        let config = server(&careless);
        assert!(!config.session_storage.can_cache() && !config.ticketer.enabled());
        assert_eq!((config.ticketer.decrypt(b"any"), config.session_storage.get(b"any")), (None, None));
        assert_eq!((config.send_tls13_tickets, config.max_early_data_size), (0, 0));
    }
}
