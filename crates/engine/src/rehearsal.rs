//! Which VMs of a plan have a copy that can be rehearsed, and that nobody works on it meanwhile.

use drover_plan::PlannedVm;

use crate::error::EngineError;
use crate::phase::Phase;
use crate::provider::TargetProvider;
use crate::runner::PlanLock;
use crate::store::{PassState, Store, VmRow, VmState};

/// A plan that nobody else runs as long as this is kept.
pub struct HeldPlan {
    _lock: PlanLock,
}

/// Keeps a plan from being run, or given up.
///
/// # Errors
/// If another process runs it.
pub fn hold_plan(store: &Store, plan: &str) -> Result<HeldPlan, EngineError> {
    Ok(HeldPlan { _lock: PlanLock::take(store, plan)? })
}

/// The state of a VM's copy, as far as a rehearsal is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// Its images are whole; whether their guest has been converted already.
    Whole {
        /// Whether a conversion is behind it, if the plan wants one.
        is_converted: bool,
    },
    /// It cannot be rehearsed now, and why.
    NotReady(String),
}

/// Judges a VM's copy. The plan is held, so that it stays so.
///
/// # Errors
/// If state or target cannot be read.
pub fn copy_of(
    store: &Store,
    plan: &str,
    row: &VmRow,
    planned: &PlannedVm,
    target: &dyn TargetProvider,
) -> Result<CopyState, EngineError> {
    let not_ready = |why: &str| Ok(CopyState::NotReady(why.to_string()));
    if row.state == VmState::Cancelled {
        return not_ready("it was given up");
    }
    if target.is_running(planned)? {
        return not_ready("it runs at the target, from these images");
    }
    let reached = Phase::WARM.into_iter().find(|phase| row.phase.as_deref() == Some(phase.name()));
    let Some(reached) = reached else { return not_ready("it was not begun") };
    let is_past_copy = reached > Phase::Copy;
    if planned.warm.is_some() {
        // A pass that was cut off has overwritten blocks of one moment with those of another.
        let last = store.passes_of(plan, &row.id)?.pop();
        match last.map(|pass| pass.state) {
            Some(PassState::Complete) => {}
            Some(PassState::Begun | PassState::Failed) => {
                return not_ready("its last pass is not complete; `drover resume` completes it");
            }
            None => return not_ready("no pass of it is complete"),
        }
    } else if !is_past_copy {
        return not_ready("its copy is not complete; `drover resume` completes it");
    }
    let disks = store.disks(plan)?;
    for disk in &planned.disks {
        let is_whole = disks.iter().any(|it| it.vm == row.id && it.number == disk.index && it.root.is_some());
        if !is_whole || !target.has_image(disk, planned)? {
            let label = &disk.disk.label;
            return not_ready(&format!("the copy of {label} is not there, or not whole"));
        }
    }
    Ok(CopyState::Whole { is_converted: reached > Phase::Convert })
}
