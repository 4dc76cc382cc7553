//! Many guests that write, one drover that moves them warm, and everything that goes wrong in between, at random:
//! what arrives is what each guest wrote last.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use drover_lab::Started;
use drover_stage::{MIB, Stage, disk_file, same_bytes, vm, with};
use serde_json::{Value, json};

/// Things that go wrong before all VMs move over, and a new round begins.
const EVENTS: u64 = 60;
/// A VM that did not arrive after so many runs without any fault never will.
const RUNS_MAX: usize = 10;
const MODE: &str = "mode: warm\nwarm: {interval: 2s, audit: full}\nlimits: {retry_for: 2s, disks: 6}";

struct Dice(u64);

impl Dice {
    fn new() -> Dice {
        let seed = std::env::var("DROVER_SOAK_SEED").ok().and_then(|text| text.parse().ok());
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = seed.unwrap_or_else(now) | 1;
        println!("DROVER_SOAK_SEED={seed}");
        Dice(seed)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn one_of<'a, T: ?Sized>(&mut self, all: &[&'a T]) -> &'a T {
        all[self.roll(all.len() as u64) as usize]
    }
}

/// One signal is enough for a drover that listens, unless it is cut off from its processor for so long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits for an end, so long at most.
fn wait_for(started: &mut Started, time_max: Duration) {
    let until = Instant::now() + time_max;
    while started.child.try_wait().unwrap().is_none() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A round with a stage of its own.
struct Soak {
    stage: Stage,
    plan: String,
    vms: u64,
    running: Option<Started>,
    /// What was done, for whoever has to find out why it failed.
    done: Vec<String>,
    kills: usize,
}

impl Soak {
    fn new(vms: u64) -> Option<Soak> {
        let stage = Stage::new(121, |folder| {
            let guest = |number: u64| {
                let name = |disk: &str| format!("{}-{disk}", name_of(number));
                let a = disk_file(folder, &name("a"), (6 + number % 3 * 4) * MIB);
                let b = disk_file(folder, &name("b"), 2 * MIB + number * 512);
                let mac = format!("00:50:56:aa:02:{number:02x}");
                let nics = json!([{"network": "VM Network", "mac": mac, "model": "vmxnet3"}]);
                with(vm(&name_of(number), &[&a, &b]), json!({"power": "on", "nics": nics}))
            };
            (0..vms).map(guest).collect()
        })?;
        let plan = stage.plan("soak", &[("mode: cold", MODE)]);
        let soak = Soak { stage, plan, vms, running: None, done: Vec::new(), kills: 0 };
        for number in 0..vms {
            let rate = 10_000 + number * 5_000;
            soak.post("/writer", json!({"vm": name_of(number), "disk": 0, "bytes_per_s": rate}));
        }
        Some(soak)
    }

    /// An order that the simulator may refuse: the VM's state may not allow it just now.
    fn post(&self, path: &str, body: Value) {
        let _ = self.stage.sim.post(path, body);
    }

    /// Sees to it that a drover runs.
    fn keep_running(&mut self) {
        let is_running = |started: &mut Started| started.child.try_wait().unwrap().is_none();
        if self.running.as_mut().is_some_and(is_running) {
            return;
        }
        // The first may have been killed before it had the plan in its state.
        let is_known = self.stage.run(&["status", "soak"]).code == Some(0);
        let command = if is_known { "resume" } else { "migrate" };
        self.running = Some(self.stage.drover.start(&[command, &self.plan]).unwrap());
    }

    fn kill(&mut self) {
        if let Some(started) = self.running.take() {
            self.kills += 1;
            started.kill().unwrap();
        }
    }

    fn interrupt(&mut self) {
        let Some(mut started) = self.running.take() else { return };
        let id = started.child.id().to_string();
        // It may have ended by itself, or not have come to listening yet where the signal is ignored until it does.
        while started.child.try_wait().unwrap().is_none() {
            let _ = Command::new("kill").args(["-INT", &id]).status();
            wait_for(&mut started, PATIENCE);
        }
    }

    /// One thing goes wrong.
    fn strike(&mut self, dice: &mut Dice) {
        let name = name_of(dice.roll(self.vms));
        let what = dice.roll(14);
        self.done.push(format!("{what} {name}"));
        let task = |method: &str| json!({"method": method, "fault": "FileFault", "as": "task", "vm": name});
        let data = |key: &str, value: u64| json!({"path": "/folder", key: value});
        match what {
            0 | 1 => self.kill(),
            2 => self.interrupt(),
            3 => self.post("/fault/soap", task(dice.one_of(&["CreateSnapshot_Task", "RemoveSnapshot_Task"]))),
            4 => self.post("/fault/soap", json!({"method": "QueryChangedDiskAreas", "fault": "FileFault"})),
            5 => self.post("/fault/http", data("status", 503)),
            6 => self.post("/fault/http", data("cut_after", 70_000)),
            7 => self.post("/sessions/expire", json!({})),
            8 => self.post("/cbt/reset", json!({"vm": name})),
            9 => self.post("/vm/move", json!({"vm": name, "host": dice.one_of(&["esx1.lab", "esx2.lab"])})),
            10 => self.post("/vm/move", json!({"vm": name, "datastore": dice.one_of(&["ds1", "ds2"])})),
            11 => self.post("/vm/consolidation", json!({"vm": name, "fail_next_removal": true})),
            12 => self.post("/cbt/lie", json!({"vm": name, "disk": 0, "writes": 1 + dice.roll(3)})),
            _ => {
                for state in ["off", "on"] {
                    self.post("/vm/power", json!({"vm": name, "state": state}));
                }
            }
        }
    }

    /// All faults end, and all VMs move over.
    fn end(&mut self) {
        self.interrupt();
        self.post("/fault/clear", json!({}));
        for number in 0..self.vms {
            self.post("/cbt/lie", json!({"vm": name_of(number), "disk": 0}));
            // A VM that arrived in the meantime stays off.
            if !self.is_done(number) {
                self.post("/vm/power", json!({"vm": name_of(number), "state": "on"}));
            }
        }
        let mut said = String::new();
        for _ in 0..RUNS_MAX {
            // It ends with 3 where all have arrived.
            self.stage.run(&["cutover", &self.plan]);
            let output = self.stage.run(&["resume", &self.plan]);
            said = output.err;
            if output.code == Some(0) {
                return self.check();
            }
        }
        panic!("not all arrived after {:?}:\n{said}\n{:#}", self.done, self.stage.report(&self.plan)["vms"]);
    }

    fn is_done(&self, number: u64) -> bool {
        let report = self.stage.report(&self.plan);
        let vms = report["vms"].as_array().unwrap();
        vms.iter().any(|vm| vm["name"] == json!(name_of(number)) && vm["state"] == "done")
    }

    /// Every image is what its disk holds, no VM runs, nothing is left.
    fn check(&self) {
        for number in 0..self.vms {
            let name = name_of(number);
            let source = self.stage.sim.vm(&name).unwrap();
            assert_eq!(source["power"], "poweredOff", "{:?}: {source}", self.done);
            assert_eq!(source["snapshots"].as_array().map_or(0, Vec::len), 0, "{:?}: {source}", self.done);
            let found = self.stage.sim.get(&format!("/disks?vm={name}")).unwrap();
            for (number, disk) in found[0]["disks"].as_array().unwrap().iter().enumerate() {
                let live = PathBuf::from(disk["live"].as_str().unwrap());
                let is_equal = same_bytes(&self.stage.image(&name, number), &live);
                assert!(is_equal, "{name}/{number} differs after {:?}", self.done);
            }
        }
    }
}

impl Drop for Soak {
    fn drop(&mut self) {
        self.kill();
    }
}

fn name_of(number: u64) -> String {
    format!("vm{number:02}")
}

/// A round; gives the passes that were complete and the kills, or nothing where the simulator is not built.
fn round(vms: u64, events: u64, pause_ms: u64, dice: &mut Dice) -> Option<(u64, usize)> {
    let mut soak = Soak::new(vms)?;
    for _ in 0..events {
        soak.keep_running();
        std::thread::sleep(Duration::from_millis(200 + dice.roll(pause_ms)));
        soak.strike(dice);
    }
    soak.keep_running();
    soak.end();
    let report = soak.stage.report(&soak.plan);
    let passes = |vm: &Value| vm["warm"]["passes"].as_array().map_or(0, Vec::len) as u64;
    Some((report["vms"].as_array().unwrap().iter().map(passes).sum(), soak.kills))
}

#[test]
fn two_guests_arrive_equal_whatever_goes_wrong_on_the_way() {
    let mut dice = Dice::new();
    let Some((passes, kills)) = round(2, 12, 1500, &mut dice) else { return };
    println!("{passes} passes, {kills} kills, all equal");
    assert!(passes >= 4, "{passes} passes");
}

/// Run by `make soak`.
#[test]
#[ignore = "takes hours; `make soak` runs it"]
fn soak() {
    let number = |name: &str, default: f64| -> f64 {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let time = Duration::from_secs_f64(number("DROVER_SOAK_HOURS", 2.0) * 3600.0);
    let vms = number("DROVER_SOAK_VMS", 20.0) as u64;
    let (mut dice, started) = (Dice::new(), Instant::now());
    let (mut rounds, mut passes, mut kills) = (0, 0, 0);
    while started.elapsed() < time {
        let Some(round) = round(vms, EVENTS, 4000, &mut dice) else { return };
        (rounds, passes, kills) = (rounds + 1, passes + round.0, kills + round.1);
        println!("{rounds} rounds of {vms} VMs, {passes} passes, {kills} kills, all equal");
    }
}

/// What the last such phase of a VM took.
fn phase_ms(vm: &Value, name: &str) -> u64 {
    let phases = vm["phases"].as_array().unwrap();
    let phase = phases.iter().rfind(|phase| phase["phase"] == name).unwrap();
    phase["ended_ms"].as_u64().unwrap() - phase["started_ms"].as_u64().unwrap()
}

/// Guests one after the other, each by a plan of its own, so that each forecast knows those before. Prints what was
/// foreseen beside what came, and how often that lay between: eight of ten is the aim.
#[test]
#[ignore = "measures; `make soak` runs it"]
fn soak_of_downtime_forecasts() {
    const GUESTS: u64 = 20;
    let Some(stage) = Stage::new(116, |folder| {
        let guest = |number| {
            let name = format!("vm{number:02}");
            let disk = disk_file(folder, &name, (4 + number) * MIB);
            with(vm(&name, &[&disk]), json!({"power": "on"}))
        };
        (0..GUESTS).map(guest).collect()
    }) else {
        return;
    };
    let mode = "mode: warm\nwarm: {interval: 1s, cutover: auto, downtime_max: 10m}";
    println!("guest  foreseen ms (low to high)  came ms");
    let (mut between, mut measured) = (0, 0);
    for number in 0..GUESTS {
        let name = format!("vm{number:02}");
        stage.sim.post("/writer", json!({"vm": name, "disk": 0, "bytes_per_s": 100_000})).unwrap();
        let text = stage.plan_text(&name).replace("mode: cold", mode);
        let head = text.split("vms:\n").next().unwrap();
        let plan = stage.path(&format!("{name}.yaml"));
        std::fs::write(&plan, format!("{head}vms:\n  - name: {name}\n")).unwrap();
        let plan = plan.display().to_string();
        stage.migrate(&plan);
        let warm = stage.report(&plan)["vms"][0]["warm"].clone();
        let ms = |value: &Value| value.as_u64().unwrap();
        let [likely, low, high] = ["forecast_ms", "low_ms", "high_ms"].map(|key| ms(&warm["forecast"][key]));
        let without_shutdown = warm["forecast"]["without_shutdown"] == json!(true);
        let down = phase_ms(&stage.report(&plan)["vms"][0], "power off");
        let came = ms(&warm["ready_ms"]) - if without_shutdown { down } else { 0 };
        assert_eq!(without_shutdown, number == 0, "only the first one's was never seen");
        measured += 1;
        between += u64::from((low..=high).contains(&came));
        println!(
            "{name}  {likely} ({low} to {high})  {came}{}",
            if without_shutdown { " without its shutdown" } else { "" }
        );
    }
    println!("{between} of {measured} between low and high");
    // 8 of 10 are meant to be; half of them come by mere bad luck once in some hundred soaks.
    assert!(between * 2 >= measured, "the forecast is not one");
}
