//! A pass: the part of a copy that brings a target up to a later state of its source.

use drover_copy::{BlockSet, Copier, Entry, Mismatch, PassPlan, Sample};
use drover_types::{ByteSpan, Digest};

use crate::journal::{JournalFile, JournalStart};
use crate::transfer::MoveError;

/// One pass over a disk whose state is frozen (a snapshot).
///
/// A target is copied to in passes, each from a later frozen state of the same disk, and each with the
/// areas that changed since the last *completed* one. Every block that is read is compared with what
/// the journal knows of the target; equal ones are not written. Blocks that the journal does not know
/// are always copied, whatever the areas say, so the first pass is a whole copy.
#[derive(Clone, Debug, PartialEq)]
pub struct PassJob {
    /// Its number, from 1. A pass that is done again after a failure keeps its number.
    pub number: u32,
    /// What tells the source disk from every other, in whatever state it is: the VM's UUID and the disk's
    /// key. A journal of another disk is not gone on with, and then the whole disk is copied.
    pub disk: String,
    /// What tells this frozen state from every other: the change id of its snapshot. If the same pass was
    /// interrupted with the same frozen state, what it recorded is not read again. `None` promises nothing.
    pub frozen: Option<String>,
    /// What may have changed since the last completed pass.
    pub areas: Areas,
    /// The frozen state since which the areas are told. If the journal does not say that the target has had all of
    /// it, the target is another one, or an older state of it, and all is compared. `None`: believed unasked.
    pub since: Option<String>,
    /// Whether blocks outside the areas are looked at as well.
    pub audit: Option<Audit>,
}

/// What may have changed since the last completed pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Areas {
    /// These bytes, in any order; they may overlap, lie off block borders or reach beyond the disk.
    Changed(Vec<ByteSpan>),
    /// Unknown: all is read, and what differs is written.
    All,
}

/// A look at blocks that are said to be unchanged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Audit {
    /// Share (0 to 1) of the blocks outside the areas that are read and compared.
    pub share: f64,
    /// Seed of the choice; a new one for each pass finds in time what the last one missed.
    pub seed: u64,
}

/// What a pass did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassReport {
    /// Bytes of the areas, widened to blocks.
    pub areas_bytes: u64,
    /// Bytes of the blocks that differed from what was known, or of which nothing was known; they were
    /// written, or made zero.
    pub changed_bytes: u64,
    /// Blocks outside the areas that were compared.
    pub audited_blocks: u64,
    /// Of these, the ones that had changed nevertheless; at most [`drover_copy::MISMATCHES_MAX`] are kept. They
    /// were copied too, but others like them may be left: the pass is not recorded as complete and is to
    /// be done again with [`Areas::All`].
    pub audit_mismatches: Vec<Mismatch>,
    /// The areas were told since a state that the target never had all of, so everything was compared.
    pub is_other_base: bool,
    /// Why the journal could not be shortened; it is whole nevertheless.
    pub journal_note: Option<String>,
}

impl PassJob {
    /// What a journal of this disk names as its source. Never that of a copy of one state.
    pub(crate) fn tag(&self) -> String {
        format!("disk in passes: {}", self.disk)
    }

    /// Records the beginning, unless this very pass goes on, and says what to visit.
    pub(crate) fn begin(&self, size: u64, start: Option<&mut JournalStart>) -> Result<PassPlan, MoveError> {
        let areas = match &self.areas {
            Areas::Changed(spans) if !self.has_other_base(start.as_deref()) => {
                BlockSet::touched_by(spans, size)
            }
            Areas::Changed(_) | Areas::All => BlockSet::all(size),
        };
        let audit = self.audit.map(|audit| Sample::of_share(audit.share, audit.seed));
        let mut done = BlockSet::none(size);
        if let Some(start) = start {
            start.journal.take_passes(&start.leaves)?;
            match start.pass.take().filter(|record| record.is(self.number, self.frozen.as_deref())) {
                Some(record) => done = record.recorded,
                None => start.journal.append(&[Entry::pass_begun(self.number, self.frozen.as_deref())])?,
            }
        }
        Ok(PassPlan { areas, done, audit })
    }

    /// Whether what changed since `since` does not bring this target up to date. One of which nothing is known is
    /// copied whole anyway.
    pub(crate) fn has_other_base(&self, start: Option<&JournalStart>) -> bool {
        let (Some(start), Some(since), Areas::Changed(_)) = (start, &self.since, &self.areas) else {
            return false;
        };
        start.leaves.known_blocks() > 0 && !start.journal.has_had(since)
    }

    /// Records the end, unless the audit found that the areas were not all that had changed.
    pub(crate) fn end(
        &self,
        copier: &Copier,
        root: Digest,
        journal: Option<JournalFile>,
    ) -> Result<PassReport, MoveError> {
        let audit = copier.audit();
        let mut report = PassReport {
            areas_bytes: copier.areas_bytes(),
            changed_bytes: copier.totals().changed,
            audited_blocks: audit.blocks,
            audit_mismatches: in_order(audit.mismatches),
            is_other_base: false,
            journal_note: None,
        };
        if let Some(mut journal) = journal.filter(|_| report.audit_mismatches.is_empty()) {
            let complete = Entry::PassComplete { number: self.number, root };
            journal.append(std::slice::from_ref(&complete))?;
            let begun = Entry::pass_begun(self.number, self.frozen.as_deref());
            if let Err(error) = journal.compact(copier.leaves(), self.number, [begun, complete]) {
                report.journal_note = Some(format!("{error}: {}", error.source));
            }
        }
        Ok(report)
    }
}

/// They were found as their reads ended.
fn in_order(mut mismatches: Vec<Mismatch>) -> Vec<Mismatch> {
    mismatches.sort_by_key(|mismatch| mismatch.block);
    mismatches
}
