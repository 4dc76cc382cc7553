//! What is to be scheduled.

use serde::{Deserialize, Serialize};

/// Who a job belongs to: a plan. Chosen by the caller, one for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tenant(pub u64);

/// A job of a [`crate::Scheduler`]; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub u64);

/// A VM to be moved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its name, for people.
    pub name: String,
    /// The host that serves its disks.
    pub host: String,
    /// Disks to be copied, in the order in which they are begun.
    pub disks: Vec<Disk>,
    /// Greater goes first.
    pub priority: i32,
    /// By when it should have ended, in milliseconds; earlier ones go first among jobs of the same priority.
    pub deadline_ms: Option<u64>,
    /// When it may start; at any time if there is none.
    pub windows: Vec<Window>,
    /// Its wave, one of those of [`crate::Scheduler::set_waves`].
    pub wave: Option<String>,
    /// Whether an earlier run left it in the middle of its move, with its guest down: it goes first, and waits for no window, wave or
    /// group, nor for a place at the target that is left alone.
    pub goes_on: bool,
    /// Whether it goes before others although its guest may run.
    #[serde(default)]
    pub goes_first: bool,
    /// VMs that it moves over with.
    pub group: Option<Group>,
    /// Jobs with the same key never run at once, such as the two halves of a cluster.
    pub anti_affinity: Option<String>,
    /// Milliseconds that it takes beside its copy: shutdown, snapshot, start. An estimate, for the order.
    pub fixed_ms: u64,
    /// Whether it is copied in passes while it runs, so that its group waits at its cutover and not at its start.
    pub is_warm: bool,
    /// Whether its disks are read back at the target when all are copied. Their slots among all disks are kept until then;
    /// those of host and datastore are not.
    pub reads_back: bool,
}

impl Job {
    /// Bytes of all its disks; saturates.
    pub fn bytes(&self) -> u64 {
        self.disks.iter().fold(0, |sum, disk| sum.saturating_add(disk.bytes))
    }
}

/// A disk to be copied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Bytes to be read.
    pub bytes: u64,
    /// The datastore that it lies in.
    pub datastore: String,
    /// The pool or folder that it goes to, where that is known. VMs that go to one that fails are held back.
    pub pool: Option<String>,
}

/// A span of time: from its beginning up to, not with, its end, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    /// When it opens.
    pub from_ms: u64,
    /// When it has closed.
    pub to_ms: u64,
}

impl Window {
    /// Whether it is open.
    pub fn holds(&self, now_ms: u64) -> bool {
        (self.from_ms..self.to_ms).contains(&now_ms)
    }
}

/// VMs of a tenant, and of one of its waves, that move over in order: those of a stage only after all of lower stages have
/// arrived. VMs of the same group in different waves are ordered by their waves alone, so that none waits for another in a circle.
/// The VMs of one stage that are warm move over together: the first waits until all are ready.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Group {
    /// Its name, such as that of an application.
    pub name: String,
    /// 0 moves first.
    pub stage: u32,
}
