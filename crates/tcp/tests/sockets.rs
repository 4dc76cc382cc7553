//! The options on real sockets of the loopback interface.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use drover_tcp as tcp;
use drover_tcp::State;

/// Generous: only what never comes runs into it.
const PATIENCE: Duration = Duration::from_secs(60);

fn pair() -> (TcpStream, TcpStream) {
    pair_on("127.0.0.1:0")
}

fn pair_on(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

fn wait_for(what: &str, is_there: impl Fn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_there() {
        assert!(Instant::now() < until, "{what} never came");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn info_counts_the_bytes_of_both_sides() {
    let (mut near, mut far) = pair();
    near.write_all(&[7; 100_000]).unwrap();
    let mut bytes = vec![0; 100_000];
    far.read_exact(&mut bytes).unwrap();
    wait_for("the acknowledgement", || tcp::unacknowledged(&near).unwrap() == 0);
    let (sent, received) = (tcp::info(&near).unwrap(), tcp::info(&far).unwrap());
    assert_eq!(sent.state, State::Established);
    // The kernel counts the handshake's SYN as a byte.
    assert!((100_000..=100_001).contains(&sent.bytes_acknowledged), "{sent:?}");
    assert_eq!(received.bytes_received, 100_000);
    assert!(sent.bytes_sent >= 100_000 && sent.segment_bytes > 0 && sent.rtt > Duration::ZERO, "{sent:?}");
    assert!(sent.window_segments > 0 && sent.segments_out > 0 && received.segments_in > 0);
}

#[test]
fn info_tells_that_the_peer_said_its_last_byte() {
    let (near, far) = pair();
    far.shutdown(std::net::Shutdown::Write).unwrap();
    wait_for("the end", || tcp::info(&near).unwrap().state == State::Closing);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(tcp::info(&listener).unwrap().state, State::Listening);
}

#[test]
fn info_of_what_is_no_tcp_socket_is_an_error() {
    let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    assert!(tcp::info(&unix).is_err());
}

#[test]
fn congestion_control_is_set_and_read_back() {
    let (near, _far) = pair();
    assert!(!tcp::available_congestion().unwrap().is_empty());
    // Reno is in every kernel and free for all.
    tcp::set_congestion(&near, "reno").unwrap();
    assert_eq!(tcp::congestion(&near).unwrap(), "reno");
    assert_eq!(tcp::set_congestion(&near, "nonesuch").unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(tcp::set_congestion(&near, "").unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(tcp::set_congestion(&near, &"x".repeat(16)).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(tcp::best_congestion(&near, "nonesuch").unwrap(), "reno");
    if tcp::available_congestion().unwrap().iter().any(|name| name == tcp::BBR) {
        assert_eq!(tcp::best_congestion(&near, tcp::BBR).unwrap(), "bbr");
    } else {
        println!("skipped: this kernel has no BBR loaded");
    }
}

#[test]
fn low_water_marks_are_set_and_read_back() {
    let (near, _far) = pair();
    assert_eq!(tcp::not_sent_low_water(&near).unwrap(), 0);
    tcp::set_not_sent_low_water(&near, 256 << 10).unwrap();
    assert_eq!(tcp::not_sent_low_water(&near).unwrap(), 256 << 10);
    tcp::set_not_sent_low_water(&near, 0).unwrap();
    assert_eq!(tcp::not_sent_low_water(&near).unwrap(), 0);
    assert_eq!(tcp::receive_low_water(&near).unwrap(), 1);
    tcp::set_receive_low_water(&near, 64 << 10).unwrap();
    assert_eq!(tcp::receive_low_water(&near).unwrap(), 64 << 10);
}

#[test]
fn buffers_tell_how_large_they_became() {
    let (near, _far) = pair();
    let small = tcp::set_send_buffer(&near, 64 << 10).unwrap();
    assert!(small.bytes >= 64 << 10 && !small.is_limited, "{small:?}");
    let large = tcp::set_receive_buffer(&near, 256 << 10).unwrap();
    assert!(large.bytes >= 64 << 10, "{large:?}");
}

#[test]
fn time_limits_and_pacing_are_taken() {
    let (near, _far) = pair();
    tcp::set_dead_peer_timeout(&near, Duration::from_secs(20)).unwrap();
    assert_eq!(rustix::net::sockopt::tcp_user_timeout(&near).unwrap(), 20_000);
    tcp::set_keepalive(&near, tcp::Keepalive::default()).unwrap();
    assert!(rustix::net::sockopt::socket_keepalive(&near).unwrap());
    tcp::set_pacing_rate_max(&near, 10_000_000).unwrap();
    tcp::keep_urgent_in_line(&near).unwrap();
    assert!(rustix::net::sockopt::socket_oobinline(&near).unwrap());
}

#[test]
fn a_reset_on_close_is_what_the_peer_gets() {
    let (near, mut far) = pair();
    tcp::reset_on_close(&near).unwrap();
    drop(near);
    assert_eq!(far.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

/// A host whose packet filter tracks connections knows them; the destination is then what it is.
fn assert_not_redirected(accepted: &TcpStream) {
    if let Ok(destination) = tcp::original_destination(accepted) {
        assert_eq!(destination, accepted.local_addr().unwrap());
    }
}

#[test]
fn a_reset_on_close_can_be_taken_back() {
    let (mut near, mut far) = pair();
    tcp::reset_on_close(&near).unwrap();
    near.write_all(b"all of it").unwrap();
    tcp::end_on_close(&near).unwrap();
    drop(near);
    let mut text = String::new();
    far.read_to_string(&mut text).unwrap();
    assert_eq!(text, "all of it");
}

#[test]
fn what_was_not_redirected_has_no_other_destination() {
    assert_not_redirected(&pair().1);
    match TcpListener::bind("[::1]:0") {
        Ok(_) => assert_not_redirected(&pair_on("[::1]:0").1),
        Err(error) => println!("skipped: no IPv6 here: {error}"),
    }
}

#[test]
fn an_ipv4_address_at_an_ipv6_socket_is_told_as_such() {
    let Ok(listener) = TcpListener::bind("[::]:0") else { return println!("skipped: no IPv6 here") };
    let port = listener.local_addr().unwrap().port();
    let _near = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let address = tcp::local_address(&listener.accept().unwrap().0).unwrap();
    assert_eq!(address, ([127, 0, 0, 1], port).into());
}

#[test]
fn foreign_addresses_can_be_bound_where_that_is_allowed() {
    let socket = || {
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap()
    };
    // TEST-NET-1, of no host.
    let foreign: std::net::SocketAddr = "192.0.2.1:0".parse().unwrap();
    let (plain, transparent) = (socket(), socket());
    assert!(rustix::net::bind(&plain, &foreign).is_err());
    match tcp::set_transparent(&transparent) {
        Ok(()) => rustix::net::bind(&transparent, &foreign).unwrap(),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    }
    tcp::set_bind_address_no_port(socket()).unwrap();
}

#[test]
fn a_unix_socket_whose_queue_is_full_is_waited_for_only_so_long() {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let name =
        SocketAddrUnix::new_abstract_name(format!("drover-tcp-{}", std::process::id()).as_bytes()).unwrap();
    let refused = drover_tcp::connect_unix(&name, Duration::ZERO).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let listener = socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    bind(&listener, &name).unwrap();
    listen(&listener, 0).unwrap();
    let mut connected = Vec::new();
    let full = loop {
        match drover_tcp::connect_unix(&name, Duration::from_millis(30)) {
            Ok(socket) => connected.push(socket),
            Err(error) => break error,
        }
    };
    assert!(full.kind() == std::io::ErrorKind::WouldBlock && !connected.is_empty(), "{full}");
}
