//! A set of numbers, kept as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers as ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    ends: BTreeMap<u64, u64>,
}

impl RangeSet {
    /// Adds a number; false if it was there.
    pub fn insert(&mut self, number: u64) -> bool {
        if self.contains(number) {
            return false;
        }
        let mut end = number + 1;
        if let Some(after) = self.ends.remove(&end) {
            end = after;
        }
        match self.ends.range_mut(..number).next_back() {
            Some((_, before)) if *before == number => *before = end,
            _ => drop(self.ends.insert(number, end)),
        }
        true
    }

    /// Whether a number is in the set.
    pub fn contains(&self, number: u64) -> bool {
        self.ends.range(..=number).next_back().is_some_and(|(_, end)| number < *end)
    }

    /// Removes and gives the first range.
    pub fn pop_first(&mut self) -> Option<Range<u64>> {
        self.ends.pop_first().map(|(start, end)| start..end)
    }

    /// Removes all numbers below this one.
    pub fn remove_below(&mut self, number: u64) {
        while let Some(first) = self.ends.first_entry() {
            if *first.key() >= number {
                return;
            }
            let end = first.remove();
            if end > number {
                self.ends.insert(number, end);
            }
        }
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_the_set_of_its_numbers(steps in prop::collection::vec((0u64..60, prop::bool::weighted(0.1)), 0..120)) {
            let (mut ranges, mut oracle) = (RangeSet::default(), BTreeSet::new());
            for (number, removes) in steps {
                if removes {
                    ranges.remove_below(number);
                    oracle.retain(|it| *it >= number);
                } else {
                    prop_assert_eq!(ranges.insert(number), oracle.insert(number));
                }
                let all: Vec<u64> = ranges.ends.iter().flat_map(|(start, end)| *start..*end).collect();
                prop_assert_eq!(&all, &oracle.iter().copied().collect::<Vec<_>>());
                let mut free = 0;
                for (start, end) in &ranges.ends {
                    prop_assert!(*start >= free && end > start);
                    free = end + 1;
                }
            }
            prop_assert!((0..60).all(|number| ranges.contains(number) == oracle.contains(&number)));
        }
    }
}
