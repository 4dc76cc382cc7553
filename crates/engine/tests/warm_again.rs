//! Warm migrations that are gone on with: what was found, tried or put in another's place before.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::time::Duration;

use drover_disk::DiskOp;
use drover_disk::memory::{Effect, Nth};
use drover_engine::{Clock, Event, NoObserver, PassKind};
use drover_mover::{StopSignal, journal_path};
use drover_plan::Cutover;
use drover_types::inventory::{PowerState, Vm};
use fakes::{PLAN, Trouble, Watch, World, stop_at_wait};

#[test]
fn an_older_image_in_the_place_of_a_replica_is_compared_whole() {
    let world = World::warm("warm: {interval: 1s, audit: none}");
    stop_at_wait(&world, 1);
    let old: Vec<_> = (world.images().into_iter())
        .map(|(path, image)| (image.content(), std::fs::read(journal_path(&path)).unwrap(), path))
        .collect();
    world.guest_writes("on", 2000, 5 * 65536, b"brought by the second pass");
    stop_at_wait(&world, 3);
    for ((_, image), (content, journal, path)) in world.images().iter().zip(old) {
        image.overwrite(0, &content);
        std::fs::write(journal_path(&path), journal).unwrap();
    }
    world.store.ask_cutover(PLAN, None).unwrap();
    world.run(&NoObserver);
    world.assert_arrived("on top of an older image");
    let told = world.passes()[3].clone();
    let why = told.why.unwrap();
    assert!(
        told.kind == PassKind::HashDiff && why.contains("image of Hard disk 1, Hard disk 2 is not"),
        "{why}"
    );
    assert!(world.notes().contains("all of it was compared"));
    let last = world.passes().pop().unwrap();
    assert!(last.number == 4 || last.kind == PassKind::Delta, "believed again once all was compared");
}

#[test]
fn what_an_audit_found_is_known_also_if_the_process_is_killed_while_it_is_mended() {
    let world = World::warm("warm: {interval: 1s, cutover: auto}");
    world.state().tracks.guests_write = false;
    let hook = Watch(|event: &Event| {
        if matches!(event, Event::PassEnded { number: 1, .. }) {
            world.state().tracks.lies = 1;
            world.guest_writes("on", 2000, 7 * 65536, b"not told of");
            for (_, image) in world.images() {
                image.add_fault(DiskOp::Write, Nth::From(image.counts().writes + 1), Effect::Panic);
            }
        }
    });
    world.run(&hook);
    world.as_if_killed();
    world.images().iter().for_each(|(_, image)| image.clear_faults());
    assert!(world.warm_row().distrust.is_some_and(|why| why.contains("change tracking is damaged")));
    world.run(&NoObserver);
    world.assert_arrived("after a kill while it was mended");
    assert!(world.passes()[1..].iter().all(|pass| pass.kind == PassKind::HashDiff), "{:?}", world.passes());
}

#[test]
fn a_cutover_that_is_asked_for_after_the_guest_did_not_go_down_is_done() {
    for call in ["wait until off", "shut down"] {
        let world = World::warm("warm: {interval: 1s}");
        stop_at_wait(&world, 2);
        world.store.ask_cutover(PLAN, None).unwrap();
        world.set_trouble(call, Trouble::Fails);
        world.fails();
        assert_eq!((world.calls("shut down"), world.power("vm-on")), (1, PowerState::On), "{call}");
        assert!(!world.warm_row().cutover_asked, "{call}: one that was undone has to be asked for again");
        world.store.ask_cutover(PLAN, None).unwrap();
        world.run(&NoObserver);
        world.assert_arrived(call);
    }
}

#[test]
fn a_cutover_that_is_asked_for_while_another_fails_is_done_by_the_next_run() {
    let world = World::warm("warm: {interval: 1s}");
    stop_at_wait(&world, 2);
    world.store.ask_cutover(PLAN, None).unwrap();
    world.set_trouble("define", Trouble::Fails);
    let again = Watch(|event: &Event| {
        if matches!(event, Event::PhaseStarted { phase: drover_engine::Phase::Copy, .. }) {
            world.store.ask_cutover(PLAN, None).unwrap();
        }
    });
    assert!(!world.run(&again).is_complete());
    world.run(&NoObserver);
    world.assert_arrived("as asked for the second time");
}

#[test]
fn disks_that_were_added_or_removed_are_refused_by_name_in_every_order_of_cutover_and_resume() {
    type Change = fn(&mut Vm);
    let changes: [(Change, &str); 2] = [
        (
            |vm| {
                let mut third = vm.disks[1].clone();
                (third.key, third.label) = (2002, "Hard disk 3".into());
                vm.disks.push(third);
            },
            "Hard disk 3 of on was added",
        ),
        (|vm| vm.disks.truncate(1), "Hard disk 2 of on was removed"),
    ];
    for (change, words) in changes {
        for asked_first in [true, false] {
            let world = World::warm("warm: {interval: 1s}");
            stop_at_wait(&world, 2);
            let ask = || drop(world.store.ask_cutover(PLAN, None).unwrap());
            if asked_first {
                ask();
            }
            let before = world.state().vms["vm-on"].clone();
            world.change("vm-on", change);
            for _ in 0..2 {
                // Once as resumed, and once more as resumed after that refusal.
                let outcome =
                    world.run_plan(PLAN, &world.resumed(), &NoObserver, &StopSignal::default()).unwrap();
                assert_eq!(outcome.failed.len(), 1, "{words}");
                let error = world.row("vm-on").error.unwrap();
                assert!(error.starts_with(words), "{error}");
                assert_eq!((world.calls("shut down"), world.power("vm-on")), (0, PowerState::On), "{words}");
                if !asked_first {
                    ask();
                }
            }
            world.change("vm-on", |vm| vm.disks = before.disks);
            world.run_plan(PLAN, &world.resumed(), &NoObserver, &StopSignal::default()).unwrap();
            world.assert_arrived(words);
        }
    }
}

#[test]
fn a_resumed_run_moves_the_vm_it_began_with_under_the_name_it_had() {
    let world = World::warm("warm: {interval: 1s}");
    stop_at_wait(&world, 2);
    world.store.ask_cutover(PLAN, None).unwrap();
    world.change("vm-on", |vm| vm.name = "renamed".into());
    // A new VM that the plan's selection fits is not the run's.
    world.state().vms.insert("vm-new".into(), fakes::vm("new", PowerState::On, 1));
    let resumed = world.resumed();
    assert_eq!(resumed.iter().map(|vm| vm.target_name.as_str()).collect::<Vec<_>>(), ["on"]);
    world.change("vm-on", |vm| vm.name = "on".into());
    world.run_plan(PLAN, &resumed, &NoObserver, &StopSignal::default()).unwrap();
    assert_eq!((world.power("vm-new"), world.runs_at_target("on")), (PowerState::On, true));
    // Given again with its file, the plan takes what it selects now.
    assert_eq!(world.planned().len(), 2);
}

const MOMENT: &str = "warm: {interval: 60s, cutover: '1970-01-01T00:07:30Z'}";

#[test]
fn a_moment_that_was_tried_is_due_only_by_command_or_as_another_moment() {
    for by_command in [true, false] {
        let mut world = World::warm(MOMENT);
        world.set_trouble("define", Trouble::Fails);
        world.fails();
        assert_eq!((world.calls("shut down"), world.power("vm-on")), (1, PowerState::On));
        let passes = world.passes().len() as u32;
        stop_at_wait(&world, passes + 3);
        assert_eq!(
            (world.calls("shut down"), world.power("vm-on")),
            (1, PowerState::On),
            "not shut down again"
        );
        assert!(world.notes().contains("the moment of its cutover was tried"), "{}", world.notes());
        match by_command {
            true => drop(world.store.ask_cutover(PLAN, None).unwrap()),
            false => world.plan.warm.cutover = Some(Cutover::At(world.clock.now_ms() + 300_000)),
        }
        world.run(&NoObserver);
        world.assert_arrived("the second time");
        let reason = if by_command { "asked for" } else { "it is time" };
        assert_eq!(world.warm_row().reason.as_deref(), Some(reason));
    }
}

#[test]
fn a_moment_that_passed_while_nothing_ran_shuts_no_guest_down_hours_later() {
    let late = |minutes: u64| {
        let world = World::warm(MOMENT);
        stop_at_wait(&world, 2);
        world.clock.sleep(Duration::from_secs(60 * minutes));
        world
    };
    let world = late(30);
    world.run(&NoObserver);
    world.assert_arrived("within the hour");
    let world = late(90);
    stop_at_wait(&world, 5);
    assert_eq!((world.calls("shut down"), world.power("vm-on")), (0, PowerState::On));
    assert!(world.notes().contains("had passed more than an hour before"), "{}", world.notes());
    world.store.ask_cutover(PLAN, None).unwrap();
    world.run(&NoObserver);
    world.assert_arrived("by command");
}

#[test]
fn a_sample_is_looked_at_while_the_guest_runs_and_not_while_it_is_down() {
    let world = World::warm_auto();
    world.run(&NoObserver);
    let passes = world.passes();
    let (last, before) = passes.split_last().unwrap();
    assert!(before[1..].iter().all(|pass| pass.audited_blocks > 0), "{before:?}");
    assert_eq!(last.audited_blocks, 0, "{last:?}");
    // What is said to be resumed goes on with something.
    assert!(!world.notes().contains("resumed"), "{}", world.notes());
}

#[test]
fn a_replica_that_was_changed_between_runs_is_refused_until_it_goes() {
    let world = World::warm("warm: {interval: 1s, audit: none}");
    stop_at_wait(&world, 2);
    let (path, image) = world.images().remove(0);
    image.overwrite(9 * 65536 + 3, b"somebody else's");
    let row = world.fails();
    assert_eq!(row.cause.as_deref(), Some("target"));
    assert!(row.error.unwrap().contains("was changed since its journal was made"));
    assert_eq!((world.passes().len(), world.power("vm-on")), (2, PowerState::On), "nothing was touched");
    world.state().images.remove(&path);
    std::fs::remove_file(path).unwrap();
    // What drover itself changes between passes and runs is as recorded.
    stop_at_wait(&world, 3);
    stop_at_wait(&world, 5);
    world.store.ask_cutover(PLAN, None).unwrap();
    world.run(&NoObserver);
    world.assert_arrived("copied anew");
}
