//! The targets of this program, held against the engine's suite for target providers.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use drover_agent::limits::{DayLimits, Sharers};
use drover_agent::sites::ThisHost;
use drover_engine::TargetProvider;
use drover_engine::conformance::{Subject, check_target};
use drover_lab::{Cluster, Drover, Hosts, cluster, lab_folder, run_by, workspace};
use drover_mover::StopSignal;
use drover_plan::{Plan, PlannedVm, resolve};
use drover_qemu::Virsh;
use drover_qemu::daemon::Daemon;
use drover_types::inventory::{About, DiskBus, Inventory, PowerState, ToolsState, Vm, VmDisk};

use crate::here::Here;
use crate::kubevirt::Claims;
use crate::libvirt::Domains;
use crate::setting::Setting;
use crate::sites::Sites;

/// Not a whole number of blocks.
const DISK_BYTES: u64 = (1 << 20) + 512;

fn vm() -> Vm {
    let disk = VmDisk {
        key: 2000,
        label: "Hard disk 1".into(),
        uuid: "6000c293-0a1b-2c3d-4e5f-66778899aabb".into(),
        capacity_bytes: DISK_BYTES,
        datastore: "ds1".into(),
        bus: DiskBus::Scsi,
        ..VmDisk::default()
    };
    Vm {
        id: "vm-1".into(),
        name: "subject".into(),
        uuid: "42110000-1111-2222-3333-444455556666".into(),
        instance_uuid: "50110000-1111-2222-3333-444455556666".into(),
        power: PowerState::On,
        tools: ToolsState::Running,
        cpus: 1,
        memory_mib: 32,
        guest_id: "debian12_64Guest".into(),
        disks: vec![disk],
        ..Vm::default()
    }
}

/// A plan of that one VM, for this target.
struct Scene {
    plan: Plan,
    folder: PathBuf,
}

impl Scene {
    fn new(target: &str, folder: &Path) -> Scene {
        let text = format!(
            "version: 1\nname: subject\nsource: {{type: vsphere, endpoint: vc, user: u, password_env: P}}\n\
             target: {target}\npower_off: shutdown\nvms: [{{name: subject}}]\n"
        );
        Scene { plan: Plan::parse(&text).unwrap(), folder: folder.to_path_buf() }
    }

    fn resolved(&self) -> drover_plan::Resolution {
        let about = About { is_vcenter: true, ..About::default() };
        let resolution = resolve(&self.plan, &Inventory { about, vms: vec![vm()], ..Inventory::default() });
        assert!(resolution.is_ok(), "{:#?}", resolution.problems);
        resolution
    }

    fn setting(&self) -> Setting {
        Setting {
            plan: self.plan.name.clone(),
            target: self.plan.target.clone(),
            limits: self.plan.limits,
            origin: "a test".into(),
            host: ThisHost { state: self.folder.join("state"), say: |_| {} },
            stop: StopSignal::default(),
            rate_limit: DayLimits::new(self.plan.target.rate_limit.clone()),
            sharers: Sharers::default(),
        }
    }
}

/// The files below a folder; folders of drover's own may stay.
fn files_below(folder: &Path, all: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().map(Result::unwrap) {
        match entry.file_type().unwrap().is_dir() {
            true => files_below(&entry.path(), all),
            false => drop(all.insert(entry.path().display().to_string())),
        }
    }
}

/// Images and definitions in a folder.
struct Folder {
    scene: Scene,
    place: PathBuf,
}

impl Subject for Folder {
    fn provider(&self) -> Box<dyn TargetProvider + '_> {
        Box::new(Here::new(&self.scene.setting()))
    }

    fn planned(&self) -> PlannedVm {
        self.scene.resolved().vms.remove(0)
    }

    fn plan(&self) -> &Plan {
        &self.scene.plan
    }

    fn content(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        files_below(&self.place, &mut all);
        all
    }

    fn somebodys(&self, is_there: bool) {
        let place = self.place.join("subject");
        if is_there {
            fs::create_dir(&place).unwrap();
            fs::write(place.join("subject-0.raw"), "somebody's").unwrap();
        } else {
            fs::remove_dir_all(&place).unwrap();
        }
    }

    fn break_down(&self, _: bool) -> bool {
        // A folder is there or is not, and one that is not would be made.
        false
    }
}

#[test]
fn a_folder_does_what_the_engine_takes_for_granted() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("vms");
    fs::create_dir(&place).unwrap();
    let scene = Scene::new(&format!("{{type: qemu, folder: {}}}", place.display()), folder.path());
    check_target(&Folder { scene, place }, &folder.path().join("runs"));
}

/// Domains of a true daemon.
struct OfLibvirt {
    scene: Scene,
    hosts: Hosts,
    /// Which of them.
    host: &'static str,
    pool: PathBuf,
    /// Whether nobody reaches the daemon.
    is_away: &'static AtomicBool,
    dial: fn(&str) -> Daemon,
}

static IS_AWAY: AtomicBool = AtomicBool::new(false);
static IS_FAR_AWAY: AtomicBool = AtomicBool::new(false);

fn dial(uri: &str, is_away: &AtomicBool) -> Daemon {
    let program = lab_folder().join("libvirt/bin/virsh");
    let program = if is_away.load(Ordering::SeqCst) { "/no/such/virsh".into() } else { program };
    Daemon::of(Virsh::new(uri).by(program.to_str().unwrap()))
}

impl OfLibvirt {
    fn domains(&self) -> Domains {
        let setting = self.scene.setting();
        Domains::dialled_by(
            Arc::new(Here::new(&setting)),
            Arc::new(Sites::new(&setting)),
            &setting,
            self.dial,
        )
    }
}

impl Subject for OfLibvirt {
    fn provider(&self) -> Box<dyn TargetProvider + '_> {
        Box::new(self.domains())
    }

    fn planned(&self) -> PlannedVm {
        // Where the pool lies is asked for; a daemon that is away does not tell, and the VM stays where it was.
        let mut resolution = self.scene.resolved();
        let was_away = self.is_away.swap(false, Ordering::SeqCst);
        self.domains().survey(&mut resolution);
        self.is_away.store(was_away, Ordering::SeqCst);
        assert!(resolution.is_ok(), "{:#?}", resolution.problems);
        let mut vm = resolution.vms.remove(0);
        vm.start = true;
        vm
    }

    fn plan(&self) -> &Plan {
        &self.scene.plan
    }

    fn content(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        files_below(&self.pool, &mut all);
        for kept in ["state/libvirt", "state/journals"] {
            files_below(&self.scene.folder.join(kept), &mut all);
        }
        let domains = self.hosts.virsh(self.host, &["list", "--all", "--name"]).unwrap();
        all.extend(domains.lines().map(|name| format!("domain {name}")));
        all
    }

    fn somebodys(&self, is_there: bool) {
        if is_there {
            let file = self.scene.folder.join("somebodys.xml");
            fs::write(
                &file,
                "<domain type='qemu'><name>subject</name><memory unit='MiB'>32</memory>\
                 <os><type arch='x86_64' machine='q35'>hvm</type></os></domain>",
            )
            .unwrap();
            self.hosts.virsh(self.host, &["define", file.to_str().unwrap()]).unwrap();
        } else {
            self.hosts.virsh(self.host, &["undefine", "subject"]).unwrap();
        }
    }

    fn break_down(&self, is_broken: bool) -> bool {
        self.is_away.store(is_broken, Ordering::SeqCst);
        true
    }

    fn is_slow(&self) -> bool {
        true
    }
}

#[test]
fn libvirt_does_what_the_engine_takes_for_granted() {
    let folder = tempfile::Builder::new().prefix("drover-lc-").tempdir().unwrap();
    let Some((hosts, pool)) = host_with_pool(folder.path(), "a") else { return };
    let target = format!("{{type: libvirt, uri: '{}', pool: images, accelerator: tcg}}", hosts.uri("a"));
    let scene = Scene::new(&target, folder.path());
    let dial: fn(&str) -> Daemon = |uri| dial(uri, &IS_AWAY);
    let subject = OfLibvirt { scene, hosts, host: "a", pool, is_away: &IS_AWAY, dial };
    check_target(&subject, &folder.path().join("runs"));
}

fn host_with_pool(folder: &Path, host: &str) -> Option<(Hosts, PathBuf)> {
    let hosts = Hosts::start(folder).unwrap()?;
    let pool = hosts.shared().join("pool");
    fs::create_dir(&pool).unwrap();
    hosts.virsh(host, &["pool-create-as", "images", "dir", "--target", pool.to_str().unwrap()]).unwrap();
    Some((hosts, pool))
}

/// An agent that is ended with the test.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an agent with the files of a host, and pairs with it as `site-b` in a folder's state.
fn paired(hosts: &Hosts, host: &str, pool: &Path, folder: &Path) -> Agent {
    let program = workspace().join("target/debug/drover");
    assert!(program.is_file(), "{} is not built", program.display());
    let there = Drover::new(&program, folder.join("agent"));
    let pool = format!("images={}", pool.display());
    let run = there.command(&["agent", "run", "--json", "--listen", "127.0.0.1:0", "--pool", &pool]);
    let mut run = run_by(&hosts.inside(host).unwrap(), &run);
    let mut agent = Agent(run.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    let mut out = BufReader::new(agent.0.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let listening: serde_json::Value = serde_json::from_str(&line).unwrap();
    // What it says later is of no interest, but must be taken.
    std::thread::spawn(move || out.lines().for_each(drop));
    let token = folder.join("token");
    fs::write(&token, there.run(&["agent", "pair", "--new-token"]).unwrap().out.trim()).unwrap();
    let address = listening["addresses"][0].as_str().unwrap();
    let args = ["agent", "pair", address, "--name", "site-b", "--as", "here", "--token-file"];
    let here = Drover::new(&program, folder.join("state"));
    let done = here.run(&[&args[..], &[token.to_str().unwrap()]].concat()).unwrap();
    assert_eq!(done.code, Some(0), "{done:?}");
    agent
}

#[test]
fn libvirt_of_another_host_does_what_the_engine_takes_for_granted() {
    let folder = tempfile::Builder::new().prefix("drover-lf-").tempdir().unwrap();
    let Some((hosts, pool)) = host_with_pool(folder.path(), "b") else { return };
    let _agent = paired(&hosts, "b", &pool, folder.path());
    let target =
        format!("{{type: libvirt, uri: '{}', via: site-b, pool: images, accelerator: tcg}}", hosts.uri("b"));
    let scene = Scene::new(&target, folder.path());
    let dial: fn(&str) -> Daemon = |uri| dial(uri, &IS_FAR_AWAY);
    let subject = OfLibvirt { scene, hosts, host: "b", pool, is_away: &IS_FAR_AWAY, dial };
    check_target(&subject, &folder.path().join("runs"));
}

/// Machines of a true Kubernetes, whose KubeVirt the lab plays.
struct OfKubevirt {
    scene: Scene,
    cluster: Cluster,
}

const NAMESPACE: &str = "/api/v1/namespaces/default";
const KINDS: [&str; 4] = [
    "/api/v1/namespaces/default/persistentvolumeclaims",
    "/api/v1/namespaces/default/pods",
    "/api/v1/namespaces/default/secrets",
    "/apis/kubevirt.io/v1/namespaces/default/virtualmachines",
];

impl OfKubevirt {
    fn kubeconfig(&self) -> PathBuf {
        self.scene.folder.join("kubeconfig")
    }
}

impl Subject for OfKubevirt {
    fn provider(&self) -> Box<dyn TargetProvider + '_> {
        let setting = self.scene.setting();
        let kubevirt = setting.target.kubevirt().unwrap().clone();
        Box::new(Claims::new(&setting, &kubevirt))
    }

    fn planned(&self) -> PlannedVm {
        let mut vm = self.scene.resolved().vms.remove(0);
        vm.start = true;
        vm
    }

    fn plan(&self) -> &Plan {
        &self.scene.plan
    }

    fn content(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        files_below(&self.scene.folder.join("state/journals"), &mut all);
        for kind in KINDS {
            let list = self.cluster.get(kind).unwrap().unwrap_or_default();
            // A pod that was told to go takes a second.
            let stays = |it: &&serde_json::Value| it["metadata"]["deletionTimestamp"].is_null();
            let items = list["items"].as_array().unwrap().iter().filter(stays);
            all.extend(items.map(|it| format!("{kind} {}", it["metadata"]["name"])));
        }
        all
    }

    fn somebodys(&self, is_there: bool) {
        let claims = format!("{NAMESPACE}/persistentvolumeclaims");
        if is_there {
            let claim = serde_json::json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "subject-0"},
                "spec": {"accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": cluster::CLASS,
                         "resources": {"requests": {"storage": "1Mi"}}}});
            self.cluster.make(&claims, &claim).unwrap();
        } else {
            self.cluster.remove(&format!("{claims}/subject-0")).unwrap();
            while self.cluster.get(&format!("{claims}/subject-0")).unwrap().is_some() {
                std::thread::sleep(std::time::Duration::from_millis(100));
            }
        }
    }

    fn break_down(&self, is_broken: bool) -> bool {
        let (there, away) = (self.kubeconfig(), self.scene.folder.join("away"));
        if is_broken {
            fs::rename(there, away).unwrap()
        } else {
            fs::rename(away, there).unwrap()
        }
        true
    }

    fn is_slow(&self) -> bool {
        true
    }
}

#[test]
fn kubevirt_does_what_the_engine_takes_for_granted() {
    let folder = tempfile::Builder::new().prefix("kvc-").tempdir().unwrap();
    let program = workspace().join("target/debug/drover");
    let Some(mut cluster) = Cluster::start(&folder.path().join("c"), &program).unwrap() else { return };
    if !cluster.install_kubevirt().unwrap() {
        return;
    }
    cluster.play();
    cluster.volume("v", cluster::Volume::Block, 2 << 20).unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    fs::copy(cluster.kubeconfig(), &kubeconfig).unwrap();
    let target = format!(
        "{{type: kubevirt, kubeconfig: '{}', namespace: default, storage_class: {}, image: '{}', image_pull: Never, reach: port-forward, worker_timeout: 90s}}",
        kubeconfig.display(),
        cluster::CLASS,
        cluster::IMAGE
    );
    let scene = Scene::new(&target, folder.path());
    check_target(&OfKubevirt { scene, cluster }, &folder.path().join("runs"));
}
