//! Slots of the source: who holds them, who waits for them.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drover_mover::StopSignal;
use drover_plan::schedule::{Scheduler, VmIndex};

/// The schedule of a run, which all its VMs share.
pub(crate) struct Schedule {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    scheduler: Scheduler,
    /// VMs that hold their slots.
    admitted: Vec<bool>,
    /// VMs that have a thread.
    begun: Vec<bool>,
    /// Threads that are not over.
    running: usize,
}

/// A stop is noticed within this time.
const TICK: Duration = Duration::from_millis(200);

impl Schedule {
    pub(crate) fn new(scheduler: Scheduler, vms: usize) -> Schedule {
        let (admitted, begun) = (vec![false; vms], vec![false; vms]);
        let state = State { scheduler, admitted, begun, running: 0 };
        Schedule { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Waits for a VM that is to be begun and gives it, with how many slots it holds; `None` when all have
    /// ended, or the run is to stop and those that were begun have ended. VMs that wait to go on are let in
    /// on the way.
    pub(crate) fn next(&self, stop: &StopSignal) -> Option<(VmIndex, usize)> {
        let mut state = self.lock();
        loop {
            while let Some(index) = (!stop.is_set()).then(|| state.scheduler.next()).flatten() {
                state.admitted[index.0] = true;
                if !std::mem::replace(&mut state.begun[index.0], true) {
                    state.running += 1;
                    let slots = state.scheduler.slots(index) as usize;
                    return Some((index, slots));
                }
                self.changed.notify_all();
            }
            if state.running == 0 {
                return None;
            }
            state = self.wait(state);
        }
    }

    /// The thread of a VM is over.
    pub(crate) fn ended(&self) {
        self.lock().running -= 1;
        self.changed.notify_all();
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slots of one VM.
#[derive(Clone, Copy)]
pub(crate) struct Slots<'a> {
    pub(crate) schedule: &'a Schedule,
    pub(crate) index: VmIndex,
}

impl Slots<'_> {
    /// The source is needed no more; said once.
    pub(crate) fn finish(&self) {
        self.schedule.lock().scheduler.finished(self.index);
        self.schedule.changed.notify_all();
    }

    /// Lets others have them until [`Slots::take`]; nothing if that is so already.
    pub(crate) fn park(&self) {
        let mut state = self.schedule.lock();
        if std::mem::replace(&mut state.admitted[self.index.0], false) {
            state.scheduler.park(self.index);
            self.schedule.changed.notify_all();
        }
    }

    /// Waits until they are there again, before all others if `first`; false if the run is to stop.
    pub(crate) fn take(&self, first: bool, stop: &StopSignal) -> bool {
        let mut state = self.schedule.lock();
        if !state.admitted[self.index.0] {
            state.scheduler.wake(self.index, first);
            self.schedule.changed.notify_all();
        }
        while !state.admitted[self.index.0] && !stop.is_set() {
            state = self.schedule.wait(state);
        }
        state.admitted[self.index.0]
    }
}
