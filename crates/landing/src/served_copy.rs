//! A copy whose images are not all files of this machine, served on it for a rehearsal.

use std::sync::Arc;

use drover_disk::Disk;

use crate::far_copy::FarCopy;
use crate::libvirt::CephCopy;

/// Images that are served to be read for as long as this lives.
pub enum ServedCopy {
    /// At another host, read by its agent.
    Far(FarCopy),
    /// In Ceph, each read by a `qemu-nbd` that ends with this process, however that ends.
    Ceph(CephCopy),
}

impl ServedCopy {
    /// Where the images are served, in the order of the disks; nothing for a file of this machine.
    pub fn uris(&self) -> Vec<Option<String>> {
        match self {
            ServedCopy::Far(far) => far.uris().into_iter().map(Some).collect(),
            ServedCopy::Ceph(ceph) => ceph.uris.clone(),
        }
    }

    /// The images.
    pub fn disks(&self) -> Vec<Arc<dyn Disk>> {
        match self {
            ServedCopy::Far(far) => far.disks(),
            ServedCopy::Ceph(ceph) => ceph.disks.clone(),
        }
    }

    /// Nobody else needs to connect from now on.
    pub fn close_door(&mut self) {
        // The socket of a `qemu-nbd` goes with that.
        if let ServedCopy::Far(far) = self {
            far.close_door();
        }
    }

    /// Whether another host is away at the moment.
    pub fn is_away(&self) -> bool {
        self.far().is_some_and(FarCopy::is_away)
    }

    /// Why the images cannot be read any more, as far as somebody tells. What waits for Ceph waits.
    pub fn lost(&self) -> Option<String> {
        self.far().and_then(FarCopy::lost)
    }

    /// What tells that somebody wrote to the images since they were opened. Ceph tells nothing of the kind.
    pub fn changed(&self) -> Option<String> {
        self.far().and_then(FarCopy::changed)
    }

    fn far(&self) -> Option<&FarCopy> {
        match self {
            ServedCopy::Far(far) => Some(far),
            ServedCopy::Ceph(_) => None,
        }
    }
}
