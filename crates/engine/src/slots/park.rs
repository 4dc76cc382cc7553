//! Slots that a VM lets others have until it wants them again.

use super::{Slots, now};

impl Slots<'_> {
    /// Lets others have them until [`Slots::take`]; nothing if that is so already. Its host, its datastores and the places at its target
    /// served it well.
    pub(crate) fn park(&self) {
        let mut state = self.schedule.lock();
        if state.let_out(self.id) {
            state.scheduler.park(self.id, now(self.clock));
            self.schedule.changed.notify_all();
        }
    }

    /// The same where that tells nothing of them: its pass failed, or it made none.
    pub(crate) fn park_untold(&self) {
        let mut state = self.schedule.lock();
        if state.let_out(self.id) {
            state.scheduler.park_untold(self.id, now(self.clock));
            self.schedule.changed.notify_all();
        }
    }

    /// Whether its host, a datastore of it or a place at its target is being tried with the VM.
    pub(crate) fn is_tried(&self) -> bool {
        self.schedule.lock().scheduler.is_tried(self.id)
    }
}
