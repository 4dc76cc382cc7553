//! The copier: the state of one disk's copy.
//!
//! ```text
//!  map ──> queue ──> in flight: read ──> write, zero ──> landed ──> flush ──> recorded
//!             ^          │ failed                          (journal entries come out here)
//!             └─ pause ──┘
//! ```
//!
//! A block is `landed` when the target took it and `recorded` when a flush that began after that has
//! ended. Only recorded blocks are in the journal.

mod api;
mod landed;
mod queue;

use std::time::Duration;

use drover_types::{BLOCK_BYTES, ByteSpan, Digest, Extent, ExtentKind};

pub use api::{CopierConfig, Failure, FlushTicket, Mode, Next, StopCause, Totals, WriteParts};
use landed::Landed;
use queue::{Job, Queue, Task};

use crate::journal::Entry;
use crate::leaves::{Leaf, LeafTable};
use crate::retry::Verdict;

/// Bytes whose block status is asked at a time. Far enough ahead that readers never wait for it, and
/// never a whole large disk, for which some sources take minutes.
const MAP_PAGE_BYTES: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MapState {
    Idle,
    Asked(ByteSpan),
}

/// The state of one disk's copy. See the module for its life.
#[derive(Debug)]
pub struct Copier {
    config: CopierConfig,
    leaves: LeafTable,
    map: MapState,
    mapped_to: u64,
    queue: Queue,
    landed: Landed,
    stop: Option<StopCause>,
    totals: Totals,
}

impl Copier {
    /// A copy of a disk whose blocks known from `recorded` are on the target already.
    ///
    /// # Panics
    /// If the request size is not a positive multiple of the block size.
    pub fn new(config: CopierConfig, recorded: LeafTable) -> Self {
        let request = config.request_bytes;
        assert!(request > 0 && request.is_multiple_of(BLOCK_BYTES), "request of {request} bytes");
        let resumed = (recorded.known_blocks() * BLOCK_BYTES).min(recorded.size());
        Copier {
            config,
            leaves: recorded,
            map: MapState::Idle,
            mapped_to: 0,
            queue: Queue::default(),
            landed: Landed::default(),
            stop: None,
            totals: Totals { resumed, ..Totals::default() },
        }
    }

    /// What a worker with room for one more request should do. `now` never goes back.
    pub fn next(&mut self, now: Duration) -> Next {
        if self.flush_is_due(now) {
            return Next::Flush(self.landed.start_flush(now));
        }
        if self.stop.is_some() {
            return self.next_when_stopping();
        }
        self.queue.wake(now);
        if self.wants_map() {
            let end = self.mapped_to.saturating_add(MAP_PAGE_BYTES).min(self.leaves.size());
            let span = ByteSpan::from_bounds(self.mapped_to, end);
            self.map = MapState::Asked(span);
            return Next::Map(span);
        }
        if let Some(next) = self.queue.start(&self.config) {
            return next;
        }
        if self.is_settled() {
            return Next::Done;
        }
        Next::Wait(self.next_time())
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
        let is_data = self.data_blocks_in(ByteSpan::from_bounds(asked.offset, page_end), extents, told);
        self.enqueue_page(asked.offset / BLOCK_BYTES, &is_data);
        self.mapped_to = page_end;
        self.totals.mapped = self.mapped_to;
    }

    /// The source could not tell; the span counts as data.
    pub fn map_failed(&mut self) {
        if let MapState::Asked(span) = self.map {
            self.mapped(&[Extent::allocated(span)]);
        }
    }

    /// Takes in the leaves of a span that was read and says what of it to write.
    /// When nothing is to be written the span has landed; else call [`Copier::landed`] after the writes.
    ///
    /// # Panics
    /// If the span was not being read or the number of leaves is wrong.
    pub fn read(&mut self, span: ByteSpan, leaves: Vec<Leaf>) -> WriteParts {
        let count = span.length.div_ceil(BLOCK_BYTES);
        assert_eq!(leaves.len() as u64, count, "leaves of {span}");
        let reserved = self.queue.in_flight(span).is_some_and(|job| job.reserved);
        let parts = self.parts_to_write(span, &leaves, reserved);
        let zeros = leaves.iter().filter(|leaf| **leaf == Leaf::Zero).count() as u64;
        self.queue.saw_zeros(zeros as f64 / count as f64);
        self.totals.read += span.length;
        self.totals.zero_found += (zeros * BLOCK_BYTES).min(span.length);
        self.totals.written += parts.data.iter().map(|part| part.length).sum::<u64>();
        let job = self.queue.in_flight(span).expect("a span that was read is in flight");
        job.leaves = leaves;
        if parts.is_empty() {
            self.landed(span);
        }
        parts
    }

    /// Everything of a span is on the target (or hashed, in [`Mode::Hash`]).
    pub fn landed(&mut self, span: ByteSpan) {
        let job = self.queue.end(span);
        match job.task {
            Task::Zero => self.settle_zero(span),
            Task::Read => self.settle_leaves(span, &job.leaves),
        }
    }

    /// A request failed. True if it will be tried again; false if the copy stops because of it.
    pub fn failed(&mut self, span: ByteSpan, failure: Failure, now: Duration) -> bool {
        let mut job = self.queue.end(span);
        job.attempts += 1;
        job.leaves.clear();
        let first = *job.first_failure.get_or_insert(now);
        let verdict = match failure {
            Failure::Transient => self.config.retry.after_transient(job.attempts, now.saturating_sub(first)),
            Failure::Corrupt => self.config.retry.after_corrupt(job.attempts),
            Failure::Fatal => Verdict::GiveUp,
        };
        match verdict {
            Verdict::Again(pause) => {
                self.totals.retries += 1;
                self.queue.pause(now + pause, job);
                true
            }
            Verdict::GiveUp => {
                self.stop(StopCause::Failed);
                false
            }
        }
    }

    /// The flush ended: gives the entries to append to the journal. Entries that do not reach the
    /// journal cost a second copy of their blocks, no more.
    pub fn flushed(&mut self, ticket: FlushTicket, now: Duration) -> Vec<Entry> {
        self.landed.flushed(ticket, now)
    }

    /// The flush failed. What landed since the last good one may be lost and is done again; a failure
    /// that will not pass stops the copy, and a resume starts from what was recorded.
    pub fn flush_failed(&mut self, failure: Failure, now: Duration) {
        let (attempts, since) = self.landed.flush_failed(now);
        let again = failure == Failure::Transient
            && self.config.retry.after_transient(attempts, since) != Verdict::GiveUp;
        self.target_lost();
        if !again {
            self.stop(StopCause::Failed);
        }
    }

    /// The target's server went away and may have come back without what it had not flushed: all that
    /// has landed and is not recorded is done again.
    pub fn target_lost(&mut self) {
        for entry in self.landed.take_unrecorded() {
            match entry {
                // A disk that was all zeros stays so where nothing was written.
                Entry::Zero { first, count } if self.target_zeroed() => {
                    self.landed.push_zero(first, u64::from(count));
                }
                Entry::Zero { first, count } => self.redo(Task::Zero, first, u64::from(count)),
                Entry::Data { first, leaves } => self.redo(Task::Read, first, leaves.len() as u64),
                Entry::Complete(_) | Entry::Run(_) => {}
            }
        }
    }

    /// Space could not be set aside: no more is asked for.
    pub fn reserve_failed(&mut self) {
        self.queue.reserve_off();
    }

    /// Sets the size of the reads that follow; a multiple of the block size.
    ///
    /// # Panics
    /// If it is not.
    pub fn set_request_bytes(&mut self, bytes: u64) {
        assert!(bytes > 0 && bytes.is_multiple_of(BLOCK_BYTES), "request of {bytes} bytes");
        self.config.request_bytes = bytes;
    }

    /// Sets the bound of bytes in flight. What is in flight stays.
    pub fn set_window_bytes(&mut self, bytes: u64) {
        self.config.window_bytes = bytes;
    }

    /// Bytes that are being read or written.
    pub fn in_flight_bytes(&self) -> u64 {
        self.queue.in_flight_bytes()
    }

    /// Starts no more work. What is in flight ends, is flushed and recorded.
    pub fn stop(&mut self, cause: StopCause) {
        self.stop.get_or_insert(cause);
    }

    /// Whether there is nothing left to do: all is settled, or it has stopped and come to rest.
    pub fn is_over(&self) -> bool {
        let stopped = self.stop.is_some() && self.is_quiet() && self.landed.is_empty();
        stopped || self.is_settled()
    }

    /// Why the copy stops or stopped.
    pub fn stop_cause(&self) -> Option<StopCause> {
        self.stop
    }

    /// Sums so far.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// What is known of the disk, with the blocks that have landed but are not yet recorded.
    pub fn leaves(&self) -> &LeafTable {
        &self.leaves
    }

    /// Gives up the copier for its leaves.
    pub fn into_leaves(self) -> LeafTable {
        self.leaves
    }

    /// The root, once every block has landed.
    pub fn root(&self) -> Option<Digest> {
        self.leaves.root()
    }

    /// Checks what must hold between any two calls.
    ///
    /// # Panics
    /// If it does not hold.
    pub fn check_invariants(&self) {
        self.queue.check_invariants();
        assert!(self.mapped_to <= self.leaves.size(), "map beyond the disk");
        if self.is_copy() && self.is_settled() && self.stop.is_none() {
            assert!(self.leaves.is_complete(), "done with unknown blocks");
        }
    }

    fn is_copy(&self) -> bool {
        matches!(self.config.mode, Mode::Copy { .. })
    }

    fn target_zeroed(&self) -> bool {
        matches!(self.config.mode, Mode::Copy { target_zeroed: true })
    }

    fn wants_map(&self) -> bool {
        self.map == MapState::Idle && self.mapped_to < self.leaves.size() && self.queue.wants_more()
    }

    fn next_time(&self) -> Option<Duration> {
        [self.queue.next_wake(), self.landed.next_flush(&self.config)].into_iter().flatten().min()
    }

    fn is_quiet(&self) -> bool {
        self.queue.none_in_flight() && self.map == MapState::Idle && !self.landed.is_flushing()
    }

    fn is_settled(&self) -> bool {
        self.all_started() && self.is_quiet() && self.landed.is_empty()
    }

    fn all_started(&self) -> bool {
        self.mapped_to == self.leaves.size() && self.queue.all_started()
    }

    fn next_when_stopping(&self) -> Next {
        if self.is_quiet() && self.landed.is_empty() { Next::Stopped } else { Next::Wait(None) }
    }

    fn flush_is_due(&self, now: Duration) -> bool {
        let nothing_else = self.queue.none_in_flight() && (self.stop.is_some() || self.all_started());
        self.landed.flush_is_due(&self.config, nothing_else, now)
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

    /// Queues the blocks of a page that are not known yet, in runs.
    fn enqueue_page(&mut self, first: u64, is_data: &[bool]) {
        let mut run: Option<(Task, ByteSpan)> = None;
        for (block, data) in (first..).zip(is_data) {
            let span = self.leaves.span_of(block);
            if !self.wants_block(block) {
                continue;
            }
            let task = if *data { Task::Read } else { Task::Zero };
            match &mut run {
                Some((same, whole)) if *same == task && whole.end() == span.offset => {
                    whole.length += span.length;
                }
                _ => {
                    if let Some((task, whole)) = run.replace((task, span)) {
                        self.enqueue(task, whole);
                    }
                }
            }
        }
        if let Some((task, whole)) = run {
            self.enqueue(task, whole);
        }
    }

    fn wants_block(&self, block: u64) -> bool {
        let sampled = !matches!(self.config.mode, Mode::Hash(Some(sample)) if !sample.takes(block));
        sampled && self.leaves.get(block).is_none()
    }

    fn enqueue(&mut self, task: Task, span: ByteSpan) {
        match task {
            Task::Read => self.totals.to_read += span.length,
            Task::Zero => self.totals.zero_mapped += span.length,
        }
        if task == Task::Zero && (self.target_zeroed() || !self.is_copy()) {
            self.settle_zero(span);
        } else {
            self.queue.push(Job::new(task, span));
        }
    }

    fn redo(&mut self, task: Task, first: u64, count: u64) {
        for block in first..first + count {
            self.leaves.forget(block);
        }
        let last = self.leaves.span_of(first + count - 1);
        let whole = ByteSpan::from_bounds(first * BLOCK_BYTES, last.end());
        self.totals.settled -= whole.length;
        // What was set aside in vain by then is made a hole again.
        let reserved = self.config.reserve_bytes > 0;
        self.queue.push(Job { reserved, ..Job::new(task, whole) });
    }

    fn parts_to_write(&self, span: ByteSpan, leaves: &[Leaf], reserved: bool) -> WriteParts {
        let mut parts = WriteParts::default();
        if !self.is_copy() {
            return parts;
        }
        parts.reserve = self.config.reserve_bytes > 0 && !self.queue.reserve_is_off() && !reserved;
        for (block, leaf) in (span.offset / BLOCK_BYTES..).zip(leaves) {
            let block_span = self.leaves.span_of(block);
            let list = match leaf {
                Leaf::Data(_) => &mut parts.data,
                Leaf::Zero if self.target_zeroed() && !reserved => continue,
                Leaf::Zero => &mut parts.zero,
            };
            match list.last_mut() {
                Some(last) if last.end() == block_span.offset => last.length += block_span.length,
                _ => list.push(block_span),
            }
        }
        parts
    }

    fn settle_zero(&mut self, span: ByteSpan) {
        let first = span.offset / BLOCK_BYTES;
        let count = span.length.div_ceil(BLOCK_BYTES);
        self.leaves.set_zero(first, count);
        self.totals.settled += span.length;
        // A zeroed span costs nothing to do again, so it does not hasten a flush.
        if self.is_copy() {
            self.landed.push_zero(first, count);
        }
    }

    fn settle_leaves(&mut self, span: ByteSpan, leaves: &[Leaf]) {
        let first = span.offset / BLOCK_BYTES;
        for (block, leaf) in (first..).zip(leaves) {
            self.leaves.set(block, *leaf);
        }
        self.totals.settled += span.length;
        if !self.is_copy() {
            return;
        }
        self.landed.add_bytes(span.length);
        for (block, leaf) in (first..).zip(leaves) {
            match leaf {
                Leaf::Zero => self.landed.push_zero(block, 1),
                Leaf::Data(digest) => self.landed.push_data(block, *digest),
            }
        }
    }
}

#[cfg(test)]
mod tests;
