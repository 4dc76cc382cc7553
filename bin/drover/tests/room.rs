//! Room at a target that two plans go to: promised to one, waited for by the other.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use drover_stage::small_disk::SmallDisk;
use drover_stage::{MIB, Stage, disk_file, vm};
use serde_json::{Value, json};

/// Room at the target. Either VM fits alone, by the capacity of its disk.
const ROOM: u64 = 100;
const CAPACITY: u64 = 60;

/// Two VMs whose disks hold so many MiB of data at their beginning, and a plan for each.
struct Two {
    stage: Stage,
    plans: [String; 2],
    _disk: SmallDisk,
}

impl Two {
    fn new(number: u8, data_mib: u64) -> Option<Two> {
        let stage = Stage::new(number, |folder| {
            let disk = |name: &str| {
                let path = disk_file(folder, name, data_mib * MIB);
                std::fs::File::options().write(true).open(&path).unwrap().set_len(CAPACITY * MIB).unwrap();
                path
            };
            ["one", "two"].map(|name| vm(name, &[&disk(name)])).to_vec()
        })?;
        let disk = SmallDisk::mount(&stage.vms(), ROOM)?;
        let plan = |name: &str, other: &str| {
            let other = format!("  - name: \"{other}\"\n");
            stage.plan(name, &[("  overcommit: true\n", ""), (&other, "")])
        };
        let plans = [plan("first", "two"), plan("second", "one")];
        stage.sim.post("/rate", json!({"bytes_per_s": MIB / 2, "per": "host"})).unwrap();
        Some(Two { stage, plans, _disk: disk })
    }

    /// The first plan copies, and the second one waits for what is promised to it.
    fn begin(&self) -> [Child; 2] {
        let first = self.stage.drover.start(&["migrate", &self.plans[0]]).unwrap().child;
        until("the first copies", || self.stage.served() > 0);
        let second = self.stage.drover.start(&["migrate", &self.plans[1]]).unwrap().child;
        // A look may find it before its turn has come.
        until("the second waits for room", || self.waits().is_some_and(|waits| waits.contains("room in ")));
        let waits = self.waits().unwrap();
        for words in ["it may need 60 MiB", "promised to plan first"] {
            assert!(waits.contains(words), "'{words}' is not in: {waits}");
        }
        assert_eq!(self.vm_of(1)["state"], "queued");
        [first, second]
    }

    fn status(&self, plan: usize) -> Value {
        self.stage.run(&["status", &self.plans[plan], "--json"]).json().unwrap_or_default()
    }

    fn vm_of(&self, plan: usize) -> Value {
        self.status(plan)["vms"][0].clone()
    }

    fn waits(&self) -> Option<String> {
        self.status(1)["waits"]["two"].as_str().map(String::from)
    }

    fn hurry(&self) {
        self.stage.sim.post("/rate", json!({"bytes_per_s": 0, "per": "host"})).unwrap();
    }

    fn promises(&self) -> usize {
        let room = self.stage.path("state").join("room");
        let of = |place: &Path| {
            let names = std::fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name());
            names.filter(|name| name != "lock").count()
        };
        std::fs::read_dir(room).unwrap().map(|place| of(&place.unwrap().path())).sum()
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < until, "it takes too long until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_vm_waits_for_what_is_promised_to_another_plan_and_arrives_after_it() {
    let Some(two) = Two::new(52, 20) else { return };
    let [mut first, mut second] = two.begin();
    two.hurry();
    assert!(first.wait().unwrap().success() && second.wait().unwrap().success());
    for name in ["one", "two"] {
        two.stage.assert_equal(name, 0, &two.stage.path(name));
    }
    assert_eq!(two.promises(), 0, "what was promised is let go");
}

#[test]
fn a_vm_that_does_not_fit_any_more_is_refused_before_its_source_is_touched() {
    let Some(two) = Two::new(53, CAPACITY) else { return };
    let before = two.stage.sim.vm("two").unwrap();
    let [mut first, mut second] = two.begin();
    two.hurry();
    assert!(first.wait().unwrap().success());
    assert_eq!(second.wait().unwrap().code(), Some(8), "the target is full");
    assert_eq!(two.stage.sim.vm("two").unwrap(), before);
    assert!(!two.stage.image("two", 0).exists(), "nothing is left at the target");
    let row = two.vm_of(1);
    let error = row["error"].as_str().unwrap();
    for words in ["vms has ", " left, and two may need 60 MiB there"] {
        assert!(error.contains(words), "'{words}' is not in: {error}");
    }
}

#[test]
fn what_was_promised_to_a_process_that_was_killed_is_free() {
    let Some(two) = Two::new(54, 20) else { return };
    let [mut first, mut second] = two.begin();
    first.kill().unwrap();
    first.wait().unwrap();
    two.hurry();
    assert!(second.wait().unwrap().success());
    two.stage.assert_equal("two", 0, &two.stage.path("two"));
    let resumed = two.stage.run(&["resume", &two.plans[0]]);
    assert_eq!(resumed.code, Some(0), "{}{}", resumed.out, resumed.err);
    two.stage.assert_equal("one", 0, &two.stage.path("one"));
}
