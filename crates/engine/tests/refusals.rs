//! What the engine does not do, and what others do to a VM while it is on its way.
#![allow(clippy::unwrap_used)]

mod fakes;

use drover_engine::{Cause, Event, NoObserver, Phase, VmState};
use drover_mover::StopSignal;
use drover_plan::{PlannedVm, PowerOff};
use drover_types::inventory::{Firmware, PowerState, Vm};
use fakes::{PLAN, State, Trouble, Watch, World, enters, vm};

fn one(power: PowerState) -> World {
    World::with(&[vm("one", power, 2)], "start: true")
}

/// Runs what was planned before; gives the error, which has advice and left no trace at the target.
fn refused(world: &World, planned: &[PlannedVm]) -> String {
    let outcome = world.run_plan(PLAN, planned, &NoObserver, &StopSignal::default()).unwrap();
    assert_eq!(outcome.failed.len(), 1);
    let row = world.row("vm-one");
    assert_eq!(row.state, VmState::Failed);
    assert!(row.advice.is_some_and(|advice| !advice.is_empty()));
    assert_eq!(world.calls("create snapshot") + world.calls("open target") + world.calls("define"), 0);
    row.error.unwrap()
}

#[test]
fn a_running_vm_is_left_running_if_the_plan_says_so() {
    let world = one(PowerState::Off);
    let mut planned = world.planned();
    planned[0].power_off = PowerOff::Refuse;
    world.set_power("vm-one", PowerState::On);
    assert_eq!(refused(&world, &planned), "one is running");
    assert_eq!((world.power("vm-one"), world.calls("shut down")), (PowerState::On, 0));
}

#[test]
fn a_suspended_vm_keeps_its_memory() {
    let world = one(PowerState::Off);
    let planned = world.planned();
    world.set_power("vm-one", PowerState::Suspended);
    assert_eq!(refused(&world, &planned), "one is suspended");
    assert_eq!(world.power("vm-one"), PowerState::Suspended);
}

#[test]
fn a_vm_whose_power_state_is_not_told_may_run() {
    let world = one(PowerState::Off);
    let planned = world.planned();
    world.set_power("vm-one", PowerState::Unknown);
    assert_eq!(refused(&world, &planned), "one may run: the source does not tell its power state");
    assert_eq!(world.calls("shut down") + world.calls("power on"), 0);
}

#[test]
fn the_target_is_not_started_once_the_source_no_longer_tells_its_power_state() {
    for call in ["open target", "define"] {
        let world = one(PowerState::Off);
        world.before(call, |state| state.vms.get_mut("vm-one").unwrap().power = PowerState::Unknown);
        let outcome = world.run(&NoObserver);
        assert_eq!(outcome.failed, [("one".into(), Cause::Source)], "{call}");
        let error = world.row("vm-one").error.unwrap();
        assert!(
            error.starts_with("one may run: the source does not tell its power state"),
            "{call}: {error}"
        );
        assert_eq!((world.calls("start"), world.own_snapshots()), (0, 0), "{call}");
        world.set_power("vm-one", PowerState::Off);
        assert!(world.run(&NoObserver).is_complete(), "{call}");
        world.assert_arrived(call);
    }
}

#[test]
fn a_vm_that_is_not_the_one_that_was_planned_is_not_moved() {
    type Change = fn(&mut Vm);
    let changes: [(Change, &str); 6] = [
        (
            |vm| vm.disks[0].uuid = "other".into(),
            "Hard disk 1 of one is another disk than when the plan was checked",
        ),
        (
            |vm| vm.disks[1].capacity_bytes += 65536,
            "Hard disk 2 of one has 1376256 bytes now and had 1310720",
        ),
        (|vm| vm.disks.truncate(1), "Hard disk 2 of one was removed after the plan was checked"),
        (
            |vm| {
                let mut third = vm.disks[1].clone();
                (third.key, third.label) = (2002, "Hard disk 3".into());
                vm.disks.push(third);
            },
            "Hard disk 3 of one was added after the plan was checked",
        ),
        (|vm| vm.instance_uuid = "another".into(), "one is another VM than when the plan was checked"),
        (|vm| vm.instance_uuid.clear(), "the source does not tell the instance UUID of one"),
    ];
    for (change, expected) in changes {
        let world = one(PowerState::On);
        world.change("vm-one", |vm| {
            vm.disks.iter_mut().for_each(|disk| disk.uuid = format!("disk-{}", disk.key))
        });
        let planned = world.planned();
        world.change("vm-one", change);
        let error = refused(&world, &planned);
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(world.power("vm-one"), PowerState::On);
    }
}

#[test]
fn a_disk_that_is_added_after_the_check_is_found_before_the_shutdown_or_keeps_the_target_from_being_started()
{
    for (call, shutdowns) in [("prepare", 0), ("define", 1)] {
        let world = one(PowerState::On);
        world.before(call, |state: &mut State| {
            let vm = state.vms.get_mut("vm-one").unwrap();
            let mut third = vm.disks[1].clone();
            (third.key, third.label) = (2002, "Hard disk 3".into());
            vm.disks.push(third);
        });
        let outcome = world.run(&NoObserver);
        assert_eq!(outcome.failed, [("one".into(), Cause::Source)], "{call}");
        let row = world.row("vm-one");
        let error = row.error.unwrap();
        assert!(error.starts_with("Hard disk 3 of one was added after the plan was checked"), "{error}");
        assert!(row.advice.unwrap().contains("`drover cancel p one`"), "{call}");
        assert_eq!((world.calls("start"), world.calls("shut down")), (0, shutdowns), "{call}");
        assert_eq!((world.power("vm-one"), world.own_snapshots()), (PowerState::On, 0), "{call}");
        assert!(!world.is_defined("one"), "{call}");
    }
}

#[test]
fn the_target_gets_the_hardware_that_the_vm_has_when_it_is_defined_and_what_changed_is_told() {
    for call in ["prepare", "create snapshot"] {
        let world = one(PowerState::On);
        world.change("vm-one", |vm| (vm.memory_mib, vm.cpus) = (128, 1));
        world.before(call, |state: &mut State| {
            let vm = state.vms.get_mut("vm-one").unwrap();
            (vm.memory_mib, vm.cpus) = (256, 2);
        });
        assert!(world.run(&NoObserver).is_complete(), "{call}");
        world.assert_arrived(call);
        let machine = world.state().machines["one"].clone();
        assert_eq!((machine.vm.memory_mib, machine.vm.cpus), (256, 2), "{call}");
        let told = "its memory is 256 MiB and was 128 MiB; it has 2 CPUs and had 1";
        let note = format!("and the machine at the target gets it: {told}");
        assert_eq!(world.notes().matches(&note).count(), 1, "{call}: {}", world.notes());
        assert!(world.row("vm-one").started.unwrap().contains(told), "{call}");
    }
}

#[test]
fn other_firmware_is_refused_before_the_shutdown_and_taken_by_a_plan_that_is_laid_over_it_again() {
    for is_early in [true, false] {
        let world = one(PowerState::On);
        let planned = world.planned();
        match is_early {
            true => world.change("vm-one", |vm| vm.firmware = Some(Firmware::Uefi)),
            false => world.before("prepare", |state: &mut State| {
                state.vms.get_mut("vm-one").unwrap().firmware = Some(Firmware::Uefi);
            }),
        }
        assert_eq!(
            refused(&world, &planned),
            "one has other hardware at the source than when the plan was checked: its firmware is UEFI and was BIOS"
        );
        assert!(world.row("vm-one").advice.unwrap().contains("`drover pause p`"));
        assert_eq!((world.power("vm-one"), world.calls("shut down")), (PowerState::On, 0));
        assert!(world.run(&NoObserver).is_complete());
        assert_eq!(world.state().machines["one"].vm.firmware, Some(Firmware::Uefi));
    }
}

#[test]
fn a_machine_that_runs_at_the_target_already_is_left_running() {
    let world = one(PowerState::Off);
    world.state().running_at_target.insert("one".into());
    assert_eq!(refused(&world, &world.planned()), "one runs at the target already");
    assert!(world.runs_at_target("one") && world.calls("stop") == 0);
}

#[test]
fn a_guest_that_does_not_shut_down_is_switched_off_only_by_force() {
    let told = [
        // Nothing was asked of it, so nothing is said to come of that.
        ("shut down", "shut down fails as ordered"),
        (
            "wait until off",
            "wait until off fails as ordered; left behind: one runs; should it go down yet, because it was asked to, \
             `drover cancel` switches it on again",
        ),
    ];
    for (call, expected) in told {
        let world = one(PowerState::On);
        world.set_trouble(call, Trouble::Fails);
        assert_eq!(refused(&world, &world.planned()), expected);
        assert_eq!((world.power("vm-one"), world.calls("power off")), (PowerState::On, 0));
        assert_eq!(world.row("vm-one").switched_off, call == "wait until off");
        let world = one(PowerState::On);
        let mut planned = world.planned();
        planned[0].power_off = PowerOff::Force;
        world.set_trouble(call, Trouble::Fails);
        world.run_plan(PLAN, &planned, &NoObserver, &StopSignal::default()).unwrap();
        world.assert_arrived("by force");
        assert_eq!(world.calls("power off"), 1);
        let events = world.store.events(PLAN).unwrap();
        assert!(events.iter().any(|event| event.kind == "note" && event.text.contains("was switched off")));
    }
}

#[test]
fn a_vm_that_someone_switches_on_again_is_not_started_at_the_target() {
    // From the last phase on it has arrived, which is another test.
    for phase in [Phase::Snapshot, Phase::Copy, Phase::Verify, Phase::Convert, Phase::Define, Phase::Start] {
        let world = one(PowerState::On);
        let watch = Watch(|event: &Event| {
            if enters(event, "one", phase) {
                world.set_power("vm-one", PowerState::On);
            }
        });
        let outcome = world.run(&watch);
        assert_eq!(outcome.failed, [("one".to_string(), Cause::Source)], "{phase}");
        let error = world.row("vm-one").error.unwrap();
        let expected =
            if phase == Phase::Snapshot { "was switched on again by someone" } else { "runs at the source" };
        assert!(error.contains(expected) && !error.contains("left behind"), "{phase}: {error}");
        assert_eq!((world.calls("start"), world.own_snapshots()), (0, 0), "{phase}");
        assert_eq!(world.power("vm-one"), PowerState::On, "{phase}");
        // The guest that ran has written; what it wrote is moved too.
        world.guest_writes("one", 2001, 70_000, b"written while it should have been off");
        world.run(&NoObserver);
        world.assert_arrived(&format!("after it was switched on in {phase}"));
    }
}

#[test]
fn a_vm_that_ran_for_a_moment_after_its_snapshot_is_not_started_at_the_target() {
    for phase in [Phase::Copy, Phase::Verify, Phase::Convert, Phase::Define, Phase::Start] {
        for start in [true, false] {
            let world = World::with(&[vm("one", PowerState::On, 2)], &format!("start: {start}"));
            let watch = Watch(|event: &Event| {
                if enters(event, "one", phase) {
                    world.set_power("vm-one", PowerState::On);
                    world.guest_writes("one", 2001, 70_000, b"written while it should have been off");
                    world.set_power("vm-one", PowerState::Off);
                }
            });
            let outcome = world.run(&watch);
            assert_eq!(outcome.failed, [("one".to_string(), Cause::Source)], "{phase}, {start}");
            let row = world.row("vm-one");
            assert!(row.error.unwrap().contains("was switched on and off again by someone"), "{phase}");
            assert!(row.advice.unwrap().contains("leave it off"));
            assert_eq!((world.calls("start"), world.own_snapshots()), (0, 0), "{phase}");
            assert_eq!(world.power("vm-one"), PowerState::On, "{phase}: drover had switched it off");
            world.run(&NoObserver);
            world.assert_arrived(&format!("after it ran for a moment in {phase}"));
        }
    }
}

#[test]
fn without_power_events_change_tracking_witnesses_that_a_vm_ran_for_a_moment() {
    for is_tracked in [true, false] {
        let world = World::with(&[vm("one", PowerState::On, 2)], "start: true");
        world.state().forgets_power = true;
        if is_tracked {
            world.state().reset_tracking("vm-one");
        }
        let watch = Watch(|event: &Event| {
            if enters(event, "one", Phase::Define) {
                world.set_power("vm-one", PowerState::On);
                world.guest_writes("one", 2001, 70_000, b"written while it should have been off");
                world.set_power("vm-one", PowerState::Off);
            }
        });
        let outcome = world.run(&watch);
        let note = "Hard disk 1, Hard disk 2 is not tracked: nothing can witness";
        assert_eq!(world.notes().contains(note), !is_tracked, "{}", world.notes());
        if !is_tracked {
            // Nobody can know; it was said.
            assert_eq!(outcome.done, 1);
            continue;
        }
        assert_eq!(outcome.failed, [("one".to_string(), Cause::Source)]);
        assert!(
            world.row("vm-one").error.unwrap().contains("was changed by someone after its last snapshot")
        );
        assert_eq!((world.calls("start"), world.power("vm-one")), (0, PowerState::On));
        world.run(&NoObserver);
        world.assert_arrived("after it ran for a moment");
    }
}

#[test]
fn where_change_tracking_forgot_and_no_power_events_are_told_nobody_vouches_for_the_vm() {
    for forgets_power in [true, false] {
        let world = World::with(&[vm("one", PowerState::On, 1)], "start: true");
        world.state().forgets_power = forgets_power;
        world.state().reset_tracking("vm-one");
        let watch = Watch(|event: &Event| {
            if enters(event, "one", Phase::Define) {
                world.state().reset_tracking("vm-one");
            }
        });
        assert_eq!(world.run(&watch).failed.len(), usize::from(forgets_power));
    }
}

#[test]
fn a_source_that_is_switched_on_after_arrival_is_not_called_done() {
    let world = World::with(&[vm("one", PowerState::On, 1)], "start: false");
    world.set_trouble("remove snapshot", Trouble::Fails);
    world.run(&NoObserver);
    assert_eq!(world.row("vm-one").phase.as_deref(), Some("clean up"));
    world.set_power("vm-one", PowerState::On);
    let outcome = world.run(&NoObserver);
    assert_eq!(outcome.failed, [("one".to_string(), Cause::Source)]);
    let row = world.row("vm-one");
    assert!(row.error.unwrap().contains("switched on at the source after it had arrived"));
    assert!(row.advice.unwrap().contains("decide which of the two"));
    assert_eq!((world.power("vm-one"), world.own_snapshots()), (PowerState::On, 0));
    world.set_power("vm-one", PowerState::Off);
    world.run(&NoObserver);
    world.assert_arrived("once it is off again");
}
