//! Warm migrations against the simulator, whose guest writes all the time: what arrives is what it wrote last.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use drover_stage::debian::{HAS_DRIVERS, put_converter};
use drover_stage::{MIB, Stage, disk_file, vm, with};
use serde_json::{Value, json};

const AUTO: &str = "mode: warm\nwarm: {interval: 1s, cutover: auto, downtime_max: 10m}";
const MANUAL: &str = "mode: warm\nwarm: {interval: 1s}";
/// Nothing waits longer than this for something that has to come.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running VM with a disk of this size, and a guest that writes to it all the time.
struct Warm {
    stage: Stage,
    plan: String,
}

impl Warm {
    fn new(number: u8, mib: u64, mode: &str) -> Option<Warm> {
        let stage = Stage::new(number, |folder| {
            let (a, b) = (disk_file(folder, "a", mib * MIB), disk_file(folder, "b", 3 * MIB));
            vec![with(vm("one", &[&a, &b]), json!({"power": "on"}))]
        })?;
        let plan = stage.plan("warm", &[("mode: cold", mode)]);
        // In a part of the disk, so that what changed is no more after a pass that took long.
        let writer = json!({"vm": "one", "disk": 0, "bytes_per_s": 200_000, "span": "0-4MiB"});
        stage.sim.post("/writer", writer).unwrap();
        Some(Warm { stage, plan })
    }

    fn start(&self) -> drover_lab::Started {
        self.stage.drover.start(&["migrate", &self.plan]).unwrap()
    }

    fn warm(&self) -> Value {
        self.report()["vms"][0]["warm"].clone()
    }

    fn report(&self) -> Value {
        self.stage.report(&self.plan)
    }

    /// Completed passes so far.
    fn passes(&self) -> u64 {
        let output = self.stage.run(&["report", &self.plan, "--json"]);
        let report = output.json().unwrap_or_default();
        let passes = report["vms"][0]["warm"]["passes"].as_array().cloned().unwrap_or_default();
        passes.iter().filter(|pass| pass["state"] == "complete").count() as u64
    }

    fn snapshots(&self) -> usize {
        self.stage.sim.vm("one").unwrap()["snapshots"].as_array().map_or(0, Vec::len)
    }

    fn wait_for_passes(&self, passes: u64) {
        self.wait_for(|| self.passes() >= passes, &format!("{passes} passes"));
    }

    fn wait_for(&self, what: impl Fn() -> bool, name: &str) {
        let until = Instant::now() + PATIENCE;
        while !what() {
            assert!(Instant::now() < until, "{name} did not come: {:#}", self.report());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn cutover(&self) {
        let output = self.stage.run(&["cutover", &self.plan, "one"]);
        assert_eq!(output.code, Some(0), "{}", output.err);
    }

    fn ends_well(&self, mut started: drover_lab::Started) {
        assert!(started.child.wait().unwrap().success(), "{:#}", self.report());
        self.assert_arrived();
    }

    /// Every image is what its disk held when the guest was shut down; nothing is left at the source.
    fn assert_arrived(&self) {
        let source = self.stage.sim.vm("one").unwrap();
        assert_eq!(source["power"], "poweredOff", "{source}");
        assert_eq!(source["snapshots"].as_array().map_or(0, Vec::len), 0, "{source}");
        let disks = self.stage.sim.get("/disks?vm=one").unwrap()[0]["disks"].as_array().unwrap().clone();
        for (number, disk) in disks.iter().enumerate().take(2) {
            let file = PathBuf::from(disk["live"].as_str().unwrap());
            assert!(
                drover_stage::same_bytes(&self.stage.image("one", number), &file),
                "disk {number} differs"
            );
        }
        let report = self.report();
        assert!(report["vms"][0]["disks"].as_array().unwrap().iter().all(|disk| disk["equal"] == true));
    }

    fn why(&self, pass: usize) -> String {
        self.warm()["passes"][pass]["why"].as_str().unwrap_or_default().to_string()
    }
}

#[test]
fn three_passes_and_an_automatic_cutover_bring_what_the_guest_wrote_last() {
    let Some(warm) = Warm::new(110, 24, AUTO) else { return };
    let output = warm.stage.run(&["migrate", &warm.plan, "--json"]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    warm.assert_arrived();
    let told = warm.warm();
    assert_eq!(told["passes"].as_array().unwrap().len(), 4, "three, and the last one");
    assert!(told["ready_ms"].as_u64().unwrap() > 0 && told["forecast"]["forecast_ms"].as_u64().unwrap() > 0);
    for event in ["pass_started", "pass_ended", "cutover_started"] {
        assert!(output.out.contains(&format!("\"event\":\"{event}\"")), "{event}: {}", output.out);
    }
    // Later passes read what changed and what the audit looks at, which is all of so small a disk.
    for pass in &told["passes"].as_array().unwrap()[1..] {
        let number = |key: &str| pass[key].as_u64().unwrap();
        assert!(number("areas_bytes") * 2 < 27 * MIB, "{pass:#}");
        assert!(number("read_bytes") <= number("areas_bytes") + number("audited_blocks") * 65536, "{pass:#}");
    }
    let text = warm.stage.run(&["report", &warm.plan]).out;
    assert!(text.contains("moved over (the predicted downtime fits): ready to be started after"), "{text}");
    let html = warm.stage.path("report.html");
    warm.stage.run(&["report", &warm.plan, "--html", html.to_str().unwrap()]);
    assert!(std::fs::read_to_string(html).unwrap().contains("moved over"));
}

#[test]
fn a_cutover_by_command_is_done_by_the_drover_that_runs_and_by_the_next_one() {
    let Some(warm) = Warm::new(111, 8, MANUAL) else { return };
    let started = warm.start();
    warm.wait_for_passes(2);
    let wrong = warm.stage.run(&["cutover", &warm.plan, "two"]);
    assert_eq!(wrong.code, Some(3), "{}", wrong.err);
    warm.cutover();
    warm.ends_well(started);
    assert_eq!(warm.stage.run(&["cutover", &warm.plan]).code, Some(3), "it has arrived");

    // No pass takes so long that the next one is due.
    let Some(warm) = Warm::new(111, 8, "mode: warm\nwarm: {interval: 1h}") else { return };
    assert!(killed_when(&warm, "migrate", "a wait for the next pass", |it| it["event"] == "pass_waits"));
    let asked = warm.stage.run(&["cutover", &warm.plan, "--json"]).json().unwrap();
    assert_eq!((&asked["cutover"][0], &asked["running"]), (&json!("one"), &json!(false)));
    assert_eq!(warm.stage.run(&["resume", &warm.plan]).code, Some(0));
    warm.assert_arrived();
}

#[test]
fn killed_in_mid_pass_and_at_the_cutover_it_goes_on_and_clean_proves_that_nothing_is_left() {
    let Some(warm) = Warm::new(112, 48, AUTO) else { return };
    // The first pass takes longer than it is waited for.
    warm.stage.sim.post("/rate", json!({"bytes_per_s": MIB / 4, "per": "host"})).unwrap();
    let started = warm.start();
    warm.wait_for(|| warm.snapshots() > 0 && warm.stage.served() > MIB / 2, "the middle of a pass");
    started.kill().unwrap();
    assert_eq!(warm.snapshots(), 1, "a killed drover leaves its snapshot");
    let cleaned = warm.stage.run(&["clean", &warm.plan, "--json"]).json().unwrap();
    assert_eq!(cleaned["cleaned"]["found"].as_array().unwrap().len(), 1, "{cleaned}");
    assert_eq!((warm.snapshots(), &cleaned["cleaned"]["left"]), (0, &json!([])));
    let again = warm.stage.run(&["clean", &warm.plan, "--json"]).json().unwrap();
    assert_eq!(again["cleaned"]["found"], json!([]));
    warm.stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    let started = warm.stage.drover.start(&["resume", &warm.plan]).unwrap();
    warm.wait_for(|| warm.stage.sim.vm("one").unwrap()["power"] == "poweredOff", "the shutdown");
    started.kill().unwrap();
    let output = warm.stage.run(&["resume", &warm.plan]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    warm.assert_arrived();
}

/// Kills drover as it tells such an event, which it must; false if it was so fast, or this process so slow, that it had
/// come to its good end by then.
fn killed_when(warm: &Warm, command: &str, what: &str, is_it: impl Fn(&Value) -> bool) -> bool {
    let mut drover = warm.stage.drover.command(&[command, &warm.plan, "--json"]);
    let mut drover =
        drover.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(drover.stdout.take().unwrap()).lines();
    let found =
        lines.map_while(Result::ok).any(|line| is_it(&serde_json::from_str(&line).unwrap_or_default()));
    assert!(found, "{what} was not told: {:#}", warm.report());
    let _ = drover.kill();
    !drover.wait().unwrap().success()
}

/// Kills drover as it begins a phase.
fn killed_at(warm: &Warm, command: &str, phase: drover_engine::Phase) -> bool {
    let wanted = json!(phase);
    let begins = |event: &Value| event["event"] == "phase_started" && event["phase"] == wanted;
    killed_when(warm, command, phase.name(), begins)
}

#[test]
fn killed_as_each_phase_begins_it_goes_on_and_what_arrives_is_what_the_guest_wrote_last() {
    const TRIES: usize = 20;
    let Some(mut warm) = Warm::new(105, 8, AUTO) else { return };
    let (mut command, mut late) = ("migrate", 0);
    for phase in drover_engine::Phase::WARM {
        while !killed_at(&warm, command, phase) {
            // What has arrived begins no phase any more: another one is killed there.
            late += 1;
            assert!(late < TRIES, "{phase}: it is always over before it is killed");
            warm.assert_arrived();
            let Some(anew) = Warm::new(105, 8, AUTO) else { return };
            (warm, command) = (anew, "migrate");
        }
        command = "resume";
    }
    let output = warm.stage.run(&["resume", &warm.plan]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    warm.assert_arrived();
    let again = warm.stage.run(&["clean", &warm.plan, "--json"]).json().unwrap();
    assert_eq!(again["cleaned"]["found"], json!([]));
}

#[test]
fn plan_check_gives_advice_on_large_disks_idle_vms_and_what_passes_told() {
    let made = Stage::new(106, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        let mut big = with(vm("big", &[&a]), json!({"power": "on"}));
        big["disks"][0]["capacity"] = json!("2TiB");
        vec![big, vm("idle", &[&a])]
    });
    let Some(stage) = made else { return };
    let plan = stage.plan("advice", &[("mode: cold", "mode: warm\nwarm: {interval: 1s, audit: none}")]);
    let check = || stage.run(&["plan", "check", &plan]);
    let told = check();
    assert_eq!(told.code, Some(0), "{}{}", told.out, told.err);
    for words in [
        "note: big/Hard disk 1: is large (2 TiB) (its first pass takes hours",
        "begin days before the cutover",
        "warning: idle: is off, so warm passes save no downtime",
    ] {
        assert!(told.out.contains(words), "'{words}' is not in {}", told.out);
    }
    let started = stage.drover.start(&["migrate", &plan]).unwrap();
    let row = || {
        let report = stage.run(&["report", &plan, "--json"]).json().unwrap_or_default();
        report["vms"]
            .as_array()
            .is_some_and(|vms| vms.len() == 2 && vms.iter().all(|vm| !vm["warm"]["passes"][0].is_null()))
    };
    let until = Instant::now() + PATIENCE;
    while !row() {
        assert!(Instant::now() < until, "not all began a pass");
        std::thread::sleep(Duration::from_millis(50));
    }
    started.kill().unwrap();
    let store = drover_engine::Store::open(&stage.path("state")).unwrap();
    let idle = stage.sim.vm("idle").unwrap()["moid"].as_str().unwrap().to_string();
    store.set_hint("advice", &idle, Some("take `interval: 10m`, or auto")).unwrap();
    for output in [check(), stage.run(&["report", &plan])] {
        assert!(output.out.contains("idle: take `interval: 10m`, or auto"), "{}{}", output.out, output.err);
    }
}

/// What happens after the second pass, and what the third says of it.
fn guarded(number: u8, call: &str, body: Value, words: &str) {
    let Some(warm) = Warm::new(number, 8, MANUAL) else { return };
    let started = warm.start();
    warm.wait_for_passes(2);
    warm.stage.sim.post(call, body).unwrap();
    let found = || (0..warm.passes() as usize).any(|pass| warm.why(pass).contains(words));
    warm.wait_for(found, words);
    warm.cutover();
    warm.ends_well(started);
}

#[test]
fn cbt_reset_in_mid_run() {
    guarded(113, "/cbt/reset", json!({"vm": "one"}), "began anew");
}

#[test]
fn vmotion_in_mid_run() {
    guarded(104, "/vm/move", json!({"vm": "one", "host": "esx2.lab"}), "moved from host");
}

#[test]
fn storage_vmotion_in_mid_run() {
    guarded(114, "/vm/move", json!({"vm": "one", "datastore": "ds2"}), "moved from datastore ds1 to ds2");
}

#[test]
fn consolidation_needed_in_mid_run() {
    guarded(
        115,
        "/vm/consolidation",
        json!({"vm": "one", "fail_next_removal": true}),
        "had to be consolidated",
    );
}

#[test]
fn consolidation_needed_when_it_is_gone_on_with() {
    let Some(warm) = Warm::new(108, 8, MANUAL) else { return };
    let started = warm.start();
    warm.wait_for_passes(2);
    started.kill().unwrap();
    warm.stage.sim.post("/vm/consolidation", json!({"vm": "one", "needed": true})).unwrap();
    warm.cutover();
    let output = warm.stage.run(&["resume", &warm.plan]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    warm.assert_arrived();
    let found = (0..warm.passes() as usize).any(|pass| warm.why(pass).contains("had to be consolidated"));
    assert!(found, "{:#}", warm.warm());
}

/// Over HTTPS the file below somebody's snapshot cannot be read, so passes wait for it to go.
#[test]
fn a_foreign_snapshot_when_it_is_gone_on_with_ends_in_words_and_is_outlasted() {
    let Some(warm) = Warm::new(107, 8, MANUAL) else { return };
    let started = warm.start();
    warm.wait_for_passes(2);
    started.kill().unwrap();
    let backup = warm.stage.backup("one");
    warm.cutover();
    let output = warm.stage.run(&["resume", &warm.plan]);
    assert_eq!(output.code, Some(6), "{}{}", output.out, output.err);
    let error = warm.report()["vms"][0]["error"].to_string();
    assert!(error.contains("VDDK") && !error.contains("has 1 snapshot"), "{error}");
    assert_eq!(warm.stage.sim.vm("one").unwrap()["power"], "poweredOn");
    warm.stage.somebody().remove_snapshot(&backup).unwrap();
    // What failed is asked for again.
    warm.cutover();
    let output = warm.stage.run(&["resume", &warm.plan]);
    assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    warm.assert_arrived();
}

#[test]
fn cbt_lying_is_found_by_the_audit() {
    guarded(116, "/cbt/lie", json!({"vm": "one", "disk": 0, "span": "0-8MiB"}), "change tracking is damaged");
}

#[test]
fn a_disk_grown_in_mid_run_is_refused_and_the_guest_runs_on() {
    let Some(warm) = Warm::new(117, 8, MANUAL) else { return };
    let mut started = warm.start();
    warm.wait_for_passes(2);
    let grow =
        || warm.stage.sim.post("/disk/grow", json!({"vm": "one", "disk": 1, "capacity": "4MiB"})).is_ok();
    warm.wait_for(grow, "a moment without a snapshot");
    assert_eq!(started.child.wait().unwrap().code(), Some(6));
    let vm = &warm.report()["vms"][0];
    assert!(vm["error"].as_str().unwrap().contains("Hard disk 2 of one was grown"), "{vm:#}");
    assert_eq!(warm.stage.sim.vm("one").unwrap()["power"], "poweredOn");
}

#[test]
fn a_session_that_expires_in_mid_delta_is_outlasted_and_deltas_read_less_than_the_first_pass() {
    let mode = "mode: warm\nwarm: {interval: 3s, audit: none}";
    let Some(warm) = Warm::new(119, 24, mode) else { return };
    let started = warm.start();
    warm.wait_for_passes(1);
    let rate =
        |bytes: u64| warm.stage.sim.post("/rate", json!({"bytes_per_s": bytes, "per": "host"})).unwrap();
    // The megabytes that changed take minutes.
    rate(MIB / 64);
    // What the pass after this one reads is under way once some of it was served.
    let (done, served) = (warm.passes(), warm.stage.served());
    let is_in_mid_delta = || warm.snapshots() == 1 && warm.passes() == done && warm.stage.served() > served;
    warm.wait_for(is_in_mid_delta, "the middle of a delta");
    warm.stage.sim.post("/sessions/expire", json!({})).unwrap();
    assert_eq!((warm.passes(), warm.snapshots()), (done, 1), "the delta was over too soon");
    rate(0);
    warm.wait_for_passes(done + 1);
    warm.cutover();
    warm.ends_well(started);
    let told = warm.warm();
    let passes = told["passes"].as_array().unwrap();
    let read = |pass: &Value| pass["read_bytes"].as_u64().unwrap();
    for pass in &passes[1..] {
        assert_eq!((&pass["kind"], read(pass)), (&json!("delta"), pass["areas_bytes"].as_u64().unwrap()));
        assert!(read(pass) > 0 && read(pass) * 2 < read(&passes[0]), "{told:#}");
    }
}

#[test]
fn an_expired_session_a_quiesce_fault_and_a_switched_off_guest_are_outlasted() {
    let mode = "mode: warm\nwarm: {interval: 1s, quiesce: true}";
    let Some(warm) = Warm::new(118, 8, mode) else { return };
    let fault = json!({
        "method": "CreateSnapshot_Task", "fault": "ApplicationQuiesceFault", "as": "task", "quiesced": true, "count": 1,
    });
    warm.stage.sim.post("/fault/soap", fault).unwrap();
    let started = warm.start();
    warm.wait_for_passes(1);
    warm.stage.sim.post("/sessions/expire", json!({})).unwrap();
    warm.wait_for_passes(2);
    let events = warm.report()["events"].to_string();
    assert!(events.contains("could not be quiesced"), "{events}");
    warm.stage.sim.post("/vm/power", json!({"vm": "one", "state": "off"})).unwrap();
    warm.cutover();
    warm.ends_well(started);
    assert!(warm.report()["events"].to_string().contains("was switched off by someone"));
}

#[test]
fn a_source_that_ran_for_a_moment_while_it_was_converted_is_noticed_and_nothing_is_lost() {
    ran_for_a_moment(109, true);
}

#[test]
fn without_power_events_a_source_that_ran_for_a_moment_is_noticed_by_what_it_wrote() {
    ran_for_a_moment(129, false);
}

fn ran_for_a_moment(number: u8, tells_events: bool) {
    let Some(warm) = Warm::new(number, 8, MANUAL) else { return };
    if !tells_events {
        let fault = json!({"method": "QueryEvents", "fault": "NoPermission", "count": -1});
        warm.stage.sim.post("/fault/soap", fault).unwrap();
    }
    let text = std::fs::read_to_string(&warm.plan).unwrap().replace("convert: never", "convert: always");
    std::fs::write(&warm.plan, text).unwrap();
    // A converter that changes nothing and takes as long as it is told.
    let tools = warm.stage.path("tools");
    let (begun, go) = (tools.join("begun"), tools.join("go"));
    let waits = "cd \"$(dirname \"$0\")\"\n: > begun\nwhile [ ! -e go ]; do sleep 0.05; done";
    let path = put_converter(&tools, &format!("{waits}\n{HAS_DRIVERS}"));
    let mut drover = warm.stage.drover.command(&["migrate", &warm.plan]);
    let mut drover = drover.env("PATH", &path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    warm.wait_for_passes(2);
    warm.cutover();
    warm.wait_for(|| begun.exists(), "the conversion");
    for state in ["on", "off"] {
        warm.stage.sim.post("/vm/power", json!({"vm": "one", "state": state})).unwrap();
    }
    let write = json!({"vm": "one", "disk": 1, "offset": MIB, "hex": "6c6f7374"});
    warm.stage.sim.post("/write", write).unwrap();
    std::fs::write(&go, "").unwrap();
    assert_eq!(drover.wait().unwrap().code(), Some(6));
    let error = warm.report()["vms"][0]["error"].to_string();
    let word =
        if tells_events { "was switched on and off again by someone" } else { "was changed by someone" };
    assert!(error.contains(word), "{error}");
    assert_eq!(warm.stage.sim.vm("one").unwrap()["power"], "poweredOn", "drover had switched it off");
    warm.cutover();
    let end = warm.stage.drover.command(&["resume", &warm.plan]).env("PATH", &path).output().unwrap();
    assert!(end.status.success(), "{}", String::from_utf8_lossy(&end.stderr));
    warm.assert_arrived();
}
