//! Processes that stand still for a while (SIGSTOP, as a suspended machine or a partition would): whoever
//! took over keeps what it wrote, and a server that slept is asked again.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Duration;

use drover_disk::{FileDisk, OpenTarget};
use drover_lab::Drover;
use drover_mover::{CopyJob, Progress, StopSignal, TransferOptions, copy, file_tag};
use drover_nbd::{NbdDisk, NbdOptions};
use drover_stage::nbdkit::{Nbdkit, SLOWLY};
use drover_stage::process::{PATIENCE, freeze, recorded_blocks, thaw, wait_for_records, wait_until};
use drover_stage::{MIB, disk_file, same_bytes};

/// Of the tests that always run; those of `make soak` wait a minute.
const SHORT: Duration = Duration::from_secs(2);
const MINUTE: Duration = Duration::from_secs(60);

struct Bench {
    folder: tempfile::TempDir,
    drover: Drover,
}

/// A child that ends with the test.
struct Running(Child);

impl Running {
    fn ended(&mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap().code(), said)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
        Bench { folder, drover }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn start(&self, args: &[&str]) -> Running {
        let mut command = self.drover.command(args);
        command.env("XDG_RUNTIME_DIR", self.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Running(command.spawn().unwrap())
    }

    /// `drover serve-disk` of a file, and its URI.
    fn serve(&self, disk: &Path) -> (Running, String) {
        let mut server = self.start(&["serve-disk", disk.to_str().unwrap(), "--writable", "--json"]);
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).unwrap();
        (server, said["uri"].as_str().unwrap().to_string())
    }
}

/// The first run is given up for dead, a second one copies another disk to the same target, the first wakes up.
fn woken_after_a_takeover(pause: Duration) {
    let bench = Bench::new();
    let old = disk_file(bench.path(), "old", 64 * MIB);
    let new = disk_file(bench.path(), "new", 64 * MIB - 512);
    std::fs::File::options().append(true).open(&new).unwrap().set_len(64 * MIB).unwrap();
    assert!(!same_bytes(&old, &new));
    let target = bench.path().join("target");
    std::fs::File::create(&target).unwrap().set_len(64 * MIB).unwrap();
    let (_server, served) = bench.serve(&target);
    let Some(source) = Nbdkit::held(bench.path(), &old, 40, 16 * MIB) else { return };
    let uri = source.uri();
    let mut first = bench.start(&[&["copy", &uri, &served][..], &SLOWLY].concat());
    let has_data = || std::fs::read(&target).unwrap().iter().any(|byte| *byte != 0);
    wait_until("the first run writes", PATIENCE, has_data);
    freeze(&first.0);
    assert!(!same_bytes(&old, &target), "it was done before it was stopped");
    source.go_on();
    let second = bench.drover.run(&["copy", new.to_str().unwrap(), &served, "--verify", "full"]).unwrap();
    assert_eq!(second.code, Some(0), "{}", second.err);
    std::thread::sleep(pause);
    assert!(same_bytes(&new, &target));
    thaw(&first.0);
    let (code, said) = first.ended();
    assert_ne!(code, Some(0), "{said}");
    assert!(said.contains("is over"), "{said}");
    assert!(same_bytes(&new, &target), "the first run touched what the second took over");
}

#[test]
fn a_run_that_wakes_up_after_a_takeover_touches_nothing() {
    woken_after_a_takeover(SHORT);
}

#[test]
#[ignore = "takes a minute; `make soak` runs it"]
fn soak_a_run_that_wakes_up_after_a_takeover_touches_nothing() {
    woken_after_a_takeover(MINUTE);
}

/// On one host a file is not taken over: the lock holds as long as the process is there.
fn locked_while_it_sleeps(pause: Duration) {
    let bench = Bench::new();
    let source = disk_file(bench.path(), "source", 96 * MIB);
    let target = bench.path().join("target");
    let Some(server) = Nbdkit::held(bench.path(), &source, 40, 48 * MIB) else { return };
    let (uri, to) = (server.uri(), target.to_str().unwrap().to_string());
    let mut first = bench.start(&[&["copy", &uri, &to][..], &SLOWLY].concat());
    wait_for_records(&target);
    freeze(&first.0);
    server.go_on();
    let before = std::fs::read(&target).unwrap();
    for more in [&[][..], &["--force"], &["--no-journal", "--force"]] {
        let second = bench.drover.run(&[&["copy", &uri, &to], more].concat()).unwrap();
        assert_eq!(second.code, Some(7), "{more:?}: {}", second.err);
    }
    std::thread::sleep(pause);
    assert!(std::fs::read(&target).unwrap() == before, "a run that was refused wrote");
    thaw(&first.0);
    let (code, said) = first.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(same_bytes(&source, &target));
}

#[test]
fn a_run_that_stands_still_keeps_its_target_and_ends_well() {
    locked_while_it_sleeps(SHORT);
}

#[test]
#[ignore = "takes a minute; `make soak` runs it"]
fn soak_a_run_that_stands_still_keeps_its_target_and_ends_well() {
    locked_while_it_sleeps(MINUTE);
}

/// With the program's own patience cut down, so that it ends while the server sleeps.
#[test]
fn a_server_that_slept_longer_than_a_request_may_take_is_asked_again() {
    let bench = Bench::new();
    let content = disk_file(bench.path(), "source", 96 * MIB);
    let path = bench.path().join("target");
    let Some(server) = Nbdkit::held(bench.path(), &content, 40, 48 * MIB) else { return };
    let patience = Duration::from_millis(1500);
    let options = NbdOptions { timeout: patience, request_timeout: patience, ..NbdOptions::default() };
    let source = NbdDisk::open_source(&server.uri().parse().unwrap(), options).unwrap();
    let how = OpenTarget { size: 96 * MIB, create: true, resume: false };
    let target = FileDisk::open_target(&path, how).unwrap();
    let tuned = TransferOptions {
        lanes: Some(1),
        depth: Some(1),
        request_bytes: Some(MIB),
        ..TransferOptions::default()
    };
    let job = CopyJob {
        source: Arc::new(source),
        target: Arc::new(target),
        target_tag: file_tag(&path).unwrap(),
        target_is_new: true,
        target_zeroed: true,
        owner: None,
        journal: Some(drover_mover::journal_path(&path)),
        options: tuned,
        pass: None,
    };
    let report = std::thread::scope(|scope| {
        let run = scope.spawn(|| copy(&job, &Progress::default(), &StopSignal::default()).unwrap());
        wait_for_records(&path);
        let had = server.connections();
        server.freeze();
        let recorded = recorded_blocks(&path);
        assert!(recorded < 96 * 16, "it was done before the server slept");
        server.go_on();
        std::thread::sleep(4 * patience);
        // This process may have stood still as well. Without a server the copy would wait for ever.
        let is_noticed = (0..12_000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            server.connections() > had
        });
        server.thaw();
        assert!(is_noticed, "the server is not dialled again");
        run.join().unwrap()
    });
    assert!(report.snapshot.retries > 0, "the sleep was not noticed");
    assert!(same_bytes(&content, &path));
}

/// As a user has it: 30 s without a byte, and the connection counts as broken.
#[test]
#[ignore = "takes a minute; `make soak` runs it"]
fn soak_a_server_that_slept_for_a_minute_is_asked_again() {
    let bench = Bench::new();
    let source = disk_file(bench.path(), "source", 128 * MIB);
    let target = bench.path().join("target");
    let Some(server) = Nbdkit::held(bench.path(), &source, 40, 64 * MIB) else { return };
    let (uri, to) = (server.uri(), target.to_str().unwrap().to_string());
    let mut run = bench.start(&[&["copy", &uri, &to, "--verify", "full"][..], &SLOWLY].concat());
    wait_for_records(&target);
    server.freeze();
    server.go_on();
    std::thread::sleep(MINUTE);
    server.thaw();
    let (code, said) = run.ended();
    assert_eq!(code, Some(0), "{said}");
    assert!(same_bytes(&source, &target));
}
