//! A move's turn among others between the same two hosts: it is looked at and prepared before that comes, so that nothing is
//! sent only for as long as it takes to begin.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Ending;

/// A turn that comes once. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Turn(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    has_come: Mutex<bool>,
    comes: Condvar,
    at_once: usize,
}

/// What a look found is old after it.
const LOOK_AGE_MAX: Duration = Duration::from_secs(60);
/// Between two looks whether somebody wants the move to stop.
const PAUSE: Duration = Duration::from_millis(50);

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
        self.at.elapsed() > LOOK_AGE_MAX
    }

    /// Something else that was found out at that time.
    pub fn map<U>(self, other: impl FnOnce(T) -> U) -> Dated<U> {
        Dated { what: other(self.what), at: self.at }
    }
}

impl Turn {
    /// A turn that has not come; so many moves go at once, this one among them.
    pub fn new(at_once: usize) -> Turn {
        let (has_come, comes) = (Mutex::new(false), Condvar::new());
        Turn(Arc::new(Inner { has_come, comes, at_once: at_once.max(1) }))
    }

    /// Now it comes.
    pub fn come(&self) {
        *self.0.has_come.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.comes.notify_all();
    }

    /// Moves that go at once.
    pub(super) fn at_once(&self) -> usize {
        self.0.at_once
    }

    /// Whether it has come, or does within that time.
    fn wait(&self, time_max: Duration) -> bool {
        let has_come = self.0.has_come.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.0.comes.wait_timeout_while(has_come, time_max, |has_come| !*has_come);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// So many go at once.
pub(super) fn at_once(turn: Option<&Turn>) -> usize {
    turn.map_or(1, Turn::at_once)
}

/// Waits for the turn, if there is one to be waited for. What was found is looked at anew when it is old, so that it is not
/// when the turn comes.
///
/// # Errors
/// Those of looking, and [`Ending::Stopped`].
pub(super) fn in_turn<T>(
    turn: Option<&Turn>,
    mut found: Dated<T>,
    is_stopped: impl Fn() -> bool,
    mut look: impl FnMut() -> Result<T, Ending>,
) -> Result<T, Ending> {
    while turn.is_some_and(|turn| !turn.wait(PAUSE)) {
        if is_stopped() {
            return Err(Ending::Stopped);
        }
        if found.is_old() {
            found = Dated::now(look()?);
        }
    }
    if is_stopped() { Err(Ending::Stopped) } else { Ok(found.what) }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn old<T>(what: T) -> Dated<T> {
        let at = Instant::now().checked_sub(LOOK_AGE_MAX * 2).unwrap();
        Dated { what, at }
    }

    #[test]
    fn a_move_alone_waits_for_nobody() {
        let look = || panic!("it was looked at just now");
        assert_eq!(in_turn(None, Dated::now(1), || false, look).unwrap(), 1);
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
        assert_eq!(in_turn(Some(&turn), old(1), || false, look).unwrap(), 2);
        assert_eq!((looks.get(), at_once(Some(&turn)), at_once(None)), (1, 2, 1));
    }

    #[test]
    fn a_turn_that_comes_from_another_thread_is_seen() {
        let turn = Turn::new(1);
        let other = turn.clone();
        let thread = std::thread::spawn(move || in_turn(Some(&other), Dated::now(1), || false, || Ok(2)));
        turn.come();
        assert_eq!(thread.join().unwrap().unwrap(), 1);
    }

    #[test]
    fn who_stops_it_waits_for_no_turn() {
        let turn = Turn::new(1);
        let stopped = in_turn(Some(&turn), Dated::now(1), || true, || Ok(2));
        assert!(matches!(stopped, Err(Ending::Stopped)));
        turn.come();
        let stopped = in_turn(Some(&turn), Dated::now(1), || true, || Ok(2));
        assert!(matches!(stopped, Err(Ending::Stopped)));
    }
}
