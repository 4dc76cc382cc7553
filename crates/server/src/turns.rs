//! Who asks the daemon at once: a bound for each kind of request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, Semaphore};

use crate::bounds::Bounds;

/// Turns of those who ask the daemon, by kind, so that no kind keeps another waiting.
pub(crate) struct Turns {
    pub look: Arc<Semaphore>,
    pub order: Arc<Semaphore>,
    pub submit: Arc<Semaphore>,
    pub check: Arc<Semaphore>,
    pub ready: Arc<Semaphore>,
}

impl Turns {
    pub(crate) fn new(bounds: &Bounds) -> Turns {
        let of = |count| Arc::new(Semaphore::new(count));
        Turns {
            look: of(bounds.operations),
            order: of(bounds.order_operations),
            submit: of(bounds.submissions),
            check: of(bounds.checks),
            ready: of(1),
        }
    }

    /// Threads for all that may be asked at once, with one that looks whether plans can be run and one that asks the issuer.
    pub(crate) fn threads(bounds: &Bounds) -> usize {
        bounds.operations + bounds.order_operations + bounds.submissions + bounds.checks + 2
    }
}

/// What was found when it was last asked whether plans can be run.
pub(crate) type Readiness = Mutex<Option<(Instant, Result<(), String>)>>;

/// How long that holds.
pub(crate) const READY_EACH: Duration = Duration::from_secs(1);
