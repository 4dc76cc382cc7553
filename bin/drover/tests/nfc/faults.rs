//! What goes wrong at a host, a vCenter or a VM, and what becomes of it.

use serde_json::json;

use crate::{assert_equal, counted, note, one, plan, struck};
use drover_stage::process::{PATIENCE, wait_until};
use drover_stage::{MIB, Stage};

#[test]
fn what_breaks_on_the_way_is_made_anew_and_the_copy_goes_on() {
    let Some(stage) = Stage::new(134, one(8)) else { return };
    // So that each request is answered in several.
    stage.sim.post("/nfc/set", json!({"fragment_bytes": [262_144]})).unwrap();
    for (number, (fault, edit)) in [
        (json!({"at": "read", "do": "cut", "where": "header", "skip": 3}), ""),
        (json!({"at": "read", "do": "cut", "where": "payload", "skip": 3}), ""),
        (json!({"at": "read", "do": "cut", "where": "extra", "skip": 3}), ""),
        (json!({"at": "read", "do": "stall", "skip": 2}), "timeout: 1s"),
        (json!({"at": "read", "do": "error", "code": 5, "text": "Failed to allocate the requested 24117272 bytes"}), ""),
        (json!({"at": "read", "do": "error", "code": 5, "text": "no memory", "fragment": 2, "skip": 2}), ""),
        (json!({"at": "read", "do": "error", "code": 16392, "text": "Failed to lock the file", "fragment": 3}), ""),
        (json!({"at": "read", "do": "status", "code": 5, "skip": 1}), ""),
        (json!({"at": "read", "do": "status", "code": 16392, "fragment": 2}), ""),
        (json!({"at": "read", "do": "cut", "where": "extra", "fragment": 3, "skip": 1}), ""),
        (json!({"at": "open_session", "do": "error", "code": 5, "text": "no memory"}), ""),
        (json!({"at": "open_session", "do": "cut", "where": "before", "count": 2}), ""),
        (json!({"at": "open_file", "do": "cut", "where": "before"}), ""),
        (json!({"at": "ddb_get", "do": "cut", "where": "payload"}), ""),
        (json!({"at": "takeover", "do": "cut"}), ""),
        (json!({"at": "proxy", "do": "error", "text": "530 Login incorrect"}), ""),
        (json!({"at": "ddb_get", "do": "error", "code": 7, "text": "no such key"}), ""),
    ]
    .into_iter()
    .enumerate()
    {
        stage.sim.post("/fault/clear", json!({})).unwrap();
        let before = struck(&stage);
        stage.sim.post("/nfc/fault", fault.clone()).unwrap();
        let name = format!("fault{number}");
        let output = stage.run(&["migrate", &plan(&stage, &name, edit, &[])]);
        assert_eq!(output.code, Some(0), "{fault}: {}{}", output.out, output.err);
        assert_eq!(struck(&stage) - before, fault["count"].as_u64().unwrap_or(1), "{fault} struck");
        assert_equal(&stage, &name, "one", 0, &stage.path("a"));
    }
}

#[test]
fn lies_of_a_host_never_become_data() {
    let Some(stage) = Stage::new(135, one(4)) else { return };
    let fields = ["magic", "type", "opid", "size", "offset", "total", "position", "length", "extra", "codec"];
    for field in fields {
        stage.sim.post("/fault/clear", json!({})).unwrap();
        let before = struck(&stage);
        stage.sim.post("/nfc/fault", json!({"at": "read", "do": "lie", "text": field})).unwrap();
        let name = format!("lie-{field}");
        let output = stage.run(&["migrate", &plan(&stage, &name, "timeout: 2s", &[])]);
        assert_eq!(struck(&stage) - before, 1, "{field}");
        match output.code {
            Some(0) => assert_equal(&stage, &name, "one", 0, &stage.path("a")),
            _ => assert!(output.err.contains("protocol"), "{field}: {}", output.err),
        }
    }
}

#[test]
fn a_vm_that_moves_in_mid_copy_is_read_from_where_it_is() {
    moves_in_mid_copy(141, &[]);
}

/// Tickets of one disk are asked for with the VM's host, which is another one by then.
#[test]
fn an_account_that_may_open_single_disks_only_reads_on_from_the_other_host() {
    moves_in_mid_copy(189, &["VirtualMachine.Provisioning.GetVmFiles"]);
}

fn moves_in_mid_copy(number: u8, lacked: &[&str]) {
    let Some(stage) = Stage::new(number, one(32)) else { return };
    stage.sim.post("/privileges", json!({"deny": lacked})).unwrap();
    stage.sim.post("/nfc/set", json!({"host_bytes_per_s": 8 * MIB})).unwrap();
    let plan = plan(&stage, "moved", "", &[]);
    let mut running = stage.drover.start(&["migrate", &plan]).unwrap();
    wait_until("a part is read", PATIENCE, || {
        counted(&stage, "esx1.lab", "vpxa-nfc", "bytes_read") > 4 * MIB
    });
    stage.sim.post("/vm/move", json!({"vm": "one", "host": "esx2.lab", "cut_nfc": true})).unwrap();
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
    assert_equal(&stage, "moved", "one", 0, &stage.path("a"));
    assert!(counted(&stage, "esx2.lab", "vpxa-nfc", "bytes_read") > 0, "the rest came from the other host");
}

/// A VM that moves without its connection being cut is read on where it was.
#[test]
fn a_copy_outlives_what_befalls_its_host_its_session_and_its_vm() {
    let Some(stage) = Stage::new(147, one(40)) else { return };
    stage.sim.post("/nfc/set", json!({"host_bytes_per_s": 10 * MIB})).unwrap();
    let plan = plan(&stage, "outlives", "timeout: 1s", &[]);
    let mut running = stage.drover.start(&["migrate", &plan]).unwrap();
    let read = || {
        ["esx1.lab", "esx2.lab"].map(|it| counted(&stage, it, "vpxa-nfc", "bytes_read")).iter().sum::<u64>()
    };
    let events: [(&str, &[(&str, serde_json::Value)]); 4] = [
        ("the VM moves and its connection stays", &[("/vm/move", json!({"vm": "one", "host": "esx2.lab"}))]),
        (
            "the host's service dies: connections, sessions and tickets are gone",
            &[("/nfc/restart", json!({}))],
        ),
        (
            "the API's session ends, tickets are too old, and the connection breaks",
            &[
                ("/sessions/expire", json!({})),
                ("/nfc/tickets/expire", json!({})),
                ("/nfc/cut", json!({"vm": "one"})),
            ],
        ),
        (
            "the host stands still for a minute",
            &[("/nfc/fault", json!({"at": "read", "do": "stall", "ms": 60_000}))],
        ),
    ];
    for (number, (what, orders)) in (1u64..).zip(events) {
        wait_until(what, PATIENCE, || read() > number * 5 * MIB);
        for (path, order) in orders {
            stage.sim.post(path, order.clone()).unwrap();
        }
    }
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
    assert_equal(&stage, "outlives", "one", 0, &stage.path("a"));
    leaves_nothing(&stage);
}

fn tickets_used(stage: &Stage) -> u64 {
    stage.sim.get("/nfc/stats").unwrap()["tickets_used"].as_u64().unwrap()
}

/// Neither a session at the host nor a snapshot.
fn leaves_nothing(stage: &Stage) {
    for host in ["esx1.lab", "esx2.lab"] {
        assert_eq!(counted(stage, host, "vpxa-nfc", "sessions"), 0, "{host}");
    }
    assert!(!stage.sim.vm("one").unwrap()["snapshots"].to_string().contains("drover"));
}

/// The lines of the catalogue that no other connection helps against: each is told, with what to try, and the next run
/// arrives once it has passed.
#[test]
fn what_a_host_refuses_is_told_and_leaves_nothing_behind() {
    let Some(stage) = Stage::new(148, one(2)) else { return };
    stage.sim.post("/nfc/set", json!({"fragment_bytes": [262_144]})).unwrap();
    let error = |at: &str, code: u64, text: &str| json!({"at": at, "do": "error", "code": code, "text": text, "count": -1});
    let refuse = |at: &str| json!({"at": at, "do": "refuse", "count": -1});
    let cut = |at: &str| json!({"at": at, "do": "cut", "where": "before", "count": -1});
    let no_memory = "Failed to allocate the requested 2097176 bytes";
    for (number, (fault, words)) in [
        (
            error("open_file", 11, "permission check failed for file '[ds1] one/one.vmdk'"),
            ["permission check failed", "VirtualMachine.Provisioning.GetVmFiles"],
        ),
        (
            error("open_file", 1, "cannot be opened in multiwriter mode"),
            ["multiwriter", "from a snapshot only"],
        ),
        (
            error("open_file", 16392, "Failed to lock the file"),
            ["lock the file", "another program has the disk open"],
        ),
        (error("open_session", 5, no_memory), ["error 5", "lower limits.disks"]),
        (error("open_file", 5, no_memory), ["error 5", "lower limits.disks"]),
        (error("proxy", 0, "530 Please login with USER and PASS"), ["530 Please login", ""]),
        (error("thumbprint", 0, "501 Invalid arguments"), ["501 Invalid arguments", ""]),
        (error("msg36", 3, "no session"), ["no session", "drover nfc check --trace"]),
        (error("msg51", 3, "wrong version"), ["wrong version", ""]),
        (error("msg52", 3, "no AIO"), ["no AIO", "drover nfc check --trace"]),
        (refuse("msg51"), ["NFC session", ""]),
        (refuse("msg52"), ["NFC session", ""]),
        // Of a disk, and not of a connection.
        (error("read", 2, "input/output error"), ["NFC error 2: input/output error", "one"]),
        (
            json!({"at": "read", "do": "status", "code": 2, "fragment": 1, "count": -1}),
            ["NFC error 2", "one"],
        ),
        // As its end or as a reset, whichever comes first.
        (cut("takeover"), ["TLS with the NFC server", "902"]),
        (cut("open_session"), ["opening an AIO session", "902"]),
    ]
    .into_iter()
    .enumerate()
    {
        let before = struck(&stage);
        stage.sim.post("/nfc/fault", fault.clone()).unwrap();
        let name = format!("refused{number}");
        let plan = plan(&stage, &name, "", &[("vms:\n", "limits: {retry_for: 1s}\nvms:\n")]);
        let output = stage.run(&["migrate", &plan]);
        assert_ne!(output.code, Some(0), "{fault}: {}", output.out);
        assert!(words.iter().all(|it| output.err.contains(it)), "{fault}: {}{}", output.out, output.err);
        assert!(struck(&stage) > before, "{fault} struck");
        leaves_nothing(&stage);
        stage.sim.post("/fault/clear", json!({})).unwrap();
        let output = stage.run(&["resume", &plan]);
        assert_eq!(output.code, Some(0), "{fault}: {}{}", output.out, output.err);
        assert_equal(&stage, &name, "one", 0, &stage.path("a"));
    }
}

/// What passes by itself, or in another form, while a disk is being opened.
#[test]
fn a_host_that_is_busy_or_older_than_it_says_is_tried_again() {
    let Some(stage) = Stage::new(149, one(2)) else { return };
    for (number, (host, fault)) in [
        (json!({}), json!({"at": "open_file", "do": "error", "code": 16392, "text": "Failed to lock the file", "count": 2})),
        (json!({}), json!({"at": "open_session", "do": "error", "code": 5, "text": "no memory", "count": 8})),
        (json!({"refuse_43": true}), json!({"at": "read", "do": "delay", "ms": 1})),
        // An error is all that comes, without an empty answer after it.
        (json!({"error_then_reply": false}), json!({"at": "ddb_get", "do": "error", "code": 7, "text": "no such key"})),
        (json!({"open_status": true}), json!({"at": "open_file", "do": "status", "code": 16392})),
        // Version or tag are not liked: once more with another ticket, and without the tag.
        (json!({}), json!({"at": "msg36", "do": "error", "code": 7, "text": "not that tag"})),
        (json!({}), json!({"at": "msg51", "do": "error", "code": 7, "text": "not that tag"})),
        (json!({}), json!({"at": "msg52", "do": "error", "code": 7, "text": "not that tag"})),
        (json!({}), json!({"at": "msg36", "do": "refuse"})),
        (json!({}), json!({"at": "msg51", "do": "refuse"})),
        (json!({}), json!({"at": "msg52", "do": "refuse"})),
    ]
    .into_iter()
    .enumerate()
    {
        stage.sim.post("/nfc/reset", json!({})).unwrap();
        stage.sim.post("/nfc/set", host).unwrap();
        let (before, tickets) = (struck(&stage), tickets_used(&stage));
        stage.sim.post("/nfc/fault", fault.clone()).unwrap();
        let name = format!("again{number}");
        let output = stage.run(&["migrate", &plan(&stage, &name, "", &[])]);
        assert_eq!(struck(&stage) - before, fault["count"].as_u64().unwrap_or(1), "{fault} struck");
        assert_eq!(output.code, Some(0), "{fault}: {}{}", output.out, output.err);
        assert_equal(&stage, &name, "one", 0, &stage.path("a"));
        leaves_nothing(&stage);
        if fault["at"].as_str().unwrap().starts_with("msg") {
            assert_eq!(tickets_used(&stage) - tickets, 2, "{fault}");
            let note = note(&stage, &name);
            assert!(note.contains("the host does not know the tag of newer ones"), "{fault}: {note}");
        }
    }
    stage.sim.post("/nfc/reset", json!({})).unwrap();
    stage.sim.post("/nfc/set", json!({"ticket_life_ms": 1, "latency_ms": 5})).unwrap();
    let output = stage.run(&["migrate", &plan(&stage, "too-old", "", &[])]);
    assert!(output.code != Some(0) && output.err.contains("530"), "{}", output.err);
    leaves_nothing(&stage);
}
