//! `drover serve`: plans that are handed to a daemon arrive as they do without it, and go on after any end of it.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drover_stage::daemon::Daemon;
use drover_stage::issuer::Issuer;
use drover_stage::{MIB, Stage, disk_file, vm, with};
use serde_json::json;

fn stage(number: u8, mib: u64) -> Option<Stage> {
    Stage::new(number, |folder| {
        let a = disk_file(folder, "a", mib * MIB);
        vec![vm("one", &[&a]), with(vm("two", &[&a]), json!({"host": "esx2.lab"}))]
    })
}

/// A stage whose hosts give so much a second.
fn slow_stage(number: u8, mib: u64, mib_per_s: u64) -> Option<Stage> {
    let stage = stage(number, mib)?;
    stage.sim.post("/rate", json!({"bytes_per_s": mib_per_s * MIB, "per": "host"})).unwrap();
    Some(stage)
}

fn assert_arrived(stage: &Stage) {
    ["one", "two"].iter().for_each(|vm| stage.assert_equal(vm, 0, &stage.path("a")));
}

#[test]
fn commands_print_through_a_daemon_what_they_print_without_it() {
    let Some(stage) = stage(120, 8) else { return };
    let daemon = Daemon::start(&stage.drover);
    let plan = stage.plan("served", &[]);
    let migrated = daemon.run(&["migrate", &plan]);
    assert_eq!(migrated.code, Some(0), "{}{}", migrated.out, migrated.err);
    assert!(
        migrated.err.contains("one: copy begins") && migrated.err.contains("two  done"),
        "{}",
        migrated.err
    );
    assert_arrived(&stage);
    let there = format!(" --server {}", daemon.url);
    let at_home = format!(" --state {}", stage.path("state").display());
    for command in [
        &["status", "served"][..],
        &["status", "served", "--json"],
        &["report", "served"],
        &["report", "served", "--json"],
    ] {
        let (through, here) = (daemon.run(command), stage.run(command));
        let through_out = through.out.replace(&there, "");
        assert_eq!((through.code, through_out), (Some(0), here.out.replace(&at_home, "")), "{command:?}");
    }
    assert!(migrated.out.contains("2 of 2 VMs arrived; every block was read back"), "{}", migrated.out);
    let whole = format!("all VMs and their proof: drover report served{there}\n");
    assert!(migrated.out.ends_with(&whole), "{}", migrated.out);
    let events = daemon.run(&["migrate", &plan, "--json"]).out;
    assert!(events.lines().any(|line| line.contains("\"event\":\"plan_ended\"")), "{events}");
    assert!(
        daemon.text("/metrics").contains("drover_vms{plan=\"served\",project=\"default\",state=\"done\"} 2")
    );
    daemon.stop();
}

#[test]
fn a_daemon_owns_its_state_and_refuses_what_is_wrong_with_its_cause() {
    let Some(stage) = stage(121, 1) else { return };
    let daemon = Daemon::start(&stage.drover);
    let plan = stage.plan("owned", &[]);
    let refused = stage.run(&["migrate", &plan]);
    assert_eq!(refused.code, Some(3), "{}", refused.err);
    assert!(refused.err.contains(&format!("the daemon at {} owns the state", daemon.url)), "{}", refused.err);
    assert!(refused.err.contains(&format!("--server {}", daemon.url)), "{}", refused.err);
    let second = stage.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_eq!(second.code, Some(3), "{}", second.err);
    // A plan with errors in its text, one whose VM is not there, and a source that denies: each with its exit code.
    let text = std::fs::read_to_string(&plan).unwrap();
    let (status, told) =
        daemon.post("/v1/plans", &json!({ "text": text.replace("mode: cold", "mode: lukewarm") }));
    assert_eq!((status, &told["exit"]), (422, &json!(3)), "{told}");
    assert!(told["problems"][0]["line"].is_u64(), "{told}");
    let missing = daemon.run(&["migrate", &stage.plan("missing", &[("name: \"one\"", "name: \"none\"")])]);
    assert_eq!(missing.code, Some(3), "{}", missing.err);
    assert!(missing.err.contains("there is no VM called 'none'"), "{}", missing.err);
    let checked = daemon.post("/v1/check", &json!({ "text": text, "path": plan }));
    assert_eq!(
        (checked.0, &checked.1["ok"], &checked.1["vms"]),
        (200, &json!(true), &json!(2)),
        "{}",
        checked.1
    );
    let denied = daemon
        .run(&["migrate", &stage.plan("denied", &[("administrator@vsphere.local", "nobody@vsphere.local")])]);
    assert_eq!(denied.code, Some(4), "{}", denied.err);
    let audit = daemon.get("/v1/audit");
    assert!(audit["items"].as_array().unwrap().iter().all(|row| row["action"] == "submit"), "{audit}");
    let lines = stage.run(&["serve", "audit"]).out;
    assert!(lines.contains("submit") && lines.contains("admin"), "{lines}");
    daemon.stop();
    stage.migrate(&plan);
}

#[test]
fn a_plan_goes_on_when_its_daemon_is_started_again_after_sigterm_and_after_kill() {
    let Some(stage) = slow_stage(122, 48, 12) else { return };
    let plan = stage.plan("again", &[]);
    let moved = |daemon: &Daemon, mib: u64| {
        let served = stage.served();
        daemon.wait_for("bytes", || (stage.served() >= served + mib * MIB).then_some(()));
    };
    let daemon = Daemon::start(&stage.drover);
    daemon.submit(&plan);
    moved(&daemon, 8);
    daemon.stop();
    let daemon = Daemon::start(&stage.drover);
    assert_eq!(daemon.went_on, json!(["again"]));
    moved(&daemon, 8);
    daemon.kill();
    let daemon = Daemon::start(&stage.drover);
    assert_eq!(daemon.went_on, json!(["again"]));
    stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    daemon.wait("again", "done");
    assert_arrived(&stage);
    let report = daemon.get("/v1/plans/again/report");
    assert!(report["summary"]["resumed_bytes"].as_u64().unwrap() > 0, "{}", report["summary"]);
    daemon.stop();
    let daemon = Daemon::start(&stage.drover);
    assert_eq!(daemon.went_on, json!([]), "one that is done is left alone");
}

#[test]
fn plans_share_the_rate_limit_of_their_daemon() {
    let Some(stage) = stage(43, 16) else { return };
    let plans = [("first", "two"), ("second", "one")]
        .map(|(plan, other)| stage.plan(plan, &[(&format!("  - name: \"{other}\"\n"), "")]));
    let daemon = Daemon::start_with(&stage.drover, &["--rate-limit", "2g", "--rate-limit", "1KiB"]);
    plans.iter().for_each(|plan| drop(daemon.submit(plan)));
    daemon.wait_for("images of both", || {
        let images = ["one", "two"].iter().all(|vm| stage.image(vm, 0).exists());
        (images && stage.served() > 0).then_some(())
    });
    daemon.stop();
    // No more than the first request of all, whoever made it.
    let served = stage.served();
    assert!(served <= 4 * MIB, "{served} of 24 MiB were read, and a request has 4 at most");
    let daemon = Daemon::start(&stage.drover);
    assert_eq!(daemon.went_on.as_array().unwrap().len(), 2, "{}", daemon.went_on);
    ["first", "second"].iter().for_each(|plan| drop(daemon.wait(plan, "done")));
    assert_arrived(&stage);
    daemon.stop();
}

#[test]
fn limits_that_are_ordered_outlast_the_daemon_and_are_in_its_audit_log() {
    let Some(stage) = stage(211, 16) else { return };
    let plan = stage.plan("slow", &[("overcommit: true", "overcommit: true\n  rate_limit: [1KiB]")]);
    let daemon = Daemon::start(&stage.drover);
    daemon.submit(&plan);
    daemon.wait_for("images of both", || {
        let images = ["one", "two"].iter().all(|vm| stage.image(vm, 0).exists());
        (images && stage.served() > 0).then_some(())
    });
    let order =
        |limits| daemon.post("/v1/plans/slow/orders", &json!({ "order": "limits", "limits": limits }));
    for (wrong, status, why) in [
        (json!({"rate_limit": ["fast"]}), 422, "rate_limit: "),
        (json!({"disks": 1001}), 422, "disks: '1001' is not a number from 1 to 1000"),
        (json!({}), 422, "no limit is named"),
        (json!(null), 400, "`limits` belongs to"),
    ] {
        let refused = order(wrong);
        let detail = refused.1["detail"].as_str().unwrap_or_default();
        assert!(refused.0 == status && detail.starts_with(why), "{} {}", refused.0, refused.1);
    }
    let advice = order(json!({"rate_limit": ["fast"]})).1["advice"].to_string();
    assert!(advice.contains("a rate is 50MiB, 500m, WINDOW=RATE, or none alone"), "{advice}");
    let misplaced = json!({"order": "pause", "limits": {"disks": 4}});
    assert_eq!(daemon.post("/v1/plans/slow/orders", &misplaced).0, 400);
    let fewer = order(json!({"disks": 4}));
    assert_eq!((fewer.0, &fewer.1["limits"]["changed"]), (200, &json!("disks 200 -> 4")), "{}", fewer.1);
    assert_eq!(daemon.get("/v1/audit")["items"][0]["after"], "running: disks 200 -> 4");
    daemon.stop();
    let daemon = Daemon::start(&stage.drover);
    assert_eq!(daemon.went_on, json!(["slow"]));
    let limits = daemon.get("/v1/plans/slow/limits");
    assert_eq!((&limits["now"]["disks"], &limits["plan"]["disks"]), (&json!(4), &json!(200)), "{limits}");
    daemon.wait("slow", "running");
    let rows = || -> Vec<Vec<String>> {
        let told = daemon.run(&["limits", "slow"]).out;
        told.lines().map(|line| line.split_whitespace().map(String::from).collect()).collect()
    };
    assert_eq!(rows()[1..3], [["rate_limit", "1KiB", "1KiB"], ["disks", "4", "200"]]);
    let faster = daemon.run(&["limits", "slow", "--rate-limit", "none"]);
    assert!(faster.code == Some(0) && faster.err.contains("rate_limit 1KiB -> none"), "{}", faster.err);
    daemon.wait("slow", "done");
    assert_arrived(&stage);
    // It is over, and what was ordered holds no more.
    assert_eq!(rows()[1..3], [["rate_limit", "1KiB", "1KiB"], ["disks", "200", "200"]]);
    daemon.stop();
}

#[test]
fn orders_pause_resume_and_cancel_a_plan_and_leave_the_source_as_it_was() {
    let Some(stage) = slow_stage(123, 48, 12) else { return };
    let before = stage.source_state();
    let daemon = Daemon::start(&stage.drover);
    daemon.submit(&stage.plan("ordered", &[]));
    daemon.wait("ordered", "running");
    daemon.wait_for("bytes", || (stage.served() > 4 * MIB).then_some(()));
    daemon.order("ordered", "pause");
    let paused = daemon.wait("ordered", "paused");
    assert_eq!((&paused["exit"], &paused["wanted"]), (&json!(130), &json!("pause")));
    let again = daemon.post("/v1/plans/ordered/orders", &json!({ "order": "pause" }));
    assert_eq!((again.0, &again.1["exit"]), (409, &json!(3)), "{}", again.1);
    daemon.order("ordered", "resume");
    daemon.wait("ordered", "running");
    let cancelled = daemon.run(&["cancel", "ordered"]);
    assert_eq!(cancelled.code, Some(0), "{}", cancelled.err);
    assert!(cancelled.err.contains("plan ordered is cancelled"), "{}", cancelled.err);
    assert_eq!(stage.source_state(), before);
    assert!(!stage.image("one", 0).exists());
    let orders: Vec<_> = daemon.get("/v1/audit")["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["action"].clone())
        .collect();
    assert_eq!(orders, ["cancel", "resume", "pause", "pause", "submit"]);
    daemon.stop();
}

#[test]
fn a_name_is_its_projects_and_a_refused_edit_changes_nothing_of_what_was_begun() {
    let Some(stage) = slow_stage(129, 48, 12) else { return };
    let daemon = Daemon::start(&stage.drover);
    let plan = stage.plan("kept", &[]);
    daemon.submit(&plan);
    daemon.wait_for("bytes", || (stage.served() > 4 * MIB).then_some(()));
    daemon.order("kept", "pause");
    daemon.wait("kept", "paused");
    let text = std::fs::read_to_string(&plan).unwrap();
    let submit = |text: &str, project: &str| {
        daemon.post("/v1/plans", &json!({ "text": text, "path": plan, "project": project }))
    };
    let other = submit(&text, "other");
    assert_eq!(other.0, 409, "{}", other.1);
    let edited = text.replace("name: \"one\"", "name: \"none\"");
    assert_ne!(edited, text);
    assert_eq!(submit(&edited, "default").0, 202);
    daemon.wait_for("the refusal", || Some(daemon.plan("kept")).filter(|plan| plan["error"].is_string()));
    stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    // It is resumed as it was begun, and the file that is not so any more is told.
    std::fs::write(&plan, &edited).unwrap();
    let resumed = daemon.run(&["resume", &plan]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    assert!(resumed.err.contains("kept.yaml was edited since the plan was begun"), "{}", resumed.err);
    daemon.wait("kept", "done");
    assert_arrived(&stage);
    let late = submit(&text, "other");
    assert_eq!(late.0, 409, "also after its end: {}", late.1);
    daemon.stop();
}

#[test]
fn several_plans_run_in_one_process_and_a_vm_is_told_in_detail() {
    let names = ["many0", "many1", "many2", "many3"];
    let Some(stage) = Stage::new(124, |folder| {
        let a = disk_file(folder, "a", 4 * MIB);
        names.iter().map(|name| vm(name, &[&a])).collect()
    }) else {
        return;
    };
    let daemon = Daemon::start(&stage.drover);
    let line = |name: &str| format!("  - name: \"{name}\"\n");
    for name in names {
        // Each takes one of the VMs.
        let others: Vec<String> = names.iter().filter(|it| **it != name).map(|it| line(it)).collect();
        let edits: Vec<(&str, &str)> = others.iter().map(|line| (line.as_str(), "")).collect();
        daemon.submit(&stage.plan(name, &edits));
    }
    names.iter().for_each(|name| drop(daemon.wait(name, "done")));
    names.iter().for_each(|name| stage.assert_equal(name, 0, &stage.path("a")));
    let vms = daemon.get("/v1/plans/many2/vms");
    assert_eq!(
        (vms["items"].as_array().unwrap().len(), &vms["items"][0]["host"]),
        (1, &json!("esx1.lab")),
        "{vms}"
    );
    let id = vms["items"][0]["id"].as_str().unwrap();
    let details = daemon.get(&format!("/v1/plans/many2/vms/{id}"));
    assert!(details["phases"].as_array().unwrap().iter().any(|phase| phase["phase"] == "copy"), "{details}");
    assert_eq!(details["disks"][0]["equal"], true);
    let first = daemon.get("/v1/plans/many2/events?limit=3");
    let next = first["next"].as_str().unwrap();
    assert_eq!(
        daemon.get(&format!("/v1/plans/many2/events?limit=3&cursor={next}"))["items"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
    daemon.stop();
}

#[test]
fn plans_write_only_to_folders_that_the_settings_allow_and_a_viewer_only_looks() {
    let Some(stage) = stage(125, 1) else { return };
    let settings = stage.path("serve.yaml");
    std::fs::write(&settings, format!("anonymous_view: true\ntargets: [{}]\n", stage.vms().display()))
        .unwrap();
    let daemon = Daemon::start_with(&stage.drover, &["--config", settings.to_str().unwrap()]);
    for outside in ["/elsewhere\n", "/vms/../elsewhere\n"] {
        let refused = daemon.run(&["migrate", &stage.plan("outside", &[("/vms\n", outside)])]);
        assert_eq!(refused.code, Some(3), "{}", refused.err);
        assert!(refused.err.contains("is not among those that this daemon writes to"), "{}", refused.err);
    }
    let viewer = stage.run(&["serve", "token", "add", "eve", "--role", "viewer"]).out;
    // What one VM says for itself, judged when its place is known.
    let over = stage.plan("over", &[("name: \"one\"", "name: \"one\"\n    target_folder: /elsewhere")]);
    let refused = daemon.run(&["migrate", &over]);
    assert_eq!(refused.code, Some(3), "{}", refused.err);
    assert!(refused.err.contains("/elsewhere/one is not among those"), "{}", refused.err);
    let plan = stage.plan("inside", &[]);
    let denied = stage
        .drover
        .command(&["migrate", &plan, "--server", &daemon.url])
        .env("DROVER_TOKEN", viewer.trim())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&denied.stderr).into_owned();
    assert_eq!(denied.status.code(), Some(4), "{words}");
    assert!(words.contains("the role of 'eve' is viewer"), "{words}");
    assert_eq!(daemon.run(&["migrate", &plan]).code, Some(0));
    let far = stage.run(&["status", "--server", "http://192.0.2.1:8420"]);
    assert_eq!(far.code, Some(2), "{}", far.err);
    assert!(far.err.contains("in the clear"), "{}", far.err);
}

#[test]
fn waves_of_a_plan_are_told_with_their_vms() {
    let Some(stage) = stage(131, 1) else { return };
    let daemon = Daemon::start(&stage.drover);
    let text = stage.plan_text("waved")
        + "waves:\n  - {name: first, from: 2020-01-01T00:00:00Z, vms: [{name: one}]}\n  \
             - {name: second, after: [first], vms: [{name: two}]}\n";
    let path = stage.path("waved.yaml");
    std::fs::write(&path, text).unwrap();
    daemon.submit(&path.display().to_string());
    daemon.wait("waved", "done");
    let waves = daemon.get("/v1/plans/waved/waves");
    let [first, second] = &waves["items"].as_array().unwrap()[..] else { panic!("two waves: {waves}") };
    assert_eq!(
        (&first["name"], &first["state"], &first["done"]),
        (&json!("first"), &json!("done"), &json!(1))
    );
    let window = json!({ "windows": [], "freezes": [], "from_ms": 1_577_836_800_000_i64, "until_ms": null });
    assert_eq!(first["window"], window);
    assert_eq!((&second["after"], &second["if_failed"]), (&json!(["first"]), &json!("wait")));
    assert!(second["began_ms"].as_i64() >= first["ended_ms"].as_i64(), "{waves}");
    let vms = daemon.get("/v1/plans/waved/vms");
    let of = |at: usize| vms["items"][at]["wave"].as_str().unwrap().to_string();
    assert_eq!([of(0), of(1)], ["first", "second"]);
    daemon.stop();
}

/// Sends wrong tokens and garbage by turns until it is over; gives how many requests were answered.
fn flood(address: &str, over: &AtomicBool) -> usize {
    let mut answered = 0;
    while !over.load(Ordering::SeqCst) {
        let Ok(stream) = TcpStream::connect(address) else { continue };
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let (mut reader, mut writer) = (BufReader::new(&stream), &stream);
        for number in 0..200 {
            // In one piece: small ones wait for each other.
            let request =
                format!("GET /v1/plans HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong-{number}\r\n\r\n");
            if writer.write_all(request.as_bytes()).is_err()
                || !takes_answer(&mut reader)
                || over.load(Ordering::SeqCst)
            {
                break;
            }
            answered += 1;
        }
        // It closes on what is no HTTP.
        let _ = writer.write_all(b"\x16\x03\x01\x02\0\x01\0\r\n\r\n");
    }
    answered
}

/// Reads an answer that has a length; whether one came.
fn takes_answer(reader: &mut impl BufRead) -> bool {
    let (mut line, mut length) = (String::new(), 0);
    while line != "\r\n" {
        line.clear();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return false;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap();
        }
    }
    reader.read_exact(&mut vec![0; length]).is_ok()
}

#[test]
fn a_plan_arrives_while_strangers_send_wrong_tokens_garbage_and_nothing() {
    let Some(stage) = slow_stage(130, 32, 12) else { return };
    let daemon = Daemon::start(&stage.drover);
    daemon.submit(&stage.plan("besieged", &[]));
    daemon.wait_for("bytes", || (stage.served() > 4 * MIB).then_some(()));
    let address = daemon.url.trim_start_matches("http://");
    let (over, before) = (AtomicBool::new(false), daemon.resident_bytes());
    let slow: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    slow.iter().for_each(|mut stream| stream.write_all(b"GET / HT").unwrap());
    let answered: usize = std::thread::scope(|scope| {
        let floods: Vec<_> = (0..8).map(|_| scope.spawn(|| flood(address, &over))).collect();
        let grown = daemon.wait_for("the end of the plan", || {
            let plan = daemon.plan("besieged");
            (plan["state"] == "done").then(|| daemon.resident_bytes().saturating_sub(before))
        });
        over.store(true, Ordering::SeqCst);
        assert!(grown < 128 * MIB, "memory grew by {} MiB", grown / MIB);
        floods.into_iter().map(|it| it.join().unwrap()).sum()
    });
    println!("{answered} wrong tokens were answered meanwhile");
    assert!(answered > 100, "{answered}");
    assert_arrived(&stage);
    let plan = daemon.plan("besieged");
    assert_eq!((&plan["vms"]["done"], &plan["exit"]), (&json!(2), &json!(0)), "{plan}");
    drop(slow);
    daemon.stop();
}

#[test]
fn systemd_finds_no_fault_with_the_unit_of_the_daemon() {
    drover_stage::units::assert_sound("drover-serve.service", "ExecStart=/usr/bin/drover serve");
}

/// VMs of a plan as spans in which they held a slot of their host.
#[test]
fn who_has_a_jwt_of_the_issuer_gives_orders_and_is_named_in_the_audit_log() {
    let Some(stage) = stage(128, 1) else { return };
    let issuer = Issuer::start();
    let settings = stage.path("serve.yaml");
    let text = format!(
        "oidc:\n  issuer: {}\n  audience: drover\n  roles: {{viewer: [staff]}}\n  projects:\n    web: {{operator: [web]}}\n",
        issuer.url
    );
    std::fs::write(&settings, text).unwrap();
    let daemon = Daemon::start_with(&stage.drover, &["--config", settings.to_str().unwrap()]);
    let plan = stage.plan("served", &[]);
    let run = |token: &str, args: &[&str]| {
        let file = stage.path("jwt");
        std::fs::write(&file, token).unwrap();
        let args = [args, &["--server", &daemon.url, "--token-file", file.to_str().unwrap()]].concat();
        stage.drover.run(&args).unwrap()
    };
    let (ann, eve) = (issuer.token("ann", &["staff", "web"]), issuer.token("eve", &["staff"]));
    let migrated = run(&ann, &["migrate", &plan, "--project", "web"]);
    assert_eq!(migrated.code, Some(0), "{}{}", migrated.out, migrated.err);
    assert_arrived(&stage);
    let other = run(&ann, &["migrate", &plan, "--project", "db"]);
    assert_eq!(other.code, Some(4), "{}", other.err);
    assert!(other.err.contains("may not give orders in project 'db'"), "{}", other.err);
    let viewer = run(&eve, &["migrate", &plan]);
    assert!(viewer.err.contains("is viewer, and this takes operator"), "{}", viewer.err);
    let who = format!("ann of {}", issuer.url);
    let audit = daemon.get("/v1/audit");
    assert_eq!(
        (audit["items"][0]["who"].as_str(), audit["items"][0]["role"].as_str()),
        (Some(&*who), Some("operator"))
    );
    // Without the issuer its known keys count on, and tokens do.
    let stranger = Issuer::start().token("ann", &["web"]);
    issuer.stop();
    assert_eq!(run(&eve, &["status"]).code, Some(0));
    let denied = run(&stranger, &["status"]);
    assert_eq!(denied.code, Some(4), "{}", denied.err);
    assert_eq!(daemon.run(&["status"]).code, Some(0));
}

fn held(report: &serde_json::Value) -> Vec<(i64, i64)> {
    let one = |vm: &serde_json::Value| {
        let phases = vm["phases"].as_array().unwrap();
        let phase = |name: &str| phases.iter().find(|it| it["phase"] == name).unwrap();
        (phase("check")["started_ms"].as_i64().unwrap(), phase("verify")["ended_ms"].as_i64().unwrap())
    };
    report["vms"].as_array().unwrap().iter().map(one).collect()
}

#[test]
fn plans_share_the_slots_of_a_host_and_stand_in_one_order() {
    let Some(stage) = Stage::new(126, |folder| {
        let small = |number: usize| {
            let file = disk_file(folder, &format!("a{number}"), 4 * MIB);
            vm(&format!("a{number}"), &[&file])
        };
        let large = |number: usize| {
            let file = disk_file(folder, &format!("b{number}"), 16 * MIB);
            vm(&format!("b{number}"), &[&file])
        };
        (0..8).map(small).chain((0..2).map(large)).collect()
    }) else {
        return;
    };
    stage.sim.post("/rate", json!({"bytes_per_s": 8 * MIB, "per": "host"})).unwrap();
    let settings = stage.path("serve.yaml");
    std::fs::write(&settings, "limits: {vms_per_host: 2}\n").unwrap();
    let daemon = Daemon::start_with(&stage.drover, &["--config", &settings.display().to_string()]);
    let of = |name: &str, letter: char| {
        let is_other =
            |line: &&str| line.starts_with("  - name: \"") && !line.contains(&format!("\"{letter}"));
        let text = stage.plan_text(name);
        let text: String =
            text.lines().filter(|line| !is_other(line)).map(|line| format!("{line}\n")).collect();
        let path = stage.path(&format!("{name}.yaml"));
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    daemon.submit(&of("many", 'a'));
    daemon.wait_for("the first plan to begin", || (stage.served() > 0).then_some(()));
    daemon.submit(&of("few", 'b'));
    // Whoever looks sees what VMs wait for, and how much of the host is in use.
    let waits =
        |vm: &serde_json::Value| vm["waits"].as_str().is_some_and(|text| text.starts_with("esx1.lab: "));
    daemon.wait_for("what VMs wait for", || {
        daemon.get("/v1/plans/many/vms")["items"].as_array().unwrap().iter().any(waits).then_some(())
    });
    let host = daemon.get("/v1/resources")["hosts"][0].clone();
    assert_eq!((&host["host"], &host["vms"], &host["vms_max"]), (&json!("esx1.lab"), &json!(2), &json!(2)));
    assert!(daemon.text("/metrics").contains("drover_host_vms_max{host=\"esx1.lab\"} 2\n"));
    assert_eq!(daemon.get("/v1/plans/many/waves")["items"], json!([]));
    daemon.wait("few", "done");
    daemon.wait("many", "done");
    let (many, few) = (held(&daemon.get("/v1/plans/many/report")), held(&daemon.get("/v1/plans/few/report")));
    assert_eq!((many.len(), few.len()), (8, 2));
    let all: Vec<(i64, i64)> = many.iter().chain(&few).copied().collect();
    let at_once = |at: i64| all.iter().filter(|(from, to)| *from <= at && at < *to).count();
    let most = all.iter().map(|(from, _)| at_once(*from)).max();
    assert_eq!(most, Some(2), "the host's slots, over both plans: {all:?}");
    // The larger VMs of the second plan go before those of the first that wait, and not after that plan.
    let last_of_few = few.iter().map(|(from, _)| *from).max().unwrap();
    let later = many.iter().filter(|(from, _)| *from > last_of_few).count();
    assert!(later >= 3, "{later} of the first plan began later: {all:?}");
    daemon.stop();
}
