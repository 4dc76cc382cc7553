//! A plan that was laid over its source: Migrations to make, and those to change.

use std::collections::BTreeMap;

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

/// Lays out a plan. What was begun stays as it was begun, whatever the plan says now; only the provider's generation follows, if it
/// is still the same vCenter. What was not begun and is not wanted any more keeps its generation, by which it is known.
pub fn lay_out(
    plan: &Pinned,
    provider: &Pinned,
    source: &str,
    wanted: Vec<MigrationSpec>,
    existing: &BTreeMap<String, Existing>,
) -> Layout {
    let mut layout = Layout::default();
    let mut targets: BTreeMap<String, String> = BTreeMap::new();
    for (name, it) in existing {
        let spec = &it.spec;
        let is_same = spec.plan_ref.uid == plan.uid && spec.provider.uid == provider.uid;
        let follows = is_same && spec.source.instance_uuid == source && spec.provider != *provider;
        if it.has_begun && follows {
            let spec = MigrationSpec { provider: provider.clone(), ..spec.clone() };
            layout.change.push((name.clone(), spec));
        }
        if it.has_begun {
            targets.insert(spec.target_name.clone(), spec.vm.name.clone());
        }
    }
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
                let spec = MigrationSpec { cancel: it.spec.cancel, ..spec };
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
    use crate::model::{SourceId, VmId};

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
    fn one_vm_never_gets_two() {
        let (first, second) = (pinned("p1", 1), pinned("p2", 1));
        let existing = [there(spec("a", "web01", &first), true)].into();
        // Renamed at the source, called otherwise at the target, by another plan.
        let renamed = MigrationSpec { target_name: "other".into(), ..spec("a", "web02", &first) };
        let same = lay_out(&pinned("p1", 2), &pinned("vc", 1), "source-1", vec![renamed.clone()], &existing);
        assert_eq!(same, Layout::default());
        let of_second = MigrationSpec { plan_ref: second.clone(), ..renamed };
        let other = lay_out(&second, &pinned("vc", 1), "source-1", vec![of_second], &existing);
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
        let layout = lay_out(&new, &pinned("vc", 1), "source-1", wanted, &existing);
        let names = |list: &[(String, MigrationSpec)]| {
            list.iter().map(|(_, spec)| spec.vm.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&layout.change), ["a", "c"], "d is left out by its old generation");
        assert!(layout.change[1].1.cancel, "an edit does not take a cancel back");
        assert_eq!(names(&layout.make), ["e"]);
    }

    #[test]
    fn a_provider_that_was_edited_is_followed_only_to_the_same_vcenter() {
        let plan = pinned("p", 1);
        let existing: BTreeMap<_, _> = [there(spec("a", "a", &plan), true)].into();
        let edited = pinned("vc", 2);
        let same = lay_out(&plan, &edited, "source-1", Vec::new(), &existing);
        assert_eq!(same.change[0].1.provider, edited);
        assert!(lay_out(&plan, &edited, "source-2", Vec::new(), &existing).change.is_empty());
        assert!(lay_out(&plan, &pinned("vc2", 1), "source-1", Vec::new(), &existing).change.is_empty());
    }

    #[test]
    fn vms_that_nobody_can_tell_apart_are_refused() {
        let plan = pinned("p", 1);
        let layout =
            lay_out(&plan, &pinned("vc", 1), "source-1", vec![spec("", "x", &plan)], &BTreeMap::new());
        assert!(layout.make.is_empty() && layout.refused.len() == 1);
    }
}
