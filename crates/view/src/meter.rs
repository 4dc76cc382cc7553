//! What a few looks at a transfer tell of its pace. Pure: looks and times come from outside.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use drover_mover::{Attribution, Snapshot};

use crate::text::sensible;

/// Rates are means over so much time: long enough to be steady, short enough to show a change.
const WINDOW: Duration = Duration::from_secs(5);
/// Over less time a rate is noise.
const SPAN_MIN: Duration = Duration::from_millis(500);
/// Looks kept, if they come faster than anyone should look.
const LOOKS_MAX: usize = 128;
/// A transfer slower than this, in bytes per second, stands still.
const RATE_MIN: f64 = 1.0;

/// The looks of the last few seconds, and one before them.
#[derive(Debug)]
pub(crate) struct Window<T> {
    looks: VecDeque<(Instant, T)>,
}

impl<T: Copy> Window<T> {
    pub(crate) fn since(start: Instant, first: T) -> Self {
        Window { looks: VecDeque::from([(start, first)]) }
    }

    pub(crate) fn add(&mut self, now: Instant, look: T) {
        self.looks.push_back((now, look));
        // The second look is the oldest that is young enough or about to be: the first may go.
        while self.looks.len() > 2 && self.looks[1].0 + WINDOW <= now || self.looks.len() > LOOKS_MAX {
            self.looks.pop_front();
        }
    }

    fn ends(&self) -> (&(Instant, T), &(Instant, T)) {
        // There is always a look: the one it began with, or a later one.
        (&self.looks[0], &self.looks[self.looks.len() - 1])
    }

    pub(crate) fn last(&self) -> T {
        self.ends().1.1
    }

    /// Growth per second of what `of` tells of a look.
    pub(crate) fn rate(&self, of: impl Fn(&T) -> u64) -> Option<f64> {
        let ((start, first), (end, last)) = self.ends();
        let time = end.saturating_duration_since(*start);
        let grown = of(last).checked_sub(of(first))?;
        (time >= SPAN_MIN).then(|| grown as f64 / time.as_secs_f64())
    }
}

/// Time to deal with `bytes` at that rate; unknown if it is not known or next to nothing.
pub(crate) fn time_for(bytes: u64, rate: Option<f64>) -> Option<Duration> {
    if bytes == 0 {
        return Some(Duration::ZERO);
    }
    let rate = rate.filter(|rate| *rate >= RATE_MIN)?;
    sensible(Duration::try_from_secs_f64(bytes as f64 / rate).ok())
}

/// The pace of one transfer.
#[derive(Debug)]
pub(crate) struct Meter(Window<Snapshot>);

impl Meter {
    /// Of a transfer that began then.
    pub(crate) fn since(start: Instant) -> Self {
        Meter(Window::since(start, Snapshot::default()))
    }

    pub(crate) fn add(&mut self, now: Instant, look: Snapshot) {
        self.0.add(now, look);
    }

    pub(crate) fn last(&self) -> Snapshot {
        self.0.last()
    }

    /// Bytes read per second.
    pub(crate) fn rate(&self) -> Option<f64> {
        self.0.rate(|look| look.read)
    }

    /// When it will have read all; unknown as long as nothing of the disk is described.
    pub(crate) fn left(&self) -> Option<Duration> {
        let look = self.last();
        let known = look.mapped > 0 || (look.size > 0 && look.done() == look.size);
        if known { time_for(look.left_to_read(), self.rate()) } else { None }
    }

    /// What its workers waited for most of late, and the share of their time.
    pub(crate) fn waits_for(&self) -> Option<(&'static str, f64)> {
        let ((_, first), (_, last)) = self.0.ends();
        let (stage, share) = minus(&last.attribution, &first.attribution).slowest();
        (share > 0.0).then_some((stage, share))
    }
}

fn minus(late: &Attribution, early: &Attribution) -> Attribution {
    Attribution {
        source_ns: late.source_ns.saturating_sub(early.source_ns),
        cpu_ns: late.cpu_ns.saturating_sub(early.cpu_ns),
        target_ns: late.target_ns.saturating_sub(early.target_ns),
        flush_ns: late.flush_ns.saturating_sub(early.flush_ns),
        idle_ns: late.idle_ns.saturating_sub(early.idle_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(read: u64) -> Snapshot {
        Snapshot { size: 10_000, mapped: 10_000, to_read: 10_000, read, settled: read, ..Snapshot::default() }
    }

    fn meter(looks: &[(u64, Snapshot)]) -> Meter {
        let start = Instant::now();
        let mut meter = Meter::since(start);
        looks.iter().for_each(|(ms, look)| meter.add(start + Duration::from_millis(*ms), *look));
        meter
    }

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let looks: Vec<_> =
            (1..=20).map(|s| (s * 1000, look(if s < 10 { s * 100 } else { s * 500 - 4000 }))).collect();
        let meter = meter(&looks);
        assert_eq!(meter.rate(), Some(500.0));
        assert_eq!(meter.left(), Some(Duration::from_secs(8)));
        assert!(meter.0.looks.len() <= 7);
    }

    #[test]
    fn nothing_is_estimated_from_too_little() {
        assert_eq!(meter(&[]).rate(), None);
        assert_eq!(meter(&[]).left(), None);
        let short = meter(&[(100, look(5000))]);
        assert_eq!((short.rate(), short.left()), (None, None));
        let undescribed = Snapshot { size: 1000, ..Snapshot::default() };
        assert_eq!(meter(&[(1000, undescribed)]).left(), None);
    }

    #[test]
    fn a_stalled_transfer_has_no_end_in_sight() {
        let looks: Vec<_> = (1..=10).map(|s| (s * 1000, look(700))).collect();
        let stalled = meter(&looks);
        assert_eq!(stalled.rate(), Some(0.0));
        assert_eq!(stalled.left(), None);
    }

    #[test]
    fn an_end_beyond_sense_is_unknown() {
        let far = |read| Snapshot {
            size: u64::MAX,
            mapped: 1 << 40,
            to_read: 1 << 40,
            read,
            ..Snapshot::default()
        };
        assert_eq!(meter(&[(1000, far(2))]).left(), None);
        assert_eq!(meter(&[(1000, far(0)), (2000, far(2))]).left(), None);
    }

    #[test]
    fn what_is_read_needs_no_more_time() {
        assert_eq!(meter(&[(10, look(10_000))]).left(), Some(Duration::ZERO));
        let resumed = Snapshot { size: 500, resumed: 500, mapped: 500, ..Snapshot::default() };
        assert_eq!(meter(&[(10, resumed)]).left(), Some(Duration::ZERO));
    }

    #[test]
    fn counters_that_fall_give_no_rate() {
        let mut falling = meter(&[(1000, look(5000))]);
        falling.0.looks.pop_front();
        falling.add(Instant::now() + Duration::from_secs(3), look(10));
        assert_eq!(falling.rate(), None);
    }

    #[test]
    fn it_waits_for_what_took_most_of_late() {
        let time = |source_ns, target_ns| Snapshot {
            attribution: Attribution { source_ns, target_ns, ..Attribution::default() },
            ..look(1)
        };
        let early = [(1000, time(900, 0)), (2000, time(900, 0))];
        let late = (3..=8).map(|s| (s * 1000, time(950, s * 50)));
        let looks: Vec<_> = early.into_iter().chain(late).collect();
        let (stage, share) = meter(&looks).waits_for().unwrap();
        assert_eq!(stage, "target");
        assert!(share > 0.8, "{share}");
        assert_eq!(meter(&[(1000, look(1))]).waits_for(), None);
    }

    #[test]
    fn looks_are_bounded() {
        let looks: Vec<_> = (1..=10_000).map(|ms| (ms / 10, look(ms))).collect();
        assert!(meter(&looks).0.looks.len() <= LOOKS_MAX);
    }
}
