//! The look at both sides before anything is touched.

use std::path::Path;

use drover_plan::PlannedVm;
use drover_types::inventory::Vm;
use drover_types::shell_word;

use super::source::check_recorded;
use super::{Journey, Outcome};
use crate::error::{Cause, ProviderError};
use crate::phase::Phase;
use crate::store::VmState;

/// How a VM goes on whose disks are others than those that its copy was begun with.
pub(super) fn begin_anew(plan: &str, name: &str) -> String {
    let (plan, name) = (shell_word(plan), shell_word(name));
    format!(
        "put it back as it was, then `drover resume {plan}`; or begin it anew: `drover cancel {plan} {name}` gives this copy up, and once \
         the plan does not run (`drover pause {plan}`), `drover retry {plan} {name}` and `drover resume {plan}` move it with the disks \
         that it has then"
    )
}

impl Journey<'_> {
    pub(super) fn check(&mut self) -> Outcome<()> {
        (self.context.may_begin)(self.planned)?;
        if self.planned.warm.is_some() && self.context.source.tracking().is_none() {
            return Err(self.refused("cannot move warm: its source tracks no changes", "use `mode: cold`"));
        }
        let now = self.look()?;
        self.check_disks(&now)?;
        self.keep_hardware(&now)?;
        self.keep_told(&now)?;
        // One that an earlier run left is removed before the next is made, or the guest would go down for nothing.
        check_recorded(self.context.plan, self.context.store, self.context.source, &now)?;
        self.check_other_plans()?;
        let is_running = self.context.target.is_running(self.planned);
        if is_running.inspect_err(|error| self.keep_refusal(None, error))? {
            let what = format!("{} runs at the target already", self.planned.target_name);
            return Err(ProviderError::new(Cause::Target, what).advise("stop it there first").into());
        }
        let prepared = self.context.target.prepare(self.planned);
        prepared.inspect_err(|error| self.keep_refusal(None, error))?;
        // A replica is looked at when it is known whether an earlier cutover changed it.
        if self.is_warm() { Ok(()) } else { self.check_images() }
    }

    /// The disks are those that the run began with.
    pub(super) fn check_disks(&self, now: &Vm) -> Outcome<()> {
        let name = &now.name;
        let refuse = |what: String| {
            let advice = begin_anew(self.context.plan, &self.planned.target_name);
            Err(ProviderError::new(Cause::Source, what).advise(advice).into())
        };
        for was in self.planned.disks.iter().map(|disk| &disk.disk) {
            let (label, had) = (&was.label, was.capacity_bytes);
            let Some(is) = now.disks.iter().find(|disk| disk.key == was.key) else {
                return refuse(format!("{label} of {name} was removed after the plan was checked"));
            };
            if is.capacity_bytes != had {
                let has = is.capacity_bytes;
                return refuse(format!(
                    "{label} of {name} has {has} bytes now and had {had} when the plan was checked"
                ));
            }
            if !was.uuid.is_empty() && !is.uuid.is_empty() && was.uuid != is.uuid {
                return refuse(format!("{label} of {name} is another disk than when the plan was checked"));
            }
        }
        let known = |key: i32| self.planned.vm.disks.iter().any(|disk| disk.key == key);
        match now.disks.iter().find(|disk| !known(disk.key)) {
            Some(new) => refuse(format!("{} of {name} was added after the plan was checked", new.label)),
            None => Ok(()),
        }
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
            // Also one whose clean-up failed because its source runs again.
            let is_in_clean_up = row.phase.as_deref() == Some(Phase::CleanUp.name());
            let has_arrived = row.state.has_arrived() || row.state == VmState::Failed && is_in_clean_up;
            let problem = match row.state {
                VmState::Running if !template || self.shares_a_place_with(&other) => {
                    Some((format!("{name} is on its way with"), "let that plan end, resume it or cancel it"))
                }
                _ if has_arrived && self.shares_an_image_with(&other)? => Some((
                    format!("{name} has arrived, in the same files, with"),
                    "take it out of this plan, choose another folder, or remove the files if they may go",
                )),
                _ if has_arrived && !template && self.context.target.is_running(&other)? => {
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
