//! What a carrier does to each session by itself: policing and shaping.

use std::collections::HashMap;
use std::time::Duration;

use super::time::{Moment, RateClock};
use super::units::Rate;

/// A session: addresses (IPv4 ones as they stand in IPv6), ports and protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Source address.
    pub source: u128,
    /// Target address.
    pub target: u128,
    /// Source port, then target port; 0 where there are none.
    pub ports: u32,
    /// IP protocol number.
    pub protocol: u8,
}

/// Sessions remembered in one direction. When there are more, those that would be treated as new ones are forgotten; if
/// there are none, all are, which gives each of them a fresh bucket.
pub const FLOWS_MAX: usize = 65_536;

/// What a session may send at once beyond its policed rate: this long of it, but at least [`BUCKET_MIN`].
pub const BUCKET_TIME: Duration = Duration::from_millis(50);

/// Two super-packets: senders hand them over whole.
pub const BUCKET_MIN: u64 = 128 << 10;

/// A token bucket for each session; what finds too few tokens is dropped.
#[derive(Clone, Debug)]
pub struct Policer {
    rate: Rate,
    bucket: f64,
    flows: HashMap<Flow, Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Bytes.
    tokens: f64,
    at: Moment,
}

impl Bucket {
    fn filled(self, now: Moment, rate: Rate, most: f64) -> Bucket {
        let gained = now.since(self.at).as_secs_f64() * rate.bits_per_s() as f64 / 8.0;
        Bucket { tokens: (self.tokens + gained).min(most), at: self.at.max(now) }
    }
}

impl Policer {
    /// Lets each session through at `rate`.
    pub fn new(rate: Rate) -> Policer {
        let bucket = rate.bytes_in(BUCKET_TIME).max(BUCKET_MIN) as f64;
        Policer { rate, bucket, flows: HashMap::new() }
    }

    /// Whether `bytes` of `flow` may pass at `now`.
    pub fn passes(&mut self, flow: Flow, bytes: u32, now: Moment) -> bool {
        let (rate, most) = (self.rate, self.bucket);
        if self.flows.len() >= FLOWS_MAX && !self.flows.contains_key(&flow) {
            make_room(&mut self.flows, |it| it.filled(now, rate, most).tokens < most);
        }
        let fresh = Bucket { tokens: most, at: now };
        let bucket = self.flows.entry(flow).or_insert(fresh);
        *bucket = bucket.filled(now, rate, most);
        let passes = bucket.tokens >= f64::from(bytes);
        if passes {
            bucket.tokens -= f64::from(bytes);
        }
        passes
    }
}

/// A queue and a rate for each session; what is too fast waits.
#[derive(Clone, Debug)]
pub struct Shaper {
    rate: Rate,
    queue: u64,
    flows: HashMap<Flow, RateClock>,
}

impl Shaper {
    /// Lets each session through at `rate`; up to `queue` bytes of it wait.
    pub fn new(rate: Rate, queue: u64) -> Shaper {
        Shaper { rate, queue, flows: HashMap::new() }
    }

    /// When `bytes` of `flow`, here at `now`, go on; `None` if its queue is full.
    pub fn release(&mut self, flow: Flow, bytes: u32, now: Moment) -> Option<Moment> {
        let rate = self.rate;
        if self.flows.len() >= FLOWS_MAX && !self.flows.contains_key(&flow) {
            make_room(&mut self.flows, |it| it.backlog(now, rate) > 0);
        }
        let clock = self.flows.entry(flow).or_default();
        let fits = clock.backlog(now, rate) + u64::from(bytes) <= self.queue.max(u64::from(bytes));
        fits.then(|| clock.take(now, bytes, rate))
    }
}

fn make_room<T>(flows: &mut HashMap<Flow, T>, has_history: impl Fn(&T) -> bool) {
    flows.retain(|_, it| has_history(it));
    if flows.len() >= FLOWS_MAX {
        flows.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 200_000_000;

    fn flow(ports: u32) -> Flow {
        Flow { source: 1, target: 2, ports, protocol: 6 }
    }

    #[test]
    fn each_session_is_policed_to_its_rate() {
        let mut policer = Policer::new(Rate::bits(RATE));
        let mut passed = [0u64; 3];
        // Three times the rate for 10 s, in each of three sessions.
        for step in 0..500_000u64 {
            for (session, passed) in passed.iter_mut().enumerate() {
                if policer.passes(flow(session as u32), 1_500, Moment(step * 20_000)) {
                    *passed += 1_500;
                }
            }
        }
        for passed in passed {
            let asked = RATE as f64 / 8.0 * 10.0 + RATE as f64 / 8.0 * BUCKET_TIME.as_secs_f64();
            assert!((passed as f64 / asked - 1.0).abs() < 0.001, "{passed} of {asked}");
        }
    }

    #[test]
    fn a_session_below_its_rate_loses_nothing() {
        let mut policer = Policer::new(Rate::bits(RATE));
        assert!((0..100_000u64).all(|step| policer.passes(flow(0), 1_500, Moment(step * 61_000))));
    }

    #[test]
    fn each_session_is_shaped_by_itself_and_what_is_too_much_is_refused() {
        let mut shaper = Shaper::new(Rate::bits(8_000_000), 3_000);
        assert_eq!(shaper.release(flow(0), 1_000, Moment(0)), Some(Moment(1_000_000)));
        assert_eq!(shaper.release(flow(0), 1_000, Moment(0)), Some(Moment(2_000_000)));
        assert_eq!(shaper.release(flow(1), 1_000, Moment(0)), Some(Moment(1_000_000)));
        assert_eq!(shaper.release(flow(0), 1_000, Moment(0)), Some(Moment(3_000_000)));
        assert_eq!(shaper.release(flow(0), 1_000, Moment(0)), None);
        assert_eq!(shaper.release(flow(0), 1_000, Moment(1_000_000)), Some(Moment(4_000_000)));
    }

    #[test]
    fn a_packet_larger_than_the_queue_passes_an_empty_one() {
        let mut shaper = Shaper::new(Rate::bits(8_000_000), 100);
        assert!(shaper.release(flow(0), 1_000, Moment(0)).is_some());
        assert!(shaper.release(flow(0), 1_000, Moment(0)).is_none());
    }

    #[test]
    fn memory_of_sessions_is_bounded() {
        let (mut policer, mut shaper) = (Policer::new(Rate::bits(8_000)), Shaper::new(Rate::bits(8), 9_000));
        for ports in 0..3 * FLOWS_MAX as u32 {
            policer.passes(flow(ports), 1_500, Moment(0));
            shaper.release(flow(ports), 1_500, Moment(0));
        }
        assert!(policer.flows.len() <= FLOWS_MAX && shaper.flows.len() <= FLOWS_MAX);
    }
}
