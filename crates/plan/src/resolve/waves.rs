//! Which wave each VM moves in.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use drover_types::Opening;
use drover_types::inventory::Vm;

use super::{Choice, Resolver};
use crate::model::{Plan, PlanWave, Selector};
use crate::problem::{At, Problem};
use crate::read::{in_no_wave, in_two_waves};
use crate::resolution::{PlannedVm, VmGroup};
use crate::warm::{Cutover, Warm};

/// The selectors of all waves, those of a name or an id by it: there may be one for each VM of a fleet.
pub(super) struct WaveIndex<'a> {
    by_key: HashMap<&'a str, Vec<(&'a PlanWave, &'a Selector)>>,
    others: Vec<(&'a PlanWave, &'a Selector)>,
}

impl<'a> WaveIndex<'a> {
    pub(super) fn new(plan: &'a Plan) -> WaveIndex<'a> {
        let mut index = WaveIndex { by_key: HashMap::new(), others: Vec::new() };
        for (wave, selector) in plan.waves.iter().flat_map(|it| it.vms.iter().map(move |vm| (it, vm))) {
            match selector.name.as_deref().or(selector.id.as_deref()) {
                Some(key) => index.by_key.entry(key).or_default().push((wave, selector)),
                None => index.others.push((wave, selector)),
            }
        }
        index
    }

    fn of(&self, vm: &Vm) -> impl Iterator<Item = (&'a PlanWave, &'a Selector)> {
        let of = |key: &str| self.by_key.get(key).into_iter().flatten().copied();
        of(&vm.name).chain(of(&vm.id)).chain(self.others.iter().copied())
    }
}

impl<'a> Resolver<'a> {
    /// The wave of a VM; complains if it is in none or in several.
    pub(super) fn wave_of(&mut self, vm: &'a Vm, choice: &Choice) -> Option<String> {
        if self.plan.waves.is_empty() {
            return None;
        }
        let own = choice.overrides.wave.as_deref();
        if let Some(kept) = self.kept_wave(vm, own) {
            return Some(kept);
        }
        let taken = self.waves.of(vm).filter(|(_, selector)| self.selects(selector, vm));
        let waves: BTreeSet<&str> = taken.map(|(it, _)| it.wave.name.as_str()).chain(own).collect();
        let waves: Vec<&str> = waves.into_iter().collect();
        match waves.as_slice() {
            [] => self.in_no_wave.push((choice.at, &vm.name)),
            [_] => {}
            several => self.problems.push(in_two_waves(&vm.name, several, &choice.path, choice.at)),
        }
        waves.first().map(|name| name.to_string())
    }

    /// The wave that a VM was begun in. Hosts, folders and tags may have changed since; a wave that names it was meant.
    fn kept_wave(&self, vm: &Vm, own: Option<&str>) -> Option<String> {
        let kept = self.inventory.waves.get(&vm.id)?;
        let is_named = |selector: &Selector| selector.name.is_some() || selector.id.is_some();
        let named = self.waves.of(vm).filter(|(_, it)| is_named(it) && self.selects(it, vm));
        let others = named.map(|(it, _)| it.wave.name.as_str()).chain(own).any(|name| name != kept);
        (!others && self.plan.waves.iter().any(|it| it.wave.name == *kept)).then(|| kept.clone())
    }

    /// A moment for a cutover at which the VM's wave is not open: it would pass by.
    pub(super) fn check_moment(&mut self, vm: &Vm, choice: &Choice, warm: Option<Warm>, wave: Option<&str>) {
        let Some(Cutover::At(moment)) = warm.map(|warm| warm.cutover) else { return };
        let wave = self.plan.waves.iter().find(|it| Some(it.wave.name.as_str()) == wave);
        let at = |it: &PlanWave| it.wave.window.at(u64::try_from(moment).unwrap_or(0));
        if let Some(wave) = wave.filter(|it| !matches!(at(it), Opening::Open { .. })) {
            let text = format!(
                "the moment for the cutover of {} is not in the window of wave {}",
                vm.name, wave.wave.name
            );
            let advice = "write one that is, or `cutover: auto`, which moves it over when the window opens";
            self.error(&choice.path, choice.at, text, advice);
        }
    }

    /// The group of a VM. A stage is one of a group.
    pub(super) fn group_of(&mut self, vm: &Vm, choice: &Choice) -> Option<VmGroup> {
        let over = &choice.overrides;
        if over.group.is_none() && over.stage.is_some() {
            let text = format!("{} has a stage, and no group that it is one of", vm.name);
            self.error(&format!("{}.stage", choice.path), choice.at, text, "add `group: NAME`");
        }
        over.group.clone().map(|name| VmGroup { name, stage: over.stage.unwrap_or(0) })
    }

    /// Groups of which nobody keeps the order: waves go before them.
    pub(super) fn tell_groups(&mut self, vms: &[PlannedVm]) {
        let mut waves: BTreeMap<&str, BTreeSet<Option<&str>>> = BTreeMap::new();
        for vm in vms {
            if let Some(group) = &vm.group {
                waves.entry(&group.name).or_default().insert(vm.wave.as_deref());
            }
        }
        for (group, waves) in waves.into_iter().filter(|(_, waves)| waves.len() > 1) {
            let names: Vec<&str> = waves.into_iter().flatten().collect();
            let text = format!(
                "VMs of group {group} are in several waves ({}): its stages order those of one wave alone",
                names.join(", ")
            );
            self.problems.push(
                Problem::warning("vms", text)
                    .advise("put the group into one wave, or order the waves with `after`"),
            );
        }
    }

    /// VMs without a wave, and waves without a VM.
    pub(super) fn tell_waves(&mut self, vms: &[PlannedVm]) {
        let mut without: BTreeMap<At, Vec<&str>> = BTreeMap::new();
        for (at, name) in std::mem::take(&mut self.in_no_wave) {
            without.entry(at).or_default().push(name);
        }
        self.problems.extend(without.into_iter().map(|(at, names)| in_no_wave(&names, "vms", at)));
        let named: BTreeSet<&str> = vms.iter().filter_map(|vm| vm.wave.as_deref()).collect();
        for it in self.plan.waves.iter().filter(|it| !named.contains(it.wave.name.as_str())) {
            let text = format!("no VM of the plan is in wave {}", it.wave.name);
            self.problems
                .push(Problem::warning(it.path.clone(), text).at(it.at).advise("remove it, or give it VMs"));
        }
    }
}
