//! A copy to a target that takes a disk once, in order, and gives nothing back: no block of it is recorded before all are
//! there, and what was cut short begins again.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use drover_copy::{Entry, Header, LeafTable};
use drover_disk::Disk;

use crate::blocks::recorded;
use crate::journal::{JournalFile, JournalFileError};
use crate::progress::{Progress, StopSignal};
use crate::stream::stream_telling;
use crate::transfer::{MoveError, TransferOptions};

/// What was sent.
#[derive(Debug)]
pub struct Uploaded {
    /// The leaves of all of it, whose root is that of what was sent: nobody has read it back.
    pub leaves: LeafTable,
    /// Time taken.
    pub elapsed: Duration,
}

/// Writes a disk to `sink`, every byte in order, holes as zeros. Nothing is recorded.
///
/// # Errors
/// As [`crate::stream`].
pub fn upload(
    source: &dyn Disk,
    sink: &mut dyn Write,
    options: &TransferOptions,
    progress: &Progress,
    stop: &StopSignal,
) -> Result<Uploaded, MoveError> {
    let started = Instant::now();
    let (mut leaves, mut block) = (LeafTable::new(source.size()), 0);
    stream_telling(source, sink, options, progress, stop, &mut |leaf| {
        leaves.set(block, leaf);
        block += 1;
    })?;
    Ok(Uploaded { leaves, elapsed: started.elapsed() })
}

/// What a journal says was sent whole, of this state of the source to this very target. One that cannot be read says
/// nothing.
pub fn was_uploaded(journal: &Path, source: &str, target: &str) -> Option<LeafTable> {
    let found = recorded(journal).ok()?;
    let is_it = found.complete.is_some() && found.header.is_of(source) && found.header.is_to(target);
    (is_it && found.leaves.is_complete()).then_some(found.leaves)
}

/// Records that the target has taken all of it.
///
/// # Errors
/// If it cannot be written; the target then counts as one that nothing was sent to.
pub fn record_upload(
    journal: &Path,
    source: &str,
    target: &str,
    owner: &str,
    leaves: &LeafTable,
) -> Result<(), JournalFileError> {
    let header = Header::new(leaves.size(), source, target, 1).owned_by(owner);
    let mut start = JournalFile::start_as(journal, header, source, true)?;
    let root = leaves.root().map(Entry::Complete);
    start.journal.append(&leaves.entries().chain(root).collect::<Vec<_>>())
}
