//! Places at targets that are full or fail: VMs that go there wait.

use std::collections::BTreeSet;

use drover_schedule::{JobId, Resource, TargetFailure, Tenant};

use super::rooms::Full;
use super::{Schedule, Slots, State, now};
use crate::clock::Clock;
use crate::provider::TargetPlace;

impl Slots<'_> {
    /// The VM failed because of a place that a disk of it goes to, by its place in the plan, or those of all its disks. Gives whether it
    /// is tried again; until then it holds what it held.
    pub(crate) fn target_failed(&self, disk: Option<usize>, failure: &TargetFailure) -> bool {
        let again = self.schedule.lock().target_failed(self.id, disk, failure, now(self.clock));
        self.schedule.changed.notify_all();
        again
    }

    /// Whether a place that the VM goes to is left alone, and it is not the VM with which that is tried.
    pub(crate) fn is_target_held(&self) -> bool {
        self.schedule.lock().scheduler.is_target_held(self.id)
    }

    /// Where a place was full, by leave of the plan, a VM asks for all that its disks may take from then on.
    pub(crate) fn ask_for_all(&self, places: &mut [TargetPlace]) {
        self.schedule.ask_for_all(self.id, places);
    }
}

impl Schedule {
    /// A VM that was to begin found a place full that its plan may overcommit: the place is left alone for a while, and the VM waits, and
    /// holds nothing. True as of [`Schedule::wait_for_room`].
    pub(crate) fn finds_place_full(&self, id: JobId, disk: usize, full: Full, clock: &dyn Clock) -> bool {
        let failure = TargetFailure { why: full.why, is_full: true };
        self.lock().target_failed(id, Some(disk), &failure, now(clock));
        self.wait_for_room(id, full.wait, clock)
    }

    /// Where a place was full that a VM's plan may overcommit, the VM asks for all that its disks may take from then on.
    pub(crate) fn ask_for_all(&self, id: JobId, places: &mut [TargetPlace]) {
        let state = self.lock();
        let Some(job) = state.scheduler.job(id).filter(|_| state.scheduler.was_target_full(id)) else {
            return;
        };
        for place in places.iter_mut().filter(|place| place.overcommits) {
            for (number, needs) in &mut place.needs {
                *needs = job.disks.get(*number).map_or(0, |disk| disk.bytes).max(*needs);
            }
        }
    }
}

impl State {
    /// A VM failed because of a place that a disk of it goes to, by its place in the plan, or those of all its disks. Gives whether it is
    /// tried again. Of one that does not run it counts that the place is full.
    pub(super) fn target_failed(
        &mut self,
        id: JobId,
        disk: Option<usize>,
        failure: &TargetFailure,
        now_ms: u64,
    ) -> bool {
        let disk = disk.and_then(|disk| self.scheduler.job(id)?.disks.get(disk));
        let pool = disk.and_then(|disk| disk.pool.clone());
        let at: Vec<&str> = pool.as_deref().into_iter().collect();
        if self.scheduler.is_running(id) {
            return self.scheduler.target_failed(id, &at, failure, now_ms);
        }
        if failure.is_full {
            self.scheduler.target_full_late(id, &at, failure, now_ms);
        }
        false
    }

    /// Places at targets that a run writes to.
    pub(super) fn written_by(&self, tenant: Tenant) -> BTreeSet<Resource> {
        let own = self.vms.iter().filter(|(_, one)| one.tenant == tenant);
        let jobs = own.filter_map(|(id, _)| self.scheduler.job(*id));
        let pools = jobs.flat_map(|job| &job.disks).filter_map(|disk| disk.pool.clone());
        pools.map(Resource::Pool).collect()
    }
}
