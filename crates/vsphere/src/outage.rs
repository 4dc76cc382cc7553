//! An API that does not answer for the moment: how long it is waited for, and what is known of it.
//!
//! Every call of a session passes through [`Inner::call`](crate::session::Inner::call), which waits here. What must not be asked twice
//! blindly (a snapshot, a change of power) waits by the same [`Patience`], after a look at what is there.

use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use drover_log::log;
use drover_types::chain;

use crate::error::{VsphereError, VsphereErrorKind};
use crate::session::{Inner, Work, lock};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Short, because a guest may be down meanwhile.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Failures that are further apart are of two outages: nobody knows what was between them. Longer than it takes to find out that no
/// answer comes.
const GAP_MAX: Duration = Duration::from_secs(180);
/// A shorter outage is not told.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// What a session knows of an outage of its API, and how long it waits for the end of one.
#[derive(Default)]
pub(crate) struct Outage {
    patience: OnceLock<Duration>,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    /// Absent while the API answers.
    now: Option<Silence>,
    /// Calls without an answer so far.
    missed: u64,
}

struct Silence {
    since: Instant,
    last: Instant,
    why: String,
}

impl Outage {
    /// Calls wait for so long; counts once.
    pub fn outlast(&self, patience: Duration) {
        // A second one is of the same run.
        let _ = self.patience.set(patience);
    }

    /// Takes in how a call ended.
    pub fn heard(&self, error: Option<&VsphereError>) {
        let mut seen = lock(&self.seen);
        match error {
            Some(error) if error.is_away() => seen.miss(error, Instant::now()),
            // Who may log in, another service says.
            Some(error) if error.is_fault("NotAuthenticated") => {}
            Some(_) | None => seen.now = None,
        }
    }

    /// Why it does not answer, if that is so for a while.
    pub fn why(&self) -> Option<String> {
        let seen = lock(&self.seen);
        seen.now.as_ref().filter(|it| it.since.elapsed() >= TOLD_AFTER).map(|it| it.why.clone())
    }

    /// Calls without an answer so far.
    pub fn missed(&self) -> u64 {
        lock(&self.seen).missed
    }

    /// What is left to wait of a call that has had no answer since then.
    fn left(&self, since: Instant) -> Duration {
        let Some(patience) = self.patience.get() else { return Duration::ZERO };
        let age = lock(&self.seen).now.as_ref().map_or(Duration::ZERO, |it| it.since.elapsed());
        patience.saturating_sub(age.max(since.elapsed()))
    }
}

impl Seen {
    fn miss(&mut self, error: &VsphereError, at: Instant) {
        self.missed += 1;
        let why = match error.kind {
            VsphereErrorKind::Away(status) => format!("HTTP {status}"),
            _ => error.source.as_ref().map_or_else(|| error.to_string(), |source| chain(source.as_ref())),
        };
        let before = self.now.take().filter(|it| at.saturating_duration_since(it.last) < GAP_MAX);
        let since = before.map_or(at, |it| it.since);
        self.now = Some(Silence { since, last: at, why });
    }
}

/// One thing that is tried again for as long as the API does not answer, and the session waits for it.
pub(crate) struct Patience<'a> {
    session: &'a Inner,
    pub work: Work<'a>,
    /// When it had no answer first.
    since: Option<Instant>,
    pause: Duration,
    /// When it is given up at the latest, whatever the session's patience is.
    until: Option<Instant>,
}

impl<'a> Patience<'a> {
    pub fn new(session: &'a Inner) -> Self {
        Patience { session, work: session.begin(), since: None, pause: FIRST_PAUSE, until: None }
    }

    /// The same, that waits no longer than until then.
    pub fn until(self, moment: Option<Instant>) -> Self {
        Patience { until: moment, ..self }
    }

    /// Waits a little after an error that may pass by itself, for the next try.
    ///
    /// # Errors
    /// The same error, if it does not pass or was waited out for long enough. A stop ends the wait; what began after the stop, to undo
    /// something, does not wait.
    pub fn wait(&mut self, op: &str, error: VsphereError) -> Result<(), VsphereError> {
        if !error.is_away() || self.work.began_stopped() {
            return Err(error);
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        let left = self.session.outage.left(since);
        let left = self.until.map_or(left, |until| left.min(until.saturating_duration_since(Instant::now())));
        if left.is_zero() {
            return Err(error);
        }
        log!("vsphere", "{op}: waits for the API, {} s at most: {error}", left.as_secs());
        let pause = self.pause.min(left);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        let slept = self.work.sleep(op, pause);
        slept.map_err(|stopped| VsphereError { source: Some(Box::new(error)), ..stopped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away() -> VsphereError {
        VsphereError { kind: VsphereErrorKind::Away(503), op: "look".into(), fault: None, source: None }
    }

    #[test]
    fn an_outage_lasts_from_the_first_miss_to_the_next_answer() {
        let outage = Outage::default();
        assert_eq!(outage.left(Instant::now()), Duration::ZERO, "without patience nothing is waited for");
        outage.outlast(Duration::from_secs(600));
        outage.heard(Some(&away()));
        assert_eq!((outage.why(), outage.missed()), (None, 1), "too short to be told");
        lock(&outage.seen).now.as_mut().unwrap().since -= Duration::from_secs(3);
        outage.heard(Some(&away()));
        assert_eq!((outage.why().as_deref(), outage.missed()), (Some("HTTP 503"), 2));
        assert!(outage.left(Instant::now()) <= Duration::from_secs(597), "it began before this call");
        outage.heard(None);
        assert_eq!((outage.why(), outage.missed()), (None, 2));
        assert!(outage.left(Instant::now()) > Duration::from_secs(598));
    }

    #[test]
    fn a_miss_long_after_the_last_one_begins_another_outage() {
        let (mut seen, first) = (Seen::default(), Instant::now());
        let later = |seconds| first + Duration::from_secs(seconds);
        for (at, since) in [(0, 0), (170, 0), (340, 0), (521, 521)] {
            seen.miss(&away(), later(at));
            assert_eq!(seen.now.as_ref().unwrap().since, later(since), "after {at} s");
        }
    }
}
