//! Runs a plan, goes on with it and gives it up: for the commands and for the daemon.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_agent::limits::{DayLimits, Sharers};
use drover_copy::RetryPolicy;
use drover_engine::{
    Board, Cause, EngineError, GivenUp, GoingOn, Leave, LimitsInForce, Observer, PlanRow, PlanState,
    RunFacts, RunOutcome, Runner, Schedule, SourceProvider, Store, SystemClock, TargetProvider, VmRow,
    VmState, chain, others_have,
};
use drover_landing::{PlanPolicy, PlanTarget, found};
use drover_log::log;
use drover_mover::{MemoryBudget, StopSignal, TransferOptions};
use drover_plan::{Limits, NAMES_SHOWN_MAX, Others, PlannedVm, Problem, as_begun};
use drover_source::{Judge, PlanSource, SharedReads, hide_what_passes_see_to, inventories};
use drover_types::inventory::{About, Inventory};
use drover_types::{count, some_of};

use crate::commands::plan;
use crate::evidence;
use crate::exit::{Exit, Failure, of_cause};
use crate::hooks::Outside;
use crate::landing;
use crate::log::Logged;
use crate::plan_file::{self, PlanFile};
use crate::source::{source_of, source_to_give_up};
use crate::state::state_folder;
use crate::traces::{self, Traced};

/// How long giving up waits for whoever runs the plan.
const CANCEL_WAIT: Duration = Duration::from_secs(120);

/// Where a run says what it has to say.
pub trait Words: Sync {
    /// A line.
    fn say(&self, line: &str);
    /// What is wrong with the plan, which has these VMs.
    fn problems(&self, file: &Path, problems: &[Problem], vms: &[PlannedVm]);
    /// What goes to another site, several lines.
    fn site(&self, summary: &str);
}

/// What runs happen in.
#[derive(Clone, Copy)]
pub struct Setting<'a> {
    pub store: &'a Store,
    /// The state folder, if it was named.
    pub state: Option<&'a Path>,
    pub stop: &'a StopSignal,
    pub words: &'a dyn Words,
    /// What the plan may do, where it is somebody else's.
    pub policy: Option<&'a PlanPolicy>,
    /// The schedule that it shares with other plans; absent: one of its own.
    pub schedule: Option<&'a Arc<Schedule>>,
    /// The buffer memory that it shares with other plans, its own within it; absent: only its own.
    pub memory: Option<&'a MemoryBudget>,
    /// What all plans of this process may read of their sources; absent: as much as each may by itself.
    pub reads: Option<&'a SharedReads>,
    /// The one VM that is meant, by what tells it from others, where the plan was made for it.
    pub meant: Option<&'a Meant>,
    /// How many runs share the plan's `rate_limit`.
    pub sharers: &'a Sharers,
    /// As of [`Runner`].
    pub leave: &'a Leave<'a>,
}

/// A VM of a source, by what stays the same.
#[derive(Clone, Debug)]
pub struct Meant {
    /// The source's instance UUID.
    pub source: String,
    /// The VM's id there.
    pub id: String,
    /// Its instance UUID.
    pub vm: String,
}

impl Meant {
    /// Refuses a source that is another.
    pub fn check_source(&self, about: &About) -> Result<(), Failure> {
        let found = &about.instance_uuid;
        if *found == self.source {
            return Ok(());
        }
        let what = format!("the source is {found}, and {} is meant", self.source);
        Err(Failure::new(Exit::Source, what).advise("nothing was touched; see whose address it is now"))
    }

    /// Refuses a plan that moves anything but this VM.
    pub fn check_alone(&self, vms: &[PlannedVm]) -> Result<(), Failure> {
        match vms {
            [vm] if vm.vm.id == self.id && vm.vm.instance_uuid == self.vm => Ok(()),
            _ => {
                let names: Vec<&str> = vms.iter().take(5).map(|vm| vm.vm.name.as_str()).collect();
                let what = format!(
                    "the plan moves {} ({}), and {} alone is meant",
                    count(vms.len(), "VM"),
                    names.join(", "),
                    self.id
                );
                Err(Failure::new(Exit::Plan, what).advise("nothing was touched; see who changed the plan"))
            }
        }
    }

    /// Refuses a source that is another, and a VM that is another under its id.
    pub fn check(&self, inventory: &Inventory) -> Result<(), Failure> {
        self.check_source(&inventory.about)?;
        let refused = |what: String| {
            Err(Failure::new(Exit::Source, what).advise("nothing was touched; see what became of it"))
        };
        match inventory.vms.iter().find(|vm| vm.id == self.id) {
            Some(vm) if vm.instance_uuid == self.vm => Ok(()),
            Some(vm) => refused(format!("{} is now {}, and {} is meant", self.id, vm.instance_uuid, self.vm)),
            None => refused(format!("the source has no VM {}", self.id)),
        }
    }
}

/// A plan that may be run: its source was asked, and nothing was touched.
pub struct Prepared {
    file: PlanFile,
    facts: RunFacts,
    vms: Vec<PlannedVm>,
    provider: PlanSource,
    target: PlanTarget,
    /// What source and target keep to.
    rate_limit: DayLimits,
    /// Of VMs that stop themselves alone.
    judge: Option<Judge>,
}

impl Prepared {
    /// Asks the source of a plan, lays the plan over what it has, and looks whether it can be carried out: with the VMs that
    /// an earlier run began with, and with `others`. VMs that were given up are not looked at.
    pub fn new(
        mut file: PlanFile,
        others: Others,
        start: bool,
        setting: &Setting<'_>,
    ) -> Result<Prepared, Failure> {
        let Setting { store, state, stop, words, policy, meant, sharers, .. } = *setting;
        policy.map_or(Ok(()), |policy| policy.check_plan(&file.plan))?;
        let mut provider = source_of(&file, state)?;
        keep_to_order(&mut file, store, words)?;
        let rate_limit = DayLimits::new(file.plan.target.rate_limit.clone());
        provider.stop_when(stop);
        provider.hold_back(&file.plan, &rate_limit, setting.reads, stop, |words| crate::out::say(words));
        let read = provider.shared_inventory()?;
        meant.map_or(Ok(()), |meant| meant.check(&read.inventory))?;
        // Before all VMs but the plan's are left out.
        provider.find_proxies(&file.plan, &read.inventory);
        let begun = drover_engine::begun(store, &file.plan.name, others)?;
        // One that ended before it entered its VMs began with none.
        let others = if begun.is_empty() { Others::Selected } else { others };
        let (resolution, inventory) = inventories::copied(read, |inventory| {
            as_begun(inventory, &begun, others);
            hide_what_passes_see_to(&file.plan, store, inventory)?;
            Ok::<_, Failure>(plan::lay_over(&file, inventory))
        });
        provider.warnings().iter().for_each(|warning| words.say(&format!("warning: {warning}")));
        let mut resolution = resolution?;
        let left_alone = drover_engine::left_alone(store, &file.plan.name)?;
        resolution.vms.retain(|vm| !left_alone.contains(&vm.vm.id));
        let mut going_on = match meant {
            // It is alone, and whoever meant it goes by what it is refused for.
            Some(_) => GoingOn::default(),
            None => GoingOn::of(store, &file.plan.name, &file.text, others, &resolution.vms)?,
        };
        plan::judge_here(&file, &provider, &inventory, &mut resolution);
        found::recall(&state_folder(state), &mut resolution.vms);
        policy.map_or(Ok(()), |policy| policy.check_vms(&file.plan, &resolution.vms))?;
        if resolution.is_ok() {
            meant.map_or(Ok(()), |meant| meant.check_alone(&resolution.vms))?;
        }
        resolution.vms.iter_mut().for_each(|vm| vm.start |= start);
        let target = landing::shared_target_of(&file, &inventory.about, state, stop, &rate_limit, sharers);
        target.site().map_or(Ok(()), |site| site?.dial())?;
        let site = plan::judge(&file, &mut resolution, &begun, (&provider, &target), false);
        resolution.problems.extend(others_have(&file.plan, &resolution.vms, &begun, store));
        for told in [plan::told_hosts(&resolution, false), site].iter().filter(|told| !told.is_empty()) {
            words.site(told.trim_end());
        }
        going_on.let_others_go_on(&mut resolution.problems);
        words.problems(&file.path, &resolution.problems, &resolution.vms);
        if !resolution.is_ok() {
            return Err(Failure::new(Exit::Plan, "the plan has errors; nothing was touched"));
        }
        let mut rights = provider.rights(&resolution, &inventory)?;
        going_on.let_others_go_on(&mut rights);
        words.problems(&file.path, &rights, &resolution.vms);
        if rights.iter().any(Problem::is_error) {
            return Err(Failure::new(Exit::Access, "rights are missing at the source; nothing was touched"));
        }
        let at_hosts = provider.host_problems(&resolution.vms, &begun);
        words.problems(&file.path, &at_hosts, &resolution.vms);
        if at_hosts.iter().any(Problem::is_error) {
            return Err(Failure::new(
                Exit::Connection,
                "hosts of the source cannot be read; nothing was touched",
            ));
        }
        let facts = evidence::facts(&file, &resolution, &inventory);
        let vms = resolution.vms;
        going_on.words(&file.plan.name, &vms).iter().for_each(|text| words.say(text));
        let judge = Judge::of(going_on.into_in_question(), &file.plan, inventory);
        check_none_is_left_out(store, &file.plan.name, &vms)?;
        check_what_arrived(store, &file.plan.name, &vms, &target, words)?;
        // They were laid over the inventory, and a plan may have thousands.
        file.plan.vms = Vec::new();
        Ok(Prepared { file, facts, vms, provider, target, rate_limit, judge })
    }

    /// Runs it to its end, or until it is stopped.
    pub fn run(
        self,
        setting: &Setting<'_>,
        observer: &dyn Observer,
        board: &Board,
    ) -> Result<RunOutcome, Failure> {
        // Fewer than that show themselves as errors of the disks that find none left.
        raise_files(self.file.plan.limits.disks);
        // Beside the run: neither a plan that is refused nor a first transfer waits for it.
        let (plan, facts) = (&self.file.plan, &self.facts);
        let budgets = setting.schedule.map(|schedule| schedule.budgets());
        let rate_limit = setting.reads.map_or(&[][..], SharedReads::limits);
        let shared = drover_foresight::Shared { budgets: budgets.as_ref(), rate_limit };
        let foresight = drover_foresight::begin(setting.store, plan, &self.vms, facts, shared);
        let plan = &self.file.plan.name;
        log!(
            "run",
            "plan {plan}, {}; disks are {}",
            count(self.vms.len(), "VM"),
            self.provider.way().unwrap_or_default()
        );
        for vm in &self.vms {
            let host = vm.host_name.as_deref().unwrap_or_default();
            log!(
                "run",
                "{}: from host {host}, by {:?}, to {}",
                vm.target_name,
                vm.route,
                vm.folder.display()
            );
        }
        let export = traces::Export::begin().unwrap_or_else(|why| {
            setting.words.say(&format!("warning: no traces: {why}"));
            None
        });
        let traced = Traced::new(observer, setting.store, plan, export);
        let observer = &Logged(&traced);
        self.provider.outlast(self.file.plan.limits.retry_for);
        let (provider, judge, store) = (&self.provider, self.judge.as_ref(), setting.store);
        let may_begin = |vm: &PlannedVm| judge.map_or(Ok(()), |judge| judge.check(vm, provider, store));
        let runner = Runner {
            plan: &self.file.plan.name,
            text: &self.file.text,
            folder: &self.file.folder,
            facts: &self.facts,
            foresight: Some(&foresight),
            vms: &self.vms,
            limits: &self.file.plan.limits,
            rate_limit: &self.file.plan.target.rate_limit,
            heed_limits: &|limits| {
                raise_files(limits.disks);
                self.rate_limit.set(limits.rate_limit.clone());
            },
            waves: &self.file.plan.waves(),
            wave_hooks: &self.file.plan.wave_hooks(),
            schedule: setting.schedule.cloned(),
            source: self.provider.source(),
            target: &self.target,
            store: setting.store,
            observer,
            board,
            options: &options(&self.file.plan.limits, setting.memory),
            stop: setting.stop,
            leave: setting.leave,
            may_begin: &may_begin,
            clock: &SystemClock,
            hooks: &Outside::new(&self.file.folder),
        };
        let outcome = runner.run();
        if let Some(why) = traced.end() {
            setting.words.say(&format!("note: not all traces were sent: {why}"));
        }
        let outcome = outcome?;
        // What came of the run is told: a session that cannot be ended changes nothing in it.
        if let Err(error) = self.provider.close() {
            setting.words.say(&format!("note: {}", chain(&error)));
        }
        Ok(outcome)
    }
}

/// Files that are open beside those of disks.
const FILES_MIN: u64 = 1024;
/// A disk has connections, its image, its journal and their locks.
const FILES_PER_DISK: u64 = 32;

fn raise_files(disks: u32) {
    drover_relay::raise_files(FILES_MIN + u64::from(disks) * FILES_PER_DISK);
}

/// Limits that were changed by order hold for a run that goes on with the same plan.
fn keep_to_order(file: &mut PlanFile, store: &Store, words: &dyn Words) -> Result<(), Failure> {
    let plan = &mut file.plan;
    let Some(order) = store.limits_order_for(&plan.name, &file.text)? else { return Ok(()) };
    let own = LimitsInForce::new(&plan.limits, &plan.target.rate_limit);
    let limits = own.with(&order);
    if limits != own {
        words.say(&format!(
            "limits changed by order: {}; see `drover limits {}`",
            own.changes_to(&limits),
            plan.name
        ));
    }
    limits.apply(plan);
    Ok(())
}

/// A plan that was edited must not leave a VM switched off, with drover's snapshot, or with half an image that no command knows any more.
fn check_none_is_left_out(store: &Store, plan: &str, vms: &[PlannedVm]) -> Result<(), Failure> {
    let names = drover_engine::left_out(store, plan, vms)?;
    if names.is_empty() {
        return Ok(());
    }
    let shown = some_of(&names, NAMES_SHOWN_MAX);
    let text = format!(
        "an earlier run of {plan} began VMs that the plan does not have any more: {shown}; nothing was touched"
    );
    Err(Failure::new(Exit::Plan, text).advise(format!(
        "put them back into the plan, or give them up with `drover cancel {plan} VM...`, which undoes what was begun; \
         `drover resume {plan}` goes on with the plan as it was"
    )))
}

/// VMs that arrived in an earlier run are not copied again. If their images are gone that is said, and if nothing else is to be
/// done, the run has not done what it was asked for.
fn check_what_arrived(
    store: &Store,
    plan: &str,
    vms: &[PlannedVm],
    target: &PlanTarget,
    words: &dyn Words,
) -> Result<(), Failure> {
    let rows = store.vms_in_short(plan)?;
    let is_done = |row: &&VmRow| row.state == VmState::Done;
    let arrived: BTreeSet<&str> = rows.iter().filter(is_done).map(|row| row.id.as_str()).collect();
    let is_done = |vm: &&PlannedVm| arrived.contains(vm.vm.id.as_str());
    let done: Vec<&PlannedVm> = vms.iter().filter(is_done).collect();
    let mut gone = Vec::new();
    let (there, away): (Vec<&PlannedVm>, Vec<&PlannedVm>) =
        done.iter().partition(|vm| target.is_away(vm).is_none());
    for vm in away {
        let why = target.is_away(vm).unwrap_or_default();
        words.say(&format!("warning: {} arrived in an earlier run; {why}", vm.vm.name));
    }
    for (vm, disk) in there.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk))) {
        if !target.has_image(disk, vm).map_err(EngineError::from)? {
            let place = vm.place_of(disk);
            gone.push(format!(
                "{} arrived in an earlier run, but {} is not there any more",
                vm.vm.name,
                place.display()
            ));
        }
    }
    if gone.is_empty() && done.len() == vms.len() {
        words.say("every VM of the plan has arrived, in an earlier run");
    }
    if gone.is_empty() || done.len() < vms.len() {
        gone.iter().for_each(|text| words.say(&format!("warning: {text}")));
        return Ok(());
    }
    Err(Failure::new(Exit::Target, format!("{}; nothing was copied", gone.join("; "))).advise(
        "if it was moved, nothing is to be done; to copy it anew, run it as a plan of another name (`name:` in the plan, \
         `--name` of an import)",
    ))
}

fn options(limits: &Limits, of: Option<&MemoryBudget>) -> TransferOptions {
    TransferOptions {
        lanes: limits.lanes_per_disk.map(|lanes| lanes as usize),
        depth: limits.depth.map(|depth| depth as usize),
        request_bytes: limits.request,
        retry: RetryPolicy {
            attempts_min: limits.retries.saturating_add(1),
            give_up_after: limits.retry_for,
            ..RetryPolicy::default()
        },
        memory: of.map_or_else(|| MemoryBudget::new(limits.memory), |of| of.part(limits.memory)),
    }
}

/// How a run ends that ended so.
pub fn exit_of(outcome: &RunOutcome, stopped: bool) -> Exit {
    if outcome.unkept.is_some() {
        return Exit::State;
    }
    if outcome.is_complete() {
        return Exit::Success;
    }
    let causes = || outcome.failed.iter().map(|(_, cause)| *cause);
    let nearest = causes().map(Cause::distance).min();
    let mut causes: Vec<Cause> = causes().filter(|cause| Some(cause.distance()) == nearest).collect();
    causes.dedup();
    match causes.as_slice() {
        _ if outcome.has_arrived() => Exit::NotCleanedUp,
        [] if outcome.skipped == outcome.unfinished => Exit::Skipped,
        [] => Exit::Interrupted,
        _ if stopped => Exit::Interrupted,
        [cause] => of_cause(*cause),
        _ => Exit::Mixed,
    }
}

/// How the last `drover migrate` ended with a plan that nobody runs, by what is recorded of it and its VMs.
pub fn exit_recorded(state: PlanState, vms: &[VmRow]) -> Exit {
    // A run that ends by itself gives each VM an end.
    let is_left = |vm: &VmRow| matches!(vm.state, VmState::Queued | VmState::Running | VmState::Stopped);
    match state {
        // VMs that an edit took out of the plan do not count, whatever became of them.
        PlanState::Done => Exit::Success,
        // Its process was killed.
        PlanState::Running | PlanState::Cancelled => Exit::Interrupted,
        PlanState::Incomplete => exit_of(&RunOutcome::recorded(vms), vms.iter().any(is_left)),
    }
}

/// The plan file of a plan that was begun, as it was then.
pub fn file_of(store: &Store, row: PlanRow) -> Result<PlanFile, Failure> {
    let runs = store.runs(&row.name)?;
    let path = runs.last().map(|run| run.facts.plan_file.clone()).filter(|path| path.is_absolute());
    let path = path.unwrap_or_else(|| row.folder.join(format!("{}.yaml", row.name)));
    plan_file::parse(row.text, path, row.folder)
}

/// The same of one at which something is undone: nobody is told of its file.
pub fn recorded_file(row: PlanRow) -> Result<PlanFile, Failure> {
    plan_file::parse(row.text, row.folder.join(format!("{}.yaml", row.name)), row.folder)
}

/// Refuses to go on with a plan that was given up.
pub fn check_not_given_up(row: &PlanRow) -> Result<(), Failure> {
    match row.state {
        PlanState::Cancelled => Err(Failure::new(Exit::Plan, format!("plan {} was cancelled", row.name))
            .advise("begin it anew with `drover migrate` and its file")),
        PlanState::Running | PlanState::Done | PlanState::Incomplete => Ok(()),
    }
}

/// Undoes what was begun of VMs that are given up by order, of a plan that does not run.
pub fn give_up_ordered(row: PlanRow, store: &Store, state: Option<&Path>) -> Result<GivenUp, Failure> {
    let file = recorded_file(row)?;
    let name = &file.plan.name;
    at_source(&file, store, state, None, &|source, target| {
        drover_engine::cancel_ordered(name, store, source, target)
    })
}

/// Stops whoever runs a plan, waits for it, and undoes what was begun.
pub fn give_up(row: PlanRow, store: &Store, state: Option<&Path>) -> Result<GivenUp, Failure> {
    let file = recorded_file(row)?;
    give_up_by_leave(&file, store, state, None, &|| Ok(()))
}

/// As [`give_up`], over a plan file that says how the source is reached by now: at the source that is meant alone, and with leave for
/// each step.
pub fn give_up_by_leave(
    file: &PlanFile,
    store: &Store,
    state: Option<&Path>,
    meant: Option<&Meant>,
    leave: &Leave<'_>,
) -> Result<GivenUp, Failure> {
    let name = &file.plan.name;
    at_source(file, store, state, meant, &|source, target| {
        store.ask_cancel(name)?;
        let until = Instant::now() + CANCEL_WAIT;
        loop {
            match drover_engine::cancel_by_leave(name, store, source, target, leave) {
                Err(EngineError::Running { .. }) if Instant::now() < until => {
                    std::thread::sleep(Duration::from_millis(200));
                }
                result => return result,
            }
        }
    })
}

/// The target of a plan, of which nothing but its records is touched.
pub fn target_of(file: &PlanFile, state: Option<&Path>) -> PlanTarget {
    let stop = StopSignal::default();
    stop.stop();
    landing::target_of(file, &About::default(), state, &stop)
}

/// Does something with source and target of a plan that does not run: at the source that is meant alone.
pub fn at_source<T>(
    file: &PlanFile,
    store: &Store,
    state: Option<&Path>,
    meant: Option<&Meant>,
    act: &dyn Fn(&dyn SourceProvider, &PlanTarget) -> Result<T, EngineError>,
) -> Result<T, Failure> {
    let (source, about) = source_to_give_up(file, store)?;
    meant.map_or(Ok(()), |meant| meant.check_source(&about))?;
    // Nobody waits for a site that is away: what is left there is told, and goes with the next try.
    let stop = StopSignal::default();
    stop.stop();
    let target = landing::target_of(file, &about, state, &stop);
    Ok(act(source.as_ref(), &target)?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use drover_engine::Store;

    use super::*;

    #[test]
    fn a_recorded_plan_ends_by_the_cause_of_what_failed() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin_plan("p", "", Path::new("/")).unwrap();
        let exit_in = |state: PlanState| exit_recorded(state, &store.vms("p").unwrap());
        let exit = || exit_in(PlanState::Incomplete);
        let fails = |vm: &str, cause: Cause| {
            store.end_vm("p", vm, VmState::Failed, Some(("why", &cause.word(), None))).unwrap();
        };
        assert_eq!(exit_in(PlanState::Running), Exit::Interrupted, "killed before it knew its VMs");
        ["a", "b", "c"].iter().for_each(|vm| store.enter_vm("p", vm, vm, "{}").unwrap());
        store.end_vm("p", "c", VmState::Done, None).unwrap();
        fails("a", Cause::TargetFull);
        assert_eq!(exit(), Exit::Interrupted, "b never began");
        fails("b", Cause::TargetFull);
        assert_eq!(exit(), Exit::TargetFull);
        fails("b", Cause::Source);
        assert_eq!(exit(), Exit::Mixed);
        fails("b", Cause::NotItsTurn);
        assert_eq!(exit(), Exit::TargetFull, "a wave that is given up hides no cause");
        fails("a", Cause::HostFailed);
        assert_eq!(exit(), Exit::Connection);
        fails("a", Cause::NotItsTurn);
        assert_eq!(exit(), Exit::WindowOver);
        fails("a", Cause::TargetFull);
        fails("b", Cause::Source);
        assert_eq!(exit_in(PlanState::Done), Exit::Success, "the plan does not name them any more");
        assert_eq!(exit_in(PlanState::Running), Exit::Interrupted, "killed");
        store.end_vm("p", "a", VmState::Stopped, None).unwrap();
        assert_eq!(exit(), Exit::Interrupted);
        store.end_vm("p", "a", VmState::NotCleanedUp, None).unwrap();
        assert_eq!(exit(), Exit::Source);
        store.end_vm("p", "b", VmState::Done, None).unwrap();
        assert_eq!(exit(), Exit::NotCleanedUp);
        store.end_vm("p", "a", VmState::Done, None).unwrap();
        assert_eq!(exit(), Exit::Success);
    }
}
