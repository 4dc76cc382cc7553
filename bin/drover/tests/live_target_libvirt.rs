//! Plans whose target is a libvirt daemon: VMs of the simulator become domains of two true daemons (`lab/libvirt/hosts`).
#![allow(clippy::unwrap_used)]

mod common;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::landing::{Landing, edges, hear};
use common::{MIB, disk_file, same_bytes, vm, with};
use drover_lab::{Guests, lab_folder, run_by};
use serde_json::{Value, json};

#[test]
fn vms_land_on_two_daemons_as_was_asked_and_prove_themselves() {
    let Ok(guests) = Guests::load(&lab_folder().join("guests")) else {
        println!("skipped: the test guests are not built (`make lab`)");
        return;
    };
    let of_guest = |name: &str, mac: u8| {
        let guest = guests.get(name).unwrap();
        let files: Vec<PathBuf> = guest.disks.iter().map(|disk| guests.folder.join(&disk.file)).collect();
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        let firmware = if guest.firmware == "uefi" { "efi" } else { "bios" };
        let nic =
            json!({"network": "VM Network", "mac": format!("00:50:56:aa:02:{mac:02x}"), "model": "vmxnet3"});
        let told =
            json!({"firmware": firmware, "cpus": guest.cpus, "memory_mib": guest.memory_mib, "nics": [nic]});
        with(vm(name, &files), told)
    };
    let landing = Landing::new(131, |folder| {
        let small = disk_file(folder, "small", 2 * MIB);
        vec![
            of_guest("web01", 1),
            with(of_guest("web02", 2), json!({"guest_id": "windows2019srv_64Guest"})),
            with(of_guest("db01", 3), json!({"power": "on"})),
            with(vm("safe", &[&small]), json!({"firmware": "efi", "secure_boot": true, "nics": []})),
        ]
    });
    let Some(landing) = landing else { return };
    let on_b = format!("uri: '{}'", landing.hosts.uri("b"));
    let plan = landing.plan(
        "land",
        &[
            ("mode: cold", "mode: warm\nwarm: {interval: 1s, cutover: auto}\nstart: true"),
            ("\"*\": user", "\"VM Network\": user"),
            ("  overcommit", "  autostart: true\n  cpu: qemu64\n  io: threads\n  overcommit"),
            ("  - name: \"web01\"", "  - name: \"web01\"\n    mode: cold\n    format: qcow2"),
            (
                "  - name: \"web02\"",
                &format!("  - name: \"web02\"\n    mode: cold\n    disk_bus: scsi\n    {on_b}"),
            ),
            (
                "  - name: \"safe\"",
                &format!("  - name: \"safe\"\n    mode: cold\n    start: false\n    {on_b}"),
            ),
        ],
    );
    let before = landing.stage.source_state();
    let checked = landing.arrives(&["plan", "check", &plan]);
    assert!(checked.out.contains("the plan is fine"), "{}", checked.out);
    assert_eq!(landing.all_of("a").len() + landing.all_of("b").len(), 0, "a check touches nothing");
    landing.arrives(&["migrate", &plan]);
    for (host, name) in [("a", "web01"), ("b", "web02"), ("a", "db01")] {
        assert_eq!(landing.state(host, name), "running", "{name}");
    }
    assert_eq!(landing.state("b", "safe"), "shut off");
    assert!(same_bytes(&landing.image("b", "safe-0.raw"), &landing.stage.path("small")));

    // What was asked is what libvirt has.
    let has = |host: &str, name: &str, parts: &[&str]| {
        let xml = landing.xml(host, name);
        for part in parts {
            assert!(xml.contains(part), "{name}: {part} in {xml}");
        }
    };
    let uuid = |name: &str| {
        let told = landing.stage.sim.vm(name).unwrap();
        told["uuid"].as_str().map(|uuid| format!("<uuid>{}</uuid>", uuid.to_lowercase())).unwrap_or_default()
    };
    let volume = |host: &str, name: &str| format!("<source file='{}'/>", landing.image(host, name).display());
    has(
        "a",
        "web01",
        &[
            &uuid("web01"),
            &volume("a", "web01-0.qcow2"),
            "type='qcow2' cache='none' io='threads' discard='unmap'",
            "<mac address='00:50:56:aa:02:01'/>",
            "<target dev='vda' bus='virtio'/>",
            "<drover:owner xmlns:drover=\"urn:drover:domain:1\" plan=\"land\"",
            "org.qemu.guest_agent.0",
            "<model fallback='forbid'>qemu64</model>",
            "<clock offset='utc'>",
            "<rng model='virtio'>",
        ],
    );
    has(
        "b",
        "web02",
        &["firmware='efi'", "<nvram", "<clock offset='localtime'>", "bus='scsi'", "model='virtio-scsi'"],
    );
    let volumes: Vec<String> = (0..3).map(|disk| volume("a", &format!("db01-{disk}.raw"))).collect();
    has("a", "db01", &[&volumes[0], &volumes[1], &volumes[2], "<vcpu placement='static'>2</vcpu>"]);
    has("b", "safe", &["<smm state='on'/>", "<feature enabled='yes' name='secure-boot'/>", "secure='yes'"]);
    for (host, name) in [("a", "web01"), ("b", "safe")] {
        assert!(landing.hosts.virsh(host, &["dominfo", name]).unwrap().contains("Autostart:      enable"));
    }
    let listed = landing.hosts.virsh("a", &["vol-list", "images"]).unwrap();
    assert!(listed.contains("web01-0.qcow2") && listed.contains("db01-2.raw"), "{listed}");

    // A second run finds nothing to do, and another plan may not take what is there.
    let xml = landing.xml("a", "web01");
    landing.arrives(&["migrate", &plan]);
    assert_eq!(landing.xml("a", "web01"), xml);
    let other = landing.plan("other", &[("- name: \"web02\"\n  - name: \"db01\"\n  - name: \"safe\"\n", "")]);
    let refused = landing.run(&["plan", "check", &other]);
    assert_eq!(refused.code, Some(7), "{refused:?}");
    assert!(
        refused.err.contains("a domain web01") && refused.err.contains("plan land made it"),
        "{}",
        refused.err
    );

    // From inside. What a guest said when drover started it, nobody heard.
    for (host, name) in [("a", "web01"), ("b", "web02"), ("a", "db01")] {
        // It may have switched itself off by now, as it does once it has proven itself.
        let _ = landing.hosts.virsh(host, &["destroy", name]);
        let tty = landing.hosts.start_heard(host, name).unwrap();
        let guest = guests.get(name).unwrap();
        let said = hear(tty, |said| guest.missing_in(said).is_empty());
        assert_eq!(guest.missing_in(&said), Vec::<&str>::new(), "{name}: {said}");
    }
    let after = landing.stage.source_state();
    assert_eq!(snapshots(&after), snapshots(&before), "no snapshot is left");
}

#[test]
fn a_nic_is_plugged_into_the_bridge_that_the_plan_names() {
    let nic = json!({"network": "VM Network", "mac": "00:50:56:aa:02:09", "model": "vmxnet3"});
    let Some(landing) = Landing::new(161, |folder| {
        vec![with(vm("lan", &[&disk_file(folder, "lan", 2 * MIB)]), json!({"nics": [nic]}))]
    }) else {
        return;
    };
    let there = landing.hosts.in_their_network().unwrap();
    let ports = || {
        let mut command = Command::new(&there[0]);
        command.args(&there[1..]).args(["ip", "-o", "link", "show", "master", "br-lan"]);
        common::moves::run(command)
    };
    if ports().code != Some(0) || !Path::new("/dev/net/tun").exists() {
        println!("skipped: this kernel has no bridges, or no /dev/net/tun");
        return;
    }
    // Drover is of the network that the simulator is in, and sees the devices of theirs.
    let own = format!("/proc/{}/ns/net", std::process::id());
    let sees = format!("mount -t sysfs sys /sys && exec nsenter --net={own} \"$@\"");
    let words = ["unshare", "--mount", "sh", "-c", &sees, "sh"].map(str::to_string);
    let run =
        |args: &[&str]| common::moves::run(run_by(&[&there[..], &words].concat(), &landing.command(args)));
    let started = ("mode: cold", "mode: cold\nstart: true");
    let absent = landing.plan("absent", &[started, ("\"*\": user", "\"*\": br-none")]);
    let refused = run(&["plan", "check", &absent]);
    assert!(refused.code == Some(3) && refused.err.contains("no bridge or device br-none"), "{refused:?}");
    let moved = run(&["migrate", &landing.plan("lan", &[started, ("\"*\": user", "\"*\": br-lan")])]);
    assert_eq!(moved.code, Some(0), "{moved:?}");
    assert!(landing.xml("a", "lan").contains("<source bridge='br-lan'/>"), "{}", landing.xml("a", "lan"));
    let listed = landing.hosts.virsh("a", &["domiflist", "lan"]).unwrap();
    let tap = listed.lines().find_map(|line| line.split_whitespace().find(|word| word.starts_with("vnet")));
    assert!(ports().out.contains(tap.unwrap()), "{listed} in {:?}", ports());
}

fn snapshots(state: &Value) -> Vec<Value> {
    state.as_array().into_iter().flatten().map(|vm| vm["snapshots"].clone()).collect()
}

/// A plan's name, what is replaced in it, and what the check says.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a str);

#[test]
fn a_check_tells_each_thing_that_stands_in_the_way_by_itself() {
    let Some(landing) = Landing::new(132, |folder| {
        let a = disk_file(folder, "a", MIB);
        let big = json!([{"file": a, "datastore": "ds1", "thin": true, "controller": "pvscsi", "capacity": "14TiB"}]);
        vec![
            vm("one", &[&a]),
            with(vm("sealed", &[&a]), json!({"firmware": "efi", "vtpm": true, "nics": []})),
            with(vm("big", &[&a]), json!({"disks": big, "nics": []})),
            with(vm("win", &[&a]), json!({"guest_id": "windows2019srv_64Guest", "nics": []})),
        ]
    }) else {
        return;
    };
    let virsh = |words: &[&str]| landing.hosts.virsh("a", words).unwrap();
    let empty = landing.folder.path().join("shared/empty");
    std::fs::create_dir(&empty).unwrap();
    virsh(&["pool-define-as", "asleep", "dir", "--target", empty.to_str().unwrap()]);
    // Not every libvirt has the driver for it.
    let lvm = ["pool-define-as", "lvm", "logical", "--source-name", "vg", "--target", "/dev/vg"];
    let has_lvm = landing.hosts.virsh("a", &lvm).is_ok();
    let has_converter = drover_qemu::can_convert().is_ok();
    landing.somebodys("a", "taken", None);
    std::fs::write(landing.image("a", "clash-0.raw"), "somebody's").unwrap();
    virsh(&["vol-create-as", "images", "blank-0.raw", "1MiB", "--allocation", "0"]);
    let before = landing.all_of("a");
    let only = ("  - name: \"sealed\"\n  - name: \"big\"\n  - name: \"win\"\n", "");
    let cases: [Case<'_>; 16] = [
        ("dead", &[only, ("socket=", "socket=/no/such")], "does not answer"),
        ("nopool", &[only, ("pool: images", "pool: imagse")], "has no storage pool imagse"),
        ("asleep", &[only, ("pool: images", "pool: asleep")], "pool asleep of"),
        ("lvm", &[only, ("pool: images", "pool: lvm")], "is of the type logical"),
        ("nobridge", &[only, ("\"*\": user", "\"*\": br-none")], "no bridge or device br-none"),
        ("nonet", &[only, ("\"*\": user", "\"*\": network:lan")], "networks"),
        ("cpu", &[only, ("  accel", "  cpu: NoSuchCPU\n  accel")], "does not offer the CPU NoSuchCPU"),
        ("kvm", &[only, ("accelerator: tcg", "accelerator: kvm")], "does not offer machines q35 with KVM"),
        (
            "machine",
            &[only, ("  accel", "  machine: pc-q35-99\n  accel")],
            "does not offer machines pc-q35-99",
        ),
        ("name", &[only, ("- name: \"one\"", "- name: \"one\"\n    target_name: taken")], "a domain taken ("),
        (
            "volume",
            &[only, ("- name: \"one\"", "- name: \"one\"\n    target_name: clash")],
            "clash-0.raw already holds something",
        ),
        (
            "blank",
            &[only, ("- name: \"one\"", "- name: \"one\"\n    target_name: blank")],
            "blank-0.raw is there already and holds nothing, but drover has no record that it made it",
        ),
        ("convert", &[only, ("convert: never", "convert: always")], "virt-v2v-in-place is not installed"),
        (
            "tpm",
            &[(
                "  - name: \"one\"\n  - name: \"sealed\"\n  - name: \"big\"\n  - name: \"win\"\n",
                "  - name: \"sealed\"\n",
            )],
            "it needs an emulated TPM",
        ),
        (
            "space",
            &[
                (
                    "  - name: \"one\"\n  - name: \"sealed\"\n  - name: \"big\"\n  - name: \"win\"\n",
                    "  - name: \"big\"\n",
                ),
                ("  overcommit: true\n", ""),
            ],
            "pool images has",
        ),
        (
            "windows",
            &[
                (
                    "  - name: \"one\"\n  - name: \"sealed\"\n  - name: \"big\"\n  - name: \"win\"\n",
                    "  - name: \"win\"\n",
                ),
                ("convert: never", "convert: auto"),
            ],
            "win needs conversion: virt-v2v-in-place is not installed",
        ),
    ];
    let mut wrong = Vec::new();
    let is_had = |(name, ..): &Case<'_>| match *name {
        "lvm" => has_lvm,
        "windows" | "convert" => !has_converter,
        _ => true,
    };
    for (name, edits, words) in cases.into_iter().filter(is_had) {
        let checked = landing.run(&["plan", "check", &landing.plan(name, edits)]);
        let is_fine = checked.code == Some(0);
        let told = format!("{}{}", checked.out, checked.err);
        if !told.contains(words) || is_fine {
            wrong.push(format!("{name}: '{words}' with {:?} in {told}", checked.code));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    // One that has the VM's UUID under another name.
    let uuid = landing.stage.sim.vm("one").unwrap()["uuid"].as_str().map(str::to_string);
    if let Some(uuid) = uuid {
        landing.somebodys("a", "older", Some(&uuid));
        let checked = landing.run(&["plan", "check", &landing.plan("uuid", &[only])]);
        assert!(checked.err.contains("it has the VM's UUID"), "{}", checked.err);
        virsh(&["undefine", "older"]);
    }
    let unneeded = landing.plan(
        "notpm",
        &[
            (
                "  - name: \"one\"\n  - name: \"sealed\"\n  - name: \"big\"\n  - name: \"win\"\n",
                "  - name: \"sealed\"\n",
            ),
            ("  accel", "  tpm: false\n  accel"),
        ],
    );
    landing.arrives(&["plan", "check", &unneeded]);
    assert_eq!(landing.all_of("a"), before, "nothing was touched");
}

#[test]
fn killed_at_every_edge_a_plan_arrives_once_and_touches_nothing_of_others() {
    let Some(landing) = Landing::new(133, |folder| {
        let a = disk_file(folder, "a", 2 * MIB);
        vec![with(vm("one", &[&a]), json!({"power": "on"}))]
    }) else {
        return;
    };
    landing.somebodys("a", "theirs", None);
    let theirs = landing.xml("a", "theirs");
    let plan = landing.plan("edges", &[("mode: cold", "mode: cold\nstart: true")]);
    let mut args = vec!["migrate", plan.as_str()];
    let mut came = HashSet::new();
    for edge in edges() {
        if landing.killed_at(&args, edge).is_some() {
            came.insert(edge);
        }
        landing.runs_once("a", "one", edge);
        args = vec!["resume", "edges"];
    }
    assert!(came.len() >= 14, "{came:?}");
    landing.arrives(&["resume", "edges"]);
    assert_eq!(landing.state("a", "one"), "running");
    assert_eq!(landing.stage.sim.vm("one").unwrap()["power"], "poweredOff");
    assert_eq!(landing.all_of("a"), ["domain one", "domain theirs", "one-0.raw", "one-0.raw.drover-journal"]);
    assert_eq!(landing.xml("a", "theirs"), theirs);
    let cancelled = landing.arrives(&["cancel", "edges"]);
    assert!(cancelled.err.contains("nothing to cancel"), "{}", cancelled.err);
    assert_eq!(landing.state("a", "one"), "running", "what has arrived stays");
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
    for edge in [
        ("phase_started", "copy"),
        ("phase_ended", "copy"),
        ("phase_started", "define"),
        ("phase_ended", "define"),
    ] {
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
