//! VMs that failed and are tried again by order, while the rest of their run goes on.
//!
//! A second try in the same run is what a resume would make of the VM: it is entered as queued, and goes by what its row and its
//! journals say. The lock of what is called around waves is held meanwhile, so that a wave is not over for one and reopened for another.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;

use drover_plan::PlannedVm;

use crate::event::Event;
use crate::runner::{Run, Runner};
use crate::slots::Again;
use crate::store::{StoreError, VmState};
use crate::wave_hooks::Begun;

/// Why an order is not heeded.
const NOT_IN_THIS_RUN: &str = "it is not among the VMs of this run";
const DID_NOT_FAIL: &str = "it did not fail";
const STOPS: &str = "the run stops, and the next one tries it again";
const TOO_LATE: &str = "the run is over, and the next one tries it again";
const UNWATCHED: &str = "nobody looks after orders in this run, and the next one tries it again";

impl Runner<'_> {
    /// Tries failed VMs again of which somebody ordered it.
    pub(crate) fn heed_retries(&self, run: &Run<'_>) {
        // Trouble with the store shows itself elsewhere; orders are looked for again.
        let _ = self.heed(run, &mut run.calls.lock(), false);
    }

    /// Whether the run is over, no VM of which is left: it takes no more orders then.
    pub(crate) fn is_over(&self, run: &Run<'_>) -> bool {
        let mut begun = run.calls.lock();
        // What is called after a wave is waited for, with the orders about VMs of that.
        if begun.values().any(|has_ended| !has_ended) || run.schedule.has_left(run.tenant) {
            return false;
        }
        let heeded = self.heed(run, &mut begun, true);
        if run.schedule.has_left(run.tenant) {
            return false;
        }
        // One that was ordered this moment is heeded still; a store that fails keeps no run from its end.
        heeded.is_err() || self.store.end_retries(self.plan).unwrap_or(true)
    }

    /// Nobody looks for orders while the run goes on: it takes none.
    pub(crate) fn takes_no_retries(&self, run: &Run<'_>) {
        self.refuse(run, UNWATCHED);
    }

    fn refuse(&self, run: &Run<'_>, why: &str) {
        if run.takes_retries.load(SeqCst) && self.store.refuse_retries(self.plan, why).is_ok() {
            run.takes_retries.store(false, SeqCst);
        }
    }

    fn heed(&self, run: &Run<'_>, begun: &mut Begun, is_last: bool) -> Result<(), StoreError> {
        if self.stop.is_set() {
            self.refuse(run, STOPS);
        }
        if !run.takes_retries.load(SeqCst) {
            return Ok(());
        }
        let ordered = self.store.retries(self.plan)?;
        if ordered.is_empty() {
            return Ok(());
        }
        let again = self.to_try_again(run, begun, &ordered, is_last)?;
        if again.is_empty() {
            return Ok(());
        }
        let copied = self.store.progress(self.plan)?;
        let waves: BTreeSet<&str> = again.values().filter_map(|vm| vm.wave.as_deref()).collect();
        let mut to_call = Vec::new();
        for wave in waves {
            if run.calls.reopen(begun, wave)? {
                to_call.push(wave);
            }
        }
        let ids: Vec<&str> = again.values().map(|vm| vm.vm.id.as_str()).collect();
        let rows = self.store.heed_retries(self.plan, &ids)?;
        // What the store says: it lacks a failure that could not be recorded.
        let was: HashMap<&str, &Option<String>> =
            rows.iter().map(|row| (row.id.as_str(), &row.error)).collect();
        let again: BTreeMap<usize, &PlannedVm> =
            again.into_iter().filter(|(_, vm)| was.contains_key(vm.vm.id.as_str())).collect();
        let names: BTreeSet<&str> = again.values().map(|vm| vm.target_name.as_str()).collect();
        let mut ends = run.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.retain(|end| !names.contains(end.name.as_str()));
        drop(ends);
        for vm in again.values() {
            let error = was.get(vm.vm.id.as_str()).and_then(|error| (*error).clone());
            self.observer.event(&Event::VmRetried { vm: vm.target_name.clone(), error });
        }
        let site = &self.site();
        let again = Again { site, vms: &again, left: &rows, copied: &copied, to_call: &to_call };
        run.schedule.again(run.tenant, &again, self.clock);
        Ok(())
    }

    /// Which of the VMs that are ordered to be tried again may be now, by their places in the run. One whose try is just ending, or whose
    /// wave is called about, may be later; one that never may is dropped.
    fn to_try_again<'a>(
        &self,
        run: &Run<'a>,
        begun: &Begun,
        ordered: &[String],
        is_last: bool,
    ) -> Result<BTreeMap<usize, &'a PlannedVm>, StoreError> {
        let places = run.todo.iter().enumerate().map(|(at, vm)| (vm.vm.id.as_str(), at));
        let places: HashMap<&str, usize> = places.collect();
        let ends = || run.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let ends: HashMap<String, VmState> = ends().iter().map(|end| (end.name.clone(), end.state)).collect();
        let failed = run.schedule.failed(run.tenant);
        let (mut again, mut is_early) = (BTreeMap::new(), false);
        for id in ordered {
            let Some(at) = places.get(id.as_str()).copied() else {
                self.store.drop_retry(self.plan, id, NOT_IN_THIS_RUN)?;
                continue;
            };
            let vm = run.todo[at];
            match ends.get(&vm.target_name) {
                Some(VmState::Failed)
                    if failed.contains(&at) && run.calls.may_reopen(begun, vm.wave.as_deref()) =>
                {
                    again.insert(at, vm);
                }
                Some(VmState::Failed) | None if is_last => {
                    self.store.drop_retry(self.plan, id, TOO_LATE)?;
                }
                Some(VmState::Failed) | None => is_early = true,
                Some(_) => self.store.drop_retry(self.plan, id, DID_NOT_FAIL)?,
            }
        }
        // What was ordered together begins together: one that never began because of another would fail again without it.
        Ok(if is_early { BTreeMap::new() } else { again })
    }
}
