//! Hashing in parts, and comparing disks with disks and reports.
#![allow(clippy::unwrap_used)]

use drover_copy::report::{About, ReportReader, ReportWriter};
use drover_copy::{Leaf, LeafTable};
use drover_disk::memory::{Effect, MemDisk, Nth};
use drover_disk::{Completion, Disk, DiskError, DiskOp, Features, Lane, Limits, Request, Work};
use drover_mover::{
    Comparison, MoveError, PART_BYTES, Progress, Share, StopSignal, TransferOptions, compare,
    compare_with_report, hash_parts,
};
use drover_types::{BLOCK_BYTES, ByteSpan, Extent};

const BLOCK: usize = BLOCK_BYTES as usize;

/// A disk of zeros too large for memory, with a few bytes of data at some offsets.
struct Vast {
    size: u64,
    data: Vec<u64>,
}

impl Disk for Vast {
    fn name(&self) -> &str {
        "vast"
    }
    fn size(&self) -> u64 {
        self.size
    }
    fn identity(&self) -> String {
        "vast".into()
    }
    fn limits(&self) -> Limits {
        Limits { bytes_min: 1, bytes_preferred: 1 << 20, bytes_max: 1 << 25, lanes_max: 2, depth_max: 1 }
    }
    fn features(&self) -> Features {
        Features { writable: false, fast_zero: false, extents: true, zeroed: false }
    }
    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        let next = self.data.iter().find(|at| (span.offset..span.end()).contains(at));
        Ok(vec![match next {
            None => Extent::zero(span),
            Some(at) if *at == span.offset => Extent::allocated(ByteSpan::new(*at, 1)),
            Some(at) => Extent::zero(ByteSpan::from_bounds(span.offset, *at)),
        }])
    }
    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        Ok(Box::new(VastLane { data: self.data.clone(), queue: Vec::new() }))
    }
    fn flush(&self) -> Result<(), DiskError> {
        Ok(())
    }
}

struct VastLane {
    data: Vec<u64>,
    queue: Vec<Request>,
}

impl Lane for VastLane {
    fn submit(&mut self, request: Request) {
        self.queue.push(request);
    }
    fn complete(&mut self) -> Option<Completion> {
        let Request { id, span, mut work } = self.queue.pop()?;
        if let Work::Read(buffer) = &mut work {
            buffer.fill(0);
            let inside = self.data.iter().filter(|at| (span.offset..span.end()).contains(at));
            inside.for_each(|at| buffer[(at - span.offset) as usize] = 1);
        }
        Some(Completion { id, span, work, result: Ok(()) })
    }
    fn in_flight(&self) -> usize {
        self.queue.len()
    }
}

fn compared(a: &dyn Disk, b: &dyn Disk, share: Share) -> Result<Comparison, MoveError> {
    let size = a.size().min(b.size());
    let (options, progress) = (TransferOptions::default(), Progress::default());
    let result = compare([a, b], size, share, &options, &progress, &StopSignal::default())?;
    let now = progress.snapshot();
    assert!(share != Share::Full || (now.settled, now.size) == (2 * size, 2 * size), "progress counts parts");
    Ok(result)
}

fn report_of(disk: &dyn Disk) -> Vec<u8> {
    let about = About {
        size: disk.size(),
        made_at: 0,
        program: "test".into(),
        name: disk.name().into(),
        identity: disk.identity(),
    };
    let mut writer = ReportWriter::new(Vec::new(), &about).unwrap();
    let found =
        hash_parts(disk, &TransferOptions::default(), &Progress::default(), &StopSignal::default(), |part| {
            writer.push(part).unwrap();
            Ok(())
        });
    let (root, bytes) = writer.finish().unwrap();
    assert_eq!(root, found.unwrap().root);
    bytes
}

fn held_against(report: &[u8], disk: &dyn Disk) -> Comparison {
    ReportReader::open(report).unwrap().finish().unwrap();
    let mut reader = ReportReader::open(report).unwrap();
    let (options, progress) = (TransferOptions::default(), Progress::default());
    compare_with_report(&mut reader, disk, Share::Full, &options, &progress, &StopSignal::default()).unwrap()
}

#[test]
fn a_disk_larger_than_a_part_is_hashed_in_parts_to_the_same_root() {
    let data = vec![0, PART_BYTES - 1, PART_BYTES, 2 * PART_BYTES + 12345];
    let vast = Vast { size: 2 * PART_BYTES + 5 * BLOCK_BYTES + 77, data: data.clone() };
    let mut whole = LeafTable::new(vast.size);
    whole.set_zero(0, whole.blocks());
    for at in data {
        let mut block = vec![0; BLOCK];
        block[(at % BLOCK_BYTES) as usize] = 1;
        whole.set(at / BLOCK_BYTES, Leaf::of(&block));
    }
    let mut parts = Vec::new();
    let found = hash_parts(
        &vast,
        &TransferOptions::default(),
        &Progress::default(),
        &StopSignal::default(),
        |part| {
            parts.push(part.size());
            Ok(())
        },
    );
    assert_eq!(Some(found.unwrap().root), whole.root());
    assert_eq!(parts, [PART_BYTES, PART_BYTES, 5 * BLOCK_BYTES + 77]);
}

#[test]
fn differences_are_told_where_they_are_in_any_part() {
    let size = PART_BYTES + 9 * BLOCK_BYTES;
    let a = Vast { size, data: vec![5, PART_BYTES + 3] };
    let b = Vast { size, data: vec![PART_BYTES - 1, PART_BYTES + 3, PART_BYTES + BLOCK_BYTES] };
    let found = compared(&a, &b, Share::Full).unwrap();
    let last_of_first_part = ByteSpan::new(PART_BYTES - BLOCK_BYTES, BLOCK_BYTES);
    let second_of_second = ByteSpan::new(PART_BYTES + BLOCK_BYTES, BLOCK_BYTES);
    assert_eq!(found.spans, [ByteSpan::new(0, BLOCK_BYTES), last_of_first_part, second_of_second]);
    assert_eq!((found.differing_blocks, found.is_equal()), (3, false));
    assert_ne!(found.first_root, found.second_root);
    assert_eq!(found.blocks, found.blocks_total);
}

#[test]
fn equal_disks_of_odd_sizes_are_equal_and_neighbouring_differences_are_joined() {
    for size in [1, 511, BLOCK - 1, BLOCK, BLOCK + 1, 40 * BLOCK + 3] {
        let bytes: Vec<u8> = (0..size).map(|at| (at / 7) as u8).collect();
        let (a, b) = (MemDisk::new("a", bytes.clone()), MemDisk::new("b", bytes));
        let found = compared(&a, &b, Share::Full).unwrap();
        assert!(found.is_equal() && found.first_root.is_some(), "{size}");
        assert_eq!(found.first_root, found.second_root);
        b.overwrite(size as u64 - 1, &[0xaa]);
        assert!(!compared(&a, &b, Share::Full).unwrap().is_equal(), "{size}");
    }
    let (a, b) = (MemDisk::blank("a", 10 * BLOCK_BYTES), MemDisk::blank("b", 10 * BLOCK_BYTES));
    b.overwrite(3 * BLOCK_BYTES + 100, &vec![1; 2 * BLOCK]);
    let found = compared(&a, &b, Share::Full).unwrap();
    assert_eq!(found.spans, [ByteSpan::new(3 * BLOCK_BYTES, 3 * BLOCK_BYTES)]);
}

#[test]
fn a_sample_reads_its_share_and_says_what_may_escape() {
    let bytes = vec![1; 2000 * BLOCK];
    let (a, b) = (MemDisk::new("a", bytes.clone()), MemDisk::new("b", bytes));
    let share = Share::Sampled { share: 0.1, seed: 3 };
    let found = compared(&a, &b, share).unwrap();
    assert!((100..300).contains(&found.blocks) && found.blocks_total == 2000, "{}", found.blocks);
    assert_eq!(found.first_root, None);
    assert!((found.share.miss_probability(1) - 0.9).abs() < 1e-9);
    assert!((found.share.miss_probability(10) - 0.9f64.powi(10)).abs() < 1e-9);
    let wrong = MemDisk::new("wrong", vec![2; 2000 * BLOCK]);
    assert_eq!(compared(&a, &wrong, share).unwrap().differing_blocks, found.blocks);
}

#[test]
fn a_report_is_held_against_the_same_and_against_a_changed_disk() {
    let bytes: Vec<u8> = (0..7 * BLOCK + 5).map(|at| (at / 70_000) as u8).collect();
    let disk = MemDisk::new("disk", bytes.clone());
    let report = report_of(&disk);
    let found = held_against(&report, &disk);
    assert!(found.is_equal() && found.first_root == found.second_root && found.first_root.is_some());
    disk.overwrite(2 * BLOCK_BYTES, &[0xff]);
    assert_eq!(held_against(&report, &disk).spans, [ByteSpan::new(2 * BLOCK_BYTES, BLOCK_BYTES)]);
    let shorter = MemDisk::new("shorter", bytes[..3 * BLOCK].to_vec());
    let found = held_against(&report, &shorter);
    assert_eq!((found.blocks_total, found.first_root), (3, None));
    let longer = MemDisk::new("longer", [&bytes[..], &[1; BLOCK]].concat());
    assert!(held_against(&report, &longer).is_equal(), "what both have is equal");
}

#[test]
fn a_disk_that_fails_stops_the_comparison_with_its_error() {
    let (a, b) = (MemDisk::new("a", vec![1; 50 * BLOCK]), MemDisk::new("b", vec![1; 50 * BLOCK]));
    b.add_fault(DiskOp::Read, Nth::Only(3), Effect::Fail(drover_disk::DiskErrorKind::Failed));
    match compared(&a, &b, Share::Full) {
        Err(MoveError::Disk(error)) => assert_eq!(error.disk, "b"),
        other => panic!("{other:?}"),
    }
}
