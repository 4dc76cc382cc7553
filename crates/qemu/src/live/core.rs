//! What a move by QEMU's monitors and one by libvirt have in common: what is wanted, what is told, and what `drover-live` decides of
//! it. Each of both is an [`Adapter`] that looks at its sides and carries out what comes of that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drover_live::together::Beforehand;
use drover_live::{
    Ahead, Allowed, Between, By, Carries, Choice, Deed, Ease, Event, Facts, Follow, Handover, Loads, Look,
    Mend, Mending, Moved, Outlook, Phase, Promise, RATE_UNLIMITED, Sample, Seen, Side, Todo, Told, Why,
    channels_within, excess, facts_before, facts_under_way,
};
use drover_types::Estimate;

use super::carried::Carried;
use super::run::{Ending, Wanted};
use super::share::Share;
use super::still::Still;
use super::turn::{Dated, Turn};
use crate::error::{QemuError, QemuErrorKind};

/// For which the guest's writing is watched before it moves.
pub(super) const WATCH_S: u64 = 1;
/// Connections on a line of which nothing is known.
const CHANNELS: u8 = 4;

/// What moves a guest: the monitors of two QEMUs, or two daemons of libvirt.
pub(super) trait Adapter<'a> {
    /// What a look at both sides found.
    type Findings: Clone;

    fn core(&self) -> &Core<'a>;
    fn core_mut(&mut self) -> &mut Core<'a>;

    /// Looks at both sides, and measures. Changes nothing.
    fn inspect(&mut self) -> Result<Facts, Ending>;

    /// What was found, with the facts that came of it.
    fn findings(&self, facts: Facts) -> Self::Findings;

    /// What was found before this move was made, if it was looked at then.
    fn found_before(&self) -> Option<Dated<Self::Findings>>;

    /// Goes on with what was found, as if it was just looked at.
    fn take(&mut self, found: Self::Findings) -> Facts;

    /// What the way takes of the downtime beside the last pass.
    fn handover(&self) -> Handover;

    /// Connections for its memory.
    fn channels(&self) -> u8;

    /// Bytes of disks that are copied.
    fn disk_bytes(&self) -> u64;

    /// Bytes of memory that are free at the target, where that is told.
    fn free_bytes(&self) -> Option<u64> {
        None
    }

    /// Sends the guest ahead of its memory.
    fn start_postcopy(&mut self) -> Result<(), Ending>;

    /// Slows the guest down, of which so many bytes a second are sent.
    fn slow_down(&mut self, rate: f64) -> Result<(), Ending>;

    /// Sends no more bytes a second than this: slower than may be, or no more so.
    fn send_eased(
        &mut self,
        follow: &mut Follow,
        eased: (u64, bool),
        words: Option<String>,
    ) -> Result<(), Ending>;

    /// Has a side see that the line of post-copy is gone; whether it does. One that has seen it meanwhile, or cannot at this
    /// moment, refuses.
    fn pause_line(&mut self, side: Side) -> bool;

    /// Begins to make the line of post-copy anew.
    fn try_line(&mut self, look: &Look) -> Result<(), QemuError>;

    /// What lies between both sides.
    fn between(&self) -> Between {
        self.core().between(self.handover())
    }

    /// Looks at both sides, measures, chooses. Changes nothing.
    fn look(&mut self) -> Result<Plan, Ending> {
        let facts = self.inspect()?;
        self.plan(&facts)
    }

    /// What is done with a guest of which this is known.
    fn plan(&mut self, facts: &Facts) -> Result<Plan, Ending> {
        let (between, channels) = (self.between(), self.channels());
        self.core_mut().plan(facts, &between, channels)
    }

    /// What is known of a guest that writes so many bytes a second, where that is told.
    fn facts(&mut self, memory_bytes: u64, dirty: Option<f64>) -> Facts {
        let between = self.between();
        let core = self.core_mut();
        if dirty.is_none() {
            let by = core.by_word();
            core.note(format!("this {by} does not tell how fast the guest writes: it is seen on the way"));
        }
        core.tell_loads(&between);
        facts_before(memory_bytes, dirty, between.overhead(&core.promise()))
    }

    /// Looks for a move that begins later, with others.
    fn beforehand(&mut self) -> Result<(Beforehand, Dated<Self::Findings>), Ending> {
        let facts = self.inspect()?;
        let known = Beforehand {
            facts,
            channels: self.channels(),
            disk_bytes: self.disk_bytes(),
            under_way: None,
            free_bytes: self.free_bytes(),
            pace: self.between().pace(),
        };
        Ok((known, Dated::now(self.findings(facts))))
    }

    /// The same of one that an earlier run began, of whose memory so much is left; nothing of one that has moved.
    fn left_to_do(&self, under_way: &'static str, sample: &Sample) -> Beforehand {
        let between = self.between();
        let facts = facts_under_way(sample, between.overhead(&self.core().promise()));
        let under_way = Some(under_way);
        Beforehand { facts, channels: 1, disk_bytes: 0, under_way, free_bytes: None, pace: between.pace() }
    }

    /// Looks, unless that was done a moment ago.
    fn looked(&mut self) -> Result<Dated<Facts>, Ending> {
        match self.found_before().filter(|found| !found.is_old()) {
            Some(found) => found.map(|found| Ok(self.take(found))),
            None => Ok(Dated::now(self.inspect()?)),
        }
    }

    /// What is to be done after a look at memory on its way.
    fn carry_out(&mut self, follow: &mut Follow, looked: &Looked<'_>) -> Result<(), Ending> {
        for todo in self.core_mut().follow(follow, looked) {
            match todo {
                Todo::SendAhead => self.start_postcopy()?,
                Todo::Bound { rate, is_eased, words } => self.send_eased(follow, (rate, is_eased), words)?,
                Todo::Do(deed, why) => match self.core_mut().does(deed, why)? {
                    Deed::Throttle => self.slow_down(why.rate)?,
                    Deed::PostCopy => self.start_postcopy()?,
                    Deed::GiveUp => {}
                },
                Todo::Tell(choice) => self.core_mut().foresees(choice, false)?,
                Todo::CallBack(choice) => self.core_mut().foresees(choice, true)?,
            }
        }
        Ok(())
    }

    /// What is to be done after a look at both sides of post-copy, of whose line the source says this.
    fn mend(&mut self, look: &Look, why: Option<&str>) -> Result<(), Ending> {
        let asked = Instant::now();
        match self.core_mut().ahead.see(*look, why) {
            Mend::Wait => {}
            Mend::Tell(mending) => self.core_mut().tell(Event::Mending(mending)),
            Mend::Pause(side) => {
                if self.pause_line(side) {
                    self.core_mut().tell(Event::Mending(Mending::Told(side)));
                }
            }
            Mend::Try(number) => {
                self.core_mut().tell(Event::Mending(Mending::Tries { number }));
                if let Err(error) = self.try_line(look) {
                    let at_ms = look.at_ms.saturating_add(millis(asked.elapsed()));
                    self.core_mut().try_refused(number, &error, at_ms);
                }
            }
            Mend::Lost(side) => return Err(self.core_mut().loses(side)),
            Mend::Stopped => return Err(Ending::Stopped),
            Mend::GiveUp(why) => return Err(Ending::Failed(self.core().failed(&why))),
        }
        Ok(())
    }
}

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
    /// What is known of it in post-copy.
    pub ahead: Ahead,
    /// The QEMU of this side ended in post-copy, and with it what only it had.
    pub lost: Option<Side>,
    /// Bytes a second that it keeps, of those that it shares with others.
    pub keeps: Option<u64>,
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
        let ahead = Ahead::new(wanted.promise.deadline);
        let (lost, keeps) = (None, None);
        Core { wanted, stop, tell, by, outlook, deeds, was_running: true, still, ahead, lost, keeps, link }
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
    fn between(&self, handover: Handover) -> Between {
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
    fn tell_loads(&mut self, between: &Between) {
        let Between { loads: Loads { source, target }, .. } = between;
        let longer = between.busy();
        let is_untold = source.is_none() || target.is_none();
        if longer.likely > 0.0 || is_untold {
            self.tell(Event::Busy { loads: between.loads, longer });
        }
    }

    /// What is done with a guest of which this is known.
    fn plan(&mut self, facts: &Facts, between: &Between, channels: u8) -> Result<Plan, Ending> {
        let facts = Facts { rate: self.line(), overhead: between.overhead(&self.promise()), ..*facts };
        let choice = self.outlook.choose(&facts, channels);
        self.tell(Event::Chosen(Box::new(choice.clone())));
        let plan = Plan { choice: kept(choice)?, facts };
        // libvirt alone takes longer than a line to be measured.
        if self.by == By::Qemu
            && let Some(below_s) = self.outlook.bound(&plan.choice)
        {
            self.note(format!(
                "what the line carries is not said (--line): memory takes less than {below_s:.1} s, or is foreseen anew after its first second"
            ));
        }
        Ok(plan)
    }

    /// Who moves the guest, in a word.
    fn by_word(&self) -> &'static str {
        match self.by {
            By::Qemu => "QEMU",
            By::Libvirt => "libvirt",
        }
    }

    /// What is to be done after a look at memory on its way.
    fn follow(&mut self, follow: &mut Follow, looked: &Looked<'_>) -> Vec<Todo> {
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
    fn foresees(&mut self, choice: Choice, is_to_be_kept: bool) -> Result<(), Ending> {
        self.tell(Event::Chosen(Box::new(choice.clone())));
        if is_to_be_kept { kept(choice).map(drop) } else { Ok(()) }
    }

    /// Something is done to keep the promise.
    fn does(&mut self, deed: Deed, why: Why) -> Result<Deed, Ending> {
        self.tell(Event::Did(deed, why));
        self.deeds.push((deed, why));
        if deed == Deed::GiveUp { Err(Ending::GivenUp(why)) } else { Ok(deed) }
    }

    /// What may be done to keep the promise, of what is allowed now: a move under way keeps what it was begun with.
    pub fn deeds_left(&mut self, begun_with: Allowed) -> Vec<Deed> {
        let allowed = self.wanted.allowed;
        for word in allowed.too_late(begun_with) {
            self.note(format!("--allow {word} comes too late: the move was begun without it"));
        }
        allowed.of(begun_with).deeds()
    }

    /// What sees to the end of a move over a link: that goes slower, so that little waits before the line when the guest is stopped.
    pub fn easing(&self, facts: &Facts) -> Option<Ease> {
        let (by, _) = Carried::of_data(self.carried())?;
        Some(Ease::new(by.round_trip(), self.promise().deadline, facts.dirty.likely))
    }

    /// Bytes a second of its share that it does not keep yet.
    pub fn new_share(&self) -> Option<u64> {
        let rate = self.wanted.share.as_ref()?.rate();
        (self.keeps != Some(rate)).then_some(rate)
    }

    /// Tells that it keeps this share, if it has one.
    pub fn tell_share(&mut self, rate: Option<u64>) {
        let (Some(rate), Some(_)) = (rate, &self.wanted.share) else { return };
        self.keeps = Some(rate);
        self.tell(Event::Share(rate));
    }

    /// A new line of post-copy was refused.
    pub fn try_refused(&mut self, number: u32, error: &QemuError, at_ms: u64) {
        let mending = self.ahead.refused(number, error.chain(), at_ms);
        self.tell(Event::Mending(mending));
    }

    /// What made the line of post-copy anew has ended.
    pub fn try_ended(&mut self, ended: &Result<(), QemuError>, at_ms: u64) {
        if let (Some(number), Err(error)) = (self.ahead.try_ended(), ended) {
            self.try_refused(number, error, at_ms);
        }
    }

    /// Says, once, to somebody who wants to stop it that a guest in post-copy cannot be called back.
    pub fn say_that_it_is_too_late(&mut self) {
        let words = self.ahead.too_late(self.is_stopped());
        words.into_iter().for_each(|words| self.note(words));
    }

    /// The guest runs at the target.
    pub fn moved(&mut self, total: Duration, stood_still: Option<Duration>, last: Told) -> Moved {
        Moved {
            foreseen: self.outlook.foreseen(),
            foreseen_below_s: self.outlook.below_s().filter(|_| self.by == By::Qemu),
            total,
            downtime_by_qemu: last.downtime_ms.map(Duration::from_millis),
            stood_still,
            last,
            deeds: std::mem::take(&mut self.deeds),
        }
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

    /// In post-copy this side's QEMU has ended.
    pub fn loses(&mut self, side: Side) -> Ending {
        self.lost = Some(side);
        Ending::Failed(self.failed(&format!("the {side}'s QEMU ended in post-copy")))
    }

    /// Says that so many connections may send beyond a bound, where they do not keep it.
    pub fn note_excess(&mut self, channels: u8) {
        let words = self.rate_max().and_then(|rate| excess_words(channels, rate));
        words.into_iter().for_each(|words| self.note(words));
    }
}

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
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
