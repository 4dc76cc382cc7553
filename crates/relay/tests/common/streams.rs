//! TCP connections of tests, and bytes that go through them.
// Each test program uses a part of this.
#![allow(dead_code, clippy::unwrap_used)]

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// Generous: only what never comes runs into it.
pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn patient(stream: TcpStream) -> TcpStream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub fn connect_to(address: impl ToSocketAddrs) -> TcpStream {
    patient(TcpStream::connect(address).unwrap())
}

/// The next one that comes. One that never comes fails the test and does not hang it.
pub fn accept(listener: &TcpListener) -> TcpStream {
    set_socket_timeout(listener, Timeout::Recv, Some(PATIENCE)).unwrap();
    patient(listener.accept().unwrap().0)
}

fn tells_reset(error: &Error) -> bool {
    error.kind() == ErrorKind::ConnectionReset
}

pub fn is_reset(stream: &mut TcpStream) -> bool {
    stream.read(&mut [0; 8]).is_err_and(|error| tells_reset(&error))
}

/// Whether who connects is accepted and then reset. Where the reset is faster than the thread that connects,
/// connecting fails by it already.
pub fn is_turned_away(address: impl ToSocketAddrs) -> bool {
    match TcpStream::connect(address) {
        Ok(stream) => is_reset(&mut patient(stream)),
        Err(error) => tells_reset(&error),
    }
}

/// Bytes that are the same for the same seed, and nowhere alike.
pub fn noise(seed: u64, bytes: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut content: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| next().to_le_bytes()).collect();
    content.truncate(bytes);
    content
}

/// Sends all and then the end, from a thread of its own.
pub fn send(stream: &TcpStream, content: Vec<u8>) -> JoinHandle<()> {
    let mut stream = stream.try_clone().unwrap();
    std::thread::spawn(move || {
        stream.write_all(&content).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    })
}

pub fn read_all(mut stream: &TcpStream) -> Vec<u8> {
    let mut content = Vec::new();
    stream.read_to_end(&mut content).unwrap();
    content
}

/// Sends both ways at once, and looks that all arrives and nothing else.
pub fn exchange((near, far): (TcpStream, TcpStream), seed: u64, up: usize, down: usize) {
    let (up, down) = (noise(seed, up), noise(seed + 1, down));
    let sending = [send(&near, up.clone()), send(&far, down.clone())];
    let reading = std::thread::spawn(move || read_all(&far));
    assert!(read_all(&near) == down, "what came back differs");
    assert!(reading.join().unwrap() == up, "what arrived differs");
    sending.into_iter().for_each(|it| it.join().unwrap());
}
