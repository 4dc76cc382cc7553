//! The work of a copier: what waits, what pauses after a failure, what is in flight.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use drover_types::ByteSpan;

use super::api::{CopierConfig, Mode, Next};
use crate::leaves::{Leaf, SEGMENT_BYTES};

/// The map is asked further while fewer tasks and fewer bytes to read than this are queued.
const QUEUE_TASKS_MIN: usize = 64;
const QUEUE_BYTES_MIN: u64 = 256 << 20;
/// Space is reserved only if at least this part of what is reserved at a time is known to be data.
const RESERVE_PART_MIN: u64 = 8;
/// No more runs of data are reserved at a time.
const RESERVE_RUNS_MAX: usize = QUEUE_TASKS_MIN;
/// Nothing is reserved while more than this share of what is read turns out to be zeros.
const RESERVE_ZEROS_MAX: f64 = 0.25;
/// Longest single request to zero a span. Whole segments of the hash tree take no memory.
const ZERO_BYTES_MAX: u64 = SEGMENT_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Read,
    Zero,
}

#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) task: Task,
    pub(super) span: ByteSpan,
    pub(super) leaves: Vec<Leaf>,
    pub(super) attempts: u32,
    pub(super) first_failure: Option<Duration>,
    /// Whether space was set aside for it, so that its zeros have to be made holes again.
    pub(super) reserved: bool,
}

impl Job {
    pub(super) fn new(task: Task, span: ByteSpan) -> Self {
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
    /// The runs of data set aside last, in order.
    runs: Vec<ByteSpan>,
    is_off: bool,
    /// Share of zeros in what was read lately.
    zeros: f64,
}

impl Reserve {
    /// Whether any of `span` was set aside.
    fn holds(&self, span: ByteSpan) -> bool {
        let first = self.runs.partition_point(|run| run.end() <= span.offset);
        self.runs.get(first).is_some_and(|run| run.offset < span.end())
    }
}

/// Jobs in the order in which they are started, and those that were.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Job>,
    waiting_bytes: u64,
    paused: Vec<(Duration, Job)>,
    in_flight: BTreeMap<u64, Job>,
    in_flight_bytes: u64,
    reserve: Reserve,
}

impl Queue {
    pub(super) fn push(&mut self, job: Job) {
        self.waiting_bytes += job.window_bytes();
        self.waiting.push_back(job);
    }

    /// Whether so little waits that the map should be asked further.
    pub(super) fn wants_more(&self) -> bool {
        self.waiting.len() < QUEUE_TASKS_MIN && self.waiting_bytes < QUEUE_BYTES_MIN
    }

    /// Whether all that was pushed has been started, and nothing pauses.
    pub(super) fn all_started(&self) -> bool {
        self.waiting.is_empty() && self.paused.is_empty()
    }

    pub(super) fn none_in_flight(&self) -> bool {
        self.in_flight.is_empty()
    }

    pub(super) fn in_flight_bytes(&self) -> u64 {
        self.in_flight_bytes
    }

    /// Starts the next piece of work, if there is any and the window has room for it.
    pub(super) fn start(&mut self, config: &CopierConfig) -> Option<Next> {
        let span = self.next_span(config)?;
        let task = self.waiting.front()?.task;
        let bytes = if task == Task::Read { span.length } else { 0 };
        if self.in_flight_bytes > 0 && self.in_flight_bytes + bytes > config.window_bytes {
            return None;
        }
        if self.reserve_before(span, config) {
            return Some(Next::Reserve);
        }
        let job = self.take_waiting(span)?;
        self.in_flight_bytes += job.window_bytes();
        self.in_flight.insert(span.offset, job);
        Some(match task {
            Task::Read => Next::Read(span),
            Task::Zero => Next::Zero(span),
        })
    }

    /// What the first job would do next: jobs are cut at multiples of what is done at once.
    fn next_span(&self, config: &CopierConfig) -> Option<ByteSpan> {
        let job = self.waiting.front()?;
        let at_once = if job.task == Task::Read { config.request_bytes } else { ZERO_BYTES_MAX };
        let border = (job.span.offset / at_once).saturating_add(1).saturating_mul(at_once);
        let end = job.span.end().min(border);
        Some(ByteSpan::from_bounds(job.span.offset, end))
    }

    /// Takes `span` off the front of the first job.
    fn take_waiting(&mut self, span: ByteSpan) -> Option<Job> {
        let first = self.waiting.front_mut()?;
        let reserved = first.reserved || self.reserve.holds(span);
        let mut job = if span.end() == first.span.end() {
            self.waiting.pop_front()?
        } else {
            let rest = ByteSpan::from_bounds(span.end(), first.span.end());
            let job = Job { span, ..first.clone() };
            first.span = rest;
            job
        };
        job.reserved = reserved;
        self.waiting_bytes -= job.window_bytes();
        Some(job)
    }

    /// Whether space is to be set aside before `span`, the next to be read: for it and the data after it.
    fn reserve_before(&mut self, span: ByteSpan, config: &CopierConfig) -> bool {
        let reads_next = self.waiting.front().is_some_and(|job| job.task == Task::Read);
        let is_copy = matches!(config.mode, Mode::Copy { .. });
        if config.reserve_bytes == 0 || !is_copy || self.reserve.is_off || !reads_next {
            return false;
        }
        if span.offset < self.reserve.decided_to {
            return false;
        }
        let runs = self.runs_ahead(config.reserve_bytes);
        self.reserve.decided_to = runs.last().map_or(span.end(), |run| run.end());
        let bytes: u64 = runs.iter().map(|run| run.length).sum();
        let pays =
            bytes >= config.reserve_bytes / RESERVE_PART_MIN && self.reserve.zeros <= RESERVE_ZEROS_MAX;
        self.reserve.runs = if pays { runs } else { Vec::new() };
        pays
    }

    /// The data that waits, in the order of the disk, so many bytes of it; what is put back later is left out.
    fn runs_ahead(&self, bytes_max: u64) -> Vec<ByteSpan> {
        let mut runs: Vec<ByteSpan> = Vec::new();
        let mut left = bytes_max;
        for job in self.waiting.iter().filter(|job| job.task == Task::Read) {
            let end = runs.last().map_or(0, |run| run.end());
            if left == 0 || runs.len() == RESERVE_RUNS_MAX || job.span.offset < end {
                break;
            }
            let run = ByteSpan::new(job.span.offset, job.span.length.min(left));
            left -= run.length;
            runs.push(run);
        }
        runs
    }

    /// What is to be set aside now.
    pub(super) fn to_reserve(&self) -> &[ByteSpan] {
        &self.reserve.runs
    }

    /// No more space is set aside.
    pub(super) fn reserve_off(&mut self) {
        self.reserve.is_off = true;
    }

    /// Of what was read, this share was zeros.
    pub(super) fn saw_zeros(&mut self, share: f64) {
        self.reserve.zeros = 0.75 * self.reserve.zeros + 0.25 * share;
    }

    /// The job in flight that was started with this span's offset.
    pub(super) fn in_flight(&mut self, span: ByteSpan) -> Option<&mut Job> {
        self.in_flight.get_mut(&span.offset)
    }

    /// Takes out a job that ended.
    ///
    /// # Panics
    /// If it was not in flight.
    pub(super) fn end(&mut self, span: ByteSpan) -> Job {
        let job = self.in_flight.remove(&span.offset).expect("an ended request was in flight");
        assert_eq!(job.span, span, "an ended request has its span");
        self.in_flight_bytes -= job.window_bytes();
        job
    }

    /// Keeps a job back until `due`.
    pub(super) fn pause(&mut self, due: Duration, job: Job) {
        self.paused.push((due, job));
    }

    /// Puts jobs whose pause is over first.
    pub(super) fn wake(&mut self, now: Duration) {
        let mut index = 0;
        while index < self.paused.len() {
            if self.paused[index].0 <= now {
                let (_, job) = self.paused.swap_remove(index);
                self.waiting_bytes += job.window_bytes();
                self.waiting.push_front(job);
            } else {
                index += 1;
            }
        }
    }

    /// When the first pause is over.
    pub(super) fn next_wake(&self) -> Option<Duration> {
        self.paused.iter().map(|(due, _)| *due).min()
    }

    pub(super) fn check_invariants(&self) {
        let bytes: u64 = self.in_flight.values().map(Job::window_bytes).sum();
        assert_eq!(bytes, self.in_flight_bytes, "bytes in flight");
        let waiting: u64 = self.waiting.iter().map(Job::window_bytes).sum();
        assert_eq!(waiting, self.waiting_bytes, "bytes that wait");
        let mut end = 0;
        for job in self.in_flight.values() {
            assert!(job.span.offset >= end, "{} is in flight twice", job.span);
            end = job.span.end();
        }
    }
}
