//! One disk's transfer: copy, hash, verify.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_copy::{
    Copier, CopierConfig, Entry, Header, LeafTable, MISMATCHES_MAX, Mismatch, Mode, REQUEST_BYTES_START,
    RetryPolicy, Sample, StopCause, Window, WindowLimits, miss_probability,
};
use drover_disk::{Disk, DiskError, DiskErrorKind};
use drover_types::{BLOCK_BYTES, Digest};

use crate::journal::{JournalFile, JournalFileError, JournalStart, recorded_size};
use crate::memory::MemoryBudget;
use crate::owner::{check_marks, check_owner};
use crate::pass::{PassJob, PassReport};
use crate::progress::{Progress, Snapshot, StopSignal};
use crate::shared::{End, Found, Shared};
use crate::there::hash_there;
use crate::worker::run_workers;

/// Settings of a transfer. What is absent is found by measuring.
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

/// Memory that one disk's buffers take at the most.
const DISK_MEMORY_BYTES: u64 = 64 << 20;
/// Memory of all disks, unless said otherwise.
const MEMORY_BYTES: u64 = 96 << 20;
/// Largest request to begin with, whatever a disk prefers.
const REQUEST_START_MAX: u64 = 4 << 20;
/// Largest request that is tried.
const REQUEST_BYTES_MAX: u64 = 32 << 20;

impl Default for TransferOptions {
    fn default() -> Self {
        TransferOptions {
            lanes: None,
            depth: None,
            request_bytes: None,
            retry: RetryPolicy::default(),
            memory: MemoryBudget::new(MEMORY_BYTES),
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
    /// Whose the target is to be: a plan's, for one of its disks. It is refused if its journal says that it is another's,
    /// and if that recorded no data, for a file system or the like that the source does not have. `None`: it was decided
    /// already, under its lock, that it may be overwritten ([`crate::judge`]).
    pub owner: Option<String>,
    /// Where the journal lies; without one the copy cannot be resumed.
    pub journal: Option<PathBuf>,
    /// Which pass of a copy in passes this is; `None` for a copy from a source that stands still.
    pub pass: Option<PassJob>,
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
    /// What the pass did, if it was one.
    pub pass: Option<PassReport>,
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

impl Verification {
    /// Whether everything that was compared is equal.
    pub fn is_equal(&self) -> bool {
        self.mismatches.is_empty()
    }
}

/// A transfer that did not end well. All but `TooSmall`, `Resized` and `SourceBusy` leave a state to resume from.
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
    /// The source grew or shrank since the pass before.
    #[error(
        "{disk} has {now} bytes and had {was} at the pass before; a pass cannot follow that, so resize the \
         target and begin the copy again without the old journal"
    )]
    Resized {
        /// Source name.
        disk: String,
        /// Its size when the copy began.
        was: u64,
        /// Its size now.
        now: u64,
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

impl MoveError {
    /// Whether there was no room: on a disk, or for the journal.
    pub fn is_out_of_space(&self) -> bool {
        let kind = match self {
            MoveError::Disk(error) => Some(error.kind),
            MoveError::Journal(error) => Some(DiskErrorKind::of(&error.source)),
            MoveError::TooSmall { .. }
            | MoveError::Resized { .. }
            | MoveError::Cancelled
            | MoveError::Other { .. } => None,
        };
        kind == Some(DiskErrorKind::OutOfSpace)
    }
}

/// Copies a disk, or goes on with a copy.
///
/// # Errors
/// See [`MoveError`]. Whatever was flushed and recorded before is kept.
pub fn copy(job: &CopyJob, progress: &Progress, stop: &StopSignal) -> Result<CopyReport, MoveError> {
    copy_telling(job, &|_| Ok(()), progress, stop)
}

/// As [`copy`], and tells what the audit of a pass finds before the first such block is mended: whoever keeps that
/// for good knows of it also if the process is killed then. Called once, by one of the copy's threads.
///
/// # Errors
/// As [`copy`], and if it cannot be kept: then nothing that was found is mended.
pub fn copy_telling(
    job: &CopyJob,
    found: &Found<'_>,
    progress: &Progress,
    stop: &StopSignal,
) -> Result<CopyReport, MoveError> {
    let started = Instant::now();
    let size = job.source.size();
    check_room(job)?;
    let source_tag = match &job.pass {
        Some(pass) => pass.tag(),
        None => job.source.identity(),
    };
    if job.pass.is_some() {
        check_size(job, &source_tag)?;
    }
    if let (Some(owner), Some(journal)) = (&job.owner, &job.journal) {
        check_owner(job, journal, owner, &source_tag)?;
    }
    let mut start = match &job.journal {
        Some(path) => {
            let header = Header::new(size, &source_tag, &job.target_tag, 1);
            let header = job.owner.as_deref().map_or(header, |owner| header.owned_by(owner));
            Some(JournalFile::start_as(path, header, &source_tag, job.target_is_new)?)
        }
        None => None,
    };
    if let Some(start) = start.as_ref().filter(|it| job.owner.is_some() && !job.target_is_new && !it.had_data)
    {
        check_marks(job.target.as_ref(), &start.leaves, job.source.as_ref())?;
    }
    let is_other_base = job.pass.as_ref().is_some_and(|pass| pass.has_other_base(start.as_ref()));
    // A pass after a completed one goes on with nothing.
    let is_resumed = |start: &JournalStart| {
        job.pass.is_none() || start.pass.as_ref().is_some_and(|pass| !pass.is_complete)
    };
    let is_resumed = start.as_ref().is_some_and(is_resumed);
    let pass = match &job.pass {
        Some(pass) => Some(pass.begin(size, start.as_mut())?),
        None => None,
    };
    let (journal, recorded, note) = match start {
        Some(JournalStart { journal, leaves, resumed, note, .. }) => {
            let told: Vec<String> = resumed.filter(|_| is_resumed).into_iter().chain(note).collect();
            (Some(journal), leaves, (!told.is_empty()).then(|| told.join("; ")))
        }
        None => (None, LeafTable::new(size), None),
    };
    // A target that an earlier try wrote to proves nothing about blocks that were not recorded.
    let target_zeroed = job.target_zeroed && job.target_is_new;
    let mode = Mode::Copy { target_zeroed };
    let reserve_bytes = if target_zeroed { job.target.reserve_bytes() } else { 0 };
    let plan = Plan::new(&job.options, mode, reserve_bytes, job.source.as_ref(), Some(job.target.as_ref()));
    let copier = |config| match pass {
        Some(pass) => Copier::for_pass(config, recorded, pass),
        None => Copier::new(config, recorded),
    };
    let shared = plan.shared(copier, journal, &job.options, progress, stop).telling(found);
    run_workers(&shared, plan.limits.lanes_max, job.source.as_ref(), Some(job.target.as_ref()));
    let end = shared.into_end();
    // What was found is worth knowing also if the pass fails: its blocks may be mended by then.
    progress.set_audit_mismatches(end.copier.audit().mismatches.len() as u64);
    let end = ended(end)?;
    // Before it is called complete: what was read is of no one moment, or what was written is not where it should be.
    check_same([job.source.as_ref(), job.target.as_ref()])?;
    let root = end.copier.root().expect("a copy that ended without error knows every block");
    let mut pass = None;
    match (&job.pass, end.journal) {
        (Some(job), journal) => {
            pass = Some(PassReport { is_other_base, ..job.end(&end.copier, root, journal)? });
        }
        (None, Some(mut journal)) => journal.append(&[Entry::Complete(root)])?,
        (None, None) => {}
    }
    let snapshot = progress.snapshot();
    Ok(CopyReport {
        root,
        leaves: end.copier.into_leaves(),
        snapshot,
        elapsed: started.elapsed(),
        note,
        pass,
    })
}

pub(crate) fn check_room(job: &CopyJob) -> Result<(), MoveError> {
    let (target_bytes, source_bytes) = (job.target.size(), job.source.size());
    if target_bytes >= source_bytes {
        return Ok(());
    }
    let (target, source_name) = (job.target.name().to_string(), job.source.name().to_string());
    Err(MoveError::TooSmall { target, target_bytes, source_name, source_bytes })
}

/// Fails if one of the disks is not what it was when it was opened.
pub(crate) fn check_same<'a>(disks: impl IntoIterator<Item = &'a dyn Disk>) -> Result<(), MoveError> {
    disks.into_iter().try_for_each(|disk| Ok(disk.check_same()?))
}

/// Fails if the workers' end was an error, or was asked for.
pub(crate) fn ended(end: End) -> Result<End, MoveError> {
    match end {
        End { error: Some(error), .. } => Err(error),
        end if end.copier.stop_cause() == Some(StopCause::Cancelled) => Err(MoveError::Cancelled),
        end => Ok(end),
    }
}

/// A pass cannot follow a disk that was resized: which blocks moved where is not known.
fn check_size(job: &CopyJob, source_tag: &str) -> Result<(), MoveError> {
    let Some(path) = job.journal.as_ref().filter(|_| !job.target_is_new) else { return Ok(()) };
    match recorded_size(path, source_tag, &job.target_tag)? {
        Some(was) if was != job.source.size() => {
            Err(MoveError::Resized { disk: job.source.name().to_string(), was, now: job.source.size() })
        }
        _ => Ok(()),
    }
}

/// Reads a disk, or a sample of it, and hashes it; where the disk is, if it can do that.
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
    if let Some(leaves) = hash_there(disk, size, sample, progress, stop)? {
        let (root, snapshot) = (leaves.root(), progress.snapshot());
        return Ok(HashReport { leaves, root, snapshot, elapsed: started.elapsed() });
    }
    let plan = Plan::new(options, Mode::Hash(sample), 0, disk, None);
    let copier = |config| Copier::new(config, LeafTable::new(size));
    let shared = plan.shared(copier, None, options, progress, stop);
    run_workers(&shared, plan.limits.lanes_max, disk, None);
    let end = ended(shared.into_end())?;
    check_same([disk])?;
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

/// How a transfer begins, and within which limits it may change.
pub(crate) struct Plan {
    pub(crate) limits: WindowLimits,
    config: CopierConfig,
}

impl Plan {
    pub(crate) fn new(
        options: &TransferOptions,
        mode: Mode,
        reserve_bytes: u64,
        source: &dyn Disk,
        target: Option<&dyn Disk>,
    ) -> Plan {
        let from = source.limits();
        let to = target.map(Disk::limits);
        let blocks = |bytes: u64| (bytes / BLOCK_BYTES).max(1) * BLOCK_BYTES;
        let request_max =
            blocks(from.bytes_max.min(to.map_or(u64::MAX, |to| to.bytes_max)).min(REQUEST_BYTES_MAX));
        let preferred = from.bytes_preferred.max(to.map_or(0, |to| to.bytes_preferred));
        let limits = WindowLimits {
            lanes_max: from.lanes_max.min(to.map_or(usize::MAX, |to| to.lanes_max)).max(1),
            depth_max: from.depth_max.max(1),
            request_min: BLOCK_BYTES,
            request_start: blocks(preferred.clamp(REQUEST_BYTES_START, REQUEST_START_MAX)),
            request_max,
            bytes_max: DISK_MEMORY_BYTES,
            lanes: options.lanes,
            depth: options.depth,
            request: options.request_bytes.map(blocks),
        };
        let config = CopierConfig { reserve_bytes, retry: options.retry, ..CopierConfig::new(mode) };
        Plan { limits, config }
    }

    pub(crate) fn shared<'a>(
        &self,
        copier: impl FnOnce(CopierConfig) -> Copier,
        journal: Option<JournalFile>,
        options: &TransferOptions,
        progress: &'a Progress,
        stop: &'a StopSignal,
    ) -> Shared<'a> {
        let memory = options.memory.share(DISK_MEMORY_BYTES);
        let window = Window::new(self.limits);
        let config = CopierConfig { request_bytes: window.request_bytes(), ..self.config };
        let copier = copier(config);
        progress.start(copier.bytes_in_all());
        Shared::new(copier, window, memory, journal, progress, stop)
    }
}
