//! What fails, is counted and is tried again.

use super::*;
use crate::model::Progress;

#[test]
fn failures_count_in_a_row_and_evictions_do_not() {
    let mut world = World::new();
    world.settle();
    for _ in 0..20 {
        world.works();
        world.dies(true);
        world.later(PAUSE_SECONDS_MIN);
    }
    assert_eq!((world.status.failures, world.made.len()), (0, 21));
    for round in 1..=20 {
        world.works();
        let progress = Progress { done_bytes: round * 100, ..Progress::default() };
        world.status.progress = Some(progress);
        world.fails(6, "Source");
    }
    assert_eq!((world.status.failures, world.status.phase), (1, Phase::Running));
    for _ in 1..FAILURES_MAX {
        world.works();
        world.fails(6, "Source");
    }
    assert_eq!(world.status.phase, Phase::Failed);
    let made = world.made.len();
    world.later(100_000);
    assert_eq!(world.made.len(), made);
    world.facts.retry = Some("now".into());
    world.settle();
    assert_eq!((world.made.len(), world.status.failures), (made + 1, 0));
}

#[test]
fn what_is_mended_elsewhere_is_tried_for_ever() {
    let mut world = World::new();
    world.settle();
    for _ in 0..100 {
        world.works();
        world.fails(3, "NameTaken");
    }
    assert_eq!((world.status.phase, world.made.len()), (Phase::Running, 101));
    world.works();
    world.fails(3, reason::UNPARSABLE);
    assert_eq!(world.status.phase, Phase::Failed, "that is the same the next time");
}

#[test]
fn failures_of_elsewhere_end_nothing_and_bytes_that_fall_are_no_progress() {
    let mut world = World::new();
    world.settle();
    for _ in 0..12 {
        world.works();
        world.fails(5, "Connection");
    }
    world.works();
    world.fails(6, "Source");
    assert_eq!((world.status.phase, world.status.failures), (Phase::Running, 1));
    let mut rounds = 1;
    while world.status.phase != Phase::Failed {
        world.works();
        let done_bytes = if rounds % 2 == 0 { 8 } else { 50 };
        world.status.progress = Some(Progress { done_bytes, ..Progress::default() });
        world.fails(6, "Source");
        rounds += 1;
        assert!(rounds < 30, "one that always dies at the same place is not tried for ever");
    }
}

#[test]
fn pauses_grow() {
    let mut world = World::new();
    world.settle();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        world.works();
        world.says(5, "Connection");
        pauses.push(world.status.next_try.unwrap().0 - world.facts.now.0);
        world.later(pauses[pauses.len() - 1]);
    }
    assert_eq!(pauses, [10, 20, 40, 80, 160, 320, 600, 600]);
}

#[test]
fn a_worker_that_never_starts_is_given_up() {
    let mut world = World::new();
    world.settle();
    world.later(START_SECONDS - 1);
    assert_eq!(world.made.len(), 1);
    world.later(1);
    assert_eq!((world.reason("Arrived").as_str(), world.status.failures), ("WorkerDidNotStart", 0));
    world.later(PAUSE_SECONDS_MIN);
    assert_eq!(world.made.len(), 2);
}

#[test]
fn arrived_and_not_cleaned_up_is_said_as_it_is() {
    let mut world = World::new();
    world.settle();
    for _ in 0..FAILURES_MAX {
        world.works();
        world.fails(13, "NotCleanedUp");
    }
    assert_eq!(world.status.phase, Phase::Done);
    assert_eq!(world.status.condition("Arrived").unwrap().status, "True");
    assert_eq!(world.reason("CleanedUp"), "SourceNotCleanedUp");
    assert!(world.claim.is_some(), "what is left at the source is told by its state");
    let made = world.made.len();
    world.facts.retry = Some("mended".into());
    world.settle();
    assert_eq!(world.made.len(), made + 1, "its clean-up is tried again");
    world.works();
    world.says(0, "Success");
    assert_eq!((world.status.phase, world.reason("CleanedUp").as_str()), (Phase::Done, "CleanedUp"));
    world.facts.retry = Some("more".into());
    world.later(1);
    assert_eq!(world.made.len(), made + 1, "nothing is left to be done");
}
