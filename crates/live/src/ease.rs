//! Sends the end of memory slower than the line carries it.
//!
//! A link takes from QEMU what it sends only later: some megabytes wait before the line, about a round trip's worth waits in it, and
//! of both something is lost and goes again. To QEMU that is sent. It stops the guest when nothing more is left, which then stands
//! still until all of that has arrived. So the last of it is sent at half the line's rate: what waits goes, what was lost goes again,
//! and the guest runs meanwhile. In its last step, when the guest stands, QEMU keeps no rate.

use std::time::Duration;

use crate::watch::{Phase, Sample};

/// Bytes that a link may hold before the line.
const HELD_BYTES: f64 = 8e6;
/// A wait that is shorter is not worth a slower end, and would be missed between two looks.
const WAIT_MIN_S: f64 = 0.03;
/// Sent slower, of what the line carries.
const EASED_SHARE: f64 = 0.25;
/// Nothing is gained above this share.
const EASED_SHARE_MAX: f64 = 0.7;
/// Of what may be sent, what the line carries where something waits before it: else less is sent than it could carry.
const HELD_UP_SHARE: f64 = 0.9;
/// Sent for each byte that is written to, at least: else passes would not shrink.
const TIMES_DIRTY: f64 = 2.0;
/// The line is measured from here on, when what can wait does, and for so long at least.
const MEASURED_FROM_MS: u64 = 300;
const MEASURED_MS: u64 = 300;
/// Of the way to the end, when to look closely.
const CLOSE: f64 = 3.0;

/// Sees to the end of one move.
#[derive(Clone, Debug)]
pub struct Ease {
    round_trip: Duration,
    /// Bytes of pages that are written to in a second, as far as that was measured before.
    dirty: f64,
    /// Where the line's rate is measured from, and what came out, until it is slowed down.
    from: Option<Sample>,
    line: Option<f64>,
    is_eased: bool,
    /// The pass, and when it began.
    pass: (u64, u64),
}

impl Ease {
    /// Of a move over a line with this round trip, of a guest that writes to so many bytes of pages in a second.
    pub fn new(round_trip: Duration, dirty: f64) -> Ease {
        Ease { round_trip, dirty, from: None, line: None, is_eased: false, pass: (0, 0) }
    }

    /// Takes in a sample, of a source that may send so many bytes a second. What it may from now on, if that changes.
    pub fn see(&mut self, sample: &Sample, rate_max: u64) -> Option<u64> {
        if sample.phase != Phase::Precopy {
            return None;
        }
        self.measure(sample);
        if self.pass.0 != sample.passes {
            self.pass = (sample.passes, sample.at_ms);
        }
        let line = self.line?;
        let near = line * self.wait_s(line)?;
        if self.is_eased {
            // Another pass, with more than was thought.
            self.is_eased = sample.left_bytes as f64 <= near * 2.0;
            return (!self.is_eased).then_some(rate_max);
        }
        let eased = (line * EASED_SHARE).max(self.dirty(sample) * TIMES_DIRTY);
        let helps = eased <= line * EASED_SHARE_MAX && line <= rate_max as f64 * HELD_UP_SHARE;
        self.is_eased = helps && self.to_come(sample) <= near;
        self.is_eased.then_some(eased as u64)
    }

    /// What was decided, if it is slower: the rate, and what it was decided from.
    pub fn words(&self, rate: u64, sample: &Sample) -> Option<String> {
        let line = self.line.filter(|_| self.is_eased)?;
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
        let Some((line, wait_s)) = self.line.and_then(|line| Some((line, self.wait_s(line)?))) else {
            return false;
        };
        sample.phase == Phase::Precopy && self.to_come(sample) <= line * wait_s * CLOSE
    }

    /// For which something waits that QEMU has sent.
    fn wait_s(&self, line: f64) -> Option<f64> {
        let wait_s = HELD_BYTES / line.max(1.0) + self.round_trip.as_secs_f64();
        (wait_s >= WAIT_MIN_S).then_some(wait_s)
    }

    fn measure(&mut self, sample: &Sample) {
        if self.is_eased || sample.at_ms < MEASURED_FROM_MS {
            return;
        }
        let from = *self.from.get_or_insert(*sample);
        let span_ms = sample.at_ms - from.at_ms;
        // QEMU may wait between two passes; the line is none the slower.
        if span_ms >= MEASURED_MS && sample.gone_bytes > from.gone_bytes {
            let rate = (sample.gone_bytes - from.gone_bytes) as f64 * 1000.0 / span_ms as f64;
            self.line = Some(rate);
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

    /// A line of 100 MB/s that has been measured, with so much left in this pass, which has just begun.
    fn measured(round_trip: Duration, dirty: u64) -> (Ease, Sample) {
        let mut ease = Ease::new(round_trip, dirty as f64);
        let at = |at_ms: u64| Sample {
            at_ms,
            phase: Phase::Precopy,
            gone_bytes: at_ms * MB / 10,
            left_bytes: 500 * MB,
            passes: 1,
            ..Sample::default()
        };
        for at_ms in (0..=2_000).step_by(100) {
            assert_eq!(ease.see(&at(at_ms), ANY), None);
        }
        (ease, Sample { passes: 2, ..at(2_000) })
    }

    fn left(sample: Sample, bytes: u64) -> Sample {
        Sample { left_bytes: bytes, ..sample }
    }

    #[test]
    fn the_end_goes_slower_once() {
        let (mut ease, sample) = measured(FAR, 0);
        assert_eq!(ease.see(&left(sample, 20 * MB), ANY), None);
        assert!(ease.is_close(&left(sample, 20 * MB)) && !ease.is_close(&left(sample, 60 * MB)));
        assert_eq!(ease.see(&left(sample, 12 * MB), ANY), Some(45 * MB));
        let words = ease.words(45 * MB, &left(sample, 12 * MB)).unwrap();
        assert!(words.starts_with("the last 12 MB go at 45 MB/s, of 100 "), "{words}");
        assert_eq!(ease.see(&left(sample, 6 * MB), ANY), None);
        assert_eq!(ease.see(&left(sample, 0), ANY), None);
    }

    #[test]
    fn a_pass_with_much_in_it_goes_at_full_speed_again() {
        let (mut ease, sample) = measured(FAR, 0);
        assert!(ease.see(&left(sample, 10 * MB), ANY).is_some());
        let next = Sample { passes: 3, ..left(sample, 40 * MB) };
        assert_eq!((ease.see(&next, ANY), ease.see(&next, ANY)), (Some(ANY), None));
        // What was sent slower is not what the line carries.
        assert_eq!(ease.see(&left(next, 10 * MB), ANY), Some(45 * MB));
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
    fn where_nothing_waits_long_nothing_goes_slower() {
        // 100 MB/s nearby: 8 MB wait for 80 ms. A tenth of that is nothing.
        let (mut ease, sample) = measured(Duration::ZERO, 0);
        assert_eq!(ease.see(&left(sample, 9 * MB), ANY), None);
        assert!(ease.see(&left(sample, 8 * MB), ANY).is_some());
        let mut fast = Ease::new(Duration::ZERO, 0.0);
        for at_ms in [300, 700] {
            let sample = Sample { at_ms, phase: Phase::Precopy, gone_bytes: at_ms * MB, ..Sample::default() };
            assert_eq!((fast.see(&sample, ANY), fast.is_close(&sample)), (None, false));
        }
    }

    #[test]
    fn what_is_not_measured_or_over_is_left_alone() {
        let mut ease = Ease::new(FAR, 0.0);
        let young = Sample { at_ms: 100, phase: Phase::Precopy, gone_bytes: MB, ..Sample::default() };
        assert_eq!((ease.see(&young, ANY), ease.is_close(&young)), (None, false));
        let (mut ease, sample) = measured(FAR, 0);
        assert_eq!(ease.see(&Sample { phase: Phase::Switchover, ..left(sample, MB) }, ANY), None);
    }

    #[test]
    fn where_less_is_sent_than_the_line_carries_nothing_goes_slower() {
        let (mut ease, sample) = measured(FAR, 0);
        let last = left(sample, MB);
        assert_eq!((ease.see(&last, 100 * MB), ease.see(&last, 105 * MB)), (None, None));
        assert_eq!(ease.see(&last, 120 * MB), Some(45 * MB));
        assert_eq!(ease.see(&left(last, 90 * MB), 120 * MB), Some(120 * MB));
    }
}
