//! A job and its place.

use std::cmp::Reverse;

use super::time_ms;
use crate::budgets::{Order, Rates};
use crate::job::{Job, JobId, Tenant};
use crate::wait::Wait;

/// A job as the scheduler keeps it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) tenant: Tenant,
    pub(super) job: Job,
    pub(super) host: usize,
    /// Of each disk.
    pub(super) datastores: Vec<usize>,
    /// How many disks lie in each datastore, the most first.
    pub(super) spread: Vec<(usize, u32)>,
    /// Places at the target that its disks go to.
    pub(super) targets: Vec<usize>,
    /// How long it would take alone.
    pub(super) own_ms: u64,
    pub(super) state: State,
    /// How often it was admitted.
    pub(super) turns: u64,
    /// The turn with which its work began; absent before, and after a failure that took it back to its beginning.
    pub(super) begun: Option<u64>,
    /// Whether all its disks were copied once; further passes take little.
    pub(super) is_copied: bool,
    /// By when its wave is to be over.
    pub(super) due_ms: Option<u64>,
    /// Waves before its own.
    pub(super) depth: usize,
    /// Whether it goes before all others; also when it has to give its slots back at once, because other processes have them.
    pub(super) first: bool,
    /// It counts as overtaken once so many were admitted.
    pub(super) due: u64,
    /// Where it lies in its lane.
    pub(super) key: Key,
    /// Which disks need no more to be counted as left to do.
    pub(super) counted: Vec<bool>,
    /// Times it was put back after a failure.
    pub(super) retries: u32,
    /// What it failed because of last, as people call it.
    pub(super) failed: String,
    /// It is parked because of its wave alone.
    pub(super) awaits_wave: bool,
    /// What was told of the room that it lacked last.
    pub(super) room: Option<Wait>,
}

/// What a job does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// In its lane.
    Waiting,
    /// Put aside: not to be considered for now.
    Aside(Aside),
    /// Admitted.
    Running(Held),
    /// Between two passes: wants nothing for now.
    Parked,
    /// Over.
    Over(super::Ended),
}

/// Why a job is put aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Aside {
    /// Its window opens then.
    Window(u64),
    /// It is tried again then.
    Retry(u64),
    /// There was no room at its target. It is asked for again then.
    Room(u64),
    /// A datastore of it failed, and is left alone for a while.
    Datastore(usize),
    /// A place at its target failed, and is left alone for a while.
    Target(usize),
    /// A job of the same anti-affinity key runs.
    Affinity,
    /// An earlier stage of its group is left.
    Stage,
    /// A wave before its own is left, or failed. It is looked at again when its own is over for good, at this time.
    Wave(u64),
}

/// Disk slots of a running job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// Among all disks.
    pub(super) slots: u32,
    pub(super) at_host: u32,
    /// Disks that are still to be copied.
    pub(super) left: u32,
    /// The same for each datastore: which, slots, disks.
    pub(super) datastores: Vec<(usize, u32, u32)>,
    pub(super) done: Vec<bool>,
}

/// What orders jobs of a lane; the least goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) is_later: bool,
    pub(super) turns: u64,
    pub(super) priority: Reverse<i32>,
    pub(super) deadline: u64,
    pub(super) depth: usize,
    pub(super) own_ms: Reverse<u64>,
    pub(super) id: u64,
}

impl Key {
    /// None goes before it.
    pub(super) const FIRST: Key = Key {
        is_later: false,
        turns: 0,
        priority: Reverse(i32::MAX),
        deadline: 0,
        depth: 0,
        own_ms: Reverse(u64::MAX),
        id: 0,
    };
}

impl Entry {
    pub(super) fn new(
        tenant: Tenant,
        job: Job,
        host: usize,
        datastores: Vec<usize>,
        due: u64,
        rates: &Rates,
    ) -> Entry {
        let largest = job.disks.iter().map(|disk| disk.bytes).max().unwrap_or(0);
        // A guest that is down goes before all that run.
        let first = job.goes_on || job.goes_first;
        let copy_ms = time_ms(largest, rates.disk).max(time_ms(job.bytes(), rates.host));
        Entry {
            tenant,
            own_ms: copy_ms.saturating_add(job.fixed_ms),
            counted: vec![false; job.disks.len()],
            spread: spread(&datastores),
            targets: Vec::new(),
            job,
            host,
            datastores,
            state: State::Parked,
            turns: 0,
            begun: None,
            is_copied: false,
            due_ms: None,
            depth: 0,
            first,
            due,
            key: Key::default(),
            retries: 0,
            failed: String::new(),
            awaits_wave: false,
            room: None,
        }
    }

    /// The lane that it waits in: that of the datastore with most of its disks.
    pub(super) fn lane(&self) -> usize {
        self.spread.first().map_or(usize::MAX, |(datastore, _)| *datastore)
    }

    pub(super) fn key(&self, id: JobId, order: Order) -> Key {
        let same = Key { is_later: !self.first, turns: self.turns, id: id.0, ..Key::default() };
        match order {
            Order::Arrival => same,
            Order::Critical => Key {
                priority: Reverse(self.job.priority),
                deadline: self.job.deadline_ms.or(self.due_ms).unwrap_or(u64::MAX),
                depth: self.depth,
                own_ms: Reverse(self.own_ms),
                ..same
            },
        }
    }

    /// Whether it goes on whatever its window, wave and group are.
    pub(super) fn goes_on(&self) -> bool {
        self.job.goes_on || self.begun.is_some()
    }

    /// Disks that it wants slots for; one at least.
    pub(super) fn disks(&self) -> u32 {
        u32::try_from(self.job.disks.len()).unwrap_or(u32::MAX).max(1)
    }
}

fn spread(datastores: &[usize]) -> Vec<(usize, u32)> {
    let mut spread: Vec<(usize, u32)> = Vec::new();
    for datastore in datastores {
        match spread.iter_mut().find(|(it, _)| it == datastore) {
            Some((_, disks)) => *disks += 1,
            None => spread.push((*datastore, 1)),
        }
    }
    spread.sort_by_key(|(datastore, disks)| (Reverse(*disks), *datastore));
    spread
}
