//! Logical volumes of a volume group that is a pool of libvirt. libvirt makes and removes them; a peer writes to the one that it names by its
//! UUID, and to none that has the name by now.
//!
//! A node counts as a volume only if libvirt knows a volume of its name in that pool, and the kernel does not say that the node is something
//! else.

use std::io::{Error, ErrorKind};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use drover_disk::device::{DeviceNumber, device_identity, zero_behind};
use drover_disk::{Disk, DiskErrorKind, FileDisk, LockedFile};

use super::{device, generation, told};
use crate::error::Refusal;
use crate::opening::{DISK_BYTES_MAX, How, Stat, Writer};
use crate::serve::Held;

/// What libvirt knows of the volumes of one pool.
pub trait Volumes: Send + Sync {
    /// The UUID of the volume of this name, as libvirt saw it last, or as it sees it when it looks `anew`; nothing if the pool has none.
    ///
    /// # Errors
    /// When libvirt does not tell.
    fn uuid(&self, name: &str, anew: bool) -> Result<Option<String>, Refusal>;
}

/// A volume group that is a pool of libvirt.
pub struct VolumeGroup {
    folder: PathBuf,
    volumes: Box<dyn Volumes>,
}

/// A volume that is there.
#[derive(Debug)]
struct Found {
    path: PathBuf,
    number: DeviceNumber,
    uuid: String,
}

/// What is at a volume's place.
struct Node {
    number: DeviceNumber,
    is_link: bool,
}

impl VolumeGroup {
    /// The group whose nodes lie in this folder, `/dev/GROUP`.
    pub fn new(folder: PathBuf, volumes: impl Volumes + 'static) -> VolumeGroup {
        VolumeGroup { folder, volumes: Box::new(volumes) }
    }

    /// Where its nodes lie.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    fn find(&self, name: &str, anew: bool) -> Result<Option<Found>, Refusal> {
        if name.contains('/') {
            return Err(denied(format!("'{name}' is no volume: a volume group has no folders")));
        }
        let path = self.folder.join(name);
        let mut found = (self.volumes.uuid(name, anew)?, self.node(&path)?);
        // One that came or went without libvirt, which knows what it saw last.
        if found.0.is_some() != found.1.is_some() && !anew {
            found = (self.volumes.uuid(name, true)?, self.node(&path)?);
        }
        let (at, group) = (path.display(), self.folder.display());
        match found {
            (None, None) => Ok(None),
            (None, Some(_)) => {
                Err(denied(format!("{at} is there, and libvirt knows no such volume of the pool in {group}")))
            }
            (Some(_), None) => {
                let why = format!("libvirt knows a volume '{name}', and {at} is not there: is it active?");
                Err(Refusal::new(DiskErrorKind::Failed, why))
            }
            (Some(uuid), Some(Node { number, is_link })) => {
                let identity = device_identity(Path::new("/"), number);
                if !is_volume(is_link, &identity, &uuid) {
                    return Err(denied(format!("{at} is not the volume {uuid}, but {identity}")));
                }
                Ok(Some(Found { path, number, uuid }))
            }
        }
    }

    fn node(&self, path: &Path) -> Result<Option<Node>, Refusal> {
        let failed =
            |error: Error| Refusal::new(DiskErrorKind::Failed, format!("{}: {error}", path.display()));
        match std::fs::symlink_metadata(&self.folder) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => return Err(denied(format!("{} is no folder", self.folder.display()))),
            // A group without volumes has none.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        let meta = match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            meta => meta.map_err(failed)?,
        };
        let is_link = meta.is_symlink();
        let meta = if is_link { std::fs::metadata(path).map_err(failed)? } else { meta };
        if !meta.file_type().is_block_device() {
            return Err(denied(format!("{} is no block device", path.display())));
        }
        Ok(Some(Node { number: DeviceNumber::of(meta.rdev()), is_link }))
    }

    fn there(&self, name: &str, anew: bool) -> Result<Found, Refusal> {
        let gone = || Refusal::new(DiskErrorKind::Gone, format!("there is no volume '{name}'"));
        self.find(name, anew)?.ok_or_else(gone)
    }
}

impl Found {
    /// What tells it from a later one of its name.
    fn tag(&self) -> String {
        format!("volume {}", self.uuid)
    }

    fn generation(&self) -> String {
        format!("{} {}", generation::of_device(), self.tag())
    }

    fn check_is(&self, wanted: &str) -> Result<(), Refusal> {
        match self.tag() == wanted {
            true => Ok(()),
            false => Err(denied(format!("{} is another volume by now: {}", self.path.display(), self.tag()))),
        }
    }
}

/// Whether a node, of which the kernel tells this, is the volume with this UUID. What udev made is a link to a device of the device mapper,
/// which has `LVM-`, the group's UUID and the volume's, without hyphens. Source: LVM2, `dm_build_dm_uuid`.
fn is_volume(is_link: bool, identity: &str, uuid: &str) -> bool {
    let uuid = uuid.replace('-', "");
    match identity.strip_prefix("block dm/uuid=") {
        _ if uuid.is_empty() => false,
        Some(mapped) => mapped.strip_prefix("LVM-").is_some_and(|uuids| uuids.ends_with(&uuid)),
        None => !is_link,
    }
}

pub(super) fn tag(group: &VolumeGroup, name: &str) -> Result<String, Refusal> {
    group.there(name, false).map(|found| found.tag())
}

pub(super) fn read(group: &VolumeGroup, name: &str) -> Result<Held, Refusal> {
    let found = group.there(name, false)?;
    let disk = FileDisk::open_for_verify(&found.path)?;
    let opened = told(&disk, found.tag(), found.generation());
    Ok(Held::new(disk, opened))
}

pub(super) fn write(group: &VolumeGroup, name: &str, writer: &Writer) -> Result<Held, Refusal> {
    let Some(wanted) = &writer.volume else {
        return Err(denied(format!("'{name}' is a logical volume: plans write to those that they had made")));
    };
    if writer.size > DISK_BYTES_MAX {
        return Err(Refusal::new(DiskErrorKind::Unsupported, "no disk has more than 1 PiB"));
    }
    let found = group.there(name, false)?;
    found.check_is(wanted)?;
    device::check_unused(&found.path)?;
    let file = LockedFile::open(&found.path)?;
    // Which one it is counts now that it is open: LVM removes none that is.
    let found = group.there(name, true)?;
    found.check_is(wanted)?;
    if DeviceNumber::of(file.metadata()?.rdev()) != found.number {
        return Err(denied(format!("{} led to another device just now", found.path.display())));
    }
    if writer.how != How::Resume {
        // What an older volume left there is no business of the guest.
        zero_behind(file.file(), writer.size).map_err(|error| {
            Refusal::new(DiskErrorKind::of(&error), format!("writing {}: {error}", found.path.display()))
        })?;
    }
    let disk = file.into_disk(writer.size)?;
    let opened = told(&disk, found.tag(), found.generation());
    Ok(Held::new(disk, opened))
}

/// What it holds tells nothing: a new one holds what was in its place before.
pub(super) fn stat(group: &VolumeGroup, name: &str) -> Result<Stat, Refusal> {
    let Some(found) = group.find(name, false)? else {
        return Ok(Stat { size: None, tag: String::new(), holds_nothing: true, allocated: None, epoch: 0 });
    };
    let size = FileDisk::open_source(&found.path)?.size();
    Ok(Stat { size: Some(size), tag: found.tag(), holds_nothing: false, allocated: Some(size), epoch: 0 })
}

fn denied(why: String) -> Refusal {
    Refusal::new(DiskErrorKind::Denied, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What libvirt saw last, and what it sees when it looks anew.
    struct Known([Option<&'static str>; 2]);

    impl Volumes for Known {
        fn uuid(&self, _: &str, anew: bool) -> Result<Option<String>, Refusal> {
            Ok(self.0[usize::from(anew)].map(str::to_string))
        }
    }

    fn group(folder: &Path, known: [Option<&'static str>; 2]) -> VolumeGroup {
        VolumeGroup::new(folder.to_path_buf(), Known(known))
    }

    #[test]
    fn a_node_is_the_volume_that_the_kernel_says() {
        let (group, uuid) = ("Yb0fVs1sBvJbTgOqpZn4QbCDyzLd0tUq", "3QfXpV-xk1d-Zt2o-Jw8r-eMmC-5uXa-S0nBhE");
        let mapped = format!("block dm/uuid=LVM-{group}{}", uuid.replace('-', ""));
        assert!(is_volume(true, &mapped, uuid) && is_volume(false, &mapped, uuid));
        for (is_link, identity) in [
            (true, "block wwid=naa.5000".to_string()),
            (true, "block number=8:0".to_string()),
            (true, format!("{mapped} partition=1")),
            (false, format!("{mapped}-cow")),
            (false, format!("block dm/uuid=CRYPT-{}", uuid.replace('-', ""))),
            (false, mapped.replace("3Qf", "4Qf")),
        ] {
            assert!(!is_volume(is_link, &identity, uuid), "{identity}");
        }
        // Somebody made the node himself, and the kernel knows of no mapping.
        assert!(is_volume(false, "block loop/backing_file=/a", uuid));
        assert!(!is_volume(false, "block loop/backing_file=/a", "") && !is_volume(true, &mapped, ""));
    }

    #[test]
    fn what_is_no_volume_of_the_pool_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        std::fs::write(at.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(at.join("file"), at.join("link")).unwrap();
        std::os::unix::fs::symlink("/dev/null", at.join("null")).unwrap();
        std::os::unix::fs::symlink(at.join("nowhere"), at.join("dangling")).unwrap();
        std::fs::create_dir(at.join("folder")).unwrap();
        for known in [[Some("a"); 2], [None; 2]] {
            let group = group(at, known);
            for name in ["file", "link", "null", "dangling", "folder", "folder/a", "../a"] {
                assert!(group.find(name, false).is_err(), "{name}");
            }
        }
        std::os::unix::fs::symlink(at, at.join("group")).unwrap();
        let refused = group(&at.join("group"), [None; 2]).find("a", false).unwrap_err();
        assert!(refused.why.contains("is no folder"), "{refused}");
    }

    #[test]
    fn what_libvirt_saw_last_counts_only_as_long_as_it_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let stat = |known| stat(&group(folder.path(), known), "a").map(|stat| stat.size);
        assert_eq!(stat([None; 2]), Ok(None));
        assert_eq!(stat([Some("a"), None]), Ok(None), "removed without libvirt");
        assert!(stat([Some("a"); 2]).unwrap_err().why.contains("is it active?"));
        let none = group(&folder.path().join("none"), [None; 2]);
        assert_eq!(super::stat(&none, "a").unwrap().size, None, "a group without volumes has no folder");
    }

    #[test]
    fn who_does_not_name_the_volume_does_not_write_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let group = group(folder.path(), [Some("a"); 2]);
        let writer =
            Writer { size: 1, how: How::Force, run: String::new(), epoch: 1, attempt: 0, volume: None };
        let refused = write(&group, "a", &writer).err().unwrap();
        assert!(refused.kind == DiskErrorKind::Denied && refused.why.contains("logical volume"), "{refused}");
    }
}
