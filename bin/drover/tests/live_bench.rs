//! `drover bench memory` measures, refuses with what to try, and leaves nothing. What it measures here means nothing.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::moves;
use common::process::{PATIENCE, wait_until};
use drover_lab::{Output, Pulse};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// A folder for temporary files, and a bench that puts its own there.
struct Scene {
    folder: TempDir,
}

impl Scene {
    fn new() -> Scene {
        Scene { folder: tempfile::Builder::new().prefix("drover-").tempdir().unwrap() }
    }

    fn command(&self, words: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_drover"));
        command.args(["bench", "memory"]).args(words.split_whitespace()).env("TMPDIR", self.folder.path());
        command
    }

    fn with(&self, qemu: &Path, words: &str) -> Command {
        let mut command = self.command(words);
        command.args(["--accel", "tcg", "--qemu"]).arg(qemu);
        command
    }

    /// Programs that belong to a bench here.
    fn processes(&self) -> Vec<String> {
        let mark = format!("DROVER_BENCH_FOLDER={}", self.folder.path().canonicalize().unwrap().display());
        let of_bench = |process: &Path| {
            let environment = std::fs::read(process.join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).split('\0').any(|it| it.starts_with(&mark))
        };
        let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        let found = processes.filter(|process| of_bench(process));
        found.map(|process| std::fs::read_to_string(process.join("comm")).unwrap_or_default()).collect()
    }

    #[track_caller]
    fn has_nothing_left(&self) {
        wait_until("its programs end", PATIENCE, || self.processes().is_empty());
        wait_until("its folder goes", PATIENCE, || {
            std::fs::read_dir(self.folder.path()).unwrap().next().is_none()
        });
    }
}

/// The rows of `--json`, by their ways.
fn rows(output: &Output) -> Vec<(String, Value)> {
    let rows = moves::events(output).into_iter().filter(|event| event["event"] == "row");
    rows.map(|row| (row["way"].as_str().unwrap().to_string(), row)).collect()
}

#[test]
fn guests_move_each_way_and_each_is_told_beside_the_direct_one() {
    let Some(qemu) = Pulse::qemu() else { return };
    let scene = Scene::new();
    let words = "--size 64M --memory once --way tcp,link,rdma --rounds 1 --limit 5m --json";
    let output = moves::run(scene.with(&qemu, words));
    assert_eq!(output.code, Some(0), "{output:?}");
    let rows = rows(&output);
    let ways: Vec<&str> = rows.iter().map(|(way, _)| way.as_str()).collect();
    assert_eq!(ways, ["tcp", "link", "rdma"]);
    for (_, row) in &rows[..2] {
        assert!(row["sent_bytes"]["median"].as_f64().unwrap() > f64::from(55 << 20), "{row}");
        assert!(row["seconds"]["median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["stood_still_ms"]["median"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!((&row["runs"], &row["runs_failed"]), (&1.into(), &0.into()), "{row}");
    }
    assert_eq!(rows[0].1["times_direct"], 1.0);
    let is_card_here =
        Path::new("/sys/class/infiniband").read_dir().is_ok_and(|mut all| all.next().is_some());
    if !is_card_here {
        let row = &rows[2].1;
        assert!(row["seconds"].is_null() && row["runs"] == 0, "{row}");
        assert!(row["notes"][0].as_str().unwrap().contains("no card on this host"), "{row}");
    }
    scene.has_nothing_left();
}

#[test]
fn a_table_for_people_has_a_row_for_several_guests_that_write() {
    let Some(qemu) = Pulse::qemu() else { return };
    let scene = Scene::new();
    let words = "--size 32M --guests 2 --memory continuous --writes 2MB/s --pattern sequential --way tls,drover --rounds 1";
    let output = moves::run(scene.with(&qemu, &format!("{words} --limit 5m")));
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(
        output.out.contains("## 2 x 32 MiB, written to page by page at 2 MB/s, on loopback"),
        "{}",
        output.out
    );
    for way in ["tls", "drover"] {
        let row = output.out.lines().find(|line| line.starts_with(&format!("| {way} |"))).unwrap();
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert!(cells[2].parse::<f64>().unwrap() > 0.0, "{row}");
        // Nothing is direct here; the gap between beats has its spread.
        assert!(cells[7] == "-" && cells[8].contains('('), "{row}");
        assert!(!row.contains("no figures"), "{row}");
    }
    scene.has_nothing_left();
}

/// A bench whose guest is on its way for long.
fn moving(scene: &Scene, qemu: &Path) -> Child {
    // Written to faster than any loopback carries: it never converges.
    let words = "--size 64M --memory continuous --writes 20GB/s --way link --rounds 9 --limit 10m";
    let mut command = scene.with(qemu, words);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let is_moving = || {
        let names = scene.processes();
        // Both QEMUs, the agent, and drover that moves.
        names.iter().filter(|name| name.starts_with("qemu")).count() == 2
            && names.iter().filter(|name| name.starts_with("drover")).count() >= 2
    };
    wait_until("a guest moves", PATIENCE, is_moving);
    child
}

#[test]
fn ctrl_c_leaves_no_program_and_no_folder() {
    let Some(qemu) = Pulse::qemu() else { return };
    let scene = Scene::new();
    let child = moving(&scene, &qemu);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert!(err.contains("nothing is left behind"), "{err}");
    assert!(scene.processes().is_empty(), "{:?}", scene.processes());
    scene.has_nothing_left();
}

#[test]
fn one_that_is_killed_takes_its_guests_with_it() {
    let Some(qemu) = Pulse::qemu() else { return };
    let scene = Scene::new();
    let mut child = moving(&scene, &qemu);
    child.kill().unwrap();
    child.wait().unwrap();
    scene.has_nothing_left();
}

#[track_caller]
fn is_refused(words: &str, code: i32, says: &[&str]) {
    let scene = Scene::new();
    let output = moves::run(scene.command(words));
    assert_eq!(output.code, Some(code), "{words}: {output:?}");
    for word in says {
        assert!(output.err.contains(word), "{words}: {word}: {}", output.err);
    }
    scene.has_nothing_left();
}

#[test]
fn what_cannot_be_is_refused_with_the_limit_and_what_to_try() {
    is_refused("--size 1m", 2, &["--size", "16m at least"]);
    is_refused("--size 1500k", 2, &["--size", "whole MiB"]);
    is_refused("--size 65g", 2, &["--size", "64g at most", "--guests"]);
    is_refused("--guests 33", 2, &["--guests", "1..=32"]);
    is_refused("--memory hot", 2, &["--memory", "idle, once, continuous"]);
    is_refused("--writes 50", 2, &["--writes", "50MB/s"]);
    is_refused("--writes 1kB/s", 2, &["--writes", "0.41MB/s at least"]);
    is_refused("--way udp", 2, &["--way", "multifd:N"]);
    is_refused("--way multifd:1", 2, &["2 to 255 connections"]);
    is_refused("--way tcp@bbr", 2, &["--place here", "those with @ are of the line"]);
    is_refused("--chunk 3m", 2, &["--chunk", "a power of two from 1m to 1g"]);
    is_refused("--place here --rtt 5ms", 2, &["--place line"]);
    is_refused("--program /no/such/drover", 2, &["--program", "/no/such/drover"]);
    is_refused("--qemu /no/such/qemu", 3, &["/no/such/qemu", "is not found", "--qemu"]);
    is_refused("--qemu /bin/true", 3, &["/bin/true is no QEMU"]);
}

#[test]
fn memory_that_this_host_has_not_is_refused_before_anything_is_begun() {
    let Some(qemu) = Pulse::qemu() else { return };
    let scene = Scene::new();
    // 4 TiB.
    let output = moves::run(scene.with(&qemu, "--size 64g --guests 32"));
    assert_eq!(output.code, Some(3), "{output:?}");
    for word in ["32 x 65536 MiB", "MiB available", "--guests"] {
        assert!(output.err.contains(word), "{word}: {}", output.err);
    }
    scene.has_nothing_left();
}

#[test]
fn guests_move_over_the_line_where_one_can_be_laid() {
    let Some(qemu) = Pulse::qemu() else { return };
    let scene = Scene::new();
    let words =
        "--size 32M --memory once --rate 400m --rtt 4ms --loss 0 --way tcp,link --rounds 1 --limit 5m --json";
    let output = moves::run(scene.with(&qemu, words));
    if output.err.contains("no line can be laid here") {
        println!("SKIPPED: {}", output.err);
        assert!(std::env::var_os("DROVER_NEEDS_WAN").is_none(), "DROVER_NEEDS_WAN is set");
        return;
    }
    assert_eq!(output.code, Some(0), "{output:?}");
    let rows = rows(&output);
    assert!(
        rows.len() == 2 && rows.iter().all(|(_, row)| row["place"] == "line" && row["runs"] == 1),
        "{rows:?}"
    );
    scene.has_nothing_left();
}

/// A promise that cannot be kept is an outcome, and so is a way that is not done at its limit: both are told, and neither is a failure.
#[test]
fn what_is_refused_or_not_done_is_told_and_fails_nothing() {
    let Some(qemu) = Pulse::qemu() else { return };
    let scene = Scene::new();
    // Written to faster than TLS carries it.
    let words = "--size 64M --memory continuous --writes 2GB/s --way tls,drover-rdma,drover --downtime 1ms --limit 2s --rounds 1 --json";
    let output = moves::run(scene.with(&qemu, words));
    assert_eq!(output.code, Some(0), "{output:?}");
    let rows = rows(&output);
    let notes = |number: usize| rows[number].1["notes"].to_string();
    assert!(notes(0).contains("not done in 1 of 1 runs"), "{}", notes(0));
    assert!(
        notes(2).contains("refused: the promise cannot be kept") || notes(2).contains("not done"),
        "{}",
        notes(2)
    );
    scene.has_nothing_left();
}
