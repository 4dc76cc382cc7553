//! Migrations by NFC against the simulator's NFC server, which another hand wrote from the same note.
#![allow(clippy::unwrap_used)]

mod faults;
mod kills;
mod lanes;
mod resume;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use drover_stage::process::{PATIENCE, wait_until};
use drover_stage::{MIB, Stage, disk_file, vm, with};
use serde_json::{Value, json};

/// Has hosts read from the address of a network of theirs.
const LOGIN: &str = "from: hosts\n    network: vmk0\n    user: root\n    password_env: DROVER_PASSWORD";

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

fn image(stage: &Stage, name: &str, vm: &str, disk: usize) -> PathBuf {
    stage.path(&format!("{name}-vms")).join(vm).join(format!("{vm}-{disk}.raw"))
}

fn assert_equal(stage: &Stage, name: &str, vm: &str, disk: usize, file: &Path) {
    let image = image(stage, name, vm, disk);
    assert!(drover_stage::same_bytes(&image, file), "{} differs from {}", image.display(), file.display());
}

/// What the NFC service of a host has counted.
fn counted(stage: &Stage, host: &str, service: &str, key: &str) -> u64 {
    let stats = stage.sim.get("/nfc/stats").unwrap();
    stats["hosts"][host]["services"][service][key].as_u64().unwrap_or_else(|| panic!("{key} in {stats:#}"))
}

/// How many ordered faults struck so far.
fn struck(stage: &Stage) -> u64 {
    stage.sim.get("/nfc/stats").unwrap()["faults_struck"].as_u64().unwrap()
}

fn note(stage: &Stage, plan: &str) -> String {
    stage.report(plan)["vms"][0]["disks"][0]["details"]["note"].to_string()
}

/// The guest of the first VM writes.
fn write_mib(stage: &Stage, offset: u64) {
    let order = json!({"vm": "one", "disk": 0, "offset": offset, "length": MIB, "fill": "random"});
    stage.sim.post("/write", order).unwrap();
}

fn one(mib: u64) -> impl FnOnce(&Path) -> Vec<Value> {
    move |folder| vec![vm("one", &[&disk_file(folder, "a", mib * MIB)])]
}

/// As [`disk_file`], with every fourth MiB a true hole.
fn holed_file(folder: &Path, name: &str, bytes: u64) -> PathBuf {
    let path = disk_file(folder, name, bytes);
    let content = std::fs::read(&path).unwrap();
    let file = File::create(&path).unwrap();
    file.set_len(bytes).unwrap();
    for (number, chunk) in content.chunks(MIB as usize).enumerate().filter(|(number, _)| number % 4 != 3) {
        file.write_all_at(chunk, number as u64 * MIB).unwrap();
    }
    path
}

#[test]
fn vms_arrive_equal_from_their_hosts_and_nothing_is_left_open() {
    let Some(stage) = Stage::new(130, |folder| {
        let a = holed_file(folder, "a", 20 * MIB);
        let b = holed_file(folder, "b", 7 * MIB + 512);
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
    // What is allocated, and no hole: by change tracking from the first, by the host's own answer from the second.
    for (host, allocated) in [("esx1.lab", 15 * MIB), ("esx2.lab", 15 * MIB + 6 * MIB + 512 + 3 * MIB)] {
        assert_eq!(counted(&stage, host, "vpxa-nfc", "bytes_read"), allocated, "{host}");
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

/// Before any guest is shut down, as the firewalls in between are the most frequent cause.
#[test]
fn a_host_whose_nfc_server_cannot_be_used_is_told_before_anything_is_touched() {
    let Some(stage) = Stage::new(170, |folder| {
        let [a, b] = ["a", "b"].map(|name| disk_file(folder, name, 2 * MIB));
        vec![vm("one", &[&a]), with(vm("two", &[&b]), json!({"host": "esx2.lab"}))]
    }) else {
        return;
    };
    let before = stage.source_state();
    let insists = plan(&stage, "insists", "", &[("vms:\n", "limits: {retry_for: 1s}\nvms:\n")]);
    let auto = plan(&stage, "auto", "", &[("path: nfc\n", "path: auto\n")]);
    stage.sim.post("/nfc/set", json!({"host": "esx2.lab", "greeting": "SSH-2.0-OpenSSH_9.9"})).unwrap();
    for command in [&["plan", "check"][..], &["migrate"]] {
        let refused = stage.run(&[command, &[insists.as_str()]].concat());
        assert_eq!(refused.code, Some(5), "{}{}", refused.out, refused.err);
        let told = [
            "the NFC server of esx2.lab cannot be used",
            "SSH-2.0",
            "disks of 1 VM are to be read by NFC alone",
        ];
        assert!(told.iter().all(|it| refused.err.contains(it)), "{}", refused.err);
        assert!(!refused.err.contains("esx1.lab"), "{}", refused.err);
    }
    let checked = stage.run(&["plan", "check", &auto]);
    assert_eq!(checked.code, Some(0), "{}{}", checked.out, checked.err);
    assert!(checked.err.contains("disks of 1 VM will be read by HTTPS ranges"), "{}", checked.err);
    assert_eq!(stage.source_state(), before);
    // What has begun goes on elsewhere while a host is away.
    stage.sim.post("/nfc/reset", json!({})).unwrap();
    stage.sim.post("/nfc/fault", json!({"at": "read", "do": "cut", "where": "header", "count": -1})).unwrap();
    let failed = stage.run(&["migrate", &insists]);
    assert_ne!(failed.code, Some(0), "{}", failed.out);
    stage.sim.post("/fault/clear", json!({})).unwrap();
    stage.sim.post("/nfc/set", json!({"host": "esx2.lab", "greeting": "SSH-2.0-OpenSSH_9.9"})).unwrap();
    let resumed = stage.run(&["resume", "insists"]);
    assert_ne!(resumed.code, Some(0), "{}", resumed.out);
    assert!(
        resumed.err.contains("warning") && resumed.err.contains("the NFC server of esx2.lab"),
        "{}",
        resumed.err
    );
    assert_equal(&stage, "insists", "one", 0, &stage.path("a"));
    stage.sim.post("/nfc/reset", json!({})).unwrap();
    assert_eq!(stage.run(&["resume", "insists"]).code, Some(0));
    assert_equal(&stage, "insists", "two", 0, &stage.path("b"));
    // What had arrived is no part of what this run was foreseen to take.
    let report = stage.report("insists");
    let runs = report["runs"].as_array().unwrap();
    let foreseen = |run: &Value| run["foreseen"]["vms"].as_object().unwrap().len();
    assert_eq!((foreseen(&runs[0]), foreseen(runs.last().unwrap())), (2, 1), "{runs:#?}");
}

#[test]
fn a_host_that_shows_another_certificate_never_sees_the_ticket() {
    let Some(stage) = Stage::new(132, one(2)) else { return };
    // Where the ticket names no certificate, the host's own has to be one that the plan believes, and is not.
    for (pin, name) in [("wrong", "wrong"), ("none", "unpinned")] {
        stage.sim.post("/nfc/set", json!({"ticket_pin": pin})).unwrap();
        let refused = stage.run(&["migrate", &plan(&stage, name, "", &[])]);
        assert_eq!(refused.code, Some(5), "{}", refused.err);
        assert!(refused.err.contains("certificate"), "{}", refused.err);
        let stats = stage.sim.get("/nfc/stats").unwrap();
        assert_eq!((&stats["tickets_used"], &stats["tickets_bad"]), (&json!(0), &json!(0)), "{stats}");
    }
    stage.sim.post("/nfc/set", json!({"ticket_pin": "certificate"})).unwrap();
    // Somebody in between who lets the first handshake through. The ticket is used up by then; NFC does not begin.
    stage.sim.post("/nfc/set", json!({"takeover_cert": "other"})).unwrap();
    let refused = stage.run(&["migrate", &plan(&stage, "taken-over", "", &[])]);
    assert_eq!(refused.code, Some(5), "{}", refused.err);
    assert!(refused.err.contains("certificate"), "{}", refused.err);
    let used = &stage.sim.get("/nfc/stats").unwrap()["tickets_used"];
    assert_eq!((used, counted(&stage, "esx1.lab", "vpxa-nfc", "sessions_opened")), (&json!(1), 0));
    stage.sim.post("/nfc/set", json!({"takeover_cert": "same"})).unwrap();
    stage.migrate(&plan(&stage, "pem", "", &[]));
    assert_equal(&stage, "pem", "one", 0, &stage.path("a"));
}

#[test]
fn hosts_of_all_kinds_are_read() {
    let Some(stage) = Stage::new(133, |folder| {
        let (a, b) = (disk_file(folder, "a", 5 * MIB), holed_file(folder, "b", 9 * MIB));
        vec![vm("one", &[&a]), with(vm("two", &[&b]), json!({"cbt": false}))]
    }) else {
        return;
    };
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
        (json!({"qab": "on", "qab_ms": 20}), ""),
        (json!({"qab": "off"}), ""),
        // So few at once that it is not asked any more.
        (json!({"qab_count_max": 7}), ""),
        (json!({"compare_tags": false, "hold_surplus": false}), ""),
        (json!({"open_answers_type": 0, "ticket_reusable": true}), ""),
        (json!({"nfcssl": false}), "encrypted: false"),
        // Room for one disk at a time, and for small buffers alone.
        (json!({"memory_bytes": 1 << 20}), ""),
        (json!({"sessions_max": 1}), ""),
    ]
    .into_iter()
    .enumerate()
    {
        stage.sim.post("/nfc/reset", json!({})).unwrap();
        stage.sim.post("/nfc/set", host.clone()).unwrap();
        let before = counted(&stage, "esx1.lab", "vpxa-nfc", "bytes_read");
        let name = format!("kind{number}");
        let plan = plan(&stage, &name, keys, &[]);
        let output = stage.run(&["migrate", &plan]);
        assert_eq!(output.code, Some(0), "{host} {keys}: {}{}", output.out, output.err);
        assert_equal(&stage, &name, "one", 0, &stage.path("a"));
        assert_equal(&stage, &name, "two", 0, &stage.path("b"));
        if !host["buffer_bytes_max"].is_null() {
            let note = note(&stage, &plan);
            assert!(note.contains("the host refuses buffers of") && note.contains("64 KiB"), "{note}");
        }
        // Of the disk that change tracking tells nothing of, two MiB are holes.
        if !(host["qab"].is_null() && host["qab_count_max"].is_null()) {
            let read = counted(&stage, "esx1.lab", "vpxa-nfc", "bytes_read") - before;
            assert_eq!(read, if host["qab"] == "on" { 12 * MIB } else { 14 * MIB }, "{host}");
        }
    }
}

#[test]
fn what_change_tracking_does_not_tell_the_host_does() {
    let Some(stage) = Stage::new(192, |folder| vec![vm("one", &[&holed_file(folder, "a", 20 * MIB)])]) else {
        return;
    };
    let fault = json!({"method": "QueryChangedDiskAreas", "fault": "FileFault", "count": -1});
    stage.sim.post("/fault/soap", fault).unwrap();
    let plan = plan(&stage, "untold", "", &[]);
    stage.migrate(&plan);
    assert_equal(&stage, "untold", "one", 0, &stage.path("a"));
    assert_eq!(counted(&stage, "esx1.lab", "vpxa-nfc", "bytes_read"), 15 * MIB, "no hole was read");
    let note = note(&stage, &plan);
    assert!(note.contains("change tracking does not tell what is allocated"), "{note}");
}

/// How many chunks a host tells at once nobody knows.
#[test]
fn a_host_that_refuses_a_question_is_asked_for_fewer_chunks_and_no_hole_is_read() {
    let data = [0, 70 * MIB, 129 * MIB];
    let Some(stage) = Stage::new(186, |folder| {
        let file = File::create(folder.join("a")).unwrap();
        file.set_len(130 * MIB).unwrap();
        data.iter().for_each(|offset| file.write_all_at(&[7; MIB as usize], *offset).unwrap());
        vec![with(vm("one", &[&folder.join("a")]), json!({"cbt": false}))]
    }) else {
        return;
    };
    // Of 2,080 chunks: half of them is little enough.
    stage.sim.post("/nfc/set", json!({"qab_count_max": 1100})).unwrap();
    let plan = plan(&stage, "fewer", "", &[]);
    stage.migrate(&plan);
    assert_equal(&stage, "fewer", "one", 0, &stage.path("a"));
    assert_eq!(counted(&stage, "esx1.lab", "vpxa-nfc", "bytes_read"), data.len() as u64 * MIB);
    assert!(!note(&stage, &plan).contains("allocated blocks are unknown"), "{}", note(&stage, &plan));
}

/// A host without NFCSSL would send the data in the clear.
#[test]
fn a_host_that_encrypts_no_data_is_read_only_where_the_plan_says_so() {
    let Some(stage) = Stage::new(191, one(2)) else { return };
    stage.sim.post("/nfc/set", json!({"nfcssl": false})).unwrap();
    let output = stage.run(&["migrate", &plan(&stage, "closed", "", &[])]);
    assert!(
        output.code != Some(0) && output.err.contains("encrypted: false"),
        "{}{}",
        output.out,
        output.err
    );
    assert_eq!(counted(&stage, "esx1.lab", "vpxa-nfc", "bytes_read"), 0);
}

/// Chains of snapshots, and disks of vSAN: a datastore's server gives no ranges of them.
#[test]
fn disks_that_https_does_not_read_are_read_through_their_chains() {
    let Some(stage) = Stage::new(163, |folder| {
        let a = disk_file(folder, "a", 6 * MIB);
        let object = json!({"file": a, "datastore": "ds1", "controller": "pvscsi", "format": "vsan"});
        vec![vm("one", &[&a]), with(vm("two", &[]), json!({"disks": [object]}))]
    }) else {
        return;
    };
    let write = |offset: u64| write_mib(&stage, offset);
    write(MIB);
    stage.backup("one");
    write(3 * MIB);
    stage.backup("one");
    write(5 * MIB);
    let before = stage.source_state();
    let https = plan(&stage, "refused-https", "", &[("path: nfc\n", "path: https\n")]);
    let refused = stage.run(&["plan", "check", &https]);
    assert!(refused.code == Some(3) && refused.err.contains("one has 2 snapshots"), "{refused:?}");
    let auto = plan(&stage, "auto", "", &[("path: nfc\n", "path: auto\n")]);
    let check = stage.run(&["plan", "check", &auto]);
    assert!(
        check.code == Some(0) && check.out.contains("it arrives as it is now, without them"),
        "{check:?}"
    );
    stage.sim.post("/nfc/set", json!({"refuse_tls": true})).unwrap();
    let refused = stage.run(&["plan", "check", &auto]);
    let why = "which those with earlier snapshots are not";
    assert!(refused.code == Some(5) && refused.err.contains(why), "{refused:?}");
    stage.sim.post("/nfc/set", json!({"refuse_tls": false})).unwrap();
    let without_one = [("path: nfc\n", "path: https\n"), ("  - name: \"one\"\n", "")];
    let refused = stage.run(&["migrate", &plan(&stage, "object", "", &without_one)]);
    assert!(refused.code != Some(0) && refused.err.contains("404"), "{}", refused.err);
    let chains = plan(&stage, "chains", "", &[]);
    let check = stage.run(&["plan", "check", &chains]);
    assert!(
        check.code == Some(0) && check.out.contains("it arrives as it is now, without them"),
        "{check:?}"
    );
    stage.migrate(&chains);
    let live = |vm: &str| {
        let disks = stage.sim.get(&format!("/disks?vm={vm}")).unwrap();
        PathBuf::from(disks[0]["disks"][0]["live"].as_str().unwrap())
    };
    assert!(!drover_stage::same_bytes(&live("one"), &stage.path("a")), "it was written to");
    assert_equal(&stage, "chains", "one", 0, &live("one"));
    assert_equal(&stage, "chains", "two", 0, &stage.path("a"));
    assert_eq!((stage.served(), stage.source_state()), (0, before));
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
    let plan_login = plan(&stage, "login", "", &[("from: hosts", LOGIN)]);
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
    let answer_after = |ms: u32| stage.sim.post("/nfc/set", json!({"latency_ms": ms})).unwrap();
    answer_after(1_000);
    let half = |name: &str, vms: std::ops::Range<usize>, from: &str| {
        let others: Vec<String> =
            (0..12).filter(|it| !vms.contains(it)).map(|it| format!("  - name: \"vm{it}\"\n")).collect();
        let mut edits: Vec<(&str, &str)> = others.iter().map(|other| (other.as_str(), "")).collect();
        edits.push(("\nvms:\n", "\nlimits: {disks: 8, vms_per_host: 8}\nvms:\n"));
        let folder = format!("/{name}-vms\n");
        let nfc = [("path: https", "path: nfc"), ("/vms\n", folder.as_str()), ("from: hosts", from)];
        stage.plan(name, &[&nfc[..], &edits[..]].concat())
    };
    // One reads from the host's name, the other from the address of a network that it names.
    let (first, second) = (half("first", 0..6, "from: hosts"), half("second", 6..12, LOGIN));
    let start = |plan: &str, state: &str| {
        let mut drover = stage.drover.command(&["migrate", plan]);
        drover.env("DROVER_STATE", stage.path(state)).stdout(Stdio::null()).stderr(Stdio::null());
        drover.spawn().unwrap()
    };
    let mut both = [start(&first, "state1"), start(&second, "state2")];
    // One of them has eight at most, and two times eight do not fit.
    wait_until("disks of both are open", PATIENCE, || {
        counted(&stage, "esx1.lab", "vpxa-nfc", "sessions") > 8
    });
    answer_after(20);
    assert!(both.iter_mut().all(|drover| drover.wait().unwrap().success()));
    assert!(counted(&stage, "esx1.lab", "vpxa-nfc", "memory_most") <= 48 * MIB);
    assert_eq!(counted(&stage, "esx1.lab", "vpxa-nfc", "refused"), 0);
    assert_eq!(counted(&stage, "esx1.lab", "vpxa-nfc", "sessions"), 0);
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
    let tickets = stage.sim.get("/nfc/tickets").unwrap();
    let tickets = tickets.as_array().unwrap();
    assert!(tickets.iter().all(|id| !text.contains(id.as_str().unwrap())) && !tickets.is_empty(), "{text}");
    assert!(!text.contains("SESSION"), "{text}");
    // Heads of 44 bytes: a line with data would be far longer.
    assert!(text.lines().all(|line| line.len() < 300), "{text}");
    // Of a host that gives disks in clear text alone, from the address that a plan would choose.
    stage.sim.post("/nfc/set", json!({"nfcssl": false})).unwrap();
    let closed = stage.run(&args);
    assert!(
        closed.code != Some(0) && closed.err.contains("encrypted: false"),
        "{}{}",
        closed.out,
        closed.err
    );
    let from = ["--json", "--clear-text", "--from", "127.142.1.1"];
    let clear = stage.run(&[&args[..5], &from].concat());
    assert_eq!(clear.code, Some(0), "{}{}", clear.out, clear.err);
    let host = clear.json().unwrap()["host"].as_str().unwrap().to_string();
    assert!(host.starts_with("127.142.1.1:") && !told["host"].to_string().contains("127.142.1.1"), "{host}");
    stage.sim.post("/nfc/reset", json!({})).unwrap();
    let people = stage.run(&["nfc", "check", &disk, "--thumbprint", &thumbprint]);
    assert!(people.code == Some(0) && people.out.contains("advice "), "{}{}", people.out, people.err);
    assert_eq!(counted(&stage, "esx1.lab", "vpxa-nfc", "sessions"), 0);
}

#[test]
fn a_vm_that_runs_is_checked_from_a_snapshot_by_leave_and_keeps_none() {
    let Some(stage) = Stage::new(162, one(8)) else { return };
    stage.sim.post("/vm/power", json!({"vm": "one", "state": "on"})).unwrap();
    let disk = format!("127.0.0.1:{}/one/0", stage.sim.port);
    let check = |more: &[&str]| {
        let args = ["nfc", "check", &disk, "--thumbprint", &stage.sim.thumbprint, "--json"];
        stage.run(&[&args[..], more].concat())
    };
    let snapshots = || stage.sim.vm("one").unwrap()["snapshots"].as_array().map_or(0, Vec::len);
    let refused = check(&[]);
    assert!(refused.code == Some(3) && refused.err.contains("--snapshot"), "{refused:?}");
    let read = check(&["--snapshot"]);
    assert_eq!(read.code, Some(0), "{}{}", read.out, read.err);
    assert!(read.json().unwrap()["bytes"].as_u64().unwrap() > 0, "{}", read.out);
    assert_eq!((snapshots(), counted(&stage, "esx1.lab", "vpxa-nfc", "sessions")), (0, 0));

    // One that cannot be removed is told, and the next check removes it.
    let fault = json!({"method": "RemoveSnapshot_Task", "fault": "NoPermission"});
    stage.sim.post("/fault/soap", fault).unwrap();
    let left = check(&["--snapshot"]);
    assert!(
        left.code == Some(6) && left.err.contains("drover-nfc-check of one may still be there"),
        "{left:?}"
    );
    assert_eq!(snapshots(), 1);
    assert_eq!(check(&["--snapshot"]).code, Some(0));
    assert_eq!(snapshots(), 0);

    // Each of two that run at the same time has its own.
    stage.sim.post("/nfc/set", json!({"host_bytes_per_s": 4 * MIB})).unwrap();
    let args = ["nfc", "check", &disk, "--thumbprint", &stage.sim.thumbprint, "--snapshot", "--json"];
    let mut first = stage.drover.start(&args).unwrap();
    wait_until("the first reads", PATIENCE, || counted(&stage, "esx1.lab", "vpxa-nfc", "sessions") == 1);
    let second = check(&["--snapshot"]);
    assert_eq!(second.code, Some(0), "{}{}", second.out, second.err);
    assert_eq!(first.child.wait().unwrap().code(), Some(0));
    assert_eq!(snapshots(), 0);
    stage.sim.post("/nfc/reset", json!({})).unwrap();

    // A read that fails leaves none either.
    stage.sim.post("/nfc/set", json!({"refuse_tls": true})).unwrap();
    let failed = check(&["--snapshot"]);
    assert!(
        failed.code.is_some_and(|code| code > 0) && !failed.err.contains("may still be there"),
        "{failed:?}"
    );
    assert_eq!(snapshots(), 0);
}

#[test]
fn a_disk_that_is_copied_by_its_name_is_read_by_nfc_too() {
    let Some(stage) = Stage::new(145, one(5)) else { return };
    let disk = format!("vsphere://127.0.0.1:{}/one/0", stage.sim.port);
    let copy = |to: &str| {
        let to = stage.path(to).display().to_string();
        stage.run(&["copy", &disk, &to, "--thumbprint", &stage.sim.thumbprint])
    };
    let by_nfc = copy("by-nfc.raw");
    assert_eq!(by_nfc.code, Some(0), "{}", by_nfc.err);
    assert!(by_nfc.err.contains("read by NFC from 127.145.2.1:"), "{}", by_nfc.err);
    assert_eq!((stage.served(), counted(&stage, "esx1.lab", "vpxa-nfc", "sessions")), (0, 0));
    stage.sim.post("/nfc/set", json!({"refuse_tls": true})).unwrap();
    let by_https = copy("by-https.raw");
    assert_eq!(by_https.code, Some(0), "{}", by_https.err);
    assert!(by_https.err.contains("read by HTTPS ranges: NFC: TLS with the NFC server"), "{}", by_https.err);
    for name in ["by-nfc.raw", "by-https.raw"] {
        assert!(drover_stage::same_bytes(&stage.path(name), &stage.path("a")), "{name}");
    }
    // Where neither way leads to the disk, the user learns of both.
    stage.sim.post("/vm/power", json!({"vm": "one", "state": "on"})).unwrap();
    stage.sim.post("/nfc/reset", json!({})).unwrap();
    let running = copy("running.raw");
    let words = ["multiwriter mode", "and by HTTPS ranges", "the VM runs; take a snapshot first"];
    assert!(running.code != Some(0) && words.iter().all(|it| running.err.contains(it)), "{}", running.err);
}

#[test]
fn rights_to_read_by_nfc_are_asked_before_anything_is_touched() {
    let Some(stage) = Stage::new(146, one(2)) else { return };
    let (files, disks) =
        ("VirtualMachine.Provisioning.GetVmFiles", "VirtualMachine.Provisioning.DiskRandomRead");
    let deny = |lacked: &[&str]| {
        stage.sim.post("/privileges", json!({"deny": lacked})).unwrap();
    };
    let insists = plan(&stage, "insists", "", &[]);
    let check = stage.run(&["plan", "check", &insists]);
    assert_eq!(check.code, Some(0), "{}", check.err);
    assert!(
        check.out.contains("NFC of esx1.lab: 1 disk, 1 at once, with buffers as large as"),
        "{}",
        check.out
    );
    deny(&[files, disks]);
    let check = stage.run(&["plan", "check", &insists]);
    let words = format!("the user lacks the privileges {files} and {disks} on one: one of them is needed");
    assert!(check.code == Some(4) && check.err.contains(&words), "{}", check.err);
    let auto = plan(&stage, "auto", "", &[("path: nfc\n", "path: auto\n")]);
    let check = stage.run(&["plan", "check", &auto]);
    assert!(check.code == Some(0) && check.err.contains("so HTTPS ranges are tried"), "{}", check.err);
    stage.migrate(&auto);
    assert!(note(&stage, &auto).contains("read by HTTPS ranges: "), "{}", note(&stage, &auto));
    // Without the times of files nobody can say that a disk is as it was; passes of a warm one go by other things.
    deny(&["Datastore.Browse"]);
    let check = stage.run(&["plan", "check", &insists]);
    let words =
        "lacks the privilege Datastore.Browse on ds1: it is needed for a cold copy that was interrupted";
    assert!(check.code == Some(0) && check.err.contains(words), "{}", check.err);
    let warm = plan(&stage, "warm", "", &[("mode: cold", "mode: warm\nwarm: {interval: 5s, cutover: auto}")]);
    let check = stage.run(&["plan", "check", &warm]);
    assert!(check.code == Some(0) && !check.err.contains("Datastore.Browse"), "{}", check.err);
    // Each alone gets tickets.
    for (name, lacked) in [("disks", files), ("files", disks)] {
        deny(&[lacked]);
        let plan = plan(&stage, name, "", &[]);
        let check = stage.run(&["plan", "check", &plan]);
        assert!(check.code == Some(0) && !check.err.contains("lacks"), "{}", check.err);
        stage.migrate(&plan);
        assert_equal(&stage, name, "one", 0, &stage.path("a"));
    }
}
