//! A source in memory that tracks changes, and guests that write all the time.

use std::collections::BTreeMap;

use drover_disk::{Disk, Features, MemDisk};
use drover_engine::{AreasError, ChangeTracking, Frozen, NoObserver, PassRow, ProviderError, VmRow, WarmRow};
use drover_types::inventory::{PowerState, Snapshot, Vm};
use drover_types::{BLOCK_BYTES, ByteSpan};

use super::{PLAN, State, World, vm};

/// What a source knows of the changes of its disks.
#[derive(Default)]
pub struct Tracks {
    disks: BTreeMap<String, Track>,
    /// Disks as snapshots froze them, by snapshot and disk.
    pub frozen: BTreeMap<(String, String), MemDisk>,
    /// Guests write whenever somebody looks at their VM.
    pub guests_write: bool,
    /// Changes that tracking will not tell of.
    pub lies: usize,
    /// Freezing asks to quiesce, and the guest cannot.
    pub cannot_quiesce: bool,
    writes: u64,
}

#[derive(Clone)]
struct Track {
    epoch: u32,
    /// Number of the state that the next snapshot freezes.
    state: u64,
    /// Blocks and the first state that has them changed.
    changes: Vec<(u64, u64)>,
}

impl World {
    /// A running VM with two disks that moves warm, with these lines more; its guest writes all the time.
    pub fn warm(lines: &str) -> World {
        let world = World::with(&[vm("on", PowerState::On, 2)], &format!("start: true\nmode: warm\n{lines}"));
        world.state().tracks.guests_write = true;
        world
    }

    /// One whose cutover comes by itself after three passes.
    pub fn warm_auto() -> World {
        World::warm("warm: {interval: 1s, cutover: auto}")
    }

    pub fn warm_row(&self) -> WarmRow {
        self.store.warm(PLAN, "vm-on").unwrap()
    }

    pub fn passes(&self) -> Vec<PassRow> {
        self.store.passes_of(PLAN, "vm-on").unwrap()
    }

    /// Runs, and expects that the VM fails.
    pub fn fails(&self) -> VmRow {
        let outcome = self.run(&NoObserver);
        assert_eq!((outcome.done, outcome.failed.len()), (0, 1));
        self.row("vm-on")
    }

    pub fn notes(&self) -> String {
        let events = self.store.events(PLAN).unwrap();
        let notes = events.iter().filter(|event| event.kind == "note");
        notes.map(|note| format!("{}\n", note.text)).collect()
    }
}

impl State {
    /// Every guest that runs writes a few bytes somewhere.
    pub fn guests_write(&mut self) {
        if !self.tracks.guests_write {
            return;
        }
        let running: Vec<Vm> = self.vms.values().filter(|vm| vm.power == PowerState::On).cloned().collect();
        for vm in running {
            for disk in &vm.disks {
                self.tracks.writes += 1;
                let number = self.tracks.writes;
                let at = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (disk.capacity_bytes - 8);
                self.guest_write(&format!("{}/{}", vm.name, disk.key), at, &number.to_le_bytes());
            }
        }
    }

    /// Takes in a write, and what tracking notes of it.
    pub fn guest_write(&mut self, disk: &str, offset: u64, bytes: &[u8]) {
        self.deltas.push((disk.to_string(), offset, bytes.to_vec()));
        let Some(track) = self.tracks.disks.get_mut(disk) else { return };
        let span = ByteSpan { offset, length: bytes.len() as u64 };
        for block in span.offset / BLOCK_BYTES..span.end().div_ceil(BLOCK_BYTES) {
            if self.tracks.lies > 0 {
                self.tracks.lies -= 1;
            } else {
                track.changes.push((block, track.state));
            }
        }
    }

    /// The states that a snapshot of a VM freezes now.
    pub fn change_ids(&self, vm: &str) -> BTreeMap<i32, String> {
        let disks = self.vms.values().filter(|it| it.name == vm).flat_map(|it| &it.disks);
        let id = |key| self.tracks.disks.get(&format!("{vm}/{key}"));
        disks
            .filter_map(|disk| id(disk.key).map(|it| (disk.key, format!("52 de {}/{}", it.epoch, it.state))))
            .collect()
    }

    /// The live disks of a VM are in another state than before, as after a snapshot.
    pub fn advance_change_ids(&mut self, vm: &str) {
        let Some(vm) = self.vms.values_mut().find(|it| it.name == vm) else { return };
        for disk in &mut vm.disks {
            if let Some(track) = self.tracks.disks.get_mut(&format!("{}/{}", vm.name, disk.key)) {
                track.state += 1;
                disk.change_id = Some(format!("52 de {}/{}", track.epoch, track.state));
            }
        }
    }

    /// Tracking of a VM begins anew: nobody knows what changed before.
    pub fn reset_tracking(&mut self, id: &str) {
        let vm = self.vms.get_mut(id).unwrap();
        for disk in &mut vm.disks {
            let name = format!("{}/{}", vm.name, disk.key);
            let epoch = self.tracks.disks.get(&name).map_or(1, |track| track.epoch + 1);
            disk.change_id = Some(format!("52 de {epoch}/1"));
            disk.change_tracking = true;
            self.tracks.disks.insert(name, Track { epoch, state: 1, changes: Vec::new() });
        }
        vm.change_tracking = true;
    }
}

impl ChangeTracking for World {
    fn enable(&self, vm: &Vm, mark: &str) -> Result<Vec<String>, ProviderError> {
        assert!(mark.starts_with(drover_engine::SNAPSHOT_MARK));
        self.call("enable", &vm.name, |state| {
            let now = &state.vms[&vm.id];
            if now.change_tracking && now.disks.iter().all(|disk| disk.change_id.is_some()) {
                return Vec::new();
            }
            state.reset_tracking(&vm.id);
            vec!["switched change tracking on".to_string()]
        })
    }

    fn disable(&self, vm: &Vm) -> Result<(), ProviderError> {
        self.call("disable", &vm.name, |state| {
            let vm = state.vms.get_mut(&vm.id).unwrap();
            vm.change_tracking = false;
            vm.disks.iter_mut().for_each(|disk| disk.change_id = None);
        })
    }

    fn freeze(&self, vm: &Vm, name: &str, description: &str, quiesce: bool) -> Result<Frozen, ProviderError> {
        let cannot = quiesce && self.state().tracks.cannot_quiesce;
        let frozen = self.call("freeze", &vm.name, |state| {
            state.guests_write();
            let id = state.new_snapshot_id();
            let snapshot = Snapshot {
                id: id.clone(),
                name: name.into(),
                description: description.into(),
                created_s: None,
            };
            state.vms.get_mut(&vm.id).unwrap().snapshots.push(snapshot);
            let change_ids = state.change_ids(&vm.name);
            for disk in &vm.disks {
                let name = format!("{}/{}", vm.name, disk.key);
                let mut content = self.sources[&name].content();
                for (_, offset, bytes) in state.deltas.iter().filter(|(of, ..)| *of == name) {
                    content[*offset as usize..][..bytes.len()].copy_from_slice(bytes);
                }
                let image = MemDisk::new(&name, content);
                let features = Features { writable: false, ..image.features() };
                state.tracks.frozen.insert((id.clone(), name.clone()), image.with_features(features));
            }
            state.advance_change_ids(&vm.name);
            state.guests_write();
            Frozen { snapshot: id, change_ids }
        })?;
        if cannot {
            return Err(ProviderError::new(drover_engine::Cause::Source, "the guest cannot be quiesced"));
        }
        Ok(frozen)
    }

    fn changed_areas(
        &self,
        vm: &Vm,
        snapshot: Option<&str>,
        disk: i32,
        capacity: u64,
        change_id: &str,
    ) -> Result<Vec<ByteSpan>, AreasError> {
        let name = format!("{}/{disk}", vm.name);
        let areas = self.call("areas", &vm.name, |state| {
            let now = &state.vms[&vm.id];
            match snapshot {
                Some(snapshot) => assert!(now.snapshots.iter().any(|it| it.id == snapshot), "of no snapshot"),
                None => assert_eq!(now.power, PowerState::Off, "asked without a snapshot"),
            }
            let track = &state.tracks.disks[&name];
            let (epoch, since) = change_id.rsplit_once('/').unwrap();
            if epoch != format!("52 de {}", track.epoch) {
                return None;
            }
            let since: u64 = since.parse().unwrap();
            let changed = track.changes.iter().filter(|(_, state)| *state > since).map(|(block, _)| *block);
            let span = |block: u64| ByteSpan {
                offset: block * BLOCK_BYTES,
                length: BLOCK_BYTES.min(capacity - block * BLOCK_BYTES),
            };
            let mut blocks: Vec<u64> = changed.collect();
            blocks.sort_unstable();
            blocks.dedup();
            Some(blocks.into_iter().map(span).collect())
        })?;
        areas.ok_or_else(|| AreasError::Forgotten("the change id is not known".into()))
    }

    fn consolidate(&self, vm: &Vm) -> Result<(), ProviderError> {
        self.call("consolidate", &vm.name, |state| {
            state.vms.get_mut(&vm.id).unwrap().consolidation_needed = false;
        })
    }
}
