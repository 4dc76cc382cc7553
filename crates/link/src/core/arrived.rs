//! Which frames of the peer arrived: doubles are dropped, and the peer is told.

use std::time::Duration;

use drover_wire::{ACK_RANGES_MAX, Ack, WINDOW_FRAMES};

use super::Moment;
use super::ranges::RangeSet;

/// Bytes that arrive before they are acknowledged at once.
const ACK_BYTES: u64 = 512 << 10;

/// The longest that an acknowledgement waits for more to say.
pub const ACK_DELAY: Duration = Duration::from_millis(5);

/// What arrived, and what of it the peer has not been told.
#[derive(Debug)]
pub struct Arrived {
    /// Every frame below this one arrived.
    below: u64,
    above: RangeSet,
    /// Above `below`, and not told.
    news: RangeSet,
    news_bytes: u64,
    since: Option<Moment>,
}

impl Default for Arrived {
    fn default() -> Self {
        Arrived {
            below: 1,
            above: RangeSet::default(),
            news: RangeSet::default(),
            news_bytes: 0,
            since: None,
        }
    }
}

impl Arrived {
    /// Notes a frame. True if it is the first time; `None` if no honest peer would have sent it yet.
    pub fn note(&mut self, sequence: u64, bytes: u64, now: Moment) -> Option<bool> {
        if sequence >= self.below + WINDOW_FRAMES {
            return None;
        }
        // A double is told again: the peer would not have sent it had it known.
        self.since.get_or_insert(now);
        self.news_bytes += bytes;
        if sequence < self.below || self.above.contains(sequence) {
            if sequence > self.below {
                self.news.insert(sequence);
            }
            return Some(false);
        }
        if sequence > self.below {
            self.above.insert(sequence);
            self.news.insert(sequence);
            return Some(true);
        }
        self.below += 1;
        if self.above.contains(self.below)
            && let Some(range) = self.above.pop_first()
        {
            self.below = range.end;
        }
        Some(true)
    }

    /// An acknowledgement was perhaps lost with its connection: everything is told again.
    pub fn tell_all_again(&mut self, now: Moment) {
        self.news = self.above.clone();
        self.since.get_or_insert(now);
    }

    /// When the peer is to be told; at once if it is past.
    pub fn due(&self) -> Option<Moment> {
        match self.news_bytes >= ACK_BYTES || self.news.len() > ACK_RANGES_MAX {
            true => self.since,
            false => self.since.map(|since| since + ACK_DELAY),
        }
    }

    /// What to tell, if anything. Ranges that do not fit are for the next one.
    pub fn take(&mut self, now: Moment) -> Option<Ack> {
        self.since?;
        self.news.remove_below(self.below);
        let ranges = (0..ACK_RANGES_MAX).map_while(|_| self.news.pop_first()).collect();
        self.news_bytes = 0;
        self.since = (!self.news.is_empty()).then_some(now);
        Some(Ack { below: self.below, ranges })
    }

    #[cfg(test)]
    pub fn memory_ranges(&self) -> usize {
        self.above.len() + self.news.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    const START: Moment = Moment::ZERO;

    proptest! {
        #[test]
        fn each_frame_is_new_once_and_all_are_told(order in prop::collection::vec(1u64..300, 0..600), tells in prop::collection::vec(any::<bool>(), 600)) {
            let (mut arrived, mut oracle, mut told) = (Arrived::default(), BTreeSet::new(), BTreeSet::new());
            let mut tell = |arrived: &mut Arrived| {
                while let Some(ack) = arrived.take(START) {
                    let read = Ack::read(ack.below, &ack.payload()).expect("an honest acknowledgement");
                    told.extend(1..read.below);
                    read.ranges.into_iter().for_each(|range| told.extend(range));
                }
            };
            for (sequence, tells) in order.into_iter().zip(tells) {
                prop_assert_eq!(arrived.note(sequence, 1, START), Some(oracle.insert(sequence)));
                if tells {
                    tell(&mut arrived);
                }
            }
            tell(&mut arrived);
            prop_assert_eq!(told, oracle);
        }
    }

    #[test]
    fn what_was_told_on_a_connection_that_ended_is_told_again() {
        let mut arrived = Arrived::default();
        for sequence in [1, 2, 5, 9] {
            assert_eq!(arrived.note(sequence, 1, START), Some(true));
        }
        let told = arrived.take(START);
        assert_eq!(told, Some(Ack { below: 3, ranges: vec![5..6, 9..10] }));
        assert_eq!(arrived.take(START), None);
        arrived.tell_all_again(START);
        assert_eq!(arrived.take(START), told);
    }

    #[test]
    fn a_frame_beyond_the_window_is_no_honest_one() {
        let mut arrived = Arrived::default();
        assert_eq!(arrived.note(WINDOW_FRAMES, 1, START), Some(true));
        assert_eq!(arrived.note(WINDOW_FRAMES + 1, 1, START), None);
        assert_eq!(arrived.note(1, 1, START), Some(true));
        assert_eq!(arrived.note(WINDOW_FRAMES + 1, 1, START), Some(true));
    }

    #[test]
    fn it_waits_a_little_for_more_but_not_when_much_arrived() {
        let mut arrived = Arrived::default();
        assert_eq!(arrived.due(), None);
        arrived.note(1, 1000, START);
        assert_eq!(arrived.due(), Some(START + ACK_DELAY));
        arrived.note(2, ACK_BYTES, START + ACK_DELAY / 2);
        assert_eq!(arrived.due(), Some(START));
    }
}
