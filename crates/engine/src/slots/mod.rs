//! Slots of the source: who holds them, who waits for them.
//!
//! A [`Schedule`] may be shared by several runs of one process: they stand in one order then, by VM. With a folder it shares
//! the VM slots of hosts ([`claims`]) and the room at targets ([`rooms`]) with other processes, too.

mod again;
mod claims;
mod job;
mod learned;
mod leave;
mod limits;
mod park;
mod rooms;
mod targets;
mod undone;
mod why;
mod with_room;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drover_mover::{Progress, StopSignal};
use drover_plan::{Limits, PlannedVm};
use drover_schedule::{
    Budgets, Ended, HostLimits, JobId, Quarantined, Resource, Scheduler, Tenant, TenantLimits, Usage, Wait,
    WaveUsage,
};
use drover_types::Wave;

pub(crate) use self::again::Again;
use self::claims::{Claim, Claims};
use self::job::{Left, key_of, target_key, target_label};
pub use self::job::{budgets_of, host_limits};
use self::learned::Learned;
pub(crate) use self::limits::Relimited;
pub(crate) use self::rooms::{Answer, Asks, Room, Rooms};
use self::why::{Stays, TRY_WAVES};
use self::with_room::Asking;
use crate::clock::Clock;
use crate::error::{Cause, EngineError};
use crate::itinerary::Fault;
use crate::store::{KnownRates, ProgressRow, VmRow};

/// The schedule of one or several runs, which all their VMs share.
pub struct Schedule {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    scheduler: Scheduler,
    vms: BTreeMap<JobId, One>,
    runs: BTreeMap<Tenant, Run>,
    next_tenant: u64,
    claims: Option<Claims>,
    rooms: Option<Rooms>,
    /// Hosts of which other processes hold slots that this one wanted.
    short: BTreeSet<String>,
    /// VMs that found no room at their targets when they asked last.
    no_room: BTreeSet<JobId>,
    /// VMs that are about to begin and have no answer yet whether there is room at their targets.
    asking: BTreeMap<JobId, Asking>,
    /// VMs that were called up to move over: they wait for their slots, or have them and wait for others that move over.
    called_up: BTreeSet<JobId>,
    /// VMs that failed and wait until they can be undone.
    undone: BTreeSet<JobId>,
    learned: Learned,
}

/// VMs that are called up, for each that may move over at once.
const CALLED_UP: usize = 2;

/// A VM.
struct One {
    tenant: Tenant,
    /// Its place in its run.
    at: usize,
    host: String,
    /// Disk slots that it was admitted with, while it is.
    admitted: Option<usize>,
    /// Whether it has a thread.
    has_begun: bool,
    /// An earlier run left something of it, which has to be seen to also if it does not begin in this one.
    is_left: bool,
    /// It is given up by order: for its wave and its group it is as if it had never been there.
    is_left_out: bool,
    /// Why it does not begin, if it has a thread only to see to what was left.
    given_up: Option<EngineError>,
    /// Its slot among those that processes share.
    claim: Option<Claim>,
    /// What is promised to it at its target.
    room: Option<Room>,
}

impl One {
    /// One that waits.
    fn new(tenant: Tenant, at: usize, site: &str, vm: &PlannedVm, is_left: bool) -> One {
        let host = key_of(site, &vm.vm.host_id);
        let (admitted, has_begun, is_left_out, given_up, claim, room) =
            (None, false, false, None, None, None);
        One { tenant, at, host, admitted, has_begun, is_left, is_left_out, given_up, claim, room }
    }
}

/// A run.
#[derive(Default)]
struct Run {
    /// VMs that are to have a thread.
    ready: VecDeque<JobId>,
    /// VMs that have none.
    not_begun: BTreeSet<JobId>,
    /// Threads that are not over.
    threads: usize,
    /// VMs that nothing was done with, and that are still to be told.
    given_up: Vec<GivenUp>,
    /// Why waves do not begin: what is called before them failed.
    shut: BTreeMap<String, Shut>,
}

/// Why what is called before a wave failed.
struct Shut {
    cause: Cause,
    text: String,
    advice: String,
}

/// A VM that never began, in no run.
pub(crate) struct GivenUp {
    /// Its place in its run.
    pub(crate) at: usize,
    pub(crate) why: EngineError,
}

/// What is in use of what VMs share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// Hosts at which a VM is at work or waits, by their names.
    pub hosts: Vec<Usage>,
    /// Disks that are copied, in all.
    pub disks: u32,
    /// Disks that may be.
    pub disks_max: u32,
    /// VMs that wait, by what they wait for ([`Wait::kind`]).
    pub waits: BTreeMap<&'static str, u64>,
}

/// What a run brings to a schedule.
pub(crate) struct Joining<'a> {
    /// Its source, which tells its hosts from those of others.
    pub(crate) site: &'a str,
    pub(crate) vms: &'a [&'a PlannedVm],
    /// What earlier runs left of them.
    pub(crate) left: &'a [VmRow],
    /// How far these were with their disks.
    pub(crate) copied: &'a [ProgressRow],
    pub(crate) waves: &'a [Wave],
    /// Those of them before which something is to be called.
    pub(crate) to_call: &'a [&'a str],
    pub(crate) limits: &'a Limits,
}

/// Folder, beside the state, by which processes share the VM slots of hosts.
const HOSTS_FOLDER: &str = "hosts";

/// Folder, beside the state, by which processes share the room at targets.
const ROOM_FOLDER: &str = "room";

/// A stop is noticed within this time.
const TICK: Duration = Duration::from_millis(200);

impl Schedule {
    /// One with these budgets that shares the VM slots of hosts, and the room at targets, with other processes of the same state
    /// folder.
    ///
    /// # Errors
    /// If the folder cannot be used.
    pub fn of_state(budgets: Budgets, state: &Path) -> io::Result<Schedule> {
        let schedule = Schedule::new(budgets);
        let claims = Claims::new(&state.join(HOSTS_FOLDER))?;
        let rooms = Rooms::new(&state.join(ROOM_FOLDER))?;
        let mut state = schedule.lock();
        (state.claims, state.rooms) = (Some(claims), Some(rooms));
        drop(state);
        Ok(schedule)
    }

    /// An empty one with these budgets.
    pub fn new(budgets: Budgets) -> Schedule {
        let state = State {
            scheduler: Scheduler::new(budgets),
            vms: BTreeMap::new(),
            runs: BTreeMap::new(),
            next_tenant: 0,
            claims: None,
            rooms: None,
            short: BTreeSet::new(),
            no_room: BTreeSet::new(),
            asking: BTreeMap::new(),
            called_up: BTreeSet::new(),
            undone: BTreeSet::new(),
            learned: Learned::default(),
        };
        Schedule { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// The budgets that all its runs share.
    pub fn budgets(&self) -> Budgets {
        self.lock().scheduler.budgets().clone()
    }

    /// Adds the VMs of a run and its waves, all waiting, within the run's own limits. Each host gets the disks that its NFC server
    /// takes; what was given up is tried again.
    pub(crate) fn join(&self, joining: &Joining<'_>, clock: &dyn Clock) -> Tenant {
        let Joining { site, vms, left, copied, waves, to_call, limits } = *joining;
        let mut state = self.lock();
        let tenant = Tenant(state.next_tenant);
        state.next_tenant += 1;
        for vm in vms {
            let host = key_of(site, &vm.vm.host_id);
            let limits = host_limits(state.scheduler.host_limits(&host), vm);
            state.scheduler.set_host(&host, limits);
            state.scheduler.try_again(&host);
            state.scheduler.set_label(&host, vm.host_name.as_deref().unwrap_or(&vm.vm.host_id));
            for name in vm.disks.iter().map(|disk| disk.disk.datastore.as_str()) {
                state.scheduler.set_datastore_label(&key_of(site, name), name);
                state.scheduler.try_datastore_again(&key_of(site, name));
            }
            for disk in &vm.disks {
                let target = target_key(vm, disk);
                state.scheduler.set_target_label(&target, &target_label(vm, disk));
                state.scheduler.try_target_again(&target);
            }
        }
        state.learn(site, vms);
        let own = TenantLimits::within(&budgets_of(limits), state.scheduler.budgets());
        state.scheduler.set_tenant(tenant, own);
        state.scheduler.set_waves(tenant, waves);
        to_call.iter().for_each(|wave| state.scheduler.call_before(tenant, wave));
        let left = Left::new(left, copied);
        let jobs = vms.iter().map(|vm| left.job(tenant, vm, site)).collect();
        let ids = state.scheduler.add(tenant, jobs, now(clock));
        let one = |(at, (vm, id)): (usize, (&&PlannedVm, &JobId))| {
            (*id, One::new(tenant, at, site, vm, left.is_begun(vm)))
        };
        state.vms.extend(vms.iter().zip(&ids).enumerate().map(one));
        state.runs.insert(tenant, Run { not_begun: ids.into_iter().collect(), ..Run::default() });
        tenant
    }

    /// The order of VMs goes by what earlier runs measured, where this one did not measure better.
    pub(crate) fn heed_rates(&self, tenant: Tenant, site: &str, known: &KnownRates) {
        let mut state = self.lock();
        let hosts: BTreeSet<String> =
            state.vms.values().filter(|one| one.tenant == tenant).map(|one| one.host.clone()).collect();
        for host in hosts {
            let limits = state.scheduler.host_limits(&host);
            state.scheduler.set_host(&host, HostLimits { rate: limits.rate.or(known.host), ..limits });
        }
        for (datastore, rate) in &known.datastores {
            state.scheduler.set_datastore_rate(&key_of(site, datastore), *rate);
        }
    }

    /// Ends a run, all of whose threads are over.
    pub(crate) fn leave(&self, tenant: Tenant, clock: &dyn Clock) {
        let mut state = self.lock();
        state.scheduler.withdraw(tenant, now(clock));
        let ids: Vec<JobId> =
            state.vms.iter().filter(|(_, one)| one.tenant == tenant).map(|(id, _)| *id).collect();
        for id in ids {
            state.end(id, Ended::Failed, now(clock));
            state.vms.remove(&id);
        }
        state.scheduler.forget(tenant);
        state.runs.remove(&tenant);
        state.forget_hosts();
        self.changed.notify_all();
    }

    /// Waits for a VM of a run that is to be begun, and gives its place; `None` when all have ended, or the run is to stop
    /// and those that were begun have ended. VMs that wait to go on are let in on the way, those of other runs, too.
    pub(crate) fn next(
        &self,
        tenant: Tenant,
        stop: &StopSignal,
        clock: &dyn Clock,
    ) -> Option<(JobId, usize)> {
        let mut state = self.lock();
        loop {
            if stop.is_set() {
                state.drop_not_begun(tenant, now(clock));
            }
            if state.admit(now(clock)) {
                self.changed.notify_all();
            }
            let run = state.runs.get_mut(&tenant)?;
            if let Some(id) = run.ready.pop_front() {
                run.not_begun.remove(&id);
                run.threads += 1;
                let one = state.vms.get_mut(&id)?;
                one.has_begun = true;
                return Some((id, one.at));
            }
            if run.threads == 0 && run.not_begun.is_empty() {
                return None;
            }
            state = self.wait(state);
        }
    }

    /// The thread of a VM is over.
    pub(crate) fn ended(&self, tenant: Tenant) {
        if let Some(run) = self.lock().runs.get_mut(&tenant) {
            run.threads -= 1;
        }
        self.changed.notify_all();
    }

    /// VMs of a run that were never begun, since this was asked last.
    pub(crate) fn take_given_up(&self, tenant: Tenant) -> Vec<GivenUp> {
        self.lock().runs.get_mut(&tenant).map(|run| std::mem::take(&mut run.given_up)).unwrap_or_default()
    }

    /// What each VM of a run waits for, by its place.
    pub(crate) fn waits(&self, tenant: Tenant, clock: &dyn Clock) -> Vec<(usize, Wait)> {
        let state = self.lock();
        let own = state.vms.iter().filter(|(_, one)| one.tenant == tenant);
        let wait = |(id, one): (&JobId, &One)| Some((one.at, state.scheduler.wait_of(*id, now(clock))?));
        own.filter_map(wait).collect()
    }

    /// Lets the waves after one go on, whatever of it failed.
    pub(crate) fn proceed(&self, tenant: Tenant, wave: &str, clock: &dyn Clock) {
        if self.lock().scheduler.proceed(tenant, wave, now(clock)) {
            self.changed.notify_all();
        }
    }

    /// Waves of a run whose turn it is once something was called.
    pub(crate) fn waves_to_call(&self, tenant: Tenant, clock: &dyn Clock) -> Vec<String> {
        self.lock().scheduler.waves_to_call(tenant, now(clock))
    }

    /// What is called before a wave was; its VMs do not move in this run if it failed.
    pub(crate) fn called(
        &self,
        tenant: Tenant,
        wave: &str,
        came_of_it: Result<(), &EngineError>,
        clock: &dyn Clock,
    ) {
        let mut state = self.lock();
        if let (Err(error), Some(run)) = (came_of_it, state.runs.get_mut(&tenant)) {
            let advice = error.advice().unwrap_or_else(|| TRY_WAVES.into());
            run.shut.insert(wave.into(), Shut { cause: error.cause(), text: error.chain(), advice });
        }
        state.scheduler.called(tenant, wave, came_of_it.is_ok(), now(clock));
        self.changed.notify_all();
    }

    /// How far the waves of a run are.
    pub(crate) fn waves(&self, tenant: Tenant, clock: &dyn Clock) -> Vec<WaveUsage> {
        self.lock().scheduler.waves(tenant, now(clock))
    }

    /// What is in use now, over all runs.
    pub fn in_use(&self, clock: &dyn Clock) -> InUse {
        let state = self.lock();
        let is_busy = |usage: &Usage| usage.vms > 0 || usage.waiting > 0;
        let named = |usage: Usage| Usage { host: state.scheduler.label(&usage.host), ..usage };
        let mut in_use = InUse {
            hosts: state.scheduler.usage().into_iter().filter(is_busy).map(named).collect(),
            disks: state.scheduler.disks_held(),
            disks_max: state.scheduler.budgets().disks,
            waits: BTreeMap::new(),
        };
        for wait in state.vms.keys().filter_map(|id| state.scheduler.wait_of(*id, now(clock))) {
            *in_use.waits.entry(wait.kind()).or_default() += 1;
        }
        in_use
    }

    /// Hosts, datastores and places at targets of a run because of which VMs failed, of whatever run.
    pub(crate) fn quarantine(&self, tenant: Tenant) -> Vec<Quarantined> {
        let state = self.lock();
        let mut of = state.read_by(tenant);
        of.extend(state.written_by(tenant));
        state.scheduler.quarantine(&of)
    }

    /// What was found by measuring of the hosts and datastores of a run, a line for each: `esx3: 7 disks at once; an 8th gained 1 %`.
    pub(crate) fn found(&self, tenant: Tenant) -> Vec<String> {
        let state = self.lock();
        state.learned.found(&state.read_by(tenant), |resource| match resource {
            Resource::Datastore(name) => format!("datastore {}", state.scheduler.datastore_label(name)),
            Resource::Host(name) => state.scheduler.label(name),
            other => other.to_string(),
        })
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now(clock: &dyn Clock) -> u64 {
    u64::try_from(clock.now_ms()).unwrap_or(0)
}

impl State {
    /// Hosts and datastores that a run reads.
    fn read_by(&self, tenant: Tenant) -> BTreeSet<Resource> {
        let own = || self.vms.iter().filter(|(_, one)| one.tenant == tenant);
        let hosts: BTreeSet<&str> = own().map(|(_, one)| one.host.as_str()).collect();
        let jobs = own().filter_map(|(id, _)| self.scheduler.job(*id));
        let datastores: BTreeSet<&str> =
            jobs.flat_map(|job| &job.disks).map(|disk| disk.datastore.as_str()).collect();
        let hosts = hosts.into_iter().map(|host| Resource::Host(host.into()));
        hosts.chain(datastores.into_iter().map(|it| Resource::Datastore(it.into()))).collect()
    }

    /// Lets in all that fit; true if somebody is to look.
    fn admit(&mut self, now_ms: u64) -> bool {
        self.learned.look(&mut self.scheduler, now_ms);
        for host in std::mem::take(&mut self.short) {
            self.scheduler.set_elsewhere(&host, 0);
        }
        let mut changed = false;
        while let Some(admission) = self.scheduler.next(now_ms) {
            changed |= self.let_in(admission.job, admission.slots as usize, now_ms);
        }
        for (id, ended) in self.scheduler.take_given_up() {
            changed = true;
            let why = self.why(id, ended, Stays::NotBegun);
            let Some(tenant) = self.vms.get(&id).map(|one| one.tenant) else { continue };
            let (Some(one), Some(run)) = (self.vms.get_mut(&id), self.runs.get_mut(&tenant)) else {
                continue;
            };
            if run.not_begun.contains(&id) && one.is_left {
                // One that is given up by order is there already.
                if !run.ready.contains(&id) {
                    one.given_up = Some(why);
                    run.ready.push_back(id);
                }
            } else if run.not_begun.remove(&id) {
                run.given_up.push(GivenUp { at: one.at, why });
            }
        }
        changed
    }

    /// False if another process has the slot of its host.
    fn let_in(&mut self, id: JobId, slots: usize, now_ms: u64) -> bool {
        let Some(one) = self.vms.get_mut(&id) else { return false };
        let usage = self.scheduler.usage_of(&one.host);
        if let Some((claims, usage)) = self.claims.as_ref().zip(usage) {
            one.claim = claims.claim(&one.host, usage.vms_max);
            if one.claim.is_none() {
                self.scheduler.requeue(id, now_ms);
                self.scheduler.set_elsewhere(&one.host, usage.vms_max.saturating_sub(usage.vms - 1));
                self.short.insert(one.host.clone());
                return false;
            }
        }
        one.admitted = Some(slots);
        if !one.has_begun
            && let Some(run) = self.runs.get_mut(&one.tenant)
        {
            run.ready.push_back(id);
        }
        true
    }

    /// Gives back what a VM holds; it holds nothing afterwards.
    fn let_out(&mut self, id: JobId) -> bool {
        let Some(one) = self.vms.get_mut(&id) else { return false };
        one.claim = None;
        one.admitted.take().is_some()
    }

    fn is_held(&self, id: JobId) -> bool {
        self.vms.get(&id).is_some_and(|one| one.admitted.is_some())
    }

    /// Whether a VM is to wait for its slots now, to move over when it has them: no more than are needed to keep those busy that
    /// move over, for meanwhile the slots serve no other VM.
    fn call_up(&mut self, id: JobId) -> bool {
        let tenant = |id: &JobId| self.vms.get(id).map(|one| one.tenant);
        let own = tenant(&id).map_or(u32::MAX, |tenant| self.scheduler.cutovers_of(tenant));
        let most = |cutovers: u32| cutovers.max(1) as usize * CALLED_UP;
        let of_plan = self.called_up.iter().filter(|it| tenant(it) == tenant(&id)).count();
        let has_room = self.called_up.len() < most(self.scheduler.budgets().cutovers) && of_plan < most(own);
        has_room && self.called_up.insert(id)
    }

    /// It may not move over any more, and waits for no slots.
    fn stand_back(&mut self, id: JobId, now_ms: u64) {
        self.called_up.remove(&id);
        self.let_out(id);
        self.scheduler.stand_back(id, now_ms);
    }

    fn end(&mut self, id: JobId, ended: Ended, now_ms: u64) {
        self.let_out(id);
        self.no_room.remove(&id);
        self.asking.remove(&id);
        if let Some(one) = self.vms.get_mut(&id) {
            one.room = None;
            let is_left_out = one.is_left_out && ended != Ended::Arrived;
            self.scheduler.finished(id, if is_left_out { Ended::LeftOut } else { ended }, now_ms);
        }
    }

    fn drop_not_begun(&mut self, tenant: Tenant, now_ms: u64) {
        let Some(run) = self.runs.get_mut(&tenant) else { return };
        run.ready.clear();
        for id in std::mem::take(&mut run.not_begun) {
            self.end(id, Ended::Failed, now_ms);
        }
    }

    /// What plans said of hosts that no VM is left of: the next one may say otherwise.
    fn forget_hosts(&mut self) {
        let used: BTreeSet<&str> = self.vms.values().map(|one| one.host.as_str()).collect();
        let unused = self.scheduler.usage().into_iter().map(|usage| usage.host);
        let unused: Vec<String> = unused.filter(|host| !used.contains(host.as_str())).collect();
        for host in unused {
            let limits = self.scheduler.host_limits(&host);
            self.scheduler.set_host(&host, HostLimits { disks: None, ..limits });
        }
    }

    /// Begins to measure hosts and datastores that are new.
    fn learn(&mut self, site: &str, vms: &[&PlannedVm]) {
        let mut disks: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for vm in vms {
            let (sum, vms) = disks.entry(key_of(site, &vm.vm.host_id)).or_default();
            (*sum, *vms) = (*sum + vm.disks.len(), *vms + 1);
        }
        for (host, (disks, vms)) in disks {
            let Some(usage) = self.scheduler.usage_of(&host) else { continue };
            // As many disks as the VMs have that it may serve at once.
            let start = (usage.vms_max as usize * disks).div_ceil(vms.max(1));
            let max = usage.disks_max.min(self.scheduler.budgets().disks);
            self.learned.begin_host(&host, u32::try_from(start).unwrap_or(u32::MAX), max);
        }
        for disk in vms.iter().flat_map(|vm| &vm.disks) {
            self.learned.begin_datastore(&key_of(site, &disk.disk.datastore));
        }
    }
}

/// What came of waiting for a VM's turn to move over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// It moves over now, with its slots.
    Now,
    /// It waited for as long as it was to.
    NotYet,
    /// What its wave waits for, or its window, came in between while it waited for slots.
    WaveShut,
}

/// The slots of one VM.
#[derive(Clone, Copy)]
pub(crate) struct Slots<'a> {
    pub(crate) schedule: &'a Schedule,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) id: JobId,
}

impl Slots<'_> {
    /// Why the VM does not begin in this run, if it does not: only what an earlier one left of it is to be seen to.
    pub(crate) fn take_given_up(&self) -> Option<EngineError> {
        self.schedule.lock().vms.get_mut(&self.id).and_then(|one| one.given_up.take())
    }

    /// The VM is over. What it still held goes to others.
    pub(crate) fn finish(&self, ended: Ended) {
        self.schedule.lock().end(self.id, ended, now(self.clock));
        self.schedule.changed.notify_all();
    }

    /// The VM failed because of its host, or of a datastore. Gives whether it is tried again; until then it holds what it held.
    pub(crate) fn host_failed(&self, fault: Fault) -> bool {
        let mut state = self.schedule.lock();
        let disks = state.scheduler.job(self.id).map(|job| job.disks.as_slice()).unwrap_or_default();
        let datastore = match fault {
            Fault::Host | Fault::Target { .. } => None,
            Fault::Disk(disk) => disks.get(disk).map(|disk| disk.datastore.clone()),
        };
        let again = state.scheduler.is_running(self.id)
            && state.scheduler.host_failed(self.id, datastore.as_deref(), now(self.clock));
        drop(state);
        self.schedule.changed.notify_all();
        again
    }

    /// What failed because of its host is undone. Gives when it is tried again; [`Slots::take`] waits for that.
    pub(crate) fn retry(&self) -> u64 {
        let mut state = self.schedule.lock();
        state.let_out(self.id);
        let at_ms = state.scheduler.retry(self.id, now(self.clock));
        drop(state);
        self.schedule.changed.notify_all();
        at_ms
    }

    /// Disks that may be open at once.
    pub(crate) fn disks(&self) -> usize {
        let state = self.schedule.lock();
        let admitted = state.vms.get(&self.id).and_then(|one| one.admitted);
        admitted.unwrap_or_else(|| state.scheduler.disks_at_once(self.id) as usize).max(1)
    }

    /// One disk, by its place in the plan, is copied: its slot goes to others unless the VM has more disks.
    pub(crate) fn disk_finished(&self, disk: usize) {
        self.schedule.lock().scheduler.disk_finished(self.id, disk);
        self.schedule.changed.notify_all();
    }

    /// A disk, by its place in the plan, takes room at the target from now on: what this tells is written is promised no more.
    pub(crate) fn fills(&self, disk: usize, progress: &Arc<Progress>) {
        let mut state = self.schedule.lock();
        if let Some(room) = state.vms.get_mut(&self.id).and_then(|one| one.room.as_mut()) {
            room.fill(disk, progress.clone());
        }
    }

    /// What a disk, by its place in the plan, reads counts for its host and its datastore until this is dropped.
    pub(crate) fn reads(&self, disk: Option<usize>, progress: &Arc<Progress>) -> impl Drop + use<'_> {
        let (progress, schedule, id) = (progress.clone(), self.schedule, self.id);
        let mut state = schedule.lock();
        let host = state.vms.get(&id).map(|one| Resource::Host(one.host.clone()));
        let disk = disk.and_then(|disk| state.scheduler.job(id)?.disks.get(disk));
        let datastore = disk.map(|disk| Resource::Datastore(disk.datastore.clone()));
        let through: Vec<Resource> = host.into_iter().chain(datastore).collect();
        state.learned.enter(&through, &progress);
        crate::parallel::OnDrop::new(move || schedule.lock().learned.leave(&through, &progress))
    }

    /// Whether the VM was let in because an earlier run was cut short in the middle of its move.
    pub(crate) fn goes_on(&self) -> bool {
        self.schedule.lock().scheduler.goes_on(self.id)
    }

    /// The guest runs at the source although an earlier run had switched it off. A warm VM goes on with its passes; see
    /// [`Slots::begin_anew`] for one that is to be shut down now.
    pub(crate) fn takes_back(&self) {
        self.schedule.lock().scheduler.takes_back(self.id);
    }

    /// The same, and waits until the VM may begin like those that never did.
    ///
    /// # Errors
    /// If the run is to stop, or it may not begin any more.
    pub(crate) fn begin_anew(&self, stop: &StopSignal) -> Result<(), EngineError> {
        let mut state = self.schedule.lock();
        if state.let_out(self.id) && state.scheduler.is_running(self.id) {
            state.scheduler.begin_anew(self.id, now(self.clock));
        }
        drop(state);
        self.schedule.changed.notify_all();
        self.take(stop)
    }

    /// Waits until they are there again.
    ///
    /// # Errors
    /// If the run is to stop, the host was given up, or its wave is over and its guest is not down.
    pub(crate) fn take(&self, stop: &StopSignal) -> Result<(), EngineError> {
        let mut state = self.schedule.lock();
        if state.is_held(self.id) {
            return Ok(());
        }
        if state.scheduler.is_parked(self.id) {
            state.scheduler.wake(self.id, false, now(self.clock));
        }
        loop {
            if state.admit(now(self.clock)) {
                self.schedule.changed.notify_all();
            }
            if state.is_held(self.id) {
                return Ok(());
            }
            if stop.is_set() {
                return Err(EngineError::Cancelled);
            }
            if let Some(ended) = state.scheduler.ended(self.id) {
                return Err(state.why(self.id, ended, Stays::AtItsSource));
            }
            let wait = state.scheduler.wave_wait(self.id, now(self.clock));
            wait.map_err(|ended| state.why(self.id, ended, Stays::AtItsSource))?;
            state = self.schedule.wait(state);
        }
    }

    /// Whether it would move over if its wave let it: what that waits for is told.
    pub(crate) fn await_wave(&self, yes: bool) {
        self.schedule.lock().scheduler.await_wave(self.id, yes);
    }

    /// What keeps the VM from moving over for the sake of its wave.
    ///
    /// # Errors
    /// If it never may.
    pub(crate) fn wave_wait(&self) -> Result<Option<Wait>, EngineError> {
        let state = self.schedule.lock();
        let wait = state.scheduler.wave_wait(self.id, now(self.clock));
        wait.map_err(|ended| state.why(self.id, ended, Stays::AtItsSource))
    }

    /// Waits until the VM moves over: for those of its group and wave, until fewer guests are down at once, and for its slots, which
    /// it holds from before the shutdown on. Until it has these, it keeps no other from moving over; once it has, it is the next. A
    /// moment is in milliseconds since 1970; a VM that was let wait until then keeps its place among those that wait.
    ///
    /// # Errors
    /// If the run is to stop, or it never may.
    pub(crate) fn take_turn(&self, until_ms: i64, stop: &StopSignal) -> Result<Turn, EngineError> {
        let turn = self.wait_for_turn(until_ms, stop);
        if self.schedule.lock().called_up.remove(&self.id) {
            self.schedule.changed.notify_all();
        }
        turn
    }

    fn wait_for_turn(&self, until_ms: i64, stop: &StopSignal) -> Result<Turn, EngineError> {
        let (id, mut state) = (self.id, self.schedule.lock());
        loop {
            if state.admit(now(self.clock)) {
                self.schedule.changed.notify_all();
            }
            if stop.is_set() {
                state.scheduler.cutover_over(id);
                return Err(EngineError::Cancelled);
            }
            let now_ms = now(self.clock);
            let never = state.scheduler.ended(id).or_else(|| state.scheduler.never_moves_over(id, now_ms));
            if let Some(ended) = never {
                return Err(state.why(id, ended, Stays::AtItsSource));
            }
            let (is_parked, is_held) = (state.scheduler.is_parked(id), state.is_held(id));
            // One that waits for its slots does not ask: others would wait for it.
            if (is_parked || is_held) && state.scheduler.may_move_over(id, now_ms).is_ok() {
                if is_held {
                    // What it may was asked under the same lock.
                    let _ = state.scheduler.ask_cutover(id, now_ms);
                    return Ok(Turn::Now);
                }
                state.scheduler.pause_cutover(id);
                if state.call_up(id) {
                    state.scheduler.wake(id, true, now_ms);
                    continue;
                }
            }
            if !is_parked && state.scheduler.is_kept_by_order(id, now_ms) {
                state.stand_back(id, now_ms);
                self.schedule.changed.notify_all();
                let wait = state.scheduler.wave_wait(id, now_ms);
                if wait.is_ok_and(|wait| wait.is_some()) {
                    state.scheduler.cutover_over(id);
                    return Ok(Turn::WaveShut);
                }
                continue;
            }
            if is_parked && self.clock.now_ms() >= until_ms {
                state.scheduler.pause_cutover(id);
                return Ok(Turn::NotYet);
            }
            // While others move over, one that has its slots keeps them: else it would have to find both free at one moment.
            state = self.schedule.wait(state);
        }
    }

    /// It was let move over, and does not: it asks anew.
    pub(crate) fn drop_cutover(&self) {
        self.schedule.lock().scheduler.cutover_over(self.id);
        self.schedule.changed.notify_all();
    }
}
