//! Waves whose windows are too short for them, or close before their warm VMs are ready, by the forecast.

use std::collections::HashSet;
use std::path::Path;

use drover_engine::deadlines::closing_key;
use drover_forecast::{WaveForecast, foresee_roughly, tight_waves};
use drover_plan::{Begun, PlannedVm, Problem};
use drover_types::counted;
use drover_types::inventory::{Inventory, WriteRates};

use crate::cli::WhatIfArgs;
use crate::plan_file::PlanFile;
use crate::state::state_folder;
use crate::what_if::question;

/// With a lesser chance to fit, what is likely (P50) does not.
const LIKELY: f64 = 0.5;

/// A warning for each wave that is not likely to be over before its window closes, or to be ready by then. What was begun is left
/// out, and no counters are asked: churn is what earlier runs measured, or else what is assumed.
pub fn too_short(
    file: &PlanFile,
    vms: &[PlannedVm],
    inventory: &Inventory,
    begun: &[Begun],
    state: Option<&Path>,
) -> Vec<Problem> {
    let waves = file.plan.waves();
    if waves.iter().all(|wave| wave.window.is_always()) {
        return Vec::new();
    }
    let begun: HashSet<&str> = begun.iter().map(|it| it.planned.vm.id.as_str()).collect();
    let fleet = drover_foresight::fleet(vms, 0, inventory, &WriteRates::new());
    let left = fleet.into_iter().zip(vms).filter(|(_, vm)| !begun.contains(vm.vm.id.as_str()));
    let left: Vec<_> = left.map(|(vm, _)| vm).collect();
    let plans = [&file.plan];
    let folder = state_folder(state);
    let lines = drover_foresight::lines_of(&plans, &folder);
    let budgets = drover_engine::budgets_of(&file.plan.limits);
    let what_if = WhatIfArgs { state: state.map(Into::into), seed: 1, ..WhatIfArgs::default() };
    let (names, waves) = (vec![file.plan.name.clone()], [(0, waves)].into());
    // State that cannot be read shows itself elsewhere.
    let Ok(mut question) = question(left, names, waves, budgets, lines, &what_if) else {
        return Vec::new();
    };
    question.sites = drover_foresight::sites_of(&plans, &folder);
    drover_foresight::limit_hosts(&mut question.hosts, vms, |vm| drover_foresight::host_of(vm, inventory));
    let forecast = foresee_roughly(&question);
    let problem = |it: &drover_forecast::TightWave<'_>| {
        let wave = file.plan.waves.iter().find(|wave| wave.wave.name == it.wave.name)?;
        let text = format!("{}: {}", it.finding(), it.evidence());
        Some(Problem::warning(closing_key(wave), text).at(wave.at).advise(it.advice()))
    };
    let mut problems: Vec<Problem> = tight_waves(&forecast, LIKELY).iter().filter_map(problem).collect();
    problems.extend(forecast.waves.iter().filter_map(|it| missed(file, it)));
    problems
}

/// A warning of a wave whose warm VMs are not ready in its window.
fn missed(file: &PlanFile, it: &WaveForecast) -> Option<Problem> {
    let missed = it.missed.as_ref()?;
    let wave = file.plan.waves.iter().find(|wave| wave.wave.name == it.name)?;
    let text = format!(
        "wave {}: {} not likely to be ready before its window closes ({}), and {}",
        it.name,
        counted(it.vms, "VM", "is", "are"),
        missed.closes,
        missed.then()
    );
    let advice = "begin earlier, or give it a later or longer window; with `cutover: auto` a VM moves over after \
                  its first pass and two more";
    Some(Problem::warning(closing_key(wave), text).at(wave.at).advise(advice))
}
