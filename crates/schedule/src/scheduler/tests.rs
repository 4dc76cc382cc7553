use std::collections::{BTreeSet, VecDeque};

use drover_types::{IfFailed, Wave, WaveWindow, Windows, utc_moment};
use proptest::prelude::*;

use super::*;
use crate::breaker::{BACKOFF_MS_MAX, FAILURES_MAX};
use crate::job::{Disk, Group, Window};
use crate::wait::Wait;

mod again;
mod hosts;
mod limits;
mod targets;
mod waves;

fn job(host: &str, disks: usize, bytes: u64, priority: i32) -> Job {
    let disk = Disk { bytes: bytes << 30, datastore: "ds".into(), pool: None };
    let name = format!("{host}-{bytes}");
    Job { name, host: host.into(), disks: vec![disk; disks], priority, ..Job::default() }
}

fn of(jobs: &[Job], vms_per_host: u32, disks: u32) -> Scheduler {
    let mut scheduler = Scheduler::new(Budgets { vms_per_host, disks, ..Budgets::default() });
    scheduler.add(Tenant(0), jobs.to_vec(), 0);
    scheduler
}

fn admitted_at(scheduler: &mut Scheduler, now_ms: u64) -> Vec<u64> {
    std::iter::from_fn(|| scheduler.next(now_ms)).map(|it| it.job.0).collect()
}

fn admitted(scheduler: &mut Scheduler) -> Vec<u64> {
    admitted_at(scheduler, 0)
}

/// A job fails because of its host; gives when it is tried again.
fn fails(scheduler: &mut Scheduler, id: u64, now_ms: u64) -> Option<u64> {
    fails_at(scheduler, id, None, now_ms)
}

/// A job fails because of its host, or because of this datastore.
fn fails_at(scheduler: &mut Scheduler, id: u64, datastore: Option<&str>, now_ms: u64) -> Option<u64> {
    let again = scheduler.host_failed(JobId(id), datastore, now_ms);
    assert!(scheduler.is_running(JobId(id)), "it holds its slots until it is undone");
    if again {
        return Some(scheduler.retry(JobId(id), now_ms));
    }
    scheduler.finished(JobId(id), Ended::Failed, now_ms);
    None
}

fn arrive(scheduler: &mut Scheduler, id: u64) {
    scheduler.finished(JobId(id), Ended::Arrived, 0);
}

#[test]
fn priority_goes_first_then_size_then_the_order_of_the_list() {
    let jobs = [job("a", 1, 5, 0), job("a", 1, 9, 0), job("a", 1, 1, 7), job("a", 1, 9, 0)];
    assert_eq!(admitted(&mut of(&jobs, 20, 8)), [2, 1, 3, 0]);
}

#[test]
fn an_earlier_deadline_goes_before_a_greater_size() {
    let late = Job { deadline_ms: Some(9000), ..job("a", 1, 9, 0) };
    let early = Job { deadline_ms: Some(1000), ..job("a", 1, 1, 0) };
    assert_eq!(admitted(&mut of(&[job("a", 1, 50, 0), late, early], 20, 8)), [2, 1, 0]);
}

#[test]
fn passes_go_round_however_large_a_vm_is_or_how_soon_it_is_back() {
    let mut scheduler = of(&[job("a", 1, 9, 5), job("a", 1, 8, 0), job("a", 1, 1, 0)], 20, 1);
    let mut order = Vec::new();
    for _ in 0..9 {
        let id = scheduler.next(0).unwrap().job;
        order.push(id.0);
        // Its next pass is due at once.
        scheduler.park(id, 0);
        scheduler.wake(id, false, 0);
    }
    assert_eq!(order, [0, 1, 2, 0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_job_without_room_at_its_target_lets_others_go_and_asks_again_at_its_old_place() {
    let mut scheduler = of(&[job("a", 1, 9, 0), job("a", 1, 8, 0), job("a", 1, 1, 0)], 1, 8);
    assert_eq!(admitted(&mut scheduler), [0]);
    let plans = vec!["x".into()];
    let room = Wait::Room { place: "/vms".into(), needs_bytes: 9, free_bytes: 10, promised_bytes: 4, plans };
    scheduler.lacks_room(JobId(0), room.clone(), 1000, 0);
    assert_eq!(scheduler.wait_of(JobId(0), 0), Some(room));
    assert_eq!(admitted_at(&mut scheduler, 999), [1], "it holds nothing");
    assert_eq!(scheduler.next_event_ms(999), Some(1000));
    assert_eq!(admitted_at(&mut scheduler, 1000), [0; 0]);
    assert_eq!(scheduler.wait_of(JobId(0), 1000).map(|wait| wait.kind()), Some("host_vms"));
    arrive(&mut scheduler, 1);
    assert_eq!(admitted_at(&mut scheduler, 1000), [0], "before the third");
    // One of which it is not known yet waits until that is told.
    scheduler.lacks_room(JobId(0), Wait::RoomUntold { place: "/vms".into() }, u64::MAX, 1000);
    assert_eq!((admitted_at(&mut scheduler, 9000), scheduler.next_event_ms(9000)), (vec![2], None));
    scheduler.lacks_room(JobId(0), Wait::RoomUntold { place: "/vms".into() }, 9500, 9000);
    scheduler.finds_room(JobId(0), 9000);
    scheduler.finds_room(JobId(0), 9000);
    arrive(&mut scheduler, 2);
    assert_eq!(admitted_at(&mut scheduler, 9000), [0]);
}

#[test]
fn a_full_host_does_not_hold_back_the_others() {
    let mut scheduler = of(&[job("a", 1, 9, 0), job("a", 1, 8, 0), job("b", 1, 1, 0)], 1, 8);
    assert_eq!(admitted(&mut scheduler), [0, 2]);
    assert_eq!((scheduler.running(), scheduler.waiting()), (2, 1));
    let wait = scheduler.wait_of(JobId(1), 0).unwrap();
    assert_eq!(wait.to_string(), "a: 1 of 1 VMs at once");
    arrive(&mut scheduler, 0);
    assert_eq!(admitted(&mut scheduler), [1]);
    assert_eq!(scheduler.wait_of(JobId(1), 0), None);
}

#[test]
fn a_vm_with_many_disks_is_not_overtaken_for_ever() {
    let mut scheduler = of(&[job("a", 3, 9, 1), job("b", 4, 8, 0), job("c", 1, 1, 0)], 20, 4);
    assert_eq!(admitted(&mut scheduler), [0], "the one-disk VM would fit, but it is not its turn");
    arrive(&mut scheduler, 0);
    assert_eq!(admitted(&mut scheduler), [1]);
}

#[test]
fn while_one_waits_for_disks_an_urgent_one_goes_first_and_more_disks_let_it_go() {
    let mut scheduler = of(&[job("a", 3, 9, 1), job("b", 4, 8, 0)], 20, 4);
    assert_eq!(admitted(&mut scheduler), [0]);
    scheduler.add(Tenant(0), vec![job("c", 1, 1, 9)], 0);
    assert_eq!(admitted(&mut scheduler), [2]);
    scheduler.set_budgets(Budgets { disks: 8, ..scheduler.budgets().clone() });
    assert_eq!(admitted(&mut scheduler), [1]);
}

#[test]
fn a_vm_with_more_disks_than_the_budget_goes_alone_until_its_last_ones() {
    let mut scheduler = of(&[job("a", 10, 9, 0), job("b", 1, 1, 0)], 20, 4);
    assert_eq!(scheduler.next(0), Some(Admission { job: JobId(0), slots: 4 }));
    (0..6).for_each(|disk| scheduler.disk_finished(JobId(0), disk));
    // Told twice.
    scheduler.disk_finished(JobId(0), 5);
    assert_eq!(scheduler.next(0), None, "four disks are left for four slots");
    scheduler.disk_finished(JobId(0), 6);
    assert_eq!(admitted(&mut scheduler), [1]);
}

#[test]
fn a_host_serves_no_more_disks_than_it_may_also_if_that_changes() {
    let mut scheduler = of(&[job("a", 2, 9, 0), job("a", 2, 8, 0), job("b", 1, 1, 0)], 20, 8);
    let tight = |disks| HostLimits { disks: Some(disks), ..HostLimits::default() };
    scheduler.set_host("a", tight(3));
    assert_eq!(admitted(&mut scheduler), [0, 2]);
    assert_eq!(
        scheduler.wait_of(JobId(1), 0),
        Some(Wait::HostDisks { host: "a".into(), held: 2, of: 3, needs: 2 })
    );
    scheduler.set_host("a", tight(4));
    assert_eq!(admitted(&mut scheduler), [1]);
    // What is held beyond a smaller budget comes back by itself.
    scheduler.set_host("a", tight(1));
    assert_eq!(scheduler.usage_of("a").map(|it| (it.disks, it.disks_max)), Some((4, 1)));
    arrive(&mut scheduler, 0);
    arrive(&mut scheduler, 1);
    assert_eq!(scheduler.usage_of("a").map(|it| it.disks), Some(0));
}

#[test]
fn a_datastore_serves_no_more_disks_than_it_may_whatever_host_they_belong_to() {
    let mut scheduler = of(&[job("a", 2, 9, 0), job("b", 1, 8, 0)], 20, 8);
    scheduler.set_datastore("ds", Some(2));
    assert_eq!(admitted(&mut scheduler), [0]);
    assert_eq!(scheduler.wait_of(JobId(1), 0).unwrap().to_string(), "datastore ds: 2 of 2 disks at once");
    scheduler.disk_finished(JobId(0), 1);
    assert_eq!(admitted(&mut scheduler), [1]);
}

#[test]
fn a_parked_vm_holds_nothing_and_goes_first_when_its_guest_waits() {
    let mut scheduler = of(&[job("a", 2, 9, 0), job("a", 2, 8, 0), job("a", 2, 7, 0)], 1, 2);
    for id in 0..3 {
        assert_eq!(admitted(&mut scheduler), [id]);
        scheduler.park(JobId(id), 0);
    }
    scheduler.wake(JobId(0), false, 0);
    scheduler.wake(JobId(2), true, 0);
    assert_eq!(admitted(&mut scheduler), [2]);
    arrive(&mut scheduler, 2);
    assert_eq!(admitted(&mut scheduler), [0]);
}

#[test]
fn a_vm_that_is_put_back_gets_its_old_place() {
    let mut scheduler = of(&[job("a", 1, 9, 0), job("a", 1, 8, 0)], 1, 8);
    assert_eq!(admitted(&mut scheduler), [0]);
    scheduler.requeue(JobId(0), 0);
    assert_eq!((scheduler.waiting(), scheduler.running()), (2, 0));
    assert_eq!(admitted(&mut scheduler), [0]);
}

#[test]
fn a_guest_that_is_about_to_go_down_keeps_its_place_while_other_processes_have_its_slots() {
    let mut scheduler = of(&[job("a", 1, 9, 0), job("a", 1, 8, 0)], 1, 8);
    assert_eq!(admitted(&mut scheduler), [0]);
    scheduler.park(JobId(0), 0);
    scheduler.wake(JobId(0), true, 0);
    for _ in 0..2 {
        assert_eq!(admitted(&mut scheduler), [0], "before one that had no turn yet");
        scheduler.requeue(JobId(0), 0);
    }
}

#[test]
fn slots_go_where_most_is_left_for_each_that_works_on_it() {
    // Host a has three times as much to do as host b; six slots are to be had.
    let jobs: Vec<Job> =
        (0..30).map(|_| job("a", 1, 10, 0)).chain((0..10).map(|_| job("b", 1, 10, 0))).collect();
    let mut scheduler = of(&jobs, 20, 8);
    admitted(&mut scheduler);
    let disks = |host| scheduler.usage_of(host).unwrap().disks;
    assert_eq!((disks("a"), disks("b")), (6, 2));
}

#[test]
fn what_earlier_runs_measured_of_a_datastore_decides_the_order() {
    let of = |datastore: &str, bytes| {
        let mut job = job("a", 1, bytes, 0);
        job.disks[0].datastore = datastore.into();
        job
    };
    let mut scheduler = self::of(&[of("slow", 5), of("slow", 5), of("fast", 9)], 20, 8);
    let mut assumed = scheduler.clone();
    assert_eq!(admitted(&mut assumed)[0], 2, "the longest, where both are as fast");
    scheduler.set_datastore_rate("slow", 10 << 20);
    assert_eq!(admitted(&mut scheduler), [0, 1, 2]);
}

#[test]
fn one_plan_goes_as_its_vms_do_in_several() {
    let jobs: Vec<Job> = (0..80).map(|at| job(&format!("h{}", at % 3), 1, 1 + at % 17, 0)).collect();
    let mut one = of(&jobs, 4, 9);
    let mut several = Scheduler::new(Budgets { vms_per_host: 4, disks: 9, ..Budgets::default() });
    for (tenant, part) in jobs.chunks(10).enumerate() {
        several.add(Tenant(tenant as u64), part.to_vec(), 0);
    }
    while !one.is_done() {
        let (a, b) = (admitted(&mut one), admitted(&mut several));
        assert_eq!(a, b);
        for id in a {
            arrive(&mut one, id);
            arrive(&mut several, id);
        }
    }
    assert!(several.is_done());
}

#[test]
fn nobody_is_overtaken_for_ever_by_those_that_come_later() {
    let mut scheduler = of(&[job("a", 1, 1, 0)], 1, 1);
    scheduler.add(Tenant(1), vec![job("a", 1, 9, 5)], 0);
    let mut overtaken = 0;
    loop {
        let id = scheduler.next(0).unwrap().job;
        if id == JobId(0) {
            break;
        }
        overtaken += 1;
        scheduler.add(Tenant(1), vec![job("a", 1, 9, 5)], 0);
        arrive(&mut scheduler, id.0);
    }
    assert_eq!(overtaken, OVERTAKEN_MAX + 8);
}

/// Host, disks, GiB of each, and priority.
fn any_small(priority: std::ops::Range<i32>) -> impl Strategy<Value = Job> {
    (0u8..3, 1usize..4, 1u64..50, priority)
        .prop_map(|(host, disks, gib, priority)| job(&format!("h{host}"), disks, gib, priority))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn however_urgent_those_are_that_come_later_nobody_starves(
        first in prop::collection::vec(any_small(-2..3), 1..20),
        later in prop::collection::vec(any_small(3..9), 1..20),
        (vms_per_host, disks) in (1u32..4, 3u32..6),
    ) {
        let mut scheduler = of(&first, vms_per_host, disks);
        // Each is due after so many, and then waits for those that run.
        let most = OVERTAKEN_MAX + 8 * first.len() as u64 + (first.len() as u64 + 1) * u64::from(disks);
        let mut left: BTreeSet<u64> = (0..first.len() as u64).collect();
        let (mut running, mut admissions) = (VecDeque::new(), 0);
        let mut newcomers = later.iter().cycle();
        while !left.is_empty() {
            while let Some(admission) = scheduler.next(0) {
                admissions += 1;
                left.remove(&admission.job.0);
                running.push_back(admission.job);
            }
            prop_assert!(admissions <= most, "{:?} wait after {} others of {}", left, admissions, most);
            if let Some(id) = running.pop_front() {
                scheduler.finished(id, Ended::Arrived, 0);
            }
            scheduler.add(Tenant(1), newcomers.next().cloned().into_iter().collect(), 0);
        }
    }
}

#[test]
fn vms_start_in_their_windows_only_and_too_late_is_told() {
    let window = |from_ms, to_ms| Job { windows: vec![Window { from_ms, to_ms }], ..job("a", 1, 9, 0) };
    let mut scheduler = of(&[window(100, 200), window(300, 400), window(0, 50)], 1, 8);
    assert_eq!(admitted(&mut scheduler), [2]);
    assert_eq!(scheduler.wait_of(JobId(0), 0), Some(window_wait(100)));
    assert_eq!(scheduler.next_event_ms(0), Some(100));
    // The host is busy until the first one's window has closed.
    scheduler.finished(JobId(2), Ended::Arrived, 250);
    assert_eq!(admitted_at(&mut scheduler, 250), [0; 0]);
    assert_eq!(scheduler.take_given_up(), [(JobId(0), Ended::TooLate)]);
    assert_eq!(admitted_at(&mut scheduler, 300), [1]);
    scheduler.finished(JobId(1), Ended::Arrived, 500);
    assert!(scheduler.is_done());
}

#[test]
fn two_of_an_anti_affinity_never_run_at_once() {
    let node = || Job { anti_affinity: Some("db".into()), ..job("a", 1, 9, 0) };
    let mut scheduler = of(&[node(), node(), job("a", 1, 1, 0)], 20, 8);
    assert_eq!(admitted(&mut scheduler), [0, 2]);
    let other = scheduler.job(JobId(0)).unwrap().name.clone();
    assert_eq!(scheduler.wait_of(JobId(1), 0), Some(Wait::AntiAffinity { other }));
    arrive(&mut scheduler, 0);
    assert_eq!(admitted(&mut scheduler), [1]);
}

#[test]
fn a_pair_waits_until_the_other_has_arrived_and_not_only_until_it_is_copied() {
    let node = |is_warm| Job { anti_affinity: Some("db".into()), is_warm, ..job("a", 1, 9, 0) };
    let mut cold = of(&[node(false), node(false)], 20, 8);
    assert_eq!(admitted(&mut cold), [0]);
    cold.park(JobId(0), 0);
    assert_eq!(admitted(&mut cold), [0; 0], "its guest is down until it runs at the target");
    arrive(&mut cold, 0);
    assert_eq!(admitted(&mut cold), [1]);

    let mut warm = of(&[node(true), node(true)], 20, 8);
    assert_eq!(admitted(&mut warm), [0]);
    warm.park(JobId(0), 0);
    assert_eq!(admitted(&mut warm), [1], "between passes its guest runs");
    warm.park(JobId(1), 0);
    warm.wake(JobId(0), true, 0);
    assert_eq!(admitted(&mut warm), [0]);
    warm.ask_cutover(JobId(0), 0).unwrap();
    warm.park(JobId(0), 0);
    warm.wake(JobId(1), true, 0);
    assert_eq!(admitted(&mut warm), [0; 0]);
    warm.cutover_over(JobId(0));
    assert_eq!(admitted(&mut warm), [1], "it moves over no more");
}

fn staged(stage: u32, is_warm: bool) -> Job {
    let group = Some(Group { name: "shop".into(), stage });
    Job { group, is_warm, ..job("a", 1, 9, 0) }
}

#[test]
fn stages_of_a_group_go_in_order_and_a_failure_ends_the_later_ones() {
    let jobs = [staged(1, false), staged(0, false), staged(0, false), staged(2, false)];
    let mut scheduler = of(&jobs, 20, 8);
    assert_eq!(admitted(&mut scheduler), [1, 2]);
    arrive(&mut scheduler, 1);
    assert_eq!(admitted(&mut scheduler), [0; 0]);
    assert_eq!(scheduler.wait_of(JobId(0), 0).unwrap().to_string(), "stage 0 of group shop");
    arrive(&mut scheduler, 2);
    assert_eq!(admitted(&mut scheduler), [0]);
    scheduler.finished(JobId(0), Ended::Failed, 0);
    assert_eq!(scheduler.take_given_up(), [(JobId(3), Ended::GroupFailed)]);
    assert!(scheduler.is_done());
}

#[test]
fn warm_vms_of_a_stage_move_over_together_and_as_many_at_once_as_may() {
    let jobs = [staged(0, true), staged(0, true), job("a", 1, 9, 0)];
    let mut scheduler = of(&jobs, 20, 8);
    scheduler.set_budgets(Budgets { cutovers: 1, ..scheduler.budgets().clone() });
    assert_eq!(admitted(&mut scheduler).len(), 3);
    assert_eq!(scheduler.ask_cutover(JobId(0), 0), Err(Wait::Together { group: "shop".into(), left: 1 }));
    assert_eq!(scheduler.ask_cutover(JobId(2), 0), Ok(()), "a group that waits holds up nobody");
    assert_eq!(scheduler.ask_cutover(JobId(1), 0), Err(Wait::Cutovers { held: 1, of: 1 }));
    scheduler.cutover_over(JobId(2));
    assert!(
        matches!(scheduler.ask_cutover(JobId(1), 0), Err(Wait::Cutovers { .. })),
        "the first one asked before"
    );
    assert_eq!(scheduler.ask_cutover(JobId(0), 0), Ok(()));
    arrive(&mut scheduler, 0);
    assert_eq!(scheduler.ask_cutover(JobId(1), 0), Ok(()));
}

#[test]
fn slots_that_other_processes_hold_are_not_given() {
    let mut scheduler = of(&[job("a", 1, 9, 0), job("a", 1, 8, 0)], 2, 8);
    scheduler.set_elsewhere("a", 1);
    assert_eq!(admitted(&mut scheduler), [0]);
    let wait = scheduler.wait_of(JobId(1), 0).unwrap();
    assert_eq!(wait.to_string(), "a: 2 VMs at once, other processes have them");
    scheduler.set_elsewhere("a", 0);
    assert_eq!(admitted(&mut scheduler), [1]);
}

#[test]
fn a_tenant_is_forgotten_with_all_it_had() {
    let mut scheduler = of(&[staged(0, false), staged(1, false), job("a", 1, 8, 0)], 1, 8);
    let [id] = admitted(&mut scheduler)[..] else { panic!("one VM fits") };
    scheduler.withdraw(Tenant(0), 0);
    arrive(&mut scheduler, id);
    scheduler.take_given_up();
    scheduler.forget(Tenant(0));
    assert!(scheduler.is_done() && scheduler.jobs.is_empty());
    assert_eq!(scheduler.wait_of(JobId(0), 0), None);
    assert_eq!(scheduler.usage_of("a").map(|it| (it.vms, it.disks, it.waiting)), Some((0, 0, 0)));
}

fn window_wait(opens_ms: u64) -> Wait {
    Wait::Window { opens_ms, opens: utc_moment(opens_ms) }
}

fn wave(name: &str, after: &[&str], if_failed: IfFailed) -> Wave {
    let after = after.iter().map(|it| it.to_string()).collect();
    Wave { name: name.into(), after, if_failed, window: WaveWindow::default() }
}

fn in_wave(name: &str, job: Job) -> Job {
    Job { wave: Some(name.into()), ..job }
}

#[test]
fn a_tenant_keeps_to_its_own_limits_and_holds_up_nobody_else() {
    let mut scheduler = Scheduler::new(Budgets { vms_per_host: 6, disks: 8, ..Budgets::default() });
    scheduler.set_tenant(Tenant(1), TenantLimits { vms_per_host: Some(2), disks: Some(3), cutovers: None });
    // Those of the limited one are larger, so they go first.
    scheduler.add(
        Tenant(1),
        vec![job("a", 2, 9, 0), job("a", 2, 8, 0), job("a", 1, 7, 0), job("b", 1, 6, 0)],
        0,
    );
    scheduler.add(Tenant(2), vec![job("a", 1, 1, 0), job("a", 1, 1, 0), job("b", 1, 1, 0)], 0);
    let first = admitted(&mut scheduler);
    assert_eq!(first.iter().filter(|id| **id < 4).collect::<Vec<_>>(), [&0], "the next one needs two disks");
    assert_eq!(first.len(), 4, "all of the other tenant");
    assert_eq!(
        scheduler.wait_of(JobId(1), 0),
        Some(Wait::OwnDisks { held: 2, of: 3, needs: 2 }),
        "smaller ones of its tenant do not go before it"
    );
    scheduler.disk_finished(JobId(0), 0);
    assert_eq!(admitted(&mut scheduler), [1]);
    scheduler.disk_finished(JobId(0), 1);
    assert_eq!(
        scheduler.wait_of(JobId(2), 0).unwrap().to_string(),
        "a: 2 of 2 VMs of this plan at once",
        "it holds its VM until it is over"
    );
    assert_eq!(admitted(&mut scheduler), [3], "at another host there is room");
    arrive(&mut scheduler, 0);
    arrive(&mut scheduler, 3);
    assert_eq!(admitted(&mut scheduler), [2]);
}

#[test]
fn a_host_that_was_given_up_is_tried_again_for_who_comes_anew() {
    let mut scheduler = of(&(0..20).map(|_| job("a", 1, 9, 0)).collect::<Vec<_>>(), 3, 20);
    let mut now = 0;
    while !scheduler.is_done() {
        now = scheduler.next_event_ms(now).unwrap_or(now + BACKOFF_MS_MAX);
        for id in admitted_at(&mut scheduler, now) {
            fails(&mut scheduler, id, now);
        }
    }
    scheduler.forget(Tenant(0));
    scheduler.take_given_up();
    let late = scheduler.add(Tenant(1), vec![job("a", 1, 9, 0)], now);
    assert_eq!(scheduler.take_given_up(), [(late[0], Ended::HostFailed)]);
    scheduler.try_again("a");
    let again = scheduler.add(Tenant(2), vec![job("a", 1, 9, 0)], now);
    assert_eq!(scheduler.next(now).map(|it| it.job), Some(again[0]));
}

#[test]
fn one_that_makes_a_pass_before_it_moves_over_keeps_its_place_and_holds_up_nobody() {
    let mut scheduler = of(&[job("a", 1, 9, 0), job("a", 1, 9, 0), job("a", 1, 9, 0)], 20, 8);
    scheduler.set_budgets(Budgets { cutovers: 1, ..scheduler.budgets().clone() });
    let full = Err(Wait::Cutovers { held: 1, of: 1 });
    assert_eq!(scheduler.ask_cutover(JobId(0), 0), Ok(()));
    assert_eq!(scheduler.ask_cutover(JobId(1), 0), full);
    assert_eq!(scheduler.ask_cutover(JobId(2), 0), full);
    let mut other = scheduler.clone();
    scheduler.pause_cutover(JobId(1));
    arrive(&mut scheduler, 0);
    assert_eq!(scheduler.ask_cutover(JobId(2), 0), Ok(()), "the first one is at its pass");
    other.pause_cutover(JobId(1));
    assert_eq!(other.ask_cutover(JobId(1), 0), full);
    arrive(&mut other, 0);
    assert_eq!(other.ask_cutover(JobId(2), 0), Err(Wait::Cutovers { held: 0, of: 1 }), "it is first again");
    assert_eq!(other.ask_cutover(JobId(1), 0), Ok(()));
}

#[test]
fn one_that_gives_its_place_back_for_a_pass_is_the_next_after_it() {
    let mut scheduler = of(&[job("a", 1, 9, 0), job("a", 1, 9, 0), job("a", 1, 9, 0)], 20, 8);
    scheduler.set_budgets(Budgets { cutovers: 1, ..scheduler.budgets().clone() });
    assert_eq!(scheduler.ask_cutover(JobId(0), 0), Ok(()));
    let full = Err(Wait::Cutovers { held: 1, of: 1 });
    assert_eq!([1, 2].map(|id| scheduler.ask_cutover(JobId(id), 0)), [full.clone(), full.clone()]);
    scheduler.give_back_cutover(JobId(0));
    scheduler.give_back_cutover(JobId(0));
    assert_eq!(scheduler.ask_cutover(JobId(1), 0), Ok(()), "the first one is at its pass");
    assert_eq!(scheduler.ask_cutover(JobId(0), 0), full);
    arrive(&mut scheduler, 1);
    assert!(scheduler.ask_cutover(JobId(2), 0).is_err(), "the other asked before");
    assert_eq!(scheduler.ask_cutover(JobId(0), 0), Ok(()));
}

#[test]
fn a_tenant_without_room_of_its_own_does_not_close_the_host_to_others() {
    let mut scheduler = of(&[], 20, 20);
    scheduler.set_host("a", HostLimits { disks: Some(3), ..HostLimits::default() });
    scheduler.set_tenant(Tenant(1), TenantLimits { disks: Some(3), ..TenantLimits::default() });
    scheduler.add(Tenant(1), vec![job("a", 2, 9, 5), job("a", 2, 8, 5)], 0);
    scheduler.add(Tenant(2), vec![job("a", 1, 1, 0)], 0);
    assert_eq!(
        admitted(&mut scheduler),
        [0, 2],
        "neither the tenant nor the host has room for two more disks"
    );
}

#[test]
fn a_tenant_moves_over_as_many_at_once_as_its_own_limit_lets_and_holds_up_nobody_elses() {
    let warm = |host: &str| Job { is_warm: true, ..job(host, 1, 9, 0) };
    let mut scheduler = of(&[], 20, 20);
    scheduler.set_budgets(Budgets { cutovers: 3, ..scheduler.budgets().clone() });
    scheduler.set_tenant(Tenant(1), TenantLimits { cutovers: Some(1), ..TenantLimits::default() });
    scheduler.add(Tenant(1), vec![warm("a"), warm("a"), warm("a")], 0);
    scheduler.add(Tenant(2), vec![warm("b"), warm("b"), warm("b")], 0);
    assert_eq!(admitted(&mut scheduler).len(), 6);
    assert_eq!(scheduler.ask_cutover(JobId(0), 0), Ok(()));
    let own_full = Wait::OwnCutovers { held: 1, of: 1 };
    assert_eq!(scheduler.ask_cutover(JobId(1), 0), Err(own_full.clone()));
    assert_eq!(scheduler.ask_cutover(JobId(2), 0), Err(own_full.clone()));
    assert_eq!(scheduler.wait_of(JobId(2), 0), Some(own_full));
    assert_eq!(scheduler.ask_cutover(JobId(3), 0), Ok(()), "they asked before and may not: they count not");
    assert_eq!(scheduler.ask_cutover(JobId(4), 0), Ok(()));
    let full = Wait::Cutovers { held: 3, of: 3 };
    assert_eq!(scheduler.ask_cutover(JobId(5), 0), Err(full.clone()));
    assert_eq!(scheduler.wait_of(JobId(5), 0), Some(full));
    scheduler.finished(JobId(0), Ended::Arrived, 0);
    let later = scheduler.ask_cutover(JobId(5), 0);
    assert!(matches!(later, Err(Wait::Cutovers { .. })), "one of them may now, and asked before: {later:?}");
    assert!(scheduler.ask_cutover(JobId(2), 0).is_err(), "another of its tenant asked before");
    assert_eq!(scheduler.ask_cutover(JobId(1), 0), Ok(()));
}

#[test]
fn held_cutovers_wait_until_somebody_lets_them_go_and_a_guest_that_is_down_does_not() {
    let mut scheduler = of(&[], 20, 20);
    let warm = |goes_on| Job { is_warm: true, goes_on, ..job("a", 1, 9, 0) };
    scheduler.add(Tenant(1), vec![warm(false), warm(true)], 0);
    assert_eq!(admitted(&mut scheduler).len(), 2);
    assert!(!scheduler.are_cutovers_held());
    scheduler.hold_cutovers(true);
    assert!(scheduler.are_cutovers_held() && !scheduler.asks_cutover());
    let held = Wait::Cutovers { held: 0, of: 0 };
    assert_eq!(held.to_string(), "leave to move over");
    assert_eq!(scheduler.ask_cutover(JobId(0), 0), Err(held.clone()));
    assert_eq!(scheduler.wait_of(JobId(0), 0), Some(held));
    assert!(scheduler.asks_cutover());
    scheduler.hold_cutovers(false);
    assert!(!scheduler.hold_unless_asked(), "it asks");
    scheduler.hold_cutovers(true);
    scheduler.pause_cutover(JobId(0));
    assert!(!scheduler.asks_cutover(), "it makes another pass");
    scheduler.hold_cutovers(false);
    assert!(scheduler.hold_unless_asked());
    assert_eq!(scheduler.ask_cutover(JobId(1), 0), Ok(()), "its guest is down");
    assert!(scheduler.ask_cutover(JobId(0), 0).is_err());
    scheduler.hold_cutovers(false);
    assert_eq!(scheduler.ask_cutover(JobId(0), 0), Ok(()));
}
