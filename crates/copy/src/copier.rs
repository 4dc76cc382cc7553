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

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use drover_types::{BLOCK_BYTES, ByteSpan, Digest, Extent, ExtentKind};

use crate::journal::{Entry, RECORD_BLOCKS_MAX};
use crate::leaves::{Leaf, LeafTable, SEGMENT_BYTES};
use crate::retry::{RetryPolicy, Verdict};
use crate::sample::Sample;

/// Bytes whose block status is asked at a time. Far enough ahead that readers never wait for it, and
/// never a whole large disk, for which some sources take minutes.
const MAP_PAGE_BYTES: u64 = 1 << 30;
/// The map is asked further while fewer tasks and fewer bytes to read than this are queued.
const QUEUE_TASKS_MIN: usize = 64;
const QUEUE_BYTES_MIN: u64 = 256 << 20;
/// Space is reserved only for a run of data of at least this part of what is reserved at a time.
const RESERVE_PART_MIN: u64 = 8;
/// Nothing is reserved while more than this share of what is read turns out to be zeros.
const RESERVE_ZEROS_MAX: f64 = 0.25;
/// Longest single request to zero a span. Whole segments of the hash tree take no memory.
const ZERO_BYTES_MAX: u64 = SEGMENT_BYTES;

/// What the copier does with a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Copies source to target.
    Copy {
        /// Whether the target is proven to read as zeros wherever nothing was written yet.
        target_zeroed: bool,
    },
    /// Reads and hashes; writes nothing. With a sample, only the blocks it takes.
    Hash(Option<Sample>),
}

/// How a copy is run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopierConfig {
    /// What to do.
    pub mode: Mode,
    /// Bytes of a read request; a multiple of the block size. See [`Copier::set_request_bytes`].
    pub request_bytes: u64,
    /// Space is set aside on the target for this many bytes of data at a time; 0 is never.
    pub reserve_bytes: u64,
    /// Most bytes being read or written at a time.
    pub window_bytes: u64,
    /// A flush is asked for when this many bytes have landed since the last one.
    pub flush_bytes: u64,
    /// And when anything has landed and this much time has passed since the last one.
    pub flush_interval: Duration,
    /// What to do about failures.
    pub retry: RetryPolicy,
}

impl CopierConfig {
    /// The defaults for a mode: 1 MiB requests, a window of 64 MiB, a flush every 256 MiB or 1 s.
    pub fn new(mode: Mode) -> Self {
        CopierConfig {
            mode,
            request_bytes: 1 << 20,
            reserve_bytes: 0,
            window_bytes: 64 << 20,
            flush_bytes: 256 << 20,
            flush_interval: Duration::from_secs(1),
            retry: RetryPolicy::default(),
        }
    }
}

/// What a free worker should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask the source what this span holds, then call [`Copier::mapped`] or [`Copier::map_failed`].
    Map(ByteSpan),
    /// Set space aside on the target for this span, whose content stays as it is; then call
    /// [`Copier::reserve_failed`] if that did not work. It may be left undone.
    Reserve(ByteSpan),
    /// Read this span, then call [`Copier::read`] or [`Copier::failed`].
    Read(ByteSpan),
    /// Make this span of the target zero, then call [`Copier::landed`] or [`Copier::failed`].
    Zero(ByteSpan),
    /// Flush the target, then call [`Copier::flushed`] or [`Copier::flush_failed`].
    Flush(FlushTicket),
    /// Nothing now: wait for others, but not beyond this time.
    Wait(Option<Duration>),
    /// Every block is recorded.
    Done,
    /// Stopped for good; ask [`Copier::stop_cause`].
    Stopped,
}

/// Names the writes that a flush covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushTicket(u64);

/// Why a copy stopped before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// The user asked.
    Cancelled,
    /// A failure that cannot pass or did not pass in time; the driver holds the error itself.
    Failed,
}

/// What of a span that was read has to go to the target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteParts {
    /// To be written.
    pub data: Vec<ByteSpan>,
    /// To be made zero.
    pub zero: Vec<ByteSpan>,
    /// Whether space for the data is to be set aside before it is written: that was not done ahead.
    pub reserve: bool,
}

impl WriteParts {
    /// Whether the target has it all already.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty() && self.zero.is_empty()
    }
}

/// Sums of one run, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Known from the journal before this run.
    pub resumed: u64,
    /// Mapped so far.
    pub mapped: u64,
    /// Mapped as data that this run has to read.
    pub to_read: u64,
    /// Read from the source, retries not counted.
    pub read: u64,
    /// Written to the target as data.
    pub written: u64,
    /// Blocks that the source called data and that were all zero.
    pub zero_found: u64,
    /// Blocks that the map says are zero.
    pub zero_mapped: u64,
    /// Settled: landed on the target, or hashed.
    pub settled: u64,
    /// Number of failures that were tried again.
    pub retries: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Read,
    Zero,
}

#[derive(Clone, Debug)]
struct Job {
    task: Task,
    span: ByteSpan,
    leaves: Vec<Leaf>,
    attempts: u32,
    first_failure: Option<Duration>,
    /// Whether space was set aside for it, so that its zeros have to be made holes again.
    reserved: bool,
}

impl Job {
    fn new(task: Task, span: ByteSpan) -> Self {
        Job { task, span, leaves: Vec::new(), attempts: 0, first_failure: None, reserved: false }
    }

    /// Bytes held in memory for it: zeroing holds none.
    fn window_bytes(&self) -> u64 {
        if self.task == Task::Read { self.span.length } else { 0 }
    }
}

/// What space is set aside for.
#[derive(Debug, Default)]
struct Reserve {
    /// Looked at up to here.
    decided_to: u64,
    /// The last span that was set aside.
    span: Option<ByteSpan>,
    is_off: bool,
    /// Share of zeros in what was read lately.
    zeros: f64,
}

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
    queue: VecDeque<Job>,
    queued_bytes: u64,
    reserve: Reserve,
    paused: Vec<(Duration, Job)>,
    in_flight: BTreeMap<u64, Job>,
    in_flight_bytes: u64,
    landed: Vec<Entry>,
    landed_bytes: u64,
    flushing: Option<(u64, Vec<Entry>)>,
    flush_failures: u32,
    first_flush_failure: Option<Duration>,
    last_flush: Duration,
    tickets: u64,
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
            queue: VecDeque::new(),
            queued_bytes: 0,
            reserve: Reserve::default(),
            paused: Vec::new(),
            in_flight: BTreeMap::new(),
            in_flight_bytes: 0,
            landed: Vec::new(),
            landed_bytes: 0,
            flushing: None,
            flush_failures: 0,
            first_flush_failure: None,
            last_flush: Duration::ZERO,
            tickets: 0,
            stop: None,
            totals: Totals { resumed, ..Totals::default() },
        }
    }

    /// What a worker with room for one more request should do. `now` never goes back.
    pub fn next(&mut self, now: Duration) -> Next {
        if self.flush_is_due(now) {
            return self.start_flush(now);
        }
        if self.stop.is_some() {
            return self.next_when_stopping();
        }
        self.wake(now);
        if self.wants_map() {
            let end = self.mapped_to.saturating_add(MAP_PAGE_BYTES).min(self.leaves.size());
            let span = ByteSpan::from_bounds(self.mapped_to, end);
            self.map = MapState::Asked(span);
            return Next::Map(span);
        }
        if let Some(next) = self.start_job() {
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
        let reserved = self.in_flight.get(&span.offset).is_some_and(|job| job.reserved);
        let parts = self.parts_to_write(span, &leaves, reserved);
        let zeros = leaves.iter().filter(|leaf| **leaf == Leaf::Zero).count() as u64;
        self.reserve.zeros = 0.75 * self.reserve.zeros + 0.25 * zeros as f64 / count as f64;
        self.totals.read += span.length;
        self.totals.zero_found += (zeros * BLOCK_BYTES).min(span.length);
        self.totals.written += parts.data.iter().map(|part| part.length).sum::<u64>();
        let job = self.in_flight.get_mut(&span.offset).expect("a span that was read is in flight");
        job.leaves = leaves;
        if parts.is_empty() {
            self.landed(span);
        }
        parts
    }

    /// Everything of a span is on the target (or hashed, in [`Mode::Hash`]).
    pub fn landed(&mut self, span: ByteSpan) {
        let job = self.take_job(span);
        match job.task {
            Task::Zero => self.settle_zero(span),
            Task::Read => self.settle_leaves(span, &job.leaves),
        }
    }

    /// A request failed. True if it will be tried again; false if the copy stops because of it.
    pub fn failed(&mut self, span: ByteSpan, failure: Failure, now: Duration) -> bool {
        let mut job = self.take_job(span);
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
                self.paused.push((now + pause, job));
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
        self.last_flush = now;
        self.flush_failures = 0;
        self.first_flush_failure = None;
        match self.flushing.take() {
            Some((number, entries)) if number == ticket.0 => entries,
            _ => Vec::new(),
        }
    }

    /// The flush failed. What landed since the last good one may be lost and is done again; a failure
    /// that will not pass stops the copy, and a resume starts from what was recorded.
    pub fn flush_failed(&mut self, failure: Failure, now: Duration) {
        self.flush_failures += 1;
        let since = now.saturating_sub(*self.first_flush_failure.get_or_insert(now));
        let again = failure == Failure::Transient
            && self.config.retry.after_transient(self.flush_failures, since) != Verdict::GiveUp;
        self.target_lost();
        if !again {
            self.stop(StopCause::Failed);
        }
    }

    /// The target's server went away and may have come back without what it had not flushed: all that
    /// has landed and is not recorded is done again.
    pub fn target_lost(&mut self) {
        let flushing = self.flushing.take().map(|(_, entries)| entries).unwrap_or_default();
        self.landed_bytes = 0;
        let landed = std::mem::take(&mut self.landed);
        for entry in flushing.into_iter().chain(landed) {
            match entry {
                // A disk that was all zeros stays so where nothing was written.
                Entry::Zero { first, count } if self.target_zeroed() => {
                    self.push_zero_entry(first, u64::from(count));
                }
                Entry::Zero { first, count } => self.redo(Task::Zero, first, u64::from(count)),
                Entry::Data { first, leaves } => self.redo(Task::Read, first, leaves.len() as u64),
                Entry::Complete(_) | Entry::Run(_) => {}
            }
        }
    }

    /// Space could not be set aside: no more is asked for.
    pub fn reserve_failed(&mut self) {
        self.reserve.is_off = true;
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
        let bytes: u64 = self.in_flight.values().map(Job::window_bytes).sum();
        assert_eq!(bytes, self.in_flight_bytes, "bytes in flight");
        let queued: u64 = self.queue.iter().map(Job::window_bytes).sum();
        assert_eq!(queued, self.queued_bytes, "bytes queued");
        assert!(self.mapped_to <= self.leaves.size(), "map beyond the disk");
        let mut end = 0;
        for job in self.in_flight.values() {
            assert!(job.span.offset >= end, "{} is in flight twice", job.span);
            end = job.span.end();
        }
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
        self.map == MapState::Idle
            && self.mapped_to < self.leaves.size()
            && self.queue.len() < QUEUE_TASKS_MIN
            && self.queued_bytes < QUEUE_BYTES_MIN
    }

    fn start_job(&mut self) -> Option<Next> {
        let span = self.next_span()?;
        let task = self.queue.front()?.task;
        let bytes = if task == Task::Read { span.length } else { 0 };
        if self.in_flight_bytes > 0 && self.in_flight_bytes + bytes > self.config.window_bytes {
            return None;
        }
        if let Some(span) = self.reserve_before(span) {
            return Some(Next::Reserve(span));
        }
        let job = self.take_from_queue(span)?;
        self.in_flight_bytes += job.window_bytes();
        self.in_flight.insert(span.offset, job);
        Some(match task {
            Task::Read => Next::Read(span),
            Task::Zero => Next::Zero(span),
        })
    }

    /// What the first job of the queue would do next: jobs are cut at multiples of what is done at once.
    fn next_span(&self) -> Option<ByteSpan> {
        let job = self.queue.front()?;
        let at_once = if job.task == Task::Read { self.config.request_bytes } else { ZERO_BYTES_MAX };
        let border = (job.span.offset / at_once).saturating_add(1).saturating_mul(at_once);
        let end = job.span.end().min(border);
        Some(ByteSpan::from_bounds(job.span.offset, end))
    }

    /// Takes `span` off the front of the first job.
    fn take_from_queue(&mut self, span: ByteSpan) -> Option<Job> {
        let first = self.queue.front_mut()?;
        let inside = |reserved: ByteSpan| reserved.intersect(span).is_some();
        let reserved = first.reserved || self.reserve.span.is_some_and(inside);
        let mut job = if span.end() == first.span.end() {
            self.queue.pop_front()?
        } else {
            let rest = ByteSpan::from_bounds(span.end(), first.span.end());
            let job = Job { span, ..first.clone() };
            first.span = rest;
            job
        };
        job.reserved = reserved;
        self.queued_bytes -= job.window_bytes();
        Some(job)
    }

    /// What to set aside before `span`, the next to be read, if that is due and pays.
    fn reserve_before(&mut self, span: ByteSpan) -> Option<ByteSpan> {
        let run = self.queue.front().filter(|job| job.task == Task::Read)?.span;
        let at_a_time = self.config.reserve_bytes;
        if at_a_time == 0 || !self.is_copy() || self.reserve.is_off || span.offset < self.reserve.decided_to {
            return None;
        }
        let border = (span.offset / at_a_time).saturating_add(1).saturating_mul(at_a_time);
        let wanted = ByteSpan::from_bounds(span.offset, run.end().min(border.max(span.end())));
        self.reserve.decided_to = wanted.end();
        let pays = wanted.length >= at_a_time / RESERVE_PART_MIN && self.reserve.zeros <= RESERVE_ZEROS_MAX;
        self.reserve.span = pays.then_some(wanted);
        self.reserve.span
    }

    fn take_job(&mut self, span: ByteSpan) -> Job {
        let job = self.in_flight.remove(&span.offset).expect("an ended request was in flight");
        assert_eq!(job.span, span, "an ended request has its span");
        self.in_flight_bytes -= job.window_bytes();
        job
    }

    fn wake(&mut self, now: Duration) {
        let mut index = 0;
        while index < self.paused.len() {
            if self.paused[index].0 <= now {
                let (_, job) = self.paused.swap_remove(index);
                self.queued_bytes += job.window_bytes();
                self.queue.push_front(job);
            } else {
                index += 1;
            }
        }
    }

    fn next_time(&self) -> Option<Duration> {
        let wake = self.paused.iter().map(|(due, _)| *due).min();
        let flush = (!self.landed.is_empty()).then(|| self.last_flush + self.config.flush_interval);
        [wake, flush].into_iter().flatten().min()
    }

    fn is_quiet(&self) -> bool {
        self.in_flight.is_empty() && self.map == MapState::Idle && self.flushing.is_none()
    }

    fn is_settled(&self) -> bool {
        let all_started =
            self.mapped_to == self.leaves.size() && self.queue.is_empty() && self.paused.is_empty();
        all_started && self.is_quiet() && self.landed.is_empty()
    }

    fn next_when_stopping(&self) -> Next {
        if self.is_quiet() && self.landed.is_empty() { Next::Stopped } else { Next::Wait(None) }
    }

    fn flush_is_due(&self, now: Duration) -> bool {
        if self.landed.is_empty() || self.flushing.is_some() {
            return false;
        }
        let nothing_else = self.in_flight.is_empty()
            && (self.stop.is_some()
                || (self.mapped_to == self.leaves.size() && self.queue.is_empty() && self.paused.is_empty()));
        nothing_else
            || self.landed_bytes >= self.config.flush_bytes
            || now.saturating_sub(self.last_flush) >= self.config.flush_interval
    }

    fn start_flush(&mut self, now: Duration) -> Next {
        self.tickets += 1;
        self.last_flush = now;
        self.flushing = Some((self.tickets, std::mem::take(&mut self.landed)));
        self.landed_bytes = 0;
        Next::Flush(FlushTicket(self.tickets))
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
            self.push(Job::new(task, span));
        }
    }

    fn push(&mut self, job: Job) {
        self.queued_bytes += job.window_bytes();
        self.queue.push_back(job);
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
        self.push(Job { reserved, ..Job::new(task, whole) });
    }

    fn parts_to_write(&self, span: ByteSpan, leaves: &[Leaf], reserved: bool) -> WriteParts {
        let mut parts = WriteParts::default();
        if !self.is_copy() {
            return parts;
        }
        parts.reserve = self.config.reserve_bytes > 0 && !self.reserve.is_off && !reserved;
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
            self.push_zero_entry(first, count);
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
        self.landed_bytes += span.length;
        for (block, leaf) in (first..).zip(leaves) {
            match leaf {
                Leaf::Zero => self.push_zero_entry(block, 1),
                Leaf::Data(digest) => self.push_data_entry(block, *digest),
            }
        }
    }

    fn push_zero_entry(&mut self, first: u64, count: u64) {
        match self.landed.last_mut() {
            Some(Entry::Zero { first: start, count: length })
                if *start + u64::from(*length) == first
                    && u64::from(*length) + count <= u64::from(u32::MAX) =>
            {
                *length += count as u32;
            }
            _ => self.landed.push(Entry::Zero { first, count: count as u32 }),
        }
    }

    fn push_data_entry(&mut self, block: u64, digest: Digest) {
        match self.landed.last_mut() {
            Some(Entry::Data { first, leaves })
                if *first + leaves.len() as u64 == block && leaves.len() < RECORD_BLOCKS_MAX =>
            {
                leaves.push(digest);
            }
            _ => self.landed.push(Entry::Data { first: block, leaves: vec![digest] }),
        }
    }
}

/// How a request failed, as far as the copy's course depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// May pass.
    Transient,
    /// The answer cannot be right; may pass once or twice.
    Corrupt,
    /// Will not pass by itself.
    Fatal,
}

#[cfg(test)]
mod tests;
