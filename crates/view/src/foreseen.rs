//! What was foreseen when a run began, beside what came.

use drover_engine::{ForecastError, PassRow, PassState, PlanReport, PlanState, VmState};
use serde::{Deserialize, Serialize};

use crate::clock::local;
use crate::status::EndForeseen;
use crate::text::{between, clean, count, duration};

/// A forecast and its outcome, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Compared {
    /// What was likely until the last VM arrived.
    pub p50_ms: u64,
    /// P10.
    pub p10_ms: u64,
    /// P90.
    pub p90_ms: u64,
    /// VMs that moved over only when `drover cutover` said so. Then the times above are until all were ready for that, and nothing is
    /// compared with the outcome.
    pub on_order: usize,
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
    let on_order = foreseen.vms.values().filter(|vm| vm.on_order).count();
    let [p10_ms, p50_ms, p90_ms] = foreseen.ready_ms.unwrap_or(foreseen.makespan_ms);
    let ended = report.plan.ended_ms.filter(|_| report.plan.state == PlanState::Done);
    let outcome_ms = ended.map(|ended| between(run.at_ms, ended).as_millis() as u64);
    let took = |vm: &drover_engine::VmReport| {
        let ended = vm.row.ended_ms.filter(|ended| vm.has_arrived() && *ended >= run.at_ms)?;
        let [low, _, high] = foreseen.vms.get(&vm.row.id).filter(|it| !it.on_order)?.end_ms;
        Some((low..=high).contains(&(between(run.at_ms, ended).as_millis() as u64)))
    };
    let error = outcome_ms.filter(|_| foreseen.ready_ms.is_none());
    let error = error.map(|outcome| ForecastError::of(foreseen.makespan_ms, outcome));
    let arrived: Vec<bool> = report.vms.iter().filter_map(took).collect();
    Some(Compared {
        p50_ms,
        p10_ms,
        p90_ms,
        on_order,
        outcome_ms,
        off: error.map(|it| it.off),
        inside: error.map(|it| it.inside),
        vms: arrived.len(),
        vms_inside: arrived.iter().filter(|inside| **inside).count(),
    })
}

/// What of a plan waits for `drover cutover`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitsForCutover {
    /// VMs that move over only when it says so, and for which it did not yet.
    pub vms: usize,
    /// Those of them that were copied once at the least: they may move over at once.
    pub ready: usize,
    /// How long one of them is down then, the longest as it was foreseen: P10, P50 and P90 in milliseconds.
    pub down_ms: Option<[u64; 3]>,
}

/// What of a plan that runs waits for `drover cutover`; absent where nothing does, or nothing was foreseen yet.
pub fn waits_for_cutover(report: &PlanReport) -> Option<WaitsForCutover> {
    let run = report.runs.last().filter(|_| report.plan.state == PlanState::Running)?;
    let foreseen = run.facts.foreseen.as_ref()?;
    let (mut waits, mut down) = (WaitsForCutover { vms: 0, ready: 0, down_ms: None }, Vec::new());
    for vm in &report.vms {
        let Some(of_vm) = foreseen.vms.get(&vm.row.id).filter(|it| it.on_order) else { continue };
        let is_left = matches!(vm.row.state, VmState::Queued | VmState::Running | VmState::Stopped);
        let warm = vm.warm.as_ref();
        let is_ordered = warm.is_some_and(|warm| warm.row.cutover_asked || warm.row.down_ms.is_some());
        if is_left && !is_ordered {
            waits.vms += 1;
            let is_copied = |pass: &PassRow| pass.state == PassState::Complete;
            waits.ready += usize::from(warm.is_some_and(|warm| warm.passes.iter().any(is_copied)));
            down.extend(of_vm.downtime_ms);
        }
    }
    waits.down_ms = down.into_iter().max_by_key(|[_, likely, _]| *likely);
    (waits.vms > 0).then_some(waits)
}

/// In a line.
pub(crate) fn order_line(name: &str, it: &WaitsForCutover) -> String {
    let wait = if it.vms == 1 { "waits" } else { "wait" };
    let time = |ms: u64| duration(std::time::Duration::from_millis(ms));
    let down = it
        .down_ms
        .map(|[p10, p50, p90]| format!("; a cutover takes {} ({} to {})", time(p50), time(p10), time(p90)));
    let vms = count(it.vms, "VM");
    format!("{vms} {wait} for `drover cutover {name}`, {} ready for it{}", it.ready, down.unwrap_or_default())
}

/// When a plan that runs is foreseen to end: as it was said last, and as it was when the run began. Absent where nothing was. Of one
/// that waits for `drover cutover`: for how many VMs, and when they are ready.
pub(crate) fn end_text(plan: &str, run: &EndForeseen, waits: Option<&WaitsForCutover>) -> Option<String> {
    let since = |after: [u64; 3]| {
        after.map(|after_ms| run.began_ms.saturating_add(i64::try_from(after_ms).unwrap_or(i64::MAX)))
    };
    if let Some(waits) = waits {
        let line = order_line(&clean(plan), waits);
        let ready = run.now.and_then(|now| now.ready_ms).or(run.ready_ms.map(since));
        let ready = ready.filter(|_| waits.ready < waits.vms).map(|moments| {
            let [p10, p50, p90] = moments.map(local);
            format!("foreseen to be ready for cutover: {p50}\n  P10 {p10}, P90 {p90}\n")
        });
        return Some(format!("{line}\n{}", ready.unwrap_or_default()));
    }
    let first = run.makespan_ms.map(since);
    let [p10, p50, p90] = run.now.map(|now| now.end_ms).or(first)?.map(local);
    let before = match (run.now, first) {
        (Some(_), Some([_, first, _])) if run.ready_ms.is_none() => {
            format!("  as the run began: {}\n", local(first))
        }
        _ => String::new(),
    };
    Some(format!("foreseen to end: {p50}\n  P10 {p10}, P90 {p90}\n{before}"))
}

/// In a line each.
pub(crate) fn lines(it: &Compared) -> Vec<String> {
    let time = |ms: u64| duration(std::time::Duration::from_millis(ms));
    let until = match it.on_order {
        0 => String::new(),
        vms => format!(" until {} that waited for `drover cutover` were ready", count(vms, "VM")),
    };
    let spread = format!("{} ({} to {})", time(it.p50_ms), time(it.p10_ms), time(it.p90_ms));
    let mut lines = vec![format!("forecast: {spread}{until}")];
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
    use drover_engine::{Foreseen, ForeseenNow, ForeseenVm, WarmReport, WarmRow};

    use super::*;
    use crate::sample;

    #[test]
    fn a_forecast_is_held_against_what_came() {
        let mut report = sample::report();
        assert_eq!(compared(&report).map(|_| ()), None, "nothing was foreseen");
        let vm = ForeseenVm { end_ms: [1_000, 2_000, 70_000], ..ForeseenVm::default() };
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
        let began_ms = sample::START;
        let at = |after_ms: i64| local(began_ms + after_ms);
        let [soon, likely, late, now] = [50_000, 90_000, 130_000, 7_000].map(at);
        let mut run = EndForeseen { began_ms, makespan_ms: None, ready_ms: None, now: None };
        assert_eq!(end_text("lab", &run, None), None);
        run.makespan_ms = Some([50_000, 90_000, 130_000]);
        assert_eq!(
            end_text("lab", &run, None).unwrap(),
            format!("foreseen to end: {likely}\n  P10 {soon}, P90 {late}\n")
        );
        run.now = Some(ForeseenNow { at_ms: 1, end_ms: [began_ms + 7_000; 3], ready_ms: None });
        assert_eq!(
            end_text("lab", &run, None).unwrap(),
            format!("foreseen to end: {now}\n  P10 {now}, P90 {now}\n  as the run began: {likely}\n")
        );
    }

    fn end(report: &PlanReport) -> Option<String> {
        end_text("lab", &EndForeseen::of(&report.runs)?, waits_for_cutover(report).as_ref())
    }

    #[test]
    fn a_plan_that_waits_for_its_cutovers_promises_no_end() {
        let mut report = sample::report();
        report.plan.state = PlanState::Running;
        report.vms[0].row.state = VmState::Running;
        report.vms[0].row.id = "vm-1".into();
        let on_order = ForeseenVm {
            end_ms: [50_000, 90_000, 130_000],
            downtime_ms: Some([1_000, 2_000, 3_000]),
            on_order: true,
        };
        let foreseen = Foreseen {
            makespan_ms: [50_000, 90_000, 130_000],
            ready_ms: Some([40_000, 80_000, 120_000]),
            vms: [("vm-1".to_string(), on_order)].into(),
            ..Foreseen::default()
        };
        let run = report.runs.last_mut().unwrap();
        let at = |after_ms: i64| local(run.at_ms + after_ms);
        let [soon, likely, late] = [40_000, 80_000, 120_000].map(at);
        run.facts.foreseen = Some(foreseen);
        report.vms[0].warm = None;
        let down = "a cutover takes 2.0 s (1.0 s to 3.0 s)";
        assert_eq!(
            end(&report).unwrap(),
            format!(
                "1 VM waits for `drover cutover lab`, 0 ready for it; {down}\nforeseen to be ready for cutover: {likely}\n  P10 {soon}, \
                 P90 {late}\n"
            )
        );
        report.vms[0].warm = Some(WarmReport {
            row: WarmRow::default(),
            passes: vec![PassRow { state: PassState::Complete, ..PassRow::begin("vm-1", 1, 5) }],
            ready_ms: None,
            downtime_ms: None,
        });
        let text = end(&report).unwrap();
        assert_eq!(text, format!("1 VM waits for `drover cutover lab`, 1 ready for it; {down}\n"));
        let (text, json) = (crate::report_text(&report), sample::json(&report));
        assert!(text.contains("1 VM waits for `drover cutover lab`"), "{text}");
        assert_eq!(json["waits_for_cutover"]["vms"], 1);
        assert!(crate::report_html(&report).contains("1 VM waits for `drover cutover lab`"));
        report.vms[0].warm.as_mut().unwrap().row.cutover_asked = true;
        assert_eq!(
            (waits_for_cutover(&report), sample::json(&report)["waits_for_cutover"].is_null()),
            (None, true)
        );
        assert!(end(&report).unwrap().starts_with("foreseen to end: "));
        report.plan.state = PlanState::Done;
        report.plan.ended_ms = Some(report.runs.last().unwrap().at_ms + 9_000_000);
        let it = compared(&report).unwrap();
        assert_eq!((it.on_order, it.p50_ms, it.off, it.inside), (1, 80_000, None, None));
        assert!(
            lines(&it)[0].ends_with("until 1 VM that waited for `drover cutover` were ready"),
            "{:?}",
            lines(&it)
        );
    }
}
