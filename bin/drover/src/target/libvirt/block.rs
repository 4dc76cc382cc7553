//! Volumes that are block devices of this host, as those of LVM are: libvirt makes and removes them, drover writes them.
//!
//! What such a volume holds tells nothing, since a new one holds what was in its place before. Whose it is goes by its key at the
//! daemon (of LVM: its UUID), and its journal lies in the VM's folder among drover's state.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drover_disk::{Disk, FileDisk, LockedFile};
use drover_engine::{Cause, OpenedTarget, ProviderError, TargetPlace};
use drover_mover::{Earlier, earlier, why_not_of};
use drover_plan::{ImageFormat, PlannedDisk, PlannedVm};
use drover_qemu::VmFolder;
use drover_qemu::daemon::{Daemon, Volume};

use super::{made, make_volume, volume_name};
use crate::image::qemu_error;
use crate::target::{all_removed, here, io_error};

/// Bytes that are written at once behind the end of a disk.
const ZEROS_BYTES: u64 = 64 << 10;

/// Whether the volume of a disk is a block device, as its daemon told where its pool is: `/dev/GROUP`.
pub fn is_block(disk: &PlannedDisk) -> bool {
    disk.pool.is_some() && disk.base.parent() == Some(Path::new("/dev")) && disk.path.starts_with(&disk.base)
}

/// Whether a volume may have this name. Source: lvm(8), "Valid names".
pub fn is_name(name: &str) -> bool {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "+_.-".contains(c);
    name.len() <= 127 && !name.starts_with('-') && name.chars().all(is_fine)
}

/// Volumes of one VM at a daemon of this host.
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

impl Blocks<'_> {
    fn disks(&self) -> impl Iterator<Item = &PlannedDisk> {
        self.vm.disks.iter().filter(|disk| is_block(disk))
    }

    /// Where the journal of a disk's copy lies.
    pub fn journal(&self, disk: &PlannedDisk) -> PathBuf {
        self.vm.folder.join(format!("volume-{}.drover-journal", disk.index))
    }

    fn volume(&self, disk: &PlannedDisk) -> Result<Option<Volume>, ProviderError> {
        let pool = disk.pool.as_deref().unwrap_or_default();
        // Somebody may have made or removed it by LVM's own programs.
        let volume = self.daemon.refresh(pool).and_then(|()| self.daemon.volume(pool, &volume_name(disk)));
        volume.map_err(qemu_error)
    }

    fn found(&self, disk: &PlannedDisk) -> Result<Found, ProviderError> {
        let Some(volume) = self.volume(disk)? else { return Ok(Found::Nothing) };
        if self.is_begun(disk, &volume)? || made::is_tag(self.vm, disk, &tag_of(&volume))? {
            return Ok(Found::Ours(volume));
        }
        let path = disk.path.display();
        Ok(Found::Others(format!("{path} is there already, and this plan did not make it")))
    }

    /// Whether the journal of a disk is that of this volume; refused if it is another plan's.
    fn is_begun(&self, disk: &PlannedDisk, volume: &Volume) -> Result<bool, ProviderError> {
        let Earlier::Half(found) = earlier(&self.journal(disk), &tag_of(volume), None) else {
            return Ok(false);
        };
        match why_not_of(&found.header, &self.vm.owner_of(self.plan, disk)) {
            None => Ok(true),
            Some(why) => {
                let what = format!("{} may not be overwritten: {why}", disk.path.display());
                Err(ProviderError::new(Cause::Target, what).advise(ANOTHER))
            }
        }
    }

    /// Refuses what is at a disk's place if it is not this plan's.
    pub fn check(&self, disk: &PlannedDisk) -> Result<(), ProviderError> {
        match self.found(disk)? {
            Found::Nothing | Found::Ours(_) => Ok(()),
            Found::Others(why) => Err(ProviderError::new(Cause::Target, why).advise(ANOTHER)),
        }
    }

    /// Whether there is a volume.
    pub fn has_image(&self, disk: &PlannedDisk) -> Result<bool, ProviderError> {
        Ok(self.volume(disk)?.is_some())
    }

    /// What tells the volume of a disk from others, and from a later one of its name.
    pub fn identity(&self, disk: &PlannedDisk) -> Result<String, ProviderError> {
        match self.volume(disk)? {
            Some(volume) => Ok(tag_of(&volume)),
            None => {
                let what = format!("{} is not there any more", disk.path.display());
                Err(ProviderError::new(Cause::Target, what).advise("see who removed it"))
            }
        }
    }

    /// Opens the volume of a disk, made by the daemon if it is not there.
    pub fn open_disk(&self, disk: &PlannedDisk, size: u64) -> Result<OpenedTarget, ProviderError> {
        let volume = match self.found(disk)? {
            Found::Ours(volume) => volume,
            Found::Others(why) => return Err(ProviderError::new(Cause::Target, why).advise(ANOTHER)),
            Found::Nothing => self.make(disk, size)?,
        };
        let is_begun = self.is_begun(disk, &volume)?;
        if !is_begun {
            // All of it is copied, over what an earlier conversion may have written.
            drover_qemu::forget_conversion(&VmFolder::new(&self.vm.folder)).map_err(qemu_error)?;
            // What an older volume left there is no business of the guest.
            zero_behind(&disk.path, size).map_err(|error| io_error("writing", &disk.path, error))?;
        }
        let opened = LockedFile::open(&disk.path).and_then(|file| file.into_disk(size));
        let opened = opened.map_err(|error| {
            ProviderError::new(Cause::Target, format!("opening {}", disk.path.display())).because(error)
        })?;
        // Again, now that it is locked.
        self.check(disk)?;
        let tag = tag_of(&volume);
        Ok(OpenedTarget { disk: Arc::new(opened), tag, is_new: !is_begun, zeroed: false, link: None })
    }

    fn make(&self, disk: &PlannedDisk, size: u64) -> Result<Volume, ProviderError> {
        make_volume(self.daemon, disk, ImageFormat::Raw, size)?;
        let path = disk.path.display();
        let is_device = std::fs::metadata(&disk.path).is_ok_and(|meta| meta.file_type().is_block_device());
        let made = self.volume(disk)?;
        if let (Some(volume), true) = (made, is_device) {
            made::remember_tag(self.vm, disk, &tag_of(&volume))?;
            return Ok(volume);
        }
        let what = format!("{path} was made at {}, and is no device of this host", self.daemon.uri());
        let error = ProviderError::new(Cause::Target, what).advise("run drover on the daemon's host");
        Err(match self.remove_volume(disk) {
            Ok(()) => error,
            Err(left) => error.because(left),
        })
    }

    fn remove_volume(&self, disk: &PlannedDisk) -> Result<(), ProviderError> {
        let pool = disk.pool.as_deref().unwrap_or_default();
        self.daemon.remove_volume(pool, &volume_name(disk)).map_err(qemu_error)
    }

    /// Opens the volume of a disk for reading.
    pub fn open_for_verify(&self, disk: &PlannedDisk) -> Result<Arc<dyn Disk>, ProviderError> {
        let opened = FileDisk::open_for_verify(&disk.path);
        opened.map(|disk| Arc::new(disk) as _).map_err(|error| {
            ProviderError::new(Cause::Target, format!("reading {} back", disk.path.display())).because(error)
        })
    }

    /// Where the volumes take room: all of it, as soon as they are made.
    pub fn places(&self, is_left: bool) -> Result<Vec<TargetPlace>, ProviderError> {
        let mut places: Vec<TargetPlace> = Vec::new();
        for (number, disk) in self.vm.disks.iter().enumerate().filter(|(_, disk)| is_block(disk)) {
            let pool = disk.pool.as_deref().unwrap_or_default();
            let key = format!("{PLACE}{}-{pool}", self.daemon.uri());
            let needs = if is_left && taken_by(disk) > 0 { 0 } else { disk.disk.capacity_bytes };
            match places.iter_mut().find(|place| place.key == key) {
                Some(place) => drop(place.needs.insert(number, needs)),
                None => places.push(TargetPlace {
                    key,
                    label: format!("pool {pool}"),
                    at: PathBuf::from(pool),
                    needs: [(number, needs)].into(),
                }),
            }
        }
        Ok(places)
    }

    /// Removes what this plan made, and tells what stays.
    pub fn remove(&self) -> Result<(), ProviderError> {
        let mut left = Vec::new();
        for disk in self.disks() {
            let journal = self.journal(disk);
            match self.found(disk)? {
                Found::Ours(_) => {
                    // Whoever writes to it holds its lock.
                    let locked = LockedFile::open(&disk.path).map(drop);
                    locked.map_err(|error| {
                        let what = format!("locking {} to remove it", disk.path.display());
                        let error = ProviderError::new(Cause::Target, what).because(error);
                        error.advise("see who uses it, then the same command again")
                    })?;
                    self.remove_volume(disk)?;
                }
                Found::Others(why) if journal.exists() => left.push(format!("it stays: {why}")),
                Found::Others(_) | Found::Nothing => {}
            }
            here::remove(&journal)?;
        }
        all_removed(&left)
    }
}

/// Places of block volumes are known by this.
const PLACE: &str = "pool-";

/// Free bytes of a place, if it is one of [`Blocks::places`].
pub fn free_bytes(daemon: &Daemon, place: &TargetPlace) -> Option<Result<Option<u64>, ProviderError>> {
    let pool = place.key.starts_with(PLACE).then(|| place.at.to_string_lossy())?;
    let seen = daemon.refresh(&pool).and_then(|()| daemon.pool(&pool));
    Some(seen.map(|pool| pool.map(|pool| pool.available_bytes)).map_err(qemu_error))
}

/// Bytes of the device of a disk; 0 if there is none.
pub fn taken_by(disk: &PlannedDisk) -> u64 {
    File::open(&disk.path).and_then(|mut device| device.seek(SeekFrom::End(0))).unwrap_or_default()
}

const ANOTHER: &str = "remove it if it may go (`virsh vol-delete`), or choose another pool or target_name";

fn tag_of(volume: &Volume) -> String {
    format!("volume {}", volume.key)
}

/// Overwrites what a device has behind a disk: volumes are whole extents.
fn zero_behind(device: &Path, size: u64) -> io::Result<()> {
    let mut file = File::options().read(true).write(true).open(device)?;
    let (mut at, end) = (size, file.seek(SeekFrom::End(0))?);
    let zeros = vec![0; ZEROS_BYTES as usize];
    while at < end {
        let bytes = (end - at).min(ZEROS_BYTES);
        file.write_all_at(&zeros[..bytes as usize], at)?;
        at += bytes;
    }
    file.sync_data()
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
        assert!(!is_block(Some("dev"), "/srv/dev", "/dev/a-0.raw"), "another host's");
    }

    #[test]
    fn names_are_those_that_lvm_takes() {
        assert!(is_name("web01-0.raw") && is_name("a+b_c"));
        for odd in ["-a", "a b", "a/b", "ä", &"x".repeat(128)] {
            assert!(!is_name(odd), "{odd}");
        }
    }

    #[test]
    fn what_lies_behind_a_disk_is_zeroed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("volume");
        std::fs::write(&file, vec![7; 200_000]).unwrap();
        zero_behind(&file, 512).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        assert!(bytes[..512].iter().all(|byte| *byte == 7) && bytes[512..].iter().all(|byte| *byte == 0));
        assert_eq!(bytes.len(), 200_000);
    }
}
