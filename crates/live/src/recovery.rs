//! A line that breaks in post-copy, and is made anew.
//!
//! The guest is at the target and wants pages that only the source has. Both sides have to see that the line is gone
//! (`postcopy-paused`); then the target waits for another one (`migrate-recover`), and the source resumes over it.
//!
//! ```text
//! looks at both sides ──> Recovery ──> wait, have a side see it (`migrate-pause`), try, back again, lost, given up
//! ```
//!
//! There is no way back to the source, so trying costs nothing but time: tries go on, further and further apart, until the
//! deadline, and for a minute if that is later.

use std::time::Duration;

use crate::settings::Side;

/// How one side stands in a move whose guest went ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    /// It sends, or takes in.
    Active,
    /// It has seen that the line is gone and waits for another.
    Paused,
    /// It has another line and finds out what is missing, or is about to have one.
    Recovering,
    /// It has everything, or has sent it.
    Done,
    /// Its monitor tells nothing of use now: QEMU is busy, or it is not to be reached.
    Silent,
    /// Its QEMU has ended.
    Gone,
}

impl Half {
    /// Of a move's status in QEMU's word.
    pub fn of(status: &str) -> Half {
        match status {
            "active" | "device" | "postcopy-active" | "postcopy-device" => Half::Active,
            "postcopy-paused" => Half::Paused,
            "postcopy-recover" | "postcopy-recover-setup" => Half::Recovering,
            "completed" => Half::Done,
            _ => Half::Silent,
        }
    }
}

/// A look at both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// Milliseconds since the move began.
    pub at_ms: u64,
    /// The side that has what is missing.
    pub source: Half,
    /// The side that has the guest.
    pub target: Half,
    /// Bytes that the source has sent.
    pub sent_bytes: u64,
    /// Bytes that it still has to send. Once there are none it does not wait for another line: QEMU 10.0 fails then.
    pub left_bytes: u64,
    /// What lies between is known to be away, and may come back by itself.
    pub is_away: bool,
    /// Somebody wants it to end.
    pub is_stopped: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing now.
    Wait,
    /// The line is gone. Said once, before anything is done about it.
    Broke,
    /// Have this side see that its line is gone.
    Pause(Side),
    /// Make a new line; which try it is, from 1 on.
    Try(u32),
    /// That try came to nothing; the next comes after this time.
    Failed(u32, Duration),
    /// The line carries again, after so many tries.
    Back(u32),
    /// This side's QEMU has ended, and what only it had is gone.
    Lost(Side),
    /// No more tries, after so many.
    GiveUp(u32),
}

/// A line is tried for at least so long after it broke, however near the deadline is.
const RECOVERY_MS_MIN: u64 = 60_000;
/// Between two tries: the first pause, which doubles, and the longest.
const WAIT_MS: u64 = 1_000;
const WAIT_MS_MAX: u64 = 30_000;
/// One side sees the end of a line after the other; so much later it is not on its way.
const NOTICE_MS: u64 = 2_000;
/// A try that has not begun by then has failed. QEMU before 9.1 does not say that it connects.
const BEGIN_MS: u64 = 5_000;
/// What a try may take: both compare what they have, 32 KiB for each GiB of memory.
const TRY_MS_MAX: u64 = 30_000;
/// A line on which nothing moves for so long is broken, whatever TCP thinks.
const SILENCE_MS: u64 = 30_000;
/// A line that broke again before this time was not back.
const STEADY_MS: u64 = 10_000;

/// A try under way.
#[derive(Clone, Copy, Debug)]
struct Try {
    began_ms: u64,
    /// The source was seen to be at it.
    has_begun: bool,
}

/// Sees a guest's memory after it, over as many lines as it takes.
#[derive(Clone, Debug)]
pub struct Recovery {
    deadline_ms: u64,
    /// The line is gone.
    is_broken: bool,
    /// When it went, of breaks without a steady time in between.
    broke_ms: u64,
    /// When it was back last.
    back_ms: Option<u64>,
    /// In this break.
    tries: u32,
    trying: Option<Try>,
    wait_ms: u64,
    next_try_ms: u64,
    /// Since when the sides stand as they do.
    since: Option<(Half, Half, u64)>,
    sent_bytes: u64,
    /// When bytes were sent last.
    moved_ms: u64,
}

impl Recovery {
    /// For a move that should end by then.
    pub fn new(deadline: Duration) -> Recovery {
        Recovery {
            deadline_ms: u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX),
            is_broken: false,
            broke_ms: 0,
            back_ms: None,
            tries: 0,
            trying: None,
            wait_ms: WAIT_MS,
            next_try_ms: 0,
            since: None,
            sent_bytes: 0,
            moved_ms: 0,
        }
    }

    /// Whether the line is known to be gone.
    pub fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Takes in a look; says what to do now.
    pub fn see(&mut self, look: Look) -> Step {
        let stands_ms = self.stands_ms(&look);
        match (look.source, look.target) {
            (Half::Done, _) => Step::Wait,
            // What the source had left only it had. A target that has everything needs it no more.
            (Half::Gone, target) if target != Half::Done => Step::Lost(Side::Source),
            (_, Half::Gone) => Step::Lost(Side::Target),
            (Half::Active, Half::Active | Half::Done) => self.carries(&look),
            // It goes on only after the target has answered over the new line; before a try it has seen nothing yet.
            (Half::Active, Half::Silent) if self.trying.is_some() => self.carries(&look),
            (Half::Active, Half::Silent) => Step::Wait,
            // All is there, or nothing can be known of the source now.
            (Half::Gone | Half::Silent, _) => Step::Wait,
            (Half::Active | Half::Paused | Half::Recovering, _) => self.is_gone(&look, stands_ms),
        }
    }

    /// The try was refused before it began; gives the time until the next.
    pub fn refused(&mut self, at_ms: u64) -> Duration {
        self.trying = None;
        self.next_try_ms = at_ms.saturating_add(self.wait_ms);
        let wait = Duration::from_millis(self.wait_ms);
        self.wait_ms = (self.wait_ms * 2).min(WAIT_MS_MAX);
        wait
    }

    /// For how long both have stood as they stand.
    fn stands_ms(&mut self, look: &Look) -> u64 {
        match self.since {
            Some((source, target, since)) if (source, target) == (look.source, look.target) => {
                look.at_ms.saturating_sub(since)
            }
            Some(_) | None => {
                self.since = Some((look.source, look.target, look.at_ms));
                0
            }
        }
    }

    fn carries(&mut self, look: &Look) -> Step {
        if self.is_broken {
            self.is_broken = false;
            self.trying = None;
            self.back_ms = Some(look.at_ms);
            self.moved(look);
            return Step::Back(self.tries);
        }
        let has_sent_all = look.left_bytes == 0;
        if look.sent_bytes != self.sent_bytes || has_sent_all || look.is_away || look.target == Half::Done {
            self.moved(look);
        }
        if look.at_ms.saturating_sub(self.moved_ms) < SILENCE_MS {
            return Step::Wait;
        }
        self.moved(look);
        Step::Pause(Side::Source)
    }

    fn moved(&mut self, look: &Look) {
        (self.sent_bytes, self.moved_ms) = (look.sent_bytes, look.at_ms);
    }

    fn is_gone(&mut self, look: &Look, stands_ms: u64) -> Step {
        if !self.is_broken {
            return self.breaks(look);
        }
        if self.is_over(look) {
            return Step::GiveUp(self.tries);
        }
        if let (Some(trying), Half::Recovering | Half::Active) = (&mut self.trying, look.source) {
            trying.has_begun = true;
        }
        match (look.source, look.target) {
            (Half::Paused, Half::Paused | Half::Silent) => self.next(look),
            (Half::Paused, _) => self.pause_after(Side::Target, NOTICE_MS, stands_ms, look),
            (Half::Active, Half::Paused) => self.pause_after(Side::Source, NOTICE_MS, stands_ms, look),
            _ => self.pause_after(Side::Source, TRY_MS_MAX, stands_ms, look),
        }
    }

    fn breaks(&mut self, look: &Look) -> Step {
        self.is_broken = true;
        let was_back = self.back_ms.is_none_or(|back| look.at_ms.saturating_sub(back) >= STEADY_MS);
        if was_back {
            (self.broke_ms, self.tries, self.wait_ms) = (look.at_ms, 0, WAIT_MS);
            self.next_try_ms = look.at_ms;
        } else {
            // The next try is still further away.
            self.refused(look.at_ms);
        }
        Step::Broke
    }

    /// Whether it is time to leave it.
    fn is_over(&self, look: &Look) -> bool {
        let until = self.deadline_ms.max(self.broke_ms.saturating_add(RECOVERY_MS_MIN));
        let is_idle = self.trying.is_none();
        look.at_ms >= until || (look.is_stopped && is_idle && (self.tries > 0 || look.is_away))
    }

    /// Both wait for a line.
    fn next(&mut self, look: &Look) -> Step {
        if let Some(trying) = self.trying {
            if !trying.has_begun && look.at_ms.saturating_sub(trying.began_ms) < BEGIN_MS {
                return Step::Wait;
            }
            return Step::Failed(self.tries, self.refused(look.at_ms));
        }
        if look.is_away || look.at_ms < self.next_try_ms {
            return Step::Wait;
        }
        self.tries = self.tries.saturating_add(1);
        self.trying = Some(Try { began_ms: look.at_ms, has_begun: false });
        Step::Try(self.tries)
    }

    /// Has a side see what it should have seen by itself by now; again only after as long.
    fn pause_after(&mut self, side: Side, after_ms: u64, stands_ms: u64, look: &Look) -> Step {
        if stands_ms < after_ms || (side == Side::Target && look.is_away) {
            return Step::Wait;
        }
        self.since = Some((look.source, look.target, look.at_ms));
        Step::Pause(side)
    }
}

#[cfg(test)]
mod tests;
