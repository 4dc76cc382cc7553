//! A daemon that does not answer: it may be busy, or be restarted, and a move does not need it for that time.

use std::time::{Duration, Instant};

/// What is not answered for so long is a failure.
pub(super) const SILENCE_TIME_MAX: Duration = Duration::from_secs(120);

/// Since when nothing is answered.
#[derive(Debug, Default)]
pub(super) struct Silence(Option<Instant>);

impl Silence {
    /// Whether the last question was not answered.
    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// What was answered; nothing if it was not and is to be asked again.
    pub(super) fn outlast<T, E>(&mut self, answer: Result<T, E>, now: Instant) -> Result<Option<T>, E> {
        match answer {
            Ok(answer) => {
                self.0 = None;
                Ok(Some(answer))
            }
            Err(error) => {
                let since = *self.0.get_or_insert(now);
                if now.saturating_duration_since(since) >= SILENCE_TIME_MAX { Err(error) } else { Ok(None) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_answered_is_asked_again_until_it_was_not_for_two_minutes() {
        let (mut silence, begin) = (Silence::default(), Instant::now());
        let mut at = |s: u64, answer: Result<u8, u8>| silence.outlast(answer, begin + Duration::from_secs(s));
        assert_eq!(at(0, Err(1)), Ok(None));
        assert_eq!(at(119, Err(2)), Ok(None));
        assert_eq!(at(119, Ok(3)), Ok(Some(3)));
        assert_eq!(at(200, Err(4)), Ok(None));
        assert_eq!(at(320, Err(5)), Err(5));
    }
}
