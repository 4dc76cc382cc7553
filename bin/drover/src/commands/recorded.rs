//! What of a half-copied disk is on it for certain, as block status.

use drover_copy::LeafTable;
use drover_nbd_server::Run;
use drover_types::{BLOCK_BYTES, ByteSpan};

/// Flag of blocks that are not recorded.
const NOT_RECORDED: u64 = 1;

/// Runs in one answer, and bytes that one answer looks at; the client asks again from where it ends.
const RUNS_MAX: usize = 4096;
const BYTES_MAX: u64 = 64 << 30;

/// Tells runs of recorded and other blocks by the leaves of a journal.
pub fn recorded(leaves: LeafTable) -> impl Fn(ByteSpan) -> Vec<Run> + Send + Sync + 'static {
    move |span| {
        let mut runs: Vec<Run> = Vec::new();
        let mut at = span.offset;
        let stop = span.end().min(span.offset.saturating_add(BYTES_MAX));
        while at < stop && runs.len() < RUNS_MAX {
            let block = at / BLOCK_BYTES;
            let end = (block + 1).saturating_mul(BLOCK_BYTES).min(stop);
            let known = block < leaves.blocks() && leaves.get(block).is_some();
            let flags = if known { 0 } else { NOT_RECORDED };
            match runs.last_mut() {
                Some(last) if last.flags == flags => last.length += end - at,
                _ => runs.push(Run { length: end - at, flags }),
            }
            at = end;
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn runs_follow_the_journal() {
        let mut leaves = LeafTable::new(10 * BLOCK_BYTES + 5);
        leaves.set_zero(2, 3);
        let status = recorded(leaves);
        let found = |offset, length| -> Vec<(u64, u64)> {
            status(ByteSpan::new(offset, length)).iter().map(|run| (run.length, run.flags)).collect()
        };
        let (block, size) = (BLOCK_BYTES, 10 * BLOCK_BYTES + 5);
        assert_eq!(found(0, size), [(2 * block, 1), (3 * block, 0), (5 * block + 5, 1)]);
        assert_eq!(found(2 * block + 7, 9), [(9, 0)]);
        assert_eq!(found(5 * block - 1, 2), [(1, 0), (1, 1)]);
    }
}
