//! Jobs, claims and events.

use serde_json::{Value, json};

use crate::model::{MigrationSpec, Named, Work};
use crate::time::Moment;
use crate::{API, EPOCH, MIGRATION, MIGRATION_UID, WORK};

/// Who made it.
const MANAGED: (&str, &str) = ("app.kubernetes.io/managed-by", "drover-operator");
/// User and group of workers: as those of drover's other pods, KubeVirt's own.
const USER_ID: u64 = 107;
/// Seconds that a worker has to flush and stop.
const GRACE_SECONDS: u64 = 60;

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
}

impl Shape {
    /// Images that pods at the target may run, the workers' own first.
    pub fn images(&self) -> Vec<String> {
        std::iter::once(&self.image).chain(&self.target_images).cloned().collect()
    }
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

/// The claim with a VM's state: journals, and what is to be undone.
pub fn claim(migration: &Named, shape: &Shape) -> Value {
    let mut spec = json!({
        "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem",
        "resources": {"requests": {"storage": shape.state_size}},
    });
    if let Some(class) = &shape.state_class {
        spec["storageClassName"] = json!(class);
    }
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": metadata(migration, &claim_name(&migration.name)), "spec": spec,
    })
}

/// The Job of one worker. It has one pod and one try: what comes next the operator decides, with another epoch.
pub fn job(migration: &Named, epoch: u64, work: Work, secret: &str, begun: bool, shape: &Shape) -> Value {
    let mut metadata = metadata(migration, &job_name(&migration.name, epoch));
    metadata["annotations"][EPOCH] = json!(epoch.to_string());
    metadata["annotations"][WORK] = json!(work);
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
    let container = json!({
        "name": "worker", "image": shape.image, "imagePullPolicy": shape.image_pull,
        "command": ["/usr/bin/drover"], "args": args,
        "env": [
            {"name": "HOME", "value": "/tmp"}, {"name": "DROVER_STATE", "value": "/state/drover"},
            {"name": "DROVER_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        ],
        "volumeMounts": [
            {"name": "state", "mountPath": "/state"}, {"name": "tmp", "mountPath": "/tmp"},
            {"name": "provider", "mountPath": "/provider", "readOnly": true},
        ],
        "resources": {
            "requests": {"cpu": shape.cpu, "memory": shape.memory}, "limits": {"memory": shape.memory},
        },
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    });
    let pod = json!({
        "restartPolicy": "Never", "serviceAccountName": shape.account, "enableServiceLinks": false,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": USER_ID, "runAsGroup": USER_ID, "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "state", "persistentVolumeClaim": {"claimName": claim_name(&migration.name)}},
            {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}},
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

    #[test]
    fn workers_are_restricted_and_ask_for_what_they_need() {
        let shape = Shape {
            image: "i".into(),
            target_images: vec!["j".into()],
            image_pull: "Never".into(),
            account: "drover-worker".into(),
            state_class: None,
            state_size: "1Gi".into(),
            cpu: "250m".into(),
            memory: "1Gi".into(),
            json: true,
        };
        let migration = Named { name: "vm-1".into(), uid: "u".into() };
        let job = job(&migration, 3, Work::Undo, "vc", true, &shape);
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
        let env = &pod["containers"][0]["env"][2];
        assert_eq!(
            (&env["name"], &env["valueFrom"]["fieldRef"]["fieldPath"]),
            (&json!("DROVER_POD"), &json!("metadata.uid"))
        );
    }
}
