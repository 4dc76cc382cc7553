//! Which Migration has a VM: an object of the cluster, the same for all namespaces, that the API server makes only once by its name.
//!
//! A worker makes it before it touches source or target. It stays with a VM that has arrived, also when the Migration is gone, and goes
//! when what was begun is undone.

use std::collections::BTreeSet;

use drover_types::inventory::Inventory;
use serde_json::{Value, json};

use crate::API;
use crate::begun::Begun;
use crate::model::{MigrationSpec, Named, Size, VmId};

/// The reason of a condition: another Migration has the VM.
pub const MOVED_ELSEWHERE: &str = "MovedElsewhere";
/// The reason of a condition: locks are not served, or may not be read or removed.
pub const REFUSED: &str = "VmLockRefused";

/// Where locks are, or the one of that name.
pub fn path(name: &str) -> String {
    let all = format!("/apis/{API}/vmlocks");
    if name.is_empty() { all } else { format!("{all}/{name}") }
}

/// The name of a VM's lock, from what tells it from all others.
pub fn name(spec: &MigrationSpec) -> String {
    name_of(&spec.source.instance_uuid, &spec.vm.instance_uuid)
}

/// The name of the lock of a VM of a source, by their instance UUIDs.
pub fn name_of(source: &str, vm: &str) -> String {
    format!("vm-{}-{}", vm.to_lowercase(), source.to_lowercase())
}

/// VMs of a source that other namespaces have locks of, for a plan of this one: they bear drover's snapshots, or have arrived.
pub fn elsewhere(locks: &[Value], namespace: &str, inventory: &Inventory) -> Vec<Begun> {
    let others = locks.iter().filter(|lock| lock["spec"]["migration"]["namespace"] != namespace);
    let names: BTreeSet<&str> = others.filter_map(|lock| lock["metadata"]["name"].as_str()).collect();
    let source = &inventory.about.instance_uuid;
    let vms = inventory.vms.iter().filter(|vm| names.contains(name_of(source, &vm.instance_uuid).as_str()));
    let begun = vms.map(|vm| Begun {
        source: source.clone(),
        vm: VmId { instance_uuid: vm.instance_uuid.clone(), id: vm.id.clone(), name: vm.name.clone() },
        size: Size::default(),
        is_own: false,
    });
    begun.collect()
}

/// The lock of a Migration.
pub fn lock(spec: &MigrationSpec, me: &Named, namespace: &str) -> Value {
    json!({
        "apiVersion": API, "kind": "VmLock", "metadata": {"name": name(spec)},
        "spec": {
            "migration": {"namespace": namespace, "name": me.name, "uid": me.uid}, "vm": spec.vm.name,
        },
    })
}

/// A lock, as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LockSeen {
    /// Nobody asked.
    #[default]
    NotAsked,
    /// Nobody has the VM.
    Free,
    /// This Migration has it; the lock's UID.
    Mine(String),
    /// Another has it, in words for people.
    Others(String),
    /// The cluster has no such objects, so nobody has one; in words for people.
    NotServed(String),
    /// It may not be read, or not be removed; in words for people.
    Denied(String),
}

/// What a lock that was read says to a Migration.
pub fn seen(found: Option<&Value>, me: &Named, namespace: &str) -> LockSeen {
    let Some(found) = found else { return LockSeen::Free };
    let (metadata, migration) = (&found["metadata"], &found["spec"]["migration"]);
    if migration["uid"] == me.uid.as_str() {
        return LockSeen::Mine(metadata["uid"].as_str().unwrap_or_default().to_string());
    }
    let text = |value: &Value| value.as_str().unwrap_or("?").to_string();
    let holder = format!("{}/{}", text(&migration["namespace"]), text(&migration["name"]));
    let name = text(&metadata["name"]);
    // Names are given once at a time.
    if migration["namespace"] == namespace && migration["name"] == me.name.as_str() {
        return LockSeen::Others(format!(
            "moved before: an earlier Migration {holder}, which is gone, has moved this VM, or was let go with what it began (VmLock {name}); \
             docs/how-to/operator.md, \"One VM, one Migration\", says when it may be moved again"
        ));
    }
    // No word of how it is removed: while its holder works, that would let two move the VM.
    LockSeen::Others(format!(
        "moved elsewhere: Migration {holder} moves this VM, or has moved it (VmLock {name}); to move it from here, cancel that one first"
    ))
}

#[cfg(test)]
mod tests {
    use drover_types::inventory::{About, Vm};

    use super::*;
    use crate::model::SourceId;

    fn spec(source: &str, vm: &str) -> MigrationSpec {
        MigrationSpec {
            source: SourceId { instance_uuid: source.into() },
            vm: VmId { instance_uuid: vm.into(), id: "vm-1".into(), name: "web01".into() },
            ..MigrationSpec::default()
        }
    }

    #[test]
    fn a_vm_has_one_name_in_all_namespaces_and_no_other_vm_has_it() {
        assert_eq!(name(&spec("ABCD-1", "5030A0E6")), name(&spec("abcd-1", "5030a0e6")));
        // Migrations are called by eight characters of the vCenter's; locks by all of them.
        let (one, other) = (spec("0a1b2c3d-1", "v"), spec("0a1b2c3d-2", "v"));
        assert_ne!(name(&one), name(&other));
        assert_ne!(name(&one), name(&spec("0a1b2c3d-1", "w")));
    }

    #[test]
    fn a_lock_is_its_makers_alone() {
        let me = Named { name: "vm-v-s".into(), uid: "m1".into() };
        let mut made = lock(&spec("s", "v"), &me, "vms");
        made["metadata"]["uid"] = json!("l1");
        assert_eq!(seen(Some(&made), &me, "vms"), LockSeen::Mine("l1".into()));
        assert_eq!(seen(None, &me, "vms"), LockSeen::Free);
        let other = Named { uid: "m2".into(), ..me.clone() };
        let LockSeen::Others(why) = seen(Some(&made), &other, "elsewhere") else { panic!() };
        assert!(why.contains("vms/vm-v-s") && why.contains("VmLock vm-v-s"), "{why}");
        assert!(why.contains("cancel that one first"), "{why}");
        assert!(!why.contains("delete") && !why.contains("remove"), "its holder may be at work: {why}");
        // One that nobody can read is not free.
        assert!(matches!(seen(Some(&json!({"metadata": {}})), &me, "vms"), LockSeen::Others(_)));
    }

    #[test]
    fn a_migration_made_anew_is_not_told_to_cancel_itself() {
        let me = Named { name: "vm-v-s".into(), uid: "m1".into() };
        let made = lock(&spec("s", "v"), &me, "vms");
        let anew = Named { uid: "m2".into(), ..me };
        let LockSeen::Others(why) = seen(Some(&made), &anew, "vms") else { panic!() };
        assert!(
            !why.contains("cancel") && why.contains("an earlier Migration vms/vm-v-s, which is gone"),
            "{why}"
        );
        assert!(why.contains("VmLock vm-v-s"), "{why}");
    }

    #[test]
    fn vms_that_other_namespaces_have_are_known_by_their_locks() {
        let lock_of = |vm: &str, namespace: &str| {
            lock(&spec("S", vm), &Named { name: "m".into(), uid: "u".into() }, namespace)
        };
        let vm = |uuid: &str| Vm { instance_uuid: uuid.into(), id: format!("vm-{uuid}"), ..Vm::default() };
        let inventory = Inventory {
            about: About { instance_uuid: "s".into(), ..About::default() },
            vms: vec![vm("A"), vm("b"), vm("c")],
            ..Inventory::default()
        };
        let locks = [lock_of("a", "other"), lock_of("b", "vms"), lock_of("gone", "other")];
        let found = elsewhere(&locks, "vms", &inventory);
        let names: Vec<&str> = found.iter().map(|it| it.vm.id.as_str()).collect();
        assert_eq!(names, ["vm-A"]);
        assert!(!found[0].is_own && found[0].source == "s");
    }
}
