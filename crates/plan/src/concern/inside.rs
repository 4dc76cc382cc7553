//! What there is to know about a VM once its disks were looked into.

use drover_types::Bytes;
use drover_types::guest::{EfiPartition, Initramfs, Inside};
use drover_types::inventory::Firmware;

use super::network::{Stays, fates};
use super::{Concern, Found};
use crate::model::Convert;
use crate::resolution::{PlannedVm, TargetBus};

/// What was found inside a planned VM and matters for its move, the worst first.
pub fn concerns_inside(vm: &PlannedVm, inside: &Inside) -> Vec<Concern> {
    let mut found = Found { vm: &vm.vm, list: Vec::new() };
    found.windows(vm, inside);
    found.initramfs(vm, inside);
    found.paths(vm, inside);
    found.fallback(vm, inside);
    found.locked(vm, inside);
    found.names(vm, inside);
    found.space(vm, inside);
    if let Some(tools) = &inside.vmware_tools {
        let advice = match vm.convert {
            Convert::Always => "they are removed by the conversion",
            Convert::Auto | Convert::Never => {
                "remove them from inside after the move; `convert: always` has them removed"
            }
        };
        found.add("vmware-tools-inside", None, format!("has {tools}"), advice);
    }
    if !inside.vendor_services.is_empty() {
        let what =
            format!("starts services that are of use on VMware alone: {}", inside.vendor_services.join(", "));
        let advice = match inside.only_windows() {
            None => {
                "a conversion removes those of VMware's tools; after the move, disable the others (`systemctl disable --now`)"
            }
            Some(_) => {
                "a conversion removes VMware Tools; after the move, disable the others (`sc.exe config NAME start= disabled`)"
            }
        };
        found.add("vendor-services-inside", None, what, advice);
    }
    if !inside.unseen.is_empty() {
        let what = format!("was not looked into as a whole: {}", inside.unseen.join("; "));
        found.add(
            "not-seen-inside",
            None,
            what,
            "see for yourself what `drover plan check --inspect` looks for",
        );
    }
    found.list.sort_by_key(|concern| concern.severity);
    found.list
}

/// Whether there is a loader of Linux that a conversion can put where firmware looks for one.
pub fn has_known_loader(efi: &EfiPartition) -> bool {
    let name = |path: &String| path.rsplit('\\').next().unwrap_or_default().to_ascii_lowercase();
    efi.loaders.iter().map(name).any(|name| LOADERS.contains(&name.as_str()))
}

const LOADERS: [&str; 3] = ["shimx64.efi", "grubx64.efi", "systemd-bootx64.efi"];

/// The driver that an initramfs lacks for a bus.
pub fn lacking_driver(initramfs: &Initramfs, bus: TargetBus) -> Option<&'static str> {
    let (has, name) = match bus {
        TargetBus::Virtio => (initramfs.virtio_blk, "virtio_blk"),
        TargetBus::Scsi | TargetBus::Nvme => (initramfs.virtio_scsi, "virtio_scsi"),
        TargetBus::Sata | TargetBus::Ide => return (!initramfs.ahci).then_some("ahci"),
    };
    if has && !initramfs.virtio_pci { Some("virtio_pci") } else { (!has).then_some(name) }
}

/// Lines of the guest's fstab whose disks are found elsewhere on the target's bus.
pub fn renamed(vm: &PlannedVm, inside: &Inside) -> Vec<String> {
    // Names that begin with `sd` are those of virtio-scsi and of SATA, too.
    let keeps_names = !vm.disks.is_empty() && vm.disks.iter().all(|disk| disk.bus != TargetBus::Virtio);
    let is_renamed = |device: &str| !(keeps_names && device.starts_with("/dev/sd"));
    let lines = inside.by_path.iter().filter(|line| is_renamed(&line.device));
    lines.map(|line| format!("{} ({})", line.device, line.place)).collect()
}

impl Found<'_> {
    fn initramfs(&mut self, vm: &PlannedVm, inside: &Inside) {
        let (Some(initramfs), Some(disk)) = (&inside.initramfs, vm.disks.first()) else { return };
        let Some(driver) = lacking_driver(initramfs, disk.bus) else { return };
        let what = format!(
            "its {} has no driver {driver}, so it would not find its root file system",
            initramfs.path
        );
        let advice = match vm.convert {
            Convert::Never => {
                "add the driver before the migration (Debian: /etc/initramfs-tools/modules and `update-initramfs -u -k all`; RHEL: \
                 `dracut --force --no-hostonly --regenerate-all`), or allow `convert: auto`"
            }
            Convert::Auto | Convert::Always => "it is converted with virt-v2v-in-place",
        };
        self.add("initramfs-without-driver", None, what, advice);
    }

    fn paths(&mut self, vm: &PlannedVm, inside: &Inside) {
        let lines = renamed(vm, inside);
        if lines.is_empty() {
            return;
        }
        let what = format!("finds disks by paths that change with their bus: {}", lines.join(", "));
        let advice = match vm.convert {
            Convert::Never => {
                "write UUID=... in their place in /etc/fstab and the boot loader (`blkid` tells it)"
            }
            Convert::Auto | Convert::Always => {
                "it is converted, which renames /dev/sd and /dev/hd; better write UUID=... in their place (`blkid` tells it)"
            }
        };
        self.add("fstab-by-path", None, what, advice);
    }

    /// Boot entries lie in the firmware's variables, which stay behind.
    fn fallback(&mut self, vm: &PlannedVm, inside: &Inside) {
        let Some(efi) = inside.efi.as_ref().filter(|efi| !efi.has_fallback) else { return };
        if self.vm.firmware == Some(Firmware::Bios) {
            return;
        }
        let others = match efi.loaders.as_slice() {
            [] => " and no other loader that is known".to_string(),
            loaders => format!(" (there is {})", loaders.join(", ")),
        };
        let what = format!("has no \\EFI\\BOOT\\BOOTX64.EFI{others}, so its firmware would start nothing");
        if vm.convert != Convert::Never && has_known_loader(efi) && self.vm.firmware == Some(Firmware::Uefi) {
            let advice = "a conversion with virt-v2v 2.6 or later puts the loader there; or do it before the move \
                          (`grub-install --target=x86_64-efi --removable`, or a copy of its folder)";
            self.add("no-fallback-loader", None, what, advice);
            return;
        }
        let advice = "before the move, have the loader there, too (Debian, Ubuntu: `grub-install --target=x86_64-efi --removable`; \
                      RHEL, SLES: reinstall shim, or copy the files of its folder; Windows: `bcdboot C:\\Windows /s S: /f UEFI`); or \
                      choose it in the firmware's menu at the first boot";
        self.add("no-fallback-loader", None, what, advice);
    }

    fn locked(&mut self, vm: &PlannedVm, inside: &Inside) {
        for part in &inside.encrypted {
            let label = vm.disks.get(part.disk).map(|disk| disk.disk.label.as_str());
            let what = match part.partition {
                0 => format!("is encrypted with {}", part.kind),
                number => format!("has partition {number} encrypted with {}", part.kind),
            };
            let advice = if part.kind == "BitLocker" {
                "save the recovery key and suspend protection before the cutover (`manage-bde -protectors -disable C: -RebootCount \
                 0`); a locked disk cannot be converted"
            } else {
                "have its passphrase at hand for the first boot; what is in it was not looked at, and cannot be converted without it"
            };
            self.add("encrypted-inside", label, what, advice);
        }
        for number in &inside.dynamic_disks {
            let label = vm.disks.get(*number).map(|disk| disk.disk.label.as_str());
            self.add(
                "dynamic-disk",
                label,
                "is a dynamic disk of Windows, whose volumes were not looked at",
                "it moves as it is; after the move look in Disk Management whether it is to be imported (\"Foreign\")",
            );
        }
    }

    fn names(&mut self, vm: &PlannedVm, inside: &Inside) {
        if inside.only_windows().is_some() {
            return;
        }
        for fate in fates(vm, inside) {
            let advice = match &fate.stays {
                Stays::ByItself | Stays::Unset => continue,
                Stays::IfNamed { name, mac } => {
                    let file = format!(
                        "/etc/systemd/network/10-{name}.link with `[Match]`, `MACAddress={mac}`, `[Link]`, `Name={name}`"
                    );
                    if vm.convert == Convert::Never {
                        format!("before the move, write {file}, and rebuild the initramfs")
                    } else {
                        format!(
                            "a conversion with virt-v2v 2.6 or later writes {file}; or write it before the move"
                        )
                    }
                }
                Stays::No => {
                    "if a card needs it, have it find that by its MAC address before the move".into()
                }
            };
            self.add("interface-names", None, format!("configures {fate}"), advice);
        }
    }

    fn space(&mut self, vm: &PlannedVm, inside: &Inside) {
        if vm.convert == Convert::Never {
            return;
        }
        for free in &inside.free {
            let needed = if free.place == "/boot" { BOOT_BYTES_MIN } else { ROOT_BYTES_MIN };
            if free.bytes < needed {
                let what = format!("has {} free in {}", Bytes(free.bytes), free.place);
                let advice = format!("a conversion needs {} there; make room first", Bytes(needed));
                self.add("little-space-inside", None, what, advice);
            }
        }
    }
}

/// Source: virt-v2v(1), "Free space in the guest".
const ROOT_BYTES_MIN: u64 = 100 << 20;
const BOOT_BYTES_MIN: u64 = 50 << 20;
