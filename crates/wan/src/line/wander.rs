//! Jitter: the delay wanders and packets keep their order.
//!
//! A delay drawn anew for each packet either reorders them or, with the order kept, is the longest of the last draws and
//! hardly varies. So the delay moves on straight lines between points drawn at random: even over its range, and never falling so fast that a
//! packet overtakes the one before it.

use std::time::Duration;

use super::random::Random;
use super::time::Moment;

/// Points are this many times the jitter apart, so the delay never changes by more than half of the time that passes.
const STEP_JITTERS: u32 = 4;

/// And at least this far.
const STEP_MIN: Duration = Duration::from_millis(1);

/// A delay that wanders by up to `jitter` to either side.
#[derive(Clone, Debug)]
pub struct Wander {
    jitter: Duration,
    step: Duration,
    from: (Moment, f64),
    to: (Moment, f64),
}

impl Wander {
    /// A delay that starts in the middle.
    pub fn new(jitter: Duration) -> Wander {
        let step = (jitter * STEP_JITTERS).max(STEP_MIN);
        let start = (Moment(0), 0.0);
        Wander { jitter, step, from: start, to: start }
    }

    /// What `delay` is for a packet that comes through at `now`. Moments must not go back.
    pub fn delay(&mut self, delay: Duration, now: Moment, random: &mut Random) -> Duration {
        if self.jitter.is_zero() {
            return delay;
        }
        if now >= self.to.0 {
            // After a pause there is nothing that could be overtaken: start from where it stood.
            let start = if now.since(self.to.0) > self.step { now } else { self.to.0 };
            self.from = (start, self.to.1);
            self.to = (start + self.step, random.unit() * 2.0 - 1.0);
        }
        let gone = now.since(self.from.0).as_secs_f64() / self.step.as_secs_f64();
        let at = self.from.1 + (self.to.1 - self.from.1) * gone.min(1.0);
        let seconds = delay.as_secs_f64() + self.jitter.as_secs_f64() * at;
        Duration::from_secs_f64(seconds.max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_fills_its_range_evenly_and_keeps_the_order() {
        let (delay, jitter) = (Duration::from_millis(20), Duration::from_millis(5));
        let (mut wander, mut random) = (Wander::new(jitter), Random::new(3));
        let (mut sum, mut last, mut low, mut high) = (0.0, Moment(0), delay, delay);
        const PACKETS: u64 = 200_000;
        for number in 0..PACKETS {
            let now = Moment(number * 97_000);
            let found = wander.delay(delay, now, &mut random);
            assert!(found >= delay - jitter && found <= delay + jitter, "{found:?}");
            assert!(now + found >= last, "packet {number} overtook");
            (last, low, high) = (now + found, low.min(found), high.max(found));
            sum += found.as_secs_f64();
        }
        let mean = sum / PACKETS as f64;
        assert!((mean - 0.020).abs() < 0.000_5, "mean {mean}");
        assert!(high - low > Duration::from_millis(9), "{low:?} to {high:?}");
    }

    #[test]
    fn without_jitter_the_delay_is_exact() {
        let (mut wander, mut random) = (Wander::new(Duration::ZERO), Random::new(3));
        assert_eq!(
            wander.delay(Duration::from_micros(27_500), Moment(9), &mut random),
            Duration::from_micros(27_500)
        );
    }
}
