//! Logical volumes of another host: its daemon makes and removes them, its agent opens them, each by its UUID.
//!
//! As of those of this host ([`block`]), what a volume holds tells nothing: it is this plan's if its journal, or the record of what was made,
//! names its UUID.

use drover_agent::opening::Stat;
use drover_disk::DiskErrorKind;
use drover_engine::{Cause, OpenedTarget, ProviderError, TargetProvider};
use drover_plan::{ImageFormat, PlannedDisk, PlannedVm};
use drover_qemu::daemon::{Daemon, Volume};

use super::{block, far, made, make_volume, volume_name};
use crate::errors::qemu_error;
use crate::here;
use crate::setting::all_removed;
use crate::there::{There, tag_of};

/// Whether the volume of a disk is a block device of another host, as its daemon told where its pool is.
pub fn is_volume(vm: &PlannedVm, disk: &PlannedDisk) -> bool {
    vm.site.is_some() && disk.pool.is_some() && block::is_group(&disk.base)
}

/// Whether the volume of a disk is no file, wherever it is.
pub fn is_no_file(vm: &PlannedVm, disk: &PlannedDisk) -> bool {
    is_volume(vm, disk) || block::is_no_file(disk)
}

/// What is at a disk's place, if anything is.
fn stat(there: &There, disk: &PlannedDisk) -> Result<Option<Stat>, ProviderError> {
    match there.stat(disk) {
        Err(refusal) if refusal.kind == DiskErrorKind::Gone => Ok(None),
        stat => {
            let stat = stat.map_err(|refusal| there.refused(refusal))?;
            Ok(Some(stat).filter(|stat| stat.size.is_some()))
        }
    }
}

/// Whether what is at a disk's place is this plan's.
pub fn is_ours(
    there: &There,
    disk: &PlannedDisk,
    vm: &PlannedVm,
    stat: &Stat,
) -> Result<bool, ProviderError> {
    Ok(there.is_ours(disk, vm, stat) || made::is_tag(vm, disk, &stat.tag)?)
}

/// Refuses what is at a disk's place if it is not this plan's.
pub fn check(there: &There, disk: &PlannedDisk, vm: &PlannedVm) -> Result<(), ProviderError> {
    stat(there, disk)?.map_or(Ok(()), |stat| check_ours(there, disk, vm, &stat))
}

fn check_ours(there: &There, disk: &PlannedDisk, vm: &PlannedVm, stat: &Stat) -> Result<(), ProviderError> {
    if is_ours(there, disk, vm, stat)? {
        return Ok(());
    }
    let why = block::others(vm, disk, &vm.place_of(disk))?;
    Err(ProviderError::new(Cause::Target, why).advise(block::ANOTHER))
}

/// Opens the volume of a disk, made by the daemon if it is not there.
pub fn open(
    there: &There,
    daemon: &Daemon,
    disk: &PlannedDisk,
    vm: &PlannedVm,
    size: u64,
) -> Result<OpenedTarget, ProviderError> {
    let stat = match stat(there, disk)? {
        Some(stat) => stat,
        None => make(there, daemon, disk, vm, size)?,
    };
    check_ours(there, disk, vm, &stat)?;
    if !there.is_ours(disk, vm, &stat) {
        block::check_not_converted(vm, &vm.place_of(disk), &tag_of(there.name(), &stat.tag))?;
    }
    there.open_volume(disk, vm, size, &stat)
}

fn make(
    there: &There,
    daemon: &Daemon,
    disk: &PlannedDisk,
    vm: &PlannedVm,
    size: u64,
) -> Result<Stat, ProviderError> {
    // What the agent does not see may be there all the same: on a host whose agent it is not.
    if known_anew(daemon, disk)?.is_some() {
        return Err(far::lies_elsewhere(there, daemon, disk));
    }
    // Of a volume that was removed.
    here::remove(&there.journal(disk, vm))?;
    made::intend(vm, disk)?;
    make_volume(daemon, disk, ImageFormat::Raw, size)?;
    let Some(volume) = volume(daemon, disk)? else {
        let (name, uri) = (volume_name(disk), daemon.uri());
        let what = format!("volume {name} was made at {uri}, and is not there");
        return Err(ProviderError::new(Cause::Target, what).advise("see who removed it"));
    };
    made::remember_tag(vm, disk, &block::tag_of(&volume))?;
    if let Some(stat) = stat(there, disk)?
        && stat.tag == block::tag_of(&volume)
    {
        return Ok(stat);
    }
    let error = far::lies_elsewhere(there, daemon, disk);
    Err(match remove_volume(daemon, disk, &volume).and_then(|()| made::forget_disk(vm, disk)) {
        Ok(()) => error,
        Err(left) => error.because(left),
    })
}

fn volume(daemon: &Daemon, disk: &PlannedDisk) -> Result<Option<Volume>, ProviderError> {
    let pool = disk.pool.as_deref().unwrap_or_default();
    daemon.volume(pool, &volume_name(disk)).map_err(qemu_error)
}

/// The volume that the daemon sees now: what it saw last may be gone, or come, by now.
fn known_anew(daemon: &Daemon, disk: &PlannedDisk) -> Result<Option<Volume>, ProviderError> {
    daemon.refresh(disk.pool.as_deref().unwrap_or_default()).map_err(qemu_error)?;
    volume(daemon, disk)
}

/// Removes this volume, and none that the daemon knows by its name.
fn remove_volume(daemon: &Daemon, disk: &PlannedDisk, volume: &Volume) -> Result<(), ProviderError> {
    daemon.remove_volume(disk.pool.as_deref().unwrap_or_default(), &volume.key).map_err(qemu_error)
}

/// Removes the volumes that this plan made, and tells what stays.
pub fn remove(there: &There, daemon: &Daemon, vm: &PlannedVm) -> Result<(), ProviderError> {
    let mut left = Vec::new();
    for disk in vm.disks.iter().filter(|disk| is_volume(vm, disk)) {
        let journal = there.journal(disk, vm);
        if !journal.exists() && !made::is_recorded(vm, disk)? {
            continue;
        }
        let (place, uri) = (vm.place_of(disk), daemon.uri());
        let stat = stat(there, disk)?;
        if let Some(stat) = &stat {
            if !is_ours(there, disk, vm, stat)? {
                // Its journal tells the next look the same.
                left.push(format!("it stays: {}", block::others(vm, disk, &place)?));
                continue;
            }
            there.end_writers(disk, stat)?;
        }
        match (known_anew(daemon, disk)?, stat) {
            (Some(volume), Some(stat)) if block::tag_of(&volume) == stat.tag => {
                remove_volume(daemon, disk, &volume)?;
            }
            (None, None) => {}
            (_, Some(_)) => {
                left.push(format!("{} stays: {uri} has another volume of its name", place.display()));
                continue;
            }
            (Some(_), None) => {
                let agent = there.name();
                left.push(format!(
                    "{} stays: {uri} has a volume of its name, which the agent of {agent} does not see",
                    place.display()
                ));
                continue;
            }
        }
        here::remove(&journal)?;
        made::forget_disk(vm, disk)?;
    }
    all_removed(&left)
}
