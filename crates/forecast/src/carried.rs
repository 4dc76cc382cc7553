//! What goes over each line. The churn of warm VMs and the time in which they wait spread it: each pass reads what changed since the
//! one before.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use drover_schedule::simulate::Outcome;
use serde::Serialize;

use crate::foresee::{Question, line_to};
use crate::quantile::quantile;

/// What goes over a line: the link of all, a limit that plans share, the line to a site, or that of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LineBytes {
    /// What people call it.
    pub name: String,
    /// Bytes that are read of disks for it, by all passes together.
    pub bytes: ByteSpread,
}

/// Bytes that are exceeded nine times of ten, every other time, and once in ten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ByteSpread {
    /// Nine of ten are greater.
    pub p10: u64,
    /// As many are greater as are smaller.
    pub p50: u64,
    /// One of ten is greater.
    pub p90: u64,
}

impl ByteSpread {
    /// Of values in any order; zeros of none.
    fn of(mut values: Vec<u64>) -> ByteSpread {
        values.sort_unstable();
        let at = |share| quantile(&values, share).unwrap_or_default();
        ByteSpread { p10: at(0.1), p50: at(0.5), p90: at(0.9) }
    }
}

/// VMs whose bytes go over one line, and what these came to in each draw.
struct Way {
    name: String,
    vms: Vec<usize>,
    draws: Vec<u64>,
}

impl Way {
    fn new(name: String, vms: Vec<usize>) -> Way {
        Way { name, vms, draws: Vec::new() }
    }

    fn add(&mut self, outcome: &Outcome) {
        self.draws.push(self.vms.iter().map(|at| outcome.vms[*at].bytes).sum());
    }

    fn told(self) -> LineBytes {
        LineBytes { name: self.name, bytes: ByteSpread::of(self.draws) }
    }
}

/// What all draws of a question sent over its lines.
pub(crate) struct Carried {
    link: Way,
    /// Limits and sites.
    lines: Vec<Way>,
    hosts: Vec<Way>,
}

/// The same in quantiles.
pub(crate) struct Told {
    /// The link of all first, then limits and sites, then hosts, the one with most first.
    pub(crate) lines: Vec<LineBytes>,
    /// What is likely of each host.
    pub(crate) hosts: BTreeMap<String, u64>,
    /// What is likely of all.
    pub(crate) bytes: u64,
}

impl Carried {
    /// Of no draw yet.
    pub(crate) fn of(question: &Question) -> Carried {
        let plans = || question.vms.iter().map(|vm| vm.plan).enumerate();
        let limits = question.lines.iter().map(|line| {
            let vms = plans().filter(|(_, plan)| line.plans.contains(plan)).map(|(at, _)| at);
            Way::new(line.name.clone(), vms.collect())
        });
        let sites: BTreeSet<&String> = question.sites.values().collect();
        let sites = sites.into_iter().map(|site| {
            let vms = plans().filter(|(_, plan)| question.sites.get(plan) == Some(site)).map(|(at, _)| at);
            Way::new(line_to(site), vms.collect())
        });
        let mut hosts: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, vm) in question.vms.iter().enumerate() {
            hosts.entry(&vm.host).or_default().push(at);
        }
        Carried {
            link: Way::new("the link".into(), (0..question.vms.len()).collect()),
            lines: limits.chain(sites).collect(),
            hosts: hosts.into_iter().map(|(name, vms)| Way::new(name.into(), vms)).collect(),
        }
    }

    /// Takes in a draw.
    pub(crate) fn add(&mut self, outcome: &Outcome) {
        let ways = self.lines.iter_mut().chain(&mut self.hosts);
        std::iter::once(&mut self.link).chain(ways).for_each(|way| way.add(outcome));
    }

    pub(crate) fn told(self) -> Told {
        let link = self.link.told();
        let bytes = link.bytes.p50;
        let mut hosts: Vec<LineBytes> = self.hosts.into_iter().map(Way::told).collect();
        let likely = hosts.iter().map(|host| (host.name.clone(), host.bytes.p50)).collect();
        hosts.sort_by_key(|host| Reverse(host.bytes.p50));
        let hosts = hosts.into_iter().map(|it| LineBytes { name: format!("host {}", it.name), ..it });
        let lines = std::iter::once(link).chain(self.lines.into_iter().map(Way::told)).chain(hosts);
        Told { lines: lines.collect(), hosts: likely, bytes }
    }
}

#[cfg(test)]
mod tests {
    use drover_types::DayLimit;

    use super::*;
    use crate::fleet::WarmWish;
    use crate::foresee::tests::question;
    use crate::foresee::{Forecast, Line, foresee_roughly};
    use crate::rates::Quantity;

    fn exact(gib: u64) -> ByteSpread {
        ByteSpread { p10: gib << 30, p50: gib << 30, p90: gib << 30 }
    }

    #[test]
    fn each_line_has_the_bytes_of_the_vms_that_go_over_it() {
        let mut asked = question(5, 2, 10);
        asked.plans = ["p", "q", "r"].map(str::to_string).to_vec();
        asked.vms[3].plan = 1;
        asked.vms[4].plan = 2;
        let limits = vec![DayLimit::always(1 << 40)];
        asked.lines = vec![Line { name: "limit of site a".into(), limits, plans: vec![0, 1] }];
        asked.sites = [(2, "b".to_string())].into();
        let forecast = foresee_roughly(&asked);
        let told: Vec<(&str, ByteSpread)> =
            forecast.lines.iter().map(|it| (it.name.as_str(), it.bytes)).collect();
        // Cold VMs are read once, whatever the rates are.
        let expected = [
            ("the link", exact(50)),
            ("limit of site a", exact(40)),
            ("line to b", exact(10)),
            ("host esx0", exact(30)),
            ("host esx1", exact(20)),
        ];
        assert_eq!(told, expected);
        assert_eq!(forecast.bytes, 50 << 30);
        assert_eq!(forecast.hosts, [("esx0".to_string(), 30 << 30), ("esx1".to_string(), 20 << 30)].into());
    }

    #[test]
    fn churn_and_the_time_until_the_cutover_spread_the_bytes_of_warm_vms() {
        let mut asked = question(2, 1, 10);
        let link = |forecast: &Forecast| forecast.lines[0].bytes;
        let warm = WarmWish { interval_ms: 3_600_000, ..WarmWish::default() };
        asked.vms.iter_mut().for_each(|vm| vm.warm = Some(warm));
        let at_once = link(&foresee_roughly(&asked));
        let cutover_ms = Some(asked.start_ms + 24 * 3_600_000);
        asked.vms.iter_mut().for_each(|vm| vm.warm = Some(WarmWish { cutover_ms, ..warm }));
        let next_day = link(&foresee_roughly(&asked));
        for spread in [at_once, next_day] {
            let ByteSpread { p10, p50, p90 } = spread;
            assert!((20 << 30) < p10 && p10 < p50 && p50 < p90, "{spread:?}");
        }
        assert!(next_day.p50 > at_once.p90, "a day of passes: {next_day:?} after {at_once:?}");
        asked.rates.churn = Quantity::given(0.0);
        assert_eq!(link(&foresee_roughly(&asked)), exact(20), "what does not change is read once");
    }

    #[test]
    fn no_vms_send_nothing() {
        let forecast = foresee_roughly(&question(0, 1, 1));
        assert_eq!(forecast.lines, [LineBytes { name: "the link".into(), bytes: ByteSpread::default() }]);
        assert_eq!((forecast.bytes, forecast.hosts.len()), (0, 0));
    }
}
