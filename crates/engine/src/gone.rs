//! VMs that their source does not have any more: nothing is left to undo there, and what was copied may be all there is of them.

use drover_plan::{PlannedDisk, PlannedVm};
use drover_types::calendar::moment_text;
use drover_types::inventory::Vm;

use crate::error::{Cause, EngineError, chain};
use crate::itinerary::{Context, look, own_name};
use crate::phase::Phase;
use crate::provider::SourceProvider;
use crate::rehearsal::{CopyState, copy_of};
use crate::store::{EventRow, PassState, Store, StoreError, VmRow};

/// What a source tells of a VM that is given up.
pub(crate) enum AtSource {
    There(Box<Vm>),
    /// It has the VM no more, by its own word.
    Gone,
    /// It does not tell, and why.
    Untold(String),
}

/// Looks at the source of a VM that is given up.
pub(crate) fn at_source(context: &Context<'_>, planned: &PlannedVm) -> AtSource {
    let error = match look(context.source, planned) {
        Ok(now) => return AtSource::There(Box::new(now)),
        Err(error) => error,
    };
    // Who gives no answer, or may not tell, says nothing of the VM.
    if error.cause != Cause::Source {
        return AtSource::Untold(chain(&error));
    }
    match is_gone(context.plan, context.store, context.source, planned) {
        Ok(true) => AtSource::Gone,
        Ok(false) => AtSource::Untold(chain(&error)),
        Err(why) => {
            let advice = why.advice().map(|advice| format!(" ({advice})")).unwrap_or_default();
            AtSource::Untold(format!("{}; {}{advice}", chain(&error), why.chain()))
        }
    }
}

/// Whether the source says for certain that it has a VM no more.
///
/// # Errors
/// If it cannot be asked, if it has the VM in another place, or if it is not the source that the plan ran with since the VM was begun.
pub(crate) fn is_gone(
    plan: &str,
    store: &Store,
    source: &dyn SourceProvider,
    planned: &PlannedVm,
) -> Result<bool, EngineError> {
    let begun = store.events_since_begun(plan, &planned.vm.id)?.first().map(|event| event.at_ms);
    let runs = store.runs(plan)?;
    // A run is recorded before its VMs are. Those before it have nothing to do with what is left of the VM.
    let first = runs.iter().rposition(|run| begun.is_some_and(|at_ms| run.at_ms <= at_ms));
    let uuids = runs.into_iter().skip(first.unwrap_or(0)).map(|run| run.facts.source_uuid);
    let mut uuids: Vec<String> = uuids.filter(|uuid| !uuid.is_empty()).collect();
    uuids.dedup();
    Ok(source.is_gone(&planned.vm, &uuids)?)
}

/// Disks of a VM that is gone may still be attached to another one, which read them: that is undone. Its snapshots are gone with it.
/// Gives a line about each disk that was attached.
///
/// # Errors
/// If a disk cannot be detached, or the state not be kept.
pub(crate) fn detach_gone(
    plan: &str,
    store: &Store,
    source: &dyn SourceProvider,
    planned: &PlannedVm,
) -> Result<Vec<String>, EngineError> {
    let id = &planned.vm.id;
    let recorded = store.attachments(plan, id)?;
    let detached = source.detach(&planned.vm, &recorded)?;
    if !recorded.is_empty() {
        store.forget_attachments(plan, id)?;
    }
    Ok(detached)
}

/// In words, that a VM is gone, and what that says and does not say.
pub(crate) fn gone_words(planned: &PlannedVm) -> String {
    format!(
        "its source does not have {} ({}) any more: it was deleted there, taken out of the inventory, or moved to another vCenter",
        planned.vm.name, planned.vm.id
    )
}

/// In words, what is to be seen to should a VM be registered again at its source: as it was recorded before it was found gone.
fn should_it_come_back(plan: &str, row: &VmRow) -> String {
    let snapshot = row.snapshot.as_ref().map(|_| format!("has drover's snapshot {}", own_name(plan)));
    let is_off = row.switched_off.then(|| "is off (drover shut it down)".to_string());
    let left: Vec<String> = is_off.into_iter().chain(snapshot).collect();
    if left.is_empty() {
        String::new()
    } else {
        format!("; should it come back there, it {}", left.join(" and "))
    }
}

/// In words, what becomes of a VM that is given up and gone, and where what was copied of it stays.
pub(crate) fn kept_words(
    context: &Context<'_>,
    row: &VmRow,
    planned: &PlannedVm,
    is_begun: bool,
) -> Result<String, StoreError> {
    let (plan, target) = (context.plan, context.target);
    let gone = format!("{}{}", gone_words(planned), should_it_come_back(plan, row));
    if !is_begun {
        return Ok(gone);
    }
    // An image of which nobody can tell is named, too.
    let is_there = |disk: &&PlannedDisk| target.has_image(disk, planned).unwrap_or(true);
    let images =
        planned.disks.iter().filter(is_there).map(|disk| planned.place_of(disk).display().to_string());
    let images: Vec<String> = images.collect();
    if images.is_empty() {
        return Ok(format!("{gone}; nothing of it is at the target"));
    }
    let copy = copy_words(context, row, planned)?;
    let touched = if row.touched { "; a conversion or a start may have changed it" } else { "" };
    Ok(format!(
        "{gone}; {copy}, and stays where it is: {}{touched}. drover does not remove it any more; `drover clean {plan} --forget` forgets that it made \
         it, and then it is yours to use or to remove",
        images.join(", ")
    ))
}

/// In words, whether what was copied of a VM is whole, as far as that is known, and of what moment it is. It may be all there is of the VM, so
/// only one of which a disk was never copied to its end is said not to be whole.
fn copy_words(context: &Context<'_>, row: &VmRow, planned: &PlannedVm) -> Result<String, StoreError> {
    let (plan, store, target) = (context.plan, context.store, context.target);
    let disks = store.disks_of(plan, &row.id)?;
    let copied = |disk: &PlannedDisk| disks.iter().find(|it| it.number == disk.index && it.root.is_some());
    // Also one that cannot be judged now is not called whole.
    let (is_whole, when) = if planned.warm.is_some() {
        let passes = store.passes_of(plan, &row.id)?;
        let complete = passes.iter().rfind(|pass| pass.state == PassState::Complete).map(|pass| {
            let from = pass.frozen_ms.map(|at_ms| format!(", from {}", moment_text(at_ms)));
            format!("pass {}{}", pass.number, from.unwrap_or_default())
        });
        (matches!(copy_of(store, plan, row, planned, target), Ok(CopyState::Whole { .. })), complete)
    } else {
        // Not by the phase that it is in: a later run may have come to its end before it copied anything.
        let events = store.events_since_begun(plan, &row.id)?;
        let is_of_copy = |event: &&EventRow| {
            let is_bound = matches!(event.kind.as_str(), "started" | "ended");
            is_bound && event.phase.as_deref() == Some(Phase::Copy.name())
        };
        let ended = events.iter().rfind(is_of_copy).filter(|event| event.kind == "ended");
        let is_sound = |disk: &PlannedDisk| {
            let is_equal = copied(disk).is_some_and(|it| it.differing.unwrap_or(0) == 0);
            is_equal && target.has_image(disk, planned).unwrap_or(false)
        };
        let when = ended.map(|event| format!("copied {}", moment_text(event.at_ms)));
        (planned.disks.iter().all(is_sound), when)
    };
    Ok(match when {
        Some(when) if is_whole => format!("its copy is whole ({when})"),
        Some(when) => format!("its copy was whole ({when}; that it still is could not be confirmed)"),
        None if planned.disks.iter().all(|disk| copied(disk).is_some()) => {
            "its copy is not known to be whole".into()
        }
        None => "its copy is not whole".into(),
    })
}
