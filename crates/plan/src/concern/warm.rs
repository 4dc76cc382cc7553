//! What there is to know about a VM that is to move while it runs.

use drover_types::inventory::{PowerState, ToolsState};

use super::Found;
use crate::warm::Warm;

/// The first virtual hardware that tracks changed blocks.
const HARDWARE_MIN: u32 = 7;

impl Found<'_> {
    pub(super) fn warm(&mut self, warm: &Warm) {
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
