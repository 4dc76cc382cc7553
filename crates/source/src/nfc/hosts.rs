//! Whether the NFC servers of a plan's hosts can be reached from here, before anything is touched.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use drover_disk::in_threads;
use drover_nfc::{NfcError, NfcErrorKind, Rustls, Tickets, greet};
use drover_plan::{Begun, NAMES_SHOWN_MAX, PlannedVm, Problem};
use drover_types::shown::clean;
use drover_types::{count, some_of};

use super::NfcWay;

/// A host that is there answers within milliseconds, over the longest line within a second.
const PATIENCE: Duration = Duration::from_secs(5);
/// Hosts that are asked at once.
const ASKED_AT_ONCE: usize = 16;

/// Asks the NFC server of each host for its greeting and certificate, with a ticket for one of its VMs that is not shown to it.
/// What is wrong is an error where disks are read by NFC alone, but for hosts of which all such VMs were begun: others go on then.
pub fn unreachable(
    way: &NfcWay,
    vms: &[PlannedVm],
    begun: &[Begun],
    tickets: impl Fn(&PlannedVm) -> Result<Box<dyn Tickets>, NfcError> + Sync,
) -> Vec<Problem> {
    let begun: HashMap<&str, &Begun> = begun.iter().map(|it| (it.planned.vm.id.as_str(), it)).collect();
    let begun_as = |vm: &PlannedVm| begun.get(vm.vm.id.as_str());
    let has_arrived = |vm: &PlannedVm| begun_as(vm).is_some_and(|begun| begun.has_arrived);
    let mut hosts: BTreeMap<&str, Host<'_>> = BTreeMap::new();
    for vm in vms.iter().filter(|vm| !vm.disks.is_empty() && !has_arrived(vm)) {
        let host = hosts.entry(&vm.vm.host_id).or_insert(Host { asked: vm, vms: 0, is_error: false });
        host.vms += 1;
        // Nothing else reads the chain of an earlier snapshot's files.
        host.is_error |= (way.insists || !vm.vm.snapshots.is_empty()) && begun_as(vm).is_none();
    }
    let hosts: Vec<Host<'_>> = hosts.into_values().collect();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    in_threads(ASKED_AT_ONCE.min(hosts.len()), |_| {
        while let Some(host) = hosts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let asked = tickets(host.asked).and_then(|it| greet(&it.ticket()?, &Rustls, PATIENCE));
            if let Err(error) = asked {
                failed.lock().unwrap_or_else(PoisonError::into_inner).push((host, error));
            }
        }
    });
    told(failed.into_inner().unwrap_or_else(PoisonError::into_inner), way.insists)
}

/// A host, the VM that a ticket is asked for, and how many of the plan's are there.
struct Host<'a> {
    asked: &'a PlannedVm,
    vms: usize,
    is_error: bool,
}

/// One problem for all hosts that fail alike: a firewall keeps us from all of them.
fn told(failed: Vec<(&Host<'_>, NfcError)>, insists: bool) -> Vec<Problem> {
    let mut alike: Vec<Vec<(&Host<'_>, NfcError)>> = Vec::new();
    // What the user may not do is told by the check of rights, with the names of the VMs.
    for (host, error) in failed.into_iter().filter(|(_, error)| error.kind != NfcErrorKind::Permission) {
        let is_alike = |it: &&mut Vec<(&Host<'_>, NfcError)>| {
            it[0].1.kind == error.kind && it[0].0.is_error == host.is_error
        };
        match alike.iter_mut().find(is_alike) {
            Some(those) => those.push((host, error)),
            None => alike.push(vec![(host, error)]),
        }
    }
    alike.iter().map(|those| problem(those, insists)).collect()
}

fn problem(those: &[(&Host<'_>, NfcError)], insists: bool) -> Problem {
    let (first, error) = &those[0];
    let name = |host: &Host<'_>| clean(host.asked.host_name.as_deref().unwrap_or_default()).into_owned();
    let mut names: Vec<String> = those.iter().map(|(host, _)| name(host)).collect();
    names.sort_unstable();
    let vms = count(those.iter().map(|(host, _)| host.vms).sum(), "VM");
    let so = match (insists, first.is_error) {
        (true, _) => "are to be read by NFC alone",
        (false, true) => "would be read by HTTPS ranges, which those with earlier snapshots are not",
        (false, false) => "will be read by HTTPS ranges",
    };
    let names = some_of(&names, NAMES_SHOWN_MAX);
    let text = format!("the NFC server of {names} cannot be used: {error}; disks of {vms} {so}");
    let problem = match first.is_error {
        true => Problem::error("source.data", text),
        false => Problem::warning("source.data", text),
    };
    error.advice().into_iter().fold(problem, Problem::advise)
}
