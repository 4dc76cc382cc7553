//! VMs of the simulator that land in a Kubernetes of the lab (`lab/cluster/up`).

use crate::program;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drover_lab::Cluster;
use drover_lab::cluster::{CLASS, IMAGE};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Stage;
use crate::process::recorded_in;

pub const PATIENCE: Duration = Duration::from_secs(300);
pub const NAMESPACE: &str = "vms";
pub const CLAIMS: &str = "/api/v1/namespaces/vms/persistentvolumeclaims";
pub const PODS: &str = "/api/v1/namespaces/vms/pods";
pub const SECRETS: &str = "/api/v1/namespaces/vms/secrets";
pub const SERVICES: &str = "/api/v1/namespaces/vms/services";
pub const MACHINES: &str = "/apis/kubevirt.io/v1/namespaces/vms/virtualmachines";

/// A source, and a cluster.
pub struct Landing {
    pub stage: Stage,
    pub cluster: Cluster,
    _folder: TempDir,
}

impl Landing {
    pub fn new(number: u8, has_kubevirt: bool, vms: impl FnOnce(&Path) -> Vec<Value>) -> Option<Landing> {
        // Sockets lie below it, whose paths are short.
        let folder = tempfile::Builder::new().prefix("kv-").tempdir().unwrap();
        let mut cluster = Cluster::start(folder.path(), &program()).unwrap()?;
        if has_kubevirt && !cluster.install_kubevirt().unwrap() {
            return None;
        }
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        cluster.make("/api/v1/namespaces", &namespace).unwrap();
        cluster.play();
        Some(Landing { stage: Stage::new(number, vms)?, cluster, _folder: folder })
    }

    /// The same without nodes: no pod ever runs there.
    pub fn without_nodes(number: u8, vms: impl FnOnce(&Path) -> Vec<Value>) -> Option<Landing> {
        let folder = tempfile::Builder::new().prefix("kv-").tempdir().unwrap();
        let mut cluster = Cluster::start_api(folder.path()).unwrap()?;
        if !cluster.install_kubevirt().unwrap() {
            return None;
        }
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
        cluster.make("/api/v1/namespaces", &namespace).unwrap();
        let class = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS},
            "provisioner": "kubernetes.io/no-provisioner"});
        cluster.make("/apis/storage.k8s.io/v1/storageclasses", &class).unwrap();
        cluster.play();
        Some(Landing { stage: Stage::new(number, vms)?, cluster, _folder: folder })
    }

    /// A plan that moves all VMs to the cluster, with texts replaced.
    pub fn plan(&self, name: &str, edits: &[(&str, &str)]) -> String {
        let qemu = format!(
            "type: qemu\n  folder: {}\n  accelerator: tcg\n  overcommit: true\n",
            self.stage.vms().display()
        );
        let target = format!(
            "type: kubevirt\n  kubeconfig: {}\n  namespace: {NAMESPACE}\n  storage_class: {CLASS}\n  image: {IMAGE}\n  \
             image_pull: Never\n  reach: port-forward\n  worker_timeout: 180s\n",
            self.cluster.kubeconfig().display()
        );
        let mut all = vec![(qemu.as_str(), target.as_str())];
        all.extend(edits);
        self.stage.plan(name, &all)
    }

    #[track_caller]
    pub fn arrives(&self, args: &[&str]) {
        let output = self.stage.run(args);
        assert_eq!(output.code, Some(0), "{}{}\n{}", output.out, output.err, self.told());
    }

    /// What the pods say, where something went wrong.
    pub fn told(&self) -> String {
        format!("{:#}", self.cluster.get(PODS).unwrap().unwrap_or_default())
    }

    pub fn names(&self, path: &str) -> Vec<String> {
        let list = self.cluster.get(path).unwrap().unwrap_or_default();
        let items = list["items"].as_array().cloned().unwrap_or_default();
        items.iter().map(|it| it["metadata"]["name"].as_str().unwrap().to_string()).collect()
    }

    /// All that drover makes in the namespace.
    pub fn all(&self) -> Vec<String> {
        [CLAIMS, PODS, SECRETS, MACHINES].iter().flat_map(|path| self.names(path)).collect()
    }

    /// Files that say which cluster a VM went to.
    pub fn records(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.stage.path("state/journals")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.display().to_string().contains("kubevirt-cluster-of")).collect()
    }

    /// The one that has come since.
    pub fn record_of(&self, plan: &str, before: &[PathBuf]) -> PathBuf {
        let mut all = self.records();
        all.retain(|path| !before.contains(path));
        assert_eq!(all.len(), 1, "of {plan}: {all:?}");
        all.remove(0)
    }

    pub fn recorded(&self) -> u64 {
        recorded_in(&self.stage.path("state/journals"))
    }
}

/// Whether a volume begins with what is in a file.
#[track_caller]
pub fn assert_holds(volume: &Path, file: &Path) {
    let (there, wanted) = (std::fs::read(volume).unwrap(), std::fs::read(file).unwrap());
    assert!(there.get(..wanted.len()) == Some(&wanted[..]), "{} differs", volume.display());
}
