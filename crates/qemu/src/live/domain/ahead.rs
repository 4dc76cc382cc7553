//! A domain that goes ahead of its memory (post-copy): it is sent, seen after, and its line made anew where it breaks.
//!
//! What is done when is decided in [`Recovery`], as for guests without libvirt. libvirt starts the guest at the target when
//! the source says that post-copy is on, and takes nobody back from there.

use std::time::{Duration, Instant};

use drover_live::{DomainFound, DomainStand, Half, Look, Phase, Recovery, Sample, Side, Step, domain_found};

use super::run::{LOOK_PAUSE, Move, SETTLE_TIME_MAX, failed, millis, stands};
use crate::error::QemuError;
use crate::live::{Ending, Event, Mending};
use crate::virsh::Lasting;

/// What is known of a guest that went ahead.
struct After {
    recovery: Recovery,
    /// Why libvirt cannot make the line anew.
    cannot: Option<String>,
    /// The try under way.
    try_number: Option<u32>,
    /// Why the last try failed.
    why: String,
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
    /// Sends the guest ahead.
    pub(super) fn start_postcopy(&mut self) -> Result<(), Ending> {
        if let Some(why) = self.ends.target.cannot_resume() {
            self.note(format!("{why}; if the line breaks now, the guest waits until that is updated"));
        }
        let (source, uuid) = (&self.ends.source, &self.known.uuid);
        if self.core.was_running {
            // QEMU 10.0 starts a guest again that ran when it went ahead, if it has sent everything and the line breaks
            // before it has the target's word, although it runs there. One that stood is left standing; if the move is given
            // up before post-copy begins, libvirt starts it again. Two children, though the guest stands still meanwhile:
            // one `virsh` for both would go on after the first had failed.
            source.ask(&["suspend", uuid])?;
        }
        Ok(source.ask(&["migrate-postcopy", uuid]).map(drop)?)
    }

    /// Sees the rest of its memory after a guest that went ahead, over as many lines as it takes; what came of it the
    /// daemons tell.
    pub(super) fn see_after(&mut self, began: Instant) -> Result<(), Ending> {
        let mut after = After {
            recovery: Recovery::new(self.core.wanted.promise.deadline),
            cannot: self.ends.target.cannot_resume(),
            try_number: None,
            why: "no try was made".into(),
            told: Instant::now(),
            is_silence_told: false,
            over: None,
        };
        self.is_seen_after = true;
        // The slower end was of what went before.
        self.sharing.eased = None;
        let mut has_said = false;
        loop {
            let is_stopped = self.core.is_stopped();
            if is_stopped && !std::mem::replace(&mut has_said, true) {
                self.note(TOO_LATE);
            }
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
            if let (Some(number), Some(Err(error))) = (after.try_number.take_if(|_| ended.is_some()), ended) {
                self.tell_failed(&mut after, number, &error, look.at_ms);
            }
            let step = after.recovery.see(look);
            self.take_step(&mut after, step, &look)?;
            std::thread::sleep(LOOK_PAUSE);
        }
    }

    /// For how long daemons may be silent. What carries the guest's memory would end with this run, whose guest needs no daemon.
    fn silence_max(&self, is_stopped: bool) -> Duration {
        if self.core.carried().is_some() && !is_stopped { CARRIED_SILENCE_MAX } else { SETTLE_TIME_MAX }
    }

    fn take_step(&mut self, after: &mut After, step: Step, look: &Look) -> Result<(), Ending> {
        match step {
            Step::Wait | Step::Lost(_) => {}
            Step::Broke => self.tell_mending(Mending::Broke { why: "by the daemons' word".into() }),
            Step::Pause(side) => self.pause_line(side),
            Step::Try(number) => self.try_line(after, number, look.at_ms)?,
            Step::Failed(number, next) => {
                self.tell_mending(Mending::Failed { number, why: after.why.clone(), next });
            }
            Step::Back(tries) => self.tell_mending(Mending::Back { tries }),
            Step::GiveUp(_) if look.is_stopped => return Err(Ending::Stopped),
            Step::GiveUp(tries) => {
                let why = &after.why;
                return Err(Ending::Failed(failed(&format!(
                    "the line broke in post-copy and was not back after {tries} tries, the last: {why}"
                ))));
            }
        }
        Ok(())
    }

    fn try_line(&mut self, after: &mut After, number: u32, at_ms: u64) -> Result<(), Ending> {
        if let Some(why) = &after.cannot {
            let why = format!("the line broke in post-copy; {why}. {UPDATE}");
            return Err(Ending::Failed(failed(&why)));
        }
        self.tell_mending(Mending::Tries { number });
        match self.resume() {
            Ok(()) => after.try_number = Some(number),
            Err(error) => self.tell_failed(after, number, &error, at_ms),
        }
        Ok(())
    }

    fn tell_failed(&mut self, after: &mut After, number: u32, error: &QemuError, at_ms: u64) {
        after.why = error.chain();
        let next = after.recovery.refused(at_ms);
        self.tell_mending(Mending::Failed { number, why: after.why.clone(), next });
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

    /// Has the source see that its line is gone. One that has seen it meanwhile refuses; it is looked at again.
    fn pause_line(&mut self, side: Side) {
        let words = ["domjobabort", &self.known.uuid, "--postcopy"];
        if side == Side::Source && self.ends.source.ask(&words).is_ok() {
            self.tell_mending(Mending::Told(side));
        }
    }

    /// Has libvirt make another line.
    fn resume(&mut self) -> Result<(), QemuError> {
        let words = self.resume_words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.note(format!("virsh {}", words.join(" ")));
        self.moving = Some(self.ends.source.begin(&words)?);
        Ok(())
    }

    fn tell_mending(&mut self, mending: Mending) {
        self.core.tell(Event::Mending(mending));
    }
}

const TOO_LATE: &str = "the guest runs at the target (post-copy), which cannot be undone: the rest of its memory is seen after it";

const HELD_OPEN: &str = "the daemons do not answer: the link is held open for the rest of the guest's memory; Ctrl-C ends it, and the guest waits then until you say `drover live` again";

/// A guest of terabytes needs hours on a long line.
const CARRIED_SILENCE_MAX: Duration = Duration::from_secs(24 * 3600);

const UPDATE: &str = "update it (its guests go on meanwhile), then say `drover live` again";

/// The same error once more.
fn repeated(error: &QemuError) -> QemuError {
    QemuError::new(error.kind, "asking both daemons").because(error.chain())
}
