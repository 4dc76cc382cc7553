use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One budget of buffer memory for all transfers of the process, in equal shares for those that run.
///
/// A share shrinks when another transfer begins; what is in flight by then still ends, so for a moment
/// the sum may be larger.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    total: u64,
    sharers: Arc<AtomicU64>,
}

/// A part of the budget; goes back when dropped.
#[derive(Debug)]
pub struct MemoryShare {
    budget: MemoryBudget,
    wanted: u64,
}

impl MemoryBudget {
    /// A budget of that many bytes.
    pub fn new(total: u64) -> Self {
        MemoryBudget { total, sharers: Arc::default() }
    }

    /// Takes part, with at most `wanted` bytes.
    pub fn share(&self, wanted: u64) -> MemoryShare {
        self.sharers.fetch_add(1, Relaxed);
        MemoryShare { budget: self.clone(), wanted }
    }
}

impl MemoryShare {
    /// Bytes that may be used at the moment.
    pub fn bytes(&self) -> u64 {
        self.wanted.min(self.budget.total / self.budget.sharers.load(Relaxed).max(1))
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.budget.sharers.fetch_sub(1, Relaxed);
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
}
