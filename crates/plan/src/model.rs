//! The plan as values: what a user wrote, with every default filled in.

mod data;
mod first_boot;
mod hooks;
mod network;
mod target;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use drover_types::Wave;
use serde::{Deserialize, Serialize};

use crate::problem::{At, Problem};

use crate::warm::WarmKeys;
pub use data::*;
pub use first_boot::*;
pub use hooks::*;
pub use network::*;
pub use target::*;

/// A plan file, read and checked in itself. It knows nothing yet of any inventory.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The plan's name: lower-case letters, digits and `-`.
    pub name: String,
    /// Where the VMs come from.
    pub source: Source,
    /// Where they go.
    pub target: Target,
    /// How they move.
    pub mode: Mode,
    /// What is said of warm migrations.
    pub warm: WarmKeys,
    /// Which VMs, and what is different for them.
    pub vms: Vec<Selection>,
    /// Which of those stay behind all the same.
    pub exclude: Vec<Selector>,
    /// Source network to target network.
    pub networks: Vec<NetworkRule>,
    /// Source datastore to target folder or storage pool.
    pub storage: Vec<StorageRule>,
    /// What may be done to a running VM.
    pub power_off: PowerOff,
    /// How long a guest may take to shut down.
    pub shutdown_timeout: Duration,
    /// Whether moved VMs are started.
    pub start: bool,
    /// Whether guests are converted.
    pub convert: Convert,
    /// What is done at their first boot.
    pub first_boot: FirstBoot,
    /// Whether Windows is given anew the fixed addresses that VMware Tools tell.
    pub keep_addresses: bool,
    /// How far the copy is verified.
    pub verify: Verify,
    /// What is called on the way of its VMs.
    pub hooks: Hooks,
    /// What decides whether its VMs go on.
    pub checks: CheckKeys,
    /// Budgets.
    pub limits: Limits,
    /// Parts that move one after the other, in the order of the file; none: all VMs may move at once.
    pub waves: Vec<PlanWave>,
    /// What is allowed but should be looked at, such as unverified TLS.
    pub warnings: Vec<Problem>,
}

/// Where VMs come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// vCenter or a single ESXi host.
    Vsphere(Box<VsphereSource>),
    /// An appliance: one VM in a file or folder.
    Ova(OvaSource),
}

impl Plan {
    /// What is called around its waves, by their names; waves around which nothing is are left out.
    pub fn wave_hooks(&self) -> BTreeMap<String, WaveHooks> {
        let has_any = |it: &&PlanWave| it.hooks != WaveHooks::default();
        let of = |it: &PlanWave| (it.wave.name.clone(), it.hooks.clone());
        self.waves.iter().filter(has_any).map(of).collect()
    }

    /// Its waves, without the VMs in them.
    pub fn waves(&self) -> Vec<Wave> {
        self.waves.iter().map(|it| it.wave.clone()).collect()
    }
}

impl Source {
    /// The vSphere source, if it is one.
    pub fn vsphere(&self) -> Option<&VsphereSource> {
        match self {
            Source::Vsphere(source) => Some(source),
            Source::Ova(_) => None,
        }
    }
}

/// An appliance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OvaSource {
    /// The `.ova` file, the `.ovf` file, or the folder that holds one.
    pub path: PathBuf,
    /// What its manifest is good for.
    pub manifest: ManifestUse,
}

/// What the checksums that came with an appliance are good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManifestUse {
    /// Every file is compared; a difference ends the VM's migration.
    Check,
    /// They are not looked at.
    Ignore,
}

/// A vCenter or ESXi host.
#[derive(Clone, Debug, PartialEq)]
pub struct VsphereSource {
    /// Its address.
    pub endpoint: Endpoint,
    /// Who logs in.
    pub login: Login,
    /// How its TLS certificate is verified.
    pub trust: Trust,
    /// Which way the bytes take.
    pub data: DataPath,
}

/// Host and port of an HTTPS server.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Endpoint {
    /// Name or address; an IPv6 address without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A user and where the password is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// User name; for vCenter with its domain (`administrator@vsphere.local`).
    pub user: String,
    /// Where the password is.
    pub password: SecretSource,
}

/// Where a secret is; the plan never holds one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecretSource {
    /// First line of a file.
    File(PathBuf),
    /// An environment variable.
    Env(String),
}

/// How a TLS certificate is verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// By the machine's own certificate authorities.
    System,
    /// By the authorities in a PEM file.
    CaFile(PathBuf),
    /// By its thumbprint: SHA-1 (20 bytes) or SHA-256 (32 bytes), upper-case hexadecimal with colons.
    Thumbprint(String),
    /// Not at all.
    Insecure,
}

/// Which way the bytes of the disks take.
#[derive(Clone, Debug, PartialEq)]
pub struct DataPath {
    /// Who serves them.
    pub from: DataFrom,
    /// TCP port of the hosts' HTTPS server.
    pub port: u16,
    /// Which of a host's addresses is used.
    pub network: HostNetwork,
    /// Login on the hosts, where all share one; absent: a ticket of the provider is used.
    pub login: Option<Login>,
    /// What is different for single hosts.
    pub hosts: Vec<HostOverride>,
    /// By which protocol they are read.
    pub path: PathChoice,
    /// VMs to which disks are attached to be read.
    pub proxies: Vec<Proxy>,
    /// How NFC is used, where it is.
    pub nfc: Nfc,
    /// How VDDK is used, where it is.
    pub vddk: Vddk,
}

impl DataPath {
    /// Whether a disk is read with the chain of files that earlier snapshots left: by NFC, and in no other way before it.
    pub fn follows_chains(&self) -> bool {
        match self.path {
            PathChoice::Nfc => true,
            PathChoice::Auto => self.proxies.is_empty(),
            PathChoice::HotAdd | PathChoice::Https | PathChoice::Vddk => false,
        }
    }
}

/// Who serves the bytes of the disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataFrom {
    /// The endpoint itself.
    Provider,
    /// Each VM's own host.
    Hosts,
}

/// Which of a host's addresses carries the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostNetwork {
    /// The vmknic tagged `vSphereBackupNFC`, else the management one.
    Auto,
    /// The vmknic of this name.
    Device(String),
}

/// What is different for one host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostOverride {
    /// The host's name in the inventory.
    pub host: String,
    /// Address to use, whatever the inventory says.
    pub address: Option<String>,
    /// Port of its HTTPS server.
    pub port: Option<u16>,
    /// Login on this host.
    pub login: Option<Login>,
    /// How its certificate is verified.
    pub trust: Option<Trust>,
    /// Place in the file.
    pub at: At,
}

/// How VMs move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Switched off, copied, started.
    Cold,
    /// Copied while it runs, in passes; switched off for the last one only.
    Warm,
}

/// What may be done to a running VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PowerOff {
    /// Nothing: a running VM is an error.
    Refuse,
    /// A clean shutdown by the guest tools.
    Shutdown,
    /// A clean shutdown where possible, else the plug is pulled.
    Force,
}

/// Whether a guest is converted (virtio drivers, boot loader).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Convert {
    /// Where it is needed.
    Auto,
    /// Never.
    Never,
    /// Every guest; a missing converter is an error.
    Always,
}

/// How far a copy is verified by reading the target back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// Not at all.
    None,
    /// So many blocks of each disk.
    Sampled {
        /// Blocks of 64 KiB per disk.
        blocks: u64,
    },
    /// Every block.
    Full,
}

/// As many VMs of a host, or disks in all, may be copied at once at most.
pub const AT_ONCE_MAX: u32 = 1000;

/// Budgets that all VMs of a plan share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// VMs copied at once from one source host.
    pub vms_per_host: u32,
    /// Disks copied at once in total.
    pub disks: u32,
    /// Warm VMs that are down for their cutovers at once.
    pub cutovers: u32,
    /// Connections per disk; absent: found by measuring.
    pub lanes_per_disk: Option<u32>,
    /// Requests in flight per connection; absent: found by measuring.
    pub depth: Option<u32>,
    /// Bytes of one read request; absent: chosen.
    pub request: Option<u64>,
    /// Bytes of all buffers together.
    pub memory: u64,
    /// Tries of one request after the first.
    pub retries: u32,
    /// How long a source may be out of reach before a transfer gives up.
    pub retry_for: Duration,
}

/// A wave, and which VMs are in it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanWave {
    /// The wave.
    pub wave: Wave,
    /// Which of the plan's VMs are in it, beside those that name it.
    pub vms: Vec<Selector>,
    /// What is called around it.
    pub hooks: WaveHooks,
    /// Place in the file.
    pub at: At,
    /// Path in the plan (`waves[1]`).
    pub path: String,
}

/// An entry of `vms`: which VMs, and what is different for them.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// Which VMs.
    pub selector: Selector,
    /// What is different for them.
    pub overrides: Overrides,
}

/// Which VMs: all given keys must match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector {
    /// Exact name.
    pub name: Option<String>,
    /// Pattern of the name (`*`, `?`).
    pub glob: Option<String>,
    /// Folder, and all below it (`prod/web`).
    pub folder: Option<String>,
    /// Tag (`env:prod`), which may be a pattern.
    pub tag: Option<String>,
    /// The provider's id (`vm-42`).
    pub id: Option<String>,
    /// Name of the source host.
    pub host: Option<String>,
    /// Name of the cluster of the source host.
    pub cluster: Option<String>,
    /// Name of a datastore in which one of its disks lies.
    pub datastore: Option<String>,
    /// Place in the file.
    pub at: At,
    /// Path in the plan (`vms[2]`, `exclude[0]`).
    pub path: String,
}

impl Selector {
    /// What it asks for that is not in a VM's name.
    pub(crate) fn beside_name(&self) -> [&Option<String>; 6] {
        [&self.folder, &self.tag, &self.id, &self.host, &self.cluster, &self.datastore]
    }
}

/// What is different for the VMs of one selection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// How it moves.
    pub mode: Option<Mode>,
    /// What is different if it moves warm.
    pub warm: WarmKeys,
    /// Name at the target.
    pub target_name: Option<String>,
    /// Folder that the VM's own folder is made in.
    pub target_folder: Option<PathBuf>,
    /// Address of the libvirt daemon that gets it.
    pub uri: Option<String>,
    /// The host among several that gets it.
    pub target_host: Option<String>,
    /// Storage pool of its disks.
    pub pool: Option<String>,
    /// Image format.
    pub format: Option<ImageFormat>,
    /// Bus of the disks.
    pub disk_bus: Option<DiskBusChoice>,
    /// Model of the NICs.
    pub nic_model: Option<NicChoice>,
    /// What may be done if it runs.
    pub power_off: Option<PowerOff>,
    /// How long it may take to shut down.
    pub shutdown_timeout: Option<Duration>,
    /// How far the copy is verified.
    pub verify: Option<Verify>,
    /// Whether it is started.
    pub start: Option<bool>,
    /// Whether it is converted.
    pub convert: Option<Convert>,
    /// Work at its first boot, in the place of the plan's.
    pub first_boot: FirstBoot,
    /// Whether it keeps its fixed addresses.
    pub keep_addresses: Option<bool>,
    /// Whether its libvirt daemon starts it whenever it starts itself.
    pub autostart: Option<bool>,
    /// Disks to leave behind, by label or backing path.
    pub exclude_disks: Option<Vec<String>>,
    /// Networks, before the plan's own.
    pub networks: Vec<NetworkRule>,
    /// Datastores, before the plan's own.
    pub storage: Vec<StorageRule>,
    /// Volumes that disks of it go to, in pools that have only such as are there already.
    pub volumes: Option<Vec<VolumeRule>>,
    /// Greater goes first; 0 unless said.
    pub priority: Option<i32>,
    /// Hooks in the place of the plan's, moment by moment.
    pub hooks: Hooks,
    /// Checks in the place of the plan's.
    pub checks: CheckKeys,
    /// The wave that it moves in.
    pub wave: Option<String>,
    /// By when it is to have arrived, in milliseconds since 1970.
    pub deadline_ms: Option<u64>,
    /// The VMs that it moves with.
    pub group: Option<String>,
    /// Its turn in the group.
    pub stage: Option<u32>,
    /// Of VMs with the same word one at a time is at work.
    pub anti_affinity: Option<String>,
}

/// A source network and what it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkRule {
    /// Name of the source network, which may have its data centre before it (`dc1/VM Network`); `*` for every one without a rule of its own.
    pub from: String,
    /// What it becomes.
    pub to: NetworkTarget,
    /// Place in the file.
    pub at: At,
}

/// A disk, and the volume that it goes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRule {
    /// Label or backing path of the disk.
    pub disk: String,
    /// The volume.
    pub volume: NamedVolume,
    /// Place in the file.
    pub at: At,
}

/// A volume that was there before drover, as a plan names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedVolume {
    /// Its name, path or key.
    pub name: String,
    /// Whether what it holds may go.
    pub overwrite: bool,
}

/// A source datastore and where its disks go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageRule {
    /// Name of the source datastore, which may have its data centre before it; `*` for every one without a rule of its own.
    pub from: String,
    /// Folder, or the name of a storage pool if the target is a libvirt daemon; absent for the target's default one.
    pub to: Option<PathBuf>,
    /// Place in the file.
    pub at: At,
}
