//! The hash tree of a disk.
//!
//! ```text
//! leaf  = BLAKE3(bytes of one 64 KiB block; the last block of a disk may be shorter)
//! node  = BLAKE3 derive_key("drover disk tree v1 node", the leaves of 4,096 blocks = 256 MiB)
//! root  = BLAKE3 derive_key("drover disk tree v1 root", size u64 LE, block bytes u32 LE, all nodes)
//! ```
//!
//! A leaf does not depend on where its block lies, so zero blocks all have one leaf and are never
//! hashed, and equal blocks of two disks are known by their leaves. The node in between lets a large
//! disk be summed without holding more than one segment's leaves.

use std::sync::OnceLock;

use drover_types::{BLOCK_BYTES, ByteSpan, Digest};

use crate::blocks::BlockSet;
use crate::journal::{Entry, RECORD_BLOCKS_MAX};

/// Blocks under one node of the tree.
pub(crate) const SEGMENT_BLOCKS: u64 = 4096;

/// Bytes of disk under one node of the tree.
pub const SEGMENT_BYTES: u64 = SEGMENT_BLOCKS * BLOCK_BYTES;

/// What is known of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// All its bytes are zero.
    Zero,
    /// BLAKE3 of its bytes, of which at least one is not zero.
    Data(Digest),
}

impl Leaf {
    /// The leaf of these bytes.
    pub fn of(block: &[u8]) -> Leaf {
        if crate::is_zero(block) { Leaf::Zero } else { Leaf::Data(Digest(*blake3::hash(block).as_bytes())) }
    }
}

/// The leaf digest of `bytes` zero bytes.
pub fn zero_leaf(bytes: u64) -> Digest {
    static FULL: OnceLock<Digest> = OnceLock::new();
    let hash = |bytes: u64| Digest(*blake3::hash(&vec![0; bytes as usize]).as_bytes());
    if bytes == BLOCK_BYTES { *FULL.get_or_init(|| hash(BLOCK_BYTES)) } else { hash(bytes) }
}

/// The leaves of a disk as far as they are known.
///
/// Takes 32 bytes for each 64 KiB block of a 256 MiB segment that has at least one data block, and
/// next to nothing for segments that are unknown or all zero.
#[derive(Clone, Debug, PartialEq)]
pub struct LeafTable {
    size: u64,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq)]
enum Segment {
    Unknown,
    Zero,
    Mixed(Vec<Option<Leaf>>),
}

/// A block whose leaf in one table differs from that in another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Index of the block.
    pub block: u64,
    /// Where it lies.
    pub span: ByteSpan,
}

impl LeafTable {
    /// A table of a disk of `size` bytes in which nothing is known.
    pub fn new(size: u64) -> Self {
        let segments = size.div_ceil(BLOCK_BYTES).div_ceil(SEGMENT_BLOCKS);
        LeafTable { size, segments: vec![Segment::Unknown; segments as usize] }
    }

    /// Size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Number of blocks, the last of which may be short.
    pub fn blocks(&self) -> u64 {
        self.size.div_ceil(BLOCK_BYTES)
    }

    /// The bytes of a block.
    pub fn span_of(&self, block: u64) -> ByteSpan {
        ByteSpan::from_bounds(block * BLOCK_BYTES, ((block + 1) * BLOCK_BYTES).min(self.size))
    }

    /// What is known of a block; nothing of those beyond the disk.
    pub fn get(&self, block: u64) -> Option<Leaf> {
        if block >= self.blocks() {
            return None;
        }
        match self.segments.get((block / SEGMENT_BLOCKS) as usize)? {
            Segment::Unknown => None,
            Segment::Zero => Some(Leaf::Zero),
            Segment::Mixed(leaves) => *leaves.get((block % SEGMENT_BLOCKS) as usize)?,
        }
    }

    /// Learns one block.
    pub fn set(&mut self, block: u64, leaf: Leaf) {
        assert!(block < self.blocks(), "block {block} of {}", self.blocks());
        let index = (block / SEGMENT_BLOCKS) as usize;
        if self.segments[index] == Segment::Zero && leaf == Leaf::Zero {
            return;
        }
        let length = self.blocks_in(index);
        self.mixed(index, length)[(block % SEGMENT_BLOCKS) as usize] = Some(leaf);
    }

    /// Forgets what is known of `count` blocks from `first`.
    pub(crate) fn forget(&mut self, first: u64, count: u64) {
        let end = first.saturating_add(count);
        assert!(end <= self.blocks(), "blocks {first}..{end} of {}", self.blocks());
        let mut block = first;
        while block < end {
            let index = (block / SEGMENT_BLOCKS) as usize;
            let length = self.blocks_in(index);
            let start = index as u64 * SEGMENT_BLOCKS;
            let segment_end = (start + length as u64).min(end);
            if segment_end - block == length as u64 {
                self.segments[index] = Segment::Unknown;
            } else if self.segments[index] != Segment::Unknown {
                let range = (block - start) as usize..(segment_end - start) as usize;
                self.mixed(index, length)[range].fill(None);
            }
            block = segment_end;
        }
    }

    /// The blocks that are not known.
    pub(crate) fn unknown(&self) -> BlockSet {
        let mut unknown = BlockSet::none(self.size);
        for (index, segment) in self.segments.iter().enumerate() {
            let first = index as u64 * SEGMENT_BLOCKS;
            match segment {
                Segment::Unknown => unknown.insert(first, self.blocks_in(index) as u64),
                Segment::Zero => {}
                Segment::Mixed(leaves) => (first..)
                    .zip(leaves)
                    .filter(|(_, leaf)| leaf.is_none())
                    .for_each(|(block, _)| unknown.insert(block, 1)),
            }
        }
        unknown
    }

    /// What is known, as records of a journal: runs of zeros and of data in the order of the disk.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + '_ {
        let mut block = 0;
        std::iter::from_fn(move || {
            let known = |block: u64| self.get(block);
            block = (block..self.blocks()).find(|block| known(*block).is_some())?;
            let first = block;
            if known(first) == Some(Leaf::Zero) {
                while block - first < u64::from(u32::MAX) && known(block) == Some(Leaf::Zero) {
                    block += 1;
                }
                return Some(Entry::Zero { first, count: (block - first) as u32 });
            }
            let mut leaves = Vec::new();
            while let Some(Leaf::Data(digest)) = known(block).filter(|_| leaves.len() < RECORD_BLOCKS_MAX) {
                leaves.push(digest);
                block += 1;
            }
            Some(Entry::Data { first, leaves })
        })
    }

    /// Learns that `count` blocks from `first` are zero.
    pub fn set_zero(&mut self, first: u64, count: u64) {
        let end = first.saturating_add(count);
        assert!(end <= self.blocks(), "blocks {first}..{end} of {}", self.blocks());
        let mut block = first;
        while block < end {
            let index = (block / SEGMENT_BLOCKS) as usize;
            let segment_end = (index as u64 * SEGMENT_BLOCKS + self.blocks_in(index) as u64).min(end);
            if block.is_multiple_of(SEGMENT_BLOCKS) && segment_end - block == self.blocks_in(index) as u64 {
                self.segments[index] = Segment::Zero;
            } else {
                (block..segment_end).for_each(|block| self.set(block, Leaf::Zero));
            }
            block = segment_end;
        }
    }

    /// Number of blocks that are known.
    pub fn known_blocks(&self) -> u64 {
        let known = |(index, segment): (usize, &Segment)| match segment {
            Segment::Unknown => 0,
            Segment::Zero => self.blocks_in(index) as u64,
            Segment::Mixed(leaves) => leaves.iter().flatten().count() as u64,
        };
        self.segments.iter().enumerate().map(known).sum()
    }

    /// Number of known blocks that hold data.
    pub fn data_blocks(&self) -> u64 {
        let data = |segment: &Segment| match segment {
            Segment::Mixed(leaves) => {
                leaves.iter().filter(|leaf| matches!(leaf, Some(Leaf::Data(_)))).count() as u64
            }
            _ => 0,
        };
        self.segments.iter().map(data).sum()
    }

    /// Whether every block is known.
    pub fn is_complete(&self) -> bool {
        self.known_blocks() == self.blocks()
    }

    /// The root digest, once every block is known.
    pub fn root(&self) -> Option<Digest> {
        let mut root = RootHasher::new(self.size);
        root.push(self)?;
        Some(root.finish())
    }

    /// Blocks that both tables know and that differ.
    pub fn mismatches<'a>(&'a self, other: &'a LeafTable) -> impl Iterator<Item = Mismatch> + 'a {
        (0..self.blocks()).filter_map(move |block| match (self.get(block), other.get(block)) {
            (Some(a), Some(b)) if a != b => Some(Mismatch { block, span: self.span_of(block) }),
            _ => None,
        })
    }

    /// Known blocks that the other table does not know, or knows to be something else.
    pub fn not_in<'a>(&'a self, other: &'a LeafTable) -> impl Iterator<Item = Mismatch> + 'a {
        let is_new = move |block: &u64| self.get(*block).is_some_and(|leaf| other.get(*block) != Some(leaf));
        let blocks = (0..self.blocks()).filter(is_new);
        blocks.map(|block| Mismatch { block, span: self.span_of(block) })
    }

    /// Forgets what the other table knows to be something else.
    pub fn forget_others(&mut self, other: &LeafTable) {
        let others: Vec<u64> = other.not_in(self).map(|mismatch| mismatch.block).collect();
        others.into_iter().for_each(|block| self.forget(block, 1));
    }

    fn blocks_in(&self, segment: usize) -> usize {
        (self.blocks() - segment as u64 * SEGMENT_BLOCKS).min(SEGMENT_BLOCKS) as usize
    }

    fn mixed(&mut self, index: usize, length: usize) -> &mut Vec<Option<Leaf>> {
        let segment = &mut self.segments[index];
        if !matches!(segment, Segment::Mixed(_)) {
            let fill = (*segment == Segment::Zero).then_some(Leaf::Zero);
            *segment = Segment::Mixed(vec![fill; length]);
        }
        match segment {
            Segment::Mixed(leaves) => leaves,
            _ => unreachable!("made mixed just above"),
        }
    }

    fn node(&self, index: usize) -> Option<Digest> {
        static ZERO: OnceLock<Digest> = OnceLock::new();
        let first = index as u64 * SEGMENT_BLOCKS;
        let count = self.blocks_in(index) as u64;
        let last_is_full = (first + count) * BLOCK_BYTES <= self.size;
        match &self.segments[index] {
            Segment::Unknown => None,
            Segment::Zero if count == SEGMENT_BLOCKS && last_is_full => {
                Some(*ZERO.get_or_init(|| hash_node((0..SEGMENT_BLOCKS).map(|_| zero_leaf(BLOCK_BYTES)))))
            }
            _ => {
                let leaves: Option<Vec<Digest>> =
                    (first..first + count).map(|block| self.digest(block)).collect();
                Some(hash_node(leaves?.into_iter()))
            }
        }
    }

    fn digest(&self, block: u64) -> Option<Digest> {
        self.get(block).map(|leaf| match leaf {
            Leaf::Zero => zero_leaf(self.span_of(block).length),
            Leaf::Data(digest) => digest,
        })
    }
}

/// Makes the root of a disk from tables of its parts, so that a large disk never needs one table of
/// all its leaves.
#[derive(Debug)]
pub struct RootHasher {
    hasher: blake3::Hasher,
    left: u64,
}

impl RootHasher {
    /// For a disk of `size` bytes.
    pub fn new(size: u64) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key("drover disk tree v1 root");
        hasher.update(&size.to_le_bytes());
        hasher.update(&(BLOCK_BYTES as u32).to_le_bytes());
        RootHasher { hasher, left: size }
    }

    /// Takes the table of the part that follows; `None` if it has an unknown block.
    ///
    /// # Panics
    /// If the part is larger than what is left, or is not the last and does not end on 256 MiB.
    pub fn push(&mut self, part: &LeafTable) -> Option<()> {
        self.left = self.left.checked_sub(part.size).expect("parts are not larger than the disk");
        assert!(self.left == 0 || part.size.is_multiple_of(SEGMENT_BYTES), "a part ends inside a segment");
        (0..part.segments.len()).try_for_each(|index| {
            self.hasher.update(&part.node(index)?.0);
            Some(())
        })
    }

    /// The root.
    ///
    /// # Panics
    /// If parts are missing.
    pub fn finish(self) -> Digest {
        assert_eq!(self.left, 0, "all parts were pushed");
        Digest(*self.hasher.finalize().as_bytes())
    }
}

fn hash_node(leaves: impl Iterator<Item = Digest>) -> Digest {
    let mut node = blake3::Hasher::new_derive_key("drover disk tree v1 node");
    leaves.for_each(|leaf| {
        node.update(&leaf.0);
    });
    Digest(*node.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table_of(bytes: &[u8]) -> LeafTable {
        let mut table = LeafTable::new(bytes.len() as u64);
        for (block, chunk) in bytes.chunks(BLOCK_BYTES as usize).enumerate() {
            table.set(block as u64, Leaf::of(chunk));
        }
        table
    }

    #[test]
    fn root_is_unknown_until_the_last_block_is_known() {
        let mut table = LeafTable::new(3 * BLOCK_BYTES + 1);
        table.set_zero(0, 3);
        assert_eq!(table.root(), None);
        table.set(3, Leaf::Zero);
        assert!(table.root().is_some() && table.is_complete());
    }

    #[test]
    fn root_is_the_same_however_zeros_were_learnt() {
        // Whole segments and parts of one, with a last block that is whole or short.
        let segment = SEGMENT_BYTES;
        for size in [
            3 * BLOCK_BYTES,
            segment - 1,
            segment,
            segment + 7 * BLOCK_BYTES + 100,
            2 * segment - BLOCK_BYTES + 1,
        ] {
            let mut at_once = LeafTable::new(size);
            at_once.set_zero(0, at_once.blocks());
            let mut one_by_one = LeafTable::new(size);
            (0..one_by_one.blocks()).rev().for_each(|block| one_by_one.set(block, Leaf::Zero));
            assert_eq!(at_once.root(), one_by_one.root(), "{size} bytes");
        }
    }

    #[test]
    fn root_follows_its_written_definition() {
        let mut bytes = vec![0; 2 * BLOCK_BYTES as usize + 5];
        bytes[70000] = 1;
        let mut node = blake3::Hasher::new_derive_key("drover disk tree v1 node");
        bytes.chunks(65536).for_each(|chunk| {
            node.update(blake3::hash(chunk).as_bytes());
        });
        let mut root = blake3::Hasher::new_derive_key("drover disk tree v1 root");
        root.update(&(bytes.len() as u64).to_le_bytes()).update(&65536u32.to_le_bytes());
        root.update(node.finalize().as_bytes());
        assert_eq!(table_of(&bytes).root(), Some(Digest(*root.finalize().as_bytes())));
    }

    #[test]
    fn any_changed_byte_and_any_other_size_change_the_root() {
        let zeros = vec![0; 131072];
        let mut changed = zeros.clone();
        changed[131071] = 1;
        assert_ne!(table_of(&zeros).root(), table_of(&changed).root());
        assert_ne!(table_of(&zeros).root(), table_of(&zeros[..131071]).root());
        assert_eq!(
            table_of(&zeros).mismatches(&table_of(&changed)).map(|m| m.block).collect::<Vec<_>>(),
            [1]
        );
        let shorter = table_of(&[1; 65536]);
        assert_eq!(table_of(&changed).mismatches(&shorter).count(), 1, "what only one has does not differ");
    }

    #[test]
    fn blocks_that_another_table_lacks_or_has_otherwise_are_told_and_forgotten() {
        let block = |byte: u8| Leaf::of(&[byte]);
        let table = |leaves: [Option<Leaf>; 4]| {
            let mut table = LeafTable::new(4 * BLOCK_BYTES);
            (0..)
                .zip(leaves)
                .filter_map(|(at, leaf)| Some((at, leaf?)))
                .for_each(|(at, leaf)| table.set(at, leaf));
            table
        };
        let newer = table([Some(block(1)), Some(block(2)), Some(block(3)), None]);
        let mut older = table([Some(block(1)), Some(block(7)), None, Some(block(4))]);
        assert_eq!(newer.not_in(&older).map(|it| it.block).collect::<Vec<_>>(), [1, 2]);
        older.forget_others(&newer);
        assert_eq!(older, table([Some(block(1)), None, None, Some(block(4))]));
    }

    #[test]
    fn the_root_of_parts_is_the_root_of_the_whole() {
        let size = 2 * SEGMENT_BYTES + 3 * BLOCK_BYTES + 9;
        let mut whole = LeafTable::new(size);
        whole.set_zero(0, whole.blocks());
        whole.set(SEGMENT_BLOCKS + 5, Leaf::of(b"data"));
        whole.set(2 * SEGMENT_BLOCKS + 3, Leaf::of(b"end"));
        let mut root = RootHasher::new(size);
        for (first, bytes) in [(0, 2 * SEGMENT_BYTES), (2 * SEGMENT_BLOCKS, 3 * BLOCK_BYTES + 9)] {
            let mut part = LeafTable::new(bytes);
            (0..part.blocks()).for_each(|block| part.set(block, whole.get(first + block).unwrap()));
            root.push(&part).unwrap();
        }
        assert_eq!(Some(root.finish()), whole.root());
        assert!(RootHasher::new(5).push(&LeafTable::new(5)).is_none(), "an unknown block has no hash");
    }

    #[test]
    fn a_disk_of_no_bytes_has_a_root() {
        assert!(LeafTable::new(0).root().is_some());
    }

    /// The same table, slow and obvious.
    struct Oracle(Vec<Option<Leaf>>);

    impl Oracle {
        fn check(&self, table: &LeafTable) {
            let count =
                |is: fn(&Leaf) -> bool| self.0.iter().flatten().filter(|leaf| is(leaf)).count() as u64;
            let known = count(|_| true);
            assert_eq!((table.known_blocks(), table.is_complete()), (known, known == table.blocks()));
            assert_eq!(table.data_blocks(), count(|leaf| matches!(leaf, Leaf::Data(_))));
            let unknown = table.unknown();
            for (block, leaf) in (0..).zip(&self.0) {
                assert_eq!(table.get(block), *leaf, "block {block}");
                assert_eq!(unknown.contains(block), leaf.is_none(), "block {block}");
            }
            assert_eq!(table.get(table.blocks()), None);
            self.check_entries(table);
        }

        /// Records in the order of the disk, of full length where there is as much, tell all that is known.
        fn check_entries(&self, table: &LeafTable) {
            let mut told = vec![None; self.0.len()];
            let mut end = 0;
            for entry in table.entries() {
                let (first, leaves) = match entry {
                    Entry::Data { first, leaves } => {
                        (first, leaves.into_iter().map(Leaf::Data).collect::<Vec<_>>())
                    }
                    Entry::Zero { first, count } => (first, vec![Leaf::Zero; count as usize]),
                    other => panic!("{other:?}"),
                };
                assert!(first >= end && !leaves.is_empty() && leaves.len() <= self.0.len());
                end = first + leaves.len() as u64;
                let follows = self.0.get(end as usize).copied().flatten();
                let is_of_kind = |leaf: Leaf| (leaf == Leaf::Zero) == (leaves[0] == Leaf::Zero);
                let is_cut = leaves[0] != Leaf::Zero && leaves.len() == RECORD_BLOCKS_MAX;
                assert!(is_cut || !follows.is_some_and(is_of_kind), "a run was torn at block {end}");
                for (block, leaf) in (first as usize..).zip(leaves) {
                    told[block] = Some(leaf);
                }
            }
            assert!(told == self.0, "records tell something else");
        }
    }

    #[test]
    fn whatever_is_learnt_and_forgotten_the_table_is_what_a_plain_list_would_be() {
        let sizes =
            [1, BLOCK_BYTES, SEGMENT_BYTES, SEGMENT_BYTES + 1, 2 * SEGMENT_BYTES + 3 * BLOCK_BYTES + 9];
        for (seed, size) in (1u64..).zip(sizes) {
            let mut table = LeafTable::new(size);
            let blocks = size.div_ceil(BLOCK_BYTES);
            assert_eq!((table.size(), table.blocks()), (size, blocks));
            assert_eq!(table.span_of(blocks - 1).end(), size);
            let mut oracle = Oracle(vec![None; blocks as usize]);
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut roll = |sides: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % sides
            };
            for step in 0..60u64 {
                let at = roll(blocks);
                let first = if roll(3) == 0 { at / SEGMENT_BLOCKS * SEGMENT_BLOCKS } else { at };
                // Often whole segments, or up to their end.
                let count = match roll(4) {
                    0 => (SEGMENT_BLOCKS - first % SEGMENT_BLOCKS).min(blocks - first),
                    1 => blocks - first,
                    2 => SEGMENT_BLOCKS.min(blocks - first),
                    _ => 1 + roll(blocks - first),
                };
                let range = first as usize..(first + count) as usize;
                match roll(3) {
                    0 => {
                        table.set_zero(first, count);
                        oracle.0[range].fill(Some(Leaf::Zero));
                    }
                    1 => {
                        table.forget(first, count);
                        oracle.0[range].fill(None);
                    }
                    _ => {
                        for block in range {
                            let leaf = if block % 97 == 0 {
                                Leaf::Zero
                            } else {
                                Leaf::of(&[1 + step as u8, block as u8])
                            };
                            table.set(block as u64, leaf);
                            oracle.0[block] = Some(leaf);
                        }
                    }
                }
                oracle.check(&table);
            }
            table.set_zero(0, blocks);
            assert!(table.is_complete() && table.data_blocks() == 0);
            assert!(table.segments.iter().all(|segment| *segment == Segment::Zero), "zeros take no memory");
            table.forget(0, blocks);
            assert!(table.segments.iter().all(|segment| *segment == Segment::Unknown), "nor does nothing");
            table.forget(0, 1);
            assert!(table.segments.iter().all(|segment| *segment == Segment::Unknown));
        }
    }

    #[test]
    fn blocks_beyond_the_disk_are_no_blocks() {
        let panics = |change: fn(&mut LeafTable)| {
            let mut table = LeafTable::new(3 * BLOCK_BYTES);
            std::panic::catch_unwind(move || change(&mut table)).is_err()
        };
        assert!(!panics(|table| table.set(2, Leaf::Zero)) && panics(|table| table.set(3, Leaf::Zero)));
        assert!(!panics(|table| table.set_zero(1, 2)) && panics(|table| table.set_zero(1, 3)));
        assert!(!panics(|table| table.forget(0, 3)) && panics(|table| table.forget(0, 4)));
        assert!(panics(|table| table.forget(2, u64::MAX)) && panics(|table| table.set_zero(2, u64::MAX)));
    }

    #[test]
    fn parts_that_do_not_make_a_whole_are_refused() {
        let zeros = |size: u64| {
            let mut table = LeafTable::new(size);
            table.set_zero(0, table.blocks());
            table
        };
        let push = |whole: u64, parts: &[u64]| {
            let tables: Vec<LeafTable> = parts.iter().map(|size| zeros(*size)).collect();
            std::panic::catch_unwind(move || {
                let mut root = RootHasher::new(whole);
                tables.iter().for_each(|table| root.push(table).unwrap());
                root.finish()
            })
        };
        let whole = SEGMENT_BYTES + BLOCK_BYTES;
        assert_eq!(push(whole, &[SEGMENT_BYTES, BLOCK_BYTES]).ok(), zeros(whole).root());
        assert!(push(whole, &[BLOCK_BYTES, SEGMENT_BYTES]).is_err(), "it ends inside a segment");
        assert!(push(whole, &[SEGMENT_BYTES]).is_err(), "a part is missing");
        assert!(push(BLOCK_BYTES, &[SEGMENT_BYTES]).is_err(), "it is larger than what is left");
    }
}
