//! Logical volumes of a site, which its libvirt makes and removes. Whose they are is known by who asks for them.

use std::sync::Arc;

use drover_agent::Target;
use drover_agent::opening::{How, Stat};
use drover_engine::{Cause, OpenedTarget, ProviderError};
use drover_mover::Earlier;
use drover_plan::{PlannedDisk, PlannedVm};

use super::{OfDisk, There, tag_of};
use crate::setting::ANOTHER_PLANS;

impl There {
    /// Opens a logical volume that is this plan's, and none that has its name by now. One without a journal is begun anew: nobody misses what
    /// it holds.
    pub fn open_volume(
        &self,
        disk: &PlannedDisk,
        vm: &PlannedVm,
        size: u64,
        stat: &Stat,
    ) -> Result<OpenedTarget, ProviderError> {
        let why_not = |why: &str| {
            let what = format!("{} may not be overwritten: {why}", vm.place_of(disk).display());
            Err(ProviderError::new(Cause::Target, what).advise(ANOTHER_PLANS))
        };
        let (how, before) = match self.earlier(disk, vm, stat) {
            Earlier::Nothing => (How::Force, stat.epoch),
            Earlier::Half(found) => match self.why_anothers(disk, vm, &found) {
                Some(why) => return why_not(why),
                None => (How::Resume, found.epoch.max(stat.epoch)),
            },
            Earlier::Other(why) => return why_not(&why),
        };
        let volume = Some(stat.tag.clone());
        let target = Target { size, how, epoch: drover_mover::new_epoch(before), volume };
        let opened = self.open_target(disk, &target)?;
        Ok(OpenedTarget {
            tag: tag_of(self.name(), &stat.tag),
            is_new: how == How::Force,
            zeroed: false,
            link: Some(Arc::new(OfDisk(opened.clone()))),
            disk: opened,
        })
    }

    /// Sees that nobody writes to a logical volume, and that no run of before does so any more.
    pub fn end_writers(&self, disk: &PlannedDisk, stat: &Stat) -> Result<(), ProviderError> {
        let epoch = drover_mover::new_epoch(stat.epoch);
        let (size, volume) = (stat.size.unwrap_or_default(), Some(stat.tag.clone()));
        let target = Target { size, how: How::Resume, epoch, volume };
        self.open_target(disk, &target).map(drop)
    }
}
