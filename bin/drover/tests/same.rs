//! What `drover copy` says when its source or its target is not at the end what it was at the beginning.
#![allow(clippy::unwrap_used)]

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use drover_lab::Drover;
use drover_stage::nbdkit::{Nbdkit, SLOWLY};
use drover_stage::process::{PATIENCE, wait_for_records, wait_until};
use drover_stage::{MIB, disk_file, same_bytes};
use rustix::fs::{FlockOperation, Timespec, Timestamps};

fn setup() -> (tempfile::TempDir, Drover) {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    (folder, drover)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn started(drover: &Drover, args: &[&str]) -> Child {
    drover.command(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ended(child: Child, code: i32, words: &str) {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    assert!(said.contains(words), "'{words}' is not in: {said}");
}

/// What was done to a target, by its name and where it lies.
type Deed = (&'static str, fn(&Path), &'static str);

const DEEDS: [Deed; 5] = [
    ("removed", |target| std::fs::remove_file(target).unwrap(), "removed or renamed"),
    ("renamed", |target| std::fs::rename(target, beside(target)).unwrap(), "removed or renamed"),
    (
        "its folder renamed",
        |target| std::fs::rename(target.parent().unwrap(), beside(target.parent().unwrap())).unwrap(),
        "removed or renamed",
    ),
    (
        "replaced",
        |target| {
            std::fs::write(beside(target), "another's").unwrap();
            std::fs::rename(beside(target), target).unwrap();
        },
        "another file was put in its place",
    ),
    (
        "extended",
        |target| OpenOptions::new().append(true).open(target).unwrap().write_all(b"more").unwrap(),
        "another program resized it",
    ),
];

fn beside(path: &Path) -> PathBuf {
    path.with_extension("other")
}

#[test]
fn a_target_that_is_taken_away_or_changed_during_a_copy_is_no_copy() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 8 * MIB);
    let case = &|format: &str, (name, deed, words): Deed| {
        let place = tempfile::tempdir_in(folder.path()).unwrap();
        let into = place.path().join("into");
        std::fs::create_dir(&into).unwrap();
        let target = into.join("target");
        let Some(server) = Nbdkit::held(place.path(), &source, 200, 7 * MIB) else { return };
        let uri = server.uri();
        let args = [&["copy", &uri, text(&target), "--format", format, "--verify", "full"], &SLOWLY[..]];
        let copy = started(&drover, &args.concat());
        wait_for_records(&target);
        println!("{format}: {name}");
        deed(&target);
        server.go_on();
        ended(copy, 7, words);
    };
    std::thread::scope(|scope| {
        for deed in DEEDS {
            scope.spawn(move || case("raw", deed));
        }
        // Behind its last cluster, an image does not care.
        for deed in &DEEDS[..4] {
            scope.spawn(move || case("qcow2", *deed));
        }
    });
}

#[test]
fn a_copy_goes_on_with_a_target_that_was_put_back() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 8 * MIB);
    let target = folder.path().join("target");
    let Some(server) = Nbdkit::held(folder.path(), &source, 200, 7 * MIB) else { return };
    let uri = server.uri();
    let args = [&["copy", uri.as_str(), text(&target), "--verify", "full"], &SLOWLY[..]].concat();
    let copy = started(&drover, &args);
    wait_for_records(&target);
    std::fs::rename(&target, beside(&target)).unwrap();
    server.go_on();
    ended(copy, 7, "put it back");
    std::fs::rename(beside(&target), &target).unwrap();
    ended(started(&drover, &args), 0, "resumed");
    assert!(same_bytes(&source, &target));
}

/// Starts a copy of `source` that has not come to its end, and whose target lets it go on.
fn held_at_target(drover: &Drover, folder: &Path, source: &Path, more: &[&str]) -> Option<(Child, Nbdkit)> {
    let target = disk_file(folder, "target", std::fs::metadata(source).unwrap().len());
    let server = Nbdkit::held_target(folder, &target)?;
    let uri = server.uri();
    let copy = started(drover, &[&["copy", text(source), &uri], more].concat());
    wait_until("the copy opens its target", PATIENCE, || server.connections() > 0);
    Some((copy, server))
}

/// Writes, and sets the time of the last write back.
fn write_unseen(path: &Path) {
    let before = rustix::fs::stat(path).unwrap();
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"changed", 3 * 65536).unwrap();
    let then = Timespec { tv_sec: before.st_mtime, tv_nsec: before.st_mtime_nsec as _ };
    let times = Timestamps { last_access: then, last_modification: then };
    rustix::fs::futimens(&file, &times).unwrap();
}

#[test]
fn a_source_that_changes_during_a_copy_is_noticed_whatever_its_times_say() {
    for more in [&[][..], &["--verify", "full"], &["--verify", "source"]] {
        let (folder, drover) = setup();
        let source = disk_file(folder.path(), "source", 4 * MIB);
        let Some((copy, server)) = held_at_target(&drover, folder.path(), &source, more) else { return };
        write_unseen(&source);
        server.go_on();
        ended(copy, 6, "it was changed while it was read");
    }
}

#[test]
fn a_source_that_nobody_changes_may_be_read_by_others() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 4 * MIB);
    let Some((copy, server)) = held_at_target(&drover, folder.path(), &source, &[]) else { return };
    let _reader = File::open(&source).unwrap();
    assert!(std::fs::read(&source).unwrap().len() as u64 == 4 * MIB);
    server.go_on();
    ended(copy, 0, "copied");
}

#[test]
fn a_raw_source_that_another_program_may_write_is_refused() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", MIB);
    let target = folder.path().join("target");
    let writer = OpenOptions::new().read(true).write(true).open(&source).unwrap();
    for args in
        [&["copy", text(&source), text(&target)][..], &["hash", text(&source)], &["copy", text(&source), "-"]]
    {
        ended(started(&drover, args), 6, "another program has it open for writing");
    }
    assert!(!target.exists());
    // As QEMU does, and every program that locks what it writes.
    rustix::fs::fcntl_lock(&writer, FlockOperation::LockExclusive).unwrap();
    ended(started(&drover, &["copy", text(&source), text(&target)]), 6, "has it open for writing");
    drop(writer);
    ended(started(&drover, &["copy", text(&source), text(&target)]), 0, "copied");
    assert!(same_bytes(&source, &target));
}
