//! Single VMs that are given up by order: what was begun of them is undone, and their plan goes on without them.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::sync::Mutex;

use drover_engine::{
    Event, NoObserver, Phase, PlanState, RunOutcome, VmState, ask_give_up, ask_retry, cancel_ordered,
    take_back,
};
use drover_mover::StopSignal;
use drover_types::inventory::PowerState;
use fakes::{PLAN, Trouble, Watch, World, becomes, enters, vm};

fn world() -> World {
    World::with(&["one", "two"].map(|name| vm(name, PowerState::On, 1)), "start: true")
}

fn give_up(world: &World, name: &str) {
    assert_eq!(ask_give_up(&world.store, PLAN, &[name.into()]).unwrap(), [name]);
}

/// Orders are looked for every half second; more, since the machine may be busy.
const HEEDED_MS: u64 = 3000;

/// Nothing of it is left at either side.
fn assert_undone(world: &World, name: &str, why: &str) {
    let id = format!("vm-{name}");
    let row = world.row(&id);
    assert_eq!((row.state, row.snapshot), (VmState::Cancelled, None), "{why}");
    assert_eq!(world.power(&id), PowerState::On, "{why}: its source");
    assert!(!world.is_defined(name) && !world.runs_at_target(name), "{why}: a machine is left");
    let of_it = |path: &std::path::Path| path.to_string_lossy().contains(&format!("/{name}/"));
    let left: Vec<_> = world.images().into_iter().map(|(path, _)| path).filter(|path| of_it(path)).collect();
    assert!(left.is_empty(), "{why}: {left:?}");
    assert_eq!(world.own_snapshots(), 0, "{why}");
}

fn assert_one_is_out(world: &World, outcome: &RunOutcome, why: &str) {
    assert_undone(world, "one", why);
    assert_eq!((outcome.done, outcome.failed.len(), outcome.unfinished), (1, 0, 0), "{why}: {outcome:?}");
    assert_eq!(world.row("vm-two").state, VmState::Done, "{why}");
    assert_eq!(world.store.plan(PLAN).unwrap().unwrap().state, PlanState::Done, "{why}");
}

#[test]
fn one_at_work_is_stopped_and_undone_in_each_phase_and_the_other_arrives() {
    for phase in [Phase::Check, Phase::PowerOff, Phase::Snapshot, Phase::Copy, Phase::Verify, Phase::Define] {
        let world = world();
        let outcome = world.run(&Watch(|event: &Event| {
            if enters(event, "one", phase) {
                give_up(&world, "one");
                becomes_within(|| false, HEEDED_MS);
            }
        }));
        assert_one_is_out(&world, &outcome, phase.name());
        let again = world.run_plan(PLAN, &world.planned(), &NoObserver, &StopSignal::default()).unwrap();
        assert_one_is_out(&world, &again, "a later run");
    }
}

/// Waits for so long at most.
fn becomes_within(so: impl Fn() -> bool, ms: u64) {
    let until = std::time::Instant::now() + std::time::Duration::from_millis(ms);
    while !so() && std::time::Instant::now() < until {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn one_that_waits_for_its_turn_never_begins() {
    let vms = ["one", "two"].map(|name| vm(name, PowerState::On, 1));
    let world = World::with(&vms, "start: true\nlimits: {vms_per_host: 1}");
    // Whichever begins first keeps the other waiting.
    let given_up = Mutex::new(None);
    let (told, sum) = (Mutex::new(Vec::new()), Mutex::new(None));
    let outcome = world.run(&Watch(|event: &Event| {
        if let Event::PlanEnded { done, failed, cancelled, unfinished, .. } = event {
            *sum.lock().unwrap() = Some([*done, *failed, *cancelled, *unfinished]);
        }
        if let Event::VmEnded { vm, state, .. } = event {
            told.lock().unwrap().push((vm.clone(), *state));
        }
        for (begins, waits) in [("one", "two"), ("two", "one")] {
            if enters(event, begins, Phase::Copy) && given_up.lock().unwrap().is_none() {
                *given_up.lock().unwrap() = Some(waits);
                give_up(&world, waits);
                let id = format!("vm-{waits}");
                assert!(
                    becomes(&world, || world.row(&id).state == VmState::Cancelled),
                    "while the other is at work"
                );
            }
        }
    }));
    let waits = given_up.into_inner().unwrap().unwrap();
    assert_undone(&world, waits, "it waited");
    assert_eq!(world.calls_about("create snapshot", waits), 0);
    assert!(told.into_inner().unwrap().contains(&(waits.to_string(), VmState::Cancelled)));
    assert_eq!(sum.into_inner().unwrap(), Some([1, 0, 1, 0]), "the sum names what was given up");
    assert!(outcome.is_complete(), "{outcome:?}");
}

#[test]
fn one_that_failed_is_given_up_while_the_other_is_at_work() {
    let world = world();
    let two_waits = || becomes(&world, || world.row("vm-one").state == VmState::Cancelled);
    let outcome = world.run(&Watch(|event: &Event| {
        if enters(event, "one", Phase::Copy) {
            world.set_trouble("open source", Trouble::Fails);
        }
        if matches!(event, Event::VmEnded { vm, state: VmState::Failed, .. } if vm == "one") {
            give_up(&world, "one");
        }
        if enters(event, "two", Phase::Define) {
            assert!(two_waits());
        }
    }));
    // The trouble may have struck the other one: then it is that which failed, and nothing was ordered.
    if world.row("vm-two").state == VmState::Failed {
        return;
    }
    assert_one_is_out(&world, &outcome, "it had failed");
}

#[test]
fn an_order_that_no_run_heeded_is_carried_out_by_whoever_comes_next() {
    for by_run in [true, false] {
        let world = world();
        world.set_trouble("define", Trouble::Fails);
        world.set_trouble("define", Trouble::Fails);
        let outcome = world.run(&NoObserver);
        assert_eq!(outcome.failed.len(), 2);
        give_up(&world, "one");
        if by_run {
            let outcome =
                world.run_plan(PLAN, &world.resumed(), &NoObserver, &StopSignal::default()).unwrap();
            assert_one_is_out(&world, &outcome, "by a run");
        } else {
            let given_up = cancel_ordered(PLAN, &world.store, &world, &world).unwrap();
            assert_eq!((given_up.left, given_up.arrived), (vec![], vec![]));
            assert_undone(&world, "one", "by hand");
            let outcome =
                world.run_plan(PLAN, &world.resumed(), &NoObserver, &StopSignal::default()).unwrap();
            assert_eq!((outcome.done, outcome.unfinished), (1, 0), "{outcome:?}");
        }
    }
}

#[test]
fn what_cannot_be_undone_is_told_and_tried_again() {
    let world = world();
    let outcome = world.run(&Watch(|event: &Event| {
        if enters(event, "one", Phase::Verify) {
            world.set_trouble("remove images", Trouble::Fails);
            give_up(&world, "one");
            becomes_within(|| world.trouble_struck(), HEEDED_MS);
        }
    }));
    assert_eq!(outcome.failed.len(), 1, "{outcome:?}");
    let error = world.row("vm-one").error.unwrap();
    assert!(error.starts_with("it is given up by order, and not all could be undone"), "{error}");
    let given_up = cancel_ordered(PLAN, &world.store, &world, &world).unwrap();
    assert_eq!(given_up.left, Vec::<String>::new());
    assert_undone(&world, "one", "by the second try");
}

#[test]
fn one_that_is_gone_at_its_source_is_given_up_with_its_copy_kept_and_keeps_no_other() {
    let world = world();
    (0..2).for_each(|_| world.set_trouble("define", Trouble::Fails));
    assert_eq!(world.run(&NoObserver).failed.len(), 2);
    world.state().vms.remove("vm-one");
    give_up(&world, "one");
    // While its machine keeps its definition nothing is known of it, and that is told of it alone.
    world.set_trouble("undo define", Trouble::Fails);
    let given_up = cancel_ordered(PLAN, &world.store, &world, &world).unwrap();
    let fails = |vm: &str| given_up.fails(Some(&[vm.to_string()]));
    assert_eq!((fails("one"), fails("two"), given_up.fails(None)), (true, false, true));
    assert_eq!((given_up.left.len(), given_up.failed, given_up.kept), (1, vec!["one".to_string()], vec![]));
    give_up(&world, "two");
    let given_up = cancel_ordered(PLAN, &world.store, &world, &world).unwrap();
    assert_eq!((given_up.left, given_up.failed, given_up.kept), (vec![], vec![], vec!["one".to_string()]));
    assert_undone(&world, "two", "beside it");
    let row = world.row("vm-one");
    assert_eq!(row.state, VmState::Cancelled);
    let images: Vec<String> = world.images().iter().map(|(path, _)| path.display().to_string()).collect();
    assert!(images.len() == 1 && row.error.unwrap().contains(&images[0]), "{images:?}");
}

#[test]
fn one_at_work_that_is_gone_is_given_up_with_its_copy_kept_and_the_other_arrives() {
    let world = world();
    let told = Mutex::new(String::new());
    let outcome = world.run(&Watch(|event: &Event| {
        if enters(event, "one", Phase::Define) {
            world.state().vms.remove("vm-one");
            give_up(&world, "one");
            becomes_within(|| false, HEEDED_MS);
        }
        if let Event::Note { vm, text } = event
            && vm == "one"
            && text.starts_with("it is given up by order")
        {
            told.lock().unwrap().clone_from(text);
        }
    }));
    assert_eq!((outcome.done, outcome.failed.len(), outcome.unfinished), (1, 0, 0), "{outcome:?}");
    assert_eq!(world.row("vm-one").state, VmState::Cancelled);
    let told = told.into_inner().unwrap();
    assert!(told.contains("its source does not have one (vm-one) any more"), "{told}");
    assert!(
        told.contains("its copy is whole (copied 20") && told.contains("Z), and stays where it is"),
        "{told}"
    );
    assert_eq!((world.images().len(), world.calls_about("remove images", "one")), (2, 0));
}

#[test]
fn for_its_wave_it_is_as_if_it_had_never_been_there() {
    let vms = ["a1", "a2", "b1"].map(|name| vm(name, PowerState::On, 1));
    let lines = "start: true\nwaves:\n  - {name: a, if_failed: stop, vms: [{glob: 'a*'}]}\n  \
                 - {name: b, after: [a], vms: [{name: b1}]}\n";
    let world = World::with(&vms, lines);
    let outcome = world.run(&Watch(|event: &Event| {
        if enters(event, "a1", Phase::Copy) {
            give_up(&world, "a1");
            becomes_within(|| false, HEEDED_MS);
        }
    }));
    assert_undone(&world, "a1", "in a wave");
    assert_eq!((outcome.done, outcome.failed.len(), outcome.unfinished), (2, 0, 0), "{outcome:?}");
}

#[test]
fn where_one_has_arrived_none_of_those_named_is_given_up_and_that_is_told() {
    let world = world();
    world.set_trouble("create snapshot", Trouble::Fails);
    let outcome = world.run(&NoObserver);
    assert_eq!((outcome.done, outcome.failed.len()), (1, 1), "{outcome:?}");
    let failed = outcome.failed[0].0.clone();
    let arrived = if failed == "one" { "two" } else { "one" };
    let refused = || ask_give_up(&world.store, PLAN, &[arrived.into(), failed.clone()]).unwrap_err().chain();
    let told = format!("{arrived} has arrived already, and is not given up");
    assert!(refused().contains(&format!("{told}; nothing was ordered of {failed}")), "{}", refused());
    assert!(world.store.give_ups(PLAN).unwrap().is_empty());
    // Of one that is given up, something was.
    give_up(&world, &failed);
    assert!(refused().contains(&told) && !refused().contains("nothing was ordered"), "{}", refused());
}

#[test]
fn what_was_given_up_can_be_taken_back_and_what_arrived_is_not_given_up() {
    let world = world();
    let outcome = world.run(&Watch(|event: &Event| {
        if enters(event, "one", Phase::Copy) {
            give_up(&world, "one");
            becomes_within(|| false, HEEDED_MS);
            assert!(take_back(&world.store, PLAN, &["one".into()]).is_err(), "the plan runs");
        }
    }));
    assert_one_is_out(&world, &outcome, "first");
    let refused = ask_give_up(&world.store, PLAN, &["two".into()]).unwrap_err();
    assert!(refused.chain().contains("two has arrived already"), "{}", refused.chain());
    assert!(ask_give_up(&world.store, PLAN, &["three".into()]).is_err());
    assert!(take_back(&world.store, PLAN, &["two".into()]).unwrap().is_empty(), "it was not given up");
    assert_eq!(take_back(&world.store, PLAN, &["one".into()]).unwrap(), ["one"]);
    assert!(ask_retry(&world.store, PLAN, Some(&["one".into()])).is_err(), "nothing runs");
    let outcome = world.run_plan(PLAN, &world.planned(), &NoObserver, &StopSignal::default()).unwrap();
    assert!(outcome.is_complete() && outcome.done == 2, "{outcome:?}");
    world.assert_arrived("in the end");
}

#[test]
fn one_that_is_taken_back_has_the_disks_of_then_and_one_that_is_resumed_those_that_it_began_with() {
    let world = World::with(&[vm("one", PowerState::On, 2)], "start: true");
    world.set_trouble("define", Trouble::Fails);
    assert_eq!(world.run(&NoObserver).failed.len(), 1);
    world.change("vm-one", |vm| vm.disks.truncate(1));
    assert_eq!(world.resumed()[0].disks.len(), 2, "it is resumed");
    give_up(&world, "one");
    let given_up = cancel_ordered(PLAN, &world.store, &world, &world).unwrap();
    assert_eq!(given_up.left, Vec::<String>::new());
    assert_eq!(take_back(&world.store, PLAN, &["one".into()]).unwrap(), ["one"]);
    let outcome = world.run_plan(PLAN, &world.resumed(), &NoObserver, &StopSignal::default()).unwrap();
    assert!(outcome.is_complete() && outcome.done == 1, "{outcome:?}");
    world.assert_arrived("with one disk");
}
