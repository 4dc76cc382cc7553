use std::collections::{BTreeSet, VecDeque};

use drover_types::{IfFailed, Wave, WaveWindow};
use proptest::prelude::*;

use super::*;
use crate::breaker::{BACKOFF_MS_MAX, FAILURES_MAX};
use crate::job::{Disk, Group, Window};
use crate::wait::Wait;

mod again;
mod hosts;

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
    assert_eq!(scheduler.wait_of(JobId(0), 0), Some(Wait::Window { opens_ms: 100 }));
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
fn nothing_of_a_wave_moves_before_what_is_to_be_called_before_it_was() {
    for goes_well in [true, false] {
        let mut scheduler = of(&[], 20, 20);
        let wave = |name: &str, after: &[&str], from_ms| Wave {
            name: name.into(),
            after: after.iter().map(ToString::to_string).collect(),
            window: WaveWindow { from_ms, ..WaveWindow::default() },
            if_failed: IfFailed::GoOn,
        };
        let waves = [wave("first", &[], Some(1000)), wave("second", &["first"], None)];
        scheduler.set_waves(Tenant(0), &waves);
        scheduler.call_before(Tenant(0), "first");
        let cold = Job { wave: Some("first".into()), ..job("a", 1, 9, 0) };
        let warm = Job { is_warm: true, ..cold.clone() };
        let down = Job { goes_on: true, ..cold.clone() };
        let later = Job { wave: Some("second".into()), ..cold.clone() };
        scheduler.add(Tenant(0), vec![cold, warm, down, later], 0);
        assert_eq!(admitted(&mut scheduler), [2, 1], "what has begun goes on, and a warm one is copied");
        scheduler.park(JobId(1), 0);
        assert_eq!(scheduler.waves_to_call(Tenant(0), 999), [""; 0], "its window is closed");
        assert_eq!(scheduler.waves_to_call(Tenant(0), 1000), ["first"]);
        assert_eq!(admitted_at(&mut scheduler, 1000), [0; 0]);
        let wait = Wait::WaveHooks { wave: "first".into() };
        assert_eq!(scheduler.wait_of(JobId(0), 1000), Some(wait.clone()));
        assert_eq!(scheduler.ask_cutover(JobId(1), 1000), Err(wait));
        scheduler.called(Tenant(0), "first", goes_well, 1000);
        assert_eq!(scheduler.waves_to_call(Tenant(0), 1000), [""; 0]);
        arrive(&mut scheduler, 2);
        if goes_well {
            assert_eq!(admitted_at(&mut scheduler, 1000), [0]);
            assert_eq!(scheduler.ask_cutover(JobId(1), 1000), Ok(()));
            continue;
        }
        assert_eq!(admitted_at(&mut scheduler, 1000), [0; 0], "the warm one has not ended");
        assert_eq!(scheduler.take_given_up(), [(JobId(0), Ended::WaveShut)]);
        assert_eq!(scheduler.never_moves_over(JobId(1), 1000), Some(Ended::WaveShut));
        scheduler.finished(JobId(1), Ended::WaveShut, 1000);
        assert_eq!(admitted_at(&mut scheduler, 1000), [3], "the next wave goes by the rule of this one");
    }
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

fn wave(name: &str, after: &[&str], if_failed: IfFailed) -> Wave {
    let after = after.iter().map(|it| it.to_string()).collect();
    Wave { name: name.into(), after, if_failed, window: WaveWindow::default() }
}

fn in_wave(name: &str, job: Job) -> Job {
    Job { wave: Some(name.into()), ..job }
}

/// Two VMs in a first wave, one in each of two that follow one another.
fn three_waves(if_failed: IfFailed) -> Scheduler {
    let mut scheduler = Scheduler::new(Budgets { vms_per_host: 20, disks: 20, ..Budgets::default() });
    let waves = [
        wave("pilot", &[], if_failed),
        wave("web", &["pilot"], IfFailed::Wait),
        wave("nobody", &["web"], IfFailed::Wait),
        wave("rest", &["nobody"], IfFailed::Wait),
    ];
    scheduler.set_waves(Tenant(0), &waves);
    let one = |name| in_wave(name, job("a", 1, 1, 0));
    scheduler.add(Tenant(0), vec![one("pilot"), one("pilot"), one("web"), one("rest")], 0);
    scheduler
}

#[test]
fn a_wave_begins_when_those_before_it_are_over_also_past_an_empty_one() {
    let mut scheduler = three_waves(IfFailed::Wait);
    assert_eq!(admitted(&mut scheduler), [0, 1]);
    assert_eq!(scheduler.wait_of(JobId(2), 0).unwrap().to_string(), "wave pilot: 2 VMs have not ended");
    arrive(&mut scheduler, 0);
    assert_eq!(admitted(&mut scheduler), [0; 0]);
    let [nobody, pilot, rest, web] = &scheduler.waves(Tenant(0), 0)[..] else { panic!("four waves") };
    assert_eq!((pilot.vms, pilot.begun, pilot.arrived, pilot.is_over()), (2, 2, 1, false));
    assert!(pilot.waits.is_none() && web.waits.is_some() && rest.waits.is_some() && nobody.is_over());
    arrive(&mut scheduler, 1);
    assert_eq!(admitted(&mut scheduler), [2]);
    assert_eq!(scheduler.wait_of(JobId(3), 0).unwrap().to_string(), "wave web: 1 VMs have not ended");
    arrive(&mut scheduler, 2);
    assert_eq!(admitted(&mut scheduler), [3]);
    arrive(&mut scheduler, 3);
    assert!(scheduler.is_done());
}

#[test]
fn after_a_failure_waves_wait_for_a_word_go_on_or_stop_as_is_wished() {
    let fail = |if_failed| {
        let mut scheduler = three_waves(if_failed);
        admitted(&mut scheduler);
        arrive(&mut scheduler, 0);
        scheduler.finished(JobId(1), Ended::Failed, 0);
        scheduler
    };
    let mut waiting = fail(IfFailed::Wait);
    assert_eq!(admitted(&mut waiting), [0; 0]);
    assert_eq!(waiting.wait_of(JobId(2), 0), Some(Wait::WaveFailed { wave: "pilot".into(), failed: 1 }));
    assert!(!waiting.proceed(Tenant(0), "elsewhere", 0) && waiting.proceed(Tenant(0), "pilot", 0));
    assert_eq!(admitted(&mut waiting), [2], "and the last wave waits for this one");
    arrive(&mut waiting, 2);
    assert_eq!(admitted(&mut waiting), [3]);
    assert_eq!(admitted(&mut fail(IfFailed::GoOn)), [2]);
    let mut stopped = fail(IfFailed::Stop);
    assert_eq!(admitted(&mut stopped), [0; 0]);
    let given_up = [(JobId(2), Ended::WaveFailed), (JobId(3), Ended::WaveFailed)];
    assert_eq!(stopped.take_given_up(), given_up);
    assert!(stopped.is_done());
}

#[test]
fn a_wave_waits_for_its_window_and_is_too_late_after_it_whatever_it_waits_for() {
    let mut scheduler = Scheduler::new(Budgets::default());
    let window = WaveWindow { from_ms: Some(1000), until_ms: Some(2000), ..WaveWindow::default() };
    let waves =
        [wave("first", &[], IfFailed::Wait), Wave { window, ..wave("second", &["first"], IfFailed::Wait) }];
    scheduler.set_waves(Tenant(0), &waves);
    let jobs = vec![in_wave("first", job("a", 1, 1, 0)), in_wave("second", job("a", 1, 1, 0))];
    scheduler.add(Tenant(0), jobs.clone(), 0);
    assert_eq!(admitted(&mut scheduler), [0]);
    let mut late = scheduler.clone();
    scheduler.finished(JobId(0), Ended::Arrived, 10);
    assert_eq!(admitted_at(&mut scheduler, 10), [0; 0]);
    assert_eq!(scheduler.wait_of(JobId(1), 10), Some(Wait::Window { opens_ms: 1000 }));
    assert_eq!(scheduler.next_event_ms(10), Some(1000));
    assert_eq!(admitted_at(&mut scheduler, 1000), [1]);
    assert_eq!(late.next_event_ms(10), Some(2000));
    assert_eq!(admitted_at(&mut late, 2000), [0; 0]);
    assert_eq!(late.take_given_up(), [(JobId(1), Ended::TooLate)]);
}

#[test]
fn a_warm_vm_is_copied_before_its_wave_and_moves_over_in_it() {
    let mut scheduler = Scheduler::new(Budgets::default());
    let window = WaveWindow { from_ms: Some(1000), until_ms: Some(2000), ..WaveWindow::default() };
    let waves =
        [wave("first", &[], IfFailed::Stop), Wave { window, ..wave("second", &["first"], IfFailed::Wait) }];
    scheduler.set_waves(Tenant(0), &waves);
    let warm = Job { is_warm: true, ..job("a", 1, 1, 0) };
    scheduler.add(Tenant(0), vec![in_wave("first", job("a", 1, 1, 0)), in_wave("second", warm)], 0);
    assert_eq!(admitted(&mut scheduler).len(), 2);
    scheduler.park(JobId(1), 0);
    assert_eq!(scheduler.ask_cutover(JobId(1), 0), Err(Wait::Wave { wave: "first".into(), left: 1 }));
    let mut failed = scheduler.clone();
    scheduler.finished(JobId(0), Ended::Arrived, 5);
    assert_eq!(scheduler.ask_cutover(JobId(1), 5), Err(Wait::Window { opens_ms: 1000 }));
    assert_eq!((scheduler.next_wave_ms(5), scheduler.never_moves_over(JobId(1), 5)), (Some(1000), None));
    assert_eq!(scheduler.never_moves_over(JobId(1), 2000), Some(Ended::TooLate));
    assert_eq!(scheduler.ask_cutover(JobId(1), 1000), Ok(()));
    failed.finished(JobId(0), Ended::Failed, 5);
    assert_eq!(failed.never_moves_over(JobId(1), 5), Some(Ended::WaveFailed));
}

#[test]
fn a_long_vm_of_a_wave_to_come_narrows_nothing_now() {
    let mut scheduler = Scheduler::new(Budgets::default());
    let waves = [wave("first", &[], IfFailed::Wait), wave("second", &["first"], IfFailed::Wait)];
    scheduler.set_waves(Tenant(0), &waves);
    let small = (0..12).map(|_| in_wave("first", job("a", 1, 1, 0)));
    let jobs = small.chain([in_wave("second", job("a", 1, 500, 0))]).collect();
    scheduler.add(Tenant(0), jobs, 0);
    assert_eq!(admitted(&mut scheduler).len(), 12);
}

#[test]
fn a_tenant_keeps_to_its_own_limits_and_holds_up_nobody_else() {
    let mut scheduler = Scheduler::new(Budgets { vms_per_host: 6, disks: 8, ..Budgets::default() });
    scheduler.set_tenant(Tenant(1), TenantLimits { vms_per_host: Some(2), disks: Some(3) });
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

/// One VM in a wave that opened at 1,000 and is over at 2,000, which is after one that is not over.
fn late(job: Job) -> Scheduler {
    let mut scheduler = Scheduler::new(Budgets { cutovers: 1, ..Budgets::default() });
    let window = WaveWindow { from_ms: Some(1000), until_ms: Some(2000), ..WaveWindow::default() };
    let waves =
        [wave("first", &[], IfFailed::Wait), Wave { window, ..wave("second", &["first"], IfFailed::Wait) }];
    scheduler.set_waves(Tenant(0), &waves);
    scheduler.add(Tenant(0), vec![in_wave("second", job), in_wave("first", self::job("b", 1, 1, 0))], 3000);
    scheduler
}

#[test]
fn a_vm_whose_guest_is_down_waits_for_no_window_no_wave_and_no_cutover() {
    let down = Job { goes_on: true, windows: vec![Window { from_ms: 0, to_ms: 1 }], ..job("a", 1, 1, 0) };
    let mut scheduler = late(down.clone());
    assert_eq!(admitted_at(&mut scheduler, 3000), [0, 1], "it goes first");
    assert_eq!(scheduler.take_given_up(), []);
    let mut scheduler = late(Job { is_warm: true, ..down.clone() });
    assert_eq!(admitted_at(&mut scheduler, 3000), [0, 1], "it goes first");
    let of_others = scheduler.add(Tenant(1), vec![Job { is_warm: true, ..job("c", 1, 1, 0) }], 3000);
    assert_eq!(scheduler.ask_cutover(of_others[0], 3000), Ok(()));
    assert_eq!(
        (scheduler.wave_wait(JobId(0), 3000), scheduler.never_moves_over(JobId(0), 3000)),
        (Ok(None), None)
    );
    assert_eq!(scheduler.ask_cutover(JobId(0), 3000), Ok(()), "it is down whether it is let or not");
    // Once its guest runs again it is like all others.
    scheduler.takes_back(JobId(0));
    assert_eq!(scheduler.never_moves_over(JobId(0), 3000), Some(Ended::TooLate));
    let mut scheduler = late(down);
    assert_eq!(admitted_at(&mut scheduler, 3000).len(), 2);
    scheduler.begin_anew(JobId(0), 3000);
    assert_eq!(scheduler.take_given_up(), [(JobId(0), Ended::TooLate)]);
    assert_eq!(scheduler.ended(JobId(0)), Some(Ended::TooLate));
}

#[test]
fn a_cold_vm_that_its_host_put_back_waits_for_its_window_again() {
    let mut scheduler = Scheduler::new(Budgets::default());
    let hours = drover_types::Hours { from: 0, to: 60 };
    let window = WaveWindow { hours: Some(hours), ..WaveWindow::default() };
    scheduler.set_waves(Tenant(0), &[Wave { window, ..wave("night", &[], IfFailed::Wait) }]);
    scheduler.add(Tenant(0), vec![in_wave("night", job("a", 1, 1, 0)); 4], 0);
    assert_eq!(admitted_at(&mut scheduler, 0).len(), 4);
    let closed = 61 * 60_000;
    // Three failures in a row open the breaker of its host.
    let again: Vec<Option<u64>> =
        (0..FAILURES_MAX as u64).map(|id| fails(&mut scheduler, id, closed)).collect();
    let at = again[2].expect("the third is tried again");
    scheduler.finished(JobId(3), Ended::Arrived, closed);
    assert_eq!(scheduler.waves(Tenant(0), closed)[0].begun, 3, "one did not begin any more");
    assert_eq!(admitted_at(&mut scheduler, at), [0; 0]);
    assert_eq!(scheduler.wait_of(JobId(2), at), Some(Wait::Window { opens_ms: 86_400_000 }));
    assert_eq!(admitted_at(&mut scheduler, 86_400_000), [2]);
    assert_eq!(scheduler.waves(Tenant(0), 86_400_000)[0].begun, 4);
}

#[test]
fn a_vm_that_is_tried_again_narrows_nothing_while_it_waits_for_that() {
    let mut scheduler =
        Scheduler::new(Budgets { vms_per_host: 20, disks: 40, disks_per_host: 40, ..Budgets::default() });
    let hours = drover_types::Hours { from: 0, to: 60 };
    let window = WaveWindow { hours: Some(hours), ..WaveWindow::default() };
    scheduler.set_waves(Tenant(0), &[Wave { window, ..wave("night", &[], IfFailed::Wait) }]);
    let long = in_wave("night", job("a", 1, 100, 0));
    scheduler.add(Tenant(0), [vec![long], vec![job("a", 1, 5, 0); 40]].concat(), 0);
    let narrow = admitted(&mut scheduler);
    assert!(narrow[0] == 0 && narrow.len() < 20, "beside a long one: {narrow:?}");
    let closed = 61 * 60_000;
    narrow[3..].iter().for_each(|id| arrive(&mut scheduler, *id));
    let again = [1, 2, 0].map(|at| fails(&mut scheduler, narrow[at], closed));
    assert!(again[2].is_some(), "{again:?}");
    // One shows that the host works again.
    let later = closed + BACKOFF_MS_MAX;
    let tried = admitted_at(&mut scheduler, later);
    assert_eq!(tried.len(), 1);
    arrive(&mut scheduler, tried[0]);
    assert_eq!(scheduler.wait_of(JobId(0), later), Some(Wait::Window { opens_ms: 86_400_000 }));
    assert_eq!(admitted_at(&mut scheduler, later).len(), 20);
}

#[test]
fn a_warm_vm_that_would_move_over_tells_what_its_wave_waits_for_and_who_stopped_it() {
    let mut scheduler = Scheduler::new(Budgets::default());
    let waves = [wave("first", &[], IfFailed::Stop), wave("second", &["first"], IfFailed::Wait)];
    scheduler.set_waves(Tenant(0), &waves);
    let warm = Job { is_warm: true, ..job("a", 1, 1, 0) };
    scheduler.add(Tenant(0), vec![in_wave("second", warm), in_wave("first", job("a", 1, 1, 0))], 0);
    assert_eq!(admitted(&mut scheduler).len(), 2);
    scheduler.park(JobId(0), 0);
    assert_eq!(scheduler.wait_of(JobId(0), 0), None, "it waits for its next pass");
    scheduler.await_wave(JobId(0), true);
    assert_eq!(scheduler.wait_of(JobId(0), 0), Some(Wait::Wave { wave: "first".into(), left: 1 }));
    scheduler.wake(JobId(0), false, 0);
    assert_eq!(admitted(&mut scheduler), [0]);
    assert_eq!((scheduler.wait_of(JobId(0), 0), scheduler.stopped_by(JobId(0))), (None, None));
    scheduler.finished(JobId(1), Ended::Failed, 0);
    assert_eq!(scheduler.stopped_by(JobId(0)), Some("first"));
}

#[test]
fn what_is_given_up_lets_others_go_at_the_time_that_it_is() {
    let mut scheduler = Scheduler::new(Budgets::default());
    let short = WaveWindow { until_ms: Some(500), ..WaveWindow::default() };
    let next = WaveWindow { from_ms: Some(100), ..WaveWindow::default() };
    let waves = [
        wave("before", &[], IfFailed::GoOn),
        Wave { window: short, ..wave("short", &["before"], IfFailed::GoOn) },
        Wave { window: next, ..wave("next", &["short"], IfFailed::GoOn) },
    ];
    scheduler.set_waves(Tenant(0), &waves);
    let jobs = ["before", "short", "next"].map(|name| in_wave(name, job("a", 1, 1, 0)));
    scheduler.add(Tenant(0), jobs.to_vec(), 0);
    assert_eq!(admitted(&mut scheduler), [0]);
    scheduler.finished(JobId(0), Ended::Arrived, 600);
    assert_eq!(scheduler.take_given_up(), [(JobId(1), Ended::TooLate)]);
    assert_eq!(scheduler.next_event_ms(600), None, "nothing waits for a time that has passed");
    assert_eq!(admitted_at(&mut scheduler, 600), [2]);
}

#[test]
fn a_group_is_of_one_wave_so_that_its_stages_never_go_against_the_waves() {
    let mut scheduler = Scheduler::new(Budgets::default());
    let waves = [wave("first", &[], IfFailed::Wait), wave("second", &["first"], IfFailed::Wait)];
    scheduler.set_waves(Tenant(0), &waves);
    let jobs = vec![
        in_wave("second", staged(0, false)),
        in_wave("first", staged(1, true)),
        in_wave("second", staged(1, true)),
    ];
    scheduler.add(Tenant(0), jobs, 0);
    assert_eq!(admitted(&mut scheduler), [1, 2]);
    assert_eq!(scheduler.ask_cutover(JobId(1), 0), Ok(()), "the others of its stage are of a later wave");
    arrive(&mut scheduler, 1);
    assert_eq!(admitted(&mut scheduler), [0]);
    let stage = Wait::Stage { group: "shop".into(), stage: 0 };
    assert_eq!(scheduler.ask_cutover(JobId(2), 0), Err(stage), "within a wave its stages go in order");
    arrive(&mut scheduler, 0);
    assert_eq!(scheduler.ask_cutover(JobId(2), 0), Ok(()));
}

#[test]
fn warm_vms_are_copied_in_the_order_in_which_their_waves_close() {
    let mut scheduler = Scheduler::new(Budgets { disks: 1, ..Budgets::default() });
    let until = |ms| WaveWindow { until_ms: Some(ms), ..WaveWindow::default() };
    let waves = [
        wave("any", &[], IfFailed::Wait),
        Wave { window: until(9000), ..wave("late", &[], IfFailed::Wait) },
        wave("before-soon", &[], IfFailed::Wait),
        Wave { window: until(5000), ..wave("soon", &["before-soon"], IfFailed::Wait) },
        wave("last", &["any"], IfFailed::Wait),
    ];
    scheduler.set_waves(Tenant(0), &waves);
    // The larger goes first where waves say nothing.
    let warm = |name: &str, bytes| in_wave(name, Job { is_warm: true, ..job("a", 1, bytes, 0) });
    let jobs =
        vec![warm("last", 90), warm("any", 80), warm("late", 70), warm("soon", 60), warm("before-soon", 50)];
    scheduler.add(Tenant(0), jobs, 0);
    let mut order = Vec::new();
    while let Some(admission) = scheduler.next(0) {
        order.push(admission.job.0);
        scheduler.park(admission.job, 0);
    }
    assert_eq!(order, [4, 3, 2, 1, 0]);
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
fn a_tenant_without_room_of_its_own_does_not_close_the_host_to_others() {
    let mut scheduler = of(&[], 20, 20);
    scheduler.set_host("a", HostLimits { disks: Some(3), ..HostLimits::default() });
    scheduler.set_tenant(Tenant(1), TenantLimits { vms_per_host: None, disks: Some(3) });
    scheduler.add(Tenant(1), vec![job("a", 2, 9, 5), job("a", 2, 8, 5)], 0);
    scheduler.add(Tenant(2), vec![job("a", 1, 1, 0)], 0);
    assert_eq!(
        admitted(&mut scheduler),
        [0, 2],
        "neither the tenant nor the host has room for two more disks"
    );
}
