//! Gives a plan up, or leaves its guests on at their source until it goes on.

use drover_mover::{StopSignal, TransferOptions};
use drover_plan::PlannedVm;
use drover_types::inventory::{PowerState, Vm};

use crate::clock::SystemClock;
use crate::error::{Cause, EngineError, ProviderError, chain};
use crate::event::{Board, NoObserver};
use crate::gone::{AtSource, at_source, detach_gone, gone_words, kept_words};
use crate::itinerary::{
    Context, ROLLS_BACK, asked_down, has_begun, look, may_run_at_target, moment_of, remove_own_snapshots,
    switch_on_again, untrack,
};
use crate::phase::Phase;
use crate::provider::{SourceProvider, TargetProvider};
use crate::runner::PlanLock;
use crate::store::{PlanState, Store, StoreError, VmRow, VmState};

/// Gives a plan up: removes snapshots, images and journals of VMs that have not arrived, and switches
/// on what drover switched off. VMs that arrived stay as they are.
///
/// # Errors
/// If another process runs the plan, or the state cannot be read.
pub fn cancel(
    plan: &str,
    store: &Store,
    source: &dyn SourceProvider,
    target: &dyn TargetProvider,
) -> Result<GivenUp, EngineError> {
    cancel_by_leave(plan, store, source, target, &|| Ok(()))
}

/// Says whether the next step may be done, by somebody in whose place another may have been put.
pub type Leave<'a> = dyn Fn() -> Result<(), ProviderError> + Sync + 'a;

/// As [`cancel`], with leave asked for before each step that touches source or target.
///
/// # Errors
/// If another process runs the plan, or the state cannot be read.
pub fn cancel_by_leave(
    plan: &str,
    store: &Store,
    source: &dyn SourceProvider,
    target: &dyn TargetProvider,
    leave: &Leave<'_>,
) -> Result<GivenUp, EngineError> {
    let _lock = PlanLock::take(store, plan)?;
    let (board, options, stop) = <(Board, TransferOptions, StopSignal)>::default();
    let context = context(plan, store, (source, target), (&board, &options, &stop));
    let mut given_up = GivenUp::default();
    for row in store.vms(plan)? {
        // What was given up before may be another plan's by now.
        if row.state != VmState::Cancelled {
            cancel_row(&context, &row, leave, &mut given_up);
        }
    }
    let state = if given_up.left.is_empty() { PlanState::Cancelled } else { PlanState::Incomplete };
    given_up.left.extend(store.end_plan(plan, state).err().map(|error| unkept(&error)));
    Ok(given_up)
}

/// Gives up those VMs of a plan of which that was ordered ([`crate::ask_give_up`]), as [`cancel`] does; the others stay as they are, and
/// the plan can be gone on with.
///
/// # Errors
/// If another process runs the plan, or the state cannot be read.
pub fn cancel_ordered(
    plan: &str,
    store: &Store,
    source: &dyn SourceProvider,
    target: &dyn TargetProvider,
) -> Result<GivenUp, EngineError> {
    let _lock = PlanLock::take(store, plan)?;
    let (board, options, stop) = <(Board, TransferOptions, StopSignal)>::default();
    let context = context(plan, store, (source, target), (&board, &options, &stop));
    let mut given_up = GivenUp::default();
    for id in store.give_ups(plan)? {
        if let Some(row) = store.vm(plan, &id)?.filter(|row| row.state != VmState::Cancelled) {
            cancel_row(&context, &row, &|| Ok(()), &mut given_up);
        }
    }
    Ok(given_up)
}

/// Gives up a VM of a run that goes on, if its row says that there is something to be undone. Nothing of the VM is at work.
pub(crate) fn cancel_in_run(context: &Context<'_>, row: &VmRow) -> GivenUp {
    let stop = StopSignal::default();
    // What stops the run, or this VM, stops no undoing. Nothing is called for it, as with a whole plan.
    let context = Context { stop: &stop, outside: None, ..*context };
    let mut given_up = GivenUp::default();
    if row.state != VmState::Cancelled {
        cancel_row(&context, row, context.leave, &mut given_up);
    }
    given_up
}

fn cancel_row(context: &Context<'_>, row: &VmRow, leave: &Leave<'_>, given_up: &mut GivenUp) {
    let problems = match (row.state, &row.phase) {
        (VmState::Done, _) => Vec::new(),
        // Not touched since it was begun anew, if ever.
        (_, None) => match cancel_untouched(context, row, &mut given_up.notes, leave) {
            Ok(problems) if problems.is_empty() => return,
            Ok(problems) => problems,
            Err(error) => vec![unkept(&error)],
        },
        // State that cannot be kept hides no VM, and keeps no other from being undone.
        (_, Some(_)) => cancel_vm(context, row, given_up, leave).unwrap_or_else(|error| vec![unkept(&error)]),
    };
    if !problems.is_empty() {
        given_up.failed.push(row.name.clone());
    }
    given_up.left.extend(problems.into_iter().map(|problem| format!("{}: {problem}", row.name)));
    let now = context.store.vm(context.plan, &row.id).ok().flatten();
    if now.is_some_and(|row| row.state.has_arrived()) {
        given_up.arrived.push(row.name.clone());
    }
}

/// Switches on again at their source what runs of a plan switched off, with leave asked for before each step. Snapshots and definitions
/// of these VMs go; what was copied stays, and the next run goes on with it. Gives what could not be done.
///
/// # Errors
/// If another process runs the plan, or the state cannot be read.
pub fn switch_on_by_leave(
    plan: &str,
    store: &Store,
    source: &dyn SourceProvider,
    target: &dyn TargetProvider,
    leave: &Leave<'_>,
) -> Result<Vec<String>, EngineError> {
    let _lock = PlanLock::take(store, plan)?;
    let (board, options, stop) = <(Board, TransferOptions, StopSignal)>::default();
    let context = context(plan, store, (source, target), (&board, &options, &stop));
    let mut left = Vec::new();
    let is_off = |row: &VmRow| row.switched_off && !row.state.has_arrived();
    for row in store.vms(plan)?.into_iter().filter(is_off) {
        let problems = switch_vm_on(&context, &row, leave).unwrap_or_else(|error| vec![unkept(&error)]);
        left.extend(problems.into_iter().map(|problem| format!("{}: {problem}", row.name)));
    }
    Ok(left)
}

fn switch_vm_on(context: &Context<'_>, row: &VmRow, leave: &Leave<'_>) -> Result<Vec<String>, StoreError> {
    let planned: PlannedVm = match serde_json::from_str(&row.planned) {
        Ok(planned) => planned,
        Err(error) => return Ok(vec![format!("its plan cannot be read ({error})")]),
    };
    match fate(context, row, &planned) {
        Ok(Fate::Undo) => {}
        Ok(Fate::Arrived | Fate::LeftAlone) => {
            let at = &planned.target_name;
            return Ok(vec![format!("{at} was started at the target, so its source stays off")]);
        }
        Err(error) => return Ok(vec![chain(&error)]),
    }
    if has_begun(context, &planned, Phase::Copy)? || has_begun(context, &planned, Phase::Passes)? {
        // Somebody might start it at the target while it runs at its source.
        if let Err(error) = leave().and_then(|()| context.target.undo_define(&planned)) {
            return Ok(vec![chain(&error)]);
        }
    }
    let (mut problems, _) = thaw(context, &planned, leave);
    problems.extend(leave_on(context, &planned, leave)?);
    if problems.is_empty()
        && planned.warm.is_some()
        && context.store.warm(context.plan, &row.id)?.reason.is_some()
    {
        // It is decided anew, by whoever asks for it.
        context.store.undo_cutover(context.plan, &row.id, moment_of(&planned))?;
    }
    Ok(problems)
}

fn context<'a>(
    plan: &'a str,
    store: &'a Store,
    (source, target): (&'a dyn SourceProvider, &'a dyn TargetProvider),
    (board, options, stop): (&'a Board, &'a TransferOptions, &'a StopSignal),
) -> Context<'a> {
    let (observer, clock) = (&NoObserver, &SystemClock);
    // It is asked for here, before each step.
    let leave = &|| Ok(());
    // No VM begins.
    let may_begin = &|_: &PlannedVm| Ok(());
    Context {
        plan,
        source,
        target,
        store,
        observer,
        board,
        options,
        stop,
        leave,
        may_begin,
        clock,
        outside: None,
    }
}

/// Of a VM that was given up before, and begun anew since, only change tracking may be left to switch off.
fn cancel_untouched(
    context: &Context<'_>,
    row: &VmRow,
    notes: &mut Vec<String>,
    leave: &Leave<'_>,
) -> Result<Vec<String>, StoreError> {
    if let Err(error) = leave() {
        return Ok(vec![chain(&error)]);
    }
    if let Ok(planned) = serde_json::from_str(&row.planned) {
        let told = untrack(context, &planned)?;
        notes.extend(told.map(|told| format!("{}: {told}", row.name)));
    }
    context.store.end_vm(context.plan, &row.id, VmState::Cancelled, None)?;
    Ok(Vec::new())
}

fn unkept(error: &StoreError) -> String {
    format!("what was done could not be recorded: {}", chain(error))
}

/// What is left of a plan that was given up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenUp {
    /// What could not be undone.
    pub left: Vec<String>,
    /// VMs of which that is.
    pub failed: Vec<String>,
    /// What is worth knowing besides.
    pub notes: Vec<String>,
    /// VMs that had arrived, and stay at the target.
    pub arrived: Vec<String>,
    /// VMs that their source does not have any more: what was copied of them stays, if anything was, as a note tells.
    pub kept: Vec<String>,
}

impl GivenUp {
    /// Whether something is left of what was ordered: of these VMs, or of the whole plan. What is left of others, which were given up
    /// before, fails no order about these.
    pub fn fails(&self, named: Option<&[String]>) -> bool {
        match named {
            Some(named) => self.failed.iter().any(|vm| named.contains(vm)),
            None => !self.left.is_empty(),
        }
    }
}

fn cancel_vm(
    context: &Context<'_>,
    row: &VmRow,
    given_up: &mut GivenUp,
    leave: &Leave<'_>,
) -> Result<Vec<String>, StoreError> {
    let notes = &mut given_up.notes;
    let mut kept = None;
    let planned: PlannedVm = match serde_json::from_str(&row.planned) {
        Ok(planned) => planned,
        Err(error) => return Ok(vec![format!("its plan cannot be read ({error})")]),
    };
    let (problems, state) = match fate(context, row, &planned) {
        Ok(Fate::Arrived) => {
            let mut problems = thaw_arrived(context, row, &planned, notes, leave);
            if look(context.source, &planned).is_ok_and(|now| now.power != PowerState::Off) {
                problems.push(format!(
                    "{} has arrived, and its source may run: decide which of the two goes on, and switch the other off",
                    planned.vm.name
                ));
            }
            (problems, VmState::Done)
        }
        Ok(Fate::Undo) => {
            (undo(context, row, &planned, (&mut kept, &mut *notes), leave)?, VmState::Cancelled)
        }
        Ok(Fate::LeftAlone) => {
            let what =
                format!("{} runs at the target; stop it there, then cancel again", planned.target_name);
            (vec![what], row.state)
        }
        Err(error) => (vec![chain(&error)], row.state),
    };
    if problems.is_empty()
        && let Err(error) = leave()
    {
        return Ok(vec![chain(&error)]);
    }
    if problems.is_empty() {
        let told = untrack(context, &planned)?;
        notes.extend(told.map(|told| format!("{}: {told}", row.name)));
        // A plan that is begun anew calls all of them again.
        context.store.forget_hooks(context.plan, &row.id, "")?;
        let unwell = failed_after_start(row).filter(|_| state == VmState::Done);
        notes.extend(unwell.as_ref().map(|(text, _)| format!("{}: {text}", row.name)));
        // Told by `drover status` and the report, too.
        let why = unwell.as_ref().map(|(text, cause)| (text.as_str(), *cause, None));
        match kept {
            Some(kept) => {
                context.store.end_gone(context.plan, &row.id, &kept)?;
                notes.push(format!("{}: {kept}", row.name));
                given_up.kept.push(row.name.clone());
            }
            None => {
                context.store.set_snapshot(context.plan, &row.id, None)?;
                context.store.end_vm(context.plan, &row.id, state, why)?;
            }
        }
    }
    Ok(problems)
}

/// What a check or a hook said that failed after the start of a VM, and its cause: who gives it up keeps the VM at the target, and
/// nothing has shown since then that it is well.
fn failed_after_start(row: &VmRow) -> Option<(String, &str)> {
    let cause = row.cause.as_deref()?;
    let error = row.error.as_deref()?;
    let is_call = matches!(Cause::of_word(cause), Some(Cause::Check | Cause::Hook));
    let text = format!(
        "it was given up after its start, and stays at the target although this failed there: {error}"
    );
    is_call.then_some((text, cause))
}

/// What becomes of a VM whose plan is given up.
enum Fate {
    /// It was started at the target, so its guest may have written to the images, and they are all
    /// there is. Only the snapshot is still to be removed.
    Arrived,
    Undo,
    /// It runs at the target and should not. A running machine is never killed to make room.
    LeftAlone,
}

/// What `resume` takes for arrived has arrived here too.
fn fate(context: &Context<'_>, row: &VmRow, planned: &PlannedVm) -> Result<Fate, ProviderError> {
    let is_in = |phase: Phase| row.phase.as_deref() == Some(phase.name());
    let gave_up = matches!(row.state, VmState::Failed | VmState::Stopped);
    let rolls_back = row.started.as_deref() == Some(ROLLS_BACK);
    if is_in(Phase::CleanUp) || (is_in(Phase::Start) && row.started.is_some() && !rolls_back) {
        return Ok(Fate::Arrived);
    }
    match may_run_at_target(context, planned)? {
        true if is_in(Phase::Start) && !gave_up => Ok(Fate::Arrived),
        true => Ok(Fate::LeftAlone),
        false => Ok(Fate::Undo),
    }
}

/// `kept` says so if the source does not have the VM any more, and where what was copied of it stays; `notes`, what stays else.
fn undo(
    context: &Context<'_>,
    row: &VmRow,
    planned: &PlannedVm,
    (kept, notes): (&mut Option<String>, &mut Vec<String>),
    leave: &Leave<'_>,
) -> Result<Vec<String>, StoreError> {
    let mut problems = Vec::new();
    // A VM that no run took further than its checks may have images of another plan at its place.
    let is_begun = has_begun(context, planned, Phase::Copy)? || has_begun(context, planned, Phase::Passes)?;
    if is_begun && let Err(error) = leave().and_then(|()| context.target.undo_define(planned)) {
        // A machine that keeps its definition may run, or have run: it keeps its disks, and the source stays off.
        problems.push(chain(&error));
        problems.extend(thaw(context, planned, leave).0);
        return Ok(problems);
    }
    // The images may be all there is of it: they go where its source is seen, and nowhere else.
    match at_source(context, planned) {
        AtSource::There(now) => {
            problems.extend(match leave() {
                Ok(()) => thaw_seen(context, &now),
                Err(error) => vec![chain(&error)],
            });
            let removed = match is_begun {
                true => leave()
                    .and_then(|()| context.target.remove_images(planned))
                    .and_then(|()| context.target.give_back(planned)),
                false => Ok(Vec::new()),
            };
            problems.extend(match removed {
                Ok(stays) => {
                    notes.extend(stays.iter().map(|stays| format!("{}: {stays}", row.name)));
                    context.store.forget_warm(context.plan, &planned.vm.id).err().map(|error| unkept(&error))
                }
                Err(error) => Some(chain(&error)),
            });
        }
        AtSource::Gone => {
            problems.extend(match leave() {
                Ok(()) => thaw_gone(context, planned),
                Err(error) => vec![chain(&error)],
            });
            *kept = Some(kept_words(context, row, planned, is_begun)?);
            return Ok(problems);
        }
        AtSource::Untold(why) => problems.push(why),
    }
    problems.extend(leave_on(context, planned, leave)?);
    Ok(problems)
}

/// Switches a guest on again that drover switched off; gives what went wrong.
fn leave_on(
    context: &Context<'_>,
    planned: &PlannedVm,
    leave: &Leave<'_>,
) -> Result<Vec<String>, StoreError> {
    if may_go_down(context, planned)? {
        return Ok(vec![format!(
            "{} is not seen off, and may have been asked to shut down less than {} s ago; cancel again after that, and if it has gone down, it \
             is switched on again",
            planned.vm.name,
            planned.shutdown_timeout.as_secs()
        )]);
    }
    Ok(match leave() {
        Ok(()) => switch_on_again(context, planned),
        Err(error) => vec![chain(&error)],
    })
}

/// Whether a guest runs, or may run, that a run of the plan, killed since then, may have asked to shut down a moment ago.
fn may_go_down(context: &Context<'_>, planned: &PlannedVm) -> Result<bool, StoreError> {
    let asked = asked_down(context, planned)?;
    let is_recent = asked.is_some_and(|asked| asked.is_within(planned.shutdown_timeout));
    Ok(is_recent && !look(context.source, planned).is_ok_and(|now| now.power == PowerState::Off))
}

/// Gives what went wrong, and whether its source is gone.
fn thaw(context: &Context<'_>, planned: &PlannedVm, leave: &Leave<'_>) -> (Vec<String>, bool) {
    if let Err(error) = leave() {
        return (vec![chain(&error)], false);
    }
    match at_source(context, planned) {
        AtSource::There(now) => (thaw_seen(context, &now), false),
        AtSource::Gone => (thaw_gone(context, planned), true),
        AtSource::Untold(why) => (vec![why], false),
    }
}

/// Of a VM that has arrived. Where its source is gone that is told.
fn thaw_arrived(
    context: &Context<'_>,
    row: &VmRow,
    planned: &PlannedVm,
    notes: &mut Vec<String>,
    leave: &Leave<'_>,
) -> Vec<String> {
    let (problems, is_gone) = thaw(context, planned, leave);
    if is_gone {
        notes.push(format!("{}: {}; nothing is left to clean up there", row.name, gone_words(planned)));
    }
    problems
}

fn thaw_seen(context: &Context<'_>, now: &Vm) -> Vec<String> {
    let result = remove_own_snapshots(context.plan, context.store, context.source, now);
    result.err().map(|error| error.chain()).into_iter().collect()
}

fn thaw_gone(context: &Context<'_>, planned: &PlannedVm) -> Vec<String> {
    let result = detach_gone(context.plan, context.store, context.source, planned);
    result.err().map(|error| error.chain()).into_iter().collect()
}
