//! All moves, between any hosts: those between the same two share a line, and all have equal parts of what may be sent.

use std::collections::BTreeMap;
use std::time::Duration;

use drover_types::Estimate;

use super::{Guest, Pair, Pipe, Step};
use crate::choose::{Allowed, Choice};
use crate::event::{Event, Moved};
use crate::outlook::{LINE_ASSUMED, line_said};

/// Below it a bound is more noise than bound; libvirt counts in it.
pub const SHARE_MIN: u64 = 1 << 20;
/// So many are prepared at least while others send: small guests are sent faster than one is prepared.
const AHEAD: usize = 2;

/// What was said of all moves.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bounds {
    /// Bytes a second that a line carries.
    pub line: Option<f64>,
    /// Bytes a second that all may send together.
    pub rate_max: Option<u64>,
    /// Bytes a second that one connection carries.
    pub connection: Option<u64>,
    /// At most so many between two hosts send at a time.
    pub at_once_max: Option<usize>,
}

/// A guest among others.
#[derive(Clone, Debug)]
pub struct Mover {
    /// By which it is known.
    pub number: usize,
    /// The hosts that it moves between.
    pub between: (String, String),
    /// What it is.
    pub guest: Guest,
}

/// How a move begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Begin {
    /// So many go at once.
    pub at_once: usize,
    /// Bytes a second that it may send, of a budget; how much it is is said anew with its turn.
    pub share: Option<u64>,
    /// What of the line it has, at least, where that is known.
    pub line: Option<Estimate>,
    /// An earlier run began it.
    pub is_under_way: bool,
}

/// All moves.
#[derive(Default)]
pub struct Moves {
    pairs: Vec<Pair>,
    budget: Option<u64>,
}

impl Moves {
    /// Finds how they go.
    #[must_use]
    pub fn new(all: Vec<Mover>, bounds: &Bounds) -> Moves {
        let mut hosts: BTreeMap<(String, String), Vec<Mover>> = BTreeMap::new();
        for one in all {
            hosts.entry(one.between.clone()).or_default().push(one);
        }
        let parts = hosts.len().max(1) as u64;
        let pipe = Pipe {
            line: bounds.line.map_or(LINE_ASSUMED, line_said),
            rate_max: bounds.rate_max.map(|budget| budget / parts),
            connection: bounds.connection,
            share_min: SHARE_MIN,
            at_once_max: bounds.at_once_max,
        };
        let pair = |((from, to), movers): ((String, String), Vec<Mover>)| {
            Pair::new(format!("{from} to {to}"), movers, pipe, bounds.line.is_some())
        };
        Moves { pairs: hosts.into_iter().map(pair).collect(), budget: bounds.rate_max }
    }

    /// Guests between each two hosts.
    #[must_use]
    pub fn pairs(&self) -> &[Pair] {
        &self.pairs
    }

    /// Promises that cannot be kept, even by a guest that goes alone: whose, what was looked at, and what it was allowed.
    #[must_use]
    pub fn broken_promises(&self) -> Vec<(usize, &Choice, Allowed)> {
        let broken = self.pairs.iter().filter(|pair| pair.schedule.chosen.is_none());
        let all = broken.flat_map(|pair| {
            let guests = pair.numbers.iter().zip(&pair.guests).zip(&pair.schedule.alone);
            guests.filter(|((_, guest), choice)| choice.course.is_none() && !guest.is_under_way)
        });
        all.map(|((number, guest), choice)| (*number, choice, guest.allowed)).collect()
    }

    /// No more moves begin.
    pub fn stop(&mut self) {
        self.pairs.iter_mut().for_each(|pair| pair.together.stop());
    }

    /// What is to be done now, by the guests' numbers. Hosts that still have something to move have equal parts of the budget.
    pub fn steps(&mut self) -> Vec<Step> {
        if let Some(budget) = self.budget {
            let parts = self.pairs.iter().filter(|pair| !pair.together.is_over()).count().max(1) as u64;
            self.pairs.iter_mut().for_each(|pair| pair.together.widen(budget / parts));
        }
        let steps = |pair: &mut Pair| {
            let numbers = &pair.numbers;
            let named = |step| match step {
                Step::Begin(one, share) => Step::Begin(numbers[one], share),
                Step::Share(one, share) => Step::Share(numbers[one], share),
            };
            pair.together.steps().into_iter().map(named).collect::<Vec<_>>()
        };
        self.pairs.iter_mut().flat_map(steps).collect()
    }

    /// Those whose turn comes next, which are prepared while others send.
    #[must_use]
    pub fn next_ones(&self) -> Vec<usize> {
        let next = |pair: &Pair| {
            let next = pair.together.next_ones().into_iter().take(pair.at_once().max(AHEAD));
            next.map(|one| pair.numbers[one]).collect::<Vec<_>>()
        };
        self.pairs.iter().flat_map(next).collect()
    }

    /// How a move begins; nothing of one that is not among them.
    #[must_use]
    pub fn begin(&self, number: usize) -> Option<Begin> {
        let (pair, one) = self.pairs.iter().find_map(|pair| Some((pair, pair.place(number)?)))?;
        let share = pair.schedule.rate_max.map(|rate| rate.min(pair.schedule.caps[one]));
        let is_under_way = pair.guests[one].is_under_way;
        Some(Begin { at_once: pair.at_once(), share, line: pair.line_of(one), is_under_way })
    }

    /// Takes in what a move tells, so long after the first began; gives two hosts, and how many seconds all take between them,
    /// where that is news.
    pub fn hears(&mut self, number: usize, event: &Event, elapsed: Duration) -> Option<(&str, f64)> {
        let (pair, one) = self.find(number)?;
        let is_measured = pair.hears(one, event);
        match event {
            Event::Share(rate) => pair.together.keeps(one, *rate),
            Event::Sent => pair.together.sent(one),
            _ => {}
        }
        pair.news(is_measured, elapsed)
    }

    /// The same at its end, however it ended.
    pub fn ended(&mut self, number: usize, moved: Option<&Moved>, elapsed: Duration) -> Option<(&str, f64)> {
        let (pair, one) = self.find(number)?;
        pair.ends(one, moved);
        pair.together.ended(one);
        pair.news(true, elapsed)
    }

    /// A move ended of which nothing is known.
    pub fn died(&mut self, number: usize) {
        if let Some((pair, one)) = self.find(number) {
            pair.together.ended(one);
        }
    }

    fn find(&mut self, number: usize) -> Option<(&mut Pair, usize)> {
        self.pairs.iter_mut().find_map(|pair| {
            let one = pair.place(number)?;
            Some((pair, one))
        })
    }

    /// Whether nothing goes and nothing will.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.pairs.iter().all(|pair| pair.together.is_over())
    }

    /// Those that have not begun.
    #[must_use]
    pub fn waiting(&self) -> Vec<usize> {
        let waiting = |pair: &Pair| {
            let waiting = pair.together.waiting().into_iter();
            waiting.map(|one| pair.numbers[one]).collect::<Vec<_>>()
        };
        self.pairs.iter().flat_map(waiting).collect()
    }

    /// Seconds from the first begin to the last end, as it looks now.
    #[must_use]
    pub fn foreseen_s(&self) -> f64 {
        self.pairs.iter().map(|pair| pair.foreseen_s).fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::Promise;
    use crate::outlook::facts_before;
    use crate::together::Pace;

    const MB: u64 = 1_000_000;

    fn mover(number: usize, to: &str, deadline_s: u64) -> Mover {
        let promise =
            Promise { downtime_max: Duration::from_secs(1), deadline: Duration::from_secs(deadline_s) };
        let guest = Guest {
            name: format!("vm{number}"),
            facts: facts_before(1000 * MB, Some(0.0), Estimate::default()),
            promise,
            allowed: Allowed::default(),
            channels: 1,
            disk_bytes: 0,
            rate_max: None,
            is_under_way: false,
            pace: Pace::default(),
        };
        Mover { number, between: ("a".into(), to.into()), guest }
    }

    fn moves(all: Vec<Mover>, rate_max: Option<u64>) -> Moves {
        let bounds = Bounds { line: Some(1e9), rate_max, at_once_max: Some(1), ..Bounds::default() };
        Moves::new(all, &bounds)
    }

    #[test]
    fn hosts_have_equal_parts_of_what_may_be_sent_and_those_that_are_left_have_all() {
        let all = vec![mover(0, "b", 600), mover(1, "c", 600), mover(2, "c", 600)];
        let mut moves = moves(all, Some(100 * MB));
        let begins = [Step::Begin(0, Some(50 * MB)), Step::Begin(1, Some(50 * MB))];
        assert_eq!(moves.steps(), begins);
        assert_eq!(moves.next_ones(), [2]);
        moves.ended(0, None, Duration::from_secs(1));
        assert_eq!(moves.steps(), [Step::Share(1, 100 * MB)]);
        moves.hears(1, &Event::Share(100 * MB), Duration::from_secs(2));
        moves.hears(1, &Event::Sent, Duration::from_secs(3));
        assert_eq!(moves.steps(), [Step::Begin(2, Some(100 * MB))]);
        moves.died(2);
        assert!(!moves.is_over(), "one is sent, and has not ended");
        moves.ended(1, None, Duration::from_secs(4));
        assert!(moves.is_over() && moves.waiting().is_empty());
    }

    #[test]
    fn none_begins_after_a_stop_and_those_that_wait_are_told() {
        let mut moves = moves(vec![mover(3, "b", 600), mover(7, "b", 600)], None);
        assert_eq!(moves.steps(), [Step::Begin(3, None)]);
        moves.stop();
        moves.ended(3, None, Duration::from_secs(1));
        assert_eq!((moves.steps(), moves.next_ones(), moves.waiting()), (vec![], vec![], vec![7]));
        assert!(moves.is_over());
    }

    #[test]
    fn a_promise_that_a_guest_cannot_keep_alone_is_named() {
        let moves = moves(vec![mover(3, "b", 600), mover(7, "b", 0)], None);
        let broken: Vec<usize> = moves.broken_promises().into_iter().map(|(number, ..)| number).collect();
        assert_eq!(broken, [7]);
    }

    #[test]
    fn a_move_begins_with_what_is_known_of_its_line() {
        let moves = moves(vec![mover(3, "b", 600)], Some(100 * MB));
        let begin = moves.begin(3).unwrap();
        assert_eq!((begin.at_once, begin.share, begin.is_under_way), (1, Some(100 * MB), false));
        assert_eq!(begin.line, Some(Estimate { likely: 100e6, spread: 10e6 }));
        assert_eq!(moves.begin(4), None);
    }
}
