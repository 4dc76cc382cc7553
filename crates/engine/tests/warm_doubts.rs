//! Warm migrations: what is still doubted, compared or asked for after failures, crashes and others' doings.
#![allow(clippy::unwrap_used)]

mod fakes;

use drover_disk::memory::{Effect, Nth};
use drover_disk::{DiskErrorKind, DiskOp};
use drover_engine::{Event, NoObserver, PassKind, Phase};
use drover_types::inventory::PowerState;
use fakes::{PLAN, Trouble, Watch, World, enters, stop_at_wait};

#[test]
fn images_that_the_plan_knows_nothing_of_are_compared_whole_also_when_the_first_pass_is_interrupted() {
    let world = World::warm("warm: {interval: 1s, cutover: auto, audit: none}");
    stop_at_wait(&world, 1);
    world.store.remove_plan(PLAN).unwrap();
    world.state().tracks.guests_write = false;
    (2000..2002).for_each(|disk| world.guest_writes("on", disk, 5 * 65536, b"between two plans"));
    // Both disks fail before anything is copied.
    (1..=2).for_each(|nth| world.set_trouble_at("open source", nth, Trouble::Fails));
    world.run(&NoObserver);
    assert!(world.notes().contains("is done again"), "{}", world.notes());
    world.assert_arrived("after an interrupted first pass");
}

#[test]
fn what_was_mended_is_doubted_also_by_the_next_try() {
    let world = World::warm_auto();
    world.set_trouble_at("freeze", 3, Trouble::Fails);
    let hook = Watch(|event: &Event| {
        if matches!(event, Event::PassEnded { number: 2, .. }) {
            world.change("vm-on", |vm| vm.consolidation_needed = true);
        }
    });
    world.run(&hook);
    world.assert_arrived("consolidated before a pass that failed");
    assert_eq!((world.calls("consolidate"), world.passes()[2].kind), (1, PassKind::HashDiff));
}

#[test]
fn tracking_that_was_found_damaged_stays_so_when_the_replica_is_copied_anew() {
    let world = World::warm_auto();
    world.set_trouble("start", Trouble::FailsAfter);
    world.before("stop", |state| {
        state.images.values().for_each(|image| image.overwrite(7 * 65536, b"written at the target"));
    });
    world.fails();
    world.store.set_distrust(PLAN, "vm-on", "it lied").unwrap();
    // The run that sees to it dies halfway.
    world.set_trouble("remove images", Trouble::DiesAfter);
    world.run(&NoObserver);
    world.as_if_killed();
    assert!(world.images().is_empty());
    world.run(&NoObserver);
    assert_eq!(world.warm_row().distrust.as_deref(), Some("it lied"));
    assert!(world.passes().iter().all(|pass| pass.kind == PassKind::HashDiff), "{:?}", world.passes());
    world.assert_arrived("with the replica mended");
}

#[test]
fn a_guest_that_was_switched_on_again_after_a_crash_is_not_shut_down_unasked() {
    let world = World::warm("warm: {interval: 1s}");
    stop_at_wait(&world, 2);
    world.store.ask_cutover(PLAN, None).unwrap();
    world.run(&Watch(|event: &Event| assert!(!enters(event, "on", Phase::Snapshot), "the process dies")));
    world.as_if_killed();
    assert_eq!(world.power("vm-on"), PowerState::Off);
    world.set_power("vm-on", PowerState::On);
    stop_at_wait(&world, 3);
    assert_eq!((world.power("vm-on"), world.calls("shut down")), (PowerState::On, 1));
    assert!(!world.row("vm-on").switched_off && world.warm_row().down_ms.is_none());
    world.store.ask_cutover(PLAN, None).unwrap();
    world.run(&NoObserver);
    world.assert_arrived("once it was asked for again");
}

#[test]
fn what_was_unknown_when_the_replica_was_read_back_is_compared_at_the_cutover() {
    let world = World::warm("warm: {interval: 1s, audit: none}");
    let hook = Watch(|event: &Event| match event {
        Event::PassEnded { number: 2, .. } => {
            world.state().tracks.guests_write = false;
            world.guest_writes("on", 2000, 5 * 65536, b"only pass 3 knows of it");
            // It dies when the journal has forgotten the block.
            world.before("open source", |state| {
                let fails = || Effect::Fail(DiskErrorKind::Failed);
                state
                    .tracks
                    .frozen
                    .values()
                    .for_each(|disk| disk.add_fault(DiskOp::Read, Nth::From(1), fails()));
            });
        }
        Event::Note { text, .. } if text.contains("is done again") => {
            world.store.ask_cutover(PLAN, None).unwrap();
        }
        event if enters(event, "on", Phase::Verify) => {
            let state = world.state();
            state.images.values().for_each(|image| image.overwrite(5 * 65536, b"a write that was lost"));
        }
        _ => {}
    });
    world.run(&hook);
    let error = world.row("vm-on").error.unwrap_or_default();
    assert!(error.contains("differ"), "{error:?}, {}", world.notes());
}

#[test]
fn a_vm_that_ran_for_a_moment_after_its_last_snapshot_is_not_started_at_the_target() {
    for forgets_power in [false, true] {
        for phase in [Phase::Copy, Phase::Verify, Phase::Convert, Phase::Define, Phase::Start] {
            let world = World::warm_auto();
            world.state().forgets_power = forgets_power;
            let watch = Watch(|event: &Event| {
                if enters(event, "on", phase) {
                    world.set_power("vm-on", PowerState::On);
                    world.guest_writes("on", 2001, 70_000, b"written while it should have been off");
                    world.set_power("vm-on", PowerState::Off);
                }
            });
            let outcome = world.run(&watch);
            assert_eq!((outcome.done, outcome.failed.len()), (0, 1), "{phase}");
            // Without power events only what was written tells: a live disk keeps its change id when its VM runs.
            let word = if forgets_power { "was changed by someone" } else { "was switched on and off again" };
            assert!(world.row("vm-on").error.unwrap().contains(word), "{phase}: {word}");
            assert_eq!((world.calls("start"), world.power("vm-on")), (0, PowerState::On), "{phase}");
            assert_eq!(world.notes().contains("tells nothing of its past power"), forgets_power);
            world.run(&NoObserver);
            world.assert_arrived(&format!("after it ran for a moment in {phase}"));
        }
    }
}

#[test]
fn somebodys_snapshot_of_a_vm_that_stayed_off_is_no_reason_to_stop() {
    let world = World::warm_auto();
    let watch = Watch(|event: &Event| {
        if enters(event, "on", Phase::Define) {
            world.change("vm-on", |vm| vm.disks[0].path = "[ds1] on/on-000002.vmdk".into());
        }
    });
    world.run(&watch);
    world.assert_arrived("though its disks go on in other files");
}
