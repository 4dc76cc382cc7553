//! What all targets are told of a plan and of who runs it, and what they have in common.

use std::path::{Path, PathBuf};

use drover_agent::limits::{DayLimits, Sharers};
use drover_agent::sites::ThisHost;
use drover_engine::{Cause, FIRST_WRITES_BYTES, ProviderError};
use drover_mover::StopSignal;
use drover_plan::{Limits, PlannedDisk, Target};

/// What is to be known of a plan and of who runs it, wherever its VMs land.
#[derive(Clone)]
pub struct Setting {
    /// The plan's name.
    pub plan: String,
    /// What it says of its target.
    pub target: Target,
    /// What it says of its limits.
    pub limits: Limits,
    /// Where the VMs come from, in words.
    pub origin: String,
    /// This host: its state folder, and who is told what goes on.
    pub host: ThisHost,
    /// Whether the run is to stop.
    pub stop: StopSignal,
    /// Its `rate_limit` at the moment.
    pub rate_limit: DayLimits,
    /// How many runs share the target's `rate_limit`.
    pub sharers: Sharers,
}

impl Setting {
    /// The state folder.
    pub(crate) fn state(&self) -> &Path {
        &self.host.state
    }
}

/// VMs that are named of those that one warning is about.
pub(crate) const NAMED_MAX: usize = 3;

/// A folder, or the nearest one above it that is there.
pub fn nearest_existing(folder: &Path) -> PathBuf {
    let mut place = folder;
    while !place.exists() {
        match place.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => place = parent,
            _ => return PathBuf::from("."),
        }
    }
    place.to_path_buf()
}

/// Bytes that a disk may still need at its target, of which its image takes so many already. By leave, thin disks take only what they
/// hold, and nobody knows how much that is before they are read: what they write first has to fit all the same.
pub(crate) fn may_need(disk: &PlannedDisk, taken: u64, overcommit: bool) -> u64 {
    let left = disk.disk.capacity_bytes.saturating_sub(taken);
    if may_be_little(disk, overcommit) { left.min(FIRST_WRITES_BYTES) } else { left }
}

/// Whether a disk may come to more than is free.
pub(crate) fn may_be_little(disk: &PlannedDisk, overcommit: bool) -> bool {
    overcommit && disk.disk.thin != Some(false)
}

pub(crate) const ANOTHER_PLANS: &str = "choose another folder or target_name; if the other plan is given up, `drover cancel` it, or \
                             remove the image and its journal";

/// What was left of a VM's images because it may be somebody else's is told, and looked at again by the next `cancel`.
pub(crate) fn all_removed(left: &[String]) -> Result<(), ProviderError> {
    if left.is_empty() {
        return Ok(());
    }
    Err(ProviderError::new(Cause::Target, left.join("; "))
        .advise("remove it if it may go, or move it away if not; then the same command again"))
}

pub(crate) fn io_error(doing: &str, path: &Path, error: std::io::Error) -> ProviderError {
    let cause = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Cause::TargetFull,
        _ => Cause::Target,
    };
    ProviderError::new(cause, format!("{doing} {}", path.display())).because(error)
}
