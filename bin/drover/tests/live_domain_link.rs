//! `drover live DOMAIN --to URI --via SITE`: domains of libvirt move over the link to another site's agent.
//!
//! The daemons are true ones, in namespaces of their own (`lab/libvirt/hosts`). Drover runs with the files of the first host,
//! the agent with those of the second, and the line between both can be cut.
#![allow(clippy::unwrap_used)]

use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};

use drover_lab::{Output, PulseOptions, run_by};
use drover_stage::domains::{NAME, Pair};
use drover_stage::line::Line;
use drover_stage::moves::{self, EASED, events, is_eased, is_sending, place, route};
use drover_stage::sites::Sites;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// What libvirt's QEMUs may write to, on either host.
const FOLDER: &str = "/var/lib/libvirt/qemu";

/// A guest at the first host, an agent at the second, and a line between both.
struct Scene {
    pair: Pair,
    sites: Sites,
    line: Line,
}

impl Scene {
    fn new(pair: Option<Pair>) -> Option<Scene> {
        Scene::allowing(pair?, &format!("unix:{FOLDER}/*"))
    }

    fn allowing(pair: Pair, allowed: &str) -> Option<Scene> {
        let mut sites = Sites::not_started();
        sites.run_by = pair.hosts.inside("b").unwrap();
        sites.more = vec!["--allow-connect".to_string(), allowed.to_string()];
        sites.start();
        let line = Line::to(&sites.address);
        sites.pair_at(&line.address);
        Some(Scene { pair, sites, line })
    }

    /// As if typed at neither host.
    fn elsewhere(&self, more: &[&str]) -> Command {
        let via = ["--via", "site-b"];
        let mut command = self.pair.command("a", "b", &[&via[..], more].concat());
        command.env("DROVER_STATE", self.sites.path("here"));
        command
    }

    /// As if typed at the first host.
    fn command(&self, more: &[&str]) -> Command {
        run_by(&self.pair.hosts.inside("a").unwrap(), &self.elsewhere(more))
    }

    fn live(&self, more: &[&str]) -> Output {
        moves::run(self.command(more))
    }

    /// Begins a slow move and waits until this is told of it.
    fn begin(&self, more: &[&str], is_it: impl Fn(&Value) -> bool) -> Child {
        let more = [&["--rate-max", "17m", "--channels", "1"][..], more].concat();
        let child = moves::spawn(self.command(&more), &self.pair.told());
        self.wait_for("it begins", is_it);
        child
    }

    fn wait_for(&self, what: &str, is_it: impl Fn(&Value) -> bool) {
        let told = self.pair.told();
        let read = || std::fs::read_to_string(&told).unwrap();
        assert!(moves::is_told(&told, is_it), "{what}: it was never told: {}", read());
    }

    fn ended(&self, child: Child) -> Output {
        moves::ended(child, &self.pair.told())
    }

    #[track_caller]
    fn has_moved(&mut self, output: &Output) -> Value {
        assert_eq!(output.code, Some(0), "{output:?}");
        self.pair.has_moved("a", "b");
        let moved = moves::moved(output);
        assert_eq!(moved["link"]["site"], "site-b", "{moved}");
        moves::went_over_the_link(&moved);
        moved
    }
}

fn is_away(event: &Value) -> bool {
    event["event"] == "link" && event["is_up"] == false
}

#[test]
fn memory_and_disks_of_a_domain_go_over_the_link() {
    let Some(mut scene) = Scene::new(Pair::apart()) else { return };
    let looked = scene.live(&["--disks", "mirror", "--downtime", "2s", "--dry-run"]);
    assert_eq!(looked.code, Some(0), "{looked:?}");
    scene.pair.has_stayed();
    let output = scene.live(&["--disks", "mirror", "--downtime", "2s"]);
    let moved = scene.has_moved(&output);
    // Memory and the disk, which is not packed to nothing.
    assert!(moved["link"]["up_bytes"].as_u64() > Some(32 << 20), "{moved}");
    assert!(output.out.contains("--parallel-connections 4"), "{}", output.out);
    scene.pair.has_the_disk_of_the_source();
    // Nothing of drover's is left at either host.
    let left = |host: &str| {
        let mut ls = Command::new("ls");
        ls.arg(FOLDER);
        moves::run(run_by(&scene.pair.hosts.inside(host).unwrap(), &ls)).out
    };
    assert!(!left("a").contains("drover-") && !left("b").contains("drover-"), "{} {}", left("a"), left("b"));
}

#[test]
fn a_link_that_is_cut_in_the_middle_costs_only_time() {
    let Some(mut scene) = Scene::new(Pair::apart()) else { return };
    let child = scene.begin(&["--disks", "mirror", "--downtime", "2s"], is_sending);
    scene.line.cut(true);
    scene.wait_for("the link is away", is_away);
    scene.pair.voice.beat(50).unwrap();
    scene.line.cut(false);
    let output = scene.ended(child);
    scene.has_moved(&output);
    let links: Vec<Value> = events(&output).into_iter().filter(|event| event["event"] == "link").collect();
    let ups: Vec<bool> = links.iter().map(|link| link["is_up"] == true).collect();
    assert_eq!((ups.first(), ups.last()), (Some(&false), Some(&true)), "{links:?}");
    scene.pair.has_the_disk_of_the_source();
}

#[test]
fn an_agent_that_is_killed_leaves_the_domain_where_it_was_and_the_second_try_moves_it() {
    let Some(mut scene) = Scene::new(Pair::shared()) else { return };
    let child = scene.begin(&["--downtime", "2s"], is_sending);
    scene.sites.kill();
    scene.wait_for("the link is away", is_away);
    scene.sites.start();
    let output = scene.ended(child);
    assert_eq!(output.code, Some(7), "{output:?}");
    assert!(output.err.contains("the guest is at the source, as it was"), "{}", output.err);
    scene.pair.has_stayed();
    let again = scene.live(&["--downtime", "2s"]);
    scene.has_moved(&again);
}

#[test]
fn a_killed_drover_leaves_the_domain_where_it_was_and_the_next_one_moves_it() {
    let Some(mut scene) = Scene::new(Pair::shared()) else { return };
    let mut child = scene.begin(&["--downtime", "2s"], is_sending);
    child.kill().unwrap();
    child.wait().unwrap();
    // Its sockets are gone: libvirt cancels, in a moment or at once. The next one waits for that, and takes their place.
    let again = moves::retried(|| scene.live(&["--downtime", "2s"]), |output| output.code == Some(0));
    scene.has_moved(&again);
}

#[test]
fn what_the_agent_does_not_allow_is_named_before_anything_is_changed() {
    let Some(pair) = Pair::apart() else { return };
    let Some(mut scene) = Scene::allowing(pair, &format!("unix:{FOLDER}/other")) else { return };
    let uuid = scene.pair.uuid("a");
    let output = scene.live(&["--disks", "mirror", "--downtime", "2s"]);
    let option = format!("--allow-connect unix:{FOLDER}/drover-{uuid}.memory");
    scene.pair.is_refused(&output, &[&option, "site-b"]);
    scene.pair.has_stayed();
    assert!(!scene.pair.hosts.run_folder("b").join("vms/disk.raw").exists(), "a volume was made");
}

#[test]
fn a_drover_whose_sockets_the_source_does_not_see_is_refused() {
    let Some(mut scene) = Scene::new(Pair::shared()) else { return };
    // Not with the first host's files: what it makes there another host has.
    let elsewhere = scene.sites.path("memory");
    let other = scene.sites.path("disks");
    let (memory, disks) = (format!("unix:{}", elsewhere.display()), format!("unix:{}", other.display()));
    let hidden = ["--uri", "unix:/run/drover-test.memory", "--nbd", "unix:/run/drover-test.disks"];
    let output = moves::run(scene.elsewhere(&hidden));
    scene
        .pair
        .is_refused(&output, &["does not see /run/drover-test.memory", "run drover on the source's host"]);
    // What both have is seen, and not allowed there.
    let output = moves::run(scene.elsewhere(&["--uri", &memory, "--nbd", &disks]));
    scene.pair.is_refused(&output, &["--allow-connect"]);
    assert!(!output.err.contains("does not see"), "{}", output.err);
    scene.pair.has_stayed();
    assert_eq!(scene.pair.state("a"), "running (booted)");
}

#[test]
fn sockets_at_which_another_drover_listens_are_left_to_it_and_a_look_needs_none_of_them() {
    let Some(pair) = Pair::shared() else { return };
    let Some(mut scene) = Scene::allowing(pair, "unix:/run/*") else { return };
    let place = scene.pair.hosts.run_folder("a").join("drover-taken.memory");
    let another = UnixListener::bind(&place).unwrap();
    another.set_nonblocking(true).unwrap();
    let at = ["--uri", "unix:/run/drover-taken.memory", "--nbd", "unix:/run/drover-taken.disks"];
    let looked = scene.live(&[&at[..], &["--downtime", "2s", "--dry-run"]].concat());
    assert_eq!(looked.code, Some(0), "{looked:?}");
    let output = scene.live(&[&at[..], &["--downtime", "2s"]].concat());
    scene.pair.is_refused(&output, &["/run/drover-taken.memory: another drover listens there"]);
    assert_eq!(another.accept().unwrap_err().kind(), ErrorKind::WouldBlock, "somebody connected");
    UnixStream::connect(&place).unwrap();
    drop(another);
    // What nobody listens at is in nobody's way.
    let output = scene.live(&[&at[..], &["--downtime", "2s"]].concat());
    scene.has_moved(&output);
}

/// A guest that fills nearly all of its memory and writes to it, so that there are several ends to see, behind a link that carries 32 MiB/s.
fn held_up() -> Option<Scene> {
    let guest =
        PulseOptions { memory_mib: 128, pages: 120 << 8, pages_per_beat: 8, ..PulseOptions::default() };
    let scene = Scene::new(Pair::new(|_| guest))?;
    let limited = scene.sites.here.run(&["agent", "limit", "site-b", "00:00-24:00=32MiB"]).unwrap();
    assert_eq!(limited.code, Some(0), "{limited:?}");
    Some(scene)
}

#[test]
fn the_end_of_memory_goes_slower_than_the_link_carries_it() {
    moves::one_of_several_is_eased(|| {
        let mut scene = held_up()?;
        let output = scene.live(&EASED);
        scene.has_moved(&output);
        Some(output)
    });
}

#[test]
fn a_move_that_is_cancelled_as_its_end_goes_slower_leaves_the_daemon_as_it_was() {
    let Some(mut scene) = held_up() else { return };
    let child = moves::spawn(scene.command(&EASED), &scene.pair.told());
    scene.wait_for("the end goes slower", is_eased);
    // Or it would have moved before.
    scene.line.cut(true);
    let speed = scene.pair.hosts.virsh("a", &["migrate-getspeed", NAME]).unwrap();
    assert!(speed.parse::<u64>().unwrap() < 32, "{speed} MiB/s");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = scene.ended(child);
    scene.line.cut(false);
    assert_eq!(output.code, Some(130), "{output:?}");
    scene.pair.has_stayed();
}

#[test]
fn an_agent_that_is_killed_in_postcopy_is_followed_by_another_line() {
    let guest = PulseOptions { pages: 4096, pages_per_beat: 200, ..PulseOptions::default() };
    let Some(mut scene) = Scene::new(Pair::new(|_| guest)) else { return };
    if !scene.pair.can_resume() {
        return;
    }
    // Should the source be told so late, the line itself has become narrow; not while it still makes passes over its 16 MiB.
    scene.line.narrow_after(128 << 20);
    let child = moves::spawn(
        scene.command(&["--allow", "postcopy", "--line", "80m", "--rate-max", "80m"]),
        &scene.pair.told(),
    );
    scene.wait_for("memory is sent", is_sending);
    scene.pair.send_ahead(4096);
    scene.wait_for("post-copy", |event| event["phase"] == "postcopy");
    scene.sites.kill();
    scene.wait_for("the link is away", is_away);
    assert!(!scene.pair.state("a").starts_with("running"), "{}", scene.pair.state("a"));
    scene.line.narrow_after(u64::MAX);
    scene.pair.send_ahead(0);
    scene.sites.start();
    let output = scene.ended(child);
    assert_eq!(output.code, Some(0), "{output:?}");
    assert!(output.out.contains("--postcopy-resume"), "{}", output.out);
    // The link tells of its last session only.
    scene.pair.has_moved("a", "b");
}

/// Past the link libvirt moves it as without one: by its own ports, which drover tells it here. Loopback carries several times what the
/// link does, which encrypts.
#[test]
fn memory_and_disks_go_directly_where_that_carries_more() {
    let Some(mut scene) = Scene::new(Pair::apart()) else { return };
    let at = place();
    let output = scene.live(&["--or-direct", &at, "--direct-plain", "--disks", "mirror"]);
    assert_eq!(output.code, Some(0), "{output:?}");
    scene.pair.has_moved("a", "b");
    let route = route(&output);
    assert_eq!(
        (route["way"].as_str(), route["direct_to"].as_str()),
        (Some("direct"), Some(at.as_str())),
        "{route}"
    );
    assert_eq!(moves::moved(&output)["link"], Value::Null);
}

/// An address for documents: nobody has it.
#[test]
fn they_go_over_the_link_where_the_target_is_not_reached_directly() {
    let Some(mut scene) = Scene::new(Pair::shared()) else { return };
    let output = scene.live(&["--or-direct", "192.0.2.1", "--direct-plain"]);
    scene.has_moved(&output);
    assert_eq!(route(&output)["way"], "link");
}
