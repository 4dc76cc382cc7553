//! What `drover plan check` shows: of the VMs that are asked for, what they share said once.

use std::collections::BTreeMap;
use std::path::Path;

use drover_plan::{Concern, PlannedVm, Problem, Resolution, TargetHost, name_matches, near};
use drover_types::count;
use drover_view::{CheckedVm, Grouping, clean};
use serde_json::{Value, json};

use crate::cli::PlanCheckArgs;
use crate::exit::{Exit, Failure};

/// VMs that are each told where they go; more are counted by host.
const PLACED_SHOWN_MAX: usize = 10;

/// The VMs of a plan that a check shows.
pub struct Shown<'a> {
    vms: Vec<&'a PlannedVm>,
    /// All VMs of the plan, by which sentences are attributed.
    all: Vec<CheckedVm>,
    /// By position in `all`.
    is_shown: Vec<bool>,
    names_all: bool,
    is_part: bool,
}

impl<'a> Shown<'a> {
    /// The VMs of a plan that the arguments ask for; `problems` tell which of them are blocked.
    ///
    /// # Errors
    /// If a pattern fits no VM of the plan.
    pub fn new(
        resolution: &'a Resolution,
        problems: &[Problem],
        args: &PlanCheckArgs,
        names_all: bool,
    ) -> Result<Shown<'a>, Failure> {
        check_patterns(resolution, args)?;
        let all: Vec<CheckedVm> = resolution.vms.iter().map(CheckedVm::from).collect();
        let mut blocked = vec![false; all.len()];
        let grouping = Grouping::new(&all, false);
        for problem in problems.iter().filter(|problem| problem.is_error()) {
            if let Some((vm, _)) = grouping.about(&problem.message) {
                blocked[vm] = true;
            }
        }
        let is_asked = |(at, vm): (usize, &PlannedVm)| {
            let by_name = args.vms.is_empty() || args.vms.iter().any(|pattern| is_named(vm, pattern));
            let by_folder = args.folders.is_empty() || args.folders.iter().any(|folder| is_in(vm, folder));
            by_name && by_folder && (blocked[at] || !args.blocked)
        };
        let is_shown: Vec<bool> = resolution.vms.iter().enumerate().map(is_asked).collect();
        let shown = resolution.vms.iter().zip(&is_shown);
        let vms: Vec<&PlannedVm> = shown.filter_map(|(vm, is_shown)| is_shown.then_some(vm)).collect();
        let is_part = !args.vms.is_empty() || !args.folders.is_empty() || args.blocked;
        Ok(Shown { vms, all, is_shown, names_all, is_part })
    }

    /// Whether a sentence is to be shown: one about a VM that was not asked for is not.
    pub fn has(&self, text: &str) -> bool {
        self.grouping().about(text).is_none_or(|(vm, _)| self.is_shown[vm])
    }

    /// Those of the problems that are about the VMs shown, or about none.
    pub fn of(&self, problems: &[Problem]) -> Vec<Problem> {
        let grouping = self.grouping();
        let is_shown =
            |problem: &&Problem| grouping.about(&problem.message).is_none_or(|(vm, _)| self.is_shown[vm]);
        problems.iter().filter(is_shown).cloned().collect()
    }

    /// Problems for people.
    pub fn problems(&self, file: &Path, problems: &[Problem]) -> String {
        self.grouping().problems(file, problems)
    }

    /// What else is worth knowing, for people; and `more`.
    pub fn concerns(&self, more: &[Concern]) -> String {
        let more = more.iter().filter(|concern| self.has(&format!("{}:", concern.subject)));
        self.grouping().concerns(self.vms.iter().flat_map(|vm| &vm.concerns).chain(more))
    }

    /// How many VMs are shown; nothing where all are.
    pub fn head(&self) -> String {
        match self.is_part {
            true => format!("shown: {} of {} VMs\n", self.vms.len(), self.all.len()),
            false => String::new(),
        }
    }

    /// The VMs shown for programs, each with all that is to be known about it.
    pub fn json(&self) -> Value {
        let vm = |vm: &&PlannedVm| {
            json!({
                "name": vm.vm.name, "target_name": vm.target_name, "id": vm.vm.id, "folder": vm.vm.folder,
                "host": vm.host_name, "concerns": vm.concerns,
            })
        };
        self.vms.iter().map(vm).collect()
    }

    fn grouping(&self) -> Grouping<'_> {
        Grouping::new(&self.all, self.names_all)
    }
}

fn is_named(vm: &PlannedVm, pattern: &str) -> bool {
    name_matches(pattern, &vm.vm.name) || name_matches(pattern, &vm.target_name)
}

/// Whether a VM lies in a folder that fits, or below it.
fn is_in(vm: &PlannedVm, pattern: &str) -> bool {
    let (pattern, mut folder) = (pattern.trim_matches('/'), vm.vm.folder.as_str());
    loop {
        if name_matches(pattern, folder) {
            return true;
        }
        match folder.rsplit_once('/') {
            Some((above, _)) => folder = above,
            None => return false,
        }
    }
}

fn check_patterns(resolution: &Resolution, args: &PlanCheckArgs) -> Result<(), Failure> {
    let vms = &resolution.vms;
    let refused = |what: &str, pattern: &str, names: Vec<&str>| {
        let advice = match near(pattern, names.into_iter()) {
            near if near.is_empty() => format!("see `drover inventory` for the {what}s"),
            near => format!("near names: {}", near.iter().map(|it| clean(it)).collect::<Vec<_>>().join(", ")),
        };
        let text = format!("no VM of the plan has a {what} that matches '{}'", clean(pattern));
        Failure::new(Exit::Usage, text).advise(advice)
    };
    if let Some(pattern) = args.vms.iter().find(|pattern| !vms.iter().any(|vm| is_named(vm, pattern))) {
        return Err(refused("name", pattern, vms.iter().map(|vm| vm.vm.name.as_str()).collect()));
    }
    match args.folders.iter().find(|folder| !vms.iter().any(|vm| is_in(vm, folder))) {
        Some(folder) => Err(refused("folder", folder, vms.iter().map(|vm| vm.vm.folder.as_str()).collect())),
        None => Ok(()),
    }
}

/// Which of several hosts gets each VM, and why; of many VMs, how many each host gets.
pub fn told_hosts(resolution: &Resolution, names_all: bool) -> String {
    let placed = || resolution.vms.iter().filter_map(|vm| Some((vm, vm.target_host.as_ref()?)));
    let line = |(vm, host): (&PlannedVm, &TargetHost)| {
        format!("{} -> {}: {}\n", clean(&vm.target_name), clean(&host.name), clean(&host.why))
    };
    if names_all || placed().count() <= PLACED_SHOWN_MAX {
        return placed().map(line).collect();
    }
    let mut by_host: BTreeMap<&str, usize> = BTreeMap::new();
    placed().for_each(|(_, host)| *by_host.entry(&host.name).or_default() += 1);
    by_host.iter().map(|(host, number)| format!("{} -> {}\n", count(*number, "VM"), clean(host))).collect()
}
