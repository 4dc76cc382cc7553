//! Disks to be written, and which of them are refused.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drover_copy::Replay;
use drover_disk::device::{DeviceNumber, content_on, device_identity, signatures_on};
use drover_disk::{Disk, FileDisk, OpenTarget};
use drover_engine::chain;
use drover_mover::{file_tag, journal_path};
use drover_nbd::{NbdDisk, NbdOptions, NbdUri};
use drover_qcow2::Qcow2Disk;

use super::agent;
use super::guard::{self, Earlier};
use super::place::{Place, place};
use super::source::only_read;
use super::{End, TargetEnd, format_of};
use crate::cli::{CopyArgs, Format};
use crate::exit::{Exit, Failure, disk_exit};
use crate::qcow2;
use crate::state::state_folder;

/// Opens the target of a copy of `source`; `None` for `null:`, which only reads.
pub fn open_target(args: &CopyArgs, source: &dyn Disk) -> Result<Option<TargetEnd>, Failure> {
    let opened = open_place(args, source)?;
    // Only now are both ends open, so that neither can pass for a journal.
    if let Some(journal) = opened.as_ref().and_then(|target| target.journal.as_deref()) {
        guard::check_journal(journal)?;
    }
    Ok(opened)
}

fn open_place(args: &CopyArgs, source: &dyn Disk) -> Result<Option<TargetEnd>, Failure> {
    match place(&args.target)? {
        Place::Null => Ok(None),
        Place::Nbd(uri) => {
            if matches!(place(&args.source), Ok(Place::Nbd(from)) if from == uri) {
                return Err(Failure::new(Exit::Usage, format!("{} is both source and target", args.target)));
            }
            let target = open_nbd_target(&uri)?;
            look_before_going_on(target, args, source).map(Some)
        }
        Place::Agent(to) => {
            if matches!(place(&args.source), Ok(Place::Agent(from)) if from == to) {
                return Err(Failure::new(Exit::Usage, format!("{} is both source and target", args.target)));
            }
            check_raw(args)?;
            agent::open_target(args, source, &to).map(Some)
        }
        Place::Path(path) => Wanted { args, source }.open(&path).map(Some),
        Place::Web(_) | Place::Ssh(_) | Place::Ova(..) | Place::Vsphere { .. } | Place::Stream => {
            Err(Failure::new(Exit::Usage, format!("'{}' cannot be written to", args.target)))
        }
    }
}

/// Other sites write raw disks only.
pub(super) fn check_raw(args: &CopyArgs) -> Result<(), Failure> {
    if args.format.is_some_and(|format| format != Format::Raw) || args.compress || !args.options.is_empty() {
        return Err(Failure::new(Exit::Usage, "an agent writes raw disks: no --format, -o and --compress"));
    }
    Ok(())
}

/// A copy that wants a file or device of this host as its target.
struct Wanted<'a> {
    args: &'a CopyArgs,
    source: &'a dyn Disk,
}

impl Wanted<'_> {
    fn open(&self, path: &Path) -> Result<TargetEnd, Failure> {
        let format = format_of(path, self.args.format);
        if !matches!(format, Format::Raw | Format::Qcow2) {
            return Err(only_read());
        }
        if format == Format::Raw && (self.args.compress || !self.args.options.is_empty()) {
            return Err(Failure::new(Exit::Usage, "-o and --compress are for qcow2 targets")
                .advise("add --format qcow2"));
        }
        let path = real_path(path)?;
        let meta = std::fs::metadata(&path).ok();
        if let Some(meta) = &meta {
            guard::check_not_open(&path, meta)?;
        }
        match (meta, format) {
            (Some(meta), Format::Raw) if meta.file_type().is_block_device() => {
                self.open_device(&path, DeviceNumber::of(meta.rdev()))
            }
            (Some(meta), _) if meta.is_file() => self.open_existing(&path, &meta, format),
            (Some(meta), Format::Qcow2) if meta.file_type().is_block_device() => Err(Failure::new(
                Exit::Usage,
                format!("{} is a device: a qcow2 image is a file", path.display()),
            )
            .advise("use --format raw")),
            (_, Format::Qcow2) => self.with_journal(self.qcow2(&path, false, false)?, &path),
            _ => self.with_journal(open_raw_file(&path, self.size(), false)?, &path),
        }
    }

    fn size(&self) -> u64 {
        self.source.size()
    }

    fn qcow2(&self, path: &Path, earlier: bool, force: bool) -> Result<TargetEnd, Failure> {
        let options = qcow2::options(&self.args.options, self.args.compress)?;
        qcow2::open_target(path, self.size(), earlier, force, options)
    }

    /// Where the journal of this run lies; `beside` is its place if nothing else was said.
    fn journal(&self, beside: PathBuf) -> Option<PathBuf> {
        match (&self.args.journal, self.args.no_journal) {
            (Some(path), _) => Some(path.clone()),
            (None, true) => None,
            (None, false) => Some(beside),
        }
    }

    fn earlier(&self, journal: Option<&Path>, tag: &str) -> Earlier {
        let judge = |path| guard::earlier_copy(path, self.size(), &self.source.identity(), tag);
        journal.map_or(Earlier::Nothing, judge)
    }

    /// A file that is there: gone on with if it is a copy of drover's own that stopped, else emptied if
    /// that was asked for, else refused.
    fn open_existing(&self, path: &Path, meta: &Metadata, format: Format) -> Result<TargetEnd, Failure> {
        let tag = file_tag(path).map_err(|error| unusable(path, &error))?;
        let journal = self.journal(journal_path(path));
        let why = match self.earlier(journal.as_deref(), &tag) {
            Earlier::Half(half) => match self.go_on(path, format, &half)? {
                Some(opened) => return self.with_journal(opened, path),
                None => Some("it was changed since its journal was made".to_string()),
            },
            Earlier::Other(why) => Some(why),
            Earlier::Nothing if format == Format::Raw && holds_nothing(path, meta) => {
                return self.with_journal(open_raw_file(path, self.size(), true)?, path);
            }
            // It knows an image that was made and never written.
            Earlier::Nothing if format == Format::Qcow2 => {
                return self.with_journal(self.qcow2(path, false, self.args.force)?, path);
            }
            Earlier::Nothing => None,
        };
        if !self.args.force {
            let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
            let text = format!("{} already holds {} bytes{why}", path.display(), meta.len());
            return Err(Failure::new(Exit::Target, text)
                .advise("choose another name, remove it, or overwrite it with --force"));
        }
        let opened = match format {
            Format::Raw => open_raw_file(path, self.size(), true)?,
            _ => self.qcow2(path, false, true)?,
        };
        // What it says of the bytes that were here is not true any more.
        if let Some(journal) = journal.filter(|_| why.is_some()) {
            remove_if_there(&journal)?;
        }
        self.with_journal(opened, path)
    }

    /// Goes on with what an earlier copy left, if it still holds what was recorded of it.
    fn go_on(&self, path: &Path, format: Format, half: &Replay) -> Result<Option<TargetEnd>, Failure> {
        let fits = half.header.size == self.size();
        if format == Format::Raw {
            let opened = match guard::still_holds(path, &half.leaves) {
                false => return Ok(None),
                true if fits => open_raw_target_as(path, self.size(), true),
                // The journal starts again if the source changed; so may the file's size.
                true => open_raw_file(path, self.size(), true),
            };
            return opened.map(Some);
        }
        // Looked at before it is opened to be written: a disk of another size is put in its place.
        let Ok(image) = Qcow2Disk::open_for_verify(path) else { return Ok(None) };
        if !guard::disk_still_holds(&image, &half.leaves).map_err(target_failure)? {
            return Ok(None);
        }
        drop(image);
        self.qcow2(path, fits, !fits).map(Some)
    }

    fn open_device(&self, path: &Path, device: DeviceNumber) -> Result<TargetEnd, Failure> {
        guard::check_unused(path, device)?;
        let tag = device_identity(Path::new("/"), device);
        let journal = self.journal(journal_in_state(self.args.run.state.as_deref(), &tag));
        let earlier = self.earlier(journal.as_deref(), &tag);
        let found = signatures_on(path).map_err(|error| unusable(path, &error))?;
        let ours = match &earlier {
            Earlier::Half(half) => {
                guard::are_ours(path, &found, &half.leaves) && guard::still_holds(path, &half.leaves)
            }
            Earlier::Nothing | Earlier::Other(_) => false,
        };
        if !ours && !found.is_empty() && !self.args.force {
            return Err(guard::holds(path, &found));
        }
        if !ours && !self.args.force {
            let content = content_on(path).map_err(|error| unusable(path, &error))?;
            content.map_or(Ok(()), |byte| Err(guard::holds_unknown(path, byte)))?;
        }
        let how = OpenTarget { size: self.size(), create: false, resume: true };
        let disk = FileDisk::open_target(path, how).map_err(target_failure)?;
        if let Some(journal) = journal.as_deref().filter(|_| !ours) {
            remove_if_there(journal)?;
        }
        if let Some(folder) = journal.as_deref().and_then(Path::parent) {
            std::fs::create_dir_all(folder).map_err(|error| {
                unusable(folder, &error).advise("name a journal with --journal FILE, or use --no-journal")
            })?;
        }
        let end = End { disk: Arc::new(disk), keep: Vec::new(), notes: Vec::new(), link: None };
        Ok(TargetEnd { end, tag, is_new: false, zeroed: false, journal })
    }

    /// Puts the journal where it was asked for. One beside the file that this run does not keep would be
    /// a lie to the next: it goes. The target is locked by now, so no other run has it open.
    fn with_journal(&self, target: TargetEnd, path: &Path) -> Result<TargetEnd, Failure> {
        let beside = journal_path(path);
        let journal = self.journal(beside.clone());
        if journal.as_ref() != Some(&beside) {
            remove_if_there(&beside)?;
        }
        Ok(TargetEnd { journal, ..target })
    }
}

/// Journals of block devices and of disks of other sites lie in the state folder, by what these are known by: `/dev`
/// is made anew at each boot, and its names change.
pub fn journal_in_state(state: Option<&Path>, tag: &str) -> PathBuf {
    let name: String =
        tag.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(100).collect();
    let hash = drover_copy::Leaf::of(tag.as_bytes());
    let digits = match hash {
        drover_copy::Leaf::Data(digest) => digest.short(),
        drover_copy::Leaf::Zero => "0".to_string(),
    };
    state_folder(state).join("journals").join(format!("{name}-{digits}.drover-journal"))
}

/// The file behind a name: symbolic links are followed, so that a target has one journal.
pub fn real_path(path: &Path) -> Result<PathBuf, Failure> {
    match std::fs::canonicalize(path) {
        Ok(real) => return Ok(real),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(path, &error)),
        Err(_) => {}
    }
    if std::fs::symlink_metadata(path).is_ok() {
        let text = format!("{} is a symbolic link to something that is not there", path.display());
        return Err(Failure::new(Exit::Target, text).advise("name the file itself"));
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Failure::new(Exit::Usage, format!("'{}' is no name of a file", path.display())));
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let folder = std::fs::canonicalize(folder).map_err(|error| unusable(folder, &error))?;
    Ok(folder.join(name))
}

pub fn remove_if_there(path: &Path) -> Result<(), Failure> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unusable(path, &error)),
        _ => Ok(()),
    }
}

pub fn unusable(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Target, format!("{}: {error}", path.display()))
}

/// The journal of a copy to an NBD server, if there is one, is believed only while the export holds what it says: a
/// server that kept its disk in memory, or was given another one, has the same name.
fn look_before_going_on(
    mut target: TargetEnd,
    args: &CopyArgs,
    source: &dyn Disk,
) -> Result<TargetEnd, Failure> {
    target.journal = args.journal.clone();
    let Some(path) = &target.journal else { return Ok(target) };
    if let Earlier::Half(half) = guard::earlier_copy(path, source.size(), &source.identity(), &target.tag) {
        target.is_new =
            !guard::disk_still_holds(target.end.disk.as_ref(), &half.leaves).map_err(target_failure)?;
    }
    Ok(target)
}

/// An NBD export has no name of its own beyond its URI and no place for a journal beside it.
pub fn open_nbd_target(uri: &NbdUri) -> Result<TargetEnd, Failure> {
    // A server that knows epochs keeps runs out that were given up for dead; others take no notice.
    let options = NbdOptions { fence: Some(drover_mover::new_epoch(0)), ..NbdOptions::default() };
    let disk = NbdDisk::open_target(uri, options).map_err(target_failure)?;
    let end = End { disk: Arc::new(disk), keep: Vec::new(), notes: Vec::new(), link: None };
    Ok(TargetEnd { end, tag: uri.place(), is_new: false, zeroed: false, journal: None })
}

/// Opens a raw file or block device. A file with a journal is gone on with; one that holds something
/// and has none is somebody else's.
pub fn open_raw_target(path: &Path, size: u64) -> Result<TargetEnd, Failure> {
    let nothing = std::fs::metadata(path).is_ok_and(|meta| holds_nothing(path, &meta));
    open_raw_target_as(path, size, journal_path(path).exists() || nothing)
}

fn open_raw_target_as(path: &Path, size: u64, resume: bool) -> Result<TargetEnd, Failure> {
    let how = OpenTarget { size, create: true, resume };
    raw_end(path, FileDisk::open_target(path, how).map_err(target_failure)?)
}

/// Makes a file, or takes what is there and empties it.
fn open_raw_file(path: &Path, size: u64, emptied: bool) -> Result<TargetEnd, Failure> {
    if !emptied {
        return open_raw_target_as(path, size, false);
    }
    raw_end(path, FileDisk::open_target_emptied(path, size).map_err(target_failure)?)
}

fn raw_end(path: &Path, disk: FileDisk) -> Result<TargetEnd, Failure> {
    let zeroed = disk.features().zeroed;
    let mut notes = Vec::new();
    if !disk.is_direct() {
        let at = path.display();
        notes.push(format!("{at}: no direct I/O here, so it is read back through the page cache"));
    }
    let end = End { disk: Arc::new(disk), keep: Vec::new(), notes, link: None };
    let tag = file_tag(path).map_err(|error| unusable(path, &error))?;
    Ok(TargetEnd { end, tag, is_new: zeroed, zeroed, journal: Some(journal_path(path)) })
}

/// Whether a file has no byte but zeros, and no room taken for any: an earlier try made it and ended
/// before its journal. Some file systems keep tiny files without a block, so those are read.
pub fn holds_nothing(path: &Path, meta: &Metadata) -> bool {
    let is_blank = || std::fs::read(path).is_ok_and(|bytes| drover_copy::is_zero(&bytes));
    meta.is_file() && meta.blocks() == 0 && (meta.len() > TINY_BYTES_MAX || is_blank())
}

/// No file system keeps more than this inside the file's own record.
const TINY_BYTES_MAX: u64 = 64 << 10;

pub fn target_failure(error: drover_disk::DiskError) -> Failure {
    let name = error.disk.clone();
    Failure::new(disk_exit(&error, &name), chain(&error))
}
