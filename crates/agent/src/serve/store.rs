use std::any::Any;
use std::sync::Arc;

use drover_disk::Disk;

use super::blocks::KnownBlocks;
use crate::error::Refusal;
use crate::opening::{Access, Announced, Opened, Stat};

/// Where disks are.
pub trait Store: Send + Sync {
    /// Opens a disk. No other run writes it through this agent meanwhile; of others on this host the store sees to it.
    ///
    /// # Errors
    /// When there is no such place, what is there is not to be overwritten, or a later run has taken it.
    fn open(&self, disk: &str, access: &Access) -> Result<Held, Refusal>;

    /// What is at a place.
    ///
    /// # Errors
    /// When there can be no disk.
    fn stat(&self, disk: &str) -> Result<Stat, Refusal>;

    /// What there is, for peers.
    fn announce(&self) -> Announced;
}

/// An open disk.
pub struct Held {
    /// It.
    pub disk: Arc<dyn Disk>,
    /// What the peer is told of it.
    pub opened: Opened,
    /// What is known of the blocks of this disk and of others, if anything is.
    pub known: Option<Arc<dyn KnownBlocks>>,
    /// What must live as long as the disk: locks. Dropped after it.
    pub keep: Vec<Box<dyn Any + Send + Sync>>,
    /// Called when a flush failed, before the peer is told: what was written may be lost, and a flush of the same disk, opened
    /// again, would know nothing of that.
    pub on_loss: Option<Box<dyn Fn() -> Result<(), Refusal> + Send + Sync>>,
}

impl Held {
    /// A disk of which nothing more is known.
    pub fn new(disk: impl Disk + 'static, opened: Opened) -> Held {
        Held { disk: Arc::new(disk), opened, known: None, keep: Vec::new(), on_loss: None }
    }
}
