//! How many disks of a host, or of a datastore, are worth reading at once: found by measuring.

use std::collections::BTreeMap;
use std::fmt;

use drover_types::count;

/// A gain that is smaller is none: more disks at once would only make each of them slower.
pub const GAIN_MIN: f64 = 0.02;
/// Noise beyond this is taken for change.
const NOISE_MAX: f64 = 0.04;
/// Samples that a number of disks is judged by.
pub const SAMPLES: u32 = 4;
/// Samples after which the numbers beside the chosen one are tried anew: what was true of a host changes.
pub const SAMPLES_KEPT: u32 = 120;
/// Samples after which an old one has lost half of its weight.
const WEIGHT: f64 = 0.25;

/// Finds the smallest number of disks at once whose sum of rates is not less than the best by more than the noise.
///
/// It begins with a number, measures, and tries one that is greater and one that is smaller, with steps that become smaller until
/// they are one. A greater number is kept if the sum grows by more than the noise, a smaller one if it does not shrink.
#[derive(Clone, Debug)]
pub struct Climb {
    max: u32,
    start: u32,
    limit: u32,
    step: u32,
    measured: BTreeMap<u32, Measured>,
    /// Samples since the last change of mind.
    settled: u32,
    /// Samples in a row in which fewer were read than may be.
    short: u32,
    /// As many as could be read when more were let in: something else limits them.
    reach: u32,
    /// Whether the numbers beside the chosen one were measured.
    is_settled: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    samples: u32,
    /// Bytes a second.
    rate: f64,
    /// Mean difference of a sample from it.
    spread: f64,
}

impl Measured {
    fn add(&mut self, rate: f64) {
        self.samples = self.samples.saturating_add(1);
        let weight = WEIGHT.max(1.0 / f64::from(self.samples));
        self.spread +=
            ((rate - self.rate).abs() * f64::from((self.samples > 1) as u8) - self.spread) * weight;
        self.rate += (rate - self.rate) * weight;
    }

    /// How far the rate may be off, as a part of it.
    fn noise(&self) -> f64 {
        let off = 2.0 * self.spread / f64::from(self.samples.clamp(1, SAMPLES)).sqrt();
        (off / self.rate.max(1.0)).clamp(GAIN_MIN, NOISE_MAX)
    }
}

/// What was found, for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// Disks at once.
    pub disks: u32,
    /// Whether it is as many as there may be.
    pub is_most: bool,
    /// A greater number that was tried, and what it gained as a part of the sum.
    pub more: Option<(u32, f64)>,
    /// A smaller number that was tried, and what it gained.
    pub fewer: Option<(u32, f64)>,
}

impl Climb {
    /// Begins with `start` disks; never more than `max`, which is what the budgets allow.
    pub fn new(start: u32, max: u32) -> Climb {
        let max = max.max(1);
        let limit = start.clamp(1, max);
        Climb {
            max,
            start: limit,
            limit,
            step: (limit / 2).max(1),
            measured: BTreeMap::new(),
            settled: 0,
            short: 0,
            reach: u32::MAX,
            is_settled: false,
        }
    }

    /// Disks that may be read at once now.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The number that it began with.
    pub fn started_at(&self) -> u32 {
        self.start
    }

    /// Whether nothing is tried for now.
    pub fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// The greatest sum of rates that was measured, in bytes a second; absent while something is tried.
    pub fn rate(&self) -> Option<f64> {
        let judged = self.measured.values().filter(|it| it.samples >= SAMPLES).map(|it| it.rate);
        judged.max_by(f64::total_cmp).filter(|_| self.is_settled)
    }

    /// Whether something else limits the disks to as many as this does.
    pub fn is_at_reach(&self) -> bool {
        self.limit >= self.reach
    }

    /// The budgets allow so many from now on.
    pub fn set_max(&mut self, max: u32) {
        self.max = max.max(1);
        self.limit = self.limit.min(self.max);
        self.measured.retain(|disks, _| *disks <= self.max);
    }

    /// In one more span of time so many disks were read at once, all the while, with this sum of rates in bytes a second.
    /// Where fewer are read than may be, by more than an eighth and [`SAMPLES`] times in a row, because all VMs that the host may
    /// serve run, more are not tried. Gives the limit from now on.
    pub fn sample(&mut self, disks: u32, rate: f64) -> u32 {
        let is_near = disks <= self.limit && self.limit - disks <= self.limit / 8;
        self.short = if is_near || disks > self.limit { 0 } else { self.short + 1 };
        if self.short >= SAMPLES {
            (self.reach, self.short) = (disks.max(1), 0);
            self.limit = self.limit.min(self.reach);
        }
        if !is_near || !rate.is_finite() || rate <= 0.0 {
            return self.limit;
        }
        let measured = self.measured.entry(self.limit).or_default();
        measured.add(rate);
        self.settled += 1;
        if measured.samples >= SAMPLES {
            self.choose();
        }
        self.limit
    }

    fn choose(&mut self) {
        let wanted = self.best();
        let next = loop {
            if let Some(next) = self.untried(wanted) {
                break next;
            }
            if self.step == 1 {
                break wanted;
            }
            self.step /= 2;
        };
        self.is_settled = next == self.limit;
        if self.is_settled {
            self.look_again_at_times();
            return;
        }
        (self.limit, self.settled) = (next, 0);
    }

    /// The smallest number that is as good as the best.
    fn best(&self) -> u32 {
        let judged = || self.measured.iter().filter(|(_, it)| it.samples >= SAMPLES);
        let peak = judged().map(|(_, it)| it).max_by(|a, b| a.rate.total_cmp(&b.rate));
        let enough = peak.map_or(0.0, |peak| peak.rate * (1.0 - peak.noise()));
        judged().find(|(_, it)| it.rate >= enough).map_or(self.limit, |(disks, _)| *disks)
    }

    /// A number beside this one that is still to be measured; the greater first.
    fn untried(&self, disks: u32) -> Option<u32> {
        let (more, fewer) = (
            (disks + self.step).min(self.max).min(self.reach.max(disks)),
            disks.saturating_sub(self.step).max(1),
        );
        let is_new = |it: &u32| *it != disks && self.measured.get(it).is_none_or(|it| it.samples < SAMPLES);
        [more, fewer].into_iter().find(is_new)
    }

    fn look_again_at_times(&mut self) {
        if self.settled >= SAMPLES_KEPT {
            let limit = self.limit;
            self.measured.retain(|disks, _| *disks == limit);
            (self.settled, self.reach, self.is_settled) = (0, u32::MAX, false);
        }
    }

    /// What was found.
    pub fn found(&self) -> Found {
        let disks = self.best();
        let here = self.measured.get(&disks).map_or(0.0, |it| it.rate);
        let judged = |it: &(&u32, &Measured)| it.1.samples >= SAMPLES && here > 0.0;
        let gain = |(disks, it): (&u32, &Measured)| (*disks, it.rate / here - 1.0);
        Found {
            disks,
            is_most: disks == self.max,
            more: self.measured.range(disks + 1..).find(judged).map(gain),
            fewer: self.measured.range(..disks).rfind(judged).map(gain),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |gain: f64| (gain.abs() * 100.0).round();
        write!(f, "{} at once", count(self.disks as usize, "disk"))?;
        match (self.more, self.fewer) {
            (Some((more, gain)), _) => {
                let change = if gain < 0.0 { "lost" } else { "gained" };
                write!(f, "; {} {change} {} %", ordinal(more, self.disks), percent(gain))
            }
            (None, Some((fewer, gain))) => {
                let most = if self.is_most { ", as many as may be" } else { "" };
                let change = if gain < 0.0 { "fewer" } else { "more" };
                write!(f, "{most}; {fewer} read {} % {change}", percent(gain))
            }
            (None, None) if self.is_most => f.write_str(", as many as may be; not measured yet"),
            (None, None) => f.write_str("; not measured yet"),
        }
    }
}

/// `an 8th` for one more, `12` otherwise.
fn ordinal(more: u32, than: u32) -> String {
    if more != than + 1 {
        return more.to_string();
    }
    let end = match (more % 10, more % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    let article = if more == 8 || more == 11 || more == 18 || (80..90).contains(&more) { "an" } else { "a" };
    format!("{article} {more}{end}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Follows a host for so many samples; gives the numbers it allowed.
    fn follow(climb: &mut Climb, samples: usize, mut rate: impl FnMut(u32) -> f64) -> Vec<u32> {
        (0..samples).map(|_| climb.sample(climb.limit(), rate(climb.limit()))).collect()
    }

    fn found(start: u32, max: u32, rate: impl FnMut(u32) -> f64) -> (u32, String) {
        let mut climb = Climb::new(start, max);
        follow(&mut climb, 100, rate);
        (climb.limit(), climb.found().to_string())
    }

    /// A host that serves 100 MiB/s a disk up to its own limit.
    fn capped(host: f64) -> impl Fn(u32) -> f64 {
        move |disks| (f64::from(disks) * 100.0).min(host)
    }

    #[test]
    fn it_ends_at_the_fewest_disks_that_reach_what_a_host_gives() {
        for start in [1, 4, 20, 50] {
            assert_eq!(found(start, 50, capped(700.0)).0, 7, "from {start}");
            assert_eq!(found(start, 50, capped(290.0)).0, 3, "from {start}");
        }
        assert_eq!(found(6, 50, capped(700.0)).1, "7 disks at once; an 8th gained 0 %");
    }

    #[test]
    fn it_takes_all_that_it_may_where_each_disk_more_gains() {
        let (limit, words) = found(20, 20, capped(1e9));
        assert_eq!((limit, words.as_str()), (20, "20 disks at once, as many as may be; 19 read 5 % fewer"));
        // The published figures of one host: 100 MiB/s with one VM, 272 with ten, 284 with twenty.
        let published = |disks: u32| 290.0 * f64::from(disks) / (f64::from(disks) + 1.9);
        assert!(found(20, 20, published).0 >= 14);
    }

    #[test]
    fn fewer_are_read_where_more_make_it_slower() {
        let thrashing = |disks: u32| f64::from(disks) * 100.0 / (1.0 + (f64::from(disks) / 5.0).powi(3));
        let (limit, words) = found(16, 50, thrashing);
        assert!((3..=5).contains(&limit), "{limit}");
        assert!(words.contains("lost"), "{words}");
    }

    #[test]
    fn noise_does_not_lead_it_far_astray() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let mut noisy = |disks| capped(700.0)(disks) * (0.98 + 0.04 * random.part());
            let mut climb = Climb::new(20, 50);
            follow(&mut climb, 200, &mut noisy);
            let least = follow(&mut climb, 200, &mut noisy).into_iter().map(|disks| capped(700.0)(disks));
            let mean = least.sum::<f64>() / 200.0;
            assert!(mean > 0.9 * 700.0, "seed {seed}: {mean}");
        }
    }

    #[test]
    fn it_finds_a_host_that_became_faster() {
        let mut climb = Climb::new(8, 50);
        follow(&mut climb, 100, capped(300.0));
        assert_eq!(climb.limit(), 3);
        follow(&mut climb, 600, capped(900.0));
        assert!((8..=10).contains(&climb.limit()), "{}", climb.limit());
    }

    #[test]
    fn it_never_leaves_its_bounds() {
        let mut climb = Climb::new(90, 12);
        assert!(follow(&mut climb, 300, capped(1e9)).iter().all(|limit| (1..=12).contains(limit)));
        climb.set_max(5);
        assert!(follow(&mut climb, 300, capped(1e9)).iter().all(|limit| (1..=5).contains(limit)));
        climb.set_max(0);
        assert_eq!(climb.limit(), 1);
    }

    #[test]
    fn more_than_can_be_read_are_not_tried_and_fewer_are() {
        // Slots of VMs keep it at 20.
        let mut climb = Climb::new(20, 50);
        (0..300).for_each(|_| {
            let disks = climb.limit().min(20);
            climb.sample(disks, capped(700.0)(disks));
        });
        assert_eq!(climb.limit(), 7);
        let mut idle = Climb::new(4, 50);
        assert_eq!((idle.sample(2, 500.0), idle.sample(2, 500.0)), (4, 4), "a moment tells nothing");
        assert_eq!(idle.found().to_string(), "4 disks at once; not measured yet");
    }

    #[test]
    fn ordinals_are_english() {
        let said = [2, 3, 8, 11, 12, 21, 22, 80, 112].map(|more| ordinal(more, more - 1));
        assert_eq!(
            said,
            ["a 2nd", "a 3rd", "an 8th", "an 11th", "a 12th", "a 21st", "a 22nd", "an 80th", "a 112th"]
        );
    }
}
