//! Volumes of another host: its daemon makes them, its drover agent writes, hashes and removes them.
//!
//! The agent serves a pool under the name that the daemon has for it, so a volume is `/POOL/FILE` to the agent and a file of the pool's
//! folder to the daemon.

use std::path::{Path, PathBuf};

use drover_agent::Refusal;
use drover_agent::machine::Image;
use drover_disk::DiskErrorKind;
use drover_engine::{Cause, OpenedTarget, ProviderError, TargetProvider};
use drover_plan::{ImageFormat, PlannedDisk, PlannedVm};
use drover_qemu::Cache;
use drover_qemu::daemon::Daemon;
use drover_types::Bytes;

use super::{far_block, made, make_volume, not_made, volume_name};
use crate::errors::qemu_error;
use crate::machine::site_name;
use crate::there::There;

/// QEMU finds out what sectors a file's storage has, and takes these where that tells nothing.
const SECTOR_BYTES_MAX: u64 = 4096;

/// Where the daemon has a disk.
pub fn at_daemon(vm: &PlannedVm, disk: &PlannedDisk) -> PathBuf {
    match vm.site {
        None => disk.path.clone(),
        Some(_) => disk.base.join(volume_name(disk)),
    }
}

/// How disks are cached that nobody can look at from here.
pub fn cache_of(vm: &PlannedVm) -> Cache {
    // Logical volumes are whole extents.
    let is_whole = |disk: &PlannedDisk| {
        far_block::is_volume(vm, disk) || disk.disk.capacity_bytes.is_multiple_of(SECTOR_BYTES_MAX)
    };
    if vm.disks.iter().all(is_whole) { Cache::Direct } else { Cache::Buffered }
}

/// Refuses what is at a disk's place if it is not this plan's: that it holds nothing proves nothing.
pub fn check_volume(there: &There, disk: &PlannedDisk, vm: &PlannedVm) -> Result<(), ProviderError> {
    if far_block::is_volume(vm, disk) {
        return far_block::check(there, disk, vm);
    }
    let stat = match there.stat(disk) {
        Err(refusal) if refusal.kind == DiskErrorKind::Gone => return Ok(()),
        stat => stat.map_err(|refusal| there.refused(refusal))?,
    };
    let Some(bytes) = stat.size else { return Ok(()) };
    let place = vm.place_of(disk);
    match stat.holds_nothing {
        _ if there.is_ours(disk, vm, &stat) => Ok(()),
        true if made::is_tag(vm, disk, &stat.tag)? => Ok(()),
        true => {
            let (pool, name) = (disk.pool.as_deref().unwrap_or_default(), volume_name(disk));
            Err(not_made(&place, &format!("virsh -c URI vol-delete --pool {pool} {name}")))
        }
        false => {
            let what = format!(
                "{} already holds something that this plan did not write ({})",
                place.display(),
                Bytes(bytes)
            );
            Err(ProviderError::new(Cause::Target, what)
                .advise("remove it if it may go, or choose another pool or target_name"))
        }
    }
}

/// The file with firmware variables that an earlier domain of this name left on that host.
pub fn variables_of(there: &There, name: &str) -> Result<Option<String>, ProviderError> {
    let has = there.host(&[], &[name.to_string()]).map_err(|refusal| there.refused(refusal))?;
    Ok(has.variables.into_iter().flatten().next())
}

/// Opens the volume of a disk, made by the daemon if it is not there.
pub fn open_disk(
    there: &There,
    daemon: &Daemon,
    disk: &PlannedDisk,
    vm: &PlannedVm,
    size: u64,
) -> Result<OpenedTarget, ProviderError> {
    if far_block::is_volume(vm, disk) {
        return far_block::open(there, daemon, disk, vm, size);
    }
    check_volume(there, disk, vm)?;
    let refused = |refusal: Refusal| there.refused(refusal);
    if there.stat(disk).map_err(refused)?.size.is_none() {
        make_volume(daemon, disk, ImageFormat::Raw, size)?;
        let stat = there.stat(disk).map_err(refused)?;
        if stat.size.is_none() {
            let error = lies_elsewhere(there, daemon, disk);
            let (pool, name) = (disk.pool.as_deref().unwrap_or_default(), volume_name(disk));
            return Err(match daemon.remove_volume(pool, &name) {
                Ok(()) => error,
                Err(left) => error.because(qemu_error(left)),
            });
        }
        made::remember_tag(vm, disk, &stat.tag)?;
    }
    let opened = there.open_disk(disk, vm, size)?;
    // Again, now that it is locked.
    check_volume(there, disk, vm)?;
    Ok(opened)
}

/// Of a volume that was made just now and that the agent does not see.
pub fn lies_elsewhere(there: &There, daemon: &Daemon, disk: &PlannedDisk) -> ProviderError {
    let (name, pool) = (volume_name(disk), disk.pool.as_deref().unwrap_or_default());
    let what = format!(
        "volume {name} was made in pool {pool} at {}, and the agent of {} does not see it: its pool {pool} is another folder",
        daemon.uri(),
        there.name()
    );
    ProviderError::new(Cause::Target, what)
        .advise(format!("run the agent on the daemon's host with --libvirt-pool {pool}"))
}

/// Removes what this plan made: at the agent, under the lock of each image, and only if it is still the same. Logical volumes are removed by
/// the daemon.
pub fn remove_images(there: &There, daemon: &Daemon, vm: &PlannedVm) -> Result<(), ProviderError> {
    check_served(there, vm)?;
    far_block::remove(there, daemon, vm)?;
    let machine = as_machine(vm);
    // Of a run that died before their journals began.
    let mut blank = Vec::new();
    let files = machine.iter().flat_map(|machine| &machine.disks);
    for disk in files.filter(|disk| !there.journal(disk, vm).exists()) {
        let stat = match there.stat(disk) {
            Err(refusal) if refusal.kind == DiskErrorKind::Gone => continue,
            stat => stat.map_err(|refusal| there.refused(refusal))?,
        };
        if stat.size.is_some() && stat.holds_nothing && made::is_tag(vm, disk, &stat.tag)? {
            blank.push(Image { disk: site_name(&disk.path), tag: stat.tag });
        }
    }
    if let Some(machine) = &machine {
        there.clear(machine, blank)?;
    }
    made::forget(vm)?;
    // One that holds something else stays.
    let _ = std::fs::remove_dir(&vm.folder);
    Ok(())
}

/// Refuses to conclude anything of an agent that does not serve the pools any more, or other folders under their names: that it finds
/// no image there proves nothing.
fn check_served(there: &There, vm: &PlannedVm) -> Result<(), ProviderError> {
    let info = there.info().map_err(|refusal| there.refused(refusal))?;
    for disk in &vm.disks {
        // Of one that nothing tells of nothing was made.
        if !there.journal(disk, vm).exists() && !made::is_recorded(vm, disk)? {
            continue;
        }
        let pool = disk.pool.as_deref().unwrap_or_default();
        // Not known where the daemon was never asked; then nothing was made.
        let is_known = disk.base != Path::new("/").join(pool);
        let is_it = |folder: &String| !is_known || Path::new(folder) == disk.base;
        let served = info.pools.iter().find(|it| it.name == pool);
        if served.is_some_and(|served| served.folders.iter().any(is_it)) {
            continue;
        }
        let what = match served {
            None => format!("the agent of {} does not serve pool {pool} any more", there.name()),
            Some(_) => format!(
                "pool {pool} of the agent of {} is not {} any more",
                there.name(),
                disk.base.display()
            ),
        };
        return Err(ProviderError::new(Cause::Target, what).advise(format!(
            "run it on the daemon's host with --libvirt-pool {pool}, then the same command again"
        )));
    }
    Ok(())
}

/// The VM as the agent takes orders about it: machines have folders there, and this one has none but for what its conversion leaves. It is
/// the daemon that starts it. It has the disks that are files; where none is, no order is given.
pub fn as_machine(vm: &PlannedVm) -> Option<PlannedVm> {
    let disks: Vec<PlannedDisk> =
        vm.disks.iter().filter(|disk| !far_block::is_volume(vm, disk)).cloned().collect();
    let pool = disks.first()?.pool.as_deref().unwrap_or_default();
    let folder = Path::new("/").join(pool).join(format!("{}.drover-domain", vm.target_name));
    Some(PlannedVm { folder, start: false, disks, ..vm.clone() })
}
