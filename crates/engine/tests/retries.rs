//! VMs that failed and are tried again by order, while their run goes on.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use drover_disk::memory::{Effect, Nth};
use drover_disk::{DiskErrorKind, DiskOp};
use drover_engine::{
    Cause, Event, HookResult, NoObserver, Phase, RunOutcome, VmState, ask_proceed, ask_retry, plan_report,
};
use drover_mover::StopSignal;
use drover_plan::{AFTER_WAVE, BEFORE_WAVE};
use drover_types::inventory::PowerState;
use fakes::{PLAN, Trouble, Watch, World, becomes, enters, vm};

fn world() -> World {
    let vms = [("one", PowerState::On), ("two", PowerState::Off)].map(|(name, power)| vm(name, power, 1));
    World::with(&vms, "start: true")
}

fn retry(world: &World, name: &str) -> Vec<String> {
    ask_retry(&world.store, PLAN, Some(&[name.into()])).unwrap()
}

fn refused(world: &World, name: &str) -> String {
    let error = ask_retry(&world.store, PLAN, Some(&[name.into()])).unwrap_err();
    assert!(error.advice().is_some(), "{}", error.chain());
    error.chain()
}

fn fails(event: &Event, name: &str) -> bool {
    matches!(event, Event::VmEnded { vm, state: VmState::Failed, .. } if vm == name)
}

/// Kinds of the events of a VM that tell of its tries.
fn tries(world: &World, id: &str) -> Vec<String> {
    let events = world.store.events_of(PLAN, id).unwrap();
    events.into_iter().map(|it| it.kind).filter(|kind| kind == "error" || kind == "retry").collect()
}

/// The first time that `one` fails, `two` waits with its copy until `one` has arrived.
fn beside_a_slow_one(world: &World, then: impl Fn(&Event) + Send + Sync) -> RunOutcome {
    let outcome = world.run(&Watch(|event: &Event| {
        then(event);
        if enters(event, "two", Phase::Copy) {
            assert!(
                becomes(world, || world.row("vm-one").state == VmState::Done),
                "it arrives beside this one"
            );
        }
    }));
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("in the end");
    outcome
}

#[test]
fn one_that_failed_is_tried_again_and_arrives_while_another_is_copied() {
    for call in ["create snapshot", "open source", "open target", "define", "start"] {
        let world = world();
        // Of `one`: `two` waits.
        let first = AtomicBool::new(true);
        let told = Mutex::new(Vec::new());
        let outcome = beside_a_slow_one(&world, |event| {
            if enters(event, "one", Phase::Check) && first.swap(false, Ordering::SeqCst) {
                assert!(becomes(&world, || world.row("vm-two").phase.as_deref() == Some("copy")));
                world.set_trouble(call, Trouble::Fails);
            }
            if let Event::VmEnded { vm, .. } | Event::VmRetried { vm, .. } = event
                && vm == "one"
            {
                told.lock().unwrap().push(event.clone());
            }
            if fails(event, "one") {
                assert_eq!(world.power("vm-one"), PowerState::On, "{call}: it is undone");
                assert_eq!(retry(&world, "one"), ["one"]);
                // A second order before the first is heeded changes nothing.
                assert_eq!(retry(&world, "one"), ["one"]);
            }
        });
        assert_eq!((outcome.done, outcome.ends.len()), (2, 2), "{call}");
        let told = told.into_inner().unwrap();
        let [
            Event::VmEnded { error: Some(why), .. },
            Event::VmRetried { error, .. },
            Event::VmEnded { error: None, .. },
        ] = told.as_slice()
        else {
            panic!("{call}: {told:?}")
        };
        assert_eq!(error.as_ref(), Some(why), "{call}");
        assert_eq!(tries(&world, "vm-one"), ["error", "retry"], "{call}");
        let report = plan_report(&world.store, PLAN).unwrap().unwrap();
        let one = report.vms.iter().find(|it| it.row.id == "vm-one").unwrap();
        assert_eq!((one.row.error.as_ref(), one.row.cause.as_ref()), (None, None), "{call}");
        assert_eq!(one.phases.iter().filter(|it| it.phase == "check").count(), 2, "{call}: both tries");
    }
}

#[test]
fn what_was_copied_is_not_copied_again() {
    let world = World::with(&["one", "two"].map(|name| vm(name, PowerState::Off, 1)), "start: true");
    let read = AtomicUsize::new(0);
    world.set_trouble("define", Trouble::Fails);
    let outcome = world.run(&Watch(|event: &Event| {
        if enters(event, "two", Phase::Check) {
            assert!(becomes(&world, || world.row("vm-one").state == VmState::Done));
        }
        if fails(event, "one") {
            read.store(world.read()["one/2000"] as usize, Ordering::SeqCst);
            retry(&world, "one");
        }
    }));
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("in the end");
    let (first, all) = (read.into_inner(), world.read()["one/2000"] as usize);
    assert!(first > 0 && all < 2 * first, "{first} bytes by the first try, {all} by both");
}

#[test]
fn it_may_be_tried_again_and_again() {
    let world = world();
    (0..3).for_each(|_| world.set_trouble("create snapshot", Trouble::Fails));
    let failures = AtomicUsize::new(0);
    let outcome = world.run(&Watch(|event: &Event| {
        if enters(event, "two", Phase::Snapshot) {
            assert!(becomes(&world, || world.row("vm-one").state == VmState::Done));
        }
        if fails(event, "one") {
            failures.fetch_add(1, Ordering::SeqCst);
            retry(&world, "one");
        }
    }));
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!(failures.into_inner(), 3);
    assert_eq!(tries(&world, "vm-one"), ["error", "retry"].repeat(3));
    world.assert_arrived("in the end");
}

#[test]
fn the_last_one_that_fails_is_tried_again_before_the_run_ends() {
    let world = world();
    // Both are through but for this.
    let first = AtomicBool::new(true);
    let outcome = world.run(&Watch(|event: &Event| {
        if enters(event, "one", Phase::Snapshot) && first.swap(false, Ordering::SeqCst) {
            assert!(becomes(&world, || world.row("vm-two").state == VmState::Done));
            world.set_trouble("create snapshot", Trouble::Fails);
        }
        if fails(event, "one") {
            retry(&world, "one");
        }
    }));
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("in the end");
}

#[test]
fn a_run_that_has_ended_takes_no_order_and_names_the_command_that_does() {
    let world = world();
    world.set_trouble("create snapshot", Trouble::Fails);
    let late = Mutex::new(None);
    let outcome = world.run(&Watch(|event: &Event| {
        if matches!(event, Event::PlanEnded { .. }) {
            let failed = world.store.vms(PLAN).unwrap().into_iter().find(|row| row.state == VmState::Failed);
            *late.lock().unwrap() = Some(refused(&world, &failed.unwrap().name));
        }
    }));
    assert_eq!((outcome.done, outcome.failed.len()), (1, 1));
    let late = late.into_inner().unwrap().unwrap();
    assert!(late.ends_with("the run of plan p has only begun, or is about to end"), "{late}");
    let error = ask_retry(&world.store, PLAN, None).unwrap_err();
    assert!(error.chain().ends_with("nothing runs plan p") && error.cause() == Cause::Plan, "{error:?}");
    assert!(error.advice().unwrap().contains("`drover resume p`"), "{:?}", error.advice());
    assert!(world.run(&NoObserver).is_complete());
}

#[test]
fn what_has_not_failed_is_refused_by_name() {
    let world = world();
    world.set_trouble("remove snapshot", Trouble::Fails);
    let looked = AtomicBool::new(false);
    world.run(&Watch(|event: &Event| {
        if !enters(event, "one", Phase::Check) {
            return;
        }
        assert!(refused(&world, "one").ends_with("one is at work, and did not fail"));
        assert!(refused(&world, "on").contains("plan p has no VM 'on'"));
        assert!(becomes(&world, || world.row("vm-two").state == VmState::NotCleanedUp));
        assert!(refused(&world, "two").ends_with("two has arrived, and only its clean-up failed"));
        // One that is refused keeps all others from being ordered.
        let both = ["one".to_string(), "two".to_string()];
        assert!(ask_retry(&world.store, PLAN, Some(&both)).is_err());
        let none = ask_retry(&world.store, PLAN, None).unwrap_err();
        assert!(none.chain().ends_with("no VM of plan p has failed"), "{}", none.chain());
        looked.store(true, Ordering::SeqCst);
    }));
    assert!(looked.into_inner());
}

#[test]
fn one_that_a_hook_left_out_is_refused() {
    let vms = ["one", "two"].map(|name| vm(name, PowerState::Off, 1));
    let hooks = "hooks: {before_copy: [{shell: x}]}";
    let world = World::with(&vms, &format!("start: true\n{hooks}"));
    world.answer("before_copy", HookResult::Skip, "not today");
    let seen = Mutex::new(String::new());
    world.run(&Watch(|event: &Event| {
        if let Event::VmEnded { vm, state: VmState::Skipped, .. } = event {
            *seen.lock().unwrap() = refused(&world, vm);
        }
    }));
    let seen = seen.into_inner().unwrap();
    assert!(seen.ends_with("was left out by a hook, and did not fail"), "{seen}");
}

#[test]
fn a_stop_while_it_waits_for_its_slot_leaves_it_to_the_next_run() {
    let vms = ["one", "two"].map(|name| vm(name, PowerState::On, 1));
    let world = World::with(&vms, "start: true\nlimits: {vms_per_host: 1}");
    world.set_trouble("create snapshot", Trouble::Fails);
    let (stop, failed) = (StopSignal::default(), Mutex::new(None::<String>));
    let outcome = {
        let watch = Watch(|event: &Event| match event {
            Event::VmEnded { vm, state: VmState::Failed, .. } => {
                *failed.lock().unwrap() = Some(vm.clone());
                retry(&world, vm);
            }
            // The other one is at work: its host has no slot for both.
            Event::PhaseStarted { phase: Phase::Copy, .. } => {
                let failed = failed.lock().unwrap().clone().unwrap();
                assert!(becomes(&world, || world.row(&format!("vm-{failed}")).state == VmState::Queued));
                stop.stop();
            }
            _ => {}
        });
        world.run_until(&watch, &stop)
    };
    assert_eq!((outcome.failed.len(), outcome.unfinished), (0, 2), "{outcome:?}");
    let failed = format!("vm-{}", failed.into_inner().unwrap().unwrap());
    let row = world.row(&failed);
    assert_eq!(
        (row.state, world.power(&failed), world.own_snapshots()),
        (VmState::Queued, PowerState::On, 0)
    );
    assert!(world.run(&NoObserver).is_complete());
    world.assert_arrived("in the next run");
}

#[test]
fn an_order_to_a_run_that_stops_is_dropped_with_a_note() {
    let world = world();
    world.set_trouble("create snapshot", Trouble::Fails);
    let stop = StopSignal::default();
    let watch = Watch(|event: &Event| {
        if let Event::VmEnded { vm, state: VmState::Failed, .. } = event {
            stop.stop();
            // Whoever orders it cannot know of the stop yet.
            let _ = ask_retry(&world.store, PLAN, Some(std::slice::from_ref(vm)));
        }
    });
    let outcome = world.run_until(&watch, &stop);
    assert_eq!(outcome.failed.len(), 1, "{outcome:?}");
    assert!(world.run(&NoObserver).is_complete());
}

/// The process is killed at a moment of the second try; the next run arrives.
#[test]
fn a_kill_after_the_order_loses_nothing() {
    for phase in [Phase::Check, Phase::Snapshot, Phase::Copy, Phase::Define, Phase::Start, Phase::CleanUp] {
        let world = world();
        world.set_trouble("create snapshot", Trouble::Fails);
        let retried = Mutex::new(None::<String>);
        world.run(&Watch(|event: &Event| {
            if let Event::VmRetried { vm, .. } = event {
                *retried.lock().unwrap() = Some(vm.clone());
            }
            if let Event::VmEnded { vm, state: VmState::Failed, error: Some(error), .. } = event
                && !error.starts_with("internal error")
            {
                retry(&world, vm);
            }
            let again = retried.lock().unwrap().clone();
            assert!(!again.is_some_and(|vm| enters(event, &vm, phase)), "the process dies");
        }));
        assert!(retried.into_inner().unwrap().is_some(), "{phase}");
        world.as_if_killed();
        let outcome = world.run(&NoObserver);
        assert!(outcome.is_complete(), "{phase}: {outcome:?}");
        world.assert_arrived(&format!("after a kill in {phase}"));
    }
}

#[test]
fn an_order_that_a_killed_run_left_behind_is_forgotten_by_the_next_one() {
    let world = world();
    world.set_trouble("create snapshot", Trouble::Fails);
    world.run(&NoObserver);
    // As if it had been killed before it heeded one.
    world.store.begin_plan(PLAN, &world.text, std::path::Path::new("/")).unwrap();
    world.store.enter_vms(PLAN, []).unwrap();
    assert!(world.store.ask_retry(PLAN, &["vm-one", "vm-two"]).unwrap());
    let retried = AtomicUsize::new(0);
    let outcome = world.run(&Watch(|event: &Event| {
        if matches!(event, Event::VmRetried { .. }) {
            retried.fetch_add(1, Ordering::SeqCst);
        }
    }));
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!(retried.into_inner(), 0, "a run tries all that failed");
}

/// Whatever ends the first try, the second arrives.
#[test]
fn a_second_try_finds_done_what_the_first_one_could_not_undo() {
    for (fails_first, undo) in
        [("define", "remove snapshot"), ("start", "undo define"), ("open target", "power on")]
    {
        let world = World::with(&[vm("one", PowerState::On, 1)], "start: true");
        world.set_trouble(fails_first, Trouble::Fails);
        world.set_trouble(undo, Trouble::Fails);
        let outcome = world.run(&Watch(|event: &Event| {
            if fails(event, "one") {
                retry(&world, "one");
            }
        }));
        assert!(outcome.is_complete(), "{fails_first}, {undo}: {outcome:?}");
        assert!(world.trouble_struck(), "{fails_first}, {undo}");
        world.assert_arrived(&format!("{fails_first}, {undo}"));
    }
}

#[test]
fn a_warm_vm_is_tried_again_with_its_passes() {
    let world = World::warm("warm: {interval: 1s, cutover: auto}");
    world.set_trouble("define", Trouble::Fails);
    let outcome = world.run(&Watch(|event: &Event| {
        if fails(event, "on") {
            assert_eq!(world.power("vm-on"), PowerState::On, "it is switched on again");
            retry(&world, "on");
        }
    }));
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("by its second try");
}

/// Two VMs in a first wave, one in another that is after it.
fn waves(if_failed: &str, hooks: &str) -> World {
    let vms = ["a1", "a2", "b1"].map(|name| vm(name, PowerState::Off, 1));
    let lines = format!(
        "start: true\nwaves:\n  - {{name: a, if_failed: {if_failed}, vms: [{{glob: 'a*'}}]{hooks}}}\n  \
           - {{name: b, after: [a], vms: [{{glob: 'b*'}}]}}\n"
    );
    World::with(&vms, &lines)
}

#[test]
fn a_wave_that_waits_for_a_word_goes_on_without_one_when_what_failed_has_arrived() {
    let world = waves("wait", "");
    world.set_trouble("create snapshot", Trouble::Fails);
    let told = Mutex::new(Vec::new());
    let outcome = world.run(&Watch(|event: &Event| {
        match event {
            Event::WaveHeld { .. } => {
                let all = ask_retry(&world.store, PLAN, None).unwrap();
                assert_eq!(all.len(), 1, "{all:?}");
            }
            Event::PhaseStarted { vm, phase: Phase::Check } if vm == "b1" => {
                let rows = world.store.vms(PLAN).unwrap();
                let arrived = rows.iter().filter(|row| row.state == VmState::Done).count();
                assert_eq!(arrived, 2, "it begins after both of the first wave");
            }
            _ => {}
        }
        if let Event::WaveEnded { wave, arrived, failed } = event {
            told.lock().unwrap().push(format!("{wave}: {arrived} and {failed}"));
        }
    }));
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("in their waves");
    assert_eq!(told.into_inner().unwrap(), ["a: 1 and 1", "a: 2 and 0", "b: 1 and 0"]);
}

#[test]
fn those_that_never_began_because_of_it_are_tried_again_behind_it() {
    let world = waves("stop", "");
    world.set_trouble("create snapshot", Trouble::Fails);
    let (order, ordered) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    let outcome = world.run(&Watch(|event: &Event| {
        if let Event::VmEnded { vm, error, .. } = event {
            if error.is_none() {
                order.lock().unwrap().push(vm.clone());
            }
            let is_last = vm == "b1" && error.is_some();
            if is_last && !ordered.swap(true, Ordering::SeqCst) {
                let all = ask_retry(&world.store, PLAN, None).unwrap();
                assert_eq!(all.len(), 2, "{all:?}");
            }
        }
    }));
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("in their waves");
    assert_eq!(order.into_inner().unwrap().last().unwrap(), "b1");
}

#[test]
fn a_wave_that_went_on_by_a_word_does_not_wait_again() {
    let world = waves("wait", "");
    world.set_trouble("create snapshot", Trouble::Fails);
    let failed = Mutex::new(String::new());
    let outcome = world.run(&Watch(|event: &Event| match event {
        Event::VmEnded { vm, state: VmState::Failed, .. } => *failed.lock().unwrap() = vm.clone(),
        Event::WaveHeld { .. } => drop(ask_proceed(&world.store, PLAN, "a").unwrap()),
        Event::PhaseStarted { vm, phase: Phase::Copy } if vm == "b1" => {
            let failed = failed.lock().unwrap().clone();
            retry(&world, &failed);
            let row = || world.row(&format!("vm-{failed}"));
            assert!(becomes(&world, || row().state == VmState::Done), "it arrives beside the next wave");
        }
        _ => {}
    }));
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("in the end");
}

/// The points at which something was called about waves, in order.
fn points(world: &World) -> Vec<String> {
    world.state().told.iter().map(|told| told["point"].as_str().unwrap().to_string()).collect()
}

#[test]
fn around_a_wave_that_was_over_all_is_called_again() {
    let hooks = ", hooks: {before_wave: [{shell: x}], after_wave: [{shell: y}]}";
    let world = waves("go_on", hooks);
    world.set_trouble("create snapshot", Trouble::Fails);
    let failed = Mutex::new(String::new());
    let outcome = world.run(&Watch(|event: &Event| match event {
        Event::VmEnded { vm, state: VmState::Failed, .. } => *failed.lock().unwrap() = vm.clone(),
        Event::HookEnded { point, .. } if point == AFTER_WAVE && points(&world).len() == 2 => {
            let failed = failed.lock().unwrap().clone();
            retry(&world, &failed);
        }
        _ => {}
    }));
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("in the end");
    assert_eq!(points(&world), [BEFORE_WAVE, AFTER_WAVE, BEFORE_WAVE, AFTER_WAVE]);
    let last = world.told(AFTER_WAVE).unwrap();
    assert_eq!(last["outcome"], serde_json::json!({"state": "done", "arrived": 2, "failed": 0}));
}

#[test]
fn what_failed_before_a_wave_is_called_again_for_those_that_are_tried_again() {
    let hooks = ", hooks: {before_wave: [{shell: x}], after_wave: [{shell: y}]}";
    let world = waves("stop", hooks);
    world.answer(BEFORE_WAVE, HookResult::Failed, "change freeze");
    let ends = AtomicUsize::new(0);
    let outcome = world.run(&Watch(|event: &Event| {
        if matches!(event, Event::VmEnded { state: VmState::Failed, .. })
            && ends.fetch_add(1, Ordering::SeqCst) == 2
        {
            assert_eq!(ask_retry(&world.store, PLAN, None).unwrap().len(), 3);
        }
    }));
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("in the end");
    let points = points(&world);
    assert_eq!(points.iter().filter(|point| *point == BEFORE_WAVE).count(), 2, "{points:?}");
    assert_eq!(points.last().unwrap(), AFTER_WAVE);
}

#[test]
fn a_host_that_was_given_up_is_tried_again_for_it() {
    // As many as it takes until the host is given up, and some that never begin.
    let vms: Vec<_> = (0..12).map(|at| vm(&format!("a{at:02}"), PowerState::Off, 1)).collect();
    let world = World::with(&vms, "start: true\nlimits: {vms_per_host: 1}");
    for disk in world.sources.values() {
        disk.add_fault(DiskOp::Read, Nth::From(1), Effect::Fail(DiskErrorKind::Failed));
    }
    // A wait for the host takes a few looks.
    world.clock.slow_down(60_000);
    let ended = AtomicUsize::new(0);
    let outcome = world.run(&Watch(|event: &Event| {
        if matches!(event, Event::VmEnded { state: VmState::Failed, .. })
            && ended.fetch_add(1, Ordering::SeqCst) + 1 == vms.len()
        {
            world.sources.values().for_each(|disk| disk.clear_faults());
            assert_eq!(ask_retry(&world.store, PLAN, None).unwrap().len(), vms.len());
        }
    }));
    assert!(outcome.is_complete(), "{outcome:?}");
    world.assert_arrived("once the host was well");
}

#[test]
fn the_event_of_a_second_try_comes_before_it_begins() {
    let world = world();
    world.set_trouble("create snapshot", Trouble::Fails);
    let events = Mutex::new(Vec::new());
    world.run(&Watch(|event: &Event| {
        events.lock().unwrap().push(event.clone());
        if let Event::VmEnded { vm, state: VmState::Failed, .. } = event {
            retry(&world, vm);
        }
    }));
    let events = events.into_inner().unwrap();
    let at = events.iter().position(|it| matches!(it, Event::VmRetried { .. })).unwrap();
    let Event::VmRetried { vm, .. } = &events[at] else { unreachable!() };
    let checks = |range: &[Event]| range.iter().filter(|it| enters(it, vm, Phase::Check)).count();
    assert_eq!((checks(&events[..at]), checks(&events[at..])), (1, 1));
}

/// By the clock of whoever orders it; the run's own is still in 1970 when it begins.
#[test]
fn one_whose_wave_is_over_is_refused_with_the_reason() {
    let wave = "waves: [{name: night, until: 1970-01-01T01:00:00Z, vms: [{name: one}]}]";
    let world = World::with(&[vm("one", PowerState::Off, 1)], &format!("start: true\n{wave}"));
    world.set_trouble("create snapshot", Trouble::Fails);
    let told = Mutex::new(Vec::new());
    let outcome = world.run(&Watch(|event: &Event| {
        if fails(event, "one") {
            let all = ask_retry(&world.store, PLAN, None).unwrap_err();
            *told.lock().unwrap() = vec![refused(&world, "one"), refused(&world, "o*"), all.chain()];
        }
    }));
    assert_eq!((outcome.done, outcome.failed.len()), (0, 1), "{outcome:?}");
    let told = told.into_inner().unwrap();
    assert_eq!(told.len(), 3);
    let why = "the window of wave night is over, so one would fail again at once";
    assert!(told.iter().all(|it| it.contains(why)), "{told:?}");
}

#[test]
fn a_pattern_that_matches_one_whose_wave_is_over_leaves_none_out_unseen() {
    let waves = "waves: [{name: night, until: 1970-01-01T01:00:00Z, vms: [{name: one}]}, \
                 {name: any, vms: [{name: two}]}]";
    let vms = ["one", "two"].map(|name| vm(name, PowerState::Off, 1));
    let world = World::with(&vms, &format!("start: true\n{waves}"));
    (0..2).for_each(|_| world.set_trouble("create snapshot", Trouble::Fails));
    let (failed, told) = (AtomicUsize::new(0), Mutex::new(String::new()));
    let outcome = world.run(&Watch(|event: &Event| {
        let has_failed = fails(event, "one") || fails(event, "two");
        if has_failed && failed.fetch_add(1, Ordering::SeqCst) == 1 {
            *told.lock().unwrap() = refused(&world, "*");
            assert_eq!(retry(&world, "two"), ["two"]);
        }
    }));
    assert_eq!((outcome.done, outcome.failed.len()), (1, 1), "{outcome:?}");
    let told = told.into_inner().unwrap();
    assert!(told.contains("the window of wave night is over, so one would fail again at once"), "{told}");
}
