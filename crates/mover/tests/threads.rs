//! How many threads the copy of a small disk starts. In a program of its own, whose threads are no other test's.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use drover_disk::{Around, Disk, DiskError, Lane, Limits, MemDisk, conformance};
use drover_mover::{CopyJob, Progress, StopSignal, TransferOptions, copy};
use drover_types::BLOCK_BYTES;

/// A source that counts the program's threads whenever a lane to it is opened.
struct Counting {
    disk: MemDisk,
    most: AtomicUsize,
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

impl Around for Counting {
    fn inner(&self) -> &dyn Disk {
        &self.disk
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        self.most.fetch_max(threads(), Ordering::Relaxed);
        self.disk.open_lane()
    }
}

#[test]
fn lanes_that_a_small_disk_never_wants_are_no_threads() {
    let content = conformance::pattern(4 * BLOCK_BYTES);
    let of_eight_lanes = |disk: MemDisk| disk.clone().with_limits(Limits { lanes_max: 8, ..disk.limits() });
    let disk = of_eight_lanes(MemDisk::new("source", content.clone()));
    let source = Arc::new(Counting { disk, most: AtomicUsize::new(0) });
    let target = MemDisk::blank("target", content.len() as u64);
    let job = CopyJob {
        source: source.clone(),
        target: Arc::new(of_eight_lanes(target.clone())),
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
