//! Power cuts at any operation: the image stays sound, and what was flushed is there.
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::BTreeSet;
use std::process::Command;

use common::sim::SimHost;
use common::{Chance, checker, has_qemu, read, run, write};
use drover_disk::{Disk, DiskErrorKind, Work};
use drover_qcow2::{Compression, Preallocation, Qcow2Disk, Qcow2Options};
use drover_types::ByteSpan;

const SECTOR: u64 = 512;
/// Lives of one image, each ended by a power cut.
const LIVES: u64 = 4;
const STEPS: u64 = 40;

/// What each sector may hold: the number it was written with, 0 for zeros.
struct Sectors(Vec<BTreeSet<u64>>);

impl Sectors {
    fn may_hold(&mut self, span: ByteSpan, version: u64) {
        for sector in span.offset / SECTOR..span.end() / SECTOR {
            self.0[sector as usize].insert(version);
        }
    }

    /// A request ended well: the next flush makes this certain.
    fn holds(&mut self, latest: &mut [u64], span: ByteSpan, version: u64) {
        for sector in span.offset / SECTOR..span.end() / SECTOR {
            latest[sector as usize] = version;
        }
    }

    fn flushed(&mut self, latest: &[u64]) {
        for (sector, version) in self.0.iter_mut().zip(latest) {
            *sector = BTreeSet::from([*version]);
        }
    }
}

/// Sectors of a version: some shrink when packed, some do not.
fn bytes_of(version: u64, span: ByteSpan) -> Vec<u8> {
    let mut bytes = vec![0; span.length as usize];
    for (index, sector) in bytes.chunks_mut(SECTOR as usize).enumerate() {
        if version.is_multiple_of(3) {
            Chance(version + span.offset + index as u64).fill(sector);
        }
        sector[..8].copy_from_slice(&version.to_le_bytes());
    }
    bytes
}

fn versions_in(bytes: &[u8]) -> Vec<u64> {
    let sectors = bytes.chunks(SECTOR as usize);
    sectors.map(|sector| u64::from_le_bytes(sector[..8].try_into().unwrap())).collect()
}

struct Life {
    disk: Qcow2Disk,
    sectors: Sectors,
    latest: Vec<u64>,
}

impl Life {
    /// Does something; false once the power is gone.
    fn step(&mut self, chance: &mut Chance, version: u64) -> bool {
        let size = self.disk.size();
        let grain = [SECTOR, 4096, self.disk.cluster_bytes()][chance.below(3) as usize];
        let offset = chance.below(size) / grain * grain;
        let length = (1 + chance.below(size / 3)).next_multiple_of(grain).min(size - offset);
        let span = ByteSpan::new(offset, length);
        let mut lane = self.disk.open_lane().unwrap();
        let (version, result) = match chance.below(8) {
            0..=4 => (version, write(&mut *lane, offset, &bytes_of(version, span)).result),
            5 => (0, run(&mut *lane, span, Work::Zero).result),
            _ => {
                let flushed = self.disk.flush();
                if flushed.is_ok() {
                    self.sectors.flushed(&self.latest);
                }
                return flushed.is_ok();
            }
        };
        self.sectors.may_hold(span, version);
        if result.is_ok() {
            self.sectors.holds(&mut self.latest, span, version);
        }
        result.is_ok()
    }
}

fn all_options(seed: u64) -> Qcow2Options {
    let compression = if seed.is_multiple_of(2) { Compression::Zlib } else { Compression::Zstd };
    Qcow2Options {
        cluster_bytes: [4096, 8192, 65536][(seed % 3) as usize],
        compression,
        compress: seed % 4 == 1,
        preallocation: if seed % 8 == 6 { Preallocation::Metadata } else { Preallocation::Off },
    }
}

/// Runs an image through several power cuts.
fn lives_of(seed: u64) {
    let options = all_options(seed);
    let mut chance = Chance(seed);
    // A large one needs several L2 tables and a second refcount block.
    let clusters = if seed % 30 == 3 { 2030 } else { 5 } + chance.below(30);
    let size = options.cluster_bytes * clusters + chance.below(8) * SECTOR;
    let mut host = SimHost::default();
    let mut disk = Qcow2Disk::create_on(Box::new(host.clone()), size, options).unwrap();
    let sectors = (size / SECTOR) as usize;
    let mut life =
        Life { disk, sectors: Sectors(vec![BTreeSet::from([0]); sectors]), latest: vec![0; sectors] };
    for number in 0..LIVES {
        host.light_fuse(1 + chance.below(120));
        let mut step = 0;
        while step < STEPS && life.step(&mut chance, 1 + number * STEPS + step) {
            step += 1;
        }
        // Closing may cut the file, which the power cut may or may not have come before.
        let bytes = match chance.below(2) {
            0 => host.after_power_cut(&mut chance),
            _ => {
                let Life { disk, sectors, latest } = life;
                drop(disk);
                life = Life {
                    disk: Qcow2Disk::create_on(Box::new(SimHost::default()), 512, options).unwrap(),
                    sectors,
                    latest,
                };
                host.after_power_cut(&mut chance)
            }
        };
        let report = checker::check(&bytes);
        assert!(report.errors.is_empty(), "seed {seed}, life {number}: {:?}", report.errors);
        if seed.is_multiple_of(50) {
            qemu_agrees(&bytes, seed);
        }
        host = SimHost::with(bytes);
        if chance.below(3) == 0 {
            // The power goes again while the image is being opened.
            host.light_fuse(1 + chance.below(6));
            drop(Qcow2Disk::open_on(Box::new(host.clone()), options));
            host = SimHost::with(host.after_power_cut(&mut chance));
            let report = checker::check(&host.content());
            assert!(report.errors.is_empty(), "seed {seed}, life {number}, opening: {:?}", report.errors);
        }
        disk = Qcow2Disk::open_on(Box::new(host.clone()), options)
            .unwrap_or_else(|error| panic!("seed {seed}, life {number}: {error}: {}", error.source));
        let report = checker::check(&host.content());
        assert_eq!(report, checker::Report::default(), "seed {seed}, life {number}: after opening");
        let found = versions_in(&read(&disk, 0, disk.size()));
        for (sector, version) in found.iter().enumerate() {
            let allowed = &life.sectors.0[sector];
            assert!(
                allowed.contains(version),
                "seed {seed}, life {number}: sector {sector} holds {version}, not one of {allowed:?}"
            );
        }
        let now = found.iter().map(|version| BTreeSet::from([*version])).collect();
        life = Life { disk, sectors: Sectors(now), latest: found };
    }
    host.light_fuse(u64::MAX);
    life.disk.flush().unwrap();
    drop(life);
    assert_eq!(checker::check(&host.content()), checker::Report::default(), "seed {seed}: at the end");
}

/// Leaks are no errors: `qemu-img check` ends with 3 for them, with 2 for errors.
fn qemu_agrees(bytes: &[u8], seed: u64) {
    if !has_qemu() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crashed.qcow2");
    std::fs::write(&path, bytes).unwrap();
    let output = Command::new("qemu-img").args(["check", "-f", "qcow2"]).arg(&path).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(matches!(output.status.code(), Some(0 | 3)), "seed {seed}: {text}");
}

#[test]
fn after_a_power_cut_at_any_operation_the_image_is_sound_and_what_was_flushed_is_there() {
    let seeds = std::env::var("DROVER_CRASH_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(240);
    for seed in 0..seeds {
        lives_of(seed);
    }
}

#[test]
fn a_power_cut_at_every_step_of_a_flush_that_grows_all_tables_leaves_a_sound_image() {
    let options = Qcow2Options { cluster_bytes: 4096, ..Qcow2Options::default() };
    let size = 4096 * 2100;
    for cut in 1.. {
        let host = SimHost::default();
        let disk = Qcow2Disk::create_on(Box::new(host.clone()), size, options).unwrap();
        let span = ByteSpan::new(0, size);
        write(&mut *disk.open_lane().unwrap(), 0, &bytes_of(7, span)).result.unwrap();
        host.light_fuse(cut);
        if disk.flush().is_ok() {
            assert!(cut > 8, "a flush of {cut} steps writes too little to tell");
            return;
        }
        for seed in 0..40 {
            let bytes = host.after_power_cut(&mut Chance(seed));
            let report = checker::check(&bytes);
            assert!(report.errors.is_empty(), "step {cut}, seed {seed}: {:?}", report.errors);
        }
    }
}

#[test]
fn a_full_file_system_says_so_and_leaves_a_sound_image_to_go_on_with() {
    for seed in 0..40 {
        let options = all_options(seed);
        let host = SimHost::default();
        let size = options.cluster_bytes * 40;
        let disk = Qcow2Disk::create_on(Box::new(host.clone()), size, options).unwrap();
        let room = host.content().len() as u64 + options.cluster_bytes * (3 + seed % 20);
        host.limit_length(Some(room));
        let mut lane = disk.open_lane().unwrap();
        let mut model = vec![0; size as usize];
        Chance(seed).fill(&mut model);
        let mut flushed = 0;
        let mut failed = None;
        for (offset, piece) in model.chunks(3 * options.cluster_bytes as usize).enumerate() {
            let offset = offset as u64 * 3 * options.cluster_bytes;
            let done = write(&mut *lane, offset, piece).result.and_then(|()| disk.flush());
            match done {
                Ok(()) => flushed = offset as usize + piece.len(),
                Err(error) => {
                    failed = Some(error.kind);
                    break;
                }
            }
        }
        if options.preallocation == Preallocation::Off {
            assert_eq!(failed, Some(DiskErrorKind::OutOfSpace), "seed {seed}");
        }
        drop((lane, disk));
        assert!(checker::check(&host.content()).errors.is_empty(), "seed {seed}");
        host.limit_length(None);
        let disk = Qcow2Disk::open_on(Box::new(host.clone()), options).unwrap();
        assert!(read(&disk, 0, flushed as u64) == model[..flushed], "seed {seed}");
        if flushed < model.len() {
            write(&mut *disk.open_lane().unwrap(), flushed as u64, &model[flushed..]).result.unwrap();
        }
        disk.flush().unwrap();
        assert!(read(&disk, 0, size) == model, "seed {seed}");
        drop(disk);
        assert_eq!(checker::check(&host.content()), checker::Report::default(), "seed {seed}");
    }
}

#[test]
fn damaged_images_are_refused_or_read_but_never_a_panic() {
    let options = Qcow2Options { cluster_bytes: 4096, compress: true, ..Qcow2Options::default() };
    let host = SimHost::default();
    let disk = Qcow2Disk::create_on(Box::new(host.clone()), 3 << 20, options).unwrap();
    let mut bytes = vec![1; 2 << 20];
    Chance(1).fill(&mut bytes[..1 << 20]);
    write(&mut *disk.open_lane().unwrap(), 0, &bytes).result.unwrap();
    disk.flush().unwrap();
    drop(disk);
    let good = host.content();
    let mut refused = 0;
    for seed in 0..1500 {
        let mut chance = Chance(seed);
        let mut bytes = good.clone();
        for _ in 0..1 + chance.below(3) {
            // The tables lie at the start.
            let reach = [112, 8 * 4096, bytes.len() as u64][chance.below(3) as usize];
            let at = chance.below(reach) as usize;
            bytes[at] = [0, 0xff, bytes[at] ^ 1 << chance.below(8)][chance.below(3) as usize];
        }
        if chance.below(20) == 0 {
            bytes.truncate(chance.below(bytes.len() as u64) as usize);
        }
        let Ok(disk) = Qcow2Disk::open_on(Box::new(SimHost::with(bytes)), options) else {
            refused += 1;
            continue;
        };
        let mut lane = disk.open_lane().unwrap();
        let span = ByteSpan::new(0, disk.size().min(3 << 20));
        if !span.is_empty() {
            let buffer = drover_disk::Buffer::zeroed(span.length as usize);
            let _ = run(&mut *lane, span, Work::Read(buffer)).result;
            let _ = write(&mut *lane, 0, &vec![1; span.length as usize]).result;
            let _ = run(&mut *lane, span, Work::Zero).result;
        }
        let _ = disk.flush();
    }
    assert!(refused > 150, "{refused} of 1500 refused");
}
