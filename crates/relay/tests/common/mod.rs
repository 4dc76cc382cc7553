//! Relays, servers and clients on the loopback interface.
// Each test program uses a part of this.
#![allow(dead_code, clippy::unwrap_used)]

mod streams;

use std::io::{ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use drover_relay::{Destination, Line, Relay, RelayOptions, Snapshot, Waiting};

#[allow(unused_imports)]
pub use streams::*;

/// Whoever is at the other end of a link.
pub fn peer() -> drover_link::Peer {
    drover_link::Peer { name: "a".to_string(), fingerprint: [1; 32], version: 1, announced: Vec::new() }
}

pub const MIB: usize = 1 << 20;

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

/// A port that refuses: for as long as this lives it is taken, and nobody listens there.
pub struct Refusing {
    pub address: SocketAddr,
    _socket: OwnedFd,
}

pub fn refusing() -> Refusing {
    use rustix::net::{AddressFamily, SocketType, bind, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    Refusing { address: drover_tcp::local_address(&socket).unwrap(), _socket: socket }
}

pub fn client(relay: &Relay) -> TcpStream {
    connect_to(relay.addresses()[0])
}

pub fn turns_away(relay: &Relay) -> bool {
    is_turned_away(relay.addresses()[0])
}

/// A client, and its counterpart at the target.
pub fn pair(relay: &Relay, target: &TcpListener) -> (TcpStream, TcpStream) {
    let near = client(relay);
    (near, accept(target))
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

/// Whether a connection waits for its target to take what its client sent.
pub fn is_full_up(told: &Snapshot) -> bool {
    told.connections.iter().any(|it| it.up.waiting == Waiting::Target)
}

/// Whether a connection waits for its client to take what its target sent.
pub fn is_full_down(told: &Snapshot) -> bool {
    told.connections.iter().any(|it| it.down.waiting == Waiting::Target)
}

/// Writes ones until the relay is as it should be and nothing more is taken; gives how much went.
pub fn stuff(
    relay: &Relay,
    mut stream: &TcpStream,
    what: &str,
    is_there: impl Fn(&Snapshot) -> bool,
) -> (usize, Snapshot) {
    stream.set_nonblocking(true).unwrap();
    let (until, mut all, mut stuck) = (Instant::now() + PATIENCE, 0, 0);
    loop {
        let snapshot = relay.snapshot(50);
        match stream.write(&[1; 64 << 10]) {
            Ok(bytes) => (all, stuck) = (all + bytes, 0),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                stuck = if is_there(&snapshot) { stuck + 1 } else { 0 };
                if stuck == 5 {
                    stream.set_nonblocking(false).unwrap();
                    return (all, snapshot);
                }
                assert!(Instant::now() < until, "{what} never came: {snapshot:#?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}
