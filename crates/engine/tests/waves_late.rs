//! Waves where something comes late: slots for a cutover, the undo of what failed.
#![allow(clippy::unwrap_used)]

mod fakes;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drover_engine::{Clock, Event, Phase};
use drover_mover::StopSignal;
use drover_types::inventory::PowerState;
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
    }
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
