//! Stops, cancels, and what is told when something cannot be undone.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use drover_engine::{
    Cause, EngineError, Event, NoObserver, Observer, Phase, PlanState, ProviderError, Store, VmState, cancel,
    cancel_by_leave, clean, forget, switch_on_by_leave,
};
use drover_mover::{StopSignal, journal_path};
use drover_types::inventory::PowerState;
use fakes::{PLAN, State, Trouble, Watch, World, enters, leaves, stop_at_wait, vm};

/// One VM that runs at the source and is to run at the target.
fn one() -> World {
    World::with(&[vm("on", PowerState::On, 2)], "start: true")
}

fn cancelled(world: &World) -> Vec<String> {
    cancel(PLAN, &world.store, world, world).unwrap().left
}

#[test]
fn what_cannot_be_undone_is_told_and_the_next_run_sees_to_it() {
    for undone in ["remove snapshot", "power on", "undo define"] {
        let world = one();
        world.set_trouble("define", Trouble::FailsAfter);
        world.set_trouble(undone, Trouble::Fails);
        world.run(&NoObserver);
        let row = world.row("vm-on");
        assert_eq!(row.state, VmState::Failed);
        let error = row.error.unwrap();
        assert!(error.starts_with("define fails as ordered; left behind: "), "{error}");
        assert!(error.contains(&format!("{undone} fails as ordered; where it stands: ")), "{error}");
        // The one thing that could not be undone is all that is left.
        assert_eq!(world.own_snapshots(), usize::from(undone == "remove snapshot"), "{undone}");
        assert_eq!(world.power("vm-on") == PowerState::Off, undone == "power on", "{undone}");
        assert_eq!(world.is_defined("on"), undone == "undo define", "{undone}");
        world.run(&NoObserver);
        world.assert_arrived(undone);
    }
}

#[test]
fn a_shutdown_counts_where_a_guest_ran_and_once() {
    let world = one();
    let count = || world.store.shutdowns(PLAN, "vm-on").unwrap();
    assert_eq!(count(), 0);
    for times in 1..=2 {
        world.set_trouble("define", Trouble::Fails);
        world.run(&NoObserver);
        assert_eq!((count(), world.power("vm-on")), (times, PowerState::On));
    }
    world.run(&Watch(|event: &Event| assert!(!enters(event, "on", Phase::Define), "the process dies")));
    world.as_if_killed();
    assert_eq!((count(), world.power("vm-on")), (3, PowerState::Off));
    // It is off already, and switched on again.
    world.set_trouble("define", Trouble::Fails);
    world.run(&NoObserver);
    assert_eq!((count(), world.power("vm-on")), (3, PowerState::On));
    world.run(&NoObserver);
    world.assert_arrived("at last");
    assert_eq!(count(), 4);
}

#[test]
fn who_undoes_and_is_replaced_does_no_further_step() {
    let steps = ["undo define", "remove images", "remove snapshot", "power on"];
    let mut done_at_last = Vec::new();
    for allowed in 0..10 {
        let world = one();
        let dying = Watch(|event: &Event| assert!(!enters(event, "on", Phase::Define), "the process dies"));
        world.run(&dying);
        world.as_if_killed();
        let count = || steps.map(|step| world.calls(step));
        let (asked, refused_at) = (AtomicUsize::new(0), Mutex::new(None));
        let leave = || {
            if asked.fetch_add(1, SeqCst) < allowed {
                return Ok(());
            }
            refused_at.lock().unwrap().get_or_insert_with(count);
            Err(ProviderError::new(Cause::Cancelled, "another undoes it"))
        };
        let given_up = cancel_by_leave(PLAN, &world.store, &world, &world, &leave).unwrap();
        let Some(then) = refused_at.into_inner().unwrap() else {
            assert_eq!(given_up.left, Vec::<String>::new());
            assert!(allowed >= 4, "each step asks: {allowed}");
            assert_eq!((world.power("vm-on"), world.own_snapshots()), (PowerState::On, 0));
            return;
        };
        assert_eq!(count(), then, "after {allowed} steps");
        assert!(given_up.left.iter().any(|left| left.contains("another undoes it")), "{:?}", given_up.left);
        assert!(done_at_last <= then.to_vec(), "more leave, more steps");
        done_at_last = then.to_vec();
        assert_eq!(cancelled(&world), Vec::<String>::new());
        assert_eq!((world.power("vm-on"), world.own_snapshots()), (PowerState::On, 0));
    }
    panic!("it never has all the leave that it needs");
}

#[test]
fn a_guest_that_goes_down_after_it_was_given_up_is_switched_on_when_cancelled() {
    for (told, words) in [(PowerState::On, "runs"), (PowerState::Unknown, "is not told to be off")] {
        let world = one();
        world.before("wait until off", move |state| state.vms.get_mut("vm-on").unwrap().power = told);
        world.set_trouble("wait until off", Trouble::Fails);
        world.run(&NoObserver);
        let error = world.row("vm-on").error.unwrap();
        assert!(error.contains(&format!("left behind: on {words}; should it go down yet")), "{error}");
        assert_eq!(world.power("vm-on"), told);
        assert!(cancelled(&world)[0].contains("cancel again after that"), "{words}");
        world.state().vms.get_mut("vm-on").unwrap().power = PowerState::Off;
        assert_eq!(cancelled(&world), Vec::<String>::new());
        assert_eq!(world.power("vm-on"), PowerState::On);
    }
}

/// Killed while the guest shuts down: nobody waits for it any more, but it may go down all the same.
fn killed_at_shutdown(lines: &str) -> World {
    let world = World::with(&[vm("on", PowerState::On, 2)], lines);
    world.set_trouble("shut down", Trouble::DiesBefore);
    world.run(&NoObserver);
    world.as_if_killed();
    assert_eq!((world.power("vm-on"), world.row("vm-on").switched_off), (PowerState::On, true));
    world
}

#[test]
fn a_guest_that_goes_down_after_drover_was_killed_and_the_plan_cancelled_is_not_forgotten() {
    let world = killed_at_shutdown("start: true");
    let told = cancelled(&world);
    assert!(told.len() == 1 && told[0].contains("cancel again after that"), "{told:?}");
    assert_ne!(world.row("vm-on").state, VmState::Cancelled);
    world.set_power("vm-on", PowerState::Off);
    assert_eq!(cancelled(&world), Vec::<String>::new());
    assert_eq!((world.power("vm-on"), world.row("vm-on").state), (PowerState::On, VmState::Cancelled));
}

#[test]
fn a_guest_that_did_not_go_down_in_its_time_is_no_longer_waited_for() {
    let world = killed_at_shutdown("start: true\nshutdown_timeout: 1s");
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(cancelled(&world), Vec::<String>::new());
    assert_eq!((world.power("vm-on"), world.row("vm-on").state), (PowerState::On, VmState::Cancelled));
}

#[test]
fn a_machine_that_cannot_be_stopped_keeps_the_source_off() {
    let world = one();
    world.set_trouble("start", Trouble::FailsAfter);
    world.set_trouble("stop", Trouble::Fails);
    world.run(&NoObserver);
    let error = world.row("vm-on").error.unwrap();
    assert!(error.contains("left behind: stop fails as ordered"), "{error}");
    assert!(error.contains("on is still off: on runs at the target"), "{error}");
    assert_eq!((world.power("vm-on"), world.runs_at_target("on")), (PowerState::Off, true));
    // Cancelling does not kill it; once it is stopped, all is put back.
    assert_eq!(cancelled(&world), ["on: on runs at the target; stop it there, then cancel again"]);
    assert!(world.runs_at_target("on") && !world.images().is_empty());
    world.state().running_at_target.clear();
    assert_eq!(cancelled(&world), Vec::<String>::new());
    assert!(world.images().is_empty());
    assert_eq!(world.power("vm-on"), PowerState::On);
}

#[test]
fn a_source_is_not_switched_on_while_nobody_knows_what_runs_at_the_target() {
    let world = one();
    world.set_trouble("start", Trouble::DiesAfter);
    world.run(&NoObserver);
    world.as_if_killed();
    world.set_trouble("is running", Trouble::Fails);
    let outcome = world.run(&NoObserver);
    assert_eq!(outcome.failed.len(), 1);
    let error = outcome.ends[0].error.clone().unwrap();
    assert!(error.contains("how far it came is not known: is running fails"), "{error}");
    assert_eq!(world.row("vm-on").error.as_ref(), Some(&error), "`drover status` tells it");
    assert_eq!((world.power("vm-on"), world.runs_at_target("on")), (PowerState::Off, true));
    world.run(&NoObserver);
    world.assert_arrived("once the target answers");
    assert_eq!(world.calls("start"), 1);
}

#[test]
fn one_that_arrived_and_could_not_be_asked_is_not_taken_for_given_up_by_cancel() {
    let world = one();
    world.set_trouble("start", Trouble::DiesAfter);
    world.run(&NoObserver);
    world.as_if_killed();
    world.set_trouble("is running", Trouble::Fails);
    assert_eq!(world.run(&NoObserver).failed.len(), 1);
    let given_up = cancel(PLAN, &world.store, &world, &world).unwrap();
    assert_eq!((given_up.left.len(), given_up.arrived), (0, vec!["on".to_string()]));
    assert!(world.runs_at_target("on") && world.power("vm-on") == PowerState::Off);
}

#[test]
fn another_vm_under_the_same_id_is_never_switched_on() {
    let world = one();
    world.set_trouble("create snapshot", Trouble::DiesBefore);
    world.run(&NoObserver);
    world.as_if_killed();
    let planned = world.planned();
    world.change("vm-on", |vm| vm.instance_uuid = "another".into());
    world.run_plan(PLAN, &planned, &NoObserver, &StopSignal::default()).unwrap();
    let error = world.row("vm-on").error.unwrap();
    assert!(error.starts_with("on is another VM than when the plan was checked"), "{error}");
    assert!(!cancelled(&world).is_empty());
    assert_eq!((world.power("vm-on"), world.calls("power on")), (PowerState::Off, 0));
}

#[test]
fn a_stop_before_anything_began_touches_nothing() {
    let world = World::new();
    let stop = StopSignal::default();
    stop.stop();
    let outcome = world.run_until(&NoObserver, &stop);
    assert_eq!((outcome.done, outcome.failed.len(), outcome.unfinished), (0, 0, 2));
    assert_eq!(world.store.plan(PLAN).unwrap().unwrap().state, PlanState::Incomplete);
    assert_eq!((world.power("vm-on"), world.calls("shut down")), (PowerState::On, 0));
    world.run(&NoObserver);
    world.assert_arrived("after a stop");
}

#[test]
fn a_stop_before_any_phase_undoes_and_can_be_resumed() {
    for phase in Phase::COLD {
        let world = one();
        let stop = StopSignal::default();
        let watch = Watch(|event: &Event| {
            if enters(event, "on", phase) {
                stop.stop();
            }
        });
        let outcome = world.run_until(&watch, &stop);
        let row = world.row("vm-on");
        // From the start on it has arrived, and is not left half done.
        if phase >= Phase::Start {
            assert_eq!((outcome.done, outcome.unfinished), (1, 0), "{phase}");
        } else {
            assert_eq!((outcome.done, outcome.failed.len(), outcome.unfinished), (0, 0, 1), "{phase}");
            assert_eq!((row.state, row.cause.as_deref()), (VmState::Stopped, Some("cancelled")), "{phase}");
            assert_eq!((world.power("vm-on"), world.own_snapshots()), (PowerState::On, 0), "{phase}");
            assert!(!world.runs_at_target("on") && !world.is_defined("on"), "{phase}");
        }
        world.run(&NoObserver);
        world.assert_arrived(&format!("after a stop in {phase}"));
    }
}

#[test]
fn a_stop_in_mid_copy_loses_nothing_that_was_recorded() {
    let world = one();
    world.slow_down_in_the_middle();
    let stop = StopSignal::default();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            world.wait_for_the_middle();
            stop.stop();
        });
        world.run_until(&NoObserver, &stop);
    });
    assert_stopped_in_mid_copy(&world);
}

#[test]
fn another_process_can_ask_for_the_stop() {
    let world = one();
    world.slow_down_in_the_middle();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            world.wait_for_the_middle();
            world.store.ask_cancel(PLAN).unwrap();
        });
        world.run(&NoObserver);
    });
    assert_stopped_in_mid_copy(&world);
}

fn assert_stopped_in_mid_copy(world: &World) {
    let row = world.row("vm-on");
    assert_eq!((row.state, row.phase.as_deref()), (VmState::Stopped, Some("copy")));
    assert_eq!((world.power("vm-on"), world.own_snapshots()), (PowerState::On, 0));
    let (read, recorded) = (world.read(), world.recorded());
    let size: u64 = world.sources.values().map(drover_disk::Disk::size).sum();
    let sum: u64 = recorded.values().sum();
    assert!(0 < sum && sum < size, "{sum} of {size} bytes were recorded");
    let disks = world.store.disks(PLAN).unwrap();
    let told: u64 = disks.iter().filter_map(|disk| disk.read_bytes).sum();
    assert!(sum <= told && told <= read.values().sum(), "{told} bytes read are told of: {disks:?}");
    assert!(disks.iter().all(|disk| disk.root.is_none()), "none is whole: {disks:?}");
    world.sources.values().for_each(drover_disk::MemDisk::clear_faults);
    world.run(&NoObserver);
    world.assert_arrived("resumed");
    let disks = world.store.disks(PLAN).unwrap();
    let last: u64 = disks.iter().filter_map(|disk| disk.read_bytes).sum();
    let all: u64 = disks.iter().map(|disk| disk.read_in_all()).sum();
    assert!(
        last > 0 && all == told + last,
        "{all} in both runs, {told} in the first and {last} in the other"
    );
    for (disk, bytes) in world.read() {
        let left = drover_disk::Disk::size(&world.sources[&disk]) - recorded[&disk];
        assert_eq!(bytes - read[&disk], left, "{disk}: exactly what was not recorded is read");
    }
}

#[test]
fn a_disk_that_fails_does_not_keep_the_source_off_until_the_others_are_copied() {
    let world = World::with(&[vm("on", PowerState::On, 3)], "start: true");
    world.slow_down_in_the_middle();
    world.set_trouble_at("open source", 3, Trouble::Fails);
    world.run(&NoObserver);
    let row = world.row("vm-on");
    let (told, is_on) = row.error.as_deref().unwrap().split_once("; ").unwrap();
    assert_eq!((row.state, told), (VmState::Failed, "open source fails as ordered"));
    assert!(is_on.starts_with("its source is switched on again, after it was down for "), "{is_on}");
    assert_eq!(world.power("vm-on"), PowerState::On);
    for (disk, read) in world.read() {
        assert!(read < drover_disk::Disk::size(&world.sources[&disk]), "{disk} was copied to its end");
    }
    world.run(&NoObserver);
    world.assert_arrived("in the end");
}

#[test]
fn a_plan_that_is_being_run_is_neither_run_nor_cancelled_by_a_second_drover() {
    let world = one();
    let refused = Mutex::new(Vec::new());
    let watch = Watch(|event: &Event| {
        if enters(event, "on", Phase::Copy) {
            let planned = world.planned();
            let run = world.run_plan(PLAN, &planned, &NoObserver, &StopSignal::default());
            let cancelled = cancel(PLAN, &world.store, &world, &world);
            *refused.lock().unwrap() = vec![run.err(), cancelled.err()];
        }
    });
    world.run(&watch);
    world.assert_arrived("undisturbed");
    let refused = refused.into_inner().unwrap();
    assert_eq!(refused.len(), 2);
    for error in refused {
        let error = error.expect("it was refused");
        let own = std::process::id().to_string();
        assert!(matches!(&error, EngineError::Running { pid, .. } if *pid == own), "{error}");
    }
}

#[test]
fn cancelling_after_a_crash_leaves_nothing_behind() {
    for phase in Phase::COLD {
        let world = World::new();
        let dying = Watch(|event: &Event| assert!(!enters(event, "on", phase), "the process dies"));
        world.run(&dying);
        world.as_if_killed();
        assert_eq!(cancelled(&world), Vec::<String>::new(), "{phase}");
        assert_eq!(world.own_snapshots(), 0, "{phase}");
        assert_eq!(world.store.plan(PLAN).unwrap().unwrap().state, PlanState::Cancelled);
        let arrived = phase == Phase::CleanUp;
        let row = world.row("vm-on");
        assert_eq!(row.state, if arrived { VmState::Done } else { VmState::Cancelled }, "{phase}");
        assert_eq!(world.power("vm-on") == PowerState::Off, arrived, "{phase}");
        assert_eq!((world.runs_at_target("on"), world.is_defined("on")), (arrived, arrived), "{phase}");
        // The other one arrived, and stays.
        assert_eq!(world.row("vm-off").state, VmState::Done);
        assert!(world.runs_at_target("off"));
        for vm in world.planned() {
            for disk in &vm.disks {
                let stays = arrived || vm.target_name == "off";
                assert_eq!(world.state().images.contains_key(&disk.path), stays, "{phase}");
                assert_eq!(journal_path(&disk.path).exists(), stays, "{phase}");
            }
        }
        // Begun anew, it arrives.
        world.run(&NoObserver);
        world.assert_arrived(&format!("again, after {phase}"));
    }
}

#[test]
fn cancelling_tells_what_it_could_not_undo_and_can_be_tried_again() {
    for call in ["remove images", "undo define", "remove snapshot", "power on", "is running", "look"] {
        let world = one();
        let dying = Watch(|event: &Event| assert!(!enters(event, "on", Phase::Define), "the process dies"));
        world.run(&dying);
        world.as_if_killed();
        world.set_trouble(call, Trouble::Fails);
        let left = cancelled(&world);
        assert!(left.len() == 1 && left[0].contains(&format!("{call} fails as ordered")), "{call}: {left:?}");
        if call == "look" {
            assert_eq!(world.images().len(), 2, "they may be all there is of it");
        }
        assert_eq!(world.store.plan(PLAN).unwrap().unwrap().state, PlanState::Incomplete);
        if call == "undo define" {
            // What keeps its definition may run: it keeps its disks, and the source stays off.
            assert_eq!((world.images().len(), world.power("vm-on")), (2, PowerState::Off));
        }
        assert_eq!(cancelled(&world), Vec::<String>::new(), "{call}");
        assert!(world.images().is_empty() && world.own_snapshots() == 0, "{call}");
        assert_eq!(world.power("vm-on"), PowerState::On, "{call}");
    }
}

/// Deleted at its source, or no longer registered there.
fn lose(world: &World, id: &str) {
    world.state().vms.remove(id);
}

#[test]
fn the_copy_of_a_vm_that_its_source_does_not_have_any_more_is_kept_and_named() {
    type Case = (&'static str, fn() -> World, &'static str);
    let cold = || {
        let world = one();
        world.run(&Watch(|event: &Event| assert!(!enters(event, "on", Phase::Define), "the process dies")));
        world.as_if_killed();
        world
    };
    let warm = || {
        let world = World::warm("warm: {interval: 1h}");
        stop_at_wait(&world, 2);
        world
    };
    let in_part = || {
        let world = World::with(&[vm("on", PowerState::On, 1)], "start: true");
        world.set_trouble("open target", Trouble::DiesAfter);
        world.run(&NoObserver);
        world.as_if_killed();
        world
    };
    let cases: [Case; 3] = [
        ("cold", cold, "its copy is whole (copied 20"),
        ("warm", warm, "its copy is whole (pass 2, from "),
        ("in part", in_part, "its copy is not whole, and stays where it is: "),
    ];
    for (why, world, words) in cases {
        let world = world();
        let before: Vec<_> = world.images().into_iter().map(|(path, disk)| (path, disk.content())).collect();
        assert!(!before.is_empty(), "{why}");
        lose(&world, "vm-on");
        let given_up = cancel(PLAN, &world.store, &world, &world).unwrap();
        assert_eq!((given_up.left, given_up.kept), (vec![], vec!["on".to_string()]), "{why}");
        let after: Vec<_> = world.images().into_iter().map(|(path, disk)| (path, disk.content())).collect();
        assert!(before == after, "{why}: what was copied is not what it was");
        assert_eq!((world.calls("remove images"), world.is_defined("on")), (0, false), "{why}");
        let row = world.row("vm-on");
        assert_eq!((row.state, row.snapshot, row.switched_off), (VmState::Cancelled, None, false), "{why}");
        let told = row.error.unwrap();
        assert!(told.starts_with("its source does not have on (vm-on) any more"), "{why}: {told}");
        assert!(told.contains(words), "{why}: {told}");
        before.iter().for_each(|(path, _)| assert!(told.contains(&*path.to_string_lossy()), "{why}: {told}"));
        assert_eq!(given_up.notes, [format!("on: {told}")], "{why}");
        let stands = told
            .contains("should it come back there, it is off (drover shut it down) and has drover's snapshot");
        assert_eq!(stands, why != "warm", "{told}");
        // Nothing else of the plan stumbles over it, and what it leaves is left for good.
        assert_eq!(cancelled(&world), Vec::<String>::new(), "{why}");
        let cleaned = clean(&world.store, PLAN, &world).unwrap();
        assert_eq!((cleaned.left, cleaned.gone), (vec![], vec!["on".to_string()]), "{why}");
        assert_eq!(forget(&world.store, PLAN, &world).unwrap().vms, 1, "{why}");
        assert_eq!(world.images().len(), before.len(), "{why}");
    }
}

#[test]
fn a_vm_that_is_not_said_to_be_gone_is_not_taken_for_that() {
    let world = one();
    world.run(&Watch(|event: &Event| assert!(!enters(event, "on", Phase::Define), "the process dies")));
    world.as_if_killed();
    world.state().hides_what_is_gone = true;
    lose(&world, "vm-on");
    let given_up = cancel(PLAN, &world.store, &world, &world).unwrap();
    assert!(given_up.left.iter().all(|left| left.contains("vm-on is not there")), "{:?}", given_up.left);
    assert_eq!((given_up.failed, given_up.kept), (vec!["on".to_string()], vec![]));
    let row = world.row("vm-on");
    assert!(row.state != VmState::Cancelled && row.snapshot.is_some() && row.switched_off, "{row:?}");
    assert_eq!(world.images().len(), 2);
    assert_eq!(clean(&world.store, PLAN, &world).unwrap().left, ["on: vm-on is not there"]);
}

#[test]
fn one_that_has_arrived_and_is_gone_at_its_source_has_arrived() {
    let world = one();
    world.set_trouble("remove snapshot", Trouble::Fails);
    world.run(&NoObserver);
    assert_eq!(world.row("vm-on").state, VmState::NotCleanedUp);
    lose(&world, "vm-on");
    let given_up = cancel(PLAN, &world.store, &world, &world).unwrap();
    assert_eq!((given_up.left, given_up.arrived), (vec![], vec!["on".to_string()]));
    assert!(given_up.notes[0].contains("nothing is left to clean up there"), "{:?}", given_up.notes);
    assert_eq!((world.row("vm-on").state, world.images().len()), (VmState::Done, 2));
    assert!(world.runs_at_target("on"));
}

#[test]
fn cancelling_does_not_call_a_vm_done_whose_source_runs_beside_it() {
    let world = World::with(&[vm("on", PowerState::On, 2)], "start: false");
    world.set_trouble("remove snapshot", Trouble::Fails);
    world.run(&NoObserver);
    world.set_power("vm-on", PowerState::On);
    let left = cancelled(&world);
    assert!(left.len() == 1 && left[0].contains("its source may run"), "{left:?}");
    assert_eq!(world.store.plan(PLAN).unwrap().unwrap().state, PlanState::Incomplete);
    world.set_power("vm-on", PowerState::Off);
    assert_eq!(cancelled(&world), Vec::<String>::new());
    assert_eq!((world.row("vm-on").state, world.images().len()), (VmState::Done, 2));
}

#[test]
fn a_machine_that_was_started_is_kept_by_cancelling_even_if_it_was_shut_down_since() {
    let at_its_end = |event: &Event| assert!(!leaves(event, "on", Phase::Start), "the process dies");
    let dying: [(&str, Box<dyn Observer>); 2] =
        [("start", Box::new(Watch(at_its_end))), ("clean up", Box::new(NoObserver))];
    for (phase, observer) in dying {
        for shut_down in [false, true] {
            let world = one();
            if phase == "clean up" {
                world.set_trouble("remove snapshot", Trouble::Fails);
            }
            world.run(observer.as_ref());
            world.as_if_killed();
            assert_eq!((world.row("vm-on").phase.as_deref(), world.own_snapshots()), (Some(phase), 1));
            if shut_down {
                world.state().running_at_target.clear();
            }
            assert_eq!(cancelled(&world), Vec::<String>::new());
            assert_eq!(world.row("vm-on").state, VmState::Done);
            assert_eq!((world.images().len(), world.own_snapshots()), (2, 0));
            assert_eq!(world.runs_at_target("on"), !shut_down);
            assert_eq!(world.power("vm-on"), PowerState::Off);
        }
    }
}

#[test]
fn a_vm_that_arrived_and_could_not_be_cleaned_up_says_where_it_is_and_only_its_clean_up_is_left() {
    let others = |state: &mut State| state.set_power("vm-on", PowerState::On);
    type Others = Option<fn(&mut State)>;
    let cases: [(&str, Others, &str); 3] = [
        (
            "start: true",
            None,
            "on has arrived at the target, it was started there, and its source stays off; its clean-up",
        ),
        (
            "start: false",
            None,
            "nobody has started it there yet, and its source stays off; its clean-up failed: remove",
        ),
        (
            "start: false",
            Some(others),
            "started it there yet, and ITS SOURCE IS SWITCHED ON; its clean-up failed: on was",
        ),
    ];
    for (lines, others, told) in cases {
        let world = World::with(&[vm("on", PowerState::On, 1)], lines);
        match others {
            Some(others) => world.before("remove snapshot", others),
            None => world.set_trouble("remove snapshot", Trouble::Fails),
        }
        let outcome = world.run(&NoObserver);
        // One whose source runs again is no arrival that anybody should rely on.
        let is_safe = others.is_none();
        assert_eq!((outcome.done, outcome.not_cleaned_up), (0, usize::from(is_safe)), "{told}");
        assert!(outcome.has_arrived() == is_safe && !outcome.is_complete(), "{told}");
        let row = world.row("vm-on");
        assert!(row.error.as_deref().is_some_and(|error| error.contains(told)), "{:?}", row.error);
        let state = if is_safe { VmState::NotCleanedUp } else { VmState::Failed };
        assert_eq!((row.state, row.advice.is_some()), (state, true), "{told}");
        assert_eq!((world.is_defined("on"), world.calls("power on")), (true, 0), "{told}");
        // Another plan leaves alone what this one brought.
        let again = world.run_plan("q", &world.planned(), &NoObserver, &StopSignal::default()).unwrap();
        assert_eq!((again.failed.len(), world.images().len()), (1, 1), "{told}");
        world.set_power("vm-on", PowerState::Off);
        let copies = world.calls("open source");
        assert_eq!(world.run(&NoObserver).done, 1, "{told}");
        assert_eq!((world.own_snapshots(), world.calls("open source")), (0, copies), "{told}");
        let given_up = cancel(PLAN, &world.store, &world, &world).unwrap();
        assert_eq!((given_up.left.len(), given_up.arrived), (0, vec!["on".to_string()]), "{told}");
    }
}

#[test]
fn a_machine_that_was_started_is_not_started_or_written_again_by_a_resume() {
    let world = one();
    let dying = Watch(|event: &Event| assert!(!leaves(event, "on", Phase::Start), "the process dies"));
    world.run(&dying);
    world.as_if_killed();
    world.state().running_at_target.clear();
    world.images().iter().for_each(|(_, image)| image.overwrite(0, b"written by its guest"));
    world.run(&NoObserver);
    assert_eq!(world.row("vm-on").state, VmState::Done);
    assert_eq!((world.calls("start"), world.own_snapshots()), (1, 0));
    assert!(world.images().iter().all(|(_, image)| image.content().starts_with(b"written by its guest")));
}

#[test]
fn what_one_plan_brought_is_safe_from_another_plan_and_from_its_cancelling() {
    let mut world = one();
    world.run(&NoObserver);
    let planned = world.planned();
    let again = |world: &World, runs: bool, expected: &str| {
        if !runs {
            world.state().running_at_target.clear();
        }
        let outcome = world.run_plan("q", &planned, &NoObserver, &StopSignal::default()).unwrap();
        assert_eq!(outcome.failed.len(), 1);
        let error = world.store.vm("q", "vm-on").unwrap().unwrap().error.unwrap();
        assert!(error.contains(expected), "{error}");
        cancel("q", &world.store, world, world).unwrap();
        assert_eq!((world.images().len(), world.calls("stop")), (2, 0));
        assert!(world.is_defined("on") && world.runs_at_target("on") == runs);
    };
    again(&world, true, "on has arrived, in the same files, with plan p");
    // Also if this drover knows nothing of the first plan.
    let first = std::mem::replace(&mut world.store, Store::open(&world.folder.path().join("new")).unwrap());
    again(&world, true, "on runs at the target already");
    world.store = first;
    again(&world, false, "on has arrived, in the same files, with plan p");
}

#[test]
fn a_vm_is_not_run_twice_from_two_folders() {
    let world = one();
    world.run(&NoObserver);
    let mut planned = world.planned();
    for disk in &mut planned[0].disks {
        disk.path = disk.path.with_file_name(format!("second-{}", disk.index));
    }
    let outcome = world.run_plan("q", &planned, &NoObserver, &StopSignal::default()).unwrap();
    assert_eq!(outcome.failed, [("on".to_string(), Cause::Plan)]);
    let error = world.store.vm("q", "vm-on").unwrap().unwrap().error.unwrap();
    assert!(error.contains("runs at the target, with plan p"), "{error}");
}

#[test]
fn a_vm_is_moved_by_one_plan_at_a_time() {
    let world = one();
    let second = Mutex::new(None);
    let watch = Watch(|event: &Event| {
        if enters(event, "on", Phase::Copy) {
            let planned = world.planned();
            let outcome = world.run_plan("q", &planned, &NoObserver, &StopSignal::default()).unwrap();
            *second.lock().unwrap() = Some(outcome.failed);
        }
    });
    world.run(&watch);
    world.assert_arrived("undisturbed");
    assert_eq!(second.into_inner().unwrap(), Some(vec![("on".to_string(), Cause::Plan)]));
    let error = world.store.vm("q", "vm-on").unwrap().unwrap().error.unwrap();
    assert!(error.contains("is on its way with plan p"), "{error}");
}

/// A plan that was cancelled after its machine was defined, and is begun anew.
fn begun_anew() -> World {
    let world = World::with(&[vm("on", PowerState::On, 1)], "start: true");
    world.set_trouble("start", Trouble::Fails);
    world.run(&NoObserver);
    let given_up = cancel(PLAN, &world.store, &world, &world).unwrap();
    assert!(given_up.left.is_empty(), "{given_up:?}");
    world
}

/// Nobody can tell whether it runs at the target, where this time nothing was defined.
#[test]
fn what_was_before_it_was_given_up_keeps_no_source_off() {
    let world = begun_anew();
    let watch = Watch(|event: &Event| {
        if enters(event, "on", Phase::Copy) {
            world.set_trouble("open source", Trouble::Fails);
            (0..4).for_each(|_| world.set_trouble("is running", Trouble::Fails));
        }
    });
    assert_eq!(world.run(&watch).failed.len(), 1);
    let error = world.row("vm-on").error.unwrap();
    assert!(world.power("vm-on") == PowerState::On && !error.contains("still off"), "{error}");
}

/// Another plan may have images at its place by now.
#[test]
fn what_was_copied_before_it_was_given_up_removes_no_images_of_others() {
    let world = begun_anew();
    let removed = world.calls("remove images");
    world.run(&Watch(|event: &Event| assert!(!leaves(event, "on", Phase::Check), "the process dies")));
    world.as_if_killed();
    assert!(cancel(PLAN, &world.store, &world, &world).unwrap().left.is_empty());
    assert_eq!(world.calls("remove images"), removed, "no copy was begun since");
}

#[test]
fn a_guest_that_a_dead_run_left_off_is_switched_on_and_its_copy_is_gone_on_with() {
    for phase in [Phase::Snapshot, Phase::Verify, Phase::Define, Phase::Start] {
        let world = one();
        world.run(&Watch(|event: &Event| assert!(!enters(event, "on", phase), "the process dies")));
        world.as_if_killed();
        assert_eq!(world.power("vm-on"), PowerState::Off, "{phase}");
        let images = world.images().len();
        let refused = || Err(ProviderError::new(Cause::Cancelled, "another does it"));
        let left = switch_on_by_leave(PLAN, &world.store, &world, &world, &refused).unwrap();
        assert!(!left.is_empty() && world.power("vm-on") == PowerState::Off, "{phase}: {left:?}");
        let left = switch_on_by_leave(PLAN, &world.store, &world, &world, &|| Ok(())).unwrap();
        assert_eq!(left, Vec::<String>::new(), "{phase}");
        assert_eq!((world.power("vm-on"), world.own_snapshots()), (PowerState::On, 0), "{phase}");
        assert!(!world.row("vm-on").switched_off && !world.is_defined("on"), "{phase}");
        assert_eq!(world.images().len(), images, "{phase}: what was copied stays");
        world.run(&NoObserver);
        world.assert_arrived(phase.name());
    }
}

#[test]
fn a_guest_that_runs_at_the_target_is_not_switched_on_at_its_source() {
    let world = one();
    world.set_trouble("start", Trouble::DiesAfter);
    world.run(&NoObserver);
    world.as_if_killed();
    assert!(world.runs_at_target("on"));
    let left = switch_on_by_leave(PLAN, &world.store, &world, &world, &|| Ok(())).unwrap();
    assert!(left.iter().any(|left| left.contains("its source stays off")), "{left:?}");
    assert_eq!(world.power("vm-on"), PowerState::Off);
    world.run(&NoObserver);
    world.assert_arrived("at last");
}

#[test]
fn a_run_tells_whether_a_vm_failed_because_of_its_host() {
    for (call, failures) in [("open source", 1), ("define", 0)] {
        let world = one();
        world.set_trouble(call, Trouble::Fails);
        let outcome = world.run(&NoObserver);
        assert_eq!((outcome.failed.len(), outcome.quarantine.len()), (1, failures), "{call}: {outcome:?}");
    }
}

#[test]
fn who_stops_a_run_when_it_hears_that_the_guest_is_to_go_down_keeps_it_up() {
    let (world, stop) = (one(), StopSignal::default());
    let hears = Watch(|event: &Event| {
        if enters(event, "on", Phase::PowerOff) {
            stop.stop();
        }
    });
    world.run_until(&hears, &stop);
    assert_eq!((world.calls("shut down"), world.power("vm-on")), (0, PowerState::On));
    assert!(!world.row("vm-on").switched_off);
    world.run(&NoObserver);
    world.assert_arrived("at last");
}
