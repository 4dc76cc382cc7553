//! How a plan goes on whose VMs something stands against: it stops those alone, for guests of others may be down.

use std::collections::{BTreeSet, HashSet};

use drover_plan::{NAMES_SHOWN_MAX, Others, PlannedVm, Problem, Severity};
use drover_types::some_of;

use crate::store::{PlanState, Store, StoreError, VmState};

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
    /// Of the plan of that name whose file has this text, and that is to be run with these VMs.
    ///
    /// # Errors
    /// If the state cannot be read.
    pub fn of(
        store: &Store,
        name: &str,
        text: &str,
        others: Others,
        vms: &[PlannedVm],
    ) -> Result<GoingOn, StoreError> {
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
        let is_as_begun = others == Others::LeftOut || plan.text == text;
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

    /// Ids of the VMs without which the plan goes on.
    pub fn into_in_question(self) -> BTreeSet<String> {
        self.in_question
    }
}

#[cfg(test)]
mod tests {
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
}
