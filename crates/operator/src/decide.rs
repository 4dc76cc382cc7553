//! One Migration: what is there of it, and what is to be done next.
//!
//! ```text
//! Pending ─ Queued ─ Running ─┬─ Done
//!              ▲        │     ├─ Failed ── (retry) ── Pending
//!              └ Retrying     └─ (cancel) ─ Cancelling ─ Cancelled
//! ```
//!
//! A status is written before the act that it announces. Each act can be carried out twice, and each is decided anew from what is there:
//! an operator that dies between the two loses nothing. A worker is made only when no pod of an earlier one is left.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::admission::HostTold;
use crate::lock::{self, LockSeen, MOVED_ELSEWHERE};
use crate::model::{Conversion, JobRef, MigrationSpec, Named, Phase, Status, Work};
use crate::objects::{Note, epoch_of, job_name, migration_name};
use crate::time::Moment;
use crate::waves::WaveStanding;

mod claim;
mod cutover;
mod settle;
#[cfg(test)]
mod tests;
mod waves;

pub use cutover::Cutover;
use cutover::{MOVING, NOT_RESOLVED};
pub use settle::reason;
use waves::TURNS;

/// Seconds that a worker may take to say that it works.
pub const START_SECONDS: i64 = 600;
/// Seconds between looks at pods that are still there.
const LINGER_SECONDS: i64 = 3;
/// Seconds before the first try after a failure; each further one waits twice as long.
pub const PAUSE_SECONDS_MIN: i64 = 10;
/// The longest pause.
pub const PAUSE_SECONDS_MAX: i64 = 600;
/// Tries that shut the guest down and failed, after which it is not shut down again by itself.
pub const OUTAGES_MAX: u32 = 3;
/// Seconds before a lock that cannot be read or removed is asked for again.
const LOCK_REFUSED_SECONDS: i64 = 30;
/// Failures in a row, without progress, after which a Migration is not tried again by itself.
pub const FAILURES_MAX: u32 = 8;
/// Jobs of workers that failed which are kept for their logs, of each work, beside the last one.
pub const FAILED_JOBS_MAX: usize = 3;
/// Seconds for which undoing is tried by itself.
pub const UNDO_SECONDS_MAX: i64 = 24 * 3600;

const NO_CONVERTER: &str = "its guest has to be converted, and this operator has no image with a converter: start it with --converter-image \
                            (docs/how-to/operator-convert.md), choose `disk_bus: sata`, or write `convert: never` for a guest that has virtio drivers";
/// Whether the guest runs again at the source after its Migration failed.
const GUEST_ON: &str = "GuestOn";
/// The condition that tells of a work.
pub fn condition_of(work: Work) -> &'static str {
    match work {
        Work::Move | Work::Undo => "Arrived",
        Work::SwitchOn => GUEST_ON,
    }
}

/// How the plan stands to a Migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanStanding {
    /// It has it, as it is now.
    Has,
    /// Not known now, and why: nothing new starts.
    Unknown(String),
    /// It has it no more, or is gone itself.
    LeftOut,
}

/// How the provider stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProviderStanding {
    /// It is as it was when the plan was laid over it.
    Same,
    /// It is not, and how.
    Other(String),
    /// It is not there.
    Missing(String),
}

/// The Job of a worker, as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobSeen {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Whether it is being removed.
    pub is_going: bool,
    /// Whether its pod has ended, and nothing of it runs.
    pub has_ended: bool,
    /// Whether the cluster took its pod away.
    pub was_disrupted: bool,
    /// When it failed, if it did.
    pub failed_at: Option<Moment>,
    /// When it was done, if it was.
    pub done_at: Option<Moment>,
    /// What its worker does, where it says so.
    pub work: Option<Work>,
    /// Bytes that its worker may take of the NFC memory of its VM's host.
    pub nfc_bytes: u64,
}

/// The state claim, as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClaimSeen {
    /// It was not asked for yet.
    #[default]
    NotAsked,
    /// There is none of its name.
    Missing,
    /// One of its name is being removed.
    Going,
    /// There is one: its UID, and whether it was made for this Migration.
    There(String, bool),
}

/// Whether a state claim has the room that workers are to have by now. Sizes are as Kubernetes writes them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClaimRoom {
    /// As far as is known.
    #[default]
    Enough,
    /// It was made when less was wanted.
    Small {
        /// What it asks for.
        size: String,
        /// What is wanted now.
        wanted: String,
    },
    /// The same, and it does not grow.
    Stays {
        /// What it has.
        size: String,
        /// What is wanted now.
        wanted: String,
        /// Why.
        why: String,
    },
}

/// What is there of a Migration.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The time.
    pub now: Moment,
    /// The Migration.
    pub me: Named,
    /// The generation of its spec.
    pub generation: i64,
    /// Whether it is being removed.
    pub is_going: bool,
    /// Whether it waits for the operator when it is removed.
    pub is_held: bool,
    /// Whether it may go with what it began.
    pub is_abandoned: bool,
    /// What [`crate::RETRY`] says.
    pub retry: Option<String>,
    /// Its plan.
    pub plan: PlanStanding,
    /// Its provider.
    pub provider: ProviderStanding,
    /// Its wave; open where it has none.
    pub wave: WaveStanding,
    /// All its Jobs.
    pub jobs: Vec<JobSeen>,
    /// Its state claim.
    pub claim: ClaimSeen,
    /// The room on that.
    pub room: ClaimRoom,
    /// The lock of its VM.
    pub lock: LockSeen,
    /// Whether pods of its workers are left; absent: nobody asked.
    pub pods: Option<bool>,
    /// Whether its namespace is being removed; absent: nobody asked.
    pub namespace_ends: Option<bool>,
    /// Whether the scheduler admitted it.
    pub is_admitted: bool,
    /// Whether it admitted its cutover.
    pub may_cut_over: bool,
    /// For how many seconds Jobs of workers that failed are kept.
    pub keep_failed_seconds: i64,
    /// For how many seconds the Job of the worker with which a VM arrived is kept, and its state claim by that.
    pub keep_done_seconds: i64,
    /// Whether workers may have a converter.
    pub has_converter: bool,
}

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Nothing now.
    Nothing,
    /// To have it wait for the operator when it is removed.
    Hold,
    /// To ask for the state claim, and decide again.
    AskClaim,
    /// To ask for the lock of its VM, and decide again.
    AskLock,
    /// To ask for pods, and decide again.
    AskPods,
    /// To ask for the namespace, and decide again.
    AskNamespace,
    /// To make the state claim.
    MakeClaim,
    /// To have the state claim of that UID ask for so much, and decide again.
    GrowClaim(String, String),
    /// To make the Job of [`Status::job`].
    MakeJob,
    /// To remove a Job, and its pod before it.
    RemoveJob(Named),
    /// To remove the state claim of that UID.
    RemoveClaim(String),
    /// To remove the lock of that UID: another may have the VM.
    RemoveLock(String),
    /// To remove the Migration, if it has not changed.
    RemoveMigration,
    /// To let it be removed.
    LetGo,
}

impl Act {
    /// Whether it only asks for what is missing to decide.
    pub fn is_question(&self) -> bool {
        matches!(self, Act::AskClaim | Act::AskLock | Act::AskPods | Act::AskNamespace)
    }
}

/// What was decided.
#[derive(Clone, Debug)]
pub struct Decision {
    /// To be written first, if it is another.
    pub status: Status,
    /// To be done then.
    pub act: Act,
    /// When to decide again, if nothing changes before.
    pub wake: Option<Moment>,
    /// For what it wants a slot of the scheduler, or has one to keep; of questions it tells nothing.
    pub wants_slot: Option<Work>,
    /// What it is to the scheduler of cutovers; of questions it tells nothing.
    pub cutover: Option<Cutover>,
    /// What a worker tells of the VM's host, to be told to the scheduler once the status is written.
    pub host: Option<HostTold>,
    /// What happened.
    pub notes: Vec<Note>,
}

/// Decides.
pub fn decide(spec: &MigrationSpec, status: &Status, facts: &Facts) -> Decision {
    let is_edited = status.observed_generation != facts.generation;
    let status = status.clone();
    let mut run =
        Run { spec, facts, status, is_edited, wake: None, wants_slot: None, host: None, notes: Vec::new() };
    run.status.observed_generation = facts.generation;
    let act = run.act();
    let cutover = run.cutover();
    let Run { status, wake, wants_slot, host, notes, .. } = run;
    Decision { status, act, wake, wants_slot, cutover, host, notes }
}

struct Run<'a> {
    spec: &'a MigrationSpec,
    facts: &'a Facts,
    status: Status,
    /// Whether the spec is another than the one that was decided on last.
    is_edited: bool,
    wake: Option<Moment>,
    wants_slot: Option<Work>,
    host: Option<HostTold>,
    notes: Vec<Note>,
}

impl Run<'_> {
    fn act(&mut self) -> Act {
        let Facts { me, now, .. } = self.facts;
        if !self.facts.is_going && !self.facts.is_held {
            return Act::Hold;
        }
        if me.name != migration_name(&self.spec.source.instance_uuid, &self.spec.vm.instance_uuid) {
            return match self.facts.is_going {
                true => Act::LetGo,
                false => {
                    self.rest(Phase::Failed, "NameIsNotTheVms", "metadata.name does not say which VM it is")
                }
            };
        }
        let current = self.status.job.clone();
        // One of the name of the worker's that was made again is not it.
        let is_current = |seen: &JobSeen| {
            let is_it =
                |job: &JobRef| job.name == seen.name && job.uid.as_ref().is_none_or(|uid| *uid == seen.uid);
            current.as_ref().is_some_and(is_it)
        };
        let jobs = &self.facts.jobs;
        let (is_made, last) = (jobs.iter().any(is_current), self.last_log());
        let failed = self.failed_logs();
        let is_past = |job: &JobSeen| self.done_until(job).is_some_and(|until| until <= *now);
        let is_stray = |job: &&JobSeen| match is_current(job) {
            true => false,
            false if failed.contains_key(&job.name) => false,
            // Until the next worker is there, people read in its log why.
            false if job.has_ended && !is_made => last.as_ref() != Some(&job.name) || is_past(job),
            // Nobody waits for its end beside a worker that has to be attended to.
            false => !(job.has_ended && job.is_going && is_made),
        };
        let stray = jobs.iter().find(is_stray);
        if let Some(job) = stray {
            let of_job = (!job.has_ended).then_some(Work::Move);
            self.wants_slot = current.as_ref().map(|job| job.work).or(of_job);
            if job.is_going {
                self.wake(now.plus(LINGER_SECONDS));
                return Act::Nothing;
            }
            return Act::RemoveJob(Named { name: job.name.clone(), uid: job.uid.clone() });
        }
        let done = jobs.iter().filter_map(|job| self.done_until(job)).min();
        if let Some(until) = failed.into_values().chain(done).min() {
            self.wake(until);
        }
        if let Some(job) = self.status.job.clone() {
            return self.at_work(job);
        }
        self.at_rest()
    }

    /// Whether people may want to read in the logs of workers that have ended.
    fn is_read(&self) -> bool {
        match self.status.phase {
            Phase::Cancelled => false,
            Phase::Cancelling => true,
            _ => !self.is_unwanted(),
        }
    }

    /// The Job of the last worker that came to its end, where messages send people to its log.
    fn last_log(&self) -> Option<String> {
        let epoch = self.status.epoch.checked_sub(1).filter(|_| self.is_read())?;
        Some(job_name(&self.facts.me.name, epoch))
    }

    /// Until when the Job is kept with which the VM arrived. Its pod has the state claim until then, which is removed, and free once no pod
    /// names it.
    fn done_until(&self, job: &JobSeen) -> Option<Moment> {
        let is_over = self.status.phase == Phase::Done && self.is_clean() && job.has_ended && !job.is_going;
        job.done_at.filter(|_| is_over).map(|at| at.plus(self.facts.keep_done_seconds))
    }

    /// The Jobs of the last workers that failed, and until when each is kept, also when others came after it. Those that switch a guest on
    /// again, of which there may be many, do not take the place of those that failed to move it.
    fn failed_logs(&self) -> BTreeMap<String, Moment> {
        let Facts { me, now, jobs, keep_failed_seconds, .. } = self.facts;
        let until = |job: &JobSeen| {
            let is_kept = job.has_ended && !job.is_going && self.is_read();
            let until = job.failed_at.filter(|_| is_kept)?.plus(*keep_failed_seconds);
            (until > *now).then_some(until)
        };
        let mut failed: Vec<_> =
            jobs.iter().filter_map(|job| Some((job, epoch_of(&me.name, &job.name)?, until(job)?))).collect();
        failed.sort_by_key(|(_, epoch, _)| Reverse(*epoch));
        let of = |work: Work| {
            let all = failed.iter().filter(move |(job, ..)| job.work.unwrap_or(Work::Move) == work);
            all.take(FAILED_JOBS_MAX).map(|(job, _, until)| (job.name.clone(), *until))
        };
        [Work::Move, Work::Undo, Work::SwitchOn].into_iter().flat_map(of).collect()
    }

    /// Whether what it began is to be undone, or is to be gone.
    fn is_unwanted(&self) -> bool {
        self.spec.cancel || self.facts.is_going
    }

    /// Whether nothing was touched yet, and its plan does not say now that it is to be.
    fn has_lost_plan(&self) -> bool {
        !self.status.begun && self.facts.plan != PlanStanding::Has
    }

    /// A worker was decided on, and its end was not looked at yet.
    fn at_work(&mut self, mut job: JobRef) -> Act {
        let now = self.facts.now;
        self.wants_slot = Some(job.work);
        let Some(seen) = self.facts.jobs.iter().find(|seen| seen.name == job.name).cloned() else {
            return match (job.uid.is_some(), self.facts.pods) {
                (_, None) => Act::AskPods,
                (_, Some(true)) => self.wait(LINGER_SECONDS),
                // Made and gone: somebody removed it, or it was stopped.
                (true, Some(false)) => self.settle(&job, false),
                (false, Some(false))
                    if job.work == Work::Move && (self.is_unwanted() || self.has_lost_plan()) =>
                {
                    self.end_epoch();
                    self.at_rest()
                }
                (false, Some(false)) => Act::MakeJob,
            };
        };
        if job.uid.is_none() {
            job.uid = Some(seen.uid.clone());
            self.status.job = Some(job.clone());
        }
        if seen.has_ended {
            return self.settle(&job, seen.was_disrupted);
        }
        if seen.is_going {
            return self.wait(LINGER_SECONDS);
        }
        let this = Named { name: seen.name, uid: seen.uid };
        if job.work == Work::Move && self.is_unwanted() {
            self.status.phase = Phase::Cancelling;
            self.tell("Arrived", false, "Cancelling", "its worker is stopped first");
            return Act::RemoveJob(this);
        }
        if job.work == Work::Move && self.has_lost_plan() {
            self.tell(
                "Arrived",
                false,
                "PlanChanged",
                "its worker had touched nothing, and its plan is another by now",
            );
            return Act::RemoveJob(this);
        }
        if self.status.word().is_none() {
            let until = job.at.plus(START_SECONDS);
            if now >= until {
                job.overdue = true;
                self.status.job = Some(job);
                return Act::RemoveJob(this);
            }
            self.wake(until);
        } else {
            let (reason, message) = match job.work {
                Work::Move => self.moves(),
                Work::Undo => ("Undoing", "its worker undoes what was begun".into()),
                Work::SwitchOn => {
                    ("SwitchingOn", "its worker switches the guest on again at the source".into())
                }
            };
            self.tell(condition_of(job.work), false, reason, &message);
        }
        Act::Nothing
    }

    /// No worker is meant any more: whoever comes late in this epoch is refused from now on.
    fn end_epoch(&mut self) {
        self.status.job = None;
        self.status.epoch += 1;
        self.wants_slot = None;
    }

    /// No worker is there.
    fn at_rest(&mut self) -> Act {
        let has_begun = self.status.begun;
        match self.status.phase {
            Phase::Done | Phase::Cancelled if self.facts.is_going => return self.let_go(),
            Phase::Cancelled => return self.stay_cancelled(),
            // Nothing is left that its state would tell.
            Phase::Done if self.is_clean() => return self.remove_claim().unwrap_or(Act::Nothing),
            Phase::Done if self.new_retry().is_none() => return Act::Nothing,
            _ => {}
        }
        if self.facts.is_going && (!has_begun || self.facts.is_abandoned) {
            return self.let_go();
        }
        if self.is_unwanted() {
            return self.undo(has_begun);
        }
        if let Some(word) = self.new_retry() {
            self.status.retried = Some(word);
            if !self.has_lost_state() {
                self.count_anew();
                self.status.phase = Phase::Pending;
            }
        }
        if self.status.phase == Phase::Failed && self.is_edited && !has_begun && !self.has_lost_state() {
            self.count_anew();
            self.status.phase = Phase::Pending;
        }
        self.leave_stop();
        if !has_begun && self.facts.plan == PlanStanding::LeftOut {
            return Act::RemoveMigration;
        }
        if self.status.phase == Phase::Failed {
            // Nobody else looks after the guest.
            return match self.may_be_off() && !self.has_lost_state() {
                true => self.begin(Work::SwitchOn),
                false => Act::Nothing,
            };
        }
        if let PlanStanding::Unknown(why) = &self.facts.plan
            && !has_begun
        {
            let why = why.clone();
            return self.rest(Phase::Pending, NOT_RESOLVED, &why);
        }
        if let Some(act) = self.kept_by_wave() {
            return act;
        }
        self.begin(Work::Move)
    }

    /// What the annotation says that was not heeded yet.
    fn new_retry(&self) -> Option<String> {
        self.facts.retry.clone().filter(|word| Some(word) != self.status.retried.as_ref())
    }

    fn count_anew(&mut self) {
        (self.status.failures, self.status.tries, self.status.outages) = (0, 0, 0);
        self.status.next_try = None;
    }

    fn undo(&mut self, has_begun: bool) -> Act {
        let now = self.facts.now;
        if !has_begun {
            self.status.phase = Phase::Cancelled;
            self.tell("Cancelled", true, "NothingBegun", "nothing had begun");
            return self.stay_cancelled();
        }
        // No worker can be made in it, and what an undo needs goes away with it.
        if self.facts.is_going {
            match self.facts.namespace_ends {
                None => return Act::AskNamespace,
                Some(false) => {}
                Some(true) => {
                    let what =
                        "its namespace is being removed: what was begun is not undone, and yours to undo";
                    self.tell("Cancelled", false, "NamespaceEnds", what);
                    return self.let_go();
                }
            }
        }
        let retry = self.new_retry();
        if retry.is_some() || self.status.cancel_since.is_none() {
            self.status.cancel_since = Some(now);
            self.count_anew();
            self.status.retried = retry.or(self.status.retried.take());
        }
        if self.has_lost_state() {
            self.status.phase = Phase::Failed;
            return Act::Nothing;
        }
        let since = self.status.cancel_since.unwrap_or(now);
        if now >= since.plus(UNDO_SECONDS_MAX) {
            let message = "it was not undone in a day, and is not tried again by itself: mend the cause and set the annotation \
                           drover.dev/retry, or undo it by hand and set drover.dev/abandon. Its guest may be off at the source";
            self.status.phase = Phase::Failed;
            self.tell("CleanedUp", false, "UndoGaveUp", message);
            return Act::Nothing;
        }
        self.wake(since.plus(UNDO_SECONDS_MAX));
        self.status.phase = Phase::Cancelling;
        self.begin(Work::Undo)
    }

    /// Makes a worker, once all is there that it needs.
    fn begin(&mut self, work: Work) -> Act {
        let now = self.facts.now;
        let (waiting, queued) = match work {
            Work::Move => (Phase::Pending, Phase::Queued),
            Work::Undo => (Phase::Cancelling, Phase::Cancelling),
            Work::SwitchOn => (Phase::Failed, Phase::Failed),
        };
        let kind = condition_of(work);
        // What has begun goes to the provider as it is now: the worker proves that it is the same vCenter.
        let blocked = match &self.facts.provider {
            ProviderStanding::Missing(why) => Some(("ProviderMissing", why.clone())),
            ProviderStanding::Other(why) if !self.status.begun => Some(("ProviderChanged", why.clone())),
            ProviderStanding::Other(_) | ProviderStanding::Same => None,
        };
        if let Some((reason, why)) = blocked {
            self.status.phase = waiting;
            self.tell(kind, false, reason, &why);
            return Act::Nothing;
        }
        // What has begun goes on, and its worker tells what it lacks: its guest may be down.
        let needs = work == Work::Move && self.spec.conversion == Conversion::Needed;
        if needs && !self.facts.has_converter && !self.status.begun {
            return self.rest(Phase::Pending, "ConverterMissing", NO_CONVERTER);
        }
        if let Some(next) = self.status.next_try.filter(|next| *next > now) {
            self.wants_slot = self.status.keeps_slot().then_some(Work::Move);
            self.wake(next);
            return Act::Nothing;
        }
        self.wants_slot = Some(work);
        if !self.facts.is_admitted {
            self.status.phase = queued;
            let why = "host, datastore or budget are taken by others, or its host or its datastore fails and is left alone for a while";
            self.tell(kind, false, "WaitsForSlot", why);
            return Act::Nothing;
        }
        if let Err(act) = self.vm_is_free(work).and_then(|()| self.claim_ready(work)) {
            return act;
        }
        match self.facts.pods {
            None => return Act::AskPods,
            Some(true) => return self.wait(LINGER_SECONDS),
            Some(false) => {}
        }
        self.status.epoch = self.status.epoch.max(1);
        let name = job_name(&self.facts.me.name, self.status.epoch);
        self.status.job = Some(JobRef { name, uid: None, work, at: now, overdue: false });
        self.status.next_try = None;
        if work != Work::SwitchOn {
            self.status.conditions.retain(|it| it.kind != GUEST_ON);
        }
        if work == Work::Move {
            self.status.phase = Phase::Running;
            self.tell("Arrived", false, "Starting", "its worker is made");
        }
        Act::MakeJob
    }

    /// Whether no other Migration has the VM. What has begun has it itself; its workers see to that.
    fn vm_is_free(&mut self, work: Work) -> Result<(), Act> {
        match &self.facts.lock {
            _ if self.status.begun || work == Work::Undo => Ok(()),
            LockSeen::NotAsked => Err(Act::AskLock),
            LockSeen::Free | LockSeen::Mine(_) => Ok(()),
            LockSeen::Others(why) => Err(self.look_again(MOVED_ELSEWHERE, why, PAUSE_SECONDS_MAX)),
            LockSeen::NotServed(why) | LockSeen::Denied(why) => {
                Err(self.look_again(lock::REFUSED, why, LOCK_REFUSED_SECONDS))
            }
        }
    }

    /// Waits for others, without a slot.
    fn look_again(&mut self, reason: &str, why: &str, seconds: i64) -> Act {
        let act = self.rest(Phase::Pending, reason, why);
        let until = self.facts.now.plus(seconds);
        self.status.next_try = Some(until);
        self.wants_slot = None;
        self.wake(until);
        act
    }

    fn lose(&mut self, what: &str) {
        let off = if self.may_be_off() { ". Its guest may be off at the source" } else { "" };
        let what = format!("{what}{off}");
        self.status.phase = Phase::Failed;
        self.wants_slot = None;
        self.tell("StateLost", true, "StateLost", &what);
        self.tell("Arrived", false, "StateLost", &what);
    }

    fn has_arrived(&self) -> bool {
        self.status.condition("Arrived").is_some_and(|it| it.status == "True")
    }

    fn is_clean(&self) -> bool {
        self.status.condition("CleanedUp").is_some_and(|it| it.status == "True")
    }

    fn has_lost_state(&self) -> bool {
        self.status.condition("StateLost").is_some_and(|it| it.status == "True")
    }

    fn let_go(&mut self) -> Act {
        if let Some(act) = self.remove_claim() {
            return act;
        }
        if let LockSeen::Denied(why) = &self.facts.lock {
            let message = format!("the lock of its VM may be left: {why}");
            self.notes.push(Note { is_warning: true, reason: "VmLockLeft".into(), message });
        }
        Act::LetGo
    }

    fn stay_cancelled(&mut self) -> Act {
        if let Some(act) = self.remove_claim() {
            return act;
        }
        self.tell("Arrived", false, "Cancelled", "it was cancelled");
        Act::Nothing
    }

    fn rest(&mut self, phase: Phase, reason: &str, message: &str) -> Act {
        self.status.phase = phase;
        self.tell("Arrived", false, reason, message);
        Act::Nothing
    }

    fn wait(&mut self, seconds: i64) -> Act {
        self.wake(self.facts.now.plus(seconds));
        Act::Nothing
    }

    fn wake(&mut self, at: Moment) {
        self.wake = Some(self.wake.map_or(at, |earlier| earlier.min(at)));
    }

    /// Sets a condition, and notes it where its status or reason is another.
    fn tell(&mut self, kind: &str, is_true: bool, reason: &str, message: &str) {
        // What has arrived has, whatever becomes of its clean-up.
        if kind == "Arrived" && !is_true && self.has_arrived() {
            return;
        }
        let before = self.status.condition(kind).map(|it| it.reason.clone());
        self.status.set(kind, is_true, reason, message, self.facts.now);
        let is_turn = |reason: &str| TURNS.contains(&reason);
        // Nor of what its worker goes on with after it had waited for its turn.
        let goes_on = reason == MOVING && before.as_deref().is_some_and(is_turn);
        if before.as_deref() != Some(reason) && !is_turn(reason) && !goes_on {
            let is_bad = self.status.phase == Phase::Failed || matches!(self.status.phase, Phase::Retrying);
            self.notes.push(Note { is_warning: is_bad, reason: reason.into(), message: message.into() });
        }
    }
}
