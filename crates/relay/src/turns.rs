//! Whose turn it is to be asked for over a link, among clients of many targets. Pure.
//!
//! A turn is held until the target answers, and one that never does holds it for as long as the agent waits. So
//! that such targets keep no others waiting:
//!
//! - targets take turns one after another, however many clients wait for each;
//! - a target has at most as many turns as are free beside: one alone gets half of them, two a third each, and so on;
//! - some turns are for targets that have answered lately. So many that say nothing leave these to them.

use std::collections::{HashMap, HashSet, VecDeque};

/// Turns at a time. The agent serves as many channels of a session at a time as 256.
pub(crate) const TURNS_MAX: usize = 128;
/// Of these, turns that only targets have which have answered.
const ANSWERED_ONLY: usize = 32;
/// Targets of which it is remembered that they have answered.
const ANSWERED_MAX: usize = 1_024;

/// What was heard of a target in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// It is there, or says no.
    Answer,
    /// It did not answer in time.
    Silence,
    /// The turn ended otherwise.
    Nothing,
}

#[derive(Debug)]
struct Kind<T> {
    asking: usize,
    waiting: VecDeque<T>,
}

impl<T> Default for Kind<T> {
    fn default() -> Self {
        Kind { asking: 0, waiting: VecDeque::new() }
    }
}

/// Those who wait, by target, and how many turns each target has.
#[derive(Debug)]
pub(crate) struct Turns<T> {
    kinds: HashMap<String, Kind<T>>,
    /// Targets for which somebody waits, each once, the next one first: those that have answered, and others.
    known: VecDeque<String>,
    unknown: VecDeque<String>,
    /// Whose round is next, while both have somebody.
    known_is_next: bool,
    answered: Answered,
    asking: usize,
    /// Of them for targets that had not answered when their turn came.
    asking_unknown: usize,
    waiting: usize,
}

/// Targets that have answered lately, the last ones.
#[derive(Debug, Default)]
struct Answered {
    targets: HashSet<String>,
    order: VecDeque<String>,
}

impl Answered {
    /// Adds one; gives the one that is forgotten for it.
    fn add(&mut self, target: &str) -> Option<String> {
        if self.targets.insert(target.to_string()) {
            self.order.push_back(target.to_string());
        }
        if self.order.len() <= ANSWERED_MAX {
            return None;
        }
        let forgotten = self.order.pop_front()?;
        self.targets.remove(&forgotten);
        Some(forgotten)
    }

    fn remove(&mut self, target: &str) {
        if self.targets.remove(target) {
            self.order.retain(|it| it != target);
        }
    }
}

/// A turn. To be given back.
#[derive(Debug)]
pub(crate) struct Turn {
    target: String,
    is_unknown: bool,
}

impl<T> Turns<T> {
    pub(crate) fn new() -> Turns<T> {
        Turns {
            kinds: HashMap::new(),
            known: VecDeque::new(),
            unknown: VecDeque::new(),
            known_is_next: true,
            answered: Answered::default(),
            asking: 0,
            asking_unknown: 0,
            waiting: 0,
        }
    }

    /// Turns that are taken.
    pub(crate) fn asking(&self) -> usize {
        self.asking
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    /// One more waits, behind the others of its target.
    pub(crate) fn push(&mut self, target: &str, one: T) {
        self.put(target, |waiting| waiting.push_back(one));
    }

    /// One whose turn came to nothing waits again, before the others of its target.
    pub(crate) fn push_again(&mut self, target: &str, one: T) {
        self.put(target, |waiting| waiting.push_front(one));
    }

    fn put(&mut self, target: &str, put: impl FnOnce(&mut VecDeque<T>)) {
        let kind = self.kinds.entry(target.to_string()).or_default();
        let is_first = kind.waiting.is_empty();
        put(&mut kind.waiting);
        self.waiting += 1;
        if is_first {
            self.round_of(target).push_back(target.to_string());
        }
    }

    fn round_of(&mut self, target: &str) -> &mut VecDeque<String> {
        if self.answered.targets.contains(target) { &mut self.known } else { &mut self.unknown }
    }

    /// The next one who may be asked for, and its turn.
    pub(crate) fn next(&mut self) -> Option<(T, Turn)> {
        let first = self.known_is_next;
        self.known_is_next = !first;
        let (target, is_unknown) = self.next_of(first).or_else(|| self.next_of(!first))?;
        let kind = self.kinds.get_mut(&target)?;
        let one = kind.waiting.pop_front()?;
        kind.asking += 1;
        if !kind.waiting.is_empty() {
            self.round_of(&target).push_back(target.clone());
        }
        self.waiting -= 1;
        self.asking += 1;
        self.asking_unknown += usize::from(is_unknown);
        Some((one, Turn { target, is_unknown }))
    }

    /// The next target of a round that may have one more turn, and whether it has not answered.
    fn next_of(&mut self, is_known: bool) -> Option<(String, bool)> {
        let free = TURNS_MAX.saturating_sub(self.asking);
        let (round, free) = match is_known {
            true => (&mut self.known, free),
            false => {
                let most = (TURNS_MAX - ANSWERED_ONLY).saturating_sub(self.asking_unknown);
                (&mut self.unknown, free.min(most))
            }
        };
        if free == 0 {
            return None;
        }
        // Those passed over have a turn at least, so they are few.
        let kinds = &self.kinds;
        let at = round.iter().position(|it| kinds.get(it).is_some_and(|kind| kind.asking < free))?;
        Some((round.remove(at)?, !is_known))
    }

    /// A turn is over.
    pub(crate) fn give_back(&mut self, turn: Turn, heard: Heard) {
        let Turn { target, is_unknown } = turn;
        self.asking -= 1;
        self.asking_unknown -= usize::from(is_unknown);
        if let Some(kind) = self.kinds.get_mut(&target) {
            kind.asking -= 1;
            if kind.asking == 0 && kind.waiting.is_empty() {
                self.kinds.remove(&target);
            }
        }
        match heard {
            Heard::Nothing => {}
            Heard::Answer if self.answered.targets.contains(&target) => {}
            Heard::Answer => {
                let forgotten = self.answered.add(&target);
                self.change_round(&target);
                forgotten.iter().for_each(|it| self.change_round(it));
            }
            Heard::Silence => {
                self.answered.remove(&target);
                self.change_round(&target);
            }
        }
    }

    /// A target that waits may be in the wrong round now.
    fn change_round(&mut self, target: &str) {
        if self.kinds.get(target).is_none_or(|kind| kind.waiting.is_empty()) {
            return;
        }
        self.known.retain(|it| it != target);
        self.unknown.retain(|it| it != target);
        self.round_of(target).push_back(target.to_string());
    }

    /// All who wait, who wait no more.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        self.known.clear();
        self.unknown.clear();
        self.waiting = 0;
        let all = self.kinds.values_mut().flat_map(|kind| kind.waiting.drain(..)).collect();
        self.kinds.retain(|_, kind| kind.asking > 0);
        all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn taken(turns: &mut Turns<usize>) -> Vec<Turn> {
        std::iter::from_fn(|| turns.next()).map(|(_, turn)| turn).collect()
    }

    fn of<'a>(taken: &'a [Turn], target: &'a str) -> usize {
        taken.iter().filter(|turn| turn.target == target).count()
    }

    #[test]
    fn a_target_that_says_nothing_leaves_turns_to_others() {
        let mut turns = Turns::new();
        (0..1000).for_each(|number| turns.push("silent", number));
        let silent = taken(&mut turns);
        assert!((1..=TURNS_MAX / 2).contains(&silent.len()), "{}", silent.len());
        for target in ["a", "b", "c"] {
            turns.push(target, 0);
            assert_eq!(of(&taken(&mut turns), target), 1, "{target}");
        }
        assert_eq!(turns.waiting(), 1000 - silent.len());
    }

    #[test]
    fn however_many_say_nothing_one_that_has_answered_has_its_turn() {
        let mut turns = Turns::new();
        turns.push("good", 0);
        let (_, turn) = turns.next().unwrap();
        turns.give_back(turn, Heard::Answer);
        for number in 0..1000 {
            turns.push(&format!("silent {number}"), number);
        }
        let silent = taken(&mut turns);
        assert_eq!(silent.len(), TURNS_MAX - ANSWERED_ONLY);
        turns.push("good", 1);
        let (_, turn) = turns.next().unwrap();
        assert_eq!(turn.target, "good");
        // Once it is silent, too, it is like the others.
        turns.give_back(turn, Heard::Silence);
        turns.push("good", 2);
        assert!(turns.next().is_none());
        for turn in silent {
            turns.give_back(turn, Heard::Silence);
        }
        assert!(turns.next().is_some());
    }

    #[test]
    fn targets_take_turns_and_clients_of_one_come_in_their_order() {
        let mut turns = Turns::new();
        [1, 2, 3].into_iter().for_each(|number| turns.push("a", number));
        turns.push("b", 4);
        let (first, turn) = turns.next().unwrap();
        turns.give_back(turn, Heard::Nothing);
        turns.push_again("a", first);
        let order: Vec<usize> = std::iter::from_fn(|| turns.next()).map(|(number, _)| number).collect();
        assert_eq!(order, [4, 1, 2, 3]);
    }

    proptest! {
        #[test]
        fn all_have_their_turn_and_nothing_is_left(
            steps in prop::collection::vec((0_usize..6, 0_usize..3, 0_usize..3), 0..600),
        ) {
            let mut turns = Turns::new();
            let (mut held, mut pushed, mut served) = (Vec::new(), 0, 0);
            for (target, step, heard) in steps {
                match step {
                    0 | 1 => {
                        turns.push(&target.to_string(), pushed);
                        pushed += 1;
                    }
                    _ if !held.is_empty() => {
                        let heard = [Heard::Answer, Heard::Silence, Heard::Nothing][heard];
                        turns.give_back(held.swap_remove(target % held.len()), heard);
                    }
                    _ => {}
                }
                if heard > 0 {
                    let more = taken(&mut turns);
                    served += more.len();
                    held.extend(more);
                }
                prop_assert!(turns.asking() == held.len() && turns.asking() <= TURNS_MAX);
                prop_assert_eq!(turns.waiting(), pushed - served);
            }
            while turns.asking() + turns.waiting() > 0 {
                let more = taken(&mut turns);
                prop_assert!(!more.is_empty() || !held.is_empty(), "they wait for nothing");
                held.extend(more);
                held.drain(..).for_each(|turn| turns.give_back(turn, Heard::Nothing));
            }
            prop_assert!(turns.kinds.is_empty() && turns.known.is_empty() && turns.unknown.is_empty());
        }
    }
}
