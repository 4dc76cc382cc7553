//! Hashing a disk in parts, and comparing it with another disk or with a report made years ago.

use std::io::Read;
use std::thread::Builder;
use std::time::{Duration, Instant};

use drover_copy::report::{ReportError, ReportReader};
use drover_copy::{LeafTable, RootHasher, SEGMENT_BYTES, Sample, miss_probability};
use drover_disk::{Disk, read_span};
use drover_types::{BLOCK_BYTES, ByteSpan, Digest};

use crate::part::Part;
use crate::progress::{Progress, StopSignal};
use crate::transfer::{MoveError, TransferOptions, check_same, hash};

/// A disk is hashed in parts of this size: the leaves of one take up to 35 MB, whatever the disk's
/// size, and the pause between two parts is nothing beside the time of one.
pub const PART_BYTES: u64 = 256 * SEGMENT_BYTES;

/// Spans that a comparison keeps for its report; one is enough to fail.
pub const REPORTED_SPANS_MAX: usize = 1000;

/// What was found on a disk that was read whole.
#[derive(Clone, Copy, Debug)]
pub struct HashedDisk {
    /// Root of its tree.
    pub root: Digest,
    /// Time taken.
    pub elapsed: Duration,
}

/// How much of the disks is read and compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// All.
    Full,
    /// About this share (0 to 1) of the blocks, chosen by a seed.
    Sampled {
        /// Share of the blocks.
        share: f64,
        /// Seed.
        seed: u64,
    },
}

impl Share {
    /// The sample of the part that starts at `offset`: each part draws anew.
    fn sample(self, offset: u64) -> Option<Sample> {
        match self {
            Share::Full => None,
            Share::Sampled { share, seed } => {
                Some(Sample::of_share(share, seed.wrapping_add(offset / PART_BYTES)))
            }
        }
    }

    /// The chance that `damaged` blocks all escape.
    pub fn miss_probability(self, damaged: u64) -> f64 {
        match self {
            Share::Full => 0.0,
            Share::Sampled { share, .. } => miss_probability(share, damaged),
        }
    }
}

/// What a comparison found. A difference is no error but the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Blocks that were compared.
    pub blocks: u64,
    /// Of so many that both have.
    pub blocks_total: u64,
    /// Blocks that differ.
    pub differing_blocks: u64,
    /// Where, neighbours joined; at most [`REPORTED_SPANS_MAX`] are kept.
    pub spans: Vec<ByteSpan>,
    /// Root of the first disk (or of the report) over the bytes that were compared, if all were read.
    pub first_root: Option<Digest>,
    /// Root of the second, likewise.
    pub second_root: Option<Digest>,
    /// How much was read.
    pub share: Share,
    /// Time taken.
    pub elapsed: Duration,
}

impl Comparison {
    /// Whether everything that was compared is equal.
    pub fn is_equal(&self) -> bool {
        self.differing_blocks == 0
    }
}

/// Hashes a disk and hands each part's leaves to `each`, in order.
///
/// # Errors
/// See [`MoveError`]; whatever `each` returns ends the run.
pub fn hash_parts(
    disk: &dyn Disk,
    options: &TransferOptions,
    progress: &Progress,
    stop: &StopSignal,
    mut each: impl FnMut(&LeafTable) -> Result<(), MoveError>,
) -> Result<HashedDisk, MoveError> {
    let started = Instant::now();
    let mut root = RootHasher::new(disk.size());
    progress.start(disk.size());
    for span in parts_of(disk.size()) {
        let leaves = hash_part(disk, span, Share::Full, options, progress, stop)?;
        root.push(&leaves).expect("hashing without error knows every block");
        each(&leaves)?;
    }
    check_same([disk])?;
    Ok(HashedDisk { root: root.finish(), elapsed: started.elapsed() })
}

/// Whether a disk is longer than `size` only because its kind knows whole sectors (qcow2 images), and holds nothing behind
/// `size`. What both have is the same disk then, and so is its root.
///
/// # Errors
/// When what is behind cannot be read.
pub fn is_rounded_up(disk: &dyn Disk, size: u64) -> Result<bool, MoveError> {
    if disk.size() == size || size.checked_next_multiple_of(ROUNDED_TO) != Some(disk.size()) {
        return Ok(false);
    }
    let block = ByteSpan::from_bounds(size / BLOCK_BYTES * BLOCK_BYTES, disk.size());
    let bytes = read_span(disk.open_lane()?.as_mut(), block)?;
    Ok(bytes[(size - block.offset) as usize..].iter().all(|byte| *byte == 0))
}

/// Sectors that sizes of images are rounded up to.
const ROUNDED_TO: u64 = 512;

/// Reads two disks side by side and compares the first `size` bytes of them.
///
/// # Errors
/// See [`MoveError`].
pub fn compare(
    disks: [&dyn Disk; 2],
    size: u64,
    share: Share,
    options: &TransferOptions,
    progress: &Progress,
    stop: &StopSignal,
) -> Result<Comparison, MoveError> {
    let mut tally = Tally::new(size, share);
    progress.start(size.saturating_mul(2));
    for span in parts_of(size) {
        let [first, second] = hash_both(disks, span, share, options, progress, stop)?;
        tally.add(span.offset, &first, &second);
    }
    check_same(disks)?;
    Ok(tally.end())
}

/// Compares a disk with a report. The report must have been read to its end and found sound before;
/// here it is read once more, beside the disk.
///
/// # Errors
/// See [`MoveError`].
pub fn compare_with_report<R: Read>(
    report: &mut ReportReader<R>,
    disk: &dyn Disk,
    share: Share,
    options: &TransferOptions,
    progress: &Progress,
    stop: &StopSignal,
) -> Result<Comparison, MoveError> {
    let size = report.about().size.min(disk.size());
    let mut tally = Tally::new(size, share);
    progress.start(size);
    for span in parts_of(size) {
        let expected = report.next_part(PART_BYTES).map_err(report_failed)?.ok_or_else(|| {
            report_failed(ReportError::Damaged("it has fewer leaves than when it was checked"))
        })?;
        let found = hash_part(disk, span, share, options, progress, stop)?;
        tally.add(span.offset, &expected, &found);
    }
    check_same([disk])?;
    Ok(tally.end())
}

fn report_failed(error: ReportError) -> MoveError {
    MoveError::Other { what: "reading of the hash report".to_string(), source: Box::new(error) }
}

fn parts_of(size: u64) -> impl Iterator<Item = ByteSpan> {
    (0..size.div_ceil(PART_BYTES)).map(move |part| {
        ByteSpan::from_bounds(part * PART_BYTES, (part + 1).saturating_mul(PART_BYTES).min(size))
    })
}

fn hash_part(
    disk: &dyn Disk,
    span: ByteSpan,
    share: Share,
    options: &TransferOptions,
    progress: &Progress,
    stop: &StopSignal,
) -> Result<LeafTable, MoveError> {
    let part = Part { disk, span };
    Ok(hash(&part, span.length, share.sample(span.offset), options, &progress.part(), stop)?.leaves)
}

/// Hashes the same span of both. If one fails, the other is stopped and the failure is told.
fn hash_both(
    disks: [&dyn Disk; 2],
    span: ByteSpan,
    share: Share,
    options: &TransferOptions,
    progress: &Progress,
    stop: &StopSignal,
) -> Result<[LeafTable; 2], MoveError> {
    let both = stop.child();
    let one = |disk: &dyn Disk| {
        let result = hash_part(disk, span, share, options, progress, &both);
        if result.is_err() {
            both.stop();
        }
        result
    };
    let [first, second] = std::thread::scope(|scope| {
        // One after the other where no thread can be had.
        let thread = Builder::new().spawn_scoped(scope, || one(disks[0]));
        let second = one(disks[1]);
        let first = match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => one(disks[0]),
        };
        [first, second]
    });
    match (first, second) {
        (Ok(first), Ok(second)) => Ok([first, second]),
        // The one that was stopped because of the other has nothing to say.
        (Err(MoveError::Cancelled), Err(error)) | (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

/// Counts what differs, part after part.
struct Tally {
    started: Instant,
    size: u64,
    share: Share,
    blocks: u64,
    blocks_total: u64,
    differing: u64,
    spans: Vec<ByteSpan>,
    roots: Option<[RootHasher; 2]>,
}

impl Tally {
    fn new(size: u64, share: Share) -> Tally {
        let full = share == Share::Full;
        Tally {
            started: Instant::now(),
            size,
            share,
            blocks: 0,
            blocks_total: 0,
            differing: 0,
            spans: Vec::new(),
            roots: full.then(|| [RootHasher::new(size), RootHasher::new(size)]),
        }
    }

    fn add(&mut self, offset: u64, first: &LeafTable, second: &LeafTable) {
        self.blocks += first.known_blocks().min(second.known_blocks());
        self.blocks_total += second.blocks();
        for found in first.mismatches(second) {
            self.differing += 1;
            self.add_span(ByteSpan::new(offset + found.span.offset, found.span.length));
        }
        // A report may know more than the disk has: then there is no root over the same bytes.
        self.roots = self.roots.take().filter(|_| first.size() == second.size()).and_then(|mut roots| {
            roots[0].push(first)?;
            roots[1].push(second)?;
            Some(roots)
        });
    }

    fn add_span(&mut self, span: ByteSpan) {
        let kept = self.spans.len();
        match self.spans.last_mut() {
            Some(last) if last.end() == span.offset => last.length += span.length,
            _ if kept < REPORTED_SPANS_MAX => self.spans.push(span),
            _ => {}
        }
    }

    fn end(self) -> Comparison {
        debug_assert!(self.blocks_total * BLOCK_BYTES >= self.size);
        let [first_root, second_root] = match self.roots {
            Some(roots) => roots.map(|root| Some(root.finish())),
            None => [None, None],
        };
        Comparison {
            blocks: self.blocks,
            blocks_total: self.blocks_total,
            differing_blocks: self.differing,
            spans: self.spans,
            first_root,
            second_root,
            share: self.share,
            elapsed: self.started.elapsed(),
        }
    }
}
