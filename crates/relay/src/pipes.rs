//! Pipes: where bytes lie between two sockets without being copied.
//!
//! A flow has a pipe only while it holds bytes, so idle connections cost none. All pipes together stay
//! below a budget; a flow that gets none copies instead, which needs no memory of its own.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::pipe::{PipeFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with};

/// What a pipe is asked to hold. The kernel's default limit (`fs.pipe-max-size`).
pub const PIPE_BYTES: usize = 1 << 20;
/// What all pipes of a relay may hold, unless the options say otherwise.
pub const PIPES_BYTES_MAX: usize = 256 << 20;
/// Empty pipes that a worker keeps for the next flow, until a sweep finds that they were not needed.
const FREE_MAX: usize = 64;

/// What pipes may still be made.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes_max: usize,
    used: AtomicUsize,
    count: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(bytes_max: usize) -> Arc<Budget> {
        Arc::new(Budget { bytes_max, used: AtomicUsize::new(0), count: AtomicUsize::new(0) })
    }

    /// Bytes that the pipes there are can hold, and how many they are.
    pub(crate) fn used(&self) -> (usize, usize) {
        (self.used.load(Ordering::Relaxed), self.count.load(Ordering::Relaxed))
    }

    fn reserve(&self, bytes: usize) -> bool {
        let more = |used: usize| used.checked_add(bytes).filter(|used| *used <= self.bytes_max);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A pipe, empty or in the middle of something.
#[derive(Debug)]
pub(crate) struct Pipe {
    /// Bytes come out here.
    pub(crate) outlet: OwnedFd,
    /// And go in here.
    pub(crate) inlet: OwnedFd,
    bytes: usize,
    budget: Arc<Budget>,
}

impl Pipe {
    /// A new pipe; none if the budget, the user's share of pipes or the process's files are used up.
    fn new(budget: &Arc<Budget>) -> Option<Pipe> {
        if !budget.reserve(PIPE_BYTES) {
            return None;
        }
        let Ok((outlet, inlet)) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC) else {
            budget.release(PIPE_BYTES);
            return None;
        };
        // A user who has many pipes gets no large one (`fs.pipe-user-pages-soft`); a small one works, too.
        let _ = fcntl_setpipe_size(&inlet, PIPE_BYTES);
        let bytes = fcntl_getpipe_size(&inlet).map_or(PIPE_BYTES, |bytes| bytes.min(PIPE_BYTES));
        budget.release(PIPE_BYTES - bytes);
        budget.count.fetch_add(1, Ordering::Relaxed);
        Some(Pipe { outlet, inlet, bytes, budget: budget.clone() })
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
        self.budget.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The pipes of one worker.
#[derive(Debug)]
pub(crate) struct Pipes {
    free: Vec<Pipe>,
    /// The fewest that were free at a time since the last sweep: nobody has needed so many.
    unneeded: usize,
    budget: Arc<Budget>,
}

impl Pipes {
    pub(crate) fn new(budget: Arc<Budget>) -> Pipes {
        Pipes { free: Vec::new(), unneeded: 0, budget }
    }

    /// An empty pipe, if there is one or may be one more.
    pub(crate) fn take(&mut self) -> Option<Pipe> {
        let pipe = self.free.pop();
        self.unneeded = self.unneeded.min(self.free.len());
        pipe.or_else(|| Pipe::new(&self.budget))
    }

    /// Takes an empty pipe back.
    pub(crate) fn put(&mut self, pipe: Pipe) {
        if self.free.len() < FREE_MAX {
            self.free.push(pipe);
        }
    }

    /// Whether it keeps any that a sweep may find unneeded.
    pub(crate) fn keeps_some(&self) -> bool {
        !self.free.is_empty()
    }

    /// Gives back those that nobody has needed since the last sweep.
    pub(crate) fn sweep(&mut self) {
        self.free.truncate(self.free.len() - self.unneeded);
        self.unneeded = self.free.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pipes_stay_within_the_budget_and_give_it_back() {
        let budget = Budget::new(2 * PIPE_BYTES);
        let mut pipes = Pipes::new(budget.clone());
        let held: Vec<Pipe> = std::iter::from_fn(|| pipes.take()).take(1000).collect();
        assert!((2..1000).contains(&held.len()), "{}", held.len());
        let (bytes, count) = budget.used();
        assert!(bytes <= 2 * PIPE_BYTES && count == held.len(), "{bytes} {count}");
        held.into_iter().for_each(|pipe| pipes.put(pipe));
        assert!(pipes.take().is_some());
        drop(pipes);
        assert_eq!(budget.used(), (0, 0));
    }

    #[test]
    fn pipes_that_nobody_needs_are_given_back_and_others_stay() {
        let budget = Budget::new(8 * PIPE_BYTES);
        let mut pipes = Pipes::new(budget.clone());
        let burst: Vec<Pipe> = std::iter::from_fn(|| pipes.take()).take(5).collect();
        burst.into_iter().for_each(|pipe| pipes.put(pipe));
        // The burst was since the last sweep.
        pipes.sweep();
        assert_eq!(budget.used().1, 5);
        let two = [pipes.take(), pipes.take()];
        two.into_iter().flatten().for_each(|pipe| pipes.put(pipe));
        pipes.sweep();
        assert_eq!(budget.used().1, 2);
        let held = pipes.take();
        pipes.sweep();
        assert_eq!((budget.used().1, pipes.keeps_some()), (1, false));
        drop(held);
        assert_eq!(budget.used(), (0, 0));
    }
}
