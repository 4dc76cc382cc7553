//! The half of a channel that receives.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use drover_wire::{Frame, cost};

use super::{Message, Moment, Order};

/// Windows below this grow four times at once: one that begins with 256 KiB is as large as what 1 Gbit/s has under
/// way in 55 ms after three round trips, as fast as TCP itself.
const WINDOW_SMALL: u64 = 8 << 20;

/// On a near line, larger ones are as large as what is read in so many of the longest round trips: more would only lie here where
/// a program reads slower than the line carries. On others what is lost may come half a second late, and has to wait somewhere.
const WINDOW_ROUND_TRIPS: f64 = 8.0;
const WINDOW_ANYWAY: u64 = 2 << 20;
const NEAR: Duration = Duration::from_millis(5);

/// So much was read before the peer is given more, at most.
const CREDIT_STEP_MAX: u64 = 2 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiveState {
    Open,
    /// Given up: by the peer, or here.
    Reset,
    /// Nobody reads here any more.
    Dropped,
}

/// Where what the peer sends ends, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Bytes of the stream, or messages.
    pub count: u64,
    /// The peer finished; else it went away.
    pub is_clean: bool,
}

/// What the program gets when it asks.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken<T> {
    /// Something.
    Some(T),
    /// Nothing yet.
    Wait,
    /// Nothing any more.
    End,
    /// The channel was given up.
    Reset,
}

/// A peer that broke the rules, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation(pub &'static str);

/// The half of a channel that receives.
#[derive(Debug)]
pub struct Receiving {
    order: Order,
    pub state: ReceiveState,
    end: Option<End>,
    /// Cost that the peer may send in all, that arrived, and that the program has taken.
    promised: u64,
    arrived: u64,
    consumed: u64,
    window: u64,
    window_max: u64,
    /// What had been taken when the window was looked at last, and when that was.
    looked_at: (u64, Option<Moment>),
    messages: VecDeque<Message>,
    /// Messages, or bytes of the stream in order, that arrived.
    count: u64,
    ready: VecDeque<Vec<u8>>,
    /// Pieces of a stream that came before their turn, by offset.
    early: BTreeMap<u64, Vec<u8>>,
}

impl Receiving {
    pub fn new(order: Order, first: u64, window_max: u64) -> Receiving {
        Receiving {
            order,
            state: ReceiveState::Open,
            end: None,
            promised: first,
            arrived: 0,
            consumed: 0,
            window: first,
            window_max: window_max.max(first),
            looked_at: (0, None),
            messages: VecDeque::new(),
            count: 0,
            ready: VecDeque::new(),
            early: BTreeMap::new(),
        }
    }

    /// Takes a frame that arrived for the first time. Gives the cost that nobody will consume.
    pub fn take_frame(&mut self, frame: Frame) -> Result<u64, Violation> {
        let cost = cost(frame.header.payload_bytes as usize);
        self.arrived += cost;
        if self.arrived > self.promised {
            return Err(Violation("more was sent than there was credit for"));
        }
        match self.order {
            Order::Messages => {
                self.count += 1;
                if self.end.is_some_and(|end| self.count > end.count) {
                    return Err(Violation("a message after the end"));
                }
                self.messages.push_back(Message { head: frame.head, body: frame.body });
            }
            Order::Stream => self.take_piece(frame.header.number, frame.body)?,
        }
        Ok(if self.state == ReceiveState::Open { 0 } else { self.discard() })
    }

    fn take_piece(&mut self, offset: u64, bytes: Vec<u8>) -> Result<(), Violation> {
        let end = offset.checked_add(bytes.len() as u64).ok_or(Violation("a stream that is too long"))?;
        if self.end.is_some_and(|it| end > it.count) {
            return Err(Violation("bytes after the end of a stream"));
        }
        let before = self.early.range(..=offset).next_back();
        let overlaps = before.is_some_and(|(at, piece)| at + piece.len() as u64 > offset)
            || self.early.range(offset..end).next().is_some();
        if offset < self.count || overlaps {
            return Err(Violation("bytes of a stream that were sent twice"));
        }
        self.early.insert(offset, bytes);
        while let Some(piece) = self.early.remove(&self.count) {
            self.count += piece.len() as u64;
            self.ready.push_back(piece);
        }
        Ok(())
    }

    /// The peer says where it ends.
    pub fn set_end(&mut self, end: End) -> Result<(), Violation> {
        let highest = self.early.last_key_value().map_or(self.count, |(at, piece)| at + piece.len() as u64);
        if highest > end.count || self.end.is_some_and(|it| it.count != end.count) {
            return Err(Violation("an end before what was sent"));
        }
        self.end.get_or_insert(end);
        Ok(())
    }

    /// Gives up what is here and what comes; gives the cost that nobody will consume.
    pub fn stop(&mut self, state: ReceiveState) -> u64 {
        self.state = state;
        self.discard()
    }

    fn discard(&mut self) -> u64 {
        self.messages = VecDeque::new();
        self.ready = VecDeque::new();
        self.early = BTreeMap::new();
        let unread = self.arrived - self.consumed;
        self.consumed = self.arrived;
        unread
    }

    /// The next message, and its cost.
    pub fn message(&mut self) -> Taken<(Message, u64)> {
        match self.messages.pop_front() {
            Some(message) => {
                let cost = cost(message.head.len() + message.body.len());
                self.consumed += cost;
                Taken::Some((message, cost))
            }
            None => self.nothing(),
        }
    }

    /// The next piece of a stream, and its cost.
    pub fn piece(&mut self) -> Taken<(Vec<u8>, u64)> {
        match self.ready.pop_front() {
            Some(piece) => {
                let cost = cost(piece.len());
                self.consumed += cost;
                Taken::Some((piece, cost))
            }
            None => self.nothing(),
        }
    }

    fn nothing<T>(&self) -> Taken<T> {
        match (self.state, self.end) {
            (ReceiveState::Reset, _) => Taken::Reset,
            (_, Some(end)) if self.count == end.count => {
                if end.is_clean {
                    Taken::End
                } else {
                    Taken::Reset
                }
            }
            _ => Taken::Wait,
        }
    }

    /// Whether all that the peer sent was taken.
    pub fn is_at_end(&self) -> bool {
        self.messages.is_empty()
            && self.ready.is_empty()
            && self.end.is_some_and(|end| self.count == end.count)
    }

    /// Whether the peer has more to send.
    pub fn is_expecting(&self) -> bool {
        self.state == ReceiveState::Open && self.end.is_none_or(|end| self.count < end.count)
    }

    /// A new limit for the peer, once a part of the window was read: long before the peer has used it up, or it would
    /// stand still for a round trip each time.
    pub fn credit(&mut self) -> Option<u64> {
        let to_promise = self.consumed + self.window - self.promised;
        if !self.is_expecting() || to_promise < (self.window / 8).min(CREDIT_STEP_MAX) {
            return None;
        }
        self.promised = self.consumed + self.window;
        Some(self.promised)
    }

    /// The window grows each time half of it was read, until it is as large as it may be or as is of use on a line with this
    /// round trip: one that reads gets much, one that does not keeps little. Gives the limit to tell the peer.
    pub fn grow(&mut self, rtt: Option<Duration>, now: Moment) -> u64 {
        let (read_before, when) = self.looked_at;
        let read = self.consumed - read_before;
        if self.is_expecting() && read >= self.window / 2 {
            self.looked_at = (self.consumed, Some(now));
            let useful = rtt.filter(|rtt| *rtt < NEAR).zip(when).map_or(self.window_max, |(rtt, when)| {
                let passed = now.saturating_sub(when).max(Duration::from_micros(1));
                let in_a_round_trip = read as f64 * rtt.as_secs_f64() / passed.as_secs_f64();
                ((in_a_round_trip * WINDOW_ROUND_TRIPS) as u64).max(WINDOW_ANYWAY)
            });
            let times = if self.window < WINDOW_SMALL { 4 } else { 2 };
            self.window = (self.window * times).min(self.window_max).min(useful).max(self.window);
            self.promised = self.consumed + self.window;
        }
        self.promised
    }
}

#[cfg(test)]
mod tests {
    use drover_wire::{Header, Kind};
    use proptest::prelude::*;

    use super::*;

    fn piece(offset: u64, bytes: &[u8]) -> Frame {
        let header = Header::new(Kind::Data, 1, offset).with_payload(bytes);
        Frame { header, head: vec![], body: bytes.to_vec() }
    }

    proptest! {
        #[test]
        fn a_stream_is_in_order_however_its_pieces_come(lengths in prop::collection::vec(1usize..50, 1..40), shuffle in any::<u64>()) {
            let bytes: Vec<u8> = (0..lengths.iter().sum()).map(|at: usize| (at % 251) as u8).collect();
            let mut at = 0;
            let mut pieces: Vec<Frame> = lengths.iter().map(|length| {
                at += length;
                piece((at - length) as u64, &bytes[at - length..at])
            }).collect();
            let mut receiving = Receiving::new(Order::Stream, 1 << 20, 1 << 20);
            let (mut found, mut seed) = (Vec::new(), shuffle);
            while !pieces.is_empty() {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let next = pieces.swap_remove((seed >> 33) as usize % pieces.len());
                prop_assert_eq!(receiving.take_frame(next), Ok(0));
                while let Taken::Some((bytes, _)) = receiving.piece() {
                    found.extend(bytes);
                }
            }
            prop_assert_eq!(receiving.piece(), Taken::Wait);
            receiving.set_end(End { count: bytes.len() as u64, is_clean: true }).unwrap();
            prop_assert_eq!(receiving.piece(), Taken::End);
            prop_assert_eq!(found, bytes);
        }
    }

    #[test]
    fn bytes_that_overlap_or_lie_after_the_end_are_no_honest_ones() {
        let mut receiving = Receiving::new(Order::Stream, 1 << 20, 1 << 20);
        receiving.take_frame(piece(10, &[1; 10])).unwrap();
        for (offset, length) in [(10, 10), (5, 6), (19, 1), (0, 30), (u64::MAX, 1)] {
            assert!(receiving.take_frame(piece(offset, &vec![0; length])).is_err(), "{offset}+{length}");
        }
        assert!(receiving.set_end(End { count: 19, is_clean: true }).is_err());
        receiving.set_end(End { count: 20, is_clean: true }).unwrap();
        assert!(receiving.take_frame(piece(20, &[1])).is_err());
        receiving.take_frame(piece(0, &[1; 10])).unwrap();
        assert!(receiving.take_frame(piece(3, &[1])).is_err(), "it was there");
    }

    #[test]
    fn a_peer_that_sends_more_than_it_may_is_found() {
        let mut receiving = Receiving::new(Order::Stream, cost(10), cost(10));
        assert!(receiving.take_frame(piece(0, &[0; 10])).is_ok());
        assert!(receiving.take_frame(piece(10, &[0])).is_err());
    }

    #[test]
    fn the_window_grows_only_as_it_is_read() {
        let mut receiving = Receiving::new(Order::Stream, 1000, 6000);
        let grow = |receiving: &mut Receiving| receiving.grow(None, Moment::ZERO);
        receiving.take_frame(piece(0, &[0; 700])).unwrap();
        assert_eq!((receiving.credit(), grow(&mut receiving)), (None, 1000), "nothing was read");
        assert!(matches!(receiving.piece(), Taken::Some(_)));
        assert_eq!(receiving.credit(), Some(cost(700) + 1000));
        assert_eq!(grow(&mut receiving), cost(700) + 4000);
        assert_eq!((receiving.credit(), grow(&mut receiving)), (None, cost(700) + 4000));
        receiving.take_frame(piece(700, &[0; 2500])).unwrap();
        assert!(matches!(receiving.piece(), Taken::Some(_)));
        assert_eq!(grow(&mut receiving), cost(700) + cost(2500) + 6000, "as much as it may have");
    }

    /// A program that reads so many bytes a second for a second, over a line with this round trip: the window in the end.
    fn window_of(rate: u64, rtt: Duration) -> u64 {
        const PIECE: u64 = 100_000;
        let mut receiving = Receiving::new(Order::Stream, 256 << 10, 64 << 20);
        let bytes = vec![0; PIECE as usize];
        for at in 0..rate / PIECE {
            receiving.take_frame(piece(at * PIECE, &bytes)).unwrap();
            assert!(matches!(receiving.piece(), Taken::Some(_)));
            receiving.grow(Some(rtt), Duration::from_nanos(at * PIECE * 1_000_000_000 / rate));
            receiving.credit();
        }
        receiving.window
    }

    #[test]
    fn the_window_is_as_large_as_its_line_needs() {
        const MB: u64 = 1_000_000;
        let ms = Duration::from_millis;
        assert_eq!(window_of(300 * MB, Duration::from_micros(500)), WINDOW_ANYWAY);
        let near = window_of(600 * MB, ms(1));
        assert!((4 * MB..6 * MB).contains(&near), "{near}");
        assert_eq!(window_of(30 * MB, ms(4)), WINDOW_ANYWAY);
        for rate in [100 * MB, 1000 * MB] {
            assert_eq!(window_of(rate, NEAR), 64 << 20, "{rate}");
        }
    }

    #[test]
    fn the_peer_gets_credit_long_before_it_has_none() {
        let (window, piece_bytes) = (1_000_000, 10_000);
        let mut receiving = Receiving::new(Order::Stream, window, window);
        let mut at = 0;
        for _ in 0..1000 {
            receiving.take_frame(piece(at, &vec![0; piece_bytes])).unwrap();
            at += piece_bytes as u64;
            assert!(matches!(receiving.piece(), Taken::Some(_)));
            receiving.credit();
            receiving.grow(None, Moment::ZERO);
            let left = receiving.promised - receiving.consumed;
            assert!(left >= window - window / 8, "{left}");
        }
    }

    #[test]
    fn one_that_went_away_unfinished_is_told_after_what_it_sent() {
        let mut receiving = Receiving::new(Order::Stream, 1 << 20, 1 << 20);
        receiving.set_end(End { count: 3, is_clean: false }).unwrap();
        assert_eq!(receiving.piece(), Taken::Wait);
        receiving.take_frame(piece(0, b"abc")).unwrap();
        assert_eq!(receiving.piece(), Taken::Some((b"abc".to_vec(), cost(3))));
        assert_eq!(receiving.piece(), Taken::Reset);
    }
}
