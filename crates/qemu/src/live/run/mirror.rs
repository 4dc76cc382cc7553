//! Disks that go with the guest: mirrored while it runs, handed over while it stands still.

use drover_live::{Machine, Obstacle, unshared};

use super::{DisksBy, Ending, Event, MIRROR_END_TIME_MAX, Mirrors, Move, SAMPLE_PAUSE};
use crate::error::QemuError;
use crate::live::carried::Carried;
use crate::live::disks::Pair;

/// Changes a mirror on its way, in QEMU 8.2 and later.
pub(super) const IN_STEP_COMMAND: &str = "block-job-change";

impl Move<'_> {
    /// Disks that have to be mirrored.
    pub(super) fn pairs_of(&self, from: &Machine, to: &Machine, found: &mut Vec<Obstacle>) -> Vec<Pair> {
        if let DisksBy::Shared { assume_shared } = self.options.disks {
            if !assume_shared {
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

    /// Copies all disks once; from then on writes go to both sides.
    pub(super) fn mirror(&mut self) -> Result<(), Ending> {
        let DisksBy::Mirror(at) = &self.options.disks else { return Ok(()) };
        if self.pairs.is_empty() {
            return Ok(());
        }
        let tls = self.tls();
        self.mirrors = Mirrors::Begun;
        self.is_offered = true;
        self.target.offer(&self.pairs, at, tls.as_ref())?;
        let from_here = Carried::of_data(self.core.carried()).map_or(at, |(_, ends)| &ends.disks);
        for pair in &self.pairs {
            self.source.mirror(pair, from_here, &self.can[0], tls.as_ref(), self.share_of_mirror())?;
        }
        let mut bounded = None;
        loop {
            self.keep_share_of_mirrors(&mut bounded)?;
            let mut ready = 0;
            for pair in &self.pairs {
                let state = self.source.mirror_state(pair)?;
                self.core.tell(Event::Disk { name: pair.name.clone(), state });
                ready += usize::from(state.is_ready);
            }
            if ready == self.pairs.len() {
                return self.keep_share_of_mirrors(&mut bounded);
            }
            self.core.halt_if_stopped()?;
            self.core.look_at_link();
            std::thread::sleep(SAMPLE_PAUSE);
        }
    }

    /// The guest stands still: its disks become equal, and nobody but the target's guest writes there from now on.
    pub(super) fn hand_over_disks(&mut self) -> Result<(), Ending> {
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
}
