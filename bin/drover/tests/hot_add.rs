//! Disks that a proxy VM reads: the simulator attaches them, and an agent on this host finds them in a folder of links that
//! stands for the proxy's `/dev/disk/by-id`. That a guest sees them is shown by `hot_add_guest.rs`.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use drover_lab::Output;
use drover_stage::process::{PATIENCE, wait_for_records, wait_until};
use drover_stage::sites::Sites;
use drover_stage::{MIB, Stage, disk_file, vm, with};
use drover_vsphere::{Attach, Wanted};
use serde_json::{Value, json};

/// How `plan` names the proxy.
const PROXY: &str = "{vm: proxy01, site: site-b}";

/// A source with a proxy VM, whose agent runs here.
struct Proxied {
    stage: Stage,
    sites: Sites,
}

/// A VM that can be a proxy, with so many disks of its own.
fn proxy(name: &str, disks: usize) -> Value {
    let own = |unit: usize| {
        let unit = if unit < 7 { unit } else { unit + 1 };
        json!({"capacity": 4096, "datastore": "ds1", "controller": "pvscsi", "unit": unit})
    };
    let changes = json!({
        "power": "on", "disks": (0..disks).map(own).collect::<Vec<_>>(), "extra_config": {"disk.EnableUUID": "TRUE"},
    });
    with(vm(name, &[]), changes)
}

impl Proxied {
    fn new(
        number: u8,
        own_disks: usize,
        agent: &[&str],
        vms: impl FnOnce(&Path) -> Vec<Value>,
    ) -> Option<Proxied> {
        let stage = Stage::new(number, |folder| {
            std::fs::create_dir(folder.join("by-id")).unwrap();
            let mut all = vms(folder);
            all.push(proxy("proxy01", own_disks));
            all
        })?;
        let links = stage.path("by-id").display().to_string();
        stage.sim.post("/hotadd/guest", json!({"vm": "proxy01", "folder": links})).unwrap();
        let mut sites = Sites::not_started();
        sites.here = stage.drover.clone();
        sites.more = agent.iter().map(|it| (*it).to_string()).collect();
        sites.more.push(format!("--allow-hot-added={links}"));
        sites.start();
        sites.pair_at(&sites.address);
        Some(Proxied { stage, sites })
    }

    fn one(number: u8, mib: u64, agent: &[&str]) -> Option<Proxied> {
        Proxied::new(number, 1, agent, |folder| vec![vm("one", &[&disk_file(folder, "a", mib * MIB)])])
    }

    /// A plan that moves all VMs but proxies.
    fn plan(&self, name: &str, path: &str, proxies: &str, edits: &[(&str, &str)]) -> String {
        let data = format!("path: {path}\n    proxies: [{proxies}]");
        let folder = format!("/{name}-vms\n");
        let mut all = vec![("path: https", data.as_str()), ("/vms\n", folder.as_str())];
        if !edits.iter().any(|(from, _)| *from == "\nvms:\n") {
            all.push(("\nvms:\n", "\nlimits: {retries: 1, retry_for: 2s}\nvms:\n"));
        }
        all.extend(edits);
        all.push(("  - name: \"proxy01\"\n", ""));
        self.stage.plan(name, &all)
    }

    fn image(&self, plan: &str, vm: &str, disk: usize) -> PathBuf {
        self.stage.path(&format!("{plan}-vms")).join(vm).join(format!("{vm}-{disk}.raw"))
    }

    #[track_caller]
    fn assert_equal(&self, plan: &str, vm: &str, disk: usize, file: &Path) {
        let image = self.image(plan, vm, disk);
        assert!(
            drover_stage::same_bytes(&image, file),
            "{} differs from {}",
            image.display(),
            file.display()
        );
    }

    fn hot_added(&self) -> Value {
        self.stage.sim.get("/hotadd").unwrap()
    }

    fn attached(&self) -> usize {
        self.hot_added()["attached"].as_array().unwrap().len()
    }

    /// Nothing is attached, no snapshot of drover's is there, and nothing needs consolidation.
    #[track_caller]
    fn assert_nothing_left(&self) {
        assert_eq!(self.hot_added()["attached"], json!([]));
        assert_eq!(std::fs::read_dir(self.stage.path("by-id")).unwrap().count(), 0);
        assert!(
            !self.stage.source_state().to_string().contains("drover-"),
            "{:#}",
            self.stage.source_state()
        );
        for vm in self.stage.somebody().inventory().unwrap().vms {
            assert!(!vm.consolidation_needed, "{}", vm.name);
        }
    }

    #[track_caller]
    fn run(&self, args: &[&str], code: i32) -> Output {
        let output = self.stage.run(args);
        assert_eq!(output.code, Some(code), "{args:?}: {}{}", output.out, output.err);
        output
    }

    fn notes(&self, plan: &str) -> String {
        let report = self.stage.report(plan);
        let events = report["events"].as_array().unwrap().clone();
        events.iter().filter_map(|event| event["text"].as_str()).collect::<Vec<_>>().join("\n")
    }

    /// Somebody who logs in beside drover attaches the file that a snapshot of drover's froze.
    fn attach_by_somebody(&self, to: &str) {
        let somebody = self.stage.somebody();
        let vms = somebody.inventory().unwrap().vms;
        let of = |name: &str| vms.iter().find(|vm| vm.name == name).unwrap().clone();
        let snapshot = of("one").snapshots[0].id.clone();
        let frozen = somebody.snapshot_disks(&snapshot).unwrap()[0].clone();
        let (file, capacity_bytes) = (frozen.path.as_str(), frozen.capacity_bytes);
        let wanted = Wanted { file, uuid: &frozen.uuid, capacity_bytes };
        let attached = somebody.attach(&of(to).id, &wanted, |_| Ok::<_, ()>(())).unwrap();
        assert!(matches!(attached, Attach::Done(_)));
    }

    fn fail_reconfigure(&self, skip: u32, count: i32) {
        let fault = json!({
            "method": "ReconfigVM_Task", "as": "task", "vm": "proxy01", "fault": "GenericVmConfigFault",
            "message": "the device is busy", "skip": skip, "count": count,
        });
        self.stage.sim.post("/fault/soap", fault).unwrap();
    }
}

#[test]
fn cold_vms_are_attached_to_their_proxy_read_there_and_detached_again() {
    let Some(it) = Proxied::new(150, 1, &[], |folder| {
        let a = disk_file(folder, "a", 20 * MIB);
        let b = disk_file(folder, "b", 7 * MIB + 512);
        vec![vm("one", &[&a, &b]), with(vm("two", &[&b]), json!({"host": "esx2.lab", "cbt": false}))]
    }) else {
        return;
    };
    let before = it.stage.source_state();
    let check = it.run(&["plan", "check", &it.plan("cold", "hotadd", PROXY, &[])], 0);
    assert!(check.out.contains("read by proxies to which they are attached (proxy01)"), "{}", check.out);
    for (name, path) in [("cold", "hotadd"), ("auto", "auto")] {
        let plan = it.plan(name, path, PROXY, &[]);
        it.stage.migrate(&plan);
        it.assert_equal(name, "one", 0, &it.stage.path("a"));
        it.assert_equal(name, "one", 1, &it.stage.path("b"));
        it.assert_equal(name, "two", 0, &it.stage.path("b"));
        assert!(it.notes(&plan).contains("read by proxy proxy01 (site site-b), attached there as SCSI 0:"));
        it.assert_nothing_left();
        assert_eq!(it.stage.source_state(), before);
    }
    assert_eq!((it.hot_added()["attaches"].as_u64(), it.stage.served()), (Some(6), 0));
    let served =
        it.sites.here.run(&["hash", "agent://site-b/hot-added:6000c29a0123456789abcdef01234567"]).unwrap();
    assert_ne!(served.code, Some(0), "{}", served.out);
}

#[test]
fn every_pass_of_a_warm_migration_is_read_by_the_proxy() {
    let Some(it) = Proxied::new(151, 1, &[], |folder| {
        vec![with(vm("one", &[&disk_file(folder, "a", 8 * MIB)]), json!({"power": "on"}))]
    }) else {
        return;
    };
    let writer = json!({"vm": "one", "disk": 0, "bytes_per_s": 200_000, "block": 4096, "span": "0-4MiB"});
    it.stage.sim.post("/writer", writer).unwrap();
    let warm = [("mode: cold", "mode: warm\nwarm: {interval: 1s, cutover: auto}")];
    it.stage.migrate(&it.plan("warm", "hotadd", PROXY, &warm));
    let disks = it.stage.sim.get("/disks?vm=one").unwrap();
    it.assert_equal("warm", "one", 0, Path::new(disks[0]["disks"][0]["live"].as_str().unwrap()));
    assert!(it.hot_added()["attaches"].as_u64() >= Some(3), "{:#}", it.hot_added());
    it.assert_nothing_left();
    assert_eq!(it.stage.served(), 0);
}

#[test]
fn what_a_proxy_lacks_is_told_before_anything_is_touched() {
    let Some(it) = Proxied::new(152, 1, &[], |folder| {
        let a = disk_file(folder, "a", MIB);
        let elsewhere = json!([{"capacity": 4096, "datastore": "ds2", "controller": "pvscsi"}]);
        vec![
            vm("one", &[&a]),
            with(proxy("off", 1), json!({"power": "off"})),
            with(proxy("blind", 1), json!({"extra_config": {}})),
            proxy("full", 15),
            with(proxy("far", 1), json!({"disks": elsewhere, "host": "esx2.lab"})),
            proxy("denied", 1),
        ]
    }) else {
        return;
    };
    let rights = json!({"vm": "denied", "deny": ["VirtualMachine.Config.AddExistingDisk"]});
    it.stage.sim.post("/privileges", rights).unwrap();
    let others: Vec<String> = ["off", "blind", "full", "far", "denied"]
        .iter()
        .map(|name| format!("  - name: \"{name}\"\n"))
        .collect();
    let others: Vec<(&str, &str)> = others.iter().map(|line| (line.as_str(), "")).collect();
    let before = it.stage.source_state();
    for (proxies, why) in [
        ("{vm: proxy1, site: site-b}", "there is no VM 'proxy1'"),
        ("{vm: one, site: site-b}", "one is a proxy of this plan and is moved by it"),
        ("{vm: off, site: site-b}", "off: it does not run"),
        ("{vm: blind, site: site-b}", "blind: its guest does not see the UUIDs of its disks"),
        ("{vm: full, site: site-b}", "full: its SCSI controllers have no free slot"),
        ("{vm: proxy01, site: nowhere}", "there is no site 'nowhere'"),
        ("{vm: proxy01, site: site-b, hosts: [esx2.lab]}", "no proxy is for the host of one"),
        ("{vm: denied, site: site-b}", "lacks the privilege VirtualMachine.Config.AddExistingDisk"),
    ] {
        let plan = it.plan("lacks", "hotadd", proxies, &others);
        for command in [&["plan", "check"][..], &["migrate"]] {
            let refused = it.run(&[command, &[&plan]].concat(), 3);
            assert!(refused.err.contains(why), "{proxies}: {}", refused.err);
        }
    }
    assert_eq!((it.stage.source_state(), &it.hot_added()["attaches"]), (before, &json!(0)));
    // What is only missing for the moment stops a plan that need not have proxies when it is checked, and not when it runs.
    let plan = it.plan("auto", "auto", "{vm: off, site: site-b}", &others);
    let checked = it.run(&["plan", "check", &plan], 3);
    assert!(checked.err.contains("off: it does not run"), "{}", checked.err);
    let ran = it.run(&["migrate", &plan], 0);
    assert!(ran.err.contains("disks are read without this proxy"), "{}", ran.err);
    let notes = it.notes(&plan);
    assert!(
        notes.contains("no proxy reads it: off: it does not run") && notes.contains("read by NFC"),
        "{notes}"
    );
    it.assert_equal("auto", "one", 0, &it.stage.path("a"));
    it.assert_nothing_left();
}

#[test]
fn an_agent_serves_no_hot_added_disk_unless_it_was_told_to() {
    let Some(mut it) = Proxied::one(153, 1, &[]) else { return };
    it.sites.kill();
    it.sites.more.clear();
    it.sites.start();
    let refused = it.run(&["plan", "check", &it.plan("off", "hotadd", PROXY, &[])], 3);
    assert!(refused.err.contains("serves no hot-added disks"), "{}", refused.err);
    let place = "agent://site-b/hot-added:6000c29a0123456789abcdef01234567";
    let refused = it.sites.here.run(&["hash", place]).unwrap();
    assert!(refused.code != Some(0) && refused.err.contains("--allow-hot-added"), "{}", refused.err);
}

#[test]
fn a_full_controller_is_waited_for_or_done_without() {
    // One slot is free: 15 units, of which 14 are taken.
    let Some(it) = Proxied::new(154, 14, &[], |folder| {
        let disks: Vec<PathBuf> = (0..3).map(|at| disk_file(folder, &format!("d{at}"), 2 * MIB)).collect();
        vec![vm("one", &disks.iter().map(PathBuf::as_path).collect::<Vec<_>>())]
    }) else {
        return;
    };
    let patient = [("\nvms:\n", "\nlimits: {disks: 8, retry_for: 2m}\nvms:\n")];
    it.stage.migrate(&it.plan("waits", "hotadd", PROXY, &patient));
    let plan = it.plan("without", "auto", PROXY, &patient);
    it.stage.migrate(&plan);
    for (name, disk) in ["waits", "without"].iter().flat_map(|name| (0..3).map(move |disk| (*name, disk))) {
        it.assert_equal(name, "one", disk, &it.stage.path(&format!("d{disk}")));
    }
    assert_eq!(it.hot_added()["most"], 1, "never more than there is room for");
    it.assert_nothing_left();
}

#[test]
fn a_proxy_that_comes_back_is_read_on_and_one_that_does_not_is_done_without() {
    let Some(mut it) = Proxied::one(155, 24, &["--rate-limit", "6MiB"]) else { return };
    let back = [("\nvms:\n", "\nlimits: {retry_for: 2m}\nvms:\n")];
    let mut running = it.stage.drover.start(&["migrate", &it.plan("back", "hotadd", PROXY, &back)]).unwrap();
    wait_for_records(&it.image("back", "one", 0));
    it.sites.kill();
    it.sites.start();
    assert_eq!(running.child.wait().unwrap().code(), Some(0));
    it.assert_equal("back", "one", 0, &it.stage.path("a"));
    it.assert_nothing_left();

    let plan = it.plan("gone", "auto", PROXY, &[]);
    let mut running = it.stage.drover.start(&["migrate", &plan]).unwrap();
    wait_for_records(&it.image("gone", "one", 0));
    it.sites.kill();
    it.stage.sim.post("/vm/power", json!({"vm": "proxy01", "state": "off"})).unwrap();
    assert_ne!(running.child.wait().unwrap().code(), Some(0));
    it.assert_nothing_left();
    let resumed = it.run(&["resume", &plan], 0);
    assert!(resumed.err.contains("disks are read without this proxy"), "{}", resumed.err);
    it.assert_equal("gone", "one", 0, &it.stage.path("a"));
    let report = it.stage.report(&plan);
    let disk = &report["vms"][0]["disks"][0]["details"];
    assert!(disk["note"].to_string().contains("read by NFC"), "{disk:#}");
    assert!(disk["resumed_bytes"].as_u64() > Some(0), "it goes on where the proxy left it: {disk:#}");
    it.assert_nothing_left();
}

#[test]
fn a_detach_that_fails_is_tried_again_before_the_snapshot_goes() {
    let Some(it) = Proxied::one(156, 2, &[]) else { return };
    it.fail_reconfigure(1, 1);
    let plan = it.plan("again", "hotadd", PROXY, &[]);
    it.stage.migrate(&plan);
    let notes = it.notes(&plan);
    assert!(notes.contains("was still attached to proxy01 and is detached"), "{notes}");
    it.assert_equal("again", "one", 0, &it.stage.path("a"));
    it.assert_nothing_left();

    it.fail_reconfigure(1, -1);
    let plan = it.plan("stuck", "hotadd", PROXY, &[]);
    let failed = it.stage.run(&["migrate", &plan]);
    assert_eq!(failed.code, Some(13), "{}{}", failed.out, failed.err);
    let told = failed.out + &failed.err;
    assert!(told.contains("detach from proxy01") && told.contains("never delete its files"), "{told}");
    assert_eq!(it.attached(), 1);
    let left = it.run(&["clean", &plan], 6);
    assert!(left.err.contains("the device is busy"), "{}", left.err);
    it.stage.sim.post("/fault/clear", json!({})).unwrap();
    let cleaned = it.run(&["clean", &plan], 0);
    assert!(cleaned.err.contains("detached: [ds1] one/one.vmdk"), "{}", cleaned.err);
    it.assert_nothing_left();
    it.run(&["resume", &plan], 0);
    it.assert_equal("stuck", "one", 0, &it.stage.path("a"));
    it.assert_nothing_left();
}

#[test]
fn what_a_killed_run_left_attached_is_found_by_the_next_one_and_by_clean() {
    let Some(it) = Proxied::one(157, 24, &["--rate-limit", "6MiB"]) else { return };
    let begin_and_kill = |name: &str| {
        let plan = it.plan(name, "hotadd", PROXY, &[]);
        let running = it.stage.drover.start(&["migrate", &plan]).unwrap();
        wait_for_records(&it.image(name, "one", 0));
        running.kill().unwrap();
        assert_eq!(it.attached(), 1);
        plan
    };
    let plan = begin_and_kill("resumed");
    it.run(&["resume", &plan], 0);
    it.assert_equal("resumed", "one", 0, &it.stage.path("a"));
    assert!(it.notes(&plan).contains("was still attached"), "{}", it.notes(&plan));
    it.assert_nothing_left();

    let plan = begin_and_kill("cleaned");
    let cleaned = it.run(&["clean", &plan], 0);
    assert!(cleaned.err.contains("detached: [ds1] one/one.vmdk"), "{}", cleaned.err);
    it.assert_nothing_left();
    it.run(&["cancel", &plan], 0);

    // Its state is lost, too: the plan's proxies are looked at all the same.
    let plan = begin_and_kill("forgotten");
    let state = it.stage.path("state");
    for file in ["drover.db", "drover.db-wal", "drover.db-shm"] {
        let _ = std::fs::remove_file(state.join(file));
    }
    std::fs::remove_dir_all(it.stage.path("forgotten-vms")).unwrap();
    it.run(&["migrate", &plan], 0);
    it.assert_equal("forgotten", "one", 0, &it.stage.path("a"));
    it.assert_nothing_left();
}

#[test]
fn a_snapshot_whose_removal_an_attached_disk_blocks_is_removed_or_who_blocks_it_is_named() {
    let Some(it) = Proxied::new(158, 1, &["--rate-limit", "6MiB"], |folder| {
        vec![vm("one", &[&disk_file(folder, "a", 12 * MIB)]), proxy("backup01", 1)]
    }) else {
        return;
    };
    let only_one = [("  - name: \"backup01\"\n", "")];
    let plan = it.plan("theirs", "hotadd", PROXY, &only_one);
    let child =
        it.stage.drover.command(&["migrate", &plan]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap();
    wait_until("the disk is attached", PATIENCE, || it.attached() == 1);
    it.attach_by_somebody("backup01");
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).to_string() + &String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(13), "{told}");
    assert!(told.contains("attached to backup01, as backups do"), "{told}");
    let somebody = it.stage.somebody();
    let vms = somebody.inventory().unwrap().vms;
    let (one, backup) = (
        vms.iter().find(|vm| vm.name == "one").unwrap(),
        vms.iter().find(|vm| vm.name == "backup01").unwrap(),
    );
    let held = backup.disks.iter().find(|disk| disk.uuid == one.disks[0].uuid).unwrap();
    somebody.detach(&backup.id, held).unwrap();
    somebody.consolidate(&one.id).unwrap();
    it.run(&["resume", &plan], 0);
    it.assert_equal("theirs", "one", 0, &it.stage.path("a"));
    it.assert_nothing_left();
}

/// The classic orphan, in the one moment in which nobody looks any more: what was attached is detached, and the snapshot is
/// about to be removed.
#[test]
fn what_is_attached_to_a_proxy_of_the_plan_right_before_a_removal_is_detached_and_leaves_no_file() {
    for (number, removal) in [(184, "left"), (185, "refused")] {
        let Some(it) = Proxied::one(number, 2, &[]) else { return };
        it.stage.sim.post("/hotadd/set", json!({"removal": removal})).unwrap();
        // The removal waits for the end of another task, for a second, and then for two.
        let busy =
            json!({"method": "RemoveSnapshot_Task", "as": "task", "fault": "TaskInProgress", "count": 2});
        it.stage.sim.post("/fault/soap", busy).unwrap();
        let calls = |method: &str| it.stage.sim.get("/stats").unwrap()["soap"][method].as_u64().unwrap_or(0);
        let plan = it.plan("again", "hotadd", PROXY, &[]);
        let mut running = it.stage.drover.start(&["migrate", &plan]).unwrap();
        wait_until("the snapshot is to be removed", PATIENCE, || calls("RemoveSnapshot_Task") > 0);
        assert_eq!(it.attached(), 0, "{removal}: drover's own is detached before");
        it.attach_by_somebody("proxy01");
        assert_eq!(running.child.wait().unwrap().code(), Some(0), "{removal}");
        it.assert_equal("again", "one", 0, &it.stage.path("a"));
        it.assert_nothing_left();
        assert_eq!(it.hot_added()["attaches"], 2, "{removal}");
        // Where it is refused, the removal that follows the detaching leaves nothing to consolidate.
        let consolidations = if removal == "left" { 1 } else { 0 };
        assert_eq!(calls("ConsolidateVMDisks_Task"), consolidations, "{removal}");
    }
}

/// Small disks, so that most of a run is what is done to VMs: snapshots, attaching, detaching.
#[test]
fn killed_at_random_moments_it_leaves_nothing_attached_that_clean_or_the_next_run_does_not_find() {
    kills(160, 3);
}

/// Run by `make soak`.
#[test]
#[ignore = "takes minutes; `make soak` runs it"]
fn soak() {
    kills(161, 25);
}

fn kills(number: u8, count: u64) {
    let Some(it) = Proxied::one(number, 2, &[]) else { return };
    let began = Instant::now();
    it.stage.migrate(&it.plan("whole", "hotadd", PROXY, &[]));
    let whole = began.elapsed();
    let mut seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    println!("seed {seed}, of {whole:?}");
    for number in 0..count {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let name = format!("killed{number}");
        let plan = it.plan(&name, "hotadd", PROXY, &[]);
        let running = it.stage.drover.start(&["migrate", &plan]).unwrap();
        // From before the login to its end.
        let after = Duration::from_micros(seed % whole.as_micros() as u64);
        std::thread::sleep(after);
        running.kill().unwrap();
        println!("killed after {after:?} with {} attached", it.attached());
        // Too early for the state to have it.
        let is_unknown = it.stage.run(&["status", &plan]).err.contains("there is no plan");
        if number % 2 == 0 && !is_unknown {
            it.run(&["clean", &plan], 0);
        }
        if number % 2 == 0 || is_unknown {
            it.assert_nothing_left();
        }
        it.run(&[if is_unknown { "migrate" } else { "resume" }, &plan], 0);
        it.assert_equal(&name, "one", 0, &it.stage.path("a"));
        it.assert_nothing_left();
    }
}
