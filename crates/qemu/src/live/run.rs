//! A move of a running guest, from a look at both sides to a look at both sides.

mod again;
mod ahead;
mod arrive;
mod beforehand;
mod follow;
mod memory;
mod mirror;
mod settle;
#[cfg(test)]
mod tests;
mod words;

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use drover_live::{
    Ability, Between, By, Choice, Deed, Facts, Follow, Found, Handover, LOSES_WRITES, Machine, Obstacle,
    Side, facts_before, loses_writes, obstacles,
};

pub(super) use again::too_late;
use ahead::Ahead;
pub use ahead::Mending;
pub use beforehand::{Beforehand, Looked, look_beforehand};
pub use memory::{MemoryOptions, TlsBy, TlsOptions};
use mirror::IN_STEP_COMMAND;
pub(super) use words::domain_at;
pub use words::{DisksBy, Ending, Event, LiveError, LiveOptions, Moved, Wanted, Where};

use super::carried::Carried;
use super::core::{Core, Plan};
use super::disks::Pair;
use super::guest::{Before, Guest, Told};
use super::mark::new_mark;
use super::turn::Dated;
use crate::error::QemuError;

/// Both sides of a move.
struct Move<'a> {
    core: Core<'a>,
    source: &'a mut Guest,
    target: &'a mut Guest,
    options: &'a LiveOptions,
    can: [Ability; 2],
    pairs: Vec<Pair>,
    /// What the source is, as it was looked at.
    machine: Machine,
    /// What was set on both sides before drover did.
    before: [Before; 2],
    mirrors: Mirrors,
    passage: Passage,
    ahead: Ahead,
    /// The target was given leave to run the guest.
    has_let_go: bool,
    /// All of the guest came to the target, and does not run there.
    has_halted: bool,
    /// The target was asked whether the guest is there.
    has_asked: bool,
    /// When the target was connected to last, to have the link made anew.
    looked_for_link: Option<Instant>,
    /// Its disks were handed over and the source was told to go on, which it may take a while to do.
    has_handed_over: bool,
    /// Bytes a second that it keeps, of those that it shares with others.
    keeps: Option<u64>,
    /// From here to where the target offers its disks and back, where nothing carries the move.
    round_trip: Option<Duration>,
    /// The target offers its disks, and its guest cannot be started while it does.
    is_offered: bool,
}

/// How far the guest is on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Passage {
    /// Nothing of its memory was sent. What the source says of a move is of an earlier one, perhaps of that by which the guest came to it.
    Unsent,
    /// The source was told to send it.
    Sent,
    /// It was sent ahead of its memory, and stands still until the target has leave to run it.
    SentAhead,
    /// The same, and post-copy is on: the source has ended it.
    WaitsAhead,
    /// It runs at the target, and the rest of its memory follows.
    Ahead,
}

/// What is done about its disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mirrors {
    /// They are shared, or not offered yet.
    None,
    /// They are offered, and their mirrors begun.
    Begun,
    /// The guest's writes wait for the target, or that was refused.
    InStep,
}

/// What QEMU says of a guest that runs.
const RUNNING: &str = "running";
/// Looks at memory on its way.
const SAMPLE_PAUSE: Duration = Duration::from_millis(100);
/// What ends must have ended.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(60);
/// A mirror of a guest that stands still has its last writes under way only.
const MIRROR_END_TIME_MAX: Duration = Duration::from_secs(60);

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
        if ended.is_ok() || one.has_sent() {
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
        let ahead = Ahead::new(options.wanted.promise.deadline);
        Move {
            core: Core::new(&options.wanted, By::Qemu, stop, tell),
            source,
            target,
            options,
            can: [Ability::default(), Ability::default()],
            pairs: Vec::new(),
            machine: Machine::default(),
            before: [Before::default(), Before::default()],
            mirrors: Mirrors::None,
            passage: Passage::Unsent,
            ahead,
            has_let_go: false,
            has_halted: false,
            has_asked: false,
            looked_for_link: None,
            has_handed_over: false,
            keeps: None,
            round_trip: None,
            is_offered: false,
        }
    }

    fn has_sent(&self) -> bool {
        self.passage > Passage::Unsent
    }

    /// It goes ahead in post-copy, and the target has had no leave to run it yet.
    fn goes_ahead(&self) -> bool {
        matches!(self.passage, Passage::SentAhead | Passage::WaitsAhead)
    }

    /// The source was seen in post-copy, or beyond: it has ended the guest.
    fn is_ahead(&self) -> bool {
        self.passage >= Passage::WaitsAhead
    }

    /// Post-copy is on.
    fn goes_on_ahead(&mut self) {
        self.passage = if self.goes_ahead() { Passage::WaitsAhead } else { Passage::Ahead };
    }

    /// Looks at both sides, measures, chooses. Changes nothing.
    fn look(&mut self) -> Result<Plan, Ending> {
        let facts = self.inspect()?;
        self.plan(&facts)
    }

    /// What is done with a guest of which this is known.
    fn plan(&mut self, facts: &Facts) -> Result<Plan, Ending> {
        let plan = self.core.plan(facts, &self.between(), self.channels())?;
        if let Some(below_s) = self.core.outlook.bound(&plan.choice) {
            self.note(format!(
                "what the line carries is not said (--line): memory takes less than {below_s:.1} s, or is foreseen anew after its first second"
            ));
        }
        Ok(plan)
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
                what: "the guest stands at the source since a move in which it switched to post-copy at another QEMU".into(),
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
        self.round_trip = match (&self.options.disks, self.core.carried()) {
            (DisksBy::Mirror(at), None) => at.round_trip(),
            _ => None,
        };
        self.core.was_running = from.status == RUNNING;
        self.machine = from;
        for (side, can, is_emulated) in [
            (Side::Source, &self.can[0].version, is_emulated[0]),
            (Side::Target, &self.can[1].version, is_emulated[1]),
        ] {
            if loses_writes(can, is_emulated) {
                self.core.note(format!("the {side} has QEMU {can}: {LOSES_WRITES}"));
            }
        }
        self.settings(self.channels())?;
        self.tell_rdma();
        self.facts()
    }

    fn facts(&mut self) -> Result<Facts, Ending> {
        let memory_bytes = self.machine.memory_bytes;
        let dirty = if self.core.was_running { self.source.dirty_rate()? } else { Some(0.0) };
        self.source.measures = None;
        if dirty.is_none() {
            self.note("this QEMU does not tell how fast the guest writes: it is seen on the way");
        }
        let between = self.between();
        self.core.tell_loads(&between);
        Ok(facts_before(memory_bytes, dirty, between.overhead(&self.core.promise())))
    }

    /// What lies between both sides.
    pub(super) fn between(&self) -> Between {
        self.core.between(self.handover())
    }

    /// What the way takes of the downtime beside the last pass.
    pub(super) fn handover(&self) -> Handover {
        let carried = self.core.carried().map(|carried| carried.by.round_trip());
        Handover {
            round_trip: carried.or(self.round_trip).unwrap_or_default(),
            has_disks: !self.pairs.is_empty(),
            is_in_step: self.can[0].knows(IN_STEP_COMMAND),
            is_carried: carried.is_some(),
        }
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
        self.core.outlook.begins(&choice, &facts);
        self.mirror()?;
        // Disks take long, and somebody may have begun a job on them meanwhile.
        self.halt_if_job_began()?;
        // It is stopped, so that it starts the guest when drover says so, not when it thinks that all is there: the source might
        // think otherwise and go on, too.
        let waits = self.target.wait_for_guest(&self.options.uri, SETTLE_TIME_MAX);
        let uri = waits.map_err(|error| self.with_rdma(Side::Target, error))?;
        let over = Carried::of_data(self.core.carried()).map(|(by, _)| by.site().to_string());
        self.note(match over {
            None => format!("memory goes to {uri}{}", self.openly(&uri)),
            Some(site) => format!("memory goes over the link to {site}, {uri} there"),
        });
        self.core.halt_if_stopped()?;
        self.see_whether_it_runs()?;
        self.source.mark_paused(!self.core.was_running)?;
        let began = Instant::now();
        self.passage = Passage::Sent;
        let to = self.goes_to(&uri).to_string();
        if let Err(error) = self.source.send_to(&to) {
            // What QEMU refuses it does not begin; without an answer nobody knows.
            if error.is_refusal() {
                self.passage = Passage::Unsent;
            }
            return Err(self.with_rdma(Side::Source, error).into());
        }
        if course.at_once == Some(Deed::Throttle) {
            self.slow_down(choice.facts.rate.likely)?;
        }
        let ease = self.easing(&facts);
        self.follow(began, Follow::new(self.core.promise(), course, ease))
    }

    /// Where the source sends memory, of which the target waits at `uri`.
    pub(super) fn goes_to<'b>(&'b self, uri: &'b str) -> &'b str {
        Carried::of_data(self.core.carried()).map_or(uri, |(_, ends)| &ends.memory)
    }

    /// Whoever reads the network reads the guest's memory.
    fn openly(&self, uri: &str) -> &'static str {
        if uri.starts_with("tcp:") && self.options.memory.tls.is_none() { ", not encrypted" } else { "" }
    }

    fn failed(&self, told: &Told) -> Ending {
        let why = told.error.clone().unwrap_or_else(|| format!("QEMU says {:?} and no reason", told.status));
        Ending::Failed(self.core.failed(&why))
    }

    fn note(&mut self, text: impl Into<String>) {
        self.core.note(text);
    }
}
