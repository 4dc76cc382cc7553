//! The custom resources, as far as the operator reads and writes them. Their schemas are in `deploy/crds.yaml`.

use drover_forecast::Measured;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::decide::reason;
use crate::time::Moment;

/// An object by its name, and what tells it from another of that name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// An object at one generation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pinned {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The generation of its spec.
    pub generation: i64,
}

/// Where a Migration comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceId {
    /// The vCenter's instance UUID.
    pub instance_uuid: String,
}

/// A VM at the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VmId {
    /// Its instance UUID, which stays when it is renamed.
    pub instance_uuid: String,
    /// The vCenter's id of it.
    pub id: String,
    /// Its name when the plan was laid over the source.
    pub name: String,
}

/// What the scheduler has to know.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Size {
    /// The host that serves its disks.
    pub host: String,
    /// Its disks.
    pub disks: Vec<DiskSize>,
    /// Disks of that host at once that its NFC server takes; absent where they are read by another way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_disks: Option<u32>,
    /// Greater goes first.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: i32,
    /// By when it is to have arrived, in milliseconds since 1970; earlier ones go first among those of one priority.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// What its Plan limits itself to.
    #[serde(default, skip_serializing_if = "PlanLimits::is_none")]
    pub plan_limits: PlanLimits,
    /// Bytes that are read back and compared; absent: as many as are read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified_bytes: Option<u64>,
    /// Whether its guest ran when the plan was laid over the source, so that it has to be shut down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runs: Option<bool>,
    /// How it moves while it runs; absent if it moves cold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warm: Option<WarmSize>,
}

impl Size {
    /// With those values that drift of `before`, where nothing else differs: what is allocated, what is read back and whether its guest
    /// runs are another thing at each look at the source, and forecasts alone go by them.
    pub fn settled(self, before: &Size) -> Size {
        let without = |size: &Size| {
            let disks = size.disks.iter().map(|disk| DiskSize { data: None, ..disk.clone() }).collect();
            Size { disks, verified_bytes: None, runs: None, ..size.clone() }
        };
        if without(&self) == without(before) { before.clone() } else { self }
    }
}

/// How a VM moves that keeps running, for the forecast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WarmSize {
    /// Milliseconds between passes.
    pub interval_ms: u64,
    /// When it moves over, in milliseconds since 1970; absent: as soon as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cutover_ms: Option<u64>,
    /// Longest downtime in milliseconds that is waited for.
    pub downtime_ms: u64,
}

fn is_false(it: &bool) -> bool {
    !it
}

fn is_zero(number: &i32) -> bool {
    *number == 0
}

/// Limits that a Plan gives itself, within those of the operator; absent: what there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PlanLimits {
    /// VMs of one host at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vms_per_host: Option<u32>,
    /// Disks at once in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disks: Option<u32>,
}

impl PlanLimits {
    fn is_none(&self) -> bool {
        *self == PlanLimits::default()
    }
}

/// A disk, for the scheduler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSize {
    /// Capacity.
    pub bytes: u64,
    /// Its datastore.
    pub datastore: String,
    /// What of it is read, as far as the source told when the plan was laid over it; absent: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<u64>,
}

/// Whether a guest is converted at the target, as far as the source tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Conversion {
    /// It is not.
    #[default]
    No,
    /// What is found in it once it is copied decides.
    Maybe,
    /// It is.
    Needed,
}

/// One VM to be moved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MigrationSpec {
    /// The plan that made it, at the generation that it has from it.
    pub plan_ref: Pinned,
    /// The provider, at the generation that was asked.
    pub provider: Pinned,
    /// Where it comes from; never changes.
    pub source: SourceId,
    /// Which VM; never changes.
    pub vm: VmId,
    /// Its name in the cluster.
    pub target_name: String,
    /// The wave of its Plan that it is in, if that has waves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wave: Option<String>,
    /// For the scheduler.
    #[serde(default)]
    pub size: Size,
    /// Whether its worker may need a converter.
    #[serde(default)]
    pub conversion: Conversion,
    /// The plan file's keys, for this VM alone.
    pub plan: Value,
    /// Whether what was begun is to be undone.
    #[serde(default)]
    pub cancel: bool,
}

/// What a Migration is doing, in a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Something it needs is not there.
    #[default]
    Pending,
    /// It waits for the scheduler.
    Queued,
    /// Its worker is made, or works.
    Running,
    /// It is tried again later.
    Retrying,
    /// What it began is being undone.
    Cancelling,
    /// It arrived.
    Done,
    /// It is not tried again by itself.
    Failed,
    /// What it began is undone.
    Cancelled,
}

/// What a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// It moves the VM.
    Move,
    /// It undoes what was begun.
    Undo,
    /// It switches the guest on again at the source, and leaves what was copied.
    SwitchOn,
}

/// The Job of the last worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JobRef {
    /// Its name.
    pub name: String,
    /// Its UID, once it was seen.
    #[serde(default)]
    pub uid: Option<String>,
    /// What it does.
    pub work: Work,
    /// When it was decided on.
    pub at: Moment,
    /// Whether it was stopped because it did not start.
    #[serde(default)]
    pub overdue: bool,
}

/// What a worker says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerWord {
    /// The epoch that it works in.
    pub epoch: u64,
    /// The UID of its pod.
    #[serde(default)]
    pub pod: Option<String>,
    /// Absent while it works: how it ended, as drover's commands do.
    #[serde(default)]
    pub exit: Option<u8>,
    /// A word for programs.
    #[serde(default)]
    pub reason: Option<String>,
    /// Words for people.
    #[serde(default)]
    pub message: Option<String>,
    /// Whether it would move over now if it were let, or does.
    #[serde(default, rename = "asksCutover", skip_serializing_if = "is_false")]
    pub asks_cutover: bool,
    /// Whether the guest was shut down for its try, or an earlier one that was cut off; said before it is shut down.
    #[serde(default)]
    pub outage: bool,
    /// Whether drover left the guest off; absent where that is not known.
    #[serde(default, rename = "leftOff")]
    pub left_off: Option<bool>,
    /// Whether it failed because of the host that serves the disks.
    #[serde(default, rename = "hostFailed")]
    pub host_failed: bool,
    /// The datastore that it was, if it could not be read.
    #[serde(default, rename = "datastoreFailed", skip_serializing_if = "Option::is_none")]
    pub datastore_failed: Option<String>,
}

/// How far the copy is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// Bytes of all disks.
    pub total_bytes: u64,
    /// Bytes of them that are at the target.
    pub done_bytes: u64,
    /// The same in per cent.
    pub percent: u8,
}

/// When something is foreseen to have arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Foreseen {
    /// When that was foreseen.
    pub at: Moment,
    /// Once in ten it is earlier.
    pub p10: Moment,
    /// As often earlier as later.
    pub p50: Moment,
    /// Once in ten it is later.
    pub p90: Moment,
}

/// How a wave of a Plan stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaveStatus {
    /// Its name.
    pub name: String,
    /// VMs that it moves.
    pub vms: u64,
    /// Of these, the ones that arrived.
    pub arrived: u64,
    /// Of these, the ones that failed and are not tried again by themselves.
    pub failed: u64,
    /// Whether it was over once and let the waves after it go on.
    pub passed: bool,
    /// Whether waves after it do not begin since VMs of it failed.
    #[serde(default)]
    pub holds: bool,
    /// Why what is left of it does not begin; absent if it may.
    #[serde(default)]
    pub waits: Option<String>,
}

/// A condition, by Kubernetes' conventions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which.
    #[serde(rename = "type")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A word for programs.
    pub reason: String,
    /// Words for people.
    #[serde(default)]
    pub message: String,
    /// When the status changed last.
    pub last_transition_time: Moment,
    /// The generation that it is about.
    #[serde(default)]
    pub observed_generation: i64,
}

/// The part of a Migration's status that the operator writes, and what workers write beside it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The generation that was looked at.
    pub observed_generation: i64,
    /// What it does, in a word.
    pub phase: Phase,
    /// Of the last worker; 0 before the first.
    pub epoch: u64,
    /// The Job of that worker, until its end was looked at.
    pub job: Option<JobRef>,
    /// The claim with drover's state of this VM.
    pub claim: Option<Named>,
    /// Whether a worker began to touch source or target; written by that worker, before it does.
    #[serde(skip_serializing)]
    pub begun: bool,
    /// Failures that lie with it, without progress between them: too many of them end it.
    pub failures: u32,
    /// Tries of all kinds that failed, without progress between them: pauses grow with them.
    pub tries: u32,
    /// Tries that shut the guest down and failed: too many of them end it, whatever they failed of.
    pub outages: u32,
    /// Whether the guest is off because a worker shut it down, as far as is known.
    pub guest_off: bool,
    /// The most bytes at the target when it failed.
    pub failed_at_bytes: u64,
    /// Before then nothing is tried.
    pub next_try: Option<Moment>,
    /// Since when it is being undone.
    pub cancel_since: Option<Moment>,
    /// The epoch of the worker that may shut the guest down for its cutover.
    pub cutover_epoch: Option<u64>,
    /// What [`crate::RETRY`] said when it was heeded.
    pub retried: Option<String>,
    /// When it is foreseen to have arrived, while it is on its way.
    pub forecast: Option<Foreseen>,
    /// By Kubernetes' conventions.
    pub conditions: Vec<Condition>,
    /// By its worker.
    #[serde(skip_serializing)]
    pub worker: Option<WorkerWord>,
    /// By its worker.
    #[serde(skip_serializing)]
    pub progress: Option<Progress>,
    /// By the worker with which it arrived.
    #[serde(skip_serializing)]
    pub measured: Option<Measured>,
}

impl Status {
    /// The condition of a type.
    pub fn condition(&self, kind: &str) -> Option<&Condition> {
        self.conditions.iter().find(|it| it.kind == kind)
    }

    /// Sets a condition; its moment changes only with its status. Whether anything changed.
    pub fn set(&mut self, kind: &str, is_true: bool, reason: &str, message: &str, now: Moment) -> bool {
        let generation = self.observed_generation;
        set_condition(&mut self.conditions, kind, is_true, reason, message, generation, now)
    }

    /// What of it is sent to the server, in which nothing is left out, so that what is absent is taken away there.
    pub fn patch(&self) -> Value {
        json!(self)
    }

    /// Whether it waits for its next try with its guest down: nobody else gets its slot meanwhile.
    pub fn keeps_slot(&self) -> bool {
        self.phase == Phase::Retrying && self.guest_off
    }

    /// Whether its guest is down for its cutover, or may be by now: by its worker, or until the next one begins.
    pub fn is_moving_over(&self) -> bool {
        let is_work = self.job.as_ref().is_some_and(|job| job.work == Work::Move);
        let may_go = self.epoch > 0 && self.cutover_epoch == Some(self.epoch);
        let is_on_its_way =
            matches!(self.phase, Phase::Pending | Phase::Queued | Phase::Running | Phase::Retrying);
        let is_down = is_work && (may_go || self.word().is_some_and(|word| word.outage));
        is_on_its_way && (self.guest_off || is_down)
    }

    /// Whether it was ended, for now, since a wave before its own failed.
    pub fn is_stopped(&self) -> bool {
        let is_it = |condition: &Condition| condition.reason == reason::WAVE_STOPPED;
        self.phase == Phase::Failed && self.condition("Arrived").is_some_and(is_it)
    }

    /// The word of the worker of this epoch.
    pub fn word(&self) -> Option<&WorkerWord> {
        self.worker.as_ref().filter(|worker| worker.epoch == self.epoch && self.epoch > 0)
    }
}

/// Messages are cut to this many characters: the API server refuses longer ones.
const MESSAGE_MAX: usize = 4096;

/// Sets a condition; whether anything changed.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    kind: &str,
    is_true: bool,
    reason: &str,
    message: &str,
    generation: i64,
    now: Moment,
) -> bool {
    let status = if is_true { "True" } else { "False" };
    let message: String = message.chars().take(MESSAGE_MAX).collect();
    let fresh = Condition {
        kind: kind.into(),
        status: status.into(),
        reason: reason.into(),
        message,
        last_transition_time: now,
        observed_generation: generation,
    };
    match conditions.iter_mut().find(|it| it.kind == kind) {
        Some(old) => {
            let fresh = match old.status == status {
                true => Condition { last_transition_time: old.last_transition_time, ..fresh },
                false => fresh,
            };
            let is_new = *old != fresh;
            *old = fresh;
            is_new
        }
        None => {
            conditions.push(fresh);
            true
        }
    }
}

/// A provider: a vCenter, and the Secret with its login.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderSpec {
    /// Host and port.
    pub endpoint: String,
    /// The Secret with `user` and `password`, and `ca.crt` where that is trusted.
    pub secret_name: String,
    /// The thumbprint of its certificate.
    #[serde(default)]
    pub thumbprint: Option<String>,
    /// Whether `ca.crt` of the Secret says who may sign its certificate.
    #[serde(default)]
    pub ca_from_secret: bool,
    /// Whether its certificate is not verified.
    #[serde(default)]
    pub insecure: bool,
}

impl ProviderSpec {
    /// The `source` of a plan file, with the Secret's files in a folder.
    pub fn source(&self, user: &str, folder: &str, data: &Value) -> Value {
        let mut source = json!({
            "type": "vsphere", "endpoint": self.endpoint, "user": user, "password_file": format!("{folder}/password"),
        });
        if let Some(thumbprint) = &self.thumbprint {
            source["thumbprint"] = json!(thumbprint);
        }
        if self.ca_from_secret {
            source["ca_file"] = json!(format!("{folder}/ca.crt"));
        }
        if self.insecure {
            source["insecure"] = json!(true);
        }
        if !data.is_null() {
            source["data"] = data.clone();
        }
        source
    }
}

/// Keys of a plan file that a Plan of the cluster says otherwise, or not at all.
pub(crate) const NOT_IN_A_PLAN: [(&str, &str); 3] = [
    ("version", "it is always 1"),
    ("name", "a Plan is called by its metadata.name"),
    ("groups", "groups are not carried out by the operator yet"),
];

/// Where a plan is carried out.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The namespace that VMs go to.
    pub namespace: &'a str,
    /// The folder with the Secret's files.
    pub folder: &'a str,
    /// Images that its pods at the target may run, which may be root's; the first one where the plan names none.
    pub images: &'a [String],
}

/// The text of a plan file from a Plan's keys. JSON is YAML.
///
/// # Errors
/// Keys that may not be there, in words for people.
pub fn plan_text(
    name: &str,
    keys: &Value,
    provider: &ProviderSpec,
    user: &str,
    place: &Place<'_>,
) -> Result<String, String> {
    let Place { namespace, folder, images } = *place;
    let mut plan = keys.as_object().cloned().ok_or("spec.plan is no map")?;
    if let Some((key, why)) = NOT_IN_A_PLAN.iter().find(|(key, _)| plan.contains_key(*key)) {
        return Err(format!("spec.plan.{key}: {why}; leave it out"));
    }
    let data = match plan.remove("source") {
        None => Value::Null,
        Some(mut source) => {
            let data = data_of(&mut source).map_err(|key| {
                format!("spec.plan.source.data.{key}: the operator takes from, port, network, path and nfc")
            })?;
            if source.as_object().is_none_or(|source| source.keys().any(|key| key != "data")) {
                return Err("spec.plan.source: only `data` may be in it; the rest is the Provider's".into());
            }
            data
        }
    };
    let target = plan.entry("target").or_insert(Value::Null);
    if target["type"] != "kubevirt" {
        return Err("spec.plan.target.type: the operator's workers move VMs to `kubevirt`".into());
    }
    if let Some(key) = ["kubeconfig", "context"].into_iter().find(|key| !target[*key].is_null()) {
        return Err(format!("spec.plan.target.{key}: workers use their own service account; leave it out"));
    }
    let is_upload = target["reach"] == "upload";
    if is_upload || ["upload_url", "upload_ca"].into_iter().any(|key| !target[key].is_null()) {
        return Err("spec.plan.target: CDI's upload proxy is for drover outside the cluster, whose workers have pods; leave \
                    `reach: upload`, `upload_url` and `upload_ca` out"
            .into());
    }
    if !target["namespace"].is_null() && target["namespace"] != namespace {
        return Err(format!("spec.plan.target.namespace: VMs go to the Plan's own namespace, {namespace}"));
    }
    target["namespace"] = json!(namespace);
    match (&target["image"], images.first()) {
        (Value::Null, Some(own)) => target["image"] = json!(own),
        (image, _) if images.iter().any(|it| *image == it.as_str()) => {}
        (image, _) => {
            return Err(format!(
                "spec.plan.target.image: {image} is none of the images that this operator runs ({}); leave it out, or see --target-image",
                images.join(", ")
            ));
        }
    }
    plan.insert("version".into(), json!(1));
    plan.insert("name".into(), json!(name));
    plan.insert("source".into(), provider.source(user, folder, &data));
    Ok(escaped(&Value::Object(plan).to_string()))
}

/// Takes `data` out of a plan's source, if the operator takes all its keys; else gives one that it does not.
pub(crate) fn data_of(source: &mut Value) -> Result<Value, String> {
    let data = source.get_mut("data").map(Value::take).unwrap_or_default();
    // Others name files, programs and logins, which are the worker's.
    let is_known = |key: &&String| ["from", "port", "network", "path", "nfc"].contains(&key.as_str());
    match data.as_object().and_then(|data| data.keys().find(|key| !is_known(key))) {
        Some(key) => Err(key.clone()),
        None => Ok(data),
    }
}

/// YAML takes some characters of JSON's strings only where they are escaped.
fn escaped(json: &str) -> String {
    let plain = |c: char| c.is_ascii_graphic() || c == ' ' || c.is_alphanumeric();
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if plain(c) {
            text.push(c);
        } else {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| text.push_str(&format!("\\u{unit:04x}")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conditions_moment_changes_with_its_status_alone() {
        let mut status = Status::default();
        assert!(status.set("Arrived", false, "Queued", "", Moment(1)));
        assert!(!status.set("Arrived", false, "Queued", "", Moment(2)));
        assert!(status.set("Arrived", false, "Running", "", Moment(3)));
        assert_eq!(status.conditions[0].last_transition_time, Moment(1));
        assert!(status.set("Arrived", true, "Arrived", "", Moment(4)));
        assert_eq!(status.conditions[0].last_transition_time, Moment(4));
    }

    #[test]
    fn what_a_worker_writes_is_never_sent_back() {
        let status = Status {
            worker: Some(WorkerWord::default()),
            progress: Some(Progress::default()),
            measured: Some(Measured::default()),
            ..Status::default()
        };
        let patch = status.patch();
        assert!(["worker", "progress", "measured"].iter().all(|key| patch.get(key).is_none()), "{patch}");
        for key in ["nextTry", "forecast"] {
            assert!(patch[key].is_null() && patch.get(key).is_some(), "what is absent is taken away: {key}");
        }
    }

    #[test]
    fn plans_say_only_what_they_may() {
        let provider =
            ProviderSpec { endpoint: "vc".into(), secret_name: "s".into(), ..ProviderSpec::default() };
        let images = ["drover:1".to_string(), "drover:2".to_string()];
        let place = Place { namespace: "vms", folder: "/provider", images: &images };
        let text = |keys: Value| plan_text("p", &keys, &provider, "u", &place);
        let fine = text(
            json!({"target": {"type": "kubevirt"}, "source": {"data": {"port": 443}}, "vms": [{"name": "a\u{7f}"}]}),
        );
        let fine = fine.unwrap();
        assert!(fine.contains("\"namespace\":\"vms\"") && fine.contains("\"port\":443"), "{fine}");
        assert!(fine.contains("a\\u007f"), "{fine}");
        assert!(fine.contains("\"image\":\"drover:1\""), "the operator's own, where none is named: {fine}");
        let other = text(json!({"target": {"type": "kubevirt", "image": "drover:2"}})).unwrap();
        assert!(other.contains("\"image\":\"drover:2\""), "{other}");
        for (keys, word) in [
            (json!([]), "no map"),
            (json!({"name": "x", "target": {"type": "kubevirt"}}), "metadata.name"),
            (json!({"groups": {}, "target": {"type": "kubevirt"}}), "groups"),
            (json!({"target": {"type": "qemu"}}), "target.type"),
            (json!({"target": {"type": "kubevirt", "namespace": "kube-system"}}), "own namespace"),
            (json!({"target": {"type": "kubevirt", "context": "x"}}), "target.context"),
            (json!({"target": {"type": "kubevirt", "reach": "upload"}}), "upload proxy"),
            (json!({"target": {"type": "kubevirt", "upload_ca": "/x"}}), "upload proxy"),
            (json!({"target": {"type": "kubevirt"}, "source": {"endpoint": "x"}}), "only `data`"),
            (
                json!({"target": {"type": "kubevirt"}, "source": {"data": {"password_file": "/x"}}}),
                "data.password_file",
            ),
            (json!({"target": {"type": "kubevirt", "image": "evil:1"}}), "target.image"),
            (json!({"target": {"type": "kubevirt", "image": ["drover:1"]}}), "target.image"),
            (json!({}), "target.type"),
            (json!({"target": "kubevirt"}), "target.type"),
            (json!({"target": {"type": "kubevirt"}, "source": "vc"}), "only `data`"),
        ] {
            let why = text(keys.clone()).unwrap_err();
            assert!(why.contains(word), "{keys}: {why}");
        }
    }
}
