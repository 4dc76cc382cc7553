//! Volumes that are no files: block devices of this host, as those of LVM are, and images of Ceph ([`rbd`]). libvirt makes and removes them,
//! drover writes them. LUNs are there already, and stay ([`lun`]).
//!
//! What a block device holds tells nothing, since a new one holds what was in its place before. Whose a volume is goes by its key at the
//! daemon (of LVM: its UUID), and its journal lies in the VM's folder among drover's state.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drover_disk::device::zero_behind;
use drover_disk::{Disk, LockedFile};
use drover_engine::{Cause, OpenedTarget, ProviderError, TargetProvider};
use drover_mover::{Naming, naming, why_not_of};
use drover_plan::{ImageFormat, PlannedDisk, PlannedVm};
use drover_qemu::daemon::{Daemon, Volume};
use drover_qemu::{Access, VmFolder};

use super::rbd::{CephCopy, RbdDisk};
use super::{lun, made, make_volume, rbd, volume_name};
use crate::errors::qemu_error;
use crate::here::{self, Here};
use crate::ours::ANOTHER_SIZE;
use crate::setting::{all_removed, io_error};

/// Whether the volume of a disk is a block device, as its daemon told where its pool is: `/dev/GROUP`.
pub fn is_block(disk: &PlannedDisk) -> bool {
    disk.pool.is_some() && !lun::is_lun(disk) && is_group(&disk.base) && disk.path.starts_with(&disk.base)
}

/// Whether this is where a volume group has its devices.
pub fn is_group(base: &Path) -> bool {
    // Where files may be, too.
    let is_memory = base == Path::new("/dev/shm");
    base.parent() == Some(Path::new("/dev")) && !is_memory
}

/// Whether the volume of a disk is no file.
pub fn is_no_file(disk: &PlannedDisk) -> bool {
    is_block(disk) || rbd::is_rbd(disk) || lun::is_lun(disk)
}

/// Whether a volume may have this name. Source: lvm(8), "Valid names"; images of Ceph may have others, too, which nobody needs.
pub fn is_name(name: &str) -> bool {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "+_.-".contains(c);
    name.len() <= 127 && !name.starts_with('-') && name.chars().all(is_fine)
}

/// Volumes of one VM that are no files.
pub struct Blocks<'a> {
    pub plan: &'a str,
    pub daemon: &'a Daemon,
    pub vm: &'a PlannedVm,
}

/// What is at a disk's place.
enum Found {
    Nothing,
    Ours(Volume),
    /// Why it is somebody else's.
    Others(String),
}

/// How much a look may be behind what others do with LVM's own programs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// What the daemon saw last.
    AsKnown,
    /// What is there now.
    Anew,
}

impl Blocks<'_> {
    fn disks(&self) -> impl Iterator<Item = &PlannedDisk> {
        self.vm.disks.iter().filter(|disk| is_no_file(disk))
    }

    /// Where the journal of a disk's copy lies.
    pub fn journal(&self, disk: &PlannedDisk) -> PathBuf {
        self.vm.folder.join(format!("volume-{}.drover-journal", disk.index))
    }

    /// The volume of a disk, if there is one.
    pub fn volume(&self, disk: &PlannedDisk, look: Look) -> Result<Option<Volume>, ProviderError> {
        let pool = disk.pool.as_deref().unwrap_or_default();
        let known = || match self.daemon.volume(pool, &volume_name(disk)).map_err(qemu_error)? {
            Some(volume) if lun::is_lun(disk) => lun::identified(volume).map(Some),
            volume => Ok(volume),
        };
        if look == Look::AsKnown
            && let Some(volume) = known()?
        {
            return Ok(Some(volume));
        }
        self.daemon.refresh(pool).map_err(qemu_error)?;
        known()
    }

    fn found(&self, disk: &PlannedDisk, look: Look) -> Result<Found, ProviderError> {
        let path = disk.path.display();
        rbd::check_cluster(self.daemon, self.vm, disk)?;
        let Some(volume) = self.volume(disk, look)? else {
            return Ok(match disk.path.exists() {
                true => {
                    Found::Others(format!("{path} is there, and {} knows no such volume", self.daemon.uri()))
                }
                false => Found::Nothing,
            });
        };
        if is_block(disk) && is_another(&disk.path, &volume.key) {
            let uri = self.daemon.uri();
            return Ok(Found::Others(format!(
                "{path} of this host is not the volume {} of {uri}",
                volume.key
            )));
        }
        if self.is_begun(disk, &volume)? || made::is_tag(self.vm, disk, &tag_of(&volume))? {
            return Ok(Found::Ours(volume));
        }
        others(self.vm, disk, &disk.path).map(Found::Others)
    }

    /// Whether the journal of a disk is that of this volume; refused if it is another plan's, or tells nothing.
    pub fn is_begun(&self, disk: &PlannedDisk, volume: &Volume) -> Result<bool, ProviderError> {
        let refused = |why: String| {
            let what = format!("{} may not be overwritten: {why}", disk.path.display());
            let advice = if lun::is_lun(disk) { lun::ANOTHER } else { ANOTHER };
            Err(ProviderError::new(Cause::Target, what).advise(advice))
        };
        match naming(&self.journal(disk), &tag_of(volume), None) {
            Naming::Nothing | Naming::Unnamed(_) => Ok(false),
            Naming::Useless(why) => refused(why),
            Naming::Named(header) => match why_not_of(&header, &self.vm.owner_of(self.plan, disk)) {
                None => Ok(true),
                Some(why) => refused(why.to_string()),
            },
        }
    }

    /// The volume of a disk, if there is one; refused if it is not this plan's.
    fn ours(&self, disk: &PlannedDisk, look: Look) -> Result<Option<Volume>, ProviderError> {
        match self.found(disk, look)? {
            Found::Nothing => Ok(None),
            Found::Ours(volume) => Ok(Some(volume)),
            Found::Others(why) => Err(ProviderError::new(Cause::Target, why).advise(ANOTHER)),
        }
    }

    /// Refuses what is at a disk's place if it is not this plan's.
    pub fn check(&self, disk: &PlannedDisk) -> Result<(), ProviderError> {
        if lun::is_lun(disk) {
            return lun::check(self, disk, Look::Anew).map(drop);
        }
        self.ours(disk, Look::AsKnown).map(drop)
    }

    /// Whether there is a volume.
    pub fn has_image(&self, disk: &PlannedDisk) -> Result<bool, ProviderError> {
        // A LUN that nothing was written to is there, too.
        if lun::is_lun(disk) && !made::is_recorded(self.vm, disk)? {
            return Ok(false);
        }
        Ok(self.volume(disk, Look::AsKnown)?.is_some())
    }

    /// What tells the volume of a disk from others, and from a later one of its name.
    pub fn identity(&self, disk: &PlannedDisk) -> Result<String, ProviderError> {
        self.volume(disk, Look::AsKnown)?.map(|volume| tag_of(&volume)).ok_or_else(|| gone(disk))
    }

    /// Opens the volume of a disk, made by the daemon if it is not there.
    pub fn open_disk(&self, disk: &PlannedDisk, size: u64) -> Result<OpenedTarget, ProviderError> {
        if lun::is_lun(disk) {
            return lun::open(self, disk, size);
        }
        if rbd::is_rbd(disk) {
            return self.open_image(disk, size);
        }
        if self.ours(disk, Look::AsKnown)?.is_none() {
            self.make(disk, size)?;
        }
        let failed = |error| {
            ProviderError::new(Cause::Target, format!("opening {}", disk.path.display())).because(error)
        };
        let file = LockedFile::open(&disk.path).map_err(failed)?;
        // Whose it is counts now that it is locked.
        let volume = self.ours(disk, Look::Anew)?.ok_or_else(|| gone(disk))?;
        let tag = tag_of(&volume);
        let is_begun = self.is_begun(disk, &volume)?;
        if !is_begun {
            check_not_converted(self.vm, &disk.path, &tag)?;
            // What an older volume left there is no business of the guest.
            zero_behind(file.file(), size).map_err(|error| io_error("writing", &disk.path, error))?;
        }
        let opened = file.into_disk(size).map_err(failed)?;
        Ok(OpenedTarget { disk: Arc::new(opened), tag, is_new: !is_begun, zeroed: false, link: None })
    }

    /// Opens the image of Ceph of a disk, made by the daemon if it is not there.
    fn open_image(&self, disk: &PlannedDisk, size: u64) -> Result<OpenedTarget, ProviderError> {
        let is_made = self.ours(disk, Look::AsKnown)?.is_none();
        if is_made {
            self.make(disk, size)?;
        }
        let held = rbd::lock(self.vm, disk)?;
        // Whose it is counts now that it is locked.
        let volume = self.ours(disk, Look::Anew)?.ok_or_else(|| gone(disk))?;
        let (tag, is_begun) = (tag_of(&volume), self.is_begun(disk, &volume)?);
        if !is_begun {
            check_not_converted(self.vm, &disk.path, &tag)?;
        }
        let opened = match rbd::open(self.daemon, self.vm, disk, Access::Write, Some(held)) {
            Err(error) if is_made => return Err(self.unmake(disk, &volume, error)),
            opened => opened?,
        };
        let refused = |why: &str| {
            let what = format!("{} may not be overwritten: {why}", disk.path.display());
            Err(ProviderError::new(Cause::Target, what).advise(ANOTHER))
        };
        if opened.size() != size.next_multiple_of(512) {
            return refused(ANOTHER_SIZE);
        }
        let journal = self.journal(disk);
        let is_converted = drover_qemu::has_converted(&VmFolder::new(&self.vm.folder), &tag);
        match rbd::why_another(&opened, is_begun.then_some(journal.as_path()), is_converted)? {
            Some(why) => refused(why),
            None => Ok(OpenedTarget {
                disk: Arc::new(opened),
                tag,
                is_new: !is_begun,
                zeroed: is_made,
                link: None,
            }),
        }
    }

    /// Serves the images of the VM to be read, if any of them are in Ceph.
    pub fn served(&self, here: &Here) -> Result<Option<CephCopy>, ProviderError> {
        if !self.vm.disks.iter().any(rbd::is_rbd) {
            return Ok(None);
        }
        let mut copy = CephCopy { disks: Vec::new(), uris: Vec::new() };
        for disk in &self.vm.disks {
            if rbd::is_rbd(disk) {
                let opened = self.open_copy(disk)?;
                copy.uris.push(Some(opened.uri().to_string()));
                copy.disks.push(Arc::new(opened));
            } else {
                copy.uris.push(None);
                copy.disks.push(here.open_for_verify(disk, self.vm)?);
            }
        }
        Ok(Some(copy))
    }

    /// Opens the image of Ceph of a disk, locked and to be read only, if it is what this plan wrote.
    fn open_copy(&self, disk: &PlannedDisk) -> Result<RbdDisk, ProviderError> {
        let held = rbd::lock(self.vm, disk)?;
        // Whose it is counts now that it is locked.
        let volume = self.ours(disk, Look::Anew)?.ok_or_else(|| gone(disk))?;
        let is_begun = self.is_begun(disk, &volume)?;
        let opened = rbd::open(self.daemon, self.vm, disk, Access::Read, Some(held))?;
        // A converter and the guest may have written to it since.
        match rbd::why_another(&opened, is_begun.then_some(self.journal(disk).as_path()), true)? {
            None => Ok(opened),
            Some(why) => {
                let what = format!("{} is not what this plan wrote there: {why}", disk.path.display());
                Err(ProviderError::new(Cause::Target, what).advise("see who put it there"))
            }
        }
    }

    /// Takes away a volume that was made just now and is of no use, for this reason.
    fn unmake(&self, disk: &PlannedDisk, volume: &Volume, why: ProviderError) -> ProviderError {
        match self.remove_volume(disk, volume).and_then(|()| made::forget_disk(self.vm, disk)) {
            Ok(()) => why,
            Err(left) => why.because(left),
        }
    }

    fn make(&self, disk: &PlannedDisk, size: u64) -> Result<(), ProviderError> {
        // Of a volume that was removed.
        here::remove(&self.journal(disk))?;
        let cluster = match rbd::is_rbd(disk) {
            true => Some(rbd::pool_of(self.daemon, self.vm, disk)?),
            false => None,
        };
        made::intend(self.vm, disk)?;
        make_volume(self.daemon, disk, ImageFormat::Raw, size)?;
        let is_device = std::fs::metadata(&disk.path).is_ok_and(|meta| meta.file_type().is_block_device());
        let made = self.volume(disk, Look::AsKnown)?;
        match (&made, &cluster) {
            (Some(volume), Some(pool)) => {
                let monitors = rbd::monitors_of(pool);
                return made::remember_in_cluster(self.vm, disk, &tag_of(volume), &monitors);
            }
            (Some(volume), None) if is_device => {
                return made::remember_tag(self.vm, disk, &tag_of(volume));
            }
            _ => {}
        }
        let uri = self.daemon.uri();
        let what = format!("{} was made at {uri}, and is no device of this host", disk.path.display());
        let error = ProviderError::new(Cause::Target, what).advise("run drover on the daemon's host");
        Err(match made {
            Some(volume) => self.unmake(disk, &volume, error),
            None => error,
        })
    }

    /// Removes this volume, and of LVM none that has its name by now.
    fn remove_volume(&self, disk: &PlannedDisk, volume: &Volume) -> Result<(), ProviderError> {
        let pool = disk.pool.as_deref().unwrap_or_default();
        let name = if rbd::is_rbd(disk) { volume_name(disk) } else { volume.key.clone() };
        self.daemon.remove_volume(pool, &name).map_err(qemu_error)
    }

    /// Why a volume that is to be removed stays. Whoever writes to it holds its lock.
    fn why_it_stays(&self, disk: &PlannedDisk, volume: &Volume) -> Result<Option<String>, ProviderError> {
        if rbd::is_rbd(disk) {
            let held = rbd::lock(self.vm, disk)?;
            let opened = rbd::open(self.daemon, self.vm, disk, Access::Read, Some(held))?;
            let why = match self.is_begun(disk, volume)? {
                true => rbd::why_another(&opened, Some(self.journal(disk).as_path()), false)?,
                false if opened.size() != disk.disk.capacity_bytes.next_multiple_of(512) => {
                    Some(ANOTHER_SIZE)
                }
                false => rbd::why_another(&opened, None, false)?,
            };
            return Ok(why.map(|why| format!("{}: {why}", disk.path.display())));
        }
        let locked = LockedFile::open(&disk.path).map_err(|error| {
            let what = format!("locking {} to remove it", disk.path.display());
            let error = ProviderError::new(Cause::Target, what).because(error);
            error.advise("see who uses it, then the same command again")
        })?;
        // LVM removes none that is open.
        drop(locked);
        Ok(None)
    }

    /// Removes what this plan made, and tells what stays.
    pub fn remove(&self) -> Result<(), ProviderError> {
        let mut left = Vec::new();
        for disk in self.disks() {
            let journal = self.journal(disk);
            if lun::is_lun(disk) {
                // It stays, and is this plan's to write to until the VM is given up.
                here::remove(&journal)?;
                continue;
            }
            if !journal.exists() && !made::is_recorded(self.vm, disk)? {
                continue;
            }
            let why = match self.found(disk, Look::Anew)? {
                Found::Ours(volume) => self.why_it_stays(disk, &volume)?,
                Found::Others(why) => Some(why),
                Found::Nothing => Some(format!("{} came there just now", disk.path.display())),
            };
            match (why, self.found(disk, Look::Anew)?) {
                (Some(why), Found::Ours(_)) | (_, Found::Others(why)) => {
                    // Its journal tells the next look the same.
                    left.push(format!("it stays: {why}"));
                    continue;
                }
                (None, Found::Ours(volume)) => self.remove_volume(disk, &volume)?,
                (_, Found::Nothing) => {}
            }
            here::remove(&journal)?;
            here::remove(&rbd::lock_path(self.vm, disk))?;
        }
        all_removed(&left)
    }
}

/// Bytes that the volume of a disk takes already; 0 if there is none.
pub fn taken_by(daemon: &Daemon, vm: &PlannedVm, disk: &PlannedDisk) -> u64 {
    if rbd::is_rbd(disk) {
        // What stands in the way is told elsewhere.
        let is_ours = made::is_recorded(vm, disk).unwrap_or(false);
        let volume = || daemon.volume(disk.pool.as_deref()?, &volume_name(disk)).ok()?;
        return volume().filter(|_| is_ours).map_or(0, |volume| volume.allocated_bytes);
    }
    File::open(&disk.path).and_then(|mut device| device.seek(SeekFrom::End(0))).unwrap_or_default()
}

/// What to do about a volume that is somebody else's.
pub const ANOTHER: &str =
    "remove it if it may go (`virsh vol-delete`), or choose another pool or target_name";

/// Why the volume of a disk, at this place, is somebody else's.
pub fn others(vm: &PlannedVm, disk: &PlannedDisk, place: &Path) -> Result<String, ProviderError> {
    let perhaps = match made::is_recorded(vm, disk)? {
        true => ", as far as its records tell: a run that was cut off may have",
        false => "",
    };
    Ok(format!("{} is there already, and this plan did not make it{perhaps}", place.display()))
}

/// Refuses to write over a converted guest, which a volume without a journal may hold.
pub fn check_not_converted(vm: &PlannedVm, place: &Path, tag: &str) -> Result<(), ProviderError> {
    if !drover_qemu::has_converted(&VmFolder::new(&vm.folder), tag) {
        return Ok(());
    }
    let what = format!("{} holds a converted guest, and its journal is gone", place.display());
    Err(ProviderError::new(Cause::Target, what)
        .advise("`drover cancel` the plan, or remove the volume, and move the VM anew"))
}

fn gone(disk: &PlannedDisk) -> ProviderError {
    let what = format!("{} is not there any more", disk.path.display());
    ProviderError::new(Cause::Target, what).advise("see who removed it")
}

/// What tells a volume from others, and from a later one of its name.
pub fn tag_of(volume: &Volume) -> String {
    format!("volume {}", volume.key)
}

/// Whether a device of this host is another logical volume than that with this UUID, as far as the kernel tells.
fn is_another(device: &Path, uuid: &str) -> bool {
    let Ok(meta) = std::fs::metadata(device) else { return false };
    let (major, minor) = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    let told = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/dm/uuid"));
    told.is_ok_and(|told| is_uuid_of_another(told.trim(), uuid))
}

/// The device mapper has `LVM-`, the group's UUID and the volume's, without hyphens. Source: LVM2, `dm_build_dm_uuid`.
fn is_uuid_of_another(device: &str, volume: &str) -> bool {
    let volume = volume.replace('-', "");
    device.strip_prefix("LVM-").is_some_and(|uuids| !uuids.ends_with(&volume))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_of_devices_is_known_by_its_place() {
        let is_block = |pool: Option<&str>, base: &str, path: &str| {
            let disk = r#"{"key": 2000, "label": "Hard disk 1", "capacity_bytes": 1, "thin": true, "datastore": "ds", "path": "[ds] a.vmdk",
                "has_parent": false, "bus": "scsi", "address": [0, 0], "mode": "persistent", "rdm": null, "shared": false, "encrypted": false,
                "change_id": null}"#;
            let planned = format!(
                r#"{{"disk": {disk}, "index": 0, "path": "{path}", "base": "{base}", "bus": "virtio"}}"#
            );
            let planned: PlannedDisk = serde_json::from_str(&planned).unwrap();
            super::is_block(&PlannedDisk { pool: pool.map(str::to_string), ..planned })
        };
        assert!(is_block(Some("vg"), "/dev/vg", "/dev/vg/a-0.raw"));
        assert!(!is_block(None, "/dev/vg", "/dev/vg/a-0.raw"), "a folder");
        assert!(!is_block(Some("fast"), "/dev/shm/fast", "/dev/shm/fast/a-0.raw"), "files in memory");
        assert!(!is_block(Some("shm"), "/dev/shm", "/dev/shm/a-0.raw"), "files in memory");
        assert!(!is_block(Some("dev"), "/srv/dev", "/dev/a-0.raw"), "another host's");
    }

    #[test]
    fn a_device_is_the_volume_that_the_kernel_says() {
        let (group, volume) = ("Yb0fVs1sBvJbTgOqpZn4QbCDyzLd0tUq", "3QfXpV-xk1d-Zt2o-Jw8r-eMmC-5uXa-S0nBhE");
        let device = format!("LVM-{group}{}", volume.replace('-', ""));
        assert!(!is_uuid_of_another(&device, volume));
        assert!(is_uuid_of_another(&device, "4QfXpV-xk1d-Zt2o-Jw8r-eMmC-5uXa-S0nBhF"));
        assert!(!is_uuid_of_another("CRYPT-LUKS2-x", volume), "of something else it tells nothing");
    }

    #[test]
    fn names_are_those_that_lvm_takes() {
        assert!(is_name("web01-0.raw") && is_name("a+b_c"));
        for odd in ["-a", "a b", "a/b", "ä", &"x".repeat(128)] {
            assert!(!is_name(odd), "{odd}");
        }
    }
}
