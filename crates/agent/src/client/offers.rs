//! Whether the other side is asked which blocks it has before they are sent. Pure.
//!
//! Asking costs a round trip and the time to look. So it goes on while it pays: of all writes at first, and once few of
//! the blocks are found only of one in [`SAMPLE_EVERY`]. The very first writes are sent unasked: the line would carry
//! nothing until the first answer came.

/// Writes between two that are asked about while asking does not pay.
const SAMPLE_EVERY: u32 = 32;

/// Writes that are sent unasked at the start: about what new connections carry in a round trip.
const UNASKED_FIRST: u32 = 2;

/// It pays while at least this share of the blocks is found.
const SHARE_MIN: f64 = 0.02;

/// Weight of a new figure in the mean of those before.
const WEIGHT: f64 = 0.1;

#[derive(Debug)]
pub(super) struct Offers {
    wanted: bool,
    share: f64,
    since: u32,
    unasked_left: u32,
}

impl Offers {
    /// `wanted` if the other side has blocks at all.
    pub(super) fn new(wanted: bool) -> Offers {
        Offers { wanted, share: 1.0, since: 0, unasked_left: UNASKED_FIRST }
    }

    /// Whether to ask about the next write.
    pub(super) fn next(&mut self) -> bool {
        if self.unasked_left > 0 {
            self.unasked_left -= 1;
            return false;
        }
        self.since += 1;
        let asks = self.wanted && (self.share >= SHARE_MIN || self.since >= SAMPLE_EVERY);
        if asks {
            self.since = 0;
        }
        asks
    }

    /// So many of the blocks asked about were found.
    pub(super) fn found(&mut self, found: u32, of: u32) {
        let share = f64::from(found) / f64::from(of.max(1));
        self.share += (share - self.share) * WEIGHT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(offers: &mut Offers, writes: u32, found: u32) -> u32 {
        let mut asked = 0;
        for _ in 0..writes {
            if offers.next() {
                asked += 1;
                offers.found(found, 16);
            }
        }
        asked
    }

    #[test]
    fn asks_while_it_pays_and_now_and_then_when_it_does_not() {
        assert_eq!(asked(&mut Offers::new(false), 1000, 16), 0, "there is nothing to find");
        let mut offers = Offers::new(true);
        assert_eq!(asked(&mut offers, 2, 16), 0, "nothing is under way yet");
        assert_eq!(asked(&mut offers, 1000, 1), 1000, "one of sixteen still pays");
        let in_vain = asked(&mut offers, 3200, 0);
        assert!((90..140).contains(&in_vain), "{in_vain}");
        let again = asked(&mut offers, 3200, 16);
        assert!(again > 3100, "{again}");
    }
}
