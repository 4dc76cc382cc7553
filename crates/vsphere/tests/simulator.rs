//! The client against the vSphere simulator.
#![allow(clippy::unwrap_used)]

mod sim;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use drover_types::inventory::{
    DiskBus, DiskMode, Firmware, FixedAddresses, PowerPolicy, PowerState, RdmMode, ToolsState, WriteRate,
};
use drover_types::{ByteSpan, ExtentKind, Secret};
use drover_vsphere::{
    ChangedAreas, Entity, OpenDisk, Route, Session, Trust, VsphereError, VsphereErrorKind, Whereabouts,
};
use serde_json::json;

use sim::Sim;

/// Starts a simulator, or ends the test after a printed reason.
macro_rules! simulator {
    () => {
        match Sim::start() {
            Some(sim) => sim,
            None => return,
        }
    };
}

fn connect_error(sim: &Sim, change: impl FnOnce(&mut drover_vsphere::ConnectOptions)) -> VsphereError {
    let mut options = sim.options();
    change(&mut options);
    let error = Session::connect(options).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    error
}

fn causes(error: &dyn std::error::Error) -> String {
    let next = std::error::Error::source;
    std::iter::successors(Some(error), |error| next(*error)).map(|error| format!("{error}; ")).collect()
}

#[test]
fn four_ways_to_fail_to_connect_have_four_messages() {
    let sim = simulator!();
    let wrong = connect_error(&sim, |o| o.password = Secret::new("hunter2"));
    assert_eq!(wrong.kind, VsphereErrorKind::WrongPassword, "{wrong}");
    let domain = connect_error(&sim, |o| o.user = "administrator".to_string());
    assert_eq!(domain.kind, VsphereErrorKind::UserWithoutDomain, "{domain}");
    let pinned = connect_error(&sim, |o| o.trust = Trust::Thumbprint("00".repeat(20).parse().unwrap()));
    assert_eq!(pinned.kind, VsphereErrorKind::ThumbprintMismatch);
    assert!(pinned.advice().unwrap().contains(&sim.thumbprint), "{:?}", pinned.advice());
    let nobody = connect_error(&sim, |o| o.endpoint = "127.0.0.1:1".to_string());
    assert_eq!(nobody.kind, VsphereErrorKind::Unreachable);
    let texts: std::collections::BTreeSet<String> = [wrong, domain, pinned, nobody]
        .iter()
        .map(|error| causes(error) + &error.advice().unwrap())
        .collect();
    assert_eq!(texts.len(), 4, "{texts:#?}");
}

#[test]
fn servers_that_talk_nonsense_are_no_vsphere() {
    let sim = simulator!();
    sim.post("/fault/http", json!({"path": "/sdk", "garbage": true, "count": -1}));
    assert_eq!(connect_error(&sim, |_| ()).kind, VsphereErrorKind::NotVsphere);
    sim.post("/fault/clear", json!({}));
    sim.post("/fault/http", json!({"path": "/sdk", "endless": true, "count": -1}));
    let endless = connect_error(&sim, |o| o.timeouts.answer = Duration::from_secs(5));
    assert_eq!(endless.kind, VsphereErrorKind::NotVsphere, "{}", causes(&endless));
}

#[test]
fn the_inventory_tells_all_that_a_plan_needs() {
    let sim = simulator!();
    let session = sim.session();
    assert!(session.about().is_vcenter);
    let inventory = session.inventory().unwrap();
    assert_eq!(inventory.vms.len(), 5);
    assert_eq!(session.warnings(), Vec::<String>::new());
    let host = inventory.hosts.iter().find(|host| host.name == "esx1.lab").unwrap();
    assert_eq!(host.power_policy, Some(PowerPolicy::HighPerformance));
    assert_eq!(host.physical_nics[1].link_mbps, Some(25000));
    let backup = host.addresses.iter().find(|address| address.device == "vmk1").unwrap();
    assert_eq!(
        (backup.address.as_str(), backup.services.as_slice()),
        ("127.0.2.1", &["vSphereBackupNFC".to_string()][..])
    );
    assert!(host.thumbprint.is_some());
    assert!(inventory.datastores.iter().any(|store| store.name == "ds1" && store.capacity_bytes == 1 << 40));

    let vm = sim::vm(&session, "prod/web", "web01");
    assert_eq!((vm.datacenter.as_str(), vm.host_id.as_str()), ("DC0", host.id.as_str()));
    assert_eq!(
        (vm.power, vm.firmware, vm.tools),
        (PowerState::On, Some(Firmware::Uefi), ToolsState::Running)
    );
    assert!(vm.secure_boot && vm.change_tracking && !vm.encrypted && !vm.vtpm);
    assert_eq!((vm.cpus, vm.memory_mib, vm.guest_id.as_str()), (2, 2048, "debian12_64Guest"));
    assert_eq!(vm.tags, ["env:prod", "tier:web"]);
    assert_eq!((vm.nics[0].mac.as_str(), vm.nics[0].network.as_str()), ("00:50:56:aa:00:01", "VM Network"));
    assert_eq!((vm.nics[1].model.as_str(), vm.nics[1].network.as_str()), ("e1000e", "Storage Net"));
    assert!(!vm.nics[1].connected);
    let ip = |text: &str| text.parse().unwrap();
    let fixed = FixedAddresses {
        addresses: vec![(ip("192.0.2.7"), 24)],
        gateways: vec![ip("192.0.2.1")],
        dns: vec![ip("192.0.2.53")],
    };
    assert_eq!((&vm.nics[0].fixed, &vm.nics[1].fixed), (&Some(fixed), &Some(FixedAddresses::default())));
    assert!(
        inventory.vms.iter().any(|vm| vm.managed_by.as_deref() == Some("com.example.backup"))
            && vm.managed_by.is_none()
    );
    let first = &vm.disks[0];
    assert_eq!((first.bus, first.capacity_bytes, first.thin), (DiskBus::Scsi, 64 << 20, Some(true)));
    assert!(vm.disks.iter().any(|disk| disk.bus == DiskBus::Sata && disk.capacity_bytes == 32 << 20));
    assert!(vm.disks.iter().any(|disk| disk.mode == DiskMode::IndependentPersistent));
    assert!(vm.change_tracking_supported && first.change_tracking && first.change_id.is_some());
    assert!(
        vm.disks
            .iter()
            .all(|disk| disk.uuid.len() == 36 && (disk.key == first.key || disk.uuid != first.uuid))
    );
    assert!(vm.disks.iter().any(|disk| disk.rdm == Some(RdmMode::Virtual)));

    let legacy = sim::vm(&session, "", "legacy");
    let names: Vec<&str> = legacy.snapshots.iter().map(|snapshot| snapshot.name.as_str()).collect();
    assert_eq!(names, ["before-patch", "after-patch", "other-try"]);
    assert!(
        legacy.disks[0].has_parent && legacy.change_tracking_supported && !legacy.disks[0].change_tracking
    );
    assert!(legacy.snapshots.iter().all(|snapshot| snapshot.created_s > Some(1_700_000_000)));
}

#[test]
fn a_look_at_one_vm_equals_its_part_of_the_inventory() {
    let sim = simulator!();
    let session = sim.session();
    for mut vm in session.inventory().unwrap().vms {
        vm.tags.clear();
        assert_eq!(session.vm(&vm.id).unwrap(), vm);
    }
    assert_eq!(session.vm("vm-999999").unwrap_err().kind, VsphereErrorKind::NotFound);
}

#[test]
fn an_inventory_costs_the_same_few_calls_however_many_vms() {
    let sim = simulator!();
    let session = sim.session();
    sim.post("/stats/reset", json!({}));
    session.inventory().unwrap();
    let calls = sim.calls("RetrievePropertiesEx") + sim.calls("ContinueRetrievePropertiesEx");
    // Which objects there are, a page of places, and one of VMs.
    assert_eq!((sim.calls("CreateContainerView"), calls), (1, 3));
}

#[test]
fn a_snapshot_is_read_as_it_was_while_the_guest_writes_on() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "prod/web", "web01");
    sim.fill(&vm.id, 0, ByteSpan::new(1 << 20, 3 << 20));
    sim.fill(&vm.id, 0, ByteSpan::new(20 << 20, 1 << 20));
    let snapshot = session.create_snapshot(&vm.id, "drover-1", "first pass", false).unwrap();
    let open = OpenDisk {
        vm: &vm,
        disk: &vm.disks[0],
        snapshot: Some(&snapshot.id),
        route: &Route::Provider,
        datacenter: &vm.datacenter,
    };
    let opened = session.open_disk(open).unwrap();
    let before = sim::read_whole(&*opened.disk, 1 << 20);
    sim.fill(&vm.id, 0, ByteSpan::new(2 << 20, 1 << 20));
    assert!(sim::read_whole(&*opened.disk, 3 << 20) == before, "a frozen disk does not change");

    let (extents, _) = sim::extents(&*opened.disk);
    let allocated: Vec<ByteSpan> =
        extents.iter().filter(|(_, kind)| *kind == ExtentKind::Allocated).map(|(span, _)| *span).collect();
    assert_eq!(allocated, [ByteSpan::new(1 << 20, 3 << 20), ByteSpan::new(20 << 20, 1 << 20)]);
    assert!(before[..1 << 20].iter().all(|byte| *byte == 0) && opened.notes().is_empty());

    let since = opened.change_id.clone().expect("change tracking is on");
    let second = session.create_snapshot(&vm.id, "drover-2", "second pass", false).unwrap();
    assert!(session.has_snapshot(&snapshot.id).unwrap() && session.has_snapshot(&second.id).unwrap());
    let query = ChangedAreas {
        vm: &vm.id,
        snapshot: Some(&second.id),
        disk_key: vm.disks[0].key,
        capacity_bytes: vm.disks[0].capacity_bytes,
        change_id: &since,
        is_down: false,
    };
    assert_eq!(session.changed_areas(&query).unwrap(), [ByteSpan::new(2 << 20, 1 << 20)]);
    assert!(session.changed_areas(&ChangedAreas { change_id: "52 00/1", ..query }).is_err());

    for id in [&snapshot.id, &second.id, &second.id] {
        session.remove_snapshot(id).unwrap();
        assert!(!session.has_snapshot(id).unwrap());
    }
    assert!(session.vm(&vm.id).unwrap().snapshots.is_empty());
}

#[test]
fn a_frozen_disk_and_its_files_are_read_by_one_call_that_asks_for_little() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "", "legacy");
    let disk = &vm.disks[0];
    let snapshot = session.create_snapshot(&vm.id, "drover-1", "", false).unwrap();
    sim.post("/stats/reset", json!({}));
    let frozen = session.frozen_disk(&snapshot.id, disk.key).unwrap().unwrap();
    assert_eq!(sim.calls("RetrievePropertiesEx"), 1);
    assert_eq!(
        sim.properties(),
        [
            "Datastore.browser",
            "Datastore.name",
            "VirtualMachineSnapshot.config.extraConfig",
            "VirtualMachineSnapshot.config.hardware"
        ]
    );
    let state = session.disk_state(&vm, &frozen.disk, &frozen.files).unwrap();
    // Each file of its chain is looked up by itself, and nothing about the VM is asked again.
    assert_eq!(sim.calls("SearchDatastore_Task"), state.matches("size=").count() as u64, "{state}");
    assert!(
        sim.properties().iter().all(|name| !name.starts_with("VirtualMachine.")),
        "{:?}",
        sim.properties()
    );
    let listed = session.snapshot_disks(&snapshot.id).unwrap();
    assert_eq!(Some(&frozen.disk), listed.iter().find(|it| it.key == disk.key));
    assert!(session.frozen_disk(&snapshot.id, 1).unwrap().is_none(), "a key that no disk has");
    session.remove_snapshot(&snapshot.id).unwrap();
    assert!(session.frozen_disk(&snapshot.id, disk.key).is_err());
    // The same of a VM that is off, as it is now.
    let now = session.vm(&vm.id).unwrap();
    let files = session.disk_files(&now, &now.disks[0]).unwrap();
    assert!(session.disk_state(&now, &now.disks[0], &files).unwrap().contains("chain="));
}

#[test]
fn areas_that_come_two_at_a_time_are_all_found() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "prod/web", "web01");
    let wanted: Vec<ByteSpan> = (0..7).map(|i| ByteSpan::new(i * (4 << 20), 64 << 10)).collect();
    wanted.iter().for_each(|span| sim.fill(&vm.id, 0, *span));
    sim.post("/cbt/max_areas", json!({"n": 2}));
    let snapshot = session.create_snapshot(&vm.id, "drover-1", "", false).unwrap();
    let opened = session
        .open_disk(OpenDisk {
            vm: &vm,
            disk: &vm.disks[0],
            snapshot: Some(&snapshot.id),
            route: &Route::Provider,
            datacenter: &vm.datacenter,
        })
        .unwrap();
    let (extents, questions) = sim::extents(&*opened.disk);
    let found = extents.iter().filter(|(_, kind)| *kind == ExtentKind::Allocated).map(|(span, _)| *span);
    assert_eq!(found.collect::<Vec<_>>(), wanted);
    assert!(questions >= 4, "{questions}");
}

#[test]
fn an_inventory_of_many_vms_comes_in_pages() {
    let names: String = (0..230).map(|i| format!("  - name: small{i}\n")).collect();
    let text = format!("{}{names}", include_str!("sim/inventory.yaml"));
    let Some(sim) = Sim::start_with("vcenter", &text) else { return };
    let session = sim.session();
    sim.post("/stats/reset", json!({}));
    let vms = session.inventory().unwrap().vms;
    assert_eq!(vms.len(), 235);
    assert_eq!(
        sim.calls("RetrievePropertiesEx"),
        5,
        "which objects there are, a page of places, and three of VMs"
    );
    assert_eq!(sim.calls("ContinueRetrievePropertiesEx"), 0);
    let again: Vec<String> = session.inventory().unwrap().vms.into_iter().map(|vm| vm.id).collect();
    assert_eq!(
        vms.iter().map(|vm| &vm.id).collect::<Vec<_>>(),
        again.iter().collect::<Vec<_>>(),
        "one order"
    );
}

#[test]
fn no_page_of_places_waits_for_the_one_before_and_one_that_fails_is_not_lost() {
    let more: String = (0..230).map(|i| format!(", {{name: net{i}}}")).collect();
    let last = "{name: Storage Net}";
    let text = include_str!("sim/inventory.yaml").replace(last, &format!("{last}{more}"));
    let Some(sim) = Sim::start_with("vcenter", &text) else { return };
    let session = sim.session();
    sim.post("/stats/reset", json!({}));
    let inventory = session.inventory().unwrap();
    let of_name = |start: &str| inventory.networks.iter().filter(|it| it.name.starts_with(start)).count();
    assert_eq!((of_name("net"), of_name("VM Network"), inventory.hosts.len()), (230, 1, 2));
    assert!(
        inventory.hosts.iter().any(|host| host.cluster.as_deref() == Some("C0")),
        "{:?}",
        inventory.hosts
    );
    assert_eq!(
        sim.calls("RetrievePropertiesEx"),
        5,
        "which objects there are, three pages of places, one of VMs"
    );
    assert_eq!(sim.calls("ContinueRetrievePropertiesEx"), 0);
    // One of the three pages, whichever comes last.
    sim.post("/fault/soap", json!({"method": "RetrievePropertiesEx", "fault": "NoPermission", "skip": 3}));
    assert_eq!(session.inventory().unwrap_err().kind, VsphereErrorKind::PermissionDenied);
    assert_eq!(session.inventory().unwrap().networks.len(), inventory.networks.len());
}

#[test]
fn a_vm_that_was_switched_on_and_off_again_is_told_from_one_that_stayed_off() {
    let sim = simulator!();
    let session = sim.session();
    let (web, db) = (sim::vm(&session, "prod/web", "web01"), sim::vm(&session, "", "legacy"));
    let switch = |name: &str, states: &[&str]| {
        for state in states {
            sim.post("/vm/power", json!({"vm": name, "state": state}));
        }
    };
    // What was before the mark does not count.
    switch("prod/web/web01", &["off", "on", "off"]);
    let mark = session.power_mark(&web.id).unwrap().expect("a vCenter has a history of events");
    assert!(!session.was_switched_on(&web.id, &mark).unwrap());
    switch("legacy", &["on", "off"]);
    assert!(!session.was_switched_on(&web.id, &mark).unwrap(), "another VM's events");
    switch("prod/web/web01", &["on", "off"]);
    assert_eq!(session.vm(&web.id).unwrap().power, PowerState::Off);
    assert!(session.was_switched_on(&web.id, &mark).unwrap());
    assert!(session.power_mark(&db.id).unwrap().is_some());
    let fault = json!({"method": "QueryEvents", "fault": "NotImplemented"});
    sim.post("/fault/soap", fault);
    assert_eq!(session.power_mark(&web.id).unwrap(), None, "such as a host without a history");
}

#[test]
fn a_snapshot_of_a_busy_vm_is_made_and_removed_once_it_is_free() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "prod/web", "web01");
    let busy = json!({"method": "CreateSnapshot_Task", "fault": "TaskInProgress", "as": "task"});
    sim.post("/fault/soap", busy);
    let snapshot = session.create_snapshot(&vm.id, "drover-1", "", false).unwrap();
    assert_eq!((session.vm(&vm.id).unwrap().snapshots.len(), sim.calls("CreateSnapshot_Task")), (1, 2));
    sim.post("/fault/soap", json!({"method": "RemoveSnapshot_Task", "fault": "TaskInProgress", "count": 2}));
    session.remove_snapshot(&snapshot.id).unwrap();
    assert_eq!(session.vm(&vm.id).unwrap().snapshots, []);
}

#[test]
fn a_vm_is_gone_where_vsphere_says_so_and_finds_it_nowhere_else() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "prod/web", "web01");
    let fails =
        |fault: &str| sim.post("/fault/soap", json!({"method": "RetrievePropertiesEx", "fault": fault}));
    let is_at = |id: &str, uuid: &str| session.whereabouts(id, uuid);
    assert_eq!(is_at(&vm.id, &vm.instance_uuid).unwrap(), Whereabouts::There);
    let under = Whereabouts::Under(vm.id.clone());
    assert_eq!(is_at("vm-999999", &vm.instance_uuid).unwrap(), under, "it was registered anew");
    let nowhere = is_at("vm-999999", "00000000-0000-4000-8000-000000000000");
    assert_eq!(nowhere.unwrap(), Whereabouts::Gone);
    fails("ManagedObjectNotFound");
    assert_eq!(is_at(&vm.id, &vm.instance_uuid).unwrap(), Whereabouts::There, "it is found by its UUID");
    fails("NoPermission");
    let hidden = is_at(&vm.id, &vm.instance_uuid).unwrap_err();
    assert_eq!(hidden.kind, VsphereErrorKind::PermissionDenied, "{hidden}");
}

#[test]
fn a_snapshot_that_somebody_else_removed_meanwhile_is_gone_and_one_that_is_there_is_not() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "prod/web", "web01");
    let snapshot = session.create_snapshot(&vm.id, "drover-1", "", false).unwrap();
    let not_found = json!({"method": "RemoveSnapshot_Task", "fault": "NotFound"});
    sim.post("/fault/soap", not_found.clone());
    assert!(session.remove_snapshot(&snapshot.id).is_err(), "it is there");
    session.remove_snapshot(&snapshot.id).unwrap();
    for fault in [not_found, json!({"method": "RemoveSnapshot_Task", "fault": "TaskInProgress"})] {
        sim.post("/fault/soap", fault);
        session.remove_snapshot(&snapshot.id).unwrap();
    }
}

#[test]
fn a_stop_breaks_off_what_goes_on_and_not_what_undoes_it() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "prod/web", "web01");
    let snapshot = session.create_snapshot(&vm.id, "drover-1", "", false).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let asked = stop.clone();
    session.stop_when(Arc::new(move || asked.load(Ordering::Relaxed)));
    sim.post("/fault/soap", json!({"method": "RemoveSnapshot_Task", "fault": "TaskInProgress", "count": -1}));
    let removal = std::thread::scope(|scope| {
        let removal = scope.spawn(|| session.remove_snapshot(&snapshot.id));
        while sim.calls("RemoveSnapshot_Task") < 2 {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        removal.join().unwrap()
    });
    assert_eq!(removal.unwrap_err().kind, VsphereErrorKind::Stopped);
    // What comes after the stop is the clean-up.
    sim.post("/fault/clear", json!({}));
    session.remove_snapshot(&snapshot.id).unwrap();
    assert_eq!(session.vm(&vm.id).unwrap().snapshots, []);
}

#[test]
fn a_stop_ends_the_wait_for_a_guest_that_does_not_go_down() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "prod/web", "web01");
    let looks = AtomicU32::new(0);
    let stay_on = json!({"method": "ShutdownGuest", "fault": "InvalidPowerState", "count": -1});
    sim.post("/fault/soap", stay_on);
    session.ask_shutdown(&vm.id).unwrap();
    // Nobody asked when the wait began; it is asked for while the guest goes down.
    session.stop_when(Arc::new(move || looks.fetch_add(1, Ordering::Relaxed) >= 4));
    let error = session.wait_until_off(&vm.id, Duration::from_secs(3600)).unwrap_err();
    assert_eq!(error.kind, VsphereErrorKind::Stopped);
}

#[test]
fn a_guest_that_is_suspended_while_it_should_go_down_is_not_waited_for() {
    let sim = simulator!();
    let session = sim.session();
    let vm = sim::vm(&session, "prod/web", "web01");
    session.power_on(&vm.id).unwrap();
    sim.post("/vm/power", json!({"vm": vm.id, "state": "suspended"}));
    let error = session.wait_until_off(&vm.id, Duration::from_secs(3600)).unwrap_err();
    assert_eq!(error.kind, VsphereErrorKind::State);
    assert!(format!("{error:?}").contains("suspended by somebody else"), "{error:?}");
}

#[test]
fn missing_privileges_are_told_of_each_vm_also_after_the_session_expired() {
    let sim = simulator!();
    let session = sim.session();
    let (web, legacy) = (sim::vm(&session, "prod/web", "web01"), sim::vm(&session, "", "legacy"));
    let (off, on) = ("VirtualMachine.Interact.PowerOff", "VirtualMachine.Interact.PowerOn");
    let missing =
        || session.missing_privileges(Entity::Vm, &[&web.id, &legacy.id], &[off, on]).unwrap().unwrap();
    assert!(missing().is_empty());
    sim.post("/privileges", json!({"vm": "prod/web/web01", "deny": [on]}));
    assert_eq!(missing().into_iter().collect::<Vec<_>>(), [(web.id.clone(), vec![on.to_string()])]);
    sim.post("/sessions/expire", json!({}));
    assert_eq!(missing().len(), 1);
    assert_eq!(session.power_on(&legacy.id).map_err(|error| error.kind), Ok(()));
    let refused = session.power_off(&web.id).and_then(|()| session.power_on(&web.id)).unwrap_err();
    assert_eq!(refused.kind, VsphereErrorKind::PermissionDenied);
    sim.post("/fault/soap", json!({"method": "HasPrivilegeOnEntities", "fault": "NotSupported"}));
    assert_eq!(session.missing_privileges(Entity::Vm, &[&web.id], &[on]).unwrap(), None);
}

#[test]
fn what_guests_write_is_read_by_pages_and_costs_no_request_for_each_vm() {
    let more: String = (0..120)
        .map(|n| format!("  - {{name: many-{n:03}, power: on, write_bytes_per_s: 10240, disks: [{{capacity: 1MiB}}]}}\n"))
        .collect();
    let text = format!("{}{more}", include_str!("sim/inventory.yaml"));
    let Some(sim) = Sim::start_with("vcenter", &text) else { return };
    let session = sim.session();
    let inventory = session.inventory().unwrap();
    let id = |name: &str| inventory.vms.iter().find(|vm| vm.name == name).unwrap().id.clone();
    let many: Vec<String> = (0..120).map(|n| id(&format!("many-{n:03}"))).collect();
    let off = inventory.vms.iter().find(|vm| vm.power == PowerState::Off).unwrap();
    let mut ids: Vec<&str> = many.iter().map(String::as_str).collect();
    ids.extend([off.id.as_str(), "vm-999999"]);
    sim.post("/performance", json!({"vm": many[7], "write_bytes_per_s": 1 << 20}));

    let of_hour = session.write_rates(&ids);
    assert_eq!(session.warnings(), Vec::<String>::new());
    assert_eq!(sim.calls("QueryPerf"), 3);
    assert_eq!(of_hour.len(), 120, "neither one that is off nor one that is gone");
    let rate = |bytes_per_s: u64, seconds| WriteRate {
        bytes_per_hour: bytes_per_s * 3600,
        busiest_hour_bytes: bytes_per_s * 3600,
        seconds,
    };
    assert_eq!((of_hour[&many[0]], of_hour[&many[7]]), (rate(10240, 3600), rate(1 << 20, 3600)));

    // A vCenter that keeps the counter for a day is asked for it, and for the hour of those without one. One that takes
    // fewer VMs in a request gets fewer.
    sim.post("/performance", json!({"level": 2, "specs_max": 30}));
    let of_day = session.write_rates(&ids);
    assert_eq!(session.warnings(), Vec::<String>::new());
    assert_eq!(of_day[&many[7]], rate(1 << 20, 86_400));
    assert_eq!((of_day.len(), sim.calls("QueryPerf")), (120, 3 + 1 + 5 + 1));
}

#[test]
fn a_server_that_refuses_its_counters_is_named_and_keeps_nothing_else_back() {
    let sim = simulator!();
    let session = sim.session();
    let web = sim::vm(&session, "prod/web", "web01");
    sim.post("/fault/soap", json!({"method": "QueryPerf", "fault": "NoPermission", "count": -1}));
    assert!(session.write_rates(&[&web.id]).is_empty());
    let warnings = session.warnings();
    assert!(
        warnings.len() == 1 && warnings[0].starts_with("what 1 of 1 VMs write is not known: "),
        "{warnings:?}"
    );
    assert!(warnings[0].contains("read performance counters"), "{warnings:?}");
    assert_eq!(session.write_rates(&[]), Default::default());
    assert!(session.inventory().is_ok());
}
