//! `drover limits`.

use drover_engine::{LimitsInForce, LimitsOrder, PlanLimits};
use drover_view::{Align::Left, Table};
use serde_json::json;

use super::migrate::{open_store, open_store_to_read, plan_name, state_option, unknown_plan};
use crate::cli::{LimitsArgs, RunArgs};
use crate::exit::{Exit, Failure};

/// Shows the limits of a plan, or changes them.
pub fn limits(args: &LimitsArgs) -> Result<Exit, Failure> {
    let name = plan_name(&args.plan)?;
    let Some(order) = ordered(args)? else {
        let store = open_store_to_read(&args.run)?;
        let row = store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
        tell_limits(&name, &drover_engine::plan_limits(&store, &row)?, &args.run);
        return Ok(Exit::Success);
    };
    let store = open_store(&args.run)?;
    store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
    let (before, after) = drover_engine::ask_limits(&store, &name, &order)?;
    let running = drover_engine::is_being_run(&store, &name)?;
    tell_changed(&name, &before, &after, running, &state_option(&args.run), &args.run);
    Ok(Exit::Success)
}

/// What is ordered; nothing if limits are to be shown.
///
/// # Errors
/// If one of them makes no sense.
pub fn ordered(args: &LimitsArgs) -> Result<Option<LimitsOrder>, Failure> {
    let rate_limit = (!args.rate_limit.is_empty()).then_some(args.rate_limit.as_slice());
    if rate_limit.is_none() && args.disks.is_none() && args.vms_per_host.is_none() {
        return Ok(None);
    }
    let order = LimitsOrder::read(rate_limit, args.disks, args.vms_per_host);
    order.map(Some).map_err(|why| {
        let advice = advice_on(&why);
        Failure::new(Exit::Usage, why).advise(advice)
    })
}

/// What to try where what was ordered makes no sense for this reason.
pub fn advice_on(why: &str) -> &'static str {
    match why.starts_with("rate_limit: ") {
        true => "a rate is 50MiB, 500m, WINDOW=RATE, or none alone; see `drover limits --help`",
        false => "see `drover limits --help`",
    }
}

/// The limits of a plan, in force and as it has them.
pub fn tell_limits(plan: &str, limits: &PlanLimits, run: &RunArgs) {
    if run.json {
        return crate::out::json(format_args!("{:#}", json!({ "plan": plan, "limits": limits })));
    }
    let PlanLimits { now, plan: own } = limits;
    let mut table = Table::new(&[("LIMIT", Left), ("IN FORCE", Left), ("PLAN", Left)]);
    table.row(["rate_limit".to_string(), now.rate_text(), own.rate_text()]);
    table.row(["disks".to_string(), now.disks.to_string(), own.disks.to_string()]);
    table.row(["vms_per_host".to_string(), now.vms_per_host.to_string(), own.vms_per_host.to_string()]);
    crate::out::print(&table.to_string());
}

/// What an order changed; `at` is the option that says where the plan is.
pub fn tell_changed(
    plan: &str,
    before: &LimitsInForce,
    after: &LimitsInForce,
    running: bool,
    at: &str,
    run: &RunArgs,
) {
    let changed = before.changes_to(after);
    if run.json {
        let answer = json!({
            "plan": plan, "before": before, "after": after, "changed": changed, "running": running,
        });
        return crate::out::json(answer);
    }
    if run.quiet {
        return;
    }
    let changed = if changed.is_empty() { "as they were" } else { changed.as_str() };
    let when = match running {
        true => "the drover that runs the plan keeps to them within two seconds; what is under way goes on",
        false => "nothing runs the plan: they hold once it is resumed",
    };
    crate::out::say(format_args!("limits of plan {plan}: {changed}; {when}"));
    match running {
        true => crate::out::next(run, format_args!("drover status {plan} --watch{at}")),
        false => crate::out::next(run, format_args!("drover resume {plan}{at}")),
    }
}
