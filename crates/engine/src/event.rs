//! What happens during a run, for whoever shows or logs it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use drover_mover::{Progress, Snapshot};
use serde::{Deserialize, Serialize};

use crate::hooks::{CallKind, HookResult};
use crate::limits::LimitsInForce;
use crate::phase::Phase;
use crate::provider::LinkBytes;
use crate::standing::Standing;
use crate::store::{Downtime, PassKind, VmState};

/// Something that happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// The run began.
    PlanStarted {
        /// Plan.
        plan: String,
        /// VMs to move now.
        vms: usize,
        /// VMs that an earlier run has moved.
        done_before: usize,
    },
    /// A VM entered a phase.
    PhaseStarted {
        /// VM.
        vm: String,
        /// Phase.
        phase: Phase,
    },
    /// A VM left a phase.
    PhaseEnded {
        /// VM.
        vm: String,
        /// Phase.
        phase: Phase,
        /// Seconds it took.
        seconds: f64,
    },
    /// Something the user should know.
    Note {
        /// VM.
        vm: String,
        /// Text.
        text: String,
    },
    /// The source does not answer for the moment. What needs it waits, as long as the plan lets it.
    SourceAway {
        /// What of it, and why (`vc.lab:443: HTTP 503`).
        what: String,
    },
    /// The source answers again.
    SourceBack {
        /// What had not answered, and why.
        what: String,
        /// Seconds since that was told.
        seconds: f64,
    },
    /// A hook is called, or a check is asked.
    HookStarted {
        /// VM, if it is about one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vm: Option<String>,
        /// Wave, if it is about one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wave: Option<String>,
        /// Which of both.
        kind: CallKind,
        /// When in its way.
        point: String,
        /// Position among those of this point, from 1.
        number: usize,
        /// What is called.
        what: String,
    },
    /// A hook or a check ended.
    HookEnded {
        /// VM, if it is about one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vm: Option<String>,
        /// Wave, if it is about one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wave: Option<String>,
        /// Which of both.
        kind: CallKind,
        /// When in its way.
        point: String,
        /// Position among those of this point, from 1.
        number: usize,
        /// What was called.
        what: String,
        /// What it decided.
        result: HookResult,
        /// Why; empty if there is nothing to say.
        message: String,
        /// Seconds it took, all tries of a check together.
        seconds: f64,
    },
    /// A disk was copied.
    DiskCopied {
        /// VM.
        vm: String,
        /// Disk.
        disk: String,
        /// Root of its hash tree.
        root: String,
        /// Bytes read in this run.
        bytes_read: u64,
        /// Seconds it took.
        seconds: f64,
        /// What went over the link to another site, if it is there.
        link: Option<LinkBytes>,
    },
    /// A disk was verified.
    DiskVerified {
        /// VM.
        vm: String,
        /// Disk.
        disk: String,
        /// Blocks compared.
        blocks: u64,
        /// Of so many.
        blocks_total: u64,
        /// Whether all of them are equal.
        equal: bool,
    },
    /// A pass of a warm migration begins.
    PassStarted {
        /// VM.
        vm: String,
        /// Number, from 1.
        number: u32,
        /// What it is.
        kind: PassKind,
        /// Why everything is read, if it is not the first.
        why: Option<String>,
    },
    /// A pass is complete.
    PassEnded {
        /// VM.
        vm: String,
        /// Number, from 1.
        number: u32,
        /// What it was.
        kind: PassKind,
        /// Bytes that the source said had changed.
        areas_bytes: u64,
        /// Bytes read.
        read_bytes: u64,
        /// Bytes that had changed indeed.
        changed_bytes: u64,
        /// Blocks compared that the source called unchanged.
        audited_blocks: u64,
        /// Of these, the ones that had changed.
        mismatches: u64,
        /// Seconds it took, with its snapshot.
        seconds: f64,
    },
    /// A VM waits for its next pass.
    PassWaits {
        /// VM.
        vm: String,
        /// Number of the pass it waits for.
        number: u32,
        /// When that begins, in milliseconds since 1970.
        next_ms: i64,
        /// How long the VM would be down if it moved over now.
        forecast: Option<Downtime>,
        /// Whether it moves over only when somebody asks for it.
        #[serde(default)]
        until_asked: bool,
    },
    /// A VM moves over.
    CutoverStarted {
        /// VM.
        vm: String,
        /// Why now.
        reason: String,
        /// How long it will be down.
        forecast: Option<Downtime>,
    },
    /// A VM has moved over: it runs at the target, or can be started there.
    CutoverEnded {
        /// VM.
        vm: String,
        /// What was predicted.
        forecast: Option<Downtime>,
        /// How long it was down, in milliseconds; absent if drover did not start it.
        downtime_ms: Option<u64>,
        /// Milliseconds from the shutdown until it ran or could be started.
        ready_ms: u64,
    },
    /// A VM reached its end.
    VmEnded {
        /// VM.
        vm: String,
        /// How.
        state: VmState,
        /// Absent if it went well.
        error: Option<String>,
        /// What to try.
        advice: Option<String>,
        /// Where it stands on both sides; absent if it arrived whole or was never touched.
        #[serde(skip_serializing_if = "Option::is_none")]
        standing: Option<Standing>,
    },
    /// A VM that failed is tried again in the same run, by order: it waits for its turn as those that did not begin.
    VmRetried {
        /// VM.
        vm: String,
        /// Why it failed.
        error: Option<String>,
    },
    /// The first VM of a wave began to move; warm ones may have been copied before.
    WaveStarted {
        /// Wave.
        wave: String,
        /// Its VMs that this run moves.
        vms: usize,
    },
    /// A wave waits for a word, because of failures in one before it.
    WaveHeld {
        /// Wave that waits.
        wave: String,
        /// The one before it.
        by: String,
        /// VMs of that one that failed.
        failed: usize,
    },
    /// All VMs of a wave have ended; told anew if others have arrived after a second try. A run that is stopped ends no wave of which
    /// VMs are left.
    WaveEnded {
        /// Wave.
        wave: String,
        /// Its VMs that arrived in this run.
        arrived: usize,
        /// Those that failed, or never began.
        failed: usize,
    },
    /// Limits of the run were changed by order. What is under way goes on; what begins keeps to these.
    LimitsChanged {
        /// What is different: `rate_limit 1KiB -> none, disks 4 -> 8`.
        changed: String,
        /// All of them, as they are now.
        #[serde(flatten)]
        limits: LimitsInForce,
    },
    /// The run ended.
    PlanEnded {
        /// Plan.
        plan: String,
        /// VMs moved, those of earlier runs too.
        done: usize,
        /// VMs that are at the target, with a source that was not cleaned up.
        not_cleaned_up: usize,
        /// VMs failed.
        failed: usize,
        /// VMs that were given up by order.
        cancelled: usize,
        /// VMs not begun or stopped.
        unfinished: usize,
    },
}

/// Gets every event, from several threads.
pub trait Observer: Send + Sync {
    /// Takes one in.
    fn event(&self, event: &Event);
}

/// Looks away.
pub struct NoObserver;

impl Observer for NoObserver {
    fn event(&self, _: &Event) {}
}

/// What a disk is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskActivity {
    /// Waits for a slot.
    Queued,
    /// Being copied.
    Copy,
    /// The source is held against its own checksums.
    Prove,
    /// Being read back.
    Verify,
}

/// A disk at work.
#[derive(Clone, Debug)]
pub struct LiveDisk {
    /// VM.
    pub vm: String,
    /// Disk.
    pub disk: String,
    /// What it does.
    pub activity: DiskActivity,
    /// How far it is.
    pub progress: Arc<Progress>,
    /// Since when.
    pub since: Instant,
}

/// The disks at work now. Clones share one board.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<Shown>>);

#[derive(Debug, Default)]
struct Shown {
    live: Vec<LiveDisk>,
    /// Of disks that are done with copying in this run: bytes read and written.
    finished: (u64, u64),
    /// Capacity of all disks of this run, and how much of it the copies that ended need not do again.
    capacity: (u64, u64),
}

impl Board {
    /// The disks at work, in the order they began.
    pub fn live(&self) -> Vec<LiveDisk> {
        self.lock().live.clone()
    }

    /// Bytes read and written by this run's copies so far.
    pub fn moved(&self) -> (u64, u64) {
        let shown = self.lock();
        let copying = shown.live.iter().filter(|disk| disk.activity == DiskActivity::Copy);
        copying
            .map(|disk| disk.progress.snapshot())
            .fold(shown.finished, |(read, written), now: Snapshot| (read + now.read, written + now.written))
    }

    /// Capacity of all disks of this run, and how much of it the copies that ended, well or not, need not do again.
    pub fn capacity(&self) -> (u64, u64) {
        self.lock().capacity
    }

    pub(crate) fn add_capacity(&self, bytes: u64) {
        self.lock().capacity.0 += bytes;
    }

    pub(crate) fn enter(&self, disk: LiveDisk) {
        self.lock().live.push(disk);
    }

    pub(crate) fn leave(&self, progress: &Arc<Progress>) {
        let mut shown = self.lock();
        let Some(at) = shown.live.iter().position(|disk| Arc::ptr_eq(&disk.progress, progress)) else {
            return;
        };
        let disk = shown.live.remove(at);
        if disk.activity == DiskActivity::Copy {
            let end = progress.snapshot();
            shown.finished.0 += end.read;
            shown.finished.1 += end.written;
            shown.capacity.1 += end.done();
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shown> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_was_stopped_counts_as_far_as_it_came() {
        let (board, progress) = (Board::default(), Arc::new(Progress::default()));
        board.add_capacity(100);
        board.enter(LiveDisk {
            vm: "vm".into(),
            disk: "disk".into(),
            activity: DiskActivity::Copy,
            progress: progress.clone(),
            since: Instant::now(),
        });
        progress.tell(40, 100);
        board.leave(&progress);
        assert_eq!(board.capacity(), (100, 40));
    }
}
