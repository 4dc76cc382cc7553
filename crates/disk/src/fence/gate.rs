use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::file::{FenceFile, FenceFileError};
use super::{Begin, Epoch, Fence, Superseded};

/// The fence of one disk, between the threads that serve it.
pub struct Gate {
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    fence: Fence,
    file: Option<FenceFile>,
}

/// Why a run was not let in.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// Another took the disk over.
    #[error(transparent)]
    Superseded(#[from] Superseded),
    /// Its epoch could not be made durable.
    #[error("the epoch cannot be kept")]
    File(#[from] FenceFileError),
}

impl Gate {
    /// A gate that forgets its epochs when the server ends.
    pub fn in_memory() -> Gate {
        Gate::with(Fence::default(), None)
    }

    /// A gate that keeps its highest epoch in this file, and holds it locked.
    ///
    /// # Errors
    /// When another server holds the file, it cannot be read or written, or it holds something else.
    pub fn open(path: &Path) -> Result<Gate, FenceFileError> {
        let file = FenceFile::open(path)?;
        Ok(Gate::with(Fence::new(file.highest()), Some(file)))
    }

    fn with(fence: Fence, file: Option<FenceFile>) -> Gate {
        Gate { state: Mutex::new(State { fence, file }), ended: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The highest epoch that entered.
    pub fn highest(&self) -> Epoch {
        self.lock().fence.highest()
    }

    /// Lets a run in; a new epoch is durable before this returns. Nobody begins a write meanwhile.
    ///
    /// # Errors
    /// When a higher one entered before, or the epoch cannot be kept.
    pub fn enter(&self, epoch: Epoch) -> Result<(), GateError> {
        let mut state = self.lock();
        state.fence.check(epoch)?;
        if epoch > state.fence.highest()
            && let Some(file) = &mut state.file
        {
            file.store(epoch)?;
        }
        state.fence.enter(epoch)?;
        drop(state);
        // Writes that waited for older ones are over now.
        self.ended.notify_all();
        Ok(())
    }

    /// Begins a write, after those of older runs have ended.
    ///
    /// # Errors
    /// When a higher one entered.
    pub fn pass(&self, epoch: Epoch) -> Result<Pass<'_>, Superseded> {
        let mut state = self.lock();
        loop {
            match state.fence.begin(epoch)? {
                Begin::Now => return Ok(Pass { gate: self, epoch }),
                Begin::AfterOlder => {
                    state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }
}

/// A write in progress.
pub struct Pass<'a> {
    gate: &'a Gate,
    epoch: Epoch,
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.gate.lock().fence.end(self.epoch) {
            self.gate.ended.notify_all();
        }
    }
}
