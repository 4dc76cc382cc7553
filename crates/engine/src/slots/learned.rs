//! What reading from hosts and datastores showed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use drover_mover::Progress;
use drover_schedule::{Learner, Look, Resource, Scheduler};

/// They are judged this often, in milliseconds.
const SAMPLE_MS: u64 = 2000;

/// Disks at once that are worth it, of each host and each datastore.
#[derive(Default)]
pub(super) struct Learned {
    learner: Learner,
    read: BTreeMap<Resource, Read>,
    looked_ms: u64,
}

/// What is read from one.
#[derive(Default)]
struct Read {
    reading: Vec<Arc<Progress>>,
    /// Bytes of disks that are done.
    done: u64,
}

impl Read {
    fn bytes(&self) -> u64 {
        self.done + self.reading.iter().map(|it| it.snapshot().read).sum::<u64>()
    }
}

impl Learned {
    /// Begins to judge a host, if that is new.
    pub(super) fn begin_host(&mut self, host: &str, start: u32, max: u32) {
        self.learner.begin_host(host, start, max);
    }

    /// Forgets what was found of a host.
    pub(super) fn forget_host(&mut self, scheduler: &mut Scheduler, host: &str) {
        self.learner.forget_host(scheduler, host);
    }

    /// Begins to judge a datastore, if that is new.
    pub(super) fn begin_datastore(&mut self, datastore: &str) {
        self.learner.begin_datastore(datastore);
    }

    /// A disk is read through these from now on.
    pub(super) fn enter(&mut self, through: &[Resource], progress: &Arc<Progress>) {
        for resource in through {
            self.read.entry(resource.clone()).or_default().reading.push(progress.clone());
        }
    }

    pub(super) fn leave(&mut self, through: &[Resource], progress: &Arc<Progress>) {
        for resource in through {
            let Some(read) = self.read.get_mut(resource) else { continue };
            if let Some(at) = read.reading.iter().position(|it| Arc::ptr_eq(it, progress)) {
                read.done += read.reading.swap_remove(at).snapshot().read;
            }
        }
    }

    /// Judges all of them, if it is time to.
    pub(super) fn look(&mut self, scheduler: &mut Scheduler, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.looked_ms);
        if passed < SAMPLE_MS {
            return;
        }
        self.looked_ms = now_ms;
        let read = |resource: &Resource| self.read.get(resource).map_or(0, Read::bytes) as f64;
        // A long gap is a clock that was set, or a process that was stopped.
        let counts = passed <= 2 * SAMPLE_MS;
        self.learner.look(scheduler, &Look { passed_ms: passed as f64, counts, read: &read });
    }

    /// A line for each of these hosts and datastores of which something was found.
    pub(super) fn found(&self, of: &BTreeSet<Resource>, label: impl Fn(&Resource) -> String) -> Vec<String> {
        let found = self.learner.found().into_iter().filter(|(resource, _)| of.contains(resource));
        found.map(|(resource, found)| format!("{}: {found}", label(&resource))).collect()
    }
}
