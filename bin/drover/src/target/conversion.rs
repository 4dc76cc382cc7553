//! Conversion on this machine: whether a guest needs it, what is missing for it, and how it went.

use std::path::Path;

use drover_engine::{Cause, Converted, ProviderError, chain};
use drover_plan::{
    Convert, Fate, FirstBoot, PlannedVm, StaticAddress, Stays, TargetBus, fates, lacking_driver,
    names_of_slots, renamed,
};
use drover_qemu::{
    ConvertOptions, ConvertOutcome, DiskBus, MachineSpec, Need, NicName, SourceBus, SourceGuest,
};
use drover_types::guest::Inside;
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
    })?;
    check_first_boot(vm)
}

fn check_first_boot(vm: &PlannedVm) -> Result<(), ProviderError> {
    let work = first_boot(vm);
    if work.is_empty() {
        return Ok(());
    }
    let refused = |why: String, advice: &str| {
        let what = format!("{} has work for its first boot: {why}", vm.vm.name);
        ProviderError::new(Cause::Target, what).advise(advice)
    };
    work.check().map_err(|why| refused(why, "see `first_boot` in the plan"))?;
    drover_qemu::can_customize()
        .map_err(|why| refused(why, "install virt-v2v 2.6 or later, or leave `first_boot` out"))
}

/// Work for the first boot, as the converter wants it.
fn first_boot(vm: &PlannedVm) -> drover_qemu::FirstBoot {
    let FirstBoot { scripts, guest_agent, addresses } = vm.first_boot.clone();
    drover_qemu::FirstBoot {
        scripts,
        package: guest_agent,
        addresses: addresses.iter().map(address).collect(),
    }
}

/// Converts a guest whose images lie on this machine, if the plan and the guest ask for it.
pub(super) fn convert(spec: &MachineSpec, vm: &PlannedVm) -> Result<Converted, ProviderError> {
    let inside = inside(spec, vm);
    let Judged { need, boots } = judged(spec, vm, inside.as_ref());
    let names = Names::of(vm, inside.as_ref());
    // A guest that boots as it is may lose its network: then that is what it is converted for.
    let lost: Vec<&str> = names.sure.iter().map(|it| it.name.as_str()).collect();
    let is_for_names = vm.convert == Convert::Auto && !matches!(need, Need::Needed(_)) && !lost.is_empty();
    let names_lost =
        format!("its network settings are for {}, a name that its card may lose", lost.join(", "));
    let reason = match (need, vm.convert) {
        (Need::NotNeeded(why) | Need::Advised(why), Convert::Auto) if is_for_names => {
            if let Err(cannot) = drover_qemu::can_customize() {
                return Ok(Converted::Skipped(format!("{why}, BUT {names_lost}, and {cannot}")));
            }
            names_lost.clone()
        }
        (Need::NotNeeded(why) | Need::Advised(why), Convert::Auto) => return Ok(Converted::Skipped(why)),
        (Need::Needed(why) | Need::Advised(why) | Need::NotNeeded(why), _) => why,
    };
    match drover_qemu::convert(spec, &source_guest(vm, names), &ConvertOptions::default()) {
        // Its images are as they were copied, and it may well boot from them.
        Err(error) if is_for_names && !drover_qemu::is_converted(spec) => {
            Ok(Converted::Skipped(format!("{names_lost}, BUT {}", chain(&error))))
        }
        Err(error) => Err(qemu_error(error)),
        Ok(ConvertOutcome::Converted { log, warnings, kept }) => {
            Ok(Converted::Done(told(&log, &warnings, &kept, &vm.first_boot)))
        }
        Ok(ConvertOutcome::ConvertedBefore) => Ok(Converted::Skipped("an earlier run converted it".into())),
        Ok(ConvertOutcome::NotAvailable(why))
            if vm.convert == Convert::Always || (vm.start && boots == Some(false)) =>
        {
            Err(ProviderError::new(Cause::Target, format!("{reason}, but {why}"))
                .advise("install it and run the same command again, or choose `convert: never`"))
        }
        Ok(ConvertOutcome::NotAvailable(why)) => Ok(Converted::Skipped(format!("{reason}, BUT {why}"))),
    }
}

/// An address as the converter wants it.
fn address(it: &StaticAddress) -> String {
    let gateway = it.gateway.map(|it| it.to_string()).unwrap_or_default();
    let dns: String = it.dns.iter().map(|it| format!(",{it}")).collect();
    format!("{}:ip:{},{gateway},{}{dns}", it.mac, it.address, it.prefix)
}

/// What is inside a Linux whose images are as they were copied; absent where nobody can tell.
fn inside(spec: &MachineSpec, vm: &PlannedVm) -> Option<Inside> {
    // What is in converted ones is no more what the source had.
    if is_windows(&vm.vm) || drover_qemu::is_converted(spec) {
        return None;
    }
    inspect_images(vm.disks.iter().map(|disk| disk.path.as_path()), vm.format).ok()
}

/// What is known of a guest before its conversion.
struct Judged {
    need: Need,
    /// Whether it boots without; absent where nobody knows.
    boots: Option<bool>,
}

/// Whether a guest needs conversion, by what is in its images where that tells, else by its guest id.
fn judged(spec: &MachineSpec, vm: &PlannedVm, inside: Option<&Inside>) -> Judged {
    let bus = boot_bus_of(spec);
    let by_id = drover_qemu::needs_conversion(&vm.vm.guest_id, bus);
    if is_windows(&vm.vm) {
        return Judged { need: by_id, boots: Some(bus == DiskBus::Sata) };
    }
    if drover_qemu::is_converted(spec) {
        return Judged { need: Need::Needed("an earlier run began to convert it".into()), boots: None };
    }
    let by_id = Judged { need: by_id, boots: None };
    let Some(inside) = inside else { return by_id };
    let (Some(initramfs), Some(disk)) = (&inside.initramfs, vm.disks.first()) else { return by_id };
    let path = &initramfs.path;
    if let Some(driver) = lacking_driver(initramfs, disk.bus) {
        let need = Need::Needed(format!("its {path} has no driver {driver}"));
        return Judged { need, boots: Some(false) };
    }
    let renamed = renamed(vm, inside);
    // The converter renames these two, to virtio; what it does not rename is no reason for it.
    let are_cured = disk.bus == TargetBus::Virtio
        && inside
            .by_path
            .iter()
            .any(|it| ["/dev/sd", "/dev/hd"].iter().any(|start| it.device.starts_with(start)));
    if !renamed.is_empty() && !are_cured {
        return by_id;
    }
    if !renamed.is_empty() {
        let why = format!("it finds disks by paths that change with their bus: {}", renamed.join(", "));
        return Judged { need: Need::Needed(why), boots: None };
    }
    if !inside.saw_root() {
        // On LVM or another file system: its fstab may name disks by their paths.
        return by_id;
    }
    let need = Need::NotNeeded(format!("its {path} has the driver of its disks"));
    Judged { need, boots: Some(true) }
}

/// Names of interfaces that are to be kept, as names that come of where a card is change with it.
#[derive(Default)]
struct Names {
    /// Those that the guest's settings need.
    sure: Vec<NicName>,
    /// Those that they may need, where nobody could read them.
    maybe: Vec<NicName>,
}

impl Names {
    fn of(vm: &PlannedVm, inside: Option<&Inside>) -> Names {
        let Some(inside) = inside else { return Names::default() };
        if !inside.saw_root() {
            let name = |(name, mac)| NicName { mac, name };
            return Names { maybe: names_of_slots(vm).into_iter().map(name).collect(), ..Names::default() };
        }
        let name = |fate: Fate| match fate.stays {
            Stays::IfNamed { name, mac } => Some(NicName { mac, name }),
            Stays::ByItself | Stays::No | Stays::Unset => None,
        };
        Names { sure: fates(vm, inside).into_iter().filter_map(name).collect(), ..Names::default() }
    }
}

fn told(log: &Path, warnings: &[String], kept: &[String], first_boot: &FirstBoot) -> String {
    let mut text = log.display().to_string();
    let files: Vec<String> =
        first_boot.guest_agent.iter().chain(&first_boot.scripts).map(|it| it.display().to_string()).collect();
    if !files.is_empty() {
        text += &format!("; for its first boot: {}", files.join(", "));
    }
    if !first_boot.addresses.is_empty() {
        let addresses = first_boot.addresses.iter().map(|it| format!("{} of {}", it.address, it.mac));
        text += &format!("; given at its first boot: {}", addresses.collect::<Vec<_>>().join(", "));
    }
    if !kept.is_empty() {
        text += &format!("; interfaces that keep their names: {}", kept.join(", "));
    }
    if !warnings.is_empty() {
        text += &format!("; it warned: {}", warnings.join("; "));
    }
    text
}

/// The guest as the converter has to know it.
fn source_guest(vm: &PlannedVm, names: Names) -> SourceGuest {
    let bus = |bus| match bus {
        InventoryBus::Scsi => SourceBus::Scsi,
        InventoryBus::Sata => SourceBus::Sata,
        InventoryBus::Ide => SourceBus::Ide,
        InventoryBus::Nvme => SourceBus::Nvme,
    };
    let buses = vm.disks.iter().map(|disk| bus(disk.disk.bus)).collect();
    let Names { sure: names, maybe: names_maybe } = names;
    SourceGuest { is_windows: is_windows(&vm.vm), buses, names, names_maybe, first_boot: first_boot(vm) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_as_the_converter_wants_it() {
        let ip = |text: &str| text.parse::<std::net::IpAddr>().ok();
        let found = |gateway, dns: Vec<std::net::IpAddr>| {
            let address = ip("192.0.2.7").unwrap_or(std::net::Ipv4Addr::LOCALHOST.into());
            super::address(&StaticAddress {
                mac: "00:50:56:aa:00:07".into(),
                address,
                prefix: 24,
                gateway,
                dns,
            })
        };
        assert_eq!(found(None, vec![]), "00:50:56:aa:00:07:ip:192.0.2.7,,24");
        let dns = ip("192.0.2.53").into_iter().chain(ip("2001:db8::53")).collect();
        let expected = "00:50:56:aa:00:07:ip:192.0.2.7,192.0.2.1,24,192.0.2.53,2001:db8::53";
        assert_eq!(found(ip("192.0.2.1"), dns), expected);
    }
}
