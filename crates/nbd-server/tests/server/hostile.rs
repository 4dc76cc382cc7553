//! Clients that mean harm: none of them costs more than its own connection.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::{Duration, Instant};

use drover_disk::MemDisk;
use drover_nbd::wire::{self, option};
use drover_nbd_server::{Export, ServerOptions};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::Stage;
use crate::raw::{Ask, Raw};

fn stage() -> Stage {
    Stage::writable(MemDisk::new("a", vec![7; 1 << 20]))
}

fn still_serves(stage: &Stage) {
    assert_eq!(Raw::go(stage, &["base:allocation"]).read(512, 512).data[0].1, [7; 512]);
}

/// Runs this test in a process of its own, whose memory no other test uses; false in that process.
fn is_run_alone(name: &str) -> bool {
    const ALONE: &str = "DROVER_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return false;
    }
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let output = alone.args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
    let told =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
    true
}

/// Resident memory of this process.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn rubbish_at_any_stage_ends_that_connection_only() {
    let stage = stage();
    let mut runner = TestRunner::new(Config { cases: 60, ..Config::default() });
    let rubbish = prop::collection::vec(any::<u8>(), 1..300);
    runner
        .run(&(0u8..4, rubbish), |(when, rubbish)| {
            let mut raw = match when {
                0 => Raw::connect(&stage),
                1 => Raw::greet(&stage),
                2 => Raw::go(&stage, &["base:allocation"]),
                _ => Raw::go_extended(&stage, &[]),
            };
            // The server may hang up while we still talk.
            let _ = raw.stream.write_all(&rubbish);
            let _ = raw.stream.shutdown(std::net::Shutdown::Write);
            prop_assert!(raw.is_ended());
            Ok(())
        })
        .unwrap();
    still_serves(&stage);
}

#[test]
fn options_of_any_content_are_answered_or_end_the_connection() {
    let stage = stage();
    let mut runner = TestRunner::new(Config { cases: 60, ..Config::default() });
    let options = prop::collection::vec((0u32..13, prop::collection::vec(any::<u8>(), 0..40)), 1..20);
    runner
        .run(&options, |options| {
            let mut raw = Raw::greet(&stage);
            for (code, data) in options {
                let _ = raw.stream.write_all(&wire::encode_option(code, &data));
            }
            let _ = raw.stream.shutdown(std::net::Shutdown::Write);
            prop_assert!(raw.is_ended());
            Ok(())
        })
        .unwrap();
    still_serves(&stage);
}

#[test]
fn lengths_beyond_all_bounds_take_no_memory() {
    if is_run_alone("hostile::lengths_beyond_all_bounds_take_no_memory") {
        return;
    }
    let stage = stage();
    let before = resident_bytes();
    for _ in 0..20 {
        let mut raw = Raw::greet(&stage);
        raw.send(&wire::OPTION_MAGIC.to_be_bytes());
        raw.send(&option::GO.to_be_bytes());
        raw.send(&u32::MAX.to_be_bytes());
        assert!(raw.is_ended());
        let mut raw = Raw::go_extended(&stage, &[]);
        raw.head(Ask { command: 1, flags: wire::COMMAND_PAYLOAD, offset: 0, length: u64::MAX });
        assert!(raw.is_ended());
        let mut raw = Raw::go(&stage, &[]);
        raw.head(Ask { command: 1, offset: 0, length: u64::from(u32::MAX), ..Ask::default() });
        assert!(raw.is_ended());
    }
    assert!(resident_bytes() < before + (64 << 20));
    still_serves(&stage);
}

#[test]
fn endless_options_end() {
    let stage = stage();
    let mut raw = Raw::greet(&stage);
    for _ in 0..300 {
        let _ = raw.stream.write_all(&wire::encode_option(option::LIST, &[]));
    }
    assert!(raw.is_ended());
}

#[test]
fn a_client_that_takes_no_replies_is_held_back_and_blocks_nobody() {
    if is_run_alone("hostile::a_client_that_takes_no_replies_is_held_back_and_blocks_nobody") {
        return;
    }
    let stage = Stage::readable(MemDisk::new("a", vec![7; 32 << 20]));
    let before = resident_bytes();
    let mut greedy: Vec<Raw> = (0..4).map(|_| Raw::go(&stage, &[])).collect();
    for raw in &mut greedy {
        raw.stream.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        for _ in 0..200 {
            let mut head = wire::REQUEST_MAGIC.to_be_bytes().to_vec();
            head.extend([0; 20]);
            head.extend((32u32 << 20).to_be_bytes());
            if raw.stream.write_all(&head).is_err() {
                break;
            }
        }
    }
    for _ in 0..20 {
        still_serves(&stage);
    }
    // Each holds one request of 32 MiB, in its reply.
    let more = resident_bytes().saturating_sub(before);
    assert!(more < 4 * (64 << 20), "{more} bytes for four clients");
}

#[test]
fn a_client_that_vanishes_in_the_middle_of_a_write_changes_nothing() {
    let disk = MemDisk::new("a", vec![7; 1 << 20]);
    let stage = Stage::writable(disk.clone());
    for _ in 0..10 {
        let mut raw = Raw::go(&stage, &[]);
        raw.head(Ask { command: 1, length: 65536, ..Ask::default() });
        raw.send(&[1; 30_000]);
    }
    still_serves(&stage);
    assert!(disk.content().iter().all(|byte| *byte == 7) && disk.counts().writes == 0);
}

#[test]
fn too_many_clients_are_sent_away_and_room_comes_back() {
    let disk = std::sync::Arc::new(MemDisk::new("a", vec![7; 1 << 20]));
    let options = ServerOptions { connections_max: 3, ..ServerOptions::default() };
    let stage = Stage::with(Export::new("", disk), options);
    let clients: Vec<Raw> = (0..3).map(|_| Raw::go(&stage, &[])).collect();
    let mut fourth = UnixStream::connect(&stage.socket).unwrap();
    assert_eq!(fourth.read(&mut [0; 18]).unwrap(), 0);
    drop(clients);
    while stage.server().clients() > 0 {
        std::thread::sleep(Duration::from_millis(5));
    }
    still_serves(&stage);
}

#[test]
fn a_program_that_opens_more_disks_than_others_have_has_a_connection_for_each() {
    let disks = 40;
    let disk = std::sync::Arc::new(MemDisk::new("a", vec![7; 1 << 20]));
    let stage = Stage::with(Export::new("", disk), ServerOptions::for_disks(disks));
    let clients: Vec<Raw> = (0..disks).map(|_| Raw::go(&stage, &[])).collect();
    assert_eq!((clients.len(), stage.server().clients()), (disks, disks));
}

#[test]
fn a_dawdling_handshake_is_cut_off() {
    let disk = std::sync::Arc::new(MemDisk::new("a", vec![7; 1 << 20]));
    let options = ServerOptions { handshake_max: Duration::from_secs(3), ..ServerOptions::default() };
    let stage = Stage::with(Export::new("", disk), options);
    let mut raw = Raw::greet(&stage);
    let started = Instant::now();
    // A byte now and then gains nothing.
    while started.elapsed() < Duration::from_secs(60) {
        if raw.stream.write_all(b"I").is_err() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("a minute of dawdling");
}
