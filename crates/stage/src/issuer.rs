//! An OpenID Connect issuer on loopback: its discovery document, its one key, and tokens that it signs.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::SystemTime;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

fn part(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

pub struct Issuer {
    pub url: String,
    key: EcdsaKeyPair,
    stopping: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Issuer {
    pub fn start() -> Issuer {
        let key = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        let (x, y) = key.public_key().as_ref()[1..].split_at(32);
        let jwk = json!({ "kty": "EC", "crv": "P-256", "kid": "one", "x": part(x), "y": part(y) });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let documents = [
            (
                "/.well-known/openid-configuration",
                json!({ "issuer": url, "jwks_uri": format!("{url}/keys") }),
            ),
            ("/keys", json!({ "keys": [jwk] })),
        ];
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = stopping.clone();
        let thread = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept()
                && !stop.load(Ordering::SeqCst)
            {
                answer(stream, &documents);
            }
        });
        Issuer { url, key, stopping, thread }
    }

    /// A token for the audience `drover`.
    pub fn token(&self, subject: &str, groups: &[&str]) -> String {
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let claims =
            json!({ "iss": self.url, "aud": "drover", "sub": subject, "exp": now + 600, "groups": groups });
        let header = json!({ "alg": "ES256", "kid": "one" });
        let message = format!("{}.{}", part(header.to_string()), part(claims.to_string()));
        let signature = self.key.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
        format!("{message}.{}", part(signature))
    }

    /// Ends it: nobody listens there any more.
    pub fn stop(self) {
        self.stopping.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.url.trim_start_matches("http://")).unwrap());
        self.thread.join().unwrap();
    }
}

fn answer(mut stream: TcpStream, documents: &[(&str, Value)]) {
    let lines = BufReader::new(&stream).lines().map_while(Result::ok);
    let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let found = documents.iter().find(|(own, _)| *own == path);
    let (status, body) =
        found.map_or(("404 Not Found", String::new()), |(_, document)| ("200 OK", document.to_string()));
    let length = body.len();
    // Who asked may be gone.
    let _ =
        write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}");
}
