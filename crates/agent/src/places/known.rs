//! Blocks that a pool has, by their hashes: those of the same image in an earlier try, those of other images.
//!
//! An index in memory leads from the first 8 bytes of a hash to an image and a block. It is filled from the leaves
//! beside the images when the pool is first written to, and as blocks are written. It is bounded by
//! [`ENTRIES_MAX`]; what comes after is not indexed. Whatever it says, the block is read and hashed before it counts.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use drover_disk::Buffer;
use drover_types::BLOCK_BYTES;

use super::leaves::{ENDING, Leaves, leaves_path, open_image, read_all};
use crate::message::{PieceHash, hash_of};
use crate::serve::{Found, KnownBlocks};

/// Blocks in the index of a pool: 256 GiB of different data. The index takes up to 150 MB then.
pub const ENTRIES_MAX: usize = 4 << 20;

/// Images of a pool that are looked at; blocks of others are not found.
const IMAGES_MAX: usize = 10_000;

/// Stands for an image that is one too many.
const NO_IMAGE: u32 = u32::MAX;

/// Folders below a pool's.
const DEPTH_MAX: usize = 8;

/// Images open at a time.
const OPEN_MAX: usize = 32;

/// What a pool has.
#[derive(Default)]
pub(super) struct PoolIndex {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    blocks: HashMap<u64, (u32, u32)>,
    images: Vec<PathBuf>,
    open: HashMap<u32, Arc<File>>,
}

fn key(hash: &PieceHash) -> u64 {
    let mut first = [0; 8];
    first.copy_from_slice(&hash[..8]);
    u64::from_le_bytes(first)
}

impl PoolIndex {
    /// Reads the leaves of all images in a folder.
    pub(super) fn load(folder: &Path) -> PoolIndex {
        let index = PoolIndex::default();
        let mut images = Vec::new();
        find_images(folder, 0, &mut images);
        for image in images {
            let number = index.image(&image);
            // Leaves that cannot be read are of no use, and no harm.
            let _ = read_all(&leaves_path(&image), |block, hash| index.add(number, block, &[hash]));
        }
        index
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn image(&self, path: &Path) -> u32 {
        let mut inner = self.inner();
        if let Some(found) = inner.images.iter().position(|it| it == path) {
            return found as u32;
        }
        if inner.images.len() >= IMAGES_MAX {
            return NO_IMAGE;
        }
        inner.images.push(path.to_path_buf());
        inner.images.len() as u32 - 1
    }

    /// Adds blocks; `false` if there is no room for more.
    fn add(&self, image: u32, first: u64, hashes: &[PieceHash]) -> bool {
        if image == NO_IMAGE {
            return false;
        }
        let mut inner = self.inner();
        for (block, hash) in (first..).zip(hashes) {
            let Ok(block) = u32::try_from(block) else { return false };
            if inner.blocks.len() >= ENTRIES_MAX && !inner.blocks.contains_key(&key(hash)) {
                return false;
            }
            inner.blocks.insert(key(hash), (image, block));
        }
        true
    }

    fn lookup(&self, hash: &PieceHash) -> Option<(u32, u32, Arc<File>)> {
        let mut inner = self.inner();
        let (image, block) = *inner.blocks.get(&key(hash))?;
        if let Some(file) = inner.open.get(&image) {
            return Some((image, block, file.clone()));
        }
        let file = Arc::new(open_image(inner.images.get(image as usize)?).ok()?);
        if inner.open.len() >= OPEN_MAX {
            inner.open.clear();
        }
        inner.open.insert(image, file.clone());
        Some((image, block, file))
    }

    fn drop_block(&self, hash: &PieceHash) {
        self.inner().blocks.remove(&key(hash));
    }

    /// An image was removed: its room is free once nobody has it open.
    pub(super) fn removed(&self, path: &Path) {
        let mut inner = self.inner();
        if let Some(image) = inner.images.iter().position(|it| it == path) {
            inner.open.remove(&(image as u32));
        }
    }

    /// An image was made anew: who has it open looks at one that is gone.
    fn reopened(&self, image: u32) {
        self.inner().open.remove(&image);
    }
}

fn find_images(folder: &Path, depth: usize, images: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if images.len() >= IMAGES_MAX {
            return;
        }
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() && depth < DEPTH_MAX {
            find_images(&path, depth + 1, images);
        } else if kind.is_file()
            && let Some(image) = path.to_str().and_then(|path| path.strip_suffix(ENDING))
        {
            images.push(PathBuf::from(image));
        }
    }
}

/// What is known for one image that is being written.
pub(super) struct ImageBlocks {
    index: Arc<PoolIndex>,
    image: u32,
    file: File,
    leaves: Leaves,
}

impl ImageBlocks {
    /// For the image at `path`, of which a file of leaves is kept.
    pub(super) fn open(
        index: &Arc<PoolIndex>,
        path: &Path,
        size: u64,
        is_new: bool,
    ) -> std::io::Result<ImageBlocks> {
        let leaves = Leaves::open(path, size, is_new)?;
        let file = open_image(path)?;
        let image = index.image(path);
        index.reopened(image);
        Ok(ImageBlocks { index: index.clone(), image, file, leaves })
    }

    fn is_here(&self, hash: &PieceHash, block: u64, buffer: &mut Buffer) -> bool {
        self.leaves.get(block) == Some(*hash) && holds(&self.file, block, hash, buffer)
    }
}

/// Whether a block of an image has this hash; the buffer holds it then.
fn holds(file: &File, block: u64, hash: &PieceHash, buffer: &mut Buffer) -> bool {
    let at = block.saturating_mul(BLOCK_BYTES);
    buffer.len() as u64 == BLOCK_BYTES && file.read_exact_at(buffer, at).is_ok() && hash_of(buffer) == *hash
}

impl KnownBlocks for ImageBlocks {
    fn find(&self, hash: &PieceHash, block: u64, buffer: &mut Buffer) -> Found {
        if self.is_here(hash, block, buffer) {
            return Found::Here;
        }
        let Some((image, other, file)) = self.index.lookup(hash) else { return Found::Nowhere };
        let file = if image == self.image { &self.file } else { &*file };
        if holds(file, u64::from(other), hash, buffer) {
            return Found::Elsewhere;
        }
        self.index.drop_block(hash);
        Found::Nowhere
    }

    fn forget(&self, first: u64, count: u64) {
        self.leaves.forget(first, count);
    }

    fn learn(&self, first: u64, hashes: &[PieceHash]) {
        self.leaves.set(first, hashes);
        self.index.add(self.image, first, hashes);
    }
}
