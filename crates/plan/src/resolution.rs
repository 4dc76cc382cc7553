//! What a plan means for an inventory: every VM with its place, its disks and its route.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use drover_types::NicModel;
use drover_types::guest::FoundSystem;
use drover_types::inventory::{Vm, VmDisk};
use serde::{Deserialize, Serialize};

use crate::concern::Concern;
use crate::model::{
    Checks, Convert, DiskBusChoice, FirstBoot, Hooks, ImageFormat, Kubevirt, Libvirt, LibvirtHost, Login,
    NamedVolume, NetworkTarget, NicChoice, PowerOff, Trust, Verify,
};
use crate::nfc::NfcShare;
use crate::problem::Problem;
use crate::warm::Warm;

/// A plan laid over an inventory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resolution {
    /// The VMs to move, in the order of their target names. VMs with errors are among them.
    pub vms: Vec<PlannedVm>,
    /// All that is wrong, warnings of the plan itself included, in the order of the file.
    pub problems: Vec<Problem>,
}

impl Resolution {
    /// Whether nothing stops the plan.
    pub fn is_ok(&self) -> bool {
        !self.problems.iter().any(Problem::is_error)
    }
}

/// A VM that the plan moves, with every choice made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedVm {
    /// The VM as the inventory showed it.
    pub vm: Vm,
    /// Name at the target; safe as a file name and as a libvirt domain name.
    pub target_name: String,
    /// The name of the host that runs it, where the inventory tells it.
    #[serde(default)]
    pub host_name: Option<String>,
    /// The site that it goes to; absent for this machine.
    #[serde(default)]
    pub site: Option<String>,
    /// Address of the libvirt daemon that it becomes a domain of; absent if it goes to a folder.
    #[serde(default)]
    pub daemon: Option<String>,
    /// The host among several of the target that it goes to. One that the plan names has no daemon before it is placed.
    #[serde(default)]
    pub target_host: Option<TargetHost>,
    /// The VM's own folder. At a site its first part is a pool of the agent there.
    pub folder: PathBuf,
    /// Format of its disk images.
    pub format: ImageFormat,
    /// Bus the plan asks for; each disk's own is in [`PlannedDisk::bus`].
    pub disk_bus: DiskBusChoice,
    /// Model that its NICs get.
    #[serde(default)]
    pub nic_model: NicChoice,
    /// Disks to copy, in boot order.
    pub disks: Vec<PlannedDisk>,
    /// NICs, in slot order, those without a target too.
    pub nics: Vec<PlannedNic>,
    /// How it moves while it runs; absent if it moves cold.
    #[serde(default)]
    pub warm: Option<Warm>,
    /// What may be done if it runs.
    pub power_off: PowerOff,
    /// How long it may take to shut down.
    pub shutdown_timeout: Duration,
    /// How far the copy is verified.
    pub verify: Verify,
    /// Whether it is started at the target.
    pub start: bool,
    /// Whether its libvirt daemon starts it whenever it starts itself.
    #[serde(default)]
    pub autostart: bool,
    /// Whether it is converted.
    pub convert: Convert,
    /// What is done at its first boot.
    #[serde(default, skip_serializing_if = "FirstBoot::is_empty")]
    pub first_boot: FirstBoot,
    /// Whether each of its cards that the plan gives no address keeps its own: it is a Windows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keeps_addresses: bool,
    /// Which way its bytes take.
    pub route: Route,
    /// What its disks take of their host's NFC server; absent where they are read by neither NFC nor VDDK.
    #[serde(default)]
    pub nfc: Option<NfcShare>,
    /// Greater goes first.
    pub priority: i32,
    /// What is called on its way.
    #[serde(default, skip_serializing_if = "Hooks::is_empty")]
    pub hooks: Hooks,
    /// What decides whether it goes on.
    #[serde(default, skip_serializing_if = "Checks::are_none")]
    pub checks: Checks,
    /// The wave that it moves in; absent if the plan has none.
    #[serde(default)]
    pub wave: Option<String>,
    /// By when it is to have arrived, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u64>,
    /// The VMs that it moves with, in an order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<VmGroup>,
    /// Of VMs with the same word one at a time is at work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub anti_affinity: Option<String>,
    /// What a look into its disks found it to be, which counts before its guest id; absent if nobody looked, or could tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub found: Option<FoundSystem>,
    /// What there is to know about it, harmless things too.
    pub concerns: Vec<Concern>,
    /// Line of the selection that chose it.
    pub line: u32,
}

/// A place among VMs of a wave that move in an order, those of one stage together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmGroup {
    /// The group's name.
    pub name: String,
    /// 0 moves first.
    pub stage: u32,
}

/// One of several hosts of a target, and why it is that one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetHost {
    /// What the plan calls it.
    pub name: String,
    /// Why, for people.
    pub why: String,
}

impl TargetHost {
    /// One that the plan names.
    pub(crate) fn pinned(name: String) -> TargetHost {
        TargetHost { name, why: "the plan names it".into() }
    }
}

impl PlannedVm {
    /// Whether it is Windows, by what was found in it, else by its guest id.
    pub fn is_windows(&self) -> bool {
        match self.found {
            Some(FoundSystem::Windows { .. }) => true,
            Some(FoundSystem::Linux) => false,
            None => self.vm.is_windows_by_id(),
        }
    }

    /// The model of a card at the target.
    pub fn nic_model_of(&self, nic: &PlannedNic) -> NicModel {
        let kept = match nic.model.as_str() {
            "e1000" => NicModel::E1000,
            "e1000e" => NicModel::E1000e,
            "vmxnet3" if !self.site.as_deref().is_some_and(Kubevirt::is_site) => NicModel::Vmxnet3,
            _ => NicModel::Virtio,
        };
        match self.nic_model {
            NicChoice::Virtio => NicModel::Virtio,
            NicChoice::E1000e => NicModel::E1000e,
            NicChoice::Keep => kept,
            NicChoice::Auto => self.nic_model_driven(kept),
        }
    }

    /// A model that the guest drives, of a card that would be this one as at the source.
    fn nic_model_driven(&self, kept: NicModel) -> NicModel {
        // Of systems that are neither Windows nor Linux nothing is known but that they drive what they have.
        let is_other = !self.is_windows() && self.found.is_none() && self.vm.names_no_linux();
        match kept {
            NicModel::E1000 | NicModel::E1000e if is_other => kept,
            _ if self.drives_virtio_nics() => NicModel::Virtio,
            // What drives this model is as old as those that know none newer.
            NicModel::E1000 => NicModel::E1000,
            NicModel::E1000e | NicModel::Vmxnet3 | NicModel::Virtio => NicModel::E1000e,
        }
    }

    /// Whether the disk that it boots from is on a bus that no driver of virtio is needed for.
    pub(crate) fn boots_from_sata(&self) -> bool {
        self.disks.first().is_some_and(|disk| matches!(disk.bus, TargetBus::Sata | TargetBus::Ide))
    }

    /// Whether the guest will drive cards of virtio: Linux does since 2.6.25 (2008), Windows with a driver that it was found to have or
    /// that its conversion puts in.
    fn drives_virtio_nics(&self) -> bool {
        let has_driver = matches!(self.found, Some(FoundSystem::Windows { has_netkvm: true, .. }));
        !self.is_windows() || self.gets_drivers() || has_driver
    }

    /// Whether a conversion puts drivers of virtio into it, if it is a Windows.
    pub(crate) fn gets_drivers(&self) -> bool {
        match self.convert {
            Convert::Never => false,
            Convert::Always => true,
            // One that boots is left as it is.
            Convert::Auto => !self.boots_from_sata(),
        }
    }

    /// Whether a card is one of virtio that leads somewhere.
    pub fn has_virtio(&self, nic: &PlannedNic) -> bool {
        nic.connected && nic.target != NetworkTarget::None && self.nic_model_of(nic) == NicModel::Virtio
    }

    /// Has it go to one of several hosts: to that host's daemon and agent, and to its own pool where the plan takes the target's.
    pub fn place_on(&mut self, host: &LibvirtHost, why: &str, libvirt: &Libvirt) {
        self.target_host = Some(TargetHost { name: host.name.clone(), why: why.to_string() });
        self.daemon = Some(host.uri.clone());
        self.site.clone_from(&host.via);
        for disk in &mut self.disks {
            let Some(pool) = host.pool_of(disk, libvirt) else { continue };
            disk.base = Path::new("/").join(&pool);
            disk.path = disk.base.join(disk.path.file_name().unwrap_or_default());
            disk.pool = Some(pool);
        }
    }

    /// Where an image is, for people: its path, or `agent://SITE/POOL/FILE`.
    pub fn place_of(&self, disk: &PlannedDisk) -> PathBuf {
        match &self.site {
            None => disk.path.clone(),
            Some(site) if Kubevirt::is_site(site) => {
                PathBuf::from(format!("{}{}", site.replacen(':', "://", 1), disk.path.display()))
            }
            Some(site) => PathBuf::from(format!("agent://{site}{}", disk.path.display())),
        }
    }

    /// What tells whose an image is: of which plan, VM and disk. Its journal names it.
    pub fn owner_of(&self, plan: &str, disk: &PlannedDisk) -> String {
        let Vm { id, instance_uuid, .. } = &self.vm;
        let vm = if instance_uuid.is_empty() { id } else { instance_uuid };
        format!("plan {plan} vm {vm} disk {}", disk.disk.key)
    }

    /// Sum of the capacities of the disks to copy, in bytes; saturates.
    pub fn capacity_bytes(&self) -> u64 {
        self.disks.iter().fold(0, |sum, disk| sum.saturating_add(disk.disk.capacity_bytes))
    }
}

impl LibvirtHost {
    /// The pool that a disk goes to on this host.
    pub fn pool_of(&self, disk: &PlannedDisk, libvirt: &Libvirt) -> Option<String> {
        let planned = disk.pool.as_ref()?;
        let own = self.pool.as_ref().filter(|_| *planned == libvirt.pool);
        Some(own.unwrap_or(planned).clone())
    }
}

/// A disk to copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedDisk {
    /// The disk at the source.
    pub disk: VmDisk,
    /// Position among all disks of the VM, from 0; also in the file name.
    pub index: usize,
    /// Image file to write. A volume at a site is `/POOL/FILE`; its folder on that host is `base`, once the daemon was asked.
    pub path: PathBuf,
    /// Storage pool that it is a volume of; absent if it lies in a folder.
    #[serde(default)]
    pub pool: Option<String>,
    /// The volume that the plan names for it; absent where one is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<NamedVolume>,
    /// Folder of the plan that the image lies below; free space is judged here.
    pub base: PathBuf,
    /// Bus at the target.
    pub bus: TargetBus,
}

impl PlannedDisk {
    /// Where the words of nbdkit and VDDK about the disk are kept: beside its image.
    pub fn vddk_log(&self) -> PathBuf {
        let mut name = self.path.as_os_str().to_os_string();
        name.push(".vddk.log");
        name.into()
    }
}

/// Bus of a disk at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetBus {
    /// virtio-blk.
    Virtio,
    /// SCSI.
    Scsi,
    /// SATA.
    Sata,
    /// IDE.
    Ide,
    /// NVMe.
    Nvme,
}

/// A NIC and what it is attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedNic {
    /// Position among all NICs of the VM, from 0.
    pub index: usize,
    /// MAC address, kept.
    pub mac: String,
    /// Source network.
    pub network: String,
    /// What it is attached to.
    pub target: NetworkTarget,
    /// Whether it is connected at the source.
    pub connected: bool,
    /// Model at the source.
    pub model: String,
}

/// Which way the bytes of a VM take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Route {
    /// Through the endpoint, with its session.
    Provider,
    /// Straight from the host that runs the VM.
    Host(HostRoute),
}

/// The way to a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRoute {
    /// The provider's id of the host.
    pub host_id: String,
    /// The host's name.
    pub host_name: String,
    /// Address to connect to.
    pub address: String,
    /// TCP port.
    pub port: u16,
    /// Login on the host; absent: a ticket of the provider.
    pub login: Option<Login>,
    /// How its certificate is verified.
    pub trust: Trust,
}

/// Bytes that a folder must take in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// If every byte of every disk were written: the most that can be needed.
    pub capacity_bytes: u64,
    /// Capacity of the disks that the source holds as thick; the rest is thin or unknown and may
    /// need next to nothing.
    pub thick_bytes: u64,
}

/// What each folder of the plan must take in. Sums saturate.
///
/// The inventory does not tell how much of a disk is allocated, so the truth lies between zero and
/// [`Space::capacity_bytes`]: zeros are never written, not even those of a thick disk.
pub fn space_needed(resolution: &Resolution) -> BTreeMap<PathBuf, Space> {
    let mut folders = BTreeMap::<PathBuf, Space>::new();
    for disk in resolution.vms.iter().flat_map(|vm| &vm.disks) {
        let space = folders.entry(disk.base.clone()).or_default();
        let bytes = disk.disk.capacity_bytes;
        space.capacity_bytes = space.capacity_bytes.saturating_add(bytes);
        if disk.disk.thin == Some(false) {
            space.thick_bytes = space.thick_bytes.saturating_add(bytes);
        }
    }
    folders
}
