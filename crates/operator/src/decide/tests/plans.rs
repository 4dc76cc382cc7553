//! What a Plan and its Provider have a Migration do, before it has begun and after.

use super::*;

#[test]
fn nothing_begins_before_it_may() {
    let mut world = World::new();
    world.facts.plan = PlanStanding::Unknown("edited".into());
    world.settle();
    assert_eq!((world.reason("Arrived").as_str(), world.claims), ("PlanNotResolved", 0));
    world.facts.plan = PlanStanding::Has;
    world.facts.provider = ProviderStanding::Other("another".into());
    world.settle();
    assert_eq!(world.reason("Arrived"), "ProviderChanged");
    world.facts.provider = ProviderStanding::Same;
    world.facts.is_admitted = false;
    world.settle();
    assert_eq!((world.status.phase, world.claims), (Phase::Queued, 0));
    world.facts.plan = PlanStanding::LeftOut;
    world.settle();
    assert!(world.is_gone && world.made.is_empty(), "a VM that left its plan never starts");
}

#[test]
fn what_has_begun_goes_on_without_its_plan() {
    let mut world = World::new();
    world.settle();
    world.works();
    world.dies(false);
    world.facts.plan = PlanStanding::LeftOut;
    world.later(PAUSE_SECONDS_MIN);
    assert_eq!(world.made, [(1, Work::Move), (2, Work::Move)]);
}

#[test]
fn a_worker_that_touched_nothing_leaves_the_plan_its_way() {
    let mut world = World::new();
    world.settle();
    world.says(3, "Plan");
    world.spec.cancel = true;
    world.settle();
    assert_eq!((world.reason("Cancelled").as_str(), world.made.len()), ("NothingBegun", 1));
    let mut world = World::new();
    world.settle();
    world.says(3, "Plan");
    world.facts.plan = PlanStanding::LeftOut;
    world.later(PAUSE_SECONDS_MAX);
    assert!(world.is_gone && world.made.len() == 1);
}

#[test]
fn a_worker_that_has_touched_nothing_is_stopped_when_its_plan_has_the_vm_no_more() {
    for standing in [PlanStanding::LeftOut, PlanStanding::Unknown("edited".into())] {
        let mut world = World::new();
        world.settle();
        world.facts.plan = standing.clone();
        world.settle();
        assert!(world.job.is_none() && world.status.failures == 0);
        assert_eq!(world.is_gone, standing == PlanStanding::LeftOut);
    }
    let mut world = World::new();
    world.settle();
    world.works();
    world.facts.plan = PlanStanding::LeftOut;
    world.settle();
    assert!(world.job.is_some(), "what has begun goes on");
}

#[test]
fn what_has_begun_goes_to_the_provider_as_it_is_now() {
    for is_cancelled in [false, true] {
        let mut world = World::new();
        world.settle();
        world.works();
        world.facts.provider = ProviderStanding::Other("edited, or made again".into());
        world.dies(false);
        world.spec.cancel = is_cancelled;
        world.later(PAUSE_SECONDS_MIN);
        let work = if is_cancelled { Work::Undo } else { Work::Move };
        assert_eq!(world.made.last(), Some(&(2, work)));
    }
}

#[test]
fn an_edit_mends_what_failed_before_it_began() {
    let mut world = World::new();
    world.settle();
    world.says(3, reason::FORBIDDEN);
    world.later(100_000);
    assert_eq!((world.status.phase, world.made.len()), (Phase::Failed, 1));
    world.facts.generation = 2;
    world.settle();
    assert_eq!((world.status.phase, world.made.len()), (Phase::Running, 2));
    world.works();
    world.says(3, reason::FORBIDDEN);
    world.facts.generation = 3;
    world.later(100_000);
    assert_eq!(
        (world.status.phase, world.made.len()),
        (Phase::Failed, 2),
        "its plan does not change any more"
    );
}

#[test]
fn one_that_failed_before_it_began_goes_with_its_place_in_the_plan() {
    let mut world = World::new();
    world.settle();
    world.says(3, reason::FORBIDDEN);
    world.facts.plan = PlanStanding::Unknown("edited".into());
    world.later(1);
    assert_eq!((world.status.phase, world.reason("Arrived").as_str()), (Phase::Failed, reason::FORBIDDEN));
    world.facts.plan = PlanStanding::LeftOut;
    world.later(1);
    assert!(world.is_gone);
}

#[test]
fn what_has_begun_and_has_a_wrong_plan_says_what_to_do() {
    let mut world = World::new();
    world.settle();
    world.works();
    world.says(3, "Plan");
    let message = world.status.condition("Arrived").unwrap().message.clone();
    assert!(message.contains("words") && message.contains("cancel and remove"), "{message}");
}
