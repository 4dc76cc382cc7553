//! Several guests that move between the same two hosts: how many at once, in which order, and what each may send.
//!
//! ```text
//! guests, line, budget ──> schedule ──> as many at once as end soonest and keep each promise
//!                             │ runs on a virtual clock
//!                             v
//!                          Together ──> begin this one with so much, give that one so much from now on
//!                             ^
//! one keeps its share, one has ended
//! ```
//!
//! Guests between other hosts have a schedule of their own (`Pair`); all have equal parts of what may be sent (`Moves`).
//!
//! Those that go have equal shares of the budget; what one cannot use the others have. No share is given before it is
//! free: a move that is to send less has it until it says that it does.

mod moves;
mod pair;
mod schedule;
mod shares;
#[cfg(test)]
mod tests;

pub use moves::{Begin, Bounds, Mover, Moves, SHARE_MIN};
pub use pair::Pair;
pub use schedule::{Foreseen, Guest, Pace, Pipe, Progress, Schedule, Turn, foreseen_on_the_way, schedule};
use shares::shares;

use crate::forecast::Facts;
use crate::preflight::Obstacle;

/// What is known of a guest before it moves with others.
#[derive(Clone, Debug)]
pub struct Beforehand {
    /// Memory, and how fast it is written to; of one that is on its way what is left.
    pub facts: Facts,
    /// Connections for its memory.
    pub channels: u8,
    /// Bytes of disks that are copied.
    pub disk_bytes: u64,
    /// What an earlier run left to do; such a move goes on whatever the others do.
    pub under_way: Option<&'static str>,
    /// Bytes of memory that are free where it goes to, if that is told.
    pub free_bytes: Option<u64>,
    /// What its move takes beside its sending.
    pub pace: Pace,
}

/// Something that is to be done with one of several moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It begins, with so many bytes a second if there is a budget.
    Begin(usize, Option<u64>),
    /// It may send so many bytes a second from now on; [`Together::keeps`] is to be told when it does.
    Share(usize, u64),
}

/// Moves that share one budget.
#[derive(Clone, Debug)]
pub struct Together {
    /// Bytes a second for all.
    budget: Option<u64>,
    /// So many at once.
    width: usize,
    /// In which they begin.
    order: Vec<usize>,
    moves: Vec<One>,
    is_stopped: bool,
}

#[derive(Clone, Debug)]
struct One {
    /// Bytes a second that it can send at most.
    cap: u64,
    /// An earlier run began it: it goes on whatever the others do.
    is_under_way: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waits,
    Goes {
        /// Bytes a second that it was given last.
        share: u64,
        /// That it may send until it says that it keeps its share. Until then it is given no other, so that nobody takes
        /// its word about one for its word about another.
        until_kept: Option<u64>,
    },
    /// It sends no more, and is seen to its end.
    Ends,
    Over,
}

impl Together {
    /// Moves in this order, so many at once. `caps` are bytes a second that each can send at most; those that an earlier run
    /// began go on at once, beyond that number if need be.
    pub fn new(
        budget: Option<u64>,
        width: usize,
        order: Vec<usize>,
        caps: &[u64],
        under_way: &[bool],
    ) -> Together {
        let one = |(cap, is_under_way): (&u64, &bool)| One {
            cap: (*cap).max(1),
            is_under_way: *is_under_way,
            state: State::Waits,
        };
        let moves = caps.iter().zip(under_way).map(one).collect();
        Together { budget, width: width.max(1), order, moves, is_stopped: false }
    }

    /// They have so many bytes a second from now on, if they had a budget; never less than before.
    pub fn widen(&mut self, budget: u64) {
        self.budget = self.budget.map(|now| now.max(budget));
    }

    /// What is to be done now.
    pub fn steps(&mut self) -> Vec<Step> {
        let going = self.going();
        let next = self.next(going.len());
        let wanted: Vec<usize> = going.iter().chain(&next).copied().collect();
        let Some(budget) = self.budget else {
            return next.into_iter().map(|one| self.begin(one, None)).collect();
        };
        let caps: Vec<u64> = wanted.iter().map(|one| self.moves[*one].cap).collect();
        let due: Vec<(usize, u64)> = wanted.iter().copied().zip(shares(budget, &caps)).collect();
        let mut steps = Vec::new();
        // What is taken away comes first, and is not free before it is given back.
        for (one, share) in due.iter().copied() {
            if self.settled(one).is_some_and(|now| now > share) {
                steps.push(self.give(one, share));
            }
        }
        for (one, share) in due {
            match self.moves[one].state {
                State::Waits if self.free(budget) >= share => steps.push(self.begin(one, Some(share))),
                // The next ones wait behind it.
                State::Waits => break,
                State::Goes { share: now, until_kept: None }
                    if now < share && self.free(budget) >= share - now =>
                {
                    steps.push(self.give(one, share));
                }
                State::Goes { .. } | State::Ends | State::Over => {}
            }
        }
        steps
    }

    /// A move sends no more than this share from now on. What it says of an older one counts for nothing.
    pub fn keeps(&mut self, one: usize, kept: u64) {
        if let State::Goes { share, until_kept } = &mut self.moves[one].state
            && *share == kept
        {
            *until_kept = None;
        }
    }

    /// A move sends no more, though it has not ended: others may.
    pub fn sent(&mut self, one: usize) {
        if let State::Goes { .. } = self.moves[one].state {
            self.moves[one].state = State::Ends;
        }
    }

    /// A move is over, however it ended.
    pub fn ended(&mut self, one: usize) {
        self.moves[one].state = State::Over;
    }

    /// No more moves begin.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Whether no more begin.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Those that send, or are about to.
    pub fn going(&self) -> Vec<usize> {
        let goes = |one: &usize| matches!(self.moves[*one].state, State::Goes { .. });
        self.order.iter().copied().filter(goes).collect()
    }

    /// Those that have not begun, in their order.
    pub fn waiting(&self) -> Vec<usize> {
        self.order.iter().copied().filter(|one| self.moves[*one].state == State::Waits).collect()
    }

    /// Those that are to begin next, in their order; none where no more begin.
    pub fn next_ones(&self) -> Vec<usize> {
        if self.is_stopped { Vec::new() } else { self.waiting() }
    }

    /// Whether nothing goes and nothing will.
    pub fn is_over(&self) -> bool {
        let ends = |one: &One| one.state == State::Ends;
        !self.moves.iter().any(ends)
            && self.going().is_empty()
            && (self.is_stopped || self.waiting().is_empty())
    }

    /// Bytes a second that a move has, and knows of.
    fn settled(&self, one: usize) -> Option<u64> {
        match self.moves[one].state {
            State::Goes { share, until_kept: None } => Some(share),
            State::Goes { .. } | State::Waits | State::Ends | State::Over => None,
        }
    }

    /// Those that may begin beside so many that go.
    fn next(&self, going: usize) -> Vec<usize> {
        if self.is_stopped {
            return Vec::new();
        }
        let mut room = self.width.saturating_sub(going);
        let mut fits = |one: &usize| {
            let is_next = self.moves[*one].is_under_way || room > 0;
            room = room.saturating_sub(1);
            is_next
        };
        self.waiting().into_iter().filter(|one| fits(one)).collect()
    }

    /// Bytes a second that nobody may send.
    fn free(&self, budget: u64) -> u64 {
        let most = |one: &One| match one.state {
            State::Goes { share, until_kept } => until_kept.unwrap_or(share),
            State::Waits | State::Ends | State::Over => 0,
        };
        budget.saturating_sub(self.moves.iter().map(most).sum())
    }

    fn begin(&mut self, one: usize, share: Option<u64>) -> Step {
        let given = share.unwrap_or(self.moves[one].cap);
        self.moves[one].state = State::Goes { share: given, until_kept: None };
        Step::Begin(one, share)
    }

    fn give(&mut self, one: usize, share: u64) -> Step {
        if let State::Goes { share: now, until_kept } = &mut self.moves[one].state {
            *until_kept = Some(share.max(*now));
            *now = share;
        }
        Step::Share(one, share)
    }
}

/// What stands in the way of guests that come to one host together, each of which might have its place there: memory in
/// bytes of each, and what is free there.
pub fn room_obstacle(target: &str, guests: &[(&str, u64)], free_bytes: u64) -> Option<Obstacle> {
    let needed: u64 = guests.iter().map(|(_, bytes)| bytes).sum();
    if guests.len() < 2 || needed <= free_bytes {
        return None;
    }
    let names: Vec<&str> = guests.iter().map(|(name, _)| *name).collect();
    Some(Obstacle {
        what: format!(
            "{} have {} MiB of memory together, and {} are free at {target}",
            names.join(", "),
            needed >> 20,
            free_bytes >> 20
        ),
        advice: "make room there, or move fewer of them".into(),
    })
}
