//! The state claim of a Migration.

use super::super::claim::CLAIM_GOES_SECONDS;
use super::*;

#[test]
fn a_claim_that_is_being_removed_is_waited_for() {
    let mut world = World::new();
    world.claim_goes = true;
    world.settle();
    assert_eq!(
        (world.status.phase, world.reason("Arrived").as_str()),
        (Phase::Pending, "StateClaimTerminating")
    );
    assert_eq!(world.status.next_try, Some(world.facts.now.plus(CLAIM_GOES_SECONDS)));
    world.later(CLAIM_GOES_SECONDS);
    assert_eq!((world.claims, world.made.len()), (0, 0));
    world.claim_goes = false;
    world.later(CLAIM_GOES_SECONDS);
    assert_eq!((world.claims, world.made.len()), (1, 1));
    // With the state of what has begun it is as good as gone.
    world.works();
    world.dies(false);
    world.claim_goes = true;
    world.later(PAUSE_SECONDS_MAX);
    assert_eq!((world.status.phase, world.reason("StateLost").as_str()), (Phase::Failed, "StateLost"));
}

#[test]
fn another_claim_or_none_is_lost_state() {
    for there in [None, Some("another".to_string())] {
        let mut world = World::new();
        world.settle();
        world.works();
        world.dies(false);
        world.claim = there;
        world.later(PAUSE_SECONDS_MIN);
        assert_eq!((world.reason("StateLost").as_str(), world.made.len()), ("StateLost", 1));
        world.facts.retry = Some("x".into());
        world.spec.cancel = true;
        world.later(1000);
        assert_eq!(
            (world.status.phase, world.made.len()),
            (Phase::Failed, 1),
            "nothing is undone by guesses"
        );
    }
    let mut world = World::new();
    world.settle();
    world.says(14, reason::STATE_LOST);
    assert_eq!((world.status.phase, world.reason("StateLost").as_str()), (Phase::Failed, "StateLost"));
}

#[test]
fn a_state_claim_that_was_made_too_small_grows_before_the_next_worker_or_is_told() {
    let small = || ClaimRoom::Small { size: "1Gi".into(), wanted: "10Gi".into() };
    for why in [None, Some("the class does not support resize".to_string())] {
        let mut world = World::new();
        world.claim = Some("c0".into());
        world.status.claim = Some(Named { name: "x-state".into(), uid: "c0".into() });
        (world.facts.room, world.why_not_grown) = (small(), why.clone());
        world.settle();
        // Either way a worker begins, with what there is.
        assert_eq!((world.grown.as_slice(), world.made.len()), (&["10Gi".to_string()][..], 1));
        let told = world.status.condition("StateSmall").map(|it| it.message.clone());
        assert_eq!(told.is_some(), why.is_some());
        assert!(told.is_none_or(|told| told.contains("has 1Gi") && told.contains("allowVolumeExpansion")));
    }
}
