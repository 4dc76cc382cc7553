//! A domain that goes ahead of its memory (post-copy): it is sent, seen after, and its line made anew where it breaks.
//!
//! What is done when is decided in `drover_live::Ahead`, as for guests without libvirt. libvirt starts the guest at the target when
//! the source says that post-copy is on, and takes nobody back from there.

use std::time::{Duration, Instant};

use drover_live::{DomainFound, DomainStand, Event, Half, Look, Phase, Sample, domain_found};

use super::run::{LOOK_PAUSE, Move, SETTLE_TIME_MAX, stands};
use crate::error::QemuError;
use crate::live::Ending;
use crate::live::core::{Adapter, millis};
use crate::virsh::Lasting;

/// What is known of a guest that went ahead.
struct After {
    /// When both daemons were asked last and answered.
    told: Instant,
    /// It was said that they do not answer.
    is_silence_told: bool,
    /// Since when it is neither on its way nor broken.
    over: Option<Instant>,
}

impl After {
    /// Whether it has come to an end, after a look at both daemons; `virsh` may have its last words to say.
    fn is_over(
        &mut self,
        looked: &Result<[DomainStand; 2], QemuError>,
        has_virsh_ended: bool,
        silence_max: Duration,
    ) -> Result<bool, QemuError> {
        let [here, there] = match looked {
            Ok(stands) => stands,
            Err(error) if self.told.elapsed() >= silence_max => return Err(repeated(error)),
            Err(_) => return Ok(false),
        };
        (self.told, self.is_silence_told) = (Instant::now(), false);
        if matches!(domain_found(here, there), DomainFound::Ahead | DomainFound::Broken) {
            self.over = None;
            return Ok(false);
        }
        let since = *self.over.get_or_insert_with(Instant::now);
        Ok(has_virsh_ended || since.elapsed() >= SETTLE_TIME_MAX)
    }
}

impl Move<'_> {
    /// Sees the rest of its memory after a guest that went ahead, over as many lines as it takes; what came of it the
    /// daemons tell.
    pub(super) fn see_after(&mut self, began: Instant) -> Result<(), Ending> {
        let mut after = After { told: Instant::now(), is_silence_told: false, over: None };
        self.core.ahead.cannot_mend(self.ends.target.cannot_resume());
        self.is_seen_after = true;
        // The slower end was of what went before.
        self.sharing.eased = None;
        loop {
            let is_stopped = self.core.is_stopped();
            self.core.say_that_it_is_too_late();
            self.core.look_at_link();
            let ended = self.ended();
            let looked = stands(self.ends, &self.known.uuid);
            if after.is_over(&looked, self.moving.is_none(), self.silence_max(is_stopped))? {
                return Ok(());
            }
            if after.told.elapsed() >= SETTLE_TIME_MAX && !std::mem::replace(&mut after.is_silence_told, true)
            {
                self.note(HELD_OPEN);
            }
            // Nothing is given up for a share: it goes on with that which it had.
            let _ = self.keep_share();
            let halves = looked.map_or([Half::Silent; 2], |[here, there]| self.halves(&here, &there));
            let look = self.ahead_look(began, halves, is_stopped);
            ended.iter().for_each(|ended| self.core.try_ended(ended, look.at_ms));
            self.mend(&look, None)?;
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// For how long daemons may be silent. What carries the guest's memory would end with this run, whose guest needs no daemon.
    fn silence_max(&self, is_stopped: bool) -> Duration {
        if self.core.carried().is_some() && !is_stopped { CARRIED_SILENCE_MAX } else { SETTLE_TIME_MAX }
    }

    /// What came of `virsh`, once.
    fn ended(&mut self) -> Option<Result<(), QemuError>> {
        let ended = self.moving.as_mut().and_then(Lasting::ended);
        if ended.is_some() {
            self.moving = None;
        }
        ended
    }

    fn halves(&self, here: &DomainStand, there: &DomainStand) -> [Half; 2] {
        let broken = if self.moving.is_some() { Half::Recovering } else { Half::Paused };
        match (here.is_broken(), there.is_broken()) {
            (true, true) => [broken, broken],
            // libvirt has no word by which a target that has not noticed could be told: the next try tells.
            (true, false) => [broken, Half::Silent],
            (false, true) => [Half::Active, Half::Paused],
            (false, false) => [Half::Active, Half::Active],
        }
    }

    fn ahead_look(&mut self, began: Instant, [source, target]: [Half; 2], is_stopped: bool) -> Look {
        let at_ms = millis(began.elapsed());
        // One that broke has no figures.
        let job = self.ends.source.job(&self.known.uuid, at_ms).unwrap_or_default();
        let is_broken = source != Half::Active || target != Half::Active;
        let mut told = job.told(Some(if is_broken { Phase::Broken } else { Phase::PostCopy }));
        if job.sample.sent_bytes == 0 {
            told.sample = Sample { at_ms, phase: told.sample.phase, ..self.last.sample };
            told.total_bytes = self.last.total_bytes;
        }
        let Sample { sent_bytes, left_bytes, .. } = told.sample;
        self.last = told.clone();
        self.core.tell(Event::Memory(told));
        let is_away = self.core.carried().is_some_and(|carried| carried.by.is_waited_for());
        Look { at_ms, source, target, sent_bytes, left_bytes, is_away, is_stopped }
    }
}

const HELD_OPEN: &str = "the daemons do not answer: the link is held open for the rest of the guest's memory; Ctrl-C ends it, and the guest waits then until you say `drover live` again";

/// A guest of terabytes needs hours on a long line.
const CARRIED_SILENCE_MAX: Duration = Duration::from_secs(24 * 3600);

/// The same error once more.
fn repeated(error: &QemuError) -> QemuError {
    QemuError::new(error.kind, "asking both daemons").because(error.chain())
}
