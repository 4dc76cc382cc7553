//! The leaves of an image, in a file beside it: what its blocks held when they were last written through an agent.
//!
//! ```text
//!  0  8  magic "DROVERL" and a line feed         64 32n  BLAKE3 of block n of 65,536 bytes;
//!  8  4  version, 1                                      zeros where nothing is known
//! 12  4  block size, 65536
//! 16  8  size of the image in bytes
//! 24 24  zero
//! 48 16  first bytes of the BLAKE3 of bytes 0 to 47
//! ```
//!
//! Integers are little endian. Nothing is flushed and nothing else is checked, because nothing in it is believed.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use drover_types::BLOCK_BYTES;
use rustix::fs::OFlags;

use crate::message::PieceHash;

const MAGIC: &[u8; 8] = b"DROVERL\n";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 64;
const HASH_BYTES: u64 = 32;

/// The file that belongs to an image: its path with `.drover-leaves` added.
pub(super) fn leaves_path(image: &Path) -> PathBuf {
    let mut name = image.as_os_str().to_owned();
    name.push(ENDING);
    PathBuf::from(name)
}

/// How the names of these files end.
pub(super) const ENDING: &str = ".drover-leaves";

/// An open file of leaves.
#[derive(Debug)]
pub(super) struct Leaves {
    file: File,
    blocks: u64,
}

impl Leaves {
    /// Opens the leaves of an image of that size, to write it. What is there and fits is kept, unless the image is new.
    pub(super) fn open(image: &Path, size: u64, is_new: bool) -> io::Result<Leaves> {
        let file = options().read(true).write(true).create(true).mode(0o600).open(leaves_path(image))?;
        let head = head(size);
        let mut found = [0; HEAD_BYTES];
        let fits = file.read_exact_at(&mut found, 0).is_ok() && found == head;
        if is_new || !fits {
            file.set_len(0)?;
            file.write_all_at(&head, 0)?;
        }
        let blocks = size.div_ceil(BLOCK_BYTES);
        file.set_len(HEAD_BYTES as u64 + blocks * HASH_BYTES)?;
        Ok(Leaves { file, blocks })
    }

    /// What is known of a block.
    pub(super) fn get(&self, block: u64) -> Option<PieceHash> {
        let mut hash = [0; HASH_BYTES as usize];
        self.file.read_exact_at(&mut hash, at(block)).ok()?;
        (hash != [0; HASH_BYTES as usize]).then_some(hash)
    }

    pub(super) fn set(&self, first: u64, hashes: &[PieceHash]) {
        if first + hashes.len() as u64 <= self.blocks {
            // What is not kept is not found again: a loss of speed.
            let _ = self.file.write_all_at(hashes.as_flattened(), at(first));
        }
    }

    pub(super) fn forget(&self, first: u64, count: u64) {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        let end = at(first.saturating_add(count).min(self.blocks));
        let mut next = at(first.min(self.blocks));
        while next < end {
            let length = (end - next).min(ZEROS.len() as u64);
            // What stays although it is old costs a read that is in vain.
            let _ = self.file.write_all_at(&ZEROS[..length as usize], next);
            next += length;
        }
    }
}

fn at(block: u64) -> u64 {
    HEAD_BYTES as u64 + block.saturating_mul(HASH_BYTES)
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32);
    options
}

fn head(size: u64) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..8].copy_from_slice(MAGIC);
    head[8..12].copy_from_slice(&VERSION.to_le_bytes());
    head[12..16].copy_from_slice(&(BLOCK_BYTES as u32).to_le_bytes());
    head[16..24].copy_from_slice(&size.to_le_bytes());
    let check = blake3::hash(&head[..48]);
    head[48..].copy_from_slice(&check.as_bytes()[..16]);
    head
}

/// Reads all that is known of an image, for as long as `take` wants more.
pub(super) fn read_all(leaves: &Path, mut take: impl FnMut(u64, PieceHash) -> bool) -> io::Result<()> {
    let mut reader = io::BufReader::with_capacity(1 << 20, options().read(true).open(leaves)?);
    let mut found = [0; HEAD_BYTES];
    reader.read_exact(&mut found)?;
    let mut size = [0; 8];
    size.copy_from_slice(&found[16..24]);
    let size = u64::from_le_bytes(size);
    if found != head(size) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "these are no leaves"));
    }
    let mut hash = [0; HASH_BYTES as usize];
    for block in 0..size.div_ceil(BLOCK_BYTES) {
        match reader.read_exact(&mut hash) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            result => result?,
        }
        if hash != [0; HASH_BYTES as usize] && !take(block, hash) {
            return Ok(());
        }
    }
    Ok(())
}

/// Opens an image to look at its blocks.
pub(super) fn open_image(image: &Path) -> io::Result<File> {
    options().read(true).open(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaves_are_kept_for_the_same_image_only() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("a.raw");
        let size = 5 * BLOCK_BYTES + 1;
        let leaves = Leaves::open(&image, size, true).unwrap();
        leaves.set(1, &[[1; 32], [2; 32]]);
        leaves.set(5, &[[5; 32], [6; 32]]);
        leaves.forget(2, 100);
        let again = Leaves::open(&image, size, false).unwrap();
        assert_eq!(
            (again.get(0), again.get(1), again.get(2), again.get(6)),
            (None, Some([1; 32]), None, None)
        );
        let mut found = Vec::new();
        read_all(&leaves_path(&image), |block, hash| {
            found.push((block, hash));
            true
        })
        .unwrap();
        assert_eq!(found, [(1, [1; 32])]);
        assert_eq!(Leaves::open(&image, size + 1, false).unwrap().get(1), None, "another size");
        assert_eq!(Leaves::open(&image, size + 1, true).unwrap().get(1), None, "another image");
    }

    #[test]
    fn files_of_something_else_are_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.drover-leaves");
        for bytes in [&b""[..], b"DROVERL\n", &[7; 200]] {
            std::fs::write(&path, bytes).unwrap();
            assert!(read_all(&path, |_, _| panic!("nothing is known")).is_err());
        }
    }
}
