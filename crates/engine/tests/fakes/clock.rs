use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use drover_engine::Clock;

/// A clock that nobody waits for.
pub struct JumpingClock {
    now_ms: AtomicI64,
    /// Every look takes a moment, so that no two things happen at once.
    look_ms: AtomicI64,
}

impl Default for JumpingClock {
    fn default() -> Self {
        JumpingClock { now_ms: AtomicI64::new(0), look_ms: AtomicI64::new(1) }
    }
}

impl JumpingClock {
    /// From now on, whatever lies between two looks takes this long.
    pub fn slow_down(&self, look_ms: i64) {
        self.look_ms.store(look_ms, Ordering::SeqCst);
    }
}

impl Clock for JumpingClock {
    fn now_ms(&self) -> i64 {
        self.now_ms.fetch_add(self.look_ms.load(Ordering::SeqCst), Ordering::SeqCst)
    }

    fn sleep(&self, time: Duration) {
        self.now_ms.fetch_add(time.as_millis() as i64, Ordering::SeqCst);
        std::thread::yield_now();
    }
}
