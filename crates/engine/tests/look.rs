//! A look at a VM's disks leaves nothing at the source, whatever fails, and what a killed one left is removed.
#![allow(clippy::unwrap_used)]

mod fakes;

use drover_engine::{EngineError, Looking, NoObserver, ProviderError, SNAPSHOT_MARK, look_into};
use drover_types::inventory::{PowerState, Snapshot};
use fakes::{PLAN, Trouble, Untold, World, vm};

fn off() -> World {
    World::with(&[vm("off", PowerState::Off, 2)], "start: true")
}

fn look(world: &World) -> Result<usize, ProviderError> {
    let looked = look_into(world, PLAN, &world.planned()[0], |disks| {
        assert!(world.own_snapshots() > 0, "disks are frozen while they are looked at");
        disks.len()
    });
    match looked.left {
        None => looked.seen,
        Some(left) => Err(left),
    }
}

#[test]
fn a_look_sees_all_disks_and_leaves_no_snapshot() {
    let world = off();
    assert_eq!(look(&world).unwrap(), 2);
    assert_eq!((world.own_snapshots(), world.power("vm-off")), (0, PowerState::Off));
}

#[test]
fn whatever_call_fails_the_next_look_finds_the_source_in_order() {
    for call in ["create snapshot", "open source", "remove snapshot"] {
        for trouble in [Trouble::Fails, Trouble::FailsAfter] {
            let world = off();
            world.set_trouble(call, trouble);
            look(&world).unwrap_err();
            assert!(world.trouble_struck(), "{call}");
            let is_left = call == "remove snapshot" && matches!(trouble, Trouble::Fails);
            assert_eq!(world.own_snapshots(), usize::from(is_left), "{call}");
            assert_eq!(look(&world).unwrap(), 2, "{call}");
            assert_eq!(world.own_snapshots(), 0, "{call}");
        }
    }
}

#[test]
fn what_a_killed_look_left_stops_no_run() {
    let world = off();
    world.set_trouble("remove snapshot", Trouble::Fails);
    look(&world).unwrap_err();
    assert_eq!(world.own_snapshots(), 1);
    world.run(&NoObserver);
    world.assert_arrived("a snapshot of a look is the plan's own");
    assert_eq!(world.own_snapshots(), 0);
}

#[test]
fn a_snapshot_that_a_run_needs_is_not_removed_by_a_look() {
    let world = off();
    let description = format!("{SNAPSHOT_MARK}{PLAN}");
    let of_run = Snapshot { id: "run-1".into(), name: "drover-p".into(), description, created_s: None };
    world.change("vm-off", |vm| vm.snapshots.push(of_run));
    assert_eq!(look(&world).unwrap(), 2);
    assert_eq!(world.own_snapshots(), 1, "that of the run is there, and that of the look is gone");
}

#[test]
fn a_snapshot_that_stays_is_told_beside_what_was_seen() {
    let world = off();
    world.set_trouble("remove snapshot", Trouble::Fails);
    let looked = look_into(&world, PLAN, &world.planned()[0], |disks| disks.len());
    assert_eq!(looked.seen.unwrap(), 2);
    assert!(looked.left.is_some());
}

#[test]
fn a_plan_that_is_looked_at_is_not_run_meanwhile() {
    let world = off();
    let looking = Looking::begin(&world.store, PLAN).unwrap();
    let again = Looking::begin(&world.store, PLAN);
    assert!(matches!(again, Err(EngineError::Running { .. })));
    drop(looking);
    Looking::begin(&world.store, PLAN).unwrap();
}

#[test]
fn a_snapshot_that_its_vm_no_longer_lists_is_told_as_left() {
    for untold in [Untold::All, Untold::Ids] {
        let world = off();
        let looked = look_into(&world, PLAN, &world.planned()[0], |disks| {
            world.state().untold = untold;
            disks.len()
        });
        assert_eq!((looked.seen.unwrap(), world.own_snapshots()), (2, 1), "{untold:?}");
        let left = looked.left.unwrap().to_string();
        assert!(left.contains("snapshot drover-p"), "{untold:?}: {left}");
    }
}
