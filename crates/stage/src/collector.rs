//! A collector of OpenTelemetry on loopback, and the spans that it was sent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use serde_json::Value;

pub struct Collector {
    pub url: String,
    spans: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    /// It ends with the test.
    pub fn start() -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let spans = Arc::<Mutex<Vec<Value>>>::default();
        let kept = spans.clone();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let document = take(stream);
                let scope = &document["resourceSpans"][0]["scopeSpans"][0];
                kept.lock().unwrap().extend(scope["spans"].as_array().unwrap().clone());
            }
        });
        Collector { url, spans }
    }

    pub fn spans(&self) -> Vec<Value> {
        self.spans.lock().unwrap().clone()
    }
}

fn take(mut stream: TcpStream) -> Value {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let head: Vec<String> =
        (&mut reader).lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    assert_eq!(head[0], "POST /v1/traces HTTP/1.1", "{head:?}");
    let length = |line: &String| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok();
    let mut body = vec![0; head.iter().find_map(length).unwrap()];
    reader.read_exact(&mut body).unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}").unwrap();
    serde_json::from_slice(&body).unwrap()
}
