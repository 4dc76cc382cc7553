//! Paths of targets, and what all that are changed in place have to be.

use std::io;
use std::path::{Path, PathBuf};

use drover_engine::Cause;

use crate::errors::{EndError, failed, unusable, usage};

/// The file behind a name: symbolic links are followed, so that a target has one journal.
pub(crate) fn real_path(path: &Path) -> Result<PathBuf, EndError> {
    match std::fs::canonicalize(path) {
        Ok(real) => return Ok(real),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(path, &error)),
        Err(_) => {}
    }
    if std::fs::symlink_metadata(path).is_ok() {
        let text = format!("{} is a symbolic link to something that is not there", path.display());
        return Err(failed(Cause::Target, text).advise("name the file itself"));
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(usage(format!("'{}' is no name of a file", path.display())));
    };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let folder = std::fs::canonicalize(folder).map_err(|error| unusable(folder, &error))?;
    Ok(folder.join(name))
}

pub(crate) fn remove_if_there(path: &Path) -> Result<(), EndError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unusable(path, &error)),
        _ => Ok(()),
    }
}

pub(crate) fn not_there(name: &str) -> EndError {
    let text = format!("{name} is not there, and a bitmap marks a part of the disk only");
    failed(Cause::Target, text).advise("copy all of it once, without --bitmap")
}

pub(crate) fn check_size(name: &str, there: u64, size: u64) -> Result<(), EndError> {
    if there == size {
        return Ok(());
    }
    let text = format!("{name} holds {there} bytes and the source {size}, so it is no earlier state of it");
    Err(failed(Cause::Target, text).advise("copy all of it, without --bitmap"))
}
