//! Orders are carried out once by their key, and written down.

use serde_json::json;

use crate::fake::Stage;

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
    let retry = json!({ "order": "retry" }).to_string();
    (0..2).for_each(|_| assert_eq!(send("operator", PATH, "k3", &retry).status, 500));
    let orders = stage.done.lock().unwrap().orders.clone();
    assert_eq!(
        orders,
        ["Pause one", "Pause one", "Resume one", "Retry one", "Retry one"],
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
fn what_is_no_order_is_refused_with_its_reason() {
    let stage = Stage::new();
    for (body, status) in [
        ("", 400),
        ("{", 400),
        ("{\"order\":\"explode\"}", 400),
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
