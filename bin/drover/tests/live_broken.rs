//! `drover live` in post-copy, on a line that breaks: it is made anew, or what is lost is told.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use drover_lab::{Drover, Output, Pulse, PulseOptions};
use drover_qemu::Qmp;
use drover_stage::line::Line;
use drover_stage::moves::{self, events, with_disks, written_sectors};
use drover_stage::process::wait_until;
use serde_json::Value;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(120);
/// Both QEMUs know the place by one name, and each means its own: between them lies the line.
const PLACE: &str = "unix:/proc/self/cwd/memory.sock";
/// A guest's memory goes once at full speed; then the line is so narrow that post-copy lasts until the test has done its
/// part.
const FAST_BYTES: u64 = 16 << 20;

/// A guest that writes faster than any line carries, a QEMU that waits for it, and a line between both.
struct Scene {
    source: Pulse,
    target: Pulse,
    line: Line,
    drover: Drover,
    folder: TempDir,
}

/// 16 MiB, all of which it writes to within a second.
fn hot(options: PulseOptions) -> PulseOptions {
    PulseOptions { pages: 4096, pages_per_beat: 200, ..options }
}

impl Scene {
    fn new() -> Option<Scene> {
        Scene::unlike(hot(PulseOptions::default()), hot(PulseOptions::default()))
    }

    fn with_disks(files: &Path) -> Option<Scene> {
        let [here, there] = with_disks(files, &moves::busy());
        Scene::unlike(hot(here), hot(there))
    }

    fn unlike(here: PulseOptions, there: PulseOptions) -> Option<Scene> {
        Pulse::qemu()?;
        let folder = tempfile::Builder::new().prefix("drover-broken-").tempdir().unwrap();
        let source = Pulse::start(&folder.path().join("a"), &here).unwrap();
        let target = Pulse::waiting(&folder.path().join("b"), &there).unwrap();
        let [near, far] = ["a", "b"].map(|side| folder.path().join(side).join("memory.sock"));
        let line = Line::between(&near, &far);
        line.narrow_after(FAST_BYTES);
        source.beat(3).unwrap();
        let drover = Drover::new(env!("CARGO_BIN_EXE_drover"), folder.path().join("state"));
        Some(Scene { source, target, line, drover, folder })
    }

    fn command(&self, more: &[&str]) -> Command {
        let nbd = format!("unix:{}", self.folder.path().join("nbd.sock").display());
        let mut command = self.drover.command(&["live", "--json", "--uri", PLACE, "--nbd", &nbd]);
        command.arg(self.source.monitor()).arg("--to").arg(self.target.monitor());
        command.args(["--allow", "postcopy", "--line", "80m", "--rate-max", "80m"]).args(more);
        command
    }

    fn live(&self) -> Output {
        moves::run(self.command(&[]))
    }

    /// Moves until the guest runs at the target, and much of its memory is not there.
    fn is_ahead(&self, more: &[&str]) -> Child {
        let child = moves::spawn(self.command(more), &self.folder.path().join("out"));
        self.wait_for("post-copy", |event| event["phase"] == "postcopy");
        self.target.beat(1).unwrap();
        child
    }

    fn told(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("out")).unwrap()
    }

    /// Waits until drover has told such an event.
    fn wait_for(&self, what: &str, is_it: impl Fn(&Value) -> bool) {
        assert!(moves::is_told(&self.folder.path().join("out"), is_it), "{what}: never; {}", self.told());
    }

    /// Waits until drover has told this of the line so many times.
    fn wait_for_line(&self, what: &str, times: usize) {
        let is_it = |line: &&str| is_of_line(&serde_json::from_str(line).unwrap_or_default(), what);
        wait_until(what, PATIENCE, || self.told().lines().filter(is_it).count() >= times);
    }

    fn ended(&self, child: Child) -> Output {
        moves::ended(child, &self.folder.path().join("out"))
    }

    /// The line carries as much as there is.
    fn mend(&self) {
        self.line.narrow_after(u64::MAX);
        self.line.cut(false);
    }

    #[track_caller]
    fn has_moved(&mut self, output: &Output) {
        moves::has_moved(&mut self.source, &mut self.target, output);
    }

    /// How the move stands by the source's word.
    fn source_says(&self) -> String {
        let mut qmp = Qmp::connect(&self.source.monitor(), PATIENCE).unwrap();
        let told = qmp.execute("query-migrate", Value::Null).unwrap();
        told["status"].as_str().unwrap_or("none").to_string()
    }

    #[track_caller]
    fn is_lost(&mut self, output: &Output) {
        assert_eq!(output.code, Some(7), "{output:?}");
        assert!(output.err.contains("the guest is lost"), "{}", output.err);
        let failed = events(output).into_iter().find(|event| event["event"] == "failed").unwrap();
        assert_eq!(failed["guest_at"], "lost");
    }
}

fn is_of_line(event: &Value, what: &str) -> bool {
    event["event"] == "recovery" && event["what"] == what
}

#[test]
fn a_line_that_breaks_is_made_anew() {
    let files = tempfile::tempdir().unwrap();
    let Some(mut scene) = Scene::with_disks(files.path()) else { return };
    let child = scene.is_ahead(&["--disks", "mirror"]);
    scene.line.cut(true);
    scene.wait_for_line("broke", 1);
    scene.mend();
    let output = scene.ended(child);
    scene.has_moved(&output);
    let back = events(&output).into_iter().filter(|event| is_of_line(event, "back")).count();
    assert_eq!(back, 1, "{output:?}");
    scene.target.kill();
    assert!(written_sectors(files.path()) > 0, "the guest wrote nothing");
}

#[test]
fn a_line_that_breaks_again_while_it_is_made_anew_and_after_is_made_anew_again() {
    let Some(mut scene) = Scene::new() else { return };
    let child = scene.is_ahead(&[]);
    scene.line.cut(true);
    // Whoever tries now connects, and is cut off.
    scene.wait_for_line("failed", 2);
    scene.line.narrow_after(1 << 20);
    scene.line.cut(false);
    scene.wait_for_line("back", 1);
    scene.line.cut(true);
    scene.wait_for_line("broke", 2);
    scene.mend();
    let output = scene.ended(child);
    scene.has_moved(&output);
}

#[test]
fn a_target_that_ends_is_told_as_a_lost_guest() {
    let Some(mut scene) = Scene::new() else { return };
    let child = scene.is_ahead(&[]);
    scene.target.kill();
    let output = scene.ended(child);
    scene.is_lost(&output);
    assert!(output.err.contains("the target's QEMU ended"), "{}", output.err);
    // Said again, it finds nobody at the target, and says what that means.
    let again = scene.live();
    assert_eq!(again.code, Some(7), "{again:?}");
    assert!(again.err.contains("the guest is lost"), "{}", again.err);
}

#[test]
fn a_source_that_ends_is_told_as_a_lost_guest() {
    let Some(mut scene) = Scene::new() else { return };
    let child = scene.is_ahead(&[]);
    scene.source.kill();
    let output = scene.ended(child);
    scene.is_lost(&output);
    assert!(output.err.contains("the source's QEMU ended"), "{}", output.err);
}

#[test]
fn a_source_that_gives_up_after_it_has_sent_everything_does_not_run_the_guest_again() {
    let Some(mut scene) = Scene::new() else { return };
    let child = scene.is_ahead(&[]);
    scene.line.swallow();
    scene.wait_for("all is sent", |event| event["phase"] == "postcopy" && event["left_bytes"] == 0);
    moves::is_silent(&scene.source);
    let beats = scene.source.beats().len();
    scene.line.cut(true);
    let output = scene.ended(child);
    scene.is_lost(&output);
    assert_eq!(scene.source.beats().len(), beats, "it runs at the source");
    assert!(!scene.source.beats_within(Duration::from_millis(500)), "it runs at the source");
    // Said again, to the same target or to another, it is not moved as if nothing had been.
    let again = scene.live();
    assert_eq!(again.code, Some(3), "{again:?}");
    assert!(again.err.contains("the guest is lost"), "{}", again.err);
    scene.target = Pulse::waiting(&scene.folder.path().join("c"), &hot(PulseOptions::default())).unwrap();
    let elsewhere = scene.live();
    assert_eq!(elsewhere.code, Some(3), "{elsewhere:?}");
    assert!(elsewhere.err.contains("older than its disks"), "{}", elsewhere.err);
}

#[test]
fn a_line_that_broke_while_drover_was_dead_is_made_anew() {
    let Some(mut scene) = Scene::new() else { return };
    let mut child = scene.is_ahead(&[]);
    child.kill().unwrap();
    child.wait().unwrap();
    scene.line.cut(true);
    wait_until("the source sees it", PATIENCE, || scene.source_says() == "postcopy-paused");
    scene.mend();
    let output = scene.live();
    scene.has_moved(&output);
    assert!(events(&output).iter().any(|event| is_of_line(event, "back")), "{output:?}");
}

#[test]
fn ctrl_c_does_not_call_a_guest_back_and_ends_the_tries() {
    let Some(mut scene) = Scene::new() else { return };
    let child = scene.is_ahead(&[]);
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    scene.wait_for("what cannot be undone", |event| {
        event["text"].as_str().is_some_and(|text| text.contains("cannot be undone"))
    });
    scene.line.cut(true);
    let output = scene.ended(child);
    assert_eq!(output.code, Some(130), "{output:?}");
    let failed = events(&output).into_iter().find(|event| event["event"] == "failed").unwrap();
    assert_eq!(failed["guest_at"], "postcopy_incomplete");
    // Said again, it goes on.
    scene.mend();
    let output = scene.live();
    scene.has_moved(&output);
}
