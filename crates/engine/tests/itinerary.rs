//! Migrations that die at every edge, fail at every call, are stopped and cancelled: what must hold holds.
#![allow(clippy::unwrap_used)]

mod fakes;

use drover_engine::{Cause, NoObserver, PlanState, VmState, cancel, plan_report};
use drover_mover::StopSignal;
use drover_types::inventory::PowerState;
use fakes::{DiesAt, PLAN, Trouble, World};

/// Every call of a migration that goes well.
const CALLS: [&str; 12] = [
    "look",
    "is running",
    "prepare",
    "shut down",
    "create snapshot",
    "open source",
    "open target",
    "open for verify",
    "convert",
    "define",
    "start",
    "remove snapshot",
];

#[test]
fn a_plan_arrives_and_the_report_tells_it() {
    let world = World::new();
    let outcome = world.run(&NoObserver);
    assert_eq!((outcome.done, outcome.failed.len(), outcome.unfinished), (2, 0, 0));
    world.assert_arrived("at once");
    let report = plan_report(&world.store, PLAN).unwrap().unwrap();
    assert_eq!(report.plan.state, PlanState::Done);
    for vm in &report.vms {
        assert_eq!((vm.is_done(), vm.equal(), vm.phases.len()), (true, Some(true), 9));
        assert!(vm.disks.iter().all(|disk| disk.details.root == disk.details.target_root));
    }
    serde_json::to_string(&report).unwrap();
}

#[test]
fn a_crash_at_any_event_is_mended_by_the_next_run() {
    let count = DiesAt::event(usize::MAX);
    World::new().run(&count);
    assert!(count.seen() > 40, "{} events", count.seen());
    for at in 1..=count.seen() {
        let world = World::new();
        let dying = DiesAt::event(at);
        world.run(&dying);
        world.as_if_killed();
        let read_before: u64 = world.sources.values().map(|disk| disk.counts().bytes_read).sum();
        world.run(&NoObserver);
        world.assert_arrived(&format!("after a crash at event {at}"));
        let size: u64 = world.sources.values().map(drover_disk::Disk::size).sum();
        let read: u64 = world.sources.values().map(|disk| disk.counts().bytes_read).sum();
        assert!(read <= 2 * size && read_before <= size, "{read} bytes read of {size}");
    }
}

#[test]
fn a_crash_before_or_after_any_call_is_mended_by_the_next_run() {
    for call in CALLS {
        for trouble in [Trouble::DiesBefore, Trouble::DiesAfter] {
            let world = World::new();
            world.set_trouble(call, trouble);
            world.run(&NoObserver);
            world.as_if_killed();
            assert!(world.trouble_struck(), "{call} was never called");
            world.run(&NoObserver);
            world.assert_arrived(&format!("after a death, {trouble:?} {call}"));
        }
    }
}

#[test]
fn a_failure_of_any_call_leaves_the_source_as_it_was_and_the_next_run_arrives() {
    for call in CALLS {
        let world = World::new();
        world.set_trouble(call, Trouble::Fails);
        let outcome = world.run(&NoObserver);
        assert!(world.trouble_struck(), "{call} was never called");
        if call != "shut down" {
            assert_eq!(outcome.failed.len(), 1, "{call}");
        }
        for row in world.store.vms(PLAN).unwrap().iter().filter(|row| row.state == VmState::Failed) {
            assert!(row.error.as_ref().unwrap().contains("as ordered"), "{call}: {:?}", row.error);
            let arrived = world.runs_at_target(&row.name);
            let expected = if row.name == "on" && !arrived { PowerState::On } else { PowerState::Off };
            assert_eq!(world.power(&row.id), expected, "{call}: {} at the source", row.name);
        }
        if call != "remove snapshot" {
            assert_eq!(world.own_snapshots(), 0, "{call}: a snapshot is left");
        }
        world.run(&NoObserver);
        world.assert_arrived(&format!("after {call} failed"));
    }
}

#[test]
fn what_cannot_be_undone_is_told() {
    let world = World::new();
    world.set_trouble("define", Trouble::Fails);
    world.run(&NoObserver);
    world.set_trouble("remove snapshot", Trouble::Fails);
    // The engine gives up at the last phase; the machine runs and stays.
    world.run(&NoObserver);
    let rows = world.store.vms(PLAN).unwrap();
    let failed: Vec<_> = rows.iter().filter(|row| row.state == VmState::Failed).collect();
    assert!(failed.iter().all(|row| world.runs_at_target(&row.name)), "a machine that runs is not stopped");
    world.run(&NoObserver);
    world.assert_arrived("in the end");
}

#[test]
fn a_stop_undoes_and_can_be_resumed() {
    let world = World::new();
    let stop = StopSignal::default();
    stop.stop();
    let outcome = world.run_until(&NoObserver, &stop);
    assert_eq!((outcome.done, outcome.unfinished), (0, 2));
    assert_eq!(world.power("vm-on"), PowerState::On);
    world.run(&NoObserver);
    world.assert_arrived("after a stop");
}

#[test]
fn cancelling_after_a_crash_leaves_nothing_behind() {
    for call in CALLS {
        let world = World::new();
        world.set_trouble(call, Trouble::DiesAfter);
        world.run(&NoObserver);
        world.as_if_killed();
        let done: Vec<String> = world
            .store
            .vms(PLAN)
            .unwrap()
            .into_iter()
            .filter(|row| row.state == VmState::Done)
            .map(|row| row.id)
            .collect();
        let left = cancel(PLAN, &world.store, &world, &world).unwrap();
        assert_eq!(left, Vec::<String>::new(), "{call}");
        assert_eq!(world.own_snapshots(), 0, "{call}: a snapshot is left");
        for row in world.store.vms(PLAN).unwrap() {
            let arrived = done.contains(&row.id) || row.state == VmState::Done;
            let expected = if row.name == "on" && !arrived { PowerState::On } else { PowerState::Off };
            assert_eq!(world.power(&row.id), expected, "{call}: {} at the source", row.name);
            assert_eq!(world.runs_at_target(&row.name), arrived, "{call}: {} at the target", row.name);
            assert_eq!(
                world.images().iter().any(|(path, _)| path.starts_with(world.folder.path().join(&row.name))),
                arrived
            );
        }
    }
}

#[test]
fn refusals_touch_nothing() {
    let world = World::new();
    let planned = world.planned();
    world.change("vm-off", |vm| vm.disks[0].capacity_bytes += 65536);
    world.change("vm-on", |vm| vm.power = PowerState::Suspended);
    let options = drover_mover::TransferOptions::default();
    let runner = drover_engine::Runner {
        plan: PLAN,
        text: "",
        folder: std::path::Path::new("/"),
        vms: &planned,
        limits: &world.plan.limits,
        source: &world,
        target: &world,
        store: &world.store,
        observer: &NoObserver,
        board: &drover_engine::Board::default(),
        options: &options,
        stop: &StopSignal::default(),
    };
    let outcome = runner.run().unwrap();
    assert!(outcome.failed.iter().all(|(_, cause)| *cause == Cause::Source) && outcome.failed.len() == 2);
    let errors: Vec<String> =
        world.store.vms(PLAN).unwrap().into_iter().filter_map(|row| row.error).collect();
    assert!(
        errors.iter().any(|text| text.contains("is suspended"))
            && errors.iter().any(|text| text.contains("when the plan was checked")),
        "{errors:?}"
    );
    assert!(world.images().is_empty() && world.own_snapshots() == 0);
}

#[test]
fn damage_at_the_target_is_found_before_the_machine_starts() {
    let world = World::new();
    // The image is damaged by whoever asks for it to be verified first.
    world.set_trouble("open for verify", Trouble::Fails);
    world.run(&NoObserver);
    for (_, image) in world.images() {
        image.overwrite(70_000, &[0xff; 8]);
    }
    let outcome = world.run(&NoObserver);
    assert!(outcome.failed.iter().any(|(_, cause)| *cause == Cause::Verification), "{outcome:?}");
    let failed = &outcome.failed.iter().find(|(_, cause)| *cause == Cause::Verification).unwrap().0;
    assert!(!world.runs_at_target(failed), "a machine with a damaged disk was started");
}
