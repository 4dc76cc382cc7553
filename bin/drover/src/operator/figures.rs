//! What the operator tells of itself: whether it does its work, and its figures.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use drover_operator::model::Phase;
use drover_server::{Figures, MetricsText};

use super::{KINDS, Operator};

/// How old figures may be.
const EACH: Duration = Duration::from_secs(1);

const PHASES: [Phase; 8] = [
    Phase::Pending,
    Phase::Queued,
    Phase::Running,
    Phase::Retrying,
    Phase::Cancelling,
    Phase::Done,
    Phase::Failed,
    Phase::Cancelled,
];

/// What was told last.
pub struct Told {
    /// Whether anybody can ask.
    is_served: bool,
    ready: Mutex<Result<(), String>>,
    text: Mutex<String>,
    at: Mutex<Option<Instant>>,
}

impl Told {
    /// Before it leads.
    pub fn new(is_served: bool) -> Told {
        let ready = Mutex::new(Err("the API server was not asked yet".into()));
        Told { is_served, ready, text: Mutex::new(figures(&Counts::default())), at: Mutex::new(None) }
    }

    /// Whether all is to be summed up again: somebody can ask, and the figures are as old as they may be.
    fn is_due(&self) -> bool {
        let at = *self.at.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_served && at.is_none_or(|at| at.elapsed() >= EACH)
    }

    fn tell(&self, counts: &Counts) {
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = figures(counts);
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    pub fn set_ready(&self, ready: Result<(), String>) {
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = ready;
    }
}

impl Figures for Told {
    fn ready(&self) -> Result<(), String> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn metrics(&self) -> String {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the figures are made of.
#[derive(Default)]
struct Counts {
    leads: bool,
    /// Plans that are laid over their source as both are, and others.
    plans: [u64; 2],
    phases: BTreeMap<String, u64>,
    guests_off: u64,
    bytes: u64,
    done_bytes: u64,
    waiting: usize,
    admitted: usize,
    /// Those that wait, and those that may.
    cutovers: (usize, usize),
    left_alone: Vec<String>,
    datastores_left_alone: Vec<String>,
    /// Workers that ended, by exit; those that told none.
    ends: BTreeMap<Option<u8>, u64>,
    requests: u64,
    due: usize,
}

impl Operator {
    /// Tells what there is now, unless nobody can ask or that was done a moment ago.
    pub(super) fn tell_figures(&self) {
        if !self.told.is_due() {
            return;
        }
        let ready = match self.complete.len() == KINDS.len() {
            true if self.lease.is_held() => Ok(()),
            true => Err("the lease is not renewed".to_string()),
            false => Err("the lists of the API server are not complete yet".to_string()),
        };
        self.told.set_ready(ready);
        self.told.tell(&self.counts());
    }

    fn counts(&self) -> Counts {
        let (waiting, admitted) = self.admissions.counts();
        let left_alone = self.admissions.left_alone().map(str::to_string).collect();
        let datastores = self.admissions.datastores_left_alone().map(str::to_string);
        let mut counts = Counts {
            leads: self.lease.is_held(),
            waiting,
            admitted,
            cutovers: self.cutovers.counts(),
            left_alone,
            datastores_left_alone: datastores.collect(),
            ends: self.ends.clone(),
            requests: self.cluster.requests(),
            due: self.due.len(),
            ..Counts::default()
        };
        for plan in self.plans.values() {
            counts.plans[usize::from(plan.status.resolved_generation != plan.meta.generation)] += 1;
        }
        for it in self.migrations.values() {
            *counts.phases.entry(format!("{:?}", it.status.phase)).or_default() += 1;
            counts.guests_off += u64::from(it.status.guest_off);
            let (total, done) =
                it.status.progress.as_ref().map_or((0, 0), |it| (it.total_bytes, it.done_bytes));
            counts.bytes += total;
            counts.done_bytes += done;
        }
        counts
    }
}

fn figures(counts: &Counts) -> String {
    let mut text = MetricsText::default();
    text.family("operator_leads", "gauge", "Whether this one acts; another of the namespace may.");
    text.value("operator_leads", &[], u8::from(counts.leads));
    text.family("operator_plans", "gauge", "Plans by whether each is laid over its source as it is now.");
    for (resolved, count) in ["true", "false"].into_iter().zip(counts.plans) {
        text.value("operator_plans", &[("resolved", resolved)], count);
    }
    text.family("operator_migrations", "gauge", "Migrations by phase.");
    for phase in PHASES.map(|phase| format!("{phase:?}")) {
        let count = counts.phases.get(&phase).copied().unwrap_or_default();
        text.value("operator_migrations", &[("phase", &phase)], count);
    }
    text.family("operator_guests_off", "gauge", "Migrations whose guest is off because a worker left it so.");
    text.value("operator_guests_off", &[], counts.guests_off);
    text.family("operator_bytes", "gauge", "Bytes of the disks of Migrations that have begun.");
    text.value("operator_bytes", &[], counts.bytes);
    text.family("operator_done_bytes", "gauge", "Bytes of them that are at the target.");
    text.value("operator_done_bytes", &[], counts.done_bytes);
    text.family("operator_slots", "gauge", "Migrations that have a slot of the scheduler, or wait for one.");
    text.value("operator_slots", &[("state", "admitted")], counts.admitted);
    text.value("operator_slots", &[("state", "waiting")], counts.waiting);
    let help = "Warm VMs whose guests are down for their cutovers, or may be, and those that ask for it.";
    text.family("operator_cutovers", "gauge", help);
    text.value("operator_cutovers", &[("state", "admitted")], counts.cutovers.1);
    text.value("operator_cutovers", &[("state", "waiting")], counts.cutovers.0);
    text.family("operator_host_left_alone", "gauge", "Hosts that failed and are left alone, or are tried.");
    for host in &counts.left_alone {
        text.value("operator_host_left_alone", &[("host", host)], 1);
    }
    let help = "Datastores that failed and are left alone, or are tried.";
    text.family("operator_datastore_left_alone", "gauge", help);
    for datastore in &counts.datastores_left_alone {
        text.value("operator_datastore_left_alone", &[("datastore", datastore)], 1);
    }
    let help = "Workers that ended, by exit code; none for those that told nothing.";
    text.family("operator_worker_ends_total", "counter", help);
    for (exit, count) in &counts.ends {
        let exit = exit.map_or("none".to_string(), |exit| exit.to_string());
        text.value("operator_worker_ends_total", &[("exit", &exit)], count);
    }
    text.family("operator_requests_total", "counter", "Requests to the API server.");
    text.value("operator_requests_total", &[], counts.requests);
    text.family("operator_due", "gauge", "Migrations that are to be decided on.");
    text.value("operator_due", &[], counts.due);
    text.into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_summed_up_for_nobody_or_twice_in_a_moment() {
        assert!(!Told::new(false).is_due());
        let told = Told::new(true);
        assert!(told.is_due());
        told.tell(&Counts { requests: 7, ..Counts::default() });
        assert!(!told.is_due() && told.metrics().contains("drover_operator_requests_total 7"));
        *told.at.lock().unwrap() = Instant::now().checked_sub(EACH);
        assert!(told.is_due());
    }

    #[test]
    fn every_figure_is_documented_and_told_once() {
        let counts = Counts {
            left_alone: vec!["vc/host-1".into()],
            datastores_left_alone: vec!["vc/ds1".into()],
            ends: BTreeMap::from([(None, 2), (Some(6), 3)]),
            cutovers: (5, 1),
            phases: BTreeMap::from([("Failed".to_string(), 4)]),
            ..Counts::default()
        };
        let text = figures(&counts);
        for line in [
            "drover_operator_leads 0",
            "drover_operator_migrations{phase=\"Failed\"} 4",
            "drover_operator_migrations{phase=\"Done\"} 0",
            "drover_operator_cutovers{state=\"waiting\"} 5",
            "drover_operator_host_left_alone{host=\"vc/host-1\"} 1",
            "drover_operator_datastore_left_alone{datastore=\"vc/ds1\"} 1",
            "drover_operator_worker_ends_total{exit=\"none\"} 2",
            "drover_operator_worker_ends_total{exit=\"6\"} 3",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} in\n{text}");
        }
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/operator-metrics.md");
        let page = std::fs::read_to_string(page).unwrap();
        let families: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        for family in &families {
            assert!(page.contains(&format!("`{family}")), "{family} is not documented");
        }
        let mut once = families.clone();
        once.dedup();
        assert_eq!(families, once);
    }
}
