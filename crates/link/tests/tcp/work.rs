//! Sound lines: what sessions carry, and how many connections they have.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use drover_link::{
    LinkErrorKind, Order, RateLimit, STRIPES_START, Session, SessionState, StripeBounds, StripeStats,
    VersionRange, connect,
};
use rustix::net::{AddressFamily, SocketType, bind, socket};

use crate::proxy::Proxy;
use crate::stage::{Stage, loopback, wait_for};

/// Sends messages from one side to the other; each has to arrive once. `between` runs in the meantime.
pub fn messages(from: &Session, to: &Session, count: u64, bytes: usize, between: impl FnOnce() + Send) {
    let (sender, _keep) = from.open(Order::Messages, b"messages").unwrap().split();
    let (_keep_too, receiver) = to.accept().unwrap().channel.split();
    thread::scope(|scope| {
        scope.spawn(between);
        scope.spawn(|| {
            for number in 0..count {
                sender.send(&number.to_le_bytes(), &vec![number as u8; bytes]).unwrap();
            }
            sender.finish().unwrap();
        });
        let mut got = BTreeSet::new();
        while let Some(message) = receiver.receive().unwrap() {
            let number = u64::from_le_bytes(message.head[..].try_into().unwrap());
            assert!(message.body.len() == bytes && message.body.iter().all(|it| *it == number as u8));
            assert!(got.insert(number), "{number} twice");
        }
        assert_eq!(got.len() as u64, count);
    });
}

/// Writes a stream from one side to the other; every byte has to be in its place.
pub fn stream(from: &Session, to: &Session, bytes: u64, between: impl FnOnce() + Send) {
    let byte = |at: u64| (at.wrapping_mul(0x9E37_79B9) >> 13) as u8;
    let (sender, _keep) = from.open(Order::Stream, b"stream").unwrap().split();
    let (_keep_too, mut receiver) = to.accept().unwrap().channel.split();
    thread::scope(|scope| {
        scope.spawn(between);
        scope.spawn(move || {
            let mut at = 0;
            while at < bytes {
                let piece: Vec<u8> = (at..bytes.min(at + 50_000)).map(byte).collect();
                sender.write_all(&piece).unwrap();
                at += piece.len() as u64;
            }
            sender.finish().unwrap();
        });
        let (mut at, mut buffer) = (0, vec![0; 200_000]);
        loop {
            let length = receiver.read(&mut buffer).unwrap();
            if length == 0 {
                break;
            }
            assert!((at..).zip(&buffer[..length]).all(|(at, it)| *it == byte(at)), "at {at}");
            at += length as u64;
        }
        assert_eq!(at, bytes);
    });
}

#[test]
fn messages_and_streams_both_ways() {
    let stage = Stage::new();
    let (one, two) = stage.session();
    assert_eq!((&one.peer().name[..], &two.peer().name[..]), ("site-b", "site-a"));
    assert_ne!(one.peer().fingerprint, [0; 32]);
    thread::scope(|scope| {
        scope.spawn(|| messages(&one, &two, 500, 100_000, || {}));
        scope.spawn(|| stream(&two, &one, 30_000_000, || {}));
    });
    messages(&two, &one, 2000, 100, || {});
    stream(&one, &two, 30_000_000, || {});
    let stats = one.stats();
    // A machine that is busy may hold frames up.
    assert_eq!((stats.state, stats.repeated_frames - stats.overdue_frames), (SessionState::Up, 0));
}

#[test]
fn the_first_connection_is_followed_by_others() {
    let stage = Stage::with(|_, connect| connect.stripes = StripeBounds::fixed(5));
    let (one, two) = stage.session();
    wait_for("the fifth connection", || one.stats().stripes.len() == 5 && two.stats().stripes.len() == 5);
    messages(&one, &two, 1000, 10_000, || {});
    // One that this machine holds up is suspect for a while.
    let is_sound = |it: &StripeStats| !it.congestion.is_empty() && it.local.is_some() && !it.is_suspect;
    wait_for("five that are sound", || {
        let stats = one.stats();
        (stats.stripes.len(), stats.stripes_wanted) == (5, 5) && stats.stripes.iter().all(is_sound)
    });
}

#[test]
fn every_pair_of_addresses_is_used() {
    let targets: Vec<SocketAddr> = ["127.0.0.1:0", "127.0.0.2:0"].map(|it| it.parse().unwrap()).to_vec();
    let stage = Stage::with(|listen, connect| {
        listen.addresses = targets;
        connect.sources =
            ["127.0.1.1", "127.0.1.2", "127.0.1.3", "::1"].map(|it| it.parse().unwrap()).to_vec();
        connect.stripes = StripeBounds::fixed(6);
    });
    let (one, _two) = stage.session();
    let pairs = || {
        let stats = one.stats();
        let both = |it: &StripeStats| Some((it.local?.ip(), it.remote?.ip()));
        stats.stripes.iter().filter_map(both).collect::<BTreeSet<_>>().len()
    };
    wait_for("a connection of each pair", || pairs() == 6);
}

#[test]
fn a_source_that_reaches_no_target_is_told() {
    let mut stage = Stage::new();
    stage.connect.sources = vec!["::1".parse().unwrap()];
    assert_eq!(connect(&stage.connect).unwrap_err().kind, LinkErrorKind::Misuse);
    stage.connect.sources.clear();
    // Taken for as long as the socket is there, and nobody listens.
    let taken = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&taken, &loopback()).unwrap();
    stage.connect.targets = vec![drover_tcp::local_address(&taken).unwrap()];
    assert_eq!(connect(&stage.connect).unwrap_err().kind, LinkErrorKind::Unreachable);
}

#[test]
fn old_and_new_agree_on_the_highest_version_that_both_speak() {
    let range = |lowest, highest| VersionRange { lowest, highest };
    for (ours, theirs, agreed) in [
        (range(1, 1), range(1, 3), Some(1)),
        (range(1, 4), range(2, 3), Some(3)),
        (range(1, 2), range(3, 4), None),
    ] {
        let stage = Stage::with(|listen, connect| (listen.versions, connect.versions) = (ours, theirs));
        match connect(&stage.connect) {
            Ok(session) => {
                assert_eq!(Some(session.peer().version), agreed);
                messages(&session, &stage.listener.accept().unwrap(), 20, 1000, || {});
            }
            Err(error) => {
                assert_eq!((error.kind, agreed), (LinkErrorKind::Version, None));
                assert!(error.text.contains("1 to 2") && error.text.contains("3 to 4"), "{error}");
            }
        }
    }
}

#[test]
fn a_rate_limit_is_kept_and_may_be_changed() {
    let limit = Arc::new(RateLimit::new(Some(2_000_000)));
    let stage = Stage::with(|_, connect| connect.rate_limit = Some(limit.clone()));
    let (one, two) = stage.session();
    let start = Instant::now();
    messages(&one, &two, 20, 100_000, || {});
    // A lower bound on the time is no matter of a busy machine: 2 MB at 2 MB/s, less the burst and debt.
    assert!(start.elapsed() > Duration::from_millis(500), "{:?}", start.elapsed());
    limit.set(None);
    messages(&one, &two, 1000, 100_000, || {});
}

#[test]
fn a_limit_below_what_one_frame_takes_ends_no_connection() {
    let limit = Arc::new(RateLimit::new(Some(20_000)));
    let stage = Stage::with(|_, connect| {
        connect.rate_limit = Some(limit.clone());
        connect.stripes = StripeBounds::fixed(3);
    });
    let (one, two) = stage.session();
    wait_for("three connections", || one.stats().stripes.len() == 3);
    let (sender, _keep) = one.open(Order::Messages, b"").unwrap().split();
    let (_keep_too, receiver) = two.accept().unwrap().channel.split();
    (0..8).for_each(|_| sender.send(b"", &[1; 500_000]).unwrap());
    // Longer than a connection may be silent.
    thread::sleep(Duration::from_secs(18));
    for stats in [one.stats(), two.stats()] {
        assert!(stats.stripes.len() == 3 && stats.repeated_frames == stats.overdue_frames, "{stats:?}");
    }
    limit.set(None);
    (0..8).for_each(|_| assert_eq!(receiver.receive().unwrap().unwrap().body.len(), 500_000));
}

#[test]
fn close_is_told_across() {
    let stage = Stage::new();
    let (one, two) = stage.session();
    one.close();
    assert_eq!(two.accept().unwrap_err().kind, LinkErrorKind::Closed);
    let (one, two) = stage.session();
    drop(two);
    assert_eq!(one.accept().unwrap_err().kind, LinkErrorKind::Closed);
    stage.listener.close();
    assert_eq!(stage.listener.accept().unwrap_err().kind, LinkErrorKind::Closed);
    assert_eq!(connect(&stage.connect).unwrap_err().kind, LinkErrorKind::Unreachable);
}

#[test]
fn a_slow_reader_costs_no_more_memory_than_its_credit() {
    let stage = Stage::new();
    let (one, two) = stage.session();
    let (sender, _keep) = one.open(Order::Messages, b"").unwrap().split();
    let incoming = two.accept().unwrap();
    let (_keep_too, receiver) = incoming.channel.split();
    thread::scope(|scope| {
        scope.spawn(|| while sender.send(b"", &[0; 100_000]).is_ok() {});
        wait_for("the credit's end", || {
            two.stats().unread_bytes > drover_link::MESSAGES_CREDIT_FIRST - 200_000
        });
        for _ in 0..20 {
            thread::sleep(Duration::from_millis(10));
            assert!(two.stats().unread_bytes <= drover_link::MESSAGES_CREDIT_FIRST);
            assert!(one.stats().held_bytes <= drover_link::HELD_BYTES_MAX);
        }
        drop(receiver);
    });
}

#[test]
fn further_connections_do_not_wait_for_the_first_one_to_be_let_in() {
    let mut stage = Stage::new();
    let proxy = Proxy::new(stage.connect.targets[0]);
    stage.connect.targets = vec![proxy.address];
    proxy.state.is_cut.store(true, Ordering::SeqCst);
    thread::scope(|scope| {
        let session = scope.spawn(|| stage.session_in_the_end());
        wait_for("the others", || proxy.state.connections.load(Ordering::SeqCst) >= STRIPES_START);
        proxy.state.is_cut.store(false, Ordering::SeqCst);
        let (one, two) = session.join().unwrap();
        wait_for("all of them", || one.stats().stripes.len() == STRIPES_START);
        stream(&one, &two, 1_000_000, || {});
    });
}
