//! What is done at the target once the disks are there.

use super::{Journey, Outcome};
use crate::provider::Converted;

impl Journey<'_> {
    pub(super) fn convert(&mut self) -> Outcome<()> {
        if self.planned.convert != drover_plan::Convert::Never {
            self.set_touched()?;
        }
        match self.context.target.convert(self.planned)? {
            Converted::Done(log) => self.note(format!("converted; log in {log}")),
            Converted::Skipped(why) => {
                self.set_untouched()?;
                self.note(format!("not converted: {why}"));
            }
        }
        Ok(())
    }

    pub(super) fn define(&mut self) -> Outcome<()> {
        self.memory.defined = Some(true);
        let line = self.context.target.define(self.planned)?;
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
            return self.end_downtime();
        }
        self.set_touched()?;
        self.memory.started = true;
        let line = self.context.target.start(self.planned)?;
        // It runs. What fails from here on does not stop it: a record that it was started may be all that a later run knows.
        (self.started_now, self.stays) = (true, true);
        self.context.store.set_started(self.context.plan, &self.planned.vm.id, Some(&line))?;
        self.note(line);
        self.end_downtime()
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
