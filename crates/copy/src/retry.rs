use std::time::Duration;

use crate::sample::mix;

/// When a failed request is tried again, and when to give up.
///
/// The pause doubles from `pause_min` to `pause_max`; [`RetryPolicy::spread`] shortens it. A request is given up once it has failed
/// `attempts_min` times and `give_up_after` has passed since its first failure; so a short burst of
/// errors is outlasted whatever its rate, and an outage for as long as the user said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// First pause.
    pub pause_min: Duration,
    /// Longest pause.
    pub pause_max: Duration,
    /// At least this many tries, however long each took.
    pub attempts_min: u32,
    /// Time from the first failure after which no more tries are made.
    pub give_up_after: Duration,
    /// Tries for an answer that cannot be right; a broken wire may pass, a broken server does not.
    pub corrupt_attempts_max: u32,
    /// Flushes in a row that fail. Each costs writing all again that landed since the last good one, up to 256 MiB, so
    /// time alone is no bound.
    pub flush_attempts_max: u32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            pause_min: Duration::from_millis(50),
            pause_max: Duration::from_secs(5),
            attempts_min: 5,
            give_up_after: Duration::from_secs(120),
            corrupt_attempts_max: 3,
            flush_attempts_max: 12,
        }
    }
}

/// What to do after a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Try again after this pause.
    Again(Duration),
    /// Stop the copy; it can be resumed.
    GiveUp,
}

impl RetryPolicy {
    /// The verdict after failure number `attempts` (from 1), `since_first` after the first one.
    pub fn after_transient(&self, attempts: u32, since_first: Duration) -> Verdict {
        if attempts >= self.attempts_min && since_first >= self.give_up_after {
            return Verdict::GiveUp;
        }
        Verdict::Again(self.pause(attempts))
    }

    /// The verdict after flush number `attempts` in a row that failed, `since_first` after the first of them.
    pub fn after_flush(&self, attempts: u32, since_first: Duration) -> Verdict {
        if attempts >= self.flush_attempts_max {
            return Verdict::GiveUp;
        }
        self.after_transient(attempts, since_first)
    }

    /// The verdict after an answer that cannot be right.
    pub fn after_corrupt(&self, attempts: u32) -> Verdict {
        if attempts >= self.corrupt_attempts_max {
            Verdict::GiveUp
        } else {
            Verdict::Again(self.pause(attempts))
        }
    }

    /// A pause of a request for these bytes that failed at `now`, shortened by up to half: requests of one disk and of many that failed
    /// together are not sent again together.
    pub fn spread(pause: Duration, offset: u64, now: Duration) -> Duration {
        // Time in nanoseconds differs from disk to disk.
        let share = mix(offset ^ mix(now.as_nanos() as u64)) as f64 / u64::MAX as f64;
        pause.mul_f64(0.5 + share / 2.0)
    }

    fn pause(&self, attempts: u32) -> Duration {
        let doublings = attempts.saturating_sub(1).min(20);
        self.pause_min.saturating_mul(1 << doublings).min(self.pause_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let policy = RetryPolicy::default();
        let pause = |attempts| policy.after_transient(attempts, Duration::ZERO);
        assert_eq!(pause(1), Verdict::Again(Duration::from_millis(50)));
        assert_eq!(pause(3), Verdict::Again(Duration::from_millis(200)));
        assert_eq!(pause(60), Verdict::Again(Duration::from_secs(5)));
    }

    #[test]
    fn what_failed_together_is_spread_over_half_of_the_pause() {
        let pause = Duration::from_secs(1);
        let spread = |offset, now| RetryPolicy::spread(pause, offset, Duration::from_nanos(now));
        let mut all: Vec<Duration> =
            (0..16).flat_map(|at| [spread(at << 16, 7), spread(0, 1_000 + at)]).collect();
        all.sort();
        assert!(all[0] >= pause / 2 && all[31] <= pause, "{all:?}");
        assert!(all[0] < pause * 6 / 10 && all[31] > pause * 9 / 10, "{all:?}");
        all.dedup();
        assert_eq!(all.len(), 32);
        assert_eq!(spread(5, 7), spread(5, 7), "a run can be replayed");
    }

    #[test]
    fn gives_up_only_when_both_bounds_are_reached() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.after_transient(5, Duration::from_secs(120)), Verdict::GiveUp);
        assert_ne!(policy.after_transient(4, Duration::from_secs(999)), Verdict::GiveUp);
        assert_ne!(policy.after_transient(999, Duration::from_secs(119)), Verdict::GiveUp);
        assert_eq!(policy.after_corrupt(3), Verdict::GiveUp);
    }
}
