//! Which way memory goes: the mildest one that keeps the promise, or none, with the reason.

use std::fmt;

use drover_types::{Estimate, count};

use crate::forecast::{Facts, Forecast, Promise};
use crate::watch::Deed;

/// What may be done to keep a promise, beyond sending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// The guest may be slowed down.
    pub throttle: bool,
    /// The guest may run at the target before all of its memory is there. If the line breaks then, it is lost
    /// until the line is back.
    pub postcopy: bool,
}

impl Allowed {
    /// What of this is possible.
    #[must_use]
    pub fn of(self, possible: Allowed) -> Allowed {
        Allowed { throttle: self.throttle && possible.throttle, postcopy: self.postcopy && possible.postcopy }
    }

    /// What of this comes too late for a move that was begun with only so much, in the words of `--allow`.
    #[must_use]
    pub fn too_late(self, begun_with: Allowed) -> Vec<&'static str> {
        let words = [
            (self.throttle && !begun_with.throttle, "throttle"),
            (self.postcopy && !begun_with.postcopy, "postcopy"),
        ];
        words.into_iter().filter(|(is_late, _)| *is_late).map(|(_, word)| word).collect()
    }

    /// What may be done when it does not converge, in its order. Giving up is the last.
    #[must_use]
    pub fn deeds(self) -> Vec<Deed> {
        deeds_after(None, self)
    }
}

/// By which each connection may go beyond a bound, in bytes a second: QEMU looks at what was sent ten times a second, and a
/// connection of many sends packets of 512 KiB. One alone keeps the bound.
const EXCESS_BYTES_PER_S: u64 = 10 * (512 << 10);
/// Share of a bound by which connections may go beyond it together, if their number is chosen here.
const EXCESS_DIVISOR: u64 = 20;

/// By how many bytes a second so many connections may go beyond a bound.
#[must_use]
pub fn excess(channels: u8) -> u64 {
    if channels > 1 { u64::from(channels) * EXCESS_BYTES_PER_S } else { 0 }
}

/// So many of the connections that are wanted that a bound on what is sent (bytes a second) is kept within a twentieth.
#[must_use]
pub fn channels_within(rate_max: u64, wanted: u8) -> u8 {
    let keeps = |channels: &u8| excess(*channels) <= rate_max / EXCESS_DIVISOR;
    (1..=wanted).rev().find(keeps).unwrap_or(1)
}

/// What was measured of the way, besides [`Facts`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Way {
    /// Bytes a second by number of connections, as measured; rising numbers.
    pub channels: Vec<(u8, Estimate)>,
    /// Most connections that both sides can use.
    pub channels_max: u8,
    /// What compressing leaves of memory (0 to 1) and how many bytes a second go in; absent: not measured, or one side cannot.
    pub zstd: Option<(f64, f64)>,
}

/// How memory goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    /// Connections.
    pub channels: u8,
    /// Pages are compressed.
    pub zstd: bool,
    /// What is begun at once, because it was foreseen that nothing milder is enough.
    pub at_once: Option<Deed>,
    /// What is done when it does not converge as foreseen, in this order. Giving up is always the last.
    pub deeds: Vec<Deed>,
}

/// What was chosen, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// How memory goes; absent: the promise cannot be kept.
    pub course: Option<Course>,
    /// What it will take; of the mildest way where none keeps the promise.
    pub forecast: Forecast,
    /// Each way that was looked at, with what came of it, in words.
    pub looked_at: Vec<Looked>,
    /// What it was chosen from.
    pub facts: Facts,
}

/// A way that was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Looked {
    /// What it is.
    pub way: String,
    /// What it would take.
    pub forecast: Forecast,
    /// Whether it keeps the promise.
    pub keeps: bool,
}

impl fmt::Display for Looked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Forecast { total, downtime, passes, converges, .. } = self.forecast;
        let Looked { way, keeps, .. } = self;
        if !converges {
            return write!(f, "{way}: does not converge, {:.1} s of memory would be left", downtime.likely);
        }
        let (low, high) = ((total.likely - total.spread).max(0.0), total.likely + total.spread);
        let verdict = if *keeps { "keeps the promise" } else { "takes too long" };
        write!(
            f,
            "{way}: {:.1} s ({low:.1} to {high:.1}), {}, down {:.0} ms: {verdict}",
            total.likely,
            count(passes as usize, "pass"),
            downtime.likely * 1000.0
        )
    }
}

/// More connections must bring this share more.
const CHANNELS_GAIN: f64 = 0.05;
/// How much a guest is slowed down at most; QEMU goes up to 99 %.
const THROTTLE_SHARES: [f64; 4] = [0.3, 0.5, 0.7, 0.9];

/// The mildest course that keeps the promise.
///
/// In this order: as it is, compressed, slowed down, post-copy. What is allowed and not needed by the forecast stands ready in
/// [`Course::deeds`].
pub fn choose(promise: &Promise, facts: &Facts, way: &Way, allowed: Allowed) -> Choice {
    let (channels, rate) = way.best(facts.rate);
    let facts = Facts { rate, ..*facts };
    let mut looked_at = Vec::new();
    let mut look = |name: String, facts: &Facts| {
        let forecast = facts.forecast(promise);
        let keeps = keeps(&forecast, promise);
        looked_at.push(Looked { way: name, forecast, keeps });
        keeps
    };
    let course = |zstd, at_once| Course { channels, zstd, at_once, deeds: deeds_after(at_once, allowed) };
    let mut found = look(count(channels as usize, "connection"), &facts).then(|| course(false, None));
    let compressed = way.zstd.map(|(left, input_rate)| facts.compressed(left, input_rate));
    let compressed = compressed.filter(|compressed| compressed.rate.likely > facts.rate.likely);
    if let (None, Some(compressed)) = (&found, &compressed) {
        found = look("compressed".into(), compressed).then(|| course(true, None));
    }
    let (best, zstd) = compressed.map_or((facts, false), |compressed| (compressed, true));
    if found.is_none() && allowed.throttle {
        let works =
            |share: &f64| look(format!("slowed down by {:.0} %", share * 100.0), &best.throttled(*share));
        found = THROTTLE_SHARES.iter().any(works).then(|| course(zstd, Some(Deed::Throttle)));
    }
    if found.is_none() && allowed.postcopy {
        // One pass, then the guest moves and the rest follows: it always ends.
        let once = Facts { dirty: Estimate::default(), ..best };
        found =
            look("post-copy after the first pass".into(), &once).then(|| course(zstd, Some(Deed::PostCopy)));
    }
    let chosen = match found {
        Some(_) => looked_at.last(),
        None => looked_at.first(),
    };
    // There is always a first.
    let forecast = chosen.map_or_else(|| facts.forecast(promise), |looked| looked.forecast);
    Choice { course: found, forecast, looked_at, facts }
}

/// Whether a forecast keeps a promise, at its worse end.
fn keeps(forecast: &Forecast, promise: &Promise) -> bool {
    let worst = forecast.total.likely + forecast.total.spread;
    let down_s = promise.downtime_max.as_secs_f64();
    forecast.converges && worst <= promise.deadline.as_secs_f64() && forecast.downtime.likely <= down_s
}

/// What may follow on what is begun at once, and giving up.
fn deeds_after(at_once: Option<Deed>, allowed: Allowed) -> Vec<Deed> {
    let throttle = (allowed.throttle && at_once.is_none()).then_some(Deed::Throttle);
    let postcopy = (allowed.postcopy && at_once != Some(Deed::PostCopy)).then_some(Deed::PostCopy);
    throttle.into_iter().chain(postcopy).chain([Deed::GiveUp]).collect()
}

impl Way {
    /// The fewest connections that carry about as much as any number does.
    fn best(&self, otherwise: Estimate) -> (u8, Estimate) {
        let possible = || self.channels.iter().filter(|(number, _)| *number <= self.channels_max.max(1));
        let most = possible().map(|(_, rate)| rate.likely).fold(0.0, f64::max);
        let enough = possible().find(|(_, rate)| rate.likely >= most * (1.0 - CHANNELS_GAIN));
        enough.copied().unwrap_or((1, otherwise))
    }
}

impl Facts {
    /// The same facts with memory compressed: `left` of it remains, and the processors take in so many bytes a second.
    fn compressed(&self, left: f64, input_rate: f64) -> Facts {
        let faster = |rate: f64| (rate / left.clamp(0.01, 1.0)).min(input_rate);
        let likely = faster(self.rate.likely);
        let spread = (faster(self.rate.likely + self.rate.spread) - likely)
            .max(likely - faster(self.rate.likely - self.rate.spread));
        Facts { rate: Estimate { likely, spread: spread.max(likely * ZSTD_SPREAD) }, ..*self }
    }
}

/// Memory is not alike everywhere.
const ZSTD_SPREAD: f64 = 0.2;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::forecast::SoFar;

    const GIB: u64 = 1 << 30;
    const MB: f64 = 1e6;

    #[test]
    fn a_move_that_is_taken_over_does_what_is_allowed_and_was_allowed_when_it_began() {
        let both = Allowed { throttle: true, postcopy: true };
        let one = Allowed { throttle: false, postcopy: true };
        assert_eq!(both.deeds(), [Deed::Throttle, Deed::PostCopy, Deed::GiveUp]);
        assert_eq!(both.of(one).deeds(), [Deed::PostCopy, Deed::GiveUp]);
        assert_eq!(one.of(Allowed::default()).deeds(), [Deed::GiveUp]);
    }

    #[test]
    fn a_bound_on_what_is_sent_takes_connections_away() {
        let within = |megabytes: u64| channels_within(megabytes * 1_000_000, 4);
        assert_eq!([1, 37, 125, 209].map(within), [1; 4]);
        assert_eq!([210, 314, 315, 420, 1_250].map(within), [2, 2, 3, 4, 4]);
        assert_eq!((channels_within(0, 255), channels_within(u64::MAX, 255)), (1, 255));
    }

    fn promise(deadline_s: u64) -> Promise {
        Promise { downtime_max: Duration::from_millis(300), deadline: Duration::from_secs(deadline_s) }
    }

    fn exactly(likely: f64) -> Estimate {
        Estimate { likely, spread: 0.0 }
    }

    fn facts(dirty: f64) -> Facts {
        Facts {
            used_bytes: GIB,
            memory_bytes: GIB,
            dirty: exactly(dirty),
            working_set_bytes: GIB,
            rate: exactly(100.0 * MB),
            overhead: exactly(0.02),
            so_far: SoFar::default(),
        }
    }

    fn way() -> Way {
        let channels = vec![(1, exactly(40.0 * MB)), (2, exactly(99.0 * MB)), (4, exactly(100.0 * MB))];
        Way { channels, channels_max: 16, zstd: None }
    }

    const ALL: Allowed = Allowed { throttle: true, postcopy: true };

    #[test]
    fn the_fewest_connections_that_fill_the_line() {
        let choice = choose(&promise(60), &facts(0.0), &way(), Allowed::default());
        let course = choice.course.unwrap();
        assert_eq!((course.channels, course.zstd), (2, false));
        assert_eq!(course.deeds, [Deed::GiveUp]);
        let one = Way { channels_max: 1, ..way() };
        assert_eq!(choose(&promise(60), &facts(0.0), &one, ALL).course.unwrap().channels, 1);
    }

    #[test]
    fn what_is_allowed_stands_ready_in_order() {
        let course = choose(&promise(60), &facts(10.0 * MB), &way(), ALL).course.unwrap();
        assert_eq!(course.deeds, [Deed::Throttle, Deed::PostCopy, Deed::GiveUp]);
    }

    #[test]
    fn compression_comes_before_anything_that_the_guest_feels() {
        let way = Way { zstd: Some((0.25, 500.0 * MB)), ..way() };
        let choice = choose(&promise(60), &facts(150.0 * MB), &way, ALL);
        assert!(choice.course.unwrap().zstd);
        assert_eq!(choice.looked_at.len(), 2);
        assert!(!choice.looked_at[0].keeps && choice.looked_at[1].keeps);
    }

    #[test]
    fn compression_that_is_slower_than_the_line_is_none() {
        let way = Way { zstd: Some((0.25, 50.0 * MB)), ..way() };
        let choice = choose(&promise(60), &facts(150.0 * MB), &way, ALL);
        assert!(!choice.course.unwrap().zstd);
    }

    #[test]
    fn a_hot_guest_is_slowed_down_no_more_than_needed() {
        let choice = choose(&promise(60), &facts(150.0 * MB), &way(), ALL);
        let course = choice.course.unwrap();
        assert_eq!(
            (course.at_once, course.deeds),
            (Some(Deed::Throttle), vec![Deed::PostCopy, Deed::GiveUp])
        );
        let ways: Vec<&str> = choice.looked_at.iter().map(|looked| looked.way.as_str()).collect();
        assert_eq!(ways.last(), Some(&"slowed down by 50 %"), "{ways:?}");
    }

    #[test]
    fn without_leave_a_hot_guest_is_refused_with_what_was_looked_at() {
        let choice = choose(&promise(60), &facts(500.0 * MB), &way(), Allowed::default());
        assert_eq!(choice.course, None);
        assert!(
            choice.looked_at[0].to_string().starts_with("2 connections: does not converge"),
            "{}",
            choice.looked_at[0]
        );
    }

    #[test]
    fn a_deadline_that_one_pass_breaks_is_refused_whatever_is_allowed() {
        let choice = choose(&promise(5), &facts(0.0), &way(), ALL);
        assert_eq!(choice.course, None);
        assert!(choice.looked_at.iter().all(|looked| !looked.keeps), "{:?}", choice.looked_at);
    }

    #[test]
    fn post_copy_is_last() {
        let choice = choose(&promise(60), &facts(5000.0 * MB), &way(), ALL);
        let course = choice.course.unwrap();
        assert_eq!((course.at_once, course.deeds), (Some(Deed::PostCopy), vec![Deed::GiveUp]));
    }
}
