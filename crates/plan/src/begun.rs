//! A run goes on with the VMs and disks it began with, whatever they are called by now.

use std::collections::{HashMap, HashSet};

use drover_types::inventory::{Inventory, Nic, PowerState, Vm, VmDisk, VmPlace};

use crate::resolution::PlannedVm;

/// A VM that an earlier run of a plan began with.
#[derive(Clone, Debug)]
pub struct Begun {
    /// As it was planned then.
    pub planned: PlannedVm,
    /// Whether it has arrived, or is given up and left alone, so that nothing that befell it since matters.
    pub has_arrived: bool,
    /// Whether something of its disks may be copied, so that it goes on with those. Otherwise it has the disks of now.
    pub keeps_disks: bool,
}

/// Which VMs a run may take besides those that were begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Others {
    /// None: the run is resumed.
    LeftOut,
    /// All that the plan selects: the plan file was given again, and may have been edited.
    Selected,
}

/// Makes an inventory what it was when the run began, as far as that decides which VMs and disks it is about:
/// selections and file names go by names, places, tags and the order of disks, and these may have changed since. A VM
/// that is gone, or whose id another VM has now, stays as it was: the run finds that out when it looks at it.
/// So it does with disks that were added to or removed from one of which something may be copied. A VM keeps its wave, unless the
/// plan names it in another one.
pub fn as_begun(inventory: &mut Inventory, begun: &[Begun], others: Others) {
    let places: HashMap<String, usize> =
        inventory.vms.iter().enumerate().rev().map(|(at, vm)| (vm.id.clone(), at)).collect();
    for Begun { planned, has_arrived, keeps_disks } in begun {
        let then = &planned.vm;
        if let Some(wave) = &planned.wave {
            inventory.waves.insert(then.id.clone(), wave.clone());
        }
        let datastores = then.disks.iter().map(|disk| disk.datastore.clone()).collect();
        let place = VmPlace { host_id: then.host_id.clone(), datastores };
        inventory.places.insert(then.id.clone(), place);
        match places.get(&then.id).map(|at| &mut inventory.vms[*at]) {
            Some(now) if !has_arrived && now.instance_uuid == then.instance_uuid => {
                take_back(now, then, *keeps_disks);
            }
            Some(now) => *now = then.clone(),
            None => inventory.vms.push(then.clone()),
        }
    }
    if others == Others::LeftOut {
        let ids: HashSet<&str> = begun.iter().map(|it| it.planned.vm.id.as_str()).collect();
        inventory.vms.retain(|vm| ids.contains(vm.id.as_str()));
        inventory.is_begun_alone = true;
        // They have those of then.
        inventory.tags_unknown = None;
    }
}

fn take_back(now: &mut Vm, then: &Vm, keeps_disks: bool) {
    now.name.clone_from(&then.name);
    now.folder.clone_from(&then.folder);
    now.tags.clone_from(&then.tags);
    let is_on = now.power == PowerState::On;
    for nic in &mut now.nics {
        let is_it = |was: &&Nic| (&was.mac, &was.label) == (&nic.mac, &nic.label);
        if let Some(was) = then.nics.iter().find(is_it) {
            // A VM that is off tells whether a NIC is to be connected at its next start, which may differ.
            nic.connected = if is_on { nic.connected } else { was.connected };
            // The tools of a guest that is off tell nothing.
            nic.fixed = nic.fixed.take().or_else(|| was.fixed.clone());
        }
    }
    if !keeps_disks {
        return;
    }
    let disk = |was: &VmDisk| match now.disks.iter().find(|disk| disk.key == was.key) {
        Some(is) => VmDisk {
            label: was.label.clone(),
            capacity_bytes: was.capacity_bytes,
            uuid: was.uuid.clone(),
            ..is.clone()
        },
        None => was.clone(),
    };
    now.disks = then.disks.iter().map(disk).collect();
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use drover_types::inventory::{About, Host};

    use super::*;
    use crate::{Plan, resolve};

    const PLAN: &str = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\n\
                        target: {type: qemu, folder: /vms}\nvms: [{glob: 'web*'}]\n";

    fn vm(id: &str, name: &str) -> Vm {
        let disk = |key| VmDisk {
            key,
            label: format!("Hard disk {key}"),
            capacity_bytes: 1 << 20,
            ..VmDisk::default()
        };
        Vm {
            id: id.into(),
            name: name.into(),
            instance_uuid: format!("uuid-{id}"),
            power: PowerState::Off,
            disks: vec![disk(1), disk(2)],
            ..Vm::default()
        }
    }

    fn inventory(vms: Vec<Vm>) -> Inventory {
        Inventory { about: About { is_vcenter: true, ..About::default() }, vms, ..Inventory::default() }
    }

    fn planned(inventory: &Inventory) -> Vec<PlannedVm> {
        let resolution = resolve(&Plan::parse(PLAN).unwrap(), inventory);
        assert!(resolution.is_ok(), "{:?}", resolution.problems);
        resolution.vms
    }

    fn begun(vms: Vec<Vm>) -> Vec<Begun> {
        planned(&inventory(vms))
            .into_iter()
            .map(|planned| Begun { planned, has_arrived: false, keeps_disks: true })
            .collect()
    }

    fn paths(vms: &[PlannedVm]) -> Vec<String> {
        vms.iter().flat_map(|vm| &vm.disks).map(|disk| disk.path.display().to_string()).collect()
    }

    #[test]
    fn a_resumed_run_is_about_the_vms_it_began_with_whatever_they_are_called_now() {
        let began = begun(vec![vm("vm-1", "web01"), vm("vm-2", "web02"), vm("vm-3", "db")]);
        // One was renamed out of the selection, one into it, and there is a new one.
        let now = || {
            inventory(vec![
                vm("vm-1", "old-web"),
                vm("vm-2", "web02"),
                vm("vm-3", "web03"),
                vm("vm-4", "web04"),
            ])
        };
        let mut resumed = now();
        as_begun(&mut resumed, &began, Others::LeftOut);
        let then: Vec<PlannedVm> = began.iter().map(|it| it.planned.clone()).collect();
        assert_eq!(planned(&resumed), then);
        let mut again = now();
        as_begun(&mut again, &began, Others::Selected);
        let names: Vec<String> = planned(&again).into_iter().map(|vm| vm.target_name).collect();
        assert_eq!(names, ["web01", "web02", "web03", "web04"]);
    }

    #[test]
    fn a_vm_keeps_its_wave_wherever_it_runs_unless_the_plan_names_it_in_another() {
        let host =
            |number: u32| Host { id: format!("h{number}"), name: format!("esx{number}"), ..Host::default() };
        let on = |host: &str| Vm { host_id: host.into(), ..vm("vm-1", "web01") };
        let seen = |vm: Vm| Inventory { hosts: vec![host(1), host(2), host(3)], ..inventory(vec![vm]) };
        let plan = |second: &str| {
            let waves = "waves:\n  - {name: one, vms: [{host: esx1}]}\n  - {name: two, vms: [";
            Plan::parse(&format!("{PLAN}{waves}{second}]}}\n")).unwrap()
        };
        let by_host = plan("{host: esx2}");
        let planned = resolve(&by_host, &seen(on("h1"))).vms.remove(0);
        assert_eq!(planned.wave.as_deref(), Some("one"));
        let began = [Begun { planned, has_arrived: false, keeps_disks: true }];
        let wave = |plan: &Plan, vm: Vm| {
            let mut now = seen(vm);
            as_begun(&mut now, &began, Others::LeftOut);
            let resolution = resolve(plan, &now);
            assert!(resolution.is_ok(), "{:?}", resolution.problems);
            resolution.vms[0].wave.clone().unwrap_or_default()
        };
        // The cluster's scheduler moved it to a host of the other wave, and to one of none.
        assert_eq!([wave(&by_host, on("h2")), wave(&by_host, on("h3"))], ["one", "one"]);
        assert_eq!(wave(&plan("{name: web01}"), on("h3")), "two", "somebody edited the plan");
        let gone = Plan::parse(&format!("{PLAN}waves: [{{name: other, vms: [{{glob: '*'}}]}}]\n")).unwrap();
        assert_eq!(wave(&gone, on("h1")), "other", "its wave is no more");
    }

    #[test]
    fn a_vm_that_was_moved_stays_chosen_by_where_it_was_and_is_not_excluded_by_where_it_is() {
        let host = |number: u32| Host {
            id: format!("h{number}"),
            name: format!("esx{number}"),
            cluster: Some(format!("c{number}")),
            ..Host::default()
        };
        let at = |number: u32| {
            let mut vm = Vm { host_id: format!("h{number}"), ..vm("vm-1", "web01") };
            vm.disks.iter_mut().for_each(|disk| disk.datastore = format!("ds{number}"));
            vm
        };
        let seen = |vm: Vm| Inventory { hosts: vec![host(1), host(2)], ..inventory(vec![vm]) };
        for key in ["host: esx", "cluster: c", "datastore: ds"] {
            let plan = PLAN.replace("glob: 'web*'", &format!("{key}1")) + &format!("exclude: [{{{key}2}}]\n");
            let plan = Plan::parse(&plan).unwrap();
            let planned = resolve(&plan, &seen(at(1))).vms.remove(0);
            let began = [Begun { planned, has_arrived: false, keeps_disks: true }];
            let mut now = seen(at(2));
            as_begun(&mut now, &began, Others::Selected);
            let resolution = resolve(&plan, &now);
            assert_eq!(resolution.vms.len(), 1, "{key}: {:?}", resolution.problems);
            assert_eq!(resolution.vms[0].vm.host_id, "h2", "it is read where it is");
            assert!(resolve(&plan, &seen(at(2))).vms.is_empty(), "{key}: one that was not begun");
        }
    }

    #[test]
    fn a_nic_stays_as_it_was_when_the_vm_ran() {
        let with = |connected: bool| {
            let nic = Nic { mac: "00:50:56:aa:bb:cc".into(), connected, ..Nic::default() };
            Vm { nics: vec![nic], ..vm("vm-1", "web01") }
        };
        let text = format!("{PLAN}networks: {{'*': user}}\n");
        let planned = resolve(&Plan::parse(&text).unwrap(), &inventory(vec![with(true)])).vms.remove(0);
        let begun = [Begun { planned, has_arrived: false, keeps_disks: true }];
        let resumed = |power: PowerState| {
            let mut now = inventory(vec![Vm { power, ..with(false) }]);
            as_begun(&mut now, &begun, Others::LeftOut);
            now.vms[0].nics[0].connected
        };
        assert!(resumed(PowerState::Off), "what holds for its next start is another thing");
        assert!(!resumed(PowerState::On), "it was unplugged meanwhile");
    }

    #[test]
    fn tags_are_those_of_then_and_need_not_be_known_again() {
        let then = Vm { tags: vec!["env:a".into()], ..vm("vm-1", "web01") };
        let text = PLAN.replace("glob: 'web*'", "tag: 'env:a'");
        let plan = Plan::parse(&text).unwrap();
        let planned = resolve(&plan, &inventory(vec![then])).vms.remove(0);
        let begun = [Begun { planned, has_arrived: false, keeps_disks: true }];
        let resumed = |others| {
            let mut now = inventory(vec![vm("vm-1", "web01")]);
            now.tags_unknown = Some("503".into());
            as_begun(&mut now, &begun, others);
            resolve(&plan, &now).is_ok()
        };
        assert!(resumed(Others::LeftOut));
        assert!(!resumed(Others::Selected), "others may have the tag");
    }

    #[test]
    fn disks_keep_their_places_and_those_that_are_new_or_gone_do_not_enter() {
        let began = begun(vec![vm("vm-1", "web01")]);
        let mut changed = vm("vm-1", "web01");
        changed.disks.remove(0);
        changed
            .disks
            .insert(0, VmDisk { key: 9, label: "new".into(), capacity_bytes: 5 << 20, ..VmDisk::default() });
        (changed.disks[1].capacity_bytes, changed.disks[1].change_id) = (2 << 20, Some("ab/1".into()));
        let mut now = inventory(vec![changed]);
        as_begun(&mut now, &began, Others::LeftOut);
        let resumed = planned(&now);
        assert_eq!(paths(&resumed), paths(&[began[0].planned.clone()]));
        let disk = &resumed[0].disks[1].disk;
        assert_eq!(
            (disk.capacity_bytes, disk.change_id.as_deref()),
            (1 << 20, Some("ab/1")),
            "what is not its size is of now"
        );
    }

    #[test]
    fn one_of_which_nothing_is_copied_has_the_disks_of_now_and_its_name_of_then() {
        let mut began = begun(vec![vm("vm-1", "web01")]);
        began[0].keeps_disks = false;
        let mut changed = vm("vm-1", "renamed");
        changed.disks[0].capacity_bytes = 2 << 20;
        changed.disks.push(VmDisk { key: 3, capacity_bytes: 5 << 20, ..changed.disks[1].clone() });
        let mut now = inventory(vec![changed]);
        as_begun(&mut now, &began, Others::LeftOut);
        let resumed = planned(&now);
        let sizes: Vec<u64> = resumed[0].disks.iter().map(|disk| disk.disk.capacity_bytes).collect();
        assert_eq!((resumed[0].target_name.as_str(), sizes), ("web01", vec![2 << 20, 1 << 20, 5 << 20]));
    }

    #[test]
    fn a_vm_that_is_gone_and_one_whose_id_was_given_again_stay_what_they_were() {
        let mut began = begun(vec![vm("vm-1", "web01"), vm("vm-2", "web02"), vm("vm-3", "web03")]);
        began[2].has_arrived = true;
        let then: Vec<PlannedVm> = began.iter().map(|it| it.planned.clone()).collect();
        let other = Vm { instance_uuid: "another".into(), ..vm("vm-2", "database") };
        let arrived = Vm { power: PowerState::On, ..vm("vm-3", "archive") };
        let mut now = inventory(vec![other, arrived]);
        as_begun(&mut now, &began, Others::LeftOut);
        assert_eq!(planned(&now), then);
    }
}
