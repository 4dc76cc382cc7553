//! What lies in a machine's folder about its conversion: how far it came, and of which images.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::error::QemuError;
use crate::folder::VmFolder;

/// Whether a conversion of a machine's images was begun and cannot be taken back: they may hold the converted guest. Those of
/// another host are told by what identifies them.
pub fn is_converted(folder: &VmFolder, identities: &[String]) -> bool {
    match read_state(&folder_of(folder)) {
        Ok(text) => text.is_some_and(|text| {
            let images = text.split_once('\n').map_or("", |(_, images)| images);
            match identities {
                [] => images.lines().all(is_still_there),
                told => images.lines().eq(told.iter().map(|it| remote_line(it)).collect::<Vec<_>>()),
            }
        }),
        // A state that cannot be read is told by the conversion itself.
        Err(_) => true,
    }
}

/// Whether a conversion that was begun and cannot be taken back names this image of another host, or device.
pub fn has_converted(folder: &VmFolder, identity: &str) -> bool {
    match read_state(&folder_of(folder)) {
        Ok(text) => text.is_some_and(|text| text.lines().any(|line| line == remote_line(identity))),
        Err(_) => true,
    }
}

/// Whether the file of a line about an image is the one that it was written about.
fn is_still_there(line: &str) -> bool {
    let path = line.splitn(4, ' ').nth(3).unwrap_or_default();
    line_of(Path::new(path)).is_ok_and(|now| now.trim_end() == line)
}

pub(super) fn read_state(folder: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(folder.join("state")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        text => text.map(Some),
    }
}

pub(super) fn remote_line(identity: &str) -> String {
    format!("nbd {identity}")
}

/// A line that tells an image from a later one of its name. Inodes are used again, hence the time of birth, where the file
/// system has it.
pub(super) fn line_of(path: &Path) -> io::Result<String> {
    let metadata = fs::metadata(path)?;
    let birth = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let nanoseconds = birth.unwrap_or_default().as_nanos();
    Ok(format!("{} {} {nanoseconds} {}\n", metadata.dev(), metadata.ino(), path.display()))
}

/// Removes what a conversion left in a machine's folder: overlays, state and log. For when the images go too, as
/// the state says whether they hold the converted guest. What is gone already is fine.
///
/// # Errors
/// If a file cannot be removed.
pub fn forget_conversion(folder: &VmFolder) -> Result<(), QemuError> {
    let convert = folder_of(folder);
    match fs::remove_dir_all(&convert) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(QemuError::io(format!("removal of {}", convert.display()), error))
        }
        _ => Ok(()),
    }
}

pub(super) fn folder_of(folder: &VmFolder) -> PathBuf {
    folder.path().join("convert")
}

/// How far a conversion has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The images are as they were copied; overlays that may lie about are worth nothing.
    Untouched,
    /// The overlays are complete; images may be merged in part.
    Converted,
    /// The images hold the converted guest.
    Committed,
}
