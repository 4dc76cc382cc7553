//! What stands between the stop of a guest at the source and its start at the target beside the last pass, where the way is long.
//!
//! ```text
//! stop ── writes under way, flush ── end of the mirror, flush ──┬── last pass, devices ── word that all came ── order to start
//!         (disks that are mirrored)                             └── (what was still dirty: if writes do not wait for the target)
//! ```
//!
//! The offer of the target's disks is withdrawn with the order to start, which takes no round trip of its own.

use std::time::Duration;

/// Round trips that mirrored disks take of a downtime: what is under way, a flush when the guest is stopped, and one when the mirror
/// ends.
const DISKS_IN_STEP: u32 = 3;
/// The same where writes do not wait for the target: what is dirty is written, too.
const DISKS_BEHIND: u32 = 4;
/// Round trips for the last of memory, where nothing carries it that counts its own: word that all came comes back, and streams that were
/// idle meanwhile send in two goes (118 ms of 55 in each of 27 moves).
const MEMORY: u32 = 2;

/// What is known of a handover before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handover {
    /// From here to there and back; zero where it is not known.
    pub round_trip: Duration,
    /// Disks are mirrored.
    pub has_disks: bool,
    /// In the end each write of the guest waits for the target ([`in_step`]).
    pub is_in_step: bool,
    /// What carries the move counts what memory takes itself.
    pub is_carried: bool,
}

impl Handover {
    /// What the way takes of the downtime beside the sending itself.
    #[must_use]
    pub fn takes(&self) -> Duration {
        let disks = match (self.has_disks, self.is_in_step) {
            (false, _) => 0,
            (true, true) => DISKS_IN_STEP,
            (true, false) => DISKS_BEHIND,
        };
        let memory = if self.is_carried { 0 } else { MEMORY };
        self.round_trip * (disks + memory)
    }
}

/// So close to its end the guest's writes begin to wait for the target: before that they would be slower for nothing.
const IN_STEP_S: f64 = 2.0;

/// Whether a guest of which so many bytes are left, on a line of so many bytes a second, is so close to its end that its writes are to
/// wait for the target from now on: then nothing of its disks is left to be copied while it stands still.
#[must_use]
pub fn in_step(left_bytes: u64, rate: f64) -> bool {
    left_bytes as f64 <= rate * IN_STEP_S
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disks_take_round_trips_of_the_downtime() {
        let far = Handover { round_trip: Duration::from_millis(55), ..Handover::default() };
        let ms = |handover: Handover| handover.takes().as_millis();
        assert_eq!(ms(far), 110);
        assert_eq!(ms(Handover { is_carried: true, ..far }), 0);
        let disks = Handover { has_disks: true, is_carried: true, ..far };
        assert_eq!((ms(disks), ms(Handover { is_in_step: true, ..disks })), (220, 165));
        assert_eq!(ms(Handover { round_trip: Duration::ZERO, ..disks }), 0);
    }

    #[test]
    fn writes_wait_for_the_target_only_near_the_end() {
        assert!(!in_step(1 << 30, 100e6));
        assert!(in_step(200_000_000, 100e6) && in_step(0, 0.0));
    }
}
