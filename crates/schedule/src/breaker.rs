//! A host, a datastore or a place at the target that keeps failing is left alone for a while.

use crate::job::JobId;
use crate::random::Random;

/// Failures in a row that open it.
pub const FAILURES_MAX: u32 = 3;
/// The first wait, in milliseconds; each further one is twice as long.
pub const BACKOFF_MS: u64 = 30_000;
/// No wait is longer than about this.
pub const BACKOFF_MS_MAX: u64 = 30 * 60_000;

/// Whether VMs of a host may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permit {
    /// As many as there is room for.
    Yes,
    /// One, to see whether it works again.
    One,
    /// None before this time, in milliseconds.
    Not(u64),
    /// None any more.
    Never,
}

/// The circuit breaker of a host, of a datastore, or of a place at the target.
///
/// Three failures in a row open it: no VM starts there. After a wait that doubles each time, between half and all of
/// its length by chance so that hosts do not come back in step, one VM is tried. If that one works it closes; after
/// so many tries as it is made with the host is given up.
#[derive(Clone, Debug)]
pub struct Breaker {
    random: Random,
    state: State,
    /// All failures so far.
    failures: u32,
    tries_max: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed {
        in_a_row: u32,
    },
    Open {
        opened: u32,
        until_ms: u64,
    },
    /// One VM is being tried: only what becomes of that one tells how it stands with the host.
    Trying {
        opened: u32,
        by: JobId,
    },
    GivenUp,
}

impl Breaker {
    /// A closed one; `random` decides its jitter, and after `tries_max` tries the host is given up.
    pub fn new(random: Random, tries_max: u32) -> Breaker {
        Breaker { random, state: State::Closed { in_a_row: 0 }, failures: 0, tries_max }
    }

    /// Whether VMs of the host may start.
    pub fn permit(&self, now_ms: u64) -> Permit {
        match self.state {
            State::Closed { .. } => Permit::Yes,
            State::Open { until_ms, .. } if now_ms >= until_ms => Permit::One,
            State::Open { until_ms, .. } => Permit::Not(until_ms),
            State::Trying { .. } => Permit::Not(u64::MAX),
            State::GivenUp => Permit::Never,
        }
    }

    /// A host that was given up is tried once more.
    pub fn try_again(&mut self) {
        if self.state == State::GivenUp {
            self.state = State::Closed { in_a_row: 0 };
        }
    }

    /// A VM of the host starts.
    pub fn started(&mut self, by: JobId, now_ms: u64) {
        if let State::Open { opened, until_ms } = self.state
            && now_ms >= until_ms
        {
            self.state = State::Trying { opened, by };
        }
    }

    /// The host served a VM well. While it is left alone, or another VM is being tried, that tells of before only.
    pub fn succeeded(&mut self, by: JobId) {
        let is_tried = match self.state {
            State::Closed { .. } => true,
            State::Trying { by: tried, .. } => tried == by,
            State::Open { .. } | State::GivenUp => false,
        };
        if is_tried {
            self.state = State::Closed { in_a_row: 0 };
        }
    }

    /// A VM ended that tells nothing of the host; if it was the one that is tried, the next one is.
    pub fn told_nothing(&mut self, by: JobId, now_ms: u64) {
        if let State::Trying { opened, by: tried } = self.state
            && by == tried
        {
            self.state = State::Open { opened, until_ms: now_ms };
        }
    }

    /// A VM failed because of the host.
    pub fn failed(&mut self, by: JobId, now_ms: u64) {
        self.fail(by, FAILURES_MAX, now_ms);
    }

    /// The same where nobody doubts that it is not the VM: one failure opens it.
    pub fn failed_for_certain(&mut self, by: JobId, now_ms: u64) {
        self.fail(by, 1, now_ms);
    }

    /// The same of a VM that gave its place to others before that was known: where a try is due, this was it.
    pub fn failed_late(&mut self, by: JobId, now_ms: u64) {
        self.started(by, now_ms);
        self.failed_for_certain(by, now_ms);
    }

    fn fail(&mut self, by: JobId, failures_max: u32, now_ms: u64) {
        self.failures = self.failures.saturating_add(1);
        let opened = match self.state {
            State::Closed { in_a_row } if in_a_row + 1 < failures_max => {
                self.state = State::Closed { in_a_row: in_a_row + 1 };
                return;
            }
            State::Closed { .. } => 0,
            // VMs that ran when it opened fail one after the other: that is one failure of the host.
            State::Open { .. } | State::GivenUp => return,
            State::Trying { by: tried, .. } if by != tried => return,
            State::Trying { opened, .. } if opened + 1 >= self.tries_max => {
                self.state = State::GivenUp;
                return;
            }
            State::Trying { opened, .. } => opened + 1,
        };
        let until_ms = now_ms.saturating_add(backoff_ms(opened, &mut self.random));
        self.state = State::Open { opened, until_ms };
    }

    /// Whether it is being tried with this VM.
    pub fn is_tried_by(&self, id: JobId) -> bool {
        matches!(self.state, State::Trying { by, .. } if by == id)
    }

    /// Whether the host is left alone, or is being tried.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, State::Closed { .. })
    }

    /// Whether nothing of it starts any more.
    pub fn is_given_up(&self) -> bool {
        self.state == State::GivenUp
    }

    /// How often a VM failed because of the host.
    pub fn failures(&self) -> u32 {
        self.failures
    }
}

/// The wait after the try with this number, from 0, in milliseconds: between half and all of a length that doubles.
pub(crate) fn backoff_ms(number: u32, random: &mut Random) -> u64 {
    let length = BACKOFF_MS.saturating_mul(1 << number.min(16)).min(BACKOFF_MS_MAX);
    length / 2 + random.below(length / 2 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budgets::HOST_TRIES;

    const VM: JobId = JobId(1);

    fn open() -> Breaker {
        let mut breaker = Breaker::new(Random::new(7), HOST_TRIES);
        (0..FAILURES_MAX).for_each(|_| breaker.failed(VM, 1000));
        breaker
    }

    fn until(breaker: &Breaker, now_ms: u64) -> u64 {
        let Permit::Not(until) = breaker.permit(now_ms) else { panic!("it is not open") };
        until
    }

    #[test]
    fn three_failures_in_a_row_open_it_and_fewer_do_not() {
        let mut breaker = Breaker::new(Random::new(7), HOST_TRIES);
        for _ in 0..9 {
            breaker.failed(VM, 0);
            breaker.failed(VM, 0);
            breaker.succeeded(VM);
        }
        assert_eq!((breaker.permit(0), breaker.failures()), (Permit::Yes, 18));
        assert!(open().is_open());
    }

    #[test]
    fn one_failure_that_nobody_doubts_opens_it_and_one_vm_is_tried() {
        let mut breaker = Breaker::new(Random::new(7), HOST_TRIES);
        breaker.failed_for_certain(VM, 1000);
        let now = until(&breaker, 1000);
        breaker.failed_for_certain(JobId(2), 1000);
        assert_eq!(until(&breaker, 1000), now, "those that ran beside it count as the same failure");
        breaker.started(VM, now);
        assert!(breaker.is_tried_by(VM) && !breaker.is_tried_by(JobId(2)));
        breaker.succeeded(VM);
        assert!(!breaker.is_open());
    }

    #[test]
    fn a_failure_that_is_known_late_counts_as_a_try_where_one_is_due() {
        let mut breaker = Breaker::new(Random::new(7), 2);
        breaker.failed_late(VM, 1000);
        let first = until(&breaker, 1000);
        breaker.failed_late(JobId(2), first - 1);
        assert_eq!(until(&breaker, 1000), first, "no try is due yet");
        breaker.started(VM, first);
        breaker.failed_late(JobId(2), first);
        assert!(breaker.is_tried_by(VM));
        breaker.told_nothing(VM, first);
        breaker.failed_late(VM, first);
        let second = until(&breaker, first);
        assert!(second >= first + BACKOFF_MS && !breaker.is_given_up());
        breaker.failed_late(VM, second);
        assert!(breaker.is_given_up(), "it was tried twice");
    }

    #[test]
    fn one_vm_is_tried_after_the_wait_and_closes_it_or_doubles_the_wait() {
        let mut breaker = open();
        let mut now = 1000;
        for number in 0..HOST_TRIES - 1 {
            let until = until(&breaker, now);
            let longest = (BACKOFF_MS << number).min(BACKOFF_MS_MAX);
            assert!((longest / 2..=longest).contains(&(until - now)), "wait {number}: {}", until - now);
            now = until;
            assert_eq!(breaker.permit(now), Permit::One);
            breaker.started(VM, now);
            assert_eq!(breaker.permit(now), Permit::Not(u64::MAX), "a second one waits for the first");
            breaker.failed(VM, now);
        }
        now = until(&breaker, now);
        breaker.started(VM, now);
        breaker.succeeded(VM);
        assert_eq!(breaker.permit(now), Permit::Yes);
    }

    #[test]
    fn a_host_that_fails_each_try_is_given_up() {
        let mut breaker = open();
        for _ in 0..HOST_TRIES {
            let now = until(&breaker, 1000);
            breaker.started(VM, now);
            breaker.failed(VM, now);
        }
        assert_eq!((breaker.permit(u64::MAX), breaker.is_open()), (Permit::Never, true));
    }

    #[test]
    fn a_host_that_is_never_given_up_is_tried_at_the_longest_wait() {
        let mut breaker = Breaker { tries_max: u32::MAX, ..open() };
        let mut now = 1000;
        for _ in 0..100 {
            now = until(&breaker, now);
            breaker.started(VM, now);
            breaker.failed(VM, now);
        }
        assert!((BACKOFF_MS_MAX / 2..=BACKOFF_MS_MAX).contains(&(until(&breaker, now) - now)));
    }

    #[test]
    fn a_try_that_tells_nothing_is_followed_by_another() {
        let mut breaker = open();
        let now = until(&breaker, 1000);
        breaker.started(VM, now);
        breaker.told_nothing(VM, now + 5);
        assert_eq!(breaker.permit(now + 5), Permit::One);
    }

    #[test]
    fn hosts_do_not_come_back_in_step() {
        let waits = ["esx1", "esx2", "esx3"].map(|host| backoff_ms(3, &mut Random::of(1, host)));
        assert!(waits[0] != waits[1] && waits[1] != waits[2]);
    }
}
