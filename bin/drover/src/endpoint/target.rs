//! Disks to be written, and all reasons to refuse.

use std::path::Path;
use std::sync::Arc;

use drover_disk::{Disk, FileDisk, OpenTarget};
use drover_engine::chain;
use drover_mover::{file_tag, journal_path};
use drover_nbd::{NbdDisk, NbdOptions, NbdUri};

use super::place::{Place, place};
use super::{End, TargetEnd, format_of};
use crate::cli::{CopyArgs, Format};
use crate::exit::{Exit, Failure, disk_exit};
use crate::qcow2;

/// Whether two paths lead to one file, by whatever names.
fn is_same_file(a: &str, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    id(Path::new(a)).is_some_and(|of_a| id(b) == Some(of_a))
}

/// Opens the target of a copy of `size` bytes; `None` for `null:`, which only reads.
pub fn open_target(args: &CopyArgs, size: u64) -> Result<Option<TargetEnd>, Failure> {
    match place(&args.target)? {
        Place::Path(path) if is_same_file(&args.source, &path) => {
            Err(Failure::new(Exit::Usage, format!("{} is both source and target", path.display())))
        }
        Place::Null => Ok(None),
        Place::Nbd(uri) => open_nbd_target(&uri).map(Some),
        Place::Path(path) => match format_of(&path, args.format) {
            Format::Raw if args.compress || !args.options.is_empty() => {
                Err(Failure::new(Exit::Usage, "-o and --compress are for qcow2 targets")
                    .advise("add --format qcow2"))
            }
            Format::Raw => open_raw_target(&path, size, args.force).map(Some),
            Format::Qcow2 => {
                let options = qcow2::options(&args.options, args.compress)?;
                qcow2::open_target(&path, size, args.force, options).map(Some)
            }
            Format::Vmdk => Err(Failure::new(Exit::Usage, "images in VMDK format are only read")
                .advise("choose --format raw or qcow2")),
        },
        Place::Web(_) | Place::Vsphere { .. } => {
            Err(Failure::new(Exit::Usage, format!("'{}' cannot be written to", args.target)))
        }
    }
}

/// An NBD export has no name of its own beyond its URI and no place for a journal beside it.
fn open_nbd_target(uri: &NbdUri) -> Result<TargetEnd, Failure> {
    let disk = NbdDisk::open_target(uri, NbdOptions::default()).map_err(target_failure)?;
    let end = End { disk: Arc::new(disk), keep: Vec::new(), notes: Vec::new() };
    Ok(TargetEnd { end, tag: uri.to_string(), is_new: false, zeroed: false, journal: None })
}

/// Opens a raw file or block device. A file with a journal is gone on with; one that holds something
/// and has none is somebody else's.
pub fn open_raw_target(path: &Path, size: u64, force: bool) -> Result<TargetEnd, Failure> {
    let resume = force || journal_path(path).exists() || holds_nothing(path);
    let how = OpenTarget { size, create: true, resume };
    let disk = FileDisk::open_target(path, how).map_err(target_failure)?;
    let zeroed = disk.features().zeroed;
    let mut notes = Vec::new();
    if !disk.is_direct() {
        notes.push(format!(
            "{}: no direct I/O here, so it is read back through the page cache",
            path.display()
        ));
    }
    let end = End { disk: Arc::new(disk), keep: Vec::new(), notes };
    let tag =
        file_tag(path).map_err(|error| Failure::new(Exit::Target, format!("{}: {error}", path.display())))?;
    Ok(TargetEnd { end, tag, is_new: zeroed, zeroed, journal: Some(journal_path(path)) })
}

/// Whether a file has no allocated byte: an earlier try made it and ended before its journal.
fn holds_nothing(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.blocks() == 0)
}

pub fn target_failure(error: drover_disk::DiskError) -> Failure {
    let name = error.disk.clone();
    Failure::new(disk_exit(&error, &name), chain(&error))
}
