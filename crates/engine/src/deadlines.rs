//! What of a plan is over already when it is checked or its run begins, or would come too late.

use std::collections::HashSet;

use drover_plan::{At, Begun, Cutover, Plan, PlanWave, PlannedVm, Problem};
use drover_types::{Opening, counted};

use crate::itinerary::MOMENT_GRACE_MS;

/// Waves whose windows end for good, with VMs that move over by order alone: those of which that is forgotten fail at the end of their window.
pub fn manual_in_windows(plan: &Plan, vms: &[PlannedVm], now_ms: i64) -> Vec<Problem> {
    // One that opens again and again, as on each Saturday, is open then.
    const YEARS_MS: u64 = 10 * 365 * 86_400_000;
    let ends = |it: &&PlanWave| it.wave.window.at(now_ms.max(0) as u64 + YEARS_MS) == Opening::Never;
    let is_manual = |vm: &PlannedVm| vm.warm.is_some_and(|warm| warm.cutover == Cutover::Manual);
    let problem = |it: &PlanWave| {
        let name = it.wave.name.as_str();
        let of = vms.iter().filter(|vm| vm.wave.as_deref() == Some(name) && is_manual(vm)).count();
        let vms = counted(of, "VM", "moves", "move");
        let text =
            format!("{vms} over by order alone (`cutover: manual`), before the window of wave {name} closes");
        let problem = Problem::warning(closing_key(it), text).at(it.at);
        (of > 0).then(|| {
            problem.advise(format!(
                "order it with `drover cutover {} --wave {name}` while it is open, or set `cutover: auto`",
                plan.name
            ))
        })
    };
    plan.waves.iter().filter(ends).filter_map(problem).collect()
}

/// Moments that passed too long ago for a run that begins now: with them a VM that was not begun would never move over.
pub fn past_moments(vms: &[PlannedVm], begun: &[Begun], now_ms: i64) -> Vec<Problem> {
    let is_begun = |vm: &PlannedVm| begun.iter().any(|it| it.planned.vm.id == vm.vm.id);
    let is_past = |vm: &&PlannedVm| match vm.warm.map(|warm| warm.cutover) {
        Some(Cutover::At(moment)) => moment + MOMENT_GRACE_MS < now_ms && !is_begun(vm),
        _ => false,
    };
    let problem = |vm: &PlannedVm| {
        let text = format!("the moment for the cutover of {} passed more than an hour ago", vm.vm.name);
        let problem = Problem::error("warm.cutover", text).at(At { line: vm.line, column: 1 });
        problem.advise("write one that is to come, or `manual`")
    };
    vms.iter().filter(is_past).map(problem).collect()
}

/// Waves whose windows are over although not all of their VMs were begun.
pub fn past_waves(plan: &Plan, vms: &[PlannedVm], begun: &[Begun], now_ms: i64) -> Vec<Problem> {
    let begun: HashSet<&str> = begun.iter().map(|it| it.planned.vm.id.as_str()).collect();
    let is_past = |it: &&PlanWave| it.wave.window.at(now_ms.max(0) as u64) == Opening::Never;
    let left = |it: &PlanWave| {
        let of = vms.iter().filter(|vm| vm.wave.as_deref() == Some(it.wave.name.as_str()));
        of.filter(|vm| !begun.contains(vm.vm.id.as_str())).count()
    };
    let problem = |it: &PlanWave| {
        let left = Some(left(it)).filter(|left| *left > 0)?;
        let text =
            format!("the window of wave {} is over, and {left} of its VMs have not begun", it.wave.name);
        let problem = Problem::error(closing_key(it), text).at(it.at);
        Some(problem.advise("give it a window that is to come"))
    };
    plan.waves.iter().filter(is_past).filter_map(problem).collect()
}

/// The same as far as the plan alone tells: whether its VMs were begun is not known.
pub fn past_windows(plan: &Plan, now_ms: i64) -> Vec<Problem> {
    let is_past = |it: &&PlanWave| it.wave.window.at(now_ms.max(0) as u64) == Opening::Never;
    let problem = |it: &PlanWave| {
        let text = format!("the window of wave {} is over", it.wave.name);
        let problem = Problem::warning(closing_key(it), text).at(it.at);
        problem.advise("VMs of it that have not begun never will")
    };
    plan.waves.iter().filter(is_past).map(problem).collect()
}

/// The key by which the window of a wave is over.
pub fn closing_key(it: &PlanWave) -> String {
    let key = if it.wave.window.until_ms.is_some() { "until" } else { "window" };
    format!("{}.{key}", it.path)
}
