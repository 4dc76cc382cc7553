//! Gives a plan up.

use drover_mover::{StopSignal, TransferOptions};
use drover_plan::PlannedVm;

use crate::error::{EngineError, ProviderError, chain};
use crate::event::Board;
use crate::itinerary::{Context, look, remove_own_snapshots, switch_on_again};
use crate::phase::Phase;
use crate::provider::{SourceProvider, TargetProvider};
use crate::runner::PlanLock;
use crate::store::{PlanState, Store, VmState};

/// Gives a plan up: removes snapshots, images and journals of VMs that have not arrived, and switches
/// on what drover switched off. VMs that arrived stay as they are. Gives what could not be undone.
///
/// # Errors
/// If another process runs the plan, or the state cannot be read.
pub fn cancel(
    plan: &str,
    store: &Store,
    source: &dyn SourceProvider,
    target: &dyn TargetProvider,
) -> Result<Vec<String>, EngineError> {
    let _lock = PlanLock::take(store, plan)?;
    let mut left = Vec::new();
    for row in store.vms(plan)? {
        if row.state == VmState::Done {
            continue;
        }
        let planned: PlannedVm = match serde_json::from_str(&row.planned) {
            Ok(planned) => planned,
            Err(error) => {
                left.push(format!("{}: its plan cannot be read ({error})", row.name));
                continue;
            }
        };
        // One that runs at the target has arrived; only its snapshot is still to be removed.
        let arrived = row.phase.as_deref() == Some(Phase::CleanUp.name());
        let problems = if arrived {
            let removed = thaw(plan, source, &planned);
            removed.err().map(|error| chain(&error)).into_iter().collect()
        } else {
            cancel_vm(plan, store, source, target, &planned)
        };
        if problems.is_empty() {
            let state = if arrived { VmState::Done } else { VmState::Cancelled };
            store.set_snapshot(plan, &row.id, None)?;
            store.end_vm(plan, &row.id, state, None)?;
        }
        left.extend(problems.into_iter().map(|problem| format!("{}: {problem}", row.name)));
    }
    let state = if left.is_empty() { PlanState::Cancelled } else { PlanState::Incomplete };
    store.end_plan(plan, state)?;
    Ok(left)
}

fn cancel_vm(
    plan: &str,
    store: &Store,
    source: &dyn SourceProvider,
    target: &dyn TargetProvider,
    planned: &PlannedVm,
) -> Vec<String> {
    let mut left = Vec::new();
    let mut keep = |result: Result<(), ProviderError>| {
        if let Err(error) = result {
            left.push(chain(&error));
        }
    };
    keep(target.stop(planned));
    keep(target.undo_define(planned));
    keep(target.remove_images(planned));
    keep(thaw(plan, source, planned));
    let (board, options, stop) = (Board::default(), TransferOptions::default(), StopSignal::default());
    let context = Context {
        plan,
        source,
        target,
        store,
        observer: &crate::event::NoObserver,
        board: &board,
        options: &options,
        stop: &stop,
    };
    left.extend(switch_on_again(&context, planned));
    left
}

fn thaw(plan: &str, source: &dyn SourceProvider, planned: &PlannedVm) -> Result<(), ProviderError> {
    remove_own_snapshots(plan, source, &look(source, planned)?)
}
