//! A web server for tests that answers as it is told, over TCP or TLS.
// Each test program uses a part of this.
#![allow(dead_code)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// What to answer to a request head (the request's number, its text): the bytes, and whether to go on.
pub type Script = dyn Fn(usize, &str) -> (Vec<u8>, After) + Send + Sync;

/// What follows an answer.
#[derive(Clone, Copy, PartialEq)]
pub enum After {
    KeepOpen,
    Close,
    /// Send this byte for ever.
    Trickle,
    /// Neither send nor close.
    Hang,
}

pub struct Server {
    pub address: SocketAddr,
    pub connections: Arc<AtomicUsize>,
    pub requests: Arc<Mutex<Vec<String>>>,
}

trait Duplex: Read + Write {}
impl<T: Read + Write> Duplex for T {}

impl Server {
    pub fn start(script: impl Fn(usize, &str) -> (Vec<u8>, After) + Send + Sync + 'static) -> Server {
        Server::start_with(None, Arc::new(script))
    }

    pub fn start_tls(
        config: ServerConfig,
        script: impl Fn(usize, &str) -> (Vec<u8>, After) + Send + Sync + 'static,
    ) -> Server {
        Server::start_with(Some(Arc::new(config)), Arc::new(script))
    }

    fn start_with(tls: Option<Arc<ServerConfig>>, script: Arc<Script>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server {
            address: listener.local_addr().unwrap(),
            connections: Arc::default(),
            requests: Arc::default(),
        };
        let (connections, requests) = (server.connections.clone(), server.requests.clone());
        // Ends with the test program.
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                connections.fetch_add(1, Ordering::SeqCst);
                let (tls, script, requests) = (tls.clone(), script.clone(), requests.clone());
                thread::spawn(move || match tls {
                    None => serve(socket, &*script, &requests),
                    Some(config) => {
                        let connection = ServerConnection::new(config).unwrap();
                        serve(StreamOwned::new(connection, socket), &*script, &requests);
                    }
                });
            }
        });
        server
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

fn serve(mut stream: impl Duplex, script: &Script, requests: &Mutex<Vec<String>>) {
    let mut seen = Vec::new();
    let mut byte = [0];
    while let Ok(1) = stream.read(&mut byte) {
        seen.push(byte[0]);
        if !seen.ends_with(b"\r\n\r\n") {
            continue;
        }
        let head = String::from_utf8_lossy(&seen).to_string();
        seen.clear();
        let number = {
            let mut all = requests.lock().unwrap();
            all.push(head.clone());
            all.len() - 1
        };
        let (answer, after) = script(number, &head);
        if stream.write_all(&answer).and_then(|()| stream.flush()).is_err() {
            return;
        }
        match after {
            After::KeepOpen => {}
            After::Close => return,
            After::Hang => thread::sleep(std::time::Duration::from_secs(60)),
            After::Trickle => {
                while stream.write_all(b"x").and_then(|()| stream.flush()).is_ok() {
                    thread::sleep(std::time::Duration::from_millis(20));
                }
                return;
            }
        }
    }
}

/// An answer with a body and its length.
pub fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut out =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}\r\n", body.len()).into_bytes();
    out.extend_from_slice(body);
    out
}

/// A good answer to HEAD or to a GET of a range of `content`.
pub fn file(content: &[u8], head: &str) -> Vec<u8> {
    if head.starts_with("HEAD") {
        let length = content.len();
        return format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nETag: \"e1\"\r\nAccept-Ranges: bytes\r\n\r\n"
        )
        .into_bytes();
    }
    let (first, last) = range(head);
    let told = format!("Content-Range: bytes {first}-{last}/{}\r\n", content.len());
    answer("206 Partial Content", &told, &content[first..=last])
}

/// First and last byte that a request asks for.
pub fn range(head: &str) -> (usize, usize) {
    let line = head.lines().find_map(|line| line.strip_prefix("Range: bytes=")).expect("a range");
    let (first, last) = line.split_once('-').unwrap();
    (first.parse().unwrap(), last.parse().unwrap())
}
