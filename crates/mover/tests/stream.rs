//! A disk as a stream.
#![allow(clippy::unwrap_used)]

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use drover_copy::{Leaf, LeafTable, RetryPolicy};
use drover_disk::memory::{Effect, MemDisk, Nth};
use drover_disk::{Disk, DiskErrorKind, DiskOp, Pace, Paced};
use drover_mover::{
    MemoryBudget, MoveError, Progress, StopSignal, TransferOptions, record_upload, stream, upload,
    was_uploaded,
};
use drover_types::{BLOCK_BYTES, Digest};

const BLOCK: usize = BLOCK_BYTES as usize;

fn content(size: usize) -> Vec<u8> {
    let byte = |at: usize| if at / (3 * BLOCK) % 3 == 1 { 0 } else { (at / 11 % 253) as u8 };
    (0..size).map(byte).collect()
}

fn root_of(bytes: &[u8]) -> Digest {
    let mut table = LeafTable::new(bytes.len() as u64);
    bytes.chunks(BLOCK).enumerate().for_each(|(block, bytes)| table.set(block as u64, Leaf::of(bytes)));
    table.root().unwrap()
}

fn options() -> TransferOptions {
    TransferOptions {
        request_bytes: Some(2 * BLOCK_BYTES),
        memory: MemoryBudget::new(6 * 2 * BLOCK_BYTES),
        // What passes has passed long before on any machine.
        retry: RetryPolicy { give_up_after: Duration::from_secs(120), ..RetryPolicy::default() },
        ..TransferOptions::default()
    }
}

fn streamed(disk: &dyn Disk, sink: &mut dyn Write, options: &TransferOptions) -> Result<Digest, MoveError> {
    let progress = Progress::default();
    let report = stream(disk, sink, options, &progress, &StopSignal::default())?;
    assert_eq!((progress.snapshot().settled, progress.snapshot().size), (disk.size(), disk.size()));
    Ok(report.root)
}

#[test]
fn every_byte_comes_in_order_whatever_the_size() {
    for size in [0, 1, 511, BLOCK - 1, BLOCK, BLOCK + 1, 31 * BLOCK + 77] {
        let bytes = content(size);
        for options in [options(), TransferOptions::default()] {
            let mut out = Vec::new();
            let root = streamed(&MemDisk::new("disk", bytes.clone()), &mut out, &options).unwrap();
            assert!(out == bytes && root == root_of(&bytes), "{size}");
        }
    }
}

#[test]
fn late_and_failed_reads_change_neither_bytes_nor_order() {
    let bytes = content(60 * BLOCK + 5);
    let disk = MemDisk::new("disk", bytes.clone())
        .with_fault(DiskOp::Read, Nth::Every(5), Effect::Delay(Duration::from_millis(15)))
        .with_fault(DiskOp::Read, Nth::Only(7), Effect::Fail(DiskErrorKind::Transient))
        .with_fault(DiskOp::Read, Nth::Only(13), Effect::BreakLane)
        .with_fault(DiskOp::Open, Nth::Only(3), Effect::Fail(DiskErrorKind::Transient));
    for (lanes, depth) in [(1, 1), (4, 4), (8, 2)] {
        let mut out = Vec::new();
        let options = TransferOptions { lanes: Some(lanes), depth: Some(depth), ..options() };
        let root = streamed(&disk, &mut out, &options).unwrap();
        assert!(out == bytes && root == root_of(&bytes), "{lanes} {depth}");
    }
}

/// Counts what it is given and fails after so many bytes.
struct Closing(usize);

impl Write for Closing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let length = bytes.len().min(self.0);
        self.0 -= length;
        Ok(length)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_sink_that_closes_ends_the_run_and_is_told() {
    let disk = MemDisk::new("disk", content(40 * BLOCK));
    match streamed(&disk, &mut Closing(100_000), &options()) {
        Err(MoveError::Other { source, .. }) => {
            let error = source.downcast_ref::<io::Error>().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        }
        other => panic!("{other:?}"),
    }
    assert!(disk.counts().reads < 20, "the window bounds what is read ahead: {}", disk.counts().reads);
}

/// Holds nothing back.
struct Unhindered;

impl Pace for Unhindered {
    fn take(&self, _: u64) -> Result<(), Duration> {
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        false
    }
}

#[test]
fn a_disk_whose_sink_closed_is_sent_again() {
    let bytes = content(40 * BLOCK);
    let disk = Paced::new(Arc::new(MemDisk::new("disk", bytes.clone())), Arc::new(Unhindered));
    assert!(streamed(&disk, &mut Closing(100_000), &options()).is_err());
    let mut hasty = options();
    hasty.retry.give_up_after = Duration::from_millis(100);
    let mut out = Vec::new();
    let root = streamed(&disk, &mut out, &hasty).unwrap();
    assert!(out == bytes && root == root_of(&bytes));
}

#[test]
fn what_cannot_be_read_ends_the_run_with_its_error() {
    for kind in [DiskErrorKind::Failed, DiskErrorKind::Transient, DiskErrorKind::Corrupt] {
        let disk = MemDisk::new("disk", content(40 * BLOCK));
        disk.add_fault(DiskOp::Read, Nth::From(9), Effect::Fail(kind));
        let mut hasty = options();
        hasty.retry.give_up_after = Duration::from_millis(100);
        match streamed(&disk, &mut Vec::new(), &hasty) {
            Err(MoveError::Disk(error)) => assert_eq!(error.kind, kind),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_stop_ends_it() {
    let stop = StopSignal::default();
    stop.stop();
    let disk = MemDisk::new("disk", content(40 * BLOCK));
    let result = stream(&disk, &mut Vec::new(), &options(), &Progress::default(), &stop);
    assert!(matches!(result, Err(MoveError::Cancelled)));
}

#[test]
fn an_upload_counts_only_for_its_source_and_target_and_only_when_all_of_it_was_taken() {
    let bytes = content(40 * BLOCK + 7);
    let (mut out, progress) = (Vec::new(), Progress::default());
    let disk = MemDisk::new("disk", bytes.clone());
    let sent = upload(&disk, &mut out, &options(), &progress, &StopSignal::default()).unwrap();
    assert!(out == bytes && sent.leaves.root() == Some(root_of(&bytes)));
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    assert!(was_uploaded(&journal, "source", "claim 1").is_none());
    record_upload(&journal, "source", "claim 1", "plan p", &sent.leaves).unwrap();
    let known = was_uploaded(&journal, "source", "claim 1").unwrap();
    assert_eq!(known.root(), sent.leaves.root());
    assert!(was_uploaded(&journal, "source", "claim 2").is_none(), "made anew");
    assert!(was_uploaded(&journal, "later", "claim 1").is_none(), "the guest has run since");
    let whole = std::fs::read(&journal).unwrap();
    for cut in 1..60 {
        std::fs::write(&journal, &whole[..whole.len() - cut]).unwrap();
        assert!(was_uploaded(&journal, "source", "claim 1").is_none(), "{cut} bytes are lost");
    }
    // A second one takes the place of the first.
    record_upload(&journal, "later", "claim 2", "plan p", &sent.leaves).unwrap();
    assert!(was_uploaded(&journal, "later", "claim 2").is_some());
}
