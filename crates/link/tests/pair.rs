//! Sessions as programs use them, over a pair in this process.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::thread;

use drover_link::{
    BODY_BYTES_MAX, HEAD_BYTES_MAX, Limits, LinkErrorKind, OPENING_BYTES_MAX, Order, Receiver, Session,
    SessionState,
};

fn channel(order: Order) -> (drover_link::Channel, drover_link::Channel, Session, Session) {
    let (one, two) = Session::pair();
    let here = one.open(order, b"what for").unwrap();
    let there = two.accept().unwrap();
    assert_eq!((there.order, &there.opening[..]), (order, &b"what for"[..]));
    (here, there.channel, one, two)
}

fn read_to_end(receiver: &mut Receiver) -> Vec<u8> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 100_000]);
    loop {
        match receiver.read(&mut buffer).unwrap() {
            0 => return all,
            length => all.extend_from_slice(&buffer[..length]),
        }
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 31 + at / 251) as u8).collect()
}

#[test]
fn a_stream_arrives_in_order_both_ways_at_once() {
    let (here, there, _one, _two) = channel(Order::Stream);
    let bytes = pattern(20_000_000);
    thread::scope(|scope| {
        for (end, step) in [(here, 70_001), (there, 3_001)] {
            let bytes = &bytes;
            scope.spawn(move || {
                let (sender, mut receiver) = end.split();
                thread::scope(|scope| {
                    scope.spawn(move || {
                        bytes.chunks(step).for_each(|piece| sender.write_all(piece).unwrap());
                        sender.finish().unwrap();
                    });
                    assert!(read_to_end(&mut receiver) == *bytes);
                });
            });
        }
    });
}

#[test]
fn messages_arrive_whole_and_once_at_many_threads() {
    let (here, there, one, _two) = channel(Order::Messages);
    let (sender, _receiver) = here.split();
    let (_sender, receiver) = there.split();
    let got = Mutex::new(BTreeSet::new());
    thread::scope(|scope| {
        for part in 0..4_u64 {
            let sender = sender.clone();
            scope.spawn(move || {
                for number in part * 500..(part + 1) * 500 {
                    let body = number.to_le_bytes().repeat(1 + (number as usize * 7919) % 15_000);
                    sender.send(&number.to_le_bytes(), &body).unwrap();
                }
            });
        }
        for _ in 0..3 {
            scope.spawn(|| {
                while let Some(message) = receiver.receive().unwrap() {
                    let number = u64::from_le_bytes(message.head[..].try_into().unwrap());
                    assert_eq!(message.body.len(), 8 * (1 + (number as usize * 7919) % 15_000));
                    assert!(message.body.chunks(8).all(|it| it == message.head));
                    assert!(got.lock().unwrap().insert(number), "{number} twice");
                    if got.lock().unwrap().len() == 2000 {
                        sender.finish().unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(got.into_inner().unwrap(), (0..2000).collect());
    assert_eq!(one.stats().state, SessionState::Up);
}

#[test]
fn the_largest_message_goes_through_and_a_larger_one_is_refused() {
    let (here, there, one, _two) = channel(Order::Messages);
    let (sender, _keep) = here.split();
    let (_keep_too, receiver) = there.split();
    let (head, body) = (vec![1; HEAD_BYTES_MAX], pattern(BODY_BYTES_MAX));
    sender.send(&head, &body).unwrap();
    sender.send(&[], &[]).unwrap();
    let mut found = [receiver.receive().unwrap().unwrap(), receiver.receive().unwrap().unwrap()];
    found.sort_by_key(|message| message.body.len());
    assert!(found[0].head.is_empty() && found[0].body.is_empty());
    assert!(found[1].head == head && found[1].body == body);
    let kind = |result: Result<(), drover_link::LinkError>| result.unwrap_err().kind;
    assert_eq!(kind(sender.send(&vec![0; HEAD_BYTES_MAX + 1], &[])), LinkErrorKind::Misuse);
    assert_eq!(kind(sender.send(&[], &vec![0; BODY_BYTES_MAX + 1])), LinkErrorKind::Misuse);
    assert_eq!(kind(sender.write_all(b"bytes")), LinkErrorKind::Misuse);
    let opening = vec![0; OPENING_BYTES_MAX + 1];
    assert_eq!(one.open(Order::Stream, &opening).unwrap_err().kind, LinkErrorKind::Misuse);
    assert!(one.open(Order::Stream, &opening[1..]).is_ok());
}

#[test]
fn half_closed_still_answers() {
    let (here, there, _one, _two) = channel(Order::Stream);
    let (question, mut answer) = here.split();
    question.write_all(b"how many?").unwrap();
    question.finish().unwrap();
    assert_eq!(question.write_all(b"more").unwrap_err().kind, LinkErrorKind::Misuse);
    let (sender, mut receiver) = there.split();
    assert_eq!(read_to_end(&mut receiver), b"how many?");
    sender.write_all(b"42").unwrap();
    sender.finish().unwrap();
    assert_eq!(read_to_end(&mut answer), b"42");
    assert_eq!(answer.read(&mut [0]).unwrap(), 0, "the end stays the end");
}

#[test]
fn one_that_goes_without_a_finish_is_no_end() {
    let (here, there, _one, _two) = channel(Order::Messages);
    let (sender, keep) = here.split();
    sender.send(b"1", b"one").unwrap();
    drop(sender);
    let (_keep, receiver) = there.split();
    assert_eq!(receiver.receive().unwrap().unwrap().body, b"one", "what was sent arrives");
    assert_eq!(receiver.receive().unwrap_err().kind, LinkErrorKind::Reset);
    drop(keep);
}

#[test]
fn a_receiver_that_goes_frees_the_sender() {
    let (here, there, _one, two) = channel(Order::Stream);
    let (sender, _keep) = here.split();
    let (_keep_too, receiver) = there.split();
    thread::scope(|scope| {
        scope.spawn(|| {
            // More than any credit: it must wait, and then fail.
            let error = (0..).find_map(|_| sender.write_all(&[0; 1 << 20]).err()).unwrap();
            assert_eq!(error.kind, LinkErrorKind::Reset);
        });
        while two.stats().unread_bytes == 0 {
            thread::yield_now();
        }
        drop(receiver);
    });
    while two.stats().unread_bytes > 0 {
        thread::yield_now();
    }
}

#[test]
fn reset_ends_all_calls_of_both_sides() {
    let (here, there, _one, _two) = channel(Order::Stream);
    let (sender, mut receiver) = here.split();
    let (there_sender, mut there_receiver) = there.split();
    sender.write_all(b"lost").unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| receiver.read(&mut [0; 10]).unwrap_err().kind);
        sender.reset();
        assert_eq!(waiting.join().unwrap(), LinkErrorKind::Reset);
    });
    assert_eq!(sender.write_all(b"x").unwrap_err().kind, LinkErrorKind::Reset);
    let error = loop {
        match there_receiver.read(&mut [0; 10]) {
            Ok(length) => assert!(length > 0),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind, LinkErrorKind::Reset);
    let error = (0..).find_map(|_| there_sender.write_all(&[0; 100_000]).err()).unwrap();
    assert_eq!(error.kind, LinkErrorKind::Reset);
}

#[test]
fn a_reader_that_stops_holds_up_its_own_channel_only() {
    let (one, two) = Session::pair();
    let (stuck, _a) = one.open(Order::Stream, b"").unwrap().split();
    let stuck_there = two.accept().unwrap().channel;
    let (busy, _b) = one.open(Order::Stream, b"").unwrap().split();
    let (_c, mut busy_there) = two.accept().unwrap().channel.split();
    let bytes = pattern(30_000_000);
    thread::scope(|scope| {
        scope.spawn(|| while stuck.write_all(&[0; 100_000]).is_ok() {});
        scope.spawn(|| {
            busy.write_all(&bytes).unwrap();
            busy.finish().unwrap();
        });
        assert!(read_to_end(&mut busy_there) == bytes);
        let stats = two.stats();
        assert!(stats.unread_bytes <= drover_link::STREAM_CREDIT_FIRST, "{}", stats.unread_bytes);
        drop(stuck_there);
    });
}

#[test]
fn close_lets_what_was_sent_arrive() {
    let (here, there, one, two) = channel(Order::Messages);
    let (sender, _keep) = here.split();
    let (_keep_too, receiver) = there.split();
    (0..100).for_each(|_| sender.send(b"", &[7; 50_000]).unwrap());
    one.close();
    assert_eq!(sender.send(b"", b"").unwrap_err().kind, LinkErrorKind::Closed);
    for _ in 0..100 {
        assert_eq!(receiver.receive().unwrap().unwrap().body.len(), 50_000);
    }
    assert_eq!(receiver.receive().unwrap_err().kind, LinkErrorKind::Closed);
    assert_eq!(two.accept().unwrap_err().kind, LinkErrorKind::Closed);
    assert!(matches!(two.stats().state, SessionState::Ended(_)));
}

#[test]
fn a_session_closes_when_the_last_of_its_parts_is_gone() {
    let (here, there, one, two) = channel(Order::Messages);
    drop(one.clone());
    drop(one);
    let (sender, receiver) = here.split();
    let (_keep, there) = there.split();
    sender.send(b"still", b"here").unwrap();
    sender.finish().unwrap();
    assert_eq!(there.receive().unwrap().unwrap().head, b"still");
    drop((sender, receiver));
    assert_eq!(there.receive().unwrap(), None);
    assert_eq!(two.accept().unwrap_err().kind, LinkErrorKind::Closed);
}

#[test]
fn many_channels_come_and_go() {
    let (one, two) = Session::pair();
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..3000 {
                let incoming = two.accept().unwrap();
                let (sender, mut receiver) = incoming.channel.split();
                let bytes = read_to_end(&mut receiver);
                sender.write_all(&bytes).unwrap();
                sender.finish().unwrap();
            }
        });
        for part in 0..3 {
            let one = &one;
            scope.spawn(move || {
                for number in 0..1000 {
                    let (sender, mut receiver) = one.open(Order::Stream, &[part]).unwrap().split();
                    let bytes = pattern(number * 17);
                    sender.write_all(&bytes).unwrap();
                    sender.finish().unwrap();
                    assert!(read_to_end(&mut receiver) == bytes);
                }
            });
        }
    });
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while one.stats().channels + two.stats().channels > 0 {
        assert!(std::time::Instant::now() < limit, "{:?} {:?}", one.stats(), two.stats());
        thread::yield_now();
    }
    assert_eq!((one.stats().unread_bytes, two.stats().unread_bytes), (0, 0));
}

#[test]
fn small_bounds_only_slow_it_down() {
    let mut limits = Limits { channel_credit_max: 4 << 20, held_bytes_max: 1 << 20, ..Limits::default() };
    limits.credits.session = 8 << 20;
    let (one, two) = Session::pair_with(limits);
    let (sender, _keep) = one.open(Order::Messages, b"").unwrap().split();
    let (_keep_too, receiver) = two.accept().unwrap().channel.split();
    thread::scope(|scope| {
        scope.spawn(|| {
            (0..100).for_each(|_| sender.send(b"head", &[1; BODY_BYTES_MAX]).unwrap());
            sender.finish().unwrap();
        });
        let mut count = 0;
        while let Some(message) = receiver.receive().unwrap() {
            assert_eq!(message.body.len(), BODY_BYTES_MAX);
            count += 1;
        }
        assert_eq!(count, 100);
    });
}

/// Runs something that must come to its end, which takes a second or two where nobody is in the way.
fn in_the_end(what: &str, run: impl FnOnce() + Send + 'static) {
    let (done, ended) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        run();
        done.send(()).unwrap();
    });
    match ended.recv_timeout(std::time::Duration::from_secs(300)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("{what}: it hangs"),
        _ => thread.join().unwrap(),
    }
}

#[test]
fn channels_that_come_together_go_to_all_who_accept() {
    in_the_end("accept", || {
        let (one, two) = Session::pair();
        let all = std::sync::Barrier::new(5);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let incoming = two.accept().unwrap();
                        // Nobody takes a second one while another waits for its first.
                        all.wait();
                        drop(incoming);
                    }
                });
            }
            for _ in 0..500 {
                let opened = [(); 4].map(|()| one.open(Order::Stream, b"").unwrap());
                all.wait();
                drop(opened);
            }
        });
    });
}

#[test]
fn channels_that_were_given_up_leave_credit_for_others() {
    in_the_end("credit", || {
        let mut limits = Limits { channel_credit_max: 1 << 20, ..Limits::default() };
        (limits.credits.messages, limits.credits.session) = (4 << 20, 8 << 20);
        let (one, two) = Session::pair_with(limits);
        for round in 0..60 {
            let (sender, keep) = one.open(Order::Messages, b"").unwrap().split();
            let (_keep_too, receiver) = two.accept().unwrap().channel.split();
            thread::scope(|scope| {
                scope.spawn(|| while sender.send(b"", &[0; 300_000]).is_ok() {});
                receiver.receive().unwrap();
                match round % 2 {
                    0 => drop(receiver),
                    _ => sender.reset(),
                }
            });
            drop(keep);
        }
        let (sender, _keep) = one.open(Order::Messages, b"").unwrap().split();
        let (_keep_too, receiver) = two.accept().unwrap().channel.split();
        sender.send(b"", &[1; BODY_BYTES_MAX]).unwrap();
        assert_eq!(receiver.receive().unwrap().unwrap().body.len(), BODY_BYTES_MAX);
    });
}
