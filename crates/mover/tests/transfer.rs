//! Whole transfers with worker threads: disks in memory with faults, journals on a real file system.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use drover_copy::RetryPolicy;
use drover_disk::memory::{Effect, MemDisk, Nth};
use drover_disk::{Disk, DiskErrorKind, DiskOp};
use drover_mover::{
    CopyJob, CopyReport, MemoryBudget, MoveError, Progress, StopSignal, TransferOptions, Verify, copy, verify,
};
use drover_types::BLOCK_BYTES;

/// Every third block is zero, every other one differs from all others.
fn content(size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for (number, block) in bytes.chunks_mut(BLOCK_BYTES as usize).enumerate() {
        if number % 3 != 0 {
            let length = block.len();
            block[length / 2..].fill(number as u8 | 1);
            block[0] = (number >> 8) as u8 | 1;
        }
    }
    bytes
}

fn options() -> TransferOptions {
    TransferOptions {
        request_bytes: Some(4 * BLOCK_BYTES),
        // What passes has passed long before on any machine.
        retry: RetryPolicy { give_up_after: Duration::from_secs(120), ..RetryPolicy::default() },
        ..TransferOptions::default()
    }
}

/// Few requests in flight, each late from the fourth on: whoever looks in the middle of the copy finds it there.
fn slowly(source: &MemDisk, job: &mut CopyJob) {
    source.add_fault(DiskOp::Read, Nth::From(4), Effect::Delay(Duration::from_millis(400)));
    (job.options.lanes, job.options.depth) = (Some(2), Some(2));
}

fn job(source: &Arc<MemDisk>, target: &Arc<MemDisk>, journal: Option<&Path>) -> CopyJob {
    CopyJob {
        source: source.clone(),
        target: target.clone(),
        target_tag: "target".into(),
        target_is_new: false,
        target_zeroed: false,
        owner: None,
        journal: journal.map(Path::to_path_buf),
        pass: None,
        options: options(),
    }
}

fn run(job: &CopyJob) -> Result<CopyReport, MoveError> {
    copy(job, &Progress::default(), &StopSignal::default())
}

fn disks(size: usize) -> (Arc<MemDisk>, Arc<MemDisk>) {
    let target = MemDisk::new("target", vec![0xee; size]);
    (Arc::new(MemDisk::new("source", content(size))), Arc::new(target))
}

#[test]
fn copies_disks_of_every_odd_size() {
    let block = BLOCK_BYTES as usize;
    for size in [1, 511, 512, block - 1, block, block + 1, 4 * block, 33 * block + 7] {
        let (source, target) = disks(size);
        let report = run(&job(&source, &target, None)).unwrap();
        assert!(target.content() == content(size), "size {size}");
        assert!(!target.has_unflushed(), "size {size}: done before it is durable");
        let check = verify(
            target.as_ref(),
            &report.leaves,
            Verify::Full,
            &options(),
            &Progress::default(),
            &StopSignal::default(),
        );
        let check = check.unwrap();
        assert_eq!((check.is_equal(), check.target_root), (true, Some(report.root)), "size {size}");
    }
}

#[test]
fn passing_faults_of_source_and_target_are_retried() {
    let (source, target) = disks(64 * BLOCK_BYTES as usize);
    for nth in [1, 4, 8] {
        source.add_fault(DiskOp::Read, Nth::Only(nth), Effect::Fail(DiskErrorKind::Transient));
        target.add_fault(DiskOp::Write, Nth::Only(nth + 1), Effect::Fail(DiskErrorKind::Transient));
    }
    source.add_fault(DiskOp::Read, Nth::Only(5), Effect::Fail(DiskErrorKind::Corrupt));
    let report = run(&job(&source, &target, None)).unwrap();
    assert!(target.content() == source.content());
    assert!(report.snapshot.retries >= 7, "{} retries", report.snapshot.retries);
}

#[test]
fn a_broken_lane_is_opened_again_on_either_side() {
    let (source, target) = disks(64 * BLOCK_BYTES as usize);
    source.add_fault(DiskOp::Read, Nth::Only(4), Effect::BreakLane);
    target.add_fault(DiskOp::Write, Nth::Only(6), Effect::BreakLane);
    run(&job(&source, &target, None)).unwrap();
    assert!(target.content() == source.content());
}

#[test]
fn a_full_target_stops_at_once_and_the_rest_is_copied_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("t.drover-journal");
    let (source, target) = disks(200 * BLOCK_BYTES as usize);
    target.add_fault(DiskOp::Write, Nth::From(20), Effect::Fail(DiskErrorKind::OutOfSpace));
    match run(&job(&source, &target, Some(&journal))) {
        Err(MoveError::Disk(error)) => assert_eq!(error.kind, DiskErrorKind::OutOfSpace),
        other => panic!("{other:?}"),
    }
    assert!(!target.has_unflushed(), "what landed before was flushed");
    target.clear_faults();
    let report = run(&job(&source, &target, Some(&journal))).unwrap();
    assert!(report.snapshot.resumed > 0 && report.note.unwrap().starts_with("resumed"));
    assert!(target.content() == source.content());
}

#[test]
fn an_outage_that_does_not_end_gives_up_in_time_and_can_be_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("t.drover-journal");
    let (source, target) = disks(100 * BLOCK_BYTES as usize);
    source.add_fault(DiskOp::Read, Nth::From(10), Effect::Fail(DiskErrorKind::Transient));
    let mut hasty = job(&source, &target, Some(&journal));
    hasty.options.retry.give_up_after = Duration::from_millis(300);
    assert!(matches!(run(&hasty), Err(MoveError::Disk(_))));
    source.clear_faults();
    run(&job(&source, &target, Some(&journal))).unwrap();
    assert!(target.content() == source.content());
}

#[test]
fn a_finished_copy_reads_nothing_when_asked_again() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("t.drover-journal");
    let (source, target) = disks(50 * BLOCK_BYTES as usize);
    let first = run(&job(&source, &target, Some(&journal))).unwrap();
    let again = run(&job(&source, &target, Some(&journal))).unwrap();
    assert_eq!((again.snapshot.read, again.root), (0, first.root));
}

#[test]
fn a_changed_source_is_copied_from_the_beginning_and_that_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("t.drover-journal");
    let (source, target) = disks(50 * BLOCK_BYTES as usize);
    run(&job(&source, &target, Some(&journal))).unwrap();
    source.overwrite(3 * BLOCK_BYTES, &[7; 100]);
    source.set_identity("changed");
    let again = run(&job(&source, &target, Some(&journal))).unwrap();
    assert!(again.note.unwrap().contains("the source has changed"));
    assert!(target.content() == source.content());
}

#[test]
fn a_plan_takes_only_its_own_images_whatever_their_journal_says_of_the_target() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("journal");
    let (source, target) = disks(20 * BLOCK_BYTES as usize);
    let of = |owner: Option<&str>, source: &Arc<MemDisk>| CopyJob {
        owner: owner.map(str::to_string),
        ..job(source, &target, Some(&journal))
    };
    let other = Arc::new(MemDisk::new("other", vec![7; 20 * BLOCK_BYTES as usize]));
    let refused = |job: &CopyJob| {
        let before = std::fs::read(&journal).unwrap();
        let error = run(job).unwrap_err();
        assert!(matches!(&error, MoveError::Disk(error) if error.kind == DiskErrorKind::Denied), "{error}");
        assert!(target.content() == source.content() && std::fs::read(&journal).unwrap() == before);
    };
    // Journals of before name no owner: a finished copy of another source is no plan's.
    run(&of(None, &source)).unwrap();
    refused(&of(Some("plan p"), &other));
    run(&of(Some("plan p"), &source)).unwrap();
    std::fs::remove_file(&journal).unwrap();
    run(&of(Some("plan p"), &source)).unwrap();
    refused(&of(Some("plan q"), &other));
    refused(&of(Some("plan q"), &source));
    // Its own, though its source is another by now: the guest ran in the meantime.
    run(&of(Some("plan p"), &other)).unwrap();
    assert!(target.content() == other.content());
}

#[test]
fn a_second_copy_to_the_same_target_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("t.drover-journal");
    let (source, target) = disks(BLOCK_BYTES as usize);
    let held = drover_mover::JournalFile::start(&journal, BLOCK_BYTES, "s", "t", true).unwrap();
    match run(&job(&source, &target, Some(&journal))) {
        Err(MoveError::Journal(error)) => {
            assert!(error.source.to_string().contains("another drover"), "{}", error.source);
        }
        other => panic!("{other:?}"),
    }
    drop(held);
    run(&job(&source, &target, Some(&journal))).unwrap();
}

#[test]
fn a_stop_ends_the_copy_soon_and_keeps_what_was_copied() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("t.drover-journal");
    let (source, target) = disks(400 * BLOCK_BYTES as usize);
    let (stop, mut job) = (StopSignal::default(), job(&source, &target, Some(&journal)));
    slowly(&source, &mut job);
    let progress = Progress::default();
    let result = std::thread::scope(|scope| {
        let copying = scope.spawn(|| copy(&job, &progress, &stop));
        while progress.snapshot().settled == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        stop.stop();
        copying.join().unwrap()
    });
    assert!(matches!(result, Err(MoveError::Cancelled)));
    assert!(!target.has_unflushed());
    source.clear_faults();
    let report = run(&job).unwrap();
    assert!(report.snapshot.resumed > 0);
    assert!(target.content() == source.content());
}

#[test]
fn damage_of_the_target_is_found_by_full_verification() {
    let (source, target) = disks(90 * BLOCK_BYTES as usize);
    let report = run(&job(&source, &target, None)).unwrap();
    target.overwrite(44 * BLOCK_BYTES + 5, &[0x5a]);
    let check = verify(
        target.as_ref(),
        &report.leaves,
        Verify::Full,
        &options(),
        &Progress::default(),
        &StopSignal::default(),
    );
    let check = check.unwrap();
    assert_eq!(check.mismatches.iter().map(|found| found.block).collect::<Vec<_>>(), [44]);
    assert_ne!(check.target_root, Some(report.root));
}

#[test]
fn a_target_that_is_too_small_is_refused_before_anything_is_written() {
    let source = Arc::new(MemDisk::new("source", content(2 * BLOCK_BYTES as usize)));
    let target = Arc::new(MemDisk::blank("target", BLOCK_BYTES));
    assert!(matches!(run(&job(&source, &target, None)), Err(MoveError::TooSmall { .. })));
    assert!(!target.has_unflushed());
}

#[test]
fn a_small_memory_budget_slows_a_copy_but_does_not_stop_it() {
    let (source, target) = disks(100 * BLOCK_BYTES as usize);
    let mut job = job(&source, &target, None);
    job.options.memory = MemoryBudget::new(BLOCK_BYTES);
    run(&job).unwrap();
    assert!(target.content() == source.content());
    assert_eq!(source.size(), target.size());
}

/// On one host the journal's lock keeps a second run out; here it is lost, as after a partition.
#[test]
fn a_run_whose_target_was_taken_over_writes_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("t.drover-journal");
    let (source, target) = disks(400 * BLOCK_BYTES as usize);
    let mut job = job(&source, &target, Some(&journal));
    slowly(&source, &mut job);
    let (result, before) = std::thread::scope(|scope| {
        let copying = scope.spawn(|| run(&job));
        while target.counts().writes < 4 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The other run works on a journal of its own in this one's place.
        std::fs::rename(&journal, folder.path().join("old")).unwrap();
        std::fs::remove_file(folder.path().join("old")).unwrap();
        let before = target.counts().writes;
        (copying.join().unwrap(), before)
    });
    match result {
        Err(MoveError::Disk(error)) => {
            assert_eq!(error.kind, DiskErrorKind::Denied);
            assert!(error.source.to_string().contains("taken this target over"), "{}", error.source);
        }
        // What had landed by then was to be recorded.
        Err(MoveError::Journal(error)) => {
            assert!(error.source.to_string().contains("taken this target over"), "{}", error.source);
        }
        other => panic!("{other:?}"),
    }
    // Of two lanes, what each was writing just then: no more than two requests, of three pieces at most.
    let late = target.counts().writes - before;
    assert!(late <= 12, "{late} late writes");
}
