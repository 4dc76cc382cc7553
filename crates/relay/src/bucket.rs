//! A rate limit: a bucket that fills at the rate and is drawn from. Pure: the time is an argument.

use std::time::Duration;

/// A bucket holds what the rate gives in this time, so that short waits lose nothing.
const BURST: Duration = Duration::from_millis(50);
/// And at least so much, or small rates would send crumbs.
const BURST_BYTES_MIN: u64 = 64 << 10;
/// Nothing smaller is given, unless less is wanted: each piece costs calls.
const PIECE_BYTES_MIN: u64 = 16 << 10;
const NANOS: u128 = 1_000_000_000;

/// What is given of what was wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// So many bytes may go now.
    Bytes(u64),
    /// None before this time.
    Wait(Duration),
}

/// Bytes that may go. All times are since one beginning of the caller's choice, and never go back.
#[derive(Clone, Debug)]
pub struct Bucket {
    bytes_per_second: u64,
    /// Bytes times a billion, so that no fraction is lost.
    level: u128,
    full: u128,
    at: Duration,
}

impl Bucket {
    /// A full bucket.
    ///
    /// # Panics
    /// If the rate is zero.
    pub fn new(bytes_per_second: u64) -> Bucket {
        assert!(bytes_per_second > 0, "a rate of nothing");
        let burst = u128::from(bytes_per_second) * BURST.as_nanos();
        let full = burst.max(u128::from(BURST_BYTES_MIN) * NANOS);
        Bucket { bytes_per_second, level: full, full, at: Duration::ZERO }
    }

    /// Draws up to `wanted` bytes.
    pub fn take(&mut self, wanted: u64, now: Duration) -> Grant {
        self.fill(now);
        let least = u128::from(wanted.min(PIECE_BYTES_MIN)) * NANOS;
        if self.level < least {
            let missing = least - self.level;
            let nanos = missing.div_ceil(u128::from(self.bytes_per_second));
            return Grant::Wait(now + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)));
        }
        let given = (self.level / NANOS).min(wanted.into());
        self.level -= given * NANOS;
        Grant::Bytes(given as u64)
    }

    /// Puts back what was given and did not go.
    pub fn give_back(&mut self, bytes: u64) {
        self.level = (self.level + u128::from(bytes) * NANOS).min(self.full);
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at);
        self.at = self.at.max(now);
        self.level = (self.level + u128::from(self.bytes_per_second) * passed.as_nanos()).min(self.full);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn gives_the_burst_and_then_the_rate() {
        let mut bucket = Bucket::new(100_000_000);
        let Grant::Bytes(burst) = bucket.take(u64::MAX, Duration::ZERO) else { panic!("nothing given") };
        assert_eq!(burst, 5_000_000);
        assert_eq!(
            bucket.take(u64::MAX, Duration::ZERO),
            Grant::Wait(Duration::from_nanos(PIECE_BYTES_MIN * 10))
        );
        assert_eq!(bucket.take(u64::MAX, Duration::from_millis(1)), Grant::Bytes(100_000));
    }

    #[test]
    fn little_is_given_if_little_is_wanted() {
        let mut bucket = Bucket::new(1_000);
        assert_eq!(bucket.take(BURST_BYTES_MIN, Duration::ZERO), Grant::Bytes(BURST_BYTES_MIN));
        assert_eq!(bucket.take(10, Duration::ZERO), Grant::Wait(Duration::from_millis(10)));
        assert_eq!(bucket.take(10, Duration::from_millis(10)), Grant::Bytes(10));
        bucket.give_back(4);
        assert_eq!(bucket.take(4, Duration::from_millis(10)), Grant::Bytes(4));
    }

    proptest! {
        #[test]
        fn never_more_than_burst_and_rate_and_waits_are_worth_it(
            rate in 1_u64..4_000_000_000,
            steps in prop::collection::vec((1_u64..4_000_000, 0_u64..50_000_000), 1..200),
        ) {
            let mut bucket = Bucket::new(rate);
            let (mut now, mut given) = (Duration::ZERO, 0_u128);
            for (wanted, nanos) in steps {
                now += Duration::from_nanos(nanos);
                match bucket.take(wanted, now) {
                    Grant::Bytes(bytes) => given += u128::from(bytes),
                    Grant::Wait(until) => {
                        prop_assert!(until > now);
                        now = until;
                        let grant = bucket.take(wanted, now);
                        let Grant::Bytes(bytes) = grant else { panic!("waited for nothing: {grant:?}") };
                        given += u128::from(bytes);
                    }
                }
                let most = bucket.full / NANOS + u128::from(rate) * now.as_nanos() / NANOS;
                prop_assert!(given <= most + 1, "{} of {}", given, most);
            }
        }
    }
}
