//! One VM through the phases of its itinerary.

mod check;
mod copy;
mod ending;
mod faults;
mod hooks;
mod images;
mod send;
mod source;
mod still;
mod target;
mod verify;
mod warm;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use drover_copy::LeafTable;
use drover_mover::{PassReport, Progress, StopSignal, TransferOptions};
use drover_plan::{PlannedDisk, PlannedVm};
use drover_schedule::Ended;
use drover_types::inventory::Vm;

use self::ending::Memory;
pub(crate) use self::ending::{ROLLS_BACK, end_untouched};
pub(crate) use self::faults::{Fault, full_words};
pub(crate) use self::hooks::{About, Calls, Moment, Outside};
pub(crate) use self::source::{
    asked_down, check_recorded, has_begun, look, may_run_at_target, not_listed, remove_listed,
    remove_own_snapshots, switch_on_again, undone_downtime,
};
use self::still::Stillness;
use self::warm::FrozenVm;
pub use self::warm::MOMENT_GRACE_MS;
pub(crate) use self::warm::{moment_of, untrack};
use crate::cancel::Leave;
use crate::clock::Clock;
use crate::error::{Cause, EngineError, ProviderError};
use crate::event::{Board, DiskActivity, Event, LiveDisk, Observer};
use crate::phase::Phase;
use crate::provider::{SourceProvider, TargetProvider};
use crate::runner::MayBegin;
use crate::slots::Slots;
use crate::standing::VmEnd;
use crate::store::{DiskRow, Store};

/// Begins the description of every snapshot that drover makes, with the plan's name behind it, so that
/// one left by a crash is found again and never taken for someone else's.
pub const SNAPSHOT_MARK: &str = "made by drover for plan ";

/// Whether a snapshot's description says that drover made it for this plan, to move a VM or to look into it.
pub fn is_own_snapshot(description: &str, plan: &str) -> bool {
    description == own_description(plan) || is_look_snapshot(description, plan)
}

/// Whether a snapshot's description says that drover made it for a look: nothing but a look needs it.
pub(crate) fn is_look_snapshot(description: &str, plan: &str) -> bool {
    description == look_description(plan)
}

pub(crate) fn look_description(plan: &str) -> String {
    format!("{} (a look)", own_description(plan))
}

pub(crate) fn own_description(plan: &str) -> String {
    format!("{SNAPSHOT_MARK}{plan}")
}

/// The name of every snapshot that drover makes for a plan.
pub(crate) fn own_name(plan: &str) -> String {
    format!("drover-{plan}")
}

/// What all VMs of a run share.
#[derive(Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) plan: &'a str,
    pub(crate) source: &'a dyn SourceProvider,
    pub(crate) target: &'a dyn TargetProvider,
    pub(crate) store: &'a Store,
    pub(crate) observer: &'a dyn Observer,
    pub(crate) board: &'a Board,
    pub(crate) options: &'a TransferOptions,
    pub(crate) stop: &'a StopSignal,
    /// Asked before each phase, and before anything is undone.
    pub(crate) leave: &'a Leave<'a>,
    /// Asked before anything is done with a VM.
    pub(crate) may_begin: &'a MayBegin<'a>,
    pub(crate) clock: &'a dyn Clock,
    /// Absent where nothing is called: while a plan is given up.
    pub(crate) outside: Option<Outside<'a>>,
}

/// A VM on its way.
pub(crate) struct Journey<'a> {
    context: &'a Context<'a>,
    planned: &'a PlannedVm,
    slots: Slots<'a>,
    copies: Vec<Option<Copied>>,
    /// An earlier run tried to convert the guest or to start it, so its images may have changed since.
    touched_before: bool,
    /// The guest was asked to shut down and had not by the time it was given; it may do so yet.
    may_go_down: bool,
    /// Until when a guest that an earlier run asked to shut down may still take.
    down_by_ms: i64,
    /// What it did, for its end: told also where the state cannot be read any more.
    memory: Memory,
    /// A disk could not be opened at the source, or not be read: that is of its host or its datastore rather than of the VM.
    fault: Mutex<Option<Fault>>,
    /// The phase that it is in, or was in last.
    reached: Phase,
    /// The machine was started, by this run or an earlier one: it stays at the target whatever fails.
    stays: bool,
    /// The last phase of this run started it: nobody has worked at the target yet.
    started_now: bool,
    /// It goes back to its source all the same, as the plan gives leave.
    rolls_back: bool,
    /// An earlier run was killed when the guest was down.
    was_down: bool,
    /// The phase found nothing to do, so that its time tells nothing of the next one.
    did_nothing: bool,
    /// The source as its last snapshot left it, off.
    still: Option<Stillness<'a>>,
    /// When this run came to its passes, if it is a warm one.
    passes_began_ms: Option<i64>,
    /// The snapshot that a pass reads, and what is known of it.
    frozen: Option<FrozenVm>,
    /// Leaves of what the images held when they were last read back whole, before the guest was shut down.
    proved: Option<Vec<LeafTable>>,
    /// What its owner did to it that counts when it moves over, as its passes told it last.
    seen: Option<String>,
}

/// A disk that is on the target.
struct Copied {
    leaves: LeafTable,
    root: String,
    /// Whether this run read anything of it.
    read_anything: bool,
    read_bytes: u64,
    /// What the pass did, if it was one.
    pass: Option<PassReport>,
}

type Outcome<T> = Result<T, EngineError>;

impl<'a> Journey<'a> {
    pub(crate) fn new(context: &'a Context<'a>, planned: &'a PlannedVm, slots: Slots<'a>) -> Self {
        Journey {
            context,
            planned,
            slots,
            copies: planned.disks.iter().map(|_| None).collect(),
            touched_before: false,
            may_go_down: false,
            down_by_ms: 0,
            memory: Memory::default(),
            fault: Mutex::default(),
            reached: Phase::Check,
            stays: false,
            started_now: false,
            rolls_back: false,
            was_down: false,
            did_nothing: false,
            still: None,
            passes_began_ms: None,
            frozen: None,
            proved: None,
            seen: None,
        }
    }

    /// Goes through all phases; after a failure undoes what must not be left behind. The slots are given
    /// back when the source's disks are not needed any more. `None` after a failure of its host, if it is to be run again when
    /// it has its slots again.
    pub(crate) fn run(&mut self) -> Option<VmEnd> {
        let first = match self.first_phase() {
            // Whether it has arrived is all that decides what may be undone: it stays recorded as it is.
            Err(error) if !matches!(error, EngineError::Cancelled) => {
                let end = self.end_unknown(None, &error);
                self.slots.finish(Ended::Failed);
                return Some(end);
            }
            first => first,
        };
        let error = match first.and_then(|first| self.run_phases(first)) {
            Ok(()) => {
                let end = self.end_well();
                // A wave that waits for it finds it recorded.
                self.slots.finish(Ended::Arrived);
                return Some(end);
            }
            Err(error) => error,
        };
        let reached = self.reached;
        let is_of_others = self.is_of_others(&error);
        let fault = self.fault().take().filter(|_| is_of_others);
        // Something that could not be undone is told by its end, which tries once more.
        if let Some(fault) = fault
            && self.fails_of(fault, &error, reached)
            && self.undo(reached).is_ok_and(|left| left.is_empty())
        {
            let at_ms = self.slots.retry();
            self.note_retry(fault, &error, at_ms);
            return None;
        }
        let is_skipped = error.cause() == Cause::Skipped;
        let end = self.end_badly(error, reached);
        // Told when all is undone: the wave after it begins then, and another guest may go down. One that is at the target has arrived
        // for its wave, whatever is left at its source.
        self.slots.finish(match () {
            () if end.state.has_arrived() => Ended::Arrived,
            () if is_skipped => Ended::LeftOut,
            () => Ended::Failed,
        });
        Some(end)
    }

    fn note_retry(&self, fault: Fault, error: &EngineError, at_ms: u64) {
        let now_ms = u64::try_from(self.context.clock.now_ms()).unwrap_or(0);
        let seconds = at_ms.saturating_sub(now_ms).div_ceil(1000);
        let why = error.chain();
        let what = match fault {
            Fault::Host | Fault::Disk(_) => "its host or its datastore fails",
            Fault::Target { .. } => "what it goes to fails",
        };
        self.note(format!("{what}, so it is tried again in {seconds} s at the earliest: {why}"));
    }

    /// Ends before its first phase. An earlier try left nothing.
    pub(crate) fn end_unbegun(&mut self, error: EngineError) -> VmEnd {
        // What cannot be read is told as if it were there.
        let row = self.context.store.vm(self.context.plan, &self.planned.vm.id).ok().flatten();
        self.memory = row.as_ref().map(Memory::of).unwrap_or_default();
        let end = self.end_badly(error, Phase::Check);
        self.slots.finish(Ended::Failed);
        end
    }

    /// Ends without having begun in this run, although an earlier one left something of it: that is undone, and what has arrived
    /// stays so. It holds no slots.
    pub(crate) fn end_given_up(&mut self, why: EngineError) -> VmEnd {
        match self.first_phase() {
            Ok(first) => self.end_badly(why, first),
            Err(error) => self.end_unknown(Some(&why), &error),
        }
    }

    fn run_phases(&mut self, first: Phase) -> Outcome<()> {
        let phases: &[Phase] = if self.is_warm() { &Phase::WARM } else { &Phase::COLD };
        for phase in phases.iter().copied().filter(|phase| *phase >= first) {
            if phase == Phase::PowerOff {
                self.leave_it_on_for_now()?;
                self.await_target()?;
            }
            // What fails before a phase undoes nothing of it.
            self.call_before(phase)?;
            self.reached = phase;
            self.started_now = false;
            self.run_phase(phase)?;
            if phase == Phase::Verify {
                self.slots.park();
            }
            self.call_after(phase)?;
        }
        Ok(())
    }

    /// Where to begin: at the start, unless an earlier run had started the machine at the target. From
    /// then on its guest writes to the images, so they are never copied over again.
    fn first_phase(&mut self) -> Outcome<Phase> {
        let Some(row) = self.context.store.vm(self.context.plan, &self.planned.vm.id)? else {
            return Ok(Phase::Check);
        };
        self.touched_before = row.touched;
        self.memory = Memory::of(&row);
        let time = self.time_to_go_down()?;
        (self.may_go_down, self.down_by_ms) =
            (!time.is_zero(), self.context.clock.now_ms() + time.as_millis() as i64);
        let was_in = |phase: Phase| row.phase.as_deref() == Some(phase.name());
        let rolls_back = was_in(Phase::Start) && row.started.as_deref() == Some(ROLLS_BACK);
        if rolls_back && !self.context.target.is_running(self.planned)? {
            self.finish_rolling_back()?;
            return Ok(Phase::Check);
        }
        let later = Phase::COLD.into_iter().filter(|phase| *phase > Phase::PowerOff);
        self.was_down = row.switched_off && later.into_iter().any(was_in);
        let arrived = was_in(Phase::CleanUp)
            || was_in(Phase::Start)
                && (row.started.is_some() || self.context.target.is_running(self.planned)?);
        self.memory.defined = if arrived { Some(true) } else { self.memory.defined };
        if arrived && was_in(Phase::Start) {
            // What is called after a start, and had not ended, is called before the clean-up.
            (self.stays, self.memory.started, self.reached) = (true, true, Phase::Start);
            self.context.store.go_on_with(self.context.plan, &self.planned.vm.id)?;
            // One that runs, although it was to be stopped, may have been worked with since.
            if row.started.is_none() || rolls_back {
                let text = "started by an earlier run";
                self.context.store.set_started(self.context.plan, &self.planned.vm.id, Some(text))?;
            }
        }
        Ok(if arrived { Phase::CleanUp } else { Phase::Check })
    }

    /// An earlier run was killed while it sent the guest back to its source, after the machine was stopped.
    fn finish_rolling_back(&mut self) -> Outcome<()> {
        self.rolls_back = true;
        let left = self.undo(Phase::Start);
        self.rolls_back = false;
        let left = left?;
        if !left.is_empty() {
            let what = format!("is sent back to its source, and that is not finished: {}", left.join("; "));
            return Err(self.refused(&what, LOOK_AND_RUN_AGAIN));
        }
        self.note(
            "an earlier run was cut short while it sent it back to its source; that is done now".into(),
        );
        Ok(())
    }

    fn run_phase(&mut self, phase: Phase) -> Outcome<()> {
        // What has arrived is not left half done: the last phase takes a moment.
        if self.context.stop.is_set() && phase < Phase::CleanUp {
            return Err(EngineError::Cancelled);
        }
        (self.context.leave)()?;
        let (plan, vm) = (self.context.plan, &self.planned.vm.id);
        self.context.store.enter_phase(plan, vm, phase.name())?;
        self.tell(Event::PhaseStarted { vm: self.name(), phase });
        let started = Instant::now();
        match phase {
            Phase::Check => self.check()?,
            Phase::Track => self.track()?,
            Phase::Passes => self.passes()?,
            Phase::PowerOff => self.power_off()?,
            Phase::Snapshot if self.is_warm() => self.freeze_last()?,
            Phase::Snapshot => self.freeze()?,
            Phase::Copy if self.is_warm() => self.copy_last()?,
            Phase::Copy => self.copy_disks()?,
            Phase::Verify if self.is_warm() => self.verify_replica()?,
            Phase::Verify => self.verify_disks()?,
            Phase::Convert => self.convert()?,
            Phase::Define => self.define()?,
            Phase::Start => self.start()?,
            Phase::CleanUp => self.clean_up()?,
        }
        let seconds = started.elapsed().as_secs_f64();
        let text = if std::mem::take(&mut self.did_nothing) { NOTHING_DONE } else { "" };
        self.context.store.add_event(plan, Some(vm), Some(phase.name()), "ended", text)?;
        self.tell(Event::PhaseEnded { vm: self.name(), phase, seconds });
        Ok(())
    }

    /// Disks that may be at work at once.
    fn disks_at_once(&self) -> usize {
        self.slots.disks().min(self.planned.disks.len())
    }

    fn is_warm(&self) -> bool {
        self.planned.warm.is_some()
    }

    fn enter(&self, disk: &PlannedDisk, activity: DiskActivity) -> Arc<Progress> {
        let progress = Arc::new(Progress::default());
        self.context.board.enter(LiveDisk {
            vm: self.name(),
            disk: disk.disk.label.clone(),
            activity,
            progress: progress.clone(),
            since: Instant::now(),
        });
        progress
    }

    fn disk_row(&self, disk: &PlannedDisk) -> DiskRow {
        DiskRow {
            vm: self.planned.vm.id.clone(),
            number: disk.index,
            label: disk.disk.label.clone(),
            path: self.planned.place_of(disk),
            size: disk.disk.capacity_bytes,
            ..DiskRow::default()
        }
    }

    fn stored_disk(&self, disk: &PlannedDisk) -> Outcome<Option<DiskRow>> {
        let rows = self.context.store.disks_of(self.context.plan, &self.planned.vm.id)?;
        Ok(rows.into_iter().find(|row| row.number == disk.index))
    }

    fn look(&self) -> Outcome<Vm> {
        Ok(look(self.context.source, self.planned)?)
    }

    fn refused(&self, what: &str, advice: &str) -> EngineError {
        ProviderError::new(Cause::Source, format!("{} {what}", self.planned.vm.name)).advise(advice).into()
    }

    fn note(&self, text: String) {
        // A note that cannot be kept is still shown; the next write to the store fails loudly.
        let _ =
            self.context.store.add_event(self.context.plan, Some(&self.planned.vm.id), None, "note", &text);
        self.tell(Event::Note { vm: self.name(), text });
    }

    fn tell(&self, event: Event) {
        self.context.observer.event(&event);
    }

    fn name(&self) -> String {
        self.planned.target_name.clone()
    }
}

/// What was decided about a VM, and is not its host's fault, or no more than its host is tried.
fn is_told(cause: Cause) -> bool {
    use Cause::{Cancelled, Check, Hook, HostFailed, NotItsTurn, Skipped};
    matches!(cause, Cancelled | Hook | Check | Skipped | HostFailed | NotItsTurn)
}

/// Said of a phase that ended without anything to do.
const NOTHING_DONE: &str = "nothing to do";

const LOOK_AND_RUN_AGAIN: &str = "look at the source, then run the plan again";

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}
