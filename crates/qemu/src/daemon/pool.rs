use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{Daemon, RbdPool, parsed};
use crate::child::private_folder;
use crate::error::{QemuError, QemuErrorKind};
use crate::spec::ImageFormat;
use crate::xml::Xml;

/// A volume that is copied or preallocated takes minutes; a VM that is off does not wait longer.
const MAKING_TIME_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(200);
/// libvirt's words while a volume of a pool is being made.
const BEING_MADE: &str = "asynchronous jobs running";
/// What it says of an image of Ceph that somebody has open, or had when he died. It tells no reason that can be relied on (11.3).
const WATCHED: &str = "failed to remove volume";
/// Ceph forgets a client that died after 30 s.
const WATCHED_TIME_MAX: Duration = Duration::from_secs(45);
/// What it says of an image of Ceph that was removed without it: it knows the name until it looks again.
const UNOPENED: &str = "failed to open the RBD image";
/// Its words for a volume that a pool does not have, by no name, key or path.
const NO_VOLUME: &str = "no storage vol with matching";

/// A storage pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// What its volumes are.
    pub kind: PoolKind,
    /// Whether it is active.
    pub is_active: bool,
    /// Where its volumes lie on the daemon's host; empty if it does not say.
    pub path: PathBuf,
    /// The server and folder of a network file system that it is, or the pool of Ceph, by which pools of several hosts are known for one.
    pub source: Option<String>,
    /// Free bytes, as the daemon last saw it; of LUNs, which are as large as they are, all that there can be.
    pub available_bytes: u64,
}

/// What the volumes of a pool are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// Files in a folder (`dir`, `fs`, `netfs`).
    Files,
    /// Logical volumes of LVM.
    Logical,
    /// Images of a pool of Ceph.
    Rbd(RbdPool),
    /// LUNs that somebody made, as block devices of the daemon's host (`iscsi`, `scsi`, `mpath`).
    Luns,
    /// Something else, by libvirt's name for it.
    Other(String),
}

/// A volume that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Where the daemon's host has it.
    pub path: PathBuf,
    /// What tells it from others, and from a later one of its name where its pool has such a thing (the UUID of a logical volume).
    pub key: String,
    /// Bytes that a guest sees; 0 if the daemon does not say.
    pub bytes: u64,
    /// Bytes that it takes, as far as the daemon knows.
    pub allocated_bytes: u64,
}

/// A volume to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewVolume {
    /// Its name.
    pub name: String,
    /// Bytes that a guest sees.
    pub bytes: u64,
    /// Its format.
    pub format: ImageFormat,
    /// Whether it takes all its bytes at once. A logical volume that does not would be a snapshot of nothing.
    pub is_thick: bool,
}

impl Pool {
    fn read(xml: &str, is_active: bool) -> Result<Pool, QemuError> {
        let document = parsed(xml, "a storage pool's XML")?;
        let root = document.root_element();
        let child = |name: &str| root.children().find(|node| node.has_tag_name(name));
        let path = child("target")
            .and_then(|target| target.children().find(|node| node.has_tag_name("path")))
            .and_then(|path| path.text());
        let source = child("source").filter(|_| root.attribute("type") == Some("netfs")).and_then(|source| {
            let of = |tag: &str, name: &str| {
                source.children().find(|node| node.has_tag_name(tag)).and_then(|node| node.attribute(name))
            };
            Some(format!("{}:{}", of("host", "name")?, of("dir", "path")?))
        });
        let kind = match root.attribute("type").unwrap_or_default() {
            "dir" | "fs" | "netfs" => PoolKind::Files,
            "logical" => PoolKind::Logical,
            "rbd" => match child("source").and_then(RbdPool::read) {
                Some(pool) => PoolKind::Rbd(pool),
                None => PoolKind::Other("rbd".into()),
            },
            "iscsi" | "scsi" | "mpath" => PoolKind::Luns,
            other => PoolKind::Other(other.to_string()),
        };
        let source = match &kind {
            PoolKind::Rbd(pool) => Some(pool.place()),
            PoolKind::Files | PoolKind::Logical | PoolKind::Luns | PoolKind::Other(_) => source,
        };
        let bytes = child("available").and_then(|node| node.text()).and_then(|text| text.trim().parse().ok());
        Ok(Pool {
            name: child("name").and_then(|node| node.text()).unwrap_or_default().to_string(),
            available_bytes: match kind {
                PoolKind::Luns => u64::MAX,
                _ => bytes.unwrap_or_default(),
            },
            kind,
            is_active,
            source,
            path: path.unwrap_or_default().into(),
        })
    }
}

impl NewVolume {
    fn xml(&self) -> String {
        let mut xml = Xml::new();
        xml.open("volume", &[]);
        xml.text("name", &[], &self.name);
        xml.text("capacity", &[("unit", "bytes")], &self.bytes.to_string());
        let allocation = if self.is_thick { self.bytes } else { 0 };
        xml.text("allocation", &[("unit", "bytes")], &allocation.to_string());
        xml.open("target", &[]);
        xml.leaf("format", &[("type", self.format.as_str())]);
        if self.format == ImageFormat::Qcow2 {
            // Without it libvirt makes an image of version 2.
            xml.text("compat", &[], "1.1");
        }
        xml.close();
        xml.close();
        xml.finish()
    }
}

impl Daemon {
    /// A pool by name, as the daemon sees it now; nothing if it has none of that name.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn pool(&self, name: &str) -> Result<Option<Pool>, QemuError> {
        if !self.pools()?.iter().any(|pool| pool == name) {
            return Ok(None);
        }
        let is_active = self.virsh.lines(&["pool-list", "--name"])?.iter().any(|pool| pool == name);
        Pool::read(&self.virsh.ask(&["pool-dumpxml", "--pool", name])?, is_active).map(Some)
    }

    /// The names of all pools.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn pools(&self) -> Result<Vec<String>, QemuError> {
        self.virsh.lines(&["pool-list", "--all", "--name"])
    }

    /// Has the daemon look again at what is in a pool. It refuses while a volume is being made there, which is waited for.
    ///
    /// # Errors
    /// If it cannot.
    pub fn refresh(&self, pool: &str) -> Result<(), QemuError> {
        let until = Instant::now() + MAKING_TIME_MAX;
        loop {
            match self.virsh.ask(&["pool-refresh", "--pool", pool]) {
                Err(error) if error.chain().contains(BEING_MADE) && Instant::now() < until => {
                    std::thread::sleep(LOOK);
                }
                Err(error) if error.chain().contains(BEING_MADE) => return Err(error),
                Ok(_) => return Ok(()),
                // It makes a pool inactive that it cannot look at (11.3), as one of Ceph whose monitors do not answer.
                Err(error) => {
                    let what = format!(
                        "looking at pool {pool}, which libvirt makes inactive if it cannot (`virsh pool-start {pool}`, once it can)"
                    );
                    return Err(QemuError::new(error.kind, what).because(error));
                }
            }
        }
    }

    /// Where the volumes of a pool of files lie, as the daemon saw them last.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn files(&self, pool: &Pool) -> Result<Vec<PathBuf>, QemuError> {
        let lines = self.virsh.lines(&["vol-list", "--pool", &pool.name])?;
        let folder = format!(" {}/", pool.path.display());
        // Each after its name, which may have spaces.
        Ok(lines.iter().filter_map(|line| Some(line[line.find(&folder)? + 1..].into())).collect())
    }

    /// The names of the LUNs of a pool, as the daemon saw them last.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn luns(&self, pool: &str) -> Result<Vec<String>, QemuError> {
        let lines = self.virsh.lines(&["vol-list", "--pool", pool])?;
        // Each before its path, below a heading; they have no spaces.
        let name = |line: &String| {
            let (name, path) = line.split_once(' ')?;
            path.trim_start().starts_with('/').then(|| name.to_string())
        };
        Ok(lines.iter().filter_map(name).collect())
    }

    /// A volume of a pool, as the daemon saw it last; nothing if there is none of that name.
    ///
    /// # Errors
    /// If it cannot be asked.
    pub fn volume(&self, pool: &str, name: &str) -> Result<Option<Volume>, QemuError> {
        let ask = || self.virsh.ask(&["vol-dumpxml", "--pool", pool, "--vol", name]);
        let told = match ask() {
            Err(error) if error.chain().contains(UNOPENED) => {
                self.refresh(pool)?;
                ask()
            }
            told => told,
        };
        match told {
            Ok(xml) => {
                let document = parsed(&xml, "a volume's XML")?;
                let root = document.root_element();
                let told = |name: &str| root.children().find(|node| node.has_tag_name(name))?.text();
                let bytes =
                    |name: &str| told(name).and_then(|text| text.trim().parse().ok()).unwrap_or_default();
                let target = root.children().find(|node| node.has_tag_name("target"));
                let path = target.and_then(|node| node.children().find(|it| it.has_tag_name("path"))?.text());
                Ok(Some(Volume {
                    name: told("name").unwrap_or_default().to_string(),
                    path: path.unwrap_or_default().into(),
                    key: told("key").unwrap_or_default().to_string(),
                    bytes: bytes("capacity"),
                    allocated_bytes: bytes("allocation"),
                }))
            }
            Err(error) if error.chain().contains(NO_VOLUME) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a volume. Ceph refuses that of an image whose last user died, until it has forgotten that one, which is waited for.
    ///
    /// # Errors
    /// If the daemon refuses, in its words.
    pub fn remove_volume(&self, pool: &str, name: &str) -> Result<(), QemuError> {
        self.remove_within(pool, name, WATCHED_TIME_MAX)
    }

    fn remove_within(&self, pool: &str, name: &str, time_max: Duration) -> Result<(), QemuError> {
        let until = Instant::now() + time_max;
        loop {
            match self.virsh.ask(&["vol-delete", "--pool", pool, "--vol", name]) {
                Err(error) if error.chain().contains(WATCHED) && Instant::now() < until => {
                    std::thread::sleep(LOOK);
                }
                Err(error) if error.chain().contains(WATCHED) => {
                    let what =
                        format!("{name} is open somewhere, or has snapshots (`rbd status`, `rbd snap ls`)");
                    return Err(QemuError::new(error.kind, what).because(error));
                }
                done => return done.map(drop),
            }
        }
    }

    /// Makes a volume; libvirt refuses a name that is taken.
    ///
    /// # Errors
    /// If the daemon refuses, in its words.
    pub fn make_volume(&self, pool: &str, volume: &NewVolume) -> Result<(), QemuError> {
        let failed = |error| QemuError::io("writing a volume's XML for virsh", error);
        let folder = private_folder().map_err(failed)?;
        let file = folder.path().join("volume.xml");
        std::fs::write(&file, volume.xml()).map_err(failed)?;
        let made = self.virsh.ask(&["vol-create", "--pool", pool, "--file", &file.to_string_lossy()]);
        made.map(drop).map_err(|error| match error.chain() {
            words if words.contains("No space left") || words.contains("insufficient free space") => {
                QemuError { kind: QemuErrorKind::OutOfSpace, ..error }
            }
            _ => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Virsh;

    #[test]
    fn an_image_that_was_removed_without_libvirt_is_not_there_and_a_pool_that_cannot_be_looked_at_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let daemon = |refresh: &str| {
            let program = folder.path().join("virsh");
            let script = format!(
                "here=$(dirname \"$0\")\ncase \" $* \" in\n\
                 *' pool-refresh '*) {refresh} ;;\n\
                 *) if [ -e \"$here/known\" ]; then echo \"error: failed to open the RBD image 'a': No such file or directory\" >&2\n\
                 else echo \"error: Storage volume not found: no storage vol with matching path 'a'\" >&2; fi; exit 1 ;;\nesac"
            );
            drover_lab::put_script(&program, &script).unwrap();
            Daemon::of(Virsh::new("qemu:///system").by(program.display().to_string()))
        };
        let known = folder.path().join("known");
        std::fs::write(&known, "").unwrap();
        let away = daemon("echo 'error: failed to connect to the RADOS monitor on: mon1' >&2; exit 1");
        let words = away.volume("ceph", "a").unwrap_err().chain();
        assert!(words.contains("virsh pool-start ceph") && words.contains("RADOS monitor"), "{words}");
        assert!(daemon("rm \"$here/known\"").volume("ceph", "a").unwrap().is_none());
        assert!(!known.exists());
    }

    #[test]
    fn an_image_of_ceph_that_is_in_use_or_has_snapshots_is_told_as_that() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("virsh");
        // Its words with a snapshot (11.3).
        let script = "echo \"error: failed to remove volume 'vms/a': No such file or directory\" >&2; exit 1";
        drover_lab::put_script(&program, script).unwrap();
        let daemon = Daemon::of(Virsh::new("qemu:///system").by(program.display().to_string()));
        let words = daemon.remove_within("ceph", "a", Duration::ZERO).unwrap_err().chain();
        assert!(words.contains("has snapshots") && words.contains("'vms/a'"), "{words}");
    }

    #[test]
    fn a_pool_is_what_its_type_says() {
        let xml = "<pool type='dir'>\n<name>images</name><available unit='bytes'>218</available>\n\
                   <target>\n<path>/srv/images</path></target></pool>";
        let pool = Pool::read(xml, true).unwrap();
        assert_eq!((pool.kind, pool.available_bytes), (PoolKind::Files, 218));
        assert_eq!((pool.name.as_str(), pool.path), ("images", PathBuf::from("/srv/images")));
        let kind = |name: &str| Pool::read(&xml.replace("dir", name), false).unwrap().kind;
        assert_eq!((kind("logical"), kind("disk")), (PoolKind::Logical, PoolKind::Other("disk".into())));
        for it in ["iscsi", "scsi", "mpath"] {
            assert_eq!(kind(it), PoolKind::Luns, "{it}");
        }
        assert_eq!(kind("iscsi-direct"), PoolKind::Other("iscsi-direct".into()), "no block devices");
        let rbd =
            xml.replace("'dir'", "'rbd'").replace("<target>", "<source><name>vms</name></source><target>");
        let rbd = Pool::read(&rbd, true).unwrap();
        assert_eq!(rbd.source.as_deref(), Some("rbd::vms"));
        assert!(matches!(rbd.kind, PoolKind::Rbd(pool) if pool.name == "vms"));
        assert_eq!(kind("rbd"), PoolKind::Other("rbd".into()), "of no pool of Ceph");
        assert_eq!(pool.source, None);
        let shared = xml
            .replace("'dir'", "'netfs'")
            .replace("<target>", "<source><host name='nas'/><dir path='/vms'/></source><target>");
        assert_eq!(Pool::read(&shared, true).unwrap().source.as_deref(), Some("nas:/vms"));
        assert!(Pool::read("<pool", true).is_err());
    }

    #[test]
    fn a_new_qcow2_volume_is_of_version_3() {
        let volume = NewVolume { name: "a<b".into(), bytes: 7, format: ImageFormat::Qcow2, is_thick: false };
        assert!(volume.xml().contains("<compat>1.1</compat>") && volume.xml().contains("a&lt;b"));
        let thick = NewVolume { is_thick: true, ..volume.clone() };
        assert!(
            volume.xml().contains("<allocation unit='bytes'>0<")
                && thick.xml().contains("<allocation unit='bytes'>7<")
        );
    }
}
