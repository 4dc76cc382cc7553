//! A move of a running guest, from a look at both sides to a look at both sides.

mod ahead;
mod arrive;
mod beforehand;
mod follow;
mod lifecycle;
mod memory;
mod mirror;
mod settle;
#[cfg(test)]
mod tests;
mod words;

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use drover_live::{
    Ability, By, Event, Facts, Found, Half, Handover, LOSES_WRITES, Machine, Obstacle, Pause, Phase, Side,
    Told, loses_writes, obstacles, slow_down,
};
use serde_json::{Value, json};

use beforehand::Findings;
pub use beforehand::Looked;
pub use memory::{MemoryOptions, TlsBy, TlsOptions};
use mirror::IN_STEP_COMMAND;
pub use words::{DisksBy, Ending, LiveError, LiveOptions, Wanted};

use super::carried::Carried;
use super::core::{Adapter, Core, Glance, channels_wanted};
use super::disks::Pair;
use super::guest::{Before, Guest, POLL};
use super::turn::Dated;
use crate::error::QemuError;

/// Both sides of a move.
pub(super) struct Move<'a> {
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
/// Between two looks at memory on its way.
const SAMPLE_PAUSE: Duration = Duration::from_millis(100);
/// The same where little is left.
const CLOSE_PAUSE: Duration = Duration::from_millis(10);
/// What ends must have ended.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(60);
/// A mirror of a guest that stands still has its last writes under way only.
const MIRROR_END_TIME_MAX: Duration = Duration::from_secs(60);

/// What an earlier run left of a move between these two; changes nothing.
///
/// # Errors
/// If a side cannot be asked.
pub fn left_by_earlier(source: &mut Guest, target: &mut Guest) -> Result<Found, QemuError> {
    lifecycle::find(source, target)
}

impl<'a> Move<'a> {
    pub(super) fn new(
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
            has_halted: false,
            has_asked: false,
            looked_for_link: None,
            round_trip: None,
            is_offered: false,
        }
    }

    /// Where the source sends memory, of which the target waits at `uri`.
    pub(super) fn goes_to<'b>(&'b self, uri: &'b str) -> &'b str {
        Carried::of_data(self.core.carried()).map_or(uri, |(_, ends)| &ends.memory)
    }

    /// Whoever reads the network reads the guest's memory.
    fn openly(&self, uri: &str) -> &'static str {
        if uri.starts_with("tcp:") && self.options.memory.tls.is_none() { ", not encrypted" } else { "" }
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
        self.core.state.was_running = from.status == RUNNING;
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
        let dirty = if self.core.state.was_running { self.source.dirty_rate()? } else { Some(0.0) };
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
        self.core.state.was_running = self.machine.status == RUNNING;
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

    fn look_on(&mut self) -> Result<Option<Glance>, Ending> {
        match self.source.sample(self.core.began) {
            Ok(told) => Ok(Some(Glance { told, is_told: true, late: Duration::ZERO })),
            Err(error) => Err(self.source_failed(error)),
        }
    }

    /// Whatever QEMU says ends the wait.
    fn pause(&mut self, pause: Pause) -> Result<(), Ending> {
        let time_max = match pause {
            Pause::Still => POLL,
            Pause::Close => CLOSE_PAUSE,
            Pause::Usual => SAMPLE_PAUSE,
        };
        match self.source.wait_for_news(time_max) {
            Ok(_) => Ok(()),
            Err(error) => Err(self.source_failed(error)),
        }
    }

    fn attend(&mut self, told: &Told) -> Result<(), Ending> {
        if matches!(told.sample.phase, Phase::Setup | Phase::Precopy) {
            self.look_for_link();
        }
        self.keep_to_orders(told.sample.phase)?;
        if self.core.state.passage.can_be_called_back(told) { self.halt_if_job_began() } else { Ok(()) }
    }

    fn keep_share(&mut self, phase: Phase) -> Result<(), Ending> {
        let Some(rate) = self.core.new_share() else { return Ok(()) };
        if !matches!(phase, Phase::Setup | Phase::Precopy | Phase::PostCopy) {
            return Ok(());
        }
        let is_ahead = phase == Phase::PostCopy;
        match self.source.bound_rate(rate, is_ahead || self.core.wanted.allowed.postcopy) {
            Ok(()) => self.core.tell_share(Some(rate)),
            // There is no way back: it goes on with what it has, which nobody else is given then.
            Err(error) if is_ahead => {
                self.core.keeps = Some(rate);
                self.note(format!("it goes on with the share that it has: {}", error.chain()));
            }
            Err(error) => return Err(self.source_failed(error)),
        }
        Ok(())
    }

    fn keep_in_step(&mut self) {
        let is_far = !self.handover().round_trip.is_zero();
        let is_begun = self.mirrors == Mirrors::Begun && !self.pairs.is_empty();
        if is_begun && is_far && self.can[0].knows(IN_STEP_COMMAND) {
            self.mirrors = Mirrors::InStep;
            if let Err(error) = self.source.mirror_in_step(&self.pairs) {
                self.note(format!("writes to disks do not wait for the target: {}", error.chain()));
            }
        }
    }

    fn hand_over(&mut self) -> Result<(), Ending> {
        if self.may_go()? {
            self.hand_over_disks()?;
            let state = json!({"state": "pre-switchover"});
            self.source.qmp.execute("migrate-continue", state)?;
            self.core.state.passage.hand_over();
        }
        Ok(())
    }

    /// Not where they share a budget, which would be given to others at once.
    fn overlap(&self) -> Option<Duration> {
        let (by, _) = Carried::of_data(self.core.carried())?;
        let is_alone = self.mirrors == Mirrors::None && self.core.wanted.share.is_none();
        is_alone.then(|| by.round_trip())
    }

    fn let_go(&mut self) -> Result<(), Ending> {
        if self.core.is_link_waited_for() {
            return Ok(());
        }
        match self.is_there() {
            Ok(true) => self.core.state.passage.runs_ahead(),
            Ok(false) => {}
            Err(error) if error.is_of_connection() && self.is_target_gone() => {
                return Err(self.core.loses(Side::Target));
            }
            Err(error) if self.is_worth_waiting(&error) => self.reach_target(&error),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn halves(&mut self, told: &Told) -> ([Half; 2], Option<String>) {
        ([Half::of(&told.status), self.target_half()], Some(told.why()))
    }

    /// It is started there when it is known to have come ([`Move::let_go`]): until then QEMU may end the move as if nobody had
    /// asked, or give it up.
    fn start_postcopy(&mut self) -> Result<(), Ending> {
        if !self.can.iter().all(Ability::recovers) {
            self.note("these QEMUs do not know how to make the line of post-copy anew: if it breaks, the guest is lost");
        }
        if self.core.state.was_running {
            // QEMU 10.0 starts the guest again if it has sent everything and the line breaks before it has the target's
            // word, although it runs there. One that stood before it went ahead is left standing.
            self.source.mark_stopped()?;
            self.source.order("stop")?;
        }
        Ok(self.source.order("migrate-start-postcopy")?)
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

    fn send_eased(&mut self, (rate, _): (u64, bool), words: Option<String>) -> Result<(), Ending> {
        match self.source.bound_rate(rate, false) {
            Ok(()) => {
                words.into_iter().for_each(|words| self.note(words));
                Ok(())
            }
            Err(error) if error.is_of_connection() => Err(self.source_failed(error)),
            Err(error) => {
                self.core.state.follow.cannot_ease();
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
    fn try_line(&mut self, target: Half) -> Result<(), QemuError> {
        if target == Half::Silent {
            // Whether it has noticed it does not tell.
            let _ = self.target.pause_line();
        }
        let uri = self.target.wait_for_line(&self.options.uri, SETTLE_TIME_MAX)?;
        let to = self.goes_to(&uri).to_string();
        self.source.resume_to(&to)
    }
}
