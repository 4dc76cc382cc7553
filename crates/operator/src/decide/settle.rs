//! A worker came to its end.

use super::{
    Act, FAILURES_MAX, GUEST_ON, OUTAGES_MAX, PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN, Run, condition_of,
};
use crate::admission::HostTold;
use crate::model::{JobRef, Phase, Work, WorkerWord};

/// Exits of workers, as drover's commands end. See `docs/reference/exit-codes.md`.
mod exit {
    pub const SUCCESS: u8 = 0;
    pub const PLAN: u8 = 3;
    pub const ACCESS: u8 = 4;
    pub const CONNECTION: u8 = 5;
    pub const TARGET: u8 = 7;
    pub const TARGET_FULL: u8 = 8;
    pub const NOT_CLEANED_UP: u8 = 13;
    pub const INTERRUPTED: u8 = 130;
}

/// What workers say beside their exit.
pub mod reason {
    /// Its plan cannot be read.
    pub const UNPARSABLE: &str = "PlanUnparsable";
    /// Its plan asks for what workers do not do.
    pub const FORBIDDEN: &str = "PlanForbidden";
    /// It was to be undone, and is at the target to stay.
    pub const ARRIVED: &str = "ArrivedAlready";
    /// The state that it was to go on with is not there.
    pub const STATE_LOST: &str = "StateLost";
    /// The lock of its VM was removed, or is another's.
    pub const LOCK_LOST: &str = "VmLockLost";
    /// The window of its wave closed before it began.
    pub const WINDOW_CLOSED: &str = "WindowClosed";
    /// VMs of a wave before its own failed, and it waits for a word.
    pub const WAVE_FAILED: &str = "WaveFailed";
    /// VMs of a wave before its own failed, after which none begins.
    pub const WAVE_STOPPED: &str = "WaveStopped";
    /// It was stopped by a wave of a Plan that is gone.
    pub const PLAN_GONE: &str = "PlanGone";
    /// While it works: the VM is copied again and again until somebody asks for its cutover.
    pub const WAITS_FOR_CUTOVER: &str = "WaitsForCutover";
}

const MAY_BE_OFF: &str =
    "its guest may be off: a worker switches it on again at the source, as the condition GuestOn tells";
const BEGUN_KEEPS_ITS_PLAN: &str = "it is tried again; an edit of the Plan changes nothing in what has begun: if the plan is wrong, cancel and remove this Migration";

impl Run<'_> {
    /// Takes in how a worker ended, of which nothing runs any more.
    pub(super) fn settle(&mut self, job: &JobRef, was_disrupted: bool) -> Act {
        let word = self.status.word().cloned();
        let has_begun = word.is_some();
        self.end_epoch();
        let was_off = self.status.guest_off;
        if let Some(word) = &word {
            // Before it shuts the guest down, a worker says so.
            let is_cut_off = word.exit.is_none() && word.outage;
            self.status.guest_off = word.left_off.unwrap_or(was_off || is_cut_off);
        }
        // The guest was down for a try that began and ended so, and for one that never told how it ended.
        let was_down = was_off && self.status.guest_off;
        let ended = word.filter(|word| word.exit.is_some());
        let is_silent = ended.is_none() && has_begun && job.work == Work::Move;
        if is_silent && self.status.guest_off && !self.is_unwanted() && self.was_last_outage() {
            self.fail_of_outages("its worker ended without a word");
            return self.wait(0);
        }
        match (&ended, job.work) {
            (Some(word), _) if word.reason.as_deref() == Some(reason::STATE_LOST) => {
                let message = word.message.clone().unwrap_or_default();
                self.lose(&message);
            }
            (Some(word), Work::Move) => self.moved(word, was_down),
            (Some(word), Work::Undo) => self.undone(word),
            (Some(word), Work::SwitchOn) => self.switched_on(word),
            (None, _) if was_disrupted => {
                self.pause(PAUSE_SECONDS_MIN, job.work);
                self.tell(
                    condition_of(job.work),
                    false,
                    "WorkerEvicted",
                    "the cluster took its worker's pod away; another goes on",
                );
            }
            // It was stopped so that what it began can be undone.
            (None, Work::Move) if (self.is_unwanted() || self.has_lost_plan()) && !job.overdue => {}
            (None, work) => {
                let (reason, message) = match (job.overdue, has_begun) {
                    (true, _) => {
                        ("WorkerDidNotStart", "its worker did not start in time: see the events of its pods")
                    }
                    (_, false) => (
                        "WorkerSaidNothing",
                        "its worker ended before it could write to this status: see its log, and whether its node reaches the API server",
                    ),
                    (_, true) => ("WorkerDied", "its worker ended without a word; another goes on"),
                };
                // A cluster without room, or a network that lets no worker out, is mended elsewhere.
                self.count(work, reason, message, !job.overdue && has_begun);
            }
        }
        // At the source it stays off for good.
        self.status.guest_off &= !self.has_arrived();
        self.wants_slot = self.status.keeps_slot().then_some(Work::Move);
        // What is next is decided with the status that is written now; the Job is of an epoch that is over then.
        self.wait(0)
    }

    fn moved(&mut self, word: &WorkerWord, was_down: bool) {
        let message = word.message.clone().unwrap_or_default();
        let said = word.reason.clone().unwrap_or_else(|| "Failed".into());
        let had_arrived = self.has_arrived();
        let code = word.exit.unwrap_or_default();
        let has_moved = [exit::SUCCESS, exit::NOT_CLEANED_UP].contains(&code);
        self.host = match has_moved {
            true => Some(HostTold::Served).filter(|_| !had_arrived),
            false if code == exit::TARGET_FULL && !word.host_failed => Some(HostTold::TargetFull),
            false => match &word.datastore_failed {
                Some(datastore) => Some(HostTold::DatastoreFailed(datastore.clone())),
                None => Some(HostTold::Failed),
            }
            .filter(|_| word.host_failed),
        };
        // Where the source is not reached or lets nobody in, no other work would switch the guest on.
        let was_down = was_down && ![exit::ACCESS, exit::CONNECTION].contains(&code);
        if !has_moved && (word.outage || was_down) && self.was_last_outage() {
            self.fail_of_outages(&message);
            return;
        }
        match code {
            exit::SUCCESS => {
                self.status.phase = Phase::Done;
                self.status.next_try = None;
                self.tell("Arrived", true, "Arrived", "its bytes are at the target, and were proven equal");
                self.tell("CleanedUp", true, "CleanedUp", "nothing is left at the source");
            }
            exit::NOT_CLEANED_UP => {
                self.tell("Arrived", true, "Arrived", "its bytes are at the target, and were proven equal");
                self.tell("CleanedUp", false, "SourceNotCleanedUp", &message);
                // How often the copy failed before says nothing of the clean-up.
                if !had_arrived {
                    (self.status.failures, self.status.tries) = (0, 0);
                }
                self.status.failures += 1;
                self.status.tries += 1;
                if self.status.failures >= FAILURES_MAX {
                    self.status.phase = Phase::Done;
                } else {
                    self.pause_by_failures(Work::Move);
                }
            }
            exit::INTERRUPTED => {
                // A drain, or whoever stopped the pod: nothing failed.
                self.pause(PAUSE_SECONDS_MIN, Work::Move);
                if [reason::LOCK_LOST, reason::WINDOW_CLOSED].contains(&said.as_str()) {
                    self.tell("Arrived", false, &said, &message);
                } else if !self.is_unwanted() {
                    self.tell(
                        "Arrived",
                        false,
                        "WorkerStopped",
                        "its worker was asked to stop; another goes on",
                    );
                }
            }
            exit::PLAN if [reason::UNPARSABLE, reason::FORBIDDEN].contains(&said.as_str()) => {
                self.fail(&said, &message);
            }
            // These are mended elsewhere, whenever that is: the plan's surroundings, logins, lines, quotas, names that are taken.
            exit::PLAN | exit::ACCESS | exit::CONNECTION | exit::TARGET | exit::TARGET_FULL => {
                let message = match self.status.begun {
                    true => format!("{message} ({BEGUN_KEEPS_ITS_PLAN})"),
                    false => message,
                };
                self.count(Work::Move, &said, &message, false);
            }
            _ => self.count(Work::Move, &said, &message, true),
        }
    }

    fn undone(&mut self, word: &WorkerWord) {
        let message = word.message.clone().unwrap_or_default();
        if word.reason.as_deref() == Some(reason::ARRIVED) {
            self.status.phase = Phase::Done;
            self.status.next_try = None;
            self.tell(
                "Arrived",
                true,
                "Arrived",
                "it was at the target before it was given up, and stays there",
            );
            self.tell("Cancelled", false, reason::ARRIVED, "it was at the target before it was given up");
            match word.exit {
                Some(exit::SUCCESS) => {
                    self.tell("CleanedUp", true, "CleanedUp", "nothing is left at the source")
                }
                _ => self.tell("CleanedUp", false, "SourceNotCleanedUp", &message),
            }
            return;
        }
        if word.exit == Some(exit::SUCCESS) {
            self.status.phase = Phase::Cancelled;
            self.status.next_try = None;
            self.tell("Cancelled", true, "Undone", "what it had begun is undone");
            self.tell("CleanedUp", true, "CleanedUp", "nothing is left at source and target");
            self.tell("Arrived", false, "Cancelled", "it was cancelled");
            return;
        }
        let said = word.reason.clone().unwrap_or_else(|| "UndoFailed".into());
        self.count(Work::Undo, &said, &message, false);
        self.tell("CleanedUp", false, &said, &message);
    }

    fn switched_on(&mut self, word: &WorkerWord) {
        let message = word.message.clone().unwrap_or_default();
        if word.exit == Some(exit::SUCCESS) {
            self.status.guest_off = false;
            self.status.next_try = None;
            self.tell(GUEST_ON, true, "SwitchedOn", &message);
            return;
        }
        let said = word.reason.clone().unwrap_or_else(|| "SwitchOnFailed".into());
        self.count(Work::SwitchOn, &said, &message, false);
    }

    /// Counts a try for which the guest was down. Whatever it failed of, and wherever that is mended: the next one would stop the guest again.
    fn was_last_outage(&mut self) -> bool {
        self.status.outages = self.status.outages.saturating_add(1);
        self.status.outages >= OUTAGES_MAX
    }

    /// Counts a failure; progress since the last one begins anew. `ends` if too many of them end it.
    fn count(&mut self, work: Work, reason: &str, message: &str, ends: bool) {
        let bytes = self.status.progress.as_ref().map_or(0, |progress| progress.done_bytes);
        if work == Work::Move && bytes > self.status.failed_at_bytes {
            (self.status.failures, self.status.tries) = (0, 0);
            self.status.failed_at_bytes = bytes;
        }
        self.status.failures = self.status.failures.saturating_add(u32::from(ends));
        self.status.tries = self.status.tries.saturating_add(1);
        if ends && work == Work::Move && self.status.failures >= FAILURES_MAX {
            self.fail(reason, message);
        } else {
            self.pause_by_failures(work);
            self.tell(condition_of(work), false, reason, message);
        }
    }

    fn fail_of_outages(&mut self, message: &str) {
        let what = format!(
            "{message}; {OUTAGES_MAX} tries had its guest down and failed, so it is not shut down again by itself: mend the cause and \
             set the annotation drover.dev/retry, or cancel this Migration"
        );
        self.fail("TooManyOutages", &what);
    }

    /// It is not tried any more.
    pub(super) fn fail(&mut self, reason: &str, message: &str) {
        self.status.phase = Phase::Failed;
        // What is tried from now on is to switch its guest on.
        self.status.tries = 0;
        let message = match self.may_be_off() {
            true => format!("{message}. {MAY_BE_OFF}"),
            false => message.to_string(),
        };
        self.tell("Arrived", false, reason, &message);
    }

    /// Whether a worker left the guest off, or ended without saying whether it did.
    pub(super) fn may_be_off(&self) -> bool {
        let is_unsaid = |word: &WorkerWord| word.exit.is_none() || word.outage && word.left_off.is_none();
        self.status.begun && (self.status.guest_off || self.status.worker.as_ref().is_some_and(is_unsaid))
    }

    fn pause_by_failures(&mut self, work: Work) {
        let doublings = self.status.tries.saturating_sub(1).min(16);
        self.pause((PAUSE_SECONDS_MIN << doublings).min(PAUSE_SECONDS_MAX), work);
    }

    fn pause(&mut self, seconds: i64, work: Work) {
        self.status.phase = match work {
            Work::Move => Phase::Retrying,
            Work::Undo => Phase::Cancelling,
            Work::SwitchOn => Phase::Failed,
        };
        self.status.next_try = Some(self.facts.now.plus(seconds));
    }
}
