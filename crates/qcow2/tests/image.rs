//! Images against an oracle in memory, with QEMU as the outside judge.
#![allow(clippy::unwrap_used)]

mod common;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::Arc;

use common::{Chance, checker, has_qemu, qemu_check, qemu_img, qemu_read, read, run, write};
use drover_disk::{Disk, DiskErrorKind, Work, conformance};
use drover_qcow2::{Compression, Preallocation, Qcow2Disk, Qcow2Options};
use drover_types::{ByteSpan, ExtentKind};

const CLUSTERS: [u64; 4] = [4 << 10, 64 << 10, 512 << 10, 2 << 20];

fn of_clusters(cluster_bytes: u64) -> Qcow2Options {
    Qcow2Options { cluster_bytes, ..Qcow2Options::default() }
}

fn packed(cluster_bytes: u64, compression: Compression) -> Qcow2Options {
    Qcow2Options { compression, compress: true, ..of_clusters(cluster_bytes) }
}

fn preallocated(preallocation: Preallocation) -> Qcow2Options {
    Qcow2Options { preallocation, ..Qcow2Options::default() }
}

fn all_options() -> Vec<Qcow2Options> {
    let mut all: Vec<_> = CLUSTERS.into_iter().map(of_clusters).collect();
    all.extend(CLUSTERS.into_iter().map(|bytes| packed(bytes, Compression::Zlib)));
    all.push(packed(64 << 10, Compression::Zstd));
    all.extend([Preallocation::Metadata, Preallocation::Falloc, Preallocation::Full].map(preallocated));
    all
}

fn conforms(options: Qcow2Options) {
    let folder = tempfile::tempdir().unwrap();
    let made: RefCell<Option<PathBuf>> = RefCell::new(None);
    let make = |size: u64| {
        let path = folder.path().join(format!("{size}.qcow2"));
        let disk = Qcow2Disk::create(&path, size, options).unwrap();
        *made.borrow_mut() = Some(path);
        Arc::new(disk) as Arc<dyn Disk>
    };
    let read_back = || {
        // QEMU would meet the lock.
        let copy = folder.path().join("copy.qcow2");
        std::fs::copy(made.borrow().as_ref().unwrap(), &copy).unwrap();
        qemu_check(&copy);
        qemu_read(&copy)
    };
    conformance::check_writer(make, read_back);
}

#[test]
fn it_is_a_disk_with_clusters_of_4_kib() {
    if has_qemu() {
        conforms(of_clusters(4 << 10));
    }
}

#[test]
fn it_is_a_disk_with_clusters_of_64_kib() {
    if has_qemu() {
        conforms(of_clusters(64 << 10));
    }
}

#[test]
fn it_is_a_disk_with_clusters_of_2_mib() {
    if has_qemu() {
        conforms(of_clusters(2 << 20));
    }
}

#[test]
fn it_is_a_disk_when_packed() {
    if has_qemu() {
        conforms(packed(64 << 10, Compression::Zlib));
        conforms(packed(8 << 10, Compression::Zstd));
    }
}

#[test]
fn it_is_a_disk_when_preallocated() {
    if has_qemu() {
        conforms(preallocated(Preallocation::Metadata));
        conforms(preallocated(Preallocation::Falloc));
    }
}

/// A disk and what it should hold.
struct Oracle {
    path: PathBuf,
    options: Qcow2Options,
    disk: Option<Qcow2Disk>,
    model: Vec<u8>,
    chance: Chance,
}

impl Oracle {
    fn disk(&self) -> &Qcow2Disk {
        self.disk.as_ref().unwrap()
    }

    fn span(&mut self) -> ByteSpan {
        let size = self.model.len() as u64;
        let grain = [1, 512, 65536, self.options.cluster_bytes][self.chance.below(4) as usize];
        let length_max = [4096, 300_000, 3 << 20][self.chance.below(3) as usize].min(size);
        let offset = self.chance.below(size) / grain * grain;
        let length = (1 + self.chance.below(length_max)).next_multiple_of(grain).min(size - offset);
        ByteSpan::new(offset, length)
    }

    fn step(&mut self) {
        let span = self.span();
        let range = span.offset as usize..span.end() as usize;
        let mut lane = self.disk().open_lane().unwrap();
        match self.chance.below(10) {
            0..=4 => {
                let mut bytes = vec![0; span.length as usize];
                match self.chance.below(2) {
                    0 => self.chance.fill(&mut bytes),
                    _ => bytes.fill(self.chance.below(256) as u8),
                }
                write(&mut *lane, span.offset, &bytes).result.unwrap();
                self.model[range].copy_from_slice(&bytes);
            }
            5..=6 => {
                run(&mut *lane, span, Work::Zero).result.unwrap();
                self.model[range].fill(0);
            }
            7 => assert!(read(self.disk(), span.offset, span.length) == self.model[range], "read of {span}"),
            8 => self.disk().flush().unwrap(),
            _ => {
                drop(lane);
                self.reopen();
            }
        }
    }

    fn reopen(&mut self) {
        self.disk().flush().unwrap();
        self.disk = None;
        let disk = Qcow2Disk::open(&self.path, self.options).unwrap();
        assert_eq!(disk.leaked_clusters(), 0, "an image closed in order leaks nothing");
        self.disk = Some(disk);
    }

    fn check(&mut self) {
        self.reopen();
        let size = self.model.len() as u64;
        assert!(read(self.disk(), 0, size) == self.model, "the whole disk");
        let mut at = 0;
        while at < size {
            for extent in self.disk().extents(ByteSpan::from_bounds(at, size)).unwrap() {
                let bytes = &self.model[extent.span.offset as usize..extent.span.end() as usize];
                assert!(extent.kind == ExtentKind::Allocated || bytes.iter().all(|byte| *byte == 0));
                at = extent.span.end();
            }
        }
        let report = checker::check(&std::fs::read(&self.path).unwrap());
        assert_eq!(report, checker::Report::default());
    }
}

#[test]
fn any_order_of_requests_leaves_what_an_array_would_hold() {
    for (seed, options) in all_options().into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.qcow2");
        let mut chance = Chance(seed as u64);
        let size = [5 << 20, (9 << 20) + 512, 65537 + 511][seed % 3];
        let size = size / 512 * 512 + chance.below(2) * 512;
        println!("seed {seed}: {options:?}, {size} bytes");
        let disk = Some(Qcow2Disk::create(&path, size, options).unwrap());
        let mut oracle = Oracle { path, options, disk, model: vec![0; size as usize], chance };
        for _ in 0..120 {
            oracle.step();
        }
        oracle.check();
        oracle.disk = None;
        if has_qemu() {
            qemu_check(&oracle.path);
            assert!(qemu_read(&oracle.path) == oracle.model, "as QEMU reads it");
        }
    }
}

#[test]
fn many_lanes_write_parts_of_the_same_clusters() {
    for options in [of_clusters(4 << 10), of_clusters(2 << 20), packed(256 << 10, Compression::Zstd)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.qcow2");
        let size = 24 << 20;
        let disk = Qcow2Disk::create(&path, size, options).unwrap();
        let mut model = vec![0; size as usize];
        Chance(7).fill(&mut model);
        // Some of it shrinks.
        model[5 << 20..11 << 20].fill(3);
        std::thread::scope(|scope| {
            for lane_index in 0..4 {
                let (disk, model) = (&disk, &model);
                scope.spawn(move || {
                    let mut lane = disk.open_lane().unwrap();
                    for piece in (lane_index..size / 65536).step_by(4) {
                        let start = (piece * 65536) as usize;
                        write(&mut *lane, piece * 65536, &model[start..start + 65536]).result.unwrap();
                        if piece % 37 == 0 {
                            disk.flush().unwrap();
                        }
                    }
                });
            }
        });
        disk.flush().unwrap();
        assert!(read(&disk, 0, size) == model);
        drop(disk);
        assert_eq!(checker::check(&std::fs::read(&path).unwrap()), checker::Report::default());
        if has_qemu() {
            assert!(qemu_read(&path) == model);
        }
    }
}

#[test]
fn zeros_cost_nothing_and_packing_saves_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.qcow2");
    let disk = Qcow2Disk::create(&path, 64 << 30, Qcow2Options::default()).unwrap();
    assert!(disk.features().zeroed);
    let mut lane = disk.open_lane().unwrap();
    run(&mut *lane, ByteSpan::new(100, 60 << 30), Work::Zero).result.unwrap();
    disk.flush().unwrap();
    drop((lane, disk));
    let empty_bytes = std::fs::metadata(&path).unwrap().len();
    assert!(empty_bytes <= 4 * 65536, "{empty_bytes}");
    let path = folder.path().join("packed.qcow2");
    let disk = Qcow2Disk::create(&path, 64 << 20, packed(64 << 10, Compression::Zstd)).unwrap();
    let mut lane = disk.open_lane().unwrap();
    for start in (0..32u64 << 20).step_by(4 << 20) {
        write(&mut *lane, start, &vec![start as u8 | 1; 4 << 20]).result.unwrap();
    }
    disk.flush().unwrap();
    drop((lane, disk));
    assert!(std::fs::metadata(&path).unwrap().len() < 1 << 20);
}

#[test]
fn a_disk_of_16_tib_takes_what_is_written_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.qcow2");
    let size = 16 << 40;
    let disk = Qcow2Disk::create(&path, size, Qcow2Options::default()).unwrap();
    let mut lane = disk.open_lane().unwrap();
    let places: Vec<u64> =
        (0..40).map(|index| index * (size / 40) / 4096 * 4096).chain([size - 4096]).collect();
    for (index, offset) in places.iter().enumerate() {
        write(&mut *lane, *offset, &[index as u8 + 1; 4096]).result.unwrap();
    }
    disk.flush().unwrap();
    drop((lane, disk));
    assert!(std::fs::metadata(&path).unwrap().len() < 10 << 20);
    let disk = Qcow2Disk::open(&path, Qcow2Options::default()).unwrap();
    for (index, offset) in places.iter().enumerate() {
        assert!(read(&disk, *offset, 4096).iter().all(|byte| *byte == index as u8 + 1), "{offset:#x}");
    }
    run(&mut *disk.open_lane().unwrap(), ByteSpan::new(0, size), Work::Zero).result.unwrap();
    disk.flush().unwrap();
    let mut at = 0;
    while at < size {
        let extents = disk.extents(ByteSpan::from_bounds(at, size)).unwrap();
        assert!(extents.iter().all(|extent| extent.kind == ExtentKind::Zero), "{extents:?}");
        at = extents.last().unwrap().span.end();
    }
    drop(disk);
    if has_qemu() {
        qemu_check(&path);
    }
}

#[test]
fn odd_sizes_are_rounded_up_to_sectors_and_keep_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    for (size, rounded) in [(0, 0), (1, 512), (511, 512), (512, 512), (65537, 66048)] {
        let path = folder.path().join(format!("{size}.qcow2"));
        let disk = Qcow2Disk::create(&path, size, Qcow2Options::default()).unwrap();
        assert_eq!(disk.size(), rounded);
        let bytes = vec![7; size as usize];
        if size > 0 {
            write(&mut *disk.open_lane().unwrap(), 0, &bytes).result.unwrap();
        }
        disk.flush().unwrap();
        drop(disk);
        if has_qemu() {
            qemu_check(&path);
            let mut found = qemu_read(&path);
            assert_eq!(found.len() as u64, rounded);
            assert!(found.split_off(size as usize).iter().all(|byte| *byte == 0) && found == bytes);
        }
    }
}

#[test]
fn images_of_qemu_are_gone_on_with_if_they_are_plain() {
    if !has_qemu() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().join("base.qcow2");
    qemu_img(&["create", "-q", "-f", "qcow2"], &[&base, "8M".as_ref()]);
    for (index, format) in [
        "cluster_size=64k",
        "cluster_size=4k",
        "preallocation=metadata",
        "preallocation=full,cluster_size=2M",
    ]
    .into_iter()
    .enumerate()
    {
        let path = folder.path().join(format!("{index}.qcow2"));
        qemu_img(&["create", "-q", "-f", "qcow2", "-o", format], &[&path, "8M".as_ref()]);
        let disk = Qcow2Disk::open(&path, Qcow2Options::default()).unwrap();
        assert_eq!((disk.size(), disk.leaked_clusters()), (8 << 20, 0));
        write(&mut *disk.open_lane().unwrap(), 3_000_001, &[9; 700_000]).result.unwrap();
        disk.flush().unwrap();
        drop(disk);
        qemu_check(&path);
        let found = qemu_read(&path);
        assert!((0..8 << 20).all(|at| found[at] == if (3_000_001..3_700_001).contains(&at) { 9 } else { 0 }));
    }
    let snapshot = folder.path().join("0.qcow2");
    qemu_img(&["snapshot", "-c", "one"], &[&snapshot]);
    let on_base = folder.path().join("on-base.qcow2");
    qemu_img(&["create", "-q", "-f", "qcow2", "-F", "qcow2", "-b"], &[&base, &on_base]);
    let lazy = folder.path().join("lazy.qcow2");
    qemu_img(&["create", "-q", "-f", "qcow2", "-o", "lazy_refcounts=on"], &[&lazy, "8M".as_ref()]);
    let extended = folder.path().join("extended.qcow2");
    qemu_img(&["create", "-q", "-f", "qcow2", "-o", "extended_l2=on"], &[&extended, "8M".as_ref()]);
    for path in [snapshot, on_base, lazy, extended] {
        let Err(error) = Qcow2Disk::open(&path, Qcow2Options::default()) else {
            panic!("{}", path.display())
        };
        assert_eq!(error.kind, DiskErrorKind::Unsupported, "{error}: {}", error.source);
    }
}

#[test]
fn nothing_is_replaced_and_nothing_half_made_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.qcow2");
    drop(Qcow2Disk::create(&path, 1 << 20, Qcow2Options::default()).unwrap());
    assert!(Qcow2Disk::create(&path, 1 << 20, Qcow2Options::default()).is_err());
    let other = folder.path().join("other.qcow2");
    for options in [of_clusters(1000), of_clusters(512), of_clusters(4 << 20)] {
        assert!(Qcow2Disk::create(&other, 1 << 20, options).is_err());
    }
    assert!(Qcow2Disk::create(&other, u64::MAX, Qcow2Options::default()).is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let held = Qcow2Disk::open(&path, Qcow2Options::default()).unwrap();
    let Err(error) = Qcow2Disk::open(&path, Qcow2Options::default()) else { panic!("opened twice") };
    assert_eq!(error.kind, DiskErrorKind::Denied);
    drop(held);
}

#[test]
fn a_reader_sees_the_bytes_and_may_not_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.qcow2");
    let disk = Qcow2Disk::create(&path, 3 << 20, packed(64 << 10, Compression::Zlib)).unwrap();
    let mut bytes = vec![5; 3 << 20];
    Chance(3).fill(&mut bytes[..1 << 20]);
    write(&mut *disk.open_lane().unwrap(), 0, &bytes).result.unwrap();
    disk.flush().unwrap();
    drop(disk);
    let reader = Qcow2Disk::open_for_verify(&path).unwrap();
    conformance::check_reader(&reader, &bytes);
    let refused = write(&mut *reader.open_lane().unwrap(), 0, &[1]).result.unwrap_err();
    assert_eq!(refused.kind, DiskErrorKind::Misuse);
}
