//! What a move by QEMU's monitors and one by libvirt have in common: what is wanted, what is told, and what `drover-live` decides of
//! it. Each of both is an [`Adapter`] that looks at its sides and carries out what comes of that, and has a [`Lifecycle`] around it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drover_live::together::Beforehand;
use drover_live::{
    Action, Allowed, Between, By, Carries, Choice, Deed, Downtime, Ease, Event, Facts, Follow, Found, Half,
    Halt, Handover, Loads, Look, Mending, Migration, Moved, Passage, Pause, Phase, Promise, RATE_UNLIMITED,
    Sample, Seen, Side, Told, Where, channels_within, excess, facts_before, facts_under_way,
};
use drover_types::Estimate;

use super::carried::{Carried, Hurry};
use super::run::{Ending, LiveError, Wanted};
use super::share::Share;
use super::turn::{Dated, Turn};
use crate::error::{QemuError, QemuErrorKind};

/// For which the guest's writing is watched before it moves.
pub(super) const WATCH_S: u64 = 1;
/// Connections on a line of which nothing is known.
const CHANNELS: u8 = 4;

/// What is known before a move, and what was found for it.
type Known<F> = (Beforehand, Option<Dated<F>>);

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

    /// Looks at memory on its way; nothing where the source does not answer for a while.
    fn look_on(&mut self) -> Result<Option<Glance>, Ending>;

    /// Until the next look.
    fn pause(&mut self, pause: Pause) -> Result<(), Ending>;

    /// Sends no more than its share, which may be another than it was.
    fn keep_share(&mut self, phase: Phase) -> Result<(), Ending>;

    /// Sends the guest ahead of its memory.
    fn start_postcopy(&mut self) -> Result<(), Ending>;

    /// Slows the guest down, of which so many bytes a second are sent.
    fn slow_down(&mut self, rate: f64) -> Result<(), Ending>;

    /// Sends no more bytes a second than this: slower than may be, or no more so.
    fn send_eased(&mut self, eased: (u64, bool), words: Option<String>) -> Result<(), Ending>;

    /// The guest stands still in post-copy, and the source has ended it: it is started at the target, if it can be yet.
    fn let_go(&mut self) -> Result<(), Ending>;

    /// How both sides of post-copy stand, and what the source says of its line, where it says anything.
    fn halves(&mut self, told: &Told) -> ([Half; 2], Option<String>);

    /// Has a side see that the line of post-copy is gone; whether it does. One that has seen it meanwhile, or cannot at this
    /// moment, refuses.
    fn pause_line(&mut self, side: Side) -> bool;

    /// Begins to make the line of post-copy anew, whose target stands so.
    fn try_line(&mut self, target: Half) -> Result<(), QemuError>;

    /// Heeds what somebody else does to the guest and its disks meanwhile.
    fn attend(&mut self, _told: &Told) -> Result<(), Ending> {
        Ok(())
    }

    /// Has the guest's writes to its disks wait for the target from now on, if they are mirrored and do not yet.
    fn keep_in_step(&mut self) {}

    /// The guest is paused: its disks are handed over, and the source goes on, where it waits for that.
    fn hand_over(&mut self) -> Result<(), Ending> {
        Ok(())
    }

    /// What the last bytes take on their way, where the next move may begin meanwhile.
    fn overlap(&self) -> Option<Duration> {
        None
    }

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

    /// Follows memory to its end; gives what was told last. Looks, does what comes of that, and looks again.
    fn drive(&mut self) -> Result<Told, Ending> {
        loop {
            let looked = self.look_on()?;
            let is_up = self.core_mut().look_at_link();
            let Some(looked) = looked else {
                self.core().halt_if_stopped()?;
                self.pause(Pause::Usual)?;
                continue;
            };
            let overlap = self.overlap();
            for action in self.core_mut().see(&looked, is_up, overlap) {
                if matches!(action, Action::Arrive) {
                    return Ok(looked.told);
                }
                self.carry_out(action, &looked.told)?;
            }
            let pause = self.core_mut().state.pause(&looked.told.sample);
            self.pause(pause)?;
        }
    }

    fn carry_out(&mut self, action: Action, told: &Told) -> Result<(), Ending> {
        match action {
            Action::Tell(event) => self.core_mut().tell(event),
            Action::Attend => self.attend(told)?,
            Action::KeepShare => self.keep_share(told.sample.phase)?,
            Action::KeepInStep => self.keep_in_step(),
            Action::SendAhead => {
                self.start_postcopy()?;
                self.core_mut().state.passage.send_ahead();
            }
            Action::Bound { rate, is_eased, words } => self.send_eased((rate, is_eased), words)?,
            Action::SlowDown(rate) => self.slow_down(rate)?,
            Action::HandOver => self.hand_over()?,
            Action::LetGo => self.let_go()?,
            Action::SeeAfter => self.see_after(told)?,
            Action::PauseLine(side) => {
                if self.pause_line(side) {
                    self.core_mut().tell(Event::Mending(Mending::Told(side)));
                }
            }
            Action::TryLine { number, target } => {
                self.core_mut().tell(Event::Mending(Mending::Tries { number }));
                if let Err(error) = self.try_line(target) {
                    self.core_mut().try_refused(number, &error);
                }
            }
            // The loop ends with it.
            Action::Arrive => {}
            Action::End(halt) => return Err(self.core_mut().ends(halt)),
        }
        Ok(())
    }

    /// Looks at both sides of post-copy, and does what is to be done about its line.
    fn see_after(&mut self, told: &Told) -> Result<(), Ending> {
        let ([source, target], why) = self.halves(told);
        let core = self.core_mut();
        let Sample { at_ms, sent_bytes, left_bytes, .. } = told.sample;
        let (is_away, is_stopped) = (core.is_link_waited_for(), core.is_stopped());
        let look = Look { at_ms, source, target, sent_bytes, left_bytes, is_away, is_stopped };
        let action = core.state.ahead.see(look, why.as_deref());
        action.map_or(Ok(()), |action| self.carry_out(action, told))
    }
}

/// A move from its begin to its end.
pub(super) trait Lifecycle<'a>: Adapter<'a> {
    /// Waits until both sides can be asked, if there is time.
    fn wait_for_link(&self) {}

    /// What an earlier run left of a move between both. Changes nothing.
    fn find(&mut self) -> Result<Found, QemuError>;

    /// What the source told last of memory on its way.
    fn sent(&mut self) -> Result<Sample, QemuError>;

    /// What a look ended in, or a move of which no memory was sent.
    fn unsent(&mut self, cause: Ending) -> LiveError;

    /// Chooses when what it may send is known. Looks before, unless that was done a moment ago.
    fn look_in_turn(&mut self) -> Result<Dated<Plan>, Ending>;

    /// Moves it.
    fn go(&mut self, plan: Dated<Plan>) -> Result<Moved, Ending>;

    /// Learns of a move under way what its first run knew. Changes nothing.
    fn prepare(&mut self, _found: &Found) -> Result<(), Ending> {
        Ok(())
    }

    /// Ends what an earlier run began.
    fn take_over(&mut self, found: &Found) -> Result<Moved, Ending>;

    /// Brings what was begun to an end. It may be too late to stop it: then the guest has moved.
    fn settle(&mut self, cause: Ending) -> Result<Moved, LiveError>;

    /// What was set for the move is as it was before.
    fn put_back(&mut self, _ended: &Result<Moved, LiveError>) {}

    /// Moves it, or sees an earlier move to its end.
    fn run(&mut self) -> Result<Moved, LiveError> {
        self.wait_for_link();
        let found =
            self.find().map_err(|error| LiveError { cause: error.into(), guest_at: Where::Unknown })?;
        let ended = match &found {
            Found::Nothing => {
                let plan = self.look_in_turn().map_err(|cause| self.unsent(cause))?;
                self.go(plan)
            }
            Found::Unclear(unclear) => return Err(LiveError::of_look(Ending::Unclear(*unclear))),
            Found::Sending | Found::Ahead | Found::Broken | Found::Arrived | Found::Moved => {
                self.core_mut().note(found.words());
                // Nothing was touched if that fails: it goes on as it did.
                self.prepare(&found).map_err(|cause| LiveError { cause, guest_at: found.guest_at() })?;
                self.core_mut().state.passage = Passage::sent();
                self.take_over(&found)
            }
        };
        let ended = ended.or_else(|cause| self.settle(cause));
        self.put_back(&ended);
        ended
    }

    /// Looks at both sides and says what a move would take, or what an earlier run left to do.
    fn foresee(&mut self) -> Result<Option<Choice>, LiveError> {
        match self.find().map_err(|error| LiveError::of_look(error.into()))? {
            Found::Nothing => {
                let looked = self.look().map(|plan| Some(plan.choice));
                looked.map_err(|cause| self.unsent(cause))
            }
            Found::Unclear(unclear) => Err(LiveError::of_look(Ending::Unclear(unclear))),
            found => {
                self.core_mut().note(found.words());
                Ok(None)
            }
        }
    }

    /// Looks for a move that begins later, with others. What was found is given too, but of a move that is under way.
    fn look_beforehand(&mut self) -> Result<Known<Self::Findings>, LiveError> {
        let unknown = |error: QemuError| LiveError::of_look(error.into());
        match self.find().map_err(unknown)? {
            Found::Nothing => {
                let (known, found) = self.beforehand().map_err(|cause| self.unsent(cause))?;
                Ok((known, Some(found)))
            }
            Found::Unclear(unclear) => Err(LiveError::of_look(Ending::Unclear(unclear))),
            found => {
                let sample = self.sent().map_err(unknown)?;
                Ok((self.left_to_do(found.words(), &sample), None))
            }
        }
    }
}

/// One move, as far as it is the same whoever moves the guest.
pub(super) struct Core<'a> {
    pub wanted: &'a Wanted,
    pub stop: &'a AtomicBool,
    tell: &'a mut dyn FnMut(Event),
    by: By,
    /// How far it is, and what is decided of it.
    pub state: Migration,
    /// When its memory began to go.
    pub began: Instant,
    /// What carries it hurries, while the guest is paused.
    hurry: Option<Hurry>,
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
pub(super) struct Glance {
    pub told: Told,
    /// That is of this move.
    pub is_told: bool,
    /// What is said to the source is done so much later than what it told.
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
        let link = match by {
            // Its monitor is there by it already.
            By::Qemu => LinkSeen::Up,
            By::Libvirt => LinkSeen::Never,
        };
        let state = Migration::new(wanted.promise, wanted.allowed, wanted.line);
        let (began, hurry, lost, keeps) = (Instant::now(), None, None, None);
        Core { wanted, stop, tell, by, state, began, hurry, lost, keeps, link }
    }

    /// Its memory begins to go, or to be watched.
    pub fn begins(&mut self, follow: Follow) {
        (self.began, self.state.follow) = (Instant::now(), follow);
    }

    /// Milliseconds since it began.
    pub fn now_ms(&self) -> u64 {
        millis(self.began.elapsed())
    }

    /// For how long the guest is paused to be handed over.
    pub fn is_paused_for(&self) -> Duration {
        self.state.downtime.lasts(self.now_ms())
    }

    /// The guest is waited for no more.
    pub fn rests(&mut self) {
        (self.state.downtime, self.hurry) = (Downtime::default(), None);
    }

    /// While the guest is paused what carries the move hurries, for a while.
    pub fn hurry(&mut self) {
        match self.state.downtime.hurries(self.now_ms()) {
            false => self.hurry = None,
            true if self.hurry.is_none() => {
                self.hurry = self.carried().and_then(|carried| carried.by.hurry())
            }
            true => {}
        }
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
        let line = self.state.outlook.line();
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
        let choice = self.state.outlook.choose(&facts, channels);
        self.tell(Event::Chosen(Box::new(choice.clone())));
        let plan = Plan { choice: kept(choice)?, facts };
        // libvirt alone takes longer than a line to be measured.
        if self.by == By::Qemu
            && let Some(below_s) = self.state.outlook.bound(&plan.choice)
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
    fn see(&mut self, looked: &Glance, is_up: bool, overlap: Option<Duration>) -> Vec<Action> {
        let actions = self.state.see(&Seen {
            told: &looked.told,
            is_told: looked.is_told,
            is_up,
            rate_max: self.rate_max().unwrap_or(RATE_UNLIMITED),
            late: looked.late,
            is_stopped: self.is_stopped(),
            overlap,
        });
        self.hurry();
        actions
    }

    /// It is to end, for this.
    fn ends(&mut self, halt: Halt) -> Ending {
        match halt {
            Halt::Stopped => Ending::Stopped,
            Halt::GivenUp(why) => Ending::GivenUp(why),
            Halt::Promise(choice) => Ending::Promise(choice),
            Halt::Lost(side) => self.loses(side),
            Halt::Failed(why) => Ending::Failed(self.failed(&why)),
        }
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
    pub fn try_refused(&mut self, number: u32, error: &QemuError) {
        let mending = self.state.ahead.refused(number, error.chain(), self.now_ms());
        self.tell(Event::Mending(mending));
    }

    /// What made the line of post-copy anew has ended.
    pub fn try_ended(&mut self, ended: &Result<(), QemuError>) {
        if let (Some(number), Err(error)) = (self.state.ahead.try_ended(), ended) {
            self.try_refused(number, error);
        }
    }

    /// The guest runs at the target.
    pub fn moved(&self, total: Duration, stood_still: Option<Duration>, last: Told) -> Moved {
        Moved {
            foreseen: self.state.outlook.foreseen(),
            foreseen_below_s: self.state.outlook.below_s().filter(|_| self.by == By::Qemu),
            total,
            downtime_by_qemu: last.downtime_ms.map(Duration::from_millis),
            stood_still,
            last,
            deeds: self.state.deeds.clone(),
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

    /// Whether what the target would be asked waits until it can be reached again.
    pub fn is_link_waited_for(&self) -> bool {
        self.carried().is_some_and(|carried| carried.by.is_waited_for())
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
