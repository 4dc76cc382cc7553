//! Whether a file is open for writing anywhere on this host.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, BorrowedFd};

use crate::sys;

/// Chooses the signal that tells of a lease that is to be broken. Source: Linux `asm-generic/fcntl.h`.
const F_SETSIG: i32 = 10;

/// Whether any process, or the kernel itself (a loop device, an NFS server), has a regular file open for writing. The kernel grants a
/// read lease only while nobody has; it is given back at once. `file` must be open for reading only.
///
/// # Errors
/// `PermissionDenied` for a file of another user without `CAP_LEASE`; what file systems without leases say. Network
/// file systems may refuse for other reasons, which then reads as `true`.
pub fn is_open_for_writing(file: &impl AsFd) -> Result<bool> {
    let file = file.as_fd();
    // Who opens it for writing in this instant has a signal sent to us. The usual one would end the process; this one is
    // ignored unless somebody asked for it.
    sys::fcntl_int(file, F_SETSIG, libc::SIGURG)?;
    match sys::fcntl_int(file, libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => give_back(file).map(|()| false),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

fn give_back(file: BorrowedFd<'_>) -> Result<()> {
    match sys::fcntl_int(file, libc::F_SETLEASE, libc::F_UNLCK) {
        // Somebody opened it just now and the kernel took the lease away.
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(()),
        result => result.map_err(|error| Error::new(error.kind(), format!("giving a lease back: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_writer_is_seen_and_a_reader_is_none() {
        let path = std::env::temp_dir().join(format!("drover-lease-{}", std::process::id()));
        let writer = File::create(&path).unwrap();
        let (file, _other) = (File::open(&path).unwrap(), File::open(&path).unwrap());
        assert!(is_open_for_writing(&file).unwrap());
        drop(writer);
        assert!(!is_open_for_writing(&file).unwrap());
        // The lease is gone: this would wait for 45 s otherwise.
        drop(File::options().append(true).open(&path).unwrap());
        assert!(!is_open_for_writing(&file).unwrap());
        std::fs::remove_file(path).unwrap();
    }
}
