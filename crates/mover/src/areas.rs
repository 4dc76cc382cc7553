//! A copy of some areas of a disk onto a target that holds the rest already: what a dirty bitmap names.

use std::time::{Duration, Instant};

use drover_copy::{BlockSet, Copier, LeafTable, Mode};
use drover_types::ByteSpan;

use crate::journal::JournalFile;
use crate::progress::{Progress, Snapshot, StopSignal};
use crate::transfer::{CopyJob, MoveError, Plan, check_room, check_same, ended};
use crate::worker::run_workers;

/// What of a disk is to be copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreasJob {
    /// In any order; widened to blocks.
    pub spans: Vec<ByteSpan>,
    /// What the journal names as its source. Never that of a copy of the whole disk, nor of other areas of it: neither
    /// is then gone on with as the other.
    pub tag: String,
}

/// What a copy of areas did.
#[derive(Debug)]
pub struct AreasReport {
    /// Leaves of the blocks that were copied, in this run or in one that it went on with; the others are unknown.
    pub leaves: LeafTable,
    /// Sums.
    pub snapshot: Snapshot,
    /// Time of this run.
    pub elapsed: Duration,
    /// Resumed from where, or why not.
    pub note: Option<String>,
}

/// Copies areas, or goes on with that. Nothing else of the target is looked at. The journal is not ended by a root,
/// for there is none: one that is there goes on with all of it done.
///
/// # Errors
/// See [`MoveError`]. Whatever was flushed and recorded before is kept.
pub fn copy_areas(
    job: &CopyJob,
    areas: &AreasJob,
    progress: &Progress,
    stop: &StopSignal,
) -> Result<AreasReport, MoveError> {
    let started = Instant::now();
    let size = job.source.size();
    check_room(job)?;
    let start = match &job.journal {
        Some(path) => Some(JournalFile::start(path, size, &areas.tag, &job.target_tag, false)?),
        None => None,
    };
    let (journal, recorded, note) = match start {
        Some(start) => {
            let told: Vec<String> = start.resumed.into_iter().chain(start.note).collect();
            (Some(start.journal), start.leaves, (!told.is_empty()).then(|| told.join("; ")))
        }
        None => (None, LeafTable::new(size), None),
    };
    let mode = Mode::Copy { target_zeroed: false };
    let plan = Plan::new(&job.options, mode, 0, job.source.as_ref(), Some(job.target.as_ref()));
    let blocks = BlockSet::touched_by(&areas.spans, size);
    let copier = |config| Copier::for_areas(config, recorded, blocks);
    let shared = plan.shared(copier, journal, &job.options, progress, stop);
    run_workers(&shared, plan.limits.lanes_max, job.source.as_ref(), Some(job.target.as_ref()));
    let end = ended(shared.into_end())?;
    check_same([job.source.as_ref(), job.target.as_ref()])?;
    let (leaves, snapshot) = (end.copier.into_leaves(), progress.snapshot());
    Ok(AreasReport { leaves, snapshot, elapsed: started.elapsed(), note })
}
