//! The page in a headless Chromium, by `lab/page/page.mjs`, with 5,000 VMs that change all the time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drover_server::Message;
use serde_json::json;

use crate::fake::{BEGAN_MS, Stage};

const VMS: usize = 5_000;

pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Where its modules are; `None`, after a line why, where something is missing.
pub fn modules() -> Option<PathBuf> {
    let modules = workspace().join("target/lab/page");
    let chromium = std::env::var_os("DROVER_CHROMIUM").map_or("/usr/bin/chromium".into(), PathBuf::from);
    let missing = match () {
        () if !chromium.exists() => "chromium (Debian's package of that name)",
        () if !modules.join("node_modules/axe-core").exists() => {
            "playwright-core and axe-core (scripts/get-page-tests target/lab/page)"
        }
        () if Command::new("node").arg("--version").output().is_err() => "node 20 or later",
        () => return Some(modules),
    };
    assert!(
        std::env::var_os("DROVER_NEEDS_CHROMIUM").is_none(),
        "DROVER_NEEDS_CHROMIUM is set, and this is missing: {missing}"
    );
    println!("skipped: the page needs {missing}");
    None
}

/// Tells what the browser waits for, again and again.
fn tell(stage: &Stage, over: &AtomicBool) {
    let publish = |event, data: serde_json::Value| {
        let data = data.to_string();
        stage.hub.publish(Message { project: "web".into(), plan: "one".into(), event, data });
    };
    while !over.load(Ordering::SeqCst) {
        for number in 1..VMS / 50 {
            let vm = format!("web{} ", number * 50 + 7);
            publish(
                "event",
                json!({ "plan": "one", "at_ms": BEGAN_MS, "event": { "event": "phase_started", "vm": vm, "phase": "copy" } }),
            );
        }
        publish(
            "event",
            json!({ "plan": "one", "at_ms": BEGAN_MS, "event": { "event": "phase_started", "vm": "web7 ", "phase": "verify" } }),
        );
        let disk = |number: usize| {
            json!({
                "vm": format!("web{number} "), "disk": "Hard disk 1", "activity": "copy", "done_bytes": 1 << 28, "size_bytes": 1 << 30,
                "rate_bytes_per_s": 120_000_000, "waits_for": "source", "waits_for_share": 0.71
            })
        };
        publish(
            "live",
            json!({
                "plan": "one", "project": "web", "read_bytes": 1, "written_bytes": 1, "rate": 1e9, "eta_s": 61, "retries": 0,
                "disks": (0..400).map(disk).collect::<Vec<_>>()
            }),
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn people_see_and_order_what_the_daemon_does() {
    let Some(modules) = modules() else { return };
    let stage = Stage::with(|_| {}, VMS);
    let over = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| tell(&stage, &over));
        let mut node = Command::new("node");
        node.arg(workspace().join("lab/page/page.mjs"))
            .arg(modules)
            .arg(format!("http://{}", stage.address()));
        node.arg(stage.token("admin")).args(std::env::var_os("DROVER_SCREENSHOTS"));
        let output = node.output();
        over.store(true, Ordering::SeqCst);
        output.unwrap()
    });
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    println!("the page with {VMS} VMs: {}", out.trim());
    let done = stage.done.lock().unwrap();
    assert_eq!(
        done.orders,
        [
            "Pause one",
            "Cancel one",
            r#"Limits one {"disks":0}"#,
            r#"Limits one {"disks":8}"#,
            r#"Limits one {"rate_limit":["50MiB","08:00-18:00=2MiB"]}"#,
            "Retry one",
            "Proceed one"
        ],
        "limits that were not changed are not sent"
    );
    let retried = done.audit.iter().find(|row| row.entry.action == "retry").unwrap();
    assert_eq!(retried.entry.vm.as_deref(), Some("web53 "));
}
