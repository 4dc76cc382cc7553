//! Which VMs a plan's selections choose, and what they say of them.

use std::collections::{HashMap, HashSet};

use drover_types::inventory::{Inventory, Vm, VmPlace};

use super::{Choice, Resolver};
use crate::glob::matches;
use crate::model::{Overrides, Selector};
use crate::near::nearest;
use crate::problem::Problem;

/// The VMs of an inventory, also by name and id: a plan may name each VM of a fleet.
struct VmIndex<'a> {
    by_key: HashMap<&'a str, Vec<&'a Vm>>,
    all: Vec<&'a Vm>,
}

impl<'a> VmIndex<'a> {
    fn new(vms: &'a [Vm]) -> VmIndex<'a> {
        let mut by_key: HashMap<&str, Vec<&Vm>> = HashMap::new();
        for vm in vms {
            by_key.entry(&vm.name).or_default().push(vm);
            if vm.id != vm.name {
                by_key.entry(&vm.id).or_default().push(vm);
            }
        }
        VmIndex { by_key, all: vms.iter().collect() }
    }

    /// Those that a selector may select, in the order of the inventory.
    fn candidates(&self, selector: &Selector) -> &[&'a Vm] {
        match selector.name.as_deref().or(selector.id.as_deref()) {
            Some(key) => self.by_key.get(key).map(Vec::as_slice).unwrap_or_default(),
            None => &self.all,
        }
    }
}

impl<'a> Resolver<'a> {
    /// The VMs of all selections, in the order of the inventory.
    pub(super) fn select(&mut self) -> Vec<(&'a Vm, Choice)> {
        let mut chosen: Vec<(&Vm, Choice)> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        let index = VmIndex::new(&self.inventory.vms);
        let selected = |this: &Self, selector: &Selector| -> Vec<&'a Vm> {
            index.candidates(selector).iter().copied().filter(|vm| this.chooses(selector, vm)).collect()
        };
        let excluded: HashSet<&str> =
            self.plan.exclude.iter().flat_map(|out| selected(self, out)).map(|vm| vm.id.as_str()).collect();
        for selection in &self.plan.vms {
            let mut found = selected(self, &selection.selector);
            if found.is_empty() {
                // What a run that is resumed does not find was excluded when the plan was begun.
                if !self.inventory.is_begun_alone {
                    self.nothing_found(&selection.selector);
                }
                continue;
            }
            found.retain(|vm| !excluded.contains(vm.id.as_str()));
            if found.is_empty() {
                self.all_excluded(&selection.selector);
            }
            if found.len() > 1 && selection.selector.name.is_some() {
                self.several_found(&selection.selector, &found);
            }
            if found.len() > 1 && selection.overrides.target_name.is_some() {
                let (path, at) = (format!("{}.target_name", selection.selector.path), selection.selector.at);
                self.error(
                    &path,
                    at,
                    format!("{} VMs would get one name", found.len()),
                    "give target_name to one VM only",
                );
            }
            for vm in found {
                match places.get(vm.id.as_str()) {
                    Some(at) => merge(&mut chosen[*at].1.overrides, &selection.overrides),
                    None => {
                        places.insert(&vm.id, chosen.len());
                        let (at, path) = (selection.selector.at, selection.selector.path.clone());
                        chosen.push((vm, Choice { overrides: selection.overrides.clone(), at, path }));
                    }
                }
            }
        }
        chosen
    }

    /// What goes by tags, where they are not all known, might move a VM that was to stay.
    pub(super) fn check_tags(&mut self) {
        let Some(why) = &self.inventory.tags_unknown else { return };
        let selected = self.plan.vms.iter().map(|it| &it.selector).chain(&self.plan.exclude);
        for selector in selected.chain(self.plan.waves.iter().flat_map(|it| &it.vms)) {
            let Some(tag) = &selector.tag else { continue };
            let text = format!("which VMs have the tag '{tag}' is not known: {why}");
            let problem = Problem::error(selector.path.clone(), text).at(selector.at);
            let advice = match self.inventory.about.is_vcenter {
                true => {
                    "see vCenter's tagging service and the user's right to read tags, or select by something else"
                }
                false => "select by something else",
            };
            self.problems.push(problem.advise(advice));
        }
    }

    /// A misspelt exclusion would move a VM that was to stay.
    pub(super) fn check_exclusions(&mut self) {
        // What is excluded was not begun.
        if self.inventory.is_begun_alone {
            return;
        }
        for selector in &self.plan.exclude {
            // Told by `check_tags`.
            if selector.tag.is_some() && self.inventory.tags_unknown.is_some() {
                continue;
            }

            if self.inventory.vms.iter().any(|vm| self.chooses(selector, vm)) {
                continue;
            }
            let names = self.inventory.vms.iter().map(|vm| vm.name.as_str());
            let near = selector.name.as_deref().and_then(|name| nearest(name, names));
            let advice = near.map_or("check the spelling, or remove it".to_string(), |near| {
                format!("did you mean '{near}'?")
            });
            let problem = Problem::warning(selector.path.clone(), "it excludes no VM").at(selector.at);
            self.problems.push(problem.advise(advice));
        }
    }

    fn all_excluded(&mut self, selector: &Selector) {
        let problem = Problem::warning(selector.path.clone(), "every VM it selects is excluded");
        self.problems.push(problem.at(selector.at).advise("remove it here or in `exclude`"));
    }

    /// Whether a selector chooses a VM for the plan, or leaves it out. One that was begun may have been moved since: where it was then
    /// counts.
    fn chooses(&self, selector: &Selector, vm: &Vm) -> bool {
        fits(selector, vm, self.inventory, self.inventory.places.get(&vm.id))
    }

    /// Whether a selector selects a VM where it is now.
    pub(super) fn selects(&self, selector: &Selector, vm: &Vm) -> bool {
        fits(selector, vm, self.inventory, None)
    }

    fn nothing_found(&mut self, selector: &Selector) {
        let names = || self.inventory.vms.iter().map(|vm| vm.name.as_str());
        let (message, advice) = match &selector.name {
            Some(name) if names().any(|it| it == name) => (
                format!("no VM called '{name}' is where this selection looks"),
                "check what else it asks for".to_string(),
            ),
            Some(name) => {
                let near = nearest(name, names());
                let advice = near.map_or("see `drover inventory` for the names".into(), |near| {
                    format!("did you mean '{near}'?")
                });
                (format!("there is no VM called '{name}'"), advice)
            }
            None => {
                let advice = near_to(selector, self.inventory).map_or_else(
                    || "see `drover inventory` for names, folders and tags; `--json` has hosts, clusters and datastores".into(),
                    |near| format!("did you mean '{near}'?"),
                );
                (format!("it selects no VM: {}", asked_for(selector)), advice)
            }
        };
        self.error(&selector.path.clone(), selector.at, message, advice);
    }

    fn several_found(&mut self, selector: &Selector, found: &[&Vm]) {
        let places: Vec<String> =
            found.iter().map(|vm| format!("{} in folder '{}'", vm.id, vm.folder)).collect();
        let name = found[0].name.clone();
        let message = format!("{} VMs are called '{name}': {}", found.len(), places.join(", "));
        self.error(
            &selector.path.clone(),
            selector.at,
            message,
            "add `folder:` or use `id:` to say which; for all, use `glob:`",
        );
    }
}

/// Whether a selector selects a VM, where it was `then` if that is given.
pub(crate) fn fits(selector: &Selector, vm: &Vm, inventory: &Inventory, then: Option<&VmPlace>) -> bool {
    let host = || inventory.host(then.map_or(&vm.host_id, |then| &then.host_id));
    let lies_in = |name: &String| match then {
        Some(then) => then.datastores.contains(name),
        None => vm.disks.iter().any(|disk| disk.datastore == *name),
    };
    let below = |folder: &String| {
        vm.folder == *folder
            || vm.folder.strip_prefix(folder.as_str()).is_some_and(|rest| rest.starts_with('/'))
    };
    selector.name.as_ref().is_none_or(|name| *name == vm.name)
        && selector.glob.as_ref().is_none_or(|glob| matches(glob, &vm.name))
        && selector.folder.as_ref().is_none_or(below)
        && selector.tag.as_ref().is_none_or(|tag| vm.tags.iter().any(|it| matches(tag, it)))
        && selector.id.as_ref().is_none_or(|id| *id == vm.id)
        && selector.host.as_ref().is_none_or(|name| host().is_some_and(|it| it.name == *name))
        && selector
            .cluster
            .as_ref()
            .is_none_or(|name| host().is_some_and(|it| it.cluster.as_ref() == Some(name)))
        && selector.datastore.as_ref().is_none_or(lies_in)
}

/// What a misspelt folder, tag, cluster, host or datastore may have meant.
pub(crate) fn near_to<'a>(selector: &Selector, inventory: &'a Inventory) -> Option<&'a str> {
    let Inventory { vms, hosts, datastores, .. } = inventory;
    let parents =
        |vm: &'a Vm| vm.folder.match_indices('/').map(|(at, _)| &vm.folder[..at]).chain([vm.folder.as_str()]);
    let [folder, tag, _, host, cluster, datastore] = selector.beside_name();
    let (asked, near) = match (folder, tag, cluster, host, datastore) {
        (Some(folder), ..) => (folder, nearest(folder, vms.iter().flat_map(parents))),
        (_, Some(tag), ..) => {
            (tag, nearest(tag, vms.iter().flat_map(|vm| vm.tags.iter().map(String::as_str))))
        }
        (_, _, Some(cluster), ..) => {
            (cluster, nearest(cluster, hosts.iter().filter_map(|host| host.cluster.as_deref())))
        }
        (.., Some(host), _) => (host, nearest(host, hosts.iter().map(|host| host.name.as_str()))),
        (.., Some(store)) => (store, nearest(store, datastores.iter().map(|store| store.name.as_str()))),
        _ => return None,
    };
    near.filter(|near| near != asked)
}

/// What a selector asks for, as the plan has it.
pub(crate) fn asked_for(selector: &Selector) -> String {
    let [folder, tag, id, host, cluster, datastore] = selector.beside_name();
    let keys = [
        ("glob", &selector.glob),
        ("folder", folder),
        ("tag", tag),
        ("id", id),
        ("host", host),
        ("cluster", cluster),
        ("datastore", datastore),
    ];
    let said = keys.into_iter().filter_map(|(key, value)| Some(format!("{key} '{}'", value.as_ref()?)));
    said.collect::<Vec<_>>().join(", ")
}

/// What a later selection says of a VM wins over what an earlier one said.
fn merge(into: &mut Overrides, later: &Overrides) {
    let later = later.clone();
    into.mode = later.mode.or(into.mode);
    into.warm = later.warm.or(into.warm);
    into.target_name = later.target_name.or(into.target_name.take());
    into.target_folder = later.target_folder.or(into.target_folder.take());
    into.uri = later.uri.or(into.uri.take());
    into.target_host = later.target_host.or(into.target_host.take());
    into.pool = later.pool.or(into.pool.take());
    into.format = later.format.or(into.format);
    into.disk_bus = later.disk_bus.or(into.disk_bus);
    into.nic_model = later.nic_model.or(into.nic_model);
    into.power_off = later.power_off.or(into.power_off);
    into.shutdown_timeout = later.shutdown_timeout.or(into.shutdown_timeout);
    into.verify = later.verify.or(into.verify);
    into.start = later.start.or(into.start);
    into.autostart = later.autostart.or(into.autostart);
    into.convert = later.convert.or(into.convert);
    into.first_boot = later.first_boot.or(std::mem::take(&mut into.first_boot));
    into.keep_addresses = later.keep_addresses.or(into.keep_addresses);
    into.exclude_disks = later.exclude_disks.or(into.exclude_disks.take());
    into.networks.splice(0..0, later.networks);
    into.storage.splice(0..0, later.storage);
    into.volumes = later.volumes.or(into.volumes.take());
    into.priority = later.priority.or(into.priority);
    into.hooks.extend(later.hooks);
    into.checks = later.checks.or(std::mem::take(&mut into.checks));
    into.wave = later.wave.or(into.wave.take());
    into.deadline_ms = later.deadline_ms.or(into.deadline_ms);
    into.group = later.group.or(into.group.take());
    into.stage = later.stage.or(into.stage);
    into.anti_affinity = later.anti_affinity.or(into.anti_affinity.take());
}
