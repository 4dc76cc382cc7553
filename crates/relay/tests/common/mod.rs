//! Relays, servers and clients on the loopback interface.
// Each test program uses a part of this.
#![allow(dead_code, clippy::unwrap_used)]

mod streams;

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use drover_relay::{Destination, Line, Relay, RelayOptions, Snapshot};

#[allow(unused_imports)]
pub use streams::*;

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
