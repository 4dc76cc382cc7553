//! Objects that drover makes in a cluster beside the machine: claims, worker pods, their secrets. Whose each is, its annotations say: a
//! name is no proof.

use std::collections::BTreeMap;

use drover_plan::{AccessMode, ImagePull, Kubevirt, PlannedDisk, PlannedVm, VolumeMode};
use serde::Serialize;
use serde_json::{Value, json};

/// Begins the names of annotations.
pub const GROUP: &str = "drover.dev";
/// Label: the name of the VM in the cluster that an object is made for.
pub const VM: &str = "drover.dev/vm";
/// Says whose an object is.
pub const OWNER: &str = "drover.dev/owner";
/// Says which host a worker serves: the fingerprint of its key.
pub const PEER: &str = "drover.dev/peer";
/// Says what its agent is known by.
pub const AGENT_KEY: &str = "drover.dev/agent-key";
/// Says what was asked for: a hash of a worker's specification.
pub const SHAPE: &str = "drover.dev/shape";
/// Says which run of drover has a worker: one that ends leaves the pod that another took from it.
pub const RUN: &str = "drover.dev/run";
/// The group of KubeVirt's objects.
pub const KUBEVIRT: &str = "kubevirt.io";
/// There between leave to start a machine and its start.
pub const READY: &str = "drover.dev/ready";
/// The port of a worker's agent.
pub const AGENT_PORT: u16 = 7843;
/// What of a file system is not there for files, as CDI reckons it. Source: CDI's `filesystemOverhead`, whose default is 0.06.
const OVERHEAD_PERCENT: u64 = 6;
/// The user and group of guests in KubeVirt, who must be able to write `disk.img`.
const GUEST_ID: u32 = 107;
/// Of file systems, for their own tables.
const FILESYSTEM_BYTES_MIN: u64 = 16 << 20;

/// Metadata with what drover sets.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Metadata {
    /// Name; empty in templates.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Namespace; empty in templates.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

/// Metadata of an object that this plan makes for a VM.
pub fn metadata(vm: &PlannedVm, kubevirt: &Kubevirt, plan: &str, name: &str) -> Metadata {
    let labels = [("app.kubernetes.io/managed-by", "drover"), (VM, &vm_name(vm))];
    let labels = labels.into_iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    Metadata {
        name: name.to_string(),
        namespace: kubevirt.namespace.clone(),
        labels,
        annotations: [(OWNER.to_string(), owner_of_vm(vm, plan))].into(),
    }
}

/// What a plan is called in owners: by its name, and by the installation of drover that has its state.
pub fn plan_of(plan: &str, installation: &str) -> String {
    format!("{plan} of {installation}")
}

/// What tells whose the objects of a VM are.
pub fn owner_of_vm(vm: &PlannedVm, plan: &str) -> String {
    let id = if vm.vm.instance_uuid.is_empty() { &vm.vm.id } else { &vm.vm.instance_uuid };
    format!("plan {plan} vm {id}")
}

/// The VM's name in the cluster.
pub fn vm_name(vm: &PlannedVm) -> String {
    last_of(&vm.folder)
}

/// The name of a disk's claim.
pub fn claim_name(disk: &PlannedDisk) -> String {
    last_of(&disk.base)
}

/// The name of the pod that has a VM's volumes while they are written, and of its secret.
pub fn worker_name(vm: &PlannedVm) -> String {
    format!("{}-drover", vm_name(vm))
}

fn last_of(path: &std::path::Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The name of a claim of the server's.
pub fn claim_name_of(claim: &Value) -> &str {
    claim["metadata"]["name"].as_str().unwrap_or_default()
}

/// An annotation of an object of the server's.
pub fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][name].as_str()
}

/// Whether it is that owner's.
pub fn is_of(object: &Value, owner: &str) -> bool {
    annotation(object, OWNER) == Some(owner)
}

/// Whether its end was asked for.
pub fn is_going(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Whether an instance has not ended.
pub fn is_live(instance: &Value) -> bool {
    !matches!(instance["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

/// Whether an object was made for another.
pub fn is_owned_by(object: &Value, owner: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    !uid(owner).is_empty() && owners.iter().any(|it| it["uid"] == uid(owner))
}

/// Whether an instance is the guest of this machine, and stays.
pub fn is_its_guest(instance: &Value, machine: &Value) -> bool {
    is_owned_by(instance, machine) && instance["metadata"]["deletionTimestamp"].is_null()
}

/// Why the guest of an instance that was seen to run does not run any more, if so: `now` is what is there of its name.
pub fn why_stopped(instance: &Value, now: Option<&Value>) -> Option<String> {
    let Some(now) = now.filter(|now| uid(now) == uid(instance)) else {
        return Some("its instance ended and was removed".into());
    };
    let conditions = now["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let told = |it: &Value| {
        let text = |key: &str| it[key].as_str().unwrap_or_default().to_string();
        format!("{}: {}", text("reason"), text("message"))
    };
    if now["status"]["phase"] == "Failed" {
        let ready = conditions.iter().find(|it| it["type"] == "Ready" && it["status"] == "False");
        return Some(format!("its instance failed ({})", ready.map_or_else(|| told(&now["status"]), told)));
    }
    let by_itself =
        |it: &&Value| it["type"] == "Paused" && it["status"] == "True" && it["reason"] != "PausedByUser";
    conditions.iter().find(by_itself).map(|it| format!("its guest is paused ({})", told(it)))
}

/// What tells an object from another of its name.
pub fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

/// Where objects of a kind are.
pub fn path(kubevirt: &Kubevirt, kind: Kind, name: &str) -> String {
    let (api, plural) = match kind {
        Kind::Claim => ("/api/v1", "persistentvolumeclaims"),
        Kind::Pod => ("/api/v1", "pods"),
        Kind::Secret => ("/api/v1", "secrets"),
        Kind::Service => ("/api/v1", "services"),
        Kind::Route => (ROUTES, "routes"),
        Kind::Quota => ("/api/v1", "resourcequotas"),
        Kind::Machine => ("/apis/kubevirt.io/v1", "virtualmachines"),
        Kind::Instance => ("/apis/kubevirt.io/v1", "virtualmachineinstances"),
    };
    let all = format!("{api}/namespaces/{}/{plural}", kubevirt.namespace);
    if name.is_empty() { all } else { format!("{all}/{name}") }
}

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// PersistentVolumeClaim.
    Claim,
    /// Pod.
    Pod,
    /// Secret.
    Secret,
    /// Service.
    Service,
    /// Route, of OpenShift.
    Route,
    /// ResourceQuota.
    Quota,
    /// VirtualMachine.
    Machine,
    /// VirtualMachineInstance.
    Instance,
}

/// Bytes of a disk's claim: with a file system's own, in whole units.
pub fn claim_bytes(capacity_bytes: u64, kubevirt: &Kubevirt) -> u64 {
    let bytes = match kubevirt.volume_mode {
        VolumeMode::Block => capacity_bytes,
        VolumeMode::Filesystem => {
            let with_overhead = u128::from(capacity_bytes) * 100 / u128::from(100 - OVERHEAD_PERCENT) + 1;
            u64::try_from(with_overhead).unwrap_or(u64::MAX).saturating_add(FILESYSTEM_BYTES_MIN)
        }
    };
    let unit = kubevirt.size_unit_bytes.max(1);
    bytes.max(1).div_ceil(unit).saturating_mul(unit)
}

/// The claim of a disk.
pub fn claim(vm: &PlannedVm, disk: &PlannedDisk, kubevirt: &Kubevirt, plan: &str) -> Value {
    let mut metadata = metadata(vm, kubevirt, plan, &claim_name(disk));
    metadata.annotations.insert(OWNER.into(), vm.owner_of(plan, disk));
    let mode = match kubevirt.volume_mode {
        VolumeMode::Block => "Block",
        VolumeMode::Filesystem => "Filesystem",
    };
    let bytes = claim_bytes(disk.disk.capacity_bytes, kubevirt);
    let mut spec = json!({
        "accessModes": [kubevirt.access_mode.unwrap_or(AccessMode::ReadWriteOnce).name()],
        "volumeMode": mode,
        "resources": {"requests": {"storage": bytes.to_string()}},
    });
    if let Some(class) = &disk.pool {
        spec["storageClassName"] = json!(class);
    }
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata, "spec": spec})
}

/// The access modes that a StorageProfile of CDI's names first for volumes of this mode.
pub fn profile_modes(profile: &Value, mode: VolumeMode) -> Option<Vec<String>> {
    let wanted = match mode {
        VolumeMode::Block => "Block",
        VolumeMode::Filesystem => "Filesystem",
    };
    let sets = profile["status"]["claimPropertySets"].as_array()?;
    let set = sets.iter().find(|set| set["volumeMode"].as_str().unwrap_or("Filesystem") == wanted)?;
    let modes = set["accessModes"].as_array()?.iter().filter_map(Value::as_str).map(str::to_string);
    Some(modes.collect::<Vec<_>>()).filter(|modes| !modes.is_empty())
}

/// What a worker's agent is known by, and whom it serves.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// Fingerprint of the agent's key.
    pub agent: String,
    /// Fingerprint of this host's key.
    pub peer: String,
    /// This run of drover.
    pub run: String,
}

/// The pod that has a VM's volumes while drover writes to them.
pub fn worker(vm: &PlannedVm, kubevirt: &Kubevirt, plan: &str, keys: &Keys) -> Value {
    let name = worker_name(vm);
    let mut metadata = metadata(vm, kubevirt, plan, &name);
    metadata.annotations.insert(AGENT_KEY.into(), keys.agent.clone());
    metadata.annotations.insert(PEER.into(), keys.peer.clone());
    metadata.annotations.insert(RUN.into(), keys.run.clone());
    let is_block = kubevirt.volume_mode == VolumeMode::Block;
    let listen = format!("0.0.0.0:{AGENT_PORT}");
    let mut args: Vec<String> = [
        "agent",
        "run",
        "--json",
        "--no-leaves",
        "--listen",
        &listen,
        "--state",
        "/state",
        "--seed",
        "/seed",
    ]
    .map(str::to_string)
    .into();
    let mut volumes = vec![
        json!({"name": "state", "emptyDir": {}}),
        json!({"name": "seed", "secret": {"secretName": name, "optional": false}}),
    ];
    let mut mounts = vec![
        json!({"name": "state", "mountPath": "/state"}),
        json!({"name": "seed", "mountPath": "/seed", "readOnly": true}),
    ];
    let mut devices = Vec::new();
    for disk in &vm.disks {
        let (claim, volume) = (claim_name(disk), format!("disk-{}", disk.index));
        let place =
            if is_block { format!("/dev/drover-{}", disk.index) } else { format!("/disks/{}", disk.index) };
        args.push(if is_block { "--device".into() } else { "--pool".into() });
        args.push(format!("{claim}={place}"));
        volumes.push(json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}}));
        match is_block {
            true => devices.push(json!({"name": volume, "devicePath": place})),
            false => mounts.push(json!({"name": volume, "mountPath": place})),
        }
    }
    let mut container = json!({
        "name": CONTAINER,
        "image": kubevirt.image,
        "imagePullPolicy": match kubevirt.image_pull {
            ImagePull::IfNotPresent => "IfNotPresent",
            ImagePull::Always => "Always",
            ImagePull::Never => "Never",
        },
        "command": ["/usr/bin/drover"],
        "args": args,
        "ports": [{"name": "agent", "containerPort": AGENT_PORT}],
        "volumeMounts": mounts,
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    if is_block {
        container["volumeDevices"] = json!(devices);
    }
    // The node of a block device belongs to root, and nothing but its owner's rights are left to the container.
    let security = match is_block {
        true => json!({"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}}),
        false => json!({
            "runAsNonRoot": true, "runAsUser": GUEST_ID, "runAsGroup": GUEST_ID, "fsGroup": GUEST_ID,
            "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
        }),
    };
    // Beside the operator's worker that sends to it, where its volumes may be there; it waits for no node.
    let beside =
        json!({"labelSelector": {"matchLabels": {VM: vm_name(vm)}}, "topologyKey": "kubernetes.io/hostname"});
    let beside = json!([{"weight": 100, "podAffinityTerm": beside}]);
    let spec = json!({
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": beside}},
        "restartPolicy": "Never", "automountServiceAccountToken": false, "enableServiceLinks": false,
        "terminationGracePeriodSeconds": 10, "securityContext": security, "containers": [container], "volumes": volumes,
    });
    metadata.annotations.insert(SHAPE.into(), blake3::hash(spec.to_string().as_bytes()).to_hex().to_string());
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

/// What a worker's agent starts with. It goes with the pod, and before if the agent has answered.
pub fn secret(vm: &PlannedVm, kubevirt: &Kubevirt, plan: &str, run: &str, files: &[(&str, &str)]) -> Value {
    let files: BTreeMap<&str, &str> = files.iter().copied().collect();
    let mut metadata = metadata(vm, kubevirt, plan, &worker_name(vm));
    metadata.annotations.insert(RUN.into(), run.into());
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": files})
}

/// Where OpenShift has its routes.
pub const ROUTES: &str = "/apis/route.openshift.io/v1";

/// Has OpenShift's router pass connections to a worker's agent through as they are, by the name in them. It goes with the pod whose UID this is.
pub fn route(vm: &PlannedVm, kubevirt: &Kubevirt, plan: &str, run: &str, pod_uid: Option<&str>) -> Value {
    let mut metadata = metadata(vm, kubevirt, plan, &worker_name(vm));
    metadata.annotations.insert(RUN.into(), run.into());
    let mut route = json!({
        "apiVersion": "route.openshift.io/v1", "kind": "Route", "metadata": metadata,
        "spec": {
            "to": {"kind": "Service", "name": worker_name(vm)}, "port": {"targetPort": "agent"},
            "tls": {"termination": "passthrough"},
        },
    });
    if let Some(uid) = pod_uid {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": worker_name(vm), "uid": uid});
        route["metadata"]["ownerReferences"] = json!([owner]);
    }
    route
}

/// The name by which a router takes connections of a Route, once one has admitted it.
pub fn route_host(route: &Value) -> Option<&str> {
    let is_admitted = |it: &&Value| {
        let conditions = it["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        conditions.iter().any(|it| it["type"] == "Admitted" && it["status"] == "True")
    };
    let ingress = route["status"]["ingress"].as_array()?.iter().find(is_admitted)?;
    ingress["host"].as_str().filter(|host| !host.is_empty())
}

/// What leads from outside of the cluster to a worker's agent: a Service of this type. It goes with the pod whose UID this is.
pub fn service(
    vm: &PlannedVm,
    kubevirt: &Kubevirt,
    plan: &str,
    run: &str,
    service_type: &str,
    pod_uid: Option<&str>,
) -> Value {
    let mut metadata = metadata(vm, kubevirt, plan, &worker_name(vm));
    metadata.annotations.insert(RUN.into(), run.into());
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {
            "type": service_type, "selector": metadata.labels,
            "ports": [{"name": "agent", "port": AGENT_PORT, "targetPort": AGENT_PORT, "protocol": "TCP"}],
        },
    });
    if let Some(uid) = pod_uid {
        let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": worker_name(vm), "uid": uid});
        service["metadata"]["ownerReferences"] = json!([owner]);
    }
    service
}

/// Where a worker's Service is reached, as far as the cluster says so yet; of a port of a node the addresses are the node's, or those that the pod
/// tells of it.
pub fn service_addresses(service: &Value, pod: &Value, node: Option<&Value>) -> Vec<String> {
    let texts = |list: &Value, keys: &[&str]| -> Vec<String> {
        let all = list.as_array().map(Vec::as_slice).unwrap_or_default();
        all.iter()
            .filter_map(|it| keys.iter().find_map(|key| it[*key].as_str()))
            .map(str::to_string)
            .collect()
    };
    if service["spec"]["type"] == "LoadBalancer" {
        let hosts = texts(&service["status"]["loadBalancer"]["ingress"], &["ip", "hostname"]);
        return hosts.iter().map(|host| address(host, u64::from(AGENT_PORT))).collect();
    }
    let Some(port) = service["spec"]["ports"][0]["nodePort"].as_u64() else { return Vec::new() };
    let told = node.map(|node| node["status"]["addresses"].as_array().map(Vec::as_slice).unwrap_or_default());
    let is_dialled = |it: &&Value| it["type"] == "ExternalIP" || it["type"] == "InternalIP";
    let of_node = told.unwrap_or_default().iter().filter(is_dialled).filter_map(|it| it["address"].as_str());
    let mut hosts: Vec<String> = of_node.map(str::to_string).collect();
    hosts.extend(texts(&pod["status"]["hostIPs"], &["ip"]));
    hosts.extend(pod["status"]["hostIP"].as_str().map(str::to_string));
    let mut seen = std::collections::HashSet::new();
    hosts.retain(|host| seen.insert(host.clone()));
    hosts.iter().map(|host| address(host, port)).collect()
}

/// Where a worker's agent listens in the network of the cluster's pods.
pub fn pod_address(pod: &Value) -> Option<String> {
    let host = pod["status"]["podIP"].as_str().filter(|host| !host.is_empty())?;
    Some(address(host, u64::from(AGENT_PORT)))
}

fn address(host: &str, port: u64) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// The container of a worker's agent.
const CONTAINER: &str = "agent";

/// Why a pod is not there yet, as far as it says; `Err` if it will not be.
pub fn standing(pod: &Value) -> Standing {
    let status = &pod["status"];
    if !pod["metadata"]["deletionTimestamp"].is_null() {
        // Of a node that is cut off it stays so until the node is back, or removed.
        let node = pod["spec"]["nodeName"].as_str().filter(|node| !node.is_empty());
        let since = node.map(|node| format!(", and node {node} has not said that it ended"));
        return Standing::Ended(format!("it is being removed{}", since.unwrap_or_default()));
    }
    let containers = status["containerStatuses"].as_array().map(Vec::as_slice).unwrap_or_default();
    // A cluster may add containers of its own.
    let state = containers.iter().find(|it| it["name"] == CONTAINER).map(|it| &it["state"]);
    let words = |it: &Value| {
        let texts = [it["reason"].as_str(), it["message"].as_str()].into_iter().flatten();
        texts.collect::<Vec<_>>().join(": ")
    };
    match status["phase"].as_str() {
        Some("Running") if state.is_some_and(|state| state["running"].is_object()) => Standing::Running,
        Some("Failed" | "Succeeded") => {
            let ended = state.map(|state| words(&state["terminated"])).filter(|it| !it.is_empty());
            Standing::Ended(ended.unwrap_or_else(|| words(status)))
        }
        _ => {
            let waiting = state.map(|state| words(&state["waiting"])).filter(|it| !it.is_empty());
            let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
            let unfit = conditions.iter().find(|it| it["status"] == "False" && it["type"] == "PodScheduled");
            Standing::Waiting(
                waiting.or(unfit.map(words)).unwrap_or_else(|| "it is not scheduled yet".into()),
            )
        }
    }
}

/// Why a claim has no volume yet, by the last event about it that says so.
pub fn claim_trouble(claim: &Value, events: &Value) -> Option<String> {
    if claim["status"]["phase"] == "Bound" {
        return None;
    }
    let says = |event: &&Value| {
        let reason = event["reason"].as_str().unwrap_or_default();
        TROUBLES.contains(&reason) && event["involvedObject"]["uid"] == uid(claim)
    };
    let moment = |event: &&Value| {
        let told = [&event["lastTimestamp"], &event["metadata"]["creationTimestamp"]];
        told.into_iter().find_map(Value::as_str).unwrap_or_default().to_string()
    };
    let last = events["items"].as_array()?.iter().filter(says).max_by_key(moment)?;
    let name = claim["metadata"]["name"].as_str().unwrap_or_default();
    let words = last["message"].as_str().unwrap_or_default();
    Some(format!("claim {name} has no volume: {words}"))
}

/// Reasons of events about claims without a volume. Source: Kubernetes' `pkg/controller/volume/events` and its external provisioner.
const TROUBLES: [&str; 3] = ["ProvisioningFailed", "FailedBinding", "ExternalProvisioning"];

/// Whether words of [`claim_trouble`] say that its storage class is not there: no waiting mends that.
pub fn lacks_class(trouble: &str) -> bool {
    trouble.contains("storageclass.storage.k8s.io") && trouble.contains("not found")
}

/// How a pod stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its container runs.
    Running,
    /// Not yet, and why.
    Waiting(String),
    /// It has come to its end, and how.
    Ended(String),
}

/// A quantity as Kubernetes writes it (`8Mi`, `1G`, `500`), in whole units; thousandths are rounded up.
pub fn quantity(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    let factor: u64 = match &text[digits.len()..] {
        "" => 1,
        "m" => return Some(number.div_ceil(1000)),
        "k" => 1000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "P" => 1_000_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        _ => return None,
    };
    number.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, bytes) in
            [("8388608", 8 << 20), ("8Mi", 8 << 20), ("5G", 5_000_000_000), ("1500m", 2), ("0", 0)]
        {
            assert_eq!(quantity(text), Some(bytes), "{text}");
        }
        for text in ["", "Mi", "1.5Gi", "-1", "5X", "99999999999Pi"] {
            assert_eq!(quantity(text), None, "{text}");
        }
    }

    #[test]
    fn pods_say_why_they_do_not_run() {
        let pod = |status: Value| json!({"metadata": {}, "status": status});
        let running = json!({"phase": "Running", "containerStatuses": [{"name": "agent", "state": {"running": {"startedAt": "now"}}}]});
        assert_eq!(standing(&pod(running)), Standing::Running);
        let waiting = json!({"phase": "Pending", "containerStatuses": [{"name": "agent", "state": {"waiting": {"reason": "ErrImageNeverPull", "message": "no"}}}]});
        assert_eq!(standing(&pod(waiting)), Standing::Waiting("ErrImageNeverPull: no".into()));
        let unfit = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]});
        assert_eq!(standing(&pod(unfit)), Standing::Waiting("Unschedulable: 0/1 nodes".into()));
        let ended = json!({"phase": "Failed", "containerStatuses": [{"name": "agent", "state": {"terminated": {"reason": "Error", "message": "boom"}}}]});
        assert_eq!(standing(&pod(ended)), Standing::Ended("Error: boom".into()));
        let injected = json!({"phase": "Running", "containerStatuses": [
            {"name": "proxy", "state": {"waiting": {"reason": "ErrImagePull"}}}, {"name": "agent", "state": {"running": {}}}]});
        assert_eq!(
            standing(&pod(injected)),
            Standing::Running,
            "a container of the cluster's own is beside it"
        );
        let mut going = json!({"metadata": {"deletionTimestamp": "now"}, "status": {"phase": "Running"}});
        assert_eq!(standing(&going), Standing::Ended("it is being removed".into()));
        going["spec"] = json!({"nodeName": "n2"});
        assert!(matches!(standing(&going), Standing::Ended(why) if why.contains("node n2 has not said")));
    }

    #[test]
    fn a_profile_says_access_modes_by_volume_mode() {
        let set = |mode: &str, access: &[&str]| json!({"volumeMode": mode, "accessModes": access});
        let profile = json!({"status": {"claimPropertySets": [
            set("Block", &["ReadWriteMany"]), set("Block", &["ReadWriteOnce"]), set("Filesystem", &[])]}});
        assert_eq!(profile_modes(&profile, VolumeMode::Block), Some(vec!["ReadWriteMany".to_string()]));
        assert_eq!(profile_modes(&profile, VolumeMode::Filesystem), None);
        assert_eq!(profile_modes(&json!({"status": {}}), VolumeMode::Block), None);
    }

    #[test]
    fn a_service_is_reached_where_the_cluster_says() {
        let pod = json!({"status": {"podIP": "10.1.0.5", "hostIP": "192.0.2.1", "hostIPs": [{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}]}});
        assert_eq!(pod_address(&pod).as_deref(), Some("10.1.0.5:7843"));
        assert_eq!(pod_address(&json!({"status": {"podIP": "fd00::5"}})).as_deref(), Some("[fd00::5]:7843"));
        assert_eq!(pod_address(&json!({"status": {}})), None);
        let port = json!({"spec": {"type": "NodePort", "ports": [{"nodePort": 30001}]}});
        assert_eq!(service_addresses(&port, &pod, None), ["192.0.2.1:30001", "[2001:db8::1]:30001"]);
        let node = json!({"status": {"addresses": [{"type": "Hostname", "address": "n"}, {"type": "ExternalIP", "address": "203.0.113.9"},
            {"type": "InternalIP", "address": "192.0.2.1"}]}});
        let both = service_addresses(&port, &pod, Some(&node));
        assert_eq!(both, ["203.0.113.9:30001", "192.0.2.1:30001", "[2001:db8::1]:30001"]);
        let balanced = |ingress: Value| {
            let service = json!({"spec": {"type": "LoadBalancer", "ports": [{"nodePort": 30001}]}, "status": {"loadBalancer": ingress}});
            service_addresses(&service, &pod, Some(&node))
        };
        assert_eq!(balanced(json!({})), Vec::<String>::new(), "not yet");
        let told = balanced(json!({"ingress": [{"ip": "203.0.113.7"}, {"hostname": "lb.example.org"}]}));
        assert_eq!(told, ["203.0.113.7:7843", "lb.example.org:7843"]);
    }

    #[test]
    fn a_route_is_reached_by_the_name_that_a_router_admitted() {
        let of = |ingress: Value| {
            let route = json!({"spec": {"host": "asked.example.org"}, "status": {"ingress": ingress}});
            route_host(&route).map(str::to_string)
        };
        let admitted = |status: &str| json!([{"type": "Admitted", "status": status}]);
        assert_eq!((of(json!(null)), of(json!([{"host": "a"}]))), (None, None));
        assert_eq!(of(json!([{"host": "a", "conditions": admitted("False")}])), None);
        let both = json!([{"host": "a", "conditions": admitted("False")}, {"host": "b", "conditions": admitted("True")}]);
        assert_eq!(of(both).as_deref(), Some("b"));
    }

    #[test]
    fn claims_say_why_they_have_no_volume() {
        let claim =
            |phase: &str| json!({"metadata": {"name": "web01-0", "uid": "1"}, "status": {"phase": phase}});
        let event = |uid: &str, reason: &str, at: &str, message: &str| json!({"reason": reason, "message": message, "involvedObject": {"uid": uid}, "lastTimestamp": at});
        let missing = "storageclass.storage.k8s.io \"fast\" not found";
        let events = json!({"items": [
            event("1", "ProvisioningFailed", "2026-01-01T00:00:09Z", missing),
            event("1", "FailedBinding", "2026-01-01T00:00:01Z", "before"),
            event("1", "WaitForFirstConsumer", "2026-01-01T00:00:10Z", "that is as it should be"),
            event("2", "ProvisioningFailed", "2026-01-01T00:00:11Z", "another's"),
        ]});
        let trouble = claim_trouble(&claim("Pending"), &events).unwrap();
        assert_eq!(trouble, format!("claim web01-0 has no volume: {missing}"));
        assert!(lacks_class(&trouble) && !lacks_class("claim web01-0 has no volume: no room"));
        assert_eq!(claim_trouble(&claim("Bound"), &events), None);
        assert_eq!(claim_trouble(&claim("Pending"), &json!({"items": []})), None);
    }

    #[test]
    fn an_instance_is_the_guest_of_its_own_machine() {
        let machine = |uid: &str| json!({"metadata": {"uid": uid}});
        let of = |uid: &str| json!({"metadata": {"ownerReferences": [{"uid": uid}]}, "status": {"phase": "Running"}});
        assert!(is_its_guest(&of("1"), &machine("1")) && is_live(&of("1")));
        assert!(!is_its_guest(&of("2"), &machine("1")), "of another machine of the name");
        assert!(!is_its_guest(&json!({"metadata": {}}), &machine("1")), "of nobody");
        assert!(!is_its_guest(&of(""), &machine("")));
        let mut going = of("1");
        going["metadata"]["deletionTimestamp"] = json!("now");
        assert!(!is_its_guest(&going, &machine("1")) && is_live(&going));
        assert!(!is_live(&json!({"status": {"phase": "Succeeded"}})) && is_live(&json!({})));
    }

    #[test]
    fn a_guest_that_fails_or_is_paused_by_no_user_has_stopped() {
        let of = |status: Value| json!({"metadata": {"uid": "1"}, "status": status});
        let paused = |reason: &str| {
            let it = json!({"type": "Paused", "status": "True", "reason": reason, "message": "low-level IO error"});
            of(json!({"phase": "Running", "conditions": [it]}))
        };
        let ran = of(json!({"phase": "Running"}));
        let why = |now: Option<Value>| why_stopped(&ran, now.as_ref());
        assert_eq!(why(Some(ran.clone())), None);
        assert_eq!(why(Some(of(json!({"phase": "Succeeded"})))), None, "it switched itself off");
        assert_eq!(why(Some(paused("PausedByUser"))), None);
        assert!(why(Some(paused("PausedIOError"))).unwrap().contains("PausedIOError: low-level IO error"));
        let failed =
            json!({"type": "Ready", "status": "False", "reason": "GuestNotRunning", "message": "crashed"});
        let failed = of(json!({"phase": "Failed", "conditions": [failed]}));
        assert_eq!(why(Some(failed)).unwrap(), "its instance failed (GuestNotRunning: crashed)");
        let another = json!({"metadata": {"uid": "2"}, "status": {"phase": "Running"}});
        assert!(why(Some(another)).is_some() && why(None).is_some());
    }
}
