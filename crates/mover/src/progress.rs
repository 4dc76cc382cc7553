use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use drover_copy::Totals;
use serde::{Deserialize, Serialize};

/// Asks every transfer that holds a clone to stop. What is in flight ends and is recorded, but for what a target that takes
/// writes ahead of a slow line gives up ([`drover_disk::Disk::withdraw`]).
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    asked: Arc<AtomicBool>,
    /// Another signal that counts as well; see [`StopSignal::child`].
    parent: Option<Arc<StopSignal>>,
}

impl StopSignal {
    /// Asks for the stop.
    pub fn stop(&self) {
        self.asked.store(true, Relaxed);
    }

    /// Whether it was asked for.
    pub fn is_set(&self) -> bool {
        self.asked.load(Relaxed) || self.parent.as_ref().is_some_and(|parent| parent.is_set())
    }

    /// The flag itself, for a signal handler to set.
    pub fn flag(&self) -> Arc<AtomicBool> {
        self.asked.clone()
    }

    /// A signal that is also set when this one is, but not the other way round: for transfers that
    /// stop each other.
    pub fn child(&self) -> StopSignal {
        StopSignal { asked: Arc::default(), parent: Some(Arc::new(self.clone())) }
    }
}

/// Where a transfer stands; written by its workers, read by whoever shows it.
#[derive(Debug, Default)]
pub struct Progress {
    size: AtomicU64,
    resumed: AtomicU64,
    mapped: AtomicU64,
    to_read: AtomicU64,
    read: AtomicU64,
    written: AtomicU64,
    zero: AtomicU64,
    settled: AtomicU64,
    retries: AtomicU64,
    recorded: AtomicU64,
    audit_mismatches: AtomicU64,
    pub(crate) source_ns: AtomicU64,
    pub(crate) cpu_ns: AtomicU64,
    pub(crate) target_ns: AtomicU64,
    pub(crate) flush_ns: AtomicU64,
    pub(crate) idle_ns: AtomicU64,
    parts: Mutex<Vec<Arc<Progress>>>,
}

/// A look at a transfer at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Size of the disk.
    pub size: u64,
    /// On the target before this run.
    pub resumed: u64,
    /// Of the disk, how much the source has described so far.
    pub mapped: u64,
    /// Described as data to be read in this run, so far.
    pub to_read: u64,
    /// Read in this run.
    pub read: u64,
    /// Written in this run.
    pub written: u64,
    /// Not moved because it is zero: by the source's word, or found so.
    pub zero: u64,
    /// Settled in this run: on the target, or hashed.
    pub settled: u64,
    /// Flushed and in the journal.
    pub recorded: u64,
    /// Failures that were tried again.
    pub retries: u64,
    /// What the workers spent their time on.
    pub attribution: Attribution,
}

impl Snapshot {
    fn plus_part(self, part: &Snapshot) -> Snapshot {
        Snapshot {
            size: self.size,
            resumed: self.resumed + part.resumed,
            mapped: self.mapped + part.mapped,
            to_read: self.to_read + part.to_read,
            read: self.read + part.read,
            written: self.written + part.written,
            zero: self.zero + part.zero,
            settled: self.settled + part.settled,
            recorded: self.recorded + part.recorded,
            retries: self.retries + part.retries,
            attribution: self.attribution.plus(&part.attribution),
        }
    }

    /// Bytes of the disk that need no more work.
    pub fn done(&self) -> u64 {
        (self.resumed + self.settled).min(self.size)
    }

    /// Bytes still to be read, as far as is known: described as data and not read, and, of what is not
    /// described yet, the share that was data so far.
    pub fn left_to_read(&self) -> u64 {
        let undescribed = self.size.saturating_sub(self.mapped) as f64;
        let share = if self.mapped == 0 { 1.0 } else { self.to_read as f64 / self.mapped as f64 };
        self.to_read.saturating_sub(self.read) + (undescribed * share.min(1.0)) as u64
    }
}

/// Time that workers spent in each stage, in nanoseconds, summed over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attribution {
    /// Waiting for the source to answer.
    pub source_ns: u64,
    /// Looking for zeros and hashing.
    pub cpu_ns: u64,
    /// Waiting for the target to take writes.
    pub target_ns: u64,
    /// Waiting for the target to make writes durable.
    pub flush_ns: u64,
    /// With nothing to do: pauses after failures, the last requests of others.
    pub idle_ns: u64,
}

impl Attribution {
    /// The stage that took most of the time, and its share (0 to 1).
    pub fn slowest(&self) -> (&'static str, f64) {
        let stages = [
            ("source", self.source_ns),
            ("cpu", self.cpu_ns),
            ("target", self.target_ns),
            ("flush", self.flush_ns),
            ("idle", self.idle_ns),
        ];
        let sum: u64 = stages.iter().map(|(_, ns)| ns).sum();
        let (name, most) = stages.into_iter().max_by_key(|(_, ns)| *ns).unwrap_or(("source", 0));
        (name, if sum == 0 { 0.0 } else { most as f64 / sum as f64 })
    }

    /// The share (0 to 1) of the time in which the target was waited for, of all in which something was done.
    pub fn target_part(&self) -> f64 {
        let target = (self.target_ns + self.flush_ns) as f64;
        let all = target + (self.source_ns + self.cpu_ns) as f64;
        if all > 0.0 { target / all } else { 0.0 }
    }

    /// The sum of two.
    pub fn plus(&self, other: &Attribution) -> Attribution {
        Attribution {
            source_ns: self.source_ns + other.source_ns,
            cpu_ns: self.cpu_ns + other.cpu_ns,
            target_ns: self.target_ns + other.target_ns,
            flush_ns: self.flush_ns + other.flush_ns,
            idle_ns: self.idle_ns + other.idle_ns,
        }
    }
}

impl Progress {
    /// A look at it now. The fields are read one by one, so they may be a moment apart.
    pub fn snapshot(&self) -> Snapshot {
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts.iter().fold(self.own_snapshot(), |sum, part| sum.plus_part(&part.own_snapshot()))
    }

    /// The progress of a transfer that is a part of this one: its sums count here, its size does not.
    pub(crate) fn part(&self) -> Arc<Progress> {
        let part = Arc::new(Progress::default());
        self.parts.lock().unwrap_or_else(PoisonError::into_inner).push(part.clone());
        part
    }

    fn own_snapshot(&self) -> Snapshot {
        Snapshot {
            size: self.size.load(Relaxed),
            resumed: self.resumed.load(Relaxed),
            mapped: self.mapped.load(Relaxed),
            to_read: self.to_read.load(Relaxed),
            read: self.read.load(Relaxed),
            written: self.written.load(Relaxed),
            zero: self.zero.load(Relaxed),
            settled: self.settled.load(Relaxed),
            recorded: self.recorded.load(Relaxed),
            retries: self.retries.load(Relaxed),
            attribution: Attribution {
                source_ns: self.source_ns.load(Relaxed),
                cpu_ns: self.cpu_ns.load(Relaxed),
                target_ns: self.target_ns.load(Relaxed),
                flush_ns: self.flush_ns.load(Relaxed),
                idle_ns: self.idle_ns.load(Relaxed),
            },
        }
    }

    /// For work that is no transfer: so many bytes of so many are read.
    pub fn tell(&self, done: u64, all: u64) {
        self.size.store(all, Relaxed);
        [&self.mapped, &self.to_read].iter().for_each(|told| told.store(all, Relaxed));
        [&self.read, &self.settled].iter().for_each(|told| told.store(done, Relaxed));
    }

    /// Shows a disk all of which an earlier run brought to its target.
    pub fn tell_known(&self, size: u64) {
        [&self.size, &self.mapped, &self.resumed].iter().for_each(|told| told.store(size, Relaxed));
    }

    /// Blocks that the audit of a pass found changed, once it has ended, well or not.
    pub fn audit_mismatches(&self) -> u64 {
        self.audit_mismatches.load(Relaxed)
    }

    pub(crate) fn set_audit_mismatches(&self, blocks: u64) {
        self.audit_mismatches.store(blocks, Relaxed);
    }

    pub(crate) fn start(&self, size: u64) {
        self.size.store(size, Relaxed);
    }

    pub(crate) fn update(&self, totals: &Totals) {
        self.resumed.store(totals.resumed, Relaxed);
        self.mapped.store(totals.mapped, Relaxed);
        self.to_read.store(totals.to_read, Relaxed);
        self.read.store(totals.read, Relaxed);
        self.written.store(totals.written, Relaxed);
        self.zero.store(totals.zero_mapped + totals.zero_found, Relaxed);
        self.settled.store(totals.settled, Relaxed);
        self.retries.store(totals.retries, Relaxed);
    }

    pub(crate) fn add_recorded(&self, bytes: u64) {
        self.recorded.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn spent(counter: &AtomicU64, time: Duration) {
        counter.fetch_add(time.as_nanos() as u64, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_counts_undescribed_parts_by_the_share_seen_so_far() {
        let snapshot = Snapshot { size: 1000, mapped: 500, to_read: 100, read: 40, ..Snapshot::default() };
        assert_eq!(snapshot.left_to_read(), 60 + 100);
        assert_eq!(Snapshot { size: 1000, ..Snapshot::default() }.left_to_read(), 1000);
    }

    #[test]
    fn parts_count_in_the_whole_but_for_their_size() {
        let whole = Progress::default();
        whole.start(100);
        for _ in 0..2 {
            let part = whole.part();
            part.start(50);
            part.update(&Totals { read: 7, mapped: 50, ..Totals::default() });
        }
        let now = whole.snapshot();
        assert_eq!((now.size, now.read, now.mapped), (100, 14, 100));
    }

    #[test]
    fn a_child_stops_with_its_parent_and_not_the_other_way_round() {
        let parent = StopSignal::default();
        let (one, other) = (parent.child(), parent.child());
        one.stop();
        assert!(one.is_set() && !other.is_set() && !parent.is_set());
        parent.stop();
        assert!(other.is_set());
    }

    #[test]
    fn the_slowest_stage_is_named_with_its_share() {
        let time = Attribution { source_ns: 1, cpu_ns: 3, ..Attribution::default() };
        assert_eq!(time.slowest(), ("cpu", 0.75));
        assert_eq!(Attribution::default().slowest().1, 0.0);
    }
}
