//! Every route answers as `openapi.json` says, and none is missing there.

use std::collections::BTreeSet;

use drover_server::OPENAPI;
use serde_json::{Value, json};

use crate::fake::{Answer, Stage};

pub fn description() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

/// Holds an answer against the schema that the description has for it.
pub fn hold(description: &Value, method: &str, path: &str, answer: &Answer) {
    let responses = &description["paths"][path][method]["responses"];
    let described = &responses[answer.status.to_string()];
    let described = if described.is_null() { &responses["default"] } else { described };
    let media = &described["content"][answer.content_type()];
    assert!(
        !media.is_null(),
        "{method} {path}: {} of {} is not described",
        answer.status,
        answer.content_type()
    );
    if answer.content_type().ends_with("json") {
        let mut schema = media["schema"].clone();
        schema["components"] = description["components"].clone();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let errors: Vec<String> = validator
            .iter_errors(&answer.json())
            .map(|it| format!("{it} at {}", it.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{method} {path}: {errors:?}\n{}", answer.body);
    }
}

fn body_for(path: &str) -> Value {
    if path.ends_with("/orders") {
        json!({ "order": "pause" })
    } else {
        json!({ "text": "plan", "project": "web" })
    }
}

#[test]
fn every_order_that_is_described_is_taken_and_written_down_by_its_word() {
    let stage = Stage::new();
    let words = description()["components"]["schemas"]["Order"]["properties"]["order"]["enum"].clone();
    let words: Vec<&str> = words.as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
    for word in &words {
        let limits = (*word == "limits").then(|| json!({ "disks": 8 }));
        let order = json!({ "order": word, "vm": "web1", "limits": limits });
        let answer = stage.post("operator", "/v1/plans/one/orders", &order);
        // The daemon of this test refuses one of them.
        assert!(matches!(answer.status, 200 | 409), "{word}: {answer:?}");
    }
    let log = stage.get("admin", "/v1/audit").json();
    let rows = log["items"].as_array().unwrap().iter();
    let mut written: Vec<&str> = rows.map(|row| row["action"].as_str().unwrap()).collect();
    written.sort();
    let mut words = words.clone();
    words.sort();
    assert_eq!(written, words);
}

#[test]
fn every_route_answers_as_its_schema_says() {
    let stage = Stage::new();
    let description = description();
    let mut seen = 0;
    for (path, methods) in description["paths"].as_object().unwrap() {
        // A stream does not end; it has a test of its own.
        if path == "/v1/events" {
            continue;
        }
        let real = path.replace("{plan}", "one").replace("{vm}", "vm-1");
        for (method, operation) in methods.as_object().unwrap() {
            let post = || stage.post("admin", &real, &body_for(path));
            let answer = if method == "get" { stage.get("admin", &real) } else { post() };
            assert!((200..300).contains(&answer.status), "{method} {path}: {answer:?}");
            assert!(
                operation["responses"][answer.status.to_string()].is_object(),
                "{method} {path}: {}",
                answer.status
            );
            hold(&description, method, path, &answer);
            seen += 1;
            if operation["security"] != json!([]) {
                let denied = stage.send("", &method.to_uppercase(), &real, "", "{}");
                assert_eq!(denied.status, 401, "{method} {path} without a token");
                hold(&description, method, path, &denied);
                if real != *path {
                    let none = real.replace("one", "none");
                    let body = body_for(path).to_string();
                    let missing = stage.send("admin", &method.to_uppercase(), &none, "", &body);
                    assert_eq!(missing.status, 404, "{method} {none}");
                    hold(&description, method, path, &missing);
                }
            }
        }
    }
    assert!(seen >= 18, "{seen} operations");
    for form in ["text", "html"] {
        let answer = stage.get("admin", &format!("/v1/plans/one/report?format={form}"));
        hold(&description, "get", "/v1/plans/{plan}/report", &answer);
    }
}

#[test]
fn no_route_is_missing_in_the_description() {
    let description = description();
    let described: BTreeSet<String> = description["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(move |method| format!("{method} {path}"))
        })
        .collect();
    let real: BTreeSet<String> = drover_server::routes()
        .into_iter()
        .map(|(method, path)| format!("{} {path}", method.to_lowercase()))
        .collect();
    assert_eq!(described, real, "left: openapi.json; right: the server");
}

#[test]
fn a_stream_says_hello_and_what_happens_in_projects_of_the_caller() {
    use std::io::{BufRead, BufReader, Write};
    let stage = Stage::new();
    let mut stream = stage.connect();
    write!(
        stream,
        "GET /v1/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n",
        stage.token("web")
    )
    .unwrap();
    let mut lines = BufReader::new(stream).lines().map(|line| line.unwrap());
    assert!(lines.any(|line| line == "event: hello"));
    for project in ["db", "web"] {
        let data = format!("{{\"of\":\"{project}\"}}");
        stage.hub.publish(drover_server::Message {
            project: project.into(),
            plan: "p".into(),
            event: "event",
            data,
        });
    }
    let told = lines.find(|line| line.starts_with("data: {\"of\"")).unwrap();
    assert_eq!(told, "data: {\"of\":\"web\"}");
    // And each second the rates of its plans.
    assert!(lines.any(|line| line.starts_with("data: {\"plan\":\"one\"")));
}

#[test]
fn lists_come_in_pages_whose_bounds_are_told() {
    let stage = Stage::new();
    let (mut seen, mut cursor) = (0, String::new());
    loop {
        let page = stage.get("viewer", &format!("/v1/plans/one/vms?limit=1000{cursor}")).json();
        seen += page["items"].as_array().unwrap().len();
        let Some(next) = page["next"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, 2_500);
    for wrong in ["limit=0", "limit=1001", "limit=x", "cursor=-1", "cursor=x"] {
        assert_eq!(stage.get("viewer", &format!("/v1/plans/one/vms?{wrong}")).status, 400, "{wrong}");
    }
    let first = stage.get("viewer", "/v1/plans?limit=2").json();
    assert_eq!((first["items"][1]["name"].as_str(), first["next"].as_str()), (Some("two"), Some("two")));
    assert_eq!(stage.get("viewer", "/v1/plans?cursor=two").json()["items"][0]["name"], "three");
}
