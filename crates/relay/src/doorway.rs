//! The socket of a door, and how it comes to its place and goes from there.
//!
//! A folder may belong to somebody else, such as QEMU's user, who can put a link where a socket was a moment before. So a socket
//! is made and given away in a folder beside that only its maker reaches, held open so that its name does not matter, and comes
//! to its place when that is done:
//!
//! ```text
//! FOLDER/.drover-PID-N/socket   bind, chmod, chown ──rename──> FOLDER/NAME
//! ```

use std::fs::Permissions;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags, fstat, mkdirat, openat, renameat_with, unlinkat};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::doors::{DoorError, Reach};

/// A socket in its place. Dropped, it goes, if it is still the one that was made.
pub(crate) struct Doorway {
    path: PathBuf,
    id: Id,
}

/// Device and number of a file.
type Id = (u64, u64);

impl Doorway {
    /// Listens there.
    pub(crate) fn open(path: &Path, reach: Reach) -> Result<(UnixListener, Doorway), DoorError> {
        let (listener, id) = match reach {
            Reach::Folder => {
                let listener = UnixListener::bind(path).map_err(|error| failed(path, error))?;
                (listener, id(path).map_err(|error| failed(path, error))?)
            }
            Reach::User(user) => bind_for(path, user)?,
        };
        Ok((listener, Doorway { path: path.to_path_buf(), id }))
    }
}

impl Drop for Doorway {
    fn drop(&mut self) {
        // Whoever made its folder may have removed it, and another may be in its place.
        if id(&self.path).is_ok_and(|id| id == self.id) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn id(path: &Path) -> io::Result<Id> {
    let file = path.symlink_metadata()?;
    Ok((file.dev(), file.ino()))
}

fn failed(path: &Path, source: io::Error) -> DoorError {
    DoorError::Failed { path: path.to_path_buf(), source }
}

/// Only this user may connect, or only who made it.
fn bind_for(path: &Path, user: Option<u32>) -> Result<(UnixListener, Id), DoorError> {
    let failed = |error: io::Error| failed(path, error);
    // It is bound by another name, and connected to by this one.
    SocketAddr::from_pathname(path).map_err(failed)?;
    let nowhere = || failed(io::Error::new(ErrorKind::InvalidInput, "a folder and a name are wanted"));
    let (folder, name) = path.parent().zip(path.file_name()).ok_or_else(nowhere)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = openat(CWD, folder, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
    let aside = Aside::make(&folder).map_err(failed)?;
    make_room(path, &aside)?;
    let made = aside.path(SOCKET);
    let listener = UnixListener::bind(&made).map_err(failed)?;
    std::fs::set_permissions(&made, Permissions::from_mode(SOCKET_MODE)).map_err(failed)?;
    if let Some(user) = user.filter(|user| *user != geteuid().as_raw()) {
        lchown(&made, Some(user), None).map_err(|source| DoorError::NotGiven {
            path: path.to_path_buf(),
            user,
            source,
        })?;
    }
    let id = id(&made).map_err(failed)?;
    match renameat_with(&aside.held, SOCKET, &folder, name, RenameFlags::NOREPLACE) {
        Ok(()) => Ok((listener, id)),
        // Another was faster.
        Err(Errno::EXIST) => Err(DoorError::Taken(path.to_path_buf())),
        Err(error) => Err(failed(error.into())),
    }
}

/// Sockets that nobody listens at are removed, as one that was killed leaves them; no other kind of file is.
fn make_room(path: &Path, aside: &Aside<'_>) -> Result<(), DoorError> {
    let failed = |error: io::Error| failed(path, error);
    match path.symlink_metadata() {
        Ok(there) if there.file_type().is_socket() => {}
        Ok(_) => return Err(failed(io::Error::new(ErrorKind::AlreadyExists, "something else is there"))),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    }
    if is_heard(path).map_err(failed)? {
        return Err(DoorError::Taken(path.to_path_buf()));
    }
    let left = aside.path(LEFT);
    std::fs::rename(path, &left).map_err(failed)?;
    // Another may have put its own there since it was looked at.
    if is_heard(&left).map_err(failed)? {
        renameat_with(CWD, &left, CWD, path, RenameFlags::NOREPLACE).map_err(|error| failed(error.into()))?;
        return Err(DoorError::Taken(path.to_path_buf()));
    }
    Ok(())
}

/// Whether somebody listens at a socket, who does not learn of it. A connection would be carried on, to a QEMU that waits for its
/// guest there and takes who comes first for the source; a socket of another kind is told only that it is of another kind.
///
/// Source: unix(7), `EPROTOTYPE`.
fn is_heard(path: &Path) -> io::Result<bool> {
    match UnixDatagram::unbound()?.connect(path) {
        Ok(()) => Ok(true),
        Err(error) if error.raw_os_error() == Some(Errno::PROTOTYPE.raw_os_error()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(false),
        Err(error) => Err(error),
    }
}

/// A folder in another one, which only this user reaches. Dropped, it goes.
struct Aside<'a> {
    folder: &'a OwnedFd,
    name: String,
    held: OwnedFd,
}

impl<'a> Aside<'a> {
    fn make(folder: &'a OwnedFd) -> io::Result<Aside<'a>> {
        let name = Aside::make_named(folder)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let held = openat(folder, &name, flags, Mode::empty())?;
        let stat = fstat(&held)?;
        if stat.st_uid != geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            let what = "somebody changes what is made in that folder";
            return Err(io::Error::new(ErrorKind::PermissionDenied, what));
        }
        Ok(Aside { folder, name, held })
    }

    fn make_named(folder: &OwnedFd) -> io::Result<String> {
        let mut number = 0;
        loop {
            let name = format!(".drover-{}-{number}", std::process::id());
            match mkdirat(folder, &name, Mode::RWXU) {
                Ok(()) => return Ok(name),
                // Another thread is at it, or one of the same number was killed.
                Err(Errno::EXIST) if number < ASIDE_MAX => number += 1,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Of what is in it, whatever its own name has become.
    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.held.as_raw_fd()))
    }
}

impl Drop for Aside<'_> {
    fn drop(&mut self) {
        for name in [SOCKET, LEFT] {
            // Mostly neither is in it any more.
            let _ = unlinkat(&self.held, name, AtFlags::empty());
        }
        // Whoever owns the folder may have taken it elsewhere; it is empty.
        let _ = unlinkat(self.folder, &self.name, AtFlags::REMOVEDIR);
    }
}

const SOCKET: &str = "socket";
const LEFT: &str = "left";
/// Whoever may connect to it is in the guest's move.
const SOCKET_MODE: u32 = 0o600;
/// Names that are tried for a folder aside.
const ASIDE_MAX: u32 = 64;
