//! Jobs that are put aside, because it is not their time.

use std::collections::{BTreeMap, BTreeSet};

use super::entry::{Aside, Entry, State};
use super::{Ended, Scheduler};
use crate::breaker::Permit;
use crate::job::JobId;

/// Jobs that are put aside.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds {
    /// By the time at which they are looked at again.
    at: BTreeSet<(u64, JobId)>,
    /// Jobs that run or whose guests are down, by anti-affinity key, and those that wait for them.
    affinity: BTreeMap<String, (JobId, BTreeSet<JobId>)>,
    /// Jobs that moved over and do so no more: others may wait for them in vain.
    stayed: BTreeSet<JobId>,
    /// Those that wait for a stage of their group.
    stages: BTreeSet<JobId>,
    /// Those that wait for another wave, with the end of their own. They are in `at`, too.
    waves: BTreeSet<(u64, JobId)>,
    /// Those that wait for a datastore that is left alone.
    datastores: BTreeMap<usize, BTreeSet<JobId>>,
    /// The same of places at targets.
    targets: BTreeMap<usize, BTreeSet<JobId>>,
}

/// Why a job may not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// For now.
    For(Aside),
    /// Ever.
    Ever(Ended),
}

impl Holds {
    /// A job moves over no more.
    pub(super) fn look_at(&mut self, id: JobId) {
        self.stayed.insert(id);
    }

    /// A job with this key runs.
    pub(super) fn run(&mut self, key: String, id: JobId) {
        self.affinity.entry(key).or_insert_with(|| (id, BTreeSet::new())).0 = id;
    }

    /// Which job with this key runs, if one does.
    pub(super) fn runs(&self, key: &str) -> Option<JobId> {
        self.affinity.get(key).map(|(id, _)| *id)
    }

    /// Those that wait for another wave.
    pub(super) fn waves(&self) -> Vec<(u64, JobId)> {
        self.waves.iter().copied().collect()
    }

    /// Whether a job waits for another wave, until its own is over at this time.
    pub(super) fn is_at(&self, until: u64, id: JobId) -> bool {
        self.waves.contains(&(until, id))
    }

    /// When something is to be looked at again.
    pub(super) fn next_ms(&self) -> Option<u64> {
        self.at.first().map(|(at, _)| *at).filter(|at| *at < u64::MAX)
    }

    /// Datastores that jobs wait for.
    pub(super) fn datastores(&self) -> impl Iterator<Item = usize> {
        self.datastores.keys().copied()
    }

    /// Places at targets that jobs wait for.
    pub(super) fn targets(&self) -> impl Iterator<Item = usize> {
        self.targets.keys().copied()
    }
}

impl Scheduler {
    /// Why a job may not start now, apart from room.
    pub(super) fn hold(&self, id: JobId, now_ms: u64) -> Option<Hold> {
        let entry = &self.jobs[&id];
        let goes_on = entry.goes_on();
        if self.hosts[entry.host].breaker.permit(now_ms) == Permit::Never {
            return Some(Hold::Ever(Ended::HostFailed));
        }
        if self.datastore_given_up(id).is_some() {
            return Some(Hold::Ever(Ended::DatastoreFailed));
        }
        if self.target_given_up(entry).is_some() {
            return Some(Hold::Ever(Ended::TargetFailed));
        }
        // What has begun goes on, whatever its window.
        if !goes_on && !entry.job.windows.is_empty() && !entry.job.windows.iter().any(|it| it.holds(now_ms)) {
            let opens = entry.job.windows.iter().map(|window| window.from_ms).filter(|from| *from > now_ms);
            return Some(opens.min().map_or(Hold::Ever(Ended::TooLate), |at| Hold::For(Aside::Window(at))));
        }
        let held = || self.waves.hold(entry, now_ms).or_else(|| self.groups.hold(entry));
        if let Some(hold) = (!goes_on).then(held).flatten() {
            return Some(hold);
        }
        let key = entry.job.anti_affinity.as_deref();
        let other = key.and_then(|key| self.holds.runs(key)).filter(|other| *other != id);
        let left_alone =
            || self.left_alone_of(entry, now_ms).map(|(datastore, _)| Aside::Datastore(datastore));
        let no_target = || self.target_left_alone_of(entry, now_ms).map(|(target, _)| Aside::Target(target));
        other.map(|_| Aside::Affinity).or_else(left_alone).or_else(no_target).map(Hold::For)
    }

    /// A datastore of a job that is left alone now, and until when.
    pub(super) fn left_alone_of(&self, entry: &Entry, now_ms: u64) -> Option<(usize, u64)> {
        entry.spread.iter().find_map(|(datastore, _)| {
            match self.datastores[*datastore].breaker.permit(now_ms) {
                Permit::Not(until_ms) => Some((*datastore, until_ms)),
                Permit::Yes | Permit::One | Permit::Never => None,
            }
        })
    }

    /// A datastore of a job that was given up.
    fn datastore_given_up(&self, id: JobId) -> Option<usize> {
        let mut spread = self.jobs.get(&id)?.spread.iter().map(|(datastore, _)| *datastore);
        spread.find(|datastore| self.datastores[*datastore].breaker.is_given_up())
    }

    /// What people call the datastore of a job that was given up, if one was.
    pub fn datastore_failed(&self, id: JobId) -> Option<&str> {
        self.datastore_given_up(id).map(|datastore| self.datastores[datastore].label.as_str())
    }

    /// Puts a job aside that is in no lane.
    pub(super) fn put_aside(&mut self, id: JobId, hold: Hold, now_ms: u64) {
        let aside = match hold {
            Hold::Ever(ended) => return self.give_up(id, ended, now_ms),
            Hold::For(aside) => aside,
        };
        match aside {
            Aside::Window(at) | Aside::Retry(at) | Aside::Room(at) => drop(self.holds.at.insert((at, id))),
            Aside::Stage => drop(self.holds.stages.insert(id)),
            Aside::Datastore(datastore) => {
                self.holds.datastores.entry(datastore).or_default().insert(id);
            }
            Aside::Target(target) => drop(self.holds.targets.entry(target).or_default().insert(id)),
            Aside::Wave(until) => {
                self.holds.at.insert((until, id));
                self.holds.waves.insert((until, id));
            }
            Aside::Affinity => {
                let key = self.jobs[&id].job.anti_affinity.as_deref().unwrap_or_default();
                if let Some((_, waiting)) = self.holds.affinity.get_mut(key) {
                    waiting.insert(id);
                }
            }
        }
        let entry = self.jobs.get_mut(&id).expect("a job that is put aside is known");
        entry.state = State::Aside(aside);
        // The end of all may wait for it, but nothing that runs now is to make way for it.
        self.hosts[entry.host].longest.remove(&(entry.own_ms, id));
    }

    /// Takes a job out of where it was put aside.
    pub(super) fn take_back(&mut self, id: JobId, aside: Aside) {
        match aside {
            Aside::Window(at) | Aside::Retry(at) | Aside::Room(at) => drop(self.holds.at.remove(&(at, id))),
            Aside::Stage => drop(self.holds.stages.remove(&id)),
            Aside::Datastore(datastore) => {
                if let Some(waiting) = self.holds.datastores.get_mut(&datastore) {
                    waiting.remove(&id);
                }
            }
            Aside::Target(target) => {
                if let Some(waiting) = self.holds.targets.get_mut(&target) {
                    waiting.remove(&id);
                }
            }
            Aside::Wave(until) => {
                self.holds.at.remove(&(until, id));
                self.holds.waves.remove(&(until, id));
            }
            Aside::Affinity => {
                let waiting = self.holds.affinity.values_mut();
                waiting.for_each(|(_, waiting)| _ = waiting.remove(&id));
            }
        }
    }

    /// Looks again at those whose time has come.
    pub(super) fn release_due(&mut self, now_ms: u64) {
        for id in std::mem::take(&mut self.holds.stayed) {
            let is_parked = self.jobs.get(&id).is_some_and(|entry| entry.state == State::Parked);
            if is_parked && !self.is_down(id) {
                self.release_affinity(id, now_ms);
            }
        }
        while let Some((at, id)) = self.holds.at.first().copied().filter(|(at, _)| *at <= now_ms) {
            self.holds.at.remove(&(at, id));
            self.holds.waves.remove(&(at, id));
            self.wait_again(id, now_ms);
        }
        self.release_datastores(now_ms);
        self.release_targets(now_ms);
    }

    /// Datastores that are to be read again: the first of their jobs shows whether they can be.
    fn release_datastores(&mut self, now_ms: u64) {
        let permit = |datastore: &usize| self.datastores[*datastore].breaker.permit(now_ms);
        let is_free = |datastore: &usize| !matches!(permit(datastore), Permit::Not(_));
        let free: Vec<usize> = self.holds.datastores().filter(is_free).collect();
        for datastore in free {
            let waiting = self.holds.datastores.remove(&datastore).unwrap_or_default();
            waiting.into_iter().for_each(|id| self.wait_again(id, now_ms));
        }
    }

    /// The same of places at targets.
    fn release_targets(&mut self, now_ms: u64) {
        let permit = |target: &usize| self.targets[*target].breaker.permit(now_ms);
        let is_free = |target: &usize| !matches!(permit(target), Permit::Not(_));
        let free: Vec<usize> = self.holds.targets().filter(is_free).collect();
        for target in free {
            let waiting = self.holds.targets.remove(&target).unwrap_or_default();
            waiting.into_iter().for_each(|id| self.wait_again(id, now_ms));
        }
    }

    /// A job with this key runs no more.
    pub(super) fn release_affinity(&mut self, id: JobId, now_ms: u64) {
        let Some(key) = self.jobs[&id].job.anti_affinity.clone() else { return };
        if self.holds.runs(&key) != Some(id) {
            return;
        }
        let waiting = self.holds.affinity.remove(&key).map(|(_, waiting)| waiting).unwrap_or_default();
        waiting.into_iter().for_each(|id| self.wait_again(id, now_ms));
    }

    /// A stage of a group may have come.
    pub(super) fn release_stages(&mut self, now_ms: u64) {
        let free = |id: &JobId| !matches!(self.groups.hold(&self.jobs[id]), Some(Hold::For(Aside::Stage)));
        let free: Vec<JobId> = self.holds.stages.iter().copied().filter(free).collect();
        for id in free {
            // One that is given up here gives up others of the list.
            if self.holds.stages.remove(&id) {
                self.wait_again(id, now_ms);
            }
        }
    }
}
