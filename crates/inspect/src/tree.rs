//! A file tree, whatever file system it lies on, with bounds on what is read of it.

use std::io::Read;

use crate::read::Part;
use crate::{btrfs, ext4, xfs};

/// What a file system tells of its files. Paths have no links in them, but for the last part.
pub(crate) trait FileSystem {
    /// What is there.
    fn look(&self, path: &str) -> Option<Found>;

    /// What a link holds.
    fn link(&self, path: &str) -> Option<String>;

    /// What a file holds, whose size was looked at.
    fn read(&self, path: &str) -> Option<Vec<u8>>;

    /// At most so many of the names in a folder.
    fn names(&self, path: &str, max: usize) -> Vec<String>;

    /// What a file holds, bit by bit.
    fn open(&self, path: &str) -> Result<Box<dyn Read>, String>;
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Link { bytes: u64 },
    File { bytes: u64 },
    Other,
}

/// A file system.
pub(crate) struct Tree {
    files: Box<dyn FileSystem>,
    /// Free space in bytes, as the file system tells. A guest that runs keeps the truth in memory.
    pub(crate) free_bytes: u64,
}

impl Tree {
    /// One of ext2, ext3 or ext4.
    pub(crate) fn of_ext(part: Part) -> Result<Tree, String> {
        let (files, free_bytes) = ext4::Ext::load(part)?;
        Ok(Tree { files: Box::new(files), free_bytes })
    }

    /// One of XFS.
    pub(crate) fn of_xfs(part: Part) -> Result<Tree, String> {
        let (files, free_bytes) = xfs::Xfs::load(part)?;
        Ok(Tree { files: Box::new(files), free_bytes })
    }

    /// One of btrfs, from the subvolume that holds its system.
    pub(crate) fn of_btrfs(part: Part) -> Result<Tree, String> {
        let (files, free_bytes) = btrfs::Btrfs::load(part)?;
        Ok(Tree { files: Box::new(files), free_bytes })
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.real(path).is_some()
    }

    /// The path without links, if there is something. Links are followed here, where what they hold has a bound.
    fn real(&self, path: &str) -> Option<String> {
        let (mut at, mut links) = (String::new(), 0);
        let mut left: Vec<String> = path.rsplit('/').map(str::to_string).collect();
        while let Some(name) = left.pop() {
            match name.as_str() {
                "" | "." => {}
                ".." => at.truncate(at.rfind('/').unwrap_or(0)),
                name => {
                    let next = format!("{at}/{name}");
                    (next.len() <= PATH_BYTES_MAX).then_some(())?;
                    let Found::Link { bytes } = self.files.look(&next)? else {
                        at = next;
                        continue;
                    };
                    links += 1;
                    (links <= LINKS_MAX && bytes <= LINK_BYTES_MAX).then_some(())?;
                    let target = self.files.link(&next)?;
                    if target.starts_with('/') {
                        at.clear();
                    }
                    left.extend(target.rsplit('/').map(str::to_string));
                }
            }
        }
        Some(if at.is_empty() { "/".into() } else { at })
    }

    /// A text file; nothing if there is none, or it is larger than one that people wrote.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        self.short_text(path, TEXT_BYTES_MAX)
    }

    /// The same with a bound of its own.
    pub(crate) fn short_text(&self, path: &str, bytes_max: u64) -> Option<String> {
        let path = self.real(path)?;
        let Found::File { bytes } = self.files.look(&path)? else { return None };
        (bytes <= bytes_max).then_some(())?;
        Some(String::from_utf8_lossy(&self.files.read(&path)?).into_owned())
    }

    /// The names in a folder, sorted; none if there is no such folder.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let Some(folder) = self.real(folder) else { return Vec::new() };
        let mut names = self.files.names(&folder, NAMES_MAX);
        names.sort();
        names
    }

    pub(crate) fn open(&self, path: &str) -> Result<Box<dyn Read>, String> {
        let path = self.real(path).ok_or("it is not there")?;
        self.files.open(&path)
    }
}

const PATH_BYTES_MAX: usize = 4096;
const LINKS_MAX: u32 = 40;
const LINK_BYTES_MAX: u64 = 4096;
const TEXT_BYTES_MAX: u64 = 1 << 20;
const NAMES_MAX: usize = 5_000;
