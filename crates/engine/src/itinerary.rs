//! One VM through the phases of the cold itinerary.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use drover_copy::LeafTable;
use drover_disk::{Disk, DiskOp};
use drover_mover::{
    CopyJob, CopyReport, MoveError, Progress, StopSignal, TransferOptions, Verification, Verify, copy,
    journal_path, verify,
};
use drover_plan::{PlannedDisk, PlannedVm, PowerOff};
use drover_types::BLOCK_BYTES;
use drover_types::inventory::{PowerState, Vm};

use crate::error::{Cause, EngineError, ProviderError, chain};
use crate::event::{Board, DiskActivity, Event, LiveDisk, Observer};
use crate::parallel::{OnDrop, in_parallel};
use crate::phase::Phase;
use crate::provider::{Converted, SourceProvider, TargetProvider};
use crate::store::{DiskRow, Store, VmState};

/// Begins the description of every snapshot that drover makes, with the plan's name behind it, so that
/// one left by a crash is found again and never taken for someone else's.
pub const SNAPSHOT_MARK: &str = "made by drover for plan ";

/// Whether a snapshot's description says that drover made it for this plan.
pub fn is_own_snapshot(description: &str, plan: &str) -> bool {
    description == own_description(plan)
}

fn own_description(plan: &str) -> String {
    format!("{SNAPSHOT_MARK}{plan}")
}

/// What all VMs of a run share.
pub(crate) struct Context<'a> {
    pub(crate) plan: &'a str,
    pub(crate) source: &'a dyn SourceProvider,
    pub(crate) target: &'a dyn TargetProvider,
    pub(crate) store: &'a Store,
    pub(crate) observer: &'a dyn Observer,
    pub(crate) board: &'a Board,
    pub(crate) options: &'a TransferOptions,
    pub(crate) stop: &'a StopSignal,
}

/// A VM on its way.
pub(crate) struct Journey<'a> {
    context: &'a Context<'a>,
    planned: &'a PlannedVm,
    /// Disks copied at a time.
    slots: usize,
    snapshot: Option<String>,
    copies: Vec<Option<Copied>>,
    /// An earlier run tried to convert the guest or to start it, so its images may have changed since.
    touched_before: bool,
}

/// A disk that is on the target.
struct Copied {
    leaves: LeafTable,
    root: String,
    /// Whether this run read anything of it.
    read_anything: bool,
}

/// What the copy phase does at once.
enum Step {
    Prove,
    Copy,
}

type Outcome<T> = Result<T, EngineError>;

impl<'a> Journey<'a> {
    pub(crate) fn new(context: &'a Context<'a>, planned: &'a PlannedVm, slots: usize) -> Self {
        let copies = planned.disks.iter().map(|_| None).collect();
        Journey { context, planned, slots: slots.max(1), snapshot: None, copies, touched_before: false }
    }

    /// Goes through all phases; after a failure undoes what must not be left behind. `copied` is called
    /// once, when the source's disks are not needed any more.
    pub(crate) fn run(&mut self, copied: impl FnOnce()) -> Outcome<()> {
        let mut reached = Phase::Check;
        let result = self.run_phases(&mut reached, copied);
        match result {
            Ok(()) => self.end_well(),
            Err(error) => self.end_badly(error, reached),
        }
    }

    fn run_phases(&mut self, reached: &mut Phase, copied: impl FnOnce()) -> Outcome<()> {
        // Gives the source's slots back when dropped, however this ends.
        let mut slots = Some(OnDrop::new(copied));
        let first = self.first_phase()?;
        for phase in Phase::COLD.into_iter().filter(|phase| *phase >= first) {
            *reached = phase;
            self.run_phase(phase)?;
            if phase == Phase::Verify {
                slots.take();
            }
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
        let was_in = |phase: Phase| row.phase.as_deref() == Some(phase.name());
        let arrived = was_in(Phase::CleanUp)
            || was_in(Phase::Start)
                && (row.started.is_some() || self.context.target.is_running(self.planned)?);
        Ok(if arrived { Phase::CleanUp } else { Phase::Check })
    }

    fn run_phase(&mut self, phase: Phase) -> Outcome<()> {
        // What has arrived is not left half done: the last phase takes a moment.
        if self.context.stop.is_set() && phase < Phase::CleanUp {
            return Err(EngineError::Cancelled);
        }
        let (plan, vm) = (self.context.plan, &self.planned.vm.id);
        self.context.store.enter_phase(plan, vm, phase.name())?;
        self.tell(Event::PhaseStarted { vm: self.name(), phase });
        let started = Instant::now();
        match phase {
            Phase::Check => self.check()?,
            Phase::PowerOff => self.power_off()?,
            Phase::Snapshot => self.freeze()?,
            Phase::Copy => self.copy_disks()?,
            Phase::Verify => self.verify_disks()?,
            Phase::Convert => self.convert()?,
            Phase::Define => self.define()?,
            Phase::Start => self.start()?,
            Phase::CleanUp => self.clean_up()?,
        }
        let seconds = started.elapsed().as_secs_f64();
        self.context.store.add_event(plan, Some(vm), Some(phase.name()), "ended", "")?;
        self.tell(Event::PhaseEnded { vm: self.name(), phase, seconds });
        Ok(())
    }

    fn check(&mut self) -> Outcome<()> {
        if self.planned.warm.is_some() && self.context.source.tracking().is_none() {
            return Err(self.refused("cannot move warm: its source tracks no changes", "use `mode: cold`"));
        }
        let now = self.look()?;
        let planned: Vec<_> =
            self.planned.disks.iter().map(|disk| (disk.disk.key, disk.disk.capacity_bytes)).collect();
        for (key, capacity) in planned {
            match now.disks.iter().find(|disk| disk.key == key) {
                Some(disk) if disk.capacity_bytes == capacity => {}
                Some(disk) => {
                    return Err(self.source_error(format!(
                        "{} of {} has {} bytes now and had {capacity} when the plan was checked",
                        disk.label, now.name, disk.capacity_bytes
                    )));
                }
                None => return Err(self.source_error(format!("disk {key} of {} is gone", now.name))),
            }
        }
        let known = |key: i32| self.planned.vm.disks.iter().any(|disk| disk.key == key);
        if let Some(new) = now.disks.iter().find(|disk| !known(disk.key)) {
            return Err(self.source_error(format!(
                "{} of {} was added after the plan was checked",
                new.label, now.name
            )));
        }
        self.check_other_plans()?;
        if self.context.target.is_running(self.planned)? {
            let what = format!("{} runs at the target already", self.planned.target_name);
            return Err(ProviderError::new(Cause::Target, what).advise("stop it there first").into());
        }
        self.context.target.prepare(self.planned)?;
        Ok(())
    }

    /// Two plans with one VM: the later must not write over what the earlier brought, nor run it twice.
    fn check_other_plans(&self) -> Outcome<()> {
        for (plan, row) in self.context.store.in_other_plans(self.context.plan, &self.planned.vm.id)? {
            let Ok(other) = serde_json::from_str::<PlannedVm>(&row.planned) else { continue };
            if other.vm.instance_uuid != self.planned.vm.instance_uuid {
                continue;
            }
            let name = &self.planned.vm.name;
            let template = self.context.source.is_template();
            let problem = match row.state {
                VmState::Running if !template || self.shares_a_place_with(&other) => {
                    Some((format!("{name} is on its way with"), "let that plan end, resume it or cancel it"))
                }
                VmState::Done if self.shares_an_image_with(&other) => Some((
                    format!("{name} has arrived, in the same files, with"),
                    "take it out of this plan, choose another folder, or remove the files if they may go",
                )),
                VmState::Done if !template && self.context.target.is_running(&other)? => {
                    Some((format!("{name} has arrived, and runs at the target, with"), "stop it there first"))
                }
                _ => None,
            };
            if let Some((what, advice)) = problem {
                let what = format!("{what} plan {plan}");
                return Err(ProviderError::new(Cause::Plan, what).advise(advice).into());
            }
        }
        Ok(())
    }

    fn shares_a_place_with(&self, other: &PlannedVm) -> bool {
        self.planned.folder == other.folder
            || self.planned.disks.iter().any(|disk| other.disks.iter().any(|it| it.path == disk.path))
    }

    fn shares_an_image_with(&self, other: &PlannedVm) -> bool {
        let is_theirs = |path: &Path| other.disks.iter().any(|disk| disk.path == path);
        self.planned.disks.iter().any(|disk| is_theirs(&disk.path) && disk.path.exists())
    }

    fn power_off(&mut self) -> Outcome<()> {
        let now = self.look()?;
        match (now.power, self.planned.power_off) {
            (PowerState::Off, _) => return Ok(()),
            (PowerState::Suspended, _) => {
                return Err(self.refused("is suspended", "resume it and shut it down, or discard its state"));
            }
            (PowerState::On, PowerOff::Refuse) => {
                return Err(self.refused(
                    "is running",
                    "shut it down, or allow it with `power_off: shutdown` in the plan",
                ));
            }
            (PowerState::On, PowerOff::Shutdown | PowerOff::Force) => {}
        }
        // Recorded before it happens: after a crash in between, cancelling switches it on again.
        self.context.store.set_switched_off(self.context.plan, &self.planned.vm.id, true)?;
        let clean = self.context.source.shutdown_guest(&now, self.planned.shutdown_timeout);
        match (clean, self.planned.power_off) {
            (Ok(()), _) => Ok(()),
            (Err(error), PowerOff::Force) => {
                self.note(format!("the guest did not shut down ({}), so it was switched off", chain(&error)));
                Ok(self.context.source.power_off(&now)?)
            }
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Takes a snapshot of the VM as it is now. One that an earlier run left is removed first: the VM may
    /// have run since, and what it wrote then is not in it.
    fn freeze(&mut self) -> Outcome<()> {
        let now = self.look()?;
        if now.power != PowerState::Off {
            return Err(self.refused("was switched on again by someone", "leave it off until it has arrived"));
        }
        remove_own_snapshots(self.context.plan, self.context.source, &now)?;
        let name = format!("drover-{}", self.context.plan);
        let id = self.context.source.create_snapshot(&now, &name, &own_description(self.context.plan))?.id;
        self.context.store.set_snapshot(self.context.plan, &self.planned.vm.id, Some(&id))?;
        self.snapshot = Some(id);
        Ok(())
    }

    fn copy_disks(&mut self) -> Outcome<()> {
        let disks: Vec<&PlannedDisk> = self.planned.disks.iter().collect();
        let this = &*self;
        let work = |step: &Step, stop: &StopSignal| match step {
            Step::Prove => this.prove(stop).map(|()| Vec::new()),
            Step::Copy => in_parallel(this.slots, &disks, stop, |disk, stop| this.copy_disk(disk, stop)),
        };
        let copies = in_parallel(2, &[Step::Prove, Step::Copy], this.context.stop, work)?;
        self.copies = copies.into_iter().flatten().map(Some).collect();
        Ok(())
    }

    /// Has the source held against its own checksums, if it has any.
    fn prove(&self, stop: &StopSignal) -> Outcome<()> {
        let progress = Arc::new(Progress::default());
        let (mut shown, mut stopped) = (false, false);
        let mut compared = |done: u64, all: u64| {
            progress.tell(done, all);
            if !std::mem::replace(&mut shown, true) {
                self.context.board.enter(LiveDisk {
                    vm: self.name(),
                    disk: "all files".into(),
                    activity: DiskActivity::Prove,
                    progress: progress.clone(),
                    since: Instant::now(),
                });
            }
            stopped |= stop.is_set();
            if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let result = self.context.source.prove(self.planned, &mut compared);
        self.context.board.leave(&progress);
        match result {
            Err(_) if stopped => Err(EngineError::Cancelled),
            Err(error) => Err(error.into()),
            Ok(line) => {
                line.into_iter().for_each(|line| self.note(line));
                Ok(())
            }
        }
    }

    fn copy_disk(&self, disk: &PlannedDisk, stop: &StopSignal) -> Outcome<Copied> {
        if stop.is_set() {
            return Err(EngineError::Cancelled);
        }
        let snapshot = self.snapshot.as_deref().unwrap_or_default();
        let opened = self.context.source.open_disk(self.planned, disk, snapshot)?;
        opened.notes.iter().for_each(|note| self.note(format!("{}: {note}", disk.disk.label)));
        let target = self.context.target.open_disk(disk, self.planned, opened.disk.size())?;
        let job = CopyJob {
            source: opened.disk,
            target: target.disk,
            target_tag: target.tag,
            target_is_new: target.is_new,
            target_zeroed: target.zeroed,
            journal: Some(journal_path(&disk.path)),
            pass: None,
            options: self.context.options.clone(),
        };
        let live = self.enter(disk, DiskActivity::Copy);
        let result = copy(&job, &live, stop);
        self.context.board.leave(&live);
        let report = result.map_err(|source| self.copy_error(disk, source, job.target.as_ref()))?;
        self.keep_copy(disk, &report, &opened.notes)?;
        Ok(Copied {
            root: report.root.to_hex(),
            read_anything: report.snapshot.settled > 0,
            leaves: report.leaves,
        })
    }

    fn keep_copy(&self, disk: &PlannedDisk, report: &CopyReport, notes: &[String]) -> Outcome<()> {
        let notes: Vec<&str> = notes.iter().map(String::as_str).chain(report.note.as_deref()).collect();
        let data = (report.leaves.data_blocks() * BLOCK_BYTES).min(report.leaves.size());
        let row = DiskRow {
            size: report.leaves.size(),
            data_bytes: Some(data),
            read_bytes: Some(report.snapshot.read),
            written_bytes: Some(report.snapshot.written),
            resumed_bytes: Some(report.snapshot.resumed),
            retries: Some(report.snapshot.retries),
            root: Some(report.root.to_hex()),
            blocks: Some(report.leaves.blocks()),
            copy_ms: Some(millis(report.elapsed)),
            attribution: serde_json::to_string(&report.snapshot.attribution).ok(),
            note: (!notes.is_empty()).then(|| notes.join("; ")),
            ..self.verified_before(disk, report)?
        };
        self.context.store.put_disk(self.context.plan, &row)?;
        if let Some(note) = &report.note {
            self.note(format!("{}: {note}", disk.disk.label));
        }
        self.tell(Event::DiskCopied {
            vm: self.name(),
            disk: disk.disk.label.clone(),
            root: report.root.to_hex(),
            bytes_read: report.snapshot.read,
            seconds: report.elapsed.as_secs_f64(),
        });
        Ok(())
    }

    /// The row to build on: with its verification if nothing of the disk was copied since.
    fn verified_before(&self, disk: &PlannedDisk, report: &CopyReport) -> Outcome<DiskRow> {
        let row = self.stored_disk(disk)?.filter(|_| report.snapshot.settled == 0);
        Ok(row.unwrap_or_else(|| self.disk_row(disk)))
    }

    fn verify_disks(&mut self) -> Outcome<()> {
        if self.planned.verify == drover_plan::Verify::None {
            self.note("not verified, as the plan says".into());
            return Ok(());
        }
        let work: Vec<(&PlannedDisk, &Copied)> =
            self.planned.disks.iter().zip(self.copies.iter().flatten()).collect();
        let this = &*self;
        in_parallel(this.slots, &work, this.context.stop, |(disk, copied), stop| {
            this.verify_disk(disk, copied, stop)
        })?;
        Ok(())
    }

    fn verify_disk(&self, disk: &PlannedDisk, copied: &Copied, stop: &StopSignal) -> Outcome<()> {
        if self.was_verified_before(disk, copied)? {
            self.note(format!(
                "{}: verified before it was first converted or started, and not copied again since, so not compared again",
                disk.disk.label
            ));
            return Ok(());
        }
        let leaves = &copied.leaves;
        let target = self.context.target.open_for_verify(disk, self.planned)?;
        let how = how_to_verify(self.planned.verify, leaves.blocks());
        let live = self.enter(disk, DiskActivity::Verify);
        let result = verify(target.as_ref(), leaves, how, self.context.options, &live, stop);
        self.context.board.leave(&live);
        let found = result.map_err(|source| self.copy_error(disk, source, target.as_ref()))?;
        self.keep_verification(disk, &found)?;
        match found.mismatches.first() {
            None => Ok(()),
            Some(first) => Err(EngineError::Differs {
                disk: format!("{}/{}", self.planned.target_name, disk.disk.label),
                blocks: found.mismatches.len(),
                compared: found.blocks,
                first: first.span,
            }),
        }
    }

    fn keep_verification(&self, disk: &PlannedDisk, found: &Verification) -> Outcome<()> {
        let row = self.stored_disk(disk)?;
        let row = DiskRow {
            target_root: found.target_root.map(|root| root.to_hex()),
            blocks_verified: Some(found.blocks),
            differing: Some(found.mismatches.len() as u64),
            verify_ms: Some(millis(found.elapsed)),
            ..row.unwrap_or_else(|| self.disk_row(disk))
        };
        self.context.store.put_disk(self.context.plan, &row)?;
        self.tell(Event::DiskVerified {
            vm: self.name(),
            disk: disk.disk.label.clone(),
            blocks: found.blocks,
            blocks_total: found.blocks_total,
            equal: found.is_equal(),
        });
        Ok(())
    }

    /// A converter or a guest may have written to the images: then the earlier verification counts.
    fn was_verified_before(&self, disk: &PlannedDisk, copied: &Copied) -> Outcome<bool> {
        if !self.touched_before || copied.read_anything {
            return Ok(false);
        }
        let row = self.stored_disk(disk)?;
        Ok(row.is_some_and(|row| row.differing == Some(0) && row.root.as_deref() == Some(&copied.root)))
    }

    fn stored_disk(&self, disk: &PlannedDisk) -> Outcome<Option<DiskRow>> {
        let rows = self.context.store.disks(self.context.plan)?;
        Ok(rows.into_iter().find(|row| row.vm == self.planned.vm.id && row.number == disk.index))
    }

    fn convert(&mut self) -> Outcome<()> {
        if self.planned.convert != drover_plan::Convert::Never {
            self.context.store.set_touched(self.context.plan, &self.planned.vm.id)?;
        }
        match self.context.target.convert(self.planned)? {
            Converted::Done(log) => self.note(format!("converted; log in {log}")),
            Converted::Skipped(why) => self.note(format!("not converted: {why}")),
        }
        Ok(())
    }

    fn define(&mut self) -> Outcome<()> {
        let line = self.context.target.define(self.planned)?;
        self.note(line);
        Ok(())
    }

    fn start(&mut self) -> Outcome<()> {
        if !self.planned.start {
            return Ok(());
        }
        // Asked again at the last moment: a guest never runs on two sides.
        if self.look()?.power != PowerState::Off {
            return Err(self.refused("runs at the source", "switch it off there, then `drover resume`"));
        }
        self.context.store.set_touched(self.context.plan, &self.planned.vm.id)?;
        let line = self.context.target.start(self.planned)?;
        self.context.store.set_started(self.context.plan, &self.planned.vm.id, Some(&line))?;
        self.note(line);
        Ok(())
    }

    /// Removes every snapshot that drover made for this plan, also one that a crashed run left.
    fn thaw(&mut self) -> Outcome<()> {
        remove_own_snapshots(self.context.plan, self.context.source, &self.look()?)?;
        self.snapshot = None;
        self.context.store.set_snapshot(self.context.plan, &self.planned.vm.id, None)?;
        Ok(())
    }

    /// What arrived is only right as long as the source stays off.
    fn clean_up(&mut self) -> Outcome<()> {
        self.thaw()?;
        if self.look()?.power == PowerState::Off {
            return Ok(());
        }
        Err(self.refused(
            "was switched on at the source after it had arrived",
            "decide which of the two goes on: switch the source off and `drover resume`, or stop the target, \
             remove its files and move the VM with another plan",
        ))
    }

    fn end_well(&self) -> Outcome<()> {
        self.context.store.end_vm(self.context.plan, &self.planned.vm.id, VmState::Done, None)?;
        self.tell(Event::VmEnded { vm: self.name(), error: None, advice: None });
        Ok(())
    }

    /// Puts the source back as it was, keeps the error, and passes it on.
    fn end_badly(&mut self, error: EngineError, reached: Phase) -> Outcome<()> {
        let (plan, id) = (self.context.plan, self.planned.vm.id.clone());
        let arrived = reached > Phase::Start;
        // A machine that runs at the target is there to stay: only the clean-up is still to be done.
        let left = if arrived { Vec::new() } else { self.undo(reached) };
        let mut text = error.chain();
        for problem in &left {
            text.push_str(&format!("; left behind: {problem}"));
        }
        let state = if error.cause() == Cause::Cancelled { VmState::Stopped } else { VmState::Failed };
        let cause = format!("{:?}", error.cause()).to_lowercase();
        let advice = error.advice();
        self.context.store.add_event(plan, Some(&id), Some(reached.name()), "error", &text)?;
        self.context.store.end_vm(plan, &id, state, Some((&text, &cause, advice.as_deref())))?;
        self.tell(Event::VmEnded { vm: self.name(), error: Some(text), advice });
        Err(error)
    }

    /// Undoes the phases up to `reached`, last first; gives what could not be undone.
    fn undo(&mut self, reached: Phase) -> Vec<String> {
        let mut left = Vec::new();
        let mut keep = |result: Result<(), ProviderError>| {
            if let Err(error) = result {
                left.push(chain(&error));
            }
        };
        if reached >= Phase::Start && self.planned.start {
            keep(self.context.target.stop(self.planned));
            // A store that fails here failed before; the error that led here tells.
            let _ = self.context.store.set_started(self.context.plan, &self.planned.vm.id, None);
        }
        if reached >= Phase::Define {
            keep(self.context.target.undo_define(self.planned));
        }
        let row = self.context.store.vm(self.context.plan, &self.planned.vm.id);
        let has_snapshot = row.is_ok_and(|row| row.is_some_and(|row| row.snapshot.is_some()));
        if reached >= Phase::Snapshot || has_snapshot {
            left.extend(self.thaw().err().map(|error| error.chain()));
        }
        left.extend(switch_on_again(self.context, self.planned));
        left
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
            path: disk.path.clone(),
            size: disk.disk.capacity_bytes,
            ..DiskRow::default()
        }
    }

    fn look(&self) -> Outcome<Vm> {
        Ok(look(self.context.source, self.planned)?)
    }

    fn copy_error(&self, disk: &PlannedDisk, source: MoveError, target: &dyn Disk) -> EngineError {
        let side = match &source {
            MoveError::Disk(error) if error.disk == target.name() || error.op == DiskOp::Flush => {
                Cause::Target
            }
            MoveError::Disk(_) => Cause::Source,
            MoveError::Journal(_) | MoveError::TooSmall { .. } | MoveError::Other { .. } => Cause::Target,
            MoveError::Cancelled => Cause::Cancelled,
        };
        EngineError::Copy { disk: format!("{}/{}", self.planned.target_name, disk.disk.label), source, side }
    }

    fn source_error(&self, what: String) -> EngineError {
        ProviderError::new(Cause::Source, what).advise(LOOK_AND_RUN_AGAIN).into()
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

/// Removes every snapshot that drover made of a VM for this plan.
pub(crate) fn remove_own_snapshots(
    plan: &str,
    source: &dyn SourceProvider,
    now: &Vm,
) -> Result<(), ProviderError> {
    for snapshot in now.snapshots.iter().filter(|snapshot| is_own_snapshot(&snapshot.description, plan)) {
        source.remove_snapshot(now, &snapshot.id)?;
    }
    Ok(())
}

/// Switches a VM on again if drover switched it off; gives what went wrong.
pub(crate) fn switch_on_again(context: &Context<'_>, planned: &PlannedVm) -> Vec<String> {
    let (plan, id) = (context.plan, &planned.vm.id);
    let switched_off = match context.store.vm(plan, id) {
        Ok(row) => row.is_some_and(|row| row.switched_off),
        Err(error) => return vec![chain(&error)],
    };
    if !switched_off {
        return Vec::new();
    }
    let result = switch_on(context, planned).map_err(EngineError::from);
    let result = result.and_then(|()| Ok(context.store.set_switched_off(plan, id, false)?));
    let problem = |error: EngineError| format!("{} is still off: {}", planned.vm.name, error.chain());
    result.err().map(problem).into_iter().collect()
}

fn switch_on(context: &Context<'_>, planned: &PlannedVm) -> Result<(), ProviderError> {
    // A guest that runs, or may run, at the target must not run at the source too.
    if context.target.is_running(planned)? {
        let what = format!("{} runs at the target", planned.target_name);
        return Err(ProviderError::new(Cause::Target, what));
    }
    context.source.power_on(&look(context.source, planned)?)
}

/// The VM as it is now, if it is still the one that was planned: hosts without vCenter give ids again.
pub(crate) fn look(source: &dyn SourceProvider, planned: &PlannedVm) -> Result<Vm, ProviderError> {
    let now = source.vm(&planned.vm.id)?;
    if now.instance_uuid != planned.vm.instance_uuid {
        let what = format!("{} is another VM than when the plan was checked", now.name);
        return Err(ProviderError::new(Cause::Source, what).advise(LOOK_AND_RUN_AGAIN));
    }
    Ok(now)
}

const LOOK_AND_RUN_AGAIN: &str = "look at the source, then run the plan again";

fn how_to_verify(plan: drover_plan::Verify, blocks: u64) -> Verify {
    match plan {
        drover_plan::Verify::None => Verify::None,
        drover_plan::Verify::Full => Verify::Full,
        drover_plan::Verify::Sampled { blocks: wanted } => {
            let seed = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap_or_default()
                .subsec_nanos();
            Verify::Sampled { share: wanted as f64 / blocks.max(1) as f64, seed: u64::from(seed) }
        }
    }
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}
