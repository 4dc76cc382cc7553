//! `drover live --via SITE --direct HOST`: memory and disks go past the link where that is found to be as good.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::time::Duration;

use common::moves::{self, SLOWLY, busy, events, idle, path, place, with_disks, written_sectors};
use common::process::wait_until;
use common::scene::{PATIENCE, Scene};
use common::sites::Sites;
use drover_lab::Output;
use serde_json::Value;

/// Where the source was told to send memory.
fn sent_to(output: &Output) -> String {
    let notes = events(output).into_iter().filter_map(|event| Some(event["text"].as_str()?.to_string()));
    notes.into_iter().find(|text| text.starts_with("memory goes ")).unwrap()
}

/// What loopback carries directly in any case, so that it does not matter how busy this machine is.
const ENOUGH: [&str; 4] = ["--rate-max", "400m", "--allow", "plain,throttle"];

#[test]
fn memory_and_disks_go_directly_where_that_carries_what_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let [here, there] = with_disks(folder.path(), &busy());
    let Some(mut scene) = Scene::allowing(&here, &there, "b/*") else { return };
    let at = place();
    let output = scene.live(&[&["--disks", "mirror", "--direct", &at][..], &ENOUGH].concat());
    moves::has_moved(&mut scene.source, &mut scene.target, &output);
    let path = path(&output);
    assert_eq!(
        (path["way"].as_str(), path["direct_to"].as_str()),
        (Some("direct"), Some(at.as_str())),
        "{path}"
    );
    assert!(path["direct_bytes_per_s"].as_f64() > Some(45e6), "{path}");
    assert_eq!(sent_to(&output), format!("memory goes to tcp:{at}, not encrypted"));
    // The monitor's words went over the link, and neither memory nor disks.
    let moved = moves::moved(&output);
    let (up, sent) = (moved["link"]["up_bytes"].as_u64(), moved["sent_bytes"].as_u64());
    assert!(up > Some(1000) && up < Some(4 << 20) && sent > Some(30 << 20), "{moved}");
    scene.target.kill();
    assert!(written_sectors(folder.path()) > 0, "the guest wrote nothing");
}

#[test]
fn they_go_over_the_link_where_the_target_is_not_reached_directly() {
    let Some(mut scene) = Scene::new(&busy()) else { return };
    // An address for documents: nobody has it.
    let output = scene.live(&["--direct", "192.0.2.1:5000", "--allow", "plain"]);
    scene.has_moved(&output);
    let path = path(&output);
    assert_eq!(path["way"], "link", "{path}");
    assert!(path["why"].as_str().unwrap().contains("192.0.2.1:5000"), "{path}");
    assert!(sent_to(&output).starts_with("memory goes over the link to site-b"), "{output:?}");
}

#[test]
fn a_limit_of_the_link_is_not_gone_past() {
    let Some(mut scene) = Scene::new(&busy()) else { return };
    let limited = scene.sites.here.run(&["agent", "limit", "site-b", "00:00-24:00=40MiB"]).unwrap();
    assert_eq!(limited.code, Some(0), "{limited:?}");
    let output = scene.live(&["--direct", "127.0.0.1", "--allow", "plain"]);
    scene.has_moved(&output);
    let path = path(&output);
    assert_eq!((&path["way"], &path["direct_bytes_per_s"]), (&"link".into(), &Value::Null), "{path}");
    assert!(path["why"].as_str().unwrap().contains("drover agent limit"), "{path}");
}

/// Both QEMUs encrypt what goes directly, and the link what goes over it.
#[test]
fn credentials_are_for_the_direct_way() {
    let keys = tempfile::tempdir().unwrap();
    std::fs::write(keys.path().join("keys.psk"), format!("qemu:{}\n", "a5".repeat(32))).unwrap();
    let key = keys.path().to_str().unwrap();
    let Some(mut scene) = Scene::new(&busy()) else { return };
    // No more may be sent than either carries, so the link is as good and costs less.
    let bounded = ["--rate-max", "400m", "--channels", "4", "--allow", "throttle"];
    let output = scene.live(&[&["--direct", "127.0.0.1", "--tls-psk", key][..], &bounded].concat());
    scene.has_moved(&output);
    let path = path(&output);
    assert_eq!((path["way"].as_str(), &path["is_encrypted_by_qemu"]), (Some("link"), &true.into()), "{path}");
    assert!(path["link_bytes_per_s"].as_f64() > Some(0.0), "{path}");
    // Under QEMU's own encryption it has one connection over a link.
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
        (&["--direct", "10.0.0.2"][..], "nobody said that it may go so"),
        (&["--direct", "10.0.0.2", "--allow", "plain", "--disks", "mirror"], "it wants a port"),
        (&["--direct", "10.0.0.2:80", "--allow", "plain"], "a port from 1024"),
    ] {
        let output = live(more);
        assert_eq!(output.code, Some(2), "{more:?}: {output:?}");
        assert!(output.err.contains(why), "{more:?}: {}", output.err);
    }
    let alone = sites.here.run(&["live", "/a", "--to", "/b", "--direct", "h", "--allow", "plain"]).unwrap();
    assert!(alone.code == Some(2) && alone.err.contains("--via"), "{alone:?}");
}

/// The source's QEMU goes on by itself, and the target's monitor is free again soon.
#[test]
fn a_move_whose_drover_was_killed_is_gone_on_with() {
    let Some(mut scene) = Scene::new(&idle()) else { return };
    let direct = ["--direct", "127.0.0.1", "--allow", "plain"];
    let mut child = scene.spawn(&[&direct[..], &SLOWLY].concat());
    scene.wait_until_sending();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(Path::new(&scene.target.monitor()).exists());
    let output = scene.live(&direct);
    moves::has_moved(&mut scene.source, &mut scene.target, &output);
    wait_until("the source has sent everything", PATIENCE, || scene.source_says() == "completed");
}

/// What goes directly does not wait for the link; the order to start the guest does.
#[test]
fn a_link_that_is_cut_meanwhile_holds_up_nothing_but_the_start() {
    let Some(mut scene) = Scene::new(&idle()) else { return };
    let child = scene.spawn(&[&["--direct", "127.0.0.1", "--allow", "plain"][..], &SLOWLY].concat());
    scene.wait_until_sending();
    scene.line.cut(true);
    scene.wait_for("the link is away", |event| event["event"] == "link" && event["is_up"] == false);
    wait_until("all is sent", PATIENCE, || !scene.source.beats_within(Duration::from_millis(300)));
    scene.line.cut(false);
    let output = scene.ended(child);
    moves::has_moved(&mut scene.source, &mut scene.target, &output);
}
