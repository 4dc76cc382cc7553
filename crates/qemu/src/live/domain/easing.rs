//! The end of a domain's memory goes slower than the link carries it, as that of a guest without libvirt ([`Ease`]).

use std::time::Duration;

use drover_live::{Course, Deed, Ease, Facts, RATE_UNLIMITED};

use super::run::Move;
use crate::live::guest::Told;

/// From the moment that the daemon tells of until its QEMU goes slower, in times that a look takes: what is told is as old as one, it
/// is seen up to one later, and what is said takes one.
const LOOKS_LATE: u32 = 2;
/// Where looks take longer the end is begun too late: else moves would take seconds more.
const LATE_MAX: Duration = Duration::from_millis(300);

impl Move<'_> {
    /// What sees to the end of a move over a link.
    pub(super) fn eases(&self, course: &Course, facts: &Facts) -> Option<Ease> {
        let round_trip = self.options.carried.as_ref()?.by.round_trip();
        // A guest that is to go ahead is stopped by drover, not by QEMU.
        let goes_ahead = course.at_once == Some(Deed::PostCopy);
        (!goes_ahead).then(|| Ease::new(round_trip, self.options.promise.deadline, facts.dirty.likely))
    }

    /// Whether the end is so near that it is looked at almost without a pause. Once it goes slower looks would only be in its way.
    pub(super) fn is_close(&self) -> bool {
        let is_close = |ease: &Ease| ease.is_close(&self.last.sample) && !ease.is_eased();
        self.easing.as_ref().is_some_and(is_close)
    }

    /// Sends slower, or no more so, if it is time, after a look that took so long. What the daemon refuses is no reason to end a move.
    pub(super) fn ease(&mut self, told: &Told, is_up: bool, took: Duration) {
        let rate_max = self.rate_max().unwrap_or(RATE_UNLIMITED);
        let Some(ease) = &mut self.easing else {
            if self.sharing.is_to_be_lifted {
                self.sharing.is_to_be_lifted = self.set_speed(rate_max).is_err();
            }
            return;
        };
        if !is_up {
            ease.is_away();
            return;
        }
        if !ease.is_eased() {
            ease.done_late((took * LOOKS_LATE).min(LATE_MAX));
        }
        let said = ease.see(&told.sample, rate_max);
        let words = said.and_then(|rate| ease.words(rate, &told.sample));
        let eased = if ease.is_eased() { said.or(self.sharing.eased) } else { None };
        if eased == std::mem::replace(&mut self.sharing.eased, eased) {
            return;
        }
        match self.set_speed(eased.unwrap_or(rate_max)) {
            Ok(()) => words.into_iter().for_each(|words| self.note(words)),
            Err(error) => {
                self.note(format!("how fast the end of memory goes cannot be set: {}", error.chain()));
                (self.easing, self.sharing.eased) = (None, None);
                // What was refused may be set all the same: with each look it is tried to be lifted.
                self.sharing.is_to_be_lifted = true;
            }
        }
    }
}
