//! Drover's own client with an epoch, and the whole story of a run that is given up for dead, is taken
//! over, and wakes up.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_disk::{
    Buffer, Completion, Disk, DiskError, DiskErrorKind, FileDisk, Lane, MemDisk, OpenTarget, Request, Slice,
    Work,
};
use drover_nbd::{NbdDisk, NbdOptions, NbdUri};
use drover_nbd_server::{Export, fence_path};
use drover_types::ByteSpan;
use rustix::process::{Pid, Signal, kill_process};

use crate::Stage;

const SIZE: u64 = 32 << 20;
const BLOCK: u64 = 64 << 10;

fn target(uri: &NbdUri, fence: Option<u64>) -> Result<NbdDisk, DiskError> {
    NbdDisk::open_target(uri, NbdOptions { fence, ..NbdOptions::default() })
}

fn write(lane: &mut dyn Lane, offset: u64, byte: u8) -> Completion {
    let mut buffer = Buffer::zeroed(BLOCK as usize);
    buffer.fill(byte);
    let span = ByteSpan::new(offset, BLOCK);
    lane.submit(Request { id: offset, span, work: Work::Write(Slice::from(buffer)) });
    lane.complete().unwrap()
}

fn is_over(error: &DiskError) -> bool {
    error.kind == DiskErrorKind::Denied && error.source.to_string().contains("epoch 1 is over")
}

#[test]
fn the_client_knows_whether_it_is_fenced() {
    let disk = Arc::new(MemDisk::new("a", vec![0; 1 << 20]));
    let fenced = Stage::new(Export::new("", disk.clone()).fenced(None).unwrap());
    let plain = Stage::new(Export::new("", disk).writable());
    assert!(target(&fenced.uri(), Some(7)).unwrap().is_fenced());
    assert!(!target(&plain.uri(), Some(7)).unwrap().is_fenced());
    let without = target(&fenced.uri(), None).unwrap();
    assert!(!without.is_fenced());
    assert_eq!(without.flush().unwrap_err().kind, DiskErrorKind::Denied, "epoch 7 has taken it");
    assert!(!without.extents(ByteSpan::new(0, 1 << 20)).unwrap().is_empty());
}

#[test]
fn an_old_run_is_denied_on_old_connections_and_new_ones() {
    let disk = MemDisk::new("a", vec![0; 1 << 20]);
    let stage = Stage::new(Export::new("", Arc::new(disk.clone())).fenced(None).unwrap());
    let old = target(&stage.uri(), Some(1)).unwrap();
    let mut lane = old.open_lane().unwrap();
    write(&mut *lane, 0, 1).result.unwrap();
    let new = target(&stage.uri(), Some(2)).unwrap();
    let errors = [
        write(&mut *lane, 0, 3).result.unwrap_err(),
        old.flush().unwrap_err(),
        old.open_lane().map(drop).unwrap_err(),
        target(&stage.uri(), Some(1)).map(drop).unwrap_err(),
    ];
    assert!(errors.iter().all(is_over), "{errors:?}");
    assert!(!lane.is_broken(), "to be refused costs no connection, and nothing is tried again");
    write(&mut *new.open_lane().unwrap(), BLOCK, 2).result.unwrap();
    new.flush().unwrap();
    assert!(disk.content()[..BLOCK as usize].iter().all(|byte| *byte == 1));
    assert!(new.extents(ByteSpan::new(0, 1 << 20)).is_ok() && !disk.has_unflushed());
}

/// Writes all blocks of the target again and again, until it is refused. A process of its own, so that it
/// can be stopped.
#[test]
#[ignore = "started by the test below"]
fn child_that_writes() {
    let uri: NbdUri = std::env::var("DROVER_TEST_URI").unwrap().parse().unwrap();
    let disk = target(&uri, Some(1)).unwrap();
    assert!(disk.is_fenced());
    let mut lane = disk.open_lane().unwrap();
    let until = Instant::now() + Duration::from_secs(120);
    let mut offset = 0;
    let error = loop {
        assert!(Instant::now() < until, "nobody refused anything");
        while lane.in_flight() < 8 {
            let mut buffer = Buffer::zeroed(BLOCK as usize);
            buffer.fill(b'A');
            let span = ByteSpan::new(offset, BLOCK);
            lane.submit(Request { id: offset, span, work: Work::Write(Slice::from(buffer)) });
            offset = (offset + BLOCK) % SIZE;
        }
        if let Err(error) = lane.complete().unwrap().result {
            break error;
        }
    };
    assert!(is_over(&error), "{error}: {}", error.source);
    // What was done before it was stopped may be answered after the first refusal.
    while let Some(completion) = lane.complete() {
        assert!(completion.result.as_ref().err().is_none_or(is_over));
    }
    // Whatever it tries now comes to the same.
    for offset in 0..16 {
        assert!(is_over(&write(&mut *lane, offset * BLOCK, b'A').result.unwrap_err()));
    }
    assert!(is_over(&disk.flush().unwrap_err()) && is_over(&disk.open_lane().map(drop).unwrap_err()));
    println!("A was refused");
}

struct Writer(Child);

impl Writer {
    fn start(uri: &NbdUri) -> Writer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "takeover::child_that_writes", "--ignored", "--nocapture"]);
        let child = command.env("DROVER_TEST_URI", uri.to_string()).stdout(Stdio::piped()).spawn();
        Writer(child.unwrap())
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn holds(path: &Path, byte: u8) -> bool {
    std::fs::read(path).unwrap().iter().all(|found| *found == byte)
}

#[test]
fn a_run_that_was_taken_for_dead_wakes_up_and_touches_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    let how = OpenTarget { size: SIZE, create: true, resume: false };
    let disk = Arc::new(FileDisk::open_target(&path, how).unwrap());
    let export = Export::new("", disk).fenced(Some(&fence_path(&path))).unwrap();
    let stage = Stage::new(export);
    let mut a = Writer::start(&stage.uri());
    let until = Instant::now() + Duration::from_secs(60);
    while !std::fs::read(&path).unwrap().contains(&b'A') {
        assert!(Instant::now() < until, "A never wrote");
    }
    a.signal(Signal::STOP);
    let b = target(&stage.uri(), Some(2)).unwrap();
    let mut lane = b.open_lane().unwrap();
    for offset in (0..SIZE).step_by(BLOCK as usize) {
        write(&mut *lane, offset, b'B').result.unwrap();
    }
    b.flush().unwrap();
    assert!(holds(&path, b'B'));
    a.signal(Signal::CONT);
    let mut said = String::new();
    a.0.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(a.0.wait().unwrap().success() && said.contains("A was refused"), "{said}");
    assert!(holds(&path, b'B'), "A touched what B took over");
}
