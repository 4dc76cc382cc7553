//! VMs that their source does not have any more: nothing is left to undo there, and what was copied may be all there is of them.

use drover_plan::{PlannedDisk, PlannedVm};
use drover_types::inventory::Vm;

use crate::error::{Cause, EngineError, chain};
use crate::itinerary::{Context, look, own_name};
use crate::provider::SourceProvider;
use crate::rehearsal::{CopyState, copy_of};
use crate::store::{PassState, Store, StoreError, VmRow, now_ms};

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
        Err(why) => AtSource::Untold(format!("{}; {}", chain(&error), why.chain())),
    }
}

/// Whether the source says for certain that it has a VM no more.
///
/// # Errors
/// If it cannot be asked, if it has the VM in another place, or if it is not the source that the plan ran with.
pub(crate) fn is_gone(
    plan: &str,
    store: &Store,
    source: &dyn SourceProvider,
    planned: &PlannedVm,
) -> Result<bool, EngineError> {
    let uuids = store.runs(plan)?.into_iter().map(|run| run.facts.source_uuid);
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
        "its source does not have {} ({}) any more: it was deleted there, or taken out of the inventory",
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
    let (plan, store, target) = (context.plan, context.store, context.target);
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
    // Also one that cannot be judged now is not called whole.
    let is_whole = matches!(copy_of(store, plan, row, planned, target), Ok(CopyState::Whole { .. }));
    let passes = store.passes_of(plan, &row.id)?;
    let complete = passes.iter().rfind(|pass| pass.state == PassState::Complete).map(|pass| {
        let age_ms = pass.frozen_ms.map(|frozen_ms| now_ms().saturating_sub(frozen_ms).max(0));
        let age = age_ms.map(|ms| format!(", from {} min before this was found", ms / 60_000));
        format!("pass {}{}", pass.number, age.unwrap_or_default())
    });
    let copy = match (is_whole, complete) {
        (true, Some(pass)) => format!("its copy is whole ({pass})"),
        (true, None) => "its copy is whole".into(),
        (false, Some(pass)) => format!("its copy was whole ({pass}), and is not known to be so any more"),
        (false, None) => "its copy is not whole".into(),
    };
    let touched = if row.touched { "; a conversion or a start may have changed it" } else { "" };
    Ok(format!(
        "{gone}; {copy}{touched}, and stays where it is: {}. drover does not remove it any more; `drover clean {plan} --forget` forgets that it made \
         it, and then it is yours to use or to remove",
        images.join(", ")
    ))
}
