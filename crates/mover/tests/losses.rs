//! A target that loses what it had acknowledged and not flushed, as a server does that is restarted.
#![allow(clippy::unwrap_used)]

use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use drover_disk::{
    Around, Completion, Disk, DiskError, DiskErrorKind, DiskOp, Lane, MemDisk, Request, conformance,
};
use drover_mover::{CopyJob, Progress, StopSignal, TransferOptions, copy};
use drover_types::{BLOCK_BYTES, ByteSpan};

const SIZE: u64 = 64 * BLOCK_BYTES;
/// The write that ends only after the flush has failed.
const SLOW: u64 = 8 * BLOCK_BYTES;

/// Its first flush fails, and all that was written before it is gone then.
struct Forgetful {
    disk: MemDisk,
    forgot: Arc<(Mutex<bool>, Condvar)>,
}

impl Around for Forgetful {
    fn inner(&self) -> &dyn Disk {
        &self.disk
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        Ok(Box::new(SlowLane { lane: self.disk.open_lane()?, forgot: self.forgot.clone() }))
    }

    fn flush(&self) -> Result<(), DiskError> {
        let (forgot, changed) = &*self.forgot;
        let mut forgot = forgot.lock().unwrap();
        if *forgot {
            return self.disk.flush();
        }
        self.disk.overwrite(0, &vec![0xee; SIZE as usize]);
        *forgot = true;
        changed.notify_all();
        let gone = io::Error::from(io::ErrorKind::ConnectionReset);
        Err(DiskError::with_kind(
            DiskErrorKind::Transient,
            DiskOp::Flush,
            ByteSpan::new(0, 0),
            "target",
            gone,
        ))
    }
}

struct SlowLane {
    lane: Box<dyn Lane>,
    forgot: Arc<(Mutex<bool>, Condvar)>,
}

impl Lane for SlowLane {
    fn submit(&mut self, request: Request) {
        self.lane.submit(request);
    }

    /// The slow write is on the target, but whoever waits for it hears so late.
    fn complete(&mut self) -> Option<Completion> {
        let completion = self.lane.complete()?;
        if completion.span.offset == SLOW {
            let (forgot, changed) = &*self.forgot;
            let waited =
                changed.wait_timeout_while(forgot.lock().unwrap(), Duration::from_secs(60), |it| !*it);
            assert!(*waited.unwrap().0, "nobody flushed meanwhile");
        }
        Some(completion)
    }

    fn in_flight(&self) -> usize {
        self.lane.in_flight()
    }
}

#[test]
fn a_write_that_ended_while_a_flush_failed_is_done_again() {
    let content = conformance::pattern(SIZE);
    let disk = MemDisk::new("target", vec![0xee; SIZE as usize]);
    let job = CopyJob {
        source: Arc::new(MemDisk::new("source", content.clone())),
        target: Arc::new(Forgetful { disk: disk.clone(), forgot: Arc::default() }),
        target_tag: "target".into(),
        target_is_new: false,
        target_zeroed: false,
        owner: None,
        journal: None,
        pass: None,
        options: TransferOptions {
            lanes: Some(2),
            depth: Some(1),
            request_bytes: Some(BLOCK_BYTES),
            ..TransferOptions::default()
        },
    };
    copy(&job, &Progress::default(), &StopSignal::default()).unwrap();
    assert!(disk.content() == content, "a write was lost");
}
