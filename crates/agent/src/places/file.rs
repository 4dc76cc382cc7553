//! Raw files in pools.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use drover_disk::{DiskErrorKind, FileDisk, OpenTarget};

use super::{generation, told};
use crate::error::Refusal;
use crate::opening::{DISK_BYTES_MAX, How, Stat, Writer};
use crate::serve::Held;

/// No file system keeps more than this inside the file's own record.
const TINY_BYTES_MAX: u64 = 64 << 10;

pub(super) fn read(path: &Path) -> Result<Held, Refusal> {
    // Past the page cache, where that works: who reads a copy back wants to know what is on the disk.
    let disk = FileDisk::open_for_verify(path)?;
    let opened = told(&disk, tag(path)?, generation::of_file(path)?);
    Ok(Held::new(disk, opened))
}

pub(super) fn write(path: &Path, writer: &Writer) -> Result<Held, Refusal> {
    if writer.size > DISK_BYTES_MAX {
        return Err(Refusal::new(DiskErrorKind::Unsupported, "no disk has more than 1 PiB"));
    }
    let there = std::fs::metadata(path).ok();
    let size = writer.size;
    let disk = match (writer.how, there) {
        (How::New, None) | (How::Force, None) => {
            FileDisk::open_target(path, OpenTarget { size, create: true, resume: false })?
        }
        (How::New, Some(meta)) if !holds_nothing(path, &meta) => {
            let why = format!("{} already holds {} bytes", path.display(), meta.len());
            return Err(Refusal::new(DiskErrorKind::Denied, why));
        }
        (How::New | How::Force, Some(_)) => FileDisk::open_target_emptied(path, size)?,
        (How::Resume, _) => FileDisk::open_target(path, OpenTarget { size, create: false, resume: true })?,
    };
    let zeroed = drover_disk::Disk::features(&disk).zeroed;
    let mut opened = told(&disk, tag(path)?, generation::of_file(path)?);
    opened.is_new = zeroed;
    if !disk.is_direct() {
        opened.notes.push(format!(
            "{}: no direct I/O there, so it is read back through the page cache",
            path.display()
        ));
    }
    Ok(Held::new(disk, opened))
}

pub(super) fn stat(path: &Path) -> Result<Stat, Refusal> {
    match std::fs::metadata(path) {
        Ok(meta) => Ok(Stat {
            size: Some(meta.len()),
            tag: generation::tag_of(&meta),
            holds_nothing: holds_nothing(path, &meta),
            allocated: Some(meta.blocks() * 512),
            epoch: 0,
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Ok(Stat { size: None, tag: String::new(), holds_nothing: true, allocated: None, epoch: 0 })
        }
        Err(error) => Err(Refusal::new(DiskErrorKind::of(&error), format!("{}: {error}", path.display()))),
    }
}

fn tag(path: &Path) -> Result<String, Refusal> {
    let meta = std::fs::metadata(path)
        .map_err(|error| Refusal::new(DiskErrorKind::of(&error), format!("{}: {error}", path.display())))?;
    Ok(generation::tag_of(&meta))
}

/// Whether a file has no byte but zeros, and no room taken for any.
fn holds_nothing(path: &Path, meta: &Metadata) -> bool {
    let is_blank = || std::fs::read(path).is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0));
    meta.is_file() && meta.blocks() == 0 && (meta.len() > TINY_BYTES_MAX || is_blank())
}
