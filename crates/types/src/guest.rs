//! What was found inside a guest's disks without starting it.

use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What was found inside a guest's disks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inside {
    /// The system, such as `Debian GNU/Linux 12 (bookworm)`; absent if it was not found.
    pub system: Option<String>,
    /// Whether an NTFS file system was found, which is how Windows is recognised where its registry was not read.
    pub ntfs: bool,
    /// What its registry tells of a Windows; absent if none was found, or it could not be read.
    #[serde(default)]
    pub windows: Option<Windows>,
    /// NTFS file systems that Windows wants checked before they are used (`disk 0, partition 2`).
    #[serde(default)]
    pub dirty: Vec<String>,
    /// The boot loader, such as `GRUB`; absent if it was not found.
    pub boot_loader: Option<String>,
    /// What its EFI system partition holds; absent if it has none, or it could not be read.
    #[serde(default)]
    pub efi: Option<EfiPartition>,
    /// What the kernel's command line says of the root file system.
    pub root: Option<String>,
    /// The initramfs that the boot loader starts; absent if none was found.
    pub initramfs: Option<Initramfs>,
    /// Lines of `/etc/fstab` that name a disk by its path.
    pub by_path: Vec<ByPath>,
    /// Partitions that are encrypted.
    pub encrypted: Vec<Encrypted>,
    /// Disks that Windows' Logical Disk Manager has, by their number from 0.
    pub dynamic_disks: Vec<usize>,
    /// What says that tools of VMware are installed, such as `open-vm-tools`.
    pub vmware_tools: Option<String>,
    /// Services that it starts and that are of use on VMware alone, by their units (`vmtoolsd`).
    #[serde(default)]
    pub vendor_services: Vec<String>,
    /// Network settings, with what finds the card that they are for.
    pub interfaces: Vec<Interface>,
    /// Whether the kernel is told to keep names such as `eth0` (`net.ifnames=0`).
    pub keeps_old_names: bool,
    /// Free space of file systems.
    pub free: Vec<FreeSpace>,
    /// What was not looked into, and why.
    pub unseen: Vec<String>,
}

impl Inside {
    /// Whether the root file system of a Linux was read.
    pub fn saw_root(&self) -> bool {
        self.free.iter().any(|it| it.place == "/")
    }

    /// Whether it boots a Linux, also one whose root file system was not read: its kernel or its boot loader was found.
    pub fn boots_linux(&self) -> bool {
        let is_of_windows = |loader: &String| loader.to_ascii_lowercase().contains(r"\microsoft\");
        let by_loader = match (&self.efi, self.boot_loader.as_deref()) {
            (Some(efi), _) if !efi.loaders.is_empty() => !efi.loaders.iter().any(is_of_windows),
            (_, loader) => loader.is_some_and(|loader| LOADERS_OF_LINUX.contains(&loader)),
        };
        self.saw_root() || self.initramfs.is_some() || by_loader
    }

    /// The Windows that it boots, as far as that is known: none beside a Linux.
    pub fn only_windows(&self) -> Option<&Windows> {
        self.windows.as_ref().filter(|_| !self.boots_linux())
    }

    /// What it surely is, whatever its guest id says: no Linux where there may be a Windows, too, that could not be read.
    pub fn system_found(&self) -> Option<FoundSystem> {
        if let Some(windows) = self.only_windows() {
            let Windows { build, is_server, .. } = *windows;
            return Some(FoundSystem::Windows { build, is_server, has_netkvm: windows.has_netkvm() });
        }
        let may_hold_windows = self.ntfs || self.encrypted.iter().any(|it| it.kind == "BitLocker");
        ((self.saw_root() || self.initramfs.is_some()) && !may_hold_windows).then_some(FoundSystem::Linux)
    }
}

/// What system a guest boots, by what its disks hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FoundSystem {
    /// Windows.
    Windows {
        /// The number of its build, such as 17763, where that was read.
        build: Option<u32>,
        /// Whether it is a server.
        is_server: bool,
        /// Whether it is known to have the driver of virtio's network cards.
        #[serde(default)]
        has_netkvm: bool,
    },
    /// Linux.
    Linux,
}

/// As [`Inside::boot_loader`] has them.
const LOADERS_OF_LINUX: [&str; 3] = ["GRUB", "LILO", "SYSLINUX"];

/// What the registry of a Windows tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Windows {
    /// Number of its disk, from 0.
    pub disk: usize,
    /// Number of its partition, from 1; 0 for the whole disk.
    pub partition: usize,
    /// The number of its build, such as 17763.
    pub build: Option<u32>,
    /// Whether it is a server.
    pub is_server: bool,
    /// What it runs on: `AMD64`, `x86`.
    pub machine: Option<String>,
    /// Drivers of virtio that it knows; absent where its services were not read.
    pub drivers: Option<Vec<WindowsDriver>>,
    /// Whether its memory waits on the disk to be loaded again: it is hibernated, or was shut down for a fast start.
    pub is_hibernated: bool,
    /// Whether it is a domain controller.
    pub is_domain_controller: bool,
    /// Whether it is a node of a failover cluster.
    pub is_cluster_node: bool,
    /// Whether an update waits for a restart.
    pub waits_for_restart: bool,
    /// Cards with fixed addresses, of IPv4: those of IPv6 it keeps where nobody documents them.
    pub fixed: Vec<WindowsAddresses>,
    /// MAC addresses of cards that ask for their address of IPv4 (DHCP), where the registry tells them.
    #[serde(default)]
    pub by_dhcp: Vec<String>,
    /// Routes that it keeps over restarts, of whatever card.
    #[serde(default)]
    pub routes: Vec<Route>,
}

impl Windows {
    /// Whether the driver of virtio's network cards was seen in it.
    pub fn has_netkvm(&self) -> bool {
        let mut drivers = self.drivers.iter().flatten();
        // It is started when its card is found.
        drivers.any(|driver| driver.name == "netkvm" && driver.has_file)
    }
}

/// A driver of Windows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowsDriver {
    /// `viostor`, `vioscsi` or `netkvm`.
    pub name: String,
    /// Whether it starts before the disk that Windows is on is read by it.
    pub starts_at_boot: bool,
    /// Whether its file is there.
    pub has_file: bool,
}

/// Fixed addresses of a network card of Windows, which may be one that is there no more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WindowsAddresses {
    /// What Windows calls it (`Ethernet0`), or its GUID.
    pub name: String,
    /// MAC address of the card, lower case with colons; absent where the registry does not tell it.
    pub mac: Option<String>,
    /// Addresses (`192.0.2.7/24`).
    pub addresses: Vec<String>,
    /// Gateways.
    #[serde(default)]
    pub gateways: Vec<String>,
    /// Name servers, also of IPv6.
    pub dns: Vec<String>,
}

/// A route that is not the default one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Where it leads.
    pub network: IpAddr,
    /// Bits of that network.
    pub prefix: u8,
    /// By what.
    pub gateway: IpAddr,
    /// What it costs; absent where the system decides.
    pub metric: Option<u32>,
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} by {}", self.network, self.prefix, self.gateway)
    }
}

/// What a network card of Windows is given when it boots for the first time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CardSettings {
    /// MAC address, lower case with colons.
    pub mac: String,
    /// Fixed addresses, with the bits of their networks.
    pub addresses: Vec<(IpAddr, u8)>,
    /// What leads out of them.
    pub gateways: Vec<IpAddr>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
    /// Routes by gateways in its networks.
    pub routes: Vec<Route>,
}

/// What boots from an EFI system partition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EfiPartition {
    /// Whether it has a program `\\EFI\\BOOT\\BOOTX64.EFI`, which a firmware without boot entries starts.
    pub has_fallback: bool,
    /// Other loaders, one of each folder (`\\EFI\\debian\\shimx64.efi`).
    #[serde(default)]
    pub loaders: Vec<String>,
}

/// An initramfs, and which drivers it or the kernel itself has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Initramfs {
    /// Its file, such as `/boot/initrd.img-6.1.0-56-amd64`.
    pub path: String,
    /// virtio-blk, for `disk_bus: virtio`.
    pub virtio_blk: bool,
    /// virtio-scsi, for `disk_bus: scsi`.
    pub virtio_scsi: bool,
    /// PCI devices of virtio at all.
    pub virtio_pci: bool,
    /// AHCI, for `disk_bus: sata`.
    pub ahci: bool,
}

/// A line of `/etc/fstab`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByPath {
    /// `/dev/sdb1`.
    pub device: String,
    /// Where it is mounted, or `swap`.
    pub place: String,
}

/// An encrypted partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encrypted {
    /// Number of the disk, from 0.
    pub disk: usize,
    /// Number of the partition, from 1; 0 for the whole disk.
    pub partition: usize,
    /// `LUKS` or `BitLocker`.
    pub kind: String,
}

/// Network settings for one card, and what finds it. Settings without `name`, `mac` and `place` take any card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// The name that the card must have (`ens192`), or a pattern for it (`en*`).
    pub name: Option<String>,
    /// The MAC address that it must have, lower case with colons.
    pub mac: Option<String>,
    /// Where it must be (`pci-0000:0b:00.0`), or what must drive it (`vmxnet3`).
    pub place: Option<String>,
    /// Whether the guest itself gives the card of that MAC address or place its name.
    pub is_named: bool,
    /// The file that says so.
    pub file: String,
    /// Its fixed addresses; none if it asks for one.
    pub addresses: Vec<String>,
}

/// Free space of a file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreeSpace {
    /// Where it is mounted: `/`, `/boot`, or `C:` for the file system that Windows is on, whatever its letter.
    pub place: String,
    /// Bytes.
    pub bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_windows_beside_a_linux_whose_root_was_not_read_is_not_what_boots() {
        let windows = || Inside { windows: Some(Windows::default()), ntfs: true, ..Inside::default() };
        let with_loaders = |loaders: &[&str]| {
            let loaders = loaders.iter().map(|it| it.to_string()).collect();
            Inside { efi: Some(EfiPartition { has_fallback: true, loaders }), ..windows() }
        };
        let microsoft = r"\EFI\Microsoft\Boot\bootmgfw.efi";
        let of_windows = [
            windows(),
            Inside { boot_loader: Some("Windows".into()), ..windows() },
            with_loaders(&[]),
            with_loaders(&[microsoft]),
        ];
        assert!(of_windows.iter().all(|it| it.only_windows().is_some()));
        let of_linux = [
            Inside { initramfs: Some(Initramfs::default()), ..windows() },
            Inside { boot_loader: Some("GRUB".into()), ..windows() },
            Inside { free: vec![FreeSpace { place: "/".into(), bytes: 1 }], ..windows() },
            with_loaders(&[r"\EFI\debian\shimx64.efi"]),
        ];
        assert!(of_linux.iter().all(|it| it.only_windows().is_none()));
        let found = FoundSystem::Windows { build: None, is_server: false, has_netkvm: false };
        assert!(of_windows.iter().all(|it| it.system_found() == Some(found)));
        assert!(of_linux.iter().all(|it| it.system_found().is_none()), "there is a Windows, too");
        let linux = Inside { windows: None, ntfs: false, ..of_linux[2].clone() };
        assert_eq!(linux.system_found(), Some(FoundSystem::Linux));
        let locked = Encrypted { disk: 0, partition: 2, kind: "BitLocker".into() };
        assert_eq!(Inside { encrypted: vec![locked], ..linux }.system_found(), None);
        assert_eq!(Inside::default().system_found(), None);
    }
}
