use std::fmt;

use serde::{Deserialize, Serialize};

/// A phase of an itinerary, in order. A cold one has no passes.
///
/// Each is idempotent: a resumed migration goes through all of them again, and those that are done
/// find nothing to do. Verification comes before conversion, because a converted disk is meant to
/// differ from its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// The VM is looked at afresh; nothing is touched. Undo: none needed.
    Check,
    /// Change tracking is switched on where it is off. Undo: it is switched off again when the VM has arrived or
    /// its plan is given up; until then a resume needs it.
    Track,
    /// The disks are copied while the VM runs, pass after pass, until it is to move over. Undo: the
    /// snapshot of a pass is removed; images, journals and change ids stay.
    Passes,
    /// The source VM is switched off, if the plan allows. Undo: it is switched on again.
    PowerOff,
    /// A snapshot freezes its disks. Undo: the snapshot is removed.
    Snapshot,
    /// The disks are copied. Undo: none; images and journals stay, to be resumed from.
    Copy,
    /// The images are read back and compared. Undo: none needed.
    Verify,
    /// The guest is converted, on overlays. Undo: the overlays are removed.
    Convert,
    /// The target machine's definition is written. Undo: it is removed.
    Define,
    /// The target machine is started. Undo: it is stopped.
    Start,
    /// The snapshot is removed. Undo: none.
    CleanUp,
}

impl Phase {
    /// The cold itinerary.
    pub const COLD: [Phase; 9] = [
        Phase::Check,
        Phase::PowerOff,
        Phase::Snapshot,
        Phase::Copy,
        Phase::Verify,
        Phase::Convert,
        Phase::Define,
        Phase::Start,
        Phase::CleanUp,
    ];

    /// The warm itinerary: its snapshot and copy are those of the last pass.
    pub const WARM: [Phase; 11] = [
        Phase::Check,
        Phase::Track,
        Phase::Passes,
        Phase::PowerOff,
        Phase::Snapshot,
        Phase::Copy,
        Phase::Verify,
        Phase::Convert,
        Phase::Define,
        Phase::Start,
        Phase::CleanUp,
    ];

    /// Its name in the store, in events and on the screen.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Check => "check",
            Phase::Track => "track",
            Phase::Passes => "passes",
            Phase::PowerOff => "power off",
            Phase::Snapshot => "snapshot",
            Phase::Copy => "copy",
            Phase::Verify => "verify",
            Phase::Convert => "convert",
            Phase::Define => "define",
            Phase::Start => "start",
            Phase::CleanUp => "clean up",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
