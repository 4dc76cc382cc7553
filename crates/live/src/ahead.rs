//! A guest that runs at the target while the rest of its memory follows: what is told of its line, and what is done about it.
//!
//! When is decided in [`Recovery`]; a guest that is in post-copy is called back by nobody.

use std::time::Duration;

use drover_types::count;

use crate::event::Event;
use crate::migration::{Action, Halt};
use crate::recovery::{Look, Recovery, Step};
use crate::settings::Side;

/// A line that broke in post-copy, and what is done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mending {
    /// It broke.
    Broke {
        /// By the source's word.
        why: String,
    },
    /// This side had not noticed, and was told.
    Told(Side),
    /// It is made anew.
    Tries {
        /// Which try it is, from 1 on.
        number: u32,
    },
    /// That came to nothing.
    Failed {
        /// Which try it was.
        number: u32,
        /// Why.
        why: String,
        /// Until the next.
        next: Duration,
    },
    /// It carries again.
    Back {
        /// After so many tries.
        tries: u32,
    },
}

/// Sees to a guest in post-copy.
#[derive(Clone, Debug)]
pub struct Ahead {
    recovery: Recovery,
    /// Why the line cannot be made anew.
    cannot: Option<String>,
    /// Somebody who wants to stop it was told that it cannot be undone.
    has_said: bool,
    /// The try that was begun last, until it is known what came of it.
    trying: Option<u32>,
    /// Why the last try failed.
    why: String,
}

impl Ahead {
    /// Of a move that should end by then.
    #[must_use]
    pub fn new(deadline: Duration) -> Ahead {
        let why = "no try was made".to_string();
        Ahead { recovery: Recovery::new(deadline), cannot: None, has_said: false, trying: None, why }
    }

    /// Why the line cannot be made anew, if so.
    pub fn cannot_mend(&mut self, why: Option<String>) {
        self.cannot = why;
    }

    /// What is said, once, to somebody who wants to stop it.
    pub fn too_late(&mut self, is_stopped: bool) -> Option<&'static str> {
        (is_stopped && !std::mem::replace(&mut self.has_said, true)).then_some(TOO_LATE)
    }

    /// Takes in a look, and what the source says of the line, where it says anything; says what to do now, if anything.
    pub fn see(&mut self, look: Look, why: Option<&str>) -> Option<Action> {
        let tell = |mending| Action::Tell(Event::Mending(mending));
        let gives_up = |why| Action::End(Halt::Failed(why));
        Some(match self.recovery.see(look) {
            Step::Wait => return None,
            Step::Broke => tell(Mending::Broke { why: why.unwrap_or(BY_DAEMONS).into() }),
            Step::Pause(side) => Action::PauseLine(side),
            Step::Try(number) => match &self.cannot {
                None => {
                    self.trying = Some(number);
                    Action::TryLine { number, target: look.target }
                }
                Some(why) => gives_up(format!("the line broke in post-copy; {why}. {UPDATE}")),
            },
            Step::Failed(number, next) => {
                self.why = why.map_or_else(|| self.why.clone(), str::to_string);
                tell(Mending::Failed { number, why: self.why.clone(), next })
            }
            Step::Back(tries) => tell(Mending::Back { tries }),
            Step::Lost(side) => Action::End(Halt::Lost(side)),
            Step::GiveUp(_) if look.is_stopped => Action::End(Halt::Stopped),
            Step::GiveUp(tries) => gives_up(format!(
                "the line broke in post-copy and was not back after {}, the last: {}",
                count(tries as usize, "try"),
                self.why
            )),
        })
    }

    /// What made a new line has ended; gives the try, if it was one.
    pub fn try_ended(&mut self) -> Option<u32> {
        self.trying.take()
    }

    /// A try was refused, or has failed; gives what is told of it.
    pub fn refused(&mut self, number: u32, why: String, at_ms: u64) -> Mending {
        self.trying = None;
        self.why.clone_from(&why);
        Mending::Failed { number, why, next: self.recovery.refused(at_ms) }
    }
}

const TOO_LATE: &str = "the guest runs at the target (post-copy), which cannot be undone: the rest of its memory is seen after it";
const BY_DAEMONS: &str = "by the daemons' word";
const UPDATE: &str = "update it (its guests go on meanwhile), then say `drover live` again";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::Half;

    fn look(at_ms: u64, half: Half) -> Look {
        Look {
            at_ms,
            source: half,
            target: half,
            sent_bytes: at_ms,
            left_bytes: 9,
            is_away: false,
            is_stopped: false,
        }
    }

    fn told(mending: Mending) -> Action {
        Action::Tell(Event::Mending(mending))
    }

    fn tries(number: u32) -> Action {
        Action::TryLine { number, target: Half::Paused }
    }

    /// What is to be done at these times, after the line broke; each try is refused.
    fn broken(ahead: &mut Ahead, is_stopped: bool) -> Vec<Action> {
        let mut done = Vec::new();
        for at_ms in (0..700_000).step_by(100) {
            let found = ahead.see(Look { is_stopped, ..look(at_ms, Half::Paused) }, Some("reset"));
            if let Some(Action::TryLine { number, .. }) = found {
                ahead.refused(number, format!("refused {number}"), at_ms);
            }
            done.extend(found);
            if matches!(done.last(), Some(Action::End(_))) {
                return done;
            }
        }
        panic!("it was never given up: {done:?}");
    }

    #[test]
    fn a_line_that_breaks_is_tried_until_the_deadline_and_the_last_reason_is_told() {
        let mut ahead = Ahead::new(Duration::from_secs(600));
        let done = broken(&mut ahead, false);
        assert_eq!(done[..2], [told(Mending::Broke { why: "reset".into() }), tries(1)]);
        let tries = done.len() - 2;
        let expected = format!("was not back after {tries} tries, the last: refused {tries}");
        let Some(Action::End(Halt::Failed(words))) = done.last() else { panic!("{done:?}") };
        assert!(tries > 10 && words.ends_with(&expected), "{words}");
    }

    #[test]
    fn a_line_that_cannot_be_made_anew_is_given_up_with_the_reason() {
        let mut ahead = Ahead::new(Duration::from_secs(600));
        ahead.cannot_mend(Some("libvirt 8.0 does not know how".into()));
        let done = broken(&mut ahead, false);
        let Some(Action::End(Halt::Failed(words))) = done.last() else { panic!("{done:?}") };
        assert!(done.len() == 2 && words.contains("libvirt 8.0 does not know how. update it"), "{words}");
    }

    #[test]
    fn who_stops_it_is_told_once_that_it_is_too_late_and_ends_it_only_while_there_is_no_line() {
        let mut ahead = Ahead::new(Duration::from_secs(600));
        assert_eq!(ahead.too_late(false), None);
        assert!(ahead.too_late(true).is_some() && ahead.too_late(true).is_none());
        assert_eq!(ahead.see(Look { is_stopped: true, ..look(0, Half::Active) }, None), None);
        assert_eq!(broken(&mut ahead, true).last(), Some(&Action::End(Halt::Stopped)));
    }

    #[test]
    fn daemons_that_say_no_more_are_taken_at_their_word() {
        let mut ahead = Ahead::new(Duration::from_secs(600));
        let broke = ahead.see(look(0, Half::Paused), None);
        assert_eq!(broke, Some(told(Mending::Broke { why: BY_DAEMONS.into() })));
        assert_eq!(ahead.see(look(0, Half::Paused), None), Some(tries(1)));
        assert_eq!(ahead.see(look(100, Half::Active), None), Some(told(Mending::Back { tries: 1 })));
        let gone = Look { target: Half::Gone, ..look(200, Half::Active) };
        assert_eq!(ahead.see(gone, None), Some(Action::End(Halt::Lost(Side::Target))));
    }
}
