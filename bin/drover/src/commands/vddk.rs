//! `drover vddk`: check and logs.

use std::io::Read;
use std::path::Path;

use drover_plan::PlannedVm;
use drover_source::vddk::{Way, installation_error};
use drover_source::{Measured, PlanSource};
use drover_types::{Bytes, count};
use drover_vddk::{Installation, causes, supported};
use serde_json::{Value, json};

use super::plan;
use crate::cli::{VddkCheckArgs, VddkLogsArgs};
use crate::exit::{Exit, Failure};
use crate::plan_file::{self, PlanFile};
use crate::source::source_of;

/// Logs of a long copy at the highest level stay below; more of one is not read.
const LOG_BYTES_MAX: u64 = 256 << 20;

/// `drover vddk check`.
pub fn check(args: &VddkCheckArgs) -> Result<Exit, Failure> {
    let told = match (&args.plan, &args.libdir) {
        (Some(plan), _) => check_plan(&plan_file::read(plan)?, args.vm.as_deref())?,
        (None, Some(libdir)) => {
            let found = Installation::find(libdir, args.plugin.as_deref()).map_err(installation_error)?;
            versions(&found, &found.versions().map_err(installation_error)?)
        }
        (None, None) => return Err(Failure::new(Exit::Usage, "give a plan or --libdir")),
    };
    match args.json {
        true => crate::out::json(format_args!("{told:#}")),
        false => crate::out::print(&text(&told)),
    }
    Ok(Exit::Success)
}

fn versions(found: &Installation, versions: &drover_vddk::Versions) -> Value {
    json!({
        "library": found.library, "library_version": versions.library, "plugin": found.plugin,
        "plugin_version": versions.plugin, "nbdkit_version": versions.nbdkit, "transports": versions.transports,
    })
}

fn check_plan(file: &PlanFile, vm: Option<&str>) -> Result<Value, Failure> {
    let provider = source_of(file, None)?;
    let mut inventory = provider.inventory()?;
    let mut resolution = plan::resolve_here(file, &provider, &mut inventory);
    let sums = provider.share_out(&file.plan, &mut resolution, &inventory);
    let PlanSource::Vsphere(source) = &provider else {
        return Err(Failure::new(Exit::Plan, "the plan's source is an appliance, which needs no VDDK"));
    };
    let Way::Vddk(way) = &source.way else {
        let message = format!("VDDK is not used: disks are {}", source.way);
        return Err(Failure::new(Exit::Plan, message).advise("see docs/how-to/vddk.md for what is needed"));
    };
    let mut told = versions(&way.installation, &way.versions);
    let about = &inventory.about;
    told["vsphere_version"] = json!(about.version);
    told["supported"] = json!(supported(&way.versions.library, &about.version));
    told["nfc"] = json!(sums);
    told["read"] = match way.check(&source.session, &resolution.vms, vm)? {
        Some((planned, measured)) => reading(planned, &measured, &source.way),
        None => Value::Null,
    };
    provider.close()?;
    Ok(told)
}

fn reading(planned: &PlannedVm, measured: &Measured, way: &Way) -> Value {
    let (disk, aio) = (planned.disks.first().map(|disk| disk.disk.label.clone()), planned.aio());
    json!({
        "vm": planned.vm.name, "disk": disk, "bytes": measured.bytes, "ms": measured.time.as_millis() as u64,
        "bytes_per_s": measured.rate(), "latency_us": measured.latency.as_micros() as u64, "aio": aio,
        "limit": measured.limit(aio.bytes()), "way": way.to_string(),
    })
}

fn text(told: &Value) -> String {
    let word = |key: &str| told[key].as_str().unwrap_or_default().to_string();
    let mut lines = vec![
        format!("library  {} ({})", word("library"), word("library_version")),
        format!(
            "plugin   {} ({}, nbdkit {})",
            word("plugin"),
            word("plugin_version"),
            word("nbdkit_version")
        ),
        format!("modes    {}", word("transports")),
    ];
    if told["vsphere_version"].is_string() {
        lines.push(match told["supported"].as_bool() {
            Some(true) => format!("vSphere  {}: this release of VDDK reads it", word("vsphere_version")),
            Some(false) => format!(
                "vSphere  {}: WARNING, VMware does not support VDDK {} for it; take a release of VDDK nearer to it",
                word("vsphere_version"),
                word("library_version")
            ),
            None => format!("vSphere  {}: whether they fit is not known", word("vsphere_version")),
        });
    }
    lines.push(match &told["read"] {
        Value::Object(read) => format!(
            "read     {} of {}/{} at {}/s; what limits it: {}",
            Bytes(read["bytes"].as_u64().unwrap_or(0)),
            read["vm"].as_str().unwrap_or_default(),
            read["disk"].as_str().unwrap_or_default(),
            Bytes(read["bytes_per_s"].as_u64().unwrap_or(0)),
            read["limit"].as_str().unwrap_or_default()
        ),
        Value::Null if told["vsphere_version"].is_string() => {
            "read     no VM of the plan is off, so nothing was read".to_string()
        }
        _ => "read     nothing: give a plan to read one of its disks".to_string(),
    });
    lines.join("\n") + "\n"
}

/// `drover vddk logs`.
pub fn logs(args: &VddkLogsArgs) -> Result<Exit, Failure> {
    let mut all = Vec::new();
    for path in &args.files {
        let text = read_log(path)?;
        let found = causes::of_log(&text);
        if !args.json {
            crate::out::print(&findings_text(path, &found));
        }
        let finding = |it: &causes::Finding<'_>| {
            json!({"cause": it.cause.id, "title": it.cause.title, "effect": it.cause.effect.to_string(),
                "advice": it.cause.advice, "line": it.line, "text": shown(it.text), "count": it.count})
        };
        all.push(json!({"file": path, "findings": found.iter().map(finding).collect::<Vec<_>>()}));
    }
    if args.json {
        crate::out::json(format_args!("{:#}", json!({ "files": all })));
    }
    Ok(Exit::Success)
}

fn read_log(path: &Path) -> Result<String, Failure> {
    let failed =
        |error: std::io::Error| Failure::new(Exit::Usage, format!("log {}: {error}", path.display()));
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(failed)?.take(LOG_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn findings_text(path: &Path, found: &[causes::Finding<'_>]) -> String {
    if found.is_empty() {
        return format!("{}: no known cause of a failure\n", path.display());
    }
    let one = |it: &causes::Finding<'_>| {
        let (title, effect) = (it.cause.title, it.cause.effect);
        let line =
            format!("{}:{}: {title} ({effect}, {})\n", path.display(), it.line, count(it.count, "line"));
        format!("{line}  said: {}\n  try: {}\n", shown(it.text), it.cause.advice)
    };
    found.iter().map(one).collect()
}

/// A line of somebody else's, cut and without control characters.
fn shown(line: &str) -> String {
    line.chars().filter(|c| !c.is_control()).take(300).collect()
}
