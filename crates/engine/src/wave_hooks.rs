//! What is called before and after the waves of a run.
//!
//! Each wave has a thread for its calls: a hook may take hours, and other waves go on meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, Scope};

use drover_mover::StopSignal;
use drover_plan::{AFTER_WAVE, BEFORE_WAVE, Hook, PlannedVm, WaveHooks};
use drover_schedule::{Tenant, WaveUsage};
use serde_json::{Value, json};

use crate::error::{Cause, EngineError, ProviderError};
use crate::itinerary::{About, Calls, Context, Moment, Outside};
use crate::slots::Schedule;
use crate::store::{Called, StoreError, VmRow, VmState, wave_key};

/// The calls around the waves of a run.
pub(crate) struct WaveCalls<'a> {
    pub(crate) context: &'a Context<'a>,
    pub(crate) schedule: &'a Schedule,
    pub(crate) tenant: Tenant,
    /// By wave.
    pub(crate) hooks: &'a BTreeMap<String, WaveHooks>,
    /// VMs of the plan, those that arrived in earlier runs among them.
    pub(crate) vms: &'a [PlannedVm],
    /// What was begun in this run: waves, and before or after.
    pub(crate) begun: Mutex<BTreeSet<(String, &'static str)>>,
}

impl<'a> WaveCalls<'a> {
    /// Waves of which nothing moves before something was called.
    pub(crate) fn to_call_before(hooks: &'a BTreeMap<String, WaveHooks>) -> impl Iterator<Item = &'a str> {
        hooks.iter().filter(|(_, hooks)| !hooks.before.is_empty()).map(|(wave, _)| wave.as_str())
    }

    /// VMs of a wave are to move that had not arrived: when they have ended, it is over anew.
    ///
    /// # Errors
    /// If the state cannot be written.
    pub(crate) fn forget_ends(&self, todo: &[&PlannedVm], left: &[VmRow]) -> Result<(), StoreError> {
        let (store, plan) = (self.context.store, self.context.plan);
        let arrived = left.iter().filter(|row| row.state.has_arrived());
        let arrived: BTreeSet<&str> = arrived.map(|row| row.id.as_str()).collect();
        let moving = todo.iter().filter(|vm| !arrived.contains(vm.vm.id.as_str()));
        let waves: BTreeSet<&str> = moving.filter_map(|vm| vm.wave.as_deref()).collect();
        for wave in waves.into_iter().filter(|wave| self.hooks.contains_key(*wave)) {
            store.forget_hooks(plan, &wave_key(wave), BEFORE_WAVE)?;
        }
        Ok(())
    }

    /// Nobody looks after the waves of this run: those before which something is to be called do not begin.
    pub(crate) fn shut_all(&self, why: &EngineError) {
        for wave in WaveCalls::to_call_before(self.hooks) {
            self.schedule.called(self.tenant, wave, Err(why), self.context.clock);
        }
    }

    /// Begins the calls that are due now, each wave's in a thread of its own.
    pub(crate) fn begin<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        if self.hooks.is_empty() {
            return;
        }
        let clock = self.context.clock;
        let before = self.schedule.waves_to_call(self.tenant, clock);
        let is_over = |usage: &WaveUsage| usage.vms > 0 && usage.is_over();
        let after = self.schedule.waves(self.tenant, clock).into_iter().filter(is_over).map(|it| it.name);
        let after = after.filter(|_| !self.context.stop.is_set());
        let due =
            before.into_iter().map(|wave| (wave, BEFORE_WAVE)).chain(after.map(|wave| (wave, AFTER_WAVE)));
        for (wave, point) in due {
            if !self.is_new(&wave, point) {
                continue;
            }
            let name = wave.clone();
            let go = move || self.call_guarded(&name, point);
            if Builder::new().spawn_scoped(scope, go).is_err() {
                // No thread can be had: then all else waits for the calls.
                self.call_guarded(&wave, point);
            }
        }
    }

    /// What is left to call when all VMs have ended, and none of it was begun: after waves that ended at last, or whose end an
    /// earlier run did not come to tell.
    pub(crate) fn end(&self) {
        let usages = self.schedule.waves(self.tenant, self.context.clock);
        for wave in self.hooks.keys() {
            let has_vms = self.vms.iter().any(|vm| vm.wave.as_ref() == Some(wave));
            let is_left = usages.iter().any(|it| it.name == *wave && !it.is_over());
            if has_vms && !is_left && !self.context.stop.is_set() && self.is_new(wave, AFTER_WAVE) {
                self.call_guarded(wave, AFTER_WAVE);
            }
        }
    }

    /// Whether this run did not begin a call yet.
    fn is_new(&self, wave: &str, point: &'static str) -> bool {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert((wave.to_string(), point))
    }

    /// A defect that shows here must not have the VMs of the wave wait for ever.
    fn call_guarded(&self, wave: &str, point: &'static str) {
        if catch_unwind(AssertUnwindSafe(|| self.call(wave, point))).is_err() && point == BEFORE_WAVE {
            let what = "internal error: the thread of what is called before it panicked";
            let error = ProviderError::new(Cause::Internal, what).advise("report this, then `drover resume`");
            self.schedule.called(self.tenant, wave, Err(&error.into()), self.context.clock);
        }
    }

    fn call(&self, wave: &str, point: &'static str) {
        let Some(hooks) = self.hooks.get(wave) else { return };
        let calls = Calls { context: self.context, about: About::Wave(wave) };
        if point == AFTER_WAVE {
            // What comes of them changes nothing: the wave is over.
            let failed = self.call_all(calls, wave, point, &hooks.after).err();
            return failed.into_iter().for_each(|error| calls.note(error.chain()));
        }
        match self.call_all(calls, wave, point, &hooks.before) {
            // Its VMs are stopped as well, and a resume calls it again.
            Err(EngineError::Cancelled) => {}
            Ok(()) => self.schedule.called(self.tenant, wave, Ok(()), self.context.clock),
            Err(error) => {
                calls.note(format!("it does not begin: {}", error.chain()));
                self.schedule.called(self.tenant, wave, Err(&error), self.context.clock);
            }
        }
    }

    fn call_all(
        &self,
        calls: Calls<'_>,
        wave: &str,
        point: &'static str,
        hooks: &[Hook],
    ) -> Result<(), EngineError> {
        let moment = Moment { point, may_skip: false, recurs: false };
        let stop: &StopSignal = self.context.stop;
        // As it is now: they may run for long.
        let rows = self.context.store.vms(self.context.plan)?;
        let document = |outside: Outside<'_>, called: Called<'_>| self.document(outside, called, wave, &rows);
        hooks.iter().enumerate().try_for_each(|(at, hook)| calls.call(moment, at + 1, hook, document, stop))
    }

    /// What is told of a wave. Nothing in it is a secret.
    fn document(&self, outside: Outside<'_>, called: Called<'_>, wave: &str, rows: &[VmRow]) -> Value {
        let Outside { facts, run, .. } = outside;
        let plan = self.context.plan;
        let (mut vms, mut arrived, mut failed) = (Vec::new(), 0, 0);
        for vm in self.vms.iter().filter(|vm| vm.wave.as_deref() == Some(wave)) {
            let row = rows.iter().find(|row| row.id == vm.vm.id);
            let state = row.map(|row| row.state);
            arrived += usize::from(state.is_some_and(|state| state.has_arrived()));
            failed += usize::from(state == Some(VmState::Failed));
            vms.push(json!({
                "id": vm.vm.id,
                "name": vm.vm.name,
                "target_name": vm.target_name,
                "state": state,
                "error": row.and_then(|row| row.error.as_deref()),
            }));
        }
        let outcome = (called.point == AFTER_WAVE).then(|| {
            let state = if failed == 0 { "done" } else { "failed" };
            json!({"state": state, "arrived": arrived, "failed": failed})
        });
        json!({
            "version": 1,
            "kind": called.kind,
            "point": called.point,
            "number": called.number,
            // The same for every call of this one: whoever sees it twice has been called again.
            "call": format!("{plan}/{}/{}/{}", wave_key(wave), called.point, called.number),
            "plan": plan,
            "run": run,
            "wave": {"name": wave, "vms": vms},
            "source": {
                "address": facts.source,
                "product": facts.source_product,
                "uuid": facts.source_uuid,
            },
            "outcome": outcome,
        })
    }
}
