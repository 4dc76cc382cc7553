//! Measures a session over loopback with TLS: bytes a second and processor time, for one channel.
//!
//! `cargo run --release -p drover-link --example line -- [seconds] [stripes] [body bytes]`
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use drover_link::{ConnectOptions, ListenOptions, Listener, Order, Session, StripeBounds, connect};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

fn sessions(stripes: usize) -> (Session, Session, Listener) {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(issuer.der().clone()).unwrap();
    let roots = Arc::new(roots);
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["agent".to_string()]).unwrap().signed_by(&key, &issuer).unwrap();
    let chain = vec![certificate.der().clone()];
    let key = || PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let verifier = WebPkiClientVerifier::builder(roots.clone()).build().unwrap();
    let server =
        ServerConfig::builder().with_client_cert_verifier(verifier).with_single_cert(chain.clone(), key());
    let client = ClientConfig::builder().with_root_certificates(roots).with_client_auth_cert(chain, key());
    let listen = ListenOptions::new(Arc::new(server.unwrap()), vec!["127.0.0.1:0".parse().unwrap()]);
    let listener = Listener::bind(&listen).unwrap();
    let name = ServerName::try_from("agent").unwrap();
    let mut options = ConnectOptions::new(Arc::new(client.unwrap()), name, listener.addresses().to_vec());
    options.stripes = StripeBounds::fixed(stripes);
    let one = connect(&options).unwrap();
    let two = listener.accept().unwrap();
    (one, two, listener)
}

fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let ticks: u64 = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|it| it.parse::<u64>().unwrap())
        .sum();
    Duration::from_millis(ticks * 10)
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|it| it.parse::<usize>().unwrap());
    let seconds = arguments.next().unwrap_or(5);
    let stripes = arguments.next().unwrap_or(4);
    let bytes = arguments.next().unwrap_or(256 << 10);
    let (one, two, _listener) = sessions(stripes);
    for order in [Order::Messages, Order::Stream] {
        let (sender, _keep) = one.open(order, b"").unwrap().split();
        let (_keep_too, mut receiver) = two.accept().unwrap().channel.split();
        let (start, before) = (Instant::now(), processor_time());
        let until = start + Duration::from_secs(seconds as u64);
        let total = thread::scope(|scope| {
            scope.spawn(|| {
                let body = vec![7; bytes];
                while Instant::now() < until {
                    match order {
                        Order::Messages => sender.send(b"head", &body).unwrap(),
                        Order::Stream => sender.write_all(&body).unwrap(),
                    }
                }
                sender.finish().unwrap();
            });
            let (mut total, mut buffer) = (0, vec![0; 256 << 10]);
            loop {
                let more = match order {
                    Order::Messages => receiver.receive().unwrap().map_or(0, |message| message.body.len()),
                    Order::Stream => receiver.read(&mut buffer).unwrap(),
                };
                if more == 0 {
                    return total;
                }
                total += more;
            }
        });
        let (time, processor) = (start.elapsed().as_secs_f64(), processor_time() - before);
        let gigabytes = total as f64 / 1e9;
        println!(
            "{order:?}: {stripes} connections, pieces of {bytes} bytes: {:.2} GB/s, {:.2} processor seconds a GB (both ends)",
            gigabytes / time,
            processor.as_secs_f64() / gigabytes
        );
    }
    let stats = one.stats();
    println!(
        "congestion control {}, {} frames sent again, notes {:?}",
        stats.stripes[0].congestion, stats.repeated_frames, stats.notes
    );
}
