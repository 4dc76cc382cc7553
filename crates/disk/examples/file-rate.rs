//! How fast a file is read or written through `FileDisk`.
//!
//! ```text
//! file-rate read PATH LANES BYTES          through the page cache, as sources are read
//! file-rate read-direct PATH LANES BYTES   past it, as targets are read
//! file-rate write PATH LANES BYTES         4 GiB into a new file, flushed
//! ```
#![allow(missing_docs)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use drover_disk::{Buffer, Disk, DiskError, FileDisk, OpenTarget, Request, Slice, Work};
use drover_types::ByteSpan;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mode, path, lanes, bytes] = &arguments[..] else {
        return Err("usage: file-rate read|read-direct|write PATH LANES BYTES".into());
    };
    let (lanes, bytes): (usize, u64) = (lanes.parse()?, bytes.parse()?);
    let disk = match mode.as_str() {
        "read" => FileDisk::open_source(path)?,
        "read-direct" => {
            let size = std::fs::metadata(path)?.len();
            FileDisk::open_target(path, OpenTarget { size, create: false, resume: true })?
        }
        _ => FileDisk::open_target(path, OpenTarget { size: 4 << 30, create: true, resume: false })?,
    };
    let started = Instant::now();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let work = || run(&disk, &next, bytes, mode == "write");
        let workers: Vec<_> = (0..lanes).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| std::process::abort()))
    })?;
    if mode == "write" {
        disk.flush()?;
    }
    let seconds = started.elapsed().as_secs_f64();
    let rate = disk.size() as f64 / seconds / 1e9;
    println!("{mode}, direct {}, {lanes} x {bytes}: {seconds:.2} s, {rate:.2} GB/s", disk.is_direct());
    Ok(())
}

fn run(disk: &FileDisk, next: &AtomicU64, bytes: u64, write: bool) -> Result<(), DiskError> {
    let mut lane = disk.open_lane()?;
    let mut spare = Some(Buffer::zeroed(bytes as usize));
    loop {
        let offset = next.fetch_add(bytes, Ordering::Relaxed);
        let Some(mut buffer) = spare.take().filter(|_| offset < disk.size()) else { return Ok(()) };
        let span = ByteSpan::new(offset, bytes.min(disk.size() - offset));
        buffer.set_len(span.length as usize);
        let work = if write { Work::Write(Slice::from(buffer)) } else { Work::Read(buffer) };
        lane.submit(Request { id: 0, span, work });
        let Some(completion) = lane.complete() else { return Ok(()) };
        completion.result?;
        spare = match completion.work {
            Work::Read(buffer) => Some(buffer),
            Work::Write(slice) => slice.into_buffer(),
            Work::Zero => None,
        };
    }
}
