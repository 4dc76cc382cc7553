//! What a machine needs of this host to be started, or to be plugged in where the plan says: looked at before anything is
//! touched.

use std::path::{Path, PathBuf};

use drover_agent::host::{DEVICES, Device, device_in};
use drover_engine::{Cause, ProviderError};
use drover_plan::{Accelerator, NetworkTarget, PlannedVm, Target, UefiFiles};
use drover_types::inventory::Firmware;

const KVM: &str = "/dev/kvm";
const QEMU: &str = "qemu-system-x86_64";

/// Refuses what this host lacks.
pub fn check(vm: &PlannedVm, target: &Target) -> Result<(), ProviderError> {
    let mut bridges = vm.nics.iter().filter_map(|nic| match &nic.target {
        NetworkTarget::Bridge(name) => Some(name.as_str()),
        NetworkTarget::User
        | NetworkTarget::None
        | NetworkTarget::Libvirt(_)
        | NetworkTarget::Kubevirt(_) => None,
    });
    bridges.try_for_each(|name| check_bridge(Path::new(DEVICES), name))?;
    if vm.vm.firmware == Some(Firmware::Uefi) {
        target.uefi.iter().try_for_each(check_firmware)?;
    }
    if !vm.start {
        return Ok(());
    }
    if drover_child::find_program(QEMU, &[]).is_none() {
        let what = format!("{QEMU} is not installed, and the plan starts the guest");
        return Err(refused(what, "install QEMU, or leave the start to others with `start: false`"));
    }
    match target.accelerator {
        Accelerator::Kvm => check_kvm(Path::new(KVM)),
        Accelerator::Auto | Accelerator::Tcg => Ok(()),
    }
}

fn refused(what: String, advice: &str) -> ProviderError {
    ProviderError::new(Cause::Target, what).advise(advice)
}

/// Refuses a name that is no bridge.
fn check_bridge(devices: &Path, name: &str) -> Result<(), ProviderError> {
    let what = match device_in(devices, name) {
        Device::Bridge => return Ok(()),
        Device::Other => format!("network device {name} of this host is no bridge"),
        Device::Missing => format!("there is no bridge {name} on this host"),
    };
    Err(refused(what, ANOTHER_BRIDGE))
}

/// What to do where a name is no bridge.
pub(super) const ANOTHER_BRIDGE: &str =
    "make it (`ip link add NAME type bridge`), or map the network to another bridge, `user` or `none`";

fn check_firmware(files: &UefiFiles) -> Result<(), ProviderError> {
    let is_missing = |file: &&PathBuf| !file.is_file();
    match [&files.code, &files.vars].into_iter().find(is_missing) {
        None => Ok(()),
        Some(file) => {
            let what = format!("UEFI file {} is not there", file.display());
            Err(refused(what, "correct `target.uefi`, or leave it out so that the installed OVMF is taken"))
        }
    }
}

fn check_kvm(device: &Path) -> Result<(), ProviderError> {
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(device);
    opened.map(drop).map_err(|error| {
        let what = format!("{} cannot be opened, and the plan wants KVM", device.display());
        refused(what, "load the kvm module and let this user use it, or write `accelerator: auto`")
            .because(error)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_bridge_is_a_device_that_the_kernel_calls_one() {
        let devices = tempfile::tempdir().unwrap();
        for folder in ["br0/bridge", "eth0"] {
            std::fs::create_dir_all(devices.path().join(folder)).unwrap();
        }
        let check = |name| check_bridge(devices.path(), name).map_err(|error| error.to_string());
        assert_eq!(check("br0"), Ok(()));
        assert!(check("eth0").unwrap_err().contains("network device eth0 of this host is no bridge"));
        assert!(check("br1").unwrap_err().contains("there is no bridge br1 on this host"));
    }

    #[test]
    fn firmware_files_that_are_told_and_kvm_are_there_or_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("CODE.fd"), "").unwrap();
        let files = UefiFiles { code: path("CODE.fd"), vars: path("VARS.fd") };
        let error = check_firmware(&files).unwrap_err().to_string();
        assert!(error.contains("VARS.fd is not there"), "{error}");
        std::fs::write(&files.vars, "").unwrap();
        assert!(check_firmware(&files).is_ok());
        assert!(check_kvm(&path("CODE.fd")).is_ok() && check_kvm(&path("kvm")).is_err());
    }
}
