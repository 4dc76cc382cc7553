//! Rehearsals of real guests: what they prove, and that nothing of them is left, least of all in the images.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use drover_lab::{Guests, lab_folder};
use drover_qemu::{VmFolder, find_running};
use drover_stage::daemon::Daemon;
use drover_stage::debian::{HAS_DRIVERS, debian, put_converter, put_marking_converter};
use drover_stage::far::Far;
use drover_stage::moves::run;
use drover_stage::process::{PATIENCE, wait_until};
use drover_stage::{MIB, Stage, disk_file, vm, with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

/// A guest under emulation, on a machine that is busy.
const BOOT: &str = "300s";

/// A stage with a guest that boots and proves its data, moved and not started.
fn moved(number: u8, checks: &str) -> Option<(Stage, String)> {
    let Ok(guests) = Guests::load(&lab_folder().join("guests")) else {
        println!("skipped: the test guests are not built (`make lab`)");
        return None;
    };
    let guest = guests.get("web01").unwrap();
    let disk = guests.folder.join(&guest.disks[0].file);
    let stage = Stage::new(number, |_| {
        vec![with(vm("web01", &[&disk]), json!({"cpus": guest.cpus, "memory_mib": guest.memory_mib}))]
    })?;
    let plan = stage
        .plan("rehearsed", &[("mode: cold", &format!("mode: cold\nchecks: {{post_start: [{checks}]}}"))]);
    stage.migrate(&plan);
    Some((stage, plan))
}

/// All bytes of the image.
fn bytes(stage: &Stage) -> Vec<u8> {
    std::fs::read(stage.image("web01", 0)).unwrap()
}

fn overlays(stage: &Stage) -> PathBuf {
    stage.vms().join("web01/.drover-rehearsal")
}

fn assert_nothing_is_left(stage: &Stage, before: &[u8]) {
    assert!(!overlays(stage).exists(), "overlays are left");
    assert!(find_running(&VmFolder::new(overlays(stage))).unwrap().is_none(), "its machine runs");
    assert!(bytes(stage) == before, "the image was written to");
}

#[test]
fn a_copy_is_booted_and_proves_its_data_and_its_image_stays_as_it_is() {
    let checks = format!(
        "{{serial: 'DROVER-GUEST name=web01', within: {BOOT}}}, {{serial: 'DROVER-DONE', within: {BOOT}}}, {{command: [/bin/false]}}"
    );
    let Some((stage, plan)) = moved(94, &checks) else { return };
    let before = bytes(&stage);
    let done = stage.run(&["rehearse", &plan, "--json"]);
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    let events: Vec<serde_json::Value> =
        done.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = events.last().unwrap();
    assert_eq!((last["event"].as_str(), last["result"].as_str()), (Some("rehearsal_ended"), Some("passed")));
    let passed: Vec<&serde_json::Value> =
        last["checks"].as_array().unwrap().iter().map(|it| &it["passed"]).collect();
    assert_eq!(passed, [&json!(true), &json!(true), &json!(null)], "a program is not asked: {last}");
    assert_nothing_is_left(&stage, &before);
    // It was the guest's own data that it proved, and the guest wrote while it did.
    assert!(
        events.iter().any(|event| event["message"].as_str().is_some_and(|it| it.contains("DROVER-GUEST")))
    );
    let report = stage.report(&plan);
    let rows = report["vms"][0]["rehearsals"].as_array().unwrap();
    assert_eq!((rows.len(), &rows[0]["result"]), (1, &json!("passed")));
    let words = stage.run(&["report", &plan]).out;
    assert!(words.contains("REHEARSED") && words.contains("serial line 'DROVER-DONE' passed"), "{words}");
    let page = stage.path("report.html").display().to_string();
    assert_eq!(stage.run(&["report", &plan, "--html", &page]).code, Some(0));
    assert!(std::fs::read_to_string(page).unwrap().contains("Rehearsals"));
}

#[test]
fn a_guest_that_does_not_say_what_it_must_fails_its_rehearsal() {
    let Some((stage, plan)) = moved(95, "{serial: 'never said', within: 2s, every: 200ms}") else { return };
    let before = bytes(&stage);
    let failed = stage.run(&["rehearse", &plan, "--vm", "web01"]);
    assert_eq!(failed.code, Some(16), "{}{}", failed.out, failed.err);
    assert!(failed.err.contains("serial line 'never said' FAILED"), "{}", failed.err);
    assert_nothing_is_left(&stage, &before);
    // The checks of a file that was edited since are asked, without a run in between.
    let text = std::fs::read_to_string(&plan)
        .unwrap()
        .replace("never said", "")
        .replace("serial: ''", "command: [/bin/false]");
    std::fs::write(&plan, text).unwrap();
    let ran = stage.run(&["rehearse", &plan, "--for", "2"]);
    assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("ran, and nothing was asked"), "{}", ran.err);
    let unknown = stage.run(&["rehearse", &plan, "--vm", "web99"]);
    assert_eq!(unknown.code, Some(2), "{}", unknown.err);
    assert_nothing_is_left(&stage, &before);
}

#[test]
fn a_daemon_goes_on_while_its_plan_is_rehearsed_and_cleaned() {
    let Some((stage, plan)) = moved(217, "{command: [/bin/true]}") else { return };
    let before = bytes(&stage);
    let daemon = Daemon::start(&stage.drover);
    for (command, told) in
        [(&["rehearse", &plan, "--for", "1"][..], "web01"), (&["clean", "rehearsed"], "1 VM looked at")]
    {
        let done = stage.run(command);
        assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
        assert!(done.out.contains(told) || done.err.contains(told), "{}{}", done.out, done.err);
        let refused = daemon.run(command);
        assert_eq!(refused.code, Some(2), "{}", refused.err);
        assert!(refused.err.contains("run it on the daemon's machine without --server"), "{}", refused.err);
    }
    assert_nothing_is_left(&stage, &before);
    assert!(daemon.text("/metrics").contains("drover_"), "the daemon answers");
    daemon.stop();
}

#[test]
fn a_rehearsal_that_is_killed_leaves_no_machine_and_no_overlay() {
    let Some((stage, plan)) = moved(96, &format!("{{serial: 'never said', within: {BOOT}}}")) else { return };
    let before = bytes(&stage);
    let started = stage.drover.start(&["rehearse", &plan]).unwrap();
    let inner = VmFolder::new(overlays(&stage));
    wait_until("its machine runs", PATIENCE, || find_running(&inner).unwrap().is_some());
    started.kill().unwrap();
    wait_until("its machine is ended with it", PATIENCE, || find_running(&inner).unwrap().is_none());
    wait_until("its overlays are removed", PATIENCE, || !overlays(&stage).exists());
    assert!(bytes(&stage) == before, "the image was written to");
    let report = stage.report(&plan);
    assert_eq!(report["vms"][0]["rehearsals"][0]["result"], json!(null), "it is not called a success");
    // What is left where the guard was killed too is removed by the next run.
    std::fs::create_dir_all(overlays(&stage)).unwrap();
    std::fs::write(overlays(&stage).join("disk0.qcow2"), "left").unwrap();
    let text = std::fs::read_to_string(&plan).unwrap().replace(BOOT, "1s");
    std::fs::write(&plan, text).unwrap();
    let again = stage.run(&["rehearse", &plan, "--vm", "web01", "--quiet"]);
    assert_eq!(again.code, Some(16), "{}", again.err);
    assert_nothing_is_left(&stage, &before);
}

#[test]
fn a_replica_is_converted_on_its_overlays_and_stays_as_it_is() {
    let Ok(guests) = Guests::load(&lab_folder().join("guests")) else {
        println!("skipped: the test guests are not built (`make lab`)");
        return;
    };
    let guest = guests.get("web01").unwrap();
    let disk = guest.disks.iter().map(|disk| guests.folder.join(&disk.file)).next().unwrap();
    let Some(stage) = Stage::new(163, |_| {
        let told = json!({"cpus": guest.cpus, "memory_mib": guest.memory_mib, "power": "on"});
        vec![with(vm("web01", &[&disk]), told)]
    }) else {
        return;
    };
    let checks = format!("checks: {{post_start: [{{serial: 'DROVER-DONE', within: {BOOT}}}]}}");
    let warm = format!("mode: warm\nwarm: {{interval: 1h, cutover: manual}}\n{checks}");
    let plan = stage.plan("replica", &[("mode: cold", warm.as_str()), ("convert: never", "convert: always")]);
    let tools = stage.path("tools");
    let reads = "sed -n \"s/.*<source file='\\([^']*\\)'.*/\\1/p\" \"$3\" >\"$(dirname \"$0\")/converted\"";
    let path = put_converter(&tools, &format!("[ \"$3\" ] || exit 0\n{reads}\n{HAS_DRIVERS}"));
    let mut command = stage.drover.command(&["migrate", &plan]);
    command.env("PATH", &path).stdout(Stdio::null()).stderr(Stdio::null());
    let mut run = command.spawn().unwrap();
    wait_until("a pass", PATIENCE, || {
        let told = stage.run(&["report", &plan, "--json"]).json().unwrap_or_default();
        let passes = told["vms"][0]["warm"]["passes"].as_array().cloned().unwrap_or_default();
        passes.iter().any(|pass| pass["state"] == "complete")
    });
    kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(130));
    let before = bytes(&stage);
    let rehearsed = stage.drover.command(&["rehearse", &plan]).env("PATH", &path).output().unwrap();
    let words = String::from_utf8_lossy(&rehearsed.stderr);
    assert!(rehearsed.status.success() && words.contains("converted, on the overlays"), "{words}");
    let converted = std::fs::read_to_string(tools.join("converted")).unwrap();
    assert!(converted.starts_with(overlays(&stage).to_str().unwrap()), "{converted}");
    assert_nothing_is_left(&stage, &before);

    // A conversion that fails fails its rehearsal, and nothing else.
    put_converter(
        &tools,
        "[ \"$3\" ] || exit 0\necho 'virt-v2v-in-place: error: no boot loader was found'\nexit 1",
    );
    let failed = stage.drover.command(&["rehearse", &plan]).env("PATH", &path).output().unwrap();
    let words = String::from_utf8_lossy(&failed.stderr);
    assert!(!failed.status.success() && words.contains("no boot loader was found"), "{words}");
    assert_nothing_is_left(&stage, &before);
}

/// All files below a folder.
fn files_in(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|it| it.unwrap().path()) {
        match entry.is_dir() {
            true => files.extend(files_in(&entry)),
            false => drop(files.insert(entry.clone(), std::fs::read(&entry).unwrap())),
        }
    }
    files
}

#[test]
fn a_replica_at_another_site_is_rehearsed_here_and_nothing_is_written_there() {
    let Some(mut far) = Far::new(231, &[], |folder| {
        vec![with(vm("one", &[&debian(folder, "one", &[])]), json!({"power": "on", "nics": []}))]
    }) else {
        return;
    };
    let (tools, temporary) = (far.stage.path("tools"), far.stage.path("temporary"));
    std::fs::create_dir(&temporary).unwrap();
    // Whoever gets at what is below the overlays cannot write there either.
    let writes_below = "below=$(qemu-img info -U --backing-chain \"$file\" | sed -n 's/^image: \\(nbd.*\\)/\\1/p')\n\
                        qemu-io -f raw -c 'write -q -P 1 0 512' \"$below\" >refused 2>&1 && exit 1";
    put_marking_converter(&tools, writes_below);
    let path = format!("{}:{}", tools.display(), std::env::var("PATH").unwrap());
    let command = |far: &Far, args: &[&str]| {
        let mut command = far.stage.drover.command(args);
        command.env("PATH", &path).env("TMPDIR", &temporary);
        command
    };
    let start = |far: &Far, args: &[&str]| {
        command(far, args).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    // The run is stopped between two passes.
    let warm = "mode: warm\nwarm: {interval: 1h, cutover: manual}\nlimits: {retry_for: 2s}";
    let plan = far.plan("far", &[("mode: cold", warm), ("convert: never", "convert: auto")]);
    let replicates = start(&far, &["migrate", &plan]);
    wait_until("a pass", PATIENCE, || {
        let told = far.stage.run(&["report", &plan, "--json"]).json().unwrap_or_default();
        let passes = told["vms"][0]["warm"]["passes"].as_array().cloned().unwrap_or_default();
        passes.iter().any(|pass| pass["state"] == "complete")
    });
    kill_process(Pid::from_child(&replicates), Signal::INT).unwrap();
    assert_eq!(replicates.wait_with_output().unwrap().status.code(), Some(130));

    let before = files_in(&far.in_pool(""));
    assert!(before.contains_key(&far.image("one")));
    let overlays = far.stage.path("state/rehearsals/far/one/.drover-rehearsal");
    let machine = VmFolder::new(&overlays);
    let runs = || find_running(&machine).unwrap().is_some();
    let has_socket = || std::fs::read_dir(&temporary).unwrap().count() > 0;
    let nothing_is_left = |far: &Far| {
        assert!(!overlays.exists() && !runs() && !has_socket(), "its machine, overlays or socket are left");
        assert!(files_in(&far.in_pool("")) == before, "something was written there");
    };
    let done = run(command(&far, &["rehearse", &plan, "--for", "1"]));
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    assert!(done.err.contains("converted, on the overlays"), "{}", done.err);
    let refused = std::fs::read_to_string(tools.join("refused")).unwrap();
    assert!(refused.contains("Permission denied"), "{refused}");
    nothing_is_left(&far);

    let checks = format!("checks: {{post_start: [{{serial: 'never said', within: {BOOT}}}]}}");
    let text = std::fs::read_to_string(&plan).unwrap();
    std::fs::write(&plan, text.replace("mode: warm", &format!("{checks}\nmode: warm"))).unwrap();
    let mut killed = start(&far, &["rehearse", &plan]);
    wait_until("its machine runs and has its disks", PATIENCE, || runs() && !has_socket());
    killed.kill().unwrap();
    killed.wait().unwrap();
    wait_until("its machine is ended with it", PATIENCE, || !runs());
    wait_until("its overlays are removed", PATIENCE, || !overlays.exists());
    nothing_is_left(&far);

    let lost = start(&far, &["rehearse", &plan]);
    wait_until("its machine runs", PATIENCE, runs);
    far.kill_agent();
    let lost = lost.wait_with_output().unwrap();
    let words = String::from_utf8_lossy(&lost.stderr);
    let why = "its disks at site-b could not be read any more: no connection to its agent for 2 s";
    assert!(lost.status.code() == Some(16) && words.contains(why), "{words}");
    assert!(words.contains("serial line 'never said' not asked"), "{words}");
    nothing_is_left(&far);
    let away = run(command(&far, &["rehearse", &plan]));
    assert!(away.code == Some(3) && away.err.contains("one: not rehearsed: agent of site-b"), "{}", away.err);
    far.start_agent();
    std::fs::create_dir_all(&overlays).unwrap();
    std::fs::write(overlays.join("disk0.qcow2"), "left by a crash").unwrap();
    let cancelled = far.stage.run(&["cancel", "far"]);
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.err);
    assert!(!far.stage.path("state/rehearsals/far").exists() && !far.image("one").exists());
}

#[test]
fn what_has_no_whole_copy_is_not_rehearsed() {
    let Some(stage) = Stage::new(97, |folder| {
        let disk = disk_file(folder, "a", 8 * MIB);
        vec![vm("one", &[&disk])]
    }) else {
        return;
    };
    let plan = stage.plan("half", &[]);
    assert_eq!(stage.run(&["rehearse", &plan]).code, Some(3), "a plan that nobody knows");
    stage.sim.post("/rate", json!({"bytes_per_s": MIB / 2, "per": "host"})).unwrap();
    let started = stage.drover.start(&["migrate", &plan]).unwrap();
    wait_until("the copy begins", PATIENCE, || stage.image("one", 0).exists());
    let busy = stage.run(&["rehearse", &plan]);
    assert_eq!(busy.code, Some(3), "{}", busy.err);
    assert!(busy.err.contains("is being run by another drover"), "{}", busy.err);
    started.kill().unwrap();
    let half = stage.run(&["rehearse", &plan]);
    assert_eq!(half.code, Some(3), "{}", half.err);
    assert!(half.err.contains("its copy is not complete"), "{}", half.err);
}
