//! A plan that was laid over its source: Migrations to make, and those to change.

use std::collections::BTreeMap;

use crate::decide::PlanStanding;
use crate::model::{MigrationSpec, Pinned};
use crate::objects::migration_name;

/// A Migration that is there.
#[derive(Clone, Debug)]
pub struct Existing {
    /// Its spec.
    pub spec: MigrationSpec,
    /// Whether a worker began to touch source or target, or it was given up.
    pub has_begun: bool,
}

/// What a plan comes to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layout {
    /// Migrations that are to be made, by name.
    pub make: Vec<(String, MigrationSpec)>,
    /// Those whose specs change.
    pub change: Vec<(String, MigrationSpec)>,
    /// VMs that do not move by this plan, and why.
    pub refused: Vec<(String, String)>,
}

/// A plan, and what it was laid over: all that Migrations are decided by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Laid {
    /// As it is now.
    pub plan: Pinned,
    /// Whether nothing of it is to begin any more.
    pub is_over: bool,
    /// The generation whose Migrations are all there.
    pub resolved: i64,
    /// The provider that this was laid over.
    pub over: Option<Pinned>,
    /// The provider, as it is now.
    pub provider: Option<Pinned>,
}

/// How a plan stands to a Migration. One that it has no more is known by what it was laid over.
pub fn standing(spec: &MigrationSpec, laid: Option<&Laid>) -> PlanStanding {
    let name = &spec.plan_ref.name;
    let Some(laid) = laid.filter(|laid| laid.plan.uid == spec.plan_ref.uid) else {
        return PlanStanding::LeftOut;
    };
    if laid.is_over || laid.resolved != laid.plan.generation {
        return PlanStanding::Unknown(format!("the Plan {name} is not laid over its source as it is now"));
    }
    if laid.over.is_none() || laid.over != laid.provider {
        return PlanStanding::Unknown(format!("the Plan {name} is not laid over its Provider as it is now"));
    }
    if spec.plan_ref.generation > laid.resolved {
        return PlanStanding::Unknown(format!("the Plan {name} is being laid over its source"));
    }
    match spec.plan_ref.generation == laid.resolved && laid.over.as_ref() == Some(&spec.provider) {
        true => PlanStanding::Has,
        false => PlanStanding::LeftOut,
    }
}

/// Lays out a plan. What was begun stays as it was begun, whatever the plan says now. What was not begun and is not wanted any more
/// stays as it was laid out, by which it is known.
pub fn lay_out(plan: &Pinned, wanted: Vec<MigrationSpec>, existing: &BTreeMap<String, Existing>) -> Layout {
    let mut layout = Layout::default();
    let begun = existing.values().filter(|it| it.has_begun);
    let targets: BTreeMap<String, String> =
        begun.map(|it| (it.spec.target_name.clone(), it.spec.vm.name.clone())).collect();
    for spec in wanted {
        let vm = spec.vm.name.clone();
        if spec.vm.instance_uuid.is_empty() || spec.source.instance_uuid.is_empty() {
            layout.refused.push((vm, "the source tells no instance UUID of it".into()));
            continue;
        }
        let name = migration_name(&spec.source.instance_uuid, &spec.vm.instance_uuid);
        match existing.get(&name) {
            Some(it) if it.spec.plan_ref.uid != plan.uid => {
                let why = format!("Migration {name} of Plan {} is about it", it.spec.plan_ref.name);
                layout.refused.push((vm, why));
            }
            Some(it) if it.has_begun => {}
            Some(it) => {
                let size = spec.size.settled(&it.spec.size);
                let spec = MigrationSpec { cancel: it.spec.cancel, size, ..spec };
                if spec != it.spec {
                    layout.change.push((name, spec));
                }
            }
            None => match targets.get(&spec.target_name) {
                Some(other) => {
                    let why =
                        format!("{other}, which has begun, is called {} at the target", spec.target_name);
                    layout.refused.push((vm, why));
                }
                None => layout.make.push((name, spec)),
            },
        }
    }
    layout
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DiskSize, Size, SourceId, VmId};

    fn pinned(uid: &str, generation: i64) -> Pinned {
        Pinned { name: format!("of {uid}"), uid: uid.into(), generation }
    }

    fn spec(uuid: &str, name: &str, plan: &Pinned) -> MigrationSpec {
        MigrationSpec {
            plan_ref: plan.clone(),
            provider: pinned("vc", 1),
            source: SourceId { instance_uuid: "source-1".into() },
            vm: VmId { instance_uuid: uuid.into(), id: "vm-1".into(), name: name.into() },
            target_name: name.into(),
            ..MigrationSpec::default()
        }
    }

    fn there(spec: MigrationSpec, has_begun: bool) -> (String, Existing) {
        let name = migration_name(&spec.source.instance_uuid, &spec.vm.instance_uuid);
        (name, Existing { spec, has_begun })
    }

    #[test]
    fn what_drifts_at_the_source_changes_no_migration() {
        let plan = pinned("p", 1);
        let disk = |data| DiskSize { bytes: 40, datastore: "ds".into(), data };
        let of = |size: Size| MigrationSpec { size, ..spec("vm-1", "web01", &plan) };
        let was =
            Size { disks: vec![disk(Some(7))], verified_bytes: Some(7), runs: Some(true), ..Size::default() };
        let existing = BTreeMap::from([there(of(was.clone()), false)]);
        let now =
            Size { disks: vec![disk(Some(9))], verified_bytes: Some(9), runs: Some(false), ..was.clone() };
        assert_eq!(lay_out(&plan, vec![of(now.clone())], &existing), Layout::default());
        // With anything else all of it is as it is now.
        let grown = Size { priority: 3, ..now };
        let layout = lay_out(&plan, vec![of(grown.clone())], &existing);
        assert_eq!(layout.change.iter().map(|(_, spec)| &spec.size).collect::<Vec<_>>(), [&grown]);
    }

    #[test]
    fn one_vm_never_gets_two() {
        let (first, second) = (pinned("p1", 1), pinned("p2", 1));
        let existing = [there(spec("a", "web01", &first), true)].into();
        // Renamed at the source, called otherwise at the target, by another plan.
        let renamed = MigrationSpec { target_name: "other".into(), ..spec("a", "web02", &first) };
        let same = lay_out(&pinned("p1", 2), vec![renamed.clone()], &existing);
        assert_eq!(same, Layout::default());
        let of_second = MigrationSpec { plan_ref: second.clone(), ..renamed };
        let other = lay_out(&second, vec![of_second], &existing);
        assert!(other.make.is_empty() && other.change.is_empty());
        assert!(other.refused[0].1.contains("of Plan of p1 is about it"), "{:?}", other.refused);
    }

    #[test]
    fn what_has_not_begun_follows_the_plan_and_what_has_does_not() {
        let old = pinned("p", 1);
        let existing = [
            there(spec("a", "a", &old), false),
            there(spec("b", "b", &old), true),
            there(MigrationSpec { cancel: true, ..spec("c", "c", &old) }, false),
            there(spec("d", "d", &old), false),
        ]
        .into();
        let new = pinned("p", 2);
        let wanted = ["a", "b", "c", "e"].map(|it| spec(it, it, &new)).to_vec();
        let layout = lay_out(&new, wanted, &existing);
        let names = |list: &[(String, MigrationSpec)]| {
            list.iter().map(|(_, spec)| spec.vm.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&layout.change), ["a", "c"], "d is left out by its old generation");
        assert!(layout.change[1].1.cancel, "an edit does not take a cancel back");
        assert_eq!(names(&layout.make), ["e"]);
    }

    #[test]
    fn a_vm_that_was_left_out_is_known_by_plan_and_provider() {
        let laid = |resolved, over: i64, provider: i64| Laid {
            plan: pinned("p", 2),
            is_over: false,
            resolved,
            over: Some(pinned("vc", over)),
            provider: Some(pinned("vc", provider)),
        };
        let spec = |plan, provider| MigrationSpec {
            provider: pinned("vc", provider),
            ..spec("a", "a", &pinned("p", plan))
        };
        let of = |spec: &MigrationSpec, laid: &Laid| standing(spec, Some(laid));
        assert_eq!(of(&spec(2, 1), &laid(2, 1, 1)), PlanStanding::Has);
        assert_eq!(of(&spec(1, 1), &laid(2, 1, 1)), PlanStanding::LeftOut);
        assert_eq!(
            of(&spec(2, 1), &laid(2, 2, 2)),
            PlanStanding::LeftOut,
            "the new vCenter does not have it"
        );
        let again =
            Laid { over: Some(pinned("vc-b", 1)), provider: Some(pinned("vc-b", 1)), ..laid(2, 1, 1) };
        assert_eq!(of(&spec(2, 1), &again), PlanStanding::LeftOut, "a Provider that was made again");
        for laid in [
            laid(1, 1, 1),
            laid(2, 1, 2),
            Laid { over: None, ..laid(2, 1, 1) },
            Laid { provider: None, ..laid(2, 1, 1) },
            Laid { is_over: true, ..laid(2, 1, 1) },
        ] {
            assert!(matches!(of(&spec(2, 1), &laid), PlanStanding::Unknown(_)), "{laid:?}");
        }
        assert!(matches!(of(&spec(3, 1), &laid(2, 1, 1)), PlanStanding::Unknown(_)));
        assert_eq!(standing(&spec(2, 1), None), PlanStanding::LeftOut);
        let another = Laid { plan: pinned("p-made-again", 2), ..laid(2, 1, 1) };
        assert_eq!(of(&spec(2, 1), &another), PlanStanding::LeftOut);
    }

    #[test]
    fn what_has_not_begun_follows_a_provider_that_was_made_again() {
        let plan = pinned("p", 1);
        let existing = [there(spec("a", "a", &plan), false), there(spec("b", "b", &plan), true)].into();
        let over = |it: &str| MigrationSpec { provider: pinned("vc-b", 1), ..spec(it, it, &plan) };
        let layout = lay_out(&plan, vec![over("a"), over("b")], &existing);
        assert_eq!(layout.change.len(), 1);
        assert_eq!(layout.change[0].1.provider.uid, "vc-b");
    }

    #[test]
    fn vms_that_nobody_can_tell_apart_are_refused() {
        let plan = pinned("p", 1);
        let layout = lay_out(&plan, vec![spec("", "x", &plan)], &BTreeMap::new());
        assert!(layout.make.is_empty() && layout.refused.len() == 1);
    }
}
