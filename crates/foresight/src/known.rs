//! What plans and earlier runs tell of a move: its VMs, its lines, and rates.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::Path;

use drover_agent::sites::known;
use drover_engine::{DiskReport, PlanRow, Store, StoreError, VmReport, host_limits};
use drover_forecast::{Copies, FleetVm, Line, Measured, Part, Rates, Seen, To};
use drover_plan::{Plan, PlannedVm};
use drover_schedule::HostLimits;
use drover_types::DayLimit;
use drover_types::inventory::{Inventory, WriteRates};

/// The latest plans are looked at: what was measured long ago says little.
const PLANS_MAX: usize = 20;
/// The latest passes of a VM that tell of its churn.
const PASSES_MAX: usize = 20;
const HOUR_S: f64 = 3600.0;

/// What earlier runs tell.
///
/// # Errors
/// When the state cannot be read.
pub fn seen(store: &Store) -> Result<Seen, StoreError> {
    let mut seen = Seen::default();
    for plan in store.plans()?.into_iter().take(PLANS_MAX) {
        let mut copies = Copies::default();
        let source = store.runs(&plan.name)?.pop().map(|run| run.facts.source_uuid).unwrap_or_default();
        // What was held back shows nothing of hosts and datastores.
        let is_ordered = store.limits_order(&plan.name)?.is_some_and(|order| order.rate_limit.is_some());
        let is_held = is_ordered || Plan::parse(&plan.text).is_ok_and(|plan| plan.target.limits_reads());
        let is_limited = OnceCell::new();
        let is_limited = || *is_limited.get_or_init(|| is_ordered || limits_its_line(&plan, store.folder()));
        drover_engine::arrived_vms(store, &plan.name, |vm| {
            let measured = measured(vm);
            seen.see(&measured, vm.row.ended_ms);
            if let Some(host) = vm.source_host.as_ref().filter(|_| !is_held) {
                copies.see(host, &measured, &parts(vm, &source, &is_limited));
            }
        })?;
        seen.see_run(&copies);
    }
    Ok(seen)
}

/// Whether the plan or its site says what the line to that carries: then a run shows no more than that.
fn limits_its_line(plan: &PlanRow, state: &Path) -> bool {
    let Ok(Plan { target, .. }) = Plan::parse(&plan.text) else { return true };
    let of_site = |site: &str| !limits_of(state, site).is_empty();
    !target.rate_limit.is_empty() || target.via.as_deref().is_some_and(of_site)
}

/// What may go to a site, by the hours; nothing where that is not known.
fn limits_of(state: &Path, site: &str) -> Vec<DayLimit> {
    known(state, site).map(|peer| peer.limits).unwrap_or_default()
}

/// What the copy of a VM shows of its datastores, and of where it went.
fn parts(vm: &VmReport, source: &str, is_limited: &dyn Fn() -> bool) -> Vec<Part> {
    let to = |disk: &DiskReport| match &vm.row {
        row if row.target_host.is_some() => None,
        row => match &row.site {
            Some(site) => (!is_limited()).then(|| To::Site(site.clone())),
            None => disk.pool.clone().map(To::Pool),
        },
    };
    let part = |disk: &DiskReport| {
        let read_bytes = disk.details.read_bytes?;
        Some(Part {
            datastore: Rates::datastore_key(source, disk.datastore.as_ref()?),
            to: to(disk),
            disks: 1,
            read_bytes,
            read_s: read_bytes as f64 / disk.read_rate?,
            waited_for_target: disk.attribution.map_or(0.0, |it| it.target_part()),
        })
    };
    vm.disks.iter().filter_map(part).collect()
}

/// What the move of a VM showed.
pub fn measured(vm: &VmReport) -> Measured {
    let millis = |names: &[&str]| {
        let of = vm.phases.iter().filter(|phase| names.contains(&phase.phase.as_str()));
        let times = of.filter_map(|phase| u64::try_from(phase.ended_ms? - phase.started_ms).ok());
        times.sum::<u64>()
    };
    let copies = vm.phases.iter().filter(|phase| phase.phase == "copy" && vm.warm.is_none());
    let mut times = copies.filter_map(|phase| Some((phase.started_ms, phase.ended_ms?)));
    // One that was copied in several goes is known by its last alone, as what it read is.
    let (copy_began_ms, copy_ended_ms) = times.next_back().unwrap_or_default();
    let passes = vm.warm.iter().flat_map(|warm| warm.passes.windows(2));
    let changed = passes.filter_map(|pair| {
        let hours = (pair[1].frozen_ms? - pair[0].frozen_ms?).max(1) as f64 / 1000.0 / HOUR_S;
        Some((pair[1].areas_bytes as f64 / hours) as u64)
    });
    let mut changed_bytes_per_hour: Vec<u64> = changed.collect();
    changed_bytes_per_hour.drain(..changed_bytes_per_hour.len().saturating_sub(PASSES_MAX));
    Measured {
        copy_began_ms,
        copy_ended_ms,
        disks: u32::try_from(vm.disks.len()).unwrap_or(u32::MAX),
        read_bytes: vm.sum(|disk| disk.read_bytes),
        data_bytes: vm.sum(|disk| disk.data_bytes),
        before_ms: millis(&["check", "snapshot"]),
        shutdown_ms: millis(&["power off"]),
        verify_ms: millis(&["verify"]),
        after_ms: millis(&["convert", "define", "start", "clean up"]),
        changed_bytes_per_hour,
    }
}

/// Adds what VMs tell of the disks at once that the NFC servers of their hosts take: of each host the least counts.
pub fn limit_hosts(
    hosts: &mut BTreeMap<String, HostLimits>,
    vms: &[PlannedVm],
    name: impl Fn(&PlannedVm) -> String,
) {
    for vm in vms {
        if vm.nfc.is_some() {
            let limits = hosts.entry(name(vm)).or_default();
            *limits = host_limits(*limits, vm);
        }
    }
}

/// What plans may send over their lines, or read of their sources: each by its own `rate_limit`, and all that go to one site by the limit of that.
pub fn lines_of(plans: &[&Plan], state: &Path) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut sites: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (number, Plan { name, target, .. }) in plans.iter().copied().enumerate() {
        if !target.rate_limit.is_empty() {
            lines.push(own_line(name, number, target.rate_limit.clone()));
        }
        if let Some(site) = target.via.as_deref() {
            sites.entry(site).or_default().push(number);
        }
    }
    for (site, plans) in sites {
        let limits = limits_of(state, site);
        if !limits.is_empty() {
            lines.push(Line { name: format!("limit of site {site}"), limits, plans });
        }
    }
    lines
}

/// What a plan may send, or read, by its own `rate_limit`.
pub(crate) fn own_line(plan: &str, number: usize, limits: Vec<DayLimit>) -> Line {
    Line { name: format!("rate_limit of plan {plan}"), limits, plans: vec![number] }
}

/// The sites that plans go to, by the numbers of the plans, where neither they nor those say what the lines to them carry.
pub fn sites_of(plans: &[&Plan], state: &Path) -> BTreeMap<usize, String> {
    let site = |(number, plan): (usize, &&Plan)| {
        let site = plan.target.via.as_deref().filter(|_| plan.target.rate_limit.is_empty())?;
        limits_of(state, site).is_empty().then(|| (number, site.to_string()))
    };
    plans.iter().enumerate().filter_map(site).collect()
}

/// The name of a VM's host.
pub fn host_of(vm: &PlannedVm, inventory: &Inventory) -> String {
    let id = &vm.vm.host_id;
    inventory.host(id).map_or(id.clone(), |host| host.name.clone())
}

/// VMs of a plan; `written` tells what some of them write.
pub fn fleet(vms: &[PlannedVm], plan: usize, inventory: &Inventory, written: &WriteRates) -> Vec<FleetVm> {
    let of = |vm: &PlannedVm| FleetVm {
        source: inventory.about.instance_uuid.clone(),
        churn_bytes_per_hour: written.get(&vm.vm.id).map(|rate| rate.bytes_per_hour),
        ..FleetVm::planned(vm, plan, &host_of(vm, inventory))
    };
    vms.iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use drover_agent::trust::{Fingerprint, Folder, Peer, Peers};
    use drover_plan::nfc::NfcShare;
    use drover_types::inventory;

    use super::*;

    #[test]
    fn plans_to_one_site_share_its_limit_and_have_their_own() {
        let state = tempfile::tempdir().unwrap();
        let folder = Folder::open(state.path()).unwrap();
        let limits = vec!["Mon-Fri 08:00-18:00 Europe/Berlin=200m".parse::<DayLimit>().unwrap()];
        let peer = Peer::new("site-b", Fingerprint([1; 32]), vec!["b:1".to_string()], 0);
        Peers::new(folder).add(Peer { limits: limits.clone(), ..peer }).unwrap().unwrap();
        let plan = |name: &str, target: &str| {
            let source = "source: {type: vsphere, endpoint: vc, user: u, password_env: P}";
            let text = format!(
                "version: 1\nname: {name}\n{source}\ntarget: {{type: qemu, folder: vms{target}}}\nvms: [{{glob: '*'}}]\n"
            );
            Plan::parse(&text).unwrap()
        };
        let plans = [
            plan("one", ", via: site-b, rate_limit: [100m]"),
            plan("two", ", via: site-b"),
            plan("three", ""),
            plan("four", ", via: site-c"),
            plan("five", ", rate_limit: [2g]"),
        ];
        let lines = lines_of(&plans.iter().collect::<Vec<_>>(), state.path());
        let of: Vec<(&str, &[usize])> =
            lines.iter().map(|line| (line.name.as_str(), line.plans.as_slice())).collect();
        let expected = [
            ("rate_limit of plan one", &[0][..]),
            ("rate_limit of plan five", &[4][..]),
            ("limit of site site-b", &[0, 1][..]),
        ];
        assert_eq!(of, expected);
        assert_eq!(lines[2].limits, limits);
    }

    #[test]
    fn of_what_vms_tell_of_their_host_the_least_counts() {
        let of_host =
            |id: &str| inventory::Vm { id: id.into(), host_id: "host-1".into(), ..Default::default() };
        let disk = inventory::VmDisk { capacity_bytes: 1 << 30, ..Default::default() };
        let vms = ["a", "b", "c"].map(|id| inventory::Vm {
            name: id.into(),
            power: inventory::PowerState::Off,
            disks: vec![disk.clone()],
            ..of_host(id)
        });
        let inventory = Inventory { vms: vms.to_vec(), ..Inventory::default() };
        let source = "source: {type: vsphere, endpoint: vc, user: u, password_env: P}";
        let text = format!(
            "version: 1\nname: p\n{source}\ntarget: {{type: qemu, folder: vms}}\nvms: [{{glob: '*'}}]\n"
        );
        let mut vms = drover_plan::resolve(&Plan::parse(&text).unwrap(), &inventory).vms;
        let share = |disks_at_once| NfcShare { aio: None, disk_bytes: 1, disks_at_once, request_bytes: 1 };
        (vms[0].nfc, vms[1].nfc) = (Some(share(9)), Some(share(4)));
        let mut hosts = BTreeMap::new();
        limit_hosts(&mut hosts, &vms, |vm| host_of(vm, &inventory));
        assert_eq!(
            hosts,
            [("host-1".to_string(), HostLimits { disks: Some(4), ..HostLimits::default() })].into()
        );
        limit_hosts(&mut hosts, &vms[..1], |_| "host-1".into());
        assert_eq!(hosts["host-1"].disks, Some(4), "another plan says more");
    }
}
