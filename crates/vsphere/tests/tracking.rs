//! Changed block tracking of the vSphere simulator: switched on, asked, reset, lied about.
#![allow(clippy::unwrap_used)]

mod sim;

use std::error::Error as _;

use drover_types::inventory::Vm;
use drover_vsphere::{Session, VsphereError, VsphereErrorKind};
use serde_json::json;

use sim::Sim;

const MARK: &str = "made by drover for plan test";

/// Starts a simulator, or ends the test after a printed reason.
macro_rules! simulator {
    () => {
        match Sim::start_with("vcenter", include_str!("sim/warm.yaml")) {
            Some(sim) => sim,
            None => return,
        }
    };
}

fn untracked_disks(vm: &Vm) -> usize {
    vm.disks.iter().filter(|disk| disk.change_id.is_none()).count()
}

#[test]
fn a_running_vm_is_tracked_after_a_snapshot_that_is_gone_again() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "untracked");
    assert_eq!((vm.change_tracking, untracked_disks(&vm)), (false, 2));
    let done = session.enable_change_tracking(&vm, MARK).unwrap();
    assert_eq!(done.len(), 2, "{done:?}");
    let now = session.vm(&vm.id).unwrap();
    assert_eq!((now.change_tracking, untracked_disks(&now)), (true, 0));
    assert!(now.snapshots.is_empty() && now.disks.iter().all(|disk| disk.change_tracking));
    sim.post("/stats/reset", json!({}));
    assert_eq!(session.enable_change_tracking(&now, MARK).unwrap(), Vec::<String>::new());
    assert_eq!((sim.calls("ReconfigVM_Task"), sim.calls("CreateSnapshot_Task")), (0, 0));
}

#[test]
fn a_disk_that_was_left_out_is_switched_on_by_its_own_setting() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "half");
    let ids = |vm: &Vm| -> Vec<bool> { vm.disks.iter().map(|disk| disk.change_id.is_some()).collect() };
    assert_eq!((vm.change_tracking, ids(&vm)), (true, vec![true, false]));
    let before = vm.disks[0].change_id.clone().unwrap();
    let done = session.enable_change_tracking(&vm, MARK).unwrap();
    assert_eq!(done[0], "switched change tracking on for Hard disk 2");
    let now = session.vm(&vm.id).unwrap();
    assert_eq!((ids(&now), now.snapshots.len()), (vec![true, true], 0));
    assert_eq!(epoch(now.disks[0].change_id.as_deref().unwrap()), epoch(&before), "the first goes on");
}

fn epoch(change_id: &str) -> &str {
    change_id.split_once('/').unwrap().0
}

#[test]
fn a_vm_that_is_off_is_tracked_without_a_snapshot() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "off");
    let done = session.enable_change_tracking(&vm, MARK).unwrap();
    assert_eq!(done, ["switched change tracking on"]);
    assert_eq!(sim.calls("CreateSnapshot_Task"), 0);
    session.power_on(&vm.id).unwrap();
    let now = session.vm(&vm.id).unwrap();
    assert_eq!(untracked_disks(&now), 0, "switching on is a stun");
}

fn refusal(session: &Session, name: &str) -> String {
    let vm = sim::vm(session, "", name);
    let error: VsphereError = session.enable_change_tracking(&vm, MARK).unwrap_err();
    assert_eq!(error.kind, VsphereErrorKind::Unsupported, "{error}");
    let now = session.vm(&vm.id).unwrap();
    assert!(!now.change_tracking && now.snapshots == vm.snapshots, "a refusal leaves everything as it was");
    error.source().unwrap().to_string()
}

#[test]
fn what_vsphere_would_not_track_is_refused_before_anything_is_changed() {
    let sim = simulator!();
    let session = sim.session();
    assert!(refusal(&session, "foreign").contains("before-patch"));
    assert!(refusal(&session, "independent").starts_with("Hard disk 2 is an independent disk"));
    assert!(refusal(&session, "ancient").contains("virtual hardware vmx-04 is too old"));
    assert!(refusal(&session, "mapped").contains("raw device mapping in physical mode"));
    // A disk that stays behind does not matter.
    let mut vm = sim::vm(&session, "", "independent");
    vm.disks.truncate(1);
    session.enable_change_tracking(&vm, MARK).unwrap();
    assert!(session.vm(&vm.id).unwrap().disks[0].change_id.is_some());
}

#[test]
fn a_snapshot_that_an_earlier_try_left_is_removed_first() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "untracked");
    let fault = json!({"method": "RemoveSnapshot_Task", "fault": "FileFault", "as": "task"});
    sim.post("/fault/soap", fault);
    session.enable_change_tracking(&vm, MARK).unwrap_err();
    assert_eq!(session.vm(&vm.id).unwrap().snapshots.len(), 1);
    let done = session.enable_change_tracking(&vm, MARK).unwrap();
    assert_eq!(done, ["removed a snapshot that an earlier try had left"], "it was its stun already");
    let now = session.vm(&vm.id).unwrap();
    assert!(now.snapshots.is_empty() && untracked_disks(&now) == 0);
}
