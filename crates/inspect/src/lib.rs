//! Looks into a guest's disks without starting it and without mounting them: partition tables, signatures, and of Linux on
//! ext4 what decides whether it boots elsewhere. All that is read was written by somebody else, so every size has a bound.
//!
//! ```text
//! disk ─ table ─> partitions ─ signature ─> ext4 ─ linux ─> os-release, fstab, network files, boot loader
//!                                       │       └ initramfs ─> drivers
//!                                       └> fat ─> loaders of the EFI system partition
//! ```
//!
//! Not looked into, and told so: LVM, software RAID, XFS, btrfs, encrypted partitions, and the inside of NTFS.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod ext4;
mod fat;
mod initramfs;
mod linux;
mod network;
mod read;
mod signature;
mod table;

use std::sync::Arc;

use drover_types::guest::{Encrypted, Inside};

pub use initramfs::Drivers;
pub use read::ReadAt;

use ext4::Tree;
use read::Part;
use signature::Signature;
use table::Table;

/// Looks into the disks of one guest, in boot order. What cannot be read is told among the findings.
pub fn inspect(disks: &[Arc<dyn ReadAt>]) -> Inside {
    let mut inside = Inside::default();
    let mut trees = Vec::new();
    for (number, disk) in disks.iter().enumerate() {
        let table = match Table::read(disk.as_ref()) {
            Ok(table) => table,
            Err(error) => {
                inside.unseen.push(format!("disk {number}: {error}"));
                continue;
            }
        };
        if table.is_dynamic {
            inside.dynamic_disks.push(number);
        }
        if let Some(loader) = table.boot_code {
            inside.boot_loader.get_or_insert_with(|| loader.to_string());
        }
        for part in &table.parts {
            let name = part_name(number, part.number);
            let window = Part::new(disk.clone(), part.start, part.length);
            match signature::of(&window) {
                Ok(Some(Signature::Ext)) => match Tree::load(window) {
                    Ok(tree) => trees.push(tree),
                    Err(why) => inside.unseen.push(format!("{name}: ext4 cannot be read: {why}")),
                },
                Ok(Some(Signature::Ntfs)) => inside.ntfs = true,
                Ok(Some(Signature::Locked(kind))) => {
                    let (disk, partition, kind) = (number, part.number, kind.to_string());
                    inside.encrypted.push(Encrypted { disk, partition, kind });
                }
                Ok(Some(Signature::Unread(what))) => {
                    inside.unseen.push(format!("{name}: {what} is not looked into"));
                }
                Ok(Some(Signature::Fat)) if part.is_efi => match fat::loaders(&window) {
                    Ok(found) => {
                        let efi = inside.efi.get_or_insert_default();
                        efi.has_fallback |= found.has_fallback;
                        efi.loaders.extend(found.loaders);
                    }
                    Err(why) => inside.unseen.push(format!("{name}: FAT cannot be read: {why}")),
                },
                Ok(Some(Signature::Fat | Signature::Passed) | None) => {}
                Err(error) => inside.unseen.push(format!("{name}: {error}")),
            }
        }
        if table.parts.iter().any(|part| part.is_efi) {
            inside.boot_loader.get_or_insert_with(|| "UEFI".to_string());
        }
    }
    linux::look(&trees, &mut inside);
    inside
}

fn part_name(disk: usize, partition: usize) -> String {
    if partition == 0 { format!("disk {disk}") } else { format!("disk {disk}, partition {partition}") }
}
