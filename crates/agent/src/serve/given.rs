//! Files that follow an order: they lie in a folder of their machine as long as it is carried out.

use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use drover_disk::DiskErrorKind;
use drover_link::Receiver;
use drover_types::file_name;

use super::machines::FirstBootFiles;
use super::refused;
use crate::error::Refusal;
use crate::machine::{FILES_BYTES_MAX, FILES_MAX, Guest, GuestFile};

/// The files of a guest.
pub(super) struct Given {
    folder: PathBuf,
    pub files: FirstBootFiles,
}

impl Given {
    /// Takes the files that an order to convert a guest tells of.
    pub(super) fn take(guest: &Guest, receiver: &Receiver, folder: PathBuf) -> Result<Given, Refusal> {
        remove(&folder)?;
        let mut given = Given { folder, files: FirstBootFiles::default() };
        if guest.scripts.is_empty() && guest.package.is_none() {
            return Ok(given);
        }
        check(guest)?;
        given.make(&given.folder)?;
        for script in &guest.scripts {
            let path = given.take_one(script, receiver)?;
            given.files.scripts.push(path);
        }
        given.files.package =
            guest.package.as_ref().map(|package| given.take_one(package, receiver)).transpose()?;
        Ok(given)
    }

    fn make(&self, folder: &Path) -> Result<(), Refusal> {
        DirBuilder::new().mode(0o700).create(folder).map_err(|error| failed("making", folder, &error))
    }

    /// In a folder of its own, since two may have the same name.
    fn take_one(&self, file: &GuestFile, receiver: &Receiver) -> Result<PathBuf, Refusal> {
        let folder = self.folder.join(self.files.scripts.len().to_string());
        self.make(&folder)?;
        let path = folder.join(file_name(&file.name));
        let write = |error: std::io::Error| failed("writing", &path, &error);
        let mut written = File::create_new(&path).map_err(write)?;
        let mut left = file.bytes;
        while left > 0 {
            let piece = receiver.receive()?.map(|message| message.body).unwrap_or_default();
            let wrong = || refused(DiskErrorKind::Corrupt, format!("{} is not as long as told", file.name));
            left = match piece.len() as u64 {
                0 => return Err(wrong()),
                bytes => left.checked_sub(bytes).ok_or_else(wrong)?,
            };
            written.write_all(&piece).map_err(write)?;
        }
        Ok(path)
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        // What stays is removed by the next order, or with the machine.
        let _ = remove(&self.folder);
    }
}

/// Removes what an agent left that was killed. Nothing to remove is fine.
pub(super) fn remove(folder: &Path) -> Result<(), Refusal> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(failed("removing", folder, &error)),
        _ => Ok(()),
    }
}

fn check(guest: &Guest) -> Result<(), Refusal> {
    let files = || guest.scripts.iter().chain(&guest.package);
    let bytes = files().try_fold(0u64, |sum, file| sum.checked_add(file.bytes));
    if files().count() > FILES_MAX || bytes.is_none_or(|bytes| bytes > FILES_BYTES_MAX) {
        let most = FILES_BYTES_MAX >> 20;
        let why = format!("an agent takes {FILES_MAX} files for the first boot, of {most} MiB in all");
        return Err(refused(DiskErrorKind::Misuse, why));
    }
    Ok(())
}

fn failed(doing: &str, path: &Path, error: &std::io::Error) -> Refusal {
    refused(DiskErrorKind::of(error), format!("{doing} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_have_their_limits() {
        let guest = |files: usize, bytes| {
            let file = GuestFile { name: "a".into(), bytes };
            Guest { scripts: vec![file; files], ..Guest::default() }
        };
        assert!(check(&guest(FILES_MAX, FILES_BYTES_MAX / FILES_MAX as u64)).is_ok());
        assert!(check(&guest(FILES_MAX + 1, 1)).is_err());
        assert!(check(&guest(2, FILES_BYTES_MAX)).is_err());
        assert!(check(&guest(2, u64::MAX)).is_err());
    }
}
