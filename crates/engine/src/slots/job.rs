//! A planned VM as a job.

use std::collections::BTreeMap;

use drover_plan::{Limits, PlannedDisk, PlannedVm, Verify, VmGroup};
use drover_schedule::{Budgets, Disk, Group, HostLimits, Job, Tenant};

use crate::phase::Phase;
use crate::store::{ProgressRow, VmRow, VmState};

/// The budgets of a plan that runs alone.
pub fn budgets_of(limits: &Limits) -> Budgets {
    Budgets {
        vms_per_host: limits.vms_per_host,
        disks: limits.disks,
        cutovers: limits.cutovers,
        ..Budgets::default()
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

/// How far earlier runs are with disks, by the names of their VMs at the target and their labels.
type Copied<'a> = BTreeMap<(&'a str, &'a str), &'a ProgressRow>;

/// What earlier runs, or earlier tries of this one, left of VMs.
pub(super) struct Left<'a> {
    /// By the source's ids.
    vms: BTreeMap<&'a str, &'a VmRow>,
    copied: Copied<'a>,
}

impl<'a> Left<'a> {
    pub(super) fn new(vms: &'a [VmRow], copied: &'a [ProgressRow]) -> Left<'a> {
        Left {
            vms: vms.iter().map(|row| (row.id.as_str(), row)).collect(),
            copied: copied.iter().map(|it| ((it.vm.as_str(), it.disk.as_str()), it)).collect(),
        }
    }

    /// A VM of a run as a job.
    pub(super) fn job(&self, tenant: Tenant, vm: &PlannedVm, site: &str) -> Job {
        let job = job_of(vm, site, self.vms.get(vm.vm.id.as_str()).copied(), &self.copied);
        // What two plans call by the same word has nothing to do with each other.
        let anti_affinity = job.anti_affinity.map(|word| format!("{}/{word}", tenant.0));
        Job { anti_affinity, ..job }
    }

    /// Whether something of a VM was begun, which has to be seen to.
    pub(super) fn is_begun(&self, vm: &PlannedVm) -> bool {
        self.vms.get(vm.vm.id.as_str()).is_some_and(|row| row.is_begun())
    }
}

/// A planned VM as a job, with what an earlier run left of it.
fn job_of(vm: &PlannedVm, site: &str, left: Option<&VmRow>, copied: &Copied<'_>) -> Job {
    // Only its clean-up is left: for the waves and stages after its own it has arrived.
    let has_arrived = left.is_some_and(|left| left.state.has_arrived());
    let disk = |disk: &PlannedDisk| Disk {
        bytes: left_bytes(vm, disk, copied),
        datastore: key_of(site, &disk.disk.datastore),
        pool: Some(target_key(vm, disk)),
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

/// The site or the daemon that a VM goes to; absent for a folder of this machine.
fn goes_to(vm: &PlannedVm) -> Option<&str> {
    vm.daemon.as_deref().or(vm.site.as_deref())
}

fn pool_of(disk: &PlannedDisk) -> String {
    disk.pool.clone().unwrap_or_else(|| disk.base.display().to_string())
}

/// What the place that a disk goes to is called in a schedule that several targets share.
pub(super) fn target_key(vm: &PlannedVm, disk: &PlannedDisk) -> String {
    key_of(goes_to(vm).unwrap_or_default(), &pool_of(disk))
}

/// What people call it.
pub(super) fn target_label(vm: &PlannedVm, disk: &PlannedDisk) -> String {
    match goes_to(vm) {
        Some(at) => format!("{} of {at}", pool_of(disk)),
        None => pool_of(disk),
    }
}

/// Bytes of a disk that are still to be read.
fn left_bytes(vm: &PlannedVm, disk: &PlannedDisk, copied: &Copied<'_>) -> u64 {
    let data = vm.vm.data_bytes_of(&disk.disk);
    let copied = copied.get(&(vm.target_name.as_str(), disk.disk.label.as_str()));
    copied.map_or(data, |row| row.left_of(data))
}

fn group_of(group: &VmGroup) -> Group {
    Group { name: group.name.clone(), stage: group.stage }
}

/// The limits of a host, with what one more of its VMs says about its NFC server: the least counts.
pub fn host_limits(now: HostLimits, vm: &PlannedVm) -> HostLimits {
    let at_once = vm.nfc.map(|nfc| nfc.disks_at_once.max(1));
    now.within(HostLimits { disks: at_once, ..HostLimits::default() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use drover_plan::{Plan, resolve};
    use drover_schedule::Scheduler;
    use drover_types::inventory::{Inventory, PowerState, Vm, VmDisk};

    use super::*;
    use crate::event::DiskActivity;

    const GIB: u64 = 1 << 30;

    /// VMs by their names, provisioned and allocated bytes of each disk, as a plan has them.
    fn planned(vms: &[(&str, u64, u64, usize)]) -> Vec<PlannedVm> {
        let vm = |(name, capacity, allocated, disks): &(&str, u64, u64, usize)| Vm {
            id: format!("vm-{name}"),
            name: (*name).into(),
            host_id: "host-1".into(),
            power: PowerState::Off,
            allocated_bytes: Some(allocated * *disks as u64),
            disks: (0..*disks)
                .map(|at| VmDisk {
                    key: 2000 + at as i32,
                    label: format!("Hard disk {}", at + 1),
                    capacity_bytes: *capacity,
                    datastore: "ds".into(),
                    ..VmDisk::default()
                })
                .collect(),
            ..Vm::default()
        };
        let inventory = Inventory { vms: vms.iter().map(vm).collect(), ..Inventory::default() };
        let source = "source: {type: vsphere, endpoint: vc, user: u, password_env: P}";
        let target = "target: {type: qemu, folder: /vms}";
        let plan = format!("version: 1\nname: p\n{source}\n{target}\nvms: [{{glob: '*'}}]\n");
        let resolution = resolve(&Plan::parse(&plan).unwrap(), &inventory);
        assert_eq!(resolution.vms.len(), vms.len(), "{:?}", resolution.problems);
        resolution.vms
    }

    /// Names in the order in which they are let in.
    fn order(vms: &[PlannedVm], copied: &Copied<'_>) -> Vec<String> {
        let mut scheduler = Scheduler::new(Budgets::default());
        let jobs = vms.iter().map(|vm| job_of(vm, "vc", None, copied)).collect();
        scheduler.add(Tenant(0), jobs, 0);
        let next = std::iter::from_fn(|| scheduler.next(0).map(|it| it.job));
        let ids: Vec<_> = next.collect();
        ids.into_iter().map(|id| scheduler.job(id).unwrap().name.clone()).collect()
    }

    #[test]
    fn the_longest_is_the_one_with_most_to_read_and_not_the_one_with_most_room() {
        let vms = planned(&[
            ("thin", 2048 * GIB, GIB, 1),
            ("thick", 50 * GIB, 50 * GIB, 1),
            ("two", 60 * GIB, 30 * GIB, 2),
        ]);
        assert_eq!(order(&vms, &Copied::new()), ["thick", "two", "thin"]);
        // An earlier run copied most of one.
        let row = |size: u64, done: u64, left: Option<u64>| ProgressRow {
            vm: String::new(),
            disk: String::new(),
            activity: DiskActivity::Copy,
            is_live: false,
            at_ms: 0,
            size_bytes: size * GIB,
            done_bytes: done * GIB,
            read_bytes: 0,
            left_bytes: left.map(|gib| gib * GIB),
            rate_bytes_per_s: None,
        };
        let (thick, two) = (row(50, 40, None), row(60, 31, Some(29)));
        let copied: Copied<'_> = [(("thick", "Hard disk 1"), &thick), (("two", "Hard disk 2"), &two)].into();
        assert_eq!(order(&vms, &copied), ["two", "thick", "thin"]);
        let job = job_of(&vms[2], "vc", None, &copied);
        let bytes: Vec<u64> = job.disks.iter().map(|disk| disk.bytes).collect();
        assert_eq!(bytes, [30 * GIB, 29 * GIB]);
        // Holes, of which a thin disk is full, are no data that was copied.
        let sparse = planned(&[("sparse", 2048 * GIB, 100 * GIB, 1)]);
        let far = row(2048, 1988, Some(60));
        let copied: Copied<'_> = [(("sparse", "Hard disk 1"), &far)].into();
        assert_eq!(job_of(&sparse[0], "vc", None, &copied).disks[0].bytes, 60 * GIB);
    }
}
