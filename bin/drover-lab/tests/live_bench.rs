//! `drover-lab bench memory` measures, refuses with what to try, and leaves nothing. What it measures here means nothing.
#![allow(clippy::unwrap_used)]

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use drover_lab::{Output, Pulse};
use drover_stage::moves;
use drover_stage::process::{EndsWithTest, PATIENCE, wait_until};
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
        let mut command = Command::new(env!("CARGO_BIN_EXE_drover-lab"));
        command.args(["bench", "memory"]).args(words.split_whitespace()).env("TMPDIR", self.folder.path());
        command
    }

    fn with(&self, qemu: &Path, words: &str) -> Command {
        let mut command = self.command(words);
        command.args(["--accel", "tcg", "--qemu"]).arg(qemu);
        command
    }

    /// Programs that belong to a bench here, by their folders in `/proc`.
    fn processes(&self) -> Vec<PathBuf> {
        let mark = format!("DROVER_BENCH_FOLDER={}", self.folder.path().canonicalize().unwrap().display());
        let of_bench = |process: &Path| {
            let environment = std::fs::read(process.join("environ")).unwrap_or_default();
            String::from_utf8_lossy(&environment).split('\0').any(|it| it.starts_with(&mark))
        };
        let processes = std::fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path());
        processes.filter(|process| of_bench(process)).collect()
    }

    #[track_caller]
    fn has_nothing_left(&self) {
        wait_until("its programs end", PATIENCE, || self.processes().is_empty());
        wait_until("its folder goes", PATIENCE, || {
            std::fs::read_dir(self.folder.path()).unwrap().next().is_none()
        });
    }
}

/// What a program of the bench was started with.
fn words(process: &Path) -> Vec<String> {
    let line = std::fs::read(process.join("cmdline")).unwrap_or_default();
    String::from_utf8_lossy(&line).split('\0').map(str::to_string).collect()
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
    // Only figures are looked at, so a promise that a starved machine keeps, too.
    let words = "--size 64M --memory once --way tcp,link,rdma --rounds 1 --downtime 30s --limit 5m --json";
    let output = moves::run(scene.with(&qemu, words));
    assert_eq!(output.code, Some(0), "{output:?}");
    let rows = rows(&output);
    let ways: Vec<&str> = rows.iter().map(|(way, _)| way.as_str()).collect();
    assert_eq!(ways, ["tcp", "link", "rdma"]);
    for (_, row) in &rows[..2] {
        assert!(row["sent_bytes"]["median"].as_f64().unwrap() > f64::from(55 << 20), "{row}");
        assert!(row["seconds"]["median"].as_f64().unwrap() > 0.0, "{row}");
        assert!(row["downtime_ms"]["median"].as_f64().unwrap() > 0.0, "{row}");
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
    let output = moves::run(scene.with(&qemu, &format!("{words} --downtime 30s --limit 5m")));
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

/// A bench that has a guest moved by `drover live`, again and again for longer than any test takes.
fn moving(scene: &Scene, qemu: &Path) -> EndsWithTest {
    let words = "--size 64M --memory continuous --way link --rounds 1000 --limit 10m";
    let mut command = scene.with(qemu, words);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let bench = EndsWithTest(child);
    let is_live = |process: &PathBuf| words_of_drover(process).is_some_and(|words| words[0] == "live");
    wait_until("a guest moves", PATIENCE, || scene.processes().iter().any(is_live));
    bench
}

/// Behind its name, if it is a drover.
fn words_of_drover(process: &Path) -> Option<Vec<String>> {
    let words = words(process);
    let is_drover = Path::new(&words[0]).file_name().is_some_and(|name| name == "drover");
    (is_drover && words.len() > 1).then(|| words[1..].to_vec())
}

#[test]
fn ctrl_c_leaves_no_program_and_no_folder() {
    let Some(qemu) = Pulse::qemu() else { return };
    let scene = Scene::new();
    let mut bench = moving(&scene, &qemu);
    kill_process(Pid::from_child(&bench.0), Signal::INT).unwrap();
    let mut err = String::new();
    bench.0.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!(bench.0.wait().unwrap().code(), Some(130), "{err}");
    assert!(err.contains("nothing is left behind"), "{err}");
    let left: Vec<_> = scene.processes().iter().map(|process| words(process)).collect();
    assert!(left.is_empty(), "{left:?}");
    scene.has_nothing_left();
}

#[test]
fn one_that_is_killed_takes_its_guests_with_it() {
    let Some(qemu) = Pulse::qemu() else { return };
    let scene = Scene::new();
    let mut bench = moving(&scene, &qemu);
    // Where memory is short the kernel ends these first.
    let scores = scene.processes().into_iter().map(|it| std::fs::read_to_string(it.join("oom_score_adj")));
    let scores: Vec<String> = scores.flatten().collect();
    assert!(!scores.is_empty() && scores.iter().all(|score| score.trim() == "1000"), "{scores:?}");
    bench.0.kill().unwrap();
    bench.0.wait().unwrap();
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
    is_refused("--downtime 0s", 2, &["--downtime", "1ms to 2000s"]);
    is_refused("--limit 500ms", 2, &["--limit", "1s at least"]);
    is_refused("--way tcp --chunk 1m", 2, &["--chunk", "--way rdma"]);
    is_refused("--at-once 2", 2, &["--at-once", "--guests"]);
    is_refused("--memory once --writes 1MB/s", 2, &["--writes", "--memory continuous"]);
    // Whatever QEMU there is.
    let none = "--qemu /no/such/qemu --program";
    is_refused(&format!("{none} /no/such/drover"), 2, &["--program", "/no/such/drover"]);
    is_refused(&format!("{none} /bin/true"), 2, &["--program", "/bin/true is no drover"]);
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
    let words = "--size 32M --memory once --rate 400m --rtt 4ms --loss 0 --way tcp,link --rounds 1 --downtime 30s --limit 5m --json";
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

/// A drover that ends so, in the words of the true one; what it says is in a shell's single quotes.
fn drover_that_says(scene: &Scene, event: &str, error: &str, code: i32) -> PathBuf {
    let program = scene.folder.path().join("drover");
    let memory = r#"{"event":"memory","at_ms":1500,"sent_bytes":4000000}"#;
    let script = format!(
        "#!/bin/sh\n[ $1 = --version ] && exec echo drover 7.8.9\necho '{memory}'\necho '{event}'\necho 'error: {error}' >&2\nexit {code}\n"
    );
    // By a shell, since what this program writes to another thread's children may have open while it is run.
    let mut shell = Command::new("sh");
    shell.args(["-c", "printf %s \"$1\" > \"$2\"; chmod +x \"$2\"", "sh", &script]).arg(&program);
    assert!(shell.status().unwrap().success());
    program
}

/// What comes of a move by a drover that ends so.
#[track_caller]
fn told_of(message: &str, code: i32) -> (Option<i32>, Value, Value) {
    let qemu = Pulse::qemu().unwrap();
    let scene = Scene::new();
    let event = format!(r#"{{"event":"failed","message":"{message}","guest_at":"source"}}"#);
    let program = drover_that_says(&scene, &event, message, code);
    let mut command = scene.with(&qemu, "--size 16M --memory idle --way drover --limit 5s --rounds 1 --json");
    command.arg("--program").arg(&program);
    let output = moves::run(command);
    let events = moves::events(&output);
    assert_eq!((&events[0]["event"], &events[0]["drover"]), (&"bench".into(), &"7.8.9".into()), "{output:?}");
    std::fs::remove_file(&program).unwrap();
    scene.has_nothing_left();
    let row = rows(&output).remove(0).1;
    (output.code, row["notes"][0].clone(), row)
}

/// A promise that cannot be kept is an outcome, and so is a way that is not done at its limit: both are told, and neither is a failure.
#[test]
fn what_is_refused_or_not_done_is_told_and_fails_nothing_and_all_else_fails() {
    if Pulse::qemu().is_none() {
        return;
    }
    let (code, note, row) = told_of("the promise cannot be kept: as it is: does not converge", 3);
    assert_eq!((code, &row["runs_refused"], &row["runs_failed"]), (Some(0), &1.into(), &0.into()));
    assert!(note.as_str().unwrap().contains("refused: the promise cannot be kept"), "{note}");
    let (code, note, row) = told_of("the move was given up: the deadline is here: 3 MB/s sent", 6);
    assert_eq!((code, &row["runs_not_done"], &row["seconds"]["median"]), (Some(0), &1.into(), &1.5.into()));
    assert!(note.as_str().unwrap().contains("not done in 1 of 1 runs: the move was given up"), "{note}");
    for (message, code) in [
        ("the guest cannot move: it has a disk", 3),
        ("the move was given up: nothing was sent for a while", 6),
        ("the move was given up: passes leave as much as they bring", 6),
    ] {
        let (code, note, row) = told_of(message, code);
        assert_eq!((code, &row["runs_failed"]), (Some(7), &1.into()), "{message}");
        assert!(note.as_str().unwrap().contains(message), "{note}");
    }
}

/// QEMU alone, by a guest that writes faster than most machines encrypt: whether it is done by then or not, nothing fails.
#[test]
fn what_qemu_alone_does_not_end_in_time_is_cancelled_and_fails_nothing() {
    let Some(qemu) = Pulse::qemu() else { return };
    let scene = Scene::new();
    let words =
        "--size 64M --memory continuous --writes 2GB/s --way tls --downtime 1ms --limit 1s --rounds 1 --json";
    let output = moves::run(scene.with(&qemu, words));
    assert_eq!(output.code, Some(0), "{output:?}");
    let row = rows(&output).remove(0).1;
    assert_eq!((&row["runs"], &row["runs_failed"]), (&1.into(), &0.into()), "{row}");
    let is_told = row["notes"].to_string().contains("not done in 1 of 1 runs: given up after 1 s");
    assert_eq!(is_told, row["runs_not_done"] == 1, "{row}");
    scene.has_nothing_left();
}
