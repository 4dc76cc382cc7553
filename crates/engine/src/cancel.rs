//! Gives a plan up.

use drover_mover::{StopSignal, TransferOptions};
use drover_plan::PlannedVm;
use drover_types::inventory::PowerState;

use crate::clock::SystemClock;
use crate::error::{EngineError, ProviderError, chain};
use crate::event::{Board, NoObserver};
use crate::itinerary::{
    Context, asked_down, has_begun, look, may_run_at_target, remove_own_snapshots, switch_on_again, untrack,
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
pub type Leave<'a> = dyn Fn() -> Result<(), ProviderError> + 'a;

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
    let (board, options, stop) = (Board::default(), TransferOptions::default(), StopSignal::default());
    let observer = &NoObserver;
    let (options, stop, clock) = (&options, &stop, &SystemClock);
    let board = &board;
    let context =
        Context { plan, source, target, store, observer, board, options, stop, clock, outside: None };
    let mut given_up = GivenUp::default();
    for row in store.vms(plan)? {
        let problems = match (row.state, &row.phase) {
            (VmState::Done, _) => Vec::new(),
            // Not touched since it was begun anew, if ever.
            (_, None) => match cancel_untouched(&context, &row, &mut given_up.notes, leave) {
                Ok(problems) if problems.is_empty() => continue,
                Ok(problems) => problems,
                Err(error) => vec![unkept(&error)],
            },
            // State that cannot be kept hides no VM, and keeps no other from being undone.
            (_, Some(_)) => cancel_vm(&context, &row, &mut given_up.notes, leave)
                .unwrap_or_else(|error| vec![unkept(&error)]),
        };
        given_up.left.extend(problems.into_iter().map(|problem| format!("{}: {problem}", row.name)));
        let now = store.vm(plan, &row.id).ok().flatten();
        if now.is_some_and(|row| row.state.has_arrived()) {
            given_up.arrived.push(row.name);
        }
    }
    let state = if given_up.left.is_empty() { PlanState::Cancelled } else { PlanState::Incomplete };
    given_up.left.extend(store.end_plan(plan, state).err().map(|error| unkept(&error)));
    Ok(given_up)
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
    /// What is worth knowing besides.
    pub notes: Vec<String>,
    /// VMs that had arrived, and stay at the target.
    pub arrived: Vec<String>,
}

fn cancel_vm(
    context: &Context<'_>,
    row: &VmRow,
    notes: &mut Vec<String>,
    leave: &Leave<'_>,
) -> Result<Vec<String>, StoreError> {
    let planned: PlannedVm = match serde_json::from_str(&row.planned) {
        Ok(planned) => planned,
        Err(error) => return Ok(vec![format!("its plan cannot be read ({error})")]),
    };
    let (problems, state) = match fate(context, row, &planned) {
        Ok(Fate::Arrived) => {
            let mut problems = thaw(context, &planned, leave);
            if look(context.source, &planned).is_ok_and(|now| now.power != PowerState::Off) {
                problems.push(format!(
                    "{} has arrived, and its source may run: decide which of the two goes on, and switch the other off",
                    planned.vm.name
                ));
            }
            (problems, VmState::Done)
        }
        Ok(Fate::Undo) => (undo(context, &planned, leave)?, VmState::Cancelled),
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
        context.store.set_snapshot(context.plan, &row.id, None)?;
        // A plan that is begun anew calls all of them again.
        context.store.forget_hooks(context.plan, &row.id, "")?;
        context.store.end_vm(context.plan, &row.id, state, None)?;
    }
    Ok(problems)
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
    if is_in(Phase::CleanUp) || (is_in(Phase::Start) && row.started.is_some()) {
        return Ok(Fate::Arrived);
    }
    match may_run_at_target(context, planned)? {
        true if is_in(Phase::Start) && !gave_up => Ok(Fate::Arrived),
        true => Ok(Fate::LeftAlone),
        false => Ok(Fate::Undo),
    }
}

fn undo(context: &Context<'_>, planned: &PlannedVm, leave: &Leave<'_>) -> Result<Vec<String>, StoreError> {
    let mut problems = Vec::new();
    // A VM that no run took further than its checks may have images of another plan at its place.
    if has_begun(context, planned, Phase::Copy)? || has_begun(context, planned, Phase::Passes)? {
        if let Err(error) = leave().and_then(|()| context.target.undo_define(planned)) {
            // A machine that keeps its definition may run, or have run: it keeps its disks, and the source stays off.
            problems.push(chain(&error));
            problems.extend(thaw(context, planned, leave));
            return Ok(problems);
        }
        let removed = leave().and_then(|()| context.target.remove_images(planned));
        problems.extend(removed.err().map(|error| chain(&error)));
    }
    if problems.is_empty() {
        problems.extend(forget_passes(context, planned).err().map(|error| unkept(&error)));
    }
    problems.extend(thaw(context, planned, leave));
    match may_go_down(context, planned)? {
        true => problems.push(format!(
            "{} is not seen off, and may have been asked to shut down less than {} s ago; cancel again after that, and if it has gone down, it \
             is switched on again",
            planned.vm.name,
            planned.shutdown_timeout.as_secs()
        )),
        false => match leave() {
            Ok(()) => problems.extend(switch_on_again(context, planned)),
            Err(error) => problems.push(chain(&error)),
        },
    }
    Ok(problems)
}

fn forget_passes(context: &Context<'_>, planned: &PlannedVm) -> Result<(), StoreError> {
    let (store, plan, id) = (context.store, context.plan, &planned.vm.id);
    let tracking_on = store.warm(plan, id)?.tracking_on;
    store.forget_warm(plan, id)?;
    // Still to be undone.
    if tracking_on { store.set_tracking_on(plan, id, true) } else { Ok(()) }
}

/// Whether a guest runs, or may run, that a run of the plan, killed since then, may have asked to shut down a moment ago.
fn may_go_down(context: &Context<'_>, planned: &PlannedVm) -> Result<bool, StoreError> {
    let asked = asked_down(context, planned)?;
    let is_recent = asked.is_some_and(|asked| asked.is_within(planned.shutdown_timeout));
    Ok(is_recent && !look(context.source, planned).is_ok_and(|now| now.power == PowerState::Off))
}

fn thaw(context: &Context<'_>, planned: &PlannedVm, leave: &Leave<'_>) -> Vec<String> {
    let now = leave().and_then(|()| look(context.source, planned)).map_err(EngineError::from);
    let result = now.and_then(|now| remove_own_snapshots(context.plan, context.store, context.source, &now));
    result.err().map(|error| error.chain()).into_iter().collect()
}
