use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One budget of buffer memory for all transfers of the process, in equal shares for those that run.
///
/// A share shrinks when another transfer begins. Until what is in flight beyond it has ended, the newcomer
/// gets only what nobody uses, so that the sum stays within the budget (but for one request of each
/// transfer, so that all move on).
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    total: u64,
    all: Arc<All>,
    /// A budget that it is a part of.
    of: Option<Arc<MemoryBudget>>,
}

#[derive(Debug, Default)]
struct All {
    sharers: AtomicU64,
    /// Bytes that the transfers have in flight.
    used: AtomicU64,
}

/// A part of the budget; goes back when dropped.
#[derive(Debug)]
pub struct MemoryShare {
    budget: MemoryBudget,
    wanted: u64,
    used: u64,
    /// Of the budget that its own is a part of.
    of: Option<Box<MemoryShare>>,
}

impl MemoryBudget {
    /// A budget of that many bytes.
    pub fn new(total: u64) -> Self {
        MemoryBudget { total, all: Arc::default(), of: None }
    }

    /// A budget of that many bytes whose transfers take them out of this one, too: all that share this one share it equally.
    pub fn part(&self, total: u64) -> MemoryBudget {
        MemoryBudget { of: Some(Arc::new(self.clone())), ..MemoryBudget::new(total) }
    }

    /// Takes part, with at most `wanted` bytes.
    pub fn share(&self, wanted: u64) -> MemoryShare {
        self.all.sharers.fetch_add(1, Relaxed);
        let of = self.of.as_ref().map(|of| Box::new(of.share(wanted)));
        MemoryShare { budget: self.clone(), wanted, used: 0, of }
    }
}

impl MemoryShare {
    /// Bytes of this transfer's share.
    pub fn bytes(&self) -> u64 {
        let own = self.wanted.min(self.budget.total / self.budget.all.sharers.load(Relaxed).max(1));
        self.of.as_ref().map_or(own, |of| own.min(of.bytes()))
    }

    /// Bytes that may be in flight at the moment: the share, as far as others do not use it still.
    pub fn free_bytes(&self) -> u64 {
        let others = self.budget.all.used.load(Relaxed).saturating_sub(self.used);
        let own = self.bytes().min(self.budget.total.saturating_sub(others));
        self.of.as_ref().map_or(own, |of| own.min(of.free_bytes()))
    }

    /// Tells how many bytes this transfer has in flight.
    pub fn set_used(&mut self, bytes: u64) {
        if bytes > self.used {
            self.budget.all.used.fetch_add(bytes - self.used, Relaxed);
        } else if bytes < self.used {
            self.budget.all.used.fetch_sub(self.used - bytes, Relaxed);
        }
        self.used = bytes;
        self.of.iter_mut().for_each(|of| of.set_used(bytes));
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.set_used(0);
        self.budget.all.sharers.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_equal_and_never_larger_than_wanted() {
        let budget = MemoryBudget::new(100);
        let first = budget.share(80);
        assert_eq!(first.bytes(), 80);
        let others: Vec<_> = (0..3).map(|_| budget.share(10)).collect();
        assert_eq!((first.bytes(), others[0].bytes()), (25, 10));
        drop(others);
        assert_eq!(first.bytes(), 80);
    }

    #[test]
    fn parts_of_a_budget_share_it_by_transfers_within_their_own() {
        let all = MemoryBudget::new(100);
        let (one, other) = (all.part(100), all.part(30));
        let mut first = one.share(80);
        assert_eq!(first.bytes(), 80);
        let mut others: Vec<_> = (0..3).map(|_| other.share(80)).collect();
        assert_eq!((first.bytes(), others[0].bytes()), (25, 10), "a quarter of all, and a third of its own");
        first.set_used(95);
        assert_eq!(others[0].free_bytes(), 5);
        others[1].set_used(5);
        assert_eq!(others[0].free_bytes(), 0);
        drop(first);
        assert_eq!((others[0].free_bytes(), others[0].bytes()), (10, 10));
        drop(others);
        assert_eq!(one.share(100).free_bytes(), 100);
    }

    #[test]
    fn a_newcomer_waits_for_what_others_still_use() {
        let budget = MemoryBudget::new(100);
        let mut first = budget.share(80);
        first.set_used(80);
        let mut second = budget.share(80);
        assert_eq!((first.free_bytes(), second.free_bytes()), (50, 20));
        second.set_used(20);
        first.set_used(45);
        assert_eq!((first.free_bytes(), second.free_bytes()), (50, 50));
        first.set_used(95);
        assert_eq!(second.free_bytes(), 5, "a single request may be larger than the share");
        drop(first);
        assert_eq!(second.free_bytes(), 80);
    }
}
