//! Daemons that do not answer: they may be busy, or be restarted, and a move does not need them for that time.

use std::time::Duration;

use crate::found::Found;

/// What is not answered for so long is a failure, and what does not end in it does not end by itself.
pub const SILENCE_MAX: Duration = Duration::from_secs(120);
/// The same of a guest of terabytes that went ahead over a link, which ends with this run: it needs hours on a long line, and no daemon.
const CARRIED_SILENCE_MAX: Duration = Duration::from_secs(24 * 3600);

/// Since when nothing is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silence(Option<u64>);

impl Silence {
    /// Whether the last question was not answered.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// What was answered; nothing if it was not and is to be asked again.
    ///
    /// # Errors
    /// That of a question that was not answered for too long.
    pub fn outlast<T, E>(&mut self, answer: Result<T, E>, now_ms: u64) -> Result<Option<T>, E> {
        match answer {
            Ok(answer) => {
                self.0 = None;
                Ok(Some(answer))
            }
            Err(error) => {
                let since = *self.0.get_or_insert(now_ms);
                if passed(since, now_ms) >= SILENCE_MAX { Err(error) } else { Ok(None) }
            }
        }
    }
}

/// A domain that went ahead of its memory, by what its daemons say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct After {
    /// When both daemons answered last.
    told_ms: u64,
    /// It was said that they do not answer.
    is_silence_told: bool,
    /// Since when it is neither on its way nor broken.
    over_ms: Option<u64>,
}

/// What follows from a look at both daemons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterStep {
    /// It is seen after.
    GoOn,
    /// The same; it is to be said, once, that the daemons do not answer.
    TellSilence,
    /// They do not answer for too long.
    GiveUp,
    /// It has come to an end.
    Over,
}

impl After {
    /// It has just been seen.
    #[must_use]
    pub fn new(now_ms: u64) -> After {
        After { told_ms: now_ms, is_silence_told: false, over_ms: None }
    }

    /// Takes in a look: what was found, if both answered. `virsh` may have its last words to say. Over a link that nobody wants to
    /// end daemons may be silent for long.
    pub fn see(
        &mut self,
        found: Option<&Found>,
        has_virsh_ended: bool,
        is_held: bool,
        now_ms: u64,
    ) -> AfterStep {
        let Some(found) = found else {
            let silent = passed(self.told_ms, now_ms);
            let silence_max = if is_held { CARRIED_SILENCE_MAX } else { SILENCE_MAX };
            return match () {
                () if silent >= silence_max => AfterStep::GiveUp,
                () if silent >= SILENCE_MAX && !std::mem::replace(&mut self.is_silence_told, true) => {
                    AfterStep::TellSilence
                }
                () => AfterStep::GoOn,
            };
        };
        (self.told_ms, self.is_silence_told) = (now_ms, false);
        if matches!(found, Found::Ahead | Found::Broken) {
            self.over_ms = None;
            return AfterStep::GoOn;
        }
        let since = *self.over_ms.get_or_insert(now_ms);
        let is_over = has_virsh_ended || passed(since, now_ms) >= SILENCE_MAX;
        if is_over { AfterStep::Over } else { AfterStep::GoOn }
    }
}

fn passed(since_ms: u64, now_ms: u64) -> Duration {
    Duration::from_millis(now_ms.saturating_sub(since_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_answered_is_asked_again_until_it_was_not_for_two_minutes() {
        let mut silence = Silence::default();
        let mut at = |s: u64, answer: Result<u8, u8>| silence.outlast(answer, s * 1000);
        assert_eq!(at(0, Err(1)), Ok(None));
        assert_eq!(at(119, Err(2)), Ok(None));
        assert_eq!(at(119, Ok(3)), Ok(Some(3)));
        assert_eq!(at(200, Err(4)), Ok(None));
        assert_eq!(at(320, Err(5)), Err(5));
    }

    #[test]
    fn a_domain_that_went_ahead_has_ended_when_virsh_has_or_nothing_more_comes() {
        let (ahead, there) = (Found::Ahead, Found::Moved);
        let mut after = After::new(0);
        assert_eq!(after.see(Some(&there), false, false, 1000), AfterStep::GoOn, "virsh has not ended");
        assert_eq!(after.see(Some(&ahead), false, false, 2000), AfterStep::GoOn);
        assert_eq!(after.see(Some(&there), false, false, 3000), AfterStep::GoOn);
        assert_eq!(after.see(Some(&there), false, false, 123_000), AfterStep::Over);
        assert_eq!(After::new(0).see(Some(&there), true, false, 1), AfterStep::Over);
    }

    #[test]
    fn daemons_that_are_silent_end_it_after_two_minutes_and_over_a_link_after_a_day() {
        assert_eq!(After::new(0).see(None, false, false, 119_999), AfterStep::GoOn);
        assert_eq!(After::new(0).see(None, false, false, 120_000), AfterStep::GiveUp);
        let mut after = After::new(0);
        assert_eq!(after.see(None, false, true, 120_000), AfterStep::TellSilence);
        assert_eq!(after.see(None, false, true, 130_000), AfterStep::GoOn, "it is said once");
        assert_eq!(after.see(None, false, false, 140_000), AfterStep::GiveUp, "somebody stopped it");
        assert_eq!(after.see(None, false, true, 86_400_000), AfterStep::GiveUp);
    }
}
