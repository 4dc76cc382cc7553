//! A source that is away when a VM that failed is undone: retried (R) as long as the plan waits for a source, then told (F).
#![allow(clippy::unwrap_used)]

mod fakes;

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use drover_engine::{Clock, Event, NoObserver, Phase, VmState};
use drover_types::inventory::PowerState;
use fakes::{PLAN, Trouble, Watch, World, enters, vm};

/// A VM that fails when it is down and frozen, while its source is away for so many seconds.
fn failed_in_outage(seconds: i64) -> World {
    let mut world = World::with(&[vm("on", PowerState::On, 1)], "start: true");
    world.patience = Duration::from_secs(60);
    world.set_trouble("open target", Trouble::Fails);
    let outcome = world.run(&Watch(|event: &Event| {
        if enters(event, "on", Phase::Copy) {
            world.away_until_ms.store(world.clock.now_ms() + seconds * 1000, SeqCst);
        }
    }));
    assert_eq!(outcome.failed.len(), 1, "{outcome:?}");
    assert!(world.missed.load(SeqCst) > 0);
    world
}

fn notes(world: &World) -> Vec<String> {
    let events = world.store.events(PLAN).unwrap();
    events.into_iter().filter(|event| event.kind == "note").map(|event| event.text).collect()
}

#[test]
fn a_vm_is_undone_as_soon_as_its_source_answers_again() {
    let world = failed_in_outage(30);
    let row = world.row("vm-on");
    assert_eq!((row.state, row.switched_off, row.snapshot), (VmState::Failed, false, None));
    assert_eq!((world.power("vm-on"), world.own_snapshots()), (PowerState::On, 0));
    let error = row.error.unwrap();
    assert!(!error.contains("left behind") && !error.contains("where it stands"), "{error}");
    let notes = notes(&world);
    let count = |words: &str| notes.iter().filter(|note| note.contains(words)).count();
    assert_eq!((count("undone once the source answers"), count("answers again")), (1, 1), "{notes:?}");
    world.run(&NoObserver);
    world.assert_arrived("in the next run");
}

#[test]
fn what_a_longer_outage_leaves_is_told_and_the_next_run_goes_on() {
    let world = failed_in_outage(3600);
    assert!(world.clock.now_ms() >= 60_000, "it was waited for");
    let row = world.row("vm-on");
    assert_eq!((row.state, row.switched_off), (VmState::Failed, true));
    assert_eq!((world.power("vm-on"), world.own_snapshots()), (PowerState::Off, 1));
    let error = row.error.unwrap();
    assert!(error.contains("left behind: on is still off") && error.contains("switched it off"), "{error}");
    world.away_until_ms.store(0, SeqCst);
    world.run(&NoObserver);
    world.assert_arrived("in the next run");
}
