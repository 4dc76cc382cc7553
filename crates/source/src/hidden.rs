//! What of an inventory does not count for a plan that goes on: its own snapshots, and what its passes see to.

use std::collections::BTreeSet;

use drover_engine::{Store, StoreError, is_own_snapshot};
use drover_plan::{Plan, resolve};
use drover_types::inventory::{Inventory, Snapshot};

/// Hides snapshots that drover made for this plan and an earlier run could not remove, so that they do
/// not stop the plan from going on. A VM that has others too shows them all.
pub fn hide_own_snapshots(inventory: &mut Inventory, plan: &str) {
    for vm in &mut inventory.vms {
        let own = |snapshot: &Snapshot| is_own_snapshot(&snapshot.description, plan);
        if !vm.snapshots.is_empty() && vm.snapshots.iter().all(own) {
            vm.snapshots.clear();
            vm.disks.iter_mut().for_each(|disk| disk.has_parent = false);
        }
    }
}

/// Hides what the guardian of warm VMs judges before each pass, and what would stop a plan that is only begun.
///
/// # Errors
/// If the store cannot be read.
pub fn hide_what_passes_see_to(
    plan: &Plan,
    store: &Store,
    inventory: &mut Inventory,
) -> Result<(), StoreError> {
    let mut begun: BTreeSet<String> = store.passes(&plan.name)?.into_iter().map(|pass| pass.vm).collect();
    if !begun.is_empty() {
        // A plan may have been edited since: what moves cold now has no guardian.
        let planned = resolve(plan, inventory).vms;
        let warm: BTreeSet<&str> =
            planned.iter().filter(|vm| vm.warm.is_some()).map(|vm| vm.vm.id.as_str()).collect();
        begun.retain(|id| warm.contains(id.as_str()));
        hide_left_files(inventory, &begun);
        hide_foreign_snapshots(inventory, &begun);
    }
    Ok(())
}

/// Hides files that removed snapshots left of VMs whose passes have begun: one of drover's own may have been removed
/// so, and the next pass consolidates them. Nobody else's disks are touched because a plan names them.
fn hide_left_files(inventory: &mut Inventory, begun: &BTreeSet<String>) {
    for vm in inventory.vms.iter_mut().filter(|vm| vm.consolidation_needed && begun.contains(&vm.id)) {
        vm.consolidation_needed = false;
        if vm.snapshots.is_empty() {
            vm.disks.iter_mut().for_each(|disk| disk.has_parent = false);
        }
    }
}

/// Hides snapshots of VMs whose passes have begun, somebody's backup above all: the guardian sees them before every
/// pass, says so, and has everything compared as long as they are there. Before the first pass they stop a plan.
fn hide_foreign_snapshots(inventory: &mut Inventory, begun: &BTreeSet<String>) {
    for vm in inventory.vms.iter_mut().filter(|vm| !vm.snapshots.is_empty() && begun.contains(&vm.id)) {
        vm.snapshots.clear();
        vm.disks.iter_mut().for_each(|disk| disk.has_parent = false);
    }
}

#[cfg(test)]
mod tests {
    use drover_types::inventory::{Vm, VmDisk};

    use super::*;

    #[test]
    fn files_that_snapshots_left_are_no_obstacle_for_vms_on_their_way_and_for_no_others() {
        let vm = |id: &str, snapshots: usize| Vm {
            id: id.into(),
            consolidation_needed: true,
            snapshots: vec![Snapshot::default(); snapshots],
            disks: vec![VmDisk { has_parent: true, ..VmDisk::default() }],
            ..Vm::default()
        };
        let vms = vec![vm("begun", 0), vm("frozen", 1), vm("other", 0)];
        let mut inventory = Inventory { vms, ..Inventory::default() };
        hide_left_files(&mut inventory, &["begun", "frozen"].map(String::from).into());
        let seen =
            |at: usize| (inventory.vms[at].consolidation_needed, inventory.vms[at].disks[0].has_parent);
        assert_eq!([0, 1, 2].map(seen), [(false, false), (false, true), (true, true)]);
        inventory.vms[2].snapshots.push(Snapshot::default());
        hide_foreign_snapshots(&mut inventory, &["begun", "frozen"].map(String::from).into());
        let frozen = |at: usize| (inventory.vms[at].snapshots.len(), inventory.vms[at].disks[0].has_parent);
        assert_eq!([1, 2].map(frozen), [(0, false), (1, true)]);
    }
}
