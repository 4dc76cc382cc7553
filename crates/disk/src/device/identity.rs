use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::{sysfs, text};

/// A block device's number: the kernel's name for it until the next boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// Which driver.
    pub major: u32,
    /// Which of its devices.
    pub minor: u32,
}

impl DeviceNumber {
    /// From what `stat` gives as `st_rdev`.
    pub fn of(rdev: u64) -> Self {
        DeviceNumber { major: rustix::fs::major(rdev), minor: rustix::fs::minor(rdev) }
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for DeviceNumber {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (major, minor) = text.split_once(':').ok_or(())?;
        Ok(DeviceNumber { major: major.parse().map_err(|_| ())?, minor: minor.parse().map_err(|_| ())? })
    }
}

/// Where sysfs keeps what a device is known by, best first: names that the hardware or the volume
/// itself carries, which are the same after a reboot and in another slot.
const NAMES: [&str; 7] =
    ["dm/uuid", "md/uuid", "wwid", "device/wwid", "device/serial", "serial", "loop/backing_file"];

/// What tells a device from another, also after a reboot: its world-wide name, serial number or the
/// like, and for a partition its number. A device that carries no name is known by its number alone.
///
/// `root` is `/`, but in tests.
pub fn device_identity(root: &Path, device: DeviceNumber) -> String {
    let (disk, partition) = whole_disk_of(root, device);
    let folder = sysfs(root, disk);
    let named = NAMES.iter().find_map(|name| Some(format!("{name}={}", text(folder.join(name))?)));
    let name = named.unwrap_or_else(|| format!("number={disk}"));
    match partition {
        None => format!("block {name}"),
        Some(partition) => format!("block {name} partition={partition}"),
    }
}

/// The disk that a partition is part of, and its number there; the device itself if it is none.
pub fn whole_disk_of(root: &Path, device: DeviceNumber) -> (DeviceNumber, Option<u32>) {
    let folder = sysfs(root, device);
    let number = text(folder.join("partition")).and_then(|text| text.parse().ok());
    // The folder is a link into the tree of devices, where a partition lies in its disk's folder.
    let parent = || text(std::fs::canonicalize(&folder).ok()?.parent()?.join("dev"))?.parse().ok();
    match number.and_then(|number| Some((parent()?, number))) {
        Some((disk, number)) => (disk, Some(number)),
        None => (device, None),
    }
}
