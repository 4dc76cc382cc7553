//! `drover live` after an earlier run of it was killed: both QEMUs say where they stand, and the guest runs once.
#![allow(clippy::unwrap_used)]

use std::process::{Child, Command};
use std::time::Duration;

use drover_lab::{Drover, Output, Pulse, PulseOptions};
use drover_qemu::Qmp;
use drover_stage::moves::{self, SLOWLY, idle, is_sending, say, written_sectors};
use serde_json::{Value, json};
use tempfile::TempDir;

struct Pair {
    source: Pulse,
    target: Pulse,
    drover: Drover,
    folder: TempDir,
}

impl Pair {
    fn new() -> Option<Pair> {
        Pair::unlike(&idle(), &idle())
    }

    fn unlike(here: &PulseOptions, there: &PulseOptions) -> Option<Pair> {
        Pulse::qemu()?;
        let folder = tempfile::Builder::new().prefix("drover-again-").tempdir().unwrap();
        let mut here = here.clone();
        here.more.extend(["-qmp", "unix:second.sock,server=on,wait=off"].map(str::to_string));
        let source = Pulse::start(&folder.path().join("a"), &here).unwrap();
        let target = Pulse::waiting(&folder.path().join("b"), there).unwrap();
        source.beat(3).unwrap();
        let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
        Some(Pair { source, target, drover, folder })
    }

    fn with_disks() -> Option<(Pair, TempDir)> {
        let folder = tempfile::tempdir().unwrap();
        let [here, there] = moves::with_disks(folder.path(), &idle());
        let pair = Pair::unlike(&here, &there)?;
        Some((pair, folder))
    }

    fn command(&self, to: &Pulse, more: &[&str]) -> Command {
        let place = |name: &str| format!("unix:{}", self.folder.path().join(name).display());
        let mut command = self.drover.command(&["live", "--json", "--nbd", &place("nbd.sock")]);
        command.arg(self.source.monitor()).arg("--to").arg(to.monitor());
        command.args(["--uri", &place("memory.sock")]).args(more);
        command
    }

    fn live(&self, more: &[&str]) -> Output {
        self.live_to(&self.target, more)
    }

    fn live_to(&self, to: &Pulse, more: &[&str]) -> Output {
        moves::run(self.command(to, more))
    }

    fn spawn(&self, more: &[&str]) -> Child {
        moves::spawn(self.command(&self.target, more), &self.folder.path().join("out"))
    }

    /// Begins to move, and kills drover when it has told such an event.
    fn killed_when(&self, more: &[&str], is_it: impl Fn(&Value) -> bool) {
        let mut child = self.spawn(more);
        let out = self.folder.path().join("out");
        let was_told = moves::is_told(&out, is_it);
        kill(&mut child);
        let output = moves::ended(child, &out);
        assert!(was_told, "it was never told: {output:?}");
    }

    /// Lets memory go as fast as it can, by the source's second monitor.
    fn hurry(&self) {
        let mut qmp = Qmp::connect(&self.folder.path().join("a/second.sock"), PATIENCE).unwrap();
        qmp.execute("migrate-set-parameters", json!({"max-bandwidth": 1 << 30})).unwrap();
    }

    /// How both stand: the machine and the move.
    fn stand(&self) -> [(String, String); 2] {
        [&self.source, &self.target].map(|guest| {
            let mut qmp = Qmp::connect(&guest.monitor(), Duration::from_secs(60)).unwrap();
            let told = qmp.execute("query-migrate", Value::Null).unwrap();
            (qmp.status().unwrap(), told["status"].as_str().unwrap_or("none").to_string())
        })
    }

    fn wait_until(&self, what: &str, holds: impl Fn(&[(String, String); 2]) -> bool) {
        for _ in 0..6000 {
            if holds(&self.stand()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{what}: {:?}", self.stand());
    }

    #[track_caller]
    fn has_moved(&mut self, output: &Output) {
        moves::has_moved(&mut self.source, &mut self.target, output);
        let [(source, _), (target, _)] = self.stand();
        assert_eq!((source.as_str(), target.as_str()), ("postmigrate", "running"));
    }
}

const PATIENCE: Duration = Duration::from_secs(120);

fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_move_under_way_is_watched_to_its_end() {
    let Some(mut pair) = Pair::new() else { return };
    pair.killed_when(&SLOWLY, is_sending);
    pair.source.beat(5).unwrap();
    let looked = pair.live(&["--dry-run"]);
    assert!(looked.code == Some(0) && looked.out.contains("a move is under way"), "{looked:?}");
    let child = pair.spawn(&[]);
    let told = pair.folder.path().join("out");
    let is_watching = |event: &Value| event["text"].as_str().is_some_and(|it| it.contains("is under way"));
    assert!(moves::is_told(&told, is_watching), "it is not watched");
    pair.hurry();
    let output = moves::ended(child, &told);
    pair.has_moved(&output);
}

/// Drover is held up for a second while the guest stands still and waits for its disks to be handed over.
#[test]
fn a_promise_that_was_broken_is_said_in_json_report_and_exit_code() {
    let Some((mut pair, _disks)) = Pair::with_disks() else { return };
    let report = pair.folder.path().join("report.json");
    let more = ["--disks", "mirror", "--report", report.to_str().unwrap()];
    let child = pair.spawn(&[&SLOWLY[..], &more].concat());
    let out = pair.folder.path().join("out");
    assert!(moves::is_told(&out, is_sending), "nothing is sent");
    signal(&child, "-STOP");
    pair.hurry();
    let mut qmp = Qmp::connect(&pair.folder.path().join("a/second.sock"), PATIENCE).unwrap();
    while qmp.execute("query-migrate", Value::Null).unwrap()["status"] != "pre-switchover" {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(1));
    signal(&child, "-CONT");
    let output = moves::truly_ended(child, &out);
    assert_eq!(output.code, Some(12), "{output:?}");
    moves::has_arrived(&mut pair.source, &mut pair.target);
    let moved = moves::moved(&output);
    assert!(moved["downtime_ms"].as_u64().unwrap() >= 1000 && moved["promise_kept"] == false, "{moved}");
    assert!(moved["promise_broken"].as_str().unwrap().contains("300 ms were promised"), "{moved}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    assert_eq!(report["promise_kept"], false);
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn a_guest_that_waits_at_the_target_is_started_once() {
    let Some(mut pair) = Pair::new() else { return };
    pair.killed_when(&SLOWLY, is_sending);
    pair.hurry();
    pair.wait_until("all is sent", |[source, target]| {
        source == &("postmigrate".to_string(), "completed".to_string()) && target.0 == "paused"
    });
    assert!(pair.target.beats().is_empty(), "it started by itself");
    let output = pair.live(&[]);
    pair.has_moved(&output);
    // Once more changes nothing.
    let again = pair.live(&[]);
    assert!(again.out.contains("has moved already"), "{again:?}");
    pair.has_moved(&again);
}

#[test]
fn a_source_that_was_started_again_keeps_the_guest() {
    let Some(mut pair) = Pair::new() else { return };
    pair.killed_when(&SLOWLY, is_sending);
    pair.hurry();
    pair.wait_until("all is sent", |[source, _]| source.1 == "completed");
    say(&pair.source, "cont");
    let output = pair.live(&[]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.err.contains("started again"), "{}", output.err);
    pair.source.beat(20).unwrap();
    assert!(pair.source.verify().unwrap().is_sound() && pair.target.beats().is_empty());
}

#[test]
fn a_target_that_is_not_the_end_of_the_move_is_left_alone() {
    let Some(pair) = Pair::new() else { return };
    let other = Pulse::waiting(&pair.folder.path().join("c"), &idle()).unwrap();
    pair.killed_when(&SLOWLY, is_sending);
    let output = pair.live_to(&other, &[]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.err.contains("this target is not the end of"), "{}", output.err);
    pair.hurry();
    pair.wait_until("all is sent", |[source, _]| source.0 == "postmigrate" && source.1 == "completed");
    let output = pair.live_to(&other, &[]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.err.contains("this target does not have it"), "{}", output.err);
    assert!(other.beats().is_empty() && pair.target.beats().is_empty());
}

#[test]
fn disks_are_handed_over_after_a_kill_as_without() {
    let Some((mut pair, files)) = Pair::with_disks() else { return };
    // In the copy of the disks, then in that of memory.
    let slowly = [&["--disks", "mirror"][..], &SLOWLY].concat();
    pair.killed_when(&slowly, |event| event["event"] == "disk");
    pair.killed_when(&slowly, is_sending);
    pair.hurry();
    pair.wait_until("the guest stands still", |[source, _]| source.1 == "pre-switchover");
    let output = pair.live(&[]);
    assert_eq!(output.code, Some(7), "{output:?}");
    assert!(output.err.contains("--disks mirror"), "{}", output.err);
    assert_eq!(pair.stand()[0].1, "pre-switchover", "it was touched");
    let output = pair.live(&["--disks", "mirror"]);
    pair.has_moved(&output);
    pair.target.kill();
    written_sectors(files.path());
}

#[test]
fn killed_at_any_moment_the_guest_runs_once_after_another_run() {
    for after_ms in [300, 1700, 2300, 2900, 3500] {
        let Some(mut pair) = Pair::new() else { return };
        let mut child = pair.spawn(&["--rate-max", "400m"]);
        std::thread::sleep(Duration::from_millis(after_ms));
        kill(&mut child);
        let [(source, _), (target, _)] = pair.stand();
        assert!(source != "running" || target != "running", "both run, killed after {after_ms} ms");
        let output = pair.live(&[]);
        pair.has_moved(&output);
    }
}

#[test]
fn killed_in_the_switchover_the_guest_runs_once_after_another_run() {
    let Some((mut pair, _files)) = Pair::with_disks() else { return };
    pair.killed_when(&["--disks", "mirror"], |event| event["phase"] == "switchover");
    let [(source, _), (target, _)] = pair.stand();
    assert!(source != "running" || target != "running", "both run");
    let output = pair.live(&["--disks", "mirror"]);
    if output.code == Some(0) {
        return pair.has_moved(&output);
    }
    // Its mirrors had ended, and whether all was well with them nobody knows any more: the source goes on.
    assert!(output.err.contains("the guest is at the source"), "{output:?}");
    pair.source.beat(20).unwrap();
    assert!(pair.target.beats().is_empty());
}
