//! What a warm migration has besides a cold one: passes while the VM runs, and the last one of a VM that
//! is off.

mod audit;
mod guardian;
mod outlook;
mod pass;
mod passes;
mod replica;
mod unmapped;

pub use self::outlook::MOMENT_GRACE_MS;
pub(crate) use self::outlook::moment_of;
pub(super) use self::pass::{DiskPass, FrozenVm};
pub(super) use self::unmapped::Unmapped;

use std::time::Duration;

use drover_plan::PlannedVm;

use super::{Context, Journey, Outcome, look};
use crate::error::{EngineError, chain};
use crate::event::Event;
use crate::gone::is_gone;
use crate::store::StoreError;
use crate::tracking::ChangeTracking;

/// Switches change tracking off again if drover switched it on for this plan; says so, or why it stays on.
pub(crate) fn untrack(context: &Context<'_>, planned: &PlannedVm) -> Result<Option<String>, StoreError> {
    let (store, plan, vm) = (context.store, context.plan, &planned.vm.id);
    if !store.warm(plan, vm)?.tracking_on {
        return Ok(None);
    }
    let Some(tracking) = context.source.tracking() else { return Ok(None) };
    match look(context.source, planned).and_then(|now| tracking.disable(&now)) {
        Ok(()) => {
            store.set_tracking_on(plan, vm, false)?;
            Ok(Some("switched change tracking off again, which drover had switched on".into()))
        }
        // Nothing of it is left on.
        Err(_) if is_gone(plan, store, context.source, planned).unwrap_or(false) => {
            store.set_tracking_on(plan, vm, false)?;
            Ok(None)
        }
        Err(error) => Ok(Some(format!(
            "change tracking, which drover had switched on, stays on at the source ({}); it costs little, and can be switched \
             off there once nothing else uses it",
            chain(&error)
        ))),
    }
}

impl Journey<'_> {
    fn tracking(&self) -> Outcome<&dyn ChangeTracking> {
        let without = || self.refused("cannot move warm: its source tracks no changes", "use `mode: cold`");
        self.context.source.tracking().ok_or_else(without)
    }

    /// Switches change tracking on where it is off.
    pub(super) fn track(&mut self) -> Outcome<()> {
        self.track_vm().map(|_| ())
    }

    /// Whether anything had to be switched on.
    fn track_vm(&mut self) -> Outcome<bool> {
        let mut now = self.look()?;
        let ours = |key: i32| self.planned.disks.iter().any(|disk| disk.disk.key == key);
        now.disks.retain(|disk| ours(disk.key));
        if !now.change_tracking {
            // Before it is: a crash in between must not leave it on for good.
            self.context.store.set_tracking_on(self.context.plan, &now.id, true)?;
        }
        let enabled = self.tracking()?.enable(&now, &super::own_description(self.context.plan));
        let done = match enabled {
            Ok(done) => done,
            Err(error) => {
                // What is not on was not switched on by drover, whoever does so later.
                if !now.change_tracking && self.look().is_ok_and(|now| !now.change_tracking) {
                    self.context.store.set_tracking_on(self.context.plan, &now.id, false)?;
                }
                return Err(error.into());
            }
        };
        done.iter().for_each(|line| self.note(line.clone()));
        Ok(!done.is_empty())
    }

    /// Change tracking that drover switched on is not needed any more. What has arrived does not fail for it.
    pub(super) fn untrack(&self) -> Outcome<()> {
        match untrack(self.context, self.planned)? {
            Some(line) => {
                self.note(line);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// The snapshot of the last pass, of a VM that is off.
    pub(super) fn freeze_last(&mut self) -> Outcome<()> {
        self.begin_pass(true)
    }

    /// The last pass.
    pub(super) fn copy_last(&mut self) -> Outcome<()> {
        self.copy_pass()
    }

    /// The target runs for so long now, or could: the cutover is over.
    pub(super) fn end_downtime(&self, runs_for: Duration) -> Outcome<()> {
        if !self.is_warm() {
            return Ok(());
        }
        let (store, plan, vm) = (self.context.store, self.context.plan, &self.planned.vm.id);
        store.set_up(plan, vm, self.context.clock.now_ms() - runs_for.as_millis() as i64)?;
        let row = store.warm(plan, vm)?;
        if let Some(ready_ms) = row.ready_ms() {
            let downtime_ms = self.planned.start.then_some(ready_ms);
            let forecast = row.forecast;
            self.tell(Event::CutoverEnded { vm: self.name(), forecast, downtime_ms, ready_ms });
        }
        Ok(())
    }

    /// After a cutover that did not end well: it has to be decided anew.
    pub(super) fn undo_cutover(&self) -> Result<(), EngineError> {
        let (store, plan, vm) = (self.context.store, self.context.plan, &self.planned.vm.id);
        if store.warm(plan, vm)?.reason.is_some() {
            store.undo_cutover(plan, vm, self.moment())?;
        }
        Ok(())
    }
}
