//! Jobs, claims and events.

use serde_json::{Value, json};

use crate::model::{Conversion, MigrationSpec, Named, Work};
use crate::time::Moment;
use crate::{API, EPOCH, MIGRATION, MIGRATION_UID, NFC_BYTES, WORK};

/// Who made it.
const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "drover-operator");
/// User and group of workers: as those of drover's other pods, KubeVirt's own.
const USER_ID: u64 = 107;
/// Seconds that a worker has to flush and stop.
const GRACE_SECONDS: u64 = 60;

/// Limits of the files that a worker makes outside of its state, and one with a converter, whose appliance has some 400 MB.
const TMP: &str = "256Mi";
const CONVERTER_TMP: &str = "4Gi";
/// The device plug-in of KubeVirt gives a pod `/dev/kvm` by this name. Source: KubeVirt's `virt-handler`.
const KVM: &str = "devices.kubevirt.io/kvm";

/// In the environment of a worker: the operator that made it admits cutovers. One of an operator before waits for nobody's leave.
pub const CUTOVERS: (&str, &str) = ("DROVER_CUTOVERS", "admitted");

/// How workers are made; the same for all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// The image with drover in it.
    pub image: String,
    /// Other images that pods at the target may run.
    pub target_images: Vec<String>,
    /// When it is pulled.
    pub image_pull: String,
    /// Their service account.
    pub account: String,
    /// Storage class of state claims; absent: the cluster's default.
    pub state_class: Option<String>,
    /// Size of a state claim, as Kubernetes writes it.
    pub state_size: String,
    /// Requested of each worker.
    pub cpu: String,
    /// Requested of each worker, and its limit.
    pub memory: String,
    /// Whether they log JSON.
    pub json: bool,
    /// How those are made that may convert a guest, where there is a converter.
    pub converter: Option<ConverterShape>,
}

/// What workers have that may convert a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConverterShape {
    /// The image with drover and virt-v2v in it.
    pub image: String,
    /// The limit of their memory; requested, too, of those that are sure to convert.
    pub memory: String,
    /// Size of their state claims, which hold what a conversion changes until it is merged.
    pub state_size: String,
    /// Whether they ask for KVM.
    pub has_kvm: bool,
}

/// Label of all pods of a VM, by its name in the cluster: of its worker, and of the agent that has its volumes.
const VM: &str = "drover.dev/vm";
/// The node that a volume was made for, where it was made for one. Source: Kubernetes' scheduler (`AnnSelectedNode`).
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// What a worker is to do.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// Its epoch.
    pub epoch: u64,
    /// Its work.
    pub work: Work,
    /// The Secret of its provider.
    pub secret: &'a str,
    /// Whether an earlier worker touched source or target.
    pub begun: bool,
    /// Whether it may have to convert the guest.
    pub conversion: Conversion,
    /// The VM's name in the cluster.
    pub vm: &'a str,
    /// The node with the VM's volumes, where that is known.
    pub node: Option<&'a str>,
    /// What it may take of the NFC memory of the VM's host, where it may read by NFC.
    pub nfc: Option<NfcPart>,
}

/// What a worker may take of the NFC memory of a host: workers share no ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NfcPart {
    /// Bytes of buffers of each disk.
    pub each: u64,
    /// Of all disks together.
    pub all: u64,
}

impl Shape {
    /// Images of it that are named by a tag alone: what they are may be another tomorrow, and one node may have the old one.
    pub fn by_tag(&self) -> Vec<&str> {
        let converter = self.converter.as_ref().map(|converter| &converter.image);
        let all = std::iter::once(&self.image).chain(converter).chain(&self.target_images);
        all.map(String::as_str).filter(|image| !is_by_digest(image)).collect()
    }

    /// Images that pods at the target may run, the workers' own first.
    pub fn images(&self) -> Vec<String> {
        std::iter::once(&self.image).chain(&self.target_images).cloned().collect()
    }
}

/// Whether an image is named by what is in it: `NAME@sha256:` and 64 digits.
fn is_by_digest(image: &str) -> bool {
    let digest = image.rsplit_once("@sha256:").map(|(_, digest)| digest);
    digest.is_some_and(|digest| digest.len() == 64 && digest.bytes().all(|it| it.is_ascii_hexdigit()))
}

/// The name of the Migration of a VM. It comes from what stays the same whatever the VM, its plan and its target are called; the API
/// server holds it against the spec (see `deploy/crds.yaml`) and gives no name twice.
pub fn migration_name(source_uuid: &str, vm_uuid: &str) -> String {
    let source: String = source_uuid.to_lowercase().chars().take(8).collect();
    format!("vm-{}-{source}", vm_uuid.to_lowercase())
}

/// The name of the plan that workers of a Migration carry out: what drover leaves at the source bears it, so that it is told from what
/// another Migration of the same VM leaves, in another namespace or cluster.
pub fn engine_plan(migration: &Named) -> String {
    let uid: String = migration.uid.chars().filter(char::is_ascii_alphanumeric).take(12).collect();
    format!("{}-{}", migration.name, uid.to_lowercase())
}

/// The name of a worker's Job.
pub fn job_name(migration: &str, epoch: u64) -> String {
    format!("{migration}-{epoch}")
}

/// The epoch that a Job of this name is of, if it is the name of a worker's.
pub fn epoch_of(migration: &str, job: &str) -> Option<u64> {
    job.strip_prefix(migration)?.strip_prefix('-')?.parse().ok()
}

/// The name of the claim with a VM's state.
pub fn claim_name(migration: &str) -> String {
    format!("{migration}-state")
}

fn metadata(migration: &Named, name: &str) -> Value {
    json!({
        "name": name,
        "labels": {MANAGED.0: MANAGED.1, MIGRATION: migration.name},
        "annotations": {MIGRATION_UID: migration.uid},
    })
}

/// The claim with a VM's state: journals, and what is to be undone; overlays, where its guest may be converted.
pub fn claim(migration: &Named, conversion: Conversion, shape: &Shape) -> Value {
    let mut spec = json!({
        "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
        "resources": {"requests": {"storage": claim_size(conversion, shape)}},
    });
    if let Some(class) = &shape.state_class {
        spec["storageClassName"] = json!(class);
    }
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": metadata(migration, &claim_name(&migration.name)), "spec": spec,
    })
}

/// What such a claim asks for, as Kubernetes writes it.
pub fn claim_size(conversion: Conversion, shape: &Shape) -> &str {
    let converter = shape.converter.as_ref().filter(|_| conversion != Conversion::No);
    converter.map_or(&shape.state_size, |converter| &converter.state_size)
}

/// The name of the claim of a VM's first disk, as the engine calls it.
pub fn first_disk(spec: &MigrationSpec) -> String {
    format!("{}-0", spec.target_name)
}

/// The node that a claim's volume was made for: other pods that use it go there.
pub fn node_of(claim: &Value) -> Option<&str> {
    claim["metadata"]["annotations"][SELECTED_NODE].as_str().filter(|node| !node.is_empty())
}

/// Where a worker's pod is best: beside the agent that it sends to, or where that will be. It waits for neither.
fn affinity(vm: &str, node: Option<&str>) -> Value {
    let beside = json!({"labelSelector": {"matchLabels": {VM: vm}}, "topologyKey": "kubernetes.io/hostname"});
    let pods = json!([{"weight": 100, "podAffinityTerm": beside}]);
    let mut affinity = json!({"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": pods}});
    if let Some(node) = node {
        let there = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]});
        let nodes = json!([{"weight": 50, "preference": there}]);
        affinity["nodeAffinity"] = json!({"preferredDuringSchedulingIgnoredDuringExecution": nodes});
    }
    affinity
}

/// The Job of one worker. It has one pod and one try: what comes next the operator decides, with another epoch.
pub fn job(migration: &Named, order: &Order<'_>, shape: &Shape) -> Value {
    let Order { epoch, work, secret, begun, conversion, vm, node, nfc } = *order;
    let is_converting = conversion != Conversion::No && work == Work::Move;
    let converter = shape.converter.as_ref().filter(|_| is_converting);
    let mut metadata = metadata(migration, &job_name(&migration.name, epoch));
    metadata["labels"][VM] = json!(vm);
    metadata["annotations"][EPOCH] = json!(epoch.to_string());
    metadata["annotations"][WORK] = json!(work);
    let mut env = vec![
        json!({"name": "HOME", "value": "/tmp"}),
        json!({"name": "DROVER_STATE", "value": "/state/drover"}),
        json!({"name": "DROVER_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}),
    ];
    if work == Work::Move {
        env.push(json!({"name": CUTOVERS.0, "value": CUTOVERS.1}));
    }
    if let Some(nfc) = nfc {
        metadata["annotations"][NFC_BYTES] = json!(nfc.all.to_string());
        env.push(json!({"name": "DROVER_NFC_DISK_BYTES", "value": nfc.each.to_string()}));
    }
    let mut args = vec![
        json!("operator"),
        json!("worker"),
        json!(migration.name),
        json!("--uid"),
        json!(migration.uid),
        json!("--epoch"),
        json!(epoch.to_string()),
        json!("--pod"),
        // The kubelet puts it in.
        json!("$(DROVER_POD)"),
    ];
    args.extend(shape.images().iter().flat_map(|image| [json!("--target-image"), json!(image)]));
    match work {
        Work::Move => {}
        Work::Undo => args.push(json!("--undo")),
        Work::SwitchOn => args.push(json!("--switch-on")),
    }
    if begun {
        args.push(json!("--begun"));
    }
    if shape.json {
        args.push(json!("--json"));
    }
    let mut mounts = vec![
        json!({"name": "state", "mountPath": "/state"}),
        json!({"name": "tmp", "mountPath": "/tmp"}),
        json!({"name": "provider", "mountPath": "/provider", "readOnly": true}),
    ];
    let mut resources = json!({
        "requests": {"cpu": shape.cpu, "memory": shape.memory}, "limits": {"memory": shape.memory},
    });
    if let Some(converter) = converter {
        // Where libguestfs makes its appliance.
        mounts.push(json!({"name": "tmp", "mountPath": "/var/tmp"}));
        resources["limits"]["memory"] = json!(converter.memory);
        if conversion == Conversion::Needed {
            resources["requests"]["memory"] = json!(converter.memory);
        }
        if converter.has_kvm {
            resources["limits"][KVM] = json!("1");
        }
    }
    let image = converter.map_or(&shape.image, |converter| &converter.image);
    let container = json!({
        "name": "worker", "image": image, "imagePullPolicy": shape.image_pull,
        "command": ["/usr/bin/drover"], "args": args,
        "env": env,
        "volumeMounts": mounts,
        "resources": resources,
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    let pod = json!({
        "restartPolicy": "Never", "serviceAccountName": shape.account, "enableServiceLinks": false,
        "terminationGracePeriodSeconds": GRACE_SECONDS, "affinity": affinity(vm, node),
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": USER_ID, "runAsGroup": USER_ID, "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "state", "persistentVolumeClaim": {"claimName": claim_name(&migration.name)}},
            {"name": "tmp", "emptyDir": {"sizeLimit": if converter.is_some() { CONVERTER_TMP } else { TMP }}},
            {"name": "provider", "secret": {"secretName": secret, "defaultMode": 288}},
        ],
    });
    let labels = metadata["labels"].clone();
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": metadata,
        "spec": {
            "backoffLimit": 0, "completions": 1, "parallelism": 1,
            // A pod that the cluster took away is no failure of the worker's: the Job says so by this reason.
            "podFailurePolicy": {"rules": [
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            ]},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    })
}

/// A Migration that is not there yet.
pub fn migration(name: &str, spec: &MigrationSpec) -> Value {
    json!({
        "apiVersion": API, "kind": "Migration",
        "metadata": {
            "name": name, "finalizers": [crate::FINALIZER],
            "labels": {MANAGED.0: MANAGED.1, "drover.dev/plan": spec.plan_ref.name},
        },
        "spec": spec,
    })
}

/// What happened to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether somebody should look.
    pub is_warning: bool,
    /// A word for programs.
    pub reason: String,
    /// Words for people.
    pub message: String,
}

/// One event of something that goes on, by a name: what is to be made, and what changes in it as it comes to happen so often.
pub fn counted_event(event: Value, name: &str, count: u64) -> (Value, Value) {
    let mut made = event;
    made["metadata"] = json!({"name": name, "namespace": made["metadata"]["namespace"]});
    made["count"] = json!(count);
    let keys = ["type", "reason", "message", "count", "lastTimestamp"];
    let change = keys.map(|key| (key.to_string(), made[key].clone())).into_iter().collect();
    (made, Value::Object(change))
}

/// The event of a note.
pub fn event(kind: &str, about: &Named, namespace: &str, note: &Note, now: Moment) -> Value {
    let message: String = note.message.chars().take(1000).collect();
    json!({
        "apiVersion": "v1", "kind": "Event",
        "metadata": {"generateName": format!("{}.", about.name), "namespace": namespace},
        "involvedObject": {"apiVersion": API, "kind": kind, "name": about.name, "uid": about.uid, "namespace": namespace},
        "type": if note.is_warning { "Warning" } else { "Normal" },
        "reason": note.reason, "message": message,
        "source": {"component": "drover-operator"}, "count": 1,
        "firstTimestamp": now, "lastTimestamp": now,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_what_stays_the_same_and_fit() {
        let uuid = "5030a0e6-3d1c-0c4c-8b0e-9a6d1f1a2b3c";
        let name = migration_name("ABCDEF12-3d1c", &uuid.to_uppercase());
        assert_eq!(name, format!("vm-{uuid}-abcdef12"));
        assert!(job_name(&name, 99_999_999).len() <= 63 && claim_name(&name).len() <= 63);
        assert_eq!(epoch_of(&name, &job_name(&name, 12)), Some(12));
        for other in ["stray", &name, &claim_name(&name), "vm-1-1-1"] {
            assert_eq!(epoch_of(&name, other), None, "{other}");
        }
    }

    #[test]
    fn migrations_of_one_vm_in_two_namespaces_carry_out_plans_of_two_names() {
        let name = migration_name("0a1b2c3d-0000", "5030a0e6-3d1c-0c4c-8b0e-9a6d1f1a2b3c");
        let of = |uid: &str| engine_plan(&Named { name: name.clone(), uid: uid.into() });
        let (one, other) =
            (of("c5d26fe1-0000-4000-8000-000000000001"), of("c5d26fe1-1111-4000-8000-000000000002"));
        assert_ne!(one, other);
        assert!(one.len() <= 64 && one.starts_with(&name), "{one}");
    }

    fn shape(converter: Option<ConverterShape>) -> Shape {
        Shape {
            converter,
            image: "i".into(),
            target_images: vec!["j".into()],
            image_pull: "Never".into(),
            account: "drover-worker".into(),
            state_class: None,
            state_size: "1Gi".into(),
            cpu: "250m".into(),
            memory: "1Gi".into(),
            json: true,
        }
    }

    fn order(work: Work, conversion: Conversion) -> Order<'static> {
        Order { epoch: 3, work, secret: "vc", begun: true, conversion, vm: "web01", node: None, nfc: None }
    }

    fn named() -> Named {
        Named { name: "vm-1".into(), uid: "u".into() }
    }

    #[test]
    fn images_that_are_named_by_a_tag_are_told() {
        let digest = format!("registry.example.org/drover:0.1.0@sha256:{}", "a1".repeat(32));
        let converter = ConverterShape {
            image: digest.clone(),
            memory: "4Gi".into(),
            state_size: "10Gi".into(),
            has_kvm: false,
        };
        let mut shape = shape(Some(converter));
        assert_eq!(shape.by_tag(), ["i", "j"]);
        (shape.image, shape.target_images) = (digest.clone(), vec![digest[..digest.len() - 1].into()]);
        assert_eq!(shape.by_tag(), [&digest[..digest.len() - 1]], "a digest that is cut short is none");
    }

    #[test]
    fn a_worker_has_a_converter_if_its_guest_may_need_one() {
        let (image, memory, state_size) = ("c".to_string(), "4Gi".to_string(), "10Gi".to_string());
        let with = shape(Some(ConverterShape { image, memory, state_size, has_kvm: true }));
        let container = |work: Work, conversion: Conversion, shape: &Shape| {
            job(&named(), &order(work, conversion), shape)["spec"]["template"]["spec"]["containers"][0]
                .clone()
        };
        let size = |conversion: Conversion, shape: &Shape| {
            claim(&named(), conversion, shape)["spec"]["resources"]["requests"]["storage"].clone()
        };
        for (conversion, request) in [(Conversion::Needed, "4Gi"), (Conversion::Maybe, "1Gi")] {
            let worker = container(Work::Move, conversion, &with);
            assert_eq!(worker["image"], "c");
            let resources = json!({"requests": {"cpu": "250m", "memory": request}, "limits": {"memory": "4Gi", KVM: "1"}});
            assert_eq!(worker["resources"], resources, "{conversion:?}");
            assert!(worker["volumeMounts"].to_string().contains("/var/tmp"), "{worker:#}");
            // Pods at the target have no converter.
            assert!(worker["args"].to_string().contains("\"--target-image\",\"i\""), "{worker:#}");
            assert_eq!(
                (size(conversion, &with), size(conversion, &shape(None))),
                (json!("10Gi"), json!("1Gi"))
            );
            assert_eq!(container(Work::Undo, conversion, &with)["image"], "i", "nothing is converted");
            assert_eq!(container(Work::Move, conversion, &shape(None))["image"], "i");
        }
        assert_eq!(
            container(Work::Move, Conversion::No, &with),
            container(Work::Move, Conversion::No, &shape(None))
        );
        assert_eq!(size(Conversion::No, &with), "1Gi");
    }

    #[test]
    fn workers_are_restricted_and_ask_for_what_they_need() {
        let job = job(&named(), &order(Work::Undo, Conversion::No), &shape(None));
        let pod = &job["spec"]["template"]["spec"];
        assert_eq!(job["spec"]["backoffLimit"], 0);
        assert_eq!(job["metadata"]["annotations"][EPOCH], "3");
        assert_eq!(job["metadata"]["annotations"][WORK], "Undo");
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["containers"][0]["securityContext"]["capabilities"]["drop"][0], "ALL");
        assert_eq!(pod["containers"][0]["resources"]["requests"]["memory"], "1Gi");
        let args: Vec<&str> =
            pod["containers"][0]["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
        let expected = "operator worker vm-1 --uid u --epoch 3 --pod $(DROVER_POD) --target-image i --target-image j --undo --begun --json";
        assert_eq!(args.join(" "), expected);
        assert_eq!(job["spec"]["template"]["metadata"]["labels"][VM], "web01");
        let env = &pod["containers"][0]["env"][2];
        assert_eq!(
            (&env["name"], &env["valueFrom"]["fieldRef"]["fieldPath"]),
            (&json!("DROVER_POD"), &json!("metadata.uid"))
        );
    }

    #[test]
    fn one_event_counts_what_goes_on() {
        let note =
            |message: &str| Note { is_warning: true, reason: "WaveStopped".into(), message: message.into() };
        let of = |message: &str, at| event("Plan", &named(), "vms", &note(message), Moment(at));
        let (made, _) = counted_event(of("1 VM", 1), "waves-held-u", 1);
        assert_eq!((&made["metadata"]["name"], &made["count"]), (&json!("waves-held-u"), &json!(1)));
        assert!(made["metadata"].get("generateName").is_none() && made["involvedObject"]["kind"] == "Plan");
        let (_, change) = counted_event(of("40 VMs", 2), "waves-held-u", 40);
        assert_eq!(change["count"], 40);
        assert_eq!((&change["message"], &change["lastTimestamp"]), (&json!("40 VMs"), &json!(Moment(2))));
        assert!(change.get("firstTimestamp").is_none(), "it began when it began");
    }

    #[test]
    fn a_worker_is_told_its_part_of_a_hosts_nfc_memory() {
        let part = NfcPart { each: 4 << 20, all: 8 << 20 };
        let order = Order { nfc: Some(part), ..order(Work::Move, Conversion::No) };
        let job = job(&named(), &order, &shape(None));
        assert_eq!(job["metadata"]["annotations"][NFC_BYTES], "8388608");
        let env = job["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap().last();
        assert_eq!(env, Some(&json!({"name": "DROVER_NFC_DISK_BYTES", "value": "4194304"})));
    }

    #[test]
    fn workers_know_that_their_cutovers_are_admitted() {
        let env = |work| {
            let job = job(&named(), &order(work, Conversion::No), &shape(None));
            job["spec"]["template"]["spec"]["containers"][0]["env"].to_string()
        };
        assert!(env(Work::Move).contains(CUTOVERS.0) && !env(Work::Undo).contains(CUTOVERS.0));
    }

    #[test]
    fn a_worker_is_best_beside_its_vms_volumes_and_waits_for_no_node() {
        let pod = |node: Option<&str>| {
            let order = Order { node, ..order(Work::Move, Conversion::No) };
            job(&named(), &order, &shape(None))["spec"]["template"]["spec"]["affinity"].clone()
        };
        let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
        let term = &pod(None)["podAffinity"][preferred][0]["podAffinityTerm"];
        assert_eq!(term["labelSelector"]["matchLabels"], json!({"drover.dev/vm": "web01"}));
        assert!(pod(None)["nodeAffinity"].is_null());
        let claim = json!({"metadata": {"annotations": {SELECTED_NODE: "node-7"}}});
        let there = pod(node_of(&claim));
        let fields = &there["nodeAffinity"][preferred][0]["preference"]["matchFields"];
        assert_eq!(fields[0]["values"], json!(["node-7"]));
        assert!(!there.to_string().contains("required"), "{there:#}");
        assert_eq!(node_of(&json!({"metadata": {}})), None);
    }
}
