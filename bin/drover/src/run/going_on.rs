//! What stands against single VMs of a plan that goes on: it stops them alone, for guests of others may be down.

use std::collections::{BTreeSet, HashSet};

use drover_engine::{Cause, PlanState, ProviderError, Store, StoreError, VmState, chain};
use drover_plan::{Begun, NAMES_SHOWN_MAX, Others, Plan, PlannedVm, Problem, Severity, as_begun, resolve};
use drover_source::{PlanSource, hide_own_snapshots, hide_what_passes_see_to};
use drover_types::inventory::Inventory;
use drover_types::{shell_word, some_of};

use crate::plan_file::PlanFile;

/// How earlier runs left a plan, and which of its VMs something stands against.
#[derive(Debug, Default)]
pub struct GoingOn {
    /// It goes on as it was begun, or has guests that are down.
    is_under_way: bool,
    /// drover shut guests down that have not arrived.
    is_any_down: bool,
    /// Ids of the VMs that are still to move.
    to_move: BTreeSet<String>,
    /// Ids of those of which it was ordered to give them up.
    given_up: HashSet<String>,
    /// Ids of those that something stands against.
    in_question: BTreeSet<String>,
}

impl GoingOn {
    /// Of a plan that is to be run with these VMs.
    pub fn of(
        store: &Store,
        file: &PlanFile,
        others: Others,
        vms: &[PlannedVm],
    ) -> Result<GoingOn, StoreError> {
        let name = &file.plan.name;
        let Some(plan) = store.plan(name)?.filter(|row| row.state != PlanState::Cancelled) else {
            return Ok(GoingOn::default());
        };
        let mut to_move: BTreeSet<String> = vms.iter().map(|vm| vm.vm.id.clone()).collect();
        let mut is_any_down = false;
        for row in store.vms_in_short(name)? {
            if row.state == VmState::Done {
                to_move.remove(&row.id);
            }
            is_any_down |= row.switched_off && !row.state.has_arrived() && to_move.contains(&row.id);
        }
        let is_as_begun = others == Others::LeftOut || plan.text == file.text;
        let is_under_way = plan.state != PlanState::Done && (is_as_begun || is_any_down);
        let given_up = store.give_ups(name)?.into_iter().collect();
        Ok(GoingOn { is_under_way, is_any_down, to_move, given_up, in_question: BTreeSet::new() })
    }

    /// Makes warnings of errors that stop single VMs alone, if others of the plan go on. A plan that is only begun has them all
    /// corrected first, as has one none of whose VMs can go on.
    pub fn let_others_go_on(&mut self, problems: &mut Vec<Problem>) {
        let is_given_up = |id: &String| self.given_up.contains(id);
        problems.retain(|it| it.vms.is_empty() || !it.vms.iter().all(is_given_up));
        let stops_single = |it: &Problem| it.is_error() && !it.vms.is_empty();
        let stopped = problems.iter().filter(|it| stops_single(it)).flat_map(|it| it.vms.iter().cloned());
        let in_question: BTreeSet<String> = stopped.chain(self.in_question.iter().cloned()).collect();
        let is_any_left = self.is_any_down || !self.to_move.is_subset(&in_question);
        if !self.is_under_way || !is_any_left {
            return;
        }
        for problem in problems.iter_mut().filter(|it| stops_single(it)) {
            problem.severity = Severity::Warning;
        }
        self.in_question = in_question;
    }

    /// What is said of VMs without which the plan goes on.
    pub fn words(&self, plan: &str, vms: &[PlannedVm]) -> Option<String> {
        let stopped = vms.iter().filter(|vm| self.in_question.contains(&vm.vm.id));
        let names: Vec<&str> = stopped.map(|vm| vm.vm.name.as_str()).collect();
        let shown = some_of(&names, NAMES_SHOWN_MAX);
        (!names.is_empty()).then(|| {
            format!(
                "warning: that stops {shown} alone; plan {plan} goes on, and judges each of them again when its turn comes"
            )
        })
    }

    /// Who judges those VMs again when they begin. `inventory` is that of the source, and need not have its VMs.
    pub fn judge(self, plan: &Plan, inventory: Inventory) -> Option<Judge> {
        let in_question = self.in_question;
        (!in_question.is_empty()).then(|| Judge { in_question, plan: plan.clone(), inventory })
    }
}

/// Judges VMs that something stood against as their plan went on.
pub struct Judge {
    in_question: BTreeSet<String>,
    plan: Plan,
    inventory: Inventory,
}

impl Judge {
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
#[allow(clippy::unwrap_used)]
mod tests {
    use drover_plan::Convert;
    use drover_types::inventory::{About, Nic, PowerState, Vm, VmDisk};

    use super::*;

    fn ids(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| id.to_string()).collect()
    }

    fn under_way() -> GoingOn {
        GoingOn { is_under_way: true, to_move: ids(&["1", "2"]), ..GoingOn::default() }
    }

    fn of(vms: &[&str]) -> Problem {
        Problem::error("vms", "it is suspended").of_vms(vms.iter().copied())
    }

    /// Whether errors are left, and which VMs are in question.
    fn judged(mut plan: GoingOn, rounds: &[&[Problem]]) -> (bool, BTreeSet<String>) {
        let mut is_refused = false;
        for problems in rounds {
            let mut problems = problems.to_vec();
            plan.let_others_go_on(&mut problems);
            is_refused |= problems.iter().any(Problem::is_error);
        }
        (is_refused, plan.in_question)
    }

    #[test]
    fn one_vm_stops_a_plan_that_is_only_begun_and_no_other_of_one_that_goes_on() {
        assert!(judged(GoingOn { is_under_way: false, ..under_way() }, &[&[of(&["1"])]]).0);
        assert_eq!(judged(under_way(), &[&[of(&["1"])]]), (false, ids(&["1"])));
        let whole = Problem::error("target.folder", "it is not there");
        assert!(judged(under_way(), &[&[of(&["1"]), whole]]).0, "that is of the whole plan");
    }

    #[test]
    fn a_plan_none_of_whose_vms_can_go_on_is_refused_unless_a_guest_is_down() {
        assert_eq!(judged(under_way(), &[&[of(&["1", "2"])]]), (true, ids(&[])));
        assert!(judged(under_way(), &[&[of(&["1"])], &[of(&["2"])]]).0, "all together");
        let down = GoingOn { is_any_down: true, ..under_way() };
        assert_eq!(judged(down, &[&[of(&["1"])], &[of(&["2"])]]), (false, ids(&["1", "2"])));
    }

    #[test]
    fn what_stands_against_vms_that_are_given_up_is_nobodys_affair() {
        let plan = || GoingOn { given_up: HashSet::from(["3".to_string()]), ..GoingOn::default() };
        assert!(!judged(plan(), &[&[of(&["3"])]]).0);
        assert!(judged(plan(), &[&[of(&["3", "1"])]]).0);
    }

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
