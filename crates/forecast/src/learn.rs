//! What earlier runs tell of rates and times.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::rates::{Quantity, Rates};

/// What the move of one VM showed. Kept with the VM, so that whoever forecasts later learns from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Measured {
    /// When its copy began and ended, in milliseconds since 1970; 0 where it moved warm, in passes that say little of a whole disk.
    pub copy_began_ms: i64,
    /// See above.
    pub copy_ended_ms: i64,
    /// Its disks.
    pub disks: u32,
    /// Bytes that were read of them.
    pub read_bytes: u64,
    /// Bytes of data that they have.
    pub data_bytes: u64,
    /// Before the copy: look, snapshot.
    pub before_ms: u64,
    /// Its shutdown.
    pub shutdown_ms: u64,
    /// Its verification.
    pub verify_ms: u64,
    /// After the proof: conversion, definition, start, clean-up.
    pub after_ms: u64,
    /// Bytes that changed in an hour, by the latest of its passes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changed_bytes_per_hour: Vec<u64>,
}

/// Copies of a run, by host.
#[derive(Clone, Debug, Default)]
pub struct Copies(BTreeMap<String, Vec<(f64, f64, usize, u64)>>);

impl Copies {
    /// Takes in what was copied from a host.
    pub fn see(&mut self, host: &str, it: &Measured) {
        let Measured { copy_began_ms, copy_ended_ms, disks, read_bytes, .. } = *it;
        if copy_ended_ms > copy_began_ms {
            let seconds = |ms: i64| ms as f64 / 1000.0;
            let copy = (seconds(copy_began_ms), seconds(copy_ended_ms), disks as usize, read_bytes);
            self.0.entry(host.to_string()).or_default().push(copy);
        }
    }

    /// What each host showed.
    pub fn hosts(self) -> impl Iterator<Item = Copied> {
        self.0.into_values().filter_map(|mut copies| Copied::of(&mut copies))
    }
}

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
    /// Takes in what the move of a VM showed, but for its copy, which is seen with those beside it ([`Copies`]).
    pub fn see(&mut self, it: &Measured) {
        let seconds = |ms: u64| ms as f64 / 1000.0;
        self.before_s.push(seconds(it.before_ms));
        self.shutdown_s.push(seconds(it.shutdown_ms));
        self.after_s.push(seconds(it.after_ms));
        let data = it.data_bytes as f64;
        if it.verify_ms > 0 {
            self.verify.push(data / seconds(it.verify_ms));
        }
        if data > 0.0 {
            self.churn.extend(it.changed_bytes_per_hour.iter().map(|bytes| *bytes as f64 / data));
        }
    }

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
    fn what_vms_showed_is_learned_by_host() {
        let (mut seen, mut copies) = (Seen::default(), Copies::default());
        let moved = |from_s: i64, to_s: i64| Measured {
            copy_began_ms: from_s * 1000,
            copy_ended_ms: to_s * 1000,
            disks: 1,
            read_bytes: 1_000,
            data_bytes: 500,
            before_ms: 2_000,
            verify_ms: 5_000,
            after_ms: 9_000,
            changed_bytes_per_hour: vec![250],
            ..Measured::default()
        };
        let warm = Measured { copy_began_ms: 0, copy_ended_ms: 0, ..moved(0, 0) };
        for (host, it) in [("a", moved(0, 10)), ("a", moved(20, 30)), ("b", moved(0, 100)), ("b", warm)] {
            copies.see(host, &it);
            seen.see(&it);
        }
        seen.copied.extend(copies.hosts());
        let rates: Vec<f64> = seen.copied.iter().map(Copied::rate).collect();
        assert_eq!(rates, [100.0, 10.0]);
        let learned = seen.rates();
        assert_eq!((learned.verify.spread.p50, learned.churn.spread.p50), (100.0, 0.5));
        assert_eq!((learned.snapshot_s.spread.p50, learned.start_s.spread.p50), (2.0, 9.0));
        assert_eq!(learned.shutdown_s, Rates::default().shutdown_s, "none was shut down");
    }

    #[test]
    fn what_was_not_seen_is_assumed() {
        assert_eq!(Seen::default().rates(), Rates::default());
        let never_alone = Seen { copied: vec![copied(4.0, 1_000e6); 3], ..Seen::default() }.rates();
        assert_eq!(never_alone.host.spread.p50, 1_000e6);
        assert_eq!(never_alone.stream.spread.p50, 250e6);
    }
}
