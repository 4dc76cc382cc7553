//! Axes of charts: where a moment or a value lies, and which get a label. Pure.

/// No moment lies further from 1970: the end of the year 9999, in milliseconds.
const MOMENT_MAX_MS: i64 = 253_402_300_799_999;
/// Gaps in which nothing ran are drawn this wide, as a share of the axis.
const GAP_SHARE: f64 = 0.02;
/// A gap shorter than this share of the time that something ran is drawn as it is.
const GAP_MIN_SHARE: f64 = 0.15;
/// More gaps than this are not told apart: the longest stay.
const GAPS_MAX: usize = 12;

/// Steps between labels, in milliseconds: what clocks count in.
const STEPS_MS: [i64; 21] = [
    10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 900_000,
    1_800_000, 3_600_000, 10_800_000, 43_200_000, 86_400_000,
];

/// A time axis without the long gaps in which nothing ran: between the end of a run and its resume,
/// days may lie, and the seconds that matter would not be seen.
#[derive(Clone, Debug)]
pub(crate) struct TimeAxis {
    /// Stretches of time in order, each with where it begins, and its width.
    parts: Vec<Part>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    from_ms: i64,
    to_ms: i64,
    at: f64,
    width: f64,
}

impl TimeAxis {
    /// Over all of `spans` (begin and end in milliseconds), from `left` on, `width` wide.
    pub(crate) fn new(spans: &[(i64, i64)], left: f64, width: f64) -> Self {
        let busy = busy(spans);
        let total: f64 = busy.iter().map(|(from, to)| length(*from, *to)).sum::<f64>().max(1.0);
        let gaps = width * GAP_SHARE * busy.len().saturating_sub(1) as f64;
        let scale = (width - gaps) / total;
        let mut at = left;
        let mut parts = Vec::new();
        for (from_ms, to_ms) in busy {
            let width_here = length(from_ms, to_ms) * scale;
            parts.push(Part { from_ms, to_ms, at, width: width_here });
            at += width_here + width * GAP_SHARE;
        }
        TimeAxis { parts }
    }

    /// Where a moment lies; moments in a gap lie at its begin.
    pub(crate) fn at(&self, ms: i64) -> f64 {
        let part = self.parts.iter().rev().find(|part| part.from_ms <= ms).or(self.parts.first());
        let Some(part) = part else { return 0.0 };
        let share = length(part.from_ms, ms) / length(part.from_ms, part.to_ms).max(1.0);
        part.at + share.clamp(0.0, 1.0) * part.width
    }

    /// Where gaps were left out.
    pub(crate) fn gaps(&self) -> Vec<f64> {
        self.parts.windows(2).map(|pair| (pair[0].at + pair[0].width + pair[1].at) / 2.0).collect()
    }

    /// Whether a gap lies between two moments.
    pub(crate) fn is_broken(&self, one_ms: i64, two_ms: i64) -> bool {
        let place = |ms| self.parts.iter().rposition(|part| part.from_ms <= ms);
        place(one_ms) != place(two_ms)
    }

    /// Moments for labels, none closer to the one before than `distance`, with the step between them.
    pub(crate) fn ticks(&self, distance: f64) -> (Vec<i64>, i64) {
        let scale = self
            .parts
            .iter()
            .map(|part| part.width / length(part.from_ms, part.to_ms).max(1.0))
            .fold(0.0, f64::max);
        let wide = |step: &i64| *step as f64 * scale >= distance;
        let days = STEPS_MS[STEPS_MS.len() - 1];
        let step = STEPS_MS.into_iter().find(wide).unwrap_or_else(|| {
            let days_needed = (distance / scale.max(f64::MIN_POSITIVE) / days as f64).ceil().clamp(1.0, 1e7);
            days * days_needed as i64
        });
        let mut ticks: Vec<i64> = Vec::new();
        for part in &self.parts {
            let mut ms = part.from_ms.div_euclid(step).saturating_mul(step);
            while ms <= part.to_ms {
                let far = ticks.last().is_none_or(|last| self.at(ms) - self.at(*last) >= distance);
                if ms >= part.from_ms && far {
                    ticks.push(ms);
                }
                ms = ms.saturating_add(step);
            }
        }
        (ticks, step)
    }
}

/// Stretches in which something ran, joined where the gap is short.
fn busy(spans: &[(i64, i64)]) -> Vec<(i64, i64)> {
    let sane = |ms: i64| ms.clamp(-MOMENT_MAX_MS, MOMENT_MAX_MS);
    let mut sorted: Vec<(i64, i64)> =
        spans.iter().map(|(from, to)| (sane(*from), sane(*to.max(from)))).collect();
    sorted.sort_unstable();
    let joined = join(&sorted, 0.0);
    let total: f64 = joined.iter().map(|(from, to)| length(*from, *to)).sum();
    let mut gaps: Vec<f64> = joined.windows(2).map(|pair| length(pair[0].1, pair[1].0)).collect();
    gaps.sort_by(|one, two| two.total_cmp(one));
    // What is as short as the longest of those that are too many counts as short.
    let shortest = gaps.get(GAPS_MAX).copied().unwrap_or(0.0);
    join(&joined, (total * GAP_MIN_SHARE).max(shortest))
}

fn join(sorted: &[(i64, i64)], gap_max: f64) -> Vec<(i64, i64)> {
    let mut joined: Vec<(i64, i64)> = Vec::new();
    for (from, to) in sorted {
        match joined.last_mut() {
            Some(last) if length(last.1, *from) <= gap_max => last.1 = last.1.max(*to),
            _ => joined.push((*from, *to)),
        }
    }
    joined
}

fn length(from_ms: i64, to_ms: i64) -> f64 {
    to_ms.saturating_sub(from_ms) as f64
}

/// Values from 0 to at least `most` for labels, at even steps of 1, 2 or 5.
pub(crate) fn value_ticks(most: f64) -> Vec<f64> {
    let most = if most.is_finite() && most > 0.0 { most } else { 1.0 };
    let rough = most / 4.0;
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|it| it * magnitude)
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    let count = (most / step).ceil() as usize;
    (0..=count.clamp(1, 10)).map(|n| n as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_lie_in_order_between_the_ends() {
        let axis = TimeAxis::new(&[(1000, 2000), (1500, 3000)], 100.0, 500.0);
        assert_eq!((axis.at(1000), axis.at(2000), axis.at(3000)), (100.0, 350.0, 600.0));
        assert_eq!((axis.at(0), axis.at(9000)), (100.0, 600.0));
        assert!(axis.gaps().is_empty());
    }

    #[test]
    fn days_in_which_nothing_ran_take_little_room() {
        let day = 86_400_000;
        let axis = TimeAxis::new(&[(0, 1000), (day, day + 1000)], 0.0, 100.0);
        assert_eq!((axis.at(1000), axis.at(day)), (49.0, 51.0));
        assert_eq!(axis.gaps(), [50.0]);
        assert!(axis.is_broken(1000, day) && !axis.is_broken(0, 1000));
    }

    #[test]
    fn short_gaps_and_too_many_gaps_are_drawn_as_they_are() {
        assert!(TimeAxis::new(&[(0, 1000), (1100, 2000)], 0.0, 100.0).gaps().is_empty());
        let many: Vec<(i64, i64)> = (0..100).map(|n| (n * 100_000, n * 100_000 + 10)).collect();
        assert!(TimeAxis::new(&many, 0.0, 100.0).gaps().len() <= GAPS_MAX);
    }

    #[test]
    fn labels_stand_on_round_times_and_apart() {
        let axis = TimeAxis::new(&[(3_000, 63_000)], 0.0, 600.0);
        assert_eq!(axis.ticks(60.0), ((1..=6).map(|n| n * 10_000).collect(), 10_000));
    }

    #[test]
    fn odd_spans_do_not_break_an_axis() {
        for spans in
            [vec![], vec![(5, 5)], vec![(9, 3)], vec![(i64::MIN, i64::MAX)], vec![(0, i64::MAX / 2), (7, 8)]]
        {
            let axis = TimeAxis::new(&spans, 0.0, 100.0);
            let (ticks, _) = axis.ticks(10.0);
            assert!(ticks.len() <= 12, "{spans:?}: {}", ticks.len());
            assert!((0.0..=100.0).contains(&axis.at(6)), "{spans:?}");
        }
    }

    #[test]
    fn values_get_even_labels_that_reach_beyond_the_most() {
        assert_eq!(value_ticks(8.7), [0.0, 5.0, 10.0]);
        assert_eq!(value_ticks(4.0), [0.0, 1.0, 2.0, 3.0, 4.0]);
        for most in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e-300, f64::MAX] {
            assert!(value_ticks(most).len() <= 11);
        }
    }
}
