use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FallocateFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use super::handle::Handle;
use super::writers::Writers;
use super::{Access, FileDisk, FileKind, check_kind, map, open_error, size_of};
use crate::patience::{lock_file, patiently};
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
        FileDisk::target(path.as_ref(), how, false)
    }

    /// As [`FileDisk::open_target`], but takes a regular file whatever it holds and whatever its size,
    /// and empties it once it is locked.
    ///
    /// # Errors
    /// As [`FileDisk::open_target`].
    pub fn open_target_emptied(path: impl AsRef<Path>, size: u64) -> Result<FileDisk, DiskError> {
        FileDisk::target(path.as_ref(), OpenTarget { size, create: true, resume: true }, true)
    }

    fn target(path: &Path, how: OpenTarget, emptied: bool) -> Result<FileDisk, DiskError> {
        let name = path.display().to_string();
        let target = open(path, how, emptied).map_err(|source| open_error(&name, source))?;
        let handle = Handle::for_target(name, target.file, target.kind, how.size, target.new_in);
        let features = Features {
            writable: true,
            fast_zero: punches(handle.file(), target.kind, how.size),
            extents: target.kind == FileKind::Regular && map::works(handle.file(), how.size),
            zeroed: target.zeroed,
        };
        let handle = Arc::new(handle);
        let writers = Some(Arc::new(Writers::new(handle.clone())));
        Ok(FileDisk { handle, kind: target.kind, access: Access::Target, features, writers })
    }
}

struct Target {
    file: File,
    kind: FileKind,
    zeroed: bool,
    /// The directory whose entry for the file is not durable yet.
    new_in: Option<PathBuf>,
}

fn open(path: &Path, how: OpenTarget, emptied: bool) -> io::Result<Target> {
    match check_kind(path) {
        Ok(FileKind::Block) => open_block(path, how),
        Ok(FileKind::Regular) if emptied => {
            let file = open_options().open(path)?;
            lock(&file)?;
            file.set_len(0)?;
            fill_locked(file, how, None)
        }
        Ok(FileKind::Regular) => fill(open_options().open(path)?, how, None),
        Err(error) if error.kind() == io::ErrorKind::NotFound && how.create => create(path, how),
        Err(error) => Err(error),
    }
}

pub(super) fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

fn open_block(path: &Path, how: OpenTarget) -> io::Result<Target> {
    // For a block device O_EXCL means: nobody else claims it, neither a mount nor RAID nor LVM.
    let claim = || open_options().custom_flags(OFlags::EXCL.bits() as i32).open(path);
    let file = patiently(claim, |error| error.kind() == io::ErrorKind::ResourceBusy).map_err(in_use)?;
    lock(&file)?;
    let size = size_of(&file, FileKind::Block)?;
    if size < how.size {
        return Err(refusal(format!("the device holds {size} bytes, {} are needed", how.size)));
    }
    Ok(Target { file, kind: FileKind::Block, zeroed: false, new_in: None })
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

fn create(path: &Path, how: OpenTarget) -> io::Result<Target> {
    let file = open_options().create_new(true).mode(0o600).open(path)?;
    let filled = fill(file, how, Some(parent_of(path).to_path_buf()));
    if filled.is_err() {
        // It was made a moment ago and nothing is in it. If it cannot be removed either, the
        // first error still says more.
        let _ = std::fs::remove_file(path);
    }
    filled
}

pub(super) fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Locks a regular file, then brings it to its size, then judges what it holds: in this order,
/// since only the lock keeps others from changing it.
fn fill(file: File, how: OpenTarget, new_in: Option<PathBuf>) -> io::Result<Target> {
    lock(&file)?;
    fill_locked(file, how, new_in)
}

fn fill_locked(file: File, how: OpenTarget, new_in: Option<PathBuf>) -> io::Result<Target> {
    let length = file.metadata()?.len();
    let zeroed = length == 0;
    if zeroed {
        file.set_len(how.size)?;
    } else if !how.resume {
        return Err(refusal(format!("it already holds {length} bytes; resume it, or remove it first")));
    } else if length != how.size {
        return Err(refusal(format!("it holds {length} bytes, but the disk to resume has {}", how.size)));
    }
    Ok(Target { file, kind: FileKind::Regular, zeroed, new_in })
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
