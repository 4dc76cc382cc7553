//! Whatever fails, and where: each VM that was touched is told where it stands, and that is so.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::sync::Mutex;

use drover_engine::{
    AtTarget, Cause, Event, Forgotten, NoObserver, Phase, RunOutcome, Standing, Store, VmEnd, VmState,
    cancel, clean, forget,
};
use drover_types::inventory::PowerState;
use fakes::{PLAN, Trouble, Untold, Watch, World, enters, every_call, leaves, vm};

fn one(lines: &str) -> World {
    World::with(&[vm("on", PowerState::On, 1)], lines)
}

fn end(outcome: &RunOutcome) -> &VmEnd {
    assert_eq!(outcome.ends.len(), 1);
    &outcome.ends[0]
}

/// What is told of the VM is what is there.
fn assert_true(world: &World, stands: &Standing, why: &str) {
    assert_eq!(stands.source, world.power("vm-on"), "{why}");
    assert_eq!(stands.snapshots.len(), world.own_snapshots(), "{why}");
    let target = match (world.runs_at_target("on"), world.is_defined("on")) {
        (true, _) => AtTarget::Started,
        (false, true) => AtTarget::Defined,
        (false, false) => AtTarget::Nothing,
    };
    assert_eq!(stands.target, target, "{why}");
    assert_eq!(stands.go_on, format!("drover resume {PLAN}"), "{why}");
}

#[test]
fn state_that_can_no_longer_be_kept_hides_no_vm_whatever_the_phase() {
    type Case = (&'static str, fn() -> World, &'static [Phase]);
    let cases: [Case; 3] = [
        ("started", || one("start: true"), &Phase::COLD),
        ("not started", || one("start: false"), &Phase::COLD),
        ("warm", World::warm_auto, &Phase::WARM),
    ];
    for (lines, world, phases) in cases {
        for phase in phases.iter().copied().filter(|phase| *phase > Phase::Check) {
            let why = format!("{phase}, {lines}");
            let world = world();
            let told = Mutex::new(Vec::new());
            let outcome = world.run(&Watch(|event: &Event| {
                if enters(event, "on", phase) {
                    // From here on no change is recorded for good.
                    std::fs::remove_file(world.store.path()).unwrap();
                }
                if let Event::VmEnded { error, standing, .. } = event {
                    told.lock().unwrap().push((error.clone(), standing.clone()));
                }
            }));
            assert!(outcome.unkept.is_some(), "{why}");
            let end = end(&outcome);
            let error = end.error.as_deref().unwrap_or_default();
            assert!(error.contains("could not be recorded"), "{why}: {error}");
            assert_eq!(*told.lock().unwrap(), [(end.error.clone(), end.standing.clone())], "{why}");
            let has_arrived = end.state.has_arrived();
            assert_eq!(has_arrived, error.contains("has arrived at the target"), "{why}: {error}");
            // Nothing is recorded while a machine is not started.
            assert!(
                if has_arrived { phase >= Phase::Start } else { phase < Phase::CleanUp },
                "{why}: {error}"
            );
            assert_eq!(outcome.done + outcome.not_cleaned_up, usize::from(has_arrived), "{why}");
            if let Some(stands) = &end.standing {
                assert_true(&world, stands, &why);
                // What is undone is undone also where nobody can record it.
                assert!(has_arrived || stands.is_as_before(), "{why}: {stands:?}");
            }
        }
    }
}

#[test]
fn an_arrival_that_cannot_be_recorded_is_told_as_one() {
    let world = one("start: true");
    let outcome = world.run(&Watch(|event: &Event| {
        if leaves(event, "on", Phase::CleanUp) {
            std::fs::remove_file(world.store.path()).unwrap();
        }
    }));
    let end = end(&outcome);
    assert_eq!((outcome.done, end.state, outcome.unkept.is_some()), (1, VmState::Done, true));
    let error = end.error.as_deref().unwrap();
    assert!(error.starts_with("on has arrived at the target, it was started there"), "{error}");
    assert!(error.ends_with("nothing is left there, but that could not be recorded"), "{error}");
    assert!(end.advice.is_some());
}

#[test]
fn what_is_left_after_a_failure_is_told_by_name() {
    for undone in ["remove snapshot", "power on", "undo define"] {
        let world = one("start: true");
        world.set_trouble("define", Trouble::FailsAfter);
        world.set_trouble(undone, Trouble::Fails);
        let outcome = world.run(&NoObserver);
        let end = end(&outcome);
        assert_true(&world, end.standing.as_ref().unwrap(), undone);
        let error = end.error.as_deref().unwrap();
        let words = match undone {
            "remove snapshot" => "left behind: snapshot drover-p at the source",
            "power on" => "its source is off, switched off by drover",
            _ => "its machine is defined at the target and was not started",
        };
        assert!(error.contains(words) && error.contains("`drover resume p` goes on"), "{error}");
        assert!(outcome.unkept.is_none());
        world.run(&NoObserver);
        world.assert_arrived(undone);
    }
}

#[test]
fn a_source_that_no_longer_answers_is_told_by_what_the_run_knows() {
    let world = one("start: false");
    // The clean-up's own look, and the one for its end.
    let silent = Watch(|event: &Event| {
        if enters(event, "on", Phase::CleanUp) {
            world.set_trouble("look", Trouble::Fails);
            world.set_trouble("look", Trouble::Fails);
        }
    });
    let outcome = world.run(&silent);
    let end = end(&outcome);
    assert_eq!((end.state, world.own_snapshots()), (VmState::NotCleanedUp, 1));
    let error = end.error.as_deref().unwrap();
    assert!(error.contains("whether its source is off cannot be told now"), "{error}");
    assert!(
        error.ends_with("left behind, as far as this run knows: snapshot drover-p at the source"),
        "{error}"
    );
    world.run(&NoObserver);
    world.assert_arrived("when it answers");
}

#[test]
fn a_defect_tells_where_its_vm_stands() {
    let world = one("start: true");
    world.set_trouble("define", Trouble::DiesAfter);
    let outcome = world.run(&NoObserver);
    let end = end(&outcome);
    assert_eq!(end.cause, Some(Cause::Internal));
    assert_true(&world, end.standing.as_ref().unwrap(), "after a defect");
    let error = end.error.as_deref().unwrap();
    assert!(
        error.contains("its source is off, switched off by drover") && error.contains("drover-p"),
        "{error}"
    );
}

#[test]
fn a_vm_that_was_not_touched_is_not_looked_at_again() {
    let world = one("start: true");
    world.set_trouble("prepare", Trouble::Fails);
    let outcome = world.run(&NoObserver);
    assert_eq!((end(&outcome).standing.as_ref(), world.calls("look")), (None, 1));
}

#[test]
fn what_is_given_up_is_undone_and_told_also_where_the_state_cannot_be_kept() {
    let world = World::with(&[vm("on", PowerState::On, 1), vm("two", PowerState::On, 1)], "start: true");
    for _ in 0..2 {
        world.set_trouble("define", Trouble::DiesBefore);
    }
    world.run(&NoObserver);
    world.as_if_killed();
    std::fs::remove_file(world.store.path()).unwrap();
    let given_up = cancel(PLAN, &world.store, &world, &world).unwrap();
    for name in ["on", "two"] {
        let is_told = |line: &&String| line.starts_with(&format!("{name}: ")) && line.contains("recorded");
        assert!(given_up.left.iter().any(|line| is_told(&line)), "{name}: {:?}", given_up.left);
        assert_eq!(world.power(&format!("vm-{name}")), PowerState::On, "{name}");
    }
    assert_eq!((world.own_snapshots(), world.images().len()), (0, 0));
}

/// The state keeps that the machine was started, and nothing after it.
#[test]
fn a_machine_whose_start_is_recorded_is_not_stopped_for_a_state_that_fails_then() {
    for (lines, world) in [("cold", one("start: true")), ("warm", World::warm_auto())] {
        let copy = tempfile::tempdir().unwrap();
        let outcome = world.run(&Watch(|event: &Event| {
            let is_start = matches!(event, Event::Note { text, .. } if text.contains("started"));
            if is_start && world.store.path().exists() {
                let folder = world.store.path().parent().unwrap();
                for file in std::fs::read_dir(folder).unwrap().flatten().filter(|it| it.path().is_file()) {
                    std::fs::copy(file.path(), copy.path().join(file.file_name())).unwrap();
                }
                std::fs::remove_file(world.store.path()).unwrap();
            }
        }));
        assert!(outcome.unkept.is_some(), "{lines}");
        assert_true(&world, end(&outcome).standing.as_ref().unwrap(), lines);
        assert_eq!((world.power("vm-on"), world.runs_at_target("on")), (PowerState::Off, true), "{lines}");
        // What a later command finds says the same.
        let store = Store::open(copy.path()).unwrap();
        let given_up = cancel(PLAN, &store, &world, &world).unwrap();
        assert_eq!((given_up.left.len(), given_up.arrived), (0, vec!["on".to_string()]), "{lines}");
    }
}

#[test]
fn a_snapshot_that_no_longer_says_whose_it_is_is_left_and_told() {
    let world = one("start: false");
    let describe = |text: &str| {
        let mut state = world.state();
        state.vms.get_mut("vm-on").unwrap().snapshots.iter_mut().for_each(|it| it.description = text.into());
    };
    let own = Mutex::new(String::new());
    let outcome = world.run(&Watch(|event: &Event| {
        if enters(event, "on", Phase::CleanUp) {
            own.lock().unwrap().clone_from(&world.state().vms["vm-on"].snapshots[0].description);
            describe("somebody's");
        }
    }));
    let end = end(&outcome);
    assert_eq!((end.state, world.own_snapshots()), (VmState::NotCleanedUp, 1));
    let error = end.error.as_deref().unwrap();
    assert!(error.contains("snapshot drover-p of on was made by drover"), "{error}");
    let left = cancel(PLAN, &world.store, &world, &world).unwrap().left;
    assert!(left.len() == 1 && left[0].contains("snapshot drover-p of on was made by drover"), "{left:?}");
    describe(&own.lock().unwrap());
    assert_eq!(cancel(PLAN, &world.store, &world, &world).unwrap().left, Vec::<String>::new());
    assert_eq!(world.own_snapshots(), 0);
}

#[test]
fn a_snapshot_that_its_source_no_longer_tells_of_is_not_taken_for_gone() {
    type Case = (&'static str, fn() -> World, Untold);
    let cold = || one("start: true");
    let cases: [Case; 4] = [
        ("cold", cold, Untold::All),
        ("warm", World::warm_auto, Untold::All),
        ("cold without its id", cold, Untold::Ids),
        ("warm without its id", World::warm_auto, Untold::Ids),
    ];
    for (why, world, untold) in cases {
        let world = world();
        let outcome = world.run(&Watch(|event: &Event| {
            if enters(event, "on", Phase::CleanUp) {
                world.state().untold = untold;
            }
        }));
        let end = end(&outcome);
        assert_eq!((end.state, world.own_snapshots()), (VmState::NotCleanedUp, 1), "{why}");
        let error = end.error.as_deref().unwrap();
        assert!(error.contains("left behind: snapshot drover-p at the source"), "{why}: {error}");
        // As long as it is there, and once for each command.
        let again = world.run(&NoObserver);
        assert_eq!((again.ends[0].state, world.own_snapshots()), (VmState::NotCleanedUp, 1), "{why}");
        assert_eq!(cancel(PLAN, &world.store, &world, &world).unwrap().left.len(), 1, "{why}");
        assert_eq!(clean(&world.store, PLAN, &world).unwrap().left.len(), 1, "{why}");
        assert!(world.row("vm-on").snapshot.is_some(), "{why}");
        match untold {
            // Somebody who can see it removes it.
            Untold::All => world.change("vm-on", |vm| vm.snapshots.clear()),
            _ => world.state().untold = Untold::Nothing,
        }
        world.run(&NoObserver);
        world.assert_arrived(why);
        assert_eq!(world.row("vm-on").snapshot, None, "{why}");
    }
}

#[test]
fn a_failed_vm_whose_snapshot_is_no_longer_told_of_says_so() {
    for (why, world) in [("cold", one("start: true")), ("warm", World::warm_auto())] {
        world.set_trouble("define", Trouble::FailsAfter);
        let outcome = world.run(&Watch(|event: &Event| {
            if enters(event, "on", Phase::Define) {
                world.state().untold = Untold::All;
            }
        }));
        let stands = end(&outcome).standing.as_ref().unwrap();
        assert_true(&world, stands, why);
        assert!(end(&outcome).error.as_deref().unwrap().contains("does not list it"), "{why}");
        // A snapshot of the next run does not make that one forgotten.
        let next = world.run(&NoObserver);
        assert_eq!((next.failed.len(), world.own_snapshots()), (1, 1), "{why}");
        world.state().untold = Untold::Nothing;
        world.run(&NoObserver);
        world.assert_arrived(why);
    }
}

#[test]
fn a_snapshot_whose_making_was_not_answered_and_that_is_not_listed_is_told_once() {
    type Make = fn() -> World;
    let cases: [(&str, Make); 2] = [("create snapshot", || one("start: true")), ("freeze", World::warm_auto)];
    for (call, make) in cases {
        // The last one, for which the guest went down.
        let (_, nth) = every_call(make, &[call]).pop().unwrap();
        let world = make();
        world.set_trouble_at(call, nth, Trouble::Unanswered);
        let outcome = world.run(&Watch(|event: &Event| {
            if enters(event, "on", Phase::Snapshot) {
                world.state().untold = Untold::All;
            }
        }));
        let error = end(&outcome).error.as_deref().unwrap();
        assert!(error.contains("whether snapshot drover-p of on was made is not known"), "{call}: {error}");
        assert_eq!(error.matches("is not known").count(), 1, "{call}: {error}");
        world.state().untold = Untold::Nothing;
        world.run(&NoObserver);
        world.assert_arrived(call);
    }
}

#[test]
fn only_a_plan_of_which_nothing_is_left_to_do_is_forgotten_and_its_images_stay() {
    let world = one("start: true");
    world.set_trouble("define", Trouble::Fails);
    world.run(&NoObserver);
    let refused = forget(&world.store, PLAN, &world).unwrap_err();
    assert!(refused.chain().contains("is not over") && refused.advice().unwrap().contains("drover resume"));
    world.run(&NoObserver);
    world.assert_arrived("at last");
    let disks: Vec<_> = world.store.disks(PLAN).unwrap().into_iter().map(|disk| disk.path).collect();
    assert!(!disks.is_empty() && disks.iter().all(|disk| drover_mover::journal_path(disk).exists()));
    // Something that a run left at the source is known by the state alone.
    world.store.set_snapshot(PLAN, "vm-on", Some("snapshot-1")).unwrap();
    assert!(forget(&world.store, PLAN, &world).unwrap_err().advice().unwrap().contains("drover clean"));
    world.store.set_snapshot(PLAN, "vm-on", None).unwrap();
    let refused = || forget(&world.store, PLAN, &world).unwrap_err().chain();
    // Journals that are not found now may be found later.
    let folder = disks[0].parent().unwrap();
    let unmounted = folder.with_extension("unmounted");
    std::fs::rename(folder, &unmounted).unwrap();
    assert!(refused().contains("is not there"));
    std::fs::rename(&unmounted, folder).unwrap();
    let planned = world.row("vm-on").planned;
    world.store.set_planned(PLAN, "vm-on", "{").unwrap();
    assert!(refused().contains("cannot be read in the state"));
    world.store.set_planned(PLAN, "vm-on", &planned).unwrap();
    assert!(disks.iter().all(|disk| drover_mover::journal_path(disk).exists()));
    world.store.set_tracking_on(PLAN, "vm-on", true).unwrap();
    assert_eq!(forget(&world.store, PLAN, &world).unwrap(), Forgotten { vms: 1, tracked: vec!["on".into()] });
    assert!(world.store.plan(PLAN).unwrap().is_none() && world.store.vms(PLAN).unwrap().is_empty());
    // Without journals nobody takes the images for copies that a plan of the same name can go on with.
    assert!(disks.iter().all(|disk| disk.exists() && !drover_mover::journal_path(disk).exists()));
    assert!(world.runs_at_target("on"));
}
