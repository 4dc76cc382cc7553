use std::cell::Cell;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::handle::Handle;
use super::place::Place;
use super::target::{finish, lock, open_options, parent_of};
use super::{FileDisk, FileKind, HostFile, Opened, blank, check_kind, open_error, size_of};
use crate::DiskError;
use crate::patience::{open_locked, patiently};

/// How often a file is opened in whose place others put a new one.
const OPEN_ATTEMPTS_MAX: usize = 100;

/// What is at a target's place: open for writing, locked, and as it was found.
///
/// What was seen of a path before its lock was held says nothing: whoever held it may have finished a copy, started one
/// or taken the file away. So a target is opened, locked, then looked at, then taken, and stays locked throughout.
#[derive(Debug)]
pub struct LockedFile {
    /// Goes before the file, so that what is removed is still locked.
    made: Made,
    name: String,
    file: File,
    kind: FileKind,
    place: Place,
}

/// A file that this opening made goes with it, unless it is taken.
#[derive(Debug)]
struct Made(Option<PathBuf>);

impl Made {
    /// Of a file that is locked by now. One that this opening made, and another locked first and filled, is that one's.
    fn of(path: &Path, is_made: bool, file: &File) -> io::Result<Made> {
        let is_ours = is_made && file.metadata()?.len() == 0;
        Ok(Made(is_ours.then(|| path.to_path_buf())))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            // Nothing is in it. If it cannot be removed, the error that is on its way says more.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl LockedFile {
    /// Opens and locks the file or block device at `path`.
    ///
    /// # Errors
    /// When it is not there, neither file nor device, in use, or another process holds its lock.
    pub fn open(path: &Path) -> Result<LockedFile, DiskError> {
        LockedFile::at(path, false).map_err(|error| open_error(&path.display().to_string(), error))
    }

    /// As [`LockedFile::open`], and makes an empty file if nothing is there. It goes again if it is not taken.
    ///
    /// # Errors
    /// As [`LockedFile::open`], and when no file can be made.
    pub fn open_or_create(path: &Path) -> Result<LockedFile, DiskError> {
        LockedFile::at(path, true).map_err(|error| open_error(&path.display().to_string(), error))
    }

    pub(super) fn at(path: &Path, create: bool) -> io::Result<LockedFile> {
        let name = path.display().to_string();
        let kind = match check_kind(path) {
            Err(error) if create && error.kind() == io::ErrorKind::NotFound => FileKind::Regular,
            kind => kind?,
        };
        if kind == FileKind::Block {
            let file = open_block(path)?;
            let place = Place::of(path, &file)?;
            return Ok(LockedFile { made: Made(None), name, file, kind, place });
        }
        let is_made = Cell::new(false);
        let open = |path: &Path| {
            let (file, is_new) = open_or_make(path, create)?;
            is_made.set(is_new);
            Ok(file)
        };
        let file = open_locked(path, OPEN_ATTEMPTS_MAX, open, lock).map_err(|(_, error)| error)?;
        let made = Made::of(path, is_made.get(), &file)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, "another thing came to its place"));
        }
        let place = Place::of(path, &file)?;
        Ok(LockedFile { made, name, file, kind, place })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// What it is.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// What the file system says of it.
    ///
    /// # Errors
    /// When that fails.
    pub fn metadata(&self) -> Result<Metadata, DiskError> {
        self.file.metadata().map_err(|error| open_error(&self.name, error))
    }

    /// Device and inode: what tells the file from another that took its name.
    ///
    /// # Errors
    /// When the file system does not answer.
    pub fn tag(&self) -> Result<String, DiskError> {
        let meta = self.metadata()?;
        Ok(format!("file dev={} ino={}", meta.dev(), meta.ino()))
    }

    /// Whether it is a file that is known to hold nothing; see [`holds_nothing`].
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn holds_nothing(&self) -> Result<bool, DiskError> {
        blank::holds_nothing(&self.file).map_err(|error| open_error(&self.name, error))
    }

    /// The same file to be read, as it is now.
    ///
    /// # Errors
    /// When no more files can be opened.
    pub fn reader(&self) -> Result<FileDisk, DiskError> {
        let opened = self.file.try_clone().and_then(|file| Ok((size_of(&file, self.kind)?, file)));
        let (size, file) = opened.map_err(|error| open_error(&self.name, error))?;
        Ok(FileDisk::of_reader(Handle::for_verify(self.name.clone(), file, self.kind, size), self.kind))
    }

    /// The same file to be read as that of an image.
    ///
    /// # Errors
    /// As [`LockedFile::reader`].
    pub fn host_reader(&self) -> Result<HostFile, DiskError> {
        let opened = self.file.try_clone().and_then(|file| Ok((size_of(&file, self.kind)?, file)));
        let (size, file) = opened.map_err(|error| open_error(&self.name, error))?;
        let handle = Handle::for_verify(self.name.clone(), file, self.kind, size);
        Ok(HostFile::of_reader(handle, self.place.clone()))
    }

    /// Takes it as a target of `size` bytes with what it holds; a device may be larger.
    ///
    /// # Errors
    /// When it has another size, or somebody took its lock from this process.
    pub fn into_disk(self, size: u64) -> Result<FileDisk, DiskError> {
        self.into_target(size, true)
    }

    /// Takes it as a target of `size` bytes and empties it, if it is a file.
    ///
    /// # Errors
    /// As [`LockedFile::into_disk`].
    pub fn into_empty_disk(self, size: u64) -> Result<FileDisk, DiskError> {
        let emptied = match self.kind {
            FileKind::Regular => self.file.set_len(0),
            FileKind::Block => Ok(()),
        };
        emptied.map_err(|error| open_error(&self.name, error))?;
        self.into_target(size, true)
    }

    /// As [`LockedFile::into_empty_disk`], of what holds nothing.
    ///
    /// # Errors
    /// As [`LockedFile::into_disk`], and when it is a file that holds something.
    pub fn into_new_disk(self, size: u64) -> Result<FileDisk, DiskError> {
        if self.kind == FileKind::Regular && !self.holds_nothing()? {
            let length = self.metadata()?.len();
            return Err(open_error(&self.name, refusal(already_holds(length))));
        }
        self.into_empty_disk(size)
    }

    /// Takes it as the file of an image, with what it holds.
    ///
    /// # Errors
    /// When somebody took its lock from this process.
    pub fn into_host_file(mut self) -> Result<HostFile, DiskError> {
        let ready = lock(&self.file).and_then(|()| self.file.metadata());
        let length = ready.map_err(|error| open_error(&self.name, error))?.len();
        self.made.0 = None;
        let handle = Handle::for_target(self.name, self.file, FileKind::Regular, length, None);
        Ok(HostFile::of_writer(handle, self.place))
    }

    pub(super) fn into_target(mut self, size: u64, resume: bool) -> Result<FileDisk, DiskError> {
        // Whoever looked at the file through another descriptor let go of the record lock, which belongs to the process.
        let ready = lock(&self.file).and_then(|()| match self.kind {
            FileKind::Regular => fill(&self.file, size, resume),
            FileKind::Block => check_room(&self.file, size).map(|()| false),
        });
        let zeroed = ready.map_err(|error| open_error(&self.name, error))?;
        let new_in = self.made.0.take().map(|path| parent_of(&path).to_path_buf());
        Ok(finish(self.name, self.file, self.kind, size, zeroed, new_in, Opened::At(self.place)))
    }
}

/// Opens a file, or makes it; and whether it was made.
fn open_or_make(path: &Path, create: bool) -> io::Result<(File, bool)> {
    match open_options().open(path) {
        Err(error) if create && error.kind() == io::ErrorKind::NotFound => {
            match open_options().create_new(true).mode(0o600).open(path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    Ok((open_options().open(path)?, false))
                }
                made => Ok((made?, true)),
            }
        }
        there => Ok((there?, false)),
    }
}

fn open_block(path: &Path) -> io::Result<File> {
    // For a block device O_EXCL means: nobody else claims it, neither a mount nor RAID nor LVM.
    let claim = || open_options().custom_flags(OFlags::EXCL.bits() as i32).open(path);
    let file = patiently(claim, |error| error.kind() == io::ErrorKind::ResourceBusy).map_err(in_use)?;
    lock(&file)?;
    Ok(file)
}

fn in_use(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::ResourceBusy => {
            let text = "the device is in use: mounted, or part of a volume or array";
            io::Error::new(io::ErrorKind::ResourceBusy, text)
        }
        _ => error,
    }
}

fn check_room(file: &File, size: u64) -> io::Result<()> {
    match size_of(file, FileKind::Block)? {
        there if there < size => Err(refusal(format!("the device holds {there} bytes, {size} are needed"))),
        _ => Ok(()),
    }
}

/// Brings a locked file to its size; whether it was empty, and so reads as zeros.
fn fill(file: &File, size: u64, resume: bool) -> io::Result<bool> {
    let length = file.metadata()?.len();
    match length {
        0 => file.set_len(size).map(|()| true),
        _ if !resume => Err(refusal(already_holds(length))),
        _ if length != size => {
            Err(refusal(format!("it holds {length} bytes, but the disk to resume has {size}")))
        }
        _ => Ok(false),
    }
}

fn already_holds(length: u64) -> String {
    format!("it already holds {length} bytes; resume it, or remove it first")
}

fn refusal(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_another_filled_before_its_maker_had_the_lock_stays() {
        let folder = tempfile::tempdir().unwrap();
        for (content, stays) in [(&b"a whole copy"[..], true), (b"", false)] {
            let path = folder.path().join(format!("target{stays}"));
            let (file, is_made) = open_or_make(&path, true).unwrap();
            assert!(is_made);
            std::fs::write(&path, content).unwrap();
            drop(Made::of(&path, is_made, &file).unwrap());
            assert_eq!(path.exists(), stays, "{content:?}");
        }
    }
}
