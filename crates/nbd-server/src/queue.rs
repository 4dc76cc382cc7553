//! What a connection has in flight: jobs on their way from its reader to its workers, and the memory
//! they hold.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use drover_disk::Buffer;

/// Bytes of requests in flight on one connection. The largest request just fits.
pub const IN_FLIGHT_BYTES_MAX: u64 = 32 << 20;

/// Requests in flight on one connection; nbdcopy sends 64.
const IN_FLIGHT_MAX: usize = 128;

/// Buffers a connection keeps for its next requests.
const FREE_BYTES_MAX: usize = 16 << 20;

/// Buffers are made this large at least, and in powers of two, so that they fit again.
const BUFFER_BYTES_MIN: usize = 64 << 10;

/// Jobs from one reader to several workers.
pub(crate) struct Queue<J> {
    state: Mutex<State<J>>,
    /// A job came, or no more will.
    filled: Condvar,
    /// A job ended.
    ended: Condvar,
}

struct State<J> {
    jobs: VecDeque<J>,
    /// Workers that wait for a job.
    idle: usize,
    in_flight: usize,
    bytes: u64,
    closed: bool,
    free: Vec<Buffer>,
    free_bytes: usize,
}

impl<J> Queue<J> {
    pub(crate) fn new() -> Queue<J> {
        let state = State {
            jobs: VecDeque::new(),
            idle: 0,
            in_flight: 0,
            bytes: 0,
            closed: false,
            free: Vec::new(),
            free_bytes: 0,
        };
        Queue { state: Mutex::new(state), filled: Condvar::new(), ended: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<J>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is room for a job of `bytes`, at most [`IN_FLIGHT_BYTES_MAX`], and takes it.
    /// `false` when the connection ends.
    pub(crate) fn reserve(&self, bytes: u64) -> bool {
        let full =
            |state: &State<J>| state.bytes + bytes > IN_FLIGHT_BYTES_MAX || state.in_flight >= IN_FLIGHT_MAX;
        let mut state = self.lock();
        while full(&state) && !state.closed {
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.bytes += bytes;
        state.in_flight += 1;
        !state.closed
    }

    /// Hands a job over. `true` if no worker waits for it.
    pub(crate) fn push(&self, job: J) -> bool {
        let mut state = self.lock();
        state.jobs.push_back(job);
        let busy = state.jobs.len() > state.idle;
        drop(state);
        self.filled.notify_one();
        busy
    }

    /// The next job; `None` when there will be none.
    pub(crate) fn take(&self) -> Option<J> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state.idle += 1;
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }

    /// Gives back what [`Queue::reserve`] took.
    pub(crate) fn done(&self, bytes: u64) {
        let mut state = self.lock();
        state.bytes -= bytes;
        state.in_flight -= 1;
        drop(state);
        self.ended.notify_one();
    }

    /// No more jobs come; those at hand are still taken.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
        self.ended.notify_all();
    }

    /// Also forgets the jobs at hand: their client is gone.
    pub(crate) fn abort(&self) {
        self.lock().jobs.clear();
        self.close();
    }

    /// A buffer of `length` bytes, holding whatever it held before.
    pub(crate) fn buffer(&self, length: usize) -> Buffer {
        let capacity = length.next_power_of_two().max(BUFFER_BYTES_MIN);
        let mut state = self.lock();
        let found = state.free.iter().position(|buffer| buffer.capacity() == capacity);
        let mut buffer = match found {
            Some(index) => {
                state.free_bytes -= capacity;
                state.free.swap_remove(index)
            }
            None => {
                drop(state);
                Buffer::zeroed(capacity)
            }
        };
        buffer.set_len(length);
        buffer
    }

    /// Takes a buffer back for further use.
    pub(crate) fn recycle(&self, buffer: Buffer) {
        let mut state = self.lock();
        if state.free_bytes + buffer.capacity() <= FREE_BYTES_MAX {
            state.free_bytes += buffer.capacity();
            state.free.push(buffer);
        }
    }
}
