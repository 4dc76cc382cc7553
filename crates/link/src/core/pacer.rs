//! How fast each connection may send at most, so that all of them together do not drown their own line.
//!
//! Each connection finds its share of a line by trying more from time to time. On a line that is full the tries of
//! many add up: with BBR and eight of them, one segment in seven was dropped by the queue in front of a line of
//! 1 Gbit/s and 55 ms, and had to be sent again. The line stays full, but what one connection carries then comes
//! half a second late, and a stream waits for it. So once the kernel tells that this is happening (much is sent
//! again, *and* round trips have grown), all connections together are held to what the line was seen to carry, and
//! a little more, so that a line that becomes faster is found. Losses alone hold back nothing.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Moment, StripeId};

/// How often it is asked.
pub const PACE_EVERY: Duration = Duration::from_millis(250);

/// A line is drowned if so much of what is sent was sent before, and round trips are so much longer than the
/// shortest ones, twice in a row.
const AGAIN: f64 = 0.04;
const LONGER: f64 = 1.25;
const IN_A_ROW: u32 = 2;

/// Of what the line carries: at first, until the queue has drained; more with each look; at most. BBR gives back a
/// little of its pace in each of its rounds, so this is hardly more than the line itself.
const GAIN_FIRST: f64 = 0.97;
const GAIN_STEP: f64 = 0.015;
const GAIN_MAX: f64 = 1.04;

/// Round trips so little longer than the shortest ones mean that there is no queue: the line may carry more than it
/// was seen to, and that is found in larger steps, each too small to fill a queue until the next look. So it is with
/// somewhat longer ones, as on a busy host, if so much of what connections may send arrives.
const CALM: f64 = 1.12;
const ROOM: f64 = 0.97;
const CALM_STEP: f64 = 0.04;
const CALM_MAX: f64 = 1.25;

/// What the line was seen to carry is believed a little less with each look, and not at all if it was drowned so
/// often in a row.
const FADES: f64 = 0.9975;
const DISBELIEF: u32 = 6;

/// Held back no longer once nothing was drowned for so long.
const QUIET: Duration = Duration::from_secs(30);

/// No connection is held to less, in bytes a second.
const RATE_MIN: f64 = 64.0 * 1024.0;

/// What the kernel says of a connection. Counts are since it began.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub id: StripeId,
    /// Bytes that arrived at the peer, in any order.
    pub delivered: u64,
    /// Bytes sent, those sent again included, and those alone.
    pub sent: u64,
    pub again: u64,
    pub rtt: Duration,
    pub rtt_min: Duration,
}

/// Finds how fast connections may send.
#[derive(Debug, Default)]
pub struct Pacer {
    looked: Moment,
    before: BTreeMap<StripeId, Seen>,
    /// What each connection carries, in bytes a second, smoothed over two looks.
    rates: BTreeMap<StripeId, f64>,
    /// What all of them carried when it was most.
    best: f64,
    drowned: u32,
    /// There is no queue in front of the line.
    is_calm: bool,
    /// What all connections may carry; 0: as much as they can.
    allowed: f64,
    /// `None`: nobody is held back.
    gain: Option<f64>,
    drowned_at: Moment,
}

impl Pacer {
    /// Looks at all connections; gives the rates they are to be held to, in bytes a second, if those change.
    pub fn step(&mut self, now: Moment, seen: &[Seen]) -> Option<Vec<(StripeId, Option<u64>)>> {
        let is_drowned = self.measure(now, seen);
        self.drowned = if is_drowned { self.drowned + 1 } else { 0 };
        let was_held = self.gain.is_some();
        if self.drowned >= IN_A_ROW {
            self.drowned_at = now;
            self.gain = Some(GAIN_FIRST);
        } else if now.saturating_sub(self.drowned_at) >= QUIET {
            self.gain = None;
        } else {
            let (step, most) = if self.is_calm { (CALM_STEP, CALM_MAX) } else { (GAIN_STEP, GAIN_MAX) };
            self.gain = self.gain.map(|gain| (gain + step).min(most));
        }
        let limits: Vec<_> = seen.iter().map(|it| (it.id, self.limit(it.id))).collect();
        self.allowed = limits.iter().filter_map(|(_, limit)| *limit).sum::<u64>() as f64;
        (was_held || self.gain.is_some()).then_some(limits)
    }

    /// The line carries all it can, as far as anybody knows: connections are held back, and round trips are longer all the same.
    pub fn is_full(&self) -> bool {
        self.gain.is_some() && !self.is_calm
    }

    /// An equal share, or what it carries by itself where lines are not alike.
    fn limit(&self, id: StripeId) -> Option<u64> {
        let share = self.best / self.rates.len().max(1) as f64;
        let own = self.rates.get(&id).copied().unwrap_or(0.0);
        self.gain.map(|gain| (gain * own.max(share)).max(RATE_MIN) as u64)
    }

    /// Notes what was carried since the last look. True if the line was drowned.
    fn measure(&mut self, now: Moment, seen: &[Seen]) -> bool {
        let time = now.saturating_sub(self.looked).as_secs_f64().max(0.001);
        let (mut sent, mut again, mut rtt, mut rtt_min) = (0, 0, Duration::ZERO, Duration::ZERO);
        let mut now_carried = 0.0;
        let mut rates = BTreeMap::new();
        for it in seen {
            let Some(before) = self.before.get(&it.id) else { continue };
            let rate = it.delivered.saturating_sub(before.delivered) as f64 / time;
            let smooth = self.rates.get(&it.id).map_or(rate, |was| (was + rate) / 2.0);
            rates.insert(it.id, smooth);
            now_carried += rate;
            sent += it.sent.saturating_sub(before.sent);
            again += it.again.saturating_sub(before.again);
            rtt += it.rtt;
            rtt_min += it.rtt_min;
        }
        self.rates = rates;
        self.looked = now;
        self.before = seen.iter().map(|it| (it.id, *it)).collect();
        let carried: f64 = self.rates.values().sum();
        self.best = if self.drowned >= DISBELIEF { carried } else { carried.max(self.best * FADES) };
        let longer = rtt.as_secs_f64() / rtt_min.as_secs_f64().max(1e-6);
        self.is_calm =
            longer < CALM || (longer < LONGER && self.allowed > 0.0 && now_carried > ROOM * self.allowed);
        again as f64 > AGAIN * sent as f64 && longer > LONGER
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connections over lines of their own or of one, and what the kernel would say of them.
    struct World {
        pacer: Pacer,
        now: Moment,
        seen: Vec<Seen>,
        limits: BTreeMap<StripeId, Option<u64>>,
    }

    impl World {
        fn new(count: u32) -> World {
            let ms = Duration::from_millis;
            let one = |id| Seen { id, delivered: 0, sent: 0, again: 0, rtt: ms(55), rtt_min: ms(55) };
            let seen = (1..=count).map(one).collect();
            World { pacer: Pacer::default(), now: Moment::ZERO, seen, limits: BTreeMap::new() }
        }

        /// A look at connections that try to carry so much each, over a line that carries `line` in all.
        fn look(&mut self, wants: &[f64], line: f64) {
            self.look_with(wants, line, 1.0);
        }

        /// Where round trips are so many times the shortest although there is no queue.
        fn look_with(&mut self, wants: &[f64], line: f64, idle: f64) {
            let held = |id: StripeId, wants: f64| match self.limits.get(&id) {
                Some(Some(limit)) => wants.min(*limit as f64),
                _ => wants,
            };
            let sends: Vec<f64> = self.seen.iter().map(|it| held(it.id, wants[it.id as usize - 1])).collect();
            let through = (line / sends.iter().sum::<f64>()).min(1.0);
            for (it, rate) in self.seen.iter_mut().zip(&sends) {
                it.sent += (rate / 4.0) as u64;
                it.delivered += (rate * through / 4.0) as u64;
                it.again += (rate * (1.0 - through) / 4.0) as u64;
                it.rtt = it.rtt_min.mul_f64(if through < 1.0 { 2.0 } else { idle });
            }
            self.now += PACE_EVERY;
            let limits = self.pacer.step(self.now, &self.seen);
            self.limits.extend(limits.into_iter().flatten());
        }

        fn sum(&self) -> f64 {
            self.limits.values().map(|limit| limit.unwrap() as f64).sum()
        }
    }

    #[test]
    fn who_does_not_drown_the_line_is_not_held_back() {
        let mut world = World::new(4);
        (0..1000).for_each(|_| world.look(&[1e7; 4], 1e9));
        assert!(world.limits.is_empty());
        // Losses without longer round trips are the line's own.
        for it in &mut world.seen {
            it.again += 1 << 30;
            it.sent += 1 << 30;
        }
        (0..3).for_each(|_| world.look(&[1e7; 4], 1e9));
        assert!(world.limits.is_empty());
    }

    #[test]
    fn many_that_drown_their_line_are_held_to_what_it_carries() {
        let mut world = World::new(8);
        (0..3).for_each(|_| world.look(&[3e7; 8], 1.2e8));
        assert!((0.95..0.99).contains(&(world.sum() / 1.2e8)), "{:?}", world.limits);
        (0..20).for_each(|_| world.look(&[3e7; 8], 1.2e8));
        assert!((1.0..1.1).contains(&(world.sum() / 1.2e8)), "{:?}", world.limits);
    }

    #[test]
    fn a_line_that_was_seen_when_it_carried_little_is_soon_full() {
        let mut world = World::new(8);
        (0..4).for_each(|_| world.look(&[3e7; 8], 0.8e8));
        (0..12).for_each(|_| world.look(&[3e7; 8], 1.2e8));
        assert!(world.sum() > 1.15e8, "{:?}", world.limits);
    }

    #[test]
    fn a_line_that_becomes_faster_or_slower_is_found() {
        let mut world = World::new(8);
        (0..20).for_each(|_| world.look(&[1e8; 8], 1.2e8));
        (0..60).for_each(|_| world.look(&[1e8; 8], 2.4e8));
        assert!(world.sum() > 2.2e8, "{:?}", world.limits);
        (0..20).for_each(|_| world.look(&[1e8; 8], 0.6e8));
        assert!(world.sum() < 0.7e8, "{:?}", world.limits);
    }

    #[test]
    fn a_connection_over_a_faster_line_keeps_what_it_carries() {
        let mut world = World::new(4);
        (0..20).for_each(|_| world.look(&[6e7, 1e7, 1e7, 1e7], 6e7));
        let limit = |id| world.limits[&id].unwrap();
        assert!(limit(1) > 2 * limit(2), "{:?}", world.limits);
    }

    #[test]
    fn round_trips_of_a_busy_host_do_not_keep_it_from_finding_a_faster_line() {
        let mut world = World::new(8);
        (0..20).for_each(|_| world.look(&[1e8; 8], 0.6e8));
        (0..18).for_each(|_| world.look_with(&[1e8; 8], 1.2e8, 1.2));
        assert!(world.sum() > 1.15e8, "{:?}", world.limits);
    }

    #[test]
    fn a_line_is_full_while_its_connections_are_held_back_and_a_queue_stands_before_it() {
        let mut world = World::new(8);
        (0..3).for_each(|_| world.look(&[1e7; 8], 1.2e8));
        assert!(!world.pacer.is_full());
        (0..10).for_each(|_| world.look(&[3e7; 8], 1.2e8));
        assert!(world.pacer.is_full());
        (0..10).for_each(|_| world.look(&[1e6; 8], 1.2e8));
        assert!(!world.pacer.is_full());
    }

    #[test]
    fn in_the_end_it_is_tried_without() {
        let mut world = World::new(2);
        (0..4).for_each(|_| world.look(&[1e8; 2], 1e8));
        assert!(world.limits.values().all(Option::is_some));
        (0..200).for_each(|_| world.look(&[1e6; 2], 1e8));
        assert!(world.limits.values().all(Option::is_none));
    }
}
