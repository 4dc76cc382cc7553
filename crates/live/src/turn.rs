//! A move that waits for its turn among others: it was looked at, and is looked at again so that what is known of it is not old when
//! the turn comes.

use std::time::Duration;

/// How the turn of a move stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnState {
    /// It is to come.
    Waits,
    /// It has come.
    Come,
    /// It never comes.
    Abandoned,
}

/// What a move does that waits for its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnStep {
    /// It waits on.
    Wait,
    /// It is looked at again.
    Look,
    /// It begins.
    Begin,
    /// It ends as if stopped.
    Stop,
}

/// What a look found is old after it.
const LOOK_AGE_MAX: Duration = Duration::from_secs(60);
/// After a look that failed.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// Whether what was found so long ago is old.
#[must_use]
pub fn is_look_old(age: Duration) -> bool {
    age > LOOK_AGE_MAX
}

impl TurnState {
    /// What a move does whose turn stands so: `age` is that of what was found, and a look after that failed so long ago.
    #[must_use]
    pub fn step(self, is_stopped: bool, age: Duration, failed: Option<Duration>) -> TurnStep {
        let is_old = is_look_old(age);
        match self {
            TurnState::Abandoned => TurnStep::Stop,
            TurnState::Waits | TurnState::Come if is_stopped => TurnStep::Stop,
            TurnState::Come if is_old => TurnStep::Look,
            TurnState::Come => TurnStep::Begin,
            TurnState::Waits if is_old && failed.is_none_or(|ago| ago >= LOOK_AGAIN) => TurnStep::Look,
            TurnState::Waits => TurnStep::Wait,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Duration = Duration::from_secs(60);
    const OLD: Duration = Duration::from_secs(61);

    #[test]
    fn what_is_old_is_looked_at_anew_before_the_turn_comes_and_in_it() {
        assert_eq!(TurnState::Waits.step(false, NEW, None), TurnStep::Wait);
        assert_eq!(TurnState::Waits.step(false, OLD, None), TurnStep::Look);
        assert_eq!(TurnState::Come.step(false, OLD, None), TurnStep::Look);
        assert_eq!(TurnState::Come.step(false, NEW, None), TurnStep::Begin);
    }

    #[test]
    fn a_look_that_failed_is_tried_again_after_a_while_and_at_once_in_its_turn() {
        let failed = |s| Some(Duration::from_secs(s));
        assert_eq!(TurnState::Waits.step(false, OLD, failed(9)), TurnStep::Wait);
        assert_eq!(TurnState::Waits.step(false, OLD, failed(10)), TurnStep::Look);
        assert_eq!(TurnState::Come.step(false, OLD, failed(0)), TurnStep::Look);
    }

    #[test]
    fn who_stops_it_waits_for_no_turn_and_nobody_for_one_that_never_comes() {
        for age in [NEW, OLD] {
            assert_eq!(TurnState::Waits.step(true, age, None), TurnStep::Stop);
            assert_eq!(TurnState::Come.step(true, age, None), TurnStep::Stop);
            assert_eq!(TurnState::Abandoned.step(false, age, None), TurnStep::Stop);
        }
    }
}
