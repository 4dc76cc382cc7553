//! Warm migrations: passes, cutovers, what the guardian finds, crashes and failures everywhere.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use drover_engine::{
    Event, HookResult, NoObserver, PassKind, PassState, Phase, VmState, ask_cutover, cancel, plan_report,
};
use drover_mover::StopSignal;
use drover_types::inventory::{Firmware, PowerState, Snapshot};
use fakes::{
    DiesAt, PLAN, Trouble, Watch, World, dies_around_every_call, enters, every_call, stop_at_wait, vm,
};

#[test]
fn three_passes_an_automatic_cutover_and_what_arrives_is_what_the_guest_wrote_last() {
    let world = World::warm_auto();
    let outcome = world.run(&NoObserver);
    assert_eq!((outcome.done, outcome.failed.len()), (1, 0), "{:?}", world.row("vm-on").error);
    world.assert_arrived("warm");
    let passes = world.passes();
    assert_eq!(passes.iter().map(|pass| pass.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!(passes.iter().all(|pass| pass.state == PassState::Complete && pass.mismatches == 0));
    assert_eq!((passes[0].kind, passes[3].kind), (PassKind::Full, PassKind::Delta));
    let (opened, urgent) = (world.calls("open source"), world.calls("open urgent"));
    assert!(urgent > 0 && urgent < opened, "the last pass alone: {urgent} of {opened}");
    assert_eq!((world.calls("open down"), world.calls("open later")), (0, opened - urgent));
    let (warm, report) = (world.warm_row(), plan_report(&world.store, PLAN).unwrap().unwrap());
    assert_eq!(warm.reason.as_deref(), Some("the predicted downtime fits"));
    assert!(warm.forecast.is_some() && warm.ready_ms().is_some());
    assert_eq!((report.vms[0].equal(), report.vms[0].phases.len()), (Some(true), 11));
    // A report has the bytes of all passes, not those of the last one.
    let of_passes: u64 = passes.iter().map(|pass| pass.read_bytes).sum();
    let last = report.vms[0].sum(|disk| disk.read_bytes);
    let of_disks: u64 = report.vms[0].disks.iter().map(|disk| disk.details.read_in_all()).sum();
    assert!(of_disks == of_passes && of_disks > last, "{of_disks} of {of_passes}, at last {last}");
    // Only deltas are read after the first pass.
    assert_eq!(world.calls("shut down"), 1);
}

#[test]
fn a_downtime_ends_when_the_guest_runs_and_not_when_it_was_watched() {
    let ready = |watched| {
        let world = World::warm_auto();
        world.state().watched = watched;
        world.run(&NoObserver);
        world.warm_row().ready_ms().unwrap()
    };
    let hour = Duration::from_secs(3600);
    assert!(ready(hour) < ready(Duration::ZERO) + hour.as_millis() as u64 / 2);
}

/// Every call of a warm migration that goes well.
const CALLS: [&str; 16] = [
    "look",
    "is running",
    "prepare",
    "enable",
    "freeze",
    "areas",
    "shut down",
    "wait until off",
    "open source",
    "open target",
    "open for verify",
    "forget conversion",
    "convert",
    "define",
    "start",
    "remove snapshot",
];

#[test]
fn a_crash_at_any_event_is_mended_by_the_next_run() {
    let count = DiesAt::event(usize::MAX);
    World::warm_auto().run(&count);
    assert!(count.seen() > 30, "{} events", count.seen());
    for at in 1..=count.seen() {
        let world = World::warm_auto();
        world.run(&DiesAt::event(at));
        world.as_if_killed();
        world.run(&NoObserver);
        world.assert_arrived(&format!("after a crash at event {at}"));
    }
}

#[test]
fn a_crash_before_or_after_any_call_is_mended_by_the_next_run() {
    dies_around_every_call(World::warm_auto, &CALLS);
}

#[test]
fn a_failure_of_any_call_is_waited_out_or_leaves_the_source_running_and_the_next_run_arrives() {
    for (call, nth) in every_call(World::warm_auto, &CALLS) {
        for trouble in [Trouble::Fails, Trouble::FailsAfter] {
            let why = format!("{trouble:?} {call} {nth}");
            let world = World::warm_auto();
            world.set_trouble_at(call, nth, trouble);
            world.run(&NoObserver);
            assert!(world.trouble_struck(), "{why}");
            let row = world.row("vm-on");
            if row.state == VmState::Failed && row.phase.as_deref() != Some("clean up") {
                assert!(row.error.unwrap().contains("as ordered"), "{why}");
                assert_eq!(world.power("vm-on"), PowerState::On, "{why}: at the source");
                assert!(!world.is_defined("on") && !world.runs_at_target("on"), "{why}");
                assert_eq!(world.own_snapshots(), 0, "{why}: a snapshot is left");
                assert_eq!(world.warm_row().down_ms, None, "{why}: it is not down");
            }
            world.run(&NoObserver);
            world.assert_arrived(&why);
        }
    }
}

#[test]
fn a_stop_before_any_phase_undoes_and_can_be_resumed() {
    for phase in Phase::WARM {
        let world = World::warm_auto();
        let stop = StopSignal::default();
        let watch = Watch(|event: &Event| {
            if enters(event, "on", phase) {
                stop.stop();
            }
        });
        world.run_until(&watch, &stop);
        if phase < Phase::Start {
            assert_eq!(world.row("vm-on").state, VmState::Stopped, "{phase}");
            assert_eq!((world.power("vm-on"), world.own_snapshots()), (PowerState::On, 0), "{phase}");
        }
        world.run(&NoObserver);
        world.assert_arrived(&format!("after a stop in {phase}"));
    }
}

#[test]
fn a_cancel_leaves_nothing_behind_and_forgets_the_passes() {
    let world = World::warm("warm: {interval: 1h}");
    stop_at_wait(&world, 2);
    assert_eq!((world.passes().len(), world.images().len()), (2, 2));
    assert_eq!(cancel(PLAN, &world.store, &world, &world).unwrap().left, Vec::<String>::new());
    assert_eq!((world.passes().len(), world.images().len(), world.own_snapshots()), (0, 0, 0));
    assert_eq!(world.power("vm-on"), PowerState::On);
    world.store.ask_cutover(PLAN, None).unwrap();
    world.run(&NoObserver);
    world.assert_arrived("begun anew");
}

#[test]
fn change_tracking_that_drover_switched_on_is_switched_off_again_and_what_was_on_stays_on() {
    let untracked = |lines: &str| {
        let world = World::warm(lines);
        world.change("vm-on", |vm| vm.change_tracking = false);
        world
    };
    let tracks = |world: &World| world.state().vms["vm-on"].change_tracking;
    let auto = "warm: {interval: 1s, cutover: auto}";
    let was_on = World::warm(auto);
    was_on.run(&NoObserver);
    was_on.assert_arrived("tracked before");
    assert_eq!((was_on.calls("disable"), tracks(&was_on)), (0, true));
    let arrived = untracked(auto);
    arrived.run(&NoObserver);
    arrived.assert_arrived("not tracked before");
    assert_eq!((arrived.calls("disable"), tracks(&arrived)), (1, false));
    assert!(arrived.notes().contains("switched change tracking off again"), "{}", arrived.notes());
    // What has arrived does not fail for it.
    let refused = untracked(auto);
    refused.set_trouble("disable", Trouble::Fails);
    refused.run(&NoObserver);
    refused.assert_arrived("it stays on");
    assert!(
        refused.notes().contains("stays on at the source (disable fails as ordered)"),
        "{}",
        refused.notes()
    );
    // A stop may be followed by a resume; a cancel is not.
    let cancelled = untracked("warm: {interval: 1h}");
    stop_at_wait(&cancelled, 2);
    assert!(tracks(&cancelled));
    let given_up = cancel(PLAN, &cancelled.store, &cancelled, &cancelled).unwrap();
    assert_eq!((given_up.left.len(), given_up.notes.len(), tracks(&cancelled)), (0, 1, false));
    // A plan that is begun anew forgets all but that it is still to be switched off.
    let left_on = untracked("warm: {interval: 1h}");
    stop_at_wait(&left_on, 2);
    left_on.set_trouble("disable", Trouble::Fails);
    cancel(PLAN, &left_on.store, &left_on, &left_on).unwrap();
    assert!(tracks(&left_on));
    let stop = StopSignal::default();
    stop.stop();
    left_on.run_until(&NoObserver, &stop);
    let given_up = cancel(PLAN, &left_on.store, &left_on, &left_on).unwrap();
    assert_eq!((given_up.left.len(), given_up.notes.len(), tracks(&left_on)), (0, 1, false));
}

#[test]
fn a_cutover_by_command_is_noticed_while_waiting_and_kept_for_the_next_run() {
    for is_running in [true, false] {
        let world = World::warm("warm: {interval: 10m, cutover: manual}");
        if is_running {
            let ask = Watch(|event: &Event| {
                if matches!(event, Event::PassWaits { number: 3, .. }) {
                    assert_eq!(world.store.ask_cutover(PLAN, Some("on")).unwrap(), ["on"]);
                }
            });
            world.run(&ask);
        } else {
            stop_at_wait(&world, 3);
            assert_eq!(world.power("vm-on"), PowerState::On);
            world.store.ask_cutover(PLAN, None).unwrap();
            world.run(&NoObserver);
        }
        world.assert_arrived("by command");
        assert_eq!(world.warm_row().reason.as_deref(), Some("asked for"));
    }
}

#[test]
fn a_cutover_is_asked_for_by_a_pattern_or_a_wave_and_refused_where_there_is_none() {
    let waves = "waves: [{name: pilot, vms: [{name: on}]}]";
    let world = World::warm(&format!("warm: {{interval: 10m, cutover: manual}}\n{waves}"));
    stop_at_wait(&world, 2);
    let ask = |names: &[&str], wave: Option<&str>| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_string()).collect();
        ask_cutover(&world.store, PLAN, &names, wave).map_err(|error| error.to_string())
    };
    for (names, wave, told) in [
        (&["zz*"][..], None, "has no VM that matches 'zz*'"),
        (&["no"], None, "has no VM 'no'"),
        (&["on", "no"], None, "has no VM 'no'"),
        (&[], Some("polit"), "has no VM in a wave 'polit'"),
        (&["on"], Some("pilot"), "VMs and a wave are named"),
    ] {
        let refused = ask(names, wave).unwrap_err();
        assert!(refused.contains(told), "{refused}");
        assert!(!world.store.cutover_asked(PLAN, "vm-on").unwrap(), "{told}");
    }
    assert_eq!(ask(&["o?", "on"], None).unwrap(), ["on"]);
    assert_eq!(ask(&[], Some("pilot")).unwrap(), ["on"]);
    world.run(&NoObserver);
    world.assert_arrived("by wave");
    assert!(ask(&["on"], None).unwrap_err().contains("on has arrived already"));
    assert!(ask(&["o*"], None).unwrap_err().contains("has no VM that matches"));
    assert!(ask(&[], Some("pilot")).unwrap_err().contains("no VM of wave pilot of plan"));
}

#[test]
fn a_cutover_at_a_set_time_comes_then() {
    let world = World::warm("warm: {interval: 60s, cutover: '1970-01-01T00:07:30Z'}");
    world.run(&NoObserver);
    world.assert_arrived("at its time");
    let down_ms = world.warm_row().down_ms.unwrap();
    assert!((450_000..455_000).contains(&down_ms), "{down_ms}");
    assert!(world.passes().len() > 6);
}

#[test]
fn a_replica_that_a_failed_start_changed_is_mended_before_the_next_pass() {
    let world = World::warm_auto();
    world.set_trouble("start", Trouble::FailsAfter);
    world.before("stop", |state| {
        state.images.values().for_each(|image| image.overwrite(7 * 65536, b"written at the target"));
    });
    world.fails();
    assert_eq!(world.power("vm-on"), PowerState::On);
    world.run(&NoObserver);
    assert!(world.notes().contains("of the replica"), "{}", world.notes());
    world.assert_arrived("with the replica mended");
}

/// What happens to the VM after its second pass, and the words that tell of it.
fn guarded(what: impl Fn(&mut fakes::State) + Send + Sync, words: &str) -> World {
    let world = World::warm_auto();
    let hook = Watch(|event: &Event| {
        if matches!(event, Event::PassEnded { number: 2, .. }) {
            what(&mut world.state());
        }
    });
    world.run(&hook);
    world.assert_arrived(words);
    let third = &world.passes()[2];
    assert_eq!(third.kind, PassKind::HashDiff, "{words}");
    assert!(third.why.as_ref().unwrap().contains(words), "{:?} lacks {words}", third.why);
    world
}

fn on(state: &mut fakes::State) -> &mut drover_types::inventory::Vm {
    state.vms.get_mut("vm-on").unwrap()
}

#[test]
fn cbt_reset_between_passes_is_met_with_a_comparison_of_everything() {
    let world = guarded(|state| state.reset_tracking("vm-on"), "tracking of Hard disk 1 began anew");
    // Once compared, changes are believed again.
    assert_eq!(world.passes().last().unwrap().kind, PassKind::Delta);
}

#[test]
fn cbt_switched_off_is_switched_on_again_and_everything_is_compared() {
    guarded(
        |state| {
            let vm = on(state);
            vm.change_tracking = false;
            vm.disks.iter_mut().for_each(|disk| disk.change_id = None);
        },
        "change tracking had to be switched on",
    );
}

#[test]
fn a_vmotion_between_passes_is_told_and_everything_is_compared() {
    let world = guarded(|state| on(state).host_id = "host-2".into(), "moved from host host-1 to host-2");
    assert_eq!(world.warm_row().host.as_deref(), Some("host-2"));
    assert_eq!(world.passes().last().unwrap().kind, PassKind::Delta);
}

#[test]
fn a_storage_vmotion_between_passes_is_told_and_everything_is_compared() {
    guarded(|state| on(state).disks[1].datastore = "ds9".into(), "Hard disk 2 moved from datastore  to ds9");
}

#[test]
fn consolidation_is_done_and_everything_is_compared() {
    let world = guarded(|state| on(state).consolidation_needed = true, "had to be consolidated");
    assert_eq!(world.calls("consolidate"), 1);
}

#[test]
fn a_foreign_snapshot_is_told_never_removed_and_everything_is_compared() {
    let backup = |state: &mut fakes::State| {
        on(state).snapshots.push(Snapshot { id: "s-b".into(), name: "backup".into(), ..Snapshot::default() });
    };
    let world = World::warm_auto();
    let hook = Watch(|event: &Event| match event {
        Event::PassEnded { number: 2, .. } => backup(&mut world.state()),
        Event::PassEnded { number: 3, .. } => on(&mut world.state()).snapshots.retain(|it| it.id != "s-b"),
        _ => {}
    });
    world.run(&hook);
    world.assert_arrived("after the backup");
    let third = &world.passes()[2];
    assert_eq!(third.kind, PassKind::HashDiff);
    assert!(third.why.as_ref().unwrap().contains("somebody else made a snapshot of it (backup)"));
}

#[test]
fn disks_added_removed_grown_or_swapped_are_refused_by_name_and_the_guest_runs_on() {
    type Change = fn(&mut drover_types::inventory::Vm);
    let changes: [(Change, &str); 4] = [
        (|vm| vm.disks[0].capacity_bytes += 65536, "Hard disk 1 of on was grown from 1310720 to 1376256"),
        (|vm| drop(vm.disks.pop()), "Hard disk 2 of on was removed"),
        (
            |vm| {
                let disk = vm.disks[0].clone();
                vm.disks.push(drover_types::inventory::VmDisk {
                    key: 2009,
                    label: "Hard disk 3".into(),
                    ..disk
                });
            },
            "Hard disk 3 of on was added",
        ),
        (|vm| vm.disks[1].uuid = "6000-b".into(), "Hard disk 2 of on is another disk"),
    ];
    for (change, words) in changes {
        let world = World::warm_auto();
        world.change("vm-on", |vm| vm.disks[1].uuid = "6000-a".into());
        let hook = Watch(|event: &Event| {
            if matches!(event, Event::PassEnded { number: 2, .. }) {
                world.change("vm-on", change);
            }
        });
        let outcome = world.run(&hook);
        assert_eq!((outcome.done, outcome.failed.len()), (0, 1), "{words}");
        let row = world.row("vm-on");
        assert!(row.error.as_ref().unwrap().contains(words), "{:?} lacks {words}", row.error);
        assert!(row.advice.unwrap().contains("drover cancel"));
        assert_eq!((world.power("vm-on"), world.calls("shut down")), (PowerState::On, 0));
        assert_eq!(world.own_snapshots(), 0);
    }
}

#[test]
fn a_guest_that_cannot_quiesce_is_frozen_without_and_told_so() {
    let world = World::warm("warm: {interval: 1s, cutover: auto, quiesce: true}");
    world.state().tracks.cannot_quiesce = true;
    world.run(&NoObserver);
    world.assert_arrived("without quiescing");
    assert!(world.notes().contains("could not be quiesced"));
}

#[test]
fn a_vm_that_somebody_switches_off_or_on_in_between_still_arrives_or_says_why() {
    let world = World::warm("warm: {interval: 1s}");
    let switch_off = Watch(|event: &Event| {
        if matches!(event, Event::PassWaits { number: 3, .. }) {
            world.set_power("vm-on", PowerState::Off);
            world.store.ask_cutover(PLAN, None).unwrap();
        }
    });
    world.run(&switch_off);
    world.assert_arrived("though it was off before");
    assert_eq!(world.calls("shut down"), 0);
    assert!(world.notes().contains("was switched off by someone"));

    // Switched on right after the shutdown: it goes on at the source, and nothing is lost.
    let world = World::warm_auto();
    world.before("forget conversion", |_| ());
    let switch_on = Watch(|event: &Event| {
        if enters(event, "on", Phase::Snapshot) {
            world.set_power("vm-on", PowerState::On);
        }
    });
    let outcome = world.run(&switch_on);
    assert_eq!(outcome.failed.len(), 1);
    assert!(world.row("vm-on").error.unwrap().contains("was switched on again by someone"));
    assert_eq!((world.power("vm-on"), world.runs_at_target("on")), (PowerState::On, false));
    world.run(&NoObserver);
    world.assert_arrived("the second time");
}

#[test]
fn a_guest_that_is_suspended_or_off_is_told_by_its_passes_for_as_long_as_it_is() {
    for (power, words) in [
        (PowerState::Suspended, "it was suspended by someone"),
        (
            PowerState::Off,
            "it was switched off by someone; its passes go on, nothing is left to shut down, and it is started",
        ),
    ] {
        let world = World::warm("warm: {interval: 1s}");
        let (stop, told) = (StopSignal::default(), Mutex::new(BTreeMap::new()));
        let watch = Watch(|event: &Event| {
            let Event::PassWaits { number, .. } = event else { return };
            let hint = world.warm_row().hint.unwrap_or_default();
            told.lock().unwrap().insert(*number, hint.contains(words));
            match number {
                2 => world.set_power("vm-on", power),
                4 => world.set_power("vm-on", PowerState::On),
                5 => stop.stop(),
                _ => {}
            }
        });
        world.run_until(&watch, &stop);
        let told: Vec<(u32, bool)> = told.into_inner().unwrap().into_iter().collect();
        assert_eq!(told, [(2, false), (3, true), (4, true), (5, false)], "{words}");
        assert_eq!(world.notes().matches(words).count(), 1, "{}", world.notes());
    }
}

#[test]
fn other_firmware_is_told_by_the_passes_and_keeps_the_guest_from_being_shut_down() {
    let world = World::warm("warm: {interval: 1s}");
    let told = "its firmware is UEFI and was BIOS";
    let watch = Watch(|event: &Event| match event {
        Event::PassWaits { number: 2, .. } => {
            world.change("vm-on", |vm| vm.firmware = Some(Firmware::Uefi));
        }
        Event::PassWaits { number: 4, .. } => {
            assert!(world.warm_row().hint.is_some_and(|hint| hint.contains(told)));
            world.store.ask_cutover(PLAN, None).unwrap();
        }
        _ => {}
    });
    let outcome = world.run(&watch);
    assert_eq!((outcome.done, outcome.failed.len()), (0, 1), "{outcome:?}");
    let row = world.row("vm-on");
    assert!(row.error.as_ref().unwrap().contains(told), "{row:?}");
    assert_eq!((world.power("vm-on"), world.calls("shut down")), (PowerState::On, 0));
    assert_eq!((world.own_snapshots(), world.passes().len()), (0, 3));
    // By that order no guest goes down later.
    assert!(row.error.unwrap().contains("is used up, and has to be ordered again"));
    stop_at_wait(&world, 4);
    assert_eq!((world.power("vm-on"), world.calls("shut down")), (PowerState::On, 0));
    world.store.ask_cutover(PLAN, None).unwrap();
    world.run(&NoObserver);
    world.assert_arrived("by a plan that was laid over it again");
}

#[test]
fn a_pass_that_fails_is_done_again_and_three_in_a_row_end_it() {
    let world = World::warm_auto();
    world.set_trouble_at("areas", 1, Trouble::Fails);
    world.set_trouble_at("freeze", 4, Trouble::FailsAfter);
    world.run(&NoObserver);
    world.assert_arrived("with two failed passes");
    assert!(world.notes().contains("is done again (1 of 3)"));
    let world = World::warm_auto();
    (0..3).for_each(|_| world.set_trouble("freeze", Trouble::Fails));
    let row = world.fails();
    assert_eq!(row.phase.as_deref(), Some("passes"));
    let hint = || world.store.warm(PLAN, "vm-on").unwrap().hint.unwrap_or_default();
    assert!(hint().contains("a pass failed and is done again (2 of 3): "), "{}", hint());
    assert_eq!(world.power("vm-on"), PowerState::On);
    world.run(&NoObserver);
    world.assert_arrived("the second time");
    assert!(!hint().contains("failed"), "{}", hint());
}

#[test]
fn another_vm_under_the_id_is_never_touched() {
    let world = World::warm_auto();
    let hook = Watch(|event: &Event| {
        if matches!(event, Event::PassEnded { number: 1, .. }) {
            world.change("vm-on", |vm| vm.instance_uuid = "another".into());
        }
    });
    world.run(&hook);
    assert!(world.row("vm-on").error.unwrap().contains("is another VM"));
    assert_eq!((world.calls("shut down"), world.calls("freeze")), (0, 1));
}

#[test]
fn an_interval_that_its_passes_outlast_is_told_once_and_kept_for_the_next_check() {
    let world = World::warm("warm: {interval: 1s, cutover: auto, audit: none}");
    // The first pass is fast, so what the others take is not the rate's.
    let slow_down = Watch(|event: &Event| {
        if matches!(event, Event::PassWaits { number: 2, .. }) {
            world.clock.slow_down(3000);
        }
    });
    assert_eq!(world.run(&slow_down).done, 1, "{:?}", world.row("vm-on").error);
    let told = "a pass takes longer than the interval";
    assert_eq!(world.notes().matches(told).count(), 1, "{}", world.notes());
    assert!(world.warm_row().hint.is_some_and(|hint| hint.contains(told)));
}

/// What a host did before it served a pass well is not what ends a VM.
#[test]
fn a_pass_that_goes_well_makes_up_for_one_that_did_not() {
    let world = World::warm_auto();
    world.set_trouble("open source", Trouble::Fails);
    world.set_trouble("shut down", Trouble::Fails);
    let outcome = world.run(&NoObserver);
    assert_eq!((outcome.done, outcome.failed.len()), (0, 1), "{outcome:?}");
    let events = world.store.events(PLAN).unwrap();
    let told: Vec<&str> = events
        .iter()
        .filter(|it| it.text.contains("failed because of it"))
        .map(|it| it.text.as_str())
        .collect();
    assert!(told.is_empty() && world.passes().len() > 1, "{told:?}");
}

#[test]
fn a_cutover_of_a_vm_that_failed_is_refused_while_its_plan_runs_on() {
    let vms = ["one", "two"].map(|name| vm(name, PowerState::On, 1));
    let lines =
        "start: true\nmode: warm\nwarm: {interval: 10m, cutover: manual}\nhooks: {before_copy: [{shell: a}]}";
    let world = World::with(&vms, lines);
    world.answer("before_copy", HookResult::Failed, "no");
    let told = Mutex::new(None);
    let outcome = world.run(&Watch(|event: &Event| {
        if let Event::VmEnded { vm, state: VmState::Failed, .. } = event {
            let refused = ask_cutover(&world.store, PLAN, std::slice::from_ref(vm), None).unwrap_err();
            let others = ask_cutover(&world.store, PLAN, &[], None).unwrap();
            *told.lock().unwrap() = Some((vm.clone(), refused.chain(), others));
        }
    }));
    assert_eq!((outcome.done, outcome.failed.len()), (1, 1), "{outcome:?}");
    let (failed, refused, others) = told.into_inner().unwrap().unwrap();
    assert!(
        refused.contains(&format!("{failed} has failed, and a cutover has no effect on it")),
        "{refused}"
    );
    assert!(others.len() == 1 && others[0] != failed, "{others:?}");
    // Nothing runs it: the next run tries what failed again, and moves it over.
    assert_eq!(ask_cutover(&world.store, PLAN, std::slice::from_ref(&failed), None).unwrap(), [failed]);
}
