use std::io;
use std::path::Path;

use rustix::fs::{Access, Mode, OFlags};
use rustix::io::Errno;

use super::open_error;
use crate::DiskError;

/// Bytes that a file below `path` may still take, for this user.
///
/// # Errors
/// When `path` is not there.
pub fn free_bytes(path: impl AsRef<Path>) -> Result<u64, DiskError> {
    let path = path.as_ref();
    let stat =
        rustix::fs::statvfs(path).map_err(|errno| open_error(&path.display().to_string(), errno.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Checks that files can be made in `path`.
///
/// # Errors
/// When it is not there, not a directory, not writable for this user, or read-only.
pub fn is_writable_dir(path: impl AsRef<Path>) -> Result<(), DiskError> {
    let path = path.as_ref();
    check_dir(path).map_err(|source| open_error(&path.display().to_string(), source))
}

/// Whether a file in `path` can be as large as `bytes`, as far as its file system tells without a trace.
///
/// # Errors
/// When no file can be made there.
pub fn can_hold_file(path: impl AsRef<Path>, bytes: u64) -> Result<bool, DiskError> {
    let path = path.as_ref();
    holds(path, bytes).map_err(|source| open_error(&path.display().to_string(), source))
}

fn holds(path: &Path, bytes: u64) -> io::Result<bool> {
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
        // Some file systems have no files without a name.
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOENT) => return Ok(true),
        opened => opened?,
    };
    match rustix::fs::ftruncate(&file, bytes) {
        Err(Errno::FBIG | Errno::INVAL) => Ok(false),
        resized => resized.map(|()| true).map_err(io::Error::from),
    }
}

fn check_dir(path: &Path) -> io::Result<()> {
    if !std::fs::metadata(path)?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a directory"));
    }
    Ok(rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK)?)
}
