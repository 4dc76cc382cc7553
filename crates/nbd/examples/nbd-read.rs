//! Reads a whole export into memory and throws it away: the rate of the client alone.
//!
//! ```text
//! nbdkit -U /tmp/s pattern 4G --run \
//!   'cargo run --release -p drover-nbd --example nbd-read -- "nbd+unix:///?socket=/tmp/s" 2 4 1048576'
//! ```
//!
//! Arguments: URI, connections, requests in flight on each, bytes of a request.
#![allow(missing_docs)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use drover_disk::{Buffer, Disk, DiskError, Request, Work};
use drover_nbd::{NbdDisk, NbdOptions};
use drover_types::ByteSpan;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [uri, lanes, depth, bytes] = &arguments[..] else {
        return Err("usage: nbd-read URI CONNECTIONS DEPTH BYTES".into());
    };
    let (lanes, depth, bytes): (usize, usize, u64) = (lanes.parse()?, depth.parse()?, bytes.parse()?);
    let disk = NbdDisk::open_source(&uri.parse()?, NbdOptions::default())?;
    let started = Instant::now();
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..lanes).map(|_| scope.spawn(|| read(&disk, &next, depth, bytes))).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| std::process::abort()))
    })?;
    let seconds = started.elapsed().as_secs_f64();
    println!("{lanes} x {depth} x {bytes}: {seconds:.2} s, {:.2} GB/s", disk.size() as f64 / seconds / 1e9);
    Ok(())
}

fn read(disk: &NbdDisk, next: &AtomicU64, depth: usize, bytes: u64) -> Result<(), DiskError> {
    let mut lane = disk.open_lane()?;
    let mut spare: Vec<Buffer> = (0..depth).map(|_| Buffer::zeroed(bytes as usize)).collect();
    loop {
        while let Some(mut buffer) = spare.pop() {
            let offset = next.fetch_add(bytes, Ordering::Relaxed);
            if offset >= disk.size() {
                break;
            }
            let span = ByteSpan::new(offset, bytes.min(disk.size() - offset));
            buffer.set_len(span.length as usize);
            lane.submit(Request { id: offset, span, work: Work::Read(buffer) });
        }
        let Some(completion) = lane.complete() else { return Ok(()) };
        completion.result?;
        if let Work::Read(buffer) = completion.work {
            spare.push(buffer);
        }
    }
}
