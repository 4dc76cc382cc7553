//! What is called before and after waves: when, with what, and what comes of a failure, a stop and a kill.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drover_engine::{
    Cause, Clock, Event, HookResult, NoObserver, Phase, PlanState, VmState, cancel, plan_report,
};
use drover_mover::StopSignal;
use drover_plan::{AFTER_WAVE, BEFORE_WAVE};
use drover_types::inventory::PowerState;
use fakes::{PLAN, Trouble, Watch, World, becomes, enters, vm};

/// Two waves with hooks around the first, which two VMs are in.
fn world(lines: &str) -> World {
    let vms = [("a1", PowerState::On), ("a2", PowerState::Off), ("b1", PowerState::Off)];
    let vms = vms.map(|(name, power)| vm(name, power, 1));
    let hooks = "hooks: {before_wave: [{shell: x}, {shell: y}], after_wave: [{shell: z}]}";
    let lines = format!(
        "start: true\n{lines}\nwaves:\n  - {{name: a, if_failed: go_on, vms: [{{glob: 'a*'}}], {hooks}}}\n  \
           - {{name: b, after: [a], vms: [{{glob: 'b*'}}]}}\n"
    );
    World::with(&vms, &lines)
}

/// The points at which something was called, in order.
fn points(world: &World) -> Vec<String> {
    world.state().told.iter().map(|told| told["point"].as_str().unwrap().to_string()).collect()
}

fn begun(events: &Mutex<Vec<Event>>) -> Vec<String> {
    let of = |event: &Event| match event {
        Event::PhaseStarted { vm, phase: Phase::Check } => Some(vm.clone()),
        Event::HookEnded { wave: Some(wave), point, .. } => Some(format!("{point} {wave}")),
        _ => None,
    };
    events.lock().unwrap().iter().filter_map(of).collect()
}

#[test]
fn a_wave_begins_after_its_hooks_and_what_is_called_after_it_knows_how_it_ended() {
    let world = world("");
    let events = Mutex::new(Vec::new());
    let outcome = world.run(&Watch(|event: &Event| events.lock().unwrap().push(event.clone())));
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("with hooks around waves");
    let order = begun(&events);
    assert_eq!(order[..2], ["before_wave a", "before_wave a"], "{order:?}");
    assert_eq!(points(&world), [BEFORE_WAVE, BEFORE_WAVE, AFTER_WAVE]);
    let (before, after) = (world.told(BEFORE_WAVE).unwrap(), world.told(AFTER_WAVE).unwrap());
    assert_eq!((before["number"].as_i64(), before["wave"]["name"].as_str()), (Some(2), Some("a")));
    assert!(before["outcome"].is_null() && before["wave"]["vms"][0]["state"] == "queued", "{before}");
    let call = after["call"].as_str().unwrap();
    assert!(call.starts_with("p/wave:a/after_wave/") && call.ends_with("/1"), "{call}");
    assert_eq!(after["outcome"], serde_json::json!({"state": "done", "arrived": 2, "failed": 0}));
    assert_eq!(after["wave"]["vms"].as_array().unwrap().len(), 2);
    assert_eq!(after["wave"]["vms"][1]["target_name"], "a2");
    let report = plan_report(&world.store, PLAN).unwrap().unwrap();
    let calls: Vec<(&str, &str)> =
        report.wave_hooks.iter().map(|it| (it.wave.as_str(), it.call.point.as_str())).collect();
    assert_eq!(calls, [("a", BEFORE_WAVE), ("a", BEFORE_WAVE), ("a", AFTER_WAVE)]);
}

#[test]
fn a_hook_that_fails_before_a_wave_keeps_its_vms_and_the_next_run_asks_again() {
    for warm in [false, true] {
        let world = world(if warm { "mode: warm\nwarm: {interval: 1s, cutover: auto}" } else { "" });
        world.answer(BEFORE_WAVE, HookResult::Failed, "change freeze");
        let outcome = world.run(&NoObserver);
        assert_eq!((outcome.done, outcome.failed.len()), (1, 2), "{outcome:?}");
        assert!(outcome.failed.iter().all(|(_, cause)| *cause == Cause::Hook), "{outcome:?}");
        for name in ["vm-a1", "vm-a2"] {
            let row = world.row(name);
            let error = row.error.unwrap();
            assert!(error.contains("wave a: hook before_wave 1 (shell: x) FAILED: change freeze"), "{error}");
            assert!(row.advice.unwrap().contains("drover resume"), "{error}");
        }
        assert_eq!((world.power("vm-a1"), world.calls("shut down")), (PowerState::On, 0));
        // The second hook is not called; the wave after it goes by the rule of this one.
        assert_eq!(points(&world), [BEFORE_WAVE, AFTER_WAVE]);
        let after = world.told(AFTER_WAVE).unwrap();
        assert_eq!(after["outcome"], serde_json::json!({"state": "failed", "arrived": 0, "failed": 2}));
        assert!(world.run(&NoObserver).is_complete());
        world.assert_arrived("in the next run");
        assert_eq!(points(&world)[2..], [BEFORE_WAVE, BEFORE_WAVE, AFTER_WAVE], "it is over anew");
    }
}

#[test]
fn a_failure_that_is_a_warning_and_one_after_a_wave_stop_nothing() {
    let mut world = world("");
    world.text = world.text.replace("{shell: x}", "{shell: x, on_failure: warn}");
    world.plan = drover_plan::Plan::parse(&world.text).unwrap();
    world.answer(BEFORE_WAVE, HookResult::Failed, "no matter");
    world.answer(AFTER_WAVE, HookResult::Stop, "too late");
    assert!(world.run(&NoObserver).is_complete());
    assert_eq!(points(&world), [BEFORE_WAVE, BEFORE_WAVE, AFTER_WAVE]);
    let notes = world.notes();
    assert!(notes.contains("wave a: hook before_wave 1 (shell: x) FAILED: no matter; it goes on"), "{notes}");
    assert!(notes.contains("wave a: hook after_wave 1 (shell: z) said stop: too late"), "{notes}");
}

#[test]
fn a_hook_before_a_wave_cannot_leave_it_out() {
    let world = world("");
    world.answer(BEFORE_WAVE, HookResult::Skip, "not today");
    assert_eq!(world.run(&NoObserver).failed.len(), 2);
    let error = world.row("vm-a1").error.unwrap();
    assert!(error.contains("said skip: not today, which it cannot say at before_wave"), "{error}");
}

#[test]
fn what_is_called_before_a_wave_waits_for_its_window_and_warm_vms_are_copied_meanwhile() {
    let lines = "mode: warm\nwarm: {interval: 30m, cutover: auto}";
    let mut world = world(lines);
    world.text = world.text.replace("{name: a, ", "{name: a, from: 1970-01-01T02:00:00Z, ");
    world.plan = drover_plan::Plan::parse(&world.text).unwrap();
    let (called, down) = (Mutex::new(None), Mutex::new(None));
    let watch = Watch(|event: &Event| match event {
        Event::HookStarted { wave: Some(_), number: 1, point, .. } if point == BEFORE_WAVE => {
            let waits = || world.store.waits(PLAN).unwrap();
            let is_told = || waits().iter().any(|(_, text)| text == "what is called before wave a");
            assert!(becomes(&world, is_told), "{:?}", waits());
            *called.lock().unwrap() = Some((world.clock.now_ms(), world.store.passes(PLAN).unwrap().len()));
        }
        _ if enters(event, "a1", Phase::PowerOff) => *down.lock().unwrap() = Some(world.clock.now_ms()),
        _ => {}
    });
    let outcome = world.run(&watch);
    assert!(outcome.is_complete(), "{outcome:?}");
    let (at_ms, passes) = called.into_inner().unwrap().unwrap();
    assert!(at_ms >= 2 * 3_600_000 && passes > 2, "called at {at_ms} after {passes} passes");
    assert!(down.into_inner().unwrap().unwrap() > at_ms);
}

/// Kills the process when a hook begins.
fn dies_at(point: &'static str, number: usize) -> Watch<impl Fn(&Event) + Send + Sync> {
    Watch(move |event: &Event| {
        let Event::HookStarted { point: at, number: it, .. } = event else { return };
        assert!(at != point || *it != number, "the process dies");
    })
}

#[test]
fn after_a_kill_what_had_ended_is_not_called_again_and_what_was_at_work_is() {
    let world = world("");
    let outcome = world.run(&dies_at(BEFORE_WAVE, 2));
    assert!(outcome.failed.iter().all(|(_, cause)| *cause == Cause::Internal), "{outcome:?}");
    let failed: Vec<&str> = outcome.failed.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(failed.len(), 2, "{outcome:?}");
    assert_eq!(points(&world), [BEFORE_WAVE, AFTER_WAVE]);
    // The whole wave arrives, and the process dies when that is told.
    world.run(&dies_at(AFTER_WAVE, 1));
    assert_eq!(
        points(&world)[2..],
        [BEFORE_WAVE, BEFORE_WAVE],
        "what was called after it undid the first one"
    );
    world.store.end_plan(PLAN, PlanState::Running).unwrap();
    let outcome = world.run_plan(PLAN, &world.resumed(), &NoObserver, &StopSignal::default()).unwrap();
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!(points(&world)[4..], [AFTER_WAVE], "its wave was over, and nobody had been told");
    world.store.end_plan(PLAN, PlanState::Running).unwrap();
    world.run_plan(PLAN, &world.resumed(), &NoObserver, &StopSignal::default()).unwrap();
    assert_eq!(points(&world).len(), 5, "it ended in an earlier run");
    assert!(!world.notes().contains("is not called again"), "{}", world.notes());
}

/// Stops the run when a VM enters a phase.
fn stops_at(world: &World, name: &str, phase: Phase) {
    let stop = StopSignal::default();
    world.run_until(
        &Watch(|event: &Event| {
            if enters(event, name, phase) {
                stop.stop()
            }
        }),
        &stop,
    );
}

#[test]
fn a_wave_that_was_stopped_in_its_middle_is_not_prepared_again() {
    let world = world("");
    stops_at(&world, "a1", Phase::Copy);
    assert_eq!(points(&world), [BEFORE_WAVE, BEFORE_WAVE]);
    assert!(world.run(&NoObserver).is_complete());
    assert_eq!(points(&world)[2..], [AFTER_WAVE]);
}

#[test]
fn what_is_called_after_a_wave_undoes_what_was_before_so_the_next_run_prepares_it_again() {
    let world = world("");
    world.set_trouble("define", Trouble::Fails);
    assert_eq!(world.run(&NoObserver).failed.len(), 1);
    assert_eq!(points(&world), [BEFORE_WAVE, BEFORE_WAVE, AFTER_WAVE]);
    assert_eq!(world.told(AFTER_WAVE).unwrap()["outcome"]["state"], "failed");
    assert!(world.run(&NoObserver).is_complete());
    assert_eq!(points(&world)[3..], [BEFORE_WAVE, BEFORE_WAVE, AFTER_WAVE]);
    assert_eq!(world.told(AFTER_WAVE).unwrap()["outcome"]["state"], "done");
    // Or a server that knows the text takes it for a call that it has answered.
    let calls: BTreeSet<String> =
        world.state().told.iter().map(|told| told["call"].as_str().unwrap().to_string()).collect();
    assert_eq!(calls.len(), 6, "{calls:?}");
}

/// Until the watcher of a run has looked twice.
fn is_looked_at(world: &World) -> bool {
    let looks = || world.store.samples(PLAN).unwrap().len();
    let before = looks();
    becomes(world, || looks() >= before + 3)
}

#[test]
fn a_wave_that_is_over_while_it_is_prepared_is_undone_when_that_has_ended() {
    let mut world = world("");
    world.text = world.text.replace("{name: a, ", "{name: a, until: 1970-01-01T01:00:00Z, ");
    world.plan = drover_plan::Plan::parse(&world.text).unwrap();
    let events = Mutex::new(Vec::new());
    let watch = Watch(|event: &Event| {
        events.lock().unwrap().push(event.clone());
        if matches!(event, Event::HookStarted { point, number: 1, .. } if point == BEFORE_WAVE) {
            world.clock.sleep(Duration::from_secs(2 * 3600));
            let is_given_up = || world.row("vm-a1").state == VmState::Failed;
            assert!(becomes(&world, is_given_up) && is_looked_at(&world));
        }
    });
    let outcome = world.run(&watch);
    assert_eq!((outcome.done, outcome.failed.len()), (1, 2), "{outcome:?}");
    assert_eq!(points(&world), [BEFORE_WAVE, AFTER_WAVE], "the second one is of a wave that is over");
    let told = world.told(AFTER_WAVE).unwrap();
    assert_eq!(told["outcome"], serde_json::json!({"state": "failed", "arrived": 0, "failed": 2}));
    let events = events.into_inner().unwrap();
    let at = |wanted: fn(&Event) -> bool| events.iter().position(wanted).unwrap();
    let ended = at(|event| matches!(event, Event::HookEnded { point, .. } if point == BEFORE_WAVE));
    let after = at(|event| matches!(event, Event::HookStarted { point, .. } if point == AFTER_WAVE));
    assert!(ended < after, "what undoes it begins while it is at work");
}

#[test]
fn what_is_called_after_a_wave_waits_until_what_is_left_of_its_vms_is_undone() {
    // One after the other: the second does not arrive before the first is stopped.
    let mut world = world("limits: {vms_per_host: 1}");
    world.text = world.text.replace("{name: a, ", "{name: a, until: 1970-01-01T01:00:00Z, ");
    world.plan = drover_plan::Plan::parse(&world.text).unwrap();
    stops_at(&world, "a1", Phase::Copy);
    world.clock.sleep(Duration::from_secs(2 * 3600));
    let early = AtomicBool::new(false);
    let watch = Watch(|event: &Event| {
        if matches!(event, Event::VmEnded { vm, .. } if vm == "a1") {
            assert!(is_looked_at(&world));
            early.store(world.told(AFTER_WAVE).is_some(), Ordering::SeqCst);
        }
    });
    let outcome = world.run(&watch);
    assert_eq!((outcome.done, outcome.failed.len()), (1, 2), "{outcome:?}");
    assert!(!early.load(Ordering::SeqCst), "it was called before a VM of it had ended");
    assert_eq!(points(&world), [BEFORE_WAVE, BEFORE_WAVE, AFTER_WAVE]);
    let told = world.told(AFTER_WAVE).unwrap();
    assert_eq!(told["outcome"], serde_json::json!({"state": "failed", "arrived": 0, "failed": 2}));
}

#[test]
fn a_wave_that_never_had_its_turn_and_one_of_an_earlier_run_have_nothing_called_after_them() {
    let hooks = "hooks: {before_wave: [{shell: x}], after_wave: [{shell: z}]}";
    let vms = ["a1", "b1"].map(|name| vm(name, PowerState::Off, 1));
    let waves = format!(
        "start: true\nwaves:\n  - {{name: a, if_failed: stop, vms: [{{glob: 'a*'}}]}}\n  \
         - {{name: b, after: [a], vms: [{{glob: 'b*'}}], {hooks}}}\n"
    );
    let stopped = World::with(&vms, &waves);
    stopped.set_trouble("define", Trouble::Fails);
    assert_eq!(stopped.run(&NoObserver).failed.len(), 2);
    assert_eq!(points(&stopped), [""; 0]);
    assert!(stopped.run(&NoObserver).is_complete());
    assert_eq!(points(&stopped), [BEFORE_WAVE, AFTER_WAVE]);

    let extended = world("");
    let (a, all) = (extended.planned()[..2].to_vec(), extended.planned());
    assert!(extended.run_plan(PLAN, &a, &NoObserver, &StopSignal::default()).unwrap().is_complete());
    assert_eq!(points(&extended), [BEFORE_WAVE, BEFORE_WAVE, AFTER_WAVE]);
    assert!(extended.run_plan(PLAN, &all, &NoObserver, &StopSignal::default()).unwrap().is_complete());
    assert_eq!(points(&extended).len(), 3, "its wave was over when the plan was done");
}

#[test]
fn what_a_killed_run_owes_a_wave_that_was_over_comes_first_in_the_next_run() {
    let world = world("");
    let stop = StopSignal::default();
    let watch = Watch(|event: &Event| {
        if matches!(event, Event::HookStarted { point, .. } if point == AFTER_WAVE) {
            stop.stop();
            panic!("the process dies");
        }
        if enters(event, "b1", Phase::Check) {
            assert!(becomes(&world, || stop.is_set()));
        }
    });
    world.run_plan(PLAN, &world.planned(), &watch, &stop).unwrap();
    assert_eq!((points(&world).len(), world.row("vm-a2").state), (2, VmState::Done));
    let early = AtomicBool::new(false);
    let watch = Watch(|event: &Event| {
        if enters(event, "b1", Phase::Copy) {
            early.store(becomes(&world, || world.told(AFTER_WAVE).is_some()), Ordering::SeqCst);
        }
    });
    assert!(world.run(&watch).is_complete());
    assert!(early.load(Ordering::SeqCst), "it came after the whole run");
    assert_eq!(points(&world)[2..], [AFTER_WAVE]);
}

#[test]
fn a_run_that_only_waits_for_hooks_after_its_last_wave_heeds_cancel() {
    let world = world("");
    let (stop, heeded) = (StopSignal::default(), AtomicBool::new(false));
    let watch = Watch(|event: &Event| {
        if matches!(event, Event::HookStarted { point, .. } if point == AFTER_WAVE) {
            world.store.ask_cancel(PLAN).unwrap();
            heeded.store(becomes(&world, || stop.is_set()), Ordering::SeqCst);
        }
    });
    let outcome = world.run_plan(PLAN, &world.planned()[..2], &watch, &stop).unwrap();
    assert!(outcome.is_complete() && heeded.load(Ordering::SeqCst), "{outcome:?}");
}

#[test]
fn hooks_that_come_into_a_plan_are_not_called_after_waves_that_were_over_before() {
    let mut world = world("");
    let (text, hooks) =
        (world.text.clone(), "hooks: {before_wave: [{shell: x}, {shell: y}], after_wave: [{shell: z}]}");
    world.text = text.replace(&format!(", {hooks}"), "");
    world.plan = drover_plan::Plan::parse(&world.text).unwrap();
    stops_at(&world, "b1", Phase::Copy);
    assert_eq!(world.row("vm-a2").state, VmState::Done);
    (world.plan, world.text) = (drover_plan::Plan::parse(&text).unwrap(), text);
    assert!(world.run(&NoObserver).is_complete());
    assert_eq!(points(&world), [""; 0]);
}

#[test]
fn a_panic_of_who_looks_after_waves_ends_those_that_wait_for_a_call() {
    let mut world = world("");
    world.text = world
        .text
        .replace("{name: a, ", "{name: a, from: 1970-01-01T02:00:00Z, ")
        .replace("after: [a], ", "");
    world.plan = drover_plan::Plan::parse(&world.text).unwrap();
    let (stop, is_over) = (StopSignal::default(), AtomicBool::new(false));
    let watch = Watch(|event: &Event| {
        if matches!(event, Event::WaveStarted { .. }) {
            // From here on, nothing keeps the other wave but what is called before it.
            world.clock.sleep(Duration::from_secs(2 * 3600));
            panic!("a defect");
        }
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ends = becomes(&world, || is_over.load(Ordering::SeqCst));
            stop.stop();
            assert!(ends, "a wave waits for ever");
        });
        let run = || world.run_plan(PLAN, &world.planned(), &watch, &stop);
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "nobody is told");
        is_over.store(true, Ordering::SeqCst);
    });
    assert_eq!((points(&world).len(), world.calls("shut down")), (0, 0));
    assert!(world.run(&NoObserver).is_complete());
    assert_eq!(points(&world), [BEFORE_WAVE, BEFORE_WAVE, AFTER_WAVE]);
}

#[test]
fn a_stop_ends_a_hook_before_a_wave_and_is_no_failure() {
    let world = world("");
    let stop = StopSignal::default();
    let watch = Watch(|event: &Event| {
        if matches!(event, Event::HookStarted { .. }) {
            stop.stop();
        }
    });
    let outcome = world.run_plan(PLAN, &world.planned(), &watch, &stop).unwrap();
    assert_eq!((outcome.failed.len(), outcome.unfinished), (0, 3), "{outcome:?}");
    assert_eq!(points(&world), [BEFORE_WAVE]);
    assert!(world.run(&NoObserver).is_complete());
    assert_eq!(points(&world)[1..], [BEFORE_WAVE, BEFORE_WAVE, AFTER_WAVE]);
}

#[test]
fn a_plan_that_is_begun_anew_calls_all_of_them_again() {
    let world = world("");
    world.set_trouble("define", Trouble::Fails);
    assert_eq!(world.run(&NoObserver).failed.len(), 1);
    assert_eq!(points(&world), [BEFORE_WAVE, BEFORE_WAVE, AFTER_WAVE]);
    cancel(PLAN, &world.store, &world, &world).unwrap();
    assert!(world.run(&NoObserver).is_complete());
    assert_eq!(points(&world)[3..], [BEFORE_WAVE, BEFORE_WAVE, AFTER_WAVE]);
}
