use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::{Completion, Disk, DiskError, Lane, Request};

/// The lanes to a disk, lent for one request at a time: connections may come and go and be many, the
/// disk sees no more lanes than it allows.
pub struct Lanes {
    disk: Arc<dyn Disk>,
    state: Mutex<State>,
    returned: Condvar,
}

#[derive(Default)]
struct State {
    free: Vec<Box<dyn Lane>>,
    open: usize,
}

/// Lanes to one disk; more gained nothing with any backend.
const LANES_MAX: usize = 16;

impl Lanes {
    /// Lends the lanes of this disk.
    pub fn new(disk: Arc<dyn Disk>) -> Lanes {
        Lanes { disk, state: Mutex::default(), returned: Condvar::new() }
    }

    /// How many requests can be under way at once.
    pub fn max(&self) -> usize {
        self.disk.limits().lanes_max.clamp(1, LANES_MAX)
    }

    /// Runs one request to its end. One that meets a lane that broke while it lay idle is tried once
    /// more on a new one.
    ///
    /// # Errors
    /// When no lane can be had; what becomes of the request is in the completion.
    pub fn run(&self, request: Request) -> Result<Completion, DiskError> {
        let (completion, broken) = self.run_once(request)?;
        if !broken || completion.result.is_ok() {
            return Ok(completion);
        }
        let Completion { id, span, work, .. } = completion;
        Ok(self.run_once(Request { id, span, work })?.0)
    }

    fn run_once(&self, request: Request) -> Result<(Completion, bool), DiskError> {
        let mut lent = Lent { lanes: self, lane: Some(self.take()?) };
        let lane = lent.lane.as_mut().unwrap_or_else(|| unreachable!("a lane is lent until it is dropped"));
        lane.submit(request);
        let Some(completion) = lane.complete() else {
            unreachable!("a request in flight ends");
        };
        let broken = lane.is_broken();
        Ok((completion, broken))
    }

    fn take(&self) -> Result<Box<dyn Lane>, DiskError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(lane) = state.free.pop() {
                return Ok(lane);
            }
            if state.open < self.max() {
                state.open += 1;
                drop(state);
                return self.disk.open_lane().inspect_err(|_| self.give_back(None));
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a lane back; `None` for one that is lost.
    fn give_back(&self, lane: Option<Box<dyn Lane>>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match lane {
            Some(lane) => state.free.push(lane),
            None => state.open -= 1,
        }
        drop(state);
        self.returned.notify_one();
    }
}

/// A lane on loan; given back even if the backend panics.
struct Lent<'a> {
    lanes: &'a Lanes,
    lane: Option<Box<dyn Lane>>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let lane = self.lane.take().filter(|lane| !lane.is_broken() && lane.in_flight() == 0);
        self.lanes.give_back(lane);
    }
}
