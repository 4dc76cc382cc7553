//! Which connections of a session are made over RDMA. Pure.
//!
//! A session begins over TCP. Where the listening side says that it can be reached over RDMA, and this side has a device, its connections are
//! made anew over RDMA, and those over TCP are given up. A way that RDMA does not go, or a device that vanishes, is left to TCP for a
//! time, and tried again after it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::core::Moment;

/// After RDMA has failed on a way, TCP carries what there is for so long, until it is tried again.
pub const AGAIN_AFTER: Duration = Duration::from_secs(60);

/// A line with such a round trip is far: a connection over RDMA has no more under way than the 256 KiB of its buffer (25 MiB/s at 10 ms), and a
/// card has much to send again for each loss. TCP with many connections is made for such lines.
const FAR: Duration = Duration::from_millis(10);

/// Whether connections are made over RDMA.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RdmaMode {
    /// Where both sides have a device.
    #[default]
    Auto,
    /// Not at all.
    Never,
    /// In any case: without it there is no connection.
    Require,
}

const MODES: [(RdmaMode, &str); 3] =
    [(RdmaMode::Auto, "auto"), (RdmaMode::Never, "never"), (RdmaMode::Require, "require")];

impl fmt::Display for RdmaMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(MODES.iter().find(|(mode, _)| mode == self).map_or("", |(_, name)| name))
    }
}

impl FromStr for RdmaMode {
    type Err = String;

    fn from_str(text: &str) -> Result<RdmaMode, String> {
        let found = MODES.iter().find(|(_, name)| *name == text).map(|(mode, _)| *mode);
        found.ok_or_else(|| format!("'{text}' is none of auto, never and require"))
    }
}

/// Whether RDMA carries a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RdmaState {
    /// It does.
    On,
    /// It is being tried, while TCP carries the session.
    Joining,
    /// It does not, for this reason.
    Off(String),
}

impl RdmaState {
    /// Of a session whose first connection is there, with such a round trip, and whose peer offers RDMA or not. `lacks` tells what this
    /// host lacks for it.
    pub fn first(
        mode: RdmaMode,
        is_offered: bool,
        rtt: Duration,
        lacks: impl FnOnce() -> Option<String>,
    ) -> RdmaState {
        match mode {
            RdmaMode::Require => RdmaState::On,
            RdmaMode::Never => RdmaState::Off("it is not wanted".into()),
            RdmaMode::Auto if !is_offered => RdmaState::Off("the peer does not offer it".into()),
            RdmaMode::Auto if rtt >= FAR => {
                let text = format!("a round trip of {} ms is too long for it", rtt.as_millis());
                RdmaState::Off(text)
            }
            RdmaMode::Auto => lacks().map_or(RdmaState::Joining, RdmaState::Off),
        }
    }
}

/// What a connection is made over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    Tcp,
    Rdma,
}

/// Connections that carry frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Healthy {
    pub all: usize,
    /// Of these, over RDMA.
    pub rdma: usize,
}

/// What the next connections of a session are made over, and which pairs of addresses they take.
#[derive(Debug)]
pub struct Choice {
    /// For each pair of addresses when RDMA may be tried on it; without any it is not tried at all.
    not_before: Option<Vec<Moment>>,
    /// RDMA or nothing.
    is_required: bool,
    pairs: usize,
    next: usize,
    /// There was a connection over RDMA.
    was_up: bool,
}

impl Choice {
    /// Of so many pairs of addresses, of which that one is next. `is_possible`: both sides can.
    pub fn new(mode: RdmaMode, is_possible: bool, pairs: usize, next: usize) -> Choice {
        let is_tried = is_possible && mode != RdmaMode::Never;
        Choice {
            not_before: is_tried.then(|| vec![Moment::ZERO; pairs]),
            is_required: mode == RdmaMode::Require,
            pairs,
            next,
            was_up: false,
        }
    }

    /// What connections are made over now. The loss of the last one over RDMA puts it aside.
    pub fn carrier(&mut self, healthy: Healthy, now: Moment) -> Carrier {
        if self.is_required {
            return Carrier::Rdma;
        }
        let Some(not_before) = &mut self.not_before else { return Carrier::Tcp };
        if self.was_up && healthy.rdma == 0 {
            self.was_up = false;
            not_before.fill(now + AGAIN_AFTER);
        }
        if not_before.iter().any(|at| *at <= now) { Carrier::Rdma } else { Carrier::Tcp }
    }

    /// The pair of addresses that the next connection takes.
    pub fn pair(&mut self, carrier: Carrier, now: Moment) -> usize {
        let is_open = |at: usize| {
            carrier == Carrier::Tcp
                || self.is_required
                || self.not_before.as_ref().is_some_and(|all| all[at] <= now)
        };
        let found = (0..self.pairs).map(|ahead| (self.next + ahead) % self.pairs).find(|at| is_open(*at));
        let pair = found.unwrap_or(self.next % self.pairs);
        self.next = pair + 1;
        pair
    }

    /// One over RDMA joined the session.
    pub fn joined(&mut self) {
        self.was_up = true;
    }

    /// None could be made over RDMA on this pair of addresses.
    pub fn failed(&mut self, pair: usize, now: Moment) {
        if let Some(not_before) = &mut self.not_before {
            not_before[pair] = now + AGAIN_AFTER;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Healthy = Healthy { all: 0, rdma: 0 };
    const TCP: Healthy = Healthy { all: 4, rdma: 0 };
    const RDMA: Healthy = Healthy { all: 4, rdma: 4 };

    #[test]
    fn a_session_joins_over_rdma_where_both_sides_have_it_and_are_near() {
        let first = |mode, is_offered, ms, lacking: Option<&str>| {
            RdmaState::first(mode, is_offered, Duration::from_millis(ms), || lacking.map(str::to_string))
        };
        assert_eq!(first(RdmaMode::Auto, true, 9, None), RdmaState::Joining);
        assert_eq!(first(RdmaMode::Require, false, 55, Some("all")), RdmaState::On);
        for (state, why) in [
            (first(RdmaMode::Auto, true, 0, Some("no device")), "no device"),
            (first(RdmaMode::Auto, true, 10, None), "round trip of 10 ms"),
            (first(RdmaMode::Auto, false, 0, None), "does not offer"),
            (first(RdmaMode::Never, true, 0, None), "not wanted"),
        ] {
            assert!(matches!(&state, RdmaState::Off(said) if said.contains(why)), "{state:?}");
        }
    }

    fn at(seconds: u64) -> Moment {
        Duration::from_secs(seconds)
    }

    #[test]
    fn tcp_is_taken_where_rdma_is_not_wanted_or_not_there() {
        for (mode, is_possible) in [(RdmaMode::Never, true), (RdmaMode::Auto, false)] {
            let mut choice = Choice::new(mode, is_possible, 2, 1);
            assert_eq!(choice.carrier(TCP, at(0)), Carrier::Tcp);
            let pairs = [0; 4].map(|_| choice.pair(Carrier::Tcp, at(0)));
            assert_eq!(pairs, [1, 0, 1, 0]);
        }
    }

    #[test]
    fn rdma_that_is_lost_is_left_to_tcp_for_a_time() {
        let mut choice = Choice::new(RdmaMode::Auto, true, 2, 0);
        assert_eq!(choice.carrier(TCP, at(0)), Carrier::Rdma);
        choice.joined();
        assert_eq!(choice.carrier(RDMA, at(10)), Carrier::Rdma);
        assert_eq!(choice.carrier(NONE, at(20)), Carrier::Tcp);
        assert_eq!(choice.carrier(TCP, at(79)), Carrier::Tcp);
        assert_eq!(choice.carrier(TCP, at(80)), Carrier::Rdma);
        // One that never joins again does not keep TCP away.
        choice.failed(0, at(81));
        assert_eq!((choice.carrier(TCP, at(81)), choice.pair(Carrier::Rdma, at(81))), (Carrier::Rdma, 1));
        choice.failed(1, at(82));
        assert_eq!(choice.carrier(TCP, at(140)), Carrier::Tcp);
        assert_eq!(choice.carrier(TCP, at(141)), Carrier::Rdma);
    }

    #[test]
    fn pairs_that_rdma_does_not_go_are_passed_by() {
        let mut choice = Choice::new(RdmaMode::Auto, true, 3, 0);
        choice.failed(1, at(0));
        let pairs = [0; 4].map(|_| choice.pair(Carrier::Rdma, at(1)));
        assert_eq!(pairs, [0, 2, 0, 2]);
        assert_eq!(choice.pair(Carrier::Tcp, at(1)), 0);
        assert_eq!(choice.pair(Carrier::Tcp, at(1)), 1);
    }

    #[test]
    fn where_rdma_is_required_nothing_else_is_taken() {
        let mut choice = Choice::new(RdmaMode::Require, true, 1, 0);
        choice.joined();
        choice.failed(0, at(0));
        assert_eq!((choice.carrier(NONE, at(1)), choice.pair(Carrier::Rdma, at(1))), (Carrier::Rdma, 0));
    }

    #[test]
    fn modes_are_what_they_are_called() {
        for (mode, name) in MODES {
            assert_eq!((name.parse(), mode.to_string()), (Ok(mode), name.to_string()));
        }
        assert!("perhaps".parse::<RdmaMode>().is_err());
    }
}
