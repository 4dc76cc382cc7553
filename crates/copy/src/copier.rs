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
mod map;
mod pass;
mod queue;
mod settle;

use std::time::Duration;

use drover_types::{BLOCK_BYTES, ByteSpan, Digest};

pub use api::{CopierConfig, Failure, FlushTicket, Mode, Next, StopCause, Totals, WriteParts};
use landed::Landed;
use pass::Pass;
pub use pass::{AuditFindings, MISMATCHES_MAX, PassPlan};
use queue::{Job, Queue, Task};

use crate::blocks::BlockSet;
use crate::journal::Entry;
use crate::leaves::{Leaf, LeafTable};
use crate::retry::{RetryPolicy, Verdict};

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
    pass: Option<Pass>,
    /// Blocks that data was written to in this run.
    written: BlockSet,
    queue: Queue,
    landed: Landed,
    stop: Option<StopCause>,
    /// Whether what is only read is not written any more.
    is_withdrawn: bool,
    /// Nothing is started before, because a flush failed.
    rests_until: Duration,
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
        let written = BlockSet::none(recorded.size());
        Copier {
            config,
            leaves: recorded,
            map: MapState::Idle,
            mapped_to: 0,
            pass: None,
            written,
            queue: Queue::default(),
            landed: Landed::default(),
            stop: None,
            is_withdrawn: false,
            rests_until: Duration::ZERO,
            totals: Totals { resumed, ..Totals::default() },
        }
    }

    /// A pass over a disk of which the blocks in `recorded` are on the target as they were in an earlier
    /// state, or in this one. Only blocks of the plan are visited, and those that are not recorded.
    ///
    /// # Panics
    /// If the request size is not a positive multiple of the block size, or nothing is to be copied.
    pub fn for_pass(mut config: CopierConfig, recorded: LeafTable, plan: PassPlan) -> Self {
        assert!(matches!(config.mode, Mode::Copy { .. }), "a pass copies");
        if recorded.known_blocks() > 0 {
            // What was once written to proves nothing, and its holes are in use.
            config.mode = Mode::Copy { target_zeroed: false };
            config.reserve_bytes = 0;
        }
        let done = plan.done.runs(0, u64::MAX).flat_map(|(first, count)| first..first + count);
        let done = done.filter(|block| plan.areas.contains(*block) && recorded.get(*block).is_some());
        let resumed = pass::bytes_of(done.map(|block| (block, 1)), &recorded);
        let pass = Pass::new(plan, &recorded);
        let mut copier = Copier::new(config, recorded);
        copier.totals = Totals { resumed, mapped: resumed, ..Totals::default() };
        copier.pass = Some(pass);
        copier.mapped_to = copier.next_to_map(0);
        copier
    }

    /// A copy of some blocks onto a target that holds all others already. Blocks of `areas` that are known from
    /// `recorded` are on the target; those outside are neither read nor written, and stay unknown.
    ///
    /// # Panics
    /// If the request size is not a positive multiple of the block size, or the target is said to be zeros.
    pub fn for_areas(config: CopierConfig, recorded: LeafTable, areas: BlockSet) -> Self {
        assert_eq!(config.mode, Mode::Copy { target_zeroed: false }, "the target holds something");
        let mut goal = areas.clone();
        for (first, count) in areas.runs(0, u64::MAX) {
            let known = (first..first + count).filter(|block| recorded.get(*block).is_some());
            known.for_each(|block| goal.remove(block, 1));
        }
        let of = |set: &BlockSet| pass::bytes_of(set.runs(0, u64::MAX), &recorded);
        let resumed = of(&areas) - of(&goal);
        let mut copier = Copier::new(config, recorded);
        copier.totals = Totals { resumed, mapped: resumed, ..Totals::default() };
        copier.pass = Some(Pass::limited(areas, goal));
        copier.mapped_to = copier.next_to_map(0);
        copier
    }

    /// Bytes that this run visits, with those that it need not visit again: the disk, or what a pass
    /// looks at.
    pub fn bytes_in_all(&self) -> u64 {
        match &self.pass {
            Some(pass) => self.totals.resumed + pass.visit_bytes(0, u64::MAX, &self.leaves),
            None => self.leaves.size(),
        }
    }

    /// Bytes of the areas of a pass.
    pub fn areas_bytes(&self) -> u64 {
        self.pass.as_ref().map_or(0, |pass| pass.areas_bytes(&self.leaves))
    }

    /// What a pass found outside its areas.
    pub fn audit(&self) -> AuditFindings {
        self.pass.as_ref().map(|pass| pass.findings().clone()).unwrap_or_default()
    }

    /// Blocks that the audit of a pass found changed so far; at most [`MISMATCHES_MAX`].
    pub fn audit_mismatches(&self) -> u64 {
        self.pass.as_ref().map_or(0, |pass| pass.findings().mismatches.len() as u64)
    }

    /// What a worker with room for one more request should do. `now` never goes back.
    pub fn next(&mut self, now: Duration) -> Next {
        if self.stop.is_none() && now < self.rests_until {
            return Next::Wait(Some(self.rests_until));
        }
        if self.flush_is_due(now) {
            return Next::Flush(self.landed.start_flush(now));
        }
        if self.stop.is_some() {
            return self.next_when_stopping();
        }
        self.queue.wake(now);
        if let Some(next) = self.ask() {
            return next;
        }
        if let Some(next) = self.queue.start(&self.config) {
            return next;
        }
        if self.is_settled() {
            return Next::Done;
        }
        Next::Wait(self.next_time())
    }

    /// Takes in the leaves of a span that was read and says what of it to write.
    /// When nothing is to be written the span is done with; else call [`Copier::landed`] after the writes. After
    /// [`Copier::withdraw`] nothing more is.
    ///
    /// # Panics
    /// If the span was not being read or the number of leaves is wrong.
    pub fn read(&mut self, span: ByteSpan, leaves: Vec<Leaf>) -> WriteParts {
        let count = span.length.div_ceil(BLOCK_BYTES);
        assert_eq!(leaves.len() as u64, count, "leaves of {span}");
        if self.is_withdrawn && self.is_copy() {
            self.dropped(span);
            return WriteParts::default();
        }
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
                self.queue.pause(now + RetryPolicy::spread(pause, span.offset, now), job);
                true
            }
            Verdict::GiveUp => {
                self.stop(StopCause::Failed);
                false
            }
        }
    }

    /// A request of a copy that was cancelled was given up: it neither landed nor failed.
    ///
    /// # Panics
    /// If the copy was not cancelled, or the span was not in flight.
    pub fn dropped(&mut self, span: ByteSpan) {
        assert!(self.is_cancelled(), "{span} was given up by a copy that goes on");
        let mut job = self.queue.end(span);
        job.leaves.clear();
        self.queue.push(job);
    }

    /// These spans had landed and are not on the target after all: their blocks are not recorded, also not by a flush that
    /// is under way.
    pub fn withdrawn(&mut self, spans: &[ByteSpan]) {
        for span in spans {
            for entry in self.landed.take(span.offset / BLOCK_BYTES, span.end().div_ceil(BLOCK_BYTES)) {
                self.redo_entry(&entry);
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
        let verdict = match failure {
            Failure::Transient => self.config.retry.after_flush(attempts, since),
            Failure::Corrupt | Failure::Fatal => Verdict::GiveUp,
        };
        self.target_lost();
        match verdict {
            // Written again at once it would most likely be for nothing, and for the same nothing as fast as the disks go.
            Verdict::Again(pause) => self.rests_until = now + pause,
            Verdict::GiveUp => {
                self.stop(StopCause::Failed);
                // Nothing will be recorded any more, not even zeros that need no write: no flush would succeed.
                self.landed.give_up();
            }
        }
    }

    /// The target's server went away and may have come back without what it had not flushed: all that
    /// has landed and is not recorded is done again.
    pub fn target_lost(&mut self) {
        self.redo_unrecorded();
    }

    /// The records to append to the journal for [`Next::Forget`].
    pub fn to_forget(&self) -> Vec<Entry> {
        self.pass.as_ref().map(Pass::to_forget).unwrap_or_default()
    }

    /// They are in the journal for good: these blocks may be overwritten.
    pub fn forgotten(&mut self) {
        let found = self.pass.as_mut().map(Pass::end_forgetting).unwrap_or_default();
        for (first, count) in found {
            self.leaves.forget(first, count);
            let end = self.leaves.span_of(first + count - 1).end();
            let span = ByteSpan::from_bounds(first * BLOCK_BYTES, end);
            self.totals.to_read += span.length;
            self.queue.push(Job::new(Task::Read, span));
        }
    }

    /// They could not be appended: nothing may be overwritten, so the copy stops.
    pub fn forget_failed(&mut self) {
        self.stop(StopCause::Failed);
        self.pass.as_mut().map(Pass::end_forgetting);
    }

    /// The spans that space is to be set aside for after [`Next::Reserve`], in the order of the disk.
    pub fn to_reserve(&self) -> &[ByteSpan] {
        self.queue.to_reserve()
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

    /// Of a copy that was cancelled: what is being read is not written, since its target takes no more.
    pub fn withdraw(&mut self) {
        self.stop(StopCause::Cancelled);
        self.is_withdrawn = self.is_cancelled();
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
            let is_limited = self.pass.as_ref().is_some_and(Pass::is_limited);
            assert!(is_limited || self.leaves.is_complete(), "done with unknown blocks");
        }
    }

    fn is_cancelled(&self) -> bool {
        self.stop == Some(StopCause::Cancelled)
    }

    fn is_copy(&self) -> bool {
        matches!(self.config.mode, Mode::Copy { .. })
    }

    fn target_zeroed(&self) -> bool {
        matches!(self.config.mode, Mode::Copy { target_zeroed: true })
    }

    fn has_to_forget(&self) -> bool {
        self.pass.as_ref().is_some_and(Pass::has_to_forget)
    }

    fn next_time(&self) -> Option<Duration> {
        [self.queue.next_wake(), self.landed.next_flush(&self.config)].into_iter().flatten().min()
    }

    fn is_quiet(&self) -> bool {
        let is_forgetting = self.pass.as_ref().is_some_and(Pass::is_forgetting);
        let asks = self.map != MapState::Idle || is_forgetting || self.landed.is_flushing();
        self.queue.none_in_flight() && !asks
    }

    fn is_settled(&self) -> bool {
        self.all_started() && self.is_quiet() && self.landed.is_empty()
    }

    fn all_started(&self) -> bool {
        self.mapped_to == self.leaves.size() && self.queue.all_started() && !self.has_to_forget()
    }

    fn next_when_stopping(&self) -> Next {
        if self.is_quiet() && self.landed.is_empty() { Next::Stopped } else { Next::Wait(None) }
    }

    fn flush_is_due(&self, now: Duration) -> bool {
        let nothing_else = self.queue.none_in_flight() && (self.stop.is_some() || self.all_started());
        self.landed.flush_is_due(&self.config, nothing_else, now)
    }
}

#[cfg(test)]
mod tests;
