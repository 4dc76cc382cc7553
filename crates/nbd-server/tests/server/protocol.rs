//! What the protocol says, byte by byte.

use std::sync::Arc;

use drover_disk::memory::{Effect, Nth};
use drover_disk::{DiskErrorKind, DiskOp, MemDisk, conformance};
use drover_nbd::wire::{self, COMMAND_DF, COMMAND_REQ_ONE, answer, option};
use drover_nbd_server::{Export, Run};

use crate::Stage;
use crate::raw::{Ask, Raw};

const EPERM: u32 = 1;
const EIO: u32 = 5;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;

fn refusal(answers: &[(u32, Vec<u8>)]) -> u32 {
    assert_eq!(answers.len(), 1);
    answers[0].0
}

#[test]
fn options_are_answered_as_the_protocol_says() {
    let stage = Stage::readable(MemDisk::new("a", vec![1; 4096]));
    let mut raw = Raw::greet(&stage);
    assert_eq!(refusal(&raw.option(77, &[])), answer::UNSUPPORTED);
    assert_eq!(refusal(&raw.option(option::LIST, b"x")), answer::INVALID);
    assert_eq!(refusal(&raw.option(option::STARTTLS, &[])), answer::POLICY);
    assert_eq!(refusal(&raw.option(option::GO, &wire::encode_go("nobody", &[]))), answer::UNKNOWN);
    assert_eq!(refusal(&raw.option(option::GO, &[0, 0, 0, 9])), answer::INVALID);
    assert_eq!(refusal(&raw.option(option::GO, &[0; 7])), answer::INVALID);
    assert_eq!(refusal(&raw.option(option::SET_META_CONTEXT, &[0; 8])), answer::INVALID, "structured first");
    raw.agree(option::STRUCTURED_REPLY);
    raw.agree(option::EXTENDED_HEADERS);
    assert_eq!(refusal(&raw.option(option::STRUCTURED_REPLY, &[])), answer::EXTENDED_HEADERS_REQUIRED);
    assert_eq!(refusal(&raw.option(option::LIST, &vec![0; 1 << 20])), answer::TOO_BIG);
    let info = raw.option(option::INFO, &wire::encode_go("", &[1, 3]));
    assert_eq!(info.len(), 4, "size, name, block sizes, done: {info:?}");
    assert_eq!(raw.option(option::ABORT, &[]), [(answer::ACK, vec![])]);
    assert!(raw.is_ended());
}

#[test]
fn contexts_are_listed_and_chosen() {
    let status = |span: drover_types::ByteSpan| vec![Run { length: span.length, flags: 1 }];
    let disk = Arc::new(MemDisk::new("a", conformance::pattern(1 << 20)));
    let stage = Stage::new(Export::new("", disk).with_context("drover:recorded", status));
    let mut raw = Raw::greet(&stage);
    raw.agree(option::STRUCTURED_REPLY);
    let listed = raw.option(option::LIST_META_CONTEXT, &[0; 8]);
    assert_eq!(listed.len(), 3);
    let granted =
        raw.set_contexts(&["drover:recorded", "qemu:dirty-bitmap:x", "base:allocation", "drover:fence=3"]);
    let (recorded, base) = (granted[0].0, granted[1].0);
    assert_eq!(
        granted.iter().map(|it| it.1.as_str()).collect::<Vec<_>>(),
        ["drover:recorded", "base:allocation"]
    );
    raw.start();
    let reply = raw.ask(Ask { command: 7, length: 1 << 20, ..Ask::default() }, &[]);
    let told: Vec<u32> = reply.status.iter().map(|(context, _)| *context).collect();
    assert_eq!(told, [recorded, base]);
    assert_eq!(reply.status[0].1, [(1 << 20, 1)]);
    assert_eq!(reply.status[1].1[..2], [(1 << 18, 0), (1 << 18, 3)]);
    let one = raw.ask(Ask { command: 7, flags: COMMAND_REQ_ONE, offset: 0, length: 1 << 20 }, &[]);
    assert!(one.status.iter().all(|(_, runs)| runs.len() == 1), "{one:?}");
}

#[test]
fn holes_come_without_data_unless_a_whole_answer_is_asked() {
    let content = conformance::pattern(4 << 20);
    let stage = Stage::readable(MemDisk::new("a", content.clone()));
    for mut raw in [Raw::go(&stage, &[]), Raw::go_extended(&stage, &[])] {
        let mut sent = 0;
        for (offset, length) in [(0, 4 << 20), (5, 3 << 20), ((1 << 20) - 1, 2), (1 << 20, 1 << 20)] {
            let reply = raw.read(offset, length);
            assert!(reply.content(offset, length) == content[offset as usize..(offset + length) as usize]);
            sent += reply.data.iter().map(|(_, data)| data.len() as u64).sum::<u64>();
            let whole = raw.ask(Ask { flags: COMMAND_DF, offset, length, ..Ask::default() }, &[]);
            assert_eq!((whole.data.len(), whole.holes.len()), (1, 0));
        }
        assert!(sent < 6 << 20, "{sent} bytes of 8 MiB, half of them holes");
    }
}

#[test]
fn a_client_of_the_old_kind_is_served_too() {
    let stage = Stage::writable(MemDisk::new("a", vec![0; 1 << 20]));
    let mut raw = Raw::greet(&stage);
    raw.send(&wire::encode_option(option::EXPORT_NAME, b""));
    assert_eq!(u64::from_be_bytes(raw.array()), 1 << 20);
    let _flags: [u8; 2] = raw.array();
    assert_eq!(raw.write(512, &[7; 4096]).error, 0);
    assert_eq!(raw.read(512, 4096).data[0].1, [7; 4096]);
    assert_eq!(raw.read(1 << 20, 1).error, EINVAL);
    raw.head(Ask { command: 2, ..Ask::default() });
    assert!(raw.is_ended());
    let mut raw = Raw::greet(&stage);
    raw.send(&wire::encode_option(option::EXPORT_NAME, b"nobody"));
    assert!(raw.is_ended());
}

#[test]
fn wrong_requests_are_refused_and_the_connection_goes_on() {
    let disk = MemDisk::new("a", vec![0; 1 << 20]);
    for writable in [true, false] {
        let stage = if writable { Stage::writable(disk.clone()) } else { Stage::readable(disk.clone()) };
        for mut raw in [Raw::go(&stage, &[]), Raw::go_extended(&stage, &[])] {
            for (ask, error) in [
                (Ask { offset: 1 << 20, length: 1, ..Ask::default() }, EINVAL),
                (Ask { offset: u64::MAX, length: u64::from(u32::MAX), ..Ask::default() }, EINVAL),
                (Ask { length: 0, ..Ask::default() }, EINVAL),
                (Ask { flags: 0x4000, length: 1, ..Ask::default() }, EINVAL),
                (Ask { command: 5, length: 1, ..Ask::default() }, EINVAL),
                (Ask { command: 99, length: 1, ..Ask::default() }, EINVAL),
                (Ask { command: 7, length: 1, ..Ask::default() }, EINVAL),
                (
                    Ask { command: 6, offset: 1 << 20, length: 1, ..Ask::default() },
                    if writable { ENOSPC } else { EPERM },
                ),
                (Ask { command: 4, length: 1, ..Ask::default() }, if writable { 0 } else { EINVAL }),
            ] {
                let reply = raw.ask(ask, &[]);
                assert_eq!(
                    reply.error, error,
                    "command {} at {:#x}: {}",
                    ask.command, ask.offset, reply.message
                );
            }
            let outside = raw.write((1 << 20) - 1, &[1; 4096]);
            assert_eq!(outside.error, if writable { ENOSPC } else { EPERM });
            assert_eq!(raw.read(0, 512).error, 0);
        }
    }
}

#[test]
fn errors_of_the_disk_reach_the_client_in_kind_and_words() {
    let disk = MemDisk::new("secret/path", vec![0; 1 << 20])
        .with_fault(DiskOp::Read, Nth::Only(1), Effect::Fail(DiskErrorKind::Corrupt))
        .with_fault(DiskOp::Write, Nth::Only(1), Effect::Fail(DiskErrorKind::OutOfSpace))
        .with_fault(DiskOp::Flush, Nth::Only(1), Effect::Fail(DiskErrorKind::Failed));
    let stage = Stage::writable(disk);
    let mut raw = Raw::go(&stage, &[]);
    let reply = raw.read(0, 512);
    assert_eq!(reply.error, EIO);
    assert!(
        reply.message.contains("fault on order") && !reply.message.contains("secret"),
        "{}",
        reply.message
    );
    assert_eq!(raw.write(0, &[1; 512]).error, ENOSPC);
    assert_eq!(raw.ask(Ask { command: 3, ..Ask::default() }, &[]).error, EIO);
    assert_eq!((raw.read(0, 512).error, raw.write(0, &[1; 512]).error), (0, 0));
}

#[test]
fn a_broken_lane_costs_a_request_at_most_its_time() {
    let disk = MemDisk::new("a", vec![7; 1 << 20]).with_fault(DiskOp::Read, Nth::Every(2), Effect::BreakLane);
    let stage = Stage::readable(disk);
    let mut raw = Raw::go(&stage, &[]);
    for _ in 0..10 {
        assert_eq!(raw.read(0, 512).data[0].1, [7; 512]);
    }
}

#[test]
fn fua_and_flush_make_durable_and_plain_writes_do_not() {
    let disk = MemDisk::new("a", vec![0; 1 << 20]);
    let stage = Stage::writable(disk.clone());
    let (mut one, mut two) = (Raw::go(&stage, &[]), Raw::go(&stage, &[]));
    assert_eq!(one.write(0, &[1; 512]).error, 0);
    assert!(disk.has_unflushed());
    assert_eq!(two.ask(Ask { command: 3, ..Ask::default() }, &[]).error, 0);
    assert!(!disk.has_unflushed(), "a flush on one connection covers the writes of all");
    for command in [1, 4, 6] {
        let data = if command == 1 { &[2; 512][..] } else { &[] };
        assert_eq!(one.ask(Ask { flags: 1, command, offset: 512, length: 512 }, data).error, 0);
        assert!(!disk.has_unflushed(), "command {command} with FUA");
    }
}

#[test]
fn stopping_answers_what_was_asked_and_flushes() {
    let disk = MemDisk::new("a", vec![0; 1 << 20]).with_fault(
        DiskOp::Write,
        Nth::Every(1),
        Effect::Delay(std::time::Duration::from_millis(200)),
    );
    let mut stage = Stage::writable(disk.clone());
    let mut raw = Raw::go(&stage, &[]);
    let cookie = raw.head(Ask { command: 1, length: 512, ..Ask::default() });
    raw.send(&[7; 512]);
    while disk.counts().writes == 0 {
        std::thread::yield_now();
    }
    stage.stop();
    let (found, reply) = raw.reply(0);
    assert_eq!((found, reply.error), (cookie, 0));
    assert!(disk.content()[..512] == [7; 512] && !disk.has_unflushed());
    assert!(raw.is_ended() && !stage.socket.exists());
}

#[test]
fn sixty_four_bits_of_length_work() {
    let size = 6u64 << 30;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let how = drover_disk::OpenTarget { size, create: true, resume: false };
    let stage = Stage::writable(drover_disk::FileDisk::open_target(&path, how).unwrap());
    let mut raw = Raw::go_extended(&stage, &["base:allocation"]);
    assert_eq!(raw.write(5 << 30, &[1; 4096]).error, 0);
    let reply = raw.ask(Ask { command: 7, offset: 0, length: size, ..Ask::default() }, &[]);
    assert_eq!(reply.status[0].1[0], (5 << 30, 3));
    assert_eq!(raw.ask(Ask { command: 6, offset: 0, length: size, ..Ask::default() }, &[]).error, 0);
    let reply = raw.ask(Ask { command: 7, offset: 0, length: size, ..Ask::default() }, &[]);
    assert_eq!(reply.status[0].1, [(size, 3)]);
    let mut raw = Raw::go(&stage, &["base:allocation"]);
    let reply = raw.ask(Ask { command: 7, offset: 0, length: u64::from(u32::MAX), ..Ask::default() }, &[]);
    assert_eq!(reply.status[0].1, [(u64::from(u32::MAX), 3)]);
}
