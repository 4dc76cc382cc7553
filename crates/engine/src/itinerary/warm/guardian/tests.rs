use drover_plan::{Plan, resolve};
use drover_types::inventory::{About, Inventory, Snapshot};

use super::*;
use crate::itinerary::own_description;

const PLAN: &str = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\n\
                    target: {type: qemu, folder: /t}\nmode: warm\npower_off: force\nvms: [{glob: '*'}]\n";

fn vm() -> Vm {
    let disk = VmDisk {
        key: 2000,
        label: "Hard disk 1".into(),
        uuid: "6000".into(),
        capacity_bytes: 1 << 30,
        datastore: "ds1".into(),
        path: "[ds1] web/web.vmdk".into(),
        change_id: Some("52 aa/9".into()),
        ..VmDisk::default()
    };
    Vm {
        id: "vm-1".into(),
        name: "web".into(),
        host_id: "host-1".into(),
        power: PowerState::On,
        change_tracking: true,
        disks: vec![disk],
        ..Vm::default()
    }
}

/// What the guardian says of a VM that was as it should be, and then changed.
fn told(change: impl FnOnce(&mut Vm)) -> Result<Doubts, ProviderError> {
    let inventory = Inventory {
        about: About { is_vcenter: true, ..About::default() },
        vms: vec![vm()],
        ..Inventory::default()
    };
    let planned = resolve(&Plan::parse(PLAN).unwrap(), &inventory).vms.remove(0);
    let row = TrackedRow {
        disk: 2000,
        change_id: Some("52 aa/7".into()),
        datastore: "ds1".into(),
        path: "[ds1] web/web.vmdk".into(),
        uuid: "6000".into(),
        capacity: 1 << 30,
    };
    let mut now = vm();
    change(&mut now);
    let before = Before { plan: "p", planned: &planned, host: Some("host-1"), disks: &[row], distrust: None };
    inspect(&before, &now)
}

fn passing(change: impl FnOnce(&mut Vm)) -> String {
    let doubts = told(change).unwrap();
    assert_eq!((doubts.passing.len(), doubts.lasting.len()), (1, 0), "{doubts:?}");
    doubts.all().unwrap()
}

fn refused(change: impl FnOnce(&mut Vm)) -> String {
    let error = told(change).unwrap_err();
    assert!(error.advice.is_some());
    error.what
}

#[test]
fn a_vm_that_is_as_it_was_raises_no_doubt() {
    assert_eq!(told(|_| ()).unwrap(), Doubts::default());
    assert_eq!(told(|_| ()).unwrap().all(), None);
    // Off, or with a file of a snapshot in use, it is the same VM.
    assert_eq!(told(|vm| vm.power = PowerState::Off).unwrap(), Doubts::default());
    let own = Snapshot { description: own_description("p"), ..Snapshot::default() };
    let frozen = |vm: &mut Vm| {
        vm.snapshots.push(own);
        vm.disks[0].path = "[ds1] web/web-000001.vmdk".into();
    };
    assert_eq!(told(frozen).unwrap(), Doubts::default());
}

#[test]
fn whatever_may_have_hidden_changes_is_a_reason_to_compare() {
    assert!(passing(|vm| vm.host_id = "host-2".into()).contains("from host host-1 to host-2"));
    assert!(passing(|vm| vm.disks[0].datastore = "ds2".into()).contains("from datastore ds1 to ds2"));
    assert!(passing(|vm| vm.disks[0].path = "[ds1] web_1/web.vmdk".into()).contains("web_1/web.vmdk"));
    assert!(passing(|vm| vm.change_tracking = false).contains("switched off"));
    assert!(passing(|vm| vm.disks[0].change_id = Some("52 bb/1".into())).contains("began anew"));
    let foreign = told(|vm| vm.snapshots.push(Snapshot { name: "b".into(), ..Snapshot::default() })).unwrap();
    assert_eq!(foreign.lasting, ["somebody else made a snapshot of it (b)"]);
}

#[test]
fn disks_that_are_not_those_of_the_plan_are_refused() {
    assert!(
        refused(|vm| vm.disks[0].capacity_bytes += 1).contains("was grown from 1073741824 to 1073741825")
    );
    assert!(refused(|vm| vm.disks[0].capacity_bytes -= 1).contains("was shrunk"));
    assert!(refused(|vm| vm.disks.clear()).contains("was removed"));
    assert!(refused(|vm| vm.disks.push(VmDisk { key: 2001, ..VmDisk::default() })).contains("was added"));
    assert!(refused(|vm| vm.disks[0].uuid = "6001".into()).contains("is another disk"));
    assert!(refused(|vm| vm.snapshots = vec![Snapshot::default(); 25]).contains("has 25 snapshots"));
}

#[test]
fn an_epoch_is_the_part_before_the_slash() {
    assert!(is_same_epoch(Some("52 aa/7"), Some("52 aa/123")));
    for (earlier, later) in [
        (Some("52 aa/7"), Some("52 ab/7")),
        (Some("52 aa/7"), None),
        (None, Some("52 aa/7")),
        (None, None),
        (Some("7"), Some("7")),
        (Some("*"), Some("*")),
    ] {
        assert!(!is_same_epoch(earlier, later), "{earlier:?} {later:?}");
    }
}
