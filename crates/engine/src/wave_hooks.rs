//! What is called before and after the waves of a run.
//!
//! Each wave has a thread for its calls: a hook may take hours, and other waves go on meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};

use drover_mover::StopSignal;
use drover_plan::{AFTER_WAVE, BEFORE_WAVE, Hook, Plan, PlannedVm, WaveHooks};
use drover_schedule::{Tenant, WaveUsage};
use serde_json::{Value, json};

use crate::error::{Cause, EngineError, ProviderError};
use crate::itinerary::{About, Calls, Context, Moment, Outside};
use crate::slots::Schedule;
use crate::standing::VmEnd;
use crate::store::{Around, Called, PlanRow, Store, StoreError, VmRow, VmState, wave_key};

/// The calls around the waves of a run.
pub(crate) struct WaveCalls<'a> {
    pub(crate) context: &'a Context<'a>,
    pub(crate) schedule: &'a Schedule,
    pub(crate) tenant: Tenant,
    /// By wave.
    pub(crate) hooks: &'a BTreeMap<String, WaveHooks>,
    /// VMs of the plan, those that arrived in earlier runs among them.
    pub(crate) vms: &'a [PlannedVm],
    /// VMs of this run.
    pub(crate) todo: &'a [&'a PlannedVm],
    /// What earlier runs left of them.
    pub(crate) left: &'a [VmRow],
    /// How they ended so far, with all undone that had to be.
    pub(crate) ends: &'a Mutex<Vec<VmEnd>>,
    pub(crate) begun: Mutex<Begun>,
}

/// What this run has begun to call, before and after which waves, and whether that has ended.
pub(crate) type Begun = BTreeMap<(String, &'static str), bool>;

/// How VMs ended in this run, by their names at the target: their states and errors.
type Ends = HashMap<String, (VmState, Option<String>)>;

/// What to do about a panic.
pub(crate) const REPORT: &str = "report this, then `drover resume`";

/// Waves of a plan are about to move VMs. One that was over is over anew when these have ended: all around it is called again, for
/// what was called after it undid what was called before. `is_anew`: the whole plan was over.
///
/// # Errors
/// If the state cannot be read or written.
pub(crate) fn forget_waves_over(
    store: &Store,
    plan: &str,
    hooks: &BTreeMap<String, WaveHooks>,
    todo: &[&PlannedVm],
    left: &[VmRow],
    is_anew: bool,
) -> Result<(), StoreError> {
    let arrived = left.iter().filter(|row| row.state.has_arrived());
    let arrived: BTreeSet<&str> = arrived.map(|row| row.id.as_str()).collect();
    let moving = todo.iter().filter(|vm| !arrived.contains(vm.vm.id.as_str()));
    let waves: BTreeSet<&str> = moving.filter_map(|vm| vm.wave.as_deref()).collect();
    for wave in waves.into_iter().filter(|wave| hooks.contains_key(*wave)) {
        let Around { before, after } = store.latest_around(plan, wave)?;
        if is_anew || after > before {
            store.forget_wave(plan, wave)?;
        }
    }
    Ok(())
}

/// What is not called any more, because it came into the plan when its wave was over: `earlier` is the plan as it was.
pub(crate) fn too_late(
    earlier: Option<&PlanRow>,
    hooks: &BTreeMap<String, WaveHooks>,
    todo: &[&PlannedVm],
) -> Begun {
    // A text that cannot be read any more tells nothing.
    let Some(earlier) = earlier.and_then(|row| Plan::parse(&row.text).ok()) else { return Begun::new() };
    let had = earlier.wave_hooks();
    let had_none = |wave: &str| had.get(wave).is_none_or(|it| it.after.is_empty());
    let is_over = |wave: &str| todo.iter().all(|vm| vm.wave.as_deref() != Some(wave));
    let waves = hooks.keys().filter(|wave| had_none(wave) && is_over(wave));
    waves.map(|wave| ((wave.clone(), AFTER_WAVE), true)).collect()
}

impl<'a> WaveCalls<'a> {
    /// Whether a VM of a wave may be tried again now: not while something is called after that, or what was called before it has just
    /// failed.
    pub(crate) fn may_reopen(&self, begun: &Begun, wave: Option<&str>) -> bool {
        let Some(wave) = wave else { return true };
        let is_called = |point| begun.get(&(wave.to_string(), point)) == Some(&false);
        let has_just_failed = is_called(BEFORE_WAVE) && self.schedule.is_shut(self.tenant, wave);
        !is_called(AFTER_WAVE) && !has_just_failed
    }

    /// VMs of a wave are tried again, as [`WaveCalls::may_reopen`] lets them. If it was over, or what is called before it failed, all around it is called
    /// again, as by a resume. True if nothing of it moves until something was called.
    ///
    /// # Errors
    /// If the state cannot be read or written.
    pub(crate) fn reopen(&self, begun: &mut Begun, wave: &str) -> Result<bool, StoreError> {
        let Some(hooks) = self.hooks.get(wave) else { return Ok(false) };
        let was_over = begun.contains_key(&(wave.to_string(), AFTER_WAVE));
        if !was_over && !self.schedule.is_shut(self.tenant, wave) {
            return Ok(false);
        }
        let (store, plan) = (self.context.store, self.context.plan);
        let Around { before, after } = store.latest_around(plan, wave)?;
        if after > before {
            store.forget_wave(plan, wave)?;
        }
        begun.remove(&(wave.to_string(), AFTER_WAVE));
        begun.remove(&(wave.to_string(), BEFORE_WAVE));
        Ok(!hooks.before.is_empty())
    }

    /// Waves of which nothing moves before something was called.
    pub(crate) fn to_call_before(hooks: &'a BTreeMap<String, WaveHooks>) -> impl Iterator<Item = &'a str> {
        hooks.iter().filter(|(_, hooks)| !hooks.before.is_empty()).map(|(wave, _)| wave.as_str())
    }

    /// Nobody looks after the waves of this run: those before which something is to be called do not begin.
    pub(crate) fn shut_all(&self, why: &EngineError) {
        for wave in WaveCalls::to_call_before(self.hooks) {
            self.schedule.called(self.tenant, wave, Err(why), self.context.clock);
        }
    }

    /// Begins the calls that are due now, each wave's in a thread of its own; true if there were any.
    pub(crate) fn begin<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) -> bool {
        if self.hooks.is_empty() {
            return false;
        }
        let due = self.due(&mut self.lock());
        for (wave, point) in &due {
            let (name, point) = (wave.clone(), *point);
            let go = move || self.call_guarded(&name, point);
            if Builder::new().spawn_scoped(scope, go).is_err() {
                // No thread can be had: then all else waits for the calls.
                self.call_guarded(wave, point);
            }
        }
        !due.is_empty()
    }

    /// Whether something is called now.
    pub(crate) fn is_at_work(&self) -> bool {
        self.lock().values().any(|has_ended| !has_ended)
    }

    /// What is to be called now; it counts as begun from here on.
    fn due(&self, begun: &mut Begun) -> Vec<(String, &'static str)> {
        // First: nothing more is called before a wave that is over.
        let over = self.over(begun).into_iter().map(|wave| (wave, AFTER_WAVE));
        let before = self.schedule.waves_to_call(self.tenant, self.context.clock).into_iter();
        let mut due: Vec<_> = over.chain(before.map(|wave| (wave, BEFORE_WAVE))).collect();
        due.retain(|call| !begun.contains_key(call));
        begun.extend(due.iter().cloned().map(|call| (call, false)));
        due
    }

    /// Waves after which something is to be called now: all their VMs have ended, and nothing is called before them any more.
    fn over(&self, begun: &mut Begun) -> Vec<String> {
        if self.context.stop.is_set() {
            return Vec::new();
        }
        let usages = self.schedule.waves(self.tenant, self.context.clock);
        let usages: HashMap<&str, &WaveUsage> = usages.iter().map(|it| (it.name.as_str(), it)).collect();
        let mut over = Vec::new();
        for (wave, hooks) in self.hooks.iter().filter(|(_, hooks)| !hooks.after.is_empty()) {
            let usage = usages.get(wave.as_str()).copied();
            let has_ended = |point| begun.get(&(wave.clone(), point)).copied();
            let may_be = usage.is_none_or(WaveUsage::is_over) && has_ended(BEFORE_WAVE) != Some(false);
            if !may_be || has_ended(AFTER_WAVE).is_some() {
                continue;
            }
            let ends = self.ends_of(wave);
            if ends.len() < self.todo_of(wave).count() {
                continue;
            }
            // What cannot be read is read again by the call itself, which tells.
            if self.had_its_turn(wave, hooks, usage, &ends).unwrap_or(true) {
                over.push(wave.clone());
            } else {
                begun.insert((wave.clone(), AFTER_WAVE), true);
            }
        }
        over
    }

    /// Whether something of a wave was begun, by this run or by one that was cut short within the wave.
    fn had_its_turn(
        &self,
        wave: &str,
        hooks: &WaveHooks,
        usage: Option<&WaveUsage>,
        ends: &Ends,
    ) -> Result<bool, StoreError> {
        let in_this = ends.values().any(|(state, _)| state.has_arrived())
            || hooks.before.is_empty() && usage.is_some_and(|usage| usage.begun > 0);
        let all_arrived_before =
            ends.is_empty() && self.vms.iter().any(|vm| vm.wave.as_deref() == Some(wave));
        if in_this || all_arrived_before {
            return Ok(true);
        }
        let around = self.context.store.latest_around(self.context.plan, wave)?;
        let is_left = |vm: &PlannedVm| self.left.iter().any(|row| row.id == vm.vm.id && row.is_begun());
        // Without a call before it nothing tells what an earlier run came to but its VMs.
        Ok(around.is_open()
            || hooks.before.is_empty() && around.after == 0 && self.todo_of(wave).any(is_left))
    }

    fn todo_of(&self, wave: &str) -> impl Iterator<Item = &'a PlannedVm> {
        self.todo.iter().copied().filter(move |vm| vm.wave.as_deref() == Some(wave))
    }

    fn ends_of(&self, wave: &str) -> Ends {
        let names: BTreeSet<&str> = self.todo_of(wave).map(|vm| vm.target_name.as_str()).collect();
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        let of = ends.iter().filter(|end| names.contains(end.name.as_str()));
        of.map(|end| (end.name.clone(), (end.state, end.error.clone()))).collect()
    }

    /// What was begun to be called; what is decided by it stays so while this is held.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Begun> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A defect that shows here must not have the VMs of the wave wait for ever.
    fn call_guarded(&self, wave: &str, point: &'static str) {
        if catch_unwind(AssertUnwindSafe(|| self.call(wave, point))).is_err() && point == BEFORE_WAVE {
            let what = "internal error: the thread of what is called before it panicked";
            let error = ProviderError::new(Cause::Internal, what).advise(REPORT);
            self.schedule.called(self.tenant, wave, Err(&error.into()), self.context.clock);
        }
        self.lock().insert((wave.to_string(), point), true);
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
        let rows: HashMap<&str, &VmRow> = rows.iter().map(|row| (row.id.as_str(), row)).collect();
        // What comes before it, which stays the same until it has been called: a wave that is called about anew has another.
        let around = self.context.store.latest_around(self.context.plan, wave)?;
        let round = if point == BEFORE_WAVE { around.after } else { around.before };
        let document =
            |outside: Outside<'_>, called: Called<'_>| self.document(outside, called, (wave, round), &rows);
        hooks.iter().enumerate().try_for_each(|(at, hook)| {
            // Nobody is to be prepared for VMs that were given up meanwhile.
            if point == BEFORE_WAVE && self.is_over(wave) {
                return Ok(());
            }
            calls.call(moment, at + 1, hook, document, stop)
        })
    }

    /// Whether the schedule has no VM of a wave left.
    fn is_over(&self, wave: &str) -> bool {
        let usages = self.schedule.waves(self.tenant, self.context.clock);
        usages.iter().any(|usage| usage.name == wave && usage.is_over())
    }

    /// What is told of a wave. Nothing in it is a secret.
    fn document(
        &self,
        outside: Outside<'_>,
        called: Called<'_>,
        (wave, round): (&str, i64),
        rows: &HashMap<&str, &VmRow>,
    ) -> Value {
        let Outside { facts, run, .. } = outside;
        let plan = self.context.plan;
        let ends = self.ends_of(wave);
        let (mut vms, mut arrived, mut failed, mut skipped) = (Vec::new(), 0, 0, 0);
        for vm in self.vms.iter().filter(|vm| vm.wave.as_deref() == Some(wave)) {
            let (row, end) = (rows.get(vm.vm.id.as_str()), ends.get(&vm.target_name));
            // The state may lack an end that could not be recorded.
            let state = end.map(|(state, _)| *state).or(row.map(|row| row.state));
            let error = end.map_or(row.and_then(|row| row.error.as_deref()), |(_, error)| error.as_deref());
            arrived += usize::from(state.is_some_and(VmState::has_arrived));
            failed += usize::from(state == Some(VmState::Failed));
            skipped += usize::from(state == Some(VmState::Skipped));
            vms.push(json!({
                "id": vm.vm.id,
                "name": vm.vm.name,
                "target_name": vm.target_name,
                "state": state,
                "error": error,
            }));
        }
        let outcome = (called.point == AFTER_WAVE).then(|| {
            let state = if arrived + skipped == vms.len() { "done" } else { "failed" };
            json!({"state": state, "arrived": arrived, "failed": failed})
        });
        json!({
            "version": 1,
            "kind": called.kind,
            "point": called.point,
            "number": called.number,
            // The same for every call of this one: whoever sees it twice has been called again.
            "call": format!("{plan}/{}/{}/{round}/{}", wave_key(wave), called.point, called.number),
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
