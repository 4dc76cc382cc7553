//! Machines at the other site: what is said of them over a link. Pure.
//!
//! A channel of service `machine` carries one message each way: an [`Order`] as JSON, and the answer ([`Told`], or why
//! not). Machines are told by what they have, never by a definition or a command line: what the agent writes and runs
//! is its own, of disks in its own pools.

use drover_types::NicModel;
use drover_types::inventory::DiskBus;
use serde::{Deserialize, Serialize};

use crate::error::printable;

/// What an agent that can be asked for it says that it takes: [`What::Check`].
pub const CHECK: &str = "check";

/// Something that is to be done about a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// Its folder: `POOL/NAME`, or further down.
    pub folder: String,
    /// Whose machine it is: the same in every order of one plan about one VM. What others made is not touched.
    pub owner: String,
    /// Higher than that of every order before it: one that arrives after a later one is not carried out any more.
    pub number: u64,
    /// What is to be done.
    pub what: What,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Nothing: how it stands. No start that was ordered before happens after this, unless its number is 0.
    Look,
    /// Nothing: whether it could be prepared, and started where it is to be. Makes nothing, stands in no order's way, and its
    /// number does not count. Only of an agent that says that it takes [`CHECK`].
    Check(Machine),
    /// Its folders are made, once all that could refuse it was looked at.
    Prepare(Machine),
    /// Its definition is written beside its disks.
    Define(Machine),
    /// Its definition is removed. One that is gone is fine.
    Undefine,
    /// A start may follow, for [`crate::START_WITHIN`] and as long as there is no other order.
    Ready,
    /// It is started, if the order before this one was the `ready` of that number and not too long ago.
    Start {
        /// What it has.
        machine: Machine,
        /// Number of the `ready`.
        after: u64,
    },
    /// Its guest is converted, once: the images are complete, and nobody uses them. Ends with the channel of the order.
    Convert {
        /// What it has.
        machine: Machine,
        /// What its guest is.
        guest: Guest,
    },
    /// What tells of a conversion is removed: its images are about to hold what the source has.
    ForgetConversion,
    /// It is stopped, if it is the owner's. One that does not run is fine.
    Stop,
    /// Images are removed that still are what they were, and folders that are empty then.
    Clear {
        /// The images.
        images: Vec<Image>,
    },
}

/// An image to be removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    /// `POOL/FILE`.
    pub disk: String,
    /// Its tag: if it has another by now, it is another file, which stays.
    pub tag: String,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// BIOS UUID.
    #[serde(default)]
    pub uuid: Option<String>,
    /// One line for people.
    #[serde(default)]
    pub title: Option<String>,
    /// Where it came from.
    #[serde(default)]
    pub description: Option<String>,
    /// Firmware; the files of UEFI are the host's own.
    pub firmware: Firmware,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Cores per socket.
    pub cores_per_socket: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Whether its clock has local time, as Windows wants it.
    pub local_time: bool,
    /// Disks in boot order.
    pub disks: Vec<MachineDisk>,
    /// NICs in slot order.
    pub nics: Vec<MachineNic>,
    /// What executes it.
    pub accelerator: Accelerator,
    /// Whether an order to start it will follow.
    #[serde(default)]
    pub is_started: bool,
    /// Whether an order to convert it will follow, as far as that is known.
    #[serde(default)]
    pub is_converted: bool,
}

/// Firmware of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Firmware {
    /// Legacy BIOS.
    Bios,
    /// UEFI.
    Uefi,
    /// UEFI that runs signed boot loaders only.
    SecureUefi,
}

/// What executes the guest's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accelerator {
    /// KVM where it works, else TCG.
    Auto,
    /// KVM.
    Kvm,
    /// TCG.
    Tcg,
}

/// A disk of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineDisk {
    /// `POOL/FILE`, a raw image.
    pub disk: String,
    /// Bus.
    pub bus: Bus,
    /// Capacity in bytes.
    pub capacity_bytes: u64,
}

/// Bus of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bus {
    /// virtio-blk.
    Virtio,
    /// virtio-scsi.
    Scsi,
    /// AHCI.
    Sata,
}

/// A NIC of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineNic {
    /// MAC address.
    pub mac: String,
    /// What it is attached to.
    pub attach: Attach,
    /// Model.
    pub model: NicModel,
}

/// What a NIC is attached to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attach {
    /// A bridge of the agent's host.
    Bridge(String),
    /// QEMU's own network.
    User,
    /// Nothing.
    None,
}

/// What an agent whose host has a converter says that it takes.
pub const CONVERT: &str = "convert";
/// The same for Windows.
pub const CONVERT_WINDOWS: &str = "convert-windows";
/// The same for Windows that is to start from virtio-scsi.
pub const CONVERT_WINDOWS_SCSI: &str = "convert-windows-scsi";
/// Its converter writes files into guests: names of interfaces are kept.
pub const CONVERT_WRITE: &str = "convert-write";
/// It puts the boot loader of a Linux where a firmware without boot entries starts it ([`Guest::fallback`]).
pub const CONVERT_FALLBACK: &str = "convert-fallback";
/// Files for a guest's first boot may follow the order to convert it.
pub const CONVERT_FILES: &str = "convert-files";

/// Bytes that may follow an order to convert a guest.
pub const FILES_BYTES_MAX: u64 = 256 << 20;
/// Files that may follow it.
pub const FILES_MAX: usize = 64;

/// A guest to be converted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guest {
    /// Whether it is Windows.
    pub is_windows: bool,
    /// Bus of each disk at the source, in the order of the machine's disks.
    pub buses: Vec<DiskBus>,
    /// Network interfaces of a Linux that keep their names: MAC address and name.
    #[serde(default)]
    pub names: Vec<(String, String)>,
    /// Those that keep them if its network settings name them.
    #[serde(default)]
    pub names_maybe: Vec<(String, String)>,
    /// Whether a Linux gets its boot loader as `\\EFI\\BOOT\\BOOTX64.EFI`. Only to an agent that takes [`CONVERT_FALLBACK`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fallback: bool,
    /// Addresses in a form of before, which would be lost: an order with them is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<serde_json::Value>,
    /// Files that run at its first boot. Their bytes follow the order on its channel, one file after the other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scripts: Vec<GuestFile>,
    /// A package that is installed then. Its bytes follow those of the scripts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<GuestFile>,
}

/// A file whose bytes follow an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestFile {
    /// Its name, without a folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
}

/// How a conversion ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conversion {
    /// It was converted before.
    #[serde(default)]
    pub before: bool,
    /// The file with the converter's words, on the agent's host.
    #[serde(default)]
    pub log: String,
    /// What it warned of.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Network interfaces that keep their names.
    #[serde(default)]
    pub kept: Vec<String>,
}

/// How an order was carried out, and how the machine stands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Whether it runs.
    #[serde(default)]
    pub runs: bool,
    /// Whose definition lies in its folder.
    #[serde(default)]
    pub defined: Defined,
    /// A line about what was done.
    #[serde(default)]
    pub words: String,
    /// Of a start: how long its guest was watched, and ran.
    #[serde(default)]
    pub watched_ms: u64,
    /// A command that starts it on its host.
    #[serde(default)]
    pub start_with: Option<String>,
    /// How the conversion ended that was ordered.
    #[serde(default)]
    pub conversion: Option<Conversion>,
    /// Whether its images hold, or may hold in part, a converted guest.
    #[serde(default)]
    pub converted: bool,
    /// The number of the last order about it, whoever gave it.
    #[serde(default)]
    pub number: u64,
    /// Of a check: what the host lacks for it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<Lack>,
}

impl Told {
    /// What an agent said, as it may be shown to people.
    pub(crate) fn checked(self) -> Told {
        let lack = |it: Lack| Lack { what: printable(it.what), advice: printable(it.advice) };
        let lacks = self.lacks.into_iter().take(LACKS_MAX).map(lack).collect();
        let clean = |lines: Vec<String>| lines.into_iter().map(printable).collect();
        let conversion = self.conversion.map(|it| Conversion {
            log: printable(it.log),
            warnings: clean(it.warnings),
            kept: clean(it.kept),
            ..it
        });
        let start_with = self.start_with.map(printable);
        Told { words: printable(self.words), start_with, lacks, conversion, ..self }
    }
}

/// Something that a machine needs of a host and that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lack {
    /// What it is.
    pub what: String,
    /// What to try.
    pub advice: String,
}

impl std::fmt::Display for Lack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.what, self.advice)
    }
}

/// Things that are shown of what a host lacks for one machine.
const LACKS_MAX: usize = 16;

/// Whose definition there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Defined {
    /// None.
    #[default]
    No,
    /// The owner's of the order.
    Ours,
    /// Somebody else's.
    Others,
}
