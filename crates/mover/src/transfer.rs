//! One disk's transfer: copy, hash, verify.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_copy::{
    Copier, CopierConfig, Entry, LeafTable, Mismatch, Mode, RetryPolicy, Sample, StopCause, miss_probability,
};
use drover_disk::{Disk, DiskError};
use drover_types::{BLOCK_BYTES, Digest};

use crate::journal::{JournalFile, JournalFileError, JournalStart};
use crate::memory::{MemoryBudget, MemoryShare};
use crate::progress::{Progress, Snapshot, StopSignal};
use crate::worker::{Shared, run_workers};

/// Settings of a transfer. What is absent is chosen from what the disks say.
#[derive(Clone, Debug)]
pub struct TransferOptions {
    /// Worker threads, each with one lane to both disks.
    pub lanes: Option<usize>,
    /// Requests in flight on each lane.
    pub depth: Option<usize>,
    /// Bytes of a request.
    pub request_bytes: Option<u64>,
    /// What to do about failures.
    pub retry: RetryPolicy,
    /// Memory for buffers, shared by all transfers.
    pub memory: MemoryBudget,
}

/// Memory that one disk's buffers take when nothing else is said.
const DISK_MEMORY_BYTES: u64 = 64 << 20;
/// Four lanes fill a local disk and hide the latency of a LAN source; more brought nothing.
const LANES_DEFAULT: usize = 4;
/// Bytes of requests in flight over all lanes, from which the depth of a lane follows: enough for
/// 1 GB/s at 32 ms.
const IN_FLIGHT_BYTES: u64 = 32 << 20;
const DEPTH_MIN: usize = 2;

impl Default for TransferOptions {
    fn default() -> Self {
        TransferOptions {
            lanes: None,
            depth: None,
            request_bytes: None,
            retry: RetryPolicy::default(),
            memory: MemoryBudget::new(512 << 20),
        }
    }
}

/// A copy to be made.
pub struct CopyJob {
    /// Where from.
    pub source: Arc<dyn Disk>,
    /// Where to; at least as large.
    pub target: Arc<dyn Disk>,
    /// What tells the target from another of its name (see [`crate::file_tag`]).
    pub target_tag: String,
    /// Whether the target was made just now, so that nothing in it can be from an earlier try.
    pub target_is_new: bool,
    /// Whether it is proven to read as zeros where nothing was written.
    pub target_zeroed: bool,
    /// Where the journal lies; without one the copy cannot be resumed.
    pub journal: Option<PathBuf>,
    /// Settings.
    pub options: TransferOptions,
}

/// What a copy did.
#[derive(Debug)]
pub struct CopyReport {
    /// Root of the hash tree of what was read from the source.
    pub root: Digest,
    /// The tree's leaves, to verify against.
    pub leaves: LeafTable,
    /// Sums.
    pub snapshot: Snapshot,
    /// Time of this run.
    pub elapsed: Duration,
    /// Resumed from where, or why not.
    pub note: Option<String>,
}

/// What hashing found.
#[derive(Debug)]
pub struct HashReport {
    /// The leaves.
    pub leaves: LeafTable,
    /// Root, if the whole disk was hashed.
    pub root: Option<Digest>,
    /// Sums.
    pub snapshot: Snapshot,
    /// Time taken.
    pub elapsed: Duration,
}

/// How much of the target is read back and compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verify {
    /// Nothing.
    None,
    /// About this share (0 to 1) of the blocks, chosen by a seed.
    Sampled {
        /// Share of the blocks.
        share: f64,
        /// Seed.
        seed: u64,
    },
    /// Every block.
    Full,
}

/// The outcome of a verification.
#[derive(Debug, Clone, PartialEq)]
pub struct Verification {
    /// Blocks that were compared.
    pub blocks: u64,
    /// Of so many.
    pub blocks_total: u64,
    /// Root of the target, if all of it was read.
    pub target_root: Option<Digest>,
    /// Blocks that differ; at most [`MISMATCHES_MAX`] are kept.
    pub mismatches: Vec<Mismatch>,
    /// Chance that one damaged block escaped.
    pub miss_probability: f64,
    /// Time taken.
    pub elapsed: Duration,
}

/// Differing blocks kept for the report; one is enough to fail.
pub const MISMATCHES_MAX: usize = 1000;

impl Verification {
    /// Whether everything that was compared is equal.
    pub fn is_equal(&self) -> bool {
        self.mismatches.is_empty()
    }
}

/// A transfer that did not end well. All but `TooSmall` and `SourceBusy` leave a state to resume from.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// The target has less room than the source has bytes.
    #[error("{target} has {target_bytes} bytes and {source_name} has {source_bytes}")]
    TooSmall {
        /// Target name.
        target: String,
        /// Its size.
        target_bytes: u64,
        /// Source name.
        source_name: String,
        /// Its size.
        source_bytes: u64,
    },
    /// The user asked to stop.
    #[error("stopped as asked")]
    Cancelled,
    /// A disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The journal failed.
    #[error(transparent)]
    Journal(#[from] JournalFileError),
    /// What the transfer feeds or is held against failed: a hash report.
    #[error("{what}")]
    Other {
        /// What was being done, to what.
        what: String,
        /// Why it failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Copies a disk, or goes on with a copy.
///
/// # Errors
/// See [`MoveError`]. Whatever was flushed and recorded before is kept.
pub fn copy(job: &CopyJob, progress: &Progress, stop: &StopSignal) -> Result<CopyReport, MoveError> {
    let started = Instant::now();
    let size = job.source.size();
    if job.target.size() < size {
        return Err(MoveError::TooSmall {
            target: job.target.name().to_string(),
            target_bytes: job.target.size(),
            source_name: job.source.name().to_string(),
            source_bytes: size,
        });
    }
    progress.start(size);
    let start = match &job.journal {
        Some(path) => {
            Some(JournalFile::start(path, size, &job.source.identity(), &job.target_tag, job.target_is_new)?)
        }
        None => None,
    };
    let (journal, recorded, note) = match start {
        Some(JournalStart { journal, leaves, note, .. }) => (Some(journal), leaves, note),
        None => (None, LeafTable::new(size), None),
    };
    // A target that an earlier try wrote to proves nothing about blocks that were not recorded.
    let target_zeroed = job.target_zeroed && job.target_is_new;
    let lanes = Lanes::choose(&job.options, job.source.as_ref(), Some(job.target.as_ref()));
    let memory = job.options.memory.take(lanes.request_bytes, lanes.memory_bytes());
    let config = lanes.config(Mode::Copy { target_zeroed }, &job.options, &memory);
    let copier = Copier::new(config, recorded);
    let shared = Shared::new(copier, journal, progress, stop);
    run_workers(&shared, &lanes, job.source.as_ref(), Some(job.target.as_ref()));
    let end = shared.into_end();
    if let Some(error) = end.error {
        return Err(error);
    }
    if end.copier.stop_cause() == Some(StopCause::Cancelled) {
        return Err(MoveError::Cancelled);
    }
    let root = end.copier.root().expect("a copy that ended without error knows every block");
    if let Some(mut journal) = end.journal {
        journal.append(&[Entry::Complete(root)])?;
    }
    let snapshot = progress.snapshot();
    Ok(CopyReport { root, leaves: end.copier.into_leaves(), snapshot, elapsed: started.elapsed(), note })
}

/// Reads a disk, or a sample of it, and hashes it.
///
/// # Errors
/// See [`MoveError`].
pub fn hash(
    disk: &dyn Disk,
    size: u64,
    sample: Option<Sample>,
    options: &TransferOptions,
    progress: &Progress,
    stop: &StopSignal,
) -> Result<HashReport, MoveError> {
    let started = Instant::now();
    progress.start(size);
    let lanes = Lanes::choose(options, disk, None);
    let memory = options.memory.take(lanes.request_bytes, lanes.memory_bytes());
    let config = lanes.config(Mode::Hash(sample), options, &memory);
    let shared = Shared::new(Copier::new(config, LeafTable::new(size)), None, progress, stop);
    run_workers(&shared, &lanes, disk, None);
    let end = shared.into_end();
    if let Some(error) = end.error {
        return Err(error);
    }
    if end.copier.stop_cause() == Some(StopCause::Cancelled) {
        return Err(MoveError::Cancelled);
    }
    let root = end.copier.root();
    let snapshot = progress.snapshot();
    Ok(HashReport { leaves: end.copier.into_leaves(), root, snapshot, elapsed: started.elapsed() })
}

/// Reads the target back and compares it with the leaves of what was read from the source.
///
/// # Errors
/// See [`MoveError`]; a difference is not an error but part of the answer.
pub fn verify(
    target: &dyn Disk,
    expected: &LeafTable,
    how: Verify,
    options: &TransferOptions,
    progress: &Progress,
    stop: &StopSignal,
) -> Result<Verification, MoveError> {
    let (sample, share) = match how {
        Verify::None => (Some(Sample::of_share(0.0, 0)), 0.0),
        Verify::Sampled { share, seed } => (Some(Sample::of_share(share, seed)), share),
        Verify::Full => (None, 1.0),
    };
    let found = hash(target, expected.size(), sample, options, progress, stop)?;
    Ok(Verification {
        blocks: found.leaves.known_blocks(),
        blocks_total: expected.blocks(),
        target_root: found.root,
        mismatches: expected.mismatches(&found.leaves).take(MISMATCHES_MAX).collect(),
        miss_probability: miss_probability(share, 1),
        elapsed: found.elapsed,
    })
}

/// How many workers, how deep, how large the requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lanes {
    pub(crate) count: usize,
    pub(crate) depth: usize,
    pub(crate) target_depth: usize,
    pub(crate) request_bytes: u64,
}

impl Lanes {
    fn choose(options: &TransferOptions, source: &dyn Disk, target: Option<&dyn Disk>) -> Lanes {
        let from = source.limits();
        let to = target.map(Disk::limits);
        let largest = from.bytes_max.min(to.map_or(u64::MAX, |to| to.bytes_max));
        let preferred = from.bytes_preferred.max(to.map_or(0, |to| to.bytes_preferred)).max(1 << 20);
        let request = options.request_bytes.unwrap_or(preferred).min(largest);
        let request_bytes = (request / BLOCK_BYTES).max(1) * BLOCK_BYTES;
        let lanes_max = from.lanes_max.min(to.map_or(usize::MAX, |to| to.lanes_max)).max(1);
        let count = options.lanes.unwrap_or(LANES_DEFAULT).clamp(1, lanes_max);
        let filling = (IN_FLIGHT_BYTES / (count as u64 * request_bytes)) as usize;
        let depth = options.depth.unwrap_or(filling.max(DEPTH_MIN)).clamp(1, from.depth_max.max(1));
        let target_depth = to.map_or(1, |to| to.depth_max.clamp(1, depth));
        Lanes { count, depth, target_depth, request_bytes }
    }

    fn config(&self, mode: Mode, options: &TransferOptions, memory: &MemoryShare) -> CopierConfig {
        CopierConfig {
            request_bytes: self.request_bytes,
            window_bytes: memory.bytes(),
            retry: options.retry,
            ..CopierConfig::new(mode)
        }
    }

    /// Bytes of buffers that these lanes use at the most: each lane holds what it reads and writes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let buffers = self.count * (self.depth + self.target_depth);
        (buffers as u64 * self.request_bytes).min(DISK_MEMORY_BYTES)
    }
}
