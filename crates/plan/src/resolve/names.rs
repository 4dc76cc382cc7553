//! Names of networks and datastores that several data centres have. A rule names one of them with its data centre before it
//! (`dc1/VM Network`): a VM and all that it is attached to are in one.

use std::collections::BTreeMap;

use drover_types::inventory::Vm;
use drover_types::some_of;

use super::{Choice, NAMES_SHOWN_MAX, Resolver};
use crate::problem::{At, Problem};

/// Rules that go by a name alone, and for each data centre where they do so a VM.
#[derive(Default)]
pub(super) struct ByName<'a>(BTreeMap<Rule, BTreeMap<&'a str, &'a str>>);

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Rule {
    at: At,
    key: &'static str,
    name: String,
}

/// The first rule that names this, with its data centre or without, else the one for all others.
pub(super) fn rule_of<'r, T>(
    rules: impl Iterator<Item = &'r T> + Clone,
    from: impl Fn(&T) -> &str,
    vm: &Vm,
    name: &str,
) -> Option<&'r T> {
    let names_it = |rule: &&T| from(rule) == name || in_datacenter(from(rule), &vm.datacenter) == Some(name);
    rules.clone().find(names_it).or_else(|| rules.clone().find(|rule| from(rule) == "*"))
}

/// The name that a rule gives to something of a data centre, if it names that data centre.
fn in_datacenter<'r>(from: &'r str, datacenter: &str) -> Option<&'r str> {
    from.strip_prefix(datacenter).filter(|_| !datacenter.is_empty())?.strip_prefix('/')
}

impl<'a> Resolver<'a> {
    /// Keeps which rules a VM goes by that name no data centre.
    pub(super) fn keep_names(&mut self, vm: &'a Vm, choice: &Choice, excluded: &[i32]) {
        let mut keep = |key: &'static str, name: &str, rule: Option<(&str, At)>| {
            let Some((from, at)) = rule.filter(|(from, _)| *from == name) else { return };
            let vms = self.by_name.0.entry(Rule { at, key, name: from.to_string() }).or_default();
            vms.entry(&vm.datacenter).or_insert(&vm.name);
        };
        for nic in &vm.nics {
            let rules = choice.overrides.networks.iter().chain(&self.plan.networks);
            let rule = rule_of(rules, |rule| &rule.from, vm, &nic.network);
            keep("networks", &nic.network, rule.map(|rule| (rule.from.as_str(), rule.at)));
        }
        for disk in vm.disks.iter().filter(|disk| !excluded.contains(&disk.key)) {
            let rules = choice.overrides.storage.iter().chain(&self.plan.storage);
            let rule = rule_of(rules, |rule| &rule.from, vm, &disk.datastore);
            keep("storage", &disk.datastore, rule.map(|rule| (rule.from.as_str(), rule.at)));
        }
    }

    /// Tells rules that go by a name which is another thing in each of several data centres.
    pub(super) fn tell_names(&mut self) {
        for (Rule { at, key, name }, vms) in std::mem::take(&mut self.by_name).0 {
            if vms.len() < 2 {
                continue;
            }
            let what = if key == "networks" { "network" } else { "datastore" };
            let of: Vec<String> = vms.iter().map(|(datacenter, vm)| format!("{datacenter} ({vm})")).collect();
            let of: Vec<&str> = of.iter().map(String::as_str).collect();
            let text = format!(
                "there is a {what} '{name}' in each of {}, and this rule takes them for one",
                some_of(&of, NAMES_SHOWN_MAX)
            );
            let first = vms.keys().next().copied().unwrap_or_default();
            let advice = format!(
                "if they are not, write a rule for each, with its data centre before its name: \"{first}/{name}\""
            );
            self.problems.push(Problem::warning(format!("{key}.{name}"), text).at(at).advise(advice));
        }
    }

    /// Whether a rule names a network of some data centre, by a NIC on it.
    pub(super) fn knows_network(&self, from: &str) -> bool {
        let is_it = |vm: &Vm| {
            let name = in_datacenter(from, &vm.datacenter);
            vm.nics.iter().any(|nic| name == Some(nic.network.as_str()))
        };
        self.inventory.vms.iter().any(is_it)
    }

    /// Whether a rule names a datastore of some data centre, by a disk on it.
    pub(super) fn knows_datastore(&self, from: &str) -> bool {
        let is_it = |vm: &Vm| {
            let name = in_datacenter(from, &vm.datacenter);
            vm.disks.iter().any(|disk| name == Some(disk.datastore.as_str()))
        };
        self.inventory.vms.iter().any(is_it)
    }
}
