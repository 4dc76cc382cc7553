//! QEMU and libvirt on this machine.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use drover_agent::Home;
use drover_disk::{Disk, DiskError, FileDisk, LockedFile};
use drover_engine::{Cause, Converted, OpenedTarget, ProviderError, Started, TargetPlace, TargetProvider};
use drover_mover::{StopSignal, journal_path};
use drover_plan::{ImageFormat, PlannedDisk, PlannedVm, Target};
use drover_qcow2::Qcow2Disk;
use drover_qemu::{DiskBus, MachineSpec, RunOptions, Validation, VmFolder};

use crate::conversion::{self, Converter, OnThisMachine};
use crate::errors::{disk_error, qemu_error};
use crate::images::{self, OpenImage};
use crate::lacks::lacks;
use crate::machine::{boot_bus, boot_bus_of, machine_of, spec_of};
use crate::ours::{Image, image_at, is_in_the_way, is_known_by_content, why_another};
use crate::setting::{
    ANOTHER_PLANS, Setting, all_removed, io_error, may_be_little, may_need, nearest_existing,
};

/// How long a guest that must go may take before its plug is pulled.
pub(super) const STOP_TIME: Duration = Duration::from_secs(5);

/// QEMU on this machine, for one plan.
pub struct Here {
    plan: String,
    target: Target,
    /// Where the VMs come from, in words.
    origin: String,
    stop: StopSignal,
    pub(super) converter: Converter,
}

impl Here {
    pub fn new(about: &Setting) -> Self {
        let Setting { plan, target, origin, stop, .. } = about.clone();
        Here { plan, target, origin, stop, converter: Converter::new(about) }
    }

    /// The machine of a VM whose images are files of this machine.
    pub(super) fn spec(&self, vm: &PlannedVm) -> Result<MachineSpec, ProviderError> {
        let absolute = |disk: &PlannedDisk| {
            std::path::absolute(&disk.path).map_err(|error| io_error("finding", &disk.path, error))
        };
        let images = vm.disks.iter().map(absolute).collect::<Result<Vec<_>, _>>()?;
        let machine = machine_of(vm, &self.target, &self.origin);
        let home = Home { folder: vm.folder.clone(), images, machine: &machine };
        spec_of(&home, self.target.uefi.as_ref()).map_err(qemu_error)
    }

    /// What is at an image's place, if a journal lies beside it; refused if that does not prove it to be this plan's own.
    pub(super) fn check_ours(
        &self,
        disk: &PlannedDisk,
        vm: &PlannedVm,
    ) -> Result<Option<Image>, ProviderError> {
        let journal = journal_path(&disk.path);
        if !journal.exists() {
            let is_taken = is_in_the_way(&disk.path, vm.format);
            return match is_taken.map_err(|error| io_error("looking at", &disk.path, error))? {
                false => Ok(None),
                true => Err(taken(&disk.path)),
            };
        }
        let image = self.image_of(disk, vm)?;
        let why = match image {
            Image::Missing | Image::Blank | Image::Ours => return Ok(Some(image)),
            Image::Unnamed if is_known_by_content(&disk.path, vm.format)? => return Ok(Some(image)),
            Image::Unnamed => {
                "its journal names another file, and what it holds does not show that only its device's number has changed, \
                 as by a reboot or a remount"
                    .to_string()
            }
            Image::Others(why) => why,
            Image::Plans(why) => {
                let what = format!("{} may not be overwritten: {why}", disk.path.display());
                return Err(ProviderError::new(Cause::Target, what).advise(ANOTHER_PLANS));
            }
        };
        let path = disk.path.display();
        let what = format!("{path} may be somebody else's: {why}");
        Err(ProviderError::new(Cause::Target, what).advise(format!(
            "if it may go, remove {path} and {}, and `drover resume` copies it anew; else choose another folder or \
             target_name",
            journal.display()
        )))
    }

    /// All that can refuse a VM later, looked at while it still runs. Touches nothing.
    pub fn look_ahead(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        Here::folders(vm).try_for_each(check_folder)?;
        vm.disks.iter().try_for_each(|disk| self.check_ours(disk, vm).map(drop))?;
        let machine = machine_of(vm, &self.target, &self.origin);
        if let Some(lack) = lacks(&machine, self.target.uefi.as_ref()).into_iter().next() {
            return Err(ProviderError::new(Cause::Target, lack.what).advise(lack.advice));
        }
        let spec = self.spec(vm)?;
        spec.check().map_err(qemu_error)?;
        self.converter.check(vm, boot_bus_of(&spec))
    }

    /// The bus of the disk that a VM boots from.
    pub(super) fn boot_bus(&self, vm: &PlannedVm) -> DiskBus {
        boot_bus(&machine_of(vm, &self.target, &self.origin))
    }

    fn why_it_stays(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<Option<String>, ProviderError> {
        Ok(match self.image_of(disk, vm)? {
            Image::Others(why) => Some(why),
            // The same bytes may be somebody's own copy: what is removed must be named.
            Image::Unnamed => {
                let why =
                    "its journal names another file, or a reboot or a remount changed its device's number";
                Some(why.to_string())
            }
            Image::Ours => why_another(&disk.path, vm.format)?.map(str::to_string),
            Image::Missing | Image::Blank | Image::Plans(_) => None,
        })
    }

    /// Whether no byte of an image was written.
    pub(super) fn holds_nothing(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<bool, ProviderError> {
        let is_taken = is_in_the_way(&disk.path, vm.format);
        Ok(!is_taken.map_err(|error| io_error("looking at", &disk.path, error))?)
    }

    fn image_of(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<Image, ProviderError> {
        image_at(&disk.path, vm.format, &vm.owner_of(&self.plan, disk))
            .map_err(|error| io_error("looking at", &disk.path, error))
    }

    fn folders(vm: &PlannedVm) -> impl Iterator<Item = &Path> {
        // The folder of a pool is its daemon's.
        let in_folders = vm.disks.iter().filter(|disk| disk.pool.is_none());
        let disks = in_folders.filter_map(|disk| disk.path.parent());
        std::iter::once(vm.folder.as_path()).chain(disks)
    }
}

impl TargetProvider for Here {
    fn prepare(&self, vm: &PlannedVm) -> Result<(), ProviderError> {
        // A rehearsal that was cut off with its guard may still hold the images.
        drover_qemu::forget_rehearsal(&VmFolder::new(&vm.folder)).map_err(qemu_error)?;
        // Before a folder is made: one that is refused leaves none.
        self.look_ahead(vm)?;
        let mut made = Vec::new();
        let done = Here::folders(vm).try_for_each(|folder| {
            make_folder(folder, &mut made)?;
            check_writable(folder)
        });
        if done.is_err() {
            // One in which somebody put something meanwhile stays.
            made.iter().rev().for_each(|folder| drop(std::fs::remove_dir(folder)));
        }
        done
    }

    fn places(&self, vm: &PlannedVm, is_left: bool) -> Result<Vec<TargetPlace>, ProviderError> {
        let mut places = BTreeMap::<u64, TargetPlace>::new();
        for (number, disk) in vm.disks.iter().enumerate() {
            let at = nearest_existing(&disk.base);
            let system = std::fs::metadata(&at).map_err(|error| io_error("looking at", &at, error))?.dev();
            let taken = match is_left {
                true => std::fs::metadata(&disk.path).map_or(0, |meta| meta.blocks() * 512),
                false => 0,
            };
            let place = places.entry(system).or_insert_with(|| TargetPlace {
                key: format!("fs-{system:x}"),
                label: disk.base.display().to_string(),
                at,
                needs: BTreeMap::new(),
                overcommits: true,
            });
            place.needs.insert(number, may_need(disk, taken, self.target.overcommit));
            place.overcommits &= may_be_little(disk, self.target.overcommit);
        }
        Ok(places.into_values().collect())
    }

    fn free_bytes(&self, _: &PlannedVm, place: &TargetPlace) -> Result<Option<u64>, ProviderError> {
        Ok(drover_disk::free_bytes(&place.at).ok())
    }

    fn open_disk(
        &self,
        disk: &PlannedDisk,
        vm: &PlannedVm,
        size: u64,
    ) -> Result<OpenedTarget, ProviderError> {
        let path = &disk.path;
        let options = images::planned(&self.target.qcow2);
        if vm.format == ImageFormat::Qcow2 && !path.exists() {
            return images::create(path, size, options).map(opened);
        }
        // Locked first, looked at then: whoever had it until now may have finished a copy.
        let file = match vm.format {
            ImageFormat::Raw => LockedFile::open_or_create(path),
            ImageFormat::Qcow2 => LockedFile::open(path),
        };
        let file = file.map_err(disk_error)?;
        let is_ours = match self.check_ours(disk, vm)? {
            Some(Image::Missing | Image::Blank) | None => false,
            Some(Image::Ours | Image::Unnamed | Image::Others(_) | Image::Plans(_)) => true,
        };
        let target = match vm.format {
            ImageFormat::Raw => {
                let opened = if is_ours { file.into_disk(size) } else { file.into_new_disk(size) };
                opened.map_err(disk_error).and_then(|disk| images::raw(path, disk))
            }
            ImageFormat::Qcow2 if is_ours || is_new_image(&file, size)? => {
                images::go_on(file, path, size, !is_ours, options)
            }
            ImageFormat::Qcow2 => {
                let what = format!("{} is there already", path.display());
                Err(ProviderError::new(Cause::Target, what).advise("remove it, or choose another name"))
            }
        };
        target.map(opened)
    }

    fn has_image(&self, disk: &PlannedDisk, vm: &PlannedVm) -> Result<bool, ProviderError> {
        // One that holds nothing of what the journal beside it tells is as good as none.
        let is_told = journal_path(&disk.path).exists();
        Ok(disk.path.exists() && !(is_told && self.image_of(disk, vm)? == Image::Blank))
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
        conversion::convert(
            &OnThisMachine { spec: &self.spec(vm)?, vm, stop: &self.stop, served: Vec::new() },
            vm,
        )
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

    fn start(&self, vm: &PlannedVm) -> Result<Started, ProviderError> {
        let running = drover_qemu::start(&self.spec(vm)?, &RunOptions::default()).map_err(qemu_error)?;
        let notes: String = running.notes.iter().map(|note| format!("; {note}")).collect();
        let line =
            format!("process {}, serial line in {}{notes}", running.pid, running.serial_log().display());
        Ok(Started { line, watched: running.watched })
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
        drover_qemu::forget_rehearsal(&VmFolder::new(&vm.folder)).map_err(qemu_error)?;
        drover_qemu::forget_conversion(&VmFolder::new(&vm.folder)).map_err(qemu_error)?;
        // Only what this plan made: an image without a journal is somebody else's, and another plan's has nothing to do with
        // this one. All are looked at before the first goes: where that fails, nothing is removed.
        let mut recorded = Vec::new();
        for disk in vm.disks.iter().filter(|disk| journal_path(&disk.path).exists()) {
            if matches!(self.image_of(disk, vm)?, Image::Plans(_)) {
                continue;
            }
            // Held from here on: nobody writes to what goes, and what was seen before says nothing of it.
            let held = lock_to_remove(&disk.path)?;
            if !matches!(self.image_of(disk, vm)?, Image::Plans(_)) {
                recorded.push((disk, self.why_it_stays(disk, vm)?, held));
            }
        }
        let mut left = Vec::new();
        for (disk, why, _held) in recorded {
            if let Some(why) = why {
                left.push(format!("{} stays, for it may be somebody else's: {why}", disk.path.display()));
                continue;
            }
            remove(&disk.path)?;
            remove(&journal_path(&disk.path))?;
            remove(&disk.vddk_log())?;
        }
        for folder in Here::folders(vm) {
            // Folders that hold something else stay.
            let _ = std::fs::remove_dir(folder);
        }
        all_removed(&left)
    }
}

/// Refuses a folder that cannot be had, or not be written. It may not be there yet.
fn check_folder(folder: &Path) -> Result<(), ProviderError> {
    for place in folder.ancestors() {
        // The folder of a relative path.
        let place = if place.as_os_str().is_empty() { Path::new(".") } else { place };
        match std::fs::metadata(place) {
            Ok(meta) if meta.is_dir() => return check_writable(place),
            Ok(_) => {
                let what = format!("{} is no folder", place.display());
                return Err(ProviderError::new(Cause::Target, what).advise(ANOTHER_PLACE));
            }
            // Below a file there is nothing, which is found next.
            Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {}
            Err(error) => return Err(io_error("looking at", place, error)),
        }
    }
    Ok(())
}

fn check_writable(folder: &Path) -> Result<(), ProviderError> {
    drover_disk::is_writable_dir(folder).map_err(|error| {
        ProviderError::new(Cause::Target, format!("folder {} cannot be written", folder.display()))
            .because(error)
            .advise("choose a folder that this user may write to")
    })
}

/// Makes a folder with all above it; adds those that it made.
fn make_folder(folder: &Path, made: &mut Vec<PathBuf>) -> Result<(), ProviderError> {
    match std::fs::create_dir(folder) {
        Ok(()) => made.push(folder.to_path_buf()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) if error.kind() == ErrorKind::NotFound => match folder.parent() {
            Some(above) if !above.as_os_str().is_empty() => {
                make_folder(above, made)?;
                return make_folder(folder, made);
            }
            _ => return Err(io_error("making", folder, error)),
        },
        Err(error) => return Err(io_error("making", folder, error)),
    }
    Ok(())
}

fn opened(image: OpenImage) -> OpenedTarget {
    let OpenImage { disk, tag, is_new, zeroed, .. } = image;
    OpenedTarget { disk, tag, is_new, zeroed, link: None }
}

/// Whether an earlier try made this image and did not write to it.
fn is_new_image(file: &LockedFile, size: u64) -> Result<bool, ProviderError> {
    let image = images::image_in(file)?;
    Ok(image.is_some_and(|image| image.was_empty() && images::fits(&image, size)))
}

const ANOTHER_PLACE: &str = "remove it if it may go, or choose another folder or target_name";

fn taken(path: &Path) -> ProviderError {
    let what = format!(
        "{} already holds something that drover did not write: no journal is beside it",
        path.display()
    );
    ProviderError::new(Cause::Target, what).advise(ANOTHER_PLACE)
}

/// The lock of an image that goes; nothing if there is no file.
fn lock_to_remove(path: &Path) -> Result<Option<LockedFile>, ProviderError> {
    // Only a file has a lock; something else is not this plan's, and told as that.
    if !std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_file()) {
        return Ok(None);
    }
    match LockedFile::open(path) {
        Ok(held) => Ok(Some(held)),
        Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(ProviderError::new(Cause::Target, format!("locking {} to remove it", path.display()))
                .because(error)
                .advise("see who uses it, then the same command again"))
        }
    }
}

/// Removes a file that is this plan's, as `is_ours` tells once its lock is held.
pub(super) fn remove_locked(
    path: &Path,
    is_ours: impl FnOnce() -> Result<bool, ProviderError>,
) -> Result<(), ProviderError> {
    match lock_to_remove(path)? {
        Some(_held) if is_ours()? => remove(path),
        _ => Ok(()),
    }
}

pub(super) fn remove(path: &Path) -> Result<(), ProviderError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error("removing", path, error)),
        _ => Ok(()),
    }
}
