//! `drover live`: running guests move between two QEMUs, beat on, and find their memory and disks as they left them.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use drover_lab::{Drover, Output, PulseOptions};
use drover_qemu::Qmp;
use drover_stage::moves::{
    self, SLOWLY, ask, busy, events, idle, say, say_with, with_disks, written_sectors,
};
use drover_stage::pair::Pair;
use serde_json::{Value, json};

#[test]
fn an_idle_guest_moves() {
    let Some(mut pair) = Pair::new(&PulseOptions::default()) else { return };
    let file = pair.path("report.json");
    std::fs::write(&file, "of an earlier move").unwrap();
    let output = pair.live(&["--report", file.to_str().unwrap()]);
    let moved = pair.has_moved(&output);
    assert!(moved["sent_bytes"].as_u64().unwrap() > 32 << 20, "{moved}");
    assert!(moved["downtime_ms"].is_u64() && moved["downtime_ms_by_qemu"].is_u64(), "{moved}");
    says_what_the_events_said(&report(&file), &output);
}

fn report(file: &Path) -> Value {
    let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    assert_eq!((&report["kind"], &report["version"]), (&json!("drover-live-report"), &json!(1)));
    report
}

/// The report of a move has the figures of its events, and parts of the downtime that add up.
#[track_caller]
fn says_what_the_events_said(report: &Value, output: &Output) {
    let moved = moves::moved(output);
    let outcome = &report["outcome"];
    assert_eq!(outcome["result"], "moved", "{report}");
    for key in ["total_s", "downtime_ms_by_qemu", "downtime_ms", "sent_bytes", "passes"] {
        assert_eq!(outcome[key], moved[key], "{key}");
    }
    let memory: Vec<Value> = events(output).into_iter().filter(|event| event["event"] == "memory").collect();
    let samples = report["samples"].as_array().unwrap();
    assert_eq!(samples.len(), memory.len());
    for (sample, event) in samples.iter().zip(&memory) {
        for key in ["at_ms", "status", "pass", "sent_bytes", "left_bytes", "dirty_bytes_per_s"] {
            assert_eq!(sample[key], event[key], "{key} of {event}");
        }
    }
    let chosen = events(output).into_iter().find(|event| event["event"] == "chosen").unwrap();
    assert_eq!(report["forecasts"][0]["dirty_bytes_per_s"], chosen["dirty_bytes_per_s"]);
    assert_eq!(report["forecasts"][0]["channels"], chosen["channels"]);
    has_parts(report, &moved);
}

/// What the downtime was made of is told, and adds up.
#[track_caller]
fn has_parts(report: &Value, moved: &Value) {
    let parts: Vec<f64> =
        report["downtime_parts"].as_array().unwrap().iter().filter_map(|part| part["ms"].as_f64()).collect();
    assert_eq!(parts.len(), 3, "{}", report["downtime_parts"]);
    let (sum, stood) = (parts.iter().sum::<f64>(), moved["downtime_ms"].as_f64().unwrap());
    assert!((sum - stood).abs() < 1.0, "{parts:?} of {stood}");
}

#[test]
fn a_guest_that_writes_all_along_moves_over_many_connections_or_one() {
    for channels in ["1", "4"] {
        let Some(mut pair) = Pair::new(&busy()) else { return };
        let output = pair.live(&["--channels", channels]);
        pair.has_moved(&output);
        let verdict = pair.target.verify().unwrap();
        assert!(verdict.writes_counted > 60, "{verdict:?}");
    }
}

#[test]
fn a_paused_guest_moves_and_stays_paused() {
    let Some(mut pair) = Pair::new(&busy()) else { return };
    say(&pair.source, "stop");
    let output = pair.live(&[]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(!pair.target.beats_within(Duration::from_millis(300)));
    say(&pair.target, "cont");
    pair.target.beat(5).unwrap();
    assert!(pair.target.verify().unwrap().is_sound());
}

#[test]
fn a_bound_on_the_rate_takes_one_connection_and_more_are_warned_of() {
    for (more, said) in [(&[][..], false), (&["--channels", "4"], true)] {
        let Some(mut pair) = Pair::new(&busy()) else { return };
        let output = pair.live(&[&["--rate-max", "200m"], more].concat());
        pair.has_moved(&output);
        let told = output.out.contains("4 connections may go up to 20 MB/s beyond --rate-max");
        assert_eq!(told, said, "{output:?}");
    }
}

#[test]
fn a_move_whose_output_nobody_reads_is_cancelled() {
    let Some(mut pair) = Pair::new(&busy()) else { return };
    let mut command = pair.command(&["--rate-max", "80m"]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert!(err.contains("the guest is at the source"), "{err}");
    pair.has_stayed();
}

#[test]
fn disks_in_two_files_are_not_shared() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = with_disks(folder.path(), &busy());
    let Some(mut pair) = Pair::unlike(&here, &there) else { return };
    let output = pair.live(&["--disks", "shared"]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(
        output.err.contains("b.raw at the target") && output.err.contains("--assume-shared"),
        "{output:?}"
    );
    let output = pair.live(&["--disks", "shared", "--assume-shared", "--dry-run"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    pair.has_stayed();
}

#[test]
fn disks_go_with_the_guest() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = with_disks(folder.path(), &busy());
    let Some(mut pair) = Pair::unlike(&here, &there) else { return };
    let nbd = format!("unix:{}", pair.path("nbd.sock").display());
    let file = pair.path("report.html");
    let output = pair.live(&["--disks", "mirror", "--nbd", &nbd, "--report", file.to_str().unwrap()]);
    pair.has_moved(&output);
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.contains("the guest runs at the target") && page.contains("disks handed over"), "{page}");
    let stood = format!("{} ms", moves::moved(&output)["downtime_ms"]);
    assert!(page.ends_with("</html>\n") && page.contains(&stood), "{stood}: {page}");
    pair.target.kill();
    assert!(written_sectors(folder.path()) > 0, "the guest wrote nothing");
}

#[test]
fn a_job_at_work_on_a_disk_is_named_before_anything_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = with_disks(folder.path(), &busy());
    let Some(mut pair) = Pair::unlike(&here, &there) else { return };
    let nodes = ask(&pair.source, "query-block", Value::Null);
    let node = nodes[0]["inserted"]["node-name"].as_str().unwrap().to_string();
    let copy = json!({"driver": "null-co", "node-name": "copy", "size": 8 << 20, "read-zeroes": true});
    say_with(&pair.source, "blockdev-add", copy);
    let backup = json!({"job-id": "nightly", "device": node, "target": "copy", "sync": "full", "speed": 1});
    say_with(&pair.source, "blockdev-backup", backup);
    let nbd = format!("unix:{}", pair.path("nbd.sock").display());
    let output = pair.live(&["--disks", "mirror", "--nbd", &nbd]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.err.contains("the block job nightly (backup) is at work at the source"), "{output:?}");
    pair.has_stayed();
    say_with(&pair.source, "block-job-cancel", json!({"device": "nightly", "force": true}));
    let output = pair.live(&["--disks", "mirror", "--nbd", &nbd]);
    pair.has_moved(&output);
}

#[test]
fn a_job_that_begins_while_memory_is_sent_calls_the_move_back_and_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let [mut here, there] = with_disks(folder.path(), &idle());
    here.more.extend(["-qmp", "unix:second.sock,server=on,wait=off"].map(str::to_string));
    let Some(mut pair) = Pair::unlike(&here, &there) else { return };
    // A disk that is mirrored takes no other job.
    let child = pair.spawn(&[&["--assume-shared"][..], &SLOWLY].concat());
    pair.wait_until_sending();
    let mut other = Qmp::connect(&pair.path("a/second.sock"), Duration::from_secs(60)).unwrap();
    let nodes = other.execute("query-block", Value::Null).unwrap();
    let node = nodes[0]["inserted"]["node-name"].as_str().unwrap().to_string();
    let copy = json!({"driver": "null-co", "node-name": "copy", "size": 8 << 20, "read-zeroes": true});
    other.execute("blockdev-add", copy).unwrap();
    let backup = json!({"job-id": "nightly", "device": node, "target": "copy", "sync": "full", "speed": 1});
    other.execute("blockdev-backup", backup).unwrap();
    let output = pair.ended(child);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.err.contains("the block job nightly (backup) is at work at the source"), "{output:?}");
    pair.has_stayed();
    let jobs = other.execute("query-block-jobs", Value::Null).unwrap();
    assert_eq!(jobs.as_array().unwrap().len(), 1, "it is left alone: {jobs}");
}

#[test]
fn a_guest_that_is_stopped_on_its_way_stays_stopped_at_the_target() {
    let mut here = idle();
    here.more.extend(["-qmp", "unix:second.sock,server=on,wait=off"].map(str::to_string));
    let Some(mut pair) = Pair::unlike(&here, &idle()) else { return };
    let child = pair.spawn(&SLOWLY);
    pair.wait_until_sending();
    let mut admin = Qmp::connect(&pair.path("a/second.sock"), Duration::from_secs(60)).unwrap();
    admin.execute("stop", Value::Null).unwrap();
    admin.execute("migrate-set-parameters", json!({"max-bandwidth": 1 << 30})).unwrap();
    let output = pair.ended(child);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("somebody stopped the guest at the source"), "{output:?}");
    assert!(!pair.target.beats_within(Duration::from_millis(300)), "it was started");
    say(&pair.target, "cont");
    pair.target.beat(5).unwrap();
    assert!(pair.target.verify().unwrap().is_sound());
}

#[test]
fn what_differs_is_named_before_anything_is_done() {
    let there = PulseOptions { memory_mib: 128, ..busy() };
    let Some(mut pair) = Pair::unlike(&busy(), &there) else { return };
    let file = pair.path("report.json");
    let output = pair.live(&["--report", file.to_str().unwrap()]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.err.contains("64 MiB") && output.err.contains("`-m 64`"), "{}", output.err);
    let outcome = report(&file)["outcome"].clone();
    assert_eq!((&outcome["result"], &outcome["guest_at"]), (&json!("failed"), &json!("source")));
    assert!(outcome["message"].as_str().unwrap().contains("64 MiB"), "{outcome}");
    pair.has_stayed();
}

#[test]
fn a_promise_that_cannot_be_kept_is_not_begun() {
    let hot = PulseOptions { pages_per_beat: 4000, ..PulseOptions::default() };
    let Some(mut pair) = Pair::new(&hot) else { return };
    let output = pair.live(&["--line", "100m"]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.err.contains("does not converge") && output.err.contains("--allow"), "{}", output.err);
    pair.has_stayed();
}

#[test]
fn a_dry_run_moves_nothing_and_tells_what_would_happen() {
    let Some(mut pair) = Pair::new(&busy()) else { return };
    let output = pair.live(&["--dry-run", "--line", "1g"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    let chosen = events(&output).into_iter().find(|event| event["event"] == "chosen").unwrap();
    assert_eq!(chosen["ways"][0]["keeps_the_promise"], true, "{chosen}");
    pair.has_stayed();
    pair.has_moved(&pair.live(&[]));
}

#[test]
fn a_target_that_dies_in_mid_move_leaves_the_guest_where_it_was() {
    let Some(mut pair) = Pair::new(&idle()) else { return };
    let file = pair.path("report.json");
    let child = pair.spawn(&[&SLOWLY[..], &["--report", file.to_str().unwrap()]].concat());
    pair.wait_until_sending();
    pair.target.kill();
    let output = pair.ended(child);
    assert_eq!(output.code, Some(7), "{output:?}");
    assert!(output.err.contains("the guest is at the source, as it was"), "{}", output.err);
    let report = report(&file);
    assert_eq!(report["outcome"]["guest_at"], "source", "{report}");
    assert!(report["samples"].as_array().unwrap().iter().any(|sample| sample["sent_bytes"] != 0), "{report}");
    pair.has_stayed();
}

#[test]
fn ctrl_c_leaves_the_guest_where_it_was() {
    let Some(mut pair) = Pair::new(&idle()) else { return };
    let child = pair.spawn(&SLOWLY);
    pair.wait_until_sending();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = pair.ended(child);
    assert_eq!(output.code, Some(130), "{output:?}");
    let failed = events(&output).into_iter().find(|event| event["event"] == "failed").unwrap();
    assert_eq!(failed["guest_at"], "source");
    pair.has_stayed();
}

#[test]
fn a_guest_that_may_go_ahead_goes_ahead() {
    let hot = PulseOptions { pages_per_beat: 200, ..PulseOptions::default() };
    let Some(mut pair) = Pair::new(&hot) else { return };
    // 80 MB/s written to, 25 MB/s carried: nothing but post-copy ends.
    let file = pair.path("report.json");
    let report_to = ["--report", file.to_str().unwrap()];
    let ways = ["--line", "200m", "--rate-max", "200m", "--allow", "postcopy"];
    let output = pair.live(&[&ways[..], &report_to].concat());
    assert_eq!(output.code, Some(0), "{output:?}");
    has_parts(&report(&file), &moves::moved(&output));
    pair.target.beat(20).unwrap();
    moves::is_silent(&pair.source);
    let verdict = pair.target.verify().unwrap();
    assert!(verdict.is_sound(), "{verdict:?}");
}

#[test]
fn a_monitor_that_serves_nobody_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    let (from, to) = (folder.path().join("a.sock"), folder.path().join("b.sock"));
    let (from, to) = (from.display().to_string(), to.display().to_string());
    let file = folder.path().join("report.json");
    let args = ["live", &from, "--to", &to, "--uri", "tcp:localhost:0", "--report"];
    let output = drover.run(&[&args[..], &[file.to_str().unwrap()]].concat()).unwrap();
    assert_eq!(output.code, Some(6), "{output:?}");
    assert!(output.err.contains(&from) && output.err.contains("one client"), "{}", output.err);
    let outcome = report(&file)["outcome"].clone();
    assert_eq!((&outcome["result"], &outcome["guest_at"]), (&json!("failed"), &Value::Null));
    let output = drover.run(&[&args[..6], &["--watch", "--json"]].concat()).unwrap();
    assert_eq!(output.code, Some(2), "{output:?}");
    // What cannot be written is told before anything is looked at.
    std::fs::create_dir(folder.path().join("taken.html")).unwrap();
    for bad in ["nowhere/report.json", "taken.html"] {
        let bad = folder.path().join(bad);
        let output = drover.run(&[&args[..], &[bad.to_str().unwrap()]].concat()).unwrap();
        assert_eq!(output.code, Some(2), "{output:?}");
        assert!(output.err.contains("--report"), "{output:?}");
    }
}
