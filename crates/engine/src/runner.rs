//! Runs all VMs of a plan, as many at a time as the budgets allow.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

use drover_mover::{StopSignal, TransferOptions};
use drover_plan::{Limits, PlannedVm, WaveHooks};
use drover_schedule::{Ended, Quarantined, Tenant, Wait};
use drover_types::{DayLimit, Wave, count};

use crate::cancel::Leave;
use crate::clock::Clock;
use crate::error::{Cause, EngineError, ProviderError};
use crate::event::{Board, Event, Observer};
use crate::foresight::{Foresaw, Foresight};
use crate::give_up::{GiveUps, Was, give_up};
use crate::hooks::HookRunner;
use crate::itinerary::{Context, Journey, Outside, end_untouched};
use crate::limits::LimitsInForce;
use crate::outage;
use crate::pace::Paces;
use crate::parallel::OnDrop;
use crate::provider::{SourceProvider, TargetPlace, TargetProvider};
use crate::slots::{Answer, Asks, GivenUp, Joining, Relimited, Room, Rooms, Schedule, Slots, budgets_of};
use crate::standing::VmEnd;
use crate::store::{PlanRow, PlanState, ProgressRow, RunFacts, Store, StoreError, VmRow, VmState};
use crate::waits::Waits;
use crate::wave_hooks::{Begun, REPORT, WaveCalls, forget_waves_over, too_late};
use crate::waves::Told;

/// A rate sample is kept this often, and a request to stop is noticed as fast.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Waiting looks this often whether it is over.
const LOOK: Duration = Duration::from_millis(50);

/// A run that ends before its forecast is there waits so long for it.
const FORESIGHT_WAIT: Duration = Duration::from_secs(2);

/// Says what stands against a VM that is about to begin, if something does.
pub type MayBegin<'a> = dyn Fn(&PlannedVm) -> Result<(), ProviderError> + Sync + 'a;

/// A plan to be run.
pub struct Runner<'a> {
    /// Plan's name.
    pub plan: &'a str,
    /// Text of the plan file.
    pub text: &'a str,
    /// Folder that paths in it are relative to.
    pub folder: &'a Path,
    /// What is known of the run.
    pub facts: &'a RunFacts,
    /// What is foreseen for it, once that is there.
    pub foresight: Option<&'a Foresight>,
    /// VMs.
    pub vms: &'a [PlannedVm],
    /// Budgets.
    pub limits: &'a Limits,
    /// What may be read of the source, or go to the site, as source and target keep to it now.
    pub rate_limit: &'a [DayLimit],
    /// Has source and target keep to limits that are changed by order.
    pub heed_limits: &'a (dyn Fn(&LimitsInForce) + Sync),
    /// The plan's waves; none: all VMs may move at once.
    pub waves: &'a [Wave],
    /// What is called around them, by their names.
    pub wave_hooks: &'a BTreeMap<String, WaveHooks>,
    /// The schedule that it shares with other runs of this process, whose budgets hold for all, with the plan's own within them;
    /// absent: one of its own, with the plan's budgets.
    pub schedule: Option<Arc<Schedule>>,
    /// Where from.
    pub source: &'a dyn SourceProvider,
    /// Where to.
    pub target: &'a dyn TargetProvider,
    /// State.
    pub store: &'a Store,
    /// Who watches.
    pub observer: &'a dyn Observer,
    /// Disks at work, for a display.
    pub board: &'a Board,
    /// Settings of the transfers.
    pub options: &'a TransferOptions,
    /// Stops the run.
    pub stop: &'a StopSignal,
    /// Leave to go on, of a run in whose place another may have been put: asked for before each phase, before a guest is shut down or
    /// frozen, and before what was done is undone. A VM without it is left as it is, and its source is not even looked at.
    pub leave: &'a Leave<'a>,
    /// Asked when a VM begins: of one that something stood against as the run was gone on with, whether it still does.
    pub may_begin: &'a MayBegin<'a>,
    /// The time.
    pub clock: &'a dyn Clock,
    /// Calls hooks and asks checks.
    pub hooks: &'a dyn HookRunner,
}

/// How a run ended.
#[derive(Debug, Default)]
pub struct RunOutcome {
    /// VMs that arrived, in this run or before.
    pub done: usize,
    /// VMs that are at the target, with a source that was not cleaned up.
    pub not_cleaned_up: usize,
    /// VMs that failed, with the cause of each.
    pub failed: Vec<(String, Cause)>,
    /// VMs stopped, not begun before a stop, or left out by a hook; not those that were given up by order.
    pub unfinished: usize,
    /// Those of them that a hook had left out.
    pub skipped: usize,
    /// How each VM ended that this run took on.
    pub ends: Vec<VmEnd>,
    /// Hosts and datastores because of which VMs failed.
    pub quarantine: Vec<Quarantined>,
    /// Why the end could not be recorded, of a VM or of the run. What is told here is so all the same.
    pub unkept: Option<StoreError>,
}

impl RunOutcome {
    /// What the runs of a plan came to so far, by what is recorded of its VMs.
    pub fn recorded(vms: &[VmRow]) -> RunOutcome {
        let count = |state: VmState| vms.iter().filter(|vm| vm.state == state).count();
        let failed = vms.iter().filter(|vm| vm.state == VmState::Failed);
        let cause = |vm: &VmRow| vm.cause.as_deref().and_then(Cause::of_word).unwrap_or(Cause::Internal);
        let failed: Vec<_> = failed.map(|vm| (vm.name.clone(), cause(vm))).collect();
        let (done, not_cleaned_up) = (count(VmState::Done), count(VmState::NotCleanedUp));
        RunOutcome {
            done,
            not_cleaned_up,
            unfinished: vms.len() - done - not_cleaned_up - failed.len() - count(VmState::Cancelled),
            skipped: count(VmState::Skipped),
            failed,
            ..RunOutcome::default()
        }
    }

    /// Whether every VM arrived and nothing is left to do.
    pub fn is_complete(&self) -> bool {
        self.has_arrived() && self.not_cleaned_up == 0
    }

    /// Whether every VM is at the target.
    pub fn has_arrived(&self) -> bool {
        self.failed.is_empty() && self.unfinished == 0
    }
}

impl Runner<'_> {
    /// Runs the plan, or goes on with it.
    ///
    /// # Errors
    /// If another process runs it, or the state cannot be kept before anything is touched. A VM that fails is part of the
    /// outcome, and so is state that cannot be kept later.
    pub fn run(&self) -> Result<RunOutcome, EngineError> {
        let _lock = PlanLock::take(self.store, self.plan)?;
        // As earlier runs left them: they count as queued from now on.
        let rows = self.store.vms_in_short(self.plan)?;
        let left: HashMap<&str, VmState> = rows.iter().map(|row| (row.id.as_str(), row.state)).collect();
        let was = |vm: &PlannedVm, state: VmState| left.get(vm.vm.id.as_str()) == Some(&state);
        let is_over = |row: &PlanRow| matches!(row.state, PlanState::Done | PlanState::Cancelled);
        let earlier = self.store.plan(self.plan)?;
        let gave_up = match earlier.as_ref().map(|row| row.state) {
            // It begins anew, with all its VMs.
            Some(PlanState::Cancelled) => HashSet::new(),
            _ => HashSet::from_iter(self.store.give_ups(self.plan)?),
        };
        // One that is still to be undone is seen to.
        let is_out = |vm: &&PlannedVm| was(vm, VmState::Cancelled) && gave_up.contains(&vm.vm.id);
        let todo: Vec<&PlannedVm> =
            self.vms.iter().filter(|vm| !was(vm, VmState::Done) && !is_out(vm)).collect();
        if todo.is_empty() && earlier.as_ref().is_some_and(|row| row.state == PlanState::Done) {
            // What its last run recorded stays the record.
            let done = self.vms.iter().filter(|vm| was(vm, VmState::Done)).count();
            let plan = || self.plan.to_string();
            self.observer.event(&Event::PlanStarted { plan: plan(), vms: 0, done_before: done });
            let cancelled = self.vms.iter().filter(is_out).count();
            let ended = Event::PlanEnded {
                plan: plan(),
                done,
                not_cleaned_up: 0,
                failed: 0,
                cancelled,
                unfinished: 0,
            };
            self.observer.event(&ended);
            return Ok(RunOutcome { done, ..RunOutcome::default() });
        }
        let is_anew = earlier.as_ref().is_some_and(is_over);
        let too_late = too_late(earlier.as_ref(), self.wave_hooks, &todo);
        forget_waves_over(self.store, self.plan, self.wave_hooks, &todo, &rows, is_anew)?;
        self.store.begin_plan(self.plan, self.text, self.folder)?;
        let run = self.store.add_run(self.plan, self.facts)?;
        let planned = |vm: &PlannedVm| serde_json::to_string(vm).unwrap_or_default();
        let vms = self.vms.iter().filter(|vm| !is_out(vm));
        let vms = vms.map(|vm| (vm.vm.id.as_str(), vm.target_name.as_str(), planned(vm)));
        self.store.enter_vms(self.plan, vms)?;
        let not_cleaned_up = todo.iter().filter(|vm| was(vm, VmState::NotCleanedUp));
        let before = Before {
            done: self.vms.iter().filter(|vm| was(vm, VmState::Done)).count(),
            given_up: self.vms.iter().filter(is_out).count(),
            not_cleaned_up: not_cleaned_up.map(|vm| vm.target_name.clone()).collect(),
        };
        let done_before = before.done;
        self.observer.event(&Event::PlanStarted { plan: self.plan.into(), vms: todo.len(), done_before });
        todo.iter().for_each(|vm| self.board.add_capacity(vm.capacity_bytes()));
        let left = Left { vms: &rows, disks: &self.store.progress(self.plan)? };
        let (ends, quarantine) = self.run_vms(&todo, &left, self.schedule()?, run, too_late);
        Ok(RunOutcome { quarantine, ..self.end(&before, ends) })
    }

    fn run_vms(
        &self,
        todo: &[&PlannedVm],
        left: &Left<'_>,
        schedule: Arc<Schedule>,
        number: i64,
        begun: Begun,
    ) -> (Vec<VmEnd>, Vec<Quarantined>) {
        let site = &self.site();
        let to_call: Vec<&str> = WaveCalls::to_call_before(self.wave_hooks).collect();
        let joining = Joining {
            site,
            vms: todo,
            left: left.vms,
            copied: left.disks,
            waves: self.waves,
            to_call: &to_call,
            limits: self.limits,
        };
        let tenant = schedule.join(&joining, self.clock);
        // Also if something panics: others share the schedule.
        let _left = OnDrop::new(|| schedule.leave(tenant, self.clock));
        let context = &self.context(number);
        let (waves, ends) = (Mutex::default(), &Mutex::default());
        let calls = WaveCalls {
            context,
            schedule: &schedule,
            tenant,
            hooks: self.wave_hooks,
            vms: self.vms,
            todo,
            left: left.vms,
            ends,
            begun: Mutex::new(begun),
        };
        let takes_retries = AtomicBool::new(true);
        let give_ups = GiveUps::default();
        let run =
            Run { schedule: &schedule, tenant, todo, context, waves, calls, ends, takes_retries, give_ups };
        self.heed_words(&run);
        let (over, run) = (&StopSignal::default(), &run);
        std::thread::scope(|scope| {
            // Without it no rates are kept, and only a signal stops the run.
            let watcher = move || {
                let looks = catch_unwind(AssertUnwindSafe(|| self.watch(over, run, scope)));
                if let Err(panic) = looks {
                    let what = "internal error: the thread that looks after waves panicked";
                    run.calls.shut_all(&ProviderError::new(Cause::Internal, what).advise(REPORT).into());
                    // Nobody is left who hears a `drover proceed`.
                    self.stop.stop();
                    resume_unwind(panic);
                }
            };
            if let Err(error) = Builder::new().spawn_scoped(scope, watcher) {
                let what = "starting a thread for what is called around waves";
                run.calls.shut_all(&ProviderError::new(Cause::Internal, what).because(error).into());
                self.takes_no_retries(run);
            }
            // Those that were ordered before the run began do not begin.
            self.heed_give_ups(run, scope);
            // Also if this loop panics: the scope waits for the watcher.
            let _over = OnDrop::new(|| over.stop());
            loop {
                while let Some((id, at)) = schedule.next(tenant, self.stop, self.clock) {
                    let vm = todo[at];
                    let slots = Slots { schedule: &schedule, clock: self.clock, id };
                    // In its own thread: a target that is slow to tell what is free holds up those alone that go there.
                    let go = move || run_vm(run, at, slots, |stop| self.ask_for_room(slots, vm, stop));
                    if Builder::new().spawn_scoped(scope, go).is_err() {
                        // No thread can be had: then VMs go one after the other.
                        go();
                    }
                }
                self.call_after_last(run, scope);
                if self.is_over(run) {
                    break;
                }
            }
        });
        self.tell_given_up(run);
        self.tell_waves(run);
        self.keep_foresight(run, FORESIGHT_WAIT);
        let quarantine = schedule.quarantine(tenant);
        self.tell_schedule(run, &quarantine);
        (std::mem::take(&mut ends.lock().unwrap_or_else(PoisonError::into_inner)), quarantine)
    }

    /// Asks for room at the target of a VM that is about to begin. False if it does not begin, now or ever.
    fn ask_for_room(&self, slots: Slots<'_>, vm: &PlannedVm, stop: &StopSignal) -> Result<bool, EngineError> {
        let Slots { schedule, id, clock } = slots;
        let Some(rooms) = schedule.rooms_for(id).filter(|_| !stop.is_set()) else { return Ok(true) };
        schedule.begins_to_ask(id);
        match self.room_for(&rooms, slots, vm) {
            Answer::Promised(room) => {
                schedule.give_room(id, room, clock);
                slots.take(stop).map(|()| true)
            }
            Answer::Wait(wait) => Ok(schedule.wait_for_room(id, wait, clock)),
            Answer::Full(disk, full) => Ok(schedule.finds_place_full(id, disk, full, clock)),
            Answer::Never(why) => Ok(schedule.refuse(id, why.into(), clock)),
        }
    }

    fn room_for(&self, rooms: &Rooms, Slots { schedule, id, .. }: Slots<'_>, vm: &PlannedVm) -> Answer {
        // Images that a converter or a guest wrote to are removed before anything is copied.
        let is_anew =
            vm.warm.is_some() && self.store.warm(self.plan, &vm.vm.id).is_ok_and(|warm| warm.replica_touched);
        // What cannot be asked now is told by the VM's own check.
        let Ok(mut places) = self.target.places(vm, schedule.is_left(id) && !is_anew) else {
            return Answer::Promised(Room::default());
        };
        schedule.ask_for_all(id, &mut places);
        if let Some(late) = schedule.asks_at(id, &places) {
            return Answer::Wait(late);
        }
        let asks = Asks {
            plan: self.plan,
            vm: &vm.target_name,
            insists: schedule.goes_on(id),
            disks: vm.disks.iter().map(|disk| disk.disk.capacity_bytes).collect(),
        };
        rooms.ask(&asks, places, &|place: &TargetPlace| self.target.free_bytes(vm, place).ok().flatten())
    }

    /// All VMs have ended: calls what is left to be called after waves, and waits for it, so that a request to stop is heeded
    /// meanwhile; or until one of them is tried again.
    fn call_after_last<'scope>(&self, run: &'scope Run<'_>, scope: &'scope Scope<'scope, '_>) {
        while !run.schedule.has_left(run.tenant) {
            let is_at_work = run.calls.is_at_work();
            self.tell_given_up(run);
            self.tell_waves(run);
            if !run.calls.begin(scope) && !is_at_work {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What tells its source from others: the installation and its address, for a vCenter that was cloned has the UUID of the other.
    pub(crate) fn site(&self) -> String {
        let RunFacts { source, source_uuid, .. } = self.facts;
        format!("{source_uuid}@{source}")
    }

    /// The schedule that it is given, or one of its own that shares hosts with other processes of this state.
    fn schedule(&self) -> Result<Arc<Schedule>, EngineError> {
        if let Some(schedule) = &self.schedule {
            return Ok(schedule.clone());
        }
        let state = self.store.folder();
        let shared = Schedule::of_state(budgets_of(self.limits), state).map_err(|error| {
            let what = format!("folder in {}, by which processes share budgets", state.display());
            ProviderError::new(Cause::State, what).because(error)
        })?;
        Ok(Arc::new(shared))
    }

    /// Tells what was learned of hosts and datastores, and which of them failed.
    fn tell_schedule(&self, run: &Run<'_>, quarantine: &[Quarantined]) {
        let failed = quarantine.iter().map(Quarantined::to_string);
        // What cannot be kept is a loss to the report only.
        for line in run.schedule.found(run.tenant).into_iter().chain(failed) {
            let _ = self.store.add_event(self.plan, None, None, "note", &line);
        }
        if !quarantine.is_empty() {
            let _ = self.store.set_quarantine(self.plan, quarantine);
        }
    }

    /// Ends VMs that nothing was done with, and that will not begin any more. After a stop they are left as they are, like all others
    /// that did not begin.
    fn tell_given_up(&self, run: &Run<'_>) {
        // An order to try one of them again finds its end.
        let _begun = run.calls.lock();
        let given_up = run.schedule.take_given_up(run.tenant);
        for GivenUp { at, why } in given_up.into_iter().filter(|_| !self.stop.is_set()) {
            if run.give_ups.is_ordered(at) {
                run.put_end(at, give_up(run.context, run.todo[at], Was::Waiting));
                continue;
            }
            let end = end_untouched(run.context, run.todo[at], &why);
            run.ends.lock().unwrap_or_else(PoisonError::into_inner).push(end);
        }
    }

    fn context(&self, run: i64) -> Context<'_> {
        Context {
            plan: self.plan,
            source: self.source,
            target: self.target,
            store: self.store,
            observer: self.observer,
            board: self.board,
            options: self.options,
            stop: self.stop,
            leave: self.leave,
            may_begin: self.may_begin,
            clock: self.clock,
            outside: Some(Outside { runner: self.hooks, facts: self.facts, run }),
        }
    }

    /// Keeps samples of the rate, and stops the run when another process asks for it.
    fn watch<'scope>(&self, over: &StopSignal, run: &'scope Run<'_>, scope: &'scope Scope<'scope, '_>) {
        let (mut waits, mut paces, mut told) = (Waits::default(), Paces::default(), outage::Told::default());
        let mut limits = LimitsInForce::new(self.limits, self.rate_limit);
        self.forget_outage();
        while !over.is_set() {
            let (read, written) = self.board.moved();
            let disks = paces.look(self.board.live(), Instant::now(), self.clock.now_ms());
            // A lost sample is a gap in a chart; trouble with the store shows itself elsewhere.
            let _ = self.store.add_sample(self.plan, read, written, &disks);
            run.schedule.let_room_go();
            run.schedule.let_askers_wait(run.tenant, self.clock);
            self.keep_waits(run, &mut waits);
            self.tell_outage(&mut told);
            self.heed_words(run);
            self.heed_limits(run, &mut limits);
            self.heed_give_ups(run, scope);
            self.tell_given_up(run);
            self.heed_retries(run);
            self.tell_waves(run);
            run.calls.begin(scope);
            self.keep_foresight(run, Duration::ZERO);
            if self.store.cancel_asked(self.plan).unwrap_or(false) {
                self.stop.stop();
            }
            let mut slept = Duration::ZERO;
            while slept < SAMPLE_INTERVAL && !over.is_set() {
                std::thread::sleep(LOOK);
                slept += LOOK;
            }
        }
    }

    /// Keeps what was foreseen with the run, once it is there, and has the schedule go by what that goes by.
    fn keep_foresight(&self, run: &Run<'_>, within: Duration) {
        // Without it the report has nothing to compare with.
        let _ = match self.foresight.and_then(|foresight| foresight.take(within)) {
            Some(Foresaw::Before(foreseen)) => {
                run.schedule.heed_rates(run.tenant, &self.site(), &foreseen.known);
                self.store.set_foreseen(self.plan, &foreseen)
            }
            Some(Foresaw::Now(now)) => self.store.set_foreseen_now(self.plan, &now),
            None => Ok(()),
        };
    }

    /// Lets waves go on that somebody said may.
    fn heed_words(&self, run: &Run<'_>) {
        if self.waves.is_empty() {
            return;
        }
        // Trouble with the store shows itself elsewhere; the words are looked for again.
        let words = self.store.proceeds(self.plan).unwrap_or_default();
        words.iter().for_each(|wave| run.schedule.proceed(run.tenant, wave, self.clock));
    }

    /// Keeps to limits that were changed by order since the last look.
    fn heed_limits(&self, run: &Run<'_>, now: &mut LimitsInForce) {
        // Trouble with the store shows itself elsewhere; the order is looked for again.
        let Ok(Some(order)) = self.store.limits_order(self.plan) else { return };
        let limits = now.with(&order);
        if limits == *now {
            return;
        }
        let changed = now.changes_to(&limits);
        (self.heed_limits)(&limits);
        if (limits.disks, limits.vms_per_host) != (now.disks, now.vms_per_host) {
            let is_alone = self.schedule.is_none();
            let relimited = Relimited { site: &self.site(), vms: run.todo, is_alone };
            run.schedule.limit(run.tenant, &limits, &relimited);
        }
        // A note that cannot be kept is a loss to the report only.
        let _ = self.store.add_event(self.plan, None, None, "limits", &format!("limits changed: {changed}"));
        *now = limits.clone();
        self.observer.event(&Event::LimitsChanged { changed, limits });
    }

    /// Tells what became of waves since the last look.
    fn tell_waves(&self, run: &Run<'_>) {
        if self.waves.is_empty() {
            return;
        }
        let mut told = run.waves.lock().unwrap_or_else(PoisonError::into_inner);
        let waves = run.schedule.waves(run.tenant, self.clock);
        // In this order: a stop is there before the VMs end that it stops.
        let is_stopped = self.stop.is_set();
        for event in told.news(&waves, is_stopped) {
            if let Some(text) = wave_words(self.plan, &event) {
                // A note that cannot be kept is a loss to the report only.
                let _ = self.store.add_event(self.plan, None, None, "wave", &text);
            }
            self.observer.event(&event);
        }
    }

    /// Keeps what VMs wait for, where that is news.
    fn keep_waits(&self, run: &Run<'_>, told: &mut Waits) {
        let mut next = told.clone();
        let news = next.look(run.schedule.waits(run.tenant, self.clock), self.clock.now_ms());
        let of = |(at, wait): &(usize, Wait)| (run.todo[*at].vm.id.as_str(), wait.to_string());
        let news: Vec<(&str, String)> = news.iter().map(of).collect();
        // Those that could not be kept are told again with the next look.
        if news.is_empty() || self.store.add_waits(self.plan, &news).is_ok() {
            *told = next;
        }
    }

    /// What came of it, by what the VMs' ends say: the state may not have it.
    fn end(&self, before: &Before, mut ends: Vec<VmEnd>) -> RunOutcome {
        let count = |state: VmState| ends.iter().filter(|end| end.state == state).count();
        let ended: HashSet<&str> = ends.iter().map(|end| end.name.as_str()).collect();
        let left = before.not_cleaned_up.iter().filter(|name| !ended.contains(name.as_str())).count();
        let done = before.done + count(VmState::Done);
        let not_cleaned_up = left + count(VmState::NotCleanedUp);
        let is_failure = |cause| !matches!(cause, Some(Cause::Cancelled | Cause::Skipped));
        let given_up = before.given_up + count(VmState::Cancelled);
        let counts = |end: &&VmEnd| {
            !end.state.has_arrived() && end.state != VmState::Cancelled && is_failure(end.cause)
        };
        let cause = |end: &VmEnd| (end.name.clone(), end.cause.unwrap_or(Cause::Internal));
        let failed: Vec<_> = ends.iter().filter(counts).map(cause).collect();
        let unfinished = self.vms.len() - done - not_cleaned_up - failed.len() - given_up;
        let skipped = count(VmState::Skipped);
        let unkept = ends.iter_mut().find_map(|end| end.unkept.take());
        let mut outcome = RunOutcome {
            done,
            not_cleaned_up,
            failed,
            unfinished,
            skipped,
            ends,
            quarantine: Vec::new(),
            unkept,
        };
        // A plan whose state lacks the end of a VM is not over.
        let is_over = outcome.is_complete() && outcome.unkept.is_none();
        let state = if is_over { PlanState::Done } else { PlanState::Incomplete };
        let kept = self.store.end_plan(self.plan, state);
        outcome.unkept = outcome.unkept.or(kept.err());
        self.observer.event(&Event::PlanEnded {
            plan: self.plan.into(),
            done,
            not_cleaned_up,
            failed: outcome.failed.len(),
            cancelled: given_up,
            unfinished,
        });
        outcome
    }
}

/// What earlier runs of the plan came to.
struct Before {
    /// VMs that arrived and are not looked at again.
    done: usize,
    /// VMs that were given up by order, and are left alone.
    given_up: usize,
    /// Names of those of which only the clean-up is left.
    not_cleaned_up: Vec<String>,
}

/// What earlier runs left.
struct Left<'a> {
    vms: &'a [VmRow],
    /// How far they were with disks.
    disks: &'a [ProgressRow],
}

/// What a run has of its schedule.
pub(crate) struct Run<'a> {
    pub(crate) schedule: &'a Schedule,
    pub(crate) tenant: Tenant,
    pub(crate) todo: &'a [&'a PlannedVm],
    pub(crate) context: &'a Context<'a>,
    /// What was told of waves.
    waves: Mutex<Told>,
    /// What is called around them.
    pub(crate) calls: WaveCalls<'a>,
    /// How VMs ended.
    pub(crate) ends: &'a Mutex<Vec<VmEnd>>,
    /// Whether failed VMs are tried again by order.
    pub(crate) takes_retries: AtomicBool,
    /// Which VMs are given up by order.
    pub(crate) give_ups: GiveUps,
}

fn wave_words(plan: &str, event: &Event) -> Option<String> {
    match event {
        Event::WaveStarted { wave, vms } => Some(format!("wave {wave} began, {}", count(*vms, "VM"))),
        Event::WaveHeld { wave, by, failed } => {
            let failed = count(*failed, "VM");
            Some(format!("wave {wave} waits for `drover proceed {plan} {by}`: {failed} of {by} failed"))
        }
        Event::WaveEnded { wave, arrived, failed } => {
            let arrived = count(*arrived, "VM");
            Some(format!("wave {wave} is over: {arrived} arrived, {failed} failed or did not begin"))
        }
        _ => None,
    }
}

/// Takes a VM through its journey, unless `begins` says that it does not begin.
fn run_vm(
    run: &Run<'_>,
    at: usize,
    slots: Slots<'_>,
    begins: impl FnOnce(&StopSignal) -> Result<bool, EngineError>,
) {
    let vm = run.todo[at];
    let stop = &run.give_ups.begins(at, run.context.stop);
    let context = &Context { stop, ..*run.context };
    // A defect that shows with one VM must not take the others along. What it was doing stays as a crash
    // would leave it, and a resume sees to it.
    let mut journey = Journey::new(context, vm, slots);
    let travel = AssertUnwindSafe(|| {
        match begins(stop) {
            Ok(true) => {}
            Ok(false) => return None,
            Err(error) => return Some(journey.end_unbegun(error)),
        }
        if let Some(why) = slots.take_given_up() {
            return Some(journey.end_given_up(why));
        }
        loop {
            let end = journey.run();
            if end.is_some() {
                return end;
            }
            let again = slots.take(context.stop);
            journey = Journey::new(context, vm, slots);
            if let Err(error) = again {
                return Some(journey.end_unbegun(error));
            }
        }
    });
    let end = match catch_unwind(travel) {
        Ok(Some(end)) => end,
        // Its slots are others', and it comes again in another thread, or never.
        Ok(None) => return,
        Err(panic) => {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
            // What panicked, an observer or a provider, may panic again.
            let told = catch_unwind(AssertUnwindSafe(|| journey.end_in_panic(what)));
            told.unwrap_or_else(|_| VmEnd {
                name: vm.target_name.clone(),
                state: VmState::Failed,
                cause: Some(Cause::Internal),
                error: Some(format!("internal error: {what}")),
                advice: None,
                standing: None,
                unkept: None,
            })
        }
    };
    // It may be tried again as soon as its end is known: nothing of this try is held then.
    drop(journey);
    let mut ends = run.ends.lock().unwrap_or_else(PoisonError::into_inner);
    // One that is given up from now on has ended before.
    let is_to_be_undone = run.give_ups.is_ordered(at) && !end.state.has_arrived();
    if is_to_be_undone {
        drop(ends);
        run.put_end(at, give_up(run.context, vm, Was::AtWork));
    } else {
        ends.push(end);
        drop(ends);
    }
    slots.finish(Ended::Failed);
    slots.schedule.ended(run.tenant);
}

/// Held while a process runs a plan; let go by the kernel when the process dies, however it dies.
pub(crate) struct PlanLock {
    _file: File,
}

impl PlanLock {
    /// Process that holds the lock of a plan, if one does.
    pub(crate) fn holder(store: &Store, plan: &str) -> Result<Option<String>, EngineError> {
        match PlanLock::take(store, plan) {
            Ok(_) => Ok(None),
            Err(EngineError::Running { pid, .. }) => Ok(Some(pid)),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn take(store: &Store, plan: &str) -> Result<PlanLock, EngineError> {
        let folder = store.folder();
        let path = folder.join(format!("{plan}.lock"));
        let failed = |error: std::io::Error| {
            EngineError::from(
                ProviderError::new(Cause::State, format!("lock file {}", path.display())).because(error),
            )
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        if let Err(error) = drover_disk::lock_file(&file) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(failed(error.into()));
            }
            let mut pid = String::new();
            file.read_to_string(&mut pid).map_err(failed)?;
            return Err(EngineError::Running { plan: plan.into(), pid: pid.trim().into() });
        }
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(PlanLock { _file: file })
    }
}
