//! Slots that are given back.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use drover_types::count;

use super::entry::{Aside, State};
use super::hold::Hold;
use super::{Datastore, Host, Scheduler, Target, entry::Held};
use crate::breaker::{Breaker, backoff_ms};
use crate::job::{JobId, Tenant};
use crate::random::Random;
use crate::wait::{Resource, Wait};

/// A job is tried again at most so often after failures of its host.
pub const RETRIES_MAX: u32 = 3;

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It has arrived, or needs the source no more.
    Arrived,
    /// It failed, or was stopped.
    Failed,
    /// A hook left it out: for its wave and its group it is as if it had never been there.
    LeftOut,
    /// The last of its windows closed before its turn came.
    TooLate,
    /// A VM of an earlier stage of its group failed.
    GroupFailed,
    /// A VM of a wave before its own failed, after which none goes on.
    WaveFailed,
    /// What is called before its wave failed.
    WaveShut,
    /// Its host failed so often that it was given up.
    HostFailed,
    /// A datastore of it failed so often that it was given up.
    DatastoreFailed,
    /// A place that it goes to failed, or was full, so often that it was given up.
    TargetFailed,
}

/// A host, a datastore or a place at the target that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quarantined {
    /// Which one, by what people call it.
    #[serde(flatten)]
    pub what: Resource,
    /// VMs that failed because of it, those that were tried again counted each time.
    pub failures: u32,
    /// Whether it is left alone still.
    pub is_open: bool,
    /// Of a host, the datastores from which its VMs could not be read, and none was since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datastores: Vec<String>,
}

impl fmt::Display for Quarantined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let now = if self.is_open { ", and it was left alone" } else { "" };
        let times = count(self.failures as usize, "time");
        match &self.what {
            // Its name says what it is.
            Resource::Pool(name) => write!(f, "target {name}: VMs failed {times} because of it{now}")?,
            what => write!(f, "{what}: VMs failed {times} because of it{now}")?,
        }
        match self.datastores.as_slice() {
            [] => Ok(()),
            names => write!(f, "; not read: {}", names.join(", ")),
        }
    }
}

impl Scheduler {
    /// One disk of a running job, by its place among the job's disks, is copied: its slot goes to the job's next disk, or else
    /// to others. A disk that is told twice is harmless.
    pub fn disk_finished(&mut self, id: JobId, disk: usize) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        let State::Running(held) = &mut entry.state else { return };
        if held.done.get(disk).is_none_or(|done| *done) {
            return;
        }
        held.done[disk] = true;
        held.left -= 1;
        let freed = held.at_host.saturating_sub(held.left);
        held.at_host -= freed;
        self.hosts[entry.host].disks -= freed;
        if !entry.job.reads_back {
            held.slots -= freed;
            self.disks -= freed;
            if let Some(share) = self.shares.get_mut(&entry.tenant) {
                share.disks -= freed;
            }
        }
        let datastore = entry.datastores[disk];
        if let Some((_, slots, left)) = held.datastores.iter_mut().find(|(it, _, _)| *it == datastore) {
            *left -= 1;
            let freed = slots.saturating_sub(*left);
            *slots -= freed;
            self.datastores[datastore].disks -= freed;
        }
        self.count_as_done(id, disk);
        self.check_invariants();
    }

    /// Takes a disk out of what its host and datastore have left to do.
    fn count_as_done(&mut self, id: JobId, disk: usize) {
        let entry = self.jobs.get_mut(&id).expect("a job with disks is known");
        if std::mem::replace(&mut entry.counted[disk], true) {
            return;
        }
        let bytes = entry.job.disks[disk].bytes;
        let (host, datastore) = (&mut self.hosts[entry.host], &mut self.datastores[entry.datastores[disk]]);
        host.left_bytes = host.left_bytes.saturating_sub(bytes);
        datastore.left_bytes = datastore.left_bytes.saturating_sub(bytes);
    }

    /// A job is over, or needs the source no more. One that waits or is parked may end, too; one that has ended stays so.
    pub fn finished(&mut self, id: JobId, ended: Ended, now_ms: u64) {
        if matches!(self.jobs[&id].state, State::Over(_)) {
            return;
        }
        // One that is parked had its host's part behind it.
        if ended == Ended::Arrived && self.is_running(id) {
            self.served(id);
        }
        self.leave(id, now_ms);
        self.end(id, ended, now_ms);
        self.check_invariants();
    }

    /// Marks it as over. Call when it holds nothing and waits nowhere.
    fn end(&mut self, id: JobId, ended: Ended, now_ms: u64) {
        self.release_affinity(id, now_ms);
        (0..self.jobs[&id].job.disks.len()).for_each(|disk| self.count_as_done(id, disk));
        let entry = self.jobs.get_mut(&id).expect("a job that ends is known");
        entry.state = State::Over(ended);
        let host = &mut self.hosts[entry.host];
        host.left_ms = host.left_ms.saturating_sub(entry.own_ms);
        host.longest.remove(&(entry.own_ms, id));
        self.left -= 1;
        let entry = &self.jobs[&id];
        self.groups.end(id, entry, matches!(ended, Ended::Arrived | Ended::LeftOut));
        let is_wave_over = self.waves.end(entry, ended);
        self.release_stages(now_ms);
        if is_wave_over {
            self.release_waves(now_ms);
        }
    }

    /// It never starts; [`Scheduler::take_given_up`] tells.
    pub(super) fn give_up(&mut self, id: JobId, ended: Ended, now_ms: u64) {
        self.given_up.push((id, ended));
        self.end(id, ended, now_ms);
    }

    /// Takes a job out of wherever it is, with all that it holds.
    fn leave(&mut self, id: JobId, now_ms: u64) {
        let entry = self.jobs.get_mut(&id).expect("a job that leaves is known");
        match std::mem::replace(&mut entry.state, State::Parked) {
            State::Waiting => self.dequeue(id),
            State::Aside(aside) => self.take_back(id, aside),
            State::Running(held) => self.release(id, &held, now_ms),
            State::Parked | State::Over(_) => {}
        }
    }

    fn release(&mut self, id: JobId, held: &Held, now_ms: u64) {
        self.running -= 1;
        self.disks -= held.slots;
        held.datastores.iter().for_each(|(datastore, slots, _)| self.datastores[*datastore].disks -= slots);
        let entry = &self.jobs[&id];
        if let Some(share) = self.shares.get_mut(&entry.tenant) {
            share.disks -= held.slots;
            share.vms.entry(entry.host).and_modify(|vms| *vms -= 1);
        }
        let host = &mut self.hosts[entry.host];
        host.vms -= 1;
        host.disks -= held.at_host;
        host.breaker.told_nothing(id, now_ms);
        for (datastore, _) in &entry.spread {
            self.datastores[*datastore].breaker.told_nothing(id, now_ms);
        }
        for target in &entry.targets {
            self.targets[*target].breaker.told_nothing(id, now_ms);
        }
    }

    /// Its host, its datastores and the places at its target served a running job well.
    fn served(&mut self, id: JobId) {
        let entry = &self.jobs[&id];
        let host = &mut self.hosts[entry.host];
        host.breaker.succeeded(id);
        host.serves = true;
        for (datastore, _) in &entry.spread {
            host.failing.remove(datastore);
            self.datastores[*datastore].failed_by.clear();
            self.datastores[*datastore].breaker.succeeded(id);
        }
        for target in &entry.targets {
            self.targets[*target].breaker.succeeded(id);
        }
    }

    /// A running job was copied once, and goes on: what of its host, its datastores and the places at its target is being tried with it
    /// works again. Of the rest its end tells.
    pub fn try_went_well(&mut self, id: JobId) {
        if !self.is_running(id) {
            return;
        }
        let entry = &self.jobs[&id];
        let succeed = |breaker: &mut Breaker| {
            if breaker.is_tried_by(id) {
                breaker.succeeded(id);
            }
        };
        succeed(&mut self.hosts[entry.host].breaker);
        entry.spread.iter().for_each(|(it, _)| succeed(&mut self.datastores[*it].breaker));
        entry.targets.iter().for_each(|it| succeed(&mut self.targets[*it].breaker));
    }

    /// Whether its host, a datastore of it or a place at its target is being tried with a job.
    pub fn is_tried(&self, id: JobId) -> bool {
        let Some(entry) = self.jobs.get(&id) else { return false };
        self.hosts[entry.host].breaker.is_tried_by(id)
            || entry.spread.iter().any(|(it, _)| self.datastores[*it].breaker.is_tried_by(id))
            || entry.targets.iter().any(|it| self.targets[*it].breaker.is_tried_by(id))
    }

    /// A running job goes back to its old place, as if it had not been admitted.
    ///
    /// # Panics
    /// If it does not run.
    pub fn requeue(&mut self, id: JobId, now_ms: u64) {
        self.take_admission_back(id, now_ms);
        self.wait_again(id, now_ms);
        self.check_invariants();
    }

    /// A job was admitted and has no room at its target, or lacks it still: it is put aside until then, and waits at its old place
    /// afterwards. `wait` is what is told of it meanwhile.
    ///
    /// # Panics
    /// If it neither runs nor lacks room.
    pub fn lacks_room(&mut self, id: JobId, wait: Wait, until_ms: u64, now_ms: u64) {
        match self.jobs[&id].state {
            State::Aside(aside @ Aside::Room(_)) => self.take_back(id, aside),
            _ => self.take_admission_back(id, now_ms),
        }
        self.jobs.get_mut(&id).expect("a job that lacks room is known").room = Some(wait);
        self.put_aside(id, Hold::For(Aside::Room(until_ms)), now_ms);
        self.check_invariants();
    }

    /// There is room at the target of a job that lacked it: it waits at its old place again. Nothing if it lacks none.
    pub fn finds_room(&mut self, id: JobId, now_ms: u64) {
        if let Some(State::Aside(aside @ Aside::Room(_))) =
            self.jobs.get(&id).map(|entry| entry.state.clone())
        {
            self.take_back(id, aside);
            self.wait_again(id, now_ms);
            self.check_invariants();
        }
    }

    fn take_admission_back(&mut self, id: JobId, now_ms: u64) {
        self.give_back(id, "given back", now_ms);
        // It has overtaken nobody.
        self.admissions -= 1;
        let entry = self.jobs.get_mut(&id).expect("a job that is given back is known");
        if entry.begun == Some(entry.turns) {
            entry.begun = None;
            self.waves.give_back(entry);
        }
        entry.turns -= 1;
    }

    /// A running job begins anew: its guest runs at the source as if it had never been moved, so it waits for its window, its
    /// wave and its group like those that did not begin.
    ///
    /// # Panics
    /// If it does not run.
    pub fn begin_anew(&mut self, id: JobId, now_ms: u64) {
        self.give_back(id, "begun anew", now_ms);
        self.takes_back(id);
        self.jobs.get_mut(&id).expect("a job that begins anew is known").turns -= 1;
        self.wait_again(id, now_ms);
        self.check_invariants();
    }

    /// The guest of a job runs at the source: nothing is gone on with.
    pub fn takes_back(&mut self, id: JobId) {
        self.cutover_over(id);
        let entry = self.jobs.get_mut(&id).expect("a job that is taken back is known");
        (entry.job.goes_on, entry.first) = (false, false);
        // A warm one keeps what was copied, and its wave counts only when it moves over.
        if !entry.job.is_warm && entry.begun.take().is_some() {
            self.waves.give_back(entry);
        }
    }

    /// A running job failed because of its host, or because a disk of it in this datastore could not be read. Gives whether it is
    /// tried again; it is over if what failed has not failed others in a row, so it may be the VM, or the job was tried often
    /// enough, or what failed is given up. It keeps what it holds until all is undone: then comes [`Scheduler::retry`], or its end.
    ///
    /// # Panics
    /// If it does not run.
    pub fn host_failed(&mut self, id: JobId, datastore: Option<&str>, now_ms: u64) -> bool {
        assert!(self.is_running(id), "job {} failed because of its host but does not run", id.0);
        let datastore = datastore.and_then(|name| self.datastore_of.get(name).copied());
        if let Some(datastore) = datastore {
            self.datastores[datastore].failed_by.insert(self.jobs[&id].host);
        }
        let own = datastore.filter(|datastore| self.is_its_own_failure(id, *datastore));
        let entry = self.jobs.get_mut(&id).expect("a job that failed is known");
        let (host, retries) = (entry.host, entry.retries);
        if let Some(datastore) = datastore
            && self.hosts[host].failing.insert(datastore)
        {
            self.hosts[host].serves = false;
        }
        self.jobs.get_mut(&id).expect("a job that failed is known").failed = match own {
            Some(datastore) => format!("datastore {}", self.datastores[datastore].label),
            None => self.hosts[host].label.clone(),
        };
        let breaker = match own {
            Some(datastore) => &mut self.datastores[datastore].breaker,
            None => &mut self.hosts[host].breaker,
        };
        breaker.failed(id, now_ms);
        let (is_given_up, is_open) = (breaker.is_given_up(), breaker.is_open());
        match own {
            Some(datastore) if is_given_up => self
                .give_up_all(Ended::DatastoreFailed, now_ms, |entry| entry.datastores.contains(&datastore)),
            None if is_given_up => self.give_up_all(Ended::HostFailed, now_ms, |entry| entry.host == host),
            Some(_) | None => {}
        }
        self.check_invariants();
        retries < RETRIES_MAX && is_open && !is_given_up
    }

    /// Whether it is of a datastore, and not of a host, that a job of that host could not be read: VMs of the host that have nothing
    /// there were read, are being read, or are still to be, and no other of its datastores fails since the last one was. Where several
    /// hosts read it, two have to fail: one alone may have lost its way to it.
    fn is_its_own_failure(&self, id: JobId, datastore: usize) -> bool {
        let number = self.jobs[&id].host;
        let host = &self.hosts[number];
        let is_elsewhere = |entry: &super::Entry| {
            let is_lost = matches!(entry.state, State::Over(ended) if ended != Ended::Arrived);
            entry.host == number
                && !is_lost
                && !entry.datastores.is_empty()
                && !entry.datastores.contains(&datastore)
        };
        let others_fail = host.failing.iter().any(|it| *it != datastore);
        let has_others =
            || self.jobs.values().any(|it| it.host != number && it.datastores.contains(&datastore));
        let is_of_all = self.datastores[datastore].failed_by.len() > 1 || !has_others();
        is_of_all && (host.serves || !others_fail) && self.jobs.values().any(is_elsewhere)
    }

    /// A running job that failed because of its host gives back what it holds. Gives when it is tried again, in milliseconds.
    ///
    /// # Panics
    /// If it does not run.
    pub fn retry(&mut self, id: JobId, now_ms: u64) -> u64 {
        self.give_back(id, "tried again", now_ms);
        self.takes_back(id);
        let entry = self.jobs.get_mut(&id).expect("a job that is tried again is known");
        let number = entry.retries;
        entry.retries += 1;
        let mut random = Random::of(self.budgets.seed ^ id.0, &self.hosts[entry.host].name);
        let at_ms = now_ms.saturating_add(backoff_ms(number, &mut random));
        self.put_aside(id, Hold::For(Aside::Retry(at_ms)), now_ms);
        self.check_invariants();
        at_ms
    }

    /// Gives up all jobs of a host, of a datastore or of a place that wait.
    pub(super) fn give_up_all(
        &mut self,
        ended: Ended,
        now_ms: u64,
        is_of_it: impl Fn(&super::Entry) -> bool,
    ) {
        let waits = |entry: &super::Entry| matches!(entry.state, State::Waiting | State::Aside(_));
        let of = self.jobs.iter().filter(|(_, entry)| waits(entry) && is_of_it(entry));
        let ids: Vec<JobId> = of.map(|(id, _)| *id).collect();
        for id in ids {
            // One that is given up may give up others of its group.
            if !self.is_over(id) {
                self.leave(id, now_ms);
                self.give_up(id, ended, now_ms);
            }
        }
    }

    /// A running job wants nothing of the source until [`Scheduler::wake`]; others get its slots. While its guest is down, those
    /// that it never runs beside wait on: until it has ended, or moves over no more.
    ///
    /// # Panics
    /// If it does not run.
    pub fn park(&mut self, id: JobId, now_ms: u64) {
        assert!(self.is_running(id), "job {} is parked but does not run", id.0);
        self.served(id);
        self.park_untold(id, now_ms);
    }

    /// The same where that tells nothing of its host, its datastores and the places at its target: its pass failed, or it made none.
    ///
    /// # Panics
    /// If it does not run.
    pub fn park_untold(&mut self, id: JobId, now_ms: u64) {
        assert!(self.is_running(id), "job {} is parked but does not run", id.0);
        let host = self.jobs[&id].host;
        self.leave(id, now_ms);
        if !self.is_down(id) {
            self.release_affinity(id, now_ms);
        }
        let entry = self.jobs.get_mut(&id).expect("a job that is parked is known");
        entry.is_copied = true;
        self.hosts[host].longest.remove(&(entry.own_ms, id));
        self.check_invariants();
    }

    fn give_back(&mut self, id: JobId, what: &str, now_ms: u64) {
        let is_running = matches!(self.jobs[&id].state, State::Running(_));
        assert!(is_running, "job {} is {what} but does not run", id.0);
        self.leave(id, now_ms);
        self.release_affinity(id, now_ms);
    }

    /// A parked job waits for its slots again: behind those that had fewer turns and among its like at its old place, so that
    /// each comes to its passes however many there are; or before all others if its guest is about to be shut down for it.
    ///
    /// # Panics
    /// If it is not parked.
    pub fn wake(&mut self, id: JobId, first: bool, now_ms: u64) {
        let due = self.admissions + super::OVERTAKEN_MAX + 8 * self.waiting as u64;
        let entry = self.jobs.get_mut(&id).expect("a job that is woken is known");
        assert!(entry.state == State::Parked, "job {} is woken but is not parked", id.0);
        (entry.first, entry.due) = (first, due);
        self.wait_again(id, now_ms);
        self.check_invariants();
    }

    /// A job that was woken to move over may not any more: it gives back what it got, and wants nothing until it is woken again.
    pub fn stand_back(&mut self, id: JobId, now_ms: u64) {
        let was_admitted = self.is_running(id);
        self.leave(id, now_ms);
        self.release_affinity(id, now_ms);
        let entry = self.jobs.get_mut(&id).expect("a job that stands back is known");
        entry.turns -= u64::from(was_admitted);
        entry.first = false;
        self.check_invariants();
    }

    /// Jobs that ended without having been admitted since this was called last.
    pub fn take_given_up(&mut self) -> Vec<(JobId, Ended)> {
        std::mem::take(&mut self.given_up)
    }

    /// Ends all jobs of a tenant that hold nothing, as when it is cancelled; those that run end by themselves.
    pub fn withdraw(&mut self, tenant: Tenant, now_ms: u64) {
        let idle = |entry: &super::Entry| !matches!(entry.state, State::Running(_) | State::Over(_));
        let of = self.jobs.iter().filter(|(_, entry)| entry.tenant == tenant && idle(entry));
        let ids: Vec<JobId> = of.map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.finished(id, Ended::Failed, now_ms));
    }

    /// Forgets a job that has ended, of a tenant that goes on. Its id means nothing from then on.
    ///
    /// # Panics
    /// If it has not ended.
    pub fn forget_job(&mut self, id: JobId) {
        let is_over = matches!(self.jobs[&id].state, State::Over(_));
        assert!(is_over, "job {} is forgotten and has not ended", id.0);
        self.jobs.remove(&id);
        self.given_up.retain(|(it, _)| *it != id);
    }

    /// Forgets a tenant, all of whose jobs have ended. Their ids mean nothing from then on.
    ///
    /// # Panics
    /// If one of them has not.
    pub fn forget(&mut self, tenant: Tenant) {
        let is_over = |entry: &super::Entry| matches!(entry.state, State::Over(_));
        let of = |entry: &super::Entry| entry.tenant == tenant;
        assert!(self.jobs.values().all(|it| !of(it) || is_over(it)), "tenant {} has jobs left", tenant.0);
        self.jobs.retain(|_, entry| !of(entry));
        self.given_up.retain(|(id, _)| self.jobs.contains_key(id));
        self.groups.forget(tenant);
        self.waves.forget(tenant);
        self.shares.remove(&tenant);
    }

    /// Those of these hosts, datastores and places at targets because of which VMs failed, by what people call them.
    pub fn quarantine(&self, of: &BTreeSet<Resource>) -> Vec<Quarantined> {
        let told = |what: Resource, breaker: &Breaker, failing: &BTreeSet<usize>| Quarantined {
            what,
            failures: breaker.failures(),
            is_open: breaker.is_open(),
            datastores: failing.iter().map(|datastore| self.datastores[*datastore].label.clone()).collect(),
        };
        let none = BTreeSet::new();
        let mut all = Vec::new();
        for resource in of {
            match resource {
                Resource::Host(name) => {
                    let host = self.host_of.get(name).map(|host| &self.hosts[*host]);
                    let what = |it: &Host| Resource::Host(it.label.clone());
                    all.extend(host.map(|it| told(what(it), &it.breaker, &it.failing)));
                }
                Resource::Datastore(name) => {
                    let datastore = self.datastore_of.get(name).map(|it| &self.datastores[*it]);
                    let what = |it: &Datastore| Resource::Datastore(it.label.clone());
                    all.extend(datastore.map(|it| told(what(it), &it.breaker, &none)));
                }
                Resource::Pool(name) => {
                    let target = self.target_of.get(name).map(|it| &self.targets[*it]);
                    let what = |it: &Target| Resource::Pool(it.label.clone());
                    all.extend(target.map(|it| told(what(it), &it.breaker, &none)));
                }
                Resource::Stream | Resource::Link | Resource::Line(_) | Resource::Cpu => {}
            }
        }
        all.retain(|it| it.failures > 0);
        all.sort_by(|a, b| a.what.cmp(&b.what));
        all
    }
}
