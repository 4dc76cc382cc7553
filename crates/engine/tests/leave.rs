//! Runs in whose place another was put: whatever they were at, source and target are left to that one.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use drover_engine::{Event, NoObserver, Phase, VmState};
use drover_types::inventory::PowerState;
use fakes::{Trouble, Watch, World, enters, vm};

/// Calls that ask, and change nothing.
const LOOKS: [&str; 3] = ["look", "is running", "ask power"];

fn cold() -> World {
    World::with(&[vm("on", PowerState::On, 1)], "start: true")
}

/// What a world was asked to do after so many calls.
fn done_after(world: &World, calls: usize) -> Vec<(&'static str, String)> {
    let calls = world.state().calls.split_off(calls);
    calls.into_iter().filter(|(call, _)| !LOOKS.contains(call)).collect()
}

#[test]
fn nothing_is_begun_after_the_end_of_any_phase_and_the_next_run_arrives() {
    for make in [cold, World::warm_auto] {
        let count = AtomicUsize::new(0);
        let ends = |event: &Event| usize::from(matches!(event, Event::PhaseEnded { .. }));
        make().run(&Watch(|event: &Event| {
            count.fetch_add(ends(event), SeqCst);
        }));
        let count = count.into_inner();
        assert!(count >= 9, "{count}");
        for nth in 1..=count {
            let world = make();
            let (seen, calls) = <(AtomicUsize, AtomicUsize)>::default();
            world.run(&Watch(|event: &Event| {
                if ends(event) == 1 && seen.fetch_add(1, SeqCst) + 1 == nth {
                    calls.store(world.state().calls.len(), SeqCst);
                    world.is_given_away.store(true, SeqCst);
                }
            }));
            assert_eq!(done_after(&world, calls.into_inner()), [], "after the end of phase {nth}");
            world.is_given_away.store(false, SeqCst);
            world.run(&NoObserver);
            world.assert_arrived(&format!("after the end of phase {nth}"));
        }
    }
}

#[test]
fn a_copy_that_fails_then_leaves_its_guest_off_and_its_snapshot_where_it_is() {
    let world = cold();
    world.set_trouble("open target", Trouble::Fails);
    let outcome = world.run(&Watch(|event: &Event| {
        if enters(event, "on", Phase::Copy) {
            world.is_given_away.store(true, SeqCst);
        }
    }));
    assert_eq!(outcome.failed.len(), 1, "{outcome:?}");
    assert_eq!((world.power("vm-on"), world.own_snapshots()), (PowerState::Off, 1));
    let row = world.row("vm-on");
    assert_eq!((row.state, row.switched_off), (VmState::Failed, true));
    let error = row.error.unwrap();
    assert!(error.contains("left behind: what it did (another goes on with it)"), "{error}");
    world.is_given_away.store(false, SeqCst);
    world.run(&NoObserver);
    world.assert_arrived("by the other");
}
