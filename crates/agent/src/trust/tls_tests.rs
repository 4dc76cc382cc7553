use super::*;
use drover_link::ALPN;
use rustls::client::ResolvesClientCert;
use rustls::pki_types::ServerName;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConnection, ServerConnection, SignatureScheme};

fn only(key: Fingerprint) -> impl Fn(Fingerprint) -> Result<(), String> + Send + Sync + 'static {
    move |found| if found == key { Ok(()) } else { Err(format!("{found:?} is no peer")) }
}

/// Shakes hands in memory; the first error of each side.
fn handshake(
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
) -> (Result<(), String>, Result<(), String>) {
    let name = ServerName::try_from("drover").unwrap();
    let mut client = ClientConnection::new(client, name).unwrap();
    let mut server = ServerConnection::new(server).unwrap();
    let mut ends = (Ok(()), Ok(()));
    for _ in 0..10 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() && ends.1.is_ok() {
            server.read_tls(&mut rest).unwrap();
            ends.1 = server.process_new_packets().map(drop).map_err(|error| error.to_string());
        }
        let mut bytes = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut bytes).unwrap();
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() && ends.0.is_ok() {
            client.read_tls(&mut rest).unwrap();
            ends.0 = client.process_new_packets().map(drop).map_err(|error| error.to_string());
        }
    }
    if ends.0.is_ok() && ends.1.is_ok() {
        assert!(!client.is_handshaking() && !server.is_handshaking());
        assert_eq!(client.alpn_protocol(), Some(ALPN));
    }
    ends
}

#[test]
fn peers_that_trust_each_other_come_together() {
    let (a, b) = (Identity::fleeting().unwrap(), Identity::fleeting().unwrap());
    let client = client_config(&a, only(b.fingerprint())).unwrap();
    let server = server_config(&b, only(a.fingerprint())).unwrap();
    assert_eq!(handshake(client, server), (Ok(()), Ok(())));
}

#[test]
fn another_key_is_refused_on_either_side_with_the_reason() {
    let (a, b, c) =
        (Identity::fleeting().unwrap(), Identity::fleeting().unwrap(), Identity::fleeting().unwrap());
    let client = client_config(&a, only(b.fingerprint())).unwrap();
    let impostor = server_config(&c, only(a.fingerprint())).unwrap();
    let (seen, _) = handshake(client, impostor);
    assert!(seen.unwrap_err().contains("is no peer"));
    let stranger = client_config(&c, only(b.fingerprint())).unwrap();
    let server = server_config(&b, only(a.fingerprint())).unwrap();
    let (_, seen) = handshake(stranger, server);
    assert!(seen.unwrap_err().contains("is no peer"));
}

/// Certificates are public: who shows that of a peer has not its key.
#[test]
fn the_certificate_of_a_peer_is_of_no_use_without_its_key() {
    let (a, b, thief) =
        (Identity::fleeting().unwrap(), Identity::fleeting().unwrap(), Identity::fleeting().unwrap());
    let client = client_config(&a, only(b.fingerprint())).unwrap();
    let signing = client.crypto_provider().key_provider.load_private_key(thief.own().key).unwrap();
    let stolen = CertifiedKey::new(vec![a.own().certificate], signing);
    let mut client = ClientConfig::clone(&client);
    client.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(stolen));
    let server = server_config(&b, only(a.fingerprint())).unwrap();
    let (_, seen) = handshake(Arc::new(client), server);
    assert!(seen.unwrap_err().contains("Signature"), "the signature is what proves the key");
}

#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let (a, b) = (Identity::fleeting().unwrap(), Identity::fleeting().unwrap());
    let mut client = ClientConfig::clone(&client_config(&a, only(b.fingerprint())).unwrap());
    client.client_auth_cert_resolver = Arc::new(NoCertificate);
    let server = server_config(&b, only(a.fingerprint())).unwrap();
    let (_, seen) = handshake(Arc::new(client), server);
    assert!(seen.is_err());
}

/// Keys are what counts: a host whose clock is wrong, or whose certificate was made by one, is let in all the same.
#[test]
fn certificates_of_any_time_do() {
    let mut params = rcgen::CertificateParams::new(vec!["drover".to_string()]).unwrap();
    params.not_before = rcgen::date_time_ymd(1980, 1, 1);
    params.not_after = rcgen::date_time_ymd(1981, 1, 1);
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let (a, old) = (Identity::fleeting().unwrap(), Identity::with(&pair, params).unwrap());
    let client = client_config(&a, only(old.fingerprint())).unwrap();
    let server = server_config(&old, only(a.fingerprint())).unwrap();
    assert_eq!(handshake(client, server), (Ok(()), Ok(())));
    let client = client_config(&old, only(a.fingerprint())).unwrap();
    let server = server_config(&a, only(old.fingerprint())).unwrap();
    assert_eq!(handshake(client, server), (Ok(()), Ok(())));
}
