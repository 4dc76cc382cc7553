//! `drover copy` against what goes wrong outside of it: servers behind each filter of nbdkit that spoils them, lines
//! that change bits, file systems that are full, read-only, or without direct I/O.
#![allow(clippy::unwrap_used)]

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use drover_lab::Drover;
use drover_stage::nbdkit::Nbdkit;
use drover_stage::{MIB, disk_file, same_bytes};

fn setup() -> (tempfile::TempDir, Drover) {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    (folder, drover)
}

fn copy(drover: &Drover, source: &str, target: &str, more: &[&str], code: i32) -> String {
    let output = drover.run(&[&["copy", source, target], more].concat()).unwrap();
    assert_eq!(output.code, Some(code), "{source} to {target}: {}", output.err);
    output.err
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Filters and what they are told; `@` stands for `read` or `write`.
const FILTERS: [(&str, &[&str], &[&str]); 7] = [
    ("error", &["--filter=error"], &["error-p@-rate=10%"]),
    ("delay", &["--filter=delay"], &["delay-@=2ms"]),
    ("rate", &["--filter=rate"], &["rate=200M"]),
    ("retry", &["--filter=retry", "--filter=error"], &["retry-delay=1", "error-p@-rate=2%"]),
    (
        "blocksize-policy",
        &["--filter=blocksize-policy"],
        &["blocksize-minimum=4096", "blocksize-maximum=64K", "blocksize-error-policy=error"],
    ),
    ("noparallel", &["--filter=noparallel"], &["serialize=all-requests"]),
    ("limit", &["--filter=limit"], &["limit=1"]),
];

fn behind(folder: &Path, file: &Path, name: &str, is_source: bool) -> Option<Nbdkit> {
    let (_, filters, settings) = FILTERS.into_iter().find(|(it, ..)| *it == name).unwrap();
    let word = if is_source { "read" } else { "write" };
    let settings: Vec<String> = settings.iter().map(|it| it.replace('@', word)).collect();
    let mut args: Vec<&str> = if is_source { vec!["-r"] } else { Vec::new() };
    args.extend(filters);
    args.extend(["file", text(file)]);
    args.extend(settings.iter().map(String::as_str));
    Nbdkit::start(folder, &args)
}

fn is_read_through(filter: &str) {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 5 * MIB);
    let target = folder.path().join("target");
    let Some(server) = behind(folder.path(), &source, filter, true) else { return };
    copy(&drover, &server.uri(), text(&target), &["--verify", "full"], 0);
    assert!(same_bytes(&source, &target), "{filter}");
}

fn is_written_through(filter: &str) {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 5 * MIB);
    let target = folder.path().join("target");
    std::fs::write(&target, vec![0xee; 5 * MIB as usize]).unwrap();
    let Some(server) = behind(folder.path(), &target, filter, false) else { return };
    copy(&drover, text(&source), &server.uri(), &["--verify", "full", "--force"], 0);
    assert!(same_bytes(&source, &target), "{filter}");
}

#[test]
fn a_source_behind_the_error_filter() {
    is_read_through("error");
}

#[test]
fn a_source_behind_the_delay_filter() {
    is_read_through("delay");
}

#[test]
fn a_source_behind_the_rate_filter() {
    is_read_through("rate");
}

#[test]
fn a_source_behind_the_retry_filter() {
    is_read_through("retry");
}

#[test]
fn a_source_behind_the_blocksize_policy_filter() {
    is_read_through("blocksize-policy");
}

#[test]
fn a_source_behind_the_noparallel_filter() {
    is_read_through("noparallel");
}

#[test]
fn a_source_behind_the_limit_filter() {
    is_read_through("limit");
}

#[test]
fn targets_behind_each_filter() {
    FILTERS.iter().for_each(|(name, ..)| is_written_through(name));
}

/// Which way a line changes bits.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    FromServer,
    ToServer,
}

/// A line to a server that flips one bit in each of the first `flips` pieces of data it carries one way, and leaves
/// everything else as it is, so that no protocol notices.
struct Line {
    socket: PathBuf,
    flipped: Arc<AtomicUsize>,
}

/// What the disks of these tests are filled with, so that the line knows data from headers.
const FILL: u8 = 0xa5;
/// So many such bytes in a row are data.
const RUN: usize = 4096;

impl Line {
    fn to(server: PathBuf, socket: PathBuf, way: Way, flips: usize) -> Line {
        let listener = UnixListener::bind(&socket).unwrap();
        let flipped = Arc::new(AtomicUsize::new(0));
        let count = flipped.clone();
        // It ends with the test's process.
        thread::spawn(move || {
            for client in listener.incoming().map(Result::unwrap) {
                let Ok(server) = UnixStream::connect(&server) else { continue };
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (up, down) = (count.clone(), count.clone());
                let allowed = |it| if way == it { flips } else { 0 };
                let (most_up, most_down) = (allowed(Way::ToServer), allowed(Way::FromServer));
                thread::spawn(move || carry(from, to, &up, most_up));
                thread::spawn(move || carry(server, client, &down, most_down));
            }
        });
        Line { socket, flipped }
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }
}

fn carry(mut from: UnixStream, mut to: UnixStream, flipped: &AtomicUsize, most: usize) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        let piece = &mut bytes[..length];
        let is_data = piece.len() >= RUN && piece[piece.len() - RUN..].iter().all(|byte| *byte == FILL);
        let more = |count| (count < most).then_some(count + 1);
        if is_data && flipped.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok() {
            piece[length - RUN / 2] ^= 0x10;
        }
        if to.write_all(piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
}

fn differing_bytes(a: &Path, b: &Path) -> usize {
    let (a, b) = (std::fs::read(a).unwrap(), std::fs::read(b).unwrap());
    assert_eq!(a.len(), b.len());
    a.iter().zip(&b).filter(|(a, b)| a != b).count()
}

#[test]
fn a_bit_that_flips_on_its_way_from_the_source_is_found_by_reading_the_source_once_more() {
    let (folder, drover) = setup();
    let source = folder.path().join("source");
    std::fs::write(&source, vec![FILL; 3 * MIB as usize]).unwrap();
    let Some(server) = Nbdkit::start(folder.path(), &["-r", "file", text(&source)]) else { return };
    for (number, (verify, code)) in [("source", 9), ("full", 0)].into_iter().enumerate() {
        let socket = folder.path().join(format!("line-{number}"));
        let line = Line::to(folder.path().join("nbd.sock"), socket, Way::FromServer, 1);
        let target = folder.path().join(format!("target-{number}"));
        // Said to be raw, so that nobody looks at its head, where the bit would flip, before it is copied.
        let how = ["--verify", verify, "--source-format", "raw"];
        let said = copy(&drover, &line.uri(), text(&target), &how, code);
        assert_eq!(
            (line.flipped.load(Ordering::SeqCst), differing_bytes(&source, &target)),
            (1, 1),
            "{said}"
        );
        // What was read wrongly arrived as it was read: only the source knows better.
        assert_eq!(said.contains("NOT EQUAL"), code == 9, "{said}");
    }
    drop(server);
}

#[test]
fn a_bit_that_flips_on_its_way_to_the_target_is_found_by_reading_it_back() {
    let (folder, drover) = setup();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    std::fs::write(&source, vec![FILL; 3 * MIB as usize]).unwrap();
    std::fs::write(&target, vec![0; 3 * MIB as usize]).unwrap();
    let Some(server) = Nbdkit::start(folder.path(), &["file", text(&target)]) else { return };
    let line = Line::to(folder.path().join("nbd.sock"), folder.path().join("line"), Way::ToServer, 2);
    let said = copy(&drover, text(&source), &line.uri(), &["--verify", "full"], 9);
    assert_eq!((line.flipped.load(Ordering::SeqCst), differing_bytes(&source, &target)), (2, 2), "{said}");
    // The same command again mends it, now that the line is well.
    copy(&drover, text(&source), &line.uri(), &["--verify", "full", "--force"], 0);
    assert!(same_bytes(&source, &target));
    drop(server);
}

/// A file system of its own; needs root.
struct Mount(PathBuf);

impl Mount {
    fn new(folder: &Path, kind: &str, options: &str) -> Option<Mount> {
        std::fs::create_dir_all(folder).unwrap();
        let mounted =
            Command::new("mount").args(["-t", kind, "-o", options, "drover-test"]).arg(folder).output();
        if !mounted.is_ok_and(|output| output.status.success()) {
            println!("skipped: no {kind} can be mounted (needs root)");
            return None;
        }
        Some(Mount(folder.to_path_buf()))
    }

    fn remount(&self, options: &str) {
        let options = format!("remount,{options}");
        assert!(Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap().success());
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_target_where_direct_io_is_refused_is_written_and_its_proof_says_so() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 6 * MIB + 511);
    let Some(mount) = Mount::new(&folder.path().join("ramfs"), "ramfs", "mode=700") else { return };
    let probe = mount.0.join("probe");
    std::fs::write(&probe, [0; 4096]).unwrap();
    let flag = i32::try_from(rustix::fs::OFlags::DIRECT.bits()).unwrap();
    if OpenOptions::new().read(true).custom_flags(flag).open(&probe).is_ok() {
        println!("skipped: ramfs takes direct I/O here");
        return;
    }
    let target = mount.0.join("target");
    let said = copy(&drover, text(&source), text(&target), &["--verify", "full"], 0);
    assert!(said.contains("no direct I/O here, so it is read back through the page cache"), "{said}");
    assert!(same_bytes(&source, &target));
}

#[test]
fn a_target_on_a_read_only_file_system_is_refused_and_taken_once_it_is_writable() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 2 * MIB);
    let Some(mount) = Mount::new(&folder.path().join("mount"), "tmpfs", "ro") else { return };
    let target = mount.0.join("target");
    let said = copy(&drover, text(&source), text(&target), &[], 7);
    assert!(said.to_lowercase().contains("read-only file system"), "{said}");
    mount.remount("rw");
    copy(&drover, text(&source), text(&target), &["--verify", "full"], 0);
    assert!(same_bytes(&source, &target));
}

#[test]
fn a_target_on_a_full_file_system_stops_with_its_own_code_and_goes_on_when_there_is_room() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 24 * MIB);
    let Some(mount) = Mount::new(&folder.path().join("mount"), "tmpfs", "size=12m") else { return };
    let target = mount.0.join("target");
    let said = copy(&drover, text(&source), text(&target), &[], 8);
    assert!(said.contains("make room"), "{said}");
    mount.remount("size=64m");
    let said = copy(&drover, text(&source), text(&target), &["--verify", "full"], 0);
    assert!(said.contains("resumed"), "{said}");
    assert!(same_bytes(&source, &target));
}
