use std::collections::HashMap;

use drover_types::inventory::{Firmware, PowerState, Snapshot, ToolsState, Vm};

use crate::collect::Object;
use crate::device::{self, NetworkNames};
use crate::guest::fill_addresses;
use crate::time::seconds_of;
use crate::xml::Element;

/// What a VM is made of. Nothing here is large but the device list.
pub(crate) const VM_PROPERTIES: &[&str] = &[
    "name",
    "parent",
    "parentVApp",
    "runtime.powerState",
    "runtime.host",
    "runtime.consolidationNeeded",
    "guest.toolsRunningStatus",
    "guest.toolsStatus",
    "guest.net",
    "guest.ipStack",
    "config.template",
    "config.uuid",
    "config.instanceUuid",
    "config.firmware",
    "config.bootOptions",
    "config.hardware",
    "config.guestId",
    "config.version",
    "config.changeTrackingEnabled",
    "config.extraConfig",
    "config.managedBy",
    "capability.changeTrackingSupported",
    "snapshot",
    "summary.storage",
    "summary.config.memoryReservation",
];

/// Since API 6.5; older servers refuse the whole request over a property they do not know.
pub(crate) const VM_KEY_ID: &str = "config.keyId";

/// The tree of folders, data centres, hosts and clusters, and names of networks.
#[derive(Debug, Default)]
pub(crate) struct Surroundings {
    parents: HashMap<String, Place>,
    pub networks: NetworkNames,
}

#[derive(Debug)]
struct Place {
    kind: String,
    name: String,
    parent: String,
}

/// No tree of folders is deeper; a longer way up is a loop.
const WAY_UP_MAX: usize = 100;

impl Surroundings {
    /// Takes in an object of any type.
    pub fn learn(&mut self, object: &Object) {
        let (id, kind) = (&object.moref.id, &object.moref.kind);
        let name = object.string("name");
        if kind == "Network" || kind == "OpaqueNetwork" || kind == "DistributedVirtualPortgroup" {
            let aliases =
                [object.text("key"), object.get("summary").and_then(|s| s.text_at("opaqueNetworkId"))];
            for key in aliases.into_iter().flatten().chain([id.as_str()]) {
                self.networks.0.insert(key.to_string(), decode_name(&name));
            }
        }
        let parent = object.text("parent").or_else(|| object.text("parentFolder")).unwrap_or_default();
        self.parents.insert(id.clone(), Place { kind: kind.clone(), name, parent: parent.to_string() });
    }

    /// Places from `start` up to the root, lowest first.
    fn way_up<'a>(&'a self, start: &'a str) -> impl Iterator<Item = &'a Place> {
        std::iter::successors(self.parents.get(start), |place| self.parents.get(&place.parent))
            .take(WAY_UP_MAX)
    }

    /// Path of the data centre above `start`, with the folders it lies in, as data URLs want it.
    fn datacenter(&self, start: &str) -> Option<String> {
        let above: Vec<&Place> = self.way_up(start).skip_while(|place| place.kind != "Datacenter").collect();
        // The last is the root folder, which has no place in paths.
        let named = &above[..above.len().saturating_sub(1).max(above.len().min(1))];
        let names: Vec<&str> = named.iter().rev().map(|place| place.name.as_str()).collect();
        (!names.is_empty()).then(|| names.join("/"))
    }

    /// Name of the cluster that a host is in.
    pub fn cluster(&self, host: &str) -> Option<String> {
        let above = self.parents.get(&self.parents.get(host)?.parent)?;
        (above.kind == "ClusterComputeResource").then(|| decode_name(&above.name))
    }

    /// Path of folders below the data centre's own folder of VMs.
    fn folder(&self, start: &str) -> String {
        let mut names: Vec<String> = (self.way_up(start).take_while(|place| place.kind != "Datacenter"))
            .filter(|place| place.kind == "Folder")
            .map(|place| decode_name(&place.name))
            .collect();
        names.pop();
        names.reverse();
        names.join("/")
    }
}

/// vSphere writes `/`, `\` and `%` in names as `%2f`, `%5c` and `%25`.
pub(crate) fn decode_name(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let (c, length) = match rest.get(at..at + 3).map(str::to_ascii_lowercase).as_deref() {
            Some("%2f") => ('/', 3),
            Some("%5c") => ('\\', 3),
            Some("%25") => ('%', 3),
            _ => ('%', 1),
        };
        out.push(c);
        rest = &rest[at + length..];
    }
    out + rest
}

/// Whether it is a template, which drover leaves alone.
pub(crate) fn is_template(object: &Object) -> bool {
    object.flag("config.template")
}

/// The VM that `object` describes. What is not told keeps its default.
pub(crate) fn vm_of(object: &Object, around: &Surroundings) -> Vm {
    let nothing = Element::default();
    let hardware = object.get("config.hardware").unwrap_or(&nothing);
    let boot = object.get("config.bootOptions").unwrap_or(&nothing);
    let parent = object.text("parent").or_else(|| object.text("parentVApp")).unwrap_or_default();
    let host_id = object.string("runtime.host");
    let power = power_of(object.text("runtime.powerState"));
    let boot_keys: Vec<i32> =
        boot.all("bootOrder").filter_map(|device| device.number_at("deviceKey")).collect();
    let cpus = hardware.number_at("numCPU").unwrap_or(0);
    let memory_mib = hardware.number_at("memoryMB").unwrap_or(0);
    let mut vm = Vm {
        id: object.moref.id.clone(),
        name: decode_name(&object.string("name")),
        folder: around.folder(parent),
        datacenter: around.datacenter(parent).or_else(|| around.datacenter(&host_id)).unwrap_or_default(),
        host_id,
        uuid: object.string("config.uuid"),
        instance_uuid: object.string("config.instanceUuid"),
        power,
        firmware: firmware(object.text("config.firmware")),
        secure_boot: boot.flag_at("efiSecureBootEnabled"),
        cpus,
        cores_per_socket: hardware.number_at("numCoresPerSocket").filter(|cores| *cores > 0).unwrap_or(1),
        memory_mib,
        guest_id: object.string("config.guestId"),
        tools: tools(object.text("guest.toolsRunningStatus"), object.text("guest.toolsStatus")),
        hardware_version: object.string("config.version"),
        change_tracking: object.flag("config.changeTrackingEnabled"),
        change_tracking_supported: object.flag("capability.changeTrackingSupported"),
        tags: Vec::new(),
        allocated_bytes: allocated(object, if power == PowerState::On { memory_mib } else { 0 }),
        disks: device::disks(hardware.all("device"), &boot_keys),
        nics: device::nics(hardware.all("device"), &around.networks, power == PowerState::On),
        snapshots: Vec::new(),
        consolidation_needed: object.flag("runtime.consolidationNeeded"),
        encrypted: object.get(VM_KEY_ID).is_some_and(|key| !key.children.is_empty()),
        vtpm: hardware.all("device").any(|device| device.kind == "VirtualTPM"),
        passthrough: device::passthrough(hardware.all("device")),
        managed_by: object
            .get("config.managedBy")
            .map(|it| it.string_at("extensionKey"))
            .filter(|key| !key.is_empty()),
    };
    fill_addresses(&mut vm.nics, object.get("guest.net"), object.get("guest.ipStack"));
    if let Some(settings) = object.get("config.extraConfig") {
        device::mark_tracked(&mut vm.disks, settings.children.iter());
    }
    if let Some(snapshots) = object.get("snapshot") {
        flatten(snapshots, "rootSnapshotList", &mut vm.snapshots);
    }
    vm
}

/// What vSphere counts as committed, less the swap file that a VM has while it runs: its memory but what is reserved.
///
/// Source: vSphere Web Services API, `VirtualMachineStorageSummary.committed`; "vSphere Resource Management", swap files.
fn allocated(object: &Object, running_mib: u64) -> Option<u64> {
    let committed: u64 = object.get("summary.storage")?.number_at("committed")?;
    let reserved_mib = object.number("summary.config.memoryReservation").unwrap_or(0);
    Some(committed.saturating_sub(running_mib.saturating_sub(reserved_mib) << 20))
}

/// Children after their parents; the depth is bounded by the XML reader.
fn flatten(tree: &Element, list: &str, out: &mut Vec<Snapshot>) {
    for snapshot in tree.all(list) {
        out.push(Snapshot {
            id: snapshot.string_at("snapshot"),
            name: snapshot.string_at("name"),
            description: snapshot.string_at("description"),
            created_s: snapshot.text_at("createTime").and_then(seconds_of),
        });
        flatten(snapshot, "childSnapshotList", out);
    }
}

pub(crate) fn power_of(text: Option<&str>) -> PowerState {
    match text {
        Some("poweredOn") => PowerState::On,
        Some("suspended") => PowerState::Suspended,
        Some("poweredOff") => PowerState::Off,
        _ => PowerState::Unknown,
    }
}

fn firmware(text: Option<&str>) -> Option<Firmware> {
    match text {
        Some("efi") => Some(Firmware::Uefi),
        Some("bios") => Some(Firmware::Bios),
        _ => None,
    }
}

fn tools(running: Option<&str>, status: Option<&str>) -> ToolsState {
    match (running, status) {
        (Some("guestToolsRunning"), _) | (None, Some("toolsOk" | "toolsOld")) => ToolsState::Running,
        (_, Some("toolsNotRunning" | "toolsOk" | "toolsOld")) => ToolsState::NotRunning,
        _ => ToolsState::NotInstalled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::object_of;
    use crate::xml;

    fn object(kind: &str, id: &str, properties: &[(&str, &str)]) -> Object {
        let sets: String = (properties.iter())
            .map(|(name, val)| format!("<propSet><name>{name}</name><val>{val}</val></propSet>"))
            .collect();
        object_of(xml::parse(&format!("<o><obj type=\"{kind}\">{id}</obj>{sets}</o>")).unwrap())
    }

    fn tree() -> Surroundings {
        let mut around = Surroundings::default();
        for (kind, id, name, parent) in [
            ("Folder", "group-d1", "Datacenters", ""),
            ("Folder", "group-d2", "eu", "group-d1"),
            ("Datacenter", "dc-1", "DC 1", "group-d2"),
            ("Folder", "group-v1", "vm", "dc-1"),
            ("Folder", "group-v2", "a%2fb", "group-v1"),
            ("Folder", "loop", "loop", "loop"),
            ("ClusterComputeResource", "domain-c1", "old%2f1", "group-h1"),
            ("ComputeResource", "domain-s1", "esx2", "group-h1"),
            ("HostSystem", "host-1", "esx1", "domain-c1"),
            ("HostSystem", "host-2", "esx2", "domain-s1"),
        ] {
            around.learn(&object(kind, id, &[("name", name), ("parent", parent)]));
        }
        around
    }

    #[test]
    fn a_host_is_in_a_cluster_or_stands_alone() {
        let of = |host: &str| tree().cluster(host);
        assert_eq!(of("host-1").as_deref(), Some("old/1"));
        assert_eq!((of("host-2"), of("host-3")), (None, None));
    }

    #[test]
    fn paths_leave_out_the_folders_that_users_never_see() {
        let vm = vm_of(&object("VirtualMachine", "vm-1", &[("name", "x"), ("parent", "group-v2")]), &tree());
        assert_eq!((vm.folder.as_str(), vm.datacenter.as_str()), ("a/b", "eu/DC 1"));
        let top = vm_of(&object("VirtualMachine", "vm-1", &[("parent", "group-v1")]), &tree());
        assert_eq!(top.folder, "");
        assert_eq!(decode_name("50%25 off%2fon%5c%"), "50% off/on\\%");
    }

    #[test]
    fn what_is_allocated_leaves_out_the_swap_file_of_a_vm_that_runs() {
        let vm = |power: &str, reserved: &str| {
            let properties = [
                ("runtime.powerState", power),
                ("config.hardware", "<memoryMB>1024</memoryMB>"),
                ("summary.config.memoryReservation", reserved),
                ("summary.storage", "<committed>2147483648</committed><uncommitted>7</uncommitted>"),
            ];
            vm_of(&object("VirtualMachine", "vm-1", &properties), &tree()).allocated_bytes
        };
        assert_eq!(vm("poweredOff", "0"), Some(2 << 30));
        assert_eq!(vm("poweredOn", "0"), Some(1 << 30));
        assert_eq!(vm("poweredOn", "256"), Some((1 << 30) + (256 << 20)));
        assert_eq!(vm("poweredOn", "4096"), Some(2 << 30));
        assert_eq!(vm_of(&object("VirtualMachine", "vm-1", &[]), &tree()).allocated_bytes, None);
    }

    #[test]
    fn a_loop_of_folders_ends() {
        let vm = vm_of(&object("VirtualMachine", "vm-1", &[("parent", "loop")]), &tree());
        assert_eq!(vm.datacenter, "");
    }

    #[test]
    fn a_vm_of_which_nothing_is_told_is_a_vm_still() {
        let vm = vm_of(&object("VirtualMachine", "vm-1", &[]), &Surroundings::default());
        assert_eq!((vm.power, vm.firmware, vm.cores_per_socket), (PowerState::Unknown, None, 1));
    }

    #[test]
    fn snapshots_follow_their_parents() {
        let list = "<rootSnapshotList><snapshot>s-1</snapshot><name>one</name>\
                    <createTime>1970-01-02T00:00:01Z</createTime><childSnapshotList><snapshot>s-2</snapshot>\
                    <name>two</name></childSnapshotList></rootSnapshotList><rootSnapshotList><snapshot>s-3</snapshot>\
                    <name>three</name></rootSnapshotList>";
        let vm = vm_of(&object("VirtualMachine", "vm-1", &[("snapshot", list)]), &Surroundings::default());
        assert_eq!(vm.snapshots.iter().map(|s| s.id.as_str()).collect::<Vec<_>>(), ["s-1", "s-2", "s-3"]);
        assert_eq!(vm.snapshots.iter().map(|s| s.created_s).collect::<Vec<_>>(), [Some(86_401), None, None]);
    }
}
