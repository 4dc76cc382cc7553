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
    assert!(decide(&world.spec, &world.status, &world.facts).wants_slot.is_none(), "others have its slot");
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

#[test]
fn nothing_begins_while_locks_cannot_be_read_and_that_is_told() {
    for trouble in [LockSeen::NotServed("apply them".into()), LockSeen::Denied("no right".into())] {
        let mut world = World::new();
        world.lock_trouble = Some(trouble);
        world.settle();
        assert_eq!((world.reason("Arrived").as_str(), world.status.phase), (lock::REFUSED, Phase::Pending));
        let told = world.status.condition("Arrived").unwrap().message.clone();
        assert!(["apply them", "no right"].contains(&told.as_str()), "{told}");
        world.later(100_000);
        assert!(world.made.is_empty());
        world.lock_trouble = None;
        world.later(LOCK_REFUSED_SECONDS);
        assert_eq!(world.made, [(1, Work::Move)]);
    }
}

/// One whose worker made the lock and began nothing, and that is removed while locks cannot be read.
fn removed(trouble: LockSeen, is_abandoned: bool) -> World {
    let mut world = World::new();
    world.settle();
    world.lock = Some("m1".into());
    world.says(130, "Changed");
    (world.lock_trouble, world.facts.is_going, world.facts.is_abandoned) =
        (Some(trouble), true, is_abandoned);
    world.settle();
    world
}

#[test]
fn a_migration_goes_where_there_are_no_locks() {
    let world = removed(LockSeen::NotServed("none".into()), false);
    assert!(world.is_gone && world.claim.is_none(), "without the kind nobody has a lock");
}

#[test]
fn a_migration_waits_for_the_right_to_remove_its_lock_or_is_let_go_by_hand() {
    let denied = || LockSeen::Denied("no right".into());
    let mut world = removed(denied(), false);
    assert!(!world.is_gone && world.claim.is_some());
    assert_eq!(world.reason("Arrived"), lock::REFUSED);
    let told = world.status.condition("Arrived").unwrap().message.clone();
    assert!(told.contains("no right") && told.contains("drover.dev/abandon"), "{told}");
    // Either is given.
    world.lock_trouble = None;
    world.later(LOCK_REFUSED_SECONDS);
    assert!(world.is_gone && world.lock.is_none());
    let world = removed(denied(), true);
    assert!(world.is_gone && world.claim.is_none() && world.lock.is_some());
    let left: Vec<&Note> = world.notes.iter().filter(|note| note.reason == "VmLockLeft").collect();
    assert!(left.len() == 1 && left[0].is_warning && left[0].message.contains("no right"), "{left:?}");
}

#[test]
fn one_that_is_cancelled_says_so_again_when_its_lock_is_removed() {
    let mut world = World::new();
    world.settle();
    world.lock = Some("m1".into());
    world.says(130, "Changed");
    (world.lock_trouble, world.spec.cancel) = (Some(LockSeen::Denied("no right".into())), true);
    world.settle();
    assert_eq!((world.status.phase, world.reason("Arrived").as_str()), (Phase::Cancelled, lock::REFUSED));
    world.lock_trouble = None;
    world.later(LOCK_REFUSED_SECONDS);
    assert_eq!((world.lock.clone(), world.reason("Arrived").as_str()), (None, "Cancelled"));
}

#[test]
fn a_worker_whose_lock_was_removed_says_so_and_another_goes_on() {
    let mut world = World::new();
    world.settle();
    world.works();
    world.says(130, reason::LOCK_LOST);
    assert_eq!(world.reason("Arrived"), reason::LOCK_LOST);
    world.later(PAUSE_SECONDS_MAX);
    assert_eq!(world.made.len(), 2, "which takes it anew, or rests beside another's");
}
