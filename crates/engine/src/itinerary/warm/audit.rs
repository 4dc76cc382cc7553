//! What is looked at of the blocks that a source calls unchanged, and what follows.

use drover_types::{BLOCK_BYTES, count};

use crate::itinerary::{Journey, Outcome};

/// Blocks of each disk that a sampled audit looks at: 64 MB of reading ...
const AUDIT_BLOCKS: u64 = 1000;
/// ... but no more than this share of a disk, so that small ones are not read whole in every pass ...
const AUDIT_PART_MAX: u64 = 16;
/// ... unless they are so small that it does not matter (2 MiB).
const AUDIT_BLOCKS_MIN: u64 = 32;

impl Journey<'_> {
    /// Kept as soon as a disk tells, also if its copy or another's fails: the next try would find it mended
    /// where it was looked at, and believe the rest.
    pub(in crate::itinerary) fn keep_distrust(&self, mismatches: u64) -> Outcome<()> {
        if mismatches == 0 {
            return Ok(());
        }
        let why = format!(
            "change tracking is damaged: {} of a disk that it called unchanged had changed",
            count(mismatches as usize, "block")
        );
        Ok(self.context.store.set_distrust(self.context.plan, &self.planned.vm.id, &why)?)
    }
}

/// Share of a disk's blocks that a sampled audit looks at.
pub(super) fn audit_share(capacity_bytes: u64) -> f64 {
    let blocks = capacity_bytes.div_ceil(BLOCK_BYTES).max(1);
    let wanted = AUDIT_BLOCKS.min((blocks / AUDIT_PART_MAX).max(AUDIT_BLOCKS_MIN));
    (wanted as f64 / blocks as f64).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_audit_reads_a_sixteenth_of_a_disk_at_the_most_and_64_mb() {
        let blocks = |mib: u64| (audit_share(mib << 20) * (mib * 16) as f64).round() as u64;
        assert_eq!([2, 8, 32, 64].map(blocks), [32, 32, 32, 64]);
        assert_eq!([1000, 2000, 1 << 20].map(blocks), [1000, 1000, 1000]);
        assert_eq!((audit_share(1), audit_share(0)), (1.0, 1.0));
    }
}
