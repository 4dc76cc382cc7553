use std::time::Duration;

use drover_types::inventory::{DiskMode, PowerState, RdmMode, Snapshot, Vm, VmDisk};

use crate::device::tracking_key;
use crate::error::{VsphereError, VsphereErrorKind};
use crate::operations::{CONSOLIDATION_TIME_MAX, vm_ref};
use crate::session::{Call, Inner, Session};
use crate::soap::tag;

/// vSphere tracks changes of VMs with this virtual hardware or newer.
const HARDWARE_VERSION_MIN: u32 = 7;
const RECONFIGURE_TIME_MAX: Duration = Duration::from_secs(10 * 60);
/// Name of the snapshot that makes a running VM begin to track. None is older, so it is unique.
const STUN_NAME: &str = "drover-change-tracking";
/// The VM's flag brings the disks' own with it, as a rule; where it does not, they are set in a second round.
const ROUNDS_MAX: u32 = 2;

impl Session {
    /// Switches changed block tracking on for a VM and those of its disks that are in `vm`. A running VM begins at
    /// its next stun, so a snapshot described as `mark` is made and removed; one that is off begins by itself.
    /// Gives a line about each thing it did.
    ///
    /// # Errors
    /// [`VsphereErrorKind::Unsupported`] for disks that cannot be tracked, virtual hardware that is too old, and
    /// snapshots that keep tracking from beginning.
    pub fn enable_change_tracking(&self, vm: &Vm, mark: &str) -> Result<Vec<String>, VsphereError> {
        let op = self.inner.op("switch change tracking on for", &vm.id);
        let look = || -> Result<Vm, VsphereError> {
            let mut now = self.vm(&vm.id)?;
            now.disks.retain(|disk| vm.disks.iter().any(|wanted| wanted.key == disk.key));
            Ok(now)
        };
        let mut done = Vec::new();
        let mut now = look()?;
        let ours = |snapshot: &&Snapshot| snapshot.name == STUN_NAME && snapshot.description == mark;
        if let Some(left) = now.snapshots.iter().find(ours) {
            self.remove_snapshot(&left.id)?;
            done.push("removed a snapshot that an earlier try had left".to_string());
            now = look()?;
        }
        for _ in 0..ROUNDS_MAX {
            if untracked(&now).is_none() {
                return Ok(done);
            }
            check(&op, &now)?;
            self.inner.switch_on(&op, &now, &mut done)?;
            if now.power == PowerState::On {
                let snapshot = self.create_snapshot(&vm.id, STUN_NAME, mark, false)?;
                self.remove_snapshot(&snapshot.id)?;
                done.push("made and removed a snapshot, with which tracking begins".to_string());
            }
            now = look()?;
        }
        match untracked(&now) {
            None => Ok(done),
            Some(disk) => {
                let why = format!(
                    "{disk} is not tracked although tracking is switched on; switch the VM off and on, or \
                     migrate it cold"
                );
                Err(VsphereError::new(VsphereErrorKind::Unsupported, &op, why))
            }
        }
    }

    /// Switches changed block tracking off for a VM. One that runs ends it at its next stun.
    ///
    /// # Errors
    /// When vSphere refuses.
    pub fn disable_change_tracking(&self, vm: &str) -> Result<(), VsphereError> {
        let op = self.inner.op("switch change tracking off for", vm);
        let spec = tag("changeTrackingEnabled", "false");
        self.inner.configure(&op, vm, &spec)
    }

    /// Freezes the disks of a VM, which may run, under a snapshot: their files and change ids as the snapshot's own
    /// configuration tells them. See [`Session::create_snapshot`] for `name`.
    ///
    /// # Errors
    /// When the snapshot cannot be made, or not be looked at; it is found again by its description then.
    pub fn freeze(
        &self,
        vm: &str,
        name: &str,
        description: &str,
        quiesce: bool,
    ) -> Result<(Snapshot, Vec<VmDisk>), VsphereError> {
        let snapshot = self.create_snapshot(vm, name, description, quiesce)?;
        let disks = self.snapshot_disks(&snapshot.id)?;
        Ok((snapshot, disks))
    }

    /// Merges files of snapshots that are gone, if the VM says that there are any, and waits for that. Tells whether
    /// there were.
    ///
    /// # Errors
    /// When vSphere refuses, or the VM says the same afterwards.
    pub fn consolidate(&self, vm: &str) -> Result<bool, VsphereError> {
        let op = self.inner.op("consolidate the disks of", vm);
        if !self.vm(vm)?.consolidation_needed {
            return Ok(false);
        }
        let this = &vm_ref(vm);
        // Asked twice it does no harm.
        let call = Call { op: &op, method: "ConsolidateVMDisks_Task", this, arguments: "", is_read: true };
        self.inner.run_task(&call, CONSOLIDATION_TIME_MAX)?;
        if self.vm(vm)?.consolidation_needed {
            let why = "the task ended well, but the VM still needs it";
            return Err(VsphereError::new(VsphereErrorKind::Busy, &op, why));
        }
        Ok(true)
    }
}

impl Inner {
    /// Switches on what is off: the VM's flag, or, where that is on, the flags of disks.
    fn switch_on(&self, op: &str, vm: &Vm, done: &mut Vec<String>) -> Result<(), VsphereError> {
        let mut spec = String::new();
        if vm.change_tracking {
            for disk in vm.disks.iter().filter(|disk| !disk.change_tracking) {
                spec += &disk_setting(disk);
                done.push(format!("switched change tracking on for {}", disk.label));
            }
        } else {
            spec = tag("changeTrackingEnabled", "true");
            done.push("switched change tracking on".to_string());
        }
        if spec.is_empty() {
            return Ok(());
        }
        self.configure(op, &vm.id, &spec)
    }

    fn configure(&self, op: &str, vm: &str, spec: &str) -> Result<(), VsphereError> {
        let arguments = format!("<spec>{spec}</spec>");
        let this = &vm_ref(vm);
        // Said twice it does no harm.
        let call = Call { op, method: "ReconfigVM_Task", this, arguments: &arguments, is_read: true };
        self.run_task(&call, RECONFIGURE_TIME_MAX).map(drop)
    }
}

fn disk_setting(disk: &VmDisk) -> String {
    let key = tag("key", &tracking_key(disk));
    format!("<extraConfig>{key}<value xsi:type=\"xsd:string\">TRUE</value></extraConfig>")
}

/// What keeps the VM from being tracked, as far as it is told: a disk, or the VM itself. The disks of a VM that is
/// off get their change ids when it is switched on, or with the first snapshot.
fn untracked(vm: &Vm) -> Option<String> {
    if !vm.change_tracking {
        return Some("the VM".to_string());
    }
    let is_on = |disk: &&VmDisk| match vm.power {
        PowerState::On | PowerState::Unknown => disk.change_id.is_some(),
        PowerState::Off | PowerState::Suspended => disk.change_tracking || disk.change_id.is_some(),
    };
    vm.disks.iter().find(|disk| !is_on(disk)).map(|disk| disk.label.clone())
}

/// Refuses what vSphere would accept and then not track.
fn check(op: &str, vm: &Vm) -> Result<(), VsphereError> {
    let refuse = |why: String| Err(VsphereError::new(VsphereErrorKind::Unsupported, op, why));
    let version = vm.hardware_version.strip_prefix("vmx-").and_then(|number| number.parse::<u32>().ok());
    if version.is_some_and(|version| version < HARDWARE_VERSION_MIN) {
        return refuse(format!(
            "virtual hardware {} is too old to track changes, which takes vmx-{HARDWARE_VERSION_MIN:02} or newer; \
             upgrade it while the VM is off",
            vm.hardware_version
        ));
    }
    if !vm.change_tracking_supported {
        return refuse("vSphere says that changes of this VM cannot be tracked; migrate it cold".to_string());
    }
    for disk in &vm.disks {
        if let Some(what) = why_untrackable(disk) {
            return refuse(format!(
                "{} is {what}, whose changes vSphere does not track; leave the disk out of the plan, or migrate cold",
                disk.label
            ));
        }
    }
    if !vm.snapshots.is_empty() {
        let names: Vec<&str> = vm.snapshots.iter().map(|snapshot| snapshot.name.as_str()).collect();
        return refuse(format!(
            "tracking begins only where there are no snapshots, and there are {} ({}); remove them first",
            names.len(),
            names.join(", ")
        ));
    }
    Ok(())
}

fn why_untrackable(disk: &VmDisk) -> Option<&'static str> {
    match (disk.rdm, disk.mode) {
        (Some(RdmMode::Physical), _) => Some("a raw device mapping in physical mode"),
        (_, DiskMode::IndependentPersistent | DiskMode::IndependentNonpersistent) => {
            Some("an independent disk")
        }
        _ if disk.shared => Some("shared between VMs"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error as _;

    fn disk(key: i32) -> VmDisk {
        VmDisk {
            key,
            label: format!("Hard disk {key}"),
            change_tracking: true,
            change_id: Some("52/1".into()),
            ..VmDisk::default()
        }
    }

    fn vm() -> Vm {
        Vm {
            hardware_version: "vmx-19".into(),
            power: PowerState::On,
            change_tracking: true,
            change_tracking_supported: true,
            disks: vec![disk(1), disk(2)],
            ..Vm::default()
        }
    }

    fn refused(change: impl FnOnce(&mut Vm)) -> String {
        let mut vm = vm();
        change(&mut vm);
        let error = check("switch change tracking on", &vm).unwrap_err();
        assert_eq!(error.kind, VsphereErrorKind::Unsupported);
        error.source().unwrap().to_string()
    }

    #[test]
    fn what_cannot_be_tracked_is_refused_by_name() {
        assert!(check("", &vm()).is_ok());
        assert!(refused(|vm| vm.hardware_version = "vmx-04".into()).contains("vmx-04 is too old"));
        assert!(refused(|vm| vm.change_tracking_supported = false).contains("cannot be tracked"));
        assert!(
            refused(|vm| vm.disks[1].mode = DiskMode::IndependentPersistent).starts_with("Hard disk 2 is an")
        );
        assert!(refused(|vm| vm.disks[0].rdm = Some(RdmMode::Physical)).contains("physical mode"));
        assert!(refused(|vm| vm.disks[0].shared = true).contains("shared"));
        let snapshot = Snapshot { name: "before".into(), ..Snapshot::default() };
        assert!(refused(|vm| vm.snapshots = vec![snapshot]).contains("there are 1 (before)"));
    }

    #[test]
    fn a_running_vm_is_tracked_once_its_disks_have_change_ids() {
        assert_eq!(untracked(&vm()), None);
        let mut running = vm();
        running.disks[1].change_id = None;
        assert_eq!(untracked(&running).as_deref(), Some("Hard disk 2"));
        let off = Vm { power: PowerState::Off, ..running.clone() };
        assert_eq!(untracked(&off), None, "it begins when it is switched on");
        let without = Vm { change_tracking: false, ..running };
        assert_eq!(untracked(&without).as_deref(), Some("the VM"));
    }
}
