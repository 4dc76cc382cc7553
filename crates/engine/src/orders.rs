//! What users order about a plan from outside: the cutover, another try of what failed, and the removal of what may be left.

use std::collections::{HashMap, HashSet};

use drover_plan::{Plan, PlannedVm, name_matches};
use drover_types::inventory::Snapshot;
use drover_types::{Opening, some_of};
use serde::Serialize;

use crate::error::{Cause, EngineError, ProviderError};
use crate::gone::{detach_gone, is_gone};
use crate::itinerary::{check_recorded, is_own_snapshot, look, remove_own_snapshots};
use crate::provider::{SourceProvider, TargetProvider};
use crate::runner::PlanLock;
use crate::store::{PlanState, Store, VmRow, VmState, now_ms};

/// VMs that are named where an order is refused.
const NAMES_MAX: usize = 5;

/// Asks that VMs of a plan move over: those of these names or patterns, those of a wave, or, without either, all that move warm and have
/// not arrived. A running drover does it at once, else the next one that goes on with the plan. Gives their names.
///
/// # Errors
/// If there is nothing to move over by those names or in that wave, one of them failed in the run that goes on, or the state cannot be
/// written.
pub fn ask_cutover(
    store: &Store,
    plan: &str,
    names: &[String],
    wave: Option<&str>,
) -> Result<Vec<String>, EngineError> {
    let rows = store.vms(plan)?;
    let given_up = store.give_ups(plan)?;
    let planned = |row: &VmRow| serde_json::from_str::<PlannedVm>(&row.planned).ok();
    let is_warm = |row: &VmRow| planned(row).is_some_and(|planned| planned.warm.is_some());
    // A run leaves what failed alone until it is tried again.
    let (is_run, again) = (is_being_run(store, plan)?, store.retries(plan)?);
    let is_out = |row: &VmRow| is_run && row.state == VmState::Failed && !again.contains(&row.id);
    let is_left = |row: &VmRow| !row.state.has_arrived() && !given_up.contains(&row.id) && !is_out(row);
    let waits = |row: &VmRow| is_left(row) && is_warm(row);
    let wanted: Vec<&VmRow> = match (names, wave) {
        ([], None) => rows.iter().filter(|row| waits(row)).collect(),
        ([], Some(wave)) => members_of(plan, wave, &rows)?.into_iter().filter(|row| waits(row)).collect(),
        (names, None) => rows_of(plan, names, &rows, waits)?,
        (_, Some(_)) => return refuse("VMs and a wave are named".into(), "name one or the other"),
    };
    for row in &wanted {
        let name = &row.name;
        if row.state.has_arrived() {
            return refuse(format!("{name} has arrived already"), "see `drover report`");
        }
        if given_up.contains(&row.id) {
            let advice = format!("when the run has ended, `drover retry {plan} {name}` takes it back");
            return refuse(format!("{name} is given up by order"), &advice);
        }
        if !is_warm(row) {
            let what = format!("{name} moves cold, without a cutover");
            return refuse(what, "let it go on, or use `mode: warm`");
        }
        if is_out(row) {
            let what = format!("{name} has failed, and a cutover has no effect on it");
            let advice = format!("mend the cause, then `drover retry {plan} {name}`, then order its cutover");
            return refuse(what, &advice);
        }
    }
    if wanted.is_empty() {
        let of = wave.map(|wave| format!("wave {wave} of ")).unwrap_or_default();
        let what = format!("no VM of {of}plan {plan} waits for a cutover");
        return refuse(what, "see `drover status` for its VMs");
    }
    let mut asked = Vec::new();
    for row in wanted {
        asked.extend(store.ask_cutover(plan, Some(&row.name))?);
    }
    Ok(asked)
}

/// Asks that failed VMs of a plan, by their names or all of them, are tried again by the run that goes on with the others. The drover that
/// runs the plan does it at once. Gives their names.
///
/// # Errors
/// If nothing runs the plan, for then a resume tries them; if one of them did not fail, or none did; if the window of its wave is over, or
/// those of all are where none is named; or if the state cannot be written.
pub fn ask_retry(store: &Store, plan: &str, names: Option<&[String]>) -> Result<Vec<String>, EngineError> {
    let rows = store.vms_in_short(plan)?;
    let advice = format!("`drover resume {plan}` goes on with it, and tries what failed again");
    let Some(holder) = PlanLock::holder(store, plan)? else {
        return refuse(format!("nothing runs plan {plan}"), &advice);
    };
    // Who only cleans up or rehearses holds the same lock, and a run that was killed left the rest as it was.
    let runs = store.plan(plan)?.and_then(|row| row.pid);
    if runs.is_some_and(|runs| runs.to_string() != holder) {
        let what = format!("process {holder} is at work on plan {plan}, and moves none of its VMs");
        return refuse(what, &format!("wait for it; then {advice}"));
    }
    let given_up = store.give_ups(plan)?;
    let is_given_up = |row: &&VmRow| given_up.contains(&row.id);
    let has_failed = |row: &VmRow| row.state == VmState::Failed && !is_given_up(&row);
    let named = names.map(|names| rows_of(plan, names, &rows, has_failed)).transpose()?;
    let mut wanted = match named {
        Some(named) => {
            if let Some(row) = named.iter().find(|row| is_given_up(row)) {
                let advice =
                    format!("when the run has ended, `drover retry {plan} {}` takes it back", row.name);
                return refuse(format!("{} is given up by order", row.name), &advice);
            }
            named.iter().try_for_each(|row| check_failed(plan, row))?;
            named
        }
        None => rows.iter().filter(|row| has_failed(row)).collect(),
    };
    if wanted.is_empty() {
        return refuse(
            format!("no VM of plan {plan} has failed"),
            &format!("see `drover status {plan}` for its VMs"),
        );
    }
    let late = late_vms(store, plan)?;
    let is_late = |row: &VmRow| late.contains_key(&row.id);
    let all_are_late = wanted.iter().all(|row| is_late(row));
    // What a pattern matched was named, too: none of it is left out unseen.
    if let Some(row) = wanted.iter().find(|row| is_late(row) && (all_are_late || names.is_some())) {
        let (name, wave) = (&row.name, &late[&row.id]);
        let what = format!("the window of wave {wave} is over, so {name} would fail again at once");
        let advice = format!(
            "give the wave a later end in the plan's file, then `drover pause {plan}` and `drover migrate` with the file: what was copied is kept"
        );
        return refuse(what, &advice);
    }
    wanted.retain(|row| !is_late(row));
    let ids: Vec<&str> = wanted.iter().map(|row| row.id.as_str()).collect();
    if !store.ask_retry(plan, &ids)? {
        let advice = format!(
            "try it again in a moment; when the run has ended, `drover resume {plan}` tries what failed"
        );
        return refuse(format!("the run of plan {plan} has only begun, or is about to end"), &advice);
    }
    Ok(wanted.into_iter().map(|row| row.name.clone()).collect())
}

/// Asks that VMs of a plan, by their names, are given up: what was begun of them is undone, and the plan goes on without them, also in
/// later runs. The run of the plan heeds it at once, else [`crate::cancel_ordered`]. Gives their names.
///
/// # Errors
/// If one of them is not there or has arrived, if the plan has ended, or if the state cannot be written.
pub fn ask_give_up(store: &Store, plan: &str, names: &[String]) -> Result<Vec<String>, EngineError> {
    let rows = store.vms_in_short(plan)?;
    let goes = |row: &VmRow| !row.state.has_arrived() && row.state != VmState::Cancelled;
    let wanted = rows_of(plan, names, &rows, goes)?;
    if let Some(row) = wanted.iter().find(|row| row.state.has_arrived()) {
        let given_up = store.give_ups(plan)?;
        let is_new = |row: &&&VmRow| goes(row) && !given_up.contains(&row.id);
        let others: Vec<&str> = wanted.iter().filter(is_new).map(|row| row.name.as_str()).collect();
        let others = match others.is_empty() {
            true => String::new(),
            false => format!("; nothing was ordered of {}", some_of(&others, NAMES_MAX)),
        };
        let what = format!("{} has arrived already, and is not given up{others}", row.name);
        return refuse(
            what,
            "its source is off, and its machine is at the target: see `drover report`; name VMs alone that have not arrived",
        );
    }
    let ids: Vec<&str> = wanted.iter().map(|row| row.id.as_str()).collect();
    store.ask_give_up(plan, &ids)?;
    Ok(wanted.into_iter().map(|row| row.name.clone()).collect())
}

/// Names of the VMs of a wave that can be given up: those that have not arrived, also where that was ordered and is not undone yet.
///
/// # Errors
/// If there are none, the plan has no such wave, or the state cannot be read.
pub fn wave_to_give_up(store: &Store, plan: &str, wave: &str) -> Result<Vec<String>, EngineError> {
    let rows = store.vms(plan)?;
    let given_up = store.give_ups(plan)?;
    let is_undone = |row: &VmRow| row.state == VmState::Cancelled && given_up.contains(&row.id);
    let goes = |row: &&VmRow| !row.state.has_arrived() && !is_undone(row);
    let names = names_of(members_of(plan, wave, &rows)?.into_iter().filter(goes));
    match names.is_empty() {
        true => refuse(
            format!("all VMs of wave {wave} of plan {plan} have arrived, or are given up"),
            &format!("see `drover status {plan}` for its VMs"),
        ),
        false => Ok(names),
    }
}

/// Names of the VMs of a wave that can be tried again: those that failed or, if none did, those that were given up by order.
///
/// # Errors
/// If there are none, the plan has no such wave, or the state cannot be read.
pub fn wave_to_try_again(store: &Store, plan: &str, wave: &str) -> Result<Vec<String>, EngineError> {
    let rows = store.vms(plan)?;
    let given_up = store.give_ups(plan)?;
    let members = members_of(plan, wave, &rows)?;
    let of = |is_out: bool| {
        let is_to_move = |row: &VmRow| is_out || row.state == VmState::Failed;
        let fits = |row: &&&VmRow| given_up.contains(&row.id) == is_out && is_to_move(row);
        names_of(members.iter().filter(fits).copied())
    };
    let failed = of(false);
    let names = if failed.is_empty() { of(true) } else { failed };
    match names.is_empty() {
        true => refuse(
            format!("no VM of wave {wave} of plan {plan} has failed, or was given up"),
            &format!("see `drover status {plan}` for its VMs"),
        ),
        false => Ok(names),
    }
}

/// VMs of a plan whose waves' windows are over for good, by their ids, with these waves. What is down, or frozen, goes on whatever its
/// window.
fn late_vms(store: &Store, plan: &str) -> Result<HashMap<String, String>, EngineError> {
    let text = store.plan(plan)?.map(|row| row.text).unwrap_or_default();
    let waves = Plan::parse(&text).map(|plan| plan.waves()).unwrap_or_default();
    let now_ms = now_ms().max(0) as u64;
    let over = waves.into_iter().filter(|wave| wave.window.at(now_ms) == Opening::Never);
    let over: HashSet<String> = over.map(|wave| wave.name).collect();
    if over.is_empty() {
        return Ok(HashMap::new());
    }
    let at_rest = store.vms(plan)?.into_iter().filter(|row| !row.switched_off && row.snapshot.is_none());
    let late = at_rest.filter_map(|row| Some((row.id, row.wave?))).filter(|(_, wave)| over.contains(wave));
    Ok(late.collect())
}

/// The VMs of a wave, which has some.
fn members_of<'a>(plan: &str, wave: &str, rows: &'a [VmRow]) -> Result<Vec<&'a VmRow>, EngineError> {
    let members: Vec<&VmRow> = rows.iter().filter(|row| row.wave.as_deref() == Some(wave)).collect();
    if members.is_empty() {
        let advice = format!("see `drover status {plan}` for its waves");
        return refuse(format!("plan {plan} has no VM in a wave '{wave}'"), &advice);
    }
    Ok(members)
}

fn names_of<'a>(rows: impl Iterator<Item = &'a VmRow>) -> Vec<String> {
    rows.map(|row| row.name.clone()).collect()
}

/// Takes VMs back that were given up by order: the next run of their plan moves them, from the beginning. Gives their names; none if
/// none of these was given up so.
///
/// # Errors
/// If something runs the plan, if one of them was given up and another was not, or if the state cannot be written.
pub fn take_back(store: &Store, plan: &str, names: &[String]) -> Result<Vec<String>, EngineError> {
    let given_up = store.give_ups(plan)?;
    if given_up.is_empty() {
        return Ok(Vec::new());
    }
    let rows = store.vms_in_short(plan)?;
    let mut wanted = rows_of(plan, names, &rows, |_| true)?;
    let is_given_up = |row: &&&VmRow| given_up.contains(&row.id);
    if names.iter().any(|name| is_pattern(name, &rows)) {
        // A pattern is for those that failed, if there are any.
        if wanted.iter().any(|row| row.state == VmState::Failed && !is_given_up(&row)) {
            return Ok(Vec::new());
        }
        wanted.retain(|row| is_given_up(&row));
    }
    if !wanted.iter().any(|row| is_given_up(&row)) {
        return Ok(Vec::new());
    }
    if let Some(row) = wanted.iter().find(|row| !is_given_up(row)) {
        let what = format!("{} was not given up, and others of these were", row.name);
        return refuse(what, "name those alone that are to be taken back");
    }
    // No run may begin meanwhile.
    let _lock = match PlanLock::take(store, plan) {
        Ok(lock) => lock,
        Err(EngineError::Running { .. }) => {
            let what = format!("{} cannot be taken back while plan {plan} runs", wanted[0].name);
            return refuse(what, "when its run has ended, the same command takes it back");
        }
        Err(error) => return Err(error),
    };
    let ids: Vec<&str> = wanted.iter().map(|row| row.id.as_str()).collect();
    store.take_back(plan, &ids)?;
    Ok(wanted.into_iter().map(|row| row.name.clone()).collect())
}

fn check_failed(plan: &str, row: &VmRow) -> Result<(), EngineError> {
    let name = &row.name;
    let resume = format!("when the run has ended, `drover resume {plan}` goes on with it");
    let (why, advice) = match row.state {
        VmState::Failed => return Ok(()),
        VmState::Queued if row.error.is_some() => ("failed, and how far it came is not known", resume),
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
        VmState::Cancelled => {
            let advice = format!("when the run has ended, `drover retry {plan} {name}` takes it back");
            ("was given up, and did not fail", advice)
        }
    };
    refuse(format!("{name} {why}"), &advice)
}

/// Whether a name stands for others: one with `*` or `?` that no VM has.
fn is_pattern(name: &str, rows: &[VmRow]) -> bool {
    name.contains(['*', '?']) && !rows.iter().any(|row| row.name == name)
}

/// The VMs of these names, each once. A pattern is for those of which an order of this kind can be.
fn rows_of<'a>(
    plan: &str,
    names: &[String],
    rows: &'a [VmRow],
    can_be: impl Fn(&VmRow) -> bool,
) -> Result<Vec<&'a VmRow>, EngineError> {
    let (mut found, mut ids) = (Vec::new(), HashSet::new());
    for name in names {
        let of: Vec<&VmRow> = match is_pattern(name, rows) {
            true => rows.iter().filter(|row| name_matches(name, &row.name) && can_be(row)).collect(),
            false => vec![row_of(plan, name, rows)?],
        };
        if of.is_empty() {
            let what =
                format!("plan {plan} has no VM that matches '{name}' and that this can be done with now");
            return refuse(what, &format!("see `drover status {plan}` for its VMs"));
        }
        found.extend(of.into_iter().filter(|row| ids.insert(row.id.as_str())));
    }
    Ok(found)
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

/// Whether a process runs a plan now.
///
/// # Errors
/// If that cannot be found out.
pub fn is_running(store: &Store, plan: &str) -> Result<bool, EngineError> {
    PlanLock::holder(store, plan).map(|holder| holder.is_some())
}

/// Whether a run of a plan is at work now, and no one who cleans up, rehearses or gives it up.
///
/// # Errors
/// If that cannot be asked.
pub fn is_being_run(store: &Store, plan: &str) -> Result<bool, EngineError> {
    let holder = PlanLock::holder(store, plan)?;
    let runs = store.plan(plan)?.filter(|row| row.state == PlanState::Running).and_then(|row| row.pid);
    Ok(holder.is_some() && holder == runs.map(|runs| runs.to_string()))
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
    /// VMs that their source does not have any more: nothing is left of them there.
    pub gone: Vec<String>,
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
            Ok((found, detached, is_there)) => {
                cleaned.found.extend(found);
                cleaned.detached.extend(detached);
                cleaned.gone.extend((!is_there).then(|| row.name.clone()));
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

/// A plan that was removed from the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// VMs that it had.
    pub vms: usize,
    /// Those of them whose change tracking drover switched on and left on at the source.
    pub tracked: Vec<String>,
}

/// Removes a plan that is over from the state, so that its name is free. The journals of its images go, too, and whatever else says that
/// drover made them: without its record nobody may take the images for copies that can be gone on with. Images, machines and sources stay.
///
/// # Errors
/// If another process runs the plan, something of it is left to be done, or state or journals cannot be read, found or removed.
pub fn forget(store: &Store, plan: &str, target: &dyn TargetProvider) -> Result<Forgotten, EngineError> {
    let _lock = PlanLock::take(store, plan)?;
    let refused =
        |why: String, advice: String| Err(ProviderError::new(Cause::Plan, why).advise(advice).into());
    let state = store.plan(plan)?.map(|row| row.state);
    if !matches!(state, Some(PlanState::Done | PlanState::Cancelled)) {
        let why = format!("plan {plan} is not over, and is not forgotten");
        return refused(why, format!("`drover resume {plan}` or `drover cancel {plan}` first"));
    }
    let (mut vms, mut tracked) = (Vec::new(), Vec::new());
    for row in store.vms(plan)? {
        if row.snapshot.is_some() || !store.attachments(plan, &row.id)?.is_empty() {
            let why =
                format!("plan {plan} is not forgotten: drover left something of {} at its source", row.name);
            return refused(why, format!("`drover clean {plan}` first"));
        }
        let vm: PlannedVm = serde_json::from_str(&row.planned).map_err(|error| {
            let what = format!(
                "plan {plan} is not forgotten: where the journals of {} are cannot be read in the state",
                row.name
            );
            let error = ProviderError::new(Cause::Internal, what).because(error);
            error.advise("use the version of drover that moved it")
        })?;
        for disk in vm.disks.iter().filter(|_| row.state.has_arrived()) {
            let journal = target.journal(disk, &vm);
            // That nothing is found in a folder that is not there proves nothing: a file system may not be mounted.
            let folder = disk.path.parent().filter(|folder| journal.parent() == Some(*folder));
            if let Some(folder) = folder.filter(|folder| !folder.exists()) {
                let folder = folder.display();
                let why = format!(
                    "plan {plan} is not forgotten: {folder}, with the images and journals of {}, is not there",
                    row.name
                );
                return refused(
                    why,
                    format!(
                        "mount what it is on; if it is gone for good, make it anew (`mkdir -p {folder}`)"
                    ),
                );
            }
        }
        if store.warm(plan, &row.id)?.tracking_on {
            tracked.push(row.name);
        }
        vms.push(vm);
    }
    for vm in &vms {
        target.forget(vm)?;
        for journal in vm.disks.iter().map(|disk| target.journal(disk, vm)) {
            match std::fs::remove_file(&journal) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    let what = format!("removing {}", journal.display());
                    return Err(ProviderError::new(Cause::Target, what).because(error).into());
                }
                _ => {}
            }
        }
    }
    store.remove_plan(plan)?;
    Ok(Forgotten { vms: vms.len(), tracked })
}

/// Gives what was found and what was detached, and whether the source has the VM still.
fn clean_vm(
    store: &Store,
    plan: &str,
    source: &dyn SourceProvider,
    row: &VmRow,
) -> Result<(Vec<FoundSnapshot>, Vec<String>, bool), EngineError> {
    let planned: PlannedVm = serde_json::from_str(&row.planned)
        .map_err(|error| ProviderError::new(Cause::Internal, "its plan cannot be read").because(error))?;
    let is_own = |snapshot: &&Snapshot| is_own_snapshot(&snapshot.description, plan);
    let before = match look(source, &planned) {
        Err(error) if error.cause == Cause::Source && is_gone(plan, store, source, &planned)? => {
            let detached = detach_gone(plan, store, source, &planned)?;
            store.set_snapshot(plan, &row.id, None)?;
            return Ok((Vec::new(), detached, false));
        }
        now => now?,
    };
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
    let is_clean = found.iter().all(|it| it.gone) && !now.snapshots.iter().any(|it| is_own(&it));
    if is_clean {
        check_recorded(plan, store, source, &now)?;
        store.set_snapshot(plan, &row.id, None)?;
    }
    match removed {
        Ok(detached) => Ok((found, detached, true)),
        // It is gone all the same.
        Err(_) if is_clean && !found.is_empty() => Ok((found, Vec::new(), true)),
        Err(error) => {
            let what = format!("what was left cannot be removed: {}", error.chain());
            Err(ProviderError::new(error.cause(), what).into())
        }
    }
}
