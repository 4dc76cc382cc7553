//! How many disks of each host and of each datastore are worth reading at once.
//!
//! Both are found by one rule ([`Climb`]). A datastore that one host alone waits for is that host's: it is judged once two hosts do,
//! and while none of these is still trying, so that no sum changes for two reasons at a time.

use std::collections::BTreeMap;

use crate::budgets::HostLimits;
use crate::climb::{Climb, Found, GAIN_MIN, SAMPLES};
use crate::scheduler::{DatastoreUsage, Scheduler};
use crate::wait::Resource;

/// Disks at once that are worth it, of hosts and datastores.
#[derive(Clone, Debug, Default)]
pub struct Learner {
    hosts: BTreeMap<String, One>,
    datastores: BTreeMap<String, One>,
}

#[derive(Clone, Debug, Default)]
struct One {
    /// Absent until there was something to judge.
    climb: Option<Climb>,
    /// Bytes and disks at the last look.
    last: (f64, u32),
    /// Looks in a row of which each told a rate, and the least of these rates.
    steady: (u32, f64),
}

/// One look at what was read.
#[derive(Clone, Copy)]
pub struct Look<'a> {
    /// Milliseconds since the look before.
    pub passed_ms: f64,
    /// Whether these were measured as others are: not if the clock was set, or the process was stopped meanwhile.
    pub counts: bool,
    /// Bytes that were read from it so far.
    pub read: &'a dyn Fn(&Resource) -> f64,
}

impl Learner {
    /// Begins to judge a host, if that is new. It serves `max` disks at most.
    pub fn begin_host(&mut self, host: &str, start: u32, max: u32) {
        let one = self.hosts.entry(host.to_string()).or_default();
        one.climb.get_or_insert_with(|| Climb::new(start, max)).set_max(max);
    }

    /// Forgets how many disks of a host were found to be worth it: what it may serve was changed by order. The scheduler keeps to the
    /// budgets alone until it is measured anew.
    pub fn forget_host(&mut self, scheduler: &mut Scheduler, host: &str) {
        if let Some(one) = self.hosts.get_mut(host) {
            one.climb = None;
            let limits = scheduler.host_limits(host);
            scheduler.set_host(host, HostLimits { learned: None, ..limits });
        }
    }

    /// Begins to judge a datastore, if that is new.
    pub fn begin_datastore(&mut self, datastore: &str) {
        self.datastores.entry(datastore.to_string()).or_default();
    }

    /// Judges all, and has the scheduler keep to what was found.
    pub fn look(&mut self, scheduler: &mut Scheduler, look: &Look<'_>) {
        for (name, host) in &mut self.hosts {
            let Some(usage) = scheduler.usage_of(name) else { continue };
            let rate = host.rate(&Resource::Host(name.clone()), usage.disks, look);
            if let Some(rate) = host.gives(rate, scheduler.rate_of(name)) {
                let limits = scheduler.host_limits(name);
                scheduler.set_host(name, HostLimits { rate: Some(rate), ..limits });
            }
            // One that is not full tells nothing.
            let (Some(rate), Some(climb)) = (rate.filter(|_| usage.is_full()), &mut host.climb) else {
                continue;
            };
            let limit = climb.sample(usage.disks, rate);
            let limits = scheduler.host_limits(name);
            // Until something was measured the budgets alone hold.
            let is_new = limits.learned.is_some() || limit != climb.started_at();
            if is_new && limits.learned != Some(limit) {
                scheduler.set_host(name, HostLimits { learned: Some(limit), ..limits });
            }
        }
        for (name, datastore) in &mut self.datastores {
            let Some(usage) = scheduler.datastore_usage(name) else { continue };
            let rate = datastore.rate(&Resource::Datastore(name.clone()), usage.disks, look);
            let is_trying = |host: &String| {
                let climb = self.hosts.get(host).and_then(|host| host.climb.as_ref());
                let is_full = scheduler.usage_of(host).is_some_and(|usage| usage.is_full());
                is_full && climb.is_some_and(|climb| !climb.is_settled())
            };
            if usage.waiting_at.len() < 2 && usage.learned.is_some() {
                // Nobody would measure any more whether it is still so.
                datastore.climb = None;
                scheduler.learn_datastore(name, None);
                continue;
            }
            let is_shared = usage.waiting_at.len() > 1 && !usage.waiting_at.iter().any(is_trying);
            let Some(rate) = rate.filter(|_| is_shared && usage.disks > 0) else { continue };
            let limit = datastore.judge(&usage, rate);
            if limit != usage.learned {
                scheduler.learn_datastore(name, limit);
            }
        }
    }

    /// What was found so far, of hosts and datastores that were measured with more disks, or with fewer, too.
    pub fn found(&self) -> Vec<(Resource, Found)> {
        let of = |one: &One| one.climb.as_ref().map(Climb::found);
        let measured = |found: &Found| found.more.is_some() || found.fewer.is_some();
        let hosts = self.hosts.iter().map(|(name, one)| (Resource::Host(name.clone()), of(one)));
        let datastores =
            self.datastores.iter().map(|(name, one)| (Resource::Datastore(name.clone()), of(one)));
        let all = hosts.chain(datastores).filter_map(|(resource, found)| Some((resource, found?)));
        all.filter(|(_, found)| measured(found)).collect()
    }
}

impl One {
    /// Bytes a second since the last look, if as many disks were read all the while.
    fn rate(&mut self, resource: &Resource, disks: u32, look: &Look<'_>) -> Option<f64> {
        let read = (look.read)(resource);
        let (read_before, disks_before) = std::mem::replace(&mut self.last, (read, disks));
        let is_even = look.counts && disks_before == disks && look.passed_ms > 0.0;
        is_even.then(|| (read - read_before).max(0.0) * 1000.0 / look.passed_ms)
    }

    /// What a host gives in all, in bytes a second, if that is news: the best of its climb once that has settled. One that is not
    /// full is not judged so, and may show all the same that it gives more than is `known`.
    fn gives(&mut self, rate: Option<f64>, known: u64) -> Option<u64> {
        let shown = self.shown(rate).filter(|rate| *rate > known as f64);
        let gives = self.climb.as_ref().and_then(Climb::rate).or(shown)?;
        let is_news = (gives - known as f64).abs() > known as f64 * GAIN_MIN;
        is_news.then_some((gives as u64).max(1))
    }

    /// The least of as many rates in a row as it takes to judge one.
    fn shown(&mut self, rate: Option<f64>) -> Option<f64> {
        let (looks, least) = std::mem::take(&mut self.steady);
        let rate = rate?;
        let (looks, least) = (looks + 1, if looks == 0 { rate } else { least.min(rate) });
        if looks >= SAMPLES {
            return Some(least);
        }
        self.steady = (looks, least);
        None
    }

    /// Judges a datastore by one more sample. Gives its limit from now on; none while its hosts let in no more than it is worth.
    fn judge(&mut self, usage: &DatastoreUsage, rate: f64) -> Option<u32> {
        let new = || Climb::new(usage.disks, usage.disks);
        let climb = self.climb.get_or_insert_with(new);
        // It begins with as many as its hosts let in, tries fewer, and begins anew when these let in more.
        if usage.learned.is_none() && usage.disks > climb.limit() {
            *climb = new();
        }
        let limit = climb.sample(usage.disks, rate);
        (limit != climb.started_at() && !climb.is_at_reach()).then_some(limit)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::budgets::Budgets;
    use crate::job::{Disk, Job, JobId, Tenant};
    use crate::scheduler::Ended;

    /// Hosts that serve one disk at once each, all from one datastore that gives so much for so many disks. Gives what it is limited
    /// to after so many looks, and what is told of it.
    fn follow(hosts: usize, looks: usize, rate: impl Fn(u32) -> f64) -> (Option<u32>, Option<String>) {
        let mut scheduler = Scheduler::new(Budgets::default());
        let mut learner = Learner::default();
        learner.begin_datastore("ds");
        for host in (0..hosts).map(|host| format!("esx{host}")) {
            scheduler.set_host(&host, HostLimits { disks: Some(1), ..HostLimits::default() });
            learner.begin_host(&host, 1, 1);
            let disks = vec![Disk { bytes: 1 << 30, datastore: "ds".into(), pool: None }];
            let job = Job { host, disks, ..Job::default() };
            scheduler.add(Tenant(0), vec![job; looks + 1], 0);
        }
        let (bytes, mut running) = (RefCell::new(BTreeMap::new()), Vec::<JobId>::new());
        for _ in 0..looks {
            running.drain(..).for_each(|id| scheduler.finished(id, Ended::Arrived, 0));
            running.extend(std::iter::from_fn(|| scheduler.next(0)).map(|it| it.job));
            let disks = running.len() as u32;
            let of_all = rate(disks);
            *bytes.borrow_mut().entry(Resource::Datastore("ds".into())).or_insert(0.0) += of_all;
            for host in running.iter().filter_map(|id| scheduler.job(*id)).map(|job| job.host.clone()) {
                *bytes.borrow_mut().entry(Resource::Host(host)).or_insert(0.0) += of_all / f64::from(disks);
            }
            let read = |resource: &Resource| bytes.borrow().get(resource).copied().unwrap_or(0.0);
            learner.look(&mut scheduler, &Look { passed_ms: 1000.0, counts: true, read: &read });
        }
        let told = learner.found().into_iter().find(|(of, _)| *of == Resource::Datastore("ds".into()));
        let learned = scheduler.datastore_usage("ds").and_then(|usage| usage.learned);
        (learned, told.map(|(_, found)| found.to_string()))
    }

    /// Most with four disks.
    fn thrashing(disks: u32) -> f64 {
        f64::from(disks) * 100.0 / (1.0 + (f64::from(disks) / 5.0).powi(3))
    }

    #[test]
    fn fewer_disks_of_a_datastore_are_read_where_more_make_it_slower() {
        let (learned, told) = follow(8, 200, thrashing);
        assert_eq!(learned, Some(4));
        assert_eq!(told.as_deref(), Some("4 disks at once; a 5th lost 5 %"));
    }

    #[test]
    fn a_datastore_that_is_full_is_read_by_the_fewest_disks_that_fill_it() {
        let (learned, told) = follow(8, 200, |disks| (f64::from(disks) * 100.0).min(290.0));
        assert_eq!(learned, Some(3));
        assert_eq!(told.as_deref(), Some("3 disks at once; a 4th gained 0 %"));
    }

    #[test]
    fn a_datastore_that_gives_more_with_each_disk_is_not_limited() {
        let (learned, told) = follow(8, 200, |disks| f64::from(disks) * 100.0);
        assert_eq!(learned, None);
        assert_eq!(told.as_deref(), Some("8 disks at once, as many as may be; 7 read 13 % fewer"));
    }

    /// One host with a VM that takes long and many that do not, which gives so much for so many disks. Gives what is learned of
    /// it, and how many disks are read at once in the end.
    fn beside_a_long_one(looks: usize, rate: impl Fn(u32) -> f64) -> (HostLimits, u32) {
        let mib = |mib: f64| mib * f64::from(1 << 20);
        let mut scheduler = Scheduler::new(Budgets { vms_per_host: 40, ..Budgets::default() });
        let mut learner = Learner::default();
        learner.begin_host("esx", 40, 40);
        let job = |gib: u64| Job {
            host: "esx".into(),
            disks: vec![Disk { bytes: gib << 30, datastore: "ds".into(), pool: None }],
            ..Job::default()
        };
        scheduler.add(Tenant(0), (0..2).map(|_| job(90_000)).chain((0..900).map(|_| job(1))).collect(), 0);
        let mut read = 0.0;
        for _ in 0..looks {
            while scheduler.next(0).is_some() {}
            read += mib(rate(scheduler.disks_held()));
            let of = |resource: &Resource| if *resource == Resource::Host("esx".into()) { read } else { 0.0 };
            learner.look(&mut scheduler, &Look { passed_ms: 1000.0, counts: true, read: &of });
        }
        (scheduler.host_limits("esx"), scheduler.disks_held())
    }

    #[test]
    fn a_host_that_gives_more_than_is_assumed_is_not_held_back_for_its_longest_vm() {
        // Five disks are those of a host with the rate that is assumed.
        let (limits, disks) = beside_a_long_one(40, |disks| (f64::from(disks) * 100.0).min(280.0));
        assert_eq!((limits.rate, disks), (None, 5));
        let (limits, disks) = beside_a_long_one(40, |disks| (f64::from(disks) * 100.0).min(900.0));
        assert_eq!((limits.rate, disks), (Some(900 << 20), 11));
    }

    #[test]
    fn the_rate_of_a_host_is_the_best_that_was_measured_once_nothing_is_tried_any_more() {
        let mut climb = Climb::new(8, 50);
        let mut told = None;
        for _ in 0..100 {
            let disks = climb.limit();
            climb.sample(disks, (f64::from(disks) * 100.0).min(500.0));
            told = told.or(climb.rate().map(|rate| (climb.limit(), rate)));
        }
        assert_eq!(told, Some((5, 500.0)));
        let mut host = One { climb: Some(climb), ..One::default() };
        assert_eq!(host.gives(None, 284), Some(500));
        assert_eq!((host.gives(None, 495), host.gives(None, 700)), (None, Some(500)));
    }

    #[test]
    fn a_datastore_of_one_host_is_that_hosts_affair() {
        assert_eq!(follow(1, 200, thrashing), (None, None));
    }
}
