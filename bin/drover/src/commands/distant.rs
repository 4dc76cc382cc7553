//! Commands that a daemon carries out: `--server URL`. They print what they print without it.

use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

use drover_engine::{Board, Event, LimitsInForce, Observer, PlanLimits, PlanReport, PlanState};
use drover_server::{
    Order, OrderKind, Ordered, OrderedLimits, Page, Plan, Submission, VmLine, Wanted, default_project,
};
use drover_view::{Display, DisplayMode, Extent};
use serde_json::{Value, json};

use super::given_up::{recorded, tell_cancelled, tell_given_up, tell_has_ended};
use super::limits::{ordered, tell_changed, tell_limits};
use super::migrate::{plan_name, tell_edited, tell_paused};
use super::warm::{tell_cutover, tell_proceed, tell_retry, tell_taken_back};
use super::{show, watch};
use crate::cli::{
    CancelArgs, CutoverArgs, LimitsArgs, MigrateArgs, PauseArgs, ProceedArgs, ReportArgs, ResumeArgs,
    RetryArgs, RunArgs, StatusArgs,
};
use crate::exit::{Exit, Failure};
use crate::plan_file;
use crate::remote::{Remote, part};
use crate::signals::stop_on_signals;

/// How often a plan is asked for that is being cancelled, and for how long.
const LOOK: Duration = Duration::from_millis(300);
const CANCEL_LOOKS_MAX: u32 = 1_000;
/// Streams that break in a row before the command gives up watching.
const BREAKS_MAX: u32 = 10;
/// Plans of one page.
pub const PLANS_PAGE: usize = 1_000;
/// VMs of one page.
const VMS_PAGE: usize = 1_000;

/// Hands a plan in and watches it.
pub fn migrate(daemon: &Remote, args: &MigrateArgs) -> Result<Exit, Failure> {
    let file = plan_file::read(&args.plan)?;
    let submission = Submission {
        text: file.text,
        path: Some(file.path.display().to_string()),
        project: daemon.project.clone().unwrap_or_else(default_project),
        start: args.start,
    };
    follow(daemon, &file.plan.name, &args.run, || daemon.post("/v1/plans", &submission).map(|_: Plan| ()))
}

/// Goes on with a plan and watches it.
pub fn resume(daemon: &Remote, args: &ResumeArgs) -> Result<Exit, Failure> {
    let name = plan_name(&args.plan)?;
    let plan: Plan = daemon.get(&format!("/v1/plans/{}", part(&name)))?;
    if plan.state == "done" {
        crate::out::say(format_args!("plan {name} is done; nothing is left to do"));
        return Ok(Exit::Success);
    }
    let (given, at) = (Path::new(&args.plan), format!(" --server {}", daemon.url));
    if let Some(recorded) = plan.blake3.filter(|_| given.is_file()) {
        tell_edited(given, &recorded, &at);
    }
    let order = Order { start: args.start, ..order_of(OrderKind::Resume) };
    follow(daemon, &name, &args.run, || give(daemon, &name, &order).map(drop))
}

fn give(daemon: &Remote, name: &str, order: &Order) -> Result<Ordered, Failure> {
    daemon.post(&format!("/v1/plans/{}/orders", part(name)), order)
}

/// Watches a plan from its begin to its end, as if it ran here. Ctrl-C ends the watching and nothing else.
fn follow(
    daemon: &Remote,
    name: &str,
    args: &RunArgs,
    begin: impl FnOnce() -> Result<(), Failure>,
) -> Result<Exit, Failure> {
    let stop = stop_on_signals().map_err(|error| Failure::new(Exit::Internal, error.to_string()))?;
    let display = Display::start(DisplayMode::choose(args.json, args.quiet), Board::default());
    let path = format!("/v1/plans/{}", part(name));
    let begin = RefCell::new(Some(begin));
    let refused = RefCell::new(None);
    let mut breaks = 0;
    let ended = loop {
        // An event resets the count of what broke.
        let mut seen = false;
        let take = |kind: &str, data: &str| {
            seen = true;
            stop.is_set() || is_last(name, kind, data, &display)
        };
        let began = || {
            let done = begin.borrow_mut().take().map_or(Ok(()), |begin| begin());
            done.inspect_err(|failure| *refused.borrow_mut() = Some(failure.clone()))
        };
        let over = daemon.watch(take, began);
        if let Some(failure) = refused.take() {
            break Err(failure);
        }
        if stop.is_set() {
            display.finish();
            crate::out::say(format_args!(
                "the daemon goes on with plan {name}; see `drover status {name} --server {0}`, stop it with `drover pause {name} --server {0}`",
                daemon.url
            ));
            return Ok(Exit::Interrupted);
        }
        match over {
            Err(failure) if begin.borrow().is_some() || breaks >= BREAKS_MAX => break Err(failure),
            _ => {}
        }
        match daemon.get::<Plan>(&path) {
            Ok(plan) if is_end(plan.exit, plan.wanted) => break Ok(plan),
            Err(failure) if breaks >= BREAKS_MAX => break Err(failure),
            Ok(_) | Err(_) => {}
        }
        breaks = if seen { 0 } else { breaks + 1 };
        std::thread::sleep(LOOK);
    };
    display.finish();
    end(daemon, &ended?, args)
}

/// Whether a plan has ended: one that stopped because its daemon did is to go on.
fn is_end(exit: Option<u8>, wanted: Wanted) -> bool {
    exit.is_some() && wanted != Wanted::Run
}

/// Shows an event; gives whether it is the end of the plan.
fn is_last(name: &str, kind: &str, data: &str, display: &Display) -> bool {
    let Ok(value) = serde_json::from_str::<Value>(data) else { return false };
    match kind {
        "event" if value["plan"] == name => {
            if let Ok(event) = serde_json::from_value::<Event>(value["event"].clone()) {
                display.event(&event);
            }
            false
        }
        "plan" if value["name"] == name => {
            serde_json::from_value::<Plan>(value).is_ok_and(|plan| is_end(plan.exit, plan.wanted))
        }
        _ => false,
    }
}

/// Prints the report and says how to go on.
fn end(daemon: &Remote, plan: &Plan, args: &RunArgs) -> Result<Exit, Failure> {
    let problems: Vec<drover_plan::Problem> =
        plan.problems.iter().filter_map(|it| serde_json::from_value(it.clone()).ok()).collect();
    crate::out::problems(std::path::Path::new(&plan.name), &problems);
    let exit = Exit::of_code(plan.exit.unwrap_or(Exit::Internal as u8));
    if let Some(error) = &plan.error {
        return Err(Failure { exit, message: error.clone(), advice: plan.advice.clone() });
    }
    if !args.json && !args.quiet {
        let at = format!(" --server {}", daemon.url);
        match daemon.get::<PlanReport>(&format!("/v1/plans/{}/report", part(&plan.name))) {
            Ok(report) => {
                let runs = runs_there(&report);
                crate::out::print(&drover_view::report_part_text(report, runs, Extent::Short, &at));
            }
            // It ended as it ended, told or not.
            Err(failure) => crate::out::say(failure),
        }
    }
    if exit == Exit::Success {
        let (name, url) = (&plan.name, &daemon.url);
        crate::out::next(args, format_args!("drover report {name} --html {name}.html --server {url}"));
    }
    if exit != Exit::Success && !args.quiet {
        let (name, url) = (&plan.name, &daemon.url);
        crate::out::say(format_args!(
            "go on with: drover resume {name} --server {url}    give up with: drover cancel {name} --server {url}"
        ));
    }
    Ok(exit)
}

/// Has a plan given up, and waits until that is done.
pub fn cancel(daemon: &Remote, args: &CancelArgs) -> Result<Exit, Failure> {
    let (name, at) = (plan_name(&args.plan)?, format!(" --server {}", daemon.url));
    let path = format!("/v1/plans/{}", part(&name));
    let plan: Plan = daemon.get(&path)?;
    if matches!(plan.state.as_str(), "done" | "cancelled") {
        let vms = if args.run.json { vms_there(daemon, &name)? } else { Vec::new() };
        tell_has_ended(&name, plan.state == "cancelled", &vms, &args.run);
        return Ok(Exit::Success);
    }
    if !args.vms.is_empty() || args.wave.is_some() {
        let order = Order { vms: args.vms.clone(), wave: args.wave.clone(), ..order_of(OrderKind::Cancel) };
        let ordered = give(daemon, &name, &order)?;
        let mut given_up = None;
        if ordered.after != "running" {
            wait_until_given_up(daemon, &name)?;
            let mut vms = vms_there(daemon, &name)?;
            vms.retain(|vm| ordered.vms.contains(&vm.name));
            let undone = recorded(&vms);
            let notes = undone.notes.iter().filter(|_| !args.run.json);
            notes.for_each(|note| crate::out::say(format_args!("note: {note}")));
            given_up = Some(undone);
        }
        tell_given_up(&name, &ordered.vms, given_up.as_ref(), &at, &args.run);
        return Ok(Exit::Success);
    }
    give(daemon, &name, &order_of(OrderKind::Cancel))?;
    for _ in 0..CANCEL_LOOKS_MAX {
        let plan: Plan = daemon.get(&path)?;
        match (plan.state.as_str(), plan.error) {
            ("cancelling", _) => std::thread::sleep(LOOK),
            ("cancelled", _) => {
                let given_up = recorded(&vms_there(daemon, &name)?);
                tell_cancelled(&name, &given_up, &args.run);
                return Ok(Exit::Success);
            }
            ("done", _) if args.run.json => {
                tell_has_ended(&name, false, &vms_there(daemon, &name)?, &args.run);
                return Ok(Exit::Success);
            }
            ("done", _) => {
                crate::out::say(format_args!(
                    "plan {name} was done before it could be cancelled; its VMs have moved"
                ));
                return Ok(Exit::Success);
            }
            (_, Some(error)) if plan.wanted == Wanted::Cancel => {
                let exit = Exit::of_code(plan.exit.unwrap_or(1));
                return Err(Failure { exit, message: error, advice: plan.advice });
            }
            _ => std::thread::sleep(LOOK),
        }
    }
    Err(Failure::new(Exit::Connection, format!("plan {name} is being cancelled still"))
        .advise(format!("see `drover status {name} --server {}`", daemon.url)))
}

/// All VMs of a plan of a daemon.
fn vms_there(daemon: &Remote, name: &str) -> Result<Vec<VmLine>, Failure> {
    let path = format!("/v1/plans/{}/vms?limit={VMS_PAGE}", part(name));
    let mut page: Page<VmLine> = daemon.get(&path)?;
    let mut vms = page.items;
    while let Some(next) = page.next {
        page = daemon.get(&format!("{path}&cursor={}", part(&next)))?;
        vms.append(&mut page.items);
    }
    Ok(vms)
}

/// Shows the limits of a plan, or changes them.
pub fn limits(daemon: &Remote, args: &LimitsArgs) -> Result<Exit, Failure> {
    let name = plan_name(&args.plan)?;
    if ordered(args)?.is_none() {
        let limits: PlanLimits = daemon.get(&format!("/v1/plans/{}/limits", part(&name)))?;
        tell_limits(&name, &limits, &args.run);
        return Ok(Exit::Success);
    }
    let limits = OrderedLimits {
        rate_limit: (!args.rate_limit.is_empty()).then(|| args.rate_limit.clone()),
        disks: args.disks,
        vms_per_host: args.vms_per_host,
    };
    let given = give(daemon, &name, &Order { limits: Some(limits), ..order_of(OrderKind::Limits) })?;
    let read = |limits: Option<Value>| serde_json::from_value::<LimitsInForce>(limits.unwrap_or_default());
    let changed = given.limits.as_ref();
    let (before, after) = (changed.map(|it| json!(it.before)), changed.map(|it| json!(it.after)));
    let (Ok(before), Ok(after)) = (read(before), read(after)) else {
        let text = format!("the daemon at {} did not tell what became of the limits", daemon.url);
        return Err(Failure::new(Exit::Connection, text).advise(format!("see `drover limits {name}`")));
    };
    let (running, at) = (given.after == "running", format!(" --server {}", daemon.url));
    tell_changed(&name, &before, &after, running, &at, &args.run);
    Ok(Exit::Success)
}

/// Waits until the daemon has undone what was begun of single VMs of a plan that does not run.
fn wait_until_given_up(daemon: &Remote, name: &str) -> Result<(), Failure> {
    for _ in 0..CANCEL_LOOKS_MAX {
        let plan: Plan = daemon.get(&format!("/v1/plans/{}", part(name)))?;
        match (plan.state.as_str(), plan.error) {
            ("cancelling", _) => std::thread::sleep(LOOK),
            (_, Some(error)) => {
                let exit = Exit::of_code(plan.exit.unwrap_or(Exit::Internal as u8));
                return Err(Failure { exit, message: error, advice: plan.advice });
            }
            (_, None) => return Ok(()),
        }
    }
    Err(Failure::new(Exit::Connection, format!("VMs of plan {name} are being given up still"))
        .advise(format!("see `drover status {name} --server {}`", daemon.url)))
}

/// Has VMs move over.
pub fn cutover(daemon: &Remote, args: &CutoverArgs) -> Result<Exit, Failure> {
    let name = plan_name(&args.plan)?;
    let order = Order { vms: args.vms.clone(), wave: args.wave.clone(), ..order_of(OrderKind::Cutover) };
    let ordered = give(daemon, &name, &order)?;
    let at = format!(" --server {}", daemon.url);
    tell_cutover(&name, &ordered.vms, ordered.after == "running", &at, &args.run);
    Ok(Exit::Success)
}

/// Lets the waves after one go on.
pub fn proceed(daemon: &Remote, args: &ProceedArgs) -> Result<Exit, Failure> {
    let name = plan_name(&args.plan)?;
    let order = Order { wave: Some(args.wave.clone()), ..order_of(OrderKind::Proceed) };
    let ordered = give(daemon, &name, &order)?;
    tell_proceed(&name, &args.wave, &ordered.vms, ordered.after == "running", &args.run);
    Ok(Exit::Success)
}

/// Has failed VMs tried again, all by one order.
pub fn retry(daemon: &Remote, args: &RetryArgs) -> Result<Exit, Failure> {
    let name = plan_name(&args.plan)?;
    // Without names all that failed are meant.
    let order = Order { vms: args.vms.clone(), wave: args.wave.clone(), ..order_of(OrderKind::Retry) };
    let ordered = give(daemon, &name, &order)?;
    let at = format!(" --server {}", daemon.url);
    match ordered.after.as_str() {
        "running" => tell_retry(&name, &ordered.vms, &at, &args.run),
        _ => tell_taken_back(&name, &ordered.vms, &at, &args.run),
    }
    Ok(Exit::Success)
}

/// Has a plan stopped, and waits until it has.
pub fn pause(daemon: &Remote, args: &PauseArgs) -> Result<Exit, Failure> {
    let name = plan_name(&args.plan)?;
    let path = format!("/v1/plans/{}", part(&name));
    let at = format!(" --server {}", daemon.url);
    let state = || daemon.get::<Plan>(&path).map(|plan| plan.state);
    if !matches!(state()?.as_str(), "checking" | "running") {
        tell_paused(&name, false, &at, &args.run);
        return Ok(Exit::Success);
    }
    give(daemon, &name, &order_of(OrderKind::Pause))?;
    for _ in 0..CANCEL_LOOKS_MAX {
        if state()? != "pausing" {
            tell_paused(&name, true, &at, &args.run);
            return Ok(Exit::Success);
        }
        std::thread::sleep(LOOK);
    }
    Err(Failure::new(Exit::Connection, format!("plan {name} is being paused still"))
        .advise(format!("see `drover status {name}{at}`")))
}

fn order_of(order: OrderKind) -> Order {
    Order { order, vm: None, vms: Vec::new(), wave: None, start: false, limits: None }
}

/// Shows plans, or the VMs of one.
pub fn status(daemon: &Remote, args: &StatusArgs) -> Result<Exit, Failure> {
    if args.watch {
        return watch::there(daemon, args);
    }
    let Some(text) = &args.plan else { return plans(daemon, args.run.json) };
    let status = daemon.get(&format!("/v1/plans/{}/status", part(&plan_name(text)?)))?;
    show::tell_status(status, args, &format!(" --server {}", daemon.url))?;
    Ok(Exit::Success)
}

fn plans(daemon: &Remote, as_json: bool) -> Result<Exit, Failure> {
    let page: Page<Plan> = daemon.get(&format!("/v1/plans?limit={PLANS_PAGE}"))?;
    if as_json {
        crate::out::json(format_args!("{:#}", json!({ "plans": page.items })));
        return Ok(Exit::Success);
    }
    use drover_view::{Align::Left, Align::Right, Table, local_time};
    let mut table = Table::new(&[
        ("PLAN", Left),
        ("STATE", Left),
        ("PROJECT", Left),
        ("BEGAN", Left),
        ("ENDED", Left),
        ("VMS DONE", Right),
        ("FAILED", Right),
    ])
    .fitted();
    for plan in page.items {
        let time = |ms: Option<i64>| ms.map_or("--".to_string(), local_time);
        let done = format!("{} of {}", plan.vms.done + plan.vms.not_cleaned_up, plan.vms.all);
        let (began, ended) = (time(plan.started_ms), time(plan.ended_ms));
        table.row([plan.name, plan.state, plan.project, began, ended, done, plan.vms.failed.to_string()]);
    }
    crate::out::print(&table.to_string());
    Ok(Exit::Success)
}

/// Shows what a plan did.
pub fn report(daemon: &Remote, args: &ReportArgs) -> Result<Exit, Failure> {
    let path = format!("/v1/plans/{}/report", part(&plan_name(&args.plan)?));
    if let Some(file) = &args.html {
        let failed = |error| Failure::new(Exit::Target, format!("writing {}: {error}", file.display()));
        std::fs::write(file, daemon.text(&format!("{path}?format=html"))?).map_err(failed)?;
        crate::out::say(format_args!("wrote {}", file.display()));
        return Ok(Exit::Success);
    }
    let report: PlanReport = daemon.get(&path)?;
    let runs = runs_there(&report);
    show::tell_report(report, runs, args, &format!(" --server {}", daemon.url))
}

/// Whether a daemon runs the plan: its process is on another machine, and cannot be looked for.
fn runs_there(report: &PlanReport) -> bool {
    report.plan.state == PlanState::Running
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_ended_once_it_has_an_exit_and_is_not_to_run() {
        let ended = [Wanted::Nothing, Wanted::Pause, Wanted::Cancel].map(|wanted| is_end(Some(130), wanted));
        assert_eq!(ended, [true; 3]);
        assert!(!is_end(Some(130), Wanted::Run), "its daemon ended, and goes on with it");
        assert!(!is_end(None, Wanted::Nothing));
    }
}
