//! A look into the disks of guests before a plan runs (`plan check --inspect`).

use std::path::Path;
use std::time::Instant;

use drover_engine::{Looked, Looking, Store, chain, look_into};
use drover_landing::{PlanTarget, found, inspect_disks};
use drover_mover::StopSignal;
use drover_plan::{
    At, Concern, Fate, NO_NETWORK_DRIVER, PlannedVm, Problem, Resolution, Weight, concerns_inside, fates,
};
use drover_types::guest::{FoundSystem, Inside, Windows, WindowsDriver};
use drover_view::clean;
use serde_json::{Value, json};

use crate::exit::{Exit, Failure};
use crate::plan_file::PlanFile;
use crate::signals::Undo;
use crate::source::source_of;
use crate::state::{begun_here, state_folder};

/// What was found in one VM.
pub struct Inspected {
    id: String,
    vm: String,
    seconds: f64,
    inside: Inside,
    network: Vec<Fate>,
    concerns: Vec<Concern>,
}

/// Whether the drivers of a Windows were read: its registry may be damaged.
fn knows_windows_drivers(inside: &Inside) -> bool {
    inside.only_windows().is_some_and(|windows| windows.drivers.is_some())
}

impl Inspected {
    /// Whether it tells which drivers this VM starts with.
    pub fn tells_of(&self, vm: &PlannedVm) -> bool {
        self.id == vm.vm.id && (self.inside.initramfs.is_some() || knows_windows_drivers(&self.inside))
    }

    /// What of it stands in the way at the target.
    pub fn at_target(
        &self,
        resolution: &Resolution,
        target: &PlanTarget,
        stop: &StopSignal,
    ) -> Option<Problem> {
        let vm = resolution.vms.iter().find(|vm| vm.vm.id == self.id)?;
        target.check_inside(vm, &self.inside, stop)
    }

    /// A line for people, one for the drivers of virtio that a Windows has, and one for each of its network settings.
    pub fn line(&self) -> String {
        let system = match (&self.inside.system, self.inside.ntfs) {
            (Some(system), _) => system.clone(),
            (None, true) => "Windows, by its file system".into(),
            (None, false) => "no system found".into(),
        };
        let loader = self.inside.boot_loader.iter().map(|loader| format!(", booted by {loader}"));
        let root = self.inside.root.iter().map(|root| format!(", root {root}"));
        let more: String = loader.chain(root).collect();
        let drivers: String =
            self.inside.only_windows().map(drivers).iter().map(|it| format!("  {it}\n")).collect();
        let network: String =
            self.network.iter().map(|fate| format!("  network: {}\n", clean(&fate.to_string()))).collect();
        format!(
            "{}: {} (looked into in {:.1} s)\n{drivers}{network}",
            clean(&self.vm),
            clean(&(system + &more)),
            self.seconds
        )
    }

    pub fn json(&self) -> Value {
        json!({"vm": self.vm, "seconds": self.seconds, "inside": self.inside, "network": self.network, "concerns": self.concerns})
    }
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

/// Looks into every VM of a plan that can be frozen and was not begun, and adds what was found to it and its concerns.
pub fn inspect_plan(
    file: &PlanFile,
    state: Option<&Path>,
    resolution: &mut Resolution,
    stop: &StopSignal,
) -> Result<Vec<Inspected>, Failure> {
    // Held even where nothing was begun yet: a run may begin meanwhile.
    let store = Store::open(&state_folder(state)).map_err(Failure::from)?;
    let _looking = Looking::begin(&store, &file.plan.name).map_err(Failure::from)?;
    let provider = source_of(file, state)?;
    provider.find_proxies(&file.plan, &provider.inventory()?);
    provider.stop_when(stop);
    let begun = begun_here(&file.plan.name, state);
    let (mut inspected, mut left_behind) = (Vec::new(), Vec::new());
    for vm in &mut resolution.vms {
        if stop.is_set() {
            break;
        }
        if begun.iter().any(|it| it.planned.vm.id == vm.vm.id) {
            continue;
        }
        if let Some(why) = vm.concerns.iter().find(|it| it.severity == Weight::Blocks) {
            let text = format!("{} was not looked into: {}", vm.vm.name, why.message);
            resolution.problems.push(of_vm(vm, &text));
            continue;
        }
        let began = Instant::now();
        let undo = Undo::begin();
        let looked = look_into(provider.source(), &file.plan.name, vm, |disks| inspect_disks(disks, stop));
        drop(undo);
        let Looked { seen, left } = looked;
        if let Some(error) = left {
            left_behind.push(left_problem(&file.plan.name, vm, &chain(&error)));
        }
        match seen {
            Ok(inside) => {
                vm.found = inside.system_found();
                if let Err(error) = found::keep(&state_folder(state), vm) {
                    let text =
                        format!("what was found in {} cannot be kept for its run: {error}", vm.vm.name);
                    resolution.problems.push(of_vm(vm, &text));
                }
                let concerns = concerns_inside(vm, &inside);
                if knows_windows_drivers(&inside) || vm.found == Some(FoundSystem::Linux) {
                    // What the guest id made likely is known now.
                    vm.concerns.retain(|it| !["needs-drivers", NO_NETWORK_DRIVER].contains(&it.id.as_str()));
                }
                vm.concerns.extend(concerns.iter().cloned());
                let (network, seconds) = (fates(vm, &inside), began.elapsed().as_secs_f64());
                let (id, vm) = (vm.vm.id.clone(), vm.vm.name.clone());
                inspected.push(Inspected { id, vm, seconds, inside, network, concerns });
            }
            Err(error) => {
                let problem = of_vm(vm, &format!("{} was not looked into: {}", vm.vm.name, chain(&error)));
                resolution.problems.push(error.advice.into_iter().fold(problem, Problem::advise));
            }
        }
    }
    if stop.is_set() {
        return Err(interrupted(&left_behind));
    }
    resolution.problems.extend(left_behind);
    provider.close()?;
    Ok(inspected)
}

fn left_problem(plan: &str, vm: &PlannedVm, why: &str) -> Problem {
    let text = format!("{}: what was made to look into it may still be there: {why}", vm.vm.name);
    let advice = format!("run the check again, or remove its snapshot drover-{plan} by hand");
    Problem::error("vms", text).at(At { line: vm.line, column: 1 }).advise(advice)
}

/// The end of a look that was stopped: what it left at the source is named, and nothing is claimed beside it.
fn interrupted(left_behind: &[Problem]) -> Failure {
    if left_behind.is_empty() {
        return Failure::new(Exit::Interrupted, "interrupted; the source is as it was");
    }
    let texts: Vec<&str> = left_behind.iter().map(|it| it.message.as_str()).collect();
    let failure = Failure::new(Exit::Interrupted, format!("interrupted; {}", texts.join("; ")));
    left_behind.iter().filter_map(|it| it.advice.clone()).take(1).fold(failure, Failure::advise)
}

fn of_vm(vm: &PlannedVm, text: &str) -> Problem {
    Problem::warning("vms", text).at(At { line: vm.line, column: 1 })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_was_stopped_names_what_it_left() {
        assert_eq!(interrupted(&[]).message, "interrupted; the source is as it was");
        let left = Problem::error("vms", "web: what was made may still be there").advise("remove it by hand");
        let failure = interrupted(&[left]);
        assert_eq!(failure.message, "interrupted; web: what was made may still be there");
        assert_eq!(failure.advice.as_deref(), Some("remove it by hand"));
        assert_eq!(failure.exit, Exit::Interrupted);
    }
}
