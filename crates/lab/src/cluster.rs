//! A Kubernetes of one node or two whose pods really run. `lab/cluster/up` says what it is.
//!
//! KubeVirt's own controllers cannot be had here: its true schemas are installed (where `shared/kubevirt` has them), and
//! [`Cluster::play`] makes instances of machines that are to run, as virt-controller would.

use std::io::Read;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use drover_http::{Client, Endpoint, Request, Timeouts, Trust};
use serde_json::{Value, json};

use crate::program::{lab_folder, workspace};

/// How long it may take to come, on a machine that is busy with something else.
const PATIENCE: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(100);
/// How long its API server may take for an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(60);
const TOKEN: &str = "lab-admin";
/// What drover's image is called in it.
pub const IMAGE: &str = "localhost/drover:test";
/// Storage classes whose volumes are made by [`Cluster::volume`].
pub const CLASS: &str = "lab";
/// Where pods reach what [`Cluster::let_out`] lets them.
const OUTSIDE: &str = "10.99.0.1:9443";

/// A cluster. It ends with all that is in it when this is dropped.
pub struct Cluster {
    child: Child,
    folder: PathBuf,
    api: Api,
    is_over: Arc<AtomicBool>,
    player: Option<JoinHandle<()>>,
    /// Brings what pods ask for to a port of this host.
    way_out: Option<Child>,
}

/// What a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volume {
    /// A block device, on a file.
    Block,
    /// A folder.
    Folder,
    /// A folder that both nodes have.
    Shared,
}

impl Cluster {
    /// Starts one in a folder with drover's image in it; nothing, after a printed line, where that cannot be done.
    ///
    /// # Errors
    /// If it does not start although it could, or where `DROVER_NEEDS_CLUSTER` is set and it could not.
    pub fn start(folder: &Path, drover: &Path) -> Result<Option<Cluster>> {
        let has = |it: &&str| Path::new(it).exists();
        let why = Cluster::why_not().or_else(|| {
            let needed = ["/usr/bin/containerd", "/usr/sbin/runc", "/usr/lib/cni/bridge"];
            (!needed.iter().all(has)).then_some("no containerd, runc or CNI plug-ins (scripts/prepare)")
        });
        if let Some(why) = why {
            return Cluster::skip(why);
        }
        ensure!(drover.is_file(), "{} is not built", drover.display());
        let cluster = Cluster::begin(folder, Some(&image_of(drover)?))?;
        cluster.make(
            "/apis/storage.k8s.io/v1/storageclasses",
            &json!({
                "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS},
                "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer",
            }),
        )?;
        Ok(Some(cluster))
    }

    /// Starts an API server with its etcd in a folder, and nothing else: no pod ever runs. Otherwise as [`Cluster::start`].
    ///
    /// # Errors
    /// As of [`Cluster::start`].
    pub fn start_api(folder: &Path) -> Result<Option<Cluster>> {
        match Cluster::why_not() {
            Some(why) => Cluster::skip(why),
            None => Cluster::begin(folder, None).map(Some),
        }
    }

    fn why_not() -> Option<&'static str> {
        if !lab_folder().join("cluster/cluster").is_file() {
            return Some("no Kubernetes (`make lab`)");
        }
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|it| it.uid() == 0);
        (!is_root).then_some("a cluster wants root")
    }

    fn skip(why: &str) -> Result<Option<Cluster>> {
        ensure!(std::env::var_os("DROVER_NEEDS_CLUSTER").is_none(), "{why}");
        println!("skipped: {why}");
        Ok(None)
    }

    /// With an image for its pods; without one no pods run.
    fn begin(folder: &Path, image: Option<&Path>) -> Result<Cluster> {
        std::fs::create_dir_all(folder)?;
        // Free when it is taken again, unless somebody was faster.
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let mut up = Command::new(workspace().join("lab/cluster/up"));
        if image.is_none() {
            up.env("DROVER_API_ONLY", "1");
        }
        let child = up
            .arg(folder)
            .arg(lab_folder().join("cluster"))
            .arg(port.to_string())
            .args(image)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let folder = folder.to_path_buf();
        let is_over = Arc::new(AtomicBool::new(false));
        let api = Api::at(port)?;
        let mut cluster = Cluster { child, folder, api, is_over, player: None, way_out: None };
        let until = Instant::now() + PATIENCE;
        while !cluster.folder.join("ready").exists() {
            if cluster.child.try_wait()?.is_some() || Instant::now() >= until {
                let log = |name: &str| std::fs::read_to_string(cluster.folder.join(name)).unwrap_or_default();
                bail!("the cluster did not come: {} {}", log("inside.log"), log("forward.log"));
            }
            thread::sleep(POLL);
        }
        Ok(cluster)
    }

    /// The kubeconfig: contexts `lab`, who may all (as `certificate` and `program`, by other credentials), and `nobody`, who may nothing.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// The kubeconfig in the network of its nodes ([`Cluster::in_network`]).
    pub fn inner_kubeconfig(&self) -> PathBuf {
        self.folder.join("node.kubeconfig")
    }

    /// What runs a command in the network of its nodes, where pods have their addresses.
    ///
    /// # Errors
    /// If none of its processes is there.
    pub fn in_network(&self) -> Result<Vec<String>> {
        let up = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{up}/task/{up}/children"))?;
        let network = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/net"));
        let own = network("self")?;
        let is_there = |process: &&str| network(process).is_ok_and(|it| it != own);
        let process = children.split_whitespace().find(is_there).context("nobody is in its network")?;
        Ok(vec!["nsenter".to_string(), format!("--net=/proc/{process}/ns/net")])
    }

    /// Lets pods reach a port of this host; gives the address at which they do. There is one such port.
    ///
    /// # Errors
    /// If there is one already, or nothing can be started.
    pub fn let_out(&mut self, port: u16) -> Result<String> {
        ensure!(self.way_out.is_none(), "there is one already");
        let socket = self.folder.join("out.sock");
        let way = Command::new(lab_folder().join("cluster/cluster"))
            .arg("forward")
            .arg(format!("unix:{}", socket.display()))
            .arg(format!("tcp:127.0.0.1:{port}"))
            .stderr(Stdio::null())
            .spawn()?;
        self.way_out = Some(way);
        let until = Instant::now() + PATIENCE;
        while !socket.exists() {
            ensure!(Instant::now() < until, "{} is not there", socket.display());
            thread::sleep(POLL);
        }
        Ok(OUTSIDE.to_string())
    }

    /// Makes or changes all objects of a YAML of several, as `kubectl apply --namespace` does.
    ///
    /// # Errors
    /// If the server refuses one, or its kind is none of those that `deploy/` has.
    pub fn apply(&self, yaml: &str, namespace: &str) -> Result<()> {
        for document in yaml.split("\n---\n") {
            let line = |key: &str| document.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
            let (kind, api) = (line("kind:").context("a kind")?, line("apiVersion:").context("a version")?);
            let plural = match kind {
                "CustomResourceDefinition" => "customresourcedefinitions",
                "ServiceAccount" => "serviceaccounts",
                "Service" => "services",
                "ClusterRole" => "clusterroles",
                "ClusterRoleBinding" => "clusterrolebindings",
                "Role" => "roles",
                "RoleBinding" => "rolebindings",
                "Deployment" => "deployments",
                "ServiceMonitor" => "servicemonitors",
                _ => bail!("{kind} is not known here"),
            };
            let below = match kind {
                "CustomResourceDefinition" | "ClusterRole" | "ClusterRoleBinding" => String::new(),
                _ => format!("/namespaces/{namespace}"),
            };
            let group = if api == "v1" { "/api/v1".to_string() } else { format!("/apis/{api}") };
            let name = line("metadata: {name: ").map(|rest| rest.trim_end_matches('}'));
            let name = name.or(line("  name:")).context("a name")?;
            let path =
                format!("{group}{below}/{plural}/{name}?fieldManager=lab&fieldValidation=Strict&force=true");
            self.api.succeeds("PATCH", &path, "application/apply-patch+yaml", document.as_bytes())?;
        }
        Ok(())
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What reads and changes its objects from another thread, as somebody who may all.
    pub fn hand(&self) -> Hand {
        Hand(self.api.clone())
    }

    /// Reads an object or a list; nothing if it is not there.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn get(&self, path: &str) -> Result<Option<Value>> {
        self.api.get(path)
    }

    fn items_of(&self, path: &str) -> Result<Vec<Value>> {
        self.api.items(path)
    }

    /// What is at a path, as text, such as a pod's log.
    ///
    /// # Errors
    /// If nobody answers.
    pub fn text(&self, path: &str) -> Result<String> {
        let (_, text) = self.api.bytes("GET", path, "application/json", b"")?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Makes an object.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn make(&self, path: &str, object: &Value) -> Result<Value> {
        self.api.succeeds("POST", path, "application/json", object.to_string().as_bytes())
    }

    /// Removes an object.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn remove(&self, path: &str) -> Result<Value> {
        self.api.succeeds("DELETE", path, "application/json", b"")
    }

    /// Changes fields of an object.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn merge(&self, path: &str, fields: &Value) -> Result<Value> {
        self.api.succeeds("PATCH", path, "application/merge-patch+json", fields.to_string().as_bytes())
    }

    /// Takes the API server away for so long, as if it were killed and begun anew.
    ///
    /// # Errors
    /// If it does not come back.
    pub fn without_api(&self, pause: Duration) -> Result<()> {
        let sign = self.folder.join("no-api");
        std::fs::File::create(&sign)?;
        let until = Instant::now() + PATIENCE;
        while self.is_served() {
            ensure!(Instant::now() < until, "the API server does not go");
            thread::sleep(POLL);
        }
        thread::sleep(pause);
        std::fs::remove_file(&sign)?;
        while !self.is_served() {
            ensure!(Instant::now() < until + pause, "the API server does not come back");
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Gives the first node another image, as `lab/cluster/image` makes it.
    ///
    /// # Errors
    /// If it is not taken.
    pub fn import(&self, image: &Path) -> Result<()> {
        let mut import = Command::new("ctr");
        import.arg("--address").arg(self.folder.join("containerd.sock"));
        let output = import.args(["--namespace", "k8s.io", "images", "import"]).arg(image).output()?;
        ensure!(output.status.success(), "ctr: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Adds another node, `node-2`.
    ///
    /// # Errors
    /// If it does not come.
    pub fn second_node(&self) -> Result<()> {
        std::fs::File::create(self.folder.join("second"))?;
        let until = Instant::now() + PATIENCE;
        while !self.folder.join("second-ready").exists() {
            let log = |name: &str| std::fs::read_to_string(self.folder.join(name)).unwrap_or_default();
            ensure!(Instant::now() < until, "no second node: {} {}", log("second.log"), log("node-2.log"));
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// Takes down the line to the second node, or up again.
    ///
    /// # Errors
    /// If its sign cannot be set.
    pub fn cut(&self, is_cut: bool) -> Result<()> {
        let sign = self.folder.join("cut");
        match is_cut {
            true => drop(std::fs::File::create(sign)?),
            false => std::fs::remove_file(sign)?,
        }
        Ok(())
    }

    fn is_served(&self) -> bool {
        // It says that it is ready before it serves resources of others.
        let resources =
            self.items_of("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").unwrap_or_default();
        let is_served = |it: &Value| {
            let spec = &it["spec"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
            let path = format!(
                "/apis/{}/{}/{}",
                text(&spec["group"]),
                text(&spec["versions"][0]["name"]),
                text(&spec["names"]["plural"])
            );
            self.get(&path).ok().flatten().is_some()
        };
        self.text("/readyz").is_ok_and(|answer| answer.starts_with("ok")) && resources.iter().all(is_served)
    }

    /// Installs KubeVirt's schemas; `false`, after a printed line, where they are not there.
    ///
    /// # Errors
    /// If the server refuses them, or where `DROVER_NEEDS_KUBEVIRT` is set and they are not there.
    pub fn install_kubevirt(&self) -> Result<bool> {
        Ok(self.install_schema("virtualmachines.kubevirt.io", "v1")?
            && self.install_schema("virtualmachineinstances.kubevirt.io", "v1")?)
    }

    /// Installs one of the schemas of KubeVirt and its parts, `PLURAL.GROUP`, of which it serves that version; `false`, after a printed line,
    /// where they are not there.
    ///
    /// # Errors
    /// If the server refuses it, or where `DROVER_NEEDS_KUBEVIRT` is set and it is not there.
    pub fn install_schema(&self, name: &str, version: &str) -> Result<bool> {
        let home = workspace();
        let mut files = home.ancestors().map(|it| it.join("shared/kubevirt").join(format!("{name}.yaml")));
        let Some(file) = files.find(|it| it.is_file()) else {
            let why = format!(
                "no schema of KubeVirt (shared/kubevirt/{name}.yaml in a folder above the workspace)"
            );
            ensure!(std::env::var_os("DROVER_NEEDS_KUBEVIRT").is_none(), "{why}");
            println!("skipped: {why}");
            return Ok(false);
        };
        self.install(name, version, &std::fs::read(file)?)?;
        Ok(true)
    }

    /// Installs a schema that is written by hand, for resources `PLURAL.GROUP` of that kind in namespaces: what is known of it, in lines
    /// of YAML from the first column on.
    ///
    /// # Errors
    /// If the server refuses it.
    pub fn install_known(&self, name: &str, kind: &str, known: &str) -> Result<()> {
        let (plural, group) = name.split_once('.').context("a plural and a group")?;
        let (singular, known) = (kind.to_lowercase(), known.trim().replace('\n', "\n          "));
        let names = format!("{{kind: {kind}, listKind: {kind}List, plural: {plural}, singular: {singular}}}");
        let yaml = format!(
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {{name: {name}}}\nspec:\n  group: {group}\n  \
             scope: Namespaced\n  names: {names}\n  versions:\n    - name: v1\n      served: true\n      storage: true\n      subresources: \
             {{status: {{}}}}\n      schema:\n        openAPIV3Schema:\n          type: object\n          {known}\n"
        );
        self.install(name, "v1", yaml.as_bytes())
    }

    fn install(&self, name: &str, version: &str, yaml: &[u8]) -> Result<()> {
        let path = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}?fieldManager=lab");
        self.api.succeeds("PATCH", &path, "application/apply-patch+yaml", yaml)?;
        let (plural, group) = name.split_once('.').context("a plural and a group")?;
        let until = Instant::now() + PATIENCE;
        while self.get(&format!("/apis/{group}/{version}/{plural}")).ok().flatten().is_none() {
            ensure!(Instant::now() < until, "{name} is not served");
            thread::sleep(POLL);
        }
        Ok(())
    }

    /// A volume of that name and size on the first node, to be claimed; gives the file or folder with its bytes.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn volume(&mut self, name: &str, kind: Volume, bytes: u64) -> Result<PathBuf> {
        self.volume_at("node-1", None, name, kind, bytes)
    }

    /// The same on a node, for the claim `NAMESPACE/NAME` alone if there is one.
    ///
    /// # Errors
    /// The same.
    pub fn volume_at(
        &mut self,
        node: &str,
        claim: Option<&str>,
        name: &str,
        kind: Volume,
        bytes: u64,
    ) -> Result<PathBuf> {
        let place = self.folder.join("volumes").join(name);
        std::fs::create_dir_all(place.parent().context("a folder")?)?;
        let (path, mode) = match kind {
            Volume::Folder | Volume::Shared => {
                std::fs::create_dir(&place)?;
                if kind == Volume::Shared {
                    // Kubernetes gives the group of a pod to local volumes, and not to these.
                    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o777))?;
                }
                (place.display().to_string(), "Filesystem")
            }
            Volume::Block => {
                std::fs::File::create(&place)?.set_len(bytes)?;
                let output = Command::new("losetup").args(["--find", "--show"]).arg(&place).output()?;
                ensure!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
                let device = String::from_utf8(output.stdout)?.trim().to_string();
                (device, "Block")
            }
        };
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}]}});
        let (source, affinity) = match kind {
            Volume::Shared => ("hostPath", Value::Null),
            _ => ("local", affinity),
        };
        let claim = claim.and_then(|claim| claim.split_once('/')).map(|(namespace, name)| {
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name})
        });
        self.make(
            "/api/v1/persistentvolumes",
            &json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
                "spec": {
                    "capacity": {"storage": bytes.to_string()}, "accessModes": ["ReadWriteOnce"], "volumeMode": mode,
                    "persistentVolumeReclaimPolicy": "Retain", "storageClassName": CLASS,
                    source: {"path": path}, "nodeAffinity": affinity, "claimRef": claim,
                },
            }),
        )?;
        Ok(place)
    }

    /// Plays virt-controller, and the one who takes volumes back, until the end: machines that are to run get an instance that says that
    /// it runs, others lose theirs; volumes that were released can be claimed again, blank.
    pub fn play(&mut self) {
        let (api, is_over) = (self.api.clone(), self.is_over.clone());
        self.player = Some(thread::spawn(move || {
            while !is_over.load(SeqCst) {
                // What cannot be done now can be the next time.
                let _ = api.play_machines();
                let _ = api.play_volumes();
                thread::sleep(POLL);
            }
        }));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
        if let Some(player) = self.player.take() {
            let _ = player.join();
        }
        if let Some(mut way) = self.way_out.take() {
            // It may have ended already.
            let _ = way.kill();
            let _ = way.wait();
        }
        // Its end is what it waits for, with the loop devices below its folder; it may have ended by itself.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Drover's image, beside the program. It is made once for each build of that: all clusters of it share it.
fn image_of(drover: &Path) -> Result<PathBuf> {
    let (image, fresh) = (drover.with_extension("image.tar"), drover.with_extension("image.new"));
    let script = workspace().join("lab/cluster/image");
    // Held until this is over: clusters are started side by side.
    let turn = std::fs::File::create(drover.with_extension("image.lock"))?;
    turn.lock()?;
    let changed = |path: &Path| std::fs::metadata(path).and_then(|it| it.modified());
    let (built, written) = (changed(drover)?, changed(&script)?);
    if changed(&image).is_ok_and(|made| made > built && made > written) {
        return Ok(image);
    }
    let made = Command::new(script).arg(drover).arg(IMAGE).arg(&fresh).status()?;
    ensure!(made.success(), "lab/cluster/image failed");
    std::fs::rename(&fresh, &image)?;
    Ok(image)
}

/// Reads and changes objects of a cluster.
#[derive(Clone)]
pub struct Hand(Api);

impl Hand {
    /// As [`Cluster::get`].
    ///
    /// # Errors
    /// The same.
    pub fn get(&self, path: &str) -> Result<Option<Value>> {
        self.0.get(path)
    }

    /// As [`Cluster::merge`].
    ///
    /// # Errors
    /// The same.
    pub fn merge(&self, path: &str, fields: &Value) -> Result<Value> {
        let body = fields.to_string();
        self.0.succeeds("PATCH", path, "application/merge-patch+json", body.as_bytes())
    }
}

/// The API server, as somebody asks it who may all.
#[derive(Clone)]
struct Api {
    client: Arc<Client>,
}

impl Api {
    /// That of this port; connects when it is asked.
    fn at(port: u16) -> Result<Api> {
        let endpoint = Endpoint { https: true, host: "127.0.0.1".into(), port };
        let timeouts = Timeouts { answer: ANSWER_TIME_MAX, stall: ANSWER_TIME_MAX, ..Timeouts::default() };
        Ok(Api { client: Arc::new(Client::new(endpoint, &Trust::Insecure, timeouts)?) })
    }

    fn ask(&self, method: &'static str, path: &str, kind: &str, body: &[u8]) -> Result<(u16, Value)> {
        let (code, answer) = self.bytes(method, path, kind, body)?;
        Ok((code, serde_json::from_slice(&answer).unwrap_or_default()))
    }

    fn bytes(&self, method: &'static str, path: &str, kind: &str, body: &[u8]) -> Result<(u16, Vec<u8>)> {
        let idempotent = method != "POST";
        let request = Request { method, body: body.to_vec(), idempotent, ..Request::get(path) };
        let request = request.with_header("Authorization", format!("Bearer {TOKEN}"));
        let response = self.client.send(&request.with_header("Content-Type", kind))?;
        Ok((response.head.status, response.body))
    }

    fn get(&self, path: &str) -> Result<Option<Value>> {
        match self.ask("GET", path, "application/json", b"")? {
            (200, answer) => Ok(Some(answer)),
            (404, _) => Ok(None),
            (code, answer) => bail!("GET {path}: {code} {answer}"),
        }
    }

    fn succeeds(&self, method: &'static str, path: &str, kind: &str, body: &[u8]) -> Result<Value> {
        let (code, answer) = self.ask(method, path, kind, body)?;
        ensure!((200..300).contains(&code), "{method} {path}: {code} {answer}");
        Ok(answer)
    }

    fn items(&self, path: &str) -> Result<Vec<Value>> {
        let list = self.get(path)?.unwrap_or_default();
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    fn play_machines(&self) -> Result<()> {
        for machine in self.items("/apis/kubevirt.io/v1/virtualmachines")? {
            let text = |key: &str| machine["metadata"][key].as_str().unwrap_or_default().to_string();
            let all =
                format!("/apis/kubevirt.io/v1/namespaces/{}/virtualmachineinstances", text("namespace"));
            let path = format!("{all}/{}", text("name"));
            let is_wanted = machine["spec"]["runStrategy"] != "Halted";
            let there = self.get(&path)?;
            match (is_wanted, there) {
                (true, None) => {
                    let owner = json!([{"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": text("name"), "uid": text("uid")}]);
                    let instance = json!({
                        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                        "metadata": {"name": text("name"), "ownerReferences": owner}, "spec": machine["spec"]["template"]["spec"],
                    });
                    self.succeeds("POST", &all, "application/json", instance.to_string().as_bytes())?;
                }
                (true, Some(instance)) if instance["status"]["phase"] != "Running" => {
                    let running = json!({"status": {"phase": "Running"}}).to_string();
                    let kind = "application/merge-patch+json";
                    let (code, _) = self.ask("PATCH", &format!("{path}/status"), kind, running.as_bytes())?;
                    if code == 404 {
                        self.succeeds("PATCH", &path, kind, running.as_bytes())?;
                    }
                }
                (false, Some(_)) => drop(self.ask("DELETE", &path, "application/json", b"")?),
                _ => {}
            }
        }
        Ok(())
    }

    fn play_volumes(&self) -> Result<()> {
        for volume in self.items("/api/v1/persistentvolumes")? {
            if volume["status"]["phase"] == "Released" {
                wipe(&volume["spec"])?;
                let path = format!(
                    "/api/v1/persistentvolumes/{}",
                    volume["metadata"]["name"].as_str().unwrap_or_default()
                );
                let free = json!({"spec": {"claimRef": null}}).to_string();
                self.succeeds("PATCH", &path, "application/merge-patch+json", free.as_bytes())?;
            }
        }
        Ok(())
    }
}

/// Takes away what a volume holds.
fn wipe(spec: &Value) -> Result<()> {
    let path = spec["local"]["path"].as_str().or(spec["hostPath"]["path"].as_str());
    let path = Path::new(path.context("a volume of the node")?);
    if spec["volumeMode"] == "Block" {
        let bytes: u64 =
            spec["capacity"]["storage"].as_str().and_then(bytes_of).context("a size in whole bytes")?;
        let mut device = std::fs::File::options().write(true).open(path)?;
        std::io::copy(&mut std::io::repeat(0).take(bytes), &mut device)?;
        return Ok(device.sync_all()?);
    }
    for entry in std::fs::read_dir(path)?.flatten() {
        match entry.file_type()?.is_dir() {
            true => std::fs::remove_dir_all(entry.path())?,
            false => std::fs::remove_file(entry.path())?,
        }
    }
    Ok(())
}

/// The sizes that [`Cluster::volume`] asks for, as the server writes them.
fn bytes_of(text: &str) -> Option<u64> {
    let factor = [("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30)]
        .into_iter()
        .find(|(unit, _)| text.ends_with(unit));
    match factor {
        Some((unit, factor)) => Some(text.strip_suffix(unit)?.parse::<u64>().ok()? * factor),
        None => text.parse().ok(),
    }
}
