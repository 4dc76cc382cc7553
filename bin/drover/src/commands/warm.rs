//! `drover cutover`, `drover proceed`, `drover retry` and `drover clean`.

use drover_landing::remove_stale_doors;
use drover_types::count;
use serde_json::json;

use super::migrate::{open_store, open_store_beside_daemon, plan_name, state_option, unknown_plan};
use crate::cli::{CleanArgs, CutoverArgs, ProceedArgs, RetryArgs, RunArgs};
use crate::exit::{Exit, Failure};
use crate::run::{recorded_file, target_of};
use crate::source::source_to_give_up;

/// Asks that VMs of a plan move over.
pub fn cutover(args: &CutoverArgs) -> Result<Exit, Failure> {
    let store = open_store(&args.run)?;
    let name = plan_name(&args.plan)?;
    store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
    let asked = drover_engine::ask_cutover(&store, &name, &args.vms, args.wave.as_deref())?;
    let running = drover_engine::is_running(&store, &name)?;
    tell_cutover(&name, &asked, running, &state_option(&args.run), &args.run);
    Ok(Exit::Success)
}

/// `at` is the option that says where the plan is.
pub fn tell_cutover(plan: &str, vms: &[String], running: bool, at: &str, run: &RunArgs) {
    if run.json {
        return crate::out::json(json!({ "plan": plan, "cutover": vms, "running": running }));
    }
    if run.quiet {
        return;
    }
    let when = match running {
        true => "the drover that runs the plan does it, each in the window of its wave".to_string(),
        false => format!("nothing runs the plan: go on with `drover resume {plan}{at}`"),
    };
    crate::out::say(format_args!("cutover asked for: {}; {when}", vms.join(", ")));
    if running {
        crate::out::next(run, format_args!("drover status {plan} --watch{at}"));
    }
}

/// Lets the waves after one go on, whatever of it failed.
pub fn proceed(args: &ProceedArgs) -> Result<Exit, Failure> {
    let store = open_store(&args.run)?;
    let name = plan_name(&args.plan)?;
    store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
    let after = drover_engine::ask_proceed(&store, &name, &args.wave)?;
    let running = drover_engine::is_running(&store, &name)?;
    tell_proceed(&name, &args.wave, &after, running, &args.run);
    Ok(Exit::Success)
}

pub fn tell_proceed(plan: &str, wave: &str, after: &[String], running: bool, run: &RunArgs) {
    if run.json {
        crate::out::json(json!({ "plan": plan, "wave": wave, "proceed": after, "running": running }));
    } else if !run.quiet {
        let when = match running {
            true => String::new(),
            false => format!("; nothing runs the plan: go on with `drover resume {plan}`"),
        };
        crate::out::say(format_args!(
            "whatever of wave {wave} failed, these go on: {}{when}",
            after.join(", ")
        ));
    }
}

/// Has failed VMs tried again by the drover that runs their plan.
pub fn retry(args: &RetryArgs) -> Result<Exit, Failure> {
    let store = open_store(&args.run)?;
    let name = plan_name(&args.plan)?;
    store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
    let named = match &args.wave {
        Some(wave) => &drover_engine::wave_to_try_again(&store, &name, wave)?,
        None => &args.vms,
    };
    let taken_back = drover_engine::take_back(&store, &name, named)?;
    if !taken_back.is_empty() {
        tell_taken_back(&name, &taken_back, &state_option(&args.run), &args.run);
        return Ok(Exit::Success);
    }
    let names = (!args.all_failed).then_some(named.as_slice());
    let vms = drover_engine::ask_retry(&store, &name, names)?;
    tell_retry(&name, &vms, &state_option(&args.run), &args.run);
    Ok(Exit::Success)
}

/// `at` is the option that says where the plan is.
pub fn tell_taken_back(plan: &str, vms: &[String], at: &str, run: &RunArgs) {
    if run.json {
        crate::out::json(json!({ "plan": plan, "taken_back": vms, "running": false }));
    } else if !run.quiet {
        crate::out::say(format_args!("taken back, and moved by the next run: {}", vms.join(", ")));
        crate::out::next(run, format_args!("drover resume {plan}{at}"));
    }
}

/// `at` is the option that says where the plan is.
pub fn tell_retry(plan: &str, vms: &[String], at: &str, run: &RunArgs) {
    if run.json {
        crate::out::json(json!({ "plan": plan, "retry": vms, "running": true }));
    } else if !run.quiet {
        let who = vms.join(", ");
        crate::out::say(format_args!("tried again, in its turn, by the drover that runs the plan: {who}"));
        crate::out::next(run, format_args!("drover status {plan} --watch{at}"));
    }
}

/// Removes a plan that is over from the state.
fn forget(args: &CleanArgs) -> Result<Exit, Failure> {
    let store = open_store(&args.run)?;
    let name = plan_name(&args.plan)?;
    let row = store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
    let target = target_of(&recorded_file(row)?, args.run.state.as_deref());
    let forgotten = drover_engine::forget(&store, &name, &target)?;
    if args.run.json {
        crate::out::json(
            json!({ "plan": name, "forgotten": forgotten.vms, "tracking_left_on": forgotten.tracked }),
        );
        return Ok(Exit::Success);
    }
    if !forgotten.tracked.is_empty() {
        crate::out::say(format_args!(
            "warning: change tracking, which drover had switched on, is still on at the source, and nothing tells of it any more: {}; it \
             costs little, and can be switched off there once nothing else uses it",
            forgotten.tracked.join(", ")
        ));
    }
    if !args.run.quiet {
        let vms = count(forgotten.vms, "VM");
        crate::out::say(format_args!(
            "plan {name} and what was recorded of its {vms} are removed from the state; images and machines stay"
        ));
    }
    Ok(Exit::Success)
}

/// Removes what drover left at the source, and proves that it is gone.
pub fn clean(args: &CleanArgs) -> Result<Exit, Failure> {
    remove_stale_doors(&std::env::temp_dir());
    if args.forget {
        return forget(args);
    }
    let store = open_store_beside_daemon(&args.run)?;
    let name = plan_name(&args.plan)?;
    let row = store.plan(&name)?.ok_or_else(|| unknown_plan(&store, &name))?;
    let file = recorded_file(row)?;
    let (source, _) = source_to_give_up(&file, &store)?;
    let cleaned = drover_engine::clean(&store, &name, source.as_ref())?;
    if args.run.json {
        crate::out::json(json!({ "plan": name, "cleaned": cleaned }));
    } else if !args.run.quiet {
        for found in cleaned.found.iter().filter(|found| found.gone) {
            crate::out::say(format_args!(
                "removed: {}: snapshot {} ({})",
                found.vm, found.snapshot, found.name
            ));
        }
        for line in &cleaned.detached {
            crate::out::say(format_args!("detached: {line}"));
        }
        for vm in &cleaned.gone {
            crate::out::say(format_args!(
                "{vm} is not at the source any more, and nothing of it is left there"
            ));
        }
        if cleaned.left.is_empty() {
            let vms = count(cleaned.vms, "VM");
            crate::out::say(format_args!(
                "plan {name}: {vms} looked at, no snapshot of drover's is left at the source"
            ));
        }
    }
    if cleaned.left.is_empty() {
        return Ok(Exit::Success);
    }
    cleaned.left.iter().for_each(|problem| crate::out::say(format_args!("left behind: {problem}")));
    Err(Failure::new(Exit::Source, "not everything could be removed")
        .advise("mend the cause, then clean again"))
}
