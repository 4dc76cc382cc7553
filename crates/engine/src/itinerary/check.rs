//! The look at both sides before anything is touched.

use std::path::Path;

use drover_plan::PlannedVm;

use super::{Journey, Outcome};
use crate::error::{Cause, ProviderError};
use crate::store::VmState;

impl Journey<'_> {
    pub(super) fn check(&mut self) -> Outcome<()> {
        if self.planned.warm.is_some() && self.context.source.tracking().is_none() {
            return Err(self.refused("cannot move warm: its source tracks no changes", "use `mode: cold`"));
        }
        let now = self.look()?;
        let planned: Vec<_> =
            self.planned.disks.iter().map(|disk| (disk.disk.key, disk.disk.capacity_bytes)).collect();
        for (key, capacity) in planned {
            match now.disks.iter().find(|disk| disk.key == key) {
                Some(disk) if disk.capacity_bytes == capacity => {}
                Some(disk) => {
                    return Err(self.source_error(format!(
                        "{} of {} has {} bytes now and had {capacity} when the plan was checked",
                        disk.label, now.name, disk.capacity_bytes
                    )));
                }
                None => return Err(self.source_error(format!("disk {key} of {} is gone", now.name))),
            }
        }
        let known = |key: i32| self.planned.vm.disks.iter().any(|disk| disk.key == key);
        if let Some(new) = now.disks.iter().find(|disk| !known(disk.key)) {
            return Err(self.source_error(format!(
                "{} of {} was added after the plan was checked",
                new.label, now.name
            )));
        }
        self.check_other_plans()?;
        if self.context.target.is_running(self.planned)? {
            let what = format!("{} runs at the target already", self.planned.target_name);
            return Err(ProviderError::new(Cause::Target, what).advise("stop it there first").into());
        }
        self.context.target.prepare(self.planned)?;
        // A replica is looked at when it is known whether an earlier cutover changed it.
        if self.is_warm() { Ok(()) } else { self.check_images() }
    }

    /// Two plans with one VM: the later must not write over what the earlier brought, nor run it twice.
    pub(super) fn check_other_plans(&self) -> Outcome<()> {
        for (plan, row) in self.context.store.in_other_plans(self.context.plan, &self.planned.vm.id)? {
            let Ok(other) = serde_json::from_str::<PlannedVm>(&row.planned) else { continue };
            if other.vm.instance_uuid != self.planned.vm.instance_uuid {
                continue;
            }
            let name = &self.planned.vm.name;
            let template = self.context.source.is_template();
            let problem = match row.state {
                VmState::Running if !template || self.shares_a_place_with(&other) => {
                    Some((format!("{name} is on its way with"), "let that plan end, resume it or cancel it"))
                }
                VmState::Done if self.shares_an_image_with(&other)? => Some((
                    format!("{name} has arrived, in the same files, with"),
                    "take it out of this plan, choose another folder, or remove the files if they may go",
                )),
                VmState::Done if !template && self.context.target.is_running(&other)? => {
                    Some((format!("{name} has arrived, and runs at the target, with"), "stop it there first"))
                }
                _ => None,
            };
            if let Some((what, advice)) = problem {
                let what = format!("{what} plan {plan}");
                return Err(ProviderError::new(Cause::Plan, what).advise(advice).into());
            }
        }
        Ok(())
    }

    pub(super) fn shares_a_place_with(&self, other: &PlannedVm) -> bool {
        self.planned.site == other.site
            && (self.planned.folder == other.folder
                || self.planned.disks.iter().any(|disk| other.disks.iter().any(|it| it.path == disk.path)))
    }

    pub(super) fn shares_an_image_with(&self, other: &PlannedVm) -> Outcome<bool> {
        let is_theirs = |path: &Path| other.disks.iter().any(|disk| disk.path == path);
        let mut shared = self.planned.disks.iter().filter(|disk| is_theirs(&disk.path));
        let is_there = |disk| self.context.target.has_image(disk, self.planned);
        Ok(self.planned.site == other.site
            && shared.try_fold(false, |any, disk| Ok::<_, ProviderError>(any || is_there(disk)?))?)
    }
}
