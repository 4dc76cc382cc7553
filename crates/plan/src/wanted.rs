//! VMs that somebody asks for on the command line, by the keys of a plan's selections.

use std::collections::HashSet;

use drover_types::inventory::{Inventory, PowerState, Vm};

use crate::model::Selector;
use crate::near::unmatched;
use crate::resolve::{asked_for, fits, near_to};

/// Which VMs of an inventory: those that fit one of the selectors of each key that has some, and have that power state.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    keys: Vec<Vec<Selector>>,
    power: Option<PowerState>,
}

impl Wanted {
    /// All VMs of a power state, or of any.
    pub fn of_power(power: Option<PowerState>) -> Wanted {
        Wanted { power, ..Wanted::default() }
    }

    /// Of these those that one of some values of a key selects; all, if there is no value.
    pub fn with(mut self, values: &[String], selector: impl Fn(Option<String>) -> Selector) -> Wanted {
        if !values.is_empty() {
            self.keys.push(values.iter().cloned().map(Some).map(selector).collect());
        }
        self
    }

    /// Of these those whose names fit one of some patterns.
    pub fn named(self, patterns: &[String]) -> Wanted {
        self.with(patterns, |glob| Selector { glob, ..Selector::default() })
    }

    /// Whether nothing is asked for.
    pub fn is_all(&self) -> bool {
        self.keys.is_empty() && self.power.is_none()
    }

    /// Whether a VM is asked for.
    pub fn takes(&self, vm: &Vm, inventory: &Inventory) -> bool {
        self.power.is_none_or(|power| vm.power == power)
            && self.keys.iter().all(|of_key| of_key.iter().any(|it| fits(it, vm, inventory, None)))
    }

    /// Whether VMs are asked for by their tags.
    pub fn goes_by_tags(&self) -> bool {
        self.keys.iter().flatten().any(|it| it.tag.is_some())
    }

    /// What selects no VM, in words (`the folder 'prdo'`), each with what may have been meant.
    pub fn unmatched<'a>(&self, inventory: &'a Inventory) -> Vec<(String, Vec<&'a str>)> {
        let selects_none = |it: &Selector| !inventory.vms.iter().any(|vm| fits(it, vm, inventory, None));
        let told = |it: &Selector| match &it.glob {
            Some(glob) => {
                let near = unmatched(glob, inventory.vms.iter().map(|vm| vm.name.as_str()))?;
                Some((format!("a name that matches '{glob}'"), near))
            }
            None if selects_none(it) => {
                Some((format!("the {}", asked_for(it)), near_to(it, inventory).into_iter().collect()))
            }
            None => None,
        };
        self.keys.iter().flatten().filter_map(told).collect()
    }

    /// Leaves in an inventory these VMs alone, with the hosts, datastores and networks that they use.
    pub fn keep(&self, inventory: &mut Inventory) {
        let mut taken: Vec<bool> = inventory.vms.iter().map(|vm| self.takes(vm, inventory)).collect();
        taken.reverse();
        inventory.vms.retain(|_| taken.pop().unwrap_or(false));
        let Inventory { vms, hosts, datastores, networks, .. } = inventory;
        let of_hosts: HashSet<&str> = vms.iter().map(|vm| vm.host_id.as_str()).collect();
        let of_disks: HashSet<&str> =
            vms.iter().flat_map(|vm| &vm.disks).map(|disk| disk.datastore.as_str()).collect();
        let of_nics: HashSet<&str> =
            vms.iter().flat_map(|vm| &vm.nics).map(|nic| nic.network.as_str()).collect();
        hosts.retain(|host| of_hosts.contains(host.id.as_str()));
        datastores.retain(|store| of_disks.contains(store.name.as_str()));
        networks.retain(|network| of_nics.contains(network.name.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use drover_types::inventory::{Datastore, Host, VmDisk};

    use super::*;

    fn inventory() -> Inventory {
        let vm = |name: &str, folder: &str, host: &str, power| Vm {
            id: format!("id-{name}"),
            name: name.into(),
            folder: folder.into(),
            host_id: host.into(),
            power,
            tags: vec![format!("app:{}", &name[..3])],
            disks: vec![VmDisk { datastore: format!("ds-{host}"), ..VmDisk::default() }],
            ..Vm::default()
        };
        let host = |id: &str, cluster: &str| Host {
            id: id.into(),
            name: format!("esx-{id}"),
            cluster: Some(cluster.into()),
            ..Host::default()
        };
        let store = |name: &str| Datastore { name: name.into(), ..Datastore::default() };
        Inventory {
            hosts: vec![host("h1", "old"), host("h2", "new")],
            datastores: vec![store("ds-h1"), store("ds-h2")],
            vms: vec![
                vm("web01", "prod/web", "h1", PowerState::On),
                vm("web02", "prod/web/blue", "h2", PowerState::Off),
                vm("db01", "prod", "h2", PowerState::On),
                vm("mail", "product", "h2", PowerState::On),
            ],
            ..Inventory::default()
        }
    }

    fn own(values: &[&str]) -> Vec<String> {
        values.iter().map(|it| it.to_string()).collect()
    }

    #[test]
    fn vms_are_wanted_by_any_value_of_a_key_and_by_all_keys() {
        let inventory = inventory();
        let names = |wanted: Wanted| -> Vec<&str> {
            inventory
                .vms
                .iter()
                .filter(|vm| wanted.takes(vm, &inventory))
                .map(|vm| vm.name.as_str())
                .collect()
        };
        let folder = |folder| Selector { folder, ..Selector::default() };
        let all = Wanted::default;
        assert_eq!(names(all()).len(), 4);
        assert_eq!(names(all().named(&own(&["web*", "db01"]))), ["web01", "web02", "db01"]);
        assert_eq!(names(all().with(&own(&["prod"]), folder)), ["web01", "web02", "db01"], "and below");
        let on = Wanted::of_power(Some(PowerState::On)).with(&own(&["prod/web", "product"]), folder);
        assert_eq!(names(on), ["web01", "mail"]);
        let cluster = |cluster| Selector { cluster, ..Selector::default() };
        assert_eq!(names(all().with(&own(&["new"]), cluster).named(&own(&["*0?"]))), ["web02", "db01"]);
        let tag = |tag| Selector { tag, ..Selector::default() };
        let tagged = all().with(&own(&["app:w*"]), tag);
        assert!(tagged.goes_by_tags() && !all().goes_by_tags());
        assert_eq!(names(tagged), ["web01", "web02"]);
        let host = |host| Selector { host, ..Selector::default() };
        assert_eq!(names(all().with(&own(&["esx-h1"]), host)), ["web01"]);
        let store = |datastore| Selector { datastore, ..Selector::default() };
        assert_eq!(names(all().with(&own(&["ds-h1"]), store)), ["web01"]);
    }

    #[test]
    fn what_selects_nothing_is_told_with_what_comes_near() {
        let inventory = inventory();
        let wanted = Wanted::default()
            .named(&own(&["web*", "wbe01"]))
            .with(&own(&["prdo/web"]), |folder| Selector { folder, ..Selector::default() })
            .with(&own(&["esx-h3"]), |host| Selector { host, ..Selector::default() })
            .with(&own(&["ds-h3"]), |datastore| Selector { datastore, ..Selector::default() });
        let told = |what: &str, near: &'static str| (what.to_string(), vec![near]);
        assert_eq!(
            wanted.unmatched(&inventory),
            [
                ("a name that matches 'wbe01'".to_string(), vec!["web01", "db01", "web02"]),
                told("the folder 'prdo/web'", "prod/web"),
                told("the host 'esx-h3'", "esx-h1"),
                told("the datastore 'ds-h3'", "ds-h1"),
            ]
        );
    }

    #[test]
    fn what_wanted_vms_do_not_use_is_left_out() {
        let mut kept = inventory();
        Wanted::default().named(&own(&["web01"])).keep(&mut kept);
        assert_eq!((kept.vms.len(), kept.hosts.len(), kept.datastores.len()), (1, 1, 1));
        assert_eq!((kept.vms[0].name.as_str(), kept.datastores[0].name.as_str()), ("web01", "ds-h1"));
    }
}
