//! Whether what a daemon makes can be had from this host, tried with a volume of its own before a guest is switched off: where storage is to be
//! shared, and where a pool is one of Ceph.

use std::collections::BTreeSet;
use std::path::PathBuf;

use drover_engine::{Cause, ProviderError};
use drover_plan::{ImageFormat, PlannedDisk, PlannedVm};
use drover_qemu::Access;
use drover_qemu::daemon::Daemon;

use super::{made, make_volume, rbd, shared, volume_name};
use crate::errors::qemu_error;
use crate::here;
use crate::setting::io_error;

const PROBE_BYTES: u64 = 1 << 20;

/// Tries the pools that disks of a VM are still to be made in.
pub fn try_pools(daemon: &Daemon, vm: &PlannedVm) -> Result<(), ProviderError> {
    let mut tried = BTreeSet::new();
    for disk in &vm.disks {
        // Block devices are of this host alone.
        let is_due = rbd::is_rbd(disk) || shared::is_shared(vm);
        if is_due && !made::is_recorded(vm, disk)? && tried.insert(disk.pool.clone()) {
            try_pool(daemon, vm, disk)?;
        }
    }
    Ok(())
}

fn try_pool(daemon: &Daemon, vm: &PlannedVm, disk: &PlannedDisk) -> Result<(), ProviderError> {
    forget(daemon, vm)?;
    let probe = PlannedDisk { path: disk.base.join(name_of(vm)), ..disk.clone() };
    let pool = disk.pool.as_deref().unwrap_or_default();
    let name = volume_name(&probe);
    if daemon.volume(pool, &name).map_err(qemu_error)?.is_some() {
        let what = format!("a volume {name} is in pool {pool} of {} already", daemon.uri());
        return Err(
            ProviderError::new(Cause::Target, what).advise("remove it if it may go (`virsh vol-delete`)")
        );
    }
    let mark = mark_of(vm);
    std::fs::write(&mark, pool).map_err(|error| io_error("writing", &mark, error))?;
    if let Err(error) = make_volume(daemon, &probe, ImageFormat::Raw, PROBE_BYTES) {
        here::remove(&mark)?;
        return Err(error);
    }
    let had = match rbd::is_rbd(disk) {
        true => rbd::open(daemon, vm, &probe, Access::Read, None).map(drop),
        false => shared::is_here(daemon, &probe, PROBE_BYTES).and_then(|()| shared::is_writable(&probe)),
    };
    had.and(forget(daemon, vm))
}

/// Removes a volume that was tried and may be left.
pub fn forget(daemon: &Daemon, vm: &PlannedVm) -> Result<(), ProviderError> {
    let mark = mark_of(vm);
    let Ok(pool) = std::fs::read_to_string(&mark) else { return Ok(()) };
    if !pool.is_empty() {
        let is_there = daemon.refresh(&pool).and_then(|()| daemon.volume(&pool, &name_of(vm)));
        if is_there.map_err(qemu_error)?.is_some() {
            daemon.remove_volume(&pool, &name_of(vm)).map_err(qemu_error)?;
        }
    }
    here::remove(&mark)
}

fn name_of(vm: &PlannedVm) -> String {
    format!("{}.drover-probe", vm.target_name)
}

/// Says that a volume was about to be tried, in which pool.
fn mark_of(vm: &PlannedVm) -> PathBuf {
    vm.folder.join("probe")
}
