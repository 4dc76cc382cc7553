//! What there is to know about a VM before it moves.

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use drover_types::count;
use drover_types::inventory::{Firmware, Host, Inventory, PowerPolicy, PowerState, ToolsState, Vm};

use crate::model::{Convert, DataFrom, DiskBusChoice, PowerOff, StaticAddress};
use crate::resolve::safe_name;
use crate::warm::Warm;

mod catalogue;
mod disks;
mod inside;
mod network;
mod warm;
mod windows;

pub use catalogue::CATALOGUE;
pub use inside::{concerns_inside, has_known_loader, lacking_driver, renamed};
pub use network::{Fate, Stays, fates, names_of_slots};
pub(crate) use windows::unlooked_network_driver;
pub use windows::{NO_NETWORK_DRIVER, lacking_windows_driver};

/// How much a [`Concern`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// The VM cannot be moved, or not without losing data.
    Blocks,
    /// It can; something will be different, slow or at risk.
    Warning,
    /// Good to know.
    Info,
}

/// One thing to know about a VM before it moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Concern {
    /// Stable id (`snapshots-present`), one of the catalogue's.
    pub id: String,
    /// How much it matters.
    pub severity: Weight,
    /// VM, or VM and part: `web01`, `web01/Hard disk 2`.
    pub subject: String,
    /// What was found.
    pub message: String,
    /// What to do about it.
    pub advice: String,
}

impl fmt::Display for Concern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.subject, self.message, self.advice)
    }
}

/// What is known of the plan when a VM is judged; the default is "no plan yet".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConcernContext {
    /// What may be done to a running VM.
    pub power_off: Option<PowerOff>,
    /// Who serves the bytes.
    pub data_from: Option<DataFrom>,
    /// Whether the guest is converted.
    pub convert: Option<Convert>,
    /// Bus of the disks.
    pub disk_bus: Option<DiskBusChoice>,
    /// Fixed addresses that Windows is given anew, one a card.
    pub given_addresses: Vec<StaticAddress>,
    /// How it moves while it runs, if it does.
    pub warm: Option<Warm>,
    /// Whether its disks may be read in another way than by NFC, which alone follows the chain of an earlier snapshot's files.
    pub no_chains: bool,
    /// Keys of the disks that stay behind; all that is said about them is whether the VM can be snapshotted with them.
    pub excluded_disks: Vec<i32>,
}

/// The extension that makes VMs of vSphere's own.
const AGENT_MANAGER: &str = "com.vmware.vim.eam";

const FAST_NIC_MBPS: u32 = 10_000;

/// The VMs of an inventory by their names: made once for all that are looked at, which may be thousands.
pub struct Namesakes<'a>(HashMap<&'a str, Vec<&'a Vm>>);

impl<'a> Namesakes<'a> {
    /// Of all VMs.
    pub fn of(inventory: &'a Inventory) -> Namesakes<'a> {
        let mut by_name: HashMap<&str, Vec<&Vm>> = HashMap::with_capacity(inventory.vms.len());
        inventory.vms.iter().for_each(|vm| by_name.entry(&vm.name).or_default().push(vm));
        Namesakes(by_name)
    }

    /// Another VM of that name.
    pub(crate) fn twin(&self, vm: &Vm) -> Option<&'a Vm> {
        self.0.get(vm.name.as_str())?.iter().find(|twin| twin.id != vm.id).copied()
    }
}

/// All there is to know about `vm`, the worst first. For one VM; [`concerns_among`] is for many.
pub fn concerns(vm: &Vm, inventory: &Inventory, context: &ConcernContext) -> Vec<Concern> {
    concerns_among(vm, inventory, &Namesakes::of(inventory), context)
}

/// As [`concerns`], with the names of the inventory's VMs.
pub fn concerns_among(
    vm: &Vm,
    inventory: &Inventory,
    names: &Namesakes<'_>,
    context: &ConcernContext,
) -> Vec<Concern> {
    let mut found = Found { vm, list: Vec::new() };
    found.identity();
    found.disks(context);
    found.machine(context);
    found.name(names);
    if let Some(warm) = &context.warm {
        found.warm(warm, &context.excluded_disks);
    }
    if let Some(host) = inventory.host(&vm.host_id) {
        found.host(host);
    }
    found.list.sort_by_key(|concern| concern.severity);
    found.list
}

struct Found<'a> {
    vm: &'a Vm,
    list: Vec<Concern>,
}

impl Found<'_> {
    fn add(&mut self, id: &str, part: Option<&str>, message: impl Into<String>, advice: impl Into<String>) {
        let known = CATALOGUE.iter().find(|(known, ..)| *known == id);
        let (_, severity, _) = known.expect("every concern is in the catalogue");
        let subject = part.map_or(self.vm.name.clone(), |part| format!("{}/{part}", self.vm.name));
        let (message, advice) = (message.into(), advice.into());
        self.list.push(Concern { id: id.to_string(), severity: *severity, subject, message, advice });
    }

    /// By it a VM is known again: ids are given again.
    fn identity(&mut self) {
        if self.vm.instance_uuid.is_empty() {
            self.add(
                "identity-unknown",
                None,
                "its instance UUID is not told, so it could not be told from another VM later",
                "see that its host is connected and that this user may read the VM, and check again",
            );
        }
    }

    fn machine(&mut self, context: &ConcernContext) {
        let vm = self.vm;
        if !vm.snapshots.is_empty() {
            let names: Vec<&str> = vm.snapshots.iter().map(|snapshot| snapshot.name.as_str()).collect();
            let has = format!("has {} ({})", count(names.len(), "snapshot"), names.join(", "));
            // Passes of a warm one would all compare whole disks.
            match !context.no_chains && context.warm.is_none() {
                true => self.add(
                    "snapshots-stay",
                    None,
                    format!("{has}: it arrives as it is now, without them"),
                    "nothing to do; remove them first if nobody needs them: chains are read slower",
                ),
                false => self.add(
                    "snapshots-present",
                    None,
                    format!("{has}: its base disks lack later changes"),
                    "remove the snapshots (which merges them), then move it; or move it cold, by NFC (`data.path: nfc`)",
                ),
            }
        }
        if vm.consolidation_needed {
            self.add(
                "consolidation-needed",
                None,
                "its disks need consolidation",
                "consolidate its disks in vSphere",
            );
        }
        if vm.encrypted {
            self.add(
                "encrypted-settings",
                None,
                "has encrypted settings, as every VM with a virtual TPM; its disks are read as they are",
                "nothing to do; if the host refuses to have them read, give the user the privilege \
                 Cryptographer.Access (Direct Access)",
            );
        }
        if vm.vtpm {
            self.add(
                "vtpm",
                None,
                "has a virtual TPM, whose content stays behind",
                "with BitLocker: save the recovery key and suspend protection before the cutover \
                 (`manage-bde -protectors -disable C: -RebootCount 0`), and switch it on again at the target; with LUKS that is bound to it (clevis, \
                 systemd-cryptenroll): have a passphrase at hand, and bind it again there",
            );
        }
        for device in &vm.passthrough {
            self.add(
                "passthrough",
                None,
                format!("uses a device of its host: {device}"),
                "plan a replacement at the target",
            );
        }
        match vm.managed_by.as_deref() {
            Some(AGENT_MANAGER) => self.add(
                "agent-vm",
                None,
                "is a VM of vSphere's own (ESX Agent Manager, as those of vCLS): it is made anew where it is missing",
                "leave it out, by `exclude`",
            ),
            Some(extension) => self.add(
                "managed-vm",
                None,
                format!("is managed by {extension}, which may not know it any more at the target"),
                "ask whose it is, and move it by that product's own means where it has some",
            ),
            None => {}
        }
        match vm.firmware {
            None => self.add(
                "unknown-firmware",
                None,
                "its firmware is not known",
                "it is taken as BIOS; check that it boots",
            ),
            Some(_) if vm.secure_boot => self.add(
                "secure-boot",
                None,
                "secure boot is on",
                "the target needs OVMF with secure boot and enrolled keys; keys of its own (MOK, for modules signed by yourself) stay behind: enrol them again there",
            ),
            Some(_) => {}
        }
        if vm.firmware == Some(Firmware::Uefi) {
            self.uefi_variables();
        }
        self.power(context);
        self.by_guest_id(context);
        for nic in vm.nics.iter().filter(|nic| !nic.connected) {
            self.add(
                "nic-disconnected",
                Some(&nic.label),
                "is disconnected",
                "its link is down at the target, too; connect it at the source, or there afterwards",
            );
        }
    }

    fn uefi_variables(&mut self) {
        self.add(
            "uefi-variables",
            None,
            "its UEFI variables stay behind, boot entries among them",
            "see that its disk has the fallback loader \\EFI\\BOOT\\BOOTX64.EFI, as installers of Windows and most of Linux put it there",
        );
    }

    fn name(&mut self, names: &Namesakes<'_>) {
        let vm = self.vm;
        if let Some(twin) = names.twin(vm) {
            let text = format!("shares its name with {} in folder '{}'", twin.id, twin.folder);
            let advice =
                format!("select it by `id: {}`; to move both, give one of them a `target_name`", vm.id);
            self.add("duplicate-name", None, text, advice);
        }
        let safe = safe_name(&vm.name);
        if safe != vm.name {
            let text = format!("its name cannot be that of a file, so it is '{safe}' at the target");
            self.add("name-changed", None, text, "give it another `target_name` if you like");
        }
    }

    fn power(&mut self, context: &ConcernContext) {
        match self.vm.power {
            PowerState::Off => return,
            PowerState::Suspended => {
                return self.add("suspended", None, "is suspended", "resume it and shut it down");
            }
            PowerState::Unknown => {
                return self.add(
                    "power-unknown",
                    None,
                    "its power state is not told, so it may run",
                    "see that its host is connected and that this user may read the VM",
                );
            }
            PowerState::On => {}
        }
        let advice = match context.power_off {
            None | Some(PowerOff::Refuse) => {
                "shut it down, or allow it in the plan with `power_off: shutdown`"
            }
            Some(PowerOff::Shutdown | PowerOff::Force) => "it is shut down when its turn comes",
        };
        self.add("running", None, "is running", advice);
        if self.vm.tools != ToolsState::Running {
            self.add(
                "tools-not-running",
                None,
                "its guest tools do not run, so it cannot be asked to shut down",
                match context.power_off {
                    Some(PowerOff::Force) => {
                        "it is switched off hard; shut it down from inside to avoid that"
                    }
                    _ => "shut it down from inside, or allow `power_off: force`",
                },
            );
        }
    }

    fn host(&mut self, host: &Host) {
        if host.power_policy.is_some_and(|policy| policy != PowerPolicy::HighPerformance) {
            let text = format!("its host {} is not set to High Performance", host.name);
            self.add(
                "host-power-policy",
                None,
                text,
                "set the host's power policy to High Performance for the migration (about 15 MiB/s more)",
            );
        }
        let fastest = host.physical_nics.iter().filter_map(|nic| nic.link_mbps).max();
        if let Some(mbps) = fastest.filter(|mbps| *mbps < FAST_NIC_MBPS) {
            let text = format!("its host {} has {mbps} Mbit/s at the most", host.name);
            self.add(
                "slow-nic",
                None,
                text,
                "use a NIC of 10 Gbit/s or more for the data, tagged vSphereBackupNFC",
            );
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::PlannedVm;
    use drover_types::guest::{
        ByPath, EfiPartition, Encrypted, FreeSpace, Initramfs, Inside, Interface, Route,
        Windows as GuestWindows,
    };
    use drover_types::inventory::{
        BusSharing, DiskMode, FixedAddresses, Nic, PhysicalNic, RdmMode, Snapshot, VmDisk,
    };

    fn plain() -> (Vm, Inventory) {
        let disk =
            VmDisk { key: 2000, label: "Hard disk 1".into(), capacity_bytes: 1 << 30, ..VmDisk::default() };
        let vm = Vm {
            name: "web01".into(),
            instance_uuid: "uuid-web01".into(),
            host_id: "host-1".into(),
            power: PowerState::Off,
            firmware: Some(Firmware::Bios),
            change_tracking: true,
            disks: vec![disk],
            ..Vm::default()
        };
        let nic = PhysicalNic { device: "vmnic0".into(), link_mbps: Some(10_000) };
        let policy = Some(PowerPolicy::HighPerformance);
        let host =
            Host { id: "host-1".into(), power_policy: policy, physical_nics: vec![nic], ..Host::default() };
        (vm, Inventory { hosts: vec![host], ..Inventory::default() })
    }

    fn ids(vm: &Vm, inventory: &Inventory) -> Vec<String> {
        concerns(vm, inventory, &ConcernContext::default()).into_iter().map(|concern| concern.id).collect()
    }

    #[test]
    fn a_plain_vm_has_none() {
        let (vm, inventory) = plain();
        assert_eq!(ids(&vm, &inventory), Vec::<String>::new());
    }

    #[test]
    fn each_trait_is_told() {
        let change = |id: &str, change: &dyn Fn(&mut Vm, &mut Inventory)| {
            let (mut vm, mut inventory) = plain();
            change(&mut vm, &mut inventory);
            assert!(ids(&vm, &inventory).contains(&id.to_string()), "{id}");
            id.to_string()
        };
        let change_warm = |id: &str, change: &dyn Fn(&mut Vm, &mut Inventory)| {
            let (mut vm, mut inventory) = plain();
            (vm.power, vm.tools) = (PowerState::On, ToolsState::Running);
            let warm = Warm { quiesce: true, ..Warm::default() };
            let context = ConcernContext { warm: Some(warm), ..ConcernContext::default() };
            let ids = |vm: &Vm, inventory: &Inventory| -> Vec<String> {
                concerns(vm, inventory, &context).into_iter().map(|concern| concern.id).collect()
            };
            assert!(!ids(&vm, &inventory).contains(&id.to_string()), "{id}");
            change(&mut vm, &mut inventory);
            assert!(ids(&vm, &inventory).contains(&id.to_string()), "{id}");
            id.to_string()
        };
        let [present, stay] = {
            let (mut vm, inventory) = plain();
            vm.snapshots.push(Snapshot::default());
            let told = |no_chains, warm| -> Vec<String> {
                let context = ConcernContext { no_chains, warm, ..ConcernContext::default() };
                concerns(&vm, &inventory, &context).into_iter().map(|concern| concern.id).collect()
            };
            assert_eq!(told(true, None), ["snapshots-present"]);
            assert_eq!(told(false, Some(Warm::default()))[0], "snapshots-present");
            assert_eq!(told(false, None), ["snapshots-stay"]);
            ["snapshots-present", "snapshots-stay"].map(str::to_string)
        };
        let [refused, stays] = {
            let told = |change: &dyn Fn(&mut VmDisk), warm| -> Vec<String> {
                let (mut vm, inventory) = plain();
                (vm.power, vm.tools) = (PowerState::On, ToolsState::Running);
                vm.disks.push(VmDisk { key: 2001, ..vm.disks[0].clone() });
                change(&mut vm.disks[1]);
                let context =
                    ConcernContext { excluded_disks: vec![2001], warm, ..ConcernContext::default() };
                let ids = concerns(&vm, &inventory, &context).into_iter().map(|concern| concern.id);
                ids.filter(|id| id != "running").collect()
            };
            let is_independent = |disk: &mut VmDisk| disk.mode = DiskMode::IndependentPersistent;
            for sharing in [BusSharing::Virtual, BusSharing::Physical] {
                let shares = |disk: &mut VmDisk| (disk.shared, disk.bus_sharing) = (true, Some(sharing));
                assert_eq!(told(&shares, None), ["snapshots-refused"]);
            }
            assert_eq!(told(&|disk| disk.shared = true, None), ["snapshots-refused"]);
            assert_eq!(told(&|disk| disk.rdm = Some(RdmMode::Physical), None), Vec::<String>::new());
            assert_eq!(told(&is_independent, None), Vec::<String>::new(), "it is off when it is snapshotted");
            let is_free = |disk: &mut VmDisk| {
                disk.shared = true;
                is_independent(disk);
            };
            assert_eq!(told(&is_free, None), Vec::<String>::new());
            assert_eq!(told(&is_independent, Some(Warm::default())), ["independent-disk-stays"]);
            ["snapshots-refused", "independent-disk-stays"].map(str::to_string)
        };
        let inside = |id: &str, change: &dyn Fn(&mut Inside)| {
            let mut planned = planned();
            planned.vm.firmware = Some(Firmware::Uefi);
            let is_told = |inside: &Inside| concerns_inside(&planned, inside).iter().any(|it| it.id == id);
            let mut found = Inside::default();
            assert!(!is_told(&found), "{id}");
            change(&mut found);
            assert!(is_told(&found), "{id}");
            id.to_string()
        };
        let of_windows = |id: &str, change: &dyn Fn(&mut GuestWindows)| {
            inside(id, &|found| change(found.windows.get_or_insert_default()))
        };
        let several = {
            let mut vm = planned();
            vm.nics.push(vm.nics[0].clone());
            vm.nics[1].mac = "00:50:56:aa:bb:cd".into();
            let of = |nic: &crate::PlannedNic| StaticAddress::parse(&nic.mac, "192.0.2.7/24").unwrap();
            vm.first_boot.addresses = vm.nics.iter().flat_map(of).collect();
            let windows = GuestWindows { routes: vec![route("192.0.2.1")], ..GuestWindows::default() };
            let found = concerns_inside(&vm, &Inside { windows: Some(windows), ..Inside::default() });
            assert!(found.iter().all(|it| it.id != "route-without-card"), "{found:?}");
            found.into_iter().find(|it| it.id == "route-of-several-cards").unwrap().id
        };
        let told = [
            change("no-disks", &|vm, _| vm.disks.clear()),
            change("independent-disk", &|vm, _| vm.disks[0].mode = DiskMode::IndependentPersistent),
            change("rdm-disk", &|vm, _| vm.disks[0].rdm = Some(RdmMode::Physical)),
            present,
            change("disk-has-parent", &|vm, _| vm.disks[0].has_parent = true),
            change("consolidation-needed", &|vm, _| vm.consolidation_needed = true),
            change("shared-disk", &|vm, _| vm.disks[0].shared = true),
            refused,
            change("encrypted", &|vm, _| vm.disks[0].encrypted = true),
            change("empty-disk", &|vm, _| vm.disks[0].capacity_bytes = 0),
            change("odd-capacity", &|vm, _| vm.disks[0].capacity_bytes = 1000),
            change("agent-vm", &|vm, _| vm.managed_by = Some("com.vmware.vim.eam".into())),
            change("suspended", &|vm, _| vm.power = PowerState::Suspended),
            change("power-unknown", &|vm, _| vm.power = PowerState::Unknown),
            change("identity-unknown", &|vm, _| vm.instance_uuid.clear()),
            change("running", &|vm, _| vm.power = PowerState::On),
            change("tools-not-running", &|vm, _| vm.power = PowerState::On),
            change("passthrough", &|vm, _| vm.passthrough.push("GPU".into())),
            change("managed-vm", &|vm, _| vm.managed_by = Some("com.example.backup".into())),
            change("encrypted-settings", &|vm, _| vm.encrypted = true),
            change("vtpm", &|vm, _| vm.vtpm = true),
            change("unknown-firmware", &|vm, _| vm.firmware = None),
            change("secure-boot", &|vm, _| vm.secure_boot = true),
            change("uefi-variables", &|vm, _| vm.firmware = Some(Firmware::Uefi)),
            change("needs-drivers", &|vm, _| vm.guest_id = "windows2019srv_64Guest".into()),
            change("fixed-addresses", &|vm, _| {
                let addresses = vec![("192.0.2.7".parse().unwrap(), 24)];
                let fixed = Some(FixedAddresses { addresses, ..FixedAddresses::default() });
                vm.guest_id = "windows2019srv_64Guest".into();
                vm.nics.push(Nic { connected: true, fixed, ..Nic::default() });
            }),
            change("host-power-policy", &|_, inventory| {
                inventory.hosts[0].power_policy = Some(PowerPolicy::Balanced)
            }),
            change("slow-nic", &|_, inventory| inventory.hosts[0].physical_nics[0].link_mbps = Some(1000)),
            change_warm("tracking-unsupported", &|vm, _| vm.hardware_version = "vmx-04".into()),
            change_warm("no-snapshots", &|vm, _| vm.passthrough.push("GPU".into())),
            stays,
            change_warm("warm-pointless", &|vm, _| vm.power = PowerState::Off),
            change_warm("quiesce-without-tools", &|vm, _| vm.tools = ToolsState::NotRunning),
            change("large-disk", &|vm, _| vm.disks[0].capacity_bytes = 2 << 40),
            change("cbt-off", &|vm, _| vm.change_tracking = false),
            stay,
            change("short-last-block", &|vm, _| vm.disks[0].capacity_bytes = 65536 + 512),
            change("nic-disconnected", &|vm, _| vm.nics.push(Nic::default())),
            change("duplicate-name", &|vm, inventory| {
                inventory.vms.push(Vm { id: "vm-2".into(), name: vm.name.clone(), ..Vm::default() })
            }),
            change("name-changed", &|vm, _| vm.name = "file server/1".into()),
            inside("initramfs-without-driver", &|found| found.initramfs = Some(Initramfs::default())),
            inside("fstab-by-path", &|found| found.by_path.push(by_path("/dev/sdb1"))),
            inside("no-fallback-loader", &|found| found.efi = Some(EfiPartition::default())),
            inside("encrypted-inside", &|found| {
                found.encrypted.push(Encrypted { disk: 0, partition: 2, kind: "LUKS".into() })
            }),
            inside("dynamic-disk", &|found| found.dynamic_disks.push(0)),
            inside("interface-names", &|found| found.interfaces.push(interface("ens192"))),
            inside("little-space-inside", &|found| {
                found.free.push(FreeSpace { place: "/".into(), bytes: 1 << 20 })
            }),
            inside("guest-id-differs", &|found| found.windows = Some(GuestWindows::default())),
            inside("ntfs-dirty", &|found| found.dirty.push("disk 0, partition 2".into())),
            of_windows("hibernated", &|found| found.is_hibernated = true),
            of_windows("windows-without-driver", &|found| found.drivers = Some(Vec::new())),
            of_windows("windows-without-network-driver", &|found| found.drivers = Some(Vec::new())),
            of_windows("route-without-card", &|found| found.routes.push(route("192.0.2.1"))),
            of_windows("domain-controller", &|found| found.is_domain_controller = true),
            of_windows("cluster-node", &|found| found.is_cluster_node = true),
            of_windows("restart-pending", &|found| found.waits_for_restart = true),
            several,
            inside("vmware-tools-inside", &|found| found.vmware_tools = Some("open-vm-tools".into())),
            inside("vendor-services-inside", &|found| found.vendor_services.push("vmtoolsd".into())),
            inside("not-seen-inside", &|found| found.unseen.push("disk 0: LVM".into())),
        ];
        let known: Vec<&str> = CATALOGUE.iter().map(|(id, ..)| *id).collect();
        assert_eq!(
            told.iter().map(String::as_str).collect::<Vec<_>>(),
            known,
            "every concern of the catalogue is tested"
        );
    }

    fn route(gateway: &str) -> Route {
        let (network, gateway) = ("203.0.113.0".parse().unwrap(), gateway.parse().unwrap());
        Route { network, prefix: 24, gateway, metric: None }
    }

    #[test]
    fn a_route_that_is_lost_is_told_with_its_vm_and_what_to_do() {
        let windows = GuestWindows { routes: vec![route("192.0.3.1")], ..GuestWindows::default() };
        let found = concerns_inside(&planned(), &Inside { windows: Some(windows), ..Inside::default() });
        let told = found.iter().find(|it| it.id == "route-without-card").unwrap().to_string();
        let begin = "web01: route 203.0.113.0/24 by 192.0.3.1 is set at no card: none that is given addresses has a network with 192.0.3.1 (";
        assert!(told.starts_with(begin), "{told}");
        assert!(
            told.contains("`netsh interface ipv4 add route 203.0.113.0/24 \"NAME OF THE CARD\" 192.0.3.1`"),
            "{told}"
        );
    }

    #[test]
    fn a_disk_on_a_shared_bus_is_told_how_it_is_shared() {
        let (mut vm, inventory) = plain();
        (vm.disks[0].shared, vm.disks[0].bus_sharing) = (true, Some(BusSharing::Physical));
        let told = concerns(&vm, &inventory, &ConcernContext::default()).remove(0);
        assert_eq!(told.id, "shared-disk");
        assert!(
            told.message.contains("`bus sharing: physical`")
                && told.advice.contains("to exclude it is not enough"),
            "{told}"
        );
        vm.disks[0].bus_sharing = None;
        assert!(concerns(&vm, &inventory, &ConcernContext::default())[0].message.ends_with("(multi-writer)"));
    }

    fn by_path(device: &str) -> ByPath {
        ByPath { device: device.into(), place: "/data".into() }
    }

    fn interface(name: &str) -> Interface {
        let addresses = vec!["192.0.2.7/24".into()];
        Interface {
            name: Some(name.into()),
            file: "/etc/network/interfaces".into(),
            addresses,
            ..Interface::default()
        }
    }

    /// A VM with one NIC, whose disk goes to virtio.
    pub(crate) fn planned() -> PlannedVm {
        let text = "version: 1\nname: p\nsource: {type: vsphere, endpoint: vc, user: u, password_env: P}\ntarget: {type: qemu, \
                    folder: /vms}\nnetworks: {\"*\": user}\nvms: [{name: web01}]\n";
        let (mut vm, mut inventory) = plain();
        vm.nics.push(Nic { mac: "00:50:56:aa:bb:cc".into(), connected: true, ..Nic::default() });
        inventory.vms.push(vm);
        let plan = crate::Plan::parse(text).unwrap();
        crate::resolve(&plan, &inventory).vms.remove(0)
    }

    #[test]
    fn what_is_inside_is_judged_by_where_the_disks_go() {
        let mut vm = planned();
        let inside = Inside {
            initramfs: Some(Initramfs { virtio_scsi: true, virtio_pci: true, ..Initramfs::default() }),
            by_path: vec![by_path("/dev/sdb1")],
            ..Inside::default()
        };
        let ids = |vm: &PlannedVm, inside: &Inside| -> Vec<String> {
            concerns_inside(vm, inside).into_iter().map(|concern| concern.id).collect()
        };
        assert_eq!(ids(&vm, &inside), ["initramfs-without-driver", "fstab-by-path"]);
        vm.disks[0].bus = crate::TargetBus::Scsi;
        assert_eq!(ids(&vm, &inside), Vec::<String>::new(), "the driver is there, and sdb stays sdb");
        let by_id = Inside { by_path: vec![by_path("/dev/disk/by-id/scsi-1")], ..inside.clone() };
        assert_eq!(ids(&vm, &by_id), ["fstab-by-path"], "such names change on every bus");
        vm.disks[0].bus = crate::TargetBus::Sata;
        assert_eq!(ids(&vm, &inside), ["initramfs-without-driver"]);
        let no_pci = Initramfs { virtio_blk: true, ..Initramfs::default() };
        assert_eq!(lacking_driver(&no_pci, crate::TargetBus::Virtio), Some("virtio_pci"));
    }

    #[test]
    fn a_lost_boot_entry_matters_to_uefi_alone_and_the_loaders_that_are_there_are_named() {
        let found = |firmware, has_fallback| {
            let mut vm = planned();
            vm.vm.firmware = firmware;
            let loaders = vec![r"\EFI\debian\shimx64.efi".into(), r"\EFI\Microsoft\Boot\bootmgfw.efi".into()];
            let efi = EfiPartition { has_fallback, loaders };
            concerns_inside(&vm, &Inside { efi: Some(efi), ..Inside::default() })
        };
        let told = &found(Some(Firmware::Uefi), false)[0];
        assert!(
            told.message.contains(r"(there is \EFI\debian\shimx64.efi, \EFI\Microsoft\Boot\bootmgfw.efi)"),
            "{told}"
        );
        assert!(told.advice.starts_with("a conversion with virt-v2v 2.6"), "{told}");
        assert_eq!(found(None, false).len(), 1, "what is not known is told");
        assert!(found(None, false)[0].advice.starts_with("before the move"), "and not converted for");
        assert_eq!((found(Some(Firmware::Uefi), true), found(Some(Firmware::Bios), false)), (vec![], vec![]));
    }

    #[test]
    fn a_name_is_kept_by_the_mac_address_that_the_card_keeps() {
        let mut inside = Inside { interfaces: vec![interface("ens192")], ..Inside::default() };
        let told = &concerns_inside(&planned(), &inside)[0];
        assert!(told.message.contains("ens192 with 192.0.2.7/24"), "{told}");
        assert!(told.advice.contains("MACAddress=00:50:56:aa:bb:cc"), "{told}");
        assert!(told.advice.starts_with("a conversion with virt-v2v 2.6"), "{told}");
        let never = PlannedVm { convert: Convert::Never, ..planned() };
        assert!(concerns_inside(&never, &inside)[0].advice.starts_with("before the move, write"));
        let at_site = PlannedVm { site: Some("b".into()), ..planned() };
        let advice = &concerns_inside(&at_site, &inside)[0].advice;
        assert!(
            advice.starts_with("a conversion with virt-v2v 2.6"),
            "guests of sites are converted, too: {advice}"
        );
        inside = Inside { interfaces: vec![interface("eth0")], keeps_old_names: true, ..inside };
        assert_eq!(concerns_inside(&planned(), &inside), []);
    }

    #[test]
    fn only_another_vm_of_the_same_name_is_a_twin() {
        let (vm, mut inventory) = plain();
        let other = |id: &str, name: &str| Vm { id: id.into(), name: name.into(), ..Vm::default() };
        inventory.vms = vec![vm.clone(), other("vm-2", "web02")];
        assert_eq!(ids(&vm, &inventory), Vec::<String>::new());
        inventory.vms.push(other("vm-3", &vm.name));
        assert_eq!(ids(&vm, &inventory), ["duplicate-name"]);
    }

    #[test]
    fn changes_are_tracked_from_virtual_hardware_7_on() {
        let context = ConcernContext { warm: Some(Warm::default()), ..ConcernContext::default() };
        let cannot_track = |version: &str| {
            let (mut vm, inventory) = plain();
            vm.hardware_version = version.into();
            concerns(&vm, &inventory, &context).iter().any(|concern| concern.id == "tracking-unsupported")
        };
        assert!(cannot_track("vmx-06") && !cannot_track("vmx-07") && !cannot_track("vmx-21"));
        assert!(!cannot_track(""), "what is not known is tried");
    }

    #[test]
    fn what_is_advised_goes_with_what_the_plan_allows() {
        let (mut vm, inventory) = plain();
        vm.power = PowerState::On;
        vm.guest_id = "windows2019srv_64Guest".into();
        let advice = |id: &str, context: &ConcernContext| {
            let found = concerns(&vm, &inventory, context);
            found.into_iter().find(|concern| concern.id == id).map(|concern| concern.advice).unwrap()
        };
        let power = |power_off| ConcernContext { power_off: Some(power_off), ..ConcernContext::default() };
        assert!(advice("tools-not-running", &power(PowerOff::Force)).contains("it is switched off hard"));
        assert!(advice("tools-not-running", &power(PowerOff::Shutdown)).contains("allow `power_off: force`"));
        assert!(advice("running", &power(PowerOff::Shutdown)).contains("when its turn comes"));
        assert!(advice("running", &power(PowerOff::Refuse)).contains("allow it in the plan"));
        let convert = |convert| ConcernContext { convert: Some(convert), ..ConcernContext::default() };
        assert!(advice("needs-drivers", &convert(Convert::Never)).contains("let it be converted"));
        assert!(advice("needs-drivers", &convert(Convert::Auto)).contains("it is converted"));
    }

    #[test]
    fn nothing_is_said_of_disks_that_stay_behind_and_the_worst_comes_first() {
        let (mut vm, inventory) = plain();
        vm.disks.push(VmDisk { key: 2001, capacity_bytes: 0, ..vm.disks[0].clone() });
        vm.change_tracking = false;
        vm.consolidation_needed = true;
        let context = ConcernContext { excluded_disks: vec![2001], ..ConcernContext::default() };
        let found = concerns(&vm, &inventory, &context);
        assert_eq!(
            found.iter().map(|concern| concern.id.as_str()).collect::<Vec<_>>(),
            ["consolidation-needed", "cbt-off"]
        );
    }
}
