//! Which volumes of pools drover made: drover's own record, in the VM's folder among its state. A pool is a place of others, too: a
//! volume that neither a journal nor this record names is somebody else's, also if it holds nothing.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use drover_engine::ProviderError;
use drover_plan::{PlannedDisk, PlannedVm};

use crate::here;
use crate::setting::io_error;

/// Where what was recorded of a disk lies.
pub fn record_of(vm: &PlannedVm, disk: &PlannedDisk) -> PathBuf {
    vm.folder.join(format!("volume-{}", disk.index))
}

/// Tells a file from another that came to its place, also if it got its number.
fn name_of(meta: &Metadata) -> String {
    let born = meta.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
    let born = born.map_or("not told".to_string(), |born| born.as_nanos().to_string());
    format!("file dev={} ino={} born={born}\n", meta.dev(), meta.ino())
}

fn name_at(path: &Path) -> io::Result<Option<String>> {
    match std::fs::metadata(path) {
        Ok(meta) => Ok(Some(name_of(&meta))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Records that the volume of a disk, on this host, was made just now.
pub fn remember(vm: &PlannedVm, disk: &PlannedDisk) -> Result<(), ProviderError> {
    let name = name_at(&disk.path).map_err(|error| io_error("looking at", &disk.path, error))?;
    write(vm, disk, &name.unwrap_or_default())
}

/// Whether what is at a disk's place, on this host, is the volume that was recorded.
pub fn is_ours(vm: &PlannedVm, disk: &PlannedDisk) -> Result<bool, ProviderError> {
    let Some(recorded) = read(vm, disk)? else { return Ok(false) };
    let name = name_at(&disk.path).map_err(|error| io_error("looking at", &disk.path, error))?;
    Ok(name == Some(recorded))
}

/// The same of a volume on another host, whose agent tells files apart by tags.
pub fn remember_tag(vm: &PlannedVm, disk: &PlannedDisk, tag: &str) -> Result<(), ProviderError> {
    write(vm, disk, &name_by_tag(vm, tag))
}

fn name_by_tag(vm: &PlannedVm, tag: &str) -> String {
    format!("at {} {tag}\n", vm.site.as_deref().unwrap_or_default())
}

/// The same of a LUN of this host, with what people know it by.
pub fn remember_lun(vm: &PlannedVm, disk: &PlannedDisk, tag: &str, name: &str) -> Result<(), ProviderError> {
    let pool = disk.pool.as_deref().unwrap_or_default();
    write(vm, disk, &format!("{}pool {pool}\nvolume {name}\n", name_by_tag(vm, tag)))
}

/// The record of another disk than this one, of any plan of this state, that has this tag.
pub fn recorded_elsewhere(vm: &PlannedVm, disk: &PlannedDisk, tag: &str) -> io::Result<Option<PathBuf>> {
    // Each plan has a folder there, and each VM one in that.
    let Some(state) = vm.folder.parent().and_then(Path::parent) else { return Ok(None) };
    another_in(state, &record_of(vm, disk), name_by_tag(vm, tag).trim_end_matches('\n'))
}

fn another_in(state: &Path, own: &Path, name: &str) -> io::Result<Option<PathBuf>> {
    for plan in entries(state)? {
        for vm in entries(&plan)? {
            for file in entries(&vm)?.into_iter().filter(|file| file != own) {
                if text_of(&file)?.is_some_and(|text| text.lines().next() == Some(name)) {
                    return Ok(Some(file));
                }
            }
        }
    }
    Ok(None)
}

/// What is in a folder; nothing if it is none.
fn entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    match std::fs::read_dir(folder) {
        Ok(found) => found.map(|entry| entry.map(|entry| entry.path())).collect(),
        Err(error) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
            Ok(Vec::new())
        }
        Err(error) => Err(error),
    }
}

/// The text of a record; nothing if the file is none.
fn text_of(file: &Path) -> io::Result<Option<String>> {
    let is_named = file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("volume-"));
    // Journals and locks have one.
    let is_record = is_named && file.extension().is_none();
    if !is_record {
        return Ok(None);
    }
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        // It went away in between.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Before the monitors of a cluster in a record.
const MONITORS: &str = "monitors ";

/// The same of a volume in the cluster that has these monitors.
pub fn remember_in_cluster(
    vm: &PlannedVm,
    disk: &PlannedDisk,
    tag: &str,
    monitors: &[String],
) -> Result<(), ProviderError> {
    write(vm, disk, &format!("{}{MONITORS}{}\n", name_by_tag(vm, tag), monitors.join(" ")))
}

/// The monitors of the cluster that has the volume of a disk, if that was recorded.
pub fn monitors_of(vm: &PlannedVm, disk: &PlannedDisk) -> Result<Option<Vec<String>>, ProviderError> {
    Ok(read(vm, disk)?.as_deref().and_then(monitors_in))
}

fn monitors_in(record: &str) -> Option<Vec<String>> {
    let monitors = record.lines().find_map(|line| line.strip_prefix(MONITORS))?;
    Some(monitors.split_whitespace().map(str::to_string).collect())
}

/// Records that the volume of a disk is about to be made: one that is found there later may be it.
pub fn intend(vm: &PlannedVm, disk: &PlannedDisk) -> Result<(), ProviderError> {
    write(vm, disk, "to be made\n")
}

/// Whether the volume with this tag, on the VM's site, is the one that was recorded.
pub fn is_tag(vm: &PlannedVm, disk: &PlannedDisk, tag: &str) -> Result<bool, ProviderError> {
    let name = name_by_tag(vm, tag);
    Ok(read(vm, disk)?.is_some_and(|recorded| recorded.lines().next() == Some(name.trim_end_matches('\n'))))
}

/// Whether a volume of a disk was recorded at all.
pub fn is_recorded(vm: &PlannedVm, disk: &PlannedDisk) -> Result<bool, ProviderError> {
    Ok(read(vm, disk)?.is_some())
}

fn read(vm: &PlannedVm, disk: &PlannedDisk) -> Result<Option<String>, ProviderError> {
    let record = record_of(vm, disk);
    match std::fs::read_to_string(&record) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        recorded => recorded.map(Some).map_err(|error| io_error("reading", &record, error)),
    }
}

fn write(vm: &PlannedVm, disk: &PlannedDisk, name: &str) -> Result<(), ProviderError> {
    let record = record_of(vm, disk);
    let write = || {
        let mut file = File::create(&record)?;
        file.write_all(name.as_bytes())?;
        file.sync_all()?;
        // Its name outlives a power cut, too: what is written to a volume after that is known as drover's.
        record.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    };
    write().map_err(|error| io_error("writing", &record, error))
}

/// Forgets what was recorded of a disk.
pub fn forget_disk(vm: &PlannedVm, disk: &PlannedDisk) -> Result<(), ProviderError> {
    here::remove(&record_of(vm, disk))
}

/// Forgets what was recorded of a VM.
pub fn forget(vm: &PlannedVm) -> Result<(), ProviderError> {
    vm.disks.iter().try_for_each(|disk| forget_disk(vm, disk))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_record_of_another_disk_is_found_in_all_plans_and_nothing_else_is_taken_for_one() {
        let state = tempfile::tempdir().unwrap();
        let vm = state.path().join("p/one");
        std::fs::create_dir_all(&vm).unwrap();
        std::fs::create_dir_all(state.path().join("q/two")).unwrap();
        let name = "at  volume 36001";
        let found = || another_in(state.path(), &vm.join("volume-0"), name).unwrap();
        let put = |path: &str, text: &str| std::fs::write(state.path().join(path), text).unwrap();
        put("p/one/volume-0", "at  volume 36001\npool san\n");
        put("p/one/volume-1", "at  volume 360012\npool san\n");
        put("q/two/volume-0.drover-journal", name);
        put("q/two/start.lock", name);
        put("q/stray", name);
        assert_eq!(found(), None);
        put("q/two/volume-0", "at  volume 36001\n");
        assert_eq!(found(), Some(state.path().join("q/two/volume-0")));
        put("q/two/volume-0", "to be made\n");
        put("p/one/volume-1", "at  volume 36001\n");
        assert_eq!(found(), Some(vm.join("volume-1")), "of the same VM");
    }

    #[test]
    fn a_record_tells_the_monitors_of_a_cluster_if_it_has_any() {
        assert_eq!(monitors_in("to be made\n"), None);
        assert_eq!(monitors_in("at  volume vms/a\n"), None);
        let named = |words: &[&str]| Some(words.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(monitors_in("at  volume vms/a\nmonitors a:6789 b\n"), named(&["a:6789", "b"]));
        assert_eq!(monitors_in("at  volume vms/a\nmonitors \n"), named(&[]));
    }
}
