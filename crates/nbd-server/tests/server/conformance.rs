use std::sync::{Arc, Mutex};

use drover_disk::{Features, FileDisk, Limits, MemDisk, OpenTarget, conformance};
use drover_nbd::{NbdDisk, NbdOptions};
use drover_nbd_server::{Export, Listen, Server, ServerOptions};

use crate::Stage;

fn source(stage: &Stage) -> NbdDisk {
    NbdDisk::open_source(&stage.uri(), NbdOptions::default()).unwrap()
}

fn target(stage: &Stage) -> NbdDisk {
    NbdDisk::open_target(&stage.uri(), NbdOptions::default()).unwrap()
}

const SIZES: [u64; 8] = [1, 511, 512, 513, 4096, 65537, 1 << 20, (3 << 20) + 17];

#[test]
fn disks_in_memory_read_as_they_are() {
    for size in SIZES {
        let content = conformance::pattern(size);
        conformance::check_reader(&source(&Stage::readable(MemDisk::new("a", content.clone()))), &content);
    }
}

#[test]
fn files_read_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    for size in SIZES {
        let content = conformance::pattern(size);
        let path = folder.path().join("disk");
        std::fs::write(&path, &content).unwrap();
        let disk = FileDisk::open_source(&path).unwrap();
        conformance::check_reader(&source(&Stage::readable(disk)), &content);
    }
}

#[test]
fn over_tcp_it_is_the_same() {
    let content = conformance::pattern((3 << 20) + 17);
    let export = Export::new("web01/disk0", Arc::new(MemDisk::new("a", content.clone()))).holes_in_reads();
    let listen = Listen::Tcp("127.0.0.1:0".to_string());
    let server = Server::start(vec![export], &listen, ServerOptions::default()).unwrap();
    let uri = server.uri("web01/disk0").parse().unwrap();
    conformance::check_reader(&NbdDisk::open_source(&uri, NbdOptions::default()).unwrap(), &content);
}

/// A disk that takes only small, aligned requests, one lane of them, and tells no holes.
fn poor(size: u64) -> MemDisk {
    let limits = Limits { bytes_min: 512, bytes_preferred: 512, bytes_max: 4096, lanes_max: 1, depth_max: 1 };
    let features = Features { writable: true, fast_zero: false, extents: false, zeroed: false };
    MemDisk::new("poor", conformance::pattern(size)).with_limits(limits).with_features(features)
}

#[test]
fn a_poor_disk_is_served_within_its_limits() {
    let content = conformance::pattern(1 << 20);
    conformance::check_reader(&source(&Stage::readable(poor(1 << 20))), &content);
}

#[test]
fn what_is_written_arrives_in_memory() {
    writes(|size| MemDisk::new("a", vec![0xee; size as usize]));
}

#[test]
fn what_is_written_arrives_on_a_poor_disk() {
    writes(|size| poor(size.next_multiple_of(512)));
}

fn writes(make: impl Fn(u64) -> MemDisk) {
    let last = Mutex::new(None);
    conformance::check_writer(
        |size| {
            let disk = make(size);
            let stage = Stage::writable(disk.clone());
            let client = target(&stage);
            *last.lock().unwrap() = Some((disk, stage));
            Arc::new(client)
        },
        || {
            let last = last.lock().unwrap();
            let (disk, _) = last.as_ref().unwrap();
            assert!(!disk.has_unflushed(), "a flush of the client is one of the disk");
            disk.content()
        },
    );
}

#[test]
fn what_is_written_arrives_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let last = Mutex::new(None);
    conformance::check_writer(
        |size| {
            let mut last = last.lock().unwrap();
            *last = None;
            let _ = std::fs::remove_file(&path);
            let how = OpenTarget { size, create: true, resume: false };
            let stage = Stage::writable(FileDisk::open_target(&path, how).unwrap());
            let client = target(&stage);
            *last = Some(stage);
            Arc::new(client)
        },
        || std::fs::read(&path).unwrap(),
    );
}
