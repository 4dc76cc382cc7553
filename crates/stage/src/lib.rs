//! What the program's tests stand on: a simulated vCenter, a plan and the drover program, in a folder of their own; sites with agents, guests,
//! clusters. It is compiled once for all of them. What goes wrong here fails the test that asked for it.
#![allow(missing_docs, clippy::new_without_default, clippy::unwrap_used)]

pub mod cdi;
pub mod ceph;
pub mod ceph_cluster;
pub mod certificates;
pub mod cgroup;
pub mod collector;
pub mod daemon;
pub mod debian;
pub mod domain_xml;
pub mod domains;
pub mod far;
pub mod gate;
pub mod issuer;
pub mod kubernetes;
pub mod landing;
pub mod line;
pub mod loops;
pub mod moves;
pub mod nbdkit;
pub mod operated;
pub mod pages;
pub mod pair;
pub mod process;
#[path = "../../link/tests/tcp/proxy.rs"]
pub mod proxy;
pub mod reference;
pub mod running;
pub mod scene;
pub mod sites;
pub mod small_disk;
#[path = "../../relay/tests/common/streams.rs"]
pub mod streams;
pub mod units;

use std::path::{Path, PathBuf};

use drover_lab::{Drover, Output, Scene, Sim};
use drover_types::Secret;
use drover_vsphere::{ConnectOptions, Session, Timeouts, Trust};
use serde_json::{Value, json};
use tempfile::TempDir;

pub const MIB: u64 = 1 << 20;

/// The drover program, which lies beside the folder of the test that runs.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().join("drover")
}

/// What a test stands on. The simulator ends and all files go when it is dropped.
pub struct Stage {
    pub sim: Sim,
    pub drover: Drover,
    scene: Scene,
    folder: TempDir,
}

impl Stage {
    /// A stage with these VMs; `None`, after a printed line, where the simulator is not built. Stages that
    /// run at the same time should have different numbers.
    pub fn new(number: u8, vms: impl FnOnce(&Path) -> Vec<Value>) -> Option<Stage> {
        Stage::new_as("vcenter", number, vms)
    }

    /// As [`Stage::new`], for a `vcenter` or a single `esxi` host.
    pub fn new_as(mode: &str, number: u8, vms: impl FnOnce(&Path) -> Vec<Value>) -> Option<Stage> {
        Stage::of(mode, |folder| Scene::new(number, vms(folder)))
    }

    /// As [`Stage::new`], with more hosts.
    pub fn with_hosts(number: u8, hosts: usize, vms: impl FnOnce(&Path) -> Vec<Value>) -> Option<Stage> {
        Stage::of("vcenter", |folder| Scene::with_hosts(number, hosts, vms(folder)))
    }

    fn of(mode: &str, scene: impl FnOnce(&Path) -> Scene) -> Option<Stage> {
        if Sim::program().is_none() {
            println!("skipped: the vSphere simulator is not built (`make lab`)");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("drover-e2e-").tempdir().unwrap();
        let scene = scene(folder.path());
        let sim = Sim::start_as(mode, &scene.inventory, &folder.path().join("vsphere")).unwrap();
        let drover = Drover::new(program(), folder.path().join("state"));
        Some(Stage { sim, drover, scene, folder })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Folder of the target.
    pub fn vms(&self) -> PathBuf {
        self.path("vms")
    }

    /// The image of a VM's disk.
    pub fn image(&self, vm: &str, disk: usize) -> PathBuf {
        self.vms().join(vm).join(format!("{vm}-{disk}.raw"))
    }

    /// The text of a plan that moves all VMs. It reads over HTTPS, where most faults of the simulator strike.
    pub fn plan_text(&self, name: &str) -> String {
        let text = self.scene.plan(name, &self.sim, &self.vms());
        text.replace("    from: hosts\n", "    path: https\n    from: hosts\n")
    }

    /// Writes a plan that moves all VMs, with texts replaced, and gives its path.
    pub fn plan(&self, name: &str, edits: &[(&str, &str)]) -> String {
        let mut text = self.plan_text(name);
        for (from, to) in edits {
            assert!(text.contains(from), "'{from}' is not in the plan:\n{text}");
            text = text.replace(from, to);
        }
        let path = self.path(&format!("{name}.yaml"));
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    pub fn run(&self, args: &[&str]) -> Output {
        self.drover.run(args).unwrap()
    }

    /// Runs a plan that must arrive whole.
    pub fn migrate(&self, plan: &str) {
        let output = self.run(&["migrate", plan]);
        assert_eq!(output.code, Some(0), "{}{}", output.out, output.err);
    }

    pub fn report(&self, plan: &str) -> Value {
        self.run(&["report", plan, "--json"]).json().unwrap()
    }

    /// What must not change at the source: power, snapshots, files.
    pub fn source_state(&self) -> Value {
        self.sim.get("/vms").unwrap()
    }

    /// A login beside drover's: somebody else who works on the same VMs.
    pub fn somebody(&self) -> Session {
        Session::connect(ConnectOptions {
            endpoint: format!("127.0.0.1:{}", self.sim.port),
            user: drover_lab::USER.to_string(),
            password: Secret::new(drover_lab::PASSWORD),
            trust: Trust::Thumbprint(self.sim.thumbprint.parse().unwrap()),
            timeouts: Timeouts::default(),
        })
        .unwrap()
    }

    /// Somebody's snapshot of a VM; gives its id.
    pub fn backup(&self, vm: &str) -> String {
        let moid = self.sim.vm(vm).unwrap()["moid"].as_str().unwrap().to_string();
        self.somebody().create_snapshot(&moid, "backup", "", false).unwrap().id
    }

    /// Bytes of disks that the simulator has served, over all its addresses.
    pub fn served(&self) -> u64 {
        let stats = self.sim.get("/stats").unwrap();
        let endpoints = stats["endpoints"].as_object().unwrap();
        endpoints.values().map(|endpoint| endpoint["folder_bytes"].as_u64().unwrap()).sum()
    }

    /// Holds an image against the file that its disk was made from.
    pub fn assert_equal(&self, vm: &str, disk: usize, file: &Path) {
        assert!(same_bytes(&self.image(vm, disk), file), "{vm}/{disk} differs from {}", file.display());
    }
}

pub fn same_bytes(a: &Path, b: &Path) -> bool {
    std::fs::read(a).unwrap() == std::fs::read(b).unwrap()
}

/// A file of pseudo-random bytes in which every fourth MiB is a hole.
pub fn disk_file(folder: &Path, name: &str, bytes: u64) -> PathBuf {
    let path = folder.join(name);
    let mut content = vec![0; bytes as usize];
    let mut state = bytes ^ 0x9e37_79b9_7f4a_7c15;
    for (number, chunk) in content.chunks_mut(MIB as usize).enumerate() {
        if number % 4 == 3 {
            continue;
        }
        for word in chunk.chunks_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
    }
    std::fs::write(&path, content).unwrap();
    path
}

/// A switched-off VM with these disks.
pub fn vm(name: &str, disks: &[&Path]) -> Value {
    let disk = |path: &&Path| json!({"file": path, "datastore": "ds1", "thin": true, "controller": "pvscsi"});
    json!({
        "name": name, "folder": "prod", "host": "esx1.lab", "guest_id": "debian12_64Guest", "firmware": "bios",
        "cpus": 1, "memory_mib": 256, "power": "off", "tools": "running", "cbt": true,
        "nics": [{"network": "VM Network", "mac": "00:50:56:aa:00:01", "model": "vmxnet3"}],
        "disks": disks.iter().map(disk).collect::<Vec<_>>(),
    })
}

/// The same VM with keys changed.
pub fn with(mut vm: Value, changes: Value) -> Value {
    for (key, value) in changes.as_object().unwrap() {
        vm[key] = value.clone();
    }
    vm
}

/// A new key of OpenSSH, and a file of allowed signers with it.
pub fn signer(folder: &Path, name: &str) -> (PathBuf, PathBuf) {
    let key = folder.join(name);
    let made = std::process::Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"])
        .arg(&key)
        .status()
        .unwrap();
    assert!(made.success());
    let public = std::fs::read_to_string(folder.join(format!("{name}.pub"))).unwrap();
    let signers = folder.join(format!("{name}.signers"));
    std::fs::write(&signers, format!("{name}@example.org {public}")).unwrap();
    (key, signers)
}
