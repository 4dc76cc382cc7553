//! Block devices.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use drover_disk::device::{DeviceNumber, content_on, device_identity, device_usage, signatures_on};
use drover_disk::{Disk, DiskErrorKind, FileDisk, LockedFile};

use super::{generation, told};
use crate::error::Refusal;
use crate::opening::{How, Stat, Writer};
use crate::serve::Held;

fn number(path: &Path) -> Result<DeviceNumber, Refusal> {
    let meta = std::fs::metadata(path)
        .map_err(|error| Refusal::new(DiskErrorKind::of(&error), format!("{}: {error}", path.display())))?;
    if !meta.file_type().is_block_device() {
        return Err(Refusal::new(DiskErrorKind::Denied, format!("{} is no block device", path.display())));
    }
    Ok(DeviceNumber::of(meta.rdev()))
}

/// What tells the device from others, also after a reboot.
pub(super) fn tag(path: &Path) -> Result<String, Refusal> {
    Ok(device_identity(Path::new("/"), number(path)?))
}

/// Refuses a device that this host uses.
pub(super) fn check_unused(path: &Path) -> Result<(), Refusal> {
    let usage = device_usage(Path::new("/"), number(path)?);
    if usage.is_empty() {
        return Ok(());
    }
    let found: Vec<String> = usage.iter().map(ToString::to_string).collect();
    let why = format!("{} is in use: {}", path.display(), found.join("; "));
    Err(Refusal::new(DiskErrorKind::Denied, why))
}

pub(super) fn write(path: &Path, writer: &Writer) -> Result<Held, Refusal> {
    check_unused(path)?;
    let file = LockedFile::open(path)?;
    if writer.how == How::New {
        check_blank(path)?;
    }
    let disk = file.into_disk(writer.size)?;
    let opened = told(&disk, tag(path)?, generation::of_device());
    Ok(Held::new(disk, opened))
}

fn check_blank(path: &Path) -> Result<(), Refusal> {
    match held_by(path)? {
        Some(what) => Err(Refusal::new(DiskErrorKind::Denied, format!("{} {what}", path.display()))),
        None => Ok(()),
    }
}

/// What a device holds, if it holds anything, as far as its marks and samples tell.
fn held_by(path: &Path) -> Result<Option<String>, Refusal> {
    let unreadable = |error: std::io::Error| {
        Refusal::new(DiskErrorKind::of(&error), format!("{}: {error}", path.display()))
    };
    let found = signatures_on(path).map_err(unreadable)?;
    if !found.is_empty() {
        let list: Vec<String> = found.iter().map(ToString::to_string).collect();
        return Ok(Some(format!("holds something: {}", list.join(", "))));
    }
    let byte = content_on(path).map_err(unreadable)?;
    Ok(byte.map(|byte| format!("is not blank: byte {byte} is not zero, and no mark says what it holds")))
}

pub(super) fn stat(path: &Path) -> Result<Stat, Refusal> {
    let size = FileDisk::open_source(path)?.size();
    let holds_nothing = held_by(path)?.is_none();
    Ok(Stat { size: Some(size), tag: tag(path)?, holds_nothing, allocated: None, epoch: 0 })
}
