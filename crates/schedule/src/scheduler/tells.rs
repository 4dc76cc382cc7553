//! What is told of a schedule.

use serde::{Deserialize, Serialize};

use super::entry::{Aside, Entry, State};
use super::{Ended, Host, Scheduler};
use crate::breaker::Permit;
use crate::job::{Job, JobId};
use crate::wait::Wait;

/// How much of something is in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// The host.
    pub host: String,
    /// VMs that run.
    pub vms: u32,
    /// VMs that may.
    pub vms_max: u32,
    /// Disks that are read.
    pub disks: u32,
    /// Disks that may be.
    pub disks_max: u32,
    /// VMs that wait in a lane.
    pub waiting: usize,
}

/// How much of a datastore is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatastoreUsage {
    /// Disks that are read.
    pub disks: u32,
    /// Disks at once that are worth it, if that was found.
    pub learned: Option<u32>,
    /// Hosts at which VMs wait that have most of their disks there.
    pub waiting_at: Vec<String>,
}

impl Usage {
    /// Whether the host shows what it gives: others wait, and its disks or its VMs are as many as may be.
    pub fn is_full(&self) -> bool {
        self.waiting > 0 && (self.vms >= self.vms_max || self.disks + self.disks / 8 >= self.disks_max)
    }
}

impl Scheduler {
    /// Jobs that wait for slots.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Jobs that run.
    pub fn running(&self) -> usize {
        self.running
    }

    /// Whether every job has ended.
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// Disk slots that are held.
    pub fn disks_held(&self) -> u32 {
        self.disks
    }

    /// A job as it was added, if it is known.
    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id).map(|entry| &entry.job)
    }

    /// Whether a job runs.
    pub fn is_running(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(|entry| matches!(entry.state, State::Running(_)))
    }

    /// When [`Scheduler::next`] is to be asked again although nothing ended: a window opens, a wait after a failure is over.
    pub fn next_event_ms(&self, now_ms: u64) -> Option<u64> {
        let closed = |host: &Host| match host.breaker.permit(now_ms) {
            Permit::Not(until) if until < u64::MAX && !host.lanes.is_empty() => Some(until),
            Permit::Not(_) | Permit::Yes | Permit::One | Permit::Never => None,
        };
        let left_alone = |datastore: usize| match self.datastores[datastore].breaker.permit(now_ms) {
            Permit::Not(until) if until < u64::MAX => Some(until),
            Permit::Not(_) | Permit::Yes | Permit::One | Permit::Never => None,
        };
        let datastores = self.holds.datastores().filter_map(left_alone);
        let place = |target: usize| match self.targets[target].breaker.permit(now_ms) {
            Permit::Not(until) if until < u64::MAX => Some(until),
            Permit::Not(_) | Permit::Yes | Permit::One | Permit::Never => None,
        };
        let targets = self.holds.targets().filter_map(place);
        let hosts = self.hosts.iter().filter_map(closed);
        hosts.chain(datastores).chain(targets).chain(self.holds.next_ms()).min()
    }

    /// Hosts that failed and are left alone, or are being tried.
    pub fn left_alone(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().filter(|host| host.breaker.is_open()).map(|host| host.name.as_str())
    }

    /// The same of datastores.
    pub fn datastores_left_alone(&self) -> impl Iterator<Item = &str> {
        self.datastores.iter().filter(|it| it.breaker.is_open()).map(|it| it.name.as_str())
    }

    /// What each host has in use, in the order in which they became known.
    pub fn usage(&self) -> Vec<Usage> {
        self.hosts.iter().map(|host| self.usage_at(host)).collect()
    }

    /// What one host has in use.
    pub fn usage_of(&self, host: &str) -> Option<Usage> {
        self.host_of.get(host).map(|host| self.usage_at(&self.hosts[*host]))
    }

    /// What one datastore has in use.
    pub fn datastore_usage(&self, datastore: &str) -> Option<DatastoreUsage> {
        let number = *self.datastore_of.get(datastore)?;
        let it = &self.datastores[number];
        let waits = |host: &&Host| host.lanes.keys().any(|(_, datastore)| *datastore == number);
        Some(DatastoreUsage {
            disks: it.disks,
            learned: it.learned,
            waiting_at: self.hosts.iter().filter(waits).map(|host| host.name.clone()).collect(),
        })
    }

    /// What people call a datastore.
    pub fn datastore_label(&self, datastore: &str) -> String {
        let number = self.datastore_of.get(datastore);
        number.map_or(datastore, |number| &self.datastores[*number].label).to_string()
    }

    fn usage_at(&self, host: &Host) -> Usage {
        Usage {
            host: host.name.clone(),
            vms: host.vms,
            vms_max: self.vms_max(host),
            disks: host.disks,
            disks_max: self.disks_max(host),
            waiting: waiting(host),
        }
    }

    /// Whether a job wants nothing for now.
    pub fn is_parked(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(|entry| entry.state == State::Parked)
    }

    /// Whether a job's guest is down since an earlier run, so that it waits for no window, wave or group.
    pub fn goes_on(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_some_and(|entry| entry.job.goes_on)
    }

    /// What people call a host.
    pub fn label(&self, host: &str) -> String {
        self.host_of.get(host).map_or(host, |host| &self.hosts[*host].label).to_string()
    }

    /// How a job ended, if it has.
    pub fn ended(&self, id: JobId) -> Option<Ended> {
        match self.jobs.get(&id)?.state {
            State::Over(ended) => Some(ended),
            State::Waiting | State::Aside(_) | State::Running(_) | State::Parked => None,
        }
    }

    /// Whether a job is over.
    pub fn is_over(&self, id: JobId) -> bool {
        self.jobs.get(&id).is_none_or(|entry| matches!(entry.state, State::Over(_)))
    }

    /// Disk slots that an admission of the job would take now, if there were room.
    pub fn disks_at_once(&self, id: JobId) -> u32 {
        self.jobs.get(&id).map_or(1, |entry| {
            let most = self.budgets.disks.min(self.tenant_disks(entry.tenant));
            entry.disks().min(most).min(self.disks_max(&self.hosts[entry.host]))
        })
    }

    /// What a job waits for; `None` if it does not wait.
    pub fn wait_of(&self, id: JobId, now_ms: u64) -> Option<Wait> {
        let entry = self.jobs.get(&id)?;
        match entry.state {
            State::Parked if entry.awaits_wave => self.wave_wait(id, now_ms).ok().flatten(),
            State::Running(_) | State::Parked => self.cutover_wait(id, now_ms),
            State::Over(_) => None,
            State::Aside(aside) => Some(self.why_aside(entry, aside, now_ms)),
            State::Waiting => Some(self.why_waiting(entry, now_ms)),
        }
    }

    fn why_aside(&self, entry: &Entry, aside: Aside, now_ms: u64) -> Wait {
        match aside {
            Aside::Window(opens_ms) => Wait::Window { opens_ms, opens: self.waves.moment(entry, opens_ms) },
            Aside::Retry(at_ms) => Wait::Retry { of: entry.failed.clone(), at_ms },
            Aside::Room(at_ms) => entry.room.clone().unwrap_or(Wait::Retry { of: String::new(), at_ms }),
            Aside::Affinity => {
                let other = entry.job.anti_affinity.as_deref().and_then(|key| self.holds.runs(key));
                let other = other.and_then(|id| self.job(id)).map(|job| job.name.clone());
                Wait::AntiAffinity { other: other.unwrap_or_default() }
            }
            Aside::Wave(until) => {
                let wait = self.waves.wait(entry, now_ms).and_then(Result::ok);
                wait.unwrap_or(Wait::Window { opens_ms: until, opens: String::new() })
            }
            Aside::Stage => Wait::Stage {
                group: entry.job.group.as_ref().map(|group| group.name.clone()).unwrap_or_default(),
                stage: self.groups.stage_left(entry).unwrap_or(0),
            },
            Aside::Datastore(datastore) => {
                let until_ms = self.left_alone_of(entry, now_ms).map_or(now_ms, |(_, until_ms)| until_ms);
                Wait::Datastore { datastore: self.datastores[datastore].label.clone(), until_ms }
            }
            Aside::Target(target) => {
                let until = self.target_left_alone_of(entry, now_ms);
                self.target_wait(target, until.map_or(now_ms, |(_, until_ms)| until_ms))
            }
        }
    }

    fn why_waiting(&self, entry: &Entry, now_ms: u64) -> Wait {
        let it = &self.hosts[entry.host];
        let host = it.label.clone();
        if let Permit::Not(until_ms) = it.breaker.permit(now_ms) {
            return Wait::Host { host, until_ms };
        }
        if let Some((datastore, until_ms)) = self.left_alone_of(entry, now_ms) {
            return Wait::Datastore { datastore: self.datastores[datastore].label.clone(), until_ms };
        }
        if let Some((target, until_ms)) = self.target_left_alone_of(entry, now_ms) {
            return self.target_wait(target, until_ms);
        }
        if let Some(share) = self.shares.get(&entry.tenant) {
            let (held, of) = (share.vms_at(entry.host), share.vms_max());
            if held >= of {
                return Wait::OwnVms { host, held, of };
            }
            let needs = entry.disks().min(share.disks_max());
            if share.disks.saturating_add(needs) > share.disks_max() {
                return Wait::OwnDisks { held: share.disks, of: share.disks_max(), needs };
            }
        }
        let vms = self.vms_max(it);
        if it.vms + it.elsewhere >= vms {
            return match it.elsewhere {
                0 => Wait::HostVms { host, held: it.vms, of: vms },
                _ => Wait::Elsewhere { host, of: vms },
            };
        }
        let host_max = self.disks_max(it);
        let narrow = self.narrow(it);
        if it.disks >= narrow {
            return Wait::Longest { host, held: it.disks, of: narrow };
        }
        let needs = entry.disks().min(self.budgets.disks).min(host_max).min(self.tenant_disks(entry.tenant));
        if it.disks.saturating_add(needs) > host_max {
            return Wait::HostDisks { host, held: it.disks, of: host_max, needs };
        }
        let full = entry.spread.iter().find_map(|(datastore, disks)| {
            let it = &self.datastores[*datastore];
            let of = self.datastore_max(it);
            let is_full = it.disks.saturating_add(*disks.min(&of)) > of;
            is_full.then(|| Wait::DatastoreDisks { datastore: it.label.clone(), held: it.disks, of })
        });
        if let Some(full) = full {
            return full;
        }
        if self.disks + needs > self.budgets.disks {
            return Wait::Disks { held: self.disks, of: self.budgets.disks, needs };
        }
        Wait::Turn { host, waiting: waiting(it) }
    }

    /// Checks all sums. Only in tests: it looks at every job.
    ///
    /// # Panics
    /// If a slot or a job is counted twice or not at all.
    pub(super) fn check_invariants(&self) {
        if !cfg!(debug_assertions) || self.jobs.len() > CHECKED_MAX {
            return;
        }
        let (mut slots, mut waiting, mut running, mut left) = (0, 0, 0, 0);
        let mut hosts = vec![(0, 0); self.hosts.len()];
        for entry in self.jobs.values() {
            left += usize::from(!matches!(entry.state, State::Over(_)));
            match &entry.state {
                State::Waiting => waiting += 1,
                State::Running(held) => {
                    running += 1;
                    slots += held.slots;
                    hosts[entry.host].0 += 1;
                    hosts[entry.host].1 += held.at_host;
                }
                State::Aside(_) | State::Parked | State::Over(_) => {}
            }
        }
        assert_eq!((slots, waiting, running, left), (self.disks, self.waiting, self.running, self.left));
        let held: Vec<(u32, u32)> = self.hosts.iter().map(|host| (host.vms, host.disks)).collect();
        assert_eq!(held, hosts, "slots of a host were lost or made up");
        let queued: usize = self.hosts.iter().map(super::tells::waiting).sum();
        assert_eq!(queued, self.waiting, "lanes hold other jobs than those that wait");
    }
}

/// Sums are checked, in builds with debug assertions, up to so many jobs: beyond it they would take all the time.
const CHECKED_MAX: usize = 200;

pub(super) fn waiting(host: &Host) -> usize {
    host.lanes.values().map(|lane| lane.order.len()).sum()
}
