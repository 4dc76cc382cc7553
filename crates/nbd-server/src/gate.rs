use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::fence::{Begin, Epoch, Fence, Superseded};
use crate::fence_file::{FenceFile, FenceFileError};

/// The fence of one disk, between the threads that serve it.
pub(crate) struct Gate {
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    fence: Fence,
    file: Option<FenceFile>,
}

/// Why a run was not let in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GateError {
    #[error(transparent)]
    Superseded(#[from] Superseded),
    #[error("the epoch cannot be kept")]
    File(#[from] FenceFileError),
}

impl Gate {
    /// A gate that forgets its epochs when the server ends.
    pub(crate) fn in_memory() -> Gate {
        Gate::with(Fence::default(), None)
    }

    pub(crate) fn open(path: &Path) -> Result<Gate, FenceFileError> {
        let file = FenceFile::open(path)?;
        Ok(Gate::with(Fence::new(file.highest()), Some(file)))
    }

    fn with(fence: Fence, file: Option<FenceFile>) -> Gate {
        Gate { state: Mutex::new(State { fence, file }), ended: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn highest(&self) -> Epoch {
        self.lock().fence.highest()
    }

    /// Lets a run in; a new epoch is durable before this returns. Nobody begins a write meanwhile.
    pub(crate) fn enter(&self, epoch: Epoch) -> Result<(), GateError> {
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
    pub(crate) fn pass(&self, epoch: Epoch) -> Result<Pass<'_>, Superseded> {
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
pub(crate) struct Pass<'a> {
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
