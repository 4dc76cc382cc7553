//! When a copy in passes has converged: what the last one will take, and so when it may begin.
//!
//! One rule for everything that is copied while it changes. Bytes change at some rate and are copied at
//! another; each pass leaves behind what changed while it ran. Both rates are measured, smoothed, and
//! known with their spread, and from them follows how long the machine would be down if the last pass
//! began now. Pure: the time comes in as an argument.

use std::time::Duration;

use drover_types::{Estimate, PassSpan, makes_trend};

/// A completed pass.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassFacts {
    /// When it began, in milliseconds since some moment.
    pub began_ms: i64,
    /// When the state it copied was frozen.
    pub frozen_ms: i64,
    /// What copying took.
    pub copying: Duration,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes that were to be looked at because they may have changed since the pass before; absent if
    /// that is not known, as for the first pass and for one that read everything.
    pub areas_bytes: Option<u64>,
}

impl PassFacts {
    fn span(&self) -> PassSpan {
        PassSpan { began_ms: self.began_ms, ended_ms: self.frozen_ms.saturating_add(millis(self.copying)) }
    }
}

/// A guest that was never seen shutting down: what is decided goes by this, and forecasts of a downtime say that they leave it
/// out.
pub const UNSEEN_SHUTDOWN: Estimate = Estimate { likely: 30.0, spread: 20.0 };
/// A machine that was never seen starting; likewise.
pub const UNSEEN_BOOT: Estimate = Estimate { likely: 5.0, spread: 5.0 };

/// What a downtime has in it besides the last pass.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Costs {
    /// From the wish to shut down to a machine that is off.
    pub shutdown: Estimate,
    /// Until a frozen state stands.
    pub freeze: Estimate,
    /// All that is done between the last pass and the start: verification, conversion.
    pub prove: Estimate,
    /// Until the target runs.
    pub boot: Estimate,
    /// What earlier forecasts of whole downtimes were off by, in seconds ([`off_by`]); absent where too few are known.
    /// It is worth more than what the parts may be off by: that they are late together, and that some never are, is in it.
    pub off_by: Option<f64>,
}

/// What eight of ten forecasts are off by at most, in seconds, by what earlier ones were: the smallest distance that so
/// many of them kept to that the next one does so with that chance, if it is of their kind. Nothing of too few.
pub fn off_by(errors: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut errors: Vec<f64> = errors.into_iter().map(f64::abs).collect();
    errors.sort_by(f64::total_cmp);
    let rank = ((errors.len() + 1) as f64 * SHARE_INSIDE).ceil() as usize;
    errors.get(rank.checked_sub(1)?).copied()
}

/// From P10 to P90.
const SHARE_INSIDE: f64 = 0.8;

/// What measuring told so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trend {
    /// Bytes that change per second.
    pub churn: Estimate,
    /// Bytes that are copied per second.
    pub rate: f64,
    /// Seconds that a pass takes whatever it copies.
    pub fixed_s: f64,
    /// Passes after the first whose areas were known.
    pub deltas: usize,
    /// What the next pass reads if it reads everything, as the last one did though it was not the first.
    all_bytes: Option<u64>,
    last: PassFacts,
}

/// A pass that read less says more of delays than of a rate.
const RATE_BYTES_MIN: u64 = 16 << 20;

impl Trend {
    /// What passes in order tell; nothing before the first.
    pub fn of(passes: &[PassFacts]) -> Option<Trend> {
        let last = *passes.last()?;
        let gap = |pair: &[PassFacts]| (pair[1].frozen_ms - pair[0].frozen_ms).max(1) as f64 / 1000.0;
        let churns: Vec<f64> =
            passes.windows(2).filter_map(|pair| Some(pair[1].areas_bytes? as f64 / gap(pair))).collect();
        let speed = |pass: &PassFacts| pass.read_bytes as f64 / pass.copying.as_secs_f64().max(0.001);
        let tell_a_rate = passes.iter().filter(|pass| pass.read_bytes >= RATE_BYTES_MIN);
        let most = || passes.iter().max_by_key(|pass| pass.read_bytes).map(speed);
        let rate = Estimate::smoothed(tell_a_rate.map(speed)).map(|rate| rate.likely).or_else(most)?;
        let rate = rate.max(1.0);
        let over = |pass: &PassFacts| (pass.copying.as_secs_f64() - pass.read_bytes as f64 / rate).max(0.0);
        let deltas = passes.iter().skip(1).filter(|pass| pass.areas_bytes.is_some());
        let fixed_s = Estimate::smoothed(deltas.map(over)).map_or(0.0, |over| over.likely);
        let churn = Estimate::smoothed(churns.iter().copied()).unwrap_or_default();
        let all_bytes = (passes.len() > 1 && last.areas_bytes.is_none()).then_some(last.read_bytes);
        Some(Trend { churn, rate, fixed_s, deltas: churns.len(), all_bytes, last })
    }

    /// Seconds that a pass takes which begins so long after the last state was frozen.
    fn pass_s(&self, since_frozen_s: f64) -> f64 {
        self.fixed_s + self.pass_bytes(since_frozen_s) / self.rate
    }

    fn pass_bytes(&self, since_frozen_s: f64) -> f64 {
        self.all_bytes.map_or(self.churn.likely * since_frozen_s, |bytes| bytes as f64)
    }

    /// Whether it changes about as fast as it is copied, so that passes leave as much as they bring.
    pub fn is_hopeless(&self) -> bool {
        makes_trend(self.deltas) && self.churn.likely >= self.rate * HOPELESS_SHARE
    }

    /// What reading the last pass back takes if it begins now, where nothing of that was measured: as long as copying it.
    pub fn unmeasured_proof(&self, now_ms: i64) -> Estimate {
        let since_frozen_s = (now_ms - self.last.frozen_ms).max(0) as f64 / 1000.0;
        let delta_s = self.pass_s(since_frozen_s);
        Estimate { likely: delta_s, spread: delta_s }
    }

    /// How long the machine would be down if the last pass began now.
    pub fn forecast(&self, costs: &Costs, now_ms: i64) -> Forecast {
        let since_frozen = (now_ms - self.last.frozen_ms).max(0) as f64 / 1000.0;
        self.forecast_after(costs, since_frozen)
    }

    fn forecast_after(&self, costs: &Costs, since_frozen_s: f64) -> Forecast {
        let open_s = since_frozen_s + costs.shutdown.likely;
        let bytes = self.pass_bytes(open_s);
        let delta_s = self.pass_s(open_s);
        let spread_of_bytes = self.churn.spread * open_s + self.churn.likely * costs.shutdown.spread;
        let delta =
            Estimate { likely: delta_s, spread: spread_of_bytes / self.rate + delta_s * SPREAD_OF_RATE };
        let [shutdown, freeze, prove, boot] = costs.parts();
        let (likely, spread) = sum_of(&[shutdown, freeze, delta, prove, boot]);
        let spread = costs.off_by.map_or(spread, |off_by| off_by.max(delta.spread));
        Forecast {
            likely: seconds(likely),
            low: seconds((likely - spread).max(0.0)),
            high: seconds(likely + spread),
            delta_bytes: bytes as u64,
        }
    }
}

impl Costs {
    fn parts(&self) -> [Estimate; 4] {
        [self.shutdown, self.freeze, self.prove, self.boot]
    }

    /// The most that is to be expected of all parts together.
    fn high(&self) -> Duration {
        let (likely, spread) = sum_of(&self.parts());
        seconds(likely + self.off_by.unwrap_or(spread))
    }
}

/// The sum of parts that go wrong independently of each other, and how far off it may well be.
fn sum_of(parts: &[Estimate]) -> (f64, f64) {
    let likely = parts.iter().map(|part| part.likely).sum();
    (likely, parts.iter().map(|part| part.spread * part.spread).sum::<f64>().sqrt())
}

/// How far off the measured rate may be when it counts, as a share of it.
const SPREAD_OF_RATE: f64 = 0.25;
/// Changes at this share of the copy's rate leave no gain worth a snapshot.
const HOPELESS_SHARE: f64 = 0.8;

/// What measuring says of the way a machine is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Even if nothing had changed, the machine would be down for longer than it may: it never fits.
    NeverFits {
        /// The upper end of what a cutover takes besides copying.
        least: Duration,
    },
    /// Passes gain nothing: it changes about as fast as it is copied.
    Hopeless,
    /// A pass takes longer than the interval, so that snapshots follow each other without a pause.
    IntervalTooShort {
        /// What a pass takes that brings the changes of an interval.
        pass: Duration,
        /// An interval that fits.
        better: Duration,
    },
    /// What changes in an interval takes longer to copy than the machine may be down.
    IntervalTooLong {
        /// What a pass takes that brings the changes of an interval.
        pass: Duration,
        /// An interval that fits.
        better: Duration,
    },
}

/// How long a machine would be down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// What is likely.
    pub likely: Duration,
    /// The least that is to be expected.
    pub low: Duration,
    /// The most.
    pub high: Duration,
    /// Bytes that the last pass would have to look at.
    pub delta_bytes: u64,
}

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contract {
    /// Time from the beginning of a pass to that of the next; absent: as short as the changes need. Passes that make the trend for
    /// a machine that moves over by itself may follow each other sooner.
    pub interval: Option<Duration>,
    /// When the machine moves over.
    pub when: When,
    /// Longest downtime that is accepted without being asked.
    pub downtime_max: Duration,
}

/// When a machine moves over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// When somebody says so.
    Asked,
    /// As soon as the downtime fits.
    Fits,
    /// At this moment, in milliseconds.
    At(i64),
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Begin a pass.
    Pass,
    /// Nothing before this moment, unless somebody asks.
    Wait {
        /// When the next pass is due.
        until_ms: i64,
    },
    /// Move over.
    Cutover(Reason),
}

/// Why a machine moves over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Somebody said so.
    Asked,
    /// The predicted downtime fits.
    Fits,
    /// It is time.
    Time,
}

/// A pass that shortens the downtime by less than this is not worth the wait before a cutover.
const GAIN_MIN_S: f64 = 5.0;
/// Neither is one that shortens it by less than this share.
const GAIN_SHARE_MIN: f64 = 0.1;
/// Shortest interval that is chosen: each pass costs the source a snapshot.
const INTERVAL_AUTO_MIN_S: f64 = 60.0;
/// Longest interval that is chosen.
const INTERVAL_AUTO_MAX_S: f64 = 3600.0;
/// The delta of an interval that is chosen takes this share of the downtime that is left for it.
const INTERVAL_BUDGET_SHARE: f64 = 0.5;
/// How much longer a pass may take than predicted and still be done before a cutover at a set time.
const LEAD_FACTOR: f64 = 1.5;

impl Contract {
    /// What to do now, after these passes; `asked` if somebody wants the cutover.
    pub fn decide(&self, passes: &[PassFacts], costs: &Costs, asked: bool, now_ms: i64) -> Decision {
        let Some(trend) = Trend::of(passes) else { return Decision::Pass };
        let moment = match self.when {
            When::At(moment) => Some(moment),
            When::Asked | When::Fits => None,
        };
        let due = moment.is_some_and(|moment| now_ms >= moment);
        if asked || due {
            // One pass alone tells nothing of how fast it changes.
            return match passes.len() < 2 || trend.pays_before_cutover(costs, now_ms) {
                true => Decision::Pass,
                false => Decision::Cutover(if asked { Reason::Asked } else { Reason::Time }),
            };
        }
        let fits = || trend.forecast(costs, now_ms).high <= self.downtime_max;
        // Where everything is read every time, that is what is known.
        let is_known =
            makes_trend(trend.deltas) || trend.all_bytes.is_some() && makes_trend(passes.len() - 1);
        if self.when == When::Fits && is_known && fits() {
            return Decision::Cutover(Reason::Fits);
        }
        let only_trend_lacks = self.when == When::Fits && !is_known;
        let next = trend.last.span().next_ms(millis(self.interval(&trend, costs)), only_trend_lacks);
        let next = moment.map_or(next, |moment| trend.next_before(next, moment, costs));
        if now_ms >= next { Decision::Pass } else { Decision::Wait { until_ms: next } }
    }

    /// Time between the beginnings of passes: what the plan says, or such that what changes in it can be
    /// copied in half of the downtime that is left for copying.
    pub fn interval(&self, trend: &Trend, costs: &Costs) -> Duration {
        if let Some(interval) = self.interval {
            return interval;
        }
        let others = [costs.shutdown, costs.freeze, costs.prove, costs.boot].map(|it| it.likely);
        let left = self.downtime_max.as_secs_f64() - others.iter().sum::<f64>() - trend.fixed_s;
        let churn = trend.churn.likely.max(f64::MIN_POSITIVE);
        let wish = left.max(0.0) * INTERVAL_BUDGET_SHARE * trend.rate / churn;
        seconds(wish.clamp(INTERVAL_AUTO_MIN_S, INTERVAL_AUTO_MAX_S))
    }
}

impl Contract {
    /// What to do otherwise, if anything: whether passes are worth it at all, and another interval for what changes.
    pub fn advice(&self, trend: &Trend, costs: &Costs) -> Option<Advice> {
        if trend.is_hopeless() {
            return Some(Advice::Hopeless);
        }
        let least = costs.high();
        if self.when == When::Fits && least > self.downtime_max {
            return Some(Advice::NeverFits { least });
        }
        let interval = self.interval.filter(|_| makes_trend(trend.deltas))?;
        let pass = seconds(trend.pass_s(interval.as_secs_f64()));
        let chosen = Contract { interval: None, ..*self }.interval(trend, costs);
        // The chosen one must not be shorter than its own pass.
        let better = chosen.max(seconds(trend.pass_s(chosen.as_secs_f64())));
        if pass > interval && better > interval {
            return Some(Advice::IntervalTooShort { pass, better });
        }
        (pass > self.downtime_max && better < interval).then_some(Advice::IntervalTooLong { pass, better })
    }
}

impl Trend {
    /// Whether one more pass while the machine runs shortens its downtime enough to wait for it.
    fn pays_before_cutover(&self, costs: &Costs, now_ms: i64) -> bool {
        let since_frozen = (now_ms - self.last.frozen_ms).max(0) as f64 / 1000.0;
        let now = self.forecast_after(costs, since_frozen).likely.as_secs_f64();
        let then = self.forecast_after(costs, self.pass_s(since_frozen)).likely.as_secs_f64();
        now - then > GAIN_MIN_S.max(now * GAIN_SHARE_MIN)
    }

    /// When the next pass begins if the cutover is at `moment`: the last one is done just before it.
    fn next_before(&self, next: i64, moment: i64, costs: &Costs) -> i64 {
        let since_frozen = (moment - self.last.frozen_ms).max(0) as f64 / 1000.0;
        let lead = (self.pass_s(since_frozen) + costs.freeze.likely) * LEAD_FACTOR;
        let latest = moment - millis(seconds(lead));
        if next < latest {
            return next;
        }
        // Done already, or not worth it: nothing but the cutover is left.
        let paid_off = self.last.began_ms >= latest || !self.pays_before_cutover(costs, moment);
        if paid_off { moment } else { latest }
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX / 2)
}

#[cfg(test)]
mod tests;
