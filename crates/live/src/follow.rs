//! Memory on its way, until the guest stands still: looks go in, and what is to be done comes out.

use crate::choose::Course;
use crate::ease::Ease;
use crate::event::Event;
use crate::forecast::Promise;
use crate::migration::{Action, Halt, Seen};
use crate::outlook::Outlook;
use crate::watch::{Deed, Phase, Sample, Watch};

/// Follows one move.
#[derive(Clone, Debug)]
pub struct Follow {
    watch: Watch,
    ease: Option<Ease>,
    /// The guest goes ahead when all was sent once.
    goes_ahead_at_once: bool,
    /// Connections for memory.
    channels: u8,
}

impl Follow {
    /// Of a move that goes so; where a link carries its memory, the end of that may go slower.
    #[must_use]
    pub fn new(promise: Promise, course: &Course, ease: Option<Ease>) -> Follow {
        let goes_ahead_at_once = course.at_once == Some(Deed::PostCopy);
        // A guest that is to go ahead is stopped by drover, not by QEMU.
        let ease = ease.filter(|_| !goes_ahead_at_once);
        let channels = course.channels;
        Follow { watch: Watch::new(promise, &course.deeds), ease, goes_ahead_at_once, channels }
    }

    /// Of a move that an earlier run began.
    #[must_use]
    pub fn of_earlier(promise: Promise, deeds: &[Deed]) -> Follow {
        Follow { watch: Watch::new(promise, deeds), ease: None, goes_ahead_at_once: false, channels: 1 }
    }

    /// Takes in a look at a guest that is still at the source, and may have been sent ahead; says what to do now. Nothing once it is
    /// paused to be handed over.
    pub fn see(&mut self, seen: &Seen<'_>, goes_ahead: bool, outlook: &mut Outlook) -> Vec<Action> {
        let mut actions = Vec::new();
        let sample = &seen.told.sample;
        if !matches!(sample.phase, Phase::Setup | Phase::Precopy) {
            return actions;
        }
        if self.goes_ahead_at_once && sample.passes > 1 && seen.is_up {
            self.goes_ahead_at_once = false;
            actions.push(Action::SendAhead);
        } else if !goes_ahead {
            actions.extend(self.ease(seen));
        }
        let is_telling = seen.is_up && seen.is_told && !self.is_eased();
        let advised = match is_telling {
            true => self.watch.see(*sample),
            false => self.watch.see_interrupted(*sample),
        };
        if let Some((deed, why)) = advised {
            actions.push(Action::Tell(Event::Did(deed, why)));
            actions.push(match deed {
                Deed::Throttle => Action::SlowDown(why.rate),
                Deed::PostCopy => Action::SendAhead,
                Deed::GiveUp => Action::End(Halt::GivenUp(why)),
            });
        }
        let known = (self.rate(), self.watch.full_swing());
        if let Some(foreseen) = outlook.see((sample, seen.told.share_in_use()), known, self.channels) {
            let choice = Box::new(foreseen.choice);
            let is_broken = foreseen.is_binding && choice.course.is_none();
            actions.push(Action::Tell(Event::Chosen(choice.clone())));
            actions.extend(is_broken.then_some(Action::End(Halt::Promise(choice))));
        }
        actions
    }

    fn ease(&mut self, seen: &Seen<'_>) -> Option<Action> {
        let (ease, sample) = (self.ease.as_mut()?, &seen.told.sample);
        if !seen.is_up {
            ease.is_away();
            return None;
        }
        let was_eased = ease.is_eased();
        if !was_eased {
            ease.done_late(seen.late);
        }
        let rate = ease.see(sample, seen.rate_max);
        let is_eased = ease.is_eased();
        // Where what may be sent has changed, the slower end is over without another word.
        let rate = rate.or((was_eased && !is_eased).then_some(seen.rate_max))?;
        Some(Action::Bound { rate, is_eased, words: ease.words(rate, sample) })
    }

    /// How fast it is sent cannot be set: its end goes as fast as the rest.
    pub fn cannot_ease(&mut self) {
        self.ease = None;
    }

    /// The end of memory goes slower than the line carries it.
    #[must_use]
    pub fn is_eased(&self) -> bool {
        self.ease.as_ref().is_some_and(Ease::is_eased)
    }

    /// The end is so near that a look comes too late that comes as usual.
    #[must_use]
    pub fn is_close(&self, sample: &Sample) -> bool {
        self.ease.as_ref().is_some_and(|ease| ease.is_close(sample))
    }

    /// Bytes of memory a second that are sent; nothing before the first second.
    #[must_use]
    pub fn rate(&self) -> Option<f64> {
        self.watch.rate().map(|rate| rate.likely)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use drover_types::Estimate;

    use super::*;
    use crate::choose::Allowed;
    use crate::outlook::facts_before;
    use crate::settings::RATE_UNLIMITED;
    use crate::told::Told;

    const MB: u64 = 1_000_000;
    const MEMORY: u64 = 100 * MB;

    fn promise(deadline_s: u64) -> Promise {
        Promise { downtime_max: Duration::from_millis(300), deadline: Duration::from_secs(deadline_s) }
    }

    /// A guest that is sent on a virtual clock, ten looks a second: its memory, and all of it again in each later pass.
    struct Clock {
        follow: Follow,
        outlook: Outlook,
        rate: u64,
        is_up: bool,
        goes_ahead: bool,
        now: Sample,
    }

    impl Clock {
        fn new(allowed: Allowed, deadline_s: u64, rate: u64, at_once: Option<Deed>) -> Clock {
            let promise = promise(deadline_s);
            let mut outlook = Outlook::new(promise, allowed, None);
            let facts = facts_before(MEMORY, Some(0.0), Estimate::default());
            let mut choice = outlook.choose(&facts, 1);
            outlook.begins(&choice, &facts);
            let course = choice.course.as_mut().unwrap();
            course.at_once = at_once;
            let ease = Some(Ease::new(Duration::from_millis(50), promise.deadline, 0.0));
            let follow = Follow::new(promise, course, ease);
            let now = Sample { phase: Phase::Precopy, passes: 1, left_bytes: MEMORY, ..Sample::default() };
            Clock { follow, outlook, rate, is_up: true, goes_ahead: false, now }
        }

        fn look(&mut self) -> Vec<Action> {
            let seen = Seen {
                told: &Told { sample: self.now, ..Told::default() },
                is_told: true,
                is_up: self.is_up,
                rate_max: RATE_UNLIMITED,
                late: Duration::ZERO,
                is_stopped: false,
                overlap: None,
            };
            self.follow.see(&seen, self.goes_ahead, &mut self.outlook)
        }

        /// Runs until something is to be done that is wanted, for an hour at most.
        fn until(&mut self, is_it: impl Fn(&Action) -> bool) -> Option<Action> {
            for _ in 0..36_000 {
                let found = self.look().into_iter().find(|todo| is_it(todo));
                if found.is_some() {
                    return found;
                }
                let sent = if self.is_up { (self.rate / 10).min(self.now.left_bytes) } else { 0 };
                self.now.at_ms += 100;
                self.now.sent_bytes += sent;
                self.now.gone_bytes += sent;
                self.now.left_bytes -= sent;
                if self.now.left_bytes == 0 {
                    self.now.passes += 1;
                    (self.now.left_bytes, self.now.dirty_bytes_per_s) = (MEMORY, self.rate);
                }
            }
            None
        }
    }

    #[test]
    fn a_guest_that_does_not_converge_goes_ahead_if_it_may_and_is_given_up_if_not() {
        for (allowed, deed) in [
            (Allowed { postcopy: true, ..Allowed::default() }, Deed::PostCopy),
            (Allowed { throttle: true, ..Allowed::default() }, Deed::Throttle),
            (Allowed::default(), Deed::GiveUp),
        ] {
            let mut clock = Clock::new(allowed, 600, 20 * MB, None);
            let found = clock.until(|todo| matches!(todo, Action::Tell(Event::Did(..))));
            assert!(
                matches!(found, Some(Action::Tell(Event::Did(found, _))) if found == deed),
                "{deed:?}: {found:?}"
            );
        }
    }

    #[test]
    fn a_guest_that_is_to_go_ahead_does_so_once_after_the_first_pass_and_not_while_the_line_is_away() {
        let mut clock = Clock::new(Allowed::default(), 600, 20 * MB, Some(Deed::PostCopy));
        assert_eq!(clock.until(|todo| *todo == Action::SendAhead), Some(Action::SendAhead));
        assert_eq!(clock.now.passes, 2);
        (clock.goes_ahead, clock.now.passes) = (true, 9);
        assert!(!clock.look().contains(&Action::SendAhead));
        let mut clock = Clock::new(Allowed::default(), 60, 20 * MB, Some(Deed::PostCopy));
        (clock.is_up, clock.now.passes) = (false, 9);
        let found = clock.until(|todo| matches!(todo, Action::SendAhead | Action::End(_)));
        assert!(matches!(found, Some(Action::End(Halt::GivenUp(_)))), "{found:?}");
    }

    #[test]
    fn a_line_that_is_measured_to_carry_too_little_calls_the_guest_back() {
        let mut clock = Clock::new(Allowed::default(), 60, MB, None);
        let found = clock.until(|todo| matches!(todo, Action::End(Halt::Promise(_))));
        assert!(found.is_some() && clock.now.at_ms <= 2000, "{found:?}");
    }

    #[test]
    fn the_end_of_memory_goes_slower_over_a_link_and_nothing_is_concluded_from_that() {
        let mut clock = Clock::new(Allowed::default(), 600, 50 * MB, None);
        let found = clock.until(|todo| matches!(todo, Action::Bound { .. }));
        let Some(Action::Bound { rate, is_eased: true, words: Some(_) }) = found else { panic!("{found:?}") };
        assert!(rate < 50 * MB && clock.follow.is_eased());
        clock.follow.cannot_ease();
        assert!(!clock.follow.is_eased() && !clock.follow.is_close(&clock.now));
    }

    #[test]
    fn a_guest_that_stands_still_is_left_alone() {
        let mut clock = Clock::new(Allowed::default(), 1, MB, None);
        (clock.now.phase, clock.now.at_ms) = (Phase::Switchover, 3_600_000);
        assert_eq!(clock.look(), []);
    }
}
