//! The disks of an agent's host: files in pools, block devices, NBD exports.
//!
//! ```text
//! POOL/vm.raw, POOL/folder/vm.raw   a raw file in a pool's folder
//! POOL/vm.raw                       a logical volume, where the pool is a volume group
//! NAME                              a block device or an NBD export that the agent was started with
//! hot-added:SERIAL                  a disk that was attached to the machine for a peer, if that is allowed
//! ```
//!
//! Beside a file that was written lies `vm.raw.drover-fence` (the highest epoch that took it) and, if blocks are kept,
//! `vm.raw.drover-leaves`; for devices, volumes and exports they lie in the state folder.

mod device;
mod export;
mod file;
mod generation;
mod hot_added;
mod known;
mod leaves;
mod losses;
mod name;
mod volume;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use drover_disk::fence::{Gate, GateError, fence_path, highest_in};
use drover_disk::{Disk, DiskErrorKind, FileDisk, OpenTarget};
use drover_nbd::NbdUri;
use drover_types::some_of;

use crate::error::{Refusal, chain};
use crate::load::HostLoad;
use crate::opening::{Access, Announced, DISK_VERSION, Opened, Pool, Stat, Writer, codec_names};
use crate::serve::{Held, KnownBlocks, Store};

pub use hot_added::{BY_ID, HOT_ADDED, HotAdded};
pub use name::{PlaceName, Room};
pub use volume::{VolumeGroup, Volumes};

pub use known::ENTRIES_MAX;
use known::{ImageBlocks, PoolIndex};
use losses::Losses;

/// What an agent says that it takes, if it serves disks that were attached for a peer.
pub const HOT_ADD: &str = "hot-add";

/// What an agent serves.
#[derive(Default)]
pub struct Places {
    /// Folders of raw files, by name.
    pub pools: BTreeMap<String, PathBuf>,
    /// Volume groups, by the names of their pools at libvirt.
    pub groups: BTreeMap<String, VolumeGroup>,
    /// Block devices, by name.
    pub devices: BTreeMap<String, PathBuf>,
    /// NBD exports, by name.
    pub exports: BTreeMap<String, NbdUri>,
    /// Disks that are attached while the agent runs, if they are served.
    pub hot_added: Option<HotAdded>,
    /// Where fences of devices, volumes and exports lie.
    pub state: PathBuf,
    /// Whether blocks that a pool has already are found by their hashes. Costs a file of leaves beside each image.
    pub keep_leaves: bool,
    /// What pools have, as far as it was asked for.
    pub indexes: Indexes,
}

/// What the pools of an agent have, read when a pool is first written to.
#[derive(Default)]
pub struct Indexes(Mutex<HashMap<String, Arc<PoolIndex>>>);

impl Indexes {
    fn of(&self, pool: &str, folder: &Path) -> Arc<PoolIndex> {
        let mut indexes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.entry(pool.to_string()).or_insert_with(|| Arc::new(PoolIndex::load(folder))).clone()
    }

    fn removed(&self, image: &Path) {
        let indexes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        indexes.values().for_each(|index| index.removed(image));
    }
}

/// Where a disk is.
enum Place<'a> {
    /// A file that may not be there yet.
    File(PathBuf),
    /// A volume that may not be there yet.
    Volume(&'a VolumeGroup, &'a str),
    Device(&'a Path),
    Export(&'a NbdUri),
    HotAdded(&'a HotAdded, &'a str),
}

impl Places {
    fn place<'a>(&'a self, text: &'a str) -> Result<Place<'a>, Refusal> {
        let name = PlaceName::parse(text)?;
        if let Some(serial) = HotAdded::serial(text) {
            let why = "hot-added disks are not served here: drover agent run --allow-hot-added";
            let denied = || Refusal::new(DiskErrorKind::Denied, why);
            return Ok(Place::HotAdded(self.hot_added.as_ref().ok_or_else(denied)?, serial));
        }
        match name {
            PlaceName::File { pool, path } if self.groups.contains_key(pool) => {
                Ok(Place::Volume(&self.groups[pool], path))
            }
            PlaceName::File { pool, path } => Ok(Place::File(name::resolve(self.pool(pool)?, path)?)),
            PlaceName::Named(name) => {
                let device = self.devices.get(name).map(|path| Place::Device(path));
                let export = || self.exports.get(name).map(Place::Export);
                device.or_else(export).ok_or_else(|| {
                    let known =
                        there_are("devices and exports", self.devices.keys().chain(self.exports.keys()));
                    nothing(format!("there is no device or export '{name}'; {known}; a file is POOL/NAME"))
                })
            }
        }
    }

    /// The folder of a name, in a pool or further down, which may not be there yet. Makes nothing.
    ///
    /// # Errors
    /// When there is no such pool, or a part of it that is there is no folder.
    pub fn room(&self, text: &str) -> Result<Room, Refusal> {
        match PlaceName::parse(text)? {
            PlaceName::File { pool, path } => Room::find(self.pool(pool)?, path),
            PlaceName::Named(pool) => Room::of_pool(self.pool(pool)?),
        }
    }

    /// The same where the folder is there.
    ///
    /// # Errors
    /// As [`Places::room`]; `Gone` where it is not there.
    pub fn folder(&self, text: &str) -> Result<PathBuf, Refusal> {
        let room = self.room(text)?;
        match room.is_there() {
            true => Ok(room.path),
            false => Err(nothing(format!("there is no folder {}", room.path.display()))),
        }
    }

    /// Makes folders that are not there, and looks whether all can be written; where one cannot be had, none is left that
    /// it made.
    ///
    /// # Errors
    /// When one cannot be made or written.
    pub fn make(&self, rooms: &[Room]) -> Result<(), Refusal> {
        let mut made = Vec::new();
        let done = rooms.iter().try_for_each(|room| {
            room.make(&mut made)?;
            check_writable(&room.path)
        });
        if done.is_err() {
            // One in which somebody put something meanwhile stays.
            made.iter().rev().for_each(|folder| drop(std::fs::remove_dir(folder)));
        }
        done
    }

    /// The path of an image in a pool, which may not be there yet.
    ///
    /// # Errors
    /// When it is in no pool, nothing can be there, or its folder is not there.
    pub fn image(&self, text: &str) -> Result<PathBuf, Refusal> {
        match self.place(text)? {
            Place::File(path) => Ok(path),
            Place::Volume(..) | Place::Device(_) | Place::Export(_) | Place::HotAdded(..) => {
                Err(no_file(text))
            }
        }
    }

    /// The same before its folder is made; gives that, too. Makes nothing.
    ///
    /// # Errors
    /// When it is in no pool, or nothing can be there.
    pub fn image_to_come(&self, text: &str) -> Result<(PathBuf, Room), Refusal> {
        let PlaceName::File { pool, path } = PlaceName::parse(text)? else { return Err(no_file(text)) };
        let pool = self.pool(pool)?;
        let (room, name) = match path.rsplit_once('/') {
            Some((folder, name)) => (Room::find(pool, folder)?, name),
            None => (Room::of_pool(pool)?, path),
        };
        match room.is_there() {
            true => Ok((name::resolve(pool, path)?, room)),
            false => Ok((room.path.join(name), room)),
        }
    }

    /// Removes an image that still has this tag, with what lies beside it, and the folder it was in if that is empty
    /// then. One that is gone is fine, and another file in its place stays.
    ///
    /// # Errors
    /// When somebody writes it, or it cannot be removed.
    pub fn remove_image(&self, text: &str, tag: &str) -> Result<(), Refusal> {
        let path = match self.image(text) {
            Err(refusal) if refusal.kind == DiskErrorKind::Gone => return Ok(()),
            path => path?,
        };
        // Held until all is gone, so that nobody begins to write it.
        let _gate = Gate::open(&fence_path(&path))
            .map_err(|error| Refusal::new(DiskErrorKind::Transient, chain(&error)))?;
        let stat = file::stat(&path)?;
        if stat.size.is_some() && stat.tag != tag {
            return Ok(());
        }
        // A guest that somebody else started from it holds it.
        let open = |size| FileDisk::open_target(&path, OpenTarget { size, create: false, resume: true });
        let _image = stat.size.map(open).transpose()?;
        for file in [path.clone(), leaves::leaves_path(&path), fence_path(&path)] {
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    let why = format!("removing {}: {error}", file.display());
                    return Err(Refusal::new(DiskErrorKind::of(&error), why));
                }
                _ => {}
            }
        }
        self.indexes.removed(&path);
        path.parent().into_iter().for_each(|folder| self.remove_empty(folder));
        Ok(())
    }

    /// Removes a folder in which nothing is; a pool's own stays.
    pub fn remove_empty(&self, folder: &Path) {
        let is_pool = |pool: &PathBuf| std::fs::canonicalize(pool).is_ok_and(|pool| pool == folder);
        if !self.pools.values().any(is_pool) {
            // One that holds something stays.
            let _ = std::fs::remove_dir(folder);
        }
    }

    fn pool(&self, name: &str) -> Result<&Path, Refusal> {
        if self.groups.contains_key(name) {
            let why = format!("pool '{name}' is a volume group, which has no files and no folders");
            return Err(Refusal::new(DiskErrorKind::Unsupported, why));
        }
        let folder = self.pools.get(name);
        folder.map(PathBuf::as_path).ok_or_else(|| {
            let known = there_are("pools", self.pools.keys().chain(self.groups.keys()));
            nothing(format!("there is no pool '{name}'; {known}"))
        })
    }

    /// The fence of a disk, entered by this run once `open` has shown that it may be written.
    fn fenced(
        &self,
        path: &Path,
        writer: &Writer,
        open: impl FnOnce() -> Result<Held, Refusal>,
    ) -> Result<Held, Refusal> {
        let gate = Gate::open(path).map_err(|error| Refusal::new(DiskErrorKind::Transient, chain(&error)))?;
        if writer.epoch < gate.highest() || writer.epoch == 0 {
            let highest = gate.highest();
            let why = format!("epoch {} is over: epoch {highest} has taken this disk", writer.epoch);
            return Err(Refusal::new(DiskErrorKind::Denied, why));
        }
        let mut held = open()?;
        gate.enter(writer.epoch).map_err(|error| {
            let kind = match error {
                GateError::Superseded(_) => DiskErrorKind::Denied,
                GateError::File(_) => DiskErrorKind::Failed,
            };
            Refusal::new(kind, chain(&error))
        })?;
        held.keep.push(Box::new(gate));
        Ok(held)
    }

    /// Where leaves cannot be kept, blocks are not found, no more.
    fn with_known_blocks(&self, held: Held, disk: &str, path: &Path) -> Held {
        let Ok(PlaceName::File { pool, .. }) = PlaceName::parse(disk) else { return held };
        let Some(folder) = self.pools.get(pool).filter(|_| self.keep_leaves) else { return held };
        let index = self.indexes.of(pool, folder);
        let Held { disk, mut opened, keep, on_loss, .. } = held;
        let known = match ImageBlocks::open(&index, path, opened.size, opened.is_new) {
            Ok(blocks) => Some(Arc::new(blocks) as Arc<dyn KnownBlocks>),
            Err(error) => {
                opened.notes.push(format!("no leaves can be kept beside {}: {error}", path.display()));
                None
            }
        };
        // Also if nothing is known yet: a sibling may be written at the same time.
        if known.is_some() {
            opened.takes.push("offer".to_string());
        }
        Held { disk, opened, known, keep, on_loss }
    }

    fn fence_in_state(&self, tag: &str) -> Result<PathBuf, Refusal> {
        self.in_state(tag, "drover-fence")
    }

    /// A disk of which a flush failed is of another generation when it is opened again: the new opening can be flushed, and what
    /// was lost is lost all the same.
    fn with_losses(&self, held: Held) -> Result<Held, Refusal> {
        let losses = Losses(self.in_state(&held.opened.tag, "drover-lost")?);
        let generation = losses.generation(&held.opened.generation)?;
        let opened = Opened { generation, ..held.opened };
        Ok(Held { opened, on_loss: Some(Box::new(move || losses.add())), ..held })
    }

    /// A file of the state folder that belongs to the disk with this tag.
    fn in_state(&self, tag: &str, ending: &str) -> Result<PathBuf, Refusal> {
        let folder = self.state.join("fences");
        std::fs::create_dir_all(&folder).map_err(|error| {
            Refusal::new(DiskErrorKind::Failed, format!("folder {}: {error}", folder.display()))
        })?;
        let digits = blake3::hash(tag.as_bytes()).to_hex();
        Ok(folder.join(format!("{}.{ending}", &digits[..32])))
    }
}

impl Store for Places {
    fn open(&self, disk: &str, access: &Access) -> Result<Held, Refusal> {
        match (self.place(disk)?, access) {
            (Place::File(path), Access::Read) => file::read(&path),
            (Place::Volume(group, name), Access::Read) => volume::read(group, name),
            (Place::Device(path), Access::Read) => file::read(path),
            (Place::Export(uri), Access::Read) => export::read(uri),
            (Place::HotAdded(disks, serial), Access::Read) => disks.read(serial),
            (Place::HotAdded(..), Access::Write(_)) => {
                Err(Refusal::new(DiskErrorKind::Denied, "hot-added disks are read, never written"))
            }
            (Place::File(path), Access::Write(writer)) => {
                let held = self.fenced(&fence_path(&path), writer, || file::write(&path, writer))?;
                self.with_losses(self.with_known_blocks(held, disk, &path))
            }
            (Place::Volume(group, name), Access::Write(writer)) => {
                let fence = self.fence_in_state(&volume::tag(group, name)?)?;
                self.with_losses(self.fenced(&fence, writer, || volume::write(group, name, writer))?)
            }
            (Place::Device(path), Access::Write(writer)) => {
                let fence = self.fence_in_state(&device::tag(path)?)?;
                self.with_losses(self.fenced(&fence, writer, || device::write(path, writer))?)
            }
            (Place::Export(uri), Access::Write(writer)) => {
                let fence = self.fence_in_state(&uri.place())?;
                self.fenced(&fence, writer, || export::write(uri, writer))
            }
        }
    }

    fn stat(&self, disk: &str) -> Result<Stat, Refusal> {
        let (stat, fence) = match self.place(disk)? {
            Place::File(path) => (file::stat(&path)?, fence_path(&path)),
            Place::Volume(group, name) => {
                let stat = volume::stat(group, name)?;
                let fence = self.fence_in_state(&stat.tag)?;
                (stat, fence)
            }
            Place::Device(path) => (device::stat(path)?, self.fence_in_state(&device::tag(path)?)?),
            Place::Export(uri) => (export::stat(uri)?, self.fence_in_state(&uri.place())?),
            Place::HotAdded(disks, serial) => return disks.stat(serial),
        };
        let epoch = highest_in(&fence).map_err(|error| Refusal::new(DiskErrorKind::Failed, chain(&error)))?;
        Ok(Stat { epoch, ..stat })
    }

    fn announce(&self) -> Announced {
        let pool = |(name, folder): (&String, &PathBuf)| {
            let known = [std::path::absolute(folder).ok(), std::fs::canonicalize(folder).ok()];
            let mut folders: Vec<String> =
                known.into_iter().flatten().map(|folder| folder.display().to_string()).collect();
            folders.dedup();
            let unwritable = drover_disk::is_writable_dir(folder).err().map(|error| error.source.to_string());
            let free_bytes = drover_disk::free_bytes(folder).ok();
            Pool { name: name.clone(), free_bytes, folders, unwritable, has_volumes: false }
        };
        // What a group has free its libvirt tells.
        let group = |(name, group): (&String, &VolumeGroup)| Pool {
            name: name.clone(),
            free_bytes: None,
            folders: vec![group.folder().display().to_string()],
            unwritable: (!rustix::process::geteuid().is_root()).then(|| NO_ROOT.to_string()),
            has_volumes: true,
        };
        Announced {
            version: env!("CARGO_PKG_VERSION").to_string(),
            pools: self.pools.iter().map(pool).chain(self.groups.iter().map(group)).collect(),
            devices: self.devices.keys().chain(self.exports.keys()).cloned().collect(),
            takes: self.hot_added.iter().map(|_| HOT_ADD.to_string()).collect(),
            load: HostLoad::here(),
        }
    }
}

/// What a peer is told of a disk.
fn told(disk: &dyn Disk, tag: String, generation: String) -> Opened {
    let features = disk.features();
    Opened {
        version: DISK_VERSION,
        size: disk.size(),
        bytes_min: disk.limits().bytes_min,
        identity: disk.identity(),
        tag,
        generation,
        fast_zero: features.fast_zero,
        extents: features.extents,
        zeroed: features.zeroed,
        is_new: false,
        reserve_bytes: disk.reserve_bytes(),
        takes: [codec_names(), vec!["hash".to_string()]].concat(),
        notes: Vec::new(),
    }
}

/// Refuses a folder that cannot be written.
pub(crate) fn check_writable(folder: &Path) -> Result<(), Refusal> {
    drover_disk::is_writable_dir(folder).map_err(|error| {
        let why = format!("folder {} cannot be written: {}", folder.display(), error.source);
        Refusal::new(DiskErrorKind::Denied, why)
    })
}

fn no_file(text: &str) -> Refusal {
    Refusal::new(DiskErrorKind::Unsupported, format!("'{text}' is no file in a pool"))
}

/// What there is where a name is not: so many names at most.
fn there_are<'a>(what: &str, names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<&String> = names.collect();
    match names.is_empty() {
        true => format!("there are no {what}"),
        false => format!("{what} that there are: {}", some_of(&names, NAMES_SHOWN_MAX)),
    }
}

const NO_ROOT: &str = "volumes are block devices, and it does not run as root";

/// Names in a refusal.
const NAMES_SHOWN_MAX: usize = 8;

fn nothing(why: String) -> Refusal {
    Refusal::new(DiskErrorKind::Gone, why)
}
