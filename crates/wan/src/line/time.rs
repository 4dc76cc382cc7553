//! Moments on the line's own clock, and the clock that gives out the line's rate.

use std::ops::Add;
use std::time::Duration;

use super::units::Rate;

/// Nanoseconds since the line began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(pub u64);

impl Moment {
    /// How long after `earlier` this is; nothing if it is before.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, time: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// When the line is free again. What does not divide into whole nanoseconds is carried on, so a busy line has exactly its rate.
#[derive(Clone, Debug, Default)]
pub struct RateClock {
    free_at: Moment,
    /// In parts of a nanosecond, of which there are `rate` in one.
    carry: u64,
}

impl RateClock {
    /// Takes `bytes` from `now` on, or when the line is free; returns when the last of them is through.
    pub fn take(&mut self, now: Moment, bytes: u32, rate: Rate) -> Moment {
        if self.free_at < now {
            *self = RateClock { free_at: now, carry: 0 };
        }
        // At most 2^32 * 8e9, far below 2^128; the quotient is below 2^64 for every rate.
        let parts = u128::from(bytes) * 8_000_000_000 + u128::from(self.carry);
        let rate = u128::from(rate.bits_per_s());
        self.free_at = self.free_at + Duration::from_nanos((parts / rate) as u64);
        self.carry = (parts % rate) as u64;
        self.free_at
    }

    /// Bytes that wait at `now` for their turn.
    pub fn backlog(&self, now: Moment, rate: Rate) -> u64 {
        rate.bytes_in(self.free_at.since(now))
    }

    /// The rate has changed: what is carried was in other parts.
    pub fn changed(&mut self) {
        self.carry = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_line_has_exactly_its_rate() {
        for bits in [64_000, 999_999_937, 1_000_000_000, 10_000_000_000, 3] {
            let (mut clock, rate) = (RateClock::default(), Rate::bits(bits));
            let mut last = Moment(0);
            for _ in 0..1_000 {
                last = clock.take(Moment(0), 1_500, rate);
            }
            assert_eq!(u128::from(last.0), 1_500_000 * 8_000_000_000 / u128::from(bits), "{bits} bit/s");
        }
    }

    #[test]
    fn an_idle_line_saves_nothing_up() {
        let (mut clock, rate) = (RateClock::default(), Rate::bits(8_000_000_000));
        assert_eq!(clock.take(Moment(0), 100, rate), Moment(100));
        assert_eq!(clock.backlog(Moment(40), rate), 60);
        assert_eq!(clock.take(Moment(1_000), 100, rate), Moment(1_100));
        assert_eq!(clock.backlog(Moment(2_000), rate), 0);
    }
}
