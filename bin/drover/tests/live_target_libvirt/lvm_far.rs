//! Pools of LVM of another host: its daemon makes the volumes, its agent opens them (`lab/libvirt/lvm` stands in for LVM's programs).

use serde_json::{Value, json};

use drover_stage::debian::{debian, marked, put_marking_converter};
use drover_stage::landing::{Agent, EARLY_EDGES, edges};
use drover_stage::{MIB, disk_file, vm, with};

use crate::lvm::Group;

fn far(number: u8, vms: impl FnOnce(&std::path::Path) -> Vec<Value>) -> Option<(Group, Agent)> {
    let group = Group::far(number, vms)?;
    let agent = group.0.agent("b", "site-b", &["lvm"]);
    Some((group, agent))
}

fn plan(group: &Group, name: &str, edits: &[(&str, &str)]) -> String {
    let landing = &group.0;
    let usual = [("pool: images", "pool: lvm"), ("mode: cold", "mode: cold\nstart: true")];
    landing.far_plan(name, &landing.hosts.uri("b"), &[&usual[..], edits].concat())
}

#[test]
fn disks_land_in_logical_volumes_of_another_host_and_what_others_made_there_is_not_touched() {
    let Some((group, mut agent)) = far(251, |folder| {
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
    // Its disk is thin, and the plan allows thin disks more than there is room: such a volume is not.
    refuses(&plan(&group, "space", &[big]), "pool lvm has ");
    let virsh = |words: &[&str]| landing.hosts.virsh("b", words).unwrap();
    virsh(&["vol-create-as", "lvm", "one-1.raw", "8MiB"]);
    let before = std::fs::read(group.file("one-1.raw")).unwrap();
    refuses(
        &plan(&group, "taken", &[only]),
        "agent://site-b/lvm/one-1.raw is there already, and this plan did not make it",
    );
    assert!(std::fs::read(group.file("one-1.raw")).unwrap() == before);
    virsh(&["vol-delete", "--pool", "lvm", "one-1.raw"]);
    // As one of before would: it takes the group for a folder of files.
    agent.kill();
    let pools = std::mem::replace(&mut agent.pools, vec!["lvm=/dev/vg".to_string()]);
    agent.start();
    refuses(&plan(&group, "old", &[only]), "serves no logical volumes of it");
    agent.kill();
    agent.pools = pools;
    agent.start();
    landing.arrives(&["plan", "check", &plan(&group, "fine", &[only])]);
    assert_eq!(group.volumes(), ["theirs"], "a check makes nothing");

    for edge in EARLY_EDGES {
        let name = format!("c-{}-{}", edge.0, edge.1).replace('_', "-");
        let plan = plan(&group, &name, &[only]);
        assert!(landing.killed_at(&["migrate", &plan], edge).is_some(), "{edge:?} never came");
        landing.runs_once("b", "one", edge);
        assert_ne!(landing.state("b", "one"), "running", "{edge:?}");
        landing.arrives(&["cancel", &name]);
        assert_eq!(group.volumes(), ["theirs"], "{edge:?}");
    }

    // Somebody puts another volume in the place of one that drover made.
    let swapped = plan(&group, "swapped", &[only]);
    assert!(landing.killed_at(&["migrate", &swapped], ("phase_started", "verify")).is_some());
    virsh(&["vol-delete", "--pool", "lvm", "one-1.raw"]);
    virsh(&["vol-create-as", "lvm", "one-1.raw", "8MiB"]);
    let refused = landing.run(&["resume", "swapped"]);
    assert!(refused.code != Some(0) && refused.err.contains("this plan did not make it"), "{}", refused.err);
    let refused = landing.run(&["cancel", "swapped"]);
    assert!(
        refused.code != Some(0) && refused.err.contains("it stays: agent://site-b/lvm/one-1.raw"),
        "{}",
        refused.err
    );
    assert!(std::fs::read(group.file("one-1.raw")).unwrap() == before, "it was written to");
    assert_eq!(group.volumes(), ["one-1.raw", "theirs"]);
    virsh(&["vol-delete", "--pool", "lvm", "one-1.raw"]);
    landing.arrives(&["cancel", "swapped"]);

    let plan = plan(&group, "edges", &[only]);
    let mut args = vec!["migrate", plan.as_str()];
    for edge in edges(false) {
        landing.killed_at(&args, edge);
        landing.runs_once("b", "one", edge);
        if edge == ("phase_started", "copy") {
            // A volume outlives the agent, and so does what is known of it.
            agent.kill();
            agent.start();
        }
        args = vec!["resume", "edges"];
    }
    landing.arrives(&["resume", "edges"]);
    assert_eq!(landing.state("b", "one"), "running");
    group.holds("one-0.raw", &group.source("a"));
    group.holds("one-1.raw", &group.source("b"));
    let xml = landing.xml("b", "one");
    assert!(xml.contains("<disk type='block'") && xml.contains("<source dev='/dev/vg/one-1.raw'"), "{xml}");
    assert_eq!(group.copied_anew("edges"), Vec::<String>::new());
    landing.stays("b", "edges");
    assert_eq!(group.volumes(), ["one-0.raw", "one-1.raw", "theirs"]);
    assert!(std::fs::read(group.file("theirs")).unwrap().iter().all(|byte| *byte == 0o245));
}

#[test]
fn peers_write_to_no_logical_volume_but_those_of_their_plans() {
    let Some((group, _agent)) =
        far(252, |folder| vec![with(vm("one", &[&disk_file(folder, "a", MIB)]), json!({"nics": []}))])
    else {
        return;
    };
    let landing = &group.0;
    let before = std::fs::read(group.file("theirs")).unwrap();
    let source = landing.stage.path("a");
    let copy = |disk: &str, words: &str| {
        let target = format!("agent://site-b/lvm/{disk}");
        let refused = landing.run(&["copy", source.to_str().unwrap(), &target, "--force"]);
        assert!(refused.code != Some(0) && refused.err.contains(words), "{disk}: {}", refused.err);
    };
    copy("theirs", "is a logical volume");
    copy("none", "there is no volume");
    copy("folder/a", "a volume group has no folders");
    // A node that is no volume, and a link to another one.
    let inside = |script: &str| {
        let words = landing.hosts.inside("b").unwrap();
        let done =
            std::process::Command::new(&words[0]).args(&words[1..]).args(["sh", "-c", script]).status();
        assert!(done.unwrap().success(), "{script}");
    };
    inside(
        "cp -a /dev/vg/theirs /dev/vg/odd && mv /dev/vg/theirs /dev/other && ln -s ../other /dev/vg/theirs",
    );
    copy("odd", "libvirt knows no such volume");
    copy("theirs", "is not the volume");
    let read =
        landing.run(&["copy", "agent://site-b/lvm/theirs", landing.stage.path("back").to_str().unwrap()]);
    assert!(read.code != Some(0) && read.err.contains("is not the volume"), "{}", read.err);
    inside("rm /dev/vg/odd && mv /dev/other /dev/vg/theirs");
    assert!(std::fs::read(group.file("theirs")).unwrap() == before, "it was written to");
    assert_eq!(group.volumes(), ["theirs"]);
    landing.arrives(&["migrate", &plan(&group, "moved", &[])]);
    let report = landing.stage.report("moved");
    let disk = &report["vms"][0]["disks"][0];
    assert_eq!((&disk["equal"], &disk["path"]), (&json!(true), &json!("agent://site-b/lvm/one-0.raw")));
    group.holds("one-0.raw", &group.source("a"));
}

#[test]
fn a_guest_in_a_logical_volume_of_another_host_is_converted_once_from_here() {
    let Some((group, _agent)) = far(253, |folder| {
        vec![with(vm("one", &[&debian(folder, "one", &[])]), json!({"power": "on", "nics": []}))]
    }) else {
        return;
    };
    let landing = &group.0;
    put_marking_converter(&landing.stage.path("bin"), "");
    let always = plan(&group, "always", &[("convert: never", "convert: always")]);
    let checked = landing.arrives(&["plan", "check", &always]);
    let plan = plan(&group, "convert", &[("convert: never", "convert: auto")]);
    assert!(checked.err.contains("it has logical volumes"), "{}", checked.err);
    crate::is_converted_once(landing, &plan);
    group.holds("one-0.raw", &marked(group.source("one")));
    assert_eq!(group.copied_anew("convert"), Vec::<String>::new());
}
