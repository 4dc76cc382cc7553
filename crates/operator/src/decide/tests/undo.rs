//! What was begun is undone, as far as it can be, and only by leave not.

use super::*;

#[test]
fn an_undo_of_what_has_arrived_says_that_it_has() {
    for (exit, is_clean) in [(0, "True"), (13, "False")] {
        let mut world = World::new();
        world.settle();
        world.works();
        world.spec.cancel = true;
        world.settle();
        assert_eq!(world.made.last(), Some(&(2, Work::Undo)));
        world.says(exit, reason::ARRIVED);
        let status = |kind: &str| world.status.condition(kind).unwrap().status.clone();
        assert_eq!(world.status.phase, Phase::Done);
        assert_eq!((status("Arrived").as_str(), status("Cancelled").as_str()), ("True", "False"));
        assert_eq!(status("CleanedUp"), is_clean);
        world.facts.is_going = true;
        world.settle();
        assert!(world.is_gone, "what has arrived just goes");
    }
}

#[test]
fn what_has_arrived_is_never_taken_back() {
    let mut world = World::new();
    world.settle();
    world.works();
    world.says(13, "NotCleanedUp");
    for seconds in [1, PAUSE_SECONDS_MIN, 1000] {
        world.later(seconds);
        assert_eq!(world.status.condition("Arrived").unwrap().status, "True");
    }
    assert!(world.made.len() > 1, "its clean-up is tried again");
}

#[test]
fn a_cancel_undoes_and_keeps_all_until_that_is_proven() {
    let mut world = World::new();
    world.settle();
    world.works();
    world.spec.cancel = true;
    world.settle();
    assert_eq!(world.made, [(1, Work::Move), (2, Work::Undo)]);
    assert_eq!(world.status.phase, Phase::Cancelling);
    for _ in 0..20 {
        world.works();
        world.fails(6, "LeftBehind");
        assert!(world.claim.is_some());
    }
    assert_eq!(world.reason("CleanedUp"), "LeftBehind");
    world.works();
    world.says(0, "Undone");
    assert_eq!((world.status.phase, world.claim.clone()), (Phase::Cancelled, None));
    // An edit of the plan does not bring it back.
    world.spec.cancel = false;
    world.spec.plan_ref.generation = 9;
    world.later(100_000);
    assert_eq!(world.status.phase, Phase::Cancelled);
    world.facts.is_going = true;
    world.settle();
    assert!(world.is_gone);
}

#[test]
fn an_undo_has_a_deadline_and_waits_for_its_turn() {
    let mut world = World::new();
    world.settle();
    world.works();
    world.facts.is_admitted = false;
    world.facts.is_going = true;
    world.settle();
    assert_eq!(world.made.len(), 1, "undoing asks the source, too");
    world.facts.is_admitted = true;
    world.settle();
    assert_eq!(world.made.len(), 2);
    world.works();
    world.says(6, "LeftBehind");
    world.later(UNDO_SECONDS_MAX);
    assert_eq!((world.reason("CleanedUp").as_str(), world.is_gone), ("UndoGaveUp", false));
    let made = world.made.len();
    world.facts.retry = Some("again".into());
    world.settle();
    assert_eq!(world.made.len(), made + 1);
    world.works();
    world.says(6, "LeftBehind");
    world.facts.is_abandoned = true;
    world.later(1);
    assert!(world.is_gone, "by leave it goes");
}

#[test]
fn what_has_not_begun_is_cancelled_and_removed_at_once() {
    let mut world = World::new();
    world.facts.is_admitted = false;
    world.spec.cancel = true;
    world.settle();
    assert_eq!((world.status.phase, world.reason("Cancelled").as_str()), (Phase::Cancelled, "NothingBegun"));
    let mut world = World::new();
    world.facts.is_going = true;
    world.settle();
    assert!(world.is_gone && world.made.is_empty());
}

#[test]
fn an_undo_without_a_provider_ends_with_its_day() {
    let mut world = World::new();
    world.settle();
    world.works();
    world.facts.provider = ProviderStanding::Missing("there is none".into());
    world.spec.cancel = true;
    world.settle();
    assert_eq!((world.reason("Arrived").as_str(), world.made.len()), ("ProviderMissing", 1));
    let decision = decide(&world.spec, &world.status, &world.facts);
    let end = world.status.cancel_since.unwrap().plus(UNDO_SECONDS_MAX);
    assert_eq!(decision.wake, Some(end), "nothing else wakes it");
    world.later(UNDO_SECONDS_MAX);
    assert_eq!(world.reason("CleanedUp"), "UndoGaveUp");
}

#[test]
fn nothing_holds_a_namespace_that_is_removed() {
    // The controller takes Providers and claims away, in any order.
    let losses: [fn(&mut World); 4] = [
        |_| {},
        |world| world.facts.provider = ProviderStanding::Missing("gone".into()),
        |world| world.claim = None,
        |world| {
            world.status.next_try = Some(world.facts.now.plus(1000));
            world.facts.is_admitted = false;
        },
    ];
    for lose in losses {
        let mut world = World::new();
        world.settle();
        world.works();
        world.namespace_ends = true;
        world.facts.is_going = true;
        lose(&mut world);
        world.settle();
        assert!(world.is_gone && world.made.len() == 1, "{:?}", world.status);
        assert_eq!((world.reason("Cancelled").as_str(), world.claim), ("NamespaceEnds", None));
    }
    // A cancel alone is no removal, and a namespace that stays is not asked to wait for nothing.
    let mut world = World::new();
    world.settle();
    world.works();
    world.namespace_ends = true;
    world.spec.cancel = true;
    world.settle();
    assert_eq!(world.made.last(), Some(&(2, Work::Undo)));
}
