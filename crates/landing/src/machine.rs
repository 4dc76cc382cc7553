//! From a planned VM to a machine of QEMU's, on this host or told to an agent at another one.

use std::path::{Path, PathBuf};

use drover_agent::Home;
use drover_agent::machine::{Accelerator, Attach, Bus, Firmware, Machine, MachineDisk, MachineNic};
use drover_plan::{NetworkTarget, PlannedDisk, PlannedNic, PlannedVm, Target, TargetBus, UefiFiles};
use drover_qemu::{
    Cache, Clock, DiskBus, DiskSpec, MachineFirmware, MachineSpec, NicAttach, NicSpec, Ovmf, QemuError,
    VmFolder,
};

/// What a machine is made of; `origin` says in words where it comes from.
pub fn machine_of(vm: &PlannedVm, target: &Target, origin: &str) -> Machine {
    Machine {
        name: vm.target_name.clone(),
        uuid: Some(vm.vm.uuid.clone()).filter(|uuid| !uuid.is_empty()),
        title: Some(vm.vm.name.clone()).filter(|name| !name.is_empty()),
        description: Some(format!("moved by drover from {origin} ({})", vm.vm.id)),
        firmware: match (vm.vm.firmware, vm.vm.secure_boot) {
            (Some(drover_types::inventory::Firmware::Uefi), false) => Firmware::Uefi,
            (Some(drover_types::inventory::Firmware::Uefi), true) => Firmware::SecureUefi,
            _ => Firmware::Bios,
        },
        cpus: vm.vm.cpus.max(1),
        cores_per_socket: vm.vm.cores_per_socket.max(1),
        memory_mib: vm.vm.memory_mib,
        local_time: vm.is_windows(),
        disks: vm.disks.iter().map(disk_of).collect(),
        nics: vm.nics.iter().map(|nic| nic_of(vm, nic)).collect(),
        accelerator: match target.accelerator {
            drover_plan::Accelerator::Auto => Accelerator::Auto,
            drover_plan::Accelerator::Kvm => Accelerator::Kvm,
            drover_plan::Accelerator::Tcg => Accelerator::Tcg,
        },
        is_started: vm.start,
        is_converted: false,
    }
}

/// What a site's agent calls a place: its path without the first slash.
pub fn site_name(path: &Path) -> String {
    path.to_string_lossy().trim_start_matches('/').to_string()
}

/// The pool of a folder or a file at a site.
pub fn pool_of(folder: &Path) -> String {
    site_name(folder).split('/').next().unwrap_or_default().to_string()
}

fn disk_of(disk: &PlannedDisk) -> MachineDisk {
    let bus = match disk.bus {
        TargetBus::Virtio => Bus::Virtio,
        // Guests with drivers for NVMe have them for virtio-scsi, by and large; QEMU's NVMe lacks features.
        TargetBus::Scsi | TargetBus::Nvme => Bus::Scsi,
        TargetBus::Sata | TargetBus::Ide => Bus::Sata,
    };
    MachineDisk { disk: site_name(&disk.path), bus, capacity_bytes: disk.disk.capacity_bytes }
}

fn nic_of(vm: &PlannedVm, nic: &PlannedNic) -> MachineNic {
    MachineNic {
        mac: nic.mac.clone(),
        attach: match &nic.target {
            _ if !nic.connected => Attach::None,
            NetworkTarget::Bridge(name) => Attach::Bridge(name.clone()),
            NetworkTarget::User => Attach::User,
            // What only libvirt or KubeVirt attaches a NIC to is told to it alone.
            NetworkTarget::None | NetworkTarget::Libvirt(_) | NetworkTarget::Kubevirt(_) => Attach::None,
        },
        model: vm.nic_model_of(nic),
    }
}

/// The machine as QEMU builds it on this host. UEFI files that are not told are searched for; only a machine that
/// is to be started cannot do without.
pub fn spec_of(home: &Home<'_>, uefi: Option<&UefiFiles>) -> Result<MachineSpec, QemuError> {
    let machine = home.machine;
    let disks = home.images.iter().zip(&machine.disks).map(|(image, disk)| disk_spec(image, disk)).collect();
    Ok(MachineSpec {
        folder: VmFolder::new(&home.folder),
        name: machine.name.clone(),
        uuid: machine.uuid.clone(),
        title: machine.title.clone(),
        description: machine.description.clone(),
        firmware: firmware_of(machine, uefi)?,
        cpus: machine.cpus,
        cores_per_socket: machine.cores_per_socket,
        memory_mib: machine.memory_mib,
        clock: if machine.local_time { Clock::LocalTime } else { Clock::Utc },
        cache: Cache::for_files(home.images.iter().map(PathBuf::as_path)),
        disks,
        nics: machine.nics.iter().map(nic_spec).collect(),
        accelerator: match machine.accelerator {
            Accelerator::Auto => drover_qemu::Accelerator::Auto,
            Accelerator::Kvm => drover_qemu::Accelerator::Kvm,
            Accelerator::Tcg => drover_qemu::Accelerator::Tcg,
        },
    })
}

fn firmware_of(machine: &Machine, uefi: Option<&UefiFiles>) -> Result<MachineFirmware, QemuError> {
    let secure_boot = match machine.firmware {
        Firmware::Bios => return Ok(MachineFirmware::Bios),
        Firmware::Uefi => false,
        Firmware::SecureUefi => true,
    };
    let files = match uefi {
        Some(told) => Some(Ovmf { code: told.code.clone(), vars_template: told.vars.clone() }),
        // Without files libvirt chooses its own; only a machine that drover starts itself needs them.
        None if machine.is_started => Some(Ovmf::find(secure_boot)?),
        None => Ovmf::find(secure_boot).ok(),
    };
    Ok(MachineFirmware::Uefi { secure_boot, files })
}

/// The bus of the disk that is booted from, as QEMU builds the machine.
pub fn boot_bus_of(spec: &MachineSpec) -> DiskBus {
    spec.disks.first().map_or(DiskBus::Virtio, |disk| disk.bus)
}

/// The bus of the disk that is booted from.
pub fn boot_bus(machine: &Machine) -> DiskBus {
    machine.disks.first().map_or(DiskBus::Virtio, |disk| bus_of(disk.bus))
}

fn bus_of(bus: Bus) -> DiskBus {
    match bus {
        Bus::Virtio => DiskBus::Virtio,
        Bus::Scsi => DiskBus::Scsi,
        Bus::Sata => DiskBus::Sata,
    }
}

fn disk_spec(image: &Path, disk: &MachineDisk) -> DiskSpec {
    let format = match image.extension() {
        Some(ending) if ending == "qcow2" => drover_qemu::ImageFormat::Qcow2,
        _ => drover_qemu::ImageFormat::Raw,
    };
    let capacity_bytes = disk.capacity_bytes;
    DiskSpec {
        path: image.to_path_buf(),
        rbd: None,
        format,
        bus: bus_of(disk.bus),
        capacity_bytes,
        serial: None,
    }
}

fn nic_spec(nic: &MachineNic) -> NicSpec {
    NicSpec {
        mac: nic.mac.clone(),
        is_up: true,
        attach: match &nic.attach {
            Attach::Bridge(name) => NicAttach::Bridge(name.clone()),
            Attach::User => NicAttach::User,
            Attach::None => NicAttach::None,
        },
        model: nic.model,
    }
}
