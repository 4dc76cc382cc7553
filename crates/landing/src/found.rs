//! What systems looks into VMs found, kept in the state folder: they count before guest ids, which name what was installed once.
//!
//! ```text
//! STATE/found/INSTANCE UUID   {"windows":{"build":17763,"is_server":true}} or "linux"
//! ```

use std::io;
use std::path::{Path, PathBuf};

use drover_plan::{NO_NETWORK_DRIVER, PlannedVm};
use drover_types::guest::FoundSystem;
use drover_types::inventory::Vm;

fn file_of(state: &Path, vm: &Vm) -> Option<PathBuf> {
    let uuid = &vm.instance_uuid;
    let is_plain = uuid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    (is_plain && (1..=UUID_CHARS_MAX).contains(&uuid.len())).then(|| folder(state).join(uuid))
}

fn folder(state: &Path) -> PathBuf {
    state.join("found")
}

/// Keeps what a VM was found to be, or that nothing is known of it.
pub(crate) fn keep(state: &Path, vm: &PlannedVm) -> io::Result<()> {
    let Some(file) = file_of(state, &vm.vm) else { return Ok(()) };
    match vm.found {
        Some(found) => {
            std::fs::create_dir_all(folder(state))?;
            std::fs::write(file, serde_json::to_vec(&found)?)
        }
        None => match std::fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        },
    }
}

/// Has VMs be known for what they were found to be. What cannot be read was never found.
pub fn recall(state: &Path, vms: &mut [PlannedVm]) {
    if !folder(state).is_dir() {
        return;
    }
    for vm in vms {
        let kept = file_of(state, &vm.vm).and_then(|file| std::fs::read(file).ok());
        vm.found = kept.and_then(|kept| serde_json::from_slice::<FoundSystem>(&kept).ok());
        if let Some(FoundSystem::Linux | FoundSystem::Windows { has_netkvm: true, .. }) = vm.found {
            vm.concerns.retain(|it| it.id != NO_NETWORK_DRIVER);
        }
    }
}

/// A UUID has 36.
const UUID_CHARS_MAX: usize = 64;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::conversion::tests::planned;

    #[test]
    fn what_was_found_is_known_until_a_look_finds_nothing() {
        let state = tempfile::tempdir().unwrap();
        let recalled = |uuid: &str| {
            let mut vms = [planned("otherGuest64")];
            vms[0].vm.instance_uuid = uuid.into();
            recall(state.path(), &mut vms);
            vms[0].found
        };
        let keep = |uuid: &str, found| {
            let mut vm = planned("otherGuest64");
            (vm.vm.instance_uuid, vm.found) = (uuid.into(), found);
            super::keep(state.path(), &vm).unwrap();
        };
        let uuid = "50112233-4455-6677-8899-aabbccddeeff";
        assert_eq!(recalled(uuid), None);
        let windows = Some(FoundSystem::Windows { build: Some(17_763), is_server: true, has_netkvm: true });
        keep(uuid, windows);
        assert_eq!((recalled(uuid), recalled("another")), (windows, None));
        keep(uuid, Some(FoundSystem::Linux));
        assert_eq!(recalled(uuid), Some(FoundSystem::Linux));
        keep(uuid, None);
        assert_eq!(recalled(uuid), None);
        keep("../../outside", windows);
        assert_eq!(recalled("../../outside"), None);
        std::fs::write(state.path().join("found").join(uuid), "torn").unwrap();
        assert_eq!(recalled(uuid), None);
    }
}
