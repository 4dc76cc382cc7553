//! The downtime so far: since when a guest is paused to be handed over, on the clock of the looks at it.

use std::time::Duration;

use crate::watch::Phase;

/// A guest may be paused for so long, however short a downtime was promised, or for so many promised downtimes.
const PAUSED_MAX: Duration = Duration::from_secs(30);
const DOWNTIMES: u32 = 10;
/// For which what carries the move hurries: others use it, too, and a line that is cut is none the better for it.
const HURRY_MAX: Duration = Duration::from_secs(3);

/// Since when a guest is paused, if it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Downtime {
    since_ms: Option<u64>,
}

impl Downtime {
    /// Takes in whether the guest is paused. One that is done at the source is, until it runs at the target.
    pub fn see(&mut self, is_paused: bool, phase: Phase, now_ms: u64) {
        if is_paused {
            self.since_ms.get_or_insert(now_ms);
        } else if phase != Phase::Done {
            self.since_ms = None;
        }
    }

    /// For how long it is paused.
    #[must_use]
    pub fn lasts(&self, now_ms: u64) -> Duration {
        Duration::from_millis(self.since_ms.map_or(0, |since| now_ms.saturating_sub(since)))
    }

    /// It is paused for so long that it is better off where it was.
    #[must_use]
    pub fn is_too_long(&self, promised: Duration, now_ms: u64) -> bool {
        self.lasts(now_ms) > PAUSED_MAX.max(promised * DOWNTIMES)
    }

    /// Time counts more than the line.
    #[must_use]
    pub fn hurries(&self, now_ms: u64) -> bool {
        self.since_ms.is_some() && self.lasts(now_ms) <= HURRY_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_is_paused_for_long_is_better_off_where_it_was() {
        let promised = Duration::from_millis(300);
        let mut downtime = Downtime::default();
        downtime.see(true, Phase::Switchover, 1000);
        downtime.see(true, Phase::Switchover, 30_000);
        assert_eq!(downtime.lasts(30_000), Duration::from_secs(29));
        assert!(!downtime.is_too_long(promised, 31_000) && downtime.is_too_long(promised, 31_001));
        assert!(!downtime.is_too_long(Duration::from_secs(6), 61_000), "so much was promised");
    }

    #[test]
    fn the_link_hurries_while_the_guest_is_paused_and_not_for_long() {
        let mut downtime = Downtime::default();
        assert!(!downtime.hurries(0));
        downtime.see(true, Phase::Switchover, 0);
        assert!(downtime.hurries(0) && downtime.hurries(3000) && !downtime.hurries(3001));
        // All is sent, and the target is waited for.
        downtime.see(false, Phase::Done, 100);
        assert!(downtime.hurries(200));
        downtime.see(false, Phase::Precopy, 300);
        assert_eq!((downtime.lasts(400), downtime.hurries(400)), (Duration::ZERO, false));
    }
}
