//! The source has sent everything: the target is to say that it has it, and to start the guest.
//!
//! From here on the guest runs at the target or nowhere: the source has ended it. So the target is asked until it
//! answers, over as many connections to its monitor as it takes.

use std::time::{Duration, Instant};

use drover_live::{Moved, Told};

use super::{Ending, Move, SAMPLE_PAUSE, SETTLE_TIME_MAX};
use crate::error::{QemuError, QemuErrorKind};
use crate::live::guest::POLL;

/// For which a target behind a link is waited for: longer than a link tries to come back.
const LINK_TIME_MAX: Duration = Duration::from_secs(16 * 60);
/// Between two tries to reach a monitor that is away.
pub(super) const AGAIN: Duration = Duration::from_millis(500);

/// For which a guest may take to run that was told to.
const START_TIME_MAX: Duration = Duration::from_secs(10);

/// What a target says of a guest that has come and was not started.
const STANDS: [&str; 2] = ["paused", "prelaunch"];
/// What it says while the guest is still to come.
const COMES: [&str; 3] = ["inmigrate", "finish-migrate", "restore-vm"];

/// Whether a target says so of a guest that went ahead and was not started: all of it need not be there.
pub(super) fn is_to_be_started(status: &str) -> bool {
    COMES.contains(&status) || STANDS.contains(&status)
}

impl Move<'_> {
    /// For which the target may take to say that the guest is there.
    pub(super) fn patience(&self) -> Duration {
        if self.core.carried().is_some() { LINK_TIME_MAX } else { SETTLE_TIME_MAX }
    }

    /// The source says that all is sent: the target must say that the guest is there, and start it if it ran before.
    /// Somebody who stops the move now shortens the waiting; the guest has gone.
    pub(super) fn arrived(&mut self, last: Told, patience: Duration) -> Result<Moved, Ending> {
        self.has_asked = true;
        let since = Instant::now();
        let mut is_away = false;
        loop {
            match self.is_there_soon() {
                Ok(true) => return Ok(self.told_moved(last)),
                Ok(false) => {}
                Err(error) if self.is_worth_waiting(&error) => {
                    if !std::mem::replace(&mut is_away, true) {
                        self.note(format!("all is sent, and the target is waited for: {}", error.chain()));
                    }
                    self.reach_target(&error);
                }
                Err(error) => return Err(error.into()),
            }
            self.core.look_at_link();
            self.core.hurry();
            let is_stopped = self.core.is_stopped();
            if since.elapsed() >= if is_stopped { patience.min(SETTLE_TIME_MAX) } else { patience } {
                return Err(Ending::Failed(
                    self.core.failed("the target does not say that the guest is there"),
                ));
            }
        }
    }

    /// Over a link each answer takes a round trip, for which the guest stands still. There the source says that all is sent when it has
    /// the target's word that all has come (`return-path`), so the guest has leave to run before it is looked at.
    pub(super) fn let_go_unseen(&mut self) {
        let may_go = self.core.state.passage.may_go_unseen() && self.core.state.was_running;
        if may_go && self.core.carried().is_some() {
            self.core.state.passage.give_leave();
            // What becomes of it the look tells.
            let _ = self.give_leave();
        }
    }

    /// As [`Move::is_there`]. Where it is not, whatever the target says ends the wait for the next look.
    fn is_there_soon(&mut self) -> Result<bool, QemuError> {
        let is_there = self.is_there()?;
        if !is_there {
            self.target.wait_for_news(POLL)?;
        }
        Ok(is_there)
    }

    /// Looks at the target; starts the guest if it is there and ran before. Whether all is as it should be.
    pub(super) fn is_there(&mut self) -> Result<bool, QemuError> {
        let status = self.target.status()?;
        if COMES.contains(&status.as_str()) {
            return Ok(false);
        }
        if !STANDS.contains(&status.as_str()) {
            return self.runs(&status);
        }
        if self.core.state.was_running {
            self.core.state.passage.give_leave();
            self.give_leave()?;
            return self.wait_until_it_runs();
        }
        if std::mem::take(&mut self.is_offered) {
            self.target.withdraw()?;
        }
        Ok(true)
    }

    /// A guest that was told to run is seen to, or what became of it is told.
    fn wait_until_it_runs(&mut self) -> Result<bool, QemuError> {
        let until = Instant::now() + START_TIME_MAX;
        loop {
            let status = self.target.status()?;
            if !STANDS.contains(&status.as_str()) || Instant::now() >= until {
                return self.runs(&status);
            }
            std::thread::sleep(POLL);
        }
    }

    /// Whether a guest that is there runs; QEMU's word for how it stands where it does not.
    fn runs(&mut self, status: &str) -> Result<bool, QemuError> {
        if status == "running" {
            return Ok(true);
        }
        self.has_halted = true;
        let what = "the guest at the target".to_string();
        Err(QemuError::new(QemuErrorKind::Failed, what)
            .because(format!("it does not run: QEMU says {status:?}")))
    }

    /// A connection behind a link may come back; a QEMU on this host that ends its own is gone, and what it refuses it
    /// refuses again.
    pub(super) fn is_worth_waiting(&self, error: &QemuError) -> bool {
        error.kind == QemuErrorKind::Timeout || (self.core.carried().is_some() && error.is_of_connection())
    }

    /// A connection that answers late goes on; one that broke is made anew.
    pub(super) fn reach_target(&mut self, error: &QemuError) {
        if error.kind != QemuErrorKind::Timeout {
            std::thread::sleep(AGAIN);
            // Where it cannot be made, the next look says why.
            let _ = self.target.connect_again();
        }
    }

    fn told_moved(&mut self, last: Told) -> Moved {
        let total = self.core.began.elapsed();
        self.core.rests();
        let last = self.last_words(last);
        // The source's QEMU is to end, and with it what cannot be removed.
        let _ = self.source.drop_nodes(&self.pairs);
        let stopped = self.source.seen().ok().and_then(|seen| seen.stopped_us);
        let resumed = self.target.seen().ok().and_then(|seen| seen.resumed_us);
        let between =
            |(stopped, resumed): (i64, i64)| u64::try_from(resumed - stopped).ok().map(Duration::from_micros);
        self.core.moved(total, stopped.zip(resumed).and_then(between), last)
    }

    /// Right after the end QEMU 7.2 may tell a downtime of 0 for a moment.
    fn last_words(&mut self, told: Told) -> Told {
        std::thread::sleep(SAMPLE_PAUSE * 2);
        self.source.sample(self.core.began).unwrap_or(told)
    }

    /// A target that has all of a guest which runs at the source must never start it.
    pub(super) fn warn_of_copy(&mut self) {
        if self.is_link_away() {
            return self
                .note("the target's QEMU cannot be looked at: end it, it may hold a copy of the guest");
        }
        // A QEMU whose guest did not come has mostly ended by itself.
        let status = self.target.status().unwrap_or_default();
        if STANDS.contains(&status.as_str()) {
            self.note("the target's QEMU holds a copy of the guest, standing still: end it (`quit`), never start it");
        }
    }
}
