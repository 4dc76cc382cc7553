//! Runs all VMs of a plan, as many at a time as the budgets allow.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use drover_mover::{StopSignal, TransferOptions};
use drover_plan::schedule::{Budgets, Scheduler, VmIndex, Work};
use drover_plan::{Limits, PlannedVm};
use rustix::fs::{FlockOperation, flock};

use crate::error::{Cause, EngineError, ProviderError};
use crate::event::{Board, Event, Observer};
use crate::itinerary::{Context, Journey};
use crate::parallel::OnDrop;
use crate::provider::{SourceProvider, TargetProvider};
use crate::store::{PlanState, Store, VmState};

/// A rate sample is kept this often, and a request to stop is noticed as fast.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// A plan to be run.
pub struct Runner<'a> {
    /// Plan's name.
    pub plan: &'a str,
    /// Text of the plan file.
    pub text: &'a str,
    /// Folder that paths in it are relative to.
    pub folder: &'a Path,
    /// VMs.
    pub vms: &'a [PlannedVm],
    /// Budgets.
    pub limits: &'a Limits,
    /// Where from.
    pub source: &'a dyn SourceProvider,
    /// Where to.
    pub target: &'a dyn TargetProvider,
    /// State.
    pub store: &'a Store,
    /// Who watches.
    pub observer: &'a dyn Observer,
    /// Disks at work, for a display.
    pub board: &'a Board,
    /// Settings of the transfers.
    pub options: &'a TransferOptions,
    /// Stops the run.
    pub stop: &'a StopSignal,
}

/// How a run ended.
#[derive(Debug, Default)]
pub struct RunOutcome {
    /// VMs that arrived, in this run or before.
    pub done: usize,
    /// VMs that failed, with the cause of each.
    pub failed: Vec<(String, Cause)>,
    /// VMs not begun or stopped.
    pub unfinished: usize,
}

impl RunOutcome {
    /// Whether every VM arrived.
    pub fn is_complete(&self) -> bool {
        self.failed.is_empty() && self.unfinished == 0
    }
}

struct Ends {
    scheduler: Scheduler,
    failed: Vec<(String, Cause)>,
    running: usize,
}

impl Runner<'_> {
    /// Runs the plan, or goes on with it.
    ///
    /// # Errors
    /// If another process runs it or the state cannot be kept. A VM that fails is part of the outcome.
    pub fn run(&self) -> Result<RunOutcome, EngineError> {
        let _lock = PlanLock::take(self.store, self.plan)?;
        self.store.begin_plan(self.plan, self.text, self.folder)?;
        for vm in self.vms {
            let planned = serde_json::to_string(vm).unwrap_or_default();
            self.store.enter_vm(self.plan, &vm.vm.id, &vm.target_name, &planned)?;
        }
        let rows = self.store.vms(self.plan)?;
        let is_done =
            |vm: &&PlannedVm| rows.iter().any(|row| row.id == vm.vm.id && row.state == VmState::Done);
        let todo: Vec<&PlannedVm> = self.vms.iter().filter(|vm| !is_done(vm)).collect();
        let done_before = self.vms.len() - todo.len();
        self.observer.event(&Event::PlanStarted { plan: self.plan.into(), vms: todo.len(), done_before });
        todo.iter().for_each(|vm| self.board.add_capacity(vm.capacity_bytes()));
        let failed = self.run_vms(&todo);
        self.end(failed)
    }

    fn run_vms(&self, todo: &[&PlannedVm]) -> Vec<(String, Cause)> {
        let works = todo.iter().map(|vm| Work::from(*vm)).collect();
        let scheduler = Scheduler::new(works, Budgets::from(self.limits));
        let ends = Mutex::new(Ends { scheduler, failed: Vec::new(), running: 0 });
        let changed = Condvar::new();
        let context = self.context();
        let over = StopSignal::default();
        std::thread::scope(|scope| {
            scope.spawn(|| self.watch(&over));
            // Also if this loop panics: the scope waits for the watcher.
            let _over = OnDrop::new(|| over.stop());
            loop {
                let mut state = ends.lock().unwrap_or_else(PoisonError::into_inner);
                let admitted = if self.stop.is_set() { None } else { state.scheduler.next() };
                match admitted {
                    Some(index) => {
                        state.running += 1;
                        let slots = state.scheduler.slots(index) as usize;
                        drop(state);
                        let (context, ends, changed, vm) = (&context, &ends, &changed, todo[index.0]);
                        scope.spawn(move || run_vm(context, vm, index, slots, ends, changed));
                    }
                    None if state.running == 0 => break,
                    None => drop(changed.wait_timeout(state, Duration::from_millis(200))),
                }
            }
        });
        let ends = ends.into_inner().unwrap_or_else(PoisonError::into_inner);
        ends.failed
    }

    fn context(&self) -> Context<'_> {
        Context {
            plan: self.plan,
            source: self.source,
            target: self.target,
            store: self.store,
            observer: self.observer,
            board: self.board,
            options: self.options,
            stop: self.stop,
        }
    }

    /// Keeps samples of the rate, and stops the run when another process asks for it.
    fn watch(&self, over: &StopSignal) {
        while !over.is_set() {
            let (read, written) = self.board.moved();
            let disks = self.board.live().len() as u64;
            // A lost sample is a gap in a chart; trouble with the store shows itself elsewhere.
            let _ = self.store.add_sample(self.plan, read, written, disks);
            if self.store.cancel_asked(self.plan).unwrap_or(false) {
                self.stop.stop();
            }
            let mut slept = Duration::ZERO;
            while slept < SAMPLE_INTERVAL && !over.is_set() {
                std::thread::sleep(Duration::from_millis(50));
                slept += Duration::from_millis(50);
            }
        }
    }

    fn end(&self, failed: Vec<(String, Cause)>) -> Result<RunOutcome, EngineError> {
        let rows = self.store.vms(self.plan)?;
        let planned = |id: &str| self.vms.iter().any(|vm| vm.vm.id == id);
        let count = |state: VmState| rows.iter().filter(|row| planned(&row.id) && row.state == state).count();
        let done = count(VmState::Done);
        let is_done = |name: &str| rows.iter().any(|row| row.name == name && row.state == VmState::Done);
        let counts = |(name, cause): &(String, Cause)| *cause != Cause::Cancelled && !is_done(name);
        let failed: Vec<_> = failed.into_iter().filter(counts).collect();
        let unfinished = self.vms.len() - done - failed.len();
        let outcome = RunOutcome { done, failed, unfinished };
        let state = if outcome.is_complete() { PlanState::Done } else { PlanState::Incomplete };
        self.store.end_plan(self.plan, state)?;
        self.observer.event(&Event::PlanEnded {
            plan: self.plan.into(),
            done,
            failed: outcome.failed.len(),
            unfinished,
        });
        Ok(outcome)
    }
}

fn run_vm(
    context: &Context<'_>,
    vm: &PlannedVm,
    index: VmIndex,
    slots: usize,
    ends: &Mutex<Ends>,
    changed: &Condvar,
) {
    let release = || {
        ends.lock().unwrap_or_else(PoisonError::into_inner).scheduler.finished(index);
        changed.notify_all();
    };
    // A defect that shows with one VM must not take the others along. What it was doing stays as a crash
    // would leave it, and a resume sees to it.
    let travel = AssertUnwindSafe(|| Journey::new(context, vm, slots.min(vm.disks.len())).run(release));
    let cause = match catch_unwind(travel) {
        Ok(result) => result.err().map(|error| error.cause()),
        Err(panic) => {
            let what = panic.downcast_ref::<String>().map(String::as_str);
            let what = what.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
            // An observer that panicked may panic again.
            let _ = catch_unwind(AssertUnwindSafe(|| keep_panic(context, vm, what)));
            Some(Cause::Internal)
        }
    };
    let mut state = ends.lock().unwrap_or_else(PoisonError::into_inner);
    state.running -= 1;
    if let Some(cause) = cause {
        state.failed.push((vm.target_name.clone(), cause));
    }
    changed.notify_all();
}

fn keep_panic(context: &Context<'_>, vm: &PlannedVm, what: &str) {
    let text = format!("a defect of drover: {what}");
    let advice = "report this; `drover resume` goes on with the VM, `drover cancel` puts its source back";
    // Where the store is the trouble, the event below still tells.
    let _ = context.store.add_event(context.plan, Some(&vm.vm.id), None, "error", &text);
    let error = Some((text.as_str(), "internal", Some(advice)));
    let _ = context.store.end_vm(context.plan, &vm.vm.id, VmState::Failed, error);
    let (error, advice) = (Some(text), Some(advice.to_string()));
    context.observer.event(&Event::VmEnded { vm: vm.target_name.clone(), error, advice });
}

/// Held while a process runs a plan; let go by the kernel when the process dies, however it dies.
pub(crate) struct PlanLock {
    _file: File,
}

impl PlanLock {
    pub(crate) fn take(store: &Store, plan: &str) -> Result<PlanLock, EngineError> {
        let folder = store.path().parent().unwrap_or(Path::new("."));
        let path = folder.join(format!("{plan}.lock"));
        let failed = |error: std::io::Error| {
            EngineError::from(
                ProviderError::new(Cause::Internal, format!("lock file {}", path.display())).because(error),
            )
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(failed)?;
        if let Err(error) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(failed(error.into()));
            }
            let mut pid = String::new();
            file.read_to_string(&mut pid).map_err(failed)?;
            return Err(EngineError::Running { plan: plan.into(), pid: pid.trim().into() });
        }
        file.set_len(0).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(PlanLock { _file: file })
    }
}
