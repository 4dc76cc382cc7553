//! What earlier runs tell of rates and times.

use std::collections::{BTreeMap, BTreeSet};

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

/// What of a VM's copy came from one datastore and went one way.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The datastore ([`Rates::datastore_key`]).
    pub datastore: String,
    /// Where it went.
    pub to: Option<To>,
    /// Disks.
    pub disks: usize,
    /// Bytes that were read of them.
    pub read_bytes: u64,
    /// In which they were read: others of their VM may take longer.
    pub read_s: f64,
    /// The share (0 to 1) of their time in which the target was waited for, or the way to it.
    pub waited_for_target: f64,
}

/// Where disks go that are copied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum To {
    /// A folder or pool of this machine.
    Pool(String),
    /// Another site, over a line that no plan limits.
    Site(String),
}

/// A copy: the seconds at which it began and ended, its disks, and bytes that were read.
type Copy = (f64, f64, usize, u64);

/// Copies of a run.
#[derive(Clone, Debug, Default)]
pub struct Copies {
    hosts: BTreeMap<String, Vec<Copy>>,
    /// With the host of each.
    parts: Vec<(String, Part, Copy)>,
}

impl Copies {
    /// Takes in what was copied from a host; `parts` of it as far as they are known.
    pub fn see(&mut self, host: &str, it: &Measured, parts: &[Part]) {
        let Measured { copy_began_ms, copy_ended_ms, disks, read_bytes, .. } = *it;
        if copy_ended_ms <= copy_began_ms {
            return;
        }
        let (began, ended) = (copy_began_ms as f64 / 1000.0, copy_ended_ms as f64 / 1000.0);
        self.hosts.entry(host.to_string()).or_default().push((began, ended, disks as usize, read_bytes));
        let part = |it: &Part| {
            let copy = (began, (began + it.read_s).min(ended), it.disks, it.read_bytes);
            (host.to_string(), it.clone(), copy)
        };
        self.parts.extend(parts.iter().map(part));
    }

    /// What each host showed.
    fn of_hosts(&self) -> impl Iterator<Item = Copied> + '_ {
        let busy_of = |is_meant: &dyn Fn(&str) -> bool| {
            let meant = self.hosts.iter().filter(|(host, _)| is_meant(host)).flat_map(|(_, copies)| copies);
            Copied::of(&mut meant.copied().collect::<Vec<_>>()).map_or(0.0, |it| it.busy_s)
        };
        let all_s = busy_of(&|_| true);
        self.hosts.iter().filter_map(move |(host, copies)| {
            let by_target = waits_for_target(self.parts.iter().filter(|(of, ..)| of == host));
            let copied = Copied::of(&mut copies.clone())?;
            let both_s = copied.busy_s + busy_of(&|other| other != host) - all_s;
            let beside = both_s > copied.busy_s * (ALONE - 1.0);
            Some(Copied { by_target, beside, ..copied })
        })
    }

    /// What each datastore showed that may have been what its disks waited for: several hosts read it at once, or others of the same
    /// hosts were faster. What one host alone reads cannot be told apart from that host.
    fn of_datastores(&self) -> BTreeMap<String, Copied> {
        let all: BTreeSet<&str> = self.parts.iter().map(|(_, part, _)| part.datastore.as_str()).collect();
        let showed = |name: &str| {
            let own = || self.parts.iter().filter(|(_, part, _)| part.datastore == name);
            let copied = Copied::of_parts(own()).filter(|_| !waits_for_target(own()))?;
            let hosts: BTreeSet<&str> = own().map(|(host, ..)| host.as_str()).collect();
            let of_host = |host: &&str| Copied::of_parts(own().filter(|(of, ..)| of == *host));
            let busy_s: f64 = hosts.iter().filter_map(of_host).map(|it| it.busy_s).sum();
            let others = self
                .parts
                .iter()
                .filter(|(host, part, _)| part.datastore != name && hosts.contains(host.as_str()));
            let of_others = Copied::of_parts(others).map_or(0.0, |it| it.rate_of_one());
            let is_shared = busy_s >= copied.busy_s * HOSTS_AT_ONCE;
            let is_slower = copied.rate_of_one() < of_others * SHARED_PART;
            (is_shared || is_slower).then(|| (name.to_string(), copied))
        };
        all.into_iter().filter_map(showed).collect()
    }

    /// What each place showed that was waited for more than the source was.
    fn of_places(&self) -> BTreeMap<To, Copied> {
        let all: BTreeSet<&To> = self.parts.iter().filter_map(|(_, part, _)| part.to.as_ref()).collect();
        let showed = |to: &To| {
            let own = || self.parts.iter().filter(|(_, part, _)| part.to.as_ref() == Some(to));
            Some((to.clone(), Copied::of_parts(own()).filter(|_| waits_for_target(own()))?))
        };
        all.into_iter().filter_map(showed).collect()
    }
}

/// Whether more was waited for the target than for all else; not if nothing is known of it.
fn waits_for_target<'a>(parts: impl Iterator<Item = &'a (String, Part, Copy)>) -> bool {
    let (mut waited, mut bytes) = (0.0, 0.0);
    for (_, part, _) in parts {
        waited += part.waited_for_target * part.read_bytes as f64;
        bytes += part.read_bytes as f64;
    }
    bytes > 0.0 && waited > bytes / 2.0
}

/// What was seen in earlier runs: rates in bytes a second, times in seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Hosts of runs.
    copied: Vec<Copied>,
    /// Datastores of runs.
    datastores: BTreeMap<String, Vec<Copied>>,
    /// Places of runs.
    places: BTreeMap<To, Vec<Copied>>,
    /// Verifications, of a VM each.
    verify: Samples,
    /// Before each copy: look, snapshot.
    before_s: Samples,
    /// Shutdowns.
    shutdown_s: Samples,
    /// After each proof: conversion, definition, start, clean-up.
    after_s: Samples,
    /// Shares of the data that changed in an hour, from passes.
    churn: Samples,
}

/// Values that were measured.
#[derive(Clone, Debug, Default, PartialEq)]
struct Samples {
    values: Vec<f64>,
    /// When the latest of them was.
    latest_ms: Option<i64>,
}

impl Samples {
    fn push(&mut self, value: f64, at_ms: Option<i64>) {
        if value > 0.0 {
            self.values.push(value);
            self.latest_ms = self.latest_ms.max(at_ms);
        }
    }

    fn quantity(&self) -> Option<Quantity> {
        Some(Quantity::measured(self.values.iter().copied())?.on(self.latest_ms))
    }
}

/// What a run copied from one host, or through one other place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Copied {
    /// Bytes that were read.
    pub bytes: f64,
    /// Seconds in which a copy ran.
    pub busy_s: f64,
    /// Disks that were copied at once, in the mean of that time.
    pub disks: f64,
    /// When the last copy ended, in seconds since 1970.
    pub until_s: f64,
    /// Whether the target was waited for more than all else.
    pub by_target: bool,
    /// Whether other hosts were read at the same time.
    pub beside: bool,
}

impl Copied {
    /// What VMs of one host showed, each as the seconds at which its copy began and ended, its disks, and the bytes that were
    /// read; `None` if they say nothing.
    pub fn of(copies: &mut [Copy]) -> Option<Copied> {
        copies.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut bytes, mut busy_s, mut disk_s, mut until) = (0.0, 0.0, 0.0, f64::NEG_INFINITY);
        for (begin, end, disks, read) in copies.iter().copied().filter(|it| it.1 > it.0) {
            bytes += read as f64;
            disk_s += (end - begin) * disks as f64;
            busy_s += (end - begin.max(until)).max(0.0);
            until = end.max(until);
        }
        (bytes > 0.0 && busy_s > 0.0).then(|| Copied {
            bytes,
            busy_s,
            disks: disk_s / busy_s,
            until_s: until,
            ..Copied::default()
        })
    }

    fn of_parts<'a>(parts: impl Iterator<Item = &'a (String, Part, Copy)>) -> Option<Copied> {
        Copied::of(&mut parts.map(|(.., copy)| *copy).collect::<Vec<_>>())
    }

    fn rate(&self) -> f64 {
        self.bytes / self.busy_s
    }

    /// Of each disk.
    fn rate_of_one(&self) -> f64 {
        self.rate() / self.disks
    }
}

/// Fewer disks at once than this are as good as one alone.
const ALONE: f64 = 1.2;
/// Less than this part of what one disk gets alone shows that disks share something that is full.
const SHARED_PART: f64 = 0.8;
/// A datastore that is read by more hosts at once, in the mean, is none of them.
const HOSTS_AT_ONCE: f64 = 1.5;

impl Seen {
    /// Takes in what the move of a VM showed that ended then, but for its copy, which is seen with those beside it
    /// ([`Seen::see_run`]).
    pub fn see(&mut self, it: &Measured, ended_ms: Option<i64>) {
        let seconds = |ms: u64| ms as f64 / 1000.0;
        self.before_s.push(seconds(it.before_ms), ended_ms);
        self.shutdown_s.push(seconds(it.shutdown_ms), ended_ms);
        self.after_s.push(seconds(it.after_ms), ended_ms);
        let data = it.data_bytes as f64;
        if it.verify_ms > 0 {
            self.verify.push(data / seconds(it.verify_ms), ended_ms);
        }
        if data > 0.0 {
            let churn = it.changed_bytes_per_hour.iter().map(|bytes| *bytes as f64 / data);
            churn.for_each(|share| self.churn.push(share, ended_ms));
        }
    }

    /// Takes in the copies of a run.
    pub fn see_run(&mut self, copies: &Copies) {
        self.copied.extend(copies.of_hosts());
        for (name, copied) in copies.of_datastores() {
            self.datastores.entry(name).or_default().push(copied);
        }
        for (to, copied) in copies.of_places() {
            self.places.entry(to).or_default().push(copied);
        }
    }

    /// The rates: as seen, and where nothing was seen, as assumed.
    pub fn rates(&self) -> Rates {
        let assumed = Rates::default();
        let or = |samples: &Samples, assumed: Quantity| samples.quantity().unwrap_or(assumed);
        let alone = || self.copied.iter().filter(|it| it.disks < ALONE);
        let likely = |it: &Option<Quantity>| it.as_ref().map_or(f64::INFINITY, |it| it.spread.p50);
        let is_below = |it: &Copied, alone: f64| it.disks >= ALONE && it.rate_of_one() < alone * SHARED_PART;
        let stream = measured(alone());
        // What is alone at its host may share all else with others.
        let alone_rate = likely(&measured(alone().filter(|it| !it.beside)));
        let is_full = |it: &&Copied| is_below(it, alone_rate);
        let is_full_host = |it: &&Copied| is_below(it, likely(&stream)) && !it.by_target;
        // What a slow target held up says nothing of its host.
        let host = measured(self.copied.iter().filter(is_full_host));
        // One bad run, beside a backup, is outdone by each better one.
        let of = |(name, all): (&String, &Vec<Copied>)| {
            let most = all.iter().map(Copied::rate).fold(0.0, f64::max);
            Some((name.clone(), raised(measured(all.iter().filter(is_full))?, most)))
        };
        let (mut pools, mut sites) = (BTreeMap::new(), BTreeMap::new());
        for (to, all) in &self.places {
            let (known, name) = match to {
                To::Pool(name) => (&mut pools, name),
                To::Site(name) => (&mut sites, name),
            };
            known.extend(of((name, all)));
        }
        Rates {
            stream: stream.unwrap_or_else(|| raised(assumed.stream, self.most_among_others())),
            host: host.unwrap_or(assumed.host),
            verify: or(&self.verify, assumed.verify),
            snapshot_s: or(&self.before_s, assumed.snapshot_s),
            shutdown_s: or(&self.shutdown_s, assumed.shutdown_s),
            start_s: or(&self.after_s, assumed.start_s),
            churn: or(&self.churn, assumed.churn),
            datastore: assumed.datastore,
            link: assumed.link,
            pool: assumed.pool,
            datastores: self.datastores.iter().filter_map(of).collect(),
            pools,
            sites,
        }
    }

    /// The most that a disk got among others: alone it gets no less.
    fn most_among_others(&self) -> f64 {
        self.copied.iter().filter(|it| it.disks >= ALONE).map(Copied::rate_of_one).fold(0.0, f64::max)
    }
}

fn measured<'a>(of: impl Iterator<Item = &'a Copied>) -> Option<Quantity> {
    let all: Vec<&Copied> = of.collect();
    let latest_s = all.iter().map(|it| it.until_s).fold(0.0, f64::max);
    let latest_ms = (latest_s > 0.0).then_some((latest_s * 1000.0) as i64);
    Some(Quantity::measured(all.iter().map(|it| it.rate()))?.on(latest_ms))
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
        Copied { bytes: rate * 10.0, busy_s: 10.0, disks, until_s: 1_000.0, ..Copied::default() }
    }

    fn moved(from_s: i64, to_s: i64) -> Measured {
        Measured {
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
        }
    }

    /// A VM of one disk whose copy took so many seconds: its host, its datastore and where it went.
    fn part(datastore: &str, to: Option<To>, waited_for_target: f64) -> Part {
        Part {
            datastore: datastore.into(),
            to,
            disks: 1,
            read_bytes: 1_000,
            read_s: f64::INFINITY,
            waited_for_target,
        }
    }

    fn learned(vms: &[(&str, i64, Part)]) -> Rates {
        let (mut seen, mut copies) = (Seen::default(), Copies::default());
        vms.iter().for_each(|(host, took_s, part)| {
            copies.see(host, &moved(0, *took_s), std::slice::from_ref(part))
        });
        seen.see_run(&copies);
        seen.rates()
    }

    fn middle(of: &BTreeMap<String, Quantity>) -> Vec<(&str, f64)> {
        of.iter().map(|(name, it)| (name.as_str(), it.spread.p50)).collect()
    }

    #[test]
    fn a_host_is_busy_while_any_of_its_vms_is_copied() {
        // Two at once, a gap of 5 s, and one with two disks: 15 s of work for 300 bytes.
        let mut copies = [(20.0, 25.0, 2, 100), (0.0, 10.0, 1, 100), (5.0, 15.0, 1, 100), (7.0, 7.0, 9, 999)];
        let seen = Copied::of(&mut copies).unwrap();
        let expected = Copied { bytes: 300.0, busy_s: 20.0, disks: 1.5, until_s: 25.0, ..Copied::default() };
        assert_eq!(seen, expected);
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
        assert_eq!(rates.host.measured_ms, Some(1_000_000));
        assert_eq!((rates.pool, rates.pools.len()), (Rates::default().pool, 0));
    }

    #[test]
    fn what_vms_showed_is_learned_by_host() {
        let (mut seen, mut copies) = (Seen::default(), Copies::default());
        let warm = Measured { copy_began_ms: 0, copy_ended_ms: 0, ..moved(0, 0) };
        for (host, it) in [("a", moved(0, 10)), ("a", moved(120, 130)), ("b", moved(0, 100)), ("b", warm)] {
            copies.see(host, &it, &[]);
            seen.see(&it, Some(it.copy_ended_ms));
        }
        seen.see_run(&copies);
        let rates: Vec<(f64, bool)> = seen.copied.iter().map(|it| (it.rate(), it.beside)).collect();
        assert_eq!(
            rates,
            [(100.0, true), (10.0, false)],
            "b is read for 90 of its 100 s with nothing beside it"
        );
        let learned = seen.rates();
        assert_eq!((learned.verify.spread.p50, learned.churn.spread.p50), (100.0, 0.5));
        assert_eq!((learned.snapshot_s.spread.p50, learned.start_s.spread.p50), (2.0, 9.0));
        assert_eq!(learned.churn.measured_ms, Some(130_000), "by the latest");
        assert_eq!(learned.shutdown_s, Rates::default().shutdown_s, "none was shut down");
    }

    #[test]
    fn a_datastore_is_known_once_hosts_read_it_together_or_others_are_faster() {
        let of = |host, took_s, datastore: &str| (host, took_s, part(datastore, None, 0.1));
        let two_hosts = learned(&[of("a", 100, "slow"), of("a", 100, "slow"), of("b", 100, "slow")]);
        assert_eq!(middle(&two_hosts.datastores), [("slow", 30.0)]);
        let beside = [of("a", 100, "slow"), of("a", 100, "slow"), of("a", 10, "fast"), of("a", 10, "fast")];
        assert_eq!(middle(&learned(&beside).datastores), [("slow", 20.0)]);
        // One host alone: it may be the host.
        let alone = learned(&[of("a", 100, "ds"), of("a", 100, "ds")]);
        assert_eq!((middle(&alone.datastores), alone.host.spread.p50), (vec![], 20.0));
        // One after the other is nothing together.
        let mut copies = Copies::default();
        for (host, from_s) in [("a", 0), ("b", 100), ("c", 200)] {
            copies.see(host, &moved(from_s, from_s + 100), &[part("ds", None, 0.1)]);
        }
        assert_eq!(copies.of_datastores(), BTreeMap::new());
    }

    #[test]
    fn a_small_disk_on_a_fast_datastore_does_not_take_as_long_as_its_vm() {
        let mut copies = Copies::default();
        let fast = Part { read_s: 2.0, ..part("fast", None, 0.1) };
        for host in ["a", "b"] {
            copies.see(host, &moved(0, 100), &[fast.clone(), part("slow", None, 0.1)]);
        }
        let found = copies.of_datastores();
        assert_eq!((found["fast"].rate(), found["slow"].rate()), (1_000.0, 20.0));
    }

    #[test]
    fn a_bad_run_is_outdone_by_each_better_one() {
        let run = |took_s: i64| {
            let mut copies = Copies::default();
            for host in ["a", "b"] {
                copies.see(host, &moved(0, took_s), &[part("ds", None, 0.1)]);
            }
            copies
        };
        let alone = Seen { copied: vec![copied(1.0, 100.0)], ..Seen::default() };
        let mut seen = alone.clone();
        seen.see_run(&run(100));
        assert_eq!(middle(&seen.rates().datastores), [("ds", 20.0)]);
        seen.see_run(&run(10));
        assert_eq!(middle(&seen.rates().datastores), [("ds", 200.0)]);
    }

    #[test]
    fn a_target_that_is_waited_for_is_known_and_says_nothing_of_hosts_and_datastores() {
        let to = |to: To, waited| {
            let of = |host| (host, 100, part("ds", Some(to.clone()), waited));
            learned(&[of("a"), of("a"), of("b"), of("b")])
        };
        let pool = to(To::Pool("/vms".into()), 0.8);
        assert_eq!((middle(&pool.pools), pool.sites.len()), (vec![("/vms", 40.0)], 0));
        assert_eq!((pool.datastores.len(), &pool.host), (0, &Rates::default().host));
        assert_eq!(pool.pools["/vms"].measured_ms, Some(100_000));
        let site = to(To::Site("b".into()), 0.8);
        assert_eq!((site.pools.len(), middle(&site.sites)), (0, vec![("b", 40.0)]));
        let source = to(To::Pool("/vms".into()), 0.2);
        assert_eq!((source.pools.len(), middle(&source.datastores)), (0, vec![("ds", 40.0)]));
        // As fast as each disk alone: what more of them would get is not known.
        let mut seen = Seen { copied: vec![copied(1.0, 10.0)], ..Seen::default() };
        let mut copies = Copies::default();
        for host in ["a", "b"] {
            copies.see(host, &moved(0, 100), &[part("ds", Some(To::Pool("/vms".into())), 0.8)]);
        }
        seen.see_run(&copies);
        assert_eq!(seen.rates().pools.len(), 0);
    }

    #[test]
    fn what_was_not_seen_is_assumed() {
        assert_eq!(Seen::default().rates(), Rates::default());
        let never_alone = Seen { copied: vec![copied(4.0, 1_000e6); 3], ..Seen::default() }.rates();
        assert_eq!(never_alone.host.spread.p50, 1_000e6);
        assert_eq!(never_alone.stream.spread.p50, 250e6);
    }
}
