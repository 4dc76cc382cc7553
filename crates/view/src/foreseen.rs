//! What was foreseen when a run began, beside what came.

use drover_engine::{PlanReport, PlanState};
use serde::Serialize;

use crate::text::{between, duration};

/// A forecast and its outcome, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Compared {
    /// What was likely until the last VM arrived.
    pub p50_ms: u64,
    /// P10.
    pub p10_ms: u64,
    /// P90.
    pub p90_ms: u64,
    /// What it took; absent while it runs and after a run that did not end well.
    pub outcome_ms: Option<u64>,
    /// By how much of the outcome the likely time was off; below 0 it was too short.
    pub off: Option<f64>,
    /// Whether the outcome was from P10 to P90.
    pub inside: Option<bool>,
    /// VMs that arrived in this run.
    pub vms: usize,
    /// Those of them that arrived from P10 to P90 of their own forecasts.
    pub vms_inside: usize,
}

/// Of the last run.
pub(crate) fn compared(report: &PlanReport) -> Option<Compared> {
    let run = report.runs.last()?;
    let foreseen = run.facts.foreseen.as_ref()?;
    let [p10_ms, p50_ms, p90_ms] = foreseen.makespan_ms;
    let ended = report.plan.ended_ms.filter(|_| report.plan.state == PlanState::Done);
    let outcome_ms = ended.map(|ended| between(run.at_ms, ended).as_millis() as u64);
    let took = |vm: &drover_engine::VmReport| {
        let ended = vm.row.ended_ms.filter(|ended| vm.has_arrived() && *ended >= run.at_ms)?;
        let [low, _, high] = foreseen.vms.get(&vm.row.id)?.end_ms;
        Some((low..=high).contains(&(between(run.at_ms, ended).as_millis() as u64)))
    };
    let arrived: Vec<bool> = report.vms.iter().filter_map(took).collect();
    Some(Compared {
        p50_ms,
        p10_ms,
        p90_ms,
        outcome_ms,
        off: outcome_ms.map(|outcome| p50_ms as f64 / outcome.max(1) as f64 - 1.0),
        inside: outcome_ms.map(|outcome| (p10_ms..=p90_ms).contains(&outcome)),
        vms: arrived.len(),
        vms_inside: arrived.iter().filter(|inside| **inside).count(),
    })
}

/// In a line each.
pub(crate) fn lines(it: &Compared) -> Vec<String> {
    let time = |ms: u64| duration(std::time::Duration::from_millis(ms));
    let mut lines =
        vec![format!("forecast: {} ({} to {})", time(it.p50_ms), time(it.p10_ms), time(it.p90_ms))];
    if let (Some(outcome), Some(off), Some(inside)) = (it.outcome_ms, it.off, it.inside) {
        let place = if inside { "inside" } else { "outside" };
        lines.push(format!(
            "outcome: {}; the forecast was off by {:+.0} %, the outcome is {place} P10 to P90",
            time(outcome),
            off * 100.0
        ));
        lines.push(format!("VMs that arrived inside their own P10 to P90: {} of {}", it.vms_inside, it.vms));
    }
    lines
}

#[cfg(test)]
mod tests {
    use drover_engine::{Foreseen, ForeseenVm};

    use super::*;
    use crate::sample;

    #[test]
    fn a_forecast_is_held_against_what_came() {
        let mut report = sample::report();
        assert_eq!(compared(&report).map(|_| ()), None, "nothing was foreseen");
        let vm = ForeseenVm { end_ms: [1_000, 2_000, 70_000], downtime_ms: None };
        let at_ms = report.runs.last().unwrap().at_ms;
        report.runs.last_mut().unwrap().facts.foreseen =
            Some(Foreseen { makespan_ms: [50_000, 90_000, 130_000], vms: [("vm-1".to_string(), vm)].into() });
        report.plan.state = PlanState::Done;
        report.plan.ended_ms = Some(at_ms + 100_000);
        report.vms[0].row.ended_ms = Some(at_ms + 71_000);
        let it = compared(&report).unwrap();
        assert_eq!((it.outcome_ms, it.inside, it.vms, it.vms_inside), (Some(100_000), Some(true), 1, 0));
        assert!((it.off.unwrap() + 0.1).abs() < 1e-9);
        assert!(lines(&it)[1].contains("off by -10 %, the outcome is inside"), "{:?}", lines(&it));
        report.plan.state = PlanState::Incomplete;
        assert_eq!(compared(&report).unwrap().outcome_ms, None, "what did not end well tells nothing");
    }
}
