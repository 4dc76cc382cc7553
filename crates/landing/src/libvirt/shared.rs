//! Volumes of another host's daemon in storage that this host has, too, at the same path: its daemon makes them, drover writes them where it
//! finds them. That the storage is shared no name and no setting tells; the volume that was made there and is found here does.

use std::path::Path;
use std::time::{Duration, Instant};

use drover_disk::LockedFile;
use drover_engine::{Cause, ProviderError};
use drover_plan::{Libvirt, PlannedDisk, PlannedVm};
use drover_qemu::daemon::Daemon;

use super::volume_name;
use crate::errors::qemu_error;
use crate::setting::io_error;

/// A client of NFS believes for up to a minute that a name is not there (`acdirmax`).
const SEEN_TIME_MAX: Duration = Duration::from_secs(75);
/// So long where nothing is cached.
const SEEN_AT_ONCE: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(250);
/// File systems of a network whose clients remember names: of NFS, CIFS and SMB2. Source: Linux, `statfs(2)`.
const CACHING: [u64; 3] = [0x6969, 0xff53_4d42, 0xfe53_4d42];

/// Whether the volumes of a VM are another host's that no agent writes.
pub fn is_shared(vm: &PlannedVm) -> bool {
    vm.site.is_none() && vm.daemon.as_deref().is_some_and(|uri| !Libvirt::is_here(uri))
}

/// Waits until a volume that the daemon made just now is found here. If it is not, its pool is another folder, and the volume is removed again.
pub fn see(daemon: &Daemon, disk: &PlannedDisk, size: u64) -> Result<(), ProviderError> {
    is_here(daemon, disk, size).map_err(|error| {
        let pool = disk.pool.as_deref().unwrap_or_default();
        match daemon.remove_volume(pool, &volume_name(disk)) {
            Ok(()) => error,
            Err(left) => error.because(qemu_error(left)),
        }
    })
}

/// Waits until a volume that the daemon made just now is found here.
pub fn is_here(daemon: &Daemon, disk: &PlannedDisk, size: u64) -> Result<(), ProviderError> {
    // An image of qcow2 tells its size within.
    let is_raw = disk.path.extension().is_none_or(|ending| ending != "qcow2");
    let is_it = || {
        let bytes = std::fs::metadata(&disk.path).map(|meta| meta.len());
        Ok(bytes.is_ok_and(|bytes| !is_raw || bytes == size.next_multiple_of(512)))
    };
    if until_seen(&disk.base, is_it)? {
        return Ok(());
    }
    let (name, pool) = (volume_name(disk), disk.pool.as_deref().unwrap_or_default());
    let what = format!(
        "volume {name} was made in pool {pool} at {}, and is not to be found as {} here: that host has another folder at this path",
        daemon.uri(),
        disk.path.display()
    );
    Err(ProviderError::new(Cause::Target, what).advise(ADVICE))
}

/// Refuses a volume that the daemon made and that may not be written here, as disks are: opened and locked.
pub fn is_writable(disk: &PlannedDisk) -> Result<(), ProviderError> {
    LockedFile::open(&disk.path).map(drop).map_err(|error| {
        let what = format!("opening {} to write to it, which that host's libvirt made", disk.path.display());
        ProviderError::new(Cause::Target, what).because(error).advise(
            "run drover as root, and over NFS export the share to this host without squashing root (`no_root_squash`) and with locks; \
             or pair with a drover agent on that host and name it by `via`",
        )
    })
}

/// Refuses a volume that is here and that the daemon does not find.
pub fn is_seen_there(daemon: &Daemon, disk: &PlannedDisk) -> Result<(), ProviderError> {
    let pool = disk.pool.as_deref().unwrap_or_default();
    let is_it = || {
        let found = daemon.refresh(pool).and_then(|()| daemon.volume(pool, &volume_name(disk)));
        found.map(|found| found.is_some()).map_err(qemu_error)
    };
    if until_seen(&disk.base, is_it)? {
        return Ok(());
    }
    let what = format!(
        "{} is here, and pool {pool} of {} has no such volume: that host has another folder at this path, or does not have the share mounted",
        disk.path.display(),
        daemon.uri()
    );
    Err(ProviderError::new(Cause::Target, what).advise(ADVICE))
}

/// What to do where storage is not shared.
pub const ADVICE: &str = "mount the same share at the same path on both hosts; or pair with a drover agent on that host and name it by `via`; \
                          or run drover there";

fn until_seen(
    folder: &Path,
    is_seen: impl Fn() -> Result<bool, ProviderError>,
) -> Result<bool, ProviderError> {
    let until = Instant::now() + if caches_names(folder)? { SEEN_TIME_MAX } else { SEEN_AT_ONCE };
    loop {
        if is_seen()? {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        // A folder that was changed from here is looked at anew.
        let _ = tempfile::tempfile_in(folder);
        std::thread::sleep(LOOK);
    }
}

fn caches_names(folder: &Path) -> Result<bool, ProviderError> {
    let system = rustix::fs::statfs(folder).map_err(|error| io_error("looking at", folder, error.into()))?;
    Ok(CACHING.contains(&(system.f_type as u64 & 0xffff_ffff)))
}
