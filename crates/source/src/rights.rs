//! What a plan needs the user to be allowed at vSphere.

use std::collections::{BTreeMap, BTreeSet};

use drover_plan::{NAMES_SHOWN_MAX, PlannedVm, PowerOff, Problem, Resolution};
use drover_types::inventory::{Inventory, PowerState};
use drover_types::some_of;
use drover_vsphere::{Entity, Session, VsphereError};

use crate::vddk::Way;

const CREATE_SNAPSHOT: &str = "VirtualMachine.State.CreateSnapshot";
const REMOVE_SNAPSHOT: &str = "VirtualMachine.State.RemoveSnapshot";
const POWER_OFF: &str = "VirtualMachine.Interact.PowerOff";
const POWER_ON: &str = "VirtualMachine.Interact.PowerOn";
const TRACK_CHANGES: &str = "VirtualMachine.Config.ChangeTracking";
const READ_DISK: &str = "VirtualMachine.Provisioning.DiskRandomRead";
const READ_FILES: &str = "VirtualMachine.Provisioning.GetVmFiles";
/// Either gets a ticket to read by NFC.
const NFC: [&str; 2] = [READ_FILES, READ_DISK];

/// To list the files of a datastore, on the datastore: their times tell whether a copy may go on.
const BROWSE: &str = "Datastore.Browse";
/// To read a file of a datastore over HTTPS, on the datastore. Source: vSphere Web Services SDK Programming Guide, "Privilege
/// Requirements for HTTP Access".
const READ_STORES: &[&str] = &[BROWSE, "Datastore.FileManagement"];

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
pub fn problems(
    session: &Session,
    way: &Way,
    resolution: &Resolution,
    inventory: &Inventory,
) -> Result<Vec<Problem>, VsphereError> {
    let Some(of_vms) = on_vms(session, way, resolution)? else { return Ok(vec![untold()]) };
    let Some(of_datastores) = on_datastores(session, way, resolution, inventory)? else {
        return Ok([of_vms, vec![untold()]].concat());
    };
    Ok([of_vms, of_datastores].concat())
}

fn untold() -> Problem {
    let text = "the server does not tell whether this user has the rights that the plan needs";
    Problem::warning("source.user", text)
}

/// Absent if the server cannot tell.
fn on_vms(
    session: &Session,
    way: &Way,
    resolution: &Resolution,
) -> Result<Option<Vec<Problem>>, VsphereError> {
    let mut alike: BTreeMap<BTreeSet<&str>, Vec<&PlannedVm>> = BTreeMap::new();
    resolution.vms.iter().for_each(|vm| alike.entry(needed(vm, way)).or_default().push(vm));
    let mut lacking: BTreeMap<String, Vec<&PlannedVm>> = BTreeMap::new();
    let mut without_nfc: Vec<&PlannedVm> = Vec::new();
    for (needed, vms) in alike {
        let ids: Vec<&str> = vms.iter().map(|vm| vm.vm.id.as_str()).collect();
        let nfc = NFC.iter().filter(|_| matches!(way, Way::Nfc(_)));
        let asked: Vec<&str> = needed.union(&nfc.copied().collect()).copied().collect();
        let Some(missing) = session.missing_privileges(Entity::Vm, &ids, &asked)? else { return Ok(None) };
        for vm in vms {
            let missing = missing.get(&vm.vm.id).map(Vec::as_slice).unwrap_or_default();
            for privilege in missing.iter().filter(|it| needed.contains(it.as_str())) {
                lacking.entry(privilege.clone()).or_default().push(vm);
            }
            if NFC.iter().all(|it| missing.iter().any(|lacked| lacked == it)) {
                without_nfc.push(vm);
            }
        }
    }
    let problem = |(privilege, vms): (&String, &Vec<&PlannedVm>)| {
        let text = format!("{}: it is needed {}", lacks(privilege, &names(vms)), what_for(privilege));
        Problem::error("source.user", text)
            .advise("give the user's role this privilege on the VMs or a folder above them")
            .of_vms(ids(vms))
    };
    let mut problems: Vec<Problem> = lacking.iter().map(problem).collect();
    if let Way::Nfc(nfc) = way
        && !without_nfc.is_empty()
    {
        problems.push(no_nfc(&without_nfc, nfc.insists));
    }
    Ok(Some(problems))
}

fn names<'a>(vms: &[&'a PlannedVm]) -> Vec<&'a str> {
    vms.iter().map(|vm| vm.vm.name.as_str()).collect()
}

fn ids<'a>(vms: &[&'a PlannedVm]) -> Vec<&'a str> {
    vms.iter().map(|vm| vm.vm.id.as_str()).collect()
}

/// Without either privilege no ticket is given; what the plan says decides whether that matters.
fn no_nfc(vms: &[&PlannedVm], insists: bool) -> Problem {
    let text = format!(
        "the user lacks the privileges {READ_FILES} and {READ_DISK} on {}: one of them is needed to read disks by NFC",
        some_of(&names(vms), NAMES_SHOWN_MAX)
    );
    let advice = "give the user's role one of them on the VMs or a folder above them";
    match insists {
        true => Problem::error("source.user", text).advise(advice).of_vms(ids(vms)),
        false => Problem::warning("source.user", format!("{text}, so HTTPS ranges are tried"))
            .advise(format!("{advice}, or write data.path: https")),
    }
}

/// Where disks are read by HTTPS ranges, or may have to be, or a cold copy of them should go on after an interruption. Absent if
/// the server cannot tell.
fn on_datastores(
    session: &Session,
    way: &Way,
    resolution: &Resolution,
    inventory: &Inventory,
) -> Result<Option<Vec<Problem>>, VsphereError> {
    let (asked, is_must, what_for): (&[&str], bool, &str) = match way {
        Way::Https(_) => (READ_STORES, true, "to read disks over HTTPS"),
        Way::Nfc(nfc) if !nfc.insists => {
            (READ_STORES, false, "where disks cannot be read by NFC and are read over HTTPS")
        }
        Way::Nfc(_) | Way::Vddk(_) => {
            (&[BROWSE], false, "for a cold copy that was interrupted to go on where it was")
        }
    };
    let is_read = |vm: &&PlannedVm| asked == READ_STORES || vm.warm.is_none();
    let read = || resolution.vms.iter().filter(is_read);
    let disks = read().flat_map(|vm| &vm.disks);
    let names: BTreeSet<&str> = disks.map(|disk| disk.disk.datastore.as_str()).collect();
    // Datacenters may have datastores of one name each.
    let stores: Vec<_> = inventory.datastores.iter().filter(|it| names.contains(it.name.as_str())).collect();
    if stores.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let ids: Vec<&str> = stores.iter().map(|store| store.id.as_str()).collect();
    let Some(missing) = session.missing_privileges(Entity::Datastore, &ids, asked)? else {
        return Ok(None);
    };
    let problem = |privilege: &&str| {
        let lacks_it = |id: &str| missing.get(id).is_some_and(|all| all.iter().any(|it| it == privilege));
        let lacking: Vec<&str> =
            stores.iter().filter(|store| lacks_it(&store.id)).map(|store| store.name.as_str()).collect();
        if lacking.is_empty() {
            return None;
        }
        let text = format!("{}: it is needed {what_for}", lacks(privilege, &lacking));
        let problem = match is_must {
            true => Problem::error("source.user", text),
            false => Problem::warning("source.user", text),
        };
        let lies_there =
            |vm: &&PlannedVm| vm.disks.iter().any(|disk| lacking.contains(&disk.disk.datastore.as_str()));
        let problem = problem.of_vms(read().filter(lies_there).map(|vm| vm.vm.id.as_str()));
        Some(problem.advise("give the user's role this privilege on the datastores or a folder above them"))
    };
    Ok(Some(asked.iter().filter_map(problem).collect()))
}

fn lacks(privilege: &str, names: &[&str]) -> String {
    format!("the user lacks the privilege {privilege} on {}", some_of(names, NAMES_SHOWN_MAX))
}
