//! Leave to move over that somebody else gives, beside what the schedule lets.

use super::{Schedule, Slots};

impl Schedule {
    /// Lets no VM move over whose guest is not down, until that is taken back: for runs whose cutovers somebody else admits.
    pub fn hold_cutovers(&self, held: bool) {
        self.lock().scheduler.hold_cutovers(held);
        self.changed.notify_all();
    }

    /// The same, unless a VM asks to move over now, or moves over. Whether they are held by that.
    pub fn hold_unless_asked(&self) -> bool {
        self.lock().scheduler.hold_unless_asked()
    }

    /// Whether a VM asks to move over now, or moves over.
    pub fn asks_cutover(&self) -> bool {
        self.lock().scheduler.asks_cutover()
    }
}

impl Slots<'_> {
    /// Whether somebody else is to let it move over, and has not yet.
    pub(crate) fn waits_for_leave(&self) -> bool {
        self.schedule.lock().scheduler.are_cutovers_held()
    }
}
