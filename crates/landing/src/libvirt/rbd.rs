//! Volumes that are images of Ceph: libvirt makes and removes them, a `qemu-nbd` of drover's reads and writes them.
//!
//! Ceph lets several write to an image, and a later image of its name is not told from it by anything that libvirt says. So who writes holds a
//! lock of drover's own, and what an image holds is compared with its journal before it is gone on with or removed.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_disk::{Around, Disk, DiskError, read_span};
use drover_engine::{Cause, ProviderError, chain};
use drover_nbd::{NbdDisk, NbdOptions, NbdUri};
use drover_plan::{PlannedDisk, PlannedVm};
use drover_qemu::daemon::{Daemon, PoolKind, RbdPool};
use drover_qemu::{Access, ImageServer, QemuError, RbdImage};
use drover_types::{ByteSpan, ExtentKind};

use super::{made, volume_name};
use crate::errors::qemu_error;
use crate::ours::why_another_disk;
use crate::setting::io_error;

/// Before the name of a pool, as QEMU writes it.
const SCHEME: &str = "rbd:";
/// A child of a run that was killed writes back what it has in flight.
const LOCK_TIME_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(100);
/// An image with so many areas of data that no journal tells of holds something.
const AREAS_MAX: usize = 1024;
/// Bytes of an area that are read at once.
const LOOK_BYTES: u64 = 64 << 10;
/// Looks at an area beside those at its begin and its end, spread over it.
const LOOKS: u64 = 32;
/// Where file systems and volume managers have their marks, in looks: up to 128 KiB (btrfs has its at 64), and 1 MiB, where partitions begin,
/// with btrfs in the first of them.
const MARKS: [u64; 4] = [0, 1, 16, 17];

/// Where the images of a pool lie, in a plan.
pub fn base_of(pool: &RbdPool) -> PathBuf {
    format!("{SCHEME}{}", pool.name).into()
}

/// Whether the volume of a disk is an image of Ceph, as its daemon told what its pool is.
pub fn is_rbd(disk: &PlannedDisk) -> bool {
    let is_pool = disk.base.to_str().is_some_and(|base| base.starts_with(SCHEME));
    disk.pool.is_some() && is_pool && disk.path.starts_with(&disk.base)
}

/// The pool of a disk; refused if it is another, or of another cluster, than when the VM was begun.
pub fn pool_of(daemon: &Daemon, vm: &PlannedVm, disk: &PlannedDisk) -> Result<RbdPool, ProviderError> {
    let name = disk.pool.as_deref().unwrap_or_default();
    let pool = match daemon.pool(name).map_err(qemu_error)?.map(|pool| pool.kind) {
        Some(PoolKind::Rbd(pool)) if base_of(&pool) == disk.base => pool,
        _ => {
            let what = format!("pool {name} of {} is not {} any more", daemon.uri(), disk.base.display());
            let error = ProviderError::new(Cause::Target, what);
            return Err(error.advise("see who changed it (`virsh pool-dumpxml`)"));
        }
    };
    let now = monitors_of(&pool);
    match made::monitors_of(vm, disk)? {
        Some(recorded) if !is_same_cluster(&recorded, &now) => {
            let told = |monitors: &[String]| match monitors {
                [] => "those of ceph.conf".to_string(),
                monitors => monitors.join(", "),
            };
            let what = format!(
                "pool {name} of {} may be another cluster's by now: its monitors are {}, and were {} when {} was made",
                daemon.uri(),
                told(&now),
                told(&recorded),
                disk.path.display()
            );
            Err(ProviderError::new(Cause::Target, what).advise(format!(
                "give it one of those monitors again (`virsh pool-edit`), then the same command; if that cluster is gone for good, remove {}",
                made::record_of(vm, disk).display()
            )))
        }
        _ => Ok(pool),
    }
}

/// Refuses a pool that is another cluster's than the one that has the volume of a disk: that no such volume is there proves nothing.
pub fn check_cluster(daemon: &Daemon, vm: &PlannedVm, disk: &PlannedDisk) -> Result<(), ProviderError> {
    match made::monitors_of(vm, disk)? {
        Some(_) => pool_of(daemon, vm, disk).map(drop),
        None => Ok(()),
    }
}

/// The monitors of a pool, in words without spaces.
pub fn monitors_of(pool: &RbdPool) -> Vec<String> {
    let word = |(host, port): &(String, Option<u16>)| match port {
        Some(port) => format!("{host}:{port}"),
        None => host.clone(),
    };
    pool.monitors.iter().map(word).collect()
}

/// Monitors of a cluster come and go, one at a time.
fn is_same_cluster(recorded: &[String], now: &[String]) -> bool {
    recorded.is_empty() && now.is_empty() || recorded.iter().any(|monitor| now.contains(monitor))
}

/// An image and the server that it lives by.
pub struct RbdDisk {
    // Fields drop in this order: connections go before their server.
    nbd: NbdDisk,
    server: ImageServer,
}

impl RbdDisk {
    /// Where the image is served, raw, by NBD.
    pub fn uri(&self) -> &str {
        self.server.uri()
    }
}

/// Images of a VM of which some are in Ceph, for a rehearsal: those are locked, and served to be read for as long as this lives.
pub struct CephCopy {
    /// All images.
    pub disks: Vec<Arc<dyn Disk>>,
    /// Where each is served by NBD; nothing for one that is a file or a device of this host.
    pub uris: Vec<Option<String>>,
}

/// Opens the image of a disk.
pub fn open(
    daemon: &Daemon,
    vm: &PlannedVm,
    disk: &PlannedDisk,
    access: Access,
    held: Option<File>,
) -> Result<RbdDisk, ProviderError> {
    let pool = pool_of(daemon, vm, disk)?;
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
    Ok(RbdDisk { nbd, server })
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

/// Why an image is not what this plan made: it holds something, and not what its journal, if there is one, recorded. `may_differ`: a converter
/// wrote to it since.
pub fn why_another(
    disk: &RbdDisk,
    journal: Option<&Path>,
    may_differ: bool,
) -> Result<Option<&'static str>, ProviderError> {
    match journal {
        Some(journal) => why_another_disk(disk, journal, may_differ, &holds_something),
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
    let Some(areas) = areas_of(disk)? else { return Ok(true) };
    let mut lane = disk.open_lane()?;
    for span in areas.into_iter().flat_map(looks_at) {
        if read_span(lane.as_mut(), span)?.iter().any(|byte| *byte != 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The areas of a disk that may hold data, as far as it tells; nothing if they are too many.
fn areas_of(disk: &dyn Disk) -> Result<Option<Vec<ByteSpan>>, DiskError> {
    let (mut at, mut areas) = (0, Vec::<ByteSpan>::new());
    while at < disk.size() {
        let extents = disk.extents(ByteSpan::from_bounds(at, disk.size()))?;
        let Some(last) = extents.last() else { break };
        at = last.span.end();
        for span in extents.iter().filter(|extent| extent.kind != ExtentKind::Zero).map(|extent| extent.span)
        {
            match areas.last_mut() {
                Some(area) if area.end() == span.offset => area.length += span.length,
                _ => areas.push(span),
            }
        }
        if areas.len() > AREAS_MAX {
            return Ok(None);
        }
    }
    Ok(Some(areas))
}

/// Where an area is looked at: at its begin, at its end, and spread over it.
fn looks_at(area: ByteSpan) -> impl Iterator<Item = ByteSpan> {
    let last = area.length.div_ceil(LOOK_BYTES).saturating_sub(1);
    let spread = (1..=LOOKS).map(|look| last * look / (LOOKS + 1));
    let looks: BTreeSet<u64> = MARKS
        .into_iter()
        .chain(spread)
        .chain([last.saturating_sub(1), last])
        .filter(|it| *it <= last)
        .collect();
    looks.into_iter().map(move |look| {
        let at = area.offset + look * LOOK_BYTES;
        ByteSpan::from_bounds(at, area.end().min(at + LOOK_BYTES))
    })
}

impl Around for RbdDisk {
    fn inner(&self) -> &dyn Disk {
        &self.nbd
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use drover_copy::{Entry, Leaf};
    use drover_disk::{Features, MemDisk};
    use drover_mover::JournalFile;
    use drover_types::BLOCK_BYTES;

    use super::*;

    #[test]
    fn a_disk_of_one_long_area_holds_something_wherever_file_systems_have_their_marks() {
        let size = 16 << 20;
        let features = Features { writable: true, fast_zero: true, extents: false, zeroed: false };
        let untold = || MemDisk::new("t", vec![0; size]).with_features(features);
        assert!(!holds_something(&untold()).unwrap());
        // The mark of btrfs is 64 bytes behind its superblock's begin.
        for at in
            [0, 512, 32 << 10, (64 << 10) + 64, 1 << 20, (1 << 20) + (64 << 10) + 64, size - 65536, size - 1]
        {
            let disk = untold();
            disk.overwrite(at as u64, b"x");
            assert!(holds_something(&disk).unwrap(), "{at}");
        }
        let area = ByteSpan::new(5 << 20, 1 << 40);
        let looks: Vec<ByteSpan> = looks_at(area).collect();
        assert!(
            looks.len() as u64 <= LOOKS + 6 && looks.iter().all(|look| area.contains(*look)),
            "{looks:?}"
        );
        assert_eq!(looks_at(ByteSpan::new(512, 512)).collect::<Vec<_>>(), [ByteSpan::new(512, 512)]);
        // Areas far from each other.
        let bytes = (AREAS_MAX as u64 + 1) * (8 << 10);
        let many = MemDisk::blank("t", bytes);
        (0..bytes).step_by(8 << 10).for_each(|at| many.overwrite(at, b"x"));
        assert_eq!(areas_of(&many).unwrap(), None);
    }

    #[test]
    fn an_image_of_which_little_was_recorded_is_known_by_all_of_that_alone() {
        const BLOCKS: u64 = 3;
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..BLOCKS * BLOCK_BYTES).map(|at| (at / 997) as u8 | 1).collect();
        let journal = |recorded: usize| {
            let path = folder.path().join(format!("journal-{recorded}"));
            let start = JournalFile::start(&path, bytes.len() as u64, "source", "t", true).unwrap();
            let mut journal = start.journal;
            for (first, block) in bytes.chunks(BLOCK_BYTES as usize).enumerate().take(recorded) {
                let Leaf::Data(digest) = Leaf::of(block) else { panic!("data") };
                journal.append(&[Entry::Data { first: first as u64, leaves: vec![digest] }]).unwrap();
            }
            path
        };
        let why = |disk: &MemDisk, recorded: usize, may_differ: bool| {
            let path = folder.path().join(format!("journal-{recorded}"));
            why_another_disk(disk, &path, may_differ, &holds_something).unwrap()
        };
        let (ours, blank) = (MemDisk::new("t", bytes.clone()), MemDisk::blank("t", bytes.len() as u64));
        for recorded in [0, 2] {
            drop(journal(recorded));
        }
        assert_eq!(why(&ours, 2, false), None);
        assert!(why(&blank, 2, false).unwrap().contains("not all of that is as recorded"));
        ours.overwrite(7, b"x");
        assert!(why(&ours, 2, false).is_some());
        assert_eq!(why(&ours, 2, true), None, "a converter wrote to it");
        assert_eq!(why(&blank, 0, false), None);
        assert!(why(&ours, 0, false).unwrap().contains("recorded no data in it"));
        let short = MemDisk::blank("t", BLOCK_BYTES);
        assert!(why(&short, 0, true).unwrap().contains("another size"));
    }

    #[test]
    fn a_cluster_is_the_same_while_one_of_its_monitors_is() {
        let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
        let recorded = words(&["a:6789", "b"]);
        assert!(is_same_cluster(&recorded, &words(&["c", "b"])));
        assert!(!is_same_cluster(&recorded, &words(&["c", "d:6789"])));
        assert!(!is_same_cluster(&recorded, &[]) && is_same_cluster(&[], &[]));
    }
}
