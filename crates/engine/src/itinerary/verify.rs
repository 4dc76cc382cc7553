//! The images are read back and compared.

use drover_mover::{StopSignal, Verification, Verify, recorded, verify};
use drover_plan::PlannedDisk;

use super::{Copied, Journey, Outcome, millis};
use crate::error::{Cause, EngineError, ProviderError};
use crate::event::{DiskActivity, Event};
use crate::parallel::in_parallel;
use crate::store::DiskRow;

impl Journey<'_> {
    pub(super) fn verify_disks(&mut self) -> Outcome<()> {
        if self.planned.verify == drover_plan::Verify::None {
            self.note("not verified, as the plan says".into());
            return Ok(());
        }
        if self.context.target.is_one_way(self.planned)? {
            self.planned.disks.iter().try_for_each(|disk| self.check_sent(disk))?;
            self.note(
                "NOT VERIFIED: the target gives nothing back, so the roots are of what was sent".into(),
            );
            return Ok(());
        }
        let work: Vec<(&PlannedDisk, &Copied)> =
            self.planned.disks.iter().zip(self.copies.iter().flatten()).collect();
        let this = &*self;
        in_parallel(this.disks_at_once(), &work, this.context.stop, |(disk, copied), stop| {
            this.verify_disk(disk, copied, stop)
        })?;
        Ok(())
    }

    /// The disk that was sent is there still, and is no other.
    fn check_sent(&self, disk: &PlannedDisk) -> Outcome<()> {
        let target = self.context.target;
        let tag = target.one_way(disk, self.planned)?.tag()?;
        let journal = target.journal(disk, self.planned);
        let is_it = |tag: String| recorded(&journal).is_ok_and(|found| found.header.is_to(&tag));
        if tag.is_some_and(is_it) {
            return Ok(());
        }
        let place = self.planned.place_of(disk);
        let what = format!("{} is not there any more, or is another than was sent", place.display());
        Err(ProviderError::new(Cause::Target, what).advise("see who removed it, then `drover resume`").into())
    }

    pub(super) fn verify_disk(&self, disk: &PlannedDisk, copied: &Copied, stop: &StopSignal) -> Outcome<()> {
        if self.was_verified_before(disk, copied)? {
            self.note(format!(
                "{}: verified before it was first converted or started, and not copied again since, so not compared again",
                disk.disk.label
            ));
            return Ok(());
        }
        let leaves = &copied.leaves;
        let target = self.context.target.open_for_verify(disk, self.planned)?;
        let how = how_to_verify(self.planned.verify, leaves.blocks());
        let live = self.enter(disk, DiskActivity::Verify);
        let result = verify(target.as_ref(), leaves, how, self.context.options, &live, stop);
        self.context.board.leave(&live);
        let found = result.map_err(|source| self.copy_error(disk, source, target.as_ref()))?;
        self.keep_verification(disk, &found)?;
        match found.mismatches.first() {
            None => Ok(()),
            Some(first) => Err(EngineError::Differs {
                disk: format!("{}/{}", self.planned.target_name, disk.disk.label),
                blocks: found.mismatches.len(),
                compared: found.blocks,
                first: first.span,
            }),
        }
    }

    pub(super) fn keep_verification(&self, disk: &PlannedDisk, found: &Verification) -> Outcome<()> {
        let row = self.stored_disk(disk)?;
        let row = DiskRow {
            target_root: found.target_root.map(|root| root.to_hex()),
            blocks_verified: Some(found.blocks),
            differing: Some(found.mismatches.len() as u64),
            verify_ms: Some(millis(found.elapsed)),
            ..row.unwrap_or_else(|| self.disk_row(disk))
        };
        self.context.store.put_disk(self.context.plan, &row)?;
        self.tell(Event::DiskVerified {
            vm: self.name(),
            disk: disk.disk.label.clone(),
            blocks: found.blocks,
            blocks_total: found.blocks_total,
            equal: found.is_equal(),
        });
        Ok(())
    }

    /// A converter or a guest may have written to the images: then the earlier verification counts.
    pub(super) fn was_verified_before(&self, disk: &PlannedDisk, copied: &Copied) -> Outcome<bool> {
        if self.is_warm() || !self.touched_before || copied.read_anything {
            return Ok(false);
        }
        let row = self.stored_disk(disk)?;
        Ok(row.is_some_and(|row| row.differing == Some(0) && row.root.as_deref() == Some(&copied.root)))
    }
}

fn how_to_verify(plan: drover_plan::Verify, blocks: u64) -> Verify {
    match plan {
        drover_plan::Verify::None => Verify::None,
        drover_plan::Verify::Full => Verify::Full,
        drover_plan::Verify::Sampled { blocks: wanted } => {
            let seed = std::time::SystemTime::now()
                .duration_since(std::time::UNIX_EPOCH)
                .unwrap_or_default()
                .subsec_nanos();
            Verify::Sampled { share: wanted as f64 / blocks.max(1) as f64, seed: u64::from(seed) }
        }
    }
}
