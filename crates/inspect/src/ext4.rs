//! A file tree on ext2, ext3 or ext4, with bounds on what is read of it.

use std::io::Read;

use ext4_view::{Ext4, Ext4Error, File};

use crate::read::Part;

/// A file system.
pub(crate) struct Tree {
    files: Ext4,
    /// Free space in bytes, as the superblock tells. A guest that runs keeps the truth in memory.
    pub(crate) free_bytes: u64,
}

impl Tree {
    /// Reads what finds the files; a journal that was not replayed is replayed in memory.
    pub(crate) fn load(part: Part) -> Result<Tree, String> {
        let mut block = [0; 1024];
        part.read_at(1024, &mut block).map_err(|error| error.to_string())?;
        let free_bytes = Super(block).checked(part.size())?.free_bytes();
        let files = Ext4::load(Box::new(part)).map_err(|error| told(&error))?;
        Ok(Tree { files, free_bytes })
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
                    let found = self.files.symlink_metadata(next.as_str()).ok()?;
                    if !found.is_symlink() {
                        at = next;
                        continue;
                    }
                    links += 1;
                    (links <= LINKS_MAX && found.len() <= LINK_BYTES_MAX).then_some(())?;
                    let target = self.files.read_link(next.as_str()).ok()?;
                    let target = target.to_str().ok()?;
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
        let length = self.files.symlink_metadata(path.as_str()).ok()?.len();
        (length <= bytes_max).then_some(())?;
        let bytes = self.files.read(path.as_str()).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The names in a folder, sorted; none if there is no such folder.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let Some(folder) = self.real(folder) else { return Vec::new() };
        let Ok(entries) = self.files.read_dir(folder.as_str()) else { return Vec::new() };
        let name = |name: &str| (name != "." && name != "..").then(|| name.to_string());
        let mut names: Vec<String> = entries
            .take(NAMES_MAX)
            .filter_map(|entry| entry.ok().and_then(|entry| name(entry.file_name().as_str().ok()?)))
            .collect();
        names.sort();
        names
    }

    pub(crate) fn open(&self, path: &str) -> Result<impl Read + use<>, String> {
        let path = self.real(path).ok_or("it is not there")?;
        let file: File = self.files.open(path.as_str()).map_err(|error| told(&error))?;
        Ok(file)
    }
}

fn told(error: &Ext4Error) -> String {
    error.to_string()
}

/// ```text
/// superblock, 1024 bytes from the start: 4 blocks (low), 12 free blocks (low), 24 log2(block size / 1024), 32 blocks of a
/// group, 96 incompatible features (0x80: 64 bits), 336 blocks (high), 344 free blocks (high)
/// ```
/// Source: Linux `Documentation/filesystems/ext4/super.rst`.
struct Super([u8; 1024]);

impl Super {
    /// Memory is taken for what it claims, so that is held against the partition first.
    fn checked(self, part_bytes: u64) -> Result<Super, String> {
        let (log, of_group) = (self.word(24), u64::from(self.word(32)));
        if log > BLOCK_LOG_MAX {
            return Err(format!("it claims blocks of 2^{} bytes", u64::from(log) + 10));
        }
        let blocks = self.long(4, 336);
        if blocks.saturating_mul(self.block_bytes()) > part_bytes {
            return Err(format!("it claims {blocks} blocks, more than its partition has"));
        }
        if of_group == 0 || blocks / of_group > GROUPS_MAX {
            return Err(format!("it claims groups of {of_group} blocks"));
        }
        Ok(self)
    }

    /// Free space; a guest that runs keeps the truth in memory.
    fn free_bytes(&self) -> u64 {
        self.long(12, 344).saturating_mul(self.block_bytes())
    }

    fn block_bytes(&self) -> u64 {
        1024 << self.word(24).min(BLOCK_LOG_MAX)
    }

    fn long(&self, low: usize, high: usize) -> u64 {
        let high = if self.word(96) & 0x80 != 0 { self.word(high) } else { 0 };
        u64::from(high) << 32 | u64::from(self.word(low))
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().unwrap_or_default())
    }
}

/// Blocks of 64 KiB.
const BLOCK_LOG_MAX: u32 = 6;
/// With the usual groups of 128 MiB this is 64 TiB.
const GROUPS_MAX: u64 = 1 << 19;
const LINKS_MAX: u32 = 40;
const LINK_BYTES_MAX: u64 = 4096;
const TEXT_BYTES_MAX: u64 = 1 << 20;
const NAMES_MAX: usize = 5_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(log: u32, blocks: u32, of_group: u32) -> Result<Super, String> {
        let mut block = [0; 1024];
        for (at, word) in [(4, blocks), (24, log), (32, of_group)] {
            block[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        Super(block).checked(1 << 30)
    }

    #[test]
    fn a_superblock_that_claims_more_than_its_partition_has_is_refused() {
        assert!(claims(2, 1 << 18, 32_768).is_ok());
        for (log, blocks, of_group, words) in [
            (21, 1, 32_768, "blocks of 2^31 bytes"),
            (2, (1 << 18) + 1, 32_768, "more than its partition"),
            (0, 1 << 20, 1, "groups of 1 blocks"),
            (2, 1 << 18, 0, "groups of 0 blocks"),
        ] {
            assert!(claims(log, blocks, of_group).is_err_and(|why| why.contains(words)), "{words}");
        }
    }
}
