//! Waves: one after the other, each in its window, whatever fails and whoever kills the run.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drover_engine::{
    Clock, Event, NoObserver, Phase, Schedule, VmState, WaveState, ask_give_up, ask_proceed, cancel,
    cancel_ordered, plan_report, wave_to_give_up, wave_to_try_again,
};
use drover_mover::StopSignal;
use drover_schedule::Budgets;
use drover_types::inventory::{PowerState, Vm};
use fakes::{PLAN, Watch, World, becomes, enters, leaves, vm};

/// Three VMs in a first wave, two in one that is after it, and one in a wave of its own.
fn waves(if_failed: &str) -> World {
    let vms: Vec<Vm> =
        ["a1", "a2", "a3", "b1", "b2", "c1"].map(|name| vm(name, PowerState::Off, 1)).into_iter().collect();
    let lines = format!(
        "start: true\nwaves:\n  - {{name: b, after: [a], vms: [{{glob: 'b*'}}]}}\n  \
           - {{name: a, if_failed: {if_failed}, vms: [{{glob: 'a*'}}]}}\n  - {{name: c, vms: [{{name: c1}}]}}\n"
    );
    World::with(&vms, &lines)
}

/// VMs in the order in which they began, and those that had arrived before each.
struct Order(Mutex<Vec<(String, usize)>>);

impl Order {
    fn new() -> Order {
        Order(Mutex::default())
    }

    fn see(&self, world: &World, event: &Event) {
        if let Event::PhaseStarted { vm, phase: Phase::Check } = event {
            let arrived = world.store.vms(PLAN).unwrap();
            let arrived =
                arrived.iter().filter(|row| row.name.starts_with('a') && row.state == VmState::Done).count();
            self.0.lock().unwrap().push((vm.clone(), arrived));
        }
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(name, _)| name.clone()).collect()
    }

    /// Fails unless each VM of the second wave began after so many of the first had arrived.
    fn check(&self, arrived: usize) {
        for (name, before) in self.0.lock().unwrap().iter().filter(|(name, _)| name.starts_with('b')) {
            assert!(*before >= arrived, "{name} began when {before} VMs of the first wave had arrived");
        }
    }
}

fn told(events: &[Event]) -> Vec<String> {
    let word = |event: &Event| match event {
        Event::WaveStarted { wave, vms } => Some(format!("{wave} begins with {vms}")),
        Event::WaveHeld { wave, by, failed } => Some(format!("{wave} held by {by}: {failed}")),
        Event::WaveEnded { wave, arrived, failed } => Some(format!("{wave} over: {arrived} and {failed}")),
        _ => None,
    };
    events.iter().filter_map(word).collect()
}

fn states(world: &World) -> Vec<(String, WaveState, usize, usize)> {
    let report = plan_report(&world.store, PLAN).unwrap().unwrap();
    report.waves.into_iter().map(|it| (it.wave.name, it.state, it.done, it.failed)).collect()
}

fn state(name: &str, state: WaveState, done: usize, failed: usize) -> (String, WaveState, usize, usize) {
    (name.into(), state, done, failed)
}

#[test]
fn a_wave_begins_when_the_one_before_it_is_over_and_all_of_it_is_told() {
    let world = waves("wait");
    let (order, events) = (Order::new(), Mutex::new(Vec::new()));
    let watch = Watch(|event: &Event| {
        order.see(&world, event);
        events.lock().unwrap().push(event.clone());
    });
    assert!(world.run(&watch).is_complete());
    order.check(3);
    world.assert_arrived("in their waves");
    let told = told(&events.into_inner().unwrap());
    let at = |word: &str| told.iter().position(|it| it == word).unwrap_or_else(|| panic!("{word}: {told:?}"));
    assert!(at("a begins with 3") < at("a over: 3 and 0") && at("a over: 3 and 0") <= at("b over: 2 and 0"));
    assert!(at("b begins with 2") <= at("b over: 2 and 0") && at("c over: 1 and 0") < told.len());
    let done = |name: &str, vms| state(name, WaveState::Done, vms, 0);
    assert_eq!(states(&world), [done("b", 2), done("a", 3), done("c", 1)]);
    let kept = world.store.events(PLAN).unwrap();
    let kept: Vec<&str> = kept.iter().filter(|it| it.kind == "wave").map(|it| it.text.as_str()).collect();
    assert!(kept.contains(&"wave a is over: 3 VMs arrived, 0 failed or did not begin"), "{kept:?}");
}

/// A VM of the first wave cannot be moved: its disk is not what was planned.
fn broken(world: &World) -> Vec<drover_plan::PlannedVm> {
    let planned = world.planned();
    world.change("vm-a2", |vm| vm.disks[0].capacity_bytes *= 2);
    planned
}

#[test]
fn after_a_failure_the_next_wave_waits_for_a_word_and_heeds_it() {
    let world = waves("wait");
    let planned = broken(&world);
    let order = Order::new();
    let watch = Watch(|event: &Event| {
        order.see(&world, event);
        if let Event::WaveHeld { wave, by, failed } = event {
            assert_eq!((wave.as_str(), by.as_str(), *failed), ("b", "a", 1));
            assert!(!order.names().iter().any(|name| name.starts_with('b')));
            let refused = ask_proceed(&world.store, PLAN, "b").unwrap_err();
            assert!(refused.chain().contains("no wave of plan p is after 'b'"), "{}", refused.chain());
            assert!(
                ask_proceed(&world.store, PLAN, "pilot").unwrap_err().advice().unwrap().contains("b, a, c")
            );
            assert_eq!(ask_proceed(&world.store, PLAN, "a").unwrap(), ["b"]);
        }
    });
    let outcome = world.run_plan(PLAN, &planned, &watch, &StopSignal::default()).unwrap();
    assert_eq!((outcome.done, outcome.failed.len(), outcome.unfinished), (5, 1, 0));
    order.check(2);
    assert_eq!(
        states(&world),
        [
            state("b", WaveState::Done, 2, 0),
            state("a", WaveState::Failed, 2, 1),
            state("c", WaveState::Done, 1, 0)
        ]
    );
    assert!(plan_report(&world.store, PLAN).unwrap().unwrap().waves[1].may_go_on);
}

#[test]
fn after_a_failure_the_next_wave_goes_on_or_stops_as_the_plan_says() {
    let world = waves("go_on");
    let planned = broken(&world);
    let outcome = world.run_plan(PLAN, &planned, &NoObserver, &StopSignal::default()).unwrap();
    assert_eq!((outcome.done, outcome.failed.len(), outcome.unfinished), (5, 1, 0));
    let world = waves("stop");
    let planned = broken(&world);
    let ended = Mutex::new(Vec::new());
    let watch = Watch(|event: &Event| {
        if let Event::VmEnded { vm, state: VmState::Failed, .. } = event {
            ended.lock().unwrap().push(vm.clone());
        }
    });
    let outcome = world.run_plan(PLAN, &planned, &watch, &StopSignal::default()).unwrap();
    assert_eq!((outcome.done, outcome.failed.len(), outcome.unfinished), (3, 3, 0));
    let mut ended = ended.into_inner().unwrap();
    ended.sort();
    assert_eq!(ended, ["a2", "b1", "b2"]);
    let row = world.row("vm-b1");
    assert_eq!((row.state, row.phase, row.cause.as_deref()), (VmState::Failed, None, Some("notitsturn")));
    let own = outcome.failed.iter().filter(|(_, cause)| cause.distance() == 0);
    assert_eq!(own.map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a2"], "{outcome:?}");
    assert!(row.error.is_some_and(|it| it.starts_with("it was not begun: VMs of wave a failed")));
    assert!(row.advice.is_some_and(|it| it.contains("drover resume")));
    assert_eq!(states(&world)[0], state("b", WaveState::Failed, 0, 2));
    // A resume tries the failed one first, and then goes on in the order of the waves.
    world.change("vm-a2", |vm| vm.disks[0].capacity_bytes /= 2);
    let order = Order::new();
    assert!(world.run(&Watch(|event: &Event| order.see(&world, event))).is_complete());
    order.check(3);
    assert_eq!(order.names().len(), 3);
    world.assert_arrived("in the end");
}

#[test]
fn the_vms_of_a_wave_are_given_up_or_tried_again_that_can_be() {
    let world = waves("stop");
    let planned = broken(&world);
    world.run_plan(PLAN, &planned, &NoObserver, &StopSignal::default()).unwrap();
    let give_up = |wave: &str| wave_to_give_up(&world.store, PLAN, wave);
    let again = |wave: &str| wave_to_try_again(&world.store, PLAN, wave);
    assert_eq!(
        (give_up("a").unwrap(), again("a").unwrap()),
        (vec!["a2".to_string()], vec!["a2".to_string()])
    );
    assert_eq!(give_up("b").unwrap(), ["b1", "b2"]);
    assert_eq!(again("b").unwrap(), ["b1", "b2"]);
    let all_arrived = give_up("c").unwrap_err().chain();
    assert!(all_arrived.contains("all VMs of wave c of plan p have arrived"), "{all_arrived}");
    let none_failed = again("c").unwrap_err().chain();
    assert!(none_failed.contains("no VM of wave c of plan p has failed"), "{none_failed}");
    assert!(give_up("z").unwrap_err().chain().contains("has no VM in a wave 'z'"));
    // What was given up is taken back.
    ask_give_up(&world.store, PLAN, &give_up("b").unwrap()).unwrap();
    assert_eq!(give_up("b").unwrap(), ["b1", "b2"], "nothing is undone yet: it can be ordered again");
    cancel_ordered(PLAN, &world.store, &world, &world).unwrap();
    assert_eq!(again("b").unwrap(), ["b1", "b2"]);
    assert!(give_up("b").is_err() && states(&world)[0] == state("b", WaveState::Cancelled, 0, 0));
}

#[test]
fn a_wave_of_which_all_was_given_up_is_cancelled_and_not_done() {
    let world = waves("stop");
    let planned = broken(&world);
    world.run_plan(PLAN, &planned, &NoObserver, &StopSignal::default()).unwrap();
    cancel(PLAN, &world.store, &world, &world).unwrap();
    assert_eq!(
        states(&world),
        [
            state("b", WaveState::Cancelled, 0, 0),
            state("a", WaveState::Done, 2, 0),
            state("c", WaveState::Done, 1, 0)
        ]
    );
    let waves = plan_report(&world.store, PLAN).unwrap().unwrap().waves;
    let counts: Vec<_> = waves.iter().map(|it| (it.cancelled, it.skipped, it.left)).collect();
    assert_eq!(counts, [(2, 0, 0), (1, 0, 0), (0, 0, 0)]);
}

#[test]
fn a_run_that_is_stopped_in_the_middle_of_a_wave_goes_on_with_that_wave() {
    for phase in [Phase::Copy, Phase::CleanUp] {
        let world = waves("wait");
        let (stop, events) = (StopSignal::default(), Mutex::new(Vec::new()));
        let watch = Watch(|event: &Event| {
            events.lock().unwrap().push(event.clone());
            if leaves(event, "a1", phase) || enters(event, "b1", Phase::Check) {
                stop.stop();
            }
        });
        world.run_until(&watch, &stop);
        let told = told(&events.into_inner().unwrap());
        let is_over = |it: &&String| it.contains(" over: ") && !it.ends_with(" and 0");
        let is_wrong = |it: &&String| is_over(it) || it.contains(" held by ");
        assert_eq!(told.iter().find(is_wrong), None, "{phase}: {told:?}");
        assert_eq!(world.row("vm-b1").state, VmState::Queued, "{phase}");
        let order = Order::new();
        let again = world.resumed();
        let watch = Watch(|event: &Event| order.see(&world, event));
        let outcome = world.run_plan(PLAN, &again, &watch, &StopSignal::default()).unwrap();
        assert!(outcome.is_complete(), "{phase}: {outcome:?}");
        order.check(3);
        world.assert_arrived(&format!("after a stop in {phase}"));
    }
}

#[test]
fn a_word_outlives_the_run_that_it_was_given_to() {
    let world = waves("wait");
    let planned = broken(&world);
    let stop = StopSignal::default();
    let watch = Watch(|event: &Event| {
        if matches!(event, Event::WaveHeld { .. }) {
            ask_proceed(&world.store, PLAN, "a").unwrap();
            stop.stop();
        }
    });
    world.run_plan(PLAN, &planned, &watch, &stop).unwrap();
    // The VM fails again, and nobody has to be asked again.
    let outcome = world.run_plan(PLAN, &planned, &NoObserver, &StopSignal::default()).unwrap();
    assert_eq!((outcome.done, outcome.failed.len()), (5, 1));
}

const HOUR_MS: i64 = 3_600_000;

#[test]
fn a_wave_waits_for_its_window_and_what_comes_too_late_does_not_begin() {
    let lines = "start: true\nwaves:\n  - {name: night, from: 1970-01-01T05:00:00Z, vms: [{name: on}]}\n  \
                 - {name: short, until: 1970-01-01T04:00:00Z, after: [early], vms: [{name: late}]}\n  \
                 - {name: early, from: 1970-01-01T03:59:00Z, vms: [{name: off}]}\n";
    let vms = ["on", "late", "off"].map(|name| vm(name, PowerState::Off, 1));
    let world = World::with(&vms, lines);
    // Each look takes minutes: a run is over before one of its waits is.
    world.clock.slow_down(300_000);
    let begun = Mutex::new(Vec::new());
    let watch = Watch(|event: &Event| {
        if let Event::PhaseStarted { vm, phase: Phase::Check } = event {
            begun.lock().unwrap().push((vm.clone(), world.clock.now_ms()));
        }
    });
    let outcome = world.run_plan(PLAN, &world.planned(), &watch, &StopSignal::default()).unwrap();
    assert_eq!((outcome.done, outcome.failed.len()), (2, 1), "{outcome:?}");
    let begun = begun.into_inner().unwrap();
    let at = |name: &str| begun.iter().find(|(vm, _)| vm == name).map(|(_, at)| *at);
    assert!(at("on").is_some_and(|at| at >= 5 * HOUR_MS), "{begun:?}");
    assert!(at("off").is_some_and(|at| at >= 3 * HOUR_MS), "{begun:?}");
    assert_eq!(at("late"), None);
    let row = world.row("vm-late");
    assert!(
        row.error.as_ref().is_some_and(|it| it.contains("was not begun: the window of its wave is over")),
        "{row:?}"
    );
}

#[test]
fn a_warm_vm_is_copied_before_its_wave_and_moves_over_in_it() {
    for cutover in ["auto", "manual"] {
        let world = World::warm(&format!(
            "warm: {{interval: 30m, cutover: {cutover}}}\nwaves:\n  \
             - {{name: night, from: 1970-01-01T05:00:00Z, until: 1970-01-01T23:00:00Z, vms: [{{glob: '*'}}]}}\n"
        ));
        let moved = Mutex::new(None);
        let watch = Watch(|event: &Event| {
            if matches!(event, Event::PassWaits { number: 2, .. }) && cutover == "manual" {
                world.store.ask_cutover(PLAN, None).unwrap();
            }
            if matches!(event, Event::CutoverStarted { .. }) {
                *moved.lock().unwrap() = Some((world.clock.now_ms(), world.passes().len()));
            }
        });
        world.run(&watch);
        world.assert_arrived("in its window");
        let (at, passes) = moved.into_inner().unwrap().unwrap();
        assert!((5 * HOUR_MS..6 * HOUR_MS).contains(&at), "{cutover}: moved over at {at}");
        assert!(passes >= 9, "{cutover}: a pass each half an hour, {passes}");
        assert!(world.notes().contains("its passes go on until its wave may"), "{}", world.notes());
    }
}

#[test]
fn a_warm_vm_whose_window_is_over_keeps_its_source() {
    let world = World::warm(
        "warm: {interval: 30m, cutover: manual}\nwaves: [{name: night, until: 1970-01-01T05:00:00Z, vms: [{glob: '*'}]}]\n",
    );
    let watch = Watch(|event: &Event| {
        if matches!(event, Event::PassWaits { number, .. } if *number > 12) {
            world.store.ask_cutover(PLAN, None).unwrap();
        }
    });
    let outcome = world.run(&watch);
    assert_eq!((outcome.done, outcome.failed.len()), (0, 1));
    let row = world.row("vm-on");
    assert!(row.error.as_ref().is_some_and(|it| it.contains("the window of its wave is over")), "{row:?}");
    assert_eq!((world.power("vm-on"), world.own_snapshots()), (PowerState::On, 0));
}

/// A run of a world is killed when a VM enters a phase.
fn killed_in(world: &World, phase: Phase) {
    world.run(&Watch(|event: &Event| assert!(!enters(event, "on", phase), "the process dies")));
    world.as_if_killed();
}

/// Two hours later.
fn later(world: &World) {
    world.clock.sleep(Duration::from_millis(2 * HOUR_MS as u64));
}

/// The plan is resumed two hours later, and waits for no window.
fn resumes_and_arrives_later(world: &World, why: &str) {
    later(world);
    let began_ms = world.clock.now_ms();
    let outcome = world.run_plan(PLAN, &world.resumed(), &NoObserver, &StopSignal::default()).unwrap();
    assert!(outcome.is_complete(), "{why}: {outcome:?}");
    world.assert_arrived(why);
    assert!(world.clock.now_ms() < began_ms + HOUR_MS, "{why}: it waited for its window");
}

/// A cold VM in a wave whose window is over, or opens again tomorrow, after the first hour.
fn first_hour(line: &str) -> World {
    let lines = format!("start: true\nwaves: [{{name: night, {line}, vms: [{{glob: '*'}}]}}]");
    World::with(&[vm("on", PowerState::On, 1)], &lines)
}

const FIRST_HOUR: [&str; 2] = ["until: 1970-01-01T01:00:00Z", "window: 00:00-01:00"];

#[test]
fn a_cold_vm_whose_guest_a_crash_left_down_goes_on_whatever_its_window_is() {
    for line in FIRST_HOUR {
        for phase in [Phase::Snapshot, Phase::Copy, Phase::Define, Phase::CleanUp] {
            let world = first_hour(line);
            killed_in(&world, phase);
            assert_eq!(world.power("vm-on"), PowerState::Off, "{phase}");
            resumes_and_arrives_later(&world, &format!("{line}, {phase}"));
        }
    }
}

#[test]
fn a_cold_guest_that_somebody_switched_on_again_goes_down_in_its_window_only() {
    let world = first_hour(FIRST_HOUR[1]);
    killed_in(&world, Phase::Copy);
    later(&world);
    world.set_power("vm-on", PowerState::On);
    // Each look takes minutes, so that the next day comes.
    world.clock.slow_down(300_000);
    let down = Mutex::new(None);
    let watch = Watch(|event: &Event| {
        if enters(event, "on", Phase::Snapshot) {
            *down.lock().unwrap() = Some(world.clock.now_ms());
        }
    });
    let outcome = world.run_plan(PLAN, &world.resumed(), &watch, &StopSignal::default()).unwrap();
    assert!(outcome.is_complete(), "{outcome:?}");
    assert!(down.into_inner().unwrap().is_some_and(|at| at >= 24 * HOUR_MS));
    let world = first_hour(FIRST_HOUR[0]);
    killed_in(&world, Phase::Copy);
    later(&world);
    world.set_power("vm-on", PowerState::On);
    let outcome = world.run_plan(PLAN, &world.resumed(), &NoObserver, &StopSignal::default()).unwrap();
    assert_eq!((outcome.done, outcome.failed.len()), (0, 1));
    let row = world.row("vm-on");
    assert!(row.error.as_ref().is_some_and(|it| it.contains("the window of its wave is over")), "{row:?}");
    assert_eq!((world.power("vm-on"), row.switched_off, world.own_snapshots()), (PowerState::On, false, 0));
}

/// drover never switched it off: it was off, and somebody needs it since the run was killed.
#[test]
fn a_guest_that_was_off_and_runs_since_goes_down_in_its_window_only() {
    let lines = format!("start: true\nwaves: [{{name: night, {}, vms: [{{glob: '*'}}]}}]", FIRST_HOUR[0]);
    let world = World::with(&[vm("on", PowerState::Off, 1)], &lines);
    killed_in(&world, Phase::Copy);
    later(&world);
    world.set_power("vm-on", PowerState::On);
    let outcome = world.run_plan(PLAN, &world.resumed(), &NoObserver, &StopSignal::default()).unwrap();
    assert_eq!((outcome.done, outcome.failed.len()), (0, 1));
    let row = world.row("vm-on");
    assert!(row.error.as_ref().is_some_and(|it| it.contains("the window of its wave is over")), "{row:?}");
    assert_eq!((world.power("vm-on"), world.own_snapshots()), (PowerState::On, 0));
}

#[test]
fn what_is_left_to_clean_up_counts_as_arrived_for_the_waves_after_it() {
    let lines = "start: true\nwaves:\n  - {name: first, if_failed: stop, vms: [{name: on}]}\n  \
                 - {name: second, after: [first], vms: [{name: off}]}\n";
    let vms = [vm("on", PowerState::On, 1), vm("off", PowerState::Off, 1)];
    let world = World::with(&vms, lines);
    let stop = StopSignal::default();
    world.set_trouble_at("remove snapshot", 1, fakes::Trouble::Fails);
    let watch = Watch(|event: &Event| {
        if enters(event, "on", Phase::CleanUp) {
            stop.stop();
        }
    });
    world.run_until(&watch, &stop);
    assert_eq!(
        (world.row("vm-on").state, world.row("vm-off").state),
        (VmState::NotCleanedUp, VmState::Queued)
    );
    // Its clean-up fails again, and it has arrived all the same.
    world.set_trouble_at("remove snapshot", 1, fakes::Trouble::Fails);
    let outcome = world.run(&NoObserver);
    assert_eq!((outcome.done, outcome.not_cleaned_up), (1, 1), "{outcome:?}");
}

#[test]
fn a_warm_cutover_that_was_cut_short_goes_on_at_once() {
    for line in FIRST_HOUR {
        for phase in [Phase::Snapshot, Phase::Copy, Phase::Define] {
            let world = World::warm(&format!(
                "warm: {{interval: 1s, cutover: auto}}\nwaves: [{{name: night, {line}, vms: [{{glob: '*'}}]}}]\n"
            ));
            killed_in(&world, phase);
            assert_eq!(world.power("vm-on"), PowerState::Off, "{phase}");
            resumes_and_arrives_later(&world, &format!("{line}, {phase}"));
        }
    }
}

#[test]
fn a_warm_guest_that_runs_again_after_its_cutover_was_cut_short_waits_for_its_window() {
    let world = World::warm(
        "warm: {interval: 30m, cutover: auto}\nwaves: [{name: night, window: 02:00-03:00, vms: [{glob: '*'}]}]\n",
    );
    killed_in(&world, Phase::Copy);
    later(&world);
    world.set_power("vm-on", PowerState::On);
    let moved = Mutex::new(None);
    let watch = Watch(|event: &Event| {
        if matches!(event, Event::CutoverStarted { .. }) {
            *moved.lock().unwrap() = Some(world.clock.now_ms());
        }
    });
    let outcome = world.run_plan(PLAN, &world.resumed(), &watch, &StopSignal::default()).unwrap();
    assert!(outcome.is_complete(), "{outcome:?}");
    let at = moved.into_inner().unwrap().unwrap() % (24 * HOUR_MS);
    assert!((2 * HOUR_MS..3 * HOUR_MS).contains(&at), "it went down at {at}");
}

#[test]
fn a_warm_vm_that_nobody_commands_ends_with_its_wave_and_the_next_one_goes_by_the_rule() {
    for (rule, arrived) in [("go_on", true), ("stop", false)] {
        let lines = format!(
            "start: true\nmode: warm\nwarm: {{interval: 30m, cutover: manual}}\nwaves:\n  \
             - {{name: night, until: 1970-01-01T05:00:00Z, if_failed: {rule}, vms: [{{name: on}}]}}\n  \
             - {{name: after, after: [night], vms: [{{name: off}}]}}\n"
        );
        let vms = [vm("on", PowerState::On, 1), vm("off", PowerState::Off, 1)];
        let world = World::with(&vms, &lines);
        let mut planned = world.planned();
        planned.iter_mut().filter(|vm| vm.vm.name == "off").for_each(|vm| vm.warm = None);
        let ended = Mutex::new(None);
        let watch = Watch(|event: &Event| {
            if matches!(event, Event::VmEnded { vm, .. } if vm == "on") {
                *ended.lock().unwrap() = Some(world.clock.now_ms());
            }
        });
        let outcome = world.run_plan(PLAN, &planned, &watch, &StopSignal::default()).unwrap();
        let failed = 1 + usize::from(!arrived);
        assert_eq!((outcome.done, outcome.failed.len()), (usize::from(arrived), failed), "{outcome:?}");
        let row = world.row("vm-on");
        assert!(
            row.error.as_ref().is_some_and(|it| it.contains("the window of its wave is over")),
            "{row:?}"
        );
        assert_eq!((row.state, world.power("vm-on")), (VmState::Failed, PowerState::On));
        let ended = ended.into_inner().unwrap();
        assert!(ended.is_some_and(|at| (5 * HOUR_MS..6 * HOUR_MS).contains(&at)), "{ended:?}");
        assert_eq!(world.row("vm-off").state == VmState::Done, arrived, "{rule}");
    }
}

#[test]
fn a_warm_vm_that_waits_for_its_turn_makes_its_passes_meanwhile() {
    let lines = "start: true\nmode: warm\nwarm: {interval: 1s, cutover: auto}\nlimits: {cutovers: 1}";
    let vms = ["one", "two"].map(|name| vm(name, PowerState::On, 1));
    let world = World::with(&vms, lines);
    world.state().tracks.guests_write = true;
    let (first, cutovers) = (Mutex::new(String::new()), AtomicUsize::new(0));
    let passes = |but: &str| {
        let all = world.store.passes(PLAN).unwrap();
        all.iter().filter(|pass| pass.vm != format!("vm-{but}")).count()
    };
    let watch = Watch(|event: &Event| {
        let Event::CutoverStarted { vm, .. } = event else { return };
        if cutovers.fetch_add(1, Ordering::SeqCst) == 0 {
            first.lock().unwrap().clone_from(vm);
            let before = passes(vm);
            assert!(becomes(&world, || passes(vm) > before + 4), "the other makes no passes");
        }
    });
    world.run(&watch);
    world.assert_arrived("one after the other");
    assert_eq!(cutovers.into_inner(), 2);
}

#[test]
fn a_vm_whose_cutover_somebody_else_admits_waits_for_leave() {
    let lines = "start: true\nmode: warm\nwarm: {interval: 1s, cutover: auto}";
    let mut world = World::with(&[vm("on", PowerState::On, 1)], lines);
    let schedule = Arc::new(Schedule::new(Budgets::default()));
    schedule.hold_cutovers(true);
    world.schedule = Some(schedule.clone());
    let cutovers = AtomicUsize::new(0);
    let watch = Watch(|event: &Event| {
        if matches!(event, Event::CutoverStarted { .. }) {
            cutovers.fetch_add(1, Ordering::SeqCst);
        }
    });
    let (asked, stood_ms, moved_before) = std::thread::scope(|scope| {
        let admits = scope.spawn(|| {
            let asked = becomes(&world, || schedule.asks_cutover());
            let since_ms = world.clock.now_ms();
            let passes = becomes(&world, || !schedule.asks_cutover());
            let stood_ms = world.clock.now_ms() - since_ms;
            let moved_before = cutovers.load(Ordering::SeqCst);
            schedule.hold_cutovers(false);
            (asked && passes, stood_ms, moved_before)
        });
        world.run(&watch);
        admits.join().unwrap()
    });
    world.assert_arrived("once it may");
    assert!(asked, "it did not ask, or makes no pass meanwhile");
    // It is asked for and given within some seconds, which are more than the interval.
    assert!(stood_ms >= 5000, "{stood_ms} ms");
    assert_eq!((moved_before, cutovers.load(Ordering::SeqCst)), (0, 1));
}

#[test]
fn hosts_of_one_name_at_two_sources_are_two_hosts() {
    for uuid in ["", "of a vCenter and of its clone"] {
        two_sources(uuid);
    }
}

fn two_sources(uuid: &str) {
    let schedule = Arc::new(Schedule::new(Budgets { vms_per_host: 1, ..Budgets::default() }));
    let world = |site: &str| {
        let mut world = World::with(&[vm("on", PowerState::On, 1)], "start: true");
        (world.schedule, world.site) = (Some(schedule.clone()), (site.into(), uuid.into()));
        world
    };
    let (here, there) = (world("vc1"), world("vc2"));
    let is_done = || there.store.vm(PLAN, "vm-on").unwrap().is_some_and(|row| row.state == VmState::Done);
    let watch = Watch(|event: &Event| {
        if enters(event, "on", Phase::Copy) {
            assert!(becomes(&here, is_done), "the VM of the other source waits");
        }
    });
    std::thread::scope(|scope| {
        scope.spawn(|| here.run(&watch));
        there.run(&NoObserver);
    });
    here.assert_arrived("here");
    there.assert_arrived("there");
}
