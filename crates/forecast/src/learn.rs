//! What earlier runs tell of rates and times.

use std::collections::BTreeMap;

use crate::rates::{Quantity, Rates};

/// What was seen in earlier runs: rates in bytes a second, times in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Moments of runs.
    pub points: Vec<Point>,
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

/// What a run did at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Number of the run.
    pub run: usize,
    /// Disks that were read.
    pub disks: u64,
    /// Hosts that they lay at, at the most.
    pub hosts: usize,
    /// Bytes a second of all together.
    pub rate: f64,
}

/// Less than this part of what one disk gets alone shows that disks share something that is full.
const SHARED_PART: f64 = 0.8;

impl Seen {
    /// The rates: as seen, and where nothing was seen, as assumed.
    pub fn rates(&self) -> Rates {
        let assumed = Rates::default();
        let or = |samples: &[f64], assumed: Quantity| {
            Quantity::measured(samples.iter().copied()).unwrap_or(assumed)
        };
        let alone = self.points.iter().filter(|it| it.disks == 1);
        let stream = Quantity::measured(means(alone.map(|it| (it.run, it.rate))));
        let (stream, host) = match self.host(stream.as_ref()) {
            // Never seen alone: what it gets among others is the least.
            (Some(host), None) => (raised(assumed.stream, self.most_of_a_disk()), host),
            (host, stream) => (stream.unwrap_or(assumed.stream), host.unwrap_or(assumed.host)),
        };
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

    /// What a host gives, from moments in which each of its disks got much less than it gets alone.
    fn host(&self, stream: Option<&Quantity>) -> (Option<Quantity>, Option<Quantity>) {
        let alone = stream.map_or(f64::INFINITY, |it| it.spread.p50);
        let is_shared = |it: &&Point| {
            it.hosts > 0 && it.disks > it.hosts as u64 && it.rate / (it.disks as f64) < alone * SHARED_PART
        };
        let shared = self.points.iter().filter(is_shared);
        let host = means(shared.map(|it| (it.run, it.rate / it.hosts as f64)));
        (Quantity::measured(host), stream.cloned())
    }

    fn most_of_a_disk(&self) -> f64 {
        self.points.iter().filter(|it| it.disks > 0).map(|it| it.rate / it.disks as f64).fold(0.0, f64::max)
    }
}

/// The mean of each run: how runs differ is what a forecast may be off by, and not how the moments of one do.
fn means(of_runs: impl Iterator<Item = (usize, f64)>) -> Vec<f64> {
    let mut sums: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    for (run, rate) in of_runs {
        let sum = sums.entry(run).or_default();
        *sum = (sum.0 + rate, sum.1 + 1.0);
    }
    sums.into_values().map(|(sum, number)| sum / number).collect()
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

    fn points(disks: u64, hosts: usize, rate: f64, times: usize) -> Vec<Point> {
        (0..times)
            .map(|at| Point { run: at % 3, disks, hosts, rate: rate * (1.0 + 0.5 * (at / 3 % 2) as f64) })
            .collect()
    }

    #[test]
    fn a_host_is_known_from_moments_in_which_its_disks_shared_it() {
        let seen = Seen {
            points: [points(1, 1, 40e6, 6), points(2, 1, 90e6, 6), points(6, 1, 96e6, 6)].concat(),
            ..Seen::default()
        };
        let rates = seen.rates();
        // Each run has one moment that is half as fast again.
        assert_eq!((rates.stream.spread.p50, rates.host.spread.p50), (50e6, 120e6));
        assert_eq!(
            rates.host.origin,
            Origin::Measured(3),
            "runs, not moments; two disks at once were not held up"
        );
        assert_eq!(rates.pool, Rates::default().pool);
    }

    #[test]
    fn what_was_not_seen_is_assumed() {
        assert_eq!(Seen::default().rates(), Rates::default());
        let never_alone = Seen { points: points(8, 2, 1_600e6, 6), ..Seen::default() }.rates();
        assert_eq!(never_alone.host.spread.p50, 1_000e6);
        assert_eq!(never_alone.stream.spread.p50, 300e6);
    }
}
