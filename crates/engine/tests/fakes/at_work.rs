//! Disks that are at work at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drover_disk::{Around, Disk, MemDisk};
use drover_plan::PlannedVm;

/// Counts disks being copied or read back, and the VMs they belong to.
#[derive(Clone, Default)]
pub struct AtWork(Arc<Mutex<Open>>);

#[derive(Default)]
struct Open {
    disks: usize,
    /// Open disks by host and VM.
    hosts: BTreeMap<String, BTreeMap<String, usize>>,
    disks_max: usize,
    vms_per_host_max: usize,
}

impl AtWork {
    pub fn open(&self, disk: MemDisk, vm: &PlannedVm) -> Arc<dyn Disk> {
        let of = (vm.vm.host_id.clone(), vm.vm.id.clone());
        let mut open = self.lock();
        open.disks += 1;
        open.disks_max = open.disks_max.max(open.disks);
        let host = open.hosts.entry(of.0.clone()).or_default();
        *host.entry(of.1.clone()).or_default() += 1;
        let vms = host.len();
        open.vms_per_host_max = open.vms_per_host_max.max(vms);
        Arc::new(Counted { disk, at_work: self.clone(), of })
    }

    fn close(&self, (host, vm): &(String, String)) {
        let mut open = self.lock();
        open.disks -= 1;
        let vms = open.hosts.get_mut(host).unwrap();
        *vms.get_mut(vm).unwrap() -= 1;
        vms.retain(|_, disks| *disks > 0);
    }

    pub fn now(&self) -> usize {
        self.lock().disks
    }

    /// The most disks at once, and the most VMs of a host at once.
    pub fn max(&self) -> (usize, usize) {
        let open = self.lock();
        (open.disks_max, open.vms_per_host_max)
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A disk that tells when it is let go.
struct Counted {
    disk: MemDisk,
    at_work: AtWork,
    of: (String, String),
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.at_work.close(&self.of);
    }
}

impl Around for Counted {
    fn inner(&self) -> &dyn Disk {
        &self.disk
    }
}
