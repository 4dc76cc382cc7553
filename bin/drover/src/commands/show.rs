//! `drover status` and `drover report`.

use std::collections::HashMap;

use drover_engine::{Clock, DiskRow, PlanReport, PlanRow, PlanState, Store, SystemClock, VmReport, VmRow};
use drover_view::PlanProgress;
use serde_json::{Value, json};

use super::migrate::{open_store_to_read, plan_name, unknown_plan};
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
            let plans = store.plans()?;
            if args.run.json {
                crate::out::json(format_args!("{:#}", serde_json::json!({ "plans": plans })));
            } else {
                crate::out::print(&drover_view::plans_text(&plans, store.path()));
            }
        }
        Some(text) => {
            let name = plan_name(text)?;
            let plan = store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
            let status = PlanStatus::of(&store, plan)?;
            if args.run.json {
                crate::out::json(format_args!("{:#}", status.json()));
            } else {
                crate::out::print(&status.text());
            }
        }
    }
    Ok(Exit::Success)
}

/// Where a plan and its VMs stand.
pub struct PlanStatus {
    report: PlanReport,
    vms: Vec<VmRow>,
    disks: Vec<DiskRow>,
    progress: PlanProgress,
    /// What VMs wait for, by name.
    waits: Vec<(String, String)>,
}

impl PlanStatus {
    /// That of a plan in a store.
    pub fn of(store: &Store, plan: PlanRow) -> Result<PlanStatus, Failure> {
        let (vms, disks) = (store.vms(&plan.name)?, store.disks(&plan.name)?);
        let report =
            drover_engine::plan_report(store, &plan.name)?.ok_or_else(|| unknown_plan(store, &plan.name))?;
        let waits = waits(store, &report.plan, &vms)?;
        let rows = store.progress(&plan.name)?;
        let progress = PlanProgress::new(&report.plan, &vms, &disks, &rows, SystemClock.now_ms());
        Ok(PlanStatus { report, vms, disks, progress, waits })
    }

    /// For people.
    pub fn text(&self) -> String {
        let text = drover_view::status_text(&self.report.plan, &self.vms, &self.disks, &self.progress);
        let waves = drover_view::waves_text(&self.report.waves);
        // One whose process is gone ends when somebody resumes it.
        let end =
            drover_view::foreseen_end_text(&self.report).filter(|_| drover_view::runs(&self.report.plan));
        let end = end.map(|line| format!("\n{line}"));
        text + &end.unwrap_or_default()
            + &waves
            + &drover_view::warm_status_text(&self.report)
            + &drover_view::waits_text(&self.waits)
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let warm = |vm: &VmReport| Some((vm.row.name.clone(), json!(vm.warm.as_ref()?)));
        let warm: serde_json::Map<_, _> = self.report.vms.iter().filter_map(warm).collect();
        let waits = self.waits.iter().map(|(name, text)| (name.clone(), text.as_str().into()));
        let waits: serde_json::Map<_, _> = waits.collect();
        json!({
            "plan": self.report.plan,
            "progress": self.progress,
            "vms": self.vms,
            "disks": self.disks,
            "warm": warm,
            "waves": self.report.waves,
            "waits": waits,
            "foreseen": self.report.runs.last().map(|run| json!({
                "makespan_ms": run.facts.foreseen.as_ref().map(|it| it.makespan_ms),
                "ready_ms": run.facts.foreseen.as_ref().and_then(|it| it.ready_ms),
                "now": run.facts.foreseen_now,
            })),
            "waits_for_cutover": drover_view::waits_for_cutover(&self.report),
        })
    }
}

/// What the VMs of a plan that runs wait for, by name.
fn waits(store: &Store, plan: &PlanRow, vms: &[VmRow]) -> Result<Vec<(String, String)>, Failure> {
    if plan.state != PlanState::Running {
        return Ok(Vec::new());
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
    } else if args.run.json {
        crate::out::large_json(&drover_view::ReportJson(&report));
    } else {
        crate::out::print(&drover_view::report_text(&report));
    }
    Ok(Exit::Success)
}
