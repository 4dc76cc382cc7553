//! Fleets from a seed.
#![allow(dead_code)]

use drover_schedule::simulate::{Capacities, Fleet, Vm};
use drover_schedule::{Budgets, Disk, Job, Random, Tenant};

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;

/// How a fleet is uneven.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skew {
    /// Not at all.
    Even,
    /// A tenth of the VMs has most of the bytes.
    Sizes,
    /// One host has a third of the VMs.
    Host,
    /// One datastore has half of the disks, and is slow.
    Datastore,
    /// The line is narrower than the hosts.
    Line,
}

const SKEWS: [Skew; 5] = [Skew::Even, Skew::Sizes, Skew::Host, Skew::Datastore, Skew::Line];

/// A fleet of 100 to 800 VMs, by its seed, and what it is called.
pub fn fleet(seed: u64) -> (String, Fleet) {
    let mut random = Random::new(seed);
    let skew = SKEWS[seed as usize % SKEWS.len()];
    let hosts = 2 + random.below(11);
    let vms = 100 + random.below(700);
    let vms = (0..vms).map(|number| vm(number, hosts, skew, &mut random)).collect();
    let capacities = Capacities {
        stream: Some(100 * MIB),
        host: Some(284 * MIB),
        datastore: (skew == Skew::Datastore).then_some(312 * MIB),
        link: if skew == Skew::Line { vec!["4g".parse().unwrap()] } else { Vec::new() },
        ..Capacities::default()
    };
    let fleet = Fleet { vms, capacities, climb_from: Some(20), ..Fleet::default() };
    (format!("{seed} {skew:?} {hosts} hosts"), fleet)
}

/// A VM with one to four disks.
pub fn vm(number: u64, hosts: u64, skew: Skew, random: &mut Random) -> Vm {
    let host = match skew {
        Skew::Host if random.below(3) == 0 => 0,
        _ => random.below(hosts),
    };
    let datastore = match skew {
        Skew::Datastore if random.below(2) == 0 => 0,
        _ => random.below(hosts),
    };
    let gib = match skew {
        Skew::Sizes if random.below(10) == 0 => 200 + random.below(600),
        _ => 5 + random.below(60),
    };
    let disks = 1 + random.below(4);
    let disk = |_| Disk { bytes: gib * GIB / disks, datastore: format!("ds{datastore}"), pool: None };
    let disks = (0..disks).map(disk).collect();
    let job = Job { name: format!("vm{number}"), host: format!("esx{host}"), disks, ..Job::default() };
    Vm { tenant: Tenant(0), job, shutdown_ms: 20_000, snapshot_ms: 5_000, start_ms: 20_000, ..Vm::default() }
}

/// Many VMs on 40 hosts, 12 disks for five VMs on average.
pub fn large(vms: u64, hosts: u64, tenants: u64) -> Fleet {
    let mut random = Random::new(40);
    let one = |number: u64| {
        let vm = vm(number, hosts, Skew::Sizes, &mut random);
        Vm { tenant: Tenant(number % tenants), ..vm }
    };
    let vms = (0..vms).map(one).collect();
    let capacities = Capacities { stream: Some(100 * MIB), host: Some(284 * MIB), ..Capacities::default() };
    let budgets = Budgets { disks: 800, ..Budgets::default() };
    Fleet { vms, capacities, budgets, climb_from: Some(20), ..Fleet::default() }
}
