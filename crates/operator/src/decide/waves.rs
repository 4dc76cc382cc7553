//! What its wave has a Migration wait for.

use super::cutover::NOT_RESOLVED;
use super::{Act, Run, reason};
use crate::model::Phase;
use crate::waves::WaveStanding;

const PLAN_IS_GONE: &str = "it had begun and was stopped, since VMs of a wave before its own failed, and its Plan was removed meanwhile: have it go on \
                            (`kubectl drover retry VM`), or have what was begun undone (`kubectl drover cancel VM`)";
pub(super) const WAITS_FOR_WINDOW: &str = "WaitsForWindow";
pub(super) const WAITS_FOR_WAVE: &str = "WaitsForWave";
/// As many guests as may be are down for their cutovers.
pub(super) const CUTOVER_QUEUED: &str = "CutoverQueued";
/// Reasons that thousands have at once: no event tells of each. Of waves that failed one of the Plan does.
pub(super) const TURNS: [&str; 6] = [
    "WaitsForSlot",
    WAITS_FOR_WINDOW,
    WAITS_FOR_WAVE,
    CUTOVER_QUEUED,
    reason::WAVE_FAILED,
    reason::WAVE_STOPPED,
];

impl Run<'_> {
    /// What its wave has it wait for. A guest that is down waits for nothing, and what has arrived needs no wave any more. A warm one is
    /// copied before its window opens, and its worker moves it over within; until the waves before its own are over it does not begin.
    pub(super) fn kept_by_wave(&mut self) -> Option<Act> {
        let (is_warm, has_begun) = (self.spec.size.warm.is_some(), self.status.begun);
        let standing = self.facts.wave.clone();
        let (reason, wake) = match &standing {
            _ if self.status.guest_off || self.has_arrived() => return None,
            WaveStanding::Gone => return None,
            WaveStanding::Open { closes } => {
                if let Some(closes) = closes.filter(|_| !is_warm) {
                    self.wake(closes);
                }
                return None;
            }
            WaveStanding::Over => {
                self.fail("WindowOver", &standing.to_string());
                return Some(Act::Nothing);
            }
            WaveStanding::Stopped(_) => {
                self.fail(reason::WAVE_STOPPED, &standing.to_string());
                return Some(Act::Nothing);
            }
            WaveStanding::Window { .. } if is_warm => return None,
            _ if is_warm && has_begun => return None,
            WaveStanding::Window { opens, .. } => (WAITS_FOR_WINDOW, Some(*opens)),
            WaveStanding::After(_) => (WAITS_FOR_WAVE, None),
            WaveStanding::Failed(_) => (reason::WAVE_FAILED, None),
            WaveStanding::Unknown => {
                return Some(self.rest(Phase::Pending, NOT_RESOLVED, &standing.to_string()));
            }
        };
        wake.into_iter().for_each(|wake| self.wake(wake));
        Some(self.rest(Phase::Queued, reason, &standing.to_string()))
    }

    /// What a wave before its own had stopped has its turn again, once it is not stopped any more. Without its Plan no wave lets it go on.
    pub(super) fn leave_stop(&mut self) {
        if self.status.is_stopped() && self.facts.wave == WaveStanding::Gone {
            return if self.status.begun {
                self.fail(reason::PLAN_GONE, PLAN_IS_GONE)
            };
        }
        let is_kept = matches!(self.facts.wave, WaveStanding::Stopped(_) | WaveStanding::Unknown);
        if self.status.is_stopped() && !is_kept && !self.has_lost_state() {
            self.status.phase = Phase::Pending;
            self.status.next_try = None;
        }
    }
}
