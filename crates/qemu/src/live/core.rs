//! What a move by QEMU's monitors and one by libvirt have in common: what is wanted, what is told, and what `drover-live` decides of
//! it. Each of both is an adapter that looks at its sides and carries out what comes of that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use drover_live::{
    Between, By, Carries, Choice, Deed, Facts, Follow, Handover, Loads, Outlook, Phase, Promise,
    RATE_UNLIMITED, Seen, Todo, Why, channels_within, excess,
};
use drover_types::Estimate;

use super::carried::Carried;
use super::guest::Told;
use super::run::{Ending, Event, Wanted};
use super::share::Share;
use super::still::Still;
use super::turn::Turn;
use crate::error::{QemuError, QemuErrorKind};

/// For which the guest's writing is watched before it moves.
pub(super) const WATCH_S: u64 = 1;
/// Connections on a line of which nothing is known.
const CHANNELS: u8 = 4;

/// One move, as far as it is the same whoever moves the guest.
pub(super) struct Core<'a> {
    pub wanted: &'a Wanted,
    pub stop: &'a AtomicBool,
    tell: &'a mut dyn FnMut(Event),
    by: By,
    pub outlook: Outlook,
    pub deeds: Vec<(Deed, Why)>,
    /// As it was at the source.
    pub was_running: bool,
    /// The guest stands still to be handed over.
    pub still: Still,
    link: LinkSeen,
}

/// What was seen last of what carries the move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkSeen {
    /// It begins with the first connection.
    Never,
    Up,
    Away,
}

/// What is done, and what it was chosen from.
pub(super) struct Plan {
    pub choice: Choice,
    pub facts: Facts,
}

impl Plan {
    pub fn channels(&self) -> u8 {
        self.choice.course.as_ref().map_or(1, |course| course.channels)
    }
}

/// A look at memory on its way, as an adapter has it.
pub(super) struct Looked<'a> {
    pub told: &'a Told,
    pub is_up: bool,
    pub is_told: bool,
    pub goes_ahead: bool,
    pub late: Duration,
}

/// Connections, where so many are asked for or none is named, and so much may be sent in a second.
pub fn channels_wanted(asked: Option<u8>, rate_max: Option<u64>) -> u8 {
    asked.unwrap_or_else(|| rate_max.map_or(CHANNELS, |rate| channels_within(rate, CHANNELS)))
}

/// Fails with a choice that keeps no promise.
fn kept(choice: Choice) -> Result<Choice, Ending> {
    match choice.course {
        Some(_) => Ok(choice),
        None => Err(Ending::Promise(Box::new(choice))),
    }
}

impl<'a> Core<'a> {
    pub fn new(wanted: &'a Wanted, by: By, stop: &'a AtomicBool, tell: &'a mut dyn FnMut(Event)) -> Core<'a> {
        let outlook = Outlook::new(wanted.promise, wanted.allowed, wanted.line);
        let link = match by {
            // Its monitor is there by it already.
            By::Qemu => LinkSeen::Up,
            By::Libvirt => LinkSeen::Never,
        };
        let (deeds, still) = (Vec::new(), Still::default());
        Core { wanted, stop, tell, by, outlook, deeds, was_running: true, still, link }
    }

    pub fn tell(&mut self, event: Event) {
        (self.tell)(event);
    }

    pub fn note(&mut self, text: impl Into<String>) {
        self.tell(Event::Note(text.into()));
    }

    pub fn promise(&self) -> Promise {
        self.wanted.promise
    }

    pub fn carried(&self) -> Option<&'a Carried> {
        self.wanted.carried.as_ref()
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub fn halt_if_stopped(&self) -> Result<(), Ending> {
        if self.is_stopped() { Err(Ending::Stopped) } else { Ok(()) }
    }

    /// So many moves go at once.
    fn at_once(&self) -> usize {
        self.wanted.turn.as_ref().map_or(1, Turn::at_once)
    }

    /// Bytes a second that may be sent, now: the share, or what was said where there is none.
    pub fn rate_max(&self) -> Option<u64> {
        self.wanted.share.as_ref().map_or(self.wanted.rate_max, |share| Some(share.rate()))
    }

    /// What the line carries, of which the share lets so much through.
    pub fn line(&self) -> Estimate {
        let line = self.outlook.line();
        match self.wanted.share.as_ref().map(Share::rate) {
            Some(rate) if (rate as f64) < line.likely => Estimate { likely: rate as f64, spread: 0.0 },
            Some(_) | None => line,
        }
    }

    /// What lies between both sides.
    pub fn between(&self, handover: Handover) -> Between {
        let carried = self.carried();
        let carries = match carried.map(|carried| carried.ends.is_some()) {
            None => Carries::Nothing,
            Some(true) => Carries::All,
            Some(false) => Carries::Monitor,
        };
        let round_trip = carried.map(|carried| carried.by.round_trip()).unwrap_or_default();
        let (at_once, loads) = (self.at_once(), self.wanted.loads);
        Between { carries, round_trip, at_once, handover, loads, by: self.by }
    }

    /// Tells how busy both hosts are, where that makes a downtime longer, and where it is not known.
    pub fn tell_loads(&mut self, between: &Between) {
        let Between { loads: Loads { source, target }, .. } = between;
        let longer = between.busy();
        let is_untold = source.is_none() || target.is_none();
        if longer.likely > 0.0 || is_untold {
            self.tell(Event::Busy { loads: between.loads, longer });
        }
    }

    /// What is done with a guest of which this is known.
    pub fn plan(&mut self, facts: &Facts, between: &Between, channels: u8) -> Result<Plan, Ending> {
        let facts = Facts { rate: self.line(), overhead: between.overhead(&self.promise()), ..*facts };
        let choice = self.outlook.choose(&facts, channels);
        self.tell(Event::Chosen(Box::new(choice.clone())));
        Ok(Plan { choice: kept(choice)?, facts })
    }

    /// What is to be done after a look at memory on its way. What is foreseen anew is told here; it fails if the promise cannot be kept.
    pub fn follow(&mut self, follow: &mut Follow, looked: &Looked<'_>) -> Vec<Todo> {
        let seen = Seen {
            sample: &looked.told.sample,
            share_in_use: looked.told.share_in_use(),
            is_up: looked.is_up,
            is_told: looked.is_told,
            goes_ahead: looked.goes_ahead,
            rate_max: self.rate_max().unwrap_or(RATE_UNLIMITED),
            late: looked.late,
        };
        follow.see(&seen, &mut self.outlook)
    }

    /// Another forecast. The line is known now: is the promise still one?
    pub fn foresees(&mut self, choice: Choice, is_to_be_kept: bool) -> Result<(), Ending> {
        self.tell(Event::Chosen(Box::new(choice.clone())));
        if is_to_be_kept { kept(choice).map(drop) } else { Ok(()) }
    }

    /// Something is done to keep the promise.
    pub fn does(&mut self, deed: Deed, why: Why) -> Result<Deed, Ending> {
        self.tell(Event::Did(deed, why));
        self.deeds.push((deed, why));
        if deed == Deed::GiveUp { Err(Ending::GivenUp(why)) } else { Ok(deed) }
    }

    /// Whether what carries the move does; tells when that changes.
    pub fn look_at_link(&mut self) -> bool {
        let Some(carried) = self.carried() else { return true };
        let now = if carried.by.is_up() { LinkSeen::Up } else { LinkSeen::Away };
        let before = self.link;
        if (before, now) == (LinkSeen::Never, LinkSeen::Away) {
            return true;
        }
        self.link = now;
        let is_up = now == LinkSeen::Up;
        if before != now && before != LinkSeen::Never {
            self.tell(Event::Link { site: carried.by.site().to_string(), is_up });
        }
        is_up
    }

    /// A guest that stands still and does not arrive is better off where it was. In post-copy there is no way back.
    pub fn halt_if_still_for_long(&mut self, stands: bool, phase: Phase) -> Result<(), Ending> {
        if !stands {
            self.still.is_over(phase);
            return Ok(());
        }
        let goes_on = self.still.goes_on(self.wanted.carried.as_ref(), self.wanted.promise.downtime_max);
        goes_on.map_err(|why| Ending::Failed(self.failed(why)))
    }

    /// A failure of the move itself.
    pub fn failed(&self, why: &str) -> QemuError {
        let what = match self.by {
            By::Qemu => "the move of the guest's memory",
            By::Libvirt => "the move of the domain",
        };
        QemuError::new(QemuErrorKind::Failed, what).because(why.to_string())
    }

    /// Says that so many connections may send beyond a bound, where they do not keep it.
    pub fn note_excess(&mut self, channels: u8) {
        let words = self.rate_max().and_then(|rate| excess_words(channels, rate));
        words.into_iter().for_each(|words| self.note(words));
    }
}

/// What so many connections may send beyond a bound, where they do not keep it.
fn excess_words(channels: u8, rate_max: u64) -> Option<String> {
    let more = excess(channels) / 1_000_000;
    (channels_within(rate_max, channels) < channels).then(|| {
        format!(
            "{channels} connections may go up to {more} MB/s beyond --rate-max, since QEMU sends whole packets; one keeps it"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::excess_words;

    #[test]
    fn connections_that_do_not_keep_a_bound_are_told_with_what_they_may_send() {
        assert_eq!((excess_words(1, 1 << 20), excess_words(4, 500_000_000)), (None, None));
        let words = excess_words(4, 37_500_000).unwrap();
        assert!(words.contains("4 connections may go up to 20 MB/s beyond --rate-max"), "{words}");
    }
}
