//! Pools of the type rbd. Ceph, and what libvirt and qemu-nbd do for it, is stood in for (`drover_stage::ceph`); `real_ceph.rs` has the true ones.

use std::path::Path;
use std::process::Command;

use drover_stage::ceph::{Ceph, KEY};
use drover_stage::debian::{debian, marked, put_marking_converter};
use drover_stage::landing::{EARLY_EDGES, Landing, edges};
use drover_stage::{MIB, disk_file, vm, with};
use serde_json::{Value, json};

struct Cluster {
    landing: Landing,
    ceph: Ceph,
}

impl Cluster {
    fn new(number: u8, free_bytes: u64, vms: impl FnOnce(&Path) -> Vec<Value>) -> Option<Cluster> {
        let landing = Landing::new(number, vms)?;
        let ceph = Ceph::put(&landing, free_bytes);
        // Somebody else's.
        std::fs::write(ceph.file("theirs"), "somebody's").unwrap();
        Some(Cluster { landing, ceph })
    }

    fn plan(&self, name: &str, edits: &[(&str, &str)]) -> String {
        let start = ("mode: cold", "mode: cold\nstart: true");
        self.landing.plan(name, &[&[("pool: images", "pool: ceph"), start], edits].concat())
    }

    #[track_caller]
    fn refuses(&self, args: &[&str], words: &str) {
        let refused = self.landing.run(args);
        assert!(refused.code != Some(0) && refused.err.contains(words), "'{words}' in {}", refused.err);
    }

    #[track_caller]
    fn holds(&self, image: &str, wanted: &[u8]) {
        let found = std::fs::read(self.ceph.file(image)).unwrap();
        assert!(found == wanted, "{image} is not what its source is");
    }

    fn source(&self, disk: &str) -> Vec<u8> {
        std::fs::read(self.landing.stage.path(disk)).unwrap()
    }

    /// What the report says of copies that were begun once more.
    fn copied_anew(&self, plan: &str) -> usize {
        let report = self.landing.stage.report(plan);
        let words = report["events"].as_array().unwrap().iter().filter_map(|event| event["text"].as_str());
        words.filter(|words| words.contains("again from the beginning")).count()
    }

    /// The key is where it has to be, and nowhere else.
    fn kept_the_key(&self, out: &str) {
        assert!(!out.contains(KEY) && !self.ceph.told().contains(KEY));
        let state =
            Command::new("grep").args(["-rl", KEY]).arg(self.landing.stage.path("state")).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&state.stdout), "");
    }
}

#[test]
fn disks_land_in_images_of_ceph_and_what_others_made_there_is_not_touched() {
    let Some(cluster) = Cluster::new(236, 64 * MIB, |folder| {
        let (a, b) = (disk_file(folder, "a", 5 * MIB + 512), disk_file(folder, "b", 3 * MIB));
        let big = json!([{"file": a, "datastore": "ds1", "thin": true, "controller": "pvscsi", "capacity": "1TiB"}]);
        vec![
            with(vm("one", &[&a, &b]), json!({"power": "on", "nics": []})),
            with(vm("big", &[&a]), json!({"disks": big, "nics": []})),
        ]
    }) else {
        return;
    };
    let (landing, ceph) = (&cluster.landing, &cluster.ceph);
    let (only, big) = (("  - name: \"big\"\n", ""), ("  - name: \"one\"\n", ""));
    let plan = cluster.plan("checked", &[only]);
    for (what, words) in [
        ("inactive", "pool ceph of"),
        ("no-driver", "qemu-nbd has no driver for RBD"),
        ("private", "the key of its user drover is not known"),
    ] {
        ceph.set(what, true);
        cluster.refuses(&["plan", "check", &plan], words);
        ceph.set(what, false);
    }
    ceph.set("no-driver", true);
    cluster.refuses(&["plan", "check", &plan], "apt-get install qemu-block-extra");
    ceph.set("no-driver", false);
    cluster.refuses(
        &["plan", "check", &cluster.plan("format", &[only, ("  accel", "  format: qcow2\n  accel")])],
        "volumes of pool ceph are images of Ceph, and those hold raw disks",
    );
    cluster.refuses(
        &["plan", "check", &cluster.plan("space", &[big, ("  overcommit: true\n", "")])],
        "pool ceph has 64 MiB free",
    );
    let strangers = vec![0x5a; 3 * MIB as usize];
    std::fs::write(ceph.file("one-1.raw"), &strangers).unwrap();
    cluster.refuses(
        &["plan", "check", &plan],
        "rbd:vms/one-1.raw is there already, and this plan did not make it",
    );
    std::fs::remove_file(ceph.file("one-1.raw")).unwrap();
    landing.arrives(&["plan", "check", &plan]);
    assert_eq!(ceph.images(), ["theirs"], "a check touches nothing");

    // What cannot be opened is found while the guest runs.
    let plan = cluster.plan("away", &[only]);
    ceph.set("away", true);
    let failed = landing.run(&["migrate", &plan, "--json"]);
    assert!(failed.code != Some(0) && failed.out.contains("Connection timed out"), "{failed:?}");
    assert!(!failed.out.contains("power_off"), "{}", failed.out);
    ceph.set("away", false);
    assert_eq!(ceph.images(), ["theirs"]);
    landing.run(&["cancel", "away"]);

    for edge in EARLY_EDGES {
        let name = format!("c-{}-{}", edge.0, edge.1).replace('_', "-");
        let plan = cluster.plan(&name, &[only]);
        assert!(landing.killed_at(&["migrate", &plan], edge).is_some(), "{edge:?} never came");
        landing.runs_once("a", "one", edge);
        assert_ne!(landing.state("a", "one"), "running", "{edge:?}");
        // Ceph takes those that died for alive, for a while.
        if ceph.images() != ["theirs"] {
            ceph.set("watched", true);
        }
        landing.arrives(&["cancel", &name]);
        assert!(!ceph.is("watched"));
        assert_eq!(ceph.images(), ["theirs"], "{edge:?}");
    }

    // Somebody puts another image of its name in the place of one that drover made.
    let plan = cluster.plan("swapped", &[only]);
    assert!(landing.killed_at(&["migrate", &plan], ("phase_started", "verify")).is_some());
    std::fs::write(ceph.file("one-1.raw"), &strangers).unwrap();
    cluster.refuses(&["cancel", "swapped"], "it stays: rbd:vms/one-1.raw");
    assert_eq!(ceph.images(), ["one-1.raw", "theirs"]);
    cluster.holds("one-1.raw", &strangers);
    // Nor does a second look take it for drover's.
    cluster.refuses(&["cancel", "swapped"], "it stays: rbd:vms/one-1.raw");
    cluster.holds("one-1.raw", &strangers);
    std::fs::remove_file(ceph.file("one-1.raw")).unwrap();
    landing.arrives(&["cancel", "swapped"]);

    // Somebody gives the pool to another cluster: what is not found there may be in the first one.
    let plan = cluster.plan("other", &[only]);
    assert!(landing.killed_at(&["migrate", &plan], ("phase_started", "verify")).is_some());
    ceph.rename_monitors("192.0.2.", "198.51.100.");
    cluster.refuses(&["resume", "other"], "may be another cluster's by now");
    cluster.refuses(&["cancel", "other"], "may be another cluster's by now");
    assert_eq!(ceph.images(), ["one-0.raw", "one-1.raw", "theirs"]);
    ceph.rename_monitors("198.51.100.", "192.0.2.");
    landing.arrives(&["cancel", "other"]);
    assert_eq!(ceph.images(), ["theirs"]);

    let plan = cluster.plan("edges", &[only]);
    let mut args = vec!["migrate", plan.as_str()];
    for edge in edges(false) {
        landing.killed_at(&args, edge);
        landing.runs_once("a", "one", edge);
        args = vec!["resume", "edges"];
    }
    let done = landing.arrives(&["resume", "edges", "--verbose"]);
    assert_eq!(landing.state("a", "one"), "running");
    cluster.holds("one-0.raw", &cluster.source("a"));
    cluster.holds("one-1.raw", &cluster.source("b"));
    let xml = ceph.asked("one");
    for part in [
        "<disk type='network'",
        "<source protocol='rbd' name='vms/one-1.raw'>",
        "<host name='192.0.2.7' port='6789'/>",
        "<host name='192.0.2.8'/>",
        "<auth username='drover'>",
        "<secret type='ceph' uuid='2ec115d7-3a88-3ceb-bc12-0ac909a6fd87'/>",
        "cache='writeback'",
    ] {
        assert!(xml.contains(part), "{part} in {xml}");
    }
    assert_eq!(cluster.copied_anew("edges"), 0);
    cluster.kept_the_key(&format!("{}{}{xml}", done.out, done.err));
    // A second run finds nothing to do, and a cancel undoes nothing of what has arrived.
    landing.arrives(&["migrate", &plan]);
    landing.stays("a", "edges");
    assert_eq!(ceph.images(), ["one-0.raw", "one-1.raw", "theirs"]);
    assert_eq!(std::fs::read(ceph.file("theirs")).unwrap(), b"somebody's");
    let refused = landing.run(&["rehearse", &plan]);
    assert!(refused.code == Some(3) && refused.err.contains("it runs at the target"), "{}", refused.err);

    // Forgotten, what has arrived is not overwritten from its source by a plan of the same name.
    landing.arrives(&["clean", "edges", "--forget"]);
    landing.hosts.virsh("a", &["destroy", "one"]).unwrap();
    let held = std::fs::read(ceph.file("one-0.raw")).unwrap();
    cluster.refuses(&["migrate", &plan], "this plan did not make it");
    cluster.holds("one-0.raw", &held);
}

#[test]
fn an_image_that_somebody_else_writes_to_is_not_gone_on_with() {
    let Some(cluster) = Cluster::new(237, 64 * MIB, |folder| {
        vec![with(vm("one", &[&disk_file(folder, "a", 4 * MIB)]), json!({"power": "on", "nics": []}))]
    }) else {
        return;
    };
    let (landing, ceph) = (&cluster.landing, &cluster.ceph);
    let plan = cluster.plan("swapped", &[]);
    assert!(landing.killed_at(&["migrate", &plan], ("phase_ended", "copy")).is_some());
    let strangers = vec![0x5a; 4 * MIB as usize];
    for bytes in [&strangers[..], &strangers[..MIB as usize]] {
        std::fs::write(ceph.file("one-0.raw"), bytes).unwrap();
        let resumed = landing.run(&["resume", "swapped"]);
        assert_ne!(resumed.code, Some(0), "{resumed:?}");
        println!("{}", resumed.err);
        cluster.holds("one-0.raw", bytes);
    }
}

#[test]
fn a_guest_in_an_image_of_ceph_is_converted_once() {
    let Some(cluster) = Cluster::new(238, 1 << 40, |folder| {
        vec![with(vm("one", &[&debian(folder, "one", &[])]), json!({"power": "on", "nics": []}))]
    }) else {
        return;
    };
    let landing = &cluster.landing;
    put_marking_converter(&landing.stage.path("bin"), "");
    // A rehearsal has it converted, too, and that on overlays.
    let plan = cluster.plan("rehearsed", &[("convert: never", "convert: auto")]);
    assert!(landing.killed_at(&["migrate", &plan], ("phase_started", "verify")).is_some());
    let done = landing.arrives(&["rehearse", &plan, "--for", "1"]);
    assert!(done.err.contains("converted, on the overlays"), "{}", done.err);
    cluster.holds("one-0.raw", &cluster.source("one"));
    landing.arrives(&["cancel", "rehearsed"]);
    std::fs::remove_file(landing.stage.path("bin/runs")).unwrap();

    let plan = cluster.plan("convert", &[("convert: never", "convert: auto")]);
    crate::is_converted_once(landing, &plan);
    cluster.holds("one-0.raw", &marked(cluster.source("one")));
    assert_eq!(cluster.copied_anew("convert"), 0);
}
