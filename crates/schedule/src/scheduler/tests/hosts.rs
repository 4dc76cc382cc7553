//! Hosts that fail.

use super::*;
use crate::breaker::{BACKOFF_MS, Permit};
use crate::budgets::HOST_TRIES;
use crate::wait::Resource;

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
    let quarantine = scheduler.quarantine(&["a", "b"].map(|host| Resource::Host(host.into())).into());
    let host = Resource::Host("a".into());
    assert_eq!((quarantine.len(), &quarantine[0].what, quarantine[0].is_open), (1, &host, true));
}

#[test]
fn the_end_of_one_that_failed_before_lets_no_second_one_be_tried() {
    for tried_again in [true, false] {
        let mut scheduler = of(&vec![job("a", 1, 9, 0); 8], 6, 20);
        let first = admitted(&mut scheduler);
        let failed: Vec<bool> =
            first[..3].iter().map(|id| scheduler.host_failed(JobId(*id), None, 0)).collect();
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
        assert!(
            scheduler.host_failed(JobId(tried[0]), None, now) && scheduler.hosts[0].breaker.failures() == 4
        );
        assert_eq!(admitted_at(&mut scheduler, now), [0; 0]);
    }
}

#[test]
fn what_becomes_of_one_that_ran_before_says_nothing_of_the_one_that_is_tried() {
    for fails in [true, false] {
        let mut scheduler = of(&vec![job("a", 1, 9, 0); 8], 5, 20);
        let first = admitted(&mut scheduler);
        for id in &first[..3] {
            scheduler.host_failed(JobId(*id), None, 0);
            scheduler.finished(JobId(*id), Ended::Failed, 0);
        }
        let now = BACKOFF_MS_MAX;
        let tried = admitted_at(&mut scheduler, now);
        assert_eq!(tried.len(), 1, "one shows whether the host works again");
        // It ran before the host was left alone, and has not told anything of it.
        if fails {
            scheduler.host_failed(JobId(first[3]), None, now);
        }
        scheduler.finished(JobId(first[3]), Ended::Failed, now);
        assert_eq!(admitted_at(&mut scheduler, now), [0; 0], "another is tried beside the first");
        scheduler.host_failed(JobId(tried[0]), None, now);
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
            scheduler.host_failed(JobId(*id), None, 0);
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
                scheduler.host_failed(JobId(tried[0]), None, now);
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

/// A VM of a host with a disk in each of these datastores.
fn at(host: &str, datastores: &[&str], gib: u64) -> Job {
    let disk = |name: &&str| Disk { bytes: gib << 30, datastore: (*name).into(), pool: None };
    let disks = datastores.iter().map(disk).collect();
    Job { name: format!("{host}-{gib}"), host: host.into(), disks, ..Job::default() }
}

fn lies_in(scheduler: &Scheduler, id: u64, datastore: &str) -> bool {
    scheduler.job(JobId(id)).unwrap().disks.iter().any(|disk| disk.datastore == datastore)
}

/// Goes on until all have ended: those in one of `bad` fail, others arrive. Gives how many times a VM failed.
fn run_with(scheduler: &mut Scheduler, bad: &[&str]) -> usize {
    run_at(scheduler, "", bad)
}

/// The same, where only hosts whose names begin so cannot read them.
fn run_at(scheduler: &mut Scheduler, hosts: &str, bad: &[&str]) -> usize {
    let (mut now, mut failures) = (0, 0);
    while !scheduler.is_done() {
        let admitted = admitted_at(scheduler, now);
        if admitted.is_empty() {
            now = scheduler.next_event_ms(now).unwrap();
        }
        for id in admitted {
            let is_theirs = scheduler.job(JobId(id)).unwrap().host.starts_with(hosts);
            match bad.iter().find(|bad| is_theirs && lies_in(scheduler, id, bad)) {
                Some(bad) => {
                    failures += 1;
                    fails_at(scheduler, id, Some(bad), now);
                }
                None => scheduler.finished(JobId(id), Ended::Arrived, now),
            }
        }
        assert!(failures < 500);
    }
    failures
}

/// How many VMs of a datastore ended so.
fn ended(scheduler: &Scheduler, datastore: &str, how: Ended) -> usize {
    let of = scheduler.jobs.keys().filter(|id| lies_in(scheduler, id.0, datastore));
    of.filter(|id| scheduler.ended(**id) == Some(how)).count()
}

#[test]
fn a_datastore_that_fails_fails_no_vm_of_another_and_no_host() {
    // Those of the bad one are greater, so that they go first.
    let of_host = |host: usize| {
        let host = format!("esx{host}");
        let bad = (0..12).map(|at_all| at(&host, &["bad"], 90 + at_all)).collect::<Vec<_>>();
        let good = (0..12).map(|at_all| at(&host, &["good"], 9 + at_all)).collect::<Vec<_>>();
        [bad, good].concat()
    };
    let jobs: Vec<Job> = (0..8).flat_map(of_host).collect();
    let mut scheduler = of(&jobs, 4, 200);
    run_with(&mut scheduler, &["bad"]);
    assert_eq!(ended(&scheduler, "good", Ended::Arrived), 96);
    assert_eq!(ended(&scheduler, "bad", Ended::HostFailed), 0);
    assert!(ended(&scheduler, "bad", Ended::DatastoreFailed) > 48);
    let hosts = (0..8).map(|host| Resource::Host(format!("esx{host}")));
    let all = hosts.chain(["bad", "good"].map(|name| Resource::Datastore(name.into()))).collect();
    let quarantine = scheduler.quarantine(&all);
    // The first failures, before a second host failed on it, may be the host's.
    let open = quarantine.iter().filter(|it| it.is_open).map(|it| it.what.to_string());
    assert_eq!(open.collect::<Vec<_>>(), ["datastore bad"]);
    // Somebody orders it anew.
    let id = scheduler.add(Tenant(0), vec![at("esx0", &["bad"], 1)], 0)[0];
    assert_eq!(scheduler.take_given_up().last(), Some(&(id, Ended::DatastoreFailed)));
    scheduler.try_datastore_again("bad");
    let id = scheduler.add(Tenant(0), vec![at("esx0", &["bad"], 1)], 0)[0];
    assert_eq!(admitted(&mut scheduler), [id.0]);
}

#[test]
fn a_host_that_lost_its_way_to_a_datastore_keeps_no_other_host_from_it() {
    let of_host = |host: usize| {
        let host = format!("esx{host}");
        let shared = (0..12).map(|gib| at(&host, &["shared"], 90 + gib)).collect::<Vec<_>>();
        [shared, (0..3).map(|gib| at(&host, &["good"], 9 + gib)).collect()].concat()
    };
    let jobs: Vec<Job> = (0..8).flat_map(of_host).collect();
    let mut scheduler = of(&jobs, 4, 200);
    run_at(&mut scheduler, "esx0", &["shared"]);
    assert_eq!(ended(&scheduler, "shared", Ended::Arrived), 7 * 12);
    assert_eq!(ended(&scheduler, "shared", Ended::DatastoreFailed), 0);
    assert!(scheduler.quarantine(&[Resource::Datastore("shared".into())].into()).is_empty());
}

#[test]
fn one_vm_shows_whether_a_datastore_can_be_read_again_and_others_wait_for_it() {
    let bad = (0..9).map(|gib| at("a", &["bad"], 90 + gib));
    // One with a disk there, too, is the first of its lane.
    let both = at("a", &["good", "good", "bad"], 80);
    let good = (0..3).map(|gib| at("a", &["good"], 9 + gib));
    let jobs: Vec<Job> = bad.chain([both]).chain(good).collect();
    let mut scheduler = of(&jobs, 3, 200);
    for id in admitted(&mut scheduler) {
        assert!(lies_in(&scheduler, id, "bad"));
        fails_at(&mut scheduler, id, Some("bad"), 0);
    }
    assert_eq!(admitted(&mut scheduler), [12, 11, 10], "the others of the host go on");
    let wait = scheduler.wait_of(JobId(9), 0).unwrap();
    let Wait::Datastore { until_ms, .. } = wait else { panic!("{wait}") };
    assert_eq!(
        wait.to_string(),
        format!("datastore bad: failed, tried again from {} on", utc_moment(until_ms))
    );
    assert_eq!(wait.kind(), "datastore");
    [12, 11, 10].iter().for_each(|id| arrive(&mut scheduler, *id));
    assert_eq!(admitted(&mut scheduler), [0; 0]);
    assert!((BACKOFF_MS / 2..=BACKOFF_MS).contains(&scheduler.next_event_ms(0).unwrap()));
    let now = BACKOFF_MS;
    let tried = admitted_at(&mut scheduler, now);
    assert_eq!(tried.len(), 1);
    assert!(matches!(scheduler.wait_of(JobId(9), now), Some(Wait::Datastore { until_ms: u64::MAX, .. })));
    scheduler.finished(JobId(tried[0]), Ended::Arrived, now);
    let next = admitted_at(&mut scheduler, now);
    assert_eq!(next.len(), 3);
    next.iter().for_each(|id| arrive(&mut scheduler, *id));
    assert_eq!(run_with(&mut scheduler, &[]), 0);
}

#[test]
fn a_second_datastore_that_fails_is_the_hosts_failure_and_so_is_what_is_of_no_datastore() {
    let jobs = |datastores: &[&str]| -> Vec<Job> {
        let of = |(gib, name): (u64, &&str)| at("a", &[name], 9 + gib);
        (0..12).zip(datastores.iter().cycle()).map(of).collect()
    };
    // One datastore alone tells it from no other.
    let mut scheduler = of(&jobs(&["x"]), 20, 200);
    run_with(&mut scheduler, &["x"]);
    assert!(ended(&scheduler, "x", Ended::HostFailed) > 0);
    // Both fail: one failure, or three, count for the first of them.
    let mut scheduler = of(&jobs(&["x", "y"]), 20, 200);
    let failures = run_with(&mut scheduler, &["x", "y"]);
    let quarantine = scheduler.quarantine(&[Resource::Host("a".into())].into());
    assert!(quarantine[0].to_string().ends_with("and it was left alone; not read: x, y"), "{quarantine:?}");
    assert!(ended(&scheduler, "y", Ended::HostFailed) > 0);
    assert!(failures < 30, "{failures}");
    assert_eq!(scheduler.hosts[0].breaker.permit(0), Permit::Never);
    // A connection is the host's, whatever its datastores do.
    let mut scheduler = of(&jobs(&["x", "y"]), 20, 200);
    for id in &admitted(&mut scheduler)[..3] {
        fails_at(&mut scheduler, *id, None, 0);
    }
    assert!(scheduler.hosts[0].breaker.is_open() && !scheduler.datastores[0].breaker.is_open());
    // Two of three fail, and VMs of the third arrive: it is not the host.
    let mut scheduler = Scheduler::new(Budgets { order: Order::Arrival, ..Budgets::default() });
    scheduler.add(Tenant(0), jobs(&["x", "z", "y", "z"]), 0);
    assert_eq!(admitted(&mut scheduler).len(), 12);
    for first in [0, 4, 8] {
        fails_at(&mut scheduler, first, Some("x"), 0);
        arrive(&mut scheduler, first + 1);
        fails_at(&mut scheduler, first + 2, Some("y"), 0);
        arrive(&mut scheduler, first + 3);
    }
    assert_eq!(scheduler.hosts[0].breaker.failures(), 0);
}

#[test]
fn a_datastore_that_each_try_fails_is_tried_as_often_as_a_host() {
    let bad: Vec<Job> = (0..20).map(|gib| at("a", &["bad"], 90 + gib)).collect();
    let mut scheduler = of(&[bad, vec![at("a", &["good"], 1)]].concat(), 1, 200);
    let failures = run_with(&mut scheduler, &["bad"]);
    assert_eq!(failures as u32, FAILURES_MAX + HOST_TRIES);
    assert_eq!(ended(&scheduler, "good", Ended::Arrived), 1);
}
