//! `drover live`: running guests move between two QEMUs, beat on, and find their memory and disks as they left them.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use drover_lab::{Drover, Output, Pulse, PulseOptions};
use serde_json::Value;
use tempfile::TempDir;

const MIB: usize = 1 << 20;

/// A guest that beats, and a QEMU that waits for it.
struct Pair {
    source: Pulse,
    target: Pulse,
    drover: Drover,
    folder: TempDir,
}

impl Pair {
    fn new(options: &PulseOptions) -> Option<Pair> {
        Pair::unlike(options, options)
    }

    fn unlike(here: &PulseOptions, there: &PulseOptions) -> Option<Pair> {
        Pulse::qemu()?;
        let folder = tempfile::Builder::new().prefix("drover-live-").tempdir().unwrap();
        let source = Pulse::start(&folder.path().join("a"), here).unwrap();
        let target = Pulse::waiting(&folder.path().join("b"), there).unwrap();
        source.beat(3).unwrap();
        let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
        Some(Pair { source, target, drover, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, more: &[&str]) -> Command {
        let (from, to) = (self.source.monitor(), self.target.monitor());
        let memory = format!("unix:{}", self.path("memory.sock").display());
        let mut command = self.drover.command(&["live"]);
        command
            .arg(from)
            .arg("--to")
            .arg(to)
            .args(["--uri", &memory, "--deadline", "10m", "--json"])
            .args(more);
        command
    }

    fn live(&self, more: &[&str]) -> Output {
        let output = self.command(more).stdin(Stdio::null()).output().unwrap();
        Output {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    fn spawn(&self, more: &[&str]) -> Child {
        let out = std::fs::File::create(self.path("out")).unwrap();
        self.command(more).stdin(Stdio::null()).stdout(out).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until drover says that memory is on its way.
    fn wait_until_sending(&self) {
        let is_sending = |line: &str| {
            // The last line may be half written.
            let event: Value = serde_json::from_str(line).unwrap_or_default();
            event["phase"] == "precopy" && event["sent_bytes"].as_u64() > Some(1 << 20)
        };
        for _ in 0..60_000 {
            if std::fs::read_to_string(self.path("out")).unwrap().lines().any(is_sending) {
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        panic!("nothing is sent");
    }

    fn ended(&self, child: Child) -> Output {
        let output = child.wait_with_output().unwrap();
        let out = std::fs::read_to_string(self.path("out")).unwrap();
        Output { code: output.status.code(), out, err: String::from_utf8(output.stderr).unwrap() }
    }

    /// The guest runs at the target, nowhere else, and is what it was.
    #[track_caller]
    fn has_moved(&mut self, output: &Output) -> Value {
        assert_eq!(output.code, Some(0), "{output:?}");
        self.target.beat(20).unwrap();
        assert!(!self.source.beats_within(Duration::from_millis(200)), "it beats at the source");
        let last = self.source.beats().last().unwrap().1;
        let first = self.target.beats().first().unwrap().1;
        assert!(first == last + 1 || first == last + 2, "beat {last}, then {first}");
        let verdict = self.target.verify().unwrap();
        assert!(verdict.is_sound(), "{verdict:?}");
        events(output).into_iter().find(|event| event["event"] == "moved").unwrap()
    }

    /// The guest runs at the source as if nothing had been, and not at the target.
    #[track_caller]
    fn has_stayed(&mut self) {
        self.source.beat(20).unwrap();
        let verdict = self.source.verify().unwrap();
        assert!(verdict.is_sound(), "{verdict:?}");
        assert!(self.target.beats().is_empty(), "it beats at the target");
    }
}

fn events(output: &Output) -> Vec<Value> {
    output.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn busy() -> PulseOptions {
    // 100 x 20 pages are 8 MB/s.
    PulseOptions { pages_per_beat: 20, ..PulseOptions::default() }
}

#[test]
fn an_idle_guest_moves() {
    let Some(mut pair) = Pair::new(&PulseOptions::default()) else { return };
    let output = pair.live(&[]);
    let moved = pair.has_moved(&output);
    assert!(moved["sent_bytes"].as_u64().unwrap() > 32 << 20, "{moved}");
    assert!(moved["stood_still_ms"].is_u64() && moved["downtime_ms_by_qemu"].is_u64(), "{moved}");
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
    monitor(&pair.source, "stop");
    let output = pair.live(&[]);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(!pair.target.beats_within(Duration::from_millis(300)));
    monitor(&pair.target, "cont");
    pair.target.beat(5).unwrap();
    assert!(pair.target.verify().unwrap().is_sound());
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
    let with = |name: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, vec![0; 8 * MIB]).unwrap();
        PulseOptions { disk: Some(path), ..busy() }
    };
    let Some(mut pair) = Pair::unlike(&with("a.raw"), &with("b.raw")) else { return };
    let output = pair.live(&["--disks", "shared"]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.err.contains("b.raw at the target") && output.err.contains("--other-paths"), "{output:?}");
    let output = pair.live(&["--disks", "shared", "--other-paths", "--dry-run"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    pair.has_stayed();
}

#[test]
fn disks_go_with_the_guest() {
    let folder = tempfile::tempdir().unwrap();
    let disk = |name: &str, fill: u8| {
        let path = folder.path().join(name);
        std::fs::write(&path, vec![fill; 8 * MIB]).unwrap();
        path
    };
    let (here, there) = (disk("a.raw", 0x5a), disk("b.raw", 0));
    let with = |disk: &Path| PulseOptions { disk: Some(disk.to_path_buf()), ..busy() };
    let Some(mut pair) = Pair::unlike(&with(&here), &with(&there)) else { return };
    let nbd = format!("unix:{}", pair.path("nbd.sock").display());
    let output = pair.live(&["--disks", "mirror", "--nbd", &nbd]);
    pair.has_moved(&output);
    pair.target.kill();
    let (ours, theirs) = (std::fs::read(&here).unwrap(), std::fs::read(&there).unwrap());
    // Sectors hold the number of the beat at which they were written: none is older at the target.
    assert_eq!(theirs[1025 * 512..], ours[1025 * 512..]);
    let number =
        |bytes: &[u8], sector: usize| u32::from_le_bytes(bytes[sector * 512..][..4].try_into().unwrap());
    let written = (1..=1024).filter(|sector| number(&ours, *sector) != 0x5a5a_5a5a).count();
    assert!(written > 0, "the guest wrote nothing");
    for sector in 0..=1024 {
        let (one, other) = (number(&ours, sector), number(&theirs, sector));
        assert!(one == other || one == 0x5a5a_5a5a || other > one, "sector {sector}: {one:x}, {other:x}");
    }
}

#[test]
fn what_differs_is_named_before_anything_is_done() {
    let there = PulseOptions { memory_mib: 128, ..busy() };
    let Some(mut pair) = Pair::unlike(&busy(), &there) else { return };
    let output = pair.live(&[]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(output.err.contains("64 MiB") && output.err.contains("`-m 64`"), "{}", output.err);
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
    let Some(mut pair) = Pair::new(&busy()) else { return };
    // 33 MiB at 8 Mbit/s: there is time.
    let child = pair.spawn(&["--rate-max", "8m"]);
    pair.wait_until_sending();
    pair.target.kill();
    let output = pair.ended(child);
    assert_eq!(output.code, Some(7), "{output:?}");
    assert!(output.err.contains("the guest is at the source, as it was"), "{}", output.err);
    pair.has_stayed();
}

#[test]
fn ctrl_c_leaves_the_guest_where_it_was() {
    let Some(mut pair) = Pair::new(&busy()) else { return };
    let child = pair.spawn(&["--rate-max", "8m"]);
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
    let output = pair.live(&["--line", "200m", "--rate-max", "200m", "--allow", "postcopy"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    pair.target.beat(20).unwrap();
    assert!(!pair.source.beats_within(Duration::from_millis(200)));
    let verdict = pair.target.verify().unwrap();
    assert!(verdict.is_sound(), "{verdict:?}");
}

#[test]
fn a_monitor_that_serves_nobody_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
    let (from, to) = (folder.path().join("a.sock"), folder.path().join("b.sock"));
    let (from, to) = (from.display().to_string(), to.display().to_string());
    let output = drover.run(&["live", &from, "--to", &to, "--uri", "tcp:localhost:0"]).unwrap();
    assert_eq!(output.code, Some(6), "{output:?}");
    assert!(output.err.contains(&from) && output.err.contains("one client"), "{}", output.err);
}

/// Says a word to a monitor, in a connection of its own.
fn monitor(guest: &Pulse, word: &str) {
    let mut qmp = drover_qemu::Qmp::connect(&guest.monitor(), Duration::from_secs(60)).unwrap();
    qmp.execute(word, Value::Null).unwrap();
}
