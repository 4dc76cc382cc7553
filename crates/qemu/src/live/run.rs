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
    Ability, By, Choice, Compression, Deed, Event, Facts, Follow, Found, Half, Handover, LOSES_WRITES, Look,
    Machine, Moved, Obstacle, Passage, Side, Told, loses_writes, obstacles, slow_down,
};
use serde_json::Value;

use beforehand::Findings;
pub use beforehand::{Looked, look_beforehand};
pub use memory::{MemoryOptions, TlsBy, TlsOptions};
use mirror::IN_STEP_COMMAND;
pub use words::{DisksBy, Ending, LiveError, LiveOptions, Wanted};

use super::carried::Carried;
use super::core::{Adapter, Core, Plan, channels_wanted};
use super::disks::Pair;
use super::guest::{Before, Guest};
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
    /// All of the guest came to the target, and does not run there.
    has_halted: bool,
    /// The target was asked whether the guest is there.
    has_asked: bool,
    /// When the target was connected to last, to have the link made anew.
    looked_for_link: Option<Instant>,
    /// From here to where the target offers its disks and back, where nothing carries the move.
    round_trip: Option<Duration>,
    /// The target offers its disks, and its guest cannot be started while it does.
    is_offered: bool,
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
        if ended.is_ok() || one.passage.has_sent() {
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
            core: Core::new(&options.wanted, By::Qemu, stop, tell),
            source,
            target,
            options,
            can: [Ability::default(), Ability::default()],
            pairs: Vec::new(),
            machine: Machine::default(),
            before: [Before::default(), Before::default()],
            mirrors: Mirrors::None,
            passage: Passage::default(),
            has_halted: false,
            has_asked: false,
            looked_for_link: None,
            round_trip: None,
            is_offered: false,
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
        self.passage = Passage::sent();
        let to = self.goes_to(&uri).to_string();
        if let Err(error) = self.source.send_to(&to) {
            // What QEMU refuses it does not begin; without an answer nobody knows.
            if error.is_refusal() {
                self.passage = Passage::default();
            }
            return Err(self.with_rdma(Side::Source, error).into());
        }
        if course.at_once == Some(Deed::Throttle) {
            self.slow_down(choice.facts.rate.likely)?;
        }
        // What QEMU packs it counts as packed, which is not what the line carries.
        let memory = &self.options.memory;
        let is_packed = memory.compression != Compression::None || memory.xbzrle_bytes.is_some();
        let ease = self.core.easing(&facts).filter(|_| !is_packed);
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
        Ending::Failed(self.core.failed(&told.why()))
    }

    fn note(&mut self, text: impl Into<String>) {
        self.core.note(text);
    }
}

impl<'a> Adapter<'a> for Move<'a> {
    type Findings = Findings;

    fn core(&self) -> &Core<'a> {
        &self.core
    }

    fn core_mut(&mut self) -> &mut Core<'a> {
        &mut self.core
    }

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
        let dirty = if self.core.was_running { self.source.dirty_rate()? } else { Some(0.0) };
        self.source.measures = None;
        Ok(self.facts(self.machine.memory_bytes, dirty))
    }

    fn findings(&self, facts: Facts) -> Findings {
        let (can, pairs) = (self.can.clone(), self.pairs.clone());
        Findings { facts, can, machine: self.machine.clone(), pairs }
    }

    fn found_before(&self) -> Option<Dated<Findings>> {
        self.options.looked.clone().map(|Looked(found)| found)
    }

    fn take(&mut self, found: Findings) -> Facts {
        (self.can, self.machine, self.pairs) = (found.can, found.machine, found.pairs);
        self.core.was_running = self.machine.status == RUNNING;
        found.facts
    }

    fn handover(&self) -> Handover {
        let carried = self.core.carried().map(|carried| carried.by.round_trip());
        Handover {
            round_trip: carried.or(self.round_trip).unwrap_or_default(),
            has_disks: !self.pairs.is_empty(),
            is_in_step: self.can[0].knows(IN_STEP_COMMAND),
            is_carried: carried.is_some(),
        }
    }

    /// Those that are wished for and can be had.
    fn channels(&self) -> u8 {
        let both_have = self.can.iter().all(|can| can.has("multifd"));
        let goes_alone = self.options.memory.rdma.is_some() || self.options.memory.xbzrle_bytes.is_some();
        let wanted = channels_wanted(self.core.wanted.channels, self.core.rate_max());
        match () {
            () if goes_alone => self.core.wanted.channels.unwrap_or(1),
            () if both_have && !self.is_unordered() && !self.postcopy_goes_alone() => wanted,
            () => 1,
        }
    }

    fn disk_bytes(&self) -> u64 {
        self.pairs.iter().map(|pair| pair.source.bytes).sum()
    }

    /// It is started there when it is known to have come ([`Move::let_go`]): until then QEMU may end the move as if nobody had
    /// asked, or give it up.
    fn start_postcopy(&mut self) -> Result<(), Ending> {
        if !self.can.iter().all(Ability::recovers) {
            self.note("these QEMUs do not know how to make the line of post-copy anew: if it breaks, the guest is lost");
        }
        if self.core.was_running {
            // QEMU 10.0 starts the guest again if it has sent everything and the line breaks before it has the target's
            // word, although it runs there. One that stood before it went ahead is left standing.
            self.source.mark_stopped()?;
            self.source.order("stop")?;
        }
        self.source.order("migrate-start-postcopy")?;
        self.passage.send_ahead();
        Ok(())
    }

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

    fn send_eased(
        &mut self,
        follow: &mut Follow,
        (rate, _): (u64, bool),
        words: Option<String>,
    ) -> Result<(), Ending> {
        match self.source.bound_rate(rate, false) {
            Ok(()) => {
                words.into_iter().for_each(|words| self.note(words));
                Ok(())
            }
            Err(error) if error.is_of_connection() => Err(self.source_failed(error)),
            Err(error) => {
                follow.cannot_ease();
                self.note(format!("how fast the end of memory goes cannot be set: {}", error.chain()));
                // What was refused may be set all the same.
                self.send_as_allowed()
            }
        }
    }

    fn pause_line(&mut self, side: Side) -> bool {
        let side = match side {
            Side::Source => &mut self.source,
            Side::Target => &mut self.target,
        };
        side.pause_line().is_ok()
    }

    /// Has the target wait for another line, and the source go on over it.
    fn try_line(&mut self, look: &Look) -> Result<(), QemuError> {
        if look.target == Half::Silent {
            // Whether it has noticed it does not tell.
            let _ = self.target.pause_line();
        }
        let uri = self.target.wait_for_line(&self.options.uri, SETTLE_TIME_MAX)?;
        let to = self.goes_to(&uri).to_string();
        self.source.resume_to(&to)
    }
}
