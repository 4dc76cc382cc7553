//! The time in which a guest stands still to be handed over.

use std::time::{Duration, Instant};

use super::carried::{Carried, Hurry};

/// For which it may stand, however short a downtime was promised, and in promised downtimes.
const TIME_MAX: Duration = Duration::from_secs(30);
const DOWNTIMES: u32 = 10;

/// Whether a guest stands, and since when.
#[derive(Default)]
pub(super) struct Still {
    since: Option<Instant>,
    /// What carries the move hurries until that is over.
    hurry: Option<Hurry>,
}

impl Still {
    /// It stands. Fails if it does for so long that it is better off where it was.
    pub fn goes_on(&mut self, carried: Option<&Carried>, downtime_max: Duration) -> Result<(), &'static str> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if let (None, Some(carried)) = (&self.hurry, carried) {
            self.hurry = Some(carried.by.hurry());
        }
        match since.elapsed() > TIME_MAX.max(downtime_max * DOWNTIMES) {
            true => Err("the guest stood still for too long to be handed over"),
            false => Ok(()),
        }
    }
}
