//! Orders are carried out once by their key, and written down.

use std::io::Write;

use serde_json::json;

use crate::described::{description, hold};
use crate::fake::{BROKEN, Stage};

const PATH: &str = "/v1/plans/one/orders";

#[test]
fn an_order_with_the_same_key_is_carried_out_once() {
    let stage = Stage::new();
    let pause = json!({ "order": "pause" }).to_string();
    let send = |who: &str, path: &str, key: &str, body: &str| {
        stage.send(who, "POST", path, &format!("Idempotency-Key: {key}\r\n"), body)
    };
    let first = send("operator", PATH, "k1", &pause);
    let second = send("operator", PATH, "k1", &pause);
    assert_eq!((first.status, &first.body), (200, &second.body));
    assert_eq!(stage.done.lock().unwrap().orders.len(), 1);
    assert_eq!(send("operator", PATH, "k1", &json!({ "order": "cancel" }).to_string()).status, 422);
    assert_eq!(
        send("operator", "/v1/plans/two/orders", "k1", &pause).status,
        422,
        "the same body for another plan"
    );
    assert_eq!(send("admin", PATH, "k1", &pause).status, 200, "keys are each caller's own");
    let resume = json!({ "order": "resume" }).to_string();
    let refused = [0, 1].map(|_| send("operator", PATH, "k2", &resume).json());
    assert_eq!((refused[0]["status"].as_u64(), &refused[0]), (Some(409), &refused[1]));
    let failing = json!({ "order": "cutover", "vm": BROKEN }).to_string();
    (0..2).for_each(|_| assert_eq!(send("operator", PATH, "k3", &failing).status, 500));
    let orders = stage.done.lock().unwrap().orders.clone();
    assert_eq!(
        orders,
        ["Pause one", "Pause one", "Resume one", "Cutover one", "Cutover one"],
        "what failed here may be tried again"
    );
    assert_eq!(send("operator", PATH, &"k".repeat(129), &pause).status, 400);
}

#[test]
fn the_audit_log_has_who_what_before_and_after_and_what_was_refused() {
    let stage = Stage::new();
    stage.post("operator", PATH, &json!({ "order": "cutover", "vm": "web1" }));
    stage.post("web", PATH, &json!({ "order": "resume" }));
    stage.post("operator", "/v1/plans", &json!({ "text": "plan" }));
    let log = stage.get("admin", "/v1/audit").json();
    let row = |number: usize, keys: [&str; 5]| {
        keys.map(|key| log["items"][number][key].as_str().unwrap_or("-").to_string())
    };
    assert_eq!(
        row(0, ["who", "action", "vm", "before", "after"]),
        ["operator", "cutover", "web1", "running", "pausing"]
    );
    assert_eq!(
        row(1, ["who", "role", "project", "action", "outcome"]),
        ["web", "operator", "web", "resume", "plan 'one' is running"]
    );
    assert_eq!(
        row(2, ["action", "project", "after", "outcome", "from"]),
        ["submit", "default", "new: running", "ok", "127.0.0.1"]
    );
}

#[test]
fn other_limits_are_ordered_by_operators_and_the_log_has_what_was_different() {
    let stage = Stage::new();
    let order = |who: &str, disks: i64| {
        stage.post(who, PATH, &json!({ "order": "limits", "limits": { "disks": disks } }))
    };
    let answer = order("operator", 8);
    hold(&description(), "post", "/v1/plans/{plan}/orders", &answer);
    let limits = &answer.json()["limits"];
    assert_eq!((&limits["before"]["disks"], &limits["after"]["disks"]), (&json!(200), &json!(8)));
    assert_eq!((order("viewer", 8).status, order("operator", 0).status), (403, 422));
    let unknown = json!({ "order": "limits", "limits": { "cutovers": 3 } });
    assert_eq!(stage.post("operator", PATH, &unknown).status, 400);
    let log = stage.get("admin", "/v1/audit").json();
    let of = |number: usize| ["action", "before", "after"].map(|key| log["items"][number][key].clone());
    assert_eq!(of(0), [json!("limits"), json!("running"), json!("running: disks 200 -> 8")], "{log}");
    assert_eq!(log["items"][1]["outcome"], "disks: '0' is not a number from 1 to 1000");
}

#[test]
fn what_is_no_order_is_refused_with_its_reason() {
    let stage = Stage::new();
    for (body, status) in [
        ("", 400),
        ("{", 400),
        ("{\"order\":\"explode\"}", 400),
        ("{\"order\":\"undo\"}", 400),
        ("{\"order\":\"pause\",\"more\":1}", 400),
        ("[]", 400),
    ] {
        assert_eq!(stage.send("operator", "POST", PATH, "", body).status, status, "{body}");
    }
    let bad = stage.post("operator", "/v1/plans", &json!({ "text": "bad" }));
    assert_eq!((bad.status, bad.json()["exit"].as_u64()), (422, Some(3)));
    assert_eq!(bad.json()["problems"][0]["line"], 3);
    let relative = json!({ "text": "plan", "path": "plan.yaml" });
    assert_eq!(stage.post("operator", "/v1/plans", &relative).status, 400);
    assert_eq!(stage.post("operator", "/v1/plans", &json!({ "text": "x", "project": "a/b" })).status, 400);
    assert_eq!(stage.send("operator", "DELETE", PATH, "", "").status, 405);
    assert_eq!(stage.get("operator", "/v2").status, 404);
}

#[test]
fn a_client_that_goes_away_neither_frees_its_key_nor_its_turn() {
    let stage = Stage::with(|options| options.bounds.order_operations = 1, 1);
    let pause = json!({ "order": "pause" }).to_string();
    let send =
        |key: &str| stage.send("operator", "POST", PATH, &format!("Idempotency-Key: {key}\r\n"), &pause);
    stage.gate.shut("order");
    let mut gone = stage.connect();
    let token = stage.token("operator");
    write!(
        gone,
        "POST {PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nIdempotency-Key: k\r\nContent-Length: {}\r\n\r\n{pause}",
        pause.len()
    )
    .unwrap();
    stage.gate.wait_for("order", 1);
    drop(gone);
    // The server sees that it is gone.
    while !stage.get("viewer", "/metrics").body.contains("drover_http_connections 1\n") {
        std::thread::yield_now();
    }
    // One more waits for its turn, and does not begin beside the first.
    std::thread::scope(|scope| {
        let second = scope.spawn(|| send("other"));
        let third = scope.spawn(|| send("k"));
        stage.get("viewer", "/v1/plans");
        assert_eq!(stage.gate.come("order"), 1, "the turn is that of the work");
        stage.gate.open("order");
        assert_eq!(second.join().unwrap().status, 200);
        let third = third.join().unwrap();
        assert!(matches!(third.status, 200 | 409), "{third:?}");
    });
    while send("k").status != 200 {
        std::thread::yield_now();
    }
    assert_eq!(stage.done.lock().unwrap().orders.len(), 2, "the order with the key `k` was carried out once");
}

#[test]
fn an_order_that_was_carried_out_is_answered_though_the_log_cannot_have_its_end() {
    let stage = Stage::new();
    stage.done.lock().unwrap().forgets_ends = true;
    assert_eq!(stage.post("operator", PATH, &json!({ "order": "pause" })).status, 200);
    let warnings = stage.done.lock().unwrap().warnings.clone();
    assert!(warnings[0].contains("is not in the audit log: no space left"), "{warnings:?}");
}

#[test]
fn an_order_is_small() {
    let stage = Stage::new();
    let cutover = |vm: String| stage.post("operator", PATH, &json!({ "order": "cutover", "vm": vm })).status;
    assert_eq!(
        [cutover("v".repeat(256)), cutover("v".repeat(257)), cutover("v".repeat(20_000))],
        [200, 400, 413]
    );
    let text = "#".repeat(20_000);
    assert_eq!(
        stage.post("operator", "/v1/plans", &json!({ "text": text })).status,
        202,
        "a plan may be larger"
    );
}
