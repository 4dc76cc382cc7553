//! What a run of a plan began with.

use std::collections::{BTreeMap, HashMap, HashSet};

use drover_plan::{Begun, NAMES_SHOWN_MAX, Others, Plan, PlannedVm, Problem};
use drover_types::some_of;

use crate::phase::Phase;
use crate::store::{PlanState, Store, StoreError, StoreFault, VmRow, VmState};

/// The VMs that earlier runs of a plan began with and that were not given up with all of it: those of which that was ordered one by one
/// belong to the plan, whose run leaves them alone. Where the plan file was given again,
/// one that no run took further than its checks is looked at afresh. Of one that a run leaves alone nothing that befell it since matters.
///
/// # Errors
/// If the state cannot be read.
pub fn begun(store: &Store, plan: &str, others: Others) -> Result<Vec<Begun>, StoreError> {
    let mut begun = Vec::new();
    let given_up = store.give_ups(plan)?;
    let left_alone = left_alone(store, plan)?;
    let is_of_plan = |row: &&VmRow| row.state != VmState::Cancelled || given_up.contains(&row.id);
    for row in store.vms(plan)?.iter().filter(is_of_plan) {
        let planned = serde_json::from_str(&row.planned).map_err(|error| {
            let source =
                StoreFault::Value(format!("what was planned of {} cannot be read: {error}", row.name));
            StoreError { path: store.path().to_path_buf(), source }
        })?;
        let has_arrived = row.state == VmState::Done || left_alone.contains(&row.id);
        // One that was given up and taken back has nothing left of its disks, which may be others by now.
        let keeps_disks = has_arrived || is_on_its_way(store, plan, row)?;
        if others == Others::LeftOut || keeps_disks {
            begun.push(Begun { planned, has_arrived, keeps_disks });
        }
    }
    Ok(begun)
}

/// Ids of the VMs that a run of a plan leaves alone: those that were given up by order, and of which all is undone.
///
/// # Errors
/// If the state cannot be read.
pub fn left_alone(store: &Store, plan: &str) -> Result<HashSet<String>, StoreError> {
    // One that was given up with all its VMs begins anew with them.
    if store.plan(plan)?.is_none_or(|row| row.state == PlanState::Cancelled) {
        return Ok(HashSet::new());
    }
    let given_up: HashSet<String> = store.give_ups(plan)?.into_iter().collect();
    let is_undone = |row: &VmRow| row.state == VmState::Cancelled && given_up.contains(&row.id);
    Ok(store.vms_in_short(plan)?.into_iter().filter(is_undone).map(|row| row.id).collect())
}

fn is_on_its_way(store: &Store, plan: &str, row: &VmRow) -> Result<bool, StoreError> {
    let events = store.events_since_begun(plan, &row.id)?;
    let is_later = |phase: &str| phase != Phase::Check.name();
    Ok(events.iter().any(|event| event.kind == "started" && event.phase.as_deref().is_some_and(is_later)))
}

/// Says which VMs other plans of this state are moving, or have moved.
pub fn others_have(plan: &Plan, vms: &[PlannedVm], begun: &[Begun], store: &Store) -> Vec<Problem> {
    // Images may be imported as often as is wished.
    if plan.source.vsphere().is_none() {
        return Vec::new();
    }
    let found = in_other_plans(store, &plan.name, vms, begun).unwrap_or_default();
    let mut problems = Vec::new();
    for InOther { plan, on_their_way, begun, arrived } in found {
        if !on_their_way.is_empty() {
            let text = are(
                &on_their_way,
                &format!("on the way with plan {plan}, and cannot be moved here meanwhile"),
            );
            let advice = "leave them out (`exclude`), or let that plan end";
            problems.push(Problem::warning("vms", text).advise(advice));
        }
        if !begun.is_empty() {
            let text = are(&begun, &format!("begun with plan {plan}, which has stopped"));
            let advice = format!("give them up there (`drover cancel {plan} VM...`), or leave them out here");
            problems.push(Problem::warning("vms", text).advise(advice));
        }
        if !arrived.is_empty() {
            let text =
                are(&arrived, &format!("at the target already (plan {plan}), and would be copied once more"));
            let advice = "leave them out (`exclude`), unless you want second copies";
            problems.push(Problem::warning("vms", text).advise(advice));
        }
    }
    problems
}

/// `a is gone`, `3 VMs are gone: a, b, c`.
fn are(names: &[String], what: &str) -> String {
    match names {
        [one] => format!("{one} is {what}"),
        all => format!("{} VMs are {what}: {}", all.len(), some_of(all, NAMES_SHOWN_MAX)),
    }
}

/// VMs of a plan that another plan of this state has, too, by their names at the target.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InOther {
    /// That plan.
    plan: String,
    /// Those that are on their way with it.
    on_their_way: Vec<String>,
    /// Those that were begun with it, and stopped or failed.
    begun: Vec<String>,
    /// Those that have arrived with it.
    arrived: Vec<String>,
}

/// Which of these VMs other plans are moving or have moved, of those that this plan has not begun.
fn in_other_plans(
    store: &Store,
    plan: &str,
    vms: &[PlannedVm],
    begun: &[Begun],
) -> Result<Vec<InOther>, StoreError> {
    let begun: HashSet<&str> = begun.iter().map(|it| it.planned.vm.id.as_str()).collect();
    let vms = vms.iter().map(|vm| (vm.vm.id.as_str(), vm)).filter(|(id, _)| !begun.contains(id));
    let vms: HashMap<&str, &PlannedVm> = vms.collect();
    let ids: Vec<&str> = vms.keys().copied().collect();
    let mut found: BTreeMap<String, InOther> = BTreeMap::new();
    for (other, row) in store.all_in_other_plans(plan, &ids)? {
        let Some(vm) = vms.get(row.id.as_str()) else { continue };
        let is_same = |there: PlannedVm| there.vm.instance_uuid == vm.vm.instance_uuid;
        if !serde_json::from_str(&row.planned).is_ok_and(is_same) {
            continue;
        }
        let of = found.entry(other.clone()).or_insert(InOther {
            plan: other,
            on_their_way: Vec::new(),
            begun: Vec::new(),
            arrived: Vec::new(),
        });
        match row.state {
            VmState::Running => of.on_their_way.push(vm.target_name.clone()),
            state if state.has_arrived() => of.arrived.push(vm.target_name.clone()),
            VmState::Stopped | VmState::Failed if is_on_its_way(store, &of.plan, &row)? => {
                of.begun.push(vm.target_name.clone());
            }
            _ => {}
        }
    }
    Ok(found.into_values().collect())
}

/// VMs that a run with only these VMs would leave as an earlier run left them: copied in part, with a source that is not cleaned up, with
/// drover's snapshot, or switched off by drover.
///
/// # Errors
/// If the state cannot be read.
pub fn left_out(store: &Store, plan: &str, vms: &[PlannedVm]) -> Result<Vec<String>, StoreError> {
    let is_over = |row: &VmRow| matches!(row.state, VmState::Done | VmState::Cancelled);
    let ids: HashSet<&str> = vms.iter().map(|vm| vm.vm.id.as_str()).collect();
    let is_out = |row: &VmRow| !ids.contains(row.id.as_str());
    let mut left = Vec::new();
    for row in store.vms_in_short(plan)?.into_iter().filter(|row| !is_over(row) && is_out(row)) {
        let is_held = row.snapshot.is_some() || row.switched_off || row.state == VmState::NotCleanedUp;
        if is_held || is_on_its_way(store, plan, &row)? {
            left.push(row.name);
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use drover_plan::{Plan, resolve};
    use drover_types::inventory::{Inventory, Vm};

    use super::*;

    fn planned() -> Vec<PlannedVm> {
        let vm = |id: &str| Vm {
            id: id.into(),
            name: format!("new-{id}"),
            instance_uuid: format!("uuid-{id}"),
            ..Vm::default()
        };
        let inventory = Inventory { vms: ["1", "2", "3", "4"].map(vm).into(), ..Inventory::default() };
        let plan = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\n\
                    target: {type: qemu, folder: /vms}\nvms: [{glob: '*'}]\n";
        resolve(&Plan::parse(plan).unwrap(), &inventory).vms
    }

    #[test]
    fn vms_of_other_plans_are_found_by_one_look_and_told_by_plan() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let vms = planned();
        let vm = |id: &str| vms.iter().find(|vm| vm.vm.id == id).unwrap().clone();
        for (plan, ids) in [("a", vec!["1", "2"]), ("b", vec!["2", "3"]), ("own", vec!["1"])] {
            store.begin_plan(plan, "", folder.path()).unwrap();
            for id in ids {
                store.enter_vm(plan, id, id, &serde_json::to_string(&vm(id)).unwrap()).unwrap();
            }
        }
        store.enter_phase("a", "1", "copy").unwrap();
        store.end_vm("a", "2", VmState::Done, None).unwrap();
        store.end_vm("b", "2", VmState::NotCleanedUp, None).unwrap();
        let found = in_other_plans(&store, "own", &vms, &[]).unwrap();
        let told: Vec<(&str, &[String], &[String])> =
            found.iter().map(|it| (it.plan.as_str(), &it.on_their_way[..], &it.arrived[..])).collect();
        let names = |name: &str| vec![name.to_string()];
        assert_eq!(
            told,
            [("a", &names("new-1")[..], &names("new-2")[..]), ("b", &[][..], &names("new-2")[..])]
        );
        let ids = store.all_in_other_plans("own", &["1", "2", "3", "4"]).unwrap();
        assert_eq!(
            ids.iter().map(|(plan, vm)| format!("{plan}{}", vm.id)).collect::<Vec<_>>(),
            ["a1", "a2", "b2", "b3"]
        );
        // One that this plan has begun is its own affair.
        let own = Begun { planned: vm("1"), has_arrived: false, keeps_disks: true };
        assert!(in_other_plans(&store, "own", &vms, &[own]).unwrap()[0].on_their_way.is_empty());
    }

    #[test]
    fn what_befell_a_vm_since_it_was_given_up_does_not_matter_until_its_plan_begins_anew() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        store.begin_plan("p", "", folder.path()).unwrap();
        for vm in planned() {
            store.enter_vm("p", &vm.vm.id, &vm.target_name, &serde_json::to_string(&vm).unwrap()).unwrap();
        }
        // Of 2 it was ordered and is not undone.
        store.ask_give_up("p", &["1", "2"]).unwrap();
        store.end_vm("p", "1", VmState::Cancelled, None).unwrap();
        let told = |others: Others| -> Vec<(String, bool)> {
            let begun = begun(&store, "p", others).unwrap();
            begun.into_iter().map(|it| (it.planned.vm.id, it.has_arrived)).collect()
        };
        let of = |id: &str, is_over: bool| (id.to_string(), is_over);
        assert_eq!(told(Others::LeftOut), [of("1", true), of("2", false), of("3", false), of("4", false)]);
        assert_eq!(told(Others::Selected), [of("1", true)], "the others have not begun");
        assert_eq!(left_alone(&store, "p").unwrap(), HashSet::from(["1".to_string()]));
        store.end_plan("p", PlanState::Cancelled).unwrap();
        assert!(told(Others::LeftOut).iter().all(|(_, is_over)| !is_over));
        assert!(left_alone(&store, "p").unwrap().is_empty());
    }
}
