//! Several disks at a time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use drover_mover::StopSignal;

use crate::error::{Cause, EngineError};

type Outcome<T> = Result<T, EngineError>;

/// Does `work` for every item, `slots` at a time, and gives the results in the order of the items.
///
/// When one fails the others are stopped: without it they are worth nothing, and the source waits. They
/// are stopped as well when the run is.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    slots: usize,
    items: &[T],
    run_stop: &StopSignal,
    work: impl Fn(&T, &StopSignal) -> Outcome<R> + Sync,
) -> Outcome<Vec<R>> {
    let workers = slots.min(items.len());
    let (next, ended, stop) = (AtomicUsize::new(0), AtomicUsize::new(0), StopSignal::default());
    let results: Mutex<Vec<Option<Outcome<R>>>> = Mutex::new(items.iter().map(|_| None).collect());
    let waiting = std::thread::current();
    let work_off = || {
        // Also if the work panics.
        let _end = OnDrop::new(|| {
            if std::thread::panicking() {
                stop.stop();
            }
            ended.fetch_add(1, Ordering::SeqCst);
            waiting.unpark();
        });
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return };
            let result = work(item, &stop);
            if result.is_err() {
                stop.stop();
            }
            results.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(result);
        }
    };
    std::thread::scope(|scope| {
        let start = |_: &usize| Builder::new().spawn_scoped(scope, work_off).is_ok();
        let started = (0..workers).take_while(start).count();
        if started == 0 && workers > 0 {
            // No thread can be had: then it takes longer.
            work_off();
        }
        while ended.load(Ordering::SeqCst) < started {
            if run_stop.is_set() {
                stop.stop();
            }
            std::thread::park_timeout(STOP_NOTICED_WITHIN);
        }
    });
    let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    all_or_reason(results.into_iter().map(|result| result.expect("every item was done")))
}

/// All results, or why there are not all: a failure, rather than that others were stopped for it.
fn all_or_reason<R>(results: impl Iterator<Item = Outcome<R>>) -> Outcome<Vec<R>> {
    let (mut all, mut stopped) = (Vec::new(), None);
    for result in results {
        match result {
            Ok(one) => all.push(one),
            Err(error) if error.cause() == Cause::Cancelled => stopped = Some(error),
            Err(error) => return Err(error),
        }
    }
    stopped.map_or(Ok(all), Err)
}

const STOP_NOTICED_WITHIN: Duration = Duration::from_millis(50);

/// Calls a closure once, when dropped at the latest.
pub(crate) struct OnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> OnDrop<F> {
    pub(crate) fn new(call: F) -> Self {
        OnDrop(Some(call))
    }
}

impl<F: FnOnce()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call();
        }
    }
}
