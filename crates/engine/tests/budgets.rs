//! Many VMs at once, and the report of how it went.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drover_engine::{
    Cause, Event, EventRow, LimitsOrder, NoObserver, Phase, PlanState, Schedule, ask_limits, plan_report,
};
use drover_schedule::Budgets;
use drover_types::inventory::{PowerState, Vm};
use fakes::{PLAN, Watch, World, vm};

/// Eight VMs on two hosts, half of them running, one with more disks than may be copied at once.
fn crowd() -> Vec<Vm> {
    (0..8)
        .map(|number| {
            let power = if number % 2 == 0 { PowerState::On } else { PowerState::Off };
            let vm = vm(&format!("vm{number}"), power, if number == 5 { 5 } else { 1 + number % 3 });
            Vm { host_id: format!("host-{}", number / 4), ..vm }
        })
        .collect()
}

#[test]
fn a_plan_of_many_vms_arrives_within_its_budgets() {
    let world = World::with(&crowd(), "start: true\nlimits: {vms_per_host: 2, disks: 4}");
    world.slow_down(Duration::from_millis(20));
    let outcome = world.run(&NoObserver);
    assert!(outcome.is_complete() && outcome.done == 8, "{outcome:?}");
    world.assert_arrived("all of them");
    // Budgets are kept, and used.
    assert_eq!(world.at_work.max(), (4, 2), "disks at once, and VMs of a host at once");
    assert_eq!(world.calls("create snapshot"), 8);
    assert_eq!(world.calls("shut down"), 4, "only what runs is shut down");
    assert_eq!(world.store.plan(PLAN).unwrap().unwrap().state, PlanState::Done);
    // Once more: nothing is left to do, and nothing is done.
    let (read, opened) = (world.read(), world.calls("open source"));
    assert!(world.run(&NoObserver).is_complete());
    assert_eq!((world.read(), world.calls("open source")), (read, opened));
}

#[test]
fn limits_that_are_raised_by_order_let_others_begin_while_the_first_is_at_work() {
    for is_alone in [true, false] {
        let mut world = World::with(&crowd(), "start: true\nlimits: {vms_per_host: 1, disks: 1}");
        if !is_alone {
            world.schedule = Some(Arc::new(Schedule::new(Budgets::default())));
        }
        let (copies, told) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let outcome = world.run(&Watch(|event: &Event| match event {
            // The first has the one slot that there is, and keeps it until others have some.
            Event::PhaseStarted { phase: Phase::Copy, .. } if copies.fetch_add(1, Ordering::SeqCst) == 0 => {
                let order = LimitsOrder::read(None, Some(5), Some(2)).unwrap();
                let (before, after) = ask_limits(&world.store, PLAN, &order).unwrap();
                assert_eq!((before.disks, after.disks, after.vms_per_host), (1, 5, 2));
                assert!(fakes::becomes(&world, || copies.load(Ordering::SeqCst) > 1), "others begin");
            }
            Event::LimitsChanged { changed, limits } => {
                told.lock().unwrap().push((changed.clone(), limits.disks));
            }
            _ => {}
        }));
        assert!(outcome.is_complete() && outcome.done == 8, "{outcome:?}");
        let (disks, vms) = world.at_work.max();
        assert!(disks <= 5 && vms <= 2, "{disks} disks, {vms} VMs of a host");
        assert_eq!(*told.lock().unwrap(), [("disks 1 -> 5, vms_per_host 1 -> 2".to_string(), 5)]);
        let events = world.store.events(PLAN).unwrap();
        let kept: Vec<&str> =
            events.iter().filter(|it| it.kind == "limits").map(|it| it.text.as_str()).collect();
        assert_eq!(kept, ["limits changed: disks 1 -> 5, vms_per_host 1 -> 2"]);
    }
}

#[test]
fn vms_wait_for_the_room_that_is_promised_to_others_and_one_that_never_fits_is_refused() {
    let mut world = World::with(&crowd(), "start: true");
    let bytes = |name: &str| world.planned().iter().find(|vm| vm.vm.name == name).unwrap().capacity_bytes();
    // One VM of three disks fits, or three of one disk; the one of five disks never does.
    let free = bytes("vm1").max(bytes("vm2"));
    assert!(bytes("vm5") > free);
    world.free_bytes = Some(free);
    // Whoever finds no room asks again after a second.
    world.clock.slow_down(400);
    let stop = drover_mover::StopSignal::default();
    let outcome = world.run_plan(PLAN, &world.planned(), &NoObserver, &stop).unwrap();
    assert_eq!(
        (outcome.done, outcome.failed.as_slice()),
        (7, [("vm5".into(), Cause::TargetFull)].as_slice())
    );
    let row = world.row("vm-vm5");
    assert!(row.error.as_deref().unwrap().contains("the world has "), "{row:?}");
    assert_eq!(world.calls_about("create snapshot", "vm5") + world.calls_about("prepare", "vm5"), 0);
    // By the end of all, nothing is promised any more.
    world.free_bytes = None;
    assert!(world.run(&NoObserver).is_complete());
    world.assert_arrived("all of them");
}

#[test]
fn a_place_that_does_not_answer_holds_up_only_the_vms_that_go_there() {
    let mut world = World::with(&crowd(), "start: true\nlimits: {vms_per_host: 1, disks: 4}");
    // The largest of each host, which go first there.
    world.silent = vec!["vm2".into(), "vm5".into()];
    let outcome = world.run(&NoObserver);
    assert!(outcome.is_complete() && outcome.done == 8, "{outcome:?}");
    assert!(world.was_silent.load(Ordering::SeqCst), "six VMs arrived before the place answered");
    let told = world.store.events(PLAN).unwrap();
    let waits = |event: &&EventRow| event.kind == "waits" && event.vm.as_deref() == Some("vm-vm2");
    let waits: Vec<&str> = told.iter().filter(waits).map(|event| event.text.as_str()).collect();
    assert!(waits.contains(&"the silence, which does not tell how much is free there"), "{waits:?}");
}

#[test]
fn machines_that_the_plan_does_not_start_are_defined_and_stay_off() {
    let world = World::with(&crowd(), "start: false\nlimits: {vms_per_host: 1, disks: 1}");
    assert!(world.run(&NoObserver).is_complete());
    world.assert_arrived("as asked");
    assert_eq!(world.at_work.max(), (1, 1));
    assert_eq!(world.calls("start") + world.calls("power on"), 0);
}

#[test]
fn one_vm_that_fails_does_not_hold_up_the_others() {
    let world = World::with(&crowd(), "start: true\nlimits: {vms_per_host: 1, disks: 2}");
    let planned = world.planned();
    world.change("vm-vm5", |vm| vm.disks[0].capacity_bytes *= 2);
    let stop = drover_mover::StopSignal::default();
    let outcome = world.run_plan(PLAN, &planned, &NoObserver, &stop).unwrap();
    assert_eq!((outcome.done, outcome.failed.len(), outcome.unfinished), (7, 1, 0));
    world.change("vm-vm5", |vm| vm.disks[0].capacity_bytes /= 2);
    world.run(&NoObserver);
    world.assert_arrived("in the end");
}

#[test]
fn the_report_tells_phases_disks_equality_and_rates() {
    let world = World::with(&[vm("one", PowerState::On, 2)], "start: true");
    // Long enough for several samples of the rate.
    world.slow_down(Duration::from_millis(500));
    let events = Mutex::new(Vec::new());
    world.run(&Watch(|event: &Event| events.lock().unwrap().push(event.clone())));
    let report = plan_report(&world.store, PLAN).unwrap().unwrap();
    assert_eq!(report.plan.state, PlanState::Done);
    let [one] = report.vms.as_slice() else { panic!("{:?}", report.vms) };
    let phases: Vec<&str> = one.phases.iter().map(|time| time.phase.as_str()).collect();
    assert_eq!(phases, Phase::COLD.map(Phase::name));
    assert!(one.phases.iter().all(|time| time.ended_ms.is_some_and(|end| end >= time.started_ms)));
    assert_eq!((one.has_arrived(), one.equal(), one.disks.len()), (true, Some(true), 2));
    for disk in &one.disks {
        assert_eq!(disk.equal, Some(true));
        assert!(disk.read_rate.is_some_and(|rate| rate > 0.0) && disk.attribution.is_some());
        let row = &disk.details;
        assert!(row.root.is_some() && row.root == row.target_root);
        assert_eq!((row.read_bytes, row.blocks, row.blocks_verified), (Some(disk.size), Some(20), Some(20)));
    }
    assert!(report.rates.iter().any(|point| point.read_rate > 0.0 && point.disks == 2), "{:?}", report.rates);
    assert!(plan_report(&world.store, "another").unwrap().is_none());
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["vms"][0]["disks"][0]["equal"], true);
    assert_eq!(json["vms"][0]["phases"][3]["phase"], "copy");
    assert_eq!(json["vms"][0]["state"], "done");
    // Events come in the order in which things happen, and end as they began.
    let events = events.into_inner().unwrap();
    assert!(matches!(events.first(), Some(Event::PlanStarted { vms: 1, done_before: 0, .. })));
    assert!(matches!(
        events.last(),
        Some(Event::PlanEnded { done: 1, not_cleaned_up: 0, failed: 0, unfinished: 0, .. })
    ));
    let verified = |event: &&Event| matches!(event, Event::DiskVerified { equal: true, .. });
    assert_eq!(events.iter().filter(verified).count(), 2);
    events.iter().for_each(|event| drop(serde_json::to_string(event).unwrap()));
}
