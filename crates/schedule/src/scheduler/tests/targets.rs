//! Places at targets that are full or fail.

use super::*;
use crate::breaker::BACKOFF_MS;
use crate::budgets::HOST_TRIES;
use crate::wait::Resource;

/// A job of host `a` that goes to a place.
fn to(pool: &str, bytes: u64) -> Job {
    let disk = Disk { bytes: bytes << 30, datastore: "ds".into(), pool: Some(pool.into()) };
    Job { name: format!("{pool}-{bytes}"), host: "a".into(), disks: vec![disk], ..Job::default() }
}

fn failure(is_full: bool) -> TargetFailure {
    TargetFailure { why: "it is full: 3 MiB free".into(), is_full }
}

/// A job fails because of its place; whether it is tried again.
fn target_fails(scheduler: &mut Scheduler, id: u64, is_full: bool, now_ms: u64) -> bool {
    let again = scheduler.target_failed(JobId(id), &[], &failure(is_full), now_ms);
    match again {
        true => _ = scheduler.retry(JobId(id), now_ms),
        false => scheduler.finished(JobId(id), Ended::Failed, now_ms),
    }
    again
}

#[test]
fn one_vm_that_finds_its_place_full_holds_back_all_that_go_there_and_no_other() {
    let jobs: Vec<Job> =
        (0..9).map(|gib| to("full", 90 + gib)).chain((0..3).map(|gib| to("roomy", 1 + gib))).collect();
    let mut scheduler = of(&jobs, 1, 200);
    let first = admitted(&mut scheduler);
    assert_eq!(first, [8]);
    assert!(!target_fails(&mut scheduler, 8, true, 0), "its guest went down in vain once");
    // One after the other, as the host takes one at a time.
    for id in [11, 10, 9] {
        assert_eq!(admitted(&mut scheduler), [id], "the others go on");
        arrive(&mut scheduler, id);
    }
    assert_eq!(admitted(&mut scheduler), [0; 0]);
    let wait = scheduler.wait_of(JobId(7), 0).unwrap();
    let Wait::Target { until_ms, .. } = wait else { panic!("{wait}") };
    let told = format!("full: it is full: 3 MiB free; tried again from {} on", utc_moment(until_ms));
    assert_eq!((wait.to_string(), wait.kind()), (told, "target"));
    assert_eq!(scheduler.next_event_ms(0), Some(until_ms));
    assert!((BACKOFF_MS / 2..=BACKOFF_MS).contains(&until_ms));
    // One VM shows whether there is room again.
    assert_eq!(admitted_at(&mut scheduler, until_ms), [7]);
    assert!(scheduler.was_target_full(JobId(7)) && !scheduler.is_target_held(JobId(7)));
    assert!(scheduler.is_target_held(JobId(6)));
    scheduler.finished(JobId(7), Ended::Arrived, until_ms);
    assert!(!scheduler.was_target_full(JobId(6)));
    assert_eq!(admitted_at(&mut scheduler, until_ms), [6]);
}

#[test]
fn a_place_that_stays_full_is_given_up_and_says_why() {
    let jobs: Vec<Job> = (0..30).map(|gib| to("full", 90 + gib)).chain([to("roomy", 1)]).collect();
    let mut scheduler = of(&jobs, 20, 200);
    scheduler.set_target_label("full", "/vms");
    let (mut now, mut began) = (0, 0);
    for id in admitted(&mut scheduler) {
        began += 1;
        match id {
            30 => arrive(&mut scheduler, 30),
            _ => _ = target_fails(&mut scheduler, id, true, now),
        }
    }
    assert_eq!(began, 20);
    while !scheduler.is_done() {
        now = scheduler.next_event_ms(now).unwrap_or(now + BACKOFF_MS_MAX);
        for id in admitted_at(&mut scheduler, now) {
            began += 1;
            match id {
                30 => arrive(&mut scheduler, 30),
                _ => _ = target_fails(&mut scheduler, id, true, now),
            }
        }
        assert!(began < 50);
    }
    assert!((20 + HOST_TRIES..=21 + HOST_TRIES).contains(&began), "{began} began");
    let given_up = scheduler.take_given_up();
    assert!(!given_up.is_empty() && given_up.iter().all(|(_, ended)| *ended == Ended::TargetFailed));
    let id = given_up[0].0;
    assert_eq!(scheduler.failed_target(id), Some(("/vms", Some(&failure(true)))));
    assert_eq!(scheduler.targets_left_alone().collect::<Vec<_>>(), ["full"]);
    let told = scheduler.quarantine(&["full", "roomy"].map(|pool| Resource::Pool(pool.into())).into());
    assert_eq!((told.len(), &told[0].what, told[0].is_open), (1, &Resource::Pool("/vms".into()), true));
    // Somebody made room, and orders it anew.
    scheduler.try_target_again("full");
    let again = scheduler.add_again(Tenant(0), vec![(id, to("full", 1))], now);
    assert_eq!(admitted_at(&mut scheduler, now), [again[0].0]);
}

#[test]
fn a_place_that_refuses_one_vm_may_have_nothing_against_the_others() {
    let jobs: Vec<Job> = (0..9).map(|gib| to("odd", 90 + gib)).collect();
    let mut scheduler = of(&jobs, 20, 200);
    let all = admitted(&mut scheduler);
    let again: Vec<bool> = all[..3].iter().map(|id| target_fails(&mut scheduler, *id, false, 0)).collect();
    assert_eq!(again, [false, false, true], "three in a row are of the place, and the third is tried again");
    let wait = scheduler.wait_of(JobId(all[2]), 0).unwrap();
    assert!(wait.to_string().starts_with("its next try after a failure of odd, from "), "{wait}");
}

#[test]
fn a_pass_that_fails_does_not_close_a_place_that_is_tried_with_it_and_one_that_goes_well_does() {
    let jobs = [to("full", 200), Job { is_warm: true, ..to("full", 99) }, to("full", 1)];
    let mut scheduler = of(&jobs, 1, 200);
    assert_eq!(admitted(&mut scheduler), [0]);
    assert!(!target_fails(&mut scheduler, 0, true, 0));
    assert_eq!(admitted(&mut scheduler), [0; 0]);
    let first = scheduler.next_event_ms(0).unwrap();
    assert_eq!(admitted_at(&mut scheduler, first), [1]);
    assert!(scheduler.is_tried(JobId(1)));
    assert!(!scheduler.target_failed(JobId(1), &[], &failure(true), first));
    scheduler.park_untold(JobId(1), first);
    assert_eq!(admitted_at(&mut scheduler, first), [0; 0], "its first try was in vain");
    let second = scheduler.next_event_ms(first).unwrap();
    assert!((BACKOFF_MS..=2 * BACKOFF_MS).contains(&(second - first)));
    assert_eq!(admitted_at(&mut scheduler, second), [2]);
    // It made no pass: the next one is tried.
    scheduler.park_untold(JobId(2), second);
    assert!(scheduler.is_target_held(JobId(2)) && !scheduler.is_tried(JobId(2)));
    scheduler.wake(JobId(1), false, second);
    assert_eq!(admitted_at(&mut scheduler, second), [1]);
    scheduler.park(JobId(1), second);
    assert!(!scheduler.is_target_held(JobId(2)));
}

#[test]
fn guests_that_are_down_wait_for_no_place_that_is_left_alone() {
    let down = |gib| Job { goes_on: true, ..to("full", gib) };
    let jobs: Vec<Job> = (0..3).map(|gib| down(90 + gib)).chain([to("full", 1)]).collect();
    let mut scheduler = of(&jobs, 1, 200);
    assert_eq!(admitted(&mut scheduler), [2]);
    assert!(!target_fails(&mut scheduler, 2, true, 0));
    assert_eq!(admitted(&mut scheduler), [1], "its guest is down");
    target_fails(&mut scheduler, 1, true, 0);
    assert_eq!(admitted(&mut scheduler), [0]);
    scheduler.finished(JobId(0), Ended::Arrived, 0);
    // That one arrived tells of before the wait only.
    assert_eq!(admitted(&mut scheduler), [0; 0]);
    assert!(scheduler.is_target_held(JobId(3)));
}

#[test]
fn a_place_that_tells_late_that_it_is_full_is_given_up_like_another() {
    let jobs: Vec<Job> = (0..9).map(|gib| to("full", 90 + gib)).collect();
    let mut scheduler = of(&jobs, 1, 200);
    let untold = || Wait::RoomUntold { place: "full".into() };
    let (mut now, mut asked) = (0, 0);
    while !scheduler.is_done() {
        for id in admitted_at(&mut scheduler, now).into_iter().map(JobId) {
            // It holds nothing until the place answers.
            scheduler.lacks_room(id, untold(), u64::MAX, now);
            scheduler.target_full_late(id, &["full"], &failure(true), now);
            if !scheduler.is_over(id) {
                scheduler.lacks_room(id, untold(), now + 1000, now);
            }
            asked += 1;
        }
        assert!(asked < 50);
        now = scheduler.next_event_ms(now).unwrap_or(now + 1000);
    }
    assert_eq!(asked, 1 + HOST_TRIES);
    let given_up = scheduler.take_given_up();
    assert!(given_up.len() == jobs.len() && given_up.iter().all(|(_, ended)| *ended == Ended::TargetFailed));
}
