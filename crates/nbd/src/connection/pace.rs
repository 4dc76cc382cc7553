//! Requests that are never answered, on connections that are never silent.

use std::io;
use std::time::{Duration, Instant};

use super::{Connection, Fault};

/// A request counts as answered bit by bit if this much of it comes within the time for a request.
const PROGRESS_BYTES: usize = 64 << 10;

/// The oldest request in flight, and when it last showed a sign of life.
pub(super) struct Oldest {
    cookie: u64,
    received: usize,
    since: Instant,
    /// When we last stopped waiting for the server.
    looked: Instant,
}

impl Oldest {
    pub(super) fn new(cookie: u64, received: usize) -> Oldest {
        let now = Instant::now();
        Oldest { cookie, received, since: now, looked: now }
    }

    /// Time in which nobody waited is not the server's fault: called when somebody begins to.
    pub(super) fn skip_idle(&mut self) {
        let now = Instant::now();
        self.since += now.duration_since(self.looked);
        self.looked = now;
    }
}

/// A request on its way out, and when some of it last got there.
pub(super) struct Sending {
    sent: usize,
    since: Instant,
}

impl Sending {
    pub(super) fn start() -> Sending {
        Sending { sent: 0, since: Instant::now() }
    }

    /// A server that takes a byte now and then would otherwise hold us for ever.
    pub(super) fn watch(&mut self, sent: usize, limit: Duration) -> Result<(), Fault> {
        if sent >= self.sent + PROGRESS_BYTES {
            *self = Sending { sent, since: Instant::now() };
        } else if self.since.elapsed() > limit {
            let text = format!("the server took less than {PROGRESS_BYTES} bytes in {} s", limit.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text).into());
        }
        Ok(())
    }
}

impl Connection {
    /// A server may answer all but one request for ever, which silence would never tell. Requests
    /// wait for those before them on a slow line, so what counts is the oldest: since it became that,
    /// or since some of its answer came.
    pub(super) fn watch(&mut self) -> Result<(), Fault> {
        let Some((cookie, pending)) = self.pending.first_key_value() else { return Ok(()) };
        let oldest = &mut self.oldest;
        let progress = *cookie != oldest.cookie || pending.received >= oldest.received + PROGRESS_BYTES;
        if progress {
            *oldest = Oldest::new(*cookie, pending.received);
        } else if oldest.since.elapsed() > self.timeouts.request {
            let (command, span, seconds) = (pending.command, pending.span, self.timeouts.request.as_secs());
            let text = format!("a {command:?} of {span} has no answer after {seconds} s, others have");
            return Err(io::Error::new(io::ErrorKind::TimedOut, text).into());
        }
        oldest.looked = Instant::now();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_that_gets_on_is_left_alone() {
        let (limit, none) = (Duration::from_secs(600), Duration::ZERO);
        let mut sending = Sending::start();
        assert!(sending.watch(PROGRESS_BYTES - 1, limit).is_ok());
        assert!(sending.watch(PROGRESS_BYTES - 1, none).is_err(), "not enough in its time");
        assert!(sending.watch(PROGRESS_BYTES, none).is_ok(), "enough, whenever it was");
        assert!(sending.watch(2 * PROGRESS_BYTES - 1, none).is_err());
    }

    #[test]
    fn time_nobody_waited_moves_the_start() {
        let mut oldest = Oldest::new(1, 0);
        let hour = Duration::from_secs(3600);
        let Some(long_ago) = Instant::now().checked_sub(hour) else { return };
        (oldest.since, oldest.looked) = (long_ago, long_ago);
        oldest.skip_idle();
        assert!(oldest.since.elapsed() < hour / 2);
    }
}
