//! What a provider has: hosts, networks, datastores and virtual machines, in words that hold for
//! every hypervisor. A provider fills it, `plan` judges it, a target builds from it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// All that a provider showed us at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// Who answered.
    pub about: About,
    /// Hypervisor hosts.
    pub hosts: Vec<Host>,
    /// Stores that hold disks.
    pub datastores: Vec<Datastore>,
    /// Networks that NICs attach to.
    pub networks: Vec<Network>,
    /// Virtual machines; templates are left out.
    pub vms: Vec<Vm>,
    /// How many templates were left out.
    #[serde(default)]
    pub templates: usize,
    /// Why the tags of VMs are not known, or not all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags_unknown: Option<String>,
    /// The waves of VMs that a plan began with, by the VM's id. No provider shows them.
    #[serde(skip)]
    pub waves: BTreeMap<String, String>,
    /// Only the VMs that a plan began with are there; others were left out.
    #[serde(skip)]
    pub is_begun_alone: bool,
    /// Where VMs were that a plan began with, by the VM's id. No provider shows that either.
    #[serde(skip)]
    pub places: BTreeMap<String, VmPlace>,
}

/// Where a VM is, as far as plans select by it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VmPlace {
    /// The provider's id of its host.
    pub host_id: String,
    /// Datastores of its disks.
    pub datastores: Vec<String>,
}

impl Inventory {
    /// The host of that id.
    pub fn host(&self, id: &str) -> Option<&Host> {
        self.hosts.iter().find(|host| host.id == id)
    }
}

/// The product behind an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct About {
    /// `VMware vCenter Server`, `VMware ESXi`.
    pub product: String,
    /// `8.0.2`.
    pub version: String,
    /// `8.0.2.0`.
    pub api_version: String,
    /// Build number as text.
    pub build: String,
    /// Whether this is a vCenter rather than a single host.
    pub is_vcenter: bool,
    /// Tells one installation from another.
    pub instance_uuid: String,
}

/// A hypervisor host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The provider's id (`host-21`).
    pub id: String,
    /// The name users know it by.
    pub name: String,
    /// Name of its cluster; absent if it stands alone, or that is not told.
    #[serde(default)]
    pub cluster: Option<String>,
    /// Power policy, where the provider tells it.
    pub power_policy: Option<PowerPolicy>,
    /// Physical NICs.
    pub physical_nics: Vec<PhysicalNic>,
    /// Addresses of the host and what each may be used for.
    pub addresses: Vec<HostAddress>,
    /// SHA-1 thumbprint of its certificate as the provider knows it.
    pub thumbprint: Option<String>,
}

/// CPU power policy of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PowerPolicy {
    /// All cores at full clock; what fast copies want.
    HighPerformance,
    /// The usual default.
    Balanced,
    /// Saves power first.
    LowPower,
    /// Something else.
    Custom,
}

/// A physical NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhysicalNic {
    /// `vmnic0`.
    pub device: String,
    /// Link speed in Mbit/s; absent when the link is down or not told.
    pub link_mbps: Option<u32>,
}

/// An address of a host (a vmknic) and its services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostAddress {
    /// `vmk1`.
    pub device: String,
    /// IP address.
    pub address: String,
    /// Service tags: `management`, `vSphereBackupNFC`, `vmotion` ...
    pub services: Vec<String>,
}

/// A store that holds disks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datastore {
    /// The provider's id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Total bytes.
    pub capacity_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
}

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The provider's id.
    pub id: String,
    /// Name.
    pub name: String,
}

/// A virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Vm {
    /// The provider's id (`vm-42`).
    pub id: String,
    /// Name; need not be unique.
    pub name: String,
    /// Folder path below the data centre, without leading slash (`prod/web`); empty at the top.
    pub folder: String,
    /// Data centre the VM lives in.
    pub datacenter: String,
    /// Id of the host that runs it.
    pub host_id: String,
    /// BIOS UUID, which guests see.
    pub uuid: String,
    /// The provider's own UUID of this VM.
    pub instance_uuid: String,
    /// Power state.
    pub power: PowerState,
    /// Firmware; absent if the provider does not tell.
    pub firmware: Option<Firmware>,
    /// Whether secure boot is on.
    pub secure_boot: bool,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Cores per socket.
    pub cores_per_socket: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// The provider's guest OS id (`debian12_64Guest`).
    pub guest_id: String,
    /// Whether guest tools run, so that a clean shutdown can be asked for.
    pub tools: ToolsState,
    /// Virtual hardware version (`vmx-20`).
    pub hardware_version: String,
    /// Whether changed block tracking is on for the VM.
    pub change_tracking: bool,
    /// Whether the provider can track changed blocks of this VM at all.
    #[serde(default)]
    pub change_tracking_supported: bool,
    /// Tags as `category:name`.
    pub tags: Vec<String>,
    /// Bytes that its files take in their datastores, without its swap file; absent if not told. Files of snapshots and logs
    /// are among them, so its disks hold no more than this.
    #[serde(default)]
    pub allocated_bytes: Option<u64>,
    /// Disks in boot order.
    pub disks: Vec<VmDisk>,
    /// NICs in slot order.
    pub nics: Vec<Nic>,
    /// Snapshots, oldest first, children after parents.
    pub snapshots: Vec<Snapshot>,
    /// Whether the provider says that disks need consolidation.
    pub consolidation_needed: bool,
    /// Whether the VM itself is encrypted.
    pub encrypted: bool,
    /// Whether it has a virtual TPM.
    pub vtpm: bool,
    /// Names of passthrough devices.
    pub passthrough: Vec<String>,
    /// The extension of the provider that manages it, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,
}

impl Vm {
    /// Whether its guest id names Windows.
    pub fn is_windows_by_id(&self) -> bool {
        names_windows(&self.guest_id)
    }

    /// Whether its guest id names Windows, or no system at all (`otherGuest64`).
    pub fn may_be_windows(&self) -> bool {
        let id = self.guest_id.to_ascii_lowercase();
        names_windows(&id) || id.is_empty() || (id.starts_with("other") && !id.contains("linux"))
    }

    /// Whether its guest id names a system that is not known for one of Linux, or none at all.
    pub fn names_no_linux(&self) -> bool {
        let id = self.guest_id.to_ascii_lowercase();
        let others =
            ["freebsd", "solaris", "darwin", "dos", "netware", "openserver", "unixware", "os2", "vmkernel"];
        self.may_be_windows() || others.iter().any(|other| id.starts_with(other))
    }

    /// Provisioned bytes of its disks; saturates.
    pub fn capacity_bytes(&self) -> u64 {
        self.disks.iter().fold(0, |sum, disk| sum.saturating_add(disk.capacity_bytes))
    }

    /// Bytes that are to be read: what is allocated, else all that is provisioned.
    pub fn data_bytes(&self) -> u64 {
        let capacity = self.capacity_bytes();
        self.allocated_bytes.map_or(capacity, |allocated| allocated.min(capacity))
    }

    /// Of these a disk's part, by its capacity: providers tell what is allocated of the whole VM.
    pub fn data_bytes_of(&self, disk: &VmDisk) -> u64 {
        self.part_of(self.data_bytes(), disk)
    }

    /// The part of some of its bytes that falls to a disk, by its capacity.
    pub fn part_of(&self, bytes: u64, disk: &VmDisk) -> u64 {
        let (all, part) = (self.capacity_bytes(), disk.capacity_bytes);
        if all == 0 { 0 } else { (u128::from(bytes) * u128::from(part) / u128::from(all)) as u64 }
    }
}

/// Whether a guest id names Windows.
///
/// Source: `VirtualMachineGuestOsIdentifier` of the vSphere API.
pub fn names_windows(guest_id: &str) -> bool {
    guest_id.get(..3).is_some_and(|start| start.eq_ignore_ascii_case("win"))
}

/// What a VM writes to its disks, as its provider measured it.
///
/// It is near to what changes, and no bound of it: a block that is written twice counts twice, and a small write counts
/// by its own size, where changed block tracking tells 64 KiB and more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteRate {
    /// Bytes an hour, the mean of the time looked at.
    pub bytes_per_hour: u64,
    /// Bytes of the busiest hour in it.
    pub busiest_hour_bytes: u64,
    /// The time looked at, in seconds.
    pub seconds: u64,
}

/// What VMs write, by their ids; those of which it is not known are left out.
pub type WriteRates = BTreeMap<String, WriteRate>;

/// Power state of a VM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PowerState {
    /// The source did not tell. It may run.
    #[default]
    Unknown,
    /// Running.
    On,
    /// Off.
    Off,
    /// Suspended to disk.
    Suspended,
}

/// Firmware of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Firmware {
    /// Legacy BIOS.
    Bios,
    /// UEFI.
    Uefi,
}

/// State of the guest tools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolsState {
    /// Running: a clean shutdown can be asked for.
    Running,
    /// Installed but not running.
    NotRunning,
    /// Not there, or not told.
    #[default]
    NotInstalled,
}

/// A snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The provider's id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Description.
    pub description: String,
    /// When it was made, in seconds since 1970 by the provider's clock; absent if not told.
    #[serde(default)]
    pub created_s: Option<u64>,
}

/// A disk of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmDisk {
    /// The provider's device key.
    pub key: i32,
    /// Tells the disk from another that got its key later, and stays when its files move; empty if not told.
    #[serde(default)]
    pub uuid: String,
    /// Label (`Hard disk 1`).
    pub label: String,
    /// Capacity in bytes; may be any number, also one that no disk should have.
    pub capacity_bytes: u64,
    /// Whether it is thin; absent if not told.
    pub thin: Option<bool>,
    /// Datastore name.
    pub datastore: String,
    /// Path of the current backing (`[ds1] web01/web01.vmdk`).
    pub path: String,
    /// Whether the current backing is a delta on another file (snapshots or linked clones).
    pub has_parent: bool,
    /// Bus.
    pub bus: DiskBus,
    /// Number of the controller on its bus type, and unit on the controller.
    pub address: (i32, i32),
    /// Persistence mode.
    pub mode: DiskMode,
    /// Raw device mapping, if it is one.
    pub rdm: Option<RdmMode>,
    /// Whether several VMs may write it: by itself (multi-writer), or because its controller shares its bus.
    pub shared: bool,
    /// How its controller shares its bus with other VMs, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus_sharing: Option<BusSharing>,
    /// Whether the disk itself is encrypted.
    pub encrypted: bool,
    /// Whether changed block tracking is switched on for this disk. It works only where there is a change id too.
    #[serde(default)]
    pub change_tracking: bool,
    /// Current change id, where change tracking works for this disk.
    pub change_id: Option<String>,
}

/// Bus of a disk at the source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskBus {
    /// Any SCSI controller.
    #[default]
    Scsi,
    /// SATA (AHCI).
    Sata,
    /// NVMe.
    Nvme,
    /// IDE.
    Ide,
}

/// Persistence mode of a disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskMode {
    /// Takes part in snapshots.
    #[default]
    Persistent,
    /// Left out of snapshots.
    IndependentPersistent,
    /// Left out of snapshots, writes lost at power off.
    IndependentNonpersistent,
}

/// How a controller shares its bus, as nodes of a cluster have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BusSharing {
    /// With VMs of the same host.
    Virtual,
    /// With VMs of any host.
    Physical,
}

/// Compatibility mode of a raw device mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RdmMode {
    /// Passes SCSI commands through; cannot be snapshotted.
    Physical,
    /// Behaves as a virtual disk.
    Virtual,
}

/// A NIC of a VM.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Label (`Network adapter 1`).
    pub label: String,
    /// MAC address, lower case with colons.
    pub mac: String,
    /// Name of the network.
    pub network: String,
    /// Model at the source (`vmxnet3`, `e1000`, `e1000e`).
    pub model: String,
    /// Whether it is connected (or will be at power on).
    pub connected: bool,
    /// The slot that the guest finds it in, if that is told: Linux calls it `ens192` in slot 192.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_slot: Option<u32>,
    /// Addresses that were given to it inside, as the guest's tools tell them; absent if they tell nothing of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixed: Option<FixedAddresses>,
}

/// The fixed addresses of a NIC. None, if it takes them from DHCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedAddresses {
    /// Each with the bits of its network.
    pub addresses: Vec<(IpAddr, u8)>,
    /// What leads out of their networks.
    pub gateways: Vec<IpAddr>,
    /// Name servers.
    pub dns: Vec<IpAddr>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_found_by_its_id() {
        let host = |id: &str| Host { id: id.to_string(), ..Host::default() };
        let inventory = Inventory { hosts: vec![host("host-1"), host("host-2")], ..Inventory::default() };
        assert_eq!(inventory.host("host-2"), Some(&host("host-2")));
        assert_eq!(inventory.host("host-3"), None);
    }
}
