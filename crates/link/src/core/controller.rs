//! How many connections a session should have, found by measuring.
//!
//! Some lines give each TCP connection a share only, or lose so much that one connection cannot fill them;
//! others are filled by one, and more would only compete with each other. So twice as many are tried, and
//! kept for a gain of 8 %; else it goes back, and waits longer each time before it tries again. Only times
//! in which frames waited for a connection count: what the line could carry is not known otherwise.
//!
//! A try has its price: new connections drown a line that is full, and when they go again those that stay have half
//! of it and need seconds to take the rest. So where the line seems full a quarter more is tried; what they bring tells
//! a line that gives each connection a share, with a queue for each of them, from one that is full indeed.

use std::time::Duration;

use super::Moment;

/// Connections when a session begins.
pub const STRIPES_START: usize = 4;

/// A peer with such a round trip is far.
const FAR: Duration = Duration::from_millis(10);

/// Connections at most, if nothing else is said.
pub const STRIPES_MAX: usize = 32;

/// What more connections have to bring to be kept.
const GAIN: f64 = 1.08;

/// Where each has a share of its own more bring more, nearly in proportion: so much of it at least.
const PROPORTION: f64 = 0.6;

/// New connections take so long until they show what they can, at least; and so many round trips.
const SETTLE_MIN: Duration = Duration::from_millis(1500);
const SETTLE_ROUND_TRIPS: u32 = 10;

/// How long is measured, likewise.
const MEASURE_MIN: Duration = Duration::from_secs(2);
const MEASURE_ROUND_TRIPS: u32 = 20;

/// How long nothing is tried after a try that brought nothing; doubles each time.
const HOLD_FIRST: Duration = Duration::from_secs(30);
const HOLD_MAX: Duration = Duration::from_secs(600);

/// How many connections there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StripeBounds {
    /// At the beginning; twice as many if the peer is [far](StripeBounds::for_round_trip).
    pub start: usize,
    /// At least.
    pub min: usize,
    /// At most.
    pub max: usize,
}

impl Default for StripeBounds {
    fn default() -> Self {
        StripeBounds { start: STRIPES_START, min: 1, max: STRIPES_MAX }
    }
}

impl StripeBounds {
    /// The same with twice as many at the beginning, if the round trip is 10 ms or more: such lines often give each
    /// connection a share only, and to find that out takes seconds.
    #[must_use]
    pub fn for_round_trip(self, rtt: Duration) -> StripeBounds {
        let times = if rtt >= FAR { 2 } else { 1 };
        StripeBounds { start: self.start.saturating_mul(times), ..self }
    }

    /// Always so many.
    pub fn fixed(count: usize) -> StripeBounds {
        StripeBounds { start: count, min: count, max: count }
    }
}

/// What is known at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Time.
    pub now: Moment,
    /// Bytes that were carried, both ways, since the session began.
    pub bytes: u64,
    /// Frames wait for a connection, on either side.
    pub is_backlogged: bool,
    /// Connections that work.
    pub healthy: usize,
    /// Round-trip time.
    pub rtt: Duration,
    /// The line carries all it can, as far as its round trips and losses tell.
    pub is_full: bool,
}

/// Finds the number of connections.
#[derive(Debug)]
pub struct Controller {
    bounds: StripeBounds,
    wanted: usize,
    phase: Phase,
    /// The number before the one that is being tried, and what it carried in bytes a second.
    before: Option<(usize, f64)>,
    /// The line seemed full at some moment of what is being measured.
    was_full: bool,
    hold: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    Settle { until: Moment },
    Measure { since: Moment, bytes: u64 },
    Hold { until: Moment },
}

impl Controller {
    /// Begins at the start that `bounds` give.
    pub fn new(bounds: StripeBounds) -> Controller {
        let max = bounds.max.max(1);
        let bounds = StripeBounds { min: bounds.min.clamp(1, max), max, ..bounds };
        Controller {
            wanted: bounds.start.clamp(bounds.min, bounds.max),
            bounds,
            phase: Phase::Settle { until: SETTLE_MIN },
            before: None,
            was_full: false,
            hold: HOLD_FIRST,
        }
    }

    /// How many connections there should be.
    pub fn wanted(&self) -> usize {
        self.wanted
    }

    /// Looks at what was carried since the last look; asked some times a second.
    pub fn step(&mut self, step: Step) {
        let is_telling = step.is_backlogged && step.healthy >= self.wanted;
        match self.phase {
            Phase::Hold { until } if step.now < until => {}
            Phase::Settle { until } if step.now < until => {}
            Phase::Hold { .. } | Phase::Settle { .. } => self.begin(step),
            Phase::Measure { .. } if !is_telling => self.begin(step),
            Phase::Measure { since, bytes } => {
                self.was_full |= step.is_full;
                let time = step.now - since;
                if time >= MEASURE_MIN.max(step.rtt * MEASURE_ROUND_TRIPS) {
                    self.measured((step.bytes - bytes) as f64 / time.as_secs_f64(), step);
                }
            }
        }
    }

    fn begin(&mut self, step: Step) {
        self.was_full = step.is_full;
        self.phase = Phase::Measure { since: step.now, bytes: step.bytes };
    }

    fn measured(&mut self, rate: f64, step: Step) {
        match self.before.take() {
            Some((count, before)) if rate < before * GAIN => {
                self.wanted = count;
                self.phase = Phase::Hold { until: step.now + self.hold };
                self.hold = (self.hold * 2).min(HOLD_MAX);
            }
            before if self.wanted < self.bounds.max => {
                let is_shared = before.is_some_and(|(count, before)| {
                    let more = self.wanted as f64 / count as f64 - 1.0;
                    rate >= before * (1.0 + PROPORTION * more)
                });
                let more = if self.was_full && !is_shared { self.wanted.div_ceil(4) } else { self.wanted };
                self.before = Some((self.wanted, rate));
                self.wanted = (self.wanted + more).min(self.bounds.max);
                let settle = SETTLE_MIN.max(step.rtt * SETTLE_ROUND_TRIPS);
                self.phase = Phase::Settle { until: step.now + settle };
            }
            _ => self.phase = Phase::Hold { until: step.now + HOLD_MAX },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a line that carries `rate(connections)` for that long; gives the number wanted at each look.
    fn run(controller: &mut Controller, seconds: u64, busy: bool, rate: impl Fn(usize) -> f64) -> Vec<usize> {
        run_on(controller, seconds, busy, false, rate)
    }

    fn run_on(
        controller: &mut Controller,
        seconds: u64,
        busy: bool,
        is_full: bool,
        rate: impl Fn(usize) -> f64,
    ) -> Vec<usize> {
        let (mut bytes, mut wanted) = (0.0, Vec::new());
        for look in 0..seconds * 2 {
            bytes += rate(controller.wanted()) / 2.0;
            controller.step(Step {
                now: Duration::from_millis(look * 500),
                bytes: bytes as u64,
                is_backlogged: busy,
                healthy: controller.wanted(),
                rtt: Duration::from_millis(55),
                is_full,
            });
            wanted.push(controller.wanted());
        }
        wanted
    }

    #[test]
    fn a_line_that_gives_each_connection_a_share_gets_many() {
        let mut controller = Controller::new(StripeBounds::default());
        let line = |count: usize| (count as f64 * 5e6).min(125e6);
        let wanted = run(&mut controller, 60, true, line);
        assert_eq!(*wanted.last().unwrap(), 32, "{wanted:?}");
    }

    #[test]
    fn a_far_peer_gets_more_from_the_beginning_within_the_bounds() {
        let wanted = |bounds: StripeBounds, ms| {
            Controller::new(bounds.for_round_trip(Duration::from_millis(ms))).wanted()
        };
        assert_eq!((wanted(StripeBounds::default(), 9), wanted(StripeBounds::default(), 10)), (4, 8));
        assert_eq!(
            (wanted(StripeBounds::fixed(5), 55), wanted(StripeBounds { start: 20, min: 1, max: 32 }, 55)),
            (5, 32)
        );
    }

    #[test]
    fn a_line_policed_to_a_fifth_each_is_filled() {
        let mut controller = Controller::new(StripeBounds::default());
        let wanted = run(&mut controller, 60, true, |count| (count as f64 * 23e6).min(115e6));
        assert_eq!(*wanted.last().unwrap(), 8, "{wanted:?}");
    }

    #[test]
    fn a_clean_line_keeps_few_and_is_rarely_bothered() {
        let mut controller = Controller::new(StripeBounds::default());
        let wanted = run(&mut controller, 3600, true, |_| 1e9);
        let tries = wanted.windows(2).filter(|pair| pair[1] > pair[0]).count();
        assert!((1..=11).contains(&tries), "{tries}");
        assert!(wanted.iter().all(|it| *it == 4 || *it == 8));
        let many = wanted.iter().filter(|it| **it > 4).count();
        assert!(many * 50 < wanted.len(), "{many} of {}", wanted.len());
    }

    #[test]
    fn a_full_line_is_tried_with_few_more() {
        let mut controller = Controller::new(StripeBounds { start: 8, ..StripeBounds::default() });
        let wanted = run_on(&mut controller, 60, true, true, |_| 115e6);
        assert!(wanted.contains(&10) && wanted.iter().all(|it| [8, 10].contains(it)), "{wanted:?}");
        assert_eq!(*wanted.last().unwrap(), 8);
    }

    #[test]
    fn a_line_with_a_queue_for_each_connection_gets_many_though_it_seems_full() {
        let mut controller = Controller::new(StripeBounds { start: 8, ..StripeBounds::default() });
        let wanted = run_on(&mut controller, 12, true, true, |count| (count as f64 * 5e6).min(125e6));
        assert_eq!((wanted.contains(&10), *wanted.last().unwrap()), (true, 32), "{wanted:?}");
    }

    #[test]
    fn more_that_bring_little_do_not_make_a_full_line_one_of_shares() {
        let mut controller = Controller::new(StripeBounds { start: 8, ..StripeBounds::default() });
        let mut wanted = run(&mut controller, 4, true, |_| 90e6);
        assert_eq!(controller.wanted(), 16, "{wanted:?}");
        // It began badly: twice as many carry a third more, and the line is full.
        controller.phase = Phase::Settle { until: Duration::ZERO };
        wanted = run_on(&mut controller, 8, true, true, |_| 120e6);
        assert!(wanted.contains(&20) && !wanted.contains(&32), "{wanted:?}");
    }

    #[test]
    fn nothing_is_tried_while_the_line_is_not_what_limits() {
        let mut controller = Controller::new(StripeBounds::default());
        let wanted = run(&mut controller, 600, false, |count| count as f64 * 1e6);
        assert!(wanted.iter().all(|it| *it == 4));
    }

    #[test]
    fn a_fixed_number_stays() {
        let mut controller = Controller::new(StripeBounds::fixed(5));
        let wanted = run(&mut controller, 600, true, |count| count as f64 * 1e6);
        assert!(wanted.iter().all(|it| *it == 5));
        assert_eq!(Controller::new(StripeBounds { start: 0, min: 0, max: 0 }).wanted(), 1);
    }
}
