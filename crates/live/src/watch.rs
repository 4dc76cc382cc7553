//! Looks at a move under way and says when something else has to be done.
//!
//! One sample says nothing: rates swing, and a pass that is long says only that it is long. What counts is the trend over
//! passes: what each left behind, at the smoothed rate. A deed is given time to work before the next.

use std::fmt;

use drover_types::Estimate;

use crate::forecast::Promise;

/// What the source's QEMU said (`query-migrate`), at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Milliseconds since the move began.
    pub at_ms: u64,
    /// Where it is.
    pub phase: Phase,
    /// Bytes sent so far.
    pub sent_bytes: u64,
    /// Bytes of memory that these were, where they were packed; no less than [`Sample::sent_bytes`].
    pub gone_bytes: u64,
    /// Bytes of memory that are still to be sent in this pass.
    pub left_bytes: u64,
    /// Bytes of pages that were written to in the last second, by QEMU's count.
    pub dirty_bytes_per_s: u64,
    /// Passes begun.
    pub passes: u64,
    /// How much the guest is slowed down, in percent.
    pub throttle_percent: u8,
}

/// Where a move is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// It has not begun to send.
    #[default]
    Setup,
    /// Memory is sent, the guest runs at the source.
    Precopy,
    /// The guest stands; devices, or waiting for leave to go on.
    Switchover,
    /// The guest runs at the target, the rest of its memory follows.
    PostCopy,
    /// The line broke in post-copy; the guest stands until it is back.
    Broken,
    /// Done.
    Done,
    /// It failed, or was cancelled; the guest is at the source.
    Failed,
}

impl Phase {
    /// The phase of a status in QEMU's word, of any version; what is unknown is not an end.
    pub fn of(status: &str) -> Phase {
        match status {
            "none" | "setup" | "wait-unplug" => Phase::Setup,
            "pre-switchover" | "device" => Phase::Switchover,
            "postcopy-active" | "postcopy-device" | "postcopy-recover" | "postcopy-recover-setup" => {
                Phase::PostCopy
            }
            "postcopy-paused" => Phase::Broken,
            "completed" => Phase::Done,
            "failed" | "cancelled" => Phase::Failed,
            // `failing` and `cancelling` end soon; `active` and whatever comes one day.
            _ => Phase::Precopy,
        }
    }
}

/// What can be done, in the order in which it may be declared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Slow the guest down.
    Throttle,
    /// Let it run at the target, the rest of its memory follows.
    PostCopy,
    /// Cancel; the guest goes on at the source.
    GiveUp,
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Deed::Throttle => "the guest is slowed down",
            Deed::PostCopy => "the guest switches to post-copy, its memory follows",
            Deed::GiveUp => "given up",
        })
    }
}

/// Why something is done, with what was known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Why {
    /// The passes do not shrink, or it takes too long.
    pub cause: Cause,
    /// Bytes a second that are sent.
    pub rate: f64,
    /// Bytes a second of pages that are written to.
    pub dirty: f64,
    /// Bytes that are left.
    pub left_bytes: u64,
    /// Seconds it would still take; absent where it does not end.
    pub needs_s: Option<f64>,
    /// Seconds until the deadline.
    pub has_s: f64,
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Passes leave as much as they bring.
    Standstill,
    /// It converges, but not before the deadline.
    TooSlow,
    /// The deadline is here.
    Deadline,
    /// Nothing has been sent for long.
    Silence,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.cause {
            Cause::Standstill => "passes leave as much as they bring",
            Cause::TooSlow => "it will not end before the deadline",
            Cause::Deadline => "the deadline is here",
            Cause::Silence => "nothing was sent for a while",
        };
        let mb = |bytes: f64| bytes / 1e6;
        write!(
            f,
            "{what}: {:.0} MB/s sent, dirty rate {:.0} MB/s, {:.0} MB left, ",
            mb(self.rate),
            mb(self.dirty),
            mb(self.left_bytes as f64)
        )?;
        match self.needs_s {
            Some(needs) => write!(f, "{needs:.1} s needed, {:.1} s there", self.has_s),
            None => write!(f, "no end, {:.1} s there", self.has_s),
        }
    }
}

/// Watches one move.
#[derive(Clone, Debug)]
pub struct Watch {
    promise: Promise,
    /// What may still be done, next first.
    deeds: Vec<Deed>,
    last: Option<Sample>,
    /// Bytes a second, over whole spans of [`RATE_SPAN_MS`].
    rate: Option<Estimate>,
    span_from: Option<Sample>,
    /// Since when the line is in full swing.
    grown: Option<Sample>,
    /// How often [`Watch::full_swing`] was told.
    told: u64,
    /// Bytes left at the begin of the passes so far, the latest last.
    begins: Vec<f64>,
    /// When the last deed was done, and in which pass.
    acted: Option<(u64, u64)>,
    /// When the last byte was sent.
    moved_ms: u64,
}

/// The rate is taken over this time.
const RATE_SPAN_MS: u64 = 1000;
/// So often the line in full swing is told: what is foreseen from it is to be known early, and not to change all the time.
const FULL_SWINGS: u64 = 2;
/// A pass that leaves more than this share of the one before makes no progress.
const PROGRESS_SHARE: f64 = 0.95;
/// So many in a row settle it; one long pass does not.
const STANDSTILL_PASSES: usize = 3;
/// A deed has this time at least to show what it does.
const SETTLE_MS: u64 = 5_000;
/// What it takes may be so much more than it looks like.
const TOO_SLOW_FACTOR: f64 = 1.3;
/// Cancelling takes a moment; giving up comes so long before the deadline.
const CANCEL_MS: u64 = 500;
/// A line that carries nothing for so long is cut, and may come back: twice as long as a stream waits before it sends again what was lost.
const CUT_MS: u64 = 400;
/// A line that carries nothing for so long is broken, whatever TCP thinks.
const SILENCE_MS: u64 = 30_000;
/// Passes that are remembered.
const BEGINS_MAX: usize = 16;

impl Watch {
    /// Watches a move that was promised so, with what may be done in this order. Giving up is always possible.
    pub fn new(promise: Promise, deeds: &[Deed]) -> Watch {
        let mut deeds: Vec<Deed> = deeds.iter().copied().filter(|deed| *deed != Deed::GiveUp).collect();
        deeds.push(Deed::GiveUp);
        Watch {
            promise,
            deeds,
            last: None,
            rate: None,
            span_from: None,
            grown: None,
            told: 0,
            begins: Vec::new(),
            acted: None,
            moved_ms: 0,
        }
    }

    /// Takes in a sample; says what to do now, if anything.
    pub fn see(&mut self, sample: Sample) -> Option<(Deed, Why)> {
        self.note(sample);
        let cause = match sample.phase {
            Phase::Setup | Phase::Precopy => self.cause(&sample)?,
            // The guest has moved, or is about to: nothing of this helps any more.
            Phase::Switchover | Phase::PostCopy | Phase::Broken | Phase::Done | Phase::Failed => return None,
        };
        let is_last = matches!(cause, Cause::Deadline | Cause::Silence);
        let deed = if is_last { Deed::GiveUp } else { *self.deeds.first()? };
        // There is time left to hope, though nothing else to do.
        if deed == Deed::GiveUp && !is_last && !self.is_hopeless(&sample, cause) {
            return None;
        }
        self.deeds.retain(|other| *other != deed);
        self.acted = Some((sample.at_ms, sample.passes));
        self.begins.clear();
        Some((deed, self.why(cause, &sample)))
    }

    /// Takes in a sample of a time in which the line is known to be away and expected back: nothing is concluded from it,
    /// and only the deadline counts.
    pub fn see_interrupted(&mut self, sample: Sample) -> Option<(Deed, Why)> {
        self.last = Some(sample);
        self.span_from = None;
        self.grown = None;
        self.moved_ms = sample.at_ms;
        let can_stop = matches!(sample.phase, Phase::Setup | Phase::Precopy);
        let is_due = can_stop && self.left_ms(&sample) <= CANCEL_MS;
        is_due.then(|| (Deed::GiveUp, self.why(Cause::Deadline, &sample)))
    }

    /// Bytes of memory a second that are sent, before they are packed, smoothed; nothing before the first second.
    pub fn rate(&self) -> Option<Estimate> {
        self.rate
    }

    /// Bytes of memory a second that the line carries since its first second, in which streams grow. Told when one more second
    /// of the first pass is over, once more after another, and then no more.
    pub fn full_swing(&mut self) -> Option<f64> {
        let (from, last) = (self.grown?, self.last?);
        let span_ms = last.at_ms.saturating_sub(from.at_ms);
        let is_due = self.told < FULL_SWINGS && last.passes <= 1 && span_ms >= RATE_SPAN_MS * (self.told + 1);
        is_due.then(|| {
            self.told += 1;
            last.gone_bytes.saturating_sub(from.gone_bytes) as f64 * 1000.0 / span_ms as f64
        })
    }

    /// Seconds until the guest runs at the target, as it looks now; nothing where no end is in sight.
    pub fn needs_s(&self, sample: &Sample) -> Option<f64> {
        let rate = self.rate?.likely.max(1.0);
        let dirty = sample.dirty_bytes_per_s as f64;
        let left = sample.left_bytes as f64;
        if sample.passes <= 1 && sample.dirty_bytes_per_s == 0 {
            return Some(left / rate);
        }
        // What is left now, what is written to meanwhile, and so on: a geometric series down to the downtime.
        let share = dirty / rate;
        if share >= 1.0 {
            return None;
        }
        let enough = rate * self.promise.downtime_max.as_secs_f64();
        Some(((left - enough).max(0.0) / rate) / (1.0 - share))
    }

    fn note(&mut self, sample: Sample) {
        let sent_before = self.last.map_or(0, |last| last.sent_bytes);
        let is_set_up = sample.phase != Phase::Setup;
        let begins = self.last.is_none_or(|last| is_set_up && last.phase == Phase::Setup);
        if sample.sent_bytes > sent_before || begins {
            self.moved_ms = sample.at_ms;
        } else if self.is_cut(&sample) {
            // Nothing is concluded from a time in which nothing goes: what the line carries is measured anew when it does.
            (self.span_from, self.grown) = (None, None);
            self.last = Some(sample);
            return;
        }
        if self.last.is_some_and(|last| sample.passes > last.passes) {
            if self.begins.len() == BEGINS_MAX {
                self.begins.remove(0);
            }
            self.begins.push(sample.left_bytes as f64);
        }
        // The time in which it connects, and pins memory for RDMA, is none of the line's.
        if !is_set_up {
            self.last = Some(sample);
            return;
        }
        let from = *self.span_from.get_or_insert(sample);
        let span_ms = sample.at_ms.saturating_sub(from.at_ms);
        if span_ms >= RATE_SPAN_MS {
            let rate = sample.gone_bytes.saturating_sub(from.gone_bytes) as f64 * 1000.0 / span_ms as f64;
            let known = self.rate.map(|rate| rate.likely);
            self.rate = Estimate::smoothed(known.into_iter().chain([rate]));
            self.span_from = Some(sample);
            self.grown.get_or_insert(sample);
        }
        self.last = Some(sample);
    }

    /// Nothing was sent for so long that it says nothing of the line's rate. A line that is so slow from the begin is taken as it is.
    fn is_cut(&self, sample: &Sample) -> bool {
        let silent_ms = sample.at_ms.saturating_sub(self.moved_ms);
        (CUT_MS..SILENCE_MS).contains(&silent_ms)
    }

    fn cause(&self, sample: &Sample) -> Option<Cause> {
        let left_ms = self.left_ms(sample);
        if left_ms <= CANCEL_MS {
            return Some(Cause::Deadline);
        }
        if sample.at_ms.saturating_sub(self.moved_ms) >= SILENCE_MS {
            return Some(Cause::Silence);
        }
        if self.acted.is_some_and(|acted| !has_settled(acted, sample)) {
            return None;
        }
        if self.stands_still() {
            return Some(Cause::Standstill);
        }
        self.is_too_slow(sample).then_some(Cause::TooSlow)
    }

    fn is_too_slow(&self, sample: &Sample) -> bool {
        // The first pass must be over before anything is known of the guest.
        let Some(rate) = self.rate.filter(|_| sample.passes > 1 && sample.dirty_bytes_per_s > 0) else {
            return false;
        };
        // Where no end is in sight, what is left is sent once more at least, whatever is done.
        let once_s = sample.left_bytes as f64 / rate.likely.max(1.0);
        let needs_s = self.needs_s(sample).unwrap_or(once_s);
        needs_s * TOO_SLOW_FACTOR * 1000.0 > self.left_ms(sample) as f64
    }

    fn stands_still(&self) -> bool {
        let last = &self.begins[self.begins.len().saturating_sub(STANDSTILL_PASSES + 1)..];
        last.len() > STANDSTILL_PASSES && last.windows(2).all(|pair| pair[1] > pair[0] * PROGRESS_SHARE)
    }

    /// Whether giving up early saves anything: no end is in sight, or one far behind the deadline.
    fn is_hopeless(&self, sample: &Sample, cause: Cause) -> bool {
        let far = |needs: f64| needs * 1000.0 > self.left_ms(sample) as f64 * 2.0;
        cause == Cause::Standstill && self.needs_s(sample).is_none_or(far)
    }

    fn left_ms(&self, sample: &Sample) -> u64 {
        let deadline_ms = u64::try_from(self.promise.deadline.as_millis()).unwrap_or(u64::MAX);
        deadline_ms.saturating_sub(sample.at_ms)
    }

    fn why(&self, cause: Cause, sample: &Sample) -> Why {
        Why {
            cause,
            rate: self.rate.map_or(0.0, |rate| rate.likely),
            dirty: sample.dirty_bytes_per_s as f64,
            left_bytes: sample.left_bytes,
            needs_s: self.needs_s(sample),
            has_s: self.left_ms(sample) as f64 / 1000.0,
        }
    }
}

/// What a deed does is known when a pass is over that began after it.
fn has_settled((at_ms, passes): (u64, u64), sample: &Sample) -> bool {
    sample.at_ms.saturating_sub(at_ms) >= SETTLE_MS && sample.passes > passes + 1
}

#[cfg(test)]
mod tests;
