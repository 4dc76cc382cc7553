//! The look at the source before every pass. Pure: what was, what is, what follows.

use drover_plan::PlannedVm;
use drover_types::count;
use drover_types::inventory::{PowerState, Vm, VmDisk};

use crate::error::{Cause, ProviderError};
use crate::itinerary::check::begin_anew;
use crate::itinerary::is_own_snapshot;
use crate::store::TrackedRow;

/// vSphere allows 32 in a chain; one that is as long as this grows or is forgotten by somebody.
const SNAPSHOTS_MAX: usize = 24;

/// What the last pass left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Before<'a> {
    pub(super) plan: &'a str,
    pub(super) planned: &'a PlannedVm,
    /// Host of the VM; absent before the first pass.
    pub(super) host: Option<&'a str>,
    /// Its disks; none before the first pass.
    pub(super) disks: &'a [TrackedRow],
    /// Why change tracking is not believed any more.
    pub(super) distrust: Option<&'a str>,
}

/// Why areas are not believed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Doubts {
    /// Over once everything was compared.
    pub(super) passing: Vec<String>,
    /// There to stay.
    pub(super) lasting: Vec<String>,
}

impl Doubts {
    pub(super) fn all(&self) -> Option<String> {
        let all: Vec<&str> = self.passing.iter().chain(&self.lasting).map(String::as_str).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

/// Looks at a VM before a pass.
///
/// # Errors
/// If the disks are not those of the plan: that cannot be mended by comparing.
pub(super) fn inspect(before: &Before<'_>, now: &Vm) -> Result<Doubts, ProviderError> {
    check_disks(before, now)?;
    let foreign = now.snapshots.iter().filter(|it| !is_own_snapshot(&it.description, before.plan));
    let foreign: Vec<&str> = foreign.map(|snapshot| snapshot.name.as_str()).collect();
    if now.snapshots.len() > SNAPSHOTS_MAX {
        let what = format!("{} has {}", now.name, count(now.snapshots.len(), "snapshot"));
        let advice =
            format!("remove those that nobody needs ({SNAPSHOTS_MAX} are the most that drover adds to)");
        return Err(ProviderError::new(Cause::Source, what).advise(advice));
    }
    let mut doubts = Doubts::default();
    if !foreign.is_empty() {
        let text = format!("somebody else made a snapshot of it ({})", foreign.join(", "));
        doubts.lasting.push(text);
    }
    doubts.lasting.extend(before.distrust.map(str::to_string));
    if let Some(host) = before.host.filter(|host| *host != now.host_id) {
        doubts.passing.push(format!("it moved from host {host} to {}", now.host_id));
    }
    if !now.change_tracking {
        doubts.passing.push("change tracking was switched off".into());
    }
    for row in before.disks {
        if let Some(disk) = now.disks.iter().find(|disk| disk.key == row.disk) {
            doubts.passing.extend(disk_doubt(row, disk, now));
        }
    }
    Ok(doubts)
}

fn disk_doubt(row: &TrackedRow, disk: &VmDisk, now: &Vm) -> Option<String> {
    let (label, datastore) = (&disk.label, &disk.datastore);
    if row.datastore != *datastore {
        return Some(format!("{label} moved from datastore {} to {datastore}", row.datastore));
    }
    // While there are snapshots, the file in use is another.
    if row.path != disk.path && now.snapshots.is_empty() {
        return Some(format!("{label} moved from {} to {}", row.path, disk.path));
    }
    if row.change_id.is_none() && disk.change_id.is_some() {
        return Some(format!("it is not known since when changes of {label} were tracked"));
    }
    let is_other =
        disk.change_id.as_deref().is_some_and(|id| !is_same_epoch(row.change_id.as_deref(), Some(id)));
    is_other.then(|| format!("tracking of {label} began anew"))
}

/// Whether what changed between two change ids is known: the part before the `/` tells since when changes are
/// tracked at all.
pub(super) fn is_same_epoch(earlier: Option<&str>, later: Option<&str>) -> bool {
    let epoch = |id: &str| id.rsplit_once('/').map(|(epoch, _)| epoch.to_string());
    match (earlier, later) {
        (Some(earlier), Some(later)) => epoch(earlier).is_some() && epoch(earlier) == epoch(later),
        _ => false,
    }
}

fn check_disks(before: &Before<'_>, now: &Vm) -> Result<(), ProviderError> {
    let name = &now.name;
    let refuse = |what: String| {
        let advice = begin_anew(before.plan, &before.planned.target_name);
        Err(ProviderError::new(Cause::Source, what).advise(advice))
    };
    for planned in before.planned.disks.iter().map(|disk| &disk.disk) {
        let Some(disk) = now.disks.iter().find(|disk| disk.key == planned.key) else {
            return refuse(format!("{} of {name} was removed while it was being moved", planned.label));
        };
        let tracked = before.disks.iter().find(|row| row.disk == planned.key);
        let (had, has) = (tracked.map_or(planned.capacity_bytes, |row| row.capacity), disk.capacity_bytes);
        if had != has {
            let word = if has > had { "grown" } else { "shrunk" };
            let what = format!(
                "{} of {name} was {word} from {had} to {has} bytes while it was being moved",
                disk.label
            );
            return refuse(what);
        }
        let uuid = tracked.map_or(planned.uuid.as_str(), |row| row.uuid.as_str());
        if !uuid.is_empty() && !disk.uuid.is_empty() && uuid != disk.uuid {
            return refuse(format!("{} of {name} is another disk than when it was begun", disk.label));
        }
    }
    let known = |key: i32| before.planned.vm.disks.iter().any(|disk| disk.key == key);
    match now.disks.iter().find(|disk| !known(disk.key)) {
        Some(disk) => refuse(format!("{} of {name} was added while it was being moved", disk.label)),
        None => Ok(()),
    }
}

/// A word about a VM that does not run.
pub(super) fn power_word(planned: &PlannedVm, now: &Vm) -> Option<String> {
    let starts = if planned.start { ", and it is started at the target when it has moved over" } else { "" };
    match now.power {
        PowerState::On => None,
        PowerState::Unknown => {
            Some("has a power state that the source does not tell; it has to be known to be off".into())
        }
        PowerState::Off if planned.vm.power == PowerState::Off => {
            Some(format!("is off: nothing is left to shut down{starts}"))
        }
        PowerState::Off => Some(format!(
            "was switched off by someone; its passes go on, nothing is left to shut down{starts}"
        )),
        PowerState::Suspended => {
            Some("was suspended by someone; it has to run again, or be off, before it can move over".into())
        }
    }
}

#[cfg(test)]
mod tests;
