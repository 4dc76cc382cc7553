//! A forecast of a run that is made beside it, and corrected while it goes on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::process::{getpriority_process, setpriority_process};

use crate::store::{Foreseen, ForeseenNow};

/// What was foreseen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Foresaw {
    /// When the run began.
    Before(Foreseen),
    /// While it went on.
    Now(ForeseenNow),
}

/// A forecast that is on its way, and those that correct it.
pub struct Foresight {
    words: Mutex<Receiver<Foresaw>>,
    has_told: AtomicBool,
    /// Dropped with it, which ends the thread.
    _end: Sender<()>,
}

/// How far its thread stands back behind those that move VMs.
const NICE: i32 = 5;
/// Correcting takes no more than this part of the time.
const PART_OF_TIME: u32 = 20;

impl Foresight {
    /// Begins with one that is not corrected. A process that ends sooner does without.
    pub fn begin(work: impl FnOnce() -> Foreseen + Send + 'static) -> Foresight {
        Foresight::correcting(work, Duration::MAX, || None)
    }

    /// Begins with one; each time so much has passed, `correct` says what is foreseen then.
    pub fn correcting(
        work: impl FnOnce() -> Foreseen + Send + 'static,
        each: Duration,
        mut correct: impl FnMut() -> Option<ForeseenNow> + Send + 'static,
    ) -> Foresight {
        let (sender, receiver) = sync_channel(1);
        let (end, ended) = channel::<()>();
        let work = move || {
            // Of this thread alone. That of a fleet takes seconds, in which the first transfers are to begin; where it may not be lowered
            // they share the processors with it.
            let _ = getpriority_process(None).and_then(|now| setpriority_process(None, now + NICE));
            // Nobody listens any more once the run has ended.
            let mut is_heard = sender.send(Foresaw::Before(work())).is_ok() && each < Duration::MAX;
            let mut pause = each;
            while is_heard && ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                let began = Instant::now();
                if let Some(now) = correct() {
                    is_heard = sender.send(Foresaw::Now(now)).is_ok();
                }
                pause = each.max(began.elapsed() * PART_OF_TIME);
            }
        };
        // Without a thread there is no forecast: the run goes on.
        let _ = Builder::new().name("forecast".into()).spawn(work);
        Foresight { words: Mutex::new(receiver), has_told: AtomicBool::new(false), _end: end }
    }

    /// What was foreseen lately, once. The first one is waited for within this time.
    pub(crate) fn take(&self, within: Duration) -> Option<Foresaw> {
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let within = if self.has_told.load(Ordering::Relaxed) { Duration::ZERO } else { within };
        let word = words.recv_timeout(within).ok()?;
        self.has_told.store(true, Ordering::Relaxed);
        Some(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stands_back_behind_what_moves_vms() {
        let nice = || getpriority_process(None).unwrap();
        let (tell, told) = channel();
        let here = nice();
        let foresight = Foresight::begin(move || {
            tell.send(nice()).unwrap();
            Foreseen::default()
        });
        // The lowest is 19.
        assert_eq!(told.recv().unwrap(), (here + NICE).min(19));
        assert_eq!(nice(), here, "the others stay as they are");
        drop(foresight);
    }

    #[test]
    fn a_forecast_comes_once_and_whoever_asks_too_early_does_not_wait() {
        let (go, gate) = sync_channel::<()>(0);
        let foresight = Foresight::begin(move || {
            let _ = gate.recv();
            Foreseen { makespan_ms: [1, 2, 3], ..Foreseen::default() }
        });
        assert_eq!(foresight.take(Duration::ZERO), None);
        go.send(()).unwrap();
        let foreseen = foresight.take(Duration::from_secs(60)).unwrap();
        assert!(matches!(foreseen, Foresaw::Before(it) if it.makespan_ms == [1, 2, 3]));
        assert_eq!(foresight.take(Duration::from_secs(60)), None, "there is one only");
    }

    fn now(at_ms: i64) -> ForeseenNow {
        ForeseenNow { at_ms, end_ms: [at_ms; 3], ready_ms: None }
    }

    #[test]
    fn it_is_corrected_again_and_again_until_the_run_is_over() {
        let (told, over) = channel();
        let mut number = 0;
        let correct = move || {
            number += 1;
            told.send(number).is_ok().then_some(now(number))
        };
        let foresight = Foresight::correcting(Foreseen::default, Duration::from_millis(1), correct);
        assert!(matches!(foresight.take(Duration::from_secs(60)), Some(Foresaw::Before(_))));
        for number in 1..=3 {
            let word = std::iter::repeat_with(|| foresight.take(Duration::ZERO)).find_map(|word| word);
            assert_eq!(word, Some(Foresaw::Now(now(number))));
        }
        drop(foresight);
        // Its end is that of the thread, with all that it holds.
        assert!(over.into_iter().count() >= 3);
    }
}
