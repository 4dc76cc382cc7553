//! `drover serve-disk`: one disk for other programs.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use drover_lab::Drover;
use drover_nbd::{NbdDisk, NbdOptions};
use drover_stage::{MIB, disk_file, same_bytes};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A server that ends with the test.
struct Serving {
    child: Child,
    said: Value,
}

impl Serving {
    fn start(drover: &Drover, disk: &Path, more: &[&str]) -> Serving {
        let args = [&["serve-disk", disk.to_str().unwrap(), "--json", "--exit-with-parent"], more].concat();
        let mut command = drover.command(&args);
        // A server that is killed leaves its socket; here it goes with the test.
        command.env("XDG_RUNTIME_DIR", disk.parent().unwrap());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error} in '{line}'"));
        Serving { child, said }
    }

    fn uri(&self) -> &str {
        self.said["uri"].as_str().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn ended(&mut self) -> Option<i32> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < until, "the server never ended");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn setup() -> (tempfile::TempDir, Drover) {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    (folder, drover)
}

fn installed(program: &str) -> bool {
    let found = Command::new(program).arg("--version").stdout(Stdio::null()).status().is_ok();
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().unwrap();
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {said}");
    said
}

#[test]
fn a_disk_goes_round_through_two_servers_and_they_end_by_themselves() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 9 * MIB + 512);
    let target = folder.path().join("target");
    std::fs::write(&target, vec![0xee; 9 * MIB as usize + 512]).unwrap();
    let mut from = Serving::start(&drover, &source, &["--once", "--export", "web01/disk 0"]);
    let socket = folder.path().join("own.sock");
    let mut to =
        Serving::start(&drover, &target, &["--once", "--writable", "--socket", socket.to_str().unwrap()]);
    assert_eq!(from.said["size"], 9 * MIB + 512);
    let output = drover.run(&["copy", from.uri(), to.uri(), "--verify", "full"]).unwrap();
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert_eq!((from.ended(), to.ended()), (Some(0), Some(0)));
    assert!(same_bytes(&source, &target) && !socket.exists());
    let left: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    // The copy came with an epoch, which has to outlive the server.
    assert!(left.iter().any(|name| name == "target.drover-fence"), "{left:?}");
    assert!(!left.iter().any(|name| name == "source.drover-fence"), "{left:?}");
}

#[test]
fn a_signal_ends_the_server_and_keeps_what_was_written() {
    if !installed("qemu-io") {
        return;
    }
    let (folder, drover) = setup();
    let disk = folder.path().join("disk");
    std::fs::write(&disk, vec![0; MIB as usize]).unwrap();
    let mut server = Serving::start(&drover, &disk, &["--writable", "--listen", "127.0.0.1:0"]);
    assert!(server.uri().starts_with("nbd://127.0.0.1:"), "{}", server.uri());
    run("qemu-io", &["-f", "raw", "-c", "write -P 7 4k 8k", server.uri()]);
    server.signal(Signal::TERM);
    assert_eq!(server.ended(), Some(0));
    let content = std::fs::read(&disk).unwrap();
    assert!(content[4096..12288].iter().all(|byte| *byte == 7) && content[12288] == 0);
}

#[test]
fn a_half_copied_disk_is_served_with_what_is_recorded() {
    let (folder, drover) = setup();
    let (size, known) = (16 * MIB, 80 * 65_536);
    let target = disk_file(folder.path(), "target", size);
    let start = drover_mover::JournalFile::start(
        &drover_mover::journal_path(&target),
        size,
        "source",
        "target",
        false,
    );
    let mut journal = start.unwrap().journal;
    journal.append(&[drover_copy::Entry::Zero { first: 16, count: 80 }]).unwrap();
    drop(journal);
    let text = target.to_str().unwrap();
    let refused = drover.run(&["serve-disk", text, "--writable"]).unwrap();
    assert_eq!(refused.code, Some(2));
    assert!(refused.err.contains("has not come to its end"), "{}", refused.err);
    let server = Serving::start(&drover, &target, &[]);
    assert_eq!(server.said["recorded_bytes"], known);
    if !installed("nbdinfo") {
        return;
    }
    let map = run("nbdinfo", &["--map=drover:recorded", server.uri()]);
    let lines: Vec<Vec<u64>> = map
        .lines()
        .map(|line| line.split_whitespace().take(3).map(|word| word.parse().unwrap()).collect())
        .collect();
    let expected = [[0, MIB, 1], [MIB, known, 0], [MIB + known, size - MIB - known, 1]];
    assert_eq!(lines, expected, "{map}");
}

#[test]
fn an_empty_journal_and_an_empty_fence_that_killed_runs_left_are_in_nobodys_way() {
    let (folder, drover) = setup();
    let disk = disk_file(folder.path(), "disk", MIB);
    let fence = drover_nbd_server::fence_path(&disk);
    std::fs::write(drover_mover::journal_path(&disk), "").unwrap();
    let mut server = Serving::start(&drover, &disk, &["--writable"]);
    assert!(server.said["recorded_bytes"].is_null(), "{}", server.said);
    server.signal(Signal::KILL);
    server.ended();
    assert_eq!(std::fs::read(&fence).unwrap(), b"", "the killed server left it");
    let mut next = Serving::start(&drover, &disk, &["--writable"]);
    next.signal(Signal::INT);
    assert_eq!(next.ended(), Some(0));
    assert!(!fence.exists(), "it went with the next server");
}

#[test]
fn an_export_that_begins_like_an_image_is_told_as_a_source_and_refused_as_a_target() {
    let (folder, drover) = setup();
    let (disk, image) = (disk_file(folder.path(), "disk", MIB), folder.path().join("image.raw"));
    let mut content = b"QFI\xfb".to_vec();
    content.resize(MIB as usize, 7);
    std::fs::write(&image, &content).unwrap();
    let server = Serving::start(&drover, &image, &["--writable"]);
    let back = folder.path().join("back");
    let copied =
        |from: &str, to: &str, more: &[&str]| drover.run(&[&["copy", from, to], more].concat()).unwrap();
    let (uri, back, disk) = (server.uri(), back.to_str().unwrap(), disk.to_str().unwrap());
    let words = "begins like a qcow2 image";
    let told = copied(uri, back, &[]);
    assert!(told.code == Some(0) && told.err.contains(words), "{}", told.err);
    let asked = copied(uri, back, &["--force", "--source-format", "raw"]);
    assert!(asked.code == Some(0) && !asked.err.contains(words), "{}", asked.err);
    let refused = copied(disk, uri, &[]);
    assert!(refused.code == Some(7) && refused.err.contains(words), "{}", refused.err);
    assert!(std::fs::read(&image).unwrap() == content);
    assert_eq!(copied(disk, uri, &["--format", "raw"]).code, Some(0));
    assert!(std::fs::read(&image).unwrap() == std::fs::read(disk).unwrap());
}

#[test]
fn what_cannot_be_served_is_refused_in_words() {
    let (folder, drover) = setup();
    let disk = disk_file(folder.path(), "disk", MIB);
    let text = disk.to_str().unwrap();
    let there = folder.path().join("there");
    std::fs::write(&there, "").unwrap();
    for (args, code, words) in [
        (&["/no/such/disk"][..], 6, "/no/such/disk"),
        (&[text, "--socket", there.to_str().unwrap()], 2, "there already"),
        (&[text, "--tls-certificates", folder.path().to_str().unwrap()], 2, "server-cert.pem"),
        (&["https://localhost/x", "--writable"], 2, "cannot be written to"),
        (&[text, "--no-fence"], 2, "--writable"),
    ] {
        let output = drover.run(&[&["serve-disk"], args].concat()).unwrap();
        assert_eq!(output.code, Some(code), "{args:?}: {}", output.err);
        assert!(output.err.contains(words), "{args:?}: {}", output.err);
    }
}

#[test]
fn the_epoch_of_a_writer_is_kept_beside_the_disk() {
    let (folder, drover) = setup();
    let disk = disk_file(folder.path(), "disk", MIB);
    let fence = drover_nbd_server::fence_path(&disk);
    let open = |server: &Serving, epoch| {
        let options = NbdOptions { fence: Some(epoch), ..NbdOptions::default() };
        NbdDisk::open_target(&server.uri().parse().unwrap(), options)
    };
    let mut first = Serving::start(&drover, &disk, &["--writable"]);
    assert_eq!(first.said["epoch"], 0);
    assert!(open(&first, 5).unwrap().is_fenced());
    first.signal(Signal::INT);
    assert_eq!(first.ended(), Some(0));
    assert!(fence.exists());
    let second = Serving::start(&drover, &disk, &["--writable"]);
    assert_eq!(second.said["epoch"], 5);
    let error = open(&second, 4).err().unwrap();
    assert!(error.source.to_string().contains("epoch 5 has taken this disk"), "{}", error.source);
    drop(second);
    let third = Serving::start(&drover, &disk, &["--writable", "--no-fence"]);
    assert!(!open(&third, 4).unwrap().is_fenced());
}
