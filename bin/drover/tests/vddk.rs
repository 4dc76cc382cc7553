//! Migrations through nbdkit's true vddk plugin, with a stand-in for VMware's library, against the simulator.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use drover_lab::StandIn;
use drover_stage::{MIB, Stage, disk_file, vm, with};
use serde_json::{Value, json};

/// A stage and its stand-in library; `None`, after a line, where something is not there.
fn stage(mode: &str, number: u8, vms: impl FnOnce(&Path) -> Vec<Value>) -> Option<(Stage, StandIn)> {
    if !StandIn::is_there() {
        return None;
    }
    let stage = Stage::new_as(mode, number, vms)?;
    let stand_in = StandIn::new(&stage.path("libdir"), &stage.sim).unwrap();
    Some((stage, stand_in))
}

fn one(mib: u64) -> impl FnOnce(&Path) -> Vec<Value> {
    move |folder| vec![vm("one", &[&disk_file(folder, "a", mib * MIB)])]
}

/// A plan that reads through VDDK, with keys added to `vddk` and texts replaced.
fn plan(stage: &Stage, stand_in: &StandIn, name: &str, keys: &str, edits: &[(&str, &str)]) -> String {
    let vddk = format!(
        "from: provider\n    path: vddk\n    vddk: {{libdir: {}, plugin: {}{keys}}}",
        stand_in.libdir().display(),
        StandIn::plugin().display()
    );
    let mut all = vec![
        ("path: https\n    from: hosts", vddk.as_str()),
        ("vms:\n", "limits: {retries: 0, retry_for: 1s}\nvms:\n"),
    ];
    all.extend(edits);
    stage.plan(name, &all)
}

/// nbdkit processes that read through this stage's library.
fn nbdkits(stage: &Stage) -> usize {
    let libdir = stage.path("libdir").display().to_string();
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok());
    let words = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    words
        .map(|it| String::from_utf8_lossy(&it).into_owned())
        .filter(|it| it.starts_with("nbdkit") && it.contains(&libdir))
        .count()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < until, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_cold_migration_through_vddk_arrives_equal_and_says_how_it_was_read() {
    let made = stage("vcenter", 110, |folder| {
        let (a, b) = (disk_file(folder, "a", 20 * MIB), disk_file(folder, "b", 3 * MIB + 512));
        vec![with(vm("one", &[&a, &b]), json!({"power": "on", "cbt": false}))]
    });
    let Some((stage, stand_in)) = made else { return };
    let plan = plan(&stage, &stand_in, "cold", ", compression: skipz", &[]);
    stage.migrate(&plan);
    stage.assert_equal("one", 0, &stage.path("a"));
    stage.assert_equal("one", 1, &stage.path("b"));
    assert_eq!(stage.served(), 0, "no byte came by HTTPS");
    let opened = stand_in.calls("open vm=");
    assert!(opened.len() == 2 && opened.iter().all(|call| call.contains("snapshot=snapshot-")), "{opened:?}");
    assert!(opened[0].contains("aio=1x4") && opened[0].contains("transport=nbdssl"), "{opened:?}");
    let report = stage.report(&plan);
    let note = report["vms"][0]["disks"][0]["details"]["note"].to_string();
    assert!(note.contains("read through VDDK 8.0.2") && note.contains("nbdssl:nbd, AIO 1 x 4"), "{report}");
    wait_until("nbdkit ends", || nbdkits(&stage) == 0);
}

#[test]
fn a_single_esxi_host_is_read_too_and_a_kill_leaves_no_nbdkit_and_a_copy_to_go_on_with() {
    let Some((stage, stand_in)) = stage("esxi", 111, one(32)) else { return };
    stand_in.set("host_bytes_per_s=2000000").unwrap();
    let plan = plan(&stage, &stand_in, "killed", "", &[("administrator@vsphere.local", "root")]);
    stand_in.set("user=root").unwrap();
    let running = stage.drover.start(&["migrate", &plan]).unwrap();
    let journal = stage.vms().join("one/one-0.raw.drover-journal");
    wait_until("some of it is copied", || {
        journal.metadata().is_ok_and(|meta| meta.len() > 512) && nbdkits(&stage) == 1
    });
    running.kill().unwrap();
    wait_until("nbdkit ends with drover", || nbdkits(&stage) == 0);
    stand_in.set("host_bytes_per_s=0").unwrap();
    let resumed = stage.run(&["resume", &plan]);
    assert_eq!(resumed.code, Some(0), "{}", resumed.err);
    stage.assert_equal("one", 0, &stage.path("a"));
}

#[test]
fn what_is_wrong_is_named_with_its_own_exit_code() {
    let Some((stage, stand_in)) = stage("vcenter", 112, one(2)) else { return };
    let before = stage.source_state();
    let fails = |name: &str, keys: &str, setting: &str, undo: &str, code: i32, words: &str| {
        stand_in.set(setting).unwrap();
        let output = stage.run(&["migrate", &plan(&stage, &stand_in, name, keys, &[])]);
        stand_in.set(undo).unwrap();
        assert_eq!(output.code, Some(code), "{name}: {}", output.err);
        assert!(output.err.contains(words) && output.err.contains("try:"), "{name}: {}", output.err);
        assert!(!output.err.contains(drover_lab::PASSWORD), "a secret is shown");
        assert_eq!(stage.source_state(), before, "{name}");
    };
    let right = format!("thumbprint={}\npassword={}", stage.sim.thumbprint, drover_lab::PASSWORD);
    fails("thumbprint", "", "thumbprint=AA:BB", &right, 5, "certificate is not the expected one");
    fails("password", "", "password=other", &right, 4, "user or password is wrong");
    fails("memory", "", "nfc_bytes_max=1000", "nfc_bytes_max=0", 6, "NFC server is out of memory");
    fails("transports", ", transports: san", &right, &right, 6, "no transport mode");
    stand_in.order("always", "read stall").unwrap();
    fails("stalled", ", timeout: 5s", &right, &right, 6, "nbdkit says");
    stand_in.withdraw("always").unwrap();
    let nowhere = stage.path("nowhere").display().to_string();
    let libdir = stand_in.libdir().display().to_string();
    let missing = plan(&stage, &stand_in, "library", "", &[(libdir.as_str(), nowhere.as_str())]);
    let output = stage.run(&["migrate", &missing]);
    assert_eq!(output.code, Some(3), "{}", output.err);
    assert!(output.err.contains("no VDDK in") && output.err.contains("Broadcom"), "{}", output.err);
    let resumed = stage.run(&["resume", "stalled"]);
    assert_eq!(resumed.code, Some(0), "all is well again: {}", resumed.err);
    stage.assert_equal("one", 0, &stage.path("a"));
}

#[test]
fn disks_are_opened_in_drovers_own_session_only_as_the_plan_says() {
    let Some((stage, stand_in)) = stage("vcenter", 122, one(4)) else { return };
    // No login of a disk's own would be let in.
    stand_in.set("password=of-nobody\ncookie=session").unwrap();
    let before = stage.source_state();
    let migrate = |name: &str, word: &str| {
        let path = plan(&stage, &stand_in, name, &format!(", reuse_session: {word}"), &[]);
        stage.drover.command(&["migrate", &path])
    };
    let ran = |mut command: Command| {
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, said) = ran(migrate("never", "never"));
    assert!(code == Some(4) && said.contains("user or password is wrong"), "{said}");
    if drover_vddk::arguments_are_hidden().unwrap() {
        println!("skipped in part: this machine's /proc hides processes");
    } else {
        let (code, said) = ran(migrate("refused", "hidden"));
        assert!(code == Some(3) && said.contains("hidepid") && said.contains("try:"), "{said}");
    }
    assert_eq!((stage.source_state(), stand_in.calls("by=cookie").len()), (before, 0));

    let (code, said) = ran(migrate("visible", "visible"));
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("warning") && said.contains("every user of this machine can read it"), "{said}");
    stage.assert_equal("one", 0, &stage.path("a"));
    assert_eq!((stand_in.calls("by=cookie").len(), stand_in.calls("by=password").len()), (1, 0));
    let note = stage.report("visible")["vms"][0]["disks"][0]["details"]["note"].to_string();
    assert!(note.contains("in drover's own session"), "{note}");

    // A mount of its own, which nobody else sees.
    let plain = migrate("hidden", "hidden");
    let mut command = Command::new("unshare");
    command.args([
        "--mount",
        "sh",
        "-c",
        "mount -t proc -o hidepid=2 proc /proc || exit 99; exec \"$@\"",
        "sh",
    ]);
    command.arg(plain.get_program()).args(plain.get_args());
    command.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
    std::fs::remove_dir_all(stage.vms()).unwrap();
    match ran(command) {
        (Some(0), _) => stage.assert_equal("one", 0, &stage.path("a")),
        (Some(1 | 99), said) if said.contains("unshare") || said.contains("mount") => {
            println!("skipped in part: /proc cannot be mounted here");
        }
        (code, said) => panic!("{code:?}: {said}"),
    }
}

#[test]
fn no_more_disks_of_a_host_are_open_than_its_nfc_server_has_memory_for() {
    let made = stage("esxi", 114, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        (0..6).map(|number| vm(&format!("vm{number}"), &[&a, &a])).collect()
    });
    let Some((stage, stand_in)) = made else { return };
    // Slow enough for one to be open when the next one is opened.
    stand_in.set(&format!("user=root\nnfc_bytes_max={}\nlatency_us=300000", 8 * MIB)).unwrap();
    let edits = [("administrator@vsphere.local", "root"), ("retry_for: 1s", "retry_for: 1s, disks: 12")];
    let plan = plan(&stage, &stand_in, "many", ", nfc_memory: 8MiB", &edits);
    let checked = stage.run(&["plan", "check", &plan]);
    let sum = "12 disks, 2 at once x 4 MiB (AIO 16 x 4) = 8 MiB of 8 MiB in hostd";
    assert!(checked.out.contains(sum), "{}{}", checked.out, checked.err);
    let json = stage.run(&["plan", "check", &plan, "--json"]).json().unwrap();
    assert_eq!(json["nfc"][0]["share"]["disks_at_once"], 2);
    stage.migrate(&plan);
    let opened = stand_in.calls("nfc host=");
    assert_eq!(opened.len(), 12, "none was refused: {opened:?}");
    assert!(opened.iter().any(|call| call.ends_with("disks=2")), "two were open at once: {opened:?}");
    assert!(stand_in.calls("aio=16x4").len() == 12);
}

#[test]
fn check_reads_one_disk_and_says_what_limits_it() {
    let Some((stage, stand_in)) = stage("vcenter", 115, one(8)) else { return };
    let before = stage.source_state();
    let plan = plan(&stage, &stand_in, "check", "", &[]);
    let told = stage.run(&["vddk", "check", &plan, "--json"]);
    let json = told.json().unwrap_or_else(|error| panic!("{error}: {}", told.err));
    assert_eq!((&json["library_version"], &json["supported"]), (&json!("8.0.2"), &json!(true)), "{json}");
    assert_eq!(json["read"]["vm"], json!("one"), "{json}");
    // All of it, but on a machine that needs more than the 5 s that are given for it.
    assert!((1..=8 * MIB).contains(&json["read"]["bytes"].as_u64().unwrap()), "{json}");
    // Four buffers of 64 KiB at 20 ms carry 12.5 MiB/s and no more; a busy machine may carry less.
    stand_in.set("latency_us=20000").unwrap();
    let slow = stage.run(&["vddk", "check", &plan, "--json"]);
    let read = &slow.json().unwrap_or_else(|error| panic!("{error}: {}", slow.err))["read"];
    assert!(read["latency_us"].as_u64().unwrap() >= 20_000, "{read}");
    assert!(read["bytes_per_s"].as_u64().unwrap() <= (256 << 10) * 50, "{read}");
    assert!(read["limit"].as_str().unwrap().contains("256 KiB in flight at"), "{read}");
    let told = stage.run(&["vddk", "check", &plan]);
    assert!(told.out.contains("what limits it: "), "{}{}", told.out, told.err);
    assert!(told.out.contains("vSphere  8.0.2: this release of VDDK reads it"), "{}", told.out);
    assert_eq!(stage.source_state(), before, "nothing was changed");
    let libdir = stand_in.libdir().display().to_string();
    let alone = stage.run(&[
        "vddk",
        "check",
        "--libdir",
        &libdir,
        "--plugin",
        &StandIn::plugin().display().to_string(),
    ]);
    assert!(alone.code == Some(0) && alone.out.contains("(8.0.2)"), "{}{}", alone.out, alone.err);
    let nowhere = stage.run(&["vddk", "check", "--libdir", "/nowhere"]);
    assert!(nowhere.code == Some(3) && nowhere.err.contains("Broadcom"), "{}", nowhere.err);
}

#[test]
fn every_pass_of_a_warm_migration_is_read_through_vddk_with_its_own_buffers() {
    let made = stage("vcenter", 116, |folder| {
        let a = disk_file(folder, "a", 8 * MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"}))]
    });
    let Some((stage, stand_in)) = made else { return };
    let writer = json!({"vm": "one", "disk": 0, "bytes_per_s": 200_000, "block": 4096, "span": "0-4MiB"});
    stage.sim.post("/writer", writer).unwrap();
    let warm = [("mode: cold", "mode: warm\nwarm: {interval: 1s, cutover: auto}")];
    let refused = plan(&stage, &stand_in, "refused", ", aio: {buf_size_in_64kb: 16, buf_count: 4}", &warm);
    let output = stage.run(&["migrate", &refused]);
    assert!(output.code == Some(3) && output.err.contains("must be off for warm"), "{}", output.err);
    stage.migrate(&plan(&stage, &stand_in, "warm", "", &warm));
    let disks = stage.sim.get("/disks?vm=one").unwrap();
    stage.assert_equal("one", 0, Path::new(disks[0]["disks"][0]["live"].as_str().unwrap()));
    let opened = stand_in.calls("open vm=");
    assert!(opened.len() >= 3 && opened.iter().all(|call| call.contains("aio=1x4")), "{opened:?}");
    assert_eq!(stage.served(), 0);
    wait_until("nbdkit ends", || nbdkits(&stage) == 0);
}

#[test]
fn somebodys_snapshot_does_not_stop_a_warm_plan_that_is_gone_on_with() {
    let made = stage("vcenter", 123, |folder| {
        let a = disk_file(folder, "a", 4 * MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"}))]
    });
    let Some((stage, stand_in)) = made else { return };
    let writer = json!({"vm": "one", "disk": 0, "bytes_per_s": 200_000, "block": 4096});
    stage.sim.post("/writer", writer).unwrap();
    let plan = plan(&stage, &stand_in, "warm", "", &[("mode: cold", "mode: warm\nwarm: {interval: 1s}")]);
    let running = stage.drover.start(&["migrate", &plan]).unwrap();
    let passes = || {
        let report = stage.run(&["report", &plan, "--json"]).json().unwrap_or_default();
        report["vms"][0]["warm"]["passes"].as_array().cloned().unwrap_or_default()
    };
    wait_until("two passes", || passes().iter().filter(|pass| pass["state"] == "complete").count() >= 2);
    running.kill().unwrap();
    stage.backup("one");
    assert_eq!(stage.run(&["cutover", &plan]).code, Some(0));
    let resumed = stage.run(&["resume", &plan]);
    assert_eq!(resumed.code, Some(0), "{}{}", resumed.out, resumed.err);
    let told = passes();
    let said = |pass: &Value| {
        pass["kind"] == "hash_diff"
            && pass["why"].to_string().contains("somebody else made a snapshot of it (backup)")
    };
    assert!(told.iter().any(said), "{told:#?}");
    let disks = stage.sim.get("/disks?vm=one").unwrap();
    stage.assert_equal("one", 0, Path::new(disks[0]["disks"][0]["live"].as_str().unwrap()));
    let left = stage.sim.vm("one").unwrap()["snapshots"].to_string();
    assert!(left.contains("backup") && !left.contains("drover"), "{left}");
}
