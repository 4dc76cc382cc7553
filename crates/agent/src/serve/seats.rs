//! How many disks are open: each has threads and their memory, so there are bounds, for all peers and for each.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use drover_disk::DiskErrorKind;

use super::refused;
use crate::error::Refusal;

/// Disks that are open at a time: with up to 8 threads each, and 2 MiB for each of these.
pub const DISKS_MAX: usize = 128;

/// Of those, of one peer.
pub const PEER_DISKS_MAX: usize = 64;

/// Disks that are open, by the keys of peers.
#[derive(Default)]
pub(super) struct Seats {
    open: Mutex<HashMap<[u8; 32], usize>>,
}

/// The seat of an open disk, free again when this goes.
pub(super) struct Seat<'a> {
    seats: &'a Seats,
    peer: [u8; 32],
}

impl Seats {
    fn open(&self) -> MutexGuard<'_, HashMap<[u8; 32], usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a seat for a disk of a peer.
    ///
    /// # Errors
    /// Transient while there is none.
    pub(super) fn take(&self, peer: [u8; 32]) -> Result<Seat<'_>, Refusal> {
        let mut open = self.open();
        let full = |text: String| Err(refused(DiskErrorKind::Transient, text));
        if open.get(&peer).is_some_and(|disks| *disks >= PEER_DISKS_MAX) {
            return full(format!("this host has {PEER_DISKS_MAX} disks open here, and may have no more"));
        }
        if open.values().sum::<usize>() >= DISKS_MAX {
            return full(format!("there are {DISKS_MAX} disks open already"));
        }
        *open.entry(peer).or_default() += 1;
        Ok(Seat { seats: self, peer })
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        let mut open = self.seats.open();
        if let Some(disks) = open.get_mut(&self.peer) {
            *disks -= 1;
            if *disks == 0 {
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
        let seats = Seats::default();
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
