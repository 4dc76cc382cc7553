//! The report of a plan as data; the program renders it as text, JSON or a web page.

use std::collections::HashMap;
use std::path::PathBuf;

use drover_mover::Attribution;
use serde::{Deserialize, Serialize};

use crate::itinerary::undone_downtime;
use crate::provider::LinkBytes;
use crate::store::{
    DiskRow, EventRow, HookRow, PassRow, PlanRow, RehearsalRow, RunRow, SampleRow, Store, StoreError, VmRow,
    WarmRow, WaveCall,
};
use crate::waves::{WaveReport, wave_reports};

/// All that is known of a plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PlanReport {
    /// The plan.
    pub plan: PlanRow,
    /// Its runs, in order: who ran what, where and from where.
    pub runs: Vec<RunRow>,
    /// Its VMs, in order.
    pub vms: Vec<VmReport>,
    /// Its waves, in the order of the plan; none if it has none.
    pub waves: Vec<WaveReport>,
    /// The latest calls of hooks of its waves, in order.
    pub wave_hooks: Vec<WaveCall>,
    /// How fast bytes moved over time.
    pub rates: Vec<RatePoint>,
    /// What happened.
    pub events: Vec<EventRow>,
}

/// A VM of the report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VmReport {
    /// What the store has.
    #[serde(flatten)]
    pub row: VmRow,
    /// Tells the VM from all others; absent if not told.
    pub instance_uuid: Option<String>,
    /// Host of the source that it was on when the plan was begun.
    pub source_host: Option<String>,
    /// Its disks.
    pub disks: Vec<DiskReport>,
    /// Its phases in order of time; one that ran again after a resume is there twice.
    pub phases: Vec<PhaseTime>,
    /// Its passes and its downtime; absent if it moves cold.
    pub warm: Option<WarmReport>,
    /// For how many milliseconds it was down before it was switched on again at its source the last time; absent if it was not, or has
    /// arrived since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undone_downtime_ms: Option<u64>,
    /// Its latest hooks and checks, in order.
    pub hooks: Vec<HookRow>,
    /// Its latest rehearsals, in order.
    pub rehearsals: Vec<RehearsalRow>,
}

/// How a VM moves that keeps running.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WarmReport {
    /// What the store has.
    #[serde(flatten)]
    pub row: WarmRow,
    /// Its real downtime in milliseconds, from the shutdown to the start that drover saw; absent for a guest that
    /// drover did not start.
    pub downtime_ms: Option<u64>,
    /// Milliseconds from the shutdown to a target that was started, or could be where that is left to others.
    pub ready_ms: Option<u64>,
    /// Its passes in order.
    pub passes: Vec<PassRow>,
}

/// A disk of the report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiskReport {
    /// Label.
    pub label: String,
    /// Image.
    pub path: PathBuf,
    /// Capacity in bytes.
    pub size: u64,
    /// What the store has.
    pub details: DiskRow,
    /// Whether the compared blocks are equal; absent if none was compared.
    pub equal: Option<bool>,
    /// Bytes per second of the copy, over the bytes that were read.
    pub read_rate: Option<f64>,
    /// Where the time went.
    pub attribution: Option<Attribution>,
    /// What went over the link to its site, in all runs.
    pub link: Option<LinkBytes>,
    /// Its datastore when the plan was begun.
    #[serde(skip)]
    pub datastore: Option<String>,
    /// The folder or pool that it went to.
    #[serde(skip)]
    pub pool: Option<String>,
}

/// When a phase ran.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Name.
    pub phase: String,
    /// Begin, in milliseconds since 1970.
    pub started_ms: i64,
    /// End; absent if it did not end well.
    pub ended_ms: Option<i64>,
}

/// A point of the rate chart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RatePoint {
    /// When.
    pub at_ms: i64,
    /// Bytes read per second since the point before.
    pub read_rate: f64,
    /// Bytes written per second.
    pub written_rate: f64,
    /// Disks at work.
    pub disks: u64,
}

impl VmReport {
    /// Whether it is at the target.
    pub fn has_arrived(&self) -> bool {
        self.row.state.has_arrived()
    }

    /// Whether all its disks were compared and are equal; absent if any was not compared.
    pub fn equal(&self) -> Option<bool> {
        self.disks.iter().map(|disk| disk.equal).try_fold(true, |all, one| one.map(|one| all && one))
    }

    /// Hosts have names where a run told them.
    fn name_host(&mut self, runs: &[RunRow]) {
        let name = |id: &String| runs.iter().rev().find_map(|run| run.facts.source_hosts.get(id));
        self.source_host = self.source_host.take().map(|id| name(&id).cloned().unwrap_or(id));
    }

    /// Bytes read by all its copies and passes in all runs, as far as they are known. Of what an earlier drover copied its disks have the
    /// last copies alone, and its passes all.
    pub fn read_in_all(&self) -> u64 {
        let passes = self.warm.iter().flat_map(|warm| &warm.passes);
        let of_passes = passes.fold(0u64, |sum, pass| sum.saturating_add(pass.read_bytes));
        self.disks
            .iter()
            .fold(0u64, |sum, disk| sum.saturating_add(disk.details.read_in_all()))
            .max(of_passes)
    }

    /// Bytes written by them.
    pub fn written_in_all(&self) -> u64 {
        self.disks.iter().fold(0, |sum, disk| sum.saturating_add(disk.details.written_in_all()))
    }

    /// Sum over its disks.
    pub fn sum(&self, field: impl Fn(&DiskRow) -> Option<u64>) -> u64 {
        self.disks.iter().filter_map(|disk| field(&disk.details)).sum()
    }
}

/// Collects the report of a plan; `None` if there is no such plan.
///
/// # Errors
/// If the store cannot be read.
pub fn plan_report(store: &Store, name: &str) -> Result<Option<PlanReport>, StoreError> {
    let Some(plan) = store.plan(name)? else { return Ok(None) };
    let events = store.events(name)?;
    let rows = store.vms(name)?;
    let waves = wave_reports(store, &plan, &rows);
    let mut disks_of: HashMap<String, Vec<DiskRow>> = HashMap::new();
    store.disks(name)?.into_iter().for_each(|disk| disks_of.entry(disk.vm.clone()).or_default().push(disk));
    let mut events_of: HashMap<&str, Vec<&EventRow>> = HashMap::new();
    let of_vms = events.iter().filter_map(|event| Some((event.vm.as_deref()?, event)));
    of_vms.for_each(|(vm, event)| events_of.entry(vm).or_default().push(event));
    let report = |row: VmRow| {
        let disks = disks_of.remove(&row.id).unwrap_or_default();
        let events = events_of.remove(row.id.as_str()).unwrap_or_default();
        vm_report(row, disks, &events)
    };
    let mut vms: Vec<VmReport> = rows.into_iter().map(report).collect();
    for vm in &mut vms {
        vm.warm = warm_report(store, name, &vm.row)?;
        vm.hooks = store.hooks_of(name, &vm.row.id)?;
        vm.rehearsals = store.rehearsals_of(name, &vm.row.id)?;
    }
    let runs = store.runs(name)?;
    vms.iter_mut().for_each(|vm| vm.name_host(&runs));
    let rates = rates(&store.samples(name)?);
    let names: Vec<&str> = waves.iter().map(|it| it.wave.name.as_str()).collect();
    let wave_hooks = store.wave_calls(name, &names)?;
    Ok(Some(PlanReport { plan, runs, vms, waves, wave_hooks, rates, events }))
}

/// VMs that are held at a time where one is told after the other.
const VMS_AT_ONCE: usize = 64;

/// Tells of those VMs of a plan that arrived what its report tells, but for their hooks and rehearsals: one after the other, for all of
/// a large plan would take much memory.
///
/// # Errors
/// If the store cannot be read.
pub fn arrived_vms(store: &Store, plan: &str, mut tell: impl FnMut(&VmReport)) -> Result<(), StoreError> {
    let runs = store.runs(plan)?;
    let mut after = 0;
    loop {
        let page = store.vms_after(plan, after, VMS_AT_ONCE, None, None)?;
        let Some((last, _)) = page.last() else { return Ok(()) };
        after = *last;
        for (_, row) in page.into_iter().filter(|(_, row)| row.state.has_arrived()) {
            let warm = warm_report(store, plan, &row)?;
            let (disks, events) = (store.disks_of(plan, &row.id)?, store.events_of(plan, &row.id)?);
            let events: Vec<&EventRow> = events.iter().collect();
            let mut vm = VmReport { warm, ..vm_report(row, disks, &events) };
            vm.name_host(&runs);
            tell(&vm);
        }
    }
}

/// The part of a report that is about one VM.
///
/// # Errors
/// If the store cannot be read.
pub fn vm_details(store: &Store, plan: &str, row: VmRow) -> Result<VmReport, StoreError> {
    let warm = warm_report(store, plan, &row)?;
    let (disks, events) = (store.disks_of(plan, &row.id)?, store.events_of(plan, &row.id)?);
    let hooks = store.hooks_of(plan, &row.id)?;
    let rehearsals = store.rehearsals_of(plan, &row.id)?;
    let events: Vec<&EventRow> = events.iter().collect();
    Ok(VmReport { warm, hooks, rehearsals, ..vm_report(row, disks, &events) })
}

/// What a report tells of a planned VM.
#[derive(Default, Deserialize)]
struct Planned {
    vm: PlannedSource,
    #[serde(default)]
    disks: Vec<PlannedPlace>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PlannedPlace {
    index: usize,
    disk: SourceDisk,
    pool: Option<String>,
    base: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SourceDisk {
    datastore: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PlannedSource {
    instance_uuid: String,
    host_id: String,
}

fn vm_report(mut row: VmRow, disks: Vec<DiskRow>, events: &[&EventRow]) -> VmReport {
    let mut disks: Vec<DiskReport> = disks.into_iter().map(disk_report).collect();
    let phases = phase_times(events.iter().copied());
    let undone_downtime_ms = undone_downtime(events.iter().copied()).filter(|_| !row.state.has_arrived());
    // The text is the larger part of a row, and no report tells it.
    let planned = std::mem::take(&mut row.planned);
    let Planned { vm: PlannedSource { instance_uuid, host_id }, disks: places } =
        serde_json::from_str(&planned).unwrap_or_default();
    let told = |text: String| (!text.is_empty()).then_some(text);
    for PlannedPlace { index, disk, pool, base } in places {
        if let Some(report) = disks.iter_mut().find(|it| it.details.number == index) {
            (report.datastore, report.pool) = (told(disk.datastore), pool.or(told(base)));
        }
    }
    let (instance_uuid, source_host) = (told(instance_uuid), told(host_id));
    VmReport {
        row,
        instance_uuid,
        source_host,
        disks,
        phases,
        warm: None,
        undone_downtime_ms,
        hooks: Vec::new(),
        rehearsals: Vec::new(),
    }
}

fn warm_report(store: &Store, plan: &str, vm: &VmRow) -> Result<Option<WarmReport>, StoreError> {
    let passes = store.passes_of(plan, &vm.id)?;
    if passes.is_empty() {
        return Ok(None);
    }
    let row = store.warm(plan, &vm.id)?;
    let ready_ms = row.ready_ms();
    let downtime_ms = ready_ms.filter(|_| vm.started.is_some());
    Ok(Some(WarmReport { downtime_ms, ready_ms, row, passes }))
}

fn disk_report(row: DiskRow) -> DiskReport {
    let compared = row.blocks_verified.is_some_and(|blocks| blocks > 0) || row.blocks == Some(0);
    let seconds = row.copy_ms.map(|ms| ms as f64 / 1000.0).filter(|seconds| *seconds > 0.0);
    DiskReport {
        label: row.label.clone(),
        path: row.path.clone(),
        size: row.size,
        equal: compared.then(|| row.differing == Some(0)),
        read_rate: row.read_bytes.zip(seconds).map(|(bytes, seconds)| bytes as f64 / seconds),
        attribution: row.attribution.as_deref().and_then(|text| serde_json::from_str(text).ok()),
        link: row.link.as_deref().and_then(|text| serde_json::from_str(text).ok()),
        datastore: None,
        pool: None,
        details: row,
    }
}

pub(crate) fn phase_times<'a>(events: impl Iterator<Item = &'a EventRow>) -> Vec<PhaseTime> {
    let mut phases: Vec<PhaseTime> = Vec::new();
    for event in events {
        let Some(phase) = &event.phase else { continue };
        match event.kind.as_str() {
            "started" => {
                phases.push(PhaseTime { phase: phase.clone(), started_ms: event.at_ms, ended_ms: None });
            }
            "ended" => {
                if let Some(last) = phases.iter_mut().rev().find(|open| open.phase == *phase) {
                    last.ended_ms = Some(event.at_ms);
                }
            }
            _ => {}
        }
    }
    phases
}

/// Differences of neighbouring samples. A run after a resume counts from zero again, so a sum that
/// falls starts anew.
pub fn rates(samples: &[SampleRow]) -> Vec<RatePoint> {
    let point = |pair: &[SampleRow]| {
        let (before, now) = (pair[0], pair[1]);
        let seconds = (now.at_ms - before.at_ms) as f64 / 1000.0;
        (seconds > 0.0 && now.read_bytes >= before.read_bytes).then(|| RatePoint {
            at_ms: now.at_ms,
            read_rate: (now.read_bytes - before.read_bytes) as f64 / seconds,
            written_rate: now.written_bytes.saturating_sub(before.written_bytes) as f64 / seconds,
            disks: now.disks,
        })
    };
    samples.windows(2).filter_map(point).collect()
}
