//! `drover status` and `drover report`.

use std::collections::{BTreeMap, HashMap};

use drover_engine::{Clock, PlanReport, PlanRow, PlanState, Store, SystemClock, VmReport, VmRow};
use drover_plan::{Problem, unmatched};
use drover_view::{
    Counts, DaemonError, EndForeseen, Extent, LISTED_MAX, PlanProgress, PlanStatus, VmFilter, clean,
};
use serde_json::json;

use super::migrate::{open_store_to_read, plan_name, state_option, unknown_plan};
use super::watch;
use crate::cli::{ReportArgs, StatusArgs};
use crate::exit::{Exit, Failure};
use crate::signature;

/// Shows plans, or the VMs of one.
pub fn status(args: &StatusArgs) -> Result<Exit, Failure> {
    if args.watch {
        return watch::here(args);
    }
    let store = open_store_to_read(&args.run)?;
    match &args.plan {
        None => {
            let counted = store.vm_counts()?;
            let plans = store.plans()?.into_iter().map(|plan| (Counts::of(&plan.name, &counted), plan));
            let plans: Vec<(PlanRow, Counts)> = plans.map(|(counts, plan)| (plan, counts)).collect();
            if args.run.json {
                let document = |(plan, counts): &(PlanRow, Counts)| {
                    let mut document = json!(plan);
                    document["vms"] = json!(counts);
                    document
                };
                let plans: Vec<_> = plans.iter().map(document).collect();
                crate::out::json(format_args!("{:#}", json!({ "plans": plans })));
            } else {
                crate::out::print(&drover_view::plans_text(&plans, store.path()));
            }
        }
        Some(text) => {
            let name = plan_name(text)?;
            let plan = store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
            tell_status(status_of(&store, plan)?, args, &state_option(&args.run))?;
        }
    }
    Ok(Exit::Success)
}

/// Where a plan stands, as far as it is asked for; `at` is the option that says where it is.
pub fn tell_status(status: PlanStatus, args: &StatusArgs, at: &str) -> Result<(), Failure> {
    let filter = args.filter.filter();
    check_filter(
        &filter,
        &status.plan.name,
        status.progress.vms.iter().map(|vm| (&*vm.name, vm.wave.as_deref())),
    )?;
    if args.run.json {
        let status = if filter.is_empty() { status } else { status.only(&filter) };
        crate::out::json(format_args!("{:#}", json!(status)));
    } else {
        crate::out::print(&status.text(filter.extent(), at));
    }
    Ok(())
}

/// Refuses names and waves that no VM of a plan has, of which each has a name and maybe a wave.
///
/// # Errors
/// If there is one.
pub fn check_filter<'a>(
    filter: &VmFilter,
    plan: &str,
    vms: impl Iterator<Item = (&'a str, Option<&'a str>)>,
) -> Result<(), Failure> {
    let (names, waves): (Vec<&str>, Vec<Option<&str>>) = vms.unzip();
    let mut waves: Vec<&str> = waves.into_iter().flatten().collect();
    waves.sort_unstable();
    waves.dedup();
    let unknown =
        filter.names.iter().find_map(|asked| Some((asked, unmatched(asked, names.iter().copied())?)));
    if let Some((asked, near)) = unknown {
        let what = format!("plan {plan} has no VM that matches '{}'", clean(asked));
        let advice = match near {
            near if near.is_empty() => format!("see `drover status {plan}` for its VMs"),
            near => format!("near names: {}", clean(&near.join(", "))),
        };
        return Err(Failure::new(Exit::Usage, what).advise(advice));
    }
    match filter.waves.iter().find(|asked| !waves.contains(&asked.as_str())) {
        Some(asked) => {
            let what = format!("plan {plan} has no VM in a wave '{}'", clean(asked));
            let advice = match waves.is_empty() {
                true => "it has no waves: leave --wave out".to_string(),
                false => format!("its waves: {}", clean(&waves.join(", "))),
            };
            Err(Failure::new(Exit::Usage, what).advise(advice))
        }
        None => Ok(()),
    }
}

/// Where a plan of a store stands.
pub fn status_of(store: &Store, plan: PlanRow) -> Result<PlanStatus, Failure> {
    let (vms, disks) = (store.vms(&plan.name)?, store.disks(&plan.name)?);
    let report =
        drover_engine::plan_report(store, &plan.name)?.ok_or_else(|| unknown_plan(store, &plan.name))?;
    let (foreseen, waits_for_cutover) =
        (EndForeseen::of(&report.runs), drover_view::waits_for_cutover(&report));
    let PlanReport { plan, vms: reports, waves, .. } = report;
    let waits = waits(store, &plan, &vms)?;
    let rows = store.progress(&plan.name)?;
    let progress = PlanProgress::new(&plan, &vms, &disks, &rows, SystemClock.now_ms());
    let warm = |vm: VmReport| Some((vm.row.name, vm.warm?));
    let warm = reports.into_iter().filter_map(warm).collect();
    let limits = match store.limits_order(&plan.name)? {
        // What cannot be read any more is no reason to tell nothing of the rest.
        Some(_) => drover_engine::plan_limits(store, &plan).ok().filter(|it| it.now != it.plan),
        None => None,
    };
    let daemon_error = daemon_error(store, &plan)?;
    Ok(PlanStatus {
        plan,
        progress,
        vms,
        disks,
        warm,
        waves,
        waits,
        foreseen,
        waits_for_cutover,
        limits,
        daemon_error,
    })
}

/// How the daemon's last try ended of a plan that nothing runs and that is not over, if it failed.
fn daemon_error(store: &Store, plan: &PlanRow) -> Result<Option<DaemonError>, Failure> {
    if drover_view::runs(plan) || matches!(plan.state, PlanState::Done | PlanState::Cancelled) {
        return Ok(None);
    }
    let Some(row) = store.served_plan(&plan.name)? else { return Ok(None) };
    let problems: Vec<Problem> =
        row.problems.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let problems = problems.into_iter().filter(Problem::is_error).collect();
    Ok(row.error.map(|error| DaemonError { error, advice: row.advice, problems }))
}

/// What the VMs of a plan that runs wait for, by name.
fn waits(store: &Store, plan: &PlanRow, vms: &[VmRow]) -> Result<BTreeMap<String, String>, Failure> {
    if !drover_view::runs(plan) {
        return Ok(BTreeMap::new());
    }
    let names: HashMap<&str, &str> = vms.iter().map(|vm| (vm.id.as_str(), vm.name.as_str())).collect();
    let named = |(id, text): (String, String)| Some((names.get(id.as_str())?.to_string(), text));
    Ok(store.waits(&plan.name)?.into_iter().filter_map(named).collect())
}

/// Shows what a plan did.
pub fn report(args: &ReportArgs) -> Result<Exit, Failure> {
    let store = open_store_to_read(&args.run)?;
    let name = plan_name(&args.plan)?;
    let report = drover_engine::plan_report(&store, &name)?.ok_or_else(|| unknown_plan(&store, &name))?;
    args.sign.as_deref().map(signature::check_key).transpose()?;
    if let Some(path) = &args.html {
        crate::out::page(path, &drover_view::report_html(&report))?;
        if let Some(key) = &args.sign {
            crate::out::say(format_args!("wrote {}", signature::sign(path, key)?.display()));
        }
        return Ok(Exit::Success);
    }
    let runs = drover_view::runs(&report.plan);
    tell_report(report, runs, args, &state_option(&args.run))
}

/// What a plan did, as far as it is asked for; `runs`: whether a process runs it; `at` is the option that says where it is.
pub fn tell_report(report: PlanReport, runs: bool, args: &ReportArgs, at: &str) -> Result<Exit, Failure> {
    let filter = args.filter.filter();
    check_filter(
        &filter,
        &report.plan.name,
        report.vms.iter().map(|vm| (&*vm.row.name, vm.row.wave.as_deref())),
    )?;
    if args.csv {
        crate::out::csv(&drover_view::report_csv(&report, &filter));
    } else if args.run.json {
        crate::out::large_json(&drover_view::ReportJson(&drover_view::report_of(report, &filter)));
    } else {
        let extent = match filter.extent() {
            Extent::Short if report.vms.len() <= LISTED_MAX => Extent::Whole,
            extent => extent,
        };
        crate::out::print(&drover_view::report_part_text(report, runs, extent, at));
    }
    Ok(Exit::Success)
}
