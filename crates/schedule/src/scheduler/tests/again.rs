//! Jobs that failed and are added again.

use super::*;

fn again(scheduler: &mut Scheduler, id: u64) -> u64 {
    let job = scheduler.job(JobId(id)).unwrap().clone();
    scheduler.add_again(Tenant(0), vec![(JobId(id), job)], 0)[0].0
}

fn fail(scheduler: &mut Scheduler, id: u64) {
    scheduler.finished(JobId(id), Ended::Failed, 0);
}

/// Vms, begun, arrived and failed of a wave.
fn counts(scheduler: &Scheduler, name: &str) -> [usize; 4] {
    let usages = scheduler.waves(Tenant(0), 0);
    let it = usages.iter().find(|it| it.name == name).unwrap();
    [it.vms, it.begun, it.arrived, it.failed]
}

/// Two jobs in a first wave and one in a second; all of the first are admitted.
fn two_waves(rule: IfFailed) -> Scheduler {
    let mut scheduler = Scheduler::new(Budgets::default());
    scheduler.set_waves(Tenant(0), &[wave("first", &[], rule), wave("second", &["first"], IfFailed::Wait)]);
    let jobs = ["first", "first", "second"].map(|name| in_wave(name, job("a", 1, 1, 0)));
    scheduler.add(Tenant(0), jobs.to_vec(), 0);
    assert_eq!(admitted(&mut scheduler), [0, 1]);
    scheduler
}

#[test]
fn a_job_that_failed_holds_nothing_and_is_admitted_again_as_a_new_one() {
    let mut scheduler = of(&[job("a", 2, 5, 0), job("a", 1, 1, 0)], 1, 8);
    assert_eq!(admitted(&mut scheduler), [0]);
    fail(&mut scheduler, 0);
    assert_eq!(admitted(&mut scheduler), [1]);
    let new = again(&mut scheduler, 0);
    assert!(scheduler.job(JobId(0)).is_none() && !scheduler.is_done());
    assert!(matches!(scheduler.wait_of(JobId(new), 0), Some(Wait::HostVms { .. })), "it waits for its slots");
    arrive(&mut scheduler, 1);
    assert_eq!(admitted(&mut scheduler), [new]);
    fail(&mut scheduler, new);
    let last = again(&mut scheduler, new);
    assert_eq!(admitted(&mut scheduler), [last]);
    arrive(&mut scheduler, last);
    assert!(scheduler.is_done() && scheduler.disks_held() == 0);
}

#[test]
#[should_panic(expected = "has not failed")]
fn one_that_has_arrived_is_not_added_again() {
    let mut scheduler = of(&[job("a", 1, 1, 0)], 1, 8);
    admitted(&mut scheduler);
    arrive(&mut scheduler, 0);
    again(&mut scheduler, 0);
}

#[test]
fn a_wave_that_waits_for_a_word_goes_on_once_what_failed_before_it_arrives() {
    let mut scheduler = two_waves(IfFailed::Wait);
    arrive(&mut scheduler, 0);
    fail(&mut scheduler, 1);
    assert_eq!(admitted(&mut scheduler), [0; 0]);
    assert!(matches!(scheduler.wait_of(JobId(2), 0), Some(Wait::WaveFailed { .. })));
    let new = again(&mut scheduler, 1);
    assert_eq!(scheduler.wait_of(JobId(2), 0), Some(Wait::Wave { wave: "first".into(), left: 1 }));
    assert_eq!(counts(&scheduler, "first"), [2, 1, 1, 0]);
    assert_eq!(admitted(&mut scheduler), [new]);
    assert_eq!(counts(&scheduler, "first"), [2, 2, 1, 0]);
    // It fails once more: the word is waited for as before.
    let mut fails = scheduler.clone();
    fail(&mut fails, new);
    assert!(matches!(fails.wait_of(JobId(2), 0), Some(Wait::WaveFailed { failed: 1, .. })));
    arrive(&mut scheduler, new);
    assert_eq!(counts(&scheduler, "first"), [2, 2, 2, 0]);
    assert_eq!(admitted(&mut scheduler), [2]);
}

#[test]
fn waves_that_were_let_go_do_not_wait_again_for_what_is_tried_again_before_them() {
    for by_word in [false, true] {
        let mut scheduler = two_waves(if by_word { IfFailed::Wait } else { IfFailed::GoOn });
        let late = scheduler.add(Tenant(0), vec![in_wave("second", job("a", 1, 1, 0))], 0)[0].0;
        arrive(&mut scheduler, 0);
        fail(&mut scheduler, 1);
        if by_word {
            assert!(scheduler.proceed(Tenant(0), "first", 0));
        }
        let new = again(&mut scheduler, 1);
        let mut next = admitted(&mut scheduler);
        next.sort();
        assert_eq!(next, [2, late, new], "by a word: {by_word}");
    }
}

#[test]
fn what_did_not_begin_because_of_a_wave_or_a_stage_is_tried_again_behind_what_failed() {
    let mut scheduler = two_waves(IfFailed::Stop);
    arrive(&mut scheduler, 0);
    fail(&mut scheduler, 1);
    assert_eq!(scheduler.take_given_up(), [(JobId(2), Ended::WaveFailed)]);
    let jobs = [1, 2].map(|id| (JobId(id), scheduler.job(JobId(id)).unwrap().clone()));
    let new = scheduler.add_again(Tenant(0), jobs.to_vec(), 0);
    assert_eq!(admitted(&mut scheduler), [new[0].0]);
    arrive(&mut scheduler, new[0].0);
    assert_eq!(admitted(&mut scheduler), [new[1].0]);

    let mut scheduler = of(&[staged(0, false), staged(1, false)], 20, 8);
    assert_eq!(admitted(&mut scheduler), [0]);
    fail(&mut scheduler, 0);
    assert_eq!(scheduler.take_given_up(), [(JobId(1), Ended::GroupFailed)]);
    // Alone it does not begin, as long as what was to be before it has failed.
    let alone = again(&mut scheduler, 1);
    assert_eq!(scheduler.take_given_up(), [(JobId(alone), Ended::GroupFailed)]);
    let first = again(&mut scheduler, 0);
    let second = again(&mut scheduler, alone);
    assert_eq!(admitted(&mut scheduler), [first]);
    arrive(&mut scheduler, first);
    assert_eq!(admitted(&mut scheduler), [second]);
}

#[test]
fn what_is_tried_again_waits_for_its_window() {
    let mut scheduler = Scheduler::new(Budgets::default());
    let windows = Windows(vec!["00:00-01:00".parse().unwrap()]);
    let window = WaveWindow { windows, ..WaveWindow::default() };
    scheduler.set_waves(Tenant(0), &[Wave { window, ..wave("night", &[], IfFailed::Wait) }]);
    scheduler.add(Tenant(0), vec![in_wave("night", job("a", 1, 1, 0))], 0);
    assert_eq!(admitted(&mut scheduler), [0]);
    let closed = 61 * 60_000;
    scheduler.finished(JobId(0), Ended::Failed, closed);
    let job = scheduler.job(JobId(0)).unwrap().clone();
    let new = scheduler.add_again(Tenant(0), vec![(JobId(0), job)], closed)[0];
    assert_eq!(admitted_at(&mut scheduler, closed), [0; 0]);
    assert_eq!(scheduler.wait_of(new, closed), Some(window_wait(86_400_000)));
    assert_eq!(admitted_at(&mut scheduler, 86_400_000), [new.0]);
}

#[test]
fn a_wave_that_was_stopped_before_it_began_has_not_passed_whatever_its_rule() {
    let mut scheduler = Scheduler::new(Budgets::default());
    let waves = [
        wave("first", &[], IfFailed::Stop),
        wave("second", &["first"], IfFailed::GoOn),
        wave("third", &["second"], IfFailed::Wait),
    ];
    scheduler.set_waves(Tenant(0), &waves);
    let jobs = ["first", "second", "third"].map(|name| in_wave(name, job("a", 1, 1, 0)));
    scheduler.add(Tenant(0), jobs.to_vec(), 0);
    assert_eq!(admitted(&mut scheduler), [0]);
    fail(&mut scheduler, 0);
    assert_eq!(scheduler.take_given_up(), [(JobId(1), Ended::WaveFailed), (JobId(2), Ended::WaveFailed)]);
    assert_eq!(scheduler.passed(Tenant(0)).collect::<Vec<_>>(), [""; 0]);
    // All are tried again, in the order of their waves.
    let jobs = [0, 1, 2].map(|id| (JobId(id), scheduler.job(JobId(id)).unwrap().clone()));
    let new = scheduler.add_again(Tenant(0), jobs.to_vec(), 0);
    assert_eq!(admitted(&mut scheduler), [new[0].0]);
    arrive(&mut scheduler, new[0].0);
    assert_eq!(admitted(&mut scheduler), [new[1].0]);
    fail(&mut scheduler, new[1].0);
    assert_eq!(scheduler.passed(Tenant(0)).collect::<Vec<_>>(), ["first", "second"]);
    assert_eq!(admitted(&mut scheduler), [new[2].0], "it goes on whatever of it failed");
}
