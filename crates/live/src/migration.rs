//! One move, from the first byte of its memory to the last: looks at it go in, and what is to be done comes out.
//!
//! ```text
//! a look at the source ──> Migration ─┬─> Passage   how far the guest is, and what is done there
//!                                     ├─> Downtime  since when it is paused
//!                                     ├─> Follow    memory on its way: its rate, throttle, post-copy, give up
//! a look at both sides ──>            └─> Ahead     the line of post-copy
//! ```
//!
//! Whoever moves the guest looks, carries out what comes of that in its order, pauses, and looks again. Time is that of the looks.

use std::time::Duration;

use drover_types::Estimate;

use crate::ahead::Ahead;
use crate::choose::{Allowed, Choice};
use crate::downtime::Downtime;
use crate::event::Event;
use crate::follow::Follow;
use crate::forecast::Promise;
use crate::handover::in_step;
use crate::outlook::Outlook;
use crate::passage::{Act, Passage};
use crate::recovery::Half;
use crate::settings::Side;
use crate::told::Told;
use crate::watch::{Deed, Phase, Sample, Why};

/// A look at the source of a move.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// What it told.
    pub told: &'a Told,
    /// That is of this move: libvirt tells nothing at all at its begin and end.
    pub is_told: bool,
    /// What carries the move does.
    pub is_up: bool,
    /// Bytes a second that may be sent.
    pub rate_max: u64,
    /// What is said to the source is done so much later than what it told.
    pub late: Duration,
    /// Somebody wants it to end.
    pub is_stopped: bool,
    /// The next move may begin while the last bytes of this one are on their way, which takes so long.
    pub overlap: Option<Duration>,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// This is told.
    Tell(Event),
    /// What somebody else does to the guest or its disks meanwhile is heeded.
    Attend,
    /// It sends no more than its share, which may be another than it was.
    KeepShare,
    /// Its end is near: the guest's writes to its disks wait for the target from now on, if they do not.
    KeepInStep,
    /// The guest goes ahead of its memory.
    SendAhead,
    /// So many bytes a second are sent at most from now on.
    Bound {
        /// Bytes a second.
        rate: u64,
        /// Less than may be sent: the end of memory goes slower.
        is_eased: bool,
        /// What is said of it.
        words: Option<String>,
    },
    /// The guest is slowed down, of which so many bytes a second are sent.
    SlowDown(f64),
    /// The guest is paused, and all but the last of its memory is sent: its disks are handed over, and the source goes on.
    HandOver,
    /// The source has ended a guest that was sent ahead: the target starts it once it has what that takes.
    LetGo,
    /// Both sides of post-copy are looked at, for [`Ahead::see`].
    SeeAfter,
    /// This side is to see that the line of post-copy is gone.
    PauseLine(Side),
    /// The line of post-copy is made anew. Where that is refused, [`Ahead::refused`].
    TryLine {
        /// Which try it is.
        number: u32,
        /// How the target stands.
        target: Half,
    },
    /// All is sent: the target is asked for the guest.
    Arrive,
    /// The move is to end.
    End(Halt),
}

/// Why a move is to end.
#[derive(Clone, Debug, PartialEq)]
pub enum Halt {
    /// Somebody wants it to.
    Stopped,
    /// It is given up.
    GivenUp(Why),
    /// Its line is known now, and the promise cannot be kept: it is called back.
    Promise(Box<Choice>),
    /// In post-copy this side's QEMU has ended, and what only it had is gone.
    Lost(Side),
    /// It failed.
    Failed(String),
}

/// Until the next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// As usual.
    Usual,
    /// The end is so near that a look that comes as usual comes too late.
    Close,
    /// The guest is paused: each millisecond counts.
    Still,
}

/// While the end is near, memory is told no more often.
const TELL_MS: u64 = 100;
const TOO_LONG: &str = "the guest was paused for too long to be handed over";

/// One move.
#[derive(Clone, Debug)]
pub struct Migration {
    promise: Promise,
    /// What is foreseen of it.
    pub outlook: Outlook,
    /// Memory on its way.
    pub follow: Follow,
    /// How far the guest is.
    pub passage: Passage,
    /// Since when it is paused.
    pub downtime: Downtime,
    /// What is known of it in post-copy.
    pub ahead: Ahead,
    /// It runs at the source, and is to run at the target.
    pub was_running: bool,
    /// What was done on the way, and why.
    pub deeds: Vec<(Deed, Why)>,
    has_told_sent: bool,
    /// When memory was told last, if the end was near then.
    told_close_ms: Option<u64>,
}

impl Migration {
    /// One that has not begun, on a line of which this was said.
    #[must_use]
    pub fn new(promise: Promise, allowed: Allowed, line: Option<Estimate>) -> Migration {
        Migration {
            promise,
            outlook: Outlook::new(promise, allowed, line),
            follow: Follow::of_earlier(promise, &[]),
            passage: Passage::default(),
            downtime: Downtime::default(),
            ahead: Ahead::new(promise.deadline),
            was_running: true,
            deeds: Vec::new(),
            has_told_sent: false,
            told_close_ms: None,
        }
    }

    /// Takes in a look at the source; says what is to be done, in this order. After [`Action::Arrive`] and [`Action::End`] it is not
    /// looked at any more.
    pub fn see(&mut self, seen: &Seen<'_>) -> Vec<Action> {
        let Seen { told, .. } = *seen;
        let Sample { phase, at_ms, .. } = told.sample;
        if phase == Phase::Done && !seen.is_told {
            return vec![Action::Arrive];
        }
        let mut actions = Vec::new();
        if phase != Phase::Precopy || self.told_close_ms.is_none_or(|last| at_ms >= last + TELL_MS) {
            self.told_close_ms = None;
            actions.push(Action::Tell(Event::Memory(told.clone())));
        }
        let is_paused = self.is_paused(phase);
        self.downtime.see(is_paused, phase, at_ms);
        // Better off where it was; in post-copy there is no way back.
        if is_paused && self.downtime.is_too_long(self.promise.downtime_max, at_ms) {
            actions.push(Action::End(Halt::Failed(TOO_LONG.into())));
            return actions;
        }
        actions.extend([Action::Attend, Action::KeepShare]);
        if !self.has_told_sent && self.is_as_good_as_sent(seen) {
            self.has_told_sent = true;
            actions.push(Action::Tell(Event::Sent));
        }
        match self.passage.act(told) {
            Act::Follow if seen.is_stopped => actions.push(Action::End(Halt::Stopped)),
            Act::Follow => self.follow_on(seen, &mut actions),
            Act::Wait => {}
            Act::HandOver => actions.push(Action::HandOver),
            Act::LetGo => {
                self.passage.is_in_postcopy();
                actions.push(Action::LetGo);
            }
            Act::SeeAfter => {
                self.passage.is_in_postcopy();
                let words = self.ahead.too_late(seen.is_stopped);
                actions.extend(words.map(|words| Action::Tell(Event::Note(words.into()))));
                actions.push(Action::SeeAfter);
            }
            Act::Arrive => actions.push(Action::Arrive),
            Act::Fail => actions.push(Action::End(Halt::Failed(told.why()))),
        }
        actions
    }

    /// Until the next look, after this one.
    pub fn pause(&mut self, sample: &Sample) -> Pause {
        // One that goes ahead is paused until it is started.
        if sample.phase == Phase::Switchover || self.passage.goes_ahead() {
            return Pause::Still;
        }
        if !self.follow.is_close(sample) {
            self.told_close_ms = None;
            return Pause::Usual;
        }
        self.told_close_ms.get_or_insert(sample.at_ms);
        Pause::Close
    }

    /// Sent ahead it was paused before, and is until post-copy begins.
    fn is_paused(&self, phase: Phase) -> bool {
        let is_sent_ahead = self.passage.goes_ahead() && self.was_running;
        phase == Phase::Switchover || (is_sent_ahead && matches!(phase, Phase::Setup | Phase::Precopy))
    }

    /// Whether the line is for others. Over a link the next takes some round trips before it sends: it begins while this one is paused,
    /// if all of this one is on its way by then and what was lost of it goes again.
    fn is_as_good_as_sent(&self, seen: &Seen<'_>) -> bool {
        let sample = &seen.told.sample;
        match (sample.phase, seen.overlap) {
            (Phase::Done, _) => true,
            (Phase::Switchover, Some(overlap)) if !self.passage.goes_ahead() => {
                let sent = self.follow.rate().map(|rate| rate * overlap.as_secs_f64());
                let is_on_its_way = sent.is_some_and(|sent| sample.left_bytes as f64 <= sent);
                is_on_its_way && self.downtime.lasts(sample.at_ms) >= overlap
            }
            _ => false,
        }
    }

    fn follow_on(&mut self, seen: &Seen<'_>, actions: &mut Vec<Action>) {
        let sample = &seen.told.sample;
        let line = self.follow.rate().unwrap_or(self.outlook.line().likely);
        if sample.phase == Phase::Precopy && in_step(sample.left_bytes, line) {
            actions.push(Action::KeepInStep);
        }
        let found = self.follow.see(seen, self.passage.goes_ahead(), &mut self.outlook);
        self.deeds.extend(found.iter().filter_map(|action| match action {
            Action::Tell(Event::Did(deed, why)) => Some((*deed, *why)),
            _ => None,
        }));
        actions.extend(found);
    }
}

#[cfg(test)]
mod tests;
