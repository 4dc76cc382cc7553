//! All VMs as one plan, with the commands that look at them, and as many plans: in one daemon, and in processes of their own.

use std::ops::Range;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use drover_lab::Drover;
use serde_json::Value;

use super::Setting;
use super::daemon::Daemon;
use super::vcenter::{Fleet, vm_name};
use super::watch::{Timeline, Usage, Watch, run_all, state_mib, timeline};

/// Disks at once in all, if nothing else is said.
pub const SLOTS: u64 = 200;

/// `inventory`, `assess`, `plan check`, `forecast`, `migrate` of one plan, then `status` and `report`.
pub fn whole(setting: &Setting<'_>) -> Result<()> {
    let fleet = Fleet::new(setting.folder, setting.shape)?;
    let (drover, all) = (fleet.drover("state")?, 0..fleet.shape.vms);
    let plan = fleet.plan("whole", all.clone(), "")?;
    head("one plan", &fleet);
    let mut rows = Vec::new();
    let mut look = |args: &[&str]| -> Result<()> {
        let calls = calls(&fleet)?;
        let (_, usage) = run_all(vec![drover.command(args)])?;
        rows.push((
            format!("`{}`", args.join(" ").replace(&plan, "PLAN")),
            usage,
            self::calls(&fleet)? - calls,
        ));
        Ok(())
    };
    for args in [
        &["inventory", &plan][..],
        &["inventory", &plan, "--json"],
        &["assess", &plan],
        &["plan", "check", &plan],
        &["forecast", &plan],
    ] {
        look(args)?;
    }
    commands(&rows);
    let log = fleet.folder.join("drover.log");
    let mut command = drover.command(&["migrate", &plan, "--quiet", "--log-file"]);
    command.arg(&log);
    let (watch, usage) = run_all(vec![command])?;
    let report = report(&drover, "whole")?;
    runs(&[("one plan", usage, &timeline(&[report], watch.started_ms, SLOTS)?)]);
    println!("state {:.1} MiB, log {:.1} MiB", state_mib(&fleet.folder.join("state"))?, size_mib(&log)?);
    arrived(&fleet, all)?;
    let mut rows = Vec::new();
    for args in [
        &["status"][..],
        &["status", "whole"],
        &["status", "whole", "--json"],
        &["report", "whole"],
        &["report", "whole", "--json"],
        &["report", "whole", "--html", "/dev/null"],
        &["migrate", &plan, "--quiet"],
    ] {
        let (_, usage) = run_all(vec![drover.command(args)])?;
        rows.push((format!("`{}`", args.join(" ").replace(&plan, "PLAN")), usage, 0));
    }
    commands(&rows);
    Ok(())
}

/// As many plans that a daemon runs.
pub fn served(setting: &Setting<'_>) -> Result<()> {
    let fleet = Fleet::new(setting.folder, setting.shape)?;
    let plans = parted(&fleet, setting.plans)?;
    head("many plans of a daemon", &fleet);
    let (usage, times) = serve(&fleet, "state", &plans, SLOTS)?;
    runs(&[(&format!("{} plans", plans.len()), usage, &times)]);
    println!("state {:.1} MiB", state_mib(&fleet.folder.join("state"))?);
    arrived(&fleet, 0..fleet.shape.vms)
}

/// As many processes with one state folder.
pub fn processes(setting: &Setting<'_>) -> Result<()> {
    let fleet = Fleet::new(setting.folder, setting.shape)?;
    let plans = parted(&fleet, setting.plans)?;
    head("many processes", &fleet);
    let drover = fleet.drover("state")?;
    let command = |(_, path): &(String, String)| drover.command(&["migrate", path, "--quiet"]);
    let (watch, usage) = run_all(plans.iter().map(command).collect())?;
    let reports = plans.iter().map(|(name, _)| report(&drover, name)).collect::<Result<Vec<Value>>>()?;
    let slots = SLOTS * plans.len() as u64;
    runs(&[(&format!("{} processes", plans.len()), usage, &timeline(&reports, watch.started_ms, slots)?)]);
    println!("state {:.1} MiB", state_mib(&fleet.folder.join("state"))?);
    arrived(&fleet, 0..fleet.shape.vms)
}

/// Names and files of plans that share the VMs out.
pub fn parted(fleet: &Fleet, plans: usize) -> Result<Vec<(String, String)>> {
    let each = fleet.shape.vms.div_ceil(plans);
    let part = |number: usize| -> Result<(String, String)> {
        let vms = number * each..((number + 1) * each).min(fleet.shape.vms);
        let name = format!("part{number}");
        Ok((name.clone(), fleet.plan(&name, vms, "")?))
    };
    (0..plans).filter(|number| number * each < fleet.shape.vms).map(part).collect()
}

/// Has a daemon run these plans to their ends.
pub fn serve(
    fleet: &Fleet,
    state: &str,
    plans: &[(String, String)],
    slots: u64,
) -> Result<(Usage, Timeline)> {
    let drover = fleet.drover(state)?;
    let daemon = Daemon::start(&drover)?;
    let mut watch = Watch::new();
    for (_, path) in plans {
        daemon.submit(path)?;
    }
    while daemon.count(&["done"])? < plans.len() {
        let failed = daemon.count(&["incomplete", "refused", "cancelled"])?;
        ensure!(failed == 0, "{failed} plans failed: {}", errors(&drover, plans)?);
        ensure!(watch.elapsed() < PATIENCE, "the plans took too long");
        watch.look(&[daemon.pid()]);
        std::thread::sleep(Duration::from_millis(100));
    }
    let usage = watch.usage();
    drop(daemon);
    let reports = plans.iter().map(|(name, _)| report(&drover, name)).collect::<Result<Vec<Value>>>()?;
    Ok((usage, timeline(&reports, watch.started_ms, slots)?))
}

/// What VMs of plans failed of.
fn errors(drover: &Drover, plans: &[(String, String)]) -> Result<String> {
    let mut errors = Vec::new();
    for (name, _) in plans {
        let Ok(told) = report(drover, name) else { continue };
        for vm in told["vms"].as_array().into_iter().flatten().filter(|vm| vm["error"].is_string()) {
            errors.push(format!("{name}/{}: {}: {}", vm["name"], vm["state"], vm["error"]));
        }
    }
    Ok(errors.join("\n"))
}

/// No case takes longer.
const PATIENCE: Duration = Duration::from_secs(3600);

pub fn report(drover: &Drover, plan: &str) -> Result<Value> {
    drover.run(&["report", plan, "--json"])?.json()
}

/// Every image is right, and nothing is left at the source.
pub fn arrived(fleet: &Fleet, vms: Range<usize>) -> Result<()> {
    let images = fleet.check_images(&fleet.folder.join("vms"), vms)?;
    fleet.check_snapshots()?;
    println!("{images} images are equal to their disks, no snapshot is left");
    Ok(())
}

/// SOAP calls that the vCenter has had.
fn calls(fleet: &Fleet) -> Result<u64> {
    let stats = fleet.sim.get("/stats")?;
    let calls = stats["soap"].as_object().context("SOAP calls")?;
    Ok(calls.values().filter_map(Value::as_u64).sum())
}

fn size_mib(path: &std::path::Path) -> Result<f64> {
    Ok(std::fs::metadata(path)?.len() as f64 / f64::from(1 << 20))
}

pub fn head(title: &str, fleet: &Fleet) {
    let shape = fleet.shape;
    println!(
        "\n## {title}: {} VMs ({} to {}), {} disks of {} KiB, {} hosts\n",
        shape.vms,
        vm_name(0),
        vm_name(shape.vms - 1),
        shape.disks(),
        shape.data_bytes >> 10,
        shape.hosts
    );
}

fn commands(rows: &[(String, Usage, u64)]) {
    println!("| command | s | CPU s | peak MiB | calls of the vCenter |\n|---|---|---|---|---|");
    for (name, usage, calls) in rows {
        println!("| {name} | {:.2} | {:.2} | {:.0} | {calls} |", usage.wall, usage.cpu, usage.peak_mib);
    }
    println!();
}

pub fn runs(rows: &[(&str, Usage, &Timeline)]) {
    println!(
        "| run | s | CPU s | peak MiB | threads | first copy s | slots full s | disks at once | events | of them waits |\n\
         |---|---|---|---|---|---|---|---|---|---|"
    );
    for (name, usage, times) in rows {
        println!(
            "| {name} | {:.1} | {:.1} | {:.0} | {} | {:.2} | {} | {:.0} | {} | {} |",
            usage.wall,
            usage.cpu,
            usage.peak_mib,
            usage.threads,
            times.first_copy,
            times.full.map_or("never".to_string(), |full| format!("{full:.2}")),
            times.disks,
            times.events,
            times.waits,
        );
    }
    println!();
}
