//! From what the source says of its extents to work in the queue.

use drover_types::{BLOCK_BYTES, ByteSpan, Extent, ExtentKind};

use super::api::{Mode, Next};
use super::queue::{Job, Task};
use super::{Copier, MapState};
use crate::leaves::Leaf;

/// Bytes whose block status is asked at a time. Far enough ahead that readers never wait for it, and
/// never a whole large disk, for which some sources take minutes.
const MAP_PAGE_BYTES: u64 = 1 << 30;

/// What becomes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visit {
    Read,
    /// Is made zero on the target.
    Zero,
    /// Is zero already: the target is proven to be, or nothing is written.
    IsZero,
    /// Was known to be zero, and is.
    StaysZero,
}

impl Copier {
    /// Asks for the next page of the map, or for what has to be forgotten before.
    pub(super) fn ask(&mut self) -> Option<Next> {
        let has_room = self.map == MapState::Idle && self.queue.wants_more();
        if has_room && self.mapped_to < self.leaves.size() {
            let page = self.next_page();
            if let Some(pass) = &mut self.pass {
                let blocks = page.offset / BLOCK_BYTES..page.end().div_ceil(BLOCK_BYTES);
                pass.announce(blocks.start, blocks.end, &self.leaves);
            }
            if !self.has_to_forget() {
                self.map = MapState::Asked(page);
                return Some(Next::Map(page));
            }
        }
        self.pass.as_mut()?.start_forgetting().then_some(Next::Forget)
    }

    /// A pass asks for no more than it visits.
    fn next_page(&self) -> ByteSpan {
        let end = self.mapped_to.saturating_add(MAP_PAGE_BYTES).min(self.leaves.size());
        let page = ByteSpan::from_bounds(self.mapped_to, end);
        let Some(pass) = &self.pass else { return page };
        let last = pass.last_visit(page.offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
        ByteSpan::from_bounds(page.offset, (last * BLOCK_BYTES).min(end))
    }

    /// The first byte from `offset` on that the map has to be asked for.
    pub(super) fn next_to_map(&self, offset: u64) -> u64 {
        let size = self.leaves.size();
        let Some(pass) = &self.pass else { return offset };
        pass.next_visit(offset.div_ceil(BLOCK_BYTES)).map_or(size, |block| block * BLOCK_BYTES)
    }

    /// Takes in the answer to [`Next::Map`]: extents from the start of the span on, without gaps,
    /// perhaps not to its end.
    ///
    /// What lies between 64 KiB borders counts as data as soon as one byte of a block does. An answer
    /// that is empty, starts elsewhere or has a gap is not believed: the rest counts as data.
    pub fn mapped(&mut self, extents: &[Extent]) {
        let MapState::Asked(asked) = self.map else { return };
        self.map = MapState::Idle;
        let mut told = asked.offset;
        for extent in extents {
            if extent.span.offset != told || extent.span.is_empty() {
                break;
            }
            told = extent.span.end().min(asked.end());
        }
        // A partial answer may end inside a block; ask for that block again from its start. One that
        // does not even cover a block, or nothing, is taken as data to the next border.
        let grid_end = if told == self.leaves.size() { told } else { told / BLOCK_BYTES * BLOCK_BYTES };
        let page_end = if grid_end > asked.offset { grid_end } else { self.border_after(asked.offset) };
        let page = ByteSpan::from_bounds(asked.offset, page_end);
        let is_data = self.data_blocks_in(page, extents, told);
        let (first, end) = (page.offset / BLOCK_BYTES, page_end.div_ceil(BLOCK_BYTES));
        self.totals.mapped += match &self.pass {
            Some(pass) => pass.visit_bytes(first, end, &self.leaves),
            None => page.length,
        };
        self.enqueue_page(first, &is_data);
        self.mapped_to = self.next_to_map(page_end);
    }

    /// The source could not tell; the span counts as data.
    pub fn map_failed(&mut self) {
        if let MapState::Asked(span) = self.map {
            self.mapped(&[Extent::allocated(span)]);
        }
    }

    fn border_after(&self, offset: u64) -> u64 {
        (offset / BLOCK_BYTES * BLOCK_BYTES).saturating_add(BLOCK_BYTES).min(self.leaves.size())
    }

    /// For each block of `page`: whether any of its bytes may be data. Bytes from `told` on are not
    /// described and so may be.
    fn data_blocks_in(&self, page: ByteSpan, extents: &[Extent], told: u64) -> Vec<bool> {
        let first = page.offset / BLOCK_BYTES;
        let mut is_data = vec![false; page.length.div_ceil(BLOCK_BYTES) as usize];
        let untold = Extent::allocated(ByteSpan::from_bounds(told.min(page.end()), page.end()));
        let told_span = ByteSpan::from_bounds(page.offset, told.max(page.offset));
        let told_data = extents.iter().filter(|extent| extent.kind == ExtentKind::Allocated);
        let spans = told_data.filter_map(|extent| extent.span.intersect(told_span)).chain([untold.span]);
        for span in spans.filter_map(|span| span.intersect(page)) {
            let range = span.offset / BLOCK_BYTES - first..span.end().div_ceil(BLOCK_BYTES) - first;
            range.for_each(|block| is_data[block as usize] = true);
        }
        is_data
    }

    /// Queues the blocks of a page that are to be visited, in runs.
    fn enqueue_page(&mut self, first: u64, is_data: &[bool]) {
        let mut run: Option<(Visit, ByteSpan)> = None;
        for (block, data) in (first..).zip(is_data) {
            let span = self.leaves.span_of(block);
            if !self.wants_block(block) {
                continue;
            }
            let visit = self.visit(block, *data);
            match &mut run {
                Some((same, whole)) if *same == visit && whole.end() == span.offset => {
                    whole.length += span.length;
                }
                _ => {
                    if let Some((visit, whole)) = run.replace((visit, span)) {
                        self.enqueue(visit, whole);
                    }
                }
            }
        }
        if let Some((visit, whole)) = run {
            self.enqueue(visit, whole);
        }
    }

    fn wants_block(&self, block: u64) -> bool {
        match (&self.pass, self.config.mode) {
            (Some(pass), _) => pass.visits(block),
            (None, Mode::Hash(Some(sample))) => sample.takes(block) && self.leaves.get(block).is_none(),
            (None, _) => self.leaves.get(block).is_none(),
        }
    }

    fn visit(&self, block: u64, is_data: bool) -> Visit {
        match self.leaves.get(block) {
            _ if is_data => Visit::Read,
            // An audit believes no map: what conceals a change conceals the space that it took as well.
            Some(_) if !self.may_overwrite(block) => Visit::Read,
            Some(Leaf::Zero) => Visit::StaysZero,
            Some(Leaf::Data(_)) => Visit::Zero,
            None if self.target_zeroed() || !self.is_copy() => Visit::IsZero,
            None => Visit::Zero,
        }
    }

    fn enqueue(&mut self, visit: Visit, span: ByteSpan) {
        let (first, count) = (span.offset / BLOCK_BYTES, span.length.div_ceil(BLOCK_BYTES));
        match visit {
            Visit::Read => self.totals.to_read += span.length,
            _ => self.totals.zero_mapped += span.length,
        }
        match visit {
            Visit::Read => self.queue.push(Job::new(Task::Read, span)),
            Visit::Zero => {
                self.leaves.forget(first, count);
                self.queue.push(Job::new(Task::Zero, span));
            }
            Visit::IsZero => self.settle_zero(span),
            Visit::StaysZero => {
                (first..first + count).for_each(|block| self.settle_leaf(block, Leaf::Zero));
            }
        }
    }
}
