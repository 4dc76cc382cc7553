//! How many threads the copy of a small disk starts. In a program of its own, whose threads are no other test's.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use drover_disk::{Disk, DiskError, Features, Lane, Limits, MemDisk, conformance};
use drover_mover::{CopyJob, Progress, StopSignal, TransferOptions, copy};
use drover_types::{BLOCK_BYTES, ByteSpan, Extent};

/// A source that counts the program's threads whenever a lane to it is opened.
struct Counting {
    disk: MemDisk,
    most: AtomicUsize,
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

impl Disk for Counting {
    fn name(&self) -> &str {
        self.disk.name()
    }

    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn identity(&self) -> String {
        self.disk.identity()
    }

    fn limits(&self) -> Limits {
        Limits { lanes_max: 8, ..self.disk.limits() }
    }

    fn features(&self) -> Features {
        self.disk.features()
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        self.disk.extents(span)
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        self.most.fetch_max(threads(), Ordering::Relaxed);
        self.disk.open_lane()
    }

    fn flush(&self) -> Result<(), DiskError> {
        self.disk.flush()
    }
}

#[test]
fn lanes_that_a_small_disk_never_wants_are_no_threads() {
    let content = conformance::pattern(4 * BLOCK_BYTES);
    let source =
        Arc::new(Counting { disk: MemDisk::new("source", content.clone()), most: AtomicUsize::new(0) });
    let target = MemDisk::blank("target", content.len() as u64);
    let job = CopyJob {
        source: source.clone(),
        target: Arc::new(target.clone().with_limits(Limits { lanes_max: 8, ..target.limits() })),
        target_tag: "target".into(),
        target_is_new: true,
        target_zeroed: false,
        owner: None,
        journal: None,
        pass: None,
        options: TransferOptions { lanes: Some(1), ..TransferOptions::default() },
    };
    let before = threads();
    copy(&job, &Progress::default(), &StopSignal::default()).unwrap();
    assert!(target.content() == content);
    // The one that watches for a stop, and the lane that would be the second.
    let most = source.most.load(Ordering::Relaxed);
    assert!(most <= before + 2, "{most} threads, {before} before");
}
