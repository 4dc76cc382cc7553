//! QEMU and libvirt on this machine as the engine's target.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drover_disk::{Disk, DiskError, Features, FileDisk, Lane, Limits};
use drover_engine::{Cause, Converted, OpenedTarget, ProviderError, TargetProvider};
use drover_mover::journal_path;
use drover_plan::{
    Convert, ImageFormat, NetworkTarget, PlannedDisk, PlannedNic, PlannedVm, Target, TargetBus,
};
use drover_qcow2::Qcow2Disk;
use drover_qemu::{
    Accelerator, Cache, Clock, ConvertOptions, ConvertOutcome, DiskBus, DiskSpec, MachineFirmware,
    MachineSpec, Need, NicAttach, NicModel, NicSpec, Ovmf, RunOptions, Validation, VmFolder,
};
use drover_types::inventory::{About, Firmware};
use drover_types::{ByteSpan, Extent};

use crate::endpoint::{TargetEnd, open_raw_target};
use crate::exit::Failure;
use crate::image::qemu_error;
use crate::qcow2;

/// How long a guest that must go may take before its plug is pulled.
const STOP_TIME: Duration = Duration::from_secs(5);

/// QEMU on this machine, for one plan.
pub struct QemuTarget {
    target: Target,
    /// Where the VMs come from, in words.
    origin: String,
}

impl QemuTarget {
    pub fn new(target: &Target, about: &About) -> Self {
        QemuTarget {
            target: target.clone(),
            origin: format!("{} {}", about.product, about.version).trim().to_string(),
        }
    }

    fn spec(&self, vm: &PlannedVm) -> Result<MachineSpec, ProviderError> {
        let disks = vm.disks.iter().map(disk_spec).collect::<Result<Vec<_>, _>>()?;
        let files: Vec<PathBuf> = disks.iter().map(|disk| disk.path.clone()).collect();
        let is_windows = vm.vm.guest_id.to_ascii_lowercase().starts_with("win");
        Ok(MachineSpec {
            folder: VmFolder::new(&vm.folder),
            name: vm.target_name.clone(),
            uuid: Some(vm.vm.uuid.clone()).filter(|uuid| !uuid.is_empty()),
            title: Some(vm.vm.name.clone()).filter(|name| !name.is_empty()),
            description: Some(format!("moved by drover from {} ({})", self.origin, vm.vm.id)),
            firmware: self.firmware(vm)?,
            cpus: vm.vm.cpus.max(1),
            cores_per_socket: vm.vm.cores_per_socket.max(1),
            memory_mib: vm.vm.memory_mib,
            clock: if is_windows { Clock::LocalTime } else { Clock::Utc },
            cache: Cache::for_files(files.iter().map(PathBuf::as_path)),
            disks,
            nics: vm.nics.iter().map(nic_spec).collect(),
            accelerator: match self.target.accelerator {
                drover_plan::Accelerator::Auto => Accelerator::Auto,
                drover_plan::Accelerator::Kvm => Accelerator::Kvm,
                drover_plan::Accelerator::Tcg => Accelerator::Tcg,
            },
        })
    }

    fn firmware(&self, vm: &PlannedVm) -> Result<MachineFirmware, ProviderError> {
        if vm.vm.firmware != Some(Firmware::Uefi) {
            return Ok(MachineFirmware::Bios);
        }
        let secure_boot = vm.vm.secure_boot;
        let files = match &self.target.uefi {
            Some(told) => Some(Ovmf { code: told.code.clone(), vars_template: told.vars.clone() }),
            // Without files libvirt chooses its own; only a machine that drover starts itself needs them.
            None if vm.start => Some(Ovmf::find(secure_boot).map_err(qemu_error)?),
            None => Ovmf::find(secure_boot).ok(),
        };
        Ok(MachineFirmware::Uefi { secure_boot, files })
    }

    fn folders(vm: &PlannedVm) -> impl Iterator<Item = &Path> {
        let disks = vm.disks.iter().filter_map(|disk| disk.path.parent());
        std::iter::once(vm.folder.as_path()).chain(disks)
    }
}

impl TargetProvider for QemuTarget {
    fn prepare(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        for folder in QemuTarget::folders(vm) {
            std::fs::create_dir_all(folder).map_err(|error| io_error("making", folder, error))?;
            drover_disk::is_writable_dir(folder).map_err(|error| {
                ProviderError::new(Cause::Target, format!("folder {} cannot be written", folder.display()))
                    .because(error)
                    .advise("choose a folder that this user may write to")
            })?;
        }
        self.spec(vm)?.check().map_err(qemu_error)
    }

    fn open_disk(
        &self,
        disk: &PlannedDisk,
        vm: &PlannedVm,
        size: u64,
    ) -> Result<OpenedTarget, ProviderError> {
        let opened = match vm.format {
            ImageFormat::Raw => open_raw_target(&disk.path, size),
            ImageFormat::Qcow2 => {
                let earlier = journal_path(&disk.path).exists();
                qcow2::open_target(&disk.path, size, earlier, false, qcow2::planned(&self.target.qcow2))
            }
        };
        let TargetEnd { end, tag, is_new, zeroed, .. } = opened.map_err(from_failure)?;
        Ok(OpenedTarget { disk: held(end.disk, end.keep), tag, is_new, zeroed })
    }

    fn open_for_verify(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<Arc<dyn Disk>, ProviderError> {
        let opened: Result<Arc<dyn Disk>, DiskError> = match vm.format {
            ImageFormat::Raw => FileDisk::open_for_verify(&disk.path).map(|disk| Arc::new(disk) as _),
            ImageFormat::Qcow2 => Qcow2Disk::open_for_verify(&disk.path).map(|disk| Arc::new(disk) as _),
        };
        opened.map_err(|error| {
            ProviderError::new(Cause::Target, format!("reading {} back", disk.path.display())).because(error)
        })
    }

    fn convert(&self, vm: &PlannedVm) -> Result<Converted, ProviderError> {
        if vm.convert == Convert::Never {
            return Ok(Converted::Skipped("the plan says so".into()));
        }
        convert(&self.spec(vm)?, vm)
    }

    fn forget_conversion(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        drover_qemu::forget_conversion(&VmFolder::new(&vm.folder)).map_err(qemu_error)
    }

    fn define(&self, vm: &PlannedVm) -> Result<String, ProviderError> {
        let spec = self.spec(vm)?;
        let made = drover_qemu::write_definition(&spec).map_err(qemu_error)?;
        let schema = match made.validation {
            Validation::Valid => "valid by libvirt's schema".to_string(),
            Validation::NotChecked(why) => format!("not checked against libvirt's schema: {why}"),
            Validation::Invalid(why) => {
                let what = format!("libvirt's schema refuses {}: {why}", made.xml_path.display());
                return Err(ProviderError::new(Cause::Internal, what).advise("report this with the file"));
            }
        };
        let script = made.run_script_path.map(|path| format!(", {}", path.display())).unwrap_or_default();
        Ok(format!("defined: {}{script} ({schema})", made.xml_path.display()))
    }

    fn undo_define(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        drover_qemu::undo_definition(&VmFolder::new(&vm.folder)).map_err(qemu_error)
    }

    fn start(&self, vm: &PlannedVm) -> Result<String, ProviderError> {
        let running = drover_qemu::start(&self.spec(vm)?, &RunOptions::default()).map_err(qemu_error)?;
        let notes: String = running.notes.iter().map(|note| format!("; {note}")).collect();
        Ok(format!(
            "started: process {}, serial line in {}{notes}",
            running.pid,
            running.serial_log().display()
        ))
    }

    fn is_running(&self, vm: &PlannedVm) -> Result<bool, ProviderError> {
        drover_qemu::is_running(&VmFolder::new(&vm.folder)).map_err(qemu_error)
    }

    fn stop(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        match drover_qemu::find_running(&VmFolder::new(&vm.folder)).map_err(qemu_error)? {
            Some(running) => running.stop(STOP_TIME).map_err(qemu_error),
            None => Ok(()),
        }
    }

    fn remove_images(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        drover_qemu::forget_conversion(&VmFolder::new(&vm.folder)).map_err(qemu_error)?;
        for disk in &vm.disks {
            // Only what drover made: an image without a journal is somebody else's.
            let journal = journal_path(&disk.path);
            if journal.exists() {
                remove(&disk.path)?;
                remove(&journal)?;
                remove(&crate::vddk::log_path(&disk.path))?;
            }
        }
        for folder in QemuTarget::folders(vm) {
            // Folders that hold something else stay.
            let _ = std::fs::remove_dir(folder);
        }
        Ok(())
    }
}

fn convert(spec: &MachineSpec, vm: &PlannedVm) -> Result<Converted, ProviderError> {
    let bus = spec.disks.first().map_or(DiskBus::Virtio, |disk| disk.bus);
    let need = drover_qemu::needs_conversion(&vm.vm.guest_id, bus);
    let reason = match (&need, vm.convert) {
        (Need::NotNeeded(why) | Need::Advised(why), Convert::Auto) => {
            return Ok(Converted::Skipped(why.clone()));
        }
        (Need::Needed(why) | Need::Advised(why) | Need::NotNeeded(why), _) => why.clone(),
    };
    match (drover_qemu::convert(spec, &ConvertOptions::default()).map_err(qemu_error)?, vm.convert) {
        (ConvertOutcome::Converted(log), _) => Ok(Converted::Done(log.display().to_string())),
        (ConvertOutcome::ConvertedBefore, _) => Ok(Converted::Skipped("an earlier run converted it".into())),
        (ConvertOutcome::NotAvailable(why), Convert::Always) => {
            Err(ProviderError::new(Cause::Target, why)
                .advise("install it, or choose `convert: auto` or `never`"))
        }
        (ConvertOutcome::NotAvailable(why), _) => Ok(Converted::Skipped(format!("{reason}, BUT {why}"))),
    }
}

fn disk_spec(disk: &PlannedDisk) -> Result<DiskSpec, ProviderError> {
    let format = match disk.path.extension() {
        Some(ending) if ending == "qcow2" => drover_qemu::ImageFormat::Qcow2,
        _ => drover_qemu::ImageFormat::Raw,
    };
    let bus = match disk.bus {
        TargetBus::Virtio => DiskBus::Virtio,
        // Guests with drivers for NVMe have them for virtio-scsi, by and large; QEMU's NVMe lacks features.
        TargetBus::Scsi | TargetBus::Nvme => DiskBus::Scsi,
        TargetBus::Sata | TargetBus::Ide => DiskBus::Sata,
    };
    let path = std::path::absolute(&disk.path).map_err(|error| io_error("finding", &disk.path, error))?;
    Ok(DiskSpec { path, format, bus, capacity_bytes: disk.disk.capacity_bytes, serial: None })
}

fn nic_spec(nic: &PlannedNic) -> NicSpec {
    NicSpec {
        mac: nic.mac.clone(),
        attach: match &nic.target {
            NetworkTarget::Bridge(name) => NicAttach::Bridge(name.clone()),
            NetworkTarget::User => NicAttach::User,
            NetworkTarget::None => NicAttach::None,
        },
        model: match nic.model.as_str() {
            "e1000" => NicModel::E1000,
            "e1000e" => NicModel::E1000e,
            "vmxnet3" => NicModel::Vmxnet3,
            _ => NicModel::Virtio,
        },
    }
}

fn remove(path: &Path) -> Result<(), ProviderError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error("removing", path, error)),
        _ => Ok(()),
    }
}

fn io_error(doing: &str, path: &Path, error: std::io::Error) -> ProviderError {
    let cause = match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Cause::TargetFull,
        _ => Cause::Target,
    };
    ProviderError::new(cause, format!("{doing} {}", path.display())).because(error)
}

fn from_failure(failure: Failure) -> ProviderError {
    let cause = match failure.exit {
        crate::exit::Exit::TargetFull => Cause::TargetFull,
        crate::exit::Exit::Access => Cause::Access,
        _ => Cause::Target,
    };
    let error = ProviderError::new(cause, failure.message);
    match failure.advice {
        Some(advice) => error.advise(advice),
        None => error,
    }
}

/// A disk together with what must live as long as it.
struct Held<K> {
    disk: Arc<dyn Disk>,
    _keep: K,
}

fn held<K: Send + Sync + 'static>(disk: Arc<dyn Disk>, keep: K) -> Arc<dyn Disk> {
    Arc::new(Held { disk, _keep: keep })
}

impl<K: Send + Sync> Disk for Held<K> {
    fn name(&self) -> &str {
        self.disk.name()
    }

    fn size(&self) -> u64 {
        self.disk.size()
    }

    fn identity(&self) -> String {
        self.disk.identity()
    }

    fn limits(&self) -> Limits {
        self.disk.limits()
    }

    fn features(&self) -> Features {
        self.disk.features()
    }

    fn extents(&self, span: ByteSpan) -> Result<Vec<Extent>, DiskError> {
        self.disk.extents(span)
    }

    fn open_lane(&self) -> Result<Box<dyn Lane>, DiskError> {
        self.disk.open_lane()
    }

    fn flush(&self) -> Result<(), DiskError> {
        self.disk.flush()
    }
}
