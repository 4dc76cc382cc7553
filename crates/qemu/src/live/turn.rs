//! A move's turn among others between the same two hosts: it is looked at and prepared before that comes, so that nothing is
//! sent only for as long as it takes to begin.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use drover_live::{TurnState, TurnStep, is_look_old};

use super::Ending;

/// A turn that comes once, or never. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Turn(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Mutex<TurnState>,
    comes: Condvar,
    at_once: usize,
}

/// Between two looks whether somebody wants the move to stop.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// Something that was found out at some time.
#[derive(Clone, Debug)]
pub(super) struct Dated<T> {
    pub what: T,
    at: Instant,
}

impl<T> Dated<T> {
    pub fn now(what: T) -> Dated<T> {
        Dated { what, at: Instant::now() }
    }

    pub fn is_old(&self) -> bool {
        is_look_old(self.at.elapsed())
    }

    /// Something else that was found out at that time.
    pub fn map<U>(self, other: impl FnOnce(T) -> Result<U, Ending>) -> Result<Dated<U>, Ending> {
        Ok(Dated { what: other(self.what)?, at: self.at })
    }
}

impl Turn {
    /// A turn that has not come; so many moves go at once, this one among them.
    pub fn new(at_once: usize) -> Turn {
        let (state, comes) = (Mutex::new(TurnState::Waits), Condvar::new());
        Turn(Arc::new(Inner { state, comes, at_once: at_once.max(1) }))
    }

    /// Now it comes.
    pub fn come(&self) {
        self.set(TurnState::Come);
    }

    /// It never comes: who waits for it ends as if stopped.
    pub fn abandon(&self) {
        self.set(TurnState::Abandoned);
    }

    fn set(&self, state: TurnState) {
        *self.0.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
        self.0.comes.notify_all();
    }

    /// Moves that go at once.
    pub(super) fn at_once(&self) -> usize {
        self.0.at_once
    }

    /// Whether it is still to come after that time.
    pub(super) fn is_to_come(&self, time_max: Duration) -> bool {
        self.wait(time_max) == TurnState::Waits
    }

    fn wait(&self, time_max: Duration) -> TurnState {
        let state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.comes.wait_timeout_while(state, time_max, |state| *state == TurnState::Waits);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Waits for the turn, if there is one to be waited for. What was found is looked at anew when it is old, so that it is not
/// when the turn comes. A side that does not answer meanwhile ends nothing; in its turn it does.
///
/// # Errors
/// Those of looking, and [`Ending::Stopped`].
pub(super) fn in_turn<T>(
    turn: Option<&Turn>,
    mut found: Dated<T>,
    stop: &AtomicBool,
    mut look: impl FnMut() -> Result<T, Ending>,
) -> Result<Dated<T>, Ending> {
    let mut failed: Option<Instant> = None;
    loop {
        let state = turn.map_or(TurnState::Come, |turn| turn.wait(PAUSE));
        let is_stopped = stop.load(Ordering::Relaxed);
        match state.step(is_stopped, found.at.elapsed(), failed.map(|at| at.elapsed())) {
            TurnStep::Wait => {}
            TurnStep::Begin => return Ok(found),
            TurnStep::Stop => return Err(Ending::Stopped),
            TurnStep::Look => match look() {
                Ok(new) => found = Dated::now(new),
                Err(Ending::Failed(_)) if state == TurnState::Waits => failed = Some(Instant::now()),
                Err(error) => return Err(error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::error::{QemuError, QemuErrorKind};

    fn old<T>(what: T) -> Dated<T> {
        let at = Instant::now().checked_sub(Duration::from_secs(120)).unwrap();
        Dated { what, at }
    }

    fn in_turn(
        turn: Option<&Turn>,
        found: Dated<u32>,
        is_stopped: bool,
        look: impl FnMut() -> Result<u32, Ending>,
    ) -> Result<u32, Ending> {
        super::in_turn(turn, found, &AtomicBool::new(is_stopped), look).map(|found| found.what)
    }

    #[test]
    fn a_move_alone_waits_for_nobody() {
        let look = || panic!("it was looked at just now");
        assert_eq!(in_turn(None, Dated::now(1), false, look).unwrap(), 1);
    }

    #[test]
    fn what_is_old_is_looked_at_anew_before_the_turn_comes() {
        let turn = Turn::new(2);
        let looks = Cell::new(0);
        let look = || {
            looks.set(looks.get() + 1);
            turn.come();
            Ok(2)
        };
        assert_eq!(in_turn(Some(&turn), old(1), false, look).unwrap(), 2);
        assert_eq!((looks.get(), turn.at_once()), (1, 2));
    }

    #[test]
    fn a_side_that_does_not_answer_ends_nothing_before_the_turn_and_ends_it_in_it() {
        let turn = Turn::new(1);
        let looks = Cell::new(0);
        let silent = || Err(QemuError::new(QemuErrorKind::Timeout, "a look").into());
        let look = || {
            looks.set(looks.get() + 1);
            turn.come();
            if looks.get() == 1 { silent() } else { Ok(2) }
        };
        assert_eq!(in_turn(Some(&turn), old(1), false, look).unwrap(), 2);
        assert!(matches!(in_turn(Some(&turn), old(1), false, silent), Err(Ending::Failed(_))));
        let refused = || Err(Ending::Obstacles(Vec::new()));
        let refused = in_turn(Some(&Turn::new(1)), old(1), false, refused);
        assert!(matches!(refused, Err(Ending::Obstacles(_))), "what stands in its way is told at once");
    }

    #[test]
    fn a_turn_that_comes_from_another_thread_is_seen() {
        let turn = Turn::new(1);
        let other = turn.clone();
        let thread = std::thread::spawn(move || in_turn(Some(&other), Dated::now(1), false, || Ok(2)));
        turn.come();
        assert_eq!(thread.join().unwrap().unwrap(), 1);
    }

    #[test]
    fn who_stops_it_waits_for_no_turn_and_nobody_for_one_that_never_comes() {
        let turn = Turn::new(1);
        let stopped = |turn: &Turn, is_stopped| {
            let ended = in_turn(Some(turn), Dated::now(1), is_stopped, || Ok(2));
            assert!(matches!(ended, Err(Ending::Stopped)));
        };
        stopped(&turn, true);
        turn.come();
        stopped(&turn, true);
        let never = Turn::new(1);
        never.abandon();
        stopped(&never, false);
    }
}
