//! What changed, asked of the vSphere simulator while its guests write, its users move VMs and its tracking lies.
#![allow(clippy::unwrap_used)]

mod sim;

use std::path::PathBuf;

use drover_disk::{Disk, DiskErrorKind};
use drover_types::inventory::{PowerState, Vm, VmDisk};
use drover_types::{ByteSpan, Secret};
use drover_vsphere::{
    ChangedAreas, ConnectOptions, OpenDisk, OpenedDisk, Route, Session, VsphereError, VsphereErrorKind,
};
use serde_json::json;

use sim::Sim;

const BLOCK: u64 = 64 << 10;
const MIB: u64 = 1 << 20;

/// Starts a simulator, or ends the test after a printed reason.
macro_rules! simulator {
    () => {
        match Sim::start_with("vcenter", include_str!("sim/warm.yaml")) {
            Some(sim) => sim,
            None => return,
        }
    };
}

/// A VM under a snapshot, as a pass of a warm migration has it.
struct Frozen {
    vm: Vm,
    snapshot: String,
    disks: Vec<VmDisk>,
}

fn freeze(session: &Session, vm: &Vm, name: &str) -> Frozen {
    let vm = session.vm(&vm.id).unwrap();
    let (snapshot, disks) = session.freeze(&vm.id, name, "test", false).unwrap();
    Frozen { vm, snapshot: snapshot.id, disks }
}

impl Frozen {
    /// Areas of the first disk since a change id.
    fn areas(&self, session: &Session, change_id: &str) -> Result<Vec<ByteSpan>, VsphereError> {
        let disk = &self.disks[0];
        session.changed_areas(&ChangedAreas {
            vm: &self.vm.id,
            snapshot: Some(&self.snapshot),
            disk_key: disk.key,
            capacity_bytes: disk.capacity_bytes,
            change_id,
            is_down: false,
        })
    }

    fn change_id(&self) -> String {
        self.disks[0].change_id.clone().expect("the disk is tracked")
    }

    fn open(&self, session: &Session) -> Result<OpenedDisk, VsphereError> {
        self.open_by(session, &Route::Provider)
    }

    fn open_by(&self, session: &Session, route: &Route) -> Result<OpenedDisk, VsphereError> {
        session.open_disk(OpenDisk {
            vm: &self.vm,
            disk: &self.vm.disks[0],
            snapshot: Some(&self.snapshot),
            route,
            datacenter: &self.vm.datacenter,
        })
    }

    /// The first disk's content as the simulator's own file has it.
    fn truth(&self, sim: &Sim) -> Vec<u8> {
        let disks = sim.get(&format!("/disks?vm={}", self.vm.id));
        let path = disks[0]["disks"][0]["frozen"][&self.snapshot]["path"].as_str().map(PathBuf::from);
        std::fs::read(path.expect("the snapshot is known")).unwrap()
    }
}

/// The bytes of `spans`, put where they belong in `copy`.
fn read_into(disk: &dyn Disk, spans: &[ByteSpan], copy: &mut [u8]) {
    let mut lane = disk.open_lane().unwrap();
    for span in spans {
        for at in (span.offset..span.end()).step_by(MIB as usize) {
            let piece = ByteSpan::from_bounds(at, span.end().min(at + MIB));
            lane.submit(sim::read(at, piece));
            let done = sim::next(&mut *lane);
            done.result.unwrap();
            let drover_disk::Work::Read(buffer) = done.work else { panic!("a read gives a read back") };
            copy[piece.offset as usize..piece.end() as usize].copy_from_slice(&buffer);
        }
    }
}

fn bytes(spans: &[ByteSpan]) -> u64 {
    spans.iter().map(|span| span.length).sum()
}

/// Takes a running VM through passes, and compares the copy with what each of them froze.
fn run_passes(sim: &Sim, session: &Session, route: &Route) {
    let vm = sim::vm(session, "", "tracked");
    sim.fill(&vm.id, 0, ByteSpan::new(0, 8 * MIB));
    sim.post("/writer", json!({"vm": vm.id, "disk": 0, "bytes_per_s": 20_000_000, "span": "1MiB-2MiB"}));
    let mut copy = vec![0; vm.disks[0].capacity_bytes as usize];
    let mut since = "*".to_string();
    for pass in 1..=4 {
        // Something that no writer wrote before, so that each pass has to bring it.
        sim.fill(&vm.id, 0, ByteSpan::new(pass * 3 * MIB, 5000));
        let frozen = freeze(session, &vm, &format!("drover-{pass}"));
        assert_eq!(frozen.vm.power, PowerState::On);
        let areas = frozen.areas(session, &since).unwrap();
        let opened = frozen.open_by(session, route).unwrap();
        assert_eq!(
            opened.change_id,
            Some(frozen.change_id()),
            "as the snapshot's own configuration tells it"
        );
        read_into(&*opened.disk, &areas, &mut copy);
        assert!(copy == frozen.truth(sim), "pass {pass} of {} bytes", bytes(&areas));
        assert!(pass == 1 || bytes(&areas) < 4 * MIB, "a delta is small: {areas:?}");
        since = frozen.change_id();
        // Change ids outlive their snapshot.
        session.remove_snapshot(&frozen.snapshot).unwrap();
    }
    assert!(sim.stop_writer(&vm.id) > 0, "the guest wrote all along");
    let last = freeze(session, &vm, "drover-last");
    read_into(&*last.open_by(session, route).unwrap().disk, &last.areas(session, &since).unwrap(), &mut copy);
    assert!(copy == last.truth(sim));
    assert!(copy == sim.live(&vm.id), "nobody writes any more, so this is the disk as the guest left it");
}

#[test]
fn passes_over_a_running_vm_by_https_give_each_frozen_state_while_the_guest_writes_on() {
    let sim = simulator!();
    run_passes(&sim, &sim.session(), &Route::Provider);
}

#[test]
fn passes_go_straight_to_the_host_with_tickets_as_well() {
    let sim = simulator!();
    let address = format!("127.0.3.1:{}", sim.port);
    run_passes(&sim, &sim.session(), &Route::Host { address, trust: sim.trust(), login: None });
}

#[test]
fn passes_over_a_vm_of_a_host_without_vcenter() {
    let Some(sim) = Sim::start_with("esxi", include_str!("sim/warm.yaml")) else { return };
    let login = ConnectOptions { user: "root".into(), password: Secret::new("rootpw"), ..sim.options() };
    let session = Session::connect(login).unwrap();
    let vm = sim::vm(&session, "", "untracked");
    session.enable_change_tracking(&vm, "test").unwrap();
    assert!(session.vm(&vm.id).unwrap().disks.iter().all(|disk| disk.change_id.is_some()));
    run_passes(&sim, &session, &Route::Provider);
}

#[test]
fn a_file_that_moves_away_while_it_is_read_is_an_error_and_is_found_again() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "tracked");
    sim.fill(&vm.id, 0, ByteSpan::new(0, 2 * MIB));
    let frozen = freeze(&session, &vm, "drover-1");
    let opened = frozen.open(&session).unwrap();
    sim.post("/vm/move", json!({"vm": vm.id, "datastore": "ds2", "host": "esx2.lab"}));
    let mut lane = opened.disk.open_lane().unwrap();
    lane.submit(sim::read(1, ByteSpan::new(0, MIB)));
    let error = sim::next(&mut *lane).result.unwrap_err();
    assert_eq!(error.kind, DiskErrorKind::Gone, "{error:?}");
    let again = frozen.open(&session).unwrap();
    assert!(sim::read_whole(&*again.disk, MIB) == frozen.truth(&sim));
}

#[test]
fn a_base_file_that_lacks_later_changes_is_refused() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "foreign");
    sim.fill(&vm.id, 0, ByteSpan::new(0, MIB));
    let frozen = freeze(&session, &vm, "drover-1");
    let error = frozen.open(&session).unwrap_err();
    assert_eq!(error.kind, VsphereErrorKind::Unsupported, "{error}");
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        source.contains("foreign-000001.vmdk holds only the changes since an earlier snapshot"),
        "{source}"
    );

    // With the foreign one gone, the same snapshot is in the base file and holds everything.
    let foreign = vm.snapshots.iter().find(|snapshot| snapshot.name == "before-patch").unwrap();
    session.remove_snapshot(&foreign.id).unwrap();
    let opened = frozen.open(&session).unwrap();
    assert!(sim::read_whole(&*opened.disk, MIB) == frozen.truth(&sim));
}

#[test]
fn a_middle_snapshot_moves_the_younger_one_to_another_file_with_the_same_content() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "tracked");
    let mut ids = Vec::new();
    for name in ["oldest", "middle", "youngest"] {
        sim.fill(&vm.id, 0, ByteSpan::new(0, MIB));
        ids.push(freeze(&session, &vm, name));
    }
    let path = || session.snapshot_disks(&ids[2].snapshot).unwrap()[0].path.clone();
    assert!(path().ends_with("-000002.vmdk"), "{}", path());
    session.remove_snapshot(&ids[1].snapshot).unwrap();
    assert!(path().ends_with("-000001.vmdk"), "{}", path());
    assert_eq!(ids[2].areas(&session, &ids[1].change_id()).unwrap(), [ByteSpan::new(0, MIB)]);
    session.remove_snapshot(&ids[0].snapshot).unwrap();
    let opened = ids[2].open(&session).unwrap();
    assert!(sim::read_whole(&*opened.disk, MIB) == ids[2].truth(&sim));
}

#[test]
fn more_areas_than_one_answer_holds_are_all_told_to_the_very_end() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "large");
    let first = freeze(&session, &vm, "drover-1");
    session.remove_snapshot(&first.snapshot).unwrap();
    let end = vm.disks[0].capacity_bytes;
    let many = json!({"vm": vm.id, "disk": 0, "offset": 0, "hex": "ff", "every": 2 * BLOCK, "count": 2500});
    sim.post("/write", many);
    sim.post("/write", json!({"vm": vm.id, "disk": 0, "offset": end - 1, "hex": "ff"}));
    let second = freeze(&session, &vm, "drover-2");
    let calls = sim.calls("QueryChangedDiskAreas");
    let areas = second.areas(&session, &first.change_id()).unwrap();
    assert_eq!(sim.calls("QueryChangedDiskAreas") - calls, 2, "2,000 in one answer");
    assert_eq!(areas.len(), 2501);
    assert!(areas[..2500].iter().zip(0..).all(|(area, i)| *area == ByteSpan::new(i * 2 * BLOCK, BLOCK)));
    assert_eq!(areas[2500], ByteSpan::from_bounds(end / BLOCK * BLOCK, end));
}

#[test]
fn areas_across_blocks_and_beyond_the_capacity_are_cut_at_the_end() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "large");
    let end = vm.disks[0].capacity_bytes;
    let first = freeze(&session, &vm, "drover-1");
    sim.post("/cbt/max_areas", json!({"n": 1}));
    sim.post("/cbt/lie", json!({"vm": vm.id, "disk": 0, "pad": "777"}));
    for offset in [0, 5 * BLOCK, end - 1] {
        sim.post("/write", json!({"vm": vm.id, "disk": 0, "offset": offset, "hex": "ff"}));
    }
    let second = freeze(&session, &vm, "drover-2");
    let wanted = [
        ByteSpan::new(0, BLOCK + 777),
        ByteSpan::new(5 * BLOCK - 777, BLOCK + 2 * 777),
        ByteSpan::from_bounds(end / BLOCK * BLOCK - 777, end),
    ];
    assert_eq!(second.areas(&session, &first.change_id()).unwrap(), wanted);
}

#[test]
fn widened_areas_are_taken_as_they_are_told() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "tracked");
    let first = freeze(&session, &vm, "drover-1");
    sim.post("/cbt/lie", json!({"vm": vm.id, "disk": 0, "widen": "4MiB"}));
    sim.fill(&vm.id, 0, ByteSpan::new(5 * MIB, 10));
    let areas = freeze(&session, &vm, "drover-2").areas(&session, &first.change_id()).unwrap();
    assert_eq!(areas, [ByteSpan::new(4 * MIB, 4 * MIB)]);
}

#[test]
fn changes_are_unknown_after_a_reset_a_storage_move_and_without_tracking() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "tracked");
    let epoch = |id: &str| id.split_once('/').unwrap().0.to_string();
    let unknown = |frozen: &Frozen, id: &str| {
        let error = frozen.areas(&session, id).unwrap_err();
        assert_eq!(error.kind, VsphereErrorKind::ChangesUnknown, "{error}");
    };
    let first = freeze(&session, &vm, "drover-1");
    session.remove_snapshot(&first.snapshot).unwrap();
    sim.post("/cbt/reset", json!({"vm": vm.id}));
    let second = freeze(&session, &vm, "drover-2");
    assert_ne!(epoch(&first.change_id()), epoch(&second.change_id()));
    unknown(&second, &first.change_id());
    assert!(second.areas(&session, "*").is_ok());
    session.remove_snapshot(&second.snapshot).unwrap();

    sim.post("/vm/move", json!({"vm": vm.id, "datastore": "ds2"}));
    let third = freeze(&session, &vm, "drover-3");
    assert_ne!(epoch(&second.change_id()), epoch(&third.change_id()));
    assert_eq!((third.vm.disks[0].datastore.as_str(), &third.vm.disks[0].uuid), ("ds2", &vm.disks[0].uuid));
    unknown(&third, &second.change_id());
    assert!(sim::read_whole(&*third.open(&session).unwrap().disk, MIB) == third.truth(&sim));

    let untracked = freeze(&session, &sim::vm(&session, "", "untracked"), "drover-1");
    assert_eq!(untracked.disks[0].change_id, None);
    unknown(&untracked, "*");
}

#[test]
fn a_failure_that_may_pass_is_not_taken_for_unknown_changes() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "tracked");
    let frozen = freeze(&session, &vm, "drover-1");
    sim.post(
        "/fault/soap",
        json!({"method": "QueryChangedDiskAreas", "fault": "TaskInProgress", "count": -1}),
    );
    let error = frozen.areas(&session, "*").unwrap_err();
    assert_eq!(error.kind, VsphereErrorKind::Busy, "{error}");
    sim.post("/fault/clear", json!({}));
    let gone = Frozen { snapshot: "snapshot-999999".to_string(), ..frozen };
    assert_ne!(gone.areas(&session, "*").unwrap_err().kind, VsphereErrorKind::ChangesUnknown);
}

#[test]
fn a_session_that_expires_between_two_answers_changes_nothing() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "tracked");
    let first = freeze(&session, &vm, "drover-1");
    let many = json!({"vm": vm.id, "disk": 0, "offset": 0, "hex": "ff", "every": 2 * BLOCK, "count": 20});
    sim.post("/write", many);
    let second = freeze(&session, &vm, "drover-2");
    sim.post("/cbt/max_areas", json!({"n": 1}));
    let logins = sim.calls("Login");
    let fault =
        json!({"method": "QueryChangedDiskAreas", "fault": "NotAuthenticated", "skip": 5, "count": 1});
    sim.post("/fault/soap", fault);
    assert_eq!(second.areas(&session, &first.change_id()).unwrap().len(), 20);
    assert_eq!(sim.calls("Login"), logins + 1);
}

#[test]
fn a_removal_that_leaves_its_files_is_told_and_consolidated() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "tracked");
    assert!(!session.consolidate(&vm.id).unwrap(), "nothing to do");
    let first = freeze(&session, &vm, "drover-1");
    sim.fill(&vm.id, 0, ByteSpan::new(0, MIB));
    sim.post("/vm/consolidation", json!({"vm": vm.id, "fail_next_removal": true}));
    let error = session.remove_snapshot(&first.snapshot).unwrap_err();
    assert_eq!(error.kind, VsphereErrorKind::Busy, "{error}");
    let now = session.vm(&vm.id).unwrap();
    assert!(now.snapshots.is_empty() && now.consolidation_needed && now.disks[0].has_parent);
    session.remove_snapshot(&first.snapshot).unwrap();

    // Until then a frozen file holds a part only.
    let second = freeze(&session, &vm, "drover-2");
    assert_eq!(second.open(&session).unwrap_err().kind, VsphereErrorKind::Unsupported);
    session.remove_snapshot(&second.snapshot).unwrap();
    assert!(session.consolidate(&vm.id).unwrap());
    let now = session.vm(&vm.id).unwrap();
    assert!(!now.consolidation_needed && !now.disks[0].has_parent);
    let third = freeze(&session, &vm, "drover-3");
    assert!(sim::read_whole(&*third.open(&session).unwrap().disk, MIB) == third.truth(&sim));
}

#[test]
fn a_guest_that_cannot_be_quiesced_is_frozen_without() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "tracked");
    let fault = json!({
        "method": "CreateSnapshot_Task", "fault": "ApplicationQuiesceFault", "message": "VSS", "as": "task", "quiesced": true,
    });
    sim.post("/fault/soap", fault);
    let error = session.freeze(&vm.id, "drover-1", "test", true).unwrap_err();
    assert!(error.to_string().contains("ApplicationQuiesceFault: VSS"), "{error}");
    assert!(error.advice().unwrap().contains("quiescing"), "{:?}", error.advice());
    assert!(session.vm(&vm.id).unwrap().snapshots.is_empty());
    freeze(&session, &vm, "drover-1");
}

#[test]
fn what_other_users_do_to_a_vm_is_seen_at_the_next_look() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "tracked");
    sim.post("/vm/move", json!({"vm": vm.id, "host": "esx2.lab"}));
    let moved = session.vm(&vm.id).unwrap();
    assert_ne!(moved.host_id, vm.host_id);
    assert_eq!(
        (&moved.instance_uuid, &moved.disks),
        (&vm.instance_uuid, &vm.disks),
        "vMotion leaves disks alone"
    );

    let since = freeze(&session, &vm, "drover-1");
    session.remove_snapshot(&since.snapshot).unwrap();
    sim.post("/disk/grow", json!({"vm": vm.id, "disk": 0, "capacity": "20MiB"}));
    sim.fill(&vm.id, 0, ByteSpan::new(18 * MIB, BLOCK));
    sim.post("/disk/add", json!({"vm": vm.id, "capacity": "1MiB"}));
    sim.post("/disk/remove", json!({"vm": vm.id, "disk": 1}));
    let frozen = freeze(&session, &vm, "drover-2");
    assert_eq!(frozen.vm.disks.len(), 2);
    let grown = &frozen.vm.disks[0];
    assert_eq!((grown.capacity_bytes, &grown.uuid), (20 * MIB, &vm.disks[0].uuid));
    assert!(vm.disks.iter().all(|disk| disk.uuid != frozen.vm.disks[1].uuid), "the other is a new one");
    assert_eq!(frozen.areas(&session, &since.change_id()).unwrap(), [ByteSpan::new(18 * MIB, BLOCK)]);
    session.remove_snapshot(&frozen.snapshot).unwrap();

    for (state, seen) in
        [("suspended", PowerState::Suspended), ("on", PowerState::On), ("off", PowerState::Off)]
    {
        sim.post("/vm/power", json!({"vm": vm.id, "state": state}));
        assert_eq!(session.vm(&vm.id).unwrap().power, seen);
    }
}

#[test]
fn a_vm_that_ran_since_its_snapshot_is_told_by_the_changes_of_its_live_disk() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "tracked");
    session.power_off(&vm.id).unwrap();
    let frozen = freeze(&session, &vm, "drover-last");
    let changes = || {
        let disk = &frozen.disks[0];
        let query = ChangedAreas {
            vm: &frozen.vm.id,
            snapshot: None,
            disk_key: disk.key,
            capacity_bytes: disk.capacity_bytes,
            change_id: &frozen.change_id(),
            is_down: false,
        };
        session.changed_areas(&query).unwrap()
    };
    assert_eq!(changes(), []);
    session.power_on(&vm.id).unwrap();
    sim.fill(&vm.id, 0, ByteSpan::new(5 * MIB, 100));
    session.power_off(&vm.id).unwrap();
    assert_eq!(changes(), [ByteSpan::new(5 * MIB, BLOCK)]);
}
