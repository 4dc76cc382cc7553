//! When the next pass is due of a machine that is copied while it runs, and when its passes make a trend. Runs and forecasts both
//! go by this.

/// Deltas that make a trend.
const TREND_DELTAS: usize = 2;
/// A machine that only waits for its trend pauses for so long between passes at the least: each costs the source a snapshot.
const TREND_PAUSE_MS_MIN: i64 = 10_000;

/// Whether so many deltas tell enough for a machine to move over by itself.
pub fn makes_trend(deltas: usize) -> bool {
    deltas >= TREND_DELTAS
}

/// A pass that has ended. Times are in milliseconds since some moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PassSpan {
    /// When it began.
    pub began_ms: i64,
    /// When it ended.
    pub ended_ms: i64,
}

impl PassSpan {
    /// When the pass after this one is due: an interval after its beginning. If the machine moves over by itself as soon as
    /// there is a trend (`only_trend_lacks`), a pause after its end is enough, which is as long as the pass.
    pub fn next_ms(&self, interval_ms: i64, only_trend_lacks: bool) -> i64 {
        let next = self.began_ms.saturating_add(interval_ms);
        if !only_trend_lacks {
            return next;
        }
        let pause = self.ended_ms.saturating_sub(self.began_ms).max(TREND_PAUSE_MS_MIN);
        next.min(self.ended_ms.saturating_add(pause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_deltas_make_a_trend() {
        assert_eq!([0, 1, 2, 3].map(makes_trend), [false, false, true, true]);
    }

    #[test]
    fn a_trend_is_not_waited_for_longer_than_the_last_pass_took_nor_than_the_interval() {
        let of = |took_ms: i64, interval_ms: i64| {
            let pass = PassSpan { began_ms: 1_000, ended_ms: 1_000 + took_ms };
            (pass.next_ms(interval_ms, false), pass.next_ms(interval_ms, true))
        };
        assert_eq!(of(3_000, 3_600_000), (3_601_000, 14_000), "10 s at the least");
        assert_eq!(of(60_000, 3_600_000), (3_601_000, 121_000), "as long as the pass");
        assert_eq!(of(3_000, 5_000), (6_000, 6_000), "a shorter interval holds");
        assert_eq!(of(7_200_000, 3_600_000), (3_601_000, 3_601_000), "due already");
        assert_eq!(of(1_000, i64::MAX), (i64::MAX, 12_000));
    }
}
