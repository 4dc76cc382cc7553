//! VMs that are about to begin: they do so with room at their targets, or wait, or never do.

use drover_schedule::{Ended, JobId, Tenant, Wait};

use super::why::Stays;
use super::{GivenUp, Room, Rooms, Schedule, State, now};
use crate::clock::Clock;
use crate::error::EngineError;
use crate::provider::TargetPlace;

/// A VM without room asks again after this time, in milliseconds, and later for each that waits with it.
const ROOM_AGAIN_MS: u64 = 1000;
const ROOM_AGAIN_EACH_MS: u64 = 50;

/// Looks after which the answer of a place is late: VMs that ask there hold no slots until they have it.
const LOOKS_LATE: u32 = 2;

/// A VM that asks for room.
#[derive(Default)]
pub(super) struct Asking {
    /// Where: keys, and what people call them. None while it is being found out.
    places: Vec<(String, String)>,
    /// Looks at it so far.
    looks: u32,
}

impl Asking {
    fn is_late(&self) -> bool {
        self.looks >= LOOKS_LATE
    }

    fn is_late_at(&self, key: &str) -> bool {
        self.is_late() && self.places.iter().any(|(at, _)| at == key)
    }
}

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

    /// A VM that is about to begin asks for room at its target from now on, until it is given room, waits for it or is refused.
    pub(crate) fn begins_to_ask(&self, id: JobId) {
        self.lock().asking.insert(id, Asking::default());
    }

    /// It asks at these places. Gives one of them that keeps another VM waiting for its answer: then it does not ask now.
    pub(crate) fn asks_at(&self, id: JobId, places: &[TargetPlace]) -> Option<Wait> {
        let mut state = self.lock();
        let is_late =
            |place: &&TargetPlace| state.asking.values().any(|asking| asking.is_late_at(&place.key));
        if let Some(place) = places.iter().find(is_late) {
            return Some(Wait::RoomUntold { place: place.label.clone() });
        }
        if let Some(asking) = state.asking.get_mut(&id) {
            asking.places = places.iter().map(|place| (place.key.clone(), place.label.clone())).collect();
        }
        None
    }

    /// VMs of a run that have no answer at the second look give their slots to others until they have.
    pub(crate) fn let_askers_wait(&self, tenant: Tenant, clock: &dyn Clock) {
        let mut state = self.lock();
        let of = |id: &JobId| state.vms.get(id).is_some_and(|one| one.tenant == tenant);
        let ids: Vec<JobId> = state.asking.keys().copied().filter(of).collect();
        for id in ids {
            let Some(asking) = state.asking.get_mut(&id) else { continue };
            asking.looks = asking.looks.saturating_add(1);
            let place = asking.places.first().map_or("its target", |(_, label)| label.as_str()).to_string();
            if asking.is_late() && state.let_out(id) && state.scheduler.is_running(id) {
                state.scheduler.lacks_room(id, Wait::RoomUntold { place }, u64::MAX, now(clock));
                self.changed.notify_all();
            }
        }
    }

    /// A VM has room at its target until it is over. If it gave its slots away meanwhile it waits for them at its old place.
    pub(crate) fn give_room(&self, id: JobId, room: Room, clock: &dyn Clock) {
        let mut state = self.lock();
        state.no_room.remove(&id);
        state.asking.remove(&id);
        if let Some(one) = state.vms.get_mut(&id) {
            one.room = Some(room);
        }
        state.scheduler.finds_room(id, now(clock));
    }

    /// A VM that was to begin has no room at its target: it waits, and holds nothing. True if it has its thread all the same, because
    /// it begins no more in this run and there is something to be seen to that an earlier one left.
    pub(crate) fn wait_for_room(&self, id: JobId, wait: Wait, clock: &dyn Clock) -> bool {
        let mut state = self.lock();
        if state.vms.get(&id).is_some_and(|one| one.is_left_out) {
            drop(state);
            return self.refuse(id, EngineError::Cancelled, clock);
        }
        if let Some(ended) = state.scheduler.ended(id) {
            let why = state.why(id, ended, Stays::NotBegun);
            drop(state);
            return self.refuse(id, why, clock);
        }
        let waiting = state.no_room.len() as u64;
        let until_ms = now(clock) + ROOM_AGAIN_MS + waiting * ROOM_AGAIN_EACH_MS;
        state.asking.remove(&id);
        if state.take_thread_back(id) {
            state.no_room.insert(id);
            state.scheduler.lacks_room(id, wait, until_ms, now(clock));
        }
        drop(state);
        self.changed.notify_all();
        false
    }

    /// A VM that was to begin never has room at its target. True if it has its thread all the same, to see to what an earlier run
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
