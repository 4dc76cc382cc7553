//! Providers in memory that hold the engine to its invariants at every call.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drover_copy::RetryPolicy;
use drover_disk::{Disk, MemDisk};
use drover_engine::{
    Board, Cause, Converted, Event, Observer, OpenedSource, OpenedTarget, ProviderError, RunOutcome, Runner,
    SNAPSHOT_MARK, SourceProvider, Store, TargetProvider, VmState,
};
use drover_mover::{StopSignal, TransferOptions, journal_path};
use drover_plan::{Plan, PlannedDisk, PlannedVm, resolve};
use drover_types::inventory::{About, Inventory, PowerState, Snapshot, ToolsState, Vm, VmDisk};

/// Calls that can be made to go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The call fails and does nothing.
    Fails,
    /// The process dies before the call does anything.
    DiesBefore,
    /// The process dies when it has done its work.
    DiesAfter,
}

#[derive(Default)]
struct State {
    vms: BTreeMap<String, Vm>,
    running_at_target: BTreeSet<String>,
    defined: BTreeSet<String>,
    images: BTreeMap<PathBuf, MemDisk>,
    snapshots_made: u32,
    trouble: Option<(&'static str, Trouble)>,
}

/// Both sides of a migration.
pub struct World {
    state: Mutex<State>,
    pub sources: BTreeMap<String, MemDisk>,
    pub folder: tempfile::TempDir,
    pub store: Store,
    pub plan: Plan,
}

pub const PLAN: &str = "p";

impl World {
    /// A running VM with two disks, and one that is off, both to be started at the target.
    pub fn new() -> World {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(
            "version: 1\nname: {PLAN}\nsource: {{type: vsphere, endpoint: vc, user: u, password_env: P}}\n\
             target: {{type: qemu, folder: {}}}\npower_off: shutdown\nstart: true\nvms: [{{glob: '*'}}]\n",
            folder.path().display()
        );
        let vms = [vm("on", PowerState::On, 2), vm("off", PowerState::Off, 1)];
        let mut sources = BTreeMap::new();
        for vm in &vms {
            for disk in &vm.disks {
                let content: Vec<u8> = (0..disk.capacity_bytes).map(|at| (at / 4096 % 251) as u8).collect();
                let name = format!("{}/{}", vm.name, disk.key);
                let source = MemDisk::new(&name, content);
                sources.insert(name, source);
            }
        }
        let state =
            State { vms: vms.into_iter().map(|vm| (vm.id.clone(), vm)).collect(), ..State::default() };
        let store = Store::open(&folder.path().join("state")).unwrap();
        World { state: Mutex::new(state), sources, folder, store, plan: Plan::parse(&text).unwrap() }
    }

    pub fn planned(&self) -> Vec<PlannedVm> {
        let mut vms: Vec<Vm> = self.state().vms.values().cloned().collect();
        // As the program does: snapshots of drover's own do not stop a plan from going on.
        vms.iter_mut().for_each(|vm| vm.snapshots.retain(|it| !it.description.starts_with(SNAPSHOT_MARK)));
        let about = About { is_vcenter: true, ..About::default() };
        let resolution = resolve(&self.plan, &Inventory { about, vms, ..Inventory::default() });
        assert!(resolution.is_ok(), "{:#?}", resolution.problems);
        resolution.vms
    }

    pub fn run(&self, observer: &dyn Observer) -> RunOutcome {
        self.run_until(observer, &StopSignal::default())
    }

    pub fn run_until(&self, observer: &dyn Observer, stop: &StopSignal) -> RunOutcome {
        let retry = RetryPolicy { give_up_after: Duration::from_millis(50), ..RetryPolicy::default() };
        let options = TransferOptions { request_bytes: Some(65536), retry, ..TransferOptions::default() };
        let runner = Runner {
            plan: PLAN,
            text: "",
            folder: Path::new("/"),
            vms: &self.planned(),
            limits: &self.plan.limits,
            source: self,
            target: self,
            store: &self.store,
            observer,
            board: &Board::default(),
            options: &options,
            stop,
        };
        runner.run().unwrap()
    }

    /// Takes back what the engine noted about a VM whose thread panicked: a process that is killed
    /// notes nothing.
    pub fn as_if_killed(&self) {
        for row in self.store.vms(PLAN).unwrap() {
            if row.error.is_some_and(|error| error.starts_with("a defect of drover")) {
                self.store.end_vm(PLAN, &row.id, VmState::Running, None).unwrap();
            }
        }
    }

    pub fn set_trouble(&self, call: &'static str, trouble: Trouble) {
        self.state().trouble = Some((call, trouble));
    }

    pub fn trouble_struck(&self) -> bool {
        self.state().trouble.is_none()
    }

    pub fn power(&self, id: &str) -> PowerState {
        self.state().vms[id].power
    }

    pub fn set_power(&self, id: &str, power: PowerState) {
        self.state().vms.get_mut(id).unwrap().power = power;
    }

    pub fn change(&self, id: &str, change: impl FnOnce(&mut Vm)) {
        change(self.state().vms.get_mut(id).unwrap());
    }

    pub fn own_snapshots(&self) -> usize {
        self.state().vms.values().map(|vm| vm.snapshots.len()).sum()
    }

    pub fn runs_at_target(&self, name: &str) -> bool {
        self.state().running_at_target.contains(name)
    }

    pub fn images(&self) -> Vec<(PathBuf, MemDisk)> {
        self.state().images.iter().map(|(path, disk)| (path.clone(), disk.clone())).collect()
    }

    /// Everything arrived: equal, off at the source, running at the target, nothing left behind.
    pub fn assert_arrived(&self, why: &str) {
        for vm in self.planned() {
            for disk in &vm.disks {
                let source = &self.sources[&format!("{}/{}", vm.vm.name, disk.disk.key)];
                let image = self.state().images[&disk.path].content();
                assert!(image == source.content(), "{why}: {} differs", disk.path.display());
            }
            assert_eq!(self.power(&vm.vm.id), PowerState::Off, "{why}: {} at the source", vm.vm.name);
            assert!(self.runs_at_target(&vm.target_name), "{why}: {} does not run at the target", vm.vm.name);
        }
        assert_eq!(self.own_snapshots(), 0, "{why}: a snapshot is left");
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does a call's work, or what was ordered instead.
    fn call<T>(&self, name: &'static str, work: impl FnOnce(&mut State) -> T) -> Result<T, ProviderError> {
        let mut state = self.state();
        let trouble = state.trouble.take_if(|(call, _)| *call == name).map(|(_, trouble)| trouble);
        match trouble {
            Some(Trouble::Fails) => {
                return Err(ProviderError::new(Cause::Source, format!("{name} fails as ordered")));
            }
            Some(Trouble::DiesBefore) => {
                drop(state);
                panic!("the process dies before {name}");
            }
            Some(Trouble::DiesAfter) => {
                work(&mut state);
                drop(state);
                panic!("the process dies after {name}");
            }
            None => {}
        }
        let result = work(&mut state);
        for name in &state.running_at_target {
            let at_source = state.vms.values().find(|vm| vm.name == *name).unwrap();
            assert_eq!(at_source.power, PowerState::Off, "{name} runs on two sides");
        }
        Ok(result)
    }
}

fn vm(name: &str, power: PowerState, disks: i32) -> Vm {
    let disk = |key| VmDisk {
        key,
        label: format!("Hard disk {}", key - 1999),
        capacity_bytes: 20 * 65536,
        ..VmDisk::default()
    };
    Vm {
        id: format!("vm-{name}"),
        name: name.into(),
        instance_uuid: format!("uuid-{name}"),
        host_id: "host-1".into(),
        power,
        tools: ToolsState::Running,
        change_tracking: true,
        disks: (2000..2000 + disks).map(disk).collect(),
        ..Vm::default()
    }
}

impl SourceProvider for World {
    fn vm(&self, id: &str) -> Result<Vm, ProviderError> {
        self.call("look", |state| state.vms[id].clone())
    }

    fn shutdown_guest(&self, vm: &Vm, _: Duration) -> Result<(), ProviderError> {
        self.call("shut down", |state| state.vms.get_mut(&vm.id).unwrap().power = PowerState::Off)
    }

    fn power_off(&self, vm: &Vm) -> Result<(), ProviderError> {
        self.call("power off", |state| state.vms.get_mut(&vm.id).unwrap().power = PowerState::Off)
    }

    fn power_on(&self, vm: &Vm) -> Result<(), ProviderError> {
        self.call("power on", |state| state.vms.get_mut(&vm.id).unwrap().power = PowerState::On)
    }

    fn create_snapshot(&self, vm: &Vm, name: &str, description: &str) -> Result<Snapshot, ProviderError> {
        self.call("create snapshot", |state| {
            state.snapshots_made += 1;
            let id = format!("snapshot-{}", state.snapshots_made);
            let vm = state.vms.get_mut(&vm.id).unwrap();
            assert_eq!(vm.power, PowerState::Off, "a running VM is frozen");
            let snapshot = Snapshot { id, name: name.into(), description: description.into() };
            vm.snapshots.push(snapshot.clone());
            snapshot
        })
    }

    fn remove_snapshot(&self, vm: &Vm, snapshot: &str) -> Result<(), ProviderError> {
        self.call("remove snapshot", |state| {
            let vm = state.vms.get_mut(&vm.id).unwrap();
            let own = |it: &Snapshot| it.id == snapshot && it.description.starts_with(SNAPSHOT_MARK);
            assert!(vm.snapshots.iter().any(own), "somebody else's snapshot is removed");
            vm.snapshots.retain(|it| it.id != snapshot);
        })
    }

    fn open_disk(
        &self,
        vm: &PlannedVm,
        disk: &PlannedDisk,
        snapshot: &str,
    ) -> Result<OpenedSource, ProviderError> {
        let name = format!("{}/{}", vm.vm.name, disk.disk.key);
        self.call("open source", |state| {
            assert!(
                state.vms[&vm.vm.id].snapshots.iter().any(|it| it.id == snapshot),
                "read without a snapshot"
            );
            OpenedSource { disk: Arc::new(self.sources[&name].clone()), notes: Vec::new() }
        })
    }
}

impl TargetProvider for World {
    fn prepare(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.call("prepare", |_| std::fs::create_dir_all(&vm.folder).unwrap())
    }

    fn open_disk(&self, disk: &PlannedDisk, _: &PlannedVm, size: u64) -> Result<OpenedTarget, ProviderError> {
        self.call("open target", |state| {
            let is_new = !state.images.contains_key(&disk.path);
            let name = disk.path.display().to_string();
            let image = state.images.entry(disk.path.clone()).or_insert_with(|| MemDisk::blank(&name, size));
            OpenedTarget { disk: Arc::new(image.clone()), tag: name, is_new, zeroed: is_new }
        })
    }

    fn open_for_verify(&self, disk: &PlannedDisk, _: &PlannedVm) -> Result<Arc<dyn Disk>, ProviderError> {
        self.call("open for verify", |state| Arc::new(state.images[&disk.path].clone()) as Arc<dyn Disk>)
    }

    fn convert(&self, _: &PlannedVm) -> Result<Converted, ProviderError> {
        self.call("convert", |_| Converted::Skipped("a fake".into()))
    }

    fn define(&self, vm: &PlannedVm) -> Result<String, ProviderError> {
        self.call("define", |state| {
            state.defined.insert(vm.target_name.clone());
            "defined".into()
        })
    }

    fn undo_define(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.call("undo define", |state| {
            state.defined.remove(&vm.target_name);
        })
    }

    fn start(&self, vm: &PlannedVm) -> Result<String, ProviderError> {
        self.call("start", |state| {
            assert!(state.defined.contains(&vm.target_name), "started without a definition");
            assert!(state.running_at_target.insert(vm.target_name.clone()), "started twice");
            "started".into()
        })
    }

    fn is_running(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        self.call("is running", |state| state.running_at_target.contains(&vm.target_name))
    }

    fn stop(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.call("stop", |state| {
            state.running_at_target.remove(&vm.target_name);
        })
    }

    fn remove_images(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.call("remove images", |state| {
            for disk in &vm.disks {
                state.images.remove(&disk.path);
                let _ = std::fs::remove_file(journal_path(&disk.path));
            }
        })
    }
}

/// Counts events, and dies at one of them.
pub struct DiesAt {
    seen: AtomicUsize,
    at: usize,
}

impl DiesAt {
    pub fn event(at: usize) -> DiesAt {
        DiesAt { seen: AtomicUsize::new(0), at }
    }

    pub fn seen(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }
}

impl Observer for DiesAt {
    fn event(&self, event: &Event) {
        // The run's own thread is not a VM's: only those die alone.
        if matches!(event, Event::PlanStarted { .. } | Event::PlanEnded { .. }) {
            return;
        }
        assert_ne!(self.seen.fetch_add(1, Ordering::SeqCst) + 1, self.at, "the process dies at {event:?}");
    }
}
