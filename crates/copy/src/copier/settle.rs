//! What of a block has to be written, and what is known of it afterwards.

use drover_types::{BLOCK_BYTES, ByteSpan};

use super::Copier;
use super::api::WriteParts;
use super::queue::{Job, Task};
use crate::journal::Entry;
use crate::leaves::Leaf;

impl Copier {
    pub(super) fn redo(&mut self, task: Task, first: u64, count: u64) {
        self.leaves.forget(first, count);
        let last = self.leaves.span_of(first + count - 1);
        let whole = ByteSpan::from_bounds(first * BLOCK_BYTES, last.end());
        self.totals.settled -= whole.length;
        self.totals.changed -= whole.length;
        // Of what is read again every block was written to, so its zeros are made holes whatever was set aside.
        self.queue.push(Job::new(task, whole));
    }

    /// What has landed and is not recorded is done again, unless nothing was written for it.
    pub(super) fn redo_unrecorded(&mut self) {
        for entry in self.landed.take_unrecorded() {
            match entry {
                // A disk that was all zeros stays so where nothing was written.
                Entry::Zero { first, count } if self.was_never_written(first, u64::from(count)) => {
                    self.landed.push_zero(first, u64::from(count));
                }
                entry => self.redo_entry(&entry),
            }
        }
    }

    pub(super) fn redo_entry(&mut self, entry: &Entry) {
        match entry {
            Entry::Zero { first, count } => self.redo(Task::Zero, *first, u64::from(*count)),
            Entry::Data { first, leaves } => self.redo(Task::Read, *first, leaves.len() as u64),
            _ => unreachable!("only blocks land"),
        }
    }

    /// Whether these blocks are proven to be zero because nothing was ever written there.
    fn was_never_written(&self, first: u64, count: u64) -> bool {
        self.target_zeroed() && self.written.runs(first, first + count).next().is_none()
    }

    /// Whether a block may be overwritten should it differ: it is unknown, or the journal has forgotten it.
    pub(super) fn may_overwrite(&self, block: u64) -> bool {
        let is_audited = self.pass.as_ref().is_some_and(|pass| !pass.in_areas(block));
        !is_audited || self.leaves.get(block).is_none()
    }

    pub(super) fn parts_to_write(&mut self, span: ByteSpan, leaves: &[Leaf], reserved: bool) -> WriteParts {
        let mut parts = WriteParts::default();
        if !self.is_copy() {
            return parts;
        }
        for (block, leaf) in (span.offset / BLOCK_BYTES..).zip(leaves) {
            if self.leaves.get(block) == Some(*leaf) || !self.may_overwrite(block) {
                continue;
            }
            // From here on the target may hold anything, also if the write fails.
            self.leaves.forget(block, 1);
            let block_span = self.leaves.span_of(block);
            let list = match leaf {
                Leaf::Data(_) => {
                    self.written.insert(block, 1);
                    &mut parts.data
                }
                Leaf::Zero if self.was_never_written(block, 1) && !reserved => continue,
                Leaf::Zero => &mut parts.zero,
            };
            match list.last_mut() {
                Some(last) if last.end() == block_span.offset => last.length += block_span.length,
                _ => list.push(block_span),
            }
        }
        parts
    }

    pub(super) fn settle_zero(&mut self, span: ByteSpan) {
        let first = span.offset / BLOCK_BYTES;
        let count = span.length.div_ceil(BLOCK_BYTES);
        self.leaves.set_zero(first, count);
        self.totals.settled += span.length;
        // A zeroed span costs nothing to do again, so it does not hasten a flush.
        if self.is_copy() {
            self.totals.changed += span.length;
            self.landed.push_zero(first, count);
        }
    }

    pub(super) fn settle_leaves(&mut self, span: ByteSpan, leaves: &[Leaf]) {
        for (block, leaf) in (span.offset / BLOCK_BYTES..).zip(leaves) {
            self.settle_leaf(block, *leaf);
        }
        if self.is_copy() {
            self.landed.add_bytes(span.length);
        }
    }

    /// A block was looked at, and written if it was to be.
    pub(super) fn settle_leaf(&mut self, block: u64, leaf: Leaf) {
        let known = self.leaves.get(block);
        if let Some(pass) = self.pass.as_mut().filter(|pass| known.is_some() && !pass.in_areas(block)) {
            pass.audited(block, known != Some(leaf), &self.leaves);
        }
        let bytes = self.leaves.span_of(block).length;
        match known {
            Some(known) if known == leaf => self.landed.keep(block, leaf),
            // Nothing was written: the journal has to forget it first.
            Some(_) => return,
            None => {
                self.leaves.set(block, leaf);
                if self.is_copy() {
                    self.totals.changed += bytes;
                    self.landed.push(block, leaf);
                }
            }
        }
        self.totals.settled += bytes;
    }
}
