//! Times at which something is to be looked at again. Pure.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// Values with their times. A time cannot be taken back: whoever gets a value looks whether it still
/// means something.
#[derive(Debug)]
pub(crate) struct Timers<T: Ord> {
    heap: BinaryHeap<Reverse<(Instant, T)>>,
}

impl<T: Ord> Timers<T> {
    pub(crate) fn new() -> Timers<T> {
        Timers { heap: BinaryHeap::new() }
    }

    pub(crate) fn set(&mut self, at: Instant, value: T) {
        self.heap.push(Reverse((at, value)));
    }

    /// The next time.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((at, _))| *at)
    }

    /// A value whose time has come.
    pub(crate) fn due(&mut self, now: Instant) -> Option<T> {
        if self.next()? > now {
            return None;
        }
        self.heap.pop().map(|Reverse((_, value))| value)
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
}
