//! Rehearsals of copies in volumes of a libvirt daemon on this host, of which the daemon is told nothing.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use drover_lab::{Guests, lab_folder};
use drover_qemu::{VmFolder, find_running};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use drover_stage::debian::{DISK_BYTES, debian, put_marking_converter};
use drover_stage::landing::{Landing, hear};
use drover_stage::process::{PATIENCE, wait_until};
use drover_stage::{vm, with};

/// A guest under emulation, on a machine that is busy.
const BOOT: &str = "300s";

/// A VM of a guest that boots and proves its data.
fn web01(guests: &Guests) -> Value {
    let guest = guests.get("web01").unwrap();
    let files: Vec<PathBuf> = guest.disks.iter().map(|disk| guests.folder.join(&disk.file)).collect();
    let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
    with(vm("web01", &files), json!({"cpus": guest.cpus, "memory_mib": guest.memory_mib}))
}

fn checked(checks: &str) -> String {
    format!("mode: cold\nchecks: {{post_start: [{checks}]}}")
}

fn overlays(landing: &Landing, plan: &str, vm: &str) -> PathBuf {
    landing.stage.path(&format!("state/libvirt/{plan}/{vm}/.drover-rehearsal"))
}

/// Has a plan ask for the proof of its guest; gives its text then.
fn ask_for_proof(plan: &str) -> String {
    let proves = format!("{{serial: 'DROVER-DONE', within: {BOOT}}}");
    let asks = std::fs::read_to_string(plan).unwrap().replace("mode: cold", &checked(&proves));
    std::fs::write(plan, &asks).unwrap();
    asks
}

/// Domains of a host, and of one of them its XML, whether it is defined, and what is in its volume.
type OfTarget = (Vec<String>, String, bool, Vec<u8>);

/// Rehearses a plan, which passes, leaves nothing and changes nothing; gives what was there.
fn passes(landing: &Landing, plan: &str, overlays: &Path, found: impl Fn() -> OfTarget) -> OfTarget {
    let before = found();
    assert!(before.2, "it is defined");
    let done = landing.arrives(&["rehearse", plan, "--json"]);
    assert!(done.out.contains("\"result\":\"passed\""), "{}{}", done.out, done.err);
    assert_nothing_is_left(overlays);
    assert!(found() == before, "volumes and domains are as they were");
    before
}

/// What a rehearsal may not change.
fn of_target(landing: &Landing, host: &str, volume: &Path, domain: &str) -> OfTarget {
    let is_defined = landing.hosts.virsh(host, &["dominfo", domain]).is_ok();
    let xml = if is_defined { landing.xml(host, domain) } else { String::new() };
    (landing.all_of(host), xml, is_defined, std::fs::read(volume).unwrap())
}

fn assert_nothing_is_left(overlays: &Path) {
    assert!(!overlays.exists(), "overlays are left");
    assert!(find_running(&VmFolder::new(overlays)).unwrap().is_none(), "its machine runs");
}

#[test]
fn a_domain_that_is_off_is_rehearsed_without_its_daemon() {
    let Ok(guests) = Guests::load(&lab_folder().join("guests")) else {
        println!("skipped: the test guests are not built (`make lab`)");
        return;
    };
    let Some(landing) = Landing::new(189, |_| vec![web01(&guests)]) else { return };
    let plan = landing.plan("off", &[]);
    landing.arrives(&["migrate", &plan]);
    // A run cannot ask for the serial line of a domain, and a rehearsal can.
    ask_for_proof(&plan);
    let overlays = overlays(&landing, "off", "web01");
    let found = || of_target(&landing, "a", &landing.image("a", "web01-0.raw"), "web01");
    let before = passes(&landing, &plan, &overlays, found);

    // Killed, with all that it has.
    let edited = std::fs::read_to_string(&plan).unwrap().replace("DROVER-DONE", "never said");
    std::fs::write(&plan, &edited).unwrap();
    let mut command = landing.command(&["rehearse", &plan]);
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("its machine runs", PATIENCE, || find_running(&VmFolder::new(&overlays)).unwrap().is_some());
    running.kill().unwrap();
    running.wait().unwrap();
    wait_until("its machine is ended with it", PATIENCE, || {
        find_running(&VmFolder::new(&overlays)).unwrap().is_none()
    });
    wait_until("its overlays are removed", PATIENCE, || !overlays.exists());
    assert!(found() == before, "volumes and domains are as they were");

    // What a guard left that was killed, too, goes when the plan is rehearsed again.
    std::fs::create_dir_all(&overlays).unwrap();
    std::fs::write(overlays.join("disk0.qcow2"), "left").unwrap();
    std::fs::write(&plan, edited.replace(BOOT, "1s")).unwrap();
    let failed = landing.run(&["rehearse", &plan]);
    assert_eq!(failed.code, Some(16), "{}", failed.err);
    assert_nothing_is_left(&overlays);

    let tty = landing.hosts.start_heard("a", "web01").unwrap();
    let refused = landing.run(&["rehearse", &plan]);
    let why = "not rehearsed: it runs at the target, from these images";
    assert!(refused.code == Some(3) && refused.err.contains(why), "{}", refused.err);
    // It was not disturbed.
    let guest = guests.get("web01").unwrap();
    let said = hear(tty, |said| guest.missing_in(said).is_empty());
    assert_eq!(guest.missing_in(&said), Vec::<&str>::new(), "{said}");
}

#[test]
fn a_replica_is_converted_on_overlays_of_its_volume() {
    let Some(landing) = Landing::new(190, |folder| {
        vec![with(vm("one", &[&debian(folder, "one", &[])]), json!({"power": "on", "nics": []}))]
    }) else {
        return;
    };
    let tools = landing.stage.path("bin");
    put_marking_converter(&tools, "");
    // The run is stopped between two passes.
    let warm = "mode: warm\nwarm: {interval: 1h, cutover: manual}";
    let plan = landing.plan("replica", &[("mode: cold", warm), ("convert: never", "convert: auto")]);
    let mut command = landing.command(&["migrate", &plan]);
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("a pass", PATIENCE, || {
        let told = landing.run(&["report", &plan, "--json"]).json().unwrap_or_default();
        let passes = told["vms"][0]["warm"]["passes"].as_array().cloned().unwrap_or_default();
        passes.iter().any(|pass| pass["state"] == "complete")
    });
    kill_process(Pid::from_child(&run), Signal::INT).unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(130));
    let volume = landing.image("a", "one-0.raw");
    assert_eq!(std::fs::metadata(&volume).unwrap().len(), DISK_BYTES);
    let overlays = overlays(&landing, "replica", "one");
    let before = of_target(&landing, "a", &volume, "one");
    let done = landing.arrives(&["rehearse", &plan, "--for", "1"]);
    assert!(done.err.contains("converted, on the overlays"), "{}", done.err);
    assert_eq!(std::fs::read_to_string(tools.join("runs")).unwrap().lines().count(), 1);
    assert_nothing_is_left(&overlays);
    assert!(
        of_target(&landing, "a", &volume, "one") == before,
        "the volume is the source's, and no domain is there"
    );
    // A conversion that fails fails its rehearsal, and nothing else.
    put_marking_converter(&tools, "echo 'virt-v2v-in-place: error: no boot loader was found'\nexit 1");
    let failed = landing.run(&["rehearse", &plan]);
    assert!(failed.code == Some(16) && failed.err.contains("no boot loader was found"), "{}", failed.err);
    assert!(of_target(&landing, "a", &volume, "one") == before);
    // An overlay that a guard left goes with the rest.
    std::fs::create_dir_all(&overlays).unwrap();
    std::fs::write(overlays.join("disk0.qcow2"), "left").unwrap();
    landing.arrives(&["cancel", "replica"]);
    assert!(!overlays.exists() && !volume.exists());
}

#[test]
fn a_copy_on_another_host_is_rehearsed_on_this_one_and_only_read() {
    let Ok(guests) = Guests::load(&lab_folder().join("guests")) else {
        println!("skipped: the test guests are not built (`make lab`)");
        return;
    };
    let Some(landing) = Landing::new(195, |_| vec![web01(&guests)]) else { return };
    let _agent = landing.agent("b", "site-b", &[&format!("images={}", landing.image("b", "").display())]);
    let plan = landing.far_plan("far", &landing.hosts.uri("b"), &[]);
    landing.arrives(&["migrate", &plan]);
    let asks = ask_for_proof(&plan);
    let overlays = overlays(&landing, "far", "web01");
    let found = || of_target(&landing, "b", &landing.image("b", "web01-0.raw"), "web01");
    let before = passes(&landing, &plan, &overlays, found);

    std::fs::write(&plan, asks.replace("DROVER-DONE", "never said")).unwrap();
    let mut command = landing.command(&["rehearse", &plan]);
    let mut running = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_until("its machine runs", PATIENCE, || find_running(&VmFolder::new(&overlays)).unwrap().is_some());
    running.kill().unwrap();
    running.wait().unwrap();
    wait_until("its overlays are removed", PATIENCE, || !overlays.exists());
    wait_until("its machine is ended with it", PATIENCE, || {
        find_running(&VmFolder::new(&overlays)).unwrap().is_none()
    });
    assert!(found() == before, "volumes and domains are as they were");
    // Nobody there holds the volume.
    landing.hosts.virsh("b", &["start", "web01"]).unwrap();
    let refused = landing.run(&["rehearse", &plan]);
    let why = "not rehearsed: it runs at the target, from these images";
    assert!(refused.code == Some(3) && refused.err.contains(why), "{}", refused.err);
}
