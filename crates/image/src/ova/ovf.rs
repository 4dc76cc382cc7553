use std::collections::HashMap;
use std::io;

use drover_types::inventory::{Firmware, PowerState, Vm};
use roxmltree::Node;

use super::hardware;
use super::xml::{Elements, parse};
use crate::fault::{damaged, unsupported};
use crate::open::Format;

/// What an OVF descriptor says.
///
/// ```text
/// Envelope
///   References/File          id, href, size, compression
///   DiskSection/Disk         diskId, fileRef, capacity, capacityAllocationUnits, format
///   VirtualSystem            id; Name; VirtualHardwareSection/Item: CPUs, memory, controllers, disks, NICs
/// ```
/// Source: DMTF DSP0243.
#[derive(Debug, Default)]
pub(crate) struct Descriptor {
    pub(crate) vm: Vm,
    /// As many as the machine has, in the same order.
    pub(crate) disks: Vec<DiskEntry>,
    pub(crate) notes: Vec<String>,
}

/// A disk of the machine and the file it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiskEntry {
    pub(crate) file: Option<FileEntry>,
    pub(crate) capacity_bytes: u64,
    pub(crate) format: Option<Format>,
}

/// A file as the descriptor names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileEntry {
    pub(crate) href: String,
    /// Absent where the descriptor does not tell.
    pub(crate) bytes: Option<u64>,
    pub(crate) compression: String,
    pub(crate) chunked: bool,
}

/// Disks of one machine; VMware allows 256.
pub(crate) const DISKS_MAX: usize = 1024;

pub(crate) fn read(text: &str) -> io::Result<Descriptor> {
    let document = parse(text)?;
    let envelope = document.root_element();
    if envelope.tag_name().name() != "Envelope" {
        return Err(damaged("it is no OVF envelope"));
    }
    let system = only_system(envelope)?;
    let disks = disks(envelope)?;
    let mut found = Descriptor::default();
    let hardware = system.first("VirtualHardwareSection");
    let hardware = hardware.ok_or_else(|| damaged("its machine has no hardware section"))?;
    let items = hardware::items(hardware, default_configuration(envelope));
    found.vm = machine(system, hardware);
    hardware::add(&items, &disks, &mut found)?;
    tell_what_is_left_out(envelope, system, &mut found);
    Ok(found)
}

fn only_system<'a, 'i>(envelope: Node<'a, 'i>) -> io::Result<Node<'a, 'i>> {
    let mut systems = envelope.all("VirtualSystem");
    for collection in envelope.all("VirtualSystemCollection") {
        systems.extend(collection.within("VirtualSystem"));
    }
    match systems[..] {
        [system] => Ok(system),
        [] => Err(damaged("it describes no machine")),
        _ => Err(unsupported(format!("it describes {} machines; export each on its own", systems.len()))),
    }
}

fn machine(system: Node<'_, '_>, hardware: Node<'_, '_>) -> Vm {
    let id = system.value("id");
    let name = Some(system.text_of("Name")).filter(|name| !name.is_empty()).unwrap_or_else(|| id.clone());
    // VMware's `Config key="firmware" value="efi"`.
    let config = hardware.within("Config");
    let is = |key: &str, value: &str| {
        config.iter().any(|node| node.value("key") == key && node.value("value").eq_ignore_ascii_case(value))
    };
    // VirtualBox's `Machine/Hardware/Firmware type="EFI64"`.
    let efi = |node: &Node<'_, '_>| node.value("type").to_ascii_uppercase().starts_with("EFI");
    let uefi = is("firmware", "efi") || system.within("Firmware").iter().any(efi);
    Vm {
        id,
        name,
        firmware: Some(if uefi { Firmware::Uefi } else { Firmware::Bios }),
        secure_boot: is("bootOptions.efiSecureBootEnabled", "true"),
        guest_id: guest(system),
        hardware_version: hardware
            .first("System")
            .map(|it| it.text_of("VirtualSystemType"))
            .unwrap_or_default(),
        cores_per_socket: 1,
        power: PowerState::Off,
        ..Vm::default()
    }
}

fn guest(system: Node<'_, '_>) -> String {
    let Some(section) = system.first("OperatingSystemSection") else { return String::new() };
    Some(section.value("osType"))
        .filter(|kind| !kind.is_empty())
        .unwrap_or_else(|| section.text_of("Description"))
}

/// The configuration that an importer takes when nobody chooses one: the one marked, else the first.
fn default_configuration(envelope: Node<'_, '_>) -> String {
    let configurations: Vec<_> =
        envelope.all("DeploymentOptionSection").into_iter().flat_map(|it| it.all("Configuration")).collect();
    let marked = configurations.iter().find(|it| matches!(it.value("default").as_str(), "true" | "1"));
    marked.or(configurations.first()).map(|it| it.value("id")).unwrap_or_default()
}

/// Disks and files by what an item calls them: `disk/ID` and `file/ID`.
fn disks(envelope: Node<'_, '_>) -> io::Result<HashMap<String, DiskEntry>> {
    let files: HashMap<String, FileEntry> = envelope
        .all("References")
        .into_iter()
        .flat_map(|section| section.all("File"))
        .map(|node| (node.value("id"), file(node)))
        .collect();
    let mut found = HashMap::new();
    for node in envelope.all("DiskSection").into_iter().flat_map(|section| section.all("Disk")) {
        let id = node.value("diskId");
        let reference = node.value("fileRef");
        if !node.value("parentRef").is_empty() {
            return Err(unsupported(format!("disk '{}' has a parent disk", id.escape_default())));
        }
        let file = match reference.as_str() {
            "" => None,
            reference => Some(files.get(reference).cloned().ok_or_else(|| {
                damaged(format!("disk '{}' names a file that is not listed", id.escape_default()))
            })?),
        };
        let format = format_of(&node.value("format"), file.as_ref());
        found.insert(format!("disk/{id}"), DiskEntry { file, capacity_bytes: capacity(node)?, format });
    }
    for (id, file) in files {
        let format = format_of("", Some(&file));
        found.insert(format!("file/{id}"), DiskEntry { file: Some(file), capacity_bytes: 0, format });
    }
    Ok(found)
}

fn file(node: Node<'_, '_>) -> FileEntry {
    FileEntry {
        href: node.value("href"),
        bytes: node.value("size").parse().ok(),
        compression: node.value("compression"),
        chunked: !node.value("chunkSize").is_empty(),
    }
}

fn capacity(node: Node<'_, '_>) -> io::Result<u64> {
    let (number, units) = (node.value("capacity"), node.value("capacityAllocationUnits"));
    let bytes = number.parse().ok().and_then(|count: u64| count.checked_mul(unit_bytes(&units)?));
    bytes.ok_or_else(|| {
        let text = format!("a disk of '{}' '{}'", number.escape_default(), units.escape_default());
        unsupported(format!("{text}; a number of bytes is read"))
    })
}

/// Bytes of a unit such as `byte * 2^20`, `MegaBytes`, `GB`; one if there is none.
pub(crate) fn unit_bytes(text: &str) -> Option<u64> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).flat_map(char::to_lowercase).collect();
    if let Some(exponent) = text.strip_prefix("byte*2^").or_else(|| text.strip_prefix("bytes*2^")) {
        return exponent.parse().ok().filter(|bits: &u32| *bits < 63).map(|bits| 1 << bits);
    }
    match text.as_str() {
        "" | "byte" | "bytes" => Some(1),
        "kilobytes" | "kb" => Some(1 << 10),
        "megabytes" | "mb" => Some(1 << 20),
        "gigabytes" | "gb" => Some(1 << 30),
        "terabytes" | "tb" => Some(1 << 40),
        _ => None,
    }
}

/// The format that the descriptor states by a URL, else the one that the file's name ends in.
fn format_of(url: &str, file: Option<&FileEntry>) -> Option<Format> {
    let url = url.to_ascii_lowercase();
    let words =
        [("vmdk", Format::Vmdk), ("qcow2", Format::Qcow2), ("vhdx", Format::Vhdx), ("vhd", Format::Vhd)];
    let by_url = words.into_iter().find(|(word, _)| url.contains(word));
    let name = file.map(|file| file.href.to_ascii_lowercase()).unwrap_or_default();
    let mut ends = words.into_iter().chain([("raw", Format::Raw), ("img", Format::Raw)]);
    let by_name = || ends.find(|(end, _)| name.rsplit_once('.').is_some_and(|(_, found)| found == *end));
    by_url.or_else(by_name).map(|(_, format)| format)
}

fn tell_what_is_left_out(envelope: Node<'_, '_>, system: Node<'_, '_>, found: &mut Descriptor) {
    let properties = system.within("Property").len();
    if properties > 0 {
        found.notes.push(format!(
            "it wants {properties} properties set at deployment (vApp); its guest will find none of them"
        ));
    }
    if envelope.within("EulaSection").iter().any(|section| !section.text_of("License").is_empty()) {
        found.notes.push("it has a licence agreement; read it in the .ovf file".to_string());
    }
}
