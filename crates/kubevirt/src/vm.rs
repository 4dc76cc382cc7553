//! From a planned VM to a `VirtualMachine` (`kubevirt.io/v1`), with only the fields that drover sets.

use std::collections::BTreeMap;

use drover_plan::{Kubevirt, KubevirtNetwork, NetworkTarget, PlannedDisk, PlannedNic, PlannedVm, TargetBus};
use drover_types::inventory::Firmware;
use serde::Serialize;
use serde_json::{Value, json};

use crate::objects::{self, Metadata};

/// A virtual machine.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct VirtualMachine {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata,
    spec: Spec,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    run_strategy: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instancetype: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preference: Option<Value>,
    template: Template,
}

#[derive(Clone, Debug, Serialize)]
struct Template {
    metadata: Metadata,
    spec: InstanceSpec,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct InstanceSpec {
    domain: Domain,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    networks: Vec<Network>,
    volumes: Vec<Volume>,
    termination_grace_period_seconds: u32,
}

#[derive(Clone, Debug, Serialize)]
struct Domain {
    #[serde(skip_serializing_if = "Option::is_none")]
    machine: Option<Value>,
    firmware: FirmwareSpec,
    #[serde(skip_serializing_if = "Option::is_none")]
    features: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu: Option<Cpu>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<Memory>,
    devices: Devices,
}

#[derive(Clone, Debug, Serialize)]
struct FirmwareSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    uuid: Option<String>,
    bootloader: Value,
}

#[derive(Clone, Debug, Serialize)]
struct Cpu {
    sockets: u32,
    cores: u32,
    threads: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
}

#[derive(Clone, Debug, Serialize)]
struct Memory {
    guest: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Devices {
    disks: Vec<Disk>,
    interfaces: Vec<Interface>,
    #[serde(skip_serializing_if = "Option::is_none")]
    autoattach_pod_interface: Option<bool>,
    rng: Value,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Disk {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    boot_order: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    serial: Option<String>,
    disk: Value,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Interface {
    name: String,
    mac_address: String,
    model: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'static str>,
    #[serde(flatten)]
    binding: BTreeMap<&'static str, Value>,
}

#[derive(Clone, Debug, Serialize)]
struct Network {
    name: String,
    #[serde(flatten)]
    kind: BTreeMap<&'static str, Value>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Volume {
    name: String,
    persistent_volume_claim: Value,
}

/// What is told of a VM beside what the plan knows.
#[derive(Clone, Debug, Default)]
pub struct About<'a> {
    /// The plan's name.
    pub plan: &'a str,
    /// Where it comes from, in words.
    pub origin: &'a str,
    /// Root hashes of its disks, by their position.
    pub roots: &'a [(usize, String)],
}

/// The object, halted: it is started once its source is proven off.
pub fn virtual_machine(vm: &PlannedVm, kubevirt: &Kubevirt, about: &About<'_>) -> Value {
    let name = objects::vm_name(vm);
    let is_secure = vm.vm.firmware == Some(Firmware::Uefi) && vm.vm.secure_boot;
    // KubeVirt refuses machines that say what their instance type says.
    let says_size = kubevirt.instance_type.is_none();
    let cores = vm.vm.cores_per_socket.clamp(1, vm.vm.cpus.max(1));
    let nics: Vec<(&PlannedNic, Attached)> =
        vm.nics.iter().filter_map(|nic| Some((nic, attached(nic)?))).collect();
    let mut metadata = objects::metadata(vm, kubevirt, about.plan, &name);
    metadata.annotations.extend(annotations(vm, about));
    let machine = VirtualMachine {
        api_version: "kubevirt.io/v1",
        kind: "VirtualMachine",
        metadata,
        spec: Spec {
            run_strategy: HALTED,
            instancetype: named("VirtualMachineClusterInstancetype", kubevirt.instance_type.as_deref()),
            preference: named("VirtualMachineClusterPreference", kubevirt.preference.as_deref()),
            template: Template {
                metadata: Metadata {
                    labels: [("kubevirt.io/domain".to_string(), name)].into(),
                    ..Metadata::default()
                },
                spec: InstanceSpec {
                    domain: Domain {
                        machine: kubevirt.machine.as_ref().map(|kind| json!({ "type": kind })),
                        firmware: FirmwareSpec {
                            uuid: Some(vm.vm.uuid.to_lowercase()).filter(|uuid| !uuid.is_empty()),
                            bootloader: match vm.vm.firmware {
                                Some(Firmware::Uefi) => {
                                    json!({"efi": {"secureBoot": is_secure, "persistent": true}})
                                }
                                _ => json!({"bios": {}}),
                            },
                        },
                        features: is_secure.then(|| json!({"smm": {"enabled": true}})),
                        cpu: says_size.then(|| Cpu {
                            sockets: vm.vm.cpus.max(1).div_ceil(cores),
                            cores,
                            threads: 1,
                            model: kubevirt.cpu.clone(),
                        }),
                        memory: says_size.then(|| Memory { guest: format!("{}Mi", vm.vm.memory_mib) }),
                        devices: Devices {
                            disks: vm.disks.iter().enumerate().map(disk).collect(),
                            interfaces: nics
                                .iter()
                                .map(|(nic, attached)| attached.interface(vm, nic))
                                .collect(),
                            autoattach_pod_interface: nics.is_empty().then_some(false),
                            rng: json!({}),
                        },
                    },
                    networks: nics.iter().map(|(nic, attached)| attached.network(nic)).collect(),
                    volumes: vm.disks.iter().map(volume).collect(),
                    termination_grace_period_seconds: GRACE_S,
                },
            },
        },
    };
    serde_json::to_value(machine).unwrap_or_else(|error| unreachable!("text keys only: {error}"))
}

/// A reference to an object of the cluster's.
fn named(kind: &str, name: Option<&str>) -> Option<Value> {
    name.map(|name| json!({"kind": kind, "name": name}))
}

/// What says where it came from, and what its disks were.
fn annotations(vm: &PlannedVm, about: &About<'_>) -> Vec<(String, String)> {
    let of = |key: &str, value: &str| (format!("{}/{key}", objects::GROUP), value.to_string());
    let mut all = vec![of("name", &vm.vm.name), of("source", &format!("{} ({})", about.origin, vm.vm.id))];
    all.extend(about.roots.iter().map(|(index, root)| of(&format!("root-{index}"), root)));
    all.retain(|(_, value)| !value.is_empty());
    all
}

fn disk((position, planned): (usize, &PlannedDisk)) -> Disk {
    let bus = match planned.bus {
        TargetBus::Virtio => "virtio",
        // Guests with drivers for NVMe have them for virtio-scsi, by and large; KubeVirt has no NVMe.
        TargetBus::Scsi | TargetBus::Nvme => "scsi",
        TargetBus::Sata | TargetBus::Ide => "sata",
    };
    let serial: String = planned.disk.uuid.chars().filter(char::is_ascii_alphanumeric).collect();
    // virtio shows a guest 20 characters; the last tell disks apart.
    let serial = serial.get(serial.len().saturating_sub(SERIAL_CHARS_MAX)..).unwrap_or_default().to_string();
    Disk {
        name: disk_name(planned),
        boot_order: (position == 0).then_some(1),
        serial: Some(serial).filter(|serial| !serial.is_empty()),
        disk: json!({ "bus": bus }),
    }
}

fn volume(planned: &PlannedDisk) -> Volume {
    let claim = json!({"claimName": objects::claim_name(planned)});
    Volume { name: disk_name(planned), persistent_volume_claim: claim }
}

fn disk_name(planned: &PlannedDisk) -> String {
    format!("disk-{}", planned.index)
}

enum Attached {
    Masquerade,
    Bridge,
    Multus(String),
}

/// What a NIC is attached to; nothing if it is left out.
fn attached(nic: &PlannedNic) -> Option<Attached> {
    match &nic.target {
        NetworkTarget::User | NetworkTarget::Kubevirt(KubevirtNetwork::PodMasquerade) => {
            Some(Attached::Masquerade)
        }
        NetworkTarget::Kubevirt(KubevirtNetwork::PodBridge) => Some(Attached::Bridge),
        NetworkTarget::Kubevirt(KubevirtNetwork::Nad(name)) => Some(Attached::Multus(name.clone())),
        // The plan is refused where it names one of these for KubeVirt.
        NetworkTarget::None | NetworkTarget::Bridge(_) | NetworkTarget::Libvirt(_) => None,
    }
}

/// How many NICs of a VM are on the network of the pods: KubeVirt takes one at most.
pub fn on_pod_network(vm: &PlannedVm) -> usize {
    let is_pod = |nic: &&PlannedNic| matches!(attached(nic), Some(Attached::Masquerade | Attached::Bridge));
    vm.nics.iter().filter(is_pod).count()
}

impl Attached {
    fn interface(&self, vm: &PlannedVm, nic: &PlannedNic) -> Interface {
        let binding = match self {
            Attached::Masquerade => "masquerade",
            Attached::Bridge | Attached::Multus(_) => "bridge",
        };
        Interface {
            name: nic_name(nic),
            mac_address: nic.mac.to_lowercase(),
            model: vm.nic_model_of(nic).word(),
            state: (!nic.connected).then_some("down"),
            binding: [(binding, json!({}))].into(),
        }
    }

    fn network(&self, nic: &PlannedNic) -> Network {
        let kind = match self {
            Attached::Masquerade | Attached::Bridge => ("pod", json!({})),
            Attached::Multus(name) => ("multus", json!({ "networkName": name })),
        };
        Network { name: nic_name(nic), kind: [kind].into() }
    }
}

fn nic_name(nic: &PlannedNic) -> String {
    format!("nic-{}", nic.index)
}

/// The run strategy of a machine that is off and stays so.
pub const HALTED: &str = "Halted";
/// What a guest has to shut down, in seconds. KubeVirt's own default for Windows.
const GRACE_S: u32 = 180;
const SERIAL_CHARS_MAX: usize = 20;
