use std::collections::{HashMap, HashSet};

use drover_types::inventory::{BusSharing, DiskBus, DiskMode, Nic, RdmMode, VmDisk};

use crate::xml::Element;

/// Names of networks by each of the ids that a NIC may refer to them.
#[derive(Debug, Default)]
pub(crate) struct NetworkNames(pub HashMap<String, String>);

struct Controller {
    bus: DiskBus,
    number: i32,
    sharing: Option<BusSharing>,
}

/// The disks among `devices` (`config.hardware.device`), those of `boot_keys` first, then by bus and address.
pub(crate) fn disks<'a>(
    devices: impl Iterator<Item = &'a Element> + Clone,
    boot_keys: &[i32],
) -> Vec<VmDisk> {
    let controllers: HashMap<i32, Controller> = devices.clone().filter_map(controller).collect();
    let mut disks: Vec<VmDisk> = devices
        .filter(|device| device.kind == "VirtualDisk")
        .map(|device| disk(device, &controllers))
        .collect();
    disks.sort_by_key(|disk| {
        let boot = boot_keys.iter().position(|key| *key == disk.key).unwrap_or(usize::MAX);
        (boot, bus_rank(disk.bus), disk.address)
    });
    disks
}

/// What is not told of a disk, and is told of every one: its file, or, but for raw mappings, its mode.
pub(crate) fn untold_disk<'a>(devices: impl Iterator<Item = &'a Element>) -> Option<String> {
    let untold = |device: &Element| {
        let label = device.string_at("deviceInfo/label");
        let backing = device.child("backing");
        let has =
            |key: &str| backing.and_then(|backing| backing.text_at(key)).is_some_and(|text| !text.is_empty());
        match () {
            () if !has("fileName") => Some(format!("the file of disk '{label}'")),
            () if !(has("diskMode") || has("mode") || has("compatibilityMode")) => {
                Some(format!("the mode of disk '{label}'"))
            }
            () => None,
        }
    };
    devices.filter(|device| device.kind == "VirtualDisk").find_map(untold)
}

fn controller(device: &Element) -> Option<(i32, Controller)> {
    let bus = match device.kind.as_str() {
        "VirtualIDEController" => DiskBus::Ide,
        "VirtualAHCIController" | "VirtualSATAController" => DiskBus::Sata,
        "VirtualNVMEController" => DiskBus::Nvme,
        kind if device.child("busNumber").is_some() && (kind.contains("SCSI") || kind.contains("Logic")) => {
            DiskBus::Scsi
        }
        _ => return None,
    };
    let sharing = match device.text_at("sharedBus") {
        None | Some("noSharing") => None,
        Some("virtualSharing") => Some(BusSharing::Virtual),
        Some(_) => Some(BusSharing::Physical),
    };
    Some((
        device.number_at("key")?,
        Controller { bus, number: device.number_at("busNumber").unwrap_or(0), sharing },
    ))
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

fn disk(device: &Element, controllers: &HashMap<i32, Controller>) -> VmDisk {
    let nothing = Element::default();
    let backing = device.child("backing").unwrap_or(&nothing);
    let controller = device.number_at("controllerKey").and_then(|key: i32| controllers.get(&key));
    let bus_sharing = controller.and_then(|controller| controller.sharing);
    let path = backing.string_at("fileName");
    let in_kib = || device.number_at::<u64>("capacityInKB").map(|kib| kib.saturating_mul(1024));
    VmDisk {
        key: device.number_at("key").unwrap_or(0),
        uuid: backing.string_at("uuid"),
        label: device.string_at("deviceInfo/label"),
        capacity_bytes: device.number_at("capacityInBytes").or_else(in_kib).unwrap_or(0),
        thin: backing.text_at("thinProvisioned").map(|text| text == "true" || text == "1"),
        datastore: split_path(&path).map(|(datastore, _)| datastore.to_string()).unwrap_or_default(),
        has_parent: backing.child("parent").is_some(),
        bus: controller.map(|controller| controller.bus).unwrap_or_default(),
        address: (
            controller.map_or(0, |controller| controller.number),
            device.number_at("unitNumber").unwrap_or(0),
        ),
        mode: mode(backing.text_at("diskMode").or_else(|| backing.text_at("mode"))),
        rdm: rdm(backing),
        shared: backing.text_at("sharing") == Some("sharingMultiWriter") || bus_sharing.is_some(),
        bus_sharing,
        encrypted: backing.child("keyId").is_some(),
        change_tracking: false,
        change_id: backing.text_at("changeId").map(str::to_string),
        path,
    }
}

/// Notes which disks the VM's settings (`config.extraConfig`) say are tracked.
pub(crate) fn mark_tracked<'a>(disks: &mut [VmDisk], settings: impl Iterator<Item = &'a Element>) {
    let on =
        |setting: &Element| setting.text_at("value").is_some_and(|value| value.eq_ignore_ascii_case("true"));
    let keys: HashSet<String> = settings
        .filter(|setting| on(setting))
        .map(|setting| setting.string_at("key").to_ascii_lowercase())
        .collect();
    for disk in disks {
        disk.change_tracking = keys.contains(&tracking_key(disk).to_ascii_lowercase());
    }
}

/// The setting that switches change tracking on for a disk: `scsi0:1.ctkEnabled`.
pub(crate) fn tracking_key(disk: &VmDisk) -> String {
    let bus = match disk.bus {
        DiskBus::Scsi => "scsi",
        DiskBus::Sata => "sata",
        DiskBus::Nvme => "nvme",
        DiskBus::Ide => "ide",
    };
    format!("{bus}{}:{}.ctkEnabled", disk.address.0, disk.address.1)
}

fn mode(text: Option<&str>) -> DiskMode {
    match text {
        Some("independent_persistent") => DiskMode::IndependentPersistent,
        Some("independent_nonpersistent" | "nonpersistent") => DiskMode::IndependentNonpersistent,
        _ => DiskMode::Persistent,
    }
}

fn rdm(backing: &Element) -> Option<RdmMode> {
    if !backing.kind.contains("RawDisk") {
        return None;
    }
    match backing.text_at("compatibilityMode") {
        Some("virtualMode") => Some(RdmMode::Virtual),
        _ => Some(RdmMode::Physical),
    }
}

/// Cuts `[datastore] folder/name.vmdk` into datastore and file.
pub(crate) fn split_path(path: &str) -> Option<(&str, &str)> {
    let (datastore, file) = path.strip_prefix('[')?.split_once(']')?;
    Some((datastore, file.trim_start()))
}

/// The NICs among `devices`, in slot order.
pub(crate) fn nics<'a>(
    devices: impl Iterator<Item = &'a Element>,
    networks: &NetworkNames,
    powered_on: bool,
) -> Vec<Nic> {
    let mut cards: Vec<&Element> = devices.filter(|device| device.child("macAddress").is_some()).collect();
    cards.sort_by_key(|device| device.number_at::<i32>("key").unwrap_or(0));
    let connected = if powered_on { "connectable/connected" } else { "connectable/startConnected" };
    let nic = |device: &Element| Nic {
        label: device.string_at("deviceInfo/label"),
        mac: device.string_at("macAddress").to_ascii_lowercase(),
        network: network(device, networks),
        model: model(&device.kind),
        // A card of which it is not told is one that cannot be unplugged.
        connected: device.child("connectable").is_none() || device.flag_at(connected),
        pci_slot: device.number_at("slotInfo/pciSlotNumber"),
        fixed: None,
    };
    cards.into_iter().map(nic).collect()
}

/// Standard networks are told by reference and name, distributed ones by a key, opaque ones by an id.
fn network(device: &Element, networks: &NetworkNames) -> String {
    let paths = ["backing/network", "backing/port/portgroupKey", "backing/opaqueNetworkId"];
    let ids = paths.iter().filter_map(|path| device.text_at(path));
    let known = ids.clone().find_map(|id| networks.0.get(id)).cloned();
    known
        .or_else(|| device.text_at("backing/deviceName").map(str::to_string))
        .or_else(|| ids.clone().next().map(str::to_string))
        .unwrap_or_default()
}

/// `VirtualVmxnet3` is `vmxnet3`, `VirtualSriovEthernetCard` is `sriov`.
fn model(kind: &str) -> String {
    let name = kind.strip_prefix("Virtual").unwrap_or(kind);
    name.strip_suffix("EthernetCard").unwrap_or(name).to_ascii_lowercase()
}

/// Labels of devices of the host that are passed through to the guest.
pub(crate) fn passthrough<'a>(devices: impl Iterator<Item = &'a Element>) -> Vec<String> {
    let passed = |device: &&Element| {
        device.kind.contains("Passthrough")
            || device.kind == "VirtualSriovEthernetCard"
            || device.child("backing").is_some_and(|backing| backing.kind.contains("Passthrough"))
    };
    devices.filter(passed).map(|device| device.string_at("deviceInfo/label")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xml;

    fn devices(text: &str) -> Element {
        xml::parse(&format!("<h xmlns:i=\"http://www.w3.org/2001/XMLSchema-instance\">{text}</h>")).unwrap()
    }

    #[test]
    fn a_disk_whose_file_or_mode_is_not_told_is_named() {
        let disk = |backing: &str| {
            let label = "<deviceInfo><label>Hard disk 2</label></deviceInfo>";
            devices(&format!(
                "<device i:type=\"VirtualDisk\"><key>2001</key>{label}<backing>{backing}</backing></device>\
                 <device i:type=\"VirtualCdrom\"><backing/></device>"
            ))
        };
        let untold = |backing: &str| untold_disk(disk(backing).children.iter());
        let (file, mode) = ("<fileName>[ds1] a/a.vmdk</fileName>", "<diskMode>persistent</diskMode>");
        assert_eq!(untold(&format!("{file}{mode}")), None);
        assert_eq!(untold(&format!("{file}<compatibilityMode>physicalMode</compatibilityMode>")), None);
        assert_eq!(untold(file).as_deref(), Some("the mode of disk 'Hard disk 2'"));
        for backing in [mode, "<fileName/><diskMode>persistent</diskMode>"] {
            assert_eq!(untold(backing).as_deref(), Some("the file of disk 'Hard disk 2'"), "{backing}");
        }
    }

    #[test]
    fn disks_come_in_boot_order_with_bus_and_address() {
        let hardware = devices(
            "<device i:type=\"ParaVirtualSCSIController\"><key>1001</key><busNumber>1</busNumber>\
             <sharedBus>noSharing</sharedBus></device>\
             <device i:type=\"VirtualNVMEController\"><key>31000</key><busNumber>0</busNumber></device>\
             <device i:type=\"VirtualDisk\"><key>32000</key><controllerKey>31000</controllerKey><unitNumber>2</unitNumber>\
             <backing i:type=\"VirtualDiskFlatVer2BackingInfo\"><fileName>[a b] x/y.vmdk</fileName>\
             <diskMode>independent_persistent</diskMode><thinProvisioned>true</thinProvisioned>\
             <keyId><keyId>k</keyId></keyId></backing><capacityInKB>2</capacityInKB></device>\
             <device i:type=\"VirtualDisk\"><key>2016</key><controllerKey>1001</controllerKey><unitNumber>0</unitNumber>\
             <backing i:type=\"VirtualDiskFlatVer2BackingInfo\"><fileName>[ds] z.vmdk</fileName><changeId>5/1</changeId>\
             <parent><fileName>[ds] base.vmdk</fileName></parent></backing><capacityInBytes>513</capacityInBytes></device>",
        );
        let found = disks(hardware.children.iter(), &[]);
        assert_eq!(found.iter().map(|disk| disk.key).collect::<Vec<_>>(), [2016, 32000]);
        let (scsi, nvme) = (&found[0], &found[1]);
        assert_eq!((scsi.bus, scsi.address, scsi.capacity_bytes), (DiskBus::Scsi, (1, 0), 513));
        assert!(scsi.has_parent && scsi.change_id.as_deref() == Some("5/1") && !scsi.shared);
        assert_eq!((nvme.bus, nvme.address, nvme.capacity_bytes), (DiskBus::Nvme, (0, 2), 2048));
        assert_eq!((nvme.mode, nvme.datastore.as_str()), (DiskMode::IndependentPersistent, "a b"));
        assert!(nvme.encrypted && nvme.thin == Some(true));
        assert_eq!(disks(hardware.children.iter(), &[32000])[0].key, 32000);
    }

    #[test]
    fn raw_mappings_and_shared_disks_are_told() {
        let hardware = devices(
            "<device i:type=\"VirtualDisk\"><key>1</key><backing i:type=\"VirtualDiskRawDiskMappingVer1BackingInfo\">\
             <fileName>[d] r.vmdk</fileName><compatibilityMode>virtualMode</compatibilityMode>\
             <sharing>sharingMultiWriter</sharing></backing></device><device i:type=\"VirtualDisk\"/>",
        );
        let found = disks(hardware.children.iter(), &[]);
        assert!(found.iter().any(|disk| disk.rdm == Some(RdmMode::Virtual) && disk.shared));
    }

    #[test]
    fn a_disk_tells_how_its_controller_shares_its_bus() {
        let sharing = |word: &str| {
            let hardware = devices(&format!(
                "<device i:type=\"VirtualLsiLogicSASController\"><key>1001</key><busNumber>1</busNumber>\
                 <sharedBus>{word}</sharedBus></device>\
                 <device i:type=\"VirtualDisk\"><key>2016</key><controllerKey>1001</controllerKey></device>"
            ));
            let disk = disks(hardware.children.iter(), &[]).remove(0);
            (disk.bus_sharing, disk.shared)
        };
        assert_eq!(sharing("noSharing"), (None, false));
        assert_eq!(sharing("virtualSharing"), (Some(BusSharing::Virtual), true));
        assert_eq!(sharing("physicalSharing"), (Some(BusSharing::Physical), true));
    }

    #[test]
    fn a_disk_is_tracked_if_its_own_setting_says_so() {
        let hardware = devices(
            "<device i:type=\"VirtualAHCIController\"><key>15000</key><busNumber>0</busNumber></device>\
             <device i:type=\"VirtualDisk\"><key>16002</key><controllerKey>15000</controllerKey><unitNumber>2</unitNumber>\
             <backing><uuid>6000c29a-1</uuid></backing></device>\
             <device i:type=\"VirtualDisk\"><key>16003</key><controllerKey>15000</controllerKey><unitNumber>3</unitNumber>\
             </device>",
        );
        let settings = devices(
            "<s><key>ctkEnabled</key><value>TRUE</value></s><s><key>sata0:2.ctkEnabled</key><value>true</value></s>\
             <s><key>sata0:3.ctkEnabled</key><value>FALSE</value></s>",
        );
        let mut found = disks(hardware.children.iter(), &[]);
        mark_tracked(&mut found, settings.children.iter());
        let told = |disk: &VmDisk| (disk.key, disk.change_tracking, disk.uuid.clone());
        let wanted = [(16002, true, "6000c29a-1".to_string()), (16003, false, String::new())];
        assert_eq!(found.iter().map(told).collect::<Vec<_>>(), wanted);
        assert_eq!(tracking_key(&found[1]), "sata0:3.ctkEnabled");
    }

    #[test]
    fn networks_are_named_whatever_kind_of_backing() {
        let hardware = devices(
            "<device i:type=\"VirtualVmxnet3\"><key>4001</key><macAddress>00:50:56:AA:00:02</macAddress>\
             <backing><port><portgroupKey>dvportgroup-7</portgroupKey></port></backing></device>\
             <device i:type=\"VirtualE1000e\"><key>4000</key><macAddress>00:50:56:aa:00:01</macAddress>\
             <backing><deviceName>VM Network</deviceName><network type=\"Network\">network-1</network></backing>\
             <connectable><startConnected>true</startConnected><connected>false</connected></connectable>\
             <slotInfo i:type=\"VirtualDevicePciBusSlotInfo\"><pciSlotNumber>33</pciSlotNumber></slotInfo></device>",
        );
        let names = NetworkNames([("dvportgroup-7".to_string(), "prod".to_string())].into());
        let found = nics(hardware.children.iter(), &names, false);
        assert_eq!((found[0].model.as_str(), found[0].network.as_str()), ("e1000e", "VM Network"));
        assert_eq!((found[1].network.as_str(), found[1].mac.as_str()), ("prod", "00:50:56:aa:00:02"));
        assert!(found[0].connected && found[1].connected, "the second one cannot be unplugged");
        assert_eq!((found[0].pci_slot, found[1].pci_slot), (Some(33), None));
    }
}
