//! How busy the hosts of a move are, and what that takes of a downtime.
//!
//! While the guest stands still, one thread after the other has to be woken: QEMU's that sends, the link's on both hosts, QEMU's that
//! receives, drover's. On a host with more threads than processors each of them waits for its turn.

use std::fmt;

use drover_types::{Estimate, count};

/// How busy a host is, by its kernel's word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostLoad {
    /// Processors, at least one.
    pub processors: u32,
    /// Threads that ran or wanted to, on average over the last minute.
    pub load_average: f64,
    /// Share of the last ten seconds in which some thread waited for a processor (0 to 1), where the kernel tells.
    pub waiting: Option<f64>,
}

/// The same of both hosts; nothing where it is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loads {
    /// The source's host.
    pub source: Option<HostLoad>,
    /// The target's.
    pub target: Option<HostLoad>,
}

/// For which a thread waits whose host has one thread more for each processor than can run. Sixteen moves of a small guest between
/// two QEMUs of one host with six threads for each processor stood 20 ms longer in the median, and up to 230; moves of guests with two
/// busy processors over a link were seen to stand for much longer.
const WAIT_S: f64 = 0.001;
/// Threads that are woken one after the other on each host, from the stop of the guest to its start.
const WOKEN: f64 = 3.0;
/// The same where a link carries the move: those of its connections and of its sockets come on top.
const WOKEN_BY_LINK: f64 = 6.0;
/// What no host has: a figure that is read wrongly is not to refuse every move.
const EXCESS_MAX: f64 = 64.0;

impl HostLoad {
    /// Threads for each processor beyond the one that runs. The average of a minute is late; that nothing waits counts at once.
    #[must_use]
    pub fn excess(&self) -> f64 {
        let by_average = (self.load_average / f64::from(self.processors.max(1)) - 1.0).max(0.0);
        let excess = self.waiting.map_or(by_average, |waiting| (by_average * waiting).max(waiting));
        if excess.is_finite() { excess.clamp(0.0, EXCESS_MAX) } else { 0.0 }
    }
}

impl Loads {
    /// Seconds by which a downtime is longer; what is not known adds nothing.
    #[must_use]
    pub fn longer_by(&self, is_carried: bool) -> Estimate {
        let woken = if is_carried { WOKEN_BY_LINK } else { WOKEN };
        let excess: f64 = [self.source, self.target].iter().flatten().map(HostLoad::excess).sum();
        let likely = excess * woken * WAIT_S;
        Estimate { likely, spread: likely }
    }
}

impl fmt::Display for Loads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |side: &str, load: Option<HostLoad>| match load {
            Some(load) => {
                format!(
                    "the {side}'s host has {:.1} threads for {}",
                    load.load_average,
                    count(load.processors as usize, "processor")
                )
            }
            None => format!("how busy the {side}'s host is is not known"),
        };
        write!(f, "{}, {}", words("source", self.source), words("target", self.target))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(load_average: f64, waiting: Option<f64>) -> HostLoad {
        HostLoad { processors: 2, load_average, waiting }
    }

    #[test]
    fn a_host_with_a_processor_for_each_thread_takes_nothing_of_a_downtime() {
        for load in [host(0.0, None), host(2.0, Some(0.0)), host(16.0, Some(0.0))] {
            let both = Loads { source: Some(load), target: Some(load) };
            assert_eq!(both.longer_by(true), Estimate::default(), "{load:?}");
        }
        assert_eq!(Loads::default().longer_by(true), Estimate::default());
    }

    #[test]
    fn each_busy_host_makes_a_downtime_longer_and_a_link_more_so() {
        let busy = Some(host(8.0, Some(1.0)));
        let longer = |source, target, is_carried| Loads { source, target }.longer_by(is_carried).likely;
        assert!(longer(busy, None, false) > 0.005);
        assert!(longer(busy, None, true) > 1.5 * longer(busy, None, false));
        assert_eq!(longer(busy, busy, true), 2.0 * longer(None, busy, true));
    }

    #[test]
    fn a_load_that_has_just_begun_is_seen_before_the_average_tells() {
        assert!(host(0.5, Some(0.9)).excess() > 0.8);
        assert!(host(9.0, Some(0.1)).excess() < 0.4, "it is over");
    }

    #[test]
    fn figures_that_make_no_sense_refuse_no_move() {
        for load in [f64::NAN, f64::INFINITY, -1.0, 1e300] {
            assert!(host(load, None).excess() <= EXCESS_MAX && host(load, Some(load)).excess() >= 0.0);
        }
        assert_eq!(HostLoad { processors: 0, load_average: 2.0, waiting: None }.excess(), 1.0);
    }
}
