//! `kubectl drover` beside an API server that is played: what it asks for, and what it makes of the answers.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use drover_lab::served;
use serde_json::{Value, json};
use tempfile::TempDir;

const OWN: &str = "/apis/drover.dev/v1alpha1/namespaces/vms";

/// A request: its method, its path with the query, its body.
type Asked = (String, String, Value);

/// An API server that answers by path, and keeps what it was asked.
struct Server {
    folder: TempDir,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    fn new(answers: Vec<(String, u16, String)>) -> Server {
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let kept = asked.clone();
        let url = served::serve(move |request| answer(request, &answers, &kept)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let config = format!(
            "apiVersion: v1\nkind: Config\nclusters: [{{name: a, cluster: {{server: '{url}'}}}}]\nusers: [{{name: a, user: {{}}}}]\n\
             contexts: [{{name: a, context: {{cluster: a, user: a, namespace: vms}}}}]\ncurrent-context: a\n"
        );
        std::fs::write(folder.path().join("config"), config).unwrap();
        Server { folder, asked }
    }

    /// With these Plans and Migrations.
    fn with(plans: Vec<Value>, migrations: Vec<Value>) -> Server {
        let list = |items: Vec<Value>| {
            json!({"kind": "List", "metadata": {"resourceVersion": "7"}, "items": items}).to_string()
        };
        let mut answers: Vec<(String, u16, String)> = migrations
            .iter()
            .map(|it| format!("{OWN}/migrations/{}", it["metadata"]["name"].as_str().unwrap()))
            .chain([format!("{OWN}/plans/web")])
            .map(|path| (path, 200, "{}".to_string()))
            .collect();
        answers.push((format!("{OWN}/plans"), 200, list(plans)));
        answers.push((format!("{OWN}/migrations"), 200, list(migrations)));
        let pods = "/api/v1/namespaces/vms/pods";
        let pod = |name: &str, made: &str| json!({"metadata": {"name": name, "creationTimestamp": made}});
        let all = vec![pod("old", "2026-01-01T00:00:00Z"), pod("new", "2026-01-02T00:00:00Z")];
        answers.push((pods.into(), 200, list(all)));
        answers.push((format!("{pods}/new/log"), 200, "one\r\ntwo\x1b[2J\nlast".into()));
        Server::new(answers)
    }

    /// The program by the name that kubectl looks for.
    fn run(&self, args: &[&str]) -> Output {
        let plugin: PathBuf = self.folder.path().join("kubectl-drover");
        if !plugin.exists() {
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_drover"), &plugin).unwrap();
        }
        let mut command = Command::new(plugin);
        command.args(args).env("KUBECONFIG", self.folder.path().join("config"));
        command.output().unwrap()
    }

    fn says(&self, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn refuses(&self, args: &[&str], code: i32, words: &str) {
        let output = self.run(args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(words), "{args:?}: {words}: {output:?}");
    }

    /// What was changed since the last call.
    fn changes(&self) -> Vec<(String, Value)> {
        let asked = std::mem::take(&mut *self.asked.lock().unwrap());
        let changes = asked.into_iter().filter(|(method, ..)| method == "PATCH");
        changes.map(|(_, path, body)| (path.split('?').next().unwrap().to_string(), body)).collect()
    }
}

fn answer(
    request: served::Asked,
    answers: &[(String, u16, String)],
    asked: &Mutex<Vec<Asked>>,
) -> (u16, String) {
    let of = request.path;
    let body = serde_json::from_slice(&request.body).unwrap_or_default();
    asked.lock().unwrap().push((request.method, of.clone(), body));
    let is_stream = of.contains("watch=1");
    let path = of.split('?').next().unwrap();
    let path = if is_stream { format!("{path}?watch") } else { path.to_string() };
    // Of several answers each is given once, and the last one from then on.
    let is_same = |asked: &&Asked| {
        !is_stream && !asked.1.contains("watch=1") && asked.1.split('?').next() == Some(path.as_str())
    };
    let times = asked.lock().unwrap().iter().filter(is_same).count();
    let found: Vec<_> = answers.iter().filter(|(of, ..)| *of == path).collect();
    match found.get(times.clamp(1, found.len().max(1)) - 1) {
        Some((_, code, text)) => (*code, text.clone()),
        // Streams of changes bring none.
        None if is_stream => (200, String::new()),
        None => (404, "404 page not found\n".to_string()),
    }
}

fn plan() -> Value {
    json!({"metadata": {"name": "web", "generation": 1}, "spec": {"provider": "vcenter"},
        "status": {"resolvedGeneration": 1, "migrations": 2, "conditions": [{"type": "Resolved", "status": "True", "reason": "Resolved"}]}})
}

fn migration(number: u8, vm: &str, phase: &str, reason: &str) -> Value {
    json!({"metadata": {"name": format!("vm-{number}"), "uid": format!("u{number}")},
        "spec": {"vm": {"name": vm}, "targetName": vm, "planRef": {"name": "web"}, "plan": {"mode": "warm"}},
        "status": {"phase": phase, "progress": {"percent": 40}, "conditions": [
            {"type": "Arrived", "status": if phase == "Done" { "True" } else { "False" }, "reason": reason, "message": format!("{vm} in words")}]}})
}

#[test]
fn plans_and_vms_are_shown() {
    let server = Server::with(
        vec![plan()],
        vec![migration(1, "web01", "Running", "Moving"), migration(2, "db01", "Failed", "TooManyOutages")],
    );
    let text = server.says(&["status"]);
    for part in ["web01  web   Running  40  Moving", "db01: db01 in words", "Resolved"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let told: Value = serde_json::from_str(&server.says(&["status", "db01", "--json"])).unwrap();
    assert_eq!((&told["namespace"], told["migrations"].as_array().unwrap().len()), (&json!("vms"), 1));
    assert_eq!(
        (&told["migrations"][0]["phase"], &told["migrations"][0]["warm"]),
        (&json!("Failed"), &json!(true))
    );
    server.refuses(&["status", "web02"], 3, "no Migration of a VM called web02 in the namespace vms");
    server.refuses(&["status", "--plan", "other"], 3, "there is no Plan other");
    server.refuses(&["status", "-n", "elsewhere"], 7, "install the operator");
}

#[test]
fn vms_of_a_wave_and_in_a_phase_are_shown_counted_and_steered() {
    let all = [(1, "web01", "Failed", "pilot"), (2, "web02", "Done", "pilot"), (3, "db01", "Failed", "rest")];
    let all = all.map(|(number, vm, phase, wave)| {
        let mut it = migration(number, vm, phase, "Said");
        it["spec"]["wave"] = json!(wave);
        it
    });
    let server = Server::with(vec![plan()], all.to_vec());
    let text = server.says(&["status", "--wave", "pilot", "--phase", "failed"]);
    assert!(text.contains("web01") && !text.contains("web02") && !text.contains("db01"), "{text}");
    let text = server.says(&["status", "--summary"]);
    assert!(text.contains("Failed  Said      2") && !text.contains("db01"), "{text}");
    let told: Value = serde_json::from_str(&server.says(&["status", "--wave", "rest", "--json"])).unwrap();
    assert_eq!(
        (told["migrations"].as_array().unwrap().len(), &told["migrations"][0]["wave"]),
        (1, &json!("rest"))
    );
    server.refuses(&["status", "--wave", "plot"], 3, "no such Migration of a VM of the wave plot");
    server.refuses(&["status", "--phase", "broken"], 2, "possible values");
    server.refuses(&["retry", "web01", "--wave", "pilot"], 2, "--plan");

    server.says(&["retry", "--plan", "web", "--wave", "pilot"]);
    // A wave that is cancelled is not the Plan.
    server.says(&["cancel", "--plan", "web", "--wave", "rest"]);
    let changes = server.changes();
    let paths: Vec<&str> = changes.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(paths, [format!("{OWN}/migrations/vm-1"), format!("{OWN}/migrations/vm-3")]);
    assert_eq!(changes[1].1["spec"]["cancel"], true);
}

#[test]
fn vms_of_a_plan_that_was_applied_a_moment_ago_are_waited_for() {
    let list = |items: Vec<Value>| {
        json!({"kind": "List", "metadata": {"resourceVersion": "7"}, "items": items}).to_string()
    };
    let event = |kind: &str, object: &Value| json!({"type": kind, "object": object}).to_string() + "\n";
    let (mut fresh, mut laid) = (plan(), plan());
    for it in [&mut fresh, &mut laid] {
        it["spec"]["plan"] = json!({"waves": [{"name": "pilot"}, {"name": "rest"}]});
        it["metadata"]["resourceVersion"] = json!("8");
    }
    fresh["status"] = json!({});
    let mut web = migration(1, "web01", "Done", "Arrived");
    (web["spec"]["wave"], web["metadata"]["resourceVersion"]) = (json!("pilot"), json!("9"));
    let server = Server::new(vec![
        (format!("{OWN}/plans"), 200, list(vec![fresh])),
        (format!("{OWN}/plans?watch"), 200, event("MODIFIED", &laid)),
        (format!("{OWN}/migrations"), 200, list(vec![])),
        (format!("{OWN}/migrations"), 200, list(vec![web.clone()])),
        (format!("{OWN}/migrations?watch"), 200, event("ADDED", &web)),
    ]);
    let text = server.says(&["status", "--wave", "pilot", "--watch"]);
    assert!(text.contains("web01  Done"), "{text}");
    // What no Plan has is not waited for.
    server.refuses(&["status", "--wave", "plot", "--watch"], 3, "of the wave plot");
    // One that was laid out and has no such VM is not, either.
    server.refuses(&["status", "web02", "--watch"], 3, "of a VM called web02");
}

#[test]
fn the_last_workers_log_is_printed() {
    let server = Server::with(vec![], vec![migration(1, "web01", "Running", "Moving")]);
    // What others wrote drives no terminal.
    let lines = server.says(&["logs", "web01", "--tail", "3"]);
    assert_eq!(lines, "one\ntwo\u{fffd}[2J\nlast\n");
    let asked = server.asked.lock().unwrap();
    let path = &asked.last().unwrap().1;
    assert_eq!(path, "/api/v1/namespaces/vms/pods/new/log?container=worker&follow=false&tailLines=3");
}

#[test]
fn a_login_that_has_expired_is_told_from_rights_that_lack() {
    let status =
        |code: u16, message: &str| json!({"kind": "Status", "code": code, "message": message}).to_string();
    let answer = |code: u16, message: &str| vec![(format!("{OWN}/migrations"), code, status(code, message))];
    let expired = Server::new(answer(401, "Unauthorized"));
    expired.refuses(&["status"], 4, "log in again: the token");
    let forbidden = Server::new(answer(403, "migrations is forbidden: User may not list"));
    forbidden.refuses(&["status"], 4, "give this user the rights");
}

#[test]
fn an_operator_without_its_resources_says_what_to_apply() {
    let lease =
        json!({"kind": "Lease", "metadata": {"resourceVersion": "1"}, "spec": {"holderIdentity": ""}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/vms/leases/drover-operator";
    let server = Server::new(vec![(leases.into(), 200, lease.to_string())]);
    let mut operator = Command::new(env!("CARGO_BIN_EXE_drover"))
        .args(["operator", "--image", "localhost/drover:test", "--namespace", "vms"])
        .env("KUBECONFIG", server.folder.path().join("config"))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(operator.stderr.take().unwrap()).lines().map(Result::unwrap);
    let told = lines.find(|line| line.starts_with("Plans: "));
    operator.kill().unwrap();
    operator.wait().unwrap();
    assert!(told.as_ref().is_some_and(|line| line.contains("apply deploy/crds.yaml")), "{told:?}");
}

#[test]
fn what_is_asked_of_vms_goes_to_their_migrations() {
    let all = vec![
        migration(1, "web01", "Running", "Moving"),
        migration(2, "db01", "Failed", "TooManyOutages"),
        migration(3, "old01", "Done", "Arrived"),
    ];
    let server = Server::with(vec![plan()], all);
    server.says(&["cutover", "web01"]);
    let changes = server.changes();
    let [(path, body)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(
        (path.as_str(), &body["metadata"]["uid"]),
        (format!("{OWN}/migrations/vm-1").as_str(), &json!("u1"))
    );
    assert!(body["metadata"]["annotations"]["drover.dev/cutover"].is_string(), "{body}");

    server.says(&["retry", "--plan", "web"]);
    let changes = server.changes();
    assert!(
        changes.len() == 1 && changes[0].0.ends_with("/vm-2"),
        "only what may be tried again: {changes:?}"
    );
    assert!(changes[0].1["metadata"]["annotations"]["drover.dev/retry"].is_string());

    server.says(&["cancel", "db01", "web01"]);
    let paths: Vec<String> = server.changes().into_iter().map(|(path, _)| path).collect();
    assert_eq!(paths, [format!("{OWN}/migrations/vm-2"), format!("{OWN}/migrations/vm-1")]);
    server.says(&["cancel", "--plan", "web"]);
    assert_eq!(server.changes(), [(format!("{OWN}/plans/web"), json!({"spec": {"cancel": true}}))]);

    // Of what cannot be asked of one that is named, nothing is asked of the others either.
    server.refuses(&["cancel", "web01", "old01"], 3, "old01 has arrived, and stays");
    server.refuses(&["cutover", "db01"], 3, "db01 is failed");
    server.refuses(&["retry", "web01"], 3, "web01 is on its way");
    server.refuses(&["cancel"], 2, "required");
    assert!(server.changes().is_empty());
}

#[test]
fn a_word_for_a_wave_goes_to_its_plan() {
    let mut web = plan();
    (web["metadata"]["uid"], web["metadata"]["resourceVersion"]) = (json!("p1"), json!("42"));
    web["metadata"]["annotations"] = json!({"drover.dev/proceed": "early"});
    web["spec"]["plan"] = json!({"waves": [{"name": "pilot"}, {"name": "rest", "after": ["pilot"]}]});
    web["status"]["waves"] =
        json!([{"name": "pilot", "vms": 2, "arrived": 1, "failed": 1, "passed": false, "holds": true}]);
    let server = Server::with(vec![web.clone()], vec![]);
    assert_eq!(server.says(&["proceed", "web"]), "whatever of wave pilot failed, these go on: rest\n");
    let word = json!({"metadata": {"uid": "p1", "resourceVersion": "42", "annotations": {"drover.dev/proceed": "early pilot"}}});
    assert_eq!(server.changes(), [(format!("{OWN}/plans/web"), word)]);
    server.refuses(&["proceed", "web", "rest"], 3, "no wave of Plan web is after 'rest'");
    server.refuses(&["proceed", "other"], 3, "there is no Plan other");
    assert!(server.changes().is_empty());
    // The operator has heeded it.
    web["status"]["proceed"] = json!(["pilot"]);
    let server = Server::with(vec![web], vec![]);
    server.says(&["proceed", "web", "pilot"]);
    assert!(server.changes().is_empty());
}

#[test]
fn a_watch_ends_when_all_have_come_to_rest() {
    let server = Server::with(vec![plan()], vec![migration(1, "web01", "Done", "Arrived")]);
    assert!(server.says(&["status", "--watch"]).contains("web01  Done 40 %  Arrived"));
    let server = Server::with(vec![plan()], vec![migration(1, "web01", "Failed", "TooManyOutages")]);
    let output = server.run(&["status", "--watch", "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &told["phase"]), (Some(10), &json!("Failed")));
    let refused = json!({"kind": "Status", "code": 401, "message": "Unauthorized"}).to_string();
    let both = ["plans", "migrations"].map(|plural| (format!("{OWN}/{plural}"), 401, refused.clone()));
    let server = Server::new(both.into());
    server.refuses(&["status", "--watch"], 4, "who asks is not known");
}
