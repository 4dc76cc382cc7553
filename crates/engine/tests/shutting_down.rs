//! Guests that a run asked to shut down before it was killed, and that run yet, or again, when the plan is resumed.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::sync::Mutex;
use std::time::Duration;

use drover_engine::{Clock, Event, NoObserver, Phase, RunOutcome, VmState, cancel};
use drover_mover::StopSignal;
use drover_types::inventory::PowerState;
use fakes::{PLAN, Trouble, Watch, World, enters, leaves, stop_at_wait, vm};

/// How long guests take to shut down.
const SHUTDOWN: Duration = Duration::from_secs(120);
/// The plan lets them take this long, in milliseconds.
const TIMEOUT_MS: i64 = 300_000;
const HOUR_MS: i64 = 3_600_000;

/// A wave whose window closes while the guest shuts down, for good or until tomorrow.
const CLOSES: [&str; 2] = ["until: 1970-01-01T00:00:30Z", "window: 00:00-00:01"];

/// A VM that was to go down in its wave, and whose run was killed when it had asked the guest, or was about to.
fn killed(mode: &str, window: &str, trouble: Trouble) -> World {
    let lines = format!("start: true\n{mode}\nwaves: [{{name: night, {window}, vms: [{{glob: '*'}}]}}]");
    let world = World::with(&[vm("on", PowerState::On, 1)], &lines);
    world.shutdowns_take(SHUTDOWN);
    world.set_trouble("shut down", trouble);
    world.run(&Watch(|event: &Event| ask_at_wait(&world, event)));
    world.as_if_killed();
    assert_eq!((world.power("vm-on"), world.row("vm-on").switched_off), (PowerState::On, true));
    world
}

/// Asks for the cutover once a pass is waited for.
fn ask_at_wait(world: &World, event: &Event) {
    if matches!(event, Event::PassWaits { .. }) {
        world.store.ask_cutover(PLAN, None).unwrap();
    }
}

const COLD: &str = "mode: cold";
const WARM: &str = "mode: warm\nwarm: {interval: 30m, cutover: manual}";

/// Goes on with the plan, until a pass is waited for that the VM does not need.
fn resume(world: &World) -> RunOutcome {
    let stop = StopSignal::default();
    let watch = Watch(|event: &Event| {
        if matches!(event, Event::PassWaits { .. }) {
            stop.stop();
        }
    });
    world.run_plan(PLAN, &world.resumed(), &watch, &stop).unwrap()
}

#[test]
fn a_guest_that_still_shuts_down_is_waited_for_and_goes_on_whatever_its_window_is() {
    for mode in [COLD, WARM] {
        for window in CLOSES {
            let world = killed(mode, window, Trouble::DiesAfter);
            world.clock.sleep(Duration::from_secs(61));
            let outcome = resume(&world);
            assert!(outcome.is_complete(), "{mode}, {window}: {outcome:?}");
            world.assert_arrived(window);
            assert_eq!(world.calls("shut down"), 1, "{mode}, {window}");
            assert!(world.clock.now_ms() < HOUR_MS, "{mode}, {window}: it waited for its window");
        }
    }
}

/// It was never asked, or does not heed.
#[test]
fn a_guest_that_does_not_go_down_in_its_time_goes_down_in_its_window_only() {
    for mode in [COLD, WARM] {
        let world = killed(mode, "window: 00:00-01:00", Trouble::DiesBefore);
        world.clock.sleep(Duration::from_millis(2 * HOUR_MS as u64));
        if mode == COLD {
            // Each look takes minutes, so that the next day comes.
            world.clock.slow_down(300_000);
        }
        let down = Mutex::new(None);
        let watch = Watch(|event: &Event| {
            ask_at_wait(&world, event);
            if enters(event, "on", Phase::PowerOff) {
                *down.lock().unwrap() = Some(world.clock.now_ms());
            }
        });
        let outcome = world.run_plan(PLAN, &world.resumed(), &watch, &StopSignal::default()).unwrap();
        assert!(outcome.is_complete(), "{mode}: {outcome:?}");
        world.assert_arrived(mode);
        let down = down.into_inner().unwrap().unwrap();
        assert!(down >= 24 * HOUR_MS, "{mode}: it went down at {down}");
    }
}

#[test]
fn a_guest_that_was_off_and_runs_again_is_not_waited_for() {
    let world = World::with(&[vm("on", PowerState::On, 1)], "start: true");
    world.run(&Watch(|event: &Event| assert!(!enters(event, "on", Phase::Copy), "the process dies")));
    world.as_if_killed();
    world.set_power("vm-on", PowerState::On);
    let began_ms = world.clock.now_ms();
    assert!(
        world.run_plan(PLAN, &world.resumed(), &NoObserver, &StopSignal::default()).unwrap().is_complete()
    );
    assert!(world.clock.now_ms() < began_ms + TIMEOUT_MS / 2, "its shutdown had ended");
    assert_eq!(world.calls("shut down"), 2);
}

/// Whatever ends the run before the guest is off: that drover switches it off is not forgotten.
#[test]
fn a_guest_that_goes_down_after_the_next_run_ended_too_is_switched_on_when_cancelled() {
    for mode in [COLD, WARM] {
        let world = killed(mode, CLOSES[0], Trouble::DiesAfter);
        let stop = StopSignal::default();
        let watch = Watch(|event: &Event| {
            if enters(event, "on", Phase::Check) {
                stop.stop();
            }
        });
        world.run_plan(PLAN, &world.resumed(), &watch, &stop).unwrap();
        let row = world.row("vm-on");
        assert_eq!((row.state, row.switched_off), (VmState::Stopped, true), "{mode}");
        assert!(row.error.as_ref().unwrap().contains("should it go down yet"), "{mode}: {row:?}");
        world.clock.sleep(SHUTDOWN);
        assert_eq!(world.power("vm-on"), PowerState::Off, "{mode}");
        let given_up = cancel(PLAN, &world.store, &world, &world).unwrap();
        assert!(given_up.left.is_empty(), "{mode}: {given_up:?}");
        assert_eq!(world.power("vm-on"), PowerState::On, "{mode}");
    }
}

/// A power state that cannot be seen is not one that is known.
#[test]
fn a_guest_that_goes_down_is_not_forgotten_because_a_look_fails() {
    let world = killed(COLD, CLOSES[0], Trouble::DiesAfter);
    let watch = Watch(|event: &Event| {
        if enters(event, "on", Phase::Check) {
            // The one that ends the run, and the one before it would switch on.
            (0..2).for_each(|_| world.set_trouble("look", Trouble::Fails));
        }
    });
    world.run_plan(PLAN, &world.resumed(), &watch, &StopSignal::default()).unwrap();
    let row = world.row("vm-on");
    assert_eq!((row.state, row.switched_off), (VmState::Failed, true), "{row:?}");
    assert!(row.error.as_ref().unwrap().contains("should it go down yet"), "{row:?}");
    // It removes snapshots, then looks whether the guest may go down.
    world.set_trouble_at("look", 2, Trouble::Fails);
    let left = cancel(PLAN, &world.store, &world, &world).unwrap().left;
    assert!(left.len() == 1 && left[0].contains("cancel again after that"), "{left:?}");
    assert!(world.row("vm-on").switched_off);
    world.clock.sleep(SHUTDOWN);
    assert_eq!(world.power("vm-on"), PowerState::Off);
    let given_up = cancel(PLAN, &world.store, &world, &world).unwrap();
    assert!(given_up.left.is_empty(), "{given_up:?}");
    assert_eq!(world.power("vm-on"), PowerState::On);
}

#[test]
fn a_guest_is_waited_for_although_looks_at_it_fail() {
    let world = killed(COLD, CLOSES[0], Trouble::DiesAfter);
    world.clock.sleep(Duration::from_secs(61));
    let watch = Watch(|event: &Event| {
        if leaves(event, "on", Phase::Check) {
            (0..3).for_each(|_| world.set_trouble("look", Trouble::Fails));
        }
    });
    let outcome = world.run_plan(PLAN, &world.resumed(), &watch, &StopSignal::default()).unwrap();
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("after failed looks");
    assert_eq!(world.calls("shut down"), 1);
}

#[test]
fn a_stop_is_noticed_while_a_guest_is_waited_for() {
    let world = World::warm("warm: {interval: 1s}");
    stop_at_wait(&world, 2);
    world.shutdowns_take(SHUTDOWN);
    world.store.ask_cutover(PLAN, None).unwrap();
    world.set_trouble("shut down", Trouble::DiesAfter);
    world.run(&NoObserver);
    world.as_if_killed();
    let stop = StopSignal::default();
    let watch = Watch(|event: &Event| {
        if enters(event, "on", Phase::Passes) {
            stop.stop();
        }
    });
    world.run_plan(PLAN, &world.resumed(), &watch, &stop).unwrap();
    assert_eq!((world.power("vm-on"), world.row("vm-on").switched_off), (PowerState::On, true));
    // It is gone on with, and not asked for again.
    assert!(resume(&world).is_complete());
    world.assert_arrived("after a stop");
    assert_eq!(world.calls("shut down"), 1);
}

#[test]
fn a_guest_whose_shutdown_was_asked_for_as_the_run_was_stopped_is_not_taken_for_one_that_stays_on() {
    let world = World::with(&[vm("on", PowerState::On, 1)], "start: true");
    world.shutdowns_take(SHUTDOWN);
    world.set_trouble("shut down", Trouble::Stopped);
    world.run(&NoObserver);
    assert_eq!((world.power("vm-on"), world.row("vm-on").switched_off), (PowerState::On, true));
    world.clock.sleep(SHUTDOWN);
    assert_eq!(world.power("vm-on"), PowerState::Off);
    let given_up = cancel(PLAN, &world.store, &world, &world).unwrap();
    assert!(given_up.left.is_empty(), "{given_up:?}");
    assert_eq!(world.power("vm-on"), PowerState::On);
}
