//! Frames that take longer than usual to be acknowledged: a connection that has nothing else to do carries them
//! once more.
//!
//! A connection that loses packets holds up what it carries for some round trips, and with it the end of a
//! transfer, or a stream whose reader waits for these bytes while the peer's credit runs out behind them. Only
//! then: connections that are idle because a program has little to send for a moment share a line with others that
//! are not, and what is carried twice there takes the place of something new. The peer drops what it has had.

use std::time::Duration;

use super::{Core, Flying, Moment, Outgoing, StripeId};

/// No frame is overdue before this: processes that are held up for so long are no sign of a line that is, and
/// the kernel itself waits for 200 ms before it tries again without a sign.
const OVERDUE_MIN: Duration = Duration::from_millis(150);

/// Of a small frame: it costs nothing, so only what comes late by chance is left out.
const SMALL_OVERDUE_MIN: Duration = Duration::from_millis(20);

/// What is looked at, the oldest first, in frames and in bytes, of which the last frame may take more: those are what
/// others wait for.
const LOOK_AT: usize = 16;
const LOOK_AT_BYTES: u64 = 2 << 20;

/// In a hurry a frame is overdue once after this: on a short line it is acknowledged before, and on a long one something
/// may have to come behind it for the kernel to see that it was lost.
const HURRIED_AFTER: Duration = Duration::from_millis(10);

/// Where large frames take so many times as long as small ones, they wait before the line.
const QUICK_TIMES: u32 = 4;

/// Looked at in a hurry: about what a long, fast line holds.
const HURRIED_LOOK_AT: usize = 256;
const HURRIED_LOOK_AT_BYTES: u64 = 32 << 20;

/// Credit, ends, openings and other small frames are carried once more in any case: they cost nothing, and much may
/// wait for them.
const SMALL_BYTES_MAX: u32 = 4 << 10;

/// How long it usually takes until a frame is acknowledged: small ones need a round trip, others as many as it takes a new
/// connection to carry so much.
#[derive(Debug, Default)]
pub struct Usual {
    small: Median,
    large: Median,
}

impl Usual {
    /// Takes in how long it took a frame of so many bytes.
    pub fn take(&mut self, bytes: u32, time: Duration) {
        if bytes <= SMALL_BYTES_MAX { self.small.take(time) } else { self.large.take(time) }
    }

    /// How old a frame of so many bytes is that takes longer than usual. `None`: nothing is known yet.
    fn limit(&self, bytes: u32) -> Option<Duration> {
        let (usual, min) = match bytes <= SMALL_BYTES_MAX {
            true => (self.small.0, SMALL_OVERDUE_MIN),
            false => (self.large.0, OVERDUE_MIN),
        };
        usual.map(|usual| longer(usual).max(min))
    }

    /// Whether frames are acknowledged soon after a round trip. Where they wait long before the line, what goes twice would only
    /// hold up what comes behind it.
    fn is_quick(&self) -> bool {
        matches!((self.small.0, self.large.0), (Some(small), Some(large)) if large <= small * QUICK_TIMES)
    }
}

fn longer(usual: Duration) -> Duration {
    usual + usual / 4 + Duration::from_millis(10)
}

/// A median, as far as one number can follow it.
#[derive(Debug, Default)]
struct Median(Option<Duration>);

impl Median {
    /// Half of what is taken in is longer than what this comes to.
    fn take(&mut self, time: Duration) {
        self.0 = Some(match self.0 {
            None => time,
            Some(usual) if time > usual => usual + (usual / 16).min(time - usual),
            Some(usual) => usual - (usual / 16).min(usual - time),
        });
    }
}

impl Core {
    /// From now on somebody waits for the last byte of all that is under way, until [`Core::take_time`]. Asked for as
    /// often, it is over when that was said as often.
    pub fn hurry(&mut self) {
        self.hurries += 1;
    }

    /// Nobody waits so any more.
    pub fn take_time(&mut self) {
        self.hurries = self.hurries.saturating_sub(1);
    }

    fn is_hurried(&self) -> bool {
        self.hurries > 0
    }

    /// A frame was sent that had not been before. What is small leaves room for others beside it.
    pub(super) fn note_new(&mut self, bytes: u32, now: Moment) {
        if bytes > SMALL_BYTES_MAX {
            self.sent_new = now;
        }
    }

    /// The frames that others may wait for.
    fn oldest(&self) -> impl Iterator<Item = (u64, &Flying)> {
        let (frames_max, bytes_max) = match self.is_hurried() {
            true => (HURRIED_LOOK_AT, HURRIED_LOOK_AT_BYTES),
            false => (LOOK_AT, LOOK_AT_BYTES),
        };
        let mut bytes = 0;
        let looked_at = self.flying.iter().take(frames_max).take_while(move |(_, flying)| {
            let is_looked_at = bytes < bytes_max;
            bytes += u64::from(flying.header.payload_bytes);
            is_looked_at
        });
        looked_at.map(|(sequence, flying)| (*sequence, flying))
    }

    /// When a frame is overdue: one that is not small is not as long as there is something new to send, but in a hurry.
    fn overdue_since(&self, flying: &Flying) -> Option<Moment> {
        let bytes = flying.header.payload_bytes;
        if self.is_hurried() && !flying.is_again && self.usual.is_quick() {
            return Some(flying.sent + HURRIED_AFTER);
        }
        let waits_for_new = bytes > SMALL_BYTES_MAX && !self.lacks_credit && !self.is_hurried();
        let begin = if waits_for_new { flying.sent.max(self.sent_new) } else { flying.sent };
        Some(begin + self.usual.limit(bytes)?)
    }

    /// The frames that are overdue, the oldest first, with the connections that carry them.
    fn overdue(&self, now: Moment) -> impl Iterator<Item = (u64, StripeId)> {
        let late = move |(sequence, flying): (u64, &Flying)| {
            let is_late = self.overdue_since(flying).is_some_and(|since| now >= since);
            is_late.then_some((sequence, flying.stripe))
        };
        self.oldest().filter_map(late)
    }

    /// The same in a hurry, where it took longer than usual: it goes before what is new.
    pub(super) fn next_late(&mut self, stripe: StripeId, now: Moment) -> Option<Outgoing> {
        if !self.is_hurried() {
            return None;
        }
        let is_late = |flying: &Flying| {
            let limit = self.usual.limit(flying.header.payload_bytes);
            flying.stripe != stripe && limit.is_some_and(|limit| now >= flying.sent + limit)
        };
        let (sequence, _) = self.oldest().find(|(_, flying)| is_late(flying))?;
        self.counters.overdue_frames += 1;
        self.carry_again(sequence, stripe, now)
    }

    /// A frame that another connection should have carried by now.
    pub(super) fn next_overdue(&mut self, stripe: StripeId, now: Moment) -> Option<Outgoing> {
        let (sequence, _) = self.overdue(now).find(|(_, carrier)| *carrier != stripe)?;
        self.counters.overdue_frames += 1;
        self.carry_again(sequence, stripe, now)
    }

    /// The connection that holds up the oldest overdue frame.
    pub(super) fn late_stripe(&self, now: Moment) -> Option<StripeId> {
        self.overdue(now).next().map(|(_, carrier)| carrier)
    }

    /// When the oldest frame will be overdue, if there is a connection to carry it once more.
    pub(super) fn overdue_at(&self) -> Option<Moment> {
        let (_, oldest) = self.flying.first_key_value()?;
        self.stripes.best_idle(Some(oldest.stripe))?;
        self.oldest().filter_map(|(_, flying)| self.overdue_since(flying)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_few_that_take_long_do_not_change_what_is_usual() {
        const SMALL: u32 = 100;
        let mut usual = Usual::default();
        assert_eq!(usual.limit(SMALL), None);
        (0..1000u64).for_each(|at| usual.take(SMALL, ms(if at % 5 == 0 { 3000 } else { 200 + at % 10 })));
        let limit = usual.limit(SMALL).unwrap();
        assert!((ms(260)..ms(300)).contains(&limit), "{limit:?}");
        (0..1000).for_each(|_| usual.take(SMALL, ms(120)));
        assert_eq!(usual.limit(SMALL), Some(ms(160)));
        (0..1000).for_each(|_| usual.take(SMALL, Duration::from_micros(200)));
        assert_eq!(usual.limit(SMALL), Some(SMALL_OVERDUE_MIN));
    }

    #[test]
    fn what_is_usual_for_small_frames_is_not_for_large_ones() {
        let mut usual = Usual::default();
        usual.take(100, ms(56));
        assert_eq!((usual.limit(100), usual.limit(1 << 20)), (Some(ms(80)), None));
        usual.take(1 << 20, ms(240));
        assert_eq!(usual.limit(1 << 20), Some(ms(310)));
        (0..1000).for_each(|_| usual.take(1 << 20, ms(2)));
        assert_eq!(usual.limit(1 << 20), Some(OVERDUE_MIN));
    }
}
