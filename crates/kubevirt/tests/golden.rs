//! What planned VMs become, whole. That the true schemas take it is tested where a cluster is (`bin/drover/tests/live_target_kubevirt.rs`).
#![allow(clippy::unwrap_used)]

use drover_kubevirt::objects::{self, Keys};
use drover_kubevirt::vm::{self, About};
use drover_plan::{Kubevirt, Plan, PlannedVm, resolve};
use drover_types::inventory::{About as Source, DiskBus, Firmware, Inventory, Nic, PowerState, Vm, VmDisk};
use serde_json::json;

fn planned(target: &str, change: impl FnOnce(&mut Vm)) -> (PlannedVm, Kubevirt) {
    let text = format!(
        "version: 1\nname: p\nsource: {{type: vsphere, endpoint: vc, user: u, password_env: P}}\n\
         target: {{type: kubevirt, namespace: prod, image: drover, {target}}}\nconvert: never\n\
         networks: {{lan: 'pod:masquerade', db: 'nad:net/vlan7', '*': none}}\nvms: [{{name: 'Web 01'}}]\n"
    );
    let disk = |key: i32, capacity_bytes: u64| VmDisk {
        key,
        label: format!("Hard disk {key}"),
        uuid: format!("6000c293-0a1b-2c3d-4e5f-66778899{key:04}"),
        capacity_bytes,
        datastore: "ds1".into(),
        bus: DiskBus::Scsi,
        ..VmDisk::default()
    };
    let nic = |mac: &str, network: &str, model: &str| Nic {
        mac: mac.into(),
        network: network.into(),
        model: model.into(),
        connected: true,
        ..Nic::default()
    };
    let mut vm = Vm {
        id: "vm-1".into(),
        name: "Web 01".into(),
        uuid: "42110000-1111-2222-3333-44445555666A".into(),
        instance_uuid: "50110000-1111-2222-3333-444455556666".into(),
        power: PowerState::Off,
        cpus: 4,
        cores_per_socket: 2,
        memory_mib: 2048,
        guest_id: "debian12_64Guest".into(),
        disks: vec![disk(2000, 10 << 20), disk(2001, (1 << 20) + 512)],
        nics: vec![
            nic("00:50:56:AA:00:01", "lan", "vmxnet3"),
            nic("00:50:56:aa:00:02", "db", "e1000"),
            nic("00:50:56:aa:00:03", "gone", "e1000"),
        ],
        ..Vm::default()
    };
    change(&mut vm);
    let plan = Plan::parse(&text).unwrap_or_else(|problems| panic!("{problems:#?}"));
    let inventory = Inventory {
        about: Source { is_vcenter: true, ..Source::default() },
        vms: vec![vm],
        ..Inventory::default()
    };
    let mut resolution = resolve(&plan, &inventory);
    assert!(resolution.is_ok(), "{:#?}", resolution.problems);
    (resolution.vms.remove(0), plan.target.kubevirt().unwrap().clone())
}

#[test]
fn an_instance_type_says_cpu_and_memory() {
    let (vm, kubevirt) = planned("instance_type: u1.medium, preference: rhel.9, cpu: host-model", |_| {});
    let machine = vm::virtual_machine(&vm, &kubevirt, &About::default());
    let spec = &machine["spec"];
    assert_eq!(
        spec["instancetype"],
        json!({"kind": "VirtualMachineClusterInstancetype", "name": "u1.medium"})
    );
    assert_eq!(spec["preference"], json!({"kind": "VirtualMachineClusterPreference", "name": "rhel.9"}));
    let domain = spec["template"]["spec"]["domain"].as_object().unwrap();
    assert!(!domain.contains_key("cpu") && !domain.contains_key("memory"), "{domain:#?}");
    assert!(domain.contains_key("devices"));
}

#[test]
fn a_bios_guest_with_all_kinds_of_nics() {
    let (vm, kubevirt) = planned("disk_bus: keep, nic_model: keep, machine: q35, cpu: host-model", |_| {});
    let roots = [(0, "ab".repeat(32))];
    let about = About { plan: "p", origin: "vCenter 8", roots: &roots };
    let disk = |index: u32, serial: &str| {
        let mut disk = json!({"name": format!("disk-{index}"), "serial": serial, "disk": {"bus": "scsi"}});
        if index == 0 {
            disk["bootOrder"] = json!(1);
        }
        disk
    };
    let claim = |index: u32| {
        let name = format!("web-01-{index}");
        json!({"name": format!("disk-{index}"), "persistentVolumeClaim": {"claimName": name}})
    };
    assert_eq!(
        vm::virtual_machine(&vm, &kubevirt, &about),
        json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine",
            "metadata": {
                "name": "web-01",
                "namespace": "prod",
                "labels": {"app.kubernetes.io/managed-by": "drover", "drover.dev/vm": "web-01"},
                "annotations": {
                    "drover.dev/name": "Web 01",
                    "drover.dev/owner": "plan p vm 50110000-1111-2222-3333-444455556666",
                    "drover.dev/root-0": "ab".repeat(32),
                    "drover.dev/source": "vCenter 8 (vm-1)",
                },
            },
            "spec": {
                "runStrategy": "Halted",
                "template": {
                    "metadata": {"labels": {"kubevirt.io/domain": "web-01"}},
                    "spec": {
                        "domain": {
                            "machine": {"type": "q35"},
                            "firmware": {"uuid": "42110000-1111-2222-3333-44445555666a", "bootloader": {"bios": {}}},
                            "cpu": {"sockets": 2, "cores": 2, "threads": 1, "model": "host-model"},
                            "memory": {"guest": "2048Mi"},
                            "devices": {
                                "disks": [disk(0, "2c3d4e5f667788992000"), disk(1, "2c3d4e5f667788992001")],
                                "interfaces": [
                                    {"name": "nic-0", "macAddress": "00:50:56:aa:00:01", "model": "virtio", "masquerade": {}},
                                    {"name": "nic-1", "macAddress": "00:50:56:aa:00:02", "model": "e1000", "bridge": {}},
                                ],
                                "rng": {},
                            },
                        },
                        "networks": [
                            {"name": "nic-0", "pod": {}},
                            {"name": "nic-1", "multus": {"networkName": "net/vlan7"}},
                        ],
                        "volumes": [claim(0), claim(1)],
                        "terminationGracePeriodSeconds": 180,
                    },
                },
            },
        })
    );
}

#[test]
fn a_nic_that_is_disconnected_has_its_link_down() {
    let (vm, kubevirt) = planned("", |vm| vm.nics[1].connected = false);
    let machine = vm::virtual_machine(&vm, &kubevirt, &About::default());
    let interfaces = &machine["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"];
    assert!(interfaces[0].get("state").is_none() && interfaces[1]["state"] == "down", "{interfaces:#}");
}

#[test]
fn secure_boot_without_a_nic() {
    let (vm, kubevirt) = planned("volume_mode: filesystem", |vm| {
        vm.firmware = Some(Firmware::Uefi);
        vm.secure_boot = true;
        vm.nics.clear();
    });
    let machine = vm::virtual_machine(&vm, &kubevirt, &About::default());
    let domain = &machine["spec"]["template"]["spec"]["domain"];
    assert_eq!(domain["firmware"]["bootloader"], json!({"efi": {"secureBoot": true, "persistent": true}}));
    assert_eq!(domain["features"], json!({"smm": {"enabled": true}}));
    assert_eq!(domain["devices"]["autoattachPodInterface"], false);
    assert_eq!(machine["spec"]["template"]["spec"].get("networks"), None);
}

#[test]
fn claims_are_whole_units_and_leave_room_for_a_file_system() {
    let (vm, kubevirt) = planned("storage_class: fast, access_mode: ReadWriteMany, size_unit: 4MiB", |_| {});
    assert_eq!(
        objects::claim(&vm, &vm.disks[1], &kubevirt, "p"),
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "web-01-1",
                "namespace": "prod",
                "labels": {"app.kubernetes.io/managed-by": "drover", "drover.dev/vm": "web-01"},
                "annotations": {"drover.dev/owner": "plan p vm 50110000-1111-2222-3333-444455556666 disk 2001"},
            },
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "volumeMode": "Block",
                "storageClassName": "fast",
                "resources": {"requests": {"storage": "4194304"}},
            },
        })
    );
    let (_, files) = planned("volume_mode: filesystem", |_| {});
    let bytes = objects::claim_bytes(100 << 30, &files);
    assert!(bytes > (106 << 30) && bytes < (107 << 30), "{bytes}");
    assert_eq!(objects::claim_bytes(u64::MAX, &kubevirt), u64::MAX);
}

#[test]
fn workers_have_no_more_rights_than_their_volumes_want() {
    let keys = Keys { agent: "aa".into(), peer: "bb".into(), run: "7".into() };
    let (vm, files) = planned("volume_mode: filesystem", |_| {});
    let pod = objects::worker(&vm, &files, "p", &keys);
    let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["automountServiceAccountToken"], false);
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    let args = container["args"].as_array().unwrap();
    assert!(args.contains(&json!("web-01-1=/disks/1")), "{args:?}");
    let (vm, block) = planned("", |_| {});
    let pod = objects::worker(&vm, &block, "p", &keys);
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["volumeDevices"][1], json!({"name": "disk-1", "devicePath": "/dev/drover-1"}));
    // All disks of a VM are in one pod, which prefers the node of the VM's other pods and waits for none.
    let beside = &pod["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    let labels = &beside[0]["podAffinityTerm"]["labelSelector"]["matchLabels"];
    assert_eq!(labels["drover.dev/vm"], pod["metadata"]["labels"]["drover.dev/vm"]);
    assert!(!pod["spec"]["affinity"].to_string().contains("required"));
    assert_eq!(container["securityContext"]["privileged"], json!(null));
}

#[test]
fn workers_are_told_apart_by_what_was_asked_for_and_owners_by_their_installation() {
    let (vm, kubevirt) = planned("", |_| {});
    let shape = |kubevirt: &Kubevirt, agent: &str| {
        let keys = Keys { agent: agent.into(), peer: "bb".into(), run: "7".into() };
        let pod = objects::worker(&vm, kubevirt, "p", &keys);
        objects::annotation(&pod, objects::SHAPE).unwrap().to_string()
    };
    assert_eq!(shape(&kubevirt, "aa"), shape(&kubevirt, "cc"), "each has a key of its own");
    let other = Kubevirt { image: "another".into(), ..kubevirt.clone() };
    assert_ne!(shape(&kubevirt, "aa"), shape(&other, "aa"));
    let claim = objects::claim(&vm, &vm.disks[0], &kubevirt, &objects::plan_of("p", "host-a"));
    assert!(objects::is_of(&claim, &vm.owner_of(&objects::plan_of("p", "host-a"), &vm.disks[0])));
    assert!(!objects::is_of(&claim, &vm.owner_of(&objects::plan_of("p", "host-b"), &vm.disks[0])));
}
