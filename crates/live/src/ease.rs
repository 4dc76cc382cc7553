//! Sends the end of memory slower than the line carries it.
//!
//! A link takes from QEMU what it sends only later: some megabytes wait before the line, about a round trip's worth waits in it, and
//! of both something is lost and goes again. To QEMU that is sent. It stops the guest when nothing more is left, which then stands
//! still until all of that has arrived. So the last of it is sent at a quarter of the line's rate: what waits goes, what was lost goes
//! again, and the guest runs meanwhile. In its last step, when the guest stands, QEMU keeps no rate.
//!
//! It lasts for a moment, and comes once: QEMU stops the guest when what is left fits the downtime at the rate that it sees, so a guest
//! that writes may need the whole line to come to its end.

use std::time::Duration;

use crate::watch::{Phase, Sample};

/// Bytes that a link may hold before the line.
const HELD_BYTES: f64 = 8e6;
/// A wait that is shorter is not worth a slower end, and would be missed between two looks; where it is longer, the end would
/// take seconds.
const WAIT_MIN_S: f64 = 0.03;
const WAIT_MAX_S: f64 = 0.4;
/// Sent slower, of what the line carries.
const EASED_SHARE: f64 = 0.25;
/// Nothing is gained above this share.
const EASED_SHARE_MAX: f64 = 0.7;
/// Of what may be sent, what the line carries where something waits before it: else less is sent than it could carry.
const HELD_UP_SHARE: f64 = 0.9;
/// Sent for each byte that is written to, at least: else passes would not shrink.
const TIMES_DIRTY: f64 = 2.0;
/// The line is measured from here on, when what can wait does, by spans of so long.
const MEASURED_FROM_MS: u64 = 300;
const SPAN_MS: u64 = 300;
/// Of the way to the end, when to look closely.
const CLOSE: f64 = 3.0;
/// It goes slower for so much longer than it would take by these figures, at most.
const LONGER: f64 = 1.5;
/// And so many times as long must be left before the deadline.
const TIMES_LEFT: u64 = 4;

/// Sees to the end of one move.
#[derive(Clone, Debug)]
pub struct Ease {
    round_trip: Duration,
    /// By which the end begins earlier.
    late: Duration,
    deadline_ms: u64,
    /// Bytes of pages that are written to in a second, as far as that was measured before.
    dirty: f64,
    /// What may be sent, as it was said last.
    rate_max: u64,
    /// The begin of the span in which the line is measured, and what came out of the last two.
    from: Option<Sample>,
    spans: [f64; 2],
    state: State,
    /// The pass, and when it began.
    pass: (u64, u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Full,
    /// Until then at most.
    Eased {
        until_ms: u64,
    },
    Over,
}

impl Ease {
    /// Of a move over a line with this round trip, of a guest that writes to so many bytes of pages in a second.
    pub fn new(round_trip: Duration, deadline: Duration, dirty: f64) -> Ease {
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        let (late, from, spans, state) = (Duration::ZERO, None, [0.0; 2], State::Full);
        Ease { round_trip, late, deadline_ms, dirty, rate_max: 0, from, spans, state, pass: (0, 0) }
    }

    /// What it says is done so much later than what it says it of.
    pub fn done_late(&mut self, late: Duration) {
        self.late = late;
    }

    /// Takes in a sample, of a source that may send so many bytes a second: what it may from now on, if that changes. Whoever
    /// says another number than before has set that already.
    pub fn see(&mut self, sample: &Sample, rate_max: u64) -> Option<u64> {
        if std::mem::replace(&mut self.rate_max, rate_max) != rate_max {
            self.is_away();
            self.state = if self.is_eased() { State::Over } else { self.state };
        }
        if sample.phase != Phase::Precopy {
            return None;
        }
        if self.pass.0 != sample.passes {
            self.pass = (sample.passes, sample.at_ms);
        }
        match self.state {
            State::Full => {
                self.measure(sample);
                self.begin(sample)
            }
            State::Eased { until_ms } => self.end(sample, until_ms),
            State::Over => None,
        }
    }

    /// What carries the move does not at this moment: what was measured of the line counts no more.
    pub fn is_away(&mut self) {
        (self.from, self.spans) = (None, [0.0; 2]);
    }

    /// Whether less is sent than the line carries.
    pub fn is_eased(&self) -> bool {
        matches!(self.state, State::Eased { .. })
    }

    fn begin(&mut self, sample: &Sample) -> Option<u64> {
        let (line, wait_s) = self.line()?;
        let eased = self.eased(sample, line);
        let takes_ms = (line * wait_s / eased * LONGER * 1000.0) as u64;
        let has_time = sample.at_ms.saturating_add(takes_ms * TIMES_LEFT) <= self.deadline_ms;
        if !has_time || !self.helps(sample, line) || self.to_come(sample) > line * wait_s {
            return None;
        }
        self.state = State::Eased { until_ms: sample.at_ms + takes_ms };
        Some(eased as u64)
    }

    fn end(&mut self, sample: &Sample, until_ms: u64) -> Option<u64> {
        let has_more =
            self.line().is_none_or(|(line, wait_s)| sample.left_bytes as f64 > line * wait_s * 2.0);
        if !has_more && sample.at_ms < until_ms {
            return None;
        }
        // Another pass, with more than was thought, or many small ones.
        self.state = State::Over;
        Some(self.rate_max)
    }

    /// What was decided, if it is slower: the rate, and what it was decided from.
    pub fn words(&self, rate: u64, sample: &Sample) -> Option<String> {
        let (line, _) = self.line().filter(|_| self.is_eased())?;
        let mb = |bytes: f64| bytes / 1e6;
        Some(format!(
            "the last {:.0} MB go at {:.0} MB/s, of {:.0} that the line carries: what waits before it goes while the guest runs",
            mb(sample.left_bytes as f64),
            mb(rate as f64),
            mb(line)
        ))
    }

    /// Whether the end is so near that a look comes too late that comes as usual.
    pub fn is_close(&self, sample: &Sample) -> bool {
        let is_open = self.state != State::Over && sample.phase == Phase::Precopy;
        let is_near =
            |(line, wait_s)| self.helps(sample, line) && self.to_come(sample) <= line * wait_s * CLOSE;
        is_open && self.line().is_some_and(is_near)
    }

    /// Bytes a second of the slower end.
    fn eased(&self, sample: &Sample, line: f64) -> f64 {
        (line * EASED_SHARE).max(self.dirty(sample) * TIMES_DIRTY)
    }

    fn helps(&self, sample: &Sample, line: f64) -> bool {
        self.eased(sample, line) <= line * EASED_SHARE_MAX && line <= self.rate_max as f64 * HELD_UP_SHARE
    }

    /// What the line carries, and for how long before its end it goes slower: for which something waits there that QEMU has sent. Of
    /// two spans the better one: in one of pages that hold nothing, little is sent.
    fn line(&self) -> Option<(f64, f64)> {
        let line = self.spans[0].max(self.spans[1]);
        let wait_s = HELD_BYTES / line + self.round_trip.as_secs_f64();
        let is_worth_it = (WAIT_MIN_S..=WAIT_MAX_S).contains(&wait_s);
        is_worth_it.then_some((line, wait_s + self.late.as_secs_f64()))
    }

    fn measure(&mut self, sample: &Sample) {
        if sample.at_ms < MEASURED_FROM_MS {
            return;
        }
        let from = *self.from.get_or_insert(*sample);
        let span_ms = sample.at_ms.saturating_sub(from.at_ms);
        if span_ms >= SPAN_MS {
            let rate = sample.gone_bytes.saturating_sub(from.gone_bytes) as f64 * 1000.0 / span_ms as f64;
            self.spans = [self.spans[1], rate];
            self.from = Some(*sample);
        }
    }

    fn dirty(&self, sample: &Sample) -> f64 {
        if sample.dirty_bytes_per_s > 0 { sample.dirty_bytes_per_s as f64 } else { self.dirty }
    }

    /// Bytes that are to be sent before the end, as it looks in this pass.
    fn to_come(&self, sample: &Sample) -> f64 {
        let pass_s = sample.at_ms.saturating_sub(self.pass.1) as f64 / 1000.0;
        sample.left_bytes as f64 + self.dirty(sample) * pass_s
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1_000_000;
    const ANY: u64 = 100_000 * MB;
    const FAR: Duration = Duration::from_millis(55);
    const LATER: Duration = Duration::from_secs(60);

    /// A line of so many MB/s that has been measured, where so much may be sent, at the begin of the second pass.
    fn measured_within(mut ease: Ease, line: u64, rate_max: u64) -> (Ease, Sample) {
        let at = |at_ms: u64| Sample {
            at_ms,
            phase: Phase::Precopy,
            gone_bytes: at_ms * line * MB / 1000,
            left_bytes: 500 * MB,
            passes: 1,
            ..Sample::default()
        };
        for at_ms in (0..=2_000).step_by(100) {
            assert_eq!(ease.see(&at(at_ms), rate_max), None);
        }
        (ease, Sample { passes: 2, ..at(2_000) })
    }

    /// The same with 100 MB/s.
    fn measured(round_trip: Duration, dirty: u64) -> (Ease, Sample) {
        measured_within(Ease::new(round_trip, LATER, dirty as f64), 100, ANY)
    }

    fn left(sample: Sample, bytes: u64) -> Sample {
        Sample { left_bytes: bytes, ..sample }
    }

    #[test]
    fn the_end_goes_slower_for_a_moment_and_once() {
        let (mut ease, sample) = measured(FAR, 0);
        assert_eq!(ease.see(&left(sample, 20 * MB), ANY), None);
        assert!(ease.is_close(&left(sample, 20 * MB)) && !ease.is_close(&left(sample, 60 * MB)));
        assert_eq!(ease.see(&left(sample, 12 * MB), ANY), Some(25 * MB));
        let words = ease.words(25 * MB, &left(sample, 12 * MB)).unwrap();
        assert!(words.starts_with("the last 12 MB go at 25 MB/s, of 100 "), "{words}");
        let at = |ms| Sample { at_ms: sample.at_ms + ms, ..left(sample, 5 * MB) };
        // Half as long again as 13.5 MB take.
        assert_eq!((ease.see(&at(809), ANY), ease.is_eased()), (None, true));
        // Each pass leaves as much: it needs the whole line.
        assert_eq!((ease.see(&at(810), ANY), ease.is_eased()), (Some(ANY), false));
        assert_eq!((ease.see(&at(2_000), ANY), ease.is_close(&at(2_000))), (None, false));
    }

    #[test]
    fn where_it_is_done_late_it_is_said_earlier() {
        let (mut ease, sample) = measured(FAR, 0);
        ease.done_late(Duration::from_millis(100));
        assert_eq!(ease.see(&left(sample, 24 * MB), ANY), None);
        assert!(ease.is_close(&left(sample, 70 * MB)) && !ease.is_close(&left(sample, 71 * MB)));
        assert_eq!(ease.see(&left(sample, 23 * MB), ANY), Some(25 * MB));
    }

    #[test]
    fn a_pass_with_much_in_it_goes_at_full_speed_again() {
        let (mut ease, sample) = measured(FAR, 0);
        assert!(ease.see(&left(sample, 10 * MB), ANY).is_some());
        let next = Sample { passes: 3, ..left(sample, 40 * MB) };
        assert_eq!((ease.see(&next, ANY), ease.see(&next, ANY)), (Some(ANY), None));
    }

    #[test]
    fn of_a_guest_that_writes_the_pass_counts_whose_writes_are_few() {
        let (mut ease, sample) = measured(FAR, 25 * MB);
        let later = Sample { at_ms: 3_000, gone_bytes: 300 * MB, ..left(sample, 5 * MB) };
        assert_eq!(ease.see(&left(sample, 50 * MB), ANY), None);
        assert_eq!(ease.see(&later, ANY), None, "25 MB were written in this pass");
        let next = Sample { passes: 3, ..left(later, 10 * MB) };
        // Twice what is written, at least.
        assert_eq!(ease.see(&next, ANY), Some(50 * MB));
    }

    #[test]
    fn a_guest_that_writes_almost_as_fast_as_the_line_is_not_eased() {
        let (mut ease, sample) = measured(FAR, 0);
        let hot = Sample { dirty_bytes_per_s: 40 * MB, ..left(sample, MB) };
        assert_eq!(ease.see(&hot, ANY), None);
    }

    #[test]
    fn where_nothing_waits_long_or_all_does_nothing_goes_slower() {
        // 100 MB/s nearby: 8 MB wait for 80 ms.
        let (mut ease, sample) = measured(Duration::ZERO, 0);
        assert_eq!(ease.see(&left(sample, 9 * MB), ANY), None);
        assert!(ease.see(&left(sample, 8 * MB), ANY).is_some());
        for line in [1_000, 10] {
            let near = Ease::new(Duration::ZERO, LATER, 0.0);
            let (mut ease, sample) = measured_within(near, line, ANY);
            let last = left(sample, 0);
            assert_eq!((ease.see(&last, ANY), ease.is_close(&last)), (None, false), "{line}");
        }
    }

    #[test]
    fn what_is_not_measured_or_over_is_left_alone() {
        let mut ease = Ease::new(FAR, LATER, 0.0);
        let young = Sample { at_ms: 100, phase: Phase::Precopy, gone_bytes: MB, ..Sample::default() };
        assert_eq!((ease.see(&young, ANY), ease.is_close(&young)), (None, false));
        let (mut ease, sample) = measured(FAR, 0);
        assert_eq!(ease.see(&Sample { phase: Phase::Switchover, ..left(sample, MB) }, ANY), None);
        let soon = Ease::new(FAR, Duration::from_secs(5), 0.0);
        let (mut ease, sample) = measured_within(soon, 100, ANY);
        assert_eq!(ease.see(&left(sample, MB), ANY), None, "the deadline is near");
    }

    #[test]
    fn where_less_is_sent_than_the_line_carries_nothing_goes_slower() {
        for (rate_max, eased) in [(105 * MB, None), (120 * MB, Some(25 * MB))] {
            let (mut ease, sample) = measured_within(Ease::new(FAR, LATER, 0.0), 100, rate_max);
            assert_eq!(ease.see(&left(sample, MB), rate_max), eased);
        }
    }

    #[test]
    fn a_line_that_was_away_or_shared_otherwise_is_measured_anew() {
        let (mut ease, sample) = measured(FAR, 0);
        ease.is_away();
        assert_eq!(ease.see(&left(sample, MB), ANY), None);
        let (mut ease, sample) = measured(FAR, 0);
        assert_eq!(ease.see(&left(sample, MB), 200 * MB), None);
        assert_eq!(ease.see(&left(sample, MB), 200 * MB), None);
        // It went slower, and was set to the new share meanwhile.
        let (mut ease, sample) = measured(FAR, 0);
        assert!(ease.see(&left(sample, MB), ANY).is_some());
        assert_eq!((ease.see(&left(sample, MB), 200 * MB), ease.is_eased()), (None, false));
        // It was cut while it went slower: it ends at full speed.
        let (mut ease, sample) = measured(FAR, 0);
        assert!(ease.see(&left(sample, MB), ANY).is_some());
        ease.is_away();
        assert_eq!((ease.see(&left(sample, MB), ANY), ease.is_eased()), (Some(ANY), false));
    }

    #[test]
    fn pages_that_hold_nothing_do_not_make_the_line_slower() {
        let (mut ease, sample) = measured(FAR, 0);
        // Nothing was sent for a third of a second.
        let zeros = Sample { at_ms: sample.at_ms + 300, ..left(sample, 13 * MB) };
        assert_eq!(ease.see(&zeros, ANY), Some(25 * MB));
    }
}
