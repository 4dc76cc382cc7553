//! A pass: the part of a copy that brings a target up to a later state of its source.

use drover_copy::Mismatch;
use drover_types::ByteSpan;

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
    /// Of these, the ones that had changed nevertheless; at most [`crate::MISMATCHES_MAX`] are kept. They
    /// were copied too, but others like them may be left: the pass is not recorded as complete and is to
    /// be done again with [`Areas::All`].
    pub audit_mismatches: Vec<Mismatch>,
}
