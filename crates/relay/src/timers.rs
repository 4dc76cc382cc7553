//! Times at which something is to be looked at again. Pure.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::time::Instant;

/// Values with their times, one time for each: the earliest that was asked for. Whoever gets a value looks what
/// it means now, and asks for the next time.
#[derive(Debug)]
pub(crate) struct Timers<T> {
    order: BTreeSet<(Instant, T)>,
    times: HashMap<T, Instant>,
}

impl<T: Ord + Hash + Copy> Timers<T> {
    pub(crate) fn new() -> Timers<T> {
        Timers { order: BTreeSet::new(), times: HashMap::new() }
    }

    /// Asks for a time. A later one than the value has changes nothing.
    pub(crate) fn set(&mut self, at: Instant, value: T) {
        if self.times.get(&value).is_none_or(|set| at < *set) {
            self.forget(value);
            self.times.insert(value, at);
            self.order.insert((at, value));
        }
    }

    /// The value has no time any more.
    pub(crate) fn forget(&mut self, value: T) {
        if let Some(at) = self.times.remove(&value) {
            self.order.remove(&(at, value));
        }
    }

    /// The next time.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.order.first().map(|(at, _)| *at)
    }

    /// A value whose time has come.
    pub(crate) fn due(&mut self, now: Instant) -> Option<T> {
        let (_, value) = self.order.first().copied().filter(|(at, _)| *at <= now)?;
        self.forget(value);
        Some(value)
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn values_come_in_the_order_of_their_times_and_not_before() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::new();
        timers.set(at(5), 'b');
        timers.set(at(3), 'a');
        timers.set(at(9), 'c');
        assert_eq!((timers.next(), timers.due(at(2))), (Some(at(3)), None));
        assert_eq!((timers.due(at(5)), timers.due(at(5)), timers.due(at(5))), (Some('a'), Some('b'), None));
        assert_eq!((timers.due(at(99)), timers.next()), (Some('c'), None));
    }

    #[test]
    fn a_value_has_one_time_and_it_is_the_earliest() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut timers = Timers::new();
        [7, 3, 5, 3].into_iter().for_each(|ms| timers.set(at(ms), 'a'));
        assert_eq!((timers.len(), timers.due(at(3)), timers.due(at(99))), (1, Some('a'), None));
        timers.set(at(9), 'a');
        timers.forget('a');
        assert_eq!((timers.next(), timers.times.len()), (None, 0));
    }
}
