//! A move of a running guest, from a look at both sides to a look at both sides.

mod again;
mod ahead;
mod arrive;
mod beforehand;
mod memory;
mod settle;
#[cfg(test)]
mod tests;
mod words;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use drover_copy::converge::Estimate;
use drover_live::together::Pace;
use drover_live::{
    Ability, Choice, Compression, Deed, Ease, Facts, Forecast, Found, Handover, LOSES_WRITES, Machine,
    Obstacle, Phase, Promise, RATE_UNLIMITED, Sample, Side, SoFar, Watch, Way, Why, channels_within, choose,
    excess, in_step, job_obstacles, loses_writes, obstacles, slow_down, unshared,
};
use serde_json::Value;

use ahead::Ahead;
pub use ahead::Mending;
pub use beforehand::{Beforehand, Looked, look_beforehand};
pub use memory::{MemoryOptions, TlsBy, TlsOptions};
pub(super) use words::domain_at;
pub use words::{DisksBy, Ending, Event, LiveError, LiveOptions, Moved, Where};

use super::carried::{Carried, CarriedEnds, Carrier};
use super::disks::Pair;
use super::guest::{Before, Guest, POLL, Told};
use super::mark::new_mark;
use super::still::Still;
use super::turn::Dated;
use crate::error::{QemuError, QemuErrorKind};

/// Both sides of a move.
struct Move<'a> {
    source: &'a mut Guest,
    target: &'a mut Guest,
    options: &'a LiveOptions,
    stop: &'a AtomicBool,
    tell: &'a mut dyn FnMut(Event),
    can: [Ability; 2],
    pairs: Vec<Pair>,
    /// As it was at the source.
    was_running: bool,
    /// What the source is, as it was looked at.
    machine: Machine,
    /// What was set on both sides before drover did.
    before: [Before; 2],
    foreseen: Forecast,
    /// Seconds below which it is foreseen to stay, until its line is known.
    foreseen_below_s: Option<f64>,
    /// That it has only a bound until then was said, which another look does not say again.
    has_told_bound: bool,
    deeds: Vec<(Deed, Why)>,
    /// Its disks are offered, and their mirrors begun.
    has_mirrored: bool,
    /// The source was told to send the guest's memory. Until then what it says of a move is of an earlier one, perhaps of
    /// that by which the guest came to it.
    has_sent: bool,
    /// It goes ahead in post-copy, and the target has had no leave to run it yet.
    goes_ahead: bool,
    ahead: Ahead,
    /// The target was given leave to run the guest.
    has_let_go: bool,
    /// All of the guest came to the target, and does not run there.
    has_halted: bool,
    /// Whether what carries the move did when it was looked at last.
    was_up: bool,
    /// The target was asked whether the guest is there.
    has_asked: bool,
    /// The guest stands still to be handed over.
    still: Still,
    /// When the target was connected to last, to have the link made anew.
    looked_for_link: Option<Instant>,
    /// Its disks were handed over and the source was told to go on, which it may take a while to do.
    has_handed_over: bool,
    /// Bytes a second that it keeps, of those that it shares with others.
    keeps: Option<u64>,
    /// From here to where the target offers its disks and back, where nothing carries the move.
    round_trip: Option<Duration>,
    /// The guest's writes wait for the target, or that was refused.
    has_got_in_step: bool,
    /// The target offers its disks, and its guest cannot be started while it does.
    is_offered: bool,
}

/// What is done, and what it was chosen from.
pub(super) struct Plan {
    pub choice: Choice,
    pub facts: Facts,
}

impl Plan {
    fn channels(&self) -> u8 {
        self.choice.course.as_ref().map_or(1, |course| course.channels)
    }
}

/// What QEMU says of a guest that runs.
const RUNNING: &str = "running";
/// Looks at memory on its way.
const SAMPLE_PAUSE: Duration = Duration::from_millis(100);
/// The same where little is left.
const CLOSE_PAUSE: Duration = Duration::from_millis(10);
/// For which the guest's writing is watched before it moves.
pub(super) const WATCH_S: u64 = 1;
/// What ends must have ended.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(60);
/// A mirror of a guest that stands still has its last writes under way only.
const MIRROR_END_TIME_MAX: Duration = Duration::from_secs(60);
/// For which the guest stands still beside the last pass: 26 ms in the median of 72 moves, 46 in the worst tenth.
pub(super) const OVERHEAD: Estimate = Estimate { likely: 0.03, spread: 0.02 };
/// Of the promised downtime, kept for what QEMU does not count.
const DOWNTIME_KEPT: Duration = Duration::from_millis(60);
/// For which a link sends what it has taken from QEMU, which counts that as sent.
const LINK_QUEUE: Duration = Duration::from_millis(50);
/// By which that is longer for each other guest that goes at once: each stood 30 to 50 ms longer in the median, and two at a time one in
/// five by 150.
const BESIDE: Duration = Duration::from_millis(150);
/// Connections on a line of which nothing is known.
const CHANNELS: u8 = 4;
/// Of a line that is measured by a second of sending.
const LINE_SPREAD: f64 = 0.2;

/// A move that is foreseen to take no longer may be over before its line is known.
const SOON_S: f64 = 3.0;
/// Between two tries to have a link made anew that nothing but the target's monitor goes over, and for which one is waited.
const LOOK_FOR_LINK_PAUSE: Duration = Duration::from_secs(5);
const LOOK_FOR_LINK_TIME: Duration = Duration::from_secs(2);
/// What is foreseen is told again if it is off by more.
const NEWS_SHARE: f64 = 0.05;

/// Connections, where so many are asked for or none is named, and so much may be sent in a second.
pub fn channels_wanted(asked: Option<u8>, rate_max: Option<u64>) -> u8 {
    asked.unwrap_or_else(|| rate_max.map_or(CHANNELS, |rate| channels_within(rate, CHANNELS)))
}

/// Of a downtime, what a link takes whatever its rate: the last of memory goes there, word of it comes back, the order to
/// start goes there, and something of that may be lost and go again.
fn lag(carried: Option<&Carried>, promise: &Promise) -> Duration {
    let Some(carried) = carried else { return Duration::ZERO };
    // A round trip that was measured on a busy line is no reason to refuse a promise.
    let parts = match carried.ends {
        Some(_) => carried.by.round_trip() * 2 + LINK_QUEUE,
        // The target is asked once more, and told to start.
        None => carried.by.round_trip() * 3,
    };
    parts.min(promise.downtime_max / 2)
}

/// For which the guest stands still beside the last pass.
pub(super) fn overhead(
    carried: Option<&Carried>,
    promise: &Promise,
    at_once: usize,
    handover: Handover,
) -> Estimate {
    let lag = lag(carried, promise) + beside(carried) * others(at_once) + handover.takes();
    let lag = lag.as_secs_f64();
    Estimate { likely: OVERHEAD.likely + lag, spread: OVERHEAD.spread + lag / 2.0 }
}

/// By which a downtime is longer for each other guest that goes at once: what a link has taken of those goes first.
fn beside(carried: Option<&Carried>) -> Duration {
    Carried::of_data(carried).map_or(Duration::ZERO, |_| BESIDE)
}

fn others(at_once: usize) -> u32 {
    u32::try_from(at_once.saturating_sub(1)).unwrap_or(u32::MAX)
}

/// What a move takes beside its sending. The target's monitor is waited for 3 times before its turn, and 4 times from then on.
pub(super) fn pace(carried: Option<&Carried>) -> Pace {
    let round_trip_s = carried.map_or(0.0, |carried| carried.by.round_trip().as_secs_f64());
    Pace {
        prepares_s: 0.1 + round_trip_s * 3.0,
        aside_s: 0.05 + round_trip_s * 4.0,
        beside_s: beside(carried).as_secs_f64(),
    }
}

/// What QEMU may use of a promised downtime. Of what goes over a link some is lost at its very end, and comes two round trips later; and what
/// waits on the line is a round trip more.
pub(super) fn downtime_of_qemu(
    carried: Option<&Carried>,
    promise: &Promise,
    at_once: usize,
    handover: Handover,
) -> Duration {
    let (of_link, parts) = match carried {
        Some(Carried { by, ends: Some(_) }) => {
            (by.round_trip() * 4 + LINK_QUEUE + BESIDE * others(at_once), 10)
        }
        // A last look at the target and the order to start the guest go over it.
        Some(Carried { by, ends: None }) => (by.round_trip() * 3, 10),
        None => (Duration::ZERO, if handover.takes().is_zero() { 2 } else { 10 }),
    };
    let kept = DOWNTIME_KEPT + of_link + handover.takes();
    promise.downtime_max.saturating_sub(kept).max(promise.downtime_max / parts)
}

/// What so many connections may send beyond a bound, where they do not keep it.
pub(super) fn excess_words(channels: u8, rate_max: u64) -> Option<String> {
    let more = excess(channels) / 1_000_000;
    (channels_within(rate_max, channels) < channels).then(|| {
        format!(
            "{channels} connections may go up to {more} MB/s beyond --rate-max, since QEMU sends whole packets; one keeps it"
        )
    })
}

/// What is known of a move once its line was measured: how much of its memory holds something was seen meanwhile, and how fast the
/// guest writes, if it was not before.
pub(super) fn known_on_the_way(facts: &Facts, rate: f64, told: &Told) -> Facts {
    let dirty = match facts.dirty.likely > 0.0 {
        true => facts.dirty,
        false => Estimate { likely: told.sample.dirty_bytes_per_s as f64, spread: 0.0 },
    };
    let sample = &told.sample;
    let left_bytes = (sample.left_bytes as f64 * told.share_in_use()) as u64;
    let so_far = SoFar { seconds: sample.at_ms as f64 / 1000.0, gone_bytes: sample.gone_bytes };
    let used_bytes = sample.gone_bytes.saturating_add(left_bytes);
    Facts { rate: Estimate { likely: rate, spread: rate * LINE_SPREAD }, dirty, used_bytes, so_far, ..*facts }
}

/// Whether another forecast is worth being told.
pub(super) fn is_news(before: &Forecast, now: &Forecast) -> bool {
    let (before_s, now_s) = (before.total.likely, now.total.likely);
    before.converges != now.converges || (now_s - before_s).abs() > before_s * NEWS_SHARE
}

/// Fails with a choice that keeps no promise.
pub(super) fn kept(choice: Choice) -> Result<Choice, Ending> {
    match choice.course {
        Some(_) => Ok(choice),
        None => Err(Ending::Promise(Box::new(choice))),
    }
}

/// Moves a guest, or leaves it where it was.
///
/// # Errors
/// [`LiveError`]: what ended it, and where the guest is.
pub fn live(
    source: &mut Guest,
    target: &mut Guest,
    options: &LiveOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(Event),
) -> Result<Moved, LiveError> {
    let mut one = Move::new(source, target, options, stop, tell);
    one.wait_for_link();
    if let Some(ended) = one.again() {
        // What was set before the first run nobody knows, but credentials of drover's own are removed.
        if ended.is_ok() || one.has_sent {
            one.put_back(&ended);
        }
        return ended;
    }
    let plan = one.look_in_turn().map_err(|cause| one.unsent(cause))?;
    let ended = one.go(plan).or_else(|cause| one.settle(cause));
    one.put_back(&ended);
    ended
}

/// What an earlier run left of a move between these two; changes nothing.
///
/// # Errors
/// If a side cannot be asked.
pub fn left_by_earlier(source: &mut Guest, target: &mut Guest) -> Result<Found, QemuError> {
    again::find(source, target)
}

/// Looks at both sides and says what a move would take, or what an earlier run left to do (nothing is given then); moves
/// nothing.
///
/// # Errors
/// [`LiveError`]: what stands in the way, and where the guest is.
pub fn foresee(
    source: &mut Guest,
    target: &mut Guest,
    options: &LiveOptions,
    tell: &mut dyn FnMut(Event),
) -> Result<Option<Choice>, LiveError> {
    let stop = AtomicBool::new(false);
    let mut one = Move::new(source, target, options, &stop, tell);
    match one.find().map_err(|error| LiveError::of_look(error.into()))? {
        Found::Nothing => {
            let looked = one.look().map(|plan| Some(plan.choice));
            looked.map_err(|cause| one.unsent(cause))
        }
        Found::Unclear(unclear) => Err(LiveError::of_look(Ending::Unclear(unclear))),
        found => {
            one.note(again::words(&found));
            Ok(None)
        }
    }
}

impl<'a> Move<'a> {
    fn new(
        source: &'a mut Guest,
        target: &'a mut Guest,
        options: &'a LiveOptions,
        stop: &'a AtomicBool,
        tell: &'a mut dyn FnMut(Event),
    ) -> Move<'a> {
        Move {
            source,
            target,
            options,
            stop,
            tell,
            can: [Ability::default(), Ability::default()],
            pairs: Vec::new(),
            was_running: true,
            machine: Machine::default(),
            before: [Before::default(), Before::default()],
            foreseen: Forecast::default(),
            foreseen_below_s: None,
            has_told_bound: false,
            deeds: Vec::new(),
            has_mirrored: false,
            has_sent: false,
            goes_ahead: false,
            ahead: Ahead::new(options.promise.deadline),
            has_let_go: false,
            has_halted: false,
            was_up: true,
            has_asked: false,
            still: Still::default(),
            looked_for_link: None,
            has_handed_over: false,
            keeps: None,
            round_trip: None,
            has_got_in_step: false,
            is_offered: false,
        }
    }

    /// Looks at both sides, measures, chooses. Changes nothing.
    fn look(&mut self) -> Result<Plan, Ending> {
        let facts = self.inspect()?;
        self.plan(&facts)
    }

    /// What is done with a guest of which this is known.
    fn plan(&mut self, facts: &Facts) -> Result<Plan, Ending> {
        let rate = self.within_share(self.options.line.unwrap_or(LINE_ASSUMED));
        let facts = Facts { rate, overhead: self.overhead(), ..*facts };
        let choice = kept(self.choose(&facts))?;
        let below_s = choice.forecast.below_s();
        let is_soon = self.options.line.is_none() && below_s <= SOON_S;
        if is_soon && !std::mem::replace(&mut self.has_told_bound, true) {
            self.note(format!(
                "what the line carries is not said (--line): memory takes less than {below_s:.1} s, or is foreseen anew after its first second"
            ));
        }
        Ok(Plan { choice, facts })
    }

    /// Looks at both sides and measures.
    fn inspect(&mut self) -> Result<Facts, Ending> {
        // While the guest's writing is watched the rest is asked.
        self.source.begin_to_measure()?;
        let (here, there) = (self.source.look()?, self.target.look()?);
        self.can = [here.can, there.can];
        let credentials_set = [here.credentials_set, there.credentials_set];
        let is_emulated = [here.is_emulated, there.is_emulated];
        let (from, to) = (here.machine, there.machine);
        let mut found = obstacles(&from, &to);
        if from.status != RUNNING && self.source.is_marked_stopped()? {
            found.push(Obstacle {
                what: "the guest stands at the source since a move in which it went ahead to another QEMU".into(),
                advice: "if it ran there, its memory here is older than its disks: end this QEMU and start it anew from \
                         them; if it never did, say `cont` at the source's monitor and move it then"
                    .into(),
            });
        }
        self.pairs = self.pairs_of(&from, &to, &mut found);
        found.extend(self.memory_obstacles(credentials_set)?);
        if !found.is_empty() {
            return Err(Ending::Obstacles(found));
        }
        self.round_trip = match (&self.options.disks, &self.options.carried) {
            (DisksBy::Mirror(at), None) => at.round_trip(),
            _ => None,
        };
        self.was_running = from.status == RUNNING;
        self.machine = from;
        for (side, can, is_emulated) in [
            (Side::Source, &self.can[0].version, is_emulated[0]),
            (Side::Target, &self.can[1].version, is_emulated[1]),
        ] {
            if loses_writes(can, is_emulated) {
                (self.tell)(Event::Note(format!("the {side} has QEMU {can}: {LOSES_WRITES}")));
            }
        }
        self.settings(self.channels())?;
        self.facts()
    }

    /// Disks that have to be mirrored.
    fn pairs_of(&self, from: &Machine, to: &Machine, found: &mut Vec<Obstacle>) -> Vec<Pair> {
        if let DisksBy::Shared { other_paths } = self.options.disks {
            if !other_paths {
                found.extend(unshared(from, to));
            }
            return Vec::new();
        }
        let writable = from.disks.iter().filter(|(_, disk)| !disk.is_read_only);
        let both = writable.filter_map(|(name, disk)| Some((name, disk, to.disks.get(name)?)));
        let pairs = both.enumerate();
        let pairs = pairs
            .map(|(number, (name, one, other))| Pair::new(number, name.clone(), one.clone(), other.clone()));
        let pairs: Vec<Pair> = pairs.collect();
        for pair in pairs.iter().filter(|pair| pair.source.node.is_empty() || pair.target.node.is_empty()) {
            let what = format!("disk {} has no node name", pair.name);
            found.push(Obstacle {
                what,
                advice: "give it one (-blockdev node-name=...) on both sides".into(),
            });
        }
        pairs
    }

    fn facts(&mut self) -> Result<Facts, Ending> {
        let memory_bytes = self.machine.memory_bytes;
        let dirty = if self.was_running { self.source.dirty_rate()? } else { Some(0.0) };
        self.source.measures = None;
        let dirty = match dirty {
            Some(rate) => Estimate { likely: rate, spread: rate * DIRTY_SPREAD },
            None => {
                self.note("this QEMU does not tell how fast the guest writes: it is seen on the way");
                Estimate::default()
            }
        };
        Ok(Facts {
            used_bytes: memory_bytes,
            memory_bytes,
            dirty,
            working_set_bytes: memory_bytes,
            rate: LINE_ASSUMED,
            overhead: self.overhead(),
            so_far: SoFar::default(),
        })
    }

    /// For which the guest stands still beside the last pass.
    pub(super) fn overhead(&self) -> Estimate {
        overhead(self.options.carried.as_ref(), &self.options.promise, self.at_once(), self.handover())
    }

    /// What the way takes of the downtime beside the last pass.
    pub(super) fn handover(&self) -> Handover {
        let carried = self.options.carried.as_ref().map(|carried| carried.by.round_trip());
        Handover {
            round_trip: carried.or(self.round_trip).unwrap_or_default(),
            has_disks: !self.pairs.is_empty(),
            is_in_step: self.can[0].knows(IN_STEP_COMMAND),
            is_carried: carried.is_some(),
        }
    }

    fn choose(&mut self, facts: &Facts) -> Choice {
        let choice = self.choice(facts);
        (self.tell)(Event::Chosen(Box::new(choice.clone())));
        choice
    }

    fn choice(&self, facts: &Facts) -> Choice {
        let channels = self.channels();
        let way = Way { channels: vec![(channels, facts.rate)], channels_max: channels, zstd: None };
        choose(&self.options.promise, facts, &way, self.options.allowed)
    }

    fn go(&mut self, plan: Dated<Plan>) -> Result<Moved, Ending> {
        let [here, there] = self.clear_leftovers()?;
        let mark = new_mark()?;
        self.target.mark(&mark, &there)?;
        self.source.mark(&mark, &here)?;
        self.make_credentials()?;
        self.set(plan.what.channels())?;
        let Plan { choice, facts } = self.plan_in_turn(plan)?;
        let Some(course) = &choice.course else { return Err(Ending::Promise(Box::new(choice))) };
        self.foreseen = choice.forecast;
        self.foreseen_below_s = self.options.line.is_none().then(|| choice.forecast.below_s());
        self.mirror()?;
        // Disks take long, and somebody may have begun a job on them meanwhile.
        let jobs = job_obstacles(Side::Source, &self.source.others_jobs()?);
        if !jobs.is_empty() {
            return Err(Ending::Obstacles(jobs));
        }
        // It is stopped, so that it starts the guest when drover says so, not when it thinks that all is there: the source might
        // think otherwise and go on, too.
        let waits = self.target.wait_for_guest(&self.options.uri, SETTLE_TIME_MAX);
        let uri = waits.map_err(|error| self.with_rdma(Side::Target, error))?;
        let over = Carried::of_data(self.options.carried.as_ref()).map(|(by, _)| by.site().to_string());
        self.note(match over {
            None => format!("memory goes to {uri}{}", self.openly(&uri)),
            Some(site) => format!("memory goes over the link to {site}, {uri} there"),
        });
        self.halt_if_stopped()?;
        self.see_whether_it_runs()?;
        self.source.mark_paused(!self.was_running)?;
        let began = Instant::now();
        self.has_sent = true;
        let to = self.goes_to(&uri).to_string();
        if let Err(error) = self.source.send_to(&to) {
            // What QEMU refuses it does not begin; without an answer nobody knows.
            self.has_sent = error.kind == QemuErrorKind::Timeout || error.is_of_connection();
            return Err(self.with_rdma(Side::Source, error).into());
        }
        let mut at_once = course.at_once;
        if at_once == Some(Deed::Throttle) {
            self.slow_down(choice.facts.rate.likely)?;
            at_once = None;
        }
        self.follow(began, &course.deeds, at_once, Some(&facts))
    }

    /// Where the source sends memory, of which the target waits at `uri`.
    pub(super) fn goes_to<'b>(&'b self, uri: &'b str) -> &'b str {
        Carried::of_data(self.options.carried.as_ref()).map_or(uri, |(_, ends)| &ends.memory)
    }

    /// Whoever reads the network reads the guest's memory.
    fn openly(&self, uri: &str) -> &'static str {
        if uri.starts_with("tcp:") && self.options.memory.tls.is_none() { ", not encrypted" } else { "" }
    }

    /// Watches memory on its way, and sees it to its end. With facts, the promise is looked at again when a line is known of which nothing
    /// was said, and what is foreseen when it is in full swing.
    fn follow(
        &mut self,
        began: Instant,
        deeds: &[Deed],
        mut at_once: Option<Deed>,
        facts: Option<&Facts>,
    ) -> Result<Moved, Ending> {
        let mut to_look_at = facts.filter(|_| self.options.line.is_none());
        let mut watch = Watch::new(self.options.promise, deeds);
        let mut ease = self.easing(facts);
        let (mut is_close, mut was_told, mut has_told_sent) = (false, began, false);
        loop {
            let told = match self.source.sample(began) {
                Ok(told) => told,
                Err(error) => return Err(self.source_failed(error)),
            };
            if !is_close || told.sample.phase != Phase::Precopy || was_told.elapsed() >= SAMPLE_PAUSE {
                was_told = Instant::now();
                (self.tell)(Event::Memory(told.clone()));
            }
            let is_up = self.look_at_link();
            if matches!(told.sample.phase, Phase::Setup | Phase::Precopy) {
                self.look_for_link();
            }
            self.halt_if_still_for_long(told.sample.phase)?;
            self.keep_to_orders(told.sample.phase)?;
            self.keep_share(told.sample.phase)?;
            if !has_told_sent && self.is_as_good_as_sent(&told.sample, watch.rate()) {
                has_told_sent = true;
                (self.tell)(Event::Sent);
            }
            match told.sample.phase {
                Phase::Done => {
                    self.let_go_unseen();
                    return self.arrived(began, told, self.patience());
                }
                Phase::Failed => return Err(self.failed(&told)),
                Phase::Switchover if told.status == "pre-switchover" && !self.has_handed_over => {
                    if self.may_go()? {
                        self.hand_over_disks()?;
                        let state = serde_json::json!({"state": "pre-switchover"});
                        self.source.qmp.execute("migrate-continue", state)?;
                        self.has_handed_over = true;
                    }
                }
                Phase::PostCopy if self.goes_ahead => self.let_go()?,
                Phase::PostCopy | Phase::Broken => self.mend(began, &told)?,
                Phase::Setup | Phase::Precopy | Phase::Switchover => {}
            }
            if matches!(told.sample.phase, Phase::Setup | Phase::Precopy) {
                self.halt_if_stopped()?;
                if at_once == Some(Deed::PostCopy) && told.sample.passes > 1 && is_up {
                    self.start_postcopy()?;
                    at_once = None;
                }
                // A guest that is to go ahead is stopped by drover, not by QEMU.
                if at_once.is_none() && !self.goes_ahead {
                    self.ease(&mut ease, &told, is_up)?;
                }
                self.get_in_step(&told.sample, watch.rate());
                let is_telling = is_up && !ease.as_ref().is_some_and(Ease::is_eased);
                let advised = match is_telling {
                    true => watch.see(told.sample),
                    false => watch.see_interrupted(told.sample),
                };
                if let Some((deed, why)) = advised {
                    self.act(deed, why)?;
                }
                if let (Some(known), Some(rate)) = (to_look_at, watch.rate()) {
                    to_look_at = None;
                    self.look_again(known, rate.likely, &told)?;
                }
                if let (Some(known), Some(rate)) = (facts, watch.full_swing()) {
                    self.foresee_anew(known, rate, &told);
                }
            }
            is_close = ease.as_ref().is_some_and(|ease| ease.is_close(&told.sample));
            self.pause(told.sample.phase, is_close)?;
        }
    }

    /// Whether the line is for others. Over a link the next takes some round trips before it sends: it begins while this one stands, if
    /// all of this one is on its way by then and what was lost of it goes again. Not where they share a budget, which would be given to
    /// others at once.
    fn is_as_good_as_sent(&self, sample: &Sample, rate: Option<Estimate>) -> bool {
        let is_over_by_then = |(by, _): (&dyn Carrier, &CarriedEnds)| {
            let sends = by.round_trip().as_secs_f64();
            let is_on_its_way = rate.is_some_and(|rate| sample.left_bytes as f64 <= rate.likely * sends);
            is_on_its_way && self.still.lasts() >= by.round_trip()
        };
        match sample.phase {
            Phase::Done => true,
            Phase::Switchover if !self.goes_ahead && !self.has_mirrored && self.options.share.is_none() => {
                Carried::of_data(self.options.carried.as_ref()).is_some_and(is_over_by_then)
            }
            _ => false,
        }
    }

    /// Over a link the end of memory goes slower, so that little waits before the line when the guest is stopped. Not where memory
    /// is packed by QEMU: what it counts is not what the line carries.
    fn easing(&self, facts: Option<&Facts>) -> Option<Ease> {
        let memory = &self.options.memory;
        let (by, _) = Carried::of_data(self.options.carried.as_ref())?;
        let is_packed = memory.compression != Compression::None || memory.xbzrle_bytes.is_some();
        let dirty = facts?.dirty.likely;
        let deadline = self.options.promise.deadline;
        (!is_packed).then(|| Ease::new(by.round_trip(), deadline, dirty))
    }

    /// Sends slower, or no more so, if it is time.
    fn ease(&mut self, easing: &mut Option<Ease>, told: &Told, is_up: bool) -> Result<(), Ending> {
        let Some(ease) = easing else { return Ok(()) };
        if !is_up {
            ease.is_away();
            return Ok(());
        }
        let Some(rate) = ease.see(&told.sample, self.rate_max().unwrap_or(RATE_UNLIMITED)) else {
            return Ok(());
        };
        match self.source.bound_rate(rate, false) {
            Ok(()) => {
                if let Some(words) = ease.words(rate, &told.sample) {
                    self.note(words);
                }
                Ok(())
            }
            Err(error) if error.is_of_connection() => Err(self.source_failed(error)),
            Err(error) => {
                *easing = None;
                self.note(format!("how fast the end of memory goes cannot be set: {}", error.chain()));
                // What was refused may be set all the same.
                self.send_as_allowed()
            }
        }
    }

    /// Sends as fast as it may. What somebody else sets meanwhile is no reason to end a move.
    fn send_as_allowed(&mut self) -> Result<(), Ending> {
        match self.source.bound_rate(self.rate_max().unwrap_or(RATE_UNLIMITED), false) {
            Err(error) if error.is_of_connection() => Err(self.source_failed(error)),
            Err(error) => {
                self.note(format!("it goes on as fast as it is set to: {}", error.chain()));
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Whether what carries the move does; tells when that changes.
    fn look_at_link(&mut self) -> bool {
        let Some(carried) = &self.options.carried else { return true };
        let (site, is_up) = (carried.by.site().to_string(), carried.by.is_up());
        if std::mem::replace(&mut self.was_up, is_up) != is_up {
            (self.tell)(Event::Link { site, is_up });
        }
        is_up
    }

    /// Memory and disks go past the link, over which alone the guest can be started at the target. It is not let go while that is away.
    pub(super) fn starts_by_link_alone(&self) -> bool {
        self.options.carried.as_ref().is_some_and(|carried| carried.ends.is_none())
    }

    /// The guest stands still, and all but the last of its memory is sent: whether it may go. A link is told to be there for seconds
    /// after it was cut, so the target's own word counts; it is waited for as long as was promised that the guest stands still.
    fn may_go(&mut self) -> Result<bool, Ending> {
        let Some(Carried { by, ends: None }) = &self.options.carried else { return Ok(true) };
        let least = by.round_trip() * 3 + POLL;
        let left = self.options.promise.downtime_max.saturating_sub(self.still.lasts());
        let error = match self.target.answers_within(left.max(least)) {
            Ok(()) => return Ok(true),
            Err(error) => error,
        };
        self.look_at_link();
        if self.still.lasts() >= self.options.promise.downtime_max {
            let why = format!(
                "the guest could not be started at the target, which does not answer: {}",
                error.chain()
            );
            return Err(Ending::Failed(self.error(&why)));
        }
        if error.is_of_connection() && error.kind != QemuErrorKind::Timeout {
            // The next look tells whether that helped.
            let _ = self.target.connect_again_within(left.max(least));
        }
        Ok(false)
    }

    /// A link whose session ended comes back with the next connection, and while memory goes past it nobody makes one.
    fn look_for_link(&mut self) {
        let is_to_be_made = self.starts_by_link_alone() && self.is_link_away() && !self.is_link_waited_for();
        let is_time = self.looked_for_link.is_none_or(|at| at.elapsed() >= LOOK_FOR_LINK_PAUSE);
        if is_to_be_made && is_time {
            self.looked_for_link = Some(Instant::now());
            // It is tried again.
            let _ = self.target.connect_again_within(LOOK_FOR_LINK_TIME);
        }
    }

    /// Whether the target cannot be reached at this moment, because what carries the move does not.
    fn is_link_away(&self) -> bool {
        self.options.carried.as_ref().is_some_and(|carried| !carried.by.is_up())
    }

    /// Whether what the target would be asked waits until it can be reached again.
    fn is_link_waited_for(&self) -> bool {
        self.options.carried.as_ref().is_some_and(|carried| carried.by.is_waited_for())
    }

    /// A guest that stands still and does not arrive is better off where it was. In post-copy there is no way back.
    fn halt_if_still_for_long(&mut self, phase: Phase) -> Result<(), Ending> {
        // Sent ahead it was stopped before, and stands until QEMU begins with that.
        let goes = self.goes_ahead && self.was_running && matches!(phase, Phase::Setup | Phase::Precopy);
        if phase != Phase::Switchover && !goes {
            self.still.is_over(phase);
            return Ok(());
        }
        let goes_on = self.still.goes_on(self.options.carried.as_ref(), self.options.promise.downtime_max);
        goes_on.map_err(|why| Ending::Failed(self.error(why)))
    }

    /// Somebody else may stop the guest while it moves, or start it: so it is at the target, too. One that is sent ahead drover stops
    /// itself.
    fn keep_to_orders(&mut self, phase: Phase) -> Result<(), Ending> {
        let may_be_told =
            matches!(phase, Phase::Setup | Phase::Precopy | Phase::Switchover) && !self.goes_ahead;
        let done = match may_be_told {
            true => {
                self.source.has_turned().and_then(|has| if has { self.see_whether_it_runs() } else { Ok(()) })
            }
            false => Ok(()),
        };
        done.map_err(|error| self.source_failed(error))
    }

    /// Whether the guest runs at the source, or stands as somebody wants. What QEMU stops to hand it over says nothing of that.
    fn see_whether_it_runs(&mut self) -> Result<(), QemuError> {
        let runs = match self.source.status()?.as_str() {
            RUNNING => true,
            "paused" => false,
            _ => return Ok(()),
        };
        if std::mem::replace(&mut self.was_running, runs) != runs {
            self.note(match runs {
                true => "somebody started the guest at the source: it is started at the target, too",
                false => "somebody stopped the guest at the source: it is not started at the target (`cont` at its monitor)",
            });
            if self.has_sent {
                self.source.mark_paused(!runs)?;
            }
        }
        Ok(())
    }

    /// Until the next look. While the guest stands still each millisecond counts, so whatever QEMU says ends the wait.
    fn pause(&mut self, phase: Phase, is_close: bool) -> Result<(), Ending> {
        // One that goes ahead stands still until it is started.
        let is_still = phase == Phase::Switchover || self.goes_ahead;
        let time_max = match is_still {
            true => POLL,
            false if is_close => CLOSE_PAUSE,
            false => SAMPLE_PAUSE,
        };
        match self.source.wait_for_news(time_max) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.source_failed(error)),
        }
    }

    /// The line is known now: is the promise still one?
    fn look_again(&mut self, facts: &Facts, rate: f64, told: &Told) -> Result<(), Ending> {
        let choice = self.choose(&known_on_the_way(facts, rate, told));
        self.foreseen = choice.forecast;
        self.foreseen_below_s = None;
        kept(choice).map(drop)
    }

    /// The line is in full swing. That ends nothing: whether the promise is kept is watched.
    fn foresee_anew(&mut self, facts: &Facts, rate: f64, told: &Told) {
        let choice = self.choice(&known_on_the_way(facts, rate, told));
        if is_news(&self.foreseen, &choice.forecast) {
            self.foreseen = choice.forecast;
            (self.tell)(Event::Chosen(Box::new(choice)));
        }
    }

    /// Copies all disks once; from then on writes go to both sides.
    fn mirror(&mut self) -> Result<(), Ending> {
        let DisksBy::Mirror(at) = &self.options.disks else { return Ok(()) };
        if self.pairs.is_empty() {
            return Ok(());
        }
        let tls = self.tls();
        self.has_mirrored = true;
        self.is_offered = true;
        self.target.offer(&self.pairs, at, tls.as_ref())?;
        let from_here = Carried::of_data(self.options.carried.as_ref()).map_or(at, |(_, ends)| &ends.disks);
        for pair in &self.pairs {
            self.source.mirror(pair, from_here, &self.can[0], tls.as_ref(), self.share_of_mirror())?;
        }
        let mut bounded = None;
        loop {
            self.keep_share_of_mirrors(&mut bounded)?;
            let mut ready = 0;
            for pair in &self.pairs {
                let state = self.source.mirror_state(pair)?;
                (self.tell)(Event::Disk { name: pair.name.clone(), state });
                ready += usize::from(state.is_ready);
            }
            if ready == self.pairs.len() {
                return self.keep_share_of_mirrors(&mut bounded);
            }
            self.halt_if_stopped()?;
            self.look_at_link();
            std::thread::sleep(SAMPLE_PAUSE);
        }
    }

    /// The guest stands still: its disks become equal, and nobody but the target's guest writes there from now on.
    fn hand_over_disks(&mut self) -> Result<(), Ending> {
        if self.pairs.is_empty() {
            return Ok(());
        }
        self.source.end_mirrors(&self.pairs, MIRROR_END_TIME_MAX)?;
        // Where the target takes its disks only when it is started, the offer is withdrawn with that order: to wait for it here would
        // take a round trip, for which the guest stands still.
        if !self.can.iter().all(|can| can.has("late-block-activate")) {
            self.target.withdraw()?;
            self.is_offered = false;
        }
        Ok(())
    }

    /// Lets the guest run at the target, which offers its disks to nobody any more.
    pub(super) fn give_leave(&mut self) -> Result<(), QemuError> {
        let is_offered = std::mem::take(&mut self.is_offered);
        self.target.give_leave(is_offered)
    }

    /// Close to its end each write of the guest waits for the target, so that nothing is left to be copied while it stands still.
    fn get_in_step(&mut self, sample: &Sample, rate: Option<Estimate>) {
        let is_far = !self.handover().round_trip.is_zero();
        let line = rate.or(self.options.line).unwrap_or(LINE_ASSUMED).likely;
        if self.has_got_in_step || self.pairs.is_empty() || !is_far || !self.can[0].knows(IN_STEP_COMMAND) {
            return;
        }
        if in_step(sample.left_bytes, line) && sample.phase == Phase::Precopy {
            self.has_got_in_step = true;
            if let Err(error) = self.source.mirror_in_step(&self.pairs) {
                self.note(format!("writes to disks do not wait for the target: {}", error.chain()));
            }
        }
    }

    fn act(&mut self, deed: Deed, why: Why) -> Result<(), Ending> {
        (self.tell)(Event::Did(deed, why));
        self.deeds.push((deed, why));
        match deed {
            Deed::Throttle => self.slow_down(why.rate),
            Deed::PostCopy => self.start_postcopy(),
            Deed::GiveUp => Err(Ending::GivenUp(why)),
        }
    }

    /// Sends the guest ahead. It is started there when it is known to have come ([`Move::let_go`]): until then QEMU may end
    /// the move as if nobody had asked, or give it up.
    fn start_postcopy(&mut self) -> Result<(), Ending> {
        if !self.can.iter().all(Ability::recovers) {
            self.note("these QEMUs do not know how to make the line of post-copy anew: if it breaks, the guest is lost");
        }
        if self.was_running {
            // QEMU 10.0 starts the guest again if it has sent everything and the line breaks before it has the target's
            // word, although it runs there. One that stood before it went ahead is left standing.
            self.source.mark_stopped()?;
            self.source.order("stop")?;
        }
        self.source.order("migrate-start-postcopy")?;
        self.goes_ahead = true;
        Ok(())
    }

    /// From now on, where so many bytes a second are sent.
    fn slow_down(&mut self, rate: f64) -> Result<(), Ending> {
        let throttle = self.throttle();
        let before = &self.before[0].settings;
        // Of a move that was taken over nobody knows what was set before.
        let is_known = |name: &str| match before.is_empty() {
            true => self.can[0].takes(name),
            false => before.parameters.contains_key(name),
        };
        let parameters = slow_down(throttle, is_known, rate, self.machine.processors.len().max(1));
        let parameters = Value::Object(parameters);
        self.source.qmp.execute("migrate-set-parameters", parameters)?;
        Ok(())
    }

    fn halt_if_stopped(&self) -> Result<(), Ending> {
        if self.stop.load(Ordering::Relaxed) { Err(Ending::Stopped) } else { Ok(()) }
    }

    fn failed(&self, told: &Told) -> Ending {
        let why = told.error.clone().unwrap_or_else(|| format!("QEMU says {:?} and no reason", told.status));
        Ending::Failed(self.error(&why))
    }

    fn error(&self, why: &str) -> QemuError {
        QemuError::new(QemuErrorKind::Failed, "the move of the guest's memory").because(why.to_string())
    }

    fn note(&mut self, text: impl Into<String>) {
        (self.tell)(Event::Note(text.into()));
    }
}

/// Changes a mirror on its way, in QEMU 8.2 and later.
const IN_STEP_COMMAND: &str = "block-job-change";
/// How far off a rate is that was measured by looking at some pages for a second.
pub(super) const DIRTY_SPREAD: f64 = 0.25;
/// A line of which nothing is known: what a LAN carries, give or take. It is measured by the first second of sending.
pub(super) const LINE_ASSUMED: Estimate = Estimate { likely: 1e9, spread: 0.5e9 };
