//! Files of ext2, ext3 or ext4.

use std::io::Read;

use ext4_view::{Ext4, Ext4Error, File};

use crate::read::Part;
use crate::tree::{FileSystem, Found};

/// A file system.
pub(crate) struct Ext(Ext4);

impl Ext {
    /// Reads what finds the files; a journal that was not replayed is replayed in memory. Gives free space in bytes, too.
    pub(crate) fn load(part: Part) -> Result<(Ext, u64), String> {
        let mut block = [0; 1024];
        part.read_at(1024, &mut block).map_err(|error| error.to_string())?;
        let free_bytes = Super(block).checked(part.size())?.free_bytes();
        let files = Ext4::load(Box::new(part)).map_err(|error| told(&error))?;
        Ok((Ext(files), free_bytes))
    }
}

impl FileSystem for Ext {
    fn look(&self, path: &str) -> Option<Found> {
        let found = self.0.symlink_metadata(path).ok()?;
        let (bytes, kind) = (found.len(), found.file_type());
        Some(match kind {
            _ if kind.is_symlink() => Found::Link { bytes },
            _ if kind.is_regular_file() => Found::File { bytes },
            _ => Found::Other,
        })
    }

    fn link(&self, path: &str) -> Option<String> {
        let target = self.0.read_link(path).ok()?;
        target.to_str().ok().map(str::to_string)
    }

    fn read(&self, path: &str) -> Option<Vec<u8>> {
        self.0.read(path).ok()
    }

    fn names(&self, path: &str, max: usize) -> Vec<String> {
        let Ok(entries) = self.0.read_dir(path) else { return Vec::new() };
        let name = |name: &str| (name != "." && name != "..").then(|| name.to_string());
        let names = entries
            .take(max)
            .filter_map(|entry| entry.ok().and_then(|entry| name(entry.file_name().as_str().ok()?)));
        names.collect()
    }

    fn open(&self, path: &str) -> Result<Box<dyn Read>, String> {
        let file: File = self.0.open(path).map_err(|error| told(&error))?;
        Ok(Box::new(file))
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
