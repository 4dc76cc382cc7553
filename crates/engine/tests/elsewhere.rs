//! A target that is far away: answers get lost, and then nothing is known of what runs there.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::sync::{Arc, Mutex};

use drover_engine::{NoObserver, VmState};
use drover_types::inventory::PowerState;
use fakes::{Trouble, World, vm};

fn one() -> World {
    World::with(&[vm("one", PowerState::On, 1)], "start: true")
}

#[test]
fn a_start_whose_answer_is_lost_leaves_the_source_off_until_somebody_can_tell() {
    let world = one();
    world.set_trouble("start", Trouble::FailsAfter);
    world.set_trouble("stop", Trouble::Fails);
    // The look before the plan begins goes well; the one after the failed start does not.
    world.set_trouble_at("is running", 2, Trouble::Fails);
    world.run(&NoObserver);
    assert!(world.trouble_struck());
    assert_eq!(world.power("vm-one"), PowerState::Off, "it may run at the target");
    let row = world.row("vm-one");
    assert_eq!(row.state, VmState::Failed);
    assert!(row.error.unwrap().contains("one is still off"));
    assert!(world.runs_at_target("one"));
    let outcome = world.run(&NoObserver);
    assert!(outcome.is_complete());
    assert_eq!((world.calls("start"), world.power("vm-one")), (1, PowerState::Off), "it had arrived");
}

#[test]
fn a_source_is_switched_on_again_if_nothing_was_ever_defined_at_a_target_that_is_away() {
    let world = one();
    world.set_trouble("open target", Trouble::Fails);
    world.set_trouble_at("is running", 2, Trouble::Fails);
    world.run(&NoObserver);
    assert!(world.trouble_struck());
    assert_eq!(world.power("vm-one"), PowerState::On);
    assert!(world.run(&NoObserver).is_complete());
    world.assert_arrived("the second time");
}

#[test]
fn the_source_is_looked_at_after_leave_to_start_was_given_and_not_before() {
    let world = one();
    let ready = Arc::new(Mutex::new(false));
    let seen = ready.clone();
    world.before("make ready", move |state| {
        *seen.lock().unwrap() = true;
        state.vms.get_mut("vm-one").unwrap().power = PowerState::On;
    });
    let outcome = world.run(&NoObserver);
    assert!(*ready.lock().unwrap());
    assert_eq!(outcome.failed.len(), 1, "what happens from then on is noticed");
    assert_eq!(world.calls("start"), 0);
}
