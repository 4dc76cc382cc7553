//! A guest that moves with others: what is known of it before any of them begins, and its share of what all may send.

use drover_live::{Ability, Facts, Machine, Phase};

use super::{Ending, Move};
use crate::error::{QemuError, QemuErrorKind};
use crate::live::core::{Adapter, Plan};
use crate::live::disks::Pair;
use crate::live::turn::{Dated, in_turn};

/// What a look at both sides found: a move that begins soon after does not look again.
#[derive(Clone, Debug)]
pub struct Looked(pub(in crate::live) Dated<Findings>);

#[derive(Clone, Debug)]
pub struct Findings {
    pub(super) facts: Facts,
    pub(super) can: [Ability; 2],
    pub(super) machine: Machine,
    pub(super) pairs: Vec<Pair>,
}

impl Move<'_> {
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
    pub(super) fn inspect_again(&mut self) -> Result<Facts, Ending> {
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
