//! Raw files in pools.

use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use drover_disk::device::signatures_on;
use drover_disk::{DiskErrorKind, FileDisk, LockedFile, OpenTarget};

use super::{generation, told};
use crate::error::Refusal;
use crate::opening::{DISK_BYTES_MAX, How, Stat, Writer};
use crate::serve::Held;

pub(super) fn read(path: &Path) -> Result<Held, Refusal> {
    // Past the page cache, where that works: who reads a copy back wants to know what is on the disk.
    let disk = FileDisk::open_for_verify(path)?;
    let mut opened = told(&disk, tag(path)?, generation::of_file(path)?);
    opened.notes.extend(image_in(path).map(|what| {
        format!(
            "{}: its first bytes are those of a {what}; it is read as the raw disk it lies in",
            path.display()
        )
    }));
    Ok(Held::new(disk, opened))
}

/// What kind of image a file seems to be. Only seems: a guest can write such a head to its raw disk.
fn image_in(path: &Path) -> Option<&'static str> {
    let marks = signatures_on(path).ok()?;
    marks.iter().map(|mark| mark.name).find(|name| name.ends_with("image"))
}

pub(super) fn write(path: &Path, writer: &Writer) -> Result<Held, Refusal> {
    if writer.size > DISK_BYTES_MAX {
        return Err(Refusal::new(DiskErrorKind::Unsupported, "no disk has more than 1 PiB"));
    }
    let size = writer.size;
    // Locked first, looked at then: whoever had it until now may have finished a copy.
    let disk = match writer.how {
        How::New => LockedFile::open_or_create(path)?.into_new_disk(size)?,
        How::Force => LockedFile::open_or_create(path)?.into_empty_disk(size)?,
        How::Resume => FileDisk::open_target(path, OpenTarget { size, create: false, resume: true })?,
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

/// As far as it can be told without its lock; one that takes room is not opened for that.
fn holds_nothing(path: &Path, meta: &Metadata) -> bool {
    let is_blank = || File::open(path).and_then(|file| drover_disk::holds_nothing(&file));
    meta.is_file() && meta.blocks() == 0 && is_blank().unwrap_or(false)
}
