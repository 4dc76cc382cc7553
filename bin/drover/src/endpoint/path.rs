//! Paths and journals of targets, and the refusals that all ends share.

use std::io;
use std::path::{Path, PathBuf};

use drover_engine::chain;

use crate::exit::{Exit, Failure, disk_exit};
use crate::state::state_folder;

/// The journal of a disk that has none beside it, in the state folder that a command was given.
pub fn journal_in_state(state: Option<&Path>, tag: &str) -> PathBuf {
    drover_mover::journal_in(&state_folder(state), tag)
}

/// The file behind a name: symbolic links are followed, so that a target has one journal.
pub fn real_path(path: &Path) -> Result<PathBuf, Failure> {
    match std::fs::canonicalize(path) {
        Ok(real) => return Ok(real),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(path, &error)),
        Err(_) => {}
    }
    if std::fs::symlink_metadata(path).is_ok() {
        let text = format!("{} is a symbolic link to something that is not there", path.display());
        return Err(Failure::new(Exit::Target, text).advise("name the file itself"));
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Failure::new(Exit::Usage, format!("'{}' is no name of a file", path.display())));
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let folder = std::fs::canonicalize(folder).map_err(|error| unusable(folder, &error))?;
    Ok(folder.join(name))
}

pub fn remove_if_there(path: &Path) -> Result<(), Failure> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unusable(path, &error)),
        _ => Ok(()),
    }
}

pub fn unusable(path: &Path, error: &io::Error) -> Failure {
    Failure::new(Exit::Target, format!("{}: {error}", path.display()))
}

pub fn target_failure(error: drover_disk::DiskError) -> Failure {
    let name = error.disk.clone();
    Failure::new(disk_exit(&error, &name), chain(&error))
}

pub(super) fn not_there(name: &str) -> Failure {
    let text = format!("{name} is not there, and a bitmap marks a part of the disk only");
    Failure::new(Exit::Target, text).advise("copy all of it once, without --bitmap")
}

pub(super) fn check_size(name: &str, there: u64, size: u64) -> Result<(), Failure> {
    if there == size {
        return Ok(());
    }
    let text = format!("{name} holds {there} bytes and the source {size}, so it is no earlier state of it");
    Err(Failure::new(Exit::Target, text).advise("copy all of it, without --bitmap"))
}

/// The refusal to write a format.
pub fn only_read() -> Failure {
    Failure::new(Exit::Usage, "only raw disks and qcow2 images are written")
        .advise("choose --format raw or qcow2")
}
