//! `drover-lab demo-kube` (`make demo-kube`): virtual machines leave a simulated vCenter by the operator of a real Kubernetes of two nodes, arrive on volumes of both
//! with every byte proven from outside, and boot from them.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use drover_lab::cluster::{CLASS, IMAGE, Volume};
use drover_lab::{Cluster, Guest, Guests, PASSWORD, Scene, Sim, USER, chart};
use serde_json::{Value, json};

const NAMESPACE: &str = "vms";
const OWN: &str = "/apis/drover.dev/v1alpha1/namespaces/vms";
/// For all to arrive, and for a guest to boot under software emulation on two busy cores.
const ARRIVE_SECONDS_MAX: u64 = 300;
const BOOT_SECONDS_MAX: u64 = 180;
/// The VM that keeps running until it is moved over: as web01, with a disk more.
const WARM: &str = "warm01";
const WARM_BYTES: u64 = 64 << 20;
const WRITES_PER_S: u64 = 500_000;

/// A VM of the demo: its name, the guest in it, the sizes of its disks, what volumes it goes to, and the node that has these.
struct Moved<'a> {
    name: &'a str,
    guest: &'a Guest,
    disks: Vec<u64>,
    volumes: Volume,
    node: &'static str,
}

/// Runs the demo.
pub fn run() -> Result<()> {
    let started = Instant::now();
    let guests = Guests::build()?;
    let mut moved = Vec::new();
    for (name, volumes, node) in [
        ("web01", Volume::Block, "node-1"),
        ("web02", Volume::Folder, "node-2"),
        ("db01", Volume::Block, "node-1"),
    ] {
        let guest = guests.get(name)?;
        let disks = guest.disks.iter().map(|disk| disk.capacity_bytes).collect();
        moved.push(Moved { name, guest, disks, volumes, node });
    }
    let guest = guests.get("web01")?;
    moved.push(Moved {
        name: WARM,
        guest,
        disks: vec![guest.disks[0].capacity_bytes, WARM_BYTES],
        volumes: Volume::Block,
        node: "node-2",
    });

    let folder = std::env::temp_dir().join(format!("kd-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let outcome = shown(&guests, &moved, &folder);
    // What is mounted there has ended with the cluster.
    std::fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))?;
    outcome?;
    println!("took {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

fn shown(guests: &Guests, moved: &[Moved<'_>], folder: &Path) -> Result<()> {
    let sim = source(guests, &folder.join("vsphere"))?;
    let drover = std::env::current_exe()?.with_file_name("drover");
    let begun = Instant::now();
    let Some(mut cluster) = Cluster::start(&folder.join("k"), &drover)? else { bail!("there is no cluster") };
    ensure!(cluster.install_kubevirt()?, "there are no schemas of KubeVirt");
    cluster.second_node()?;
    println!("a Kubernetes of two nodes has come in {:.0} s", begun.elapsed().as_secs_f64());
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    cluster.make("/api/v1/namespaces", &namespace)?;
    cluster.play();
    let address = cluster.let_out(sim.port)?;
    let paths = volumes(&mut cluster, moved)?;
    chart::install_resources(&cluster, NAMESPACE)?;
    chart::install(&cluster, NAMESPACE, "64Mi")?;
    println!("deploy/crds.yaml and the chart are installed in the namespace {NAMESPACE}");
    let begun = Instant::now();
    order(&cluster, &sim, &address)?;
    arrive(&cluster, moved)?;
    println!("all have arrived after {:.0} s; now from outside:", begun.elapsed().as_secs_f64());

    let mut machines = Vec::new();
    for it in moved {
        let disks = disks(&cluster, it, &paths)?;
        let hashes = sim.disk_hashes(it.name)?;
        for ((disk, bytes), wanted) in disks.iter().zip(&it.disks).zip(&hashes) {
            let found = sha256(disk, *bytes)?;
            ensure!(found == *wanted, "{}: {} has {found}, and the source {wanted}", it.name, disk.display());
        }
        ensure!(hashes.len() == disks.len(), "{}: {} disks", it.name, disks.len());
        let kind = if it.volumes == Volume::Block { "block" } else { "file system" };
        println!(
            "{:<8} {} {kind} volume(s) on {} equal to the source's disks (SHA-256); its worker ran on {}",
            it.name,
            disks.len(),
            it.node,
            worker_node(&cluster, it.name)?
        );
        machines.push(boot(it, &disks, folder)?);
    }
    println!("booting them from their volumes (software emulation, up to {BOOT_SECONDS_MAX} s)");
    for (it, machine) in moved.iter().zip(&mut machines) {
        proves(it, &folder.join(format!("{}.serial", it.name)), machine)?;
    }
    Ok(())
}

/// A vCenter with the guests and the VM that keeps running.
fn source(guests: &Guests, folder: &Path) -> Result<Sim> {
    let mut scene = Scene::of_guests(guests);
    let vms = scene.inventory["vms"].as_array_mut().context("VMs of the scene")?;
    vms.retain(|vm| vm["name"] != "archive01");
    // KubeVirt gives a machine one NIC of the pod's network.
    for nics in vms.iter_mut().filter_map(|vm| vm["nics"].as_array_mut()) {
        nics.truncate(1);
    }
    let mut warm = vms.first().context("a guest")?.clone();
    warm["name"] = json!(WARM);
    for (number, nic) in warm["nics"].as_array_mut().into_iter().flatten().enumerate() {
        nic["mac"] = json!(format!("00:50:56:aa:02:{number:02x}"));
    }
    let data =
        json!({"capacity": "64MiB", "thin": true, "datastore": "ds2", "controller": "pvscsi", "unit": 1});
    warm["disks"].as_array_mut().context("disks")?.push(data);
    vms.push(warm);
    let sim = Sim::start(&scene.inventory, folder)?;
    sim.post("/writer", json!({"vm": WARM, "disk": 1, "bytes_per_s": WRITES_PER_S}))?;
    println!("a simulated vCenter is at https://127.0.0.1:{}", sim.port);
    Ok(sim)
}

/// Volumes for all disks and states; gives the files and folders with their bytes, by name.
fn volumes(cluster: &mut Cluster, moved: &[Moved<'_>]) -> Result<BTreeMap<String, PathBuf>> {
    let mut paths = BTreeMap::new();
    for it in moved {
        for (number, bytes) in it.disks.iter().enumerate() {
            let name = format!("{}-{number}", it.name);
            // A file system takes room besides.
            let bytes = if it.volumes == Volume::Block { *bytes } else { bytes * 5 / 4 };
            let claim = format!("{NAMESPACE}/{name}");
            let path = cluster.volume_at(it.node, Some(&claim), &name, it.volumes, bytes)?;
            paths.insert(name, path);
        }
        cluster.volume_at(it.node, None, &format!("{}-state", it.name), Volume::Folder, 64 << 20)?;
    }
    Ok(paths)
}

/// Makes what a user would apply: a Secret, a Provider and two Plans.
fn order(cluster: &Cluster, sim: &Sim, address: &str) -> Result<()> {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "vcenter"},
        "stringData": {"user": USER, "password": PASSWORD}});
    cluster.make("/api/v1/namespaces/vms/secrets", &secret)?;
    let provider = json!({"apiVersion": "drover.dev/v1alpha1", "kind": "Provider", "metadata": {"name": "vcenter"},
        "spec": {"endpoint": address, "secretName": "vcenter", "thumbprint": sim.thumbprint}});
    cluster.make(&format!("{OWN}/providers"), &provider)?;
    let warm = json!({"name": WARM, "mode": "warm", "warm": {"interval": "2s", "cutover": "auto", "downtime_max": "3m"}});
    for (name, mode, vms) in [
        ("on-block", "block", json!([{"name": "web01"}, {"name": "db01"}, warm])),
        ("on-files", "filesystem", json!([{"name": "web02"}])),
    ] {
        let target = json!({"type": "kubevirt", "storage_class": CLASS, "image": IMAGE, "image_pull": "Never", "volume_mode": mode});
        let keys = json!({"source": {"data": {"from": "provider", "path": "https"}}, "target": target, "mode": "cold",
            "power_off": "shutdown", "convert": "never", "networks": {"*": "pod:masquerade"}, "start": true, "vms": vms});
        let plan = json!({"apiVersion": "drover.dev/v1alpha1", "kind": "Plan", "metadata": {"name": name},
            "spec": {"provider": "vcenter", "plan": keys}});
        cluster.make(&format!("{OWN}/plans"), &plan)?;
        println!("Plan {name} is made");
    }
    Ok(())
}

/// Waits until all are done, and tells what their Migrations say.
fn arrive(cluster: &Cluster, moved: &[Moved<'_>]) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(ARRIVE_SECONDS_MAX);
    let mut told: BTreeMap<String, String> = BTreeMap::new();
    loop {
        let list = cluster.get(&format!("{OWN}/migrations"))?.unwrap_or_default();
        let mut done = 0;
        for it in list["items"].as_array().into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
            let (name, status) = (text(&it["spec"]["vm"]["name"]), &it["status"]);
            let conditions = status["conditions"].as_array().into_iter().flatten();
            let arrived =
                conditions.into_iter().find(|it| it["type"] == "Arrived").cloned().unwrap_or_default();
            let line = format!("{:<10} {}", text(&status["phase"]), text(&arrived["reason"]));
            if told.get(&name) != Some(&line) {
                println!("{name:<8} {line}");
                told.insert(name.clone(), line);
            }
            ensure!(status["phase"] != "Failed", "{name}: {arrived:#}");
            done += usize::from(status["phase"] == "Done");
        }
        if done == moved.len() {
            return Ok(());
        }
        ensure!(Instant::now() < until, "{done} of {} have arrived: {list:#}", moved.len());
        sleep(Duration::from_millis(300));
    }
}

/// The node that the worker of a VM ran on.
fn worker_node(cluster: &Cluster, name: &str) -> Result<String> {
    let pods =
        cluster.get("/api/v1/namespaces/vms/pods?labelSelector=drover.dev%2Fmigration")?.unwrap_or_default();
    let is_it = |pod: &&Value| pod["metadata"]["labels"]["drover.dev/vm"] == name;
    let pod = pods["items"].as_array().into_iter().flatten().find(is_it);
    let node = pod.and_then(|pod| pod["spec"]["nodeName"].as_str());
    Ok(node.with_context(|| format!("{name} has no worker's pod on a node"))?.to_string())
}

/// The files with a VM's disks, by the claims that its machine names.
fn disks(cluster: &Cluster, it: &Moved<'_>, paths: &BTreeMap<String, PathBuf>) -> Result<Vec<PathBuf>> {
    let machine = cluster.get(&format!("/apis/kubevirt.io/v1/namespaces/vms/virtualmachines/{}", it.name))?;
    let machine = machine.with_context(|| format!("there is no VirtualMachine {}", it.name))?;
    let volumes = machine["spec"]["template"]["spec"]["volumes"].as_array().cloned().unwrap_or_default();
    let claims = volumes.iter().filter_map(|it| it["persistentVolumeClaim"]["claimName"].as_str());
    let path = |claim: &str| {
        let found = cluster
            .get(&format!("/api/v1/namespaces/vms/persistentvolumeclaims/{claim}"))?
            .unwrap_or_default();
        let volume = found["spec"]["volumeName"].as_str().unwrap_or_default();
        let path = paths.get(volume).with_context(|| format!("{claim} is on {volume}"))?;
        Ok(if it.volumes == Volume::Block { path.clone() } else { path.join("disk.img") })
    };
    claims.map(path).collect()
}

fn sha256(file: &Path, bytes: u64) -> Result<String> {
    let head = format!("head -c {bytes} \"$1\" | sha256sum");
    let output = Command::new("sh").args(["-c", &head, "sh"]).arg(file).output()?;
    ensure!(output.status.success(), "{head}: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().next().unwrap_or_default().to_string())
}

/// A QEMU that ends when this is dropped.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Boots a VM from its volumes, which it does not change.
fn boot(it: &Moved<'_>, disks: &[PathBuf], folder: &Path) -> Result<Machine> {
    let mut command = Command::new("qemu-system-x86_64");
    command.args([
        "-machine",
        "q35,accel=tcg",
        "-display",
        "none",
        "-snapshot",
        "-nic",
        "none",
        "-no-reboot",
    ]);
    command.args(["-m", &it.guest.memory_mib.to_string(), "-smp", &it.guest.cpus.to_string()]);
    command.args(["-serial", &format!("file:{}/{}.serial", folder.display(), it.name)]);
    if it.guest.firmware == "uefi" {
        command.args(["-bios", "/usr/share/ovmf/OVMF.fd"]);
    }
    for disk in disks {
        command.args(["-drive", &format!("file={},format=raw,if=virtio", disk.display())]);
    }
    let said = File::create(folder.join(format!("{}.qemu", it.name)))?;
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(said)
        .spawn()
        .context("qemu-system-x86_64")?;
    Ok(Machine(child))
}

/// Waits until the guest has printed that it booted and found all its data.
fn proves(it: &Moved<'_>, serial: &Path, machine: &mut Machine) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(BOOT_SECONDS_MAX);
    loop {
        let text = std::fs::read(serial).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let missing = it.guest.missing_in(&text);
        if missing.is_empty() {
            println!("{:<8} booted and proved its data", it.name);
            return Ok(());
        }
        let has_ended = machine.0.try_wait()?.is_some();
        ensure!(!has_ended && Instant::now() < until, "{}: it did not print {missing:?}", it.name);
        sleep(Duration::from_millis(300));
    }
}
