//! A VM that failed is tried again while its plan goes on: by the command, and through a daemon.
#![allow(clippy::unwrap_used)]

use drover_stage::daemon::Daemon;
use drover_stage::process::{EndsWithTest, PATIENCE, wait_until};
use drover_stage::{MIB, Stage, disk_file, vm, with};
use serde_json::{Value, json};

/// A small VM whose snapshot fails for lack of room, and a larger one of another host, which takes some time.
fn stage(number: u8) -> Option<Stage> {
    let stage = Stage::new(number, |folder| {
        let (a, b) = (disk_file(folder, "a", 4 * MIB), disk_file(folder, "b", 96 * MIB));
        let one = with(vm("one", &[&a]), json!({"power": "on"}));
        vec![one, with(vm("two", &[&b]), json!({"host": "esx2.lab"}))]
    })?;
    stage.sim.post("/rate", json!({"bytes_per_s": 2 * MIB, "per": "host"})).unwrap();
    let fault = json!({"method": "CreateSnapshot_Task", "fault": "FileFault", "message": "no room for a delta", "vm": "one", "count": -1});
    stage.sim.post("/fault/soap", fault).unwrap();
    Some(stage)
}

/// Whether a VM is in a state, by `drover status --json`.
fn is(status: &Value, vm: &str, state: &str) -> bool {
    let vms = status["vms"].as_array().into_iter().flatten();
    vms.into_iter().any(|it| it["name"] == vm && it["state"] == state)
}

/// Kinds of the events of `one` that tell of its tries.
fn tries(report: &Value) -> Vec<String> {
    let id = report["vms"].as_array().unwrap().iter().find(|vm| vm["name"] == "one").unwrap()["id"].clone();
    let of = |it: &&Value| it["vm"] == id && (it["kind"] == "error" || it["kind"] == "retry");
    let events = report["events"].as_array().unwrap().iter().filter(of);
    events.map(|it| it["kind"].as_str().unwrap().to_string()).collect()
}

fn assert_arrived(stage: &Stage, report: &Value) {
    stage.assert_equal("one", 0, &stage.path("a"));
    stage.assert_equal("two", 0, &stage.path("b"));
    assert_eq!(tries(report), ["error", "retry", "error", "retry"], "{report}");
    let phases = report["vms"][0]["phases"].as_array().unwrap();
    assert_eq!(phases.iter().filter(|it| it["phase"] == "snapshot").count(), 3, "each try is told");
}

#[test]
fn a_vm_that_failed_arrives_by_a_further_try_while_another_is_copied() {
    let Some(stage) = stage(206) else { return };
    let plan = stage.plan("retried", &[]);
    let mut run = EndsWithTest(stage.drover.start(&["migrate", &plan]).unwrap().child);
    let status = || stage.run(&["status", "retried", "--json"]).json().unwrap_or_default();
    wait_until("the failure", PATIENCE, || is(&status(), "one", "failed"));
    let text = stage.run(&["status", "retried"]).out;
    assert!(text.contains("drover retry retried --all-failed"), "{text}");
    for (args, words) in [
        (&["retry", &plan, "two"][..], "two is at work, and did not fail"),
        (&["retry", &plan, "one", "tow"], "plan retried has no VM 'tow'"),
        (&["retry", "none", "one"], "none"),
    ] {
        let refused = stage.run(args);
        assert_eq!(refused.code, Some(3), "{args:?}: {}{}", refused.out, refused.err);
        assert!(refused.err.contains(words), "{args:?}: {}", refused.err);
    }
    // The cause is there still: it fails once more.
    let ordered = stage.run(&["retry", &plan, "one"]);
    assert_eq!(ordered.code, Some(0), "{}{}", ordered.out, ordered.err);
    assert!(ordered.err.contains("by the drover that runs the plan: one"), "{}", ordered.err);
    wait_until("the second failure", PATIENCE, || tries(&stage.report("retried")).len() == 3);
    stage.sim.post("/fault/clear", json!({})).unwrap();
    let ordered = stage.run(&["retry", "retried", "--all-failed", "--json"]);
    assert_eq!(ordered.json().unwrap()["retry"], json!(["one"]), "{}", ordered.err);
    wait_until("its arrival", PATIENCE, || is(&status(), "one", "done"));
    assert!(is(&status(), "two", "running"), "beside the other one: {}", status());
    stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    assert_eq!(run.0.wait().unwrap().code(), Some(0), "all have arrived");
    assert_arrived(&stage, &stage.report("retried"));
    let late = stage.run(&["retry", &plan, "one"]);
    assert_eq!(late.code, Some(3), "{}", late.err);
    assert!(
        late.err.contains("nothing runs plan retried") && late.err.contains("drover resume retried"),
        "{}",
        late.err
    );
}

#[test]
fn a_daemon_has_a_vm_tried_again_by_its_api_and_by_the_command() {
    let Some(stage) = stage(207) else { return };
    let daemon = Daemon::start(&stage.drover);
    let plan = stage.plan("served", &[]);
    daemon.submit(&plan);
    let fails = |count: usize| {
        daemon.wait_for("the failure", || {
            let has_failed = daemon.plan("served")["vms"]["failed"] == 1;
            (has_failed && tries(&daemon.get("/v1/plans/served/report")).len() == count).then_some(())
        })
    };
    fails(1);
    let order = |vm: &str| daemon.post("/v1/plans/served/orders", &json!({ "order": "retry", "vm": vm }));
    let (status, refused) = order("two");
    assert_eq!((status, &refused["exit"]), (422, &json!(3)), "{refused}");
    assert!(refused["detail"].as_str().unwrap().contains("two is at work, and did not fail"), "{refused}");
    let (status, ordered) = order("one");
    assert_eq!((status, &ordered["vms"]), (200, &json!(["one"])), "{ordered}");
    fails(3);
    stage.sim.post("/fault/clear", json!({})).unwrap();
    for order in [
        json!({"order": "pause", "vms": ["one"]}),
        json!({"order": "pause", "wave": "first"}),
        json!({"order": "retry", "vm": "one", "vms": ["two"]}),
    ] {
        assert_eq!(daemon.post("/v1/plans/served/orders", &order).0, 400, "{order} is not about all VMs");
    }
    // Several are one order, which is given whole or not at all.
    let wrong = daemon.run(&["retry", "served", "one", "nobody"]);
    assert!(wrong.code == Some(3) && wrong.err.contains("no VM 'nobody'"), "{}{}", wrong.out, wrong.err);
    let ordered = daemon.run(&["retry", "served", "one"]);
    assert_eq!(ordered.code, Some(0), "{}{}", ordered.out, ordered.err);
    daemon.wait_for("its arrival", || (daemon.plan("served")["vms"]["done"] == 1).then_some(()));
    stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    let done = daemon.wait("served", "done");
    assert_eq!((&done["exit"], &done["vms"]["failed"]), (&json!(0), &json!(0)), "{done}");
    assert_arrived(&stage, &daemon.get("/v1/plans/served/report"));
    let audit = daemon.get("/v1/audit");
    let rows = audit["items"].as_array().unwrap().iter().filter(|row| row["action"] == "retry");
    let rows: Vec<(&Value, bool)> = rows.map(|row| (&row["vm"], row["outcome"] == "ok")).collect();
    let whole = json!("one, nobody");
    let (one, two) = (json!("one"), json!("two"));
    assert_eq!(rows, [(&one, true), (&whole, false), (&one, false), (&one, true), (&two, false)]);
    let late = daemon.run(&["retry", "served", "--all-failed"]);
    assert_eq!(late.code, Some(3), "{}", late.err);
    assert!(late.err.contains("drover resume"), "{}", late.err);
    daemon.stop();
}
