use std::sync::atomic::Ordering;

use drover_live::{Loads, Promise};

use super::*;
use crate::live::Wanted;
use crate::virsh::Virsh;

/// Two daemons: one that has no domain and no job, as `echo` answers, or one that does not answer.
fn ends(source: &str, target: &str) -> Ends {
    let daemon = |uri: &str, program: &str| Virsh::new(uri).by(program);
    Ends { source: daemon("qemu:///a", source), target: daemon("qemu:///b", target) }
}

/// A move between both that an earlier run began.
fn with_move<T>(ends: &Ends, stop: &AtomicBool, see: impl FnOnce(&mut Move<'_>) -> T) -> T {
    let promise = Promise { downtime_max: Duration::from_secs(1), deadline: Duration::from_secs(1200) };
    let wanted = Wanted {
        promise,
        allowed: Allowed::default(),
        channels: None,
        line: None,
        rate_max: None,
        share: None,
        carried: None,
        loads: Loads::default(),
        turn: None,
    };
    let options = DomainOptions {
        wanted,
        copies_disks: false,
        uri: None,
        disks_port: None,
        p2p: false,
        tls: None,
        looked: None,
    };
    let known = Known { name: "beat".into(), uuid: "aa-bb".into() };
    let mut tell = |_: Event| {};
    see(&mut Move::new(ends, known, &options, stop, &mut tell))
}

#[test]
fn ctrl_c_calls_a_guest_back_that_is_paused_to_be_handed_over_and_none_that_went_ahead() {
    let (ends, stop) = (ends("false", "false"), AtomicBool::new(false));
    let is_stopped = |phase| {
        let told = Told { sample: Sample { phase, ..Sample::default() }, ..Told::default() };
        with_move(&ends, &stop, |it| matches!(it.attend(&told), Err(Ending::Stopped)))
    };
    assert!(!is_stopped(Phase::Switchover));
    stop.store(true, Ordering::Relaxed);
    assert!(is_stopped(Phase::Switchover));
    assert!(!is_stopped(Phase::PostCopy) && !is_stopped(Phase::Broken));
}

#[test]
fn a_move_that_the_source_has_ended_is_over_though_the_target_does_not_answer() {
    let stage = |ends: &Ends| with_move(ends, &AtomicBool::new(false), |it| it.stage().unwrap());
    assert_eq!(stage(&ends("echo", "false")), Some(Phase::Done));
    assert_eq!(stage(&ends("false", "false")), None, "nobody knows");
}

#[test]
fn a_move_that_does_not_settle_is_waited_for_once_and_anew_after_it_went_ahead() {
    let (ends, stop) = (ends("echo", "false"), AtomicBool::new(false));
    with_move(&ends, &stop, |it| {
        let until = Instant::now();
        it.settle_until = Some(until);
        assert!(it.settled().is_err() && until.elapsed() < SETTLE_TIME_MAX);
        assert_eq!(it.settle_until, Some(until));
        it.begin_to_see_after();
        assert_eq!(it.settle_until, None);
    });
}
