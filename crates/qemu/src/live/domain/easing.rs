//! The end of a domain's memory goes slower than the link carries it, as that of a guest without libvirt ([`Ease`]).

use std::time::Duration;

use drover_live::{Ease, Facts, Follow, RATE_UNLIMITED};

use super::run::Move;

/// From the moment that the daemon tells of until its QEMU goes slower, in times that a look takes: what is told is as old as one, it
/// is seen up to one later, and what is said takes one.
const LOOKS_LATE: u32 = 2;
/// Where looks take longer the end is begun too late: else moves would take seconds more.
const LATE_MAX: Duration = Duration::from_millis(300);

/// By which what is said comes late, where a look takes so long.
pub(super) fn lateness(took: Duration) -> Duration {
    (took * LOOKS_LATE).min(LATE_MAX)
}

impl Move<'_> {
    /// What sees to the end of a move over a link.
    pub(super) fn easing(&self, facts: &Facts) -> Option<Ease> {
        let round_trip = self.core.carried()?.by.round_trip();
        Some(Ease::new(round_trip, self.core.promise().deadline, facts.dirty.likely))
    }

    /// Sends slower, or no more so. What the daemon refuses is no reason to end a move.
    pub(super) fn send_eased(
        &mut self,
        follow: &mut Follow,
        (rate, is_eased): (u64, bool),
        words: Option<String>,
    ) {
        self.sharing.eased = is_eased.then_some(rate);
        match self.set_speed(rate) {
            Ok(()) => words.into_iter().for_each(|words| self.note(words)),
            Err(error) => {
                self.note(format!("how fast the end of memory goes cannot be set: {}", error.chain()));
                follow.cannot_ease();
                self.sharing.eased = None;
                // What was refused may be set all the same: with each look it is tried to be lifted.
                self.sharing.is_to_be_lifted = true;
            }
        }
    }

    /// Sends as fast as it may, where that could not be set before.
    pub(super) fn lift(&mut self) {
        if self.sharing.is_to_be_lifted {
            let rate_max = self.core.rate_max().unwrap_or(RATE_UNLIMITED);
            self.sharing.is_to_be_lifted = self.set_speed(rate_max).is_err();
        }
    }
}
