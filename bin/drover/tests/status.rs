//! `drover status`: how far a run is, seen from another process and through a daemon.
#![allow(clippy::unwrap_used)]

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use drover_stage::daemon::Daemon;
use drover_stage::process::wait_until;
use drover_stage::{MIB, Stage, disk_file, vm, with};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);

/// Two VMs on two hosts, each of which gives so much a second.
fn slow_stage(number: u8, mib: u64, mib_per_s: u64) -> Option<Stage> {
    let stage = Stage::new(number, |folder| {
        let a = disk_file(folder, "a", mib * MIB);
        vec![vm("one", &[&a]), with(vm("two", &[&a]), json!({"host": "esx2.lab"}))]
    })?;
    stage.sim.post("/rate", json!({"bytes_per_s": mib_per_s * MIB, "per": "host"})).unwrap();
    Some(stage)
}

fn spawn(mut command: Command) -> Child {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

/// What a command printed that ended well.
#[track_caller]
fn printed(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    String::from_utf8(output.stdout).unwrap()
}

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What a watcher was told from the begin of a plan to its end.
#[track_caller]
fn tells_all(objects: &[Value], plan: &str) {
    assert!(objects.iter().all(|it| it["plan"] == plan && it["event"] == "status" && it["time"].is_string()));
    let percents: Vec<u64> = objects.iter().map(|it| it["percent"].as_u64().unwrap()).collect();
    assert!(percents.is_sorted() && percents.last() == Some(&100), "{percents:?}");
    let moving = |it: &&Value| it["rate_bytes_per_s"].as_u64() > Some(0) && it["eta_s"].is_u64();
    let found: Vec<&Value> = objects.iter().filter(moving).collect();
    assert!(!found.is_empty(), "no rate and no estimate in {objects:#?}");
    let vms = found.iter().flat_map(|it| it["vms"].as_array().unwrap());
    let copying = |vm: &&Value| vm["activity"] == "copy" && vm["rate_bytes_per_s"].as_u64() > Some(0);
    assert!(vms.filter(copying).any(|vm| vm["eta_s"].is_u64()), "no VM has both in {objects:#?}");
    let last = objects.last().unwrap();
    assert_eq!((&last["state"], &last["counts"]["arrived"]), (&json!("done"), &json!(2)));
}

#[test]
fn a_run_is_followed_from_another_process_until_it_ends() {
    let Some(stage) = slow_stage(146, 24, 4) else { return };
    let plan = stage.plan("slow", &[]);
    let run = spawn(stage.drover.command(&["migrate", &plan, "--quiet"]));
    wait_until("the plan is known", PATIENCE, || stage.run(&["status", &plan]).code == Some(0));
    let lines = spawn(stage.drover.command(&["status", &plan, "--watch"]));
    let all = spawn(stage.drover.command(&["status", "--watch", "--json"]));
    let watched = stage.run(&["status", "slow", "--watch", "--json"]);
    assert_eq!(watched.code, Some(0), "{}", watched.err);
    tells_all(&objects(&watched.out), "slow");
    tells_all(&objects(&printed(all)), "slow");
    let lines = printed(lines);
    assert!(lines.contains("slow/one: running, copy "), "{lines}");
    let next = format!("next: drover report slow --state {}\n", stage.path("state").display());
    assert!(lines.ends_with(&next), "{lines}");
    assert!(!lines.contains('\u{1b}'), "no terminal, nothing to drive");
    let told: Vec<&str> = lines.lines().map(|line| line.split_once("  ").map_or(line, |it| it.1)).collect();
    let mut once = told.clone();
    once.dedup();
    assert_eq!(told, once, "a line is something new");
    printed(run);
    let now = stage.run(&["status", &plan, "--json"]).json().unwrap();
    assert_eq!((&now["progress"]["percent"], &now["progress"]["eta_s"]), (&json!(100), &Value::Null));
}

#[test]
fn what_an_ended_run_had_done_is_known_and_nothing_is_waited_for() {
    let Some(stage) = slow_stage(147, 64, 4) else { return };
    let plan = stage.plan("cut", &[]);
    let run = stage.drover.start(&["migrate", &plan]).unwrap();
    let progress = |key: &str| {
        let told = stage.run(&["status", "cut", "--json"]).json().unwrap_or_default();
        told["progress"][key].clone()
    };
    wait_until("something is copied", PATIENCE, || progress("done_bytes").as_u64() > Some(MIB));
    run.kill().unwrap();
    let watched = stage.run(&["status", "cut", "--watch"]);
    assert_eq!(watched.code, Some(130), "{}", watched.err);
    assert!(watched.out.contains("cut: interrupted"), "{}", watched.out);
    assert!(watched.out.contains("next: drover resume cut"), "{}", watched.out);
    assert!(progress("percent").as_u64() < Some(100) && progress("done_bytes").as_u64() > Some(MIB));
    assert_eq!((progress("rate_bytes_per_s"), progress("eta_s")), (Value::Null, Value::Null));
    let none = stage.run(&["status", "--watch"]);
    assert_eq!((none.code, none.out.as_str()), (Some(0), "no plan runs; see `drover status`\n"));
    let text = stage.run(&["status", "cut"]).out;
    assert!(text.contains(" DONE "), "{text}");
    assert!(text.lines().all(|line| line.contains(": drover ") || line.chars().count() <= 80), "{text}");
}

const WAVES: &str =
    "waves: [{name: pilot, vms: [{name: one}]}, {name: rest, after: [pilot], vms: [{name: two}]}]\nvms:";

#[test]
fn some_vms_of_a_plan_are_shown_and_told_here_as_by_a_daemon() {
    let Some(stage) = slow_stage(149, 1, 64) else { return };
    let plan = stage.plan("some", &[("vms:", WAVES)]);
    let run = stage.run(&["migrate", &plan]);
    assert_eq!(run.code, Some(0), "{}", run.err);
    let state = stage.path("state").display().to_string();
    assert!(run.out.contains("2 of 2 VMs arrived") && !run.out.contains("Roots of"), "{}", run.out);
    let whole = format!("\nall VMs and their proof: drover report some --state {state}\n");
    assert!(run.out.ends_with(&whole), "{}", run.out);
    assert!(stage.run(&["report", "some"]).out.contains("Roots of"));
    let daemon = Daemon::start(&stage.drover);
    let both = |args: &[&str]| {
        let [here, there] = [stage.run(args), daemon.run(args)].map(|ran| {
            assert_eq!(ran.code, Some(0), "{args:?}: {}", ran.err);
            let places = [format!(" --server {}", daemon.url), format!(" --state {state}")];
            places.iter().fold(ran.out, |out, place| out.replace(place, ""))
        });
        assert_eq!(here, there, "{args:?}");
        here
    };
    let status = both(&["status", "some", "--wave", "pilot"]);
    assert!(status.contains("2 VMs: 2 done\n") && status.contains("\none  done"), "{status}");
    assert!(status.contains("listed: 1 of 2 VMs") && !status.contains("\ntwo  done"), "{status}");
    let json = both(&["status", "some", "--vm", "t*", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((json["vms"].as_array().unwrap().len(), &json["vms"][0]["wave"]), (1, &json!("rest")));
    assert_eq!(json["progress"]["counts"]["all"], 2);
    let none = both(&["status", "some", "--only", "failed,waiting"]);
    assert!(none.contains("listed: 0 of 2 VMs"), "{none}");
    let report = both(&["report", "some", "--vm", "two"]);
    assert!(report.contains("two/Hard disk 1") && !report.contains("one/Hard disk 1"), "{report}");
    let csv = both(&["report", "some", "--csv", "--only", "done"]);
    let rows: Vec<&str> = csv.split("\r\n").collect();
    assert!(rows[0].starts_with("name,wave,state,") && rows[1].starts_with("one,pilot,done,"), "{csv}");
    assert!(rows[2].starts_with("two,rest,done,") && rows.len() == 4, "{csv}");
    let json: Value = serde_json::from_str(&both(&["report", "some", "--vm", "two", "--json"])).unwrap();
    assert_eq!((&json["summary"]["vms"], &json["vms"][0]["name"]), (&json!(1), &json!("two")));
    for (args, why) in [
        (&["status", "some", "--vm", "onne"][..], "no VM that matches 'onne'\n  try: near names: one"),
        (&["report", "some", "--wave", "next"], "no VM in a wave 'next'\n  try: its waves: pilot, rest"),
        (&["status", "some", "--vm", "onne", "--watch"], "no VM that matches 'onne'"),
        (&["status", "--only", "failed"], "<PLAN>"),
    ] {
        let refused = stage.run(args);
        assert!(refused.code == Some(2) && refused.err.contains(why), "{args:?}: {}", refused.err);
    }
    let watched = stage.run(&["status", "some", "--watch", "--json", "--vm", "two"]);
    let last = objects(&watched.out).pop().unwrap();
    assert_eq!((last["vms"].as_array().unwrap().len(), &last["vms"][0]["name"]), (1, &json!("two")));
    let plans: Value = stage.run(&["status", "--json"]).json().unwrap();
    assert_eq!(plans["plans"][0]["vms"]["arrived"], 2);
    assert!(stage.run(&["status"]).out.contains("2 of 2"));
    daemon.stop();
}

#[test]
fn a_daemons_plans_are_followed_too() {
    let Some(stage) = slow_stage(148, 24, 4) else { return };
    let daemon = Daemon::start(&stage.drover);
    daemon.submit(&stage.plan("served", &[]));
    let watched = daemon.run(&["status", "served", "--watch", "--json"]);
    assert_eq!(watched.code, Some(0), "{}", watched.err);
    tells_all(&objects(&watched.out), "served");
    let lines = daemon.run(&["status", "served", "--watch"]);
    assert!(
        lines.out.contains(&format!("next: drover report served --server {}", daemon.url)),
        "{}",
        lines.out
    );
    daemon.stop();
}
