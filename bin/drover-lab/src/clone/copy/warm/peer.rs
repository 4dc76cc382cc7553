//! What other tools do with changed areas: read 64 KiB, write it, and so on, one after the other.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use drover_disk::{Buffer, Disk, Request, Work};
use drover_nbd::{NbdDisk, NbdOptions};
use drover_types::ByteSpan;

use super::host::Host;
use crate::clone::copy::nfc::Vddk;

/// Bytes of a request.
const REQUEST_BYTES: u64 = 64 << 10;

/// Copies these areas of a VM's first disk, which is off, into a file. Gives the seconds from the start of nbdkit to
/// data that is durable, as they count for drover.
pub fn copy_areas(host: &Host, vm: &str, areas: &[ByteSpan], to: &Path) -> Result<f64> {
    let started = Instant::now();
    let server = Vddk::default().serve(&host.sim, &host.stand_in, vm, host.path("peer.sock"))?;
    let disk = NbdDisk::open_source(&server.uri().parse()?, NbdOptions::default())?;
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(to)?;
    file.set_len(disk.size())?;
    let mut lane = disk.open_lane()?;
    for area in areas {
        for offset in (area.offset..area.end()).step_by(REQUEST_BYTES as usize) {
            let span = ByteSpan::new(offset, REQUEST_BYTES.min(area.end() - offset));
            let work = Work::Read(Buffer::zeroed(span.length as usize));
            lane.submit(Request { id: offset, span, work });
            let done = lane.complete().context("an answer")?;
            done.result?;
            let Work::Read(buffer) = done.work else { continue };
            file.write_all_at(&buffer[..span.length as usize], offset)?;
        }
    }
    file.sync_all()?;
    Ok(started.elapsed().as_secs_f64())
}

/// Holds two files against each other in these areas.
pub fn compare(a: &Path, b: &Path, areas: &[ByteSpan]) -> Result<()> {
    let (a, b) = (std::fs::File::open(a)?, std::fs::File::open(b)?);
    for area in areas {
        let mut bytes = [vec![0; area.length as usize], vec![0; area.length as usize]];
        a.read_exact_at(&mut bytes[0], area.offset)?;
        b.read_exact_at(&mut bytes[1], area.offset)?;
        ensure!(bytes[0] == bytes[1], "they differ in {area}");
    }
    Ok(())
}
