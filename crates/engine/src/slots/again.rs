//! VMs that failed and are tried again in the same run.

use std::collections::{BTreeMap, BTreeSet};

use drover_plan::PlannedVm;
use drover_schedule::{Ended, JobId, Tenant};

use super::job::{Left, key_of, target_key};
use super::{GivenUp, One, Schedule, State, now};
use crate::clock::Clock;
use crate::error::EngineError;
use crate::store::{ProgressRow, VmRow};

/// VMs of a run that are tried again.
pub(crate) struct Again<'a> {
    /// Its source.
    pub(crate) site: &'a str,
    /// By their places in the run.
    pub(crate) vms: &'a BTreeMap<usize, &'a PlannedVm>,
    /// What the tries before left of them.
    pub(crate) left: &'a [VmRow],
    /// How far these were with their disks.
    pub(crate) copied: &'a [ProgressRow],
    /// Waves before which something is to be called again.
    pub(crate) to_call: &'a [&'a str],
}

impl Schedule {
    /// Places of those VMs of a run that have ended and did not arrive.
    pub(crate) fn failed(&self, tenant: Tenant) -> BTreeSet<usize> {
        let state = self.lock();
        let has_failed = |id: &JobId| {
            let ended = state.scheduler.ended(*id);
            ended.is_some_and(|ended| !matches!(ended, Ended::Arrived | Ended::LeftOut))
        };
        let own = state.vms.iter().filter(|(id, one)| one.tenant == tenant && has_failed(id));
        own.map(|(_, one)| one.at).collect()
    }

    /// A VM of a run, by its place, is given up by order. One that waits for its turn is told with those that never begin, or gets its
    /// thread to see to what an earlier run left.
    pub(crate) fn leave_out(&self, tenant: Tenant, at: usize, clock: &dyn Clock) {
        let mut state = self.lock();
        let own = |(_, one): &(&JobId, &One)| one.tenant == tenant && one.at == at;
        let Some(id) = state.vms.iter().find(own).map(|(id, _)| *id) else { return };
        let State { vms, runs, .. } = &mut *state;
        let (Some(one), Some(run)) = (vms.get_mut(&id), runs.get_mut(&tenant)) else { return };
        one.is_left_out = true;
        if run.not_begun.contains(&id) {
            run.ready.retain(|it| *it != id);
            if one.is_left {
                one.given_up = Some(EngineError::Cancelled);
                run.ready.push_back(id);
            } else {
                run.not_begun.remove(&id);
                run.given_up.push(GivenUp { at, why: EngineError::Cancelled });
            }
            state.end(id, Ended::LeftOut, now(clock));
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Whether VMs of a run have not ended, or their threads have not.
    pub(crate) fn has_left(&self, tenant: Tenant) -> bool {
        self.lock().runs.get(&tenant).is_some_and(|run| run.threads > 0 || !run.not_begun.is_empty())
    }

    /// Whether what is called before a wave failed, so that its VMs do not begin.
    pub(crate) fn is_shut(&self, tenant: Tenant, wave: &str) -> bool {
        self.lock().runs.get(&tenant).is_some_and(|run| run.shut.contains_key(wave))
    }

    /// VMs of a run, each of which [`Schedule::failed`], wait again, with what is left of them. Hosts, datastores and places at
    /// targets that were given up are tried again for them, as for a new run.
    pub(crate) fn again(&self, tenant: Tenant, again: &Again<'_>, clock: &dyn Clock) {
        let Again { site, vms, left, copied, to_call } = *again;
        let mut state = self.lock();
        let own = state.vms.iter().filter(|(_, one)| one.tenant == tenant && vms.contains_key(&one.at));
        let ids: BTreeMap<usize, JobId> = own.map(|(id, one)| (one.at, *id)).collect();
        let left = Left::new(left, copied);
        let (mut jobs, mut ones) = (Vec::new(), Vec::new());
        for (at, id) in &ids {
            let vm = vms[at];
            state.scheduler.try_again(&key_of(site, &vm.vm.host_id));
            for disk in &vm.disks {
                state.scheduler.try_datastore_again(&key_of(site, &disk.disk.datastore));
                state.scheduler.try_target_again(&target_key(vm, disk));
            }
            // Whatever it still holds goes to others.
            state.vms.remove(id);
            jobs.push((*id, left.job(tenant, vm, site)));
            ones.push(One::new(tenant, *at, site, vm, left.is_begun(vm)));
        }
        to_call.iter().for_each(|wave| state.scheduler.call_before(tenant, wave));
        let new = state.scheduler.add_again(tenant, jobs, now(clock));
        state.vms.extend(new.iter().copied().zip(ones));
        if let Some(run) = state.runs.get_mut(&tenant) {
            to_call.iter().for_each(|wave| drop(run.shut.remove(*wave)));
            run.not_begun.extend(new);
        }
        drop(state);
        self.changed.notify_all();
    }
}
