//! The guest runs at the target and the rest of its memory follows: the line is watched, and made anew where it breaks.
//!
//! What is done when is decided in `drover_live::Ahead`; a guest that went ahead is called back by nobody.

use std::time::Instant;

use drover_live::{Half, Side};

use super::arrive::AGAIN;
use super::{Ending, Move, SAMPLE_PAUSE, SETTLE_TIME_MAX};
use crate::error::{QemuError, QemuErrorKind};

impl Move<'_> {
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
        let is_gone =
            self.core.state.passage.is_ahead() && error.is_of_connection() && self.has_source_ended();
        match is_gone && self.target_half() != Half::Done {
            true => self.core.loses(Side::Source),
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

    /// How the target stands. A monitor that broke off is connected to again, so that the next look tells more.
    pub(super) fn target_half(&mut self) -> Half {
        if self.core.is_link_waited_for() {
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
}
