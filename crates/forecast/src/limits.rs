//! What limits a fleet, and what one more of it buys.

use std::collections::BTreeMap;

use drover_schedule::Resource;
use drover_schedule::simulate::{Idle, Outcome};
use serde::Serialize;

use crate::foresee::{Question, likely_ms};
use crate::rates::Quantity;

/// A resource and how long it was the one that limited most.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Limiting {
    /// Its name.
    pub name: String,
    /// Seconds in which it limited more transfers than any other.
    pub seconds: f64,
    /// When first, in seconds from the beginning.
    pub from_s: f64,
    /// When last.
    pub to_s: f64,
    /// What went through it, as a part (0 to 1) of what could have until the end.
    pub part: f64,
}

/// What a fleet is kept busy with, or waits for, while nothing is copied.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WithoutCopy {
    /// What it is called.
    pub name: String,
    /// For so many seconds.
    pub seconds: f64,
}

/// What one more of something buys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Gain {
    /// Of what.
    pub what: String,
    /// The change of the makespan, as a share of it; below 0 it is shorter.
    pub change: f64,
}

/// Resources are told of up to this number.
const LIMITING_MAX: usize = 10;

/// What limited, for how long and when.
pub(crate) fn limiting(outcome: &Outcome, start_ms: u64) -> Vec<Limiting> {
    let mut found: BTreeMap<&Resource, Limiting> = BTreeMap::new();
    let since = |ms: u64| ms.saturating_sub(start_ms) as f64 / 1000.0;
    for span in &outcome.limited {
        let Some(by) = &span.by else { continue };
        let part = outcome.resources.iter().find(|it| it.resource == *by).map_or(0.0, |it| it.part);
        let it = found.entry(by).or_insert_with(|| Limiting {
            name: by.to_string(),
            seconds: 0.0,
            from_s: since(span.from_ms),
            to_s: 0.0,
            part,
        });
        it.seconds += (span.to_ms - span.from_ms) as f64 / 1000.0;
        it.to_s = since(span.to_ms);
    }
    let mut all: Vec<Limiting> = found.into_values().collect();
    all.sort_by(|one, two| two.seconds.total_cmp(&one.seconds));
    all.truncate(LIMITING_MAX);
    all
}

/// What goes on while nothing is copied, the longest first; nothing where a rate limits for a third of the time or more.
pub(crate) fn without_copy(outcome: &Outcome, limiting: &[Limiting]) -> Vec<WithoutCopy> {
    let all_s = outcome.makespan_ms as f64 / 1000.0;
    if limiting.first().is_some_and(|it| it.seconds >= all_s / 3.0) {
        return Vec::new();
    }
    let name = |idle: &Idle| match idle {
        Idle::Steps => "shutdown, snapshot, check, start",
        Idle::Pauses => "pauses between passes",
        Idle::Windows => "closed windows",
    };
    let told = |(idle, ms): (&Idle, &u64)| WithoutCopy {
        name: name(idle).to_string(),
        seconds: *ms as f64 / 1000.0,
    };
    let mut all: Vec<WithoutCopy> = outcome.idle.iter().map(told).collect();
    all.sort_by(|one, two| two.seconds.total_cmp(&one.seconds));
    all
}

/// Runs it again with one more of each.
pub(crate) fn gains(question: &Question, likely: u64) -> Vec<Gain> {
    if likely == 0 {
        return Vec::new();
    }
    let hosts =
        question.vms.iter().map(|vm| vm.host.as_str()).collect::<std::collections::BTreeSet<_>>().len();
    let (vms_at_once, disks) = (question.budgets.vms_per_host + 1, question.budgets.disks.saturating_add(1));
    let changes: [(String, Change); 8] = [
        (format!("{} host, with its part of the VMs", ordinal(hosts as u32 + 1)), one_more_host),
        (format!("{} VM at once of a host", ordinal(vms_at_once)), |it| it.budgets.vms_per_host += 1),
        (format!("{} disk at once in all", ordinal(disks)), |it| it.budgets.disks += 1),
        ("hosts that read a tenth faster".into(), |it| faster(&mut it.rates.host)),
        ("datastores a tenth faster".into(), |it| {
            faster(&mut it.rates.datastore);
            it.rates.datastores.values_mut().for_each(faster);
        }),
        ("a link a tenth faster".into(), faster_link),
        ("a target a tenth faster".into(), faster_target),
        // Where both are as fast, one alone changes nothing.
        ("link and target, both a tenth faster".into(), |it| {
            faster_link(it);
            faster_target(it);
        }),
    ];
    let gain = |(what, change): (String, Change)| {
        let mut changed = question.clone();
        change(&mut changed);
        Gain { what, change: likely_ms(&changed) as f64 / likely as f64 - 1.0 }
    };
    let mut gains: Vec<Gain> = changes.into_iter().map(gain).collect();
    gains.sort_by(|one, two| one.change.total_cmp(&two.change));
    gains
}

type Change = fn(&mut Question);

fn faster(quantity: &mut Quantity) {
    quantity.spread.p50 *= 1.1;
}

fn faster_link(question: &mut Question) {
    faster(&mut question.rates.link);
    question.rates.sites.values_mut().for_each(faster);
}

fn faster_target(question: &mut Question) {
    faster(&mut question.rates.pool);
    question.rates.pools.values_mut().for_each(faster);
}

/// Of each host's VMs, every (n+1)-th by size goes to a new one.
fn one_more_host(question: &mut Question) {
    let mut by_host: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, vm) in question.vms.iter().enumerate() {
        by_host.entry(vm.host.clone()).or_default().push(at);
    }
    let every = by_host.len() + 1;
    let vms = &mut question.vms;
    let mut taken = 0;
    for mut of_host in by_host.into_values() {
        of_host.sort_by_key(|at| std::cmp::Reverse(vms[*at].data_bytes()));
        for at in of_host {
            taken += 1;
            if taken % every == 0 {
                vms[at].host = "one more host".into();
            }
        }
    }
}

fn ordinal(number: u32) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("a {number}{ending}")
}

#[cfg(test)]
mod tests {
    use crate::foresee::foresee;
    use crate::foresee::tests::question;

    use super::*;

    #[test]
    fn a_host_that_limits_is_named_and_another_one_helps() {
        let forecast = foresee(&question(60, 1, 20));
        assert_eq!(forecast.limiting[0].name, "host esx0");
        assert!(forecast.limiting[0].part > 0.9, "{:?}", forecast.limiting);
        let gain =
            |what: &str| forecast.gains.iter().find(|it| it.what.contains(what)).map(|it| it.change).unwrap();
        assert!(gain("2nd host") < -0.3, "{:?}", forecast.gains);
        assert!((gain("hosts that read") + 0.09).abs() < 0.02, "{:?}", forecast.gains);
        assert!(gain("a link").abs() < 0.01);
        assert!(forecast.gains.is_sorted_by(|one, two| one.change <= two.change));
    }

    #[test]
    fn where_no_rate_limits_for_long_what_does_is_told() {
        // Nothing to copy: the fixed times are all there is.
        let empty = foresee(&question(1, 1, 0));
        let [steps] = &empty.without_copy[..] else { panic!("{:?}", empty.without_copy) };
        assert!(steps.name.starts_with("shutdown") && steps.seconds > 1.0, "{steps:?}");
        assert_eq!(foresee(&question(60, 1, 20)).without_copy, [], "the host does");
    }

    #[test]
    fn numbers_are_counted_as_people_do() {
        let all = [1, 2, 3, 4, 11, 12, 13, 21, 102, 113].map(ordinal);
        assert_eq!(all.join(" "), "a 1st a 2nd a 3rd a 4th a 11th a 12th a 13th a 21st a 102nd a 113th");
    }
}
