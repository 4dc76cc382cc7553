//! What there is to know about the disks of a VM.

use drover_types::BLOCK_BYTES;
use drover_types::Bytes;
use drover_types::inventory::{BusSharing, DiskMode, RdmMode, VmDisk};

use super::{ConcernContext, Found};

const LARGE_BYTES: u64 = 1_000_000_000_000;

impl Found<'_> {
    pub(super) fn disks(&mut self, context: &ConcernContext) {
        let vm = self.vm;
        let disks: Vec<&VmDisk> =
            vm.disks.iter().filter(|disk| !context.excluded_disks.contains(&disk.key)).collect();
        if disks.is_empty() {
            self.add("no-disks", None, "has no disk to move", "leave it out, or give it a disk");
        }
        disks.iter().for_each(|disk| self.disk(disk, context));
        vm.disks
            .iter()
            .filter(|disk| context.excluded_disks.contains(&disk.key))
            .for_each(|disk| self.excluded(disk));
        if !vm.change_tracking && !disks.is_empty() {
            let (text, advice) = match context.warm {
                None => (
                    "changed block tracking is off, so allocated areas are not known and every byte is read",
                    "for thin or half-empty disks: switch CBT on, and make and remove a snapshot",
                ),
                Some(_) => (
                    "changed block tracking is off",
                    "nothing to do: it is switched on, which takes a snapshot that is made and removed and holds the VM for a moment",
                ),
            };
            self.add("cbt-off", None, text, advice);
        }
    }

    fn disk(&mut self, disk: &VmDisk, context: &ConcernContext) {
        let part = Some(disk.label.as_str());
        if disk.mode != DiskMode::Persistent {
            self.add(
                "independent-disk",
                part,
                "is independent: no snapshot freezes it",
                "make it dependent while the VM is off, or exclude it",
            );
        }
        if let Some(mode) = disk.rdm {
            let what = match mode {
                RdmMode::Physical => "is a raw device mapping (physical)",
                RdmMode::Virtual => "is a raw device mapping (virtual)",
            };
            self.add("rdm-disk", part, what, "migrate it to a virtual disk with Storage vMotion, or attach the LUN at the target and exclude it");
        }
        if disk.has_parent && self.vm.snapshots.is_empty() {
            self.add(
                "disk-has-parent",
                part,
                "holds only changes to another file, and no snapshot is told: a linked clone, or snapshots that are not shown",
                "make it a full clone, or look whether the account may see the VM's snapshots",
            );
        }
        if disk.shared {
            let (what, advice) = match disk.bus_sharing {
                None => (
                    "is shared with other VMs (multi-writer)".to_string(),
                    "move the cluster by its own means, or unshare the disk",
                ),
                Some(sharing) => (
                    format!("is shared with other VMs, as its controller has {}", bus_sharing(sharing)),
                    "move the cluster by its own means; or remove the disk from the VM before the move: to exclude it is not enough, since \
                     vSphere makes no snapshot of a VM whose bus is shared",
                ),
            };
            self.add("shared-disk", part, what, advice);
        }
        if disk.encrypted {
            self.add("encrypted", part, "is encrypted", "decrypt it first (change its storage policy)");
        }
        self.capacity(disk, context);
    }

    /// A disk that stays behind and keeps the VM from being snapshotted.
    ///
    /// Source: VMware, vSphere Virtual Machine Administration, "Snapshot Limitations"; KB 1034165 (multi-writer).
    fn excluded(&mut self, disk: &VmDisk) {
        let part = Some(disk.label.as_str());
        match (disk.bus_sharing, disk.mode) {
            (Some(sharing), _) => self.add(
                "snapshots-refused",
                part,
                format!("its controller has {}, and vSphere makes no snapshot of such a VM, whichever disks move", bus_sharing(sharing)),
                "remove the disk from the VM, or have its controller share no bus, while the VM is off and before the move",
            ),
            (None, DiskMode::Persistent) if disk.shared => self.add(
                "snapshots-refused",
                part,
                "is multi-writer and not independent, and vSphere makes no snapshot of such a VM, whichever disks move",
                "make it independent and persistent, or remove it from the VM, while the VM is off and before the move",
            ),
            _ => {}
        }
    }

    fn capacity(&mut self, disk: &VmDisk, context: &ConcernContext) {
        let (part, bytes) = (Some(disk.label.as_str()), disk.capacity_bytes);
        if bytes == 0 {
            self.add("empty-disk", part, "has 0 bytes", "remove it or exclude it");
        } else if !bytes.is_multiple_of(512) {
            let text = format!("has {bytes} bytes, which is no multiple of 512: no guest could use its end");
            self.add("odd-capacity", part, text, "grow it to a multiple of 1 MiB, or exclude it");
        } else if !bytes.is_multiple_of(BLOCK_BYTES) {
            let text = format!("has {bytes} bytes, which is no multiple of 64 KiB");
            self.add("short-last-block", part, text, "nothing to do: the last block is just shorter");
        }
        if bytes >= LARGE_BYTES {
            let text = format!("is large ({})", Bytes(bytes));
            let advice = match context.warm {
                None => "move it early and alone in the window; an interrupted copy goes on where it stopped",
                Some(_) => {
                    "its first pass takes hours, in which its snapshot grows by all that is written: begin days before \
                     the cutover, see that its datastore has room, and let no backup take snapshots meanwhile"
                }
            };
            self.add("large-disk", part, text, advice);
        }
    }
}

fn bus_sharing(sharing: BusSharing) -> &'static str {
    match sharing {
        BusSharing::Virtual => "`bus sharing: virtual`",
        BusSharing::Physical => "`bus sharing: physical`",
    }
}
