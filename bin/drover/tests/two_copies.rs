//! Two processes and one target: what a copy saw before it held the lock counts for nothing under it.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use drover_copy::{Entry, Leaf};
use drover_disk::{Buffer, Disk, FileDisk, Request, Work};
use drover_lab::Drover;
use drover_mover::{JournalFile, file_tag, journal_path};
use drover_qcow2::{Qcow2Disk, Qcow2Options};
use drover_stage::process::{PATIENCE, freeze, thaw, wait_until};
use drover_stage::{MIB, disk_file};
use drover_types::{BLOCK_BYTES, ByteSpan};
use rustix::fs::{FlockOperation, flock};

fn setup() -> (tempfile::TempDir, Drover) {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    (folder, drover)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A copy that stands still at the lock of its target: it has seen what is there, and is stopped while it waits.
fn at_the_lock(drover: &Drover, source: &Path, target: &Path) -> Child {
    let mut command = drover.command(&["copy", text(source), text(target)]);
    let child = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let is_there = || {
        let Ok(entries) = std::fs::read_dir(format!("/proc/{}/fd", child.id())) else { return true };
        entries.flatten().any(|entry| {
            let is_it = std::fs::read_link(entry.path()).is_ok_and(|path| path == target);
            is_it && is_for_writing(&child, &entry.file_name().to_string_lossy())
        })
    };
    wait_until("the copy opens its target", PATIENCE, is_there);
    freeze(&child);
    child
}

fn is_for_writing(child: &Child, number: &str) -> bool {
    let Ok(info) = std::fs::read_to_string(format!("/proc/{}/fdinfo/{number}", child.id())) else {
        return false;
    };
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim();
    u32::from_str_radix(flags, 8).unwrap() & 3 == 2
}

/// Lets it go on, and sees that it refuses the target and leaves it as it is.
fn goes_on_and_refuses(child: Child, target: &Path) {
    let before = std::fs::read(target).unwrap();
    thaw(&child);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(std::fs::read(target).unwrap() == before, "the finished copy was written to");
}

/// A journal of a copy of `source` to `target` that recorded so many blocks.
fn record(source: &Path, target: &Path, blocks: usize) {
    let content = std::fs::read(source).unwrap();
    let identity = FileDisk::open_source(source).unwrap().identity();
    let tag = file_tag(target).unwrap();
    let start =
        JournalFile::start(&journal_path(target), content.len() as u64, &identity, &tag, true).unwrap();
    let mut journal = start.journal;
    for (first, bytes) in (0..).zip(content.chunks(BLOCK_BYTES as usize)).take(blocks) {
        match Leaf::of(bytes) {
            Leaf::Data(digest) => journal.append(&[Entry::Data { first, leaves: vec![digest] }]).unwrap(),
            Leaf::Zero => journal.append(&[Entry::Zero { first, count: 1 }]).unwrap(),
        }
    }
}

fn sources(folder: &Path) -> (PathBuf, PathBuf) {
    let (a, b) = (disk_file(folder, "a", 2 * MIB), folder.join("b"));
    std::fs::write(&b, vec![7; 2 * MIB as usize]).unwrap();
    (a, b)
}

#[test]
fn a_copy_that_ended_while_another_waited_for_its_lock_is_not_overwritten() {
    let (folder, drover) = setup();
    let (a, b) = sources(folder.path());
    let target = folder.path().join("t");
    // The first copy, in its last half second: all is written, its journal is there, it holds the lock.
    std::fs::copy(&a, &target).unwrap();
    record(&a, &target, 8);
    let holds = File::open(&target).unwrap();
    flock(&holds, FlockOperation::LockExclusive).unwrap();
    let second = at_the_lock(&drover, &b, &target);
    std::fs::remove_file(journal_path(&target)).unwrap();
    drop(holds);
    goes_on_and_refuses(second, &target);
}

#[test]
fn a_new_image_that_another_filled_meanwhile_is_not_taken_for_new() {
    let (folder, drover) = setup();
    let (_, b) = sources(folder.path());
    let target = folder.path().join("t.qcow2");
    let first = Qcow2Disk::create(&target, 2 * MIB, Qcow2Options::default()).unwrap();
    let second = at_the_lock(&drover, &b, &target);
    let mut lane = first.open_lane().unwrap();
    let mut bytes = Buffer::zeroed(MIB as usize);
    bytes.fill(5);
    lane.submit(Request { id: 0, span: ByteSpan::new(0, MIB), work: Work::Write(bytes.into()) });
    lane.complete().unwrap().result.unwrap();
    first.flush().unwrap();
    drop((lane, first));
    goes_on_and_refuses(second, &target);
}

#[test]
fn an_empty_file_that_another_filled_meanwhile_is_not_emptied() {
    let (folder, drover) = setup();
    let (a, b) = sources(folder.path());
    let target = folder.path().join("t");
    let file = File::create(&target).unwrap();
    file.set_len(2 * MIB).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    let second = at_the_lock(&drover, &b, &target);
    std::fs::write(&target, std::fs::read(&a).unwrap()).unwrap();
    drop(file);
    goes_on_and_refuses(second, &target);
}

#[test]
fn a_journal_that_recorded_nothing_protects_what_was_put_on_its_target() {
    let (folder, drover) = setup();
    let (a, b) = sources(folder.path());
    let target = folder.path().join("t");
    for source in [&a, &b] {
        // A copy of `a` that was killed before its first flush; then somebody made a file system there.
        let mut content = vec![0; 2 * MIB as usize];
        content[1080..1082].copy_from_slice(b"\x53\xef");
        std::fs::write(&target, &content).unwrap();
        let _ = std::fs::remove_file(journal_path(&target));
        record(&a, &target, 0);
        let output = drover.run(&["copy", text(source), text(&target)]).unwrap();
        assert_eq!(output.code, Some(7), "{}", output.err);
        assert!(std::fs::read(&target).unwrap() == content, "what was put there is gone");
    }
}

#[test]
fn a_copy_that_was_killed_before_it_recorded_anything_goes_on() {
    let (folder, drover) = setup();
    let (a, _) = sources(folder.path());
    let target = folder.path().join("t");
    let content = std::fs::read(&a).unwrap();
    // Some writes came through, in no order, and none is recorded.
    let mut part = vec![0; content.len()];
    part[MIB as usize..][..1 << 19].copy_from_slice(&content[MIB as usize..][..1 << 19]);
    std::fs::write(&target, &part).unwrap();
    record(&a, &target, 0);
    let output = drover.run(&["copy", text(&a), text(&target)]).unwrap();
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(std::fs::read(&target).unwrap() == content);
}

#[test]
fn an_empty_journal_is_none() {
    let (folder, drover) = setup();
    let (a, _) = sources(folder.path());
    let target = folder.path().join("t");
    // A copy that made its target and its journal, and had no room for more or was killed then.
    for content in [vec![0; 0], vec![7; 100]] {
        let file = File::create(&target).unwrap();
        file.set_len(2 * MIB).unwrap();
        drop(file);
        std::fs::write(journal_path(&target), "").unwrap();
        std::os::unix::fs::FileExt::write_all_at(
            &File::options().write(true).open(&target).unwrap(),
            &content,
            0,
        )
        .unwrap();
        let output = drover.run(&["copy", text(&a), text(&target)]).unwrap();
        let is_blank = content.is_empty();
        assert_eq!(output.code, Some(if is_blank { 0 } else { 7 }), "{}", output.err);
        assert_eq!(is_blank, std::fs::read(&target).unwrap() == std::fs::read(&a).unwrap());
    }
}
