//! Whole plans to another site: an agent on loopback with a state and a pool of its own, and the simulator as source.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use drover_lab::Output;
use drover_stage::debian::{
    HAS_DRIVERS, debian, marked, put_converter, put_converter_tried, put_marking_converter, puts_loader,
    uefi_debian,
};
use drover_stage::far::Far;
use drover_stage::process::{freeze, thaw, wait_until};
use drover_stage::{MIB, disk_file, same_bytes, vm, with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);

fn succeeds(output: &Output) {
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
}

/// Edits of a plan that copies slowly enough for something to happen meanwhile.
const SLOWLY: (&str, &str) = ("via: site-b\n", "via: site-b\n  rate_limit: [24MiB]\n");

#[test]
fn a_plan_goes_to_another_site_proven_there_and_a_sibling_costs_next_to_nothing() {
    let Some(far) = Far::new(60, &[], |folder| {
        let (a, b) = (disk_file(folder, "a", 24 * MIB + 512), disk_file(folder, "b", 24 * MIB + 512));
        vec![vm("one", &[&a]), vm("two", &[&b])]
    }) else {
        return;
    };
    let before = far.stage.source_state();
    let plan = far.plan("far", &[("mode: cold", "mode: cold\nlimits: {disks: 1}")]);
    let checked = far.stage.run(&["plan", "check", &plan]);
    succeeds(&checked);
    assert!(checked.out.contains("to site site-b") && checked.out.contains("vms ("), "{}", checked.out);
    assert!(!far.in_pool("one").exists(), "a check makes nothing");
    let output = far.stage.run(&["migrate", &plan, "--json"]);
    succeeds(&output);
    assert!(same_bytes(&far.image("one"), &far.stage.path("a")));
    assert!(same_bytes(&far.image("two"), &far.stage.path("b")));
    assert_eq!(far.stage.source_state(), before);
    let report = far.stage.report(&plan);
    let disk = |vm: usize| report["vms"][vm]["disks"][0].clone();
    let sum = |vm: usize, key: &str| disk(vm)["link"][key].as_u64().unwrap();
    for vm in 0..2 {
        assert_eq!(report["vms"][vm]["site"], "site-b");
        assert_eq!((&disk(vm)["equal"], &disk(vm)["details"]["differing"]), (&json!(true), &json!(0)));
        assert!(disk(vm)["path"].as_str().unwrap().starts_with("agent://site-b/vms/"), "{:#}", disk(vm));
        assert!(sum(vm, "zero") >= 5 * MIB, "every fourth MiB is a hole");
    }
    assert!(sum(0, "sent") >= 17 * MIB && sum(0, "had") <= MIB, "{:#}", disk(0));
    // Its first two writes are sent unasked.
    assert!(sum(1, "had") >= 15 * MIB && sum(1, "sent") <= 3 * MIB, "{:#}", disk(1));
    // The definition is the other host's: it names the images there, and how to start it.
    let xml = std::fs::read_to_string(far.in_pool("one/domain.xml")).unwrap();
    let image = std::fs::canonicalize(far.image("one")).unwrap();
    assert!(xml.contains(image.to_str().unwrap()), "{xml}");
    let script = std::fs::canonicalize(far.in_pool("one/run.sh")).unwrap();
    let told = format!("'{}' starts it", script.display());
    assert!(far.notes(&plan).contains(&told), "{told} is not in {}", far.notes(&plan));
    let text = far.stage.run(&["report", &plan]).out;
    assert!(text.contains("OVER THE LINK"), "{text}");
    assert!(far.stage.run(&["status", &plan]).out.contains("to site site-b"));
    assert!(output.out.contains("\"sent_packed\""), "the events tell the link, too: {}", output.out);
    assert!(!far.stage.vms().exists(), "nothing lies here");
    let other = far.stage.run(&["plan", "check", &far.plan("other", &[])]);
    assert_eq!(other.code, Some(3), "{}", other.err);
    assert!(
        other.err.contains("one-0.raw already holds") && other.err.contains("did not write"),
        "{}",
        other.err
    );
}

#[test]
fn every_obstacle_is_named_before_anything_is_touched() {
    let Some(mut far) = Far::new(61, &[], |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        let mut huge = vm("huge", &[&a]);
        huge["disks"][0]["capacity"] = json!("8TiB");
        vec![vm("one", &[&a]), vm("two", &[&a]), huge]
    }) else {
        return;
    };
    let before = far.stage.source_state();
    std::fs::create_dir_all(far.in_pool("two")).unwrap();
    std::fs::write(far.image("two"), "somebody's").unwrap();
    std::fs::create_dir_all(far.in_pool("one")).unwrap();
    std::fs::write(far.in_pool("one/domain.xml"), "somebody's").unwrap();
    let check = |edits: &[(&str, &str)], code: i32, words: &[&str]| {
        let plan = far.plan("obstacles", edits);
        for command in [&["plan", "check", &plan][..], &["migrate", &plan]] {
            let output = far.stage.run(command);
            let is_unreachable = code == 5 && command[0] == "migrate";
            assert_eq!(output.code, Some(if is_unreachable { 5 } else { 3 }), "{command:?}: {}", output.err);
            for word in words {
                assert!(output.err.contains(word), "{command:?}: '{word}' is not in {}", output.err);
            }
        }
    };
    let thin = "overcommit: true";
    check(
        &[(thin, "overcommit: false")],
        3,
        &[
            "agent://site-b/vms/two/two-0.raw already holds 10 B that this plan did not write",
            "site-b/vms/one holds a machine that this plan did not make",
            "pool vms has",
        ],
    );
    check(&[("folder: vms", "folder: nvme/prod")], 3, &["no pool 'nvme'", "it has: vms"]);
    check(&[("convert: never", "convert: never\nstart: true")], 3, &["starts no machines", "--allow-start"]);
    check(
        &[("convert: never", "convert: always")],
        3,
        &["needs conversion: the agent of site-b converts no guests"],
    );
    check(&[("overcommit: true", "overcommit: true\n  format: qcow2")], 3, &["writes raw images"]);
    let unknown = far.stage.run(&["plan", "check", &far.plan("unknown", &[("via: site-b", "via: site-c")])]);
    assert!(
        unknown.err.contains("no site 'site-c'") && unknown.err.contains("drover agent pair"),
        "{}",
        unknown.err
    );
    succeeds(&far.there.run(&["agent", "revoke", "site-a"]).unwrap());
    check(&[], 5, &["revoked"]);
    far.kill_agent();
    let plan = far.plan("obstacles", &[]);
    let output = far.stage.run(&["plan", "check", &plan]);
    assert!(output.err.contains("whether the agent runs there"), "{}", output.err);
    assert_eq!(far.stage.source_state(), before);
    assert_eq!(std::fs::read_to_string(far.image("two")).unwrap(), "somebody's");
    assert_eq!(std::fs::read_dir(far.in_pool("")).unwrap().count(), 2, "nothing was made");
}

#[test]
fn what_the_host_there_lacks_is_told_once_for_all_vms_and_nothing_is_made() {
    let Some(mut far) = Far::new(71, &["--allow-start"], |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        ["one", "two", "three", "four"].map(|name| vm(name, &[&a])).to_vec()
    }) else {
        return;
    };
    let before = far.stage.source_state();
    far.kill_agent();
    far.path = Some(far.stage.path("none").display().to_string());
    far.start_agent();
    let start = ("convert: never", "convert: never\nstart: true");
    let plan = far.plan("bare", &[("\"*\": user", "\"*\": no-such-br"), start]);
    for command in [&["plan", "check", &plan][..], &["migrate", &plan]] {
        let output = far.stage.run(command);
        assert_eq!(output.code, Some(3), "{}{}", output.out, output.err);
        for words in [
            "host of site-b: there is no bridge no-such-br (for four, one, three and 1 more)",
            "host of site-b: qemu-system-x86_64 is not installed, and the plan starts the guest (for four,",
        ] {
            assert_eq!(output.err.matches(words).count(), 1, "{command:?}: {words} in {}", output.err);
        }
    }
    let unstarted = far.stage.run(&["plan", "check", &far.plan("unstarted", &[])]);
    succeeds(&unstarted);
    assert_eq!(far.stage.source_state(), before);
    assert_eq!(std::fs::read_dir(far.in_pool("")).unwrap().count(), 0, "nothing was made");
}

#[test]
fn drover_killed_in_mid_copy_goes_on_where_it_stopped() {
    let Some(far) = Far::new(62, &[], |folder| {
        let a = disk_file(folder, "a", 256 * MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    let plan = far.plan("far", &[SLOWLY]);
    let mut started = far.start(&["migrate", &plan]);
    far.wait_for_records(&mut started.0);
    started.kill();
    let recorded = far.recorded();
    // Somebody writes to the image at the site meanwhile: it is refused as it is, and gone on with as it was.
    let whole = std::fs::read(far.image("one")).unwrap();
    let others = vec![0xee; whole.len()];
    std::fs::write(far.image("one"), &others).unwrap();
    let refused = far.stage.run(&["resume", "far"]);
    assert!(
        refused.code != Some(0) && refused.err.contains("was changed since its journal was made"),
        "{}",
        refused.err
    );
    assert!(std::fs::read(far.image("one")).unwrap() == others, "it was written over");
    std::fs::write(far.image("one"), whole).unwrap();
    let output = far.stage.run(&["resume", "far"]);
    succeeds(&output);
    assert!(same_bytes(&far.image("one"), &far.stage.path("a")));
    let disk = far.stage.report("far")["vms"][0]["disks"][0].clone();
    assert_eq!(disk["equal"], true);
    assert!(disk["details"]["resumed_bytes"].as_u64().unwrap() >= recorded * 65536, "{disk:#}");
    assert_eq!(far.stage.sim.vm("one").unwrap()["snapshots"].as_array().map_or(0, Vec::len), 0);
}

#[test]
fn what_somebody_put_in_an_images_place_there_is_neither_gone_on_with_nor_removed() {
    let Some(far) = Far::new(70, &[], |folder| {
        let a = disk_file(folder, "a", 256 * MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    let mut started = far.start(&["migrate", &far.plan("far", &[SLOWLY])]);
    far.wait_for_records(&mut started.0);
    started.kill();
    let (other, own) = (far.in_pool("other"), far.in_pool("own"));
    std::fs::write(&other, b"somebody's work").unwrap();
    std::fs::rename(far.image("one"), &own).unwrap();
    std::fs::rename(&other, far.image("one")).unwrap();
    let refused = far.stage.run(&["resume", "far"]);
    assert!(refused.code == Some(3) && refused.err.contains("did not write"), "{}", refused.err);
    let cancelled = far.stage.run(&["cancel", "far"]);
    assert!(cancelled.code != Some(0) && cancelled.err.contains("stays"), "{}", cancelled.err);
    assert_eq!(std::fs::read(far.image("one")).unwrap(), b"somebody's work");
    // The plan's own file again, with something else in it.
    let length = std::fs::metadata(&own).unwrap().len() as usize;
    std::fs::write(&own, vec![0xee; length]).unwrap();
    std::fs::rename(&own, far.image("one")).unwrap();
    let cancelled = far.stage.run(&["cancel", "far"]);
    assert!(cancelled.code != Some(0) && cancelled.err.contains("stays"), "{}", cancelled.err);
    assert_eq!(std::fs::read(far.image("one")).unwrap(), vec![0xee; length]);
    std::fs::remove_file(far.image("one")).unwrap();
    succeeds(&far.stage.run(&["cancel", "far"]));
    assert_eq!(far.recorded(), 0, "its journal went with the last");
}

#[test]
fn an_agent_killed_in_mid_plan_and_started_again_costs_nothing() {
    let Some(mut far) = Far::new(63, &[], |folder| {
        let a = disk_file(folder, "a", 256 * MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    let plan = far.plan("far", &[SLOWLY]);
    let mut started = far.start(&["migrate", &plan]);
    far.wait_for_records(&mut started.0);
    far.kill_agent();
    far.start_agent();
    let before = far.recorded();
    wait_until("the copy goes on", PATIENCE, || {
        far.recorded() > before || started.0.try_wait().unwrap().is_some()
    });
    far.kill_agent();
    far.start_agent();
    assert!(started.0.wait().unwrap().success(), "{:#}", far.stage.report("far"));
    assert!(same_bytes(&far.image("one"), &far.stage.path("a")));
    let disk = far.stage.report("far")["vms"][0]["disks"][0].clone();
    assert!(disk["equal"] == true && disk["link"]["reopened"].as_u64().unwrap() >= 1, "{disk:#}");
}

#[test]
fn cancelling_removes_what_was_made_there_and_only_that() {
    let Some(far) = Far::new(64, &[], |folder| {
        let (a, b) = (disk_file(folder, "a", 256 * MIB), disk_file(folder, "b", 2 * MIB));
        vec![with(vm("one", &[&a]), json!({"power": "on"})), vm("two", &[&b])]
    }) else {
        return;
    };
    std::fs::create_dir_all(far.in_pool("one")).unwrap();
    std::fs::write(far.in_pool("one/notes"), "somebody's").unwrap();
    std::fs::write(far.in_pool("other.raw"), "somebody's").unwrap();
    let plan = far.plan("far", &[SLOWLY]);
    let mut started = far.start(&["migrate", &plan]);
    far.wait_for_records(&mut started.0);
    // Records may be of the other, which was off before: a guest that is still on its way down would end it after all.
    let is_off = || far.stage.sim.vm("one").unwrap()["power"] == "poweredOff";
    wait_until("the guest is off", PATIENCE, is_off);
    // Killed between its last block and that word, the image is nobody's by its journal, and stays.
    let is_done = |vm: &Value| vm["name"] == "two" && vm["state"] == "done";
    let two_is_done = || far.stage.report("far")["vms"].as_array().unwrap().iter().any(is_done);
    wait_until("the small one is there", PATIENCE, two_is_done);
    // So is an image of which no block is recorded.
    let blocks_of_two = 2 * MIB / drover_types::BLOCK_BYTES;
    wait_until("blocks of the large one are recorded", PATIENCE, || far.recorded() > blocks_of_two);
    started.kill();
    succeeds(&far.stage.run(&["cancel", "far"]));
    let in_one: Vec<_> =
        std::fs::read_dir(far.in_pool("one")).unwrap().map(|it| it.unwrap().file_name()).collect();
    assert_eq!(in_one, ["notes"]);
    assert!(far.in_pool("two").exists(), "what has arrived stays");
    assert!(far.in_pool("other.raw").exists());
    assert_eq!(far.stage.sim.vm("one").unwrap()["power"], "poweredOn", "it was switched on again");
    assert_eq!(far.stage.sim.vm("one").unwrap()["snapshots"].as_array().map_or(0, Vec::len), 0);
}

#[test]
fn ctrl_c_ends_cleanly_also_while_the_link_is_down_and_resume_finishes() {
    let Some(mut far) = Far::new(65, &[], |folder| {
        let a = disk_file(folder, "a", 256 * MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    // It is stopped twice before it is over.
    let plan = far.plan("far", &[("via: site-b\n", "via: site-b\n  rate_limit: [12MiB]\n")]);
    let run = |far: &Far| far.start(&["migrate", &plan]);
    let mut started = run(&far);
    far.wait_for_records(&mut started.0);
    kill_process(Pid::from_child(&started.0), Signal::INT).unwrap();
    assert_eq!(started.0.wait().unwrap().code(), Some(130));
    let mut started = run(&far);
    let before = far.recorded();
    wait_until("the copy goes on", PATIENCE, || far.recorded() > before);
    far.kill_agent();
    kill_process(Pid::from_child(&started.0), Signal::INT).unwrap();
    wait_until("it ends although nobody answers", PATIENCE, || started.0.try_wait().unwrap().is_some());
    assert_eq!(started.0.wait().unwrap().code(), Some(130), "{:#}", far.stage.report("far"));
    far.start_agent();
    succeeds(&far.stage.run(&["resume", "far"]));
    assert!(same_bytes(&far.image("one"), &far.stage.path("a")));
}

fn has_qemu() -> bool {
    let found = Command::new("qemu-system-x86_64").arg("--version").output().is_ok();
    if !found {
        println!("skipped: qemu-system-x86_64 is not installed");
    }
    found
}

#[test]
fn machines_are_started_there_where_the_agent_may() {
    let Some(far) = has_qemu()
        .then(|| {
            Far::new(66, &["--allow-start"], |folder| {
                let a = disk_file(folder, "a", 4 * MIB);
                vec![with(vm("one", &[&a]), json!({"power": "on"}))]
            })
        })
        .flatten()
    else {
        return;
    };
    let plan = far.plan("far", &[("convert: never", "convert: never\nstart: true")]);
    succeeds(&far.stage.run(&["migrate", &plan]));
    let pid = std::fs::read_to_string(far.in_pool("one/qemu.pid")).unwrap();
    assert!(Path::new(&format!("/proc/{}", pid.trim())).exists());
    assert_eq!(far.stage.sim.vm("one").unwrap()["power"], "poweredOff");
    let started = far.stage.report("far")["vms"][0]["started"].as_str().unwrap().to_string();
    assert!(started.contains("started at site-b: process"), "{started}");
    // Another plan does not take it over while it is there.
    let again = far.stage.run(&["migrate", &far.plan("again", &[])]);
    assert_eq!(again.code, Some(3), "{}", again.err);
    assert!(again.err.contains("did not"), "{}", again.err);
}

#[test]
fn a_source_is_switched_on_again_though_the_site_is_away_as_long_as_nothing_was_defined_there() {
    let Some(mut far) = Far::new(67, &[], |folder| {
        let a = disk_file(folder, "a", 256 * MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"}))]
    }) else {
        return;
    };
    let plan = far.plan("far", &[SLOWLY]);
    let mut started = far.start(&["migrate", &plan]);
    far.wait_for_records(&mut started.0);
    far.kill_agent();
    kill_process(Pid::from_child(&started.0), Signal::INT).unwrap();
    wait_until("it ends", PATIENCE, || started.0.try_wait().unwrap().is_some());
    let power = |far: &Far| far.stage.sim.vm("one").unwrap()["power"].clone();
    assert_eq!(power(&far), "poweredOn", "{:#}", far.stage.report("far"));
    let cancelled = far.stage.run(&["cancel", "far"]);
    assert_eq!(cancelled.code, Some(6), "{}", cancelled.err);
    assert!(cancelled.err.contains("left behind: one: agent of site-b"), "{}", cancelled.err);
    far.start_agent();
    succeeds(&far.stage.run(&["cancel", "far"]));
    assert!(!far.in_pool("one").exists());
    assert_eq!(power(&far), "poweredOn");
}

#[test]
fn warm_passes_go_over_the_link_and_bring_what_the_guest_wrote_last() {
    let Some(far) = Far::new(68, &[], |folder| {
        let a = disk_file(folder, "a", 24 * MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"}))]
    }) else {
        return;
    };
    let warm = "mode: warm\nwarm: {interval: 1s, cutover: auto, downtime_max: 10m}";
    let plan = far.plan("far", &[("mode: cold", warm)]);
    far.stage.sim.post("/writer", json!({"vm": "one", "disk": 0, "bytes_per_s": 200_000})).unwrap();
    succeeds(&far.stage.run(&["migrate", &plan]));
    let disks = far.stage.sim.get("/disks?vm=one").unwrap()[0]["disks"].as_array().unwrap().clone();
    let live = PathBuf::from(disks[0]["live"].as_str().unwrap());
    assert!(same_bytes(&far.image("one"), &live));
    let vm = far.stage.report("far")["vms"][0].clone();
    assert!(vm["warm"]["passes"].as_array().unwrap().len() >= 3, "{vm:#}");
    assert_eq!(vm["disks"][0]["equal"], true);
    // The first pass sent the disk's data, the others what had changed.
    let sent = vm["disks"][0]["link"]["sent"].as_u64().unwrap();
    let passes = vm["warm"]["passes"].as_array().unwrap();
    let read: u64 = passes.iter().map(|pass| pass["read_bytes"].as_u64().unwrap()).sum();
    assert!(sent >= 17 * MIB && sent < read, "{sent} sent: {vm:#}");
}

#[test]
fn a_link_that_stands_still_for_a_while_holds_the_plan_up_and_no_more() {
    let Some(far) = Far::new(69, &[], |folder| {
        let a = disk_file(folder, "a", 192 * MIB);
        vec![vm("one", &[&a])]
    }) else {
        return;
    };
    let plan = far.plan("far", &[SLOWLY]);
    let mut started = far.start(&["migrate", &plan]);
    far.wait_for_records(&mut started.0);
    let agent = far.agent.as_ref().unwrap();
    freeze(agent);
    std::thread::sleep(Duration::from_secs(3));
    thaw(agent);
    assert!(started.0.wait().unwrap().success(), "{:#}", far.stage.report("far"));
    assert!(same_bytes(&far.image("one"), &far.stage.path("a")));
}

/// A Debian that knows only VMware's controllers, and an agent whose host has a converter.
struct Converting {
    far: Far,
    tools: PathBuf,
}

impl Converting {
    fn new(number: u8) -> Option<Converting> {
        let far = Far::new(number, &["--allow-start"], |folder| {
            vec![with(vm("one", &[&debian(folder, "one", &[])]), json!({"nics": []}))]
        })?;
        let tools = far.stage.path("tools");
        Some(Converting { far, tools })
    }

    /// The agent's host gets a converter that does this at its end.
    fn put(&mut self, then: &str) {
        put_marking_converter(&self.tools, then);
        self.serve();
    }

    /// The agent finds what is there.
    fn serve(&mut self) {
        self.far.kill_agent();
        self.far.path = Some(format!("{}:{}", self.tools.display(), std::env::var("PATH").unwrap()));
        self.far.start_agent();
    }

    fn plan(&self, name: &str, convert: &str) -> String {
        self.far.plan(name, &[("convert: never", convert)])
    }

    fn runs(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.tools.join("runs")).unwrap_or_default();
        text.lines().map(String::from).collect()
    }

    fn source(&self) -> Vec<u8> {
        std::fs::read(self.far.stage.path("one")).unwrap()
    }

    fn image(&self) -> Vec<u8> {
        std::fs::read(self.far.image("one")).unwrap()
    }
}

#[test]
fn a_guest_is_converted_at_the_other_site_once() {
    let Some(mut scene) = Converting::new(180) else { return };
    let always = scene.plan("always", "convert: always");
    let refused = scene.far.stage.run(&["plan", "check", &always]);
    assert_eq!(refused.code, Some(3), "{}", refused.err);
    assert!(
        refused.err.contains("one needs conversion: the agent of site-b converts no guests"),
        "{}",
        refused.err
    );
    let refused = scene.far.stage.run(&["migrate", &always]);
    assert_eq!(refused.code, Some(3), "{}", refused.err);
    assert!(!scene.far.in_pool("one").exists(), "nothing is made");

    // One is there, and its appliance does not come up.
    put_converter_tried(&scene.tools, "echo 'libguestfs: error: no kernel' >&2; exit 1", "");
    scene.serve();
    for command in [&["plan", "check"][..], &["migrate"]] {
        let refused = scene.far.stage.run(&[command, &[always.as_str()]].concat());
        let told = refused.err.contains("host of site-b: ") && refused.err.contains("no kernel");
        assert!(refused.code == Some(3) && told, "{}", refused.err);
    }
    assert!(!scene.far.in_pool("one").exists(), "nothing is made");

    scene.put("");
    succeeds(&scene.far.stage.run(&["plan", "check", &always]));
    assert!(scene.runs().is_empty(), "a check converts nothing");
    let plan = scene.plan("auto", "convert: auto");
    succeeds(&scene.far.stage.run(&["migrate", &plan]));
    assert!(scene.image() == marked(scene.source()), "the converter wrote to the copy, and to nothing else");
    let report = scene.far.stage.report(&plan).to_string();
    assert!(report.contains("converted; log in site-b:/"), "{report}");
    succeeds(&scene.far.stage.run(&["migrate", &plan]));
    assert_eq!(scene.runs().len(), 1);
}

#[test]
fn a_conversion_that_only_a_look_inside_asks_for_is_refused_where_the_other_site_cannot_do_it() {
    if drover_qemu::can_convert().is_ok() {
        println!("skipped: this machine has a converter outside of PATH");
        return;
    }
    let Some(mut scene) = Converting::new(188) else { return };
    let plan = scene.plan("auto", "convert: auto");
    let look = ["plan", "check", &plan, "--inspect"];
    let needs = "one: needs conversion (its /boot/initrd.img-6.1.0 has no driver virtio_blk): ";
    let refuses = |scene: &Converting, why: &str| {
        let refused = scene.far.stage.run(&look);
        let told = refused.err.contains(&format!("{needs}{why}"));
        assert!(refused.code == Some(7) && told, "'{why}' in {}", refused.err);
    };
    succeeds(&scene.far.stage.run(&["plan", "check", &plan]));
    refuses(&scene, "the agent of site-b converts no guests");
    put_converter_tried(&scene.tools, "echo 'libguestfs: error: no kernel' >&2; exit 1", "");
    scene.serve();
    refuses(&scene, "host of site-b: the appliance of virt-v2v-in-place");
    scene.put("");
    succeeds(&scene.far.stage.run(&look));
    assert!(scene.runs().is_empty(), "a check converts nothing");
}

#[test]
fn a_uefi_guest_gets_its_fallback_loader_from_the_converter_of_the_other_site() {
    let mut esp = None;
    let far = Far::new(199, &["--allow-start"], |folder| {
        let made = uefi_debian(folder, "one");
        let vms =
            made.iter().map(|(disk, _)| with(vm("one", &[disk]), json!({"nics": [], "firmware": "efi"})));
        let vms = vms.collect();
        esp = made.map(|(_, esp)| esp);
        vms
    });
    let (Some(far), Some(esp)) = (far, esp) else { return };
    let tools = far.stage.path("tools");
    let mut scene = Converting { far, tools };
    put_converter(&scene.tools, &puts_loader(&esp));
    scene.serve();
    let plan = scene.plan("loader", "convert: auto");
    succeeds(&scene.far.stage.run(&["migrate", &plan]));
    assert!(scene.image()[MIB as usize..][..8 * MIB as usize] == std::fs::read(&esp).unwrap());
    let report = scene.far.stage.report(&plan).to_string();
    assert!(
        report.contains("converted; log in site-b:/") && report.contains("; its firmware finds "),
        "{report}"
    );
}

#[test]
fn files_for_the_first_boot_go_to_the_converter_of_the_other_site() {
    let Some(mut scene) = Converting::new(182) else { return };
    let work =
        ("- name: \"one\"", "- name: \"one\"\n    first_boot: {scripts: [first.sh], guest_agent: agent.deb}");
    let plan = scene.far.plan("first", &[("convert: never", "convert: auto"), work]);
    put_marking_converter(&scene.tools, "");
    scene.serve();
    let refuses = |scene: &Converting, words: &str| {
        let refused = scene.far.stage.run(&["plan", "check", &plan]);
        assert!(refused.code == Some(3) && refused.err.contains(words), "'{words}' in {}", refused.err);
    };
    refuses(&scene, "first.sh is for the first boot, and cannot be read");
    std::fs::write(scene.far.stage.path("first.sh"), "#!/bin/sh\n").unwrap();
    let package: Vec<u8> = (0..3 * MIB).map(|at| (at >> 12) as u8).collect();
    std::fs::write(scene.far.stage.path("agent.deb"), &package).unwrap();
    refuses(&scene, "the converter of site-b puts no files into guests");

    let keeps = "[ \"$1\" != --help ] || { echo --write; exit; }\nkept=$(dirname \"$0\")\n[ \"$3\" ] || exit 0\n\
                 while [ \"$1\" ]; do case \"$1\" in --firstboot) cp \"$2\" \"$kept\";; --upload) cp \"${2%%:*}\" \"$kept\";; esac; shift; done";
    put_converter(&scene.tools, &format!("{keeps}\n{HAS_DRIVERS}"));
    scene.serve();
    succeeds(&scene.far.stage.run(&["migrate", &plan]));
    assert_eq!(std::fs::read_to_string(scene.tools.join("first.sh")).unwrap(), "#!/bin/sh\n");
    assert!(std::fs::read(scene.tools.join("agent.deb")).unwrap() == package);
    assert!(!scene.far.in_pool("one/.drover-first-boot").exists(), "they are gone with the order");
    let report = scene.far.stage.report(&plan).to_string();
    assert!(report.contains("for its first boot: "), "{report}");
}

#[test]
fn a_conversion_at_the_other_site_ends_with_its_run_and_is_done_by_the_next() {
    let Some(mut scene) = Converting::new(181) else { return };
    scene.put(": >begun\nexec sleep 600");
    let begun = scene.tools.join("begun");
    let plan = scene.plan("cut", "convert: auto");
    let source = scene.source();
    let ended = |scene: &Converting, runs: usize| {
        let runs = scene.runs()[..runs].to_vec();
        let is_there = |process: &String| Path::new("/proc").join(process).exists();
        wait_until("the converter ends", PATIENCE, || !runs.iter().any(is_there));
        assert!(scene.image() == source, "the image is not converted in part");
    };
    let converting = || {
        wait_until("the conversion", PATIENCE, || begun.exists());
        std::fs::remove_file(&begun).unwrap();
    };
    // Killed: the agent ends what nobody waits for when the next one comes.
    let mut running = scene.far.start(&["migrate", &plan]);
    converting();
    running.kill();
    let mut running = scene.far.start(&["resume", "cut"]);
    converting();
    ended(&scene, 1);
    // Stopped in order.
    let pid = Pid::from_raw(i32::try_from(running.0.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(running.0.wait().unwrap().code(), Some(130), "interrupted");
    ended(&scene, 2);
    // The agent is killed, and its converter with it; another goes on.
    let mut running = scene.far.start(&["resume", "cut"]);
    converting();
    scene.far.kill_agent();
    ended(&scene, 3);
    scene.put("");
    let status = running.0.wait().unwrap();
    assert!(status.success(), "{status}");
    assert!(scene.image() == marked(scene.source()));
    assert_eq!(scene.runs().len(), 4);
}
