//! Places that a peer is connected to over sessions which it has left without a word, as one whose program was killed: a
//! QEMU serves one client of its monitor, so who comes again would wait until the session is given up.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use drover_link::{Session, SessionState, WeakSession};

/// In which a session may come back before another of the same peer takes its place.
const BACK_WITHIN: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(100);
/// Places that are remembered, of all peers; the oldest are forgotten.
const PLACES_MAX: usize = 4096;
/// What goes by the path of a unix socket: others serve many.
const UNIX: &str = "unix:";

/// A place, and the session over which it was connected to.
struct Place {
    to: String,
    session: WeakSession,
}

/// Who is connected where.
#[derive(Default)]
pub(super) struct Left(Mutex<Vec<Place>>);

impl Left {
    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A peer connects there over a session. Others of its sessions that are connected there and have had no connection of
    /// their own for a time end; they are waited for until then.
    pub(super) fn comes(&self, session: &Session, to: &str) {
        if !to.starts_with(UNIX) {
            return;
        }
        loop {
            let lost = self.lost(session, to);
            let Some((_, first)) = lost.iter().max_by_key(|(_, away)| *away) else { break };
            if *first < BACK_WITHIN {
                thread::sleep(PAUSE);
                continue;
            }
            lost.iter().filter(|(_, away)| *away >= BACK_WITHIN).for_each(|(session, _)| session.abandon());
        }
        let mut places = self.places();
        let is_known =
            |place: &Place| place.to == to && place.session.upgrade().is_some_and(|it| it.is_same(session));
        if !places.iter().any(is_known) {
            if places.len() >= PLACES_MAX {
                places.remove(0);
            }
            places.push(Place { to: to.to_string(), session: session.downgrade() });
        }
    }

    /// Other sessions of the same peer that were connected there and have no connection at this moment, and for how long.
    fn lost(&self, session: &Session, to: &str) -> Vec<(Session, Duration)> {
        let mut places = self.places();
        places.retain(|place| place.session.upgrade().is_some_and(|session| !crate::is_over(&session)));
        let there = places.iter().filter(|place| place.to == to).filter_map(|place| place.session.upgrade());
        let is_other = |other: &Session| {
            !other.is_same(session) && other.peer().fingerprint == session.peer().fingerprint
        };
        let away = |other: Session| match other.stats().state {
            SessionState::Reconnecting(away) => Some((other, away)),
            SessionState::Up | SessionState::Ended(_) => None,
        };
        there.filter(is_other).filter_map(away).collect()
    }
}
