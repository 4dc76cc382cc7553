//! What is done at the target once the disks are there.

use std::borrow::Cow;
use std::time::Duration;

use drover_plan::PlannedVm;
use drover_types::inventory::{PowerState, Vm};

use super::{Journey, Outcome};
use crate::error::{Cause, ProviderError};
use crate::provider::{Converted, Started};

impl Journey<'_> {
    pub(super) fn convert(&mut self) -> Outcome<()> {
        if self.planned.convert != drover_plan::Convert::Never {
            self.set_touched()?;
        }
        let planned = self.as_told()?;
        match self.context.target.convert(&planned)? {
            Converted::Done { told, left } => {
                self.note(format!("converted; log in {told}"));
                left.into_iter().for_each(|line| self.note(line));
            }
            Converted::Skipped(why) => {
                self.set_untouched()?;
                self.note(format!("not converted: {why}"));
            }
        }
        Ok(())
    }

    /// Keeps what VMware Tools tell of the addresses of a guest that runs: once it is down they tell nothing, and a run that goes on with
    /// it has to know them, too.
    pub(super) fn keep_told(&self, now: &Vm) -> Outcome<()> {
        if now.power != PowerState::On || !self.planned.keeps_addresses {
            return Ok(());
        }
        let mut planned = self.as_told()?.into_owned();
        let lines = planned.keep_told(now);
        if lines.is_empty() {
            return Ok(());
        }
        let (store, plan, vm) = (self.context.store, self.context.plan, &self.planned.vm.id);
        let json = serde_json::to_string(&planned).map_err(|error| {
            ProviderError::new(Cause::Internal, format!("keeping the addresses of {}", self.planned.vm.name))
                .because(error)
        })?;
        store.set_planned(plan, vm, &json)?;
        lines.into_iter().for_each(|line| self.note(line));
        Ok(())
    }

    /// The VM with the addresses that were told last.
    fn as_told(&self) -> Outcome<Cow<'_, PlannedVm>> {
        if !self.planned.keeps_addresses {
            return Ok(Cow::Borrowed(self.planned));
        }
        let row = self.context.store.vm(self.context.plan, &self.planned.vm.id)?;
        let Some(kept) = row.and_then(|row| serde_json::from_str::<PlannedVm>(&row.planned).ok()) else {
            return Ok(Cow::Borrowed(self.planned));
        };
        let mut planned = self.planned.clone();
        (planned.vm.nics, planned.first_boot) = (kept.vm.nics, kept.first_boot);
        Ok(Cow::Owned(planned))
    }

    pub(super) fn define(&mut self) -> Outcome<()> {
        self.memory.defined = Some(true);
        let line = self.context.target.define(self.planned);
        let line = line.inspect_err(|error| self.keep_refusal(None, error))?;
        self.note(line);
        Ok(())
    }

    pub(super) fn start(&mut self) -> Outcome<()> {
        if self.planned.start {
            self.context.target.make_ready(self.planned)?;
        }
        // Asked again at the last moment: a guest never runs on two sides.
        self.check_still()?;
        if !self.planned.start {
            // Whoever starts it can do so now.
            self.did_nothing = true;
            return self.end_downtime(Duration::ZERO);
        }
        self.set_touched()?;
        self.memory.started = true;
        let Started { line, watched } = self.context.target.start(self.planned)?;
        // It runs. What fails from here on does not stop it: a record that it was started may be all that a later run knows.
        (self.started_now, self.stays) = (true, true);
        self.context.store.set_started(self.context.plan, &self.planned.vm.id, Some(&line))?;
        self.note(line);
        self.end_downtime(watched)
    }

    /// From now on the images may hold something else than was copied.
    fn set_touched(&self) -> Outcome<()> {
        let (store, plan, vm) = (self.context.store, self.context.plan, &self.planned.vm.id);
        store.set_touched(plan, vm)?;
        if self.is_warm() {
            store.set_replica_touched(plan, vm, true)?;
        }
        Ok(())
    }
}
