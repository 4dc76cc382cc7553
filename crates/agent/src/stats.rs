//! What went over a link for one disk, and what did not have to.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counts, by several threads.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    taken: AtomicU64,
    plain: AtomicU64,
    wire: AtomicU64,
    read: AtomicU64,
    read_wire: AtomicU64,
    hashed: AtomicU64,
    waited_us: AtomicU64,
    reopened: AtomicU64,
}

/// Which way the bytes of a disk went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// Bytes that were to be written.
    pub written: u64,
    /// Of these, bytes that were sent, before packing.
    pub sent: u64,
    /// What they were after packing.
    pub sent_packed: u64,
    /// Bytes that were read, after unpacking.
    pub received: u64,
    /// What they were before unpacking.
    pub received_packed: u64,
    /// Bytes that the other side had already, found by their hashes.
    pub had: u64,
    /// Time that senders waited for the link, in microseconds, summed.
    pub waited_us: u64,
    /// How often the disk was opened again after its link was lost.
    pub reopened: u64,
}

impl Counters {
    pub(crate) fn taken(&self, bytes: u64) {
        self.taken.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn wrote(&self, plain: u64, wire: u64) {
        self.plain.fetch_add(plain, Relaxed);
        self.wire.fetch_add(wire, Relaxed);
    }

    pub(crate) fn read(&self, plain: u64, wire: u64) {
        self.read.fetch_add(plain, Relaxed);
        self.read_wire.fetch_add(wire, Relaxed);
    }

    pub(crate) fn had(&self, bytes: u64) {
        self.hashed.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn waited(&self, time: Duration) {
        self.waited_us.fetch_add(time.as_micros() as u64, Relaxed);
    }

    pub(crate) fn reopened(&self) {
        self.reopened.fetch_add(1, Relaxed);
    }

    pub(crate) fn look(&self) -> Way {
        Way {
            written: self.taken.load(Relaxed),
            sent: self.plain.load(Relaxed),
            sent_packed: self.wire.load(Relaxed),
            received: self.read.load(Relaxed),
            received_packed: self.read_wire.load(Relaxed),
            had: self.hashed.load(Relaxed),
            waited_us: self.waited_us.load(Relaxed),
            reopened: self.reopened.load(Relaxed),
        }
    }
}
