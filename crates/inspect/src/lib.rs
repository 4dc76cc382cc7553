//! Looks into a guest's disks without starting it and without mounting them: partition tables, signatures, logical volumes, and of
//! Linux on ext4, XFS and btrfs and of Windows on NTFS what decides whether it boots elsewhere. All that is read was written by somebody
//! else, so every size has a bound.
//!
//! ```text
//! disk ─ table ─> partitions ─ signature ─> ext4, xfs, btrfs ─ tree ─ linux ─> os-release, fstab, network files, boot loader
//!                      ^                │       └ initramfs ─> drivers
//!                      │                ├─> ntfs ─ hive ─ windows ─> version, drivers, services, addresses
//!                      └─ volumes ─ lvm <┴> fat ─> loaders of the EFI system partition
//! ```
//!
//! Not looked into, and told so: volumes of LVM that are not linear, software RAID, encrypted partitions, and dynamic disks of Windows.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod btrfs;
mod ext4;
mod fat;
#[doc(hidden)]
pub mod fuzzing;
mod hive;
mod initramfs;
mod linux;
mod lvm;
mod network;
mod ntfs;
mod read;
mod signature;
mod table;
#[cfg(test)]
mod tests;
mod tree;
mod windows;
mod xfs;

use std::collections::HashMap;
use std::sync::Arc;

use drover_types::guest::{Encrypted, Inside};

pub use initramfs::Drivers;
pub use read::ReadAt;

use lvm::Physical;
use ntfs::Ntfs;
use read::Part;
use signature::Signature;
use table::Table;
use tree::Tree;
use windows::Volume;

/// Looks into the disks of one guest, in boot order. What cannot be read is told among the findings.
pub fn inspect(disks: &[Arc<dyn ReadAt>]) -> Inside {
    let mut look = Look::default();
    for (number, disk) in disks.iter().enumerate() {
        look.at_disk(number, disk);
    }
    look.at_volumes();
    linux::look(&look.trees, &mut look.inside);
    windows::look(&look.ntfs, &mut look.inside);
    look.inside
}

/// A look into one guest.
#[derive(Default)]
struct Look {
    inside: Inside,
    trees: Vec<Tree>,
    ntfs: Vec<Volume>,
    physical: Physical,
    /// Where physical volumes lie, by their UUIDs.
    places: HashMap<String, Place>,
}

/// Where something was found.
#[derive(Clone)]
struct Place {
    disk: usize,
    partition: usize,
    name: String,
}

impl Look {
    fn at_disk(&mut self, number: usize, disk: &Arc<dyn ReadAt>) {
        let table = match Table::read(disk.as_ref()) {
            Ok(table) => table,
            Err(error) => return self.inside.unseen.push(format!("disk {number}: {error}")),
        };
        if table.is_dynamic {
            self.inside.dynamic_disks.push(number);
        }
        if let Some(loader) = table.boot_code {
            self.inside.boot_loader.get_or_insert_with(|| loader.to_string());
        }
        for part in &table.parts {
            let name = part_name(number, part.number);
            let place = Place { disk: number, partition: part.number, name };
            self.at_part(&place, Part::new(disk.clone(), part.start, part.length), part.is_efi);
        }
        if table.parts.iter().any(|part| part.is_efi) {
            self.inside.boot_loader.get_or_insert_with(|| "UEFI".to_string());
        }
    }

    fn at_part(&mut self, place: &Place, part: Part, is_efi: bool) {
        let unseen = match signature::of(&part) {
            Ok(Some(Signature::Ext)) => match Tree::of_ext(part) {
                Ok(tree) => return self.trees.push(tree),
                Err(why) => format!("ext4 cannot be read: {why}"),
            },
            Ok(Some(Signature::Xfs)) => match Tree::of_xfs(part) {
                Ok(tree) => return self.trees.push(tree),
                Err(why) => format!("XFS cannot be read: {why}"),
            },
            Ok(Some(Signature::Btrfs)) => match Tree::of_btrfs(part) {
                Ok(tree) => return self.trees.push(tree),
                Err(why) => format!("btrfs cannot be read: {why}"),
            },
            Ok(Some(Signature::Lvm)) => match self.physical.add(part) {
                Ok(uuid) => return drop(self.places.insert(uuid, place.clone())),
                Err(why) => format!("LVM cannot be read: {why}"),
            },
            Ok(Some(Signature::Ntfs)) => {
                self.inside.ntfs = true;
                match Ntfs::load(part) {
                    Ok(ntfs) => {
                        let Place { disk, partition, name } = place.clone();
                        return self.ntfs.push(Volume { ntfs, disk, partition, name });
                    }
                    Err(why) => format!("NTFS cannot be read: {why}"),
                }
            }
            Ok(Some(Signature::Locked(kind))) => {
                let Place { disk, partition, .. } = *place;
                return self.inside.encrypted.push(Encrypted { disk, partition, kind: kind.to_string() });
            }
            Ok(Some(Signature::Unread(what))) => format!("{what} is not looked into"),
            Ok(Some(Signature::Fat)) if is_efi => match fat::loaders(&part) {
                Ok(found) => {
                    let efi = self.inside.efi.get_or_insert_default();
                    efi.has_fallback |= found.has_fallback;
                    return efi.loaders.extend(found.loaders);
                }
                Err(why) => format!("FAT cannot be read: {why}"),
            },
            Ok(Some(Signature::Fat | Signature::Passed) | None) => return,
            Err(error) => error.to_string(),
        };
        self.inside.unseen.push(format!("{}: {unseen}", place.name));
    }

    /// Logical volumes, once all disks were looked at, as they may lie on several.
    fn at_volumes(&mut self) {
        for volume in self.physical.logical() {
            let name = format!("LVM volume {}", volume.name);
            let begins_in = volume.begins_in.and_then(|uuid| self.places.get(&uuid));
            let (disk, partition) = begins_in.map_or((0, 0), |place| (place.disk, place.partition));
            match volume.content {
                Ok(part) if matches!(signature::of(&part), Ok(Some(Signature::Lvm))) => {
                    self.inside.unseen.push(format!("{name}: LVM in a volume of LVM is not looked into"));
                }
                Ok(part) => self.at_part(&Place { disk, partition, name }, part, false),
                Err(why) => self.inside.unseen.push(format!("{name}: {why}")),
            }
        }
    }
}

fn part_name(disk: usize, partition: usize) -> String {
    if partition == 0 { format!("disk {disk}") } else { format!("disk {disk}, partition {partition}") }
}
