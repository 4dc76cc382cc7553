//! The operator in a true Kubernetes whose pods run, installed from `deploy/` by its chart.

use std::path::Path;
use std::process::Command;

use drover_lab::cluster::{CLASS, IMAGE};
use drover_lab::{PASSWORD, USER, chart};
use serde_json::{Value, json};

use crate::kubernetes::{Landing, NAMESPACE, PATIENCE, PODS, SECRETS};

pub const OWN: &str = "/apis/drover.dev/v1alpha1/namespaces/vms";
pub const JOBS: &str = "/apis/batch/v1/namespaces/vms/jobs";
pub const LOCKS: &str = "/apis/drover.dev/v1alpha1/vmlocks";
pub const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/vms/deployments/drover-operator";

/// A cluster with the operator in it.
pub struct Operated {
    pub landing: Landing,
    /// The source's, for pods.
    pub address: String,
}

impl Operated {
    pub fn new(number: u8, vms: impl FnOnce(&Path) -> Vec<Value>) -> Option<Operated> {
        Operated::with_options(number, &[], vms)
    }

    /// The same with options of the operator.
    pub fn with_options(
        number: u8,
        options: &[&str],
        vms: impl FnOnce(&Path) -> Vec<Value>,
    ) -> Option<Operated> {
        let mut landing = Landing::new(number, true, vms)?;
        let address = landing.cluster.let_out(landing.stage.sim.port).unwrap();
        chart::install_resources(&landing.cluster, NAMESPACE).unwrap();
        let operated = Operated { landing, address };
        operated.install_with(NAMESPACE, "16Mi", options);
        Some(operated)
    }

    /// The operator, a login and a provider in a namespace.
    pub fn install(&self, namespace: &str, state_size: &str) {
        self.install_with(namespace, state_size, &[]);
    }

    fn install_with(&self, namespace: &str, state_size: &str, options: &[&str]) {
        let cluster = &self.landing.cluster;
        let options = chart::options(state_size, options);
        chart::install_with(cluster, namespace, state_size, &[("options", &options)]).unwrap();
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "vcenter"},
            "stringData": {"user": USER, "password": PASSWORD}});
        cluster.make(&SECRETS.replace("/vms/", &format!("/{namespace}/")), &secret).unwrap();
        self.make_provider(namespace);
    }

    pub fn make_provider(&self, namespace: &str) {
        let provider = json!({"apiVersion": "drover.dev/v1alpha1", "kind": "Provider", "metadata": {"name": "vcenter"},
            "spec": {"endpoint": self.address, "secretName": "vcenter", "thumbprint": self.landing.stage.sim.thumbprint}});
        let all = format!("/apis/drover.dev/v1alpha1/namespaces/{namespace}/providers");
        self.landing.cluster.make(&all, &provider).unwrap();
    }

    /// A plan, with keys of its `plan` changed.
    pub fn plan(&self, name: &str, vms: Value, rate: &str) -> Value {
        let keys = json!({
            "source": {"data": {"from": "provider", "path": "https"}},
            "target": {"type": "kubevirt", "storage_class": CLASS, "image": IMAGE, "image_pull": "Never",
                       "worker_timeout": "180s", "rate_limit": [rate]},
            "mode": "cold", "power_off": "shutdown", "convert": "never", "networks": {"*": "user"}, "vms": vms,
        });
        json!({"apiVersion": "drover.dev/v1alpha1", "kind": "Plan", "metadata": {"name": name},
               "spec": {"provider": "vcenter", "plan": keys}})
    }

    /// Has the source give so many bytes a second in all; 0 is as many as it can. Once what a slow copy was wanted for has been seen, the rest
    /// needs no waiting.
    pub fn source_gives(&self, bytes_per_s: u64) {
        let rate = json!({"bytes_per_s": bytes_per_s, "per": "host"});
        self.landing.stage.sim.post("/rate", rate).unwrap();
    }

    pub fn make(&self, plan: &Value) {
        self.landing.cluster.make(&format!("{OWN}/plans"), plan).unwrap();
    }

    pub fn items(&self, path: &str) -> Vec<Value> {
        let list = self.landing.cluster.get(path).unwrap().unwrap_or_default();
        list["items"].as_array().cloned().unwrap_or_default()
    }

    pub fn migration(&self, vm: &str) -> Option<Value> {
        self.items(&format!("{OWN}/migrations")).into_iter().find(|it| it["spec"]["vm"]["name"] == vm)
    }

    /// All that there is to know, where something went wrong.
    pub fn told(&self) -> String {
        let mut told = String::new();
        for pod in self.items(PODS) {
            let name = pod["metadata"]["name"].as_str().unwrap();
            told += &format!("== {name} {}\n", pod["status"]);
            let logs = self.landing.cluster.text(&format!("{PODS}/{name}/log?tailLines=40"));
            told += &logs.unwrap_or_default();
        }
        for it in self.items(&format!("{OWN}/migrations")).iter().chain(&self.items(&format!("{OWN}/plans")))
        {
            told += &format!("== {} {:#}\n", it["metadata"]["name"], it["status"]);
        }
        for job in self.items(JOBS) {
            told += &format!("== job {} {}\n", job["metadata"]["name"], job["status"]);
        }
        told
    }

    #[track_caller]
    pub fn wait(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let until = std::time::Instant::now() + PATIENCE;
        while !holds() {
            self.assert_alone();
            assert!(std::time::Instant::now() < until, "{what}\n{}", self.told());
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    }

    /// No VM has two workers that may do something.
    pub fn assert_alone(&self) {
        let pods = self.items(&format!("{PODS}?labelSelector=drover.dev%2Fmigration"));
        let is_over = |pod: &Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        let mut owners: Vec<String> = pods
            .iter()
            .filter(|pod| !is_over(pod))
            .map(|pod| pod["metadata"]["labels"]["drover.dev/migration"].to_string())
            .collect();
        let count = owners.len();
        owners.sort();
        owners.dedup();
        assert_eq!(owners.len(), count, "two workers of one VM: {pods:#?}");
    }

    pub fn done_bytes(&self, vm: &str) -> u64 {
        self.migration(vm).and_then(|it| it["status"]["progress"]["doneBytes"].as_u64()).unwrap_or_default()
    }

    /// Waits until a VM's copy is farther than that, by its present worker.
    #[track_caller]
    pub fn moves(&self, vm: &str, beyond: u64) {
        self.wait("the copy goes on", || self.done_bytes(vm) > beyond && self.worker(vm).is_some());
    }

    /// The pod of a VM's worker that runs.
    pub fn worker(&self, vm: &str) -> Option<String> {
        let epoch = self.migration(vm)?["status"]["job"]["name"].as_str()?.to_string();
        let pods = self.items(&format!("{PODS}?labelSelector=batch.kubernetes.io%2Fjob-name%3D{epoch}"));
        let running = pods.iter().find(|pod| pod["status"]["phase"] == "Running")?;
        running["metadata"]["name"].as_str().map(str::to_string)
    }

    /// The node of that pod.
    pub fn node(&self, vm: &str) -> String {
        let pod = self.worker(vm).and_then(|pod| self.landing.cluster.get(&format!("{PODS}/{pod}")).unwrap());
        pod.and_then(|pod| pod["spec"]["nodeName"].as_str().map(str::to_string)).unwrap_or_default()
    }

    /// The process of the kubelet of the second node.
    pub fn second_kubelet(&self) -> String {
        let home = self.landing.cluster.folder().join("n2/kubelet");
        process_with(&format!("--root-dir\0{}\0", home.display())).unwrap()
    }

    pub fn cordon(&self, node: &str, is_cordoned: bool) {
        let spec = json!({"spec": {"unschedulable": is_cordoned}});
        self.landing.cluster.merge(&format!("/api/v1/nodes/{node}"), &spec).unwrap();
    }

    pub fn condition(&self, vm: &str, kind: &str) -> Value {
        condition(&self.migration(vm).unwrap_or_default(), kind)
    }

    pub fn phase(&self, vm: &str) -> Value {
        self.migration(vm).unwrap_or_default()["status"]["phase"].clone()
    }

    /// `drover kubectl`, as a user of the cluster.
    pub fn kubectl(&self, args: &[&str]) -> Command {
        let kubeconfig = self.landing.cluster.kubeconfig().display().to_string();
        let mut command = self.landing.stage.drover.command(&["kubectl"]);
        command.args(args).args(["--kubeconfig", &kubeconfig, "--namespace", NAMESPACE]);
        command
    }

    /// The same to its end, which is a good one; gives what it says.
    #[track_caller]
    pub fn says(&self, args: &[&str]) -> String {
        let output = self.kubectl(args).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {words}\n{}", self.told());
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn remove(&self, path: &str) {
        self.landing.cluster.remove(path).unwrap();
    }
}

pub fn condition(object: &Value, kind: &str) -> Value {
    let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.into_iter().find(|it| it["type"] == kind).unwrap_or_default()
}

/// The process of a pod's worker, if it runs.
pub fn process_of(pod: &Value) -> Option<String> {
    process_with(&format!("--pod\0{}\0", pod["metadata"]["uid"].as_str().unwrap()))
}

/// The process with these words on its command line.
fn process_with(wanted: &str) -> Option<String> {
    let is_it = |process: &String| {
        std::fs::read_to_string(format!("/proc/{process}/cmdline")).is_ok_and(|line| line.contains(wanted))
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).find(is_it)
}
