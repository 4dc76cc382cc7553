//! The sessions of a listener, and how much of this host's memory each peer may have by them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::connect::random;
use crate::core::Limits;
use crate::error::{LinkError, LinkErrorKind};
use crate::shared::Shared;
use crate::shares;

/// The sessions of a listener.
pub struct Table {
    entries: Arc<Mutex<Entries>>,
    limits: Limits,
    sessions_max: usize,
    bytes_max: u64,
}

/// By their ids.
type Entries = HashMap<[u8; 16], Entry>;

/// A session that connections may join.
struct Entry {
    fingerprint: [u8; 32],
    /// What it can hold in memory as long as it is not over.
    bytes_max: u64,
    /// `None` while its first connection is greeted.
    made: Option<(Weak<Shared>, [u8; 32])>,
}

/// Room for a session that is about to be made; free again when this goes, unless it was made.
pub struct Room {
    entries: Arc<Mutex<Entries>>,
    session: [u8; 16],
    limits: Limits,
}

impl Table {
    /// An empty one, for so many sessions that hold so much in all, one peer's half of it.
    pub fn new(limits: Limits, sessions_max: usize, bytes_max: u64) -> Table {
        Table { entries: Arc::default(), limits, sessions_max, bytes_max }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        let mut entries = lock(&self.entries);
        entries.retain(|_, entry| entry.holds_anything());
        entries
    }

    /// Connections of all sessions, and of those of this peer.
    pub fn connections(&self, fingerprint: [u8; 32]) -> (usize, usize) {
        let entries = self.lock();
        let all = entries.values().map(Entry::connections).sum();
        let own = entries.values().filter(|entry| entry.fingerprint == fingerprint).map(Entry::connections);
        (all, own.sum())
    }

    /// The session that has this id and token.
    pub fn find(&self, session: &[u8; 16], token: &[u8; 32]) -> Option<Arc<Shared>> {
        let entries = self.lock();
        let entry = entries.get(session).filter(|entry| entry.is_alive())?;
        let (shared, secret) = entry.made.as_ref()?;
        shared.upgrade().filter(|_| is_same(secret, token))
    }

    /// Room for one more session of this peer. Its sessions that have no connection make way.
    ///
    /// # Errors
    /// Why there is none.
    pub fn room(&self, fingerprint: [u8; 32]) -> Result<Room, String> {
        let mut entries = self.lock();
        let limits = loop {
            let bytes = |all: bool| -> u64 {
                let counted = entries.values().filter(|entry| all || entry.fingerprint == fingerprint);
                counted.map(Entry::bytes).sum()
            };
            let left = self.bytes_max.saturating_sub(bytes(true));
            let left = left.min((self.bytes_max / 2).saturating_sub(bytes(false)));
            let sessions = entries.values().filter(|entry| entry.is_alive()).count();
            match shares::share(&self.limits, left) {
                Some(limits) if sessions < self.sessions_max => break limits,
                _ if end_one_left_behind(&entries, fingerprint) => {}
                _ if sessions >= self.sessions_max => {
                    return Err(format!("there are {sessions} sessions already"));
                }
                _ => {
                    return Err("there is no memory left for another session: others have to end first, or \
                        the agent be given more"
                        .into());
                }
            }
        };
        let mut session = [0; 16];
        random(&mut session).map_err(|error| error.text)?;
        entries.insert(session, Entry { fingerprint, bytes_max: shares::bytes_of(&limits), made: None });
        Ok(Room { entries: self.entries.clone(), session, limits })
    }
}

fn lock(entries: &Mutex<Entries>) -> MutexGuard<'_, Entries> {
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Room {
    /// The id of the session.
    pub fn session(&self) -> [u8; 16] {
        self.session
    }

    /// Its bounds.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The session is made: the room is its own for as long as it lives.
    pub fn take(self, shared: &Arc<Shared>, token: [u8; 32]) {
        if let Some(entry) = lock(&self.entries).get_mut(&self.session) {
            entry.made = Some((Arc::downgrade(shared), token));
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut entries = lock(&self.entries);
        if entries.get(&self.session).is_some_and(|entry| entry.made.is_none()) {
            entries.remove(&self.session);
        }
    }
}

impl Entry {
    fn shared(&self) -> Option<Arc<Shared>> {
        self.made.as_ref().and_then(|made| made.0.upgrade())
    }

    fn connections(&self) -> usize {
        self.shared().map_or(0, |shared| shared.lock().stripes.len())
    }

    fn is_alive(&self) -> bool {
        self.made.is_none() || self.shared().is_some_and(|shared| shared.lock().core.ended().is_none())
    }

    /// What it can hold. Of a session that is over, what the program has not read yet.
    fn bytes(&self) -> u64 {
        match self.shared() {
            _ if self.is_alive() => self.bytes_max,
            Some(shared) => shared.lock().core.memory().1,
            None => 0,
        }
    }

    fn holds_anything(&self) -> bool {
        self.is_alive() || self.bytes() > 0
    }
}

/// Ends the session of a peer that is without a connection for the longest time, if there is one: most
/// likely its process is gone, and the one that asks now is its successor.
fn end_one_left_behind(entries: &Entries, fingerprint: [u8; 32]) -> bool {
    let left = |entry: &Entry| {
        let shared = entry.shared().filter(|_| entry.fingerprint == fingerprint && entry.is_alive())?;
        let since = shared.lock().core.none_since()?;
        Some(shared.now().saturating_sub(since))
    };
    let longest = entries.iter().filter_map(|(id, entry)| Some((left(entry)?, *id))).max();
    let Some(shared) = longest.and_then(|(_, id)| entries.get(&id)?.shared()) else { return false };
    shared.with(|inner, _| {
        let text = "it had no connection, and its peer needed room for another session";
        inner.core.end(LinkError::new(LinkErrorKind::Lost, text));
    });
    true
}

/// Compares secrets in a time that does not depend on them.
fn is_same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(one, other).is_ok()
}
