//! Limits that change while jobs run.

use super::*;

/// Ends one of those that run, and gives how many run afterwards and how many began because of it.
fn one_ends(scheduler: &mut Scheduler, running: &mut Vec<u64>) -> usize {
    arrive(scheduler, running.remove(0));
    let begun = admitted(scheduler);
    running.extend(&begun);
    begun.len()
}

/// Sets the limits of tenant 0 one way or the other: as the budgets of all, or as its own within larger ones.
fn limit(scheduler: &mut Scheduler, is_alone: bool, vms_per_host: u32, disks: u32) {
    let own = Budgets { vms_per_host, disks, ..scheduler.budgets().clone() };
    match is_alone {
        true => scheduler.set_budgets(own),
        false => {
            let limits = TenantLimits::within(&own, &Budgets { vms_per_host: 20, disks: 20, ..own.clone() });
            scheduler.set_tenant(Tenant(0), limits);
        }
    }
}

#[test]
fn fewer_disks_let_nothing_begin_until_those_above_have_ended_and_more_begin_at_once() {
    for is_alone in [true, false] {
        // So many that none is long for its host.
        let jobs: Vec<Job> = (0..60).map(|_| job("a", 1, 9, 0)).collect();
        let mut scheduler = of(&jobs, 20, if is_alone { 6 } else { 20 });
        if !is_alone {
            limit(&mut scheduler, false, 20, 6);
        }
        let mut running = admitted(&mut scheduler);
        assert_eq!(running.len(), 6);
        limit(&mut scheduler, is_alone, 20, 2);
        assert_eq!(admitted(&mut scheduler), [0; 0], "nothing begins");
        assert_eq!(scheduler.running(), 6, "and nothing is stopped");
        for left in [5, 4, 3, 2] {
            assert_eq!((one_ends(&mut scheduler, &mut running), running.len()), (0, left));
        }
        for _ in 0..3 {
            assert_eq!((one_ends(&mut scheduler, &mut running), running.len()), (1, 2), "never above it");
        }
        limit(&mut scheduler, is_alone, 20, 5);
        let more = admitted(&mut scheduler);
        assert_eq!(more.len(), 3, "at once");
        running.extend(more);
        while !running.is_empty() {
            one_ends(&mut scheduler, &mut running);
            assert!(running.len() <= 5);
        }
        assert!(scheduler.is_done());
    }
}

#[test]
fn fewer_vms_of_a_host_hold_for_each_host_alone() {
    for is_alone in [true, false] {
        let jobs: Vec<Job> = (0..16).map(|at| job(if at % 2 == 0 { "a" } else { "b" }, 1, 9, 0)).collect();
        let mut scheduler = of(&jobs, if is_alone { 4 } else { 20 }, 20);
        if !is_alone {
            limit(&mut scheduler, false, 4, 20);
        }
        let mut running = admitted(&mut scheduler);
        assert_eq!(running.len(), 8);
        limit(&mut scheduler, is_alone, 1, 20);
        for left in [7, 6, 5, 4, 3, 2] {
            assert_eq!((one_ends(&mut scheduler, &mut running), running.len()), (0, left));
        }
        assert_eq!(running.iter().map(|id| id % 2).sum::<u64>(), 1, "one of each");
        assert_eq!((one_ends(&mut scheduler, &mut running), running.len()), (1, 2));
        limit(&mut scheduler, is_alone, 3, 20);
        assert_eq!(admitted(&mut scheduler).len(), 4, "two more of each");
    }
}

#[test]
fn a_tenant_that_is_limited_while_it_runs_holds_up_no_other_from_then_on() {
    let jobs: Vec<Job> = (0..6).map(|_| job("a", 1, 9, 5)).collect();
    let mut scheduler = of(&jobs, 20, 4);
    assert_eq!(admitted(&mut scheduler), [0, 1, 2, 3]);
    scheduler.set_tenant(Tenant(0), TenantLimits { disks: Some(2), ..TenantLimits::default() });
    scheduler.add(Tenant(1), vec![job("a", 1, 1, 0), job("a", 1, 1, 0), job("a", 1, 1, 0)], 0);
    arrive(&mut scheduler, 0);
    assert_eq!(admitted(&mut scheduler), [6], "those of the first go before it, and may not");
    assert_eq!(scheduler.wait_of(JobId(4), 0), Some(Wait::OwnDisks { held: 3, of: 2, needs: 1 }));
    arrive(&mut scheduler, 1);
    assert_eq!(admitted(&mut scheduler), [7]);
    arrive(&mut scheduler, 2);
    assert_eq!(admitted(&mut scheduler), [4], "one below its limit");
    scheduler.set_tenant(Tenant(0), TenantLimits::default());
    assert_eq!(scheduler.tenant_limits(Tenant(0)), TenantLimits::default());
    arrive(&mut scheduler, 3);
    assert_eq!(admitted(&mut scheduler), [5], "as much as there is");
}

#[test]
fn what_was_learned_of_a_host_is_forgotten_by_order() {
    let mut scheduler = of(&(0..9).map(|_| job("a", 1, 9, 0)).collect::<Vec<_>>(), 20, 8);
    let mut learner = crate::Learner::default();
    learner.begin_host("a", 2, 2);
    scheduler.set_host("a", HostLimits { learned: Some(2), rate: Some(7), ..HostLimits::default() });
    assert_eq!(admitted(&mut scheduler).len(), 2);
    learner.forget_host(&mut scheduler, "a");
    assert_eq!(admitted(&mut scheduler).len(), 6);
    assert_eq!(scheduler.host_limits("a").rate, Some(7), "what it gives is as it was");
    learner.forget_host(&mut scheduler, "unknown");
}
