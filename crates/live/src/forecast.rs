//! What a move of memory will take: passes, time, downtime, each with a spread.
//!
//! Memory is sent in passes. The first sends all that is in use; each later one what was written to while the
//! one before ran. A guest writes to `dirty` bytes of different pages in the first second, but not to twice as
//! many in two: it comes back to the pages of its working set. So `w * (1 - e^(-d t / w))` bytes are dirty after
//! `t` seconds. The guest is stopped when what is left fits the downtime.

use std::time::Duration;

use drover_types::Estimate;

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Promise {
    /// Longest time for which the guest may stand still.
    pub downtime_max: Duration,
    /// Time from now in which all is done, or given up with the guest where it was.
    pub deadline: Duration,
}

/// What was measured, or is assumed with a wide spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Facts {
    /// Bytes of memory that hold something.
    pub used_bytes: u64,
    /// Bytes of memory in all; pages of zeros cost a look only.
    pub memory_bytes: u64,
    /// Bytes of pages that are written to in a second, each page counted once.
    pub dirty: Estimate,
    /// Bytes of pages that are written to at all; what is in use if nothing is known.
    pub working_set_bytes: u64,
    /// Bytes a second that go from one side to the other.
    pub rate: Estimate,
    /// Seconds for which the guest stands still besides the last pass: devices, network, start.
    pub overhead: Estimate,
    /// What a move that is under way has done of its first pass.
    pub so_far: SoFar,
}

/// The begin of a first pass, as it was.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SoFar {
    /// For which it lasts.
    pub seconds: f64,
    /// Bytes of memory that were sent.
    pub gone_bytes: u64,
}

/// What a move will take.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Forecast {
    /// Seconds from its begin to the guest running at the target; as long as the deadline or longer where it does not converge.
    pub total: Estimate,
    /// Seconds for which the guest stands still.
    pub downtime: Estimate,
    /// Passes, the last one included.
    pub passes: u32,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Whether what is left becomes small enough.
    pub converges: bool,
}

/// A move tells its line by the first second of its sending. One that is over by then took that and its end at most.
const UNMEASURED_S: f64 = 1.5;

impl Forecast {
    /// Seconds below which a move stays whose line is assumed, unless it is measured on the way and foreseen anew: all that can be
    /// said of one that is over before.
    pub fn below_s(&self) -> f64 {
        (self.total.likely + self.total.spread).max(UNMEASURED_S)
    }
}

/// Passes after which nobody waits any longer.
const PASSES_MAX: u32 = 200;
/// A pass that leaves more than this share of the one before brings nothing.
const PROGRESS_SHARE: f64 = 0.97;
/// Passes without progress that settle it.
const STANDSTILL_PASSES: u32 = 3;

impl Facts {
    /// What will happen if memory is sent as these facts tell.
    pub fn forecast(&self, promise: &Promise) -> Forecast {
        let likely = self.run(self.rate.likely, self.dirty.likely, promise);
        let slow =
            self.run(self.rate.likely - self.rate.spread, self.dirty.likely + self.dirty.spread, promise);
        let fast =
            self.run(self.rate.likely + self.rate.spread, self.dirty.likely - self.dirty.spread, promise);
        let spread = |likely: f64, one: f64, other: f64| (one - likely).abs().max((other - likely).abs());
        // Not `hypot`, which wants a C library that is newer than RHEL 9's.
        let of_sending = spread(likely.downtime_s, slow.downtime_s, fast.downtime_s);
        let downtime_spread = (of_sending.powi(2) + self.overhead.spread.powi(2)).sqrt();
        Forecast {
            total: Estimate {
                likely: likely.total_s,
                spread: spread(likely.total_s, slow.total_s, fast.total_s),
            },
            downtime: Estimate { likely: likely.downtime_s, spread: downtime_spread },
            passes: likely.passes,
            sent_bytes: likely.sent as u64,
            converges: likely.converges,
        }
    }

    /// The same facts with a guest that writes less by this share (0 to 1).
    pub fn throttled(&self, share: f64) -> Facts {
        let less = 1.0 - share.clamp(0.0, 1.0);
        let dirty = Estimate { likely: self.dirty.likely * less, ..self.dirty };
        Facts { dirty, ..*self }
    }

    /// Bytes that are dirty after so many seconds.
    pub fn dirty_after(&self, seconds: f64) -> f64 {
        dirty_after(self.working_set(), self.dirty.likely, seconds)
    }

    fn working_set(&self) -> f64 {
        self.working_set_bytes.min(self.memory_bytes) as f64
    }

    /// A move, pass by pass.
    fn run(&self, rate: f64, dirty: f64, promise: &Promise) -> Run {
        let (rate, dirty) = (rate.max(1.0), dirty.max(0.0));
        // A page of zeros is a look at the page and a few bytes on the line.
        let zeros_s = self.memory_bytes.saturating_sub(self.used_bytes) as f64 / ZERO_RATE;
        let before_s = zeros_s + self.so_far.seconds;
        let mut run = Run { total_s: before_s, sent: self.so_far.gone_bytes as f64, ..Run::default() };
        let mut left = self.used_bytes.saturating_sub(self.so_far.gone_bytes) as f64;
        let fits = |left: f64| left / rate + self.overhead.likely <= promise.downtime_max.as_secs_f64();
        let mut standstill = 0;
        while !(run.passes > 0 && fits(left)) {
            if run.passes >= PASSES_MAX || standstill >= STANDSTILL_PASSES {
                return run.ended(left, rate, self.overhead.likely, false);
            }
            let pass_s = left / rate + if run.passes == 0 { before_s } else { 0.0 };
            let dirtied = dirty_after(self.working_set(), dirty, pass_s);
            standstill = if dirtied > left * PROGRESS_SHARE { standstill + 1 } else { 0 };
            run.sent += left;
            run.total_s += left / rate;
            run.passes += 1;
            left = dirtied;
        }
        run.ended(left, rate, self.overhead.likely, true)
    }
}

/// Bytes a second at which pages are found to be zero.
const ZERO_RATE: f64 = 4.0 * (1_u64 << 30) as f64;

fn dirty_after(working_set: f64, rate: f64, seconds: f64) -> f64 {
    if working_set <= 0.0 {
        return 0.0;
    }
    working_set * (1.0 - (-rate * seconds / working_set).exp())
}

#[derive(Default)]
struct Run {
    total_s: f64,
    downtime_s: f64,
    passes: u32,
    sent: f64,
    converges: bool,
}

impl Run {
    fn ended(mut self, left: f64, rate: f64, overhead: f64, converges: bool) -> Run {
        self.downtime_s = left / rate + overhead;
        self.total_s += self.downtime_s;
        self.passes += 1;
        self.sent += left;
        self.converges = converges;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const MB: f64 = 1e6;

    fn promise() -> Promise {
        Promise { downtime_max: Duration::from_millis(300), deadline: Duration::from_secs(600) }
    }

    fn facts(dirty: f64, rate: f64) -> Facts {
        Facts {
            used_bytes: GIB,
            memory_bytes: GIB,
            dirty: Estimate { likely: dirty, spread: dirty * 0.1 },
            working_set_bytes: GIB,
            rate: Estimate { likely: rate, spread: rate * 0.1 },
            overhead: Estimate { likely: 0.03, spread: 0.02 },
            so_far: SoFar::default(),
        }
    }

    #[test]
    fn an_idle_guest_takes_one_pass_and_the_overhead() {
        let forecast = facts(0.0, 100.0 * MB).forecast(&promise());
        assert!(forecast.converges);
        assert_eq!(forecast.passes, 2);
        assert!((forecast.total.likely - 10.77).abs() < 0.02, "{forecast:?}");
        assert!((forecast.downtime.likely - 0.03).abs() < 1e-9, "{forecast:?}");
        assert_eq!(forecast.sent_bytes, GIB);
    }

    #[test]
    fn passes_shrink_as_a_geometric_series_does() {
        // Half the line's rate: 1 + 1/2 + 1/4 ... a little less, since pages are written to again.
        let forecast = facts(50.0 * MB, 100.0 * MB).forecast(&promise());
        assert!(forecast.converges);
        let first_s = GIB as f64 / (100.0 * MB);
        assert!(
            forecast.total.likely > 1.5 * first_s && forecast.total.likely < 2.0 * first_s,
            "{forecast:?}"
        );
        assert!(forecast.downtime.likely <= 0.3 && forecast.passes >= 4, "{forecast:?}");
        assert!(forecast.total.spread > 0.1 * forecast.total.likely, "{forecast:?}");
    }

    #[test]
    fn a_guest_that_writes_faster_than_the_line_does_not_converge() {
        let forecast = facts(200.0 * MB, 100.0 * MB).forecast(&promise());
        assert!(!forecast.converges, "{forecast:?}");
        assert!(forecast.downtime.likely > 1.0, "{forecast:?}");
    }

    #[test]
    fn a_small_working_set_converges_however_fast_it_is_written() {
        let small = Facts { working_set_bytes: 20 << 20, ..facts(2000.0 * MB, 100.0 * MB) };
        let forecast = small.forecast(&promise());
        assert!(forecast.converges, "{forecast:?}");
        assert!(forecast.downtime.likely < 0.3, "{forecast:?}");
    }

    #[test]
    fn throttling_helps_by_its_share() {
        let hot = facts(200.0 * MB, 100.0 * MB);
        assert!(!hot.throttled(0.3).forecast(&promise()).converges);
        assert!(hot.throttled(0.8).forecast(&promise()).converges);
    }

    #[test]
    fn zeros_cost_a_look() {
        let empty = Facts { memory_bytes: 64 * GIB, ..facts(0.0, 1000.0 * MB) };
        let forecast = empty.forecast(&promise());
        assert!(forecast.total.likely > 15.0 && forecast.total.likely < 18.0, "{forecast:?}");
    }

    #[test]
    fn what_is_done_of_the_first_pass_counts_as_it_was() {
        // A slow second, in which a stream grew: a tenth of what the line carries from then on.
        let so_far = SoFar { seconds: 1.0, gone_bytes: 10_000_000 };
        let whole = facts(50.0 * MB, 100.0 * MB);
        let forecast = Facts { so_far, ..whole }.forecast(&promise());
        let all_at_once = whole.forecast(&promise());
        // What is written to in that second is sent, too.
        let more_s = forecast.total.likely - all_at_once.total.likely;
        assert!(more_s > 0.9 && more_s < 2.0, "{more_s}");
        assert!(forecast.sent_bytes > all_at_once.sent_bytes);
        let idle = Facts { so_far, ..facts(0.0, 100.0 * MB) }.forecast(&promise());
        assert!((idle.total.likely - 11.67).abs() < 0.02, "{idle:?}");
    }

    #[test]
    fn nothing_known_of_the_line_does_not_divide_by_zero() {
        let forecast = facts(50.0 * MB, 0.0).forecast(&promise());
        assert!(!forecast.converges && forecast.total.likely.is_finite(), "{forecast:?}");
    }
}
