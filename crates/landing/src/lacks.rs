//! What a machine needs of this host to be plugged in and started: looked at before anything is touched, for a plan of this
//! host's own and, by its agent, for those of others.

use std::path::{Path, PathBuf};

use drover_agent::host::{DEVICES, Device, device_in};
use drover_agent::machine::{Accelerator, Attach, Firmware, Lack, Machine};
use drover_plan::{PlannedDisk, PlannedVm, Problem, UefiFiles};
use drover_qemu::Ovmf;
use drover_types::Bytes;

const KVM: &str = "/dev/kvm";
const QEMU: &str = "qemu-system-x86_64";

/// What this host lacks for a machine, whose plan may name files of UEFI.
pub fn lacks(machine: &Machine, uefi: Option<&UefiFiles>) -> Vec<Lack> {
    let mut lacks: Vec<Lack> = Vec::new();
    for nic in &machine.nics {
        if let Attach::Bridge(name) = &nic.attach {
            lacks.extend(bridge_lack(name, device_in(Path::new(DEVICES), name)));
        }
    }
    lacks.dedup();
    lacks.extend(firmware_lack(machine, uefi));
    if machine.is_started {
        if drover_child::find_program(QEMU, &[]).is_none() {
            let what = format!("{QEMU} is not installed, and the plan starts the guest");
            lacks.push(lack(what, "install QEMU, or leave the start to others with `start: false`"));
        }
        if machine.accelerator == Accelerator::Kvm {
            lacks.extend(kvm_lack(Path::new(KVM)));
        }
    }
    lacks
}

fn lack(what: String, advice: &str) -> Lack {
    Lack { what, advice: advice.to_string() }
}

/// A name that is no bridge.
pub fn bridge_lack(name: &str, found: Device) -> Option<Lack> {
    let what = match found {
        Device::Bridge => return None,
        Device::Other => format!("network device {name} is no bridge"),
        Device::Missing => format!("there is no bridge {name}"),
    };
    Some(lack(what, ANOTHER_BRIDGE))
}

/// What to do where a name is no bridge.
pub const ANOTHER_BRIDGE: &str =
    "make it (`ip link add NAME type bridge`), or map the network to another bridge, `user` or `none`";

/// Files that the plan names are to be there; where it names none, the installed ones, if the machine is to be started.
fn firmware_lack(machine: &Machine, uefi: Option<&UefiFiles>) -> Option<Lack> {
    let secure_boot = match machine.firmware {
        Firmware::Bios => return None,
        Firmware::Uefi => false,
        Firmware::SecureUefi => true,
    };
    let Some(files) = uefi else {
        let error = Ovmf::find(secure_boot).err().filter(|_| machine.is_started)?;
        let advice = error.advice().unwrap_or_default();
        return Some(lack(format!("{}, and the plan starts the guest", error.chain()), &advice));
    };
    let is_missing = |file: &&PathBuf| !file.is_file();
    let file = [&files.code, &files.vars].into_iter().find(is_missing)?;
    let what = format!("UEFI file {} is not there", file.display());
    Some(lack(what, "correct `target.uefi`, or leave it out so that the installed OVMF is taken"))
}

fn kvm_lack(device: &Path) -> Option<Lack> {
    let error = std::fs::OpenOptions::new().read(true).write(true).open(device).err()?;
    let what = format!("{} cannot be opened, and the plan wants KVM: {error}", device.display());
    Some(lack(what, "load the kvm module and let this user use it, or write `accelerator: auto`"))
}

/// A disk whose raw image is larger than a file can be in a folder that is there.
pub fn too_large(folder: &Path, vm: &PlannedVm, disk: &PlannedDisk) -> Option<Problem> {
    let bytes = disk.disk.capacity_bytes;
    // What else is wrong with the folder is told by those who look at it.
    if drover_disk::can_hold_file(folder, bytes).unwrap_or(true) {
        return None;
    }
    let text = format!(
        "{} of {} has {}, and the file system of {} holds no file as large",
        disk.disk.label,
        vm.vm.name,
        Bytes(bytes),
        folder.display()
    );
    let advice = "choose a folder on XFS, or `format: qcow2`, whose file is as large as what the disk holds";
    Some(Problem::error("target.format", text).advise(advice))
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
        let lack = |name| bridge_lack(name, device_in(devices.path(), name)).map(|lack| lack.what);
        assert_eq!(lack("br0"), None);
        assert_eq!(lack("eth0").as_deref(), Some("network device eth0 is no bridge"));
        assert_eq!(lack("br1").as_deref(), Some("there is no bridge br1"));
    }

    fn machine(firmware: &str, is_started: bool) -> Machine {
        let text = format!(
            r#"{{"name": "web", "firmware": "{firmware}", "cpus": 1, "cores_per_socket": 1, "memory_mib": 64, "local_time": false,
            "disks": [], "nics": [{{"mac": "00:50:56:aa:00:01", "attach": {{"bridge": "none-7"}}, "model": "virtio"}},
            {{"mac": "00:50:56:aa:00:02", "attach": {{"bridge": "none-7"}}, "model": "virtio"}}],
            "accelerator": "tcg", "is_started": {is_started}}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn firmware_files_that_are_told_and_kvm_are_there_or_lacking() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("CODE.fd"), "").unwrap();
        let files = UefiFiles { code: path("CODE.fd"), vars: path("VARS.fd") };
        let of = |firmware: &str| firmware_lack(&machine(firmware, false), Some(&files));
        assert_eq!(of("bios"), None, "nothing of it is used");
        assert!(of("uefi").unwrap().what.contains("VARS.fd is not there"));
        std::fs::write(&files.vars, "").unwrap();
        assert_eq!(of("secure_uefi"), None);
        assert_eq!(firmware_lack(&machine("uefi", false), None), None, "libvirt has its own");
        assert!(kvm_lack(&path("CODE.fd")).is_none());
        assert!(kvm_lack(&path("kvm")).unwrap().what.contains("the plan wants KVM"));
    }

    #[test]
    fn each_thing_that_is_lacking_is_told_once() {
        let found: Vec<String> =
            lacks(&machine("bios", false), None).into_iter().map(|lack| lack.what).collect();
        assert_eq!(found, ["there is no bridge none-7"]);
    }
}
