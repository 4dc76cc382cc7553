//! What a provider's VMs come to, before anything is planned: how many, how large, where, and what stands in the way.

use std::collections::BTreeMap;

use drover_plan::{CATALOGUE, Concern, Weight};
use drover_types::inventory::{About, Firmware, Inventory, PowerState, Vm, VmDisk, WriteRate, WriteRates};
use serde::Serialize;

use crate::advise::POINTLESS;
use crate::fleet::may_run;
use crate::foresee::{Forecast, VmForecast};
use crate::quantile::{Spread, quantile};

/// The largest VMs that are named, and those that change most.
const LARGEST_MAX: usize = 10;
/// VMs named as examples of a concern.
const EXAMPLES_MAX: usize = 3;

/// What a provider has, in sums.
#[derive(Clone, Debug, Serialize)]
pub struct Assessment {
    /// Who answered.
    pub about: About,
    /// Sums over all VMs.
    pub totals: Totals,
    /// VMs by power state.
    pub power: Vec<Group>,
    /// VMs by guest operating system, the most first.
    pub guests: Vec<Group>,
    /// VMs by firmware.
    pub firmware: Vec<Group>,
    /// Provisioned sizes of VMs.
    pub vm_sizes: Sizes,
    /// Allocated sizes of those VMs of which it is known.
    pub allocated_sizes: Sizes,
    /// Provisioned sizes of disks.
    pub disk_sizes: Sizes,
    /// The largest VMs.
    pub largest: Vec<VmSums>,
    /// The VMs that change most.
    pub busiest: Vec<VmSums>,
    /// All VMs, in the order in which the provider has them.
    pub vms: Vec<VmSums>,
    /// By host, the most allocated bytes first.
    pub hosts: Vec<Place>,
    /// By datastore, likewise.
    pub datastores: Vec<Place>,
    /// What there is to know before VMs move, the worst first.
    pub findings: Vec<Finding>,
    /// What moving all of them would take; absent until it is foreseen.
    pub estimate: Option<Estimates>,
}

/// What moving all VMs would take, blocked ones too, whatever windows there are.
#[derive(Clone, Debug, Serialize)]
pub struct Estimates {
    /// Each switched off, copied, started.
    pub cold: Forecast,
    /// Those that run copied while they do, each moved over after its first pass.
    pub warm: Forecast,
    /// Those of them whose guest would be down for about as long if they moved cold.
    pub warm_in_vain: WarmInVain,
}

/// VMs that gain nothing from a warm move.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WarmInVain {
    /// How many.
    pub vms: usize,
    /// Names of some, those that change most first.
    pub examples: Vec<String>,
}

impl Estimates {
    /// Of the same VMs in the same order, moved cold and warm.
    pub fn new(cold: Forecast, warm: Forecast, vms: &[VmSums]) -> Estimates {
        let p50 = |it: Option<Spread>| it.map(|spread| spread.p50);
        let in_vain = |((cold, warm), vm): ((&VmForecast, &VmForecast), &VmSums)| {
            let (cold_s, warm_s) = p50(cold.downtime_s).zip(p50(warm.downtime_s).filter(|_| warm.is_warm))?;
            (cold_s <= warm_s * POINTLESS).then(|| (vm.churn_bytes_per_hour(), vm.name.clone()))
        };
        let mut found: Vec<(u64, String)> =
            cold.vms.iter().zip(&warm.vms).zip(vms).filter_map(in_vain).collect();
        found.sort_by(|one, two| two.0.cmp(&one.0).then_with(|| one.1.cmp(&two.1)));
        let examples = found.iter().take(EXAMPLES_MAX).map(|(_, name)| name.clone()).collect();
        Estimates { warm_in_vain: WarmInVain { vms: found.len(), examples }, cold, warm }
    }
}

/// Sums over all VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// VMs, templates left out.
    pub vms: usize,
    /// Those that run.
    pub running: usize,
    /// Those that cannot be moved as they are.
    pub blocked: usize,
    /// Those whose changes are tracked already.
    pub tracked: usize,
    /// Disks.
    pub disks: usize,
    /// Provisioned bytes.
    pub capacity_bytes: u64,
    /// Bytes that are to be read: what is allocated, and the provisioned bytes of VMs of which that is not known.
    pub data_bytes: u64,
    /// VMs whose allocated bytes are not known.
    pub unknown_allocation: usize,
    /// Bytes that are written in an hour, by the VMs of which it is known.
    pub churn_bytes_per_hour: u64,
    /// VMs that may run and of which it is not known.
    pub unknown_churn: usize,
    /// CPUs.
    pub cpus: u64,
    /// Memory in MiB.
    pub memory_mib: u64,
}

/// VMs that have something in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Group {
    /// What it is.
    pub name: String,
    /// How many.
    pub vms: usize,
    /// What they hold.
    pub data_bytes: u64,
    /// What those of them write in an hour of which it is known.
    pub churn_bytes_per_hour: u64,
}

/// How sizes are spread, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// How many were counted.
    pub number: usize,
    /// One in ten is not larger.
    pub p10: u64,
    /// Half are not larger.
    pub p50: u64,
    /// Nine in ten are not larger.
    pub p90: u64,
    /// 99 in 100 are not larger.
    pub p99: u64,
    /// The largest.
    pub largest: u64,
}

/// What there is of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmSums {
    /// Its name.
    pub name: String,
    /// Its id.
    pub id: String,
    /// Disks.
    pub disks: usize,
    /// Provisioned bytes.
    pub capacity_bytes: u64,
    /// Bytes to be read.
    pub data_bytes: u64,
    /// What it writes; absent where that is not known, as of a VM that is off.
    pub churn: Option<WriteRate>,
}

impl VmSums {
    fn churn_bytes_per_hour(&self) -> u64 {
        self.churn.map_or(0, |churn| churn.bytes_per_hour)
    }
}

/// What is at a host or in a datastore.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// VMs there, or with a disk there.
    pub vms: usize,
    /// Disks.
    pub disks: usize,
    /// Provisioned bytes.
    pub capacity_bytes: u64,
    /// Bytes to be read.
    pub data_bytes: u64,
    /// What its VMs write in an hour, as far as it is known; of a VM with disks in several datastores by their sizes.
    pub churn_bytes_per_hour: u64,
}

/// A concern of the catalogue and the VMs that it holds for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its id.
    pub id: String,
    /// How much it matters.
    pub severity: Weight,
    /// What it means.
    pub meaning: String,
    /// VMs.
    pub vms: usize,
    /// Names of some.
    pub examples: Vec<String>,
}

/// Sums up an inventory; `concerns` has those of each VM by its id, and `written` what each writes.
pub fn assess(
    inventory: &Inventory,
    concerns: &BTreeMap<String, Vec<Concern>>,
    written: &WriteRates,
) -> Assessment {
    let vms = &inventory.vms;
    let all: Vec<VmSums> = vms.iter().map(|vm| sums_of(vm, written)).collect();
    let sizes = |of: fn(&Vm) -> Option<u64>| Sizes::of(vms.iter().filter_map(of).collect());
    Assessment {
        about: inventory.about.clone(),
        totals: totals(vms, concerns, written),
        power: groups(vms, written, |vm| power_word(vm.power).to_string()),
        guests: groups(vms, written, |vm| told(&vm.guest_id)),
        firmware: groups(vms, written, |vm| firmware_word(vm.firmware).to_string()),
        vm_sizes: sizes(|vm| Some(vm.capacity_bytes())),
        allocated_sizes: sizes(|vm| vm.allocated_bytes.map(|_| vm.data_bytes())),
        disk_sizes: Sizes::of(vms.iter().flat_map(|vm| &vm.disks).map(|disk| disk.capacity_bytes).collect()),
        largest: most(all.iter(), |vm| vm.data_bytes),
        busiest: most(all.iter().filter(|vm| vm.churn_bytes_per_hour() > 0), VmSums::churn_bytes_per_hour),
        vms: all,
        hosts: hosts(inventory, written),
        datastores: datastores(vms, written),
        findings: findings(inventory, concerns),
        estimate: None,
    }
}

fn churn_of(vm: &Vm, written: &WriteRates) -> u64 {
    written.get(&vm.id).map_or(0, |rate| rate.bytes_per_hour)
}

fn totals(vms: &[Vm], concerns: &BTreeMap<String, Vec<Concern>>, written: &WriteRates) -> Totals {
    let blocks = |vm: &&Vm| {
        concerns.get(&vm.id).is_some_and(|list| list.iter().any(|it| it.severity == Weight::Blocks))
    };
    let count = |is: fn(&Vm) -> bool| vms.iter().filter(|vm| is(vm)).count();
    Totals {
        vms: vms.len(),
        running: count(|vm| vm.power == PowerState::On),
        blocked: vms.iter().filter(blocks).count(),
        tracked: count(|vm| vm.change_tracking),
        disks: vms.iter().map(|vm| vm.disks.len()).sum(),
        capacity_bytes: sum(vms, Vm::capacity_bytes),
        data_bytes: sum(vms, Vm::data_bytes),
        unknown_allocation: count(|vm| vm.allocated_bytes.is_none()),
        churn_bytes_per_hour: vms.iter().fold(0, |sum, vm| sum.saturating_add(churn_of(vm, written))),
        unknown_churn: vms.iter().filter(|vm| may_run(vm) && !written.contains_key(&vm.id)).count(),
        cpus: sum(vms, |vm| vm.cpus.into()),
        memory_mib: sum(vms, |vm| vm.memory_mib),
    }
}

fn sum(vms: &[Vm], of: fn(&Vm) -> u64) -> u64 {
    vms.iter().fold(0, |sum, vm| sum.saturating_add(of(vm)))
}

fn told(text: &str) -> String {
    if text.is_empty() { "not told".into() } else { text.into() }
}

fn power_word(power: PowerState) -> &'static str {
    match power {
        PowerState::On => "on",
        PowerState::Off => "off",
        PowerState::Suspended => "suspended",
        PowerState::Unknown => "not told",
    }
}

fn firmware_word(firmware: Option<Firmware>) -> &'static str {
    match firmware {
        Some(Firmware::Bios) => "BIOS",
        Some(Firmware::Uefi) => "UEFI",
        None => "not told",
    }
}

fn groups(vms: &[Vm], written: &WriteRates, name: impl Fn(&Vm) -> String) -> Vec<Group> {
    let mut groups = BTreeMap::<String, Group>::new();
    for vm in vms {
        let name = name(vm);
        let group = groups.entry(name.clone()).or_insert_with(|| Group { name, ..Group::default() });
        group.vms += 1;
        group.data_bytes = group.data_bytes.saturating_add(vm.data_bytes());
        group.churn_bytes_per_hour = group.churn_bytes_per_hour.saturating_add(churn_of(vm, written));
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.vms));
    groups
}

impl Sizes {
    fn of(mut bytes: Vec<u64>) -> Sizes {
        bytes.sort_unstable();
        let at = |share| quantile(&bytes, share).unwrap_or(0);
        let largest = bytes.last().copied().unwrap_or(0);
        Sizes { number: bytes.len(), p10: at(0.1), p50: at(0.5), p90: at(0.9), p99: at(0.99), largest }
    }
}

fn sums_of(vm: &Vm, written: &WriteRates) -> VmSums {
    VmSums {
        name: vm.name.clone(),
        id: vm.id.clone(),
        disks: vm.disks.len(),
        capacity_bytes: vm.capacity_bytes(),
        data_bytes: vm.data_bytes(),
        churn: written.get(&vm.id).copied(),
    }
}

/// Those with the most bytes, the most first.
fn most<'a>(vms: impl Iterator<Item = &'a VmSums>, bytes: impl Fn(&VmSums) -> u64) -> Vec<VmSums> {
    let mut sorted: Vec<&VmSums> = vms.collect();
    sorted.sort_by(|one, two| bytes(two).cmp(&bytes(one)).then_with(|| one.name.cmp(&two.name)));
    sorted.into_iter().take(LARGEST_MAX).cloned().collect()
}

fn hosts(inventory: &Inventory, written: &WriteRates) -> Vec<Place> {
    let names: BTreeMap<&str, &str> =
        inventory.hosts.iter().map(|host| (host.id.as_str(), host.name.as_str())).collect();
    // A host without a VM is a place, too.
    let mut places: BTreeMap<&str, Place> =
        names.iter().map(|(id, name)| (*id, Place::named(name))).collect();
    for vm in &inventory.vms {
        let id = vm.host_id.as_str();
        let name = if id.is_empty() { "not told" } else { id };
        let place = places.entry(id).or_insert_with(|| Place::named(name));
        place.vms += 1;
        vm.disks.iter().for_each(|disk| place.take(vm, disk, written));
    }
    sorted(places.into_values().collect())
}

fn datastores(vms: &[Vm], written: &WriteRates) -> Vec<Place> {
    let mut places: BTreeMap<&str, Place> = BTreeMap::new();
    for vm in vms {
        let mut seen: Vec<&str> = Vec::new();
        for disk in &vm.disks {
            let name = disk.datastore.as_str();
            let place = places
                .entry(name)
                .or_insert_with(|| Place::named(if name.is_empty() { "not told" } else { name }));
            place.take(vm, disk, written);
            if !seen.contains(&name) {
                seen.push(name);
                place.vms += 1;
            }
        }
    }
    sorted(places.into_values().collect())
}

fn sorted(mut places: Vec<Place>) -> Vec<Place> {
    places.sort_by(|one, two| two.data_bytes.cmp(&one.data_bytes).then_with(|| one.name.cmp(&two.name)));
    places
}

impl Place {
    fn named(name: &str) -> Place {
        Place { name: name.to_string(), ..Place::default() }
    }

    fn take(&mut self, vm: &Vm, disk: &VmDisk, written: &WriteRates) {
        self.disks += 1;
        self.capacity_bytes = self.capacity_bytes.saturating_add(disk.capacity_bytes);
        self.data_bytes = self.data_bytes.saturating_add(vm.data_bytes_of(disk));
        let churn = vm.part_of(churn_of(vm, written), disk);
        self.churn_bytes_per_hour = self.churn_bytes_per_hour.saturating_add(churn);
    }
}

fn findings(inventory: &Inventory, concerns: &BTreeMap<String, Vec<Concern>>) -> Vec<Finding> {
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for vm in &inventory.vms {
        for concern in concerns.get(&vm.id).into_iter().flatten() {
            let vms = found.entry(concern.id.as_str()).or_default();
            // One of several disks counts for its VM once; those of a VM come together.
            if vms.last() != Some(&vm.id.as_str()) {
                vms.push(&vm.id);
            }
        }
    }
    let names: BTreeMap<&str, &str> =
        inventory.vms.iter().map(|vm| (vm.id.as_str(), vm.name.as_str())).collect();
    let finding = |(id, severity, meaning): &(&str, Weight, &str)| {
        let vms = found.get(id)?;
        let examples = vms.iter().take(EXAMPLES_MAX).filter_map(|vm| names.get(vm)).map(|it| it.to_string());
        Some(Finding {
            id: id.to_string(),
            severity: *severity,
            meaning: meaning.to_string(),
            vms: vms.len(),
            examples: examples.collect(),
        })
    };
    let mut findings: Vec<Finding> = CATALOGUE.iter().filter_map(finding).collect();
    findings.sort_by_key(|it| (it.severity, std::cmp::Reverse(it.vms)));
    findings
}

#[cfg(test)]
mod tests {
    use drover_plan::ConcernContext;
    use drover_types::inventory::Host;

    use super::*;

    fn vm(number: u64, disks: u64, allocated: Option<u64>) -> Vm {
        let disk = |at: u64| VmDisk {
            key: 2000 + at as i32,
            label: format!("Hard disk {}", at + 1),
            capacity_bytes: (at + 1) << 30,
            datastore: format!("ds{at}"),
            ..VmDisk::default()
        };
        Vm {
            id: format!("vm-{number}"),
            name: format!("web{number:02}"),
            instance_uuid: format!("uuid-{number}"),
            host_id: format!("host-{}", number % 2),
            power: if number.is_multiple_of(2) { PowerState::On } else { PowerState::Off },
            guest_id: "debian12_64Guest".into(),
            allocated_bytes: allocated,
            disks: (0..disks).map(disk).collect(),
            ..Vm::default()
        }
    }

    fn assessed(inventory: &Inventory) -> Assessment {
        assessed_with(inventory, &WriteRates::new())
    }

    fn assessed_with(inventory: &Inventory, written: &WriteRates) -> Assessment {
        let judge =
            |vm: &Vm| (vm.id.clone(), drover_plan::concerns(vm, inventory, &ConcernContext::default()));
        assess(inventory, &inventory.vms.iter().map(judge).collect(), written)
    }

    #[test]
    fn churn_is_summed_where_the_disks_lie_and_what_is_not_known_is_counted() {
        // Of two disks of 1 and 2 GiB.
        let vms = vec![vm(0, 2, None), vm(1, 1, None), vm(2, 1, None), vm(4, 2, Some(0))];
        let rate = |bytes_per_hour| WriteRate { bytes_per_hour, busiest_hour_bytes: 9_000, seconds: 3_600 };
        let written = WriteRates::from([("vm-0".into(), rate(3_000)), ("vm-4".into(), rate(6_000))]);
        let it = assessed_with(&Inventory { vms, ..Inventory::default() }, &written);
        assert_eq!((it.totals.churn_bytes_per_hour, it.totals.unknown_churn), (9_000, 1));
        let place = |it: &Place| (it.name.clone(), it.churn_bytes_per_hour);
        let of_places = |places: &[Place]| places.iter().map(place).collect::<Vec<_>>();
        assert_eq!(of_places(&it.hosts), [("host-0".to_string(), 9_000), ("host-1".to_string(), 0)]);
        assert_eq!(of_places(&it.datastores), [("ds0".to_string(), 3_000), ("ds1".to_string(), 6_000)]);
        assert_eq!(it.guests[0].churn_bytes_per_hour, 9_000);
        let busiest: Vec<_> = it.busiest.iter().map(|vm| (vm.id.as_str(), vm.churn)).collect();
        assert_eq!(busiest, [("vm-4", Some(rate(6_000))), ("vm-0", Some(rate(3_000)))]);
        assert_eq!((it.vms.len(), it.vms[1].churn), (4, None));
    }

    #[test]
    fn a_vm_that_changes_as_fast_as_it_is_read_gains_nothing_from_a_warm_move() {
        let large = |at| {
            let mut vm = Vm { power: PowerState::On, ..vm(at, 1, None) };
            vm.disks[0].capacity_bytes = 1 << 40;
            vm
        };
        let inventory = Inventory { vms: (0..3).map(large).collect(), ..Inventory::default() };
        let rate = |bytes_per_hour| WriteRate { bytes_per_hour, ..WriteRate::default() };
        let written = WriteRates::from([
            ("vm-0".into(), rate(6 << 40)),
            ("vm-1".into(), rate(1 << 30)),
            ("vm-2".into(), rate(9 << 40)),
        ]);
        let wish = crate::WarmWish { interval_ms: 0, ..crate::WarmWish::default() };
        let foreseen = |warm| {
            let question = crate::foresee::tests::question(0, 1, 1);
            let vms = crate::FleetVm::of_inventory(&inventory, &written, warm);
            crate::foresee(&crate::Question { vms, ..question })
        };
        let sums = assessed_with(&inventory, &written).vms;
        let it = Estimates::new(foreseen(None), foreseen(Some(wish)), &sums);
        assert_eq!(
            (it.warm_in_vain.vms, it.warm_in_vain.examples),
            (2, vec!["web02".into(), "web00".into()])
        );
    }

    #[test]
    fn sums_count_each_vm_once_and_bytes_where_they_lie() {
        let host = |id: &str| Host { id: id.into(), name: format!("esx-{id}"), ..Host::default() };
        let inventory = Inventory {
            hosts: vec![host("host-0"), host("host-1"), host("host-2")],
            vms: vec![vm(0, 2, Some(1 << 30)), vm(1, 1, None), vm(2, 1, Some(9 << 30))],
            ..Inventory::default()
        };
        let it = assessed(&inventory);
        assert_eq!((it.totals.vms, it.totals.running, it.totals.disks), (3, 2, 4));
        assert_eq!((it.totals.capacity_bytes, it.totals.unknown_allocation), (5 << 30, 1));
        // 1 GiB allocated, 1 GiB by its capacity, and never more than the capacity.
        assert_eq!(it.totals.data_bytes, 3 << 30);
        let place = |it: &Place| (it.name.clone(), it.vms, it.disks, it.capacity_bytes >> 30);
        let hosts: Vec<_> = it.hosts.iter().map(place).collect();
        let expected = [("esx-host-0", 2, 3, 4), ("esx-host-1", 1, 1, 1), ("esx-host-2", 0, 0, 0)];
        assert_eq!(hosts, expected.map(|(name, vms, disks, size)| (name.to_string(), vms, disks, size)));
        let stores: Vec<_> = it.datastores.iter().map(place).collect();
        assert_eq!(stores, [("ds0".to_string(), 3, 3, 3), ("ds1".to_string(), 1, 1, 2)]);
        let of_places: u64 = it.datastores.iter().map(|it| it.data_bytes).sum();
        assert!(it.totals.data_bytes - of_places <= 1, "rounded down by disk");
        assert_eq!(
            it.guests,
            [Group { name: "debian12_64Guest".into(), vms: 3, data_bytes: 3 << 30, ..Group::default() }]
        );
    }

    #[test]
    fn findings_count_vms_and_not_disks_with_the_worst_first() {
        let mut vms: Vec<Vm> = (0..5).map(|number| vm(number, 2, None)).collect();
        vms[1].consolidation_needed = true;
        vms.iter_mut()
            .flat_map(|vm| &mut vm.disks)
            .for_each(|disk| disk.rdm = Some(drover_types::inventory::RdmMode::Virtual));
        let it = assessed(&Inventory { vms, ..Inventory::default() });
        let found: Vec<_> = it.findings.iter().map(|it| (it.id.as_str(), it.vms)).collect();
        assert_eq!(found[..2], [("rdm-disk", 5), ("consolidation-needed", 1)]);
        assert_eq!(it.findings[0].examples, ["web00", "web01", "web02"]);
        assert!(it.findings.is_sorted_by_key(|it| it.severity));
        assert_eq!(it.totals.blocked, 5);
    }

    #[test]
    fn an_empty_inventory_is_assessed() {
        let it = assessed(&Inventory::default());
        assert_eq!((it.totals, it.vm_sizes), (Totals::default(), Sizes::default()));
    }
}
