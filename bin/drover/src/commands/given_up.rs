//! What `drover cancel` tells of what was given up: by this process, or by a daemon.

use drover_engine::{GivenUp, VmRow, VmState};
use drover_server::VmLine;
use drover_types::count;
use drover_view::clean;
use serde_json::{Value, json};

use crate::cli::RunArgs;

/// A VM as the state or a daemon has it.
pub trait Row {
    fn name(&self) -> &str;
    fn is_arrived(&self) -> bool;
    fn is_given_up(&self) -> bool;
    /// What is told of it.
    fn told(&self) -> Option<&str>;
}

impl Row for VmRow {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_arrived(&self) -> bool {
        self.state.has_arrived()
    }

    fn is_given_up(&self) -> bool {
        self.state == VmState::Cancelled
    }

    fn told(&self) -> Option<&str> {
        self.error.as_deref()
    }
}

impl Row for VmLine {
    fn name(&self) -> &str {
        &self.name
    }

    fn is_arrived(&self) -> bool {
        VmState::ALL.iter().any(|state| state.has_arrived() && state.word() == self.state)
    }

    fn is_given_up(&self) -> bool {
        self.state == VmState::Cancelled.word()
    }

    fn told(&self) -> Option<&str> {
        self.error.as_deref()
    }
}

/// What became of VMs that were given up before, by what is recorded of them. Of one that is undone, and of which something is told, a
/// copy stays.
pub fn recorded(vms: &[impl Row]) -> GivenUp {
    let mut given_up = GivenUp::default();
    for vm in vms.iter().filter(|vm| vm.is_arrived() || vm.is_given_up()) {
        if vm.is_arrived() {
            given_up.arrived.push(vm.name().to_string());
        } else if vm.told().is_some() {
            given_up.kept.push(vm.name().to_string());
        }
        given_up.notes.extend(vm.told().map(|told| format!("{}: {told}", vm.name())));
    }
    given_up
}

/// Tells what became of a plan that was given up.
pub fn tell_cancelled(plan: &str, given_up: &GivenUp, run: &RunArgs) {
    if run.json {
        return crate::out::json(cancelled_json(plan, !given_up.fails(None), given_up));
    }
    given_up.notes.iter().for_each(|note| crate::out::say(format_args!("note: {note}")));
    for vm in given_up.arrived.iter().map(|vm| clean(vm)) {
        crate::out::say(format_args!(
            "{vm} had arrived: it stays at the target, and its source is left as it is"
        ));
    }
    if given_up.fails(None) {
        return given_up
            .left
            .iter()
            .for_each(|problem| crate::out::say(format_args!("left behind: {problem}")));
    }
    let kept = match given_up.kept.len() {
        0 => String::new(),
        vms => format!(
            "; the source does not have {} any more: the notes say what of them stays",
            count(vms, "VM")
        ),
    };
    crate::out::say(format_args!("plan {plan} is cancelled; what it had begun is undone{kept}"));
}

/// Tells that nothing of a plan is left to cancel; in JSON also what became of it.
pub fn tell_has_ended(plan: &str, is_cancelled: bool, vms: &[impl Row], run: &RunArgs) {
    if run.json {
        return crate::out::json(cancelled_json(plan, is_cancelled, &recorded(vms)));
    }
    crate::out::say(format_args!("plan {plan} has ended; there is nothing to cancel"));
}

fn cancelled_json(plan: &str, is_cancelled: bool, given_up: &GivenUp) -> Value {
    let GivenUp { left, notes, arrived, kept, .. } = given_up;
    json!({
        "plan": plan, "cancelled": is_cancelled, "arrived": arrived, "kept": kept, "left": left, "notes": notes
    })
}

/// Tells what became of VMs that were given up: absent while the drover that runs the plan does that. `at` is the option that says where
/// the plan is.
pub fn tell_given_up(plan: &str, vms: &[String], given_up: Option<&GivenUp>, at: &str, run: &RunArgs) {
    if run.json {
        let GivenUp { left, notes, kept, .. } = given_up.cloned().unwrap_or_default();
        return crate::out::json(json!({
            "plan": plan, "given_up": vms, "running": given_up.is_none(), "kept": kept, "left": left, "notes": notes
        }));
    }
    let who = vms.join(", ");
    match given_up {
        // Also to those who want to read little: it may be all there is of them.
        Some(given_up) if !given_up.kept.is_empty() => {
            crate::out::say(format_args!(
                "given up: {who} (`drover status {plan}{at}` says what stays of those that their source does not have any more)"
            ));
            crate::out::next(run, format_args!("drover resume {plan}{at}"));
        }
        _ if run.quiet => {}
        Some(_) => {
            crate::out::say(format_args!("given up, and what was begun is undone: {who}"));
            crate::out::next(run, format_args!("drover resume {plan}{at}"));
        }
        None => {
            crate::out::say(format_args!(
                "given up by the drover that runs the plan, which goes on without: {who}"
            ));
            crate::out::next(run, format_args!("drover status {plan} --watch{at}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Told(&'static str, VmState, Option<&'static str>);

    impl Row for Told {
        fn name(&self) -> &str {
            self.0
        }

        fn is_arrived(&self) -> bool {
            self.1.has_arrived()
        }

        fn is_given_up(&self) -> bool {
            self.1 == VmState::Cancelled
        }

        fn told(&self) -> Option<&str> {
            self.2
        }
    }

    #[test]
    fn a_copy_stays_of_what_is_undone_and_of_which_something_is_told() {
        let vms = [
            Told("gone", VmState::Cancelled, Some("its source does not have it")),
            Told("undone", VmState::Cancelled, None),
            Told("there", VmState::Done, None),
            Told("failed", VmState::Failed, Some("why")),
        ];
        let found = recorded(&vms);
        let value = cancelled_json("p", true, &found);
        let expected = json!({
            "plan": "p", "cancelled": true, "arrived": ["there"], "kept": ["gone"], "left": [],
            "notes": ["gone: its source does not have it"]
        });
        assert_eq!(value, expected);
    }
}
