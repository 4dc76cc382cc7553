//! A vCenter whose API does not answer for a while: retried (R) while the plan lets it, then fatal for the VM (F), whose guest is
//! switched on again as soon as the API is back.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::time::{Duration, Instant};

use drover_stage::process::{EndsWithTest, PATIENCE, wait_until};
use drover_stage::{MIB, Stage, disk_file, same_bytes, vm, with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// What holds a VM up while its guest is down, until the file `go` is there.
const HOLDS: &str = "{after_shutdown: [{shell: 'echo >>down; while [ ! -e go ]; do sleep 0.05; done'}]}";
/// How long the API is away where that is outlasted.
const OUTAGE: Duration = Duration::from_secs(10);

fn goes_away(stage: &Stage, mut fault: Value) {
    (fault["path"], fault["count"]) = (json!("/sdk"), json!(-1));
    stage.sim.post("/fault/http", fault).unwrap();
}

fn comes_back(stage: &Stage) {
    stage.sim.post("/fault/clear", json!({})).unwrap();
}

/// Completed passes of each VM.
fn passes(stage: &Stage, plan: &str) -> Vec<usize> {
    let report = stage.run(&["report", plan, "--json"]).json().unwrap_or_default();
    let of = |vm: &Value| {
        let passes = vm["warm"]["passes"].as_array().into_iter().flatten();
        passes.filter(|pass| pass["state"] == "complete").count()
    };
    report["vms"].as_array().into_iter().flatten().map(of).collect()
}

fn status(stage: &Stage, plan: &str) -> String {
    stage.run(&["status", plan]).out
}

fn power(stage: &Stage, vm: &str) -> Value {
    stage.sim.vm(vm).unwrap()["power"].clone()
}

fn snapshots(stage: &Stage, vm: &str) -> usize {
    stage.sim.vm(vm).unwrap()["snapshots"].as_array().map_or(0, Vec::len)
}

/// Texts of the events of a kind.
fn told(stage: &Stage, plan: &str, kind: &str) -> Vec<String> {
    let report = stage.report(plan);
    let events = report["events"].as_array().unwrap().iter().filter(|event| event["kind"] == kind);
    events.map(|event| event["text"].as_str().unwrap().to_string()).collect()
}

/// R: between passes by 503, and while both guests are down by answers that are cut, when snapshots are made.
#[test]
fn an_outage_between_passes_and_in_the_cutover_is_waited_out() {
    let Some(stage) = Stage::new(232, |folder| {
        let (a, b) = (disk_file(folder, "a", 8 * MIB), disk_file(folder, "b", 4 * MIB));
        ["one", "two"]
            .iter()
            .zip([&a, &b])
            .map(|(name, disk)| with(vm(name, &[disk]), json!({"power": "on"})))
            .collect()
    }) else {
        return;
    };
    let mode = format!("mode: warm\nwarm: {{interval: 1s}}\nhooks: {HOLDS}");
    let plan = stage.plan("outlasted", &[("mode: cold", &mode)]);
    stage.sim.post("/writer", json!({"vm": "one", "disk": 0, "bytes_per_s": 50_000})).unwrap();
    let mut run = EndsWithTest(stage.drover.start(&["migrate", &plan]).unwrap().child);
    let made = |at_least: usize| {
        let passes = passes(&stage, &plan);
        passes.len() == 2 && passes.iter().all(|it| *it >= at_least)
    };
    wait_until("two passes of each", PATIENCE, || made(2));

    let away = Instant::now();
    goes_away(&stage, json!({"status": 503}));
    let waits = format!("waits for 127.0.0.1:{}: HTTP 503: ", stage.sim.port);
    wait_until("the wait is told", PATIENCE, || status(&stage, "outlasted").contains(&waits));
    std::thread::sleep(OUTAGE.saturating_sub(away.elapsed()));
    let before = passes(&stage, &plan);
    comes_back(&stage);
    wait_until("another pass of each", PATIENCE, || made(1 + before.iter().max().unwrap()));
    wait_until("the end of the wait is told", PATIENCE, || !status(&stage, "outlasted").contains(&waits));
    let text = status(&stage, "outlasted");
    assert!(!text.contains("shut down by drover"), "{text}");

    assert_eq!(stage.run(&["cutover", &plan]).code, Some(0));
    wait_until("a guest is down", PATIENCE, || stage.path("down").exists());
    goes_away(&stage, json!({"cut_after": 0}));
    std::fs::write(stage.path("go"), "").unwrap();
    std::thread::sleep(OUTAGE);
    assert!(run.0.try_wait().unwrap().is_none(), "{}", status(&stage, "outlasted"));
    let text = status(&stage, "outlasted");
    assert!(text.lines().nth(1).unwrap().starts_with("shut down by drover"), "{text}");
    comes_back(&stage);
    assert!(run.0.wait().unwrap().success(), "{:#}", stage.report(&plan)["vms"]);

    assert_eq!(told(&stage, &plan, "away").len(), 2, "{:?}", told(&stage, &plan, "away"));
    assert!(told(&stage, &plan, "back")[0].contains("answers again"));
    for name in ["one", "two"] {
        assert_eq!((power(&stage, name), snapshots(&stage, name)), (json!("poweredOff"), 0));
        let disks = stage.sim.get(&format!("/disks?vm={name}")).unwrap();
        let live = PathBuf::from(disks[0]["disks"][0]["live"].as_str().unwrap());
        assert!(same_bytes(&stage.image(name, 0), &live), "{name} differs");
    }
}

/// F, and undone while another VM keeps the run at work; the next try arrives.
#[test]
fn a_guest_that_an_outage_left_off_is_switched_on_again_once_the_api_is_back() {
    let Some(stage) = Stage::new(233, |folder| {
        let (a, b) = (disk_file(folder, "a", 4 * MIB), disk_file(folder, "b", 160 * MIB));
        vec![with(vm("one", &[&a]), json!({"power": "on"})), vm("two", &[&b])]
    }) else {
        return;
    };
    let plan = stage.plan(
        "left-off",
        &[
            ("mode: cold", "mode: warm\nwarm: {interval: 1s}\nlimits: {retry_for: 3s}"),
            ("  - name: \"one\"\n", &format!("  - name: \"one\"\n    hooks: {HOLDS}\n")),
            ("  - name: \"two\"\n", "  - name: \"two\"\n    mode: cold\n"),
            ("from: hosts", "from: provider"),
        ],
    );
    stage.sim.post("/rate", json!({"bytes_per_s": 3 * MIB, "per": "host"})).unwrap();
    let mut run = EndsWithTest(stage.drover.start(&["migrate", &plan]).unwrap().child);
    wait_until("a pass", PATIENCE, || passes(&stage, &plan).first().is_some_and(|it| *it >= 1));
    assert_eq!(stage.run(&["cutover", &plan, "one"]).code, Some(0));
    wait_until("the guest is down", PATIENCE, || stage.path("down").exists());
    goes_away(&stage, json!({"status": 503}));
    std::fs::write(stage.path("go"), "").unwrap();
    let waits = |text: &String| text.contains("is undone once the source answers");
    wait_until("it waits to be undone", PATIENCE, || told(&stage, &plan, "note").iter().any(waits));
    assert_eq!(power(&stage, "one"), "poweredOff");
    let text = status(&stage, "left-off");
    assert_eq!(text.lines().nth(1), Some("shut down by drover, and not switched on again: one"), "{text}");

    comes_back(&stage);
    wait_until("it is switched on", PATIENCE, || power(&stage, "one") == "poweredOn");
    assert!(run.0.try_wait().unwrap().is_none(), "two is being copied");
    let end = || stage.report(&plan)["vms"][0].clone();
    wait_until("its end is told", PATIENCE, || end()["state"] == "failed");
    let error = end()["error"].as_str().unwrap().to_string();
    assert!(error.contains("does not answer for the moment (HTTP 503)"), "{error}");
    assert!(!error.contains("left behind") && !error.contains("token"), "{error}");
    assert_eq!(snapshots(&stage, "one"), 0);
    assert!(!status(&stage, "left-off").contains("shut down by drover"));

    stage.sim.post("/rate", json!({"bytes_per_s": 0})).unwrap();
    assert_eq!(run.0.wait().unwrap().code(), Some(5));
    stage.assert_equal("two", 0, &stage.path("b"));
    assert_eq!(stage.run(&["cutover", &plan, "one"]).code, Some(0));
    let resumed = stage.run(&["resume", &plan]);
    assert_eq!(resumed.code, Some(0), "{}{}", resumed.out, resumed.err);
    stage.assert_equal("one", 0, &stage.path("a"));
}

/// A stop is heeded at once, and what it undoes does not wait: F, and `resume` goes on.
#[test]
fn ctrl_c_ends_a_run_that_waits_for_the_api() {
    let Some(stage) = Stage::new(234, |folder| {
        let a = disk_file(folder, "a", 4 * MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"}))]
    }) else {
        return;
    };
    // Far more than this test waits for anything.
    let mode = "mode: warm\nwarm: {interval: 1s}\nlimits: {retry_for: 1h}";
    let plan = stage.plan("stopped", &[("mode: cold", mode)]);
    let mut run = EndsWithTest(stage.drover.start(&["migrate", &plan]).unwrap().child);
    wait_until("a pass", PATIENCE, || passes(&stage, &plan).first().is_some_and(|it| *it >= 1));
    goes_away(&stage, json!({"status": 504}));
    wait_until("the wait is told", PATIENCE, || status(&stage, "stopped").contains("HTTP 504: one"));
    kill_process(Pid::from_child(&run.0), Signal::INT).unwrap();
    wait_until("it has ended", PATIENCE, || run.0.try_wait().unwrap().is_some());
    assert_eq!(run.0.wait().unwrap().code(), Some(130));
    comes_back(&stage);
    assert_eq!(stage.run(&["cutover", &plan]).code, Some(0));
    let resumed = stage.run(&["resume", &plan]);
    assert_eq!(resumed.code, Some(0), "{}{}", resumed.out, resumed.err);
    assert_eq!((power(&stage, "one"), snapshots(&stage, "one")), (json!("poweredOff"), 0));
    stage.assert_equal("one", 0, &stage.path("a"));
}
