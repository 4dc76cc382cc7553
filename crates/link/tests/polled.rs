//! Channels used without waiting, by one thread that is called.
#![allow(clippy::unwrap_used)]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use drover_link::{Channel, LinkErrorKind, Order, Session};

/// Generous: only what never comes runs into it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A channel that calls, and its other end.
fn polled(limits: drover_link::Limits) -> (Channel, Receiver<()>, Channel, (Session, Session)) {
    let (one, two) = Session::pair_with(limits);
    let here = one.open(Order::Stream, b"").unwrap();
    let (calls, called): (Sender<()>, _) = channel();
    // A test that has ended listens no more.
    here.wake_by(Box::new(move || calls.send(()).unwrap_or(())));
    let there = two.accept().unwrap().channel;
    (here, called, there, (one, two))
}

fn wait(called: &Receiver<()>) {
    called.recv_timeout(PATIENCE).unwrap();
    // Several may have come for one thing.
    called.try_iter().for_each(drop);
}

#[test]
fn all_goes_both_ways_with_nothing_but_calls() {
    let (here, called, there, _sessions) = polled(drover_link::Limits::default());
    let bytes: Vec<u8> = (0..9_000_007_usize).map(|at| (at * 31 + at / 251) as u8).collect();
    let expected = bytes.clone();
    let echo = std::thread::spawn(move || {
        let (sender, mut receiver) = there.split();
        let mut piece = vec![0; 100_000];
        loop {
            match receiver.read(&mut piece).unwrap() {
                0 => return sender.finish().unwrap(),
                length => sender.write_all(&piece[..length]).unwrap(),
            }
        }
    });
    let (sender, receiver) = here.split();
    let (mut sent, mut back, mut is_finished) = (0, Vec::new(), false);
    loop {
        let mut moved = 0;
        if sent < bytes.len() {
            // Large and small writes, which take different ways.
            let wanted = if sent % 2 == 0 { 300_000 } else { 777 };
            let room = sender.try_room(wanted).unwrap();
            moved = sender.try_write(&bytes[sent..bytes.len().min(sent + room)]).unwrap();
            sent += moved;
        } else if !std::mem::replace(&mut is_finished, true) {
            sender.finish().unwrap();
        }
        match receiver.try_piece().unwrap() {
            Some(piece) if piece.is_empty() => break,
            Some(piece) => back.extend(piece),
            None if moved == 0 => wait(&called),
            None => {}
        }
    }
    assert!(back == expected);
    echo.join().unwrap();
}

#[test]
fn buffers_given_whole_and_in_part_arrive_in_order() {
    const LARGE: usize = 128 << 10;
    let (here, called, there, _sessions) = polled(drover_link::Limits::default());
    let bytes: Vec<u8> = (0..9_000_007_usize).map(|at| (at * 37 + at / 241) as u8).collect();
    let expected = bytes.clone();
    let (go, gone) = channel();
    let reading = std::thread::spawn(move || {
        let (_sender, mut receiver) = there.split();
        gone.recv().unwrap();
        let (mut all, mut piece) = (Vec::new(), vec![0; 50_000]);
        loop {
            match receiver.read(&mut piece).unwrap() {
                0 => return all,
                length => all.extend_from_slice(&piece[..length]),
            }
        }
    });
    let (sender, _receiver) = here.split();
    let (mut sent, mut was_taken, mut was_copied, mut was_blocked) = (0, 0, 0, 0);
    // A full one goes as it is, one that is little used or small is copied.
    for length in [LARGE, 70_000, 30_000, 300].into_iter().cycle() {
        let length = length.min(bytes.len() - sent);
        let mut buffer = sender.buffer(LARGE);
        buffer[..length].copy_from_slice(&bytes[sent..sent + length]);
        let given = sender.try_give(&mut buffer, length).unwrap();
        assert!(
            buffer.len() == LARGE || (buffer.is_empty() && given == length && length >= LARGE - LARGE / 8)
        );
        was_taken += usize::from(buffer.is_empty());
        was_copied += usize::from(!buffer.is_empty() && given > 0);
        sender.give_back(buffer);
        sent += given;
        if sent == bytes.len() {
            break;
        }
        if given < length {
            was_blocked += 1;
            go.send(()).unwrap();
            while sender.try_room(LARGE).unwrap() == 0 {
                wait(&called);
            }
        }
    }
    sender.finish().unwrap();
    assert!(reading.join().unwrap() == expected);
    assert!(was_taken > 20 && was_copied > 20 && was_blocked > 0, "{was_taken} {was_copied} {was_blocked}");
}

#[test]
fn what_ended_badly_says_so_each_time_it_is_read() {
    let (here, _called, there, _sessions) = polled(drover_link::Limits::default());
    here.sender().write_all(&[7; 30_000]).unwrap();
    let (_sender, mut receiver) = there.split();
    let mut buffer = vec![0; 30_000];
    let mut left = buffer.len();
    while left > 0 {
        left -= receiver.read(&mut buffer).unwrap();
    }
    here.sender().reset();
    for _ in 0..2 {
        assert_eq!(receiver.read(&mut buffer).unwrap_err().kind, LinkErrorKind::Reset);
    }
}

#[test]
fn one_who_found_no_room_is_called_when_there_is() {
    let (here, called, there, _sessions) = polled(drover_link::Limits::default());
    let (sender, _receiver) = here.split();
    let piece = vec![7; 100_000];
    let mut sent = 0;
    loop {
        match sender.try_write(&piece).unwrap() {
            0 => break,
            bytes => sent += bytes,
        }
    }
    assert_eq!(sender.try_room(1_000_000).unwrap(), 0);
    assert!(sender.lacks_credit(), "nobody reads");
    let (_sender, mut receiver) = there.split();
    let mut left = sent;
    let mut buffer = vec![0; 100_000];
    while left > 0 {
        left -= receiver.read(&mut buffer).unwrap();
    }
    let mut room = 0;
    while room == 0 {
        wait(&called);
        room = sender.try_room(1_000_000).unwrap();
    }
    assert!(!sender.lacks_credit());
}

#[test]
fn ends_of_all_kinds_are_told() {
    let (here, called, there, _sessions) = polled(drover_link::Limits::default());
    let (sender, receiver) = here.split();
    assert!(receiver.try_piece().unwrap().is_none() && !sender.is_given_up());
    drop(there);
    while !sender.is_given_up() {
        wait(&called);
    }
    assert_eq!(sender.try_write(&[1; 100_000]).unwrap_err().kind, LinkErrorKind::Reset);
    while receiver.try_piece().is_ok() {
        wait(&called);
    }
    assert_eq!(receiver.try_piece().unwrap_err().kind, LinkErrorKind::Reset);

    let (here, called, _there, (_one, two)) = polled(drover_link::Limits::default());
    let (sender, receiver) = here.split();
    std::thread::spawn(move || two.close());
    while !sender.is_given_up() {
        wait(&called);
    }
    assert_eq!(receiver.try_piece().unwrap_err().kind, LinkErrorKind::Closed);
}

#[test]
fn a_rest_of_credit_is_room_however_much_is_wanted() {
    let mut limits = drover_link::Limits::default();
    // For one frame of 72 bytes, and for no second one.
    limits.credits.stream = 200;
    let (here, _called, _there, _sessions) = polled(limits);
    let sender = here.sender();
    assert_eq!((sender.try_room(256 << 10).unwrap(), sender.lacks_credit()), (72, false));
    assert_eq!(sender.try_write(&[7; 72]).unwrap(), 72);
    assert_eq!((sender.try_room(256 << 10).unwrap(), sender.lacks_credit()), (0, true));
}
