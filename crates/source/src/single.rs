//! One disk of a VM that no plan names, read as it lies there: its VM is off, or whoever reads it knows that it changes.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use drover_engine::{Cause, OpenedSource, ProviderError};
use drover_types::count;
use drover_types::inventory::{PowerState, Vm, VmDisk};
use drover_vsphere::{OpenDisk, Route, Session};

use crate::nfc::{self, Asked, NfcWay};
use crate::vsphere::{by_ranges, of_ranges, provider_error};

/// A disk of a VM, which is told by its name or id.
///
/// # Errors
/// If there is no such disk, several VMs have the name, or vSphere does not tell.
pub fn find_disk(session: &Session, vm: &str, disk: usize) -> Result<(Vm, VmDisk), ProviderError> {
    let inventory = session.inventory().map_err(provider_error)?;
    let failed = |what: String| ProviderError::new(Cause::Source, what);
    let found: Vec<_> = inventory.vms.iter().filter(|it| it.name == vm || it.id == vm).collect();
    let vm = match found.as_slice() {
        [] => return Err(failed(format!("there is no VM '{vm}'")).advise("see `drover inventory`")),
        [vm] => *vm,
        many => {
            let ids: Vec<String> = many.iter().map(|vm| format!("{} in {}", vm.id, vm.folder)).collect();
            let what = format!("{} VMs are called '{vm}': {}", many.len(), ids.join(", "));
            return Err(failed(what).advise("give the id instead of the name"));
        }
    };
    let Some(found) = vm.disks.get(disk) else {
        let disks = count(vm.disks.len(), "disk");
        return Err(failed(format!("{} has {disks}, so there is no disk {disk}", vm.name)));
    };
    Ok((vm.clone(), found.clone()))
}

/// Opens it: by NFC, and by HTTPS ranges where a host does not give it so. The user has this state folder.
///
/// # Errors
/// If it is given in neither way.
pub fn open_disk(
    session: &Session,
    vm: &Vm,
    disk: &VmDisk,
    own_state: &Path,
) -> Result<OpenedSource, ProviderError> {
    let route = Route::Provider;
    let asked = OpenDisk { vm, disk, snapshot: None, route: &route, datacenter: &vm.datacenter };
    let ranges = session.open_disk(asked);
    // What tells the files' state is their time, which only the datastore knows. Without it a copy never goes on.
    // While it runs, the time of a file may lag behind what its guest writes.
    let is_off = vm.power == PowerState::Off;
    let state = || session.disk_files(vm, disk).and_then(|files| session.disk_state(vm, disk, &files)).ok();
    let state = is_off.then(state).flatten();
    let identity = match (state, &ranges) {
        (Some(state), _) => state,
        (None, Ok(opened)) => opened.disk.identity(),
        (None, Err(_)) => format!("vsphere {} file={} {}", vm.instance_uuid, disk.path, once()),
    };
    let notes: Arc<Mutex<Vec<String>>> = Arc::default();
    let extents = session.allocated_areas(&vm.id, None, disk, &notes);
    let asked = Asked { session, vm, disk, frozen: disk, route, identity, extents, trace: None };
    match NfcWay::unasked(own_state).open(asked) {
        Ok(opened) => Ok(nfc::opened(opened, notes)),
        Err(error) => by_ranges(&error, |why| Ok(of_ranges(ranges.map_err(provider_error)?, why))),
    }
}

/// What no other opening has.
fn once() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("opened={}.{}", std::process::id(), since.as_nanos())
}
