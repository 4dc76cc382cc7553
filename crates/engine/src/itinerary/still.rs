//! Whether the source stood still between its last snapshot and the start at the target.
//!
//! That it is off at both moments does not tell: somebody may have switched it on and off again, and what its
//! guest wrote then would be lost. Two witnesses are asked: the source's history of power, where it has one, and
//! the live disks' files and change ids.

use drover_types::inventory::Vm;

use super::{Journey, Outcome};
use crate::provider::PowerWatch;

/// The source as its last snapshot left it.
pub(super) struct Stillness<'a> {
    watch: Option<Box<dyn PowerWatch + 'a>>,
    disks: Vec<LiveDisk>,
}

/// What a guest writes to.
#[derive(PartialEq, Eq)]
struct LiveDisk {
    key: i32,
    path: String,
    change_id: Option<String>,
}

impl Journey<'_> {
    /// Begins to watch a VM that is off, before its last snapshot is made: whoever runs it from here on is noticed.
    pub(super) fn watch_power(&mut self, now: &Vm) -> Outcome<()> {
        let watch = self.context.source.watch_power(now)?;
        if watch.is_none() && !self.context.source.is_template() {
            self.note("the source tells nothing of its past power: that it stays off is judged by its disks' change ids".into());
        }
        self.still = Some(Stillness { watch, disks: Vec::new() });
        Ok(())
    }

    /// The last snapshot stands: what is written from here on goes into these files.
    pub(super) fn keep_live_disks(&mut self) -> Outcome<()> {
        let disks = live_disks(&self.look()?);
        if let Some(still) = &mut self.still {
            still.disks = disks;
        }
        Ok(())
    }

    /// Refuses to go on if the VM runs, or ran since its last snapshot.
    pub(super) fn check_still(&self) -> Outcome<()> {
        let now = self.look()?;
        self.must_be_off(&now, "runs at the source", "switch it off there, then `drover resume`")?;
        let Some(still) = &self.still else { return Ok(()) };
        let advice = "leave it off until it has arrived; what was written meanwhile comes with the next `drover resume`";
        if still.watch.as_ref().map_or(Ok(false), |watch| watch.was_switched_on())? {
            let what = "was switched on and off again by someone after its last snapshot, so the copy may lack what it wrote";
            return Err(self.refused(what, advice));
        }
        match still.disks.iter().find(|was| was.has_moved_on(&now, still.watch.is_some())) {
            Some(_) => Err(self.refused("was changed by someone after its last snapshot", advice)),
            None => Ok(()),
        }
    }
}

impl LiveDisk {
    /// Whether it was written to, or may have been. Another file alone says little: somebody's snapshot of a VM
    /// that is known to have stayed off loses nothing.
    fn has_moved_on(&self, now: &Vm, is_known_off: bool) -> bool {
        match live_disks(now).into_iter().find(|disk| disk.key == self.key) {
            Some(disk) if disk.path != self.path => !is_known_off,
            Some(disk) => disk != *self,
            None => !is_known_off,
        }
    }
}

fn live_disks(vm: &Vm) -> Vec<LiveDisk> {
    let live = |disk: &drover_types::inventory::VmDisk| LiveDisk {
        key: disk.key,
        path: disk.path.clone(),
        change_id: disk.change_id.clone(),
    };
    vm.disks.iter().map(live).collect()
}
