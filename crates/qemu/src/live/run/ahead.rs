//! The guest runs at the target and the rest of its memory follows: the line is watched, and made anew where it breaks.
//!
//! What is done when is decided in [`Recovery`]; a guest that went ahead is called back by nobody.

use std::time::{Duration, Instant};

use drover_live::{Half, Look, Recovery, Side, Step};

use super::arrive::AGAIN;
use super::{Ending, Event, Move, SAMPLE_PAUSE, SETTLE_TIME_MAX};
use crate::error::{QemuError, QemuErrorKind};
use crate::live::guest::Told;

/// A line that broke in post-copy, and what is done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mending {
    /// It broke.
    Broke {
        /// By the source's word.
        why: String,
    },
    /// This side had not noticed, and was told.
    Told(Side),
    /// It is made anew.
    Tries {
        /// Which try it is, from 1 on.
        number: u32,
    },
    /// That came to nothing.
    Failed {
        /// Which try it was.
        number: u32,
        /// Why.
        why: String,
        /// Until the next.
        next: Duration,
    },
    /// It carries again.
    Back {
        /// After so many tries.
        tries: u32,
    },
}

/// What is known of a guest that went ahead.
pub(super) struct Ahead {
    recovery: Recovery,
    /// The QEMU of this side ended, and with it what only it had.
    pub lost: Option<Side>,
    /// Somebody who wants to stop it was told that it cannot be undone.
    has_said: bool,
    /// Why the last try failed.
    why: String,
}

impl Ahead {
    pub(super) fn new(deadline: Duration) -> Ahead {
        let recovery = Recovery::new(deadline);
        Ahead { recovery, lost: None, has_said: false, why: String::new() }
    }
}

impl Move<'_> {
    /// Looks at both sides of post-copy, and does what is to be done about its line.
    pub(super) fn mend(&mut self, began: Instant, told: &Told) -> Result<(), Ending> {
        self.goes_on_ahead();
        self.say_that_it_is_too_late();
        let target = self.target_half();
        let look = self.ahead_look(told, target);
        match self.ahead.recovery.see(look) {
            Step::Wait => Ok(()),
            Step::Broke => {
                let why = why(told);
                self.tell_mending(Mending::Broke { why });
                Ok(())
            }
            Step::Pause(side) => {
                self.pause_line(side);
                Ok(())
            }
            Step::Try(number) => {
                self.tell_mending(Mending::Tries { number });
                if let Err(error) = self.try_line(target) {
                    let next = self.ahead.recovery.refused(millis(began));
                    self.tell_failed(number, error.chain(), next);
                }
                Ok(())
            }
            Step::Failed(number, next) => {
                self.tell_failed(number, why(told), next);
                Ok(())
            }
            Step::Back(tries) => {
                self.tell_mending(Mending::Back { tries });
                Ok(())
            }
            Step::Lost(side) => Err(self.lost(side)),
            Step::GiveUp(_) if look.is_stopped => Err(Ending::Stopped),
            Step::GiveUp(tries) => Err(Ending::Failed(self.core.failed(&format!(
                "the line broke in post-copy and was not back after {tries} tries, the last: {}",
                self.ahead.why
            )))),
        }
    }

    /// The source gave the move up after the guest had gone ahead, having sent everything: what the target says of it, which
    /// is waited for.
    pub(super) fn last_word(&mut self) -> Half {
        let since = Instant::now();
        loop {
            let half = self.target_half();
            let is_stopped = self.core.is_stopped();
            let patience = if is_stopped { SETTLE_TIME_MAX } else { self.patience() };
            if matches!(half, Half::Done | Half::Paused | Half::Gone) || since.elapsed() >= patience {
                return half;
            }
            self.core.look_at_link();
            std::thread::sleep(SAMPLE_PAUSE);
        }
    }

    /// Whether the target's QEMU is known to have ended.
    pub(super) fn is_target_gone(&mut self) -> bool {
        self.target_half() == Half::Gone
    }

    /// The source's monitor failed: what that means for a guest that has gone ahead.
    pub(super) fn source_failed(&mut self, error: QemuError) -> Ending {
        let is_gone = self.is_ahead() && error.is_of_connection() && self.has_source_ended();
        match is_gone && self.target_half() != Half::Done {
            true => self.lost(Side::Source),
            false => error.into(),
        }
    }

    /// A QEMU that ends closes one thing after the other, and the memory of a large guest first.
    fn has_source_ended(&mut self) -> bool {
        let until = Instant::now() + SETTLE_TIME_MAX;
        loop {
            match self.source.connect_again() {
                Ok(()) => return false,
                Err(error) if error.kind == QemuErrorKind::NotFound => return true,
                Err(_) if Instant::now() >= until => return false,
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }

    pub(super) fn lost(&mut self, side: Side) -> Ending {
        self.ahead.lost = Some(side);
        Ending::Failed(self.core.failed(&format!("the {side}'s QEMU ended in post-copy")))
    }

    fn ahead_look(&self, told: &Told, target: Half) -> Look {
        Look {
            at_ms: told.sample.at_ms,
            source: Half::of(&told.status),
            target,
            sent_bytes: told.sample.sent_bytes,
            left_bytes: told.sample.left_bytes,
            is_away: self.is_link_waited_for(),
            is_stopped: self.core.is_stopped(),
        }
    }

    fn say_that_it_is_too_late(&mut self) {
        if self.core.is_stopped() && !std::mem::replace(&mut self.ahead.has_said, true) {
            self.note(
                "the guest runs at the target (post-copy), which cannot be undone: the rest of its memory is seen after it",
            );
        }
    }

    /// How the target stands. A monitor that broke off is connected to again, so that the next look tells more.
    fn target_half(&mut self) -> Half {
        if self.is_link_waited_for() {
            return Half::Silent;
        }
        match self.target.stand() {
            Ok(stand) => Half::of(&stand.migration),
            Err(error) if error.is_of_connection() && error.kind != QemuErrorKind::Timeout => {
                self.target_again()
            }
            Err(_) => Half::Silent,
        }
    }

    fn target_again(&mut self) -> Half {
        std::thread::sleep(AGAIN);
        let connected = self.target.connect_again();
        let is_gone = match self.core.carried() {
            // Nobody listens at a monitor on this host: its QEMU has ended.
            None => connected.is_err_and(|error| error.kind == QemuErrorKind::NotFound),
            Some(carried) => connected.is_err() && carried.by.has_nobody(),
        };
        if is_gone { Half::Gone } else { Half::Silent }
    }

    /// A side that has seen it meanwhile, or cannot at this moment, refuses; it is looked at again.
    fn pause_line(&mut self, side: Side) {
        let paused = match side {
            Side::Source => self.source.pause_line(),
            Side::Target => self.target.pause_line(),
        };
        if paused.is_ok() {
            self.tell_mending(Mending::Told(side));
        }
    }

    /// Has the target wait for another line, and the source go on over it.
    fn try_line(&mut self, target: Half) -> Result<(), QemuError> {
        if target == Half::Silent {
            // Whether it has noticed it does not tell.
            let _ = self.target.pause_line();
        }
        let uri = self.target.wait_for_line(&self.options.uri, SETTLE_TIME_MAX)?;
        let to = self.goes_to(&uri).to_string();
        self.source.resume_to(&to)
    }

    fn tell_failed(&mut self, number: u32, why: String, next: Duration) {
        self.ahead.why.clone_from(&why);
        self.tell_mending(Mending::Failed { number, why, next });
    }

    fn tell_mending(&mut self, mending: Mending) {
        self.core.tell(Event::Mending(mending));
    }
}

/// What the source says of the line.
fn why(told: &Told) -> String {
    told.error.clone().unwrap_or_else(|| format!("QEMU says {:?} and no reason", told.status))
}

fn millis(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX)
}
