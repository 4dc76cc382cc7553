//! Rate limits, shared by all transfers that should keep to one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What may be sent at once after a pause, as time at the full rate.
const BURST: Duration = Duration::from_millis(50);

/// Nobody waits longer than this before asking again: the rate may have changed.
const WAIT_MAX: Duration = Duration::from_millis(200);

/// A connection that has to wait looks again after this long: pings and acknowledgements go even so.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A number of bytes a second that may be sent, by all who share it. It may be changed at any time.
#[derive(Debug)]
pub struct RateLimit {
    start: Instant,
    bucket: Mutex<Bucket>,
    /// One that holds as well, for others too.
    wider: Option<Arc<RateLimit>>,
}

/// What was done with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// Bytes that were ever taken of it.
    pub bytes: u64,
    /// How long who comes now has to wait, because more was taken than was there.
    pub debt: Duration,
}

impl RateLimit {
    /// So many bytes a second; `None` for no limit.
    pub fn new(bytes_per_second: Option<u64>) -> RateLimit {
        RateLimit::within(None, bytes_per_second)
    }

    /// The same, of those that keep to a wider limit, too.
    pub fn within(wider: Option<Arc<RateLimit>>, bytes_per_second: Option<u64>) -> RateLimit {
        RateLimit { start: Instant::now(), bucket: Mutex::new(Bucket::new(bytes_per_second)), wider }
    }

    /// Sets another limit.
    pub fn set(&self, bytes_per_second: Option<u64>) {
        self.set_share(bytes_per_second, bytes_per_second);
    }

    /// Sets another limit, which is a share of a whole that others keep to as well. The whole is for who asks only.
    pub fn set_share(&self, whole: Option<u64>, bytes_per_second: Option<u64>) {
        let now = self.start.elapsed();
        let mut bucket = self.bucket();
        bucket.set(bytes_per_second, now);
        bucket.whole = whole;
    }

    /// The limit.
    pub fn bytes_per_second(&self) -> Option<u64> {
        self.bucket().rate
    }

    /// The limit, or the wider one where that is less.
    pub fn least_bytes_per_second(&self) -> Option<u64> {
        let wider = self.wider.as_ref().and_then(|wider| wider.least_bytes_per_second());
        [self.bytes_per_second(), wider].into_iter().flatten().min()
    }

    /// The same, with the wholes of which these are shares.
    pub fn least_whole(&self) -> Option<u64> {
        let wider = self.wider.as_ref().and_then(|wider| wider.least_whole());
        [self.bucket().whole, wider].into_iter().flatten().min()
    }

    /// What was taken of it until now.
    pub fn used(&self) -> Used {
        let now = self.start.elapsed();
        self.bucket().used(now)
    }

    /// Takes so many bytes if that is in order now; else how long to wait before asking again.
    pub fn take(&self, bytes: u64) -> Result<(), Duration> {
        let now = self.start.elapsed();
        let mut bucket = self.bucket();
        bucket.take(0, now).map_err(|wait| wait.min(WAIT_MAX))?;
        if let Some(wider) = &self.wider {
            wider.take(bytes)?;
        }
        bucket.spend(bytes, now);
        Ok(())
    }

    /// Up to how many of the wanted bytes a connection should take now, one at least; else how long to wait.
    pub(crate) fn ready(&self, wanted: usize) -> Result<usize, Duration> {
        let wanted = self.wider.as_ref().map_or(Ok(wanted), |wider| wider.ready(wanted))?;
        let now = self.start.elapsed();
        let mut bucket = self.bucket();
        bucket.take(0, now).map_err(|wait| wait.min(LOOK_EVERY))?;
        let burst = bucket.rate.map_or(f64::INFINITY, |_| bucket.burst());
        // The cast stops at the largest number.
        Ok(wanted.min(burst as usize).max(1))
    }

    /// Takes so many bytes in any case; who comes later waits the longer.
    pub fn spend(&self, bytes: u64) {
        if let Some(wider) = &self.wider {
            wider.spend(bytes);
        }
        let now = self.start.elapsed();
        self.bucket().spend(bytes, now);
    }

    fn bucket(&self) -> std::sync::MutexGuard<'_, Bucket> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A token bucket that may go into debt by what is taken at once: pieces may be larger than the burst.
/// Pure: the time is an argument.
#[derive(Debug)]
struct Bucket {
    rate: Option<u64>,
    /// What the rate is a share of.
    whole: Option<u64>,
    /// Bytes that may be taken; negative while in debt.
    level: f64,
    at: Duration,
    /// Bytes taken in all.
    taken: u64,
}

impl Bucket {
    fn new(rate: Option<u64>) -> Bucket {
        Bucket { rate, whole: rate, level: 0.0, at: Duration::ZERO, taken: 0 }
    }

    fn set(&mut self, rate: Option<u64>, now: Duration) {
        self.fill(now);
        self.rate = rate;
        self.level = self.level.min(self.burst());
    }

    fn burst(&self) -> f64 {
        self.rate.map_or(0.0, |rate| rate as f64 * BURST.as_secs_f64())
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        // Without a limit nobody is in debt.
        let Some(rate) = self.rate else { return self.level = 0.0 };
        self.level = (self.level + rate as f64 * passed).min(self.burst());
    }

    fn take(&mut self, bytes: u64, now: Duration) -> Result<(), Duration> {
        match self.used(now).debt {
            Duration::ZERO => {}
            wait => return Err(wait),
        }
        self.spend(bytes, now);
        Ok(())
    }

    fn spend(&mut self, bytes: u64, now: Duration) {
        self.fill(now);
        self.taken = self.taken.wrapping_add(bytes);
        if self.rate.is_some() {
            self.level -= bytes as f64;
        }
    }

    fn used(&mut self, now: Duration) -> Used {
        self.fill(now);
        let debt = match self.rate {
            Some(rate) if self.level < 0.0 => (-self.level / rate.max(1) as f64).clamp(0.001, 60.0),
            _ => 0.0,
        };
        Used { bytes: self.taken, debt: Duration::from_secs_f64(debt) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes taken in that time, by pieces of that size.
    fn taken(bucket: &mut Bucket, from: Duration, time: Duration, piece: u64) -> u64 {
        let (mut now, mut sum) = (from, 0);
        while now < from + time {
            match bucket.take(piece, now) {
                Ok(()) => sum += piece,
                Err(wait) => now += wait,
            }
        }
        sum
    }

    #[test]
    fn the_rate_is_kept_with_small_pieces_and_with_large_ones() {
        for piece in [1000, 64 << 10, 4 << 20] {
            let mut bucket = Bucket::new(Some(10_000_000));
            let sum = taken(&mut bucket, Duration::ZERO, Duration::from_secs(100), piece);
            let wrong = (sum as f64 / 1e9 - 1.0).abs();
            assert!(wrong < 0.01, "{piece}: {sum}");
        }
    }

    #[test]
    fn a_pause_saves_no_more_than_the_burst() {
        let mut bucket = Bucket::new(Some(1_000_000));
        let sum = taken(&mut bucket, Duration::from_secs(3600), Duration::from_secs(1), 1000);
        assert!(sum <= 1_000_000 + 50_000 + 1000, "{sum}");
    }

    #[test]
    fn the_rate_is_kept_by_many_that_look_first_and_take_later() {
        let mut bucket = Bucket::new(Some(1_000_000));
        let (mut now, mut sum) = (Duration::ZERO, 0);
        while now < Duration::from_secs(100) {
            now += Duration::from_millis(50);
            let ready = (0..8).filter(|_| bucket.take(0, now).is_ok()).count();
            (0..ready).for_each(|_| bucket.spend(300_000, now));
            sum += ready * 300_000;
        }
        assert!((sum as f64 / 1e8 - 1.0).abs() < 0.03, "{sum}");
    }

    #[test]
    fn a_slow_rate_is_taken_in_small_parts() {
        let limit = RateLimit::new(Some(100_000));
        assert_eq!(limit.ready(1 << 20), Ok(5000));
        limit.spend(1_000_000);
        assert_eq!(limit.ready(1 << 20), Err(LOOK_EVERY));
        limit.set(None);
        limit.spend(1 << 40);
        assert_eq!(limit.ready(1 << 20), Ok(1 << 20));
        limit.set(Some(0));
        assert_eq!(limit.ready(1 << 20), Ok(1));
    }

    #[test]
    fn what_was_taken_is_counted_with_and_without_a_limit() {
        let mut bucket = Bucket::new(Some(1000));
        bucket.take(3000, Duration::ZERO).unwrap();
        bucket.take(1, Duration::ZERO).unwrap_err();
        assert_eq!(bucket.used(Duration::from_secs(1)), Used { bytes: 3000, debt: Duration::from_secs(2) });
        bucket.set(None, Duration::from_secs(1));
        bucket.take(5, Duration::from_secs(1)).unwrap();
        bucket.spend(7, Duration::from_secs(1));
        assert_eq!(bucket.used(Duration::from_secs(1)), Used { bytes: 3012, debt: Duration::ZERO });
    }

    #[test]
    fn one_within_a_wider_limit_keeps_to_both_and_counts_for_both() {
        let wider = Arc::new(RateLimit::new(Some(100_000)));
        let of_one = |rate| RateLimit::within(Some(wider.clone()), rate);
        let (slow, free) = (of_one(Some(20_000)), of_one(None));
        assert_eq!((slow.ready(1 << 20), free.ready(1 << 20)), (Ok(1000), Ok(5000)));
        slow.spend(10_000);
        assert_eq!((slow.used().bytes, free.used().bytes, wider.used().bytes), (10_000, 0, 10_000));
        assert!(free.ready(1).is_err() && free.take(1).is_err(), "the wider one is in debt");
        wider.set(None);
        assert_eq!(free.take(7), Ok(()));
        assert!(slow.take(7).is_err(), "its own is");
        assert_eq!(wider.used().bytes, 10_007);
    }

    #[test]
    fn a_share_is_kept_to_and_the_least_whole_is_told() {
        let wider = Arc::new(RateLimit::new(Some(100_000)));
        let limit = RateLimit::within(Some(wider.clone()), Some(70_000));
        assert_eq!(limit.least_whole(), Some(70_000));
        limit.set_share(Some(80_000), Some(20_000));
        assert_eq!(limit.ready(1 << 20), Ok(1000));
        assert_eq!((limit.least_whole(), limit.least_bytes_per_second()), (Some(80_000), Some(20_000)));
        wider.set(Some(9000));
        assert_eq!((limit.least_whole(), limit.least_bytes_per_second()), (Some(9000), Some(9000)));
    }

    #[test]
    fn it_may_be_changed_and_taken_away() {
        let mut bucket = Bucket::new(Some(1000));
        bucket.take(1_000_000, Duration::ZERO).unwrap();
        assert!(bucket.take(1, Duration::from_secs(1)).is_err(), "in debt");
        bucket.set(None, Duration::from_secs(1));
        assert!(bucket.take(1 << 40, Duration::from_secs(1)).is_ok());
        bucket.set(Some(u64::MAX), Duration::from_secs(1));
        assert!(bucket.take(1, Duration::from_secs(2)).is_ok());
        let limit = RateLimit::new(Some(7));
        limit.set(Some(0));
        assert_eq!(limit.bytes_per_second(), Some(0));
        assert!(limit.take(1).is_ok());
        assert!(limit.take(1).is_err_and(|wait| wait <= WAIT_MAX));
    }
}
