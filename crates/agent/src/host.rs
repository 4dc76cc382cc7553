//! What an agent's host has of what machines need beside disks: network devices, and what earlier machines left. Only looked at.

use std::path::{Path, PathBuf};

use drover_disk::DiskErrorKind;
use serde::{Deserialize, Serialize};

use crate::error::{Refusal, printable};

/// What an agent that can be asked for it says that it takes.
pub const HOST: &str = "host";

/// Where the kernel shows its network devices.
pub const DEVICES: &str = "/sys/class/net";

/// Where libvirt's daemon of the system keeps the firmware variables of its domains, by their names. Source: libvirt's `qemu.conf`,
/// `nvram_dir`'s default.
pub const VARIABLES: &str = "/var/lib/libvirt/qemu/nvram";

/// Devices asked about at a time.
const DEVICES_MAX: usize = 256;
/// The kernel allows 15 bytes.
const DEVICE_BYTES_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 240;

/// What a name in [`DEVICES`] is the name of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Device {
    /// Nothing.
    Missing,
    /// A bridge of the kernel.
    Bridge,
    /// Another device.
    Other,
}

/// What a host has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostHas {
    /// Of the devices that were asked for, in that order.
    pub devices: Vec<Device>,
    /// Of each name that was asked for, in that order, the file with firmware variables of an earlier machine.
    pub variables: Vec<Option<String>>,
}

impl HostHas {
    /// What an agent said, if it fits what it was asked.
    pub(crate) fn checked(self, devices: usize, names: usize) -> Result<HostHas, Refusal> {
        if self.devices.len() != devices || self.variables.len() != names {
            return Err(Refusal::new(DiskErrorKind::Corrupt, "the agent answered another question"));
        }
        let variables = self.variables.into_iter().map(|file| file.map(printable)).collect();
        Ok(HostHas { variables, ..self })
    }
}

/// What the device of this name is, as a folder like [`DEVICES`] shows it.
pub fn device_in(folder: &Path, name: &str) -> Device {
    let device = folder.join(name);
    match (device.exists(), device.join("bridge").is_dir()) {
        (false, _) => Device::Missing,
        (true, true) => Device::Bridge,
        (true, false) => Device::Other,
    }
}

/// The file with firmware variables that an earlier machine of this name left in a folder like [`VARIABLES`].
pub fn variables_in(folder: &Path, name: &str) -> Option<PathBuf> {
    let files = ["fd", "qcow2"].map(|kind| folder.join(format!("{name}_VARS.{kind}")));
    files.into_iter().find(|file| file.exists())
}

/// Answers a peer.
pub(crate) fn look(devices: &[String], names: &[String]) -> Result<HostHas, Refusal> {
    let is_sound = |most: usize| {
        move |name: &String| {
            !name.is_empty()
                && name.len() <= most
                && !name.starts_with('.')
                && !name.contains(|c: char| c == '/' || c.is_control())
        }
    };
    if devices.len() > DEVICES_MAX
        || names.len() > DEVICES_MAX
        || !devices.iter().all(is_sound(DEVICE_BYTES_MAX))
        || !names.iter().all(is_sound(NAME_BYTES_MAX))
    {
        let why = format!("more than {DEVICES_MAX} names of devices or machines, or one that can be none");
        return Err(Refusal::new(DiskErrorKind::Denied, why));
    }
    let file = |name: &String| variables_in(Path::new(VARIABLES), name);
    Ok(HostHas {
        devices: devices.iter().map(|name| device_in(Path::new(DEVICES), name)).collect(),
        variables: names.iter().map(|name| file(name).map(|file| file.display().to_string())).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_what_the_kernel_shows_and_variables_are_found_by_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["br0/bridge", "eth0"] {
            std::fs::create_dir_all(folder.path().join(name)).unwrap();
        }
        let device = |name| device_in(folder.path(), name);
        assert_eq!(["br0", "eth0", "br1"].map(device), [Device::Bridge, Device::Other, Device::Missing]);
        assert_eq!(variables_in(folder.path(), "web"), None);
        std::fs::write(folder.path().join("web_VARS.qcow2"), "").unwrap();
        assert_eq!(variables_in(folder.path(), "web"), Some(folder.path().join("web_VARS.qcow2")));
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let ask = |device: &str, name: &str| look(&[device.to_string()], &[name.to_string()]);
        assert_eq!(ask("lo", "no-such-machine").unwrap().devices, [Device::Other]);
        for (device, name) in [("../lo", "a"), ("lo", "../a"), (".lo", "a"), ("lo", ""), ("l\no", "a")] {
            assert!(ask(device, name).is_err(), "{device:?} {name:?}");
        }
        assert!(look(&vec!["lo".to_string(); DEVICES_MAX + 1], &[]).is_err());
        assert!(HostHas::default().checked(1, 0).is_err(), "an answer to something else");
    }
}
