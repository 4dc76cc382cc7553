//! Volumes that are images of Ceph: libvirt makes and removes them, a `qemu-nbd` of drover's reads and writes them.
//!
//! Ceph lets several write to an image, and a later image of its name is not told from it by anything that libvirt says. So who writes holds a
//! lock of drover's own, and what an image holds is compared with its journal before it is gone on with or removed.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use drover_disk::{Around, Disk, DiskError, read_span};
use drover_engine::{Cause, ProviderError, chain};
use drover_nbd::{NbdDisk, NbdOptions, NbdUri};
use drover_plan::{PlannedDisk, PlannedVm};
use drover_qemu::daemon::{Daemon, PoolKind, RbdPool};
use drover_qemu::{Access, ImageServer, QemuError, RbdImage};
use drover_types::{ByteSpan, ExtentKind};

use super::volume_name;
use crate::errors::qemu_error;
use crate::ours::why_another_disk;
use crate::setting::io_error;

/// Before the name of a pool, as QEMU writes it.
const SCHEME: &str = "rbd:";
/// A child of a run that was killed writes back what it has in flight.
const LOCK_TIME_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);
/// Areas with data of an image that no journal tells of, of which each is looked at.
const AREAS_MAX: usize = 1024;
const LOOK_BYTES: u64 = 64 << 10;

/// Where the images of a pool lie, in a plan.
pub fn base_of(pool: &RbdPool) -> PathBuf {
    format!("{SCHEME}{}", pool.name).into()
}

/// Whether the volume of a disk is an image of Ceph, as its daemon told what its pool is.
pub fn is_rbd(disk: &PlannedDisk) -> bool {
    let is_pool = disk.base.to_str().is_some_and(|base| base.starts_with(SCHEME));
    disk.pool.is_some() && is_pool && disk.path.starts_with(&disk.base)
}

/// The pool of a disk; refused if it is another than when the VM was begun.
pub fn pool_of(daemon: &Daemon, disk: &PlannedDisk) -> Result<RbdPool, ProviderError> {
    let name = disk.pool.as_deref().unwrap_or_default();
    match daemon.pool(name).map_err(qemu_error)?.map(|pool| pool.kind) {
        Some(PoolKind::Rbd(pool)) if base_of(&pool) == disk.base => Ok(pool),
        _ => {
            let what = format!("pool {name} of {} is not {} any more", daemon.uri(), disk.base.display());
            Err(ProviderError::new(Cause::Target, what).advise("see who changed it (`virsh pool-dumpxml`)"))
        }
    }
}

/// An image and the server that it lives by.
pub struct RbdDisk {
    // Fields drop in this order: connections go before their server.
    nbd: NbdDisk,
    _server: ImageServer,
}

/// Opens the image of a disk.
pub fn open(
    daemon: &Daemon,
    disk: &PlannedDisk,
    access: Access,
    held: Option<File>,
) -> Result<RbdDisk, ProviderError> {
    let pool = pool_of(daemon, disk)?;
    let key = pool.auth.as_ref().map(|auth| daemon.ceph_key(auth)).transpose();
    let key = key.map_err(|error| qemu_error(error).advise(KEY_ADVICE))?;
    let name = volume_name(disk);
    let image = RbdImage { pool: &pool, name: &name, key: key.as_ref() };
    let server = ImageServer::open_rbd(&image, access, held).map_err(unopened)?;
    let failed = |what: String, cause| ProviderError::new(cause, format!("{}: {what}", disk.path.display()));
    let uri: NbdUri = server.uri().parse().map_err(|error| failed(format!("{error}"), Cause::Internal))?;
    // The socket has another name each time.
    let options = NbdOptions { identity: Some(disk.path.display().to_string()), ..NbdOptions::default() };
    let nbd = match access {
        Access::Read => NbdDisk::open_source(&uri, options),
        Access::Write => NbdDisk::open_target(&uri, options),
    };
    let nbd = nbd.map_err(|error| failed(chain(&error), Cause::Target))?;
    Ok(RbdDisk { nbd, _server: server })
}

fn unopened(error: QemuError) -> ProviderError {
    let error = qemu_error(error);
    match error.advice {
        Some(_) => error,
        None => error.advise(
            "see whether this host reaches the monitors that the pool names (TCP 3300 and 6789) and its user may write to the pool; \
             then the same command again",
        ),
    }
}

/// What to do where libvirt does not tell the key of a pool.
pub const KEY_ADVICE: &str = "give the secret a value, and define it without private='yes' (`virsh secret-define`): drover has to give it to qemu-nbd";

/// Locks an image for drover: the file goes to the child that has it open, and is locked for as long as that lives.
pub fn lock(vm: &PlannedVm, disk: &PlannedDisk) -> Result<File, ProviderError> {
    let path = lock_path(vm, disk);
    let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
    let file = file.map_err(|error| io_error("opening", &path, error))?;
    let until = Instant::now() + LOCK_TIME_MAX;
    loop {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::sleep(LOOK),
            Err(TryLockError::WouldBlock) => {
                let what = format!("a qemu-nbd of an earlier run still has {} open", disk.path.display());
                return Err(ProviderError::new(Cause::Target, what).advise(format!(
                    "see who that is (`fuser -v {}`), then the same command again",
                    path.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(io_error("locking", &path, error)),
        }
    }
    file.set_len(0).map_err(|error| io_error("writing", &path, error))?;
    Ok(file)
}

/// The file that is locked by who writes to an image.
pub fn lock_path(vm: &PlannedVm, disk: &PlannedDisk) -> PathBuf {
    vm.folder.join(format!("volume-{}.lock", disk.index))
}

/// Why an image is not what this plan made: it holds something, and not what its journal, if there is one, recorded.
pub fn why_another(disk: &RbdDisk, journal: Option<&Path>) -> Result<Option<&'static str>, ProviderError> {
    match journal {
        Some(journal) => why_another_disk(disk, journal),
        None => {
            let failed =
                |error| ProviderError::new(Cause::Target, format!("reading {}", disk.name())).because(error);
            Ok(holds_something(disk)
                .map_err(failed)?
                .then_some("it holds something that no journal tells of"))
        }
    }
}

fn holds_something(disk: &dyn Disk) -> Result<bool, DiskError> {
    let mut lane = disk.open_lane()?;
    let (mut at, mut looks) = (0, 0);
    while at < disk.size() && looks < AREAS_MAX {
        for extent in disk.extents(ByteSpan::new(at, disk.size() - at))? {
            at = extent.span.end();
            if extent.kind == ExtentKind::Zero {
                continue;
            }
            looks += 1;
            let span = ByteSpan::new(extent.span.offset, extent.span.length.min(LOOK_BYTES));
            if read_span(lane.as_mut(), span)?.iter().any(|byte| *byte != 0) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

impl Around for RbdDisk {
    fn inner(&self) -> &dyn Disk {
        &self.nbd
    }
}
