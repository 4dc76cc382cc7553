//! Disks to be written, and which of them are refused.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drover_disk::device::{DeviceNumber, content_on, device_identity, signatures_on};
use drover_disk::{Disk, DiskError, DiskOp, LockedFile};
use drover_engine::Cause;
use drover_landing::images;
use drover_mover::{Earlier, FoundTarget, Standing, earlier, journal_in, journal_path, judge, look};
use drover_nbd::{NbdDisk, NbdOptions, NbdUri};
use drover_types::ByteSpan;

use crate::agent;
use crate::errors::{EndError, disk_failure, failed, only_read, target_failure, unusable, usage};
use crate::format::{ToldFormat, format_of};
use crate::guard;
use crate::named::NamedTarget;
use crate::path::{real_path, remove_if_there};
use crate::place::{Place, place};
use crate::qcow2;
use crate::source::image_on;
use crate::{End, Notes, TargetEnd};

/// Opens the target of a copy of `source`; `None` for `null:`, which only reads.
///
/// # Errors
/// If it is named wrongly, holds something that is not to be overwritten, or cannot be had.
pub fn open_target(asked: &NamedTarget<'_>, source: &dyn Disk) -> Result<Option<TargetEnd>, EndError> {
    let opened = open_place(asked, source)?;
    // Only now are both ends open, so that neither can pass for a journal.
    if let Some(journal) = opened.as_ref().and_then(|target| target.journal.as_deref()) {
        guard::check_journal(journal)?;
    }
    Ok(opened)
}

fn open_place(asked: &NamedTarget<'_>, source: &dyn Disk) -> Result<Option<TargetEnd>, EndError> {
    match place(asked.text)? {
        Place::Null => Ok(None),
        Place::Nbd(uri) => {
            if matches!(place(asked.source), Ok(Place::Nbd(from)) if from == uri) {
                return Err(usage(format!("{} is both source and target", asked.text)));
            }
            let target = open_nbd_target(&uri)?;
            look_before_going_on(target, asked).map(Some)
        }
        Place::Agent(to) => {
            if matches!(place(asked.source), Ok(Place::Agent(from)) if from == to) {
                return Err(usage(format!("{} is both source and target", asked.text)));
            }
            check_raw(asked, &to.disk)?;
            agent::Wanted::connect(asked, source, &to)?.open().map(Some)
        }
        Place::Path(path) => Wanted { asked, source }.open(&path).map(Some),
        Place::Web(_) | Place::Ssh(_) | Place::Ova(..) | Place::Vsphere { .. } | Place::Stream => {
            Err(usage(format!("'{}' cannot be written to", asked.text)))
        }
    }
}

/// Other sites write raw disks only, and a raw disk by the name of an image would be taken for one later.
pub(crate) fn check_raw(asked: &NamedTarget<'_>, disk: &str) -> Result<(), EndError> {
    if asked.format.is_some_and(|format| format != ToldFormat::RAW)
        || asked.compress
        || !asked.options.is_empty()
    {
        return Err(usage("an agent writes raw disks: no --format, -o and --compress"));
    }
    if format_of(Path::new(disk), asked.format) != ToldFormat::RAW {
        let text = format!("an agent writes raw disks, and {} has the name of an image", asked.text);
        return Err(usage(text).advise(
            "choose a name that ends in .raw, or add --format raw to write a raw disk all the same",
        ));
    }
    Ok(())
}

/// A copy that wants a file or device of this host as its target.
struct Wanted<'a> {
    asked: &'a NamedTarget<'a>,
    source: &'a dyn Disk,
}

impl Wanted<'_> {
    fn open(&self, path: &Path) -> Result<TargetEnd, EndError> {
        let format = format_of(path, self.asked.format);
        if !matches!(format, ToldFormat::RAW | ToldFormat::QCOW2) {
            return Err(only_read());
        }
        if format == ToldFormat::RAW && (self.asked.compress || !self.asked.options.is_empty()) {
            return Err(usage("-o and --compress are for qcow2 targets").advise("add --format qcow2"));
        }
        let path = real_path(path)?;
        // What kind of thing it is, no more: what it holds counts only when it is locked.
        let meta = std::fs::metadata(&path).ok();
        let device = meta.filter(|meta| meta.file_type().is_block_device());
        match (device, format) {
            (Some(meta), ToldFormat::RAW) => self.open_device(&path, DeviceNumber::of(meta.rdev())),
            (Some(_), _) => Err(usage(format!("{} is a device: a qcow2 image is a file", path.display()))
                .advise("use --format raw")),
            (None, ToldFormat::QCOW2) => self.with_journal(self.open_image(&path)?, &path),
            (None, _) => self.with_journal(self.open_file(&path)?, &path),
        }
    }

    fn size(&self) -> u64 {
        self.source.size()
    }

    /// Where the journal of this run lies; `beside` is its place if nothing else was said.
    fn journal(&self, beside: PathBuf) -> Option<PathBuf> {
        match (self.asked.journal, self.asked.no_journal) {
            (Some(path), _) => Some(path.to_path_buf()),
            (None, true) => None,
            (None, false) => Some(beside),
        }
    }

    /// Whose a locked file is.
    fn judge(
        &self,
        file: &LockedFile,
        path: &Path,
        disk: Option<&dyn Disk>,
        is_blank: &dyn Fn() -> Result<bool, DiskError>,
    ) -> Result<Standing, EndError> {
        let (tag, meta) = (file.tag().map_err(target_failure)?, file.metadata().map_err(target_failure)?);
        let journal = self.journal(journal_path(path));
        let born = meta.created().ok();
        let found = FoundTarget { journal: journal.as_deref(), tag: &tag, born, disk, is_blank };
        match judge(&found, self.source).map_err(|error| self.not_looked_at(error, path))? {
            Standing::Others(why) if !self.asked.force => {
                let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
                let text = format!("{} already holds {} bytes{why}", path.display(), meta.len());
                Err(failed(Cause::Target, text)
                    .advise("choose another name, remove it, or overwrite it with --force"))
            }
            standing => Ok(standing),
        }
    }

    fn not_looked_at(&self, error: DiskError, path: &Path) -> EndError {
        disk_failure(&error, &path.display().to_string())
    }

    /// A raw file: gone on with if it is a copy of drover's own that stopped, else emptied if nothing is in it or that was
    /// asked for, else refused.
    fn open_file(&self, path: &Path) -> Result<TargetEnd, EndError> {
        let file = LockedFile::open_or_create(path).map_err(target_failure)?;
        guard::check_not_open(path, &file)?;
        let reader = file.reader().map_err(target_failure)?;
        let standing = self.judge(&file, path, Some(&reader), &|| file.holds_nothing())?;
        drop(reader);
        let disk = match standing {
            // The journal starts again if the source changed; so may the file's size.
            Standing::Half(half) if half.header.size == self.size() => file.into_disk(self.size()),
            _ => file.into_empty_disk(self.size()),
        };
        Ok(images::raw(path, disk.map_err(target_failure)?)?.into())
    }

    /// As [`Wanted::open_file`], of an image. What is not gone on with is replaced by another.
    fn open_image(&self, path: &Path) -> Result<TargetEnd, EndError> {
        let (size, options) = (self.size(), qcow2::options(self.asked.options, self.asked.compress)?);
        if !path.exists() {
            return Ok(images::create(path, size, options)?.into());
        }
        let file = LockedFile::open(path).map_err(target_failure)?;
        guard::check_not_open(path, &file)?;
        let image = images::image_in(&file)?;
        let is_blank = image.as_ref().is_some_and(|image| image.was_empty() && images::fits(image, size));
        let disk = image.as_ref().map(|image| image as &dyn Disk);
        let standing = self.judge(&file, path, disk, &|| Ok(is_blank))?;
        drop(image);
        let opened = match standing {
            // An earlier try made it and ended before its journal.
            Standing::Blank => images::go_on(file, path, size, true, options),
            Standing::Half(half) if half.header.size == size => {
                images::go_on(file, path, size, false, options)
            }
            Standing::Half(_) | Standing::Others(_) => images::replace(file, path, size, options),
        };
        Ok(opened?.into())
    }

    fn open_device(&self, path: &Path, device: DeviceNumber) -> Result<TargetEnd, EndError> {
        guard::check_unused(path, device)?;
        let file = LockedFile::open(path).map_err(target_failure)?;
        guard::check_not_open(path, &file)?;
        let tag = device_identity(Path::new("/"), device);
        let journal = self.journal(journal_in(&self.asked.host.state, &tag));
        let reader = file.reader().map_err(target_failure)?;
        let is_blank = || self.is_blank(path);
        let found = FoundTarget {
            journal: journal.as_deref(),
            tag: &tag,
            born: None,
            disk: Some(&reader),
            is_blank: &is_blank,
        };
        let standing = judge(&found, self.source).map_err(|error| self.not_looked_at(error, path))?;
        drop(reader);
        let is_ours = matches!(standing, Standing::Half(_));
        if matches!(standing, Standing::Others(_)) && !self.asked.force {
            return Err(holds_something(path)?);
        }
        let disk = file.into_disk(self.size()).map_err(target_failure)?;
        if let Some(folder) = journal.as_deref().and_then(Path::parent) {
            std::fs::create_dir_all(folder).map_err(|error| {
                unusable(folder, &error).advise("name a journal with --journal FILE, or use --no-journal")
            })?;
        }
        let end = End { disk: Arc::new(disk), keep: Vec::new(), notes: Notes::default(), link: None };
        // What a journal says of the bytes that were here is not true any more, unless they are gone on with.
        Ok(TargetEnd { end, tag, is_new: !is_ours, zeroed: false, journal })
    }

    fn is_blank(&self, path: &Path) -> Result<bool, DiskError> {
        let unread =
            |error| DiskError::new(DiskOp::Read, ByteSpan::new(0, 0), &path.display().to_string(), error);
        let found = signatures_on(path).map_err(unread)?;
        Ok(found.is_empty() && content_on(path).map_err(unread)?.is_none())
    }

    /// Puts the journal where it was asked for. One beside the file that this run does not keep would be
    /// a lie to the next: it goes. The target is locked by now, so no other run has it open.
    fn with_journal(&self, target: TargetEnd, path: &Path) -> Result<TargetEnd, EndError> {
        let beside = journal_path(path);
        let journal = self.journal(beside.clone());
        if journal.as_ref() != Some(&beside) {
            remove_if_there(&beside)?;
        }
        Ok(TargetEnd { journal, ..target })
    }
}

/// The refusal of a device that is not blank.
fn holds_something(path: &Path) -> Result<EndError, EndError> {
    let unread = |error: io::Error| unusable(path, &error);
    let found = signatures_on(path).map_err(unread)?;
    Ok(match (found.as_slice(), content_on(path).map_err(unread)?) {
        ([], Some(byte)) => guard::holds_unknown(path, byte),
        // Blank, but its journal tells of data: somebody emptied it.
        ([], None) => {
            let text = format!("{} was emptied since its journal was made", path.display());
            failed(Cause::Target, text).advise("if it may be copied to anew, --force")
        }
        (found, _) => guard::holds(path, found),
    })
}

/// The journal of a copy to an NBD server, if there is one, is believed only while the export holds what it says: a
/// server that kept its disk in memory, or was given another one, has the same name.
fn look_before_going_on(mut target: TargetEnd, asked: &NamedTarget<'_>) -> Result<TargetEnd, EndError> {
    target.journal = asked.journal.map(Path::to_path_buf);
    let half = target.journal.as_deref().map(|path| earlier(path, &target.tag, None));
    if let Some(Earlier::Half(half)) = half {
        target.is_new = !look(target.end.disk.as_ref(), &half.leaves).map_err(target_failure)?.is_all();
        return Ok(target);
    }
    check_no_image(&target, asked)?;
    Ok(target)
}

/// A server that hands out the bytes of an image file would have the image overwritten by a raw disk.
fn check_no_image(target: &TargetEnd, asked: &NamedTarget<'_>) -> Result<(), EndError> {
    if asked.force || asked.format == Some(ToldFormat::RAW) {
        return Ok(());
    }
    let Some(format) = image_on(target.end.disk.as_ref()) else { return Ok(()) };
    let text = format!("{} begins like a {format} image, and would be overwritten as a raw disk", asked.text);
    Err(failed(Cause::Target, text).advise(
        "have its server read the image (`qemu-nbd`, with its format); if a raw disk may take its place, --format raw or --force",
    ))
}

/// An NBD export has no name of its own beyond its URI and no place for a journal beside it.
pub(crate) fn open_nbd_target(uri: &NbdUri) -> Result<TargetEnd, EndError> {
    // A server that knows epochs keeps runs out that were given up for dead; others take no notice.
    let options = NbdOptions { fence: Some(drover_mover::new_epoch(0)), ..NbdOptions::default() };
    let disk = NbdDisk::open_target(uri, options).map_err(target_failure)?;
    let end = End { disk: Arc::new(disk), keep: Vec::new(), notes: Notes::default(), link: None };
    Ok(TargetEnd { end, tag: uri.place(), is_new: false, zeroed: false, journal: None })
}
