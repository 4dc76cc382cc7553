use std::io;
use std::path::{Path, PathBuf};

use drover_disk::DiskErrorKind;

use super::nothing;
use crate::error::Refusal;

/// Folders below a pool's.
const DEPTH_MAX: usize = 8;
const PART_BYTES_MAX: usize = 200;

/// Files that drover keeps beside images.
const OWN_ENDINGS: [&str; 5] =
    [".drover-fence", ".drover-leaves", ".drover-journal", ".drover-journal.new", ".drover-owner"];

/// Files of a machine beside its images: who may write images writes no definitions, and no scripts.
const MACHINE_FILES: [&str; 8] =
    ["domain.xml", "run.sh", "nvram.fd", "qmp.sock", "vnc.sock", "serial.log", "qemu.log", "qemu.pid"];

/// What a peer calls a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceName<'a> {
    /// A file in a pool.
    File {
        /// The pool.
        pool: &'a str,
        /// Its path from the pool's folder on.
        path: &'a str,
    },
    /// A device or an export.
    Named(&'a str),
}

impl<'a> PlaceName<'a> {
    /// Reads a name; nothing in it leads out of a pool.
    ///
    /// # Errors
    /// When a part is empty, begins with a dot, has odd characters, or is a file of drover's own.
    pub fn parse(text: &'a str) -> Result<PlaceName<'a>, Refusal> {
        let parts = text.split('/').count();
        if !text.split('/').all(is_sound)
            || parts > DEPTH_MAX
            || OWN_ENDINGS.iter().any(|end| text.ends_with(end))
            || text.split_once('/').is_some_and(|(_, path)| is_of_machine(path))
        {
            let why = format!("'{}' is no name of a disk", text.escape_debug().take(200).collect::<String>());
            return Err(Refusal::new(DiskErrorKind::Denied, why));
        }
        Ok(match text.split_once('/') {
            Some((pool, path)) => PlaceName::File { pool, path },
            None => PlaceName::Named(text),
        })
    }
}

fn is_of_machine(path: &str) -> bool {
    let last = path.rsplit('/').next().unwrap_or(path);
    MACHINE_FILES.contains(&last.strip_suffix(".new").unwrap_or(last))
}

fn is_sound(part: &str) -> bool {
    let odd = |c: char| c.is_control() || c == '\\';
    !part.is_empty() && part.len() <= PART_BYTES_MAX && !part.starts_with('.') && !part.contains(odd)
}

/// A folder in a pool, and how much of its path is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    /// The folder.
    pub path: PathBuf,
    /// The last part of its path that is there: itself, or what it would be made in.
    pub there: PathBuf,
}

impl Room {
    /// A pool's own folder, without links.
    pub(super) fn of_pool(pool: &Path) -> Result<Room, Refusal> {
        std::fs::canonicalize(pool).map(Room::there).map_err(|error| unusable(pool, &error))
    }

    /// The folder of that path in a pool. No part of it that is there may be a symbolic link.
    pub(super) fn find(pool: &Path, path: &str) -> Result<Room, Refusal> {
        let mut room = Room::of_pool(pool)?;
        for part in path.split('/') {
            let is_missing = !room.is_there();
            room.path.push(part);
            if is_missing {
                continue;
            }
            match std::fs::symlink_metadata(&room.path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                checked => {
                    check_folder(&room.path, checked)?;
                    room.there.clone_from(&room.path);
                }
            }
        }
        Ok(room)
    }

    /// One that is there.
    pub(crate) fn there(path: PathBuf) -> Room {
        Room { there: path.clone(), path }
    }

    /// Whether the folder is there.
    pub(crate) fn is_there(&self) -> bool {
        self.path == self.there
    }

    /// Makes the folder, with what is missing above it; adds what it made, which somebody else may have made meanwhile.
    pub(super) fn make(&self, made: &mut Vec<PathBuf>) -> Result<(), Refusal> {
        let missing = self.path.ancestors().take_while(|it| *it != self.there);
        for folder in missing.collect::<Vec<_>>().into_iter().rev() {
            match std::fs::create_dir(folder) {
                Ok(()) => made.push(folder.to_path_buf()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(unusable(folder, &error)),
            }
            check_folder(folder, std::fs::symlink_metadata(folder))?;
        }
        Ok(())
    }
}

fn check_folder(at: &Path, found: io::Result<std::fs::Metadata>) -> Result<(), Refusal> {
    match found {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(Refusal::new(DiskErrorKind::Denied, format!("{} is no folder", at.display()))),
        Err(error) => Err(unusable(at, &error)),
    }
}

fn unusable(at: &Path, error: &io::Error) -> Refusal {
    Refusal::new(DiskErrorKind::of(error), format!("{}: {error}", at.display()))
}

/// The file of that path in a pool. No part of the path below the pool's folder may be a symbolic link. Who else may
/// write to the pool's folder is trusted not to change that meanwhile.
pub(super) fn resolve(pool: &Path, path: &str) -> Result<PathBuf, Refusal> {
    let mut at = std::fs::canonicalize(pool).map_err(|error| unusable(pool, &error))?;
    let mut parts = path.split('/').peekable();
    while let Some(part) = parts.next() {
        at.push(part);
        let is_last = parts.peek().is_none();
        match std::fs::symlink_metadata(&at) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_last => return Ok(at),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(nothing(format!("there is no folder {}", at.display())));
            }
            Err(error) => return Err(unusable(&at, &error)),
            Ok(meta) if is_last && !meta.is_file() => {
                return Err(Refusal::new(
                    DiskErrorKind::Denied,
                    format!("{} is no regular file", at.display()),
                ));
            }
            Ok(meta) if !is_last && !meta.is_dir() => {
                return Err(Refusal::new(DiskErrorKind::Denied, format!("{} is no folder", at.display())));
            }
            Ok(_) => {}
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_but_into_a_pool() {
        assert_eq!(PlaceName::parse("vms/a.raw"), Ok(PlaceName::File { pool: "vms", path: "a.raw" }));
        assert_eq!(PlaceName::parse("vms/x/a b.raw"), Ok(PlaceName::File { pool: "vms", path: "x/a b.raw" }));
        assert_eq!(PlaceName::parse("lun7"), Ok(PlaceName::Named("lun7")));
        let deep = "a/".repeat(DEPTH_MAX) + "a";
        for text in [
            "",
            "/",
            "vms/",
            "/etc/passwd",
            "vms//a",
            "vms/..",
            "vms/../a",
            "../a",
            "vms/.a",
            "vms/a\0",
            "vms/a\n",
            "vms/a\\b",
            "vms/a.raw.drover-fence",
            "vms/a.raw.drover-leaves",
            "vms/a.raw.drover-journal",
            &deep,
        ] {
            assert!(PlaceName::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn symbolic_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let pool = folder.path().join("pool");
        std::fs::create_dir_all(pool.join("sub")).unwrap();
        std::fs::write(folder.path().join("outside"), "x").unwrap();
        std::os::unix::fs::symlink(folder.path().join("outside"), pool.join("file")).unwrap();
        std::os::unix::fs::symlink(folder.path(), pool.join("folder")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("nowhere"), pool.join("dangling")).unwrap();
        for path in ["file", "folder/outside", "dangling", "sub", "nowhere/a"] {
            assert!(resolve(&pool, path).is_err(), "{path}");
        }
        let real = std::fs::canonicalize(&pool).unwrap();
        assert_eq!(resolve(&pool, "new.raw"), Ok(real.join("new.raw")));
        assert_eq!(resolve(&pool, "sub/new.raw"), Ok(real.join("sub/new.raw")));
    }

    #[test]
    fn a_folder_is_made_below_what_is_there_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let pool = std::fs::canonicalize(folder.path()).unwrap();
        std::fs::create_dir(pool.join("sub")).unwrap();
        std::fs::write(pool.join("file"), "x").unwrap();
        std::os::unix::fs::symlink(folder.path(), pool.join("link")).unwrap();
        for path in ["file", "file/a", "link", "link/a"] {
            assert!(Room::find(&pool, path).is_err(), "{path}");
        }
        let room = Room::find(&pool, "sub/a/b").unwrap();
        assert_eq!(room, Room { path: pool.join("sub/a/b"), there: pool.join("sub") });
        let mut made = Vec::new();
        room.make(&mut made).unwrap();
        assert_eq!(made, [pool.join("sub/a"), pool.join("sub/a/b")]);
        assert!(Room::find(&pool, "sub/a/b").unwrap().is_there());
        room.make(&mut made).unwrap();
        assert_eq!(made.len(), 2, "what was there was not made");
    }

    /// The folder that is named may itself be a link: the administrator wrote it.
    #[test]
    fn a_pool_may_be_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let pool = folder.path().join("pool");
        std::fs::create_dir(&pool).unwrap();
        std::os::unix::fs::symlink(&pool, folder.path().join("link")).unwrap();
        let real = std::fs::canonicalize(&pool).unwrap();
        assert_eq!(resolve(&folder.path().join("link"), "a"), Ok(real.join("a")));
    }
}
