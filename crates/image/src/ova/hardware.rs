use std::collections::HashMap;
use std::io;

use drover_types::inventory::{DiskBus, Nic, VmDisk};
use roxmltree::Node;

use super::ovf::{DISKS_MAX, Descriptor, DiskEntry, unit_bytes};
use super::xml::Elements;
use crate::fault::{damaged, unsupported};

/// A line of the virtual hardware section.
///
/// Source: DMTF DSP0243, "Virtual hardware description", and CIM_ResourceAllocationSettingData for
/// the numbers of resource types.
#[derive(Clone, Debug, Default)]
pub(crate) struct Item {
    kind: u32,
    id: String,
    parent: String,
    /// Slot on the controller.
    slot: i32,
    name: String,
    subtype: String,
    /// MAC address of a NIC; number of a controller.
    address: String,
    quantity: u64,
    units: String,
    connection: String,
    resource: String,
    connected: bool,
    cores_per_socket: Option<u32>,
}

const CPU: u32 = 3;
const MEMORY: u32 = 4;
const IDE: u32 = 5;
const SCSI: u32 = 6;
const NIC: u32 = 10;
const DISK: u32 = 17;
const OTHER_STORAGE: u32 = 20;

/// The items of a hardware section that hold in the configuration of that name. An item that names
/// a configuration takes the place of one that names none.
pub(crate) fn items(hardware: Node<'_, '_>, configuration: String) -> Vec<Item> {
    let mut found: Vec<Item> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for name in ["Item", "StorageItem", "EthernetPortItem"] {
        for node in hardware.all(name) {
            let only_in = node.value("configuration");
            if !only_in.is_empty() && !only_in.split_whitespace().any(|name| name == configuration) {
                continue;
            }
            let item = item(node);
            match places.get(&item.id) {
                Some(place) if !item.id.is_empty() => found[*place] = item,
                _ => {
                    places.insert(item.id.clone(), found.len());
                    found.push(item);
                }
            }
        }
    }
    found
}

fn item(node: Node<'_, '_>) -> Item {
    let text = |name: &str| node.text_of(name);
    Item {
        kind: text("ResourceType").parse().unwrap_or(0),
        id: text("InstanceID"),
        parent: text("Parent"),
        slot: text("AddressOnParent").parse().unwrap_or(0),
        name: text("ElementName"),
        subtype: text("ResourceSubType"),
        address: text("Address"),
        quantity: text("VirtualQuantity").parse().unwrap_or(0),
        units: text("AllocationUnits"),
        connection: text("Connection"),
        resource: text("HostResource"),
        connected: !text("AutomaticAllocation").eq_ignore_ascii_case("false"),
        cores_per_socket: text("CoresPerSocket").parse().ok(),
    }
}

/// Adds the items to the machine.
pub(crate) fn add(
    items: &[Item],
    disks: &HashMap<String, DiskEntry>,
    found: &mut Descriptor,
) -> io::Result<()> {
    let controllers: HashMap<&str, (DiskBus, i32)> = items.iter().filter_map(controller).collect();
    let mut machine_disks = Vec::new();
    for item in items {
        match item.kind {
            CPU => {
                found.vm.cpus = u32::try_from(item.quantity).map_err(|_| damaged("it has too many CPUs"))?;
                found.vm.cores_per_socket = item.cores_per_socket.unwrap_or(1).max(1);
            }
            MEMORY => found.vm.memory_mib = memory_mib(item)?,
            NIC => found.vm.nics.push(nic(item)),
            DISK => machine_disks.push(disk(item, &controllers, disks)?),
            _ if item.subtype.to_ascii_lowercase().contains("tpm") => found.vm.vtpm = true,
            _ => {}
        }
    }
    if machine_disks.len() > DISKS_MAX {
        return Err(unsupported(format!("it has more than {DISKS_MAX} disks")));
    }
    if found.vm.cpus == 0 || found.vm.memory_mib == 0 {
        return Err(damaged("it does not say how many CPUs and how much memory it has"));
    }
    machine_disks.sort_by_key(|(disk, _)| (bus_rank(disk.bus), disk.address));
    (found.vm.disks, found.disks) = machine_disks.into_iter().unzip();
    Ok(())
}

fn memory_mib(item: &Item) -> io::Result<u64> {
    // Old exports leave the unit out and mean MiB.
    let unit = if item.units.is_empty() { Some(1 << 20) } else { unit_bytes(&item.units) };
    let bytes = unit.and_then(|unit| item.quantity.checked_mul(unit));
    bytes
        .map(|bytes| bytes >> 20)
        .ok_or_else(|| unsupported(format!("memory of {} '{}'", item.quantity, item.units.escape_default())))
}

fn nic(item: &Item) -> Nic {
    Nic {
        label: item.name.clone(),
        mac: item.address.to_ascii_lowercase().replace('-', ":"),
        network: item.connection.clone(),
        model: item.subtype.to_ascii_lowercase(),
        connected: item.connected,
        fixed: None,
        pci_slot: None,
    }
}

fn controller(item: &Item) -> Option<(&str, (DiskBus, i32))> {
    let subtype = item.subtype.to_ascii_lowercase();
    let bus = match item.kind {
        IDE => DiskBus::Ide,
        SCSI => DiskBus::Scsi,
        OTHER_STORAGE if subtype.contains("nvme") => DiskBus::Nvme,
        OTHER_STORAGE if subtype.contains("scsi") || subtype.contains("sas") => DiskBus::Scsi,
        OTHER_STORAGE => DiskBus::Sata,
        _ => return None,
    };
    Some((item.id.as_str(), (bus, item.address.parse().unwrap_or(0))))
}

fn disk(
    item: &Item,
    controllers: &HashMap<&str, (DiskBus, i32)>,
    disks: &HashMap<String, DiskEntry>,
) -> io::Result<(VmDisk, DiskEntry)> {
    // `ovf:/disk/ID`, and without the scheme in old exports.
    let resource = item.resource.strip_prefix("ovf:").unwrap_or(&item.resource).trim_start_matches('/');
    let entry = disks.get(resource).cloned().ok_or_else(|| {
        let (name, resource) = (item.name.escape_default(), item.resource.escape_default());
        damaged(format!("disk '{name}' is '{resource}', which is not listed"))
    })?;
    let (bus, number) = controllers.get(item.parent.as_str()).copied().unwrap_or((DiskBus::Scsi, 0));
    let disk = VmDisk {
        key: item.id.parse().unwrap_or(0),
        label: item.name.clone(),
        capacity_bytes: entry.capacity_bytes,
        path: entry.file.as_ref().map(|file| file.href.clone()).unwrap_or_default(),
        bus,
        address: (number, item.slot),
        ..VmDisk::default()
    };
    Ok((disk, entry))
}

/// The order in which a BIOS without other orders looks for a disk to boot.
fn bus_rank(bus: DiskBus) -> u8 {
    match bus {
        DiskBus::Scsi => 0,
        DiskBus::Ide => 1,
        DiskBus::Sata => 2,
        DiskBus::Nvme => 3,
    }
}
