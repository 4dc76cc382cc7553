//! A web server on loopback, whose answers a test plays.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// A request.
pub struct Asked {
    /// `GET`, `POST`.
    pub method: String,
    /// The path, with the query.
    pub path: String,
    /// All of its head.
    pub head: String,
    /// Its body.
    pub body: Vec<u8>,
}

/// Answers each request with a status and a text, until the test program ends; gives the server's URL, without a slash at its end.
///
/// # Errors
/// If no port is free.
pub fn serve(answer: impl Fn(Asked) -> (u16, String) + Send + Sync + 'static) -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}", listener.local_addr()?);
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            // Whoever asked may be gone before the answer.
            thread::spawn(move || serve_one(stream, &*answer));
        }
    });
    Ok(url)
}

fn serve_one(mut stream: TcpStream, answer: &impl Fn(Asked) -> (u16, String)) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }
        let length = |line: &str| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok();
        let mut body = vec![0; head.lines().find_map(length).unwrap_or(0)];
        reader.read_exact(&mut body)?;
        let mut words = head.split(' ').map(str::to_string);
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (status, text) = answer(Asked { method, path, head, body });
        let length = text.len();
        stream
            .write_all(format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n\r\n{text}").as_bytes())?;
    }
}
