//! How many disks are open, streams of measurements, and measurements themselves: each has threads and their memory, so there are bounds, for all peers and for
//! each.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use drover_disk::DiskErrorKind;

use super::refused;
use crate::error::Refusal;

/// Disks that are open at a time: with up to 8 threads each, and 2 MiB for each of these.
pub const DISKS_MAX: usize = 128;

/// Of those, of one peer.
pub const PEER_DISKS_MAX: usize = 64;

/// Streams to measure a line by, at a time; each has two threads and a buffer at most.
const STREAMS_MAX: usize = 256;

/// Of those, of one peer.
const PEER_STREAMS_MAX: usize = 128;

/// Measurements by order of peers, at a time: more would measure each other.
const PROBES_MAX: usize = 4;

/// Of those, of one peer.
const PEER_PROBES_MAX: usize = 1;

/// What is open, by the keys of peers.
pub(super) struct Seats {
    open: Mutex<HashMap<[u8; 32], usize>>,
    what: &'static str,
    peer_max: usize,
    all_max: usize,
}

/// The seat of what is open, free again when this goes.
pub(super) struct Seat<'a> {
    seats: &'a Seats,
    peer: [u8; 32],
}

impl Seats {
    /// For disks.
    pub(super) fn of_disks() -> Seats {
        Seats { open: Mutex::default(), what: "disks", peer_max: PEER_DISKS_MAX, all_max: DISKS_MAX }
    }

    /// For streams to measure by.
    pub(super) fn of_streams() -> Seats {
        Seats { open: Mutex::default(), what: "streams", peer_max: PEER_STREAMS_MAX, all_max: STREAMS_MAX }
    }

    /// For what is sent to peers that measure.
    pub(super) fn of_probes() -> Seats {
        Seats { open: Mutex::default(), what: "measurements", peer_max: PEER_PROBES_MAX, all_max: PROBES_MAX }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<[u8; 32], usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a seat for a peer.
    ///
    /// # Errors
    /// Transient while there is none.
    pub(super) fn take(&self, peer: [u8; 32]) -> Result<Seat<'_>, Refusal> {
        let mut open = self.open();
        let Seats { what, peer_max, all_max, .. } = self;
        let full = |text: String| Err(refused(DiskErrorKind::Transient, text));
        if open.get(&peer).is_some_and(|number| number >= peer_max) {
            return full(format!("this host has {peer_max} {what} open here, and may have no more"));
        }
        if open.values().sum::<usize>() >= *all_max {
            return full(format!("there are {all_max} {what} open already"));
        }
        *open.entry(peer).or_default() += 1;
        Ok(Seat { seats: self, peer })
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut open = self.seats.open();
        if let Some(number) = open.get_mut(&self.peer) {
            *number -= 1;
            if *number == 0 {
                open.remove(&self.peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_does_not_take_all_seats_and_seats_come_back() {
        let seats = Seats::of_disks();
        let greedy: Vec<_> = std::iter::from_fn(|| seats.take([1; 32]).ok()).take(1000).collect();
        assert_eq!(greedy.len(), PEER_DISKS_MAX);
        let others: Vec<_> = (2..200).filter_map(|peer| seats.take([peer; 32]).ok()).collect();
        assert_eq!(others.len(), DISKS_MAX - PEER_DISKS_MAX);
        assert_eq!(seats.take([201; 32]).err().map(|refusal| refusal.kind), Some(DiskErrorKind::Transient));
        drop(greedy);
        assert!(seats.take([1; 32]).is_ok());
        drop(others);
        assert!(seats.open().is_empty());
    }
}
