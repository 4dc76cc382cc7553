//! A look into the disks of guests before a plan runs (`plan check --inspect`).

use std::path::Path;

use drover_engine::{Looking, Store};
use drover_landing::look::{self, Inspected};
use drover_mover::StopSignal;
use drover_plan::Resolution;
use drover_types::guest::{Windows, WindowsDriver};
use drover_view::clean;
use serde_json::{Value, json};

use crate::exit::Failure;
use crate::plan_file::PlanFile;
use crate::signals::Undo;
use crate::source::source_of;
use crate::state::{begun_here, state_folder};

/// Looks into every VM of a plan that can be frozen and was not begun, and adds what was found to it and its concerns.
pub fn inspect_plan(
    file: &PlanFile,
    state: Option<&Path>,
    resolution: &mut Resolution,
    stop: &StopSignal,
) -> Result<Vec<Inspected>, Failure> {
    let (plan, folder) = (&file.plan.name, state_folder(state));
    // Held even where nothing was begun yet: a run may begin meanwhile.
    let store = Store::open(&folder)?;
    let _looking = Looking::begin(&store, plan)?;
    let provider = source_of(file, state)?;
    provider.find_proxies(&file.plan, &provider.inventory()?);
    provider.stop_when(stop);
    let begun = begun_here(plan, state);
    let source = provider.source();
    let inspected = look::inspect_plan(plan, source, &folder, &begun, resolution, stop, Undo::begin)?;
    provider.close()?;
    Ok(inspected)
}

/// A line for people, one for the drivers of virtio that a Windows has, and one for each of its network settings.
pub fn line(of: &Inspected) -> String {
    let system = match (&of.inside.system, of.inside.ntfs) {
        (Some(system), _) => system.clone(),
        (None, true) => "Windows, by its file system".into(),
        (None, false) => "no system found".into(),
    };
    let loader = of.inside.boot_loader.iter().map(|loader| format!(", booted by {loader}"));
    let root = of.inside.root.iter().map(|root| format!(", root {root}"));
    let more: String = loader.chain(root).collect();
    let drivers: String =
        of.inside.only_windows().map(drivers).iter().map(|it| format!("  {it}\n")).collect();
    let network: String =
        of.network.iter().map(|fate| format!("  network: {}\n", clean(&fate.to_string()))).collect();
    format!(
        "{}: {} (looked into in {:.1} s)\n{drivers}{network}",
        clean(&of.vm),
        clean(&(system + &more)),
        of.seconds
    )
}

pub fn json(of: &Inspected) -> Value {
    json!({"vm": of.vm, "seconds": of.seconds, "inside": of.inside, "network": of.network, "concerns": of.concerns})
}

/// What a Windows has of virtio.
fn drivers(windows: &Windows) -> String {
    let driver = |driver: &WindowsDriver| {
        let state = match driver {
            WindowsDriver { has_file: false, .. } => " (without its file)",
            WindowsDriver { starts_at_boot: true, .. } => " (starts at boot)",
            WindowsDriver { .. } => "",
        };
        format!("{}{state}", driver.name)
    };
    let drivers = windows.drivers.as_ref().map(|drivers| drivers.iter().map(driver).collect::<Vec<String>>());
    match drivers.as_deref() {
        None => "drivers of virtio: not known".into(),
        Some([]) => "drivers of virtio: none".into(),
        Some(drivers) => format!("drivers of virtio: {}", drivers.join(", ")),
    }
}
