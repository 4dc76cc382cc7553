//! A copy that is asked to stop while its target has taken more than a slow line has carried.
#![allow(clippy::unwrap_used)]

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};

use drover_disk::{
    Completion, Disk, DiskError, DiskErrorKind, DiskOp, Features, Lane, Limits, MemDisk, Request, Work,
    conformance, read_span,
};
use drover_mover::{CopyJob, MoveError, Progress, StopSignal, TransferOptions, copy};
use drover_types::{BLOCK_BYTES, ByteSpan, Extent};

const BLOCKS: u64 = 256;
/// Blocks that its line carries before it stands still.
const CARRIED: usize = 5;

/// A target at the other end of a line: a write ends when it is taken, and a flush waits until all are carried.
struct Ahead {
    disk: MemDisk,
    line: Mutex<Line>,
    changed: Condvar,
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<(ByteSpan, Vec<u8>)>,
    carried: usize,
    is_withdrawn: bool,
    withdrawn: Vec<ByteSpan>,
}

impl Ahead {
    fn take(&self, span: ByteSpan, bytes: &[u8]) -> Result<(), DiskError> {
        let mut line = self.line.lock().unwrap();
        if line.is_withdrawn {
            let stopped = io::Error::other("the run is to stop");
            return Err(DiskError::with_kind(DiskErrorKind::Gone, DiskOp::Write, span, "ahead", stopped));
        }
        line.waiting.push_back((span, bytes.to_vec()));
        while line.carried < CARRIED && !line.waiting.is_empty() {
            let (span, bytes) = line.waiting.pop_front().unwrap();
            self.disk.overwrite(span.offset, &bytes);
            line.carried += 1;
        }
        self.changed.notify_all();
        Ok(())
    }
}

struct AheadLane(Arc<Ahead>, VecDeque<Request>);

impl Lane for AheadLane {
    fn submit(&mut self, request: Request) {
        self.1.push_back(request);
    }

    fn complete(&mut self) -> Option<Completion> {
        let Request { id, span, work } = self.1.pop_front()?;
        let result = match &work {
            Work::Write(slice) => self.0.take(span, slice),
            Work::Zero | Work::Read(_) => panic!("a source without zeros is copied"),
        };
        Some(Completion { id, span, work, result })
    }

    fn in_flight(&self) -> usize {
        self.1.len()
    }
}

struct Target(Arc<Ahead>);

impl Disk for Target {
    fn name(&self) -> &str {
        "ahead"
    }

    fn size(&self) -> u64 {
        self.0.disk.size()
    }

    fn identity(&self) -> String {
        self.0.disk.identity()
    }

    fn limits(&self) -> Limits {
        self.0.disk.limits()
    }

    fn features(&self) -> Features {
        self.0.disk.features()
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        Ok(vec![Extent::allocated(span)])
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        Ok(Box::new(AheadLane(self.0.clone(), VecDeque::new())))
    }

    fn flush(&self) -> Result<(), DiskError> {
        let line = self.0.line.lock().unwrap();
        drop(self.0.changed.wait_while(line, |line| !line.waiting.is_empty()).unwrap());
        self.0.disk.flush()
    }

    fn withdraw(&self) -> bool {
        let mut line = self.0.line.lock().unwrap();
        line.is_withdrawn = true;
        let given_up: Vec<ByteSpan> = line.waiting.drain(..).map(|(span, _)| span).collect();
        line.withdrawn.extend(given_up);
        self.0.changed.notify_all();
        true
    }

    fn withdrawn(&self) -> Vec<ByteSpan> {
        self.0.line.lock().unwrap().withdrawn.clone()
    }
}

#[test]
fn what_the_line_did_not_carry_is_neither_written_nor_recorded_and_what_it_did_is_both() {
    let size = BLOCKS * BLOCK_BYTES;
    let content: Vec<u8> = conformance::pattern(size).into_iter().map(|byte| byte | 1).collect();
    let source = MemDisk::new("source", content.clone());
    let disk = MemDisk::new("target", vec![0xee; size as usize]);
    let folder = tempfile::tempdir().unwrap();
    let ahead = Arc::new(Ahead { disk: disk.clone(), line: Mutex::default(), changed: Condvar::new() });
    let job = |target: Arc<dyn Disk>| CopyJob {
        source: Arc::new(source.clone()),
        target,
        target_tag: "target".into(),
        target_is_new: false,
        target_zeroed: false,
        owner: None,
        journal: Some(folder.path().join("journal")),
        pass: None,
        options: TransferOptions { request_bytes: Some(BLOCK_BYTES), ..TransferOptions::default() },
    };
    let stop = StopSignal::default();
    let result = std::thread::scope(|scope| {
        let copying =
            scope.spawn(|| copy(&job(Arc::new(Target(ahead.clone()))), &Progress::default(), &stop));
        let line = ahead.line.lock().unwrap();
        // All of it is taken, so a flush waits, and covers what the line does not carry.
        drop(ahead.changed.wait_while(line, |line| line.waiting.len() < BLOCKS as usize - CARRIED).unwrap());
        stop.stop();
        copying.join().unwrap()
    });
    assert!(matches!(result, Err(MoveError::Cancelled)), "{result:?}");
    let mut lane = disk.open_lane().unwrap();
    let held = (0..BLOCKS).filter(|block| {
        let span = ByteSpan::new(block * BLOCK_BYTES, BLOCK_BYTES);
        read_span(lane.as_mut(), span).unwrap()[..] == content[span.offset as usize..span.end() as usize]
    });
    assert_eq!(held.count(), CARRIED);
    let report = copy(&job(Arc::new(disk.clone())), &Progress::default(), &StopSignal::default()).unwrap();
    assert_eq!(report.snapshot.resumed, CARRIED as u64 * BLOCK_BYTES);
    assert!(disk.content() == content);
}
