//! A domain that goes ahead of its memory (post-copy): it is sent, seen after, and its line made anew where it breaks.
//!
//! What is done when is decided in `drover_live::Ahead`, as for guests without libvirt. libvirt starts the guest at the target when
//! the source says that post-copy is on, and takes nobody back from there.

use std::time::Duration;

use drover_live::{After, AfterStep, DomainStand, Half, Phase, Sample, domain_found};

use super::run::{Move, stands};
use crate::error::QemuError;
use crate::live::Ending;
use crate::live::core::Glance;
use crate::virsh::Lasting;

impl Move<'_> {
    /// A look at both daemons, of a guest that went ahead.
    pub(super) fn look_after(&mut self) -> Result<Glance, Ending> {
        let mut after = self.after.unwrap_or_else(|| self.begin_to_see_after());
        let ended = self.ended();
        let looked = stands(self.ends, &self.known.uuid);
        let found = looked.as_ref().ok().map(|[here, there]| domain_found(here, there));
        // What carries the guest's memory would end with this run, whose guest needs no daemon.
        let is_held = self.core.carried().is_some() && !self.core.is_stopped();
        let step = after.see(found.as_ref(), self.moving.is_none(), is_held, self.core.now_ms());
        self.after = Some(after);
        match (step, &looked) {
            (AfterStep::Over, _) => return Ok(self.is_in(Phase::Done)),
            (AfterStep::GiveUp, Err(error)) => return Err(repeated(error).into()),
            (AfterStep::TellSilence, _) => self.note(HELD_OPEN),
            (AfterStep::GiveUp | AfterStep::GoOn, _) => {}
        }
        self.halves = looked.map_or([Half::Silent; 2], |[here, there]| self.halves_of(&here, &there));
        ended.iter().for_each(|ended| self.core.try_ended(ended));
        Ok(self.looked_after())
    }

    pub(super) fn begin_to_see_after(&mut self) -> After {
        self.core.state.ahead.cannot_mend(self.ends.target.cannot_resume());
        // The slower end was of what went before.
        self.sharing.eased = None;
        self.settle_until = None;
        After::new(self.core.now_ms())
    }

    /// What came of `virsh`, once.
    fn ended(&mut self) -> Option<Result<(), QemuError>> {
        let ended = self.moving.as_mut().and_then(Lasting::ended);
        if ended.is_some() {
            self.moving = None;
        }
        ended
    }

    fn halves_of(&self, here: &DomainStand, there: &DomainStand) -> [Half; 2] {
        let broken = if self.moving.is_some() { Half::Recovering } else { Half::Paused };
        match (here.is_broken(), there.is_broken()) {
            (true, true) => [broken, broken],
            // libvirt has no word by which a target that has not noticed could be told: the next try tells.
            (true, false) => [broken, Half::Silent],
            (false, true) => [Half::Active, Half::Paused],
            (false, false) => [Half::Active, Half::Active],
        }
    }

    fn looked_after(&mut self) -> Glance {
        let phase = if self.halves == [Half::Active; 2] { Phase::PostCopy } else { Phase::Broken };
        let at_ms = self.core.now_ms();
        // One that broke has no figures.
        let job = self.ends.source.job(&self.known.uuid, at_ms).unwrap_or_default();
        let mut told = job.told(Some(phase));
        if job.sample.sent_bytes == 0 {
            told.sample = Sample { at_ms, phase, ..self.last.sample };
            told.total_bytes = self.last.total_bytes;
        }
        self.last = told.clone();
        Glance { told, is_told: true, late: Duration::ZERO }
    }
}

const HELD_OPEN: &str = "the daemons do not answer: the link is held open for the rest of the guest's memory; Ctrl-C ends it, and the guest waits then until you say `drover live` again";

/// The same error once more.
fn repeated(error: &QemuError) -> QemuError {
    QemuError::new(error.kind, "asking both daemons").because(error.chain())
}
