//! VMs that were begun, when a plan is laid over its source again: they hold drover's snapshots, are off, or are gone by now. Their
//! workers see to that, and no plan is refused because of it.

use drover_types::inventory::{DiskMode, Inventory, PowerState, Vm, VmDisk};

use crate::model::{Size, VmId};

/// A VM whose Migration has begun.
#[derive(Clone, Debug)]
pub struct Begun {
    /// The instance UUID of its source.
    pub source: String,
    /// Which VM.
    pub vm: VmId,
    /// What it had then.
    pub size: Size,
    /// Whether it is of the plan that is laid out.
    pub is_own: bool,
}

/// Makes of VMs that were begun such that no plan finds fault with. Those of the plan itself stay under the names that they had, also
/// where the source has them no more: selections that name them are right.
pub fn settle(inventory: &mut Inventory, begun: &[Begun]) {
    let source = inventory.about.instance_uuid.clone();
    for it in begun.iter().filter(|it| it.source == source) {
        let is_it = |vm: &Vm| vm.instance_uuid.eq_ignore_ascii_case(&it.vm.instance_uuid);
        match inventory.vms.iter().position(is_it) {
            Some(place) => soothe(&mut inventory.vms[place], it),
            None if it.is_own && inventory.vms.iter().all(|vm| vm.id != it.vm.id) => {
                let mut vm = Vm {
                    id: it.vm.id.clone(),
                    instance_uuid: it.vm.instance_uuid.clone(),
                    host_id: it.size.host.clone(),
                    ..Vm::default()
                };
                soothe(&mut vm, it);
                inventory.vms.push(vm);
            }
            None => {}
        }
    }
}

fn soothe(vm: &mut Vm, begun: &Begun) {
    if begun.is_own {
        vm.name.clone_from(&begun.vm.name);
    }
    vm.power = PowerState::Off;
    vm.snapshots.clear();
    vm.nics.clear();
    vm.passthrough.clear();
    (vm.consolidation_needed, vm.encrypted) = (false, false);
    (vm.change_tracking, vm.change_tracking_supported) = (true, true);
    if vm.disks.is_empty() {
        let disk = |(key, size): (i32, &crate::model::DiskSize)| VmDisk {
            key,
            label: format!("Hard disk {}", key + 1),
            capacity_bytes: size.bytes,
            datastore: size.datastore.clone(),
            ..VmDisk::default()
        };
        vm.disks = (0..).zip(&begun.size.disks).map(disk).collect();
    }
    for disk in &mut vm.disks {
        (disk.has_parent, disk.shared, disk.encrypted) = (false, false, false);
        (disk.mode, disk.rdm) = (DiskMode::Persistent, None);
    }
}

#[cfg(test)]
mod tests {
    use drover_types::inventory::{About, Snapshot};

    use super::*;
    use crate::model::DiskSize;

    fn begun(uuid: &str, name: &str, is_own: bool) -> Begun {
        let disks = vec![DiskSize { bytes: 1 << 20, datastore: "ds".into(), data: None }];
        Begun {
            source: "s".into(),
            vm: VmId { instance_uuid: uuid.into(), id: format!("vm-{uuid}"), name: name.into() },
            size: Size { host: "host-1".into(), disks, ..Size::default() },
            is_own,
        }
    }

    fn inventory() -> Inventory {
        let vm = |uuid: &str, name: &str| Vm {
            id: format!("vm-{uuid}"),
            instance_uuid: uuid.into(),
            name: name.into(),
            snapshots: vec![Snapshot::default()],
            disks: vec![VmDisk { key: 2000, has_parent: true, capacity_bytes: 1 << 20, ..VmDisk::default() }],
            ..Vm::default()
        };
        Inventory {
            about: About { instance_uuid: "s".into(), ..About::default() },
            vms: vec![vm("A", "renamed"), vm("b", "b"), vm("c", "c")],
            ..Inventory::default()
        }
    }

    #[test]
    fn what_was_begun_is_no_fault_and_all_else_is() {
        let mut inventory = inventory();
        settle(&mut inventory, &[begun("a", "a", true), begun("b", "then", false)]);
        let [a, b, c] = inventory.vms.as_slice() else { panic!() };
        for vm in [a, b] {
            assert!(vm.snapshots.is_empty() && !vm.disks[0].has_parent && vm.power == PowerState::Off);
        }
        assert_eq!((a.name.as_str(), b.name.as_str(), a.disks[0].key), ("a", "b", 2000));
        assert!(c.snapshots.len() == 1 && c.disks[0].has_parent, "nobody else's snapshot is hidden");
    }

    #[test]
    fn one_that_is_gone_is_still_the_plans_own() {
        let mut inventory = inventory();
        let mut elsewhere = begun("d", "d", true);
        elsewhere.source = "another".into();
        settle(&mut inventory, &[begun("gone", "web09", true), begun("gone-too", "x", false), elsewhere]);
        let gone = &inventory.vms[3..];
        assert_eq!(gone.len(), 1);
        assert_eq!(
            (gone[0].name.as_str(), gone[0].disks.len(), gone[0].id.as_str()),
            ("web09", 1, "vm-gone")
        );
        // Its id is another's by now.
        let mut taken = begun("new", "y", true);
        taken.vm.id = "vm-c".into();
        settle(&mut inventory, &[taken]);
        assert_eq!(inventory.vms.len(), 4);
    }
}
