//! What the engine needs of a hypervisor on either side.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use drover_disk::Disk;
use drover_mover::journal_path;
use drover_plan::{PlannedDisk, PlannedVm};
use drover_types::inventory::Vm;
use serde::{Deserialize, Serialize};

use crate::error::{Cause, ProviderError};
use crate::tracking::{ChangeTracking, Frozen};

/// Where VMs come from. Calls are made from several threads.
pub trait SourceProvider: Send + Sync {
    /// A fresh look at a VM.
    fn vm(&self, id: &str) -> Result<Vm, ProviderError>;

    /// Asks the guest to shut down. A VM that is off is fine, and so is a request of which nobody knows whether it
    /// arrived; an error says that the guest was not asked, unless a stop cut it short ([`Cause::Cancelled`]).
    fn ask_shutdown(&self, vm: &Vm) -> Result<(), ProviderError>;

    /// Waits until a VM whose guest was asked is off. After an error it may go off yet.
    fn wait_until_off(&self, vm: &Vm, timeout: Duration) -> Result<(), ProviderError>;

    /// Switches a VM off at once. One that is off already is fine.
    fn power_off(&self, vm: &Vm) -> Result<(), ProviderError>;

    /// Switches a VM on. One that is on already is fine.
    fn power_on(&self, vm: &Vm) -> Result<(), ProviderError>;

    /// Freezes the disks of a VM, which is off, under a snapshot of this name.
    fn create_snapshot(&self, vm: &Vm, name: &str, description: &str) -> Result<Frozen, ProviderError>;

    /// Removes a snapshot. One that is gone already is fine.
    fn remove_snapshot(&self, vm: &Vm, snapshot: &str) -> Result<(), ProviderError>;

    /// Whether there is a snapshot of this id, asked for by itself: that a VM does not list it proves nothing.
    fn has_snapshot(&self, vm: &Vm, snapshot: &str) -> Result<bool, ProviderError>;

    /// Whether the source says for certain that it has a VM no more. One that this user may not see, or of which no answer tells, is
    /// not gone. `sources` are the UUIDs of the sources that the plan ran with since the VM was begun.
    ///
    /// # Errors
    /// If that cannot be asked, if it has the VM in another place, if it is another source, which never had it, or if it does not tell
    /// one that is gone from one that moved elsewhere.
    fn is_gone(&self, _: &Vm, _sources: &[String]) -> Result<bool, ProviderError> {
        Ok(false)
    }

    /// Opens a disk as a snapshot froze it.
    fn open_disk(&self, wanted: &AskedDisk<'_>) -> Result<OpenedSource, ProviderError>;

    /// Detaches whatever of a VM's disks is attached elsewhere to be read: what was recorded, and what is found. Goes before the
    /// removal of a snapshot, which an attached disk blocks. Gives a line about each that there was.
    fn detach(&self, _: &Vm, _recorded: &[Attachment]) -> Result<Vec<String>, ProviderError> {
        Ok(Vec::new())
    }

    /// Holds the source against checksums that came with it, if there are any; runs beside the copy.
    /// `progress` is told bytes compared and bytes in all, and may break it off. Gives a line about it.
    fn prove(&self, _: &PlannedVm, _: Compared<'_>) -> Result<Option<String>, ProviderError> {
        Ok(None)
    }

    /// Whether many machines may be made of one VM and run at once, because it never runs itself.
    fn is_template(&self) -> bool {
        false
    }

    /// Begins to watch whether a VM, which is off, is switched on; nothing if the source cannot tell that
    /// afterwards.
    fn watch_power(&self, _: &Vm) -> Result<Option<Box<dyn PowerWatch + '_>>, ProviderError> {
        Ok(None)
    }

    /// Change tracking, if the source has it: without it no migration is warm.
    fn tracking(&self) -> Option<&dyn ChangeTracking> {
        None
    }

    /// What of it does not answer for the moment, and why (`vc.lab:443: HTTP 503`), while that is so. Calls wait for the end of it, as
    /// long as the plan lets them.
    fn away(&self) -> Option<String> {
        None
    }

    /// How many questions had no answer so far. Where it grows while something fails, the same may go later.
    fn missed(&self) -> u64 {
        0
    }
}

/// A file of a VM's disk that is attached to another VM, which reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The source's id of that other VM.
    pub proxy: String,
    /// The file.
    pub file: String,
}

/// Which disk of a source is opened, and what for.
pub struct AskedDisk<'a> {
    /// Whose disk it is.
    pub vm: &'a PlannedVm,
    /// The disk.
    pub disk: &'a PlannedDisk,
    /// The snapshot that froze it.
    pub snapshot: &'a str,
    /// How much its reads hurry.
    pub urgency: Urgency,
    /// Told what is attached elsewhere to be read, before it is.
    pub record: Record<'a>,
}

/// How much the reads of a disk hurry, of those of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Nobody is kept waiting: they wait for those of a delta.
    Later,
    /// The guest is down meanwhile, and it is no last delta: they wait for no others, and no others for them.
    Down,
    /// The guest is down for the last delta, what changed since the pass before: a limit that holds other reads back does not hold back these, and
    /// those that may come later wait for them.
    Delta,
}

/// Records an attachment that is about to be made.
pub type Record<'a> = &'a (dyn Fn(&Attachment) -> Result<(), ProviderError> + Sync);

/// A watch over a VM that is to stay off.
pub trait PowerWatch: Send + Sync {
    /// Whether the VM was switched on since the watch began, however short and by whomever.
    fn was_switched_on(&self) -> Result<bool, ProviderError>;
}

/// Told how many bytes of how many were compared; may break it off.
pub type Compared<'a> = &'a mut dyn FnMut(u64, u64) -> ControlFlow<()>;

/// A source disk, and what the user should know about how it is read.
pub struct OpenedSource {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Such as: no map of allocated areas, because change tracking is off.
    pub notes: Vec<String>,
    /// What there is to tell once it was read. It may hold the disk open.
    pub late: Option<LateNotes>,
}

/// Tells what became of reading a disk.
pub type LateNotes = Box<dyn FnOnce() -> Vec<String>>;

/// What was told when a disk was opened, and what there is to tell by now.
pub(crate) fn all_notes(mut notes: Vec<String>, late: Option<LateNotes>) -> Vec<String> {
    for note in late.map(|late| late()).unwrap_or_default() {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

/// Where VMs go. Calls are made from several threads.
pub trait TargetProvider: Send + Sync {
    /// Makes the VM's folder and checks that it can take what the plan says; touches nothing that exists.
    fn prepare(&self, vm: &PlannedVm) -> Result<(), ProviderError>;

    /// Where the disks of a VM take room that others may want, too; none where that is not known or somebody else's affair.
    /// `is_left`: an earlier run may have left images, and what these take is needed no more.
    fn places(&self, _: &PlannedVm, _is_left: bool) -> Result<Vec<TargetPlace>, ProviderError> {
        Ok(Vec::new())
    }

    /// Bytes that may be written to one of these places now, if that is known.
    fn free_bytes(&self, _: &PlannedVm, _: &TargetPlace) -> Result<Option<u64>, ProviderError> {
        Ok(None)
    }

    /// Opens the image of a disk for writing: makes it, or goes on with one that drover made before.
    /// An image that drover did not make is refused.
    fn open_disk(&self, disk: &PlannedDisk, vm: &PlannedVm, size: u64)
    -> Result<OpenedTarget, ProviderError>;

    /// Whether disks of this VM go to a target that takes each once, in order, and gives nothing back: they are sent by
    /// [`TargetProvider::one_way`], and neither opened nor verified.
    fn is_one_way(&self, _: &PlannedVm) -> Result<bool, ProviderError> {
        Ok(false)
    }

    /// Where a disk goes to such a target.
    fn one_way(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<Box<dyn OneWay>, ProviderError> {
        let what = format!("{} is no target that takes a disk once", vm.place_of(disk).display());
        Err(ProviderError::new(Cause::Internal, what))
    }

    /// Where the journal of a disk's copy lies, on this machine.
    fn journal(&self, disk: &PlannedDisk, _: &PlannedVm) -> PathBuf {
        journal_path(&disk.path)
    }

    /// Whether there is an image.
    fn has_image(&self, disk: &PlannedDisk, _: &PlannedVm) -> Result<bool, ProviderError> {
        Ok(disk.path.exists())
    }

    /// Opens the image for reading, as a guest would see it.
    fn open_for_verify(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<Arc<dyn Disk>, ProviderError>;

    /// Converts the guest, if the plan and the guest ask for it.
    fn convert(&self, vm: &PlannedVm) -> Result<Converted, ProviderError>;

    /// Forgets an earlier conversion: the images change again, and it was made of what they were. Fine if
    /// there is none.
    fn forget_conversion(&self, _: &PlannedVm) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Writes the machine's definition; gives a line about it.
    fn define(&self, vm: &PlannedVm) -> Result<String, ProviderError>;

    /// Removes the definition. One that is gone already is fine.
    fn undo_define(&self, vm: &PlannedVm) -> Result<(), ProviderError>;

    /// Asks leave to start the machine soon. Between this and the start the source is looked at for the last time, so
    /// a start that is held up on its way must come to nothing if it arrives late.
    fn make_ready(&self, _: &PlannedVm) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Starts the machine and sees that it goes on running: a guest that its accelerator stops some seconds later has not started.
    fn start(&self, vm: &PlannedVm) -> Result<Started, ProviderError>;

    /// Done once the VM has arrived and its source is proven off: what would start the machine without drover (an
    /// autostart) is switched on here and nowhere before.
    fn settle(&self, _: &PlannedVm) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Whether the machine runs at the target. If not, no start that was asked for before happens after this.
    fn is_running(&self, vm: &PlannedVm) -> Result<bool, ProviderError>;

    /// Stops the machine. One that is off already is fine.
    fn stop(&self, vm: &PlannedVm) -> Result<(), ProviderError>;

    /// Removes images and journals of a VM that was not migrated to its end.
    fn remove_images(&self, vm: &PlannedVm) -> Result<(), ProviderError>;

    /// Lets go of what stays at the target of a VM that was given up, once [`TargetProvider::remove_images`] is done: of what was there before
    /// drover. Says so of each.
    fn give_back(&self, _: &PlannedVm) -> Result<Vec<String>, ProviderError> {
        Ok(Vec::new())
    }

    /// Forgets that drover made the images of a VM, as far as anything beside their journals says so: nobody is to take them for its own
    /// any more. Its plan is over; images and machines stay.
    fn forget(&self, _: &PlannedVm) -> Result<(), ProviderError> {
        Ok(())
    }
}

/// A machine that was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// A line about it.
    pub line: String,
    /// How long its guest was watched: it ran for so long when the call returned.
    pub watched: Duration,
}

impl Started {
    /// Of a machine that runs since this moment.
    pub fn now(line: impl Into<String>) -> Started {
        Started { line: line.into(), watched: Duration::ZERO }
    }
}

/// A target disk that takes its bytes once, in order, and gives none back.
pub trait OneWay: Send + Sync {
    /// In words, the way that the bytes go.
    fn way(&self) -> String;

    /// What tells the disk from another of its name, once the target has taken all of it; nothing before, and if it is going.
    fn tag(&self) -> Result<Option<String>, ProviderError>;

    /// Begins with the first byte of `size`: whatever was sent before counts for nothing, and the disk may be made anew.
    /// `first` are the bytes that the source begins with. Gives what tells the disk, and where its bytes go.
    fn begin(&self, first: &[u8], size: u64) -> Result<(String, Box<dyn Upload>), ProviderError>;
}

/// Bytes on their way to a [`OneWay`] target.
pub trait Upload: Write {
    /// All bytes were written: waits until the target has taken them for good.
    fn finish(&mut self) -> Result<(), ProviderError>;

    /// Why a write failed. With the cause `Connection` it may pass.
    fn failure(&mut self) -> Option<ProviderError>;
}

/// A file system or a pool that disks of a VM go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPlace {
    /// What tells it from others, for all plans and processes.
    pub key: String,
    /// What people call it.
    pub label: String,
    /// A folder of it, or its name at the site that has it.
    pub at: PathBuf,
    /// By the places of disks in the VM, bytes that each may still need; of a place that is overcommitted, those of its first writes.
    pub needs: BTreeMap<usize, u64>,
    /// By leave of the plan its disks may come to more than is free.
    pub overcommits: bool,
}

/// Bytes that a disk may need before anybody can look again whether there is room: what is under way to it at once, and more.
pub const FIRST_WRITES_BYTES: u64 = 16 << 20;

impl TargetPlace {
    /// Bytes that all its disks may still need.
    pub fn needs_bytes(&self) -> u64 {
        self.needs.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Bytes that all its disks may need at first.
    pub fn first_writes(&self) -> u64 {
        self.needs.values().fold(0, |sum, bytes| sum.saturating_add((*bytes).min(FIRST_WRITES_BYTES)))
    }
}

/// A target disk.
pub struct OpenedTarget {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Tells it from another of its name.
    pub tag: String,
    /// Whether it was made just now.
    pub is_new: bool,
    /// Whether it is proven to read as zeros where nothing was written.
    pub zeroed: bool,
    /// What goes over a link, if the disk is at another site.
    pub link: Option<Arc<dyn Linked>>,
}

/// A disk behind a link.
pub trait Linked: Send + Sync {
    /// What went over the link since the disk was opened. Zeros are counted elsewhere.
    fn bytes(&self) -> LinkBytes;
}

/// What went over a link for a disk, and what did not have to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkBytes {
    /// Bytes of the disk that were sent.
    pub sent: u64,
    /// What they were after packing: what crossed the line.
    pub sent_packed: u64,
    /// Bytes that the other side had already, found by their hashes.
    pub had: u64,
    /// Bytes that were zero, by the source's word or found so.
    pub zero: u64,
    /// How often the disk was opened again after its link was lost.
    pub reopened: u64,
}

impl LinkBytes {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: LinkBytes) -> LinkBytes {
        LinkBytes {
            sent: self.sent + other.sent,
            sent_packed: self.sent_packed + other.sent_packed,
            had: self.had + other.had,
            zero: self.zero + other.zero,
            reopened: self.reopened + other.reopened,
        }
    }
}

/// Outcome of a conversion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Converted {
    /// Done.
    Done {
        /// Where the log is, and what else there is to tell.
        told: String,
        /// What of the guest's settings is left to do by hand, or went another way than one may think: a line each.
        left: Vec<String>,
    },
    /// Not needed or not asked for, and why.
    Skipped(String),
}
