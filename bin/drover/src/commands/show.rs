//! `drover status` and `drover report`.

use super::migrate::{open_store_to_read, plan_name, unknown_plan};
use crate::cli::{ReportArgs, StatusArgs};
use crate::exit::{Exit, Failure};
use crate::signature;

/// Shows plans, or the VMs of one.
pub fn status(args: &StatusArgs) -> Result<Exit, Failure> {
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
            let (vms, disks) = (store.vms(&name)?, store.disks(&name)?);
            let report =
                drover_engine::plan_report(&store, &name)?.ok_or_else(|| unknown_plan(&store, &name))?;
            if args.run.json {
                let warm: serde_json::Map<_, _> = report
                    .vms
                    .iter()
                    .filter_map(|vm| Some((vm.row.name.clone(), serde_json::json!(vm.warm.as_ref()?))))
                    .collect();
                crate::out::json(format_args!(
                    "{:#}",
                    serde_json::json!({ "plan": plan, "vms": vms, "disks": disks, "warm": warm })
                ));
            } else {
                crate::out::print(&drover_view::status_text(&plan, &vms, &disks));
                crate::out::print(&drover_view::warm_status_text(&report));
            }
        }
    }
    Ok(Exit::Success)
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
        crate::out::json(format_args!("{:#}", drover_view::report_json(&report)));
    } else {
        crate::out::print(&drover_view::report_text(&report));
    }
    Ok(Exit::Success)
}
