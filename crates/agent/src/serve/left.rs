//! What a peer's program left connected to a unix socket when it was killed: its session is kept for the time in which it may come
//! back, and a QEMU serves one client of its monitor. Who says that it takes over gets the place.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use drover_link::{Channel, Sender, Session, SessionState, WeakSender, WeakSession};

/// In which a session may come back before another of the same peer takes its places.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// For which another waits at most: sessions may go one after the other.
const WAIT_MAX: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that are remembered, of all peers; the oldest are forgotten.
const PLACES_MAX: usize = 4096;
/// What goes by the path of a unix socket: ports serve many.
const UNIX: &str = "unix:";

/// A connection that makes way. What ends meanwhile ends for itself.
struct Held {
    to: String,
    session: WeakSession,
    channel: WeakSender,
}

/// Connections that make way.
#[derive(Default)]
pub(super) struct Left(Mutex<Vec<Held>>);

/// One whose session has no connection, and for how long.
struct Lost {
    channel: Sender,
    away: Duration,
}

impl Left {
    fn held(&self) -> MutexGuard<'_, Vec<Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A peer comes to a place, on this channel. Connections of its other sessions to the same place, and to those beside it that
    /// are the same guest's (`PLACE.memory`, `PLACE.disks`), end if their session has been without a connection for a time, which is waited for.
    pub(super) fn comes(&self, session: &Session, to: &str, channel: &Channel) {
        if !to.starts_with(UNIX) {
            return;
        }
        let until = Instant::now() + WAIT_MAX;
        loop {
            let lost = self.lost(session, to);
            let (over, waits): (Vec<Lost>, Vec<Lost>) =
                lost.into_iter().partition(|one| one.away >= BACK_WITHIN);
            over.iter().for_each(|one| one.channel.reset());
            if waits.is_empty() || Instant::now() >= until {
                break;
            }
            thread::sleep(PAUSE);
        }
        let mut held = self.held();
        if held.len() >= PLACES_MAX {
            held.remove(0);
        }
        let (session, channel) = (session.downgrade(), channel.sender().downgrade());
        held.push(Held { to: to.to_string(), session, channel });
    }

    /// Those of other sessions of the same peer that have no connection at this moment.
    fn lost(&self, session: &Session, to: &str) -> Vec<Lost> {
        let mut held = self.held();
        held.retain(|one| one.channel.upgrade().is_some());
        let there = held.iter().filter(|one| is_of(&one.to, to));
        let both = there.filter_map(|one| Some((one.session.upgrade()?, one.channel.upgrade()?)));
        let both: Vec<(Session, Sender)> = both.collect();
        drop(held);
        let is_other = |other: &Session| {
            !other.is_same(session) && other.peer().fingerprint == session.peer().fingerprint
        };
        let lost = both.into_iter().filter(|(other, _)| is_other(other));
        lost.filter_map(|(other, channel)| match other.stats().state {
            SessionState::Reconnecting(away) => Some(Lost { channel, away }),
            SessionState::Up | SessionState::Ended(_) => None,
        })
        .collect()
    }
}

/// Whether a place is this one or belongs to it.
fn is_of(place: &str, to: &str) -> bool {
    place.strip_prefix(to).is_some_and(|rest| rest.is_empty() || OWN.contains(&rest))
}

/// What lies beside a monitor for the same guest, as `drover live` places it.
const OWN: [&str; 2] = [".memory", ".disks"];
