//! What there is to know about a VM that is to move while it runs.

use drover_types::inventory::{DiskMode, PowerState, ToolsState, VmDisk};

use super::Found;
use crate::warm::Warm;

/// The first virtual hardware that tracks changed blocks.
const HARDWARE_MIN: u32 = 7;

impl Found<'_> {
    pub(super) fn warm(&mut self, warm: &Warm, excluded: &[i32]) {
        let hardware = self.vm.hardware_version.strip_prefix("vmx-").and_then(|it| it.parse::<u32>().ok());
        if let Some(version) = hardware.filter(|version| *version < HARDWARE_MIN) {
            let text = format!("has virtual hardware {version}, which cannot track changed blocks");
            self.add(
                "tracking-unsupported",
                None,
                text,
                "upgrade its virtual hardware to 7 or later, or move it with `mode: cold`",
            );
        }
        if let Some(device) = self.vm.passthrough.first().filter(|_| self.vm.power != PowerState::Off) {
            let text =
                format!("uses {device} of its host, and such a VM cannot be snapshotted while it runs");
            self.add("no-snapshots", None, text, "use `mode: cold`");
        }
        let vm = self.vm;
        let stays = |disk: &&VmDisk| excluded.contains(&disk.key) && disk.mode != DiskMode::Persistent;
        for disk in vm.disks.iter().filter(stays).filter(|_| vm.power != PowerState::Off) {
            self.add(
                "independent-disk-stays",
                Some(&disk.label),
                "is independent and stays behind: VMware supports no snapshots of running VMs with such disks, though vSphere makes those \
                 without memory, as drover's are",
                "if vSphere refuses, use `mode: cold`, or remove the disk from the VM before the move",
            );
        }
        if self.vm.power == PowerState::Off {
            self.add(
                "warm-pointless",
                None,
                "is off, so warm passes save no downtime",
                "use `mode: cold`, which reads it once",
            );
        }
        if warm.quiesce && self.vm.tools != ToolsState::Running {
            self.add(
                "quiesce-without-tools",
                None,
                "its guest tools do not run, so it cannot quiesce its file systems",
                "start its tools, or leave `quiesce` out: the last pass is made of a VM that was shut down",
            );
        }
    }
}
