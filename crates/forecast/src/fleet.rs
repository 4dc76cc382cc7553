//! The VMs of a forecast, from plans or from an inventory.

use drover_plan::{Cutover, Interval, PlannedVm, Verify};
use drover_types::BLOCK_BYTES;
use drover_types::inventory::{Inventory, PowerState, Vm, WriteRates};
use serde::{Deserialize, Serialize};

/// A VM of a forecast.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetVm {
    /// Its name.
    pub name: String,
    /// Number of its plan, from 0.
    pub plan: usize,
    /// Its wave, if it has one.
    pub wave: Option<String>,
    /// The host that serves its disks.
    pub host: String,
    /// Its source ([`crate::Rates::datastore_key`]); empty where nothing was measured of it.
    #[serde(default)]
    pub source: String,
    /// Its disks.
    pub disks: Vec<FleetDisk>,
    /// Greater goes first.
    pub priority: i32,
    /// By when it is to have arrived, in milliseconds since 1970.
    pub deadline_ms: Option<u64>,
    /// The VMs of its plan and wave that it moves with, and its turn among them.
    pub group: Option<(String, u32)>,
    /// Of VMs of its plan with the same word one at a time is at work.
    pub anti_affinity: Option<String>,
    /// How it moves while it runs; absent if it moves cold.
    pub warm: Option<WarmWish>,
    /// Whether it has to be shut down.
    pub runs: bool,
    /// Whether it has begun: it waits for no window, wave or group.
    pub goes_on: bool,
    /// Bytes that it writes in an hour, where that was measured.
    #[serde(default)]
    pub churn_bytes_per_hour: Option<u64>,
    /// Bytes that are read back and compared.
    pub verified_bytes: u64,
    /// When it may start, in milliseconds since 1970; empty: at any time.
    pub windows: Vec<(u64, u64)>,
}

/// A disk of a forecast.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetDisk {
    /// Bytes to be read.
    pub data_bytes: u64,
    /// The datastore that it lies in.
    pub datastore: String,
    /// The folder or pool that it goes to.
    pub pool: Option<String>,
}

/// How a VM moves that keeps running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WarmWish {
    /// Milliseconds between passes; 0 is as short as it needs.
    pub interval_ms: u64,
    /// When it moves over, in milliseconds since 1970; absent: as soon as it can.
    pub cutover_ms: Option<u64>,
    /// Longest downtime in milliseconds that is waited for; 0: it moves over after its first pass.
    pub downtime_ms: u64,
    /// Whether it moves over only when `drover cutover` says so. It is foreseen as if that came as soon as it is ready.
    #[serde(default)]
    pub on_order: bool,
}

/// Shortest interval that drover chooses by itself.
const INTERVAL_AUTO_MS: u64 = 60_000;

impl FleetVm {
    /// Bytes of all its disks.
    pub fn data_bytes(&self) -> u64 {
        self.disks.iter().fold(0, |sum, disk| sum.saturating_add(disk.data_bytes))
    }

    /// Whether it moves over only when `drover cutover` says so.
    pub fn is_on_order(&self) -> bool {
        self.warm.is_some_and(|warm| warm.on_order)
    }

    /// As a plan moves it; `host` is the name of its host.
    pub fn planned(planned: &PlannedVm, plan: usize, host: &str) -> FleetVm {
        let vm = &planned.vm;
        let pool = |disk: &drover_plan::PlannedDisk| {
            disk.pool.clone().unwrap_or_else(|| disk.base.display().to_string())
        };
        let disk = |disk: &drover_plan::PlannedDisk| FleetDisk {
            data_bytes: vm.data_bytes_of(&disk.disk),
            datastore: disk.disk.datastore.clone(),
            pool: Some(pool(disk)),
        };
        let disks: Vec<FleetDisk> = planned.disks.iter().map(disk).collect();
        let data: u64 = disks.iter().map(|disk| disk.data_bytes).sum();
        let verified_bytes = match planned.verify {
            Verify::None => 0,
            Verify::Sampled { blocks } => {
                data.min(blocks.saturating_mul(BLOCK_BYTES).saturating_mul(disks.len() as u64))
            }
            Verify::Full => data,
        };
        FleetVm {
            name: planned.target_name.clone(),
            plan,
            host: host.to_string(),
            disks,
            priority: planned.priority,
            wave: planned.wave.clone(),
            deadline_ms: planned.deadline_ms,
            group: planned.group.as_ref().map(|group| (group.name.clone(), group.stage)),
            anti_affinity: planned.anti_affinity.clone(),
            warm: planned.warm.map(|warm| WarmWish {
                interval_ms: match warm.interval {
                    Interval::Auto => INTERVAL_AUTO_MS,
                    Interval::Every(time) => time.as_millis() as u64,
                },
                cutover_ms: match warm.cutover {
                    Cutover::At(moment) => u64::try_from(moment).ok(),
                    Cutover::Manual | Cutover::Auto => None,
                },
                downtime_ms: match warm.cutover {
                    Cutover::Auto => warm.downtime_max.as_millis() as u64,
                    Cutover::Manual | Cutover::At(_) => 0,
                },
                on_order: warm.cutover == Cutover::Manual,
            }),
            runs: may_run(vm),
            verified_bytes,
            ..FleetVm::default()
        }
    }

    /// VMs of an inventory that is not planned yet, all of them cold or all warm, verified in full and started. `written`
    /// tells what some of them write.
    pub fn of_inventory(inventory: &Inventory, written: &WriteRates, warm: Option<WarmWish>) -> Vec<FleetVm> {
        let of = |vm: &Vm| {
            let disk = |disk| FleetDisk {
                data_bytes: vm.data_bytes_of(disk),
                datastore: disk.datastore.clone(),
                pool: None,
            };
            let disks: Vec<FleetDisk> = vm.disks.iter().map(disk).collect();
            let data = disks.iter().map(|disk| disk.data_bytes).sum();
            FleetVm {
                name: vm.name.clone(),
                host: inventory.host(&vm.host_id).map_or(vm.host_id.clone(), |host| host.name.clone()),
                source: inventory.about.instance_uuid.clone(),
                disks,
                // A VM that is off has nothing to keep running for.
                warm: warm.filter(|_| may_run(vm)),
                runs: may_run(vm),
                churn_bytes_per_hour: written.get(&vm.id).map(|rate| rate.bytes_per_hour),
                verified_bytes: data,
                ..FleetVm::default()
            }
        };
        inventory.vms.iter().map(of).collect()
    }
}

/// Whether a VM has to be shut down before it moves cold.
pub fn may_run(vm: &Vm) -> bool {
    matches!(vm.power, PowerState::On | PowerState::Unknown)
}

/// Spreads VMs over so many hosts: the largest first, each to the host with the least.
pub fn spread_over(vms: &mut [FleetVm], hosts: usize) {
    let mut loads = vec![0u64; hosts.max(1)];
    let mut order: Vec<usize> = (0..vms.len()).collect();
    order.sort_by_key(|at| (std::cmp::Reverse(vms[*at].data_bytes()), *at));
    for at in order {
        let (host, load) = loads.iter_mut().enumerate().min_by_key(|(_, load)| **load).expect("one at least");
        *load += vms[at].data_bytes().max(1);
        vms[at].host = format!("host-{}", host + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vms_are_spread_so_that_no_host_has_much_more_than_another() {
        let vm = |gib: u64| FleetVm {
            disks: vec![FleetDisk { data_bytes: gib << 30, ..FleetDisk::default() }],
            ..FleetVm::default()
        };
        let mut vms: Vec<FleetVm> = (1..=40).map(vm).collect();
        spread_over(&mut vms, 3);
        let load =
            |host: &str| vms.iter().filter(|vm| vm.host == host).map(FleetVm::data_bytes).sum::<u64>() >> 30;
        let loads = ["host-1", "host-2", "host-3"].map(load);
        assert_eq!(loads.iter().sum::<u64>(), 820);
        assert!(loads.iter().max().unwrap() - loads.iter().min().unwrap() <= 2, "{loads:?}");
    }
}
