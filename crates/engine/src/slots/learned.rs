//! What reading from hosts showed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use drover_mover::Progress;
use drover_schedule::{Climb, HostLimits, Scheduler};

/// A host is judged this often, in milliseconds.
const SAMPLE_MS: u64 = 2000;

/// Disks at once that are worth it, of each host.
#[derive(Default)]
pub(super) struct Learned {
    hosts: BTreeMap<String, Host>,
    looked_ms: u64,
}

struct Host {
    climb: Climb,
    reading: Vec<Arc<Progress>>,
    /// Bytes of disks that are done.
    done: u64,
    /// Bytes and disks at the last look.
    last: (u64, u32),
}

impl Learned {
    /// Begins to judge a host, if that is new.
    pub(super) fn begin(&mut self, host: &str, start: u32, max: u32) {
        let new = || Host { climb: Climb::new(start, max), reading: Vec::new(), done: 0, last: (0, 0) };
        self.hosts.entry(host.to_string()).or_insert_with(new).climb.set_max(max);
    }

    pub(super) fn enter(&mut self, host: &str, progress: Arc<Progress>) {
        if let Some(host) = self.hosts.get_mut(host) {
            host.reading.push(progress);
        }
    }

    pub(super) fn leave(&mut self, host: &str, progress: &Arc<Progress>) {
        let Some(host) = self.hosts.get_mut(host) else { return };
        if let Some(at) = host.reading.iter().position(|it| Arc::ptr_eq(it, progress)) {
            host.done += host.reading.swap_remove(at).snapshot().read;
        }
    }

    /// Judges all hosts, if it is time to.
    pub(super) fn look(&mut self, scheduler: &mut Scheduler, now_ms: u64) {
        let passed = now_ms.saturating_sub(self.looked_ms);
        if passed < SAMPLE_MS {
            return;
        }
        self.looked_ms = now_ms;
        for (name, host) in &mut self.hosts {
            let read = host.done + host.reading.iter().map(|it| it.snapshot().read).sum::<u64>();
            let Some(usage) = scheduler.usage_of(name) else { continue };
            let held = usage.disks;
            let before = std::mem::replace(&mut host.last, (read, held));
            // A long gap is a clock that was set, or a process that was stopped. A host that is not full tells nothing.
            if before.1 != held || passed > 2 * SAMPLE_MS || !usage.is_full() {
                continue;
            }
            let rate = read.saturating_sub(before.0) as f64 * 1000.0 / passed as f64;
            let limit = host.climb.sample(held, rate);
            let limits = scheduler.host_limits(name);
            // Until something was measured the budgets alone hold.
            if limits.learned.is_some() || limit != host.climb.started_at() {
                scheduler.set_host(name, HostLimits { learned: Some(limit), ..limits });
            }
        }
    }

    /// A line for each of these hosts of which something was found.
    pub(super) fn found(&self, hosts: &BTreeSet<&str>, label: impl Fn(&str) -> String) -> Vec<String> {
        let of = self.hosts.iter().filter(|(name, _)| hosts.contains(name.as_str()));
        let found = of.map(|(name, host)| (name, host.climb.found()));
        let measured = found.filter(|(_, found)| found.more.is_some() || found.fewer.is_some());
        measured.map(|(name, found)| format!("{}: {found}", label(name))).collect()
    }
}
