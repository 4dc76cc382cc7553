//! How a worker ended, and a word for it.

use drover_engine::{RunOutcome, Store, VmState};
use drover_operator::decide::reason;
use drover_schedule::{Quarantined, Resource};

use super::super::resolve::word_of;
use crate::exit::{Exit, Failure};
use crate::run::exit_of;

/// How it ended, and a word for it.
pub(super) struct End {
    pub exit: Exit,
    pub reason: String,
    pub message: String,
    /// Whether the guest was down for it.
    pub outage: bool,
    /// Whether drover left it off; absent where that is not known.
    pub left_off: Option<bool>,
    /// Whether it failed because of the host that serves the disks.
    pub host_failed: bool,
    /// The datastore that it was, if it could not be read.
    pub datastore_failed: Option<String>,
}

impl End {
    pub fn new(exit: Exit, reason: impl Into<String>, message: impl Into<String>) -> End {
        let (reason, message) = (reason.into(), message.into());
        let (outage, left_off, host_failed, datastore_failed) = (false, None, false, None);
        End { exit, reason, message, outage, left_off, host_failed, datastore_failed }
    }
}

impl From<Failure> for End {
    fn from(failure: Failure) -> End {
        let advice = failure.advice.map(|advice| format!(" (try: {advice})")).unwrap_or_default();
        End::new(failure.exit, word(failure.exit, &failure.message), failure.message + &advice)
    }
}

/// What is mended in the cluster, by words of its message, and a word for programs.
const IN_THE_CLUSTER: [(&str, &str); 8] = [
    (" and the disk wants ", "VolumeUnfit"),
    ("is there already", "NameTaken"),
    ("no storage class", "StorageClassMissing"),
    ("this user may not", "RightsMissing"),
    ("exceeded quota", "QuotaExceeded"),
    (" left, and the plan wants ", "QuotaExceeded"),
    ("not serve kubevirt.io/", "KubeVirtMissing"),
    ("serves kubevirt.io/v1 without", "KubeVirtMissing"),
];

/// A word for programs: what is mended in the cluster has its own. Of several problems the first one gives it.
pub(super) fn word(exit: Exit, message: &str) -> String {
    let is_of_cluster = matches!(exit, Exit::Plan | Exit::Target | Exit::TargetFull | Exit::Access);
    let told = IN_THE_CLUSTER.iter().filter(|_| is_of_cluster);
    let first = told.filter_map(|(part, word)| Some((message.find(part)?, word))).min();
    first.map_or_else(|| word_of(exit), |(_, word)| word.to_string())
}

/// Whether it is a host or a datastore; a place at the target is told by the exit code.
pub(super) fn is_of_source(failed: &Quarantined) -> bool {
    !matches!(failed.what, Resource::Pool(_))
}

/// The one datastore that could not be read. A worker knows no other VM of its host, so that for it the host failed.
pub(super) fn datastore_of(quarantine: &[Quarantined]) -> Option<String> {
    let of_source: Vec<&Quarantined> = quarantine.iter().filter(|it| is_of_source(it)).collect();
    let [Quarantined { what, datastores, .. }] = of_source.as_slice() else { return None };
    match (what, datastores.as_slice()) {
        (Resource::Datastore(name), _) | (Resource::Host(_), [name]) => Some(name.clone()),
        _ => None,
    }
}

/// That a plan's VM is at the target to stay, if it is.
pub(super) fn arrived(store: &Store, plan: &str) -> Result<Option<End>, End> {
    let rows = store.vms(plan).map_err(Failure::from)?;
    let row = rows.into_iter().find(|row| row.state.has_arrived());
    Ok(row.map(|row| match row.state {
        VmState::NotCleanedUp => End::new(Exit::NotCleanedUp, reason::ARRIVED, row.error.unwrap_or_default()),
        _ => {
            // What failed after its start, where it was given up then.
            let words = row.error.unwrap_or_else(|| "it is at the target to stay".into());
            End::new(Exit::Success, reason::ARRIVED, words)
        }
    }))
}

pub(super) fn end_of(outcome: &RunOutcome, was_stopped: bool) -> End {
    let exit = exit_of(outcome, was_stopped);
    let errors: Vec<&str> = outcome.ends.iter().filter_map(|end| end.error.as_deref()).collect();
    let message = if errors.is_empty() { "it arrived".into() } else { errors.join("; ") };
    let reason = word(exit, &message);
    End::new(exit, reason, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mended_in_the_cluster_has_a_word_of_its_own() {
        for (exit, message, expected) in [
            (
                Exit::Plan,
                "target.storage_class: the cluster has no storage class fast",
                "StorageClassMissing",
            ),
            (
                Exit::Plan,
                "the plan names no storage class, and the cluster has no default",
                "StorageClassMissing",
            ),
            (
                Exit::Plan,
                "quota small has 0 of persistentvolumeclaims left, and the plan wants 1",
                "QuotaExceeded",
            ),
            (Exit::TargetFull, "POST /pods: pods is forbidden: exceeded quota: small", "QuotaExceeded"),
            (Exit::Plan, "this user may not in namespace vms: create pods", "RightsMissing"),
            (Exit::Target, "a VirtualMachine vms/web01 is there already", "NameTaken"),
            (
                Exit::Target,
                "persistent volume claim vms/web01-0 has \"1Mi\" and the mode \"Block\", and the disk wants 2097152 bytes in the mode Block",
                "VolumeUnfit",
            ),
            (
                Exit::Plan,
                "target: the cluster does not serve kubevirt.io/v1: KubeVirt is not",
                "KubeVirtMissing",
            ),
            (Exit::Plan, "the cluster serves kubevirt.io/v1 without virtual machines", "KubeVirtMissing"),
            (
                Exit::Plan,
                "the cluster has no storage class fast; a persistent volume claim vms/web01-0 is there already",
                "StorageClassMissing",
            ),
            (Exit::Plan, "the cluster does not serve instancetype.kubevirt.io/v1", "Plan"),
            (Exit::Source, "a snapshot is there already", "Source"),
            (Exit::Plan, "there is no VM called x", "Plan"),
        ] {
            assert_eq!(word(exit, message), expected, "{message}");
        }
    }
}
