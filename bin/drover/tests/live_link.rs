//! `drover live --via`: running guests move over the link to another site's agent, over true TLS connections.
#![allow(clippy::unwrap_used)]

use std::os::unix::net::UnixListener;
use std::process::Child;

use drover_lab::{Pulse, PulseOptions};
use drover_qemu::Qmp;
use drover_stage::moves::{self, EASED, SLOWLY, busy, events, idle, is_eased, with_disks, written_sectors};
use drover_stage::process::wait_until;
use drover_stage::scene::{PATIENCE, Scene};
use drover_stage::sites::Sites;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

#[test]
fn what_is_wrong_with_what_was_said_is_told_before_the_source_is_connected_to() {
    let sites = Sites::paired();
    let monitor = sites.path("monitor");
    // It would be waited for: it says nothing.
    let listener = UnixListener::bind(&monitor).unwrap();
    listener.set_nonblocking(true).unwrap();
    for (site, more, why) in [
        ("nowhere", &["--to", "/b"][..], "there is no site 'nowhere'"),
        ("site-b", &["--to", "b"][..], "with --via it is a path at the site"),
        ("site-b", &["--to", "/b", "--p2p"][..], "are for libvirt domains"),
        ("site-b", &["--to", "/b", "--uri", "tcp:h:0"][..], "a port is to be named"),
    ] {
        let mut command = sites.here.command(&["live", "--via", site]);
        command.arg(&monitor).args(more);
        let output = moves::run(command);
        assert_eq!(output.code, Some(2), "{more:?}: {output:?}");
        assert!(output.err.contains(why), "{more:?}: {}", output.err);
        assert!(listener.accept().is_err(), "{more:?}: the source was connected to");
    }
}

#[test]
fn memory_and_disks_go_over_the_link() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = with_disks(folder.path(), &busy());
    let Some(mut scene) = Scene::allowing(&here, &there, "b/*") else { return };
    let output = scene.live(&["--disks", "mirror", "--channels", "1"]);
    let moved = scene.has_moved(&output);
    assert!(moved["link"]["up_bytes"].as_u64() > Some(40 << 20), "{moved}");
    scene.target.kill();
    assert!(written_sectors(folder.path()) > 0, "the guest wrote nothing");
}

/// Under TLS no connection says what it is, and the link may bring them in another order.
#[test]
fn memory_that_qemu_encrypts_goes_over_the_link_by_one_connection() {
    let keys = tempfile::tempdir().unwrap();
    std::fs::write(keys.path().join("keys.psk"), format!("qemu:{}\n", "a5".repeat(32))).unwrap();
    let key = keys.path().to_str().unwrap();
    let Some(mut scene) = Scene::new(&busy()) else { return };
    let refused = scene.live(&["--tls-psk", key, "--compress", "zstd"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.err.contains("two connections"), "{}", refused.err);
    let output = scene.live(&["--tls-psk", key, "--channels", "4"]);
    let chosen = events(&output).into_iter().find(|event| event["event"] == "chosen").unwrap();
    assert_eq!(chosen["channels"], 1, "{chosen}");
    scene.has_moved(&output);
}

#[test]
fn many_connections_go_over_one_link_that_is_cut_meanwhile() {
    let Some(mut scene) = Scene::new(&busy()) else { return };
    // After some of the 33 MiB there is time to cut it.
    scene.line.narrow_after(8 << 20);
    let child =
        scene.spawn(&["--channels", "4", "--rate-max", "80m", "--line", "80m", "--allow", "throttle"]);
    scene.wait_until_sending();
    scene.line.cut(true);
    scene.wait_for("the link is away", |event| event["event"] == "link" && event["is_up"] == false);
    // Nothing is lost to the guest meanwhile.
    scene.source.beat(50).unwrap();
    scene.line.narrow_after(u64::MAX);
    scene.line.cut(false);
    let output = scene.ended(child);
    scene.has_moved(&output);
    let links: Vec<Value> = events(&output).into_iter().filter(|event| event["event"] == "link").collect();
    assert_eq!(links.last().unwrap()["is_up"], true, "{links:?}");
}

#[test]
fn an_agent_that_is_killed_in_mid_move_leaves_the_guest_where_it_was() {
    let Some(mut scene) = Scene::new(&idle()) else { return };
    let child = scene.spawn(&SLOWLY);
    scene.wait_until_sending();
    scene.sites.kill();
    scene.wait_for("the link is away", |event| event["event"] == "link" && event["is_up"] == false);
    scene.source.beat(20).unwrap();
    // Back again, it knows nothing of the session: what that carried is over.
    scene.sites.start();
    let output = scene.ended(child);
    assert_eq!(output.code, Some(7), "{output:?}");
    assert!(output.err.contains("the guest is at the source, as it was"), "{}", output.err);
    scene.has_stayed();
}

#[test]
fn a_drover_that_is_killed_leaves_the_guest_where_it_was_and_another_moves_it() {
    let Some(mut scene) = Scene::new(&idle()) else { return };
    let mut child = scene.spawn(&SLOWLY);
    scene.wait_until_sending();
    child.kill().unwrap();
    child.wait().unwrap();
    // Its sockets are gone, so QEMU gives up by itself. The agent keeps what was connected there, in case it comes back.
    scene.has_stayed();
    wait_until("the source gives it up", PATIENCE, || scene.source_says() == "failed");
    scene.sites.kill();
    wait_until("the target ends", PATIENCE, || !scene.target.is_alive());
    scene.sites.start();
    std::fs::remove_dir_all(scene.sites.path("b")).unwrap();
    scene.target = Pulse::waiting(&scene.sites.path("b"), &idle()).unwrap();
    let output = scene.live(&[]);
    scene.has_moved(&output);
}

/// A guest that fills nearly all of its memory, behind a link that carries 48 MiB/s, and a second monitor for the test.
fn held_up(monitor: &std::path::Path) -> Option<Scene> {
    let options = PulseOptions { memory_mib: 128, pages: 120 << 8, ..slow_to_end(monitor) };
    let here = PulseOptions { pages_per_beat: 0, ..options };
    let there = PulseOptions { more: Vec::new(), ..here.clone() };
    let scene = Scene::allowing(&here, &there, "b/*")?;
    let limited = scene.sites.here.run(&["agent", "limit", "site-b", "00:00-24:00=48MiB"]).unwrap();
    assert_eq!(limited.code, Some(0), "{limited:?}");
    Some(scene)
}

/// What the source may send in a second.
fn max_bandwidth(qmp: &mut Qmp) -> Option<u64> {
    qmp.execute("query-migrate-parameters", Value::Null).unwrap()["max-bandwidth"].as_u64()
}

#[test]
fn the_end_of_memory_goes_slower_than_the_link_carries_it() {
    moves::one_of_several_is_eased(|| {
        let folder = tempfile::tempdir().unwrap();
        let mut scene = held_up(&folder.path().join("second.sock"))?;
        let output = scene.live(&EASED);
        scene.has_moved(&output);
        Some(output)
    });
}

#[test]
fn a_move_that_is_cancelled_as_its_end_goes_slower_leaves_the_source_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let monitor = folder.path().join("second.sock");
    let Some(mut scene) = held_up(&monitor) else { return };
    let mut qmp = Qmp::connect(&monitor, PATIENCE).unwrap();
    let before = max_bandwidth(&mut qmp);
    let child = scene.spawn(&EASED);
    scene.wait_for("the end goes slower", is_eased);
    scene.line.cut(true);
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    wait_until("the move ends", PATIENCE, || {
        let told = qmp.execute("query-migrate", Value::Null).unwrap();
        ["cancelled", "failed", "completed"].iter().any(|status| told["status"] == *status)
    });
    scene.line.cut(false);
    let output = scene.ended(child);
    assert_ne!(output.code, Some(0), "{output:?}");
    scene.has_stayed();
    assert_eq!(max_bandwidth(&mut qmp), before);
}

/// A guest with 16 MiB, all of which it writes to within a second, and a second monitor for the test.
fn slow_to_end(place: &std::path::Path) -> PulseOptions {
    let monitor = format!("unix:{},server=on,wait=off", place.display());
    PulseOptions {
        pages: 4096,
        pages_per_beat: 200,
        more: vec!["-qmp".to_string(), monitor],
        ..PulseOptions::default()
    }
}

/// Moves until the guest runs at the target, and part of its memory is not there and not sent: the source sends as good as
/// nothing by itself any more.
fn ahead(scene: &Scene, monitor: &std::path::Path) -> (Child, Qmp) {
    // Should the source be told so late, the line itself has become narrow; not while it still makes passes over its 16 MiB, though
    // a busy machine makes many: what then waits before the line would go before the guest's devices.
    scene.line.narrow_after(128 << 20);
    let child = scene.spawn(&["--allow", "postcopy", "--line", "80m", "--rate-max", "80m"]);
    scene.wait_until_sending();
    let mut qmp = Qmp::connect(monitor, PATIENCE).unwrap();
    qmp.execute("migrate-set-parameters", json!({"max-postcopy-bandwidth": 4096})).unwrap();
    scene.wait_for("post-copy", |event| event["phase"] == "postcopy");
    scene.target.beat(1).unwrap();
    (child, qmp)
}

fn scene_ahead() -> Option<(Scene, Child, Qmp)> {
    let folder = tempfile::tempdir().unwrap();
    let monitor = folder.path().join("second.sock");
    let options = slow_to_end(&monitor);
    let there = PulseOptions { more: Vec::new(), ..options.clone() };
    let scene = Scene::allowing(&options, &there, "b/*")?;
    let (child, qmp) = ahead(&scene, &monitor);
    Some((scene, child, qmp))
}

#[test]
fn an_agent_that_is_killed_in_postcopy_is_followed_by_another_line() {
    let Some((mut scene, child, mut qmp)) = scene_ahead() else { return };
    scene.sites.kill();
    scene.wait_for("the link is away", |event| event["event"] == "link" && event["is_up"] == false);
    scene.sites.start();
    scene.wait_for("it is back", |event| event["event"] == "recovery" && event["what"] == "back");
    scene.line.narrow_after(u64::MAX);
    qmp.execute("migrate-set-parameters", json!({"max-postcopy-bandwidth": 0})).unwrap();
    let output = scene.ended(child);
    // The link tells of its last session only.
    moves::has_moved(&mut scene.source, &mut scene.target, &output);
}

#[test]
fn a_link_that_is_cut_in_postcopy_only_delays() {
    let Some((mut scene, child, mut qmp)) = scene_ahead() else { return };
    scene.line.cut(true);
    scene.wait_for("the link is away", |event| event["event"] == "link" && event["is_up"] == false);
    moves::is_silent(&scene.source);
    scene.line.narrow_after(u64::MAX);
    scene.line.cut(false);
    scene.wait_for("it is back", |event| event["event"] == "link" && event["is_up"] == true);
    qmp.execute("migrate-set-parameters", json!({"max-postcopy-bandwidth": 0})).unwrap();
    let output = scene.ended(child);
    let is_mended = |event: &Value| event["event"] == "recovery";
    assert!(!events(&output).iter().any(is_mended), "what the link carried was lost: {output:?}");
    moves::has_moved(&mut scene.source, &mut scene.target, &output);
}

#[test]
fn a_target_that_ends_in_postcopy_at_the_site_is_told_as_a_lost_guest() {
    let Some((mut scene, child, _qmp)) = scene_ahead() else { return };
    // One that ends by itself removes its socket.
    std::fs::remove_file(scene.target.monitor()).unwrap();
    scene.target.kill();
    let output = scene.ended(child);
    assert_eq!(output.code, Some(7), "{output:?}");
    assert!(output.err.contains("the guest is lost"), "{}", output.err);
}

#[test]
fn a_target_that_listens_already_is_not_taken_for_its_move() {
    let Some(mut scene) = Scene::new(&busy()) else { return };
    let place = format!("unix:{}.memory", scene.sites.path("c/qmp.sock").display());
    let waits = PulseOptions { more: vec!["-incoming".to_string(), place], ..busy() };
    scene.sites.kill();
    scene.sites.more =
        vec!["--allow-connect".to_string(), format!("unix:{}", scene.sites.path("c/*").display())];
    scene.sites.start();
    scene.target = Pulse::start(&scene.sites.path("c"), &waits).unwrap();
    let output = scene.live(&[]);
    assert_eq!(output.code, Some(3), "{output:?}");
    assert!(scene.target.is_alive(), "it ended: {output:?}");
    // It still waits.
    let mut qmp = Qmp::connect(&scene.target.monitor(), PATIENCE).unwrap();
    assert_eq!(qmp.status().unwrap(), "inmigrate");
    scene.has_stayed();
}

#[test]
fn a_link_that_stays_away_is_given_up_at_the_deadline() {
    let Some(mut scene) = Scene::new(&PulseOptions::default()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("report.json");
    // 33 MiB take seven seconds.
    let slowly = ["--rate-max", "40m", "--channels", "1", "--deadline", "20s"];
    let child = scene.spawn(&[&slowly[..], &["--report", file.to_str().unwrap()]].concat());
    scene.wait_until_sending();
    scene.line.cut(true);
    let output = scene.ended(child);
    assert_eq!(output.code, Some(6), "{output:?}");
    assert!(
        output.err.contains("deadline") && output.err.contains("the guest is at the source"),
        "{}",
        output.err
    );
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(report["outcome"]["guest_at"], "source", "{report}");
    assert!(report["link"]["up_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{report}");
    scene.has_stayed();
}

#[test]
fn a_place_that_is_not_allowed_is_named_before_anything_is_touched() {
    let Some(mut scene) = Scene::allowing(&busy(), &busy(), "b/qmp.sock") else { return };
    // The monitor may be connected to, and nothing else.
    let output = scene.live(&[]);
    assert_eq!(output.code, Some(3), "{output:?}");
    let place = format!("--allow-connect unix:{}.memory", scene.target.monitor().display());
    assert!(output.err.contains(&place), "{}", output.err);
    scene.has_stayed();
    let elsewhere = scene.sites.path("b/sub/../qmp.sock");
    let from = scene.source.monitor();
    let args = ["live", from.to_str().unwrap(), "--via", "site-b", "--to"];
    let output = scene.sites.here.run(&[&args[..], &[elsewhere.to_str().unwrap()]].concat()).unwrap();
    assert_eq!(output.code, Some(3), "{output:?}");
    scene.has_stayed();
}

#[test]
fn an_agent_that_is_away_is_named_before_anything_is_touched() {
    let Some(mut scene) = Scene::new(&busy()) else { return };
    scene.sites.kill();
    let output = scene.live(&[]);
    assert_eq!(output.code, Some(5), "{output:?}");
    assert!(output.err.contains("agent of site-b"), "{}", output.err);
    scene.has_stayed();
}
