use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// One budget of buffer memory for all transfers of the process.
///
/// A transfer takes what it wants when there is that much, else what is left if that is at least what
/// it needs, else it waits for another to end.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    shared: Arc<(Mutex<u64>, Condvar)>,
    total: u64,
}

/// A part of the budget; goes back when dropped.
#[derive(Debug)]
pub struct MemoryShare {
    budget: MemoryBudget,
    bytes: u64,
}

impl MemoryBudget {
    /// A budget of that many bytes.
    pub fn new(total: u64) -> Self {
        MemoryBudget { shared: Arc::new((Mutex::new(total), Condvar::new())), total }
    }

    /// Takes between `needed` and `wanted` bytes; waits while there is less than `needed`. A transfer
    /// that needs more than the whole budget gets the whole budget.
    pub fn take(&self, needed: u64, wanted: u64) -> MemoryShare {
        let needed = needed.min(self.total);
        let (left, freed) = &*self.shared;
        let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
        while *left < needed {
            left = freed.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
        let bytes = wanted.max(needed).min(*left);
        *left -= bytes;
        MemoryShare { budget: self.clone(), bytes }
    }
}

impl MemoryShare {
    /// Bytes that may be used.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        let (left, freed) = &*self.budget.shared;
        *left.lock().unwrap_or_else(PoisonError::into_inner) += self.bytes;
        freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_what_is_wanted_then_what_is_left_then_waits() {
        let budget = MemoryBudget::new(100);
        let first = budget.take(10, 80);
        let second = budget.take(10, 80);
        assert_eq!((first.bytes(), second.bytes()), (80, 20));
        let waiter = std::thread::spawn({
            let budget = budget.clone();
            move || budget.take(50, 50).bytes()
        });
        drop(first);
        assert_eq!(waiter.join().unwrap(), 50);
        assert_eq!(MemoryBudget::new(5).take(10, 10).bytes(), 5);
    }
}
