//! What earlier runs tell of rates and times.

use crate::rates::{Quantity, Rates};

/// What was seen in earlier runs: rates in bytes a second, times in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Hosts of runs.
    pub copied: Vec<Copied>,
    /// Verifications, of a VM each.
    pub verify: Vec<f64>,
    /// Before each copy: look, snapshot.
    pub before_s: Vec<f64>,
    /// Shutdowns.
    pub shutdown_s: Vec<f64>,
    /// After each proof: conversion, definition, start, clean-up.
    pub after_s: Vec<f64>,
    /// Shares of the data that changed in an hour, from passes.
    pub churn: Vec<f64>,
}

/// What a run copied from one host.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Copied {
    /// Bytes that were read.
    pub bytes: f64,
    /// Seconds in which a copy ran.
    pub busy_s: f64,
    /// Disks that were copied at once, in the mean of that time.
    pub disks: f64,
}

impl Copied {
    /// What VMs of one host showed, each as the seconds at which its copy began and ended, its disks, and the bytes that were
    /// read; `None` if they say nothing.
    pub fn of(copies: &mut [(f64, f64, usize, u64)]) -> Option<Copied> {
        copies.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut bytes, mut busy_s, mut disk_s, mut until) = (0.0, 0.0, 0.0, f64::NEG_INFINITY);
        for (begin, end, disks, read) in copies.iter().copied().filter(|it| it.1 > it.0) {
            bytes += read as f64;
            disk_s += (end - begin) * disks as f64;
            busy_s += (end - begin.max(until)).max(0.0);
            until = end.max(until);
        }
        (bytes > 0.0 && busy_s > 0.0).then(|| Copied { bytes, busy_s, disks: disk_s / busy_s })
    }

    fn rate(&self) -> f64 {
        self.bytes / self.busy_s
    }
}

/// Fewer disks at once than this are as good as one alone.
const ALONE: f64 = 1.2;
/// Less than this part of what one disk gets alone shows that disks share something that is full.
const SHARED_PART: f64 = 0.8;

impl Seen {
    /// The rates: as seen, and where nothing was seen, as assumed.
    pub fn rates(&self) -> Rates {
        let assumed = Rates::default();
        let or = |samples: &[f64], assumed: Quantity| {
            Quantity::measured(samples.iter().copied()).unwrap_or(assumed)
        };
        let (stream, host) = self.stream_and_host(&assumed);
        Rates {
            stream,
            host,
            verify: or(&self.verify, assumed.verify),
            snapshot_s: or(&self.before_s, assumed.snapshot_s),
            shutdown_s: or(&self.shutdown_s, assumed.shutdown_s),
            start_s: or(&self.after_s, assumed.start_s),
            churn: or(&self.churn, assumed.churn),
            // Nothing tells these apart from hosts.
            datastore: assumed.datastore,
            link: assumed.link,
            pool: assumed.pool,
        }
    }

    /// What one disk gets alone, and what a host gives: from runs in which each disk got much less than it gets alone.
    fn stream_and_host(&self, assumed: &Rates) -> (Quantity, Quantity) {
        let (alone, together): (Vec<&Copied>, Vec<&Copied>) =
            self.copied.iter().partition(|it| it.disks < ALONE);
        let stream = Quantity::measured(alone.iter().map(|it| it.rate()));
        let alone_rate = stream.as_ref().map_or(f64::INFINITY, |it| it.spread.p50);
        let shared = together.iter().filter(|it| it.rate() / it.disks < alone_rate * SHARED_PART);
        let host = Quantity::measured(shared.map(|it| it.rate()));
        // Never seen alone: what it gets among others is the least.
        let most = together.iter().map(|it| it.rate() / it.disks).fold(0.0, f64::max);
        let stream = stream.unwrap_or_else(|| raised(assumed.stream.clone(), most));
        (stream, host.unwrap_or_else(|| assumed.host.clone()))
    }
}

fn raised(mut quantity: Quantity, least: f64) -> Quantity {
    let spread = &mut quantity.spread;
    for value in [&mut spread.p10, &mut spread.p50, &mut spread.p90] {
        *value = value.max(least);
    }
    quantity
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rates::Origin;

    fn copied(disks: f64, rate: f64) -> Copied {
        Copied { bytes: rate * 10.0, busy_s: 10.0, disks }
    }

    #[test]
    fn a_host_is_busy_while_any_of_its_vms_is_copied() {
        // Two at once, a gap of 5 s, and one with two disks: 15 s of work for 300 bytes.
        let mut copies = [(20.0, 25.0, 2, 100), (0.0, 10.0, 1, 100), (5.0, 15.0, 1, 100), (7.0, 7.0, 9, 999)];
        let seen = Copied::of(&mut copies).unwrap();
        assert_eq!(seen, Copied { bytes: 300.0, busy_s: 20.0, disks: 1.5 });
        assert_eq!(Copied::of(&mut []), None);
        assert_eq!(Copied::of(&mut [(1.0, 1.0, 1, 5)]), None);
    }

    #[test]
    fn a_host_is_known_from_runs_in_which_its_disks_shared_it() {
        let runs =
            [copied(1.0, 50e6), copied(1.1, 50e6), copied(2.0, 90e6), copied(6.0, 120e6), copied(5.0, 120e6)];
        let rates = Seen { copied: runs.to_vec(), ..Seen::default() }.rates();
        assert_eq!((rates.stream.spread.p50, rates.host.spread.p50), (50e6, 120e6));
        assert_eq!(rates.host.origin, Origin::Measured(2), "two disks at once were not held up");
        assert_eq!(rates.pool, Rates::default().pool);
    }

    #[test]
    fn what_was_not_seen_is_assumed() {
        assert_eq!(Seen::default().rates(), Rates::default());
        let never_alone = Seen { copied: vec![copied(4.0, 1_000e6); 3], ..Seen::default() }.rates();
        assert_eq!(never_alone.host.spread.p50, 1_000e6);
        assert_eq!(never_alone.stream.spread.p50, 250e6);
    }
}
