//! A warm VM at work: what keeps it from moving over, and whether it may. It is copied on and on meanwhile.

use super::waves::{CUTOVER_QUEUED, WAITS_FOR_WAVE, WAITS_FOR_WINDOW};
use super::{Run, reason};
use crate::admission::HostTold;
use crate::model::Work;
use crate::waves::WaveStanding;

const ASKED_FOR: &str = "it is copied while its guest runs, and moves over when somebody asks for it: set the annotation drover.dev/cutover to \
                         anything new";
const QUEUED: &str = "it is copied while its guest runs, and moves over once fewer guests are down: as many are as limits.cutovers of its Plan, \
                      or --cutovers of the operator, let";
const HAS_NO_PLAN: &str = "it is copied while its guest runs, and does not move over, as its wave had it when its Plan was removed: apply the \
                           Plan again, or cancel it";
/// Its worker goes on.
pub(super) const MOVING: &str = "Moving";
/// How its waves stand is not known now.
pub(super) const NOT_RESOLVED: &str = "PlanNotResolved";

/// What a Migration is to the scheduler of cutovers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cutover {
    /// It asks to move over.
    Asks,
    /// Its worker makes a pass, or waits for the next one, and does not ask now.
    Passes,
    /// Its guest is down for that, or may be by now.
    IsDown,
}

impl Run<'_> {
    /// What its worker does that moves it, for people.
    pub(super) fn moves(&mut self) -> (&'static str, String) {
        if self.was_copied_once() {
            self.host = Some(HostTold::CopiedOnce);
        }
        let kept = self.kept_from_cutover();
        if let (Some(WAITS_FOR_WINDOW), WaveStanding::Window { opens, .. }) = (kept, &self.facts.wave) {
            self.wake(*opens);
        }
        let word = self.status.word();
        let is_manual = word.is_some_and(|word| word.reason.as_deref() == Some(reason::WAITS_FOR_CUTOVER));
        let asks = word.is_some_and(|word| word.asks_cutover && !word.outage);
        let standing = &self.facts.wave;
        match kept {
            Some(reason) if *standing == WaveStanding::Gone => (reason, HAS_NO_PLAN.into()),
            Some(reason) if ![WAITS_FOR_WINDOW, NOT_RESOLVED].contains(&reason) => {
                (reason, format!("it is copied while its guest runs, and does not move over: {standing}"))
            }
            // Asked for, it waits for its turn.
            _ if is_manual && !asks => (reason::WAITS_FOR_CUTOVER, ASKED_FOR.into()),
            Some(reason) if reason == WAITS_FOR_WINDOW || asks => {
                (reason, format!("it is copied while its guest runs; {standing}"))
            }
            None if asks && !self.facts.may_cut_over => (CUTOVER_QUEUED, QUEUED.into()),
            _ => (MOVING, "its worker moves it".into()),
        }
    }

    /// Whether its worker has copied a warm VM once: it would move over, waits until somebody asks for that, or has told of all bytes. Of
    /// those that were there when an earlier worker failed nobody knows.
    fn was_copied_once(&self) -> bool {
        let Some(word) = self.status.word().filter(|word| word.exit.is_none()) else { return false };
        let is_manual = word.reason.as_deref() == Some(reason::WAITS_FOR_CUTOVER);
        let has_all = self.status.progress.as_ref().is_some_and(|told| {
            told.total_bytes > self.status.failed_at_bytes && told.done_bytes >= told.total_bytes
        });
        self.spec.size.warm.is_some() && (word.asks_cutover || is_manual || has_all)
    }

    /// What of its wave keeps it from moving over, in a word. A guest that is down waits for nothing.
    fn kept_from_cutover(&self) -> Option<&'static str> {
        let is_down = self.status.guest_off || self.status.word().is_some_and(|word| word.outage);
        if self.spec.size.warm.is_none() || is_down || self.has_arrived() {
            return None;
        }
        match self.facts.wave {
            WaveStanding::After(_) => Some(WAITS_FOR_WAVE),
            WaveStanding::Failed(_) => Some(reason::WAVE_FAILED),
            WaveStanding::Stopped(_) => Some(reason::WAVE_STOPPED),
            WaveStanding::Window { .. } => Some(WAITS_FOR_WINDOW),
            WaveStanding::Unknown => Some(NOT_RESOLVED),
            // Of a window that is over its worker knows.
            WaveStanding::Open { .. } | WaveStanding::Over => None,
            WaveStanding::Gone => self.kept_before(),
        }
    }

    /// What kept it as long as it had its Plan: that the Plan is removed is no leave.
    fn kept_before(&self) -> Option<&'static str> {
        let told = self.status.condition("Arrived")?;
        let kept = [reason::WAVE_STOPPED, reason::WAVE_FAILED, WAITS_FOR_WAVE];
        kept.into_iter().find(|it| told.reason == *it)
    }

    /// What it is to the scheduler of cutovers. That it may move over is written to its status, of which its worker learns it; a worker that
    /// has not shut the guest down yet loses that again with what keeps it, and when it asks no more: of the latter it says so only once it
    /// goes by that leave no more.
    pub(super) fn cutover(&mut self) -> Option<Cutover> {
        self.spec.size.warm?;
        let is_work = self.status.job.as_ref().is_some_and(|job| job.work == Work::Move);
        let word = self.status.word().filter(|word| is_work && word.exit.is_none());
        let asks = word.is_some_and(|word| word.asks_cutover);
        let is_down = word.is_some_and(|word| word.outage);
        let is_free = word.is_some() && !self.is_unwanted() && self.kept_from_cutover().is_none();
        let asks = asks && is_free;
        if !is_down {
            self.status.cutover_epoch = (asks && self.facts.may_cut_over).then_some(self.status.epoch);
        }
        match self.status.is_moving_over() {
            true => Some(Cutover::IsDown),
            false if asks => Some(Cutover::Asks),
            false => is_free.then_some(Cutover::Passes),
        }
    }
}
