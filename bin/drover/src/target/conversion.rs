//! Conversion on this machine: whether a guest needs it, what is missing for it, and how it went.

use drover_engine::{Cause, Converted, ProviderError};
use drover_plan::{Convert, PlannedVm, TargetBus, card_of, lacking_driver, renamed};
use drover_qemu::{
    ConvertOptions, ConvertOutcome, DiskBus, MachineSpec, Need, NicName, SourceBus, SourceGuest,
};
use drover_types::guest::{Inside, Interface};
use drover_types::inventory::DiskBus as InventoryBus;

use crate::image::qemu_error;
use crate::inspection::inspect_images;
use crate::machine::{boot_bus_of, is_windows};

/// Refuses a VM that would be moved and then not be converted, or not boot.
pub(super) fn check(vm: &PlannedVm, boot_bus: DiskBus) -> Result<(), ProviderError> {
    let need = drover_qemu::needs_conversion(&vm.vm.guest_id, boot_bus);
    match (vm.convert, need) {
        (Convert::Never, _) | (Convert::Auto, Need::Advised(_) | Need::NotNeeded(_)) => return Ok(()),
        (Convert::Always, _) | (Convert::Auto, Need::Needed(_)) => {}
    }
    drover_qemu::check_conversion(is_windows(&vm.vm), boot_bus).map_err(|lack| {
        let what = format!("{} needs conversion: {}", vm.vm.name, lack.what);
        ProviderError::new(Cause::Target, what).advise(lack.advice)
    })
}

/// Converts a guest whose images lie on this machine, if the plan and the guest ask for it.
pub(super) fn convert(spec: &MachineSpec, vm: &PlannedVm) -> Result<Converted, ProviderError> {
    let Judged { need, boots, names } = judged(spec, vm);
    let reason = match (&need, vm.convert) {
        (Need::NotNeeded(why) | Need::Advised(why), Convert::Auto) => {
            return Ok(Converted::Skipped(why.clone()));
        }
        (Need::Needed(why) | Need::Advised(why) | Need::NotNeeded(why), _) => why.clone(),
    };
    let outcome = drover_qemu::convert(spec, &source_guest(vm, names), &ConvertOptions::default());
    match outcome.map_err(qemu_error)? {
        ConvertOutcome::Converted { log, warnings, kept } => {
            Ok(Converted::Done(told(&log, &warnings, &kept)))
        }
        ConvertOutcome::ConvertedBefore => Ok(Converted::Skipped("an earlier run converted it".into())),
        ConvertOutcome::NotAvailable(why)
            if vm.convert == Convert::Always || (vm.start && boots == Some(false)) =>
        {
            Err(ProviderError::new(Cause::Target, format!("{reason}, but {why}"))
                .advise("install it and run the same command again, or choose `convert: never`"))
        }
        ConvertOutcome::NotAvailable(why) => Ok(Converted::Skipped(format!("{reason}, BUT {why}"))),
    }
}

/// What is known of a guest before its conversion.
struct Judged {
    need: Need,
    /// Whether it boots without; absent where nobody knows.
    boots: Option<bool>,
    /// Interfaces that are to keep their names.
    names: Vec<NicName>,
}

/// Whether a guest needs conversion, by what is in its images where that tells, else by its guest id.
fn judged(spec: &MachineSpec, vm: &PlannedVm) -> Judged {
    let bus = boot_bus_of(spec);
    let by_id = drover_qemu::needs_conversion(&vm.vm.guest_id, bus);
    let names = Vec::new();
    if is_windows(&vm.vm) {
        return Judged { need: by_id, boots: Some(bus == DiskBus::Sata), names };
    }
    if drover_qemu::is_converted(spec) {
        // What is in them now is no more what the source had.
        return Judged {
            need: Need::Needed("an earlier run began to convert it".into()),
            boots: None,
            names,
        };
    }
    let images = vm.disks.iter().map(|disk| disk.path.as_path());
    let Ok(inside) = inspect_images(images, vm.format) else {
        return Judged { need: by_id, boots: None, names };
    };
    let names = names_to_keep(vm, &inside);
    let (Some(initramfs), Some(disk)) = (&inside.initramfs, vm.disks.first()) else {
        return Judged { need: by_id, boots: None, names };
    };
    let path = &initramfs.path;
    if let Some(driver) = lacking_driver(initramfs, disk.bus) {
        let need = Need::Needed(format!("its {path} has no driver {driver}"));
        return Judged { need, boots: Some(false), names };
    }
    let renamed = renamed(vm, &inside);
    // The converter renames these two, to virtio; what it does not rename is no reason for it.
    let are_cured = disk.bus == TargetBus::Virtio
        && inside
            .by_path
            .iter()
            .any(|it| ["/dev/sd", "/dev/hd"].iter().any(|start| it.device.starts_with(start)));
    if !renamed.is_empty() && !are_cured {
        return Judged { need: by_id, boots: None, names };
    }
    if !renamed.is_empty() {
        let why = format!("it finds disks by paths that change with their bus: {}", renamed.join(", "));
        return Judged { need: Need::Needed(why), boots: None, names };
    }
    if !inside.saw_root() {
        // On LVM or another file system: its fstab may name disks by their paths.
        return Judged { need: by_id, boots: None, names };
    }
    let need = Need::NotNeeded(format!("its {path} has the driver of its disks"));
    Judged { need, boots: Some(true), names }
}

/// Names that come of where a card is change with it: those of cards that are known.
fn names_to_keep(vm: &PlannedVm, inside: &Inside) -> Vec<NicName> {
    let names = inside.interfaces.iter().filter(|interface| interface.name.starts_with("en"));
    let name = |interface: &Interface| {
        let mac = card_of(vm, inside, &interface.name)?.mac.to_ascii_lowercase();
        Some(NicName { mac, name: interface.name.clone() })
    };
    names.filter_map(name).collect()
}

fn told(log: &std::path::Path, warnings: &[String], kept: &[String]) -> String {
    let mut text = log.display().to_string();
    if !kept.is_empty() {
        text += &format!("; interfaces that keep their names: {}", kept.join(", "));
    }
    if !warnings.is_empty() {
        text += &format!("; it warned: {}", warnings.join("; "));
    }
    text
}

/// The guest as the converter has to know it.
fn source_guest(vm: &PlannedVm, names: Vec<NicName>) -> SourceGuest {
    let bus = |bus| match bus {
        InventoryBus::Scsi => SourceBus::Scsi,
        InventoryBus::Sata => SourceBus::Sata,
        InventoryBus::Ide => SourceBus::Ide,
        InventoryBus::Nvme => SourceBus::Nvme,
    };
    let buses = vm.disks.iter().map(|disk| bus(disk.disk.bus)).collect();
    SourceGuest { is_windows: is_windows(&vm.vm), buses, names }
}
