//! VMs that are about to begin: they do so with room at their targets, or wait, or never do.

use drover_schedule::{Ended, JobId, Wait};

use super::{GivenUp, Room, Rooms, Schedule, State, now};
use crate::clock::Clock;
use crate::error::EngineError;

/// A VM without room asks again after this time, in milliseconds, and later for each that waits with it.
const ROOM_AGAIN_MS: u64 = 1000;
const ROOM_AGAIN_EACH_MS: u64 = 50;

impl Schedule {
    /// Where a VM that is about to begin asks for room; nothing if room is not shared, or it only sees to what an earlier run left.
    pub(crate) fn rooms_for(&self, id: JobId) -> Option<Rooms> {
        let state = self.lock();
        let begins = state.vms.get(&id).is_some_and(|one| one.given_up.is_none());
        state.rooms.clone().filter(|_| begins)
    }

    /// Whether a VM goes on, because its guest is down.
    pub(crate) fn goes_on(&self, id: JobId) -> bool {
        self.lock().scheduler.goes_on(id)
    }

    /// Whether an earlier run left something of a VM.
    pub(crate) fn is_left(&self, id: JobId) -> bool {
        self.lock().vms.get(&id).is_some_and(|one| one.is_left)
    }

    /// A VM has room at its target until it is over.
    pub(crate) fn give_room(&self, id: JobId, room: Room) {
        let mut state = self.lock();
        state.no_room.remove(&id);
        if let Some(one) = state.vms.get_mut(&id) {
            one.room = Some(room);
        }
    }

    /// A VM that was to begin has no room at its target: it waits, and holds nothing.
    pub(crate) fn wait_for_room(&self, id: JobId, wait: Wait, clock: &dyn Clock) {
        let mut state = self.lock();
        let waiting = state.no_room.len() as u64;
        let until_ms = now(clock) + ROOM_AGAIN_MS + waiting * ROOM_AGAIN_EACH_MS;
        if state.take_thread_back(id) {
            state.no_room.insert(id);
            if state.scheduler.is_running(id) {
                state.scheduler.lacks_room(id, wait, until_ms, now(clock));
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// A VM that was to begin never has room at its target. True if it has a thread all the same, to see to what an earlier run
    /// left.
    pub(crate) fn refuse(&self, id: JobId, why: EngineError, clock: &dyn Clock) -> bool {
        let mut state = self.lock();
        let Some(one) = state.vms.get_mut(&id) else { return false };
        let (is_left, at, tenant) = (one.is_left, one.at, one.tenant);
        if is_left {
            one.given_up = Some(why);
        } else if state.take_thread_back(id)
            && let Some(run) = state.runs.get_mut(&tenant)
        {
            run.not_begun.remove(&id);
            run.given_up.push(GivenUp { at, why });
        }
        state.end(id, Ended::Failed, now(clock));
        drop(state);
        self.changed.notify_all();
        is_left
    }

    /// Lets room go that VMs need no more.
    pub(crate) fn let_room_go(&self) {
        self.lock().vms.values_mut().filter_map(|one| one.room.as_mut()).for_each(Room::let_go);
    }
}

impl State {
    /// A VM that was to have a thread has none; what it holds goes to others.
    fn take_thread_back(&mut self, id: JobId) -> bool {
        self.let_out(id);
        let Some(one) = self.vms.get_mut(&id) else { return false };
        let Some(run) = self.runs.get_mut(&one.tenant) else { return false };
        one.has_begun = false;
        run.threads -= 1;
        run.not_begun.insert(id)
    }
}
