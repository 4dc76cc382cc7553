//! What users order about a plan from outside: the cutover, another try of what failed, and the removal of what may be left.

use drover_plan::PlannedVm;
use drover_types::inventory::Snapshot;
use serde::Serialize;

use crate::error::{Cause, EngineError, ProviderError};
use crate::itinerary::{check_recorded, is_own_snapshot, look, remove_own_snapshots};
use crate::provider::SourceProvider;
use crate::runner::PlanLock;
use crate::store::{Store, VmRow, VmState};

/// Asks that one VM of a plan, or all that move warm and have not arrived, move over. A running drover does it
/// at once, else the next one that goes on with the plan. Gives their names.
///
/// # Errors
/// If there is nothing to move over by that name, or the state cannot be written.
pub fn ask_cutover(store: &Store, plan: &str, name: Option<&str>) -> Result<Vec<String>, EngineError> {
    let rows = store.vms(plan)?;
    if let Some(name) = name {
        let row = row_of(plan, name, &rows)?;
        if row.state.has_arrived() {
            return refuse(format!("{name} has arrived already"), "see `drover report`");
        }
        if !is_warm(row) {
            return refuse(
                format!("{name} moves cold, without a cutover"),
                "let it go on, or use `mode: warm`",
            );
        }
    }
    let is_wanted = |row: &&VmRow| name.is_none_or(|name| row.name == name);
    let waits = |row: &&VmRow| !row.state.has_arrived() && is_warm(row);
    let mut asked = Vec::new();
    for row in rows.iter().filter(is_wanted).filter(waits) {
        asked.extend(store.ask_cutover(plan, Some(&row.name))?);
    }
    if asked.is_empty() {
        return refuse(
            format!("no VM of plan {plan} waits for a cutover"),
            "see `drover status` for its VMs",
        );
    }
    Ok(asked)
}

/// Asks that failed VMs of a plan, by their names or all of them, are tried again by the run that goes on with the others. The drover that
/// runs the plan does it at once. Gives their names.
///
/// # Errors
/// If nothing runs the plan, for then a resume tries them; if one of them did not fail, or none did; or if the state cannot be written.
pub fn ask_retry(store: &Store, plan: &str, names: Option<&[String]>) -> Result<Vec<String>, EngineError> {
    let rows = store.vms_in_short(plan)?;
    let named = |names: &[String]| -> Result<Vec<&VmRow>, EngineError> {
        names.iter().map(|name| row_of(plan, name, &rows)).collect()
    };
    let named = names.map(named).transpose()?;
    if !is_running(store, plan)? {
        let advice = format!("`drover resume {plan}` goes on with it, and tries what failed again");
        return refuse(format!("nothing runs plan {plan}"), &advice);
    }
    let wanted = match named {
        Some(named) => {
            named.iter().try_for_each(|row| check_failed(plan, row))?;
            named
        }
        None => rows.iter().filter(|row| row.state == VmState::Failed).collect(),
    };
    if wanted.is_empty() {
        return refuse(
            format!("no VM of plan {plan} has failed"),
            &format!("see `drover status {plan}` for its VMs"),
        );
    }
    let ids: Vec<&str> = wanted.iter().map(|row| row.id.as_str()).collect();
    if !store.ask_retry(plan, &ids)? {
        let advice = format!("when it has ended, `drover resume {plan}` tries what failed again");
        return refuse(format!("the run of plan {plan} is about to end"), &advice);
    }
    Ok(wanted.into_iter().map(|row| row.name.clone()).collect())
}

fn check_failed(plan: &str, row: &VmRow) -> Result<(), EngineError> {
    let name = &row.name;
    let resume = format!("when the run has ended, `drover resume {plan}` goes on with it");
    let (why, advice) = match row.state {
        VmState::Failed => return Ok(()),
        VmState::Queued => ("waits for its turn, and did not fail", format!("see `drover status {plan}`")),
        VmState::Running => ("is at work, and did not fail", format!("see `drover status {plan}`")),
        VmState::Done => ("has arrived already", "see `drover report`".into()),
        VmState::NotCleanedUp => {
            let advice = format!("when the run has ended, `drover resume {plan}` cleans up");
            ("has arrived, and only its clean-up failed", advice)
        }
        VmState::Skipped => {
            let advice = format!("when the run has ended, `drover resume {plan}` asks the hook again");
            ("was left out by a hook, and did not fail", advice)
        }
        VmState::Stopped => ("was stopped, and did not fail", resume),
        VmState::Cancelled => ("was given up, and did not fail", resume),
    };
    refuse(format!("{name} {why}"), &advice)
}

fn row_of<'a>(plan: &str, name: &str, rows: &'a [VmRow]) -> Result<&'a VmRow, EngineError> {
    match rows.iter().find(|row| row.name == name) {
        Some(row) => Ok(row),
        None => refuse(format!("plan {plan} has no VM '{name}'"), &see_its_vms(plan, name, rows)),
    }
}

fn refuse<T>(what: String, advice: &str) -> Result<T, EngineError> {
    Err(ProviderError::new(Cause::Plan, what).advise(advice).into())
}

/// What to try where a plan has no VM of that name.
pub fn see_its_vms(plan: &str, name: &str, rows: &[VmRow]) -> String {
    let near = drover_plan::near(name, rows.iter().map(|row| row.name.as_str())).join(", ");
    let near = if near.is_empty() { near } else { format!("near names: {near}; ") };
    format!("{near}see `drover status {plan}` for its VMs")
}

fn is_warm(row: &VmRow) -> bool {
    serde_json::from_str::<PlannedVm>(&row.planned).is_ok_and(|planned| planned.warm.is_some())
}

/// Whether a process runs a plan now.
///
/// # Errors
/// If that cannot be found out.
pub fn is_running(store: &Store, plan: &str) -> Result<bool, EngineError> {
    match PlanLock::take(store, plan) {
        Ok(_) => Ok(false),
        Err(EngineError::Running { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// What was found of drover's own at the source of a plan, and what of it is there still.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cleaned {
    /// VMs that were looked at.
    pub vms: usize,
    /// Snapshots that were found.
    pub found: Vec<FoundSnapshot>,
    /// Disks that were attached to other VMs and are not any more.
    pub detached: Vec<String>,
    /// What could not be removed, or not be looked at.
    pub left: Vec<String>,
}

/// A snapshot of drover's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundSnapshot {
    /// VM.
    pub vm: String,
    /// The source's id of the snapshot.
    pub snapshot: String,
    /// Its name.
    pub name: String,
    /// Whether it was looked for again and is gone.
    pub gone: bool,
}

/// Detaches disks that are attached to be read, removes every snapshot that drover made for a plan, and looks again whether
/// they are gone.
///
/// # Errors
/// If another process runs the plan, or the state cannot be read.
pub fn clean(store: &Store, plan: &str, source: &dyn SourceProvider) -> Result<Cleaned, EngineError> {
    let _lock = PlanLock::take(store, plan)?;
    let mut cleaned = Cleaned::default();
    for row in store.vms(plan)? {
        cleaned.vms += 1;
        match clean_vm(store, plan, source, &row) {
            Ok((found, detached)) => {
                cleaned.found.extend(found);
                cleaned.detached.extend(detached);
            }
            Err(error) => cleaned.left.push(format!("{}: {}", row.name, error.chain())),
        }
    }
    let stays = cleaned.found.iter().filter(|found| !found.gone);
    let stays: Vec<String> =
        stays.map(|it| format!("{}: snapshot {} ({})", it.vm, it.snapshot, it.name)).collect();
    cleaned.left.extend(stays);
    Ok(cleaned)
}

fn clean_vm(
    store: &Store,
    plan: &str,
    source: &dyn SourceProvider,
    row: &VmRow,
) -> Result<(Vec<FoundSnapshot>, Vec<String>), EngineError> {
    let planned: PlannedVm = serde_json::from_str(&row.planned)
        .map_err(|error| ProviderError::new(Cause::Internal, "its plan cannot be read").because(error))?;
    let is_own = |snapshot: &&Snapshot| is_own_snapshot(&snapshot.description, plan);
    let before = look(source, &planned)?;
    let removed = remove_own_snapshots(plan, store, source, &before);
    let now = look(source, &planned)?;
    let found = |snapshot: &Snapshot| -> Result<FoundSnapshot, ProviderError> {
        let is_listed = now.snapshots.iter().any(|it| it.id == snapshot.id);
        Ok(FoundSnapshot {
            vm: row.name.clone(),
            // Also by its id: that it is not listed proves nothing.
            gone: !is_listed && !source.has_snapshot(&now, &snapshot.id)?,
            snapshot: snapshot.id.clone(),
            name: snapshot.name.clone(),
        })
    };
    let found: Vec<FoundSnapshot> =
        before.snapshots.iter().filter(is_own).map(found).collect::<Result<_, _>>()?;
    let is_gone = found.iter().all(|it| it.gone) && !now.snapshots.iter().any(|it| is_own(&it));
    if is_gone {
        check_recorded(plan, store, source, &now)?;
        store.set_snapshot(plan, &row.id, None)?;
    }
    match removed {
        Ok(detached) => Ok((found, detached)),
        // It is gone all the same.
        Err(_) if is_gone && !found.is_empty() => Ok((found, Vec::new())),
        Err(error) => {
            let what = format!("what was left cannot be removed: {}", error.chain());
            Err(ProviderError::new(error.cause(), what).into())
        }
    }
}
