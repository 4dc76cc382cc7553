//! `drover live` where a disk is full, and where somebody stops it, once or again, in each of its phases.
#![allow(clippy::unwrap_used)]

use std::process::Command;
use std::time::Duration;

use drover_lab::{Output, PulseOptions};
use drover_stage::line::Line;
use drover_stage::moves::{self, SLOWLY, ask, busy, events, idle, with_disks};
use drover_stage::pair::Pair;
use drover_stage::process::wait_until;
use serde_json::{Value, json};

/// Both QEMUs know the place of disks by one name, and each means its own: between them lies the line.
const PLACE: &str = "unix:/proc/self/cwd/disks.sock";

const PATIENCE: Duration = Duration::from_secs(120);

fn signal(process: u32, name: &str) {
    assert!(Command::new("kill").args([name, &process.to_string()]).status().unwrap().success());
}

fn says(event: &Value, words: &str) -> bool {
    event["text"].as_str().is_some_and(|text| text.contains(words))
}

#[track_caller]
fn is_at_source(output: &Output, code: i32) {
    assert_eq!(output.code, Some(code), "{output:?}");
    let failed = events(output).into_iter().find(|event| event["event"] == "failed").unwrap();
    assert_eq!(failed["guest_at"], "source", "{failed}");
}

/// Both QEMUs have nothing left of what drover made for disks.
#[track_caller]
fn has_no_mirror(pair: &Pair) {
    assert_eq!(ask(&pair.source, "query-block-jobs", Value::Null), json!([]));
    let nodes = ask(&pair.source, "query-named-block-nodes", json!({"flat": true}));
    let is_ours = |node: &Value| node["node-name"].as_str().is_some_and(|name| name.starts_with("drover"));
    assert!(!nodes.as_array().unwrap().iter().any(is_ours), "{nodes}");
    assert_eq!(ask(&pair.target, "query-block-exports", Value::Null), json!([]));
}

/// Waits until drover tells such an event.
#[track_caller]
fn wait_for(pair: &Pair, what: &str, is_it: impl Fn(&Value) -> bool) {
    assert!(moves::is_told(&pair.path("out"), is_it), "{what}: it was never told");
}

#[test]
fn a_second_ctrl_c_changes_nothing_and_is_said_not_to() {
    let Some(mut pair) = Pair::new(&idle()) else { return };
    let child = pair.spawn(&SLOWLY);
    pair.wait_until_sending();
    signal(child.id(), "-INT");
    signal(child.id(), "-INT");
    wait_for(&pair, "what another Ctrl-C does", |event| says(event, "another Ctrl-C changes nothing"));
    for again in ["-INT", "-TERM", "-HUP"] {
        // It may have ended by then.
        let _ = Command::new("kill").args([again, &child.id().to_string()]).output().unwrap();
    }
    let output = pair.ended(child);
    is_at_source(&output, 130);
    pair.has_stayed();
    assert_eq!(ask(&pair.source, "query-status", Value::Null)["status"], "running");
}

#[test]
fn ctrl_c_in_the_look_begins_nothing() {
    let Some(mut pair) = Pair::new(&idle()) else { return };
    // Nobody answers there: the look waits for a target that stands still.
    signal(pair.target.pid(), "-STOP");
    let child = pair.spawn(&[]);
    wait_until("it is prepared for signals", PATIENCE, || catches_interrupt(child.id()));
    signal(child.id(), "-INT");
    signal(pair.target.pid(), "-CONT");
    let output = pair.ended(child);
    assert_eq!(output.code, Some(130), "{output:?}");
    pair.has_stayed();
    assert_eq!(ask(&pair.target, "query-status", Value::Null)["status"], "inmigrate");
    // The next one moves it.
    pair.has_moved(&pair.live(&[]));
}

fn catches_interrupt(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let set = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    // Bit 0 is signal 1.
    u64::from_str_radix(set.trim(), 16).unwrap() & 2 != 0
}

#[test]
fn ctrl_c_while_disks_are_copied_leaves_the_guest_and_no_mirror_and_the_next_try_works() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = with_disks(folder.path(), &busy());
    let Some(mut pair) = Pair::unlike(&here, &there) else { return };
    let [near, far] = ["a", "b"].map(|side| pair.path(side).join("disks.sock"));
    let line = Line::between(&near, &far);
    line.narrow_after(1 << 20);
    let child = pair.spawn(&["--disks", "mirror", "--nbd", PLACE]);
    wait_for(&pair, "a disk is copied", |event| {
        event["event"] == "disk" && event["done_bytes"].as_u64() > Some(1 << 20)
    });
    signal(child.id(), "-INT");
    wait_for(&pair, "what another Ctrl-C does", |event| says(event, "another Ctrl-C changes nothing"));
    signal(child.id(), "-INT");
    let output = pair.ended(child);
    is_at_source(&output, 130);
    pair.has_stayed();
    has_no_mirror(&pair);
    line.narrow_after(u64::MAX);
    let output = pair.live(&["--disks", "mirror", "--nbd", PLACE]);
    pair.has_moved(&output);
}

/// The target's disk has room for its first half only.
fn full(options: &PulseOptions) -> PulseOptions {
    let path = options.disk.clone().unwrap();
    let error = r#"{"event": "none", "iotype": "write", "errno": 28, "sector": 8192, "immediately": false, "once": false}"#;
    let node = format!(
        r#"{{"driver": "raw", "node-name": "disk0", "file": {{"driver": "blkdebug", "inject-error": [{error}],
           "image": {{"driver": "file", "filename": "{}"}}}}}}"#,
        path.display()
    );
    let more = ["-blockdev", &node, "-device", "ide-hd,id=hd0,bus=ide.0,drive=disk0"];
    PulseOptions { disk: None, more: more.map(str::to_string).to_vec(), ..options.clone() }
}

#[test]
fn a_disk_that_is_full_at_the_target_is_told_as_that_and_the_guest_runs_on() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = with_disks(folder.path(), &busy());
    let Some(mut pair) = Pair::unlike(&here, &full(&there)) else { return };
    let nbd = format!("unix:{}", pair.path("nbd.sock").display());
    let output = pair.live(&["--disks", "mirror", "--nbd", &nbd]);
    is_at_source(&output, 7);
    for words in ["hd0", "No space left", "the guest is at the source, as it was"] {
        assert!(output.err.contains(words), "{words}: {}", output.err);
    }
    assert!(!output.out.contains("mirrors are left"), "{}", output.out);
    pair.has_stayed();
    has_no_mirror(&pair);
}

#[test]
fn another_processor_at_the_target_is_named_before_anything_is_done() {
    let there = PulseOptions { more: ["-cpu", "Nehalem"].map(str::to_string).to_vec(), ..busy() };
    let Some(mut pair) = Pair::unlike(&busy(), &there) else { return };
    let output = pair.live(&[]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.err.contains("Nehalem") && output.err.contains("`-cpu"), "{}", output.err);
    pair.has_stayed();
    assert_eq!(ask(&pair.target, "query-status", Value::Null)["status"], "inmigrate");
}
