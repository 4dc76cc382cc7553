//! What every target provider must do, as ordinary code for the tests of any crate. Panics on a fault.
//!
//! Whole plans of one VM run through the engine, from a source in memory to the provider. They die or fail at each call of it, and are
//! then gone on with or given up, each time by a provider that is made anew, as a new process would make it. See
//! `docs/dev/target-providers.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use drover_disk::{Buffer, Disk, MemDisk, Request, Work};
use drover_mover::{StopSignal, TransferOptions};
use drover_plan::{Plan, PlannedDisk, PlannedVm};
use drover_types::ByteSpan;
use drover_types::inventory::{PowerState, Snapshot, Vm};

use crate::{
    AskedDisk, Board, Cause, Converted, Frozen, NoObserver, OpenedSource, OpenedTarget, ProviderError,
    RunOutcome, Runner, SourceProvider, Started, Store, SystemClock, TargetProvider, VmState, cancel,
};

/// A target provider to be held against the suite.
pub trait Subject {
    /// The provider as a new process makes it.
    fn provider(&self) -> Box<dyn TargetProvider + '_>;

    /// A VM of one disk that comes to it, named `subject`; running at the source.
    fn planned(&self) -> PlannedVm;

    /// The plan: its name and its budgets count.
    fn plan(&self) -> &Plan;

    /// All that is at the target: names of images, definitions, machines.
    fn content(&self) -> BTreeSet<String>;

    /// Puts something of somebody else's where the VM would lie, or takes it away.
    fn somebodys(&self, is_there: bool);

    /// Makes all of the target fail from now on, or not any more. Says whether it can.
    fn break_down(&self, is_broken: bool) -> bool;

    /// Whether each run takes a second or more: then one thing goes wrong at each call, each kind by turns, and the plan is gone on with or
    /// given up by turns.
    fn is_slow(&self) -> bool {
        false
    }
}

/// Holds a provider against everything that the engine takes for granted.
///
/// # Panics
/// On the first thing that is wrong.
pub fn check_target(subject: &dyn Subject, state: &Path) {
    let stage = Stage { subject, state };
    stage.looking_touches_nothing();
    stage.what_is_somebodys_is_refused();
    let calls = stage.a_plan_arrives_once();
    stage.what_was_written_is_found_again();
    let all = [How::DiesAfter, How::DiesBefore, How::FailsBefore, How::FailsAfter];
    let is_slow = subject.is_slow();
    for (nth, call) in calls.iter().enumerate() {
        let ways = if is_slow { std::slice::from_ref(&all[nth / 2 % all.len()]) } else { &all[..] };
        for &how in ways {
            let why = format!("{how:?} call {nth}, {call}");
            if !is_slow || nth % 2 == 0 {
                stage.goes_on(Trouble { nth, how }, &why);
            }
            if !is_slow || nth % 2 == 1 {
                // An image that holds nothing, and that no journal tells of yet, may stay: it may be anybody's.
                stage.is_given_up(Trouble { nth, how }, *call == "open disk", &why);
            }
        }
    }
    stage.a_target_that_is_away_costs_nothing();
}

struct Stage<'a> {
    subject: &'a dyn Subject,
    state: &'a Path,
}

impl Stage<'_> {
    fn looking_touches_nothing(&self) {
        let (before, vm) = (self.subject.content(), self.subject.planned());
        let provider = self.subject.provider();
        let fine = |what: &str, done: Result<(), ProviderError>| {
            done.unwrap_or_else(|error| panic!("{what} of a VM that never came: {}", crate::chain(&error)));
        };
        assert!(!provider.is_running(&vm).unwrap_or(true), "a VM that never came runs");
        assert!(!provider.has_image(&vm.disks[0], &vm).unwrap_or(true), "a VM that never came has an image");
        fine("stop", provider.stop(&vm));
        fine("undo of the definition", provider.undo_define(&vm));
        fine("removal of the images", provider.remove_images(&vm));
        assert_eq!(self.subject.content(), before, "looking touched something");
    }

    fn what_is_somebodys_is_refused(&self) {
        self.subject.somebodys(true);
        let before = self.subject.content();
        let run = Run::new(self, "foreign");
        let outcome = run.run(None);
        assert_eq!(outcome.failed.len(), 1, "what is somebody's was not refused");
        assert!(run.source.is_on(), "the source was switched off, or not on again");
        assert_eq!(self.subject.content(), before, "what is somebody's was touched");
        run.cancel();
        assert_eq!(self.subject.content(), before, "what is somebody's was removed");
        self.subject.somebodys(false);
    }

    /// Gives the calls that were made.
    fn a_plan_arrives_once(&self) -> Vec<&'static str> {
        let before = self.subject.content();
        let run = Run::new(self, "arrives");
        let calls = Mutex::new(Vec::new());
        assert!(run.run(Some((&calls, None))).is_complete(), "{:?}", run.why());
        run.has_arrived("at once");
        let there = self.subject.content();
        assert!(run.run(None).is_complete());
        assert_eq!(self.subject.content(), there, "a second run changed something");
        run.clear(&before, "after it arrived");
        calls.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// An image that is written to in part is the same one to the next process.
    fn what_was_written_is_found_again(&self) {
        let (before, vm) = (self.subject.content(), self.subject.planned());
        let (disk, size) = (&vm.disks[0], vm.disks[0].disk.capacity_bytes);
        let failed = |error: ProviderError| -> String { crate::chain(&error) };
        let open = || -> Result<OpenedTarget, String> {
            let provider = self.subject.provider();
            provider.prepare(&vm).map_err(failed)?;
            provider.open_disk(disk, &vm, size).map_err(failed)
        };
        let first = open().unwrap_or_else(|why| panic!("opened first: {why}"));
        assert!(first.is_new, "an image that was just made is not new");
        let tag = first.tag.clone();
        drop(first);
        // Nothing was written, and no journal tells of it: it may be gone on with.
        let second = open().unwrap_or_else(|why| panic!("opened again: {why}"));
        assert_eq!(second.tag, tag, "the same image has another tag");
        drop(second);
        let provider = self.subject.provider();
        assert!(provider.has_image(disk, &vm).unwrap_or(false), "the image is not found");
        let read = provider.open_for_verify(disk, &vm).unwrap_or_else(|error| panic!("{}", failed(error)));
        assert!(read.size() >= size, "the image is too small");
        drop((read, provider));
        // As a run that is given up right after.
        let run = Run::new(self, "again");
        assert!(run.run(None).is_complete(), "{:?}", run.why());
        run.clear(&before, "after it was resumed");
    }

    fn goes_on(&self, trouble: Trouble, why: &str) {
        let before = self.subject.content();
        let run = Run::new(self, "goes-on");
        run.run(Some((&Mutex::default(), Some(trouble))));
        run.as_if_killed();
        run.is_on_one_side(why);
        assert!(run.run(None).is_complete(), "{why}: {:?}", run.why());
        run.has_arrived(why);
        run.clear(&before, why);
    }

    fn is_given_up(&self, trouble: Trouble, may_leave_a_blank: bool, why: &str) {
        let before = self.subject.content();
        let run = Run::new(self, "given-up");
        run.run(Some((&Mutex::default(), Some(trouble))));
        run.as_if_killed();
        let left = run.cancel();
        run.is_on_one_side(why);
        let runs = self.runs();
        if run.state() == VmState::Done || runs {
            run.clear(&before, why);
            return;
        }
        assert_eq!(left, Vec::<String>::new(), "{why}: left behind");
        assert!(run.source.is_on(), "{why}: given up, and the source is off");
        if may_leave_a_blank && self.subject.content() != before {
            drop(run);
            let run = Run::new(self, "blank");
            assert!(run.run(None).is_complete(), "{why}: a blank image is in the way: {:?}", run.why());
            run.clear(&before, why);
        }
        assert_eq!(self.subject.content(), before, "{why}: given up, and not all is as it was");
    }

    fn a_target_that_is_away_costs_nothing(&self) {
        let before = self.subject.content();
        if !self.subject.break_down(true) {
            return;
        }
        let run = Run::new(self, "away");
        assert_eq!(run.run(None).failed.len(), 1, "a target that is away was not missed");
        assert!(run.source.is_on(), "the source was switched off for nothing");
        assert!(
            self.subject.provider().is_running(&self.subject.planned()).is_err(),
            "nobody can tell what runs there"
        );
        self.subject.break_down(false);
        assert!(run.run(None).is_complete(), "{:?}", run.why());
        run.has_arrived("after it was away");
        run.clear(&before, "after it was away");
    }

    fn runs(&self) -> bool {
        let told = self.subject.provider().is_running(&self.subject.planned());
        told.unwrap_or_else(|error| panic!("whether it runs: {}", crate::chain(&error)))
    }
}

/// A plan with a state of its own.
struct Run<'a> {
    stage: &'a Stage<'a>,
    source: Source,
    store: Store,
    _folder: Folder,
}

/// Removed at its end.
struct Folder(std::path::PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // What is left of a test's state harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl<'a> Run<'a> {
    fn new(stage: &'a Stage<'a>, name: &str) -> Run<'a> {
        let folder = Folder(stage.state.join(name));
        let store = Store::open(&folder.0).unwrap_or_else(|error| panic!("{error}"));
        Run { stage, source: Source::new(&stage.subject.planned()), store, _folder: folder }
    }

    fn run(&self, trouble: Option<(&Mutex<Vec<&'static str>>, Option<Trouble>)>) -> RunOutcome {
        let target = self.stage.subject.provider();
        let calls = Mutex::default();
        let (calls, trouble) = trouble.unwrap_or((&calls, None));
        let target = Watched { target: target.as_ref(), calls, trouble };
        let runner = Runner {
            plan: &self.stage.subject.plan().name,
            text: "",
            folder: Path::new("/"),
            vms: &[self.stage.subject.planned()],
            limits: &self.stage.subject.plan().limits,
            rate_limit: &self.stage.subject.plan().target.rate_limit,
            heed_limits: &|_| {},
            foresight: None,
            waves: &[],
            wave_hooks: &BTreeMap::new(),
            schedule: None,
            source: &self.source,
            target: &target,
            store: &self.store,
            observer: &NoObserver,
            board: &Board::default(),
            options: &TransferOptions::default(),
            stop: &StopSignal::default(),
            leave: &|| Ok(()),
            may_begin: &|_| Ok(()),
            clock: &SystemClock,
            facts: &crate::RunFacts::default(),
            hooks: &crate::NoHooks,
        };
        runner.run().unwrap_or_else(|error| panic!("{error}"))
    }

    fn row(&self) -> crate::VmRow {
        let rows = self.store.vms(&self.stage.subject.plan().name).unwrap_or_else(|error| panic!("{error}"));
        rows.into_iter().next().unwrap_or_else(|| panic!("the plan has no VM"))
    }

    fn state(&self) -> VmState {
        self.row().state
    }

    fn why(&self) -> Option<String> {
        self.row().error
    }

    /// Takes back what the engine noted of a VM whose thread panicked: a process that is killed notes nothing.
    fn as_if_killed(&self) {
        let row = self.row();
        if row.error.as_ref().is_some_and(|error| error.starts_with("internal error")) {
            let plan = &self.stage.subject.plan().name;
            self.store
                .end_vm(plan, &row.id, VmState::Running, None)
                .unwrap_or_else(|error| panic!("{error}"));
        }
    }

    fn cancel(&self) -> Vec<String> {
        let target = self.stage.subject.provider();
        let given_up = cancel(&self.stage.subject.plan().name, &self.store, &self.source, target.as_ref());
        given_up.unwrap_or_else(|error| panic!("{error}")).left
    }

    fn is_on_one_side(&self, why: &str) {
        assert!(!(self.source.is_on() && self.stage.runs()), "{why}: the guest runs on both sides");
    }

    fn has_arrived(&self, why: &str) {
        let vm = self.stage.subject.planned();
        assert_eq!(self.stage.runs(), vm.start, "{why}: whether it runs");
        assert!(!self.source.is_on(), "{why}: the source runs");
        let provider = self.stage.subject.provider();
        // A guest that runs holds its image.
        if vm.start {
            provider.stop(&vm).unwrap_or_else(|error| panic!("{why}: stopping it: {}", crate::chain(&error)));
            assert!(!self.stage.runs(), "{why}: it was stopped and runs");
        }
        let image = provider.open_for_verify(&vm.disks[0], &vm);
        let image = image.unwrap_or_else(|error| panic!("{why}: {}", crate::chain(&error)));
        let (found, wanted) = (content_of(image.as_ref()), self.source.disk.content());
        assert!(found.get(..wanted.len()) == Some(&wanted[..]), "{why}: the image is not what was copied");
    }

    /// Takes all away by the provider's own means.
    fn clear(&self, before: &BTreeSet<String>, why: &str) {
        let vm = self.stage.subject.planned();
        let provider = self.stage.subject.provider();
        let removed = provider
            .stop(&vm)
            .and_then(|()| provider.undo_define(&vm))
            .and_then(|()| provider.undo_define(&vm))
            .and_then(|()| provider.remove_images(&vm));
        removed.unwrap_or_else(|error| panic!("{why}: removing all: {}", crate::chain(&error)));
        assert_eq!(self.stage.subject.content(), *before, "{why}: what was made is not what is removed");
    }
}

fn content_of(disk: &dyn Disk) -> Vec<u8> {
    let mut lane = disk.open_lane().unwrap_or_else(|error| panic!("{error}"));
    let mut content = Vec::new();
    while (content.len() as u64) < disk.size() {
        let length = (disk.size() - content.len() as u64).min(PIECE_BYTES);
        let span = ByteSpan::new(content.len() as u64, length);
        lane.submit(Request { id: 0, span, work: Work::Read(Buffer::zeroed(length as usize)) });
        let done = lane.complete().unwrap_or_else(|| panic!("a read that was asked for never ends"));
        done.result.unwrap_or_else(|error| panic!("{error}"));
        let Work::Read(buffer) = done.work else { panic!("a read gives its bytes") };
        content.extend_from_slice(&buffer);
    }
    content
}

const PIECE_BYTES: u64 = 1 << 20;

/// How a call goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    DiesBefore,
    DiesAfter,
    FailsBefore,
    FailsAfter,
}

/// Which call of the target goes wrong, counted from 0, and how.
#[derive(Clone, Copy, Debug)]
struct Trouble {
    nth: usize,
    how: How,
}

/// A provider whose calls are counted, and one of which goes wrong.
struct Watched<'a> {
    target: &'a dyn TargetProvider,
    calls: &'a Mutex<Vec<&'static str>>,
    trouble: Option<Trouble>,
}

impl Watched<'_> {
    fn call<T>(
        &self,
        name: &'static str,
        work: impl FnOnce(&dyn TargetProvider) -> Result<T, ProviderError>,
    ) -> Result<T, ProviderError> {
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        let nth = calls.len();
        calls.push(name);
        drop(calls);
        let failure = || ProviderError::new(Cause::Target, format!("{name} fails as ordered"));
        match self.trouble.filter(|trouble| trouble.nth == nth).map(|trouble| trouble.how) {
            None => work(self.target),
            Some(How::DiesBefore) => panic!("dies before {name}"),
            Some(How::FailsBefore) => Err(failure()),
            Some(How::DiesAfter) => {
                let _done = work(self.target)?;
                panic!("dies after {name}")
            }
            Some(How::FailsAfter) => work(self.target).and_then(|_| Err(failure())),
        }
    }
}

impl TargetProvider for Watched<'_> {
    fn prepare(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.call("prepare", |target| target.prepare(vm))
    }

    fn open_disk(
        &self,
        disk: &PlannedDisk,
        vm: &PlannedVm,
        size: u64,
    ) -> Result<OpenedTarget, ProviderError> {
        self.call("open disk", |target| target.open_disk(disk, vm, size))
    }

    fn journal(&self, disk: &PlannedDisk, vm: &PlannedVm) -> std::path::PathBuf {
        self.target.journal(disk, vm)
    }

    fn has_image(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<bool, ProviderError> {
        self.target.has_image(disk, vm)
    }

    fn open_for_verify(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<Arc<dyn Disk>, ProviderError> {
        self.target.open_for_verify(disk, vm)
    }

    fn convert(&self, vm: &PlannedVm) -> Result<Converted, ProviderError> {
        self.call("convert", |target| target.convert(vm))
    }

    fn forget_conversion(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.target.forget_conversion(vm)
    }

    fn define(&self, vm: &PlannedVm) -> Result<String, ProviderError> {
        self.call("define", |target| target.define(vm))
    }

    fn settle(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.target.settle(vm)
    }

    fn undo_define(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.target.undo_define(vm)
    }

    fn make_ready(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.call("make ready", |target| target.make_ready(vm))
    }

    fn start(&self, vm: &PlannedVm) -> Result<Started, ProviderError> {
        self.call("start", |target| target.start(vm))
    }

    fn is_running(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        self.target.is_running(vm)
    }

    fn stop(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.target.stop(vm)
    }

    fn remove_images(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.target.remove_images(vm)
    }

    fn give_back(&self, vm: &PlannedVm) -> Result<Vec<String>, ProviderError> {
        self.target.give_back(vm)
    }

    fn forget(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        self.target.forget(vm)
    }
}

/// One VM in memory that runs until it is asked to shut down.
struct Source {
    vm: Mutex<Vm>,
    disk: MemDisk,
}

impl Source {
    fn new(planned: &PlannedVm) -> Source {
        let content = drover_disk::conformance::pattern(planned.disks[0].disk.capacity_bytes);
        Source { vm: Mutex::new(planned.vm.clone()), disk: MemDisk::new("subject", content) }
    }

    fn change(&self, change: impl FnOnce(&mut Vm)) {
        change(&mut self.vm.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn is_on(&self) -> bool {
        self.vm.lock().unwrap_or_else(PoisonError::into_inner).power == PowerState::On
    }
}

impl SourceProvider for Source {
    fn vm(&self, _: &str) -> Result<Vm, ProviderError> {
        Ok(self.vm.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn ask_shutdown(&self, _: &Vm) -> Result<(), ProviderError> {
        Ok(())
    }

    fn wait_until_off(&self, vm: &Vm, _: Duration) -> Result<(), ProviderError> {
        self.power_off(vm)
    }

    fn power_off(&self, _: &Vm) -> Result<(), ProviderError> {
        self.change(|vm| vm.power = PowerState::Off);
        Ok(())
    }

    fn power_on(&self, _: &Vm) -> Result<(), ProviderError> {
        self.change(|vm| vm.power = PowerState::On);
        Ok(())
    }

    fn create_snapshot(&self, _: &Vm, name: &str, description: &str) -> Result<Frozen, ProviderError> {
        let (id, name, description) = ("snapshot-1".to_string(), name.to_string(), description.to_string());
        let snapshot = Snapshot { id: id.clone(), name, description, created_s: None };
        self.change(|vm| vm.snapshots.push(snapshot));
        Ok(Frozen { snapshot: id, ..Frozen::default() })
    }

    fn remove_snapshot(&self, _: &Vm, snapshot: &str) -> Result<(), ProviderError> {
        self.change(|vm| vm.snapshots.retain(|it| it.id != snapshot));
        Ok(())
    }

    fn has_snapshot(&self, _: &Vm, snapshot: &str) -> Result<bool, ProviderError> {
        let vm = self.vm.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(vm.snapshots.iter().any(|it| it.id == snapshot))
    }

    fn open_disk(&self, _: &AskedDisk<'_>) -> Result<OpenedSource, ProviderError> {
        Ok(OpenedSource { disk: Arc::new(self.disk.clone()), notes: Vec::new(), late: None })
    }
}
