//! Single blocks of a target: what its journal knows of them, and whether they are so.

use std::io::BufReader;
use std::path::Path;
use std::time::Instant;

use drover_copy::{Leaf, LeafTable, MISMATCHES_MAX, Mismatch, Replay, replay};
use drover_disk::{Buffer, Disk, DiskError, Lane, Request, Work};
use drover_types::ByteSpan;

use crate::journal::JournalFileError;
use crate::progress::{Progress, StopSignal};
use crate::there::leaves_there;
use crate::transfer::{MoveError, Verification, check_same};

/// Requests in flight.
const DEPTH: usize = 16;

/// Blocks whose hashes are asked for at a time, of a disk that tells them: 64 MiB.
const ASKED_AT_ONCE: usize = 1024;

/// What a journal says.
///
/// # Errors
/// If it is not there or cannot be read.
pub fn recorded(journal: &Path) -> Result<Replay, JournalFileError> {
    let wrap = |source| JournalFileError { op: "reading", path: journal.to_path_buf(), source };
    let file = std::fs::File::open(journal).map_err(wrap)?;
    replay(&mut BufReader::with_capacity(1 << 20, file)).map_err(|error| wrap(std::io::Error::other(error)))
}

/// What a journal says is on its target.
///
/// # Errors
/// As [`recorded`].
pub fn recorded_leaves(journal: &Path) -> Result<LeafTable, JournalFileError> {
    Ok(recorded(journal)?.leaves)
}

/// Reads blocks of the target back and compares them with what is expected there.
///
/// # Errors
/// See [`MoveError`]; a difference is not an error but part of the answer.
pub fn verify_blocks(
    target: &dyn Disk,
    expected: &LeafTable,
    blocks: &[Mismatch],
    progress: &Progress,
    stop: &StopSignal,
) -> Result<Verification, MoveError> {
    let started = Instant::now();
    let all: u64 = blocks.iter().map(|block| block.span.length).sum();
    let (mut done, mut mismatches) = (0, Vec::new());
    if target.hashes(&[])?.is_some() {
        for some in blocks.chunks(ASKED_AT_ONCE) {
            if stop.is_set() {
                return Err(MoveError::Cancelled);
            }
            let spans: Vec<ByteSpan> = some.iter().map(|block| block.span).collect();
            let leaves = leaves_there(target, &spans)?.unwrap_or_default();
            let differ = some.iter().zip(leaves).filter(|(it, leaf)| expected.get(it.block) != Some(*leaf));
            mismatches.extend(differ.map(|(it, _)| *it));
            mismatches.truncate(MISMATCHES_MAX);
            done += spans.iter().map(|span| span.length).sum::<u64>();
            progress.tell(done, all);
        }
        return Ok(verified(started, blocks, expected, mismatches));
    }
    let mut lane = target.open_lane()?;
    let mut left = blocks.iter();
    let depth = target.limits().depth_max.clamp(1, DEPTH);
    loop {
        if stop.is_set() {
            return Err(MoveError::Cancelled);
        }
        while lane.in_flight() < depth
            && let Some(block) = left.next()
        {
            lane.submit(read(block));
        }
        let Some((block, leaf)) = next_leaf(lane.as_mut())? else { break };
        let span = expected.span_of(block);
        if expected.get(block) != Some(leaf) && mismatches.len() < MISMATCHES_MAX {
            mismatches.push(Mismatch { block, span });
        }
        done += span.length;
        progress.tell(done, all);
    }
    check_same([target])?;
    Ok(verified(started, blocks, expected, mismatches))
}

fn verified(
    started: Instant,
    blocks: &[Mismatch],
    expected: &LeafTable,
    mismatches: Vec<Mismatch>,
) -> Verification {
    Verification {
        blocks: blocks.len() as u64,
        blocks_total: expected.blocks(),
        target_root: None,
        mismatches,
        miss_probability: 0.0,
        elapsed: started.elapsed(),
    }
}

fn read(block: &Mismatch) -> Request {
    Request {
        id: block.block,
        span: block.span,
        work: Work::Read(Buffer::zeroed(block.span.length as usize)),
    }
}

fn next_leaf(lane: &mut dyn Lane) -> Result<Option<(u64, Leaf)>, DiskError> {
    let Some(completion) = lane.complete() else { return Ok(None) };
    completion.result?;
    let Work::Read(bytes) = completion.work else { unreachable!("only reads were asked for") };
    Ok(Some((completion.id, Leaf::of(&bytes))))
}

#[cfg(test)]
mod tests {
    use drover_disk::MemDisk;
    use drover_types::BLOCK_BYTES;

    use super::*;
    use crate::{TransferOptions, hash};

    #[test]
    fn only_the_blocks_that_are_asked_for_are_read_and_damage_in_them_is_found() {
        let bytes: Vec<u8> = (0..BLOCK_BYTES * 40 + 700).map(|at| (at / 997) as u8).collect();
        let disk = MemDisk::new("t", bytes);
        let (progress, stop) = (Progress::default(), StopSignal::default());
        let known = hash(&disk, disk.size(), None, &TransferOptions::default(), &progress, &stop).unwrap();
        let block = |block| Mismatch { block, span: known.leaves.span_of(block) };
        let before = disk.counts().bytes_read;
        let look =
            |blocks: &[Mismatch]| verify_blocks(&disk, &known.leaves, blocks, &progress, &stop).unwrap();
        let found = look(&[block(3), block(40)]);
        assert!(found.is_equal() && found.blocks == 2);
        assert_eq!(disk.counts().bytes_read - before, BLOCK_BYTES + 700);
        disk.overwrite(BLOCK_BYTES * 40 + 699, &[0xff]);
        let many: Vec<Mismatch> = (0..41).map(block).collect();
        assert_eq!(look(&many).mismatches, [block(40)]);
        assert!(look(&[]).is_equal());
        stop.stop();
        let stopped = verify_blocks(&disk, &known.leaves, &many, &progress, &stop);
        assert!(matches!(stopped, Err(MoveError::Cancelled)));
    }
}
