//! Little memory: what is stated is enough, and a copy that the kernel kills for want of it goes on.
//!
//! By memory cgroups, of either version, where this user may make one. Elsewhere the bounds are tested by
//! RLIMIT_AS (address space: a harder bound, as it counts what is not touched), and the kill is skipped.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use drover_lab::Drover;
use drover_stage::cgroup::MemoryGroup;
use drover_stage::nbdkit::{Nbdkit, SLOWLY};
use drover_stage::process::{PATIENCE, recorded_blocks, wait_for_records, wait_until};
use drover_stage::{MIB, Stage, disk_file, same_bytes, vm};

/// What all of drover takes at most, of any number of disks (ARCHITECTURE.md).
const BOUND: u64 = 300 * MIB;

/// Threads' stacks and arenas of the allocator, reserved and hardly touched.
const ADDRESSES: u64 = 2048 * MIB;

fn setup() -> (tempfile::TempDir, Drover) {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    (folder, drover)
}

/// Runs to a good end within the bound.
fn run_within_bound(command: &Command) {
    let group = MemoryGroup::new(BOUND);
    let output = match &group {
        Some(group) => group.around(command, false).output().unwrap(),
        None => {
            println!("instead: an address space of {} MiB", ADDRESSES / MIB);
            let mut limited = Command::new("prlimit");
            limited.arg(format!("--as={ADDRESSES}")).arg(command.get_program()).args(command.get_args());
            limited.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            limited.output().unwrap()
        }
    };
    assert!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    assert_eq!(group.map_or(0, |group| group.kills()), 0);
}

#[test]
fn ten_disks_at_once_stay_within_the_stated_memory() {
    let Some(stage) = Stage::new(51, |folder| {
        let disks: Vec<_> =
            (0..10).map(|n| disk_file(folder, &format!("d{n}"), 48 * MIB + n * 512)).collect();
        let disks: Vec<&std::path::Path> = disks.iter().map(|disk| disk.as_path()).collect();
        vec![vm("one", &disks[..5]), vm("two", &disks[5..])]
    }) else {
        return;
    };
    let plan = stage.plan("ten", &[("mode: cold", "mode: cold\nlimits: {disks: 10, vms_per_host: 2}")]);
    run_within_bound(&stage.drover.command(&["migrate", &plan]));
    for n in 0..10 {
        stage.assert_equal(["one", "two"][n / 5], n % 5, &stage.path(&format!("d{n}")));
    }
}

#[test]
fn a_large_sparse_disk_stays_within_the_stated_memory() {
    let (folder, drover) = setup();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    let disk = File::create(&source).unwrap();
    disk.set_len(6 << 40).unwrap();
    // Spread, so that leaves of data lie in every part of the table of hashes.
    for at in (0..6u64 << 40).step_by(1 << 36) {
        disk.write_all_at(&at.to_le_bytes(), at + 4096).unwrap();
    }
    drop(disk);
    run_within_bound(&drover.command(&["copy", source.to_str().unwrap(), target.to_str().unwrap()]));
    let copied = File::open(&target).unwrap();
    for at in (0..6u64 << 40).step_by(1 << 36) {
        let mut found = [0; 8];
        copied.read_exact_at(&mut found, at + 4096).unwrap();
        assert_eq!(u64::from_le_bytes(found), at);
    }
}

#[test]
fn killed_for_want_of_memory_a_copy_goes_on_where_it_stopped() {
    let (folder, drover) = setup();
    let source = disk_file(folder.path(), "source", 128 * MIB);
    let target = folder.path().join("target");
    let Some(server) = Nbdkit::held(folder.path(), &source, 60, 48 * MIB) else { return };
    let Some(group) = MemoryGroup::new(BOUND) else { return };
    let uri = server.uri();
    let args = [&["copy", &uri, target.to_str().unwrap()][..], &SLOWLY].concat();
    let mut copy = group.around(&drover.command(&args), true);
    let mut copy = copy.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for_records(&target);
    // A neighbour that takes all there is; the kernel ends drover for it.
    let mut hog = Command::new("dd");
    hog.args(["if=/dev/zero", "of=/dev/null", &format!("bs={}", 2 * BOUND), "count=1000"]);
    let mut hog = group.around(&hog, false).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut ended = None;
    wait_until("the kernel kills the copy", PATIENCE, || {
        ended = copy.try_wait().unwrap();
        ended.is_some()
    });
    let _ = hog.kill();
    hog.wait().unwrap();
    server.go_on();
    assert_eq!(ended.unwrap().signal(), Some(9));
    assert!(group.kills() > 0, "the kernel killed nothing");
    let recorded = recorded_blocks(&target);
    assert!((1..2048).contains(&recorded), "{recorded} blocks were recorded, of 2048");
    let output = drover.run(&["copy", &uri, target.to_str().unwrap(), "--verify", "full"]).unwrap();
    assert_eq!(output.code, Some(0), "{}", output.err);
    assert!(output.err.contains("resumed") && output.err.contains("verified: equal"), "{}", output.err);
    assert!(same_bytes(&source, &target));
}
