//! What is foreseen of one move: before it, when its line is known, and when that is in full swing.

use drover_types::Estimate;

use crate::choose::{Allowed, Choice, Way, choose};
use crate::forecast::{Facts, Forecast, Promise, SoFar};
use crate::watch::Sample;

/// A line of which nothing is known: what a LAN carries, give or take. It is measured by the first second of sending.
pub const LINE_ASSUMED: Estimate = Estimate { likely: 1e9, spread: 0.5e9 };
/// How far off a rate is that was measured by looking at some pages for a second.
const DIRTY_SPREAD: f64 = 0.25;
/// Of the rate that somebody says that a line has.
const SAID_SPREAD: f64 = 0.1;
/// Of a line that is measured by a second of sending.
const LINE_SPREAD: f64 = 0.2;
/// A move that is foreseen to take no longer may be over before its line is known.
const SOON_S: f64 = 3.0;
/// What is foreseen is told again if it is off by more.
const NEWS_SHARE: f64 = 0.05;

/// What a line carries that somebody says to carry so many bytes a second.
#[must_use]
pub fn line_said(likely: f64) -> Estimate {
    Estimate { likely, spread: likely * SAID_SPREAD }
}

/// What is known of a guest before it moves: it writes so many bytes a second, where that was told.
#[must_use]
pub fn facts_before(memory_bytes: u64, dirty: Option<f64>, overhead: Estimate) -> Facts {
    let dirty = dirty.map(|rate| Estimate { likely: rate, spread: rate * DIRTY_SPREAD });
    Facts {
        used_bytes: memory_bytes,
        memory_bytes,
        dirty: dirty.unwrap_or_default(),
        working_set_bytes: memory_bytes,
        rate: LINE_ASSUMED,
        overhead,
        so_far: SoFar::default(),
    }
}

/// The same of one that is on its way already.
#[must_use]
pub fn facts_under_way(sample: &Sample, overhead: Estimate) -> Facts {
    let dirty = Estimate { likely: sample.dirty_bytes_per_s as f64, spread: 0.0 };
    Facts { dirty, ..facts_before(sample.left_bytes, None, overhead) }
}

/// What is known of a move once its line was measured: how much of its memory holds something was seen meanwhile (a share of what is
/// left), and how fast the guest writes, if it was not before.
fn known_on_the_way(facts: &Facts, rate: f64, sample: &Sample, share_in_use: f64) -> Facts {
    let dirty = match facts.dirty.likely > 0.0 {
        true => facts.dirty,
        false => Estimate { likely: sample.dirty_bytes_per_s as f64, spread: 0.0 },
    };
    let left_bytes = (sample.left_bytes as f64 * share_in_use) as u64;
    let so_far = SoFar { seconds: sample.at_ms as f64 / 1000.0, gone_bytes: sample.gone_bytes };
    let used_bytes = sample.gone_bytes.saturating_add(left_bytes);
    Facts { rate: Estimate { likely: rate, spread: rate * LINE_SPREAD }, dirty, used_bytes, so_far, ..*facts }
}

/// What is foreseen of one move.
#[derive(Clone, Debug)]
pub struct Outlook {
    promise: Promise,
    allowed: Allowed,
    /// Bytes a second that the line carries, where that was said.
    line: Option<Estimate>,
    foreseen: Forecast,
    /// Seconds below which it is foreseen to stay, until its line is known.
    below_s: Option<f64>,
    /// That there is only a bound until then was said.
    has_told_bound: bool,
    /// What a move that has begun was chosen from, until its line is known.
    to_look_at: Option<Facts>,
    /// The same, for as long as it is sent.
    chosen_from: Option<Facts>,
}

/// Another choice, that is to be told.
#[derive(Clone, Debug, PartialEq)]
pub struct Foreseen {
    /// What is chosen now.
    pub choice: Choice,
    /// The line is known now, so whether the promise can be kept is, too; else only what it will take is known better.
    pub is_binding: bool,
}

impl Outlook {
    /// Of a move with this promise.
    #[must_use]
    pub fn new(promise: Promise, allowed: Allowed, line: Option<Estimate>) -> Outlook {
        Outlook {
            promise,
            allowed,
            line,
            foreseen: Forecast::default(),
            below_s: None,
            has_told_bound: false,
            to_look_at: None,
            chosen_from: None,
        }
    }

    /// What the line carries, as it was said or is assumed.
    #[must_use]
    pub fn line(&self) -> Estimate {
        self.line.unwrap_or(LINE_ASSUMED)
    }

    /// How it goes, by so many connections.
    #[must_use]
    pub fn choose(&self, facts: &Facts, channels: u8) -> Choice {
        let way = Way { channels: vec![(channels, facts.rate)], channels_max: channels, zstd: None };
        choose(&self.promise, facts, &way, self.allowed)
    }

    /// Seconds below which a move that was chosen so stays, where it may be over before its line is known. Told once.
    pub fn bound(&mut self, choice: &Choice) -> Option<f64> {
        let below_s = choice.forecast.below_s();
        let is_soon = self.line.is_none() && below_s <= SOON_S;
        (is_soon && !std::mem::replace(&mut self.has_told_bound, true)).then_some(below_s)
    }

    /// It begins, as chosen.
    pub fn begins(&mut self, choice: &Choice, facts: &Facts) {
        self.foreseen = choice.forecast;
        self.below_s = self.line.is_none().then(|| choice.forecast.below_s());
        self.to_look_at = self.line.is_none().then_some(*facts);
        self.chosen_from = Some(*facts);
    }

    /// Memory is on its way: what is chosen and foreseen now, where that is known better. `rate` is what the line was measured to
    /// carry, `full_swing` the same after streams have grown.
    pub fn see(
        &mut self,
        (sample, share_in_use): (&Sample, f64),
        (rate, full_swing): (Option<f64>, Option<f64>),
        channels: u8,
    ) -> Option<Foreseen> {
        if let Some(rate) = rate
            && let Some(facts) = self.to_look_at.take()
        {
            let choice = self.choose(&known_on_the_way(&facts, rate, sample, share_in_use), channels);
            (self.foreseen, self.below_s) = (choice.forecast, None);
            return Some(Foreseen { choice, is_binding: true });
        }
        let (facts, rate) = (self.chosen_from?, full_swing?);
        let choice = self.choose(&known_on_the_way(&facts, rate, sample, share_in_use), channels);
        is_news(&self.foreseen, &choice.forecast).then(|| {
            self.foreseen = choice.forecast;
            Foreseen { choice, is_binding: false }
        })
    }

    /// What is foreseen now.
    #[must_use]
    pub fn foreseen(&self) -> Forecast {
        self.foreseen
    }

    /// Seconds below which it is foreseen to stay, where its line is not known yet.
    #[must_use]
    pub fn below_s(&self) -> Option<f64> {
        self.below_s
    }
}

/// Whether another forecast is worth being told.
fn is_news(before: &Forecast, now: &Forecast) -> bool {
    let (before_s, now_s) = (before.total.likely, now.total.likely);
    before.converges != now.converges || (now_s - before_s).abs() > before_s * NEWS_SHARE
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MB: f64 = 1e6;
    const GIB: u64 = 1 << 30;

    fn outlook(line: Option<f64>) -> Outlook {
        let promise =
            Promise { downtime_max: Duration::from_millis(300), deadline: Duration::from_secs(600) };
        Outlook::new(
            promise,
            Allowed::default(),
            line.map(|likely| Estimate { likely, spread: likely / 10.0 }),
        )
    }

    fn facts(dirty: f64) -> Facts {
        facts_before(GIB, Some(dirty), Estimate { likely: 0.03, spread: 0.02 })
    }

    fn sample(at_ms: u64) -> Sample {
        let gone_bytes = at_ms * 100_000;
        Sample {
            at_ms,
            gone_bytes,
            sent_bytes: gone_bytes,
            left_bytes: GIB - gone_bytes,
            passes: 1,
            ..Sample::default()
        }
    }

    #[test]
    fn a_line_of_which_nothing_was_said_binds_once_it_is_measured_and_only_once() {
        let mut one = outlook(None);
        one.begins(&one.choose(&facts(50.0 * MB), 4), &facts(50.0 * MB));
        assert!(one.below_s().is_some());
        assert_eq!(one.see((&sample(500), 1.0), (None, None), 4), None);
        let found = one.see((&sample(1000), 1.0), (Some(100.0 * MB), None), 4).unwrap();
        assert!(found.is_binding && found.choice.course.is_some());
        assert_eq!((one.below_s(), one.foreseen()), (None, found.choice.forecast));
        assert_eq!(one.see((&sample(1100), 1.0), (Some(1.0 * MB), None), 4), None);
    }

    #[test]
    fn a_line_that_carries_too_little_breaks_the_promise_as_soon_as_it_is_measured() {
        let mut one = outlook(None);
        one.begins(&one.choose(&facts(50.0 * MB), 4), &facts(50.0 * MB));
        let found = one.see((&sample(1000), 1.0), (Some(10.0 * MB), None), 4).unwrap();
        assert!(found.is_binding && found.choice.course.is_none());
    }

    #[test]
    fn a_line_that_was_said_binds_from_the_begin_and_news_of_it_are_told_only_if_they_are_news() {
        let mut one = outlook(Some(100.0 * MB));
        let first = Facts { rate: one.line(), ..facts(0.0) };
        one.begins(&one.choose(&first, 4), &first);
        assert_eq!(one.see((&sample(1000), 1.0), (Some(10.0 * MB), None), 4), None);
        assert_eq!(one.see((&sample(1000), 1.0), (None, Some(100.0 * MB)), 4), None);
        let found = one.see((&sample(2000), 1.0), (None, Some(50.0 * MB)), 4).unwrap();
        assert!(!found.is_binding && found.choice.forecast.total.likely > 15.0, "{found:?}");
    }

    #[test]
    fn memory_that_holds_nothing_and_writes_that_are_seen_on_the_way_are_in_the_forecast() {
        let mut one = outlook(None);
        one.begins(&one.choose(&facts(0.0), 4), &facts(0.0));
        let seen = Sample { dirty_bytes_per_s: 5_000_000, ..sample(1000) };
        let found = one.see((&seen, 0.5), (Some(100.0 * MB), None), 4).unwrap();
        assert_eq!(found.choice.facts.dirty.likely, 5.0 * MB);
        assert!(found.choice.facts.used_bytes < GIB * 6 / 10);
    }

    #[test]
    fn that_a_move_may_be_over_before_its_line_is_known_is_told_once() {
        let mut one = outlook(None);
        let choice = one.choose(&facts(0.0), 4);
        assert!(one.bound(&choice).is_some() && one.bound(&choice).is_none());
        assert_eq!(outlook(Some(1e9)).bound(&choice), None);
    }
}
