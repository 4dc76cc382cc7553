//! What no schedule can beat.

use std::collections::BTreeMap;

use super::{Capacities, Fleet, Vm};
use crate::scheduler::time_ms;

/// A time below which no schedule moves the fleet, in milliseconds: the most that any resource has to do, or the longest VM.
/// Lines count with their greatest rates. Later passes of warm VMs are not in it.
pub fn lower_bound_ms(fleet: &Fleet) -> u64 {
    let capacities = &fleet.capacities;
    let mut work = Work::default();
    let mut longest = 0;
    for vm in &fleet.vms {
        longest = longest.max(alone_ms(vm, capacities));
        work.add(vm);
    }
    let all = |bytes: &BTreeMap<&str, u64>, of: &dyn Fn(&str) -> Option<u64>| {
        bytes.iter().filter_map(|(name, bytes)| Some(time_ms(*bytes, of(name)?))).max().unwrap_or(0)
    };
    let line = capacities.link.iter().map(|limit| limit.bytes_per_second).max();
    let whole = [line, capacities.cpu].into_iter().flatten().map(|rate| time_ms(work.bytes, rate));
    [
        all(&work.hosts, &|name| capacities.host(name)),
        all(&work.datastores, &|name| capacities.datastore(name)),
        all(&work.pools, &|name| capacities.pool(name)),
        all(&work.lines, &|name| capacities.line(name)),
        longest,
    ]
    .into_iter()
    .chain(whole)
    .max()
    .unwrap_or(0)
}

#[derive(Default)]
struct Work<'a> {
    hosts: BTreeMap<&'a str, u64>,
    datastores: BTreeMap<&'a str, u64>,
    pools: BTreeMap<&'a str, u64>,
    lines: BTreeMap<&'a str, u64>,
    bytes: u64,
}

impl<'a> Work<'a> {
    fn add(&mut self, vm: &'a Vm) {
        for disk in &vm.job.disks {
            *self.hosts.entry(&vm.job.host).or_default() += disk.bytes;
            *self.datastores.entry(&disk.datastore).or_default() += disk.bytes;
            disk.pool.iter().for_each(|pool| *self.pools.entry(pool).or_default() += disk.bytes);
            vm.lines.iter().for_each(|line| *self.lines.entry(line).or_default() += disk.bytes);
            self.bytes += disk.bytes;
        }
    }
}

/// How long a VM takes if it has all for itself.
fn alone_ms(vm: &Vm, capacities: &Capacities) -> u64 {
    let largest = vm.job.disks.iter().map(|disk| disk.bytes).max().unwrap_or(0);
    let stream = capacities.stream.map_or(0, |rate| time_ms(largest, rate));
    let host = capacities.host(&vm.job.host).map_or(0, |rate| time_ms(vm.job.bytes(), rate));
    vm.shutdown_ms + vm.snapshot_ms + stream.max(host) + vm.verify_ms + vm.start_ms
}

impl Capacities {
    /// Of a host.
    pub fn host(&self, name: &str) -> Option<u64> {
        self.hosts.get(name).copied().or(self.host)
    }

    /// Of a datastore.
    pub fn datastore(&self, name: &str) -> Option<u64> {
        self.datastores.get(name).copied().or(self.datastore)
    }

    /// The greatest of a line that only some VMs share.
    fn line(&self, name: &str) -> Option<u64> {
        self.lines.get(name)?.iter().map(|limit| limit.bytes_per_second).max()
    }

    /// Of a pool.
    pub fn pool(&self, name: &str) -> Option<u64> {
        self.pools.get(name).copied().or(self.pool)
    }
}
