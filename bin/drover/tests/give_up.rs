//! Single VMs are given up while their plan goes on: by the command, through a daemon, and when nothing runs.
#![allow(clippy::unwrap_used)]

use drover_stage::daemon::Daemon;
use drover_stage::process::{EndsWithTest, PATIENCE, wait_until};
use drover_stage::{MIB, Stage, disk_file, vm, with};
use serde_json::{Value, json};

/// Two VMs of a slow host, of which one waits for the other, and one of another host.
fn stage(number: u8) -> Option<Stage> {
    let stage = Stage::new(number, |folder| {
        let a = disk_file(folder, "a", 64 * MIB);
        let of = |name: &str, host: &str| with(vm(name, &[&a]), json!({"power": "on", "host": host}));
        vec![of("one", "esx1.lab"), of("two", "esx1.lab"), of("three", "esx2.lab")]
    })?;
    stage.sim.post("/rate", json!({"bytes_per_s": 2 * MIB, "per": "host"})).unwrap();
    Some(stage)
}

const ONE_A_HOST: [(&str, &str); 1] = [("mode: cold", "mode: cold\nlimits: {vms_per_host: 1}")];

fn state_of(status: &Value, vm: &str) -> String {
    let mut vms = status["vms"].as_array().into_iter().flatten();
    let found = vms.find(|it| it["name"] == vm).and_then(|it| it["state"].as_str());
    found.unwrap_or_default().to_string()
}

/// Its source runs without a snapshot, and the target has nothing of it.
fn assert_undone(stage: &Stage, name: &str) {
    let state = stage.source_state();
    let vm = state.as_array().unwrap().iter().find(|vm| vm["name"] == name).unwrap();
    assert_eq!(
        (&vm["power"], vm["snapshots"].as_array().map(Vec::len)),
        (&json!("poweredOn"), Some(0)),
        "{vm}"
    );
    assert!(!stage.image(name, 0).exists(), "the image of {name} is left");
}

#[test]
fn vms_at_work_and_waiting_are_given_up_and_taken_back_and_the_others_arrive() {
    let Some(stage) = stage(208) else { return };
    let plan = stage.plan("given-up", &ONE_A_HOST);
    let mut run = EndsWithTest(stage.drover.start(&["migrate", &plan]).unwrap().child);
    let status = || stage.run(&["status", "given-up", "--json"]).json().unwrap_or_default();
    let is_at_work = |vm: &str| stage.image(vm, 0).exists();
    wait_until("both hosts are read", PATIENCE, || {
        is_at_work("three") && (is_at_work("one") || is_at_work("two"))
    });
    let refused = stage.run(&["cancel", &plan, "one", "tow"]);
    assert!(refused.code == Some(3) && refused.err.contains("has no VM 'tow'"), "{}", refused.err);
    let ordered = stage.run(&["cancel", &plan, "one", "two"]);
    assert_eq!(ordered.code, Some(0), "{}{}", ordered.out, ordered.err);
    assert!(ordered.err.contains("given up by the drover that runs the plan"), "{}", ordered.err);
    let are_out = || ["one", "two"].iter().all(|vm| state_of(&status(), vm) == "cancelled");
    wait_until("both are undone", PATIENCE, are_out);
    assert_eq!(state_of(&status(), "three"), "running", "it goes on beside them");
    ["one", "two"].iter().for_each(|vm| assert_undone(&stage, vm));
    stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    assert_eq!(run.0.wait().unwrap().code(), Some(0), "all that are left have arrived");
    stage.assert_equal("three", 0, &stage.path("a"));
    let late = stage.run(&["cancel", &plan, "three"]);
    assert!(late.code == Some(0) && late.err.contains("has ended"), "{}{}", late.out, late.err);
    // A later run leaves them alone, until one is taken back.
    assert_eq!(stage.run(&["migrate", &plan, "--quiet"]).code, Some(0));
    assert!(are_out(), "{}", status());
    let back = stage.run(&["retry", "given-up", "two", "--json"]);
    assert_eq!(back.json().unwrap()["taken_back"], json!(["two"]), "{}", back.err);
    assert_eq!(stage.run(&["migrate", &plan, "--quiet"]).code, Some(0));
    stage.assert_equal("two", 0, &stage.path("a"));
    assert_undone(&stage, "one");
}

#[test]
fn what_was_killed_in_the_middle_is_given_up_by_hand_and_the_others_go_on() {
    let Some(stage) = stage(219) else { return };
    let plan = stage.plan("killed", &[]);
    let started = stage.drover.start(&["migrate", &plan]).unwrap();
    wait_until("all are read", PATIENCE, || {
        ["one", "two", "three"].iter().all(|vm| stage.image(vm, 0).exists())
    });
    started.kill().unwrap();
    stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    let given_up = stage.run(&["cancel", "killed", "two"]);
    assert_eq!(given_up.code, Some(0), "{}{}", given_up.out, given_up.err);
    assert_undone(&stage, "two");
    let resumed = stage.run(&["resume", "killed", "--quiet"]);
    assert_eq!(resumed.code, Some(0), "{}{}", resumed.out, resumed.err);
    ["one", "three"].iter().for_each(|vm| stage.assert_equal(vm, 0, &stage.path("a")));
    assert_undone(&stage, "two");
}

/// What another one does to a VM at the source.
fn suspend(stage: &Stage, name: &str) {
    stage.sim.post("/vm/power", json!({"vm": name, "state": "suspended"})).unwrap();
}

#[test]
fn a_suspended_vm_stops_no_other_of_a_plan_that_goes_on_and_is_not_judged_once_it_is_given_up() {
    let Some(stage) = stage(247) else { return };
    let plan = stage.plan("goes-on", &ONE_A_HOST);
    let started = stage.drover.start(&["migrate", &plan]).unwrap();
    wait_until("both hosts are read", PATIENCE, || {
        stage.image("three", 0).exists() && (stage.image("one", 0).exists() || stage.image("two", 0).exists())
    });
    started.kill().unwrap();
    let (waits, went) = if stage.image("one", 0).exists() { ("two", "one") } else { ("one", "two") };
    suspend(&stage, waits);
    stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    let resumed = stage.run(&["resume", "goes-on", "--quiet"]);
    assert_eq!(resumed.code, Some(3), "{}{}", resumed.out, resumed.err);
    let told = format!("that stops {waits} alone; plan goes-on goes on");
    assert!(resumed.err.contains(&told), "{}", resumed.err);
    [went, "three"].iter().for_each(|vm| stage.assert_equal(vm, 0, &stage.path("a")));
    let status = stage.run(&["status", "goes-on", "--json"]).json().unwrap();
    assert_eq!(state_of(&status, waits), "failed", "{status}");
    let given_up = stage.run(&["cancel", "goes-on", waits]);
    assert_eq!(given_up.code, Some(0), "{}{}", given_up.out, given_up.err);
    let done = stage.run(&["resume", "goes-on", "--quiet"]);
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    assert!(!done.err.contains("suspended"), "{}", done.err);
}

#[test]
fn a_paused_plan_keeps_what_was_copied_and_no_edit_loses_a_vm() {
    let Some(stage) = stage(204) else { return };
    let plan = stage.plan("paused", &[("target:", "exclude: [{name: two}]\ntarget:")]);
    let mut run = EndsWithTest(stage.drover.start(&["migrate", &plan]).unwrap().child);
    let images = || ["one", "three"].iter().all(|vm| stage.image(vm, 0).exists());
    wait_until("both are read", PATIENCE, images);
    let paused = stage.run(&["pause", "paused"]);
    assert!(paused.code == Some(0) && paused.err.contains("plan paused is paused"), "{}", paused.err);
    assert_eq!(run.0.wait().unwrap().code(), Some(130));
    assert!(images(), "what was copied is kept");
    let again = stage.run(&["pause", "paused"]);
    assert!(again.code == Some(0) && again.err.contains("nobody runs plan paused"), "{}", again.err);

    // Its images would be left without a command that knows them.
    let text = std::fs::read_to_string(&plan).unwrap();
    std::fs::write(&plan, text.replace("[{name: two}]", "[{name: two}, {name: three}]")).unwrap();
    let refused = stage.run(&["migrate", &plan]);
    let told = "began VMs that the plan does not have any more: three; nothing was touched";
    assert!(refused.code == Some(3) && refused.err.contains(told), "{}", refused.err);

    stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    let resumed = stage.run(&["resume", "paused"]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert!(resumed.err.contains("was edited since the plan was begun"), "{}", resumed.err);
    assert!(!resumed.err.contains("it excludes no VM"), "{}", resumed.err);
    ["one", "three"].iter().for_each(|vm| stage.assert_equal(vm, 0, &stage.path("a")));

    // Its record is of the run that did something.
    std::fs::write(&plan, text).unwrap();
    let record = stage.report("paused");
    let done = stage.run(&["migrate", &plan, "--quiet"]);
    assert!(done.code == Some(0) && stage.report("paused") == record, "{}{}", done.out, done.err);
    // Another plan with the same VMs is warned of.
    let again = stage.run(&["plan", "check", &stage.plan("again", &[])]);
    let told = "2 VMs are at the target already (plan paused), and would be copied once more: one, three";
    assert!(again.err.contains(told), "{}{}", again.out, again.err);
}

#[test]
fn a_daemon_gives_a_vm_up_and_its_plan_ends_well() {
    let Some(stage) = stage(220) else { return };
    let daemon = Daemon::start(&stage.drover);
    let plan = stage.plan("served", &ONE_A_HOST);
    daemon.submit(&plan);
    daemon.wait_for("both hosts are read", || {
        (stage.image("three", 0).exists() && daemon.plan("served")["state"] == "running").then_some(())
    });
    let order = |order: Value| daemon.post("/v1/plans/served/orders", &order);
    let (status, refused) = order(json!({"order": "cancel", "vm": "tow"}));
    assert_eq!((status, &refused["exit"]), (422, &json!(3)), "{refused}");
    let (status, ordered) = order(json!({"order": "cancel", "vm": "one"}));
    assert_eq!(
        (status, &ordered["vms"], &ordered["after"]),
        (200, &json!(["one"]), &json!("running")),
        "{ordered}"
    );
    let ordered = daemon.run(&["cancel", "served", "two"]);
    assert_eq!(ordered.code, Some(0), "{}{}", ordered.out, ordered.err);
    daemon.wait_for("both are undone", || (daemon.plan("served")["vms"]["cancelled"] == 2).then_some(()));
    stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    daemon.wait("served", "done");
    ["one", "two"].iter().for_each(|vm| assert_undone(&stage, vm));
    stage.assert_equal("three", 0, &stage.path("a"));
    let (status, refused) = order(json!({"order": "cancel", "vm": "three"}));
    assert_eq!(status, 409, "{refused}");
    daemon.stop();
}

#[test]
fn a_daemon_gives_a_vm_of_a_paused_plan_up_whatever_became_of_it() {
    let Some(stage) = stage(249) else { return };
    let daemon = Daemon::start(&stage.drover);
    daemon.submit(&stage.plan("rests", &[]));
    daemon.wait_for("all are read", || {
        ["one", "two", "three"].iter().all(|vm| stage.image(vm, 0).exists()).then_some(())
    });
    daemon.order("rests", "pause");
    daemon.wait("rests", "paused");
    suspend(&stage, "two");
    let given_up = daemon.run(&["cancel", "rests", "two"]);
    assert_eq!(given_up.code, Some(0), "{}{}", given_up.out, given_up.err);
    assert!(given_up.err.contains("what was begun is undone: two"), "{}", given_up.err);
    assert!(!stage.image("two", 0).exists() && stage.image("one", 0).exists());
    let plan = daemon.plan("rests");
    assert_eq!((&plan["state"], &plan["vms"]["cancelled"]), (&json!("paused"), &json!(1)), "{plan}");
    stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    daemon.order("rests", "resume");
    daemon.wait("rests", "done");
    ["one", "three"].iter().for_each(|vm| stage.assert_equal(vm, 0, &stage.path("a")));
    daemon.stop();
}

#[test]
fn what_is_left_of_a_vm_fails_no_order_about_another_that_a_daemon_is_given() {
    let Some(stage) = stage(250) else { return };
    let daemon = Daemon::start(&stage.drover);
    daemon.submit(&stage.plan("beside", &[]));
    daemon.wait_for("all are read", || {
        ["one", "two", "three"].iter().all(|vm| stage.image(vm, 0).exists()).then_some(())
    });
    daemon.order("beside", "pause");
    daemon.wait("beside", "paused");
    let held = drover_disk::LockedFile::open(&stage.image("one", 0)).unwrap();
    let failed = daemon.run(&["cancel", "beside", "one"]);
    assert!(failed.code != Some(0) && failed.err.contains("left behind: one: "), "{}", failed.err);
    let given_up = daemon.run(&["cancel", "beside", "two", "--json"]);
    assert_eq!(given_up.code, Some(0), "{}{}", given_up.out, given_up.err);
    assert_undone(&stage, "two");
    let told =
        json!({"plan": "beside", "given_up": ["two"], "running": false, "kept": [], "left": [], "notes": []});
    assert_eq!(given_up.json().unwrap(), told, "{}", given_up.out);
    drop(held);
    let cancelled = daemon.run(&["cancel", "beside", "--json"]);
    assert_eq!(cancelled.code, Some(0), "{}{}", cancelled.out, cancelled.err);
    let told =
        json!({"plan": "beside", "cancelled": true, "arrived": [], "kept": [], "left": [], "notes": []});
    assert_eq!(cancelled.json().unwrap(), told, "{}", cancelled.out);
    ["one", "three"].iter().for_each(|vm| assert_undone(&stage, vm));
    daemon.stop();
}
