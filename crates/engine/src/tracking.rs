//! What a warm migration needs of a source that tracks changed blocks.

use std::collections::BTreeMap;

use drover_types::ByteSpan;
use drover_types::inventory::Vm;

use crate::error::{ProviderError, chain};

/// Changed block tracking of a source. Calls are made from several threads.
///
/// What it says is a hint: the engine compares hashes, samples what it calls unchanged, and reads the
/// whole disk when in doubt.
pub trait ChangeTracking: Send + Sync {
    /// Switches change tracking on where it is off, for the VM and each of its disks. A running VM begins
    /// to track at its next stun, so a snapshot with `mark` as its description is made and removed.
    /// Gives a line about each thing it did; nothing where all was on.
    fn enable(&self, vm: &Vm, mark: &str) -> Result<Vec<String>, ProviderError>;

    /// Switches change tracking off for the VM, which may be running: then it ends with its next stun.
    fn disable(&self, vm: &Vm) -> Result<(), ProviderError>;

    /// Freezes the disks of a VM, which may be running, under a snapshot.
    ///
    /// A fault of `quiesce` is an error: the engine decides whether to do without.
    fn freeze(&self, vm: &Vm, name: &str, description: &str, quiesce: bool) -> Result<Frozen, ProviderError>;

    /// Areas of a disk that changed between `change_id` and the snapshot, or that were ever written if
    /// it is [`ALL_WRITTEN`]; in order, within `capacity`, complete to the very end of the disk. Without a snapshot it
    /// is the disk as it is now, of a VM that is off.
    fn changed_areas(
        &self,
        vm: &Vm,
        snapshot: Option<&str>,
        disk: i32,
        capacity: u64,
        change_id: &str,
    ) -> Result<Vec<ByteSpan>, AreasError>;

    /// Consolidates the disks of a VM that says it needs it.
    fn consolidate(&self, vm: &Vm) -> Result<(), ProviderError>;
}

/// A change id that asks for every area that was ever written.
pub const ALL_WRITTEN: &str = "*";

/// Disks under a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frozen {
    /// The snapshot's id.
    pub snapshot: String,
    /// Change id of each disk, by its key, as the snapshot's own configuration tells it. A disk without
    /// one is not tracked.
    pub change_ids: BTreeMap<i32, String>,
}

/// Why changed areas could not be had.
#[derive(Debug, thiserror::Error)]
pub enum AreasError {
    /// The source does not know the change id any more, or tracking began anew since.
    #[error("the source no longer knows what changed since then: {0}")]
    Forgotten(String),
    /// Anything else: it may work the next time.
    #[error("{}", chain(.0))]
    Failed(ProviderError),
}

impl From<ProviderError> for AreasError {
    fn from(error: ProviderError) -> Self {
        AreasError::Failed(error)
    }
}
