//! Targets that hold all but a part of the disk already, and are brought up to date in place.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use drover_disk::device::{DeviceNumber, device_identity};
use drover_disk::{Disk, LockedFile};
use drover_engine::Cause;
use drover_landing::images;
use drover_mover::{Earlier, earlier, journal_in, journal_path, look};
use drover_qcow2::Qcow2Options;

use crate::agent;
use crate::errors::{EndError, failed, only_read, target_failure, unusable, usage};
use crate::format::{ToldFormat, format_of};
use crate::guard;
use crate::named::NamedTarget;
use crate::path::{check_size, not_there, real_path, remove_if_there};
use crate::place::{Place, nbd_uri_of, place};
use crate::target::{check_raw, open_nbd_target};
use crate::{End, Notes, TargetEnd};

/// Opens a target that is there and has the source's size, to be changed where `what` says: the source as a journal
/// names it. A copy that stopped half-way is none that holds the rest.
///
/// # Errors
/// If it is not such a target, or cannot be had.
pub fn open_existing_target(
    asked: &NamedTarget<'_>,
    source: &dyn Disk,
    what: &str,
) -> Result<TargetEnd, EndError> {
    let size = source.size();
    let mut target = match place(asked.text)? {
        Place::Nbd(uri) => {
            if nbd_uri_of(asked.source).as_ref() == Some(&uri) {
                return Err(usage(format!("{} is both source and target", asked.text)));
            }
            let target = open_nbd_target(&uri)?;
            check_size(asked.text, target.end.disk.size(), size)?;
            target
        }
        Place::Path(path) => open_path(asked, &path, size)?,
        Place::Agent(to) => {
            check_raw(asked, &to.disk)?;
            agent::Wanted::connect(asked, source, &to)?.open_existing()?
        }
        Place::Web(_)
        | Place::Ssh(_)
        | Place::Ova(..)
        | Place::Vsphere { .. }
        | Place::Null
        | Place::Stream => {
            return Err(usage(format!("'{}' cannot be written to", asked.text)));
        }
    };
    let beside = target.journal.take();
    let is_kept = |beside: &Path| match asked.journal {
        Some(journal) => journal == beside,
        None => !asked.no_journal,
    };
    // Of a copy that stopped, or of what the target held before: a lie to the next run.
    if let Some(beside) = beside.as_deref().filter(|beside| !is_kept(beside)) {
        check_earlier(asked, &target, beside, what)?;
        remove_if_there(beside)?;
    }
    target.journal = asked.journal.map(Path::to_path_buf).or(beside.filter(|_| !asked.no_journal));
    if let Some(journal) = &target.journal {
        guard::check_journal(journal)?;
        check_earlier(asked, &target, journal, what)?;
        if let Some(folder) = journal.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|error| unusable(folder, &error))?;
        }
    }
    Ok(target)
}

/// Refuses what a copy that stopped left, unless it is this very one and the target still holds what it recorded.
fn check_earlier(
    asked: &NamedTarget<'_>,
    target: &TargetEnd,
    journal: &Path,
    what: &str,
) -> Result<(), EndError> {
    let Earlier::Half(half) = earlier(journal, &target.tag, None) else { return Ok(()) };
    let at = journal.display();
    if !half.header.is_of(what) {
        if half.complete.is_some() || half.leaves.known_blocks() == 0 {
            return Ok(());
        }
        let text = format!("{} holds a copy that is not finished, by its journal {at}", asked.text);
        return Err(failed(Cause::Target, text).advise(
            "if it is one of this bitmap, which marks something else by now, remove the journal; else finish that one \
             first, or copy all of the disk with --force and without --bitmap",
        ));
    }
    if look(target.end.disk.as_ref(), &half.leaves).map_err(target_failure)?.is_all() {
        return Ok(());
    }
    let text = format!("{} was changed since its journal {at} was made", asked.text);
    Err(failed(Cause::Target, text).advise("remove the journal to copy all that the bitmap marks again"))
}

fn open_path(asked: &NamedTarget<'_>, path: &Path, size: u64) -> Result<TargetEnd, EndError> {
    let format = format_of(path, asked.format);
    if !matches!(format, ToldFormat::RAW | ToldFormat::QCOW2) {
        return Err(only_read());
    }
    let path = real_path(path)?;
    let Ok(meta) = std::fs::metadata(&path) else {
        return Err(not_there(&path.display().to_string()));
    };
    if meta.file_type().is_block_device() && format == ToldFormat::RAW {
        return open_device(asked, &path, DeviceNumber::of(meta.rdev()), size);
    }
    if !meta.is_file() {
        return Err(failed(Cause::Target, format!("{} is no file that can be changed", path.display())));
    }
    if format == ToldFormat::QCOW2 {
        let file = locked(&path)?;
        return Ok(images::go_on(file, &path, size, false, Qcow2Options::default())?.into());
    }
    let file = locked(&path)?;
    // Before it is taken: that would change the length of an empty one.
    check_size(asked.text, file.metadata().map_err(target_failure)?.len(), size)?;
    let tag = file.tag().map_err(target_failure)?;
    opened(file, size, tag, journal_path(&path))
}

fn locked(path: &Path) -> Result<LockedFile, EndError> {
    let file = LockedFile::open(path).map_err(target_failure)?;
    guard::check_not_open(path, &file)?;
    Ok(file)
}

fn open_device(
    asked: &NamedTarget<'_>,
    path: &Path,
    device: DeviceNumber,
    size: u64,
) -> Result<TargetEnd, EndError> {
    guard::check_unused(path, device)?;
    let tag = device_identity(Path::new("/"), device);
    let journal = journal_in(&asked.host.state, &tag);
    opened(locked(path)?, size, tag, journal)
}

fn opened(file: LockedFile, size: u64, tag: String, journal: PathBuf) -> Result<TargetEnd, EndError> {
    let disk = file.into_disk(size).map_err(target_failure)?;
    let end = End { disk: Arc::new(disk), keep: Vec::new(), notes: Notes::default(), link: None };
    Ok(TargetEnd { end, tag, is_new: false, zeroed: false, journal: Some(journal) })
}
