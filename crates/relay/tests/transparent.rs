//! A relay as a router hop: client, router and server in network namespaces.
#![allow(clippy::unwrap_used)]

mod common;
#[path = "common/net.rs"]
mod net;

use std::io::Write;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{is_turned_away, noise, read_all};
use drover_relay::transparent::{Catch, Lease, Method, Rules, clean};
use drover_relay::{Destination, Line, Refusal, Relay, RelayOptions, Totals, any_address};
use net::{Net, SERVERS, server};

const PORT: u16 = 8000;
/// One that is not caught.
const OTHER_PORT: u16 = 9000;

/// A server that tells each client both addresses as it sees them, and then gives back what it gets.
fn serve(net: &Net) {
    serve_in(&net.server);
}

fn serve_in(name: &str) {
    for port in [PORT, OTHER_PORT] {
        for address in [any_address(true), any_address(false)] {
            Net::within(name, move || {
                let listener = match address {
                    IpAddr::V4(_) => TcpListener::bind((address, port)).unwrap(),
                    IpAddr::V6(_) => listen_v6(port),
                };
                std::thread::spawn(move || listener.incoming().for_each(|stream| attend(stream.unwrap())));
            });
        }
    }
}

fn listen_v6(port: u16) -> TcpListener {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket, sockopt::set_ipv6_v6only};
    let socket = socket(AddressFamily::INET6, SocketType::STREAM, None).unwrap();
    set_ipv6_v6only(&socket, true).unwrap();
    bind(&socket, &SocketAddr::new(any_address(false), port)).unwrap();
    listen(&socket, 512).unwrap();
    socket.into()
}

fn attend(mut stream: TcpStream) {
    std::thread::spawn(move || {
        let seen = format!("{} {}\n", stream.peer_addr().unwrap().ip(), stream.local_addr().unwrap());
        // A client that goes away is its own business.
        let _ = stream.write_all(seen.as_bytes());
        let _ = std::io::copy(&mut stream.try_clone().unwrap(), &mut stream);
        let _ = stream.shutdown(Shutdown::Write);
    });
}

/// Connects, sends noise, and gives what the server saw.
fn visit(address: SocketAddr, bytes: usize) -> String {
    let stream = TcpStream::connect_timeout(&address, common::PATIENCE).unwrap();
    stream.set_read_timeout(Some(common::PATIENCE)).unwrap();
    let content = noise(bytes as u64, bytes);
    let sending = common::send(&stream, content.clone());
    let read = read_all(&stream);
    sending.join().unwrap();
    let seen = read.iter().position(|byte| *byte == b'\n').unwrap();
    assert!(read[seen + 1..] == content, "what came back from {address} differs");
    String::from_utf8(read[..seen].to_vec()).unwrap()
}

fn visit_from(name: &str, address: SocketAddr) -> String {
    Net::within(name, move || visit(address, 300_000))
}

/// A relay in the router's namespace, with its rules.
struct Hop {
    relay: Relay,
    rules: Rules,
    _lease: Lease,
}

impl Hop {
    fn start(method: Method, keep_source: bool) -> Hop {
        let lease = Lease::take().unwrap();
        let to = match method {
            Method::Redirect { .. } => Destination::Redirected,
            Method::Tproxy => Destination::Intercepted { keep_source },
        };
        let line = |is_ipv4| Line { listen: SocketAddr::new(any_address(is_ipv4), 0), to: to.clone() };
        let mut options = RelayOptions::new(vec![line(true), line(false)]);
        options.mark = matches!(method, Method::Redirect { local: true }).then(|| lease.mark());
        let relay = Relay::start(&options).unwrap();
        let ports: Vec<u16> = relay.addresses().iter().map(SocketAddr::port).collect();
        let matches = vec![format!("port {PORT}").parse().unwrap()];
        let (v4, v6) = (Some(ports[0]), Some(ports[1]));
        let catch = Catch { method, matches, port_v4: v4, port_v6: v6, number: lease.number };
        Hop { relay, rules: Rules::make(catch).unwrap(), _lease: lease }
    }

    /// Starts one in a namespace; it stops when it gets a word.
    fn within(net: &Net, method: Method, keep_source: bool) -> Running {
        let (ready, started) = std::sync::mpsc::channel();
        let (stop, stopping) = std::sync::mpsc::channel::<()>();
        let thread = Net::spawn(&net.router, move || {
            let hop = Hop::start(method, keep_source);
            ready.send((hop.relay.teller(), hop.relay.addresses().to_vec())).unwrap();
            let _ = stopping.recv();
            hop.rules.remove().unwrap();
            hop.relay.stop(Duration::ZERO).unwrap();
        });
        let (teller, addresses) = started.recv().unwrap();
        Running { teller, addresses, stop, thread }
    }
}

struct Running {
    teller: drover_relay::Teller,
    addresses: Vec<SocketAddr>,
    stop: std::sync::mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Running {
    fn wait_for(&self, what: &str, is_there: impl Fn(&Totals) -> bool) {
        let until = Instant::now() + common::PATIENCE;
        loop {
            let told = self.teller.snapshot(100);
            if is_there(&told.totals) {
                return;
            }
            assert!(Instant::now() < until, "{what} never came: {told:#?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(self) {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

fn assert_clean(net: &Net) {
    assert_eq!(Net::output(&net.router, "nft list tables"), "");
    for family in ["-4", "-6"] {
        let rules = Net::output(&net.router, &format!("ip {family} rule show"));
        assert!(!rules.contains("fwmark"), "{rules}");
    }
}

/// What the server sees without a relay.
fn direct(is_ipv4: bool, host: u8, port: u16) -> String {
    let client = if is_ipv4 { "10.1.0.2" } else { "fd00:1::2" };
    format!("{client} {}", SocketAddr::new(server(is_ipv4, host), port))
}

fn relayed(is_ipv4: bool, host: u8) -> String {
    let router = if is_ipv4 { "10.2.0.1" } else { "fd00:2::1" };
    format!("{router} {}", SocketAddr::new(server(is_ipv4, host), PORT))
}

#[test]
fn redirected_connections_reach_where_they_were_meant_to_go() {
    let Some(net) = Net::new() else { return };
    serve(&net);
    let hop = Hop::within(&net, Method::Redirect { local: false }, false);
    for is_ipv4 in [true, false] {
        for host in [2, 5] {
            let address = SocketAddr::new(server(is_ipv4, host), PORT);
            assert_eq!(visit_from(&net.client, address), relayed(is_ipv4, host));
        }
        // What is not caught goes its own way.
        let address = SocketAddr::new(server(is_ipv4, 2), OTHER_PORT);
        assert_eq!(visit_from(&net.client, address), direct(is_ipv4, 2, OTHER_PORT));
    }
    hop.wait_for("four clients", |it| it.accepted == 4);
    hop.stop();
    assert_clean(&net);
    let address = SocketAddr::new(server(true, 2), PORT);
    assert_eq!(visit_from(&net.client, address), direct(true, 2, PORT));
}

#[test]
fn intercepted_connections_reach_where_they_were_meant_to_go() {
    let Some(net) = Net::new() else { return };
    serve(&net);
    let hop = Hop::within(&net, Method::Tproxy, false);
    for is_ipv4 in [true, false] {
        let address = SocketAddr::new(server(is_ipv4, 4), PORT);
        assert_eq!(visit_from(&net.client, address), relayed(is_ipv4, 4));
        let address = SocketAddr::new(server(is_ipv4, 2), OTHER_PORT);
        assert_eq!(visit_from(&net.client, address), direct(is_ipv4, 2, OTHER_PORT));
    }
    hop.wait_for("two clients", |it| it.accepted == 2);
    hop.stop();
    assert_clean(&net);
}

#[test]
fn a_kept_source_is_what_the_server_sees() {
    let Some(net) = Net::new() else { return };
    serve(&net);
    let hop = Hop::within(&net, Method::Tproxy, true);
    for is_ipv4 in [true, false] {
        let address = SocketAddr::new(server(is_ipv4, 3), PORT);
        assert_eq!(visit_from(&net.client, address), direct(is_ipv4, 3, PORT));
    }
    hop.wait_for("both visits", |it| (it.connected, it.up_bytes) == (2, 600_000));
    hop.stop();
    assert_clean(&net);
}

#[test]
fn many_destinations_go_at_once() {
    let Some(net) = Net::new() else { return };
    serve(&net);
    for (method, keep_source) in [(Method::Redirect { local: false }, false), (Method::Tproxy, true)] {
        let hop = Hop::within(&net, method, keep_source);
        let visits: Vec<_> = (0..100)
            .map(|number: u8| {
                let (is_ipv4, host) = (number.is_multiple_of(2), 2 + number / 2 % SERVERS);
                let expected = if keep_source { direct(is_ipv4, host, PORT) } else { relayed(is_ipv4, host) };
                let address = SocketAddr::new(server(is_ipv4, host), PORT);
                let visit = Net::spawn(&net.client, move || visit(address, 100_000));
                (visit, expected)
            })
            .collect();
        for (visit, expected) in visits {
            assert_eq!(visit.join().unwrap(), expected);
        }
        hop.wait_for("all visits", |it| it.connected == 100);
        hop.stop();
    }
    assert_clean(&net);
}

#[test]
fn who_calls_the_relay_itself_is_reset_and_makes_no_loop() {
    let Some(net) = Net::new() else { return };
    for method in [Method::Redirect { local: false }, Method::Tproxy] {
        let hop = Hop::within(&net, method, false);
        for (address, port) in [("10.1.0.1", hop.addresses[0].port()), ("fd00:1::1", hop.addresses[1].port())]
        {
            let address = SocketAddr::new(address.parse().unwrap(), port);
            let is_reset = Net::within(&net.client, move || is_turned_away(address));
            assert!(is_reset, "{method:?} {address}");
        }
        hop.wait_for("both refusals", |it| it.refused.get(&Refusal::Loop) == Some(&2));
        hop.stop();
    }
}

#[test]
fn what_the_router_itself_connects_to_is_caught_once() {
    let Some(net) = Net::new() else { return };
    serve(&net);
    let hop = Hop::within(&net, Method::Redirect { local: true }, false);
    for is_ipv4 in [true, false] {
        let address = SocketAddr::new(server(is_ipv4, 2), PORT);
        assert_eq!(visit_from(&net.router, address), relayed(is_ipv4, 2));
        assert_eq!(visit_from(&net.client, address), relayed(is_ipv4, 2));
    }
    hop.wait_for("four clients", |it| it.accepted == 4);
    hop.stop();
    assert_clean(&net);
}

#[test]
fn what_is_meant_for_the_router_itself_is_left_to_it() {
    let Some(net) = Net::new() else { return };
    serve(&net);
    serve_in(&net.router);
    let caught_local = Method::Redirect { local: true };
    for method in [Method::Redirect { local: false }, caught_local, Method::Tproxy] {
        let hop = Hop::within(&net, method, false);
        for (client, own) in [("10.1.0.2", "10.1.0.1"), ("fd00:1::2", "fd00:1::1"), ("10.1.0.2", "10.2.0.1")]
        {
            let address = SocketAddr::new(own.parse().unwrap(), PORT);
            // Through the relay, the service would see the router.
            assert_eq!(visit_from(&net.client, address), format!("{client} {address}"), "{method:?}");
            assert_eq!(visit_from(&net.router, address), format!("{own} {address}"), "{method:?}");
        }
        let address = SocketAddr::new(server(true, 2), PORT);
        assert_eq!(visit_from(&net.client, address), relayed(true, 2));
        hop.wait_for("the one that was caught", |it| it.accepted > 0);
        assert_eq!(hop.teller.snapshot(0).totals.accepted, 1, "{method:?}");
        hop.stop();
    }
    assert_clean(&net);
}

#[test]
fn cleaning_removes_what_is_dead_and_leaves_what_lives() {
    let Some(net) = Net::new() else { return };
    let lease = |number: u32| {
        let matches = vec!["port 8000".parse().unwrap()];
        Catch { method: Method::Tproxy, matches, port_v4: Some(1), port_v6: Some(2), number }
    };
    Net::within(&net.router, move || {
        let (alive, dead) = (Lease::take().unwrap(), Lease::take().unwrap());
        let living = Rules::make(lease(alive.number)).unwrap();
        std::mem::forget(Rules::make(lease(dead.number)).unwrap());
        assert!(clean().unwrap().is_empty());
        let number = dead.number;
        drop(dead);
        // A program that another test starts holds it, too, until it is its own.
        let (until, mut removed) = (Instant::now() + common::PATIENCE, Vec::new());
        while removed.len() < 3 && Instant::now() < until {
            removed.extend(clean().unwrap());
        }
        assert_eq!(removed.len(), 3, "{removed:?}");
        assert!(removed[0].ends_with(&format!("drover_relay_{number}")), "{removed:?}");
        assert!(clean().unwrap().is_empty());
        // A second try removes what the first one made.
        std::mem::forget(living);
        Rules::make(lease(alive.number)).unwrap().remove().unwrap();
    });
    assert_clean(&net);
}

#[test]
fn rules_that_cannot_be_made_leave_nothing() {
    let Some(net) = Net::new() else { return };
    let (router, lease) = (net.router.clone(), Lease::take().unwrap());
    let number = lease.number;
    // Somebody else's table of that name, which only he may change for as long as he is there.
    let mut owner = std::process::Command::new("ip")
        .args(["netns", "exec", &router, "nft", "-i"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let line = format!("add table inet drover_relay_{number} {{ flags owner; }}\n");
    owner.stdin.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    let until = Instant::now() + common::PATIENCE;
    while !Net::output(&router, "nft list tables").contains("drover_relay_") {
        assert!(Instant::now() < until, "the table never came");
        std::thread::sleep(Duration::from_millis(20));
    }
    let failure = Net::within(&router, move || {
        let matches = vec!["port 8000".parse().unwrap()];
        let (port_v4, port_v6) = (Some(1), Some(2));
        Rules::make(Catch { method: Method::Tproxy, matches, port_v4, port_v6, number }).err()
    });
    owner.kill().unwrap();
    owner.wait().unwrap();
    let told = failure.map(|error| error.to_string()).unwrap_or_default();
    assert!(told.contains("nft -f -"), "'{told}'");
    assert_clean(&net);
}
