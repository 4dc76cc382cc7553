//! Who watches a run, stops it, and has it die.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use drover_engine::{Clock, Event, NoObserver, Observer, Phase, VmState};
use drover_mover::StopSignal;

use super::{Trouble, World};

/// Does something at every event.
pub struct Watch<F: Fn(&Event) + Send + Sync>(pub F);

impl<F: Fn(&Event) + Send + Sync> Observer for Watch<F> {
    fn event(&self, event: &Event) {
        (self.0)(event);
    }
}

/// Whether a VM enters a phase.
pub fn enters(event: &Event, name: &str, wanted: Phase) -> bool {
    matches!(event, Event::PhaseStarted { vm, phase } if vm == name && *phase == wanted)
}

/// Whether a VM leaves a phase.
pub fn leaves(event: &Event, name: &str, wanted: Phase) -> bool {
    matches!(event, Event::PhaseEnded { vm, phase, .. } if vm == name && *phase == wanted)
}

/// Counts events, and dies at one of them.
pub struct DiesAt {
    seen: AtomicUsize,
    at: usize,
}

impl DiesAt {
    pub fn event(at: usize) -> DiesAt {
        DiesAt { seen: AtomicUsize::new(0), at }
    }

    pub fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }
}

impl Observer for DiesAt {
    fn event(&self, event: &Event) {
        // The run's own thread is not a VM's: only those die alone.
        if matches!(event, Event::PlanStarted { .. } | Event::PlanEnded { .. }) {
            return;
        }
        assert_ne!(self.seen.fetch_add(1, Ordering::SeqCst) + 1, self.at, "the process dies at {event:?}");
    }
}

/// Waits until something is so; others go on meanwhile, and time passes. False if that is not to come.
pub fn becomes(world: &World, so: impl Fn() -> bool) -> bool {
    (0..3000).any(|_| {
        world.clock.sleep(Duration::from_millis(100));
        std::thread::sleep(Duration::from_millis(10));
        so()
    })
}

/// Runs until the VM waits for this pass, and stops there.
pub fn stop_at_wait(world: &World, pass: u32) {
    let stop = StopSignal::default();
    let watch = Watch(|event: &Event| {
        if matches!(event, Event::PassWaits { number, .. } if *number == pass + 1) {
            stop.stop();
        }
    });
    world.run_until(&watch, &stop);
    assert_eq!(world.row("vm-on").state, VmState::Stopped);
}

/// Each of these calls in a run that goes well, and which of its kind it is.
pub fn every_call(make: fn() -> World, calls: &[&'static str]) -> Vec<(&'static str, u32)> {
    let world = make();
    world.run(&NoObserver);
    let count = |call| world.calls(call) as u32;
    calls.iter().flat_map(|&call| (1..=count(call)).map(move |nth| (call, nth))).collect()
}

/// Has the process die before and after each of these calls; the next run must arrive.
pub fn dies_around_every_call(make: fn() -> World, calls: &[&'static str]) {
    for (call, nth) in every_call(make, calls) {
        for trouble in [Trouble::DiesBefore, Trouble::DiesAfter] {
            let why = format!("after a death, {trouble:?} {call} {nth}");
            let world = make();
            world.set_trouble_at(call, nth, trouble);
            world.run(&NoObserver);
            world.as_if_killed();
            assert!(world.trouble_struck(), "{why}");
            world.run(&NoObserver);
            world.assert_arrived(&why);
        }
    }
}
