//! Connections, trust and bounds of the client.
#![allow(clippy::unwrap_used)]

mod server;

use std::sync::atomic::Ordering;
use std::time::Duration;

use drover_http::{Client, Endpoint, HttpErrorKind, Refusal, Request, Thumbprint, Timeouts, Trust, Why};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use server::{After, Server, answer};

struct Certificates {
    ca_pem: String,
    config: ServerConfig,
}

/// A CA and a server certificate for `name`, good until the year `until`.
fn certificates(name: &str, until: i32) -> Certificates {
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(vec![name.to_string()]).unwrap();
    leaf.not_after = rcgen::date_time_ymd(until, 1, 1);
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    Certificates { ca_pem: issuer.pem(), config: shows(leaf.der().clone(), &key) }
}

/// A server certificate that signed itself, and calls itself an authority as those of many hosts do.
fn self_signed(name: &str, until: i32) -> Certificates {
    let key = KeyPair::generate().unwrap();
    let mut own = CertificateParams::new(vec![name.to_string()]).unwrap();
    own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    own.not_after = rcgen::date_time_ymd(until, 1, 1);
    let own = own.self_signed(&key).unwrap();
    Certificates { ca_pem: own.pem(), config: shows(own.der().clone(), &key) }
}

fn shows(certificate: CertificateDer<'static>, key: &KeyPair) -> ServerConfig {
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap()
}

fn tls_server(name: &str, until: i32) -> (Server, Trust) {
    serving(certificates(name, until), &format!("{name}-{until}"))
}

fn serving(Certificates { ca_pem, config }: Certificates, file: &str) -> (Server, Trust) {
    let path = std::env::temp_dir().join(format!("drover-http-{}-{file}.pem", std::process::id()));
    std::fs::write(&path, ca_pem).unwrap();
    (Server::start_tls(config, |_, _| (answer("200 OK", "", b"hello"), After::KeepOpen)), Trust::CaFile(path))
}

/// Gives up what says nothing.
fn soon_stalled() -> Timeouts {
    Timeouts { stall: Duration::from_secs(3), ..patient() }
}

/// Gives up what never ends, however it goes on.
fn soon_endless() -> Timeouts {
    Timeouts { answer: Duration::from_secs(4), ..patient() }
}

fn patient() -> Timeouts {
    let minutes = Duration::from_secs(120);
    Timeouts { connect: minutes, stall: minutes, answer: minutes }
}

fn ask(server: &Server, https: bool, trust: &Trust) -> Result<Vec<u8>, HttpErrorKind> {
    ask_within(Timeouts::default(), server, https, trust)
}

fn ask_within(
    timeouts: Timeouts,
    server: &Server,
    https: bool,
    trust: &Trust,
) -> Result<Vec<u8>, HttpErrorKind> {
    let endpoint = Endpoint { https, host: "127.0.0.1".to_string(), port: server.address.port() };
    let client = Client::new(endpoint, trust, timeouts).map_err(|error| error.kind)?;
    client.send(&Request::get("/")).map(|response| response.body).map_err(|error| error.kind)
}

/// Why the server's certificate is not believed.
fn refused(server: &Server, trust: &Trust) -> Why {
    match ask(server, true, trust) {
        Err(HttpErrorKind::Certificate(refusal)) => refusal.why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_certificate_of_a_known_authority_is_trusted_and_no_other() {
    let (server, trust) = tls_server("127.0.0.1", 2100);
    assert_eq!(ask(&server, true, &trust).unwrap(), b"hello");
    let (_, other) = tls_server("127.0.0.1", 2101);
    assert_eq!(refused(&server, &other), Why::Untrusted);
    assert_eq!(ask(&server, true, &Trust::Insecure).unwrap(), b"hello");
    let Trust::CaFile(path) = trust else { return };
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_self_signed_certificate_that_is_given_is_trusted_for_its_name_and_time() {
    let (server, trust) = serving(self_signed("127.0.0.1", 2100), "own");
    assert_eq!(ask(&server, true, &trust).unwrap(), b"hello");
    let (_, other) = serving(self_signed("127.0.0.1", 2100), "own-other");
    assert_eq!(refused(&server, &other), Why::Untrusted);
    let (server, trust) = serving(self_signed("127.0.0.1", 2001), "own-old");
    assert_eq!(refused(&server, &trust), Why::Expired);
    let (server, trust) = serving(self_signed("other.example", 2100), "own-named");
    assert_eq!(refused(&server, &trust), Why::WrongName);
}

#[test]
fn expired_certificates_and_wrong_names_are_told_apart() {
    let (server, trust) = tls_server("127.0.0.1", 2001);
    assert_eq!(refused(&server, &trust), Why::Expired);
    let (server, trust) = tls_server("other.example", 2100);
    assert_eq!(refused(&server, &trust), Why::WrongName);
}

#[test]
fn a_thumbprint_pins_the_one_certificate_that_a_mismatch_shows() {
    let (server, _) = tls_server("other.example", 2001);
    let wrong = Trust::Thumbprint(Thumbprint::Sha1([0; 20]));
    let Err(HttpErrorKind::Certificate(Refusal { why: Why::OtherThumbprint, presented, .. })) =
        ask(&server, true, &wrong)
    else {
        panic!("no mismatch")
    };
    for right in [Thumbprint::Sha1(presented.sha1), Thumbprint::Sha256(presented.sha256)] {
        assert_eq!(ask(&server, true, &Trust::Thumbprint(right)).unwrap(), b"hello");
    }
}

#[test]
fn plain_text_on_a_tls_port_is_a_tls_error() {
    let server = Server::start(|_, _| (answer("400 Bad Request", "", b""), After::Close));
    let endpoint = Endpoint { https: true, host: "127.0.0.1".to_string(), port: server.address.port() };
    // The server waits for a line end that a TLS hello has not.
    let timeouts = Timeouts { connect: Duration::from_secs(3), ..patient() };
    let error = Client::new(endpoint, &Trust::Insecure, timeouts).unwrap().connect().err().unwrap();
    assert!(
        matches!(error.kind, HttpErrorKind::Tls | HttpErrorKind::Unreachable | HttpErrorKind::Closed),
        "{error}"
    );
}

#[test]
fn a_closed_idle_connection_is_replaced_for_idempotent_requests() {
    let server = Server::start(|_, _| (answer("200 OK", "", b"x"), After::Close));
    let endpoint = Endpoint { https: false, host: "127.0.0.1".to_string(), port: server.address.port() };
    let client = Client::new(endpoint, &Trust::System, Timeouts::default()).unwrap();
    for _ in 0..5 {
        assert_eq!(client.send(&Request::get("/")).unwrap().body, b"x");
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 5);
}

#[test]
fn kept_alive_connections_are_used_again() {
    let server = Server::start(|_, _| (answer("200 OK", "", b"x"), After::KeepOpen));
    let endpoint = Endpoint { https: false, host: "127.0.0.1".to_string(), port: server.address.port() };
    let client = Client::new(endpoint, &Trust::System, Timeouts::default()).unwrap();
    for _ in 0..5 {
        client.send(&Request::post("/", "").with_header("A", "b")).unwrap();
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 1);
    let smuggling = Request::get("/").with_header("A", "b\r\nC: d");
    assert_eq!(client.send(&smuggling).unwrap_err().kind, HttpErrorKind::BadUrl);
}

#[test]
fn an_answer_that_never_ends_is_ended() {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n";
    let endless = Server::start(|_, _| (head.to_vec(), After::Trickle));
    let ended = ask_within(soon_endless(), &endless, false, &Trust::System);
    assert!(matches!(ended, Err(HttpErrorKind::Endless(_))), "{ended:?}");
    let silent = Server::start(|_, _| (head.to_vec(), After::Hang));
    let stalled = ask_within(soon_stalled(), &silent, false, &Trust::System);
    assert!(matches!(stalled, Err(HttpErrorKind::Stalled(_))), "{stalled:?}");
}

#[test]
fn names_without_address_and_ports_without_listener_are_told_apart() {
    let ask = |host: &str, port| {
        let endpoint = Endpoint { https: false, host: host.to_string(), port };
        Client::new(endpoint, &Trust::System, patient()).unwrap().connect().err().unwrap().kind
    };
    assert_eq!(ask("127.0.0.1", 1), HttpErrorKind::Refused);
    assert_eq!(ask("no-such-host.invalid", 443), HttpErrorKind::UnknownHost);
}
