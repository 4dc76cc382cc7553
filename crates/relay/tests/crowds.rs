//! Thousands of connections: idle, busy, slow; few threads and bounded memory.
#![allow(clippy::unwrap_used)]

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use common::{client, listener, noise, options, read_all, relay_to, start, stuff, wait_for};
use drover_relay::{ConnectionStats, Destination, Line, PIPE_BYTES, Snapshot, Waiting};

/// Hands on what is accepted.
fn accepting(target: TcpListener) -> Receiver<TcpStream> {
    let (taken, streams) = channel();
    std::thread::spawn(move || {
        for stream in target.incoming() {
            if taken.send(stream.unwrap()).is_err() {
                break;
            }
        }
    });
    streams
}

/// Echoes in a thread for each.
fn echo(stream: TcpStream) {
    std::thread::Builder::new()
        .stack_size(128 << 10)
        .spawn(move || {
            let mut writer = stream.try_clone().unwrap();
            let mut reader = stream;
            // A client that goes away is its own business here.
            let _ = std::io::copy(&mut reader, &mut writer);
            let _ = writer.shutdown(Shutdown::Write);
        })
        .unwrap();
}

/// Connections that a target leaves waiting to be accepted, which costs this process one file less.
const WAITING: usize = 3_500;

/// Raises the limit of files and gives how many connections fit: each has four ends in this process, of
/// which the relay has two, but for those that wait.
fn room(wanted: usize) -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let files = (wanted * 4 - WAITING + 1000) as u64;
    if limit.maximum.is_some_and(|most| most < files) {
        let fits = (limit.maximum.unwrap_or(0) as usize + WAITING).saturating_sub(1000) / 4;
        println!("{fits} of {wanted} connections: the limit of files allows no more");
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
        return fits;
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum: limit.maximum }).unwrap();
    wanted
}

/// A target that takes many connections before it accepts any.
fn patient_listener() -> TcpListener {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&socket, 4096).unwrap();
    socket.into()
}

/// How many may wait at it on this machine.
fn waiting_max() -> usize {
    let most: usize =
        std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap();
    WAITING.min(most.saturating_sub(64))
}

#[test]
fn five_thousand_idle_and_two_hundred_busy_connections() {
    let all = room(5_200);
    let (busy, idle) = (200, all - 200);
    let (target, sleepy) = (listener(), patient_listener());
    let mut options = options(&[target.local_addr().unwrap()]);
    options.pipes_bytes_max = 64 * PIPE_BYTES;
    let to = Destination::Fixed { addresses: [sleepy.local_addr().unwrap()].into() };
    options.lines.push(Line { listen: "127.0.0.1:0".parse().unwrap(), to });
    let relay = start(&options);
    let connect = || TcpStream::connect(relay.addresses()[1]).unwrap();
    let waiting = waiting_max().min(idle);
    let pairs: Vec<(TcpStream, TcpStream)> =
        (waiting..idle).map(|_| (connect(), common::accept(&sleepy))).collect();
    let sleepers: Vec<TcpStream> = (0..waiting).map(|_| connect()).collect();
    let told = wait_for(&relay, "the idle ones", |it| it.totals.connected == idle as u64);
    assert!(told.pipes <= 2, "idle connections hold {} pipes", told.pipes);
    let streams = accepting(target);
    let workers: Vec<_> = (0..busy)
        .map(|number| {
            let near = client(&relay);
            echo(streams.recv_timeout(common::PATIENCE).unwrap());
            std::thread::Builder::new().stack_size(256 << 10).spawn(move || busy_with(near, number)).unwrap()
        })
        .collect();
    let told = wait_for(&relay, "the busy ones", |it| it.totals.connected == all as u64);
    assert!(told.pipe_bytes <= 64 * PIPE_BYTES as u64, "{} bytes of pipes", told.pipe_bytes);
    workers.into_iter().for_each(|it| it.join().unwrap());
    // Those that slept can still talk.
    for (near, far) in pairs.iter().step_by(97) {
        let (mut near, mut far) = (near, far);
        near.write_all(b"awake?").unwrap();
        let mut question = [0; 6];
        far.read_exact(&mut question).unwrap();
        assert_eq!(&question, b"awake?");
    }
    drop((pairs, sleepers));
    // What nobody accepted has no end of its own; when its listener goes it is reset.
    drop(sleepy);
    let told = wait_for(&relay, "the end of all", |it| it.live == 0);
    assert_eq!(told.totals.accepted, all as u64);
    assert!(told.totals.closed >= (all - waiting) as u64, "{told:?}");
}

fn busy_with(near: TcpStream, number: u64) {
    let content = noise(number, 300_000);
    let sending = common::send(&near, content.clone());
    assert!(read_all(&near) == content, "connection {number}");
    sending.join().unwrap();
}

#[test]
fn a_storm_of_connections_is_taken_in_and_all_are_served() {
    let target = listener();
    let relay = relay_to(&target);
    let streams = accepting(target);
    std::thread::spawn(move || streams.iter().for_each(echo));
    let address = relay.addresses()[0];
    let clients: Vec<_> = (0..50)
        .map(|thread| {
            std::thread::spawn(move || {
                for round in 0..100_u64 {
                    let mut near = TcpStream::connect(address).unwrap();
                    near.set_read_timeout(Some(common::PATIENCE)).unwrap();
                    let content = noise(thread * 1000 + round, 100);
                    near.write_all(&content).unwrap();
                    near.shutdown(Shutdown::Write).unwrap();
                    assert!(read_all(&near) == content);
                }
            })
        })
        .collect();
    clients.into_iter().for_each(|it| it.join().unwrap());
    let told = wait_for(&relay, "the end of all", |it| it.totals.closed == 5000);
    assert_eq!((told.totals.accepted, told.totals.up_bytes, told.live), (5000, 500_000, 0));
}

fn is_full(told: &ConnectionStats) -> bool {
    told.up.waiting == Waiting::Target
}

#[test]
fn slow_readers_hold_no_more_than_the_budget_and_others_go_on() {
    const BUDGET: usize = 8 * PIPE_BYTES;
    let target = listener();
    let mut options = options(&[target.local_addr().unwrap()]);
    options.pipes_bytes_max = BUDGET;
    let relay = start(&options);
    let streams = accepting(target);
    let slow: Vec<_> = (1..=40)
        .map(|number| {
            let near = client(&relay);
            let far = streams.recv_timeout(common::PATIENCE).unwrap();
            let are_full =
                |told: &Snapshot| told.connections.iter().filter(|it| is_full(it)).count() == number;
            stuff(&relay, &near, "a slow reader", are_full);
            (near, far)
        })
        .collect();
    let near = client(&relay);
    echo(streams.recv_timeout(common::PATIENCE).unwrap());
    busy_with(near, 5);
    let told =
        wait_for(&relay, "those who are slow", |it| it.connections.iter().any(|it| it.up.held_bytes > 0));
    assert!(told.pipe_bytes <= BUDGET as u64, "{} bytes of pipes", told.pipe_bytes);
    drop(slow);
    wait_for(&relay, "the end of all", |it| it.live == 0 && it.totals.accepted == 41);
}

#[test]
fn pipes_of_a_burst_are_given_back() {
    let target = listener();
    let relay = relay_to(&target);
    for number in 0..2 {
        let near = client(&relay);
        echo(common::accept(&target));
        busy_with(near, number);
        let are_gone = |it: &Snapshot| it.live == 0 && it.pipes == 0 && it.pipe_bytes == 0;
        wait_for(&relay, "the end of its pipes", are_gone);
    }
}
