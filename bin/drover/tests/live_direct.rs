//! `drover live --via SITE --or-direct HOST`: memory and disks go past the link where that is found to be as good.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;
use std::process::Child;

use drover_lab::{Output, Pulse, PulseOptions};
use drover_stage::moves::{self, SLOWLY, busy, events, idle, place, route, with_disks, written_sectors};
use drover_stage::process::wait_until;
use drover_stage::scene::{PATIENCE, Scene};
use drover_stage::sites::Sites;
use serde_json::Value;

/// Where the source was told to send memory.
fn sent_to(output: &Output) -> String {
    let notes = events(output).into_iter().filter_map(|event| Some(event["text"].as_str()?.to_string()));
    notes.into_iter().find(|text| text.starts_with("memory goes ")).unwrap()
}

/// Past the link loopback carries several times what the link does, which encrypts, however busy this machine is.
#[test]
fn memory_and_disks_go_directly_where_that_carries_more() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = with_disks(folder.path(), &busy());
    let Some(mut scene) = Scene::allowing(&here, &there, "b/*") else { return };
    let at = place();
    let output = scene.live(&["--disks", "mirror", "--or-direct", &at, "--direct-plain"]);
    moves::has_moved(&mut scene.source, &mut scene.target, &output);
    let route = route(&output);
    assert_eq!(
        (route["way"].as_str(), route["direct_to"].as_str()),
        (Some("direct"), Some(at.as_str())),
        "{route}"
    );
    assert!(route["direct_bytes_per_s"].as_f64() > route["link_bytes_per_s"].as_f64(), "{route}");
    assert_eq!(sent_to(&output), format!("memory goes to tcp:{at}, not encrypted"));
    scene.target.kill();
    assert!(written_sectors(folder.path()) > 0, "the guest wrote nothing");
}

#[test]
fn nothing_but_the_monitors_words_goes_over_the_link_then() {
    let Some(mut scene) = Scene::new(&busy()) else { return };
    // So the link is not measured, which would count. What goes may be too little for a busy guest.
    let bounded = ["--rate-max", "400m", "--channels", "4", "--allow", "throttle"];
    let output = scene.live(&[&["--or-direct", "127.0.0.1", "--direct-plain"][..], &bounded].concat());
    moves::has_moved(&mut scene.source, &mut scene.target, &output);
    let route = route(&output);
    assert_eq!(
        (route["way"].as_str(), route["reason"].as_str()),
        (Some("direct"), Some("rate-max")),
        "{route}"
    );
    let moved = moves::moved(&output);
    let (up, sent) = (moved["link"]["up_bytes"].as_u64(), moved["sent_bytes"].as_u64());
    assert!(up > Some(1000) && up < Some(4 << 20) && sent > Some(30 << 20), "{moved}");
}

#[test]
fn they_go_over_the_link_where_the_target_is_not_reached_directly() {
    let Some(mut scene) = Scene::new(&busy()) else { return };
    // An address for documents: nobody has it.
    let output = scene.live(&["--or-direct", "192.0.2.1", "--direct-plain"]);
    scene.has_moved(&output);
    let route = route(&output);
    assert_eq!(
        (route["way"].as_str(), route["reason"].as_str()),
        (Some("link"), Some("unreachable")),
        "{route}"
    );
    assert!(route["why"].as_str().unwrap().contains("name the one at which its QEMU can listen"), "{route}");
    assert!(sent_to(&output).starts_with("memory goes over the link to site-b"), "{output:?}");
}

#[test]
fn they_go_over_the_link_where_disks_have_no_port() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = with_disks(folder.path(), &busy());
    let Some(mut scene) = Scene::allowing(&here, &there, "b/*") else { return };
    let at = place();
    let (host, port) = at.rsplit_once(':').unwrap();
    let taken = TcpListener::bind((host, port.parse::<u16>().unwrap() + 1)).unwrap();
    let output = scene.live(&["--disks", "mirror", "--or-direct", &at, "--direct-plain"]);
    scene.has_moved(&output);
    let route = route(&output);
    assert_eq!(
        (route["way"].as_str(), route["reason"].as_str()),
        (Some("link"), Some("unreachable")),
        "{route}"
    );
    drop(taken);
}

#[test]
fn a_limit_of_the_link_is_not_gone_past() {
    let Some(mut scene) = Scene::new(&busy()) else { return };
    let limited = scene.sites.here.run(&["agent", "limit", "site-b", "00:00-24:00=40MiB"]).unwrap();
    assert_eq!(limited.code, Some(0), "{limited:?}");
    let output = scene.live(&["--or-direct", "127.0.0.1:5000", "--direct-plain"]);
    scene.has_moved(&output);
    let route = route(&output);
    assert_eq!((&route["way"], &route["direct_bytes_per_s"]), (&"link".into(), &Value::Null), "{route}");
    assert!(route["why"].as_str().unwrap().contains("drover agent limit"), "{route}");
}

/// Both QEMUs encrypt what goes directly, and the link what goes over it, by as many connections as ever.
#[test]
fn credentials_are_for_the_direct_way() {
    let keys = tempfile::tempdir().unwrap();
    std::fs::write(keys.path().join("keys.psk"), format!("qemu:{}\n", "a5".repeat(32))).unwrap();
    let key = keys.path().to_str().unwrap();
    let Some(mut scene) = Scene::new(&busy()) else { return };
    let output = scene.live(&["--or-direct", "192.0.2.1", "--tls-psk", key, "--channels", "4"]);
    scene.has_moved(&output);
    let route = route(&output);
    assert_eq!(
        (route["way"].as_str(), &route["is_encrypted_by_qemu"]),
        (Some("link"), &false.into()),
        "{route}"
    );
    let chosen = events(&output).into_iter().find(|event| event["event"] == "chosen").unwrap();
    assert_eq!(chosen["channels"], 4, "{chosen}");
}

#[test]
fn what_is_wrong_with_what_was_said_is_told_before_anything_is_touched() {
    let sites = Sites::paired();
    let live = |more: &[&str]| {
        let args = ["live", "/nowhere", "--to", "/b", "--via", "site-b"];
        sites.here.run(&[&args[..], more].concat()).unwrap()
    };
    for (more, why) in [
        (&["--or-direct", "10.0.0.2"][..], "neither credentials nor --direct-plain"),
        (&["--or-direct", "10.0.0.2", "--direct-plain", "--disks", "mirror"], "it wants a port"),
        (&["--or-direct", "10.0.0.2:80", "--direct-plain"], "a port from 1024"),
        (&["--direct-plain"], "--or-direct"),
    ] {
        let output = live(more);
        assert_eq!(output.code, Some(2), "{more:?}: {output:?}");
        assert!(output.err.contains(why), "{more:?}: {}", output.err);
    }
    let alone = sites.here.run(&["live", "/a", "--to", "/b", "--or-direct", "h", "--direct-plain"]).unwrap();
    assert!(alone.code == Some(2) && alone.err.contains("--via"), "{alone:?}");
}

const DIRECT: [&str; 3] = ["--or-direct", "127.0.0.1", "--direct-plain"];

/// A slow move, directly, that has begun to send.
fn begun(scene: &Scene) -> Child {
    let child = scene.spawn(&[&DIRECT[..], &SLOWLY].concat());
    scene.wait_for("it goes directly", |event| event["event"] == "route" && event["way"] == "direct");
    scene.wait_until_sending();
    child
}

/// The source's QEMU goes on by itself, and the target's monitor is free again soon.
#[test]
fn a_move_whose_drover_was_killed_is_gone_on_with() {
    let Some(mut scene) = Scene::new(&idle()) else { return };
    let mut child = begun(&scene);
    child.kill().unwrap();
    child.wait().unwrap();
    let output = scene.live(&DIRECT);
    moves::has_moved(&mut scene.source, &mut scene.target, &output);
    let route = route(&output);
    assert_eq!((route["way"].as_str(), route["reason"].as_str()), (Some("direct"), Some("known")), "{route}");
    wait_until("the source has sent everything", PATIENCE, || scene.source_says() == "completed");
}

/// Memory goes on meanwhile; the guest goes when it can be started there.
#[test]
fn a_link_that_is_cut_meanwhile_is_waited_for() {
    let Some(mut scene) = Scene::new(&idle()) else { return };
    let child = begun(&scene);
    scene.line.cut(true);
    scene.wait_for("the link is away", |event| event["event"] == "link" && event["is_up"] == false);
    scene.wait_for("memory goes on", |event| event["sent_bytes"].as_u64() > Some(8 << 20));
    scene.line.cut(false);
    let output = scene.ended(child);
    moves::has_moved(&mut scene.source, &mut scene.target, &output);
}

/// The link is still told to be there when all but the last of memory is sent.
#[test]
fn a_link_that_was_cut_and_was_not_missed_yet_leaves_the_guest_where_it_was() {
    let Some(mut scene) = Scene::new(&idle()) else { return };
    // 33 MiB in three seconds; a link is missed after fifteen.
    let child = scene.spawn(&[&DIRECT[..], &["--rate-max", "80m", "--channels", "1"]].concat());
    scene.wait_until_sending();
    scene.line.cut(true);
    let output = scene.ended(child);
    assert_eq!(output.code, Some(7), "{output:?}");
    assert!(
        output.err.contains("does not answer") && output.err.contains("the guest is at the source"),
        "{output:?}"
    );
    assert_eq!(route(&output)["way"], "direct");
    scene.has_stayed();
}

/// It knows nothing of the session; the next is made although nothing goes over it meanwhile.
#[test]
fn an_agent_that_is_killed_meanwhile_and_comes_back_starts_the_guest() {
    let Some(mut scene) = Scene::new(&idle()) else { return };
    let child = begun(&scene);
    scene.sites.kill();
    scene.wait_for("the link is away", |event| event["event"] == "link" && event["is_up"] == false);
    scene.sites.start();
    scene.wait_for("it is back", |event| event["event"] == "link" && event["is_up"] == true);
    let output = scene.ended(child);
    moves::has_moved(&mut scene.source, &mut scene.target, &output);
}

#[test]
fn a_link_that_stays_away_leaves_the_guest_where_it_was() {
    let Some(mut scene) = Scene::new(&idle()) else { return };
    let child = begun(&scene);
    scene.line.cut(true);
    let output = scene.ended(child);
    assert_eq!(output.code, Some(7), "{output:?}");
    assert!(
        output.err.contains("does not answer") && output.err.contains("the guest is at the source"),
        "{}",
        output.err
    );
    scene.has_stayed();
}

/// The guest goes ahead, and is started by the link.
#[test]
fn a_guest_goes_ahead_directly() {
    // 16 MiB, all of which it writes to within a second.
    let guest = PulseOptions { pages: 4096, pages_per_beat: 200, ..PulseOptions::default() };
    let Some(mut scene) = Scene::new(&guest) else { return };
    let more = ["--allow", "postcopy", "--line", "80m", "--rate-max", "80m"];
    let output = scene.live(&[&DIRECT[..], &more].concat());
    moves::has_moved(&mut scene.source, &mut scene.target, &output);
    assert_eq!(route(&output)["way"], "direct");
    let is_ahead = |event: &Value| event["phase"] == "postcopy";
    assert!(events(&output).iter().any(is_ahead), "{output:?}");
}

#[test]
fn for_several_guests_both_ways_are_measured_once() {
    let Some(mut scene) = Scene::allowing(&idle(), &idle(), "**") else { return };
    let mut source = Pulse::start(&scene.sites.path("a2"), &idle()).unwrap();
    let mut target = Pulse::waiting(&scene.sites.path("b2"), &idle()).unwrap();
    source.beat(3).unwrap();
    let ways = [place(), place()];
    let one = |name: &str, from: &Pulse, to: &Pulse, way: &str| {
        let (from, to) = (from.monitor(), to.monitor());
        format!("  - {{name: {name}, from: {}, to: {}, or_direct: '{way}'}}\n", from.display(), to.display())
    };
    let file = scene.sites.path("moves.yaml");
    let head = "via: site-b\ndirect_plain: true\nmoves:\n".to_string();
    let both =
        head + &one("one", &scene.source, &scene.target, &ways[0]) + &one("two", &source, &target, &ways[1]);
    std::fs::write(&file, both).unwrap();
    let output = scene.sites.here.run(&["live", "--moves", file.to_str().unwrap(), "--json"]).unwrap();
    assert_eq!(output.code, Some(0), "{output:?}");
    let mut routes: Vec<Value> =
        events(&output).into_iter().filter(|event| event["event"] == "route").collect();
    routes.sort_by_key(|route| route["guest"].to_string());
    let told: Vec<&str> = routes.iter().map(|route| route["direct_to"].as_str().unwrap()).collect();
    assert_eq!(told, ways, "{routes:?}");
    assert!(routes.iter().all(|route| route["way"] == "direct"), "{routes:?}");
    assert_eq!(routes[0]["direct_bytes_per_s"], routes[1]["direct_bytes_per_s"], "{routes:?}");
    moves::has_arrived(&mut scene.source, &mut scene.target);
    moves::has_arrived(&mut source, &mut target);
}
