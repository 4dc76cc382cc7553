//! KubeVirt as a target: disks are persistent volume claims, written by the agent of a worker pod that has them, and machines are
//! `VirtualMachine`s. What stands in the way is found in [`survey`].
//!
//! An object is this plan's own if its annotation says so; all else of its name is refused, and never removed.

mod survey;
mod worker;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use drover_agent::Site;
use drover_agent::trust::Peer;
use drover_disk::Disk;
use drover_engine::{Cause, Converted, OpenedTarget, ProviderError, TargetProvider};
use drover_kubevirt::objects::{self, Kind, READY};
use drover_kubevirt::vm::{self, About, HALTED};
use drover_kubevirt::{Access, Change, Cluster, KubeError, KubeErrorKind};
use drover_link::RateLimit;
use drover_plan::{Kubevirt, PlannedDisk, PlannedVm, RunStrategy};
use serde_json::{Value, json};

use super::there::{There, conversion_problem};
use super::{Setting, all_removed};
use crate::limits::{Own, followed};
use crate::machine::machine_of;
use crate::sites;
use worker::{Worker, wait_until_gone};

/// How long a machine may take to come to run, or to go off after its guest was asked.
const START_WITHIN: Duration = Duration::from_secs(300);
const STOP_WITHIN: Duration = Duration::from_secs(240);
const LOOK: Duration = Duration::from_millis(500);

/// A namespace of a cluster, for one plan.
pub struct Claims {
    about: Setting,
    kubevirt: Kubevirt,
    cluster: Mutex<Option<Arc<Cluster>>>,
    /// By VM, its worker and the disks that are reached through it.
    hands: Mutex<HashMap<String, Arc<Hand>>>,
    /// Claims that this process made and has not opened: what they hold is nobody's.
    made: Arc<Mutex<HashSet<String>>>,
    /// Held while claims are made.
    making: Mutex<()>,
    limit: OnceLock<Arc<RateLimit>>,
    /// By VM, the leave to start it.
    ready: Mutex<HashMap<String, String>>,
}

struct Hand {
    worker: Arc<Worker>,
    site: Arc<Site>,
    there: There,
}

impl Claims {
    /// The namespace, not asked for anything yet.
    pub fn new(about: &Setting, kubevirt: &Kubevirt) -> Claims {
        Claims {
            about: about.clone(),
            kubevirt: kubevirt.clone(),
            cluster: Mutex::default(),
            hands: Mutex::default(),
            made: Arc::default(),
            making: Mutex::default(),
            limit: OnceLock::new(),
            ready: Mutex::default(),
        }
    }

    fn cluster(&self) -> Result<Arc<Cluster>, KubeError> {
        let mut known = self.cluster.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cluster) = known.as_ref() {
            return Ok(cluster.clone());
        }
        let Kubevirt { kubeconfig, context, .. } = self.kubevirt.clone();
        let cluster = Cluster::connect(&Access { kubeconfig, context })?;
        *known = Some(cluster.clone());
        Ok(cluster)
    }

    fn get(&self, kind: Kind, name: &str) -> Result<Option<Value>, ProviderError> {
        let found =
            self.cluster().and_then(|cluster| cluster.get(&objects::path(&self.kubevirt, kind, name)));
        found.map_err(failed)
    }

    fn hands(&self) -> MutexGuard<'_, HashMap<String, Arc<Hand>>> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn made(&self) -> MutexGuard<'_, HashSet<String>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand(&self, vm: &PlannedVm) -> Result<Arc<Hand>, ProviderError> {
        let mut hands = self.hands();
        if let Some(hand) = hands.get(&vm.vm.id) {
            return Ok(hand.clone());
        }
        let told = |failure: crate::exit::Failure| {
            let error = ProviderError::new(Cause::Internal, failure.message);
            failure.advice.into_iter().fold(error, ProviderError::advise)
        };
        let folder = sites::folder(self.about.state.as_deref()).map_err(told)?;
        let identity = sites::identity(&folder).map_err(told)?;
        let limit = self.limit.get_or_init(|| {
            let nobody = Peer::new("kubevirt", identity.fingerprint(), Vec::new(), 0);
            followed(folder, &nobody, Own { limits: self.about.target.rate_limit.clone(), rate: None })
        });
        let worker = Arc::new(Worker {
            cluster: self.cluster().map_err(failed)?,
            kubevirt: self.kubevirt.clone(),
            vm: vm.clone(),
            plan: self.about.plan.clone(),
            identity,
            limit: limit.clone(),
            stop: self.about.stop.clone(),
            forward: Mutex::default(),
            turn: Mutex::default(),
        });
        let dialled = worker.clone();
        let site = Site::new(&self.kubevirt.site(), move || dialled.dial());
        let there = There::at(site.clone(), &self.about, self.knowing(worker.clone())).map_err(told)?;
        let hand = Arc::new(Hand { worker, site, there });
        hands.insert(vm.vm.id.clone(), hand.clone());
        Ok(hand)
    }

    /// How a claim is told from another of its name: by what the server calls it, whatever node it is on.
    fn knowing(&self, worker: Arc<Worker>) -> Box<super::there::Knowing> {
        let (plan, made) = (self.about.plan.clone(), self.made.clone());
        Box::new(move |disk| {
            let path = objects::path(&worker.kubevirt, Kind::Claim, &objects::claim_name(disk));
            let found = worker.cluster.get(&path).map_err(failed)?;
            let claim = found.filter(|claim| objects::is_of(claim, &worker.vm.owner_of(&plan, disk)));
            let Some(claim) = claim else { return Ok(None) };
            let uid = objects::uid(&claim).to_string();
            let is_fresh =
                made.lock().unwrap_or_else(PoisonError::into_inner).contains(&objects::claim_name(disk));
            Ok(Some((format!("claim {uid}"), is_fresh)))
        })
    }

    /// Ends the pod of a VM: afterwards nothing of drover's has its volumes.
    fn release(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        let hand = self.hand(vm)?;
        self.hands().remove(&vm.vm.id);
        hand.site.leave();
        hand.worker.remove().map_err(failed)
    }

    /// The claim of a disk, if it is this plan's; refused if it is somebody else's.
    fn claim_of(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<Option<Value>, ProviderError> {
        let name = objects::claim_name(disk);
        let Some(claim) = self.get(Kind::Claim, &name)? else { return Ok(None) };
        if !objects::is_of(&claim, &vm.owner_of(&self.about.plan, disk)) {
            return Err(self.taken("persistent volume claim", &name, &claim));
        }
        Ok(Some(claim))
    }

    fn taken(&self, kind: &str, name: &str, object: &Value) -> ProviderError {
        let whose = match objects::annotation(object, objects::OWNER) {
            Some(owner) => format!("it is of {owner}"),
            None => "drover did not make it".into(),
        };
        let what = format!("a {kind} {}/{name} is there already: {whose}", self.kubevirt.namespace);
        ProviderError::new(Cause::Target, what)
            .advise("choose another target_name or namespace, or remove it if it may go")
    }

    /// Makes the claims that are not there. All of a VM's, since its pod has them all.
    fn ensure_claims(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        let cluster = self.cluster().map_err(failed)?;
        // Disks of a VM are opened at the same time.
        let _turn = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        for disk in &vm.disks {
            let Some(claim) = self.claim_of(disk, vm)? else {
                let claim = objects::claim(vm, disk, &self.kubevirt, &self.about.plan);
                let all = objects::path(&self.kubevirt, Kind::Claim, "");
                cluster.create(&all, &claim, false).map_err(failed)?;
                self.made().insert(objects::claim_name(disk));
                continue;
            };
            let name = objects::claim_name(disk);
            if !claim["metadata"]["deletionTimestamp"].is_null() {
                let what =
                    format!("persistent volume claim {}/{name} is being removed", self.kubevirt.namespace);
                return Err(ProviderError::new(Cause::Target, what)
                    .advise("wait until it is gone, then `drover resume`"));
            }
            let is_block = self.kubevirt.volume_mode == drover_plan::VolumeMode::Block;
            let asked = &claim["spec"]["resources"]["requests"]["storage"];
            let bytes = asked.as_str().and_then(objects::quantity).unwrap_or(u64::MAX);
            let mode = if is_block { "Block" } else { "Filesystem" };
            if bytes < disk.disk.capacity_bytes || claim["spec"]["volumeMode"] != *mode {
                let what = format!(
                    "persistent volume claim {}/{name} has {asked} and the mode {}, and the disk wants {} bytes in the mode {mode}",
                    self.kubevirt.namespace, claim["spec"]["volumeMode"], disk.disk.capacity_bytes
                );
                return Err(ProviderError::new(Cause::Target, what)
                    .advise("`drover cancel` removes it; then the plan makes it anew"));
            }
        }
        Ok(())
    }

    /// The machine of this plan, if it is there; refused if somebody else's is.
    fn machine(&self, vm: &PlannedVm) -> Result<Option<Value>, ProviderError> {
        let name = objects::vm_name(vm);
        match self.get(Kind::Machine, &name)? {
            Some(found) if !objects::is_of(&found, &objects::owner_of_vm(vm, &self.about.plan)) => {
                Err(self.taken("VirtualMachine", &name, &found))
            }
            found => Ok(found),
        }
    }

    /// As [`Claims::machine`], but somebody else's counts as none.
    fn own_machine(&self, vm: &PlannedVm) -> Result<Option<Value>, ProviderError> {
        let owner = objects::owner_of_vm(vm, &self.about.plan);
        let found = self.cluster().and_then(|cluster| {
            match cluster.get(&objects::path(&self.kubevirt, Kind::Machine, &objects::vm_name(vm))) {
                // Where nobody serves machines there is none.
                Err(error) if error.kind == KubeErrorKind::NotServed => Ok(None),
                found => found,
            }
        });
        Ok(found.map_err(failed)?.filter(|found| objects::is_of(found, &owner)))
    }

    fn has_instance(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        let found = self.get(Kind::Instance, &objects::vm_name(vm))?;
        Ok(found.is_some_and(|it| !matches!(it["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))))
    }

    /// Whether it runs, or will because somebody wants it.
    fn runs(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        let Some(machine) = self.own_machine(vm)? else { return Ok(false) };
        Ok(is_wanted(&machine) || self.has_instance(vm)?)
    }

    fn change_machine(&self, vm: &PlannedVm, change: Change, body: &Value) -> Result<Value, KubeError> {
        let path = objects::path(&self.kubevirt, Kind::Machine, &objects::vm_name(vm));
        self.cluster()?.change(&path, change, body)
    }

    fn object(&self, vm: &PlannedVm) -> Value {
        let root = |disk: &PlannedDisk| {
            let replay = drover_mover::recorded(&self.journal(disk, vm)).ok()?;
            Some((disk.index, replay.complete?.to_string()))
        };
        let roots: Vec<(usize, String)> = vm.disks.iter().filter_map(root).collect();
        let about = About { plan: &self.about.plan, origin: &self.about.origin, roots: &roots };
        vm::virtual_machine(vm, &self.kubevirt, &about)
    }

    /// All that can refuse a VM later, looked at while it still runs. Touches nothing.
    fn look_ahead(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        let machine = machine_of(vm, &self.about.target, &self.about.origin);
        if let Some(why) = conversion_problem(vm, &machine) {
            let what = format!("{} cannot be converted in the cluster: {why}", vm.target_name);
            return Err(ProviderError::new(Cause::Plan, what).advise(
                "convert it there by other means and write `convert: never`, or choose a bus that it has drivers for (`disk_bus: sata`)",
            ));
        }
        self.machine(vm)?;
        vm.disks.iter().try_for_each(|disk| self.claim_of(disk, vm).map(drop))
    }
}

/// Whether KubeVirt is to run it.
fn is_wanted(machine: &Value) -> bool {
    machine["spec"]["runStrategy"].as_str().is_some_and(|strategy| strategy != HALTED)
        || machine["spec"]["running"] == true
}

fn failed(error: KubeError) -> ProviderError {
    let (cause, advice) = match error.kind {
        KubeErrorKind::Config => {
            (Cause::Plan, "see `target.kubeconfig` and `target.context`, or the variable KUBECONFIG")
        }
        KubeErrorKind::Unreachable => {
            (Cause::Connection, "see whether the API server is up, then `drover resume`")
        }
        KubeErrorKind::Denied => {
            (Cause::Access, "give this user the rights that docs/how-to/kubevirt.md lists")
        }
        KubeErrorKind::NotServed => (Cause::Target, "install KubeVirt in the cluster, then `drover resume`"),
        KubeErrorKind::Refused if error.what.contains("exceeded quota") => {
            (Cause::TargetFull, "raise the namespace's quota, then `drover resume`")
        }
        KubeErrorKind::Missing | KubeErrorKind::Conflict | KubeErrorKind::Refused | KubeErrorKind::Server => {
            (Cause::Target, "see `kubectl describe` of it, then `drover resume`")
        }
    };
    ProviderError::new(cause, error.what).advise(advice)
}

impl TargetProvider for Claims {
    fn prepare(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        for disk in &vm.disks {
            let journal = self.journal(disk, vm);
            let folder = journal.parent().unwrap_or(&journal);
            std::fs::create_dir_all(folder).map_err(|error| {
                ProviderError::new(Cause::Internal, format!("making {}", folder.display())).because(error)
            })?;
        }
        self.look_ahead(vm)
    }

    fn open_disk(
        &self,
        disk: &PlannedDisk,
        vm: &PlannedVm,
        size: u64,
    ) -> Result<OpenedTarget, ProviderError> {
        if self.runs(vm)? {
            let what =
                format!("{} runs in the cluster, and its disks are not written to", objects::vm_name(vm));
            return Err(ProviderError::new(Cause::Target, what).advise("stop it there, then `drover resume`"));
        }
        self.ensure_claims(vm)?;
        let hand = self.hand(vm)?;
        // Not by the link, so that what keeps the pod from running is told as it is.
        hand.worker.ensure().map_err(failed)?;
        let opened = hand.there.open_disk(disk, vm, size)?;
        // From now on it may hold what a journal tells of.
        self.made().remove(&objects::claim_name(disk));
        Ok(opened)
    }

    fn journal(&self, disk: &PlannedDisk, _: &PlannedVm) -> std::path::PathBuf {
        super::there::journal(self.about.state.as_deref(), &self.kubevirt.site(), disk)
    }

    fn has_image(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<bool, ProviderError> {
        let found = self.get(Kind::Claim, &objects::claim_name(disk))?;
        Ok(found.is_some_and(|claim| objects::is_of(&claim, &vm.owner_of(&self.about.plan, disk))))
    }

    fn open_for_verify(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<Arc<dyn Disk>, ProviderError> {
        if self.claim_of(disk, vm)?.is_none() {
            let what = format!("there is no persistent volume claim {}", vm.place_of(disk).display());
            return Err(ProviderError::new(Cause::Target, what).advise("see who removed it"));
        }
        let hand = self.hand(vm)?;
        hand.worker.ensure().map_err(failed)?;
        hand.there.open_for_verify(disk, vm)
    }

    fn convert(&self, vm: &PlannedVm) -> Result<Converted, ProviderError> {
        self.hand(vm)?.there.convert(vm)
    }

    fn define(&self, vm: &PlannedVm) -> Result<String, ProviderError> {
        let (name, namespace) = (objects::vm_name(vm), &self.kubevirt.namespace);
        if self.machine(vm)?.is_some_and(|machine| is_wanted(&machine)) {
            return Ok(format!("defined: VirtualMachine {namespace}/{name} is there and started"));
        }
        self.release(vm)?;
        let cluster = self.cluster().map_err(failed)?;
        let path = objects::path(&self.kubevirt, Kind::Machine, &name);
        cluster.apply(&path, &self.object(vm), false).map_err(failed)?;
        let start = match vm.start {
            true => String::new(),
            false => format!("; not started: `virtctl start -n {namespace} {name}` starts it"),
        };
        Ok(format!("defined: VirtualMachine {namespace}/{name}{start}"))
    }

    fn undo_define(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        let Some(machine) = self.own_machine(vm)? else { return Ok(()) };
        let name = objects::vm_name(vm);
        if self.runs(vm)? {
            let what = format!("VirtualMachine {name} runs and is not removed");
            return Err(
                ProviderError::new(Cause::Target, what).advise("stop it, then the same command again")
            );
        }
        let cluster = self.cluster().map_err(failed)?;
        let path = objects::path(&self.kubevirt, Kind::Machine, &name);
        let uid = objects::uid(&machine);
        cluster.delete(&path, uid).map_err(failed)?;
        wait_until_gone(&cluster, &path, |it| objects::uid(it) == uid).map_err(failed)
    }

    fn make_ready(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        let leave = drover_mover::new_epoch(0).to_string();
        let body = json!({"metadata": {"annotations": {READY: leave}}});
        self.change_machine(vm, Change::Merge, &body).map_err(failed)?;
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).insert(vm.vm.id.clone(), leave);
        Ok(())
    }

    fn start(&self, vm: &PlannedVm) -> Result<String, ProviderError> {
        let name = format!("VirtualMachine {}/{}", self.kubevirt.namespace, objects::vm_name(vm));
        let Some(machine) = self.own_machine(vm)? else {
            let what = format!("{name} is not there");
            return Err(
                ProviderError::new(Cause::Target, what).advise("see who removed it, then `drover resume`")
            );
        };
        if !is_wanted(&machine) {
            let leave = self.ready.lock().unwrap_or_else(PoisonError::into_inner).remove(&vm.vm.id);
            let strategy = match self.kubevirt.run_strategy {
                RunStrategy::Always => "Always",
                RunStrategy::RerunOnFailure => "RerunOnFailure",
            };
            let ready = format!("/metadata/annotations/{}", READY.replace('/', "~1"));
            // All or nothing: one that arrives late finds its leave gone.
            let operations = json!([
                {"op": "test", "path": ready, "value": leave.unwrap_or_default()},
                {"op": "remove", "path": ready},
                {"op": "replace", "path": "/spec/runStrategy", "value": strategy},
            ]);
            self.change_machine(vm, Change::Operations, &operations).map_err(failed)?;
        }
        let until = Instant::now() + START_WITHIN;
        loop {
            let found = self.get(Kind::Instance, &objects::vm_name(vm))?;
            let phase =
                found.as_ref().and_then(|it| it["status"]["phase"].as_str()).unwrap_or("not made yet");
            if phase == "Running" {
                return Ok(format!("started: {name} runs"));
            }
            if Instant::now() >= until || self.about.stop.is_set() {
                let status = self.own_machine(vm)?.unwrap_or_default();
                let status = status["status"]["printableStatus"].as_str().unwrap_or("unknown").to_string();
                let what =
                    format!("{name} did not come to run: its instance is {phase}, its status {status}");
                return Err(ProviderError::new(Cause::Target, what).advise(
                    "see `kubectl describe` of the VirtualMachineInstance and its virt-launcher pod",
                ));
            }
            std::thread::sleep(LOOK);
        }
    }

    fn is_running(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        let Some(machine) = self.own_machine(vm)? else { return Ok(false) };
        if !is_wanted(&machine) && objects::annotation(&machine, READY).is_some() {
            // A start that is still on its way finds its leave gone.
            let body = json!({"metadata": {"annotations": {READY: null}}});
            self.change_machine(vm, Change::Merge, &body).map_err(failed)?;
        }
        self.runs(vm)
    }

    fn stop(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        let Some(machine) = self.own_machine(vm)? else { return Ok(()) };
        if is_wanted(&machine) {
            let body = json!({"spec": {"runStrategy": HALTED}});
            self.change_machine(vm, Change::Merge, &body).map_err(failed)?;
        }
        let until = Instant::now() + STOP_WITHIN;
        while self.has_instance(vm)? {
            if Instant::now() >= until {
                let what =
                    format!("{} did not go off within {} s", objects::vm_name(vm), STOP_WITHIN.as_secs());
                return Err(ProviderError::new(Cause::Target, what)
                    .advise("see its virt-launcher pod, or stop it by `virtctl stop --force`"));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn remove_images(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        if self.runs(vm)? {
            let what = format!("{} runs, and its disks are not removed", objects::vm_name(vm));
            return Err(
                ProviderError::new(Cause::Target, what).advise("stop it, then the same command again")
            );
        }
        self.release(vm)?;
        let cluster = self.cluster().map_err(failed)?;
        let mut left = Vec::new();
        for disk in &vm.disks {
            let name = objects::claim_name(disk);
            let path = objects::path(&self.kubevirt, Kind::Claim, &name);
            let owner = vm.owner_of(&self.about.plan, disk);
            let found = cluster.get(&path).map_err(failed)?.filter(|claim| objects::is_of(claim, &owner));
            if let Some(claim) = found {
                let uid = objects::uid(&claim);
                cluster.delete(&path, uid).map_err(failed)?;
                match wait_until_gone(&cluster, &path, |it| objects::uid(it) == uid) {
                    // Somebody's pod has it.
                    Err(error) if error.kind == KubeErrorKind::Conflict => left.push(error.what),
                    gone => gone.map_err(failed)?,
                }
            }
            super::here::remove(&self.journal(disk, vm))?;
        }
        all_removed(&left)
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        // What is resumed later makes its pod anew; until then nothing is to run in the cluster for it.
        for hand in std::mem::take(&mut *self.hands()).into_values() {
            hand.site.leave();
            let _ = hand.worker.dismiss();
        }
    }
}
