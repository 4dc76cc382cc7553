//! What stands against a VM when its turn comes, of a plan that went on although something did.

use std::collections::BTreeSet;

use drover_engine::{Cause, ProviderError, Store, chain};
use drover_plan::{Begun, Others, Plan, PlannedVm, Problem, as_begun, resolve};
use drover_types::inventory::Inventory;
use drover_types::shell_word;

use crate::hidden::{hide_own_snapshots, hide_what_passes_see_to};
use crate::source::PlanSource;

/// Judges VMs that something stood against as their plan went on.
pub struct Judge {
    in_question: BTreeSet<String>,
    plan: Plan,
    inventory: Inventory,
}

impl Judge {
    /// Of the VMs of these ids; nobody, if there are none. `inventory` is that of the source, and need not have them.
    pub fn of(in_question: BTreeSet<String>, plan: &Plan, inventory: Inventory) -> Option<Judge> {
        (!in_question.is_empty()).then(|| Judge { in_question, plan: plan.clone(), inventory })
    }

    /// What stands against a VM now: by the plan, and by the rights of the user.
    ///
    /// # Errors
    /// With that, and if it cannot be found out.
    pub fn check(&self, vm: &PlannedVm, provider: &PlanSource, store: &Store) -> Result<(), ProviderError> {
        let id = &vm.vm.id;
        if !self.in_question.contains(id) {
            return Ok(());
        }
        let mut inventory = Inventory { vms: vec![provider.source().vm(id)?], ..self.inventory.clone() };
        let begun = Begun { planned: vm.clone(), has_arrived: false, keeps_disks: true };
        as_begun(&mut inventory, &[begun], Others::LeftOut);
        hide_what_passes_see_to(&self.plan, store, &mut inventory)
            .map_err(|error| ProviderError::new(Cause::State, chain(&error)).advise(error.advice()))?;
        hide_own_snapshots(&mut inventory, &self.plan.name);
        let mut resolution = resolve(&self.plan, &inventory);
        resolution.vms.retain(|it| it.vm.id == *id);
        check_none(&resolution.problems, id, Cause::Plan)?;
        resolution.vms.first().map_or(Ok(()), |anew| check_same(&self.plan.name, vm, anew))?;
        check_none(&provider.rights(&resolution, &inventory)?, id, Cause::Access)
    }
}

/// Refuses a VM that this run would move otherwise than the plan has it by now: it was planned when something stood against it.
fn check_same(plan: &str, vm: &PlannedVm, anew: &PlannedVm) -> Result<(), ProviderError> {
    let mut then = vm.clone();
    let is_taken = then.take_hardware(&anew.vm).is_ok();
    let cards = |vm: &PlannedVm| -> Vec<_> {
        vm.nics.iter().map(|nic| (nic.index, nic.network.clone(), nic.target.clone())).collect()
    };
    let disks =
        |vm: &PlannedVm| -> Vec<_> { vm.disks.iter().map(|disk| (disk.disk.key, disk.bus)).collect() };
    let what = match () {
        () if !is_taken || cards(&then) != cards(anew) => "hardware",
        () if disks(vm) != disks(anew) => "disks",
        () if vm.convert != anew.convert => "conversion",
        () => return Ok(()),
    };
    let name = &vm.vm.name;
    let text = format!(
        "something stood against {name} when this run planned it, and its {what} would be planned otherwise now"
    );
    let advice = format!("when this run has ended, `drover resume {}` plans it anew", shell_word(plan));
    Err(ProviderError::new(Cause::Plan, text).advise(advice))
}

/// Refuses a VM that one of these errors is of.
fn check_none(problems: &[Problem], id: &str, cause: Cause) -> Result<(), ProviderError> {
    let is_of_it = |it: &&Problem| it.is_error() && it.vms.iter().any(|vm| vm == id);
    let Some(problem) = problems.iter().find(is_of_it) else { return Ok(()) };
    let error = ProviderError::new(cause, problem.message.clone());
    Err(problem.advice.iter().fold(error, |error, advice| error.advise(advice.clone())))
}

#[cfg(test)]
mod tests {
    use drover_plan::Convert;
    use drover_types::inventory::{About, Nic, PowerState, Vm, VmDisk};

    use super::*;

    const PLAN: &str = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\n\
                        target: {type: qemu, folder: /vms}\nnetworks: {prod: user}\nvms: [{name: web01}]\n";

    /// As a run plans it whose card is on this network.
    fn planned(network: &str) -> PlannedVm {
        let nic = Nic {
            label: "Network adapter 1".into(),
            mac: "00:50:56:aa:bb:cc".into(),
            network: network.into(),
            connected: true,
            ..Nic::default()
        };
        let disk =
            VmDisk { key: 2000, label: "Hard disk 1".into(), capacity_bytes: 1 << 20, ..VmDisk::default() };
        let vm = Vm {
            id: "vm-1".into(),
            name: "web01".into(),
            instance_uuid: "uuid-1".into(),
            power: PowerState::Off,
            memory_mib: 128,
            nics: vec![nic],
            disks: vec![disk],
            ..Vm::default()
        };
        let about = About { is_vcenter: true, ..About::default() };
        let inventory = Inventory { about, vms: vec![vm], ..Inventory::default() };
        resolve(&Plan::parse(PLAN).unwrap(), &inventory).vms.remove(0)
    }

    #[test]
    fn a_vm_that_was_planned_as_something_stood_against_it_is_not_moved_otherwise_than_planned_now() {
        let anew = planned("prod");
        assert!(check_same("p", &anew, &anew).is_ok());
        // Its network was not mapped as the run began, so that its card led nowhere; it was put back on one that is.
        let unmapped = planned("dmz");
        let mut nowhere = anew.clone();
        nowhere.nics[0].target.clone_from(&unmapped.nics[0].target);
        for then in [unmapped, nowhere] {
            let refused = check_same("p", &then, &anew).unwrap_err();
            assert!(
                refused.what.ends_with("its hardware would be planned otherwise now"),
                "{}",
                refused.what
            );
            assert!(refused.advice.unwrap().contains("`drover resume p`"));
        }
        let converted = PlannedVm { convert: Convert::Always, ..anew.clone() };
        assert!(check_same("p", &anew, &converted).unwrap_err().what.contains("its conversion"));
        let fewer = PlannedVm { disks: Vec::new(), ..anew.clone() };
        assert!(check_same("p", &fewer, &anew).unwrap_err().what.contains("its disks"));
        // What a run takes over, it takes over.
        let mut other_mac = anew.clone();
        other_mac.vm.nics[0].mac = "00:50:56:01:02:03".into();
        other_mac.nics[0].mac = "00:50:56:01:02:03".into();
        assert!(check_same("p", &other_mac, &anew).is_ok());
    }
}
