//! Old servers, and sizes that do not fit their blocks.

use std::sync::{Arc, Mutex};

use drover_disk::{Disk, DiskErrorKind, conformance};
use drover_nbd::{NbdDisk, NbdOptions, NbdUri};
use drover_types::ByteSpan;

use crate::fake::*;
use crate::process::{NbdServer, installed, nbdkit};
use crate::{Dir, bytes, read, text, words};

fn source(uri: &NbdUri) -> NbdDisk {
    NbdDisk::open_source(uri, NbdOptions::default()).unwrap()
}

fn file(size: u64) -> (Dir, std::path::PathBuf, Vec<u8>) {
    let (dir, content) = (Dir::new(), conformance::pattern(size));
    let path = dir.file("disk");
    std::fs::write(&path, &content).unwrap();
    (dir, path, content)
}

#[test]
fn servers_of_before_2010_are_read() {
    if !installed("nbdkit") {
        return;
    }
    let (_dir, path, content) = file((1 << 20) + 513);
    let server = nbdkit(&["--oldstyle", "file", text(&path)]);
    conformance::check_reader(&source(&server.uri()), &content);
    let named = NbdUri::unix(&server.socket, "web");
    let error = NbdDisk::open_source(&named, NbdOptions::default()).err().unwrap();
    assert!(words(&error).contains("leave the name out"), "{}", words(&error));
}

#[test]
fn nbd_server_is_read_and_written() {
    if !installed("nbd-server") {
        return;
    }
    let (_dir, path, content) = file(3 << 20);
    let server = NbdServer::start(&path, "readonly = true");
    conformance::check_reader(&source(&server.uri()), &content);
    let error = NbdDisk::open_target(&server.uri(), NbdOptions::default()).err().unwrap();
    assert_eq!(error.kind, DiskErrorKind::Denied, "{}", words(&error));
    drop(server);
    let kept = Mutex::new(None);
    conformance::check_writer(
        |size| {
            kept.lock().unwrap().take();
            std::fs::File::create(&path).unwrap().set_len(size.next_multiple_of(4096)).unwrap();
            let server = NbdServer::start(&path, "flush = true\nfua = true");
            let disk = NbdDisk::open_target(&server.uri(), NbdOptions::default()).unwrap();
            *kept.lock().unwrap() = Some(server);
            Arc::new(disk)
        },
        || std::fs::read(&path).unwrap(),
    );
}

/// A server may insist on its blocks, and a disk need not end with one.
#[test]
fn disks_that_end_within_a_block_of_their_server() {
    if !installed("nbdkit") {
        return;
    }
    for (minimum, size) in [("512", (1 << 20) + 512), ("4096", 1 << 20), ("64K", 3 << 20)] {
        let (_dir, path, content) = file(size);
        let minimum = format!("blocksize-minimum={minimum}");
        let policy = ["--filter=blocksize-policy", "file", text(&path), &minimum];
        let rest = ["blocksize-preferred=64K", "blocksize-maximum=64K", "blocksize-error-policy=error"];
        let server = nbdkit(&[&policy[..], &rest].concat());
        let disk = source(&server.uri());
        assert_eq!(disk.limits().bytes_max, 64 << 10);
        conformance::check_reader(&disk, &content);
    }
    for size in [(1 << 20) + 1, (1 << 20) + 513, 5000, 4095, 1] {
        let (_dir, path, content) = file(size);
        let policy = ["--filter=blocksize-policy", "file", text(&path), "blocksize-minimum=4096"];
        let strict = nbdkit(&[&policy[..], &["blocksize-error-policy=error"]].concat());
        let disk = source(&strict.uri());
        let tail = ByteSpan::from_bounds(size / 4096 * 4096, size);
        let error = read(&mut *disk.open_lane().unwrap(), tail).result.unwrap_err();
        assert!(words(&error).contains("ends within a block"), "{}", words(&error));
        assert_ne!(error.kind, DiskErrorKind::Transient, "trying again is no use");
        // One that only advises serves the tail.
        let lenient = nbdkit(&policy);
        let disk = source(&lenient.uri());
        assert_eq!(bytes(read(&mut *disk.open_lane().unwrap(), tail)), content[tail.offset as usize..]);
        assert_eq!(crate::read_all(&disk), content);
    }
}

#[test]
fn requests_that_do_not_fit_the_blocks_never_leave() {
    let fake = Fake::start(|mut peer, number| {
        peer.greet(3)?;
        loop {
            match peer.option()? {
                (7, _) => {
                    peer.export_info(7, OFFER)?;
                    let sizes = [[0u8, 0, 16, 0], [0, 0, 16, 0], [0, 1, 0x0f, 0xff]].concat();
                    peer.answer(7, INFO, &[&[0, 3][..], &sizes].concat())?;
                    peer.answer(7, ACK, &[])?;
                    break;
                }
                (option, _) => peer.answer(option, UNSUPPORTED, &[])?,
            }
        }
        if number > 0 {
            let asked = peer.request()?;
            assert_eq!((asked.offset, asked.length), (0x1000, 0x1000));
            peer.simple(0, asked.cookie, &[1; 0x1000])?;
        }
        peer.hold()
    });
    let disk = fake.source();
    assert_eq!(disk.limits().bytes_max, 64 << 10, "a maximum is rounded down to whole blocks");
    let mut lane = disk.open_lane().unwrap();
    for span in [ByteSpan::new(1, 4096), ByteSpan::new(0, 4097), ByteSpan::new(0, 68 << 10)] {
        let error = read(&mut *lane, span).result.unwrap_err();
        assert_eq!(error.kind, DiskErrorKind::Misuse, "{}", words(&error));
    }
    assert_eq!(bytes(read(&mut *lane, ByteSpan::new(0x1000, 0x1000))), vec![1; 0x1000]);
}
