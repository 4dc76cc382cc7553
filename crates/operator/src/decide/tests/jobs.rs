//! Jobs and epochs: one worker after the other, and which of them are kept.

use super::*;

#[test]
fn a_second_worker_waits_for_the_end_of_the_first() {
    let mut world = World::new();
    world.settle();
    world.works();
    // Somebody removed its Job, and the pod still runs.
    world.job = None;
    world.settle();
    world.later(1000);
    assert_eq!(world.made.len(), 1);
    world.has_pods = false;
    world.later(LINGER_SECONDS);
    assert_eq!(world.reason("Arrived"), "WorkerDied");
    world.later(PAUSE_SECONDS_MIN);
    assert_eq!(world.made.len(), 2);
}

#[test]
fn the_last_logs_of_failures_are_kept_for_a_time() {
    let epochs = |world: &World| -> Vec<u64> {
        let all = world.job.iter().chain(&world.old_jobs);
        let mut epochs: Vec<u64> =
            all.map(|job| epoch_of(&world.facts.me.name, &job.name).unwrap()).collect();
        epochs.sort();
        epochs
    };
    let mut world = World::new();
    world.settle();
    world.works();
    world.says(6, "Source");
    assert_eq!((world.status.phase, epochs(&world)), (Phase::Retrying, vec![1]));
    world.later(PAUSE_SECONDS_MAX);
    assert_eq!(
        (world.status.phase, epochs(&world)),
        (Phase::Running, vec![1, 2]),
        "also beside the next one"
    );
    for _ in 0..3 {
        world.works();
        world.fails(6, "Source");
    }
    assert_eq!(epochs(&world), [2, 3, 4, 5], "so many, and the one that works");
    world.works();
    world.says(0, "Success");
    assert_eq!((world.status.phase, epochs(&world)), (Phase::Done, vec![2, 3, 4, 5]));
    world.later(KEEP_SECONDS - 2 * PAUSE_SECONDS_MAX);
    assert_eq!(
        epochs(&world),
        [4],
        "those that failed a day ago are gone, and the one with which it arrived"
    );
    world.later(KEEP_SECONDS);
    assert!(epochs(&world).is_empty());
    // With its Migration all go.
    let mut world = World::new();
    world.settle();
    world.fails(3, "Plan");
    world.facts.is_going = true;
    world.settle();
    assert!(world.is_gone && epochs(&world).is_empty());
    // One that does not go holds up nobody.
    let mut world = World::new();
    world.settle();
    world.works();
    world.fails(6, "Source");
    world.works();
    world.old_jobs.iter_mut().for_each(|job| job.is_going = true);
    world.says(0, "Success");
    assert_eq!(world.status.phase, Phase::Done);

    // An undo's, too; nothing is left of what is undone.
    let mut world = World::new();
    world.settle();
    world.works();
    world.spec.cancel = true;
    world.settle();
    world.works();
    world.says(6, "LeftBehind");
    assert_eq!((world.status.phase, epochs(&world)), (Phase::Cancelling, vec![2]));
    world.later(PAUSE_SECONDS_MAX);
    assert_eq!(epochs(&world), [2, 3]);
    world.works();
    world.says(0, "Undone");
    assert_eq!((world.status.phase, epochs(&world).len()), (Phase::Cancelled, 0));
}

#[test]
fn the_job_of_what_arrived_goes_after_a_time_so_that_its_claim_is_free() {
    let arrived = |exit: u8| {
        let mut world = World::new();
        world.settle();
        world.works();
        world.says(exit, "Success");
        world
    };
    let mut world = arrived(0);
    assert_eq!((world.status.phase, world.claim.is_none()), (Phase::Done, true));
    world.later(KEEP_SECONDS / 10 - 1);
    assert!(world.job.is_some(), "its log can be read");
    world.later(1);
    assert!(world.job.is_none() && world.status.phase == Phase::Done && world.claims == 1);
    // What was not cleaned up needs its state, and its log tells why.
    let mut world = arrived(13);
    world.later(PAUSE_SECONDS_MAX);
    for _ in 1..FAILURES_MAX {
        world.works();
        world.fails(13, "NotCleanedUp");
    }
    assert_eq!((world.status.phase, world.claim.is_some()), (Phase::Done, true));
    world.later(KEEP_SECONDS * 2);
    assert!(world.job.is_some() && world.claim.is_some());
}

#[test]
fn an_operator_that_dies_between_status_and_act_loses_nothing() {
    let mut world = World::new();
    world.settle();
    // The Job was decided on and not made, or made and not seen.
    world.job = None;
    world.has_pods = false;
    world.made.clear();
    world.status.job.as_mut().unwrap().uid = None;
    world.settle();
    assert_eq!(world.made, [(1, Work::Move)], "in the same epoch");
    world.works();
    // A Job of an epoch that is over is removed, before anything else is made.
    let stray = JobSeen { name: "stray".into(), uid: "s".into(), ..JobSeen::default() };
    world.facts.jobs = vec![stray];
    let decision = decide(&world.spec, &world.status, &world.facts);
    assert_eq!(decision.act, Act::RemoveJob(Named { name: "stray".into(), uid: "s".into() }));
}

#[test]
fn an_epoch_is_over_when_its_job_was_looked_at() {
    let mut world = World::new();
    world.settle();
    world.works();
    world.dies(false);
    assert_eq!((world.status.epoch, world.status.job.is_none()), (2, true), "a late pod of it is refused");
    world.later(PAUSE_SECONDS_MIN);
    world.works();
    world.spec.cancel = true;
    world.settle();
    assert_eq!(world.made, [(1, Work::Move), (2, Work::Move), (3, Work::Undo)]);
    // Decided on, not made, and not wanted any more: whoever makes it late makes it in vain.
    let mut world = World::new();
    world.settle();
    (world.job, world.has_pods) = (None, false);
    world.status.job.as_mut().unwrap().uid = None;
    world.spec.cancel = true;
    world.settle();
    assert_eq!((world.status.epoch, world.status.phase), (2, Phase::Cancelled));
}

#[test]
fn a_job_that_was_made_again_in_an_epoch_is_removed() {
    let mut world = World::new();
    world.settle();
    world.works();
    let again = JobSeen { uid: "another".into(), ..world.job.clone().unwrap() };
    world.facts.jobs = vec![again.clone()];
    let decision = decide(&world.spec, &world.status, &world.facts);
    assert_eq!(decision.act, Act::RemoveJob(Named { name: again.name, uid: again.uid }));
}

#[test]
fn a_stray_job_keeps_the_slot_until_its_pod_is_gone() {
    for (is_going, has_job) in [(false, true), (true, true), (false, false), (true, false)] {
        let mut world = World::new();
        world.settle();
        world.works();
        if !has_job {
            world.dies(false);
        }
        let stray = JobSeen { name: "stray".into(), uid: "s".into(), is_going, ..JobSeen::default() };
        world.facts.jobs = world.job.iter().cloned().chain([stray]).collect();
        let decision = decide(&world.spec, &world.status, &world.facts);
        assert!(decision.wants_slot.is_some(), "{is_going} {has_job}");
    }
}
