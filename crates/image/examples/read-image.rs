//! Reads a whole image as fast as it goes, to nowhere or to a raw file: the figures beside `qemu-img`.
//!
//! `read-image IMAGE FORMAT LANES [TARGET]`
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use drover_disk::{Buffer, Disk, FileDisk, Lane, OpenTarget, Request, Slice, Work};
use drover_image::{Format, OpenOptions, open};
use drover_types::{ByteSpan, ExtentKind};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [image, format, lanes, target @ ..] = &arguments[..] else {
        panic!("read-image IMAGE FORMAT LANES [TARGET]")
    };
    let format: Format = format.parse().unwrap();
    let disk = open(image, format, &OpenOptions::default()).unwrap();
    let target = target.first().map(|path| {
        FileDisk::open_target(path, OpenTarget { size: disk.size(), create: true, resume: false }).unwrap()
    });
    let started = Instant::now();
    let next = AtomicU64::new(0);
    let read = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..lanes.parse().unwrap() {
            scope.spawn(|| work(&disk, target.as_ref(), &next, &read));
        }
    });
    if let Some(target) = &target {
        target.flush().unwrap();
    }
    let seconds = started.elapsed().as_secs_f64();
    let read = read.into_inner();
    println!("{read} bytes read in {seconds:.3} s, {:.2} GB/s", read as f64 / seconds / 1e9);
}

fn work(disk: &dyn Disk, target: Option<&FileDisk>, next: &AtomicU64, read: &AtomicU64) {
    let step = disk.limits().bytes_preferred;
    let mut from = disk.open_lane().unwrap();
    let mut to = target.map(|target| target.open_lane().unwrap());
    let mut buffer = Buffer::zeroed(step as usize);
    loop {
        let at = next.fetch_add(step, Ordering::Relaxed);
        if at >= disk.size() {
            return;
        }
        let span = ByteSpan::new(at, step.min(disk.size() - at));
        if disk.extents(span).unwrap().iter().all(|extent| extent.kind == ExtentKind::Zero) {
            continue;
        }
        buffer.set_len(span.length as usize);
        let Work::Read(full) = run(&mut *from, span, Work::Read(buffer)) else { panic!("not a read") };
        read.fetch_add(span.length, Ordering::Relaxed);
        buffer = match &mut to {
            None => full,
            Some(to) => match run(&mut **to, span, Work::Write(Slice::from(full))) {
                Work::Write(slice) => slice.into_buffer().unwrap(),
                _ => panic!("not a write"),
            },
        };
    }
}

fn run(lane: &mut dyn Lane, span: ByteSpan, work: Work) -> Work {
    lane.submit(Request { id: 0, span, work });
    let done = lane.complete().unwrap();
    done.result.unwrap();
    done.work
}
