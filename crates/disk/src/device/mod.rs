//! Block devices of this host before they are overwritten: who uses them, what they hold, and by what
//! they are known again after a reboot.
//!
//! ```text
//! usage      mounts, swap, holders (LVM, RAID, device-mapper), by /proc and /sys
//! identity   what tells one device from another, by /sys
//! signature  what the first and last bytes say of the content; pure
//! content    what is read for that from a device
//! behind     what a device has behind the disk that is written to it
//! ```

mod behind;
mod content;
mod identity;
mod signature;
mod usage;

pub use behind::zero_behind;
pub use content::{content_on, signatures_on};
pub use identity::{DeviceNumber, device_identity, whole_disk_of};
pub use signature::{HEAD_BYTES, Signature, TAIL_BYTES, signatures};
pub use usage::{Usage, device_usage};

use std::path::{Path, PathBuf};

/// The folder of a device in sysfs, below `root` (the real one is `/`).
fn sysfs(root: &Path, device: DeviceNumber) -> PathBuf {
    root.join("sys/dev/block").join(device.to_string())
}

/// A short file's text without its line end; `None` if it is not there or empty.
fn text(path: PathBuf) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim_matches(['\n', ' ', '\0']);
    (!text.is_empty()).then(|| text.to_string())
}

/// The partitions of a device.
fn partitions(root: &Path, device: DeviceNumber) -> Vec<DeviceNumber> {
    let Ok(entries) = std::fs::read_dir(sysfs(root, device)) else { return Vec::new() };
    let folders = entries.flatten().map(|entry| entry.path()).filter(|path| path.join("partition").exists());
    folders.filter_map(|folder| text(folder.join("dev"))?.parse().ok()).collect()
}
