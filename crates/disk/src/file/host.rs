use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{CWD, FallocateFlags, RenameFlags};
use rustix::io::Errno;

use drover_types::ByteSpan;

use super::handle::{Handle, retry};
use super::locked::LockedFile;
use super::place::Place;
use super::target::{lock, open_options, parent_of};
use super::{FileKind, check_kind, open_error};
use crate::{DiskError, DiskErrorKind, DiskOp};

/// A regular file that an image format keeps its bytes in: of any length, and growing.
///
/// It is read and written as a raw target is, past the page cache where that works.
pub struct HostFile {
    handle: Handle,
    /// The name it gets once it is whole.
    unpublished: Mutex<Option<(PathBuf, PathBuf)>>,
    place: Place,
    /// When it was last written, of one that is only read.
    read_as_of: Option<String>,
}

impl HostFile {
    /// Makes an empty, locked file that appears at `path` only when it is published; until then it
    /// lies beside it under a hidden name and goes with this value.
    ///
    /// # Errors
    /// When something is at `path` already, or no file can be made there.
    pub fn create(path: &Path) -> Result<HostFile, DiskError> {
        let name = path.display().to_string();
        let hidden = path.file_name().map(|file| {
            path.with_file_name(format!(".{}.new-{}", file.to_string_lossy(), std::process::id()))
        });
        let made = hidden.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput)).and_then(|hidden| {
            if path.symlink_metadata().is_ok() {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is such a file already"));
            }
            // Left by a process of the same number that was killed.
            let _ = std::fs::remove_file(&hidden);
            let file = open_options().create_new(true).mode(0o600).open(&hidden)?;
            lock(&file)?;
            let place = Place::of(path, &file)?;
            Ok((file, place, hidden))
        });
        let (file, place, hidden) = made.map_err(|error| open_error(&name, error))?;
        let handle = Handle::for_target(name, file, FileKind::Regular, 0, None);
        let unpublished = Mutex::new(Some((hidden, path.to_path_buf())));
        Ok(HostFile { handle, unpublished, place, read_as_of: None })
    }

    /// Opens a file to go on writing it, and locks it for as long as it is open.
    ///
    /// # Errors
    /// When it is not there or no regular file, or another process holds it.
    pub fn open(path: &Path) -> Result<HostFile, DiskError> {
        let name = path.display().to_string();
        regular(path).map_err(|error| open_error(&name, error))?;
        LockedFile::open(path)?.into_host_file()
    }

    pub(super) fn of_writer(handle: Handle, place: Place) -> HostFile {
        HostFile { handle, unpublished: Mutex::new(None), place, read_as_of: None }
    }

    pub(super) fn of_reader(handle: Handle, place: Place) -> HostFile {
        let mut host = HostFile::of_writer(handle, place);
        host.read_as_of = Some(host.modified());
        host
    }

    /// Opens a file to read it back, past the page cache where that works.
    ///
    /// # Errors
    /// When it is not there, not readable or no regular file.
    pub fn open_for_verify(path: &Path) -> Result<HostFile, DiskError> {
        let name = path.display().to_string();
        let opened = regular(path).and_then(|()| {
            let file = File::open(path)?;
            let (length, place) = (file.metadata()?.len(), Place::of(path, &file)?);
            Ok((file, length, place))
        });
        let (file, length, place) = opened.map_err(|error| open_error(&name, error))?;
        Ok(HostFile::of_reader(Handle::for_verify(name, file, FileKind::Regular, length), place))
    }

    /// Makes what was written durable and gives the file its name, durably and without replacing another.
    ///
    /// # Errors
    /// When a file of that name came up meanwhile, or the folder cannot be written.
    pub fn publish(&self) -> Result<(), DiskError> {
        self.handle.flush()?;
        let mut unpublished = self.unpublished.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((hidden, path)) = &*unpublished else { return Ok(()) };
        rename(hidden, path).map_err(|error| open_error(self.handle.name(), error))?;
        *unpublished = None;
        Ok(())
    }

    /// The path, as it was given.
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Device and inode: what tells the file from another of its name.
    pub fn tag(&self) -> String {
        match rustix::fs::fstat(self.handle.file()) {
            Ok(stat) => format!("{:x}:{}", stat.st_dev, stat.st_ino),
            Err(_) => "gone".into(),
        }
    }

    /// When it was last written and changed, for telling a source that changed.
    pub fn modified(&self) -> String {
        match rustix::fs::fstat(self.handle.file()) {
            Ok(stat) => {
                let modified = format!("{}.{:09}", stat.st_mtime, stat.st_mtime_nsec);
                format!("{modified} ctime={}.{:09}", stat.st_ctime, stat.st_ctime_nsec)
            }
            Err(_) => "gone".into(),
        }
    }

    /// Its length in bytes.
    ///
    /// # Errors
    /// When the file system does not answer.
    pub fn length(&self) -> Result<u64, DiskError> {
        let length = self.handle.file().metadata().map(|meta| meta.len());
        length.map_err(|error| self.error(DiskOp::Extents, error))
    }

    /// Cuts it, or makes it longer by a hole.
    ///
    /// # Errors
    /// When the file system or a limit refuses that length.
    pub fn set_length(&self, length: u64) -> Result<(), DiskError> {
        retry(|| rustix::fs::ftruncate(self.handle.file(), length))
            .map_err(|errno| self.error(DiskOp::Write, errno.into()))
    }

    /// Sets room aside for `span`, which keeps its content. False where the file system cannot.
    ///
    /// # Errors
    /// When there is no such room.
    pub fn allocate(&self, span: ByteSpan) -> Result<bool, DiskError> {
        let mode = FallocateFlags::empty();
        match retry(|| rustix::fs::fallocate(self.handle.file(), mode, span.offset, span.length)) {
            Ok(()) => Ok(true),
            Err(Errno::NOTSUP | Errno::NOSYS) => Ok(false),
            Err(errno) => Err(self.error(DiskOp::Write, errno.into())),
        }
    }

    /// Sets room aside for a span that will be written soon, where that makes writing faster.
    ///
    /// # Errors
    /// When there is no room, or the file system cannot do it.
    pub fn reserve(&self, span: ByteSpan) -> Result<(), DiskError> {
        // Buffered writes are allocated late and together anyway.
        if self.handle.is_direct() { self.handle.reserve(&[span]) } else { Ok(()) }
    }

    /// Fills `bytes` from `offset` on; all of them must lie in the file.
    ///
    /// # Errors
    /// When reading fails.
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        self.handle.read(ByteSpan::new(offset, bytes.len() as u64), bytes)
    }

    /// Writes `bytes` from `offset` on. Aligned memory (see [`crate::Buffer`]) goes past the page cache.
    ///
    /// # Errors
    /// When writing fails, or a flush failed before.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.handle.write(ByteSpan::new(offset, bytes.len() as u64), bytes)
    }

    /// Makes `span` read as zeros, and gives back its room where the file system can.
    ///
    /// # Errors
    /// When that fails, or a flush failed before.
    pub fn zero(&self, span: ByteSpan) -> Result<(), DiskError> {
        self.handle.zero(span)
    }

    /// Makes what was written durable. After a failure no later flush succeeds.
    ///
    /// # Errors
    /// When that cannot be promised; also when the file does not lie any more where it lay.
    pub fn flush(&self) -> Result<(), DiskError> {
        self.handle.flush()?;
        self.check_same()
    }

    /// Looks whether the file still lies where it was opened or published; of one that is only read, whether
    /// somebody wrote to it since.
    ///
    /// # Errors
    /// When it is not so.
    pub fn check_same(&self) -> Result<(), DiskError> {
        if self.unpublished.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(());
        }
        let failed = |op, why| {
            DiskError::with_kind(DiskErrorKind::Gone, op, ByteSpan::new(0, 0), self.handle.name(), why)
        };
        match &self.read_as_of {
            Some(then) if *then != self.modified() => {
                Err(failed(DiskOp::Read, io::Error::other("it was changed while it was read")))
            }
            Some(_) => Ok(()),
            None => self.place.check().map_err(|why| failed(DiskOp::Write, why)),
        }
    }

    fn error(&self, op: DiskOp, source: io::Error) -> DiskError {
        let kind = match DiskErrorKind::of(&source) {
            DiskErrorKind::Misuse | DiskErrorKind::Transient => DiskErrorKind::Failed,
            kind => kind,
        };
        DiskError::with_kind(kind, op, ByteSpan::new(0, 0), self.handle.name(), source)
    }
}

impl Drop for HostFile {
    fn drop(&mut self) {
        let unpublished = self.unpublished.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some((hidden, _)) = unpublished {
            // Nobody knows of it yet.
            let _ = std::fs::remove_file(hidden);
        }
    }
}

fn regular(path: &Path) -> io::Result<()> {
    match check_kind(path)? {
        FileKind::Regular => Ok(()),
        FileKind::Block => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a block device; an image is a file"))
        }
    }
}

fn rename(hidden: &Path, path: &Path) -> io::Result<()> {
    match rustix::fs::renameat_with(CWD, hidden, CWD, path, RenameFlags::NOREPLACE) {
        // Some network file systems cannot refuse; linking does the same there.
        Err(Errno::INVAL | Errno::NOSYS) => {
            std::fs::hard_link(hidden, path)?;
            std::fs::remove_file(hidden)?;
        }
        renamed => renamed?,
    }
    File::open(parent_of(path))?.sync_all()
}
