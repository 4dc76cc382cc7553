//! A relay by address: what comes in goes out, and ends as it would without the relay.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use common::{
    MIB, client, is_full_up, is_reset, is_turned_away, listener, noise, options, pair, read_all, refusing,
    relay_to, send, start, stuff, turns_away, wait_for,
};
use drover_relay::rule::Policy;
use drover_relay::{Congestion, Destination, Line, Refusal, Relay, RelayOptions, Stage, StartError, Waiting};
use drover_tcp as tcp;

/// Both ways at once, with an end after different numbers of bytes.
fn exchange(relay: &Relay, target: &TcpListener, seed: u64) {
    common::exchange(pair(relay, target), seed, 9 * MIB + 7, 5 * MIB + 3);
}

#[test]
fn bytes_and_ends_go_both_ways() {
    let target = listener();
    let relay = relay_to(&target);
    exchange(&relay, &target, 1);
    let told = wait_for(&relay, "the end", |it| it.totals.closed == 1);
    assert_eq!((told.totals.accepted, told.totals.connected, told.totals.reset, told.live), (1, 1, 0, 0));
    assert_eq!((told.totals.up_bytes, told.totals.down_bytes), (9 * MIB as u64 + 7, 5 * MIB as u64 + 3));
    relay.stop(Duration::ZERO).unwrap();
}

#[test]
fn bytes_go_also_where_there_is_no_pipe() {
    let target = listener();
    let mut options = options(&[target.local_addr().unwrap()]);
    options.pipes_bytes_max = 0;
    let relay = start(&options);
    exchange(&relay, &target, 3);
    let told = wait_for(&relay, "the end", |it| it.totals.closed == 1);
    assert_eq!((told.pipes, told.totals.up_bytes), (0, 9 * MIB as u64 + 7));
}

#[test]
fn ipv6_is_relayed_to_ipv4() {
    let target = listener();
    let to = Destination::Fixed { addresses: [target.local_addr().unwrap()].into() };
    let listen: SocketAddr = "[::1]:0".parse().unwrap();
    let relay = match Relay::start(&RelayOptions::new(vec![Line { listen, to }])) {
        Ok(relay) => relay,
        Err(error) => return println!("skipped: no IPv6 here: {error}"),
    };
    exchange(&relay, &target, 5);
}

#[test]
fn one_way_may_end_long_before_the_other() {
    let target = listener();
    let relay = relay_to(&target);
    let (mut near, mut far) = pair(&relay, &target);
    near.write_all(b"question").unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&far), b"question");
    wait_for(&relay, "the half-close", |it| it.connections[0].up.waiting == Waiting::Done);
    for _ in 0..3 {
        far.write_all(b"answer").unwrap();
        let mut answer = [0; 6];
        near.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer");
    }
    drop(far);
    assert_eq!(read_all(&near), b"");
    wait_for(&relay, "the end", |it| it.totals.closed == 1 && it.live == 0);
}

#[test]
fn resets_are_carried_over_both_ways() {
    let target = listener();
    let relay = relay_to(&target);
    let (near, mut far) = pair(&relay, &target);
    wait_for(&relay, "the connection", |it| it.totals.connected == 1);
    tcp::reset_on_close(&near).unwrap();
    drop(near);
    assert_eq!(far.read(&mut [0; 8]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let (mut near, far) = pair(&relay, &target);
    wait_for(&relay, "the connection", |it| it.totals.connected == 2);
    tcp::reset_on_close(&far).unwrap();
    drop(far);
    assert!(is_reset(&mut near));
    let told = wait_for(&relay, "the resets", |it| it.totals.reset == 2);
    assert_eq!((told.totals.closed, told.live), (0, 0));
}

#[test]
fn what_came_before_a_reset_arrives_before_it() {
    let target = listener();
    let relay = relay_to(&target);
    let (mut near, mut far) = pair(&relay, &target);
    wait_for(&relay, "the connection", |it| it.totals.connected == 1);
    let answer = noise(7, 100_000);
    far.write_all(&answer).unwrap();
    while tcp::unacknowledged(&far).unwrap() > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    tcp::reset_on_close(&far).unwrap();
    drop(far);
    let mut read = vec![0; answer.len()];
    near.read_exact(&mut read).unwrap();
    assert!(read == answer);
    assert!(is_reset(&mut near));
}

#[test]
fn a_reset_is_noticed_while_nothing_can_move() {
    let target = listener();
    let relay = relay_to(&target);
    let (near, mut far) = pair(&relay, &target);
    stuff(&relay, &near, "back-pressure", is_full_up);
    tcp::reset_on_close(&near).unwrap();
    drop(near);
    wait_for(&relay, "the reset", |it| it.totals.reset == 1 && it.live == 0);
    let mut read = Vec::new();
    assert_eq!(far.read_to_end(&mut read).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_slow_reader_stops_the_sender_and_loses_nothing() {
    let target = listener();
    let relay = relay_to(&target);
    let (near, mut far) = pair(&relay, &target);
    let (written, told) = stuff(&relay, &near, "back-pressure", is_full_up);
    assert!(told.connections[0].up.held_bytes <= drover_relay::PIPE_BYTES as u64, "{told:?}");
    wait_for(&relay, "time of waiting", |it| it.totals.up_waits.target_us > 0);
    near.shutdown(Shutdown::Write).unwrap();
    let mut read = 0;
    let mut buffer = vec![0; 10_000];
    loop {
        match far.read(&mut buffer).unwrap() {
            0 => break,
            bytes => {
                assert!(buffer[..bytes].iter().all(|byte| *byte == 1));
                read += bytes;
            }
        }
    }
    assert_eq!(read, written);
}

#[test]
fn a_dialogue_of_small_and_large_turns_goes_on() {
    let target = listener();
    let relay = relay_to(&target);
    let (mut near, mut far) = pair(&relay, &target);
    let answering = std::thread::spawn(move || {
        let mut size = [0; 8];
        while far.read_exact(&mut size).is_ok() {
            far.write_all(&noise(9, u64::from_le_bytes(size) as usize)).unwrap();
        }
    });
    // Streams of many sizes, ends included that lie below any low-water mark.
    for bytes in [1, 100, 70_000, 12 * MIB + 1, 1, 3 * MIB + 9, 40 * MIB + 11, 5, 8 * MIB] {
        near.write_all(&(bytes as u64).to_le_bytes()).unwrap();
        let mut answer = vec![0; bytes];
        near.read_exact(&mut answer).unwrap();
        assert!(answer == noise(9, bytes), "{bytes} bytes");
    }
    near.shutdown(Shutdown::Write).unwrap();
    answering.join().unwrap();
}

#[test]
fn urgent_bytes_keep_their_place() {
    let target = listener();
    let relay = relay_to(&target);
    let (mut near, far) = pair(&relay, &target);
    near.write_all(b"ab").unwrap();
    rustix::net::send(&near, b"c", rustix::net::SendFlags::OOB).unwrap();
    near.write_all(b"d").unwrap();
    let mut read = [0; 4];
    (&far).read_exact(&mut read).unwrap();
    assert_eq!(&read, b"abcd");
    near.write_all(b"e").unwrap();
    rustix::net::send(&near, b"f", rustix::net::SendFlags::OOB).unwrap();
    near.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&far), b"ef");
}

#[test]
fn urgent_bytes_keep_their_place_where_a_pipe_is_full_before_them() {
    let target = listener();
    let relay = relay_to(&target);
    let (near, mut far) = pair(&relay, &target);
    let mut sent = Vec::new();
    while relay.snapshot(1).connections[0].down.held_bytes == 0 {
        assert!(sent.len() < 256 * MIB, "the relay never held anything");
        let piece = noise(sent.len() as u64, 16 << 10);
        far.write_all(&piece).unwrap();
        sent.extend(piece);
    }
    rustix::net::send(&far, b"c", rustix::net::SendFlags::OOB).unwrap();
    far.write_all(b"d").unwrap();
    sent.extend(b"cd");
    // The second is told after all events that came before the first.
    (0..2).for_each(|_| drop(relay.snapshot(1)));
    let mut read = vec![0; sent.len()];
    (&near).read_exact(&mut read).unwrap();
    assert!(read == sent, "what came differs");
}

#[test]
fn a_target_that_refuses_is_a_reset_for_the_client() {
    let refusing = refusing();
    let relay = start(&options(&[refusing.address]));
    assert!(turns_away(&relay));
    let told = wait_for(&relay, "the refusal", |it| !it.totals.refused.is_empty());
    assert_eq!(told.totals.refused[&Refusal::TargetRefused], 1);
    assert_eq!((told.totals.accepted, told.totals.connected, told.live), (1, 0, 0));
}

#[test]
fn the_next_address_is_tried_when_one_refuses() {
    let (refusing, target) = (refusing(), listener());
    let relay = start(&options(&[refusing.address, target.local_addr().unwrap()]));
    exchange(&relay, &target, 11);
    let told = wait_for(&relay, "the end", |it| it.totals.closed == 1);
    assert_eq!((told.totals.accepted, told.totals.connected, told.totals.refused.len()), (1, 1, 0));
}

#[test]
fn a_target_that_never_answers_is_given_up() {
    // A backlog that is full answers no more: the kernel drops what knocks.
    let target =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
    rustix::net::bind(&target, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    rustix::net::listen(&target, 0).unwrap();
    let address = tcp::local_address(&target).unwrap();
    let _first = TcpStream::connect(address).unwrap();
    let mut options = options(&[address]);
    options.connect_timeout = common::PATIENCE;
    let relay = start(&options);
    let _near = client(&relay);
    wait_for(&relay, "the try", |it| it.connections.first().is_some_and(|it| it.stage == Stage::Connecting));
    drop(relay);
    options.connect_timeout = Duration::from_secs(1);
    let relay = start(&options);
    assert!(turns_away(&relay));
    let told = wait_for(&relay, "the refusal", |it| !it.totals.refused.is_empty());
    assert_eq!(told.totals.refused[&Refusal::TargetSilent], 1);
}

#[test]
fn the_policy_decides_who_may_pass() {
    let (open, closed) = (listener(), listener());
    let mut options = options(&[open.local_addr().unwrap()]);
    let to = Destination::Fixed { addresses: [closed.local_addr().unwrap()].into() };
    options.lines.push(Line { listen: "127.0.0.1:0".parse().unwrap(), to });
    let rule = format!("allow from 127.0.0.0/8 port {}\n", open.local_addr().unwrap().port());
    options.policy = Policy::parse(&rule).unwrap();
    let relay = start(&options);
    exchange(&relay, &open, 13);
    assert!(is_turned_away(relay.addresses()[1]));
    let told = wait_for(&relay, "the refusal", |it| !it.totals.refused.is_empty());
    assert_eq!((told.totals.refused[&Refusal::Policy], told.totals.connected), (1, 1));
}

#[test]
fn a_rate_is_waited_for_and_loses_nothing() {
    let target = listener();
    let mut options = options(&[target.local_addr().unwrap()]);
    // A megabyte a second: no machine is slower than that.
    options.policy = Policy::parse("allow rate 8m congestion reno").unwrap();
    let relay = start(&options);
    common::exchange(pair(&relay, &target), 17, MIB + 7, MIB / 2 + 3);
    let told = wait_for(&relay, "the end", |it| it.totals.closed == 1);
    assert!(told.totals.up_waits.rate_us > 0 && told.totals.down_waits.rate_us > 0, "{told:?}");
}

#[test]
fn clients_beyond_the_limit_are_reset() {
    let target = listener();
    let mut options = options(&[target.local_addr().unwrap()]);
    options.connections_max = 2;
    let relay = start(&options);
    let (first, _far) = pair(&relay, &target);
    let _second = pair(&relay, &target);
    wait_for(&relay, "both", |it| it.totals.connected == 2);
    assert!(turns_away(&relay));
    wait_for(&relay, "the refusal", |it| it.totals.refused.get(&Refusal::Limit) == Some(&1));
    tcp::reset_on_close(&first).unwrap();
    drop(first);
    wait_for(&relay, "room", |it| it.live == 1);
    let (mut near, mut far) = pair(&relay, &target);
    near.write_all(b"x").unwrap();
    far.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_stop_waits_for_connections_and_resets_those_that_stay() {
    let target = listener();
    let relay = relay_to(&target);
    let (near, far) = pair(&relay, &target);
    let address = relay.addresses()[0];
    let stopping = std::thread::spawn(move || relay.stop(common::PATIENCE));
    let ending = [send(&near, noise(19, MIB)), send(&far, noise(20, MIB))];
    assert!(read_all(&far) == noise(19, MIB) && read_all(&near) == noise(20, MIB));
    ending.into_iter().for_each(|it| it.join().unwrap());
    stopping.join().unwrap().unwrap();
    assert!(TcpStream::connect(address).is_err());
    let relay = relay_to(&target);
    let (mut near, mut far) = pair(&relay, &target);
    relay.stop(Duration::ZERO).unwrap();
    for end in [&mut near, &mut far] {
        assert!(is_reset(end));
    }
}

#[test]
fn statistics_tell_both_sockets() {
    let target = listener();
    let mut options = options(&[target.local_addr().unwrap()]);
    options.congestion = Congestion::Named("reno".to_string());
    let relay = start(&options);
    assert_eq!(relay.congestion(), "reno");
    let (near, far) = pair(&relay, &target);
    let sent = Cell::new(0);
    // Whoever looks too late finds the rate of a second in which nothing came, and sends some more.
    let told = wait_for(&relay, "a rate", |it| {
        let is_there = it.connections.first().is_some_and(|it| it.up.bytes_per_second > 0);
        if !is_there {
            (&near).write_all(&noise(1, 5_000)).unwrap();
            (&far).read_exact(&mut [0; 5_000]).unwrap();
            sent.set(sent.get() + 5_000);
        }
        is_there
    });
    let connection = &told.connections[0];
    assert!(connection.up.bytes == sent.get() && connection.up.bytes_per_second <= sent.get(), "{told:?}");
    assert_eq!(connection.client, near.local_addr().unwrap());
    assert_eq!(connection.target, target.local_addr().unwrap().to_string());
    let socket = connection.target_socket.as_ref().unwrap();
    assert!(socket.congestion == "reno" && socket.rtt_us > 0, "{socket:?}");
    assert!(connection.client_socket.is_some() && connection.up.waiting == Waiting::Source);
}

#[test]
fn what_cannot_be_had_is_an_error_at_the_start() {
    let target = listener();
    let mut options = options(&[target.local_addr().unwrap()]);
    options.congestion = Congestion::Named("nonesuch".to_string());
    let told = Relay::start(&options).err().unwrap().to_string();
    assert!(told.contains("nonesuch") && told.contains("this kernel has"), "{told}");
    options.congestion = Congestion::Host;
    options.lines[0].listen = target.local_addr().unwrap();
    assert!(matches!(Relay::start(&options), Err(StartError::Circle { .. })));
    let taken = listener();
    options.lines[0].listen = taken.local_addr().unwrap();
    assert!(matches!(Relay::start(&options), Err(StartError::Listen { .. })));
    options.lines[0].listen.set_port(0);
    options.policy = Policy::parse("allow congestion nonesuch").unwrap();
    assert!(matches!(Relay::start(&options), Err(StartError::Congestion { .. })));
}
