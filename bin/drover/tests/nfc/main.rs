//! Migrations by NFC against the simulator's NFC server, which another hand wrote from the same note.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use common::process::{PATIENCE, wait_until};
use common::{MIB, Stage, disk_file, vm, with};
use drover_disk::conformance::check_reader;
use drover_http::{Thumbprint, Trust};
use drover_nfc::{
    Codec, CodecWish, Ledger, NfcDisk, NfcError, NfcErrorKind, NfcOptions, Rustls, Ticket, Tickets,
};
use drover_types::inventory::Vm;
use drover_vsphere::{NfcAccess, Session};
use serde_json::{Value, json};

/// A plan that reads by NFC, with keys of `nfc` and texts replaced.
fn plan(stage: &Stage, name: &str, keys: &str, edits: &[(&str, &str)]) -> String {
    let nfc = format!("path: nfc\n    nfc: {{{keys}}}");
    let folder = format!("/{name}-vms\n");
    let mut all = vec![("path: https", nfc.as_str()), ("/vms\n", folder.as_str())];
    if !edits.iter().any(|(from, _)| *from == "vms:\n") {
        all.push(("\nvms:\n", "\nlimits: {retries: 20, retry_for: 20s}\nvms:\n"));
    }
    all.extend(edits);
    stage.plan(name, &all)
}

fn image(stage: &Stage, name: &str, vm: &str, disk: usize) -> std::path::PathBuf {
    stage.path(&format!("{name}-vms")).join(vm).join(format!("{vm}-{disk}.raw"))
}

fn assert_equal(stage: &Stage, name: &str, vm: &str, disk: usize, file: &Path) {
    let image = image(stage, name, vm, disk);
    assert!(common::same_bytes(&image, file), "{} differs from {}", image.display(), file.display());
}

/// What the NFC service of a host has counted.
fn counted(stage: &Stage, host: &str, service: &str, key: &str) -> u64 {
    let stats = stage.sim.get("/nfc/stats").unwrap();
    stats["hosts"][host]["services"][service][key].as_u64().unwrap_or_else(|| panic!("{key} in {stats:#}"))
}

fn note(stage: &Stage, plan: &str) -> String {
    stage.report(plan)["vms"][0]["disks"][0]["details"]["note"].to_string()
}

fn one(mib: u64) -> impl FnOnce(&Path) -> Vec<Value> {
    move |folder| vec![vm("one", &[&disk_file(folder, "a", mib * MIB)])]
}

#[test]
fn vms_arrive_equal_from_their_hosts_and_nothing_is_left_open() {
    let Some(stage) = Stage::new(130, |folder| {
        let a = disk_file(folder, "a", 20 * MIB);
        let b = disk_file(folder, "b", 7 * MIB + 512);
        let c = disk_file(folder, "c", 3 * MIB);
        vec![
            vm("one", &[&a]),
            with(vm("three", &[&a, &b, &c]), json!({"host": "esx2.lab", "cbt": false, "firmware": "efi"})),
        ]
    }) else {
        return;
    };
    let before = stage.source_state();
    let plan = plan(&stage, "cold", "", &[]);
    stage.migrate(&plan);
    assert_equal(&stage, "cold", "one", 0, &stage.path("a"));
    for (disk, file) in ["a", "b", "c"].iter().enumerate() {
        assert_equal(&stage, "cold", "three", disk, &stage.path(file));
    }
    assert_eq!(stage.source_state(), before);
    assert_eq!(stage.served(), 0, "nothing came over HTTPS");
    let note = note(&stage, &plan);
    assert!(note.contains("read by NFC from 127.130.2.1:") && note.contains("vpxa-nfc"), "{note}");
    for host in ["esx1.lab", "esx2.lab"] {
        assert!(counted(&stage, host, "vpxa-nfc", "bytes_read") > 0, "{host}");
        for key in ["memory", "sessions", "held"] {
            assert_eq!(counted(&stage, host, "vpxa-nfc", key), 0, "{key} of {host}");
        }
    }
}

#[test]
fn auto_is_nfc_and_https_where_nfc_does_not_give_a_disk() {
    let Some(stage) = Stage::new(131, one(6)) else { return };
    let auto = [("path: nfc\n", "path: auto\n")];
    let first = plan(&stage, "first", "", &auto);
    stage.migrate(&first);
    assert!(note(&stage, &first).contains("read by NFC from"), "{}", note(&stage, &first));
    assert_eq!(stage.served(), 0);
    stage.sim.post("/nfc/set", json!({"refuse_tls": true})).unwrap();
    let second = plan(&stage, "second", "", &auto);
    stage.migrate(&second);
    let told = note(&stage, &second);
    assert!(told.contains("read by HTTPS ranges: ") && told.contains("TLS with the NFC server"), "{told}");
    assert!(stage.served() > 0);
    assert_equal(&stage, "second", "one", 0, &stage.path("a"));
    let insists = plan(&stage, "third", "", &[]);
    let refused = stage.run(&["migrate", &insists]);
    assert!(refused.code != Some(0) && refused.err.contains("TLS with the NFC server"), "{}", refused.err);
}

#[test]
fn a_host_that_shows_another_certificate_never_sees_the_ticket() {
    let Some(stage) = Stage::new(132, one(2)) else { return };
    stage.sim.post("/nfc/set", json!({"ticket_pin": "wrong"})).unwrap();
    let refused = stage.run(&["migrate", &plan(&stage, "wrong", "", &[])]);
    assert_eq!(refused.code, Some(5), "{}", refused.err);
    assert!(refused.err.contains("certificate"), "{}", refused.err);
    let stats = stage.sim.get("/nfc/stats").unwrap();
    assert_eq!((&stats["tickets_used"], &stats["tickets_bad"]), (&json!(0), &json!(0)), "{stats}");
    stage.sim.post("/nfc/set", json!({"ticket_pin": "certificate"})).unwrap();
    stage.migrate(&plan(&stage, "pem", "", &[]));
    assert_equal(&stage, "pem", "one", 0, &stage.path("a"));
}

#[test]
fn hosts_of_all_kinds_are_read() {
    let Some(stage) = Stage::new(133, one(5)) else { return };
    for (number, (host, keys)) in [
        (json!({"sha256": false}), ""),
        (json!({"version": 9, "status_36": "before", "split_bytes": 1}), ""),
        (json!({"bad_ticket": "session", "lib_version": -1, "ticket_no_port": false}), "encrypted: false"),
        (json!({"buffer_bytes_max": 65536}), ""),
        (
            json!({"fragment_bytes": [512, 65536, 1024], "fragment_order": "shuffle", "mix": 4}),
            "compression: none",
        ),
        (json!({"fragment_order": "reverse", "latency_ms": 2, "mix": 3}), "compression: skipz"),
        (json!({"codec_answer": "raw"}), "compression: zlib"),
        (json!({"codec_answer": "raw_kept"}), "compression: skipz"),
        (json!({}), "compression: zlib"),
        (json!({}), "compression: fastlz"),
        (json!({"qab": "off"}), ""),
    ]
    .into_iter()
    .enumerate()
    {
        stage.sim.post("/nfc/reset", json!({})).unwrap();
        stage.sim.post("/nfc/set", host.clone()).unwrap();
        let name = format!("kind{number}");
        let output = stage.run(&["migrate", &plan(&stage, &name, keys, &[])]);
        assert_eq!(output.code, Some(0), "{host} {keys}: {}{}", output.out, output.err);
        assert_equal(&stage, &name, "one", 0, &stage.path("a"));
    }
}

#[test]
fn what_breaks_on_the_way_is_made_anew_and_the_copy_goes_on() {
    let Some(stage) = Stage::new(134, one(8)) else { return };
    for (number, (fault, edit)) in [
        (json!({"at": "read", "do": "cut", "where": "header", "skip": 3}), ""),
        (json!({"at": "read", "do": "cut", "where": "payload", "skip": 3}), ""),
        (json!({"at": "read", "do": "cut", "where": "extra", "skip": 3}), ""),
        (json!({"at": "read", "do": "stall", "skip": 2}), "timeout: 1s"),
        (json!({"at": "read", "do": "error", "code": 5, "text": "Failed to allocate the requested 24117272 bytes"}), ""),
        (json!({"at": "open_session", "do": "error", "code": 5, "text": "no memory"}), ""),
        (json!({"at": "open_file", "do": "cut", "where": "before", "skip": 0}), ""),
        (json!({"at": "proxy", "do": "error", "text": "530 Login incorrect"}), ""),
        (json!({"at": "ddb_get", "do": "error", "code": 7, "text": "no such key"}), ""),
    ]
    .into_iter()
    .enumerate()
    {
        stage.sim.post("/fault/clear", json!({})).unwrap();
        stage.sim.post("/nfc/fault", fault.clone()).unwrap();
        let name = format!("fault{number}");
        let output = stage.run(&["migrate", &plan(&stage, &name, edit, &[])]);
        if fault["at"] == "open_file" {
            // A disk that cannot be opened ends its VM; the next run goes on.
            assert_ne!(output.code, Some(0), "{}", output.out);
            continue;
        }
        assert_eq!(output.code, Some(0), "{fault}: {}{}", output.out, output.err);
        assert_equal(&stage, &name, "one", 0, &stage.path("a"));
    }
}

#[test]
fn lies_of_a_host_never_become_data() {
    let Some(stage) = Stage::new(135, one(4)) else { return };
    let fields = ["magic", "type", "opid", "size", "offset", "total", "position", "length", "extra", "codec"];
    for field in fields {
        stage.sim.post("/fault/clear", json!({})).unwrap();
        stage.sim.post("/nfc/fault", json!({"at": "read", "do": "lie", "text": field})).unwrap();
        let name = format!("lie-{field}");
        let output = stage.run(&["migrate", &plan(&stage, &name, "timeout: 2s", &[])]);
        match output.code {
            Some(0) => assert_equal(&stage, &name, "one", 0, &stage.path("a")),
            _ => assert!(output.err.contains("protocol"), "{field}: {}", output.err),
        }
    }
}

#[test]
fn every_pass_of_a_warm_migration_is_read_by_nfc() {
    let Some(stage) = Stage::new(136, |folder| {
        let a = disk_file(folder, "a", 8 * MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"}))]
    }) else {
        return;
    };
    let writer = json!({"vm": "one", "disk": 0, "bytes_per_s": 200_000, "block": 4096, "span": "0-4MiB"});
    stage.sim.post("/writer", writer).unwrap();
    let warm = [("mode: cold", "mode: warm\nwarm: {interval: 1s, cutover: auto}")];
    stage.migrate(&plan(&stage, "warm", "", &warm));
    let disks = stage.sim.get("/disks?vm=one").unwrap();
    assert_equal(&stage, "warm", "one", 0, Path::new(disks[0]["disks"][0]["live"].as_str().unwrap()));
    assert!(counted(&stage, "esx1.lab", "vpxa-nfc", "sessions_opened") >= 3);
    assert_eq!((counted(&stage, "esx1.lab", "vpxa-nfc", "sessions"), stage.served()), (0, 0));
    assert!(!stage.sim.vm("one").unwrap()["snapshots"].to_string().contains("drover"));
}

#[test]
fn a_single_host_is_read_by_its_own_service_and_an_address_that_the_plan_names() {
    let Some(stage) = Stage::new_as("esxi", 137, one(4)) else { return };
    let plan_esxi = plan(&stage, "esxi", "", &[("administrator@vsphere.local", "root")]);
    stage.migrate(&plan_esxi);
    assert_equal(&stage, "esxi", "one", 0, &stage.path("a"));
    assert!(note(&stage, &plan_esxi).contains("(nfc, "), "{}", note(&stage, &plan_esxi));
    drop(stage);
    let Some(stage) = Stage::new(138, one(4)) else { return };
    let login = "from: hosts\n    network: vmk0\n    user: root\n    password_env: DROVER_PASSWORD";
    let plan_login = plan(&stage, "login", "", &[("from: hosts", login)]);
    stage.migrate(&plan_login);
    assert_equal(&stage, "login", "one", 0, &stage.path("a"));
    let told = note(&stage, &plan_login);
    assert!(told.contains("read by NFC from 127.138.1.1:") && told.contains("(vpxa-nfc, "), "{told}");
}

#[test]
fn two_programs_never_take_more_of_a_host_than_it_has() {
    let Some(stage) = Stage::new(139, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        (0..12).map(|number| vm(&format!("vm{number}"), &[&a, &a])).collect()
    }) else {
        return;
    };
    stage.sim.post("/nfc/set", json!({"latency_ms": 20})).unwrap();
    let half = |name: &str, vms: std::ops::Range<usize>| {
        let others: Vec<String> =
            (0..12).filter(|it| !vms.contains(it)).map(|it| format!("  - name: \"vm{it}\"\n")).collect();
        let mut edits: Vec<(&str, &str)> = others.iter().map(|other| (other.as_str(), "")).collect();
        edits.push(("\nvms:\n", "\nlimits: {disks: 12, vms_per_host: 12}\nvms:\n"));
        let folder = format!("/{name}-vms\n");
        let nfc = [("path: https", "path: nfc"), ("/vms\n", folder.as_str())];
        stage.plan(name, &[&nfc[..], &edits[..]].concat())
    };
    let (first, second) = (half("first", 0..6), half("second", 6..12));
    let mut other = stage.drover.command(&["migrate", &first]);
    let other = other.env("DROVER_STATE", stage.path("state2"));
    let mut other = other.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let output = stage.run(&["migrate", &second]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    assert!(other.wait().unwrap().success());
    assert!(counted(&stage, "esx1.lab", "vpxa-nfc", "memory_most") <= 48 * MIB);
    assert_eq!(counted(&stage, "esx1.lab", "vpxa-nfc", "refused"), 0);
    assert_eq!(counted(&stage, "esx1.lab", "vpxa-nfc", "sessions"), 0);
}

#[test]
fn killed_in_the_middle_it_resumes_equal_and_leaves_nothing_at_the_host() {
    let Some(stage) = Stage::new(140, one(48)) else { return };
    stage.sim.post("/nfc/set", json!({"host_bytes_per_s": 12 * MIB})).unwrap();
    let plan = plan(&stage, "killed", "", &[]);
    let running = stage.drover.start(&["migrate", &plan]).unwrap();
    let read = || counted(&stage, "esx1.lab", "vpxa-nfc", "bytes_read");
    wait_until("a part is read", PATIENCE, || read() > 8 * MIB);
    running.kill().unwrap();
    stage.sim.post("/nfc/set", json!({"host_bytes_per_s": 0})).unwrap();
    let output = stage.run(&["resume", &plan]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    assert_equal(&stage, "killed", "one", 0, &stage.path("a"));
    assert_eq!(counted(&stage, "esx1.lab", "vpxa-nfc", "sessions"), 0);
    assert!(!stage.sim.vm("one").unwrap()["snapshots"].to_string().contains("drover"));
}

#[test]
fn a_vm_that_moves_in_mid_copy_is_read_from_where_it_is() {
    let Some(stage) = Stage::new(141, one(32)) else { return };
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

#[test]
fn check_reads_a_disk_and_its_trace_holds_neither_data_nor_tickets() {
    let Some(stage) = Stage::new(142, one(8)) else { return };
    let disk = format!("127.0.0.1:{}/one/0", stage.sim.port);
    let trace = stage.path("trace").display().to_string();
    let thumbprint = stage.sim.thumbprint.clone();
    let args = ["nfc", "check", &disk, "--thumbprint", &thumbprint, "--trace", &trace, "--json"];
    let output = stage.run(&args);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    let told = output.json().unwrap();
    assert_eq!((&told["service"], &told["version"]), (&json!("vpxa-nfc"), &json!(11)), "{told}");
    assert!(told["bytes"].as_u64().unwrap() > 0 && told["budget"]["disks"] == 1, "{told}");
    let text = std::fs::read_to_string(&trace).unwrap();
    assert!(text.contains("-> type=4 ") && text.contains("<- type=7 "), "{text}");
    assert!(!text.contains("SESSION"), "{text}");
    // Heads of 44 bytes: a line with data would be far longer.
    assert!(text.lines().all(|line| line.len() < 300), "{text}");
    let people = stage.run(&["nfc", "check", &disk, "--thumbprint", &thumbprint]);
    assert!(people.code == Some(0) && people.out.contains("advice "), "{}{}", people.out, people.err);
    assert_eq!(counted(&stage, "esx1.lab", "vpxa-nfc", "sessions"), 0);
}

/// Tickets by a session, without a plan.
struct BySession {
    session: Session,
    vm: Vm,
}

impl Tickets for BySession {
    fn ticket(&self) -> Result<Ticket, NfcError> {
        let failed = |error| NfcError::other(NfcErrorKind::Unsupported, "ticket", error);
        let (vm, disk) = (&self.vm, &self.vm.disks[0]);
        let ticket =
            self.session.nfc_ticket(&vm.id, disk.key, &vm.host_id, NfcAccess::Read).map_err(failed)?;
        let pin: Thumbprint = ticket.thumbprint.unwrap().parse().unwrap();
        Ok(Ticket {
            host: ticket.host.unwrap(),
            port: ticket.port.unwrap(),
            trust: Trust::Thumbprint(pin),
            service: ticket.service,
            session: ticket.session,
        })
    }
}

#[test]
fn its_lanes_do_what_every_backend_must() {
    let Some(stage) = Stage::new(143, |folder| vec![vm("one", &[&disk_file(folder, "a", 9 * MIB + 1024)])])
    else {
        return;
    };
    let session = stage.somebody();
    let vm = session.inventory().unwrap().vms.into_iter().find(|vm| vm.name == "one").unwrap();
    let expected = std::fs::read(stage.path("a")).unwrap();
    for (codec, host) in [
        (Codec::None, json!({"fragment_order": "shuffle", "mix": 3, "fragment_bytes": [4096, 65536]})),
        (Codec::SkipZ, json!({"fragment_order": "reverse"})),
        (Codec::Zlib, json!({"mix": 2})),
        (Codec::FastLz, json!({})),
    ] {
        stage.sim.post("/nfc/reset", json!({})).unwrap();
        stage.sim.post("/nfc/set", host).unwrap();
        let options = NfcOptions {
            codec: CodecWish::Always(codec),
            timeout: Duration::from_secs(60),
            ..NfcOptions::new("one/0", &vm.disks[0].path)
        };
        let tickets = Arc::new(BySession { session: session.clone(), vm: vm.clone() });
        let ledger = Ledger::new(stage.path("ledger"));
        let disk = NfcDisk::open(options, tickets, Arc::new(Rustls), ledger).unwrap();
        check_reader(&disk, &expected);
        assert!(disk.database("uuid").is_ok() && disk.database("no-such-key").unwrap().is_none());
    }
}
