//! What VMs of a plan wait for of each other: stages of a group, and pairs of which one at a time is at work.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::sync::Mutex;

use drover_engine::{Event, NoObserver, Phase, VmState};
use drover_mover::StopSignal;
use drover_plan::{PlannedVm, VmGroup};
use drover_types::inventory::{PowerState, Vm};
use fakes::{PLAN, Watch, World, enters, vm};

const NAMES: [&str; 4] = ["app1", "app2", "db1", "db2"];

fn world(power: PowerState, lines: &str) -> World {
    let vms: Vec<Vm> = NAMES.map(|name| vm(name, power, 1)).into_iter().collect();
    World::with(&vms, lines)
}

/// Databases first, then what needs them.
fn staged(mut planned: Vec<PlannedVm>) -> Vec<PlannedVm> {
    for vm in &mut planned {
        let stage = u32::from(vm.vm.name.starts_with("app"));
        vm.group = Some(VmGroup { name: "shop".into(), stage });
    }
    planned
}

/// Databases that had arrived when each of the others began with a phase.
fn arrived_before(world: &World, phase: Phase) -> Vec<usize> {
    let before = Mutex::new(Vec::new());
    let watch = Watch(|event: &Event| {
        if enters(event, "app1", phase) || enters(event, "app2", phase) {
            let rows = world.store.vms(PLAN).unwrap();
            let has_arrived = |name: &str, state: VmState| name.starts_with("db") && state == VmState::Done;
            before.lock().unwrap().push(rows.iter().filter(|row| has_arrived(&row.name, row.state)).count());
        }
    });
    let outcome = world.run_plan(PLAN, &staged(world.planned()), &watch, &StopSignal::default()).unwrap();
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("in their order");
    before.into_inner().unwrap()
}

#[test]
fn cold_vms_of_a_stage_begin_when_those_before_have_arrived() {
    let world = world(PowerState::Off, "start: true");
    assert_eq!(arrived_before(&world, Phase::Check), [2, 2]);
}

#[test]
fn warm_vms_are_copied_at_once_and_move_over_in_their_order() {
    let world = world(PowerState::On, "start: true\nmode: warm\nwarm: {interval: 1s, cutover: auto}");
    assert_eq!(arrived_before(&world, Phase::PowerOff), [2, 2]);
}

#[test]
fn a_failure_ends_the_later_stages_and_a_resume_goes_on_in_the_order() {
    let world = world(PowerState::Off, "start: true");
    let planned = staged(world.planned());
    let resize = |factor: fn(u64) -> u64| {
        world.change("vm-db1", |vm| vm.disks[0].capacity_bytes = factor(vm.disks[0].capacity_bytes));
    };
    resize(|bytes| bytes * 2);
    world.run_plan(PLAN, &planned, &NoObserver, &StopSignal::default()).unwrap();
    for name in ["vm-app1", "vm-app2"] {
        let row = world.row(name);
        let why = row.error.as_deref().unwrap_or_default();
        assert!(why.contains("it was not begun: a VM of an earlier stage of its group failed"), "{row:?}");
    }
    assert_eq!(world.row("vm-db2").state, VmState::Done);
    resize(|bytes| bytes / 2);
    let outcome =
        world.run_plan(PLAN, &staged(world.resumed()), &NoObserver, &StopSignal::default()).unwrap();
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("after the resume");
}

#[test]
fn a_cutover_that_was_ordered_outlives_a_failure_of_others_before_its_vm() {
    let world = world(PowerState::On, "start: true\nmode: warm\nwarm: {interval: 1s, cutover: manual}");
    let stop = StopSignal::default();
    let watch = Watch(|event: &Event| {
        if matches!(event, Event::PassWaits { .. }) {
            stop.stop();
        }
    });
    world.run_plan(PLAN, &staged(world.planned()), &watch, &stop).unwrap();
    assert_eq!(world.store.ask_cutover(PLAN, None).unwrap().len(), NAMES.len());
    let resize = |factor: fn(u64) -> u64| {
        world.change("vm-db1", |vm| vm.disks[0].capacity_bytes = factor(vm.disks[0].capacity_bytes));
    };
    let planned = staged(world.resumed());
    resize(|bytes| bytes * 2);
    let outcome = world.run_plan(PLAN, &planned, &NoObserver, &StopSignal::default()).unwrap();
    assert_eq!((outcome.done, outcome.failed.len()), (1, 3), "{outcome:?}");
    for id in ["vm-app1", "vm-app2"] {
        let error = world.row(id).error.unwrap();
        assert!(error.contains("a VM of an earlier stage of its group failed"), "{error}");
        assert!(!error.contains("used up") && world.store.cutover_asked(PLAN, id).unwrap(), "{error}");
    }
    resize(|bytes| bytes / 2);
    let outcome = world.run_plan(PLAN, &planned, &NoObserver, &StopSignal::default()).unwrap();
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("by the orders that were given before");
}

#[test]
fn of_a_pair_one_at_a_time_is_at_work_until_it_has_arrived() {
    for lines in ["start: true", "start: true\nmode: warm\nwarm: {interval: 1s, cutover: auto}"] {
        let world = world(PowerState::On, lines);
        let mut planned = world.planned();
        planned.iter_mut().for_each(|vm| vm.anti_affinity = Some("pair".into()));
        let watch = Watch(|event: &Event| {
            let Event::PhaseStarted { vm, phase: Phase::PowerOff } = event else { return };
            // No other guest is down: each runs at its source or at the target.
            for row in world.store.vms(PLAN).unwrap().iter().filter(|row| row.name != *vm) {
                let runs = world.power(&row.id) == PowerState::On || row.state == VmState::Done;
                assert!(runs, "{} is down while {vm} goes down", row.name);
            }
        });
        let outcome = world.run_plan(PLAN, &planned, &watch, &StopSignal::default()).unwrap();
        assert!(outcome.is_complete(), "{outcome:?}");
        world.assert_arrived("one after the other");
    }
}
