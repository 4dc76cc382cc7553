//! Which VMs read disks of others.

use drover_types::inventory::{Inventory, Vm};

use crate::model::{Plan, Proxy};
use crate::near::nearest;
use crate::problem::{At, Problem};

/// A VM that reads disks of others, as the inventory has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedProxy {
    /// Its id.
    pub vm: String,
    /// Its name.
    pub name: String,
    /// The site whose agent runs in it.
    pub site: String,
    /// The data centre that it lives in; a datastore's name is one of its data centre.
    pub datacenter: String,
    /// Ids of the hosts whose VMs it reads; none for all.
    pub host_ids: Vec<String>,
    /// Its place in the plan.
    pub path: String,
    /// The same as line and column.
    pub at: At,
}

impl PlannedProxy {
    /// Whether it is for this VM: by its host, and by its data centre, in which alone the names of its files mean the same.
    pub fn serves(&self, vm: &Vm) -> bool {
        self.is_near(vm) && (self.host_ids.is_empty() || self.host_ids.contains(&vm.host_id))
    }

    /// Whether it lives in the data centre of this VM, as far as both are told.
    pub fn is_near(&self, vm: &Vm) -> bool {
        self.datacenter == vm.datacenter || self.datacenter.is_empty() || vm.datacenter.is_empty()
    }
}

/// The proxies of a plan, and what is wrong with them as far as the inventory tells.
pub fn proxies(plan: &Plan, inventory: &Inventory) -> (Vec<PlannedProxy>, Vec<Problem>) {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for proxy in plan.source.vsphere().iter().flat_map(|source| &source.data.proxies) {
        match resolve(proxy, inventory) {
            Ok(proxy) => found.push(proxy),
            Err(problem) => problems.push(*problem),
        }
    }
    (found, problems)
}

fn resolve(proxy: &Proxy, inventory: &Inventory) -> Result<PlannedProxy, Box<Problem>> {
    let failed = |key: &str, text: String, advice: String| {
        Box::new(Problem::error(format!("{}.{key}", proxy.path), text).at(proxy.at).advise(advice))
    };
    let is_it = |vm: &&Vm| {
        let path = if vm.folder.is_empty() { vm.name.clone() } else { format!("{}/{}", vm.folder, vm.name) };
        vm.name == proxy.vm || path == proxy.vm || vm.id == proxy.vm
    };
    let vms: Vec<&Vm> = inventory.vms.iter().filter(is_it).collect();
    let vm = match vms.as_slice() {
        [vm] => *vm,
        [] => {
            let near = nearest(&proxy.vm, inventory.vms.iter().map(|vm| vm.name.as_str()));
            let advice = near.map_or("see `drover inventory` for the VMs".into(), |near| {
                format!("did you mean '{near}'?")
            });
            return Err(failed("vm", format!("there is no VM '{}'", proxy.vm), advice));
        }
        several => {
            let text = format!("there are {} VMs '{}'", several.len(), proxy.vm);
            return Err(failed("vm", text, "write FOLDER/NAME, or its id".into()));
        }
    };
    let mut host_ids = Vec::new();
    for name in &proxy.hosts {
        let Some(host) = inventory.hosts.iter().find(|host| host.name == *name) else {
            let near = nearest(name, inventory.hosts.iter().map(|host| host.name.as_str()));
            let advice = near.map_or("see `drover inventory` for the hosts".into(), |near| {
                format!("did you mean '{near}'?")
            });
            return Err(failed("hosts", format!("there is no host '{name}'"), advice));
        };
        host_ids.push(host.id.clone());
    }
    Ok(PlannedProxy {
        vm: vm.id.clone(),
        name: vm.name.clone(),
        site: proxy.site.clone(),
        datacenter: vm.datacenter.clone(),
        host_ids,
        path: proxy.path.clone(),
        at: proxy.at,
    })
}

#[cfg(test)]
mod tests {
    use drover_types::inventory::Host;

    use super::*;

    #[test]
    fn a_proxy_is_one_vm_of_the_inventory_by_name_folder_or_id() {
        let vm = |id: &str, name: &str, folder: &str| Vm {
            id: id.into(),
            name: name.into(),
            folder: folder.into(),
            datacenter: "east".into(),
            ..Vm::default()
        };
        let on = |host_id: &str, datacenter: &str| Vm {
            host_id: host_id.into(),
            datacenter: datacenter.into(),
            ..Vm::default()
        };
        let host = Host { id: "host-1".into(), name: "esx1".into(), ..Host::default() };
        let inventory = Inventory {
            vms: vec![vm("vm-1", "proxy01", "lab"), vm("vm-2", "twin", "a"), vm("vm-3", "twin", "b")],
            hosts: vec![host],
            ..Inventory::default()
        };
        let of = |proxy: &str| {
            let text = format!(
                "version: 1\nname: p\nsource: {{type: vsphere, endpoint: vc, user: u, password_env: P, data: {{proxies: [{proxy}]}}}}\n\
                 target: {{type: qemu, folder: /t}}\nvms: [{{name: x}}]\n"
            );
            proxies(&Plan::parse(&text).unwrap(), &inventory)
        };
        for name in ["proxy01", "lab/proxy01", "/lab/proxy01", "vm-1"] {
            let (found, problems) = of(&format!("{{vm: {name}, site: s}}"));
            assert_eq!((found.len(), problems.len()), (1, 0), "{name}");
            assert!(found[0].vm == "vm-1" && found[0].serves(&on("any", "east")));
            assert!(!found[0].serves(&on("any", "west")), "its [ds1] is another one");
        }
        let (found, _) = of("{vm: b/twin, site: s, hosts: [esx1]}");
        assert_eq!(
            (found[0].vm.as_str(), found[0].serves(&on("host-1", "")), found[0].serves(&on("host-2", ""))),
            ("vm-3", true, false)
        );
        for (proxy, why) in [
            ("{vm: proxy1, site: s}", "did you mean 'proxy01'?"),
            ("{vm: twin, site: s}", "there are 2 VMs 'twin'"),
            ("{vm: proxy01, site: s, hosts: [esx2]}", "there is no host 'esx2'"),
        ] {
            let (found, problems) = of(proxy);
            assert!(found.is_empty() && problems[0].to_string().contains(why), "{proxy}: {problems:?}");
        }
    }
}
