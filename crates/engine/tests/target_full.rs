//! Targets that are full: guests do not go down one after the other in vain.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::sync::atomic::Ordering;

use drover_engine::{Cause, NoObserver, VmState};
use drover_schedule::Resource;
use drover_types::inventory::{PowerState, Vm};
use fakes::{World, vm};

const VMS: usize = 12;

/// Those whose guests go down: the one that finds the place full, and one at each of five tries.
const TRIED: usize = 6;

fn world() -> World {
    let vms: Vec<Vm> = (0..VMS).map(|at| vm(&format!("a{at:02}"), PowerState::On, 1)).collect();
    let world = World::with(&vms, "start: true\nlimits: {vms_per_host: 1, disks: 20}");
    // A wait for the place takes a few looks.
    world.clock.slow_down(60_000);
    world
}

#[test]
fn a_place_that_is_full_ends_its_vms_before_their_guests_go_down() {
    let world = world();
    world.is_full.store(true, Ordering::SeqCst);
    let outcome = world.run(&NoObserver);
    assert_eq!((outcome.done, outcome.failed.len()), (0, VMS), "{outcome:?}");
    assert!(outcome.failed.iter().all(|(_, cause)| *cause == Cause::TargetFull), "{outcome:?}");
    assert_eq!(world.calls("shut down"), TRIED);
    let rows: Vec<_> = (0..VMS).map(|at| world.row(&format!("vm-a{at:02}"))).collect();
    let held: Vec<_> =
        rows.iter().filter(|row| row.error.as_ref().unwrap().contains("was not begun")).collect();
    assert_eq!(held.len(), VMS - TRIED);
    let place = world.folder.path().display().to_string();
    for row in held {
        assert!(row.error.as_ref().unwrap().contains(&format!("{place} is left alone: ")), "{row:?}");
        assert!(row.advice.as_ref().unwrap().contains("make room there"), "{row:?}");
    }
    for row in rows {
        assert_eq!((row.state, world.power(&row.id)), (VmState::Failed, PowerState::On));
    }
    let told: Vec<_> = outcome.quarantine.iter().map(|it| (it.what.clone(), it.is_open)).collect();
    assert_eq!(told, [(Resource::Pool(place), true)]);
    // Somebody made room.
    world.is_full.store(false, Ordering::SeqCst);
    world.images().iter().for_each(|(_, disk)| disk.clear_faults());
    assert_eq!(world.run(&NoObserver).done, VMS);
    world.assert_arrived("with room");
}

#[test]
fn no_guest_goes_down_for_a_place_that_says_beforehand_that_it_is_full() {
    let mut world = world();
    (world.free_bytes, world.overcommits) = (Some(0), true);
    let outcome = world.run(&NoObserver);
    assert_eq!((outcome.done, outcome.failed.len()), (0, VMS), "{outcome:?}");
    assert_eq!((world.calls("shut down"), world.calls("prepare")), (0, 0));
    let last = world.row("vm-a11");
    assert!(last.error.as_ref().unwrap().contains("is left alone: it is full: 0 B free, and a"), "{last:?}");
    assert!(outcome.failed.iter().all(|(_, cause)| *cause == Cause::TargetFull), "{outcome:?}");
    world.free_bytes = Some(u64::MAX);
    assert_eq!(world.run(&NoObserver).done, VMS);
}

#[test]
fn a_pass_that_finds_the_place_full_counts_for_it_and_its_guest_stays_up() {
    let world = World::warm_auto();
    world.is_full.store(true, Ordering::SeqCst);
    let outcome = world.run(&NoObserver);
    assert_eq!((outcome.done, outcome.failed.len()), (0, 1), "{outcome:?}");
    assert_eq!((world.calls("shut down"), world.power("vm-on")), (0, PowerState::On));
    let place = world.folder.path().display().to_string();
    let told: Vec<_> =
        outcome.quarantine.iter().map(|it| (it.what.clone(), it.failures, it.is_open)).collect();
    assert_eq!(told, [(Resource::Pool(place), 1, true)]);
}
