//! Hosts that fail.

use super::*;

#[test]
fn a_host_that_fails_is_left_alone_while_others_go_on_and_given_up_in_the_end() {
    let jobs: Vec<Job> = (0..12).map(|_| job("a", 1, 9, 0)).chain([job("b", 1, 9, 0)]).collect();
    let mut scheduler = of(&jobs, 3, 20);
    let mut now = 0;
    let first = admitted(&mut scheduler);
    let again: Vec<Option<u64>> =
        first.iter().filter(|id| **id < 12).map(|id| fails(&mut scheduler, *id, now)).collect();
    assert_eq!(again.len() as u32, FAILURES_MAX);
    assert!(again[..2].iter().all(Option::is_none), "one that fails alone may be its VM's own failure");
    assert!(again[2].is_some_and(|at| at > 0));
    assert_eq!(admitted(&mut scheduler), [0; 0], "the other host is busy, this one is left alone");
    assert!(matches!(scheduler.wait_of(JobId(5), 0), Some(Wait::Host { .. })));
    arrive(&mut scheduler, 12);
    let mut tries = 0;
    while !scheduler.is_done() {
        now = scheduler.next_event_ms(now).unwrap_or(now + BACKOFF_MS_MAX);
        for id in admitted_at(&mut scheduler, now) {
            tries += 1;
            fails(&mut scheduler, id, now);
        }
        assert!(tries < 50);
    }
    assert_eq!(tries, crate::budgets::HOST_TRIES);
    assert!(scheduler.take_given_up().iter().all(|(_, ended)| *ended == Ended::HostFailed));
    let quarantine = scheduler.quarantine(&["a", "b"].into());
    assert_eq!((quarantine.len(), quarantine[0].host.as_str(), quarantine[0].is_open), (1, "a", true));
}

#[test]
fn the_end_of_one_that_failed_before_lets_no_second_one_be_tried() {
    for tried_again in [true, false] {
        let mut scheduler = of(&vec![job("a", 1, 9, 0); 8], 6, 20);
        let first = admitted(&mut scheduler);
        let failed: Vec<bool> = first[..3].iter().map(|id| scheduler.host_failed(JobId(*id), 0)).collect();
        assert_eq!(failed, [false, false, true]);
        first[3..].iter().for_each(|id| scheduler.requeue(JobId(*id), 0));
        let now = BACKOFF_MS_MAX;
        let tried = admitted_at(&mut scheduler, now);
        assert_eq!(tried.len(), 1, "one shows whether the host works again");
        for id in &first[..2] {
            scheduler.finished(JobId(*id), Ended::Failed, now);
        }
        match tried_again {
            true => assert!(scheduler.retry(JobId(first[2]), now) > now, "it waits from when it is undone"),
            false => scheduler.finished(JobId(first[2]), Ended::Failed, now),
        }
        assert_eq!(admitted_at(&mut scheduler, now), [0; 0], "another is tried beside the first");
        // The first one says how it stands with the host.
        assert!(scheduler.host_failed(JobId(tried[0]), now) && scheduler.hosts[0].breaker.failures() == 4);
        assert_eq!(admitted_at(&mut scheduler, now), [0; 0]);
    }
}

#[test]
fn what_becomes_of_one_that_ran_before_says_nothing_of_the_one_that_is_tried() {
    for fails in [true, false] {
        let mut scheduler = of(&vec![job("a", 1, 9, 0); 8], 5, 20);
        let first = admitted(&mut scheduler);
        for id in &first[..3] {
            scheduler.host_failed(JobId(*id), 0);
            scheduler.finished(JobId(*id), Ended::Failed, 0);
        }
        let now = BACKOFF_MS_MAX;
        let tried = admitted_at(&mut scheduler, now);
        assert_eq!(tried.len(), 1, "one shows whether the host works again");
        // It ran before the host was left alone, and has not told anything of it.
        if fails {
            scheduler.host_failed(JobId(first[3]), now);
        }
        scheduler.finished(JobId(first[3]), Ended::Failed, now);
        assert_eq!(admitted_at(&mut scheduler, now), [0; 0], "another is tried beside the first");
        scheduler.host_failed(JobId(tried[0]), now);
        let Some(again) = scheduler.next_event_ms(now) else { panic!("the host is tried again") };
        assert!(again <= now + 2 * crate::breaker::BACKOFF_MS, "two failures count as two tries: {again}");
        // One that is tried and tells nothing is followed by another.
        let next = admitted_at(&mut scheduler, again);
        assert_eq!(next.len(), 1);
        scheduler.finished(JobId(next[0]), Ended::Failed, again);
        assert_eq!(admitted_at(&mut scheduler, again).len(), 1);
    }
}

#[test]
fn a_vm_that_is_past_its_host_closes_no_host_that_fails() {
    let warm = || Job { is_warm: true, ..job("a", 1, 9, 0) };
    for state in ["open", "tried", "given up"] {
        let mut scheduler = of(&vec![warm(); 12], 5, 20);
        let first = admitted(&mut scheduler);
        let (parked, runs) = (JobId(first[3]), JobId(first[4]));
        scheduler.park(parked, 0);
        let mut now = 0;
        for id in &first[..3] {
            scheduler.host_failed(JobId(*id), 0);
            scheduler.finished(JobId(*id), Ended::Failed, 0);
        }
        let mut tries = match state {
            "open" => 0,
            "tried" => 1,
            _ => crate::budgets::HOST_TRIES,
        };
        while tries > 0 {
            now += BACKOFF_MS_MAX;
            let tried = admitted_at(&mut scheduler, now);
            assert_eq!(tried.len(), 1, "{state}");
            tries -= 1;
            if state == "given up" {
                scheduler.host_failed(JobId(tried[0]), now);
                scheduler.finished(JobId(tried[0]), Ended::Failed, now);
            }
        }
        let permit = scheduler.hosts[0].breaker.permit(now);
        // One needs its host no more, the other began before the host failed.
        scheduler.finished(parked, Ended::Arrived, now);
        scheduler.park(runs, now);
        assert_eq!(scheduler.hosts[0].breaker.permit(now), permit, "{state}");
        assert_eq!(admitted_at(&mut scheduler, now), [0; 0], "{state}: all others start at once");
    }
}
