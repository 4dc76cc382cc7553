//! Faults in mid-copy, each declared: retried (R) or a clear error with a state to resume from (E).
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use drover_stage::small_disk::SmallDisk;
use drover_stage::{MIB, Stage, disk_file, vm, with};
use serde_json::{Value, json};

fn stage(number: u8, mib: u64) -> Option<Stage> {
    Stage::new(number, |folder| {
        let a = disk_file(folder, "a", mib * MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"}))]
    })
}

fn retries(stage: &Stage, plan: &str) -> u64 {
    stage.report(plan)["vms"][0]["disks"][0]["details"]["retries"].as_u64().unwrap()
}

/// R: the copy goes on by itself and the bytes are equal.
fn is_outlasted(number: u8, fault: Value) {
    let Some(stage) = stage(number, 64) else { return };
    stage.sim.spoil_data(fault.clone()).unwrap();
    let plan = stage.plan("retried", &[]);
    stage.migrate(&plan);
    stage.assert_equal("one", 0, &stage.path("a"));
    assert!(retries(&stage, &plan) > 0, "{fault} struck nothing");
}

#[test]
fn cut_connections_are_retried() {
    is_outlasted(30, json!({"match": "flat", "cut_after": 100_000, "count": 5, "skip": 2}));
}

#[test]
fn bursts_of_503_are_retried() {
    is_outlasted(31, json!({"match": "flat", "status": 503, "count": 20, "skip": 3}));
}

#[test]
fn a_stalled_body_is_retried_on_a_new_connection() {
    is_outlasted(32, json!({"match": "flat", "stall_after": 50_000, "count": 1, "skip": 4}));
}

#[test]
fn an_expired_session_is_renewed_in_mid_copy() {
    let Some(stage) = stage(33, 96) else { return };
    stage.sim.post("/rate", json!({"bytes_per_s": 60 * MIB, "per": "host"})).unwrap();
    let plan = stage.plan("expired", &[("from: hosts", "from: provider")]);
    let mut child = stage.drover.start(&["migrate", &plan]).unwrap().child;
    wait_for_bytes(&stage, 10 * MIB);
    stage.sim.post("/sessions/expire", json!({})).unwrap();
    assert!(child.wait().unwrap().success());
    stage.assert_equal("one", 0, &stage.path("a"));
}

/// Four megabytes on their way at most: what was served before is there.
const FEW: (&str, &str) = ("mode: cold", "mode: cold\nlimits: {request: 1MiB, lanes_per_disk: 1, depth: 4}");

fn wait_for_bytes(stage: &Stage, bytes: u64) {
    let until = Instant::now() + Duration::from_secs(120);
    while stage.served() < bytes {
        assert!(Instant::now() < until, "the copy does not get going");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// E: the VM fails with this exit code and these words; the source is as it was; when the cause is gone,
/// `resume` brings it home.
fn fails_and_resumes(stage: &Stage, plan: &str, code: i32, words: &str, mend: impl FnOnce()) {
    let before = stage.source_state();
    let output = stage.run(&["migrate", plan]);
    assert_eq!(output.code, Some(code), "{}", output.err);
    assert!(
        output.out.contains(words) || output.err.contains(words),
        "'{words}' in {}{}",
        output.out,
        output.err
    );
    assert_eq!(stage.source_state(), before, "the source is as it was, and on again");
    mend();
    let resumed = stage.run(&["resume", plan]);
    assert_eq!(resumed.code, Some(0), "{}{}", resumed.out, resumed.err);
}

#[test]
fn an_outage_longer_than_the_plan_allows_ends_in_a_state_to_resume_from() {
    let Some(stage) = stage(34, 48) else { return };
    stage.sim.spoil_data(json!({"match": "flat", "status": 503, "count": -1, "skip": 6})).unwrap();
    let limits = "mode: cold\nlimits: {retry_for: 1s, retries: 1, request: 1MiB}\n";
    let plan = stage.plan("outage", &[("mode: cold\n", limits)]);
    fails_and_resumes(&stage, &plan, 6, "503", || {
        stage.sim.post("/fault/clear", json!({})).unwrap();
    });
    stage.assert_equal("one", 0, &stage.path("a"));
}

#[test]
fn a_failed_snapshot_task_ends_with_the_source_as_it_was() {
    let Some(stage) = stage(35, 4) else { return };
    let fault = json!({"method": "CreateSnapshot_Task", "fault": "FileFault", "message": "no room for a delta", "as": "task"});
    stage.sim.post("/fault/soap", fault).unwrap();
    let plan = stage.plan("snapshot", &[]);
    fails_and_resumes(&stage, &plan, 6, "create snapshot", || ());
    stage.assert_equal("one", 0, &stage.path("a"));
}

#[test]
fn a_full_target_stops_with_its_own_code_and_goes_on_when_there_is_room() {
    let Some(stage) = stage(36, 48) else { return };
    let Some(small) = SmallDisk::mount(&stage.vms(), 24) else { return };
    let plan = stage.plan("full", &[]);
    fails_and_resumes(&stage, &plan, 8, "make room", || small.grow(100));
    stage.assert_equal("one", 0, &stage.path("a"));
}

#[test]
fn ctrl_c_stops_cleanly_and_resume_goes_on() {
    let Some(stage) = stage(37, 96) else { return };
    let before = stage.source_state();
    stage.sim.post("/rate", json!({"bytes_per_s": 8 * MIB, "per": "host"})).unwrap();
    let plan = stage.plan("stopped", &[FEW]);
    let mut child = stage.drover.start(&["migrate", &plan]).unwrap().child;
    wait_for_bytes(&stage, 20 * MIB);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(stage.source_state(), before, "the source is on again, without a snapshot");
    assert!(stage.run(&["status", &plan]).out.contains("drover resume"));
    stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    let served = stage.served();
    // The VM ran in between, though nothing was written: its disks are as they were, so the copy goes on.
    assert_eq!(stage.run(&["resume", &plan]).code, Some(0));
    let read_again = stage.served() - served;
    assert!(read_again <= (96 - 20 + 4) * MIB, "{read_again} bytes were read after the stop");
    stage.assert_equal("one", 0, &stage.path("a"));
}

#[test]
fn a_source_that_changed_after_a_stop_is_copied_from_the_beginning() {
    let Some(stage) = stage(38, 48) else { return };
    stage.sim.post("/rate", json!({"bytes_per_s": 4 * MIB, "per": "host"})).unwrap();
    let plan = stage.plan("changed", &[FEW]);
    let mut child = stage.drover.start(&["migrate", &plan]).unwrap().child;
    wait_for_bytes(&stage, 6 * MIB);
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    // A second later, so that the modification time differs, as it would after any real pause.
    std::thread::sleep(Duration::from_millis(1100));
    stage
        .sim
        .post("/write", json!({"vm": "one", "disk": 0, "offset": 0, "fill": "random", "length": 65536}))
        .unwrap();
    let resumed = stage.run(&["resume", &plan]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert!(resumed.err.contains("the source has changed"), "{}", resumed.err);
    let disks = stage.sim.get("/disks?vm=one").unwrap();
    let live = disks[0]["disks"][0]["live"].as_str().unwrap().to_string();
    stage.assert_equal("one", 0, std::path::Path::new(&live));
}

#[test]
fn cancel_stops_a_running_plan_and_undoes_what_it_left() {
    let Some(stage) = stage(39, 96) else { return };
    let before = stage.source_state();
    stage.sim.post("/rate", json!({"bytes_per_s": 4 * MIB, "per": "host"})).unwrap();
    let plan = stage.plan("given-up", &[]);
    let mut child = stage.drover.start(&["migrate", &plan]).unwrap().child;
    wait_for_bytes(&stage, 4 * MIB);
    let second = stage.run(&["migrate", &plan]);
    assert_eq!(second.code, Some(3), "{}", second.err);
    assert!(second.err.contains("another drover"), "{}", second.err);
    let cancelled = stage.run(&["cancel", &plan]);
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.err);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(stage.source_state(), before);
    assert!(!stage.image("one", 0).exists(), "nothing is left at the target");
    assert_eq!(stage.run(&["resume", &plan]).code, Some(3), "what was cancelled is not resumed");
}

/// A plan whose copy failed half-way: its image and its journal lie there.
fn left_half_way(stage: &Stage, name: &str) -> String {
    stage.sim.spoil_data(json!({"match": "flat", "status": 503, "count": -1, "skip": 6})).unwrap();
    let limits = "mode: cold\nlimits: {retry_for: 1s, retries: 1, request: 1MiB}\n";
    let plan = stage.plan(name, &[("mode: cold\n", limits)]);
    assert_eq!(stage.run(&["migrate", &plan]).code, Some(6));
    stage.sim.post("/fault/clear", json!({})).unwrap();
    plan
}

#[test]
fn an_image_whose_journal_cannot_be_read_is_not_written_over() {
    let Some(stage) = stage(44, 24) else { return };
    let plan = left_half_way(&stage, "unread");
    let image = stage.image("one", 0);
    let journal = drover_mover::journal_path(&image);
    let (held, mut recorded) = (std::fs::read(&image).unwrap(), std::fs::read(&journal).unwrap());
    recorded[20] ^= 1;
    std::fs::write(&journal, recorded).unwrap();
    let before = stage.source_state();
    let refused = stage.run(&["resume", &plan]);
    assert_eq!(refused.code, Some(7), "{}", refused.err);
    for words in ["may be somebody else's", "header is damaged", "remove"] {
        assert!(refused.err.contains(words), "'{words}' is not in: {}", refused.err);
    }
    assert!(std::fs::read(&image).unwrap() == held, "it was written over");
    assert_eq!(stage.source_state(), before, "nothing was switched off for it");
    std::fs::remove_file(&image).unwrap();
    std::fs::remove_file(&journal).unwrap();
    let resumed = stage.run(&["resume", &plan]);
    assert_eq!(resumed.code, Some(0), "{}{}", resumed.out, resumed.err);
    stage.assert_equal("one", 0, &stage.path("a"));
}

#[test]
fn cancel_leaves_what_somebody_put_in_an_images_place() {
    let Some(stage) = stage(45, 24) else { return };
    let plan = left_half_way(&stage, "replaced");
    let (image, other) = (stage.image("one", 0), stage.path("other"));
    std::fs::write(&other, b"somebody's work").unwrap();
    std::fs::rename(&other, &image).unwrap();
    let cancelled = stage.run(&["cancel", &plan]);
    assert!(cancelled.code != Some(0), "{}", cancelled.err);
    assert!(cancelled.err.contains("stays, for it may be somebody else's"), "{}", cancelled.err);
    assert_eq!(std::fs::read(&image).unwrap(), b"somebody's work");
    std::fs::remove_file(&image).unwrap();
    let cancelled = stage.run(&["cancel", &plan]);
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.err);
    assert!(!drover_mover::journal_path(&image).exists());
}

#[test]
fn cancel_removes_no_image_that_somebody_holds() {
    let Some(stage) = stage(48, 24) else { return };
    let plan = left_half_way(&stage, "held");
    let image = stage.image("one", 0);
    let held = drover_disk::LockedFile::open(&image).unwrap();
    let cancelled = stage.run(&["cancel", &plan]);
    assert!(cancelled.code != Some(0) && image.exists(), "{}", cancelled.err);
    assert!(
        cancelled.err.contains(&format!("locking {} to remove it", image.display())),
        "{}",
        cancelled.err
    );
    drop(held);
    let cancelled = stage.run(&["cancel", &plan]);
    assert_eq!((cancelled.code, image.exists()), (Some(0), false), "{}", cancelled.err);
}

#[test]
fn ctrl_c_ends_the_wait_for_a_guest_that_does_not_go_down() {
    let Some(stage) = stage(46, 4) else { return };
    let before = stage.source_state();
    // The guest was asked to by somebody before, and takes its time.
    let fault = json!({"method": "ShutdownGuest", "fault": "InvalidPowerState", "count": -1});
    stage.sim.post("/fault/soap", fault).unwrap();
    let plan = stage.plan("waits", &[FEW]);
    let mut child = stage.drover.start(&["migrate", &plan]).unwrap().child;
    let calls = || stage.sim.get("/stats").unwrap()["soap"]["WaitForUpdatesEx"].as_u64().unwrap_or(0);
    let until = std::time::Instant::now() + Duration::from_secs(60);
    while calls() == 0 {
        assert!(std::time::Instant::now() < until, "it does not wait for the guest");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    // The plan would wait for ten minutes.
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(stage.source_state(), before);
}

/// The machine is defined, the source is off, and the snapshot cannot be removed; nor can the session be ended, which changes nothing.
#[test]
fn a_clean_up_that_fails_ends_with_13_and_names_what_is_left_and_resume_does_that_alone() {
    let Some(stage) = stage(47, 4) else { return };
    let fault = |method: &str| {
        let text = "the host is busy with something else";
        let fault = json!({"method": method, "fault": "FileFault", "message": text, "count": -1});
        stage.sim.post("/fault/soap", fault).unwrap();
    };
    let snapshots = || stage.sim.get("/vms").unwrap()[0]["snapshots"].as_array().unwrap().len();
    let plan = stage.plan("uncleaned", &[]);
    for (turn, args) in [vec!["migrate", &plan], vec!["resume", &plan], vec!["resume", &plan, "--json"]]
        .into_iter()
        .enumerate()
    {
        fault("RemoveSnapshot_Task");
        fault("Logout");
        let served = stage.served();
        let ended = stage.run(&args);
        assert_eq!((ended.code, snapshots()), (Some(13), 1), "{args:?}: {}{}", ended.out, ended.err);
        assert!(turn == 0 || stage.served() == served, "{args:?}: a disk was read again");
        let left = "left behind: snapshot drover-uncleaned at the source";
        if args.contains(&"--json") {
            let events: Vec<Value> =
                ended.out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            let end = events.iter().find(|event| event["event"] == "vm_ended").unwrap();
            assert_eq!(end["state"], "not_cleaned_up", "{end}");
            assert_eq!(end["standing"]["source"], "off", "{end}");
            assert_eq!(end["standing"]["target"], "defined", "{end}");
            assert_eq!(end["standing"]["snapshots"], json!(["drover-uncleaned"]), "{end}");
            assert_eq!(end["standing"]["go_on"], "drover resume uncleaned", "{end}");
            let sum = events.iter().find(|event| event["event"] == "plan_ended").unwrap();
            assert_eq!((&sum["not_cleaned_up"], &sum["failed"]), (&json!(1), &json!(0)), "{sum}");
            continue;
        }
        for words in ["NOT CLEANED UP", "has arrived at the target", left, "drover resume uncleaned"] {
            assert!(ended.err.contains(words), "'{words}' is not in: {}", ended.err);
        }
    }
    let report = stage.run(&["report", "uncleaned", "--json"]).json().unwrap();
    assert_eq!(report["vms"][0]["state"], "not_cleaned_up");
    stage.sim.post("/fault/clear", json!({})).unwrap();
    let resumed = stage.run(&["resume", &plan]);
    assert_eq!((resumed.code, snapshots()), (Some(0), 0), "{}", resumed.err);
    stage.assert_equal("one", 0, &stage.path("a"));
}
