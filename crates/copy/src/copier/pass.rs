//! The course of a pass over a disk of which an earlier state is on the target.
//!
//! A block whose leaf is known is overwritten only after the journal has forgotten that leaf: should this
//! run die in between, nobody compares with what the target holds no more. So a leaf in the journal is
//! always that of the target's block, whichever pass wrote it, however it ended. Areas are forgotten a
//! page ahead of their reading, blocks that an audit finds changed one by one.

use drover_types::BLOCK_BYTES;

use crate::blocks::BlockSet;
use crate::journal::Entry;
use crate::leaves::{LeafTable, Mismatch};
use crate::sample::Sample;

/// Which blocks a pass visits; besides these, all that are unknown.
#[derive(Clone, Debug)]
pub struct PassPlan {
    /// Blocks that may have changed.
    pub areas: BlockSet,
    /// Blocks that an interrupted try of this very pass recorded: they are not visited again.
    pub done: BlockSet,
    /// Blocks outside the areas that are looked at nevertheless.
    pub audit: Option<Sample>,
}

/// What the look at blocks outside the areas found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFindings {
    /// Blocks that were compared.
    pub blocks: u64,
    /// Of these, those that had changed; at most [`MISMATCHES_MAX`] are kept.
    pub mismatches: Vec<Mismatch>,
}

/// Changed blocks kept for the report; one is enough to distrust the areas.
pub const MISMATCHES_MAX: usize = 1000;

#[derive(Debug)]
pub(super) struct Pass {
    areas: BlockSet,
    /// All blocks to be visited in this run.
    goal: BlockSet,
    /// Whether unknown blocks outside the areas stay unknown.
    is_limited: bool,
    /// Up to this block, areas have been given out to be forgotten.
    announced_to: u64,
    /// Runs that wait to be forgotten: in the areas, and outside of them.
    ahead: Vec<(u64, u64)>,
    found: Vec<(u64, u64)>,
    /// Runs that are being forgotten.
    asked: Option<Forgetting>,
    audit: AuditFindings,
}

#[derive(Debug)]
struct Forgetting {
    ahead: Vec<(u64, u64)>,
    found: Vec<(u64, u64)>,
}

impl Pass {
    pub(super) fn new(plan: PassPlan, known: &LeafTable) -> Self {
        let mut goal = plan.areas.clone();
        if let Some(sample) = plan.audit {
            (0..known.blocks()).filter(|block| sample.takes(*block)).for_each(|block| goal.insert(block, 1));
        }
        plan.done.runs(0, u64::MAX).for_each(|(first, count)| goal.remove(first, count));
        known.unknown().runs(0, u64::MAX).for_each(|(first, count)| goal.insert(first, count));
        Pass { is_limited: false, ..Pass::limited(plan.areas, goal) }
    }

    /// One that visits these blocks and no others.
    pub(super) fn limited(areas: BlockSet, goal: BlockSet) -> Self {
        Pass {
            areas,
            goal,
            is_limited: true,
            announced_to: 0,
            ahead: Vec::new(),
            found: Vec::new(),
            asked: None,
            audit: AuditFindings::default(),
        }
    }

    pub(super) fn is_limited(&self) -> bool {
        self.is_limited
    }

    pub(super) fn visits(&self, block: u64) -> bool {
        self.goal.contains(block)
    }

    /// The first block from `block` on that is to be visited.
    pub(super) fn next_visit(&self, block: u64) -> Option<u64> {
        self.goal.next_from(block)
    }

    /// One past the last block to be visited before `end`.
    pub(super) fn last_visit(&self, first: u64, end: u64) -> u64 {
        self.goal.runs(first, end).last().map_or(first, |(start, count)| start + count)
    }

    /// Bytes to be visited between two blocks.
    pub(super) fn visit_bytes(&self, first: u64, end: u64, table: &LeafTable) -> u64 {
        bytes_of(self.goal.runs(first, end), table)
    }

    pub(super) fn areas_bytes(&self, table: &LeafTable) -> u64 {
        bytes_of(self.areas.runs(0, u64::MAX), table)
    }

    /// Whether the block may be overwritten without asking, should it differ.
    pub(super) fn in_areas(&self, block: u64) -> bool {
        self.areas.contains(block)
    }

    /// Sees to it that known blocks of the areas before `end` are forgotten before they are visited.
    pub(super) fn announce(&mut self, first: u64, end: u64, known: &LeafTable) {
        let first = first.max(self.announced_to);
        for (start, count) in self.goal.runs(first, end) {
            let blocks = start..start + count;
            blocks
                .filter(|block| self.areas.contains(*block) && known.get(*block).is_some())
                .for_each(|block| extend(&mut self.ahead, block));
        }
        self.announced_to = self.announced_to.max(end);
    }

    /// A block outside the areas was compared.
    pub(super) fn audited(&mut self, block: u64, differs: bool, table: &LeafTable) {
        self.audit.blocks += 1;
        if differs {
            extend(&mut self.found, block);
            if self.audit.mismatches.len() < MISMATCHES_MAX {
                self.audit.mismatches.push(Mismatch { block, span: table.span_of(block) });
            }
        }
    }

    pub(super) fn findings(&self) -> &AuditFindings {
        &self.audit
    }

    pub(super) fn has_to_forget(&self) -> bool {
        self.is_forgetting() || !self.ahead.is_empty() || !self.found.is_empty()
    }

    pub(super) fn is_forgetting(&self) -> bool {
        self.asked.is_some()
    }

    /// Begins to forget what waits for it; false if nothing does, or the last is not over yet.
    pub(super) fn start_forgetting(&mut self) -> bool {
        let waits = !self.ahead.is_empty() || !self.found.is_empty();
        if self.is_forgetting() || !waits {
            return false;
        }
        let (ahead, found) = (std::mem::take(&mut self.ahead), std::mem::take(&mut self.found));
        self.asked = Some(Forgetting { ahead, found });
        true
    }

    pub(super) fn to_forget(&self) -> Vec<Entry> {
        let entry = |(first, count): &(u64, u64)| Entry::Forget { first: *first, count: *count as u32 };
        self.asked.iter().flat_map(|asked| asked.ahead.iter().chain(&asked.found)).map(entry).collect()
    }

    /// It is over: gives the runs outside the areas.
    pub(super) fn end_forgetting(&mut self) -> Vec<(u64, u64)> {
        self.asked.take().map(|asked| asked.found).unwrap_or_default()
    }
}

fn extend(runs: &mut Vec<(u64, u64)>, block: u64) {
    match runs.last_mut() {
        Some((first, count)) if *first + *count == block => *count += 1,
        _ => runs.push((block, 1)),
    }
}

/// Bytes of runs of blocks; the last block of a disk may be short.
pub(super) fn bytes_of(runs: impl Iterator<Item = (u64, u64)>, table: &LeafTable) -> u64 {
    runs.map(|(first, count)| ((first + count) * BLOCK_BYTES).min(table.size()) - first * BLOCK_BYTES).sum()
}
