//! A forecast of a run that is made beside it.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use crate::store::Foreseen;

/// A forecast that is on its way.
pub struct Foresight(Mutex<Receiver<Foreseen>>);

impl Foresight {
    /// Begins with one. A process that ends sooner does without.
    pub fn begin(work: impl FnOnce() -> Foreseen + Send + 'static) -> Foresight {
        let (sender, receiver) = sync_channel(1);
        let work = move || {
            // Nobody listens any more once the run has ended.
            let _ = sender.send(work());
        };
        // Without a thread there is no forecast: the run goes on.
        let _ = Builder::new().name("forecast".into()).spawn(work);
        Foresight(Mutex::new(receiver))
    }

    /// What was foreseen, once, if it comes within this time.
    pub(crate) fn take(&self, within: Duration) -> Option<Foreseen> {
        let receiver = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.recv_timeout(within).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(foreseen.makespan_ms, [1, 2, 3]);
        assert_eq!(foresight.take(Duration::from_secs(60)), None, "there is one only");
    }
}
