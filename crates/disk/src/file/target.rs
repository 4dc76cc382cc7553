use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation};
use rustix::io::Errno;

use super::handle::Handle;
use super::locked::LockedFile;
use super::writers::Writers;
use super::{Access, FileDisk, FileKind, Opened, map, open_error};
use crate::patience::lock_file;
use crate::{DiskError, Features};

/// How a target is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenTarget {
    /// Bytes the disk will have. A block device may be larger; the rest is left alone.
    pub size: u64,
    /// Makes the file if it is not there.
    pub create: bool,
    /// Takes a file that already holds something, of exactly this size, to go on with it.
    pub resume: bool,
}

impl FileDisk {
    /// Opens a raw file or block device to be overwritten, and locks it for as long as the disk lives.
    ///
    /// A file just made (or found empty) is known to be all zeros; anything else is not.
    ///
    /// # Errors
    /// When the file holds something and `resume` was not asked, or has another size; when the
    /// device is smaller than asked, mounted or otherwise in use; when another process holds the
    /// lock (a second drover, a running QEMU); when the path is neither file nor device.
    pub fn open_target(path: impl AsRef<Path>, how: OpenTarget) -> Result<FileDisk, DiskError> {
        let path = path.as_ref();
        let found = LockedFile::at(path, how.create);
        let found = found.map_err(|source| open_error(&path.display().to_string(), source))?;
        found.into_target(how.size, how.resume)
    }
}

/// A target of a file that is locked and has its size. `new_in` is the directory whose entry for it is not durable yet.
pub(super) fn finish(
    name: String,
    file: File,
    kind: FileKind,
    size: u64,
    zeroed: bool,
    new_in: Option<PathBuf>,
    opened: Opened,
) -> FileDisk {
    let handle = Handle::for_target(name, file, kind, size, new_in);
    let features = Features {
        writable: true,
        fast_zero: punches(handle.file(), kind, size),
        extents: kind == FileKind::Regular && map::works(handle.file(), size),
        zeroed,
    };
    let handle = Arc::new(handle);
    let writers = Some(Arc::new(Writers::new(handle.clone())));
    FileDisk { handle, kind, access: Access::Target, features, writers, opened }
}

pub(super) fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

pub(super) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn refusal(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Two locks, since neither is seen by everyone: `flock` keeps other drovers out, the record lock
/// meets those of QEMU (which locks single bytes of its images). The latter ends early if this
/// process opens and closes the file once more, so it is a fence, not the wall.
pub(super) fn lock(file: &File) -> io::Result<()> {
    let held = |errno| match errno {
        Errno::WOULDBLOCK | Errno::ACCESS => {
            refusal("another process holds a lock on it: a second drover, or a running guest".to_string())
        }
        errno => io::Error::from(errno),
    };
    lock_file(file).map_err(held)?;
    match rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive) {
        // Some network file systems have no record locks.
        Err(Errno::NOLCK | Errno::NOTSUP | Errno::NOSYS) => Ok(()),
        result => result.map_err(held),
    }
}

/// Whether zeroing costs less than writing zeros. For files tried right behind the end, where it changes
/// nothing (far behind it, ext4 takes no offset at all); a device says so in sysfs.
fn punches(file: &File, kind: FileKind, size: u64) -> bool {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match kind {
        FileKind::Regular => rustix::fs::fallocate(file, mode, size.next_multiple_of(4096), 4096).is_ok(),
        FileKind::Block => block_zeroes(file).unwrap_or(false),
    }
}

fn block_zeroes(file: &File) -> Option<bool> {
    let number = rustix::fs::fstat(file).ok()?.st_rdev;
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    // A partition has no queue of its own; its disk's is one level up.
    let queue = |up| format!("/sys/dev/block/{major}:{minor}{up}/queue/write_zeroes_max_bytes");
    let text = std::fs::read_to_string(queue("")).or_else(|_| std::fs::read_to_string(queue("/.."))).ok()?;
    Some(text.trim() != "0")
}
