use drover_types::inventory::names_windows;

use crate::spec::DiskBus;

/// Whether a guest needs conversion before it boots here, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Need {
    /// It will not boot without.
    Needed(String),
    /// It may not boot without; that depends on how it was installed.
    Advised(String),
    /// It boots as it is.
    NotNeeded(String),
}

/// Judges by the guest OS id of vSphere (`debian12_64Guest`) and the bus of the boot disk. The id is what an
/// administrator once chose and may be wrong; nothing in the guest is looked at.
///
/// Source: `VirtualMachineGuestOsIdentifier` of the vSphere API; which kernels have virtio from their releases.
pub fn needs_conversion(guest_id: &str, boot_bus: DiskBus) -> Need {
    let id = guest_id.to_ascii_lowercase();
    if names_windows(&id) {
        return windows_needs_conversion("its guest id names Windows", boot_bus);
    }
    if OLD_LINUX.iter().any(|old| id.starts_with(old)) {
        return Need::Needed(format!(
            "its guest id {guest_id} names a system that is older than the virtio drivers"
        ));
    }
    if MANY_DRIVERS.iter().any(|name| id.starts_with(name)) {
        return Need::NotNeeded(format!(
            "guests with the id {guest_id} usually boot from virtio; the guest itself was not looked at"
        ));
    }
    if OWN_DRIVERS_ONLY.iter().any(|name| id.starts_with(name)) {
        return Need::Advised(format!(
            "a guest with the id {guest_id} may have an initramfs for VMware's controllers alone; without conversion, boot its \
             rescue entry once and run `dracut --force --no-hostonly`"
        ));
    }
    if id.contains("linux") || id.contains("photon") {
        return Need::NotNeeded(format!(
            "guests with the id {guest_id} usually boot from virtio; the guest itself was not looked at"
        ));
    }
    Need::Advised(format!("nothing is known about {guest_id:?}"))
}

/// The same of a guest that is known to be Windows, by what tells of it (`its guest id names Windows`).
pub fn windows_needs_conversion(told_by: &str, boot_bus: DiskBus) -> Need {
    match boot_bus {
        DiskBus::Sata => Need::Advised(format!(
            "{told_by}, which boots from SATA; virtio NICs need drivers that it may lack"
        )),
        DiskBus::Virtio | DiskBus::Scsi => Need::Needed(format!(
            "{told_by}, which stops with INACCESSIBLE_BOOT_DEVICE unless virtio drivers start at boot"
        )),
    }
}

/// Kernels before 2.6.25, or distributions that left virtio out.
const OLD_LINUX: [&str; 15] = [
    "rhel2",
    "rhel3",
    "rhel4",
    "centos4",
    "centos64",
    "debian4",
    "sles64",
    "slesguest",
    "sles9",
    "sles10",
    "redhat",
    "other24x",
    "oraclelinux4",
    "ubuntu7",
    "nld9",
];
/// Their initramfs has drivers for every controller unless someone changed that.
const MANY_DRIVERS: [&str; 2] = ["debian", "ubuntu"];
/// dracut's default: an initramfs for the hardware that it was built on.
const OWN_DRIVERS_ONLY: [&str; 11] = [
    "rhel",
    "centos",
    "rocky",
    "alma",
    "oracle",
    "fedora",
    "sles",
    "opensuse",
    "suse",
    "amazonlinux",
    "coreos",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn is_needed(id: &str) -> bool {
        matches!(needs_conversion(id, DiskBus::Virtio), Need::Needed(_))
    }

    fn is_not_needed(id: &str) -> bool {
        matches!(needs_conversion(id, DiskBus::Virtio), Need::NotNeeded(_))
    }

    #[test]
    fn windows_needs_drivers_on_virtio_and_less_on_sata() {
        assert!(is_needed("windows2019srv_64Guest") && is_needed("winXPProGuest"));
        assert!(matches!(needs_conversion("windows9_64Guest", DiskBus::Sata), Need::Advised(_)));
    }

    #[test]
    fn linux_depends_on_how_its_initramfs_is_built() {
        assert!(is_not_needed("debian12_64Guest") && is_not_needed("ubuntu64Guest"));
        assert!(is_not_needed("other5xLinux64Guest") && is_not_needed("vmwarePhoton64Guest"));
        assert!(matches!(needs_conversion("rhel9_64Guest", DiskBus::Virtio), Need::Advised(_)));
        assert!(is_needed("rhel4_64Guest") && is_needed("other24xLinuxGuest"));
    }

    #[test]
    fn what_is_not_known_is_said_to_be_so() {
        assert!(matches!(needs_conversion("freebsd13_64Guest", DiskBus::Virtio), Need::Advised(_)));
        assert!(matches!(needs_conversion("", DiskBus::Virtio), Need::Advised(_)));
    }
}
