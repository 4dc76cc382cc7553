//! The client against servers: scripted ones that break the protocol, and nbdkit and qemu-nbd.
#![allow(clippy::unwrap_used, clippy::new_without_default, missing_docs)]

mod certificates;
mod contexts;
mod extended;
mod fake;
mod hostile;
mod list;
mod nbdkit;
mod old;
mod outage;
mod process;
mod protocol;
mod qemu;
mod tls;
mod transmission;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use drover_disk::{Buffer, Completion, Disk, DiskError, Lane, Request, Slice, Work};
use drover_types::ByteSpan;

/// A directory of the test's own, gone when dropped.
pub struct Dir(PathBuf);

impl Dir {
    pub fn new() -> Dir {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("drover-nbd-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Dir(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// The error with its cause, as an operator sees it.
pub fn words(error: &DiskError) -> String {
    format!("{error}: {}", error.source)
}

pub fn submit_read(lane: &mut dyn Lane, id: u64, span: ByteSpan) {
    let work = Work::Read(Buffer::zeroed(span.length as usize));
    lane.submit(Request { id, span, work });
}

pub fn submit_write(lane: &mut dyn Lane, id: u64, span: ByteSpan, byte: u8) {
    let mut buffer = Buffer::zeroed(span.length as usize);
    buffer.fill(byte);
    lane.submit(Request { id, span, work: Work::Write(Slice::from(buffer)) });
}

pub fn read(lane: &mut dyn Lane, span: ByteSpan) -> Completion {
    submit_read(lane, 1, span);
    lane.complete().unwrap()
}

pub fn write(lane: &mut dyn Lane, span: ByteSpan, byte: u8) -> Completion {
    submit_write(lane, 1, span, byte);
    lane.complete().unwrap()
}

pub fn zero(lane: &mut dyn Lane, span: ByteSpan) -> Completion {
    lane.submit(Request { id: 1, span, work: Work::Zero });
    lane.complete().unwrap()
}

pub fn bytes(completion: Completion) -> Vec<u8> {
    if let Err(error) = &completion.result {
        panic!("{}", words(error));
    }
    match completion.work {
        Work::Read(buffer) => buffer.to_vec(),
        _ => panic!("not a read"),
    }
}

pub fn read_all(disk: &dyn Disk) -> Vec<u8> {
    let mut lane = disk.open_lane().unwrap();
    let step = disk.limits().bytes_max.min(1 << 20);
    let starts = (0..disk.size()).step_by(step as usize);
    starts
        .flat_map(|start| {
            bytes(read(&mut *lane, ByteSpan::from_bounds(start, (start + step).min(disk.size()))))
        })
        .collect()
}
