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

/// Frames that are looked at, the oldest first: those are what others wait for. 2 MiB of a stream.
const LOOK_AT: usize = 16;

/// Credit, ends, openings and other small frames are carried once more in any case: they cost nothing, and much may
/// wait for them.
const CHEAP_BYTES_MAX: u32 = 4 << 10;

/// How long it usually takes until a frame is acknowledged: the median, as far as one number can follow it.
#[derive(Debug, Default)]
pub struct Usual(Option<Duration>);

impl Usual {
    /// Takes in how long it took once. Half of the times are longer than what this comes to.
    pub fn take(&mut self, time: Duration) {
        self.0 = Some(match self.0 {
            None => time,
            Some(usual) if time > usual => usual + (usual / 16).min(time - usual),
            Some(usual) => usual - (usual / 16).min(usual - time),
        });
    }

    /// How old a frame is that takes longer than usual. `None`: nothing is known yet.
    fn limit(&self) -> Option<Duration> {
        self.0.map(|usual| (usual + usual / 4 + Duration::from_millis(10)).max(OVERDUE_MIN))
    }
}

impl Core {
    /// The frames that are overdue, the oldest first, with the connections that carry them. Only small
    /// ones as long as there is something new to send.
    fn overdue(&self, now: Moment) -> impl Iterator<Item = (u64, StripeId)> {
        let limit = self.usual.limit().unwrap_or(Duration::MAX);
        let is_held_up = self.lacks_credit || now.saturating_sub(self.sent_new) >= limit;
        let is_late = move |flying: &Flying| now.saturating_sub(flying.sent) >= limit;
        let oldest = self.flying.iter().take(LOOK_AT);
        // What was sent once is younger from frame to frame.
        let looked_at = oldest.take_while(move |(_, flying)| is_late(flying) || flying.is_again);
        let matters = move |flying: &Flying| is_held_up || flying.header.payload_bytes <= CHEAP_BYTES_MAX;
        let late = looked_at.filter(move |(_, flying)| is_late(flying) && matters(flying));
        late.map(|(sequence, flying)| (*sequence, flying.stripe))
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
        let begin = if self.lacks_credit { oldest.sent } else { oldest.sent.max(self.sent_new) };
        Some(begin + self.usual.limit()?)
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
        let mut usual = Usual::default();
        assert_eq!(usual.limit(), None);
        (0..1000u64).for_each(|at| usual.take(ms(if at % 5 == 0 { 3000 } else { 200 + at % 10 })));
        let limit = usual.limit().unwrap();
        assert!((ms(260)..ms(300)).contains(&limit), "{limit:?}");
        (0..1000).for_each(|_| usual.take(ms(120)));
        assert_eq!(usual.limit(), Some(ms(160)));
        (0..1000).for_each(|_| usual.take(Duration::from_micros(200)));
        assert_eq!(usual.limit(), Some(OVERDUE_MIN));
    }
}
