//! A pool `ceph` of the first daemon of a [`Landing`], in a small cluster of the true Ceph (`lab/ceph/cluster`).

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use drover_lab::{lab_folder, workspace};
use serde_json::Value;

use crate::landing::Landing;

const PATIENCE: Duration = Duration::from_secs(120);
const SECRET: &str = "2ec115d7-3a88-3ceb-bc12-0ac909a6fd87";

/// The cluster, in the network of the two daemons. It ends when this is dropped.
pub struct CephCluster {
    pub landing: Landing,
    child: Child,
    folder: PathBuf,
    network: Vec<String>,
}

impl CephCluster {
    /// Starts it with the pool; nothing, after a printed line, where that cannot be done.
    pub fn new(number: u8, vms: impl FnOnce(&Path) -> Vec<Value>) -> Option<CephCluster> {
        let begun = CephCluster::begin(number, vms);
        let is_needed = std::env::var_os("DROVER_NEEDS_CEPH").is_some();
        assert!(begun.is_some() || !is_needed, "Ceph is needed and did not start");
        begun
    }

    fn begin(number: u8, vms: impl FnOnce(&Path) -> Vec<Value>) -> Option<CephCluster> {
        let ceph = lab_folder().join("ceph");
        if !ceph.join("made").exists() {
            println!("skipped: no Ceph (`make lab`)");
            return None;
        }
        let folder = tempfile::Builder::new().prefix("drover-land-").tempdir().unwrap();
        symlink(ceph.join("root"), folder.path().join("ceph")).unwrap();
        let landing = Landing::in_folder(folder, number, vms)?;
        let network = landing.hosts.in_their_network().unwrap();
        let at = landing.folder.path().join("cluster");
        std::fs::create_dir(&at).unwrap();
        let log = std::fs::File::create(at.join("log")).unwrap();
        let child = Command::new(&network[0])
            .args(&network[1..])
            .arg(workspace().join("lab/ceph/cluster"))
            .args([&at, &ceph])
            .stdin(Stdio::piped())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut cluster = CephCluster { landing, child, folder: at, network };
        cluster.wait();
        cluster.put_pool();
        // drover's own qemu-nbd has to reach the monitors, too.
        let bin = cluster.landing.stage.path("bin");
        std::fs::create_dir_all(&bin).unwrap();
        let (network, program) = (cluster.network.join(" "), ceph.join("bin/qemu-nbd"));
        let script = format!("exec {network} '{}' \"$@\"", program.display());
        drover_lab::put_script(&bin.join("qemu-nbd"), &script).unwrap();
        Some(cluster)
    }

    fn wait(&mut self) {
        let until = Instant::now() + PATIENCE;
        while !self.folder.join("ready").exists() {
            let has_ended = self.child.try_wait().unwrap().is_some();
            assert!(!has_ended && Instant::now() < until, "{}", self.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    fn put_pool(&self) {
        let put = |name: &str, xml: &str| {
            let file = self.folder.join(name);
            std::fs::write(&file, xml).unwrap();
            file.display().to_string()
        };
        let virsh = |words: &[&str]| self.landing.hosts.virsh("a", words).unwrap();
        let secret = format!(
            "<secret ephemeral='no'><uuid>{SECRET}</uuid><usage type='ceph'><name>drover</name></usage></secret>"
        );
        let pool = format!(
            "<pool type='rbd'><name>ceph</name><source><host name='127.0.0.1' port='6789'/><name>vms</name>\
             <auth type='ceph' username='drover'><secret uuid='{SECRET}'/></auth></source></pool>"
        );
        virsh(&["secret-define", &put("secret.xml", &secret)]);
        let key = self.folder.join("drover.key").display().to_string();
        virsh(&["secret-set-value", SECRET, "--file", &key]);
        virsh(&["pool-define", &put("pool.xml", &pool)]);
        virsh(&["pool-start", "ceph"]);
    }

    fn asked(&self, args: &[&str]) -> Output {
        Command::new(&self.network[0])
            .args(&self.network[1..])
            .arg(lab_folder().join("ceph/bin/rbd"))
            .args(args)
            .env("CEPH_CONF", self.folder.join("ceph.conf"))
            .env("CEPH_ARGS", "--rbd-default-pool=vms")
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// What `rbd` answers as the cluster's administrator, in the pool.
    #[track_caller]
    pub fn rbd(&self, args: &[&str]) -> Vec<u8> {
        let output = self.asked(args);
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "rbd {args:?}: {why}; {}", self.log());
        output.stdout
    }

    /// Removes an image without libvirt, once nobody has it open any more.
    #[track_caller]
    pub fn remove(&self, image: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let output = self.asked(&["rm", "--no-progress", image]);
            if output.status.success() {
                return;
            }
            assert!(Instant::now() < until, "{}", String::from_utf8_lossy(&output.stderr));
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The images that there are.
    #[track_caller]
    pub fn images(&self) -> Vec<String> {
        let told = self.rbd(&["ls"]);
        let mut names: Vec<String> = String::from_utf8_lossy(&told).lines().map(str::to_string).collect();
        names.sort();
        names
    }

    /// The bytes of an image.
    #[track_caller]
    pub fn bytes(&self, image: &str) -> Vec<u8> {
        self.rbd(&["export", "--no-progress", image, "-"])
    }
}

impl Drop for CephCluster {
    fn drop(&mut self) {
        // Its processes end with it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
