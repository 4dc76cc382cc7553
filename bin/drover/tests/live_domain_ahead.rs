//! `drover live DOMAIN --to URI --allow postcopy`: domains of libvirt that go ahead of their memory, and lines that break then.
#![allow(clippy::unwrap_used)]

use std::process::Child;

use drover_lab::{Output, PulseOptions};
use drover_stage::domains::{NAME, Pair};
use drover_stage::line::Line;
use drover_stage::moves::{self, events, is_told};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A guest that writes to all of its 16 MiB within a second, and so never converges at the rates of these tests.
fn never_ends() -> PulseOptions {
    PulseOptions { pages: 4096, pages_per_beat: 200, ..PulseOptions::default() }
}

/// Two hosts, and a line between two sockets of theirs that can be cut.
struct Scene {
    pair: Pair,
    line: Line,
}

/// Where the first host's QEMU connects to, and the second's listens.
const PLACE: &str = "unix:/run/memory.sock";
const SLOWLY: [&str; 6] = ["--allow", "postcopy", "--line", "80m", "--rate-max", "80m"];

impl Scene {
    fn new() -> Option<Scene> {
        let pair = Pair::new(|_| never_ends())?;
        let place = |host: &str| pair.hosts.run_folder(host).join("memory.sock");
        let line = Line::between(&place("a"), &place("b"));
        Some(Scene { pair, line })
    }

    /// With daemons that can make a line anew; nothing, after a printed line, without.
    fn able() -> Option<Scene> {
        Scene::new().filter(|scene| scene.pair.can_resume())
    }

    fn spawn(&self) -> Child {
        moves::spawn(
            self.pair.command("a", "b", &[&SLOWLY[..], &["--uri", PLACE]].concat()),
            &self.pair.told(),
        )
    }

    fn again(&self, more: &[&str]) -> Output {
        self.pair.live(&[&SLOWLY[..], &["--uri", PLACE], more].concat())
    }

    /// Moves until the guest runs at the target and the rest of its memory comes too slowly to end.
    fn ahead(&self) -> Child {
        // Should the source be told so late, the line itself has become narrow.
        self.line.narrow_after(24 << 20);
        let child = self.spawn();
        self.wait_for("memory is sent", moves::is_sending);
        self.pair.send_ahead(4096);
        self.wait_for("post-copy", |event| event["phase"] == "postcopy");
        assert_eq!(self.pair.state("a"), "paused (post-copy)");
        assert_eq!(self.pair.state("b"), "running (post-copy)");
        child
    }

    /// What hinders it is gone.
    fn let_go(&self) {
        self.line.narrow_after(u64::MAX);
        self.line.cut(false);
        self.pair.send_ahead(0);
    }

    fn wait_for(&self, what: &str, is_it: impl Fn(&Value) -> bool) {
        let told = self.pair.told();
        let read = || std::fs::read_to_string(&told).unwrap();
        assert!(is_told(&told, is_it), "{what}: it was never told: {}", read());
    }

    /// Cuts the line until both daemons know, and looks that the guest runs at no two places.
    fn cut(&self) {
        self.line.cut(true);
        let is_known = || {
            self.pair.state("a") == "paused (post-copy failed)"
                && self.pair.state("b").contains("post-copy failed")
        };
        drover_stage::process::wait_until("both daemons know", std::time::Duration::from_secs(120), is_known);
    }

    fn ended(&self, child: Child) -> Output {
        moves::ended(child, &self.pair.told())
    }
}

#[track_caller]
fn guest_at(output: &Output) -> Value {
    events(output).into_iter().find(|event| event["event"] == "failed").unwrap()["guest_at"].clone()
}

fn mendings(output: &Output) -> Vec<Value> {
    let all = events(output).into_iter().filter(|event| event["event"] == "recovery");
    all.map(|event| event["what"].clone()).collect()
}

#[test]
fn a_guest_that_does_not_converge_goes_ahead_and_arrives() {
    let Some(mut pair) = Pair::new(|_| never_ends()) else { return };
    let output = pair.live(&["--allow", "postcopy", "--rate-max", "40m"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    pair.has_moved("a", "b");
    assert!(output.out.contains("--postcopy-bandwidth 4"), "{}", output.out);
    // How long it is in post-copy is up to what it reads; it may be over between two looks.
    let went_ahead = |event: &Value| event["what"] == "the guest switches to post-copy, its memory follows";
    assert!(events(&output).iter().any(went_ahead), "{}", output.out);
    // Without leave it stays.
    let output = moves::run(pair.command("b", "a", &["--rate-max", "40m"]));
    assert!(matches!(output.code, Some(3 | 6)), "{output:?}");
    assert_eq!(pair.state("b"), "running (migrated)");
}

#[test]
fn a_domain_that_cannot_be_suspended_is_not_sent_ahead() {
    let Some(mut pair) = Pair::new(|_| never_ends()) else { return };
    let refuses = "case \"$*\" in *suspend*) echo 'error: not now' >&2; exit 1;; esac";
    let output = moves::run(pair.command_by(refuses, &["--allow", "postcopy", "--rate-max", "40m"]));
    assert_eq!(output.code, Some(7), "{output:?}");
    assert!(output.err.contains("`virsh suspend`") && output.err.contains("not now"), "{}", output.err);
    assert_eq!(guest_at(&output), "source");
    pair.has_stayed();
}

#[test]
fn a_guest_that_went_ahead_though_the_order_failed_is_seen_after() {
    let Some(mut pair) = Pair::new(|_| never_ends()) else { return };
    // It is heard, and its answer is not.
    let fails = "case \"$*\" in *migrate-postcopy*)\n\
                 virsh \"$@\"\n\
                 until virsh -c \"$3\" domstate beat --reason | grep -q 'post-copy\\|shut'; do :; done\n\
                 echo 'error: no answer' >&2; exit 1;; esac";
    let output = moves::run(pair.command_by(fails, &["--allow", "postcopy", "--rate-max", "17m"]));
    assert_eq!(output.code, Some(0), "{output:?}");
    // What was left may have come before the next look.
    let went_ahead = |deed: &Value| deed.as_str().is_some_and(|deed| deed.contains("post-copy"));
    let moved = moves::moved(&output);
    assert!(moved["actions"].as_array().unwrap().iter().any(went_ahead), "{moved}");
    pair.has_moved("a", "b");
}

/// The line broke, and this libvirt is not asked to make it anew.
#[track_caller]
fn is_left_to_another_libvirt(scene: &Scene, output: &Output) {
    assert_eq!(output.code, Some(7), "{output:?}");
    assert_eq!(guest_at(output), "postcopy_incomplete");
    assert!(output.err.contains("crashes when it is to make the line of post-copy anew"), "{}", output.err);
    assert!(output.err.contains("say `drover live` again"), "{}", output.err);
    assert_eq!(scene.pair.state("a"), "paused (post-copy failed)");
    assert!(scene.pair.state("b").contains("post-copy failed"), "{}", scene.pair.state("b"));
}

#[test]
fn a_libvirt_that_crashes_when_it_resumes_is_not_asked_to() {
    let Some(scene) = Scene::new() else { return };
    if scene.pair.can_resume() {
        println!("skipped: this libvirt resumes");
        return;
    }
    let child = scene.ahead();
    scene.cut();
    let output = scene.ended(child);
    is_left_to_another_libvirt(&scene, &output);
    // Said again it says the same, and both daemons are there.
    is_left_to_another_libvirt(&scene, &scene.again(&[]));
}

#[test]
fn a_line_that_breaks_in_postcopy_is_made_anew() {
    let Some(mut scene) = Scene::able() else { return };
    let child = scene.ahead();
    scene.cut();
    scene.wait_for("it broke", |event| event["event"] == "recovery" && event["what"] == "broke");
    // Nobody listens for the next try.
    scene.wait_for("a try fails", |event| event["event"] == "recovery" && event["what"] == "failed");
    assert_eq!(scene.pair.state("a"), "paused (post-copy failed)");
    scene.let_go();
    let output = scene.ended(child);
    assert_eq!(output.code, Some(0), "{output:?}");
    let told = mendings(&output);
    assert!(told.first().unwrap() == "broke" && told.last().unwrap() == "back", "{told:?}");
    scene.pair.has_moved("a", "b");
}

#[test]
fn a_drover_that_is_stopped_or_killed_in_postcopy_leaves_both_parts_and_said_again_goes_on() {
    let Some(mut scene) = Scene::able() else { return };
    let child = scene.ahead();
    scene.cut();
    scene.wait_for("a try fails", |event| event["event"] == "recovery" && event["what"] == "failed");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = scene.ended(child);
    assert_eq!(output.code, Some(130), "{output:?}");
    assert_eq!(guest_at(&output), "postcopy_incomplete");
    assert!(output.err.contains("end neither QEMU"), "{}", output.err);
    // Said again and killed: nothing is done past libvirt, so nothing is left half done.
    let mut child = scene.spawn();
    scene.wait_for("it tries", |event| event["event"] == "recovery" && event["what"] == "tries");
    child.kill().unwrap();
    child.wait().unwrap();
    let looked = scene.again(&["--dry-run"]);
    assert_eq!(looked.code, Some(0), "{looked:?}");
    assert!(looked.out.contains("is in post-copy"), "{}", looked.out);
    scene.let_go();
    let output = scene.again(&[]);
    assert_eq!(output.code, Some(0), "{output:?}");
    scene.pair.has_moved("a", "b");
}

#[test]
fn a_target_that_ends_in_postcopy_is_told_as_a_lost_guest_and_the_source_never_runs_it_again() {
    let Some(scene) = Scene::new() else { return };
    let child = scene.ahead();
    scene.pair.hosts.virsh("b", &["destroy", NAME]).unwrap();
    let output = scene.ended(child);
    assert_eq!(output.code, Some(7), "{output:?}");
    assert_eq!(guest_at(&output), "lost");
    assert_eq!(scene.pair.state("a"), "paused (post-copy failed)");
    let again = scene.again(&[]);
    assert_eq!(again.code, Some(3), "{again:?}");
    assert!(again.err.contains("the target has it no more"), "{}", again.err);
    assert_eq!(scene.pair.state("a"), "paused (post-copy failed)");
}

#[test]
fn a_run_that_takes_over_from_a_killed_one_may_still_send_the_guest_ahead() {
    let Some(mut pair) = Pair::new(|_| never_ends()) else { return };
    let allowed = ["--allow", "postcopy", "--rate-max", "40m"];
    let mut child = moves::spawn(pair.command("a", "b", &allowed), &pair.told());
    assert!(is_told(&pair.told(), moves::is_sending), "nothing is sent");
    child.kill().unwrap();
    child.wait().unwrap();
    let output = pair.live(&allowed);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("a move is under way"), "{}", output.out);
    assert!(output.out.contains("the guest switches to post-copy, its memory follows"), "{}", output.out);
    pair.has_moved("a", "b");
}
