//! A look into the guests of a plan before it runs: what is found in each, and what of it stands in the way.

use std::path::Path;
use std::time::Instant;

use drover_engine::{Cause, Looked, ProviderError, SourceProvider, chain, look_into};
use drover_mover::StopSignal;
use drover_plan::{
    At, Begun, Concern, Fate, NO_NETWORK_DRIVER, PlannedVm, Problem, Resolution, Weight, concerns_inside,
    fates,
};
use drover_types::guest::{FoundSystem, Inside};

use crate::inspection::inspect_disks;
use crate::{PlanTarget, found};

/// What was found in one VM.
pub struct Inspected {
    id: String,
    /// Its name.
    pub vm: String,
    /// How long that took.
    pub seconds: f64,
    /// What is inside.
    pub inside: Inside,
    /// What becomes of its network settings.
    pub network: Vec<Fate>,
    /// What is to be thought of.
    pub concerns: Vec<Concern>,
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
}

/// Looks into every VM of a plan that can be frozen and was not begun, and adds what was found to it and its concerns. While
/// what one of `undoing` gives is held, a stop waits for what is undone at the source.
///
/// # Errors
/// If it was stopped: in what it left at the source.
pub fn inspect_plan<G>(
    plan: &str,
    source: &dyn SourceProvider,
    state: &Path,
    begun: &[Begun],
    resolution: &mut Resolution,
    stop: &StopSignal,
    undoing: impl Fn() -> G,
) -> Result<Vec<Inspected>, ProviderError> {
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
        let undo = undoing();
        let Looked { seen, left } = look_into(source, plan, vm, |disks| inspect_disks(disks, stop));
        drop(undo);
        if let Some(error) = left {
            left_behind.push(left_problem(plan, vm, &chain(&error)));
        }
        match seen {
            Ok(inside) => {
                vm.found = inside.system_found();
                if let Err(error) = found::keep(state, vm) {
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
    Ok(inspected)
}

fn left_problem(plan: &str, vm: &PlannedVm, why: &str) -> Problem {
    let text = format!("{}: what was made to look into it may still be there: {why}", vm.vm.name);
    let advice = format!("run the check again, or remove its snapshot drover-{plan} by hand");
    Problem::error("vms", text).at(At { line: vm.line, column: 1 }).advise(advice)
}

/// The end of a look that was stopped: what it left at the source is named, and nothing is claimed beside it.
fn interrupted(left_behind: &[Problem]) -> ProviderError {
    if left_behind.is_empty() {
        return ProviderError::new(Cause::Cancelled, "interrupted; the source is as it was");
    }
    let texts: Vec<&str> = left_behind.iter().map(|it| it.message.as_str()).collect();
    let error = ProviderError::new(Cause::Cancelled, format!("interrupted; {}", texts.join("; ")));
    left_behind.iter().filter_map(|it| it.advice.clone()).take(1).fold(error, ProviderError::advise)
}

fn of_vm(vm: &PlannedVm, text: &str) -> Problem {
    Problem::warning("vms", text).at(At { line: vm.line, column: 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_that_was_stopped_names_what_it_left() {
        assert_eq!(interrupted(&[]).what, "interrupted; the source is as it was");
        let left = Problem::error("vms", "web: what was made may still be there").advise("remove it by hand");
        let error = interrupted(&[left]);
        assert_eq!(error.what, "interrupted; web: what was made may still be there");
        assert_eq!(error.advice.as_deref(), Some("remove it by hand"));
        assert_eq!(error.cause, Cause::Cancelled);
    }
}
