//! The end of a move that did not come through: the guest runs in one place, drover's things are gone.

use std::time::{Duration, Instant};

use drover_live::{Moved, Phase, Told, Where};

use super::{Ending, LiveError, MIRROR_END_TIME_MAX, Move, SETTLE_TIME_MAX};
use crate::error::QemuError;
use crate::live::guest::POLL;

impl Move<'_> {
    /// Waits until QEMU has ended the move; gives what it said last, or nothing where it says nothing any more.
    pub(super) fn wait_for_end(&mut self) -> Option<Told> {
        let (began, until) = (Instant::now(), Instant::now() + SETTLE_TIME_MAX);
        let mut is_torn = false;
        loop {
            let told = self.source.sample(self.core.began).ok()?;
            if told.status == "cancelling" && !is_torn && began.elapsed() >= CANCEL_TIME_MAX {
                is_torn = true;
                self.tear();
            }
            let has_ended =
                matches!(told.sample.phase, Phase::Done | Phase::Failed | Phase::Broken | Phase::PostCopy);
            if has_ended || told.status == "none" || Instant::now() >= until {
                return Some(told);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Ends the connections of a move that was cancelled and does not end: QEMU shuts the first of them only, and waits
    /// for the others for as long as a dead line lets it. What is there no more, or not known to it, is not torn.
    fn tear(&mut self) {
        let instances = serde_json::json!({"instances": [{"type": "migration"}]});
        let _ = self.source.qmp.execute("yank", instances);
    }

    /// It was all sent before it could be stopped.
    pub(super) fn has_moved(&mut self, cause: Ending, told: Told) -> Result<Moved, LiveError> {
        // Who was waited for already is looked at once more.
        let patience = if self.has_asked { Duration::ZERO } else { self.patience() };
        let guest_at = match self.arrived(told, patience) {
            Ok(moved) => return Ok(moved),
            Err(_) if self.has_halted => Where::Halted,
            // The source had the target's word that it has everything, or nothing is known of it.
            Err(_) if self.core.carried().is_some() => Where::Waiting,
            Err(_) => Where::Unknown,
        };
        Err(LiveError { cause, guest_at })
    }

    /// Whether each side says that it runs the guest.
    pub(super) fn do_both_run(&mut self) -> bool {
        let runs = |status: Result<String, QemuError>| status.is_ok_and(|status| status == "running");
        runs(self.source.status()) && !self.is_link_away() && runs(self.target.status())
    }

    /// Sees to it that the guest runs at the source if it did before. QEMU lets it run by itself unless it stood for a reason of its own. Nobody else may run it, as the target has had no
    /// leave.
    pub(super) fn source_runs_again(&mut self) -> bool {
        if !self.core.state.was_running {
            return self.source.status().is_ok();
        }
        let until = Instant::now() + RESUME_TIME_MAX;
        loop {
            match self.source.status() {
                Ok(status) if status == "running" => {
                    // It may be marked as stopped no more; one that is not to be reached now is looked at again.
                    let _ = self.source.unmark_stopped();
                    return true;
                }
                // Refused while the end of the move is still under way.
                Ok(_) => drop(self.source.order("cont")),
                Err(_) => return false,
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(POLL);
        }
    }

    /// The source's monitor is gone, and perhaps its QEMU.
    pub(super) fn without_source(&mut self) -> Where {
        if self.core.state.passage.is_ahead() {
            // With all of its memory it runs without the source.
            let has_all = self.target.stand().is_ok_and(|stand| stand.migration == "completed");
            return if has_all { Where::Target } else { Where::Between };
        }
        match (self.core.state.passage.has_leave(), self.target.status()) {
            (true, Ok(status)) if status == "running" => Where::Target,
            _ => Where::Unknown,
        }
    }

    /// Ends what drover made for the disks. What is gone already, or whose QEMU is, is no failure.
    pub(super) fn clean_up(&mut self) {
        if self.pairs.is_empty() {
            return;
        }
        if let Err(error) = self.source.drop_mirrors(&self.pairs, MIRROR_END_TIME_MAX) {
            self.note(format!("mirrors are left at the source: {}", error.chain()));
        }
        // Over a link that is away nothing is withdrawn, and nothing comes either.
        if !self.is_link_away() {
            // A target whose guest did not come has mostly ended by itself.
            let _ = self.target.withdraw();
        } else if self.starts_by_link_alone() {
            self.note("the target's QEMU may still offer its disks on the network, which cannot be withdrawn while the link is away: end it");
        }
    }
}

/// What is said to somebody who stopped it, and may lose patience. What comes of it is not known yet.
pub(super) const CANCELS: &str = "it is being cancelled, if that is still possible, and where the guest is will be told: another Ctrl-C changes nothing";
/// For which a source is waited for whose connection broke: it may serve another.
pub(super) const LOOK_AGAIN_TIME_MAX: Duration = Duration::from_secs(2);
/// For which a cancelled move may take to end by itself.
const CANCEL_TIME_MAX: Duration = Duration::from_secs(1);
/// For which QEMU may need to let a guest run again.
const RESUME_TIME_MAX: Duration = Duration::from_secs(30);
