//! How the connections of some workers stand, for whoever asks: of a relay, or of the far end of a pair.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use crate::stats::{Snapshot, Totals};
use crate::worker::{Inbox, Job, Told};

/// How long a worker may take to tell how it stands.
const TELL_MAX: Duration = Duration::from_secs(5);

/// Asks a relay, or the far end of a pair, how it stands.
#[derive(Clone)]
pub struct Teller {
    tell: Arc<dyn Fn(usize) -> Snapshot + Send + Sync>,
}

impl Teller {
    pub(crate) fn new(tell: impl Fn(usize) -> Snapshot + Send + Sync + 'static) -> Teller {
        Teller { tell: Arc::new(tell) }
    }

    /// How it stands, with this many of the fastest connections. A worker that does not answer in 5 s is left
    /// out.
    pub fn snapshot(&self, connections: usize) -> Snapshot {
        (self.tell)(connections)
    }
}

/// What workers tell, the fastest of their connections first, and `totals` of what none of them knows. How many live, and
/// what is beside workers, is the caller's to fill in.
pub(crate) fn gathered(
    inboxes: &[Arc<Inbox>],
    connections: usize,
    started: Instant,
    totals: Totals,
) -> Snapshot {
    let (reply, told) = sync_channel::<Told>(inboxes.len());
    for inbox in inboxes {
        inbox.put(Job::Snapshot(connections, reply.clone()));
    }
    drop(reply);
    let age_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    let mut snapshot = Snapshot { age_us, totals, ..Snapshot::default() };
    while let Ok(told) = told.recv_timeout(TELL_MAX) {
        snapshot.totals.sum(&told.totals);
        snapshot.connections.extend(told.connections);
    }
    snapshot.connections.sort_by_key(|it| (std::cmp::Reverse(it.bytes_per_second()), it.id));
    snapshot.connections.truncate(connections);
    snapshot
}
