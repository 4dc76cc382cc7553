//! Hooks and checks: when they are called, what their answers do to a VM, and what a kill changes.
#![allow(clippy::unwrap_used)]

mod fakes;

use drover_engine::{
    Cause, Event, HookResult, NoObserver, POST_START, PRE_CUTOVER, VmState, cancel, plan_report,
};
use drover_mover::StopSignal;
use drover_types::inventory::PowerState;
use fakes::{DiesAt, PLAN, Trouble, Watch, World, dies_around_every_call, vm};

const ALL: &str = "start: true\nhooks:\n  before_copy: [{shell: a}]\n  before_shutdown: [{shell: b}]\n  after_shutdown: [{shell: c}]\n  \
                   after_copy: [{shell: d}]\n  before_start: [{shell: e}]\n  after_start: [{shell: f}]\n  after_done: [{shell: g}]\n  \
                   after_failure: [{shell: h}]\nchecks: {pre_cutover: [{tcp: 'x:1'}], post_start: [{tcp: 'y:2'}]}";

/// In the order of a cold VM's way.
const POINTS: [&str; 9] = [
    "before_copy",
    PRE_CUTOVER,
    "before_shutdown",
    "after_shutdown",
    "after_copy",
    "before_start",
    "after_start",
    POST_START,
    "after_done",
];

const HOOKS: [&str; 7] = [
    "before_copy",
    "before_shutdown",
    "after_shutdown",
    "after_copy",
    "before_start",
    "after_start",
    "after_done",
];

fn cold() -> World {
    World::with(&[vm("on", PowerState::On, 1)], ALL)
}

fn warm() -> World {
    World::with(
        &[vm("on", PowerState::On, 1)],
        &format!("{ALL}\nmode: warm\nwarm: {{interval: 1s, cutover: auto}}"),
    )
}

fn points(world: &World) -> Vec<String> {
    world.state().told.iter().map(|told| told["point"].as_str().unwrap().to_string()).collect()
}

fn error(world: &World) -> String {
    world.row("vm-on").error.unwrap()
}

#[test]
fn every_hook_and_check_is_called_once_and_in_order_and_the_report_has_them() {
    for world in [cold(), warm()] {
        world.run(&NoObserver);
        world.assert_arrived("with hooks");
        assert_eq!(points(&world), POINTS);
        let report = plan_report(&world.store, PLAN).unwrap().unwrap();
        let rows = &report.vms[0].hooks;
        assert_eq!(rows.iter().map(|row| row.point.as_str()).collect::<Vec<_>>(), POINTS);
        assert!(rows.iter().all(|row| row.result == Some(HookResult::Passed) && row.ended_ms.is_some()));
        let told = world.told("before_start").unwrap();
        assert_eq!((told["plan"].as_str(), told["run"].as_i64()), (Some(PLAN), Some(1)));
        assert_eq!(told["vm"]["target_name"], "on");
        assert!(told["target"]["disks"][0]["path"].as_str().unwrap().ends_with("on-0.raw"));
        assert_eq!(world.told("after_done").unwrap()["outcome"]["state"], "done");
    }
}

#[test]
fn a_crash_at_any_event_calls_no_hook_twice_whose_end_was_recorded() {
    for make in [cold, warm] {
        let count = DiesAt::event(usize::MAX);
        make().run(&count);
        for at in 1..=count.seen() {
            let world = make();
            world.run(&DiesAt::event(at));
            world.as_if_killed();
            world.run(&NoObserver);
            world.assert_arrived(&format!("after a crash at event {at}"));
            for hook in HOOKS {
                assert_eq!(world.calls(hook), 1, "{hook}, crash at event {at}");
            }
            assert_eq!(world.calls("after_failure"), 0, "nothing failed");
        }
    }
}

#[test]
fn a_hook_that_was_running_when_its_process_was_killed_is_called_again() {
    dies_around_every_call(cold, &POINTS);
    for hook in HOOKS {
        let world = cold();
        world.set_trouble(hook, Trouble::DiesAfter);
        world.run(&NoObserver);
        world.as_if_killed();
        world.run(&NoObserver);
        assert_eq!(world.calls(hook), 2, "{hook}");
        let others = HOOKS.into_iter().filter(|other| *other != hook);
        others.for_each(|other| assert_eq!(world.calls(other), 1, "{other} when {hook} was killed"));
        let calls: Vec<String> = {
            let state = world.state();
            let of_it = state.told.iter().filter(|told| told["point"] == hook);
            of_it.map(|told| told["call"].as_str().unwrap().to_string()).collect()
        };
        assert_eq!(calls[0], calls[1], "both calls have one key");
    }
}

#[test]
fn what_fails_before_the_shutdown_costs_no_downtime() {
    for make in [cold, warm] {
        for point in ["before_copy", PRE_CUTOVER, "before_shutdown"] {
            let world = make();
            let is_check = point == PRE_CUTOVER;
            // A check is asked until its time is up.
            (0..if is_check { 100 } else { 1 })
                .for_each(|_| world.answer(point, HookResult::Failed, "no way"));
            let outcome = world.run(&NoObserver);
            let cause = if is_check { Cause::Check } else { Cause::Hook };
            assert_eq!(outcome.failed, [("on".to_string(), cause)], "{point}");
            assert_eq!(world.calls("shut down"), 0, "{point}");
            assert_eq!((world.power("vm-on"), world.own_snapshots()), (PowerState::On, 0), "{point}");
            let text = error(&world);
            assert!(text.contains(point) && text.contains("no way"), "{text}");
            assert_eq!(world.calls("after_failure"), 1, "{point}");
            let told = world.told("after_failure").unwrap();
            assert_eq!(told["outcome"]["state"], "failed");
            assert!(told["outcome"]["error"].as_str().unwrap().contains("no way"));
            world.state().answers.clear();
            world.run(&NoObserver);
            world.assert_arrived(point);
        }
    }
}

#[test]
fn what_fails_after_the_shutdown_and_before_the_start_is_undone_and_called_again() {
    for make in [cold, warm] {
        for point in ["after_shutdown", "after_copy", "before_start"] {
            let world = make();
            world.answer(point, HookResult::Stop, "frozen");
            let outcome = world.run(&NoObserver);
            assert_eq!(outcome.failed, [("on".to_string(), Cause::Hook)], "{point}");
            assert_eq!((world.power("vm-on"), world.own_snapshots()), (PowerState::On, 0), "{point}");
            assert!(!world.runs_at_target("on") && !world.is_defined("on"), "{point}");
            assert!(error(&world).contains("said stop: frozen"), "{}", error(&world));
            world.run(&NoObserver);
            world.assert_arrived(point);
            // What was done to the source was undone, and its hooks are called for the next time.
            assert_eq!((world.calls("before_copy"), world.calls("before_shutdown")), (1, 2), "{point}");
        }
    }
}

#[test]
fn a_hook_after_the_start_that_fails_leaves_the_guest_where_it_is_and_says_so() {
    for make in [cold, warm] {
        let world = make();
        world.answer("after_start", HookResult::Failed, "no DNS");
        let outcome = world.run(&NoObserver);
        assert_eq!(outcome.failed, [("on".to_string(), Cause::Hook)]);
        assert!(world.runs_at_target("on"));
        assert_eq!((world.power("vm-on"), world.calls("stop")), (PowerState::Off, 0));
        let text = error(&world);
        let said = "its source is off, switched off by drover, and its machine was started at the target";
        assert!(text.contains("no DNS") && text.contains(said), "{text}");
        world.run(&NoObserver);
        world.assert_arrived("gone on with");
        assert_eq!((world.calls("start"), world.calls("after_start"), world.calls(POST_START)), (1, 2, 1));
    }
}

#[test]
fn a_check_is_asked_until_it_passes_or_its_time_is_up() {
    let world = cold();
    (0..2).for_each(|_| world.answer(POST_START, HookResult::Failed, "not yet"));
    world.run(&NoObserver);
    world.assert_arrived("at the third try");
    assert_eq!(world.calls(POST_START), 3);
    let world = cold();
    (0..1000).for_each(|_| world.answer(POST_START, HookResult::Failed, "never"));
    world.run(&NoObserver);
    // Two minutes, every five seconds.
    assert!((20..=26).contains(&world.calls(POST_START)), "{}", world.calls(POST_START));
}

#[test]
fn a_failed_check_after_the_start_keeps_the_guest_unless_the_plan_gives_leave() {
    let world = cold();
    (0..1000).for_each(|_| world.answer(POST_START, HookResult::Failed, "no answer"));
    let outcome = world.run(&NoObserver);
    assert_eq!(outcome.failed, [("on".to_string(), Cause::Check)]);
    assert_eq!((world.runs_at_target("on"), world.power("vm-on")), (true, PowerState::Off));
    assert!(error(&world).contains("its machine was started at the target"), "{}", error(&world));
    world.state().answers.clear();
    world.run(&NoObserver);
    world.assert_arrived("asked again");
    assert_eq!((world.calls("start"), world.calls("after_start")), (1, 1));
}

#[test]
fn by_leave_a_failed_check_sends_the_guest_back_and_nothing_of_what_it_wrote_there_is_kept() {
    for mode in ["", "\nmode: warm\nwarm: {interval: 1s, cutover: auto}"] {
        let lines =
            format!("{}{mode}", ALL.replace("checks: {", "checks: {on_post_start_failure: roll_back, "));
        let world = World::with(&[vm("on", PowerState::On, 1)], &lines);
        (0..1000).for_each(|_| world.answer(POST_START, HookResult::Failed, "no answer"));
        // Its guest writes at the target, before it is sent back.
        world.before("after_start", |state| {
            state.images.values().for_each(|image| image.overwrite(0, b"written there"))
        });
        let outcome = world.run(&NoObserver);
        assert_eq!(outcome.failed, [("on".to_string(), Cause::Check)], "{mode}");
        assert_eq!((world.runs_at_target("on"), world.power("vm-on")), (false, PowerState::On), "{mode}");
        assert_eq!((world.own_snapshots(), world.is_defined("on")), (0, false), "{mode}");
        let (text, down) = (error(&world), "; its source is switched on again, after it was down for ");
        assert!(text.contains("rolled back") && text.contains(down), "{text}");
        let downtime = || plan_report(&world.store, PLAN).unwrap().unwrap().vms[0].undone_downtime_ms;
        assert!(downtime().is_some(), "{mode}: the report has it");
        assert_eq!(world.calls("after_failure"), 1);
        world.state().answers.clear();
        world.run(&NoObserver);
        world.assert_arrived("after it went back");
        assert_eq!(downtime(), None, "{mode}: it has arrived");
    }
}

#[test]
fn a_cancel_after_a_check_or_hook_that_failed_there_keeps_the_guest_and_what_failed() {
    for (point, cause) in [(POST_START, "check"), ("after_start", "hook")] {
        let world = cold();
        (0..1000).for_each(|_| world.answer(point, HookResult::Failed, "no answer"));
        world.run(&NoObserver);
        for notes in [1, 0] {
            let given_up = cancel(PLAN, &world.store, &world, &world).unwrap();
            assert_eq!((given_up.left.len(), given_up.arrived), (0, vec!["on".to_string()]), "{point}");
            assert_eq!(given_up.notes.len(), notes, "{point}: {:?}", given_up.notes);
            let row = world.row("vm-on");
            assert_eq!((row.state, row.cause.as_deref()), (VmState::Done, Some(cause)), "{point}");
            let text = row.error.unwrap();
            assert!(text.contains("although this failed there: ") && text.contains("no answer"), "{text}");
            assert!(text.contains(point), "{text}");
        }
        assert!(world.runs_at_target("on") && world.power("vm-on") == PowerState::Off, "{point}");
    }
}

#[test]
fn a_guest_that_goes_off_before_its_shutdown_is_switched_on_again_with_a_word_if_hooks_may_have_done_it() {
    for (called, by_hooks) in [("before_shutdown", true), (PRE_CUTOVER, false)] {
        let world = cold();
        (0..100).for_each(|_| world.answer(called, HookResult::Failed, "no"));
        let outcome = world.run(&Watch(|event: &Event| {
            if matches!(event, Event::HookEnded { point, .. } if point == called) {
                world.set_power("vm-on", PowerState::Off);
            }
        }));
        assert_eq!(outcome.failed.len(), 1, "{called}");
        let power = if by_hooks { PowerState::On } else { PowerState::Off };
        assert_eq!(
            (world.power("vm-on"), world.calls("power on")),
            (power, usize::from(by_hooks)),
            "{called}"
        );
        assert!(!world.row("vm-on").switched_off, "{called}");
        let events = world.store.events_of(PLAN, "vm-on").unwrap();
        assert_eq!(events.iter().any(|event| event.kind == "on_again"), by_hooks, "{called}");
        let told =
            events.iter().any(|event| event.text.contains("went off while hooks before its shutdown ran"));
        assert_eq!(told, by_hooks, "{called}");
    }
}

/// A world whose guest writes at the target and is sent back for a check, and whose drover dies meanwhile.
fn dies_while_it_rolls_back(mode: &str, call: &'static str, trouble: Trouble) -> World {
    let lines = format!("{}{mode}", ALL.replace("checks: {", "checks: {on_post_start_failure: roll_back, "));
    let world = World::with(&[vm("on", PowerState::On, 1)], &lines);
    (0..1000).for_each(|_| world.answer(POST_START, HookResult::Failed, "no answer"));
    world.before("after_start", |state| {
        state.images.values().for_each(|image| image.overwrite(0, b"written there"))
    });
    world.set_trouble(call, trouble);
    world.run(&NoObserver);
    assert!(world.trouble_struck(), "{call}");
    world.as_if_killed();
    world.state().answers.clear();
    world
}

#[test]
fn a_guest_that_was_being_sent_back_when_drover_was_killed_is_sent_back_by_the_next_run() {
    for mode in ["", "\nmode: warm\nwarm: {interval: 1s, cutover: auto}"] {
        for (call, trouble) in [
            ("stop", Trouble::DiesAfter),
            ("remove images", Trouble::DiesBefore),
            ("remove images", Trouble::DiesAfter),
            ("undo define", Trouble::DiesBefore),
            ("undo define", Trouble::DiesAfter),
            ("power on", Trouble::DiesBefore),
            ("power on", Trouble::DiesAfter),
        ] {
            // The images of a warm one are compared by its next run, and not removed.
            if call == "remove images" && !mode.is_empty() {
                continue;
            }
            let world = dies_while_it_rolls_back(mode, call, trouble);
            assert!(!world.runs_at_target("on"), "{mode} {call}");
            let outcome = world.run(&NoObserver);
            assert!(outcome.is_complete(), "{mode} {call} {trouble:?}: {outcome:?}");
            world.assert_arrived(&format!("{mode} {call} {trouble:?}"));
        }
    }
}

#[test]
fn one_that_runs_on_at_the_target_is_kept_there_whatever_was_to_become_of_it() {
    let world = dies_while_it_rolls_back("", "stop", Trouble::DiesBefore);
    let outcome = world.run(&NoObserver);
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!((world.runs_at_target("on"), world.power("vm-on")), (true, PowerState::Off));
    assert_eq!(world.calls("remove images"), 0, "it may have been worked with");
}

#[test]
fn a_cancel_after_a_rollback_that_was_cut_short_removes_what_the_guest_wrote() {
    let world = dies_while_it_rolls_back("", "remove images", Trouble::DiesBefore);
    assert_eq!(cancel(PLAN, &world.store, &world, &world).unwrap().left, Vec::<String>::new());
    assert_eq!((world.runs_at_target("on"), world.power("vm-on")), (false, PowerState::On));
    assert!(world.state().images.is_empty() && !world.is_defined("on"));
}

#[test]
fn what_an_earlier_run_started_is_not_sent_back_for_a_check_that_fails_now() {
    let lines = ALL.replace("checks: {", "checks: {on_post_start_failure: roll_back, ");
    let world = World::with(&[vm("on", PowerState::On, 1)], &lines);
    world.set_trouble(POST_START, Trouble::DiesBefore);
    world.run(&NoObserver);
    world.as_if_killed();
    (0..1000).for_each(|_| world.answer(POST_START, HookResult::Failed, "days later"));
    let outcome = world.run(&NoObserver);
    assert_eq!(outcome.failed, [("on".to_string(), Cause::Check)]);
    assert_eq!((world.runs_at_target("on"), world.power("vm-on")), (true, PowerState::Off));
    assert_eq!((world.calls("stop"), world.calls("remove images")), (0, 0));
}

#[test]
fn a_copy_that_a_guest_wrote_to_is_given_up_also_if_its_source_cannot_be_started() {
    let lines = ALL.replace("checks: {", "checks: {on_post_start_failure: roll_back, ");
    let world = World::with(&[vm("on", PowerState::On, 1)], &lines);
    (0..1000).for_each(|_| world.answer(POST_START, HookResult::Failed, "no answer"));
    world.set_trouble("power on", Trouble::Fails);
    world.run(&NoObserver);
    assert_eq!((world.calls("remove images"), world.runs_at_target("on")), (1, false));
    assert!(error(&world).contains("is still off"), "{}", error(&world));
}

#[test]
fn a_guest_that_cannot_be_stopped_at_the_target_is_not_started_at_its_source() {
    let lines = ALL.replace("checks: {", "checks: {on_post_start_failure: roll_back, ");
    let world = World::with(&[vm("on", PowerState::On, 1)], &lines);
    (0..1000).for_each(|_| world.answer(POST_START, HookResult::Failed, "no answer"));
    world.set_trouble("stop", Trouble::Fails);
    world.run(&NoObserver);
    assert_eq!((world.runs_at_target("on"), world.power("vm-on")), (true, PowerState::Off));
    let text = error(&world);
    assert!(text.contains("left behind") && !text.contains("rolled back"), "{text}");
    assert_eq!(world.calls("remove images"), 0, "a guest runs from them");
}

#[test]
fn a_hook_before_the_shutdown_can_leave_its_vm_out() {
    for make in [cold, warm] {
        for point in ["before_copy", "before_shutdown"] {
            let world = make();
            world.answer(point, HookResult::Skip, "quarter end");
            let outcome = world.run(&NoObserver);
            assert_eq!((outcome.failed.len(), outcome.skipped, outcome.unfinished), (0, 1, 1), "{point}");
            let row = world.row("vm-on");
            assert_eq!((row.state, row.cause.as_deref()), (VmState::Skipped, Some("skipped")), "{point}");
            assert!(row.error.unwrap().contains("quarter end"));
            assert_eq!((world.calls("shut down"), world.own_snapshots()), (0, 0), "{point}");
            assert_eq!((world.power("vm-on"), world.calls("after_failure")), (PowerState::On, 0), "{point}");
            world.run(&NoObserver);
            world.assert_arrived("asked again");
        }
    }
    let world = cold();
    world.answer("after_copy", HookResult::Skip, "too late");
    assert_eq!(world.run(&NoObserver).failed, [("on".to_string(), Cause::Hook)]);
    assert!(error(&world).contains("which it cannot say at after_copy"), "{}", error(&world));
}

#[test]
fn a_failure_that_only_warns_is_told_and_not_tried_again() {
    let lines = ALL.replace("{shell: d}", "{shell: d, on_failure: warn}");
    let world = World::with(&[vm("on", PowerState::On, 1)], &lines);
    world.answer("after_copy", HookResult::Failed, "no ticket");
    world.set_trouble("define", Trouble::DiesBefore);
    world.run(&NoObserver);
    world.as_if_killed();
    world.run(&NoObserver);
    world.assert_arrived("with a warning");
    assert_eq!(world.calls("after_copy"), 1);
    let events = world.store.events(PLAN).unwrap();
    assert!(events.iter().any(|event| event.text.contains("no ticket; it goes on, as the plan says")));
}

#[test]
fn a_stop_ends_the_hook_that_runs_and_what_it_began_is_told_of() {
    let stop = StopSignal::default();
    let world = cold();
    let asks = Watch(|event: &Event| {
        if matches!(event, Event::HookStarted { point, .. } if point == "after_shutdown") {
            stop.stop();
        }
    });
    let outcome = world.run_until(&asks, &stop);
    assert_eq!((outcome.failed.len(), outcome.unfinished), (0, 1));
    assert_eq!((world.row("vm-on").state, world.power("vm-on")), (VmState::Stopped, PowerState::On));
    // The stop is not that of the hook that undoes what the others did.
    assert_eq!(world.told("after_failure").unwrap()["outcome"]["state"], "stopped");
    let rows = world.store.hooks_of(PLAN, "vm-on").unwrap();
    let result = |point: &str| rows.iter().find(|row| row.point == point).unwrap().result;
    assert_eq!(result("after_shutdown"), Some(HookResult::Interrupted));
    assert_eq!(result("after_failure"), Some(HookResult::Passed));
    world.run(&NoObserver);
    world.assert_arrived("after the stop");
}

#[test]
fn a_stop_after_the_start_leaves_the_guest_at_the_target() {
    let stop = StopSignal::default();
    let world = cold();
    let asks = Watch(|event: &Event| {
        if matches!(event, Event::HookStarted { point, .. } if point == POST_START) {
            stop.stop();
        }
    });
    world.run_until(&asks, &stop);
    assert_eq!((world.row("vm-on").state, world.runs_at_target("on")), (VmState::Stopped, true));
    world.run(&NoObserver);
    world.assert_arrived("gone on with");
}

#[test]
fn a_vm_that_is_off_has_no_shutdown_and_one_that_is_not_started_no_start() {
    let world = World::with(&[vm("on", PowerState::Off, 1)], &ALL.replace("start: true", "start: false"));
    world.run(&NoObserver);
    assert_eq!(world.row("vm-on").state, VmState::Done);
    assert_eq!(points(&world), ["before_copy", "after_shutdown", "after_copy", "after_done"]);
    let events = world.store.events(PLAN).unwrap();
    assert!(events.iter().any(|event| event.text.contains("the plan does not start it")));
}
