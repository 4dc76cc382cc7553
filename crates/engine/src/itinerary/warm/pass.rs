//! One pass: guardian, snapshot, areas, copy.

use std::collections::BTreeMap;

use drover_mover::{Areas, Audit, PassJob, StopSignal, recorded_leaves};
use drover_plan::{Audit as PlanAudit, PlannedDisk, PlannedVm};
use drover_types::inventory::{PowerState, Snapshot, Vm};

use super::audit::audit_share;
use super::guardian::{Before, Doubts, inspect, is_same_epoch, power_word};
use crate::error::{Cause, EngineError, chain};
use crate::event::Event;
use crate::itinerary::ending::Held;
use crate::itinerary::{Copied, Journey, Outcome, is_own_snapshot, own_description, own_name};
use crate::parallel::in_parallel;
use crate::store::{PassKind, PassRow, PassState, TrackedRow};
use crate::tracking::{AreasError, Frozen};

/// A VM under the snapshot of a pass.
pub(in crate::itinerary) struct FrozenVm {
    /// The VM as it is now, with the disks of the plan.
    vm: PlannedVm,
    row: PassRow,
    change_ids: BTreeMap<i32, String>,
    /// What the last completed pass left, or the first one that was interrupted.
    since: Vec<TrackedRow>,
    doubts: Doubts,
    is_last: bool,
}

/// What a pass asks for of a disk.
pub(in crate::itinerary) struct DiskPass {
    pub(in crate::itinerary) job: PassJob,
    /// Not even the source's map is believed.
    pub(in crate::itinerary) is_whole: bool,
    /// The last pass, whose disks have arrived.
    pub(in crate::itinerary) is_last: bool,
}

/// Areas of a disk, and why they are not known.
struct DiskAreas {
    areas: Areas,
    doubt: Option<String>,
}

impl Journey<'_> {
    /// The guardian's look, and the snapshot.
    pub(super) fn begin_pass(&mut self, is_last: bool) -> Outcome<()> {
        (self.context.leave)()?;
        let (store, plan) = (self.context.store, self.context.plan);
        let id = self.planned.vm.id.clone();
        let began_ms = self.context.clock.now_ms();
        let (now, doubts) = self.guard()?;
        if is_last {
            self.must_be_off(&now, "was switched on again by someone", "leave it off until it has arrived")?;
            self.watch_power(&now)?;
        } else {
            self.tell_seen(&now)?;
        }
        // What was converted of earlier images is worth nothing once these change.
        self.context.target.forget_conversion(self.planned)?;
        let number = 1 + self.passes_done()?.last().map_or(0, |pass| pass.number);
        let mut row = PassRow::begin(&id, number, began_ms);
        store.put_pass(plan, &row)?;
        let since = store.tracked(plan, &id)?;
        self.memory.snapshot = Held::Asked;
        let frozen = self.freeze_vm(&now, is_last)?;
        self.memory.snapshot = Held::Made(frozen.snapshot.clone());
        store.set_snapshot(plan, &id, Some(&frozen.snapshot))?;
        row.snapshot = Some(frozen.snapshot);
        row.frozen_ms = Some(self.context.clock.now_ms());
        let vm = self.planned_as(&now);
        let frozen = FrozenVm { vm, row, change_ids: frozen.change_ids, since, doubts, is_last };
        if number == 1 && !self.knows_blocks() {
            store.begin_from(plan, &frozen.row, &now.host_id, &frozen.tracked())?;
        } else {
            store.put_pass(plan, &frozen.row)?;
        }
        if is_last {
            self.keep_live_disks(&frozen.change_ids)?;
        }
        self.frozen = Some(frozen);
        Ok(())
    }

    /// Tells what its owner did to the VM that counts when it moves over: once when it is found, and beside the VM for as long as it
    /// is so.
    pub(super) fn tell_seen(&mut self, now: &Vm) -> Outcome<()> {
        let (store, plan, id) = (self.context.store, self.context.plan, &self.planned.vm.id);
        let hint = store.warm(plan, id)?.hint;
        let mut seen: Vec<String> = Vec::new();
        // One whose cutover was cut short was switched off by drover.
        if !self.is_cut_short()? {
            seen.extend(power_word(self.planned, now).map(|word| format!("it {word}")));
        }
        let refused = self.take_hardware(now)?;
        seen.extend(refused.map(|what| format!("it {what}; before it moves over, {}", self.read_anew())));
        let is_told = |line: &str| hint.as_deref().is_some_and(|hint| hint.contains(line));
        seen.iter().filter(|line| !is_told(line)).for_each(|line| self.note(line.clone()));
        // What is taken over was told then.
        let told = self.as_told()?.into_owned();
        seen.extend(self.hardware_words(&told));
        let seen = (!seen.is_empty()).then(|| seen.join("; "));
        if seen.is_some() || self.seen.is_some() {
            store.set_hint(plan, id, seen.as_deref())?;
        }
        self.seen = seen;
        Ok(())
    }

    /// Whether there are images of an earlier state that this plan knows nothing of, with their journals: then
    /// blocks that an interrupted first pass has not come to are older than its snapshot.
    fn knows_blocks(&self) -> bool {
        let journals = self.planned.disks.iter().map(|disk| self.context.target.journal(disk, self.planned));
        // One that cannot be read is started again, and knows nothing.
        journals.into_iter().any(|it| recorded_leaves(&it).is_ok_and(|leaves| leaves.known_blocks() > 0))
    }

    /// Looks whether the VM is as the last pass left it, and mends what can be mended.
    fn guard(&mut self) -> Outcome<(Vm, Doubts)> {
        let (mut now, mut doubts) = self.inspect_now()?;
        let (store, plan) = (self.context.store, self.context.plan);
        let is_attached = !store.attachments(plan, &now.id)?.is_empty();
        let is_recorded = store.vm(plan, &now.id)?.is_some_and(|row| row.snapshot.is_some());
        let own = |it: &Snapshot| is_own_snapshot(&it.description, plan);
        if is_attached || is_recorded || now.snapshots.iter().any(own) {
            self.remove_own_snapshots(&now)?;
            (now, doubts) = self.inspect_now()?;
        }
        let mut mended = Vec::new();
        if now.consolidation_needed {
            // Also doubted if this try goes no further: the next one finds nothing to consolidate.
            self.context.store.forget_change_ids(self.context.plan, &now.id)?;
            self.tracking()?.consolidate(&now)?;
            mended.push("its disks had to be consolidated".to_string());
        }
        // With somebody's snapshot tracking cannot be switched on; then everything is compared.
        let untracked = |vm: &Vm| {
            !vm.change_tracking
                || vm.power == PowerState::On && vm.disks.iter().any(|it| it.change_id.is_none())
        };
        if untracked(&now) && now.snapshots.is_empty() && self.track_vm()? {
            mended.push("change tracking had to be switched on".to_string());
        }
        if !mended.is_empty() {
            (now, doubts) = self.inspect_now()?;
            doubts.passing.extend(mended);
        }
        Ok((now, doubts))
    }

    /// The VM, and what the guardian says of it.
    pub(super) fn inspect_now(&self) -> Outcome<(Vm, Doubts)> {
        let (store, plan, id) = (self.context.store, self.context.plan, &self.planned.vm.id);
        let now = self.look()?;
        self.keep_told(&now)?;
        let (row, disks) = (store.warm(plan, id)?, store.tracked(plan, id)?);
        let before = Before {
            plan,
            planned: self.planned,
            host: row.host.as_deref(),
            disks: &disks,
            distrust: row.distrust.as_deref(),
        };
        let doubts = inspect(&before, &now)?;
        Ok((now, doubts))
    }

    fn freeze_vm(&mut self, now: &Vm, is_last: bool) -> Outcome<Frozen> {
        let (name, mark) = (own_name(self.context.plan), own_description(self.context.plan));
        let quiesce = now.power == PowerState::On && self.planned.warm.is_some_and(|warm| warm.quiesce);
        let frozen = self.tracking()?.freeze(now, &name, &mark, quiesce);
        let frozen = frozen.inspect_err(|error| self.memory.snapshot.was_refused(error));
        match frozen {
            Err(error) if quiesce && !is_last && error.cause != Cause::Cancelled => {
                let why = chain(&error);
                self.note(format!("the guest could not be quiesced, so this pass goes without: {why}"));
                // Nobody knows what the failed try left.
                self.remove_own_snapshots(&self.look()?)?;
                let frozen = self.tracking()?.freeze(now, &name, &mark, false);
                Ok(frozen.inspect_err(|error| self.memory.snapshot.was_refused(error))?)
            }
            frozen => Ok(frozen?),
        }
    }

    /// The plan's VM with what the source tells of it now: it may have moved.
    fn planned_as(&self, now: &Vm) -> PlannedVm {
        let mut planned = self.planned.clone();
        for disk in &mut planned.disks {
            if let Some(found) = now.disks.iter().find(|it| it.key == disk.disk.key) {
                disk.disk = found.clone();
            }
        }
        planned.vm = now.clone();
        planned
    }

    /// Copies what the pass has to, records it as complete. With the last one its snapshot stays.
    pub(super) fn copy_pass(&mut self) -> Outcome<()> {
        let Some(mut frozen) = self.frozen.take() else {
            return Err(self.refused("has no snapshot to read", "run the plan again"));
        };
        let result = self.copy_frozen(&mut frozen);
        if let Err(error) = &result {
            let (state, why) = (PassState::Failed, Some(error.chain()));
            let row = PassRow { state, why, ended_ms: Some(self.context.clock.now_ms()), ..frozen.row };
            // The error that led here is the one to tell.
            let _ = self.context.store.put_pass(self.context.plan, &row);
        }
        result
    }

    fn copy_frozen(&mut self, frozen: &mut FrozenVm) -> Outcome<()> {
        frozen.row.copying_ms = Some(self.context.clock.now_ms());
        let areas = self.areas(frozen)?;
        let mut why: Vec<&str> = areas.iter().filter_map(|it| it.doubt.as_deref()).collect();
        why.dedup();
        if !why.is_empty() {
            frozen.row.why = Some(why.join("; "));
            frozen.row.kind = PassKind::HashDiff;
        }
        self.tell_begin(frozen);
        let mut copies = self.copy_areas(frozen, areas)?;
        frozen.row.count(&copies);
        if copies.iter().filter_map(|it| it.pass.as_ref()).any(|it| !it.audit_mismatches.is_empty()) {
            copies = self.repair(frozen)?;
        }
        self.tell_other_bases(frozen, &copies);
        self.copies = copies.into_iter().map(Some).collect();
        frozen.row.ended_ms = Some(self.context.clock.now_ms());
        let (store, plan) = (self.context.store, self.context.plan);
        store.complete_pass(plan, &frozen.row, &frozen.vm.vm.host_id, &frozen.tracked())?;
        self.tell_end(&frozen.row);
        Ok(())
    }

    /// Images that are not those which the last pass brought up to date: somebody put others in their place, or
    /// the plan names another folder now.
    fn tell_other_bases(&self, frozen: &mut FrozenVm, copies: &[Copied]) {
        let is_other = |copied: &Copied| copied.pass.as_ref().is_some_and(|pass| pass.is_other_base);
        let disks = frozen.vm.disks.iter().zip(copies).filter(|(_, copied)| is_other(copied));
        let labels: Vec<&str> = disks.map(|(disk, _)| disk.disk.label.as_str()).collect();
        if labels.is_empty() {
            return;
        }
        let why = format!(
            "by its journal the image of {} is not the one that the last pass brought up to date, so all of it was compared",
            labels.join(", ")
        );
        self.note(format!("pass {}: {why}", frozen.row.number));
        frozen.row.kind = PassKind::HashDiff;
        frozen.row.why = Some(frozen.row.why.take().map_or(why.clone(), |more| format!("{more}; {why}")));
    }

    /// Change tracking called blocks unchanged that are not: it is not believed any more.
    fn repair(&mut self, frozen: &mut FrozenVm) -> Outcome<Vec<Copied>> {
        let why = format!(
            "change tracking is damaged: {} of {} blocks that it called unchanged had changed",
            frozen.row.mismatches, frozen.row.audited_blocks
        );
        self.note(format!(
            "{why}; from now on everything is compared (reset change tracking of the VM when it suits, and report this \
             to whoever runs its storage)"
        ));
        self.context.store.set_distrust(self.context.plan, &self.planned.vm.id, &why)?;
        frozen.row.why = Some(why.clone());
        frozen.row.kind = PassKind::HashDiff;
        let all = || DiskAreas { areas: Areas::All, doubt: Some(why.clone()) };
        let copies = self.copy_areas(frozen, frozen.vm.disks.iter().map(|_| all()).collect())?;
        frozen.row.count(&copies);
        Ok(copies)
    }

    fn copy_areas(&self, frozen: &FrozenVm, areas: Vec<DiskAreas>) -> Outcome<Vec<Copied>> {
        let work: Vec<(&PlannedDisk, DiskAreas)> = frozen.vm.disks.iter().zip(areas).collect();
        in_parallel(self.disks_at_once(), &work, self.context.stop, |(disk, areas), stop: &StopSignal| {
            let pass = self.disk_pass(frozen, disk, areas);
            self.copy_disk(&frozen.vm, disk, Some(pass), stop)
        })
    }

    fn disk_pass(&self, frozen: &FrozenVm, disk: &PlannedDisk, areas: &DiskAreas) -> DiskPass {
        let vm = &frozen.vm.vm;
        let uuid = if vm.instance_uuid.is_empty() { &vm.id } else { &vm.instance_uuid };
        let plan = self.planned.warm.map_or(PlanAudit::None, |warm| warm.audit);
        let (is_last, number) = (frozen.is_last, frozen.row.number);
        let is_full = is_last && plan == PlanAudit::Full;
        let share = if is_full { 1.0 } else { audit_share(disk.disk.capacity_bytes) };
        // In the last pass a sample would keep a guest down that waits for it.
        let is_audited = plan != PlanAudit::None && matches!(areas.areas, Areas::Changed(_));
        let is_audited = is_audited && (is_full || !is_last);
        let seed = frozen.row.began_ms as u64 ^ u64::from(number) << 48 ^ disk.index as u64;
        let job = PassJob {
            number,
            disk: format!("{uuid}/{}", disk.disk.key),
            frozen: frozen.change_ids.get(&disk.disk.key).cloned(),
            areas: areas.areas.clone(),
            since: frozen.since_of(disk.disk.key).map(str::to_string),
            audit: is_audited.then_some(Audit { share, seed }),
        };
        DiskPass { job, is_whole: areas.doubt.is_some() || is_full, is_last }
    }

    fn areas(&self, frozen: &FrozenVm) -> Outcome<Vec<DiskAreas>> {
        frozen.vm.disks.iter().map(|disk| self.areas_of(frozen, disk)).collect()
    }

    fn areas_of(&self, frozen: &FrozenVm, disk: &PlannedDisk) -> Outcome<DiskAreas> {
        let (key, label) = (disk.disk.key, &disk.disk.label);
        let all = |doubt: String| Ok(DiskAreas { areas: Areas::All, doubt: Some(doubt) });
        if frozen.since.is_empty() {
            return Ok(DiskAreas { areas: Areas::All, doubt: frozen.doubts.all() });
        }
        if let Some(doubt) = frozen.doubts.all() {
            return all(doubt);
        }
        let (Some(since), Some(now)) = (frozen.since_of(key), frozen.change_ids.get(&key)) else {
            return all(format!("{label} is not tracked"));
        };
        if !is_same_epoch(Some(since), Some(now)) {
            return all(format!("tracking of {label} began anew"));
        }
        let snapshot = frozen.row.snapshot.as_deref();
        let capacity = disk.disk.capacity_bytes;
        match self.tracking()?.changed_areas(&frozen.vm.vm, snapshot, key, capacity, since) {
            Ok(areas) => Ok(DiskAreas { areas: Areas::Changed(areas), doubt: None }),
            Err(AreasError::Forgotten(why)) => all(format!("{label}: {why}")),
            Err(AreasError::Failed(error)) => Err(EngineError::from(error)),
        }
    }

    /// Completed passes, in order.
    pub(super) fn passes_done(&self) -> Outcome<Vec<PassRow>> {
        let mut rows = self.context.store.passes_of(self.context.plan, &self.planned.vm.id)?;
        rows.retain(|row| row.state == PassState::Complete);
        Ok(rows)
    }

    fn tell_begin(&self, frozen: &FrozenVm) {
        let row = &frozen.row;
        if let Some(why) = &row.why {
            self.note(format!("pass {} reads everything: {why}", row.number));
        }
        let (number, kind, why) = (row.number, row.kind, row.why.clone());
        self.tell(Event::PassStarted { vm: self.name(), number, kind, why });
    }

    fn tell_end(&self, row: &PassRow) {
        let ended_ms = row.ended_ms.unwrap_or(row.began_ms);
        self.tell(Event::PassEnded {
            vm: self.name(),
            number: row.number,
            kind: row.kind,
            areas_bytes: row.areas_bytes,
            read_bytes: row.read_bytes,
            changed_bytes: row.changed_bytes,
            audited_blocks: row.audited_blocks,
            mismatches: row.mismatches,
            seconds: (ended_ms - row.began_ms) as f64 / 1000.0,
        });
    }

    /// Whether a cutover of an earlier run was cut short: then its VM is off, and every second counts.
    pub(super) fn is_cut_short(&self) -> Outcome<bool> {
        let row = self.context.store.vm(self.context.plan, &self.planned.vm.id)?;
        Ok(row.is_some_and(|row| row.switched_off && !row.state.has_arrived()))
    }
}

impl PassRow {
    /// Adds what the disks tell.
    fn count(&mut self, copies: &[Copied]) {
        for copied in copies {
            self.read_bytes += copied.read_bytes;
            let Some(pass) = &copied.pass else { continue };
            self.areas_bytes = self.areas_bytes.saturating_add(pass.areas_bytes);
            self.changed_bytes += pass.changed_bytes;
            self.audited_blocks += pass.audited_blocks;
            self.mismatches += pass.audit_mismatches.len() as u64;
        }
    }
}

impl FrozenVm {
    /// The state from which on the changes of a disk are asked for.
    fn since_of(&self, disk: i32) -> Option<&str> {
        self.since.iter().find(|row| row.disk == disk)?.change_id.as_deref()
    }

    /// What the next pass is asked from, once this one is complete.
    fn tracked(&self) -> Vec<TrackedRow> {
        let row = |disk: &PlannedDisk| TrackedRow {
            disk: disk.disk.key,
            change_id: self.change_ids.get(&disk.disk.key).cloned(),
            datastore: disk.disk.datastore.clone(),
            path: disk.disk.path.clone(),
            uuid: disk.disk.uuid.clone(),
            capacity: disk.disk.capacity_bytes,
        };
        self.vm.disks.iter().map(row).collect()
    }
}
