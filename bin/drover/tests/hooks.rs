//! Hooks and checks of real programs and servers: exit codes, kill -9 in their middle, Ctrl-C, and what the report has of them.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use drover_lab::served::serve;
use drover_stage::process::{PATIENCE, wait_until};
use drover_stage::{MIB, Stage, disk_file, vm, with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// A stage with a running VM.
fn stage(number: u8) -> Option<Stage> {
    Stage::new(number, |folder| {
        let disk = disk_file(folder, "a", 4 * MIB);
        vec![with(vm("one", &[&disk]), json!({"power": "on"}))]
    })
}

fn plan(stage: &Stage, name: &str, more: &str) -> String {
    stage.plan(name, &[("mode: cold", &format!("mode: cold\n{more}"))])
}

fn power(stage: &Stage) -> Value {
    stage.sim.vm("one").unwrap()["power"].clone()
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_string).collect()
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

#[test]
fn a_hook_that_drover_was_killed_in_ends_with_it_and_is_called_again_and_those_before_it_are_not() {
    let Some(stage) = stage(90) else { return };
    let log = stage.path("log");
    let text = "hooks:\n  before_copy: [{shell: 'echo before_copy >>log'}]\n  before_shutdown:\n    \
                - {shell: 'echo begins >>log; test -e go && exit 0; echo $$ >pid; while :; do sleep 0.1; done'}\n    \
                - {shell: 'echo second >>log'}\n  after_done: [{shell: 'cat >told; echo after_done >>log'}]";
    let plan = plan(&stage, "killed", text);
    let started = stage.drover.start(&["migrate", &plan]).unwrap();
    let pid_file = stage.path("pid");
    wait_until("the hook runs", PATIENCE, || pid_file.exists() && !lines(&pid_file).is_empty());
    let pid = lines(&pid_file)[0].clone();
    assert!(is_alive(&pid));
    started.kill().unwrap();
    wait_until("the hook is ended with drover", PATIENCE, || !is_alive(&pid));
    assert_eq!(power(&stage), "poweredOn", "nothing was done to the source");
    assert_eq!(lines(&log), ["before_copy", "begins"]);
    std::fs::write(stage.path("go"), "").unwrap();
    let resumed = stage.run(&["resume", &plan]);
    assert_eq!(resumed.code, Some(0), "{}{}", resumed.out, resumed.err);
    assert_eq!(lines(&log), ["before_copy", "begins", "begins", "second", "after_done"]);
    let told: Value = serde_json::from_str(&std::fs::read_to_string(stage.path("told")).unwrap()).unwrap();
    assert_eq!((told["plan"].as_str(), told["vm"]["name"].as_str()), (Some("killed"), Some("one")));
    assert_eq!(told["source"]["address"], format!("127.0.0.1:{}", stage.sim.port));
    assert_eq!(told["target"]["disks"][0]["path"], stage.image("one", 0).display().to_string());
    assert!(!told.to_string().contains(drover_lab::PASSWORD), "no secret is told");
    stage.assert_equal("one", 0, &stage.path("a"));
    let report = stage.report(&plan);
    let hooks = report["vms"][0]["hooks"].as_array().unwrap();
    let points: Vec<&str> = hooks.iter().map(|hook| hook["point"].as_str().unwrap()).collect();
    assert_eq!(
        points,
        ["before_copy", "before_shutdown", "before_shutdown", "before_shutdown", "after_done"]
    );
    assert_eq!((&hooks[1]["result"], &hooks[2]["result"]), (&Value::Null, &json!("passed")));
    let words = stage.run(&["report", &plan]).out;
    assert!(words.contains("hook before_shutdown 1") && words.contains("not ended"), "{words}");
}

#[test]
fn what_a_hook_says_decides_and_each_outcome_has_its_exit_code() {
    let Some(stage) = stage(91) else { return };
    let fails =
        plan(&stage, "fails", "hooks: {before_shutdown: [{shell: 'echo the LB is gone >&2; exit 9'}]}");
    let failed = stage.run(&["migrate", &fails]);
    assert_eq!(failed.code, Some(15), "{}", failed.err);
    assert!(failed.out.contains("the LB is gone"), "{}", failed.out);
    assert_eq!(power(&stage), "poweredOn");
    stage.run(&["cancel", &fails]);

    let skips =
        plan(&stage, "skips", "hooks: {before_copy: [{shell: 'echo \"{\\\"result\\\": \\\"skip\\\"}\"'}]}");
    let skipped = stage.run(&["migrate", &skips]);
    assert_eq!(skipped.code, Some(17), "{}{}", skipped.out, skipped.err);
    assert_eq!(stage.run(&["status", &skips, "--json"]).json().unwrap()["vms"][0]["state"], "skipped");
    assert_eq!(power(&stage), "poweredOn");
    stage.run(&["cancel", &skips]);

    let unready =
        plan(&stage, "unready", "checks: {pre_cutover: [{tcp: '127.0.0.1:1', within: 1s, every: 200ms}]}");
    let refused = stage.run(&["migrate", &unready]);
    assert_eq!(refused.code, Some(16), "{}", refused.err);
    assert!(refused.out.contains("check pre_cutover 1 (tcp 127.0.0.1:1)"), "{}", refused.out);
    assert_eq!(power(&stage), "poweredOn");
    stage.run(&["cancel", &unready]);

    let missing = plan(&stage, "missing", "hooks: {after_copy: [{command: [./not-there]}]}");
    for command in [
        &["plan", "check", missing.as_str()][..],
        &["plan", "check", "--offline", &missing],
        &["migrate", &missing],
    ] {
        let told = stage.run(command);
        assert_eq!(told.code, Some(3), "{command:?}: {}", told.err);
        assert!(told.err.contains("./not-there") && told.err.contains("hooks.after_copy"), "{}", told.err);
    }
}

#[test]
fn a_hook_over_http_is_told_by_post_and_its_answer_stops_the_vm() {
    let Some(stage) = stage(92) else { return };
    let (kept, asked) = mpsc::channel();
    let server = serve(move |asked| {
        kept.send((asked.head, serde_json::from_slice::<Value>(&asked.body).unwrap())).unwrap();
        (200, r#"{"result": "stop", "message": "change freeze"}"#.to_string())
    });
    let server = server.unwrap();
    std::fs::write(stage.path("token"), "t0ken\n").unwrap();
    let hook = format!("hooks: {{before_shutdown: [{{url: '{server}/hook', token_file: token}}]}}");
    let plan = plan(&stage, "posted", &hook);
    let stopped = stage.run(&["migrate", &plan]);
    assert_eq!(stopped.code, Some(15), "{}", stopped.err);
    assert!(stopped.out.contains("said stop: change freeze"), "{}", stopped.out);
    let (head, body) = asked.try_recv().unwrap();
    assert!(head.starts_with("POST /hook HTTP/1.1") && head.contains("Bearer t0ken"), "{head}");
    assert_eq!((body["point"].as_str(), body["vm"]["name"].as_str()), (Some("before_shutdown"), Some("one")));
    let kept = stage.run(&["report", &plan, "--json"]).out;
    assert!(!kept.contains("t0ken"), "a token is in the report");
    assert_eq!(power(&stage), "poweredOn");
}

#[test]
fn ctrl_c_ends_a_hook_that_runs_and_what_was_done_is_undone() {
    let Some(stage) = stage(93) else { return };
    let text = "hooks:\n  after_shutdown: [{shell: 'echo $$ >pid; exec sleep 600'}]\n  after_failure: [{shell: 'cat >failed'}]";
    let plan = plan(&stage, "stopped", text);
    let mut started = stage.drover.start(&["migrate", &plan]).unwrap();
    let pid_file = stage.path("pid");
    wait_until("the hook runs", PATIENCE, || !lines(&pid_file).is_empty());
    assert_eq!(power(&stage), "poweredOff");
    let began = Instant::now();
    kill_process(Pid::from_child(&started.child), Signal::INT).unwrap();
    assert_eq!(started.child.wait().unwrap().code(), Some(130));
    assert!(began.elapsed() < Duration::from_secs(300), "it does not wait for the hook");
    assert!(!is_alive(&lines(&pid_file)[0]));
    assert_eq!(power(&stage), "poweredOn");
    let told: Value = serde_json::from_str(&std::fs::read_to_string(stage.path("failed")).unwrap()).unwrap();
    assert_eq!(told["outcome"]["state"], "stopped");
}
