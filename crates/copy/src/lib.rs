//! The copy engine's decisions: what to read, write, zero, flush, record and try again.
//!
//! Pure: events and the time go in, actions come out. It opens nothing, reads no clock and takes no
//! lock, so a test drives a whole copy, with every fault and crash, in a millisecond. `mover` runs it
//! against real disks.
//!
//! One engine serves every itinerary: a cold copy takes all extents, a resumed one those that the
//! journal lacks, and hashing ([`Mode::Hash`]) is a copy that writes nothing.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod blocks;
pub mod converge;
mod copier;
mod journal;
mod leaves;
pub mod report;
mod retry;
mod sample;
mod window;
mod zero;

pub use blocks::BlockSet;
pub use copier::{
    AuditFindings, Copier, CopierConfig, Failure, FlushTicket, MISMATCHES_MAX, Mode, Next, PassPlan,
    StopCause, Totals, WriteParts,
};
pub use journal::{
    Bases, Damage, Entry, Header, JournalError, PassRecord, RECORD_BLOCKS_MAX, Replay, encode_entry, replay,
    text_digest,
};
pub use leaves::{Leaf, LeafTable, Mismatch, RootHasher, SEGMENT_BYTES, zero_leaf};
pub use retry::{RetryPolicy, Verdict};
pub use sample::{Sample, miss_probability};
pub use window::{REQUEST_BYTES_START, Window, WindowLimits};
pub use zero::is_zero;
