//! NBD exports that the agent can reach.

use drover_disk::{Disk, DiskErrorKind};
use drover_nbd::{NbdDisk, NbdOptions, NbdUri};

use super::{generation, told};
use crate::error::Refusal;
use crate::opening::{Stat, Writer};
use crate::serve::Held;

pub(super) fn read(uri: &NbdUri) -> Result<Held, Refusal> {
    let disk = NbdDisk::open_source(uri, NbdOptions::default())?;
    let opened = told(&disk, uri.place(), generation::once());
    Ok(Held::new(disk, opened))
}

/// What is in an export is its server's affair: it is overwritten, whatever `how` says. The server may have been
/// started again without what was not flushed, so no two openings are of one generation.
pub(super) fn write(uri: &NbdUri, writer: &Writer) -> Result<Held, Refusal> {
    let options = NbdOptions { fence: Some(writer.epoch), ..NbdOptions::default() };
    let disk = NbdDisk::open_target(uri, options)?;
    if disk.size() < writer.size {
        let why = format!("the export has {} bytes, {} are needed", disk.size(), writer.size);
        return Err(Refusal::new(DiskErrorKind::Denied, why));
    }
    let opened = told(&disk, uri.place(), generation::once());
    Ok(Held::new(disk, opened))
}

pub(super) fn stat(uri: &NbdUri) -> Result<Stat, Refusal> {
    let disk = NbdDisk::open_source(uri, NbdOptions::default())?;
    Ok(Stat { size: Some(disk.size()), tag: uri.place(), holds_nothing: true, allocated: None, epoch: 0 })
}
