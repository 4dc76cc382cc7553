//! The time, for what waits.

use std::time::Duration;

use crate::store::now_ms;

/// Tells the time and lets it pass; a test has one of its own.
pub trait Clock: Send + Sync {
    /// Milliseconds since 1970.
    fn now_ms(&self) -> i64;

    /// Waits.
    fn sleep(&self, time: Duration);
}

/// This machine's clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> i64 {
        now_ms()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
