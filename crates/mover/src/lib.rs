//! Drives transfers: runs the copy engine's decisions against real disks with worker threads, keeps
//! the journal on disk, counts where the time goes.
//!
//! Each worker owns one lane to the source and one to the target and keeps several requests in flight
//! on both. There is one lock, around the [`drover_copy::Copier`], held for microseconds.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod areas;
mod blocks;
mod compare;
mod held;
mod journal;
mod memory;
mod owner;
mod part;
mod pass;
mod progress;
mod shared;
mod stream;
mod there;
mod transfer;
mod upload;
mod worker;

pub use areas::{AreasJob, AreasReport, copy_areas};
pub use blocks::{recorded, recorded_leaves, verify_blocks};
pub use compare::{
    Comparison, HashedDisk, PART_BYTES, REPORTED_SPANS_MAX, Share, compare, compare_with_report, hash_parts,
    is_rounded_up,
};
pub use held::{Held, look};
pub use journal::{
    Claim, JournalFile, JournalFileError, JournalStart, file_tag, journal_in, journal_path, new_epoch,
};
pub use memory::{MemoryBudget, MemoryShare};
pub use owner::{Earlier, FoundTarget, Naming, Standing, earlier, judge, naming, why_not_of, why_others};
pub use pass::{Areas, Audit, PassJob, PassReport};
pub use progress::{Attribution, Progress, Snapshot, StopSignal};
pub use shared::Found;
pub use stream::{StreamReport, stream};
pub use transfer::{
    CopyJob, CopyReport, HashReport, MoveError, TransferOptions, Verification, Verify, copy, copy_telling,
    hash, verify,
};
pub use upload::{Uploaded, record_upload, upload, was_uploaded};
