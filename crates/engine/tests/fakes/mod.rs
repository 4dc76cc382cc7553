//! Providers in memory that hold the engine to its invariants at every call.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drover_copy::RetryPolicy;
use drover_disk::memory::{Effect, Nth};
use drover_disk::{Disk, DiskErrorKind, DiskOp, Features, MemDisk};
use drover_engine::{
    Answer, AskedDisk, Attachment, Board, Cause, ChangeTracking, Clock, Converted, EngineError, Frozen,
    HookResult, HookRunner, Observer, OpenedSource, OpenedTarget, POST_START, PRE_CUTOVER, PowerWatch,
    ProviderError, RunFacts, RunOutcome, Runner, SNAPSHOT_MARK, Schedule, SourceProvider, Started, Store,
    TargetPlace, TargetProvider, Urgency, VmRow, VmState, begun,
};
use drover_mover::{StopSignal, TransferOptions, journal_path};
use drover_plan::{
    AFTER_WAVE, BEFORE_WAVE, Begun, Check, Hook, HookPoint, Others, Plan, PlannedDisk, PlannedVm, as_begun,
    resolve,
};
use drover_types::BLOCK_BYTES;
use drover_types::inventory::{About, Inventory, PowerState, Snapshot, ToolsState, Vm, VmDisk};

/// Calls that can be made to go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The call fails and does nothing.
    Fails,
    /// The call does its work and fails nevertheless.
    FailsAfter,
    /// The call does its work, and its answer is lost.
    Unanswered,
    /// The call does its work, and a stop cuts it short.
    Stopped,
    /// The process dies before the call does anything.
    DiesBefore,
    /// The process dies when it has done its work.
    DiesAfter,
}

/// What a source leaves out of what it says of snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Untold {
    #[default]
    Nothing,
    /// That there are any.
    All,
    /// Their ids.
    Ids,
}

mod at_work;
mod clock;
mod guests;
mod source;
mod target;
pub mod warm;
mod watch;

#[allow(unused_imports, reason = "no suite uses all of them")]
pub use watch::*;

use at_work::AtWork;
use clock::JumpingClock;

type Before = Box<dyn FnOnce(&mut State) + Send>;

/// What both sides hold.
#[derive(Default)]
pub struct State {
    pub vms: BTreeMap<String, Vm>,
    pub running_at_target: BTreeSet<String>,
    /// How long the target watches a guest that it starts.
    pub watched: Duration,
    pub defined: BTreeSet<String>,
    /// What was defined last, by name.
    pub machines: BTreeMap<String, PlannedVm>,
    pub images: BTreeMap<PathBuf, MemDisk>,
    pub tracks: warm::Tracks,
    pub shutdowns: guests::Shutdowns,
    snapshots_made: u32,
    /// How often a VM was switched on.
    switched_on: BTreeMap<String, u32>,
    /// The source keeps no history of power.
    pub forgets_power: bool,
    /// The source does not say of a VM that it has no more that it is gone.
    pub hides_what_is_gone: bool,
    /// What the source leaves out of every answer about a VM's snapshots.
    pub untold: Untold,
    /// Files that are attached to be read, by VM.
    attached: BTreeSet<(String, String)>,
    /// What guests wrote while a snapshot froze their disk: disk, offset, bytes.
    deltas: Vec<(String, u64, Vec<u8>)>,
    /// What goes wrong, with which call, and how many such calls go well before.
    troubles: Vec<(&'static str, u32, Trouble)>,
    /// What others do just before a call.
    hooks: Vec<(&'static str, Before)>,
    /// Every call and the VM it was about.
    pub calls: Vec<(&'static str, String)>,
    /// What hooks and checks answer next, by point; they pass if there is nothing.
    pub answers: BTreeMap<&'static str, Vec<Answer>>,
    /// What hooks and checks were told.
    pub told: Vec<serde_json::Value>,
    /// Ids of VMs that something stands against when they begin.
    pub doubted: BTreeSet<String>,
}

/// Both sides of a migration.
pub struct World {
    state: Mutex<State>,
    pub sources: BTreeMap<String, MemDisk>,
    pub folder: tempfile::TempDir,
    pub store: Store,
    pub plan: Plan,
    pub text: String,
    pub at_work: AtWork,
    pub clock: JumpingClock,
    /// The schedule that its runs share with those of other worlds.
    pub schedule: Option<Arc<Schedule>>,
    /// The address of its source, and the UUID of what runs there.
    pub site: (String, String),
    /// Another run was put in the place of those of this world.
    pub is_given_away: AtomicBool,
    /// Bytes that are free at the target, whatever is written there; absent: nobody knows.
    pub free_bytes: Option<u64>,
    /// Whether the plan may come to more there than is free.
    pub overcommits: bool,
    /// Nothing more can be written to the images of VMs that are begun from now on.
    pub is_full: AtomicBool,
    /// VMs that go to a place which tells what is free there when all other VMs have arrived, or after half a minute.
    pub silent: Vec<String>,
    /// Whether it kept silent until then.
    pub was_silent: AtomicBool,
    /// How long a run waits for a source that is away.
    pub patience: Duration,
    /// Until when the source answers no question about VMs.
    pub away_until_ms: AtomicI64,
    /// Questions that it did not answer.
    pub missed: AtomicU64,
}

pub const PLAN: &str = "p";

/// Calls that a source which is away does not answer.
const AWAY: [&str; 5] = ["look", "ask for snapshot", "remove snapshot", "detach", "power on"];

impl World {
    /// A running VM with two disks, and one that is off, both to be started at the target.
    pub fn new() -> World {
        World::with(&[vm("on", PowerState::On, 2), vm("off", PowerState::Off, 1)], "start: true")
    }

    /// These VMs under a plan with these lines more.
    pub fn with(vms: &[Vm], lines: &str) -> World {
        let folder = folder_in_memory();
        let text = format!(
            "version: 1\nname: {PLAN}\nsource: {{type: vsphere, endpoint: vc, user: u, password_env: P}}\n\
             target: {{type: qemu, folder: {}}}\npower_off: shutdown\nvms: [{{glob: '*'}}]\n{lines}\n",
            folder.path().display()
        );
        let sources = vms.iter().flat_map(disks_of).collect();
        let vms = vms.iter().map(|vm| (vm.id.clone(), vm.clone())).collect();
        let state = Mutex::new(State { vms, ..State::default() });
        let store = Store::open(&folder.path().join("state")).unwrap();
        let plan = Plan::parse(&text).unwrap();
        World {
            state,
            sources,
            folder,
            store,
            plan,
            text,
            at_work: AtWork::default(),
            clock: JumpingClock::default(),
            schedule: None,
            site: Default::default(),
            is_given_away: AtomicBool::new(false),
            free_bytes: None,
            overcommits: false,
            is_full: AtomicBool::new(false),
            silent: Vec::new(),
            was_silent: AtomicBool::new(false),
            patience: Duration::from_millis(50),
            away_until_ms: AtomicI64::new(0),
            missed: AtomicU64::new(0),
        }
    }

    pub fn planned(&self) -> Vec<PlannedVm> {
        self.planned_with(&[], Others::Selected)
    }

    /// What the next hook of a point, or the next check, answers.
    pub fn answer(&self, point: &'static str, result: HookResult, message: &str) {
        self.state().answers.entry(point).or_default().push(Answer::new(result, message));
    }

    /// What the last hook of a point was told.
    pub fn told(&self, point: &str) -> Option<serde_json::Value> {
        self.state().told.iter().rfind(|told| told["point"] == point).cloned()
    }

    fn outside(&self, document: &serde_json::Value, stop: &StopSignal) -> Answer {
        let more = [PRE_CUTOVER, POST_START, BEFORE_WAVE, AFTER_WAVE];
        let points = HookPoint::ALL.into_iter().map(HookPoint::name).chain(more);
        let point = points.into_iter().find(|point| document["point"] == *point).unwrap();
        let name = document["vm"]["name"].as_str();
        let about = name.or(document["wave"]["name"].as_str()).unwrap();
        let answered = self.call(point, about, |state| {
            state.told.push(document.clone());
            if let Some(name) = name {
                state.check_point(point, document["vm"]["id"].as_str().unwrap(), name);
            }
            let next = state.answers.get_mut(point).filter(|next| !next.is_empty());
            next.map_or(Answer::new(HookResult::Passed, ""), |next| next.remove(0))
        });
        match answered {
            _ if stop.is_set() => Answer::new(HookResult::Interrupted, "stopped"),
            Ok(answer) => answer,
            Err(error) => Answer::new(HookResult::Failed, error.what),
        }
    }

    /// As `drover resume` plans it.
    pub fn resumed(&self) -> Vec<PlannedVm> {
        self.planned_with(&begun(&self.store, PLAN, Others::LeftOut).unwrap(), Others::LeftOut)
    }

    fn planned_with(&self, begun: &[Begun], others: Others) -> Vec<PlannedVm> {
        let mut vms: Vec<Vm> = self.state().vms.values().cloned().collect();
        // As the program does: snapshots of drover's own do not stop a plan from going on.
        vms.iter_mut().for_each(|vm| vm.snapshots.retain(|it| !it.description.starts_with(SNAPSHOT_MARK)));
        let about = About { is_vcenter: true, ..About::default() };
        let mut inventory = Inventory { about, vms, ..Inventory::default() };
        as_begun(&mut inventory, begun, others);
        let resolution = resolve(&self.plan, &inventory);
        assert!(resolution.is_ok(), "{:#?}", resolution.problems);
        resolution.vms
    }

    fn doubt(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        match self.state().doubted.contains(&vm.vm.id) {
            true => {
                let what = format!("{} is suspended", vm.vm.name);
                Err(ProviderError::new(Cause::Plan, what).advise("resume it"))
            }
            false => Ok(()),
        }
    }

    fn leave(&self) -> Result<(), ProviderError> {
        match self.is_given_away.load(Ordering::SeqCst) {
            true => Err(ProviderError::new(Cause::Cancelled, "another goes on with it")),
            false => Ok(()),
        }
    }

    pub fn run(&self, observer: &dyn Observer) -> RunOutcome {
        self.run_until(observer, &StopSignal::default())
    }

    pub fn run_until(&self, observer: &dyn Observer, stop: &StopSignal) -> RunOutcome {
        let outcome = self.run_plan(PLAN, &self.planned(), observer, stop).unwrap();
        assert_eq!(self.at_work.now(), 0, "a disk is still open");
        assert!(self.sources.values().all(|disk| disk.counts().writes + disk.counts().zeros == 0));
        outcome
    }

    pub fn run_plan(
        &self,
        plan: &str,
        vms: &[PlannedVm],
        observer: &dyn Observer,
        stop: &StopSignal,
    ) -> Result<RunOutcome, EngineError> {
        let retry = RetryPolicy { give_up_after: self.patience, ..RetryPolicy::default() };
        // Few requests in flight, so that a stop finds most of a small disk not yet asked for.
        let options = TransferOptions {
            lanes: Some(2),
            depth: Some(2),
            request_bytes: Some(65536),
            retry,
            ..TransferOptions::default()
        };
        let runner = Runner {
            plan,
            text: &self.text,
            folder: Path::new("/"),
            facts: &RunFacts {
                source: self.site.0.clone(),
                source_uuid: self.site.1.clone(),
                ..RunFacts::default()
            },
            vms,
            limits: &self.plan.limits,
            rate_limit: &self.plan.target.rate_limit,
            heed_limits: &|_| {},
            foresight: None,
            waves: &self.plan.waves(),
            wave_hooks: &self.plan.wave_hooks(),
            schedule: self.schedule.clone(),
            source: self,
            target: self,
            store: &self.store,
            observer,
            board: &Board::default(),
            options: &options,
            stop,
            leave: &|| self.leave(),
            may_begin: &|vm| self.doubt(vm),
            clock: &self.clock,
            hooks: self,
        };
        runner.run()
    }

    /// Takes back what the engine noted about a VM whose thread panicked: a process that is killed
    /// notes nothing.
    pub fn as_if_killed(&self) {
        for row in self.store.vms(PLAN).unwrap() {
            if row.error.is_some_and(|error| error.starts_with("internal error")) {
                self.store.end_vm(PLAN, &row.id, VmState::Running, None).unwrap();
            }
        }
    }

    /// Every read of every source disk takes this long.
    pub fn slow_down(&self, time: Duration) {
        self.sources
            .values()
            .for_each(|disk| disk.add_fault(DiskOp::Read, Nth::Every(1), Effect::Delay(time)));
    }

    /// Reads of every source disk are late from the sixth on: whoever looks then finds the copy in its middle.
    pub fn slow_down_in_the_middle(&self) {
        let late = Effect::Delay(Duration::from_millis(1500));
        self.sources.values().for_each(|disk| disk.add_fault(DiskOp::Read, Nth::From(6), late));
    }

    /// Waits until a copy is in its middle.
    pub fn wait_for_the_middle(&self) {
        while self.read().values().sum::<u64>() < 8 * 65536 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn set_trouble(&self, call: &'static str, trouble: Trouble) {
        self.set_trouble_at(call, 1, trouble);
    }

    /// Trouble with the nth such call from now on.
    pub fn set_trouble_at(&self, call: &'static str, nth: u32, trouble: Trouble) {
        self.state().set_trouble_at(call, nth, trouble);
    }

    pub fn trouble_struck(&self) -> bool {
        self.state().troubles.is_empty()
    }

    /// Someone else does something just before the next such call.
    pub fn before(&self, call: &'static str, hook: impl FnOnce(&mut State) + Send + 'static) {
        self.state().hooks.push((call, Box::new(hook)));
    }

    /// How often a call was made, about any VM.
    pub fn calls(&self, call: &str) -> usize {
        self.state().calls.iter().filter(|(name, _)| *name == call).count()
    }

    /// How often a call was made about a VM.
    pub fn calls_about(&self, call: &str, vm: &str) -> usize {
        self.state().calls.iter().filter(|(name, about)| *name == call && about == vm).count()
    }

    pub fn row(&self, id: &str) -> VmRow {
        self.store.vm(PLAN, id).unwrap().unwrap()
    }

    pub fn is_defined(&self, name: &str) -> bool {
        self.state().defined.contains(name)
    }

    /// Bytes that the journals say are on the target, by source disk.
    pub fn recorded(&self) -> BTreeMap<String, u64> {
        let recorded = |path: &Path| {
            let Ok(file) = std::fs::File::open(journal_path(path)) else { return 0 };
            drover_copy::replay(&mut std::io::BufReader::new(file))
                .map_or(0, |replay| replay.leaves.known_blocks() * BLOCK_BYTES)
        };
        let planned = self.planned();
        let disks = planned.iter().flat_map(|vm| vm.disks.iter().map(move |disk| (vm, disk)));
        disks.map(|(vm, disk)| (format!("{}/{}", vm.vm.name, disk.disk.key), recorded(&disk.path))).collect()
    }

    /// Bytes read of each source disk so far.
    pub fn read(&self) -> BTreeMap<String, u64> {
        self.sources.iter().map(|(name, disk)| (name.clone(), disk.counts().bytes_read)).collect()
    }

    pub fn set_power(&self, id: &str, power: PowerState) {
        self.state().set_power(id, power);
    }

    pub fn change(&self, id: &str, change: impl FnOnce(&mut Vm)) {
        change(self.state().vms.get_mut(id).unwrap());
    }

    /// A guest writes. As in a real source, what is below a snapshot does not change until it is removed.
    pub fn guest_writes(&self, vm: &str, disk: i32, offset: u64, bytes: &[u8]) {
        let mut state = self.state();
        state.guest_write(&format!("{vm}/{disk}"), offset, bytes);
        self.merge(&mut state);
    }

    fn merge(&self, state: &mut State) {
        let frozen: Vec<String> = state
            .vms
            .values()
            .filter(|vm| !vm.snapshots.is_empty())
            .map(|vm| format!("{}/", vm.name))
            .collect();
        state.deltas.retain(|(disk, offset, bytes)| {
            let stays = frozen.iter().any(|vm| disk.starts_with(vm));
            if !stays {
                // A disk that was added is not in anybody's plan.
                if let Some(source) = self.sources.get(disk) {
                    source.overwrite(*offset, bytes);
                    source.set_identity("changed");
                }
            }
            stays
        });
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
            let runs = self.runs_at_target(&vm.target_name);
            assert_eq!(runs, vm.start, "{why}: whether {} runs at the target", vm.vm.name);
            assert!(self.is_defined(&vm.target_name), "{why}: {} has no definition", vm.vm.name);
            assert_eq!(self.row(&vm.vm.id).state, VmState::Done, "{why}: {}", vm.vm.name);
        }
        assert_eq!(self.own_snapshots(), 0, "{why}: a snapshot is left");
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_away(&self) -> bool {
        let until_ms = self.away_until_ms.load(Ordering::SeqCst);
        // The clock goes on with each look.
        until_ms > 0 && self.clock.now_ms() < until_ms
    }

    /// Does a call's work, or what was ordered instead.
    fn call<T>(
        &self,
        name: &'static str,
        about: &str,
        work: impl FnOnce(&mut State) -> T,
    ) -> Result<T, ProviderError> {
        let mut state = self.state();
        state.calls.push((name, about.to_string()));
        if let Some(at) = state.hooks.iter().position(|(call, _)| *call == name) {
            let (_, hook) = state.hooks.remove(at);
            hook(&mut state);
        }
        if AWAY.contains(&name) && self.is_away() {
            self.missed.fetch_add(1, Ordering::SeqCst);
            return Err(ProviderError { cause: Cause::Connection, ..ordered(name) });
        }
        let trouble = state.next_trouble(name);
        match trouble {
            Some(Trouble::Fails) => return Err(ordered(name)),
            Some(Trouble::FailsAfter) => {
                work(&mut state);
                return Err(ordered(name));
            }
            Some(Trouble::Unanswered) => {
                work(&mut state);
                return Err(ProviderError { cause: Cause::Connection, ..ordered(name) });
            }
            Some(Trouble::Stopped) => {
                work(&mut state);
                return Err(ProviderError { cause: Cause::Cancelled, ..ordered(name) });
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
            let runs_here = |vm: &Vm| vm.name == *name && vm.power != PowerState::Off;
            assert!(!state.vms.values().any(runs_here), "{name} runs on two sides");
        }
        Ok(result)
    }
}

impl State {
    fn next_trouble(&mut self, call: &str) -> Option<Trouble> {
        let at = self.troubles.iter().position(|(name, ..)| *name == call)?;
        if self.troubles[at].1 == 0 {
            return Some(self.troubles.remove(at).2);
        }
        self.troubles[at].1 -= 1;
        None
    }

    fn new_snapshot_id(&mut self) -> String {
        self.snapshots_made += 1;
        format!("snapshot-{}", self.snapshots_made)
    }

    pub fn set_trouble_at(&mut self, call: &'static str, nth: u32, trouble: Trouble) {
        self.troubles.push((call, nth - 1, trouble));
    }

    pub fn set_power(&mut self, id: &str, power: PowerState) {
        let vm = self.vms.get_mut(id).unwrap();
        if power == PowerState::On && vm.power != PowerState::On {
            *self.switched_on.entry(id.to_string()).or_default() += 1;
        }
        self.vms.get_mut(id).unwrap().power = power;
    }
}

fn ordered(call: &str) -> ProviderError {
    ProviderError::new(Cause::Source, format!("{call} fails as ordered")).advise("order something else")
}

/// A folder in memory where there is one: stores and journals flush with every step, and no test cuts the power.
fn folder_in_memory() -> tempfile::TempDir {
    let in_memory = tempfile::tempdir_in("/dev/shm");
    in_memory.or_else(|_| tempfile::tempdir()).unwrap()
}

/// The source's disks, which refuse to be written.
fn disks_of(vm: &Vm) -> Vec<(String, MemDisk)> {
    let disk = |disk: &VmDisk| {
        let content = (0..disk.capacity_bytes).map(|at| (at / 4096 % 251) as u8 ^ disk.key as u8).collect();
        let name = format!("{}/{}", vm.name, disk.key);
        let source = MemDisk::new(&name, content);
        let features = Features { writable: false, ..source.features() };
        (name, source.with_features(features))
    };
    vm.disks.iter().map(disk).collect()
}

pub fn vm(name: &str, power: PowerState, disks: i32) -> Vm {
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

impl State {
    /// Where the guest is when a hook or a check is called.
    fn check_point(&self, point: &str, id: &str, name: &str) {
        let (power, runs_there) = (self.vms[id].power, self.running_at_target.contains(name));
        match point {
            "before_shutdown" | PRE_CUTOVER => {
                assert_eq!((power, runs_there), (PowerState::On, false), "{point}")
            }
            "after_shutdown" | "after_copy" | "before_start" => {
                assert_eq!((power, runs_there), (PowerState::Off, false), "{point}")
            }
            "after_start" | POST_START => {
                assert_eq!((power, runs_there), (PowerState::Off, true), "{point}")
            }
            "before_copy" => assert!(!runs_there, "{point}"),
            _ => {}
        }
    }
}

impl HookRunner for World {
    fn call(&self, _: &Hook, document: &serde_json::Value, stop: &StopSignal) -> Answer {
        self.outside(document, stop)
    }

    fn ask(&self, _: &Check, document: &serde_json::Value, stop: &StopSignal) -> Answer {
        self.outside(document, stop)
    }
}
