//! Waves: their order, their windows, and what waits for them.

use super::*;

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
    assert_eq!(scheduler.wait_of(JobId(2), 0).unwrap().to_string(), "the end of wave pilot");
    arrive(&mut scheduler, 0);
    assert_eq!(admitted(&mut scheduler), [0; 0]);
    let [nobody, pilot, rest, web] = &scheduler.waves(Tenant(0), 0)[..] else { panic!("four waves") };
    assert_eq!((pilot.vms, pilot.begun, pilot.arrived, pilot.is_over()), (2, 2, 1, false));
    assert!(pilot.waits.is_none() && web.waits.is_some() && rest.waits.is_some() && nobody.is_over());
    arrive(&mut scheduler, 1);
    assert_eq!(admitted(&mut scheduler), [2]);
    assert_eq!(scheduler.wait_of(JobId(3), 0).unwrap().to_string(), "the end of wave web");
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
    assert_eq!(scheduler.wait_of(JobId(1), 10), Some(window_wait(1000)));
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
    assert_eq!(scheduler.ask_cutover(JobId(1), 5), Err(window_wait(1000)));
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
    let windows = Windows(vec!["00:00-01:00".parse().unwrap()]);
    let window = WaveWindow { windows, ..WaveWindow::default() };
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
    assert_eq!(scheduler.wait_of(JobId(2), at), Some(window_wait(86_400_000)));
    assert_eq!(admitted_at(&mut scheduler, 86_400_000), [2]);
    assert_eq!(scheduler.waves(Tenant(0), 86_400_000)[0].begun, 4);
}

#[test]
fn a_vm_that_is_tried_again_narrows_nothing_while_it_waits_for_that() {
    let mut scheduler =
        Scheduler::new(Budgets { vms_per_host: 20, disks: 40, disks_per_host: 40, ..Budgets::default() });
    let windows = Windows(vec!["00:00-01:00".parse().unwrap()]);
    let window = WaveWindow { windows, ..WaveWindow::default() };
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
    assert_eq!(scheduler.wait_of(JobId(0), later), Some(window_wait(86_400_000)));
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
