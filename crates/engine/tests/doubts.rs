//! VMs that something stands against as their run is gone on with: each is asked about when it begins, and fails alone.
#![allow(clippy::unwrap_used)]

mod fakes;

use drover_engine::{Cause, Event, NoObserver, Phase, VmState};
use drover_mover::StopSignal;
use drover_types::inventory::PowerState;
use fakes::{PLAN, Watch, World, enters, vm};

#[test]
fn it_fails_with_the_reason_untouched_and_the_next_try_asks_again() {
    let world = World::new();
    world.state().doubted.insert("vm-on".into());
    let outcome = world.run(&NoObserver);
    assert_eq!(outcome.failed, [("on".to_string(), Cause::Plan)]);
    let row = world.row("vm-on");
    assert_eq!((row.state, row.error.as_deref()), (VmState::Failed, Some("on is suspended")));
    assert_eq!(row.advice.as_deref(), Some("resume it"));
    assert_eq!((world.power("vm-on"), world.calls("shut down")), (PowerState::On, 0));
    assert_eq!(world.row("vm-off").state, VmState::Done, "the other goes on");
    world.state().doubted.clear();
    assert!(world.run(&NoObserver).is_complete());
    world.assert_arrived("once nothing stands against it");
}

/// A run of two VMs that was killed when the guest of one was down; the other has not begun.
fn killed() -> World {
    let world = World::with(&[vm("down", PowerState::On, 1), vm("later", PowerState::On, 1)], "start: true");
    world.state().doubted.insert("vm-later".into());
    world.run(&Watch(|event: &Event| assert!(!enters(event, "down", Phase::Copy), "the process dies")));
    world.as_if_killed();
    assert_eq!((world.power("vm-down"), world.row("vm-down").switched_off), (PowerState::Off, true));
    world
}

#[test]
fn one_whose_guest_is_down_goes_on_beside_it() {
    let world = killed();
    let outcome = world.run_plan(PLAN, &world.resumed(), &NoObserver, &StopSignal::default()).unwrap();
    assert_eq!(outcome.failed, [("later".to_string(), Cause::Plan)]);
    assert_eq!(world.row("vm-down").state, VmState::Done);
    assert!(world.runs_at_target("down") && world.power("vm-later") == PowerState::On);
}

#[test]
fn a_guest_that_is_down_runs_at_its_source_again_if_something_stands_against_it() {
    let world = killed();
    world.state().doubted.insert("vm-down".into());
    let outcome = world.run_plan(PLAN, &world.resumed(), &NoObserver, &StopSignal::default()).unwrap();
    assert_eq!(outcome.failed.len(), 2, "{outcome:?}");
    assert_eq!((world.power("vm-down"), world.row("vm-down").switched_off), (PowerState::On, false));
    assert!(!world.runs_at_target("down") && world.own_snapshots() == 0);
}
