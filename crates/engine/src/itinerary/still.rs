//! Whether the source stood still between its last snapshot and the start at the target.
//!
//! That it is off at both moments does not tell: somebody may have switched it on and off again, and what its
//! guest wrote then would be lost. Two witnesses are asked: the source's history of power, where it has one, and
//! change tracking, for what was written to the live disks since the snapshot. A disk that has neither has nothing
//! but the name of its live file, which another snapshot changes and a guest does not; that is said.

use std::collections::BTreeMap;

use drover_types::inventory::{Vm, VmDisk};

use super::{Journey, Outcome};
use crate::error::{Cause, EngineError};
use crate::provider::PowerWatch;
use crate::tracking::AreasError;

/// The source as its last snapshot left it.
pub(super) struct Stillness<'a> {
    watch: Option<Box<dyn PowerWatch + 'a>>,
    disks: Vec<LiveDisk>,
}

/// What a guest writes to.
struct LiveDisk {
    key: i32,
    label: String,
    path: String,
    capacity: u64,
    /// The state that the snapshot froze; absent without change tracking.
    change_id: Option<String>,
}

/// What change tracking tells of a disk.
enum Told {
    Untouched,
    Written,
    /// It forgot what it knew of the snapshot's state.
    Forgot,
    /// It was never asked to track the disk, or may not be asked.
    Nothing,
}

impl Journey<'_> {
    /// Begins to watch a VM that is off, before its last snapshot is made: whoever runs it from here on is noticed.
    pub(super) fn watch_power(&mut self, now: &Vm) -> Outcome<()> {
        let watch = self.context.source.watch_power(now)?;
        self.still = Some(Stillness { watch, disks: Vec::new() });
        Ok(())
    }

    /// The last snapshot stands, and froze these states: what is written from here on is not in the copy.
    pub(super) fn keep_live_disks(&mut self, change_ids: &BTreeMap<i32, String>) -> Outcome<()> {
        let now = self.look()?;
        let live = |disk: &VmDisk| LiveDisk {
            key: disk.key,
            label: disk.label.clone(),
            path: disk.path.clone(),
            capacity: disk.capacity_bytes,
            change_id: change_ids.get(&disk.key).cloned(),
        };
        let disks: Vec<LiveDisk> = now.disks.iter().map(live).collect();
        let is_told = self.still.as_ref().is_some_and(|still| still.watch.is_some());
        if !is_told && !self.context.source.is_template() {
            self.note(who_witnesses(&disks));
        }
        if let Some(still) = &mut self.still {
            still.disks = disks;
        }
        Ok(())
    }

    /// Refuses to go on if the VM runs, or ran since its last snapshot, or has other disks than were copied.
    pub(super) fn check_still(&self) -> Outcome<()> {
        let now = self.look()?;
        self.must_be_off(&now, "runs at the source", "switch it off there, then `drover resume`")?;
        self.check_disks(&now)?;
        let Some(still) = &self.still else { return Ok(()) };
        let advice = "leave it off until it has arrived; what was written meanwhile comes with the next `drover resume`";
        if still.watch.as_ref().map_or(Ok(false), |watch| watch.was_switched_on())? {
            let what = "was switched on and off again by someone after its last snapshot, so the copy may lack what it wrote";
            return Err(self.refused(what, advice));
        }
        for disk in &still.disks {
            let moved_on = match self.written_since(disk, &now)? {
                Told::Untouched => false,
                Told::Written => true,
                Told::Forgot => still.watch.is_none(),
                // Another file alone says little: somebody's snapshot of a VM that is known to have stayed off loses
                // nothing.
                Told::Nothing if still.watch.is_some() => false,
                Told::Nothing => {
                    if disk.change_id.is_some() {
                        let label = &disk.label;
                        self.note(format!(
                            "what changed on {label} may not be asked: nothing can witness that nobody ran the VM"
                        ));
                    }
                    disk.is_elsewhere(&now)
                }
            };
            if moved_on {
                return Err(self.refused("was changed by someone after its last snapshot", advice));
            }
        }
        Ok(())
    }

    /// Asks change tracking for what was written to a live disk since the snapshot.
    fn written_since(&self, disk: &LiveDisk, now: &Vm) -> Outcome<Told> {
        let (Some(change_id), Some(tracking)) = (&disk.change_id, self.context.source.tracking()) else {
            return Ok(Told::Nothing);
        };
        match tracking.changed_areas(now, None, disk.key, disk.capacity, change_id) {
            Ok(areas) if areas.is_empty() => Ok(Told::Untouched),
            Ok(_) => Ok(Told::Written),
            Err(AreasError::Forgotten(_)) => Ok(Told::Forgot),
            Err(AreasError::Failed(error)) if error.cause == Cause::Access => Ok(Told::Nothing),
            Err(AreasError::Failed(error)) => Err(EngineError::from(error)),
        }
    }
}

impl LiveDisk {
    /// Whether it is another file, or gone.
    fn is_elsewhere(&self, now: &Vm) -> bool {
        now.disks.iter().find(|disk| disk.key == self.key).is_none_or(|disk| disk.path != self.path)
    }
}

/// For the operator of a source that tells no power events.
fn who_witnesses(disks: &[LiveDisk]) -> String {
    let without: Vec<&str> =
        disks.iter().filter(|disk| disk.change_id.is_none()).map(|disk| disk.label.as_str()).collect();
    if without.is_empty() {
        return "the source tells nothing of its past power: that it stays off is judged by what change tracking tells \
                of its disks"
            .into();
    }
    format!(
        "the source tells nothing of its past power, and {} is not tracked: nothing can witness that nobody runs the VM \
         before it has arrived, so see to it that it stays off",
        without.join(", ")
    )
}
