//! Drover killed at every edge between two phases.

use std::cell::Cell;
use std::collections::BTreeSet;

use serde_json::json;

use drover_stage::debian::{DISK_BYTES, debian, marked, put_marking_converter};
use drover_stage::landing::{EARLY_EDGES, Landing, edges};
use drover_stage::{MIB, disk_file, vm, with};

/// A VM that runs, and writes while drover moves it.
struct Guest {
    landing: Landing,
    is_warm: bool,
    is_converted: bool,
    writes: Cell<u64>,
}

impl Guest {
    fn new(number: u8, is_warm: bool, is_converted: bool) -> Option<Guest> {
        let landing = Landing::new(number, |folder| {
            let disk =
                if is_converted { debian(folder, "one", &[]) } else { disk_file(folder, "one", 2 * MIB) };
            vec![with(vm("one", &[&disk]), json!({"power": "on", "nics": []}))]
        })?;
        put_marking_converter(&landing.stage.path("bin"), "");
        Some(Guest { landing, is_warm, is_converted, writes: Cell::new(0) })
    }

    fn plan(&self, name: &str) -> String {
        let mode = if self.is_warm { "warm\nwarm: {interval: 1s, cutover: auto}" } else { "cold" };
        let convert = if self.is_converted { "auto" } else { "never" };
        self.landing.plan(
            name,
            &[
                ("mode: cold", &format!("mode: {mode}\nstart: true")),
                ("convert: never", &format!("convert: {convert}")),
            ],
        )
    }

    fn power(&self) -> String {
        self.landing.stage.sim.vm("one").unwrap()["power"].as_str().unwrap().to_string()
    }

    /// Writes another sector, if it is on: where no file system is, and no converter writes.
    fn write(&self) {
        if self.power() == "poweredOn" {
            self.writes.set(self.writes.get() + 1);
            let first = if self.is_converted { DISK_BYTES - MIB } else { 0 };
            let offset = first + self.writes.get() % 100 * 512;
            let write = json!({"vm": "one", "disk": 0, "offset": offset, "hex": format!("{:08x}", self.writes.get())});
            self.landing.stage.sim.post("/write", write).unwrap();
        }
    }

    #[track_caller]
    fn has_arrived(&self, others: &[&str]) {
        assert_eq!(
            (self.landing.state("a", "one").as_str(), self.power().as_str()),
            ("running", "poweredOff")
        );
        let all = [&["domain one", "one-0.raw", "one-0.raw.drover-journal"][..], others].concat();
        let all: BTreeSet<&str> = all.into_iter().collect();
        let found = self.landing.all_of("a");
        assert_eq!(found.iter().map(String::as_str).collect::<BTreeSet<_>>(), all);
        let live = self.landing.stage.sim.get("/disks?vm=one").unwrap()[0]["disks"][0]["live"].clone();
        let live = std::fs::read(live.as_str().unwrap()).unwrap();
        let wanted = if self.is_converted { marked(live) } else { live };
        assert!(
            std::fs::read(self.landing.image("a", "one-0.raw")).unwrap() == wanted,
            "its last writes are there"
        );
        let snapshots = self.landing.stage.sim.vm("one").unwrap()["snapshots"].clone();
        assert_eq!(snapshots, json!([]));
    }

    /// Goes on after a kill at each edge until it has arrived.
    fn outlasts_kills(&self, late: &[(&str, &str)]) {
        let landing = &self.landing;
        landing.somebodys("a", "theirs", None);
        let theirs = landing.xml("a", "theirs");
        let plan = self.plan("edges");
        let mut args = vec!["migrate", plan.as_str()];
        let mut missed = Vec::new();
        for edge in edges(self.is_warm) {
            self.write();
            if landing.killed_at(&args, edge).is_none() {
                missed.push(edge);
            }
            landing.runs_once("a", "one", edge);
            args = vec!["resume", "edges"];
        }
        assert!(missed.iter().all(|edge| late.contains(edge)), "{missed:?}");
        landing.arrives(&["resume", "edges"]);
        self.has_arrived(&["domain theirs"]);
        assert_eq!(landing.xml("a", "theirs"), theirs);
        landing.stays("a", "edges");
    }
}

#[test]
fn killed_at_every_edge_a_plan_arrives_once_and_touches_nothing_of_others() {
    let Some(guest) = Guest::new(133, false, false) else { return };
    guest.outlasts_kills(&[]);
}

#[test]
fn killed_at_every_edge_a_warm_guest_is_converted_and_arrives_with_its_last_writes() {
    let Some(guest) = Guest::new(162, true, true) else { return };
    guest.outlasts_kills(&[]);
}

#[test]
#[ignore = "minutes; `make soak`"]
fn soak_killed_at_each_edge_a_plan_is_given_up_whole_or_gone_on_with() {
    for (is_warm, is_converted) in [(false, false), (true, false), (false, true), (true, true)] {
        let Some(guest) = Guest::new(163, is_warm, is_converted) else { return };
        let landing = &guest.landing;
        let edges = edges(is_warm);
        for (at, (edge, gives_up)) in
            edges.iter().flat_map(|edge| [(*edge, true), (*edge, false)]).enumerate()
        {
            let name = format!("soak-{at}");
            let plan = guest.plan(&name);
            guest.write();
            let came = landing.killed_at(&["migrate", &plan], edge).is_some();
            assert!(came, "{edge:?} never came");
            landing.runs_once("a", "one", edge);
            if gives_up {
                let said = landing.arrives(&["cancel", &name]).err;
                // Who was killed in its last phases had arrived, and stays.
                if !said.contains("had arrived") {
                    assert_eq!(
                        (landing.all_of("a"), guest.power()),
                        (Vec::new(), "poweredOn".to_string()),
                        "{edge:?}: {said}"
                    );
                    continue;
                }
            } else {
                landing.arrives(&["resume", &name]);
            }
            guest.has_arrived(&[]);
            landing.hosts.virsh("a", &["destroy", "one"]).unwrap();
            landing.hosts.virsh("a", &["undefine", "one"]).unwrap();
            for file in ["one-0.raw", "one-0.raw.drover-journal"] {
                std::fs::remove_file(landing.image("a", file)).unwrap();
            }
            landing.stage.sim.post("/vm/power", json!({"vm": "one", "state": "on"})).unwrap();
            // The next plan moves the same VM into the same files, which this state knows as arrived.
            std::fs::remove_dir_all(landing.stage.path("state")).unwrap();
        }
    }
}

#[test]
fn cancelled_after_a_kill_at_any_edge_exactly_what_was_made_is_gone() {
    let Some(landing) = Landing::new(134, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"}))]
    }) else {
        return;
    };
    landing.somebodys("a", "theirs", None);
    std::fs::write(landing.image("a", "theirs.raw"), "somebody's").unwrap();
    let before = (landing.all_of("a"), landing.xml("a", "theirs"));
    for edge in EARLY_EDGES {
        let name = format!("c-{}-{}", edge.0, edge.1).replace('_', "-");
        let plan = landing.plan(&name, &[("mode: cold", "mode: cold\nstart: true")]);
        assert!(landing.killed_at(&["migrate", &plan], edge).is_some(), "{edge:?} never came");
        landing.runs_once("a", "one", edge);
        if landing.state("a", "one") == "running" {
            // It was killed later than it was told to be: a guest that runs at the target has arrived.
            landing.hosts.virsh("a", &["destroy", "one"]).unwrap();
            landing.run(&["cancel", &name]);
            landing.hosts.virsh("a", &["undefine", "--nvram", "one"]).unwrap();
            let left = ["one-0.raw", "one-0.raw.drover-journal"].map(|file| landing.image("a", file));
            left.iter().for_each(|file| std::fs::remove_file(file).unwrap());
        } else {
            let cancelled = landing.arrives(&["cancel", &name]);
            assert!(cancelled.err.contains("what it had begun is undone"), "{}", cancelled.err);
        }
        assert_eq!((landing.all_of("a"), landing.xml("a", "theirs")), before, "{edge:?}");
        landing.stage.sim.vm("one").unwrap();
    }
}

#[test]
fn a_guest_that_its_host_stops_after_its_start_goes_back_to_its_source_with_libvirts_reason() {
    let Some(landing) = Landing::new(198, |folder| {
        vec![with(vm("one", &[&disk_file(folder, "a", 2 * MIB)]), json!({"power": "on", "nics": []}))]
    }) else {
        return;
    };
    let bin = landing.stage.path("bin");
    std::fs::create_dir_all(&bin).unwrap();
    // What libvirt says where QEMU stopped a guest and it knows no reason.
    let script = "PATH=${PATH#*:}\ncase \"$*\" in *domstate*--reason*) echo 'paused (unknown)' ;; *) exec virsh \"$@\" ;; esac";
    drover_lab::put_script(&bin.join("virsh"), script).unwrap();
    let failed =
        landing.run(&["migrate", &landing.plan("stops", &[("mode: cold", "mode: cold\nstart: true")])]);
    assert_ne!(failed.code, Some(0), "{}{}", failed.out, failed.err);
    assert!(failed.err.contains("stopped 0 s after its start: paused (unknown)"), "{}", failed.err);
    assert!(failed.err.contains("/var/log/libvirt/qemu/one.log"), "{}", failed.err);
    assert_ne!(landing.state("a", "one"), "running");
    assert_eq!(landing.stage.sim.vm("one").unwrap()["power"], "poweredOn");
}
