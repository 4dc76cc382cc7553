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
        let free_bytes = free_bytes(&part).map_err(|error| error.to_string())?;
        let files = Ext4::load(Box::new(part)).map_err(|error| told(&error))?;
        Ok(Tree { files, free_bytes })
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        self.files.exists(path).unwrap_or(false)
    }

    /// A text file; nothing if there is none, or it is larger than one that people wrote.
    pub(crate) fn text(&self, path: &str) -> Option<String> {
        let length = self.files.metadata(path).ok()?.len();
        (length <= TEXT_BYTES_MAX).then_some(())?;
        let bytes = self.files.read(path).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The names in a folder, sorted; none if there is no such folder.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let Ok(entries) = self.files.read_dir(folder) else { return Vec::new() };
        let name = |name: &str| (name != "." && name != "..").then(|| name.to_string());
        let mut names: Vec<String> = entries
            .take(NAMES_MAX)
            .filter_map(|entry| entry.ok().and_then(|entry| name(entry.file_name().as_str().ok()?)))
            .collect();
        names.sort();
        names
    }

    pub(crate) fn open(&self, path: &str) -> Result<impl Read + use<>, String> {
        let file: File = self.files.open(path).map_err(|error| told(&error))?;
        Ok(file)
    }
}

fn told(error: &Ext4Error) -> String {
    error.to_string()
}

/// ```text
/// superblock, 1024 bytes from the start: 12 free blocks (low), 24 log2(block size / 1024), 96 incompatible features
/// (0x80: 64 bits), 344 free blocks (high)
/// ```
/// Source: Linux `Documentation/filesystems/ext4/super.rst`.
fn free_bytes(part: &Part) -> std::io::Result<u64> {
    let mut block = [0; 1024];
    part.read_at(1024, &mut block)?;
    let word = |at: usize| u32::from_le_bytes(block[at..at + 4].try_into().unwrap_or_default());
    let high = if word(96) & 0x80 != 0 { u64::from(word(344)) << 32 } else { 0 };
    let block_bytes = 1024u64.checked_shl(word(24).min(16)).unwrap_or(1024);
    Ok((high | u64::from(word(12))).saturating_mul(block_bytes))
}

const TEXT_BYTES_MAX: u64 = 1 << 20;
const NAMES_MAX: usize = 5_000;
