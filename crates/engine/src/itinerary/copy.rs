//! The copy of all disks of a VM.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use drover_disk::{Disk, DiskOp};
use drover_mover::{CopyJob, CopyReport, MoveError, Progress, Snapshot, StopSignal, copy_telling};
use drover_plan::{PlannedDisk, PlannedVm};
use drover_types::BLOCK_BYTES;

use super::warm::{DiskPass, Unmapped};
use super::{Copied, Journey, Outcome, millis};
use crate::error::{Cause, EngineError, ProviderError};
use crate::event::{DiskActivity, Event, LiveDisk};
use crate::parallel::in_parallel;
use crate::provider::{AskedDisk, Attachment, LinkBytes, Urgency, all_notes};
use crate::store::DiskRow;

/// What the copy phase does at once.
enum Step {
    Prove,
    Copy,
}

impl Journey<'_> {
    pub(super) fn copy_disks(&mut self) -> Outcome<()> {
        let disks: Vec<&PlannedDisk> = self.planned.disks.iter().collect();
        let this = &*self;
        let work = |step: &Step, stop: &StopSignal| match step {
            Step::Prove => this.prove(stop).map(|()| Vec::new()),
            Step::Copy => in_parallel(this.disks_at_once(), &disks, stop, |disk, stop| {
                this.copy_disk(this.planned, disk, None, stop)
            }),
        };
        let copies = in_parallel(2, &[Step::Prove, Step::Copy], this.context.stop, work)?;
        self.copies = copies.into_iter().flatten().map(Some).collect();
        Ok(())
    }

    /// Has the source held against its own checksums, if it has any.
    pub(super) fn prove(&self, stop: &StopSignal) -> Outcome<()> {
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

    /// Copies a disk of the VM as it is now, all of it or what a pass asks for.
    pub(super) fn copy_disk(
        &self,
        from: &PlannedVm,
        disk: &PlannedDisk,
        pass: Option<DiskPass>,
        stop: &StopSignal,
    ) -> Outcome<Copied> {
        if stop.is_set() {
            return Err(EngineError::Cancelled);
        }
        let snapshot = self.memory.snapshot.id().unwrap_or_default();
        let record = |attachment: &Attachment| {
            let added = self.context.store.add_attachment(self.context.plan, &from.vm.id, attachment);
            added.map_err(|error| {
                ProviderError::new(Cause::State, "recording what is attached").because(error)
            })
        };
        let source = self.context.source;
        let urgency = match &pass {
            Some(pass) if pass.is_last && !pass.is_whole => Urgency::Delta,
            Some(pass) if pass.is_last => Urgency::Down,
            // Also one that an earlier run shut down.
            _ if self.memory.switched_off => Urgency::Down,
            _ => Urgency::Later,
        };
        let opened = source.open_disk(&AskedDisk { vm: from, disk, snapshot, urgency, record: &record });
        let opened = opened.inspect_err(|error| self.keep_fault(disk, error.cause))?;
        // What is told of every pass is told once.
        if pass.as_ref().is_none_or(|pass| pass.job.number == 1) {
            opened.notes.iter().for_each(|note| self.note(format!("{}: {note}", disk.disk.label)));
        }
        let is_whole = pass.as_ref().is_some_and(|pass| pass.is_whole);
        let is_told = pass.as_ref().is_none_or(|pass| pass.is_last);
        let source = if is_whole { Arc::new(Unmapped(opened.disk)) } else { opened.disk };
        if self.context.target.is_one_way(self.planned)? {
            return self.send_disk(disk, source, (opened.notes, opened.late), stop);
        }
        let target = self.context.target.open_disk(disk, self.planned, source.size());
        let target = target.inspect_err(|error| self.keep_refusal(Some(disk), error))?;
        let job = CopyJob {
            source,
            target: target.disk,
            target_tag: target.tag,
            target_is_new: target.is_new,
            target_zeroed: target.zeroed,
            owner: Some(self.planned.owner_of(self.context.plan, disk)),
            journal: Some(self.context.target.journal(disk, self.planned)),
            pass: pass.map(|pass| pass.job),
            options: self.context.options.clone(),
        };
        let live = self.enter(disk, DiskActivity::Copy);
        // Later passes write over what the first one wrote.
        let at = self.place_of(disk);
        if let Some(at) = at.filter(|_| job.pass.as_ref().is_none_or(|pass| pass.number == 1)) {
            self.slots.fills(at, &live);
        }
        let found = |blocks| Ok(self.keep_distrust(blocks)?);
        let reads = self.slots.reads(at, &live);
        let result = copy_telling(&job, &found, &live, stop);
        drop(reads);
        self.context.board.leave(&live);
        self.keep_distrust(live.audit_mismatches())?;
        let link = target.link.map(|link| LinkBytes { zero: live.snapshot().zero, ..link.bytes() });
        // Also of a copy that did not end well: it went over the line.
        self.keep_link(disk, link)?;
        if result.is_err() {
            self.keep_begun(disk, &live.snapshot())?;
        }
        let report = result.map_err(|source| self.copy_error(disk, source, job.target.as_ref()))?;
        let notes = all_notes(opened.notes, opened.late);
        // The source's disk is closed before its slot goes to another.
        drop(job);
        self.finish_disk(disk);
        self.keep_copy(disk, &report, &notes)?;
        if is_told {
            self.tell_copied(disk, &report, link);
        }
        Ok(Copied {
            root: report.root.to_hex(),
            read_anything: report.snapshot.settled > 0,
            read_bytes: report.snapshot.read,
            pass: report.pass,
            leaves: report.leaves,
        })
    }

    pub(super) fn finish_disk(&self, disk: &PlannedDisk) {
        if let Some(at) = self.place_of(disk) {
            self.slots.disk_finished(at);
        }
    }

    pub(super) fn place_of(&self, disk: &PlannedDisk) -> Option<usize> {
        self.planned.disks.iter().position(|it| it.index == disk.index)
    }

    pub(super) fn keep_copy(&self, disk: &PlannedDisk, report: &CopyReport, notes: &[String]) -> Outcome<()> {
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
            ..self.verified_before(disk, report)?.plus_moved(report.snapshot.read, report.snapshot.written)
        };
        self.context.store.put_disk(self.context.plan, &row)?;
        if let Some(note) = &report.note {
            self.note(format!("{}: {note}", disk.disk.label));
        }
        Ok(())
    }

    /// What a copy did that did not come to its end: a report tells it, and more of a first one.
    pub(super) fn keep_begun(&self, disk: &PlannedDisk, did: &Snapshot) -> Outcome<()> {
        let row = self.stored_disk(disk)?.unwrap_or_else(|| self.disk_row(disk));
        let row = row.plus_moved(did.read, did.written);
        let is_first = row.root.is_none();
        let first = |row: DiskRow| DiskRow {
            read_bytes: Some(did.read),
            written_bytes: Some(did.written),
            resumed_bytes: Some(did.resumed),
            retries: Some(did.retries),
            ..row
        };
        let row = if is_first { first(row) } else { row };
        Ok(self.context.store.put_disk(self.context.plan, &row)?)
    }

    /// Adds what went over the link to what went before.
    fn keep_link(&self, disk: &PlannedDisk, link: Option<LinkBytes>) -> Outcome<()> {
        let Some(link) = link else { return Ok(()) };
        let row = self.stored_disk(disk)?.unwrap_or_else(|| self.disk_row(disk));
        let before = row.link.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let row = DiskRow { link: serde_json::to_string(&link.plus(before)).ok(), ..row };
        Ok(self.context.store.put_disk(self.context.plan, &row)?)
    }

    pub(super) fn tell_copied(&self, disk: &PlannedDisk, report: &CopyReport, link: Option<LinkBytes>) {
        self.tell(Event::DiskCopied {
            vm: self.name(),
            disk: disk.disk.label.clone(),
            root: report.root.to_hex(),
            bytes_read: report.snapshot.read,
            seconds: report.elapsed.as_secs_f64(),
            link,
        });
    }

    /// The row to build on: with its verification if nothing of the disk was copied since.
    pub(super) fn verified_before(&self, disk: &PlannedDisk, report: &CopyReport) -> Outcome<DiskRow> {
        let row = self.stored_disk(disk)?;
        let link = row.as_ref().and_then(|row| row.link.clone());
        let read_bytes_all = row.as_ref().map(DiskRow::read_in_all);
        let written_bytes_all = row.as_ref().map(DiskRow::written_in_all);
        let row = row.filter(|_| report.snapshot.settled == 0).unwrap_or_else(|| self.disk_row(disk));
        Ok(DiskRow { link, read_bytes_all, written_bytes_all, ..row })
    }

    pub(super) fn copy_error(&self, disk: &PlannedDisk, source: MoveError, target: &dyn Disk) -> EngineError {
        let side = match &source {
            MoveError::Disk(error) if error.disk == target.name() || error.op == DiskOp::Flush => {
                Cause::Target
            }
            MoveError::Disk(_) => Cause::Source,
            MoveError::Resized { .. } => Cause::Source,
            MoveError::Journal(_) | MoveError::TooSmall { .. } | MoveError::Other { .. } => Cause::Target,
            MoveError::Cancelled => Cause::Cancelled,
        };
        self.keep_copy_fault(disk, &source, side);
        EngineError::Copy { disk: format!("{}/{}", self.planned.target_name, disk.disk.label), source, side }
    }
}
