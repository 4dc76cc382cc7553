use drover_disk::Buffer;

use crate::message::PieceHash;

/// What a store knows of whole blocks, by their hashes. It may be wrong or old, so it is never believed: a block that
/// is found has been read and held against the hash.
pub trait KnownBlocks: Send + Sync {
    /// Looks for a block whose bytes have this hash: first in its own place on this disk (`block`), then elsewhere.
    /// The buffer has a whole block's length, and holds what was read last.
    fn find(&self, hash: &PieceHash, block: u64, buffer: &mut Buffer) -> Found;

    /// So many blocks of this disk, from `first` on, are about to hold something else.
    fn forget(&self, first: u64, count: u64);

    /// These blocks of this disk, from `first` on, hold bytes with these hashes.
    fn learn(&self, first: u64, hashes: &[PieceHash]);
}

/// Where a block was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// In its place: nothing has to be written.
    Here,
    /// Elsewhere: the buffer holds it.
    Elsewhere,
    /// Nowhere.
    Nowhere,
}
