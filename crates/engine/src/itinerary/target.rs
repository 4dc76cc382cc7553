//! What is done at the target once the disks are there.

use std::borrow::Cow;
use std::time::Duration;

use drover_plan::PlannedVm;
use drover_types::inventory::{PowerState, Vm};
use drover_types::shell_word;

use super::{Journey, Outcome};
use crate::error::{Cause, ProviderError};
use crate::provider::{Converted, Started};

/// Said of a VM that its owner gave other hardware while it was on its way.
const OTHER_HARDWARE: &str = "has other hardware at the source than when the plan was checked";

impl Journey<'_> {
    pub(super) fn convert(&mut self) -> Outcome<()> {
        if self.planned.convert != drover_plan::Convert::Never {
            self.keep_hardware(&self.look()?)?;
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
        self.keep_planned(&planned)?;
        lines.into_iter().for_each(|line| self.note(line));
        Ok(())
    }

    /// Has the machine at the target get the hardware that the VM has now.
    ///
    /// # Errors
    /// If some of it is such that the plan has to be laid over the VM again.
    pub(super) fn keep_hardware(&self, now: &Vm) -> Outcome<()> {
        match self.take_hardware(now)? {
            None => Ok(()),
            Some(what) => Err(self.refused(&what, &self.read_anew())),
        }
    }

    /// The same; gives what cannot be taken over in place of an error.
    pub(super) fn take_hardware(&self, now: &Vm) -> Outcome<Option<String>> {
        let mut planned = self.as_told()?.into_owned();
        let lines = match planned.take_hardware(now) {
            Ok(lines) => lines,
            Err(why) => return Ok(Some(format!("{OTHER_HARDWARE}: {}", why.join("; ")))),
        };
        if lines.is_empty() {
            return Ok(None);
        }
        self.keep_planned(&planned)?;
        if self.is_warm() {
            // Beside the VM, too, for whoever looks at it later.
            let (store, plan, vm) = (self.context.store, self.context.plan, &self.planned.vm.id);
            store.set_hint(plan, vm, self.hardware_words(&planned).as_deref())?;
        }
        let lines = lines.join("; ");
        self.note(format!("it {OTHER_HARDWARE}, and the machine at the target gets it: {lines}"));
        Ok(None)
    }

    /// What of a VM's hardware is taken over from its source as this run goes on, in words.
    pub(super) fn hardware_words(&self, told: &PlannedVm) -> Option<String> {
        let lines = self.planned.clone().take_hardware(&told.vm).unwrap_or_else(|why| why);
        (!lines.is_empty()).then(|| format!("it {OTHER_HARDWARE}: {}", lines.join("; ")))
    }

    /// How a VM goes on whose hardware cannot be taken over.
    pub(super) fn read_anew(&self) -> String {
        let plan = shell_word(self.context.plan);
        format!(
            "put it back as it was, then `drover resume {plan}`; or `drover pause {plan}`, if it runs, and `drover migrate` with its plan \
             file, which reads the VM anew (a network that is new to the plan needs a line under `networks`)"
        )
    }

    fn keep_planned(&self, planned: &PlannedVm) -> Outcome<()> {
        let json = serde_json::to_string(planned).map_err(|error| {
            let what = format!("keeping what was told of {}", self.planned.vm.name);
            ProviderError::new(Cause::Internal, what).because(error)
        })?;
        Ok(self.context.store.set_planned(self.context.plan, &self.planned.vm.id, &json)?)
    }

    /// The VM with the hardware and the addresses that were told last.
    pub(super) fn as_told(&self) -> Outcome<Cow<'_, PlannedVm>> {
        let row = self.context.store.vm(self.context.plan, &self.planned.vm.id)?;
        let Some(kept) = row.and_then(|row| serde_json::from_str::<PlannedVm>(&row.planned).ok()) else {
            return Ok(Cow::Borrowed(self.planned));
        };
        let mut planned = self.planned.clone();
        let (vm, of) = (&mut planned.vm, kept.vm);
        (vm.memory_mib, vm.cpus, vm.cores_per_socket, vm.nics) =
            (of.memory_mib, of.cpus, of.cores_per_socket, of.nics);
        (planned.nics, planned.first_boot) = (kept.nics, kept.first_boot);
        Ok(Cow::Owned(planned))
    }

    pub(super) fn define(&mut self) -> Outcome<()> {
        // Its owner may have changed it since the plan was checked, which may be days ago.
        self.keep_hardware(&self.look()?)?;
        let planned = self.as_told()?.into_owned();
        self.memory.defined = Some(true);
        let line = self.context.target.define(&planned);
        let line = line.inspect_err(|error| self.keep_refusal(None, error))?;
        self.note(line);
        Ok(())
    }

    pub(super) fn start(&mut self) -> Outcome<()> {
        let planned = self.as_told()?.into_owned();
        if self.planned.start {
            self.context.target.make_ready(&planned)?;
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
        let Started { line, watched } = self.context.target.start(&planned)?;
        let line = match self.hardware_words(&planned) {
            Some(words) => format!("{line}; {words}"),
            None => line,
        };
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
