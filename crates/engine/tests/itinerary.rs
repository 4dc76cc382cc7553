//! Migrations that die at every edge, fail at every call, are stopped and cancelled: what must hold holds.
#![allow(clippy::unwrap_used)]

mod fakes;

use drover_disk::Disk;
use drover_engine::{Cause, Event, NoObserver, Phase, PlanState, VmRow, VmState, cancel, plan_report};
use drover_types::inventory::PowerState;
use fakes::{DiesAt, PLAN, Trouble, Watch, World, dies_around_every_call, every_call, leaves};

/// Every call of a migration that goes well.
const CALLS: [&str; 13] = [
    "look",
    "is running",
    "prepare",
    "shut down",
    "wait until off",
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
    // A guest that was shut down is waited for, and one that was off is not.
    let opened = |vm| ["open down", "open later", "open urgent"].map(|call| world.calls_about(call, vm));
    assert_eq!((opened("on"), opened("off")), ([2, 0, 0], [0, 1, 0]));
    let report = plan_report(&world.store, PLAN).unwrap().unwrap();
    assert_eq!(report.plan.state, PlanState::Done);
    for vm in &report.vms {
        assert_eq!((vm.has_arrived(), vm.equal(), vm.phases.len()), (true, Some(true), 9));
        assert!(vm.disks.iter().all(|disk| disk.details.root == disk.details.target_root));
    }
    serde_json::to_string(&report).unwrap();
}

fn notes(world: &World, id: &str, words: &str) -> Vec<String> {
    let events = world.store.events_of(PLAN, id).unwrap();
    events.into_iter().map(|event| event.text).filter(|text| text.contains(words)).collect()
}

#[test]
fn a_guest_that_ends_after_its_start_is_told_and_has_arrived() {
    let world = World::new();
    let watch = Watch(|event: &Event| {
        if leaves(event, "off", Phase::Start) {
            world.state().running_at_target.remove("off");
        }
    });
    let outcome = world.run(&watch);
    assert_eq!((outcome.done, outcome.failed.len()), (2, 0));
    assert_eq!(notes(&world, "vm-off", "does not run there").len(), 1);
    assert_eq!(notes(&world, "vm-on", "does not run there").len(), 0);
    assert_eq!(world.power("vm-off"), PowerState::Off);
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
        let (read, recorded) = (world.read(), world.recorded());
        world.run(&NoObserver);
        world.assert_arrived(&format!("after a crash at event {at}"));
        for (disk, bytes) in world.read() {
            let left = world.sources[&disk].size() - recorded[&disk];
            assert!(bytes - read[&disk] <= left, "{disk} after event {at}: recorded blocks were read again");
        }
    }
}

#[test]
fn a_crash_before_or_after_any_call_is_mended_by_the_next_run() {
    dies_around_every_call(World::new, &CALLS);
}

#[test]
fn a_failure_of_any_call_leaves_the_source_as_it_was_and_the_next_run_arrives() {
    for (call, nth) in every_call(World::new, &CALLS) {
        for trouble in [Trouble::Fails, Trouble::FailsAfter] {
            let why = format!("{trouble:?} {call} {nth}");
            let world = World::new();
            world.set_trouble_at(call, nth, trouble);
            let outcome = world.run(&NoObserver);
            assert!(world.trouble_struck(), "{why}");
            if call == "is running" && outcome.done == 2 {
                // Asked of one that has arrived, it fails nothing.
                let told = ["vm-on", "vm-off"]
                    .map(|id| notes(&world, id, "still runs at the target is not known").len());
                assert_eq!(told.iter().sum::<usize>(), 1, "{why}");
                continue;
            }
            assert_eq!((outcome.done, outcome.failed.len() + outcome.not_cleaned_up), (1, 1), "{why}");
            let is_left = |row: &&VmRow| matches!(row.state, VmState::Failed | VmState::NotCleanedUp);
            for row in world.store.vms(PLAN).unwrap().iter().filter(is_left) {
                assert_eq!(row.state == VmState::NotCleanedUp, world.runs_at_target(&row.name), "{why}");
                assert!(row.error.as_ref().unwrap().contains("as ordered"), "{why}: {:?}", row.error);
                assert_eq!(row.cause.as_deref(), Some("source"), "{why}");
                assert_eq!(row.advice.as_deref(), Some("order something else"), "{why}");
                let arrived = world.runs_at_target(&row.name);
                assert_eq!(arrived, row.phase.as_deref() == Some("clean up"), "{why}");
                let expected = if row.name == "on" && !arrived { PowerState::On } else { PowerState::Off };
                assert_eq!(world.power(&row.id), expected, "{why}: {} at the source", row.name);
                assert_eq!(world.is_defined(&row.name), arrived, "{why}");
                assert!(arrived || world.own_snapshots() == 0, "{why}: a snapshot is left");
            }
            world.run(&NoObserver);
            world.assert_arrived(&why);
        }
    }
}

#[test]
fn damage_at_the_target_is_found_before_the_machine_starts() {
    let world = World::new();
    world.before("open for verify", |state| {
        state.images.values().for_each(|image| image.overwrite(70_000, &[0xff; 8]));
    });
    let outcome = world.run(&NoObserver);
    assert!(!outcome.failed.is_empty());
    for (name, cause) in &outcome.failed {
        assert_eq!(*cause, Cause::Verification);
        let row = world.row(&format!("vm-{name}"));
        assert_eq!((row.state, row.cause.as_deref()), (VmState::Failed, Some("verification")));
        assert!(row.error.unwrap().contains("differs from its source in 1 of"));
        assert!(row.advice.unwrap().contains("remove the image"));
        assert!(!world.runs_at_target(name), "a machine with a damaged disk was started");
        assert_eq!(world.calls_about("start", name) + world.calls_about("define", name), 0);
    }
    assert_eq!(world.own_snapshots(), 0);
    // What is damaged stays damaged until the image goes.
    assert!(world.run(&NoObserver).failed.iter().all(|(_, cause)| *cause == Cause::Target));
    assert_eq!(cancel(PLAN, &world.store, &world, &world).unwrap().left, Vec::<String>::new());
    world.run(&NoObserver);
    world.assert_arrived("with new images");
}

#[test]
fn a_defect_with_one_vm_does_not_lose_the_others() {
    let world = World::new();
    world.set_trouble("prepare", Trouble::DiesBefore);
    let outcome = world.run(&NoObserver);
    assert_eq!((outcome.done, outcome.failed.len()), (1, 1));
    let (name, cause) = &outcome.failed[0];
    assert_eq!(*cause, Cause::Internal);
    let row = world.row(&format!("vm-{name}"));
    assert_eq!(row.state, VmState::Failed);
    assert!(row.error.unwrap().contains("dies before prepare") && row.advice.unwrap().contains("resume"));
    world.run(&NoObserver);
    world.assert_arrived("after the defect");
}

#[test]
fn what_the_guest_wrote_after_a_crash_is_not_lost() {
    let world = World::new();
    let dying = Watch(|event: &Event| assert!(!leaves(event, "on", Phase::Copy), "the process dies"));
    world.run(&dying);
    world.as_if_killed();
    assert_eq!(world.own_snapshots(), 1);
    // Nobody resumes; the VM is needed and switched on by hand.
    world.set_power("vm-on", PowerState::On);
    world.guest_writes("on", 2000, 3 * 65536 + 5, b"paid in full");
    world.run(&NoObserver);
    world.assert_arrived("with what was written since");
    let planned = world.planned();
    let on = planned.iter().find(|vm| vm.target_name == "on").unwrap();
    let content = world.state().images[&on.disks[0].path].content();
    assert_eq!(&content[3 * 65536 + 5..][..12], b"paid in full");
}

/// A world of which one VM is to be gone on with: it was copied, or perhaps converted as well.
fn stopped(word: &str) -> World {
    let world = World::new();
    match word {
        "copied" => {
            world.run(&Watch(|event: &Event| {
                assert!(!leaves(event, "on", Phase::Copy), "the process dies");
            }));
            world.as_if_killed();
        }
        _ => {
            world.set_trouble_at("define", 1, Trouble::Fails);
            let outcome = world.run(&NoObserver);
            assert_eq!(outcome.failed.len(), 1);
        }
    }
    world
}

/// The images of the VMs that have not arrived.
fn unfinished(world: &World) -> Vec<(std::path::PathBuf, drover_disk::MemDisk)> {
    let is_done = |id: &str| world.row(id).state == VmState::Done;
    let planned = world.planned();
    let left = planned.iter().filter(|vm| !is_done(&vm.vm.id)).flat_map(|vm| &vm.disks);
    let paths: Vec<_> = left.map(|disk| disk.path.clone()).collect();
    world.images().into_iter().filter(|(path, _)| paths.contains(path)).collect()
}

#[test]
fn an_image_that_was_changed_or_emptied_between_runs_is_refused_until_it_goes() {
    for (word, emptied) in [("copied", false), ("copied", true), ("maybe converted", true)] {
        let world = stopped(word);
        let images = unfinished(&world);
        assert!(!images.is_empty());
        let others: Vec<_> = images
            .iter()
            .map(|(_, image)| match emptied {
                true => image.overwrite(0, &vec![0; image.size() as usize]),
                false => image.overwrite(9 * 65536 + 3, b"somebody else's"),
            })
            .zip(&images)
            .map(|((), (_, image))| image.content())
            .collect();
        let downs = world.calls("shut down");
        let failed = world.run(&NoObserver).failed;
        assert!(failed.iter().all(|(_, cause)| *cause == Cause::Target) && failed.len() == 1, "{failed:?}");
        let row = world.row(&format!("vm-{}", failed[0].0));
        assert!(row.error.as_ref().unwrap().contains("was changed since its journal was made"), "{row:?}");
        assert!(row.advice.unwrap().contains("remove it"));
        assert_eq!(world.calls("shut down"), downs, "looked at before anything is touched");
        assert!(images.iter().map(|(_, image)| image.content()).eq(others), "it was written over");
        for (path, _) in images {
            world.state().images.remove(&path);
            std::fs::remove_file(path).unwrap();
        }
        world.run(&NoObserver);
        world.assert_arrived(&format!("{word} {emptied}"));
    }
}

#[test]
fn what_a_converter_changed_is_gone_on_with() {
    let world = stopped("maybe converted");
    for (_, image) in unfinished(&world) {
        image.overwrite(9 * 65536 + 3, b"a driver");
    }
    let outcome = world.run(&NoObserver);
    assert!(outcome.failed.is_empty(), "{:?}", outcome.failed);
    assert!(unfinished(&world).is_empty());
}
