//! What a plan needs the user to be allowed at vSphere.

use std::collections::{BTreeMap, BTreeSet};

use drover_plan::{PlannedVm, PowerOff, Problem, Resolution};
use drover_types::inventory::PowerState;
use drover_vsphere::{Session, VsphereError};

use crate::vddk::Way;

/// VMs that are named in one problem; the others are counted.
const VMS_NAMED_MAX: usize = 5;

const CREATE_SNAPSHOT: &str = "VirtualMachine.State.CreateSnapshot";
const REMOVE_SNAPSHOT: &str = "VirtualMachine.State.RemoveSnapshot";
const POWER_OFF: &str = "VirtualMachine.Interact.PowerOff";
const POWER_ON: &str = "VirtualMachine.Interact.PowerOn";
const TRACK_CHANGES: &str = "VirtualMachine.Config.ChangeTracking";
const READ_DISK: &str = "VirtualMachine.Provisioning.DiskRandomRead";

/// What each is for. Source: vSphere API reference, "Required Privileges" of the methods that are called.
fn what_for(privilege: &str) -> &'static str {
    match privilege {
        CREATE_SNAPSHOT => "to freeze disks",
        REMOVE_SNAPSHOT => "to remove drover's own snapshots, and to consolidate",
        POWER_OFF => "to shut the guest down",
        POWER_ON => "to switch it on again if the migration fails",
        TRACK_CHANGES => "to switch change tracking on",
        _ => "to read disks, and to ask what changed",
    }
}

/// What the plan will do to a VM.
fn needed(vm: &PlannedVm, way: &Way) -> BTreeSet<&'static str> {
    let mut needed = BTreeSet::from([CREATE_SNAPSHOT, REMOVE_SNAPSHOT]);
    if vm.vm.power == PowerState::On && vm.power_off != PowerOff::Refuse {
        needed.extend([POWER_OFF, POWER_ON]);
    }
    let is_tracked = |key: i32| {
        vm.vm.change_tracking && vm.vm.disks.iter().any(|disk| disk.key == key && disk.change_tracking)
    };
    if vm.warm.is_some() {
        needed.insert(READ_DISK);
        if !vm.disks.iter().all(|disk| is_tracked(disk.disk.key)) {
            needed.insert(TRACK_CHANGES);
        }
    }
    if matches!(way, Way::Vddk(_)) {
        needed.insert(READ_DISK);
    }
    needed
}

/// A problem for each privilege that the user lacks; one that says so where the server cannot tell.
pub fn problems(session: &Session, way: &Way, resolution: &Resolution) -> Result<Vec<Problem>, VsphereError> {
    let mut alike: BTreeMap<BTreeSet<&str>, Vec<&PlannedVm>> = BTreeMap::new();
    resolution.vms.iter().for_each(|vm| alike.entry(needed(vm, way)).or_default().push(vm));
    let mut lacking: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (needed, vms) in alike {
        let ids: Vec<&str> = vms.iter().map(|vm| vm.vm.id.as_str()).collect();
        let needed: Vec<&str> = needed.into_iter().collect();
        let Some(missing) = session.missing_privileges(&ids, &needed)? else {
            let text = "the server does not tell whether this user has the rights that the plan needs";
            return Ok(vec![Problem::warning("source.user", text)]);
        };
        for vm in vms {
            for privilege in missing.get(&vm.vm.id).into_iter().flatten() {
                lacking.entry(privilege.clone()).or_default().push(&vm.vm.name);
            }
        }
    }
    Ok(lacking.iter().map(|(privilege, vms)| problem(privilege, vms)).collect())
}

fn problem(privilege: &str, vms: &[&str]) -> Problem {
    let more = match vms.len().saturating_sub(VMS_NAMED_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = vms[..vms.len().min(VMS_NAMED_MAX)].join(", ");
    let text = format!(
        "the user lacks the privilege {privilege} on {named}{more}: it is needed {}",
        what_for(privilege)
    );
    Problem::error("source.user", text)
        .advise("give the user's role this privilege on the VMs or a folder above them")
}
