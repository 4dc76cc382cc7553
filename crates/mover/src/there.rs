//! Hashing where the disk is: for disks of other sites, whose bytes would have to cross a line to be looked at here.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use drover_copy::{Leaf, LeafTable, Sample, zero_leaf};
use drover_disk::{Disk, DiskError, DiskErrorKind, DiskOp, in_threads};
use drover_types::{BLOCK_BYTES, ByteSpan, Digest, Extent, ExtentKind};

use crate::progress::{Progress, StopSignal};
use crate::transfer::MoveError;

/// Bytes asked for at a time: at 100 ms and with two askers, more than a GB/s.
const BATCH_BYTES: u64 = 64 << 20;

/// A sample's spans of one question; each is at least a block.
const BATCH_SPANS: usize = 1024;

/// One asks while the answers of the other arrive.
const ASKERS: usize = 2;

/// Bytes whose extents are asked for at a time.
const PAGE_BYTES: u64 = 1 << 30;

/// Tries of a question whose answer fails for now.
const ATTEMPTS_MAX: u32 = 6;
const PAUSE: Duration = Duration::from_millis(500);

/// Hashes a disk, or a sample of it, where it is; `None` if it cannot do that. Areas that it calls zero are believed,
/// as when it is read.
pub(crate) fn hash_there(
    disk: &dyn Disk,
    size: u64,
    sample: Option<Sample>,
    progress: &Progress,
    stop: &StopSignal,
) -> Result<Option<LeafTable>, MoveError> {
    let can = size > 0 && disk.hashes(&[])?.is_some();
    if !can {
        return Ok(None);
    }
    let work = Work {
        disk,
        sample,
        progress,
        stop,
        state: Mutex::new(State { leaves: LeafTable::new(size), next: 0, mapped: Vec::new(), done: 0 }),
    };
    let failed = Mutex::new(None);
    in_threads(ASKERS, |_| {
        if let Err(error) = work.ask_all() {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)?;
    let state = work.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(Some(state.leaves))
}

/// Hashes blocks where the disk is, one after the other in runs; `None` if it cannot do that.
pub(crate) fn leaves_there(disk: &dyn Disk, spans: &[ByteSpan]) -> Result<Option<Vec<Leaf>>, DiskError> {
    let Some(hashes) = disk.hashes(spans)? else { return Ok(None) };
    let blocks: Vec<ByteSpan> = spans.iter().copied().flat_map(blocks_of).collect();
    if blocks.len() != hashes.len() {
        let text = format!("{} hashes came for {} blocks", hashes.len(), blocks.len());
        let first = blocks.first().copied().unwrap_or(ByteSpan::new(0, 0));
        let source = io::Error::new(io::ErrorKind::InvalidData, text);
        return Err(DiskError::with_kind(DiskErrorKind::Corrupt, DiskOp::Read, first, disk.name(), source));
    }
    Ok(Some(blocks.iter().zip(hashes).map(|(block, hash)| leaf(block.length, hash)).collect()))
}

/// The blocks of a span that begins on one.
fn blocks_of(span: ByteSpan) -> impl Iterator<Item = ByteSpan> {
    let starts = (span.offset..span.end()).step_by(BLOCK_BYTES as usize);
    starts.map(move |at| ByteSpan::from_bounds(at, (at + BLOCK_BYTES).min(span.end())))
}

/// Zeros have a leaf of their own.
fn leaf(bytes: u64, hash: [u8; 32]) -> Leaf {
    let digest = Digest(hash);
    if digest == zero_leaf(bytes) { Leaf::Zero } else { Leaf::Data(digest) }
}

struct Work<'a> {
    disk: &'a dyn Disk,
    sample: Option<Sample>,
    progress: &'a Progress,
    stop: &'a StopSignal,
    state: Mutex<State>,
}

struct State {
    leaves: LeafTable,
    /// The first byte that nobody has asked for.
    next: u64,
    /// Extents from `next` on, as far as they are known.
    mapped: Vec<Extent>,
    done: u64,
}

impl Work<'_> {
    fn ask_all(&self) -> Result<(), MoveError> {
        loop {
            let batch = self.next_batch()?;
            if batch.is_empty() {
                return Ok(());
            }
            let hashes = self.ask(&batch)?;
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            for (block, leaf) in batch.iter().copied().flat_map(blocks_of).zip(hashes) {
                state.leaves.set(block.offset / BLOCK_BYTES, leaf);
                state.done += block.length;
            }
            self.progress.tell(state.done, state.leaves.size());
        }
    }

    fn ask(&self, batch: &[ByteSpan]) -> Result<Vec<Leaf>, MoveError> {
        let mut attempts = 1;
        loop {
            if self.stop.is_set() {
                return Err(MoveError::Cancelled);
            }
            match leaves_there(self.disk, batch) {
                Ok(leaves) => return Ok(leaves.unwrap_or_default()),
                Err(error) if error.kind == DiskErrorKind::Transient && attempts < ATTEMPTS_MAX => {
                    attempts += 1;
                    std::thread::sleep(PAUSE);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The next spans to ask for; what is known to be zero is settled on the way. Empty at the end.
    fn next_batch(&self) -> Result<Vec<ByteSpan>, MoveError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut batch, mut bytes) = (Vec::<ByteSpan>::new(), 0);
        while state.next < state.leaves.size() && bytes < BATCH_BYTES && batch.len() < BATCH_SPANS {
            if self.stop.is_set() {
                return Err(MoveError::Cancelled);
            }
            let block = state.next / BLOCK_BYTES;
            let span = state.leaves.span_of(block);
            let is_wanted = self.sample.is_none_or(|sample| sample.takes(block));
            if !is_wanted {
                state.next = span.end();
            } else if self.is_zero(&mut state, span) {
                state.leaves.set_zero(block, 1);
                state.next = span.end();
                state.done += span.length;
            } else {
                match batch.last_mut() {
                    Some(last) if last.end() == span.offset => last.length += span.length,
                    _ => batch.push(span),
                }
                bytes += span.length;
                state.next = span.end();
            }
        }
        Ok(batch)
    }

    /// Whether the disk calls all of the block zero. A map that cannot be had is none.
    fn is_zero(&self, state: &mut State, block: ByteSpan) -> bool {
        if !self.disk.features().extents {
            return false;
        }
        let is_over = |extent: &Extent| extent.span.end() <= block.offset;
        let known = state.mapped.iter().take_while(|extent| is_over(extent)).count();
        state.mapped.drain(..known);
        if state.mapped.is_empty() {
            let end = block.offset.saturating_add(PAGE_BYTES).min(state.leaves.size());
            let page = ByteSpan::from_bounds(block.offset, end);
            let extents = self.disk.extents(page).unwrap_or_default();
            state.mapped = if extents.is_empty() { vec![Extent::allocated(page)] } else { extents };
        }
        // A block at the end of what is known counts as data.
        state.mapped.first().is_some_and(|it| it.kind == ExtentKind::Zero && it.span.contains(block))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

    use drover_disk::{Around, Buffer, Lane, MemDisk, Request, Work as DiskWork};

    use super::*;
    use crate::{TransferOptions, Verify, hash, verify};

    /// A disk that hashes where it is, and must not be read from here.
    struct Far {
        disk: MemDisk,
        /// Questions that fail for now before one is answered.
        failures: AtomicU32,
        /// Answers lack their last hash.
        is_short: bool,
    }

    fn far(disk: &MemDisk) -> Far {
        Far { disk: disk.clone(), failures: AtomicU32::new(0), is_short: false }
    }

    impl Around for Far {
        fn inner(&self) -> &dyn Disk {
            &self.disk
        }

        fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
            panic!("its bytes are wanted")
        }

        fn hashes(&self, spans: &[ByteSpan]) -> Result<Option<Vec<[u8; 32]>>, DiskError> {
            let fails = |left: u32| left.checked_sub(1);
            if !spans.is_empty() && self.failures.fetch_update(SeqCst, SeqCst, fails).is_ok() {
                let source = io::Error::other("away");
                let kind = DiskErrorKind::Transient;
                return Err(DiskError::with_kind(kind, DiskOp::Read, spans[0], self.name(), source));
            }
            let mut lane = self.disk.open_lane()?;
            let mut hashes = Vec::new();
            for block in spans.iter().copied().flat_map(blocks_of) {
                let work = DiskWork::Read(Buffer::zeroed(block.length as usize));
                lane.submit(Request { id: 0, span: block, work });
                let DiskWork::Read(bytes) = lane.complete().unwrap().work else { panic!("a read") };
                hashes.push(match Leaf::of(&bytes) {
                    Leaf::Data(digest) => digest.0,
                    Leaf::Zero => zero_leaf(block.length).0,
                });
            }
            if self.is_short {
                hashes.pop();
            }
            Ok(Some(hashes))
        }
    }

    /// Data, zeros that are known, zeros that have to be found, and a short last block.
    fn disk() -> MemDisk {
        let mut bytes: Vec<u8> = (0..BLOCK_BYTES * 40 + 700).map(|at| (at / 997) as u8).collect();
        bytes[BLOCK_BYTES as usize * 7..BLOCK_BYTES as usize * 9].fill(0);
        MemDisk::new("far", bytes)
    }

    fn look(disk: &dyn Disk, how: Verify, known: &LeafTable) -> Result<crate::Verification, MoveError> {
        let (progress, stop) = (Progress::default(), StopSignal::default());
        verify(disk, known, how, &TransferOptions::default(), &progress, &stop)
    }

    fn known(disk: &MemDisk) -> LeafTable {
        let (progress, stop) = (Progress::default(), StopSignal::default());
        hash(disk, disk.size(), None, &TransferOptions::default(), &progress, &stop).unwrap().leaves
    }

    #[test]
    fn what_is_hashed_there_is_what_is_hashed_here() {
        let disk = disk();
        let known = known(&disk);
        let found = look(&far(&disk), Verify::Full, &known).unwrap();
        assert!(found.is_equal() && found.blocks == 41 && found.target_root == known.root());
        let sampled = look(&far(&disk), Verify::Sampled { share: 0.5, seed: 3 }, &known).unwrap();
        assert!(sampled.is_equal() && (1..41).contains(&sampled.blocks), "{sampled:?}");
        disk.overwrite(BLOCK_BYTES * 40 + 699, &[0xff]);
        disk.overwrite(BLOCK_BYTES * 8, &[1]);
        let found = look(&far(&disk), Verify::Full, &known).unwrap();
        assert_eq!(found.mismatches.iter().map(|it| it.block).collect::<Vec<_>>(), [8, 40]);
        let blocks: Vec<_> = known.not_in(&LeafTable::new(disk.size())).collect();
        let (progress, stop) = (Progress::default(), StopSignal::default());
        let found = crate::verify_blocks(&far(&disk), &known, &blocks, &progress, &stop).unwrap();
        assert_eq!((found.blocks, found.mismatches.len()), (41, 2));
    }

    #[test]
    fn answers_that_lack_something_prove_nothing_and_failures_that_pass_are_tried_again() {
        let disk = disk();
        let known = known(&disk);
        let short = Far { is_short: true, ..far(&disk) };
        let error = look(&short, Verify::Full, &known).unwrap_err();
        assert!(matches!(&error, MoveError::Disk(error) if error.kind == DiskErrorKind::Corrupt), "{error}");
        let away = far(&disk);
        away.failures.store(2, SeqCst);
        assert!(look(&away, Verify::Full, &known).unwrap().is_equal());
        let gone = far(&disk);
        gone.failures.store(u32::MAX, SeqCst);
        let (progress, stop) = (Progress::default(), StopSignal::default());
        stop.stop();
        let stopped = hash_there(&gone, disk.size(), None, &progress, &stop);
        assert!(matches!(stopped, Err(MoveError::Cancelled)));
    }
}
