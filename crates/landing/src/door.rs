//! Folders that hold the socket at which a VM's disks are served to QEMU or to a converter on this host.

use std::ffi::OsStr;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

use tempfile::TempDir;

/// Begins the names of those of rehearsals.
pub(super) const REHEARSAL: &str = "drover-rehearse-";
/// Begins the names of those of conversions.
pub(super) const CONVERSION: &str = "drover-convert-";
/// The socket in each.
pub(super) const SOCKET: &str = "nbd";

/// Makes one of a kind: with a short path, as a socket's has to be, and nobody else's.
pub(super) fn open(kind: &str) -> io::Result<TempDir> {
    tempfile::Builder::new().prefix(kind).tempdir()
}

/// Removes what drovers that were killed left in a folder for temporary files: doors at whose sockets nobody listens any more. One
/// without a socket belongs to who is about to make it.
pub fn remove_stale_doors(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let is_door = |name: &OsStr| {
        name.to_str().is_some_and(|name| [REHEARSAL, CONVERSION].iter().any(|kind| name.starts_with(kind)))
    };
    for door in entries.flatten().filter(|entry| is_door(&entry.file_name())) {
        let refused = UnixStream::connect(door.path().join(SOCKET)).err();
        if refused.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            // Who may not remove it did not make it.
            let _ = std::fs::remove_dir_all(door.path());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_a_door_whose_drover_is_gone_is_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let door = |name: &str| {
            let folder = temporary.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            folder
        };
        let dead = [door("drover-rehearse-a"), door("drover-convert-a")];
        let (new, live, other) = (door("drover-rehearse-b"), door("drover-convert-d"), door("other-c"));
        for door in dead.iter().chain([&other]) {
            drop(UnixListener::bind(door.join(SOCKET)).unwrap());
        }
        let _listens = UnixListener::bind(live.join(SOCKET)).unwrap();
        remove_stale_doors(temporary.path());
        assert!(
            !dead.iter().any(|door| door.exists()) && [new, other, live].iter().all(|door| door.exists())
        );
    }
}
