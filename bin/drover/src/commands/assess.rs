//! `drover assess`.

use std::collections::BTreeMap;

use drover_forecast::{Estimates, FleetVm, VmSums, WarmWish, foresee};
use drover_schedule::Budgets;
use drover_types::inventory::{Inventory, WriteRates};

use crate::cli::{AssessArgs, SelectArgs};
use crate::commands::forecast::give;
use crate::commands::inventory::{Counters, Found, all_concerns, ask, say_what_is_next};
use crate::exit::{Exit, Failure};
use crate::what_if;

/// Sums up what a provider has; changes nothing there.
pub fn run(args: &AssessArgs) -> Result<Exit, Failure> {
    let Found { inventory, written, warnings } = ask(&args.provider, Counters::Read)?;
    warnings.iter().for_each(|warning| crate::out::say(format_args!("warning: {warning}")));
    let mut assessment = drover_forecast::assess(&inventory, &all_concerns(&inventory), &written);
    assessment.estimate = Some(estimates(&inventory, &written, &assessment.vms, args)?);
    let exit = give(
        &args.form,
        || drover_view::assess_text(&assessment),
        || drover_view::assess_json(&assessment),
        || drover_view::assess_html(&assessment),
    )?;
    if args.form.is_text() {
        say_what_is_next(&args.provider, &SelectArgs::default());
    }
    Ok(exit)
}

/// What moving all VMs takes, cold, and warm where they run.
fn estimates(
    inventory: &Inventory,
    written: &WriteRates,
    sums: &[VmSums],
    args: &AssessArgs,
) -> Result<Estimates, Failure> {
    let foreseen = |warm: Option<WarmWish>| -> Result<_, Failure> {
        let vms = FleetVm::of_inventory(inventory, written, warm);
        let plans = vec!["all VMs".to_string()];
        let (waves, budgets, lines) = (BTreeMap::new(), Budgets::default(), Vec::new());
        Ok(foresee(&what_if::question(vms, plans, waves, budgets, lines, &args.what_if)?))
    };
    let at_once = WarmWish { interval_ms: 0, ..WarmWish::default() };
    Ok(Estimates::new(foreseen(None)?, foreseen(Some(at_once))?, sums))
}
