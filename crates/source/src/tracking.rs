//! Changed block tracking of vSphere, as the engine asks for it.

use drover_engine::{AreasError, ChangeTracking, Frozen, ProviderError, chain};
use drover_types::ByteSpan;
use drover_types::inventory::{PowerState, Vm};
use drover_vsphere::{ChangedAreas, VsphereError, VsphereErrorKind};

use crate::vsphere::{VsphereSource, provider_error};

impl ChangeTracking for VsphereSource {
    fn enable(&self, vm: &Vm, mark: &str) -> Result<Vec<String>, ProviderError> {
        self.session.enable_change_tracking(vm, mark).map_err(provider_error)
    }

    fn disable(&self, vm: &Vm) -> Result<(), ProviderError> {
        self.session.disable_change_tracking(&vm.id).map_err(provider_error)
    }

    fn freeze(&self, vm: &Vm, name: &str, description: &str, quiesce: bool) -> Result<Frozen, ProviderError> {
        let frozen = self.session.freeze(&vm.id, name, description, quiesce);
        let (snapshot, disks) = frozen.map_err(provider_error)?;
        let change_ids = disks.into_iter().filter_map(|disk| Some((disk.key, disk.change_id?))).collect();
        Ok(Frozen { snapshot: snapshot.id, change_ids })
    }

    fn changed_areas(
        &self,
        vm: &Vm,
        snapshot: Option<&str>,
        disk: i32,
        capacity: u64,
        change_id: &str,
    ) -> Result<Vec<ByteSpan>, AreasError> {
        let is_down = vm.power == PowerState::Off;
        let query = ChangedAreas {
            vm: &vm.id,
            snapshot,
            disk_key: disk,
            capacity_bytes: capacity,
            change_id,
            is_down,
        };
        self.session.changed_areas(&query).map_err(areas_error)
    }

    fn consolidate(&self, vm: &Vm) -> Result<(), ProviderError> {
        self.session.consolidate(&vm.id).map(drop).map_err(provider_error)
    }
}

fn areas_error(error: VsphereError) -> AreasError {
    match error.kind {
        VsphereErrorKind::ChangesUnknown => AreasError::Forgotten(chain(&error)),
        _ => AreasError::Failed(provider_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unknown_changes_are_forgotten_ones() {
        let error = |kind| {
            areas_error(VsphereError { kind, op: "ask for areas".to_string(), fault: None, source: None })
        };
        assert!(
            matches!(error(VsphereErrorKind::ChangesUnknown), AreasError::Forgotten(why) if why.contains("ask for areas"))
        );
        assert!(matches!(error(VsphereErrorKind::Busy), AreasError::Failed(_)));
    }
}
