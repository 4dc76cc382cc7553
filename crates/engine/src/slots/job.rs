//! A planned VM as a job.

use drover_plan::{Limits, PlannedVm, Verify};
use drover_schedule::{Budgets, Disk, HostLimits, Job, TenantLimits};

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

pub(super) fn job_of(vm: &PlannedVm) -> Job {
    let disk = |disk: &drover_plan::PlannedDisk| Disk {
        bytes: disk.disk.capacity_bytes,
        datastore: disk.disk.datastore.clone(),
        pool: Some(disk.pool.clone().unwrap_or_else(|| disk.base.display().to_string())),
    };
    Job {
        name: vm.target_name.clone(),
        host: vm.vm.host_id.clone(),
        disks: vm.disks.iter().map(disk).collect(),
        priority: vm.priority,
        is_warm: vm.warm.is_some(),
        wave: vm.wave.clone(),
        reads_back: vm.verify != Verify::None,
        ..Job::default()
    }
}

/// The limits of a host, with what one more of its VMs says about its NFC server: the least counts.
pub(super) fn host_limits(now: HostLimits, vm: &PlannedVm) -> HostLimits {
    let at_once = vm.nfc.map(|nfc| nfc.disks_at_once.max(1));
    HostLimits { disks: now.disks.into_iter().chain(at_once).min(), ..now }
}
