//! Admitting.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::entry::{Held, Key, State};
use super::{Datastore, Host, Lane, Scheduler, time_ms};
use crate::breaker::Permit;
use crate::budgets::Order;
use crate::job::{JobId, Tenant};

/// A job that may begin, or go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// Which one.
    pub job: JobId,
    /// Its disks that may be open at once: one at least, and never more than there are.
    pub slots: u32,
}

/// What orders the heads of lanes; the least goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_later: bool,
    in_time: bool,
    turns: u64,
    priority: Reverse<i32>,
    deadline: u64,
    depth: usize,
    /// What holds up the end of all if this waits, for each slot that works on it.
    critical_ms: Reverse<u64>,
    datastore_ms: Reverse<u64>,
    own_ms: Reverse<u64>,
    id: u64,
}

impl Rank {
    fn new(key: Key, is_due: bool, critical_ms: u64, datastore_ms: u64) -> Rank {
        Rank {
            is_later: key.is_later,
            in_time: !is_due,
            turns: key.turns,
            priority: key.priority,
            deadline: key.deadline,
            depth: key.depth,
            critical_ms: Reverse(critical_ms),
            datastore_ms: Reverse(datastore_ms),
            own_ms: key.own_ms,
            id: key.id,
        }
    }
}

/// The best that the first jobs of a host's lanes are, each in its own way: none of them goes before what is made of it.
#[derive(Clone, Debug)]
pub(super) struct Best {
    key: Key,
    own_ms: u64,
    /// When the first of all counts as overtaken.
    due: u64,
    datastores: Vec<usize>,
}

impl Best {
    fn of(lanes: &BTreeMap<(Option<Tenant>, usize), Lane>) -> Option<Best> {
        let heads = || lanes.values().filter_map(|lane| lane.order.first());
        Some(Best {
            key: *heads().min()?,
            own_ms: heads().map(|key| key.own_ms.0).max()?,
            due: lanes.values().filter_map(|lane| lane.due.first()).map(|(due, _)| *due).min()?,
            datastores: lanes.keys().map(|(_, datastore)| *datastore).collect(),
        })
    }
}

/// The first jobs of lanes. The lanes of a host are looked at only once one of them may be the next: until then the host stands there
/// with the best that they could be, so that a decision costs about the number of hosts.
struct Heads(BinaryHeap<Reverse<(Rank, Option<usize>)>>);

impl Heads {
    /// The next one in order.
    fn pop(&mut self, scheduler: &Scheduler) -> Option<Rank> {
        loop {
            match self.0.pop()? {
                Reverse((rank, None)) => return Some(rank),
                Reverse((_, Some(host))) => self.extend(scheduler.heads_of(host)),
            }
        }
    }

    fn extend(&mut self, heads: impl IntoIterator<Item = Rank>) {
        self.0.extend(heads.into_iter().map(|rank| Reverse((rank, None))));
    }
}

/// Whether there is room for a job.
enum Room {
    Yes(Held),
    NotAtHost,
    NotAtDatastore(usize),
    NotForTenant,
    /// It needs so many slots.
    NotInAll(u32),
}

/// A host, and what it holds up for each disk that is read from it.
struct Weight {
    host: usize,
    critical_ms: u64,
}

impl Scheduler {
    /// The job to start now, if one fits; its slots are taken from this moment.
    ///
    /// A host without room for its next VM is passed over, with all its VMs, and so is a datastore. A VM for whose disks there
    /// is no room in all is not: smaller ones behind it would otherwise hold it back for ever.
    pub fn next(&mut self, now_ms: u64) -> Option<Admission> {
        self.release_due(now_ms);
        loop {
            if self.disks >= self.budgets.disks || self.waiting == 0 {
                return None;
            }
            let left = self.left;
            if let Some((id, held)) = self.first_that_fits(now_ms) {
                return Some(self.admit(id, held, now_ms));
            }
            // A job that was given up may have let others wait: each is given up once, so this ends.
            if self.left == left {
                return None;
            }
        }
    }

    fn first_that_fits(&mut self, now_ms: u64) -> Option<(JobId, Held)> {
        // The first in order still does not fit, and none overtakes it.
        if self.awaited.is_some_and(|slots| self.disks + slots > self.budgets.disks) {
            return None;
        }
        let mut heads = self.heads(now_ms);
        let (mut full_hosts, mut full_datastores) = (BTreeSet::new(), BTreeSet::new());
        let mut full_tenants = BTreeSet::new();
        while let Some(rank) = heads.pop(self) {
            let id = JobId(rank.id);
            let entry = &self.jobs[&id];
            let is_full = full_hosts.contains(&entry.host)
                || full_tenants.contains(&entry.tenant)
                || entry.spread.iter().any(|(datastore, _)| full_datastores.contains(datastore));
            // One that was given up may have taken others along.
            if is_full || entry.state != State::Waiting {
                continue;
            }
            if let Some(hold) = self.hold(id, now_ms) {
                let (host, lane) = (entry.host, (self.limited(entry.tenant), entry.lane()));
                self.dequeue(id);
                self.put_aside(id, hold, now_ms);
                heads.extend(self.head(&self.weight_of(host), lane));
                continue;
            }
            match self.room(id) {
                Room::Yes(held) => return Some((id, held)),
                Room::NotAtHost => drop(full_hosts.insert(entry.host)),
                Room::NotAtDatastore(datastore) => drop(full_datastores.insert(datastore)),
                // As with all disks: smaller VMs of the tenant would hold this one back for ever.
                Room::NotForTenant => drop(full_tenants.insert(entry.tenant)),
                Room::NotInAll(slots) => {
                    self.awaited = Some(slots);
                    return None;
                }
            }
        }
        None
    }

    /// The first job of each lane whose host has room, in order. There are as many as hosts times datastores, and hardly one is looked
    /// at closer: whether it may start at this time is asked of those alone.
    fn heads(&mut self, now_ms: u64) -> Heads {
        let datastores: Vec<u64> = self.datastores.iter().map(|it| self.datastore_ms(it)).collect();
        let mut heads = Vec::new();
        for host in 0..self.hosts.len() {
            if self.has_room(&self.hosts[host], now_ms) {
                let best = self.hosts[host].best.take().or_else(|| Best::of(&self.hosts[host].lanes));
                heads.extend(
                    best.as_ref().map(|best| Reverse((self.bound(host, best, &datastores), Some(host)))),
                );
                self.hosts[host].best = best;
            }
        }
        Heads(BinaryHeap::from(heads))
    }

    /// The first jobs of a host's lanes.
    fn heads_of(&self, host: usize) -> impl Iterator<Item = Rank> {
        let weight = self.weight_of(host);
        let lanes = self.hosts[host].lanes.keys().filter(move |(tenant, _)| self.may_look(host, *tenant));
        lanes.filter_map(move |lane| self.head(&weight, *lane))
    }

    /// No first job of a host's lanes goes before this.
    fn bound(&self, host: usize, best: &Best, datastores: &[u64]) -> Rank {
        let is_due = best.due <= self.admissions;
        let key = if is_due { Key { is_later: best.key.is_later, ..Key::FIRST } } else { best.key };
        let datastore_ms = best.datastores.iter().filter_map(|it| datastores.get(*it)).max();
        let own_ms = if is_due { u64::MAX } else { best.own_ms };
        let critical = self.weight_of(host).critical_ms.max(own_ms);
        let (critical_ms, datastore_ms) = match self.budgets.order {
            Order::Arrival => (0, 0),
            Order::Critical => {
                let datastore_ms = datastore_ms.copied().unwrap_or(0);
                (critical.max(datastore_ms), datastore_ms)
            }
        };
        Rank::new(Key { own_ms: Reverse(own_ms), id: 0, ..key }, is_due, critical_ms, datastore_ms)
    }

    fn has_room(&self, host: &Host, now_ms: u64) -> bool {
        !host.lanes.is_empty()
            && host.vms + host.elsewhere < self.vms_max(host)
            && host.disks < self.disks_max(host).min(self.narrow(host))
            && !matches!(host.breaker.permit(now_ms), Permit::Not(_) | Permit::Never)
    }

    fn weight_of(&self, host: usize) -> Weight {
        let it = &self.hosts[host];
        Weight { host, critical_ms: each(self.host_left_ms(it), it.disks) }
    }

    /// The first of a lane.
    fn head(&self, weight: &Weight, lane: (Option<Tenant>, usize)) -> Option<Rank> {
        let jobs = self.hosts[weight.host].lanes.get(&lane)?;
        let (key, is_due) = first_of(jobs, self.admissions, |id| self.jobs[&id].key)?;
        Some(self.rank(weight, lane.1, key, is_due))
    }

    fn rank(&self, weight: &Weight, datastore: usize, key: Key, is_due: bool) -> Rank {
        let (critical_ms, datastore_ms) = match self.budgets.order {
            Order::Arrival => (0, 0),
            Order::Critical => {
                // A VM without disks lies in none.
                let datastore_ms = self.datastores.get(datastore).map_or(0, |it| self.datastore_ms(it));
                (weight.critical_ms.max(datastore_ms).max(key.own_ms.0), datastore_ms)
            }
        };
        Rank::new(key, is_due, critical_ms, datastore_ms)
    }

    /// What a datastore holds up for each disk that is read from it.
    fn datastore_ms(&self, datastore: &Datastore) -> u64 {
        let rate = datastore.rate.unwrap_or(self.budgets.rates.datastore);
        each(time_ms(datastore.left_bytes, rate), datastore.disks)
    }

    fn room(&self, id: JobId) -> Room {
        let entry = &self.jobs[&id];
        let host = &self.hosts[entry.host];
        let host_max = self.disks_max(host);
        let own_max = self.tenant_disks(entry.tenant);
        let mut slots = entry.disks().min(self.budgets.disks).min(host_max).min(own_max);
        for (datastore, disks) in &entry.spread {
            // Its disks go one after the other then, and any of them may be those of this datastore.
            let max = self.datastore_max(&self.datastores[*datastore]);
            if *disks > max {
                slots = slots.min(max);
            }
        }
        // Before what all share: a tenant without room of its own says nothing of the host's.
        let own = self.shares.get(&entry.tenant).map_or(0, |share| share.disks);
        if own.saturating_add(slots) > own_max {
            return Room::NotForTenant;
        }
        if host.disks.saturating_add(slots) > host_max {
            return Room::NotAtHost;
        }
        let taken = |(datastore, disks): &(usize, u32)| (*datastore, slots.min(*disks), *disks);
        let datastores: Vec<_> = entry.spread.iter().map(taken).collect();
        for (datastore, slots, _) in &datastores {
            let it = &self.datastores[*datastore];
            if it.disks.saturating_add(*slots) > self.datastore_max(it) {
                return Room::NotAtDatastore(*datastore);
            }
        }
        if self.disks + slots > self.budgets.disks {
            return Room::NotInAll(slots);
        }
        let done = vec![false; entry.job.disks.len()];
        Room::Yes(Held { slots, at_host: slots, left: entry.disks(), datastores, done })
    }

    fn admit(&mut self, id: JobId, held: Held, now_ms: u64) -> Admission {
        self.dequeue(id);
        self.admissions += 1;
        self.running += 1;
        let slots = held.slots;
        self.disks += slots;
        held.datastores.iter().for_each(|(datastore, slots, _)| self.datastores[*datastore].disks += slots);
        let entry = self.jobs.get_mut(&id).expect("a job that is admitted is known");
        entry.turns += 1;
        if entry.begun.is_none() {
            entry.begun = Some(entry.turns);
            self.waves.begin(entry);
        }
        entry.state = State::Running(held);
        let host = &mut self.hosts[entry.host];
        host.vms += 1;
        host.disks += slots;
        host.breaker.started(id, now_ms);
        for (datastore, _) in &entry.spread {
            self.datastores[*datastore].breaker.started(id, now_ms);
        }
        for target in &entry.targets {
            self.targets[*target].breaker.started(id, now_ms);
        }
        if let Some(share) = self.shares.get_mut(&entry.tenant) {
            share.disks += slots;
            *share.vms.entry(entry.host).or_default() += 1;
        }
        if let Some(key) = entry.job.anti_affinity.clone() {
            self.holds.run(key, id);
        }
        self.check_admission(id);
        self.check_invariants();
        Admission { job: id, slots }
    }

    /// # Panics
    /// If a budget of what was just admitted is exceeded.
    fn check_admission(&self, id: JobId) {
        let entry = &self.jobs[&id];
        let host = &self.hosts[entry.host];
        assert!(self.disks <= self.budgets.disks, "more disks run than the budget allows");
        assert!(host.vms <= self.vms_max(host), "more VMs of {} run than its budget allows", host.name);
        assert!(host.disks <= self.disks_max(host), "more disks of {} are open than it may", host.name);
        if let Some(share) = self.shares.get(&entry.tenant) {
            assert!(share.disks <= share.disks_max(), "a tenant has more disks open than it may");
            assert!(share.vms_at(entry.host) <= share.vms_max(), "more VMs of a tenant run than may");
        }
        for datastore in entry.spread.iter().map(|(datastore, _)| &self.datastores[*datastore]) {
            let max = self.datastore_max(datastore);
            assert!(datastore.disks <= max, "more disks of datastore {} are open than may", datastore.name);
        }
    }
}

/// What is left to do, for each disk that works on it and one more.
fn each(left_ms: u64, disks: u32) -> u64 {
    left_ms / (u64::from(disks) + 1)
}

/// The key of the first job of a lane, and whether it goes first because it was overtaken too often.
fn first_of(lane: &Lane, admissions: u64, key_of: impl Fn(JobId) -> Key) -> Option<(Key, bool)> {
    let first = *lane.order.first()?;
    let overtaken = lane.due.first().filter(|(due, _)| *due <= admissions);
    match overtaken {
        Some((_, id)) if first.is_later => Some((key_of(*id), true)),
        _ => Some((first, false)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::budgets::{Budgets, HostLimits};
    use crate::job::{Disk, Job};
    use crate::scheduler::{Ended, TenantLimits};

    fn any_job() -> impl Strategy<Value = Job> {
        let disk = |(datastore, gib): (u8, u64)| Disk {
            bytes: gib << 30,
            datastore: format!("ds{datastore}"),
            pool: None,
        };
        let disks = prop::collection::vec((0..4u8, 0..30u64).prop_map(disk), 0..4);
        (0..4u8, disks, -1..2i32, prop::bool::weighted(0.1)).prop_map(|(host, disks, priority, goes_on)| {
            Job { host: format!("esx{host}"), disks, priority, goes_on, ..Job::default() }
        })
    }

    proptest! {
        #[test]
        fn heads_come_in_the_order_of_all_of_them(
            jobs in prop::collection::vec(any_job(), 1..60),
            steps in prop::collection::vec(any::<u8>(), 1..60),
            order in prop::sample::select(vec![Order::Critical, Order::Arrival]),
        ) {
            let budgets = Budgets { vms_per_host: 3, disks: 16, order, ..Budgets::default() };
            let mut scheduler = Scheduler::new(budgets);
            scheduler.set_tenant(Tenant(1), TenantLimits { disks: Some(4), ..TenantLimits::default() });
            let (one, other) = jobs.split_at(jobs.len() / 2);
            scheduler.add(Tenant(0), one.to_vec(), 0);
            scheduler.add(Tenant(1), other.to_vec(), 0);
            let mut running = Vec::new();
            for step in steps {
                // So that some count as overtaken.
                scheduler.admissions += u64::from(step);
                // What is learned of a host changes what its lanes weigh, and not the order of a lane.
                let rate = (step % 5 == 0).then_some(u64::from(step) << 24);
                scheduler.set_host(&format!("esx{}", step % 4), HostLimits { rate, ..HostLimits::default() });
                let with_room = (0..scheduler.hosts.len()).filter(|it| scheduler.has_room(&scheduler.hosts[*it], 0));
                let mut all: Vec<Rank> = with_room.flat_map(|host| scheduler.heads_of(host)).collect();
                all.sort();
                let mut heads = scheduler.heads(0);
                let in_order: Vec<Rank> = std::iter::from_fn(|| heads.pop(&scheduler)).collect();
                prop_assert_eq!(in_order, all);
                match scheduler.next(0) {
                    Some(admission) => running.push(admission.job),
                    None if running.is_empty() => break,
                    None => {
                        let id = running.swap_remove(usize::from(step) % running.len());
                        if step % 3 == 0 {
                            scheduler.park(id, 0);
                            scheduler.wake(id, step % 2 == 0, 0);
                        } else {
                            scheduler.finished(id, Ended::Arrived, 0);
                        }
                    }
                }
            }
        }
    }
}
