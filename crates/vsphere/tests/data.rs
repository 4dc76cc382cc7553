//! Reading disks from the vSphere simulator, with faults on the way.
#![allow(clippy::unwrap_used)]

mod sim;

use std::time::Duration;

use drover_disk::DiskErrorKind;
use drover_types::inventory::Vm;
use drover_types::{ByteSpan, Secret};
use drover_vsphere::{OpenDisk, OpenedDisk, Route, Session, Trust, VsphereError, VsphereErrorKind};
use serde_json::json;

use sim::Sim;

const MIB: u64 = 1 << 20;

/// Starts a simulator, or ends the test after a printed reason.
macro_rules! simulator {
    () => {
        match Sim::start() {
            Some(sim) => sim,
            None => return,
        }
    };
}

/// A small VM that is off, whose one disk is full of random bytes.
fn full_vm(sim: &Sim, session: &Session) -> Vm {
    let vm = sim::vm(session, "test", "web01");
    sim.fill(&vm.id, 0, ByteSpan::new(0, 16 * MIB));
    vm
}

fn open(session: &Session, vm: &Vm, route: &Route) -> Result<OpenedDisk, VsphereError> {
    let disk = &vm.disks[0];
    session.open_disk(OpenDisk { vm, disk, snapshot: None, route, datacenter: &vm.datacenter })
}

/// The content of a VM's first disk as the simulator's own files have it.
fn truth(sim: &Sim, vm: &Vm) -> Vec<u8> {
    let disks = sim.get(&format!("/disks?vm={}", vm.id));
    let text = disks.to_string();
    let file = find_file(&disks).unwrap_or_else(|| panic!("no file in {text}"));
    std::fs::read(file).unwrap()
}

fn find_file(value: &serde_json::Value) -> Option<String> {
    match value {
        serde_json::Value::String(text) if text.starts_with('/') && text.ends_with("-flat.vmdk") => {
            Some(text.clone())
        }
        serde_json::Value::Array(list) => list.iter().find_map(find_file),
        serde_json::Value::Object(fields) => fields.values().find_map(find_file),
        _ => None,
    }
}

#[test]
fn a_disk_read_by_ranges_equals_its_file() {
    let sim = simulator!();
    let session = sim.session();
    let vm = full_vm(&sim, &session);
    let opened = open(&session, &vm, &Route::Provider).unwrap();
    let wanted = truth(&sim, &vm);
    for piece in [MIB, 333_333, 16 * MIB] {
        assert!(sim::read_whole(&*opened.disk, piece) == wanted, "pieces of {piece}");
    }
    assert!(opened.notes()[0].contains("change tracking is off"), "{:?}", opened.notes());
}

#[test]
fn names_with_spaces_umlauts_and_signs_are_found() {
    let sim = simulator!();
    let session = sim.session();
    let inventory = session.inventory().unwrap();
    let vm = inventory.vms.iter().find(|vm| vm.name.starts_with("Dateien")).unwrap();
    assert_eq!(vm.name, "Dateien für #3 & 50 <x>");
    sim.fill(&vm.id, 0, ByteSpan::new(0, 10_000_001));
    let opened = open(&session, vm, &Route::Provider).unwrap();
    assert!(sim::read_whole(&*opened.disk, MIB) == truth(&sim, vm));
}

#[test]
fn an_expired_session_is_renewed_once_for_all_that_read() {
    let sim = simulator!();
    let session = sim.session();
    let vm = full_vm(&sim, &session);
    let opened = open(&session, &vm, &Route::Provider).unwrap();
    let wanted = truth(&sim, &vm);
    sim.post("/sessions/expire", json!({}));
    sim.post("/stats/reset", json!({}));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(sim::read_whole(&*opened.disk, MIB) == wanted));
        }
        for _ in 0..4 {
            scope.spawn(|| session.vm(&vm.id).unwrap());
        }
    });
    assert_eq!(sim.calls("Login"), 1);
}

#[test]
fn the_cookie_for_other_programs_is_that_of_a_session_that_is_alive() {
    let sim = simulator!();
    let session = sim.session();
    let first = session.cookie().unwrap();
    sim.get(&format!("/sessions/{}", first.reveal()));
    assert_eq!(session.clone().cookie().unwrap().reveal(), first.reveal(), "one session, one cookie");
    sim.post("/sessions/expire", json!({}));
    let second = session.cookie().unwrap();
    assert_ne!(first.reveal(), second.reveal());
    sim.get(&format!("/sessions/{}", second.reveal()));
    assert!(!format!("{second:?} {session:?}").contains(second.reveal()));
}

#[test]
fn a_burst_of_503_is_transient_and_leaves_the_lane_whole() {
    let sim = simulator!();
    let session = sim.session();
    let vm = full_vm(&sim, &session);
    let opened = open(&session, &vm, &Route::Provider).unwrap();
    sim.spoil_data(json!({"status": 503, "retry_after": 7, "count": 3}));
    let mut lane = opened.disk.open_lane().unwrap();
    for i in 0..4 {
        lane.submit(sim::read(i, ByteSpan::new(i * MIB, MIB)));
    }
    for i in 0..3 {
        let done = sim::next(&mut *lane);
        let error = done.result.unwrap_err();
        assert_eq!((done.id, error.kind), (i, DiskErrorKind::Transient));
        assert!(error.source.to_string().contains("retry after 7"), "{}", error.source);
    }
    sim::next(&mut *lane).result.unwrap();
    assert!(!lane.is_broken());
}

#[test]
fn cuts_and_stalls_break_the_lane_and_another_goes_on() {
    let sim = simulator!();
    let mut options = sim.options();
    options.timeouts.stall = Duration::from_secs(8);
    let session = Session::connect(options).unwrap();
    let vm = full_vm(&sim, &session);
    let opened = open(&session, &vm, &Route::Provider).unwrap();
    let wanted = truth(&sim, &vm);
    for fault in [json!({"cut_after": 100_000, "count": 2}), json!({"stall_after": 5_000, "count": 1})] {
        sim.spoil_data(fault);
        let mut lane = opened.disk.open_lane().unwrap();
        lane.submit(sim::read(1, ByteSpan::new(0, MIB)));
        lane.submit(sim::read(2, ByteSpan::new(MIB, MIB)));
        for _ in 0..2 {
            assert_eq!(sim::next(&mut *lane).result.unwrap_err().kind, DiskErrorKind::Transient);
        }
        assert!(lane.is_broken());
        sim.post("/fault/clear", json!({}));
        assert!(sim::read_whole(&*opened.disk, MIB) == wanted);
    }
}

#[test]
fn the_host_route_reads_with_its_own_login_and_with_tickets() {
    let sim = simulator!();
    let session = sim.session();
    let vm = full_vm(&sim, &session);
    let wanted = truth(&sim, &vm);
    let address = format!("127.0.1.2:{}", sim.port);
    let esx1 = format!("127.0.1.1:{}", sim.port);
    let tickets = Route::Host { address: address.clone(), trust: Trust::Insecure, login: None };
    let opened = open(&session, &vm, &tickets).unwrap();
    assert!(sim::read_whole(&*opened.disk, 4 * MIB) == wanted);

    let login = Some(("root".to_string(), Secret::new("rootpw")));
    let own = Route::Host { address: esx1, trust: Trust::Insecure, login };
    let opened = open(&session, &vm, &own).unwrap();
    assert!(sim::read_whole(&*opened.disk, MIB) == wanted);
    sim.post("/sessions/expire", json!({}));
    assert!(sim::read_whole(&*opened.disk, MIB) == wanted);

    let login = Some(("root".to_string(), Secret::new("hunter2")));
    let wrong = Route::Host { address: format!("127.0.1.1:{}", sim.port), trust: Trust::Insecure, login };
    // A login that works is shared, so the wrong password shows only once that one is gone.
    drop(opened);
    assert_eq!(open(&session, &vm, &wrong).unwrap_err().kind, VsphereErrorKind::WrongPassword);
}

#[test]
fn disks_whose_file_is_not_all_of_them_are_refused() {
    let sim = simulator!();
    let session = sim.session();
    let legacy = sim::vm(&session, "", "legacy");
    let delta = open(&session, &legacy, &Route::Provider).unwrap_err();
    assert_eq!(delta.kind, VsphereErrorKind::Unsupported);
    let web = sim::vm(&session, "prod/web", "web01");
    let running = open(&session, &web, &Route::Provider).unwrap_err();
    assert_eq!(running.kind, VsphereErrorKind::State);
    let snapshot = session.create_snapshot(&web.id, "drover-1", "", false).unwrap();
    for disk in web.disks.iter().filter(|disk| disk.rdm.is_some() || disk.label.ends_with('3')) {
        let open = OpenDisk {
            vm: &web,
            disk,
            snapshot: Some(&snapshot.id),
            route: &Route::Provider,
            datacenter: &web.datacenter,
        };
        assert_eq!(session.open_disk(open).unwrap_err().kind, VsphereErrorKind::Unsupported, "{disk:?}");
    }
}

#[test]
fn a_file_that_is_gone_or_elsewhere_is_an_error_of_the_disk() {
    let sim = simulator!();
    let session = sim.session();
    let vm = full_vm(&sim, &session);
    let disk = &vm.disks[0];
    let open = OpenDisk { vm: &vm, disk, snapshot: None, route: &Route::Provider, datacenter: "other" };
    let error = session.open_disk(open).unwrap_err();
    assert_eq!(error.kind, VsphereErrorKind::Disk, "{error}");
}

#[test]
fn an_esxi_host_alone_works_the_same() {
    let Some(sim) = Sim::start_as("esxi") else { return };
    let mut options = sim.options();
    (options.user, options.password) = ("root".to_string(), Secret::new("wrong"));
    let error = Session::connect(options.clone()).unwrap_err();
    assert_eq!(error.kind, VsphereErrorKind::WrongPassword, "users of a host have no domain");
    options.password = Secret::new("rootpw");
    let session = Session::connect(options).unwrap();
    assert!(!session.about().is_vcenter);
    let inventory = session.inventory().unwrap();
    let vm = inventory.vms.iter().find(|vm| vm.name == "web01").unwrap();
    assert_eq!((vm.folder.as_str(), vm.datacenter.as_str()), ("", "ha-datacenter"));
    sim.fill(&vm.id, 0, ByteSpan::new(0, MIB));
    let snapshot = session.create_snapshot(&vm.id, "drover-1", "", false).unwrap();
    let disk = &vm.disks[0];
    let open = OpenDisk { vm, disk, snapshot: Some(&snapshot.id), route: &Route::Provider, datacenter: "" };
    let opened = session.open_disk(open).unwrap();
    assert_eq!(sim::read_whole(&*opened.disk, MIB).len() as u64, disk.capacity_bytes);
    session.remove_snapshot(&snapshot.id).unwrap();
}

#[test]
fn a_vm_is_shut_down_and_switched_on_and_off() {
    let sim = simulator!();
    let session = sim.session();
    let id = sim::vm(&session, "prod/web", "web01").id;
    session.power_on(&id).unwrap();
    for _ in 0..2 {
        session.ask_shutdown(&id).unwrap();
        session.wait_until_off(&id, Duration::from_secs(120)).unwrap();
    }
    session.power_off(&id).unwrap();
    let off = session.vm(&id).unwrap();
    assert!(off.nics[0].connected && !off.nics[1].connected, "what will be at power on");
    session.power_on(&id).unwrap();
    session.power_off(&id).unwrap();
    let other = sim::vm(&session, "test", "web01").id;
    session.power_on(&other).unwrap();
    let error = session.ask_shutdown(&other).unwrap_err();
    assert_eq!(error.kind, VsphereErrorKind::State, "no guest tools run: {error}");
}

#[test]
fn a_snapshot_made_while_the_connection_broke_is_found_and_not_made_twice() {
    let sim = simulator!();
    let session = sim.session();
    let vm = full_vm(&sim, &session);
    sim.post("/fault/http", json!({"path": "/sdk", "cut_after": 10, "skip": 0, "count": 1}));
    let snapshot = session.create_snapshot(&vm.id, "drover-7f3a", "", false).unwrap();
    let seen = session.vm(&vm.id).unwrap().snapshots;
    assert_eq!(seen.iter().map(|one| &one.id).collect::<Vec<_>>(), [&snapshot.id]);
}

#[test]
fn faults_of_calls_and_tasks_keep_their_names() {
    let sim = simulator!();
    let session = sim.session();
    let vm = full_vm(&sim, &session);
    let fault = json!({"method": "CreateSnapshot_Task", "fault": "ApplicationQuiesceFault", "message": "vss", "as": "task"});
    sim.post("/fault/soap", fault);
    let error = session.create_snapshot(&vm.id, "a", "", true).unwrap_err();
    assert_eq!(error.fault.as_ref().unwrap().name, "ApplicationQuiesceFault", "{error}");
    assert!(error.to_string().starts_with("create snapshot of web01: "), "{error}");
    sim.post("/fault/soap", json!({"method": "CreateSnapshot_Task", "fault": "InvalidState"}));
    let error = session.create_snapshot(&vm.id, "b", "", false).unwrap_err();
    assert_eq!(error.kind, VsphereErrorKind::State, "{error}");
    assert!(session.vm(&vm.id).unwrap().snapshots.is_empty());
}

#[test]
fn unknown_areas_mean_that_all_is_read_and_the_reason_is_told() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "prod/web", "web01");
    let snapshot = session.create_snapshot(&vm.id, "drover-1", "", false).unwrap();
    let snapshot = Some(snapshot.id.as_str());
    let (disk, route) = (&vm.disks[0], &Route::Provider);
    let opened =
        session.open_disk(OpenDisk { vm: &vm, disk, snapshot, route, datacenter: &vm.datacenter }).unwrap();
    sim.post(
        "/fault/soap",
        json!({"method": "QueryChangedDiskAreas", "fault": "FileFault", "message": "reset"}),
    );
    let (extents, _) = sim::extents(&*opened.disk);
    assert_eq!(extents.len(), 1);
    assert!(opened.notes()[0].contains("FileFault"), "{:?}", opened.notes());
}

#[test]
fn reads_outlast_short_failures_of_the_server() {
    let sim = simulator!();
    let session = sim.session();
    let vm = full_vm(&sim, &session);
    for fault in [json!({"status": 503, "count": 2}), json!({"cut_after": 20, "count": 2})] {
        let mut fault = fault;
        fault["path"] = json!("/sdk");
        sim.post("/fault/http", fault);
        session.vm(&vm.id).unwrap();
    }
}

#[test]
fn a_login_that_was_refused_is_not_repeated_by_every_thread() {
    let sim = simulator!();
    let session = sim.session();
    let vm = full_vm(&sim, &session);
    let opened = open(&session, &vm, &Route::Provider).unwrap();
    sim.post("/sessions/expire", json!({}));
    sim.post("/fault/soap", json!({"method": "Login", "fault": "InvalidLogin", "count": -1}));
    sim.post("/stats/reset", json!({}));
    for _ in 0..3 {
        assert_eq!(session.vm(&vm.id).unwrap_err().kind, VsphereErrorKind::WrongPassword);
        let mut lane = opened.disk.open_lane().unwrap();
        lane.submit(sim::read(1, ByteSpan::new(0, MIB)));
        assert_eq!(sim::next(&mut *lane).result.unwrap_err().kind, DiskErrorKind::Denied);
    }
    assert_eq!(sim.calls("Login"), 1);
}
