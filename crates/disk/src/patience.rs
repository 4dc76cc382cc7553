//! Locks of files, taken in spite of children that hold copies for an instant.

use std::fs::File;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Together 500 ms, far longer than an exec takes on a busy machine, and no burden on a refusal.
const ATTEMPTS_MAX: usize = 50;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(10);

/// Takes the exclusive `flock` of a file; held as long as the file, or a copy of it, is open.
///
/// # Errors
/// `WOULDBLOCK` when another holds it for longer than a child needs that was just started.
pub fn lock_file(file: &File) -> rustix::io::Result<()> {
    let lock = || flock(file, FlockOperation::NonBlockingLockExclusive);
    patiently(lock, |errno| *errno == Errno::WOULDBLOCK)
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
}
