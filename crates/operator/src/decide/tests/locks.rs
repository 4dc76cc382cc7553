//! Of two namespaces that move one VM, one does.

use super::*;

#[test]
fn a_vm_that_another_has_gets_no_worker_until_it_is_free() {
    let mut world = World::new();
    world.lock = Some("m2".into());
    world.settle();
    assert_eq!((world.reason("Arrived").as_str(), world.status.phase), (MOVED_ELSEWHERE, Phase::Pending));
    let told = world.status.condition("Arrived").unwrap().message.clone();
    assert!(told.contains("other/vm"), "{told}");
    world.facts.jobs = Vec::new();
    assert!(!decide(&world.spec, &world.status, &world.facts).wants_slot, "others have its slot");
    world.later(100_000);
    assert!(world.made.is_empty());
    // The other one was undone.
    world.lock = None;
    world.later(PAUSE_SECONDS_MAX);
    assert_eq!(world.made, [(1, Work::Move)]);
}

#[test]
fn one_that_was_refused_leaves_the_lock_to_whom_it_is() {
    for is_worker in [true, false] {
        let mut world = World::new();
        if is_worker {
            // Both were free to go, and the other's worker was the first.
            world.settle();
            world.says(7, MOVED_ELSEWHERE);
            assert_eq!(world.status.phase, Phase::Retrying);
        }
        world.lock = Some("m2".into());
        world.later(PAUSE_SECONDS_MAX);
        assert_eq!(world.reason("Arrived"), MOVED_ELSEWHERE);
        world.facts.is_going = true;
        world.settle();
        assert!(world.is_gone && world.claim.is_none());
        assert_eq!(world.lock.as_deref(), Some("m2"));
        assert_eq!(world.made.len(), usize::from(is_worker));
    }
}

#[test]
fn a_vm_is_free_when_what_was_begun_is_undone() {
    let mut world = World::new();
    world.settle();
    world.works();
    world.spec.cancel = true;
    world.settle();
    assert!(world.lock.is_some(), "until that is proven");
    world.says(6, "LeftBehind");
    assert!(world.lock.is_some());
    world.later(PAUSE_SECONDS_MAX);
    world.says(0, "Undone");
    assert_eq!((world.status.phase, world.lock.clone()), (Phase::Cancelled, None));
    // Another has it by now.
    world.lock = Some("m2".into());
    world.facts.is_going = true;
    world.settle();
    assert!(world.is_gone && world.lock.is_some());
}

#[test]
fn a_worker_that_took_the_lock_and_began_nothing_gives_it_back() {
    let mut world = World::new();
    world.settle();
    world.lock = Some("m1".into());
    world.says(130, "Changed");
    world.later(PAUSE_SECONDS_MAX);
    assert_eq!(world.made.len(), 2, "its own lock stops it not");
    world.says(130, "Changed");
    world.facts.is_going = true;
    world.settle();
    assert!(world.is_gone && world.lock.is_none());
}

#[test]
fn a_vm_that_arrived_or_is_not_undone_stays_locked_without_its_migration() {
    // Arrived.
    let mut world = World::new();
    world.settle();
    world.works();
    world.says(0, "Success");
    world.later(100_000);
    world.facts.is_going = true;
    world.settle();
    assert!(world.is_gone && world.lock.is_some());
    // Given away with what it began.
    let mut world = World::new();
    world.settle();
    world.works();
    world.dies(false);
    (world.facts.is_going, world.facts.is_abandoned) = (true, true);
    world.settle();
    assert!(world.is_gone && world.lock.is_some());
}
