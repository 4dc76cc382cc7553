//! Locks of files, taken in spite of children that hold copies for an instant.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Together 500 ms, far longer than an exec takes on a busy machine, and no burden on a refusal.
const ATTEMPTS_MAX: usize = 50;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(10);
/// How often a file is opened that others removed.
const CLAIM_ATTEMPTS_MAX: usize = 8;

/// Takes the exclusive `flock` of a file; held as long as the file, or a copy of it, is open.
///
/// # Errors
/// `WOULDBLOCK` when another holds it for longer than a child needs that was just started.
pub fn lock_file(file: &File) -> rustix::io::Result<()> {
    let lock = || flock(file, FlockOperation::NonBlockingLockExclusive);
    patiently(lock, |errno| *errno == Errno::WOULDBLOCK)
}

/// Opens a file and locks it, in so many tries. Who had it before may have removed it, or put another in its place: then it is not
/// the one that others find once the lock is held.
///
/// # Errors
/// What failed, and why.
pub fn open_locked(
    path: &Path,
    tries: usize,
    open: impl Fn(&Path) -> io::Result<File>,
    lock: impl Fn(&File) -> io::Result<()>,
) -> Result<File, (&'static str, io::Error)> {
    for _ in 0..tries {
        let file = open(path).map_err(|error| ("opening", error))?;
        lock(&file).map_err(|error| ("locking", error))?;
        let is_same = |there: Metadata| {
            file.metadata().is_ok_and(|held| (held.dev(), held.ino()) == (there.dev(), there.ino()))
        };
        if std::fs::metadata(path).is_ok_and(is_same) {
            return Ok(file);
        }
    }
    let text = "others put new files in its place all the time";
    Err(("opening", io::Error::new(io::ErrorKind::ResourceBusy, text)))
}

/// Opens a file by which processes keep apart, or makes it, and takes its lock if nobody holds it.
///
/// # Errors
/// What failed, and why: `WouldBlock` where another holds it.
pub fn claim_file(path: &Path) -> Result<File, (&'static str, io::Error)> {
    let open =
        |path: &Path| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    open_locked(path, CLAIM_ATTEMPTS_MAX, open, |file| Ok(file.try_lock()?))
}

/// Tries again for a moment. A program that drover starts holds copies of drover's files between
/// its fork and its exec, and so for an instant claims what was just closed.
pub(crate) fn patiently<T, E>(
    mut attempt: impl FnMut() -> Result<T, E>,
    is_held: impl Fn(&E) -> bool,
) -> Result<T, E> {
    for _ in 0..ATTEMPTS_MAX {
        match attempt() {
            Err(error) if is_held(&error) => std::thread::sleep(ATTEMPT_PAUSE),
            result => return result,
        }
    }
    attempt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_held_for_an_instant_is_waited_for_and_one_that_stays_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let open = || File::create(folder.path().join("lock")).unwrap();
        let (first, second) = (open(), open());
        lock_file(&first).unwrap();
        assert_eq!(lock_file(&second), Err(Errno::WOULDBLOCK));
        // Let go of while somebody waits.
        let (mut first, mut attempts) = (Some(first), 0);
        let attempt = || {
            attempts += 1;
            first = first.take().filter(|_| attempts < 3);
            flock(&second, FlockOperation::NonBlockingLockExclusive)
        };
        patiently(attempt, |errno| *errno == Errno::WOULDBLOCK).unwrap();
        assert_eq!(attempts, 3);
    }

    #[test]
    fn a_file_that_another_took_away_while_it_was_waited_for_is_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fence");
        let opened = std::cell::Cell::new(0);
        let open = |path: &Path| {
            opened.set(opened.get() + 1);
            File::options().append(true).create(true).open(path)
        };
        let lock = |file: &File| {
            // Who had it first removes it before the lock is held.
            if opened.get() == 1 {
                std::fs::remove_file(&path)?;
            }
            Ok(lock_file(file)?)
        };
        let file = open_locked(&path, 2, open, lock).unwrap();
        let there = std::fs::metadata(&path).unwrap();
        assert_eq!((file.metadata().unwrap().ino(), opened.get()), (there.ino(), 2));
        let gone = open_locked(&path, 3, open, |_| std::fs::remove_file(&path)).unwrap_err();
        assert_eq!((gone.0, gone.1.kind()), ("opening", io::ErrorKind::ResourceBusy));
    }
}
