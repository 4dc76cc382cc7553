//! The source of a world.

use super::*;

impl SourceProvider for World {
    fn vm(&self, id: &str) -> Result<Vm, ProviderError> {
        let now_ms = self.clock.now_ms();
        let told = self.call("look", id, |state| {
            state.let_go_down(now_ms);
            state.guests_write();
            self.merge(state);
            let mut told = state.vms.get(id)?.clone();
            match state.untold {
                Untold::Nothing => {}
                Untold::All => told.snapshots.clear(),
                Untold::Ids => told.snapshots.iter_mut().for_each(|it| it.id.clear()),
            }
            Some(told)
        })?;
        told.ok_or_else(|| ProviderError::new(Cause::Source, format!("{id} is not there")))
    }

    fn is_gone(&self, vm: &Vm, sources: &[String]) -> Result<bool, ProviderError> {
        if sources.iter().any(|uuid| *uuid != self.site.1) {
            let error = ProviderError::new(Cause::Source, "the plan ran with another source");
            return Err(error.advise("ask that one"));
        }
        self.call("ask whether it is gone", &vm.name, |state| {
            !state.vms.contains_key(&vm.id) && !state.hides_what_is_gone
        })
    }

    fn ask_shutdown(&self, vm: &Vm) -> Result<(), ProviderError> {
        self.shuts_down(vm)
    }

    fn wait_until_off(&self, vm: &Vm, timeout: Duration) -> Result<(), ProviderError> {
        self.goes_off(vm, timeout)
    }

    fn power_off(&self, vm: &Vm) -> Result<(), ProviderError> {
        self.call("power off", &vm.name, |state| state.vms.get_mut(&vm.id).unwrap().power = PowerState::Off)
    }

    fn power_on(&self, vm: &Vm) -> Result<(), ProviderError> {
        self.call("power on", &vm.name, |state| state.set_power(&vm.id, PowerState::On))
    }

    fn create_snapshot(&self, vm: &Vm, name: &str, description: &str) -> Result<Frozen, ProviderError> {
        self.call("create snapshot", &vm.name, |state| {
            let id = state.new_snapshot_id();
            let vm = state.vms.get_mut(&vm.id).unwrap();
            assert_eq!(vm.power, PowerState::Off, "a running VM is frozen");
            let snapshot =
                Snapshot { id, name: name.into(), description: description.into(), created_s: None };
            vm.snapshots.push(snapshot.clone());
            let name = vm.name.clone();
            let change_ids = state.change_ids(&name);
            state.advance_change_ids(&name);
            Frozen { snapshot: snapshot.id, change_ids }
        })
    }

    fn remove_snapshot(&self, vm: &Vm, snapshot: &str) -> Result<(), ProviderError> {
        self.call("remove snapshot", &vm.name, |state| {
            let vm = state.vms.get_mut(&vm.id).unwrap();
            let is_own = |it: &Snapshot| it.description.starts_with(SNAPSHOT_MARK);
            let mut found = vm.snapshots.iter().filter(|it| it.id == snapshot);
            assert!(found.all(is_own), "somebody else's snapshot is removed");
            let is_read = state.attached.iter().any(|(id, _)| *id == vm.id);
            assert!(!is_read, "a snapshot is removed while a disk of it is attached");
            vm.snapshots.retain(|it| it.id != snapshot);
            state.guests_write();
            self.merge(state);
        })
    }

    fn has_snapshot(&self, vm: &Vm, snapshot: &str) -> Result<bool, ProviderError> {
        self.call("ask for snapshot", &vm.name, |state| {
            state.vms[&vm.id].snapshots.iter().any(|it| it.id == snapshot)
        })
    }

    fn open_disk(&self, wanted: &AskedDisk<'_>) -> Result<OpenedSource, ProviderError> {
        let AskedDisk { vm, disk, snapshot, .. } = *wanted;
        let urgency = match wanted.urgency {
            Urgency::Later => "open later",
            Urgency::Down => "open down",
            Urgency::Delta => "open urgent",
        };
        self.state().calls.push((urgency, vm.vm.name.clone()));
        let name = format!("{}/{}", vm.vm.name, disk.disk.key);
        (wanted.record)(&Attachment { proxy: "proxy".into(), file: name.clone() })?;
        self.call("open source", &vm.vm.name, |state| {
            state.attached.insert((vm.vm.id.clone(), name.clone()));
            assert!(
                state.vms[&vm.vm.id].snapshots.iter().any(|it| it.id == snapshot),
                "read without a snapshot"
            );
            state.guests_write();
            let frozen = state.tracks.frozen.get(&(snapshot.to_string(), name.clone()));
            let disk = self.at_work.open(frozen.unwrap_or(&self.sources[&name]).clone(), vm);
            OpenedSource { disk, notes: Vec::new(), late: None }
        })
    }

    fn detach(&self, vm: &Vm, recorded: &[Attachment]) -> Result<Vec<String>, ProviderError> {
        self.call("detach", &vm.name, |state| {
            let is_known = |file: &String| recorded.iter().any(|it| it.file == *file);
            state.attached.retain(|(id, file)| {
                assert!(*id != vm.id || is_known(file), "{file} is attached and not recorded");
                *id != vm.id
            });
            Vec::new()
        })
    }

    fn watch_power(&self, vm: &Vm) -> Result<Option<Box<dyn PowerWatch + '_>>, ProviderError> {
        let before = self.call("watch power", &vm.name, |state| {
            assert_eq!(state.vms[&vm.id].power, PowerState::Off, "one that runs is watched");
            (!state.forgets_power).then(|| state.switched_on.get(&vm.id).copied())
        })?;
        let watch = |before| -> Box<dyn PowerWatch + '_> {
            Box::new(Watched { world: self, vm: vm.clone(), before })
        };
        Ok(before.map(watch))
    }

    fn tracking(&self) -> Option<&dyn ChangeTracking> {
        Some(self)
    }

    fn missed(&self) -> u64 {
        self.missed.load(Ordering::SeqCst)
    }
}

/// How often a VM had been switched on when the watch began.
struct Watched<'a> {
    world: &'a World,
    vm: Vm,
    before: Option<u32>,
}

impl PowerWatch for Watched<'_> {
    fn was_switched_on(&self) -> Result<bool, ProviderError> {
        self.world.call("ask power", &self.vm.name, |state| {
            state.switched_on.get(&self.vm.id).copied() != self.before
        })
    }
}
