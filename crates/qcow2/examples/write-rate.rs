//! How fast an image is written from memory: `write-rate IMAGE [MIB [LANES [REQUEST_KIB [FLUSH_MIB]]]]`.
//! The image must not exist; it is removed afterwards.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use drover_disk::{Buffer, Disk, Request, Slice, Work};
use drover_qcow2::{Qcow2Disk, Qcow2Options};
use drover_types::ByteSpan;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = Path::new(args.first().ok_or("which image?")?);
    let number = |index: usize, default: u64| args.get(index).map_or(Ok(default), |text| text.parse());
    let (mib, lanes, request_kib, flush_mib) =
        (number(1, 2048)?, number(2, 4)?, number(3, 4096)?, number(4, 256)?);
    let disk = Qcow2Disk::create(path, mib << 20, Qcow2Options::default())?;
    let started = Instant::now();
    let next = AtomicU64::new(0);
    let write = || lane(&disk, &next, request_kib << 10, flush_mib << 20);
    let ended = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..lanes).map(|_| scope.spawn(write)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err("a lane panicked".into())))
    });
    let flushed = ended.and_then(|()| Ok(disk.flush()?));
    let seconds = started.elapsed().as_secs_f64();
    drop(disk);
    std::fs::remove_file(path)?;
    flushed?;
    println!("{mib} MiB in {seconds:.2} s: {:.2} GB/s", (mib << 20) as f64 / seconds / 1e9);
    Ok(())
}

fn lane(disk: &Qcow2Disk, next: &AtomicU64, request: u64, flush: u64) -> Result<(), Failure> {
    let mut lane = disk.open_lane()?;
    let mut buffer = Buffer::zeroed(request as usize);
    buffer.fill(0x5a);
    let mut slice = Slice::from(buffer);
    loop {
        let offset = next.fetch_add(request, Relaxed);
        if offset >= disk.size() {
            return Ok(());
        }
        let span = ByteSpan::new(offset, request.min(disk.size() - offset));
        lane.submit(Request { id: 1, span, work: Work::Write(slice.clone()) });
        if let Some(done) = lane.complete() {
            done.result?;
            if let Work::Write(written) = done.work {
                slice = written;
            }
        }
        if offset / flush != (offset + request) / flush {
            disk.flush()?;
        }
    }
}
