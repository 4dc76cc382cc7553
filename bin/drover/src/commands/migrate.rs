//! `drover migrate`, `resume` and `cancel`.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use drover_copy::RetryPolicy;
use drover_engine::{
    Board, Cause, Clock, EngineError, GivenUp, PlanState, RunFacts, RunOutcome, Runner, SourceProvider,
    Store, SystemClock, TargetProvider, VmState,
};
use drover_mover::{MemoryBudget, StopSignal, TransferOptions};
use drover_plan::{Limits, Others, PlannedVm, Problem, as_begun, resolve};
use drover_types::inventory::Inventory;
use drover_view::{Display, DisplayMode, clean};

use super::plan::{self, PlanFile};
use crate::cli::{MigrateArgs, NamedArgs, ResumeArgs, RunArgs};
use crate::evidence::{self, check_not_anothers};
use crate::exit::{Exit, Failure};
use crate::provider::{Provider, to_give_up};
use crate::signals::stop_on_signals;
use crate::source::{hide_foreign_snapshots, hide_left_files};
use crate::state::state_folder;
use crate::target::PlanTarget;

/// How long `cancel` waits for the process that runs the plan.
const CANCEL_WAIT: Duration = Duration::from_secs(120);

/// Runs a plan file.
pub fn migrate(args: &MigrateArgs) -> Result<Exit, Failure> {
    let file = plan::read(&args.plan)?;
    if let Some(refused) = check_not_anothers(&open_store(&args.run)?, &file)? {
        return Err(refused);
    }
    run(file, Others::Selected, args.start, &args.run)
}

/// Goes on with a plan, as it was when it was begun.
pub fn resume(args: &ResumeArgs) -> Result<Exit, Failure> {
    let store = open_store(&args.run)?;
    let name = plan_name(&args.plan)?;
    let row = store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
    if row.state == PlanState::Done {
        crate::out::say(format_args!("plan {name} is done; nothing is left to do"));
        return Ok(Exit::Success);
    }
    if row.state == PlanState::Cancelled {
        return Err(Failure::new(Exit::Plan, format!("plan {name} was cancelled"))
            .advise("begin it anew with `drover migrate` and its file"));
    }
    let runs = store.runs(&name)?;
    let path = runs.last().map(|run| run.facts.plan_file.clone()).filter(|path| path.is_absolute());
    drop(store);
    let path = path.unwrap_or_else(|| row.folder.join(format!("{name}.yaml")));
    let file = plan::parse(row.text, path, row.folder)?;
    run(file, Others::LeftOut, args.start, &args.run)
}

/// Runs a plan, or goes on with it: with the VMs that it began with, and with `others`.
pub fn run(file: PlanFile, others: Others, start: bool, args: &RunArgs) -> Result<Exit, Failure> {
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let store = open_store(args)?;
    let provider = Provider::open(&file, args.state.as_deref())?;
    provider.stop_when(&stop);
    let mut inventory = provider.inventory()?;
    // Before all VMs but the plan's are left out.
    provider.find_proxies(&file, &inventory);
    let begun = drover_engine::begun(&store, &file.plan.name, others)?;
    // One that ended before it entered its VMs began with none.
    let others = if begun.is_empty() { Others::Selected } else { others };
    as_begun(&mut inventory, &begun, others);
    hide_what_passes_see_to(&file, &store, &mut inventory)?;
    provider.warnings().iter().for_each(|warning| crate::out::say(format_args!("warning: {warning}")));
    let mut resolution = plan::resolve_here(&file, &provider, &mut inventory);
    resolution.vms.iter_mut().for_each(|vm| vm.start |= start);
    resolution.problems.extend(plan::past_moments(&resolution.vms, &begun, SystemClock.now_ms()));
    let target = PlanTarget::new(&file, &inventory.about, args.state.as_deref(), &stop);
    target.survey(&mut resolution);
    if let Some(site) = target.site() {
        site?.dial()?;
        let line = plan::far_summary(&file, &mut resolution, &target);
        if !args.quiet && !args.json {
            crate::out::say(line.trim_end());
        }
    }
    resolution.problems.extend(provider.proxy_problems(&resolution, false));
    crate::out::problems(&file.path, &resolution.problems);
    if !resolution.is_ok() {
        return Err(Failure::new(Exit::Plan, "the plan has errors; nothing was touched"));
    }
    let rights = provider.rights(&resolution, &inventory)?;
    crate::out::problems(&file.path, &rights);
    if rights.iter().any(Problem::is_error) {
        return Err(Failure::new(Exit::Access, "rights are missing at the source; nothing was touched"));
    }
    let facts = evidence::facts(&file, &resolution, &inventory);
    let vms = resolution.vms;
    check_none_is_left_out(&store, &file.plan.name, &vms)?;
    check_what_arrived(&store, &file.plan.name, &vms, &target)?;
    let outcome = run_shown(&file, &facts, &vms, &store, provider.source(), &target, &stop, args)?;
    provider.close()?;
    Ok(end(&file.plan.name, &outcome, stop.is_set(), args))
}

/// A plan that was edited must not leave a VM switched off, or with drover's snapshot.
fn check_none_is_left_out(store: &Store, plan: &str, vms: &[PlannedVm]) -> Result<(), Failure> {
    let names = drover_engine::left_out(store, plan, vms)?;
    if names.is_empty() {
        return Ok(());
    }
    let text = format!(
        "{} was begun by an earlier run of {plan} and is not in the plan any more, but is switched off by drover or has \
         drover's snapshot",
        names.join(", ")
    );
    Err(Failure::new(Exit::Plan, text).advise(format!(
        "put it back into the plan; or `drover resume {plan}` goes on with the plan as it was, and `drover cancel {plan}` undoes it"
    )))
}

/// VMs that arrived in an earlier run are not copied again. If their images are gone that is said, and if nothing else is to be
/// done, the run has not done what it was asked for.
fn check_what_arrived(
    store: &Store,
    plan: &str,
    vms: &[PlannedVm],
    target: &PlanTarget,
) -> Result<(), Failure> {
    let rows = store.vms(plan)?;
    let is_done = |vm: &&PlannedVm| rows.iter().any(|row| row.id == vm.vm.id && row.state == VmState::Done);
    let done: Vec<&PlannedVm> = vms.iter().filter(is_done).collect();
    let mut gone = Vec::new();
    for (vm, disk) in done.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk))) {
        if !target.has_image(disk, vm).map_err(EngineError::from)? {
            let place = vm.place_of(disk);
            gone.push(format!(
                "{} arrived in an earlier run, but {} is not there any more",
                vm.vm.name,
                place.display()
            ));
        }
    }
    if gone.is_empty() || done.len() < vms.len() {
        gone.iter().for_each(|text| crate::out::say(format_args!("warning: {text}")));
        return Ok(());
    }
    Err(Failure::new(Exit::Target, format!("{}; nothing was copied", gone.join("; "))).advise(
        "if it was moved, nothing is to be done; to copy it anew, run it as a plan of another name (`name:` in the plan, \
         `--name` of an import)",
    ))
}

/// Hides what the guardian of warm VMs judges before each pass, and what would stop a plan that is only begun.
fn hide_what_passes_see_to(file: &PlanFile, store: &Store, inventory: &mut Inventory) -> Result<(), Failure> {
    let mut begun: BTreeSet<String> =
        store.passes(&file.plan.name)?.into_iter().map(|pass| pass.vm).collect();
    if !begun.is_empty() {
        // A plan may have been edited since: what moves cold now has no guardian.
        let planned = resolve(&file.plan, inventory).vms;
        let warm: BTreeSet<&str> =
            planned.iter().filter(|vm| vm.warm.is_some()).map(|vm| vm.vm.id.as_str()).collect();
        begun.retain(|id| warm.contains(id.as_str()));
        hide_left_files(inventory, &begun);
        hide_foreign_snapshots(inventory, &begun);
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "what a run is made of")]
fn run_shown(
    file: &PlanFile,
    facts: &RunFacts,
    vms: &[PlannedVm],
    store: &Store,
    source: &dyn SourceProvider,
    target: &PlanTarget,
    stop: &StopSignal,
    args: &RunArgs,
) -> Result<RunOutcome, Failure> {
    let board = Board::default();
    let display = Display::start(DisplayMode::choose(args.json, args.quiet), board.clone());
    let runner = Runner {
        plan: &file.plan.name,
        text: &file.text,
        folder: &file.folder,
        facts,
        vms,
        limits: &file.plan.limits,
        source,
        target,
        store,
        observer: &display,
        board: &board,
        options: &options(&file.plan.limits),
        stop,
        clock: &SystemClock,
    };
    let outcome = runner.run();
    display.finish();
    Ok(outcome?)
}

fn options(limits: &Limits) -> TransferOptions {
    TransferOptions {
        lanes: limits.lanes_per_disk.map(|lanes| lanes as usize),
        depth: limits.depth.map(|depth| depth as usize),
        request_bytes: limits.request,
        retry: RetryPolicy {
            attempts_min: limits.retries.saturating_add(1),
            give_up_after: limits.retry_for,
            ..RetryPolicy::default()
        },
        memory: MemoryBudget::new(limits.memory),
    }
}

/// Prints the report and says how to go on.
fn end(name: &str, outcome: &RunOutcome, stopped: bool, args: &RunArgs) -> Exit {
    if !args.json && !args.quiet {
        let report = open_store(args).and_then(|store| Ok(drover_engine::plan_report(&store, name)?));
        match report {
            Ok(Some(report)) => crate::out::print(&drover_view::report_text(&report)),
            Ok(None) => {}
            Err(failure) => crate::out::say(failure),
        }
    }
    if outcome.is_complete() {
        return Exit::Success;
    }
    if outcome.has_arrived() && !args.quiet {
        crate::out::say(format_args!(
            "every VM is at the target, but {} not cleaned up at the source",
            outcome.not_cleaned_up
        ));
    }
    let state =
        args.state.as_ref().map(|folder| format!(" --state {}", folder.display())).unwrap_or_default();
    if !args.quiet {
        crate::out::say(format_args!(
            "go on with: drover resume {name}{state}    give up with: drover cancel {name}{state}"
        ));
    }
    let mut causes: Vec<Cause> = outcome.failed.iter().map(|(_, cause)| *cause).collect();
    causes.dedup();
    match causes.as_slice() {
        _ if outcome.has_arrived() => Exit::NotCleanedUp,
        [] => Exit::Interrupted,
        _ if stopped => Exit::Interrupted,
        [cause] => Exit::from(*cause),
        _ => Exit::Mixed,
    }
}

/// Stops a running plan, or undoes what an interrupted one left.
pub fn cancel(args: &NamedArgs) -> Result<Exit, Failure> {
    let store = open_store(&args.run)?;
    let name = plan_name(&args.plan)?;
    let row = store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
    if matches!(row.state, PlanState::Done | PlanState::Cancelled) {
        crate::out::say(format_args!("plan {name} has ended; there is nothing to cancel"));
        return Ok(Exit::Success);
    }
    let file = plan::parse(row.text, row.folder.join(format!("{name}.yaml")), row.folder)?;
    let (source, about) = to_give_up(&file, &store)?;
    // Nobody waits for a site that is away: what is left there is told, and goes with the next try.
    let stop = StopSignal::default();
    stop.stop();
    let target = PlanTarget::new(&file, &about, args.run.state.as_deref(), &stop);
    store.ask_cancel(&name)?;
    let given_up = wait_and_cancel(&name, &store, source.as_ref(), &target)?;
    given_up.notes.iter().for_each(|note| crate::out::say(format_args!("note: {note}")));
    for vm in given_up.arrived.iter().map(|vm| clean(vm)) {
        crate::out::say(format_args!(
            "{vm} had arrived: it stays at the target, and its source is left as it is"
        ));
    }
    if given_up.left.is_empty() {
        crate::out::say(format_args!("plan {name} is cancelled; what it had begun is undone"));
        return Ok(Exit::Success);
    }
    given_up.left.iter().for_each(|problem| crate::out::say(format_args!("left behind: {problem}")));
    Err(Failure::new(Exit::Source, "not everything could be undone")
        .advise("mend the cause, then cancel again"))
}

fn wait_and_cancel(
    name: &str,
    store: &Store,
    source: &dyn SourceProvider,
    target: &PlanTarget,
) -> Result<GivenUp, Failure> {
    let until = std::time::Instant::now() + CANCEL_WAIT;
    loop {
        match drover_engine::cancel(name, store, source, target) {
            Err(EngineError::Running { .. }) if std::time::Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(200));
            }
            result => return Ok(result?),
        }
    }
}

/// A plan's name from what the user gave: a name, or a plan file.
pub fn plan_name(text: &str) -> Result<String, Failure> {
    let path = Path::new(text);
    if path.is_file() { Ok(plan::read(path)?.plan.name) } else { Ok(text.to_string()) }
}

pub fn unknown_plan(store: &Store, name: &str) -> Failure {
    let folder = store.path().parent().unwrap_or(store.path());
    Failure::new(Exit::Plan, format!("there is no plan '{name}' in drover's state in {}", folder.display()))
        .advise("see `drover status` for those there are; --state names another folder")
}

/// Opens the state folder to look into it, also where it cannot be written.
pub fn open_store_to_read(args: &RunArgs) -> Result<Store, Failure> {
    Ok(Store::open_to_read(&state_folder(args.state.as_deref()))?)
}

/// Opens the state folder.
pub fn open_store(args: &RunArgs) -> Result<Store, Failure> {
    Ok(Store::open(&state_folder(args.state.as_deref()))?)
}
