//! LUNs of this host: volumes of pools of the types `iscsi`, `scsi` and `mpath`, which libvirt neither makes nor removes. The plan names one for
//! each disk, and drover writes the disk's bytes to it.
//!
//! Whose a LUN is goes by its serial number, as for other volumes that are no files ([`super::block`]). What drover did not write is overwritten
//! only if the plan says so, and a LUN whose first and last MiB, and samples between, are zero counts as empty.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use drover_disk::LockedFile;
use drover_disk::device::{
    DeviceNumber, content_on, device_identity, device_usage, signatures_on, whole_disk_of,
};
use drover_engine::{Cause, OpenedTarget, ProviderError};
use drover_plan::{PlannedDisk, PlannedVm};
use drover_qemu::QemuError;
use drover_qemu::daemon::{Daemon, DomainDisk, Owner, Pool, PoolKind, Volume};

use super::block::{self, Blocks, Look};
use super::made;
use crate::errors::qemu_error;
use crate::here;
use crate::setting::io_error;

/// Bytes at each end of a LUN that are zero if it holds nothing.
const END_BYTES: u64 = 1 << 20;
pub const ANOTHER: &str = "name another LUN in the plan's `volumes`";

/// Whether a disk goes to a volume that was there before, as the plan names it.
pub fn is_lun(disk: &PlannedDisk) -> bool {
    disk.pool.is_some() && disk.volume.is_some()
}

/// A LUN for people.
fn name_of(disk: &PlannedDisk) -> String {
    let name = disk.volume.as_ref().map(|named| named.name.as_str());
    format!("LUN {} of pool {}", name.unwrap_or_default(), disk.pool.as_deref().unwrap_or_default())
}

fn refused(what: String, advice: impl Into<String>) -> ProviderError {
    ProviderError::new(Cause::Target, what).advise(advice)
}

/// Puts a disk where its daemon has the LUN that the plan names. `taken` has the keys of the LUNs of other disks, and whose they are.
pub fn place(
    daemon: &Daemon,
    pool: &Pool,
    disk: &mut PlannedDisk,
    who: String,
    taken: &mut BTreeMap<String, String>,
) -> Result<(), ProviderError> {
    let (uri, label) = (daemon.uri(), &disk.disk.label);
    let named = match &disk.volume {
        Some(_) if pool.kind != PoolKind::Luns => {
            let what = format!("{label}: pool {} of {uri} is none of LUNs, so no volume is named", pool.name);
            return Err(refused(
                what,
                "take it out of `volumes`, or choose a pool of the type iscsi, scsi or mpath",
            ));
        }
        Some(named) => named,
        None => {
            let what = format!(
                "{label}: the volumes of pool {} of {uri} are LUNs, and the plan names none for it",
                pool.name
            );
            let advice =
                format!("write `volumes: {{{label}: NAME}}` at the VM; {}", known(daemon, &pool.name));
            return Err(refused(what, advice));
        }
    };
    let ask = || daemon.volume(&pool.name, &named.name);
    let volume = match ask() {
        Ok(None) => daemon.refresh(&pool.name).and_then(|()| ask()),
        told => told,
    };
    let Some(volume) = volume.map_err(qemu_error)? else { return Err(missing(daemon, disk)) };
    // Names like /dev/sdb are given anew at each boot, and the domain would have another disk.
    if volume.path.parent() == Some(Path::new("/dev")) {
        let what = format!(
            "{label}: {} is {}, which may be another one after a boot",
            name_of(disk),
            volume.path.display()
        );
        return Err(refused(what, "define the pool with the target path /dev/disk/by-path"));
    }
    let volume = identified(volume)?;
    if let Some(other) = taken.insert(volume.key, who) {
        return Err(refused(format!("{label}: {} is that of {other}, too", name_of(disk)), ANOTHER));
    }
    disk.base.clone_from(&pool.path);
    disk.path = volume.path;
    Ok(())
}

/// The LUNs of a pool, in words.
fn known(daemon: &Daemon, pool: &str) -> String {
    match daemon.luns(pool) {
        Ok(names) if names.is_empty() => {
            "it has none: see `iscsiadm -m session`, `lsscsi` or `multipath -ll`".into()
        }
        Ok(names) => format!("it has: {}", names.join(", ")),
        Err(error) => format!("its LUNs are not known: {}", error.chain()),
    }
}

fn missing(daemon: &Daemon, disk: &PlannedDisk) -> ProviderError {
    let pool = disk.pool.as_deref().unwrap_or_default();
    let what = format!("{}: {} is not there", disk.disk.label, name_of(disk));
    refused(what, format!("mend the plan's `volumes`; {}", known(daemon, pool)))
}

/// A LUN with a key by which it is known from another that comes to its place.
pub fn identified(volume: Volume) -> Result<Volume, ProviderError> {
    // libvirt takes the path where it is told no serial number, and always of those of multipath.
    if !volume.key.is_empty() && !volume.key.starts_with('/') {
        return Ok(volume);
    }
    let number = device_at(&volume.path).map_err(|error| io_error("looking at", &volume.path, error))?;
    match device_identity(Path::new("/"), number) {
        // By its number alone.
        key if key.contains("number=") => Err(refused(
            format!(
                "{} has no serial number, so that nothing tells it from another LUN",
                volume.path.display()
            ),
            ANOTHER,
        )),
        key => Ok(Volume { key, ..volume }),
    }
}

fn device_at(path: &Path) -> io::Result<DeviceNumber> {
    let meta = std::fs::metadata(path)?;
    match meta.file_type().is_block_device() {
        true => Ok(DeviceNumber::of(meta.rdev())),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "it is no block device")),
    }
}

/// The LUN of a disk, if this plan may write to it; touches nothing.
pub fn check(blocks: &Blocks<'_>, disk: &PlannedDisk, look: Look) -> Result<Volume, ProviderError> {
    let (daemon, vm) = (blocks.daemon, blocks.vm);
    let pool = disk.pool.as_deref().unwrap_or_default();
    let lun = name_of(disk);
    if daemon.pool(pool).map_err(qemu_error)?.is_none_or(|pool| pool.kind != PoolKind::Luns) {
        let what = format!("{} has no pool {pool} of LUNs", daemon.uri());
        return Err(refused(what, "see `virsh pool-list --all`, and the plan's `pool` and `volumes`"));
    }
    let Some(volume) = blocks.volume(disk, look)? else { return Err(missing(daemon, disk)) };
    if volume.path != disk.path {
        let (was, is) = (disk.path.display(), volume.path.display());
        let what = format!("{lun} is {is} by now, and was {was} when the plan was checked");
        return Err(refused(what, "see why, then the same command again"));
    }
    let failed = |error| io_error("looking at", &disk.path, error);
    let number = device_at(&disk.path).map_err(failed)?;
    let bytes = bytes_of(&disk.path).map_err(failed)?;
    check_size(disk, bytes)?;
    let paths = paths_of(Path::new("/"), number).map_err(failed)?;
    let usage = paths.iter().flat_map(|number| device_usage(Path::new("/"), *number));
    let used: Vec<String> = usage.map(|usage| usage.to_string()).collect();
    if !used.is_empty() {
        let what = format!("{lun} is in use on this host: {}", used.join(", "));
        return Err(refused(what, format!("see whether it may go; or {ANOTHER}")));
    }
    let tag = block::tag_of(&volume);
    let record = made::recorded_elsewhere(vm, disk, &tag);
    if let Some(record) = record.map_err(|error| io_error("looking through", &vm.folder, error))? {
        let what = format!("{lun} was written for another disk, as {} says", record.display());
        let advice = format!(
            "{ANOTHER}; `drover cancel PLAN`, or `drover clean PLAN --forget`, of the plan in that path frees it"
        );
        return Err(refused(what, advice));
    }
    let is_ours = is_ours(blocks, disk, &volume)?;
    if !is_ours && made::is_recorded(vm, disk)? {
        let what = format!("{lun} is another one than this plan wrote to: its serial number was another");
        return Err(refused(what, "see why; `drover cancel` the VM, and move it anew"));
    }
    if let Some(what) =
        domain_on(blocks, (pool, volume.name.as_str()), number, is_ours).map_err(qemu_error)?
    {
        return Err(refused(format!("{lun} {what}"), format!("take it from that domain, or {ANOTHER}")));
    }
    if !is_ours && !disk.volume.as_ref().is_some_and(|named| named.overwrite) {
        check_empty(&lun, &disk.path).map_err(failed)??;
    }
    Ok(volume)
}

fn is_ours(blocks: &Blocks<'_>, disk: &PlannedDisk, volume: &Volume) -> Result<bool, ProviderError> {
    Ok(blocks.is_begun(disk, volume)? || made::is_tag(blocks.vm, disk, &block::tag_of(volume))?)
}

/// Refuses a LUN that is another one than the disk was written to.
pub fn check_same(blocks: &Blocks<'_>, disk: &PlannedDisk) -> Result<(), ProviderError> {
    let Some(volume) = blocks.volume(disk, Look::Anew)? else { return Err(missing(blocks.daemon, disk)) };
    if volume.path == disk.path && is_ours(blocks, disk, &volume)? {
        return Ok(());
    }
    let what = format!("{} is another one than {} was written to", name_of(disk), disk.disk.label);
    Err(refused(what, "see who changed it; `drover cancel` the VM, and move it anew"))
}

/// The devices by which this host has one LUN: as many as it has paths to it, where nobody puts those together.
fn paths_of(root: &Path, number: DeviceNumber) -> io::Result<Vec<DeviceNumber>> {
    let whole = whole_disk_of(root, number).0;
    let mut paths = vec![number];
    if let Ok(disks) = std::fs::read_dir(root.join("sys/block")) {
        for disk in disks {
            let told = std::fs::read_to_string(disk?.path().join("dev"));
            let Some(other) = told.ok().and_then(|told| told.trim().parse().ok()) else { continue };
            if other != whole && is_one(root, other, whole) {
                paths.push(other);
            }
        }
    }
    Ok(paths)
}

/// Whether two devices lead to one LUN.
fn is_one(root: &Path, one: DeviceNumber, other: DeviceNumber) -> bool {
    let [one, other] = [one, other].map(|number| whole_disk_of(root, number).0);
    let identity = device_identity(root, one);
    // One that has nothing but its number is itself alone.
    one == other || !identity.contains("number=") && identity == device_identity(root, other)
}

fn bytes_of(path: &Path) -> io::Result<u64> {
    File::open(path)?.seek(SeekFrom::End(0))
}

fn check_size(disk: &PlannedDisk, bytes: u64) -> Result<(), ProviderError> {
    let needed = disk.disk.capacity_bytes;
    if bytes >= needed {
        return Ok(());
    }
    let what = format!("{} has {bytes} bytes, and {} has {needed}", name_of(disk), disk.disk.label);
    Err(refused(what, format!("{ANOTHER}, or enlarge it")))
}

/// Refuses a LUN that holds something, as far as its first and last MiB tell, and samples between them.
fn check_empty(lun: &str, path: &Path) -> io::Result<Result<(), ProviderError>> {
    let Some(at) = first_byte(path)?.or(content_on(path)?) else { return Ok(Ok(())) };
    let marks: Vec<String> = signatures_on(path)?.iter().map(ToString::to_string).collect();
    let held = match marks.is_empty() {
        true => format!("byte {at} is not zero"),
        false => marks.join(", "),
    };
    let what = format!("{lun} ({}) holds something that drover has no record of: {held}", path.display());
    let advice = format!(
        "{ANOTHER}; if what it holds may go, write `,overwrite` behind its name there, or zero it (`blkdiscard -z`)"
    );
    Ok(Err(refused(what, advice)))
}

/// The first byte in the first and the last MiB that is not zero.
fn first_byte(path: &Path) -> io::Result<Option<u64>> {
    let (device, bytes) = (File::open(path)?, bytes_of(path)?);
    for at in [0, bytes.saturating_sub(END_BYTES)] {
        let mut end = vec![0; END_BYTES.min(bytes) as usize];
        device.read_exact_at(&mut end, at)?;
        if let Some(found) = end.iter().position(|byte| *byte != 0) {
            return Ok(Some(at + found as u64));
        }
    }
    Ok(None)
}

/// What the domain of this daemon that has this LUN says of it. The one that this plan made of the VM may have a LUN that is its own.
fn domain_on(
    blocks: &Blocks<'_>,
    (pool, name): (&str, &str),
    number: DeviceNumber,
    is_ours: bool,
) -> Result<Option<String>, QemuError> {
    let vm = &blocks.vm.vm;
    let own = Owner { plan: blocks.plan.to_string(), vm: vm.id.clone(), instance: vm.instance_uuid.clone() };
    // One that is not there is not this.
    let is_it = |path: &Path| device_at(path).is_ok_and(|other| is_one(Path::new("/"), other, number));
    let has = |disk: &DomainDisk| Some(format!("is a disk of the domain {}", disk.domain));
    for disk in blocks.daemon.disks_of_domains()? {
        if is_ours && disk.owner.as_ref() == Some(&own) {
            continue;
        }
        if disk.path.as_deref().is_some_and(is_it) {
            return Ok(has(&disk));
        }
        let Some((of, volume)) = &disk.volume else { continue };
        if of == pool && volume == name {
            return Ok(has(&disk));
        }
        let Some(other) = blocks.daemon.pool(of)? else { continue };
        if other.is_active {
            if blocks.daemon.volume(of, volume)?.is_some_and(|it| is_it(&it.path)) {
                return Ok(has(&disk));
            }
        } else if other.kind == PoolKind::Luns {
            // It may run for all that, and its volume has no path.
            let domain = &disk.domain;
            return Ok(Some(format!(
                "may be a disk of the domain {domain}, which has volume {volume} of pool {of}, and that pool is not active"
            )));
        }
    }
    Ok(None)
}

/// Opens the LUN of a disk. What it has behind the disk stays as it is.
pub fn open(blocks: &Blocks<'_>, disk: &PlannedDisk, size: u64) -> Result<OpenedTarget, ProviderError> {
    let failed =
        |error| ProviderError::new(Cause::Target, format!("opening {}", disk.path.display())).because(error);
    check(blocks, disk, Look::AsKnown)?;
    let file = LockedFile::open(&disk.path).map_err(failed)?;
    // Whose it is counts now that it is locked.
    let volume = check(blocks, disk, Look::Anew)?;
    let (tag, is_begun) = (block::tag_of(&volume), blocks.is_begun(disk, &volume)?);
    if !is_begun {
        block::check_not_converted(blocks.vm, &disk.path, &tag)?;
        // Of another LUN.
        here::remove(&blocks.journal(disk))?;
        made::remember_lun(blocks.vm, disk, &tag, &volume.name)?;
    }
    let opened = file.into_disk(size).map_err(failed)?;
    Ok(OpenedTarget { disk: Arc::new(opened), tag, is_new: !is_begun, zeroed: false, link: None })
}

/// Frees the LUNs of a VM that was given up. They stay as they are, which is told of each.
pub fn give_back(vm: &PlannedVm) -> Result<Vec<String>, ProviderError> {
    let mut luns = Vec::new();
    for disk in vm.disks.iter().filter(|disk| is_lun(disk)) {
        if made::is_recorded(vm, disk)? {
            luns.push(disk);
        }
    }
    luns.iter().try_for_each(|disk| made::forget_disk(vm, disk))?;
    let stays = |disk: &&PlannedDisk| {
        format!(
            "{} ({}) stays as it is, with what was copied to it; to be used by a plan again it has to be named with `,overwrite`, or wiped",
            name_of(disk),
            disk.path.display()
        )
    };
    let told: Vec<String> = luns.iter().map(stays).collect();
    if !told.is_empty() {
        // One that holds something else stays.
        let _ = std::fs::remove_dir(&vm.folder);
    }
    Ok(told)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use drover_plan::NamedVolume;
    use drover_qemu::Virsh;

    use super::*;

    fn disk(volume: Option<&str>) -> PlannedDisk {
        let disk = r#"{"key": 2000, "label": "Hard disk 1", "capacity_bytes": 1048576, "thin": true, "datastore": "ds", "path": "[ds] a.vmdk",
            "has_parent": false, "bus": "scsi", "address": [0, 0], "mode": "persistent", "rdm": null, "shared": false, "encrypted": false,
            "change_id": null}"#;
        let planned = format!(
            r#"{{"disk": {disk}, "index": 0, "path": "/san/a-0.raw", "pool": "san", "base": "/san", "bus": "virtio"}}"#
        );
        let planned: PlannedDisk = serde_json::from_str(&planned).unwrap();
        let volume = volume.map(|name| NamedVolume { name: name.to_string(), overwrite: false });
        PlannedDisk { volume, ..planned }
    }

    /// A daemon whose pool `san` has this volume, of this key.
    fn daemon(folder: &Path, path: &str, key: &str) -> Daemon {
        let volume = format!(
            "<volume type='block'><name>unit:0:0:1</name><key>{key}</key><capacity unit='bytes'>8388608</capacity><target><path>{path}</path></target></volume>"
        );
        let script = format!(
            "case \" $* \" in\n*' vol-list '*) printf ' Name Path\\n-----\\n unit:0:0:1 {path}\\n' ;;\n\
             *' unit:0:0:1 '*) echo \"{volume}\" ;;\n*' pool-refresh '*) ;;\n\
             *) echo \"error: Storage volume not found: no storage vol with matching path 'x'\" >&2; exit 1 ;;\nesac"
        );
        let program = folder.join("virsh");
        drover_lab::put_script(&program, &script).unwrap();
        Daemon::of(Virsh::new("qemu:///system").by(program.display().to_string()))
    }

    fn pool(kind: PoolKind) -> Pool {
        Pool {
            name: "san".into(),
            kind,
            is_active: true,
            path: "/dev/mapper".into(),
            source: None,
            available_bytes: u64::MAX,
        }
    }

    #[test]
    fn a_disk_is_where_its_lun_is_and_what_the_plan_gets_wrong_is_told() {
        let folder = tempfile::tempdir().unwrap();
        // Where volume groups would be, too.
        let (path, luns) = ("/dev/mapper/mpatha", pool(PoolKind::Luns));
        let daemon_of = |path: &str, key: &str| daemon(folder.path(), path, key);
        let placed = |daemon: &Daemon, pool: &Pool, volume: Option<&str>| {
            let (mut disk, mut taken) = (disk(volume), BTreeMap::new());
            place(daemon, pool, &mut disk, "its disk".into(), &mut taken).map(|()| (disk, taken))
        };
        let fine = daemon_of(path, "36001");
        let (there, mut taken) = placed(&fine, &luns, Some("unit:0:0:1")).unwrap();
        assert_eq!((there.path.as_path(), is_lun(&there)), (Path::new(path), true));
        assert!(block::is_no_file(&there) && !block::is_block(&there));
        let twice = place(&fine, &luns, &mut disk(Some("unit:0:0:1")), "another".into(), &mut taken);
        assert!(twice.unwrap_err().what.contains("is that of its disk, too"));

        let refused = |daemon: &Daemon, pool: &Pool, volume: Option<&str>| {
            let error = placed(daemon, pool, volume).unwrap_err();
            format!("{}; {}", error.what, error.advice.unwrap_or_default())
        };
        let words = refused(&fine, &luns, None);
        assert!(words.contains("names none") && words.ends_with("it has: unit:0:0:1"), "{words}");
        let words = refused(&fine, &luns, Some("unit:0:0:7"));
        assert!(words.contains("is not there") && words.ends_with("it has: unit:0:0:1"), "{words}");
        let words = refused(&fine, &pool(PoolKind::Files), Some("unit:0:0:1"));
        assert!(words.contains("is none of LUNs"), "{words}");
        let words = refused(&daemon_of("/dev/sdq", "36001"), &luns, Some("unit:0:0:1"));
        assert!(words.contains("may be another one after a boot"), "{words}");
        // Without a serial number its path is its key, and there is no such device.
        let words = refused(
            &daemon_of("/dev/disk/by-path/none", "/dev/disk/by-path/none"),
            &luns,
            Some("unit:0:0:1"),
        );
        assert!(words.contains("looking at /dev/disk/by-path/none"), "{words}");
    }

    #[test]
    fn a_lun_that_is_too_small_or_holds_something_at_an_end_is_refused() {
        assert!(check_size(&disk(Some("a")), (1 << 20) - 1).unwrap_err().what.contains("1048575 bytes"));
        assert!(
            check_size(&disk(Some("a")), 1 << 20).is_ok() && check_size(&disk(Some("a")), 1 << 30).is_ok()
        );

        let folder = tempfile::tempdir().unwrap();
        let lun = folder.path().join("lun");
        let bytes = vec![0u8; 4 << 20];
        std::fs::write(&lun, &bytes).unwrap();
        assert!(check_empty("LUN a", &lun).unwrap().is_ok());
        for at in [0, (1 << 20) - 1, 2 << 20, 3 << 20, (4 << 20) - 1] {
            let mut bytes = bytes.clone();
            bytes[at] = 1;
            std::fs::write(&lun, &bytes).unwrap();
            let refused = check_empty("LUN a", &lun).unwrap().unwrap_err();
            assert!(refused.what.contains(&format!("byte {at} is not zero")), "{}", refused.what);
        }
        // One that is smaller than its ends would be.
        std::fs::write(&lun, [0u8, 0, 7]).unwrap();
        assert_eq!(first_byte(&lun).unwrap(), Some(2));
    }
}
