//! Certificates, a listener, and sessions to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_link::{ConnectOptions, ListenOptions, Listener, Session, connect};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// What must come is waited for this long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// An authority, and whom it signed.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

impl Authority {
    pub fn new() -> Authority {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority { issuer: CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap() }
    }

    pub fn sign(&self) -> Identity {
        let key = KeyPair::generate().unwrap();
        let issuer: &Issuer<'_, KeyPair> = &self.issuer;
        let certificate =
            CertificateParams::new(vec!["agent".to_string()]).unwrap().signed_by(&key, issuer).unwrap();
        (vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        Arc::new(roots)
    }

    /// A listener's side that trusts what this authority signed.
    pub fn server(&self, (chain, key): Identity) -> Arc<ServerConfig> {
        let verifier = WebPkiClientVerifier::builder(self.roots()).build().unwrap();
        let builder = ServerConfig::builder().with_client_cert_verifier(verifier);
        Arc::new(builder.with_single_cert(chain, key).unwrap())
    }

    /// A dialling side that trusts what this authority signed.
    pub fn client(&self, (chain, key): Identity) -> Arc<ClientConfig> {
        let builder = ClientConfig::builder().with_root_certificates(self.roots());
        Arc::new(builder.with_client_auth_cert(chain, key).unwrap())
    }
}

pub fn name() -> ServerName<'static> {
    ServerName::try_from("agent").unwrap()
}

pub fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A listener and all that is needed to connect to it.
pub struct Stage {
    pub listener: Listener,
    pub connect: ConnectOptions,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::with(|_, _| {})
    }

    pub fn with(change: impl FnOnce(&mut ListenOptions, &mut ConnectOptions)) -> Stage {
        let authority = Authority::new();
        let mut listen = ListenOptions::new(authority.server(authority.sign()), vec![loopback()]);
        listen.name = "site-b".into();
        let mut connect = ConnectOptions::new(authority.client(authority.sign()), name(), vec![]);
        connect.name = "site-a".into();
        change(&mut listen, &mut connect);
        let listener = Listener::bind(&listen).unwrap();
        connect.targets = listener.addresses().to_vec();
        Stage { listener, connect }
    }

    /// A session: the side that dialled, and the other.
    pub fn session(&self) -> (Session, Session) {
        (connect(&self.connect).unwrap(), self.listener.accept().unwrap())
    }

    /// The same, for lines on which the first attempt may fail.
    pub fn session_in_the_end(&self) -> (Session, Session) {
        let until = Instant::now() + PATIENCE;
        loop {
            match connect(&self.connect) {
                Ok(session) => return (session, self.listener.accept().unwrap()),
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        }
    }
}

/// Waits for something that must come.
pub fn wait_for(what: &str, mut is_there: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_there() {
        assert!(Instant::now() < until, "{what} did not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}
