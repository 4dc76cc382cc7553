//! Pools of LVM: volumes are block devices. Its programs are stood in for (`lab/libvirt/lvm`), the daemon that calls them is not.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use drover_stage::debian::{debian, marked, put_marking_converter};
use drover_stage::landing::{EARLY_EDGES, Landing, edges};
use drover_stage::{MIB, disk_file, vm, with};

/// Bytes of a volume are a multiple.
const EXTENT: u64 = 4 * MIB;

/// A daemon, of this name, has a pool `lvm` of 64 MiB more than Debian's disk.
pub struct Group(pub Landing, &'static str);

impl Group {
    /// On the first host, where drover runs, too.
    fn new(number: u8, vms: impl FnOnce(&std::path::Path) -> Vec<Value>) -> Option<Group> {
        Some(Group(Landing::with_lvm(number, GROUP_BYTES, vms)?, "a").with_theirs())
    }

    /// On the second host, of which drover has no files.
    pub fn far(number: u8, vms: impl FnOnce(&std::path::Path) -> Vec<Value>) -> Option<Group> {
        Some(Group(Landing::with_lvm_of("b", number, GROUP_BYTES, vms)?, "b").with_theirs())
    }

    /// With a volume that is somebody else's.
    fn with_theirs(self) -> Group {
        self.0.hosts.virsh(self.1, &["vol-create-as", "lvm", "theirs", "4MiB"]).unwrap();
        self
    }

    fn plan(&self, name: &str, edits: &[(&str, &str)]) -> String {
        let start = ("mode: cold", "mode: cold\nstart: true");
        self.0.plan(name, &[&[("pool: images", "pool: lvm"), start], edits].concat())
    }

    pub fn file(&self, volume: &str) -> PathBuf {
        self.0.folder.path().join("lvm").join(self.1).join("vg").join(format!("{volume}.img"))
    }

    pub fn volumes(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.file("x").parent().unwrap()).unwrap();
        let names = files.map(|file| file.unwrap().file_name().to_string_lossy().into_owned());
        let mut names: Vec<String> =
            names.filter_map(|name| name.strip_suffix(".img").map(str::to_string)).collect();
        names.sort();
        names
    }

    /// The volume begins with these bytes and holds nothing behind them.
    #[track_caller]
    pub fn holds(&self, volume: &str, wanted: &[u8]) {
        let found = std::fs::read(self.file(volume)).unwrap();
        assert_eq!(found.len() as u64, (wanted.len() as u64).next_multiple_of(EXTENT));
        let differs = found.iter().zip(wanted).position(|(found, wanted)| found != wanted);
        assert_eq!(differs, None, "{volume} is not what its source is");
        assert!(found[wanted.len()..].iter().all(|byte| *byte == 0), "{volume} holds what was there before");
    }

    /// What the report says of copies that were begun once more.
    pub fn copied_anew(&self, plan: &str) -> Vec<String> {
        let report = self.0.stage.report(plan);
        let words = report["events"].as_array().unwrap().iter().filter_map(|event| event["text"].as_str());
        words.filter(|words| words.contains("again from the beginning")).map(str::to_string).collect()
    }

    pub fn source(&self, disk: &str) -> Vec<u8> {
        std::fs::read(self.0.stage.path(disk)).unwrap()
    }
}

const GROUP_BYTES: u64 = 192 * MIB;

impl Drop for Group {
    fn drop(&mut self) {
        for volume in self.volumes() {
            let mut losetup = Command::new("losetup");
            losetup.args(["--noheadings", "--output", "NAME", "--associated"]).arg(self.file(&volume));
            let Ok(told) = losetup.output() else { continue };
            for device in String::from_utf8_lossy(&told.stdout).lines() {
                let _ = Command::new("losetup").args(["--detach", device.trim()]).status();
            }
        }
    }
}

#[test]
fn disks_land_in_logical_volumes_and_what_others_made_there_is_not_touched() {
    let Some(group) = Group::new(185, |folder| {
        let (a, b) = (disk_file(folder, "a", 5 * MIB), disk_file(folder, "b", 8 * MIB));
        let big = json!([{"file": a, "datastore": "ds1", "thin": true, "controller": "pvscsi", "capacity": "1TiB"}]);
        vec![
            with(vm("one", &[&a, &b]), json!({"power": "on", "nics": []})),
            with(vm("big", &[&a]), json!({"disks": big, "nics": []})),
        ]
    }) else {
        return;
    };
    let landing = &group.0;
    let (only, big) = (("  - name: \"big\"\n", ""), ("  - name: \"one\"\n", ""));
    let refuses = |plan: &str, words: &str| {
        let checked = landing.run(&["plan", "check", plan]);
        assert!(checked.code != Some(0) && checked.err.contains(words), "'{words}' in {}", checked.err);
    };
    refuses(
        &group.plan("format", &[only, ("  accel", "  format: qcow2\n  accel")]),
        "and those hold raw disks",
    );
    // Its disk is thin, and the plan allows thin disks more than there is room: such a volume is not.
    refuses(&group.plan("space", &[big]), "pool lvm has ");
    let virsh = |words: &[&str]| landing.hosts.virsh("a", words).unwrap();
    virsh(&["vol-create-as", "lvm", "one-1.raw", "8MiB"]);
    let before = std::fs::read(group.file("one-1.raw")).unwrap();
    refuses(
        &group.plan("taken", &[only]),
        "/dev/vg/one-1.raw is there already, and this plan did not make it",
    );
    assert!(std::fs::read(group.file("one-1.raw")).unwrap() == before);
    virsh(&["vol-delete", "--pool", "lvm", "one-1.raw"]);

    for edge in EARLY_EDGES {
        let name = format!("c-{}-{}", edge.0, edge.1).replace('_', "-");
        let plan = group.plan(&name, &[only]);
        assert!(landing.killed_at(&["migrate", &plan], edge).is_some(), "{edge:?} never came");
        landing.runs_once("a", "one", edge);
        assert_ne!(landing.state("a", "one"), "running", "{edge:?}");
        landing.arrives(&["cancel", &name]);
        assert_eq!(group.volumes(), ["theirs"], "{edge:?}");
    }

    // Somebody puts another volume in the place of one that drover made.
    let plan = group.plan("swapped", &[only]);
    assert!(landing.killed_at(&["migrate", &plan], ("phase_started", "verify")).is_some());
    virsh(&["vol-delete", "--pool", "lvm", "one-1.raw"]);
    virsh(&["vol-create-as", "lvm", "one-1.raw", "8MiB"]);
    let refused = landing.run(&["resume", "swapped"]);
    assert!(refused.code != Some(0) && refused.err.contains("this plan did not make it"), "{}", refused.err);
    let refused = landing.run(&["cancel", "swapped"]);
    assert!(
        refused.code != Some(0) && refused.err.contains("it stays: /dev/vg/one-1.raw"),
        "{}",
        refused.err
    );
    assert!(std::fs::read(group.file("one-1.raw")).unwrap() == before, "it was written to");
    assert_eq!(group.volumes(), ["one-1.raw", "theirs"]);
    virsh(&["vol-delete", "--pool", "lvm", "one-1.raw"]);
    landing.arrives(&["cancel", "swapped"]);

    let plan = group.plan("edges", &[only]);
    let mut args = vec!["migrate", plan.as_str()];
    for edge in edges(false) {
        landing.killed_at(&args, edge);
        landing.runs_once("a", "one", edge);
        args = vec!["resume", "edges"];
    }
    landing.arrives(&["resume", "edges"]);
    assert_eq!(landing.state("a", "one"), "running");
    group.holds("one-0.raw", &group.source("a"));
    group.holds("one-1.raw", &group.source("b"));
    let xml = landing.xml("a", "one");
    assert!(xml.contains("<disk type='block'") && xml.contains("<source dev='/dev/vg/one-1.raw'"), "{xml}");
    assert_eq!(group.copied_anew("edges"), Vec::<String>::new());
    landing.stays("a", "edges");
    assert_eq!(group.volumes(), ["one-0.raw", "one-1.raw", "theirs"]);
    assert!(std::fs::read(group.file("theirs")).unwrap().iter().all(|byte| *byte == 0o245));

    // Forgotten, what has arrived is not overwritten from its source by a plan of the same name.
    landing.arrives(&["clean", "edges", "--forget"]);
    virsh(&["destroy", "one"]);
    std::fs::write(landing.stage.path("a"), vec![7; 5 * MIB as usize]).unwrap();
    let held = ["one-0.raw", "one-1.raw"].map(|volume| std::fs::read(group.file(volume)).unwrap());
    let refused = landing.run(&["migrate", &plan]);
    assert!(refused.code != Some(0) && refused.err.contains("this plan did not make it"), "{}", refused.err);
    assert!(["one-0.raw", "one-1.raw"].map(|volume| std::fs::read(group.file(volume)).unwrap()) == held);
}

#[test]
fn a_guest_in_a_logical_volume_is_converted_once() {
    let Some(group) = Group::new(186, |folder| {
        vec![with(vm("one", &[&debian(folder, "one", &[])]), json!({"power": "on", "nics": []}))]
    }) else {
        return;
    };
    let landing = &group.0;
    put_marking_converter(&landing.stage.path("bin"), "");
    let plan = group.plan("convert", &[("convert: never", "convert: auto")]);
    crate::is_converted_once(landing, &plan);
    group.holds("one-0.raw", &marked(group.source("one")));
    assert_eq!(group.copied_anew("convert"), Vec::<String>::new());
}

#[test]
fn a_copy_in_a_logical_volume_is_rehearsed() {
    let Some(group) = Group::new(196, |folder| {
        vec![with(vm("one", &[&disk_file(folder, "a", 5 * MIB)]), json!({"nics": []}))]
    }) else {
        return;
    };
    let landing = &group.0;
    let plan = group.plan("rehearsed", &[("start: true", "start: false")]);
    landing.arrives(&["migrate", &plan]);
    let before = landing.xml("a", "one");
    let done = landing.arrives(&["rehearse", &plan, "--for", "1"]);
    assert!(done.err.contains("ran, and nothing was asked"), "{}", done.err);
    group.holds("one-0.raw", &group.source("a"));
    assert_eq!(landing.xml("a", "one"), before);
    assert_eq!(landing.state("a", "one"), "shut off");
}
