//! What stands in the way of a plan's proxies.

use std::collections::BTreeSet;

use drover_agent::HOT_ADD;
use drover_plan::{NAMES_SHOWN_MAX, PlannedProxy, Problem, Resolution};
use drover_types::inventory::{PowerState, Vm};
use drover_types::some_of;
use drover_vsphere::{Entity, Proxy, Session, VsphereError};

use super::HotAdd;

/// What attaching and detaching take. Source: vSphere API reference, "Required Privileges" of `ReconfigVM_Task`.
const PRIVILEGES: [&str; 2] = ["VirtualMachine.Config.AddExistingDisk", "VirtualMachine.Config.RemoveDisk"];

/// A text and what to do about it.
type Fault = (String, String);

/// Looks at each proxy, its rights and its agent; touches nothing. What is wrong is an error if the plan insists on proxies, or
/// if `strict`; else it goes on without the proxy.
pub fn check_proxies(
    session: &Session,
    hot_add: &HotAdd,
    resolution: &Resolution,
    strict: bool,
) -> Vec<Problem> {
    let mut problems = hot_add.found.get().map(|(_, problems)| problems.clone()).unwrap_or_default();
    let is_moved = |proxy: &&PlannedProxy| resolution.vms.iter().any(|vm| vm.vm.id == proxy.vm);
    problems.extend(hot_add.proxies().iter().filter(is_moved).map(moves_itself));
    for proxy in hot_add.proxies() {
        let mut found =
            faults_at_source(session, proxy, resolution).unwrap_or_else(|error| vec![fault_of(&error)]);
        found.extend(faults_of_agent(hot_add, proxy));
        for (text, advice) in found {
            let text = format!("{}: {text}", proxy.name);
            let problem = match strict || hot_add.insists {
                true => Problem::error(proxy.path.clone(), text),
                false => {
                    Problem::warning(proxy.path.clone(), format!("{text}; disks are read without this proxy"))
                }
            };
            problems.push(problem.at(proxy.at).advise(advice));
        }
    }
    if hot_add.insists {
        problems.extend(unserved(hot_add, resolution));
    }
    problems
}

/// It would be switched off while it reads.
fn moves_itself(proxy: &PlannedProxy) -> Problem {
    let text = format!("{} is a proxy of this plan and is moved by it", proxy.name);
    let problem = Problem::error(format!("{}.vm", proxy.path), text).at(proxy.at);
    problem.advise("move it with another plan, afterwards")
}

fn fault_of(error: &VsphereError) -> Fault {
    let advice = error.advice().unwrap_or_else(|| "look at it, or name another one".to_string());
    (drover_engine::chain(error), advice)
}

fn faults_at_source(
    session: &Session,
    proxy: &PlannedProxy,
    resolution: &Resolution,
) -> Result<Vec<Fault>, VsphereError> {
    let now = session.proxy(&proxy.vm)?;
    let mut found = faults(&now, &datastores(proxy, resolution), !proxy.host_ids.is_empty());
    // That a server does not tell is said once, for all rights that the plan needs.
    let missing = session.missing_privileges(Entity::Vm, &[&proxy.vm], &PRIVILEGES)?.unwrap_or_default();
    found.extend(missing.into_values().flatten().map(|privilege| {
        let text = format!("the user lacks the privilege {privilege} on it");
        (text, "give the user's role this privilege on the proxy".to_string())
    }));
    Ok(found)
}

/// Datastores of the disks that a proxy is for.
fn datastores<'a>(proxy: &PlannedProxy, resolution: &'a Resolution) -> BTreeSet<&'a str> {
    let vms = resolution.vms.iter().filter(|vm| proxy.serves(&vm.vm));
    vms.flat_map(|vm| vm.disks.iter().map(|disk| disk.disk.datastore.as_str())).collect()
}

/// What is wrong with a proxy for these datastores. One that is for named hosts must see them all.
fn faults(proxy: &Proxy, datastores: &BTreeSet<&str>, is_for_hosts: bool) -> Vec<Fault> {
    let mut found: Vec<Fault> = Vec::new();
    let mut add = |text: &str, advice: &str| found.push((text.to_string(), advice.to_string()));
    if proxy.power != PowerState::On {
        add("it does not run", "switch it on");
    }
    if !proxy.shows_uuids {
        let text = "its guest does not see the UUIDs of its disks";
        add(text, "set disk.EnableUUID to TRUE in its configuration while it is off");
    }
    if proxy.free_slots() == 0 {
        let text = "its SCSI controllers have no free slot";
        add(text, "detach disks that nobody needs, or add a SCSI controller to it");
    }
    let unseen: Vec<&str> =
        datastores.iter().copied().filter(|name| !proxy.datastores.contains(*name)).collect();
    if !unseen.is_empty() && (is_for_hosts || unseen.len() == datastores.len()) {
        let text = format!("its host does not see datastore {}", unseen.join(", "));
        add(&text, "move it to a host that does, or name the hosts that it is for with `hosts`");
    }
    found
}

fn faults_of_agent(hot_add: &HotAdd, proxy: &PlannedProxy) -> Option<Fault> {
    let (site, _) = match hot_add.site(&proxy.site) {
        Ok(site) => site,
        Err(error) => return Some((error.to_string(), error.advice().to_string())),
    };
    match site.info() {
        Err(refusal) => Some((format!("agent of {}: {refusal}", proxy.site), "look at its log".into())),
        Ok(info) if info.has(HOT_ADD) => None,
        Ok(info) => Some((
            format!("the agent of {} (drover {}) serves no hot-added disks", proxy.site, info.version),
            "run it with --allow-hot-added, in the proxy; update it if it is older than this drover".into(),
        )),
    }
}

/// VMs that no proxy is for.
fn unserved(hot_add: &HotAdd, resolution: &Resolution) -> Option<Problem> {
    let is_served = |vm: &Vm| hot_add.proxies().iter().any(|proxy| proxy.serves(vm));
    let without: Vec<&str> =
        (resolution.vms.iter().filter(|vm| !is_served(&vm.vm))).map(|vm| vm.vm.name.as_str()).collect();
    let problem = || {
        let names = some_of(&without, NAMES_SHOWN_MAX);
        let text = format!("no proxy is for the host of {names}, in its data centre");
        Problem::error("source.data.path", text)
            .advise("add the host to `hosts` of a proxy, or write `path: auto`")
    };
    (!without.is_empty()).then(problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_proxy_is_all_told_at_once() {
        let proxy = Proxy { datastores: ["ds1".to_string()].into(), ..Proxy::default() };
        let told = |datastores: &[&str], is_for_hosts| {
            let found = faults(&proxy, &datastores.iter().copied().collect(), is_for_hosts);
            found.into_iter().map(|(text, _)| text).collect::<Vec<_>>()
        };
        assert_eq!(told(&["ds1", "ds2"], true).len(), 4);
        assert!(told(&["ds1", "ds2"], true)[3].contains("ds2"));
        assert_eq!(told(&["ds1", "ds2"], false).len(), 3, "others read what this one does not see");
        assert!(told(&["ds2"], false)[3].contains("ds2"));
    }
}
