//! A guest that moves with others: what is known of it before any of them begins, and its share of what all may send.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use drover_live::together::Beforehand;
use drover_live::{Ability, Facts, Found, Machine, Phase};

use super::{Ending, Event, LiveError, LiveOptions, Move, again};
use crate::error::{QemuError, QemuErrorKind};
use crate::live::core::{Adapter, Plan};
use crate::live::disks::Pair;
use crate::live::guest::Guest;
use crate::live::turn::{Dated, PAUSE, in_turn};

/// What a look at both sides found: a move that begins soon after does not look again.
#[derive(Clone, Debug)]
pub struct Looked(pub(super) Dated<Findings>);

#[derive(Clone, Debug)]
pub struct Findings {
    pub(super) facts: Facts,
    pub(super) can: [Ability; 2],
    pub(super) machine: Machine,
    pub(super) pairs: Vec<Pair>,
}

/// Looks at both sides of a move and measures; changes nothing. Whether its promise can be kept depends on what it may send,
/// which is not asked here. What was looked at is given too, but for a move that is under way.
///
/// # Errors
/// [`LiveError`]: what stands in the way, and where the guest is.
pub fn look_beforehand(
    source: &mut Guest,
    target: &mut Guest,
    options: &LiveOptions,
    tell: &mut dyn FnMut(Event),
) -> Result<(Beforehand, Option<Looked>), LiveError> {
    let stop = AtomicBool::new(false);
    let mut one = Move::new(source, target, options, &stop, tell);
    let unknown = |error: QemuError| LiveError::of_look(error.into());
    match one.find().map_err(unknown)? {
        Found::Nothing => {
            let found = one.beforehand().map_err(|cause| one.unsent(cause))?;
            Ok((found.0, Some(Looked(found.1))))
        }
        Found::Unclear(unclear) => Err(LiveError::of_look(Ending::Unclear(unclear))),
        found => {
            let told = one.source.sample(Instant::now()).map_err(unknown)?;
            Ok((one.left_to_do(again::words(&found), &told.sample), None))
        }
    }
}

impl Move<'_> {
    /// Before its turn nothing has to be asked that cannot be answered.
    pub(super) fn wait_for_link(&self) {
        let Some(turn) = &self.core.wanted.turn else { return };
        while self.is_link_away() && !self.core.is_stopped() && turn.is_to_come(PAUSE) {}
    }

    /// Chooses when what it may send is known: of a budget, in its turn. Looks before, unless that was done a moment ago.
    pub(super) fn look_in_turn(&mut self) -> Result<Dated<Plan>, Ending> {
        let facts = self.looked()?;
        let turn = self.core.wanted.turn.as_ref().filter(|_| self.core.wanted.share.is_some());
        let stop = self.core.stop;
        let facts = in_turn(turn, facts, stop, || self.inspect_again())?;
        facts.map(|facts| self.plan(&facts))
    }

    /// Waits for its turn, if it has not done so. What the guest is now counts, not what it was when it was looked at.
    pub(super) fn plan_in_turn(&mut self, plan: Dated<Plan>) -> Result<Plan, Ending> {
        let turn = self.core.wanted.turn.as_ref().filter(|_| self.core.wanted.share.is_none());
        let stop = self.core.stop;
        let look = || self.inspect_again().and_then(|facts| self.plan(&facts));
        let plan = in_turn(turn, plan, stop, look)?.what;
        if self.core.wanted.turn.is_some() && !self.source.is_still(&self.machine)? {
            self.note("it is another than it was when it was looked at: it is looked at again");
            return self.look();
        }
        Ok(plan)
    }

    /// Looks while others send. A monitor that was away meanwhile is connected to anew.
    fn inspect_again(&mut self) -> Result<Facts, Ending> {
        if self.is_link_away() {
            let what = "looking at the target while the link is away";
            return Err(QemuError::new(QemuErrorKind::Timeout, what).into());
        }
        match self.inspect() {
            Err(Ending::Failed(error)) if error.is_of_connection() && self.core.carried().is_some() => {
                self.target.connect_again()?;
                self.inspect()
            }
            other => other,
        }
    }

    /// Sends no more than its share, which may be another than it was.
    pub(super) fn keep_share(&mut self, phase: Phase) -> Result<(), Ending> {
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

    /// Bytes a second of its share for each of its disks.
    pub(super) fn share_of_mirror(&self) -> Option<u64> {
        let share = self.core.wanted.share.as_ref()?;
        Some((share.rate() / self.pairs.len().max(1) as u64).max(1))
    }

    /// The same while disks are copied. `bounded` is what was set last: the share, and how many follow each write.
    pub(super) fn keep_share_of_mirrors(&mut self, bounded: &mut Option<(u64, usize)>) -> Result<(), Ending> {
        let Some(share) = &self.core.wanted.share else { return Ok(()) };
        let rate = share.rate();
        let mut ready = 0;
        for pair in &self.pairs {
            ready += usize::from(self.source.mirror_state(pair)?.is_ready);
        }
        if *bounded != Some((rate, ready)) {
            self.source.bound_mirrors(&self.pairs, rate)?;
            *bounded = Some((rate, ready));
        }
        self.keep_share(Phase::Setup)
    }
}
