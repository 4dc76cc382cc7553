//! Plans whose target is a libvirt daemon: VMs of the simulator become domains of two true daemons (`lab/libvirt/hosts`).
#![allow(clippy::unwrap_used)]

mod ceph;
mod eight;
mod hosts;
mod kills;
mod kinds;
mod luns;
mod lvm;
mod lvm_far;
mod real_ceph;
mod rehearse;
mod shared;

use drover_stage::landing::Landing;
use drover_stage::{MIB, disk_file, vm, with};
use serde_json::json;

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
    let cases: [Case<'_>; 20] = [
        ("dead", &[only, ("socket=", "socket=/no/such")], "does not answer"),
        ("nopool", &[only, ("pool: images", "pool: imagse")], "has no storage pool imagse"),
        ("asleep", &[only, ("pool: images", "pool: asleep")], "pool asleep of"),
        ("lvm", &[only, ("pool: images", "pool: lvm")], "pool lvm of"),
        ("nobridge", &[only, ("\"*\": user", "\"*\": br-none")], "no bridge or device br-none"),
        ("nonet", &[only, ("\"*\": user", "\"*\": network:lan")], "networks"),
        ("cpu", &[only, ("  accel", "  cpu: NoSuchCPU\n  accel")], "does not offer the CPU NoSuchCPU"),
        ("model", &[only, ("  accel", "  cpu: EPYC-Rome\n  accel")], "the CPU EPYC-Rome: its host lacks"),
        (
            "feature",
            &[only, ("  accel", "  cpu_features: [sse2, avx512f]\n  accel")],
            "has no CPU with avx512f",
        ),
        (
            "pages",
            &[only, ("  accel", "  hugepages: 1GiB\n  accel")],
            "free in huge pages of 1 GiB, and the VMs need 256 MiB",
        ),
        (
            "uneven",
            &[only, ("  accel", "  hugepages: 1GiB\n  accel")],
            "(256 MiB) is no multiple of huge pages of 1 GiB",
        ),
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
    let same = landing.plan("uuid", &[only]);
    let inventory = landing.arrives(&["inventory", &same, "--json"]).json().unwrap();
    let one = inventory["vms"].as_array().unwrap().iter().find(|vm| vm["name"] == "one").unwrap();
    landing.somebodys("a", "older", one["uuid"].as_str());
    let checked = landing.run(&["plan", "check", &same]);
    assert!(checked.err.contains("it has the VM's UUID"), "{}", checked.err);
    virsh(&["undefine", "older"]);
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

/// Moves the one guest of a plan `convert` with a run that is killed before its conversion and one after it, and a last one that finds it done.
fn is_converted_once(landing: &Landing, plan: &str) {
    let runs = || std::fs::read_to_string(landing.stage.path("bin/runs")).unwrap_or_default().lines().count();
    let mut runs_of_first = 0;
    for (at, edge) in [("phase_started", "convert"), ("phase_ended", "convert")].into_iter().enumerate() {
        let args = if at == 0 { ["migrate", plan] } else { ["resume", "convert"] };
        assert!(landing.killed_at(&args, edge).is_some(), "{edge:?} never came");
        runs_of_first = runs();
    }
    landing.arrives(&["resume", "convert"]);
    assert!(runs_of_first > 0 && runs() == runs_of_first, "{} runs of the converter", runs());
}
