//! Servers that stall, stop, die and come back.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use drover_disk::{Disk, DiskError, DiskErrorKind, Lane, conformance};
use drover_nbd::{NbdDisk, NbdOptions};
use drover_types::ByteSpan;

use crate::fake::*;
use crate::process::{Server, installed, nbdkit};
use crate::{Dir, bytes, read, submit_read, text, words};

const SPAN: ByteSpan = ByteSpan::new(0x1000, 0x1000);

fn impatient(request: Duration) -> NbdOptions {
    NbdOptions { request_timeout: request, ..hasty() }
}

/// Opens lanes until one is to be had, as a copy does.
fn lane_at_last(disk: &NbdDisk, each: impl Fn(&DiskError)) -> Box<dyn Lane> {
    let started = Instant::now();
    loop {
        match disk.open_lane() {
            Ok(lane) => return lane,
            Err(error) => each(&error),
        }
        assert!(started.elapsed() < Duration::from_secs(120), "it never came back");
    }
}

#[test]
fn a_request_that_is_never_answered_costs_the_connection_though_others_are() {
    let fake = Fake::start(|mut peer, number| {
        peer.handshake(OFFER)?;
        if number == 1 {
            peer.request()?;
        }
        peer.serve(9).map(drop)
    });
    let disk = NbdDisk::open_source(&fake.uri(), impatient(PATIENCE / 2)).unwrap();
    let mut lane = disk.open_lane().unwrap();
    submit_read(&mut *lane, 0, SPAN);
    let error = loop {
        submit_read(&mut *lane, 1, SPAN);
        let completion = lane.complete().unwrap();
        if let Err(error) = completion.result {
            break error;
        }
        // Without a pause: only the time in which an answer is waited for counts against the server.
        assert_eq!(completion.id, 1);
    };
    assert_eq!(error.kind, DiskErrorKind::Transient);
    assert!(words(&error).contains("Read of 0x1000+0x1000 has no answer"), "{}", words(&error));
    assert!(lane.is_broken());
    assert_eq!(bytes(read(&mut *disk.open_lane().unwrap(), SPAN)), vec![9; 0x1000]);
}

#[test]
fn a_slow_answer_that_comes_bit_by_bit_is_waited_for() {
    const MIB: u64 = 1 << 20;
    let fake = Fake::start(|mut peer, number| {
        peer.handshake(OFFER)?;
        if number == 1 {
            let asked = peer.request()?;
            for start in (0..asked.length).step_by(64 << 10) {
                std::thread::sleep(PATIENCE / 8);
                peer.data_chunk(false, asked.cookie, start, &[3; 64 << 10])?;
            }
            peer.chunk(true, 0, asked.cookie, &[])?;
        }
        peer.serve(9).map(drop)
    });
    let disk = NbdDisk::open_source(&fake.uri(), impatient(PATIENCE)).unwrap();
    let mut lane = disk.open_lane().unwrap();
    assert_eq!(bytes(read(&mut *lane, ByteSpan::new(0, MIB))), vec![3; MIB as usize]);
}

#[test]
fn an_answer_in_drips_is_not_waited_for_without_end() {
    let fake = Fake::start(|mut peer, number| {
        peer.handshake(OFFER)?;
        if number > 0 {
            let asked = peer.request()?;
            peer.chunk_head(true, 1, asked.cookie, 8 + 0x1000)?;
            peer.send(asked.offset.to_be_bytes())?;
            loop {
                peer.send([7])?;
                std::thread::sleep(PATIENCE / 20);
            }
        }
        peer.hold()
    });
    let disk = NbdDisk::open_source(&fake.uri(), impatient(PATIENCE)).unwrap();
    let error = read(&mut *disk.open_lane().unwrap(), SPAN).result.unwrap_err();
    assert_eq!(error.kind, DiskErrorKind::Transient, "{}", words(&error));
}

#[test]
fn a_server_that_takes_a_few_bytes_now_and_then_is_not_waited_for_without_end() {
    use std::io::Read;
    let offer = Offer { size: 64 << 20, flags: 1 | FLUSH | MULTI, ..OFFER };
    let fake = Fake::start(move |mut peer, number| {
        peer.handshake(offer)?;
        if number == 0 {
            return peer.hold();
        }
        loop {
            peer.stream.read_exact(&mut [0; 4096])?;
            std::thread::sleep(PATIENCE / 10);
        }
    });
    let disk = NbdDisk::open_target(&fake.uri(), impatient(PATIENCE)).unwrap();
    let mut lane = disk.open_lane().unwrap();
    let error = crate::write(&mut *lane, ByteSpan::new(0, 32 << 20), 1).result.unwrap_err();
    // Which of the two times ends first is up to the kernel's buffers.
    assert!(error.kind == DiskErrorKind::Transient && lane.is_broken(), "{}", words(&error));
}

/// A copy that pauses (its target is full, its user asked) does not take its source for dead.
#[test]
fn time_in_which_nobody_asked_does_not_count() {
    let (tell, told) = mpsc::channel();
    let fake = Fake::start(move |mut peer, number| {
        peer.handshake(OFFER)?;
        if number > 0 {
            let asked = peer.request()?;
            peer.chunk_head(true, 1, asked.cookie, 8 + 0x1000)?;
            peer.send([&asked.offset.to_be_bytes()[..], &[7; 100]].concat())?;
            std::thread::sleep(PATIENCE);
            peer.send([7; 0x1000 - 100])?;
            tell.send(()).unwrap();
        }
        peer.hold()
    });
    let disk = NbdDisk::open_source(&fake.uri(), impatient(PATIENCE / 10)).unwrap();
    let mut lane = disk.open_lane().unwrap();
    submit_read(&mut *lane, 1, SPAN);
    submit_read(&mut *lane, 2, SPAN);
    // By now all of the answer has come.
    told.recv().unwrap();
    assert_eq!(bytes(lane.complete().unwrap()), vec![7; 0x1000]);
}

fn file_server(dir: &Dir) -> (Server, Vec<String>, Vec<u8>) {
    let content = conformance::pattern(3 << 20);
    std::fs::write(dir.file("disk"), &content).unwrap();
    let arguments = vec!["file".to_string(), text(&dir.file("disk")).to_string()];
    let server = nbdkit(&[&arguments[0], &arguments[1]]);
    (server, arguments, content)
}

#[test]
fn a_server_that_died_is_found_again_when_it_is_back() {
    if !installed("nbdkit") {
        return;
    }
    let dir = Dir::new();
    let (mut server, arguments, content) = file_server(&dir);
    let disk = NbdDisk::open_source(&server.uri(), options()).unwrap();
    let mut lane = disk.open_lane().unwrap();
    let span = ByteSpan::new(1 << 20, 1 << 20);
    assert_eq!(bytes(read(&mut *lane, span)), content[1 << 20..2 << 20]);
    server.kill();
    assert_eq!(read(&mut *lane, span).result.unwrap_err().kind, DiskErrorKind::Transient);
    assert!(lane.is_broken());
    // First its socket refuses, then it is not even there: both may pass.
    assert_eq!(disk.open_lane().err().unwrap().kind, DiskErrorKind::Transient);
    std::fs::remove_file(&server.socket).unwrap();
    let error = disk.open_lane().err().unwrap();
    assert_eq!(error.kind, DiskErrorKind::Transient, "{}", words(&error));
    assert_eq!(disk.extents(span).unwrap_err().kind, DiskErrorKind::Transient);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut lane = lane_at_last(&disk, |error| assert_eq!(error.kind, DiskErrorKind::Transient));
            assert_eq!(bytes(read(&mut *lane, span)), content[1 << 20..2 << 20]);
        });
        // Not in a thread of its own: nbdkit ends with the thread that started it.
        std::thread::sleep(Duration::from_millis(700));
        server.nbdkit_again(&arguments);
    });
    // The control connection is made anew by whoever needs it, without an error.
    assert!(!disk.extents(span).unwrap().is_empty());
    assert!(disk.limits().lanes_max > 1, "several connections as before");
}

#[test]
fn a_server_that_stands_still_for_longer_than_the_timeout_is_used_again() {
    if !installed("nbdkit") {
        return;
    }
    let dir = Dir::new();
    let (server, _, content) = file_server(&dir);
    let disk = NbdDisk::open_source(&server.uri(), hasty()).unwrap();
    let mut lane = disk.open_lane().unwrap();
    server.freeze();
    let error = read(&mut *lane, SPAN).result.unwrap_err();
    assert!(error.kind == DiskErrorKind::Transient && lane.is_broken(), "{}", words(&error));
    // The kernel still takes connections for it; that nobody greets there is no reason to share one.
    assert_eq!(disk.open_lane().err().unwrap().kind, DiskErrorKind::Transient);
    assert!(disk.limits().lanes_max > 1);
    server.thaw();
    let mut lane = lane_at_last(&disk, |error| assert_eq!(error.kind, DiskErrorKind::Transient));
    assert_eq!(bytes(read(&mut *lane, SPAN)), content[0x1000..0x2000]);
    conformance::check_reader(&disk, &content);
}

#[test]
fn lanes_that_share_a_connection_share_the_next_one_too() {
    if !installed("nbdkit") {
        return;
    }
    let dir = Dir::new();
    let (mut server, arguments, content) = file_server(&dir);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let alone = [&["--filter=multi-conn"], &arguments[..], &["multi-conn-mode=disable"]].concat();
    server.kill();
    server.nbdkit_again(&alone);
    let disk = NbdDisk::open_target(&server.uri(), options()).unwrap();
    assert_eq!(disk.limits().lanes_max, 4, "lanes share the one connection");
    let (mut a, mut b) = (disk.open_lane().unwrap(), disk.open_lane().unwrap());
    assert_eq!(bytes(read(&mut *a, SPAN)), content[0x1000..0x2000]);
    submit_read(&mut *b, 5, SPAN);
    server.kill();
    server.nbdkit_again(&alone);
    let _ = b.complete();
    let _ = read(&mut *b, SPAN);
    assert!(a.is_broken() && b.is_broken(), "one connection, one fate");
    assert_eq!(read(&mut *a, SPAN).result.unwrap_err().kind, DiskErrorKind::Transient);
    let (mut a, mut b) = (disk.open_lane().unwrap(), disk.open_lane().unwrap());
    submit_read(&mut *a, 1, SPAN);
    assert_eq!(bytes(read(&mut *b, SPAN)), content[0x1000..0x2000]);
    assert_eq!(bytes(a.complete().unwrap()), content[0x1000..0x2000]);
    assert_eq!(disk.flush().unwrap_err().kind, DiskErrorKind::Transient, "what was not flushed may be lost");
    disk.flush().unwrap();
}
