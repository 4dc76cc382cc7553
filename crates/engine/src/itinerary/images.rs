//! Whether the images that earlier runs left are still what was copied.

use drover_mover::{look, recorded};
use drover_plan::PlannedDisk;

use super::{Journey, Outcome};
use crate::error::{Cause, ProviderError};
use crate::parallel::in_parallel;

impl Journey<'_> {
    /// Reads some recorded blocks of each image before it is gone on with. One that somebody wrote to, emptied or
    /// replaced is refused: what its journal says is not true of it, and what it holds is not drover's to overwrite.
    pub(super) fn check_images(&self) -> Outcome<()> {
        if self.context.target.is_one_way(self.planned)? {
            return Ok(());
        }
        let disks: Vec<&PlannedDisk> = self.planned.disks.iter().collect();
        in_parallel(self.disks_at_once(), &disks, self.context.stop, |disk, _| self.check_image(disk))?;
        Ok(())
    }

    fn check_image(&self, disk: &PlannedDisk) -> Outcome<()> {
        let target = self.context.target;
        let journal = target.journal(disk, self.planned);
        if !journal.exists() || !target.has_image(disk, self.planned)? {
            return Ok(());
        }
        // A journal that cannot be read is not believed, and started again.
        let Ok(found) = recorded(&journal) else { return Ok(()) };
        if found.leaves.known_blocks() == 0 {
            return Ok(());
        }
        let image = match target.open_for_verify(disk, self.planned) {
            Err(error) if error.cause == Cause::Target => {
                return Err(self.was_changed(disk, "it cannot be read as an image").because(error).into());
            }
            image => image?,
        };
        let held = look(image.as_ref(), &found.leaves)
            .map_err(|error| self.copy_error(disk, error.into(), image.as_ref()))?;
        // Converter and guest wrote to what was complete before they did; they do not write all of it anew.
        let may_differ = self.touched_before && !self.is_warm() && found.complete.is_some();
        if held.is_all() || may_differ && !held.is_another() {
            return Ok(());
        }
        let what =
            format!("{} of {} blocks that were looked at are not as recorded", held.differing, held.blocks);
        Err(self.was_changed(disk, &what).into())
    }

    fn was_changed(&self, disk: &PlannedDisk, what: &str) -> ProviderError {
        let place = self.planned.place_of(disk);
        let what = format!("{} was changed since its journal was made: {what}", place.display());
        ProviderError::new(Cause::Target, what)
            .advise("see who writes to it; if it may go, remove it, and `drover resume` copies it anew")
    }
}
