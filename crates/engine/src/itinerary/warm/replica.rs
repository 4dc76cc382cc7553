//! What the target holds before the machine moves over, and whether it is still that.

use std::time::Instant;

use drover_copy::{LeafTable, Mismatch};
use drover_mover::{StopSignal, Verification, hash, recorded_leaves, verify_blocks};
use drover_plan::{PlannedDisk, Verify};
use drover_types::{BLOCK_BYTES, count};

use crate::error::EngineError;
use crate::event::DiskActivity;
use crate::itinerary::{Copied, Journey, Outcome};
use crate::parallel::in_parallel;

impl Journey<'_> {
    /// Reads all of the replica back while the guest still runs, so that only what is copied last is left
    /// to compare when it is down. False if there is nothing to do.
    pub(super) fn prove_replica(&mut self) -> Outcome<bool> {
        if self.planned.verify != Verify::Full {
            return Ok(false);
        }
        self.slots.park_untold();
        self.note("the replica is read back before the guest is shut down".into());
        let this = &*self;
        let disks: Vec<&PlannedDisk> = self.planned.disks.iter().collect();
        let proved = in_parallel(this.disks_at_once(), &disks, this.context.stop, |disk, stop| {
            let (leaves, differing) = this.compare_replica(disk, stop)?;
            match differing.first() {
                None => Ok(leaves),
                Some(first) => Err(this.differs(disk, differing.len(), leaves.blocks(), first)),
            }
        })?;
        self.proved = Some(proved);
        Ok(true)
    }

    /// What a pass overwrote since the replica was read back is to be read back again.
    pub(super) fn forget_proof(&mut self) {
        let proved = self.proved.iter_mut().flatten();
        proved
            .zip(self.copies.iter().flatten())
            .for_each(|(proved, copied)| proved.forget_others(&copied.leaves));
    }

    /// After a cutover that did not end well, converter or guest may have written to the images. Blocks
    /// that are not what was copied would be kept by every later pass.
    pub(super) fn check_replica(&mut self) -> Outcome<()> {
        let (store, plan, id) = (self.context.store, self.context.plan, &self.planned.vm.id);
        if !store.warm(plan, id)?.replica_touched {
            return Ok(());
        }
        self.slots.park_untold();
        let this = &*self;
        let disks: Vec<&PlannedDisk> = self.planned.disks.iter().collect();
        let differing = in_parallel(this.disks_at_once(), &disks, this.context.stop, |disk, stop| {
            // An earlier run died while it removed what had been changed.
            let target = this.context.target;
            if !target.journal(disk, this.planned).exists() || !target.has_image(disk, this.planned)? {
                return Ok(disk.disk.capacity_bytes.div_ceil(BLOCK_BYTES) as usize);
            }
            Ok(this.compare_replica(disk, stop)?.1.len())
        })?;
        let blocks: usize = differing.iter().sum();
        if blocks > 0 {
            self.note(format!(
                "the last cutover changed {} of the replica, so it is copied anew",
                count(blocks, "block")
            ));
            self.context.target.remove_images(self.planned)?;
            self.context.target.prepare(self.planned)?;
            store.forget_passes(plan, id)?;
        }
        store.set_replica_touched(plan, id, false)?;
        Ok(())
    }

    pub(in crate::itinerary) fn set_untouched(&self) -> Outcome<()> {
        if self.is_warm() {
            self.context.store.set_replica_touched(self.context.plan, &self.planned.vm.id, false)?;
        }
        Ok(())
    }

    /// What was recorded of a disk, and the blocks of its image that are something else.
    fn compare_replica(&self, disk: &PlannedDisk, stop: &StopSignal) -> Outcome<(LeafTable, Vec<Mismatch>)> {
        let target = self.context.target.open_for_verify(disk, self.planned)?;
        let leaves = recorded_leaves(&self.context.target.journal(disk, self.planned))
            .map_err(|error| self.copy_error(disk, error.into(), target.as_ref()))?;
        let live = self.enter(disk, DiskActivity::Verify);
        let found = hash(target.as_ref(), leaves.size(), None, self.context.options, &live, stop);
        self.context.board.leave(&live);
        let found = found.map_err(|error| self.copy_error(disk, error, target.as_ref()))?;
        let differing = leaves.mismatches(&found.leaves).collect();
        Ok((leaves, differing))
    }

    /// Compares what the last pass brought with the images: all of it, or, where the rest was compared
    /// before the shutdown, what has changed since.
    pub(in crate::itinerary) fn verify_replica(&mut self) -> Outcome<()> {
        let Some(proved) = self.proved.take() else { return self.verify_disks() };
        let disks = self.planned.disks.iter().zip(self.copies.iter().flatten()).zip(&proved);
        let work: Vec<_> = disks.collect();
        let this = &*self;
        in_parallel(this.disks_at_once(), &work, this.context.stop, |((disk, copied), proved), stop| {
            this.verify_changed(disk, copied, proved, stop)
        })?;
        Ok(())
    }

    fn verify_changed(
        &self,
        disk: &PlannedDisk,
        copied: &Copied,
        proved: &LeafTable,
        stop: &StopSignal,
    ) -> Outcome<()> {
        let started = Instant::now();
        let changed: Vec<Mismatch> = copied.leaves.not_in(proved).collect();
        let target = self.context.target.open_for_verify(disk, self.planned)?;
        let live = self.enter(disk, DiskActivity::Verify);
        let found = verify_blocks(target.as_ref(), &copied.leaves, &changed, &live, stop);
        self.context.board.leave(&live);
        let found = found.map_err(|error| self.copy_error(disk, error, target.as_ref()))?;
        let is_equal = found.is_equal();
        // The blocks that did not change since were compared before the shutdown.
        let all = Verification {
            blocks: copied.leaves.blocks(),
            target_root: is_equal.then(|| copied.leaves.root()).flatten(),
            elapsed: started.elapsed(),
            ..found
        };
        self.keep_verification(disk, &all)?;
        match all.mismatches.first() {
            None => Ok(()),
            Some(first) => Err(self.differs(disk, all.mismatches.len(), all.blocks, first)),
        }
    }

    fn differs(&self, disk: &PlannedDisk, blocks: usize, compared: u64, first: &Mismatch) -> EngineError {
        let disk = format!("{}/{}", self.planned.target_name, disk.disk.label);
        EngineError::Differs { disk, blocks, compared, first: first.span }
    }
}
