//! A planned VM as a job.

use drover_plan::{Limits, PlannedVm, Verify, VmGroup};
use drover_schedule::{Budgets, Disk, Group, HostLimits, Job, TenantLimits};

use crate::phase::Phase;
use crate::store::{VmRow, VmState};

/// The budgets of a plan that runs alone.
pub(crate) fn budgets_of(limits: &Limits) -> Budgets {
    Budgets { vms_per_host: limits.vms_per_host, disks: limits.disks, ..Budgets::default() }
}

/// What of a plan's limits is less than what all plans share.
pub(super) fn own_limits(limits: &Limits, shared: &Budgets) -> TenantLimits {
    TenantLimits {
        vms_per_host: Some(limits.vms_per_host).filter(|vms| *vms < shared.vms_per_host),
        disks: Some(limits.disks).filter(|disks| *disks < shared.disks),
    }
}

/// What a host or a datastore is called in a schedule that several sources share: two of them may each have an `esx1`.
pub(super) fn key_of(site: &str, name: &str) -> String {
    format!("{site}/{name}")
}

/// Whether an earlier run was cut short in the middle of a VM's move, so that its guest is down, at the source or at both ends:
/// then it waits for nothing. One whose guest drover switched off stays so whatever became of that run.
fn goes_on(vm: &PlannedVm, left: &VmRow) -> bool {
    let was_in = |phase: Phase| left.phase.as_deref() == Some(phase.name());
    let may_run_there = left.state == VmState::Running && (was_in(Phase::Start) || was_in(Phase::CleanUp));
    left.switched_off || may_run_there || vm.warm.is_none() && left.snapshot.is_some()
}

/// A planned VM as a job, with what an earlier run left of it.
pub(super) fn job_of(vm: &PlannedVm, site: &str, left: Option<&VmRow>) -> Job {
    // Only its clean-up is left: for the waves and stages after its own it has arrived.
    let has_arrived = left.is_some_and(|left| left.state.has_arrived());
    let disk = |disk: &drover_plan::PlannedDisk| Disk {
        bytes: disk.disk.capacity_bytes,
        datastore: key_of(site, &disk.disk.datastore),
        pool: Some(disk.pool.clone().unwrap_or_else(|| disk.base.display().to_string())),
    };
    Job {
        name: vm.target_name.clone(),
        host: key_of(site, &vm.vm.host_id),
        disks: vm.disks.iter().map(disk).collect(),
        priority: vm.priority,
        is_warm: vm.warm.is_some(),
        wave: vm.wave.clone().filter(|_| !has_arrived),
        deadline_ms: vm.deadline_ms,
        group: vm.group.as_ref().filter(|_| !has_arrived).map(group_of),
        anti_affinity: vm.anti_affinity.clone(),
        goes_on: left.is_some_and(|left| goes_on(vm, left)),
        reads_back: vm.verify != Verify::None,
        ..Job::default()
    }
}

fn group_of(group: &VmGroup) -> Group {
    Group { name: group.name.clone(), stage: group.stage }
}

/// The limits of a host, with what one more of its VMs says about its NFC server: the least counts.
pub(super) fn host_limits(now: HostLimits, vm: &PlannedVm) -> HostLimits {
    let at_once = vm.nfc.map(|nfc| nfc.disks_at_once.max(1));
    HostLimits { disks: now.disks.into_iter().chain(at_once).min(), ..now }
}
