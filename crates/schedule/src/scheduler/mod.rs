//! Which job goes next: a plain state machine.
//!
//! The caller asks [`Scheduler::next`] until it says `None`, and again whenever something ended, a budget changed, or
//! [`Scheduler::next_event_ms`] has come. An admitted VM holds a slot of its host and a slot for each of its disks, which it gives
//! back one by one ([`Scheduler::disk_finished`]), or all at once between two passes ([`Scheduler::park`]).
//!
//! Waiting jobs lie in lanes, one for each host and datastore, each in its order. A decision looks at the hosts that have room, and at
//! the heads of those lanes whose host may have the first job of all, so it costs about the number of hosts, however many jobs wait.
//! While the first in order waits for more slots in all than are free, nothing is looked at.

mod admit;
mod cutover;
mod ends;
mod entry;
mod hold;
mod targets;
mod tells;
mod tenants;
#[cfg(test)]
mod tests;
mod waves;

use std::collections::{BTreeMap, BTreeSet};

use crate::breaker::Breaker;
use crate::budgets::{Budgets, HostLimits, Order};
use crate::job::{Job, JobId, Tenant};
use crate::random::Random;

pub use self::admit::Admission;
use self::admit::Best;
use self::cutover::Groups;
pub use self::ends::{Ended, Quarantined};
use self::entry::{Entry, Key, State};
use self::hold::Holds;
use self::targets::Target;
pub use self::targets::TargetFailure;
pub use self::tells::{DatastoreUsage, Usage};
use self::tenants::Share;
pub use self::tenants::TenantLimits;
pub use self::waves::WaveUsage;
use self::waves::Waves;

/// Admits VMs of several tenants within budgets.
///
/// All tenants share one order, by job: one tenant of 800 jobs is treated as eight of 100. None is overtaken for ever,
/// however many come later ([`OVERTAKEN_MAX`]).
#[derive(Clone, Debug)]
pub struct Scheduler {
    budgets: Budgets,
    hosts: Vec<Host>,
    host_of: BTreeMap<String, usize>,
    datastores: Vec<Datastore>,
    datastore_of: BTreeMap<String, usize>,
    targets: Vec<Target>,
    target_of: BTreeMap<String, usize>,
    jobs: BTreeMap<JobId, Entry>,
    next_id: u64,
    /// Jobs that were admitted so far; the clock by which a job counts as overtaken.
    admissions: u64,
    /// Jobs in lanes.
    waiting: usize,
    running: usize,
    /// Jobs that have not ended.
    left: usize,
    /// Disk slots that are held.
    disks: u32,
    /// Slots that the first in order needs for lack of which it did not start; absent once another may be the first, or need others.
    awaited: Option<u32>,
    holds: Holds,
    groups: Groups,
    waves: Waves,
    /// Tenants with limits of their own.
    shares: BTreeMap<Tenant, Share>,
    /// Jobs that ended without having been admitted, and are still to be told.
    given_up: Vec<(JobId, Ended)>,
}

/// A job is overtaken by at most this many others and eight times those that waited when it came. Then it goes first.
pub const OVERTAKEN_MAX: u64 = 1000;

/// A VM that takes more than this part, an eighth, of what its host has left is one that the end may wait for. Found with the
/// generated fleets, as [`MORE_STREAMS`] is.
const LONG_PART: u64 = 8;
/// Streams beside those that fill a host, for what is between two copies.
const MORE_STREAMS: u32 = 2;

/// A host.
#[derive(Clone, Debug)]
struct Host {
    name: String,
    /// What people call it.
    label: String,
    limits: HostLimits,
    /// VM slots that other processes hold.
    elsewhere: u32,
    vms: u32,
    disks: u32,
    /// Bytes that are still to be read.
    left_bytes: u64,
    /// Time that its VMs would take one after the other.
    left_ms: u64,
    /// Its VMs that may be copied now and are not yet, by the time that each would take alone.
    longest: BTreeSet<(u64, JobId)>,
    breaker: Breaker,
    /// Datastores from which VMs of it could not be read, and none was since.
    failing: BTreeSet<usize>,
    /// Whether a VM of it was read since the latest of them began to fail.
    serves: bool,
    /// By datastore; those of tenants with limits of their own apart.
    lanes: BTreeMap<(Option<Tenant>, usize), Lane>,
    /// The best that the first of its lanes are; absent once they changed.
    best: Option<Best>,
}

/// A datastore.
#[derive(Clone, Debug)]
struct Datastore {
    name: String,
    /// What people call it.
    label: String,
    limit: Option<u32>,
    /// Disks at once that are worth it; never more than `limit`.
    learned: Option<u32>,
    /// Bytes a second of all its disks, as earlier runs measured.
    rate: Option<u64>,
    disks: u32,
    left_bytes: u64,
    breaker: Breaker,
    /// Hosts that could not read it, since it was last read.
    failed_by: BTreeSet<usize>,
}

/// Waiting jobs of a host whose disks lie in one datastore, the most of them; of one tenant, if that has limits of its own.
#[derive(Clone, Debug, Default)]
struct Lane {
    order: BTreeSet<Key>,
    /// When each counts as overtaken.
    due: BTreeSet<(u64, JobId)>,
}

impl Scheduler {
    /// An empty schedule.
    pub fn new(budgets: Budgets) -> Scheduler {
        Scheduler {
            budgets: sound(budgets),
            hosts: Vec::new(),
            host_of: BTreeMap::new(),
            datastores: Vec::new(),
            datastore_of: BTreeMap::new(),
            targets: Vec::new(),
            target_of: BTreeMap::new(),
            jobs: BTreeMap::new(),
            next_id: 0,
            admissions: 0,
            waiting: 0,
            running: 0,
            left: 0,
            disks: 0,
            awaited: None,
            holds: Holds::default(),
            groups: Groups::default(),
            waves: Waves::default(),
            shares: BTreeMap::new(),
            given_up: Vec::new(),
        }
    }

    /// Adds jobs, all waiting; gives their ids in the same order.
    pub fn add(&mut self, tenant: Tenant, jobs: Vec<Job>, now_ms: u64) -> Vec<JobId> {
        let due = self.admissions + OVERTAKEN_MAX + 8 * (self.left + jobs.len()) as u64;
        let orders = self.waves.orders(tenant, now_ms);
        let add = |job: Job| {
            let id = JobId(self.next_id);
            self.next_id += 1;
            let order = job.wave.as_ref().and_then(|wave| orders.get(wave));
            let entry = Entry {
                due_ms: order.and_then(|order| order.due_ms),
                depth: order.map_or(0, |order| order.depth),
                ..self.entry(tenant, job, due)
            };
            self.groups.add(id, &entry);
            self.waves.add(&entry);
            let (host, own_ms) = (entry.host, entry.own_ms);
            for (disk, datastore) in entry.job.disks.iter().zip(&entry.datastores) {
                let Host { left_bytes, .. } = &mut self.hosts[host];
                *left_bytes = left_bytes.saturating_add(disk.bytes);
                let Datastore { left_bytes, .. } = &mut self.datastores[*datastore];
                *left_bytes = left_bytes.saturating_add(disk.bytes);
            }
            let Host { left_ms, .. } = &mut self.hosts[host];
            *left_ms = left_ms.saturating_add(own_ms);
            self.left += 1;
            self.jobs.insert(id, entry);
            id
        };
        let ids: Vec<JobId> = jobs.into_iter().map(add).collect();
        ids.iter().for_each(|id| self.wait_again(*id, now_ms));
        self.check_invariants();
        ids
    }

    /// Adds jobs of a tenant again that have ended and did not arrive, each with what is left of it; gives their new ids in the same
    /// order. The old ids mean nothing from then on. Each counts for its group again, and for its wave: waves after that wait for it
    /// unless they were let go before.
    ///
    /// # Panics
    /// If one of them has not ended, has arrived, or was left out.
    pub fn add_again(&mut self, tenant: Tenant, again: Vec<(JobId, Job)>, now_ms: u64) -> Vec<JobId> {
        for (id, _) in &again {
            let entry = &self.jobs[id];
            let has_failed = matches!(entry.state, State::Over(ended) if !matches!(ended, Ended::Arrived | Ended::LeftOut));
            assert!(has_failed && entry.tenant == tenant, "job {} is added again and has not failed", id.0);
            self.groups.take_back(*id, entry);
            self.waves.take_back(entry);
            self.forget_job(*id);
        }
        self.add(tenant, again.into_iter().map(|(_, job)| job).collect(), now_ms)
    }

    fn entry(&mut self, tenant: Tenant, job: Job, due: u64) -> Entry {
        let host = self.host(&job.host);
        let datastores = job.disks.iter().map(|disk| self.datastore(&disk.datastore)).collect();
        let targets = self.targets_of(&job);
        Entry { targets, ..Entry::new(tenant, job, host, datastores, due, &self.budgets.rates) }
    }

    /// The host of that name, made known if it is not.
    fn host(&mut self, name: &str) -> usize {
        if let Some(host) = self.host_of.get(name) {
            return *host;
        }
        let breaker = self.breaker(name);
        self.hosts.push(Host {
            name: name.to_string(),
            label: name.to_string(),
            limits: HostLimits::default(),
            elsewhere: 0,
            vms: 0,
            disks: 0,
            left_bytes: 0,
            left_ms: 0,
            longest: BTreeSet::new(),
            breaker,
            failing: BTreeSet::new(),
            serves: false,
            lanes: BTreeMap::new(),
            best: None,
        });
        self.host_of.insert(name.to_string(), self.hosts.len() - 1);
        self.hosts.len() - 1
    }

    fn datastore(&mut self, name: &str) -> usize {
        if let Some(datastore) = self.datastore_of.get(name) {
            return *datastore;
        }
        let breaker = self.breaker(name);
        self.datastores.push(Datastore {
            name: name.to_string(),
            label: name.to_string(),
            limit: None,
            learned: None,
            rate: None,
            disks: 0,
            left_bytes: 0,
            breaker,
            failed_by: BTreeSet::new(),
        });
        self.datastore_of.insert(name.to_string(), self.datastores.len() - 1);
        self.datastores.len() - 1
    }

    fn breaker(&self, name: &str) -> Breaker {
        Breaker::new(Random::of(self.budgets.seed, name), self.budgets.host_tries)
    }

    /// The budgets from now on. What is held beyond a smaller one stays until it is given back.
    pub fn set_budgets(&mut self, budgets: Budgets) {
        self.awaited = None;
        self.budgets = sound(budgets);
    }

    /// The budgets.
    pub fn budgets(&self) -> &Budgets {
        &self.budgets
    }

    /// What is different at a host from now on, which may be one that has no job yet.
    pub fn set_host(&mut self, host: &str, limits: HostLimits) {
        self.awaited = None;
        let host = self.host(host);
        self.hosts[host].limits = limits;
    }

    /// What people call a host, if not by its name.
    pub fn set_label(&mut self, host: &str, label: &str) {
        let host = self.host(host);
        self.hosts[host].label = label.to_string();
    }

    /// What people call a datastore, if not by its name.
    pub fn set_datastore_label(&mut self, datastore: &str, label: &str) {
        let datastore = self.datastore(datastore);
        self.datastores[datastore].label = label.to_string();
    }

    /// What is different at a host.
    pub fn host_limits(&self, host: &str) -> HostLimits {
        self.host_of.get(host).map(|host| self.hosts[*host].limits).unwrap_or_default()
    }

    /// VM slots of a host that other processes hold.
    pub fn set_elsewhere(&mut self, host: &str, vms: u32) {
        self.awaited = None;
        let host = self.host(host);
        self.hosts[host].elsewhere = vms;
    }

    /// Disks of one datastore at once from now on; `None` as for all.
    pub fn set_datastore(&mut self, datastore: &str, disks: Option<u32>) {
        self.awaited = None;
        let datastore = self.datastore(datastore);
        self.datastores[datastore].limit = disks;
    }

    /// Disks of one datastore at once that are worth it, as [`crate::Learner`] found; `None` as many as may be.
    pub fn learn_datastore(&mut self, datastore: &str, disks: Option<u32>) {
        self.awaited = None;
        let datastore = self.datastore(datastore);
        self.datastores[datastore].learned = disks;
    }

    /// Bytes a second of all disks of a datastore, as earlier runs measured; it decides the order only.
    pub fn set_datastore_rate(&mut self, datastore: &str, rate: u64) {
        let datastore = self.datastore(datastore);
        self.datastores[datastore].rate = Some(rate);
    }

    fn vms_max(&self, host: &Host) -> u32 {
        host.limits.vms.unwrap_or(self.budgets.vms_per_host).max(1)
    }

    fn disks_max(&self, host: &Host) -> u32 {
        let budget = host.limits.disks.unwrap_or(self.budgets.disks_per_host);
        budget.min(host.limits.learned.unwrap_or(u32::MAX)).max(1)
    }

    fn datastore_max(&self, datastore: &Datastore) -> u32 {
        let budget = datastore.limit.unwrap_or(self.budgets.disks_per_datastore);
        budget.min(datastore.learned.unwrap_or(u32::MAX)).max(1)
    }

    /// Bytes a second that a host gives in all, as measured or else assumed.
    pub fn rate_of(&self, host: &str) -> u64 {
        self.host_limits(host).rate.unwrap_or(self.budgets.rates.host)
    }

    /// How long a host has still to do, in milliseconds.
    fn host_left_ms(&self, host: &Host) -> u64 {
        let rate = host.limits.rate.unwrap_or(self.budgets.rates.host);
        time_ms(host.left_bytes, rate).max(host.left_ms / u64::from(self.vms_max(host)))
    }

    /// Disks at once beyond which no further VM of a host starts: while one VM takes so long that the end of all waits for it, it
    /// is to have the whole rate of its stream. Streams beyond those that fill the host would take it away.
    fn narrow(&self, host: &Host) -> u32 {
        let longest = host.longest.last().map_or(0, |(own_ms, _)| *own_ms);
        let is_long = longest.saturating_mul(LONG_PART) > self.host_left_ms(host);
        if !is_long || self.budgets.order == Order::Arrival {
            return u32::MAX;
        }
        // A host that was measured while something else was the limit is not narrower for it.
        let rate = host.limits.rate.unwrap_or(0).max(self.budgets.rates.host);
        let fill = u32::try_from(rate.div_ceil(self.budgets.rates.disk.max(1))).unwrap_or(u32::MAX);
        fill.saturating_add(MORE_STREAMS)
    }

    /// Puts a job where it belongs: into its lane, or aside.
    fn wait_again(&mut self, id: JobId, now_ms: u64) {
        match self.hold(id, now_ms) {
            Some(hold) => self.put_aside(id, hold, now_ms),
            None => self.enqueue(id),
        }
    }

    fn enqueue(&mut self, id: JobId) {
        self.awaited = None;
        let limited = self.limited(self.jobs[&id].tenant);
        let entry = self.jobs.get_mut(&id).expect("a job that waits is known");
        entry.state = State::Waiting;
        entry.key = entry.key(id, self.budgets.order);
        if !entry.is_copied {
            self.hosts[entry.host].longest.insert((entry.own_ms, id));
        }
        self.hosts[entry.host].best = None;
        let lane = self.hosts[entry.host].lanes.entry((limited, entry.lane())).or_default();
        lane.order.insert(entry.key);
        lane.due.insert((entry.due, id));
        self.waiting += 1;
    }

    fn dequeue(&mut self, id: JobId) {
        self.awaited = None;
        let entry = &self.jobs[&id];
        let place = (self.limited(entry.tenant), entry.lane());
        let Host { lanes, best, .. } = &mut self.hosts[entry.host];
        *best = None;
        if let Some(lane) = lanes.get_mut(&place) {
            lane.order.remove(&entry.key);
            lane.due.remove(&(entry.due, id));
            if lane.order.is_empty() {
                lanes.remove(&place);
            }
        }
        self.waiting -= 1;
    }
}

fn sound(budgets: Budgets) -> Budgets {
    Budgets {
        vms_per_host: budgets.vms_per_host.max(1),
        disks_per_host: budgets.disks_per_host.max(1),
        disks_per_datastore: budgets.disks_per_datastore.max(1),
        disks: budgets.disks.max(1),
        cutovers: budgets.cutovers.max(1),
        host_tries: budgets.host_tries.max(1),
        ..budgets
    }
}

/// Milliseconds that so many bytes take.
pub(crate) fn time_ms(bytes: u64, rate: u64) -> u64 {
    // Division of 128 bits takes several times as long.
    if let Some(product) = bytes.checked_mul(1000) {
        return product / rate.max(1);
    }
    u64::try_from(u128::from(bytes) * 1000 / u128::from(rate.max(1))).unwrap_or(u64::MAX)
}
