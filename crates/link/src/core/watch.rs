//! Time as the session lives it: what does not count, and whether anything arrives.

use std::time::Duration;

use super::Moment;

/// Ticks that are further apart than this were held up: the process stood still, and its readers with it.
/// They come every half second.
const STOOD_STILL_AFTER: Duration = Duration::from_secs(5);

/// What is remembered from tick to tick.
#[derive(Debug, Default)]
pub struct Watch {
    ticked: Moment,
    /// Frames that the peer had acknowledged at the last tick, and since when it is that number while
    /// others wait.
    landed: u64,
    stuck_since: Moment,
}

impl Watch {
    /// The time since the last tick in which nobody could look, which says nothing of the peer.
    pub fn stood_still(&mut self, now: Moment) -> Duration {
        let passed = now.saturating_sub(self.ticked);
        self.ticked = self.ticked.max(now);
        let lost = if passed > STOOD_STILL_AFTER { passed } else { Duration::ZERO };
        self.stuck_since += lost;
        lost
    }

    /// How long the peer has acknowledged nothing of what it was sent.
    pub fn stuck_for(&mut self, landed: u64, is_waiting: bool, now: Moment) -> Duration {
        if !is_waiting || landed != self.landed {
            (self.landed, self.stuck_since) = (landed, now);
        }
        now.saturating_sub(self.stuck_since)
    }
}
