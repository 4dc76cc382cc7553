//! What a run of a plan began with.

use std::collections::HashSet;

use drover_plan::{Begun, Others};

use crate::phase::Phase;
use crate::store::{Store, StoreError, StoreFault, VmRow, VmState};

/// The VMs that earlier runs of a plan began with and that were not given up. Where the plan file was given again,
/// one that no run took further than its checks is looked at afresh.
///
/// # Errors
/// If the state cannot be read.
pub fn begun(store: &Store, plan: &str, others: Others) -> Result<Vec<Begun>, StoreError> {
    let mut begun = Vec::new();
    for row in store.vms(plan)?.iter().filter(|row| row.state != VmState::Cancelled) {
        let planned = serde_json::from_str(&row.planned).map_err(|error| {
            let source =
                StoreFault::Value(format!("what was planned of {} cannot be read: {error}", row.name));
            StoreError { path: store.path().to_path_buf(), source }
        })?;
        let has_arrived = row.state == VmState::Done;
        if others == Others::LeftOut || has_arrived || is_on_its_way(store, plan, row)? {
            begun.push(Begun { planned, has_arrived });
        }
    }
    Ok(begun)
}

fn is_on_its_way(store: &Store, plan: &str, row: &VmRow) -> Result<bool, StoreError> {
    let events = store.events_since_begun(plan, &row.id)?;
    let is_later = |phase: &str| phase != Phase::Check.name();
    Ok(events.iter().any(|event| event.kind == "started" && event.phase.as_deref().is_some_and(is_later)))
}

/// VMs that drover holds a snapshot of or has switched off, and that a run with only these VMs would leave so.
///
/// # Errors
/// If the state cannot be read.
pub fn left_out(
    store: &Store,
    plan: &str,
    vms: &[drover_plan::PlannedVm],
) -> Result<Vec<String>, StoreError> {
    let is_held = |row: &VmRow| row.snapshot.is_some() || row.switched_off;
    let is_over = |row: &VmRow| matches!(row.state, VmState::Done | VmState::Cancelled);
    let ids: HashSet<&str> = vms.iter().map(|vm| vm.vm.id.as_str()).collect();
    let is_out = |row: &VmRow| !ids.contains(row.id.as_str());
    let rows = store.vms_in_short(plan)?.into_iter();
    Ok(rows.filter(|row| is_held(row) && !is_over(row) && is_out(row)).map(|row| row.name).collect())
}
