//! What was foreseen when a run began, beside what came.

use drover_engine::{ForecastError, PlanReport, PlanState};
use serde::Serialize;

use crate::clock::local;
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
    let error = outcome_ms.map(|outcome| ForecastError::of(foreseen.makespan_ms, outcome));
    let arrived: Vec<bool> = report.vms.iter().filter_map(took).collect();
    Some(Compared {
        p50_ms,
        p10_ms,
        p90_ms,
        outcome_ms,
        off: error.map(|it| it.off),
        inside: error.map(|it| it.inside),
        vms: arrived.len(),
        vms_inside: arrived.iter().filter(|inside| **inside).count(),
    })
}

/// When a plan that runs is foreseen to end: as it was said last, and as it was when the run began. Absent where nothing was.
pub fn end_text(report: &PlanReport) -> Option<String> {
    let run = report.runs.last().filter(|_| report.plan.state == PlanState::Running)?;
    let first = run.facts.foreseen.as_ref().map(|it| {
        it.makespan_ms.map(|after_ms| run.at_ms.saturating_add(i64::try_from(after_ms).unwrap_or(i64::MAX)))
    });
    let [p10, p50, p90] = run.facts.foreseen_now.map(|now| now.end_ms).or(first)?.map(local);
    let before = match (run.facts.foreseen_now, first) {
        (Some(_), Some([_, first, _])) => format!("  as the run began: {}\n", local(first)),
        _ => String::new(),
    };
    Some(format!("foreseen to end: {p50}\n  P10 {p10}, P90 {p90}\n{before}"))
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
    use drover_engine::{Foreseen, ForeseenNow, ForeseenVm};

    use super::*;
    use crate::sample;

    #[test]
    fn a_forecast_is_held_against_what_came() {
        let mut report = sample::report();
        assert_eq!(compared(&report).map(|_| ()), None, "nothing was foreseen");
        let vm = ForeseenVm { end_ms: [1_000, 2_000, 70_000], downtime_ms: None };
        let at_ms = report.runs.last().unwrap().at_ms;
        report.runs.last_mut().unwrap().facts.foreseen = Some(Foreseen {
            makespan_ms: [50_000, 90_000, 130_000],
            vms: [("vm-1".to_string(), vm)].into(),
            ..Foreseen::default()
        });
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

    #[test]
    fn a_plan_that_runs_says_when_it_ends_and_when_it_was_to() {
        let mut report = sample::report();
        report.plan.state = PlanState::Running;
        assert_eq!(end_text(&report), None);
        let run = report.runs.last_mut().unwrap();
        let at = |after_ms: i64| local(run.at_ms + after_ms);
        let [soon, likely, late, now] = [50_000, 90_000, 130_000, 7_000].map(at);
        let now_ms = run.at_ms + 7_000;
        run.facts.foreseen = Some(Foreseen { makespan_ms: [50_000, 90_000, 130_000], ..Foreseen::default() });
        assert_eq!(
            end_text(&report).unwrap(),
            format!("foreseen to end: {likely}\n  P10 {soon}, P90 {late}\n")
        );
        let run = report.runs.last_mut().unwrap();
        run.facts.foreseen_now = Some(ForeseenNow { at_ms: 1, end_ms: [now_ms; 3] });
        let text = end_text(&report).unwrap();
        assert_eq!(
            text,
            format!("foreseen to end: {now}\n  P10 {now}, P90 {now}\n  as the run began: {likely}\n")
        );
        report.plan.state = PlanState::Done;
        assert_eq!(end_text(&report), None);
    }
}
