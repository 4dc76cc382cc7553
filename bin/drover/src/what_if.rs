//! The question of a forecast, as flags change it.

use std::collections::BTreeMap;

use drover_engine::{Clock, Store, SystemClock};
use drover_forecast::{FleetVm, Line, Quantity, Question, Rates, WINDOW_DAYS_MAX, spans_of, spread_over};
use drover_foresight::seen;
use drover_plan::PlannedVm;
use drover_schedule::Budgets;
use drover_source::PlanSource;
use drover_types::inventory::WriteRates;
use drover_types::{Wave, WaveWindow, Windows};

use crate::cli::WhatIfArgs;
use crate::exit::Failure;
use crate::state::state_folder;

/// What earlier runs in a state folder tell of rates; what is assumed where there are none.
fn rates_here(args: &WhatIfArgs) -> Result<Rates, Failure> {
    let folder = state_folder(args.state.as_deref());
    if !Store::is_there(&folder) {
        return Ok(Rates::default());
    }
    Ok(seen(&Store::open_to_read(&folder)?)?.rates())
}

/// The question of VMs, changed as the flags say. `lines` are what they may send.
pub fn question(
    vms: Vec<FleetVm>,
    plans: Vec<String>,
    waves: BTreeMap<usize, Vec<Wave>>,
    budgets: Budgets,
    lines: Vec<Line>,
    args: &WhatIfArgs,
) -> Result<Question, Failure> {
    let start_ms = SystemClock.now_ms().max(0) as u64;
    let rates = rates_here(args)?;
    let mut question = Question {
        vms,
        plans,
        waves,
        rates,
        budgets,
        lines,
        start_ms,
        seed: args.seed,
        ..Question::default()
    };
    if let Some(hosts) = args.hosts {
        spread_over(&mut question.vms, hosts as usize);
    }
    if let Some(link) = args.link {
        question.rates.link = Quantity::given(link as f64);
        question.lines.clear();
    }
    if let Some(vms) = args.in_flight {
        question.budgets.vms_per_host = vms;
    }
    if let Some(churn) = args.churn {
        question.rates.churn = Quantity::given(churn);
        question.vms.iter_mut().for_each(|vm| vm.churn_bytes_per_hour = None);
    }
    if !args.window.is_empty() {
        let windows = spans_of(&args.window, start_ms);
        question.vms.iter_mut().for_each(|vm| vm.windows.clone_from(&windows));
        for WaveWindow { windows, from_ms, until_ms, .. } in
            question.waves.values_mut().flatten().map(|wave| &mut wave.window)
        {
            (*windows, *from_ms, *until_ms) = (Windows::default(), None, None);
        }
        crate::out::say(format_args!(
            "windows of {WINDOW_DAYS_MAX} days are looked at; a VM that begins in one may end after it"
        ));
    }
    Ok(question)
}

/// What the VMs of a plan write that move warm, by the counters of their source, unless the flags tell a churn. Why it is not
/// known is said.
pub fn written(provider: &PlanSource, vms: &[PlannedVm], args: &WhatIfArgs) -> WriteRates {
    if args.churn.is_some() {
        return WriteRates::new();
    }
    let told = provider.warnings().len();
    let written = provider.write_rates(vms.iter().filter(|vm| vm.warm.is_some()).map(|vm| &vm.vm));
    let warnings = provider.warnings();
    warnings.iter().skip(told).for_each(|warning| crate::out::say(format_args!("warning: {warning}")));
    written
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use drover_types::DayLimit;

    use super::*;

    #[test]
    fn lines_count_unless_a_flag_tells_another() {
        let state = tempfile::tempdir().unwrap();
        let asked = |link| {
            let args = WhatIfArgs { link, state: Some(state.path().into()), ..WhatIfArgs::default() };
            let lines = vec![Line { name: "one".into(), limits: vec![DayLimit::always(1)], plans: vec![0] }];
            question(Vec::new(), Vec::new(), BTreeMap::new(), Budgets::default(), lines, &args).unwrap().lines
        };
        assert_eq!(asked(None).len(), 1);
        assert_eq!(asked(Some(1)), []);
    }
}
