//! Waves where something comes late: slots for a cutover, the undo of what failed.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drover_engine::{Clock, Event, HookResult, Phase, Schedule, VmState};
use drover_mover::StopSignal;
use drover_schedule::Budgets;
use drover_types::inventory::{PowerState, Vm};
use fakes::{PLAN, Trouble, Watch, World, becomes, enters, vm};

const HOUR_MS: i64 = 3_600_000;

/// A cold VM takes the only slot of the host when the warm one is ready to move over, and keeps it until the window is over.
#[test]
fn a_warm_vm_that_waits_for_slots_until_its_window_is_over_does_not_move_over() {
    for (line, moves) in [("until: 1970-01-01T01:00:00Z", false), ("window: 00:00-01:00", true)] {
        let lines = format!(
            "start: true\nverify: full\nmode: warm\nwarm: {{interval: 30m, cutover: manual}}\nlimits: {{vms_per_host: 1}}\n\
             waves: [{{name: night, {line}, vms: [{{name: on}}]}}, \
             {{name: late, from: 1970-01-01T00:40:00Z, vms: [{{name: off}}]}}]\n"
        );
        let world = World::with(&[vm("on", PowerState::On, 1), vm("off", PowerState::Off, 1)], &lines);
        let mut planned = world.planned();
        planned.iter_mut().filter(|vm| vm.vm.name == "off").for_each(|vm| vm.warm = None);
        let (copies, down) = (AtomicBool::new(false), Mutex::new(None));
        let waits_for_slots = || {
            let waits = world.store.waits(PLAN).unwrap();
            waits.iter().any(|(vm, text)| vm == "vm-on" && text.contains("VMs at once"))
        };
        let watch = Watch(|event: &Event| {
            if matches!(event, Event::PassWaits { number: 3, .. }) {
                world.store.ask_cutover(PLAN, None).unwrap();
            }
            let is_proved = matches!(event, Event::Note { text, .. } if text.contains("is read back before"));
            if is_proved && !copies.load(Ordering::SeqCst) {
                world.clock.sleep(Duration::from_secs(15 * 60));
                assert!(becomes(&world, || copies.load(Ordering::SeqCst)), "the cold one does not begin");
            }
            if enters(event, "off", Phase::Copy) {
                copies.store(true, Ordering::SeqCst);
                assert!(becomes(&world, waits_for_slots), "the warm one does not ask to move over");
                world.clock.sleep(Duration::from_millis(2 * HOUR_MS as u64));
                assert!(
                    becomes(&world, || !waits_for_slots()),
                    "{line}: it stands among those that move over"
                );
            }
            if enters(event, "on", Phase::PowerOff) {
                *down.lock().unwrap() = Some(world.clock.now_ms());
            }
        });
        let outcome = world.run_plan(PLAN, &planned, &watch, &StopSignal::default()).unwrap();
        let down = down.into_inner().unwrap();
        assert_eq!((outcome.done, down.is_some()), (1 + usize::from(moves), moves), "{line}: {outcome:?}");
        assert!(down.is_none_or(|at| at >= 24 * HOUR_MS), "{line}: it went down at {down:?}");
        let power = if moves { PowerState::Off } else { PowerState::On };
        assert_eq!(world.power("vm-on"), power, "{line}");
        let told = world.notes().contains("its window closed while it waited for slots");
        assert_eq!(told, moves, "{line}: {}", world.notes());
        // With a later end no guest goes down by the order of the night that is over.
        assert!(!world.store.cutover_asked(PLAN, "vm-on").unwrap(), "{line}: the order is not used up");
        let error = world.row("vm-on").error.unwrap_or_default();
        assert_eq!(error.contains("is used up, and has to be ordered again"), !moves, "{line}: {error}");
    }
}

/// One cutover at a time, and a host that is full of a first copy.
#[test]
fn a_vm_that_waits_for_slots_keeps_none_of_another_host_from_moving_over() {
    let far = Vm { host_id: "host-2".into(), ..vm("far", PowerState::On, 1) };
    let lines = "start: true\nmode: warm\nwarm: {interval: 30m, cutover: manual}\nlimits: {vms_per_host: 1}";
    let mut world = World::with(&[vm("on", PowerState::On, 1), vm("off", PowerState::Off, 1), far], lines);
    let budgets = Budgets { vms_per_host: 1, cutovers: 1, ..Budgets::default() };
    world.schedule = Some(Arc::new(Schedule::new(budgets)));
    let mut planned = world.planned();
    let cold = planned.iter_mut().filter(|vm| vm.vm.name == "off");
    cold.for_each(|vm| (vm.warm, vm.priority) = (None, -1));
    let [passed, asked, full] = [(); 3].map(|()| AtomicBool::new(false));
    let waits_for_slots = || {
        let waits = world.store.waits(PLAN).unwrap();
        waits.iter().any(|(vm, text)| vm == "vm-on" && text.contains("VMs at once"))
    };
    let watch = Watch(|event: &Event| {
        passed.fetch_or(
            matches!(event, Event::PassWaits { vm, number: 2.., .. } if vm == "far"),
            Ordering::SeqCst,
        );
        if enters(event, "off", Phase::Copy) {
            assert!(becomes(&world, || passed.load(Ordering::SeqCst)), "the far one makes no pass");
            world.store.ask_cutover(PLAN, Some("on")).unwrap();
            full.store(becomes(&world, waits_for_slots), Ordering::SeqCst);
            world.store.ask_cutover(PLAN, Some("far")).unwrap();
            let has_arrived = becomes(&world, || world.row("vm-far").state == VmState::Done);
            asked.store(has_arrived, Ordering::SeqCst);
        }
    });
    let outcome = world.run_plan(PLAN, &planned, &watch, &StopSignal::default()).unwrap();
    assert!(outcome.is_complete(), "{outcome:?}");
    assert!(full.load(Ordering::SeqCst), "the first one did not wait for slots");
    assert!(asked.load(Ordering::SeqCst), "it waited for one that only waits for slots");
}

/// A host on which first copies follow one another, and one cutover at a time that others want as well.
#[test]
fn a_vm_that_has_waited_for_its_slots_is_the_next_to_move_over() {
    let at = |host: &str, name| Vm { host_id: host.into(), ..vm(name, PowerState::On, 1) };
    let vms = [
        at("host-1", "on"),
        at("host-1", "c1"),
        at("host-1", "c2"),
        at("host-2", "far1"),
        at("host-2", "far2"),
    ];
    let lines = "start: true\nmode: warm\nwarm: {interval: 30m, cutover: manual}\nlimits: {vms_per_host: 1}\n\
                 waves: [{name: now, vms: [{name: on}, {glob: 'far*'}]}, \
                 {name: late, from: 1970-01-01T03:00:00Z, vms: [{glob: 'c*'}]}]";
    let mut world = World::with(&vms, lines);
    let budgets = Budgets { vms_per_host: 1, cutovers: 1, ..Budgets::default() };
    world.schedule = Some(Arc::new(Schedule::new(budgets)));
    let mut planned = world.planned();
    let cold = planned.iter_mut().filter(|vm| vm.vm.name.starts_with('c'));
    cold.for_each(|vm| vm.warm = None);
    let (passed, down, copies) =
        (Mutex::new(BTreeSet::new()), Mutex::new(Vec::new()), AtomicBool::new(false));
    let is_done = |name: &str| world.row(&format!("vm-{name}")).state == VmState::Done;
    let waits_for_slots = || {
        let waits = world.store.waits(PLAN).unwrap();
        waits.iter().any(|(vm, text)| vm == "vm-on" && text.contains("VMs at once"))
    };
    let goes_down = |name: &str| down.lock().unwrap().iter().any(|it| it == name);
    let watch = Watch(|event: &Event| {
        if let Event::PassWaits { vm, number: 3.., .. } = event {
            let is_first = passed.lock().unwrap().insert(vm.clone());
            // Between two passes, so that it waits for no slots but those for its cutover.
            if vm == "on" && is_first {
                assert!(becomes(&world, || copies.load(Ordering::SeqCst)), "its host has room");
                world.store.ask_cutover(PLAN, Some("on")).unwrap();
            }
        }
        // Each first copy ends when another has taken the cutover, which that keeps until the copy is over.
        for (copy, far) in [("c1", "far1"), ("c2", "far2")] {
            if enters(event, copy, Phase::Copy) {
                copies.store(true, Ordering::SeqCst);
                assert!(becomes(&world, || passed.lock().unwrap().len() == 3), "they make no passes");
                assert!(becomes(&world, || waits_for_slots() || goes_down("on")), "it asks for no slots");
                world.store.ask_cutover(PLAN, Some(far)).unwrap();
                assert!(becomes(&world, || goes_down(far)), "{far} does not move over");
            }
            if enters(event, far, Phase::PowerOff) {
                down.lock().unwrap().push(far.to_string());
                assert!(becomes(&world, || is_done(copy)), "{copy} is not over");
            }
        }
        if enters(event, "on", Phase::PowerOff) {
            down.lock().unwrap().push("on".into());
        }
    });
    let outcome = world.run_plan(PLAN, &planned, &watch, &StopSignal::default()).unwrap();
    assert!(outcome.is_complete(), "{outcome:?}");
    assert_eq!(down.into_inner().unwrap(), ["far1", "on", "far2"]);
}

/// What is called before a shutdown may take as long as it likes: then the guest stays up until its window opens again.
#[test]
fn a_window_that_closes_while_hooks_run_keeps_the_guest_up() {
    let moment = "mode: warm\nwarm: {interval: 30m, cutover: '1970-01-01T00:30:00Z'}";
    for mode in ["mode: cold", "mode: warm\nwarm: {interval: 30m, cutover: auto}", moment] {
        let lines = format!(
            "start: true\n{mode}\nhooks: {{before_shutdown: [{{shell: a}}]}}\n\
             waves: [{{name: night, window: 00:00-01:00, vms: [{{glob: '*'}}]}}]"
        );
        let world = World::with(&[vm("on", PowerState::On, 1)], &lines);
        let (calls, down) = (AtomicUsize::new(0), Mutex::new(None));
        let watch = Watch(|event: &Event| {
            if matches!(event, Event::HookStarted { .. }) && calls.fetch_add(1, Ordering::SeqCst) == 0 {
                world.clock.sleep(Duration::from_millis(2 * HOUR_MS as u64));
            }
            if matches!(event, Event::Note { text, .. } if text.contains("its window closed while")) {
                world.clock.sleep(Duration::from_millis(22 * HOUR_MS as u64));
            }
            if enters(event, "on", Phase::PowerOff) {
                *down.lock().unwrap() = Some(world.clock.now_ms());
            }
        });
        let outcome = world.run_plan(PLAN, &world.planned(), &watch, &StopSignal::default()).unwrap();
        assert!(outcome.is_complete(), "{mode}: {outcome:?}");
        world.assert_arrived(mode);
        let down = down.into_inner().unwrap().unwrap();
        assert!(down >= 24 * HOUR_MS, "{mode}: it went down at {down}");
        assert!(
            calls.load(Ordering::SeqCst) >= 2,
            "{mode}: what is called before a shutdown is called again"
        );
        assert_eq!(world.calls("shut down"), 1, "{mode}");
        assert!(world.notes().contains("its window closed while"), "{mode}: {}", world.notes());
    }
}

/// What took the guest out of service is taken back before it waits.
#[test]
fn a_guest_that_waits_for_its_window_after_hooks_is_told_and_one_that_they_shut_down_does_not_wait() {
    for mode in ["mode: cold", "mode: warm\nwarm: {interval: 30m, cutover: auto}"] {
        for goes_off in [false, true] {
            let lines = format!(
                "start: true\n{mode}\nhooks: {{before_shutdown: [{{shell: drain}}], after_failure: [{{shell: undrain}}]}}\n\
                 waves: [{{name: night, window: 00:00-01:00, vms: [{{glob: '*'}}]}}]"
            );
            let world = World::with(&[vm("on", PowerState::On, 1)], &lines);
            let (called, down) = (Mutex::new(None), Mutex::new(None));
            let watch = Watch(|event: &Event| {
                let is_first = |it: &str| it == "before_shutdown" && called.lock().unwrap().is_none();
                if matches!(event, Event::HookEnded { point, .. } if is_first(point)) {
                    *called.lock().unwrap() = Some(world.clock.now_ms());
                    world.clock.sleep(Duration::from_millis(2 * HOUR_MS as u64));
                    if goes_off {
                        world.set_power("vm-on", PowerState::Off);
                    }
                }
                if matches!(event, Event::Note { text, .. } if text.contains("its window closed while")) {
                    world.clock.sleep(Duration::from_millis(22 * HOUR_MS as u64));
                }
                if enters(event, "on", Phase::PowerOff) {
                    *down.lock().unwrap() = Some(world.clock.now_ms());
                }
            });
            let outcome = world.run_plan(PLAN, &world.planned(), &watch, &StopSignal::default()).unwrap();
            assert!(outcome.is_complete(), "{mode}: {outcome:?}");
            let waited = down.into_inner().unwrap().unwrap() - called.into_inner().unwrap().unwrap();
            assert_eq!(waited < 22 * HOUR_MS, goes_off, "{mode}: it went down {waited} ms after its hook");
            let told: Vec<String> =
                world.state().told.iter().map(|told| told["point"].as_str().unwrap().into()).collect();
            if goes_off {
                assert_eq!(told, ["before_shutdown"], "{mode}");
                continue;
            }
            assert_eq!(told, ["before_shutdown", "after_failure", "before_shutdown"], "{mode}");
            let outcome = world.told("after_failure").unwrap()["outcome"].clone();
            let error = outcome["error"].as_str().unwrap();
            assert!(outcome["state"] == "waits" && error.contains("its window closed"), "{mode}: {outcome}");
        }
    }
}

/// A window that is over for good keeps the source.
#[test]
fn a_wave_that_is_over_while_hooks_run_ends_the_vm() {
    let lines = "start: true\nhooks: {before_shutdown: [{shell: a}]}\n\
                 waves: [{name: night, until: 1970-01-01T01:00:00Z, vms: [{glob: '*'}]}]";
    let world = World::with(&[vm("on", PowerState::On, 1)], lines);
    let watch = Watch(|event: &Event| {
        if matches!(event, Event::HookStarted { .. }) {
            world.clock.sleep(Duration::from_millis(2 * HOUR_MS as u64));
        }
    });
    let outcome = world.run(&watch);
    assert_eq!((outcome.done, outcome.failed.len()), (0, 1), "{outcome:?}");
    assert_eq!((world.power("vm-on"), world.calls("shut down")), (PowerState::On, 0));
}

#[test]
fn the_next_wave_begins_when_what_failed_because_of_its_host_is_undone() {
    let lines = "start: true\nwaves:\n  - {name: first, if_failed: go_on, vms: [{name: on}]}\n  \
                 - {name: second, after: [first], vms: [{name: off}]}\n";
    let world = World::with(&[vm("on", PowerState::On, 1), vm("off", PowerState::Off, 1)], lines);
    world.set_trouble("open source", Trouble::Fails);
    let [begun, early] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let (has_begun, is_early) = (begun.clone(), early.clone());
    world.before("power on", move |_| {
        let look = || {
            std::thread::sleep(Duration::from_millis(10));
            has_begun.load(Ordering::SeqCst)
        };
        is_early.store((0..100).any(|_| look()), Ordering::SeqCst);
    });
    let watch = Watch(|event: &Event| {
        begun.fetch_or(enters(event, "off", Phase::Check), Ordering::SeqCst);
    });
    let outcome = world.run(&watch);
    assert_eq!((outcome.done, outcome.failed.len(), world.power("vm-on")), (1, 1, PowerState::On));
    assert!(!early.load(Ordering::SeqCst), "the next wave began before the guest was switched on again");
}

/// A hook that shuts its guest down does so for the move: what fails after it switches the guest on again.
#[test]
fn a_guest_that_its_hooks_shut_down_is_switched_on_again_when_its_move_fails() {
    for mode in ["mode: cold", "mode: warm\nwarm: {interval: 30m, cutover: auto}"] {
        for fails in ["the hook", "define"] {
            let lines = format!("start: true\n{mode}\nhooks: {{before_shutdown: [{{shell: stop}}]}}");
            let world = World::with(&[vm("on", PowerState::On, 1)], &lines);
            match fails {
                "define" => world.set_trouble("define", Trouble::Fails),
                _ => world.answer("before_shutdown", HookResult::Failed, "half done"),
            }
            let watch = Watch(|event: &Event| {
                if matches!(event, Event::HookEnded { .. }) {
                    world.set_power("vm-on", PowerState::Off);
                }
            });
            let outcome = world.run_plan(PLAN, &world.planned(), &watch, &StopSignal::default()).unwrap();
            assert_eq!(outcome.failed.len(), 1, "{mode}, {fails}: {outcome:?}");
            assert_eq!(world.power("vm-on"), PowerState::On, "{mode}, {fails}: it was left down");
        }
    }
}
