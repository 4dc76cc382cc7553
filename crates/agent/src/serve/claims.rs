//! Which run writes which disk of this agent. One at a time: a second is refused as long as the first one is there. A
//! run that comes back after its link was lost takes the place of its own earlier attempt, and a later run that of one
//! whose peer is gone; each waits until the last write of the one before has ended.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use drover_disk::DiskErrorKind;

use super::refused;
use crate::error::Refusal;
use crate::opening::{How, Writer};

/// How long the writes of an attempt that was ended may take to come to their end.
const END_WAIT: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(super) struct Claims {
    held: Mutex<HashMap<String, Claim>>,
    released: Condvar,
}

/// What the claims know of a run: whether its peer is there, and how to end it.
pub(super) trait Run: Send {
    fn is_there(&self) -> bool;
    fn end(&self);
}

struct Claim {
    writer: Writer,
    run: Box<dyn Run>,
}

/// A disk that is one run's own until this is dropped.
pub(super) struct Taken<'a> {
    claims: &'a Claims,
    disk: String,
}

impl Claims {
    fn held(&self) -> MutexGuard<'_, HashMap<String, Claim>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a disk for a run.
    ///
    /// # Errors
    /// Transient while another run is there or an attempt that was ended is not at its end; failed when another run is
    /// there and a new disk is wanted; denied when a later run or attempt has it.
    pub(super) fn take(&self, disk: &str, writer: &Writer, run: Box<dyn Run>) -> Result<Taken<'_>, Refusal> {
        let until = Instant::now() + END_WAIT;
        let mut held = self.held();
        while let Some(claim) = held.get(disk) {
            may_follow(claim, writer)?;
            claim.run.end();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let why = "the last writes of the run before have not come to their end";
                return Err(refused(DiskErrorKind::Transient, why));
            }
            held = self.released.wait_timeout(held, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        held.insert(disk.to_string(), Claim { writer: writer.clone(), run });
        Ok(Taken { claims: self, disk: disk.to_string() })
    }
}

/// The epoch of an order that removes or writes an image: it comes after whoever wrote it.
pub(super) const ORDERED: u64 = u64::MAX;

fn may_follow(claim: &Claim, writer: &Writer) -> Result<(), Refusal> {
    let holder = &claim.writer;
    if holder.run == writer.run {
        if holder.attempt < writer.attempt {
            return Ok(());
        }
        return Err(refused(DiskErrorKind::Denied, "a later attempt of this run has the disk"));
    }
    if holder.epoch == ORDERED {
        return Err(refused(DiskErrorKind::Transient, "an order about this disk is being carried out"));
    }
    if holder.epoch >= writer.epoch {
        let why = format!("epoch {} is over: epoch {} has taken this disk", writer.epoch, holder.epoch);
        return Err(refused(DiskErrorKind::Denied, why));
    }
    if claim.run.is_there() {
        // Whoever goes on with a disk may have to wait for its own run before, which has just ended. What another run
        // has made meanwhile will not be new again.
        let kind = if writer.how == How::New { DiskErrorKind::Failed } else { DiskErrorKind::Transient };
        return Err(refused(kind, "another run is writing this disk"));
    }
    Ok(())
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.claims.held().remove(&self.disk);
        self.claims.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    #[derive(Clone, Default)]
    struct Peer {
        there: Arc<AtomicBool>,
        ended: Arc<AtomicBool>,
    }

    impl Run for Peer {
        fn is_there(&self) -> bool {
            self.there.load(SeqCst)
        }

        fn end(&self) {
            self.ended.store(true, SeqCst);
        }
    }

    #[test]
    fn whoever_comes_while_an_order_is_carried_out_may_come_again() {
        let claims = Claims::default();
        let order = claims.take("d", &writer("order", ORDERED, 0), Box::new(Peer::default())).unwrap();
        for epoch in [7, ORDERED] {
            let refused = claims.take("d", &writer("b", epoch, 0), Box::new(Peer::default())).err().unwrap();
            assert_eq!(refused.kind, DiskErrorKind::Transient, "{refused}");
        }
        drop(order);
        assert!(claims.take("d", &writer("b", 7, 0), Box::new(Peer::default())).is_ok());
    }

    fn writer(run: &str, epoch: u64, attempt: u32) -> Writer {
        Writer { size: 1, how: How::Resume, run: run.to_string(), epoch, attempt, volume: None }
    }

    fn kind(result: Result<Taken<'_>, Refusal>) -> Option<DiskErrorKind> {
        result.err().map(|refusal| refusal.kind)
    }

    #[test]
    fn a_second_run_is_refused_while_the_first_is_there() {
        let claims = Claims::default();
        let peer = Peer::default();
        peer.there.store(true, SeqCst);
        let taken = claims.take("a", &writer("one", 5, 0), Box::new(peer.clone())).unwrap();
        let second = || claims.take("a", &writer("two", 6, 0), Box::new(Peer::default()));
        assert_eq!(kind(second()), Some(DiskErrorKind::Transient));
        let new = Writer { how: How::New, ..writer("two", 6, 0) };
        let new = claims.take("a", &new, Box::new(Peer::default()));
        assert_eq!(kind(new), Some(DiskErrorKind::Failed), "waiting does not make it new");
        assert!(!peer.ended.load(SeqCst), "it is not disturbed");
        let older = claims.take("a", &writer("old", 4, 9), Box::new(Peer::default()));
        assert_eq!(kind(older), Some(DiskErrorKind::Denied));
        assert!(claims.take("b", &writer("two", 6, 0), Box::new(Peer::default())).is_ok(), "another disk");
        drop(taken);
        assert!(second().is_ok());
    }

    #[test]
    fn a_later_attempt_waits_for_the_last_write_of_the_one_before() {
        let claims = Claims::default();
        let peer = Peer::default();
        peer.there.store(true, SeqCst);
        let first = claims.take("a", &writer("one", 5, 0), Box::new(peer.clone())).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| claims.take("a", &writer("one", 5, 1), Box::new(Peer::default())));
            while !peer.ended.load(SeqCst) {
                std::thread::yield_now();
            }
            assert!(!second.is_finished(), "the first has not let go");
            drop(first);
            let second = second.join().unwrap().unwrap();
            let again = claims.take("a", &writer("one", 5, 1), Box::new(Peer::default()));
            assert_eq!(kind(again), Some(DiskErrorKind::Denied), "the same attempt twice");
            drop(second);
        });
    }

    #[test]
    fn a_run_whose_peer_is_gone_gives_way_to_a_later_one() {
        let claims = Claims::default();
        let gone = Peer::default();
        let first = claims.take("a", &writer("one", 5, 0), Box::new(gone.clone())).unwrap();
        std::thread::scope(|scope| {
            let second =
                scope.spawn(|| claims.take("a", &writer("two", 6, 0), Box::new(Peer::default())).map(drop));
            while !gone.ended.load(SeqCst) {
                std::thread::yield_now();
            }
            drop(first);
            assert!(second.join().unwrap().is_ok());
        });
    }
}
