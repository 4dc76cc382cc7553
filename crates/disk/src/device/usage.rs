use std::fmt;
use std::path::{Path, PathBuf};

use super::{DeviceNumber, partitions, sysfs, text};

/// Somebody who uses a device, or a partition of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Mounted there.
    Mounted {
        /// Kernel's name of the device or partition.
        device: String,
        /// Where.
        at: String,
    },
    /// Used as swap.
    Swap {
        /// Kernel's name of the device or partition.
        device: String,
    },
    /// Part of another device: a volume, an array, an encrypted disk.
    Held {
        /// Kernel's name of the device or partition.
        device: String,
        /// The kernel's name of what holds it.
        by: String,
        /// What that is called by people, if it has such a name.
        name: Option<String>,
    },
    /// The kernel lets nobody write to it.
    ReadOnly {
        /// Kernel's name of the device.
        device: String,
    },
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Usage::Mounted { device, at } => write!(f, "{device} is mounted at {at}"),
            Usage::Swap { device } => write!(f, "{device} is used as swap"),
            Usage::Held { device, by, name: None } => write!(f, "{device} is held by {by}"),
            Usage::Held { device, by, name: Some(name) } => write!(f, "{device} is held by {by} ({name})"),
            Usage::ReadOnly { device } => write!(f, "{device} is read-only"),
        }
    }
}

/// Who uses a device or one of its partitions. What cannot be read counts as unused: the kernel's own
/// exclusive open comes after and refuses what it knows of.
///
/// `root` is `/`, but in tests.
pub fn device_usage(root: &Path, device: DeviceNumber) -> Vec<Usage> {
    let mounts = std::fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
    let swaps = std::fs::read_to_string(root.join("proc/swaps")).unwrap_or_default();
    let mut found = Vec::new();
    for device in std::iter::once(device).chain(partitions(root, device)) {
        let folder = sysfs(root, device);
        let name = device_name(&folder, device);
        found.extend(mounts_of(&mounts, device, &name));
        if swaps.lines().skip(1).any(|line| line.split_whitespace().next() == Some(name.as_str())) {
            found.push(Usage::Swap { device: name.clone() });
        }
        found.extend(holders(root, folder.join("holders"), &name));
    }
    let folder = sysfs(root, device);
    if text(folder.join("ro")).as_deref() == Some("1") {
        found.push(Usage::ReadOnly { device: device_name(&folder, device) });
    }
    found
}

fn device_name(folder: &Path, device: DeviceNumber) -> String {
    let name = text(folder.join("uevent")).and_then(|lines| {
        lines.lines().find_map(|line| line.strip_prefix("DEVNAME=").map(|name| format!("/dev/{name}")))
    });
    name.unwrap_or_else(|| format!("device {device}"))
}

/// A line: `36 25 8:1 / /mnt rw,noatime shared:1 - ext4 /dev/sda1 rw`. Some file systems (btrfs) have
/// numbers of their own; there only the source's name tells.
fn mounts_of(mounts: &str, device: DeviceNumber, name: &str) -> Vec<Usage> {
    let number = device.to_string();
    let mut found = Vec::new();
    for line in mounts.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let source = words.iter().position(|word| *word == "-").and_then(|dash| words.get(dash + 2));
        let (Some(of), Some(at)) = (words.get(2), words.get(4)) else { continue };
        if *of == number || source.is_some_and(|source| *source == name) {
            found.push(Usage::Mounted { device: name.to_string(), at: at.replace("\\040", " ") });
        }
    }
    found
}

fn holders(root: &Path, folder: PathBuf, device: &str) -> Vec<Usage> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let held = |by: String| {
        let name = text(root.join("sys/class/block").join(&by).join("dm/name"));
        Usage::Held { device: device.to_string(), by, name }
    };
    names.into_iter().map(held).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{device_identity, whole_disk_of};

    /// A made-up `/` with a disk 8:0 (sda), its partitions 8:1 and 8:2, a volume 253:0 on 8:2, and an
    /// unused disk 8:16 (sdb).
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Root {
            let root = Root(std::env::temp_dir().join(format!("drover-sysfs-{name}-{}", std::process::id())));
            let devices = "sys/devices/block";
            for (path, number) in
                [("sda", "8:0"), ("sda/sda1", "8:1"), ("sda/sda2", "8:2"), ("dm-0", "253:0"), ("sdb", "8:16")]
            {
                let name = path.rsplit('/').next().unwrap();
                root.write(&format!("{devices}/{path}/dev"), number);
                root.write(&format!("{devices}/{path}/uevent"), &format!("MAJOR=8\nDEVNAME={name}\n"));
                root.link(&format!("sys/dev/block/{number}"), &format!("{devices}/{path}"));
                root.link(&format!("sys/class/block/{name}"), &format!("{devices}/{path}"));
            }
            root.write(&format!("{devices}/sda/sda1/partition"), "1");
            root.write(&format!("{devices}/sda/sda2/partition"), "2");
            root.write(&format!("{devices}/sda/device/wwid"), "naa.5000c500a1b2c3d4\n");
            root.write(&format!("{devices}/sda/sda2/holders/dm-0"), "");
            root.write(&format!("{devices}/dm-0/dm/name"), "vg0-root\n");
            root.write(&format!("{devices}/dm-0/dm/uuid"), "LVM-abc\n");
            root.write(&format!("{devices}/sdb/ro"), "0\n");
            root.write("proc/self/mountinfo", "22 27 0:21 / /proc rw - proc proc rw\n");
            root.write("proc/swaps", "Filename Type Size Used Priority\n");
            root
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn link(&self, path: &str, to: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::os::unix::fs::symlink(self.0.join(to), path).unwrap();
        }

        fn usage(&self, number: &str) -> Vec<String> {
            device_usage(&self.0, number.parse().unwrap()).iter().map(Usage::to_string).collect()
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_disk_whose_partition_is_used_is_used() {
        let root = Root::new("held");
        assert_eq!(root.usage("8:0"), ["/dev/sda2 is held by dm-0 (vg0-root)"]);
        assert_eq!(root.usage("8:1"), Vec::<String>::new());
        assert_eq!(root.usage("8:16"), Vec::<String>::new());
        root.write("sys/devices/block/sdb/ro", "1\n");
        assert_eq!(root.usage("8:16"), ["/dev/sdb is read-only"]);
    }

    #[test]
    fn mounts_and_swap_are_found_by_number_and_by_name() {
        let root = Root::new("mounts");
        let mounts = "36 25 8:1 / /mnt\\040a rw,noatime shared:1 - ext4 /dev/root rw\n\
                      40 25 0:44 / /data rw - btrfs /dev/sdb rw\n";
        root.write("proc/self/mountinfo", mounts);
        root.write("proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 9 0 -2\n");
        assert_eq!(root.usage("8:1"), ["/dev/sda1 is mounted at /mnt a"]);
        assert_eq!(root.usage("8:16"), ["/dev/sdb is mounted at /data"]);
        let mut all = root.usage("8:0");
        all.sort();
        assert_eq!(
            all,
            [
                "/dev/sda1 is mounted at /mnt a",
                "/dev/sda2 is held by dm-0 (vg0-root)",
                "/dev/sda2 is used as swap"
            ]
        );
    }

    #[test]
    fn a_device_is_known_by_what_it_carries_and_a_partition_by_its_disk() {
        let root = Root::new("identity");
        let identity = |number: &str| device_identity(&root.0, number.parse().unwrap());
        assert_eq!(identity("8:0"), "block device/wwid=naa.5000c500a1b2c3d4");
        assert_eq!(identity("8:2"), "block device/wwid=naa.5000c500a1b2c3d4 partition=2");
        assert_eq!(identity("253:0"), "block dm/uuid=LVM-abc");
        assert_eq!(identity("8:16"), "block number=8:16");
        assert_eq!(identity("9:9"), "block number=9:9");
        let disk = "8:0".parse().unwrap();
        assert_eq!(whole_disk_of(&root.0, "8:2".parse().unwrap()), (disk, Some(2)));
        assert_eq!(whole_disk_of(&root.0, disk), (disk, None));
    }
}
