use std::fmt::Write;
use std::path::Path;

use serde_json::{Value, json};

use crate::guests::{Guest, Guests};
use crate::sim::{PASSWORD, Sim, USER};

/// An inventory for the simulator and a plan that moves all of it.
#[derive(Clone, Debug)]
pub struct Scene {
    /// Inventory; see `lab/vsphere-sim/README.md`.
    pub inventory: Value,
}

impl Scene {
    /// A vCenter with these VMs on two hosts. Each host has a management address and one for backups, and
    /// addresses of scenes with different `number`s differ.
    pub fn new(number: u8, vms: Vec<Value>) -> Scene {
        Scene::with_hosts(number, 2, vms)
    }

    /// The same with so many hosts: `esx1.lab` and so on.
    pub fn with_hosts(number: u8, hosts: usize, vms: Vec<Value>) -> Scene {
        let host = |last: usize| {
            json!({
                "name": format!("esx{last}.lab"),
                "power_policy": if last == 1 { "high_performance" } else { "balanced" },
                "nics": [{"device": "vmnic0", "link_mbps": 10000}],
                "vmknics": [
                    {"device": "vmk0", "address": format!("127.{number}.1.{last}"), "services": ["management"]},
                    {"device": "vmk1", "address": format!("127.{number}.2.{last}"), "services": ["vSphereBackupNFC"]},
                ],
                "credentials": {"username": "root", "password": PASSWORD},
            })
        };
        let inventory = json!({
            "about": {"version": "8.0.2", "api_version": "8.0.2.0", "build": "22617221"},
            "credentials": {"username": USER, "password": PASSWORD},
            "datacenter": "DC0",
            "folders": ["prod", "prod/web", "test"],
            "networks": [{"name": "VM Network"}, {"name": "Storage Net"}],
            "datastores": [{"name": "ds1", "capacity": "4TiB"}, {"name": "ds2", "capacity": "4TiB"}],
            "hosts": (1..=hosts).map(host).collect::<Vec<_>>(),
            "vms": vms,
        });
        Scene { inventory }
    }

    /// The test guests as VMs: Linux with BIOS and UEFI, one with three disks, one with a sparse 20 GiB disk.
    /// The first one runs, so that it has to be shut down.
    pub fn of_guests(guests: &Guests) -> Scene {
        let vms =
            guests.guests.iter().enumerate().map(|(number, guest)| guest_vm(guests, guest, number)).collect();
        Scene::new(77, vms)
    }

    /// A plan of that name that takes all VMs to `folder`, with more keys appended by the caller if wanted.
    pub fn plan(&self, name: &str, sim: &Sim, folder: &Path) -> String {
        let mut text = format!(
            "version: 1\nname: {name}\n\
             source:\n  type: vsphere\n  endpoint: 127.0.0.1:{}\n  user: {USER}\n  password_env: DROVER_PASSWORD\n  \
             thumbprint: \"{}\"\n  data:\n    from: hosts\n    port: {}\n\
             target:\n  type: qemu\n  folder: {}\n  accelerator: tcg\n  overcommit: true\n\
             mode: cold\npower_off: shutdown\nconvert: never\n\
             networks:\n  \"*\": user\nvms:\n",
            sim.port,
            sim.thumbprint,
            sim.port,
            folder.display()
        );
        for vm in self.inventory["vms"].as_array().into_iter().flatten() {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  - name: {}", vm["name"]);
        }
        text
    }
}

fn guest_vm(guests: &Guests, guest: &Guest, number: usize) -> Value {
    let disk = |at: usize| {
        let disk = &guest.disks[at];
        json!({
            "file": guests.folder.join(&disk.file), "capacity": disk.capacity_bytes, "thin": true,
            "datastore": if at == 0 { "ds1" } else { "ds2" }, "controller": "pvscsi", "unit": at,
        })
    };
    json!({
        "name": guest.name, "folder": "prod/web", "host": if number.is_multiple_of(2) { "esx1.lab" } else { "esx2.lab" },
        "guest_id": "debian12_64Guest", "firmware": if guest.firmware == "uefi" { "efi" } else { "bios" },
        "cpus": guest.cpus, "memory_mib": guest.memory_mib,
        "power": if number == 0 { "on" } else { "off" }, "tools": "running", "tags": ["env:prod"], "cbt": true,
        "nics": [
            {"network": "VM Network", "mac": format!("00:50:56:aa:00:{number:02x}"), "model": "vmxnet3"},
            {"network": "Storage Net", "mac": format!("00:50:56:aa:01:{number:02x}"), "model": "vmxnet3"},
        ],
        "disks": (0..guest.disks.len()).map(disk).collect::<Vec<_>>(),
    })
}
