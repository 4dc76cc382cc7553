//! What would make plans faster, or keep them in their windows: each piece of advice with its evidence and, where the schedule can
//! tell, with what it gains.

use std::collections::BTreeMap;
use std::time::Duration;

use drover_plan::Aio;
use drover_plan::nfc::{HostNfc, LARGE_AIO_DISKS_MIN};
use drover_schedule::HostLimits;
use drover_types::inventory::{Host, PowerPolicy};
use drover_types::{Bytes, count, duration};
use serde::Serialize;

use crate::fleet::{FleetVm, spread_over};
use crate::foresee::{Forecast, Question, VmForecast, from_midnight, likely_ms};
use crate::windows::{TightWave, tight_waves};

/// How much there is to gain, or to lose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// VMs do not arrive in time, or the end comes at least a fifth sooner.
    High,
    /// The end comes at least a twentieth sooner, or work is done for nothing.
    Medium,
    /// The rest.
    Low,
}

/// A piece of advice.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// How much there is to it.
    pub severity: Severity,
    /// What was found.
    pub finding: String,
    /// By which figures.
    pub evidence: String,
    /// What to try.
    pub advice: String,
    /// The share of the time until the last VM has arrived that this saves; absent where the schedule does not tell.
    pub gain: Option<f64>,
    /// Where a figure was published that this goes by.
    pub source: Option<&'static str>,
}

/// What advice is asked about.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The VMs, rates and budgets.
    pub question: &'a Question,
    /// What is foreseen of them.
    pub forecast: &'a Forecast,
    /// All hosts of the sources.
    pub hosts: &'a [Host],
    /// Disks are read through the provider, and not straight from its hosts.
    pub through_provider: bool,
    /// What the plans take of the NFC servers of hosts.
    pub nfc: &'a [HostNfc],
}

const R1: &str = "MTV performance recommendations (2025)";
/// What the policy "High Performance" gives a host, published for more than ten VMs at once.
const POLICY_GAIN: f64 = (15 << 20) as f64;
/// What a host gives with large buffers of VDDK, beside its own ones: 504.93 for 347.83 MB/s, published for ten cold VMs of one host.
const LARGE_BUFFERS_GAIN: f64 = 504.93 / 347.83;
/// Less than this is within what a forecast can tell.
const GAIN_MIN: f64 = 0.05;
const GAIN_HIGH: f64 = 0.2;
/// A cold move whose downtime is at most so many times that of the warm one is the simpler way.
pub(crate) const POINTLESS: f64 = 1.5;
/// Waves that fit their window less often are told.
const CHANCE_MIN: f64 = 0.9;
/// Names that are told of many.
const NAMES_MAX: usize = 5;

/// Advice, the weightiest first.
pub fn advise(asked: &Asked<'_>) -> Vec<Advice> {
    let question = from_midnight(asked.question);
    let what_if = WhatIf { likely: likely_ms(&question), question };
    if what_if.likely == 0 {
        return never(asked).into_iter().chain(waves(asked)).collect();
    }
    let single = [
        never(asked),
        windows(asked),
        spread(asked, &what_if),
        longest(asked, &what_if),
        policy(asked, &what_if),
        buffers(asked, &what_if),
        way(asked),
        warm_of_guests_that_are_off(asked),
        warm_for_nothing(asked),
        intervals(asked),
    ];
    let mut all: Vec<Advice> = single
        .into_iter()
        .flatten()
        .chain(at_once(asked, &what_if))
        .chain(nics(asked))
        .chain(waves(asked))
        .collect();
    let by_gain = |it: &Advice| it.gain.unwrap_or(0.0);
    all.sort_by(|one, two| one.severity.cmp(&two.severity).then(by_gain(two).total_cmp(&by_gain(one))));
    all
}

/// The schedule with something changed.
struct WhatIf {
    question: Question,
    likely: u64,
}

impl WhatIf {
    /// The share of the time that a change saves.
    fn saved(&self, change: impl FnOnce(&mut Question)) -> f64 {
        let mut changed = self.question.clone();
        change(&mut changed);
        1.0 - likely_ms(&changed) as f64 / self.likely as f64
    }
}

fn by_gain(gain: f64) -> Severity {
    match gain {
        GAIN_HIGH.. => Severity::High,
        GAIN_MIN.. => Severity::Medium,
        _ => Severity::Low,
    }
}

fn never(asked: &Asked<'_>) -> Option<Advice> {
    let never = &asked.forecast.never;
    (!never.is_empty()).then(|| Advice {
        severity: Severity::High,
        finding: format!("no window lets in {}", count(never.len(), "VM")),
        evidence: names(never.iter().map(String::as_str)),
        advice: "give them a longer window or another one".into(),
        gain: None,
        source: None,
    })
}

/// VMs that begin in a window and are likely to end after it.
fn windows<'a>(asked: &Asked<'a>) -> Option<Advice> {
    let Asked { question, forecast, .. } = *asked;
    let ms = |seconds: f64| question.start_ms + (seconds.max(0.0) * 1000.0) as u64;
    let late = |(vm, told): (&'a FleetVm, &VmForecast)| {
        let (begin, end) = (ms(told.begin_s?.p50), ms(told.end_s?.p90));
        let (_, until) = vm.windows.iter().find(|(from, until)| (*from..*until).contains(&begin))?;
        (end > *until).then_some((vm.name.as_str(), end - until))
    };
    let late: Vec<_> = question.vms.iter().zip(&forecast.vms).filter_map(late).collect();
    let longest = late.iter().map(|(_, ms)| *ms).max()?;
    Some(Advice {
        severity: Severity::High,
        finding: format!("{} may end after the window that they begin in", count(late.len(), "VM")),
        evidence: format!(
            "by up to {} (P90): {}",
            time(longest as f64 / 1000.0),
            names(late.iter().map(|(name, _)| *name))
        ),
        advice: "begin the largest first (`priority`), move them warm, or spread them over more windows (`drover plan waves`)"
            .into(),
        gain: None,
        source: None,
    })
}

/// Waves that are not likely to be done before their windows close.
fn waves(asked: &Asked<'_>) -> Vec<Advice> {
    let advice = |it: &TightWave<'_>| Advice {
        severity: Severity::High,
        finding: it.finding(),
        evidence: it.evidence(),
        advice: it.advice().into(),
        gain: None,
        source: None,
    };
    tight_waves(asked.forecast, CHANCE_MIN).iter().map(advice).collect()
}

fn spread(asked: &Asked<'_>, what_if: &WhatIf) -> Option<Advice> {
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for vm in &asked.question.vms {
        *bytes.entry(&vm.host).or_default() += vm.data_bytes();
    }
    let (host, most) = bytes.iter().max_by_key(|(_, bytes)| **bytes)?;
    let (sum, hosts) = (bytes.values().sum::<u64>(), asked.hosts.len().max(bytes.len()));
    let gain = what_if.saved(|it| spread_over(&mut it.vms, hosts));
    (gain >= GAIN_MIN && hosts > 1).then(|| Advice {
        severity: by_gain(gain),
        finding: format!("{host} serves {:.0} % of all bytes", *most as f64 / sum.max(1) as f64 * 100.0),
        evidence: format!(
            "{} of {}; VMs lie on {} of {}",
            Bytes(*most),
            Bytes(sum),
            bytes.len(),
            count(hosts, "host")
        ),
        advice: format!("before the run, move VMs from {host} to hosts that do less (vMotion)"),
        gain: Some(gain),
        source: None,
    })
}

fn at_once(asked: &Asked<'_>, what_if: &WhatIf) -> Vec<Advice> {
    let budgets = &asked.question.budgets;
    let more = |key: &str, now: u32, change: fn(&mut Question)| {
        let gain = what_if.saved(change);
        (gain >= GAIN_MIN).then(|| Advice {
            severity: by_gain(gain),
            finding: format!("`limits.{key}: {now}` holds the plan up"),
            evidence: "the schedule with twice as many".into(),
            advice: format!("set `limits.{key}: {}` in the plan", now.saturating_mul(2)),
            gain: Some(gain),
            source: None,
        })
    };
    let vms = more("vms_per_host", budgets.vms_per_host, |it| it.budgets.vms_per_host *= 2);
    let disks = more("disks", budgets.disks, |it| it.budgets.disks = it.budgets.disks.saturating_mul(2));
    let is_warm = asked.question.vms.iter().any(|vm| vm.warm.is_some());
    let cutovers = is_warm.then(|| {
        more("cutovers", budgets.cutovers, |it| it.budgets.cutovers = it.budgets.cutovers.saturating_mul(2))
    });
    vms.into_iter().chain(disks).chain(cutovers.flatten()).chain(disks_of_hosts(asked, what_if)).collect()
}

/// What the NFC servers of hosts take at once, where more would help.
fn disks_of_hosts(asked: &Asked<'_>, what_if: &WhatIf) -> Option<Advice> {
    let of = |(host, limits): (&String, &HostLimits)| Some((limits.disks?, host.clone()));
    let (least, host) = asked.question.hosts.iter().filter_map(of).min()?;
    let gain = what_if.saved(|it| {
        for disks in it.hosts.values_mut().filter_map(|limits| limits.disks.as_mut()) {
            *disks = disks.saturating_mul(2);
        }
    });
    (gain >= GAIN_MIN).then(|| Advice {
        severity: by_gain(gain),
        finding: format!("NFC services hold the plan up: {host} takes {} at once", count(least as usize, "disk")),
        evidence: "the schedule with twice as many disks at each host".into(),
        advice: "before the run, move VMs to hosts that do less (vMotion); with VDDK, set smaller AIO buffers (`vddk.aio`); read straight from an \
            ESXi host that gives its NFC service more memory, and say how much (`nfc.memory`, `vddk.nfc_memory`)"
            .into(),
        gain: Some(gain),
        source: None,
    })
}

/// A VM that the others have arrived long before.
fn longest(asked: &Asked<'_>, what_if: &WhatIf) -> Option<Advice> {
    let Asked { question, forecast, .. } = asked;
    let end = |at: &usize| forecast.vms[*at].end_s.map_or(0.0, |end| end.p50);
    let at = (0..forecast.vms.len()).max_by(|one, two| end(one).total_cmp(&end(two)))?;
    let gain = what_if.saved(|it| drop(it.vms.remove(at)));
    let vm = &question.vms[at];
    let disk = vm.disks.iter().map(|disk| disk.data_bytes).max()?;
    (gain >= GAIN_MIN && question.vms.len() > 1).then(|| Advice {
        severity: by_gain(gain),
        finding: format!("{} is the last, and without it the end comes sooner", vm.name),
        evidence: format!(
            "its largest disk has {}, and one disk is read at {}/s",
            Bytes(disk),
            Bytes(question.rates.stream.spread.p50 as u64)
        ),
        advice: match (vm.warm.is_some(), vm.disks.len()) {
            (false, _) => "move it warm in a plan of its own, ahead of the others".into(),
            (true, 1) => "begin it ahead of the others, or spread its data over several disks".into(),
            (true, _) => "begin it ahead of the others".into(),
        },
        gain: Some(gain),
        source: None,
    })
}

/// Hosts that VMs of the plans lie on.
fn used<'a>(asked: &Asked<'a>) -> impl Iterator<Item = &'a Host> {
    let Asked { question, hosts, .. } = *asked;
    hosts.iter().filter(|host| question.vms.iter().any(|vm| vm.host == host.name))
}

fn policy(asked: &Asked<'_>, what_if: &WhatIf) -> Option<Advice> {
    let slower = |host: &&Host| host.power_policy.is_some_and(|it| it != PowerPolicy::HighPerformance);
    let hosts: Vec<&str> = used(asked).filter(slower).map(|host| host.name.as_str()).collect();
    let gain = what_if.saved(|it| it.rates.host.spread.p50 += POLICY_GAIN);
    (!hosts.is_empty()).then(|| Advice {
        severity: by_gain(gain),
        finding: "hosts are not set to the power policy High Performance".into(),
        evidence: names(hosts.into_iter()),
        advice: "set it for the time of the run".into(),
        gain: Some(gain.max(0.0)),
        source: Some(R1),
    })
}

/// Small buffers of VDDK at the one host that all is read from; for several hosts no gain is published. Drover's own client gives each
/// disk what fits.
fn buffers(asked: &Asked<'_>, what_if: &WhatIf) -> Option<Advice> {
    let [HostNfc { host_id, disks, share, budget, .. }] = asked.nfc else { return None };
    let is_small = share.aio.is_some_and(|aio| aio.bytes() < Aio::LARGE.bytes());
    let (cold, warm): (Vec<&FleetVm>, Vec<&FleetVm>) =
        asked.question.vms.iter().partition(|vm| vm.warm.is_none());
    let is_worth_it = *disks >= LARGE_AIO_DISKS_MIN && cold.len() >= LARGE_AIO_DISKS_MIN as usize;
    let gain = what_if.saved(|it| it.rates.host.spread.p50 *= LARGE_BUFFERS_GAIN);
    let host = asked.hosts.iter().find(|host| host.id == *host_id).map_or(host_id, |host| &host.name);
    let advice = match warm.as_slice() {
        [] => format!("leave `vddk.aio` out of the plan, or set it to {}", Aio::LARGE),
        warm => format!(
            "move the {} that move warm in a plan of their own: with them buffers stay small",
            count(warm.len(), "VM")
        ),
    };
    (is_small && budget.aio && is_worth_it && gain >= GAIN_MIN).then(|| Advice {
        severity: by_gain(gain),
        finding: format!("VDDK reads {host} with small buffers"),
        evidence: format!(
            "AIO {} for {} of it",
            share.aio.unwrap_or(Aio::OWN),
            count(*disks as usize, "disk")
        ),
        advice,
        gain: Some(gain),
        source: Some(R1),
    })
}

fn nics(asked: &Asked<'_>) -> Vec<Advice> {
    let rate = asked.question.rates.host.spread.p50;
    let slow = |host: &Host| {
        let mbps = host.physical_nics.iter().filter_map(|nic| nic.link_mbps).max()?;
        (f64::from(mbps) * 125_000.0 < rate).then(|| Advice {
            severity: Severity::Medium,
            finding: format!("{} has no NIC that carries what it can read", host.name),
            evidence: format!("{mbps} Mbit/s at the most, and {}/s of its disks", Bytes(rate as u64)),
            advice:
                "read from it over a faster NIC, tagged vSphereBackupNFC, or move its VMs to another host"
                    .into(),
            gain: None,
            source: None,
        })
    };
    used(asked).filter_map(slow).collect()
}

fn way(asked: &Asked<'_>) -> Option<Advice> {
    let hosts = used(asked).count();
    (asked.through_provider && hosts > 1).then(|| Advice {
        severity: Severity::Low,
        finding: "disks are read by way of the provider's address".into(),
        evidence: format!("{} on {hosts} hosts", count(asked.question.vms.len(), "VM")),
        advice: "`data: {from: hosts}` in the plan reads them straight from their hosts".into(),
        gain: None,
        source: Some(R1),
    })
}

fn warm_of_guests_that_are_off(asked: &Asked<'_>) -> Option<Advice> {
    let off: Vec<&str> = asked
        .question
        .vms
        .iter()
        .filter(|vm| vm.warm.is_some() && !vm.runs)
        .map(|vm| vm.name.as_str())
        .collect();
    (!off.is_empty()).then(|| Advice {
        severity: Severity::Low,
        finding: format!("{} planned warm do not run", count(off.len(), "VM")),
        evidence: names(off.into_iter()),
        advice: "move them cold: that is one pass and no snapshot".into(),
        gain: None,
        source: None,
    })
}

fn warm_for_nothing(asked: &Asked<'_>) -> Option<Advice> {
    let Asked { question, forecast, .. } = asked;
    let rates = &question.rates;
    let cold_s = |vm: &FleetVm| {
        let largest = vm.disks.iter().map(|disk| disk.data_bytes).max().unwrap_or(0) as f64;
        let fixed = rates.shutdown_s.spread.p50 + rates.snapshot_s.spread.p50 + rates.start_s.spread.p50;
        fixed
            + largest / rates.stream.spread.p50.max(1.0)
            + vm.verified_bytes as f64 / rates.verify.spread.p50.max(1.0)
    };
    let for_nothing = |(vm, told): (&FleetVm, &VmForecast)| {
        let warm_s = told.downtime_s.filter(|_| vm.warm.is_some() && vm.runs)?.p50;
        (cold_s(vm) <= warm_s * POINTLESS).then(|| (vm.name.clone(), cold_s(vm), warm_s))
    };
    let found: Vec<_> = question.vms.iter().zip(&forecast.vms).filter_map(for_nothing).collect();
    let (name, cold, warm) = found.first()?;
    Some(Advice {
        severity: Severity::Medium,
        finding: format!("{} gain nothing from a warm move", count(found.len(), "VM")),
        evidence: format!(
            "{name} is down for {} warm and {} cold; {}",
            time(*warm),
            time(*cold),
            names(found.iter().map(|(name, ..)| name.as_str()))
        ),
        advice: "move them cold: no change tracking, no snapshots, one pass".into(),
        gain: None,
        source: None,
    })
}

/// Intervals in which so much changes that the last pass takes longer than the downtime that is wanted.
fn intervals(asked: &Asked<'_>) -> Option<Advice> {
    let (stream, churn) =
        (asked.question.rates.stream.spread.p50.max(1.0), asked.question.rates.churn.spread.p50);
    // A guest's largest disk takes the longest.
    let long = |vm: &FleetVm| {
        let warm = vm.warm.filter(|warm| warm.downtime_ms > 0)?;
        let largest = vm.disks.iter().map(|disk| disk.data_bytes).max()? as f64;
        // Of what is measured of a VM, the largest disk has its part.
        let churn =
            vm.churn_bytes_per_hour.map_or(churn, |bytes| bytes as f64 / vm.data_bytes().max(1) as f64);
        let bytes_per_s = largest * churn / 3600.0;
        let (interval_s, downtime_s) = (warm.interval_ms as f64 / 1000.0, warm.downtime_ms as f64 / 1000.0);
        let last_s = bytes_per_s * interval_s / stream;
        (last_s > downtime_s).then(|| (vm.name.clone(), last_s, downtime_s * stream / bytes_per_s, churn))
    };
    let found: Vec<_> = asked.question.vms.iter().filter_map(long).collect();
    let (name, last_s, fits_s, churn) = found.iter().min_by(|one, two| one.2.total_cmp(&two.2))?;
    Some(Advice {
        severity: Severity::Medium,
        finding: format!(
            "{} change more between passes than their downtime allows",
            count(found.len(), "VM")
        ),
        evidence: format!(
            "{:.2} % change in an hour: the last pass of {name} takes {}; {}",
            churn * 100.0,
            time(*last_s),
            names(found.iter().map(|(name, ..)| name.as_str()))
        ),
        advice: format!("set `interval` to {} or less, or to auto", time(*fits_s)),
        gain: None,
        source: None,
    })
}

fn time(seconds: f64) -> String {
    duration(Duration::try_from_secs_f64(seconds).unwrap_or_default())
}

fn names<'a>(all: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = all.len().saturating_sub(NAMES_MAX);
    let told: Vec<&str> = all.take(NAMES_MAX).collect();
    match more {
        0 => told.join(", "),
        more => format!("{} and {more} more", told.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use drover_plan::nfc::{NfcBudget, NfcShare};
    use drover_types::inventory::PhysicalNic;

    use crate::fleet::WarmWish;
    use crate::foresee::foresee;
    use crate::foresee::tests::question;

    use super::*;

    fn host(at: usize) -> Host {
        Host { id: format!("host-{at}"), name: format!("esx{at}"), ..Host::default() }
    }

    fn found(question: &Question, hosts: &[Host], through_provider: bool) -> Vec<Advice> {
        advise(&Asked { question, forecast: &foresee(question), hosts, through_provider, nfc: &[] })
    }

    fn about<'a>(all: &'a [Advice], words: &str) -> Option<&'a Advice> {
        all.iter().find(|it| it.finding.contains(words))
    }

    #[test]
    fn a_fleet_that_nothing_holds_up_needs_no_advice() {
        let all = found(&question(40, 4, 20), &[0, 1, 2, 3].map(host), false);
        assert_eq!(all, []);
        assert_eq!(found(&question(0, 1, 1), &[], true), []);
    }

    #[test]
    fn vms_of_one_host_among_four_are_to_be_spread_and_that_comes_first() {
        let all = found(&question(40, 1, 20), &[0, 1, 2, 3].map(host), false);
        let spread = about(&all, "esx0 serves 100 % of all bytes").unwrap();
        assert_eq!((&all[0], spread.severity), (spread, Severity::High));
        assert!((0.5..0.7).contains(&spread.gain.unwrap()), "{spread:?}");
        assert!(spread.evidence.contains("VMs lie on 1 of 4 hosts"), "{spread:?}");
        assert!(about(&found(&question(40, 1, 20), &[host(0)], false), "serves").is_none());
    }

    #[test]
    fn limits_that_hold_a_plan_up_are_named() {
        let mut asked = question(40, 4, 20);
        asked.budgets.disks = 2;
        let all = found(&asked, &[0, 1, 2, 3].map(host), false);
        let disks = about(&all, "`limits.disks: 2`").unwrap();
        assert!(disks.gain.unwrap() > 0.3 && disks.advice.contains("`limits.disks: 4`"), "{disks:?}");
        assert!(about(&all, "vms_per_host").is_none(), "{all:?}");
        assert!(about(&all, "cutovers").is_none(), "{all:?}");
        let mut warm = question(40, 4, 1);
        warm.budgets.cutovers = 1;
        let wish = WarmWish { interval_ms: 60_000, ..WarmWish::default() };
        warm.vms.iter_mut().for_each(|vm| vm.warm = Some(wish));
        let all = found(&warm, &[0, 1, 2, 3].map(host), false);
        let cutovers = about(&all, "`limits.cutovers: 1`").unwrap();
        assert!(cutovers.advice.contains("`limits.cutovers: 2`"), "{cutovers:?}");
    }

    #[test]
    fn nfc_services_that_hold_a_plan_up_are_named_by_the_least_of_them() {
        let mut asked = question(40, 2, 20);
        let few = |disks| HostLimits { disks: Some(disks), ..HostLimits::default() };
        asked.hosts = [("esx0".to_string(), few(1)), ("esx1".to_string(), few(2))].into();
        let all = found(&asked, &[0, 1].map(host), false);
        let memory = about(&all, "NFC services hold the plan up: esx0 takes 1 disk at once").unwrap();
        assert!(memory.gain.unwrap() > 0.3 && memory.advice.contains("`nfc.memory`"), "{memory:?}");
        asked.hosts = [("esx0".to_string(), few(20)), ("esx1".to_string(), few(20))].into();
        assert!(about(&found(&asked, &[0, 1].map(host), false), "NFC services").is_none());
    }

    #[test]
    fn small_buffers_are_named_where_one_host_serves_many_cold_vms() {
        let nfc = |host: &str, aio| HostNfc {
            host_id: host.into(),
            disks: 40,
            open_max: 40,
            share: NfcShare { aio, disk_bytes: 1 << 18, disks_at_once: 50, request_bytes: 2 << 20 },
            budget: NfcBudget {
                through_vcenter: true,
                bytes_max: 48 << 20,
                disks_max: Some(50),
                aio: true,
                request_bytes: 2 << 20,
            },
        };
        let mut asked = question(40, 1, 20);
        let buffers = |question: &Question, nfc: &[HostNfc]| {
            let (forecast, hosts) = (foresee(question), [host(0)]);
            let asked = Asked { question, forecast: &forecast, hosts: &hosts, through_provider: false, nfc };
            about(&advise(&asked), "small buffers").cloned()
        };
        let small = [nfc("host-0", Some(Aio::OWN))];
        let found = buffers(&asked, &small).unwrap();
        assert_eq!(found.finding, "VDDK reads esx0 with small buffers");
        // A published 31.1 % of the time of the copies alone.
        assert!((0.2..0.311).contains(&found.gain.unwrap()), "{found:?}");
        assert!(
            found.advice.contains("set it to 16 x 4") && found.evidence.contains("AIO 1 x 4"),
            "{found:?}"
        );
        assert_eq!(buffers(&asked, &[nfc("host-0", Some(Aio::LARGE))]), None);
        assert_eq!(buffers(&asked, &[nfc("host-0", None)]), None, "drover's own client");
        assert_eq!(buffers(&asked, &[small[0].clone(), nfc("host-1", Some(Aio::OWN))]), None);
        asked.vms[0].warm = asked_warm();
        assert!(buffers(&asked, &small).unwrap().advice.starts_with("move the 1 VM that move warm"));
        asked.vms.iter_mut().for_each(|vm| vm.warm = asked_warm());
        assert_eq!(buffers(&asked, &small), None, "they are for cold copies");
    }

    fn asked_warm() -> Option<WarmWish> {
        Some(WarmWish { interval_ms: 1, ..WarmWish::default() })
    }

    #[test]
    fn a_vm_that_the_others_wait_for_is_named() {
        let mut asked = question(10, 2, 5);
        asked.vms[3].disks[0].data_bytes = 2_000 << 30;
        let all = found(&asked, &[0, 1].map(host), false);
        let longest = about(&all, "vm003 is the last").unwrap();
        assert!(longest.gain.unwrap() > 0.8 && longest.advice.contains("warm"), "{longest:?}");
    }

    #[test]
    fn windows_that_are_too_short_are_found() {
        let mut asked = question(4, 1, 100);
        let start = asked.start_ms;
        asked.vms.iter_mut().for_each(|vm| vm.windows = vec![(start, start + 60_000)]);
        asked.vms[0].windows = vec![(1, 2)];
        let all = found(&asked, &[host(0)], false);
        assert_eq!(about(&all, "no window lets in 1 VM").unwrap().evidence, "vm000");
        let late = about(&all, "3 VMs may end after the window").unwrap();
        assert!(
            late.severity == Severity::High && late.evidence.ends_with("vm001, vm002, vm003"),
            "{late:?}"
        );
    }

    #[test]
    fn hosts_are_judged_by_what_they_are_where_vms_of_the_plan_lie() {
        let slow = |at| Host {
            power_policy: Some(PowerPolicy::Balanced),
            physical_nics: vec![PhysicalNic { device: "vmnic0".into(), link_mbps: Some(1000) }],
            ..host(at)
        };
        let all = found(&question(40, 2, 20), &[slow(0), slow(1), slow(2)], true);
        let policy = about(&all, "High Performance").unwrap();
        assert_eq!((policy.evidence.as_str(), policy.source), ("esx0, esx1", Some(R1)));
        assert_eq!(all.iter().filter(|it| it.finding.contains("no NIC")).count(), 2, "{all:?}");
        assert!(about(&all, "way of the provider").is_some());
    }

    #[test]
    fn warm_moves_for_nothing_and_intervals_that_are_too_long_are_found() {
        let warm = |interval_ms, downtime_ms| {
            Some(WarmWish { interval_ms, cutover_ms: None, downtime_ms, ..WarmWish::default() })
        };
        let mut asked = question(3, 1, 0);
        asked.vms.iter_mut().for_each(|vm| vm.warm = warm(60_000, 0));
        asked.vms[1].runs = false;
        asked.vms[2].disks[0].data_bytes = 4_000 << 30;
        // 20 GiB an hour.
        asked.vms[2].warm = warm(3_600_000, 30_000);
        let all = found(&asked, &[host(0)], false);
        assert_eq!(about(&all, "planned warm do not run").unwrap().evidence, "vm001");
        let nothing = about(&all, "1 VM gain nothing").unwrap();
        assert!(nothing.evidence.ends_with("vm000"), "{nothing:?}");
        let interval = about(&all, "change more between passes").unwrap();
        assert!(
            interval.advice.starts_with("set `interval` to 8 min") && interval.evidence.contains("vm002")
        );
    }
}
