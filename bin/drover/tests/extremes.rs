//! Disks and places at the edge of what is usual.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Duration;

use drover_lab::{Drover, run_by};
use drover_stage::{MIB, disk_file, same_bytes};

fn setup() -> (tempfile::TempDir, Drover) {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    (folder, drover)
}

fn copy(drover: &Drover, source: &Path, target: &Path, more: &[&str]) {
    let args = [&["copy", source.to_str().unwrap(), target.to_str().unwrap()], more].concat();
    let output = drover.run(&args).unwrap();
    assert_eq!(output.code, Some(0), "{}", output.err);
}

/// Most memory that a running program has held so far.
fn peak_kib(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

#[test]
fn a_sparse_disk_of_six_terabytes_takes_little_time_memory_and_space() {
    const PIECES: [u64; 4] = [0, 100 << 20, 3 << 40, (6 << 40) - 65536];
    let (folder, drover) = setup();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let disk = File::create(&source).unwrap();
    disk.set_len(6 << 40).unwrap();
    for (number, at) in PIECES.into_iter().enumerate() {
        disk.write_all_at(&[number as u8 + 1; 65536], at).unwrap();
    }
    drop(disk);
    let mut child =
        drover.command(&["copy", source.to_str().unwrap(), target.to_str().unwrap()]).spawn().unwrap();
    let mut peak = 0;
    let status = loop {
        peak = peak.max(peak_kib(child.id()).unwrap_or(0));
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success());
    assert!((1..300 << 10).contains(&peak), "{peak} KiB of memory");
    let copied = File::open(&target).unwrap();
    for (number, at) in PIECES.into_iter().enumerate() {
        let mut found = vec![0; 65536];
        copied.read_exact_at(&mut found, at).unwrap();
        assert!(found.iter().all(|byte| *byte == number as u8 + 1), "piece {number}");
    }
    let allocated = copied.metadata().unwrap().blocks() * 512;
    assert!(allocated <= 4 * MIB, "{allocated} bytes on the target for 256 KiB of data");
}

#[test]
fn ten_thousand_tiny_extents_arrive() {
    let (folder, drover) = setup();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let disk = File::create(&source).unwrap();
    disk.set_len(10_000 * 128 * 1024).unwrap();
    for number in 0..10_000u64 {
        disk.write_all_at(&number.to_le_bytes(), number * 128 * 1024 + number % 60_000).unwrap();
    }
    drop(disk);
    copy(&drover, &source, &target, &["--verify", "full"]);
    assert!(same_bytes(&source, &target));
    let allocated = |path| File::open(path).unwrap().metadata().unwrap().blocks();
    // A block of the hash tree is the least that is copied: 64 KiB for each 4 KiB of the source.
    assert!(allocated(&target) <= 17 * allocated(&source), "{} sectors", allocated(&target));
}

#[test]
fn sizes_around_a_block_arrive() {
    let (folder, drover) = setup();
    for bytes in [1, 511, 512, 513, 65_535, 65_536, 65_537, MIB - 1, MIB + 1, 4 * MIB + 511] {
        let source = disk_file(folder.path(), &format!("source-{bytes}"), bytes);
        let target = folder.path().join(format!("target-{bytes}"));
        copy(&drover, &source, &target, &["--verify", "full"]);
        assert!(same_bytes(&source, &target), "{bytes}");
        assert_eq!(std::fs::metadata(&target).unwrap().len(), bytes);
    }
}

/// tmpfs takes direct I/O on some kernels and refuses it on others.
#[test]
fn a_target_in_memory_takes_a_disk() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 9 * MIB + 511);
    let Ok(memory) = tempfile::tempdir_in("/dev/shm") else {
        println!("skipped: no /dev/shm");
        return;
    };
    let target = memory.path().join("target");
    copy(&drover, &source, &target, &["--verify", "full"]);
    assert!(same_bytes(&source, &target));
}

#[test]
fn the_memory_that_was_given_bounds_what_is_in_flight() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 40 * MIB);
    for memory in ["64KiB", "1MiB"] {
        let target = folder.path().join(memory);
        copy(&drover, &source, &target, &["--memory", memory]);
        assert!(same_bytes(&source, &target), "{memory}");
    }
}

#[test]
fn a_limit_on_the_size_of_files_is_a_full_target_and_the_copy_goes_on_without_it() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 4 * MIB);
    let target = folder.path().join("target.qcow2");
    let limited = drover.command(&["copy", source.to_str().unwrap(), target.to_str().unwrap()]);
    let before = ["prlimit".to_string(), format!("--fsize={MIB}")];
    let output = run_by(&before, &limited).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(8), "{said}");
    copy(&drover, &source, &target, &["--verify", "full"]);
}

#[test]
fn a_copy_that_may_start_no_thread_ends_well() {
    const NOBODY: u32 = 61_723;
    let (folder, drover) = setup();
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root may be somebody else");
        return;
    }
    let source = disk_file(folder.path(), "source", 4 * MIB);
    std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let who = ["setpriv", "--clear-groups", "--reuid", &NOBODY.to_string(), "--regid", &NOBODY.to_string()]
        .map(str::to_string);
    let before = [&who[..], &["prlimit".to_string(), "--nproc=1".to_string()]].concat();
    for name in ["target", "target.qcow2"] {
        let target = folder.path().join(name);
        let args = ["copy", source.to_str().unwrap(), target.to_str().unwrap(), "--verify", "source"];
        let output = run_by(&before, &drover.command(&args)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(!said.contains("panicked"), "{said}");
        let output = drover.run(&["verify", source.to_str().unwrap(), target.to_str().unwrap()]).unwrap();
        assert_eq!(output.code, Some(0), "{}", output.err);
    }
}
