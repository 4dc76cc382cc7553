//! A look at the disks of a VM, which leaves nothing behind at the source.

use std::sync::{Arc, Mutex, PoisonError};

use drover_disk::Disk;
use drover_plan::PlannedVm;
use drover_types::inventory::Vm;

use crate::error::{EngineError, ProviderError};
use crate::itinerary::{is_look_snapshot, look_description, not_listed, own_name, remove_listed};
use crate::provider::{AskedDisk, Attachment, SourceProvider, Urgency};
use crate::runner::PlanLock;
use crate::store::Store;

/// Keeps runs of a plan away while its VMs are looked at.
pub struct Looking {
    _lock: PlanLock,
}

impl Looking {
    /// Refused while a process runs the plan.
    ///
    /// # Errors
    /// Then, or if the state folder cannot be written.
    pub fn begin(store: &Store, plan: &str) -> Result<Looking, EngineError> {
        Ok(Looking { _lock: PlanLock::take(store, plan)? })
    }
}

/// How a look went.
#[derive(Debug)]
pub struct Looked<T> {
    /// What was seen.
    pub seen: Result<T, ProviderError>,
    /// Why the snapshot, or what was attached to read it, may still be there.
    pub left: Option<ProviderError>,
}

/// Freezes the disks of a VM under a snapshot, running or not, hands them to `look`, and removes the snapshot again.
///
/// The snapshot is marked as one of a look: no snapshot that a run needs is touched. If this process dies meanwhile, the next
/// look at the VM, or the plan's next run, removes it.
pub fn look_into<T>(
    source: &dyn SourceProvider,
    plan: &str,
    vm: &PlannedVm,
    look: impl FnOnce(&[Arc<dyn Disk>]) -> T,
) -> Looked<T> {
    let now = match source.vm(&vm.vm.id) {
        Ok(now) => now,
        Err(error) => return Looked { seen: Err(error), left: None },
    };
    if let Err(error) = tidy(source, plan, &now, &Made::default()) {
        let seen = Err(ProviderError::new(error.cause, "what an earlier look left is in the way"));
        return Looked { seen, left: Some(error) };
    }
    let mut made = Made::default();
    let seen = look_frozen(source, plan, vm, &now, &mut made, look);
    let tidied = source.vm(&vm.vm.id).and_then(|now| tidy(source, plan, &now, &made));
    Looked { seen, left: tidied.err() }
}

/// What a look made at the source.
#[derive(Default)]
struct Made {
    snapshot: Option<String>,
    attached: Mutex<Vec<Attachment>>,
}

fn look_frozen<T>(
    source: &dyn SourceProvider,
    plan: &str,
    vm: &PlannedVm,
    now: &Vm,
    made: &mut Made,
    look: impl FnOnce(&[Arc<dyn Disk>]) -> T,
) -> Result<T, ProviderError> {
    let frozen = source.create_snapshot(now, &own_name(plan), &look_description(plan))?;
    made.snapshot = Some(frozen.snapshot.clone());
    let record = |attachment: &Attachment| -> Result<(), ProviderError> {
        made.attached.lock().unwrap_or_else(PoisonError::into_inner).push(attachment.clone());
        Ok(())
    };
    let open = |disk| {
        let snapshot = &frozen.snapshot;
        let wanted = AskedDisk { vm, disk, snapshot, urgency: Urgency::Later, record: &record };
        Ok(source.open_disk(&wanted)?.disk)
    };
    let disks = vm.disks.iter().map(open).collect::<Result<Vec<_>, ProviderError>>()?;
    Ok(look(&disks))
}

/// Detaches what is attached elsewhere, and removes the snapshots of looks.
fn tidy(source: &dyn SourceProvider, plan: &str, now: &Vm, made: &Made) -> Result<(), ProviderError> {
    let looks = || now.snapshots.iter().filter(|snapshot| is_look_snapshot(&snapshot.description, plan));
    let attached = made.attached.lock().unwrap_or_else(PoisonError::into_inner);
    if made.snapshot.is_none() && attached.is_empty() && looks().next().is_none() {
        // What is attached now is no look's.
        return Ok(());
    }
    source.detach(now, &attached)?;
    for snapshot in looks() {
        remove_listed(source, now, snapshot)?;
    }
    let is_listed = |id: &String| looks().any(|snapshot| snapshot.id == *id);
    match made.snapshot.as_ref().filter(|id| !is_listed(id)) {
        Some(id) if source.has_snapshot(now, id)? => Err(not_listed(plan, now, id)),
        _ => Ok(()),
    }
}
