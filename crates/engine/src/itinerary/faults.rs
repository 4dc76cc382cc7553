//! What a VM failed because of, as far as others may fail because of it, too: its host, a datastore, or a place at its target.

use std::error::Error;
use std::io;
use std::sync::{MutexGuard, PoisonError};

use drover_disk::DiskErrorKind;
use drover_mover::MoveError;
use drover_plan::PlannedDisk;
use drover_schedule::TargetFailure;
use drover_types::Bytes;

use super::{Journey, Outcome, is_told};
use crate::error::{Cause, EngineError, ProviderError};
use crate::phase::Phase;

/// What a disk could not be opened, read or written because of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The host, or the way to it.
    Host,
    /// The datastore of this disk, by its place in the plan; or the host, if others of its datastores fail, too.
    Disk(usize),
    /// The place that this disk goes to, or those of all its disks.
    Target {
        disk: Option<usize>,
        /// It has no room.
        is_full: bool,
    },
}

impl Journey<'_> {
    /// A disk could not be opened or read: keeps what that is of.
    pub(super) fn keep_fault(&self, disk: &PlannedDisk, cause: Cause) {
        let new = match (cause, self.place_of(disk)) {
            (Cause::Source, Some(disk)) => Fault::Disk(disk),
            (Cause::Source, None) | (Cause::Connection, _) => Fault::Host,
            _ => return,
        };
        let mut fault = self.fault();
        *fault = Some(match *fault {
            Some(target @ Fault::Target { .. }) => target,
            Some(Fault::Disk(before)) if !self.is_at_same_datastore(before, disk) => Fault::Host,
            Some(Fault::Host) => Fault::Host,
            Some(Fault::Disk(_)) | None => new,
        });
    }

    /// A disk could not be copied: keeps what that is of.
    pub(super) fn keep_copy_fault(&self, disk: &PlannedDisk, error: &MoveError, side: Cause) {
        let is_full = error.is_out_of_space();
        match error {
            _ if side != Cause::Target => self.keep_fault(disk, side),
            _ if is_full => self.keep_target_fault(Some(disk), true),
            MoveError::Disk(error) if is_of_place(error.kind) => self.keep_target_fault(Some(disk), false),
            MoveError::Journal(_) => self.keep_target_fault(Some(disk), false),
            MoveError::Disk(_)
            | MoveError::TooSmall { .. }
            | MoveError::Resized { .. }
            | MoveError::Cancelled
            | MoveError::Other { .. } => {}
        }
    }

    /// The target refused something: keeps whether others will be refused, too. What it has against one VM, such as its name, is none
    /// of theirs.
    pub(super) fn keep_refusal(&self, disk: Option<&PlannedDisk>, error: &ProviderError) {
        match error.cause {
            Cause::TargetFull => self.keep_target_fault(disk, true),
            Cause::Connection => self.keep_target_fault(disk, false),
            Cause::Target if is_read_only(error) => self.keep_target_fault(disk, false),
            _ => {}
        }
    }

    fn keep_target_fault(&self, disk: Option<&PlannedDisk>, is_full: bool) {
        let disk = disk.and_then(|disk| self.place_of(disk));
        *self.fault() = Some(Fault::Target { disk, is_full });
    }

    fn is_at_same_datastore(&self, place: usize, disk: &PlannedDisk) -> bool {
        self.planned.disks.get(place).is_some_and(|it| it.disk.datastore == disk.disk.datastore)
    }

    /// The source serves well again, and so does the target.
    pub(super) fn forget_fault(&self) {
        self.fault().take();
    }

    pub(super) fn fault(&self) -> MutexGuard<'_, Option<Fault>> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the schedule what a VM failed because of. Gives whether it is tried again.
    pub(super) fn fails_of(&self, fault: Fault, error: &EngineError, reached: Phase) -> bool {
        let may_go_on = reached < Phase::Define;
        match fault {
            Fault::Target { disk, is_full } => self.target_fails(disk, is_full, error) && may_go_on,
            Fault::Host | Fault::Disk(_) => may_go_on && self.slots.host_failed(fault),
        }
    }

    fn target_fails(&self, disk: Option<usize>, is_full: bool, error: &EngineError) -> bool {
        let room = if is_full { self.room_words(disk) } else { None };
        let failure = TargetFailure { why: room.unwrap_or_else(|| error.chain()), is_full };
        self.slots.target_failed(disk, &failure)
    }

    /// Whether others may fail of what a VM failed of, and not of what was decided about it, or by order.
    pub(super) fn is_of_others(&self, error: &EngineError) -> bool {
        !is_told(error.cause()) && !self.context.stop.is_set()
    }

    /// A pass failed: that is told to the schedule while the VM holds its slots, which others get then. A host is asked for the pass again, so
    /// what it did counts only if it is being tried with the VM, or the VM `ends` with that.
    pub(super) fn park_failed(&self, error: &EngineError, ends: bool) {
        let is_of_others = self.is_of_others(error);
        let fault = self.fault().take().filter(|_| is_of_others);
        match fault {
            Some(Fault::Target { disk, is_full }) => _ = self.target_fails(disk, is_full, error),
            Some(fault) if ends || self.slots.is_tried() => _ = self.slots.host_failed(fault),
            Some(Fault::Host | Fault::Disk(_)) | None => {}
        }
        self.slots.park_untold();
    }

    /// How much is free where a disk goes, or the first disk, and what is needed there; nothing where that is not told.
    fn room_words(&self, disk: Option<usize>) -> Option<String> {
        let number = disk.unwrap_or(0);
        let places = self.context.target.places(self.planned, true).ok()?;
        let place = places.into_iter().find(|place| place.needs.contains_key(&number))?;
        let free = self.context.target.free_bytes(self.planned, &place).ok().flatten()?;
        let disks = place.needs.keys().filter_map(|number| self.planned.disks.get(*number));
        let data: u64 = disks.map(|disk| self.planned.vm.data_bytes_of(&disk.disk)).sum();
        Some(full_words(free, &self.planned.target_name, data))
    }

    /// A guest does not go down while a place that it goes to is left alone, or has less room than its first writes need: it waits
    /// until that is otherwise, and holds nothing meanwhile. One that is down goes on, and so does one that moves while it runs: its
    /// passes wait.
    pub(super) fn await_target(&self) -> Outcome<()> {
        while !self.is_warm() && !self.slots.goes_on() {
            if self.context.stop.is_set() {
                return Err(EngineError::Cancelled);
            }
            match self.lack_of_room() {
                Some((disk, why)) => {
                    _ = self.slots.target_failed(disk, &TargetFailure { why, is_full: true })
                }
                None if self.slots.is_target_held() => {}
                None => return Ok(()),
            }
            self.slots.begin_anew(self.context.stop)?;
        }
        Ok(())
    }

    /// A disk for which there is no room now, and how that is told. A place that does not tell what is free has room.
    fn lack_of_room(&self) -> Option<(Option<usize>, String)> {
        let mut places = self.context.target.places(self.planned, true).ok()?;
        self.slots.ask_for_all(&mut places);
        places.into_iter().filter(|place| place.needs_bytes() > 0).find_map(|place| {
            let free = self.context.target.free_bytes(self.planned, &place).ok().flatten()?;
            let needs = if place.overcommits { place.needs_bytes() } else { place.first_writes() };
            let disk = place.needs.keys().next().copied();
            (free < needs).then(|| (disk, full_words(free, &self.planned.target_name, needs)))
        })
    }
}

/// How a place that is full is told.
pub(crate) fn full_words(free: u64, vm: &str, needs: u64) -> String {
    format!("it is full: {} free, and {vm} may need {}", Bytes(free), Bytes(needs))
}

/// Whether it is of the place that a disk cannot be written, and not of the disk.
fn is_of_place(kind: DiskErrorKind) -> bool {
    match kind {
        DiskErrorKind::OutOfSpace
        | DiskErrorKind::Transient
        | DiskErrorKind::Denied
        | DiskErrorKind::Failed => true,
        DiskErrorKind::Corrupt | DiskErrorKind::Gone | DiskErrorKind::Unsupported | DiskErrorKind::Misuse => {
            false
        }
    }
}

fn is_read_only(error: &ProviderError) -> bool {
    let mut next = error.source();
    while let Some(error) = next {
        let of_system = error.downcast_ref::<io::Error>();
        if of_system.is_some_and(|error| error.kind() == io::ErrorKind::ReadOnlyFilesystem) {
            return true;
        }
        next = error.source();
    }
    false
}
