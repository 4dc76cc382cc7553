//! KubeVirt as a target: disks are persistent volume claims, written by the agent of a worker pod that has them, and machines are
//! `VirtualMachine`s. What stands in the way is found in [`survey`].
//!
//! An object is this plan's own if its annotation says so, and names this installation of drover: another's may have the same plan. All
//! else of its name is refused, and never removed. Which cluster is meant is on [`record`].

mod record;
mod survey;
mod upload;
mod worker;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use drover_agent::Site;
use drover_agent::limits::{Own, followed};
use drover_agent::sites::SiteError;
use drover_agent::trust::Peer;
use drover_disk::Disk;
use drover_engine::{Cause, Converted, OneWay, OpenedTarget, ProviderError, Started, TargetProvider};
use drover_kubevirt::objects::{self, Kind, READY};
use drover_kubevirt::vm::{self, About, HALTED};
use drover_kubevirt::{Access, Change, Cluster, KubeError, KubeErrorKind};
use drover_link::RateLimit;
use drover_mover::{StopSignal, journal_in};
use drover_plan::{Kubevirt, PlannedDisk, PlannedVm, Problem, RunStrategy};
use drover_qemu::{Lack, VmFolder};
use drover_types::guest::Inside;
use serde_json::{Value, json};

use crate::conversion::{self, Converter, DueInside, Served};
use crate::errors::{qemu_error, site_error};
use crate::here;
use crate::machine::{boot_bus, machine_of};
use crate::setting::{Setting, all_removed};
use crate::there::{self, There};
use upload::Way;
use worker::{Worker, wait_until_gone};

/// How long a machine may take to come to run, or to go off after its guest was asked.
const START_WITHIN: Duration = Duration::from_secs(300);
const STOP_WITHIN: Duration = Duration::from_secs(240);
/// What the ends of all worker pods may take when drover ends.
const LEAVE_WITHIN: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(500);
/// A KVM that does not run a guest shows it in this time.
const WATCH: Duration = Duration::from_secs(8);

/// A namespace of a cluster, for one plan.
pub struct Claims {
    about: Setting,
    kubevirt: Kubevirt,
    cluster: Mutex<Option<Arc<Cluster>>>,
    /// By VM, its worker and the disks that are reached through it.
    hands: Mutex<HashMap<String, Arc<Hand>>>,
    /// VMs whose recorded cluster was found to be this one.
    asked: Mutex<HashSet<String>>,
    /// How the disks of VMs come into claims, once it was looked at.
    way: Mutex<Option<Way>>,
    /// By VM, whether its disks are uploaded.
    uploaded: Mutex<HashMap<String, bool>>,
    /// Tells this run of drover from others.
    run: String,
    /// By VM, whether this run had its pod.
    had: Mutex<HashMap<String, Arc<AtomicBool>>>,
    /// Whether addresses of pods were found not to answer here.
    is_apart: Arc<AtomicBool>,
    /// Held while claims are made.
    making: Mutex<()>,
    limit: OnceLock<Arc<RateLimit>>,
    /// By VM, the leave to start it.
    ready: Mutex<HashMap<String, String>>,
    converter: Converter,
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
            asked: Mutex::default(),
            way: Mutex::default(),
            uploaded: Mutex::default(),
            run: drover_mover::new_epoch(0).to_string(),
            had: Mutex::default(),
            is_apart: Arc::default(),
            making: Mutex::default(),
            limit: OnceLock::new(),
            ready: Mutex::default(),
            converter: Converter::new(about),
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

    /// The cluster, if it is the one that a VM went to. What another one says of the VM is nothing to go by.
    fn cluster_of(&self, vm: &PlannedVm) -> Result<Arc<Cluster>, ProviderError> {
        let cluster = self.cluster().map_err(failed)?;
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if !asked.contains(&vm.vm.id) {
            // Nothing is recorded before the VM is prepared, and nothing is made.
            let Some(recorded) = record::cluster(&self.cluster_record(vm))? else { return Ok(cluster) };
            let found = match cluster.uid_of(&recorded.namespace) {
                Err(error) if error.kind == KubeErrorKind::Missing => None,
                found => Some(found.map_err(failed)?),
            };
            recorded.check(&vm.target_name, cluster.server(), found.as_deref())?;
            asked.insert(vm.vm.id.clone());
        }
        Ok(cluster)
    }

    fn cluster_record(&self, vm: &PlannedVm) -> PathBuf {
        let owner = objects::owner_of_vm(vm, &self.about.plan);
        journal_in(self.about.state(), &format!("kubevirt cluster of {owner}"))
    }

    /// What this host keeps of a VM's conversion.
    fn folder(&self, vm: &PlannedVm) -> PathBuf {
        self.about.state().join("kubevirt").join(&self.about.plan).join(&vm.target_name)
    }

    /// Says that drover made the claim with this UID: what it holds without a journal is nobody's.
    fn made_record(&self, disk: &PlannedDisk, vm: &PlannedVm) -> PathBuf {
        self.journal(disk, vm).with_extension("made")
    }

    /// The plan, and whose it is.
    fn plan(&self) -> Result<String, ProviderError> {
        let identity = self.about.host.identity().map_err(internal)?;
        Ok(objects::plan_of(&self.about.plan, &identity.fingerprint().to_string()))
    }

    fn get(&self, vm: &PlannedVm, kind: Kind, name: &str) -> Result<Option<Value>, ProviderError> {
        self.cluster_of(vm)?.get(&objects::path(&self.kubevirt, kind, name)).map_err(failed)
    }

    /// The same of KubeVirt's: where it is proven not to be served, there is none.
    fn find(&self, vm: &PlannedVm, kind: Kind) -> Result<Option<Value>, ProviderError> {
        let path = objects::path(&self.kubevirt, kind, &objects::vm_name(vm));
        self.cluster_of(vm)?.find(&path, objects::KUBEVIRT).map_err(failed)
    }

    fn hands(&self) -> MutexGuard<'_, HashMap<String, Arc<Hand>>> {
        self.hands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hand(&self, vm: &PlannedVm) -> Result<Arc<Hand>, ProviderError> {
        let mut hands = self.hands();
        if let Some(hand) = hands.get(&vm.vm.id) {
            return Ok(hand.clone());
        }
        let identity = self.about.host.identity().map_err(internal)?;
        let limit = self.limit()?;
        let worker = Arc::new(Worker {
            cluster: self.cluster_of(vm)?,
            kubevirt: self.kubevirt.clone(),
            vm: vm.clone(),
            plan: self.plan()?,
            identity,
            limit,
            stop: self.about.stop.clone(),
            say: self.about.host.say,
            run: self.run.clone(),
            had: self
                .had
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(vm.vm.id.clone())
                .or_default()
                .clone(),
            is_apart: self.is_apart.clone(),
            way: Mutex::default(),
            forward: Mutex::default(),
            turn: Mutex::default(),
            dialled: Mutex::default(),
        });
        let dialled = worker.clone();
        let site = Site::new(&self.kubevirt.site(), move || dialled.dial());
        let there = There::at(site.clone(), &self.about, self.knowing(worker.clone())).map_err(internal)?;
        worker.watch(&site)?;
        let hand = Arc::new(Hand { worker, site, there });
        hands.insert(vm.vm.id.clone(), hand.clone());
        Ok(hand)
    }

    /// How much the plan may send in a second.
    fn limit(&self) -> Result<Arc<RateLimit>, ProviderError> {
        let host = &self.about.host;
        let folder = host.folder().map_err(internal)?;
        let key = host.identity().map_err(internal)?.fingerprint();
        let limit = self.limit.get_or_init(|| {
            let nobody = Peer::new("kubevirt", key, Vec::new(), 0);
            let limits = self.about.rate_limit.clone();
            let sharers = self.about.sharers.clone();
            followed(folder, &nobody, Own { limits, sharers, ..Own::none(host.say) })
        });
        Ok(limit.clone())
    }

    /// How a claim is told from another of its name: by what the server calls it, whatever node it is on.
    fn knowing(&self, worker: Arc<Worker>) -> Box<there::Knowing> {
        let records: HashMap<String, PathBuf> = worker
            .vm
            .disks
            .iter()
            .map(|disk| (objects::claim_name(disk), self.made_record(disk, &worker.vm)))
            .collect();
        Box::new(move |disk| {
            let name = objects::claim_name(disk);
            let found =
                worker.cluster.get(&objects::path(&worker.kubevirt, Kind::Claim, &name)).map_err(failed)?;
            let claim = found.filter(|claim| objects::is_of(claim, &worker.vm.owner_of(&worker.plan, disk)));
            let Some(claim) = claim else { return Ok(None) };
            let uid = objects::uid(&claim).to_string();
            let is_fresh = match records.get(&name) {
                Some(record) => record::read(record)?.as_deref() == Some(&uid),
                None => false,
            };
            Ok(Some((format!("claim {uid}"), is_fresh)))
        })
    }

    /// Ends the pod of a VM: afterwards nothing of drover's has its volumes.
    fn release(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        if self.is_uploaded(vm)? {
            return Ok(());
        }
        let hand = self.hand(vm)?;
        self.hands().remove(&vm.vm.id);
        hand.site.leave();
        hand.worker.remove().map_err(failed)
    }

    /// The claim of a disk, if it is this plan's; refused if it is somebody else's.
    fn claim_of(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<Option<Value>, ProviderError> {
        let name = objects::claim_name(disk);
        let Some(claim) = self.get(vm, Kind::Claim, &name)? else { return Ok(None) };
        if !objects::is_of(&claim, &vm.owner_of(&self.plan()?, disk)) {
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
            .advise("choose another target_name or namespace, or remove it if it may go; if another drover made it (another host, user or --state), go on there")
    }

    /// Makes the claims that are not there. All of a VM's, since its pod has them all.
    fn ensure_claims(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        let cluster = self.cluster_of(vm)?;
        let plan = self.plan()?;
        // Disks of a VM are opened at the same time.
        let _turn = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        for disk in &vm.disks {
            let Some(claim) = self.claim_of(disk, vm)? else {
                let claim = self.fresh_claim(&cluster, vm, disk, &plan).map_err(failed)?;
                let all = objects::path(&self.kubevirt, Kind::Claim, "");
                let made = cluster.create(&all, &claim, false).map_err(failed)?;
                record::write(&self.made_record(disk, vm), objects::uid(&made))?;
                continue;
            };
            let name = objects::claim_name(disk);
            if objects::is_going(&claim) {
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

    /// A claim that is not there yet. Where the plan does not say who may have it at a time, CDI does, if it is there and may be asked.
    fn fresh_claim(
        &self,
        cluster: &Cluster,
        vm: &PlannedVm,
        disk: &PlannedDisk,
        plan: &str,
    ) -> Result<Value, KubeError> {
        let mut claim = objects::claim(vm, disk, &self.kubevirt, plan);
        if let Some(class) = disk.pool.as_ref().filter(|_| self.kubevirt.access_mode.is_none()) {
            let profile = cluster.get(&format!("/apis/cdi.kubevirt.io/v1beta1/storageprofiles/{class}"));
            let profile = match profile {
                Err(error) if matches!(error.kind, KubeErrorKind::NotServed | KubeErrorKind::Denied) => None,
                profile => profile?,
            };
            let modes =
                profile.and_then(|profile| objects::profile_modes(&profile, self.kubevirt.volume_mode));
            if let Some(modes) = modes {
                claim["spec"]["accessModes"] = json!(modes);
            }
        }
        Ok(claim)
    }

    /// The machine of this plan, if it is there; refused if somebody else's is.
    fn machine(&self, vm: &PlannedVm) -> Result<Option<Value>, ProviderError> {
        match self.find(vm, Kind::Machine)? {
            Some(found) if !objects::is_of(&found, &objects::owner_of_vm(vm, &self.plan()?)) => {
                Err(self.taken("VirtualMachine", &objects::vm_name(vm), &found))
            }
            found => Ok(found),
        }
    }

    /// Sees that the guest of an instance goes on running; gives for how long it did.
    fn watch(&self, vm: &PlannedVm, instance: &Value) -> Result<Duration, ProviderError> {
        let began = Instant::now();
        while began.elapsed() < WATCH && !self.about.stop.is_set() {
            std::thread::sleep(LOOK);
            // A cluster that does not answer says nothing of the guest.
            let Ok(now) = self.find(vm, Kind::Instance) else { continue };
            if let Some(why) = objects::why_stopped(instance, now.as_ref()) {
                let (name, after) = (objects::vm_name(vm), began.elapsed().as_secs());
                let status = self.own_machine(vm).ok().flatten().unwrap_or_default();
                let status = status["status"]["printableStatus"].as_str().unwrap_or("unknown").to_string();
                let what = format!("{name} stopped {after} s after its start: {why}; its status is {status}");
                return Err(ProviderError::new(Cause::Target, what)
                    .advise("see `kubectl logs` of its virt-launcher pod, container compute"));
            }
        }
        Ok(began.elapsed())
    }

    /// As [`Claims::machine`], but somebody else's counts as none.
    fn own_machine(&self, vm: &PlannedVm) -> Result<Option<Value>, ProviderError> {
        let owner = objects::owner_of_vm(vm, &self.plan()?);
        Ok(self.find(vm, Kind::Machine)?.filter(|found| objects::is_of(found, &owner)))
    }

    /// Whether an instance of its name may be its guest and has not ended. Also without a machine: one that was removed may leave it running.
    fn has_instance(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        let Some(instance) = self.find(vm, Kind::Instance)? else { return Ok(false) };
        let owner = objects::owner_of_vm(vm, &self.plan()?);
        let somebodys = self.find(vm, Kind::Machine)?.filter(|machine| !objects::is_of(machine, &owner));
        Ok(objects::is_live(&instance) && !somebodys.is_some_and(|it| objects::is_owned_by(&instance, &it)))
    }

    /// Whether it runs, or will because somebody wants it.
    fn runs(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        let is_wanted = self.own_machine(vm)?.is_some_and(|machine| is_wanted(&machine));
        Ok(is_wanted || self.has_instance(vm)?)
    }

    fn must_not_run(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        if !self.runs(vm)? {
            return Ok(());
        }
        let what = format!("{} runs in the cluster, and its disks are not written to", objects::vm_name(vm));
        Err(ProviderError::new(Cause::Target, what).advise("stop it there, then `drover resume`"))
    }

    fn change_machine(&self, vm: &PlannedVm, change: Change, body: &Value) -> Result<(), ProviderError> {
        let path = objects::path(&self.kubevirt, Kind::Machine, &objects::vm_name(vm));
        self.cluster_of(vm)?.change(&path, change, body).map(drop).map_err(failed)
    }

    fn object(&self, vm: &PlannedVm, plan: &str) -> Value {
        let root = |disk: &PlannedDisk| {
            let replay = drover_mover::recorded(&self.journal(disk, vm)).ok()?;
            Some((disk.index, replay.complete?.to_string()))
        };
        let roots: Vec<(usize, String)> = vm.disks.iter().filter_map(root).collect();
        let about = About { plan, origin: &self.about.origin, roots: &roots };
        vm::virtual_machine(vm, &self.kubevirt, &about)
    }

    /// What stands in the way of converting a VM that was looked into.
    pub fn check_inside(&self, vm: &PlannedVm, inside: &Inside, stop: &StopSignal) -> Option<Problem> {
        let boot_bus = boot_bus(&machine_of(vm, &self.about.target, &self.about.origin));
        let due = DueInside::of(vm, boot_bus, inside)?;
        match self.is_uploaded(vm) {
            Ok(false) => self.converter.check_inside(vm, boot_bus, inside, stop),
            Ok(true) => Some(due.without_converter(vm, &upload::no_conversion())),
            Err(error) => Some(survey::of_vm(vm, error)),
        }
    }

    /// What converts none of its VMs of which only a look into their disks tells whether they are to be.
    pub fn lack_if_due(&self, vm: &PlannedVm) -> Option<Lack> {
        let boot_bus = boot_bus(&machine_of(vm, &self.about.target, &self.about.origin));
        if !conversion::may_be_due(vm, boot_bus) {
            return None;
        }
        match self.is_uploaded(vm) {
            Ok(true) => Some(upload::no_conversion()),
            // What cannot be told was told by the survey, as an error.
            Ok(false) | Err(_) => conversion::lack_here(),
        }
    }

    /// All that can refuse a VM later, looked at while it still runs. Touches nothing.
    fn look_ahead(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        match self.is_uploaded(vm)? {
            true => self.check_upload(vm)?,
            false => {
                let machine = machine_of(vm, &self.about.target, &self.about.origin);
                self.converter.check(vm, boot_bus(&machine))?;
            }
        }
        let machine = self.machine(vm)?;
        if let Some(instance) = self.find(vm, Kind::Instance)?
            && !machine.is_some_and(|machine| objects::is_owned_by(&instance, &machine))
        {
            return Err(self.taken("VirtualMachineInstance", &objects::vm_name(vm), &instance));
        }
        // Recorded before the first claim is made.
        let is_begun = record::cluster(&self.cluster_record(vm))?.is_some();
        for disk in &vm.disks {
            if self.claim_of(disk, vm)?.is_some() && !is_begun {
                let (namespace, name) = (&self.kubevirt.namespace, objects::claim_name(disk));
                let what = format!(
                    "a persistent volume claim {namespace}/{name} is there already: a plan of this name made it, and was forgotten since"
                );
                return Err(ProviderError::new(Cause::Target, what)
                    .advise("choose another target_name or namespace, or remove it if it may go"));
            }
        }
        Ok(())
    }
}

/// Whether KubeVirt is to run it.
fn is_wanted(machine: &Value) -> bool {
    machine["spec"]["runStrategy"].as_str().is_some_and(|strategy| strategy != HALTED)
        || machine["spec"]["running"] == true
}

fn internal(error: SiteError) -> ProviderError {
    site_error(Cause::Internal, &error)
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
        KubeErrorKind::Missing
        | KubeErrorKind::Conflict
        | KubeErrorKind::Refused
        | KubeErrorKind::Server
        | KubeErrorKind::TooLarge => (Cause::Target, "see `kubectl describe` of it, then `drover resume`"),
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
        self.look_ahead(vm)?;
        let path = self.cluster_record(vm);
        if record::cluster(&path)?.is_none() {
            let cluster = self.cluster().map_err(failed)?;
            let (namespace, uid) = cluster.identity(&self.kubevirt.namespace).map_err(failed)?;
            record::Recorded { namespace, uid }.write(&path)?;
        }
        Ok(())
    }

    fn is_one_way(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        self.is_uploaded(vm)
    }

    fn one_way(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<Box<dyn OneWay>, ProviderError> {
        self.must_not_run(vm)?;
        self.upload_of(disk, vm)
    }

    fn open_disk(
        &self,
        disk: &PlannedDisk,
        vm: &PlannedVm,
        size: u64,
    ) -> Result<OpenedTarget, ProviderError> {
        self.must_not_run(vm)?;
        self.ensure_claims(vm)?;
        let hand = self.hand(vm)?;
        // Not by the link, so that what keeps the pod from running is told as it is.
        hand.worker.ensure().map_err(failed)?;
        hand.there.open_disk(disk, vm, size)
    }

    fn journal(&self, disk: &PlannedDisk, _: &PlannedVm) -> std::path::PathBuf {
        there::journal(self.about.state(), &self.kubevirt.site(), disk)
    }

    fn has_image(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<bool, ProviderError> {
        let (found, plan) = (self.get(vm, Kind::Claim, &objects::claim_name(disk))?, self.plan()?);
        Ok(found.is_some_and(|claim| objects::is_of(&claim, &vm.owner_of(&plan, disk))))
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
        if self.is_uploaded(vm)? {
            return Ok(Converted::Skipped(upload::NOT_AGAIN.into()));
        }
        let hand = self.hand(vm)?;
        hand.worker.ensure().map_err(failed)?;
        let identities = vm.disks.iter().map(|disk| hand.there.identity(disk)).collect::<Result<_, _>>()?;
        let machine = machine_of(vm, &self.about.target, &self.about.origin);
        let (folder, stop) = (self.folder(vm), &self.about.stop);
        conversion::convert(&Served { target: self, vm, machine, folder, identities, stop }, vm)
    }

    fn forget_conversion(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        drover_qemu::forget_conversion(&VmFolder::new(self.folder(vm))).map_err(qemu_error)
    }

    fn define(&self, vm: &PlannedVm) -> Result<String, ProviderError> {
        let (name, namespace) = (objects::vm_name(vm), &self.kubevirt.namespace);
        if self.machine(vm)?.is_some_and(|machine| is_wanted(&machine)) {
            return Ok(format!("defined: VirtualMachine {namespace}/{name} is there and started"));
        }
        self.release(vm)?;
        let cluster = self.cluster_of(vm)?;
        // From now on a guest may write to them.
        vm.disks.iter().try_for_each(|disk| here::remove(&self.made_record(disk, vm)))?;
        let path = objects::path(&self.kubevirt, Kind::Machine, &name);
        cluster.apply(&path, &self.object(vm, &self.plan()?), false).map_err(failed)?;
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
        let cluster = self.cluster_of(vm)?;
        let path = objects::path(&self.kubevirt, Kind::Machine, &name);
        let uid = objects::uid(&machine);
        cluster.delete(&path, uid).map_err(failed)?;
        wait_until_gone(&cluster, &path, |it| objects::uid(it) == uid).map_err(failed)
    }

    fn make_ready(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        let leave = drover_mover::new_epoch(0).to_string();
        let body = json!({"metadata": {"annotations": {READY: leave}}});
        self.change_machine(vm, Change::Merge, &body)?;
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).insert(vm.vm.id.clone(), leave);
        Ok(())
    }

    fn start(&self, vm: &PlannedVm) -> Result<Started, ProviderError> {
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
            self.change_machine(vm, Change::Operations, &operations)?;
        }
        let until = Instant::now() + START_WITHIN;
        loop {
            let found = self.find(vm, Kind::Instance)?.filter(|it| objects::is_its_guest(it, &machine));
            let phase =
                found.as_ref().and_then(|it| it["status"]["phase"].as_str()).unwrap_or("not made yet");
            if let Some(instance) = found.as_ref().filter(|_| phase == "Running") {
                let watched = self.watch(vm, instance)?;
                return Ok(Started { line: format!("{name} runs"), watched });
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
        if let Some(machine) = self.own_machine(vm)?
            && !is_wanted(&machine)
            && objects::annotation(&machine, READY).is_some()
        {
            // A start that is still on its way finds its leave gone.
            let body = json!({"metadata": {"annotations": {READY: null}}});
            self.change_machine(vm, Change::Merge, &body)?;
        }
        self.runs(vm)
    }

    fn stop(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        if self.own_machine(vm)?.is_some_and(|machine| is_wanted(&machine)) {
            let body = json!({"spec": {"runStrategy": HALTED}});
            self.change_machine(vm, Change::Merge, &body)?;
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
        self.forget_conversion(vm)?;
        let (cluster, plan) = (self.cluster_of(vm)?, self.plan()?);
        let mut left = Vec::new();
        for disk in &vm.disks {
            let name = objects::claim_name(disk);
            let path = objects::path(&self.kubevirt, Kind::Claim, &name);
            let owner = vm.owner_of(&plan, disk);
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
            here::remove(&self.journal(disk, vm))?;
            here::remove(&self.made_record(disk, vm))?;
        }
        all_removed(&left)?;
        self.uploaded.lock().unwrap_or_else(PoisonError::into_inner).remove(&vm.vm.id);
        // Nothing of it is there any more: it may go to another cluster.
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).remove(&vm.vm.id);
        here::remove(&self.cluster_record(vm))
    }

    fn forget(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        vm.disks.iter().try_for_each(|disk| here::remove(&self.made_record(disk, vm)))?;
        self.forget_conversion(vm)?;
        here::remove(&self.cluster_record(vm))
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        // What is resumed later makes its pod anew; until then nothing is to run in the cluster for it.
        let (until, mut stay, mut is_away) = (Instant::now() + LEAVE_WITHIN, Vec::new(), false);
        for hand in std::mem::take(&mut *self.hands()).into_values() {
            hand.site.leave();
            hand.worker.cluster.finish_by(until);
            if is_away {
                stay.push(hand.worker.name());
            } else if let Err(error) = hand.worker.dismiss() {
                is_away = error.kind == KubeErrorKind::Unreachable;
                stay.push(format!("{} ({error})", hand.worker.name()));
            }
        }
        if !stay.is_empty() {
            (self.about.host.say)(&format!(
                "worker pods stay in namespace {}: {}; `drover resume` or `drover cancel` looks after them",
                self.kubevirt.namespace,
                stay.join(", ")
            ));
        }
    }
}
