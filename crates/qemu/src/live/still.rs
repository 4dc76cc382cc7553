//! The time in which a guest stands still to be handed over.

use std::time::{Duration, Instant};

use drover_live::Phase;

use super::carried::{Carried, Hurry};

/// For which it may stand, however short a downtime was promised, and in promised downtimes.
const TIME_MAX: Duration = Duration::from_secs(30);
const DOWNTIMES: u32 = 10;
/// For which what carries the move hurries: others use it, too, and a line that is cut is none the better for it.
const HURRY_TIME_MAX: Duration = Duration::from_secs(3);

/// Whether a guest stands, and since when.
#[derive(Default)]
pub(super) struct Still {
    since: Option<Instant>,
    hurry: Option<Hurry>,
}

impl Still {
    /// It stands. Fails if it does for so long that it is better off where it was.
    pub fn goes_on(&mut self, carried: Option<&Carried>, downtime_max: Duration) -> Result<(), &'static str> {
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.hurry.is_none() && since.elapsed() <= HURRY_TIME_MAX {
            self.hurry = carried.and_then(|carried| carried.by.hurry());
        }
        self.waits();
        match since.elapsed() > TIME_MAX.max(downtime_max * DOWNTIMES) {
            true => Err("the guest was paused for too long to be handed over"),
            false => Ok(()),
        }
    }

    /// For how long it has stood.
    pub fn lasts(&self) -> Duration {
        self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// It stands no more. One that is done at the source does until it runs at the target.
    pub fn is_over(&mut self, phase: Phase) {
        if phase != Phase::Done {
            *self = Still::default();
        }
    }

    /// It is waited for, perhaps after it was handed over.
    pub fn waits(&mut self) {
        if self.since.is_none_or(|since| since.elapsed() > HURRY_TIME_MAX) {
            self.hurry = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicIsize, Ordering};

    use super::*;
    use crate::live::Carrier;

    /// A link, by how many hurry on it, and how many ever did.
    #[derive(Default)]
    struct Link(Arc<AtomicIsize>, AtomicIsize);

    struct Guard(Arc<AtomicIsize>);

    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    impl Carrier for Link {
        fn site(&self) -> &str {
            "site-b"
        }

        fn round_trip(&self) -> Duration {
            Duration::ZERO
        }

        fn is_up(&self) -> bool {
            true
        }

        fn is_waited_for(&self) -> bool {
            true
        }

        fn hurry(&self) -> Option<Hurry> {
            self.0.fetch_add(1, Ordering::Relaxed);
            self.1.fetch_add(1, Ordering::Relaxed);
            Some(Hurry::new(Guard(self.0.clone())))
        }

        fn has_nobody(&self) -> bool {
            false
        }
    }

    #[test]
    fn the_link_hurries_while_the_guest_stands_and_not_for_long() {
        let hurries = Arc::new(AtomicIsize::new(0));
        let by = Arc::new(Link(hurries.clone(), AtomicIsize::new(0)));
        let carried = Carried { by: by.clone(), ends: None };
        let downtime = Duration::from_millis(300);
        let count = || hurries.load(Ordering::Relaxed);
        let mut still = Still::default();
        still.waits();
        assert_eq!(count(), 0);
        for _ in 0..3 {
            assert_eq!(still.goes_on(Some(&carried), downtime), Ok(()));
            assert_eq!(count(), 1);
        }
        still.since = Some(Instant::now() - HURRY_TIME_MAX - downtime);
        assert_eq!((still.goes_on(Some(&carried), downtime), count()), (Ok(()), 0));
        assert_eq!((still.goes_on(Some(&carried), downtime), by.1.load(Ordering::Relaxed)), (Ok(()), 1));
        still.since = Some(Instant::now() - TIME_MAX - downtime);
        assert!(still.goes_on(None, downtime).is_err());
        let mut still = Still::default();
        assert_eq!((still.goes_on(Some(&carried), downtime), count()), (Ok(()), 1));
        drop(still);
        assert_eq!(count(), 0);
    }
}
