//! Passes with worker threads: disks in memory with faults, journals on a real file system.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use drover_copy::{Header, RetryPolicy, encode_entry, replay};
use drover_disk::memory::{Effect, MemDisk, Nth};
use drover_disk::{Around, Disk, DiskError, DiskErrorKind, DiskOp, Features};
use drover_mover::{
    Areas, AreasJob, Audit, CopyJob, CopyReport, MoveError, PassJob, Progress, StopSignal, TransferOptions,
    copy, copy_areas,
};
use drover_types::{BLOCK_BYTES, ByteSpan, Extent};

const BLOCKS: u64 = 120;
const SIZE: usize = (BLOCKS * BLOCK_BYTES) as usize - 700;

fn content() -> Vec<u8> {
    let mut bytes = vec![0; SIZE];
    for (number, block) in bytes.chunks_mut(BLOCK_BYTES as usize).enumerate() {
        block.fill((number % 4 * 31) as u8);
    }
    bytes
}

/// A replica: a guest's disk, its target, and the journal between two passes.
struct Replica {
    source: Arc<MemDisk>,
    target: Arc<MemDisk>,
    folder: tempfile::TempDir,
}

impl Replica {
    fn new() -> Replica {
        Replica {
            source: Arc::new(MemDisk::new("source", content())),
            target: Arc::new(MemDisk::new("target", vec![0xee; SIZE])),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn with_first_pass() -> Replica {
        let replica = Replica::new();
        replica.run(pass(1, Areas::Changed(vec![]))).unwrap();
        replica
    }

    fn journal(&self) -> std::path::PathBuf {
        self.folder.path().join("t.drover-journal")
    }

    fn job(&self, pass: Option<PassJob>) -> CopyJob {
        CopyJob {
            source: self.source.clone(),
            target: self.target.clone(),
            target_tag: "target".into(),
            target_is_new: false,
            target_zeroed: false,
            owner: None,
            journal: Some(self.journal()),
            pass,
            options: TransferOptions {
                request_bytes: Some(2 * BLOCK_BYTES),
                // What passes has passed long before on any machine.
                retry: RetryPolicy { give_up_after: Duration::from_secs(120), ..RetryPolicy::default() },
                ..TransferOptions::default()
            },
        }
    }

    fn run(&self, pass: PassJob) -> Result<CopyReport, MoveError> {
        copy(&self.job(Some(pass)), &Progress::default(), &StopSignal::default())
    }

    /// The guest writes; where, as a source would tell it.
    fn write(&self, block: u64, byte: u8) -> ByteSpan {
        let span = ByteSpan::new(block * BLOCK_BYTES + 100, 9);
        self.source.overwrite(span.offset, &[byte; 9]);
        span
    }

    fn check(&self, report: &CopyReport) {
        assert!(self.target.content() == self.source.content(), "the target is not the frozen disk");
        assert!(!self.target.has_unflushed());
        let told = self.replay();
        assert_eq!((told.complete, told.damage), (Some(report.root), None));
        assert!(told.pass.is_some_and(|pass| pass.is_complete));
    }

    fn replay(&self) -> drover_copy::Replay {
        replay(&mut &std::fs::read(self.journal()).unwrap()[..]).unwrap()
    }
}

fn pass(number: u32, areas: Areas) -> PassJob {
    let frozen = Some(format!("state of pass {number}"));
    PassJob { number, disk: "vm/2000".into(), frozen, areas, since: None, audit: None }
}

#[test]
fn a_pass_reads_its_areas_and_writes_what_changed() {
    let replica = Replica::with_first_pass();
    let writes = replica.target.counts().writes;
    let mut spans = vec![replica.write(7, 1), replica.write(90, 2)];
    // What was data is zero now.
    replica.source.overwrite(9 * BLOCK_BYTES, &vec![0; BLOCK_BYTES as usize]);
    spans.push(ByteSpan::new(4 * BLOCK_BYTES, 20 * BLOCK_BYTES));
    spans.push(ByteSpan::new(SIZE as u64 - 1, 1 << 40));
    let progress = Progress::default();
    let job = replica.job(Some(pass(2, Areas::Changed(spans))));
    let report = copy(&job, &progress, &StopSignal::default()).unwrap();
    replica.check(&report);
    let told = report.pass.unwrap();
    assert_eq!(told.areas_bytes, 22 * BLOCK_BYTES - 700);
    assert_eq!(told.changed_bytes, 3 * BLOCK_BYTES);
    assert_eq!(report.snapshot.size, told.areas_bytes, "progress is of the areas");
    assert_eq!((report.snapshot.done(), report.snapshot.left_to_read()), (told.areas_bytes, 0));
    assert!(replica.target.counts().writes - writes <= 2);
}

#[test]
fn a_hash_diff_reads_all_and_writes_what_differs() {
    let replica = Replica::with_first_pass();
    replica.write(50, 9);
    let report = replica.run(pass(2, Areas::All)).unwrap();
    replica.check(&report);
    assert_eq!(report.pass.unwrap().changed_bytes, BLOCK_BYTES);
    assert_eq!(report.snapshot.size, SIZE as u64);
}

#[test]
fn a_pass_that_dies_in_its_middle_is_right_at_the_next_try_also_when_the_guest_went_back() {
    for (nth, same_state) in [(3, false), (11, false), (11, true)] {
        let replica = Replica::with_first_pass();
        let before = replica.source.content();
        let spans: Vec<ByteSpan> = (10..60).map(|block| replica.write(block, 0x77)).collect();
        let nth_ever = replica.target.counts().writes + nth;
        replica.target.add_fault(DiskOp::Write, Nth::From(nth_ever), Effect::Fail(DiskErrorKind::OutOfSpace));
        let job = pass(2, Areas::Changed(spans.clone()));
        assert!(matches!(replica.run(job.clone()), Err(MoveError::Disk(_))));
        assert!(replica.replay().pass.is_some_and(|pass| !pass.is_complete));
        replica.target.clear_faults();
        let mut again = job;
        if !same_state {
            replica.source.overwrite(0, &before);
            again.frozen = Some("another".into());
        }
        let report = replica.run(again).unwrap();
        replica.check(&report);
        let resumed = report.snapshot.resumed;
        assert_eq!(resumed > 0, same_state, "{resumed} bytes of write {nth} not read again");
    }
}

#[test]
fn what_was_being_written_when_the_run_died_is_written_again() {
    let replica = Replica::with_first_pass();
    let before = replica.source.content();
    let span = replica.write(30, 0x55);
    replica.target.add_fault(DiskOp::Flush, Nth::From(1), Effect::Fail(DiskErrorKind::Failed));
    let areas = Areas::Changed(vec![span]);
    assert!(replica.run(pass(2, areas.clone())).is_err());
    replica.target.clear_faults();
    // Torn: neither the old block nor the new one is there.
    replica.target.overwrite(30 * BLOCK_BYTES + 5, &[0xab; 300]);
    replica.source.overwrite(0, &before);
    let again = PassJob { frozen: None, ..pass(2, areas) };
    replica.check(&replica.run(again).unwrap());
}

#[test]
fn passing_faults_in_a_pass_are_retried() {
    let replica = Replica::with_first_pass();
    let spans: Vec<ByteSpan> = (0..BLOCKS).step_by(3).map(|block| replica.write(block, 0x33)).collect();
    let (reads, target) = (replica.source.counts().reads, replica.target.counts());
    replica.source.add_fault(DiskOp::Read, Nth::Only(reads + 2), Effect::Fail(DiskErrorKind::Transient));
    replica.source.add_fault(DiskOp::Read, Nth::Only(reads + 6), Effect::BreakLane);
    replica.target.add_fault(DiskOp::Write, Nth::Only(target.writes + 3), Effect::BreakLane);
    let flush = Nth::Only(target.flushes + 1);
    replica.target.add_fault(DiskOp::Flush, flush, Effect::Fail(DiskErrorKind::Transient));
    let report = replica.run(pass(2, Areas::Changed(spans))).unwrap();
    replica.check(&report);
    assert_eq!(report.pass.unwrap().changed_bytes, 40 * BLOCK_BYTES);
    assert!(report.snapshot.retries >= 3, "{} retries", report.snapshot.retries);
}

#[test]
fn an_audit_finds_what_the_source_concealed_and_the_pass_stays_open() {
    let replica = Replica::with_first_pass();
    let told = replica.write(20, 1);
    replica.write(70, 2);
    replica.write(71, 2);
    let audit = Some(Audit { share: 1.0, seed: 4 });
    let report = replica.run(PassJob { audit, ..pass(2, Areas::Changed(vec![told])) }).unwrap();
    let found = report.pass.unwrap();
    let blocks: Vec<u64> = found.audit_mismatches.iter().map(|mismatch| mismatch.block).collect();
    assert_eq!((blocks, found.audited_blocks), (vec![70, 71], BLOCKS - 1));
    assert!(replica.target.content() == replica.source.content(), "they were copied too");
    assert_eq!(replica.replay().complete, None);
    let again = replica.run(pass(2, Areas::All)).unwrap();
    replica.check(&again);
    assert_eq!(again.pass.unwrap().changed_bytes, 0);
}

/// A disk whose map says that nothing was ever written to it.
struct SaidToBeEmpty(Arc<MemDisk>);

impl Around for SaidToBeEmpty {
    fn inner(&self) -> &dyn Disk {
        self.0.as_ref()
    }

    fn features(&self) -> Features {
        Features { extents: true, ..self.0.features() }
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        Ok(vec![Extent::zero(span)])
    }
}

#[test]
fn an_audit_reads_what_the_source_s_map_calls_empty() {
    let replica = Replica::with_first_pass();
    // Was zeros before; what conceals the change conceals that there is anything.
    replica.write(72, 2);
    let audit = Some(Audit { share: 1.0, seed: 4 });
    let mut job = replica.job(Some(PassJob { audit, ..pass(2, Areas::Changed(vec![])) }));
    job.source = Arc::new(SaidToBeEmpty(replica.source.clone()));
    let report = copy(&job, &Progress::default(), &StopSignal::default()).unwrap();
    let found = report.pass.unwrap();
    let blocks: Vec<u64> = found.audit_mismatches.iter().map(|mismatch| mismatch.block).collect();
    assert_eq!((blocks, found.audited_blocks), (vec![72], BLOCKS));
    assert!(replica.target.content() == replica.source.content(), "it was copied too");
}

#[test]
fn a_source_of_another_size_is_refused_and_nothing_is_lost() {
    let mut replica = Replica::with_first_pass();
    let grown = [&content()[..], &[1; 1000]].concat();
    let journal = std::fs::read(replica.journal()).unwrap();
    let small = std::mem::replace(&mut replica.source, Arc::new(MemDisk::new("source", grown)));
    replica.target = Arc::new(MemDisk::new("target", vec![0; SIZE + 1000]));
    match replica.run(pass(2, Areas::All)) {
        Err(MoveError::Resized { was, now, .. }) => {
            assert_eq!((was, now), (SIZE as u64, SIZE as u64 + 1000));
        }
        other => panic!("{other:?}"),
    }
    assert!(std::fs::read(replica.journal()).unwrap() == journal);
    replica.source = small;
    replica.run(pass(2, Areas::All)).unwrap();
}

#[test]
fn a_journal_of_another_disk_means_a_whole_copy() {
    let replica = Replica::with_first_pass();
    let other = PassJob { disk: "vm/2001".into(), ..pass(2, Areas::Changed(vec![])) };
    let report = replica.run(other).unwrap();
    replica.check(&report);
    assert_eq!(report.pass.unwrap().changed_bytes, SIZE as u64);
    assert!(report.note.unwrap().contains("started again"));
}

#[test]
fn a_journal_stays_short_over_many_passes() {
    let replica = Replica {
        source: Arc::new(MemDisk::blank("source", 3000 * BLOCK_BYTES)),
        target: Arc::new(MemDisk::blank("target", 3000 * BLOCK_BYTES)),
        folder: tempfile::tempdir().unwrap(),
    };
    let mut longest = 0;
    for number in 1..9 {
        // Lone blocks that stay zeros cost a record each, to forget and to record again.
        let spans = (0..1500).map(|block| ByteSpan::new(2 * block * BLOCK_BYTES, 1)).collect();
        let report = replica.run(pass(number, Areas::Changed(spans))).unwrap();
        assert_eq!(report.pass.as_ref().unwrap().journal_note, None);
        assert!(replica.replay().complete == Some(report.root));
        longest = longest.max(std::fs::metadata(replica.journal()).unwrap().len());
    }
    let of_one_pass = 1500 * 64 + 200;
    assert!(longest > of_one_pass * 2 && longest <= (256 << 10) + of_one_pass, "{longest} bytes");
    assert!(!replica.folder.path().join("t.drover-journal.new").exists());
}

#[test]
fn a_journal_of_an_older_format_is_rewritten_before_a_pass() {
    let replica = Replica::with_first_pass();
    let told = replica.replay();
    let old = Header { version: 2, ..told.header };
    let mut bytes = old.encode().to_vec();
    told.leaves.entries().for_each(|entry| bytes.extend(encode_entry(&old, &entry)));
    std::fs::write(replica.journal(), bytes).unwrap();
    let span = replica.write(3, 0x44);
    let report = replica.run(pass(2, Areas::Changed(vec![span]))).unwrap();
    replica.check(&report);
    assert_eq!(report.pass.unwrap().changed_bytes, BLOCK_BYTES, "what it told is still known");
    assert!(replica.replay().header.takes_passes() && replica.replay().epoch > old.epoch);
}

#[test]
fn without_a_journal_a_pass_copies_all() {
    let replica = Replica::new();
    let job = CopyJob { journal: None, ..replica.job(Some(pass(2, Areas::Changed(vec![])))) };
    let report = copy(&job, &Progress::default(), &StopSignal::default()).unwrap();
    assert_eq!(report.pass.unwrap().changed_bytes, SIZE as u64);
    assert!(replica.target.content() == replica.source.content());
}

#[test]
fn a_stop_in_the_middle_keeps_what_was_copied() {
    let replica = Replica::with_first_pass();
    let spans: Vec<ByteSpan> = (0..BLOCKS - 1).map(|block| replica.write(block, 0x66)).collect();
    let (stop, progress) = (StopSignal::default(), Progress::default());
    let mut job = replica.job(Some(pass(2, Areas::Changed(spans.clone()))));
    // Few requests in flight, each late from the fourth on: the stop comes in the middle.
    let late = Nth::From(replica.source.counts().reads + 4);
    replica.source.add_fault(DiskOp::Read, late, Effect::Delay(Duration::from_millis(400)));
    (job.options.lanes, job.options.depth) = (Some(2), Some(2));
    let result = std::thread::scope(|scope| {
        let copying = scope.spawn(|| copy(&job, &progress, &stop));
        while progress.snapshot().settled == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.stop();
        copying.join().unwrap()
    });
    assert!(matches!(result, Err(MoveError::Cancelled)));
    replica.source.clear_faults();
    let report = replica.run(pass(2, Areas::Changed(spans))).unwrap();
    replica.check(&report);
    assert!(report.snapshot.resumed > 0);
}

#[test]
fn a_copy_of_one_state_does_not_go_on_with_a_journal_of_passes() {
    let replica = Replica::with_first_pass();
    let report = copy(&replica.job(None), &Progress::default(), &StopSignal::default()).unwrap();
    assert_eq!((report.snapshot.resumed, report.snapshot.settled), (0, SIZE as u64));
    assert!(
        report.note.unwrap().contains("started again")
            && report.pass.is_none()
            && Path::new(&replica.journal()).exists()
    );
}

/// Areas of a disk of which the target holds an earlier state, and which of them a journal may call by one name.
fn areas(spans: &[ByteSpan]) -> AreasJob {
    AreasJob { spans: spans.to_vec(), tag: format!("bitmap {spans:?}") }
}

#[test]
fn only_areas_are_copied_and_nothing_else_is_looked_at() {
    let replica = Replica::new();
    let spans = [
        ByteSpan::new(7 * BLOCK_BYTES + 9, 1),
        ByteSpan::new(90 * BLOCK_BYTES, 3 * BLOCK_BYTES),
        ByteSpan::new(SIZE as u64 - 1, 1),
    ];
    let progress = Progress::default();
    let report = copy_areas(&replica.job(None), &areas(&spans), &progress, &StopSignal::default()).unwrap();
    let mut expected = vec![0xee; SIZE];
    for block in [7, 90, 91, 92, BLOCKS - 1] {
        let range = (block * BLOCK_BYTES) as usize..(((block + 1) * BLOCK_BYTES) as usize).min(SIZE);
        expected[range.clone()].copy_from_slice(&content()[range]);
    }
    assert!(replica.target.content() == expected, "the areas and nothing else");
    assert!(!replica.target.has_unflushed());
    assert_eq!((report.leaves.known_blocks(), report.leaves.root(), report.note), (5, None, None));
    assert_eq!(progress.snapshot().size, 5 * BLOCK_BYTES - 700);
    assert_eq!((replica.replay().complete, replica.replay().leaves.known_blocks()), (None, 5));
    let none =
        copy_areas(&replica.job(None), &areas(&[]), &Progress::default(), &StopSignal::default()).unwrap();
    assert_eq!((none.leaves.known_blocks(), none.snapshot.read), (0, 0));
}

#[test]
fn areas_are_gone_on_with_and_never_as_a_whole_copy_or_as_other_areas() {
    let replica = Replica::new();
    let run =
        |job: &AreasJob| copy_areas(&replica.job(None), job, &Progress::default(), &StopSignal::default());
    let some = areas(&[ByteSpan::new(0, 60 * BLOCK_BYTES)]);
    replica.source.add_fault(DiskOp::Read, Nth::From(20), Effect::Fail(DiskErrorKind::Failed));
    assert!(matches!(run(&some), Err(MoveError::Disk(_))));
    replica.source.clear_faults();
    let known = replica.replay().leaves.known_blocks();
    assert!((1..60).contains(&known), "{known}");
    let read = replica.source.counts().bytes_read;
    let report = run(&some).unwrap();
    assert!(report.note.unwrap().contains("resumed"));
    assert!(replica.source.counts().bytes_read - read <= (60 - known) * BLOCK_BYTES);
    let border = 60 * BLOCK_BYTES as usize;
    let target = replica.target.content();
    assert!(target[..border] == content()[..border] && target[border..].iter().all(|byte| *byte == 0xee));
    let others = run(&areas(&[ByteSpan::new(0, BLOCK_BYTES)])).unwrap();
    assert!(others.note.unwrap().contains("started again"));
    let whole = copy(&replica.job(None), &Progress::default(), &StopSignal::default()).unwrap();
    assert!(whole.note.unwrap().contains("started again"));
    assert!(replica.target.content() == content() && replica.replay().complete == Some(whole.root));
}
