//! Relays, servers and clients on the loopback interface.
// Each test program uses a part of this.
#![allow(dead_code, clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use drover_relay::{Destination, Line, Relay, RelayOptions, Snapshot};

pub const MIB: usize = 1 << 20;

/// Generous: only what never comes runs into it.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Options for a relay on a free port to these addresses.
pub fn options(targets: &[SocketAddr]) -> RelayOptions {
    let listen = SocketAddr::new(targets[0].ip(), 0);
    let mut options =
        RelayOptions::new(vec![Line { listen, to: Destination::Fixed { addresses: targets.into() } }]);
    options.workers = 2;
    options
}

pub fn start(options: &RelayOptions) -> Relay {
    Relay::start(options).unwrap()
}

/// A relay to one target, and a client of it.
pub fn relay_to(target: &TcpListener) -> Relay {
    start(&options(&[target.local_addr().unwrap()]))
}

pub fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

pub fn client(relay: &Relay) -> TcpStream {
    let stream = TcpStream::connect(relay.addresses()[0]).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A client, and its counterpart at the target.
pub fn pair(relay: &Relay, target: &TcpListener) -> (TcpStream, TcpStream) {
    let near = client(relay);
    let (far, _) = target.accept().unwrap();
    far.set_read_timeout(Some(PATIENCE)).unwrap();
    far.set_write_timeout(Some(PATIENCE)).unwrap();
    (near, far)
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

/// Waits until a snapshot is as it should be, and gives it.
pub fn wait_for(relay: &Relay, what: &str, is_there: impl Fn(&Snapshot) -> bool) -> Snapshot {
    let until = Instant::now() + PATIENCE;
    loop {
        let snapshot = relay.snapshot(16);
        if is_there(&snapshot) {
            return snapshot;
        }
        assert!(Instant::now() < until, "{what} never came: {snapshot:#?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
