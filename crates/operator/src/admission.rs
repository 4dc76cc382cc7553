//! Which of the Migrations that wait may go: the one scheduler, with names for its jobs.

use std::collections::BTreeMap;

use drover_schedule::{Budgets, Disk, Ended, Job, JobId, Scheduler, Tenant};

use crate::model::{MigrationSpec, Size, Work};

/// All share one order; nothing is limited by plan.
const ALL: Tenant = Tenant(0);

/// The schedulers of all Migrations.
#[derive(Clone, Debug)]
pub struct Admissions {
    /// Of those that are copied.
    moves: Pool,
    /// Of what copies nothing: a guest that is down waits neither for copies of others nor for a host that is left alone.
    others: Pool,
    jobs: BTreeMap<String, Slot>,
}

/// A scheduler, with names for its jobs.
#[derive(Clone, Debug)]
struct Pool {
    scheduler: Scheduler,
    names: BTreeMap<JobId, String>,
}

/// What a Migration has of a scheduler.
#[derive(Clone, Debug)]
struct Slot {
    id: JobId,
    moves: bool,
    is_admitted: bool,
    /// What its end tells of its host.
    ended: Ended,
}

/// What the end of a worker tells of the host that serves the VM's disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostTold {
    /// It served them.
    Served,
    /// The VM failed because of it.
    Failed,
}

impl Admissions {
    /// With nothing in it. No host is given up for good: there is no next run that would try it again.
    pub fn new(budgets: Budgets) -> Admissions {
        let scheduler = Scheduler::new(Budgets { host_tries: u32::MAX, ..budgets });
        let pool = Pool { scheduler, names: BTreeMap::new() };
        Admissions { moves: pool.clone(), others: pool, jobs: BTreeMap::new() }
    }

    /// Whether it may go.
    pub fn has(&self, name: &str) -> bool {
        self.jobs.get(name).is_some_and(|slot| slot.is_admitted)
    }

    /// It wants to go. One that was begun goes before others.
    pub fn want(&mut self, name: &str, spec: &MigrationSpec, work: Work, goes_on: bool, now_ms: u64) {
        let moves = work == Work::Move;
        if self.jobs.get(name).is_some_and(|slot| slot.is_admitted || slot.moves == moves) {
            return;
        }
        self.leave(name, now_ms);
        let job = job_of(name, &spec.source.instance_uuid, &spec.size, moves, goes_on);
        let pool = self.pool(moves);
        if let Some(id) = pool.scheduler.add(ALL, vec![job], now_ms).first().copied() {
            pool.names.insert(id, name.to_string());
            let slot = Slot { id, moves, is_admitted: false, ended: Ended::Failed };
            self.jobs.insert(name.to_string(), slot);
        }
    }

    fn pool(&mut self, moves: bool) -> &mut Pool {
        if moves { &mut self.moves } else { &mut self.others }
    }

    /// Its worker ended, and this is what that tells of its host.
    pub fn tell(&mut self, name: &str, told: HostTold, now_ms: u64) {
        let Some(slot) = self.jobs.get_mut(name).filter(|slot| slot.is_admitted && slot.moves) else {
            return;
        };
        match told {
            HostTold::Served => slot.ended = Ended::Arrived,
            // Whether it is tried again is not the scheduler's to say here.
            HostTold::Failed => _ = self.moves.scheduler.host_failed(slot.id, None, now_ms),
        }
    }

    /// It wants nothing any more.
    pub fn leave(&mut self, name: &str, now_ms: u64) {
        let Some(Slot { id, moves, is_admitted, ended }) = self.jobs.remove(name) else { return };
        let pool = self.pool(moves);
        pool.names.remove(&id);
        let ended = if is_admitted { ended } else { Ended::LeftOut };
        pool.scheduler.finished(id, ended, now_ms);
        pool.scheduler.forget_job(id);
    }

    /// Those that may go from now on.
    pub fn admit(&mut self, now_ms: u64) -> Vec<String> {
        let mut fresh = Vec::new();
        // Jobs of plain Migrations have no windows, waves or groups, and nothing gives them up.
        for pool in [&mut self.others, &mut self.moves] {
            while let Some(admission) = pool.scheduler.next(now_ms) {
                let Some(name) = pool.names.get(&admission.job) else { continue };
                if let Some(slot) = self.jobs.get_mut(name) {
                    slot.is_admitted = true;
                }
                fresh.push(name.clone());
            }
        }
        fresh
    }

    /// Those that wait, and those that may go.
    pub fn counts(&self) -> (usize, usize) {
        let admitted = self.jobs.values().filter(|slot| slot.is_admitted).count();
        (self.jobs.len() - admitted, admitted)
    }

    /// Hosts that failed and are left alone, or are being tried, each with its vCenter before it.
    pub fn left_alone(&self) -> impl Iterator<Item = &str> {
        self.moves.scheduler.left_alone()
    }
}

/// Ids of hosts and datastores are a vCenter's own, so they are told apart by it.
fn job_of(name: &str, source: &str, size: &Size, moves: bool, goes_on: bool) -> Job {
    let disks = size.disks.iter().filter(|_| moves).map(|disk| Disk {
        bytes: disk.bytes,
        datastore: format!("{source}/{}", disk.datastore),
        pool: None,
    });
    Job {
        name: name.to_string(),
        host: format!("{source}/{}", size.host),
        disks: disks.collect(),
        goes_on,
        ..Job::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DiskSize, SourceId};

    fn spec(source: &str, host: &str) -> MigrationSpec {
        MigrationSpec {
            source: SourceId { instance_uuid: source.into() },
            size: Size {
                host: host.into(),
                disks: vec![DiskSize { bytes: 1 << 30, datastore: "ds".into() }],
            },
            ..MigrationSpec::default()
        }
    }

    #[test]
    fn hosts_are_never_overbooked_and_slots_come_back() {
        let mut all = Admissions::new(Budgets { vms_per_host: 2, ..Budgets::default() });
        for name in ["a", "b", "c"] {
            all.want(name, &spec("vc", "host-1"), Work::Move, false, 0);
            all.want(name, &spec("vc", "host-1"), Work::Move, false, 0);
        }
        all.want("other", &spec("vc2", "host-1"), Work::Move, false, 0);
        let mut first = all.admit(0);
        first.sort();
        assert_eq!(first, ["a", "b", "other"], "another vCenter's host-1 is another");
        assert!(all.admit(1).is_empty() && !all.has("c") && all.has("a"));
        all.leave("a", 2);
        assert_eq!(all.admit(2), ["c"]);
        for name in ["a", "b", "c", "other", "nobody"] {
            all.leave(name, 3);
        }
        all.want("a", &spec("vc", "host-1"), Work::Move, true, 4);
        assert_eq!(all.admit(4), ["a"]);
    }

    /// Has one after the other wait and fails those that are admitted because of their host, until none is; gives how many failed.
    fn failures(all: &mut Admissions, names: &[String], now_ms: u64) -> usize {
        let mut failed = 0;
        for name in names {
            all.want(name, &spec("vc", "host-1"), Work::Move, false, now_ms);
            let fresh = all.admit(now_ms);
            if fresh.is_empty() {
                break;
            }
            for name in fresh {
                all.tell(&name, HostTold::Failed, now_ms);
                all.leave(&name, now_ms);
                failed += 1;
            }
        }
        failed
    }

    #[test]
    fn a_host_that_fails_vm_after_vm_is_left_alone_and_tried_by_one_now_and_then() {
        let names: Vec<String> = (0..100).map(|number| format!("vm{number}")).collect();
        let mut all = Admissions::new(Budgets::default());
        assert_eq!(failures(&mut all, &names, 0), 3);
        assert_eq!(all.left_alone().collect::<Vec<_>>(), ["vc/host-1"]);
        assert_eq!(all.counts(), (1, 0));
        // Others of it wait, those of other hosts do not, and neither does what undoes.
        let waiting = all.clone();
        all.want("undo", &spec("vc", "host-1"), Work::Undo, true, 1);
        all.want("guest", &spec("vc", "host-1"), Work::SwitchOn, true, 1);
        all.want("other", &spec("vc", "host-2"), Work::Move, false, 1);
        let mut fresh = all.admit(1);
        fresh.sort();
        assert_eq!(fresh, ["guest", "other", "undo"]);
        // After the longest first wait one is tried, and after its failure nobody for twice as long.
        let mut all = waiting;
        assert_eq!(failures(&mut all, &names, 30_000), 1);
        // It is never given up: in a week it is tried each time that somebody looks, by one.
        for hour in 1..=7 * 24 {
            assert_eq!(failures(&mut all, &names, hour * 3_600_000), 1);
        }
        // One that works opens it again for all.
        let now_ms = 8 * 24 * 3_600_000;
        names.iter().for_each(|name| all.leave(name, now_ms));
        all.want("a", &spec("vc", "host-1"), Work::Move, false, now_ms);
        assert_eq!(all.admit(now_ms), ["a"]);
        all.tell("a", HostTold::Served, now_ms);
        all.leave("a", now_ms);
        for name in &names[..5] {
            all.want(name, &spec("vc", "host-1"), Work::Move, false, now_ms);
        }
        assert_eq!((all.admit(now_ms).len(), all.counts()), (5, (0, 5)));
        assert_eq!(all.left_alone().count(), 0);
    }

    #[test]
    fn an_end_that_tells_nothing_of_the_host_neither_opens_nor_closes_it() {
        let names: Vec<String> = (0..3).map(|number| format!("vm{number}")).collect();
        let mut all = Admissions::new(Budgets::default());
        assert_eq!(failures(&mut all, &names[..2], 0), 2);
        for _ in 0..9 {
            all.want("evicted", &spec("vc", "host-1"), Work::Move, false, 1);
            assert_eq!(all.admit(1), ["evicted"]);
            all.leave("evicted", 1);
        }
        assert_eq!(failures(&mut all, &names[2..], 2), 1);
        all.want("next", &spec("vc", "host-1"), Work::Move, false, 3);
        assert!(all.admit(3).is_empty(), "three in a row, with nothing between them that the host did");
    }

    #[test]
    fn one_that_is_given_up_while_it_waits_for_its_copy_waits_to_be_undone() {
        let mut all = Admissions::new(Budgets { vms_per_host: 1, ..Budgets::default() });
        all.want("a", &spec("vc", "host-1"), Work::Move, false, 0);
        all.want("b", &spec("vc", "host-1"), Work::Move, false, 0);
        assert_eq!(all.admit(0).len(), 1);
        let waits = if all.has("a") { "b" } else { "a" };
        all.want(waits, &spec("vc", "host-1"), Work::Undo, true, 1);
        assert_eq!(all.admit(1), [waits]);
        ["a", "b"].iter().for_each(|name| all.leave(name, 2));
        let is_empty = |pool: &Pool| pool.names.is_empty() && pool.scheduler.is_done();
        assert!(all.jobs.is_empty() && is_empty(&all.moves) && is_empty(&all.others));
    }

    #[test]
    fn a_guest_that_is_down_waits_for_no_copy_of_others() {
        let mut all = Admissions::new(Budgets { disks: 1, ..Budgets::default() });
        all.want("copied", &spec("vc", "host-1"), Work::Move, false, 0);
        all.want("waits", &spec("vc", "host-2"), Work::Move, true, 0);
        assert_eq!(all.admit(0), ["waits"], "one that was begun goes first");
        all.want("off", &spec("vc", "host-2"), Work::SwitchOn, true, 1);
        assert_eq!(all.admit(1), ["off"]);
        assert_eq!(all.counts(), (1, 2));
    }
}
