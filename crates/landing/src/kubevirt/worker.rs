//! The pod that has a VM's volumes while drover writes to them, and the session to the agent in it.
//!
//! One pod of one name is there at a time: the API server gives the name away again once the node's kubelet has said that the one before
//! is gone, or somebody removed it by force. Drover never does: on a node that nobody reaches it might still write. The cluster does, when a
//! Node object is removed or a node is tainted as out of service. What an agent knows of epochs goes with its pod.
//!
//! A run of drover takes the pod that an earlier one left, by an annotation. One whose pod was taken from it leaves it alone from then on.

mod reach;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use drover_agent::sites::{self, MORE_THREADS};
use drover_agent::trust::{Fingerprint, Identity, Peer, Seed};
use drover_agent::{Refusal, Site};
use drover_disk::DiskErrorKind;
use drover_engine::{Cause, ProviderError};
use drover_kubevirt::objects::{self, AGENT_KEY, Keys, Kind, PEER, RUN, SHAPE, Standing};
use drover_kubevirt::{Change, Cluster, Forward, KubeError, KubeErrorKind};
use drover_link::RateLimit;
use drover_log::log;
use drover_mover::StopSignal;
use drover_plan::{Kubevirt, PlannedVm, Reach};
use serde_json::{Value, json};

/// How often a pod is looked at that is awaited.
const LOOK: Duration = Duration::from_millis(200);
/// How long a pod may take to go, and with it a claim. A kubelet that is away keeps it for longer.
pub(super) const GONE_WITHIN: Duration = Duration::from_secs(90);
/// How often events about claims are asked for while a pod waits.
const LOOK_AT_CLAIMS: Duration = Duration::from_secs(3);
/// How often a pod is looked at whose session has no connection. One whose node died says nothing at its end.
const LOOK_WHEN_DOWN: Duration = Duration::from_secs(2);
/// Pods that are made anew in one wait because the one before ended by itself.
const PODS_MAX: usize = 3;
/// Tries to remove an object that changes meanwhile.
const REMOVALS_MAX: usize = 20;

/// The worker of one VM.
pub(super) struct Worker {
    pub cluster: Arc<Cluster>,
    pub kubevirt: Kubevirt,
    pub vm: PlannedVm,
    pub plan: String,
    pub identity: Identity,
    pub stop: StopSignal,
    pub say: fn(&str),
    /// Tells this run of drover from others.
    pub run: String,
    /// Whether this run had the pod: whose name is on it by now took it from this one.
    pub had: Arc<AtomicBool>,
    /// Whether addresses of pods were found not to answer here.
    pub is_apart: Arc<AtomicBool>,
    /// In words, how the agent was reached last.
    pub way: Mutex<Option<String>>,
    pub forward: Mutex<Option<Forward>>,
    /// Held while the pod is awaited: disks of a VM are opened at the same time.
    pub turn: Mutex<()>,
    /// The UID of the pod that the session leads to.
    pub dialled: Mutex<Option<String>>,
    /// How much the plan may send in a second, to all its workers.
    pub limit: Arc<RateLimit>,
}

/// Which run of drover has an object of this plan's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    This,
    /// One that left it.
    Earlier,
    /// One that took the place of this one.
    Successor,
}

impl Worker {
    pub fn name(&self) -> String {
        objects::worker_name(&self.vm)
    }

    fn path(&self, kind: Kind) -> String {
        objects::path(&self.kubevirt, kind, &self.name())
    }

    fn owner(&self) -> String {
        objects::owner_of_vm(&self.vm, &self.plan)
    }

    /// Whether the pod that the session leads to has come to its end: it serves nobody any more.
    fn has_ended(&self) -> bool {
        let dialled = self.dialled.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(dialled) = dialled else { return false };
        match self.cluster.get(&self.path(Kind::Pod)) {
            Ok(None) => true,
            Ok(Some(pod)) => {
                objects::uid(&pod) != dialled || matches!(objects::standing(&pod), Standing::Ended(_))
            }
            // Who cannot be asked may serve yet.
            Err(_) => false,
        }
    }

    /// Ends the session of a pod that is gone. The link would wait for it for as long as for one behind a line that is cut; the next
    /// to dial makes another pod.
    pub fn watch(self: &Arc<Worker>, site: &Arc<Site>) -> Result<(), ProviderError> {
        let worker = self.clone();
        let look = move |site: &Site| {
            if !site.is_up() && worker.has_ended() {
                log!("kubevirt", "the worker pod {} is gone: its session ends", worker.name());
                site.hang_up();
            }
        };
        sites::watch("watch-pod", LOOK_WHEN_DOWN, site, look).map_err(|error| {
            let what = format!("starting a thread to watch the worker pod {}: {error}", self.name());
            ProviderError::new(Cause::Internal, what).advise(MORE_THREADS)
        })
    }

    /// The pod, running, and what its agent is known by.
    pub fn ensure(&self) -> Result<(Value, Fingerprint), KubeError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let until = Instant::now() + Duration::from_secs(self.kubevirt.worker_timeout_s);
        let (mut made, mut why) = (0, String::new());
        let (mut asked, mut trouble) = (None::<Instant>, None::<String>);
        loop {
            match self.cluster.get(&self.path(Kind::Pod))? {
                None if made >= PODS_MAX => {
                    return Err(self.failed(format!("ended {made} times: {why}")));
                }
                None => {
                    self.make()?;
                    made += 1;
                }
                Some(pod) if !objects::is_of(&pod, &self.owner()) => return Err(self.taken("pod", &pod)),
                Some(pod) if self.holder(&pod) == Holder::Successor => return Err(self.replaced()),
                Some(pod) if self.holder(&pod) == Holder::Earlier && !objects::is_going(&pod) => {
                    self.take(&pod)?;
                }
                Some(pod) => match objects::standing(&pod) {
                    Standing::Running => match self.agent_of(&pod) {
                        Some(agent) => return Ok((pod, agent)),
                        None => {
                            self.end(&pod)?;
                            why = "it is not the pod that this plan wants now".into();
                        }
                    },
                    // Why it ended says more than that it goes.
                    Standing::Ended(reason) if objects::is_going(&pod) => {
                        if why.is_empty() {
                            why = reason;
                        }
                    }
                    Standing::Ended(reason) => {
                        self.end(&pod)?;
                        why = reason;
                    }
                    Standing::Waiting(reason) => {
                        if NEVER.iter().any(|it| reason.starts_with(it)) {
                            return Err(self.failed(format!("cannot start: {reason}")));
                        }
                        if asked.is_none_or(|at| at.elapsed() >= LOOK_AT_CLAIMS) {
                            (asked, trouble) = (Some(Instant::now()), self.claim_trouble());
                        }
                        if let Some(trouble) = trouble.as_ref().filter(|it| objects::lacks_class(it)) {
                            return Err(
                                self.failed(format!("cannot start: there is no storage class: {trouble}"))
                            );
                        }
                        why = trouble.as_ref().map_or(reason.clone(), |it| format!("{reason}; {it}"));
                    }
                },
            }
            if self.stop.is_set() {
                return Err(self.failed("is not waited for: the run is to stop".into()));
            }
            if Instant::now() >= until {
                let waited = self.kubevirt.worker_timeout_s;
                return Err(self.failed(format!("did not come to run within {waited} s: {why}")));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Why a claim of the VM has no volume, where that may be read.
    fn claim_trouble(&self) -> Option<String> {
        let of = |name: String| {
            let claim = self.cluster.get(&objects::path(&self.kubevirt, Kind::Claim, &name)).ok()??;
            let events = format!(
                "/api/v1/namespaces/{}/events?fieldSelector=involvedObject.uid%3D{}&limit={EVENTS_MAX}",
                self.kubevirt.namespace,
                objects::uid(&claim)
            );
            objects::claim_trouble(&claim, &self.cluster.get(&events).ok()??)
        };
        self.vm.disks.iter().map(objects::claim_name).find_map(of)
    }

    /// What the agent of this pod is known by, if it serves this host and all disks of the VM.
    fn agent_of(&self, pod: &Value) -> Option<Fingerprint> {
        let wanted = objects::worker(&self.vm, &self.kubevirt, &self.plan, &Keys::default());
        // What was asked for, not what is there: a cluster may change pods on admission.
        let is_same = objects::annotation(pod, SHAPE) == objects::annotation(&wanted, SHAPE);
        let is_for_us = objects::annotation(pod, PEER) == Some(&self.identity.fingerprint().to_string());
        objects::annotation(pod, AGENT_KEY).filter(|_| is_same && is_for_us)?.parse().ok()
    }

    fn make(&self) -> Result<(), KubeError> {
        let internal = |error: &dyn std::error::Error| KubeError {
            kind: KubeErrorKind::Config,
            what: format!("making a key for the pod {}: {error}", self.name()),
        };
        let peer = Peer::new("drover", self.identity.fingerprint(), Vec::new(), drover_agent::now());
        let seed = Seed::new(&peer).map_err(|error| internal(&error))?;
        let files: Vec<(&str, &str)> = seed.files.iter().map(|(name, file)| (*name, file.reveal())).collect();
        if self.remove_unless(Kind::Secret, &[Holder::Successor])? {
            return Err(self.replaced());
        }
        // From now on there may be something of this run.
        self.had.store(true, Ordering::SeqCst);
        let secret = objects::secret(&self.vm, &self.kubevirt, &self.plan, &self.run, &files);
        self.cluster.create(&objects::path(&self.kubevirt, Kind::Secret, ""), &secret, false)?;
        let keys = Keys {
            agent: seed.agent.to_string(),
            peer: self.identity.fingerprint().to_string(),
            run: self.run.clone(),
        };
        let pod = objects::worker(&self.vm, &self.kubevirt, &self.plan, &keys);
        let pod = self.cluster.create(&objects::path(&self.kubevirt, Kind::Pod, ""), &pod, false)?;
        let owner =
            json!([{"apiVersion": "v1", "kind": "Pod", "name": self.name(), "uid": objects::uid(&pod)}]);
        let owned = json!({"metadata": {"ownerReferences": owner}});
        self.cluster.change(&self.path(Kind::Secret), Change::Merge, &owned).map(drop)
    }

    fn end(&self, pod: &Value) -> Result<(), KubeError> {
        self.cluster.delete(&self.path(Kind::Pod), objects::uid(pod))
    }

    fn holder(&self, object: &Value) -> Holder {
        let is_this = objects::annotation(object, RUN) == Some(self.run.as_str());
        match (is_this, self.had.load(Ordering::SeqCst)) {
            (true, _) => Holder::This,
            (false, false) => Holder::Earlier,
            (false, true) => Holder::Successor,
        }
    }

    /// Puts this run's name on the pod that an earlier one left, and on its secret. Refused if another is there by now.
    fn take(&self, pod: &Value) -> Result<(), KubeError> {
        let mark = |kind: Kind, object: &Value| {
            let run = format!("/metadata/annotations/{}", RUN.replace('/', "~1"));
            let operations = json!([
                {"op": "test", "path": "/metadata/uid", "value": objects::uid(object)},
                {"op": "test", "path": "/metadata/resourceVersion", "value": object["metadata"]["resourceVersion"]},
                {"op": "add", "path": run, "value": self.run},
            ]);
            match self.cluster.change(&self.path(kind), Change::Operations, &operations) {
                // It has changed, or is gone: it is looked at again.
                Err(error) if matches!(error.kind, KubeErrorKind::Refused | KubeErrorKind::Missing) => {
                    Ok(false)
                }
                changed => changed.map(|_| true),
            }
        };
        let secret = self.cluster.get(&self.path(Kind::Secret))?;
        if let Some(secret) = secret.filter(|secret| objects::is_of(secret, &self.owner()))
            && !mark(Kind::Secret, &secret)?
        {
            return Ok(());
        }
        if mark(Kind::Pod, pod)? {
            self.had.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Asks for the end of the pod or its secret, if it is this plan's and none of these has it. Whether one of them does.
    fn remove_unless(&self, kind: Kind, keepers: &[Holder]) -> Result<bool, KubeError> {
        let path = self.path(kind);
        for _ in 0..REMOVALS_MAX {
            let found = self.cluster.get(&path)?.filter(|it| objects::is_of(it, &self.owner()));
            let Some(object) = found else { return Ok(false) };
            if keepers.contains(&self.holder(&object)) {
                return Ok(true);
            }
            if objects::is_going(&object) {
                return Ok(false);
            }
            // Of what has changed since, another may have taken it.
            let version = &object["metadata"]["resourceVersion"];
            let same = json!({"uid": objects::uid(&object), "resourceVersion": version});
            self.cluster.remove(&path, &same, "Background")?;
        }
        Err(self.failed(format!(
            "is still there after {REMOVALS_MAX} tries to remove it: it changes all the time"
        )))
    }

    /// Asks for the end of the pod and of what belongs to it, without waiting, if this run has it.
    pub fn dismiss(&self) -> Result<(), KubeError> {
        let others = [Holder::Earlier, Holder::Successor];
        if self.remove_unless(Kind::Pod, &others)? {
            log!("kubevirt", "the worker pod {} is left to another run of drover", self.name());
            return Ok(());
        }
        self.parts().iter().try_for_each(|part| self.remove_unless(*part, &others).map(drop))
    }

    /// What belongs to the pod, and goes with it at the latest.
    fn parts(&self) -> &'static [Kind] {
        match (self.kubevirt.reach, self.kubevirt.reach.service()) {
            (Reach::Route, _) => &[Kind::Secret, Kind::Route, Kind::Service],
            (_, Some(_)) => &[Kind::Secret, Kind::Service],
            (_, None) => &[Kind::Secret],
        }
    }

    /// Asks for the end of the pod, also of one that an earlier run left, and waits until it is gone: nothing writes to the volumes any
    /// more then.
    pub fn remove(&self) -> Result<(), KubeError> {
        if self.remove_unless(Kind::Pod, &[Holder::Successor])? {
            return Err(self.replaced());
        }
        for part in self.parts() {
            self.remove_unless(*part, &[Holder::Successor])?;
        }
        let is_ours =
            |pod: &Value| objects::is_of(pod, &self.owner()) && self.holder(pod) != Holder::Successor;
        wait_until_gone(&self.cluster, &self.path(Kind::Pod), is_ours).map_err(|error| match error.kind {
            KubeErrorKind::Conflict => self.failed("is still there, though its end was asked for".into()),
            _ => error,
        })
    }

    fn replaced(&self) -> KubeError {
        let error = self.failed("is another run's of drover, which took the place of this one".into());
        KubeError { kind: KubeErrorKind::Conflict, ..error }
    }

    fn failed(&self, what: String) -> KubeError {
        let place = format!("worker pod {}/{}", self.kubevirt.namespace, self.name());
        KubeError { kind: KubeErrorKind::Server, what: format!("{place} {what}") }
    }

    fn taken(&self, kind: &str, object: &Value) -> KubeError {
        let whose = objects::annotation(object, objects::OWNER).unwrap_or("drover did not make it");
        let what = format!("a {kind} {}/{} is there already: {whose}", self.kubevirt.namespace, self.name());
        KubeError { kind: KubeErrorKind::Conflict, what }
    }
}

/// Waits until an object that is being removed is gone, or another has its name. `Conflict` if it stays.
pub(super) fn wait_until_gone(
    cluster: &Cluster,
    path: &str,
    is_it: impl Fn(&Value) -> bool,
) -> Result<(), KubeError> {
    let until = Instant::now() + GONE_WITHIN;
    while cluster.get(path)?.is_some_and(|object| is_it(&object)) {
        if Instant::now() >= until {
            let what = format!("{path} is still there after {} s", GONE_WITHIN.as_secs());
            return Err(KubeError { kind: KubeErrorKind::Conflict, what });
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Events about a claim that are read; the server keeps them for an hour, and counts those that come again.
const EVENTS_MAX: usize = 50;

/// Reasons of a container that no waiting mends.
const NEVER: [&str; 3] = ["ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError"];

/// To who dials again and again what may pass.
fn refused(error: &KubeError) -> Refusal {
    let kind = match error.kind {
        KubeErrorKind::Unreachable | KubeErrorKind::Server | KubeErrorKind::Missing => {
            DiskErrorKind::Transient
        }
        KubeErrorKind::Conflict | KubeErrorKind::Config | KubeErrorKind::Denied => DiskErrorKind::Denied,
        KubeErrorKind::NotServed | KubeErrorKind::Refused | KubeErrorKind::TooLarge => DiskErrorKind::Denied,
    };
    Refusal::new(kind, error.to_string())
}
