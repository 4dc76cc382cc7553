use std::sync::{Arc, Mutex};

use drover_agent::Places;
use drover_agent::opening::How;
use drover_disk::{Features, Limits, MemDisk, conformance};

use crate::stage::{One, Stage, source, target};

const SIZES: [u64; 8] = [1, 511, 512, 513, 4096, 65537, 1 << 20, (3 << 20) + 17];

#[test]
fn disks_read_as_they_are() {
    for size in SIZES {
        let content = conformance::pattern(size);
        let stage = Stage::new(One::new(MemDisk::new("a", content.clone())));
        conformance::check_reader(&source(&stage.site(), "one"), &content);
    }
}

/// A disk that takes only small, aligned requests, one lane of them, and tells no holes.
fn poor(size: u64) -> MemDisk {
    let limits = Limits { bytes_min: 512, bytes_preferred: 512, bytes_max: 4096, lanes_max: 1, depth_max: 1 };
    let features = Features { writable: true, fast_zero: false, extents: false, zeroed: false };
    MemDisk::new("poor", conformance::pattern(size)).with_limits(limits).with_features(features)
}

#[test]
fn a_poor_disk_reads_as_it_is() {
    let content = conformance::pattern(1 << 20);
    let stage = Stage::new(One::new(poor(1 << 20)));
    conformance::check_reader(&source(&stage.site(), "one"), &content);
}

fn writes(make: impl Fn(u64) -> MemDisk) {
    let last = Mutex::new(None);
    conformance::check_writer(
        |size| {
            let disk = make(size);
            let size = drover_disk::Disk::size(&disk);
            let stage = Stage::new(One::new(disk.clone()));
            *last.lock().unwrap() = Some(disk);
            Arc::new(target(&stage.site(), "one", size, How::Resume).unwrap())
        },
        || {
            let last = last.lock().unwrap();
            let disk = last.as_ref().unwrap();
            assert!(!disk.has_unflushed(), "a flush of the client is one of the disk");
            disk.content()
        },
    );
}

#[test]
fn what_is_written_arrives_in_memory() {
    writes(|size| MemDisk::new("a", vec![0xee; size as usize]));
}

#[test]
fn what_is_written_arrives_on_a_poor_disk() {
    writes(|size| poor(size.next_multiple_of(512)));
}

#[test]
fn what_is_written_arrives_in_a_file_of_a_pool() {
    let folder = tempfile::tempdir().unwrap();
    let pool = folder.path().join("pool");
    std::fs::create_dir(&pool).unwrap();
    let state = pool.join(".state");
    let places = Places { pools: [("vms".to_string(), pool.clone())].into(), state, ..Places::default() };
    let site = Stage::new(places).site();
    conformance::check_writer(
        |size| Arc::new(target(&site, "vms/disk.raw", size, How::Force).unwrap()),
        || std::fs::read(pool.join("disk.raw")).unwrap(),
    );
    let content = std::fs::read(pool.join("disk.raw")).unwrap();
    conformance::check_reader(&source(&site, "vms/disk.raw"), &content);
}
